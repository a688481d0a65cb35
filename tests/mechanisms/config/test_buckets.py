"""Buckets: exact edges, labels that read back as the edges, and one-line messages."""

import itertools
import re
from decimal import localcontext
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from workers.mechanisms.config.buckets import EDGES_MAX, Buckets, parse_buckets

FINITE = st.floats(allow_nan=False, allow_infinity=False)


def test_labels_are_the_half_open_intervals_in_order() -> None:
    """They are the declared domain, and consumers parse the edges from them."""
    found = parse_buckets([-1, 0, 0.5, 10, 1e16])
    assert found.labels == (
        "<-1",
        "[-1,0)",
        "[0,0.5)",
        "[0.5,10)",
        "[10,1e+16)",
        ">=1e+16",
    )


@given(st.lists(FINITE, min_size=2, max_size=20, unique=True))
def test_every_label_says_its_edges_exactly(edges: list[float]) -> None:
    """A rounded label would name a bucket that is not counted."""
    edges = sorted({edge or 0.0 for edge in edges})
    assume(len(edges) > 1)
    labels = Buckets(tuple(edges)).labels
    assert len(set(labels)) == len(labels) == len(edges) + 1
    assert float(labels[0][1:]) == edges[0]
    assert float(labels[-1][2:]) == edges[-1]
    for label, pair in zip(labels[1:-1], itertools.pairwise(edges), strict=True):
        assert tuple(float(text) for text in label[1:-1].split(",")) == pair


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"from": 0, "to": 500, "count": 4}, (0, 125, 250, 375, 500)),
        ({"from": 0.1, "to": 0.4, "count": 3}, (0.1, 0.2, 0.3, 0.4)),
        (
            {"from": -1, "to": 1, "count": 3, "scale": "linear"},
            (-1, -0.333333, 0.333333, 1),
        ),
        ({"from": -5, "to": 5, "count": 2}, (-5, 0, 5)),
        ({"from": 1, "to": 1000, "count": 3, "scale": "log"}, (1, 10, 100, 1000)),
        ({"from": 0.5, "to": 8, "count": 4, "scale": "log"}, (0.5, 1, 2, 4, 8)),
        ({"from": 1, "to": 10, "count": 3, "scale": "log"}, (1, 2.2, 4.6, 10)),
        # Two digits would move 1.2247 by more than a tenth of a bucket.
        (
            {"from": 1, "to": 1.5, "count": 4, "scale": "log"},
            (1, 1.11, 1.22, 1.36, 1.5),
        ),
        ({"from": 1, "to": 2, "count": 2, "scale": "log"}, (1, 1.4, 2)),
        ({"from": 7, "to": 9, "count": 1}, (7, 9)),
    ],
)
def test_edges_between_two_numbers_read_well(
    value: Any, expected: tuple[float, ...]
) -> None:
    """Expected values by hand. 0.1 and 0.4 are tenths, as written."""
    assert parse_buckets(value).edges == expected


def test_edges_do_not_depend_on_the_context_of_the_caller() -> None:
    """They are in the mechanism id, so all machines and threads must agree."""
    for value in (
        {"from": 1, "to": 7e5, "count": 900, "scale": "log"},
        {"from": 0, "to": 1 / 3, "count": 7},
    ):
        expected = parse_buckets(value)
        with localcontext() as context:
            context.prec = 3
            assert parse_buckets(value) == expected


@given(
    FINITE, FINITE, st.integers(1, EDGES_MAX - 1), st.sampled_from(["linear", "log"])
)
def test_whatever_is_asked_gives_good_edges_or_a_message(
    first: float, last: float, count: int, scale: str
) -> None:
    try:
        found = parse_buckets(
            {"from": first, "to": last, "count": count, "scale": scale}
        )
    except ValueError:
        return
    assert (found.edges[0], found.edges[-1], len(found.edges)) == (
        first,
        last,
        count + 1,
    )


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([], "0 given: a list of 2 to 4,095 numbers"),
        (list(range(EDGES_MAX + 1)), "4,096 given"),
        ([0, True], "the edge at place 2 is no number"),
        ([0, 2**53 + 1], "the edge at place 2 has too many digits"),
        ([0, 10**400], "the edge at place 2 is too large"),
        ([0, 1, 1], "1 at place 3 is not above 1 before it"),
        ([0.0, -0.0], "0 at place 2 is not above 0"),
        ([float("nan"), 1], "nan is not an edge"),
        (5, "a list of 2 to 4,095 numbers"),
        ({"to": 1, "count": 2}, "from is missing"),
        (
            {"from": 0, "to": 1, "count": 2, "by": 1},
            "by: unknown name; one of from, to, count, scale",
        ),
        ({"from": 0, "to": "1", "count": 2}, "to is no number"),
        ({"from": 0, "to": 1, "count": 0}, "count: a whole number from 1 to 4,094"),
        ({"from": 0, "to": 1, "count": 4095}, "count: a whole number from 1 to 4,094"),
        ({"from": 0, "to": 1, "count": 2.0}, "count: a whole number from 1 to 4,094"),
        ({"from": 0, "to": 1, "count": 2, "scale": "sqrt"}, 'scale: "linear" or "log"'),
        (
            {"from": 1, "to": 1, "count": 2},
            "from = 1 and to = 1: finite numbers, from below to",
        ),
        ({"from": 1, "to": 1.0001, "count": 900, "scale": "log"}, "count = 900: fewer"),
    ],
)
def test_what_is_wrong_is_said(value: object, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as error:
        parse_buckets(value)
    assert "\n" not in str(error.value)
