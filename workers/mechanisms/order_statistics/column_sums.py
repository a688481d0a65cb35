"""Noise of column sums: of running sums (H of paper 001), and of a vector released once.

After the n-th interval every column's sum is published once with the noise of a continual counter
at its n-th step. Guaranteed for adaptive input: an interval may depend on earlier publications.
Neighbours: one event emptied, or the reverse, in one interval; D columns change by at most Dinf.

    zCDP         a lifted or tree counter with rho / (D Dinf^2) per column (`counters`)
    pure         a binary tree of L levels, every node with discrete Laplace noise of scale
                 L D Dinf / epsilon (001 Fact 4, Algorithm 19)
    `OneVector`  discrete Gaussian noise at D Dinf^2 / (2 sigma^2) rho, or discrete Laplace noise of
                 scale b at D Dinf / b

A discrete Laplace variable's moment generating function is at most that of the continuous one of
the same scale (cosh is convex in its square), so the tail bounds for Laplace sums hold for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from workers.mechanisms.bounds import laplace_sum, normal_bound
from workers.mechanisms.noise import discrete_laplace as laplace
from workers.mechanisms.noise import gaussian
from workers.mechanisms.noise.discrete_laplace import DiscreteLaplace


@dataclass(frozen=True, slots=True)
class OneVector:
    """Noise of a vector released once; an event changes `changed` (D) entries by at most Dinf."""

    sampler: gaussian.IntegerGaussian | DiscreteLaplace
    changed: int
    parameter: Fraction  # the scale, or sigma^2
    spent: Fraction  # pure epsilon or rho
    variance: float  # at least that of one entry's noise

    @classmethod
    def of(cls, budget: Fraction, changed: int, reach: int, *, pure: bool) -> OneVector:
        if pure:
            scale = laplace.round_up_scale(changed * reach / budget)
            table = laplace.discrete_laplace(scale)
            return cls(table, changed, scale, changed * reach / scale, table.variance)
        sigma_squared = gaussian.round_up_sigma_squared(
            changed * reach**2 / (2 * budget)
        )
        spent = changed * reach**2 / (2 * sigma_squared)
        sampler = gaussian.integer_gaussian(sigma_squared)
        return cls(sampler, changed, sigma_squared, spent, float(sigma_squared))

    def bound(self, beta: float) -> float:
        """Bound one entry's absolute noise, with failure probability at most beta."""
        if isinstance(self.sampler, DiscreteLaplace):
            return float(self.parameter) * math.log(1 / beta) + 1
        return normal_bound(float(self.parameter), 1, beta) + 0.5

    def sum_bound(self, times: int, beta: float) -> float:
        """Bound the absolute sum of one entry's noise over `times` vectors."""
        if isinstance(self.sampler, DiscreteLaplace):
            return laplace_sum(times, float(self.parameter), 1, beta)
        return normal_bound(times * float(self.parameter), 1, beta) + 0.5
