"""docs/papers.md has no empty cell, and every file and setting that it names is there."""

import re

import pytest

from tests import ROOT
from workers.mechanisms.registry import MECHANISMS

TEXT = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TEXT.splitlines()
    if line.startswith("| ") and not line.startswith(("| statement", "| paper", "| ["))
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_a_statement_has_a_place_and_a_test(row: list[str]) -> None:
    assert len(row) == 4
    assert all(row)
    _, _, here, checked = row
    for path in re.findall(r"`((?:workers|bench|tests)/[\w/]+\.py)`", here + checked):
        assert (ROOT / path).is_file(), path
    assert re.search(r"`tests/[\w/]+\.py`", checked)
    for path in re.findall(r"\]\(([\w/-]+\.md)[)#]", here):
        assert (ROOT / "docs" / path).is_file(), path
    names = re.findall(r"`(\w+)` (?:in|of|and `\w+` in) `(workers/[\w/]+\.py)`", here)
    for name, path in names:
        code = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"\b(?:def|class) {name}\b", code), f"{path} has no {name}"


def test_every_mechanism_of_the_papers_is_named() -> None:
    ours = {"known_laplace"}  # of another paper
    assert {name for name in MECHANISMS if f"`{name}`" not in TEXT} <= ours


def numbered(first: int, last: int, section: str = "") -> set[str]:
    return {f"{section}{number}" for number in range(first, last + 1)}


NUMBER = r"(?:[A-F]\.)?\d+(?:\.\d+)?"
# What each paper numbers; D numbers anew in three of its sections, so only its algorithms are here.
STATEMENTS: list[dict[str, set[str]]] = [
    {
        "Algorithm": numbered(1, 12),
        "Theorem": numbered(1, 9),
        "Lemma": {"2.1", "3.1", "B.1", "D.1", "E.1"}
        | numbered(1, 6, "6.")
        | numbered(1, 3, "7.")
        | numbered(1, 3, "F."),
        "Definition": {"2.1", "6.1", "B.1", "E.1"},
    },
    {
        "Algorithm": numbered(1, 19),
        "Theorem": numbered(1, 5),
        "Lemma": numbered(1, 53),
        "Corollary": numbered(1, 5),
        "Fact": numbered(1, 9),
        "Claim": {"1", "2"},
        "Definition": numbered(1, 9),
    },
    {
        "Algorithm": numbered(1, 3),
        "Theorem": numbered(1, 4),
        "Lemma": {"3.1", "3.2", "8.1"} | numbered(1, 4, "4.") | numbered(1, 7, "5."),
        "Corollary": {"4.1", "4.2", "5.1", "5.2"},
        "Claim": {"5.1"},
        "Definition": {"2.1", "4.1", "4.2", "5.1", "5.2"},
    },
    {"Algorithm": numbered(1, 4)},
    {
        "Algorithm": numbered(1, 4),
        "Theorem": numbered(1, 11),
        "Lemma": {"3.1", "4.1"},
        "Definition": {"2.1", "2.2"},
    },
]


def test_every_numbered_statement_has_a_row_and_no_other() -> None:
    sections = re.split(r"^## [A-E]\. ", TEXT, flags=re.MULTILINE)[1:]
    for section, statements in zip(sections, STATEMENTS, strict=True):
        cells = [
            line.strip("|").split("|")[0]
            for line in section.splitlines()
            if line.startswith("| ") and not line.startswith("| statement")
        ]
        for kind, expected in statements.items():
            plural = "Corollaries" if kind == "Corollary" else f"{kind}s"
            found = {
                number
                for cell in cells
                for listed in re.findall(
                    rf"\b(?:{kind}|{plural}) ({NUMBER}(?:(?:, | to ){NUMBER})*)", cell
                )
                for number in _numbers(listed)
            }
            if len(statements) > 1:
                assert found == expected, (section[:30], kind, found ^ expected)
            assert found >= expected, (section[:30], kind)


def _numbers(listed: str) -> set[str]:
    """Return the numbers of a list such as "33, 34 to 38"."""
    found = set[str]()
    for part in listed.split(", "):
        first, _, last = part.partition(" to ")
        found |= numbered(int(first), int(last)) if last else {first}
    return found
