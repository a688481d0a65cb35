"""Serialize short GIL-bound work.

Releasing a tick, or encoding a commit, takes a hundred short compiled steps with some Python in
between. Two threads that do so at once switch the GIL at every step, each time starting with a cold
cache: together they use up to three times the CPU time of one after the other. Long steps run in
parallel without the GIL, and need no lock.

No thread holds the lock while waiting for Kafka.
"""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager
from typing import Self

#: Longer work takes no lock: compiled steps dominate. A million rows take about 0.1 s.
SHORT_ROWS = 500_000
# A thread keeps the lock, and its warm cache, this long; then it pauses to let others in.
_ROUND_S, _PAUSE_S = 0.1, 0.001


class GilLock:
    """The GIL lock of a worker, shared by the threads of all shards."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def one(self, rows: int) -> GilTurn:
        return GilTurn(self._lock, rows)

    def several(self) -> GilTurn:
        """Return a context manager for work in pieces, each announced with `begin_piece`."""
        return GilTurn(self._lock, None)


class GilTurn(AbstractContextManager["GilTurn"]):
    """Context manager that holds the lock during short work."""

    def __init__(self, lock: threading.Lock, rows: int | None) -> None:
        self._lock, self._rows = lock, rows
        self._since_s: float | None = None  # None: this thread does not hold the lock

    def begin_piece(self, rows: int) -> None:
        """Announce the next piece of work by its rows; wait for the lock if it is short."""
        short = rows <= SHORT_ROWS
        if self._since_s is not None:
            over = time.monotonic() - self._since_s > _ROUND_S
            if short and not over:
                return
            self._give()
            if short:
                time.sleep(_PAUSE_S)  # lets a woken waiter take the lock
        if short:
            self._lock.acquire()
            self._since_s = time.monotonic()

    def _give(self) -> None:
        self._since_s = None
        self._lock.release()

    def __enter__(self) -> Self:
        if self._rows is not None:
            self.begin_piece(self._rows)
        return self

    def __exit__(self, *_: object) -> None:
        if self._since_s is not None:
            self._give()
