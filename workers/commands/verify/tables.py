"""An export, or files of the page, as a copy: rows of the tables `items` and `ticks`.

From the rows of a tick its JSON is made again, of which the digest was signed. From that JSON all
rows are made again, and compared with those of the copy: so no column is left out. All rows are
kept as text, as CSV has them; a "place" numbers the ticks of the copy.
"""

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import duckdb
import orjson

from workers.client.messages import InvalidSnapshot, Pages
from workers.client.reading import Snapshot, typed
from workers.client.rebuilt import ItemRow, one_page
from workers.client.tables import ITEMS, JOINED, SCHEMAS, TICKS, Tables, as_text
from workers.client.verifying import NotAsSigned, SignedHistory, name_of
from workers.commands.verify.records import Checked
from workers.runtime.errors import SettingsError
from workers.runtime.printing import printable

# Ticks that are made again at once.
_TICKS = 500
# What reads the text of a column, by its type; columns of other types, lists, are JSON.
_READ: Mapping[str, Callable[[str], Any]] = MappingProxyType(
    {"bigint": int, "double": float, "timestamptz": str, "varchar": str}
)
# A row's texts, None where it has no value.
_Row = tuple[str | None, ...]


class TableCopy:
    """Files with rows of both tables, CSV (may be gzipped) or Parquet, or exports' directories."""

    def __init__(self, paths: Iterable[Path]) -> None:
        """Take files as they are, and of a directory, which is an export, all of its files."""
        #: Whether the copy is of exports alone, which hold all stream keys; a file may hold some.
        self.is_whole = True
        self._files: list[Path] = []
        for path in paths:
            # An export.
            if path.is_dir():
                self._files += _files_of(path)
            else:
                self.is_whole = False
                self._files.append(path)

    def verify(self, history: SignedHistory) -> Mapping[str, Checked]:
        """Check every tick, to the first fault."""
        checked: dict[str, Checked] = defaultdict(Checked)
        with tempfile.TemporaryDirectory() as directory:
            database = duckdb.connect(str(Path(directory) / "copy.duckdb"))
            try:
                self._load(database)
                for batch in _batches(database):
                    self._check(history, batch, checked)
            except duckdb.Error as error:
                first = str(error).partition("\n")[0]
                raise NotAsSigned(f"the tables cannot be read: {first}") from None
            finally:
                database.close()
        return checked

    def _load(self, database: duckdb.DuckDBPyConnection) -> None:
        """Copy the rows into tables, as text: `ticks` and `items`, both with a tick's `place`.

        They come by way of `given_ticks` and `given_items`, which are as the files. Places are in
        the order of histogram, stream key and time. Raise NotAsSigned for an item without a tick.
        """
        database.execute("set TimeZone = 'UTC'")
        for name, schema in SCHEMAS.items():
            columns = ", ".join(f'"{column}" varchar' for column in schema)
            database.execute(f"create table given_{name} ({columns})")
        for path in self._files:
            self._load_file(database, path)
        database.execute(
            "create table ticks as select row_number() over () as place, * from "
            '(select * from given_ticks order by histogram, key, "end"::bigint)'
        )
        named = ", ".join(JOINED)
        # Of a tick that is there twice, the first row gets the items.
        database.execute(
            f"create table items as select place, given_items.* from given_items left join "
            f"(select {named}, min(place) as place from ticks group by all) using ({named}) order by place"
        )
        lost = database.execute("select * from items where place is null").fetchone()
        if lost is not None:
            row = dict(zip(("place", *ITEMS), lost, strict=True))
            raise NotAsSigned(
                f"histogram {row['histogram']!r}, key {row['key']!r}: item {row['item']!r} of a tick without a row in ticks"
            )

    @staticmethod
    def _load_file(database: duckdb.DuckDBPyConnection, path: Path) -> None:
        """Add the rows of a file to `given_items` or `given_ticks`; its columns say to which."""
        quoted = str(path.absolute()).replace("'", "''")
        is_csv = ".csv" in path.suffixes
        if is_csv:
            # Nothing is guessed: all is text, and an empty cell null, unless it is in quotes.
            options = "header = true, all_varchar = true, delim = ',', quote = '\"', escape = '\"', nullstr = ''"
            options += (
                ", allow_quoted_nulls = false, sample_size = 1, strict_mode = true"
            )
            rows = f"read_csv('{quoted}', {options})"
        elif path.suffix == ".parquet":
            rows = f"read_parquet('{quoted}')"
        else:
            raise SettingsError(
                f"{path}: a file's name must end with .csv, .csv.gz, .parquet or .jsonl"
            )
        if not path.is_file():
            raise SettingsError(f"{path}: no such file")
        found = database.execute(f"select * from {rows} limit 0").description or []
        names = [column[0] for column in found]
        for table, schema in SCHEMAS.items():
            if names == list(schema):
                columns = ", ".join(
                    f'"{name}"' if is_csv else _exact_text(name) for name in schema
                )
                database.execute(
                    f"insert into given_{table} select {columns} from {rows}"
                )
                return
        raise NotAsSigned(f"{path}: has not the columns of one of the tables")

    @staticmethod
    def _check(
        history: SignedHistory,
        batch: "_Batch",
        checked: dict[str, Checked],
    ) -> None:
        """Check some ticks against what was signed, and all columns of their rows."""
        snapshots = []
        for row, items in zip(batch.ticks, batch.items, strict=True):
            tick = _typed_row(row, TICKS)
            place = tick["histogram"], tick["key"], tick["end"]
            if len(history.signed.get(place, ())) > 1:
                raise SettingsError(
                    f"{name_of(place)}: published in parts, which tables do not tell apart: verify the topics, by -c alone"
                )
            value = made_again(row, items)
            # It raises for another digest; None: from before the first signature.
            is_signed = history.match(place, value, "the tables") is not None
            checked[tick["histogram"]].add(
                tick["key"], tick["end"], is_signed=is_signed
            )
            snapshots.append(_snapshot(tick["histogram"], value))
        again = Tables.of(snapshots)
        given = {"ticks": batch.ticks, "items": list(chain.from_iterable(batch.items))}
        for table, schema in SCHEMAS.items():
            columns = ", ".join(as_text(name) for name in schema)
            made = again.sql(f"select {columns} from {table}").fetchall()
            # In any order, as rows have none; by `repr`, as None cannot be compared with a text.
            for copied, signed in zip_longest(
                sorted(given[table], key=repr), sorted(texts(made), key=repr)
            ):
                if copied != signed:
                    raise NotAsSigned(_difference(table, copied, signed))


def made_again(tick: _Row, items: Iterable[_Row]) -> bytes:
    """Return a snapshot's JSON as one page, from its rows as text, or raise `NotAsSigned`."""
    counted = [_counted(_typed_row(item, ITEMS)) for item in items]
    row = _typed_row(tick, TICKS)
    try:
        return one_page(row, counted)
    # Of a changed row any value may be missing, of another type or too large.
    except (ArithmeticError, AttributeError, TypeError, ValueError):
        place = row["histogram"], row["key"], row["end"]
        raise NotAsSigned(
            f"the tables: {name_of(place)}: a value that no worker writes"
        ) from None


class _Batch(NamedTuple):
    """Rows of some ticks as text, and for each of them those of its items."""

    ticks: list[_Row]
    items: list[list[_Row]]


def _batches(database: duckdb.DuckDBPyConnection) -> Iterator[_Batch]:
    """Yield all rows in the order of places, some ticks at once; a row begins with its place."""
    [number] = database.execute("select count(*) from ticks").fetchone() or (0,)
    for first in range(1, number + 1, _TICKS):
        span = f"where place between {first} and {first + _TICKS - 1}"
        ticks = database.execute(
            f"select * from ticks {span} order by place"
        ).fetchall()
        items: dict[int, list[_Row]] = defaultdict(list)
        for place, *row in database.execute(f"select * from items {span}").fetchall():
            items[place].append(tuple(row))
        yield _Batch(
            [tuple(row) for _, *row in ticks], [items[place] for place, *_ in ticks]
        )


def _exact_text(name: str) -> str:
    """Return as SQL a column as CSV has it, in which no difference is lost."""
    if not name.endswith("_time"):
        return as_text(name)
    # CSV has times in ms: one that is no whole number of them was changed, and must not be rounded.
    # (`as_text` gives the column its name again.)
    text = as_text(name).removesuffix(f" as {name}")
    return f"if(epoch_us({name}) % 1000 = 0, {text}, {name}::varchar)"


def _typed_row(row: _Row, schema: Mapping[str, str]) -> dict[str, Any]:
    """Return a row's values by column, in the types of its table, or raise `NotAsSigned`.

    `schema` is `ITEMS` or `TICKS`: the columns, in the row's order, with their types.
    """
    values: dict[str, Any] = {}
    for (name, kind), text in zip(schema.items(), row, strict=True):
        read = _READ.get(kind, orjson.loads)
        try:
            values[name] = None if text is None else read(text)
        except ValueError:
            raise NotAsSigned(
                f"the tables: {name} = {printable(text or '')}: not a {kind}"
            ) from None
    if None in (values["histogram"], values["key"], values["tick"], values["end"]):
        raise NotAsSigned("the tables: a row without histogram, key, tick or end")
    return values


def _counted(item: Mapping[str, Any]) -> ItemRow:
    """Return what was counted of an item, of its row's values by column, for its tick's JSON."""
    return (
        item["item"],
        item["count"],
        item["sum"],
        item["mean"],
        item["mean_low"],
        item["mean_high"],
    )


def _snapshot(series: str, value: bytes) -> Snapshot:
    """Return a snapshot from its JSON."""
    try:
        seen = Pages().receive(series, value)
        # None only while pages or parts are missing; `made_again` makes one page of one part.
        assert seen is not None
        return typed(seen)
    except InvalidSnapshot as error:
        raise NotAsSigned(f"the tables: {series}: {error}") from None


def texts(rows: Iterable[Sequence[Any]]) -> list[_Row]:
    """Return rows with every value as text, None where there is none."""
    return [
        tuple(None if value is None else str(value) for value in row) for row in rows
    ]


def _difference(table: str, copied: _Row | None, signed: _Row | None) -> str:
    """Return how a row of the copy differs from the signed one; None: that side has no such row."""
    schema = SCHEMAS[table]
    row = dict(zip(schema, copied or signed or (), strict=True))
    where = f"histogram {row['histogram']!r}, key {row['key']!r}, tick {row['tick']}"
    if copied is None or signed is None:
        return f"{where}: {table} has {'one row more' if signed is None else 'one row less'} than was signed"
    columns = [
        name for name, a, b in zip(schema, copied, signed, strict=True) if a != b
    ]
    return (
        f"{where}: {table}: {', '.join(columns)}: not what follows from what was signed"
    )


def _files_of(directory: Path) -> list[Path]:
    """Return the files of an export, without hidden ones, which no commit covers."""
    found = [
        path
        for table in SCHEMAS
        for path in sorted((directory / table).glob("*.*"))
        if not path.name.startswith(".")
    ]
    if not found:
        raise SettingsError(f"{directory}: not an export in CSV or Parquet")
    return found
