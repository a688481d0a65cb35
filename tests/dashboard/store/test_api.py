"""The history over HTTP: answers, refusals, files, and limits on many or heavy queries."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import orjson
import pytest
from aiohttp import ClientPayloadError
from jsonschema import Draft202012Validator

from tests import ROOT
from tests.dashboard.feeding import (
    GONE,
    PATIENCE_S,
    TICK_MS,
    Document,
    message,
    reader_settings,
    seen,
)
from tests.dashboard.store.making import (
    BEGIN_MS,
    at,
    at_ticks,
    iso,
    life,
    opened,
    stepped,
)
from tests.dashboard.store.making import store as store_all
from tests.dashboard.test_api import Client
from tests.dashboard.test_api import client as served
from tests.dashboard.test_hub import on_a_loop
from workers.client.changes import changes
from workers.client.schema import snapshot_schema
from workers.dashboard import api, ticks
from workers.dashboard.hub import Hub
from workers.dashboard.store import files
from workers.dashboard.store.store import FILES, THREADS, WAITING, QueryFailed, Store
from workers.dashboard.store.writing import Writer, thin
from workers.settings.settings import DashboardSettings

LIFE = life()
HOUR = 3_600_000
STREAM = "histogram=products&key=s1"
FILE = f"/api/history?{STREAM}&format=csv"
SCHEMA = json.loads((ROOT / "docs" / "history.schema.json").read_text())
SNAPSHOT = Draft202012Validator(snapshot_schema())


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("history") / "it's.duckdb"
    with opened(path) as (_, writer):
        store_all(writer, LIFE)
    return path


@asynccontextmanager
async def client(
    path: Path, memory: int = 0, documents: list[Document] = LIFE
) -> AsyncIterator[tuple[Client, Store]]:
    """A client of a dashboard whose Kafka is away; `memory` ticks are held in memory too."""
    hub = Hub()
    hub.publish([seen(document) for document in documents[len(documents) - memory :]])
    store = Store(
        replace(reader_settings("products"), history=DashboardSettings(store=path))
    )
    store.backlog.away = True
    store.start()
    try:
        async with asyncio.timeout(PATIENCE_S):
            while store.state["state"] != "waiting":
                await asyncio.sleep(0.02)
        store.reading = None  # as if the topics had been read
        async with served(hub, store=store) as found:
            yield found, store
    finally:
        await asyncio.to_thread(store.close)


def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": SCHEMA["$defs"]})


async def body(http: Client, path: str) -> Any:
    answer = await http.get(path)
    assert answer.status == 200, await answer.text()
    return await answer.json()


@pytest.mark.slow
@on_a_loop
async def test_the_past_is_answered_as_the_schema_says(file: Path) -> None:
    async with client(file) as (http, _):
        items = "item=item 0&item=none"
        found = await body(
            http, f"/api/history?{STREAM}&step=1h&{items}&from={BEGIN_MS}"
        )
        validator("history").validate(found)
        hours = stepped(LIFE, BEGIN_MS, None, HOUR)
        assert [one["end"] for one in found["entries"]] == [one["end"] for one in hours]
        assert (found["step"], found["from"], found["to"]) == (HOUR, BEGIN_MS, None)
        found = await body(http, f"/api/history?{STREAM}&limit=7")
        validator("history").validate(found)
        assert len(found["entries"]) == 7
        assert found["next"] == LIFE[6]["end"]
        found = await body(http, f"/api/epochs?{STREAM}")
        validator("epochs").validate(found)
        for epoch in found["epochs"]:
            more = ("total_items", "total", "final", "windows", "began", "end_time")
            SNAPSHOT.validate({name: epoch[name] for name in epoch if name not in more})
        for broken in (found | {"more": None}, found | {"epochs": [{}]}):
            assert not validator("epochs").is_valid(broken)
        listed = await body(http, "/api/histograms")
        assert listed["history"]["state"] in ("waiting", "reading")


def change(newer: Document, older: Document | None) -> list[list[object]]:
    """Changes in plain Python: an item that was not shown has its whole count."""
    was = {} if older is None else dict(older["items"])
    rows = [
        [label, count - was.get(label, 0), count] for label, count in newer["items"]
    ]
    return sorted(rows, key=lambda row: (-row[1], row[0]))


#: Places in `LIFE` of a tick and of the one before its window, what is asked, and the error.
WINDOWS = [
    (500, 494, "window=1m", LIFE[500]["windows"][0]["sd"], True),
    (500, 492, "window=80s", LIFE[500]["sd"] + LIFE[492]["sd"], False),
    (403, None, "window=1h", LIFE[403]["sd"], True),
    (1_829, 1_469, "window=1h", LIFE[1_829]["sd"] + LIFE[1_469]["sd"], False),
    (
        1_829,
        1_469,
        f"since={iso(LIFE[1_469]['end'])}",
        LIFE[1_829]["sd"] + LIFE[1_469]["sd"],
        False,
    ),
    (
        1_829,
        1_469,
        f"since={LIFE[1_469]['end'] + 1}",
        LIFE[1_829]["sd"] + LIFE[1_469]["sd"],
        False,
    ),
    (1_829, None, "since=2001-01-01", LIFE[1_829]["sd"], True),
]


@pytest.mark.slow
@on_a_loop
async def test_a_window_is_the_difference_of_two_ticks_with_its_own_error(
    file: Path,
) -> None:
    for memory in (0, 100):
        async with client(file, memory) as (http, _):
            for place, before, asked, sd, exact in WINDOWS:
                newer = LIFE[place]
                older = None if before is None else LIFE[before]
                which = f"tick={newer['tick']}&epoch={newer['epoch']}&id={newer['id']}"
                found = await body(http, f"/api/snapshots?{STREAM}&{which}&{asked}")
                [one] = found["snapshots"]
                rows = change(newer, older)
                assert [
                    list(row) for row in zip(one["items"], one["counts"], strict=True)
                ] == [[row[:2], row[2]] for row in rows], asked
                assert (one["sd"], one["threshold"]) == (
                    pytest.approx(sd, abs=1e-4),
                    None,
                )
                about = one["change"]
                was = dict(older["items"]) if older else {}
                new = [row[0] for row in rows if older and row[0] not in was]
                assert (about["exact"], about["new"]) == (exact, new)
                begin = (
                    older["end"] if older else newer["end"] - newer["tick"] * TICK_MS
                )
                assert (about["from"], about["tick"]) == (
                    begin,
                    older["tick"] if older else 0,
                )
                assert about["from_time"] == iso(begin) and "windows" not in one
            assert len(LIFE[500]["items"]) > len(LIFE[494]["items"]), (
                "one appeared within it"
            )
            cut = await body(
                http, f"/api/snapshots?{STREAM}&{which}&{asked}&top=2&item=item 1"
            )
            assert [row[0] for row in cut["snapshots"][0]["items"]] == ["item 1"]


def test_a_window_has_the_change_of_the_count_of_all_items() -> None:
    window = LIFE[500]["windows"][0] | {"all_items_sd": 70.5}
    newer = LIFE[500] | {"all_items": {"count": 900, "sd": 60.0}, "windows": [window]}
    for place, count, sd in ((494, 300, 70.5), (492, 300, 110.0), (None, 900, 60.0)):
        older = place and LIFE[place] | {"all_items": {"count": 600, "sd": 50.0}}
        found = changes(newer, older or None, BEGIN_MS)
        assert found["all_items"] == {"count": count, "sd": sd}
        assert not {"sums", "sum"} & set(found)
    assert "all_items" not in changes(newer, LIFE[494], BEGIN_MS)
    assert "all_items" not in changes(newer | {"all_items": "many"}, None, BEGIN_MS)


def test_a_window_has_the_changes_of_sums_in_its_own_order() -> None:
    """Nothing is said of an item that is new in it; sums of another program are left out."""
    own: Document = {
        "sum": {"from": 0, "to": 20, "step": 0.01, "sd": 80.0},
        "sd": 10.0,
        "tick": 4,
    }
    older = LIFE[494] | own | {"items": [["b", 800], ["a", 10]]}
    older |= {"sums": [[8_000.5, 10.0, 9.0, 11.0], [40.1, 4.0, 0.0, 20.0]]}
    newer = older | {"tick": 10, "items": [["b", 900], ["new", 700], ["a", 400]]}
    newer |= {
        "sums": [
            [9_000.7, 10.0, 9.0, 11.0],
            [7.0, 1.0, 0.0, 2.0],
            [1_990.4, 5.0, 4.0, 6.0],
        ]
    }
    newer["windows"] = [{"ms": 60_000, "ticks": 6, "sd": 12.0, "sum_sd": 100.0}]
    found = changes(newer, older, BEGIN_MS, items=["b", "a", "new"])
    assert [label for label, _ in found["items"]] == ["new", "a", "b"]
    [unknown, (total, mean, low, high), (other, *_)] = found["sums"]
    assert unknown == [None, None, 0.0, 20.0]
    assert (total, other) == (1_950.3, 1_000.2)
    assert (mean, found["sum"]["sd"]) == (5.00077, 100.0)
    assert low < mean < high
    for wrong in ({"sums": [[1.0]]}, {"sum": {"sd": 1.0}}, {"sums": newer["sums"][1:]}):
        assert "sums" not in changes(newer | wrong, older, BEGIN_MS)
    assert changes(newer, None, BEGIN_MS, top=1)["sums"] == [(9_000.7, 10.0, 9.0, 11.0)]


def test_errors_written_as_long_integers_are_answered() -> None:
    newer, older = (LIFE[tick] | {"sd": 2**63, "windows": []} for tick in (500, 494))
    assert orjson.loads(orjson.dumps(changes(newer, older, BEGIN_MS)))["sd"] == 2.0**64


@pytest.mark.slow
@on_a_loop
async def test_a_window_over_a_gap_or_a_generation_says_from_when_it_is(
    tmp_path: Path,
) -> None:
    """A missing tick is not zero; the beginning of a generation within an epoch is."""
    with opened(tmp_path / "history.duckdb") as (_, writer):
        store_all(writer, [*at_ticks((1, 2, 3, 6, 7)), *at_ticks((8, 9), id="b" * 32)])
        writer.note_gap("products", 0)
        store_all(writer, at_ticks((20, 21), id="c" * 32))
    async with client(tmp_path / "history.duckdb") as (http, _):
        place = f"/api/snapshots?{STREAM}&epoch=1&window=20s&tick="
        for tick, begin in ((7, at(3)["end"]), (9, at(7)["end"]), (2, at(1)["start"])):
            [one] = (await body(http, f"{place}{tick}"))["snapshots"]
            assert one["change"]["from"] == begin
        answer = await http.get(f"{place}21")
        assert answer.status == 404
        assert "at the beginning of this window" in (await answer.json())["error"]


def two_epochs(**changes: Any) -> list[Document]:
    """30 ticks and 8: 10 counts a tick of one item; the second epoch follows the first."""
    found = []
    for tick in range(1, 39):
        epoch, own = (1, tick) if tick <= 30 else (2, tick - 30)
        items = [("tea", 10 * own)] + [("cup", 500)] * (30 <= tick <= 33)
        items.sort(key=lambda item: (-item[1], item[0]))
        fields = at(tick) | {"epoch": epoch, "id": "ab"[epoch - 1] * 32}
        fields |= {"sd": 3.0, "threshold": 100.0}
        if epoch == 2:
            fields |= {"previous_id": "a" * 32} | changes
        found.append(message(own, items, **fields))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("memory", [False, True])
@on_a_loop
async def test_a_window_or_a_time_before_midnight_counts_in_both_epochs(
    tmp_path: Path, memory: bool
) -> None:
    """10 counts a tick came in every tick, midnight or not; the epoch before may have gaps."""
    documents = two_epochs(windows=[{"ms": 60_000, "ticks": 6, "sd": 4.5}])
    with opened(tmp_path / "history.duckdb") as (_, writer):
        store_all(writer, documents)
    held = 20 if memory else 0
    async with client(tmp_path / "history.duckdb", held, documents) as (http, _):
        place = f"/api/snapshots?{STREAM}&epoch=2&tick=2&"
        asked = {
            "window=60s": (at(26)["end"], 26, 4.5, True),
            "window=90s": (at(23)["end"], 23, 6.7082, False),
            f"since={at(1)['end']}": (at(1)["end"], 1, 6.7082, False),
            "since=2001-01-01": (at(1)["start"], 0, 4.2426, True),
        }
        for query, (begin, tick, sd, exact) in asked.items():
            [one] = (await body(http, place + query))["snapshots"]
            change = one["change"]
            assert (change["from"], change["tick"]) == (begin, tick), query
            assert (one["sd"], change["exact"]) == (sd, exact), query
            assert change["last"]["tick"] == 30 and not change["last"]["absent"]
            width = at(1)["end"] - at(1)["start"]
            counted = 10 * (at(32)["end"] - begin) // width
            assert dict(one["items"])["tea"] == counted, query
            # It was not shown before the last tick of the first epoch.
            assert change["new"] == ([] if tick == 0 else ["cup"])
            assert dict(one["items"])["cup"] == 1_000
        [one] = (
            await body(http, f"/api/snapshots?{STREAM}&epoch=2&tick=2&window=20s")
        )["snapshots"]
        assert "last" not in one["change"], "since midnight exactly"
        assert one["change"]["from"] == at(30)["end"]


@pytest.mark.slow
@on_a_loop
async def test_a_window_ends_at_midnight_where_the_epoch_before_is_not_known(
    tmp_path: Path,
) -> None:
    """Another generation before it, or the last tick of the epoch before is not stored."""
    other = two_epochs(previous_id=GONE)
    lost = [one for one in two_epochs() if (one["epoch"], one["tick"]) != (1, 30)]
    for number, documents in enumerate((other, lost)):
        path = tmp_path / f"{number}.duckdb"
        with opened(path) as (_, writer):
            store_all(writer, documents)
        async with client(path) as (http, _):
            place = f"/api/snapshots?{STREAM}&epoch=2&tick=2&window=60s"
            [one] = (await body(http, place))["snapshots"]
            assert one["change"]["from"] == at(30)["end"]
            assert dict(one["items"])["tea"] == 20


REFUSED = [
    ("history?histogram=nothing&key=s1", 404, "no such histogram"),
    ("history?histogram=maximum&key=s1", 404, "no such key"),
    ("history?histogram=products&key=s2", 404, "no such key"),
    (f"history?{STREAM}&from=5&to=5", 400, "to: larger than from"),
    (f"history?{STREAM}&from=-5", 400, "from: a whole number"),
    (f"history?{STREAM}&step=", 400, "step: a whole number of ms"),
    (f"history?{STREAM}&step=0", 400, "step: a whole number of ms"),
    (f"history?{STREAM}&step=1w", 400, "step: a whole number of ms"),
    (f"history?{STREAM}&step=1h&step=1h", 400, "step: only one"),
    (f"history?{STREAM}&limit=10001", 400, "to 10,000"),
    (f"history?{STREAM}&format=xlsx", 400, "json, csv or parquet"),
    (f"history?{STREAM}&" + "item=a&" * 101, 400, "at most 100"),
    (f"history?{STREAM}&top=3", 400, "top: unknown"),
    ("epochs?histogram=products&key=s2", 404, "no such key"),
    (f"epochs?{STREAM}&limit=1001", 400, "to 1,000"),
    (f"epochs?{STREAM}&step=1h", 400, "step: unknown"),
    (f"snapshots?{STREAM}&at=1&tick=1&epoch=1", 400, "one of the two"),
    (f"snapshots?{STREAM}&tick=1", 400, "epoch is missing"),
    (f"snapshots?{STREAM}&epoch=1", 400, "only with tick"),
    (f"snapshots?{STREAM}&at=1&after=1", 400, "after: unknown"),
    (f"snapshots?{STREAM}&at=1&window=1h&since=1", 400, "window or since"),
    (
        f"snapshots?{STREAM}&at={LIFE[9]['end']}&window=-1h",
        400,
        "window: a whole number",
    ),
    (
        f"snapshots?{STREAM}&at={LIFE[9]['end']}&since={LIFE[9]['end']}",
        400,
        "since: before",
    ),
    (
        f"snapshots?{STREAM}&at={LIFE[9]['end']}&since=2026-13-01",
        400,
        "since: a whole number",
    ),
    (f"snapshots?{STREAM}&window=1h", 404, "no such key"),
    ("snapshots?histogram=products&key=s2&at=1", 404, "no such key"),
]


async def refused(http: Client, path: str, status: int) -> str:
    """Return the reason for which a question is not answered."""
    answer = await http.get(path)
    assert answer.status == status, path
    assert ("Retry-After" in answer.headers) == (status == 503)
    return str((await answer.json())["error"])


@on_a_loop
async def test_what_cannot_be_answered_is_refused_with_a_reason(file: Path) -> None:
    async with client(file) as (http, _):
        for path, status, word in REFUSED:
            assert word in await refused(http, f"/api/{path}", status)


@pytest.mark.slow
@pytest.mark.parametrize("memory", [0, 120])
@on_a_loop
async def test_an_old_link_shows_its_tick_or_says_that_it_is_not_there(
    file: Path, memory: int
) -> None:
    async with client(file, memory=memory) as (http, _):
        query = f"/api/snapshots?{STREAM}"
        for place in (0, 900, len(LIFE) - 120, len(LIFE) - 1):
            one = LIFE[place] | {"end_time": iso(LIFE[place]["end"])}
            for which in (
                f"at={one['end']}",
                f"epoch={one['epoch']}&tick={one['tick']}",
            ):
                found = await body(http, f"{query}&{which}&id={one['id']}")
                assert found == {"snapshots": [one], "more": False}
        found = await body(http, f"{query}&at={LIFE[-1]['end']}&top=2")
        cut = {"items": LIFE[-1]["items"][:2], "total_items": 6}
        assert found["snapshots"] == [
            LIFE[-1] | cut | {"end_time": iso(LIFE[-1]["end"])}
        ]
        answer = await http.get(f"{query}&at={LIFE[-1]['end'] + 1}")
        assert answer.status == 404
        last = {name: LIFE[-1][name] for name in ("id", "epoch", "tick", "end")}
        nearest = {"before": last, "after": None}
        missing = {"error": "this tick is not stored", "nearest": nearest}
        assert await answer.json() == missing


@on_a_loop
async def test_a_file_that_would_be_too_large_is_refused(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "ROWS_MAX", 1_000)

    async with client(file) as (http, _):
        answer = await http.get(FILE)
        assert answer.status == 400
        rows = sum(len(document["items"]) for document in LIFE)
        assert f"{rows:,} rows: at most 1,000" in (await answer.json())["error"]


@on_a_loop
async def test_a_file_that_was_cut_off_does_not_look_whole(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing:
        def __init__(self) -> None:
            self.parts = [b"histogram,key\n"]

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def read(self, _size: int) -> bytes:
            if not self.parts:
                raise OSError("the disk has failed")
            return self.parts.pop()

    monkeypatch.setattr(files, "_opened_and_unlinked", lambda _: Failing())

    async with client(file) as (http, store):
        answer = await http.get(FILE)
        with pytest.raises(ClientPayloadError):
            await answer.read()
        assert store._sending == 0


@pytest.mark.parametrize(("piece", "status"), [(2, 503), (4, 200)])
@on_a_loop
async def test_a_file_whose_ticks_go_meanwhile_does_not_look_whole(
    file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    piece: int,
    status: int,
) -> None:
    """Retention removes ticks before a piece; before the first one it is a 503."""
    copy = tmp_path / "copy.duckdb"
    copy.write_bytes(file.read_bytes())
    monkeypatch.setattr(files, "PIECE_ROWS", {"csv": 500, "parquet": 500})
    make = Store.make_piece
    made = 0
    async with client(copy) as (http, store):

        async def slowly(self: Store, query: Any) -> Any:
            nonlocal made
            made += 1
            if made == piece:
                database = store._database
                assert database is not None
                ends = {"products": LIFE[-1]["end"]}
                await asyncio.to_thread(thin, database, ends, {"ticks": TICK_MS})
            return await make(self, query)

        monkeypatch.setattr(Store, "make_piece", slowly)
        answer = await http.get(FILE)
        assert answer.status == status
        if status == 503:
            assert "removed meanwhile" in (await answer.json())["error"]
        else:
            with pytest.raises(ClientPayloadError):
                await answer.read()


@on_a_loop
async def test_few_files_are_made_at_a_time_and_questions_wait_in_a_line_that_ends(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client(file) as (http, store):
        going_on = asyncio.Event()
        loop = asyncio.get_running_loop()

        def slow(_cursor: object) -> bytes:
            asyncio.run_coroutine_threadsafe(going_on.wait(), loop).result(PATIENCE_S)
            return b"{}"

        waiting = [
            asyncio.create_task(store.ask(slow)) for _ in range(THREADS + WAITING)
        ]
        await asyncio.sleep(0)
        answer = await http.get(f"/api/history?{STREAM}")
        assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
        assert "questions wait" in (await answer.json())["error"]
        assert (await http.get("/api/histograms")).status == 200
        going_on.set()
        assert await asyncio.gather(*waiting) == [b"{}"] * len(waiting)
        async with store.sending(), store.sending():
            answer = await http.get(FILE)
            assert answer.status == 503
            assert f"{FILES} files" in (await answer.json())["error"]
        assert (await http.get(FILE)).status == 200


@pytest.mark.slow
@on_a_loop
async def test_a_question_that_takes_too_long_or_too_much_is_ended(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client(file) as (_, store):
        long = "select sum(a.range * b.range) from range(10000000) a, range(100000) b"
        small = "set max_temp_directory_size = '1MB'"
        large = "select list(range order by range % 7) from range(100000000)"
        monkeypatch.setattr("workers.dashboard.store.store.ANSWER_S", 0.2)
        with pytest.raises(QueryFailed, match="longer than 0 s"):
            await store.ask(lambda cursor: cursor.execute(long))
        monkeypatch.setattr("workers.dashboard.store.store.ANSWER_S", PATIENCE_S)
        with pytest.raises(QueryFailed, match="too much memory"):
            await store.ask(lambda cursor: cursor.execute(small).execute(large))
        assert (
            await store.ask(
                lambda cursor: len(cursor.execute("from streams").fetchall())
            )
            == 1
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["history", "epochs"])
@on_a_loop
async def test_a_stream_that_is_only_in_memory_is_not_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """It is awaited for a moment: another consumer fills the history."""
    monkeypatch.setattr(ticks, "READ_WAIT_S", 0.1)
    async with client(tmp_path / "empty.duckdb", memory=5) as (http, store):
        asked = f"/api/{name}?{STREAM}&item=tea"
        for address in (asked, f"{asked}&format=csv"):
            error = await refused(http, address, 503)
            assert error == "the history does not have this new key yet: 's1'"
        unknown = f"/api/{name}?histogram=products&key=s9"
        assert "no such key: 's9' of products" in await refused(http, unknown, 404)
        monkeypatch.setattr(ticks, "READ_WAIT_S", PATIENCE_S)
        answers = [
            asyncio.create_task(http.get(one)) for one in (asked, f"{asked}&format=csv")
        ]
        await asyncio.sleep(0.5)
        assert not any(answer.done() for answer in answers)
        database = store._database
        assert database is not None
        await asyncio.to_thread(store_all, Writer(database), LIFE[-5:])
        for answer in answers:
            assert (await answer).status == 200
        store.reading = 0.25
        assert "25 % of the topics so far" in await refused(http, unknown, 503)


@on_a_loop
async def test_a_range_that_is_not_read_yet_is_not_empty(file: Path) -> None:
    async with client(file) as (http, store):
        later = f"{STREAM}&from={LIFE[-1]['end']}"
        addresses = [f"/api/{name}?{later}" for name in ("history", "epochs")]
        addresses += [
            f"{one}&format={kind}" for one in addresses for kind in ("csv", "parquet")
        ]
        store.reading = 0.5
        for address in addresses:
            assert "50 % of the topics so far" in await refused(http, address, 503)
        earlier = await body(http, f"/api/history?{STREAM}&to={LIFE[5]['end']}")
        assert (earlier["complete"], len(earlier["entries"])) == (True, 6)
        store.reading = None
        for address in addresses:
            assert (await http.get(address)).status == 200


@on_a_loop
async def test_a_window_that_begins_in_what_is_not_read_yet_is_not_made_longer(
    tmp_path: Path,
) -> None:
    series = [one for one in LIFE if one["id"] == LIFE[-1]["id"]]
    with opened(tmp_path / "part.duckdb") as (_, writer):
        store_all(writer, series[:100])
    async with client(tmp_path / "part.duckdb", memory=3) as (http, store):
        begin = series[300]["end"]
        window = f"/api/snapshots?{STREAM}&since={begin}"
        tick = f"/api/snapshots?{STREAM}&at={begin}"
        store.reading = 0.5
        for address in (window, tick):
            assert "50 % of the topics so far" in await refused(http, address, 503)
        recent = await body(http, f"/api/snapshots?{STREAM}&since={series[-3]['end']}")
        assert recent["snapshots"][0]["change"]["from"] == series[-3]["end"]
        store.reading = None
        [found] = (await body(http, window))["snapshots"]
        assert found["change"]["from"] == series[99]["end"], "what is kept before it"
        assert (await http.get(tick)).status == 404


@pytest.mark.slow
@on_a_loop
async def test_viewers_of_one_tick_share_the_work_of_its_changes(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every viewer of a stream asks for the same window at the same time."""
    made: list[int] = []

    def counted(*given: Any, **options: Any) -> dict[str, Any]:
        made.append(1)
        return changes(*given, **options)

    monkeypatch.setattr(api, "changes", counted)
    async with client(file) as (http, _):
        asked = f"/api/snapshots?{STREAM}&at={LIFE[500]['end']}&window=1m"
        found = await asyncio.gather(*(body(http, asked) for _ in range(30)))
        assert all(one == found[0] for one in found)
        assert len(made) == 1
        for top in range(api.CHANGES_KEPT):
            await body(http, f"{asked}&top={top + 1}")
        await body(http, asked)
        assert len(made) == api.CHANGES_KEPT + 2, "only the last of them are kept"
