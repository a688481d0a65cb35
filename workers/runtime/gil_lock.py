"""Serialize short GIL-bound work; no thread holds the lock while waiting for Kafka.

Releasing a tick or encoding a commit takes a hundred short compiled steps with Python in between.
Two threads switch the GIL, to a cold cache, at every step: up to three times the CPU time of one
after the other. Long steps run without the GIL, in parallel, and need no lock. How many `rows` of
arrays a step works on tells whether it is short.
"""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager
from typing import Self

#: Longer work takes no lock: compiled steps dominate. A million rows take about 0.1 s.
SHORT_ROWS = 500_000
# A thread keeps the lock, and its warm cache, this long; then it pauses to let others in.
_TURN_S = 0.1
_PAUSE_S = 0.001


class GilLock:
    """Lock that all shards share: short work in `with lock.for_rows(n):` is done one at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def for_rows(self, rows: int) -> GilTurn:
        """Lock work on this many rows, if that is short."""
        return GilTurn(self._lock, rows)

    def for_pieces(self) -> GilTurn:
        """Lock every short piece of work; announce each with `begin_piece`."""
        return GilTurn(self._lock, None)


class GilTurn(AbstractContextManager["GilTurn"]):
    """One thread's turn in a `with` block: it holds the lock only for short work."""

    def __init__(self, lock: threading.Lock, rows: int | None) -> None:
        """`rows` of the whole block's work; None: `begin_piece` announces each piece."""
        self._lock = lock
        self._rows = rows
        # Since when this thread holds the lock; None: it does not.
        self._since_s: float | None = None

    def begin_piece(self, rows: int) -> None:
        """Begin the next piece of work, with the lock if it has few enough rows to be short."""
        is_short = rows <= SHORT_ROWS
        if self._since_s is not None:
            is_over = time.monotonic() - self._since_s > _TURN_S
            # Short pieces in a row keep the lock, until it is the turn of others.
            if is_short and not is_over:
                return
            self._release()
            if is_short:
                time.sleep(_PAUSE_S)  # lets a woken waiter take the lock
        if is_short:
            self._lock.acquire()
            self._since_s = time.monotonic()

    def _release(self) -> None:
        self._since_s = None
        self._lock.release()

    def __enter__(self) -> Self:
        if self._rows is not None:
            self.begin_piece(self._rows)
        return self

    def __exit__(self, *_: object) -> None:
        if self._since_s is not None:
            self._release()
