"""From Arrow's arrays to codes, lengths, amounts and times: whole arrays at a time, a Python object only for each distinct text.

A value that no event can have gets a negative code, amount or time; whoever reads the rows says what that means.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from workers.agents.event_columns import AMOUNT_MAX, Codes, Longs, Vocabulary
from workers.agents.events import TIME_MAX
from workers.mechanisms.config import LABEL_BYTES_MAX

# What stands for a text that is none; and for an amount or a time.
NULL, NOT_UTF8, TOO_LONG, NOT_DECLARED = -1, -2, -3, -4
WRONG = -1
# Units of a timestamp in a ms; below zero: ms in the unit.
_UNITS = {"s": -1000, "ms": 1, "us": 1000, "ns": 1_000_000}


class Texts:
    """The codes of one column's texts, the same from batch to batch (see `Vocabulary`)."""

    def __init__(self, declared: frozenset[str] | None = None) -> None:
        """
        Args:
            declared: the only texts that are allowed; None: all.
        """
        self.vocabulary = Vocabulary()
        self._declared = declared
        self._codes: dict[bytes, int] = {}  # of the vocabulary's texts
        self._dictionary: Any = None
        self._table: Codes = np.empty(0, dtype=np.int32)

    def begin(self) -> None:
        """Called before a batch."""
        before = self.vocabulary.names
        self.vocabulary.begin()
        if self.vocabulary.names is not before:
            self._dictionary, self._codes = None, {}

    def codes(self, array: Any) -> Codes:
        """A code for each value; below zero for one that is no valid text."""
        if not pa.types.is_dictionary(array.type):
            array = array.dictionary_encode()
        table = self._table_of(array.dictionary)
        indices = array.indices
        if indices.null_count:
            indices = indices.cast(pa.int64()).fill_null(len(table) - 1)
        codes: Codes = table[indices.to_numpy(zero_copy_only=False)]
        return codes

    def _table_of(self, dictionary: Any) -> Codes:
        """The code of each text of a dictionary, and that of a null behind them."""
        if self._dictionary is None or not dictionary.equals(self._dictionary):
            texts = dictionary.cast(pa.large_binary()).to_pylist()
            codes: list[int | None] = list(map(self._codes.get, texts))
            if None in codes:
                codes = [self._code(text) if code is None else code for text, code in zip(texts, codes, strict=True)]
            self._dictionary, self._table = dictionary, np.array([*codes, NULL], dtype=np.int32)
        return self._table

    def _code(self, text: bytes | None) -> int:
        if text is None:
            return NULL
        if len(text) > LABEL_BYTES_MAX:
            return TOO_LONG
        try:
            name = text.decode()
        except UnicodeDecodeError:
            return NOT_UTF8
        if self._declared is not None and name not in self._declared:
            return NOT_DECLARED
        code = self._codes[text] = self.vocabulary.code(name)
        return code


@dataclass(frozen=True, slots=True)
class ItemRows:
    """The items of a batch's rows, end to end.

    Attributes:
        present: bool (n,), whether the row has items (an empty list is there, a null is not).
        codes: int32 (m,), as `Texts.codes`.
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


def items_of(array: Any, texts: Texts) -> ItemRows:
    """The items of a column for which `is_items` holds."""
    n = len(array)
    present = np.ones(n, dtype=np.bool_) if not array.null_count else array.is_valid().to_numpy(zero_copy_only=False)
    if is_text(array.type):
        return ItemRows(present, texts.codes(array), None, np.ones(n, dtype=np.int64))
    offsets = array.offsets.to_numpy().astype(np.int64)
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


def missing(array: Any) -> NDArray[np.bool_]:
    """Where a column has nulls."""
    found: NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    return found


def _whole(array: Any, most: int, above: int | None = None) -> Longs:
    """Whole numbers; nulls and negative ones as WRONG, larger ones than `most` as `above` (None: as `most`)."""
    if array.null_count:
        if pa.types.is_unsigned_integer(array.type):
            mask = missing(array)
            values = np.where(mask, WRONG, _whole(array.fill_null(0), most, above))
            return values.astype(np.int64, copy=False)
        array = array.cast(pa.int64()).fill_null(WRONG)
    values = array.to_numpy(zero_copy_only=False)
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
