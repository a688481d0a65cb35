"""The exact privacy loss of PAMG sketches, of all neighbours, is at most what is claimed.

A release shows each counter whose noisy count is above the threshold. Counters have independent
noise, so the loss of a pair of sketches is that of the labels whose counters differ.
"""

from collections.abc import Iterable
from functools import reduce
from itertools import product

import numpy as np
import pytest
from scipy.special import ndtr

from tests.arrays.test_set_sketches import FLAWS
from tests.arrays.uncompiled import plain_python
from tests.mechanisms.misra_gries.sets import EMPTY, Pair, neighbours, step_of
from workers.arrays import set_sketches, tallies
from workers.arrays.types import Floats
from workers.mechanisms.misra_gries.releases import GshmLaw

EPSILON = 1.0
DELTA = 0.02
REACH = 12

# The counts of a label whose counters differ, in either world.
Moved = tuple[tuple[int, int], ...]


def shown(law: GshmLaw, count: int) -> Floats:
    """Return the probabilities of not being shown, and of each count that is shown."""
    bound = int(REACH * float(law.sigma_squared) ** 0.5)
    if not count:  # no counter, and no noise
        none: Floats = np.eye(1, bound + 1)[0]
        return none
    sigma = float(law.sigma_squared) ** 0.5
    edges = np.arange(law.threshold, law.threshold + bound) + 0.5 - count
    below = ndtr(edges / sigma)
    found: Floats = np.diff(below, prepend=0.0, append=1.0)
    return found


def delta_of(law: GshmLaw, moved: Moved) -> float:
    """Return the delta of one world against the other, at EPSILON."""
    first, second = (
        reduce(np.multiply.outer, [shown(law, pair[world]) for pair in moved])
        for world in (0, 1)
    )
    return float(np.maximum(first - np.exp(EPSILON) * second, 0).sum())


def largest_delta(law: GshmLaw, pairs: Iterable[Pair]) -> float:
    """Return the largest delta over all pairs of sketches, in both directions."""
    moved = {
        tuple(sorted((x, y) for x, y in zip(a, b, strict=True) if x != y))
        for first, second in pairs
        for a, b in ((first, second), (second, first))
    }
    return max((delta_of(law, labels) for labels in moved - {()}), default=0.0)


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
