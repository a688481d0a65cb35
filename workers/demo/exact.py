"""What only a demo may know: the exact counts, kept from what the generator sent. Never part of a worker.

Counts are kept per tick of a record's timestamp, as the worker's are; a snapshot is compared with their running sum
from the start of its epoch to the end of its tick, so both are of the same events.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable

from workers.mechanisms.ticks import TickGrid


class ExactCounts:
    """Counts per (global tick, origin), written by the generator's thread and read by the viewer's."""

    def __init__(self, grid: TickGrid) -> None:
        self.grid = grid
        self._lock = threading.Lock()
        self._ticks: dict[int, dict[str, Counter[str]]] = {}

    def add(self, time_ms: int, events: Iterable[tuple[str, str]]) -> None:
        """Count (origin, destination) pairs that were sent with the timestamp `time_ms`."""
        tick = self.grid.holding(time_ms)
        with self._lock:
            of_tick = self._ticks.setdefault(tick, {})
            for origin, dest in events:
                if origin not in of_tick:
                    of_tick[origin] = Counter()
                of_tick[origin][dest] += 1

    def of(self, tick: int, origin: str) -> Counter[str]:
        """Return the counts of one tick alone."""
        with self._lock:
            return Counter(self._ticks.get(tick, {}).get(origin, {}))

    def forget(self, before: int) -> None:
        """Drop ticks that every reader has passed."""
        with self._lock:
            for tick in [tick for tick in self._ticks if tick < before]:
                del self._ticks[tick]


class Running:
    """The exact running counts of one origin in the epoch that is on display, advanced from snapshot to snapshot."""

    def __init__(self, exact: ExactCounts, origin: str) -> None:
        self._exact, self._origin = exact, origin
        self._epoch = 0
        self.next = 1
        self.counts: Counter[str] = Counter()

    def advance(self, tick: int) -> Counter[str]:
        """Return the counts from the start of the epoch to the end of global tick `tick`; ticks are asked for in order."""
        while self.next <= tick:
            epoch, _ = self._exact.grid.split(self.next)
            if epoch != self._epoch:
                self._epoch, self.counts = epoch, Counter()
            self.counts.update(self._exact.of(self.next, self._origin))
            self.next += 1
        return self.counts
