"""A shard's lag behind its log, and log ends noted with wall-clock times.

Lag in seconds counts from when the log first had a record that the shard has not processed,
whatever the record's timestamp, so old events do not look like lag.

`LogEnds` lets the wall clock close ticks. At every beat the event loop notes the time and the log's
end, and the shard closes ticks for that time *at that offset*. So processing speed, which depends
on the content of events, does not decide in which tick another event counts.
"""

from collections import deque
from typing import NamedTuple

#: Limit of outstanding ends per shard; no more are noted until some are reached.
ENDS_MAX = 10_000


class LogEnd(NamedTuple):
    """A log's last stable offset at wall-clock time `now_ms`."""

    now_ms: int
    offset: int


class LogEnds(deque[LogEnd]):
    """Log ends not yet reached. One thread notes, one takes: append, popleft and len are atomic."""

    noted_ms: int | None = None

    @property
    def full(self) -> bool:
        return len(self) >= ENDS_MAX

    def note(self, end: LogEnd) -> None:
        """Add an end; offsets and times must not decrease."""
        self.append(end)
        self.noted_ms = end.now_ms

    def take(self, position: int) -> LogEnd | None:
        return self.popleft() if self and self[0].offset <= position else None


_SAMPLES_MAX = 512


class ReadPosition(NamedTuple):
    """Offsets of one partition: `handed` is the end of the last batch given to the shard.

    `position` also passes invisible records; `end` is the last stable offset at the last fetch.
    """

    handed: int
    position: int
    end: int

    def passed(self, offset: int) -> int:
        """Return a shard's position, past invisible records if it has received all others."""
        return self.position if offset == self.handed else offset


class Lag:
    def __init__(self) -> None:
        self.records = 0
        #: The shard has reached the log's end at take-over.
        self.reached = False
        self._first: int | None = None
        self._ends: deque[tuple[float, int]] = deque()

    def sample(self, now_s: float, offset: int, reading: ReadPosition) -> None:
        position, end = reading.passed(offset), reading.end
        if self._first is None:
            self._first = end
        self.reached = self.reached or position >= self._first
        if not self._ends or end > self._ends[-1][1]:
            self._ends.append((now_s, end))
        while self._ends and self._ends[0][1] <= position:
            self._ends.popleft()
        if len(self._ends) > _SAMPLES_MAX:  # long backlog: keep every other sample
            self._ends = deque(list(self._ends)[::2])
        self.records = max(0, end - position)

    def seconds(self, now_s: float) -> float:
        return max(0.0, now_s - self._ends[0][0]) if self._ends else 0.0
