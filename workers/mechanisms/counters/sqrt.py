"""The sqrt counter: the square-root Toeplitz factorization, with an integer matrix.

What: for the few always-on counters of a declared domain. With x the counts per tick of one item,
`y = C x + z` is made private, C an integer lower triangular Toeplitz matrix and z integer Gaussian
noise; the running sums are A C^-1 y, A the matrix of all prefix sums.
Why: within 12 % of the best error of any such mechanism; O(T) state and time per item and tick, so
T is at most 2^16.

    Symbol      Here
    T           `horizon`
    f_k         binom(2k, k) / 4^k, the coefficients of (1 - x)^-1/2; (f * f)_k = 1, so f as a
                matrix squares to A
    b           `bits`
    c_k         `_column` = round(2^b f_k): C's first column, whose norm is the largest
    sigma^2     ||c||^2 / (2 rho_item), from the rounded c: the sensitivity is C's own
    g_k         (A C^-1)_k, from sum_i c_i g_(k-i) = 1; `_inverse` = round(2^F c_0 g_k)
    v, r        z = C v + r: the integer vectors with -c_0/2 <= r_t < c_0/2, computed tick by tick

    release(t) = h_t + sum_{s <= t} v_s + round(sum_{s <= t} g_(t-s) r_s),
                 g in the last sum as the integers of `_inverse`

Rounding the non-integer C^-1 first would leave an error that is not a function of y. The split is
exact: A C^-1 z = A v + A C^-1 r, with A v integer.
Sensitivity: an event in tick s adds to y column s of C, of norm at most ||c||, an integer vector.
Guarantee: neighbours differ in one event; rho = ||c||^2 / (2 sigma^2) for each item it changes by
one, for all releases together. The split is equivariant: z + C w gives v + w and the same r, for
every integer w. So the release is a function of y = C x + z alone (split y instead: v + x and r),
and rounding g and the last sum is post-processing. At integer Renyi orders the bound also holds for
streams that react to earlier releases: the shift z -> z - C e_s is an integer vector (see `haar`).
Exactness: the sums use float64 whole numbers below 2^53 (`_check_exact`), exact in any order.

Source: Fichtenberger, Henzinger, Upadhyay, "Constant Matters" and Henzinger, Upadhyay, Upadhyay,
"Almost Tight Error Bounds on Differentially Private Continual Counting" (the factorization); the
integer matrix and the split are derived here.
"""

import itertools
import math
from fractions import Fraction

import numpy as np

from workers.arrays.types import Codes, Floats, Longs, Tags
from workers.mechanisms.accounting import check_rho_item, float_up
from workers.mechanisms.counters.levels import Counter, check_tick
from workers.mechanisms.ledger import with_capacity
from workers.mechanisms.noise import gaussian
from workers.mechanisms.noise.inversion import Integers
from workers.mechanisms.noise.keyed import Cell, NoiseStream
from workers.runtime.frozen import memoized, read_only

LONGEST_HORIZON = 1 << 16
SQRT_VERSION = 1
# Level of this counter's cells, (LEVEL, tick); those of haar and tree stay below 64.
LEVEL = 1 << 8
# F: rounding of g affects the error, never privacy (tested at T <= 30: under 2^-14 of a count).
_INVERSE_BITS = 28
# A table of 0.9 million thresholds, built in about 2 s.
_LARGEST_SIGMA_SQUARED = 1 << 30
_EXACT = 1 << 53
_BLOCK_TICKS = 64
_PART_TICKS = 1024
_PART_ROWS = 2048


class SqrtCounter(Counter):
    kind = "sqrt"

    def __init__(self, horizon: int | None, rho_item: float) -> None:
        check_rho_item(rho_item)
        if horizon is None:
            raise ValueError(
                "horizon = unbounded: counter 'sqrt' needs a number of ticks; 'haar' may be unbounded"
            )
        if not 1 <= horizon <= LONGEST_HORIZON:
            raise ValueError(
                f"horizon = {horizon}: must be from 1 to {LONGEST_HORIZON} ticks with counter 'sqrt'"
            )
        self.horizon = self._last_tick = horizon
        self.bits, self._sigma_squared = _calibrate(horizon, Fraction(rho_item))
        self._column = _rounded_column(horizon, self.bits)
        self._norm_squared = _norm_squared(self._column)
        self._table = gaussian.integer_gaussian(self._sigma_squared)
        self._inverse = _rounded_inverse(horizon, self.bits)
        self.rho_item = float_up(self._norm_squared / (2 * self._sigma_squared))
        self.cells_per_event = horizon
        self.tv = float_up(horizon * Fraction(self._table.tv))
        self.test_tv = float_up(horizon * Fraction(self._table.test_tv))
        self._denominator = 1 << (_INVERSE_BITS + self.bits)
        self._integers = tuple(map(int, self._inverse.tolist()))
        self._squares = tuple(itertools.accumulate(g**2 for g in self._integers))

    def variance(self, t: int) -> Fraction:
        check_tick(self.kind, t, self._last_tick)
        return Fraction(self._squares[t - 1], self._denominator**2) * self._sigma_squared

    def sd(self, t: int) -> float:
        # 1/12 from rounding, unless the noise is an integer.
        return math.sqrt(self.variance(t) + (Fraction(1, 12) if self.bits else 0))

    def difference_sd(self, t: int, since: int) -> float:
        check_tick(self.kind, t, self._last_tick)
        if not since:
            return self.sd(t)
        check_tick(self.kind, since, self._last_tick)
        window = t - since
        common = _squares_of_differences(self._last_tick, self.bits, window)[since - 1]
        squares = self._squares[window - 1] + common
        rounding = Fraction(2, 12) if self.bits else 0
        return math.sqrt(Fraction(squares, self._denominator**2) * self._sigma_squared + rounding)

    def _cells_at(self, t: int) -> dict[Cell, int]:
        """Return the g_(t-s) of every z_s, s = t..1, up to their rounding to 2^-F."""
        check_tick(self.kind, t, self._last_tick)
        return {(LEVEL, t - k): g for k, g in enumerate(self._integers[:t])}

    def _variance_of(self, level: int) -> Fraction:
        return self._sigma_squared

    def _shape(self) -> dict[str, object]:
        return {
            "bits": self.bits,
            "inverse_bits": _INVERSE_BITS,
            "norm_squared": self._norm_squared,
            "sigma_squared": str(self._sigma_squared),
        }

    def public(self) -> dict[str, object]:
        return super().public() | {"sqrt_version": SQRT_VERSION}

    def columns(self, stream: NoiseStream) -> "SqrtColumns":
        return SqrtColumns(self, stream)


class SqrtColumns:
    """v and r of every row: O(t) per row and tick; a new row at t = 2^16: 2^31 multiplications."""

    def __init__(self, counter: SqrtCounter, stream: NoiseStream) -> None:
        self._counter, self._stream = counter, stream
        self._ranges: list[_Range] = []

    @property
    def bytes_per_row(self) -> int:
        return 8 * self._counter._last_tick  # 4 bytes of v and 4 of r per tick

    def at(self, t: int, tags: Tags) -> Longs:
        check_tick(self._counter.kind, t, self._counter._last_tick)
        rows = len(tags)
        held = self._ranges[-1].stop if self._ranges else 0
        for start in range(held, rows, _PART_ROWS):
            self._ranges.append(_Range(start, min(start + _PART_ROWS, rows)))
        out = np.empty(rows, dtype=np.int64)
        for part in self._ranges:
            stop = min(part.stop, rows)
            if part.start >= stop:
                break
            if part.made < t:
                if part.stop > rows:
                    # Fewer rows than held: compute only these and discard them.
                    part = _Range(part.start, stop)
                part.advance(self._counter, self._stream, t, tags[part.start : part.stop])
            out[part.start : stop] = part.release(self._counter, t)[: stop - part.start]
        return out


class _Range:
    """The split noise of consecutive rows; only complete ticks count as made."""

    def __init__(self, start: int, stop: int) -> None:
        self.start, self.stop = start, stop
        self.made = 0
        self._v: Codes = np.empty((0, stop - start), dtype=np.int32)
        self._r = self._v

    def advance(self, counter: SqrtCounter, stream: NoiseStream, t: int, tags: Tags) -> None:
        self._v, self._r = (with_capacity(held, t) for held in (self._v, self._r))
        column, half, total = counter._column, counter._column[0] / 2, float(counter._column.sum())
        rows = self.stop - self.start
        noise: Integers = np.empty(rows, dtype=counter._table.dtype)
        while self.made < t:
            first, last = self.made, min(t, self.made + _BLOCK_TICKS)
            before = _convolved(column, self._v, first, first, last)
            for tick in range(first, last):
                counter._table.draw(stream, (LEVEL, tick + 1), tags, noise)
                rest = noise - before[tick - first]
                v = np.floor((rest + half) / column[0])  # exact: c_0 is a power of two
                largest = float(np.max(np.abs(v), initial=0.0))
                if largest >= 1 << 31:
                    raise OverflowError(f"sqrt counter: a part of {largest:.3g} is above 2^31")
                _check_exact(largest * total * 2)
                self._v[tick], self._r[tick] = v, rest - column[0] * v
                if tick + 1 < last:
                    before[tick + 1 - first :] += column[1 : last - tick, None] * v
            self.made = last

    def release(self, counter: SqrtCounter, t: int) -> Longs:
        whole = self._v[:t].sum(axis=0, dtype=np.int64)
        fraction = _convolved(counter._inverse, self._r, t, t - 1, t)[0].astype(np.int64)
        shift = _INVERSE_BITS + counter.bits
        rounded: Longs = whole + ((fraction + (1 << shift >> 1)) >> shift)
        return rounded


def _convolved(kernel: Floats, held: Codes, ticks: int, first: int, last: int) -> Floats:
    """Return sum_{s < ticks} kernel_(i - s) held_s, i = first..last-1 (ticks <= i + 1), by rows."""
    out = np.zeros((last - first, held.shape[1]))
    at = np.arange(first, last)[:, None]
    for start in range(0, ticks, _PART_TICKS):
        stop = min(start + _PART_TICKS, ticks)
        out += kernel[at - np.arange(start, stop)[None, :]] @ held[start:stop].astype(np.float64)
    return out


@memoized(16)
def _squares_of_differences(horizon: int, bits: int, window: int) -> tuple[int, ...]:
    """Return sum (g_k - g_(k - window))^2 over window <= k < window + s, for s = 1, 2, ..."""
    inverse = list(map(int, _rounded_inverse(horizon, bits).tolist()))
    steps = zip(inverse[window:], inverse, strict=False)
    return tuple(itertools.accumulate((later - earlier) ** 2 for later, earlier in steps))


def _check_exact(bound: float) -> None:
    if bound >= _EXACT:
        raise OverflowError(f"sqrt counter: a sum of {bound:.3g} is above 2^53")


def _calibrate(horizon: int, rho_item: Fraction) -> tuple[int, Fraction]:
    """Return b and sigma^2: c as fine as the error needs, coarser if a table would be too large.

    Rounding c adds T/12 to sum g_k^2 (first order, in units of 4^b): under 1/48 if 2^b >= 2
    sqrt(T).
    """
    bits = (horizon.bit_length() + 1) // 2 + 1
    while True:
        norm_squared = _norm_squared(_rounded_column(horizon, bits))
        sigma_squared = gaussian.round_up_sigma_squared(norm_squared / (2 * rho_item))
        if sigma_squared <= _LARGEST_SIGMA_SQUARED or bits == 0:
            return bits, sigma_squared
        bits -= 1


def _norm_squared(column: Floats) -> int:
    return sum(value * value for value in column.astype(np.int64).tolist())


@memoized(16)
def _rounded_column(horizon: int, bits: int) -> Floats:
    """Return round(2^b f_k), k < T; f_k is kept to 2^-96, rounded down k times: off by < 2^-79."""
    value, column = 1 << 96, []
    for k in range(horizon):
        column.append((value + (1 << (95 - bits))) >> (96 - bits))
        value = value * (2 * k + 1) // (2 * k + 2)
    return read_only(np.array(column, dtype=np.float64))


@memoized(4)
def _rounded_inverse(horizon: int, bits: int) -> Floats:
    """Return round(2^F c_0 g_k), each from the rounded ones before."""
    column = _rounded_column(horizon, bits)
    inverse = np.zeros(horizon)
    one, backwards = column[0] * 2.0**_INVERSE_BITS, column[:0:-1].copy()
    for k in range(horizon):
        rest = one - float(backwards[horizon - 1 - k :] @ inverse[:k])
        inverse[k] = np.floor(rest / column[0] + 0.5)
    # The first check bounds every partial sum above, the second those of a release (|r| <= c_0/2).
    largest = float(np.abs(inverse).sum())
    _check_exact(one + float(column @ np.abs(inverse)[::-1]))
    _check_exact(largest * float(column[0]))
    return read_only(inverse)
