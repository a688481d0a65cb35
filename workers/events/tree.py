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
        steps: names on the way to it.
        list_at: number of names before `[]`; None without one.
        slot, list_slot: of its value, and of the list that `[]` goes through.
        many: whether these are items without `[]`: a list of labels or an object of counts there
            is opened, so that each label has a row in the log.
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


def build(wanted: Sequence[Wanted], depth: int = 0, *, of_list: bool = False) -> Node:
    """Build the node at the place that all `wanted` fields share: their first `depth` names.

    With `of_list`, the node of the elements of a list there: the fields' `[]` is behind them.
    Wanted fields at one place share a slot, and `[]` at one place shares a list slot.
    """
    # A field is in the elements of a list here, or it is the value here, or in a child of it.
    listed = [each for each in wanted if each.list_at == depth and not of_list]
    unlisted = [each for each in wanted if each.list_at != depth or of_list]
    values = [each for each in unlisted if len(each.steps) == depth]
    below: dict[str, list[Wanted]] = {}
    for each in unlisted:
        if len(each.steps) > depth:
            below.setdefault(each.steps[depth], []).append(each)
    children = {name: build(fields, depth + 1) for name, fields in below.items()}
    return Node(
        slot=values[0].slot if values else NO_SLOT,
        many=any(value.many for value in values),
        children=MappingProxyType(children),
        elements=build(listed, depth, of_list=True) if listed else None,
        list_slot=listed[0].list_slot if listed else NO_SLOT,
    )
