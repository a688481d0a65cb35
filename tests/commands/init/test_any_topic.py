"""For any topic: a file that loads, accepts what it says and holds no value of an event; or a reason."""

import json
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from itertools import product
from random import Random
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.commands.init.topics import (
    NOW_MS,
    Answers,
    Keyed,
    comments,
    events,
    guesses_of,
    iso,
    loaded,
    sample_of,
    text_of,
    written,
)
from workers.commands.init.draft import SampleGuesses
from workers.commands.init.formats import CannotGuess
from workers.commands.init.sample import Sample
from workers.events.project import Projection
from workers.settings.settings import Settings

pytestmark = pytest.mark.slow

Json = dict[str, Any]
# As no name of a field, setting or comment has it.
MARK = "zqv"
CHOICES = product(("none", "public", "declare"), (False, True))
ANSWERS = [{"name_keys": keys, "protect_users": users} for keys, users in CHOICES]

names = st.one_of(
    st.sampled_from(
        ["id", "type", "items", "lines", "qty", "ts", "user", "value", "shop", "sku"]
    ),
    st.sampled_from(["", "\n", "a b", "a.b", "$all", "é", "[]", '"', "\x7f"]),
    st.text(max_size=5),
)
texts = st.integers(0, 9).map(lambda n: f"{MARK}{n}")
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(0, 9),
    st.floats(allow_nan=False, allow_infinity=False),
    texts,
    st.integers(NOW_MS - 10**7, NOW_MS),
    st.integers(NOW_MS - 10**7, NOW_MS).map(iso),
)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(names, inner, max_size=4)
    )


@st.composite
def topics(draw: st.DrawFn) -> list[tuple[str | None, Json]]:
    """Return records of a few random shapes, with varied values."""
    records = st.dictionaries(
        names, st.recursive(scalars, nested, max_leaves=6), max_size=6
    )
    shapes = draw(st.lists(records, min_size=1, max_size=3))
    number = draw(st.sampled_from([1, 3, 60]))
    # a draw of Hypothesis for each value costs more
    rng = Random(draw(st.integers(0, 2**32)))
    keys = draw(
        st.sampled_from([lambda i: None, lambda i: f"k{i % 7}", lambda i: f"k{i}"])
    )
    return [(keys(i), varied(rng.choice(shapes), rng)) for i in range(number)]


def varied(value: Any, rng: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: varied(inner, rng)
            for name, inner in value.items()
            if rng.random() < 0.97
        }
    if isinstance(value, list):
        return [varied(inner, rng) for inner in value for _ in range(rng.randrange(3))]
    if isinstance(value, str) and value.startswith(MARK):
        return f"{MARK}{rng.randrange(12)}"
    if isinstance(value, int) and not isinstance(value, bool) and rng.random() < 0.5:
        return value + rng.randrange(5)
    return value


def accepted(found: Settings, sample: Sample) -> int:
    """Return how many of the records the worker would count."""
    projection = Projection(found.shape)
    n = 0
    for record in sample.records:
        with suppress(ValueError, TypeError):
            event = projection.event(json.loads(record.value or b"null"))
            n += not isinstance(event, str) and event.views[0] is not None
    return n


@settings(max_examples=120)
@given(topics(), st.sampled_from(ANSWERS))
# Of an amount this large no counter would draw the noise.
@example([(None, {"id": [{"A": "zqv0", "id": {"qty": 3_001}}]})], ANSWERS[0])
def test_a_file_loads_and_accepts_what_it_says(
    keyed: list[tuple[str | None, Json]], answers: Answers
) -> None:
    sample = sample_of(keyed)
    try:
        text, draft = written(sample, answers)
    except CannotGuess:
        return
    assert accepted(loaded(text), sample) == draft.accepted > 0
    if draft.where is None and draft.keys != "declare":
        assert MARK not in text


some_bytes = st.one_of(
    st.none(), st.binary(max_size=40), st.text(max_size=20).map(str.encode)
)


@given(st.lists(some_bytes, min_size=1, max_size=20))
def test_arbitrary_bytes_are_refused_with_a_reason(values: list[bytes | None]) -> None:
    assume(
        not any(value is not None and value.lstrip()[:1] == b"{" for value in values)
    )
    with pytest.raises(CannotGuess):
        written(sample_of((None, value) for value in values))


def test_deep_and_large_records_are_skipped() -> None:
    good = list(events("flights", 100))
    deep = b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    large = json.dumps({"a": "x" * 1_000_001}).encode()
    bad = [deep, large, None, b"\x00\x00"]
    text, draft = written(sample_of([*good, *((None, value) for value in bad)]))
    assert draft.decoded == draft.accepted == len(good)
    assert '"dest"' in text


@cache
def sampled(name: str) -> tuple[list[Keyed], SampleGuesses]:
    keyed = list(events(name, 600))
    return keyed, guesses_of(sample_of(keyed))


@pytest.mark.parametrize("answers", ANSWERS, ids=str)
@pytest.mark.parametrize("name", ["flights", "orders", "web-log", "sensors", "users"])
def test_no_value_is_written_unless_the_file_says_so(
    name: str, answers: Answers
) -> None:
    keyed, guesses = sampled(name)
    try:
        draft = guesses.draft(**answers)
    except CannotGuess:
        assert answers["protect_users"] and name not in ("users", "sensors")
        return
    text = text_of(draft)
    said = set(draft.where.values) if draft.where is not None else set()
    said |= (
        set(draft.key.values)
        if draft.keys == "declare" and draft.key is not None
        else set()
    )
    values = {value for _, event in keyed for value in strings(event)}
    assert {value for value in values if f'"{value}"' in text} == said
    no_value = not said and draft.items.range is None
    assert ("It holds no value of any event" in comments(text)) == no_value
    assert ("(keys)" in text) == (draft.keys == "declare")
    assert ("(where)" in text) == (draft.where is not None)


def strings(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = list(value.values()) if isinstance(value, Mapping) else value
    return (
        [text for one in inner for text in strings(one)]
        if isinstance(inner, list)
        else []
    )
