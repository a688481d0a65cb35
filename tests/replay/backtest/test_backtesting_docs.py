"""The commands of docs/backtesting.md and of the examples, as they stand there, over a part of the events."""

import re
import runpy
import shlex
import shutil
import sys
from itertools import islice
from pathlib import Path

import pytest

from tests import ROOT
from tests.replay.site import Patch
from workers.cli import execute
from workers.commands.demo import generator
from workers.commands.demo.generator import flights

pytestmark = pytest.mark.slow

EVENTS = 6_000
EXAMPLES = {"flights": "flights.jsonl", "queries": "queries.parquet"}


def commands(path: Path) -> list[list[str]]:
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


def run(command: list[str], events: int = EVENTS) -> None:
    if command[0] == "quietcount":
        assert execute([fewer(word) for word in command[1:]]) == 0
        return
    assert command[0] == "python"
    arguments = [word if word != "10000000" else str(events) for word in command[1:]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", arguments)
        patch.setattr(generator, "flights", lambda path: islice(flights(path), events))
        runpy.run_path(command[1], run_name="__main__")


def fewer(word: str) -> str:
    return "1" if word == "5" else ",".join(word.split(",")[:2])


@pytest.mark.parametrize("example", EXAMPLES)
def test_commands_of_examples_make_a_report(
    example: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    shutil.copytree(ROOT / "examples" / example, tmp_path / example)
    monkeypatch.chdir(tmp_path / example)
    for command in commands(Path("README.md")):
        run(command)
    page = Path("report/report.html").read_text(encoding="utf-8")
    assert f"over {EVENTS:,} events" in page
    assert [*Path("report/plots").glob("*-pareto_front.png")]


def test_the_tutorial_and_the_examples_give_the_same_commands() -> None:
    told = [
        command
        for command in commands(ROOT / "docs" / "backtesting.md")
        if command[0] != "cd"
    ]
    paths = (ROOT / "examples" / example / "README.md" for example in EXAMPLES)
    assert told == [command for path in paths for command in commands(path)]


def test_every_picture_of_the_tutorial_is_there_and_used() -> None:
    text = (ROOT / "docs" / "backtesting.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(backtesting/([a-z_]+\.png)\)", text))
    assert linked == {path.name for path in (ROOT / "docs" / "backtesting").iterdir()}
