"""Segments: the outer level of paper 001, whose threshold doubles; the run is in `engine`.

What: AboveThreshold on the largest watched value of s = h + G, h the exact sums, G noise. When it
stops, every column gets fresh noise on top of what it has, G_(j+1) = G_j + new, s is published and
the threshold is doubled.
Why: within a segment the value can grow only by about the threshold, so what follows needs no bound
that is known beforehand.

    Symbol      Here
    D, Dinf     columns an event changes, and by how much
    j           segment, from 1; threshold K_j = first * 2^(j - 1)
    s_D         noise added to each column at the end of a segment
    alpha_G     `column_error(j)`: |G_j| is at most this
    low, high   AboveThreshold's bounds

Costs: AboveThreshold; and D Dinf^2 / (2 s_D^2) rho once, or pure D Dinf / scale: the released
increments s_(j+1) - s_j are a segment's exact counts and fresh noise; an event is in one segment.

Source: 001 Algorithms 5, 10, 15. Printed (pure): first = 1, log2 T segments, Lap(4/eps),
Lap(8/eps), Lap(2d/eps), d replaced by D Dinf. Corrected: Algorithm 15 line 9 would need four times
its variance for the (eps/2) it claims (an l2 norm of sqrt(d) at eps/2 has
2 d ln(1.25/delta) / (eps/2)^2), and line 13 of Algorithm 16 depends on d, not on k; here s_D^2
follows from rho; and j < log T in the test keeps a last segment from ending whose threshold is only
about T/2, so that the value may grow by more than the promised 2^(j-1) + 2 alpha_DM in it (measured
at T = 1,000: the promise missed in 8 of 8 runs): here there are ceil(log2 T) + 1 segments. In zCDP
the first threshold is the power of two above low + high, since below it noise alone ends segments,
and their number is not limited by log2 T, for a tick may hold any number of events.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

from workers.mechanisms.order_statistics.above_threshold import AboveThreshold
from workers.mechanisms.order_statistics.column_sums import OneVector
from workers.mechanisms.order_statistics.config import CELL_TV, MaxConfig

MOST_SEGMENTS = 40


@dataclass(frozen=True, slots=True)
class Segments:
    """The outer level: when a segment ends, and with which noise. Public parameters.

    Attributes:
        above: its AboveThreshold.
        column: the noise of the columns at the end of a segment.
        first: threshold of segment 1.
        most: the last segment does not end.
        columns: d, how many there are.
        ticks: the horizon.
        beta: probability that any bound below fails in an epoch.
    """

    above: AboveThreshold
    column: OneVector
    first: int
    most: int
    columns: int
    ticks: int
    beta: float

    @classmethod
    def of(cls, config: MaxConfig, test: Fraction, columns: Fraction, beta: float) -> Segments:
        """Return the level calibrated to what the test and the columns' noise may each cost."""
        above = AboveThreshold.of(test, config.max_count, pure=config.pure)
        column = OneVector.of(columns, config.most_columns, config.max_count, pure=config.pure)
        most = (config.ticks - 1).bit_length() + 1 if config.pure else MOST_SEGMENTS
        made = cls(above, column, 1, most, len(config.domain), config.ticks, beta)
        if config.pure:
            return made
        return replace(made, first=1 << math.ceil(math.log2(max(1.0, sum(made.bounds(1))))))

    @property
    def spent(self) -> dict[str, Fraction]:
        """Return what each part costs: rho, or pure epsilon."""
        return {"outer_test": self.above.spent, "columns": self.column.spent}

    @property
    def tv(self) -> float:
        """Return the distance of the noise that an event's true values are under.

        That is one run's threshold and ticks, and the columns that the event changes.
        """
        return self.above.tv(self.ticks) + self.column.changed * CELL_TV

    def threshold(self, segment: int) -> int:
        """Return K_j."""
        return self.first << (segment - 1)

    def bounds(self, segment: int) -> tuple[float, float]:
        """Return (low, high) of AboveThreshold: thirds of beta for all segments, all ticks."""
        return self.above.bounds(self._part(segment), self.beta / (3 * self.ticks))

    def column_error(self, segment: int) -> float:
        """Return alpha_G: how far s may be from h during this segment."""
        if segment == 1:
            return 0.0
        return self.column.sum_bound(segment - 1, self._part(segment) / self.columns)

    def growth(self, segment: int) -> int:
        """Return Delta_j: how much a watched value of h + G may grow before the segment ends.

        It starts at -alpha_G or above, and such a tick leaves it at most K_j + high. Printed:
        2^(j-1) + 2 alpha_DM, with log2 T for L.
        """
        low, high = self.bounds(segment)
        noise = self.column_error(segment)
        if self.above.one_sided:
            return math.ceil(self.threshold(segment) + high + noise)
        return math.ceil(self.threshold(segment) + 2 * (low + noise + self.most))

    def column_variance(self, segments: int) -> float:
        """Return the variance of one column's noise in a segment."""
        return (segments - 1) * self.column.variance

    def public(self) -> dict[str, object]:
        """Return every parameter that changes a value."""
        return {
            "above_threshold": self.above.public(),
            "column": str(self.column.parameter),
            "column_law": "discrete gaussian" if self.above.one_sided else "discrete laplace",
            "first": self.first,
            "most": self.most,
        }

    def _part(self, segment: int) -> float:
        """Return segment j's part of a third of beta: 1 / (j (j + 1)) adds up to 1."""
        return self.beta / (3 * segment * (segment + 1))
