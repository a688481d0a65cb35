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
from typing import Any, BinaryIO, Literal, Protocol

import msgspec
import numpy as np

from workers.client.reading import Snapshot
from workers.client.tables import (
    ITEMS,
    SCHEMAS,
    SUMS,
    TICKS,
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
# Rows of a piece, and those of at most one more tick.
PIECE_ROWS = 100_000
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
    """An answer as a file; `plan` says what is in it, then the pieces are made in turn."""

    def __init__(
        self,
        query: HistoryQuery | EpochsQuery,
        table: Table,
        format: Format,
        directory: Path,
    ) -> None:
        self._query = query
        self._table = table
        self._format = format
        self._path = directory / f"{next(_NUMBERS)}"
        self._parts: list[Path] = []
        self.complete = True
        self._pieces: list[list[int]] = []

    def plan(self, cursor: Database, reading: float | None) -> None:
        """Choose the ticks.

        Raises `NotStored`, `NotReadYet`, `AnswerTooLarge` (more than `ROWS_MAX` rows) or
        duckdb.Error.
        """
        where = locate(cursor, self._query.stream)
        heads = self._heads(where)
        rows = cursor.execute(
            f"select place, coalesce(shown, 0) as shown from ({heads}) order by end_ms, place"
        ).fetchnumpy()
        places = rows["place"]
        self.complete = is_complete(cursor, where, self._query, reading, len(places))
        per_piece = PIECE_TICKS
        sizes = np.ones(len(places), np.int64)
        if self._table == "items":
            per_piece = PIECE_ROWS
            sizes = rows["shown"].astype(np.int64)
            if self._query.items:
                sizes = np.minimum(sizes, len(set(self._query.items)))
        total = int(sizes.sum())
        if total > ROWS_MAX:
            raise AnswerTooLarge(
                f"the file would have {total:,} rows: at most {ROWS_MAX:,}; take a shorter time, a longer step or fewer items"
            )
        # Ticks with few rows take memory too.
        sizes += per_piece // PIECE_TICKS
        # A tick is in the piece in which its first row lies.
        piece_of_tick = (np.cumsum(sizes) - sizes) // per_piece
        cuts = np.flatnonzero(np.diff(piece_of_tick)) + 1
        self._pieces = [piece.tolist() for piece in np.split(places, cuts)]

    def pieces(self) -> Iterator[Piece]:
        """Yield the queries that make the file, to be run in turn."""
        for number, places in enumerate(self._pieces):
            yield self._piece(number, places)
        if self._format == "parquet":
            yield self._joined

    def close(self) -> None:
        """Remove what is left of pieces."""
        for part in self._parts:
            part.unlink(missing_ok=True)

    def _piece(self, number: int, places: Sequence[int]) -> Piece:
        """Return the query that makes piece `number`, of the ticks at `places`.

        A piece of Parquet sends nothing: `_joined` sends the file.
        """

        def make(cursor: Database) -> BinaryIO:
            rows = self._items if self._table == "items" else self._ticks
            part = self._path.with_name(f"{self._path.name}-{number}")
            self._parts.append(part)
            self._copy(cursor, rows(cursor, places), part, header=not number)
            if self._format == "parquet":
                return io.BytesIO()
            return _taken(part)

        return make

    def _joined(self, cursor: Database) -> BinaryIO:
        """Return one Parquet file of all pieces."""
        names = ", ".join(_quoted(part) for part in self._parts)
        whole = self._path.with_name(f"{self._path.name}-all")
        self._parts.append(whole)
        rows = f"select * from read_parquet([{names}])"
        self._copy(cursor, rows, whole)
        return _taken(whole)

    def _copy(
        self, cursor: Database, rows: str, path: Path, *, header: bool = True
    ) -> None:
        schema = SCHEMAS[self._table]
        cursor.execute(copied(rows, schema, path, self._format, header=header))

    def _heads(self, where: StoredRange) -> str:
        """Return as SQL the heads of all ticks of the answer."""
        if isinstance(self._query, HistoryQuery):
            return selected(where, self._query)
        return last_of_epochs(where, self._query)

    def _ticks(self, cursor: Database, places: Sequence[int]) -> str:
        """Register the ticks at some places; return them as SQL with the columns of `TICKS`."""
        where = locate(cursor, self._query.stream)
        narrow = chosen(cursor, places)
        heads = heads_of(
            cursor,
            f"{where.every('heads')} semi join chosen using (place) where {narrow} order by end_ms, place",
        )
        if len(heads) != len(places):
            raise TicksGone
        series = series_of(cursor, (head.series for head in heads))
        snapshots = [
            _typed(snapshot_of(self._query.stream, head, series[head.series]))
            for head in heads
        ]
        columns = dict(tick_columns(snapshots, [head.shown for head in heads]))
        columns["place"] = np.array([head.place for head in heads], np.int64)
        cursor.register("ticks_of_piece", columns)
        return f"select {typed_columns(TICKS)} from ticks_of_piece"

    def _items(self, cursor: Database, places: Sequence[int]) -> str:
        """Return the items at some places as SQL with the columns of `ITEMS`."""
        self._ticks(cursor, places)
        where = locate(cursor, self._query.stream)
        counts = where.every("counts")
        narrow = f"place between {min(places, default=0)} and {max(places, default=0)}"
        if self._query.items:
            numbers = item_numbers(cursor, self._query.items).values()
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


def _typed(fields: dict[str, Any]) -> Snapshot:
    """Return a snapshot's fields with their types; those of another program stay as they are."""
    names = set(Snapshot.__struct_fields__) - {"further"}
    further = {name: fields[name] for name in fields if name not in names}
    for name in ("page", "pages", "items", "sums"):
        fields.pop(name, None)
        further.pop(name, None)
    try:
        return msgspec.convert(fields | {"further": further}, Snapshot)
    except msgspec.ValidationError:
        odd = ("edges", "quantiles", "windows", "previous_id", "window")
        further |= {name: fields.pop(name) for name in odd if name in fields}
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
