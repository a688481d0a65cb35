"""Ctrl-C that cuts no step in two: while a step is under way it is remembered, and raised when the step is done.

Pressed a second time it is raised at once.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self


class Interrupts:
    """In a `with` block of the main thread Ctrl-C raises KeyboardInterrupt, but not inside of `held`."""

    def __init__(self) -> None:
        self._held = self._pending = self._installed = False

    def __enter__(self) -> Self:
        # Where Ctrl-C is ignored (a job in the background of a script), or another thread runs this, it stays as it is.
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ):
            signal.signal(signal.SIGINT, self._pressed)
            self._installed = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """A step that is done whole."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        self.check()

    def check(self) -> None:
        """A place within a step where it may end."""
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt

    def _pressed(self, number: int, frame: FrameType | None) -> None:
        if not self._held or self._pending:
            raise KeyboardInterrupt
        self._pending = True
