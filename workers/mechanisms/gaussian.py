"""Integer (discrete) Gaussian noise N_Z(0, sigma^2) by exact inversion of a 128-bit cumulative table.

What: one noise word in, one integer out: the number of table thresholds at or below the word says which integer. Only
integers are compared, so every machine gets the same noise, and no float ever touches a released count.
Why the discrete Gaussian: counts stay integers, and it has the zCDP cost of the continuous one.

    Symbol          Here
    sigma^2         `sigma_squared`: the parameter, P(x) proportional to exp(-x^2 / (2 sigma^2)); the variance is at
                    most this and for sigma^2 >= 1 equal to it within 1e-6
    C(x)            `round(2^128 P(X <= x))`, the thresholds, x = -bound .. bound - 1
    TV              `tv`: total variation distance between what is sampled and N_Z(0, sigma^2)

Source: Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy": N_Z(0, s^2) on a query of l2
sensitivity D is D^2/(2 s^2)-zCDP, and N_Z(0, s^2) is sub-Gaussian with proxy s^2.
"""

import functools
import math
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.mechanisms.noise import CHUNK_ROWS, NoiseStream

# Raised whenever the same sigma^2 would give another table: it is part of every mechanism id.
TABLE_VERSION = 1
# 1.7 million thresholds, 27 MB and 3 s to build (measured): under such noise no histogram is of use.
LARGEST_SIGMA_SQUARED = 1 << 32

_WORD_BITS = 128
_HALF_BITS = 64
_HALF_MASK = (1 << _HALF_BITS) - 1
# Most words are decided by their top 16 bits alone (measured for sigma = 50: 99 in 100).
_GUIDE_BITS = 16
_GUIDE_SHIFT = np.uint64(_HALF_BITS - _GUIDE_BITS)
_AMBIGUOUS_INT16 = -(1 << 15)
_AMBIGUOUS_INT32 = -(1 << 31)
# Mass left out of the sums, at most 2^-180 of the centre's: it moves no threshold but by a chance of 2^-52.
_TAIL_BITS = 180
# Decimal digits. The recurrence below loses at most 2 x^2 units in the last place for x steps, 2^42 at the largest
# sigma^2; 90 digits leave 77, twice what 128 bits need.
_DIGITS = 90


def round_up_sigma_squared(sigma_squared: Fraction) -> Fraction:
    """A variance on the grid all machines share, rounded up, the private side.

    The grid's step is 2^-16, and 2^-30 of the power of two below it for variances under 1.
    """
    if sigma_squared <= 0:
        raise ValueError(f"sigma_squared = {sigma_squared}: must be above 0")
    steps = 1 << 16
    if sigma_squared < 1:
        steps = 1 << (30 + (sigma_squared.denominator // sigma_squared.numerator).bit_length())
    return Fraction(math.ceil(sigma_squared * steps), steps)


class IntegerGaussian:
    """Sampler of N_Z(0, sigma_squared). Immutable; `integer_gaussian` keeps the tables that are in use.

    Args:
        sigma_squared: above 0, at most LARGEST_SIGMA_SQUARED.

    Attributes:
        bound: the largest absolute value it can give.
        dtype: int16 where every value fits, else int32.
        tv: upper bound on the total variation distance to N_Z(0, sigma_squared): half of 2 bound + 1 values that are
            off by at most one unit of 2^-128 each, one unit for values whose threshold rounded to 0, and the tail left
            out.

    Raises:
        ValueError: sigma_squared is outside its range.
    """

    def __init__(self, sigma_squared: Fraction) -> None:
        if not 0 < sigma_squared <= LARGEST_SIGMA_SQUARED:
            raise ValueError(
                f"sigma_squared = {float(sigma_squared):g}: must be above 0 and at most {LARGEST_SIGMA_SQUARED}"
                " (a larger rho, or fewer levels, needs less noise)"
            )
        self.sigma_squared = Fraction(sigma_squared)
        lower, tail = _lower_thresholds(self.sigma_squared)
        self.bound = len(lower)
        # P(X <= x) = 1 - P(X <= -x - 1): the upper half mirrors the lower one exactly.
        thresholds = lower + [(1 << _WORD_BITS) - threshold for threshold in reversed(lower)]
        self.tv = math.nextafter(math.ldexp(self.bound + 2, -_WORD_BITS) + tail, math.inf)
        # The most negative value of the type marks the undecided, so it must not be a sample.
        self.dtype: np.dtype[np.int16] | np.dtype[np.int32]
        if self.bound < -_AMBIGUOUS_INT16:
            self.dtype, self._ambiguous = np.dtype(np.int16), _AMBIGUOUS_INT16
        else:
            self.dtype, self._ambiguous = np.dtype(np.int32), _AMBIGUOUS_INT32
        self._high = np.array([threshold >> _HALF_BITS for threshold in thresholds], dtype=np.uint64)
        self._low = np.array([threshold & _HALF_MASK for threshold in thresholds], dtype=np.uint64)
        self._guide = self._make_guide()

    def __repr__(self) -> str:
        return f"IntegerGaussian(sigma_squared={self.sigma_squared})"

    def sample(self, words: NDArray[np.uint64], out: NDArray[np.signedinteger[Any]]) -> None:
        """One noise value for each word.

        Args:
            words: uint64 (n, 2), column 0 the more significant half.
            out: (n,) of `dtype` or wider; filled.
        """
        high = words[:, 0]
        np.take(self._guide, high >> _GUIDE_SHIFT, out=out, mode="clip")
        undecided = np.flatnonzero(out == self._ambiguous)
        if len(undecided):
            out[undecided] = self._search(words[undecided])

    def draw(
        self,
        stream: NoiseStream,
        cell: tuple[int, int],
        tags: NDArray[np.uint64],
        out: NDArray[np.signedinteger[Any]],
    ) -> None:
        """The noise of one cell for each item: `sample` of the stream's words.

        Args:
            stream: the mechanism's noise.
            cell: which noise value.
            tags: uint64 (n, 2).
            out: (n,) of `dtype`; filled.
        """
        for first in range(0, len(tags), CHUNK_ROWS):
            last = first + CHUNK_ROWS
            self.sample(stream.chunk(tags[first:last], cell), out[first:last])

    def _search(self, words: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The number of thresholds at or below each word, as a value; all 128 bits count."""
        high = words[:, 0]
        below = np.searchsorted(self._high, high, side="right").astype(np.int64)
        # A word whose upper half equals that of a threshold (once in 2^64 words) is decided by the lower half.
        for row in np.flatnonzero(self._high[below - 1] == high):
            first = int(np.searchsorted(self._high, high[row], side="left"))
            below[row] = first + int(np.count_nonzero(self._low[first : int(below[row])] <= words[row, 1]))
        return below - self.bound

    def _make_guide(self) -> NDArray[np.signedinteger[Any]]:
        """For each top 16 bits the value, or the mark that a threshold lies among the words that begin so."""
        slots = np.arange(1 << _GUIDE_BITS, dtype=np.uint64) << _GUIDE_SHIFT
        rest = np.uint64((1 << (_HALF_BITS - _GUIDE_BITS)) - 1)
        first = np.searchsorted(self._high, slots, side="left")
        last = np.searchsorted(self._high, slots | rest, side="right")
        return np.where(first == last, first - self.bound, self._ambiguous).astype(self.dtype)


@functools.lru_cache(maxsize=256)
def integer_gaussian(sigma_squared: Fraction) -> IntegerGaussian:
    """The sampler of this variance; tables in use are kept, as many counters share them."""
    return IntegerGaussian(sigma_squared)


def _lower_thresholds(sigma_squared: Fraction) -> tuple[list[int], float]:
    """round(2^128 P(X <= x)) for x = -bound .. -1, and an upper bound on the mass beyond the bound.

    Decimal's exp, product and quotient are correctly rounded by specification, so the table is the same everywhere.
    """
    context = Context(prec=_DIGITS, rounding=ROUND_HALF_EVEN, Emin=MIN_EMIN, Emax=MAX_EMAX)
    # exp(-x^2/(2 s)) = exp(-(x-1)^2/(2 s)) * exp(-(2x-1)/(2 s)); the second factor is a geometric sequence.
    exponent = context.divide(Decimal(-sigma_squared.denominator), Decimal(2 * sigma_squared.numerator))
    factor = context.exp(exponent)
    step = context.multiply(factor, factor)
    smallest = context.divide(Decimal(1), Decimal(1 << _TAIL_BITS))
    masses: list[Decimal] = []
    mass = factor
    # The ratios shrink, so both tails beyond x weigh at most 2 mass(x+1) / (1 - factor); the centre alone weighs 1.
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
    scale = context.divide(Decimal(1 << _WORD_BITS), everything)
    thresholds = [int(context.to_integral_value(context.multiply(scale, partial))) for partial in sums]
    # A threshold of 0 is never passed: what lies below it is less than half a unit on each side, one rounding more.
    return [threshold for threshold in thresholds if threshold], math.nextafter(float(tail), math.inf)
