"""Snapshots as rows: a DuckDB relation, which any DataFrame library takes."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import duckdb
import msgspec
import numpy as np
from numpy.typing import ArrayLike

from workers.client.reading import Item, Snapshot


def table(snapshots: Iterable[Snapshot]) -> duckdb.DuckDBPyRelation:
    """Return a row for each item; one without item for a tick that shows none, or an answer.

    `.df()` makes a pandas DataFrame of it, `.pl()` one of polars, `.to_arrow_table()` a table of
    pyarrow; all of them take SQL expressions first, as in `.filter("count > 100")`.
    """
    many = list(snapshots)
    # A snapshot without items has one row.
    shown = [snapshot.items or (Item("", 0),) for snapshot in many]
    rows = np.array([len(items) for items in shown], np.int64)
    hidden = np.repeat([not snapshot.items for snapshot in many], rows).astype(bool)
    items = list(chain.from_iterable(shown))
    labels = object_column([label for label, _ in items])
    labels[hidden] = None
    counts = np.array([count for _, count in items], np.int64)
    columns: dict[str, np.ndarray[Any, Any]] = {
        name: np.repeat(column, rows) for name, column in _heads(many)
    }
    columns |= {"item": labels, "count": np.ma.masked_array(counts, hidden)}
    unsummed = [_NO_SUM]
    sums = chain.from_iterable(
        snapshot.sums or unsummed * len(items)
        for snapshot, items in zip(many, shown, strict=True)
    )
    by_sum = np.array(list(sums), np.float64).reshape(-1, 4).T
    for name, column in zip(_SUMS, by_sum, strict=True):
        columns[name] = float_column(column)
    database = duckdb.connect(":memory:")
    database.execute("set TimeZone = 'UTC'")
    database.register("columns", columns)
    database.execute(f"create table snapshots as select {_SELECT} from columns")
    database.unregister("columns")
    return database.table("snapshots")


_SUMS = ("sum", "mean", "mean_low", "mean_high")
_NO_SUM = (None,) * len(_SUMS)
_TEXTS = ("histogram", "key", "id", "mechanism")
_NUMBERS = ("epoch", "tick", "start", "end")
_PROMISE = ("rho", "epsilon", "delta")
_SELECT = """
    histogram::varchar as histogram, "key"::varchar as "key", id::varchar as id,
    epoch::bigint as epoch, tick::bigint as tick, "start"::bigint as "start", "end"::bigint as "end",
    make_timestamptz("start" * 1000) as start_time, make_timestamptz("end" * 1000) as end_time,
    item::varchar as item, "count"::bigint as "count", sd::double as sd, threshold::double as threshold,
    "sum"::double as "sum", mean::double as mean, mean_low::double as mean_low, mean_high::double as mean_high,
    mechanism::varchar as mechanism, unit::varchar as unit,
    rho::double as rho, epsilon::double as epsilon, delta::double as delta, rest::varchar as rest"""


def _heads(many: list[Snapshot]) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yield the columns that all rows of a snapshot share."""
    for name in _TEXTS:
        yield name, object_column([getattr(snapshot, name) for snapshot in many])
    yield "unit", object_column([snapshot.guarantee.unit for snapshot in many])
    yield "rest", object_column([_rest(snapshot) for snapshot in many])
    for name in _NUMBERS:
        yield name, np.array([getattr(snapshot, name) for snapshot in many], np.int64)
    promises = [snapshot.guarantee for snapshot in many]
    for names, owners in ((_PROMISE, promises), (("sd", "threshold"), many)):
        for name in names:
            yield name, float_column([getattr(owner, name) for owner in owners])


def _rest(one: Snapshot) -> str | None:
    """Return as JSON what has no column of its own; None if there is nothing."""
    lists = {"edges": one.edges, "quantiles": one.quantiles, "windows": one.windows}
    rest = {name: values for name, values in lists.items() if values} | one.further
    if one.previous_id is not None:
        rest["previous_id"] = one.previous_id
    if one.window is not None:
        rest["window"] = one.window
    return msgspec.json.encode(rest).decode() if rest else None


def object_column(values: Sequence[Any]) -> np.ndarray[Any, Any]:
    """Return an array of the objects as they are, which numpy would convert; None is null."""
    column = np.empty(len(values), object)
    column[:] = values
    return column


def float_column(values: ArrayLike) -> np.ndarray[Any, Any]:
    """Return a column of doubles, in which None is null."""
    return np.ma.masked_invalid(np.array(values, np.float64))
