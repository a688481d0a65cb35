"""The variance of published noise by tick, for any horizon, as plans and reports describe it.

Nothing here is released, so floats suffice. In a tree of base r (`radix`), a block of level j is
r^j ticks, and the count at tick t is a sum of blocks: d_j of level j, the digits of t in base r.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from workers.arrays.types import Floats
from workers.mechanisms.about import Figure

Ticks = NDArray[np.int64]

# Variance of rounding to an integer.
ROUNDING = 1 / 12


def fullest(horizon: int, radix: int) -> list[int]:
    """Return the ticks up to `horizon` among which the noisiest is, whatever a level's variance.

    For every other tick one of these has digits in base `radix` that are all at least as large.
    """
    ticks = {horizon}
    width = 1
    while width <= horizon:
        if horizon // width % radix:
            # The horizon with this digit less by one and the largest ones below it.
            ticks.add(horizon // width * width - 1)
        width *= radix
    return sorted(ticks - {0})


class Curve:
    """The variance of the published figures at each tick."""

    def variance(self, ticks: Ticks) -> Floats:
        raise NotImplementedError

    def mean(self, last: int) -> float:
        """Return the mean variance of ticks 1..last."""
        raise NotImplementedError

    def noisiest(self, last: int) -> Ticks:
        """Return ticks up to `last` of largest variance, largest first; at least one."""
        ticks = self.candidates(last)
        return ticks[np.argsort(-self.variance(ticks), kind="stable")]

    def worst_and_rms(self, last: int) -> tuple[float, float]:
        """Return the largest and the root mean square standard deviation up to `last`."""
        worst = self.variance(self.noisiest(last)[:1])[0]
        return math.sqrt(worst), math.sqrt(self.mean(last))

    def candidates(self, last: int) -> Ticks:
        """Return some ticks up to `last`, the noisiest among them (`lifted`: nearly so)."""
        raise NotImplementedError


class DigitCurve(Curve):
    """The variance of sums of a tree's blocks: sum_j d_j sigma_j^2, plus that of rounding.

    `variances` are the sigma_j^2 of levels 0, 1, ...
    """

    def __init__(
        self, radix: int, variances: Sequence[float], *, rounding: float = 0.0
    ) -> None:
        self.radix = radix
        self.levels = len(variances)
        self._variances = variances
        # The variance that rounding adds to a published sum.
        self._rounding = rounding

    def variance(self, ticks: Ticks) -> Floats:
        """Return the variances at some ticks, by their digits in base r."""
        # Blocks are added up first: a published sum is rounded once.
        total = np.full(len(ticks), self._rounding)
        rest = ticks
        for variance in self._variances:
            total += (rest % self.radix) * variance
            rest = rest // self.radix
        return total

    def candidates(self, last: int) -> Ticks:
        return np.array(fullest(last, self.radix), dtype=np.int64)

    @property
    def most_blocks(self) -> int:
        return (self.radix - 1) * self.levels

    def used_blocks(self, ticks: int) -> int:
        """Return the most blocks added at any t <= ticks: the largest sum of base-r digits."""
        return max(map(self.blocks_at, fullest(ticks, self.radix)))

    def blocks_at(self, t: int) -> int:
        """Return the number of blocks added at t: the sum of its digits."""
        total = 0
        while t:
            t, digit = divmod(t, self.radix)
            total += digit
        return total

    def mean(self, last: int) -> float:
        """Return the mean variance of ticks 1..last, exactly: digit by digit of all numbers."""
        total = self._rounding
        for level, variance in enumerate(self._variances):
            # A level's digit runs through 0..r - 1, each for `width` ticks, in cycles; ticks are
            # 0..last, as tick 0 adds nothing. The last cycle has whole runs of 0..digit - 1, and
            # then `more` ticks of `digit`.
            width = self.radix**level
            cycles, rest = divmod(last + 1, width * self.radix)
            digit, more = divmod(rest, width)
            of_cycle = (self.radix * (self.radix - 1) // 2) * width
            of_runs = digit * (digit - 1) // 2 * width
            digits = cycles * of_cycle + of_runs + digit * more
            total += variance * (digits / last)
        return total


class TableCurve(Curve):
    """Variances of the first ticks; later ticks have the last one."""

    def __init__(self, variances: Floats) -> None:
        self._variances = variances

    def variance(self, ticks: Ticks) -> Floats:
        found: Floats = self._variances[np.minimum(ticks, len(self._variances)) - 1]
        return found

    def candidates(self, last: int) -> Ticks:
        return np.arange(1, min(last, len(self._variances)) + 1)

    def mean(self, last: int) -> float:
        first = self._variances[:last]
        later = self._variances[-1] * (last - len(first))
        return float((first.sum() + later) / last)


def blocks_figure(blocks: DigitCurve, worst: int) -> Figure:
    most = float(blocks.blocks_at(worst))
    return Figure("blocks_most", most, "blocks added at the worst tick")
