"""Project decoded records, plain Python objects, to events: the reference rule of all readers.

The compiled readers handle plain records only and leave all others to this module; tests compare
the two. Reject reasons name configuration fields only.
"""

import math
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta, timezone
from decimal import ROUND_FLOOR, Context, Decimal
from types import MappingProxyType
from typing import Any, NamedTuple

from workers.events.log_values import AMOUNT_MAX
from workers.mechanisms.config.histogram import LABEL_BYTES_MAX
from workers.mechanisms.config.views import Condition, Path, Shape, View, as_label, parse
from workers.runtime.frozen import Frozen
from workers.settings.times import TIME_MAX_MS

PER_SECOND = MappingProxyType({"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000})
ISO = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?(?:([Zz])|([+-])(\d\d):?(\d\d))?",
    re.ASCII,
)
UNIT_WORDS = MappingProxyType(
    {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
)
#: 2000 to 2100; times outside suggest a wrong unit.
PLAUSIBLE_MS = (946_684_800_000, 4_102_444_800_000)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLI, _EXACT = Decimal("0.001"), Context(prec=40)
# A larger integer has more digits than a label may have bytes.
_LABEL_BITS_MAX = 3_410
# The field is absent; None means null.
_ABSENT: Any = object()


class ViewValues(NamedTuple):
    """One view's key ("" if not a field), labels or bucket numbers, and their amounts."""

    key: str
    labels: Sequence[str] | Sequence[int]
    amounts: Sequence[int]


class Event(NamedTuple):
    """A valid event.

    Attributes:
        time: ms since 1970; 0 if it is the record's, -1 if unreadable and no view needs it.
        user: "" if not a field, or if no view includes the event.
        views: None where the view's conditions do not hold.
    """

    time: int
    user: str
    views: tuple[ViewValues | None, ...]


class _Rejected(Exception):
    """An event is rejected; the message is the reason."""


class Projection(Frozen):
    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._views = tuple(_ViewProjection(view, shape.empty) for view in shape.views.values())

    def event(self, record: object) -> Event | str:
        if not isinstance(record, Mapping):
            return "not a JSON object"
        try:
            views = tuple(view.seen(record) for view in self._views)
            wanted = any(view is not None for view in views)
            event = Event(self._time(record, wanted), self._user(record) if wanted else "", views)
        except _Rejected as why:
            return str(why)
        return "label too long" if _longest(event) > LABEL_BYTES_MAX else event

    def numbers(self, view: str, record: object) -> list[float | Decimal]:
        """Return the numbers of a view of sums in an event, one for each item."""
        of = dict(zip(self._shape.views, self._views, strict=True))[view]
        valid = isinstance(record, Mapping) and not isinstance(self.event(record), str)
        return of.numbers(record) if valid and isinstance(record, Mapping) else []

    def user_and_time(self, record: object) -> tuple[str | None, int]:
        """Return user and time: None and -1 if unreadable, "" and 0 if not a field."""
        if not isinstance(record, Mapping):
            return None, -1
        try:
            user = self._user(record)
        except _Rejected:
            return None, self._time(record, False)
        return user if len(user.encode()) <= LABEL_BYTES_MAX else None, self._time(record, False)

    def _time(self, record: Mapping[str, Any], wanted: bool) -> int:
        path, unit = self._shape.time, self._shape.unit
        if path is None:
            return 0
        try:
            value = _field(record, path)
            time = time_ms(value, unit)
            if time is None:
                kind = "an ISO time" if unit == "iso" else f"a time in {unit}"
                raise _Rejected(f"field {_name(path)} is not {kind}" + _likely_unit(value))
        except _Rejected:
            if wanted:
                raise
            return -1
        return time

    def _user(self, record: Mapping[str, Any]) -> str:
        path = self._shape.user
        if not isinstance(path, Path):
            return ""
        user = _field(record, path)
        if isinstance(user, bool) or not isinstance(user, str | int):
            raise _Rejected(f"field {_name(path)} is not a string or a whole number")
        return user if isinstance(user, str) else _digits(user)


def _likely_unit(value: object) -> str:
    """Return the likely unit of an invalid time, as the end of a reject reason."""
    for unit, word in UNIT_WORDS.items():
        time = time_ms(value, unit)
        if time is not None and PLAUSIBLE_MS[0] <= time < PLAUSIBLE_MS[1]:
            return f": {word}?"
    return ""


class _ViewProjection(Frozen):
    def __init__(self, view: View, empty: bool) -> None:
        self._view, self._empty, self._number = view, empty, view.number
        self._where = tuple((condition, parse(condition.field).steps) for condition in view.where)

    def seen(self, record: Mapping[str, Any]) -> ViewValues | None:
        if not all(holds(condition, _value(record, steps)) for condition, steps in self._where):
            return None
        key = self._view.key
        name = ""
        if isinstance(key, Path):
            given = _field(record, key)
            if not isinstance(given, str | int):
                raise _Rejected(f"field {_name(key)} is not a string, whole number or boolean")
            name = _text(given)
        items, amounts = self._items(record)
        if self._view.sum is not None:
            numbers = self._numbers(record, len(items))
            amounts = list(map(self._view.sum.steps_of, numbers))
        return ViewValues(name, items, amounts)

    def numbers(self, record: Mapping[str, Any]) -> list[float | Decimal]:
        """Return the numbers of a view of sums, one for each item; [] where it has none."""
        if self.seen(record) is None:
            return []
        return self._numbers(record, len(self._items(record)[0]))

    def _numbers(self, record: Mapping[str, Any], items: int) -> list[float | Decimal]:
        path = self._number
        assert path is not None, "only of sums"
        if path.list_at is None:
            return [_number(_field(record, path), path)] * items if items else []
        steps, label = path.list_steps or (), self._view.items.steps[path.list_at :]
        found: list[float | Decimal] = []
        of_list = Path(steps)
        for element in _at(record, steps) if items else ():
            value = _at(element, label, of_list)
            if not self._empty or (value is not None and value is not _ABSENT):
                given = _at(element, path.steps[len(steps) :], of_list)
                found.append(_number(_required(given, path), path))
        return found

    def _items(self, record: Mapping[str, Any]) -> tuple[list[Any], list[int]]:
        items, count = self._view.items, self._view.count
        at = items.list_at
        if at is not None and at < len(items.steps):
            return self._of_elements(record, items.steps[:at], items.steps[at:])
        found = _at(record, items.steps)
        if self._empty and (found is None or found is _ABSENT):
            return [], []
        found = _required(found, items)
        if isinstance(found, list):
            if count is not None:
                raise _Rejected(f"field {_name(items)} is not one item, as {_name(count)} is")
            return self._of_list(found)
        if items.list_at is not None:
            raise _Rejected(f"field {_name(Path(items.steps))} is not a list")
        if isinstance(found, Mapping) and self._view.edges is None and count is None:
            return self._of_object(found)
        if not self._fits(found):
            if count is not None:
                raise _Rejected(f"field {_name(items)} is not {self._kind}")
            if self._view.edges is not None:
                raise _Rejected(f"field {_name(items)} is not a number or a list of them")
            raise _Rejected(f"field {_name(items)} is not a string, list or object")
        return [self._label(found)], [1 if count is None else _amount(_field(record, count), count)]

    def _of_list(self, found: list[Any]) -> tuple[list[Any], list[int]]:
        kept = [value for value in found if value is not None] if self._empty else found
        if not all(map(self._fits, kept)):
            name = _name(Path(self._view.items.steps))
            if None in kept:
                raise _Rejected(f"field {name} has an item that is null")
            raise _Rejected(f"field {name} has an item that is not {self._kind}")
        return [self._label(value) for value in kept], [1] * len(kept)

    def _of_object(self, found: Mapping[str, Any]) -> tuple[list[Any], list[int]]:
        counts = list(found.values())
        if not all(type(count) is int and count >= 0 for count in counts):
            raise _Rejected(f"a count in {_name(self._view.items)} is not a non-negative integer")
        return list(found), [min(count, AMOUNT_MAX) for count in counts]

    def _of_elements(
        self, record: Mapping[str, Any], steps: tuple[str, ...], rest: tuple[str, ...]
    ) -> tuple[list[Any], list[int]]:
        items, count, of_list = self._view.items, self._view.count, Path(steps)
        elements = _at(record, steps)
        if self._empty and (elements is None or elements is _ABSENT):
            return [], []
        if not isinstance(_required(elements, of_list), list):
            raise _Rejected(f"field {_name(of_list)} is not a list")
        values: list[Any] = []
        amounts: list[int] = []
        for element in elements:
            if not isinstance(element, Mapping):
                raise _Rejected(f"field {_name(of_list)} has an item that is not an object")
            value = _at(element, rest, of_list)
            if self._empty and (value is None or value is _ABSENT):
                continue
            value = _required(value, items)
            if not self._fits(value):
                raise _Rejected(f"field {_name(items)} is not {self._kind}")
            values.append(self._label(value))
            if count is None:
                amounts.append(1)
            else:
                given = _at(element, count.steps[len(steps) :], of_list)
                amounts.append(_amount(_required(given, count), count))
        return values, amounts

    @property
    def _kind(self) -> str:
        return "a string, whole number or boolean" if self._view.edges is None else "a number"

    def _fits(self, value: object) -> bool:
        if self._view.edges is None:
            return isinstance(value, str | int)
        return number_of(value) is not None

    def _label(self, value: Any) -> Any:
        edges = self._view.edges
        return _text(value) if edges is None else bucket(edges, value)


def holds(condition: Condition, value: object) -> bool:
    """Return whether a value, None if absent, meets a condition."""
    there = value is not None
    text = _text(value) if isinstance(value, str | int) else None
    number = number_of(value)
    return (
        (condition.exists is None or condition.exists == there)
        and (condition.in_ is None or (text is not None and text in condition.in_))
        and (condition.not_in is None or text is None or text not in condition.not_in)
        and (condition.min is None or (number is not None and number >= condition.min))
        and (condition.max is None or (number is not None and number <= condition.max))
    )


def number_of(value: object) -> float | None:
    """Return a number as the nearest float64, possibly infinite; None if not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    if isinstance(value, float) and math.isnan(value):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def bucket(edges: Sequence[float], value: float | Decimal) -> int:
    """Return the bucket of a number: how many of the ascending edges are at most that number."""
    number = number_of(value)
    assert number is not None, "looked at before"
    return bisect_right(edges, number)


def time_ms(value: object, unit: str) -> int | None:
    """Return a time in ms since 1970, rounded down; None if it is not a valid event time."""
    if unit == "iso":
        found = _iso(value)
    elif type(value) is int:
        found = value * 1000 // PER_SECOND[unit]
    elif (
        unit == "s"
        and isinstance(value, Decimal)
        and value.is_finite()
        and abs(value) <= TIME_MAX_MS
    ):
        found = int(value.quantize(_MILLI, ROUND_FLOOR, _EXACT).scaleb(3, _EXACT))
    elif unit == "s" and isinstance(value, float) and abs(value) <= TIME_MAX_MS:
        # Binary formats hold only the nearest float: round to the microsecond first.
        found = round(value * 1e6) // 1000
    else:
        found = None
    if isinstance(value, int | float | Decimal) and value < 0:
        return None
    return None if found is None or not 0 <= found <= TIME_MAX_MS else found


def _iso(value: object) -> int | None:
    """Parse an ISO 8601 time to ms since 1970; UTC if it has no zone."""
    parts = ISO.fullmatch(value) if isinstance(value, str) else None
    if parts is None:
        return None
    year, month, day, hour, minute, second = (int(part or 0) for part in parts.groups()[:6])
    sign, hours, minutes = parts[9] or "+", int(parts[10] or 0), int(parts[11] or 0)
    if hours > 23 or minutes > 59:
        return None
    offset = timedelta(hours=hours, minutes=minutes) * (-1 if sign == "-" else 1)
    try:
        at = datetime(year, month, day, hour, minute, second, tzinfo=timezone(offset))
    except ValueError:
        return None
    fraction = int((parts[7] or "").ljust(3, "0")[:3])
    return (at - _EPOCH) // timedelta(milliseconds=1) + fraction


def _at(record: Mapping[str, Any], steps: tuple[str, ...], within: Path | None = None) -> Any:
    """Return the value at a path through objects, `_ABSENT` if there is none."""
    found: Any = record
    for place, name in enumerate(steps):
        if found is None:
            return _ABSENT
        if not isinstance(found, Mapping):
            before = steps[:place]
            path = Path(before)
            if within is not None:
                path = Path(within.steps + before, len(within.steps))
            raise _Rejected(f"field {_name(path)} is not an object")
        found = found.get(name, _ABSENT)
        if found is _ABSENT:
            return _ABSENT
    return found


def _field(record: Mapping[str, Any], path: Path) -> Any:
    return _required(_at(record, path.steps), path)


def _required(value: Any, path: Path) -> Any:
    if value is _ABSENT:
        raise _Rejected(f"missing field {_name(path)}")
    if value is None:
        raise _Rejected(f"field {_name(path)} is null")
    return value


def _value(record: Mapping[str, Any], steps: tuple[str, ...]) -> object:
    found: Any = record
    for name in steps:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _number(value: Any, path: Path) -> float | Decimal:
    if number_of(value) is None:
        raise _Rejected(f"field {_name(path)} is not a number")
    found: float | Decimal = value
    return found


def _amount(value: object, path: Path) -> int:
    if type(value) is not int or value < 0:
        raise _Rejected(f"field {_name(path)} is not a non-negative integer")
    return min(value, AMOUNT_MAX)


def _text(value: str | int) -> str:
    return _digits(value) if type(value) is int else as_label(value)


def _digits(value: int) -> str:
    # Python refuses to print huge integers; this text is longer than any label.
    return str(value) if value.bit_length() <= _LABEL_BITS_MAX else "9" * (LABEL_BYTES_MAX + 1)


def _name(path: Path) -> str:
    return repr(str(path))


def _longest(event: Event) -> int:
    texts = [event.user]
    for seen in event.views:
        if seen is not None:
            texts.append(seen.key)
            texts += [label for label in seen.labels if isinstance(label, str)]
    return max(len(text.encode()) for text in texts)
