"""The sink holds the topic, once and whole, whatever stops it."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

from tests.consumers.scene import Document, Program, Scene, run
from tests.worker.harness import until

pytestmark = pytest.mark.waits

ROWS = (
    'select histogram, key, id, tick, epoch, epoch_ms("start"), epoch_ms("end"), mechanism, unit, rho, epsilon, delta, sd, '
    "threshold, items, windows, answer"
)
ORDER = "order by histogram, key, id, tick"


def expected(documents: list[Document]) -> list[tuple[object, ...]]:
    """The rows that snapshots make, in `ORDER`."""
    rows = []
    for s in documents:
        promise = s["guarantee"]
        items = (
            [{"label": label, "count": count} for label, count in s["items"]]
            if "items" in s
            else None
        )
        rows.append(
            (
                s["histogram"],
                s["key"],
                s["id"],
                s["tick"],
                s["epoch"],
                s["start"],
                s["end"],
                s["mechanism"],
                promise["unit"],
                promise["rho"],
                promise["epsilon"],
                promise["delta"],
                s["sd"],
                s["threshold"],
                items,
                s.get("windows", []),
            )
        )
    return sorted(rows, key=lambda row: (*map(str, row[:3]), int(row[3])))  # type: ignore[call-overload]  # a tick


def stored(database: Path) -> list[tuple[object, ...]]:
    with duckdb.connect(str(database), read_only=True) as db:
        return [row[:-1] for row in db.execute(f"{ROWS} from snapshots {ORDER}").fetchall()]


def test_it_resumes_after_a_kill_and_takes_a_snapshot_once(scene: Scene, tmp_path: Path) -> None:
    copy, records, documents = (
        scene.new_topic(partitions=2),
        scene.records["items"],
        list(scene.whole("items").values()),
    )
    database, files = tmp_path / "board.duckdb", tmp_path / "it's a board"
    arguments = (
        "--bootstrap",
        scene.site.connection.bootstrap,
        "--topic",
        copy.name,
        "--database",
        str(database),
        "--parquet",
        str(files),
    )
    copy.send(records[:30])
    with Program(tmp_path, "to_duckdb.py", *arguments) as program:
        until(
            lambda: list(files.rglob("*.parquet")) or program.process.poll() is not None,
            "it has stored something",
        )
        assert program.process.poll() is None, program.output()
    copy.forge(documents[0] | {"items": [["Forged", 1]]}, commit=False)
    copy.send([*records[20:], *records[:10]])
    done = run("to_duckdb.py", *arguments, "--until-end")
    assert done.returncode == 0, done.stderr
    assert stored(database) == expected(documents)

    (gone, *_) = files.rglob("*.parquet")
    gone.unlink()
    again = run("to_duckdb.py", *arguments, "--until-end")
    assert (again.returncode, again.stderr) == (0, "0 new snapshots\n")
    assert stored(database) == expected(documents)
    in_files = duckdb.execute(
        f"{ROWS} from read_parquet($1) {ORDER}", [str(files / "items" / "*" / "*.parquet")]
    ).fetchall()
    assert [row[:-1] for row in in_files] == expected(documents)
    assert not list(files.rglob("*.half"))
    assert {tuple(pq.read_schema(path).names) for path in files.rglob("*.parquet")} == {
        (
            "histogram",
            "id",
            "key",
            "epoch",
            "tick",
            "start",
            "end",
            "mechanism",
            "unit",
            "rho",
            "epsilon",
            "delta",
            "sd",
            "threshold",
            "items",
            "windows",
            "answer",
        )
    }


def test_a_second_truth_about_a_tick_is_refused(scene: Scene, tmp_path: Path) -> None:
    copy, records = scene.new_topic(), scene.records["items"][:5]
    database = tmp_path / "board.duckdb"
    arguments = (
        "--bootstrap",
        scene.site.connection.bootstrap,
        "--topic",
        copy.name,
        "--database",
        str(database),
        "--until-end",
    )
    copy.send(records)
    assert run("to_duckdb.py", *arguments).returncode == 0
    before = stored(database)
    first = json.loads(records[0].value() or b"")
    for forged in (
        first | {"items": [["Forged", 1]]},
        first | {"tick": 1_000, "guarantee": first["guarantee"] | {"epsilon": 0.1}},
    ):
        other = scene.new_topic()
        other.forge(forged, commit=True)
        done = run("to_duckdb.py", *arguments, "--topic", other.name)
        assert done.returncode == 1
        assert (
            "came again with other content" in done.stderr or "different guarantees" in done.stderr
        )
        assert "Traceback" not in done.stderr and "Forged" not in done.stderr
        assert stored(database) == before
    assert len(before) == 5


def test_pages_and_answers_are_stored_whole(scene: Scene, tmp_path: Path) -> None:
    database = tmp_path / "board.duckdb"
    for name in ("large", "answers"):
        done = run(
            "to_duckdb.py",
            "--bootstrap",
            scene.site.connection.bootstrap,
            "--topic",
            scene.topic(name),
            "--database",
            str(database),
            "--until-end",
        )
        assert done.returncode == 0, done.stderr
    documents = [*scene.whole("large").values(), *scene.whole("answers").values()]
    assert stored(database) == expected(documents)
    with duckdb.connect(str(database), read_only=True) as db:
        answers = db.execute(
            "select tick, answer from snapshots where histogram = 'answers' order by tick"
        ).fetchall()
    wanted = sorted(
        (s["tick"], {name: s[name] for name in ("answers", "since", "error")})
        for s in scene.whole("answers").values()
    )
    assert [(tick, json.loads(answer)) for tick, answer in answers] == wanted
