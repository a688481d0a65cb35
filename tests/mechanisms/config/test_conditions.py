"""Conditions match as documented, or are refused with a reason."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any

import pytest

from workers.events.project import holds
from workers.mechanisms.config.views import ALLOWED, Condition, as_label, conditions

WRONG: dict[str, tuple[Any, str]] = {
    "no list": ({"field": "a"}, f'where = {{"field": "a"}}: {ALLOWED}'),
    "no tables": (["a"], f'where = ["a"]: {ALLOWED}'),
    "too many": ([{"field": "a", "exists": True}] * 21, "where: 21 conditions; at most 20"),
    "unknown": (
        [{"field": "a", "is": 5}],
        "where, condition 1: is: unknown name; one of field, in, not_in, min, max, exists",
    ),
    "no field": (
        [{"field": "a", "min": 1}, {"min": 1}],
        "where, condition 2: field is missing: the path of one value, such as type",
    ),
    "no text": (
        [{"field": 5, "min": 1}],
        "where, condition 1: field = 5: the path of one value, such as type",
    ),
    "no path": (
        [{"field": "a b", "min": 1}],
        "where, condition 1: field = \"a b\": at character 2, ' ': a name with such a character must be in quotes",
    ),
    "a list": (
        [{"field": "a[].b", "min": 1}],
        'where, condition 1: field = "a[].b": one value is wanted, so no []',
    ),
    "nothing asked": (
        [{"field": "a"}],
        "where, condition 1: in, not_in, min, max or exists is missing",
    ),
    "in one": (
        [{"field": "a", "in": "b"}],
        'where, condition 1: in = "b": a list of 1 to 1,000 texts, whole numbers or booleans',
    ),
    "in none": (
        [{"field": "a", "in": []}],
        "where, condition 1: in = []: a list of 1 to 1,000 texts, whole numbers or booleans",
    ),
    "in floats": (
        [{"field": "a", "not_in": [1.5]}],
        "where, condition 1: not_in = [1.5]: a list of 1 to 1,000 texts, whole numbers or booleans",
    ),
    "in many": (
        [{"field": "a", "in": [*range(1_001)]}],
        "a list of 1 to 1,000 texts, whole numbers or booleans",
    ),
    "min": ([{"field": "a", "min": "1"}], 'where, condition 1: min = "1": a number'),
    "true": ([{"field": "a", "max": True}], "where, condition 1: max = true: a number"),
    "infinite": ([{"field": "a", "max": math.inf}], "where, condition 1: max = Infinity: a number"),
    "crossed": (
        [{"field": "a", "min": 2, "max": 1}],
        "where, condition 1: min = 2 is above max = 1",
    ),
    "exists": ([{"field": "a", "exists": 1}], "where, condition 1: exists = 1: true or false"),
    "absent and more": (
        [{"field": "a", "exists": False, "min": 1}],
        "where, condition 1: exists = false: with no other condition beside it",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_condition_is_refused(name: str) -> None:
    value, message = WRONG[name]
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        conditions(value)
    assert "\n" not in str(refused.value)


def test_values_are_compared_as_labels() -> None:
    [condition] = conditions([{"field": "a", "in": [5, "5", True, "é"], "min": 1}])
    assert condition == Condition(field="a", in_=("5", "true", "é"), min=1.0)
    assert [as_label(value) for value in ("é", 5, -1, True, False)] == [
        "é",
        "5",
        "-1",
        "true",
        "false",
    ]


# A condition and the values that satisfy it; None is absent or null.
HOLDS: list[tuple[dict[str, Any], list[Any], list[Any]]] = [
    ({"in": ["a", 5]}, ["a", "5", 5], ["b", 5.0, Decimal(5), None, [], {}, True, ["a"]]),
    ({"in": [True]}, [True, "true"], [1, "True", None]),
    ({"not_in": ["a", 5]}, ["b", 5.0, None, [], {}, True], ["a", "5", 5]),
    (
        {"min": 1.5},
        [1.5, 2, Decimal("1.5"), 10**400, math.inf],
        [1, "2", True, None, [], math.nan, -math.inf],
    ),
    ({"max": 1.5}, [1.5, 1, -(10**400)], [2, "1", False, None]),
    ({"min": 1, "max": 2}, [1, 2], [0, 3, None]),
    ({"exists": True}, ["", 0, False, [], {}], [None]),
    ({"exists": False}, [None], ["", 0, False, [], {}]),
    ({"exists": True, "not_in": ["a"]}, ["b"], ["a", None]),
]


@pytest.mark.parametrize(
    ("asked", "those", "others"), HOLDS, ids=[str(asked) for asked, *_ in HOLDS]
)
def test_what_a_condition_holds_for(
    asked: dict[str, Any], those: list[Any], others: list[Any]
) -> None:
    """Bounds are inclusive; absent values satisfy only conditions that say so."""
    [condition] = conditions([{"field": "a", **asked}])
    assert [holds(condition, value) for value in those] == [True] * len(those)
    assert [holds(condition, value) for value in others] == [False] * len(others)
