"""What leaves: the rows of snapshots, computed from their JSON alone, and what an output holds."""

import glob
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import duckdb
import orjson

KINDS = ("csv", "parquet", "iceberg")
_TICK = ("histogram", "key", "id", "tick")
ITEMS = (
    *_TICK,
    *("end", "end_time", "window_ms", "item", "count", "sd"),
    *("sum", "sum_sd", "mean", "mean_low", "mean_high"),
)
TICKS = (
    *_TICK,
    *(
        "epoch",
        "start",
        "end",
        "start_time",
        "end_time",
        "window_ms",
        "window_from",
        "window_counts",
    ),
    *("shown", "sd", "threshold", "all_items", "all_items_sd"),
    *("sum_from", "sum_to", "sum_step", "sum_sd"),
    *("mechanism", "unit", "rho", "epsilon", "delta", "period", "overlap"),
    "previous_id",
    *("edges", "quantiles", "windows", "rest"),
)
TABLES = {"items": ITEMS, "ticks": TICKS}
_JSON = ("edges", "quantiles", "windows", "rest")
Row = tuple[Any, ...]


class Rows(NamedTuple):
    """Sorted; times are ms, and lists JSON."""

    items: list[Row]
    ticks: list[Row]


def expected(documents: Iterable[dict[str, Any]]) -> Rows:
    """Return the rows of whole snapshots, from their JSON alone."""
    items = []
    ticks = []
    for document in documents:
        tick = _tick(document)
        ticks.append(tuple(tick.get(name) for name in TICKS))
        shown = document.get("items") or []
        sums = document.get("sums") or [(None,) * 4] * len(shown)
        for (label, count), (sum_, mean, low, high) in zip(shown, sums, strict=True):
            own = {"item": label, "count": count, "sum": sum_, "mean": mean}
            row = tick | own | {"mean_low": low, "mean_high": high}
            items.append(tuple(row.get(name) for name in ITEMS))
    return Rows(sorted(items, key=repr), sorted(ticks, key=repr))


def _tick(document: dict[str, Any]) -> dict[str, Any]:
    left = dict(document)
    tick = {name: left.pop(name) for name in TICKS if name in left}
    tick |= {"start_time": tick["start"], "end_time": tick["end"]}
    tick |= left.pop("guarantee")
    window = left.pop("window", None) or {}
    of_window = {"window_ms": "ms", "window_from": "from", "window_counts": "counts"}
    tick |= {name: window.get(field) for name, field in of_window.items()}
    total = left.pop("all_items", tick.pop("all_items", None)) or {}
    tick |= {"all_items": total.get("count"), "all_items_sd": total.get("sd")}
    of_sums = left.pop("sum", {})
    tick |= {f"sum_{name}": of_sums.get(name) for name in ("from", "to", "step", "sd")}
    items = left.pop("items", None)
    tick["shown"] = None if items is None else len(items)
    for name in ("sums", "page", "pages"):
        left.pop(name, None)
    tick["windows"] = [
        {"sum_sd": None, "all_items_sd": None} | one for one in tick.get("windows", [])
    ]
    tick["rest"] = left
    return tick | {name: _canonical(tick.get(name)) for name in _JSON}


def exported(directory: Path, kind: str) -> Rows:
    """Return the rows of an output, read as its users would."""
    with duckdb.connect() as database:
        if kind == "iceberg":
            from pyiceberg.catalog.sql import SqlCatalog

            catalog = SqlCatalog(
                "quietcount",
                uri=f"sqlite:///{quote(str(directory / 'catalog.db'))}",
                warehouse=f"file://{directory}",
            )
            for table in TABLES:
                loaded = catalog.load_table(f"quietcount.{table}")
                database.register(f"{table}_rows", loaded.scan().to_arrow())
        else:
            suffix = {"csv": "csv.gz", "parquet": "parquet"}[kind]
            for table in TABLES:
                files = glob.escape(str(directory)) + f"/{table}/*.{suffix}"
                view = f"create view {table}_rows as {reading(files, kind, 'gzip')}"
                database.execute(view)
        return Rows(*(rows_of(database, table, f"{table}_rows") for table in TABLES))


def reading(files: str, kind: str, compression: str = "none") -> str:
    """Return the SQL that reads files; CSV as texts, in which an empty label is no null."""
    as_text = f", allow_quoted_nulls = false, all_varchar = true, compression = '{compression}'"
    options = as_text if kind == "csv" else ""
    names = files.replace("'", "''")
    return f"select * from read_{kind}('{names}'{options})"


def rows_of(
    database: duckdb.DuckDBPyConnection, table: str, relation: str
) -> list[Row]:
    """Return the rows of a table that has these columns, in this order and of these types."""
    described = database.execute(f"describe {relation}").fetchall()
    assert [one[0] for one in described] == list(TABLES[table])
    kinds = {name: kind for name, kind, *_ in described}
    texts = all(kind == "VARCHAR" for kind in kinds.values())
    columns = []
    for name in TABLES[table]:
        value = f'"{name}"'
        if name in ("start_time", "end_time"):
            value = f"epoch_ms({name}::timestamptz)"
        elif name in _JSON and not texts and name != "rest":
            value = f"to_json({name})::varchar"
        elif texts and name in _NUMBERS:
            value = f"{value}::{_NUMBERS[name]}"
        columns.append(value)
    rows = database.execute(f"select {', '.join(columns)} from {relation}").fetchall()
    names = TABLES[table]
    found = [
        tuple(
            _canonical(None if value is None else orjson.loads(value))
            if name in _JSON
            else value
            for name, value in zip(names, row, strict=True)
        )
        for row in rows
    ]
    return sorted(found, key=repr)


_NUMBERS = dict.fromkeys(
    ("tick", "end", "window_ms", "count", "epoch", "start", "window_from"), "bigint"
)
_NUMBERS |= dict.fromkeys(("shown", "all_items", "period"), "bigint")
_NUMBERS |= dict.fromkeys(
    (
        *("sd", "sum", "sum_sd", "mean", "mean_low", "mean_high", "threshold"),
        *("all_items_sd", "sum_from", "sum_to", "sum_step", "rho", "epsilon", "delta"),
        "overlap",
    ),
    "double",
)


def _canonical(value: Any) -> str | None:
    """Return JSON with sorted names and with numbers as doubles; None for what is empty."""
    if not value:
        return None
    return orjson.dumps(_doubled(value), option=orjson.OPT_SORT_KEYS).decode()


def _doubled(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _doubled(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_doubled(one) for one in value]
    return float(value) if type(value) is int else value
