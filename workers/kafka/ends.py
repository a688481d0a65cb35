"""Where a log ended at which time: lets the wall clock close ticks however fast a shard is.

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
