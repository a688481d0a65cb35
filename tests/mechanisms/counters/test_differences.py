"""Noise of a change between two ticks: a snapshot's window error is the one readers see."""

from fractions import Fraction

import numpy as np
import pytest

from tests.mechanisms.small import STREAM, assert_variance, numbered
from workers.mechanisms.counters.base import Counter
from workers.mechanisms.counters.kinds import make_counter
from workers.mechanisms.counters.laplace_tree import LaplaceTree, laplace_tree
from workers.mechanisms.counters.sqrt import SqrtCounter
from workers.runtime.errors import HorizonExceeded

pytestmark = pytest.mark.slow

# n = 20,000 independent rows: a sample variance has relative sd sqrt(2/n) = 0.01, so 5 % is five of
# them (6e-7); of about a hundred pairs of ticks one is wrong with probability 6e-5, and the key is
# fixed. Rounding at the two ends counts as independent: with variances of at most 1/12 its
# covariance adds at most 1/6, which shows where noise is about one count. Half and double the
# variance lie far outside.
ROWS = 20_000
# Ends at multiples of large powers of two, at odd ticks, one tick apart, across the middle of the
# horizon, and from the epoch's start.
PAIRS = (
    *((512, 256), (1000, 744), (768, 512), (341, 300), (999, 1)),
    *((683, 682), (684, 683), (600, 411), (341, 0), (1000, 0)),
)
Pairs = tuple[tuple[int, int], ...]
FAR = 2**33 + 12345
COUNTERS: list[tuple[Counter | LaplaceTree, Pairs]] = [
    (laplace_tree(1000, Fraction(1), 2), PAIRS),
    (make_counter("lifted", 1000, 0.01), PAIRS),
    (make_counter("lifted", 1000, 3.0), PAIRS),
    (make_counter("lifted", 1024, 0.01), (*PAIRS, (1024, 1023), (1024, 512))),
    (
        make_counter("lifted", 1000, 0.01, end_share=0.6),
        (*PAIRS, (1000, 999), (488, 232)),
    ),
    (make_counter("lifted", None, 0.01), (*PAIRS, (FAR, FAR - 4096), (FAR, FAR - 1))),
    (make_counter("tree", 1000, 0.01), PAIRS),
    (make_counter("tree", 1000, 3.0, 2), PAIRS),
    (
        make_counter("tree", None, 0.01),
        (*PAIRS, (625, 500), (FAR, FAR - 4096), (FAR, FAR - 1)),
    ),
    (
        make_counter("sqrt", 100, 0.01),
        ((64, 32), (100, 99), (99, 1), (51, 37), (60, 0)),
    ),
]
every_counter = pytest.mark.parametrize(
    ("counter", "pairs"),
    COUNTERS,
    ids=[f"{counter.kind} {n}" for n, (counter, _) in enumerate(COUNTERS)],
)


@every_counter
def test_a_change_has_the_stated_standard_deviation_and_not_half_or_double_the_variance(
    counter: Counter | LaplaceTree, pairs: Pairs
) -> None:
    """Too short a bar shows false trends; too long a bar hides real ones."""
    tags = numbered("change", ROWS)
    columns = counter.columns(STREAM)
    ticks = sorted({tick for pair in pairs for tick in pair if tick})
    noise = {tick: columns.at(tick, tags) for tick in ticks} | {
        0: np.zeros(ROWS, dtype=np.int64)
    }
    for t, since in pairs:
        found = (noise[t] - noise[since]).var()
        stated = counter.difference_sd(t, since) ** 2
        tolerance = 0.05 + 1 / 6 / stated
        assert tolerance < 0.4
        assert_variance(found, stated, tolerance)


def test_the_sqrt_counters_change_is_that_of_its_nodes() -> None:
    """The counter sums once for all ticks; here node by node, as the other counters do."""
    counter = SqrtCounter(60, 0.02)
    for t, since in ((2, 1), (40, 13), (60, 59), (60, 1)):
        stated = Counter.difference_sd(counter, t, since)
        assert counter.difference_sd(t, since) == pytest.approx(stated, rel=1e-12)


@every_counter
def test_ticks_outside_the_horizon_are_refused(
    counter: Counter | LaplaceTree, pairs: Pairs
) -> None:
    last = counter.horizon or 2**40 - 1
    for t, since in ((0, 0), (last + 1, last), (last + 1, 0), (last, -1)):
        with pytest.raises(HorizonExceeded):
            counter.difference_sd(t, since)
