"""The haar counter, the default: running sums through noisy Haar coefficients.

What: `2^h >= T` ticks. Every level j = 1..h has, for every block v of 2^j ticks, the integer
statistic `D_v = (count in its left half) - (count in its right half)`; on top is the total `S`.
Each gets integer Gaussian noise once, and every running sum is a combination of them with one
coefficient per level.
Why: about half the error of the tree, no state, and any tick can be computed alone.

    Symbol      Here
    h           `_levels`
    o           `offset`, ticks before tick 1 that are part of the tree and hold no event: 0, or
                2^h - T where an end_share is given
    p           t + o, the place of tick t in the tree
    m_j         p mod 2^j
    c_j         min(m_j, 2^j - m_j) / 2^j, with c_0 = p / 2^h for S (level 0)
    n_j         c_j 2^j, an integer (for S: p); `_coefficients`
    w_j         weight of level j; sigma_j^2 = s2 / w_j; bounded horizons: 1, and 2 for S; with an
                end_share e: e for S, and (1 - e) / h for each level

    release(t) = h_t + sum_j c_j Z_v_j(t) + c_0 Z_0,   v_j(t) = floor(p / 2^j)

The end of an epoch: with o = 2^h - T the last tick is the root of the tree, all c_j are 0 but
c_0 = 1, and its noise is Z_0 alone, an integer of variance 1 / (2 rho_item e). Any share e above
2 / (h + 2) is taken from the levels.

Sensitivity: an event in tick s changes, in each level, the one D_v whose block holds s, by one, and
S by one, wherever the tree begins.
Guarantee: neighbours differ in one event; rho = sum_j 1/(2 sigma_j^2) for each item it changes by
one, for all releases together, at every integer Renyi order a >= 2, also when the stream reacts to
earlier releases: the shift z -> z - C e_t between the two worlds is an integer vector, so given the
releases the two are a discrete Gaussian on a coset and its shift by a vector of that coset's
lattice.

Unbounded: 50 levels with w_j ~ (j + 2)^-1.2, which needs no T: the block is 2^50 ticks and t stays
below 2^40. S is noised too, as it must be; its coefficient is below 2^-10, so a weight of 2^-10
leaves it without influence.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from workers.mechanisms.counters.levels import (
    Cell,
    Integers,
    LevelColumns,
    LevelCounter,
    check_tick,
    tick_block,
    with_row_capacity,
)
from workers.mechanisms.noise.keyed import CHUNK_ROWS, NoiseStream
from workers.runtime.frozen import memoized, read_only

_UNBOUNDED_LEVELS = 50
_TOTAL = 0  # the level number of S

# A group's sum and its carry stay below this, so nothing overflows int64.
_GROUP_BOUND = 1 << 62
_INT32_BOUND = 1 << 31

Coefficients = list[tuple[int, int, Cell, int]]
# Noise by level for some rows, one array per width: int16 and int32, (levels, at least rows) each.
Room = tuple[Integers, Integers]
# Returns the noise of rows first..last-1 of one chunk.
Source = Callable[[int, int], Room]
_WIDTHS = (np.dtype(np.int16), np.dtype(np.int32))


@dataclass(frozen=True, slots=True)
class _Plan:
    """Arrays for summing the noise of a tick; `number_blocks.add_up` documents them.

    Attributes:
        levels, nodes: of every cell with a non-zero coefficient.
    """

    levels: tuple[int, ...]
    nodes: tuple[int, ...]
    terms: NDArray[np.int64]
    sums: NDArray[np.int64]


class HaarCounter(LevelCounter):
    """Counter of Haar coefficients; see the module, and `levels.LevelCounter` for the arguments.

    `end_share` is the share of rho_item for the last tick's noise, above 0 and below 1. If None,
    the tree begins at tick 1, and its root has twice the weight of a level.
    """

    kind = "haar"

    def __init__(
        self, horizon: int | None, rho_item: float, end_share: float | None = None
    ) -> None:
        self.end_share = end_share
        if end_share is not None and not 0 < end_share < 1:
            raise ValueError(f"end_share = {end_share}: must be a number above 0 and below 1")
        if end_share is not None and horizon is None:
            raise ValueError(f"end_share = {end_share}: an unbounded horizon has no last tick")
        super().__init__(horizon, rho_item)
        self._levels = self.cells_per_event - 1
        self.offset = 0 if end_share is None else (1 << self._levels) - self._last_tick
        self._end = self.offset + self._last_tick
        self._groups = self._make_groups()
        # Levels with noise of the same width share an array, one row per level.
        of_width = [
            [level for level, table in enumerate(self._tables) if table.dtype == width]
            for width in _WIDTHS
        ]
        self._levels_of = tuple(map(tuple, of_width))
        place = {
            level: (w, row) for w, levels in enumerate(of_width) for row, level in enumerate(levels)
        }
        self._places = tuple(place[level] for level in range(len(self._tables)))

    def __repr__(self) -> str:
        share = "" if self.end_share is None else f", end_share={self.end_share}"
        return f"HaarCounter(horizon={self.horizon}, rho_item={self.rho_item}{share})"

    def _weights(self) -> list[Fraction]:
        if self.horizon is not None:
            levels = (self.horizon - 1).bit_length()
            if self.end_share is None or not levels:
                return [Fraction(2)] + [Fraction(1)] * levels
            # The decimal value from the settings: 0.6 is exactly six tenths.
            share = Fraction(repr(self.end_share))
            return [share] + [(1 - share) / levels] * levels
        # (j + 2)^-1.2, and 2^-10 of their sum for S, on a grid of 2^-40, the same on every machine.
        context = Context(prec=50)
        weights = []
        for level in range(1, _UNBOUNDED_LEVELS + 1):
            power = context.exp(context.multiply(Decimal("-1.2"), context.ln(Decimal(level + 2))))
            weights.append(Fraction(int(context.multiply(power, Decimal(1 << 40))), 1 << 40))
        return [sum(weights, Fraction(0)) / 1024, *weights]

    def _cells_of_a_tick(self) -> int:
        return self.cells_per_event

    def variance(self, t: int) -> Fraction:
        numerators, denominator = self._over_one
        total = sum(
            (numerator << (self._levels - bits)) ** 2 * numerators[level]
            for level, bits, _, numerator in self._coefficients(t)
        )
        return Fraction(total, denominator << 2 * self._levels)

    def sd(self, t: int) -> float:
        # A multiple of 2^-k, k = h - (trailing zeros of p): rounding adds (1 - 4^-k) / 12.
        place = t + self.offset
        fractional_bits = self._levels - min((place & -place).bit_length() - 1, self._levels)
        variance, whole = self.variance(t), 12 << 2 * fractional_bits
        # One integer division rounds like a fraction; summing fractions takes five times as long.
        total = variance.numerator * whole + ((1 << 2 * fractional_bits) - 1) * variance.denominator
        return math.sqrt(total / (variance.denominator * whole))

    @property
    def _denominator(self) -> int:
        return 1 << self._levels

    def _cells_at(self, t: int) -> dict[Cell, int]:
        return {
            cell: numerator << (self._levels - bits)
            for _, bits, cell, numerator in self._coefficients(t)
        }

    def _shape(self) -> dict[str, object]:
        end = (
            {}
            if self.end_share is None
            else {"offset": self.offset, "end_share": repr(self.end_share)}
        )
        return {"levels": self._levels, **end}

    def draw(self, stream: NoiseStream, t: int, tags: NDArray[np.uint64]) -> NDArray[np.int64]:
        plan, tables = _plan(self, t), self._tables
        room = self._room(min(CHUNK_ROWS, len(tags)))

        def source(first: int, last: int) -> Room:
            for level, node in zip(plan.levels, plan.nodes, strict=True):
                width, row = self._places[level]
                tables[level].draw(
                    stream, (level, node), tags[first:last], room[width][row, : last - first]
                )
            return room

        return _added_up(plan, len(tags), source)

    def _room(self, rows: int) -> Room:
        narrow, wide = (
            np.empty((len(levels), rows), dtype=width)
            for width, levels in zip(_WIDTHS, self._levels_of, strict=True)
        )
        return narrow, wide

    def columns(self, stream: NoiseStream) -> "HaarColumns":
        return HaarColumns(self, stream)

    def _coefficients(self, t: int) -> Coefficients:
        """Return (level, bits, cell, n) for every non-zero coefficient n / 2^bits at t."""
        check_tick(self.kind, t, self._last_tick)
        place, found = t + self.offset, []
        for level in range(1, self._levels + 1):
            inside = place & ((1 << level) - 1)
            if inside:
                found.append(
                    (level, level, (level, place >> level), min(inside, (1 << level) - inside))
                )
        found.append((_TOTAL, self._levels, (_TOTAL, 0), place))
        return found

    def _make_groups(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Group levels whose sum, as an integer, fits int64; return (top, levels), lowest first.

        A group with top p holds sum_j n_j 2^(p - j) Z_j, an integer, over its levels. With n_j <=
        min(2^(j-1), last place) and |Z_j| <= reach_j its size is bounded whatever the noise. A
        group closes before that bound exceeds 2^61, which leaves as much again for the carry and
        the rounding constant.
        """
        groups: list[tuple[int, tuple[int, ...]]] = []
        levels: list[int] = []
        bound = 0
        for level in range(1, self._levels + 1):
            largest = min(1 << (level - 1), self._end) * self._reach[level]
            total = self._end * self._reach[_TOTAL] if level == self._levels else 0
            if levels and 2 * bound + largest + total >= _GROUP_BOUND // 2:
                groups.append((level - 1, tuple(levels)))
                levels, bound = [], 0
            levels.append(level)
            bound = 2 * bound + largest
        groups.append((self._levels, (*levels, _TOTAL)))
        return tuple(groups)

    def _planned(self, t: int) -> _Plan:
        """Return the release at t as integer sums and shifts, highest group first.

        With group sums A, B, C of tops a < b < c the noise is x = A/2^a + B/2^b + C/2^c, and x +
        1/2 = (A + 2^(a-1) + (B + C/2^(c-b)) / 2^(b-a)) / 2^a. For integers n, m >= 1 and any real
        y, floor((n + y)/m) = floor((n + floor(y))/m), so flooring every division on its own, by an
        arithmetic shift, gives floor(x + 1/2) exactly. The carry is at most |B| / 2^(b-a) + 1.
        """
        coefficients = self._coefficients(t)
        found = {level: (bits, numerator) for level, bits, _, numerator in coefficients}
        terms: list[tuple[int, int, int]] = []
        sums: list[tuple[int, int, int, bool]] = []
        carried = 0
        for index in range(len(self._groups) - 1, -1, -1):
            top, levels = self._groups[index]
            below = self._groups[index - 1][0] if index else 0
            addend = (1 << top >> 1) if index == 0 else 0
            bound = carried + addend
            for level in levels:
                if level in found:
                    bits, numerator = found[level]
                    factor = numerator << (top - bits)
                    bound += factor * self._reach[level]
                    terms.append((*self._places[level], factor))
            if bound >= 2 * _GROUP_BOUND:
                raise OverflowError(f"haar counter: a sum of {bound.bit_length()} bits at tick {t}")
            shift = top - below
            sums.append((len(terms), addend, shift, bound < _INT32_BOUND))
            carried = (bound >> shift) + 1
        return _Plan(
            tuple(cell[0] for _, _, cell, _ in coefficients),
            tuple(cell[1] for _, _, cell, _ in coefficients),
            read_only(np.array(terms, dtype=np.int64)),
            read_only(np.array(sums, dtype=np.int64)),
        )


def _plan(counter: HaarCounter, t: int) -> _Plan:
    """Return a tick's plan, cached for owner partitions and histograms with equal counters."""
    check_tick(counter.kind, t, counter._last_tick)
    ticks = tick_block(t, counter._last_tick)
    return _plans(counter, ticks)[t - ticks.start]


@memoized(64)
def _plans(counter: HaarCounter, ticks: range) -> tuple[_Plan, ...]:
    return tuple(map(counter._planned, ticks))


def _added_up(plan: _Plan, rows: int, source: Source) -> NDArray[np.int64]:
    """Return floor(x + 1/2) of every row, in chunks that stay in the cache for all levels."""
    from workers.arrays.number_blocks import TILE_ROWS, add_up

    out, short = np.empty(rows, dtype=np.int64), np.empty(TILE_ROWS, dtype=np.int32)
    for first in range(0, rows, CHUNK_ROWS):
        last = min(first + CHUNK_ROWS, rows)
        add_up(*source(first, last), plan.terms, plan.sums, short, out[first:last])
    return out


class HaarColumns(LevelColumns):
    """The noise of every level's current node, in blocks of CHUNK_ROWS rows.

    A node of level j lasts 2^j ticks, so one tick draws about one new cell per row.
    """

    def __init__(self, counter: HaarCounter, stream: NoiseStream) -> None:
        super().__init__(counter, stream)
        self._counter = counter
        self._blocks: list[Room] = []
        self._cells: list[Cell | None] = [None] * len(self._tables)

    @property
    def bytes_per_row(self) -> int:
        return sum(table.dtype.itemsize for table in self._tables)

    def at(self, t: int, tags: NDArray[np.uint64]) -> NDArray[np.int64]:
        rows = len(tags)
        plan = _plan(self._counter, t)
        due: list[tuple[int, Cell, int]] = []
        for cell in zip(plan.levels, plan.nodes, strict=True):
            level = cell[0]
            held = self._filled[level] if self._cells[level] == cell else 0
            if held < rows:
                due.append((level, cell, held))
                # Unset until this call succeeds, so that a failure leaves no wrong state.
                self._cells[level] = None

        def source(first: int, last: int) -> Room:
            block = self._block(first // CHUNK_ROWS, last - first)
            # Cells due from the same row on are drawn together.
            wanted: dict[tuple[int, int], list[tuple[int, Cell]]] = {}
            for level, cell, held in due:
                start = max(first, held)
                if start < last:
                    wanted.setdefault((start, id(self._tables[level])), []).append((level, cell))
            for (start, _), cells in wanted.items():
                self._draw(cells, tags[start:last], block, start - first)
            return block

        released = _added_up(plan, rows, source)
        for level, cell, _ in due:
            self._cells[level] = cell
            self._filled[level] = rows
        return released

    def _block(self, index: int, rows: int) -> Room:
        """Return a block with space for `rows` rows; all blocks before it are full."""
        if index == len(self._blocks):
            self._blocks.append(self._counter._room(0))
        narrow, wide = self._blocks[index]
        if rows > narrow.shape[1]:
            self._blocks[index] = with_row_capacity(narrow, rows), with_row_capacity(wide, rows)
        return self._blocks[index]

    def _draw(
        self, cells: list[tuple[int, Cell]], tags: NDArray[np.uint64], block: Room, start: int
    ) -> None:
        """Draw the noise of cells of one table for `tags`, from row `start` of a block on."""
        table, stop = self._tables[cells[0][0]], start + len(tags)
        if len(cells) == 1:
            [(level, cell)] = cells
            width, row = self._counter._places[level]
            table.draw(self._stream, cell, tags, block[width][row, start:stop])
            return
        at_once = max(1, CHUNK_ROWS // len(tags))
        for i in range(0, len(cells), at_once):
            part = cells[i : i + at_once]
            drawn = table.draw_cells(self._stream, [cell for _, cell in part], tags)
            for (level, _), noise in zip(part, drawn, strict=True):
                width, row = self._counter._places[level]
                block[width][row, start:stop] = noise
