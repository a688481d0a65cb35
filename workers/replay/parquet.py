"""Read Parquet files, one row group after another.

Columns have the names that the settings give the fields of an event, and the content of a JSON
event. Rows are rejected for the same reasons and in the same order as JSON events (`EventReader`);
only the record size does not apply.

`ParquetRows` converts whole Arrow arrays to codes (numbers of texts), lengths, amounts (counts of
items) and times, without a Python object per text; an invalid row is read again as JSON, which
names the reason. It takes files with only these columns:

    stream key   text
    items        text; a list of texts; a map of text to whole numbers; a list of structures of one
                 text and one whole number
    time         whole numbers (ms since 1970), or timestamps of any unit (without a zone: UTC)
    user         text or whole numbers, if users are protected

`ParquetLines` handles all else (paths, counts, conditions, buckets, numeric keys): a row becomes a
JSON event, which is read as one. Nothing in a file may stop its reading: a value that JSON cannot
hold, such as text that is not UTF-8 or a date of the year 10,000, becomes UNREADABLE, which no
field of an event accepts. (DuckDB, which also makes JSON of Parquet, gives a file up at the first
such value, and rounds times up.)

Both convert Arrow timestamps to ms since 1970, rounded down, whatever `events.timestamp_unit` is.
Codes, amounts and times are valid if they are not negative. WRONG (-1) stands for an invalid value;
the code UNDECLARED (-2) stands for a valid text that is not declared.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal
from typing import IO, Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import types

from workers.arrays.types import Bools, Bytes, Codes, Longs, Words
from workers.events.columns import (
    ADDED_UP,
    LAST,
    NO_AMOUNTS,
    Events,
    LabelEncoder,
    Names,
    user_digests,
)
from workers.events.log_values import AMOUNT_MAX
from workers.events.reading import (
    EARLIEST_MS,
    NOT_DECLARED,
    EventReader,
    Reject,
    SourceReader,
)
from workers.kafka.records import Records
from workers.mechanisms.config.histogram import LABEL_BYTES_MAX
from workers.mechanisms.config.views import ALL_KEYS, Path, Shape, View, as_label, parse
from workers.pipeline.factory import declared_keys
from workers.replay.source import EventBatch, FileSource, prefetch, shape_of_files
from workers.runtime.errors import SettingsError
from workers.settings.settings import ALL_STREAM_KEY, Settings
from workers.settings.times import TIME_MAX_MS

WRONG = -1
UNDECLARED = -2
INT64_MAX = (1 << 63) - 1
# (multiplier, divisor) that convert a timestamp's unit to ms.
_MS = {"s": (1_000, 1), "ms": (1, 1), "us": (1, 1_000), "ns": (1, 1_000_000)}


def holds_texts(kind: Any) -> bool:
    """Return whether a type is text, or bytes, which are read as UTF-8."""
    strings = (
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_string_view(kind)
    )
    return bool(strings or types.is_binary(kind) or types.is_large_binary(kind))


def is_list(kind: Any) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind))


def is_text(kind: Any) -> bool:
    """Return whether a type is text, also as indices into a dictionary of texts."""
    return holds_texts(kind.value_type if types.is_dictionary(kind) else kind)


def is_items(kind: Any) -> bool:
    """Return whether a column of this type has items that `items_of` takes."""
    if types.is_map(kind):
        return is_text(kind.key_type) and types.is_integer(kind.item_type)
    if not is_list(kind):
        return is_text(kind)
    return is_text(kind.value_type) or _members(kind.value_type) is not None


def is_user(kind: Any) -> bool:
    return is_text(kind) or types.is_integer(kind)


def is_time(kind: Any, unit: str = "ms") -> bool:
    """Return whether a column of this type can be a time in `unit` of the settings."""
    kinds = {"s": is_number, "iso": holds_texts}
    return bool(kinds.get(unit, types.is_integer)(kind) or types.is_timestamp(kind))


def is_label(kind: Any) -> bool:
    """Return whether values of this type can be labels, the names of items or stream keys."""
    return holds_texts(kind) or types.is_integer(kind) or bool(types.is_boolean(kind))


def is_number(kind: Any) -> bool:
    return bool(
        types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
    )


def _members(kind: Any) -> tuple[int, int] | None:
    """Return the indices of a two-field structure's text and whole number; None: it is another."""
    if types.is_struct(kind) and kind.num_fields == 2:
        for label, amount in ((0, 1), (1, 0)):
            if is_text(kind.field(label).type) and types.is_integer(
                kind.field(amount).type
            ):
                return label, amount
    return None


class TextColumn:
    """Turns the texts of one column into codes, small integers that are the same in all batches.

    The vocabulary gives a text its code; when it is full, a new one begins with the next batch.
    """

    def __init__(self, names: Names, declared: frozenset[str] | None = None) -> None:
        """Allow only `declared` texts (None: all), which come first in the vocabulary `names`."""
        self.names = names
        self._declared = declared
        # The last dictionary of an Arrow array; the codes of its texts and, last, of null.
        self._dictionary: Any = None
        self._code_of: Codes = np.empty(0, dtype=np.int32)

    def begin(self) -> None:
        """Begin a batch; if a vocabulary that was full is replaced, forget its codes."""
        before = self.names.vocabulary
        self.names.begin()
        if self.names.vocabulary is not before:
            self._dictionary = None

    def codes(self, array: Any) -> Codes:
        """Return a code for every value: WRONG for an invalid text or null, or UNDECLARED."""
        if not types.is_dictionary(array.type):
            array = array.dictionary_encode()
        dictionary = array.dictionary
        # Consecutive batches often repeat a dictionary, whose codes are looked up once.
        if self._dictionary is None or not dictionary.equals(self._dictionary):
            spans = spans_of(dictionary)
            codes = np.full(len(dictionary), WRONG, dtype=np.int32)
            good = np.flatnonzero(~spans.wrong)
            codes[good] = self.names.vocabulary.codes(spans.data, spans.places[good])
            if self._declared is not None:
                codes[codes >= len(self._declared)] = UNDECLARED
            self._dictionary = dictionary
            self._code_of = np.append(codes, np.int32(WRONG))
        codes_of_rows: Codes = self._code_of[_indices(array, len(dictionary))]
        return codes_of_rows


def digests_of(array: Any) -> tuple[Words, Bools]:
    """Return the users' digests (a hash of the text), uint64 (n, 2), and which texts are invalid.

    Whole numbers count as their digits.
    """
    if types.is_integer(array.type):
        array = array.cast(pa.string())
    in_dictionary = types.is_dictionary(array.type)
    spans = spans_of(array.dictionary if in_dictionary else array)
    digests = user_digests(spans.data, spans.places)
    wrong = spans.wrong
    if not in_dictionary:
        return digests, wrong
    # Of the texts of the dictionary and, last, of null, which is invalid.
    indices = _indices(array, len(wrong))
    digests = np.concatenate((digests, np.zeros((1, 2), dtype=np.uint64)))
    return digests[indices], np.append(wrong, True)[indices]


class Spans(NamedTuple):
    """Texts as (start, stop) in `data`, (n, 2): (0, 0) where they are `wrong`, (n,)."""

    data: Bytes
    places: Longs
    wrong: Bools


def spans_of(array: Any) -> Spans:
    """Return the texts of an Arrow array: wrong if null, too long for a label, or not UTF-8."""
    binary = array.cast(pa.large_binary())
    n = len(binary)
    # Text i lies from offset i to the next; an array may be a slice, from its own offset on. The
    # buffer before these marks nulls.
    _, offsets, text = binary.buffers()
    ends = np.frombuffer(offsets, dtype=np.int64)[binary.offset : binary.offset + n + 1]
    data = np.frombuffer(b"" if text is None else text, dtype=np.uint8)
    places = np.stack((ends[:-1], ends[1:]), axis=1)
    wrong = places[:, 1] - places[:, 0] > LABEL_BYTES_MAX
    try:
        binary.cast(pa.large_string())  # fails unless all of it is UTF-8
    except pa.ArrowInvalid:
        for row in np.flatnonzero(~wrong).tolist():
            text_bytes = data[places[row, 0] : places[row, 1]].tobytes()
            wrong[row] = _text(text_bytes) is UNREADABLE
    if binary.null_count:
        wrong |= missing(binary)
    places[wrong] = 0
    return Spans(data, places, wrong)


def _indices(array: Any, null: int) -> NDArray[Any]:
    """Return the index into its dictionary of each value of an array; `null` for a null."""
    indices = array.indices
    if indices.null_count:
        indices = indices.cast(pa.int64()).fill_null(null)
    return numbers_of(indices)


def numbers_of(array: Any) -> NDArray[Any]:
    """Return the whole numbers of an array without nulls, uncopied.

    Its `to_numpy` would import pandas, for 0.9 s.
    """
    dtype = np.dtype(str(array.type))
    buffer = array.buffers()[1]  # of the values; the first marks nulls
    if buffer is None:
        return np.empty(0, dtype=dtype)
    return np.frombuffer(buffer, dtype, len(array), array.offset * dtype.itemsize)


def flags_of(array: Any) -> Bools:
    """Return the values of an array of booleans without nulls."""
    return numbers_of(array.cast(pa.uint8())).view(np.bool_)


class ItemRows(NamedTuple):
    """Items of a batch's n rows, end to end: m codes (`TextColumn.codes`).

    `present`, (n,), is false for a null, true for an empty list; `amounts`, (m,), are negative if
    invalid (None: all are 1); `lengths` are (n,).
    """

    present: Bools
    codes: Codes
    amounts: Longs | None
    lengths: Longs


def items_of(array: Any, texts: TextColumn) -> ItemRows:
    """Return the items of a column of texts, lists, maps or lists of structures (`is_items`)."""
    present = flags_of(array.is_valid())
    if is_text(array.type):
        # One item per row, with an amount of 1.
        ones = np.ones(len(array), dtype=np.int64)
        return ItemRows(present, texts.codes(array), None, ones)
    # A row's items lie between two offsets. An array may be a slice of a longer one.
    offsets = numbers_of(array.offsets).astype(np.int64)
    start = int(offsets[0])
    m = int(offsets[-1]) - start
    amounts: Longs | None = None
    if types.is_map(array.type):
        labels = array.keys.slice(start, m)
        amounts = _whole(array.items.slice(start, m), AMOUNT_MAX)
    else:
        labels = array.values.slice(start, m)
        if (members := _members(array.type.value_type)) is not None:
            fields = labels.flatten()
            labels = fields[members[0]]
            amounts = _whole(fields[members[1]], AMOUNT_MAX)
    return ItemRows(present, texts.codes(labels), amounts, np.diff(offsets))


def times_of(array: Any) -> Longs:
    """Return times in ms since 1970, WRONG where a value is null or out of range."""
    multiplier = divisor = 1
    if types.is_timestamp(array.type):
        multiplier, divisor = _MS[array.type.unit]
        array = array.cast(pa.int64())
    # Capped just above the latest time: they are still seen to be too late, and cannot overflow.
    most = min(INT64_MAX, TIME_MAX_MS * divisor // multiplier + 1)
    values = _whole(array, most)
    # The usual column of ms needs no division per row.
    times = values if multiplier == divisor else values * multiplier // divisor
    return np.where((times > TIME_MAX_MS) | (values < 0), WRONG, times)


def missing(array: Any) -> Bools:
    return flags_of(array.is_null())


def _whole(array: Any, most: int) -> Longs:
    """Return an integer array as int64 (n,), at most `most`; null or negative numbers as WRONG."""
    if array.null_count:
        # Unsigned integers may not fit into int64, and have no negative number to mark nulls.
        if types.is_unsigned_integer(array.type):
            return np.where(missing(array), WRONG, _whole(array.fill_null(0), most))
        array = array.cast(pa.int64()).fill_null(WRONG)
    values = numbers_of(array)
    # Copy only if needed; also, `most` may not fit the type of smaller numbers.
    if (values > most).any():
        values = np.minimum(values, most)
    values = values.astype(np.int64, copy=False)
    return np.maximum(values, WRONG) if (values < WRONG).any() else values


# In place of a value that JSON cannot hold: every field of an event rejects a list of lists.
UNREADABLE: list[list[object]] = [[]]
_JSON = msgspec.json.Encoder(decimal_format="number")
_EPOCH = date(1970, 1, 1)
Converter = Callable[[Any], Any]


def objects_of(array: Any) -> list[Any]:
    """Return an array's values as JSON has them, or UNREADABLE.

    Dates are in ISO 8601. The keys of a map are texts; the last value of a duplicate key wins. An
    infinite number becomes the largest double.
    """
    raw, plain = _conversion(array.type)
    return [plain(value) for value in array.cast(raw, safe=False).to_pylist()]


def _conversion(kind: Any) -> tuple[Any, Converter]:
    """Return how to read values of an Arrow type as JSON has them: a raw type, and a converter.

    Cast to the raw type, such as bytes for text, every value becomes a Python object without an
    error; the converter makes of it what JSON has, or UNREADABLE.
    """
    raw, plain = _conversion_of(kind)
    return raw, lambda value: None if value is None else plain(value)


def _conversion_of(kind: Any) -> tuple[Any, Converter]:
    """Return how to read an Arrow type: a raw type to cast to, and a converter to what JSON has.

    The converter gets no nulls. Types that hold others are converted from the inside out.
    """
    if types.is_dictionary(kind):
        return _conversion_of(kind.value_type)
    if types.is_struct(kind):
        fields = [(field, *_conversion(field.type)) for field in kind]
        plain = {field.name: convert for field, _, convert in fields}
        raw = pa.struct([field.with_type(raw) for field, raw, _ in fields])
        return raw, lambda value: {
            name: convert(value[name]) for name, convert in plain.items()
        }
    if is_list(kind):
        raw, convert = _conversion(kind.value_type)
        list_of = pa.list_ if types.is_list(kind) else pa.large_list
        raw = list_of(kind.value_field.with_type(raw))
        return raw, lambda values: [convert(value) for value in values]
    if types.is_map(kind):
        raw_key, convert_key = _conversion(kind.key_type)
        raw_item, convert_item = _conversion(kind.item_type)

        def to_object(pairs: list[tuple[Any, Any]]) -> Any:
            """Return a map's pairs as a JSON object; its keys must be texts or whole numbers."""
            keys = [convert_key(key) for key, _ in pairs]
            if not all(isinstance(key, str | int) for key in keys):
                return UNREADABLE
            items = (convert_item(item) for _, item in pairs)
            return dict(zip(map(as_label, keys), items, strict=True))

        return pa.map_(raw_key, raw_item), to_object
    if types.is_timestamp(kind):
        multiplier, divisor = _MS[kind.unit]
        return pa.int64(), lambda value: value * multiplier // divisor
    if types.is_date32(kind):
        return pa.int32(), _day
    if types.is_date64(kind):
        return pa.int64(), lambda value: _day(value // 86_400_000)
    # Other times and intervals have no form in JSON.
    if types.is_temporal(kind):
        raw = pa.int32() if types.is_time32(kind) else pa.int64()
        return kind if types.is_interval(kind) else raw, lambda _: UNREADABLE
    if holds_texts(kind):
        return pa.large_binary(), _text
    return pa.float64() if types.is_float16(kind) else kind, _number


def _text(value: bytes) -> Any:
    """Decode UTF-8; other bytes become UNREADABLE."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return UNREADABLE


def _day(days: int) -> Any:
    """Return the date `days` after 1970-01-01; UNREADABLE outside the years 1 to 9999."""
    try:
        return (_EPOCH + timedelta(days)).isoformat()
    except OverflowError:
        return UNREADABLE


def _number(value: Any) -> Any:
    """Return a number, the largest double for infinity; UNREADABLE for nan and other values."""
    if not isinstance(value, int | float | Decimal) or math.isnan(value):
        return UNREADABLE
    return value if math.isfinite(value) else math.copysign(sys.float_info.max, value)


class _FieldCheck(NamedTuple):
    """A field that the settings read: `fits` tells whether a column's type can hold its values.

    `setting` is its name, `allowed` the types that fit, in words.
    """

    setting: str
    path: Path
    allowed: str
    fits: Callable[[Any], bool]

    def check(self, schema: Any, name: str) -> None:
        """Raise SettingsError if a file has no such column, two, or one of another type."""
        shown = f"{name}: {self.setting} = {str(self.path)!r}"
        column = self.path.steps[0]
        kind = _kind(self.path, schema)
        number = schema.names.count(column)
        if kind is None:
            columns = ", ".join(schema.names)
            raise SettingsError(f"{shown}: nothing is there; its columns are {columns}")
        if number > 1:
            raise SettingsError(f"{shown}: {number} columns have that name")
        if not self.fits(kind) and not types.is_null(kind):
            raise SettingsError(f"{shown}: {kind} is there; it must be {self.allowed}")


def _field_checks(shape: Shape) -> Iterator[_FieldCheck]:
    """Yield the check of every field that the settings read."""
    for view in shape.views.values():
        if isinstance(view.key, Path):
            yield _FieldCheck(
                "key", view.key, "text, whole numbers or booleans", is_label
            )
        yield _items(view)
        if view.count is not None:
            yield _FieldCheck("count", view.count, "whole numbers", types.is_integer)
        if view.number is not None:
            yield _FieldCheck("sum", view.number, "numbers", is_number)
        for condition in view.where:
            yield _FieldCheck(
                "where", parse(condition.field), "anything", lambda _: True
            )
    if shape.time is not None:
        unit = shape.unit
        yield _FieldCheck(
            "timestamp", shape.time, _TIMES[unit], lambda kind: is_time(kind, unit)
        )
    if isinstance(shape.user, Path):
        yield _FieldCheck("user", shape.user, "text or whole numbers", is_user)


def _items(view: View) -> _FieldCheck:
    """Return the check of a view's items, which may be lists or maps.

    With `edges` they are numbers, to be put into buckets; else labels.
    """
    fits_one = is_label if view.edges is None else is_number
    word = "text, whole numbers or booleans" if view.edges is None else "numbers"
    # The path leads to single items (into a list), or each event has one, with a count.
    if view.items.list_at is not None or view.count is not None:
        return _FieldCheck("items", view.items, word, fits_one)

    def fits(kind: Any) -> bool:
        if types.is_map(kind):
            return view.edges is None and bool(types.is_integer(kind.item_type))
        return fits_one(kind.value_type if is_list(kind) else kind)

    more = "" if view.edges is not None else ", or a map of them to whole numbers"
    allowed = (
        f"{word}, a list of them{more}; in a list of structures say which: q[].label"
    )
    return _FieldCheck("items", view.items, allowed, fits)


_TIMES = {
    unit: f"a timestamp, or whole numbers in {unit}" for unit in ("ms", "us", "ns")
}
_TIMES |= {"s": "a timestamp, or numbers in s", "iso": "a timestamp, or text"}


def _kind(path: Path, schema: Any) -> Any:
    """Return the type at a path, of an element where it enters a list; None if nothing is there."""
    kind: Any = pa.struct(list(schema))
    for depth, name in enumerate(path.steps, 1):
        if types.is_map(kind):
            kind = kind.item_type
        elif types.is_struct(kind) and name in kind.names:
            kind = kind[kind.names.index(name)].type
        else:
            return None
        if depth == path.list_at:
            if not is_list(kind):
                return None
            kind = kind.value_type
    return kind.value_type if types.is_dictionary(kind) else kind


def is_flat(shape: Shape, schema: Any) -> bool:
    """Return whether `ParquetRows` can read every field of an event."""
    # `ParquetRows` reads the items of one view, rejects events without any, and reads times in ms.
    if len(shape.views) != 1 or shape.empty or shape.unit != "ms":
        return False
    [view] = shape.views.values()
    if view.count is not None or view.where or view.edges is not None:
        return False
    fields: list[tuple[Any, Callable[[Any], bool]]] = [
        (view.key, is_text),
        (view.items, is_items),
    ]
    fields += [(shape.time, is_time), (shape.user, is_user)]
    return all(
        len(path.steps) == 1
        and path.list_at is None
        and schema.names.count(path.steps[0]) == 1
        and fits(schema.field(path.steps[0]).type)
        for path, fits in fields
        if isinstance(path, Path)
    )


def open_parquet(settings: Settings, name: str, file: IO[bytes]) -> ParquetLines:
    """Open a file with the fastest reader that can read it; refuse one that is not Parquet.

    Missing columns and unfit types are refused when events are read: `sample` shows any file.
    """
    try:
        metadata = pq.read_metadata(file)
        file.seek(0)  # it is read again from the beginning
        shape = shape_of_files(settings)
        schema = metadata.schema.to_arrow_schema()
        kind = ParquetRows if is_flat(shape, schema) else ParquetLines
        return kind(settings, name, file, metadata)
    except (pa.ArrowException, OSError) as error:
        raise SettingsError(f"{name}: not a Parquet file: {_why(error)}") from error


def _why(error: Exception) -> str:
    return str(error).splitlines()[0][:200]


class ParquetLines(FileSource):
    """Rows of any columns, each read as the JSON event that it would be."""

    word = "row"

    rows_at_once = 1 << 13
    # Lists of row groups to read together; None: all of the file.
    _groups: Sequence[list[int] | None] = (None,)

    def __init__(
        self,
        settings: Settings,
        name: str,
        file: IO[bytes],
        metadata: Any,
        texts: Sequence[str] = (),
    ) -> None:
        """`texts` are the columns to read as dictionaries: distinct texts and indices into them."""
        super().__init__(settings, name, metadata.num_rows)
        self._schema = metadata.schema.to_arrow_schema()
        self._checks = list(_field_checks(self.shape))
        self.shape = _shape_in(self._schema, self.shape)
        # A row has no record size that could be too large.
        reader = EventReader(self.shape, max_bytes=INT64_MAX)
        self._reader = SourceReader(reader, declared_keys(settings))
        # With `pre_buffer` memory would grow with the file.
        self._file = pq.ParquetFile(
            file, read_dictionary=texts, buffer_size=1 << 20, pre_buffer=False
        )

    def sample(self, number: int) -> Records:
        """Return the first rows as the JSON events that they would be."""
        lines: list[bytes] = []
        try:
            for rows in self._file.iter_batches(
                min(number, ParquetLines.rows_at_once), use_threads=False
            ):
                lines += _lines_of(_objects_in(rows))
                if len(lines) >= number:
                    break
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(len(lines), error) from error
        return Records.of(lines[:number])

    def _unreadable(self, read: int, error: Exception) -> SettingsError:
        """Return the error for a file that cannot be read after its first `read` rows."""
        return SettingsError(
            f"{self.name}: cannot be read after row {read:,}: {_why(error)}"
        )

    def _check_fields(self) -> None:
        """Refuse a file that lacks a column that the settings read, or has it in another type."""
        for check in self._checks:
            check.check(self._schema, self.name)

    def batches(self) -> Iterator[EventBatch]:
        """Yield the events, many rows at a time; rejects have row numbers, counted from 1."""
        self._check_fields()
        read = 0
        try:
            for rows in prefetch(self._rows()):
                number = read + 1
                read = read + rows.num_rows
                for events, rejected in self._events(rows):
                    yield self._batch(number, events, rejected, read)
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(read, error) from error

    def _rows(self) -> Iterator[Any]:
        """Yield batches of rows, with the columns that the settings read."""
        # A path begins with its column; several may lead into one.
        columns = dict.fromkeys(check.path.steps[0] for check in self._checks)
        for groups in self._groups:
            yield from self._file.iter_batches(
                self.rows_at_once,
                row_groups=groups,
                columns=list(columns),
                use_threads=False,
            )

    def _events(self, rows: Any) -> Iterator[tuple[Events, Sequence[Reject]]]:
        """Yield the valid events of some rows, and the rejects, both by index in `rows`."""
        lines = _lines_of(_objects_in(rows))
        for reading in self._reader.read(Records.of(lines)):
            yield reading.events, reading.rejects


def _shape_in(schema: Any, shape: Shape) -> Shape:
    """Return the fields to read; times are in ms if they are Arrow timestamps (see the module)."""
    kind = None if shape.time is None else _kind(shape.time, schema)
    if kind is not None and types.is_timestamp(kind):
        return replace(shape, unit="ms")
    return shape


def _objects_in(rows: Any) -> dict[str, list[Any]]:
    """Return the values of rows as JSON has them, by column."""
    return dict(zip(rows.schema.names, map(objects_of, rows.columns), strict=True))


def _lines_of(columns: Mapping[str, list[Any]]) -> list[bytes]:
    """Return the JSON event of every row."""
    return [
        _JSON.encode(dict(zip(columns, row, strict=True)))
        for row in zip(*columns.values(), strict=True)
    ]


# Row groups with at least this many rows, on average, are read one by one.
GROUP_ROWS = 1 << 14


class ParquetRows(ParquetLines):
    """Rows of flat columns: whole arrays are converted, and only invalid rows read as JSON."""

    # Large batches: each repeats its row group's dictionary of texts, which is compared every time.
    rows_at_once = 1 << 18

    def __init__(
        self, settings: Settings, name: str, file: IO[bytes], metadata: Any
    ) -> None:
        shape = shape_of_files(settings)
        schema = metadata.schema.to_arrow_schema()
        [(self._view, view)] = shape.views.items()
        self._key = None if view.key == ALL_KEYS else _column(view.key)
        self._items = _column(view.items)
        self._time = _column(shape.time)
        self._user = None if shape.user is None else _column(shape.user)
        groups = metadata.num_row_groups
        texts = [field.name for field in schema if is_text(field.type)]
        # A large row group is worth batches of its own. Then nested texts can be dictionaries, too:
        # pyarrow makes none for a batch that spans two groups.
        if metadata.num_rows >= groups * GROUP_ROWS:
            self._groups = [[group] for group in range(groups)]
            texts += _texts_in(self._items, schema, metadata)
        # malloc keeps freed batch memory; pyarrow's own pool faults it in again.
        pa.set_memory_pool(pa.system_memory_pool())
        super().__init__(settings, name, file, metadata, texts)
        items_type = schema.field(self._items).type
        self._is_map = types.is_map(items_type)
        # Of a list of structures the names of their label and count.
        self._members: list[str] | None = None
        element_type = items_type.value_type if is_list(items_type) else None
        if element_type is not None and (members := _members(element_type)) is not None:
            self._members = [element_type.field(i).name for i in members]
        declared = declared_keys(settings)[self._view]
        self._coder = LabelEncoder(Names())
        self._keys = TextColumn(Names(declared or ()), declared)
        self._labels = TextColumn(self._coder.labels)

    def _check_fields(self) -> None:
        """Check nothing: `is_flat` has."""

    def _events(self, rows: Any) -> Iterator[tuple[Events, Sequence[Reject]]]:
        """Yield the valid events of some rows as columns, and the rejects, both by index in `rows`.

        Keys, labels, amounts and times are converted as whole arrays; `wrong` marks the rows with
        anything invalid, which are read again as JSON.
        """
        n = rows.num_rows
        self._keys.begin()
        if self._key is not None:
            keys = self._keys.codes(rows.column(self._key))
        else:
            # All events have one stream key.
            code = self._keys.names.vocabulary.code_of(ALL_STREAM_KEY)
            keys = np.full(n, code, dtype=np.int32)
        self._labels.begin()
        items = items_of(rows.column(self._items), self._labels)
        lengths = items.lengths
        times = times_of(rows.column(self._time))
        wrong_items = items.codes < 0
        if items.amounts is not None:
            wrong_items |= items.amounts < 0
        # Times before 2000 are invalid, as in JSON events.
        wrong = (keys == WRONG) | ~items.present | (times < EARLIEST_MS)
        wrong |= _rows_with(wrong_items, lengths)
        users = None
        if self._user is not None:
            users, wrong_users = digests_of(rows.column(self._user))
            wrong |= wrong_users
        rejects = self._rejects(rows, wrong)
        # As with JSON, a stream key that is not declared is the last reason to reject an event.
        undeclared = np.flatnonzero(~wrong & (keys == UNDECLARED)).tolist()
        rejects += [Reject(row, NOT_DECLARED) for row in undeclared]
        rejects.sort(key=lambda reject: reject.index)
        # Row i has the items from first[i] on. Those of rejected rows stay, unused.
        first = np.cumsum(lengths) - lengths
        index = np.flatnonzero(~wrong & (keys >= 0))
        if len(index) < n:
            keys = keys[index]
            times = times[index]
            first = first[index]
            lengths = lengths[index]
            users = None if users is None else users[index]
        columns = self._coder.columns(
            keys,
            self._keys.names.vocabulary,
            first,
            lengths,
            items.codes,
            NO_AMOUNTS if items.amounts is None else items.amounts,
            # Of a label that a map has twice, the last counts, as in JSON.
            repeated=LAST if self._is_map else ADDED_UP,
        )
        yield Events(index, times, users, {self._view: columns}), rejects

    def _rejects(self, rows: Any, wrong: Bools) -> list[Reject]:
        """Return the rejects of the rows that are `wrong` (n,), for the reasons of JSON events."""
        places = np.flatnonzero(wrong)
        # For rows that are valid as JSON: if a map has a label twice, JSON keeps the last count, so
        # another one is wrong.
        miscounted = f"a count in {self._items!r} is not a non-negative integer"
        reasons = dict.fromkeys(places.tolist(), miscounted)
        for start in range(0, len(places), ParquetLines.rows_at_once):
            part = places[start : start + ParquetLines.rows_at_once]
            columns = _objects_in(rows.take(pa.array(part)))
            columns[self._items] = list(map(self._json_items, columns[self._items]))
            for reading in self._reader.read(Records.of(_lines_of(columns))):
                for reject in reading.rejects:
                    reasons[int(part[reject.index])] = reject.reason
        return [Reject(row, reason) for row, reason in reasons.items()]

    def _json_items(self, items: Any) -> Any:
        """Return a rejected row's items as JSON that is rejected for the same reason.

        JSON events have no list of structures: it becomes a list of the labels or, if a count is
        wrong, a map with a wrong count.
        """
        if self._members is None or items is None:
            return items
        label, amount = self._members
        pairs = [
            (pair[label], pair[amount]) if pair else (None, None) for pair in items
        ]
        if any(count is None or count < 0 for _, count in pairs):
            return {"": -1}
        return [name for name, _ in pairs]


def _column(field: Path | str | None) -> str:
    """Return the column of a field that `is_flat`."""
    assert isinstance(field, Path), "a file has no record keys"
    return field.steps[0]


def _texts_in(column: str, schema: Any, metadata: Any) -> list[str]:
    """Return the paths of the texts in a nested column, such as "items.list.element".

    Read as dictionaries, distinct texts are decoded once per row group instead of once per row.
    """
    if not types.is_nested(schema.field(column).type):
        return []
    leaves = [metadata.schema.column(i) for i in range(len(metadata.schema))]
    # Parquet's type of texts.
    texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
    return [path for path in texts if path.startswith(f"{column}.")]


def _rows_with(wrong: Bools, lengths: Longs) -> Bools:
    """Return which rows (n,) have an item that is `wrong` (m,); `lengths` (n,) are their items."""
    rows = np.zeros(len(lengths), dtype=np.bool_)
    places = np.flatnonzero(wrong)
    if len(places):
        rows[np.searchsorted(np.cumsum(lengths), places, side="right")] = True
    return rows
