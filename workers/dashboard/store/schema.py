"""The tables of the history, in one DuckDB file.

    meta        the version of these tables
    positions   where to go on in each partition, and which topic it was
    gaps        what had gone from a partition before it was read: ends of ticks, between two times
    streams     histogram and stream key
    series      what all snapshots of one `id` have in common
    labels      labels by number
    kept        what was thinned, by stream

and for each level, the tables LEVEL_heads and LEVEL_counts, the same once more with `_new`, and
views over both with `_all`:

    ticks       every tick
    quarters    the last tick of each quarter of an hour of each series
    epochs      the last tick of each series

A level has what was overtaken: a tick enters `quarters` and `epochs` once another one shows that it
was the last. `place` numbers the snapshots in the order of arrival. New rows go to `_new`, in which
a tick lies together; once there are many they are sorted by stream, item and place into the other
table, where one item of one stream lies together: it takes about a byte a count then, and questions
read little else.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb

VERSION = 1
LEVELS = ("ticks", "quarters", "epochs")
#: All time zones are whole quarters of an hour apart: local days and hours end with one.
QUARTER_MS = 900_000
#: What DuckDB takes for its buffers; beyond it, it writes to disk.
MEMORY = "256MB"
SPILL = "2GB"
THREADS = 2

_HEADS = """place bigint not null, stream integer not null, series integer not null, tick bigint not null,
    start_ms bigint not null, end_ms bigint not null, sd double, threshold double, shown integer, total bigint, rest varchar not null"""
_COUNTS = "stream integer not null, item integer not null, place bigint not null, n bigint not null"
_TABLES = """
create table meta (version integer not null);
create table positions (topic varchar not null, part integer not null, topic_id varchar, next bigint not null);
create table gaps (histogram varchar not null, part integer not null, after_ms bigint, until_ms bigint);
create table streams (
    stream integer not null, histogram varchar not null, key varchar not null, part integer not null, first_end_ms bigint not null);
create table series (
    series integer not null, stream integer not null, id varchar not null, epoch bigint not null, mechanism varchar not null,
    guarantee varchar not null, edges varchar not null);
create table labels (item integer not null, label varchar not null);
create table kept (stream integer not null, level varchar not null, place bigint not null);
"""


class OtherVersion(Exception):
    """The file was written by another version of this program."""


def connect(path: Path) -> duckdb.DuckDBPyConnection:
    """Open a file, and make its tables if it is new.

    Raises:
        duckdb.Error: it cannot be opened: no such directory, not allowed, in use, full.
        OtherVersion: its tables are not those of this version.
    """
    database = duckdb.connect(
        str(path),
        config={
            "memory_limit": MEMORY,
            "threads": THREADS,
            "temp_directory": f"{path}.tmp",
            "max_temp_directory_size": SPILL,
            # Nothing is loaded from elsewhere, whatever a question needs.
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
        },
    )
    try:
        _prepare(database)
    except BaseException:
        database.close()
        raise
    return database


def _prepare(database: duckdb.DuckDBPyConnection) -> None:
    tables = {name for (name,) in database.execute("select table_name from duckdb_tables()").fetchall()}
    if "meta" in tables:
        found = database.execute("select version from meta").fetchall()
        if found != [(VERSION,)]:
            raise OtherVersion
        return
    if tables:
        raise OtherVersion
    database.begin()
    database.execute(_TABLES)
    for level in LEVELS:
        for kind, columns in (("heads", _HEADS), ("counts", _COUNTS)):
            database.execute(f"create table {level}_{kind} ({columns})")
            database.execute(f"create table {level}_{kind}_new ({columns})")
            database.execute(
                f"create view {level}_{kind}_all as from {level}_{kind} union all from {level}_{kind}_new"
            )
    database.execute("insert into meta values (?)", [VERSION])
    database.commit()


def first(database: duckdb.DuckDBPyConnection, question: str, values: Sequence[object] = ()) -> tuple[Any, ...] | None:
    """Return the first row of an answer, which is read to its end: a table may follow at once."""
    rows = database.execute(question, list(values)).fetchall()
    return rows[0] if rows else None
