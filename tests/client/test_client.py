"""The Python reader yields the topics, typed, in order, and from anywhere."""

import json
import re
import runpy
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from confluent_kafka import KafkaException
from jsonschema import Draft202012Validator

from tests import ROOT
from tests.admin import admin_of
from tests.commands.export.outputs import ITEMS, expected, exported, rows_of
from tests.dashboard.feeding import (
    START_MS,
    TICK_MS,
    Topics,
    answer,
    message,
    new_topic,
    numbers,
    on_a_broker,
    sliding,
)
from workers.cli import execute
from workers.client import (
    CountedWindow,
    Item,
    Quantile,
    Stream,
    Sum,
    Tables,
    Window,
    latest,
    reading,
    snapshot_schema,
    snapshots,
    table,
)
from workers.client.config import load_reader_settings
from workers.client.messages import InvalidSnapshot
from workers.client.reading import Assembly, open_topics

# DuckDB's, about pandas.
pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword")


@pytest.fixture
def topics(bootstrap: str) -> Iterator[Topics]:
    with on_a_broker(bootstrap, 3) as found:
        yield found


@pytest.fixture
def config(topics: Topics, tmp_path: Path) -> Path:
    path = tmp_path / "orders.toml"
    path.write_text(topics.toml("products"))
    return path


def test_snapshots_have_types_and_tables_have_their_rows(
    topics: Topics, config: Path
) -> None:
    window = {"ms": 60_000, "ticks": 6, "sd": 3.5}
    sums = [[6.5, 2.17, 1.0, 3.0], [0.25, None, 0.0, 9.0]]
    range_ = {"from": 0, "to": 9, "step": 0.5, "sd": 2.0}
    counted = numbers(3, [0, 10], [5, 90, 40], [0.5], 2.0) | {
        "histogram": "products",
        "key": "ms",
    }
    sent = [
        message(1, [("tea", 2**53 - 1), ("", -4)], windows=[window], key="s1"),
        message(2, [], key="s1"),
        counted,
        answer(4, key="s1", query="max", value=5, since=0, error=1.5),
        message(5, [("tea", 3), ("cup", 2)], key="s1", sums=sums, sum=range_),
    ]
    topics.send(*sent)
    found = {one.tick: one for one in snapshots(config)}
    assert found[1].items == (Item("tea", 2**53 - 1), Item("", -4))
    assert found[1].windows == (Window(60_000, 6, 3.5),)
    assert found[1].guarantee.epsilon == 1.0 and found[1].further == {}
    assert found[2].items == () and found[4].items is None
    assert found[3].edges == (0.0, 10.0)
    assert found[3].quantiles == tuple(Quantile(**one) for one in counted["quantiles"])
    assert found[5].sums == (Sum(6.5, 2.17, 1.0, 3.0), Sum(0.25, None, 0.0, 9.0))
    assert found[5].further == {"sum": range_} and not found[1].sums
    assert found[4].further == {"query": "max", "value": 5, "since": 0, "error": 1.5}
    tables = Tables.of(found.values())
    wanted = expected(sent)
    assert rows_of(tables.database, "items", "items") == wanted.items
    assert rows_of(tables.database, "ticks", "ticks") == wanted.ticks
    frame = table(found.values()).filter("item = 'tea' and tick = 1").df()
    assert frame["count"].tolist() == [2**53 - 1]
    assert str(frame["end_time"][0]) == "2023-11-14 22:13:30+00:00"
    joined = "select median.value from (select unnest(quantiles) median from ticks)"
    assert tables.sql(joined).fetchall() == [(counted["quantiles"][0]["value"],)]
    assert table([]).columns == list(ITEMS)


def test_a_window_without_epochs_is_read_as_any_histogram_and_says_what_it_counts(
    topics: Topics, tmp_path: Path
) -> None:
    names = ("products.10m", "products.1h")
    ends = [START_MS + (i + 1) * TICK_MS for i in range(3)]
    sent = [
        sliding(window, end, [("tea", 5)]) for end in ends for window in ("10m", "1h")
    ]
    admin = admin_of(topics.connection)
    created = [new_topic(f"{topics.prefix}.{name}", 3) for name in names]
    for future in admin.create_topics(created).values():
        future.result()
    topics.send(*sent)
    path = tmp_path / "orders.toml"
    path.write_text(topics.toml(*names))
    found = list(snapshots(path, "products.1h"))
    every = table(snapshots(path))
    newest = latest(path)
    output = tmp_path / "rows"
    options = ["--format", "csv", "--output", str(output)]
    assert (
        execute(["export", "-c", str(path), "--histogram", "products.1h", *options])
        == 0
    )
    assert exported(output, "csv") == expected(sent[1::2])
    assert [one.end for one in found] == ends
    begins = [end - 3_600_000 for end in ends]
    assert [one.window for one in found] == [
        CountedWindow(3_600_000, begin) for begin in begins
    ]
    assert found[0].further == {} and found[0].windows == ()
    assert sorted(newest) == [Stream(name, "s1") for name in names]
    assert sorted(every.select('histogram, window_ms, "end"').fetchall()) == sorted(
        (one["histogram"], one["window"]["ms"], one["end"]) for one in sent
    )
    for one in sent:
        assert [*snapshot_schema_errors(one)] == []


def snapshot_schema_errors(document: dict[str, Any]) -> Iterator[str]:
    for error in Draft202012Validator(snapshot_schema()).iter_errors(document):
        yield error.message


def test_snapshots_are_read_in_a_range_and_as_they_come(
    topics: Topics, config: Path
) -> None:
    documents = [message(tick, key=key) for tick in range(1, 9) for key in ("s1", "s2")]
    topics.send(*documents)
    between = {"since": documents[3]["end"], "until": "2023-11-14T22:14:10Z"}
    found = [(one.tick, one.key) for one in snapshots(config, "products", **between)]
    assert sorted(found) == [(tick, key) for tick in (3, 4, 5) for key in ("s1", "s2")]
    later = Timer(1, lambda: topics.send(message(9)))
    later.start()
    following = snapshots(config, follow=True)
    assert sorted(one.tick for one in islice(following, 17)) == [
        *sorted([*range(1, 9)] * 2),
        9,
    ]
    following.close()
    later.join()


def test_the_reader_passes_over_ticks_without_all_parts_and_keeps_nothing_of_them(
    topics: Topics, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Part 2 begins at tick 200, and neither other partitions nor other keys matter for that."""

    def part(tick: int, number: int) -> dict[str, object]:
        return message(tick, [(f"i{number}", 1)], part=number, parts=2)

    early = [part(tick, 1) for tick in range(1, 200)]
    late = [part(tick, number) for tick in range(200, 203) for number in (1, 2)]
    topics.send(*early, *late, *(message(tick, key="s2") for tick in range(1, 203)))
    monkeypatch.setattr(reading, "CHUNK_LARGE_RECORDS", 10)
    with open_topics(load_reader_settings(config)) as opened:
        assembly = Assembly(opened.histogram_of)
        found = [one for _, one in opened.snapshots(opened.starts(), assembly)]
    assert [one.tick for one in found if one.key == "s1"] == [200, 201, 202]
    assert [one.tick for one in found if one.key == "s2"] == [*range(1, 203)]
    assert [pages.size for pages in assembly._pages.values()] == [0]
    assert {one.tick for one in latest(config).values()} == {202}


def test_the_newest_board_is_whole_and_of_the_newest_tick(
    topics: Topics, config: Path
) -> None:
    """Its tick may be longer than what is looked at first; another key may be behind."""
    assert latest(config) == {}
    keys = [f"k{i}" for i in range(150)]
    for tick in (1, 2, 3, 4):
        topics.send(*(message(tick, [("tea", tick)], key=key) for key in keys))
    halves = [message(5, [(f"i{i}", i)], key="k0", page=i, pages=2) for i in (1, 2)]
    topics.send(*halves)
    found = latest(config, "products")
    assert found.pop(Stream("products", "k0")).items == (Item("i1", 1), Item("i2", 2))
    # Of k0's partition only the newest tick counts.
    assert len(found) > 50 and {one.tick for one in found.values()} == {4}


def test_a_reader_stops_at_what_is_no_snapshot_or_is_gone(
    topics: Topics, config: Path
) -> None:
    topics.send(message(1), message(2, sd="high"), message(3))
    with pytest.raises(
        InvalidSnapshot, match=r"products\[\d\] offset 1: .* no snapshot"
    ):
        list(snapshots(config))
    with open_topics(load_reader_settings(config)) as opened:
        positions = opened.starts()
        topics.remove("products", leaving=1)
        # By default, librdkafka would go on at the end, and these be missing in silence.
        with pytest.raises(KafkaException, match="(?i)offset"):
            list(opened.read(positions))


def test_the_example_of_the_guide_runs(
    topics: Topics,
    config: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = time.time_ns() // 1_000_000
    topics.send(message(7, [("tea", 500)], start=now - 1_000, end=now))
    guide = (ROOT / "docs" / "consumers.md").read_text()
    [example] = re.findall(r"`board\.py`:\n\n```python\n(.*?)```", guide, re.DOTALL)
    (tmp_path / "board.py").write_text(example)
    monkeypatch.chdir(tmp_path)
    runpy.run_path("board.py")
    first, second, *rows = capsys.readouterr().out.splitlines()
    assert first == "s1 7 (Item(label='tea', count=500),) +- 34.5"
    assert second == f"s1 {now} 1 1.0" and any("500" in row for row in rows)


def test_the_notebook_runs(
    topics: Topics, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cells in order, in the directory of the settings file."""
    notebook = json.loads((ROOT / "examples" / "orders" / "orders.ipynb").read_text())
    items = [("tea", 500), ("cup", 300)]
    topics.send(
        *(message(tick, items, key=key) for tick in (1, 2) for key in ("s1", "s2"))
    )
    cells = [one for one in notebook["cells"] if one["cell_type"] == "code"]
    assert len(cells) > 4 and not any(one["outputs"] for one in cells)
    (tmp_path / "cells.py").write_text(
        "\n".join("".join(one["source"]) for one in cells)
    )
    monkeypatch.chdir(tmp_path)
    names = runpy.run_path("cells.py")
    assert names["frame"]["count"].sum() == 3_200
    assert names["top"] == "tea"
