"""Discrete Gaussian noise N_Z(0, sigma^2) by exact inversion of a 128-bit cumulative table.

    sigma^2         `sigma_squared`: the parameter, P(x) proportional to exp(-x^2 / (2 sigma^2));
                    the variance is at most this and for sigma^2 >= 1 equal to it within 1e-6
    b               P(|Z| > b) <= CUT by the sub-Gaussian bound 2 exp(-b^2 / (2 sigma^2))

A table has thresholds round(2^128 P(X <= x)); a word of 128 bits gives the integer with as many of
them at or below it (`inversion`). `upper_quantile` convolves probabilities, with every number
rounded up, so the returned x satisfies P(X >= x) <= delta for certain.

Source: Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy": N_Z(0, s^2) on a
query of l2 sensitivity D is D^2/(2 s^2)-zCDP, and N_Z(0, s^2) is sub-Gaussian with proxy s^2.
"""

import itertools
import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np

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


def upper_quantile(sigma_squared: Fraction, count: int, delta: float) -> int | None:
    """Return the least x found with P(X >= x) <= delta; None where that is too much work.

    X is a sum of `count` independent N_Z(0, sigma_squared). Too much is more than `WORK_MAX`
    multiplications, or a delta below `LEAST_DELTA`, near the mass that is cut off.
    """
    bound = math.ceil(math.sqrt(2 * float(sigma_squared) * _LOG_CUT))
    if delta < LEAST_DELTA or (2 * bound + 1) * (2 * count * bound + 1) > WORK_MAX:
        return None
    z = np.arange(-bound, bound + 1, dtype=np.float64)
    weights = np.exp(-z * z / (2 * float(sigma_squared)))
    # On -bound..bound, not less than the true probabilities.
    weights = weights / weights.sum() * _OUTWARD
    mass = np.ones(1)
    for _ in range(count):
        mass = np.convolve(mass, weights)
    # tail[i] bounds the mass of the i + 1 largest sums, including what is cut off each term.
    tail = np.cumsum(mass[::-1]) * _OUTWARD + count * CUT
    # The `inside` largest sums have a mass of at most delta, and x is the least of them. The middle
    # of `mass` is the sum 0.
    inside = int(np.searchsorted(tail, delta, side="right"))
    return len(mass) // 2 - inside + 1


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
        if not 0 < sigma_squared <= LARGEST_SIGMA_SQUARED:
            raise ValueError(
                f"sigma_squared = {float(sigma_squared):g}: must be above 0 and at most "
                f"{LARGEST_SIGMA_SQUARED} (a larger rho, or fewer levels, needs less noise)"
            )
        self.sigma_squared = Fraction(sigma_squared)
        # Thresholds of negative values, from which the others follow by symmetry.
        lower, mass_beyond = _lower_thresholds(self.sigma_squared)
        thresholds = inversion.mirrored(lower)
        super().__init__(thresholds, lowest=-len(lower), tail=mass_beyond)

    def __repr__(self) -> str:
        return f"IntegerGaussian(sigma_squared={self.sigma_squared})"


@memoized(512)
def integer_gaussian(sigma_squared: Fraction) -> IntegerGaussian:
    return IntegerGaussian(sigma_squared)


def _lower_thresholds(sigma_squared: Fraction) -> tuple[list[int], float]:
    """Return round(2^128 P(X <= x)) for x = -bound .. -1, and a bound on the mass beyond.

    The recurrence loses at most 2 x^2 units in the last place for x steps, 2^42 at the largest
    sigma^2: of 90 digits 77 are left.
    """
    with localcontext(inversion.TABLE_CONTEXT):
        # With s = sigma^2 and 0 of mass 1, x has the mass exp(-x^2/(2 s)) = exp(-(x-1)^2/(2 s))
        # times `factor` exp(-(2x-1)/(2 s)), which itself shrinks by `step` exp(-1/s).
        numerator, denominator = sigma_squared.as_integer_ratio()
        factor = (Decimal(-denominator) / (2 * numerator)).exp()
        step = factor * factor
        smallest = Decimal(1) / (1 << _TAIL_BITS)
        masses: list[Decimal] = []
        mass = factor
        # Factors shrink: both tails from the next x on weigh at most 2 mass / (1 - factor).
        while (tail := (mass + mass) / (1 - factor)) >= smallest:
            masses.append(mass)
            factor *= step
            mass *= factor
        # From the lowest x up; then all mass is 0's and twice that below it.
        sums = list(itertools.accumulate(reversed(masses)))
        total = sums[-1] if sums else Decimal(0)
        scale = (1 << WORD_BITS) / (1 + 2 * total)
        scaled = [int((scale * part).to_integral_value()) for part in sums]
    # A threshold of 0 is never passed: the mass below it is less than half a unit on each side.
    return list(filter(None, scaled)), math.nextafter(float(tail), math.inf)
