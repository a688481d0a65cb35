"""The haar counter: running sums through noisy Haar coefficients, the default.

What: `2^h >= T` ticks. For each level j = 1..h and each block v of 2^j ticks there is the integer statistic
`D_v = (count in its left half) - (count in its right half)`, and there is the total `S`. Each gets integer Gaussian
noise once, and every running sum is a combination of them with one coefficient a level.
Why: about half the error of the tree, no state, and any tick can be computed alone.

    Symbol      Here
    h           `_levels`
    m_j         t mod 2^j
    c_j         min(m_j, 2^j - m_j) / 2^j, with c_0 = t / 2^h for S (level 0)
    n_j         c_j 2^j, an integer (for S: t); `_coefficients`
    w_j         weight of level j; sigma_j^2 = s2 / w_j; bounded horizons: 1, and 2 for S

    release(t) = h_t + sum_j c_j Z_v_j(t) + c_0 Z_0,   v_j(t) = floor(t / 2^j)

Sensitivity: an event in tick s changes, in each level, the one D_v whose block holds s, by one, and S by one.
Guarantee: neighbours differ in one event; rho = sum_j 1/(2 sigma_j^2) for each item it changes by one, for all releases
together, at every integer Renyi order a >= 2, also when the stream reacts to what was released: the shift
z -> z - C e_t that turns one world into the other is an integer vector, so given what was seen the two are a discrete
Gaussian on a coset and its shift by a vector of that coset's lattice.

Unbounded: 50 levels with w_j ~ (j + 2)^-1.2, which needs no T: the block is 2^50 ticks and t stays below 2^40. S is
noised too, as it must be; its coefficient is below 2^-10, so a weight of 2^-10 leaves it without influence.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from workers.mechanisms.accounting import check_rho_item, float_up
from workers.mechanisms.counters.noise_columns import Integers, check_tick, grown
from workers.mechanisms.frozen import Frozen
from workers.mechanisms.noise.gaussian import TABLE_VERSION, integer_gaussian, round_up_sigma_squared
from workers.mechanisms.noise.keyed import CHUNK_ROWS, NoiseStream

LONGEST_HORIZON = 1 << 40
_UNBOUNDED_LEVELS = 50
_UNBOUNDED_LAST_TICK = LONGEST_HORIZON - 1
_TOTAL = 0  # the level number of S

# A group's sum and what is carried into it stay below this, so nothing overflows int64.
_GROUP_BOUND = 1 << 62
_INT32_BOUND = 1 << 31

Cell = tuple[int, int]
Coefficients = list[tuple[int, int, Cell, int]]
Source = Callable[[int, Cell, int, int], Integers]


@dataclass(frozen=True, slots=True)
class _Step:
    """One group's part of a release: the sum of multiplier * noise over its levels, then a shift to the right."""

    terms: tuple[tuple[int, Cell, int], ...]
    addend: int
    shift: int
    dtype: type[np.int32] | type[np.int64]


class HaarCounter(Frozen):
    """See the module, and `counters.Counter` for what each member means.

    Args:
        horizon: ticks, 1..2^40; None is unbounded.
        rho_item: what it may cost, above 0.

    Raises:
        ValueError: a parameter is outside its range.
    """

    kind = "haar"

    def __init__(self, horizon: int | None, rho_item: float) -> None:
        check_rho_item(rho_item)
        if horizon is not None and not 1 <= horizon <= LONGEST_HORIZON:
            raise ValueError(f"horizon = {horizon}: must be from 1 to 2^40 ticks, or unbounded")
        self.horizon = horizon
        self._last_tick = _UNBOUNDED_LAST_TICK if horizon is None else horizon
        self._levels = _UNBOUNDED_LEVELS if horizon is None else (horizon - 1).bit_length()
        weights = _unbounded_weights() if horizon is None else _bounded_weights(self._levels)
        scale = sum(weights, Fraction(0)) / (2 * Fraction(rho_item))
        self._sigma_squared = tuple(round_up_sigma_squared(scale / weight) for weight in weights)
        self._tables = tuple(integer_gaussian(sigma_squared) for sigma_squared in self._sigma_squared)
        # The same over one denominator: sums of integers take a tenth of the time of sums of fractions.
        denominator = math.lcm(*(value.denominator for value in self._sigma_squared))
        self._over_one = tuple(int(value * denominator) for value in self._sigma_squared), denominator
        # At least 1, so that a multiplier alone fits the type its sum has.
        self._bounds = tuple(max(1, table.bound) for table in self._tables)
        self.rho_item = float_up(sum((1 / (2 * value) for value in self._sigma_squared), Fraction(0)))
        self.cells_per_event = self._levels + 1
        self.tv = float_up(sum((Fraction(table.tv) for table in self._tables), Fraction(0)))
        # No release adds more than one cell of each level, and the root.
        self.test_tv = float_up(self.cells_per_event * max(Fraction(table.test_tv) for table in self._tables))
        self._groups = self._make_groups()

    def __repr__(self) -> str:
        return f"HaarCounter(horizon={self.horizon}, rho_item={self.rho_item})"

    def variance(self, t: int) -> Fraction:
        """sum_j c_j^2 sigma_j^2."""
        numerators, denominator = self._over_one
        total = sum(
            (numerator << (self._levels - bits)) ** 2 * numerators[level]
            for level, bits, _, numerator in self._coefficients(t)
        )
        return Fraction(total, denominator << 2 * self._levels)

    def sd(self, t: int) -> float:
        """The standard deviation of the published integer.

        The noise is a multiple of 2^-k, k = h - (trailing zeros of t); rounding it adds (1 - 4^-k) / 12.
        """
        fractional_bits = self._levels - min((t & -t).bit_length() - 1, self._levels)
        return math.sqrt(self.variance(t) + (1 - Fraction(1, 4**fractional_bits)) / 12)

    def terms(self, t: int) -> list[tuple[Fraction, Fraction]]:
        """The non-zero terms (c_j, sigma_j^2)."""
        return [
            (Fraction(numerator, 1 << bits), self._sigma_squared[level])
            for level, bits, _, numerator in self._coefficients(t)
        ]

    def public(self) -> dict[str, object]:
        """Every parameter that changes a noise value."""
        return {
            "kind": self.kind,
            "horizon": self.horizon,
            "levels": self._levels,
            "sigma_squared": [str(value) for value in self._sigma_squared],
            "table_version": TABLE_VERSION,
        }

    def draw(self, stream: NoiseStream, t: int, tags: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The rounded noise of each row at t, without a cache."""
        room = [np.empty(min(CHUNK_ROWS, len(tags)), dtype=table.dtype) for table in self._tables]

        def source(level: int, cell: Cell, first: int, last: int) -> Integers:
            noise = room[level][: last - first]
            self._tables[level].draw(stream, cell, tags[first:last], noise)
            return noise

        return self._release(t, self._coefficients(t), len(tags), source)

    def columns(self, stream: NoiseStream) -> "HaarColumns":
        """A cache of this counter's noise."""
        return HaarColumns(self, stream)

    def _coefficients(self, t: int) -> Coefficients:
        """(level, bits, cell, n) for each non-zero coefficient n / 2^bits at t."""
        check_tick(self.kind, t, self._last_tick)
        found = []
        for level in range(1, self._levels + 1):
            inside = t & ((1 << level) - 1)
            if inside:
                found.append((level, level, (level, t >> level), min(inside, (1 << level) - inside)))
        found.append((_TOTAL, self._levels, (_TOTAL, 0), t))
        return found

    def _make_groups(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Consecutive levels whose sum, scaled to integers, fits int64 at every tick: (top, levels), lowest first.

        A group with top p holds sum_j n_j 2^(p - j) Z_j, an integer, over its levels. With n_j <= min(2^(j-1), last
        tick) and |Z_j| <= bound_j its size is bounded whatever the noise; a group closes before that bound passes 2^61,
        which leaves as much again for what is carried in and for the rounding constant.
        """
        groups: list[tuple[int, tuple[int, ...]]] = []
        levels: list[int] = []
        bound = 0
        for level in range(1, self._levels + 1):
            largest = min(1 << (level - 1), self._last_tick) * self._bounds[level]
            total = self._last_tick * self._bounds[_TOTAL] if level == self._levels else 0
            if levels and 2 * bound + largest + total >= _GROUP_BOUND // 2:
                groups.append((level - 1, tuple(levels)))
                levels, bound = [], 0
            levels.append(level)
            bound = 2 * bound + largest
        groups.append((self._levels, (*levels, _TOTAL)))
        return tuple(groups)

    def _steps(self, t: int, coefficients: Coefficients) -> list[_Step]:
        """The release at t as integer sums and shifts, highest group first.

        With group sums A, B, C of tops a < b < c the noise is x = A/2^a + B/2^b + C/2^c, and
        x + 1/2 = (A + 2^(a-1) + (B + C/2^(c-b)) / 2^(b-a)) / 2^a. For integers n, m >= 1 and any real y,
        floor((n + y)/m) = floor((n + floor(y))/m), so flooring each division on its own, by an arithmetic shift, gives
        floor(x + 1/2) exactly. What is carried in is at most |B| / 2^(b-a) + 1.
        """
        found = {level: (bits, cell, numerator) for level, bits, cell, numerator in coefficients}
        steps: list[_Step] = []
        carried = 0
        for index in range(len(self._groups) - 1, -1, -1):
            top, levels = self._groups[index]
            below = self._groups[index - 1][0] if index else 0
            terms = tuple(
                (level, found[level][1], found[level][2] << (top - found[level][0]))
                for level in levels
                if level in found
            )
            addend = (1 << top >> 1) if index == 0 else 0
            bound = carried + addend + sum(factor * self._bounds[level] for level, _, factor in terms)
            if bound >= 2 * _GROUP_BOUND:
                raise OverflowError(f"haar counter: a sum of {bound.bit_length()} bits at tick {t}")
            shift = top - below
            steps.append(_Step(terms, addend, shift, np.int32 if bound < _INT32_BOUND else np.int64))
            carried = (bound >> shift) + 1
        return steps

    def _release(self, t: int, coefficients: Coefficients, rows: int, source: Source) -> NDArray[np.int64]:
        """floor(x + 1/2) for each row, in chunks that stay in the cache across all levels."""
        steps = self._steps(t, coefficients)
        out = np.empty(rows, dtype=np.int64)
        narrow = (np.empty(CHUNK_ROWS, dtype=np.int32), np.empty(CHUNK_ROWS, dtype=np.int32))
        wide = (np.empty(CHUNK_ROWS, dtype=np.int64), np.empty(CHUNK_ROWS, dtype=np.int64))
        for first in range(0, rows, CHUNK_ROWS):
            last = min(first + CHUNK_ROWS, rows)
            result = out[first:last]
            for index, step in enumerate(steps):
                both = narrow if step.dtype is np.int32 else wide
                total, product = both[0][: last - first], both[1][: last - first]
                if index:
                    np.add(result, step.addend, out=total, casting="unsafe")
                else:
                    total.fill(step.addend)
                for level, cell, factor in step.terms:
                    np.multiply(source(level, cell, first, last), factor, out=product, dtype=step.dtype)
                    np.add(total, product, out=total)
                np.right_shift(total, step.shift, out=result)
        return out


class HaarColumns:
    """The noise of each level's current node, one small-integer column a level; see `counters.NoiseColumns`.

    A node of level j lasts 2^j ticks, so one tick draws about one new cell a row.
    """

    def __init__(self, counter: HaarCounter, stream: NoiseStream) -> None:
        self._counter = counter
        self._stream = stream
        self._columns: list[Integers] = [np.empty(0, dtype=table.dtype) for table in counter._tables]
        self._cells: list[Cell | None] = [None] * len(self._columns)
        self._filled = [0] * len(self._columns)

    def __repr__(self) -> str:
        return f"HaarColumns({self._counter!r})"

    @property
    def bytes_per_row(self) -> int:
        """Memory of the cache, per row in use."""
        return sum(column.dtype.itemsize for column in self._columns)

    def at(self, t: int, tags: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The rounded noise of each row at t."""
        rows = len(tags)
        due: dict[int, int] = {}
        tables, coefficients = self._counter._tables, self._counter._coefficients(t)
        for level, _, cell, _ in coefficients:
            self._columns[level] = grown(self._columns[level], rows)
            due[level] = self._filled[level] if self._cells[level] == cell else 0
            # Until this call is through, the column counts as unknown: a failure half way leaves nothing wrong behind.
            self._cells[level] = None

        def source(level: int, cell: Cell, first: int, last: int) -> Integers:
            column = self._columns[level]
            start = max(first, due[level])
            if start < last:
                tables[level].draw(self._stream, cell, tags[start:last], column[start:last])
            return column[first:last]

        released = self._counter._release(t, coefficients, rows, source)
        for level, _, cell, _ in coefficients:
            self._cells[level] = cell
            self._filled[level] = max(due[level], rows)
        return released


def _bounded_weights(levels: int) -> list[Fraction]:
    return [Fraction(2)] + [Fraction(1)] * levels


def _unbounded_weights() -> list[Fraction]:
    """(j + 2)^-1.2, and 2^-10 of their sum for S, on a grid of 2^-40 so that every machine has the same ones."""
    context = Context(prec=50)
    weights = []
    for level in range(1, _UNBOUNDED_LEVELS + 1):
        power = context.exp(context.multiply(Decimal("-1.2"), context.ln(Decimal(level + 2))))
        weights.append(Fraction(int(context.multiply(power, Decimal(1 << 40))), 1 << 40))
    return [sum(weights, Fraction(0)) / 1024, *weights]
