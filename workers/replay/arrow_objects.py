"""Arrow's values as the plain Python objects that JSON would have in their place.

Nothing in a file may stop its reading: what Python cannot hold, such as text that is not UTF-8 or a
date of the year 10,000, becomes ODD, which is of no kind that an event has.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from workers.shapes.conditions import as_label

ODD = ()
# Of a timestamp's unit: what a number is multiplied with and divided by to have ms.
_MS = {"s": (1_000, 1), "ms": (1, 1), "us": (1, 1_000), "ns": (1, 1_000_000)}
_EPOCH = date(1970, 1, 1)


def objects_of(array: Any) -> list[Any]:
    """Return the values of an array: dict, list, str, int, float, Decimal, bool, None, or ODD.

    Timestamps are ms since 1970, rounded down; dates are as ISO 8601 writes them; the keys of a map
    are texts, and of one that occurs twice the last value is there.
    """
    plain = _plain(array.type)
    values = array.cast(_raw(array.type), safe=False).to_pylist()
    return [None if value is None else plain(value) for value in values]


def is_text(kind: Any) -> bool:
    """Return whether values of a type are texts, or bytes that may be."""
    of = pa.types
    return any(
        is_it(kind)
        for is_it in (of.is_string, of.is_large_string, of.is_string_view, of.is_binary, of.is_large_binary)
    )


def is_list(kind: Any) -> bool:
    """Return whether values of a type are lists of any length."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _raw(kind: Any) -> Any:
    """Return the type in which Python takes all values of a type as they are."""
    if pa.types.is_dictionary(kind):
        return _raw(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_raw(field.type)) for field in kind])
    if is_list(kind):
        of = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return of(kind.value_field.with_type(_raw(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_raw(kind.key_type), _raw(kind.item_type))
    if is_text(kind):
        return pa.large_binary()
    if pa.types.is_float16(kind):
        return pa.float64()
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_temporal(kind) and not pa.types.is_interval(kind) else kind


def _plain(kind: Any) -> Callable[[Any], Any]:
    """Return what makes a plain object of a raw value that is not null."""
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
    return _text if is_text(kind) else _number


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
