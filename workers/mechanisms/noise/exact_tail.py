"""Exact upper quantile of a sum of few discrete Gaussians, where it is small enough to add up.

What: X = sum_j c_j Z_j lies on a lattice; its probabilities are convolved there, one term after the
other, every number rounded up, so that the x returned satisfies P(X >= x) <= delta for certain.
Discovery uses it where it is cheap, and its closed bounds elsewhere.

    c_j, sigma_j^2   coefficient and parameter of Z_j ~ N_Z(0, sigma_j^2), independent
    D                common denominator of the c_j: D X is an integer
    b_j              P(|Z_j| > b_j) <= CUT by the sub-Gaussian bound 2 exp(-b^2 / (2 sigma^2))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from workers.mechanisms.frozen import kept

CUT = 1e-24
_LOG_CUT = math.log(2 / CUT)
LEAST_DELTA = 1e-18
# About this many multiplications are worth it at a tick: a millisecond.
WORK_MAX = 1_500_000
# Float additions lose at most a part in 2^52 each; this is far above what all of them lose.
_OUTWARD = 1 + 1e-8


def exact_quantile(terms: Sequence[tuple[Fraction, Fraction]], delta: float) -> float | None:
    """Return the smallest x of X's lattice with P(X >= x) <= delta; None where that costs too much.

    Args:
        terms: (c_j, sigma_j^2) of the independent terms.
        delta: probability, from LEAST_DELTA to 1.
    """
    denominator = math.lcm(*(c.denominator for c, _ in terms))
    multiples = [(c.numerator * (denominator // c.denominator), s2) for c, s2 in terms]
    return exact_quantile_of(denominator, multiples, delta)


def exact_quantile_of(denominator: int, multiples: Sequence[tuple[int, Fraction]], delta: float) -> float | None:
    """Return `exact_quantile` of terms whose c_j come as integers, over a common denominator.

    It runs at every tick, and with fractions it takes ten times as long.

    Args:
        denominator: a multiple of D.
        multiples: (c_j times that, sigma_j^2).
        delta: as there.
    """
    if delta < LEAST_DELTA or not multiples:
        return None
    common = math.gcd(denominator, *(a for a, _ in multiples))
    steps = [(abs(a) // common, s2, _bound(s2.numerator, s2.denominator)) for a, s2 in multiples]
    # Whichever is added last has all of the final length to go through.
    longest = 1 + 2 * sum(step * bound for step, _, bound in steps)
    if (2 * min(bound for *_, bound in steps) + 1) * longest > WORK_MAX:
        return None
    steps.sort()
    length, work = 1, 0
    for step, _, bound in steps:
        length += 2 * step * bound
        work += (2 * bound + 1) * length
    if work > WORK_MAX:
        return None
    mass = np.ones(1)
    for step, s2, bound in steps:
        mass = _add(mass, step, _weights(float(s2), bound))
    tail = np.cumsum(mass[::-1]) * _OUTWARD + len(steps) * CUT
    # This many of the largest points together weigh at most delta.
    inside = int(np.searchsorted(tail, delta, side="right"))
    return (len(mass) // 2 - inside + 1) / (denominator // common)


@kept(1024)
def _bound(numerator: int, denominator: int) -> int:
    """Return b of a parameter; a fraction's hash takes longer than this."""
    return math.ceil(math.sqrt(2 * (numerator / denominator) * _LOG_CUT))


def _weights(s2: float, bound: int) -> NDArray[np.float64]:
    """Return probabilities of N_Z(0, s2) on -bound..bound, not less than the true ones."""
    z = np.arange(-bound, bound + 1, dtype=np.float64)
    weights = np.exp(-z * z / (2 * s2))
    scaled: NDArray[np.float64] = weights / weights.sum() * _OUTWARD
    return scaled


def _add(mass: NDArray[np.float64], step: int, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return probabilities of Y + step * Z from those of Y (on a lattice around 0) and Z."""
    if step == 1:
        return np.convolve(mass, weights)
    out = np.zeros(len(mass) + step * (len(weights) - 1))
    for i, weight in enumerate(weights.tolist()):
        out[i * step : i * step + len(mass)] += weight * mass
    return out
