"""Integer noise by exact inversion of a 128-bit cumulative table: a word in, an integer out.

The number of thresholds C(x) = round(2^128 P(X <= x)) at or below the word determines the integer.
Only integers are compared, so every machine gets the same noise, and no float ever touches a
released count. Words and thresholds are in two uint64, the upper half first. A guide gives the
integer by a word's top 16 bits, or marks them as ambiguous: then all thresholds decide. Laws:
`gaussian.IntegerGaussian`, `discrete_laplace.DiscreteLaplace`, `discrete_laplace.Geometric`.
"""

import math
from collections.abc import Sequence
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_EVEN, Context
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.arrays.number_blocks import look_up
from workers.arrays.texts import readonly_contiguous
from workers.arrays.types import Longs, Tags, Words
from workers.mechanisms.noise.keyed import CHUNK_ROWS, Cell, NoiseStream
from workers.runtime.frozen import Frozen, read_only

# int16, int32 or int64, the narrowest that holds the noise.
Integers = NDArray[np.signedinteger[Any]]

WORD_BITS = 128
# Decimal's arithmetic is correctly rounded, so tables are the same everywhere; of these digits 77
# remain after the longest recurrence.
TABLE_CONTEXT = Context(prec=90, rounding=ROUND_HALF_EVEN, Emin=MIN_EMIN, Emax=MAX_EMAX)

_HALF_BITS = 64
_HALF_MASK = (1 << _HALF_BITS) - 1
# The top 16 bits alone decide most words (measured at sigma = 50: 99 in 100).
_GUIDE_BITS = 16
_GUIDE_SHIFT = np.uint64(_HALF_BITS - _GUIDE_BITS)


class InversionTable(Frozen):
    """Sampler of the integers lowest, lowest + 1, ..., `bound` the largest absolute value.

    Thresholds ascend, each above 0 and below 2^128; a word below them all gives `lowest`. `tail` is
    the law's mass that they leave out. `tv` is an upper bound on the total variation distance to
    the law: half of 2 bound + 1 values that are off by at most one unit of 2^-128 each, one unit
    for values whose threshold rounded to 0, and `tail`.
    """

    def __init__(
        self, thresholds: Sequence[int], lowest: int, tail: float = 0.0
    ) -> None:
        """Take C(lowest), C(lowest + 1), ..., ascending; `tail` is the law's mass beyond them."""
        self._lowest = lowest
        self.bound = max(abs(lowest), abs(lowest + len(thresholds)))
        # The distance from the law, as the class bounds it: at most `bound` + 2 units of 2^-128 and
        # `tail`, the mass beyond the thresholds; rounded up.
        self.tv = math.nextafter(
            math.ldexp(self.bound + 2, -WORD_BITS) + tail, math.inf
        )
        # The type's most negative value marks ambiguous top bits, so it must not be a sample.
        narrow = self.bound < 1 << 15
        self.dtype = np.dtype(np.int16) if narrow else np.dtype(np.int32)
        self._ambiguous = np.iinfo(self.dtype).min
        high = [threshold >> _HALF_BITS for threshold in thresholds]
        low = [threshold & _HALF_MASK for threshold in thresholds]
        self._high = read_only(np.array(high, dtype=np.uint64))
        self._low = read_only(np.array(low, dtype=np.uint64))
        self._guide = read_only(self._make_guide())

    def sample(self, words: Words, out: Integers) -> None:
        """Fill `out`, (n,) of `dtype`, with the noise of words (n, 2), the upper halves first."""
        guide = (self._guide, _GUIDE_SHIFT, self._ambiguous)
        thresholds = (self._high, self._low, self._lowest)
        look_up(*guide, *thresholds, readonly_contiguous(words), out)

    def draw(self, stream: NoiseStream, cell: Cell, tags: Tags, out: Integers) -> None:
        """Fill `out`, (n,) of `dtype`, with one cell's noise."""
        cells = np.array([cell], dtype=np.uint64)
        for first in range(0, len(tags), CHUNK_ROWS):
            last = first + CHUNK_ROWS
            self.sample(stream.chunk(tags[first:last], cells), out[first:last])

    def values(self, stream: NoiseStream, cell: Cell, tags: Tags) -> Longs:
        """Return one cell's noise, int64 (n,)."""
        out = np.empty(len(tags), dtype=self.dtype)
        self.draw(stream, cell, tags, out)
        return out.astype(np.int64)

    def _make_guide(self) -> Integers:
        """Return, by a word's top 16 bits, the integer, or the mark that they do not decide it.

        They decide it if no threshold begins with the same bits.
        """
        # The lowest and the highest upper half with these bits, and the thresholds before each.
        slots = np.arange(1 << _GUIDE_BITS, dtype=np.uint64) << _GUIDE_SHIFT
        rest = np.uint64((1 << (_HALF_BITS - _GUIDE_BITS)) - 1)
        first = np.searchsorted(self._high, slots, side="left")
        last = np.searchsorted(self._high, slots | rest, side="right")
        return np.where(first == last, first + self._lowest, self._ambiguous).astype(
            self.dtype
        )


def mirrored(lower: Sequence[int]) -> list[int]:
    """Return all thresholds of a law symmetric about 0 from those of its negative values."""
    return [*lower, *((1 << WORD_BITS) - threshold for threshold in reversed(lower))]


def round_up_to_grid(value: Fraction, name: str) -> Fraction:
    """Round a noise parameter up (the private side) to a grid that all machines share.

    The grid is 2^-16; below 1 it is relative, 2^-30 of a power of two below the value.
    """
    if value <= 0:
        raise ValueError(f"{name} = {value}: must be above 0")
    steps = 1 << 16
    if value < 1:
        steps = 1 << (30 + (value.denominator // value.numerator).bit_length())
    # -(-a // b) rounds up.
    return Fraction(-(-value.numerator * steps // value.denominator), steps)
