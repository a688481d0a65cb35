"""The tree of wanted paths along which every scanner and decoder walks a record.

    order.lines[].sku   children: order -> children: lines -> elements -> children: sku, with a slot

A slot is the number of a wanted field; a list that `[]` goes through has one too. A place in a
record has one slot, however many views want it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
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


def build(wanted: Sequence[Wanted]) -> Node:
    """Return the tree of wanted fields below the record; raise ValueError if they conflict."""
    for each in wanted:
        if not each.steps:
            raise ValueError(f"{each}: no names")
        if each.list_at is not None and not 1 <= each.list_at <= len(each.steps):
            raise ValueError(f"{each}: [] behind no such name")
        if each.list_at is not None and (each.list_slot == NO_SLOT or each.many):
            raise ValueError(f"{each}: a list needs a slot, and items in it are one label each")
    return _node("", wanted, 0)


def _node(path: str, wanted: Sequence[Wanted], depth: int, *, of_list: bool = False) -> Node:
    """Return the node that `depth` names lead to; with `of_list`, the elements of its list."""
    listed = [each for each in wanted if each.list_at == depth and not of_list]
    here = [each for each in wanted if each.list_at != depth or of_list]
    ends = [each for each in here if len(each.steps) == depth]
    below: dict[str, list[Wanted]] = {}
    for each in here:
        if len(each.steps) > depth:
            below.setdefault(each.steps[depth], []).append(each)
    children = {name: _node(f"{path}.{name}", of, depth + 1) for name, of in below.items()}
    return Node(
        _same([each.slot for each in ends], path),
        any(each.many for each in ends),
        MappingProxyType(children),
        _node(f"{path}[]", listed, depth, of_list=True) if listed else None,
        _same([each.list_slot for each in listed], f"{path}[]"),
    )


def _same(slots: Sequence[int], path: str) -> int:
    for slot, other in pairwise(slots):
        if slot != other:
            raise ValueError(f"{path}: slots {slot} and {other} for the same place")
    return slots[0] if slots else NO_SLOT
