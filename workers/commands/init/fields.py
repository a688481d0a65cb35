"""Survey the fields of sampled records along all paths, through objects and lists of objects.

    survey(records)   decoded records -> a `Field` for every path
    where_of(...)     the condition, such as a type, that decides which events have the items
    percent, about    figures in comments

An object is one field if its names differ from record to record and its values are whole numbers:
its names are labels and its values counts. Other objects with varying names are not walked: the
names are data. So are names that cannot form a path, or that lie behind a second list.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from workers.commands.init import names
from workers.mechanisms.config.histogram import LABEL_BYTES_MAX
from workers.mechanisms.config.views import STEPS_MAX, Path, as_label, parse


def percent(share: float) -> str:
    """Return a percentage; only exact shares become 0 % or 100 %."""
    if share >= 1:
        return "100 %"
    if share <= 0:
        return "0 %"
    return f"{min(max(100 * share, 0.1), 99.9):.3g} %"


def about(number: float) -> str:
    if number <= 0 or not math.isfinite(number):
        return "0"
    digits = 1 - math.floor(math.log10(number))
    rounded = round(number, digits)
    return f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:g}"


# For all records together; later fields are ignored.
FIELDS_MAX = 2_000
NAMES_MAX = 5_000
# Per list, from its beginning: more elements add no information.
ELEMENTS_MAX = 1_000
# Names vary if an object has on average less than this share of all names at its path: for objects
# of whole numbers, which more often hold counts than optional fields; for any object.
_VARYING_COUNTS, _VARYING = 0.8, 0.5
# At least this many varying names are data, whatever the values are.
_MANY_NAMES = 50

Steps = tuple[tuple[str, ...], int | None]


class Kind(StrEnum):
    TEXT = "text"
    WHOLE = "whole number"
    NUMBER = "number"
    BOOLEAN = "boolean"
    OBJECT = "object"
    LIST = "list"
    OTHER = "other"


class Form(StrEnum):
    ONE = "one value"
    LIST = "list of values"
    MAP = "object of counts"
    ELEMENT = "value in each element of a list"


@dataclass(slots=True, kw_only=True, repr=False)
class Field:
    """Contents of the records at one path. Sensitive: the repr shows no content.

    Attributes:
        records: those with a value other than null.
        values: occurrences by label, for texts, whole numbers, booleans and an object's names.
        column: value by the record's place; for ONE only.
    """

    path: Path
    form: Form
    total: int
    records: int = 0
    kinds: Counter[Kind] = dataclasses.field(default_factory=Counter)
    values: Counter[str] = dataclasses.field(default_factory=Counter)
    numbers: list[float] = dataclasses.field(default_factory=list)
    column: dict[int, object] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Field({self.path}, {self.form})"

    @property
    def share(self) -> float:
        return self.records / self.total

    @property
    def number_of_values(self) -> int:
        return self.kinds.total()

    @property
    def distinct(self) -> int:
        return len(self.values)

    @property
    def labels(self) -> bool:
        return (
            0
            < self.number_of_values
            == sum(self.kinds[kind] for kind in (Kind.TEXT, Kind.WHOLE, Kind.BOOLEAN))
        )

    @property
    def numeric(self) -> bool:
        return 0 < self.number_of_values == self.kinds[Kind.WHOLE] + self.kinds[Kind.NUMBER]

    @property
    def whole(self) -> bool:
        return 0 < self.number_of_values == self.kinds[Kind.WHOLE]

    @property
    def text(self) -> bool:
        return 0 < self.number_of_values == self.kinds[Kind.TEXT]


def survey(records: Sequence[object]) -> list[Field]:
    """Return the fields of dictionaries in order of first occurrence; other records have none."""
    return _Survey(records).fields()


@dataclass(slots=True)
class _Object:
    objects: int = 0
    sizes: int = 0
    counts: bool = True
    names: set[str] = dataclasses.field(default_factory=set)

    @property
    def map(self) -> bool:
        return self.counts and self._varies(_VARYING_COUNTS)

    @property
    def data(self) -> bool:
        return self.map or (len(self.names) >= _MANY_NAMES and self._varies(_VARYING))

    def _varies(self, share: float) -> bool:
        return len(self.names) > 1 and self.sizes < share * self.objects * len(self.names)


class _Survey:
    """Two passes over the records: find objects with data as names, then collect the fields."""

    def __init__(self, records: Sequence[object]) -> None:
        self._records = records
        self._objects: dict[Steps, _Object] = {}
        self._fields: dict[tuple[Steps, Form], Field] = {}
        self._paths: dict[Steps, Path | None] = {}

    def fields(self) -> list[Field]:
        for record in self._records:
            for where, found in _objects(record, (), None):
                self._note(where, found)
        for place, record in enumerate(self._records):
            if isinstance(record, Mapping):
                met: set[int] = set()
                self._children(record, ((), None), place, met)
        return list(self._fields.values())

    def _note(self, where: Steps, found: Mapping[str, object]) -> None:
        seen = self._objects.get(where)
        if seen is None:
            if len(self._objects) >= FIELDS_MAX:
                return
            seen = self._objects[where] = _Object()
        seen.objects += 1
        seen.sizes += len(found)
        seen.counts = seen.counts and all(
            type(value) is int and value >= 0 for value in found.values()
        )
        if len(seen.names) < NAMES_MAX:
            seen.names.update(found)

    def _children(
        self, found: Mapping[str, object], where: Steps, place: int, met: set[int]
    ) -> None:
        seen = self._objects.get(where)
        if seen is None or (seen.data and where[0]):
            return  # the record itself is always walked: there is nothing else
        for name, value in found.items():
            if isinstance(name, str):
                self._value(value, ((*where[0], name), where[1]), place, met)

    def _value(self, value: object, where: Steps, place: int, met: set[int]) -> None:
        if value is None:
            return
        inside = where[1] is not None
        if isinstance(value, Mapping):
            seen = self._objects.get(where)
            if seen is not None and seen.map and not inside:
                self._add(where, Form.MAP, [(Kind.TEXT, name) for name in value], place, met)
                return
            # Only its share matters, unless it cannot be walked further.
            self._children(value, where, place, met)
            self._add(
                where, Form.ELEMENT if inside else Form.ONE, [(Kind.OBJECT, None)], place, met
            )
        elif isinstance(value, list):
            if inside:
                self._add(where, Form.ELEMENT, [(Kind.LIST, None)], place, met)
                return
            elements = value[:ELEMENTS_MAX]
            for element in elements:
                if isinstance(element, Mapping):
                    self._children(element, (where[0], len(where[0])), place, met)
            kinds = [(kind_of(element), element) for element in elements if element is not None]
            self._add(where, Form.LIST, kinds, place, met)
        else:
            self._add(
                where, Form.ELEMENT if inside else Form.ONE, [(kind_of(value), value)], place, met
            )

    def _add(
        self,
        where: Steps,
        form: Form,
        values: Sequence[tuple[Kind, object]],
        place: int,
        met: set[int],
    ) -> None:
        path = self._path(where)
        found = self._fields.get((where, form))
        if found is None:
            if path is None or len(self._fields) >= FIELDS_MAX:
                return
            found = self._fields[where, form] = Field(
                path=path, form=form, total=len(self._records)
            )
        if id(found) not in met:
            met.add(id(found))
            found.records += 1
        for kind, value in values:
            found.kinds[kind] += 1
            if kind in (Kind.TEXT, Kind.WHOLE, Kind.BOOLEAN) and isinstance(value, str | int):
                text = label(value)
                if text is None:
                    found.kinds[kind] -= 1
                    found.kinds[Kind.OTHER] += 1
                    continue
                found.values[text] += 1
            if kind in (Kind.WHOLE, Kind.NUMBER) and isinstance(value, int | float | Decimal):
                found.numbers.append(_float(value))
            if form is Form.ONE:
                found.column[place] = value

    def _path(self, where: Steps) -> Path | None:
        """Return the path; None if a settings file cannot name it."""
        if where not in self._paths:
            path: Path | None = Path(*where)
            try:
                if parse(str(path)) != path:
                    path = None
                str(path).encode()
            except ValueError:
                path = None
            self._paths[where] = path
        return self._paths[where]


def _objects(
    value: object, steps: tuple[str, ...], list_at: int | None
) -> Iterator[tuple[Steps, Mapping[str, object]]]:
    if len(steps) >= STEPS_MAX:
        return
    if isinstance(value, Mapping):
        yield (steps, list_at), value
        for name, inner in value.items():
            if isinstance(inner, Mapping | list) and isinstance(name, str):
                yield from _objects(inner, (*steps, name), list_at)
    elif isinstance(value, list) and list_at is None and steps:
        for element in value[:ELEMENTS_MAX]:
            if isinstance(element, Mapping):
                yield from _objects(element, steps, len(steps))


def kind_of(value: object) -> Kind:
    if isinstance(value, bool):
        return Kind.BOOLEAN
    if isinstance(value, str):
        return Kind.TEXT
    if isinstance(value, int):
        return Kind.WHOLE
    if isinstance(value, float | Decimal):
        return Kind.NUMBER if math.isfinite(value) else Kind.OTHER
    if isinstance(value, Mapping):
        return Kind.OBJECT
    return Kind.LIST if isinstance(value, list) else Kind.OTHER


def label(value: str | bool | int) -> str | None:
    """Return a value as a label; None if it is too long."""
    if isinstance(value, int) and value.bit_length() > 3 * LABEL_BYTES_MAX:
        return None
    text = as_label(value)
    return text if len(text.encode(errors="replace")) <= LABEL_BYTES_MAX else None


def _float(value: float | Decimal) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


_NEARLY_ALL = 0.99
_TYPES_MAX = 20
# Minimum share of a type's records that have the items; otherwise at most the remainder may.
_DECIDED = 0.95


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ConditionGuess:
    """Condition: the field, and its values in events with items. The values are data."""

    field: Field
    values: tuple[str, ...]
    others: int


def where_of(fields: Sequence[Field], having: Collection[int]) -> ConditionGuess | None:
    """Return the condition that separates records with items (`having`) from the others, if any."""
    having, found = set(having), []
    for field in fields:
        if field.form is not Form.ONE or not field.labels or field.share < _NEARLY_ALL:
            continue
        if not 2 <= field.distinct <= _TYPES_MAX or names.who(field.path) is not None:
            continue
        all_of: Counter[str] = Counter()
        with_items: Counter[str] = Counter()
        for place, value in field.column.items():
            if isinstance(value, str | int):
                all_of[as_label(value)] += 1
                with_items[as_label(value)] += place in having
        shares = {value: with_items[value] / n for value, n in all_of.items()}
        wanted = tuple(sorted(value for value, share in shares.items() if share >= _DECIDED))
        decided = all(share >= _DECIDED or share <= 1 - _DECIDED for share in shares.values())
        if decided and wanted and len(wanted) < len(shares):
            found.append(
                ConditionGuess(field=field, values=wanted, others=len(shares) - len(wanted))
            )
    found.sort(
        key=lambda where: (
            not names.says(where.field.path, names.TYPE),
            len(where.field.path.steps),
            str(where.field.path),
        )
    )
    return found[0] if found else None
