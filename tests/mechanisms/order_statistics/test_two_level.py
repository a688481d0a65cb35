"""Segments and intervals: the printed algorithms, unshared noise, cost and error of every kind."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.mechanisms.order_statistics import unknown_max
from tests.mechanisms.order_statistics.unknown_max import Run, make, rows_of

BOTH = pytest.mark.parametrize("accounting", ["zcdp", "pure"])
ONE = ("max", "argmax", "min", "quantile:0.5")
SEVERAL = [
    ("max", "min"),
    ("quantile:0.5", "top_k:3", "argmax"),
    ("histogram", "top_k_select:2"),
    ("max",),
]
PRINTED: list[tuple[str, float, int, int, Any]] = [
    *(("bounded_max", 20.0, 3, 2, {"query": query, "c_max": 150}) for query in ONE),
    *(("doubling", 30.0, 9, 6, {"query": query}) for query in ("max", "quantile:0.5")),
    *(("two_level", 25.0, 30, 8, {"query": query}) for query in ONE[:3]),
    *(("two_level_k", 25.0, 60, 8, {"queries": queries}) for queries in SEVERAL),
]


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize(("kind", "epsilon", "most", "made", "changes"), PRINTED)
def test_it_is_the_printed_algorithm(
    kind: str,
    epsilon: float,
    most: int,
    made: int,
    changes: dict[str, object],
    accounting: str,
) -> None:
    """001 Algorithms 2, 5 to 7, 11 and 12 line by line on the same noise."""
    columns = 4 if kind == "two_level_k" else 3
    mechanism = make(kind, columns, accounting=accounting, epsilon=epsilon, **changes)
    rows = rows_of(500, columns, seed=1, ones=2, most=most)
    assert unknown_max.assert_as_printed(mechanism, rows) >= made


@BOTH
def test_without_noise_segments_end_at_powers_of_two(accounting: str) -> None:
    """Thresholds first, 2 first, 4 first, ...: at a sum of first + 1, and so on."""
    mechanism = make("doubling", 2, accounting=accounting, epsilon=30.0)
    run = Run(mechanism, silent=True)
    level = mechanism.segments_in_use
    ends = {run.step(t, [np.array([1, 0])])[0]["since"] for t in range(1, 513)}
    powers = {level.threshold(j) + 1 for j in range(1, level.most)}
    assert ends == {0} | {end for end in powers if end <= 512}


def test_pure_epsilon_is_as_printed() -> None:
    """Lap(4/eps), Lap(8/eps), Lap(2 D/eps), thresholds from 1; the last one is >= T."""
    mechanism = make(
        "doubling", 40, accounting="pure", epsilon=0.5, max_items=2, horizon=1000
    )
    found = mechanism.segments_in_use
    assert found.test.tau_scale == 8 and found.test.mu_scale == 16
    assert found.first == 1 and found.most == 11 and found.threshold(11) >= 1000
    assert found.public()["column"] == "8"


def test_more_items_than_columns_cost_no_more_than_all_columns() -> None:
    """D is what an event can change, not what a setting allows."""
    narrow = make("doubling", 3, max_items=100).public()["segments"]
    assert narrow == make("doubling", 3, max_items=3).public()["segments"]


@pytest.mark.parametrize("queries", SEVERAL[:3])
def test_with_narrow_steps_partitions_close_as_printed(
    queries: tuple[str, ...],
) -> None:
    """A large budget: small noise, many closes in a segment, thresholds that rise one by one."""
    mechanism = make(
        "two_level_k", 4, queries=queries, rho=5.0, horizon=600, max_items=4
    )
    rows = rows_of(600, 4, seed=4, ones=3, most=5)
    assert unknown_max.assert_as_printed(mechanism, rows) >= 20


def test_pure_epsilon_is_as_printed_with_half_of_it_for_each_level() -> None:
    """eps = 1 of 2: 4, 8, 2 D outside; inside 4, 8 for one query, or 6, 12, 3 k, with H at eps/2
    or eps/3.
    """
    for kind, tau, mu, share in (("two_level", 4, 8, 2), ("two_level_k", 6, 12, 3)):
        mechanism = make(kind, 5, epsilon=2.0, accounting="pure", max_items=2)
        assert mechanism.segments is not None and mechanism.inner is not None
        assert (
            mechanism.segments.test.tau_scale == 4
            and mechanism.segments.test.mu_scale == 8
        )
        assert mechanism.segments.public()["column"] == "4"
        assert (
            mechanism.inner.test.tau_scale == tau
            and mechanism.inner.test.mu_scale == mu
        )
        assert mechanism.inner.sums_share == Fraction(1, share)
        assert mechanism.inner.public()["update"] == (
            None if kind == "two_level" else "6"
        )
        assert mechanism.guarantee.epsilon == 2.0


@pytest.mark.slow
@BOTH
def test_the_named_column_falls_short_by_no_more_than_is_promised(
    accounting: str,
) -> None:
    """SUMSELECT (001 section 3.2): largest sum minus the named label's, at every tick of 6 runs."""
    common: dict[str, object] = {
        "accounting": accounting,
        "epsilon": 16.0,
        "horizon": 600,
    }
    mechanism = make("two_level", 4, query="argmax", **common)
    missed = 0
    assert mechanism.error(1) > make("two_level", 4, **common).error(1)
    for seed in range(6):
        run = Run(mechanism, seed=seed)
        sums = np.zeros(4, dtype=np.int64)
        worst = 0.0
        for t, row in enumerate(rows_of(600, 4, seed=seed, ones=2), 1):
            sums += row
            answer = run.step(t, [row])[0]
            label = answer["value"]  # None: all of it falls short
            named = 0 if label is None else sums[int(str(label)[1:])]
            worst = max(worst, float(sums.max() - named) / float(str(answer["error"])))
        missed += worst > 1
    assert missed <= 2


def test_more_labels_asked_for_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match="only 4 labels"):
        make("two_level_k", 4, queries=("top_k:5",))
    with pytest.raises(ValueError, match="only once"):
        make("two_level_k", 4, queries=("max", "max"))
