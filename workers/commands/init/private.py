"""Bounds chosen from a sample under differential privacy (`init --private`).

Each bound is a noisy quantile of one number an event: how many different items it has, the largest
amount of one item, the number that is counted in buckets. Events are counted in cells of a fixed
grid, and the ranks of the cells, the numbers of events in a cell or below it, get the noise of
`mechanisms.counters.ranks` at one tick, which costs rho (zCDP) for the content of one event of the
sample emptied. What is chosen from them is post-processing.

Guarantee: together the choices are a Gaussian mechanism of `Chosen.rho`, which the settings file
states as `bounds_rho`, and the histogram pays from its budget (docs/decisions/0044-bounds.md). The
noise comes from a fresh key that is forgotten.
"""

import math
import os
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from workers.arrays.types import Floats, Longs
from workers.commands.init.formats import CannotGuess
from workers.commands.init.items import Range, range_around
from workers.mechanisms.accounting import float_up
from workers.mechanisms.counters.ranks import RankColumns, ranked_counter, ranks_of
from workers.mechanisms.noise.keyed import NoiseKey

# Cells: public, and wide enough for any topic.
ITEMS = tuple(range(1, 65))
AMOUNTS = tuple(digit * 10**power for power in range(6) for digit in (1, 2, 5))
_SIZES = tuple(
    float(f"{digit}e{power}") for power in range(-6, 13) for digit in (1, 2, 5)
)
NUMBERS = (*(-size for size in reversed(_SIZES)), 0.0, *_SIZES)

# Shares of the events within a bound, and below and above the buckets' ends.
_WITHIN = 0.99
_OUTSIDE = 0.01
# Where buckets of one ratio begin.
_USUAL = 0.05
# The least number of events, in standard deviations of the noisiest cell, so that noise moves a
# share by a few in 100; and by how many of its standard deviations a rank may be off.
_LEAST = 100
_SLACK = 4


@dataclass(frozen=True, slots=True)
class Chosen:
    """Bounds, and what their choice cost: 0 if there was none. `range`: None without buckets."""

    max_items: int
    max_count: int
    range: Range | None
    rho: float


class PrivateChoice:
    """Bounds chosen by noisy quantiles of one sample: `parts` choices cost `rho` together."""

    def __init__(self, rho: float, parts: int) -> None:
        """Prepare for `parts` choices, which may cost `rho` together."""
        # Of one choice. A little less, so that their costs, each rounded up, add up to `rho` at
        # most.
        self._rho = float(Fraction(rho) / parts) * (1 - 2.0**-50)
        # Fresh, and kept nowhere: nobody can compute the noise again.
        self._key = NoiseKey(os.urandom(32))
        self._stream = self._key.stream(os.urandom(16))
        self._spent = Fraction(0)

    @property
    def rho(self) -> float:
        """What was spent, rounded up."""
        return float_up(self._spent)

    def bound(self, name: str, values: Sequence[int], grid: Sequence[int]) -> int:
        """Return the number of a grid that nearly all values, one an event, do not exceed."""
        # Cell i has the values above grid[i - 1], up to grid[i]; the last one all above, too.
        last = len(grid) - 1
        cells = [min(bisect_left(grid, value), last) for value in values]
        (cell,) = self._quantiles(name, cells, len(grid), (_WITHIN,))
        return grid[cell]

    def ends(self, values: Sequence[float]) -> Range | None:
        """Return buckets for nearly all values, one an event; None if none fit them.

        `range_around` makes them of four quantiles.
        """
        # Cell i has the values from NUMBERS[i - 1] to below NUMBERS[i]; one lies below all numbers,
        # and one above.
        cells = [bisect_right(NUMBERS, value) for value in values]
        shares = (_OUTSIDE, _USUAL, 1 / 2, 1 - _OUTSIDE)
        *lower, highest = self._quantiles("ends", cells, len(NUMBERS) + 1, shares)
        # The lower edges of their cells, and the upper one of the highest.
        low, usual, median = (NUMBERS[max(cell - 1, 0)] for cell in lower)
        high = NUMBERS[min(highest, len(NUMBERS) - 1)]
        return range_around(low, usual, median, high)

    def ranks(
        self, name: str, cells: Sequence[int], number: int
    ) -> tuple[Longs, float]:
        """Release how many events lie in each of `number` cells or below it, with noise.

        `cells` has the cell of each event. Also return the standard deviation of a cell's noise.
        This is all that is read of a sample, and is done once for each name.
        """
        # For one tick, with no share of rho for a last one. `rho_item` is what a change of one cell
        # by 1 costs, for all ranks together: an event lies in one cell, so that is all.
        counter = ranked_counter(number, 1, self._rho, None)
        self._spent += Fraction(counter.rho_item)
        counts: Longs = np.bincount(cells, minlength=number)
        tag = self._key.tags("bounds", [name.encode()])
        counts = counts + RankColumns((counter,), self._stream).at(1, tag)
        return np.cumsum(counts), counter.sd(1)

    def _quantiles(
        self, name: str, cells: Sequence[int], number: int, shares: Sequence[float]
    ) -> list[int]:
        """Return the cell in which each share of the events is reached; arguments as in `ranks`."""
        ranks, sd = self.ranks(name, cells, number)
        total = int(ranks[-1])
        # With fewer events the noise would move a share too far.
        if total < _LEAST * sd:
            raise CannotGuess(
                f"--private: that takes a sample of about {math.ceil(_LEAST * sd):,} events: more --records, or a larger epsilon"
            )
        quantiles = []
        for share in shares:
            # A rank must reach its share so far beyond the noise that noise alone makes no bound
            # wider: more below the median, less above it.
            slack = _SLACK * sd * _rank_sds(number, share) * np.sign(1 / 2 - share)
            # The first cell that reaches it.
            quantiles.append(int(np.argmax(ranks >= share * total + slack)))
        return quantiles


def _rank_sds(number: int, share: float) -> Floats:
    """Return the sd of the noise of (rank of each cell - `share` of the total).

    In units of a cell's sd. The total is the rank of the last of the `number` cells.
    """
    ranks = ranks_of(number)
    places = np.arange(1, number + 1)
    last = np.full(number, number)
    # Var(R_i - s T) = Var(R_i) + s^2 Var(T) - 2 s Cov(R_i, T)
    variances = ranks.covariance(places, places)
    variances += share**2 * ranks.covariance(last, last)
    variances -= 2 * share * ranks.covariance(places, last)
    # A variance of 0 may be rounded to less.
    return np.sqrt(np.maximum(variances, 0) / ranks.of_bucket)
