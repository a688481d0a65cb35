"""The documents as text: without markup, in sentences."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests import ROOT

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def plain(path: Path) -> str:
    """Return a file's text on one line, without marks of emphasis and addresses of links."""
    text = re.sub(r"\]\([^)\s]*\)", "]", path.read_text(encoding="utf-8"))
    return " ".join(re.sub(r"[*`\[\]]|^[>#] ?", "", text, flags=re.MULTILINE).split())


def sentences(path: Path) -> Iterator[str]:
    """Yield the sentences of a document; a list item, or a row of a table, ends one too."""
    text = re.sub(
        r"^```.*?^```$",
        "",
        path.read_text(encoding="utf-8"),
        flags=re.MULTILINE | re.DOTALL,
    )
    for part in re.split(r"\n\s*\n|^\s*(?:[-*]|\d+\.) |^\|", text, flags=re.MULTILINE):
        joined = re.sub(r"\]\([^)\s]*\)", "]", " ".join(part.split()))
        yield from re.split(r"(?<=[.!?]) +(?=[A-Z])", re.sub(r"[*`\[\]]", "", joined))
