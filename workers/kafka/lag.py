"""How far a shard is behind its log, in records and in seconds, by what fetches say of its end.

Seconds are those since the log first had a record that the shard has not processed; the records'
own times do not matter, so old events in a topic do not look like a lag.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

_MOST = 512


class Reading(NamedTuple):
    """The consumer's position in one partition.

    Attributes:
        handed: position at which the last batch ended that a shard was given.
        position: that, moved past records that nobody may see.
        end: last stable offset of the log, at the last fetch.
    """

    handed: int
    position: int
    end: int

    def passed(self, offset: int) -> int:
        """Return how far a shard at `offset` is: past what nobody may see, if it has the rest."""
        return self.position if offset == self.handed else offset


class Lag:
    """The lag of one partition since it was taken over."""

    def __init__(self) -> None:
        self.records = 0
        #: Whether everything was processed that was in the log when it was taken over.
        self.reached = False
        self._first: int | None = None
        self._ends: deque[tuple[float, int]] = deque()

    def sample(self, now_s: float, offset: int, reading: Reading) -> None:
        """Note the positions of the shard (`offset`) and of the log now."""
        position = reading.passed(offset)
        end = reading.end
        if self._first is None:
            self._first = end
        self.reached = self.reached or position >= self._first
        if not self._ends or end > self._ends[-1][1]:
            self._ends.append((now_s, end))
        while self._ends and self._ends[0][1] <= position:
            self._ends.popleft()
        if len(self._ends) > _MOST:  # a long backlog: every other sample will do
            self._ends = deque(list(self._ends)[::2])
        self.records = max(0, end - position)

    def seconds(self, now_s: float) -> float:
        """Return how long the log has had something that is not processed; 0: nothing."""
        return max(0.0, now_s - self._ends[0][0]) if self._ends else 0.0
