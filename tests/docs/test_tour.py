"""The tour for newcomers counts its files, and names what is in them."""

import ast
import re

import pytest

from tests import ROOT

TOUR = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
WALKS = re.split(r"^## ", TOUR, flags=re.MULTILINE)[1:]
LINK = re.compile(r"\]\(\.\./(workers/[\w/]+\.py)\)")
# A link, and the names after it up to the next link or clause.
STOP = re.compile(r"\]\(\.\./(workers/[\w/]+\.py)\)((?:[,\s]+`\w+`)*)")


def defined(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.split("\n")[0])
def test_a_walk_enters_as_many_files_as_it_says(walk: str) -> None:
    stated = re.search(r"\b(\d+) files", walk)
    assert stated is not None
    assert int(stated[1]) == len(set(LINK.findall(walk)))


@pytest.mark.slow
def test_what_the_tour_names_is_in_the_file_beside_it() -> None:
    for file, names in STOP.findall(TOUR):
        missing = set(re.findall(r"`(\w+)`", names)) - defined(file)
        assert not missing, f"{file} has no {missing}"


def test_the_tour_is_short() -> None:
    assert TOUR.count("\n") <= 80
