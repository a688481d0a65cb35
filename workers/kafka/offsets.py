"""A shard's lag behind its log, and log ends noted with wall-clock times.

Lag in seconds counts from when the log first had a record that the shard has not processed,
whatever the record's timestamp, so old events do not look like lag.

`OpenTransaction` notices another producer's transaction that stays open and hides what follows it.

`LogEnds` lets the wall clock close ticks. At every beat the event loop notes the time and the log's
end, and the shard closes ticks for that time *at that offset*. So processing speed, which depends
on the content of events, does not decide in which tick another event counts.

A log's *last stable offset* is that of its first open transaction, or its end: it can be read up to
there.
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

    #: Time of the end that was noted last, even if it has been taken.
    noted_ms: int | None = None

    @property
    def full(self) -> bool:
        return len(self) >= ENDS_MAX

    def note(self, end: LogEnd) -> None:
        """Add an end; offsets and times must not decrease."""
        self.append(end)
        self.noted_ms = end.now_ms

    def take(self, position: int) -> LogEnd | None:
        """Remove and return the next end if `position` has reached it, else None."""
        return self.popleft() if self and self[0].offset <= position else None


class ReadPosition(NamedTuple):
    """How far one partition has been read.

    Attributes:
        handed: end of the last batch given to the shard.
        position: the consumer's, which may be further, past records that it never delivers (control
            records, aborted transactions).
        end: the log's end at the last fetch.
        stable: its last stable offset then; None: it could be read to its end.
        fetched_ms: time of that fetch.
    """

    handed: int
    position: int
    end: int
    stable: int | None = None
    fetched_ms: int = 0

    def position_of(self, shard_offset: int) -> int:
        """Return how far a shard has read: `position` once it has processed all it was given."""
        return self.position if shard_offset == self.handed else shard_offset


#: A transaction open this long holds the worker up. Exactly-once producers commit more often.
OPEN_S = 10.0


class OpenTransaction:
    """The transaction that keeps a log from being read further, if it does. Not thread-safe.

    Offsets do not show when it began: it counts from when the last stable offset stood still.
    """

    #: Records after its begin, at most: the broker counts its own control records too.
    hidden = 0
    #: The last stable offset; at first none that a log could have.
    offset = -1
    #: Since when it is that, and when it was last seen to be (monotonic).
    since_s = _last_seen_s = 0.0
    _fetched_ms = 0

    def sample(self, now_s: float, reading: ReadPosition) -> None:
        """Note how far the log could be read at `now_s` (monotonic)."""
        stable = reading.end if reading.stable is None else reading.stable
        # Another transaction than before, or none: count from now.
        if stable != self.offset or stable >= reading.end:
            self.offset = stable
            self.since_s = now_s
            self._last_seen_s = now_s
        # Without a fetch since, it may have ended: a broker is away, or the shard has no room.
        if reading.fetched_ms != self._fetched_ms:
            self._fetched_ms = reading.fetched_ms
            self._last_seen_s = now_s
        # While records before it can still be read, it holds nothing up.
        self.hidden = reading.end - stable if reading.position >= stable else 0

    @property
    def holds_up(self) -> bool:
        """Whether a transaction has been open for `OPEN_S` and is all that is left to read."""
        return self.hidden > 0 and self._last_seen_s - self.since_s >= OPEN_S

    @property
    def why(self) -> str:
        hidden = f"hides up to {self.hidden:,} records from there on"
        return f"a transaction is open at offset {self.offset} and {hidden}"


_SAMPLES_MAX = 512


class Lag:
    """How far a shard is behind the end of its log: in `records`, and in `seconds`."""

    records = 0
    #: Whether the shard has reached the end that the log had at take-over.
    reached = False
    # That end.
    _first_end: int | None = None

    def __init__(self) -> None:
        self.transaction = OpenTransaction()
        # Ends that the shard has not reached, with the time when each was first seen; ascending.
        self._ends: deque[tuple[float, int]] = deque()

    def sample(self, now_s: float, offset: int, reading: ReadPosition) -> None:
        """Note the shard's `offset` and its log's end at `now_s` (monotonic)."""
        self.transaction.sample(now_s, reading)
        position = reading.position_of(offset)
        end = reading.end
        if self._first_end is None:
            self._first_end = end
        self.reached = self.reached or position >= self._first_end
        # Keep the ends beyond `position`: `seconds` counts from when the first of them was seen.
        if not self._ends or end > self._ends[-1][1]:
            self._ends.append((now_s, end))
        while self._ends and self._ends[0][1] <= position:
            self._ends.popleft()
        if len(self._ends) > _SAMPLES_MAX:  # long backlog: keep every other sample
            self._ends = deque(list(self._ends)[::2])
        self.records = max(0, end - position)

    def seconds(self, now_s: float) -> float:
        """Return for how long the log has had a record that the shard has not processed."""
        return max(0.0, now_s - self._ends[0][0]) if self._ends else 0.0
