"""A shape in kernel form: a slot per wanted field, and the views as rows for `view_kernels`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from workers.arrays.types import Longs
from workers.arrays.words import WORD
from workers.events import view_kernels as kernels
from workers.events.log_values import ISO, MS, NS, US, S
from workers.events.tree import NO_SLOT, Node, Wanted, build
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
NOWHERE, RECORD_KEY_SLOT = -1, -2

_UNITS = MappingProxyType({"ms": MS, "s": S, "us": US, "ns": NS, "iso": ISO})


class _Slots:
    def __init__(self) -> None:
        self.wanted: dict[tuple[tuple[str, ...], int | None], Wanted] = {}
        self.lists: dict[tuple[str, ...], int] = {}
        self.number = 0

    def _new(self) -> int:
        self.number += 1
        return self.number - 1

    def of(self, path: Path, *, many: bool = False) -> int:
        """Return the slot of a field; with `many`, a list or object there is opened."""
        list_at = path.list_at
        if list_at == len(path.steps):
            list_at = None
        place = path.steps, list_at
        list_slot = NO_SLOT if list_at is None else self.of_list(path.steps[:list_at])
        known = self.wanted.get(place)
        slot = self._new() if known is None else known.slot
        many |= known is not None and known.many
        self.wanted[place] = Wanted(path.steps, list_at, slot, many, list_slot)
        return slot

    def of_list(self, steps: tuple[str, ...]) -> int:
        if steps not in self.lists:
            self.lists[steps] = self._new()
        return self.lists[steps]


@dataclass(frozen=True, slots=True)
class Items:
    """The source of labels, independent of the views that count them; see `View`."""

    path: Path
    count: Path | None
    edges: tuple[float, ...] | None


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
        slots = _Slots()
        self.names = tuple(shape.views)
        self.keys = tuple(dict.fromkeys(view.key for view in shape.views.values()))
        self.key_of = tuple(self.keys.index(view.key) for view in shape.views.values())
        key_slots = np.array([_slot_of(slots, key) for key in self.keys], dtype=np.int64)
        self.time_slot = NO_SLOT if shape.time is None else slots.of(shape.time)
        self.unit = _UNITS[shape.unit]
        self.user_slot = NO_SLOT if shape.user is None else _slot_of(slots, shape.user)
        asked = _Conditions(slots)
        edges: list[float] = []
        columns: dict[Items, list[int]] = {}
        rows = [
            _row(view, key, slots, columns, asked, edges)
            for view, key in zip(shape.views.values(), self.key_of, strict=True)
        ]
        self.items_of = tuple(columns)
        self.column_of = tuple(row[kernels.COLUMN] for row in rows)
        lengths = np.array([len(word) for word in asked.words], dtype=np.int64)
        ends = np.cumsum(lengths)
        # Padding lets the last word be compared a machine word at a time as well.
        text = np.frombuffer(b"".join(asked.words) + bytes(WORD), dtype=np.uint8)
        self.program = kernels.Program(
            self.time_slot,
            self.unit,
            self.user_slot,
            read_only(key_slots),
            _rows(rows, kernels.VIEW_COLUMNS),
            _rows(list(columns.values()), kernels.COLUMN_COLUMNS),
            _rows(asked.rows, 4),
            text,
            read_only(np.stack((ends - lengths, ends), axis=1)),
            read_only(np.array(asked.reals, dtype=np.float64)),
            read_only(np.array(edges, dtype=np.float64)),
            shape.empty,
        )
        self.tree = build(list(slots.wanted.values()))
        self.slots = slots.number


def _rows(rows: Sequence[Sequence[int]], width: int) -> Longs:
    return read_only(np.array(rows or np.empty((0, width)), dtype=np.int64))


class _Conditions:
    def __init__(self, slots: _Slots) -> None:
        self._slots = slots
        self.rows: list[tuple[int, int, int, int]] = []
        self.words: list[bytes] = []
        self.reals: list[float] = []

    def add(self, condition: Condition) -> None:
        field = self._slots.of(parse(condition.field))
        for asks, given in ((kernels.IN, condition.in_), (kernels.NOT_IN, condition.not_in)):
            if given is not None:
                first = len(self.words)
                self.words += [word.encode() for word in given]
                self.rows.append((field, asks, first, len(self.words)))
        for asks, bound in ((kernels.AT_LEAST, condition.min), (kernels.AT_MOST, condition.max)):
            if bound is not None:
                self.rows.append((field, asks, len(self.reals), 0))
                self.reals.append(bound)
        if condition.exists is not None:
            self.rows.append((field, kernels.EXISTS, int(condition.exists), 0))


def _slot_of(slots: _Slots, field: Path | str) -> int:
    if isinstance(field, Path):
        return slots.of(field)
    return {ALL_KEYS: NOWHERE, RECORD_KEY: RECORD_KEY_SLOT}[field]


def _row(
    view: View,
    key: int,
    slots: _Slots,
    columns: dict[Items, list[int]],
    asked: _Conditions,
    edges: list[float],
) -> list[int]:
    items = Items(view.items, view.count, view.edges)
    if items not in columns:
        columns[items] = _column(items, slots, edges)
    row = [NOWHERE] * kernels.VIEW_COLUMNS
    row[kernels.VIEW_KEY], row[kernels.COLUMN] = key, list(columns).index(items)
    row[kernels.CONDITION] = len(asked.rows)
    for condition in view.where:
        asked.add(condition)
    row[kernels.CONDITIONS_STOP] = len(asked.rows)
    return row


def _column(items: Items, slots: _Slots, edges: list[float]) -> list[int]:
    path = items.path
    within = path.list_at is not None and path.list_at < len(path.steps)
    row = [NOWHERE] * kernels.COLUMN_COLUMNS
    row[kernels.ITEMS] = slots.of(path, many=not within)
    if within:
        row[kernels.ELEMENTS] = slots.of_list(path.steps[: path.list_at])
    if items.count is not None:
        row[kernels.COUNT] = slots.of(items.count)
    row[kernels.ONLY_LIST] = int(path.list_at == len(path.steps))
    row[kernels.BUCKETS] = int(items.edges is not None)
    row[kernels.EDGE] = len(edges)
    edges += items.edges or ()
    row[kernels.EDGES_STOP] = len(edges)
    return row
