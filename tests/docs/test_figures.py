"""Every figure in README and docs has a source, and those that can be computed are right."""

import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from bench.__main__ import NAMES
from tests import ROOT
from tests.docs.computed import COMPUTED, SENTENCES
from tests.docs.marked import places, with_figures
from tests.docs.texts import DOCUMENTS

pytestmark = pytest.mark.slow

PERFORMANCE = ROOT / "docs" / "performance.md"


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_every_block_and_table_with_figures_says_where_they_come_from(
    document: Path,
) -> None:
    """Samples of an earlier counter once stood in ten documents, as nothing wrote them."""
    text = document.read_text(encoding="utf-8")
    for block in places(text):
        assert block.source is not None, (
            f"{named(document)}: put <!-- computed: NAME --> or <!-- measured: COMMAND --> "
            f"(tests/docs/marked.py) above\n{block.text}"
        )
        if block.source == "computed":
            assert block.argument in COMPUTED, block.argument
        else:
            visible = re.sub(r"<!--.*?-->", "", text)
            assert is_a_command(block.argument), block.argument
            assert block.argument.split(" -c ")[0] in " ".join(visible.split()), (
                block.argument
            )


def is_a_command(text: str) -> bool:
    """Return whether a command of this repository is named: a benchmark, a test program, `quietcount`."""
    words = shlex.split(text)
    if words[0] == "quietcount":
        return True
    assert words[:2] == ["python", "-m"]
    if words[2:4] == ["bench", "--only"]:
        return words[4] in NAMES
    return importlib.util.find_spec(words[2]) is not None


def used() -> list[tuple[str, str]]:
    texts = {named(path): path.read_text(encoding="utf-8") for path in DOCUMENTS}
    return [
        (name, place.argument)
        for name, text in texts.items()
        for place in places(text)
        if place.source == "computed"
    ]


@pytest.mark.parametrize(("document", "name"), used())
def test_computed_blocks_and_tables_are_what_the_code_gives(
    document: str, name: str, bootstrap: str
) -> None:
    """After a change: `python -m tests.docs --write`."""
    text = (ROOT / document).read_text(encoding="utf-8")
    written = COMPUTED[name](bootstrap)
    assert [place.text for place in places(text) if place.argument == name] == [written]


@pytest.mark.parametrize(("document", "sentence", "figures"), SENTENCES)
def test_figures_in_sentences_are_what_the_code_gives(
    document: str, sentence: str, figures: object
) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    assert callable(figures)
    assert with_figures(text, sentence, figures()) == text


def test_nothing_is_computed_for_no_document() -> None:
    assert {name for _, name in used()} == set(COMPUTED)


def test_speeds_in_the_readme_are_measured_ones() -> None:
    """They stand in docs/performance.md, which names the command."""
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    performance = PERFORMANCE.read_text(encoding="utf-8")
    speed = re.search(
        r"counted ([\d,]+) events a second \(10,000 items, 2 partitions\)", readme
    )
    delays = re.search(
        r"at ([\d,]+) events a second the median snapshot could be read ([\d.]+) s after its tick, "
        r"the worst ([\d.]+) s",
        readme,
    )
    assert speed is not None and delays is not None
    assert re.search(
        rf"^\| events, 10,000 items, 2 partitions .* {speed[1]} \|",
        performance,
        re.MULTILINE,
    )
    assert re.search(
        rf"^\| {delays[1]} \| {delays[2]} \| {delays[3]} \|", performance, re.MULTILINE
    )


@pytest.mark.parametrize(
    "text",
    [
        "```text\nsd 45.3, new items from 353\n```\n",
        "Text:\n\n    800 rows from 400 snapshots\n\nmore\n",
        "| mechanism | sd |\n|---|---|\n| `unk_base` | 45.3 |\n",
    ],
)
def test_a_sample_without_a_source_is_noticed(text: str) -> None:
    """And a command with a number is no sample."""
    assert [place.source for place in places(text)] == [None]
    assert list(places("```sh\nquietcount dashboard --port 9000\n```\n")) == []
