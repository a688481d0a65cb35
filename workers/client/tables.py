"""Snapshots as two tables of DuckDB, which any DataFrame library takes: `ITEMS` and `TICKS`.

Everything that leaves has this shape: exports, the dashboard's files and the client
(docs/export.md). An item's row says what was published of it in a tick: count, sum and mean with
their errors. What belongs to the tick is in `TICKS`, once. The two are joined by `JOINED`.

Rows are made as columns of numpy. SQL then gives them the types of the tables: it makes the times
(`_TIMES`) from ms, and parses the lists (`_NESTED`), which are JSON in numpy's columns.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import duckdb
import msgspec
import numpy as np
from numpy.typing import ArrayLike

from workers.client.reading import Item, Snapshot

JOINED = ("histogram", "key", "id", "tick")
#: DuckDB's types by column.
ITEMS = MappingProxyType(
    {
        "histogram": "varchar",
        "key": "varchar",
        "id": "varchar",
        "tick": "bigint",
        "end": "bigint",
        "end_time": "timestamptz",
        "window_ms": "bigint",
        "item": "varchar",
        "count": "bigint",
        "sd": "double",
        "sum": "double",
        "sum_sd": "double",
        "mean": "double",
        "mean_low": "double",
        "mean_high": "double",
    }
)
TICKS = MappingProxyType(
    {
        "histogram": "varchar",
        "key": "varchar",
        "id": "varchar",
        "tick": "bigint",
        "epoch": "bigint",
        "start": "bigint",
        "end": "bigint",
        "start_time": "timestamptz",
        "end_time": "timestamptz",
        "window_ms": "bigint",
        "window_from": "bigint",
        "window_counts": "varchar",
        "shown": "bigint",
        "sd": "double",
        "threshold": "double",
        "all_items": "bigint",
        "all_items_sd": "double",
        "sum_from": "double",
        "sum_to": "double",
        "sum_step": "double",
        "sum_sd": "double",
        "mechanism": "varchar",
        "unit": "varchar",
        "rho": "double",
        "epsilon": "double",
        "delta": "double",
        "period": "bigint",
        "overlap": "double",
        "previous_id": "varchar",
        "edges": "double[]",
        "quantiles": 'struct(q double, bucket varchar, "value" double, low double, high double)[]',
        "windows": "struct(ms bigint, ticks bigint, sd double, sum_sd double, all_items_sd double)[]",
        "rest": "varchar",
    }
)
SCHEMAS = MappingProxyType({"items": ITEMS, "ticks": TICKS})
# Columns of lists, which are JSON in numpy's columns, and their types for DuckDB's parser.
_NESTED = MappingProxyType(
    {
        "edges": '["DOUBLE"]',
        "quantiles": '[{"q": "DOUBLE", "bucket": "VARCHAR", "value": "DOUBLE", "low": "DOUBLE", "high": "DOUBLE"}]',
        "windows": '[{"ms": "BIGINT", "ticks": "BIGINT", "sd": "DOUBLE", "sum_sd": "DOUBLE", "all_items_sd": "DOUBLE"}]',
    }
)
# Times by the column of their ms.
_TIMES = MappingProxyType({"start_time": "start", "end_time": "end"})
# Fields of a snapshot's `sum`, which are columns with the prefix `sum_`, and of its `guarantee`.
_RANGE = ("from", "to", "step", "sd")
_PROMISE = ("unit", "rho", "epsilon", "delta", "period", "overlap")

Columns = Mapping[str, np.ndarray[Any, Any]]


class Tables(NamedTuple):
    """Rows of `ITEMS` and of `TICKS`, in one database.

    `.df()` of a table makes a pandas DataFrame of it, `.pl()` one of polars, `.to_arrow_table()` a
    table of pyarrow; all of them take SQL expressions first, as in `.filter("count > 100")`.
    """

    items: duckdb.DuckDBPyRelation
    ticks: duckdb.DuckDBPyRelation
    database: duckdb.DuckDBPyConnection

    @classmethod
    def of(cls, snapshots: Iterable[Snapshot]) -> Self:
        """Return the tables of some snapshots, in a new database in memory."""
        listed = list(snapshots)
        database = duckdb.connect(":memory:")
        database.execute("set TimeZone = 'UTC'")
        ticks = tick_columns(listed)
        columns = {"items": _items(listed, ticks), "ticks": ticks}
        for name, schema in SCHEMAS.items():
            database.register("columns", columns[name])
            database.execute(
                f"create table {name} as select {typed_columns(schema)} from columns"
            )
            database.unregister("columns")
        return cls(database.table("items"), database.table("ticks"), database)

    def sql(self, query: str) -> duckdb.DuckDBPyRelation:
        """Return the answer to a query over the tables `items` and `ticks`."""
        return self.database.sql(query)


def table(snapshots: Iterable[Snapshot]) -> duckdb.DuckDBPyRelation:
    """Return a row for each item and tick, with the columns of `ITEMS`."""
    return Tables.of(snapshots).items


def typed_columns(schema: Mapping[str, str]) -> str:
    """Return as SQL the columns to select from numpy's, to get a table of this `schema`.

    `schema` has DuckDB's types by column.
    """
    columns = []
    for name, kind in schema.items():
        value = f'"{name}"'
        if name in _TIMES:
            # From ms to microseconds, which the function takes.
            value = f'make_timestamptz("{_TIMES[name]}" * 1000)'
        elif name in _NESTED:
            value = f"from_json({name}, '{_NESTED[name]}')"
        columns.append(f'{value}::{kind} as "{name}"')
    return ", ".join(columns)


def copy_statement(
    query: str,
    schema: Mapping[str, str],
    path: Path,
    format: str,
    *,
    header: bool = True,
    compressed: bool = False,
) -> str:
    """Return the SQL that writes the rows of a query, with the columns of `schema`, into a file.

    CSV has times in ISO 8601, and lists as JSON; it is `compressed` with gzip. Parquet always is
    compressed, and has no header.
    """
    columns = "*"
    options = "format parquet, compression zstd"
    if format == "csv":
        columns = ", ".join(as_text(name) for name in schema)
        options = f"format csv, header {header}"
        options += ", compression gzip" if compressed else ", compression none"
    name = str(path).replace("'", "''")
    return f"copy (select {columns} from ({query})) to '{name}' ({options})"


def as_text(name: str) -> str:
    """Return a column as SQL for CSV: a time or a list as text, others as they are."""
    if name in _TIMES:
        utc = f"{name} at time zone 'UTC'"
        return f"strftime({utc}, '%Y-%m-%dT%H:%M:%S.%gZ') as {name}"
    if name in _NESTED:
        return f"to_json({name})::varchar as {name}"
    return f'"{name}"'


def _items(snapshots: list[Snapshot], ticks: Columns) -> Columns:
    """Return the columns of `ITEMS` without the times, with a row for each item of each snapshot.

    `ticks` are the columns of `TICKS` of the same snapshots: an item's row repeats some of them.
    """
    items_of: list[tuple[Item, ...]] = [snapshot.items or () for snapshot in snapshots]
    item_counts = np.array([len(items) for items in items_of], np.int64)
    items = list(chain.from_iterable(items_of))
    columns: dict[str, Any] = {
        name: np.repeat(ticks[name], item_counts)
        for name in ITEMS
        if name in TICKS and name not in _TIMES
    }
    columns["item"] = object_column([label for label, _ in items])
    columns["count"] = np.array([count for _, count in items], np.int64)
    # Of snapshots without sums. In an array of doubles None becomes nan, which is null later.
    no_sums = [(None,) * len(SUMS)]
    sums = chain.from_iterable(
        snapshot.sums or no_sums * len(items)
        for snapshot, items in zip(snapshots, items_of, strict=True)
    )
    # The shape is given for the case without items: numpy could not see it there.
    by_column = np.array(list(sums), np.float64).reshape(-1, len(SUMS)).T
    for name, column in zip(SUMS, by_column, strict=True):
        columns[name] = float_column(column)
    return columns


#: The columns of `ITEMS` for the numbers that a snapshot's `sums` has for each item.
SUMS = ("sum", "mean", "mean_low", "mean_high")


def tick_columns(
    snapshots: Sequence[Snapshot], shown: Sequence[int | None] | None = None
) -> Columns:
    """Return the columns of `TICKS` without the times, with a row for each snapshot.

    `shown` is the number of items of each snapshot, for snapshots that were read without their
    items; None: it is counted. A number is None for a snapshot that lists none, such as an answer.
    """
    if shown is None:
        shown = [
            None if snapshot.items is None else len(snapshot.items)
            for snapshot in snapshots
        ]
    rows = [
        _tick_row(snapshot, count)
        for snapshot, count in zip(snapshots, shown, strict=True)
    ]
    columns = {}
    for name, kind in TICKS.items():
        if name in _TIMES:
            continue
        values = [row.get(name) for row in rows]
        if kind == "double":
            columns[name] = float_column(values)
        elif kind == "bigint":
            columns[name] = long_column(values)
        else:
            columns[name] = object_column(values)
    return columns


def _tick_row(snapshot: Snapshot, shown: int | None) -> dict[str, Any]:
    """Return a snapshot's row of `TICKS` by column; columns without a value may be missing.

    `shown` is the number of its items; None if it lists none at all, as an answer to a query.
    Fields without a column are JSON in `rest`.
    """
    # Most columns are fields of the same name.
    row: dict[str, Any] = {
        name: getattr(snapshot, name)
        for name in TICKS
        if name in Snapshot.__struct_fields__ and name not in _NESTED
    }
    row["shown"] = shown
    promise = msgspec.to_builtins(snapshot.guarantee)
    row |= {name: promise.get(name) for name in _PROMISE}
    if snapshot.window is not None:
        row["window_ms"] = snapshot.window.ms
        row["window_from"] = snapshot.window.from_
        row["window_counts"] = snapshot.window.counts
    for name in _NESTED:
        row[name] = _json(getattr(snapshot, name))
    rest = dict(snapshot.further)
    # Another program may have written something else under these names: that stays in `rest`.
    if _has_numbers(rest.get("sum"), _RANGE):
        row |= {f"sum_{name}": value for name, value in rest.pop("sum").items()}
    if _has_numbers(rest.get("all_items"), ("count", "sd")):
        total = rest.pop("all_items")
        row |= {"all_items": total["count"], "all_items_sd": total["sd"]}
    row["rest"] = _json(rest)
    return row


def _has_numbers(value: object, names: Sequence[str]) -> bool:
    """Return whether a JSON value is an object of numbers, not booleans, with just these names.

    A `count` must fit the column: an integer of 64 bits.
    """
    return (
        isinstance(value, dict)
        and value.keys() == set(names)
        and all(type(number) in (int, float) for number in value.values())
        and type(value.get("count", 0)) is int
        and abs(value.get("count", 0)) < 2**63
    )


def _json(value: object) -> str | None:
    """Return a value as JSON, None (null in the table) for an empty one."""
    return msgspec.json.encode(value).decode() if value else None


def object_column(values: Sequence[Any]) -> np.ndarray[Any, Any]:
    """Return a column of the objects as they are; None is null."""
    # `np.array` would convert texts, and make lists of one length a matrix.
    column = np.empty(len(values), object)
    column[:] = values
    return column


def float_column(values: ArrayLike | Sequence[float | None]) -> np.ndarray[Any, Any]:
    """Return a column of doubles; None, nan and infinity are null: masked, as DuckDB takes it."""
    return np.ma.masked_invalid(np.array(values, np.float64))


def long_column(values: Sequence[int | None]) -> np.ndarray[Any, Any]:
    """Return a column of integers, in which None is null: masked, as DuckDB takes it."""
    missing = np.array([value is None for value in values], bool)
    return np.ma.masked_array(
        np.array([value or 0 for value in values], np.int64), missing
    )
