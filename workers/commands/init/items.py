"""Which field may hold the items: what could be counted, the likeliest first.

Objects of counts and lists of objects are made for counting. A list of values is, too. A single
value is where it repeats: of middling cardinality. Numbers are put into buckets.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from workers.commands.init import names
from workers.commands.init.fields import Field, Form, many, percent
from workers.commands.init.people import is_personal
from workers.commands.init.ranges import Range, range_of

# A label occurs about twice in a sample, or the field is more like the name of one event.
_REPEATED = 0.5
_FEW = 20
# Longer texts on average are prose.
_PROSE = 80
_UNIQUE = 0.9
_HEX_OR_UUID = 16


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Items:
    """A field that may hold the items.

    Attributes:
        field: the field.
        count: the field beside it that says how many; None: none does.
        range: of the buckets that its numbers are put into; None: its values are labels.
        reason: what was found.
        score: how likely it is that somebody wants to count this.
    """

    field: Field
    count: Field | None = None
    range: Range | None = None
    reason: str
    score: float

    @property
    def name(self) -> str:
        """Return its name as a comment has it."""
        return f"{self.field.path} (a number, in buckets)" if self.range is not None else str(self.field.path)


def items_of(fields: Sequence[Field]) -> list[Items]:
    """Return what could be counted, the likeliest first."""
    found = [items for field in fields for items in _items(field, fields)]
    # What most records lack is less likely to be what they are about.
    weighted = {id(items): items.score * (0.5 + 0.5 * items.field.share) for items in found}
    return sorted(found, key=lambda items: (-weighted[id(items)], str(items.field.path)))


def _items(field: Field, fields: Sequence[Field]) -> Iterator[Items]:
    if not field.number_of_values or is_personal(field):
        return  # published, its values would be people, or single events
    where = f"in {percent(field.share)} of the events"
    if field.form is Form.MAP:
        yield Items(
            field=field, score=100.0, reason=f"an object of counts, {where}, with {many(field.distinct, 'different name')}"
        )
    elif field.form is Form.LIST:
        if field.labels and field.distinct > 1 and not _unique(field):
            reason = f"a list, {where}, of {many(field.distinct, 'different value')}"
            yield Items(field=field, score=80.0 + _named(field) / 2, reason=reason)
    elif field.form is Form.ELEMENT:
        yield from _of_element(field, fields, where)
    else:
        yield from _of_value(field, where)


def _of_element(field: Field, fields: Sequence[Field], where: str) -> Iterator[Items]:
    """Yield what one field of the objects in a list may be."""
    is_label = names.says(field.path, names.ITEM, names.ITEM_OF_LIST, names.ID)
    if not field.labels or not (field.text or is_label) or names.says(field.path, names.COUNT) or _unique(field):
        return
    score = 85.0 + 8.0 * names.says(field.path, names.ITEM) + 4.0 * names.says(field.path, names.ITEM_OF_LIST)
    score -= 40.0 * _is_prose(field) + 20.0 * (field.distinct < 2)
    beside = [
        other
        for other in fields
        if other.form is Form.ELEMENT
        and other.path.list_steps == field.path.list_steps
        and other.whole
        and min(other.numbers) >= 0
        and other.number_of_values >= field.number_of_values
        and names.says(other.path, names.COUNT)
    ]
    reason = f"in each element of a list, {where}, with {many(field.distinct, 'different value')}"
    yield Items(field=field, count=beside[0] if beside else None, score=score, reason=reason)


def _of_value(field: Field, where: str) -> Iterator[Items]:
    measure = names.says(field.path, names.MEASURE)
    if field.labels and not (field.whole and measure) and _is_label(field):
        score = 50.0 if field.text else 35.0
        score = 15.0 if not field.text and not field.whole else score
        score += _named(field) + min(3.0 * math.log10(field.distinct), 9.0)
        score -= 40.0 * _is_prose(field)
        reason = f"{_a(field)}, {where}, with {many(field.distinct, 'different value')}"
        yield Items(field=field, score=score, reason=reason)
    if field.numeric and not _counts_up(field) and not names.says(field.path, names.PLACE, names.ID):
        found = range_of(field.numbers)
        whole_name = field.whole and (names.says(field.path, names.ITEM) or not measure)
        if found is not None:
            score = (15.0 if whole_name else 40.0) + 22.0 * measure
            yield Items(field=field, range=found, score=score, reason=f"a number, {where}: in buckets")


def _named(field: Field) -> float:
    """Return what a name adds to a score, or takes away."""
    path = field.path
    if names.says(path, names.SOURCE):
        return -25.0
    if names.says(path, names.ITEM):
        return 20.0
    return -10.0 if names.says(path, names.KEY, names.TYPE) else 0.0


def _is_label(field: Field) -> bool:
    """Return whether a field's values repeat enough to be counted."""
    return 1 < field.distinct <= max(_FEW, _REPEATED * field.number_of_values) and not _unique(field)


def _unique(field: Field) -> bool:
    """Return whether nearly every value is another: the name of one thing."""
    return field.number_of_values >= _FEW and field.distinct > _UNIQUE * field.number_of_values


def _is_prose(field: Field) -> bool:
    return field.text and sum(len(text) * n for text, n in field.values.items()) > _PROSE * field.number_of_values


def _counts_up(field: Field) -> bool:
    """Return whether a number is a serial one, or a time."""
    if not field.whole or len(field.numbers) < 3:
        return False
    up = sum(second > first for first, second in zip(field.numbers, field.numbers[1:], strict=False))
    return _unique(field) and up > _UNIQUE * (len(field.numbers) - 1)


def _a(field: Field) -> str:
    return "a text" if field.text else "a whole number" if field.whole else "a value"
