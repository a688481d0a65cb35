"""Keeps the history small: sorts what has arrived, and thins what has grown old.

Age is counted from a histogram's newest tick, never from the wall clock: an old topic keeps what
its settings say, and one that stands still loses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import duckdb
import numpy as np

from workers.dashboard.store.schema import LEVELS, first

#: Rows that lie in the order of arrival before they are sorted.
COUNTS_NEW = 4_000_000
HEADS_NEW = 500_000
_ORDER = {"heads": "stream, place", "counts": "stream, item, place"}


def settle(database: duckdb.DuckDBPyConnection, counts: int = COUNTS_NEW, heads: int = HEADS_NEW) -> None:
    """Sort the new rows of each table that has at least so many of them."""
    for level in LEVELS:
        for kind, least in (("counts", counts), ("heads", heads)):
            table = f"{level}_{kind}"
            found = first(database, f"select count(*) from {table}_new")
            if found is None or found[0] < least:
                continue
            database.begin()
            try:
                database.execute(f"insert into {table} from {table}_new order by {_ORDER[kind]}")
                database.execute(f"delete from {table}_new")
                database.commit()
            except BaseException:
                database.rollback()
                raise


def thin(database: duckdb.DuckDBPyConnection, ends: Mapping[str, int], keep_ms: Mapping[str, int]) -> None:
    """Remove from `ticks` and `quarters` what is older than is to be kept.

    The newest row of each stream stays, whatever its age: of what came before it, the last of each
    quarter of an hour and of each epoch is in the next level already.

    Args:
        ends: `end` of the newest tick of each histogram, ms.
        keep_ms: for how long rows of a level are kept.
    """
    for level, keep in keep_ms.items():
        since = {histogram: end - keep for histogram, end in ends.items()}
        database.begin()
        try:
            database.register(
                "since", {"histogram": np.array(list(since), object), "ms": np.array(list(since.values()), np.int64)}
            )
            database.execute(
                "create or replace temp table first as select stream, "
                "coalesce(min(place) filter (end_ms > ms), max(place)) as place "
                f"from {level}_heads_all join streams using (stream) join since using (histogram) group by stream"
            )
            database.unregister("since")
            database.execute(
                "delete from first where place <= (select min(place) from "
                f"{level}_heads_all rows where rows.stream = first.stream)"
            )
            for table in (f"{level}_heads", f"{level}_heads_new", f"{level}_counts", f"{level}_counts_new"):
                database.execute(
                    f"delete from {table} using first where {table}.stream = first.stream and {table}.place < first.place"
                )
            database.execute(f"delete from kept using first where level = '{level}' and kept.stream = first.stream")
            database.execute(f"insert into kept select stream, '{level}', place from first")
            database.execute("drop table first")
            database.commit()
        except BaseException:
            database.rollback()
            raise
