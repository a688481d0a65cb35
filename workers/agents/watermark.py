"""The time up to which a partition of events has closed its ticks, and when it closes further ones.

The *watermark* W is the largest of

    event time seen - grace     but an event dated after the wall clock when it is read counts as
                                dated then, so nobody's wrong clock closes other people's ticks
    wall clock - grace          at the offset where the log ended at that time (`kafka/ends.py`)
    the first event's time      likewise at most the wall clock

A tick is closed when it ends at or before W.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from workers.mechanisms.config import Lane

# A transaction costs this worker and the brokers about as much as ten thousand events, however
# little it says, and more the more topics it writes to.
_APART_S = 0.5
# A backlog is what is further behind the wall clock than this: to wait for more of it pays.
_BEHIND_MS = 10_000


def apart_s(lanes: Sequence[Lane]) -> float:
    """Return how long ticks of a backlog that close or are complete soon after others wait for
    further ones: they share a transaction.
    """
    return min([_APART_S, *(lane.tick_ms / 2000 for lane in lanes)])


def is_behind(watermark: int | None, grace_ms: int) -> bool:
    """Tell whether a backlog is being read, by where its ticks are closed."""
    return watermark is None or time.time_ns() // 1_000_000 - grace_ms - watermark > _BEHIND_MS


class Watermark:
    """Where one partition's time is, and was at the last commit. Sensitive."""

    def __init__(self, lanes: Sequence[Lane], grace_ms: int) -> None:
        """
        Args:
            lanes: whose ticks are closed.
            grace_ms: how long a tick stays open for events that come late.
        """
        self._lanes, self._grace = lanes, grace_ms
        self._apart_s, self._closed_s = apart_s(lanes), -math.inf
        self.watermark: int | None = None
        self._committed_watermark: int | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}(watermark={self.watermark})"

    def go_on(self, watermark: int | None) -> None:
        """Go on after a commit that left this watermark."""
        self.watermark = self._committed_watermark = watermark

    def told(self, watermark: int | None) -> None:
        """Move on to a time that is said; None: none is."""
        if watermark is not None and (self.watermark is None or watermark > self.watermark):
            self.watermark = watermark

    def pass_by(self, seen: NDArray[np.int64]) -> NDArray[np.int64]:
        """Move the watermark by times, in order; return where it is at each, int64 (n,), n > 0."""
        if self.watermark is None:
            self.watermark = int(seen[0])
        marks: NDArray[np.int64] = np.maximum(np.maximum.accumulate(seen) - self._grace, self.watermark)
        self.watermark = int(marks[-1])
        return marks

    def read_to_end(self, now_ms: int) -> None:
        """Close the ticks that were over at wall-clock time `now_ms`: the partition was read to the
        end it had then.
        """
        mark = now_ms - self._grace
        if self.watermark is None or mark > self.watermark:
            self.watermark = mark

    def closes(self) -> bool:
        """Tell whether a tick of any lane has closed since the last commit."""
        return self.watermark is not None and self._closed_between(self._committed_watermark, self.watermark)

    def close_due(self) -> bool:
        """Tell whether a tick has closed and is to be committed now: closes of a backlog that
        follow each other faster than `apart_s` share a transaction.
        """
        waits = time.monotonic() - self._closed_s < self._apart_s and is_behind(self.watermark, self._grace)
        return not waits and self.closes()

    def _closed_between(self, before: int | None, mark: int) -> bool:
        if before is None:
            return True
        return any(
            (mark - lane.start_ms) // lane.tick_ms > (before - lane.start_ms) // lane.tick_ms for lane in self._lanes
        )

    def ticks_closed(self) -> int:
        """Return how many ticks, over all lanes, have closed since the last commit; none before the
        first.
        """
        mark, before = self.watermark, self._committed_watermark
        if mark is None or before is None:
            return 0
        return sum(
            (mark - lane.start_ms) // lane.tick_ms - (before - lane.start_ms) // lane.tick_ms for lane in self._lanes
        )

    def closes_by_clock(self, now_ms: int, noted_ms: int | None = None) -> bool:
        """Tell whether the wall clock alone would close a tick now that it did not close at
        `noted_ms`; from any thread.
        """
        marks = [self.watermark, None if noted_ms is None else noted_ms - self._grace]
        before = max((mark for mark in marks if mark is not None), default=None)
        mark = now_ms - self._grace
        return before is None or (mark > before and self._closed_between(before, mark))

    def note_commit(self) -> None:
        """Note that the watermark was committed as it is."""
        if self.closes():
            self._closed_s = time.monotonic()
        self._committed_watermark = self.watermark
