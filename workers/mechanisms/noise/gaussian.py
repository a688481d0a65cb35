"""Discrete Gaussian noise N_Z(0, sigma^2) by exact inversion of a 128-bit cumulative table.

Why the discrete Gaussian: counts stay integers, and it has the zCDP cost of the continuous one.

    Symbol          Here
    sigma^2         `sigma_squared`: the parameter, P(x) proportional to exp(-x^2 / (2 sigma^2));
                    the variance is at most this and for sigma^2 >= 1 equal to it within 1e-6
    C(x)            `round(2^128 P(X <= x))`, the thresholds, x = -bound .. bound - 1
    TV              `tv`: total variation distance between what is sampled and N_Z(0, sigma^2)

Source: Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy": N_Z(0, s^2) on a
query of l2 sensitivity D is D^2/(2 s^2)-zCDP, and N_Z(0, s^2) is sub-Gaussian with proxy s^2.
"""

import math
from decimal import Decimal
from fractions import Fraction

from workers.mechanisms.frozen import kept
from workers.mechanisms.noise.inversion import WORD_BITS, InversionTable, mirrored, round_up_to_grid, table_context

# Raised whenever the same sigma^2 would give another table: it is part of every mechanism id.
TABLE_VERSION = 1
# 1.7 million thresholds, 27 MB, 3 s to build (measured): under such noise nothing is of use.
LARGEST_SIGMA_SQUARED = 1 << 32

# Mass left out of the sums, at most 2^-180 of the centre's: it moves a threshold once in 2^52.
_TAIL_BITS = 180


def round_up_sigma_squared(sigma_squared: Fraction) -> Fraction:
    """Return a variance on the grid that all machines share, rounded up; see `round_up_to_grid`."""
    return round_up_to_grid(sigma_squared, "sigma_squared")


class IntegerGaussian(InversionTable):
    """Sampler of N_Z(0, sigma_squared). Immutable; `integer_gaussian` keeps those in use.

    Args:
        sigma_squared: above 0, at most LARGEST_SIGMA_SQUARED.

    Attributes:
        bound, dtype: see `InversionTable`.
        tv: upper bound on the total variation distance to N_Z(0, sigma_squared): half of 2 bound +
            1 values that are off by at most one unit of 2^-128 each, one unit for values whose
            threshold rounded to 0, and the tail left out.
        test_tv: upper bound on |P'(X >= x) - P(X >= x)| for every x, P' the sampler's law: a
            threshold is off by at most half a unit, or less than half a unit where it rounded to 0,
            and by the tail left out.

    Raises:
        ValueError: sigma_squared is outside its range.
    """

    def __init__(self, sigma_squared: Fraction) -> None:
        check_sigma_squared(sigma_squared)
        self.sigma_squared = Fraction(sigma_squared)
        lower, tail = _lower_thresholds(self.sigma_squared)
        super().__init__(mirrored(lower), lowest=-len(lower))
        self.tv = math.nextafter(math.ldexp(self.bound + 2, -WORD_BITS) + tail, math.inf)
        self.test_tv = math.nextafter(math.ldexp(1, -WORD_BITS) + tail, math.inf)

    def __repr__(self) -> str:
        return f"IntegerGaussian(sigma_squared={self.sigma_squared})"


def check_sigma_squared(sigma_squared: Fraction) -> None:
    """Refuse a variance that there is no table for.

    Raises:
        ValueError: sigma_squared is not above 0, or above LARGEST_SIGMA_SQUARED.
    """
    if not 0 < sigma_squared <= LARGEST_SIGMA_SQUARED:
        raise ValueError(
            f"sigma_squared = {float(sigma_squared):g}: must be above 0 and at most {LARGEST_SIGMA_SQUARED}"
            " (a larger rho, or fewer levels, needs less noise)"
        )


@kept(512)
def integer_gaussian(sigma_squared: Fraction) -> IntegerGaussian:
    """Return the sampler of this variance; tables in use are kept, as many counters share them."""
    return IntegerGaussian(sigma_squared)


def _lower_thresholds(sigma_squared: Fraction) -> tuple[list[int], float]:
    """Return round(2^128 P(X <= x)) for x = -bound .. -1, and a bound on the mass beyond.

    The recurrence loses at most 2 x^2 units in the last place for x steps, 2^42 at the largest
    sigma^2: of 90 digits 77 are left.
    """
    context = table_context()
    # exp(-x^2/(2 s)) = exp(-(x-1)^2/(2 s)) * exp(-(2x-1)/(2 s)), whose second factor is geometric.
    exponent = context.divide(Decimal(-sigma_squared.denominator), Decimal(2 * sigma_squared.numerator))
    factor = context.exp(exponent)
    step = context.multiply(factor, factor)
    smallest = context.divide(Decimal(1), Decimal(1 << _TAIL_BITS))
    masses: list[Decimal] = []
    mass = factor
    # The ratios shrink: both tails beyond x weigh at most 2 mass(x+1) / (1 - factor), the centre 1.
    while (tail := context.divide(context.add(mass, mass), context.subtract(Decimal(1), factor))) >= smallest:
        masses.append(mass)
        factor = context.multiply(factor, step)
        mass = context.multiply(mass, factor)
    total = Decimal(0)
    sums: list[Decimal] = []
    for weight in reversed(masses):
        total = context.add(total, weight)
        sums.append(total)
    everything = context.add(Decimal(1), context.multiply(Decimal(2), total))
    scale = context.divide(Decimal(1 << WORD_BITS), everything)
    thresholds = [int(context.to_integral_value(context.multiply(scale, partial))) for partial in sums]
    # A threshold of 0 is never passed: below it is less than half a unit on each side.
    return [threshold for threshold in thresholds if threshold], math.nextafter(float(tail), math.inf)
