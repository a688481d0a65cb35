"""What the page downloads is what exports and the client have."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from tests.commands.export.outputs import TABLES, expected, exported, reading, rows_of
from tests.dashboard.browser import Window
from tests.dashboard.feeding import (
    RECENT_MS,
    Document,
    Moment,
    Topics,
    message,
    on_a_broker,
    reads,
)
from workers.client import Tables, snapshots

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page

    from tests.quietcount import Quietcount

pytestmark = pytest.mark.waits

TICKS = 6
FORMATS = ("csv", "parquet")
BOARD = "#board-foot .board-files"
LINE = "#item-files"


def at(tick: int) -> dict[str, int]:
    end = Moment.ms // RECENT_MS * RECENT_MS - (TICKS - tick) * RECENT_MS
    return {"start": end - RECENT_MS, "end": end}


def with_sums(tick: int) -> Document:
    """Counts since an epoch began, with sums and a count of all."""
    items = [("tea", 1_000 * tick), ('q"u,o', 700 * tick), ("cup", 90 + tick)]
    sums = [[0.1 * tick * i, 1 / (i + 3), -0.1 * i, 5e-324] for i in range(3)]
    window = {"ms": 2 * RECENT_MS, "ticks": 2, "sd": 0.1 + 0.2, "sum_sd": 3.25}
    return message(
        tick,
        items,
        key="sums",
        sums=sums,
        sum={"from": 0, "to": 20, "step": 0.01, "sd": 767.859451},
        all_items={"count": 2_000 * tick, "sd": 236.3407},
        windows=[window | {"all_items_sd": 40.5}],
        **at(tick),
    )


def of_a_window(tick: int) -> Document:
    times = at(tick)
    window = {"ms": 5 * RECENT_MS, "from": times["end"] - 5 * RECENT_MS}
    own_id = {"id": "f" * 32, "key": "window"}
    return message(tick, [("tea", 40 + tick)], window=window, **own_id, **times)


def in_parts(tick: int) -> list[Document]:
    rows = [[("tea", 500 + tick), ("cup", 400)], [("pot", 450)]]
    return [
        message(tick, items, key="parts", part=part, parts=2, **at(tick))
        for part, items in enumerate(rows, 1)
    ]


def whole(tick: int) -> Document:
    """The parts of a tick as one."""
    items = [("tea", 500 + tick), ("pot", 450), ("cup", 400)]
    return message(tick, items, key="parts", **at(tick))


@pytest.fixture
def topics(bootstrap: str) -> Iterator[Topics]:
    with on_a_broker(bootstrap, 2) as found:
        Moment.ms = time.time_ns() // 1_000_000
        yield found


def saved(page: Page, box: str, table: str, kind: str, directory: Path) -> Path:
    link = f'{box} a[data-table="{table}"][data-format="{kind}"]'
    with page.expect_download() as found:
        page.click(link)
    path = directory / found.value.suggested_filename
    found.value.save_as(path)
    return path


def compared(
    page: Page, box: str, directory: Path, documents: list[Document], tables: Tables
) -> None:
    """Check that the files of a page are these documents, as export and client have them."""
    key = documents[0]["key"]
    ticks = ", ".join(str(one["tick"]) for one in documents)
    where = f"where key = '{key}' and tick in ({ticks})"
    for kind in FORMATS:
        suffix = {"csv": "csv.gz", "parquet": "parquet"}[kind]
        for table in TABLES:
            path = saved(page, box, table, kind, directory)
            with duckdb.connect() as database:
                database.execute(f"create view r as {reading(str(path), kind)}")
                wanted = getattr(expected(documents), table)
                assert rows_of(database, table, "r") == wanted
            file = directory / "export" / table / f"00000001.{suffix}"
            compression = "gzip" if kind == "csv" else "none"
            order = '"end", count desc, item' if table == "items" else '"end"'
            if kind == "csv":
                order = order.replace("count", "count::bigint")
            own, export = (
                tables.sql(
                    f"from ({reading(str(one), kind, packed)}) {where} order by {order}"
                )
                for one, packed in ((path, "none"), (file, compression))
            )
            assert repr(own.fetchall()) == repr(export.fetchall())
            if kind == "parquet":
                client = tables.sql(f"from {table} {where} order by {order}")
                assert repr(client.fetchall()) == repr(own.fetchall())


def test_downloads_export_and_client_have_the_same_rows_to_the_bit(
    window: Window, topics: Topics, tmp_path: Path, quietcount: Quietcount
) -> None:
    """With sums, windows and parts; the board's are of its tick, the line's of what is drawn."""
    numbers = range(1, TICKS + 1)
    topics.send(*(with_sums(tick) for tick in numbers))
    topics.send(*(of_a_window(tick) for tick in numbers))
    topics.send(*(part for tick in numbers for part in in_parts(tick)))
    config = tmp_path / "s.toml"
    config.write_text(topics.toml("products"))
    for kind in FORMATS:
        output = tmp_path / kind / "export"
        output.parent.mkdir()
        quietcount(f"export -c {config} --format {kind} --output", output)
    everything = [*map(with_sums, numbers), *map(of_a_window, numbers)]
    everything += map(whole, numbers)
    for kind in FORMATS:
        assert exported(tmp_path / kind / "export", kind) == expected(everything)
    # Both formats in one place, for the comparisons.
    both = tmp_path / "both"
    for table in TABLES:
        (both / "export" / table).mkdir(parents=True)
        for kind in FORMATS:
            for file in (tmp_path / kind / "export" / table).iterdir():
                file.rename(both / "export" / table / file.name)
    tables = Tables.of(snapshots(config))
    made: dict[str, Any] = {
        "sums": with_sums,
        "window": of_a_window,
        "parts": whole,
    }
    with topics.served("products") as running:
        reads(running)
        for key, document in made.items():
            page = window.open(f"{running.url}?histogram=products&key={key}&range=all")
            compared(page, BOARD, both, [document(TICKS)], tables)
            page.wait_for_selector("#chart path")
            item = next(label for label, _ in document(1)["items"])
            drawn = [
                document(tick) | {"items": document(tick)["items"][:1]}
                for tick in numbers
            ]
            page.goto(f"{page.url.split('&item=')[0]}&item={item}")
            page.wait_for_selector("#chart path")
            path = saved(page, LINE, "items", "parquet", both)
            with duckdb.connect() as database:
                database.execute(f"create view r as {reading(str(path), 'parquet')}")
                cut = [
                    one | {"sums": one["sums"][:1]} if "sums" in one else one
                    for one in drawn
                ]
                assert rows_of(database, "items", "r") == expected(cut).items


def test_a_change_is_a_count_of_a_window_and_unknown_where_an_item_is_new(
    window: Window, topics: Topics, tmp_path: Path
) -> None:
    ticks = [with_sums(tick) for tick in range(1, TICKS + 1)]
    ticks[3]["items"] = ticks[3]["items"][:2]
    ticks[3]["sums"] = ticks[3]["sums"][:2]
    topics.send(*ticks)
    with topics.served("products") as running:
        reads(running)
        page = window.open(f"{running.url}?histogram=products&key=sums&window=2m")
        window.reads("#count-head", "^Counted$")
        items = saved(page, BOARD, "items", "parquet", tmp_path)
        asked = "select item, count, sd, window_ms, sum is null from"
        found = duckdb.execute(f"{asked} '{items}' order by item").fetchall()
        sd = 0.1 + 0.2
        assert found == [
            ("cup", None, None, 2 * RECENT_MS, True),
            ('q"u,o', 1_400, sd, 2 * RECENT_MS, False),
            ("tea", 2_000, sd, 2 * RECENT_MS, False),
        ]
        tick = saved(page, BOARD, "ticks", "parquet", tmp_path)
        asked = f"select window_ms, \"end\" - window_from, sd, all_items, all_items_sd, shown from '{tick}'"
        two = 2 * RECENT_MS
        assert duckdb.execute(asked).fetchall() == [(two, two, sd, 4_000, 40.5, 3)]
