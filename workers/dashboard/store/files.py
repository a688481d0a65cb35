"""Answers of the history as files, made piece by piece in bounded memory.

A piece is the rows of some ticks, read in a transaction of its own: a slow client holds neither the
history's file nor memory. Thinning may remove ticks between two pieces; then the answer fails, and
the client notices. The tables are those of `workers.client.tables`, so that a row is the same,
whoever wrote it.

CSV is sent piece by piece. Parquet has its directory at the end, so DuckDB first joins the pieces.
All files lie in one directory beside the history, which is emptied when the history is opened.
"""

import io
import itertools
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Literal, Protocol

import msgspec
import numpy as np

from workers.client.reading import Snapshot
from workers.client.tables import (
    ITEMS,
    SCHEMAS,
    SUMS,
    TICKS,
    Tables,
    copied,
    tick_columns,
    typed_columns,
)
from workers.dashboard.store.queries import (
    AnswerTooLarge,
    EpochsQuery,
    HistoryQuery,
    StoredRange,
    chosen,
    heads_of,
    is_complete,
    item_numbers,
    last_of_epochs,
    locate,
    selected,
    series_of,
    snapshot_of,
)
from workers.dashboard.store.writing import Database
from workers.runtime.frozen import ready

ROWS_MAX = 20_000_000
# Rows of a piece, and those of at most one more tick. Once CSV is being sent, a piece that lacks
# memory breaks the answer off; Parquet is sent when all pieces are made, and joining takes memory
# for each of them.
PIECE_ROWS = MappingProxyType({"csv": 20_000, "parquet": 50_000})
PIECE_TICKS = 5_000
Format = Literal["csv", "parquet"]
Table = Literal["items", "ticks"]
_NUMBERS = itertools.count()
ready(Snapshot)


class TicksGone(Exception):
    """Ticks of an answer were removed by retention while it was sent."""


class Piece(Protocol):
    """A query that returns an open file with the next bytes of an answer."""

    def __call__(self, cursor: Database) -> BinaryIO: ...


class HistoryFile:
    """An answer as a file; `plan` says what is in it, then the pieces are made in turn.

    The `queries` are of one histogram, one for each stream key.
    """

    def __init__(
        self,
        queries: Sequence[HistoryQuery | EpochsQuery],
        table: Table,
        format: Format,
        directory: Path,
    ) -> None:
        self._queries = queries
        self._table = table
        self._format = format
        # Of the whole Parquet file; pieces have a number behind its name.
        self._path = directory / f"{next(_NUMBERS)}"
        self._parts: list[Path] = []
        self.complete = True
        self._pieces: list[tuple[HistoryQuery | EpochsQuery, list[int]]] = []

    def plan(self, cursor: Database, reading: float | None) -> None:
        """Choose the ticks.

        Raises `NotStored`, `NotReadYet`, `AnswerTooLarge` (more than `ROWS_MAX` rows) or
        duckdb.Error.
        """
        total = 0
        self._pieces = []
        for query in self._queries:
            total += self._plan_stream(cursor, query, reading)
        if total > ROWS_MAX:
            raise AnswerTooLarge(
                f"the file would have {total:,} rows: at most {ROWS_MAX:,}; take a shorter time, a longer step or fewer items"
            )

    def _plan_stream(
        self,
        cursor: Database,
        query: HistoryQuery | EpochsQuery,
        reading: float | None,
    ) -> int:
        """Choose the ticks of a stream, and return how many rows they have."""
        where = locate(cursor, query.stream)
        heads = _heads(where, query)
        rows = cursor.execute(
            f"select place, coalesce(shown, 0) as shown from ({heads}) order by end_ms, place"
        ).fetchnumpy()
        places = rows["place"]
        if not is_complete(cursor, where, query, reading, len(places)):
            self.complete = False
        per_piece = PIECE_TICKS
        sizes = np.ones(len(places), np.int64)
        if self._table == "items":
            per_piece = PIECE_ROWS[self._format]
            sizes = rows["shown"].astype(np.int64)
            if query.items:
                sizes = np.minimum(sizes, len(set(query.items)))
        total = int(sizes.sum())
        # Ticks with few rows take memory too.
        sizes += per_piece // PIECE_TICKS
        # A tick is in the piece in which its first row lies.
        piece_of_tick = (np.cumsum(sizes) - sizes) // per_piece
        cuts = np.flatnonzero(np.diff(piece_of_tick)) + 1
        self._pieces += [(query, piece.tolist()) for piece in np.split(places, cuts)]
        return total

    def pieces(self) -> Iterator[Piece]:
        """Yield the queries that make the file, to be run in turn; each may be run again."""
        for number, (query, places) in enumerate(self._pieces):
            part = self._path.with_name(f"{self._path.name}-{number}")
            self._parts.append(part)
            yield self._piece(part, query, places, header=not number)
        if self._format == "parquet":
            yield self._joined

    def close(self) -> None:
        """Remove what is left of pieces."""
        for path in (*self._parts, self._path):
            path.unlink(missing_ok=True)

    def _piece(
        self,
        part: Path,
        query: HistoryQuery | EpochsQuery,
        places: Sequence[int],
        *,
        header: bool,
    ) -> Piece:
        """Return the query that makes the piece at a path, of the ticks at `places`.

        A piece of Parquet sends nothing: `_joined` sends the file.
        """

        def make(cursor: Database) -> BinaryIO:
            rows = _items if self._table == "items" else _ticks
            self._copy(cursor, rows(cursor, query, places), part, header=header)
            if self._format == "parquet":
                return io.BytesIO()
            return _taken(part)

        return make

    def _joined(self, cursor: Database) -> BinaryIO:
        """Return one Parquet file of all pieces."""
        names = ", ".join(_quoted(part) for part in self._parts)
        rows = f"select * from read_parquet([{names}])"
        self._copy(cursor, rows, self._path)
        return _taken(self._path)

    def _copy(
        self, cursor: Database, rows: str, path: Path, *, header: bool = True
    ) -> None:
        schema = SCHEMAS[self._table]
        cursor.execute(copied(rows, schema, path, self._format, header=header))


def _heads(where: StoredRange, query: HistoryQuery | EpochsQuery) -> str:
    """Return as SQL the heads of all ticks of an answer."""
    if isinstance(query, HistoryQuery):
        return selected(where, query)
    return last_of_epochs(where, query)


def _ticks(
    cursor: Database, query: HistoryQuery | EpochsQuery, places: Sequence[int]
) -> str:
    """Register the ticks at some places; return them as SQL with the columns of `TICKS`."""
    where = locate(cursor, query.stream)
    narrow = chosen(cursor, places)
    heads = heads_of(
        cursor,
        f"{where.every('heads')} semi join chosen using (place) where {narrow} order by end_ms, place",
    )
    if len(heads) != len(places):
        raise TicksGone
    series = series_of(cursor, (head.series for head in heads))
    snapshots = [
        _typed(snapshot_of(query.stream, head, series[head.series])) for head in heads
    ]
    columns = dict(tick_columns(snapshots, [head.shown for head in heads]))
    columns["place"] = np.array([head.place for head in heads], np.int64)
    cursor.register("ticks_of_piece", columns)
    return f"select {typed_columns(TICKS)} from ticks_of_piece"


def _items(
    cursor: Database, query: HistoryQuery | EpochsQuery, places: Sequence[int]
) -> str:
    """Return the items at some places as SQL with the columns of `ITEMS`."""
    _ticks(cursor, query, places)
    where = locate(cursor, query.stream)
    counts = where.every("counts")
    narrow = f"place between {min(places, default=0)} and {max(places, default=0)}"
    if query.items:
        numbers = item_numbers(cursor, query.items).values()
        narrow += f" and item in ({', '.join(map(str, numbers)) or 'null'})"
    # The columns of an item; the others are those of its tick.
    of_item = {"item": "label", "count": "n"} | {name: name for name in SUMS}
    shared = {name: kind for name, kind in ITEMS.items() if name not in of_item}
    listed = [
        f'rows."{of_item[name]}"::{kind} as "{name}"'
        if name in of_item
        else f'ticks."{name}"'
        for name, kind in ITEMS.items()
    ]
    names = ", ".join(f'"{name}"' for name in SUMS)
    rows = (
        f"select place, label, n, {names} from {counts} semi join chosen using (place) "
        f"join labels using (item) where {narrow}"
    )
    ticks = f"select place, {typed_columns(shared)} from ticks_of_piece"
    return (
        f"select {', '.join(listed)} from ({rows}) rows join ({ticks}) ticks using (place) "
        'order by ticks."end", place, rows.n desc, rows.label'
    )


def tick_file(
    fields: dict[str, Any], table: Table, format: Format, directory: Path
) -> bytes:
    """Return a file of a snapshot, or of the changes over a window that `changes` returns.

    A change is a count of a window. How much of a newly shown item came in it is not known, so its
    count is null, as its sum is.
    """
    change = fields.get("change")
    # What the tables have in other columns, or follows from them.
    for name in ("end_time", "counts", "total_items"):
        fields.pop(name, None)
    if change is not None:
        begin_ms = change["from"]
        fields["window"] = {"ms": fields["end"] - begin_ms, "from": begin_ms}
    items = fields.get("items")
    sums = fields.get("sums") or ()
    snapshot = _typed(fields)
    if items is not None:
        rows = tuple((label, number) for label, number in items)
        sum_rows = tuple(tuple(row) for row in sums)
        snapshot = msgspec.structs.replace(snapshot, items=rows, sums=sum_rows)
    tables = Tables.of([snapshot])
    if change is not None:
        unknown = "update items set count = null, sd = null, sum_sd = null where item in (select unnest(?::varchar[]))"
        tables.database.execute(unknown, [change["new"]])
    path = directory / f"{next(_NUMBERS)}-tick"
    try:
        tables.database.execute(copied(f"from {table}", SCHEMAS[table], path, format))
        return path.read_bytes()
    finally:
        path.unlink(missing_ok=True)


def _typed(fields: dict[str, Any]) -> Snapshot:
    """Return a snapshot with its typed fields, but without items and their sums.

    `further` gets the fields that no snapshot has, and those that another program wrote in a form
    of its own.
    """
    names = set(Snapshot.__struct_fields__) - {"further"}
    further = {name: fields[name] for name in fields if name not in names}
    for name in ("page", "pages", "items", "sums"):
        fields.pop(name, None)
        further.pop(name, None)
    try:
        return msgspec.convert(fields | {"further": further}, Snapshot)
    except msgspec.ValidationError:
        optional = ("edges", "quantiles", "windows", "previous_id", "window")
        further |= {name: fields.pop(name) for name in optional if name in fields}
        return msgspec.convert(fields | {"further": further}, Snapshot)


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


def _taken(path: Path) -> BinaryIO:
    """Return an open file without its name, so that nothing remains of it."""
    file = path.open("rb")
    path.unlink()
    return file


def emptied(directory: Path) -> None:
    """Make or empty the directory of pieces: those of a process that was killed go."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
