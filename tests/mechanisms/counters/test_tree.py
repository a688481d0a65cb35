"""The tree counter: blocks partition the prefix, the base is optimal, figures match the design."""

import math
from fractions import Fraction

import numpy as np
import pytest

from workers.mechanisms.counters.tree import TreeCounter, best_radix, digits_of


def digits(number: int, radix: int) -> list[int]:
    found = []
    while number:
        number, digit = divmod(number, radix)
        found.append(digit)
    return found


@pytest.mark.parametrize(
    ("horizon", "radix"),
    [(1, 2), (7, 2), (8, 2), (30, 3), (64, 4), (100, None), (9, 50)],
)
def test_blocks_of_a_release_partition_its_prefix(
    horizon: int, radix: int | None
) -> None:
    """Noise aside, the true count: every tick up to t is in one block, none after it."""
    counter = TreeCounter(horizon, 0.1, radix)
    for t in range(1, horizon + 1):
        covered: list[int] = []
        for level, first, last in counter._tree.blocks(t):
            width = counter.radix**level
            covered += range(first * width + 1, last * width + 1)
        assert sorted(covered) == list(range(1, t + 1))
        assert len(counter.nodes(t)) == sum(digits(t, counter.radix))


@pytest.mark.parametrize(
    ("horizon", "radix"), [(1, 2), (8, 2), (30, 3), (64, 4), (100, None), (9, 50)]
)
def test_an_event_changes_one_block_a_level(horizon: int, radix: int | None) -> None:
    """The sensitivity behind rho = L_r / (2 sigma^2): at most L_r released blocks hold a tick."""
    counter = TreeCounter(horizon, 0.1, radix)
    released = {node for t in range(1, horizon + 1) for node in counter.nodes(t)}
    for s in range(1, horizon + 1):
        holding = [
            level
            for level, block in released
            if (s - 1) // counter.radix**level == block
        ]
        spent = sum(1 / (2 * counter.variance_of((level, 0))) for level in holding)
        assert len(set(holding)) == len(holding)
        assert spent <= Fraction(counter.rho_item)
    assert counter.rho_item == pytest.approx(0.1, rel=1e-4)


@pytest.mark.parametrize(
    "horizon", [1, 2, 3, 4, 7, 8, 9, 26, 27, 28, 100, 255, 256, 1000, 1024]
)
def test_best_radix_is_the_argmin_over_all_bases(horizon: int) -> None:
    """The code compares one base for each number of digits; brute force compares all."""
    best = min(
        (radix - 1) * digits_of(horizon, radix) ** 2 for radix in range(2, horizon + 2)
    )
    chosen = best_radix(horizon)
    assert (chosen - 1) * digits_of(horizon, chosen) ** 2 == best


@pytest.mark.parametrize("power", [1, 2, 3, 7, 20])
@pytest.mark.parametrize("radix", [2, 3, 10])
def test_digits_are_exact_at_powers_of_the_base(radix: int, power: int) -> None:
    """A floating point logarithm is off by one at some, which makes the noise too small."""
    assert digits_of(radix**power, radix) == power + 1
    assert digits_of(radix**power - 1, radix) == power


@pytest.mark.parametrize(
    ("horizon", "radix", "worst", "root_mean_square"),
    [
        (2**10, None, 8.49, 6.09),
        (2**16, None, 13.75, 9.73),
        (2**20, None, 17.20, 12.24),
        (2**10, 2, 10.49, 7.42),
        (2**16, 2, 16.49, 11.66),
        (2**20, 2, 20.49, 14.49),
    ],
)
def test_error_is_that_of_digit_sums(
    horizon: int, radix: int | None, worst: float, root_mean_square: float
) -> None:
    """Worst and root-mean-square noise per unit of mu; digit sums computed here for every tick."""
    counter = TreeCounter(horizon, 0.005, radix)
    ticks = np.arange(1, horizon + 1)
    sums = np.zeros(horizon, dtype=np.int64)
    rest = ticks.copy()
    while rest.any():
        sums += rest % counter.radix
        rest //= counter.radix
    unit = float(counter.variance(1)) * 2 * counter.rho_item
    for t in (1, horizon // 3, horizon - 1, horizon):
        assert float(counter.variance(t)) * 2 * counter.rho_item == pytest.approx(
            unit * int(sums[t - 1])
        )
    assert math.sqrt(unit * int(sums.max())) == pytest.approx(worst, abs=0.006)
    assert math.sqrt(unit * float(sums.mean())) == pytest.approx(
        root_mean_square, abs=0.006
    )


@pytest.mark.parametrize("radix", [None, 2, 3, 1024])
@pytest.mark.parametrize("rho_item", [1e-4, 0.01, 2.0])
def test_levels_of_an_unbounded_horizon_cost_what_was_asked_together(
    radix: int | None, rho_item: float
) -> None:
    """The proof's sum, from each level's variance; the levels hold every allowed tick."""
    counter = TreeCounter(None, rho_item, radix)
    levels = counter._tree.levels
    assert counter.radix ** (levels - 1) <= 2**40 - 1 < counter.radix**levels
    variances = [counter.variance(counter.radix**level) for level in range(levels)]
    spent = sum(1 / (2 * variance) for variance in variances)
    assert Fraction(rho_item) * Fraction(9999, 10000) <= spent <= Fraction(rho_item)
    for level, variance in enumerate(variances):
        assert float(variance / variances[0]) == pytest.approx(
            (level + 2) / 2, rel=1e-3
        )


@pytest.mark.parametrize("t", [1, 4, 5, 124, 5**10, 5**17 + 3, 2**40 - 1])
def test_blocks_of_an_unbounded_release_partition_its_prefix(t: int) -> None:
    """End to end from 1 to t, by block ends: the prefix is too long to list."""
    counter = TreeCounter(None, 0.01)
    ends = [0]
    for level, first, last in counter._tree.blocks(t):
        assert first * counter.radix**level == ends[-1]
        assert 0 < last - first < counter.radix
        ends.append(last * counter.radix**level)
    assert ends[-1] == t
