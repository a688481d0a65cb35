"""Find long times without events, in which every tick is still published.

Usually one wrong date causes them: a single event of 2002 before those of this year makes as many
empty snapshots as there are ticks between them.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from workers.arrays.types import Longs
from workers.mechanisms.config.histogram import HistogramConfig
from workers.runtime.printing import iso_time, plural

#: A shorter run of empty ticks is not worth a remark.
EMPTY_TICKS_TOLD = 1_000
# At most this many events, or this share of all, may lie before or after a gap by mistake.
_STRAYS_MAX = 3
_STRAY_SHARE = 0.01
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True, repr=False)
class Gap:
    """Time without events, from the last event before it to the next, in ms; events around it."""

    start_ms: int
    end_ms: int
    before: int
    after: int


class EventTimes:
    """The times that have events, as intervals with their numbers of events.

    Times are joined unless they are further apart than EMPTY_TICKS_TOLD of the shortest tick: only
    such gaps are of interest, so that a few intervals describe any number of events.
    """

    def __init__(self, histograms: Sequence[HistogramConfig]) -> None:
        self._least_ms = EMPTY_TICKS_TOLD * min(config.tick_ms for config in histograms)
        # First and last time, and events: disjoint, in order, at least `_least_ms` apart.
        self._intervals: list[tuple[int, int, int]] = []

    def __repr__(self) -> str:
        return f"EventTimes({len(self._intervals)})"

    def add(self, times: Longs) -> None:
        """Add the times of events, int64 (n,) in ms, in any order."""
        if not len(times):
            return
        first = int(times.min())
        last = int(times.max())
        if last - first < self._least_ms:
            self._insert(first, last, len(times))
            return
        ordered = np.sort(times)
        ends = np.flatnonzero(np.diff(ordered) >= self._least_ms)
        start = 0
        for end in (*ends.tolist(), len(ordered) - 1):
            self._insert(int(ordered[start]), int(ordered[end]), end + 1 - start)
            start = end + 1

    def _insert(self, first: int, last: int, number: int) -> None:
        """Add an interval with its number of events; join it with those less than a gap away."""
        # Join those from `begin` to `end`: they end late enough (the last time is the second of the
        # three), and begin early enough.
        nearest = first - self._least_ms + 1
        begin = bisect_left(self._intervals, nearest, key=lambda interval: interval[1])
        end = begin
        for earliest, latest, events in self._intervals[begin:]:
            if earliest >= last + self._least_ms:
                break
            first = min(first, earliest)
            last = max(last, latest)
            number += events
            end += 1
        self._intervals[begin:end] = [(first, last, number)]

    def gaps(self) -> list[Gap]:
        """Return the gaps between the intervals, in order."""
        total = sum(number for _, _, number in self._intervals)
        events_before = 0
        gaps = []
        for (_, last, number), (first, _, _) in pairwise(self._intervals):
            events_before += number
            gaps.append(Gap(last, first, events_before, total - events_before))
        return gaps


def empty_ticks(gap: Gap, config: HistogramConfig) -> int:
    """Return how many whole ticks of a histogram a gap has, from the setting `start` on."""
    # The first empty tick follows that of the event; one before `start` lies before the first tick.
    start = max(gap.start_ms, config.start_ms - 1)
    first = (start - config.start_ms) // config.tick_ms + 1
    return max((gap.end_ms - config.start_ms) // config.tick_ms - first, 0)


def gap_remarks(
    gaps: Sequence[Gap], config: HistogramConfig, stream_keys: int | None = None
) -> Iterator[str]:
    """Yield a sentence on each long run of a histogram's empty ticks, the longest first.

    `stream_keys` is how many there are, if known.
    """
    numbered = [(empty_ticks(gap, config), gap) for gap in gaps]
    long = [(number, gap) for number, gap in numbered if number >= EMPTY_TICKS_TOLD]
    for number, gap in sorted(long, key=lambda one: -one[0]):
        snapshots = ""
        if stream_keys:
            keys = plural(stream_keys, "stream key")
            snapshots = f", {plural(number * stream_keys, 'empty snapshot')} of {keys}"
        between = (
            f"between events of {iso_time(gap.start_ms)} and {iso_time(gap.end_ms)}"
        )
        ticks = f"{config.name}: {number:,} ticks in a row have no event{snapshots}, {between}"
        yield f"{ticks}: {_advice(gap, config)}"


def _advice(gap: Gap, config: HistogramConfig) -> str:
    """Return what to do about a gap: check dates if few events lie on one side, or change settings.

    It ends a sentence about the gap's empty ticks, which it calls "them".
    """
    few = max(_STRAYS_MAX, _STRAY_SHARE * (gap.before + gap.after))
    skip = f"set start = {iso_time(_start(gap, config))}"
    if gap.before <= min(few, gap.after):
        question = _wrong(gap.before, "before")
        return f"{question}, or {skip} to leave out what is before it"
    if gap.after <= few:
        return _wrong(gap.after, "after")
    return f"all of them are published; a wider tick publishes fewer, or {skip}"


def _start(gap: Gap, config: HistogramConfig) -> int:
    """Return a `start` that leaves out what is before the gap: a midnight, or a tick's begin."""
    midnight = gap.end_ms // _DAY_MS * _DAY_MS
    if midnight > gap.start_ms:
        return midnight
    return gap.end_ms - (gap.end_ms - config.start_ms) % config.tick_ms


def _wrong(number: int, side: str) -> str:
    """Ask whether the dates of the few events before or after a gap are right."""
    if number == 1:
        return f"is the date of the 1 event {side} them right? If it is not, remove the event"
    dates = f"are the dates of the {number:,} events {side} them right?"
    return f"{dates} If they are not, remove these events"
