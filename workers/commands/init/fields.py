"""Survey the fields of sampled records along all paths, through objects and lists of objects.

An object is one field if its names differ from record to record and its values are whole numbers:
its names are labels and its values counts. Other objects with varying names are not walked (the
names are data), nor are names that cannot form a path or that lie behind a second list. A record's
place is its number in the survey.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

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
    """Return a number as text, to two significant digits; infinity, NaN and less than 0 as "0"."""
    if number <= 0 or not math.isfinite(number):
        return "0"
    rounded = round(number, 1 - math.floor(math.log10(number)))
    return f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:g}"


# Share of the records that a field for every event must be in, and of its values that must be of
# the kind that is read: the worker rejects the others.
NEARLY_ALL = 0.95
# Share of sampled times or numbers at either end that may be outliers.
OUTLIERS = 0.005
# For all records together; later fields are ignored.
FIELDS_MAX = 2_000
NAMES_MAX = 5_000
# Per list, from its beginning.
ELEMENTS_MAX = 1_000
# Of them, those that are compared with the user of their event.
_COMPARED_MAX = 20
# Names vary if an object has on average less than this share of all names at its path: for objects
# of whole numbers, which more often hold counts than optional fields; for any object.
_VARYING_COUNTS = 0.8
_VARYING = 0.5
# An object with more different names than this is data keyed by name, not a record with fields.
_MANY_NAMES = 50


class Steps(NamedTuple):
    """The names on the way to a value, and after how many of them a list lies; None: none does."""

    names: tuple[str, ...] = ()
    list_at: int | None = None

    def to(self, name: str) -> "Steps":
        """Return the way to what an object has by this name."""
        return Steps((*self.names, name), self.list_at)

    def to_elements(self) -> "Steps":
        """Return the way to the elements of the list that is here."""
        return Steps(self.names, len(self.names))


_ROOT = Steps()


class Kind(StrEnum):
    """The type of a JSON value, in words for the operator."""

    TEXT = "text"
    WHOLE = "whole number"
    NUMBER = "number"
    BOOLEAN = "boolean"
    OBJECT = "object"
    LIST = "list"
    OTHER = "other"


class Form(StrEnum):
    """How often a record has a field: once, or as a list, or in each element of a list."""

    ONE = "one value"
    LIST = "list of values"
    MAP = "object of counts"
    ELEMENT = "value in each element of a list"


@dataclass(slots=True, kw_only=True, repr=False)
class Field:
    """Contents of the records at one path. Sensitive: the repr shows no content.

    `records` have a value other than null, `nulls` have null; `values` counts labels: texts, whole
    numbers, booleans and an object's names; `column` has the value by the record's place, for ONE
    only, and `elements` the first labels by the record's place, for other forms. `who` says whom or
    what the values identify, if anybody (`people` sets it), and `why` what shows that.
    """

    path: Path
    form: Form
    total: int
    records: int = 0
    nulls: int = 0
    kinds: Counter[Kind] = dataclasses.field(default_factory=Counter)
    values: Counter[str] = dataclasses.field(default_factory=Counter)
    numbers: list[float] = dataclasses.field(default_factory=list)
    column: dict[int, object] = dataclasses.field(default_factory=dict)
    elements: dict[int, list[str]] = dataclasses.field(default_factory=dict)
    who: names.UserKind | None = None
    why: str = "by its name"

    def __repr__(self) -> str:
        return f"Field({self.path}, {self.form})"

    @property
    def share(self) -> float:
        return self.records / self.total

    @property
    def everywhere(self) -> bool:
        """Whether nearly every event has just one value of it, as a time, user or key must be."""
        return self.form is Form.ONE and self.share >= NEARLY_ALL

    @property
    def number_of_values(self) -> int:
        return self.kinds.total()

    def name_has(self, *tables: frozenset[str]) -> bool:
        """Return whether the field's own name, not its containers', has a word of these tables."""
        return (
            not frozenset().union(*tables).isdisjoint(names.words(self.path.steps[-1]))
        )

    @property
    def constant(self) -> bool:
        """Return whether every record has the same values, as those of a schema in each message."""
        # Each value occurs equally often, and so often that every record can have it. (In a single
        # record, all values would be constant.)
        occurrences = set(self.values.values())
        return len(occurrences) == 1 and min(occurrences) >= self.records > 1

    @property
    def distinct(self) -> int:
        return len(self.values)

    @property
    def labels(self) -> bool:
        """Whether nearly all values can be labels, the names of items."""
        return self._has_only(Kind.TEXT, Kind.WHOLE, Kind.BOOLEAN)

    @property
    def numeric(self) -> bool:
        return self._has_only(Kind.WHOLE, Kind.NUMBER)

    @property
    def whole(self) -> bool:
        return self._has_only(Kind.WHOLE)

    @property
    def text(self) -> bool:
        return self._has_only(Kind.TEXT)

    @property
    def holds(self) -> str:
        """Return the kinds of the values, with their shares of those if there are several."""
        kinds = [(kind, n) for kind, n in self.kinds.most_common() if n]
        if len(kinds) == 1:
            return kinds[0][0]
        return " or ".join(
            f"{kind} ({percent(n / self.number_of_values)})" for kind, n in kinds
        )

    def _has_only(self, *kinds: Kind) -> bool:
        """Return whether nearly all values, at least one, are of these kinds."""
        number = sum(self.kinds[kind] for kind in kinds)
        return 0 < number >= NEARLY_ALL * self.number_of_values


def survey(records: Sequence[object]) -> list[Field]:
    """Return the fields of dictionaries in order of first occurrence; other records have none."""
    return _Survey(records).fields()


def walk(
    value: object, names_max: int | None, elements_max: int, steps: Steps = _ROOT
) -> Iterator[tuple[Steps, object]]:
    """Yield a record's values with their steps, through objects and one list on the way.

    Of an object at most `names_max` names (None: all), of a list at most `elements_max` elements
    are visited.
    """
    yield steps, value
    if isinstance(value, Mapping) and len(steps.names) < STEPS_MAX:
        for name, inner in islice(value.items(), names_max):
            if isinstance(name, str) and name:
                yield from walk(inner, names_max, elements_max, steps.to(name))
    elif isinstance(value, list) and steps.names and steps.list_at is None:
        for element in value[:elements_max]:
            yield from walk(element, names_max, elements_max, steps.to_elements())


@dataclass(slots=True)
class _ObjectNames:
    """The names in all objects at one path, and whether they vary.

    There are so many `objects`; `sizes` is the sum of their numbers of names, `names` has the
    different ones. `counts`: all values are whole numbers, as counts are.
    """

    objects: int = 0
    sizes: int = 0
    counts: bool = True
    names: set[str] = dataclasses.field(default_factory=set)

    def add(self, found: Mapping[str, object]) -> None:
        """Add one object at the path."""
        self.objects += 1
        self.sizes += len(found)
        # Not bool, which is an int too.
        whole = all(type(value) is int and value >= 0 for value in found.values())
        self.counts = self.counts and whole
        if len(self.names) < NAMES_MAX:
            self.names.update(found)

    @property
    def map(self) -> bool:
        """Whether the objects map labels to counts."""
        return self.counts and self._varies(_VARYING_COUNTS)

    @property
    def data(self) -> bool:
        """Whether the names are data, so that the objects are not walked."""
        return self.map or (len(self.names) >= _MANY_NAMES and self._varies(_VARYING))

    def _varies(self, share: float) -> bool:
        """Return whether an object has on average less than this share of all the names."""
        # With the same names in all objects `sizes` would be this.
        sizes_max = self.objects * len(self.names)
        return len(self.names) > 1 and self.sizes < share * sizes_max


class _Survey:
    """Two passes over the records: find objects with data as names, then collect the fields."""

    def __init__(self, records: Sequence[object]) -> None:
        """Prepare for both passes over decoded records."""
        self._records = records
        # What the first pass finds, and the second.
        self._objects: dict[Steps, _ObjectNames] = {}
        self._fields: dict[tuple[Steps, Form], Field] = {}
        # As `_path` returns them.
        self._paths: dict[Steps, Path | None] = {}
        self._nulls = Counter[Steps]()
        # The record at hand, and the ids of the fields found in it.
        self._place = 0
        self._found_in_record = set[int]()

    def fields(self) -> list[Field]:
        """Do both passes; return the fields in order of first occurrence."""
        # First the names in all objects, up to FIELDS_MAX paths.
        for record in self._records:
            for steps, value in walk(record, None, ELEMENTS_MAX):
                if not isinstance(value, Mapping) or len(steps.names) >= STEPS_MAX:
                    continue
                if steps in self._objects or len(self._objects) < FIELDS_MAX:
                    self._objects.setdefault(steps, _ObjectNames()).add(value)
        for place, record in enumerate(self._records):
            if isinstance(record, Mapping):
                self._place = place
                self._found_in_record = set()
                self._children(record, _ROOT)
        for (steps, _), field in self._fields.items():
            field.nulls = self._nulls[steps]
        return list(self._fields.values())

    def _children(self, parent: Mapping[str, object], steps: Steps) -> None:
        """Add the values in an object, unless its names are data."""
        # What the first pass found at this path; None: beyond FIELDS_MAX paths.
        objects = self._objects.get(steps)
        # The record itself, without steps, is always walked: there is nothing else.
        if objects is None or (objects.data and steps.names):
            return
        for name, value in parent.items():
            if not isinstance(name, str):
                continue
            if value is not None:
                self._value(value, steps.to(name))
            # `Field.nulls` counts records, of which each has one value, unless it is in a list.
            elif steps.list_at is None:
                self._nulls[steps.to(name)] += 1

    def _value(self, value: object, steps: Steps) -> None:
        """Add one value as a field, or walk into it; of lists, each element.

        A list inside a list is a value of its own kind, and not walked.
        """
        # In an object of a list.
        inside = steps.list_at is not None
        form = Form.ELEMENT if inside else Form.ONE
        if isinstance(value, Mapping):
            # What the first pass found at this path.
            objects = self._objects.get(steps)
            if objects is not None and objects.map and not inside:
                # Its names are the labels.
                self._add(steps, Form.MAP, [(Kind.TEXT, name) for name in value])
                return
            self._children(value, steps)
            # That there is an object. What is in it, if it is walked, are other fields.
            self._add(steps, form, [(Kind.OBJECT, None)])
        elif not isinstance(value, list):
            self._add(steps, form, [(kind_of(value), value)])
        elif inside:
            self._add(steps, form, [(Kind.LIST, None)])
        else:
            elements = value[:ELEMENTS_MAX]
            for element in elements:
                if isinstance(element, Mapping):
                    self._children(element, steps.to_elements())
            kinds = [
                (kind_of(element), element)
                for element in elements
                if element is not None
            ]
            self._add(steps, Form.LIST, kinds)

    def _add(
        self, steps: Steps, form: Form, values: Sequence[tuple[Kind, object]]
    ) -> None:
        """Add values of the record at hand to the field at a path, made when first met.

        What a field keeps of them is said in `Field`.
        """
        path = self._path(steps)
        field = self._fields.get((steps, form))
        if field is None:
            # Without a path, settings could not name it.
            if path is None or len(self._fields) >= FIELDS_MAX:
                return
            field = Field(path=path, form=form, total=len(self._records))
            self._fields[steps, form] = field
        if id(field) not in self._found_in_record:
            self._found_in_record.add(id(field))
            field.records += 1
        for kind, value in values:
            # The kinds that can be labels.
            if kind in (Kind.TEXT, Kind.WHOLE, Kind.BOOLEAN):
                text = field_label(value)
                if text is None:
                    field.kinds[Kind.OTHER] += 1
                    continue
                field.values[text] += 1
                if form is not Form.ONE:
                    elements = field.elements.setdefault(self._place, [])
                    if len(elements) < _COMPARED_MAX:
                        elements.append(text)
            field.kinds[kind] += 1
            if kind in (Kind.WHOLE, Kind.NUMBER) and isinstance(
                value, int | float | Decimal
            ):
                field.numbers.append(_float(value))
            if form is Form.ONE:
                field.column[self._place] = value

    def _path(self, steps: Steps) -> Path | None:
        """Return the path of some steps; None if settings cannot name it."""
        if steps not in self._paths:
            path = Path(*steps)
            try:
                # Raises for a lone surrogate, which a settings file cannot have.
                str(path).encode()
                # A name such as "a[]" would be read as another path.
                self._paths[steps] = path if parse(str(path)) == path else None
            except ValueError:
                self._paths[steps] = None
        return self._paths[steps]


def kind_of(value: object) -> Kind:
    """Return what kind of JSON value this is."""
    # An int too, for Python.
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


def field_label(value: object) -> str | None:
    """Return a text, whole number or boolean as a label; None for others, as for the worker."""
    if not isinstance(value, str | int):
        return None
    # A digit takes 3.3 bits: these are about as many digits as a label may have bytes. Python
    # refuses to write much longer numbers.
    if isinstance(value, int) and value.bit_length() > 3 * LABEL_BYTES_MAX:
        return None
    text = as_label(value)
    try:
        return text if len(text.encode()) <= LABEL_BYTES_MAX else None
    except UnicodeEncodeError:  # half a surrogate pair
        return None


def _float(value: float | Decimal) -> float:
    """Return a number as a float, infinite if it is too large for one."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


_TYPES_MAX = 20
# Minimum share of a type's records that have the items; of other types at most the remainder may.
_DECIDED = 0.95


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ConditionGuess:
    """A condition on events: that this field has one of the `values`, as those with items have.

    The values are data. `others` is how many other values the field has, in events without items.
    """

    field: Field
    values: tuple[str, ...]
    others: int


def guess_condition(
    fields: Sequence[Field], places_with_items: set[int]
) -> ConditionGuess | None:
    """Return the condition that separates records with items from the others; None: there is none.

    `places_with_items` has the places of the former.
    """
    guesses = []
    for field in fields:
        if not (field.everywhere and field.labels) or field.who is not None:
            continue
        if not 2 <= field.distinct <= _TYPES_MAX:
            continue
        with_items = Counter[str]()
        for place, value in field.column.items():
            with_items[field_label(value) or ""] += place in places_with_items
        # Of the records with a value, those that have items.
        shares = {value: with_items[value] / n for value, n in field.values.items()}
        values = tuple(
            sorted(value for value, share in shares.items() if share >= _DECIDED)
        )
        decided = all(
            share >= _DECIDED or share <= 1 - _DECIDED for share in shares.values()
        )
        others = len(shares) - len(values)
        if decided and values and others:
            guesses.append(ConditionGuess(field=field, values=values, others=others))

    def order(guess: ConditionGuess) -> tuple[bool, int, str]:
        path = guess.field.path
        return not guess.field.name_has(names.TYPE), len(path.steps), str(path)

    return min(guesses, key=order, default=None)
