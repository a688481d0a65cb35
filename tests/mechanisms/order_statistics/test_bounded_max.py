"""bounded_max and its shared parts: queries, state, and noise of the sums."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.mechanisms.order_statistics.unknown_max import Run, make
from workers.mechanisms.counters.laplace_tree import LaplaceTree
from workers.mechanisms.mechanism import State
from workers.mechanisms.order_statistics.config import Queries
from workers.mechanisms.order_statistics.engine import OrderStatisticState
from workers.runtime.errors import HorizonExceeded, StateRefused

pytestmark = pytest.mark.slow


class ForeignNoise:
    def at(self, t: int, tags: NDArray[np.uint64]) -> NDArray[np.int64]:
        return np.zeros(len(tags), dtype=np.int64)


LABELS = ["a", "b", "c", "d", "e"]
ALL = ("max", "argmax", "min", "quantile:0.5", "top_k:2", "top_k_select:2", "histogram")
BY_HAND: dict[str, Callable[[list[int]], object]] = {
    "max": max,
    "argmax": lambda sums: LABELS[sums.index(max(sums))],
    "min": min,
    "quantile:0.5": lambda sums: min(
        c for c in sums if sum(v <= c for v in sums) >= len(sums) / 2
    ),
    "top_k:2": lambda sums: sorted(sums, reverse=True)[:2],
    "top_k_select:2": lambda sums: [
        LABELS[i] for i in sorted(range(5), key=lambda i: -sums[i])[:2]
    ],
    "histogram": lambda sums: [
        [label, count] for label, count in zip(LABELS, sums, strict=True)
    ],
}
SUMS = st.lists(st.integers(-5, 30), min_size=5, max_size=5)


@settings(max_examples=100, deadline=None)
@given(sums=SUMS)
def test_every_query_answers_what_its_definition_says(sums: list[int]) -> None:
    found = Queries(ALL, LABELS).answers(np.array(sums, dtype=np.int64))
    assert found == [
        {"query": query, "value": by_hand(sums)} for query, by_hand in BY_HAND.items()
    ]


def test_before_the_first_update_no_label_is_named() -> None:
    """Naming the first of several zero counts would look like an answer."""
    nothing = {
        "argmax": None,
        "top_k_select:2": [],
        "top_k:2": [0, 0],
        "histogram": [[label, 0] for label in "pq"],
    }
    mechanism = make(
        "two_level_k",
        2,
        queries=tuple(nothing),
        domain=("p", "q"),
        rho=5.0,
        horizon=4_000,
    )
    run = Run(mechanism)
    for t in range(1, 4_001):
        answer = run.step(t, [np.array([t > 5, 0])])[0]
        found: Any = answer["answers"]
        if answer["since"]:
            break
        assert {one["query"]: one["value"] for one in found} == nothing
    named = {one["query"]: one["value"] for one in found}
    assert t > 5 and named["argmax"] == "p" and named["top_k_select:2"] == ["p", "q"]


@settings(max_examples=200, deadline=None)
@given(
    sums=SUMS,
    event=st.lists(st.integers(0, 3), min_size=5, max_size=5),
    query=st.sampled_from(ALL),
)
def test_values_move_by_at_most_dinf(
    sums: list[int], event: list[int], query: str
) -> None:
    """Sensitivity Dinf in one direction: the bounded range needs both (001 Definition 8)."""
    queries = Queries((query,), LABELS)
    before = np.array(sums, dtype=np.int64)
    moved = queries.values(before + np.array(event)) - queries.values(before)
    assert moved.min() >= 0 and moved.max() <= max(event)
    assert len(moved) == queries.k


def test_without_noise_an_interval_closes_when_the_maximum_passes_a_multiple_of_the_step() -> (
    None
):
    mechanism = make("bounded_max", 2, c_max=400, epsilon=8.0)
    step = mechanism.intervals(1).step
    run = Run(mechanism, silent=True)
    shown = [
        run.step(t, [np.array([1, 0])])[0]["value"] for t in range(1, 2 * step + 3)
    ]
    assert shown == [0] * step + [step + 1] * step + [2 * step + 1] * 2


def test_after_the_last_interval_nothing_closes_any_more() -> None:
    """H has noise for that many intervals; noise for another was not paid for."""
    mechanism = make("bounded_max", 2, c_max=10, epsilon=20.0)
    numbers = mechanism.intervals(1)
    run = Run(mechanism, silent=True)
    row = np.array([numbers.step + 1, 0])
    ticks = range(1, numbers.capacity + 20)
    since = [run.step(t, [row])[0]["since"] for t in ticks]
    assert since[-1] == numbers.capacity


@pytest.mark.parametrize("kind", ["bounded_max", "two_level_k"])
def test_a_tick_that_closes_nothing_stores_nothing(kind: str) -> None:
    run = Run(make(kind, 3, horizon=100), keys=2)
    assert [name for name, _ in run.state.changed()] == ["m00000000", "m00000001"]
    for t in range(1, 101):
        before = [int(one.since) for one in run.state.by_key.values()]
        of_key = run.step(t, [np.array([5, 0, 0]), np.array([0, 0, 0])])
        closed = [
            f"m{key:08x}" for key in range(2) if of_key[key]["since"] != before[key]
        ]
        assert [name for name, _ in run.state.changed()] == closed


def test_foreign_state_noise_and_ticks_are_refused() -> None:
    """Exact sums must never be taken for noisy ones."""
    mechanism = make("bounded_max", 2)
    run = Run(mechanism)
    with pytest.raises(TypeError, match="no noise of a row"):
        run.noise.at(1, run.tags(0))
    with pytest.raises(TypeError, match="this mechanism's own"):
        mechanism.step(State(), 1, [], run.noise)
    with pytest.raises(HorizonExceeded):
        mechanism.step(run.state, 513, [], run.noise)
    with pytest.raises(TypeError, match="this mechanism's own"):
        mechanism.step(run.state, 1, [], ForeignNoise())


@pytest.mark.parametrize(
    ("number", "value"), [(0, 0), (0, 65), (1, 0), (2, -1), (3, -1), (4, -1)]
)
def test_a_stored_place_before_the_first_is_refused(number: int, value: int) -> None:
    """Found by fuzzing: noise of interval 0 was asked for at the next tick."""
    [(name, block)] = Run(make("two_level", 2)).state.changed()
    numbers = np.frombuffer(block, dtype="<i8", offset=1).copy()
    numbers[number] = value
    with pytest.raises(StateRefused, match="damaged"):
        OrderStatisticState().restore(name, block[:1] + numbers.tobytes())


def test_pure_epsilon_is_as_printed() -> None:
    """Lap(4/eps), Lap(8/eps), a binary tree at eps/2 whose nodes have D levels 2/eps."""
    mechanism = make(
        "bounded_max", 5, epsilon=0.5, accounting="pure", max_items=2, c_max=100
    )
    assert mechanism.inner is not None
    assert mechanism.inner.test.tau_scale == 8 and mechanism.inner.test.mu_scale == 16
    tree = mechanism.inner.counter(mechanism.intervals(1).capacity)
    assert (
        isinstance(tree, LaplaceTree) and tree.levels == 7 and tree.scale == 7 * 2 * 4
    )
    assert mechanism.guarantee.epsilon == 0.5 and mechanism.guarantee.rho == 0.125


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"horizon": "unbounded"}, "unbounded"),
        ({"accounting": "pure", "rho": 0.1}, "needs epsilon"),
        ({"query": "top_k:2"}, "two_level_k"),
        ({"query": "median"}, "query"),
        ({"query": "quantile:0.0"}, "above 0"),
        ({"c_max": 0}, "c_max"),
        ({"accounting": "pure", "epsilon": 0.001, "max_count": 100}, "scale"),
        ({"domain": ("a", "a")}, "more than once"),
        (
            {"accounting": "pure", "counter": "tree", "radix": 3},
            'accounting = "pure" has a tree of its own',
        ),
    ],
)
def test_what_cannot_be_is_refused_in_words(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make("bounded_max", 3, **changes)
