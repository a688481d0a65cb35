"""doubling: printed segments, column noise, cost, and growth of the value within a segment."""

import math
from fractions import Fraction

import numpy as np
import pytest

from tests.mechanisms.order_statistics.unknown_max import (
    Run,
    assert_as_printed,
    assert_converts,
    assert_variance,
    make,
    rows_of,
    worst_error,
)
from workers.mechanisms.order_statistics.engine import Segments

BOTH = pytest.mark.parametrize("accounting", ["zcdp", "pure"])
TAGS = np.random.default_rng(3).integers(0, 2**63, size=(100_000, 2), dtype=np.uint64)


def segments(**changes: object) -> Segments:
    found = make("doubling", 40, **changes).segments
    assert found is not None
    return found


@BOTH
@pytest.mark.parametrize("query", ["max", "quantile:0.5"])
def test_it_is_the_printed_algorithm(query: str, accounting: str) -> None:
    """001 Algorithm 5 line by line on the same noise; sums keep all earlier segments' noise."""
    mechanism = make("doubling", 3, query=query, accounting=accounting, epsilon=30.0, horizon=400)
    assert assert_as_printed(mechanism, rows_of(400, 3, seed=1, ones=2, most=9), silent=False) >= 6


@BOTH
def test_without_noise_a_segment_ends_when_the_maximum_passes_a_power_of_two(
    accounting: str,
) -> None:
    """Thresholds first, 2 first, 4 first, ...: at a sum of first + 1, and so on."""
    mechanism = make("doubling", 2, accounting=accounting, epsilon=30.0)
    run, ends = Run(mechanism, silent=True), []
    for t in range(1, 513):
        if run.step(t, [np.array([1, 0])])[0]["since"] == t:
            ends.append(t)
    first = segments(accounting=accounting, epsilon=30.0).first
    most = segments(accounting=accounting, epsilon=30.0).most
    assert ends == [end for j in range(most - 1) if (end := (first << j) + 1) <= 512]


@BOTH
def test_each_end_of_a_segment_adds_the_noise_that_was_paid_for(accounting: str) -> None:
    """D Dinf^2 / (2 rho) with half of rho, or Lap(2 D Dinf / eps); half and double are rejected."""
    mechanism = make("doubling", 40, accounting=accounting, epsilon=4.0, max_items=2, max_count=3)
    noise = Run(mechanism).noise
    scale = 2 * 2 * 3 / 4.0
    pure = 1 / (2 * math.sinh(1 / (2 * scale)) ** 2)
    expected = pure if accounting == "pure" else 2 * 9 / (2 * mechanism.guarantee.rho / 2)
    assert_variance(noise.outer_columns(TAGS, 1), expected)
    # Segments have independent noise: the difference of two has both variances.
    assert_variance(noise.outer_columns(TAGS, 1) - noise.outer_columns(TAGS, 2), 2 * expected)


def test_the_cost_in_zcdp_adds_up_from_the_noise_that_is_public() -> None:
    mechanism = make("doubling", 5, epsilon=1.5, max_items=2, max_count=3)
    public = mechanism.public()["segments"]
    assert isinstance(public, dict)
    test = public["above_threshold"]
    rho = (3 / Fraction(test["tau_scale"]) + 6 / Fraction(test["mu_scale"])) ** 2 / 8
    rho += 2 * 9 / (2 * Fraction(public["column"]))
    assert mechanism.cost().rho == pytest.approx(float(rho), rel=1e-12)
    assert_converts(mechanism, 1e-6)


def test_pure_epsilon_is_as_printed() -> None:
    """Lap(4/eps), Lap(8/eps), Lap(2 D/eps), thresholds from 1; the last one is >= T."""
    found = segments(accounting="pure", epsilon=0.5, max_items=2, horizon=1000)
    assert found.above.tau_scale == 8 and found.above.mu_scale == 16
    assert found.first == 1 and found.most == 11 and found.threshold(11) >= 1000
    assert found.public()["column"] == "8"


def test_more_items_than_columns_cost_no_more_than_all_columns() -> None:
    """D is what an event can change, not what a setting allows."""
    narrow = make("doubling", 3, max_items=100).public()["segments"]
    assert narrow == make("doubling", 3, max_items=3).public()["segments"]


@BOTH
def test_the_error_stays_within_what_is_promised(accounting: str) -> None:
    """001 Theorem 2. beta = 0.05: more than 2 of 8 runs fail with probability 0.006."""
    mechanism = make("doubling", 4, accounting=accounting, epsilon=8.0, horizon=1000)
    worst = [worst_error(mechanism, rows_of(1000, 4, seed=seed, ones=3), seed) for seed in range(8)]
    assert sum(one > 1 for one in worst) <= 2
    assert max(worst) > 0.2
