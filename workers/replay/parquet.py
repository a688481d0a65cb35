"""Read Parquet files, one row group after another.

Columns have the names that the settings give the fields of an event, and the content of a JSON
event:

    stream key   text
    items        text; a list of texts; a map of text to whole numbers; a list of structures of one
                 text and one whole number
    time         whole numbers (ms since 1970), or timestamps of any unit (without a zone: UTC; less
                 than a ms is cut off)
    user         text or whole numbers, if users are protected

A null is a missing field. A row is rejected for the same reasons as in the JSON reader
(`EventReader`), checked in the same order; only the record size does not apply.

`ParquetRows` converts whole Arrow arrays to codes, lengths, amounts and times, without a Python
object per text. A value that no event can have gets a negative code, amount or time; the caller
decides what that means.

`ParquetObjects` handles settings with paths, counts, conditions and buckets, row by row: a row
becomes the object that its JSON would be, and `events.project` decides which event that is.
Timestamps count in ms since 1970 (less is cut off), whatever `events.timestamp_unit` says. Nothing
in a file may stop its reading: a value that Python cannot hold, such as text that is not UTF-8 or a
date of the year 10,000, becomes ODD, which is of no kind that an event has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path as FilePath
from typing import IO, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from workers.arrays.types import Bools, Codes, Longs
from workers.events.columns import AMOUNT_MAX, NO_AMOUNTS, Events, LabelEncoder, Names, user_digests
from workers.events.log_values import TIME_MAX
from workers.events.project import PLAUSIBLE_MS
from workers.events.reader import EARLIEST_MS, EARLY, EventReader, with_unit
from workers.events.source_reader import SourceReader
from workers.mechanisms.config.histogram import LABEL_BYTES_MAX
from workers.mechanisms.config.views import ALL_KEYS, Path, Shape, View, as_label, parse
from workers.pipeline.factory import declared_keys
from workers.replay.source import EventBatch, InOrder, ahead, shape_of_files
from workers.runtime.errors import SettingsError
from workers.settings.settings import ALL_STREAM_KEY, Settings

# Codes for invalid texts; and for an invalid amount or time.
NULL, NOT_UTF8, TOO_LONG, NOT_DECLARED = -1, -2, -3, -4
WRONG = -1
# Units of a timestamp in a ms; if negative: ms in the unit.
_UNITS = {"s": -1000, "ms": 1, "us": 1000, "ns": 1_000_000}


class TextColumn:
    """Codes of one column's texts, stable across batches (see `Vocabulary`)."""

    def __init__(self, names: Names, declared: frozenset[str] | None = None) -> None:
        """Allow only `declared` texts (None: all), which come first in the vocabulary `names`."""
        self.names, self._declared = names, declared
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
        table = self._table_of(array.dictionary)
        codes: Codes = table[_indices(array, len(table) - 1)]
        return codes

    def _table_of(self, dictionary: Any) -> Codes:
        """Return the code of every text of a dictionary, followed by that of a null."""
        if self._dictionary is None or not dictionary.equals(self._dictionary):
            spans = spans_of(dictionary)
            codes = np.where(spans.wrong == 0, 0, spans.wrong).astype(np.int32)
            good = np.flatnonzero(spans.wrong == 0)
            codes[good] = self.names.vocabulary.codes(spans.data, spans.places[good])
            if self._declared is not None:
                # Declared texts have the first codes.
                codes[codes >= len(self._declared)] = NOT_DECLARED
            self._dictionary, self._table = dictionary, np.append(codes, np.int32(NULL))
        return self._table


class UserColumn:
    def digests(self, array: Any) -> tuple[NDArray[np.uint64], NDArray[np.int8]]:
        """Return the users' digests, uint64 (n, 2), and int8 (n,), negative for an invalid text."""
        if pa.types.is_integer(array.type):
            array = array.cast(pa.string())
        if not pa.types.is_dictionary(array.type):
            return self._of(array)
        digests, wrong = self._of(array.dictionary)
        indices = _indices(array, len(wrong))
        zero = np.zeros((1, 2), dtype=np.uint64)
        return np.concatenate((digests, zero))[indices], np.append(wrong, np.int8(NULL))[indices]

    @staticmethod
    def _of(array: Any) -> tuple[NDArray[np.uint64], NDArray[np.int8]]:
        spans = spans_of(array)
        return user_digests(spans.data, spans.places), spans.wrong


@dataclass(frozen=True, slots=True)
class Spans:
    """Positions of the texts of an array.

    Attributes:
        data: uint8.
        places: int64 (n, 2), start and stop of every text; (0, 0) if invalid.
        wrong: int8 (n,), 0 for a valid text, else NULL, NOT_UTF8 or TOO_LONG.
    """

    data: NDArray[np.uint8]
    places: Longs
    wrong: NDArray[np.int8]


def spans_of(array: Any) -> Spans:
    """Return the positions of the texts of an array of strings or binaries."""
    binary = array.cast(pa.large_binary())
    n = len(binary)
    _, offsets, text = binary.buffers()
    ends = np.frombuffer(offsets, dtype=np.int64)[binary.offset : binary.offset + n + 1]
    data = np.frombuffer(text, dtype=np.uint8) if text is not None else np.empty(0, dtype=np.uint8)
    places = np.stack((ends[:-1], ends[1:]), axis=1)
    wrong = np.zeros(n, dtype=np.int8)
    wrong[places[:, 1] - places[:, 0] > LABEL_BYTES_MAX] = TOO_LONG
    try:
        binary.cast(pa.large_string())  # looks whether it is UTF-8
    except pa.ArrowInvalid:
        for row in np.flatnonzero(wrong == 0).tolist():
            if not _is_utf8(data[places[row, 0] : places[row, 1]].tobytes()):
                wrong[row] = NOT_UTF8
    if binary.null_count:
        wrong[missing(binary)] = NULL
    places[wrong != 0] = 0
    return Spans(data, places, wrong)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _indices(array: Any, null: int) -> NDArray[Any]:
    """Return the indices of an array's dictionary; `null` for nulls."""
    indices = array.indices
    if indices.null_count:
        indices = indices.cast(pa.int64()).fill_null(null)
    return numbers_of(indices)


def numbers_of(array: Any) -> NDArray[Any]:
    """Return the numbers of an array without nulls, without copying.

    `Array.to_numpy` imports pandas if it is installed, which takes 0.9 s.
    """
    dtype = np.dtype(str(array.type))
    buffer = array.buffers()[1]
    if buffer is None:
        return np.empty(0, dtype=dtype)
    return np.frombuffer(
        buffer, dtype=dtype, count=len(array), offset=array.offset * dtype.itemsize
    )


def flags_of(array: Any) -> NDArray[np.bool_]:
    """Return the values of an array of booleans without nulls."""
    buffer = array.buffers()[1]
    if buffer is None:
        return np.empty(0, dtype=np.bool_)
    bits = np.unpackbits(np.frombuffer(buffer, dtype=np.uint8), bitorder="little")
    return bits[array.offset : array.offset + len(array)].astype(np.bool_)


@dataclass(frozen=True, slots=True)
class ItemRows:
    """Items of a batch's rows, end to end.

    Attributes:
        present: bool (n,), whether the row has items (true for an empty list, false for a null).
        codes: int32 (m,), as `TextColumn.codes`.
        amounts: int64 (m,), negative if invalid; None: all are 1.
        lengths: int64 (n,).
    """

    present: NDArray[np.bool_]
    codes: Codes
    amounts: Longs | None
    lengths: Longs


def is_text(kind: Any) -> bool:
    return holds_texts(kind.value_type if pa.types.is_dictionary(kind) else kind)


def is_items(kind: Any) -> bool:
    if pa.types.is_map(kind):
        return is_text(kind.key_type) and pa.types.is_integer(kind.item_type)
    if not _is_list(kind):
        return is_text(kind)
    each = kind.value_type
    return is_text(each) or (pa.types.is_struct(each) and _members(each) is not None)


def items_of(array: Any, texts: TextColumn) -> ItemRows:
    n = len(array)
    present = np.ones(n, dtype=np.bool_) if not array.null_count else flags_of(array.is_valid())
    if is_text(array.type):
        return ItemRows(present, texts.codes(array), None, np.ones(n, dtype=np.int64))
    offsets = numbers_of(array.offsets).astype(np.int64)
    start, stop = int(offsets[0]), int(offsets[-1])
    amounts: Longs | None = None
    if pa.types.is_map(array.type):
        labels = array.keys.slice(start, stop - start)
        amounts = _whole(array.items.slice(start, stop - start), AMOUNT_MAX)
    else:
        labels = array.values.slice(start, stop - start)
        members = (
            _members(array.type.value_type) if pa.types.is_struct(array.type.value_type) else None
        )
        if members is not None:
            fields = labels.flatten()
            labels, amounts = fields[members[0]], _whole(fields[members[1]], AMOUNT_MAX)
    return ItemRows(present, texts.codes(labels), amounts, np.diff(offsets))


def is_time(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_timestamp(kind))


def times_of(array: Any) -> Longs:
    """Return times in ms since 1970; negative if no event can have the time."""
    if not pa.types.is_timestamp(array.type):
        return _whole(array, TIME_MAX, above=WRONG)
    unit = _UNITS[array.type.unit]
    values = _whole(array.cast(pa.int64()), (1 << 63) - 1)
    times = (
        values // unit if unit > 0 else np.where(values > TIME_MAX // -unit, WRONG, values * -unit)
    )
    return np.where((times > TIME_MAX) | (values < 0), WRONG, times)


def in_ns(array: Any, between_ms: tuple[int, int]) -> NDArray[np.bool_] | None:
    """Return which whole numbers are ns between two times in ms; None for timestamps."""
    if pa.types.is_timestamp(array.type):
        return None
    values = _whole(array, (1 << 63) - 1)
    return (values >= between_ms[0] * 1_000_000) & (values < between_ms[1] * 1_000_000)


def missing(array: Any) -> NDArray[np.bool_]:
    return flags_of(array.is_null())


def _whole(array: Any, most: int, above: int | None = None) -> Longs:
    """Return whole numbers; nulls and negative ones are WRONG, those above `most` are `above`
    (None: `most`).
    """
    if array.null_count:
        if pa.types.is_unsigned_integer(array.type):
            mask = missing(array)
            values = np.where(mask, WRONG, _whole(array.fill_null(0), most, above))
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


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _members(kind: Any) -> tuple[int, int] | None:
    """Return the indices of a two-field structure's text and whole number."""
    fields = [kind.field(i).type for i in range(kind.num_fields)]
    if len(fields) == 2:
        for label, amount in ((0, 1), (1, 0)):
            if is_text(fields[label]) and pa.types.is_integer(fields[amount]):
                return label, amount
    return None


ODD = ()
# Multiplier and divisor that convert a timestamp's unit to ms.
_MS = {"s": (1_000, 1), "ms": (1, 1), "us": (1, 1_000), "ns": (1, 1_000_000)}
_EPOCH = date(1970, 1, 1)


def objects_of(array: Any) -> list[Any]:
    """Return the values of an array: dict, list, str, int, float, Decimal, bool, None, or ODD.

    Timestamps are ms since 1970, rounded down; dates are in ISO 8601. The keys of a map are texts;
    the last value of a duplicate key wins.
    """
    plain = _plain(array.type)
    values = array.cast(_raw(array.type), safe=False).to_pylist()
    return [None if value is None else plain(value) for value in values]


def holds_texts(kind: Any) -> bool:
    """Return whether a type holds texts, or bytes that may be texts."""
    of = pa.types
    return any(
        is_it(kind)
        for is_it in (
            of.is_string,
            of.is_large_string,
            of.is_string_view,
            of.is_binary,
            of.is_large_binary,
        )
    )


def is_list(kind: Any) -> bool:
    """Return whether a type holds lists of any length."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _raw(kind: Any) -> Any:
    """Return an equivalent raw type, all of whose values Python can hold."""
    if pa.types.is_dictionary(kind):
        return _raw(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_raw(field.type)) for field in kind])
    if is_list(kind):
        of = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return of(kind.value_field.with_type(_raw(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_raw(kind.key_type), _raw(kind.item_type))
    if holds_texts(kind):
        return pa.large_binary()
    if pa.types.is_float16(kind):
        return pa.float64()
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_temporal(kind) and not pa.types.is_interval(kind) else kind


def _plain(kind: Any) -> Callable[[Any], Any]:
    """Return a converter from raw values that are not null to plain objects."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_struct(kind):
        return _of_fields({field.name: _or_null(field.type) for field in kind})
    if is_list(kind):
        element = _or_null(kind.value_type)
        return lambda values: [element(value) for value in values]
    if pa.types.is_map(kind):
        return _of_entries(_plain(kind.key_type), _or_null(kind.item_type))
    if pa.types.is_timestamp(kind):
        times, by = _MS[kind.unit]
        return lambda value: value * times // by
    if pa.types.is_date(kind):
        days = 1 if pa.types.is_date32(kind) else 86_400_000
        return lambda value: _day(value // days)
    if pa.types.is_temporal(kind):
        return lambda _: ODD
    return _text if holds_texts(kind) else _number


def _or_null(kind: Any) -> Callable[[Any], Any]:
    plain = _plain(kind)
    return lambda value: None if value is None else plain(value)


def _of_fields(fields: dict[str, Callable[[Any], Any]]) -> Callable[[Any], Any]:
    return lambda value: {name: plain(value[name]) for name, plain in fields.items()}


def _of_entries(key: Callable[[Any], Any], item: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def entries(pairs: list[tuple[Any, Any]]) -> Any:
        names = [key(name) for name, _ in pairs]
        if not all(isinstance(name, str | int) for name in names):
            return ODD
        return {as_label(name): item(value) for name, (_, value) in zip(names, pairs, strict=True)}

    return entries


def _text(value: bytes) -> Any:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return ODD


def _day(days: int) -> Any:
    try:
        return (_EPOCH + timedelta(days)).isoformat()
    except OverflowError:
        return ODD


def _number(value: Any) -> Any:
    return value if isinstance(value, int | float | Decimal) else ODD


OBJECT_ROWS_AT_ONCE = 1 << 13


class ParquetObjects:
    """Rows of a Parquet file, as objects; see the module."""

    word = "row"
    partitions = 1
    places: Sequence[str] = ()
    until_ms = None

    def __init__(self, settings: Settings, name: str, file: IO[bytes]) -> None:
        """Raises:
        SettingsError: it is not Parquet, or a path leads to none of its columns.
        """
        self.name = name
        try:
            self._file = pq.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False)
        except (pa.ArrowException, OSError) as error:
            raise SettingsError(
                f"{name}: not a Parquet file: {str(error).splitlines()[0][:200]}"
            ) from error
        schema, shape = self._file.schema_arrow, shape_of_files(settings)
        asked = list(_asked(shape))
        for each in asked:
            _check(each, schema, name)
        shape = _shape_in(schema, shape)
        self._columns = list(dict.fromkeys(each.path.steps[0] for each in asked))
        self.total: int | None = self._file.metadata.num_rows
        self._reader = SourceReader(EventReader(shape), declared_keys(settings))
        self._order = InOrder(name, self.word, settings.events.grace_ms)

    def batches(self) -> Iterator[EventBatch]:
        read = 0
        try:
            for rows in ahead(
                self._file.iter_batches(
                    OBJECT_ROWS_AT_ONCE, columns=self._columns, use_threads=False
                )
            ):
                events, rejected = self._reader.of_objects(_listed(rows))
                self._order.check(events.times, read + 1 + events.index)
                rejects = [(read + 1 + each.index, each.reason) for each in rejected]
                read += rows.num_rows
                yield EventBatch(0, events, rejects, read)
        except (pa.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0][:200]
            raise SettingsError(
                f"{self.name}: cannot be read after row {read:,}: {reason}"
            ) from error

    def ended(self) -> frozenset[int]:
        return frozenset()


def first_rows(
    settings: Settings, name: str, path: FilePath, number: int
) -> tuple[list[object], Shape]:
    """Return the first rows of a file as whole objects, and the fields to read in them.

    Raises:
        SettingsError: it is not Parquet.
    """
    try:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            shape = _shape_in(file.schema_arrow, shape_of_files(settings))
            objects: list[object] = []
            for rows in file.iter_batches(min(number, OBJECT_ROWS_AT_ONCE), use_threads=False):
                objects += _listed(rows)
                if len(objects) >= number:
                    break
    except (pa.ArrowException, OSError) as error:
        raise SettingsError(
            f"{name}: not a Parquet file: {str(error).splitlines()[0][:200]}"
        ) from error
    return objects[:number], shape


def _shape_in(schema: Any, shape: Shape) -> Shape:
    """Return the fields to read in a file; Arrow timestamps come in ms."""
    kind = None if shape.time is None else _kind(shape.time, schema)
    return replace(shape, unit="ms") if kind is not None and pa.types.is_timestamp(kind) else shape


class _Asked(NamedTuple):
    """Path of the settings; `fits` returns whether a type can hold the values wanted there."""

    setting: str
    path: Path
    allowed: str
    fits: Callable[[Any], bool]


def _asked(shape: Shape) -> Iterator[_Asked]:
    for view in shape.views.values():
        if isinstance(view.key, Path):
            yield _Asked("key", view.key, "text, whole numbers or booleans", _is_label)
        yield _items(view)
        if view.count is not None:
            yield _Asked("count", view.count, "whole numbers", pa.types.is_integer)
        for condition in view.where:
            yield _Asked("where", parse(condition.field), "anything", lambda _: True)
    if shape.time is not None:
        yield _Asked(
            "timestamp", shape.time, _TIMES[shape.unit], lambda kind: _is_time(kind, shape.unit)
        )
    if isinstance(shape.user, Path):
        yield _Asked(
            "user",
            shape.user,
            "text or whole numbers",
            lambda kind: holds_texts(kind) or pa.types.is_integer(kind),
        )


def _items(view: View) -> _Asked:
    one = _is_label if view.edges is None else _is_number
    word = "text, whole numbers or booleans" if view.edges is None else "numbers"
    if view.items.list_at is not None or view.count is not None:
        return _Asked("items", view.items, word, one)

    def fits(kind: Any) -> bool:
        if pa.types.is_map(kind):
            return view.edges is None and bool(pa.types.is_integer(kind.item_type))
        return one(kind.value_type if is_list(kind) else kind)

    more = "" if view.edges is not None else ", or a map of them to whole numbers"
    return _Asked(
        "items",
        view.items,
        f"{word}, a list of them{more}; in a list of structures say which: q[].label",
        fits,
    )


_TIMES = {unit: f"a timestamp, or whole numbers in {unit}" for unit in ("ms", "us", "ns")}
_TIMES |= {"s": "a timestamp, or numbers in s", "iso": "a timestamp, or text"}


def _is_time(kind: Any, unit: str) -> bool:
    if pa.types.is_timestamp(kind):
        return True
    return (
        holds_texts(kind)
        if unit == "iso"
        else _is_number(kind)
        if unit == "s"
        else bool(pa.types.is_integer(kind))
    )


def _is_label(kind: Any) -> bool:
    return holds_texts(kind) or bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind))


def _is_number(kind: Any) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def _kind(path: Path, schema: Any) -> Any:
    """Return the type at a path; None if it cannot exist."""
    found: Any = None
    for place, name in enumerate(path.steps, 1):
        fields = schema if found is None else found
        if found is not None and pa.types.is_map(found):
            found = found.item_type
        elif (found is None or pa.types.is_struct(found)) and name in [
            field.name for field in fields
        ]:
            found = fields.field([field.name for field in fields].index(name)).type
        else:
            return None
        if place == path.list_at:
            if not is_list(found):
                return None
            found = found.value_type
    return found.value_type if pa.types.is_dictionary(found) else found


def _check(asked: _Asked, schema: Any, name: str) -> None:
    kind, shown = _kind(asked.path, schema), f"{name}: {asked.setting} = {str(asked.path)!r}"
    if kind is None:
        raise SettingsError(f"{shown}: nothing is there; its columns are {', '.join(schema.names)}")
    if schema.names.count(asked.path.steps[0]) > 1:
        raise SettingsError(
            f"{shown}: {schema.names.count(asked.path.steps[0])} columns have that name"
        )
    if not asked.fits(kind) and not pa.types.is_null(kind):
        raise SettingsError(f"{shown}: {kind} is there; it must be {asked.allowed}")


def _listed(rows: Any) -> list[dict[str, Any]]:
    columns = [objects_of(column) for column in rows.columns]
    return [dict(zip(rows.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


# Every batch of a row group comes with the dictionary of its texts, which is looked up each time.
ROWS_AT_ONCE = 1 << 18
# Minimum average rows of a row group for reading groups as separate batches.
GROUP_ROWS = 1 << 14


class ParquetRows:
    """Rows of a Parquet file, as columns; see the module."""

    word = "row"
    partitions = 1
    places: Sequence[str] = ()
    until_ms = None

    def __init__(self, settings: Settings, name: str, file: IO[bytes]) -> None:
        """Raises:
        SettingsError: it is not Parquet, or lacks a column, or a column's type fits no event.
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
            texts = [field.name for field in schema if is_text(field.type)]
            if self._groups != [None]:
                texts += _texts_in(self._items, schema, metadata)
            # malloc keeps freed batch memory; pyarrow's own pool faults it in again.
            pa.set_memory_pool(pa.system_memory_pool())
            # With `pre_buffer` memory would grow with the file.
            self._file = pq.ParquetFile(
                file, read_dictionary=texts, buffer_size=1 << 20, pre_buffer=False
            )
        except (pa.ArrowException, OSError) as error:
            raise SettingsError(f"{name}: not a Parquet file: {_first_line(error)}") from error
        self._check(schema)
        self.total: int | None = self._file.metadata.num_rows
        self._map = pa.types.is_map(schema.field(self._items).type)
        self._coder = LabelEncoder(Names())
        self._keys = TextColumn(
            Names(declared_keys(settings)[self._name_of_view] or ()),
            declared_keys(settings)[self._name_of_view],
        )
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
        wanted = list(
            dict.fromkeys(
                c for c in (self._key, self._items, self._time, self._user) if c is not None
            )
        )
        read = 0
        try:
            for rows in ahead(self._rows(wanted)):
                events, refused = self._events(rows)
                rejects: list[tuple[int, str]] = []
                if refused.any():
                    rejects = [
                        (read + 1 + at, self._reasons[refused[at]])
                        for at in np.flatnonzero(refused).tolist()
                    ]
                self._order.check(events.times, read + 1 + events.index)
                read += rows.num_rows
                yield EventBatch(0, events, rejects, read)
        except (pa.ArrowException, OSError) as error:
            raise SettingsError(
                f"{self.name}: cannot be read after row {read:,}: {_first_line(error)}"
            ) from error

    def ended(self) -> frozenset[int]:
        return frozenset()

    def _rows(self, columns: list[str]) -> Iterator[Any]:
        for groups in self._groups:
            yield from self._file.iter_batches(
                ROWS_AT_ONCE, row_groups=groups, columns=columns, use_threads=False
            )

    def _check(self, schema: Any) -> None:
        for column, setting, allowed, fits in (
            (self._key, "events.key", "text", is_text),
            (
                self._items,
                "events.items",
                "text, list<text>, map<text, int> or list<struct<text, int>>",
                is_items,
            ),
            (self._time, "events.timestamp", "int64 (ms since 1970) or timestamp", is_time),
            (
                self._user,
                "events.user",
                "text or int64",
                lambda kind: is_text(kind) or pa.types.is_integer(kind),
            ),
        ):
            if column is None:
                continue
            if column not in schema.names:
                raise SettingsError(
                    f"{self.name}: no column {column!r} ({setting}); its columns are {', '.join(schema.names)}"
                )
            if schema.names.count(column) > 1:
                raise SettingsError(
                    f"{self.name}: {schema.names.count(column)} columns {column!r} ({setting})"
                )
            kind = schema.field(column).type
            if not fits(kind):
                raise SettingsError(
                    f"{self.name}: column {column!r} ({setting}) is {kind}; it must be {allowed}"
                )

    def _events(self, rows: Any) -> tuple[Events, NDArray[np.int8]]:
        """Return the valid events of some rows, and every row's reject reason number (0: valid)."""
        n = rows.num_rows
        refused = np.zeros(n, dtype=np.int8)

        def refuse(which: Bools | None, reason: int) -> None:
            if which is not None:
                refused[which & (refused == 0)] = reason

        keys = self._key_codes(rows)
        self._labels.begin()
        items = items_of(rows.column(self._items), self._labels)
        times = times_of(rows.column(self._time))
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
            refuse(missing(rows.column(self._time)), 6)
            refuse(in_ns(rows.column(self._time), PLAUSIBLE_MS), 14)
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
            return np.full(
                rows.num_rows, self._keys.names.vocabulary.code_of(ALL_STREAM_KEY), dtype=np.int32
            )
        return self._keys.codes(rows.column(self._key))


def is_flat(shape: Shape) -> bool:
    """Return whether every field of an event is a whole column."""
    if len(shape.views) != 1 or shape.empty or shape.unit != "ms":
        return False
    [view] = shape.views.values()
    fields = [
        path for path in (view.key, view.items, shape.time, shape.user) if isinstance(path, Path)
    ]
    flat = all(len(path.steps) == 1 and path.list_at is None for path in fields)
    return flat and view.count is None and not view.where and view.edges is None


def has_texts(shape: Shape, file: IO[bytes]) -> bool:
    """Return whether labels and stream keys are not numbers, as far as the file's schema tells."""
    try:
        schema = pq.read_schema(file)
    except (pa.ArrowException, OSError):
        return True
    [view] = shape.views.values()
    for path in (view.key, view.items):
        if isinstance(path, Path) and path.steps[0] in schema.names:
            kind = schema.field(schema.names.index(path.steps[0])).type
            kind = (
                kind.value_type if pa.types.is_list(kind) or pa.types.is_large_list(kind) else kind
            )
            if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
                return False
    return True


def _column(field: Path | str | None) -> str:
    assert isinstance(field, Path), "a file has no record keys"
    return field.steps[0]


def _groups(metadata: Any) -> list[list[int] | None]:
    """Return the row groups to read together: one at a time, or all (None) if they are small."""
    number = metadata.num_row_groups
    return (
        [None] if metadata.num_rows < number * GROUP_ROWS else [[group] for group in range(number)]
    )


def _texts_in(column: str, schema: Any, metadata: Any) -> list[str]:
    """Return the paths of texts in a column's lists, maps and structures, to read as dictionaries.

    As dictionaries, texts are decoded once for a row group. pyarrow does not give texts in lists as
    dictionaries if a batch spans two row groups, so this is for groups that are read one by one.
    """
    if column not in schema.names or not pa.types.is_nested(schema.field(column).type):
        return []
    leaves = [metadata.schema.column(i) for i in range(len(metadata.schema))]
    return [
        leaf.path
        for leaf in leaves
        if leaf.physical_type == "BYTE_ARRAY" and leaf.path.startswith(f"{column}.")
    ]


def _is(codes: NDArray[Any], wrong: int) -> Bools | None:
    """Return where a code equals `wrong`; None: nowhere."""
    found = codes == wrong
    return found if found.any() else None


def _rows_with(values: NDArray[Any], wrong: int, lengths: Longs) -> Bools | None:
    """Return the rows with any value equal to `wrong`; None: none."""
    places = np.flatnonzero(values == wrong)
    if not len(places):
        return None
    rows = np.zeros(len(lengths), dtype=np.bool_)
    rows[np.searchsorted(np.cumsum(lengths), places, side="right")] = True
    return rows


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0][:200]
