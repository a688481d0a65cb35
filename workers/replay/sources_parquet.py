"""Parquet: rows as columns of codes, row group after row group.

The columns have the names that the settings give the fields of an event, and hold what a JSON event
would:

    stream key   text
    items        text; a list of texts; a map of text to whole numbers; a list of structures of one
                 text and one whole number
    time         whole numbers (ms since 1970), or timestamps of any unit (without a zone: UTC; less
                 than a ms is cut off)
    user         text or whole numbers, where users are protected

A null is a missing field. A row is refused for the reasons of the JSON reader (`EventReader`),
looked for in the same order; only that of a record's size has no meaning here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from workers.agents.factory import declared_keys
from workers.errors import SettingsError
from workers.events.columns import NO_AMOUNTS, Coder, Events, Longs, Names
from workers.events.project import PLAUSIBLE_MS
from workers.events.times import EARLIEST_MS, EARLY, with_unit
from workers.events.vocabulary import Codes
from workers.replay import arrow_columns as arrow
from workers.replay.ahead import ahead
from workers.replay.arrow_columns import NOT_DECLARED, NOT_UTF8, NULL, TOO_LONG, WRONG, TextColumn, UserColumn
from workers.replay.source import EventBatch, InOrder, shape_of_files
from workers.settings import ALL_STREAM_KEY, Settings
from workers.shapes.paths import Path
from workers.shapes.views import ALL_KEYS, Shape

# Of a row group the dictionary of its texts comes with every batch, and is looked up each time.
ROWS_AT_ONCE = 1 << 18
# Rows of a row group, on average, from which on it is worth a batch of its own.
GROUP_ROWS = 1 << 14
Bools = NDArray[np.bool_]


class ParquetRows:
    """The rows of a Parquet file; see the module."""

    word = "row"
    partitions = 1
    places: Sequence[str] = ()
    until_ms = None

    def __init__(self, settings: Settings, name: str, file: IO[bytes]) -> None:
        """
        Args:
            settings: of the worker.
            name: for messages.
            file: the file, from its beginning.

        Raises:
            SettingsError: it is no Parquet, or lacks a column, or one is of a type that no event
                has.
        """
        shape = shape_of_files(settings)
        [(self._name_of_view, view)] = shape.views.items()
        self.name = name
        self._key = None if view.key == ALL_KEYS else _column(view.key)
        self._items, self._time = _column(view.items), _column(shape.time)
        self._user = None if shape.user is None else _column(shape.user)
        try:
            schema = pq.read_schema(file)
            file.seek(0)
            metadata = pq.read_metadata(file)
            file.seek(0)
            self._groups = _groups(metadata)
            texts = [field.name for field in schema if arrow.is_text(field.type)]
            if self._groups != [None]:
                texts += _texts_in(self._items, schema, metadata)
            # malloc keeps what a batch gives back; pyarrow's own pool faults it in again.
            pa.set_memory_pool(pa.system_memory_pool())
            # With `pre_buffer` memory would grow with the file.
            self._file = pq.ParquetFile(file, read_dictionary=texts, buffer_size=1 << 20, pre_buffer=False)
        except (pa.ArrowException, OSError) as error:
            raise SettingsError(f"{name}: not a Parquet file: {_first_line(error)}") from error
        self._check(schema)
        self.total: int | None = self._file.metadata.num_rows
        self._map = pa.types.is_map(schema.field(self._items).type)
        self._coder = Coder(Names())
        self._keys = TextColumn(Names(declared_keys(settings)[self._name_of_view] or ()), declared_keys(settings)[self._name_of_view])
        self._labels, self._users = TextColumn(self._coder.labels), UserColumn()
        self._order = InOrder(name, self.word, settings.events.grace_ms)
        self._reasons = [
            "",
            f"missing field {self._key!r}",
            f"field {self._key!r} is not a string, whole number or boolean",
            f"missing field {self._items!r}",
            f"a count in {self._items!r} is not a non-negative integer",
            f"field {self._items!r} has an item that is not a string, whole number or boolean",
            f"missing field {self._time!r}",
            f"field {self._time!r} is not a time in ms",
            f"missing field {self._user!r}",
            f"field {self._user!r} is not a string or a whole number",
            "label too long",
            "key not declared",
            EARLY,
            with_unit(EARLY, EARLIEST_MS // 1000, "ms"),
            f"field {self._time!r} is not a time in ms: nanoseconds?",
        ]

    def batches(self) -> Iterator[EventBatch]:
        wanted = list(dict.fromkeys(c for c in (self._key, self._items, self._time, self._user) if c is not None))
        read = 0
        try:
            for rows in ahead(self._rows(wanted)):
                events, refused = self._events(rows)
                rejects: list[tuple[int, str]] = []
                if refused.any():
                    rejects = [(read + 1 + at, self._reasons[refused[at]]) for at in np.flatnonzero(refused).tolist()]
                self._order.check(events.times, read + 1 + events.index)
                read += rows.num_rows
                yield EventBatch(0, events, rejects, read)
        except (pa.ArrowException, OSError) as error:
            raise SettingsError(f"{self.name}: cannot be read after row {read:,}: {_first_line(error)}") from error

    def ended(self) -> frozenset[int]:
        return frozenset()

    def _rows(self, columns: list[str]) -> Iterator[Any]:
        for groups in self._groups:
            yield from self._file.iter_batches(ROWS_AT_ONCE, row_groups=groups, columns=columns, use_threads=False)

    def _check(self, schema: Any) -> None:
        """Refuses a file that lacks a column, or has one of another type."""
        for column, setting, allowed, fits in (
            (self._key, "events.key", "text", arrow.is_text),
            (
                self._items,
                "events.items",
                "text, list<text>, map<text, int> or list<struct<text, int>>",
                arrow.is_items,
            ),
            (self._time, "events.timestamp", "int64 (ms since 1970) or timestamp", arrow.is_time),
            (self._user, "events.user", "text or int64", lambda kind: arrow.is_text(kind) or pa.types.is_integer(kind)),
        ):
            if column is None:
                continue
            if column not in schema.names:
                raise SettingsError(
                    f"{self.name}: no column {column!r} ({setting}); its columns are {', '.join(schema.names)}"
                )
            if schema.names.count(column) > 1:
                raise SettingsError(f"{self.name}: {schema.names.count(column)} columns {column!r} ({setting})")
            kind = schema.field(column).type
            if not fits(kind):
                raise SettingsError(f"{self.name}: column {column!r} ({setting}) is {kind}; it must be {allowed}")

    def _events(self, rows: Any) -> tuple[Events, NDArray[np.int8]]:
        """The valid events of some rows, and for each row the number of the reason why it is none
        (0: it is one).
        """
        n = rows.num_rows
        refused = np.zeros(n, dtype=np.int8)

        def refuse(which: Bools | None, reason: int) -> None:
            if which is not None:
                refused[which & (refused == 0)] = reason

        keys = self._key_codes(rows)
        self._labels.begin()
        items = arrow.items_of(rows.column(self._items), self._labels)
        times = arrow.times_of(rows.column(self._time))
        users = wrong_users = None
        if self._user is not None:
            users, wrong_users = self._users.digests(rows.column(self._user))
        refuse(_is(keys, NULL), 1)
        refuse(_is(keys, NOT_UTF8), 2)
        if not items.present.all():
            refuse(~items.present, 3)
        if items.amounts is not None:
            refuse(_rows_with(items.amounts, WRONG, items.lengths), 4)
        refuse(_rows_with(items.codes, NULL, items.lengths), 5)
        refuse(_rows_with(items.codes, NOT_UTF8, items.lengths), 5)
        if int(times.min(initial=0)) < 0:
            refuse(arrow.missing(rows.column(self._time)), 6)
            refuse(arrow.in_ns(rows.column(self._time), PLAUSIBLE_MS), 14)
            refuse(times < 0, 7)
        if wrong_users is not None:
            refuse(_is(wrong_users, NULL), 8)
            refuse(_is(wrong_users, NOT_UTF8), 9)
            refuse(_is(wrong_users, TOO_LONG), 10)
        refuse(_rows_with(items.codes, TOO_LONG, items.lengths), 10)
        refuse(_is(keys, TOO_LONG), 10)
        if int(times.min(initial=EARLIEST_MS)) < EARLIEST_MS:
            refuse((times >= PLAUSIBLE_MS[0] // 1000) & (times < PLAUSIBLE_MS[1] // 1000), 13)
            refuse(times < EARLIEST_MS, 12)
        refuse(_is(keys, NOT_DECLARED), 11)
        lengths = items.lengths
        first = np.cumsum(lengths) - lengths
        index = np.arange(n)
        if refused.any():
            index = np.flatnonzero(refused == 0)
            keys, times, first, lengths = keys[index], times[index], first[index], lengths[index]
            users = None if users is None else users[index]
        amounts = NO_AMOUNTS if items.amounts is None else items.amounts
        columns = self._coder.columns(
            keys, self._keys.names.vocabulary, first, lengths, items.codes, amounts, last=self._map
        )
        return Events(index, times, users, {self._name_of_view: columns}), refused

    def _key_codes(self, rows: Any) -> Codes:
        self._keys.begin()
        if self._key is None:
            return np.full(rows.num_rows, self._keys.names.vocabulary.code_of(ALL_STREAM_KEY), dtype=np.int32)
        return self._keys.codes(rows.column(self._key))


def is_flat(shape: Shape) -> bool:
    """Return whether whole columns of a file are an event's fields, so that none is looked into."""
    if len(shape.views) != 1 or shape.empty or shape.unit != "ms":
        return False
    [view] = shape.views.values()
    fields = [path for path in (view.key, view.items, shape.time, shape.user) if isinstance(path, Path)]
    flat = all(len(path.steps) == 1 and path.list_at is None for path in fields)
    return flat and view.count is None and not view.where and view.edges is None


def has_texts(shape: Shape, file: IO[bytes]) -> bool:
    """Return whether labels and stream keys are no numbers, as far as a file says what they are."""
    try:
        schema = pq.read_schema(file)
    except (pa.ArrowException, OSError):
        return True
    [view] = shape.views.values()
    for path in (view.key, view.items):
        if isinstance(path, Path) and path.steps[0] in schema.names:
            kind = schema.field(schema.names.index(path.steps[0])).type
            kind = kind.value_type if pa.types.is_list(kind) or pa.types.is_large_list(kind) else kind
            if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
                return False
    return True


def _column(field: Path | str | None) -> str:
    """Return the column of a field that `is_flat`."""
    assert isinstance(field, Path), "a file has no record keys"
    return field.steps[0]


def _groups(metadata: Any) -> list[list[int] | None]:
    """The row groups that are read together: each by itself, or (None) all, where they are so small
    that this is better.
    """
    number = metadata.num_row_groups
    return [None] if metadata.num_rows < number * GROUP_ROWS else [[group] for group in range(number)]


def _texts_in(column: str, schema: Any, metadata: Any) -> list[str]:
    """The paths of the texts in lists, maps and structures of a column: as dictionaries each is
    decoded once for a row group.

    Where a batch spans two row groups pyarrow does not give texts in lists as dictionaries, so this
    is for groups that are read one by one.
    """
    if column not in schema.names or not pa.types.is_nested(schema.field(column).type):
        return []
    leaves = [metadata.schema.column(i) for i in range(len(metadata.schema))]
    return [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY" and leaf.path.startswith(f"{column}.")]


def _is(codes: NDArray[Any], wrong: int) -> Bools | None:
    """Where a code is this one; None: nowhere."""
    found = codes == wrong
    return found if found.any() else None


def _rows_with(values: NDArray[Any], wrong: int, lengths: Longs) -> Bools | None:
    """The rows of which any value is this one; None: none."""
    places = np.flatnonzero(values == wrong)
    if not len(places):
        return None
    rows = np.zeros(len(lengths), dtype=np.bool_)
    rows[np.searchsorted(np.cumsum(lengths), places, side="right")] = True
    return rows


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0][:200]
