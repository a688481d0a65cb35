"""Ctrl-C and SIGTERM that cut no step in two: they are remembered, and raised when it is done.

Whoever presses again, later than a second after the first time, means it: that is raised at once,
and ends the command. Signals within one second count as one: a hand, and a terminal's
whole process group, often press twice.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from types import FrameType, TracebackType
from typing import Any, ClassVar

SAME_PRESS_S = 1.0
# What is heeded, and how it is usually handled.
HEEDED: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}


class Interrupts:
    """In its block, Ctrl-C raises KeyboardInterrupt, but not inside of `held`; blocks nest.

    Attributes:
        pressed: the signal that came first; None: none did.
        insisted: it was pressed again, so nothing more is to be done.
    """

    _active: ClassVar[Interrupts | None] = None

    def __init__(self) -> None:
        self._held = self._pending = False
        self._first = 0.0
        self._installed: list[signal.Signals] = []
        self.pressed: signal.Signals | None = None
        self.insisted = False

    def __enter__(self) -> Interrupts:  # noqa: PYI034 (it may be another one, that of the block around)
        # Where a signal is ignored (a job in the background of a script), or another thread runs
        # this, it stays as it is.
        if threading.current_thread() is not threading.main_thread():
            return self
        if Interrupts._active is not None:
            return Interrupts._active
        Interrupts._active = self
        for number, usual in HEEDED.items():
            if signal.getsignal(number) is usual:
                self._installed.append(number)
                signal.signal(number, self._press)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if Interrupts._active is self:
            for number in self._installed:
                signal.signal(number, HEEDED[number])
            Interrupts._active = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold signals back until the step in this block is done."""
        before, self._held = self._held, True
        try:
            yield
        finally:
            self._held = before
        self.check()

    def hold(self) -> None:
        """Make everything from here to the end of the block one step: what was found is written."""
        self._held, self._pending = True, False

    def check(self) -> None:
        """Raise what was held back, at a place within a step where it may end."""
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt

    def _press(self, number: int, frame: FrameType | None) -> None:
        now = monotonic()
        if self.pressed is None:
            self.pressed, self._first = signal.Signals(number), now
            if not self._held:
                raise KeyboardInterrupt
            self._pending = True
        elif now - self._first >= SAME_PRESS_S:
            self.insisted = True
            raise KeyboardInterrupt
