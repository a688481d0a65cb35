"""No example shows anything exact, not even by mistake."""

import json
import re
from pathlib import Path

import pytest

from tests.consumers.scene import EXAMPLES, PLANTED, Scene, run

pytestmark = pytest.mark.waits

TOPICS = ("contributions", "rejects", "contribute-state", "release-state")
EXACT = {*TOPICS, "exact", "data_dir", "key_file"}


def test_what_was_planted_is_in_the_exact_topics_and_in_no_snapshot(
    scene: Scene,
) -> None:
    assert any(item.label == "PlantedRare" for item in scene.site.contributed())
    assert {
        value
        for value, _ in scene.site.rejects()
        if value and PLANTED.encode() in value
    }
    for records in scene.records.values():
        assert not any(
            PLANTED.encode() in (record.value() or b"") for record in records
        )


@pytest.mark.parametrize("topic", ["{}.contributions", "{}.rejects", "{}-events"])
def test_readers_of_a_wrong_topic_quote_nothing(
    scene: Scene, tmp_path: Path, topic: str
) -> None:
    options = scene.options(topic.format(scene.site.name), "--until-end")
    database = tmp_path / "board.duckdb"
    board = run("board.py", *options, "--from-beginning")
    for done in (board, run("to_duckdb.py", *options, "--database", str(database))):
        assert done.returncode == 1
        assert (
            "is this the topic of a histogram?" in done.stderr
            and "Traceback" not in done.stderr
        )
        assert (
            PLANTED not in done.stdout + done.stderr
            and "tea" not in done.stdout + done.stderr
        )
    assert b"Planted" not in database.read_bytes()


def test_the_agent_on_a_wrong_topic_quotes_nothing_either(
    scene: Scene, tmp_path: Path
) -> None:
    copy = scene.new_topic()
    rejects = list(scene.site.read(f"{scene.site.name}.rejects"))
    copy.send([*rejects, *scene.records["items"]])
    with scene.agent(tmp_path, copy.name, "info") as program:
        program.wait_for("tea leads")  # it goes on after what is none
        program.stop()
    assert (
        program.output().count("is this the topic of a histogram?") == len(rejects) > 0
    )
    assert PLANTED not in program.output()


def test_foreign_records_framed_as_snapshots_are_not_quoted(
    scene: Scene, tmp_path: Path
) -> None:
    first = json.loads(scene.records["items"][0].value() or b"")
    item = ["PlantedLabel", "715307715307"]
    promise = {"PlantedUnit": 715307715307}
    for change in (
        {"items": [item]},
        {"guarantee": promise},
        {"histogram": "../Planted"},
    ):
        copy = scene.new_topic()
        copy.forge(first | change, commit=True)
        done = run(
            "board.py", *scene.options(copy.name, "--from-beginning", "--until-end")
        )
        assert done.returncode == 1
        assert not re.search(f"{PLANTED}|715307715307", done.stdout + done.stderr)


def test_examples_name_nothing_exact() -> None:
    for path in EXAMPLES.glob("*.py"):
        words = set(re.findall(r"[\w-]+", path.read_text()))
        assert not words & EXACT, path.name
        assert "workers" not in words, path.name
