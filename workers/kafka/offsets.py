"""How far a shard is behind its log, in records and in seconds, by what fetches say of its end.

Seconds are those since the log first had a record that the shard has not processed; the records'
own times do not matter, so old events in a topic do not look like a lag.

Where a log ended at which time: lets the wall clock close ticks however fast a shard is.

At a beat the event loop takes the time, asks the broker for the log's end, and notes both. Whatever
the clock closes at that time it closes *at that offset*: records before it were processed before,
records after it come after, however long the shard takes to get there. So how fast events are
processed, which depends on what is in them, does not decide in which tick another event counts.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

#: A shard that is more ends behind than this is not asked for until it has caught up with some.
MOST_ENDS = 10_000


class End(NamedTuple):
    """A log's last stable offset when the wall clock said `now_ms`."""

    now_ms: int
    offset: int


class Ends(deque[End]):
    """The ends of one log that its shard has not reached: one thread notes, another takes them."""

    # append, popleft and len of a deque are atomic.
    #: Time of the end noted last; None before the first.
    noted_ms: int | None = None

    @property
    def full(self) -> bool:
        """Return whether no further end should be noted now."""
        return len(self) >= MOST_ENDS

    def note(self, end: End) -> None:
        """Add an end; offsets and times never decrease."""
        self.append(end)
        self.noted_ms = end.now_ms

    def take(self, position: int) -> End | None:
        """Remove and return the first end at or before `position`; None where there is none."""
        return self.popleft() if self and self[0].offset <= position else None


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
