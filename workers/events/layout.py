"""A shape in kernel form: a slot per wanted field, and the views as rows for `view_kernels`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from workers.arrays.types import Longs
from workers.arrays.words import WORD
from workers.events import view_kernels as kernels
from workers.events.log_values import (
    EXACT_DIGITS,
    ISO,
    MS,
    NS,
    PART,
    PART_DIGITS,
    US,
    S,
)
from workers.events.tree import NO_SLOT, Node, Wanted, build
from workers.mechanisms.config.sums import Sum
from workers.mechanisms.config.views import (
    ALL_KEYS,
    RECORD_KEY,
    Condition,
    Path,
    Shape,
    View,
    parse,
)
from workers.runtime.frozen import Frozen, read_only

# Slots of a stream key or user that is not a field.
NOWHERE = -1
RECORD_KEY_SLOT = -2

_UNITS = MappingProxyType({"ms": MS, "s": S, "us": US, "ns": NS, "iso": ISO})


@dataclass(frozen=True, slots=True)
class Items:
    """The source of labels and amounts, independent of the views that count them; see `View`."""

    path: Path
    count: Path | None
    edges: tuple[float, ...] | None
    sum: Sum | None


class Layout(Frozen):
    """Wanted fields: a tree for the scanners, and the `program` of `view_kernels`.

    Attributes:
        keys: the distinct stream keys, a path or "$key" or "$all", in the order of `key_slots`.
        key_of, column_of: index in `keys` and row in `columns`, per view.
        items_of: the source of each of `columns`.
    """

    tree: Node

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        rows = _Rows()
        views = shape.views.values()
        self.names = tuple(shape.views)
        self.keys = tuple(dict.fromkeys(view.key for view in views))
        self.key_of = tuple(self.keys.index(view.key) for view in views)
        key_slots = np.array([rows.slot_of(key) for key in self.keys], dtype=np.int64)
        self.time_slot = NO_SLOT if shape.time is None else rows.slot_of(shape.time)
        self.unit = _UNITS[shape.unit]
        self.user_slot = NO_SLOT if shape.user is None else rows.slot_of(shape.user)
        of_views = [
            rows.of_view(*each) for each in zip(views, self.key_of, strict=True)
        ]
        self.items_of = tuple(rows.columns)
        self.column_of = tuple(row[kernels.COLUMN] for row in of_views)
        lengths = np.array([len(word) for word in rows.words], dtype=np.int64)
        ends = np.cumsum(lengths)
        # Padding lets the last word be compared a machine word at a time as well.
        text = np.frombuffer(b"".join(rows.words) + bytes(WORD), dtype=np.uint8)
        self.program = kernels.Program(
            self.time_slot,
            self.unit,
            self.user_slot,
            read_only(key_slots),
            _table(of_views, kernels.VIEW_COLUMNS),
            _table(list(rows.columns.values()), kernels.COLUMN_COLUMNS),
            _table(rows.conditions, 4),
            text,
            read_only(np.stack((ends - lengths, ends), axis=1)),
            read_only(np.array(rows.reals, dtype=np.float64)),
            read_only(np.array(rows.edges, dtype=np.float64)),
            read_only(np.array(rows.sums, dtype=np.float64)),
            _table(rows.exact_sums, kernels.EXACT_COLUMNS),
            shape.empty,
        )
        self.tree = build(list(rows.wanted.values()))
        self.slots = rows.slots


def _steps(of: Sum) -> tuple[float, float, float, float]:
    """Return a sum's numbers for `view_kernels.amount_of`.

    With M the larger of |from| and |to|: a number v of at most 2 M is off by 2^-53 |v| as a float,
    so are `from` and `step`, and each operation rounds once. In steps that is at most
    (16 M / step + 4) 2^-53; numbers further out are clamped whatever their error. Where the bound
    is not small, the general reader decides about every number.
    """
    least = float(of.from_)
    step = float(of.step)
    error = (float(max(abs(of.from_), abs(of.to)) / of.step) + 1) * 2.0**-48
    return least, step, float(of.steps), error if error < 0.25 else math.inf


def _exact_steps(of: Sum) -> list[int]:
    """Return a sum's whole numbers for `view_kernels.exact_steps`: all of them are that."""
    half = of.step / 2
    row = [
        *divmod(int(of.from_.scaleb(PART_DIGITS)), PART),
        *divmod(int(half.scaleb(PART_DIGITS)), PART),
    ]
    digits = max(-int(number.as_tuple().exponent) for number in (of.from_, of.to, half))
    digits = max(digits, 0)
    largest = max(abs(of.from_), abs(of.to)).scaleb(digits)
    if largest >= 10**EXACT_DIGITS:
        return [*row, 0, 0, -1]
    return [*row, int(of.from_.scaleb(digits)), int(half.scaleb(digits)), digits]


def _table(rows: Sequence[Sequence[int]], width: int) -> Longs:
    return read_only(np.array(rows or np.empty((0, width)), dtype=np.int64))


class _Rows:
    """The rows of a program, view by view."""

    def __init__(self) -> None:
        self.wanted: dict[tuple[tuple[str, ...], int | None], Wanted] = {}
        self._lists: dict[tuple[str, ...], int] = {}
        self.columns: dict[Items, list[int]] = {}
        self.conditions: list[tuple[int, int, int, int]] = []
        self.words: list[bytes] = []
        self.reals: list[float] = []
        self.edges: list[float] = []
        self.sums: list[tuple[float, float, float, float]] = []
        self.exact_sums: list[list[int]] = []

    @property
    def slots(self) -> int:
        return len(self.wanted) + len(self._lists)

    def slot_of(self, field: Path | str, *, many: bool = False) -> int:
        """Return the slot of a field; with `many`, a list or object there is opened."""
        if not isinstance(field, Path):
            return {ALL_KEYS: NOWHERE, RECORD_KEY: RECORD_KEY_SLOT}[field]
        list_at = None if field.list_at == len(field.steps) else field.list_at
        list_slot = (
            NO_SLOT if list_at is None else self._list_slot(field.steps[:list_at])
        )
        place = field.steps, list_at
        known = self.wanted.get(place)
        slot = self.slots if known is None else known.slot
        many |= known is not None and known.many
        self.wanted[place] = Wanted(field.steps, list_at, slot, many, list_slot)
        return slot

    def _list_slot(self, steps: tuple[str, ...]) -> int:
        return self._lists.setdefault(steps, self.slots)

    def of_view(self, view: View, key: int) -> list[int]:
        items = Items(view.items, view.number or view.count, view.edges, view.sum)
        if items not in self.columns:
            self.columns[items] = self._of_column(items)
        row = [NOWHERE] * kernels.VIEW_COLUMNS
        row[kernels.VIEW_KEY] = key
        row[kernels.COLUMN] = list(self.columns).index(items)
        row[kernels.CONDITION] = len(self.conditions)
        for condition in view.where:
            self._add(condition)
        row[kernels.CONDITIONS_STOP] = len(self.conditions)
        return row

    def _of_column(self, items: Items) -> list[int]:
        path = items.path
        within = path.list_at is not None and path.list_at < len(path.steps)
        row = [NOWHERE] * kernels.COLUMN_COLUMNS
        row[kernels.ITEMS] = self.slot_of(path, many=not within)
        if within:
            row[kernels.ELEMENTS] = self._list_slot(path.steps[: path.list_at])
        if items.count is not None:
            row[kernels.COUNT] = self.slot_of(items.count)
        row[kernels.ONLY_LIST] = int(path.list_at == len(path.steps))
        row[kernels.BUCKETS] = int(items.edges is not None)
        row[kernels.EDGE] = len(self.edges)
        self.edges += items.edges or ()
        row[kernels.EDGES_STOP] = len(self.edges)
        row[kernels.SUMS] = int(items.sum is not None)
        row[kernels.OF_EVENT] = int(
            items.count is not None and items.count.list_at is None
        )
        if items.sum is None:
            self.sums.append((0.0, 0.0, 0.0, 0.0))
            self.exact_sums.append([0] * kernels.EXACT_COLUMNS)
        else:
            self.sums.append(_steps(items.sum))
            self.exact_sums.append(_exact_steps(items.sum))
        return row

    def _add(self, condition: Condition) -> None:
        field = self.slot_of(parse(condition.field))
        for asks, given in (
            (kernels.IN, condition.in_),
            (kernels.NOT_IN, condition.not_in),
        ):
            if given is not None:
                first = len(self.words)
                self.words += [word.encode() for word in given]
                self.conditions.append((field, asks, first, len(self.words)))
        for asks, bound in (
            (kernels.AT_LEAST, condition.min),
            (kernels.AT_MOST, condition.max),
        ):
            if bound is not None:
                self.conditions.append((field, asks, len(self.reals), 0))
                self.reals.append(bound)
        if condition.exists is not None:
            self.conditions.append((field, kernels.EXISTS, int(condition.exists), 0))
