"""Segments: the outer level of paper 001, whose threshold doubles (public parameters and bounds; the run is in `engine`).

What: AboveThreshold on the largest watched value of s = h + G, h the exact sums, G noise. When it stops, every column gets fresh noise on
top of what it has, G_(j+1) = G_j + new, s is published and the threshold is doubled.
Why: within a segment the value can grow only by about the threshold, so what follows needs no bound that is known beforehand.

    Symbol      Here
    D, Dinf     columns an event changes, and by how much
    j           segment, from 1; threshold K_j = first * 2^(j - 1)
    s_D         noise added to each column at the end of a segment
    alpha_G     `column_error(j)`: |G_j| is at most this
    low, high   AboveThreshold's bounds

Costs: AboveThreshold; and D Dinf^2 / (2 s_D^2) rho once, or pure D Dinf / scale: the released increments s_(j+1) - s_j are the segment's
exact counts and fresh noise, and an event lies in one segment.

Source: 001 Algorithms 5, 10, 15. Printed (pure): first = 1, log2 T segments, Lap(4/eps), Lap(8/eps), Lap(2d/eps), d replaced by
D Dinf. Corrected: Algorithm 15 line 9 would need four times its variance for the (eps/2) it claims (an l2 norm of sqrt(d) at eps/2 has
2 d ln(1.25/delta) / (eps/2)^2), and line 13 of Algorithm 16 depends on d, not on k; here s_D^2 follows from rho;
and j < log T in the test keeps a last segment from ending whose threshold is only about T/2, so that the value may grow by more than the
promised 2^(j-1) + 2 alpha_DM in it (measured at T = 1,000: the promise missed in 8 of 8 runs): here there are ceil(log2 T) + 1 segments.
In zCDP the first threshold is the power of two above low + high, since below it noise alone ends segments, and their number is not
limited by log2 T, for a tick may hold any number of events.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from workers.mechanisms.noise.discrete_laplace import DiscreteLaplace, discrete_laplace, round_up_scale
from workers.mechanisms.noise.gaussian import IntegerGaussian, integer_gaussian, round_up_sigma_squared
from workers.mechanisms.order_statistics.above_threshold import AboveThreshold
from workers.mechanisms.order_statistics.column_sums import gaussian_bound, laplace_sum_bound
from workers.mechanisms.order_statistics.config import CELL_TV, MaxConfig

MOST_SEGMENTS = 40


@dataclass(frozen=True, slots=True)
class Segments:
    """Public parameters of the outer level.

    Attributes:
        above: its AboveThreshold.
        column: what each column's noise is drawn from at the end of a segment.
        first: threshold of segment 1.
        most: the last segment does not end.
        beta: probability that any bound below fails in an epoch.
    """

    above: AboveThreshold
    column: IntegerGaussian | DiscreteLaplace
    first: int
    most: int
    columns: int
    ticks: int
    beta: float

    @classmethod
    def of(cls, config: MaxConfig, test: Fraction, columns: Fraction, beta: float) -> Segments:
        """Calibrates to what the test and the columns' noise may each cost."""
        d, changed, reach = len(config.domain), config.items, config.max_count
        if config.accounting == "pure":
            most = (config.ticks - 1).bit_length() + 1
            above = AboveThreshold.of_epsilon(test, reach)
            laplace = discrete_laplace(round_up_scale(changed * reach / columns))
            return cls(above, laplace, 1, most, d, config.ticks, beta)
        above = AboveThreshold.of_rho(test, reach)
        gaussian = integer_gaussian(round_up_sigma_squared(changed * reach**2 / (2 * columns)))
        unit = cls(above, gaussian, 1, MOST_SEGMENTS, d, config.ticks, beta)
        low, high = unit.bounds(1)
        first = 1 << math.ceil(math.log2(max(1.0, low + high)))
        return cls(above, gaussian, first, MOST_SEGMENTS, d, config.ticks, beta)

    def spent(self, changed: int, reach: int) -> tuple[Fraction, Fraction]:
        """(test, columns): rho, or pure epsilon."""
        if isinstance(self.column, DiscreteLaplace):
            return self.above.span, changed * reach / self.column.scale
        return self.above.rho, changed * reach**2 / (2 * self.column.sigma_squared)

    @property
    def tv(self) -> float:
        """Distance of the noise an event's true values are under: one run's threshold and ticks."""
        tau, mu = self.above.tv
        return tau + self.ticks * mu

    def changed_tv(self, changed: int) -> float:
        """The same of the columns it changes."""
        return changed * CELL_TV

    def threshold(self, segment: int) -> int:
        """K_j."""
        return self.first << (segment - 1)

    def bounds(self, segment: int) -> tuple[float, float]:
        """(low, high) of AboveThreshold in this segment; a third of beta over all segments, a third over all ticks."""
        return self.above.bounds(self._part(segment), self.beta / (3 * self.ticks))

    def column_error(self, segment: int) -> float:
        """alpha_G: how far s may be from h during this segment."""
        sums = segment - 1
        if not sums:
            return 0.0
        beta = self._part(segment) / self.columns
        if isinstance(self.column, DiscreteLaplace):
            return laplace_sum_bound(sums, float(self.column.scale), beta)
        return gaussian_bound(sums * float(self.column.sigma_squared), beta)

    def growth(self, segment: int) -> int:
        """Delta_j: how much any watched value of h + G may grow from the segment's start to its last tick that does not end it.

        It starts at -alpha_G or above, and such a tick leaves it at most K_j + high. Printed: 2^(j-1) + 2 alpha_DM, with log2 T for L.
        """
        low, high = self.bounds(segment)
        noise = self.column_error(segment)
        if isinstance(self.column, DiscreteLaplace):
            return math.ceil(self.threshold(segment) + 2 * (low + noise + self.most))
        return math.ceil(self.threshold(segment) + high + noise)

    def column_variance(self, segments: int) -> float:
        """Variance of one column's noise after so many segments."""
        if isinstance(self.column, DiscreteLaplace):
            return (segments - 1) * self.column.variance
        return (segments - 1) * float(self.column.sigma_squared)

    def public(self) -> dict[str, object]:
        """Every parameter that changes a value."""
        laplace = isinstance(self.column, DiscreteLaplace)
        return {
            "above_threshold": self.above.public(),
            "column": str(self.column.scale if isinstance(self.column, DiscreteLaplace) else self.column.sigma_squared),
            "column_law": "discrete laplace" if laplace else "discrete gaussian",
            "first": self.first,
            "most": self.most,
        }

    def _part(self, segment: int) -> float:
        """Segment j's part of a third of beta: 1 / (j (j + 1)) adds up to 1."""
        return self.beta / (3 * segment * (segment + 1))
