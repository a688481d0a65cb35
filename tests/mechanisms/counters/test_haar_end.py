"""The haar counter with `end_share`: the last tick has the root's noise alone."""

import math
from fractions import Fraction

import numpy as np
import pytest

from tests.mechanisms.counters.test_haar import sigmas
from tests.mechanisms.small import STREAM, assert_variance, numbered
from workers.mechanisms.accounting import rho_of
from workers.mechanisms.counters.counter import make_counter
from workers.mechanisms.counters.haar import HaarCounter
from workers.mechanisms.counters.levels import Counter

ROWS = 20_000


@pytest.mark.parametrize("share", [0.01, 0.6, 0.99])
@pytest.mark.parametrize("horizon", [1, 2, 3, 5, 8, 21, 33, 64, 100])
def test_the_last_tick_has_the_noise_of_the_root_alone(horizon: int, share: float) -> None:
    """The benefit of the share: an integer of variance 1 / (2 rho e), for any horizon."""
    counter = HaarCounter(horizon, 0.1, share)
    assert counter.cells(horizon) == {(0, 0): (Fraction(1), sigmas(counter)[0])}
    assert counter.sd(horizon) == math.sqrt(counter.variance(horizon))
    tags = numbered("root", 1000)
    root = np.empty(1000, dtype=counter._tables[0].dtype)
    counter._tables[0].draw(STREAM, (0, 0), tags, root)
    assert counter.draw(STREAM, horizon, tags).tolist() == root.tolist()


def test_the_figures_are_those_of_the_design() -> None:
    """DP-SQLP: last and worst sd, with and without, to the digits of docs/mechanisms.md."""
    rho_item = rho_of(6.0, 5e-10) / 32
    for horizon, share, last, worst in (
        (100, None, 17.3, 19.5),
        (100, 0.6, 8.0, 24.9),
        (1000, None, 21.1, 26.0),
        (1000, 0.6, 8.0, 34.5),
    ):
        counter = HaarCounter(horizon, rho_item, share)
        sds = [counter.sd(t) for t in range(1, horizon + 1)]
        assert sds[-1] == pytest.approx(last, abs=0.06)
        assert max(sds) == pytest.approx(worst, abs=0.06)


def test_nothing_changes_where_no_share_is_given() -> None:
    """Existing histograms keep their ids, and so their noise: the parameters gain no name."""
    for horizon in (100, 128, None):
        names = ["kind", "horizon", "levels", "sigma_squared", "table_version"]
        assert list(make_counter("haar", horizon, 0.1).public()) == names
    assert HaarCounter(100, 0.1).offset == 0
    given = make_counter("haar", 100, 0.1, end_share=0.6).public()
    assert (given["offset"], given["end_share"]) == (28, "0.6")


@pytest.mark.parametrize(
    "counter",
    [
        HaarCounter(100, 0.01, 0.6),
        HaarCounter(100, 0.01),
        make_counter("tree", 100, 0.01, 3),
        make_counter("sqrt", 60, 0.01),
    ],
    ids=repr,
)
def test_the_cells_are_the_law_of_two_ticks_together(counter: Counter) -> None:
    """The noise of a difference of two ticks, from their common cells. Half and double are refused.

    A sample covariance of n rows has an sd of at most sd sd' sqrt(2 / n), a sample variance one of
    sqrt(2 / n) of itself: five of each (false alarm 6e-7), and 1/6 for rounding two counts.
    """
    tags = numbered("law", ROWS)
    last = counter.horizon or 0
    five = 5 * math.sqrt(2 / ROWS)
    pairs = (1, 2), (last // 2, last // 2 + 1), (last // 3, last), (last - 1, last), (26, 53)
    for first, second in pairs:
        one, other = counter.cells(first), counter.cells(second)
        covariance = variance = Fraction(0)
        for cell in one.keys() | other.keys():
            _, sigma_squared = one.get(cell) or other[cell]
            a, b = (cells[cell][0] if cell in cells else Fraction(0) for cells in (one, other))
            covariance += a * b * sigma_squared
            variance += (a - b) ** 2 * sigma_squared
        x, y = counter.draw(STREAM, first, tags), counter.draw(STREAM, second, tags)
        slack = five * counter.sd(first) * counter.sd(second) + 1 / 6
        assert np.cov(x, y)[0, 1] == pytest.approx(float(covariance), abs=slack)
        stated = float(variance)
        assert_variance(float(np.var(x - y)), stated, five + 1 / 6 / stated)
