"""Standard normal numbers from pseudorandom words, with a proved error, or as exact as asked.

A node's words are the digits of a real number: the lowest bit of the first word is the sign (1:
negative), its other 63 bits are v, and further words are the 64-bit digits after them. The number
is z = +-Q^-1(p) with p in [v, v + 1] / 2^64, which lies in (0, 1/2). Words come two in a cell of
noise, its halves 0 and 1.

    Q          1 - Phi; Q(z) = 1/2 - phi(z) (z + z^3 / 3 + z^5 / (3 5) + ...), all terms positive
    phi        density; d/dp Q^-1(p) = -1 / phi(z)
    P_n        d^(n+1)/dp^(n+1) Q^-1 = (-1)^(n+1) P_n(z) / phi(z)^(n+1), with P_0 = 1 and
               P_n = P_(n-1)' + n z P_(n-1): the coefficients are not negative
    part       1/64 of an octave [2^e, 2^(e+1)) of v, of width w as a probability

`table` has the Taylor polynomials of degree 6 about the parts' centers, for v >= 2^33. Of the
number that a polynomial of degree n gives:
- the remainder is at most P_n(z_1) / phi(z_1)^(n+1) (w / 2)^(n+1) / (n+1)! for a part's largest
  z_1 (every factor grows with z): largest for degree 3 2^-31.3, for degree 6 2^-50;
- v as a float is off by a relative 2^-53, and p / phi <= 1.26; the digits after v add at most
  1 / (v z), for p / phi <= 1 / z (Mills's ratio);
- the coefficients and Horner's scheme, rounded once each: the constant |z| <= 6.4, the others below
  0.03 together: at most (2 |z| + 0.1) 2^-53 (1 + 2^-40) < 13 2^-53.
In sum at most ROUGH_ERROR for degree 3 (`rough`) and v >= ROUGH_LEAST, FINE_ERROR for degree 6
(`fine`) and v >= FINE_LEAST, and |z| <= LARGEST.

Counters add up rough numbers in fixed point, whole units of 2^-point, for speed: `decide` rounds a
sum to a whole number where its error cannot change that, and lists the other rows, which are drawn
exactly.
"""

import math
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, getcontext, localcontext
from fractions import Fraction
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.arrays.compiled import kernel, kernel_inline
from workers.arrays.types import Floats, Longs, Words
from workers.runtime.frozen import memoized, read_only

# Incremented whenever the same words would give another number; part of every mechanism id.
VERSION = 1

ROUGH_ERROR = 2.0**-31
ROUGH_LEAST = 1 << 33
FINE_ERROR = 2.0**-42
FINE_LEAST = 1 << 40
LARGEST = 6.4

# int32 or int64.
Numbers = NDArray[np.signedinteger[Any]]

_DIGITS = 40
LEAST_BITS = 33
PART_BITS = 6
DEGREE = 6
# The column of a part's center; the others are coefficients. A row of 8 numbers is a cache line.
CENTER = DEGREE + 1
_ROWS = (63 - LEAST_BITS << PART_BITS) + 1


@memoized(1)
def table() -> Floats:
    """Return z's Taylor polynomial in v by part, a row each: coefficients of degree 0..6, center.

    Parts are those of 30 octaves, 64 each, and one more for v = 2^63.
    """
    polynomials = _derivatives(DEGREE)
    rows = np.zeros((_ROWS, CENTER + 1))
    with localcontext(_context(_DIGITS)):
        for row in range(_ROWS):
            center = part(row)[1]
            # One step of Newton's method squares the error of a float: far below that of doubles.
            z, density = _newton(center, 1)
            # dz / dv.
            step = -1 / (density * (1 << 64))
            rows[row, :CENTER] = list(map(float, _taylor(polynomials, z, step)))
            rows[row, CENTER] = float(center * (1 << 64))
    return read_only(rows)


def part(row: int) -> tuple[Decimal, Decimal]:
    """Return width and center, as probabilities, of the part that a row of `table` is for.

    Every octave of v, from 2^LEAST_BITS on, has 2^PART_BITS parts of equal width.
    """
    octave, index = divmod(row, 1 << PART_BITS)
    with localcontext(_context(_DIGITS)):
        width = Decimal(2) ** (octave + LEAST_BITS - PART_BITS - 64)
        return width, width * ((1 << PART_BITS) + index + Decimal("0.5"))


def inverse(p: Fraction, digits: int) -> Decimal:
    """Return z with |z - Q^-1(p)| <= 10^-digits, for 0 < p <= 1/2; proved by Q at both ends."""
    # A p of many bits may be as small as 2^-bits: digits for it too (0.302 > log10 2).
    bits = p.denominator.bit_length() + 1
    precision = digits + 12 + math.ceil(bits * 0.302)
    # Newton's method begins with 14 digits, and every step doubles them.
    steps = math.ceil(math.log2((digits + 30) / 14))
    with localcontext(_context(precision)):
        exact = Decimal(p.numerator) / p.denominator
        z = _newton(exact, steps)[0]
        small = Decimal(1).scaleb(-digits)
        # More than `_tail` is off by. Q falls, so Q^-1(p) lies between the two if Q is above p at
        # the lower one and below p at the upper.
        slack = Decimal(1).scaleb(7 - precision)
        lower = z - small
        upper = z + small
        is_above = _tail(lower, _density(lower)) >= exact + slack
        is_below = _tail(upper, _density(upper)) <= exact - slack
    if not (is_above and is_below):
        raise ArithmeticError(f"Q^-1({p}): {z} is not proved to {digits} digits")
    return z


@memoized(4096)
def quantile_up(p: float) -> float:
    """Return a float of at least Q^-1(p), within 1e-15 of it, for 1e-300 <= p <= 1/2."""
    # Near 0, floats are closer together than the error of 18 digits. The sum covers that error, and
    # the next float covers the rounding of the sum.
    return math.nextafter(float(inverse(Fraction(p), 18)) + 1e-17, math.inf)


def rounded_variance(variance: float) -> float:
    """Return the variance of floor(N + 1/2), within 1e-7, for a normal N; `variance` is above 0."""
    if variance > 1:
        return variance + 1 / 12
    scale = math.sqrt(2 * variance)
    # E n^2 = sum of (2 n - 1) P(|N| >= n - 1/2) over n >= 1. Terms from n = 9 on, 8.5 sd and more,
    # are negligible.
    return sum((2 * n - 1) * math.erfc((n - 0.5) / scale) for n in range(1, 9))


def _derivatives(degree: int) -> list[list[int]]:
    """Return the coefficients of P_0 .. P_(degree - 1), lowest power first."""
    polynomials = [[1]]
    for n in range(1, degree):
        last = polynomials[-1]
        # P_(n-1)', and n z P_(n-1), which has one power more than P_(n-1).
        slope = [*(i * value for i, value in enumerate(last) if i), 0, 0]
        raised = [0, *(n * value for value in last)]
        polynomials.append([a + b for a, b in zip(raised, slope, strict=False)])
    return polynomials


# In the current context, from here on.
def _taylor(polynomials: list[list[int]], z: Decimal, step: Decimal) -> list[Decimal]:
    """Return Taylor coefficients: z, and P_(n-1)(z) step^n / n! for n = 1, 2, ..., `polynomials`.

    `step` is by how much z rises for each unit of v, at the center.
    """
    terms = [z]
    factor = Decimal(1)
    for n, polynomial in enumerate(polynomials, start=1):
        factor = factor * step / n
        # Horner's scheme.
        value = Decimal(0)
        for coefficient in reversed(polynomial):
            value = value.fma(z, coefficient)
        terms.append(value * factor)
    return terms


def _newton(p: Decimal, steps: int) -> tuple[Decimal, Decimal]:
    """Return Q^-1(p) and phi there: the float's error, 10^-16, is squared in every step."""
    z = Decimal(-NormalDist().inv_cdf(float(p)))
    density = Decimal(0)
    change = Decimal(0)
    for _ in range(steps):
        density = _density(z)
        change = (_tail(z, density) - p) / density
        z += change
    return z, density * (1 - z * change)  # phi' = -z phi


def _tail(z: Decimal, density: Decimal) -> Decimal:
    """Return Q(z), off by at most 10^(6 - digits of the context) for |z| < 40.

    `density` is phi(z).
    """
    square = z * z
    least = Decimal(1).scaleb(-getcontext().prec)
    term = z
    total = z
    n = 1
    # Small terms may still grow while n < z^2.
    while abs(term) >= least or n < square:
        n += 2
        term = term * square / n
        total += term
    return Decimal("0.5") - density * total


def _density(z: Decimal) -> Decimal:
    return (z * z / -2).exp() / _root_of_two_pi(getcontext().prec)


@memoized(64)
def _root_of_two_pi(digits: int) -> Decimal:
    """Return sqrt(2 pi) to `digits` digits and some more, by Machin's formula, in integers."""
    # Ten digits more, for what the divisions below cut off.
    one = 10 ** (digits + 10)

    def arctan_of_inverse(n: int) -> int:
        """Return arctan(1 / n) = 1 / n - 1 / (3 n^3) + 1 / (5 n^5) - ..., in units of 1 / `one`."""
        power = one // n
        total = 0
        k = 1
        while power:
            total += power // k if k % 4 == 1 else -(power // k)
            power //= n * n
            k += 2
        return total

    pi = 4 * (4 * arctan_of_inverse(5) - arctan_of_inverse(239))
    # With room for all digits of pi; the root gets a few more than asked for.
    context = _context(digits + 15)
    return _context(digits + 5).sqrt(Decimal(2 * pi).scaleb(-digits - 10, context))


def _context(digits: int) -> Context:
    return Context(prec=digits, Emin=MIN_EMIN, Emax=MAX_EMAX)


# A double v has 11 bits of exponent, 1023 more than the octave, and 52 of fraction: the exponent
# and the first 6 bits of the fraction number the parts.
_REST_BITS = 52 - PART_BITS
_FIRST_PART = (1023 + LEAST_BITS) << PART_BITS
_ONE = np.uint64(1)
_SIGN_SHIFT = np.uint64(63)
# Of `decide`: rows that are tested together.
_GROUP_ROWS = 64
_ZERO = np.uint64(0)
# The least words that `rough` and `fine` take, 2 v; words below have no bit from _ROUGH_BITS on.
_ROUGH_BITS = np.uint64(ROUGH_LEAST.bit_length())
_ROUGH_LEAST = np.uint64(2 * ROUGH_LEAST)
_FINE_LEAST = np.uint64(2 * FINE_LEAST)


@kernel_inline
def rough(word: np.uint64, table: Floats) -> float:
    """Return a word's z within `ROUGH_ERROR`, from the terms of its polynomial up to degree 3.

    The word's v is at least ROUGH_LEAST: below it there is no row, and nothing is checked.
    """
    v = np.float64(np.int64(word >> _ONE))
    # The part of v: the highest bits of the double.
    row = (v.view(np.int64) >> _REST_BITS) - _FIRST_PART
    x = v - table[row, CENTER]
    z = table[row, 3]
    z = z * x + table[row, 2]
    z = z * x + table[row, 1]
    z = z * x + table[row, 0]
    # The word's lowest bit becomes the sign of z. No mask and no branch: LLVM's code for a mask
    # waits for the number before (14 ns), and a branch on a random sign is mispredicted half the
    # time.
    return np.uint64(np.float64(z).view(np.uint64) ^ (word << _SIGN_SHIFT)).view(
        np.float64
    )


@kernel_inline
def fine(word: np.uint64, table: Floats) -> float:
    """Return a word's z within `FINE_ERROR`, from all terms of its polynomial.

    The word's v is at least FINE_LEAST: below it the error is larger, and far below there is no
    row.
    """
    v = np.float64(np.int64(word >> _ONE))
    # The part of v: the highest bits of the double.
    row = (v.view(np.int64) >> _REST_BITS) - _FIRST_PART
    x = v - table[row, CENTER]
    z = table[row, DEGREE]
    for n in range(DEGREE - 1, -1, -1):
        z = z * x + table[row, n]
    # The word's lowest bit becomes the sign of z.
    return np.uint64(np.float64(z).view(np.uint64) ^ (word << _SIGN_SHIFT)).view(
        np.float64
    )


@kernel
def raise_small(words: Words, rows: Longs) -> int:
    """Raise words (n, 2) too small for `rough`; return how many rows, listed in `rows`.

    `rough` would read beyond its table for them. Raised, it gives a wrong number, so the caller
    draws the listed rows in another way. `rows` has room for n.
    """
    # A word is too small with probability 2^-30, so there is usually none: a quick look first.
    flat = words.reshape(-1)
    small = 0
    for i in range(len(flat)):  # vectorized
        small += int(flat[i] >> _ROUGH_BITS == _ZERO)
    if small == 0:
        return 0
    small = 0
    for i in range(len(words)):
        if min(words[i, 0], words[i, 1]) < _ROUGH_LEAST:
            words[i, 0] |= _ROUGH_LEAST
            words[i, 1] |= _ROUGH_LEAST
            rows[small] = i
            small += 1
    return small


@kernel
def add_fine(
    words: Words, halves: Longs, factors: Floats, table: Floats, out: Floats
) -> None:
    """Add the parts of some nodes to the noise of n rows, `out` (n,), in floats.

    Node k has the words words[k, :, halves[k]] of `words` (nodes, n, 2), as a cell has two nodes,
    and the factor factors[k] for their numbers z. A row becomes NaN, and stays so, where one of its
    words is too small for `fine`.
    """
    for k in range(len(factors)):
        for i in range(len(out)):
            word = words[k, i, halves[k]]
            if word < _FINE_LEAST:
                out[i] = np.nan
            else:
                out[i] += factors[k] * fine(word, table)


@kernel
def decide(
    values: Numbers, point: int, error: int, out: Longs, open_rows: Longs
) -> int:
    """Write numbers x to `out` rounded, floor(x + 1/2).

    They are `values` in units of 2^-point, off by at most `error` units. Return how many rows the
    error leaves undecided, listed in `open_rows`, which has room for one row more than `out`. A row
    is undecided if x + 1/2 is within the error of a whole number, on either side: shifted up by the
    error, its fraction is at most twice that.
    """
    undecided = 0
    # 1/2 in units; 0 where units are whole numbers.
    half = (1 << point) >> 1
    mask = (1 << point) - 1
    for first in range(0, len(out), _GROUP_ROWS):
        last = min(first + _GROUP_ROWS, len(out))
        # Count a group's undecided rows first, without a branch: most groups have none.
        close = 0
        for i in range(first, last):  # vectorized
            value = np.int64(values[i]) + half
            out[i] = value >> point
            close += int(((value + error) & mask) <= 2 * error)
        # Also without a branch: every row is written, and overwritten by the next unless undecided.
        for i in range(first, last if close else first):
            open_rows[undecided] = i
            undecided += int(((np.int64(values[i]) + half + error) & mask) <= 2 * error)
    return undecided


@kernel
def decide_difference(
    ends: Longs, begins: Longs, point: int, error: int, out: Longs, open_rows: Longs
) -> int:
    """Write the differences x = `ends` - `begins` to `out` rounded, floor(x + 1/2).

    They are in units of 2^-point, and off by at most `error` units. Return how many rows the error
    leaves undecided, listed in `open_rows`, which has room for one row more than `out`: those with
    x + 1/2 within the error of a whole number. As `decide`, without an array of differences.
    """
    undecided = 0
    # 1/2 in units; 0 where units are whole numbers.
    half = (1 << point) >> 1
    mask = (1 << point) - 1
    for first in range(0, len(out), _GROUP_ROWS):
        last = min(first + _GROUP_ROWS, len(out))
        # Count a group's undecided rows first, without a branch: most groups have none.
        close = 0
        for i in range(first, last):  # vectorized
            value = ends[i] - begins[i] + half
            out[i] = value >> point
            close += int(((value + error) & mask) <= 2 * error)
        # Also without a branch: every row is written, and overwritten by the next unless undecided.
        for i in range(first, last if close else first):
            open_rows[undecided] = i
            value = ends[i] - begins[i] + half
            undecided += int(((value + error) & mask) <= 2 * error)
    return undecided


@kernel
def add_rough(
    words: Words, half: int, scale: float, table: Floats, out: Numbers
) -> None:
    """Add a node's part to the noise of n rows, `out` (n,), in units.

    That is z times `scale`, the node's standard deviation in units, cut to a whole number. The
    node's words are words[:, half] of (n, 2), none too small for `rough` (see `raise_small`).
    """
    for i in range(len(out)):
        out[i] = out[i] + np.int64(rough(words[i, half], table) * scale)
