"""Read Parquet files, one row group after another.

Columns have the names that the settings give the fields of an event, and the content of a JSON
event. Rows are rejected for the same reasons and in the same order as
JSON events (`EventReader`); only the record size does not apply.

`ParquetRows` converts whole Arrow arrays to codes, lengths, amounts and times, without a Python
object per text. It takes files with only these columns:

    stream key   text
    items        text; a list of texts; a map of text to whole numbers; a list of structures of one
                 text and one whole number
    time         whole numbers (ms since 1970), or timestamps of any unit (without a zone: UTC)
    user         text or whole numbers, if users are protected

`ParquetObjects` handles all else (paths, counts, conditions, buckets, numeric keys): a row becomes
the object that its JSON would be, which `events.project` reads. Nothing in a file may stop its
reading: a value that Python cannot hold, such as text that is not UTF-8 or a date of the year
10,000, becomes UNREADABLE, which no field of an event accepts.

Both convert Arrow timestamps to ms since 1970, rounded down, whatever `events.timestamp_unit` is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path as FilePath
from typing import IO, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

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
from workers.events.log import Flags
from workers.events.log_values import AMOUNT_MAX
from workers.events.reading import (
    EARLIEST_MS,
    EARLY,
    EventReader,
    Reject,
    SourceReader,
    with_unit,
)
from workers.events.times import PLAUSIBLE_MS
from workers.mechanisms.config.histogram import LABEL_BYTES_MAX
from workers.mechanisms.config.views import ALL_KEYS, Path, Shape, View, as_label, parse
from workers.pipeline.factory import declared_keys
from workers.replay.source import EventBatch, FileSource, prefetch, shape_of_files
from workers.runtime.errors import SettingsError
from workers.settings.settings import ALL_STREAM_KEY, Settings
from workers.settings.times import TIME_MAX_MS

# Codes for invalid texts, and for an invalid amount or time.
NULL = -1
NOT_UTF8 = -2
TOO_LONG = -3
NOT_DECLARED = -4
WRONG = -1
INT64_MAX = (1 << 63) - 1
# Multiplier and divisor that convert a timestamp's unit to ms.
_MS = {"s": (1_000, 1), "ms": (1, 1), "us": (1, 1_000), "ns": (1, 1_000_000)}


def holds_texts(kind: Any) -> bool:
    of = pa.types
    strings = of.is_string(kind) or of.is_large_string(kind) or of.is_string_view(kind)
    return bool(strings or of.is_binary(kind) or of.is_large_binary(kind))


def is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def is_text(kind: Any) -> bool:
    return holds_texts(kind.value_type if pa.types.is_dictionary(kind) else kind)


def is_items(kind: Any) -> bool:
    """Return whether `items_of` takes a column of this type."""
    if pa.types.is_map(kind):
        return is_text(kind.key_type) and pa.types.is_integer(kind.item_type)
    if not is_list(kind):
        return is_text(kind)
    return is_text(kind.value_type) or _members(kind.value_type) is not None


def is_user(kind: Any) -> bool:
    return is_text(kind) or pa.types.is_integer(kind)


def is_time(kind: Any, unit: str = "ms") -> bool:
    kinds = {"s": is_number, "iso": holds_texts}
    return bool(
        kinds.get(unit, pa.types.is_integer)(kind) or pa.types.is_timestamp(kind)
    )


def is_label(kind: Any) -> bool:
    return (
        holds_texts(kind)
        or pa.types.is_integer(kind)
        or bool(pa.types.is_boolean(kind))
    )


def is_number(kind: Any) -> bool:
    of = pa.types
    return bool(of.is_integer(kind) or of.is_floating(kind) or of.is_decimal(kind))


def _members(kind: Any) -> tuple[int, int] | None:
    """Return the indices of a two-field structure's text and whole number; None: it is another."""
    if pa.types.is_struct(kind) and kind.num_fields == 2:
        for label, amount in ((0, 1), (1, 0)):
            if is_text(kind.field(label).type) and pa.types.is_integer(
                kind.field(amount).type
            ):
                return label, amount
    return None


class TextColumn:
    """Codes of one column's texts, stable across batches (see `Vocabulary`)."""

    def __init__(self, names: Names, declared: frozenset[str] | None = None) -> None:
        """Allow only `declared` texts (None: all), which come first in the vocabulary `names`."""
        self.names = names
        self._declared = declared
        self._dictionary: Any = None
        self._table: Codes = np.empty(0, dtype=np.int32)

    def begin(self) -> None:
        before = self.names.vocabulary
        self.names.begin()
        if self.names.vocabulary is not before:
            self._dictionary = None

    def codes(self, array: Any) -> Codes:
        """Return a code for every value; negative for an invalid text."""
        if not pa.types.is_dictionary(array.type):
            array = array.dictionary_encode()
        dictionary = array.dictionary
        if self._dictionary is None or not dictionary.equals(self._dictionary):
            spans = spans_of(dictionary)
            codes = spans.wrong.astype(np.int32)
            good = np.flatnonzero(spans.wrong == 0)
            codes[good] = self.names.vocabulary.codes(spans.data, spans.places[good])
            if self._declared is not None:
                codes[codes >= len(self._declared)] = NOT_DECLARED
            # The last place is that of a null.
            self._dictionary = dictionary
            self._table = np.append(codes, np.int32(NULL))
        found: Codes = self._table[_indices(array, len(self._table) - 1)]
        return found


def digests_of(array: Any) -> tuple[Words, Flags]:
    """Return the users' digests, uint64 (n, 2), and int8 (n,), negative for an invalid text."""
    if pa.types.is_integer(array.type):
        array = array.cast(pa.string())
    in_dictionary = pa.types.is_dictionary(array.type)
    spans = spans_of(array.dictionary if in_dictionary else array)
    digests = user_digests(spans.data, spans.places)
    wrong = spans.wrong
    if not in_dictionary:
        return digests, wrong
    indices = _indices(array, len(wrong))
    digests = np.concatenate((digests, np.zeros((1, 2), dtype=np.uint64)))
    return digests[indices], np.append(wrong, np.int8(NULL))[indices]


class Spans(NamedTuple):
    """Texts as (start, stop) in `data`, (n, 2): (0, 0) if invalid, with its code in `wrong`."""

    data: Bytes
    places: Longs
    wrong: Flags


def spans_of(array: Any) -> Spans:
    binary = array.cast(pa.large_binary())
    n = len(binary)
    _, offsets, text = binary.buffers()
    ends = np.frombuffer(offsets, dtype=np.int64)[binary.offset : binary.offset + n + 1]
    data = np.frombuffer(b"" if text is None else text, dtype=np.uint8)
    places = np.stack((ends[:-1], ends[1:]), axis=1)
    wrong = np.zeros(n, dtype=np.int8)
    wrong[places[:, 1] - places[:, 0] > LABEL_BYTES_MAX] = TOO_LONG
    try:
        binary.cast(pa.large_string())  # fails unless it is UTF-8
    except pa.ArrowInvalid:
        for row in np.flatnonzero(wrong == 0).tolist():
            if _text(data[places[row, 0] : places[row, 1]].tobytes()) is UNREADABLE:
                wrong[row] = NOT_UTF8
    if binary.null_count:
        wrong[missing(binary)] = NULL
    places[wrong != 0] = 0
    return Spans(data, places, wrong)


def _indices(array: Any, null: int) -> NDArray[Any]:
    indices = array.indices
    if indices.null_count:
        indices = indices.cast(pa.int64()).fill_null(null)
    return numbers_of(indices)


def numbers_of(array: Any) -> NDArray[Any]:
    """Return the numbers of an array without nulls, uncopied. `to_numpy` imports pandas: 0.9 s."""
    dtype = np.dtype(str(array.type))
    buffer = array.buffers()[1]
    if buffer is None:
        return np.empty(0, dtype=dtype)
    return np.frombuffer(buffer, dtype, len(array), array.offset * dtype.itemsize)


def flags_of(array: Any) -> Bools:
    """Return the values of an array of booleans without nulls."""
    buffer = array.buffers()[1]
    if buffer is None:
        return np.empty(0, dtype=np.bool_)
    bits = np.unpackbits(np.frombuffer(buffer, dtype=np.uint8), bitorder="little")
    return bits[array.offset : array.offset + len(array)].astype(np.bool_)


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
    n = len(array)
    present = (
        np.ones(n, dtype=np.bool_)
        if not array.null_count
        else flags_of(array.is_valid())
    )
    if is_text(array.type):
        return ItemRows(present, texts.codes(array), None, np.ones(n, dtype=np.int64))
    offsets = numbers_of(array.offsets).astype(np.int64)
    start = int(offsets[0])
    n = int(offsets[-1] - offsets[0])
    amounts: Longs | None = None
    if pa.types.is_map(array.type):
        labels = array.keys.slice(start, n)
        amounts = _whole(array.items.slice(start, n), AMOUNT_MAX)
    else:
        labels = array.values.slice(start, n)
        if (members := _members(array.type.value_type)) is not None:
            fields = labels.flatten()
            labels = fields[members[0]]
            amounts = _whole(fields[members[1]], AMOUNT_MAX)
    return ItemRows(present, texts.codes(labels), amounts, np.diff(offsets))


def times_of(array: Any) -> Longs:
    """Return times in ms since 1970, negative where a value is out of range."""
    if not pa.types.is_timestamp(array.type):
        return _whole(array, TIME_MAX_MS, above=WRONG)
    times, by = _MS[array.type.unit]
    values = _whole(
        array.cast(pa.int64()), min(INT64_MAX, TIME_MAX_MS * by // times + 1)
    )
    found = values * times // by
    return np.where((found > TIME_MAX_MS) | (values < 0), WRONG, found)


def in_ns(array: Any) -> Bools | None:
    """Return which whole numbers are plausible times in ns; None for timestamps."""
    if pa.types.is_timestamp(array.type):
        return None
    since, until = (at * 1_000_000 for at in PLAUSIBLE_MS)
    values = _whole(array, INT64_MAX)
    return (values >= since) & (values < until)


def missing(array: Any) -> Bools:
    return flags_of(array.is_null())


def _whole(array: Any, most: int, above: int | None = None) -> Longs:
    """Return whole numbers; null or negative: WRONG, above `most`: `above` (None: `most`)."""
    if array.null_count:
        if pa.types.is_unsigned_integer(array.type):
            values = np.where(
                missing(array), WRONG, _whole(array.fill_null(0), most, above)
            )
            return values.astype(np.int64, copy=False)
        array = array.cast(pa.int64()).fill_null(WRONG)
    values = numbers_of(array)
    if (values > most).any():
        large = values > most
        values = np.where(large, most, values).astype(np.int64)
        if above is not None:
            values[large] = above
    values = values.astype(np.int64, copy=False)
    return np.maximum(values, WRONG) if (values < WRONG).any() else values


UNREADABLE = ()
_EPOCH = date(1970, 1, 1)
Converter = Callable[[Any], Any]


def objects_of(array: Any) -> list[Any]:
    """Return an array's values: dict, list, str, int, float, Decimal, bool, None, or UNREADABLE.

    Dates are in ISO 8601. The keys of a map are texts; the last value of a duplicate key wins.
    """
    raw, plain = _conversion(array.type)
    return [plain(value) for value in array.cast(raw, safe=False).to_pylist()]


def _conversion(kind: Any) -> tuple[Any, Converter]:
    """Return an equivalent raw type, all of whose values Python can hold, and its converter."""
    raw, plain = _conversion_of(kind)
    return raw, lambda value: None if value is None else plain(value)


def _conversion_of(kind: Any) -> tuple[Any, Converter]:
    """As `_conversion`, for values that are not null."""
    of = pa.types
    if of.is_dictionary(kind):
        return _conversion_of(kind.value_type)
    if of.is_struct(kind):
        fields = [(field, *_conversion(field.type)) for field in kind]
        plain = {field.name: convert for field, _, convert in fields}
        raw = pa.struct([field.with_type(raw) for field, raw, _ in fields])
        return raw, lambda value: {
            name: convert(value[name]) for name, convert in plain.items()
        }
    if is_list(kind):
        raw, convert = _conversion(kind.value_type)
        list_of = pa.list_ if of.is_list(kind) else pa.large_list
        raw = list_of(kind.value_field.with_type(raw))
        return raw, lambda values: [convert(value) for value in values]
    if of.is_map(kind):
        raw_key, key = _conversion(kind.key_type)
        raw_item, item = _conversion(kind.item_type)

        def entries(pairs: list[tuple[Any, Any]]) -> Any:
            names = [key(name) for name, _ in pairs]
            if not all(isinstance(name, str | int) for name in names):
                return UNREADABLE
            values = (item(value) for _, value in pairs)
            return dict(zip(map(as_label, names), values, strict=True))

        return pa.map_(raw_key, raw_item), entries
    if of.is_timestamp(kind):
        times, by = _MS[kind.unit]
        return pa.int64(), lambda value: value * times // by
    if of.is_date32(kind):
        return pa.int32(), _day
    if of.is_date64(kind):
        return pa.int64(), lambda value: _day(value // 86_400_000)
    if of.is_temporal(kind):
        raw = pa.int32() if of.is_time32(kind) else pa.int64()
        return kind if of.is_interval(kind) else raw, lambda _: UNREADABLE
    if holds_texts(kind):
        return pa.large_binary(), _text
    return pa.float64() if of.is_float16(kind) else kind, _number


def _text(value: bytes) -> Any:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return UNREADABLE


def _day(days: int) -> Any:
    try:
        return (_EPOCH + timedelta(days)).isoformat()
    except OverflowError:
        return UNREADABLE


def _number(value: Any) -> Any:
    return value if isinstance(value, int | float | Decimal) else UNREADABLE


class _FieldCheck(NamedTuple):
    """Path in the settings; `fits` returns whether a type can hold its values."""

    setting: str
    path: Path
    allowed: str
    fits: Callable[[Any], bool]

    def check(self, schema: Any, name: str) -> None:
        shown = f"{name}: {self.setting} = {str(self.path)!r}"
        column = self.path.steps[0]
        kind = _kind(self.path, schema)
        number = schema.names.count(column)
        if kind is None:
            columns = ", ".join(schema.names)
            raise SettingsError(f"{shown}: nothing is there; its columns are {columns}")
        if number > 1:
            raise SettingsError(f"{shown}: {number} columns have that name")
        if not self.fits(kind) and not pa.types.is_null(kind):
            raise SettingsError(f"{shown}: {kind} is there; it must be {self.allowed}")


def _field_checks(shape: Shape) -> Iterator[_FieldCheck]:
    for view in shape.views.values():
        if isinstance(view.key, Path):
            yield _FieldCheck(
                "key", view.key, "text, whole numbers or booleans", is_label
            )
        yield _items(view)
        if view.count is not None:
            yield _FieldCheck("count", view.count, "whole numbers", pa.types.is_integer)
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
    one = is_label if view.edges is None else is_number
    word = "text, whole numbers or booleans" if view.edges is None else "numbers"
    if view.items.list_at is not None or view.count is not None:
        return _FieldCheck("items", view.items, word, one)

    def fits(kind: Any) -> bool:
        if pa.types.is_map(kind):
            return view.edges is None and bool(pa.types.is_integer(kind.item_type))
        return one(kind.value_type if is_list(kind) else kind)

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
    """Return the type at a path; None if it cannot exist."""
    found: Any = pa.struct(list(schema))
    for place, name in enumerate(path.steps, 1):
        if pa.types.is_map(found):
            found = found.item_type
        elif pa.types.is_struct(found):
            found = {field.name: field.type for field in reversed(list(found))}.get(
                name
            )
        else:
            found = None
        if found is not None and place == path.list_at:
            found = found.value_type if is_list(found) else None
        if found is None:
            return None
    return found.value_type if pa.types.is_dictionary(found) else found


def is_flat(shape: Shape, schema: Any) -> bool:
    """Return whether `ParquetRows` can read every field of an event."""
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


def open_parquet(
    settings: Settings, name: str, file: IO[bytes]
) -> ParquetRows | ParquetObjects:
    """Open a file; refuse one that is not Parquet, and a path to no column or an unfit type."""
    try:
        metadata = pq.read_metadata(file)
        file.seek(0)
        flat = is_flat(shape_of_files(settings), metadata.schema.to_arrow_schema())
        kind = ParquetRows if flat else ParquetObjects
        return kind(settings, name, file, metadata)
    except (pa.ArrowException, OSError) as error:
        raise SettingsError(f"{name}: not a Parquet file: {_why(error)}") from error


def _why(error: Exception) -> str:
    return str(error).splitlines()[0][:200]


class _ParquetSource(FileSource):
    word = "row"

    rows_at_once: int
    # Row groups to read together: None for all.
    _groups: Sequence[list[int] | None] = (None,)

    def _open(
        self, file: IO[bytes], columns: Iterable[str], texts: Sequence[str] = ()
    ) -> None:
        """Read these columns, those of `texts` as dictionaries."""
        # With `pre_buffer` memory would grow with the file.
        self._file = pq.ParquetFile(
            file, read_dictionary=texts, buffer_size=1 << 20, pre_buffer=False
        )
        self._columns = list(dict.fromkeys(columns))

    def batches(self) -> Iterator[EventBatch]:
        read = 0
        try:
            for rows in prefetch(self._rows()):
                events, rejected = self._events(rows)
                number = read + 1
                read = read + rows.num_rows
                yield self._batch(number, events, rejected, read)
        except (pa.ArrowException, OSError) as error:
            raise SettingsError(
                f"{self.name}: cannot be read after row {read:,}: {_why(error)}"
            ) from error

    def _rows(self) -> Iterator[Any]:
        for groups in self._groups:
            yield from self._file.iter_batches(
                self.rows_at_once,
                row_groups=groups,
                columns=self._columns,
                use_threads=False,
            )

    def _events(self, rows: Any) -> tuple[Events, Sequence[Reject]]:
        """Return the valid events of some rows, and the rejects, both by index in `rows`."""
        raise NotImplementedError


class ParquetObjects(_ParquetSource):
    rows_at_once = 1 << 13

    def __init__(
        self, settings: Settings, name: str, file: IO[bytes], metadata: Any
    ) -> None:
        super().__init__(settings, name, metadata.num_rows)
        shape = shape_of_files(settings)
        schema = metadata.schema.to_arrow_schema()
        asked = list(_field_checks(shape))
        for each in asked:
            each.check(schema, name)
        self._open(file, (each.path.steps[0] for each in asked))
        self._reader = SourceReader(
            EventReader(_shape_in(schema, shape)), declared_keys(settings)
        )

    def _events(self, rows: Any) -> tuple[Events, Sequence[Reject]]:
        reading = self._reader.read_objects(_listed(rows))
        return reading.events, reading.rejects


def first_rows(
    settings: Settings, name: str, path: FilePath, number: int
) -> tuple[list[object], Shape]:
    """Return the first rows of a file as whole objects, and the fields to read in them."""
    objects: list[object] = []
    try:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            shape = _shape_in(file.schema_arrow, shape_of_files(settings))
            for rows in file.iter_batches(
                min(number, ParquetObjects.rows_at_once), use_threads=False
            ):
                objects += _listed(rows)
                if len(objects) >= number:
                    break
    except (pa.ArrowException, OSError) as error:
        raise SettingsError(f"{name}: not a Parquet file: {_why(error)}") from error
    return objects[:number], shape


def _shape_in(schema: Any, shape: Shape) -> Shape:
    """Return the fields to read in a file; Arrow timestamps come in ms."""
    kind = None if shape.time is None else _kind(shape.time, schema)
    return (
        replace(shape, unit="ms")
        if kind is not None and pa.types.is_timestamp(kind)
        else shape
    )


def _listed(rows: Any) -> list[dict[str, Any]]:
    columns = [objects_of(column) for column in rows.columns]
    return [
        dict(zip(rows.schema.names, row, strict=True))
        for row in zip(*columns, strict=True)
    ]


# Minimum average rows of a row group for reading groups as separate batches.
GROUP_ROWS = 1 << 14


class ParquetRows(_ParquetSource):
    # Every batch repeats its row group's dictionary of texts, which is then looked up again.
    rows_at_once = 1 << 18

    def __init__(
        self, settings: Settings, name: str, file: IO[bytes], metadata: Any
    ) -> None:
        super().__init__(settings, name, metadata.num_rows)
        shape = shape_of_files(settings)
        schema = metadata.schema.to_arrow_schema()
        [(self._view, view)] = shape.views.items()
        self._key = None if view.key == ALL_KEYS else _column(view.key)
        self._items = _column(view.items)
        self._time = _column(shape.time)
        self._user = None if shape.user is None else _column(shape.user)
        wanted = (self._key, self._items, self._time, self._user)
        columns = (column for column in wanted if column is not None)
        number = metadata.num_row_groups
        texts = [field.name for field in schema if is_text(field.type)]
        if metadata.num_rows >= number * GROUP_ROWS:
            self._groups = [[group] for group in range(number)]
            texts += _texts_in(self._items, schema, metadata)
        # malloc keeps freed batch memory; pyarrow's own pool faults it in again.
        pa.set_memory_pool(pa.system_memory_pool())
        self._open(file, columns, texts)
        self._map = pa.types.is_map(schema.field(self._items).type)
        declared = declared_keys(settings)[self._view]
        self._coder = LabelEncoder(Names())
        self._keys = TextColumn(Names(declared or ()), declared)
        self._labels = TextColumn(self._coder.labels)

    def _events(self, rows: Any) -> tuple[Events, Sequence[Reject]]:
        n = rows.num_rows
        refused = np.zeros(n, dtype=np.int8)
        reasons = [""]

        def refuse(which: Bools | None, reason: str) -> None:
            if which is not None and which.any():
                refused[which & (refused == 0)] = len(reasons)
                reasons.append(reason)

        self._keys.begin()
        if self._key is not None:
            keys = self._keys.codes(rows.column(self._key))
        else:
            code = self._keys.names.vocabulary.code_of(ALL_STREAM_KEY)
            keys = np.full(n, code, dtype=np.int32)
        self._labels.begin()
        items = items_of(rows.column(self._items), self._labels)
        codes = items.codes
        lengths = items.lengths
        time = f"field {self._time!r}"
        times = times_of(rows.column(self._time))
        users = None
        wrong_users = np.empty(0, dtype=np.int8)
        if self._user is not None:
            users, wrong_users = digests_of(rows.column(self._user))
        kinds = "string, whole number or boolean"
        refuse(keys == NULL, f"field {self._key!r} is null")
        refuse(keys == NOT_UTF8, f"field {self._key!r} is not a {kinds}")
        refuse(~items.present, f"field {self._items!r} is null")
        if items.amounts is not None:
            reason = f"a count in {self._items!r} is not a non-negative integer"
            refuse(_rows_with(items.amounts == WRONG, lengths), reason)
        wrong_item = f"field {self._items!r} has an item that is"
        refuse(_rows_with(codes == NULL, lengths), f"{wrong_item} null")
        refuse(_rows_with(codes == NOT_UTF8, lengths), f"{wrong_item} not a {kinds}")
        if int(times.min(initial=0)) < 0:
            refuse(missing(rows.column(self._time)), f"{time} is null")
            nanoseconds = in_ns(rows.column(self._time))
            refuse(nanoseconds, f"{time} is not a time in ms: nanoseconds?")
            refuse(times < 0, f"{time} is not a time in ms")
        if self._user is not None:
            refuse(wrong_users == NULL, f"field {self._user!r} is null")
            reason = f"field {self._user!r} is not a string or a whole number"
            refuse(wrong_users == NOT_UTF8, reason)
            refuse(wrong_users == TOO_LONG, "label too long")
        refuse(_rows_with(codes == TOO_LONG, lengths), "label too long")
        refuse(keys == TOO_LONG, "label too long")
        if int(times.min(initial=EARLIEST_MS)) < EARLIEST_MS:
            seconds = (times >= PLAUSIBLE_MS[0] // 1000) & (
                times < PLAUSIBLE_MS[1] // 1000
            )
            refuse(seconds, with_unit(EARLY, EARLIEST_MS // 1000, "ms"))
            refuse(times < EARLIEST_MS, EARLY)
        refuse(keys == NOT_DECLARED, "key not declared")
        first = np.cumsum(lengths) - lengths
        index = np.arange(n)
        bad = np.flatnonzero(refused)
        if len(bad):
            index = np.flatnonzero(refused == 0)
            keys = keys[index]
            times = times[index]
            first = first[index]
            lengths = lengths[index]
            users = None if users is None else users[index]
        amounts = NO_AMOUNTS if items.amounts is None else items.amounts
        names = self._keys.names.vocabulary
        repeated = LAST if self._map else ADDED_UP
        columns = self._coder.columns(
            keys, names, first, lengths, codes, amounts, repeated=repeated
        )
        rejects = [Reject(row, reasons[refused[row]]) for row in bad.tolist()]
        return Events(index, times, users, {self._view: columns}), rejects


def _column(field: Path | str | None) -> str:
    assert isinstance(field, Path), "a file has no record keys"
    return field.steps[0]


def _texts_in(column: str, schema: Any, metadata: Any) -> list[str]:
    """Return the paths of nested texts in a column, to decode once a row group, as dictionaries.

    Only for groups read one by one: pyarrow gives no dictionary if a batch spans two row groups.
    """
    if not pa.types.is_nested(schema.field(column).type):
        return []
    leaves = [metadata.schema.column(i) for i in range(len(metadata.schema))]
    texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
    return [path for path in texts if path.startswith(f"{column}.")]


def _rows_with(wrong: Bools, lengths: Longs) -> Bools | None:
    places = np.flatnonzero(wrong)
    if not len(places):
        return None
    rows = np.zeros(len(lengths), dtype=np.bool_)
    rows[np.searchsorted(np.cumsum(lengths), places, side="right")] = True
    return rows
