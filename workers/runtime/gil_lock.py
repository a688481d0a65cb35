"""Whose turn it is: short work that needs the interpreter at every step is done by one thread at a
time.

Releasing a tick, and writing what a commit says, are a hundred short compiled steps with some
Python between them. Two threads that do so at once hand each other the interpreter (the GIL) at
each step, and each time the next one begins with a cold cache: together they take up to three times
the processor that they take one after the other. In turns they lose nothing, since one of them can
be in Python at a time. Long steps, which run beside each other without the interpreter, need none.

Nobody holds a turn while waiting for Kafka.
"""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

#: Rows that are gone through; beyond them the compiled steps are the long part. A million rows take
#: about 0.1 s.
SHORT_ROWS = 500_000
# Whoever has a turn goes on for so long with a warm cache, and then lets others in first.
_ROUND_S, _PAUSE_S = 0.1, 0.001


class Turns:
    """The turns of all shards of a worker, shared by their threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def one(self, rows: int) -> Turn:
        """Return a block that goes through so many rows."""
        return Turn(self._lock, rows)

    def several(self) -> Turn:
        """Return a block of pieces of work, each of which says what it is."""
        return Turn(self._lock, None)


class Turn(AbstractContextManager["Turn"]):
    """A block in which one thread has its turn, or several, whenever its work is short."""

    def __init__(self, lock: threading.Lock, rows: int | None) -> None:
        self._lock, self._rows = lock, rows
        self._since_s: float | None = None  # None: it is somebody else's turn, or nobody's

    def goes_through(self, rows: int) -> None:
        """Say that the next piece of work goes through so many rows; wait for a turn if it is
        short.
        """
        short = rows <= SHORT_ROWS
        if self._since_s is not None:
            over = time.monotonic() - self._since_s > _ROUND_S
            if short and not over:
                return
            self._give()
            if short:
                time.sleep(_PAUSE_S)  # whoever waits was woken, and takes it
        if short:
            self._lock.acquire()
            self._since_s = time.monotonic()

    def _give(self) -> None:
        self._since_s = None
        self._lock.release()

    def __enter__(self) -> Self:
        if self._rows is not None:
            self.goes_through(self._rows)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._since_s is not None:
            self._give()
