"""Large answers and the writer share one file and its memory: neither takes the history away."""

import asyncio
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from tests.dashboard.feeding import PATIENCE_S, message, reader_settings, seen
from tests.dashboard.store.making import at, opened
from tests.dashboard.store.making import store as store_all
from tests.dashboard.store.test_api import STREAM
from tests.dashboard.test_api import client as served
from tests.dashboard.test_hub import on_a_loop
from tests.worker.harness import until
from workers.dashboard.hub import Hub
from workers.dashboard.store import store as module
from workers.dashboard.store import writing
from workers.dashboard.store.store import QueryFailed, Store
from workers.dashboard.store.writing import Arrival, Database, Position, Writer
from workers.settings.settings import DashboardSettings

ITEMS = [(f"item {i}", 1_000 - i) for i in range(1_000)]
#: DuckDB's message; it was taken for a file that another process has locked.
FULL = "could not allocate block of size 256.0 KiB (122.0 MiB/122.0 MiB used)"


class Follower:
    """Writes a tick in every step, as if the topic had it; fails where it is told to."""

    written = 0
    fails: list[BaseException] = []  # noqa: RUF012
    stopped = threading.Event()

    def __init__(self, _settings: object, writer: Writer, _backlog: object) -> None:
        self._writer = writer
        self.fraction_read = None

    def steps(self) -> Iterator[None]:
        while not Follower.stopped.wait(0.005):
            if Follower.fails:
                # As after a rollback that lacked memory too.
                self._writer._db.begin()
                raise Follower.fails.pop()
            tick = Follower.written + 1
            arrival = Arrival(0, seen(message(tick, ITEMS, **at(tick))))
            self._writer.write([arrival], {("topic", 0): Position("id", tick)})
            Follower.written = tick
            yield
        while True:
            yield


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A history of 300 ticks that is written all the time, in a quarter of the memory."""
    path = tmp_path / "history.duckdb"
    with opened(path) as (_, writer):
        store_all(writer, [message(t, ITEMS, **at(t)) for t in range(1, 301)])
    monkeypatch.setattr(module, "Follower", Follower)
    monkeypatch.setattr(writing, "MEMORY", "32MB")
    Follower.written = 300
    Follower.fails = []
    Follower.stopped.clear()
    history = DashboardSettings(store=path)
    made = Store(replace(reader_settings("products"), history=history))
    made.start()
    until(lambda: Follower.written > 300, "it writes", PATIENCE_S)
    yield made
    Follower.stopped.set()
    made.close()


@pytest.mark.slow
@on_a_loop
async def test_a_piece_that_lacks_memory_is_made_again(store: Store) -> None:
    """Rows before it are sent already: a failure would break the download off."""
    failures = [duckdb.OutOfMemoryException(FULL), duckdb.OutOfMemoryException(FULL)]

    def piece(_cursor: Database) -> int:
        if failures:
            raise failures.pop()
        return 7

    assert await store.make_piece(piece) == 7
    failures += [duckdb.OutOfMemoryException(FULL)] * 100
    with pytest.raises(QueryFailed, match="too much memory"):
        await store.make_piece(piece)
    assert len(failures) == 100 - module.PIECE_TRIES


@pytest.mark.slow
@on_a_loop
async def test_a_hundred_large_requests_leave_the_history_there(store: Store) -> None:
    """Each is answered whole, or told that others are; the writer goes on meanwhile."""
    large = [
        f"/api/history?{STREAM}&format=csv",
        f"/api/history?{STREAM}&format=parquet",
        f"/api/epochs?{STREAM}&top=1000",
        f"/api/history?{STREAM}&limit=10000&" + "item=item 1&" * 90,
    ]
    states = []
    async with served(Hub(), store=store) as http:

        async def ask(query: str) -> int:
            answer = await http.get(query)
            assert await answer.read()
            states.append(dict(store.state))
            if answer.status == 503:
                error = (await answer.json())["error"]
                assert re.search("ask again in a moment|too much memory", error)
            return answer.status

        before = Follower.written
        found = await asyncio.gather(*(ask(large[i % 4]) for i in range(100)))
    assert set(found) <= {200, 503} and 200 in found
    assert all(state["state"] == "live" for state in states)
    assert Follower.written > before


@pytest.mark.slow
@on_a_loop
async def test_a_writer_without_memory_ends_the_questions_and_goes_on(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """Once it is no help that nobody asks, the file is opened again, for the true reason."""
    asked = threading.Event()

    def slow(cursor: duckdb.DuckDBPyConnection) -> None:
        asked.set()
        cursor.execute("select sum(a.range) from range(10000000) a, range(100000) b")

    question = asyncio.create_task(store.ask(slow))
    await asyncio.to_thread(asked.wait)
    Follower.fails = [
        duckdb.TransactionException(f"Failed to commit: {FULL}"),
        duckdb.OutOfMemoryException(f"Out of Memory Error: {FULL}"),
    ]
    with pytest.raises(QueryFailed, match="takes too much memory"):
        await question
    before = Follower.written
    await asyncio.to_thread(
        until, lambda: Follower.written > before + 3, "it goes on", PATIENCE_S
    )
    assert store.state == {"state": "live"}
    assert await store.ask(lambda cursor: cursor.execute("from meta").fetchall())
    tries = module.ROOM_TRIES + 1
    Follower.fails = [duckdb.OutOfMemoryException(FULL) for _ in range(tries)]
    why = "it needs more memory than it may use"
    await asyncio.to_thread(
        until, lambda: store.state.get("why") == why, "it is off", PATIENCE_S
    )
    assert "another process" not in caplog.text
