"""The haar counter: exact factorisation, exact arithmetic, and the design's figures."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.mechanisms.small import KEY, STREAM
from workers.mechanisms.counters.haar import HaarCounter
from workers.mechanisms.noise.inversion import Integers
from workers.mechanisms.noise.keyed import Cell
from workers.runtime.errors import HorizonExceeded


def statistic(cell: Cell, s: int) -> int:
    """Return C: an event in tick s adds +1 to a cell in its left half, -1 in its right half."""
    level, node = cell
    if level == 0:
        return 1
    if (s - 1) >> level != node:
        return 0
    return 1 if ((s - 1) >> (level - 1)) % 2 == 0 else -1


def sigmas(counter: HaarCounter) -> list[Fraction]:
    values = counter.public()["sigma_squared"]
    assert isinstance(values, list)
    return list(map(Fraction, values))


def coefficients(counter: HaarCounter, t: int) -> dict[Cell, Fraction]:
    return {cell: coefficient for cell, (coefficient, _) in counter.cells(t).items()}


@pytest.mark.parametrize("share", [None, 0.6])
@pytest.mark.parametrize("horizon", [1, 2, 3, 5, 8, 21, 33, 64, 100])
def test_decoding_the_statistics_gives_the_running_sum(horizon: int, share: float | None) -> None:
    """B C = A, the lower triangle of ones, in Fractions: noise aside, the true count.

    With a share the tree may include empty ticks before tick 1.
    """
    counter = HaarCounter(horizon, 0.1, share)
    assert share is None or counter.offset + horizon == 1 << (horizon - 1).bit_length()
    for t in range(1, horizon + 1):
        row = coefficients(counter, t)
        for s in range(1, horizon + 1):
            found = sum(c * statistic(cell, s + counter.offset) for cell, c in row.items())
            assert found == (1 if s <= t else 0)


def test_decoding_the_unbounded_statistics_gives_the_running_sum() -> None:
    """50 levels, with ticks and events across the range."""
    counter = HaarCounter(None, 0.1)
    generator = np.random.default_rng(2)
    places = [1, 2, 3, 2**39, 2**40 - 1, *(int(2 ** generator.uniform(0, 40)) for _ in range(40))]
    for t in places:
        row = coefficients(counter, t)
        for s in {*places, max(t - 1, 1), t, t + 1}:
            assert sum(c * statistic(cell, s) for cell, c in row.items()) == (1 if s <= t else 0)


@pytest.mark.parametrize("share", [None, 0.01, 0.6, 0.99])
@pytest.mark.parametrize("horizon", [1, 2, 3, 5, 8, 13, 21, 33, 64, 100])
def test_an_event_costs_what_is_stated_in_whichever_tick_it_lies(
    horizon: int, share: float | None
) -> None:
    """One statistic a level by one, plus the total: root and levels cost their stated shares."""
    counter = HaarCounter(horizon, 0.1, share)
    sigma_squared = sigmas(counter)
    cells = {cell for t in range(1, horizon + 1) for cell in coefficients(counter, t)}
    for s in range(1, horizon + 1):
        changes = {cell: statistic(cell, s + counter.offset) for cell in cells}
        changed = [level for (level, _), change in changes.items() if change]
        assert set(changes.values()) <= {-1, 0, 1}
        assert len(set(changed)) == len(changed) <= counter.cells_per_event
        spent = sum(1 / (2 * sigma_squared[level]) for level in changed)
        assert spent <= Fraction(counter.rho_item)
    assert 0.1 * (1 - 1e-4) <= counter.rho_item <= 0.1
    if share is not None and horizon > 1:
        # Rounding a variance up to its grid loses at most one part in ten thousand.
        assert 1 / (2 * sigma_squared[0]) == pytest.approx(0.1 * share, rel=1e-4)


@pytest.mark.parametrize(
    ("horizon", "worst", "root_mean_square"),
    [(2**10, 4.22, 3.56), (2**16, 6.22, 5.29), (2**20, 7.56, 6.45)],
)
def test_error_is_that_of_the_design(horizon: int, worst: float, root_mean_square: float) -> None:
    """The table of mechanisms.md, noise per unit of mu, detects a wrong weight or coefficient."""
    counter = HaarCounter(horizon, 0.005)
    levels = (horizon - 1).bit_length()
    ticks = np.arange(1, horizon + 1, dtype=np.float64)
    squares = (ticks / 2**levels) ** 2 / 2
    for level in range(1, levels + 1):
        inside = ticks % 2**level
        squares += (np.minimum(inside, 2**level - inside) / 2**level) ** 2
    variances = (levels + 2) * squares
    for t in (1, 2, horizon // 3, horizon * 2 // 3, horizon * 5 // 6, horizon - 1, horizon):
        found = float(counter.variance(t)) * 2 * counter.rho_item
        assert found == pytest.approx(variances[t - 1], rel=1e-3)
    assert math.sqrt(variances.max()) == pytest.approx(worst, abs=0.006)
    assert math.sqrt(variances.mean()) == pytest.approx(root_mean_square, abs=0.006)


@pytest.mark.parametrize(("octave", "worst"), [(10, 5.6), (16, 8.3), (20, 10.1), (30, 14.9)])
def test_unbounded_error_is_that_of_the_design(octave: int, worst: float) -> None:
    """It grows with the logarithm of t, not with the 50 levels; S costs next to nothing."""
    counter = HaarCounter(None, 0.005)
    end = 2**octave
    ticks = [end // 3, end * 2 // 3, end * 5 // 6, *range(end // 4, end, end // 512 | 1)]
    highest = max(float(counter.variance(t)) for t in ticks) * 2 * counter.rho_item
    assert math.sqrt(highest) == pytest.approx(worst, abs=0.06)


def test_the_total_is_noised_too() -> None:
    """An exact S would reveal the total, however small its coefficient."""
    for counter in (HaarCounter(None, 0.1), HaarCounter(64, 0.1)):
        assert coefficients(counter, 1)[(0, 0)] > 0
        assert sigmas(counter)[0] > 1


# Each tick's arithmetic is compared with Fractions. The bounds of the noise go up to those of the
# largest sigma^2.
EXTREMES = [
    ((1000, 0.01), [1, 2, 333, 682, 1000]),
    ((2**16, 1e-6), [1, 2**15, 43690, 43691, 65535, 65536]),
    ((2**40, 1e-7), [1, 2**39, (2**40) // 3, 2**40 // 3 * 2, 2**40 - 1, 2**40]),
    ((None, 0.004), [1, 2, 12345, 2**20, (2**40) // 3, 2**40 // 3 * 2, 2**40 - 1]),
    ((1000, 0.01, 0.6), [1, 2, 333, 682, 999, 1000]),
    ((2**39 + 1, 1e-6, 0.99), [1, 2**39 // 3, 2**39 // 3 * 2, 2**39, 2**39 + 1]),
    ((None, 1e-4), [1, 2**20 + 1, (2**40) // 3, 2**40 // 3 * 2, 2**40 - 1]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("parameters", "ticks"), EXTREMES, ids=str)
def test_release_equals_exact_rational_arithmetic_for_any_noise(
    parameters: Any, ticks: list[int]
) -> None:
    """No overflow or double rounding: random and extreme noise against floor(x + 1/2)."""
    counter = HaarCounter(*parameters)
    generator = np.random.default_rng(4)
    rows = 60
    noise: list[Integers] = []
    for table in counter._tables:
        column: Integers = np.empty(rows, dtype=table.dtype)
        column[:] = generator.integers(-table.bound, table.bound + 1, size=rows)
        column[:2] = table.bound, -table.bound
        column[2:20] = generator.choice([-table.bound, table.bound], size=18)
        column[20:40] = generator.integers(-2, 3, size=20)
        noise.append(column)

    block = counter._block(rows)
    for level, column in enumerate(noise):
        counter._row(block, level)[:] = column
    released = np.empty(rows, dtype=np.int64)
    for t in ticks:
        counter.plan(t).add_up(block, released)
        terms = coefficients(counter, t).items()
        for row in range(rows):
            exact = sum((c * int(noise[level][row]) for (level, _), c in terms), Fraction(0))
            assert int(released[row]) == math.floor(exact + Fraction(1, 2))


def test_narrow_and_wide_arithmetic_are_both_in_use() -> None:
    """The arithmetic test must cover all paths: 32 bits, 64 bits, and several groups."""
    small, large, unbounded = (
        counter.plan(333).sums[:, 3].tolist()
        for counter in (HaarCounter(1000, 0.01), HaarCounter(2**16, 1e-6), HaarCounter(None, 0.004))
    )
    assert set(small) == {1}
    assert set(large) == {0}
    assert len(unbounded) >= 2


@pytest.mark.parametrize("horizon", [1, 2, 17, 100, None])
def test_plans_that_are_made_together_are_those_of_their_ticks(horizon: int | None) -> None:
    """A neighbour's plan would sum other cells; at the horizon there is no neighbour."""
    counter = HaarCounter(horizon, 0.1)
    for t in (1, 2, 15, 16, 17, 99, 100, 2**40 - 1):
        if t <= (horizon or t):
            made, alone = counter.plan(t), counter._planned(t)
            assert made.cells == alone.cells
            assert made.terms.tolist() == alone.terms.tolist()
            assert made.sums.tolist() == alone.sums.tolist()
    for t in (0, (horizon or 2**40 - 1) + 1):
        with pytest.raises(HorizonExceeded):
            counter.plan(t)


def test_drawn_noise_is_the_sum_over_its_cells() -> None:
    """From the words: the cell of a level is (level, t >> level), that of S is (0, 0)."""
    counter = HaarCounter(1000, 0.01)
    tags = KEY.tags("cells", [b"a", b"b", b"c"])
    for t in (1, 6, 333, 512, 1000):
        exact = np.zeros(3, dtype=object)
        for cell, coefficient in coefficients(counter, t).items():
            level, node = cell
            assert node == (t >> level if level else 0)
            values = np.empty(3, dtype=counter._tables[level].dtype)
            counter._tables[level].draw(STREAM, cell, tags, values)
            exact += [coefficient * value for value in values.tolist()]
        rounded = [math.floor(total + Fraction(1, 2)) for total in exact]
        assert counter.draw(STREAM, t, tags).tolist() == rounded
