"""The sink holds the topic, once and whole, whatever stops it."""

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
    rows = []
    for s in documents:
        items = None
        if "items" in s:
            items = [{"label": label, "count": count} for label, count in s["items"]]
        fields = ("histogram", "key", "id", "tick", "epoch", "start", "end", "mechanism")
        promise = [s["guarantee"][name] for name in ("unit", "rho", "epsilon", "delta")]
        noise = (s["sd"], s["threshold"], items, s.get("windows", []))
        rows.append((*(s[name] for name in fields), *promise, *noise))
    return sorted(rows, key=lambda row: (*map(str, row[:3]), int(row[3])))


def stored(database: Path) -> list[tuple[object, ...]]:
    with duckdb.connect(str(database), read_only=True) as db:
        return [row[:-1] for row in db.execute(f"{ROWS} from snapshots {ORDER}").fetchall()]


def test_it_resumes_after_a_kill_and_takes_a_snapshot_once(scene: Scene, tmp_path: Path) -> None:
    copy, records = scene.new_topic(partitions=2), scene.records["items"]
    documents = list(scene.whole("items").values())
    database, files = tmp_path / "board.duckdb", tmp_path / "it's a board"
    places = ("--database", str(database), "--parquet", str(files))
    arguments = scene.options(copy.name, *places)
    copy.send(records[:30])
    with Program(tmp_path, "to_duckdb.py", *arguments) as program:
        ended = program.process.poll
        until(lambda: list(files.rglob("*.parquet")) or ended() is not None, "something is stored")
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
    in_files = duckdb.execute(query, [str(files / "items" / "*" / "*.parquet")]).fetchall()
    assert [row[:-1] for row in in_files] == expected(documents)
    assert not list(files.rglob("*.half"))
    columns = "histogram id key epoch tick start end mechanism unit rho epsilon delta"
    for path in files.rglob("*.parquet"):
        names = pq.read_schema(path).names
        assert names == f"{columns} sd threshold items windows answer".split()


def test_a_second_truth_about_a_tick_is_refused(scene: Scene, tmp_path: Path) -> None:
    copy, records = scene.new_topic(), scene.records["items"][:5]
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
        options = scene.options(scene.topic(name), "--database", str(database), "--until-end")
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
        assert json.loads(answer) == {name: s[name] for name in ("answers", "since", "error")}
