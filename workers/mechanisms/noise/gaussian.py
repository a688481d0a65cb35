"""Discrete Gaussian noise N_Z(0, sigma^2) by exact inversion of a 128-bit cumulative table.

    sigma^2         `sigma_squared`: the parameter, P(x) proportional to exp(-x^2 / (2 sigma^2));
                    the variance is at most this and for sigma^2 >= 1 equal to it within 1e-6
    c_j, sigma_j^2  coefficient and parameter of Z_j ~ N_Z(0, sigma_j^2), independent
    D               common denominator of the c_j: D X is an integer
    b_j             P(|Z_j| > b_j) <= CUT by the sub-Gaussian bound 2 exp(-b^2 / (2 sigma^2))

`exact_quantile` bounds the upper quantile of a sum of few discrete Gaussians, X = sum_j c_j Z_j. X
lies on a lattice; its probabilities are convolved there term by term, with every number rounded up,
so the returned x satisfies P(X >= x) <= delta for certain.

Source: Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy": N_Z(0, s^2) on a
query of l2 sensitivity D is D^2/(2 s^2)-zCDP, and N_Z(0, s^2) is sub-Gaussian with proxy s^2.
"""

import itertools
import math
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction

import numpy as np

from workers.arrays.types import Floats
from workers.mechanisms.noise import inversion
from workers.mechanisms.noise.inversion import WORD_BITS, InversionTable
from workers.runtime.frozen import memoized

CUT = 1e-24
_LOG_CUT = math.log(2 / CUT)
LEAST_DELTA = 1e-18
# Multiplications allowed per tick: about a millisecond.
WORK_MAX = 1_500_000
# Far above the total loss of the float additions, at most a part in 2^52 each.
_OUTWARD = 1 + 1e-8


def exact_quantile(
    denominator: int, multiples: Sequence[tuple[int, Fraction]], delta: float
) -> float | None:
    """Return the least lattice x with P(X >= x) <= delta, or None above `WORK_MAX`.

    `multiples` holds pairs of c_j `denominator` (an integer) and sigma_j^2.
    """
    if delta < LEAST_DELTA or not multiples:
        return None
    common = math.gcd(denominator, *(a for a, _ in multiples))
    steps = [(abs(a) // common, s2, _bound(s2.numerator, s2.denominator)) for a, s2 in multiples]
    # The last convolution runs over the whole final length.
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
    # The largest points whose total mass is at most delta.
    inside = int(np.searchsorted(tail, delta, side="right"))
    return (len(mass) // 2 - inside + 1) / (denominator // common)


@memoized(1024)
def _bound(numerator: int, denominator: int) -> int:
    """Return b of sigma^2. Takes integers because hashing a fraction is slower than this."""
    return math.ceil(math.sqrt(2 * (numerator / denominator) * _LOG_CUT))


def _weights(s2: float, bound: int) -> Floats:
    """Return probabilities of N_Z(0, s2) on -bound..bound, not less than the true ones."""
    z = np.arange(-bound, bound + 1, dtype=np.float64)
    weights = np.exp(-z * z / (2 * s2))
    scaled: Floats = weights / weights.sum() * _OUTWARD
    return scaled


def _add(mass: Floats, step: int, weights: Floats) -> Floats:
    """Return probabilities of Y + step * Z (Y on a lattice around 0)."""
    if step == 1:
        return np.convolve(mass, weights)
    out = np.zeros(len(mass) + step * (len(weights) - 1))
    for i, weight in enumerate(weights.tolist()):
        out[i * step : i * step + len(mass)] += weight * mass
    return out


# Incremented whenever the same sigma^2 would give another table; part of every mechanism id.
TABLE_VERSION = 1
# 1.7 million thresholds, 27 MB, 3 s to build (measured): with this much noise nothing is useful.
LARGEST_SIGMA_SQUARED = 1 << 32

# Mass left out of the sums, at most 2^-180 of the centre's: it moves a threshold once in 2^52.
_TAIL_BITS = 180


def round_up_sigma_squared(sigma_squared: Fraction) -> Fraction:
    return inversion.round_up_to_grid(sigma_squared, "sigma_squared")


class IntegerGaussian(InversionTable):
    """Sampler of N_Z(0, sigma_squared), cached by `integer_gaussian`."""

    def __init__(self, sigma_squared: Fraction) -> None:
        check_sigma_squared(sigma_squared)
        self.sigma_squared = Fraction(sigma_squared)
        lower, tail = _lower_thresholds(self.sigma_squared)
        super().__init__(inversion.mirrored(lower), -len(lower), tail)

    def __repr__(self) -> str:
        return f"IntegerGaussian(sigma_squared={self.sigma_squared})"


def check_sigma_squared(sigma_squared: Fraction) -> None:
    if not 0 < sigma_squared <= LARGEST_SIGMA_SQUARED:
        raise ValueError(
            f"sigma_squared = {float(sigma_squared):g}: must be above 0 and at most "
            f"{LARGEST_SIGMA_SQUARED} (a larger rho, or fewer levels, needs less noise)"
        )


@memoized(512)
def integer_gaussian(sigma_squared: Fraction) -> IntegerGaussian:
    return IntegerGaussian(sigma_squared)


def _lower_thresholds(sigma_squared: Fraction) -> tuple[list[int], float]:
    """Return round(2^128 P(X <= x)) for x = -bound .. -1, and a bound on the mass beyond.

    The recurrence loses at most 2 x^2 units in the last place for x steps, 2^42 at the largest
    sigma^2: of 90 digits 77 are left.
    """
    context = inversion.table_context()
    # exp(-x^2/(2 s)) = exp(-(x-1)^2/(2 s)) * exp(-(2x-1)/(2 s)); the second factor is geometric.
    numerator, denominator = sigma_squared.as_integer_ratio()
    factor = context.exp(context.divide(Decimal(-denominator), Decimal(2 * numerator)))
    step = context.multiply(factor, factor)
    smallest = context.divide(Decimal(1), Decimal(1 << _TAIL_BITS))
    masses: list[Decimal] = []
    mass = factor
    # The ratios shrink, so both tails beyond x weigh at most 2 mass(x+1) / (1 - factor); centre: 1.
    while True:
        both = context.add(mass, mass)
        tail = context.divide(both, context.subtract(Decimal(1), factor))
        if tail < smallest:
            break
        masses.append(mass)
        factor = context.multiply(factor, step)
        mass = context.multiply(mass, factor)
    sums = list(itertools.accumulate(reversed(masses), context.add))
    total = sums[-1] if sums else Decimal(0)
    everything = context.add(Decimal(1), context.multiply(Decimal(2), total))
    scale = context.divide(Decimal(1 << WORD_BITS), everything)
    scaled = (int(context.to_integral_value(context.multiply(scale, part))) for part in sums)
    # A threshold of 0 is never passed: the mass below it is less than half a unit on each side.
    return list(filter(None, scaled)), math.nextafter(float(tail), math.inf)
