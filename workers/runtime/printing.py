"""Printed output of commands, at most 100 columns wide, and the progress of long work."""

import sys
import textwrap
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Self

import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.status import Status
from rich.table import Table
from rich.text import Text

WIDTH = 100


class Printer:
    """Prints wrapped lines and tables; control sequences in the data are escaped."""

    def __init__(self, console: Console) -> None:
        """Set the console's width: `WIDTH` at most, and exactly that in a file or pipe."""
        console.width = self.width = (
            min(console.width, WIDTH) if console.is_terminal else WIDTH
        )
        self._console = console

    def line(self, text: str = "", *, style: str = "") -> None:
        """Print a wrapped line; its continuation is indented by two more columns."""
        words = text.lstrip(" ")
        indent = len(text) - len(words)
        lines = textwrap.wrap(
            printable(words),
            self.width,
            initial_indent=" " * indent,
            subsequent_indent=" " * (indent + 2),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for part in lines or [""]:
            self._console.print(
                Text(part, style=style), soft_wrap=True, highlight=False
            )

    def one_line(self, text: str, indent: int) -> None:
        """Print text on one line, indented by so many columns and cut to the width."""
        shown = " " * indent + printable(text)
        # Cut one character at a time, since each may take zero, one or two columns; the first cut
        # leaves at most `width` characters.
        if cell_len(shown) > self.width:
            while cell_len(shown) > self.width - 3:
                shown = shown[: min(len(shown) - 1, self.width)]
            shown += "..."
        self._console.print(Text(shown), soft_wrap=True, highlight=False)

    def table(
        self,
        headings: Sequence[str],
        rows: Sequence[Sequence[str]],
        left: Sequence[int] = (0,),
        indent: int = 2,
        unwrapped: Sequence[int] = (),
    ) -> None:
        """Print a table; the columns numbered in `left` are text, and all others are numbers.

        Text wraps unless its column is in `unwrapped`.
        """
        table = Table(
            box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=any(headings)
        )
        for column, heading in enumerate(headings):
            is_text = column in left
            table.add_column(
                Text(heading, style="dim"),
                justify="left" if is_text else "right",
                no_wrap=not is_text or column in unwrapped,
            )
        for row in rows:
            table.add_row(*(Text(printable(cell)) for cell in row))
        self._console.print(Padding(table, (0, 0, 0, indent)), highlight=False)


def print_json(value: object) -> None:
    sys.stdout.write(
        msgspec.json.format(msgspec.json.encode(value), indent=1).decode() + "\n"
    )


def printable(text: str) -> str:
    r"""Escape what is not printable in data or names, such as a terminal's `\x1b`."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def iso_time(milliseconds: int) -> str:
    """Format ms since 1970 to the second, in UTC."""
    try:
        time_utc = datetime.fromtimestamp(milliseconds / 1000, UTC)
        return time_utc.isoformat(timespec="seconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):  # beyond the year 9999
        return f"{milliseconds:,} ms since 1970"


def percent(part: int, whole: int) -> str:
    """Return a percentage, "-" of nothing; 0 and 100 appear only if exact."""
    if not whole:
        return "-"
    value = 100 * part / whole
    if 0 < part < whole:
        value = min(max(value, 0.1), 99.9)
    return f"{value:.1f} %"


def plural(number: int, thing: str) -> str:
    """Return a count with its noun, such as "1 event" or "1,200 events"."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


PLAIN_INTERVAL_S = 5.0


class _PipeConsole(Console):
    """Console that ignores a closed pipe, as from `head`, while the work continues."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


class ProgressLine:
    """On stderr: one changing line on a terminal, otherwise occasional plain lines."""

    def __init__(self, console: Console | None = None) -> None:
        """Print to stderr, or to `console`; the first plain line comes after an interval."""
        self._console = console or _PipeConsole(stderr=True, highlight=False)
        # The line on a terminal; None elsewhere.
        self._status: Status | None = None
        self._next_plain_s = time.monotonic() + PLAIN_INTERVAL_S

    def __enter__(self) -> Self:
        """Begin the changing line, if this is a terminal."""
        if self._console.is_terminal:
            self._status = self._console.status("")
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def update(self, text: str) -> None:
        """Show `text` in place of the line before; without a terminal every few seconds only."""
        if self._status is not None:
            self._status.update(escape(text))
        elif time.monotonic() >= self._next_plain_s:
            self._next_plain_s = time.monotonic() + PLAIN_INTERVAL_S
            self.print(text)

    def print(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)
