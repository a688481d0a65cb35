"""The watermark of an events partition: the time up to which its ticks are closed.

The *watermark* W is the largest of

    event time seen - grace     at most the wall clock at the read: an event dated later counts as
                                dated then, so a wrong clock never closes other users' ticks
    wall clock - grace          at the offset where the log ended at that time (`kafka/offsets.py`)
    the first event's time      likewise at most the wall clock, and late enough to publish no more
                                than BACKLOG_TICKS_MAX ticks

With `by_clock` only the second moves W, and W begins with the first histogram: no record decides
when a tick is closed (docs/decisions/0038-one-record-more-or-less.md).

A tick that ends at or before W is closed. An event counts at the later of its own time and W; if
that is more than `max_behind` after its own time, or users have moved in between, it is rejected.
This later time is the event's *effective* time. A lane is a tick grid, with bounds on counts.
"""

import logging
import math
import time
from collections.abc import Sequence
from datetime import timedelta

import numpy as np

from workers.arrays.tallies import effective_times
from workers.arrays.texts import readonly_contiguous
from workers.arrays.types import Bools, Longs
from workers.events.columns import Events
from workers.events.reading import BEHIND, Reject
from workers.mechanisms.config.histogram import Lane

# A transaction costs this worker and the brokers as much as about ten thousand events.
_COMMIT_GAP_S = 0.5
# Beyond this a commit waits to batch more of the backlog.
_BEHIND_MS = 10_000
# One old event would publish every tick since then: hours of empty snapshots.
BACKLOG_TICKS_MAX = 10_000_000


def commit_gap_s(lanes: Sequence[Lane]) -> float:
    """Return how long a backlog's completed ticks wait for further ones to share a transaction."""
    return min([_COMMIT_GAP_S, *(lane.tick_ms / 2000 for lane in lanes)])


def is_behind(watermark: int | None, grace_ms: int) -> bool:
    """Return whether the watermark lags far behind the clock, as in a backlog, or is not known."""
    return (
        watermark is None
        or time.time_ns() // 1_000_000 - grace_ms - watermark > _BEHIND_MS
    )


def least_of(marks: Sequence[int | None]) -> int | None:
    """Return the least of several watermarks; None while one is missing, or there is none."""
    known = [mark for mark in marks if mark is not None]
    return min(known) if 0 < len(known) == len(marks) else None


logger = logging.getLogger(__name__)

NO_LIMIT = int(np.iinfo(np.int64).max)


def behind_rejects(events: Events, behind: Longs) -> list[Reject]:
    """Return rejects for the events `behind` (k,), by index in a batch, except skipped ones.

    Skipped events are in no view: no histogram would have counted them.
    """
    # From places among the valid events to rows of the batch.
    index = events.index[behind[events.in_any_view[behind]]]
    return [Reject(row, BEHIND) for row in index.tolist()]


def late_events(times: Longs, effective: Longs, lane: Lane) -> Longs:
    """Return the indices (k,) of events whose tick had closed, so that they count in a later one.

    `times` and `effective` (n,) are as in `Watermark.advance_by`. A tick is closed when it ends at
    or before W, so the tick that holds W is open. An event before the lane's start counts in no
    tick.
    """
    # Few events are behind the watermark: only these need a division.
    behind = np.flatnonzero(effective > times)
    dated = times[behind] - lane.start_ms
    counted = effective[behind] - lane.start_ms
    is_late = (dated >= 0) & (dated // lane.tick_ms < counted // lane.tick_ms)
    late: Longs = behind[is_late]
    return late


class Watermark:
    """The clock of one partition: which ticks are closed, and where events count. Sensitive.

    It has the current watermark, and the last one that was committed.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        grace_ms: int,
        max_behind_ms: int | None,
        moves: Sequence[int] = (),
        *,
        by_clock: bool = False,
    ) -> None:
        """A tick of `lanes` stays open `grace_ms` for late events.

        An event more than `max_behind_ms` behind the watermark is rejected; None: none is. `moves`
        are times at which users move to other partitions, each the beginning of an epoch: an event
        from before one may not count after it. `by_clock`: see the module.
        """
        self._lanes = lanes
        self._grace = grace_ms
        self._moves = moves
        self.by_clock = by_clock
        self._max_behind = NO_LIMIT if max_behind_ms is None else max_behind_ms
        self._commit_gap_s = commit_gap_s(lanes)
        # When a closed tick was committed last, by the monotonic clock.
        self._closed_s = -math.inf
        self.watermark: int | None = None
        self._committed_watermark: int | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}(watermark={self.watermark})"

    def resume(self, watermark: int | None) -> None:
        """Begin at a stored watermark, which is the last committed one; None: nothing is stored."""
        self.watermark = watermark
        self._committed_watermark = watermark
        # By the clock, ticks close also before the first event.
        if watermark is None and self.by_clock:
            now_ms = time.time_ns() // 1_000_000
            starts = min(lane.start_ms for lane in self._lanes)
            self.watermark = max(starts, self._oldest(now_ms))

    def advance_to(self, watermark: int | None) -> None:
        """Move the watermark forward to this time; it never goes back."""
        if watermark is not None and (
            self.watermark is None or watermark > self.watermark
        ):
            self.watermark = watermark

    def advance_by(self, times: Longs, read_ms: int | None) -> Longs:
        """Advance the watermark by event times (n,), in order; return their effective times.

        Events that are `too_far_behind` do not move it. `read_ms` is the wall clock of the read,
        which limits the watermark; None where event times are the only clock (replay).
        """
        # Only the clock moves it, except in replay, which has none.
        if self.by_clock and self.watermark is not None and read_ms is not None:
            return np.maximum(times, self.watermark)
        latest = NO_LIMIT if read_ms is None else read_ms
        effective = np.empty_like(times)
        begin = 0
        mark = self.watermark
        if mark is None:
            # The watermark begins at the first event that is accepted: not too far before `oldest`.
            # Those before it are rejected (`too_far_behind`), as they get `oldest` here.
            oldest = 0 if read_ms is None else self._oldest(read_ms)
            accepted = oldest - times <= self._max_behind
            begin = int(np.argmax(accepted)) if accepted.any() else len(times)
            effective[:begin] = oldest
            if begin == len(times):
                return effective
            mark = max(oldest, min(int(times[begin]), latest))
            if mark > times[begin]:
                logger.warning(
                    "the first events are dated more than %s ticks ago: the first tick begins %s ago, and "
                    "they count in it; set tick wider, or start later",
                    f"{BACKLOG_TICKS_MAX:,}",
                    timedelta(milliseconds=latest - oldest),
                )
        # It writes the effective times from `begin` on, and returns the watermark after the last.
        self.watermark = effective_times(
            readonly_contiguous(times[begin:]),
            latest,
            self._grace,
            mark,
            effective[begin:],
        )
        return effective

    def too_far_behind(self, times: Longs, effective: Longs) -> Bools:
        """Return which events (n,) are to be rejected: counted too late, or after users moved.

        `times` and `effective` are when they are dated and when they count, in ms (`advance_by`).
        """
        rejected: Bools = effective - times > self._max_behind
        for moved_ms in self._moves:
            rejected |= (times < moved_ms) & (effective >= moved_ms)
        return rejected

    def _oldest(self, now_ms: int) -> int:
        """Return the earliest time to begin at, ms: BACKLOG_TICKS_MAX ticks before now, at most."""
        oldest_ms = 0
        for lane in self._lanes:
            earliest_ms = now_ms - BACKLOG_TICKS_MAX * lane.tick_ms
            # Ticks before a lane's start are not published.
            if earliest_ms > lane.start_ms:
                oldest_ms = max(oldest_ms, earliest_ms)
        return oldest_ms

    def read_to_end(self, now_ms: int) -> None:
        """Close ticks that had ended at `now_ms`; the partition was read to its end as of then."""
        self.advance_to(now_ms - self._grace)

    def has_closed_tick(self) -> bool:
        """Return whether a tick of any lane has closed since the last commit.

        The first watermark counts as one: owners are to learn it.
        """
        is_first = self._committed_watermark is None and self.watermark is not None
        return is_first or self.ticks_closed() > 0

    def latest_ms(self, opened_ms: int, now_ms: int) -> int:
        """Return the time, ms, after which a record counts as dated ahead.

        That is `now_ms`, the wall clock, unless `by_clock`: then it must not depend on how fast
        records are read. So it is the time at which the clock will close the first open tick, or
        `opened_ms`, when the shard was opened, if that is later.
        """
        if not self.by_clock or self.watermark is None:
            return now_ms
        ends = (
            lane.end_ms((self.watermark - lane.start_ms) // lane.tick_ms + 1)
            for lane in self._lanes
        )
        return max(min(ends) + self._grace, opened_ms)

    def commit_due(self) -> bool:
        """Return whether to commit a closed tick now; in a backlog, every `commit_gap_s`.

        With `by_clock` always at once: a restart goes on from what was committed, and must find the
        same ticks closed whatever the records held.
        """
        if self.by_clock:
            return self.has_closed_tick()
        is_soon = time.monotonic() - self._closed_s < self._commit_gap_s
        waits = is_soon and is_behind(self.watermark, self._grace)
        return not waits and self.has_closed_tick()

    def ticks_closed(self) -> int:
        """Return ticks closed since the last commit, over all lanes; 0 before the first."""
        mark = self.watermark
        before = self._committed_watermark
        if mark is None or before is None:
            return 0
        return self._closed_between(before, mark)

    def _closed_between(self, before: int, mark: int) -> int:
        """Return how many ticks, of all lanes, end after `before` and at or before `mark`."""
        return sum(
            (mark - lane.start_ms) // lane.tick_ms
            - (before - lane.start_ms) // lane.tick_ms
            for lane in self._lanes
        )

    def closes_by_clock(self, now_ms: int, noted_ms: int | None = None) -> bool:
        """Return whether to note the end of the log now, so that the clock closes a tick there.

        That is so if a tick has ended since the watermark, and since `noted_ms`, when an end was
        last noted: reading up to that end closes all earlier ticks. Thread-safe.
        """
        before = self.watermark
        mark = now_ms - self._grace
        if noted_ms is not None:
            noted_mark = noted_ms - self._grace
            before = noted_mark if before is None else max(before, noted_mark)
        # Without either, the first end that is reached begins the watermark.
        if before is None:
            return True
        return mark > before and self._closed_between(before, mark) > 0

    def note_commit(self) -> None:
        """Note that all ticks closed so far are committed."""
        if self.has_closed_tick():
            self._closed_s = time.monotonic()
        self._committed_watermark = self.watermark
