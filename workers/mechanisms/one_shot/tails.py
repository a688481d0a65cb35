"""Where the noise of one-shot releases is cut off: exact upper quantiles of the integer laws.

What: each function gives the smallest integer x it can prove P(N >= x) <= delta for, rounded to the
private side. A count that one event alone brought, at most Dinf, is shown iff Dinf + N > m; with
m = Dinf + x - 1 that has probability at most delta.

    Symbol          N                   P(N >= x)
    Gaussian        N_Z(0, s2)          summed
    its difference  of two, independent P(n) = exp(-n^2/(4 s2)) E_(n mod 2) / Z^2, summed
    Laplace         discrete,           q^x / (1 + q)
                    q = exp(-1/b)
    its difference  of two, independent ((1-q)/(1+q))^2 q^x ((x + 1 + c)/(1-q) + q/(1-q)^2), x >= 0,
                                        c = 2 q^2/(1-q^2)
    logistic        of two Gumbel(b)    1 / (1 + exp(x/b))

The Gaussian difference: with m = the other combination, n and m have one parity and
exp(-(a^2 + b^2)/(2 s2)) = exp(-(n^2 + m^2)/(4 s2)).
The continuous forms are 004 Theorems 7 and 8; 000's tau ln(1/delta) for Gumbel is twice as long as
needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

# Far above what floating point loses in these sums, far below what is visible in a threshold.
_OUTWARD = 1 + 1e-9
# exp(-u) with u beyond this is below every delta that settings may state by a factor of 1e-200.
_REACH = 600.0


def gaussian_quantile(sigma_squared: Fraction, delta: float) -> int:
    """Return the smallest x with P(N_Z(0, sigma_squared) >= x) <= delta."""
    return _summed(float(sigma_squared), 1.0, delta, difference=False)


def gaussian_difference_quantile(sigma_squared: Fraction, delta: float) -> int:
    """Return the smallest x with P(Z - Z' >= x) <= delta, independent N_Z(0, sigma_squared)."""
    return _summed(float(sigma_squared), 2.0, delta, difference=True)


def laplace_quantile(scale: Fraction, delta: float) -> int:
    """Return the smallest x with P(Z >= x) <= delta, Z discrete Laplace."""
    q = math.exp(-1 / float(scale))
    return _first(lambda x: q**x / (1 + q) if x > 0 else 1.0, delta)


def laplace_difference_quantile(scale: Fraction, delta: float) -> int:
    """Return the smallest x with P(Z - Z' >= x) <= delta, Z and Z' independent discrete Laplace."""
    q = math.exp(-1 / float(scale))
    one_less = -math.expm1(-1 / float(scale))
    c = 2 * q * q / (one_less * (1 + q))
    front = (one_less / (1 + q)) ** 2
    return _first(lambda x: front * q**x * ((x + 1 + c) / one_less + q / one_less**2) if x > 0 else 1.0, delta)


def logistic_quantile(scale: Fraction, delta: float) -> int:
    """Return the smallest x >= 0 with P(G - G' >= x) <= delta, both independent Gumbel(scale)."""
    return max(0, math.ceil(float(scale) * math.log(1 / delta - 1) * _OUTWARD)) if delta < 0.5 else 0


def _first(tail: Callable[[int], float], delta: float) -> int:
    """Return the smallest x >= 0 whose tail, which falls, is at most delta."""
    high = 1
    while tail(high) * _OUTWARD > delta:
        high *= 2
    low = 0
    while low < high:
        middle = (low + high) // 2
        if tail(middle) * _OUTWARD <= delta:
            high = middle
        else:
            low = middle + 1
    return low


def _summed(sigma_squared: float, copies: float, delta: float, *, difference: bool) -> int:
    spread = 2 * copies * sigma_squared
    reach = math.ceil(math.sqrt(_REACH * spread)) + 2
    n = np.arange(reach + 1, dtype=np.float64)
    weights = np.exp(-n * n / spread)
    if difference:
        even = 2 * weights[::2].sum() - 1
        odd = 2 * weights[1::2].sum()
        weights[::2] *= even
        weights[1::2] *= odd
    tails = np.cumsum(weights[::-1])[::-1] / (2 * weights.sum() - weights[0])
    # What lies beyond the reach weighs less than the last term times a geometric series: within the
    # margin of the terms that matter.
    allowed = np.flatnonzero(tails * _OUTWARD + math.exp(-_REACH + 60) <= delta)
    return int(allowed[0]) if len(allowed) else reach + 1
