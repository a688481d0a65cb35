"""Project decoded records, plain Python objects, to events: the reference rule of all readers.

The compiled readers handle plain records only and leave all others to this module; tests compare
the two. Reject reasons name configuration fields only. A view (`mechanisms.config.views`) is what a
histogram reads of an event: its stream key, items with their amounts, and conditions.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from workers.events.log_values import AMOUNT_MAX
from workers.events.numbers import number_in
from workers.events.times import ISO, time_ms, why_no_time
from workers.mechanisms.config.histogram import LABEL_BYTES_MAX
from workers.mechanisms.config.sums import Rounding
from workers.mechanisms.config.views import (
    Condition,
    Path,
    Shape,
    View,
    as_label,
    parse,
)
from workers.runtime.frozen import Frozen

NO_NUMBER = "a text that holds no number"
NOT_UNICODE = "not Unicode text: it has an unpaired surrogate escape"
# A larger integer has more digits than a label may have bytes.
_LABEL_BITS_MAX = 3_410
# The field is absent; None means null.
_ABSENT: Any = object()


class ViewValues(NamedTuple):
    """What one view reads of an event: its key ("" if not a field), labels, and their amounts.

    With buckets, the labels are the buckets' numbers.
    """

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
    """What an event is: the one rule that every compiled reader must agree with."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._views = tuple(
            _ViewProjection(view, shape.empty) for view in shape.views.values()
        )

    def event(self, record: object) -> Event | str:
        """Return the event of a decoded record, or the reason why it is a reject."""
        if not isinstance(record, Mapping):
            return "not a JSON object"
        try:
            cache: Cache = {}
            views = tuple(view.values(record, cache) for view in self._views)
            wanted = any(view is not None for view in views)
            time = self._time(record, wanted)
            # Without views, only users are read.
            user = self._user(record) if wanted or not views else ""
            event = Event(time, user, views)
        except _Rejected as why:
            return str(why)
        return "label too long" if _longest(event) > LABEL_BYTES_MAX else event

    def numbers(self, record: object) -> dict[str, list[float | Decimal]]:
        """Return, by view of sums, the numbers in a record that it adds up, one for each item.

        They are as written, while an `Event` has them as clamped steps. There are none for a
        reject, or for a view that does not include the event.
        """
        event = self.event(record)
        if isinstance(event, str) or not isinstance(record, Mapping):
            return {}
        cache: Cache = {}
        views = zip(self._shape.views.items(), self._views, event.views, strict=True)
        return {
            name: projection.numbers(record, cache)
            for (name, view), projection, values in views
            if view.sum is not None and values is not None
        }

    def _time(self, record: Mapping[str, Any], required: bool) -> int:
        """Return ms since 1970; 0: the record's time is used; -1: unreadable, not `required`."""
        path = self._shape.time
        unit = self._shape.unit
        if path is None:
            return 0
        try:
            value = _field(record, path)
            time = time_ms(value, unit)
            if time is None:
                kind = "an ISO time" if unit == ISO else f"a time in {unit}"
                raise _Rejected(
                    f"field {_name(path)} is not {kind}" + why_no_time(value, unit)
                )
        except _Rejected:
            if required:
                raise
            return -1
        return time

    def _user(self, record: Mapping[str, Any]) -> str:
        """Return the user as text, "" if the user is not a field."""
        path = self._shape.user
        if not isinstance(path, Path):
            return ""
        user = _field(record, path)
        if isinstance(user, bool) or not isinstance(user, str | int):
            raise _Rejected(f"field {_name(path)} is not a string or a whole number")
        if not _is_unicode(user):
            raise _Rejected(f"field {_name(path)} is {NOT_UNICODE}")
        return _text(user)


# Items and numbers of one record, by the paths they are read from: without it, a long record would
# be read again for every histogram.
Cache = dict[object, Any]


class _ViewProjection(Frozen):
    """The rule of one view. What it returns per item is a label, or a bucket number with edges."""

    def __init__(self, view: View, may_lack_items: bool) -> None:
        """`may_lack_items`: absent or null items mean none, not a reject (`events.missing`)."""
        self._view = view
        self._may_lack_items = may_lack_items
        self._number_path = view.number
        # A key of a record's `Cache`: views with the same key read the same items.
        self._items_key = view.items, view.count, view.edges
        self._rounding = None if view.sum is None else Rounding(view.sum)
        self._where = tuple(
            (condition, parse(condition.field).steps) for condition in view.where
        )

    def values(self, record: Mapping[str, Any], cache: Cache) -> ViewValues | None:
        """Return the view's key, labels and amounts; None if a condition does not hold."""
        for condition, steps in self._where:
            value = _condition_value(record, steps)
            if not _is_unicode(value):
                raise _Rejected(f"field {_name(Path(steps))} is {NOT_UNICODE}")
            if not holds(condition, value):
                return None
        key = self._view.key
        name = ""
        if isinstance(key, Path):
            given = _field(record, key)
            if not isinstance(given, str | int):
                raise _Rejected(
                    f"field {_name(key)} is not a string, whole number or boolean"
                )
            if not _is_unicode(given):
                raise _Rejected(f"field {_name(key)} is {NOT_UNICODE}")
            name = _text(given)
        items, amounts = self._items_once(record, cache)
        if self._rounding is not None:
            # Sums instead of counts: each number as whole steps of the sum.
            numbers = self.numbers(record, cache)
            amounts = list(map(self._rounding.steps_of, numbers))
        return ViewValues(name, items, amounts)

    def _items_once(
        self, record: Mapping[str, Any], cache: Cache
    ) -> tuple[list[Any], list[int]]:
        """Return `_items`, read once for all views with the same items."""
        if self._items_key not in cache:
            cache[self._items_key] = self._items(record)
        items: tuple[list[Any], list[int]] = cache[self._items_key]
        return items

    def numbers(self, record: Mapping[str, Any], cache: Cache) -> list[float | Decimal]:
        """Return `_numbers`, read once for all views with the same items and number."""
        key = self._items_key, self._number_path
        if key not in cache:
            items, _ = self._items_once(record, cache)
            cache[key] = self._numbers(record, len(items))
        numbers: list[float | Decimal] = cache[key]
        return numbers

    def _numbers(self, record: Mapping[str, Any], n: int) -> list[float | Decimal]:
        """Return the numbers that a view of sums adds up, one for each of its `n` items."""
        path = self._number_path
        assert path is not None  # nobody asks other views
        if not n:
            return []
        if path.list_at is None:
            # One number for the event: every item has it.
            return [_checked_number(_field(record, path), path)] * n
        # A number beside each item, in the same list of objects.
        list_steps = path.steps[: path.list_at]
        label_steps = self._view.items.steps[path.list_at :]
        number_steps = path.steps[path.list_at :]
        of_list = Path(list_steps)
        numbers: list[float | Decimal] = []
        for element in _value_at(record, list_steps):
            label = _value_at(element, label_steps, of_list)
            if not self._is_missing(label):
                number = _required(_value_at(element, number_steps, of_list), path)
                numbers.append(_checked_number(number, path))
        return numbers

    def _items(self, record: Mapping[str, Any]) -> tuple[list[Any], list[int]]:
        """Return labels and amounts.

        Items are one value, a list, an object of counts, or a label in each object of a list.
        """
        items = self._view.items
        count = self._view.count
        depth = items.list_at
        if depth is not None and depth < len(items.steps):
            return self._of_objects(record, items.steps[:depth], items.steps[depth:])
        # From here on, a `[]` in the path can only be its end: a list of labels is required.
        value = _value_at(record, items.steps)
        if self._is_missing(value):
            return [], []
        value = _required(value, items)
        if isinstance(value, list):
            if count is not None:
                raise _Rejected(
                    f"field {_name(items)} is not one item, as {_name(count)} is"
                )
            return self._of_list(value)
        if depth is not None:
            raise _Rejected(f"field {_name(Path(items.steps))} is not a list")
        if isinstance(value, Mapping) and self._view.edges is None and count is None:
            return self._of_map(value)
        if count is None and not isinstance(value, str) and not self._fits(value):
            if self._view.edges is None:
                raise _Rejected(f"field {_name(items)} is not a string, list or object")
            raise _Rejected(f"field {_name(items)} is not a number or a list of them")
        if self._fault(value):
            raise _Rejected(f"field {_name(items)} is {self._fault(value)}")
        amount = 1 if count is None else _checked_count(_field(record, count), count)
        return [self._label(value)], [amount]

    def _of_list(self, elements: list[Any]) -> tuple[list[Any], list[int]]:
        """Return the items of a list of labels, each counted once.

        Nulls are left out where items may be missing; else they are a reject.
        """
        name = _name(Path(self._view.items.steps))
        if self._may_lack_items:
            elements = [element for element in elements if element is not None]
        if None in elements:
            raise _Rejected(f"field {name} has an item that is null")
        for element in elements:
            if self._fault(element):
                raise _Rejected(
                    f"field {name} has an item that is {self._fault(element)}"
                )
        return [self._label(element) for element in elements], [1] * len(elements)

    def _of_map(self, counts: Mapping[str, Any]) -> tuple[list[Any], list[int]]:
        """Return the items of an object label -> count."""
        items = _name(self._view.items)
        for label, count in counts.items():
            if _count_fault(count):
                raise _Rejected(f"a count in {items} is {_count_fault(count)}")
            if not _is_unicode(label):
                raise _Rejected(f"a label in {items} is {NOT_UNICODE}")
        return list(counts), [_clamped(count) for count in counts.values()]

    def _of_objects(
        self,
        record: Mapping[str, Any],
        list_steps: tuple[str, ...],
        label_steps: tuple[str, ...],
    ) -> tuple[list[Any], list[int]]:
        """Return the items of a list of objects, each with a label, and maybe a count, in it."""
        items = self._view.items
        count = self._view.count
        of_list = Path(list_steps)
        elements = _value_at(record, list_steps)
        if self._is_missing(elements):
            return [], []
        if not isinstance(_required(elements, of_list), list):
            raise _Rejected(f"field {_name(of_list)} is not a list")
        labels: list[Any] = []
        amounts: list[int] = []
        for element in elements:
            if not isinstance(element, Mapping):
                raise _Rejected(
                    f"field {_name(of_list)} has an item that is not an object"
                )
            value = _value_at(element, label_steps, of_list)
            if self._is_missing(value):
                continue
            value = _required(value, items)
            if self._fault(value):
                raise _Rejected(f"field {_name(items)} is {self._fault(value)}")
            labels.append(self._label(value))
            amount = 1
            if count is not None:
                given = _value_at(element, count.steps[len(list_steps) :], of_list)
                amount = _checked_count(_required(given, count), count)
            amounts.append(amount)
        return labels, amounts

    def _is_missing(self, value: object) -> bool:
        """Return whether a value is absent or null where that means no items."""
        return self._may_lack_items and (value is None or value is _ABSENT)

    def _fits(self, value: object) -> bool:
        """Return whether a value is of a type that has a label, or with edges a bucket."""
        if self._view.edges is None:
            return isinstance(value, str | int)
        return number_of(value) is not None

    def _fault(self, value: object) -> str | None:
        """Return what is wrong with an item, as the end of a reason; None if nothing is."""
        if self._fits(value):
            return None if _is_unicode(value) else NOT_UNICODE
        if self._view.edges is None:
            return "not a string, whole number or boolean"
        return _number_fault(value)

    def _label(self, value: Any) -> Any:
        """Return a value's label, or with edges the number of its bucket."""
        edges = self._view.edges
        return _text(value) if edges is None else bucket(edges, value)


def holds(condition: Condition, value: object) -> bool:
    """Return whether a value, None if absent, meets all that a condition asks.

    A value without a label is in no list of values, and one that is no number within no bounds.
    """
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


def as_number(value: object) -> int | float | Decimal | None:
    """Return a number, or the one that a text holds; None if there is none, or NaN."""
    if isinstance(value, str):
        return number_in(value)
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    return None if isinstance(value, float) and math.isnan(value) else value


def number_of(value: object) -> float | None:
    """Return a number as the nearest float64, possibly infinite; None if not a number."""
    number = as_number(value)
    if number is None:
        return None
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def bucket(edges: Sequence[float], value: object) -> int:
    """Return the bucket of a number: how many of the ascending edges are at most that number."""
    number = number_of(value)
    assert number is not None  # else the event is a reject (`_fault`)
    return bisect_right(edges, number)


def _value_at(
    record: Mapping[str, Any], steps: tuple[str, ...], within: Path | None = None
) -> Any:
    """Return the value at a path through objects, `_ABSENT` if there is none.

    Rejects an event that has something other than an object or null on the way there. `within`,
    only for messages: the path of the list of which `record` is an element.
    """
    value: Any = record
    for depth, name in enumerate(steps):
        if value is None:
            return _ABSENT
        if not isinstance(value, Mapping):
            passed = steps[:depth]
            path = Path(passed)
            if within is not None:
                path = Path(within.steps + passed, len(within.steps))
            raise _Rejected(f"field {_name(path)} is not an object")
        value = value.get(name, _ABSENT)
        if value is _ABSENT:
            return _ABSENT
    return value


def _field(record: Mapping[str, Any], path: Path) -> Any:
    """Return the value at a path; reject the event if it is absent or null."""
    return _required(_value_at(record, path.steps), path)


def _required(value: Any, path: Path) -> Any:
    """Return a value that must be there; reject the event if it is absent or null."""
    if value is _ABSENT:
        raise _Rejected(f"missing field {_name(path)}")
    if value is None:
        raise _Rejected(f"field {_name(path)} is null")
    return value


def _condition_value(record: Mapping[str, Any], steps: tuple[str, ...]) -> object:
    """Return the value that a condition tests; None if there is none, which is no reject."""
    found: Any = record
    for name in steps:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _checked_number(value: object, path: Path) -> float | Decimal:
    """Return the number, perhaps in a text, at `path`; reject the event if there is none."""
    number = as_number(value)
    if number is None:
        raise _Rejected(f"field {_name(path)} is {_number_fault(value)}")
    return number


def _number_fault(value: object) -> str:
    return NO_NUMBER if isinstance(value, str) else "not a number"


def _checked_count(value: object, path: Path) -> int:
    """Return the count at `path`, at most AMOUNT_MAX; reject the event if it is no count."""
    if _count_fault(value):
        raise _Rejected(f"field {_name(path)} is {_count_fault(value)}")
    return _clamped(value)


def _count_fault(value: object) -> str:
    """Return why a value is no count; "" if it is one."""
    number = as_number(value)
    if number is None and isinstance(value, str):
        return NO_NUMBER
    # JavaScript and Kafka Connect write whole numbers as 2.0, too.
    counts = number is not None and number >= 0 and _is_whole(number)
    return "" if counts else "not a non-negative integer"


def _clamped(count: object) -> int:
    """Return a valid count, at most AMOUNT_MAX."""
    return min(int(as_number(count) or 0), AMOUNT_MAX)


def _is_whole(number: float | Decimal) -> bool:
    if isinstance(number, Decimal):
        return number == number.to_integral_value()
    return isinstance(number, int) or number.is_integer()


def _is_unicode(value: object) -> bool:
    """Return False for a text with half a surrogate pair."""
    try:
        return not isinstance(value, str) or value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False


def _text(value: str | int) -> str:
    """Return a value in label form, as its vocabulary knows it."""
    if type(value) is int and value.bit_length() > _LABEL_BITS_MAX:
        # Longer than any label, as its digits would be, which Python refuses to print.
        return "9" * (LABEL_BYTES_MAX + 1)
    return as_label(value)


def _name(path: Path) -> str:
    return repr(str(path))


def _longest(event: Event) -> int:
    """Return the length in bytes of the longest user, key or label."""
    texts = [event.user]
    for values in event.views:
        if values is not None:
            texts.append(values.key)
            texts += [label for label in values.labels if isinstance(label, str)]
    return max(len(text.encode()) for text in texts)
