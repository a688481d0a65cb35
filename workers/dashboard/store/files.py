"""Questions that are answered with a file, CSV or Parquet: a row an item and tick.

DuckDB writes the whole file beside the history; it loses its name when it is opened, so nothing is
left of it however the process ends. Only a file that is whole is sent, and its length before it.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import BinaryIO, Literal

import duckdb
import numpy as np

from workers.dashboard.store.questions import EpochsQuestion, HistoryQuestion, selected
from workers.dashboard.store.reading import TooMuch, held, is_complete, item_numbers
from workers.dashboard.store.schema import first

ROWS = 20_000_000
Format = Literal["csv", "parquet"]
_OPTIONS = {"csv": "format csv, header true", "parquet": "format parquet, compression zstd"}
_NUMBERS = itertools.count()


def history_file(
    cursor: duckdb.DuckDBPyConnection, asked: HistoryQuestion | EpochsQuestion, reading: float | None, format: Format, path: Path
) -> BinaryIO:
    """Return an open file with the answer; `path` is that of the history.

    Raises:
        Unknown: no such stream.
        TooMuch: more than `ROWS` rows.
        duckdb.Error: it could not be written.
    """
    where = held(cursor, asked.stream)
    complete = is_complete(cursor, asked.stream, where, asked.range, reading)
    if isinstance(asked, HistoryQuestion):
        heads = selected(where, asked)
        counts = where.stepped("counts", asked.range.since or 0, asked.step)
    else:
        heads = (
            f"select * exclude newest from (select *, max(place) over (partition by series) as newest from {where.last('heads')}) "
            f"where place = newest and {asked.range.where}"
        )
        counts = where.last("counts")
    cursor.execute(f"create or replace temp table heads as {heads}")
    rows = "greatest(coalesce(shown, 0), 1)" if not asked.items else str(len(asked.items))
    found = first(cursor, f"select coalesce(sum({rows}), 0)::bigint, min(place), max(place) from heads")
    if found is not None and found[0] > ROWS:
        raise TooMuch(f"the file would have {found[0]:,} rows: at most {ROWS:,}; take a shorter time, a longer step or fewer items")
    narrow = "false" if found is None or found[1] is None else f"place between {found[1]} and {found[2]}"
    if asked.items:
        numbers = item_numbers(cursor, asked.items)
        wanted = list(dict.fromkeys(asked.items))
        cursor.register(
            "wanted",
            {
                "nr": np.arange(len(wanted)),
                "label": _texts(wanted),
                "item": np.array([numbers.get(label, -1) for label in wanted], np.int32),
            },
        )
        cells, order = "heads cross join wanted", "nr"
    else:
        cells, order = "heads", "n desc, label"
    of_tick = f"(select place, item, n from {counts} where {narrow})"
    joined = (
        f"{cells} left join {of_tick} using (place, item)"
        if asked.items
        else f"{cells} left join {of_tick} using (place) left join labels using (item)"
    )
    written = path.with_name(f"{path.name}.file-{os.getpid()}-{next(_NUMBERS)}")
    cursor.register("stream_name", {"histogram": _texts([asked.stream.histogram]), "key": _texts([asked.stream.key])})
    try:
        cursor.execute(
            f"""copy (
                select histogram, key, id, epoch, tick, start_ms as "start", end_ms as "end", label as item, n as count, sd,
                    threshold, mechanism, nullif(rest, '') as rest, {str(complete).lower()} as complete
                from {joined} join series using (series) cross join stream_name
                order by end_ms, place, {order})
            to '{_quoted(written)}' ({_OPTIONS[format]})"""
        )
        return written.open("rb")
    finally:
        written.unlink(missing_ok=True)


def remove_files(path: Path) -> None:
    """Remove what processes left that were killed while they wrote."""
    for left in path.parent.glob(f"{path.name}.file-*"):
        left.unlink(missing_ok=True)


def _texts(values: list[str]) -> np.ndarray[tuple[int], np.dtype[np.object_]]:
    found = np.empty(len(values), object)
    found[:] = values
    return found


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")
