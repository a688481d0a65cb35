"""What only a demo may know: the exact counts of what the generator sent. Never part of a worker.

Counts are kept per tick of a record's timestamp, as the worker's are; a snapshot is compared with
their running sum from the start of its epoch to the end of its tick, so both are of the same
events.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable

from workers.mechanisms.ticks import TickGrid


class ExactCounts:
    """Counts per (global tick, origin), written by the generator's thread, read by the viewer's."""

    def __init__(self, grid: TickGrid) -> None:
        self.grid = grid
        self._lock = threading.Lock()
        self._ticks: defaultdict[int, Counter[tuple[str, str]]] = defaultdict(Counter)

    def add(self, time_ms: int, events: Iterable[tuple[str, str]]) -> None:
        """Count (origin, destination) pairs that were sent with the timestamp `time_ms`."""
        tick = self.grid.holding(time_ms)
        with self._lock:
            self._ticks[tick].update(events)

    def of(self, tick: int, origin: str) -> Counter[str]:
        """Return the counts of one tick alone."""
        with self._lock:
            counts = self._ticks.get(tick, Counter())
            return Counter({dest: times for (of, dest), times in counts.items() if of == origin})

    def forget(self, before: int) -> None:
        """Drop ticks that every reader has passed."""
        with self._lock:
            for tick in [tick for tick in self._ticks if tick < before]:
                del self._ticks[tick]


class Running:
    """The exact running counts of one origin in the epoch on display."""

    def __init__(self, exact: ExactCounts, origin: str) -> None:
        self._exact, self._origin = exact, origin
        self._epoch = 0
        self.next = 1
        self.counts: Counter[str] = Counter()

    def advance(self, tick: int) -> Counter[str]:
        """Return the epoch's counts to the end of global tick `tick`; ask in order of ticks."""
        while self.next <= tick:
            epoch, _ = self._exact.grid.split(self.next)
            if epoch != self._epoch:
                self._epoch, self.counts = epoch, Counter()
            self.counts.update(self._exact.of(self.next, self._origin))
            self.next += 1
        return self.counts
