"""From Arrow's arrays to codes, lengths, amounts and times: whole arrays at a time, no Python
object for a text.

A value that no event can have gets a negative code, amount or time; whoever reads the rows says
what that means.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from workers.events.columns import AMOUNT_MAX, Longs, Names
from workers.events.pairs import user_digests
from workers.events.reader import TIME_MAX
from workers.events.vocabulary import Codes
from workers.mechanisms.config import LABEL_BYTES_MAX

# What stands for a text that is none; and for an amount or a time.
NULL, NOT_UTF8, TOO_LONG, NOT_DECLARED = -1, -2, -3, -4
WRONG = -1
# Units of a timestamp in a ms; below zero: ms in the unit.
_UNITS = {"s": -1000, "ms": 1, "us": 1000, "ns": 1_000_000}


class TextColumn:
    """The codes of one column's texts, the same from batch to batch (see `Vocabulary`)."""

    def __init__(self, names: Names, declared: frozenset[str] | None = None) -> None:
        """
        Args:
            names: the vocabulary, whose first texts are the declared ones.
            declared: the only texts that are allowed; None: all.
        """
        self.names, self._declared = names, declared
        self._dictionary: Any = None
        self._table: Codes = np.empty(0, dtype=np.int32)

    def begin(self) -> None:
        """Begin a batch."""
        before = self.names.vocabulary
        self.names.begin()
        if self.names.vocabulary is not before:
            self._dictionary = None

    def codes(self, array: Any) -> Codes:
        """Return a code for each value; below zero for one that is no valid text."""
        if not pa.types.is_dictionary(array.type):
            array = array.dictionary_encode()
        table = self._table_of(array.dictionary)
        codes: Codes = table[_indices(array, len(table) - 1)]
        return codes

    def _table_of(self, dictionary: Any) -> Codes:
        """Return the code of each text of a dictionary, and that of a null behind them."""
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
    """The digests of one column's users."""

    def digests(self, array: Any) -> tuple[NDArray[np.uint64], NDArray[np.int8]]:
        """Return the digest of each user, uint64 (n, 2), and for each below zero if it is no valid
        text.
        """
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
    """Where the texts of an array lie.

    Attributes:
        data: uint8.
        places: int64 (n, 2), start and stop of each; (0, 0) where it is no valid text.
        wrong: int8 (n,), 0 for a valid text, else NULL, NOT_UTF8 or TOO_LONG.
    """

    data: NDArray[np.uint8]
    places: Longs
    wrong: NDArray[np.int8]


def spans_of(array: Any) -> Spans:
    """Return where the texts of an array of strings or binaries lie."""
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
    """Return the indices of an array's dictionary; `null` where there is none."""
    indices = array.indices
    if indices.null_count:
        indices = indices.cast(pa.int64()).fill_null(null)
    return numbers_of(indices)


def numbers_of(array: Any) -> NDArray[Any]:
    """Return the numbers of an array without nulls, which are not copied.

    `Array.to_numpy` imports pandas where that is installed, which takes 0.9 s.
    """
    dtype = np.dtype(str(array.type))
    buffer = array.buffers()[1]
    if buffer is None:
        return np.empty(0, dtype=dtype)
    return np.frombuffer(buffer, dtype=dtype, count=len(array), offset=array.offset * dtype.itemsize)


def flags_of(array: Any) -> NDArray[np.bool_]:
    """Return the values of an array of booleans without nulls."""
    buffer = array.buffers()[1]
    if buffer is None:
        return np.empty(0, dtype=np.bool_)
    bits = np.unpackbits(np.frombuffer(buffer, dtype=np.uint8), bitorder="little")
    return bits[array.offset : array.offset + len(array)].astype(np.bool_)


@dataclass(frozen=True, slots=True)
class ItemRows:
    """The items of a batch's rows, end to end.

    Attributes:
        present: bool (n,), whether the row has items (an empty list is there, a null is not).
        codes: int32 (m,), as `TextColumn.codes`.
        amounts: int64 (m,), below zero where it is no amount; None: once each.
        lengths: int64 (n,).
    """

    present: NDArray[np.bool_]
    codes: Codes
    amounts: Longs | None
    lengths: Longs


def is_text(kind: Any) -> bool:
    """Whether a column of this type holds texts."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    checks = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_string_view,
        pa.types.is_binary,
        pa.types.is_large_binary,
    )
    return any(check(kind) for check in checks)


def is_items(kind: Any) -> bool:
    """Whether a column of this type can hold items."""
    if pa.types.is_map(kind):
        return is_text(kind.key_type) and pa.types.is_integer(kind.item_type)
    if not _is_list(kind):
        return is_text(kind)
    each = kind.value_type
    return is_text(each) or (pa.types.is_struct(each) and _members(each) is not None)


def items_of(array: Any, texts: TextColumn) -> ItemRows:
    """The items of a column for which `is_items` holds."""
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
        members = _members(array.type.value_type) if pa.types.is_struct(array.type.value_type) else None
        if members is not None:
            fields = labels.flatten()
            labels, amounts = fields[members[0]], _whole(fields[members[1]], AMOUNT_MAX)
    return ItemRows(present, texts.codes(labels), amounts, np.diff(offsets))


def is_time(kind: Any) -> bool:
    """Whether a column of this type holds times."""
    return bool(pa.types.is_integer(kind) or pa.types.is_timestamp(kind))


def times_of(array: Any) -> Longs:
    """Times in ms since 1970; below zero where there is none that an event can have."""
    if not pa.types.is_timestamp(array.type):
        return _whole(array, TIME_MAX, above=WRONG)
    unit = _UNITS[array.type.unit]
    values = _whole(array.cast(pa.int64()), (1 << 63) - 1)
    times = values // unit if unit > 0 else np.where(values > TIME_MAX // -unit, WRONG, values * -unit)
    return np.where((times > TIME_MAX) | (values < 0), WRONG, times)


def in_ns(array: Any, between_ms: tuple[int, int]) -> NDArray[np.bool_] | None:
    """Return which whole numbers are ns between two times in ms; None: of timestamps."""
    if pa.types.is_timestamp(array.type):
        return None
    values = _whole(array, (1 << 63) - 1)
    return (values >= between_ms[0] * 1_000_000) & (values < between_ms[1] * 1_000_000)


def missing(array: Any) -> NDArray[np.bool_]:
    """Where a column has nulls."""
    return flags_of(array.is_null())


def _whole(array: Any, most: int, above: int | None = None) -> Longs:
    """Whole numbers; nulls and negative ones as WRONG, larger ones than `most` as `above` (None: as
    `most`).
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
    """Which of a structure's two fields is the text, and which the whole number."""
    fields = [kind.field(i).type for i in range(kind.num_fields)]
    if len(fields) == 2:
        for label, amount in ((0, 1), (1, 0)):
            if is_text(fields[label]) and pa.types.is_integer(fields[amount]):
                return label, amount
    return None
