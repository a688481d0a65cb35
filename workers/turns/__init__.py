"""Whose turn it is: short work that needs the interpreter at every step is done by one thread at a
time.

Releasing a tick, and writing what a commit says, are a hundred short compiled steps with some
Python between them. Two threads that do so at once hand each other the interpreter (the GIL) at
each step, and each time the next one begins with a cold cache: together they take up to three times
the processor that they take one after the other. In turns they lose nothing, since one of them can
be in Python at a time. Long steps, which run beside each other without the interpreter, need none.

Nobody holds a turn while waiting for Kafka or a disk.
"""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType

#: Rows that are gone through; beyond them the compiled steps are the long part. A million rows take
#: about 0.1 s.
SHORT_ROWS = 500_000
# Whoever takes turn after turn goes on with a warm cache, which is what turns are for; only after
# so long it lets others in first.
_ROUND_S, _PAUSE_S = 0.1, 0.001


class Turns(AbstractContextManager[None]):
    """The turns of all shards of a worker, shared by their threads; as a block: one turn."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder, self._since_s = 0, 0.0  # who had the last turn, and since when in a row

    def of(self, rows: int) -> AbstractContextManager[None]:
        """Return what to hold while going through so many rows: a turn, or nothing."""
        return self if rows <= SHORT_ROWS else nullcontext()

    def __enter__(self) -> None:
        me, again = threading.get_ident(), self._holder
        if again == me and time.monotonic() - self._since_s > _ROUND_S:
            time.sleep(_PAUSE_S)
            again = 0
        self._lock.acquire()
        if again != me:
            self._holder, self._since_s = me, time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()
