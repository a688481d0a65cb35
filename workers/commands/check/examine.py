"""Examine a sample under the settings: accepted records, reject reasons, and expected results.

The worker's own readers decide. The findings are exact: for the operator only. They include field
paths that no record has, with similar existing paths, and what the first ticks of a histogram would
show if events continued as in the sample. That estimate extrapolates every sampled item at its rate
and finds where its expected count passes the threshold; it ignores other items and the per-user
bounds.

A view is what a histogram reads of an event: stream key, items and counts, and the condition
`where`. A code is a text's number in a vocabulary. A weight is how many events per second one
sampled event of a partition represents. A part of the sample is one partition's newest records; of
a partition that has more, its oldest few are read, too.
"""

from __future__ import annotations

import difflib
import json
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import islice
from typing import NamedTuple

import numpy as np

from workers.arrays.types import Longs
from workers.commands.check import unreadable
from workers.commands.check.sample import Part, Sample
from workers.commands.init.fields import walk
from workers.commands.json_fault import NOT_JSON, Fault, fault_of
from workers.commands.rates import (
    PartitionSample,
    estimated_records,
    event_rates,
    joined,
)
from workers.commands.undeclared import UndeclaredKeys, json_string
from workers.events.columns import EventColumns, Events, rows_of
from workers.events.formats.reader import RecordFormats
from workers.events.project import Projection
from workers.events.reading import (
    AHEAD,
    EARLY,
    NOT_DECLARED,
    Reject,
    SourceReader,
)
from workers.events.times import PLAUSIBLE_MS, time_ms
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.config.views import CHARACTERS_MAX, UNITS, Path, Shape, parse
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.running.sliding import Sliding
from workers.pipeline.factory import lanes, reader_of, source_reader_of
from workers.pipeline.watermark import Watermark, behind_rejects, late_events
from workers.privacy.ceiling import mechanism_of
from workers.privacy.plan import noise
from workers.privacy.plan.windows import worst_and_rms
from workers.replay.gaps import EventTimes, Gap
from workers.settings.settings import Settings

NO_OBJECT = (NOT_JSON, "not a JSON object")
# Per object: an object of counts has a name for every item.
NAMES_MAX = 200
# Per list, from its beginning.
ELEMENTS_MAX = 20
# For all records together.
PATHS_MAX = 5_000
# Stream keys in quotes that are named.
_QUOTED_MAX = 5
# Similar paths that are named, and their least likeness (`_similarity`).
NEAREST = 3
_NEAR = 0.6
_LAST_NAME = 0.95
_NEAR_LAST = 0.75


class PathCounts:
    """Number of records per path. Its repr shows none: names of fields may be data."""

    def __init__(self) -> None:
        self._with_path: Counter[str] = Counter()
        self._records = 0

    def __repr__(self) -> str:
        return f"PathCounts({len(self._with_path)})"

    def add(self, record: object) -> None:
        """Count every path in a record once, up to PATHS_MAX different ones."""
        self._records += 1
        # The way to each value, by names, with the value.
        fields = walk(record, NAMES_MAX, ELEMENTS_MAX)
        for steps in {steps for steps, _ in fields if steps.names}:
            text = str(Path(*steps))
            if text in self._with_path or (
                len(self._with_path) < PATHS_MAX and len(text) <= CHARACTERS_MAX
            ):
                self._with_path[text] += 1

    def has(self, path: Path) -> bool:
        return str(path) in self._with_path

    def nearest(self, path: Path) -> Nearest:
        """Return the paths most like `path`, with the share of the records that have them."""
        scores = {
            text: _similarity(path, text)
            for text in self._with_path
            if text != str(path)
        }
        good = [text for text, score in scores.items() if score >= _NEAR]
        near = sorted(good, key=lambda text: (-scores[text], text))[:NEAREST]
        return Nearest(
            str(path), {text: self._with_path[text] / self._records for text in near}
        )


def wanted_paths(shape: Shape) -> list[Path]:
    """Return the paths of all fields that the settings read, each once."""
    read: list[object] = []
    for view in shape.views.values():
        read += view.paths().values()
        read += [parse(condition.field) for condition in view.where]
    # Time and user may be the record's time or key, which is no field, or None.
    each_once = dict.fromkeys([*read, shape.time, shape.user])
    return [path for path in each_once if isinstance(path, Path)]


def _similarity(wanted: Path, text: str) -> float:
    """Return how alike a wanted path and another one, a text, are, from 0 to 1.

    Their last names alone are weaker evidence, and must be very alike: short ones match by chance.
    """
    whole = _ratio(str(wanted), text)
    last = _ratio(wanted.steps[-1], parse(text).steps[-1])
    return max(whole, _LAST_NAME * last if last >= _NEAR_LAST else 0.0)


def _ratio(name: str, other: str) -> float:
    """Return how alike two names are, from 0 to 1; case and the way to join words do not count."""
    name, other = (
        text.casefold().replace("_", "").replace("-", "") for text in (name, other)
    )
    matcher = difflib.SequenceMatcher(None, name, other)
    # Cheap upper bounds first; the ratio itself is quadratic in the length.
    likely = min(matcher.real_quick_ratio(), matcher.quick_ratio()) >= _NEAR
    return matcher.ratio() if likely else 0.0


Pair = tuple[str, str]  # a stream key and a label


class ThresholdEstimate(NamedTuple):
    """After `tick`, the threshold, and how many sampled items are expected to pass it."""

    tick: int
    threshold: int
    shown: int


class WindowEstimate(NamedTuple):
    """A window without epochs, of `ms`: its worst noise, and its expected counts.

    `largest` and `median` are those of the sampled items, of which `shown` pass the threshold; all
    are shown if that is None.
    """

    ms: int
    sd: float
    largest: float
    median: float
    threshold: int | None
    shown: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Expected results of a histogram's ticks.

    `has_counts`: whether counts are published, with noise `sd_first` after the `first` tick that
    shows items (the first, or that of `discovery_step`), and `sd_worst` at worst. `last` is the
    epoch's last tick, or that of the first year. A tick has `events`; `largest` and `median` are
    expected counts in it of the sampled items (0 without items); `items` counts pairs of stream key
    and item. `passing` is at the first and the last tick at which a threshold decides (empty: no
    threshold); `declared` is the share of contributions in the domain (None: it has none). Without
    epochs there are `windows` in place of `first`, `sd_first`, `sd_worst` and `passing`.
    """

    has_counts: bool = True
    first: int = 1
    sd_first: float = 0.0
    sd_worst: float = 0.0
    last: int
    events: float
    largest: float
    median: float
    items: int
    passing: tuple[ThresholdEstimate, ...] = ()
    declared: float | None
    windows: tuple[WindowEstimate, ...] = ()


def expected(
    config: HistogramConfig, unit: str, events_s: float, pairs_s: Mapping[Pair, float]
) -> Expected:
    """Return the expected results of a histogram's ticks.

    `unit` is what is protected: "event" or "user". `events_s` are matching events per second,
    `pairs_s` contributions per second of each stream key and label, within the bounds of an event.
    """
    mechanism = mechanism_of(config, unit)
    tick_s = config.tick_ms / 1000
    per_tick = {pair: rate * tick_s for pair, rate in pairs_s.items()}
    domain = {label.decode() for label in mechanism.domain()}
    total = sum(per_tick.values())
    declared = None
    if domain:
        per_tick = {
            (key, label): count
            for (key, label), count in per_tick.items()
            if label in domain
        }
        declared = sum(per_tick.values()) / total if total else 0.0
    last = noise.last_tick(config)
    of_a_tick = Expected(
        last=last,
        events=events_s * tick_s,
        largest=max(per_tick.values(), default=0.0),
        median=statistics.median(per_tick.values()) if per_tick else 0.0,
        items=len(per_tick),
        declared=declared,
    )
    if isinstance(mechanism, Sliding):
        windows = tuple(_window_estimates(config, mechanism, per_tick))
        return replace(of_a_tick, windows=windows)
    # New items are shown only at every so many ticks, an epoch's last one at the latest.
    step = config.discovery_step or 1
    first = min(step, last)
    sd_worst, _rms = mechanism.curve(last).worst_and_rms(last)
    # The first and last ticks after which a threshold decides what is shown.
    ticks = sorted({first, last // step * step or last})
    decided = [tick for tick in ticks if mechanism.threshold(tick) is not None]
    return replace(
        of_a_tick,
        has_counts=mechanism.law in noise.COUNT_LAWS,
        first=first,
        sd_first=mechanism.sd(first),
        sd_worst=sd_worst,
        passing=tuple(
            _threshold_estimate(config, mechanism, per_tick, tick) for tick in decided
        ),
    )


def _window_estimates(
    config: HistogramConfig, mechanism: Sliding, per_tick: Mapping[Pair, float]
) -> Iterator[WindowEstimate]:
    """Yield what every window would show; `per_tick` has the expected counts in a tick."""
    for number, counter in enumerate(mechanism.windows):
        # `window` is its length in ticks.
        counts = [count * counter.window for count in per_tick.values()]
        threshold = mechanism.threshold_of(number)
        sd, _rms = worst_and_rms(counter)
        yield WindowEstimate(
            ms=config.windows[number],
            sd=sd,
            largest=max(counts, default=0.0),
            median=statistics.median(counts) if counts else 0.0,
            threshold=threshold,
            shown=sum(count > (threshold or 0) for count in counts),
        )


def _threshold_estimate(
    config: HistogramConfig,
    mechanism: Mechanism,
    per_tick: Mapping[Pair, float],
    tick: int,
) -> ThresholdEstimate:
    """Return how many items pass the threshold by `tick`; `per_tick` has their counts in a tick."""
    # (`expected` asks for no tick without one.)
    threshold = mechanism.threshold(tick) or 0
    # How many ticks' counts are compared with the threshold together: all since the epoch began;
    # of the family "tick" one; or, where ticks form blocks of radix^level ticks, those of the
    # longest block that fits.
    ticks = 1 if mechanism.about.family == "tick" else tick
    if (blocks := mechanism.blocks()) is not None:
        sizes = (blocks.radix**level for level in range(blocks.levels))
        ticks = max(size for size in sizes if size <= tick)
    counts = {pair: count * ticks for pair, count in per_tick.items()}
    # What must exceed the threshold is a count, or how far it is ahead of its bar.
    shown = sum(
        counts[pair] > threshold + bar for pair, bar in _bars(config, counts).items()
    )
    return ThresholdEstimate(tick=tick, threshold=threshold, shown=shown)


def _bars(config: HistogramConfig, counts: Mapping[Pair, float]) -> dict[Pair, float]:
    """Return, for each item, the count that its own must exceed by the threshold.

    That is 0, or, if only the k largest of a stream key are candidates to be shown, the (k+1)-th
    count of its key.
    """
    candidates = config.candidates
    if not candidates:
        return dict.fromkeys(counts, 0.0)
    # Each with a 0 at the end: the bar of a key with at most k items.
    by_key: dict[str, list[float]] = defaultdict(lambda: [0.0])
    for (key, _), count in counts.items():
        by_key[key].append(count)
    bars = {}
    for key, key_counts in by_key.items():
        key_counts.sort(reverse=True)
        bars[key] = key_counts[min(candidates, len(key_counts) - 1)]
    return {(key, label): bars[key] for key, label in counts}


UserEpoch = tuple[bytes, int]  # a user's digest and an epoch


class Nearest(NamedTuple):
    """A path that no record has, and similar ones with the share of records that have them."""

    path: str
    nearest: Mapping[str, float]


@dataclass(slots=True, kw_only=True)
class RejectReason:
    """Records rejected for one reason.

    `example` is the first of them, exact; `fields` counts their paths; `absent` is the field that
    the reason names if none has it; `hint` how such records might be accepted; `empty` how many
    `missing = "empty"` would accept, as events without items; `fault` where the example stops being
    JSON; `keys` the lines about undeclared stream keys. None and "" say that there is none.
    """

    reason: str
    number: int = 0
    example: str = ""
    fields: PathCounts = field(default_factory=PathCounts)
    absent: Nearest | None = None
    hint: str = ""
    fault: Fault | None = None
    empty: int = 0
    keys: tuple[str, ...] = ()


class Distribution(NamedTuple):
    """Distribution of a quantity: median, 99 % quantile, maximum, and how many exceed a bound."""

    median: float
    most_of_99: float
    most: int
    above: int


class Numbers(NamedTuple):
    """Numbers of a sum, one for each item of an accepted event, and those clamped to its ends."""

    read: int
    below: int
    above: int


class UserContributions(NamedTuple):
    """Contributions of the sample's users in an epoch; in a full epoch they may contribute more.

    `users` are per epoch, summed over epochs. `pairs` of stream key and item per user compare with
    max_items_per_user, `amounts` per pair with max_count.
    """

    users: int
    pairs: Distribution
    amounts: Distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramFindings:
    """A histogram's view of the sample.

    `where` matches `looked_at` events, with `keys` stream keys, of which it serves `served`.
    `unserved` (other keys, counted in `undeclared`) and `early` (before its start) events do not
    count; `late` ones, of those looked at, come after their tick has closed, and count in a later
    one. `quoted_keys` are some that count and are JSON strings; `labels` is how many different ones
    there are. `items` per event compares with max_items, `amounts` per item in an event with
    max_count. `numbers` is None without a sum, `of_users` if events are protected, `expected` if
    the sample gives no rate; no record has the paths in `absent`.
    """

    config: HistogramConfig
    looked_at: int
    keys: int
    served: int
    unserved: int
    undeclared: Counter[str]
    quoted_keys: tuple[str, ...]
    without_items: int
    early: int
    late: int
    labels: int
    items: Distribution
    amounts: Distribution
    numbers: Numbers | None
    of_users: UserContributions | None
    absent: tuple[Nearest, ...]
    expected: Expected | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Findings on a sample: `skipped` records match no histogram's `where`.

    `why` has the most common reject reason first, `time_hint` a possible problem with the times,
    which are the records' own with `times_of_records`. `first_ms` and `last_ms` are None without
    accepted events. `gaps` are long times without events.
    """

    records: int
    accepted: int
    skipped: int
    why: tuple[RejectReason, ...]
    first_ms: int | None
    last_ms: int | None
    time_hint: str
    times_of_records: bool
    gaps: tuple[Gap, ...]
    histograms: tuple[HistogramFindings, ...]

    @property
    def rejected(self) -> int:
        return sum(why.number for why in self.why)


def examine(settings: Settings, sample: Sample) -> Findings:
    """Read a sample as the worker would, and collect the findings."""
    survey = _Survey(settings, sample)
    accepted_events = [survey.take(part) for part in sample.parts]
    survey.name_absent()
    times_by_part = [_times(batches) for batches in accepted_events]
    # Only the times of the oldest records count: they say since when there are events.
    oldest = [_times(survey.events(part)) for part in sample.oldest]
    weights = _weights(sample, times_by_part, oldest)
    weighted = [
        (events, weight)
        for batches, weight in zip(accepted_events, weights, strict=True)
        for events in batches
    ]
    absent = {
        path: survey.fields.nearest(path)
        for path in survey.paths
        if not survey.fields.has(path)
    }
    times = joined(times_by_part)
    rejected = sum(why.number for why in survey.reasons.values())
    return Findings(
        records=len(sample),
        accepted=len(times),
        skipped=len(sample) - len(times) - rejected,
        why=tuple(sorted(survey.reasons.values(), key=lambda why: -why.number)),
        first_ms=min(times.tolist(), default=None),
        last_ms=max(times.tolist(), default=None),
        time_hint=_time_doubt(settings, times),
        times_of_records=sample.shape.time is None,
        gaps=_gaps(settings, sample, times_by_part, oldest),
        histograms=tuple(
            _findings(
                settings,
                config,
                weighted,
                absent,
                survey.numbers,
                survey.late[config.name],
            )
            for config in settings.histograms
        ),
    )


class _Survey:
    """A sample that is read as the worker would read it, and what was found in it so far.

    `paths` are those that the settings read, `fields` counts all that records have. `reasons` has
    the rejects by reason, `late` the number of late events by histogram, `numbers` what sums add up
    by view.
    """

    def __init__(self, settings: Settings, sample: Sample) -> None:
        """Begin with nothing found in a sample, which these settings read."""
        shape = sample.shape
        self.paths = wanted_paths(shape)
        self.fields = PathCounts()
        self.reasons: dict[str, RejectReason] = {}
        # Late events by histogram.
        self.late = Counter[str]()
        self.numbers: dict[str, list[float | Decimal]] = {
            config.sum_lane.view: []
            for config in settings.histograms
            if config.sum_lane is not None
        }
        self._settings = settings
        self._sample = sample
        self._reader = reader_of(settings, shape)
        self._formats = RecordFormats(settings, self._reader)
        # Later events are rejected; but a file may be of any time.
        self._latest_ms: int | None = None
        if sample.live:
            now_ms = time.time_ns() // 1_000_000
            self._latest_ms = now_ms + settings.events.max_ahead_ms
        self._projection = Projection(shape)
        # As with the setting `missing = "empty"`.
        self._with_missing_empty = Projection(replace(shape, empty=True))
        self._undeclared = UndeclaredKeys(settings, shape)

    def events(self, part: Part) -> list[Events]:
        """Return the events of a part in batches, without noting anything.

        For the oldest records, of which only the times matter.
        """
        readings = self._source(part).read(part.records, self._latest_ms)
        return [reading.events for reading in readings]

    def take(self, part: Part) -> list[Events]:
        """Return the accepted events of a part in batches; note its fields, numbers and rejects."""
        source = self._source(part)
        for i in range(len(part.records)):
            if (record := _decoded(source, part, i)) is not None:
                self.fields.add(record)
                for view, numbers in self._projection.numbers(record).items():
                    self.numbers[view] += numbers
        # The watermark before the sample is unknown; it begins with the first sampled event.
        clock = Watermark(
            lanes(self._settings),
            self._settings.events.grace_ms,
            self._settings.max_behind_ms,
        )
        accepted = []
        for reading in source.read(part.records, self._latest_ms):
            events, rejects = self._in_time(clock, reading.events)
            for reject in (*reading.rejects, *rejects):
                self._note_reject(source, part, reject)
            accepted.append(events)
        return accepted

    def name_absent(self) -> None:
        """Once all is read, note the field that a reject reason names and no such record has."""
        for why in self.reasons.values():
            named = (
                path
                for path in self.paths
                if _quotes(why.reason, path) and not why.fields.has(path)
            )
            why.absent = next(map(why.fields.nearest, named), None)
        if NOT_DECLARED in self.reasons:
            self.reasons[NOT_DECLARED].keys = tuple(self._undeclared.lines())

    def _source(self, part: Part) -> SourceReader:
        """Return a reader of a part's records; those of a file are JSON, whatever the topic has."""
        fmt = self._formats.make() if self._sample.live else None
        # (since when, ms, over how many partitions users are spread): always as many as now.
        placements = [(0, part.source.topic.partitions)]
        return source_reader_of(
            self._settings, self._reader, part.source.partition, placements, fmt
        )

    def _in_time(
        self, clock: Watermark, events: Events
    ) -> tuple[Events, Sequence[Reject]]:
        """Return the events that are not too far behind, and rejects of the others.

        Count those that come after their tick has closed.
        """
        if not len(events):
            return events, ()
        rejects: Sequence[Reject] = ()
        # When they count: at their own time, or at the watermark if that is later. (Event times
        # alone move it, no clock: None.)
        effective = clock.advance_by(events.times, None)
        behind = clock.too_far_behind(events.times, effective)
        # All of a file is of the past: nothing in it is too late.
        if self._sample.live and behind.any():
            rejects = behind_rejects(events, np.flatnonzero(behind))
            events = events.select(np.flatnonzero(~behind))
            effective = effective[~behind]
        for config in self._settings.histograms:
            self.late[config.name] += _late(config, events, effective)
        return events, rejects

    def _note_reject(self, source: SourceReader, part: Part, reject: Reject) -> None:
        """Count a reject by its reason, whose first one is the example.

        `why.empty` counts those that events.missing = "empty" would accept.
        """
        why = self.reasons.setdefault(reject.reason, RejectReason(reason=reject.reason))
        why.number += 1
        record = _decoded(source, part, reject.index)
        why.fields.add(record)
        # A text is why a record is no event; a reject may be an event, which came too late.
        refused = isinstance(self._projection.event(record), str)
        why.empty += refused and not isinstance(
            self._with_missing_empty.event(record), str
        )
        # Its stream key is not declared, which may be the record's key.
        if reject.reason == NOT_DECLARED:
            self._undeclared.add(part.records.key(reject.index), record)
        if why.number == 1:
            why.example = _example(part, reject.index, record)
            why.hint = _hint(self._sample.shape, self.paths, part, reject, record)
            if reject.reason == NOT_JSON:
                value = part.records.value(reject.index)
                why.fault = fault_of(self._settings, value)


def _late(config: HistogramConfig, events: Events, effective: Longs) -> int:
    """Return how many of the events that a histogram looks at come after their tick has closed."""
    late = late_events(events.times, effective, config.lane)
    included = events.views[config.view].included
    return len(late) if included is None else int(np.count_nonzero(included[late]))


def _gaps(
    settings: Settings,
    sample: Sample,
    times_by_part: Sequence[Longs],
    oldest: Sequence[Longs],
) -> tuple[Gap, ...]:
    """Return the long times that surely have no events: not those that the sample left out.

    `times_by_part` has the times of the parts' events, `oldest` those of the oldest records. Of a
    partition with `oldest` records, the sample lacks those between them and its newest. So two
    ranges of time are known: since the latest of where the newest records begin, and up to the
    earliest of where the oldest end.
    """
    cut_off = {part.source.log for part in sample.oldest}
    newest = EventTimes(settings.histograms)
    opening = EventTimes(settings.histograms)
    known_from = 0
    for part, times in zip(sample.parts, times_by_part, strict=True):
        newest.add(times)
        if part.source.log not in cut_off:
            opening.add(times)
        elif len(times):
            known_from = max(known_from, int(times.min()))
    known_until: list[int] = []
    for times in oldest:
        opening.add(times)
        if len(times):
            known_until.append(int(times.max()))
    gaps = [gap for gap in newest.gaps() if gap.start_ms >= known_from]
    if known_until:
        gaps += [gap for gap in opening.gaps() if gap.end_ms <= min(known_until)]
    # Both ranges may have the same gap.
    return tuple({(gap.start_ms, gap.end_ms): gap for gap in gaps}.values())


def _times(batches: Sequence[Events]) -> Longs:
    """Return the times, ms, of the events that any histogram looks at."""
    return joined([events.times[events.in_any_view] for events in batches])


def _decoded(source: SourceReader, part: Part, i: int) -> object:
    """Return a record as plain objects; None if it cannot be decoded."""
    with suppress(ValueError):
        return source.decode_all(part.records, i)
    return None


def _example(part: Part, i: int, decoded: object) -> str:
    """Return a record as text, to show beside its reject reason; binary ones as JSON if decoded."""
    value = part.records.value(i)
    with suppress(UnicodeDecodeError):
        if value is not None:
            return value.decode()
    if decoded is not None:
        return json.dumps(decoded, ensure_ascii=False, default=str)
    # Bytes as Python writes them, without b'' around.
    return "no value" if value is None else repr(value)[2:-1]


def _quotes(reason: str, path: Path) -> bool:
    """Return whether a reject reason names a path, or an object on the way to it."""
    objects = [Path(path.steps[:depth]) for depth in range(1, len(path.steps))]
    return any(repr(str(named)) in reason for named in (path, *objects))


def _hint(
    shape: Shape, paths: Sequence[Path], part: Part, reject: Reject, record: object
) -> str:
    """Return how to make such records acceptable, judged by the first one."""
    if reject.reason in NO_OBJECT:
        return unreadable.hint(part.records.value(reject.index) or b"")
    if reject.reason.startswith("record key"):
        return f"for example {part.records.key(reject.index)!r}"
    return _time_hint(shape, reject.reason, record) or _value_hint(
        paths, reject.reason, record
    )


def _value_hint(paths: Sequence[Path], reason: str, record: object) -> str:
    """Return what is wrong with the value at the path that `reason` quotes; "": nothing known."""
    for path in paths:
        # A path through a list has many values.
        if repr(str(path)) not in reason or path.list_at is not None:
            continue
        value = _at(record, path)
        if isinstance(value, dict) and value:
            inner = (
                str(Path((*path.steps, str(name)))) for name in islice(value, NEAREST)
            )
            return f"it is an object, so perhaps {' or '.join(inner)}"
        # So ends the reason if the items have another type.
        if isinstance(value, Decimal | float) and reason.endswith(
            "string, list or object"
        ):
            return "a number with a decimal point is not a label: send 123 or a text, not 123.0"
    return ""


def _time_hint(shape: Shape, reason: str, record: object) -> str:
    """Return the unit in which a rejected time would be plausible, as a hint; "": none.

    Reasons about times say that a field is not a time, or that it is too early or too far ahead.
    """
    is_no_time = f"field {str(shape.time)!r} is not " in reason and " time" in reason
    if shape.time is None or not (is_no_time or reason.startswith((EARLY, AHEAD))):
        return ""
    value = _at(record, shape.time)
    for unit in UNITS:
        if unit != shape.unit and _plausible(time_ms(value, unit)):
            return f'timestamp_unit = "{unit}" would read it'
    return ""


def _at(record: object, path: Path) -> object:
    """Return the value at a path without lists; None if there is none."""
    for name in path.steps:
        record = record.get(name) if isinstance(record, dict) else None
    return record


def _time_doubt(settings: Settings, times: Longs) -> str:
    """Return a doubt about the times of accepted events, if they lie in another century."""
    unit = settings.events.timestamp_unit
    if not len(times) or settings.events.timestamp is None or unit == "iso":
        return ""
    median_ms = int(np.median(times))
    if _plausible(median_ms):
        return ""
    ms_in = {"s": 1_000, "ms": 1, "us": 1e-3, "ns": 1e-6}
    # The number in the event, which was read in the unit of the settings.
    sent = median_ms / ms_in[unit]
    for other, ms in ms_in.items():
        if other != unit and _plausible(int(sent * ms)):
            return f'these times are not of this century; timestamp_unit = "{other}" would make them so'
    return "these times are not of this century: is it the right field?"


def _plausible(at_ms: int | None) -> bool:
    """Return whether a time, ms, lies in the range of plausible event times."""
    return at_ms is not None and PLAUSIBLE_MS[0] <= at_ms < PLAUSIBLE_MS[1]


@dataclass(slots=True)
class _Totals:
    """What one histogram has met in the sample so far; `_findings` turns it into findings.

    Events of other stream keys than declared are `unserved`; `quoted` are declared keys that are
    JSON strings; `items` has how many items each event has, `amounts` how often each of them
    counts. `pairs_s` are bounded contributions per second of each (stream key, label), `of_users`
    counts of them by user and epoch.
    """

    unserved: int = 0
    undeclared: Counter[str] = field(default_factory=Counter)
    quoted: set[str] = field(default_factory=set)
    early: int = 0
    keys: set[str] = field(default_factory=set)
    labels: set[str] = field(default_factory=set)
    items: list[Longs] = field(default_factory=list)
    amounts: list[Longs] = field(default_factory=list)
    events_s: float = 0.0
    pairs_s: defaultdict[Pair, float] = field(
        default_factory=lambda: defaultdict(float)
    )
    of_users: dict[UserEpoch, Counter[Pair]] = field(
        default_factory=lambda: defaultdict(Counter)
    )


def _findings(
    settings: Settings,
    config: HistogramConfig,
    weighted: Sequence[tuple[Events, float]],
    absent: Mapping[Path, Nearest],
    numbers: Mapping[str, Sequence[float | Decimal]],
    late: int,
) -> HistogramFindings:
    """Return what a histogram would make of the sample.

    `weighted` has batches of events with weights, `absent` the paths that no record has, `numbers`
    what each view adds up, and `late` how many events come after their tick has closed.
    """
    totals = _Totals()
    for events, weight in weighted:
        _add(totals, config, events, weight)
    items = joined(totals.items)
    served = (
        len(totals.keys)
        if config.keys == "public"
        else len(totals.keys.intersection(config.keys))
    )
    paths = wanted_paths(
        Shape({lane.view: settings.shape.views[lane.view] for lane in config.lanes})
    )
    unit = settings.privacy.unit
    estimate = None
    if totals.events_s:
        estimate = expected(config, unit, totals.events_s, totals.pairs_s)
    return HistogramFindings(
        config=config,
        looked_at=len(items),
        keys=len(totals.keys),
        served=served,
        unserved=totals.unserved,
        undeclared=totals.undeclared,
        quoted_keys=tuple(sorted(totals.quoted)[:_QUOTED_MAX]),
        without_items=int(np.count_nonzero(items == 0)),
        early=totals.early,
        late=late,
        labels=len(totals.labels),
        items=_spread(items, config.max_items),
        amounts=_spread(joined(totals.amounts), config.max_count),
        numbers=_clamped(config, numbers),
        of_users=_user_contributions(totals, config) if unit == "user" else None,
        absent=tuple(absent[path] for path in paths if path in absent),
        expected=estimate,
    )


def _clamped(
    config: HistogramConfig, numbers: Mapping[str, Sequence[float | Decimal]]
) -> Numbers | None:
    """Return how many numbers of a sum lie outside its range; None without a sum."""
    summed = config.sum
    lane = config.sum_lane
    if summed is None or lane is None:
        return None
    exact = [summed.exactly(value) for value in numbers[lane.view]]
    return Numbers(
        read=len(exact),
        below=sum(value < summed.from_ for value in exact),
        above=sum(value > summed.to for value in exact),
    )


def _weights(
    sample: Sample, times_by_part: Sequence[Longs], oldest: Sequence[Longs]
) -> list[float]:
    """Return the weight of each part: the events per second that one of its events represents.

    All times are in ms: `times_by_part` those of the parts, `oldest` those of the first records of
    partitions that the sample has only in part (`sample.oldest`).
    """
    first_times = {
        part.source.log: times
        for part, times in zip(sample.oldest, oldest, strict=True)
    }
    samples = []
    for part, times in zip(sample.parts, times_by_part, strict=True):
        log = part.source.log
        first = first_times.get(log)
        events = float(len(times))
        # Whether nothing came before the earliest of the times. A file has no bounds: it is whole.
        from_start = log not in sample.bounds or sample.bounds[log].low == 0
        if first is not None and not len(first):
            # The times are those of the newest events alone, of which there were more before.
            from_start = False
        elif first is not None:
            # The first records tell when events began: take all that came since then.
            bounds = sample.bounds[log]
            records = estimated_records(part.records.offsets, bounds.low, bounds.stable)
            events = records * len(times) / len(part.records)
            times = np.concatenate([first, times])
        samples.append(
            PartitionSample(times=times, events=events, from_start=from_start)
        )
    rates = event_rates(samples)
    sampled = [max(len(times), 1) for times in times_by_part]
    return [rate / number for rate, number in zip(rates, sampled, strict=True)]


def _add(
    totals: _Totals, config: HistogramConfig, events: Events, weight: float
) -> None:
    """Add a batch of events to what a histogram has met; each represents `weight` a second."""
    columns = events.views[config.view]
    # The rows of the events that match its `where`; `included` is None if it has none.
    seen = (
        np.arange(len(events))
        if columns.included is None
        else np.flatnonzero(columns.included)
    )
    keys = columns.keys[seen].tolist()
    names = {code: columns.key_names.name(code) for code in set(keys)}
    totals.keys |= set(names.values())
    all_keys = config.keys == "public"
    served = {code for code, name in names.items() if all_keys or name in config.keys}
    totals.quoted |= {
        names[code] for code in served if json_string(names[code]) is not None
    }
    for code, number in Counter(keys).items():
        if code not in served:
            totals.unserved += number
            totals.undeclared[names[code]] += number
    early = events.times[seen] < config.start_ms
    totals.early += int(np.count_nonzero(early))
    rows, items_per_event = _rows(columns, seen)
    totals.items.append(items_per_event)
    totals.amounts.append(_amounts(columns, rows))
    totals.labels |= {
        columns.label_names.name(code) for code in set(columns.labels[rows].tolist())
    }
    # Those that count: of a served key, and not early. (An empty list would not be a mask.)
    counting = seen[[code in served for code in keys] & ~early] if len(seen) else seen
    totals.events_s += weight * len(counting)
    _add_contributions(totals, config, events, counting, weight)


def _rows(
    columns: EventColumns, events: Longs, most: int | None = None
) -> tuple[Longs, Longs]:
    """Return the rows (m,) of the labels of `events` (k,), and how many each of these has (k,).

    The labels of event i are those in rows `columns.ends`[i - 1] to before `columns.ends`[i]. At
    most `most` labels of an event are taken, the first ones; None: all.
    """
    lengths = np.diff(columns.ends, prepend=0)[events]
    taken = lengths if most is None else np.minimum(lengths, most)
    return rows_of(columns.ends[events] - lengths, taken), taken


def _amounts(columns: EventColumns, rows: Longs) -> Longs:
    """Return how often the labels in these rows count; columns without amounts mean one each."""
    return (
        columns.amounts[rows]
        if len(columns.amounts)
        else np.ones(len(rows), dtype=np.int64)
    )


def _add_contributions(
    totals: _Totals,
    config: HistogramConfig,
    events: Events,
    counting: Longs,
    weight: float,
) -> None:
    """Add what the events in the rows `counting` contribute: their first `max_items` items.

    To `totals.pairs_s` as rates, with `max_count` as the most of an item in an event; and to
    `totals.of_users` with all amounts, which are compared with the bounds on a user.
    """
    columns = events.views[config.view]
    rows, items_per_event = _rows(columns, counting, config.max_items)
    amounts = _amounts(columns, rows)
    keys = np.repeat(columns.keys[counting], items_per_event)
    labels = columns.labels[rows]
    # Codes of (stream key, label) of each row. Few differ: each one's name is looked up once.
    codes = list(zip(keys.tolist(), labels.tolist(), strict=True))
    bounded = Counter[tuple[int, int]]()
    for code, amount in zip(
        codes, np.minimum(amounts, config.max_count).tolist(), strict=True
    ):
        bounded[code] += amount
    key_name = columns.key_names.name
    label_name = columns.label_names.name
    pairs = {(key, label): (key_name(key), label_name(label)) for key, label in bounded}
    for code, amount in bounded.items():
        totals.pairs_s[pairs[code]] += weight * amount
    if events.users is None:
        return
    ticks = (events.times - config.start_ms) // config.tick_ms
    # None: all time is one epoch.
    horizon = config.charge_grid.horizon
    epochs = np.zeros_like(ticks) if horizon is None else ticks // horizon
    # For each event the counts of its user and epoch.
    user_counts = {}
    for event in counting.tolist():
        user = events.users[event].tobytes()
        user_counts[event] = totals.of_users[user, int(epochs[event])]
    event_of_item = np.repeat(counting, items_per_event).tolist()
    for code, event, amount in zip(codes, event_of_item, amounts.tolist(), strict=True):
        user_counts[event][pairs[code]] += amount


def _user_contributions(totals: _Totals, config: HistogramConfig) -> UserContributions:
    """Return how much each user contributed in an epoch, against the bounds."""
    users = totals.of_users.values()
    pairs = np.array([len(counts) for counts in users], dtype=np.int64)
    amounts = np.array(
        [count for counts in users for count in counts.values()], dtype=np.int64
    )
    most_pairs = config.max_items_per_user or 0  # required where users are protected
    return UserContributions(
        users=len(pairs),
        pairs=_spread(pairs, most_pairs),
        amounts=_spread(amounts, config.max_count),
    )


def _spread(values: Longs, bound: int) -> Distribution:
    """Return how values are distributed, and how many are above a bound."""
    if not len(values):
        return Distribution(0, 0, 0, 0)
    return Distribution(
        median=float(np.median(values)),
        most_of_99=float(np.quantile(values, 0.99, method="higher")),
        most=int(values.max()),
        above=int(np.count_nonzero(values > bound)),
    )
