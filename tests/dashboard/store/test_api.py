"""The past over HTTP: what is asked and refused, files, and that neither many nor heavy questions stop anything else."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pytest
from aiohttp import ClientPayloadError
from aiohttp.test_utils import TestClient, TestServer
from aiohttp.web import Application, Request
from jsonschema import Draft202012Validator

from tests import ROOT
from tests.dashboard.feeding import PATIENCE_S
from tests.dashboard.store.making import BEGIN_MS, life, opened, seen, stepped
from tests.dashboard.store.making import store as store_all
from workers.dashboard import api
from workers.dashboard.api import application
from workers.dashboard.hub import Hub
from workers.dashboard.store import following, queries
from workers.dashboard.store.store import FILES, THREADS, WAITING, QueryFailed, Store
from workers.kafka.clients import Connection

Client = TestClient[Request, Application]
LIFE = life()
TOKEN = "correct-horse-battery"
HOUR = 3_600_000
SCHEMA = json.loads((ROOT / "docs" / "history.schema.json").read_text())
SNAPSHOT = Draft202012Validator(json.loads((ROOT / "docs" / "snapshot.schema.json").read_text()))


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker is away, and is not waited for at the end."""
    monkeypatch.setattr(following, "ANSWER_S", 0.2)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A history that was filled before."""
    path = tmp_path_factory.mktemp("history") / "it's.duckdb"
    with opened(path) as (_, writer):
        store_all(writer, LIFE)
    return path


@asynccontextmanager
async def client(
    path: Path, token: str | None = None, memory: int = 0
) -> AsyncIterator[tuple[Client, Store]]:
    """A client of a dashboard whose Kafka is away; `memory` ticks are held in memory too."""
    hub = Hub()
    hub.publish([seen(document) for document in LIFE[len(LIFE) - memory :]])
    # A broker that is away.
    store = Store(Connection("127.0.0.1:1"), {"orders.products": "products"}, path=path, keep_ms={})
    app = application(
        hub,
        [("products", 64), ("maximum", None)],
        name="orders",
        host="127.0.0.1",
        token=token,
        store=store,
    )
    store.start()
    try:
        async with asyncio.timeout(PATIENCE_S):
            while store.state["state"] == "off":
                await asyncio.sleep(0.02)
        store.reading = None  # as if the topics had been read
        async with TestClient(TestServer(app)) as found:
            yield found, store
    finally:
        await asyncio.to_thread(store.close)


def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": SCHEMA["$defs"]})


def running(path: Path, ask: Any, **how: Any) -> None:
    """Runs a coroutine function with a client and its store."""

    async def run() -> None:
        async with client(path, **how) as (http, store):
            await ask(http, store)

    asyncio.run(run())


async def body(http: Client, path: str) -> Any:
    answer = await http.get(path)
    assert answer.status == 200, await answer.text()
    return await answer.json()


@pytest.mark.slow
def test_the_past_is_answered_as_the_schema_says(file: Path) -> None:
    async def ask(http: Client, _store: Store) -> None:
        query = "histogram=products&key=s1"
        found = await body(
            http, f"/api/history?{query}&step=1h&item=item 0&item=none&from={BEGIN_MS}"
        )
        validator("history").validate(found)
        assert [one["end"] for one in found["entries"]] == [
            one["end"] for one in stepped(LIFE, BEGIN_MS, None, HOUR)
        ]
        assert (found["step"], found["from"], found["to"]) == (HOUR, BEGIN_MS, None)
        found = await body(http, f"/api/history?{query}&limit=7")
        validator("history").validate(found)
        assert len(found["entries"]) == 7
        assert found["next"] == LIFE[6]["end"]
        found = await body(http, f"/api/epochs?{query}")
        validator("epochs").validate(found)
        for epoch in found["epochs"]:
            SNAPSHOT.validate(
                {
                    name: epoch[name]
                    for name in epoch
                    if name not in ("total_items", "total", "final", "windows")
                }
            )
        for broken in (found | {"more": None}, found | {"epochs": [{}]}):
            assert not validator("epochs").is_valid(broken)
        listed = await body(http, "/api/histograms")
        assert listed["history"]["state"] in ("waiting", "reading")

    running(file, ask)


REFUSED = [
    ("history?key=s1", 400, "histogram is missing"),
    ("history?histogram=products", 400, "key is missing"),
    ("history?histogram=nothing&key=s1", 404, "no such histogram"),
    ("history?histogram=maximum&key=s1", 404, "no such key"),
    ("history?histogram=products&key=s2", 404, "no such key"),
    ("history?histogram=products&key=s1&from=5&to=5", 400, "to: larger than from"),
    ("history?histogram=products&key=s1&from=-5", 400, "from: a whole number"),
    ("history?histogram=products&key=s1&step=", 400, "step: a whole number of ms"),
    ("history?histogram=products&key=s1&step=0", 400, "step: a whole number of ms"),
    ("history?histogram=products&key=s1&step=1w", 400, "step: a whole number of ms"),
    ("history?histogram=products&key=s1&step=1h&step=1h", 400, "step: only one"),
    ("history?histogram=products&key=s1&limit=10001", 400, "to 10,000"),
    ("history?histogram=products&key=s1&format=xlsx", 400, "json, csv or parquet"),
    ("history?histogram=products&key=s1&" + "item=a&" * 101, 400, "at most 100"),
    ("history?histogram=products&key=s1&top=3", 400, "top: unknown"),
    ("epochs?histogram=products&key=s2", 404, "no such key"),
    ("epochs?histogram=products&key=s1&limit=1001", 400, "to 1,000"),
    ("epochs?histogram=products&key=s1&step=1h", 400, "step: unknown"),
    ("snapshots?histogram=products&key=s1&at=1&tick=1&epoch=1", 400, "one of the two"),
    ("snapshots?histogram=products&key=s1&tick=1", 400, "epoch is missing"),
    ("snapshots?histogram=products&key=s1&epoch=1", 400, "only with tick"),
    ("snapshots?histogram=products&key=s1&at=1&after=1", 400, "after: unknown"),
    ("snapshots?histogram=products&key=s2&at=1", 404, "no such key"),
    ("snapshots?histogram=nothing&key=s1&at=1", 404, "no such histogram"),
]


def test_what_cannot_be_answered_is_refused_with_a_reason(file: Path) -> None:
    async def ask(http: Client, _store: Store) -> None:
        for path, status, word in REFUSED:
            answer = await http.get(f"/api/{path}")
            assert answer.status == status, path
            assert word in (await answer.json())["error"]

    running(file, ask)


@pytest.mark.slow
@pytest.mark.parametrize("memory", [0, 120])
def test_an_old_link_shows_its_tick_or_says_that_it_is_not_there(file: Path, memory: int) -> None:
    async def ask(http: Client, _store: Store) -> None:
        query = "/api/snapshots?histogram=products&key=s1"
        for place in (0, 900, len(LIFE) - 120, len(LIFE) - 1):
            for which in (
                f"at={LIFE[place]['end']}",
                f"epoch={LIFE[place]['epoch']}&tick={LIFE[place]['tick']}",
            ):
                found = await body(http, f"{query}&{which}&id={LIFE[place]['id']}")
                assert found == {"snapshots": [LIFE[place]], "more": False}
        found = await body(http, f"{query}&at={LIFE[-1]['end']}&top=2")
        assert found["snapshots"] == [LIFE[-1] | {"items": LIFE[-1]["items"][:2], "total_items": 6}]
        answer = await http.get(f"{query}&at={LIFE[-1]['end'] + 1}")
        assert answer.status == 404
        last = {name: LIFE[-1][name] for name in ("id", "epoch", "tick", "end")}
        assert (await answer.json()) == {
            "error": "this tick is not stored",
            "nearest": {"before": last, "after": None},
        }

    running(file, ask, memory=memory)


def test_a_file_holds_what_was_on_the_topic(file: Path, tmp_path: Path) -> None:
    async def ask(http: Client, _store: Store) -> None:
        query = "histogram=products&key=s1"
        for asked, documents, labels in (
            (f"history?{query}&step=1h", stepped(LIFE, None, None, HOUR), None),
            (
                f"history?{query}&to={LIFE[9]['end']}&item=item 0&item=none",
                LIFE[:10],
                ("item 0", "none"),
            ),
            (f"epochs?{query}", [LIFE[place] for place in (399, 999, 1129, -1)], None),
        ):
            wanted = [
                (document["id"], document["tick"], document["end"], label, count, document["sd"])
                for document in documents
                for label, count in (
                    document["items"]
                    if labels is None
                    else [(label, dict(document["items"]).get(label)) for label in labels]
                )
            ]
            answer = await http.get(f"/api/{asked}&format=csv")
            content = await answer.read()
            assert int(answer.headers["Content-Length"]) == len(content)
            assert answer.content_type == "text/csv"
            rows = list(csv.DictReader(io.StringIO(content.decode())))
            found = [
                (
                    row["id"],
                    int(row["tick"]),
                    int(row["end"]),
                    row["item"],
                    int(row["count"]) if row["count"] else None,
                    float(row["sd"]),
                )
                for row in rows
            ]
            assert found == wanted
            assert {row["complete"] for row in rows} == {"true"}
            windows = {
                orjson.dumps({"windows": document["windows"]}).decode()
                for document in documents
                if "windows" in document
            }
            assert {row["rest"] for row in rows} - {""} == windows
            answer = await http.get(f"/api/{asked}&format=parquet")
            (tmp_path / "x.parquet").write_bytes(await answer.read())
            assert answer.headers["Content-Disposition"].startswith("attachment")
            assert (
                duckdb.execute(
                    'select id, tick, "end", item, count, sd from read_parquet(?)',
                    [str(tmp_path / "x.parquet")],
                ).fetchall()
                == wanted
            )
        assert (await http.head(f"/api/history?{query}&format=csv")).status == 200
        assert [path.name for path in file.parent.iterdir() if "file-" in path.name] == []

    running(file, ask)


def test_a_file_that_would_be_too_large_is_refused(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "ROWS", 1_000)

    async def ask(http: Client, _store: Store) -> None:
        answer = await http.get("/api/history?histogram=products&key=s1&format=csv")
        assert answer.status == 400
        rows = sum(len(document["items"]) for document in LIFE)
        assert f"{rows:,} rows: at most 1,000" in (await answer.json())["error"]

    running(file, ask)


def test_a_file_that_was_cut_off_does_not_look_whole(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing:
        """A file whose second part cannot be read."""

        def __init__(self) -> None:
            self.parts = [b"histogram,key\n"]

        def seek(self, _place: int, _whence: int = 0) -> int:
            return 10_000

        def read(self, _size: int) -> bytes:
            if not self.parts:
                raise OSError("the disk has failed")
            return self.parts.pop()

        def close(self) -> None:
            pass

    monkeypatch.setattr(api, "history_file", lambda *_: Failing())

    async def ask(http: Client, store: Store) -> None:
        answer = await http.get("/api/history?histogram=products&key=s1&format=csv")
        with pytest.raises(ClientPayloadError):
            await answer.read()
        assert store._sending == 0

    running(file, ask)


def test_few_files_are_made_at_a_time_and_questions_wait_in_a_line_that_ends(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(http: Client, store: Store) -> None:
        going_on = asyncio.Event()
        loop = asyncio.get_running_loop()

        def slow(_cursor: object) -> bytes:
            asyncio.run_coroutine_threadsafe(going_on.wait(), loop).result(PATIENCE_S)
            return b"{}"

        waiting = [asyncio.create_task(store.ask(slow)) for _ in range(THREADS + WAITING)]
        await asyncio.sleep(0)
        answer = await http.get("/api/history?histogram=products&key=s1")
        assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
        assert "questions wait" in (await answer.json())["error"]
        assert (await http.get("/api/histograms")).status == 200
        going_on.set()
        assert await asyncio.gather(*waiting) == [b"{}"] * len(waiting)
        async with store.make_file(lambda _: io.BytesIO()), store.make_file(lambda _: io.BytesIO()):
            answer = await http.get("/api/history?histogram=products&key=s1&format=csv")
            assert answer.status == 503
            assert f"{FILES} files" in (await answer.json())["error"]
        assert (await http.get("/api/history?histogram=products&key=s1&format=csv")).status == 200

    running(file, ask)


def test_a_question_that_takes_too_long_or_too_much_is_ended(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(_http: Client, store: Store) -> None:
        monkeypatch.setattr("workers.dashboard.store.store.ANSWER_S", 0.2)
        with pytest.raises(QueryFailed, match="longer than 0 s"):
            await store.ask(
                lambda cursor: cursor.execute(
                    "select sum(a.range * b.range) from range(10000000) a, range(100000) b"
                )
            )
        monkeypatch.setattr("workers.dashboard.store.store.ANSWER_S", PATIENCE_S)
        with pytest.raises(QueryFailed, match="too much memory"):
            await store.ask(
                lambda cursor: cursor.execute("set max_temp_directory_size = '1MB'").execute(
                    "select list(range order by range % 7) from range(100000000)"
                )
            )
        assert await store.ask(lambda cursor: len(cursor.execute("from streams").fetchall())) == 1

    running(file, ask)


def test_with_a_token_nothing_is_told_without_it(file: Path) -> None:
    async def ask(http: Client, _store: Store) -> None:
        for path in (
            "history?histogram=products&key=s1",
            "epochs?histogram=products&key=s1&format=csv",
        ):
            answer = await http.get(f"/api/{path}")
            assert answer.status == 401
            assert b"item" not in await answer.read()
            answer = await http.get(f"/api/{path}", headers={"Authorization": f"Bearer {TOKEN}"})
            assert answer.status == 200
            assert answer.headers["Cache-Control"] == "no-store"
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            assert (await http.post(f"/api/{path}")).status == 405

    running(file, ask, token=TOKEN)
