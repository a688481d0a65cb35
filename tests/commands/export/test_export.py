"""An output holds the topics, each snapshot once, whatever ends a run; else it says why not."""

import os
import re
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.admin import admin_of
from tests.commands.export.outputs import KINDS, expected, exported
from tests.dashboard.feeding import (
    Topics,
    answer,
    message,
    new_topic,
    numbers,
    on_a_broker,
)
from tests.quietcount import Quietcount
from workers.client import Tables, reading
from workers.commands.export import export, files
from workers.commands.export.output import Selection, State

LABELS = ["tea", "", "a\x00b", 'q"u,o', "new\nline", "=1+1", "é😀"]


@pytest.fixture
def topics(bootstrap: str) -> Iterator[Topics]:
    with on_a_broker(bootstrap, 2) as found:
        yield found


class Run:
    """`quietcount export` of a topic into a directory whose name needs quoting."""

    def __init__(self, topics: Topics, directory: Path, quietcount: Quietcount) -> None:
        self._config = directory / "s.toml"
        self.output = directory / "it's out"
        self._quietcount = quietcount
        self._config.write_text(topics.toml("products"))
        self.err = ""

    def __call__(self, kind: str, *further: str, code: int = 0) -> str:
        """Return the line that it prints."""
        command = f"export -c {self._config} --format {kind} --output"
        printed = self._quietcount(command, self.output, *further, code=code)
        self.err = printed.err
        [line] = (printed.err if code else printed.out).splitlines()
        return line


@pytest.fixture
def run(topics: Topics, tmp_path: Path, quietcount: Quietcount) -> Run:
    return Run(topics, tmp_path, quietcount)


def ticks(first: int, last: int) -> list[dict[str, Any]]:
    """Snapshots of two keys; every third shows nothing, and one is an answer to a query."""
    items = [(label, 10**15 + i) for i, label in enumerate(LABELS)]
    found = [
        message(
            tick,
            items if tick % 3 else [],
            key=key,
            windows=[{"ms": 1, "ticks": 1, "sd": 2.5}],
        )
        for tick in range(first, last + 1)
        for key in ("s1", "s\x002")
    ]
    return [*found, answer(last, key="asked", query="max", value=5, since=0, error=1.5)]


def pages(tick: int, number: int) -> list[dict[str, Any]]:
    pieces = range(1, number + 1)
    return [
        message(tick, [(f"i{i}", i)], key="paged", page=i, pages=number) for i in pieces
    ]


def joined(tick: int, number: int) -> dict[str, Any]:
    return message(tick, [(f"i{i}", i) for i in range(1, number + 1)], key="paged")


class Killed(BaseException):
    """The process ends here."""


class Step:
    """Numbers the steps of a run, and kills it before one of them."""

    def __init__(self, kill_at: int) -> None:
        self._kill_at = kill_at
        self.number = 0

    def of(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            self.number += 1
            if self.number == self._kill_at:
                raise Killed
            return function(*arguments, **named)

        return called


@pytest.mark.parametrize("kind", ["csv", "iceberg"])
def test_each_snapshot_is_there_once_wherever_a_run_is_killed(
    kind: str, topics: Topics, run: Run
) -> None:
    """Before every step of two commits; an unfinished snapshot waits."""
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Table

    create = SqlCatalog.create_table_if_not_exists
    documents = ticks(1, 4)
    half = pages(13, 3)
    topics.send(*documents, *half[:2])
    for kill_at in count(1):
        step = Step(kill_at)
        run.output = run.output.with_name(f"it's out {kill_at}")
        with (
            patch.object(export, "ROWS", 20),
            patch.object(reading, "CHUNK_LARGE_RECORDS", 6),
            patch.object(os, "replace", step.of(os.replace)),
            patch.object(files, "_sync", step.of(files._sync)),
            patch.object(Table, "append", step.of(Table.append)),
            patch.object(SqlCatalog, "create_table_if_not_exists", step.of(create)),
        ):
            try:
                run(kind)
            except Killed:
                run(kind)
        assert exported(run.output, kind) == expected(documents)
        if step.number < kill_at:
            break
    assert step.number >= 4
    topics.send(half[2])
    assert run(kind).startswith(
        "3 rows from 1 snapshot, of ticks that ended from 2023-"
    )
    assert run(kind) == "nothing new"
    assert exported(run.output, kind) == expected([*documents, joined(13, 3)])


def test_a_selection_is_kept_and_a_range_is_that_of_the_ends_of_ticks(
    topics: Topics, run: Run
) -> None:
    documents = [
        message(tick, key=key) for tick in range(1, 30) for key in ("s1", "s2")
    ]
    topics.send(*documents)
    since = documents[10]["end"]
    until = documents[40]["end"]
    between = (
        "--from",
        str(since),
        "--to",
        "2023-11-14T22:16:50Z",
        "--histogram",
        "products",
    )
    assert until == 1_700_000_210_000
    line = run("parquet", *between)
    assert line == (
        "30 rows from 30 snapshots, of ticks that ended from 2023-11-14T22:14:30.000+00:00 "
        "to 2023-11-14T22:16:50.000+00:00"
    )
    inside = [one for one in documents if since < one["end"] <= until]
    assert exported(run.output, "parquet") == expected(inside)
    topics.send(message(30))
    assert run("parquet", *between) == "nothing new"
    for other in (["--from", "2023-11-15"], []):
        said = run("parquet", *other, code=2)
        assert re.search(
            "it's out: holds parquet of .*, products, from .* give another", said
        )
    assert "no export of this format" in run("iceberg", *between, code=2)
    assert exported(run.output, "parquet") == expected(inside)


def test_numbers_keep_their_edges_and_quantiles(topics: Topics, run: Run) -> None:
    one = numbers(1, [0, 10, 50], [5, 90, 40, 3], [0.5], 2.0) | {
        "histogram": "products"
    }
    topics.send(one)
    run("csv")
    assert exported(run.output, "csv") == expected([one])


@pytest.mark.parametrize("kind", KINDS)
def test_ticks_that_lack_parts_are_left_out_and_named_and_hold_nothing_up(
    kind: str, topics: Topics, run: Run
) -> None:
    """After a rolling restart one part begins some ticks after the other."""

    def parts(tick: int, *numbers: int) -> list[dict[str, Any]]:
        place: dict[str, Any] = {"key": "split", "parts": 2}
        return [message(tick, [(f"i{n}", n)], part=n, **place) for n in numbers]

    def whole(tick: int) -> dict[str, Any]:
        return message(tick, [("i2", 2), ("i1", 1)], key="split")

    single = [message(tick, key="plain") for tick in range(1, 7)]
    topics.send(*parts(1, 1), *single[:2], *parts(2, 1), *parts(3, 1))
    run(kind)
    topics.send(
        *parts(3, 2), *single[2:], *parts(4, 2, 1), *parts(5, 1), *pages(1, 2)[1:]
    )
    line = run(kind)
    assert line.endswith("; 2 ticks left out")
    assert run.err == (
        "products split: 2 ticks without all their parts left out, "
        "ended from 2023-11-14T22:13:30.000+00:00 to 2023-11-14T22:13:40.000+00:00\n"
    )
    topics.send(*parts(5, 2), message(2, key="paged"))
    assert run(kind).endswith("; 1 tick left out")
    assert run.err.startswith(
        "products paged: 1 tick with missing pages left out, ended from "
    )
    assert run(kind) == "nothing new" and not run.err
    documents = [*single, *map(whole, (3, 4, 5)), message(2, key="paged")]
    assert exported(run.output, kind) == expected(documents)


def test_topics_that_changed_or_lost_records_add_nothing(
    topics: Topics, run: Run
) -> None:
    topics.send(*(message(tick) for tick in range(1, 11)))
    run("parquet")
    before = exported(run.output, "parquet")
    topics.send(*(message(tick) for tick in range(11, 16)))
    topics.remove("products", leaving=2)
    assert re.search(
        r"products: retention removed the records from offset 10 to 12",
        run("parquet", code=2),
    )
    topic = f"{topics.prefix}.products"
    admin = admin_of(topics.connection)
    admin.delete_topics([topic])[topic].result()
    assert f"no such topic on {topics.connection.bootstrap}: {topic}" in run(
        "parquet", code=2
    )
    admin.create_topics([new_topic(topic, 2)])[topic].result()
    topics.send(*(message(tick) for tick in range(1, 30)))
    assert f"{topic}: not the topic that was exported before" in run("parquet", code=2)
    assert exported(run.output, "parquet") == before


def test_an_export_begins_with_the_first_whole_snapshot_that_retention_left(
    topics: Topics, run: Run
) -> None:
    topics.send(*pages(1, 3), *pages(2, 2), *pages(3, 2))
    topics.remove("products", leaving=6)
    with (
        patch.object(export, "ROWS", 1),
        patch.object(reading, "CHUNK_LARGE_RECORDS", 1),
    ):
        assert run("csv").startswith("4 rows from 2 snapshots")
    assert exported(run.output, "csv") == expected([joined(2, 2), joined(3, 2)])
    assert run("csv") == "nothing new"


def test_what_is_no_export_or_no_snapshot_is_refused(
    topics: Topics, run: Run, tmp_path: Path
) -> None:
    run.output.mkdir()
    (run.output / "thesis.doc").touch()
    assert "not empty, and no export of this format" in run("csv", code=2)
    (run.output / "thesis.doc").unlink()
    topics.send(message(1), message(2, start="now"))
    assert re.search(
        r"products\[\d\] offset 1: a record that is no snapshot", run("csv", code=2)
    )
    assert not list(run.output.glob("*/*.csv.gz"))
    assert "histogram sales: not in the settings file; it has products" in run(
        "csv", "--histogram", "sales", code=2
    )
    assert "--from soon: a time such as" in run("csv", "--from", "soon", code=2)
    assert "--from 7, --to 7: an empty range" in run(
        "csv", "--from", "7", "--to", "7", code=2
    )
    with files.Files.open(run.output, "csv"):
        assert "another export writes there now" in run("csv", code=2)
    (run.output / "manifest.json").write_text("{}")
    assert "manifest.json: not the manifest of an export" in run("csv", code=2)


def test_a_file_that_the_manifest_does_not_cover_never_gets_a_name(
    tmp_path: Path,
) -> None:
    """Its rows are read again: while it had a name, they would be there twice."""
    state = State(
        Selection(
            worker="w", format="csv", histograms=(), since_ms=None, until_ms=None
        ),
        {},
    )
    with files.Files.open(tmp_path, "csv") as output:
        output.commit(Tables.of([]), state)
    left = tmp_path / ".items-00000001.part"
    left.write_text("rows of a commit that was killed")
    with files.Files.open(tmp_path, "csv") as output:
        assert output.load() == state
        assert not left.exists() and not list(tmp_path.glob("*/*.csv.gz"))
