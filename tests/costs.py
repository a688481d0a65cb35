"""Composition, and the conversion read the other way: references for what the worker states."""

import math
from collections.abc import Iterable
from fractions import Fraction

from workers.mechanisms.accounting import PrivacyCost, _check_rho, _largest, _round_up

# A delta below e^-690 (1e-300) is given as that: exp would round it down to nothing.
_LEAST_LOG_DELTA = -690.0


def delta_of(rho: float, epsilon: float) -> float:
    """Return the least delta for which rho-zCDP gives (epsilon, delta); ValueError on bad input."""
    _check_rho(rho)
    if not epsilon >= 0:
        raise ValueError(f"epsilon = {epsilon}: must be a number of at least 0")
    if rho == 0 or math.isinf(epsilon):
        return 0.0
    if math.isinf(rho):
        return 1.0

    def log_delta(order: int) -> float:
        return (order - 1) * (
            order * rho - epsilon + math.log1p(-1 / order)
        ) - math.log(order)

    lowest = -_largest(lambda order: -log_delta(order))
    return min(1.0, _round_up(math.exp(min(max(lowest, _LEAST_LOG_DELTA), 0.0))))


def summed(costs: Iterable[PrivacyCost]) -> tuple[float, float]:
    """Return the sums of rho and of the failures, without rounding in between.

    zCDP composes additively, also adaptively (Bun, Steinke 2016, Lemma 2.3); failures by the union
    bound.
    """
    costs = list(costs)
    failures = (Fraction(failure) for cost in costs for _, failure in cost.failures)
    return float(sum(Fraction(cost.rho) for cost in costs)), float(sum(failures))
