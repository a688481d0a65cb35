"""The tree of wanted paths, and its form for the JSON scanner."""

import numpy as np
import pytest

from tests.events.json_corpus import tree
from tests.events.json_log_corpus import Scanner
from workers.events.json import JsonTree
from workers.events.log import WHOLE
from workers.events.tree import NO_SLOT, Node, Wanted, build
from workers.kafka.records import Records
from workers.runtime.frozen import check_frozen


def test_paths_that_begin_alike_share_what_they_begin_with() -> None:
    """One walk of a record finds all of them."""
    root = build(
        [
            Wanted(("order", "lines", "sku"), 2, 0, list_slot=9),
            Wanted(("order", "lines", "qty"), 2, 1, list_slot=9),
            Wanted(("order",), None, 2),
            Wanted(("tags",), 1, 3, list_slot=8),
            Wanted(("order.lines",), None, 4, many=True),
        ]
    )
    lines = Node(elements=Node(children={"sku": Node(0), "qty": Node(1)}), list_slot=9)
    order = Node(2, children={"lines": lines})
    assert root == Node(
        children={
            "order": order,
            "tags": Node(elements=Node(3), list_slot=8),
            "order.lines": Node(4, many=True),
        }
    )
    check_frozen(root, "root")
    assert build([]) == Node() and Node().slot == NO_SLOT


def test_items_stay_items_whoever_else_wants_them() -> None:
    """The order of the wanted fields has no effect."""
    both = [Wanted(("a",), None, 0, many=True), Wanted(("a",), None, 0)]
    assert build(both) == build(both[::-1]) == Node(children={"a": Node(0, many=True)})


def test_the_tree_of_the_scanner_is_shared_and_its_scratch_is_not() -> None:
    """Levels count nested objects and lists: the state held while they are walked."""
    made = JsonTree(tree("a.b[].c.d", "e"))
    # the record, a, b, its element, c; and what is at d is not walked
    assert made.levels == 5
    with pytest.raises(ValueError, match="read-only"):
        made.nodes[0, 0] = 1
    first = made.walk()[2:]
    second = made.walk()[2:]
    assert not any(
        np.shares_memory(mine, other) for mine, other in zip(first, second, strict=True)
    )
    assert JsonTree(Node()).levels == 1


@pytest.mark.parametrize("n", [1, 63, 64, 65, 300])
def test_any_number_of_names_can_be_wanted(n: int) -> None:
    """All are found in any order; similar unwanted names are not."""
    names = [f"field-{i % 7}-{i}" for i in range(n)]
    scanner = Scanner(tree(*names))
    parts = [
        b'"%b":%d,"%b":0' % (name.encode(), i, name.replace("-", "_").encode())
        for i, name in enumerate(names)
    ]
    for order in (parts, parts[::-1]):
        (found,) = scanner.read(Records.of([b"{" + b",".join(order) + b"}"]))
        assert sorted(found or []) == [(i, WHOLE, str(i)) for i in range(n)]
