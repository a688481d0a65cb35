"""Writes snapshots into the history, sorts new rows, and thins old ones.

A batch and its positions are written in one transaction, so a crash loses and repeats nothing.
Ticks ascend within a series, so repeated snapshots are skipped. Age counts from a histogram's
newest tick, not the wall clock: old topics keep the configured retention, and idle ones lose
nothing.

Tables, in one DuckDB file:

    meta        schema version
    positions   where to resume in each partition, and the id of its topic
    gaps        unread records removed from a partition: ends of ticks, between two times
    streams     histogram and stream key
    series      common fields of all snapshots of one `id`
    labels      labels of items by number
    kept        first place that remains in a thinned level, by stream

Each level also has tables LEVEL_heads (a row for each tick) and LEVEL_counts (a row for each tick
and item), the same with `_new`, and views over both with `_all`. The levels are `ticks` (every
tick), `quarters` (the last tick of each quarter of an hour of each series) and `epochs` (the last
tick of each series). A tick enters the last two once a later one arrives. `place` numbers snapshots
in arrival order. In `_new`, the rows of a tick are adjacent. Once there are many, they are sorted
by (stream, item, place) into the other table, where the rows of an item are adjacent: about a byte
per count, and queries read little else.

Columns: streams, series and items are numbers; `part` is a partition, `n` a count, `shown` how many
items a tick has and `total` the sum of their counts, `rest` JSON of the fields without a column.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import duckdb
import numpy as np
import orjson

from workers.client.messages import Frame, SeenSnapshot, SumRow
from workers.client.tables import SUMS, float_column, object_column

Database: TypeAlias = duckdb.DuckDBPyConnection
VERSION = 2
LEVELS = ("ticks", "quarters", "epochs")
# All time zones are whole quarters of an hour apart, so local days and hours end with one.
QUARTER_MS = 900_000
# DuckDB's buffer memory, for the writer and all queries; beyond it, DuckDB spills to disk.
MEMORY = "128MB"
SPILL = "2GB"
THREADS = 2

_HEADS = """place bigint not null, stream integer not null, series integer not null, tick bigint not null,
    start_ms bigint not null, end_ms bigint not null, sd double, threshold double, shown integer, total bigint, rest varchar not null"""
_COUNTS = """stream integer not null, item integer not null, place bigint not null, n bigint not null,
    "sum" double, mean double, mean_low double, mean_high double"""
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


class SchemaMismatch(Exception):
    """The file was written by another version of this program."""


def connect(path: Path) -> Database:
    """Open or create a file; raise duckdb.Error if that fails, SchemaMismatch for old tables."""
    # Not relative: DuckDB would read a beginning such as `md:` as a scheme.
    path = path.absolute()
    spilling = {"temp_directory": f"{path}.tmp", "max_temp_directory_size": SPILL}
    # Never load extensions, whatever a query needs.
    extensions = {
        f"auto{verb}_known_extensions": "false" for verb in ("install", "load")
    }
    limits: dict[str, Any] = {"memory_limit": MEMORY, "threads": THREADS}
    database = duckdb.connect(str(path), config=limits | spilling | extensions)
    try:
        _prepare(database)
    except BaseException:
        database.close()
        raise
    return database


def _prepare(database: Database) -> None:
    """Create the tables of a new file; raise SchemaMismatch for those of another version."""
    tables = database.execute("select table_name from duckdb_tables()").fetchall()
    if tables:
        if ("meta",) not in tables:
            raise SchemaMismatch
        versions = database.execute("select version from meta").fetchall()
        if versions != [(VERSION,)]:
            raise SchemaMismatch
        return
    with _transaction(database):
        database.execute(_TABLES)
        for level in LEVELS:
            for kind, columns in (("heads", _HEADS), ("counts", _COUNTS)):
                database.execute(f"create table {level}_{kind} ({columns})")
                database.execute(f"create table {level}_{kind}_new ({columns})")
                database.execute(
                    f"create view {level}_{kind}_all as from {level}_{kind} union all from {level}_{kind}_new"
                )
        database.execute("insert into meta values (?)", [VERSION])


def first(
    database: Database, query: str, values: Sequence[object] = ()
) -> tuple[Any, ...] | None:
    """Return the first row of a result, None of an empty one.

    All of the result is read: DuckDB may not run another query before.
    """
    rows = database.execute(query, list(values)).fetchall()
    return rows[0] if rows else None


# So many rows are stored in the order of arrival before they are sorted.
COUNTS_NEW = 4_000_000
HEADS_NEW = 500_000
_ORDER = {"heads": "stream, place", "counts": "stream, item, place"}


def compact(
    database: Database, counts_min: int = COUNTS_NEW, heads_min: int = HEADS_NEW
) -> None:
    """Move the rows of every `_new` table into the sorted one, if it has at least so many."""
    for level in LEVELS:
        for kind, rows_min in (("counts", counts_min), ("heads", heads_min)):
            table = f"{level}_{kind}"
            new_rows = first(database, f"select count(*) from {table}_new")
            if new_rows is None or new_rows[0] < rows_min:
                continue
            with _transaction(database):
                database.execute(
                    f"insert into {table} from {table}_new order by {_ORDER[kind]}"
                )
                database.execute(f"delete from {table}_new")


def thin(
    database: Database, ends: Mapping[str, int], keep_ms: Mapping[str, int]
) -> None:
    """Remove ticks past their retention from `ticks` and `quarters`, except each stream's newest.

    Those that the next level keeps longer were copied there when a later tick came (`_promote`).
    `ends` is the newest tick's `end` by histogram, ms; `keep_ms` the retention by level.
    """
    for level, level_ms in keep_ms.items():
        since = np.array([end - level_ms for end in ends.values()], np.int64)
        with _transaction(database):
            database.register(
                "since", {"histogram": object_column(list(ends)), "ms": since}
            )
            # The table `first`: the first place of each stream that remains, at most its newest.
            database.execute(
                "create or replace temp table first as select stream, coalesce(min(place) filter "
                f"(end_ms > ms), max(place)) as place from {level}_heads_all join streams using "
                "(stream) join since using (histogram) group by stream"
            )
            database.unregister("since")
            # Leave out streams of which nothing is to go: no place is before the first.
            database.execute(
                "delete from first where place <= (select min(place) from "
                f"{level}_heads_all rows where rows.stream = first.stream)"
            )
            for kind in ("heads", "heads_new", "counts", "counts_new"):
                table = f"{level}_{kind}"
                database.execute(
                    f"delete from {table} using first where {table}.stream = first.stream and {table}.place < first.place"
                )
            database.execute(
                f"delete from kept using first where level = '{level}' and kept.stream = first.stream"
            )
            database.execute(
                f"insert into kept select stream, '{level}', place from first"
            )
            database.execute("drop table first")


@contextmanager
def _transaction(database: Database) -> Iterator[None]:
    """Commit what is done within; roll it back after an error."""
    database.begin()
    try:
        yield
        database.commit()
    except BaseException:
        with suppress(duckdb.Error):  # the file failed, and the transaction with it
            database.rollback()
        raise


# Fields of a snapshot that are not in `rest`: they have columns of their own, but for `page` and
# `pages`, which are 1 in a complete one.
_NOT_IN_REST = frozenset(
    {*Frame.__struct_fields__, "edges"} - {"sums", "sum", "window", "previous_id"}
)
# Entries of a cache; a full cache is cleared and refilled from the file.
CACHED = 200_000
# A browser reads smaller numbers exactly.
_EXACT = 2**53


class Arrival(NamedTuple):
    """A snapshot that was read from a histogram topic, and the partition that it came from."""

    part: int
    snapshot: SeenSnapshot


@dataclass(frozen=True, slots=True)
class Position:
    """Where to resume in a partition: the next offset, and the id of the topic that it is of.

    The id changes if the topic is deleted and made again; None: the cluster gives none.
    """

    topic_id: str | None
    next: int


class _Newest(NamedTuple):
    """The newest tick of a stream; `quarter` numbers the quarters of an hour since 1970."""

    place: int
    series: int
    quarter: int


class _Counts(NamedTuple):
    """What a tick shows: a count of each label and, if `sums` has any, its sum and mean."""

    place: int
    stream: int
    labels: list[str]
    counts: list[int]
    sums: list[SumRow]


class _Batch:
    """New rows by table, until one transaction inserts them.

    `labels` has the number of each new label. `overtaken` are the places of ticks that are to be
    copied to a level, as a later tick shows that they are the last of a quarter or a series.
    `opened` is, by histogram and partition, the end of the first new tick: an open gap ends there.
    """

    def __init__(self) -> None:
        # Rows of the tables of these names.
        self.heads: list[tuple[object, ...]] = []
        self.streams: list[tuple[object, ...]] = []
        self.series: list[tuple[object, ...]] = []
        self.labels: dict[str, int] = {}
        self.counts: list[_Counts] = []
        self.overtaken: dict[str, list[int]] = {"quarters": [], "epochs": []}
        self.opened: dict[tuple[str, int], int] = {}


class Writer:
    """Adds to an open file; called by one thread. After an error, open the file again."""

    def __init__(self, database: Database) -> None:
        self._db = database
        # The last place that was given, 0 if none was.
        heads = " union all ".join(
            f"select max(place) from {level}_heads_all" for level in LEVELS
        )
        self._place = self._number(f"select max(place) from ({heads}) as places(place)")
        self._stream_numbers: dict[tuple[str, str], int] = {
            (histogram, key): stream
            for stream, histogram, key in self._rows(
                "select stream, histogram, key from streams"
            )
        }
        self._next_stream = self._number("select max(stream) from streams") + 1
        self._next_series = self._number("select max(series) from series") + 1
        self._next_item = self._number("select max(item) from labels") + 1
        # Caches of the file: series by their common fields, the last tick by series (0: none),
        # items by label.
        self._series_numbers: dict[tuple[object, ...], int] = {}
        self._last_tick: dict[int, int] = {}
        self._item_of: dict[str, int] = {}
        # The newest tick of each stream.
        self._newest: dict[int, _Newest] = {}
        #: By histogram: the end of its newest tick, ms.
        self.ends: dict[str, int] = {}
        newest = (
            "select histogram, stream, max(place), arg_max(series, place), arg_max(end_ms, place) "
            "from ticks_heads_all join streams using (stream) group by all"
        )
        for histogram, stream, place, series, end in self._rows(newest):
            self._newest[stream] = _Newest(place, series, _quarter(end))
            self.ends[histogram] = max(self.ends.get(histogram, end), end)
        # Whether there are gaps whose end is not known yet.
        self._open_gaps = (
            self._number("select count(*) from gaps where until_ms is null") > 0
        )

    def positions(self) -> dict[tuple[str, int], Position]:
        """Return where to resume, by topic and partition."""
        rows = self._rows("select topic, part, topic_id, next from positions")
        return {
            (topic, part): Position(topic_id, next_)
            for topic, part, topic_id, next_ in rows
        }

    def note_gap(self, histogram: str, part: int) -> None:
        """Note that unread records of a partition were removed, until its next tick is read.

        The gap opens at the start of the newest tick, not its end: they may be of other stream keys
        of this tick. Without a stored tick its start is null: unbounded.
        """
        self._db.execute(
            "insert into gaps select ?, ?, max(start_ms), null from ticks_heads_all join streams "
            "using (stream) where histogram = ? and part = ?",
            [histogram, part, histogram, part],
        )
        self._open_gaps = True

    def write(
        self, arrived: Iterable[Arrival], positions: Mapping[tuple[str, int], Position]
    ) -> int:
        """Store snapshots and the positions after them; return the number of new snapshots.

        Those of a partition are in its order. After duckdb.Error, nothing was stored, or the
        outcome is unknown.
        """
        batch = _Batch()
        for arrival in arrived:
            self._add(batch, arrival)
        with _transaction(self._db):
            self._insert(batch)
            for (topic, part), position in positions.items():
                self._set_position(topic, part, position)
        for cache in (self._series_numbers, self._last_tick, self._item_of):
            if len(cache) > CACHED:
                cache.clear()
        return len(batch.heads)

    def _add(self, batch: _Batch, arrived: Arrival) -> None:
        """Add a snapshot's rows to a batch, unless it is stored already."""
        snapshot = arrived.snapshot
        parsed = _parsed(snapshot)
        stream = self._stream(batch, arrived)
        series = self._series_of(batch, stream, snapshot, parsed)
        if snapshot.tick <= self._last_tick[series]:
            return
        self._last_tick[series] = snapshot.tick
        self._place += 1
        place = self._place
        quarter = _quarter(snapshot.end)
        # The tick before it was the last of its quarter, or of its series.
        before = self._newest.get(stream)
        if before is not None and (before.series, before.quarter) != (series, quarter):
            batch.overtaken["quarters"].append(before.place)
            if before.series != series:
                batch.overtaken["epochs"].append(before.place)
        self._newest[stream] = _Newest(place, series, quarter)
        histogram = snapshot.histogram
        end = snapshot.end
        self.ends[histogram] = max(self.ends.get(histogram, end), end)
        # An open gap of the partition ends here: at this tick's end, not its start, as its records
        # of other keys may be among the removed ones.
        batch.opened.setdefault((histogram, arrived.part), end)
        if parsed.labels:
            shown = _Counts(place, stream, parsed.labels, parsed.counts, parsed.sums)
            batch.counts.append(shown)
        # In the order of the columns of `ticks_heads`.
        times = snapshot.tick, snapshot.start, end
        batch.heads.append((place, stream, series, *times, *parsed.head, parsed.rest))

    def _stream(self, batch: _Batch, arrived: Arrival) -> int:
        """Return the number of a snapshot's stream; a new one is added to the batch."""
        snapshot = arrived.snapshot
        name = (snapshot.histogram, snapshot.key)
        stream = self._stream_numbers.get(name)
        if stream is None:
            stream = self._stream_numbers[name] = self._next_stream
            self._next_stream += 1
            # With the end of its first tick.
            batch.streams.append((stream, *name, arrived.part, snapshot.end))
        return stream

    def _series_of(
        self, batch: _Batch, stream: int, snapshot: SeenSnapshot, parsed: _Parsed
    ) -> int:
        """Return the number of a snapshot's series; its last tick is then in `_last_tick`.

        A series is recognized by all the fields that its snapshots share; a new one is added to the
        batch.
        """
        named = snapshot.id, snapshot.epoch, snapshot.mechanism
        common = (stream, *named, parsed.guarantee, parsed.edges)
        series = self._series_numbers.get(common)
        if series is None:
            names = ("stream", "id", "epoch", "mechanism", "guarantee", "edges")
            same = " and ".join(f"{name} = ?" for name in names)
            stored = first(self._db, f"select series from series where {same}", common)
            if stored is None:
                series = self._next_series
                self._last_tick[self._next_series] = 0  # none yet
                self._next_series += 1
                batch.series.append((series, *common))
            else:
                series = int(stored[0])
            self._series_numbers[common] = series
        # Not cached: ask the file, all levels of it, as thinning removes ticks from the finer ones.
        if series not in self._last_tick:
            heads = " union all ".join(
                f"select max(tick) from {level}_heads_all where stream = {stream} and series = {series}"
                for level in LEVELS
            )
            self._last_tick[series] = self._number(
                f"select max(tick) from ({heads}) as ticks(tick)"
            )
        return series

    def _insert(self, batch: _Batch) -> None:
        """Insert a batch, and end the gaps before it."""
        _insert(self._db, "streams", batch.streams, _STREAM_TYPES)
        _insert(self._db, "series", batch.series, _SERIES_TYPES)
        if batch.heads:
            _insert(self._db, "ticks_heads_new", batch.heads, _HEAD_TYPES)
            self._insert_counts(batch)
            # Last: an overtaken tick may be of this batch.
            self._promote(batch.overtaken)
        if self._open_gaps and batch.opened:
            for (histogram, part), end in batch.opened.items():
                self._db.execute(
                    "update gaps set until_ms = ? where histogram = ? and part = ? and until_ms is null",
                    [end, histogram, part],
                )
            self._open_gaps = (
                self._number("select count(*) from gaps where until_ms is null") > 0
            )

    def _insert_counts(self, batch: _Batch) -> None:
        """Insert the counts of a batch, a row per tick and item, with numbers for new labels."""
        if not batch.counts:
            return
        places, streams, labels, counts, sums = zip(*batch.counts, strict=True)
        items = self._numbers_of(set(chain.from_iterable(labels)), batch)
        # A tick's values are repeated for each of its items.
        lengths = [len(of_tick) for of_tick in labels]
        columns = {
            "stream": np.repeat(np.array(streams, np.int32), lengths),
            "item": np.array(
                [items[label] for label in chain.from_iterable(labels)], np.int32
            ),
            "place": np.repeat(np.array(places, np.int64), lengths),
            "n": np.array(list(chain.from_iterable(counts)), np.int64),
        }
        if any(sums):
            # A tick without sums beside ticks with them gets nulls.
            no_sums = [(None,) * len(SUMS)]
            rows = chain.from_iterable(
                of_tick or no_sums * length
                for of_tick, length in zip(sums, lengths, strict=True)
            )
            by_column = np.array(list(rows), np.float64).T
            for name, column in zip(SUMS, by_column, strict=True):
                columns[name] = float_column(column)
        new = [(item, label) for label, item in batch.labels.items()]
        _insert(self._db, "labels", new, (np.int32, object))
        self._db.register("added", columns)
        self._db.execute("insert into ticks_counts_new by name from added")
        self._db.unregister("added")

    def _numbers_of(self, labels: set[str], batch: _Batch) -> dict[str, int]:
        """Return the number of each label; new labels get one, and are added to the batch."""
        missing = [label for label in labels if label not in self._item_of]
        if missing:
            # Sorted, so that the same topic yields the same numbers.
            self._db.register("sought", {"label": np.array(sorted(missing), object)})
            known = self._rows(
                "select label, item from labels semi join sought using (label)"
            )
            self._item_of.update(dict(known))
            self._db.unregister("sought")
            for label in sorted(missing):
                if label not in self._item_of:
                    self._item_of[label] = batch.labels[label] = self._next_item
                    self._next_item += 1
        return {label: self._item_of[label] for label in labels}

    def _promote(self, overtaken: Mapping[str, Sequence[int]]) -> None:
        """Copy ticks from the level `ticks` to those that keep them longer: the places by level."""
        for level, places in overtaken.items():
            if not places:
                continue
            self._db.register("promoted", {"place": np.array(places, np.int64)})
            for kind in ("heads", "counts"):
                self._db.execute(
                    f"insert into {level}_{kind}_new select rows.* from ticks_{kind}_all rows "
                    f"semi join promoted using (place) where place between {min(places)} and {max(places)}"
                )
            self._db.unregister("promoted")

    def _set_position(self, topic: str, part: int, position: Position) -> None:
        """Replace where to resume in a partition, within the transaction of its snapshots."""
        self._db.execute(
            "delete from positions where topic = ? and part = ?", [topic, part]
        )
        values = [topic, part, position.topic_id, position.next]
        self._db.execute("insert into positions values (?, ?, ?, ?)", values)

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        return self._db.execute(query).fetchall()

    def _number(self, query: str) -> int:
        """Return the one number that a query selects, 0 for null, as of an empty table."""
        row = first(self._db, query)
        return int(row[0]) if row is not None and row[0] is not None else 0


def _insert(
    database: Database,
    table: str,
    rows: Sequence[tuple[object, ...]],
    types: Sequence[Any],
) -> None:
    """Insert rows, whose columns have these `types`.

    They go through arrays: as parameters of SQL they would take a hundred times as long.
    """
    if not rows:
        return
    columns = [
        _array(*column) for column in zip(zip(*rows, strict=True), types, strict=True)
    ]
    database.register("added", {f"c{i}": column for i, column in enumerate(columns)})
    database.execute(f"insert into {table} from added")
    database.unregister("added")


def _array(values: Sequence[Any], kind: Any) -> np.ndarray[Any, Any]:
    """Return a column of one of numpy's types, of `object`, or of `float`: numbers or None.

    DuckDB converts the doubles to the type of the table's column.
    """
    if kind is float:
        return float_column(values)
    return object_column(values) if kind is object else np.array(values, kind)


# Types of the columns of `streams`, `series` and `..._heads`, in the order of the tables.
_STREAM_TYPES = (np.int32, object, object, np.int32, np.int64)
_SERIES_TYPES = (np.int32, np.int32, object, np.int64, object, object, object)
_HEAD_TYPES = (
    *(np.int64, np.int32, np.int32),
    *(np.int64, np.int64, np.int64),
    *(float, float, float, float),
    object,
)


class _Parsed(NamedTuple):
    """The fields of a snapshot's JSON as they are stored; missing texts are empty."""

    labels: list[str]
    counts: list[int]
    sums: list[SumRow]
    # sd, threshold, shown and total, in the order of the columns of heads.
    head: tuple[float | None, float | None, int | None, int | None]
    guarantee: str
    edges: str
    rest: str


def _parsed(snapshot: SeenSnapshot) -> _Parsed:
    """Return the fields of a snapshot as they are stored."""
    fields = orjson.loads(snapshot.json)
    items: list[tuple[str, int]] | None = fields.get("items")
    rest = {name: fields[name] for name in fields if name not in _NOT_IN_REST}
    sums: list[SumRow] = rest.pop("sums", None) or []
    labels = [label for label, _ in items or ()]
    counts = [count for _, count in items or ()]
    # No total is stored that a browser would round.
    total = None if items is None or abs(sum(counts)) >= _EXACT else sum(counts)
    return _Parsed(
        labels=labels,
        counts=counts,
        sums=sums,
        head=(
            fields["sd"],
            fields["threshold"],
            None if items is None else len(items),
            total,
        ),
        guarantee=_text(fields["guarantee"]),
        edges=_text(fields["edges"]) if "edges" in fields else "",
        rest=_text(rest) if rest else "",
    )


def _text(value: object) -> str:
    return orjson.dumps(value).decode()


def _quarter(end_ms: int) -> int:
    """Return the number since 1970 of the quarter of an hour in which a tick ends."""
    return (end_ms - 1) // QUARTER_MS  # a tick that ends with a quarter belongs to it
