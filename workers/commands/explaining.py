"""`quietcount explain`: the row of docs/operations.md that explains a message.

The guide is beside this module, also in the wheel. A message has a row's pattern if the words of
the pattern occur in it in their order, with anything for `…`; the pattern with most of them counts.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from workers.runtime.printing import Printer, printable

# For anything in a message, such as a name or number.
HOLE = "…"
# Headings above the guide's tables of messages.
TABLES = ("## Messages", "## Rejects")
_GUIDE = Path(__file__).with_name("operations.md")
_LINK = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")


class Explanation(NamedTuple):
    """A row of the guide; `pattern` has the words of a message, with HOLE for anything between."""

    pattern: str
    cause: str
    remedy: str


def explain_message(message: str) -> int:
    """Print what explains a message; return the exit code, 1 if nothing does."""
    printer = Printer(Console(highlight=False))
    best = explanations(message, explained(_GUIDE.read_text(encoding="utf-8")))
    if not best:
        printer.line(
            "no row of docs/operations.md has these words: give the whole line in quotes, or "
            "look at what was logged before it"
        )
        return 1
    for explanation in best:
        printer.line(explanation.pattern)
        printer.line(f"  why: {_plain(explanation.cause)}")
        printer.line(f"  what to do: {_plain(explanation.remedy)}")
    return 0


def explained(guide: str) -> list[Explanation]:
    """Return every pattern of the guide's tables, with its row's cause and remedy."""
    every = []
    for heading in TABLES:
        for row in rows(heading, guide):
            # A table of rejects has no column of causes.
            cause = row[1] if len(row) > 2 else "such a record is a reject"
            every += [Explanation(pattern, cause, row[-1]) for pattern in patterns(row)]
    return every


def explanations(message: str, guide: Sequence[Explanation]) -> list[Explanation]:
    """Return the patterns that have most of a message, by characters: usually one."""
    text = " ".join(message.split())
    covering = [
        (len(explanation.pattern.replace(HOLE, "").replace(" ", "")), explanation)
        for explanation in guide
        if covers(explanation.pattern, text)
    ]
    most = max((length for length, _ in covering), default=0)
    return [explanation for length, explanation in covering if length == most]


def rows(heading: str, guide: str) -> list[list[str]]:
    """Return the rows of the tables between a heading and the next one of its level or above.

    A row is a list of its cells. `guide` is Markdown.
    """
    level = len(heading) - len(heading.lstrip("#"))
    pattern = rf"^{re.escape(heading)}\n(.*?)(?=^#{{1,{level}}} |\Z)"
    [section] = re.findall(pattern, guide, re.MULTILINE | re.DOTALL)
    lines = [
        line.strip("|").split(" | ")
        for line in section.splitlines()
        if line[:2] == "| "
    ]
    cells = [[cell.strip() for cell in line] for line in lines]
    headings = ("symptom", "code", "reason")
    # Without the heading and the line of dashes below it.
    return [
        row for row in cells if not set(row[0]) <= set("-| ") and row[0] not in headings
    ]


def patterns(row: list[str]) -> list[str]:
    """Return the messages that a row explains: what is in backquotes in its first cell."""
    return re.findall(r"`([^`]+)`", row[0])


def covers(pattern: str, text: str) -> bool:
    """Return whether a message has the pattern's words, in their order."""
    position = 0
    for part in pattern.split(HOLE):
        words = part.strip()
        position = text.find(words, position)
        if position < 0:
            return False
        position += len(words)
    return True


def _plain(cell: str) -> str:
    """Return a cell of the guide without Markdown's marks; links name their file in brackets."""

    def spelled_out(link: re.Match[str]) -> str:
        """Return a link's words and where it leads; targets are relative to docs/operations.md."""
        words, target = link.groups()
        if target.startswith("#"):
            target = f"docs/operations.md{target}"
        elif "://" not in target:
            target = f"docs/{target}".replace("docs/../", "")
        return f"{words} ({target})"

    return printable(_LINK.sub(spelled_out, cell).replace("`", "").replace("**", ""))
