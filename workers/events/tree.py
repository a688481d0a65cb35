"""The tree of wanted paths along which every scanner and decoder walks a record.

    order.lines[].sku   children: order -> children: lines -> elements -> children: sku, with a slot

A slot is the number of a wanted field; a list that `[]` goes through has one too. A place in a
record has one slot, however many views want it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

NO_SLOT = -1
_NOTHING: Mapping[str, Node] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Wanted:
    """A wanted field.

    Attributes:
        list_at: number of names before `[]`; None without one.
        many: items without `[]`: a list of labels or an object of counts is opened there.
    """

    steps: tuple[str, ...]
    list_at: int | None
    slot: int
    many: bool = False
    list_slot: int = NO_SLOT


@dataclass(frozen=True, slots=True)
class Node:
    """The wanted fields at one place of a record.

    Attributes:
        slot: of the value itself; NO_SLOT if only fields within it are wanted.
        many: whether a list or object here is opened, as items are.
        elements: wanted fields of each list element; None if there are none.
        list_slot: of the list; NO_SLOT if its elements are not wanted.
    """

    slot: int = NO_SLOT
    many: bool = False
    children: Mapping[str, Node] = field(default_factory=lambda: _NOTHING)
    elements: Node | None = None
    list_slot: int = NO_SLOT


@dataclass(slots=True)
class _Open:
    """A node under construction; `path` is for error messages."""

    path: str
    slot: int = NO_SLOT
    many: bool = False
    children: dict[str, _Open] = field(default_factory=dict)
    elements: _Open | None = None
    list_slot: int = NO_SLOT

    def child(self, name: str) -> _Open:
        return self.children.setdefault(name, _Open(f"{self.path}.{name}"))

    def element(self, slot: int) -> _Open:
        self.list_slot = _same(self.list_slot, slot, f"{self.path}[]")
        if self.elements is None:
            self.elements = _Open(f"{self.path}[]")
        return self.elements

    def complete(self) -> Node:
        children = {name: child.complete() for name, child in self.children.items()}
        elements = None if self.elements is None else self.elements.complete()
        return Node(self.slot, self.many, MappingProxyType(children), elements, self.list_slot)


def build(wanted: Sequence[Wanted]) -> Node:
    """Return the tree of wanted fields below the record; raise ValueError if they conflict."""
    root = _Open("")
    for each in wanted:
        if not each.steps:
            raise ValueError(f"{each}: no names")
        if each.list_at is not None and not 1 <= each.list_at <= len(each.steps):
            raise ValueError(f"{each}: [] behind no such name")
        if each.list_at is not None and (each.list_slot == NO_SLOT or each.many):
            raise ValueError(f"{each}: a list needs a slot, and items in it are one label each")
        at = root
        for step, name in enumerate(each.steps, 1):
            at = at.child(name)
            if step == each.list_at:
                at = at.element(each.list_slot)
        at.slot = _same(at.slot, each.slot, at.path)
        at.many |= each.many
    return root.complete()


def _same(slot: int, other: int, path: str) -> int:
    if slot not in (NO_SLOT, other):
        raise ValueError(f"{path}: slots {slot} and {other} for the same place")
    return other
