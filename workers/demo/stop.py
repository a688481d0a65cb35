"""When to end: Ctrl-C, SIGTERM, a closed terminal, or the time that was asked for."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stop:
    """Context in which signals are only noted: no lock is touched in a signal handler."""

    def __init__(self, seconds: float | None = None) -> None:
        self._started = time.monotonic()
        self._seconds = seconds
        self._signals = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def elapsed_s(self) -> float:
        """Seconds since it was made."""
        return time.monotonic() - self._started

    def wanted(self) -> bool:
        """Return whether it is time to end."""
        return self._signals > 0 or (self._seconds is not None and self.elapsed_s >= self._seconds)

    def urgent(self) -> bool:
        """Return whether somebody asked a second time."""
        return self._signals > 1

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._signals += 1
