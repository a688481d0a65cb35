"""Bounds chosen from a sample under differential privacy (`init --private`).

Each bound is a noisy quantile of one number an event: how many different items it has, the largest
amount of one item, the number that is counted in buckets. Events are counted in cells of a fixed
grid, and the ranks of the cells get the noise of `mechanisms.counters.ranks` at one tick, which
costs rho for the content of one event of the sample emptied. What is chosen is post-processing.

Guarantee: together the choices are a Gaussian mechanism of `Chosen.rho`, which the settings file
states as `bounds_rho`, and the histogram pays from its budget (docs/decisions/0042-bounds.md). The
noise comes from a fresh key that is forgotten.
"""

import math
import os
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from workers.arrays.types import Longs
from workers.commands.init.formats import CannotGuess
from workers.commands.init.items import Range, range_around
from workers.mechanisms.accounting import float_up
from workers.mechanisms.counters.ranks import RankColumns, ranked_counter
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
# In standard deviations of the noisiest cell: the least number of events, so that noise moves a
# share by less than a tenth; and by how much ranks may be off.
_LEAST = 40
_SLACK = 4


@dataclass(frozen=True, slots=True)
class Chosen:
    """Bounds, and what their choice cost; `range` is None if nothing is counted in buckets."""

    max_items: int
    max_count: int
    range: Range | None
    rho: float


class PrivateChoice:
    """Noisy quantiles of one sample; `parts` of them, equally dear, cost `rho` together."""

    def __init__(self, rho: float, parts: int) -> None:
        # A little less, so that roundings up stay below.
        self._rho = float(Fraction(rho) / parts) * (1 - 2.0**-50)
        self._key = NoiseKey(os.urandom(32))
        self._stream = self._key.stream(os.urandom(16))
        self._spent = Fraction(0)

    @property
    def rho(self) -> float:
        """What was spent, rounded up."""
        return float_up(self._spent)

    def bound(self, name: str, values: Sequence[int], grid: Sequence[int]) -> int:
        """Return the number of a grid that nearly all values, one an event, do not exceed."""
        last = len(grid) - 1
        cells = [min(bisect_left(grid, value), last) for value in values]
        (cell,) = self._quantiles(name, cells, len(grid), (_WITHIN,))
        return grid[cell]

    def ends(self, values: Sequence[float]) -> Range | None:
        """Return buckets for nearly all values, one an event; None if there are none."""
        cells = [bisect_right(NUMBERS, value) for value in values]
        shares = (_OUTSIDE, 1 - _OUTSIDE)
        low, high = self._quantiles("ends", cells, len(NUMBERS) + 1, shares)
        return range_around(
            NUMBERS[max(low - 1, 0)], NUMBERS[min(high, len(NUMBERS) - 1)]
        )

    def _quantiles(
        self, name: str, cells: Sequence[int], number: int, shares: Sequence[float]
    ) -> list[int]:
        """Release the ranks of cells once; return the cell of each quantile."""
        counter = ranked_counter(number, 1, self._rho, None)
        self._spent += Fraction(counter.rho_item)
        counts: Longs = np.bincount(cells, minlength=number)
        tag = self._key.tags("bounds", [name.encode()])
        counts = counts + RankColumns((counter,), self._stream).at(1, tag)
        ranks = np.cumsum(counts)
        total = int(ranks[-1])
        sd = counter.sd(1)
        if total < _LEAST * sd:
            raise CannotGuess(
                f"--private: that takes a sample of about {math.ceil(_LEAST * sd):,} events: more --records, or a larger epsilon"
            )
        # Towards the middle by the noise, so that it alone never decides.
        marks = [
            share * total + (_SLACK * sd if share < 1 / 2 else -_SLACK * sd)
            for share in shares
        ]
        return [int(np.argmax(ranks >= mark)) for mark in marks]
