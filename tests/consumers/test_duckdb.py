"""The sink holds the topic, once and whole, whatever stops it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from tests.consumers.scene import EXAMPLES, Document, Program, Scene, run
from tests.dashboard.feeding import message
from tests.worker.harness import PATIENCE_S, until

pytestmark = pytest.mark.waits

ROWS = (
    'select histogram, key, id, tick, epoch, epoch_ms("start"), epoch_ms("end"), mechanism, unit, rho, epsilon, delta, sd, '
    "threshold, items, sum, all_items, windows, answer"
)
ITEM = ("label", "count", "sum", "mean", "low", "high")
ORDER = "order by histogram, key, id, tick"


def expected(documents: list[Document]) -> list[tuple[object, ...]]:
    rows = []
    for s in documents:
        items = None
        if "items" in s:
            sums = s.get("sums", [(None,) * 4] * len(s["items"]))
            pairs = zip(s["items"], sums, strict=True)
            items = [dict(zip(ITEM, (*item, *of), strict=True)) for item, of in pairs]
        fields = (
            "histogram",
            "key",
            "id",
            "tick",
            "epoch",
            "start",
            "end",
            "mechanism",
        )
        promise = [s["guarantee"][name] for name in ("unit", "rho", "epsilon", "delta")]
        windows = [
            dict.fromkeys(("sum_sd", "all_items_sd")) | one
            for one in s.get("windows", [])
        ]
        noise = (
            s["sd"],
            s["threshold"],
            items,
            s.get("sum"),
            s.get("all_items"),
            windows,
        )
        rows.append((*(s[name] for name in fields), *promise, *noise))
    return sorted(rows, key=lambda row: (*map(str, row[:3]), int(row[3])))


def test_sums_and_totals_are_stored_with_the_items_of_all_pages_and_parts(
    tmp_path: Path,
) -> None:
    common = message(
        3,
        parts=2,
        sum={"from": 0, "to": 5, "step": 0.5, "sd": 6.5},
        windows=[{"ms": 10, "ticks": 1, "sd": 1.5, "sum_sd": 4.5, "all_items_sd": 7.5}],
        all_items={"count": 12, "sd": 3.5},
    )
    cut: list[Any] = [
        (1, 1, 2, [["b", 3]], [[9.5, 3.2, 2.0, 5.0]]),
        (1, 2, 2, [["c", 1]], [[2.0, None, 0.0, 5.0]]),
        (2, 1, 1, [["a", 7]], [[8.5, 1.2, 0.5, 2.0]]),
    ]
    records = [
        common
        | {"part": part, "page": page, "pages": pages, "items": items, "sums": sums}
        for part, page, pages, items, sums in cut
    ]
    whole = common | {"items": [["a", 7], ["b", 3], ["c", 1]]}
    whole["sums"] = [cut[2][4][0], cut[0][4][0], cut[1][4][0]]
    fill = f"""
import sys, json
from pathlib import Path
sys.path.insert(0, {str(EXAMPLES)!r})
from reading import Record
from to_duckdb import Sink
sink = Sink(Path("board.duckdb"), "t", None)
values = [json.dumps(one).encode() for one in json.loads(sys.stdin.read())]
assert sink.take([Record(0, place, value) for place, value in enumerate(values)]) == 1
sink.close()
"""
    subprocess.run(
        [sys.executable, "-c", fill],
        timeout=PATIENCE_S,
        check=True,
        input=json.dumps(records),
        cwd=tmp_path,
        text=True,
    )
    assert stored(tmp_path / "board.duckdb") == expected([whole])


def stored(database: Path) -> list[tuple[object, ...]]:
    with duckdb.connect(str(database), read_only=True) as db:
        return [
            row[:-1] for row in db.execute(f"{ROWS} from snapshots {ORDER}").fetchall()
        ]


def test_it_resumes_after_a_kill_and_takes_a_snapshot_once(
    scene: Scene, tmp_path: Path
) -> None:
    copy = scene.new_topic(partitions=2)
    records = scene.records["items"]
    documents = list(scene.whole("items").values())
    database = tmp_path / "board.duckdb"
    files = tmp_path / "it's a board"
    places = ("--database", str(database), "--parquet", str(files))
    arguments = scene.options(copy.name, *places)
    copy.send(records[:30])
    with Program(tmp_path, "to_duckdb.py", *arguments) as program:
        ended = program.process.poll
        until(
            lambda: list(files.rglob("*.parquet")) or ended() is not None,
            "something is stored",
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
    query = f"{ROWS} from read_parquet($1) {ORDER}"
    in_files = duckdb.execute(
        query, [str(files / "items" / "*" / "*.parquet")]
    ).fetchall()
    assert [row[:-1] for row in in_files] == expected(documents)
    assert not list(files.rglob("*.half"))
    columns = "histogram id key epoch tick start end mechanism unit rho epsilon delta"
    columns += " sd threshold items sum all_items windows window previous_id answer"
    for path in files.rglob("*.parquet"):
        names = pq.read_schema(path).names
        assert names == columns.split()


def test_a_second_truth_about_a_tick_is_refused(scene: Scene, tmp_path: Path) -> None:
    copy = scene.new_topic()
    records = scene.records["items"][:5]
    database = tmp_path / "board.duckdb"
    arguments = scene.options(copy.name, "--database", str(database), "--until-end")
    copy.send(records)
    assert run("to_duckdb.py", *arguments).returncode == 0
    before = stored(database)
    first = json.loads(records[0].value() or b"")
    cheaper = first["guarantee"] | {"epsilon": 0.1}
    for changes in ({"items": [["Forged", 1]]}, {"tick": 1_000, "guarantee": cheaper}):
        other = scene.new_topic()
        other.forge(first | changes, commit=True)
        done = run("to_duckdb.py", *arguments, "--topic", other.name)
        assert done.returncode == 1
        words = ("came again with other content", "different guarantees")
        assert any(text in done.stderr for text in words)
        assert "Traceback" not in done.stderr and "Forged" not in done.stderr
        assert stored(database) == before
    assert len(before) == 5


def test_pages_and_answers_are_stored_whole(scene: Scene, tmp_path: Path) -> None:
    database = tmp_path / "board.duckdb"
    for name in ("large", "answers"):
        options = scene.options(
            scene.topic(name), "--database", str(database), "--until-end"
        )
        done = run("to_duckdb.py", *options)
        assert done.returncode == 0, done.stderr
    documents = [*scene.whole("large").values(), *scene.whole("answers").values()]
    assert stored(database) == expected(documents)
    with duckdb.connect(str(database), read_only=True) as db:
        query = "select tick, answer from snapshots where histogram = 'answers' order by tick"
        answers = db.execute(query).fetchall()
    wanted = sorted(scene.whole("answers").values(), key=lambda s: s["tick"])
    assert [tick for tick, _ in answers] == [s["tick"] for s in wanted]
    for (_, answer), s in zip(answers, wanted, strict=True):
        assert json.loads(answer) == {
            name: s[name] for name in ("answers", "since", "error")
        }
