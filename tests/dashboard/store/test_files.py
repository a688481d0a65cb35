"""A file of the dashboard has the rows of the topic, as exports and the client have them."""

import gzip
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.commands.export.outputs import Rows, expected, exported, reading, rows_of
from tests.dashboard.feeding import (
    GONE,
    PATIENCE_S,
    Document,
    message,
    numbers,
    seen,
    sliding,
)
from tests.dashboard.store.making import at, iso, life, opened, stepped
from tests.dashboard.store.making import store as store_all
from tests.dashboard.store.test_api import LIFE, STREAM, client
from tests.dashboard.test_api import Client
from tests.dashboard.test_hub import on_a_loop
from tests.worker.harness import until
from workers.client import Tables
from workers.client.reading import typed
from workers.commands.export.files import Files
from workers.commands.export.output import Selection, State
from workers.dashboard.store import files
from workers.dashboard.store.writing import compact

HOUR = 3_600_000
LABELS = ["tea", "", "a\x00b", 'q"u,o', "new\nline", "=1+1", "é😀"]


def odd_ticks() -> list[Document]:
    """Sums, totals, quantiles, windows, no items, an answer, and fields of other programs."""
    window = {"ms": 60_000, "ticks": 6, "sd": 0.1 + 0.2}
    items = [(label, 10**15 - i) for i, label in enumerate(LABELS)]
    sums = [
        [0.1 * i, None if i % 2 else 1 / 3, -1e-300, 5e-324] for i in range(len(LABELS))
    ]
    range_ = {"from": 0, "to": 20, "step": 0.01, "sd": 767.859451}
    whole = {"items": [list(one) for one in items], "sums": sums, "sum": range_}
    bucketed = numbers(3, [0, 10, 50], [5, 90, 40, 3], [0.5, 0.99], 2.0) | {
        "histogram": "products"
    }
    total = {"count": 12_635, "sd": 236.3407}
    fields: list[dict[str, Any]] = [
        {**whole, "all_items": total, "windows": [window | {"sum_sd": 3.25}]},
        {"items": []},
        {name: bucketed[name] for name in ("items", "edges", "quantiles")},
        {"items": GONE, "query": "max", "value": 5, "since": 0, "error": 1.5},
        {"window": {"ms": HOUR, "from": 3}, "previous_id": "e" * 32, "later": {"a": 1}},
        {"threshold": None, "sd": None},
    ]
    return [
        message(tick, **(at(tick) | {"id": f"{tick:032x}"} | changes))
        for tick, changes in enumerate(fields, 1)
    ]


async def rows(http: Client, query: str, kind: str, place: Path) -> Rows:
    """Return what a file has, downloaded as both tables."""
    found = []
    for table in ("items", "ticks"):
        answer = await http.get(f"/api/{query}&format={kind}&table={table}")
        assert answer.status == 200, await answer.text()
        place.write_bytes(await answer.read())
        with duckdb.connect() as database:
            database.execute(f"create view rows as {reading(str(place), kind)}")
            found.append(rows_of(database, table, "rows"))
    return Rows(*found)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "parquet"])
@on_a_loop
async def test_a_file_an_export_and_the_client_have_the_same_rows_to_the_bit(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the same order, in pieces of any size; and all are what the topic has."""
    documents = odd_ticks()
    path = tmp_path / "history.duckdb"
    with opened(path) as (database, writer):
        store_all(writer, documents[:3])
        compact(database, counts_min=1, heads_min=1)
        store_all(writer, documents[3:])
    snapshots = [typed(seen(document)) for document in documents]
    tables = Tables.of(snapshots)
    selection = Selection(
        worker="w", format=kind, histograms=(), since_ms=None, until_ms=None
    )
    with Files.open(tmp_path / "export", kind) as output:
        output.commit(tables, State(selection, {}))
    assert exported(tmp_path / "export", kind) == expected(documents)
    suffix = {"csv": "csv.gz", "parquet": "parquet"}[kind]
    for piece in (1, 100_000):
        monkeypatch.setattr(files, "PIECE_ROWS", {kind: piece})
        monkeypatch.setattr(files, "PIECE_TICKS", max(piece // 20, 1))
        async with client(path) as (http, _):
            place = tmp_path / "rows"
            query = f"history?{STREAM}"
            assert await rows(http, query, kind, place) == expected(documents)
            for table in ("items", "ticks"):
                answer = await http.get(f"/api/{query}&format={kind}&table={table}")
                content = await answer.read()
                file = tmp_path / "export" / table / f"00000001.{suffix}"
                if kind == "csv":
                    assert content == gzip.decompress(file.read_bytes())
                    continue
                place.write_bytes(content)
                same = [
                    tables.sql(f"from read_parquet('{one}')").fetchall()
                    for one in (place, file)
                ]
                assert repr(same[0]) == repr(same[1])
                assert repr(same[0]) == repr(getattr(tables, table).fetchall())
        pieces = path.with_name("history.duckdb.pieces")
    # A thread removes the last ones when the client has its answer already.
    until(lambda: not list(pieces.iterdir()), "no piece is left", PATIENCE_S)


@on_a_loop
async def test_a_file_has_the_ticks_and_items_that_were_asked_for(
    tmp_path: Path,
) -> None:
    path = tmp_path / "history.duckdb"
    with opened(path) as (_, writer):
        store_all(writer, LIFE)
    two = "item=item 0&item=none"
    last = [LIFE[place] for place in (399, 999, 1129, -1)]
    async with client(path) as (http, _):
        for query, documents, labels in (
            (f"history?{STREAM}&step=1h", stepped(LIFE, None, None, HOUR), None),
            (f"history?{STREAM}&to={LIFE[9]['end']}&{two}", LIFE[:10], {"item 0"}),
            (f"history?{STREAM}&from={LIFE[-1]['end']}", [], None),
            (f"epochs?{STREAM}", last, None),
        ):
            found = await rows(http, query, "parquet", tmp_path / "rows")
            wanted = expected(documents)
            items = [row for row in wanted.items if labels is None or row[7] in labels]
            assert found == (items, wanted.ticks)


@on_a_loop
async def test_a_file_says_in_its_name_what_it_is_and_if_ticks_are_missing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "history.duckdb"
    with opened(path) as (_, writer):
        store_all(writer, life()[:50])
    async with client(path) as (http, store):
        for reading_, table, ending in (
            (None, "items", "now"),
            (None, "ticks", "now_ticks"),
            (0.5, "items", "now_incomplete"),
        ):
            store.reading = reading_
            query = f"/api/history?{STREAM}&from={LIFE[3]['end']}&format=csv"
            answer = await http.head(f"{query}&table={table}")
            begin = iso(LIFE[3]["end"]).replace(":", "").replace(".000Z", "Z")
            name = f'attachment; filename="products_s1_{begin}_{ending}.csv"'
            assert answer.headers["Content-Disposition"] == name
            complete = str(reading_ is None).lower()
            assert answer.headers["Quietcount-Complete"] == complete
        for wrong, reason in (
            ("table=ticks", "only with format=csv"),
            ("format=csv&table=heads", "must be items or ticks"),
        ):
            answer = await http.get(f"/api/history?{STREAM}&{wrong}")
            assert answer.status == 400
            assert reason in (await answer.json())["error"]


def test_a_window_without_epochs_is_in_every_row() -> None:
    """It is what the count is of, so a row says it."""
    one = sliding("1h", 7_200_000, [("tea", 5)])
    [row] = Tables.of([typed(seen(one))]).items.select("window_ms, item").fetchall()
    assert row == (HOUR, "tea")
