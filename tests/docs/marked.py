"""Blocks and tables of the documents that hold figures, and where these come from.

A comment on the line above says it:

    <!-- computed: NAME -->                        `computed.COMPUTED[NAME]` writes it
    <!-- measured: COMMAND -->                     COMMAND measures it, and the document names it

Programs (`sh`, `python`, `toml`, `sql`) and command lines hold none; a table holds figures where a
quarter of its cells, row names left out, are numbers.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

_PROGRAMS = ("sh", "python", "toml", "sql", "yaml")
# Tables with such a column describe settings and messages; the numbers in them are allowed values.
_DESCRIBING = re.compile(r"\| (meaning|allowed|answer|default) \|")
_COMMANDS = re.compile(
    r"\s*(?:\$|#|\[|quietcount|python|make|docker|kubectl|helm|pip|[A-Z]+=|mvn|where = |kafka-|<)"
)
_COMMENT = re.compile(r"<!-- (computed|measured): (.+?) -->")
_NUMBER = re.compile(r"[*~+-]*\d[\d,.]*(?:e-?\d+)?(?:\^\d+)?\b")
_PLACE = re.compile(
    r"(?P<above>^(?!\|).*\n)?"
    r"(?P<body>^```(?P<kind>\w*)\n(?P<fenced>(?:.*\n)*?)```$"
    r"|(?:^\|.*\n?)+"
    r"|(?:(?<=\n\n)|(?<=-->\n))(?:^    .+\n)(?:^    .*\n|^\n(?=    ))*)",
    re.MULTILINE,
)


class Place(NamedTuple):
    """A block or table: its text, where it begins in the document, and the comment above it."""

    text: str
    begin: int
    source: str | None
    argument: str


def places(document: str) -> Iterator[Place]:
    """Yield every block and table that holds figures or has a comment above it."""
    for found in _PLACE.finditer(document):
        comment = _COMMENT.search(found["above"] or "")
        text = found["fenced"] if found["fenced"] is not None else found["body"]
        begin = (
            found.start("fenced")
            if found["fenced"] is not None
            else found.start("body")
        )
        if comment is not None:
            yield Place(text, begin, comment[1], comment[2])
        elif _has_figures(text, found["kind"]):
            yield Place(text, begin, None, "")


def _has_figures(text: str, kind: str | None) -> bool:
    if text.startswith("|"):
        return _is_table_of_figures(text)
    if kind in _PROGRAMS or _COMMANDS.match(text):
        return False
    return any(letter.isdigit() for letter in text)


def _is_table_of_figures(text: str) -> bool:
    if _DESCRIBING.search(text.splitlines()[0]):
        return False
    rows = [line.strip("|").split("|")[1:] for line in text.splitlines()[2:]]
    cells = [cell.strip() for row in rows for cell in row]
    numbers = [cell for cell in cells if _NUMBER.match(cell)]
    return len(cells) > 0 and 4 * len(numbers) >= len(cells)


def rewritten(document: Path, name: str, text: str) -> None:
    """Put `text` in the place of a document that is computed as `name`."""
    old = document.read_text(encoding="utf-8")
    for place in places(old):
        if (place.source, place.argument) == ("computed", name):
            new = old[: place.begin] + text + old[place.begin + len(place.text) :]
            document.write_text(new, encoding="utf-8")
            return


def with_figures(document: str, sentence: str, figures: Sequence[str]) -> str:
    """Return the document with `figures` in the places of a sentence; raise ValueError without it."""
    parts = [
        r"\s+".join(map(re.escape, part.split(" "))) for part in sentence.split("{}")
    ]
    found = re.search(r"([\d.,e-]*\d)".join(f"({part})" for part in parts), document)
    if found is None:
        raise ValueError(f"no such sentence: {sentence}")
    kept = found.groups()[::2]
    written = "".join(
        text for pair in zip(kept, [*figures, ""], strict=True) for text in pair
    )
    return document[: found.start()] + written + document[found.end() :]
