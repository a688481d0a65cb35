"""The exact privacy loss of PAMG sketches, of all neighbours, is at most what is claimed.

A release shows each counter whose noisy count is above the threshold. Counters have independent
noise, so the loss of a pair of sketches is that of the labels whose counters differ.
"""

from collections.abc import Iterable
from functools import cache
from itertools import product

import numpy as np
import pytest
from scipy.special import ndtr

from tests.arrays.test_set_sketches import FLAWS
from tests.arrays.uncompiled import plain_python
from tests.mechanisms.misra_gries.sets import EMPTY, Pair, neighbours, step_of
from tests.privacy.sketch_loss import delta_of_pair
from workers.arrays import set_sketches, tallies
from workers.mechanisms.misra_gries.releases import GshmLaw

EPSILON = 1.0
DELTA = 0.02
REACH = 12


def largest_delta(law: GshmLaw, pairs: Iterable[Pair]) -> float:
    """Return the largest delta of all pairs of sketches, in both directions, at EPSILON."""
    sigma = float(law.sigma_squared) ** 0.5

    @cache
    def noise(value: int) -> float:
        return float(ndtr((value + 0.5) / sigma) - ndtr((value - 0.5) / sigma))

    # A count of 0 is no counter, and has no noise.
    moved = {
        tuple(sorted((x or -1, y or -1) for x, y in zip(*pair, strict=True) if x != y))
        for pair in pairs
    }
    return max(
        delta_of_pair(
            found,
            EPSILON,
            noise=noise,
            threshold=law.threshold,
            reach=int(REACH * sigma),
        )
        for found in moved
    )


def merged(size: int, pair: Pair) -> Pair:
    """Return a pair of merged counters: what exceeds the (size + 1)-th largest."""
    first, second = (
        tuple(max(0, n - sorted(counters)[-size - 1]) for n in counters)
        for counters in pair
    )
    return first, second


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_loss_of_every_pair_of_neighbours_is_at_most_the_claim(size: int) -> None:
    """All streams of up to six sets of four labels."""
    law = GshmLaw(size, EPSILON, DELTA)
    found = largest_delta(law, neighbours(step_of(size)))
    assert found <= DELTA
    # Counts of six sets are hidden more often than large ones are.
    assert found >= 0.35 * DELTA


def test_the_loss_of_merged_sketches_is_at_most_the_claim() -> None:
    """Any sketch of another partition is merged into both neighbours (Corollary 10)."""
    size = 2
    law = GshmLaw(size, EPSILON, DELTA)
    step = step_of(size)
    pairs = set(neighbours(step, 4))
    others = {EMPTY, *(sketch for pair in pairs for sketch in pair)}
    sums = {
        (
            tuple(map(sum, zip(x, other, strict=True))),
            tuple(map(sum, zip(y, other, strict=True))),
        )
        for (x, y), other in product(pairs, others)
    }
    found = {merged(size, pair) for pair in sums}
    for pair in found:
        differences = {x - y for x, y in zip(*pair, strict=True)} - {0}
        assert differences <= {1} or differences <= {-1}
    assert largest_delta(law, found) <= DELTA


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_planted_flaw_loses_more(flaw: str) -> None:
    planted = plain_python((tallies, set_sketches), *FLAWS[flaw])[set_sketches]
    law = GshmLaw(2, EPSILON, DELTA)
    with np.errstate(over="ignore"):
        pairs = neighbours(step_of(2, planted), 5)
        assert any(largest_delta(law, [pair]) > DELTA for pair in pairs)
