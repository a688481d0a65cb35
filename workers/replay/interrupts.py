"""Defer Ctrl-C and SIGTERM until the current step is done.

Signals within one second count as one, since a user or a terminal's process group often signals
twice; a later one is raised at once and ends the command.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from types import FrameType
from typing import Any, ClassVar

SAME_PRESS_S = 1.0
# With their default handlers.
HANDLED_SIGNALS: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}


class Interrupts:
    """Context in which Ctrl-C and SIGTERM raise KeyboardInterrupt, after the step in `deferred`.

    `pressed` is the first signal, or None; after a second (`insisted`), callers do nothing more.
    A context within another is that one: `with` gives the outer one, and only it ends the handling.
    """

    _active: ClassVar[Interrupts | None] = None

    def __init__(self) -> None:
        # Whether signals wait for the end of a step, and whether one does.
        self._deferring = False
        self._pending = False
        # When the first one came, by the monotonic clock.
        self._first_s = 0.0
        # Those whose handlers this context has replaced.
        self._installed: list[signal.Signals] = []
        self.pressed: signal.Signals | None = None
        self.insisted = False

    def __enter__(self) -> Interrupts:  # noqa: PYI034 (it may be that of the block around)
        """Take over the signals; within another context return that one and take over nothing."""
        # Python handles signals in the main thread only.
        if threading.current_thread() is not threading.main_thread():
            return self
        if Interrupts._active is not None:
            return Interrupts._active
        Interrupts._active = self
        for number, default in HANDLED_SIGNALS.items():
            # Leave alone what someone else handles, or a background job ignores.
            if signal.getsignal(number) is default:
                self._installed.append(number)
                signal.signal(number, self._press)
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the signal handlers, unless an outer context installed them."""
        if Interrupts._active is self:
            for number in self._installed:
                signal.signal(number, HANDLED_SIGNALS[number])
            Interrupts._active = None

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Defer signals until the step in this block is done, then raise what came meanwhile."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False
        self.check()

    def defer_rest(self) -> None:
        """Make the rest of the context one step, so that results are written.

        It also drops a deferred signal, as there is nothing left for it to end.
        """
        self._deferring = True
        self._pending = False

    def check(self) -> None:
        """Raise a deferred signal; called where a step may end early."""
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt

    def _press(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: raise it, defer it, or ignore it as a repetition of the first."""
        now_s = monotonic()
        if self.pressed is None:
            self.pressed = signal.Signals(number)
            self._first_s = now_s
            if not self._deferring:
                raise KeyboardInterrupt
            self._pending = True
        elif now_s - self._first_s >= SAME_PRESS_S:
            self.insisted = True
            raise KeyboardInterrupt
