"""Decision records have one form, which CONTRIBUTING.md describes."""

import re
from pathlib import Path

import pytest

from tests import ROOT

DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
NAMED = re.compile(r"`(workers/[\w/]+\.py)` \(`(\w+)`(?:, `(\w+)`)?\)")


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.stem)
def test_a_record_asks_and_answers(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith(f"# {path.name[:4]} ")
    assert "\n**Question.** " in text
    assert "\n**Decision.**" in text
    prose = [line for line in text.splitlines() if not line.startswith(("|", "    "))]
    assert max(map(len, prose)) <= 100


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.stem)
def test_functions_that_a_record_names_are_there(path: Path) -> None:
    text = " ".join(path.read_text(encoding="utf-8").split())
    for file, *names in NAMED.findall(text):
        code = (ROOT / file).read_text(encoding="utf-8")
        for name in filter(None, names):
            assert f"def {name}(" in code, f"{file} has no {name}"


def test_records_are_numbered_without_gaps() -> None:
    numbers = [int(path.name[:4]) for path in DECISIONS]
    assert numbers == list(range(1, len(numbers) + 1))
