"""Counters of normal noise: the exact loss of two published ticks, every pair of counts.

The noise of two ticks is a normal vector, and what is published its rounding: the chance of a pair
of counts is that of a square. So the hockey-stick divergence of neighbours is a sum over squares.
"""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import multivariate_normal

from workers.arrays.types import Floats
from workers.mechanisms.accounting import gaussian_delta
from workers.mechanisms.counters.base import Counter
from workers.mechanisms.counters.kinds import make_counter

EPSILONS = (0.25, 0.5, 1.0, 2.0, 3.0, 4.0)
# Of the squares beyond, and of scipy's integration.
SLACK = 2e-5
REACH = 9
COUNTERS: list[tuple[Any, ...]] = [
    ("lifted", 2, 0.5),
    ("lifted", 2, 0.5, None, 0.4),
    ("tree", 2, 0.5, 2),
    ("sqrt", 2, 0.5),
]


def covariance(counter: Counter) -> Floats:
    """Return the covariance (2, 2) of the noise of the two ticks, from its nodes."""
    ticks = [counter.nodes(t) for t in (1, 2)]
    found = np.zeros((2, 2))
    for i, one in enumerate(ticks):
        for j, other in enumerate(ticks):
            both = one.keys() & other.keys()
            sums = (one[v] * other[v] * counter.variance_of(v) for v in both)
            found[i, j] = float(sum(sums, Fraction(0)) / counter._denominator**2)
    return found


def law(of_noise: Floats, counts: tuple[int, int]) -> Floats:
    """Return the chances of all published pairs around 0, for these running counts."""
    edges = np.arange(-REACH - 0.5, REACH + 1)
    grid = np.stack(
        np.meshgrid(edges - counts[0], edges - counts[1], indexing="ij"), -1
    )
    below: NDArray[np.float64] = multivariate_normal(
        [0, 0], of_noise, allow_singular=True
    ).cdf(grid)
    return below[1:, 1:] - below[1:, :-1] - below[:-1, 1:] + below[:-1, :-1]


def excess(counter: Counter, event: int, share: float = 1.0) -> float:
    """Return the largest excess of the divergence over the stated one, for an event in a tick.

    `share` is planted: of the noise's variance.
    """
    of_noise = covariance(counter) * share
    worlds = [law(of_noise, counts) for counts in ((0, 0), (int(event == 1), 1))]
    found = []
    for epsilon in EPSILONS:
        stated = float(gaussian_delta(counter.rho_item, epsilon))
        for p, q in (worlds, worlds[::-1]):
            found.append(float(np.maximum(p - math.exp(epsilon) * q, 0).sum()) - stated)
    return max(found)


@pytest.mark.parametrize("arguments", COUNTERS, ids=str)
def test_neighbours_publish_what_the_exact_conversion_allows(
    arguments: tuple[Any, ...],
) -> None:
    """Both directions, an event in either tick; half the noise exceeds it."""
    counter = make_counter(*arguments)
    assert abs(law(covariance(counter), (0, 0)).sum() - 1) < SLACK
    excesses = [excess(counter, event) for event in (1, 2)]
    assert max(excesses) <= SLACK
    assert max(excess(counter, event, 0.5) for event in (1, 2)) > 100 * SLACK
