"""Paths in records, and the ones most similar to a missing path."""

import json
from difflib import SequenceMatcher
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.commands.check.examine import NAMES_MAX, PATHS_MAX, PathCounts
from workers.mechanisms.config.views import parse

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=20,
)


def fields(*records: object) -> PathCounts:
    found = PathCounts()
    for record in records:
        found.add(record)
    return found


def test_paths_go_through_objects_and_one_list() -> None:
    found = fields(
        {"order": {"lines": [{"sku": "a", "tags": ["x"]}, {"qty": 2}], "a.b": 1}}
    )
    lines = ["order.lines", "order.lines[]", "order.lines[].sku", "order.lines[].qty"]
    for there in ("order", *lines, 'order."a.b"'):
        assert found.has(parse(there)), there
    for absent in ("lines", "order.lines.sku", "order.lines[].price"):
        assert not found.has(parse(absent)), absent


def test_the_nearest_is_the_same_name_elsewhere_or_a_slip() -> None:
    record = {"order": {"shop": "s1"}, "customerId": 7, "products": ["p"], "zzz": 1}
    found = fields(record, record, {"zzz": 1})
    fields_near = {
        "shop": "order.shop",
        "customer_id": "customerId",
        "product": "products",
    }
    for wanted, nearest in (*fields_near.items(), ("oder.shop", "order.shop")):
        assert next(iter(found.nearest(parse(wanted)).nearest)) == nearest, wanted
    assert found.nearest(parse("timestamp")).nearest == {}
    assert found.nearest(parse("product")).nearest["products"] == 2 / 3


@pytest.mark.slow
@given(st.lists(JSON, max_size=5), st.sampled_from(["a", "a.b[].c", '"x y"']))
def test_any_record_has_paths_that_can_be_parsed(
    records: list[Any], wanted: str
) -> None:
    found = fields(*records)
    for near, share in found.nearest(parse(wanted)).nearest.items():
        assert str(parse(near)) == near
        assert 0 < share <= 1


def test_objects_with_a_name_for_each_item_do_not_fill_the_memory() -> None:
    found = fields(
        *({f"{row}-{i}": i for i in range(2 * NAMES_MAX)} for row in range(60))
    )
    assert len(found._with_path) == PATHS_MAX
    assert json.dumps(repr(found)) == f'"PathCounts({PATHS_MAX})"'


def test_a_name_longer_than_a_path_is_skipped() -> None:
    found = fields({"n" * 1_001: 1, "price": 2, "m" * 500_000: {"price": 3}})
    assert found.has(parse("price"))
    assert list(found.nearest(parse("prices")).nearest) == ["price"]


def test_long_names_are_compared_only_if_maybe_near(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    right = SequenceMatcher.ratio

    def counted(self: SequenceMatcher[str]) -> float:
        asked.append(1)
        return right(self)

    monkeypatch.setattr(SequenceMatcher, "ratio", counted)
    found = fields({"prize": 1} | {f"{'z' * 900}{i}": 1 for i in range(150)})
    assert list(found.nearest(parse("price")).nearest) == ["prize"]
    assert len(asked) < 10
