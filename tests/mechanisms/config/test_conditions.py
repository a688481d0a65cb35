"""Conditions match as documented, or are refused with a reason."""

import math
import re
from decimal import Decimal
from typing import Any

import pytest

from workers.events.project import holds
from workers.mechanisms.config.views import ALLOWED, Condition, as_label, conditions

LABELS = "a list of 1 to 1,000 texts, whole numbers or booleans"
# Without the "where, condition 1: " of those of one condition.
WRONG: list[tuple[Any, str]] = [
    ({"field": "a"}, f'where = {{"field": "a"}}: {ALLOWED}'),
    (["a"], f'where = ["a"]: {ALLOWED}'),
    ([{"field": "a", "exists": True}] * 21, "where: 21 conditions; at most 20"),
    (
        [{"field": "a", "is": 5}],
        "is: unknown name; one of field, in, not_in, min, max, exists",
    ),
    (
        [{"field": "a", "min": 1}, {"min": 1}],
        "where, condition 2: field is missing: the path of one value, such as type",
    ),
    ([{"field": 5, "min": 1}], "field = 5: the path of one value, such as type"),
    (
        [{"field": "a b", "min": 1}],
        "field = \"a b\": at character 2, ' ': a name with such a character must be in quotes",
    ),
    ([{"field": "a[].b", "min": 1}], 'field = "a[].b": one value is wanted, so no []'),
    ([{"field": "a"}], "in, not_in, min, max or exists is missing"),
    ([{"field": "a", "in": "b"}], f'in = "b": {LABELS}'),
    ([{"field": "a", "in": []}], f"in = []: {LABELS}"),
    ([{"field": "a", "not_in": [1.5]}], f"not_in = [1.5]: {LABELS}"),
    ([{"field": "a", "in": [*range(1_001)]}], LABELS),
    ([{"field": "a", "min": "1"}], 'min = "1": a number'),
    ([{"field": "a", "max": True}], "max = true: a number"),
    ([{"field": "a", "max": math.inf}], "max = Infinity: a number"),
    ([{"field": "a", "min": 2, "max": 1}], "min = 2 is above max = 1"),
    ([{"field": "a", "exists": 1}], "exists = 1: true or false"),
    (
        [{"field": "a", "exists": False, "min": 1}],
        "exists = false: with no other condition beside it",
    ),
]


@pytest.mark.parametrize(
    ("value", "message"), WRONG, ids=[message for _, message in WRONG]
)
def test_a_wrong_condition_is_refused(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        conditions(value)
    assert "\n" not in str(refused.value)
    if not message.startswith(("where", LABELS)):
        assert str(refused.value) == f"where, condition 1: {message}"


def test_values_are_compared_as_labels() -> None:
    [condition] = conditions([{"field": "a", "in": [5, "5", True, "é"], "min": 1}])
    assert condition == Condition(field="a", in_=("5", "true", "é"), min=1.0)
    found = [as_label(value) for value in ("é", 5, -1, True, False)]
    assert found == ["é", "5", "-1", "true", "false"]


# A condition and the values that satisfy it; None is absent or null.
HOLDS: list[tuple[dict[str, Any], list[Any], list[Any]]] = [
    (
        {"in": ["a", 5]},
        ["a", "5", 5],
        ["b", 5.0, Decimal(5), None, [], {}, True, ["a"]],
    ),
    ({"in": [True]}, [True, "true"], [1, "True", None]),
    ({"not_in": ["a", 5]}, ["b", 5.0, None, [], {}, True], ["a", "5", 5]),
    (
        {"min": 1.5},
        [1.5, 2, "2", Decimal("1.5"), 10**400, math.inf],
        [1, "1", "2 kg", True, None, [], math.nan, -math.inf],
    ),
    ({"max": 1.5}, [1.5, 1, "1", -(10**400)], [2, "2", "", False, None]),
    ({"min": 1, "max": 2}, [1, 2], [0, 3, None]),
    ({"exists": True}, ["", 0, False, [], {}], [None]),
    ({"exists": False}, [None], ["", 0, False, [], {}]),
    ({"exists": True, "not_in": ["a"]}, ["b"], ["a", None]),
]


@pytest.mark.parametrize(
    ("asked", "those", "others"), HOLDS, ids=[str(one[0]) for one in HOLDS]
)
def test_what_a_condition_holds_for(
    asked: dict[str, Any], those: Any, others: Any
) -> None:
    """Bounds are inclusive; absent values satisfy only conditions that say so."""
    [condition] = conditions([{"field": "a", **asked}])
    assert [holds(condition, value) for value in those] == [True] * len(those)
    assert [holds(condition, value) for value in others] == [False] * len(others)
