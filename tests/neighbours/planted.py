"""Leaks to find: each makes one rule of the worker depend on content, or on records that are there."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple
from unittest.mock import patch

from tests.neighbours.scenes import Scene, Seed
from workers.agents.contribute import ContributeShard
from workers.agents.release import ReleaseShard
from workers.arrays.tag_index import Rows
from workers.arrays.types import Longs, Tags
from workers.events.formats.reader import UNKNOWN_SCHEMA, FormatReader
from workers.events.reading import SourceReader
from workers.kafka.records import Batch
from workers.kafka.shard import Shard
from workers.mechanisms.config.histogram import Lane
from workers.mechanisms.ledger import Contributions, Ledger
from workers.mechanisms.mechanism import State
from workers.mechanisms.running.base import UnkBase
from workers.mechanisms.running.hops import Entries, Hops
from workers.mechanisms.running.on_counters import OnCounters
from workers.pipeline.contributions import Section
from workers.pipeline.histogram import Histogram
from workers.pipeline.intake import Intake
from workers.pipeline.ledger_blocks import Loading
from workers.pipeline.snapshots import Snapshot
from workers.pipeline.tallies import Tally
from workers.pipeline.users import UserEpoch
from workers.pipeline.waiting import WaitingSections
from workers.pipeline.watermark import Watermark

Plant = Callable[[], AbstractContextManager[object]]


class Leak(NamedTuple):
    """`content` and `records` are streams of such neighbours that show it; `shows`: which scenes can."""

    plant: Plant
    content: Seed | None
    records: Seed | None
    shows: Callable[[Scene], bool] = lambda _: True


def _wider(more_items: int, more_count: int) -> Plant:
    add = Tally.add

    def wider(
        self: Tally, columns: Any, events: Any, amounts: Any, items: int, most: int
    ) -> None:
        add(self, columns, events, amounts, items + more_items, most + more_count)

    return lambda: patch.object(Tally, "add", wider)


def _forget_users() -> AbstractContextManager[object]:
    return patch.object(UserEpoch, "read_blocks", lambda self, blocks: None)


def _rejected_move_time() -> AbstractContextManager[object]:
    process = ContributeShard.process

    def moved(self: ContributeShard, batch: Batch) -> None:
        process(self, batch)
        for reading in self._reader.spans(batch.records):
            if len(reading):
                latest = int(reading.times.max()) - self._stream.events.grace_ms
                self._intake.advance_to(latest)

    return patch.object(ContributeShard, "process", moved)


def _records_close_ticks() -> AbstractContextManager[object]:
    advance = Watermark.advance_by

    def moved(self: Watermark, times: Longs, read_ms: int | None) -> Longs:
        with patch.object(self, "by_clock", new=False):
            return advance(self, times, read_ms)

    return patch.object(Watermark, "advance_by", moved)


def _no_max_ahead() -> AbstractContextManager[object]:
    encode = SourceReader.encode

    def any_time(self: SourceReader, reading: Any, latest_ms: Any = None) -> Any:
        return encode(self, reading)

    return patch.object(SourceReader, "encode", any_time)


def _forget_shown() -> AbstractContextManager[object]:
    take = Loading.take

    def forgetful(self: Loading, name: str, block: bytes) -> None:
        if not name.startswith("S"):
            take(self, name, block)

    return patch.object(Loading, "take", forgetful)


class _Shifted:
    def __init__(self, noise: Any) -> None:
        self._noise = noise

    def at(self, t: int, tags: Tags) -> Longs:
        shifted: Longs = self._noise.at(t, tags) + len(tags)
        return shifted


def _noise_of_rows() -> AbstractContextManager[object]:
    noise = OnCounters.noise
    return patch.object(
        OnCounters, "noise", lambda self, stream: _Shifted(noise(self, stream))
    )


def _skip_empty() -> AbstractContextManager[object]:
    step = Histogram.step

    def skipping(self: Histogram, parts: Sequence[Contributions]) -> Iterator[Snapshot]:
        shown = step(self, parts)
        return shown if parts else iter(list(shown)[:0])

    return patch.object(Histogram, "step", skipping)


def _rows_only() -> AbstractContextManager[object]:
    commit = Intake.take_messages

    def quiet(self: Intake, **of: Any) -> Any:
        with patch.object(self, "has_closed_tick", lambda: False):
            return commit(self, **of)

    return patch.object(Intake, "take_messages", quiet)


def _unknown_schema_commits() -> AbstractContextManager[object]:
    add = FormatReader._add

    def committing(
        self: FormatReader, schema_id: int, message: int, path: bytes
    ) -> str | None:
        reason = add(self, schema_id, message, path)
        if reason == UNKNOWN_SCHEMA and isinstance(self._waiting, Shard):
            self._waiting.last_commit_s = -math.inf
        return reason

    return patch.object(FormatReader, "_add", committing)


def _charged_with_rows() -> AbstractContextManager[object]:
    reserve = ReleaseShard._reserve

    def lazy(self: ReleaseShard, histograms: Sequence[Histogram]) -> None:
        if any(self.merge.waiting.get(one.lane, one.next or 0) for one in histograms):
            reserve(self, histograms)
        for histogram in histograms:
            histogram.reserve()

    return patch.object(ReleaseShard, "_reserve", lazy)


def _forget_spilled() -> AbstractContextManager[object]:
    def held(self: WaitingSections, lane: Lane, tick: int) -> list[Section]:
        entries = self._parts.get((lane, tick), ())
        return [entry for _, entry in entries if isinstance(entry, Section)]

    return patch.object(WaitingSections, "get", held)


def _full_closes() -> AbstractContextManager[object]:
    commit = ContributeShard._commit

    def closing(self: ContributeShard, offset: int) -> None:
        if self._intake.full:
            self._intake.advance_to((self.watermark or 0) + 1_000)
        commit(self, offset)

    return patch.object(ContributeShard, "_commit", closing)


def _carry_hidden() -> AbstractContextManager[object]:
    carry = UnkBase.carry

    def everything(self: UnkBase, last: State, *of: Any) -> Rows:
        last.ledger.shown[:] = 1
        return carry(self, last, *of)

    return patch.object(UnkBase, "carry", everything)


def _leave_late() -> AbstractContextManager[object]:
    leaving = Hops.leaving

    def a_tick_later(self: Hops, i: int, before: int) -> Iterator[Entries]:
        tick = self.tick
        self.tick = tick - 1
        found = list(leaving(self, i, before - 1))
        self.tick = tick
        return iter(found)

    return patch.object(Hops, "leaving", a_tick_later)


def _forget_left() -> AbstractContextManager[object]:
    return patch.object(Ledger, "mark_left", lambda *of: None)


def _late_with_counts() -> AbstractContextManager[object]:
    publish = ReleaseShard._publish

    def slower(self: ReleaseShard, snapshots: Any, handed: Any) -> None:
        size = sum(len(one.value or b"") for one in snapshots)
        at = self._deliver_at
        with patch.object(self, "_deliver_at", lambda last: at(last) + size / 1e3):
            publish(self, snapshots, handed)

    return patch.object(ReleaseShard, "_publish", slower)


def _first_record_begins() -> AbstractContextManager[object]:
    resume = Watermark.resume

    def unbegun(self: Watermark, watermark: int | None) -> None:
        resume(self, watermark)
        self.watermark = watermark

    return patch.object(Watermark, "resume", unbegun)


def _only_counted_keys() -> AbstractContextManager[object]:
    step = Histogram.step

    def fewer(self: Histogram, parts: Sequence[Contributions]) -> Iterator[Snapshot]:
        counted = {key for part in parts for key in part.keys}
        return (one for one in step(self, parts) if one.key in counted)

    return patch.object(Histogram, "step", fewer)


def _gap_between_commits() -> AbstractContextManager[object]:
    return patch.object(Watermark, "commit_due", lambda self: False)


def _items_fall(scene: Scene) -> bool:
    """Return whether items are tested, and may fail the test once shown."""
    leave = scene.window_ms > 0 or not scene.record
    return scene.variant.mechanism == "unk_base" and leave


def _epochs_of_labels(scene: Scene) -> bool:
    return scene.variant.mechanism == "unk_base" and not scene.window_ms


#: Where one seed is missing, that kind of neighbours cannot show the leak.
LEAKS: Mapping[str, Leak] = {
    "an item over max_items is kept": Leak(
        _wider(1, 0), Seed("known_base-tree", 0), Seed("known_base-sum", 0)
    ),
    "a count over max_count is kept": Leak(
        _wider(0, 1), Seed("known_base-tree", 0), Seed("known_base-sum", 0)
    ),
    "a user's bound is forgotten at a restart": Leak(
        _forget_users,
        Seed("known_gauss-user", 2),
        Seed("meta-user_counts", 4),
        lambda of: of.unit == "user",
    ),
    "a rejected event moves the watermark": Leak(
        _rejected_move_time,
        Seed("known_base-lifted", 0),
        Seed("bounded_max-quantile", 1),
    ),
    "the times of records close ticks by clock": Leak(
        _records_close_ticks,
        Seed("known_base-user", 0, 1),
        Seed("known_base-user", 0),
        lambda of: of.record,
    ),
    "max_ahead is ignored": Leak(
        _no_max_ahead,
        Seed("known_base-lifted", 0),
        Seed("known_base-tree_unbounded", 2),
    ),
    "a shown item is forgotten at a restart": Leak(
        _forget_shown,
        Seed("unk_base-total_user", 16),
        Seed("unk_base-never_sum", 9),
        _items_fall,
    ),
    "noise depends on the number of rows": Leak(
        _noise_of_rows, Seed("known_base-tree", 0), Seed("unk_base-total_user", 3)
    ),
    "an empty tick is not released": Leak(
        _skip_empty, Seed("meta-positive_gauss", 0), Seed("limit_dom_laplace", 0)
    ),
    "an owner is told only about its rows": Leak(
        _rows_only, Seed("known_base-lifted", 0), Seed("known_base-user", 0)
    ),
    # Among records only the operator sees when stage 1 commits.
    "a record of an unknown schema is committed": Leak(
        _unknown_schema_commits, Seed("meta-known_gauss", 4), None
    ),
    "an epoch without rows is not charged": Leak(
        _charged_with_rows,
        Seed("known_base-sqrt", 0),
        Seed("limit_dom_laplace", 0),
        lambda of: of.limited,
    ),
    "data that waits in a file is forgotten": Leak(
        _forget_spilled,
        Seed("known_base-lifted", 2, 1),
        Seed("sparse_gumb-two", 1),
        lambda of: of.tight,
    ),
    "a label that was never shown is carried into the next epoch": Leak(
        _carry_hidden,
        Seed("unk_base-user", 0),
        Seed("unk_base-total_user", 3),
        _epochs_of_labels,
    ),
    "a count leaves its window a tick late": Leak(
        _leave_late,
        Seed("known_base-never", 4),
        Seed("known_base-never_sum", 3),
        lambda of: of.window_ms > 0,
    ),
    "a label that left is shown on": Leak(
        _forget_left,
        Seed("unk_base-never", 32),
        Seed("unk_base-never_sum", 9),
        lambda of: of.variant.mechanism == "unk_base" and of.window_ms > 0,
    ),
    "a full buffer closes a tick": Leak(
        _full_closes,
        Seed("unk_base-user", 0),
        Seed("known_base-user", 15),
        lambda of: of.tight,
    ),
    "a tick is delivered the later, the more it holds": Leak(
        _late_with_counts, None, Seed("sparse_gumb-two", 1)
    ),
    "the first record begins the watermark": Leak(
        _first_record_begins, None, Seed("known_base-user", 0)
    ),
    "a stream key without counts has no snapshot": Leak(
        _only_counted_keys, None, Seed("limit_dom_laplace", 0)
    ),
    "a closed tick waits to be committed": Leak(
        _gap_between_commits, None, Seed("unk_base-total_user", 3)
    ),
}
