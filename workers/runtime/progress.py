"""Progress of long work: one changing line on a terminal, occasional plain lines elsewhere."""

from __future__ import annotations

import time
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.status import Status

PLAIN_INTERVAL_S = 5.0


class _Patient(Console):
    """Console that ignores a closed pipe, as from `head`, while the work continues."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


class ProgressLine:
    """Progress display on stderr, so that stdout holds only the command's output."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or _Patient(stderr=True, highlight=False)
        self._status: Status | None = None
        self._plain_at = time.monotonic() + PLAIN_INTERVAL_S

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status = self._console.status("")
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def update(self, text: str) -> None:
        if self._status is not None:
            self._status.update(escape(text))
        elif time.monotonic() >= self._plain_at:
            self._plain_at = time.monotonic() + PLAIN_INTERVAL_S
            self.print(text)

    def print(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)
