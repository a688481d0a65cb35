"""A shape in kernel form: a slot per wanted field, and the views as rows for `view_kernels`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from workers.arrays.words import WORD
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

# Event status.
READ, SKIPPED = 0, 1
# The label count of an event that the view excludes.
UNSEEN = -1

# Columns of `views`; COLUMN is the view's row in `columns`.
VIEW_KEY, COLUMN, CONDITION, CONDITIONS_STOP = range(4)
VIEW_COLUMNS = 4
# Columns of `columns`.
ITEMS, ELEMENTS, COUNT, ONLY_LIST, BUCKETS, EDGE, EDGES_STOP = range(7)
COLUMN_COLUMNS = 7
# Columns of `conditions`, and their operators.
FIELD, ASKS, FIRST, LAST = 0, 1, 2, 3
IN, NOT_IN, AT_LEAST, AT_MOST, EXISTS = 0, 1, 2, 3, 4
# Slots of a stream key or user that is not a field.
NOWHERE, RECORD_KEY_SLOT = -1, -2


Longs = NDArray[np.int64]

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
    """Wanted fields: a tree for the scanners, kernel arguments for `view_kernels.see`.

    Attributes:
        slots: number of slots.
        keys: the distinct stream keys, a path or "$key" or "$all", in the order of `key_slots`.
        key_of, column_of: index in `keys` and row in `columns`, per view.
        items_of: the source of each of `columns`.
    """

    tree: Node
    key_slots: Longs
    views: Longs
    columns: Longs
    conditions: Longs
    words: Longs

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        slots = _Slots()
        self.names = tuple(shape.views)
        self.keys = tuple(dict.fromkeys(view.key for view in shape.views.values()))
        self.key_of = tuple(self.keys.index(view.key) for view in shape.views.values())
        self.key_slots = read_only(
            np.array([_slot_of(slots, key) for key in self.keys], dtype=np.int64)
        )
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
        self.views, self.columns = (
            _rows(rows, VIEW_COLUMNS),
            _rows(list(columns.values()), COLUMN_COLUMNS),
        )
        self.items_of = tuple(columns)
        self.column_of = tuple(row[COLUMN] for row in rows)
        self.conditions = _rows(asked.rows, 4)
        ends = np.cumsum([len(word) for word in asked.words], dtype=np.int64)
        starts = ends - np.array([len(word) for word in asked.words], dtype=np.int64)
        self.words = read_only(np.stack((starts, ends), axis=1))
        # Padding lets the last word be compared a machine word at a time as well.
        self.text = read_only(
            np.frombuffer(b"".join(asked.words) + bytes(WORD), dtype=np.uint8).copy()
        )
        self.reals = read_only(np.array(asked.reals, dtype=np.float64))
        self.edges = read_only(np.array(edges, dtype=np.float64))
        self.tree = build(list(slots.wanted.values()))
        self.slots = slots.number


def _rows(rows: Sequence[Sequence[int]], width: int) -> Longs:
    return read_only(
        np.array(rows, dtype=np.int64) if rows else np.empty((0, width), dtype=np.int64)
    )


class _Conditions:
    def __init__(self, slots: _Slots) -> None:
        self._slots = slots
        self.rows: list[tuple[int, int, int, int]] = []
        self.words: list[bytes] = []
        self.reals: list[float] = []

    def add(self, condition: Condition) -> None:
        field = self._slots.of(parse(condition.field))
        for asks, given in ((IN, condition.in_), (NOT_IN, condition.not_in)):
            if given is not None:
                first = len(self.words)
                self.words += [word.encode() for word in given]
                self.rows.append((field, asks, first, len(self.words)))
        for asks, bound in ((AT_LEAST, condition.min), (AT_MOST, condition.max)):
            if bound is not None:
                self.rows.append((field, asks, len(self.reals), 0))
                self.reals.append(bound)
        if condition.exists is not None:
            self.rows.append((field, EXISTS, int(condition.exists), 0))


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
    row = [NOWHERE] * VIEW_COLUMNS
    row[VIEW_KEY], row[COLUMN] = key, list(columns).index(items)
    row[CONDITION] = len(asked.rows)
    for condition in view.where:
        asked.add(condition)
    row[CONDITIONS_STOP] = len(asked.rows)
    return row


def _column(items: Items, slots: _Slots, edges: list[float]) -> list[int]:
    path = items.path
    within = path.list_at is not None and path.list_at < len(path.steps)
    row = [NOWHERE] * COLUMN_COLUMNS
    row[ITEMS] = slots.of(path, many=not within)
    if within:
        row[ELEMENTS] = slots.of_list(path.steps[: path.list_at])
    if items.count is not None:
        row[COUNT] = slots.of(items.count)
    row[ONLY_LIST] = int(path.list_at == len(path.steps))
    row[BUCKETS] = int(items.edges is not None)
    row[EDGE] = len(edges)
    edges += items.edges or ()
    row[EDGES_STOP] = len(edges)
    return row
