"""The plain reader shows what lies on the topic: all of it, and nothing else."""

import json
import re
from pathlib import Path

import duckdb
import pytest
from confluent_kafka import Message

from tests.consumers.scene import PLANTED, Document, Program, Scene, run

pytestmark = pytest.mark.waits

HEAD = re.compile(
    r"(\w+) / (\w+)   epoch (\d+), tick (\d+), until ([\d-]{10}) ([\d:]{8}) UTC"
)
ROW = re.compile(r" +(-?[\d,]+) ± ([\d,]+) +(.+)")
WHOLE = ("--from-beginning", "--until-end")
Board = tuple[str, str, int, int]


def boards(text: str) -> dict[Board, list[str]]:
    found: dict[Board, list[str]] = {}
    for line in text.splitlines():
        if head := HEAD.fullmatch(line):
            place = (head[1], head[2], int(head[3]), int(head[4]))
            assert place not in found
            found[place] = []
        elif not line.startswith("--"):
            found[place].append(line)
    return found


def places(documents: list[Document]) -> list[Board]:
    return [(s["histogram"], s["key"], s["epoch"], s["tick"]) for s in documents]


def test_every_snapshot_is_printed_with_its_error(scene: Scene) -> None:
    done = run("board.py", *scene.options(scene.topic("items"), *WHOLE))
    assert done.returncode == 0, done.stderr
    shown = boards(done.stdout)
    expected = list(scene.whole("items").values())
    assert sorted(shown) == sorted(places(expected)) and len(expected) > 60
    for snapshot, place in zip(expected, places(expected), strict=True):
        rows = [ROW.fullmatch(line.replace(",", "")) for line in shown[place]]
        numbers = [(int(row[1]), int(row[2])) for row in rows if row]
        error = round(2 * snapshot["sd"])
        assert numbers == [(count, error) for _, count in snapshot["items"][:10]]
    assert (
        "tea" in done.stdout
        and "\x1b" not in done.stdout
        and "\u202e" not in done.stdout
    )
    ids = {(s["key"], s["id"]) for s in expected}
    assert done.stdout.count("another id: a new series begins") == len(ids) - 2 >= 2
    # Once a stream key: it does not change.
    assert done.stdout.count("promises one event: epsilon") == 2
    for part in ("tea   [+", " since the epoch began", " in 5s"):
        assert part in done.stdout
    assert PLANTED not in done.stdout + done.stderr


def test_pages_are_put_together_and_answers_are_shown(scene: Scene) -> None:
    """5,000 long labels do not fit into one record; queries have no items at all."""

    def printed(histogram: str) -> dict[Board, list[str]]:
        options = scene.options(scene.topic(histogram), *WHOLE, "--top", "5000")
        return boards(run("board.py", *options).stdout)

    assert {
        json.loads(record.value() or b"")["pages"] for record in scene.records["large"]
    } == {2}
    shown = printed("large")
    assert sorted(shown) == sorted(places(list(scene.whole("large").values())))
    assert {len(lines) for lines in shown.values()} == {1_000}
    answers = printed("answers")
    assert sorted(answers) == sorted(places(list(scene.whole("answers").values())))
    assert all(
        any('"top_k_select:2"' in line for line in lines) for lines in answers.values()
    )


def test_the_parts_of_a_tick_are_one_board_and_one_row(
    scene: Scene, tmp_path: Path
) -> None:
    """Also where one part lags behind, and the reader is started again meanwhile."""
    of_part: dict[int, list[Message]] = {1: [], 2: []}
    for record in scene.records["parts"]:
        of_part[json.loads(record.value() or b"")["part"]].append(record)
    expected = scene.whole("parts")
    copy = scene.new_topic()
    database = tmp_path / "board.duckdb"
    copy.send([*of_part[1], *of_part[2][:10]])
    arguments = scene.options(copy.name, "--database", str(database), "--until-end")
    assert run("to_duckdb.py", *arguments).returncode == 0
    copy.send(of_part[2][10:])
    done = run("to_duckdb.py", *arguments)
    assert done.returncode == 0, done.stderr
    query = "select histogram, key, id, tick, [(item.label, item.count) for item in items] from snapshots"
    with duckdb.connect(str(database), read_only=True) as db:
        rows = {row[:4]: list(row[4]) for row in db.execute(query).fetchall()}
    assert rows == {
        place: list(map(tuple, s["items"])) for place, s in expected.items()
    }
    shown = boards(run("board.py", *scene.options(scene.topic("parts"), *WHOLE)).stdout)
    assert sorted(shown) == sorted(places(list(expected.values()))) and len(shown) > 30


def test_it_follows_and_sees_nothing_that_was_not_committed(
    scene: Scene, tmp_path: Path
) -> None:
    copy = scene.new_topic()
    records = [record for record in scene.records["items"] if record.key() == b"s1"]
    copy.send(records[:3])
    options = scene.options(copy.name, "--from-beginning")
    with Program(tmp_path, "board.py", *options) as program:
        program.wait_for("tick 3,")
        forged = json.loads(records[3].value() or b"") | {
            "items": [["Forged", 1]],
            "tick": 1_000,
        }
        copy.forge(forged, commit=False)
        copy.send([*records[1:3], records[4], records[3], *records[5:7]])
        program.wait_for("tick 7,")
        assert "Forged" not in program.output()
        assert [place[3] for place in boards(program.output())] == [1, 2, 3, 5, 6, 7]
        assert program.output().count("those between were not seen") == 1


def test_what_is_not_there_is_told_in_one_line(scene: Scene) -> None:
    away = ("--bootstrap", "127.0.0.1:1", "--topic", "x")
    for options, word in (
        (scene.options("no-such-topic"), "no-such-topic: "),
        (away, away[1]),
    ):
        done = run("board.py", *options)
        assert done.returncode == 1
        # Lines that begin with % are librdkafka's own.
        lines = [line for line in done.stderr.splitlines() if not line.startswith("%")]
        assert len(lines) == 1 and lines[0].startswith(word), done.stderr
