"""Answers of the history as files, made piece by piece in bounded memory.

A piece is the rows of some ticks, read in a transaction of its own: a slow client holds neither the
history's file nor memory. Thinning may remove ticks between two pieces; then the answer fails, and
the client notices. The tables are those of `workers.client.tables`, so that a row is the same,
whoever wrote it.

CSV is sent piece by piece. Parquet has its directory at the end, so DuckDB first joins the pieces.
All files lie in one directory beside the history, which is emptied when the history is opened.

A stream is a histogram's snapshots for one stream key. Each stored tick of it has a number, its
place, and a row without its counts, its head (`queries`).
"""

import io
import itertools
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, BinaryIO, Literal

import msgspec
import numpy as np

from workers.client.reading import Snapshot
from workers.client.tables import (
    ITEMS,
    SCHEMAS,
    SUMS,
    TICKS,
    Tables,
    copy_statement,
    tick_columns,
    typed_columns,
)
from workers.dashboard.store.queries import (
    AnswerTooLarge,
    EpochsQuery,
    HistoryQuery,
    StoredRange,
    heads_of,
    heads_of_epochs,
    heads_of_history,
    is_complete,
    item_numbers,
    locate,
    register_chosen,
    series_of,
    snapshot_of,
)
from workers.dashboard.store.writing import Database
from workers.runtime.frozen import ready

ROWS_MAX = 20_000_000
# Rows of a piece, which may have those of one more tick. Pieces of CSV are small: once it is being
# sent, one that lacks memory breaks the answer off. Parquet is sent when all pieces are made, and
# joining takes memory for each of them.
PIECE_ROWS = MappingProxyType({"csv": 20_000, "parquet": 50_000})
PIECE_TICKS = 5_000
Format = Literal["csv", "parquet"]
Table = Literal["items", "ticks"]
# For names of files, each used once.
_NUMBERS = itertools.count()
ready(Snapshot)


class TicksGone(Exception):
    """Ticks of an answer were removed by retention while it was sent."""


Piece = Callable[[Database], BinaryIO]
"""A query on the history that returns an open file: the next bytes of an answer."""


class HistoryFile:
    """An answer as a file; `plan` chooses what is in it, then the `pieces` are made in turn.

    The `queries` are of one histogram, one for each stream key. `complete` is whether it has all
    ticks of their ranges.
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
        # Of the whole Parquet file; the files of pieces have a number behind its name.
        self._path = directory / f"{next(_NUMBERS)}"
        self._parts: list[Path] = []
        self.complete = True
        # What `plan` chose: for each piece a query, and the places of its ticks.
        self._pieces: list[tuple[HistoryQuery | EpochsQuery, list[int]]] = []

    def plan(self, cursor: Database, reading: float | None) -> None:
        """Choose the ticks of each piece.

        `reading` is the share of the topics read so far, None once all are. Raises `NotStored`,
        `NotReadYet`, `AnswerTooLarge` (more than `ROWS_MAX` rows) or duckdb.Error.
        """
        total = 0
        self._pieces = []  # it may be run again
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
        """Choose a stream's ticks, cut them into pieces, and return how many rows they have.

        `reading` is that of `plan`.
        """
        stored = locate(cursor, query.stream)
        heads = _heads_of_answer(stored, query)
        ticks = cursor.execute(
            f"select place, coalesce(shown, 0) as shown from ({heads}) order by end_ms, place"
        ).fetchnumpy()
        places = ticks["place"]
        if not is_complete(cursor, stored, query, reading, len(places)):
            self.complete = False
        piece_rows = PIECE_TICKS
        rows = np.ones(len(places), np.int64)  # of each tick
        weights = rows
        if self._table == "items":
            piece_rows = PIECE_ROWS[self._format]
            rows = ticks["shown"].astype(np.int64)
            if query.items:
                rows = np.minimum(rows, len(set(query.items)))
            # A tick without rows takes memory too: so no piece has more than PIECE_TICKS ticks.
            weights = rows + piece_rows // PIECE_TICKS
        # A tick is in the piece in which its first row lies.
        piece_of_tick = (np.cumsum(weights) - weights) // piece_rows
        cuts = np.flatnonzero(np.diff(piece_of_tick)) + 1
        # Without ticks there is one empty piece: the file has a header.
        self._pieces += [(query, piece.tolist()) for piece in np.split(places, cuts)]
        return int(rows.sum())

    def pieces(self) -> Iterator[Piece]:
        """Yield the queries that make the file, to be run in turn; each may be run again."""
        for number, (query, places) in enumerate(self._pieces):
            part = self._path.with_name(f"{self._path.name}-{number}")
            self._parts.append(part)
            yield partial(
                self._piece, part=part, query=query, places=places, header=number == 0
            )
        if self._format == "parquet":
            yield self._joined

    def close(self) -> None:
        """Remove the files that are left, such as pieces of Parquet."""
        for path in (*self._parts, self._path):
            path.unlink(missing_ok=True)

    def _piece(
        self,
        cursor: Database,
        *,
        part: Path,
        query: HistoryQuery | EpochsQuery,
        places: Sequence[int],
        header: bool,
    ) -> BinaryIO:
        """Write the ticks at `places` into the file `part`; return what of it is to be sent.

        That is the open file, but nothing of Parquet: only the joined file is sent (`_joined`).
        """
        rows_of = _item_rows if self._table == "items" else _tick_rows
        self._copy(cursor, rows_of(cursor, query, places), part, header=header)
        if self._format == "parquet":
            return io.BytesIO()
        return _opened_and_unlinked(part)

    def _joined(self, cursor: Database) -> BinaryIO:
        """Return one Parquet file of all pieces."""
        names = ", ".join(_quoted(part) for part in self._parts)
        self._copy(cursor, f"select * from read_parquet([{names}])", self._path)
        return _opened_and_unlinked(self._path)

    def _copy(
        self, cursor: Database, rows: str, path: Path, *, header: bool = True
    ) -> None:
        """Write rows, a query with the columns of the file's table, into a file."""
        schema = SCHEMAS[self._table]
        cursor.execute(copy_statement(rows, schema, path, self._format, header=header))


def _heads_of_answer(stored: StoredRange, query: HistoryQuery | EpochsQuery) -> str:
    """Return as SQL the heads of the ticks in an answer: over time, or the last of each epoch.

    `stored` is where the stream's ticks are.
    """
    if isinstance(query, HistoryQuery):
        return heads_of_history(stored, query)
    return heads_of_epochs(stored, query)


def _tick_rows(
    cursor: Database, query: HistoryQuery | EpochsQuery, places: Sequence[int]
) -> str:
    """Return the ticks at some places as SQL with the columns of `TICKS`.

    They are in a table `ticks_of_piece`, which is registered here and also has their places. Raise
    TicksGone if some were removed meanwhile.
    """
    stored = locate(cursor, query.stream)
    in_range = register_chosen(cursor, places)
    heads = heads_of(
        cursor,
        f"{stored.every('heads')} semi join chosen using (place) where {in_range} order by end_ms, place",
    )
    if len(heads) != len(places):
        raise TicksGone
    series = series_of(cursor, (head.series for head in heads))
    snapshots = [
        _typed(snapshot_of(query.stream, head, series[head.series])) for head in heads
    ]
    # These snapshots have no items: how many there are is passed beside them.
    columns = dict(tick_columns(snapshots, [head.shown for head in heads]))
    columns["place"] = np.array([head.place for head in heads], np.int64)
    cursor.register("ticks_of_piece", columns)
    return f"select {typed_columns(TICKS)} from ticks_of_piece"


def _item_rows(
    cursor: Database, query: HistoryQuery | EpochsQuery, places: Sequence[int]
) -> str:
    """Return the items of the ticks at some places as SQL with the columns of `ITEMS`."""
    # Registers the table `ticks_of_piece`, which the query below joins.
    _tick_rows(cursor, query, places)
    counts = locate(cursor, query.stream).every("counts")
    condition = register_chosen(cursor, places)
    if query.items:
        numbers = item_numbers(cursor, query.items).values()
        condition += f" and item in ({', '.join(map(str, numbers)) or 'null'})"
    # Columns of `ITEMS` by their names in the history; the others are those of the item's tick.
    history_name = {"item": "label", "count": "n"} | {name: name for name in SUMS}
    shared = {name: kind for name, kind in ITEMS.items() if name not in history_name}
    columns = [
        f'rows."{history_name[name]}"::{kind} as "{name}"'
        if name in history_name
        else f'ticks."{name}"'
        for name, kind in ITEMS.items()
    ]
    names = ", ".join(f'"{name}"' for name in SUMS)
    rows = (
        f"select place, label, n, {names} from {counts} semi join chosen using (place) "
        f"join labels using (item) where {condition}"
    )
    ticks = f"select place, {typed_columns(shared)} from ticks_of_piece"
    return (
        f"select {', '.join(columns)} from ({rows}) rows join ({ticks}) ticks using (place) "
        'order by ticks."end", place, rows.n desc, rows.label'
    )


def tick_file(fields: dict[str, Any], table: Table, format: Format) -> bytes:
    """Return the bytes of a file of one tick: a snapshot, or the changes over a window.

    `fields`, which are used up, are its parsed JSON, as `changes` returns it if it has "change".
    A change is a count of a window. How much of a newly shown item came in the window is not known,
    so its count is null, as its sum already is.
    """
    change = fields.get("change")
    # The tables have these in other columns, or they follow from them.
    for name in ("end_time", "counts", "total_items"):
        fields.pop(name, None)
    if change is not None:
        begin_ms = change["from"]
        fields["window"] = {"ms": fields["end"] - begin_ms, "from": begin_ms}
    items = fields.get("items")
    sums = fields.get("sums") or ()
    snapshot = _typed(fields)
    if items is not None:
        rows = tuple((label, count) for label, count in items)
        sum_rows = tuple(tuple(row) for row in sums)
        snapshot = msgspec.structs.replace(snapshot, items=rows, sums=sum_rows)
    tables = Tables.of([snapshot])
    if change is not None:
        unknown = "update items set count = null, sd = null, sum_sd = null where item in (select unnest(?::varchar[]))"
        tables.database.execute(unknown, [change["new"]])
    with TemporaryDirectory(prefix="quietcount-file-") as directory:
        path = Path(directory) / "tick"
        tables.database.execute(
            copy_statement(f"from {table}", SCHEMAS[table], path, format)
        )
        return path.read_bytes()


def _typed(fields: dict[str, Any]) -> Snapshot:
    """Return parsed JSON, whose items and sums are dropped, as a snapshot with typed fields.

    `further` gets the fields that the type does not have, and those that another program wrote in a
    form of its own.
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


def _opened_and_unlinked(path: Path) -> BinaryIO:
    """Open a file and remove its name: nothing remains of it once it is closed."""
    file = path.open("rb")
    path.unlink()
    return file


def empty_directory(directory: Path) -> None:
    """Make the directory of pieces, or empty it of those that a killed process left."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
