"""Paths round-trip through their text, and errors name the character."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.events.reference import steps_of
from workers.mechanisms.config.views import (
    CHARACTERS_MAX,
    STEPS_MAX,
    Path,
    parse,
    path_complaints,
)

PATHS = {
    "type": Path(("type",)),
    "order.lines[].sku": Path(("order", "lines", "sku"), 2),
    "tags[]": Path(("tags",), 1),
    'order."shop.name"': Path(("order", "shop.name")),
    '"$key"': Path(("$key",)),
    "a$.@b/c-d": Path(("a$", "@b/c-d")),
    '"a[]"[]."b\\"\\u00e9\\n"': Path(("a[]", 'b"é\n'), 1),
    '"type"': Path(("type",)),
    'a."*"."/b".c*': Path(("a", "*", "/b", "c*")),
    "žluť.商品": Path(("žluť", "商品")),
}


@pytest.mark.parametrize("text", PATHS)
def test_a_path_is_what_it_writes(text: str) -> None:
    """Also for other spellings: mechanism ids contain such texts."""
    found = parse(text)
    assert found == PATHS[text] == parse(str(found))
    assert [name for name, _ in steps_of(text)] == list(found.steps)


def test_a_list_has_a_path_of_its_own() -> None:
    assert parse("order.lines[].sku").list_steps == ("order", "lines")
    assert parse("order.lines").list_steps is None
    assert str(parse('order."lines"[].sku')) == "order.lines[].sku"


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(st.lists(NAMES, min_size=1, max_size=STEPS_MAX), st.integers(0, STEPS_MAX))
def test_every_name_can_be_written(names: list[str], at: int) -> None:
    path = Path(tuple(names), at if 0 < at <= len(names) else None)
    if len(str(path)) <= CHARACTERS_MAX:
        assert parse(str(path)) == path


WRONG = {
    "": "at its end: a name is missing",
    "a.": "at its end: a name is missing",
    ".a": "at character 1, '.': a name is missing",
    "a..b": "at character 3, '.': a name is missing",
    "[]": "at character 1, '[': a name is missing",
    "a.[]": "at character 3, '[': a name is missing",
    "$key": "at character 1, '$': no name begins so",
    " a": "at character 1, ' ': no name begins so",
    "'a'": 'at character 1, "\'": no name begins so',
    "a b": "at character 2, ' ': a name with such a character must be in quotes",
    "a[0]": "at character 2, '[': a name with such a character must be in quotes",
    "a]": "at character 2, ']': a name with such a character must be in quotes",
    'a"b"': "at character 2, '\"': a name with such a character must be in quotes",
    '"a"b': "at character 4, 'b': a name with such a character must be in quotes",
    "a[]b": "at character 4, 'b': a name with such a character must be in quotes",
    "a[].b[]": "at character 6, '[': a second []; a path has one at most",
    "a[][]": "at character 4, '[': a second []; a path has one at most",
    '"a': "at character 1, '\"': a name in quotes that does not end, or is not as JSON writes it",
    '"\\x"': "at character 1, '\"': a name in quotes that does not end, or is not as JSON writes it",
    '"\\ud800"': "at character 1, '\"': a name in quotes that does not end, or is not as JSON writes it",
    'a."\n"': "at character 3, '\"': a name in quotes that does not end, or is not as JSON writes it",
    'a.""': "at character 3, '\"': an empty name",
    ".".join("a" * 17): "17 names; at most 16",
    "a" * 1_001: "at most 1,000 characters",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_path_is_refused_at_its_place(text: str) -> None:
    with pytest.raises(ValueError, match=rf"^{re.escape(WRONG[text])}\Z"):
        parse(text)


MEANT = {
    "lines[*].sku": "lines[].sku",
    "lines[0].sku": "lines[].sku",
    "lines[-1].sku": "lines[].sku",
    "lines[0:3].sku": "lines[].sku",
    "lines[?(@.qty>1)].sku": "lines[].sku",
    "$.lines[].sku": "lines[].sku",
    "$.lines[*].sku": "lines[].sku",
    """$['lines'][*]["sku"]""": "lines[].sku",
    "lines.*.sku": "lines[].sku",
    "lines.[].sku": "lines[].sku",
    ".lines[].sku": "lines[].sku",
    "lines[]sku": "lines[].sku",
    "/lines/0/sku": "lines[].sku",
    "/order/shop": "order.shop",
    'order["shop"]': "order.shop",
    "order['shop.name']": 'order."shop.name"',
    "properties.$city": 'properties."$city"',
}


@pytest.mark.parametrize("text", MEANT)
def test_a_path_in_another_notation_is_refused_with_what_it_means(text: str) -> None:
    [complaint] = path_complaints({"items": text})
    every = " (every element of the list)" if "[]" in MEANT[text] else ""
    assert complaint.endswith(f"; did you mean {MEANT[text]}{every}?")


@pytest.mark.parametrize("text", ["$..sku", "a[0][1]", "a..b", "*", "$", "a b"])
def test_nothing_is_suggested_that_is_no_path(text: str) -> None:
    [complaint] = path_complaints({"items": text})
    assert "did you mean" not in complaint


def test_no_list_is_suggested_where_one_value_is_wanted() -> None:
    [complaint] = path_complaints({"key": "lines[0].shop"})
    assert complaint.endswith("; one value is wanted, not one in a list")
    [complaint] = path_complaints({"timestamp": "$.order.ts"})
    assert complaint.endswith("; did you mean order.ts?")
