"""docs/papers.md has no empty cell, and every file and setting that it names is there."""

import re

import pytest

from tests import ROOT
from workers.mechanisms.registry import MECHANISMS

TEXT = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TEXT.splitlines()
    if line.startswith("| ") and not line.startswith(("| statement", "| [", "| |"))
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


def test_all_algorithms_are_listed() -> None:
    """As many as each paper numbers."""
    sections = re.split(r"^## [A-E]\. ", TEXT, flags=re.MULTILINE)[1:]
    for section, algorithms in zip(sections, (12, 19, 3, 4, 4), strict=True):
        numbers = {
            int(number)
            for listed in re.findall(r"Algorithms? ([\d, and]+)", section)
            for number in re.findall(r"\d+", listed)
        }
        assert numbers >= set(range(1, algorithms + 1)) - {10}, section[:40]
