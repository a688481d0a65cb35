"""The haar counter, the default: running sums through noisy Haar coefficients.

What: `2^h >= T` ticks. Every block v of 2^j ticks, j = 1..h, has the integer statistic
`D_v = (count in its left half) - (count in its right half)`; `S` is the total. Each gets integer
Gaussian noise once, and every running sum combines them, one coefficient a level.
Why: about half the error of the tree, no state, and any tick can be computed alone.

    Symbol      Here
    h           `_levels`
    o           `offset`, empty tree ticks before tick 1: 0, or 2^h - T with an end_share
    p           t + o, the place of tick t in the tree
    m_j         p mod 2^j
    c_j         min(m_j, 2^j - m_j) / 2^j, with c_0 = p / 2^h for S (level 0)
    a_j         c_j 2^h, an integer (for S: p); `_cells_at`
    w_j         weight of level j; sigma_j^2 = s2 / w_j; bounded horizons: 1, and 2 for S; with
                end_share e: (1 - e) / h, and e for S

    release(t) = h_t + sum_j c_j Z_v_j(t) + c_0 Z_0,   v_j(t) = floor(p / 2^j)

The end of an epoch: with o = 2^h - T the last tick is the root of the tree, all c_j are 0 but
c_0 = 1, and its noise is Z_0 alone, an integer of variance 1 / (2 rho_item e). A share e above
2 / (h + 2) reduces the levels' shares.

Sensitivity: an event in tick s changes by one S and, in each level, the D_v of the block with s.
Guarantee: neighbours differ in one event; rho = sum_j 1/(2 sigma_j^2) for each item it changes by
one, for all releases together, at every integer Renyi order a >= 2, also when the stream reacts to
earlier releases: the shift z -> z - C e_t between the two worlds is an integer vector, so given the
releases the two are a discrete Gaussian on a coset and its shift by a vector of that coset's
lattice.

Unbounded: 50 levels with w_j ~ (j + 2)^-1.2 need no T; t stays below 2^40. S needs noise too, but
its coefficient is below 2^-10, so a weight of 2^-10 has no visible effect.
"""

from collections.abc import Iterator
from decimal import Context, Decimal
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from workers.arrays.types import Floats, Longs, Tags
from workers.mechanisms.counters.levels import LevelColumns, LevelCounter, check_tick, tick_block
from workers.mechanisms.ledger import with_capacity
from workers.mechanisms.noise.inversion import Integers, dtype_for
from workers.mechanisms.noise.keyed import CHUNK_ROWS, Cell, NoiseStream
from workers.runtime.frozen import memoized, read_only

_UNBOUNDED_LEVELS = 50
_TOTAL = 0  # the level number of S

# A group's sum and its carry stay below this, so nothing overflows int64.
_GROUP_BOUND = 1 << 62
_INT32_BOUND = 1 << 31

# Noise of some rows, one array per width: int16 and int32, (levels, at least rows) each.
Block = tuple[Integers, Integers]
_WIDTHS = (np.dtype(np.int16), np.dtype(np.int32))


class Plan(NamedTuple):
    """The cells of one tick, and how `number_blocks.add_up` sums their noise."""

    cells: tuple[Cell, ...]
    terms: Longs
    sums: Longs

    def add_up(self, noise: Block, out: Longs) -> None:
        """Set every row of `out` to floor(x + 1/2)."""
        from workers.arrays import number_blocks

        short = np.empty(number_blocks.TILE_ROWS, dtype=np.int32)
        number_blocks.add_up(*noise, self.terms, self.sums, short, out)


class HaarCounter(LevelCounter):
    """Counter of Haar coefficients; `end_share` in (0, 1) is the last tick's share of rho_item."""

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
        self._denominator = 1 << self._levels
        self.offset = 0 if end_share is None else self._denominator - self._last_tick
        self._end = self.offset + self._last_tick
        self._groups = self._make_groups()
        widths = [_WIDTHS.index(dtype_for(reach)) for reach in self._reach]
        self._places = tuple(
            (width, widths[:level].count(width)) for level, width in enumerate(widths)
        )

    def __repr__(self) -> str:
        share = "" if self.end_share is None else f", end_share={self.end_share}"
        return f"HaarCounter(horizon={self.horizon}, rho_item={self.rho_item}{share})"

    def _weights(self) -> list[Fraction]:
        if self.horizon is not None:
            levels = (self.horizon - 1).bit_length()
            if self.end_share is None or not levels:
                return [Fraction(2)] + [Fraction(1)] * levels
            # 0.6 is exactly six tenths.
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

    def _cells_at(self, t: int) -> dict[Cell, int]:
        check_tick(self.kind, t, self._last_tick)
        place, found = t + self.offset, {}
        for level in range(1, self._levels + 1):
            if inside := place % (1 << level):
                nearest = min(inside, (1 << level) - inside)
                found[level, place >> level] = nearest << (self._levels - level)
        found[_TOTAL, 0] = place
        return found

    def _shape(self) -> dict[str, object]:
        shape: dict[str, object] = {"levels": self._levels}
        if self.end_share is not None:
            shape |= {"offset": self.offset, "end_share": repr(self.end_share)}
        return shape | super()._shape()

    def coefficients(self, t: Longs) -> Iterator[tuple[Floats, Floats, Fraction]]:
        total, *levels = self._sigma_squared
        place, one = t + self.offset, np.ones(len(t))
        for level, sigma_squared in enumerate(levels, start=1):
            inside = place & ((1 << level) - 1)
            yield np.minimum(inside, (1 << level) - inside) / 2.0**level, one, sigma_squared
        yield place / 2.0**self._levels, one, total

    def _block(self, rows: int) -> Block:
        widths = [width for width, _ in self._places]
        narrow, wide = (
            np.empty((widths.count(i), rows), dtype=width) for i, width in enumerate(_WIDTHS)
        )
        return narrow, wide

    def _row(self, block: Block, level: int) -> Integers:
        width, row = self._places[level]
        noise: Integers = block[width][row]
        return noise

    def columns(self, stream: NoiseStream) -> "HaarColumns":
        return HaarColumns(self, stream)

    def _make_groups(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Group levels whose sum, as an integer, fits int64; return (top, levels), lowest first.

        A group with top p holds the integer sum_j n_j 2^(p - j) Z_j over its levels, n_j = c_j 2^j.
        Its size is bounded by n_j <= min(2^(j-1), last place) and |Z_j| <= reach_j. A group closes
        before that bound exceeds 2^61; the carry and the rounding constant need as much again.
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

    def plan(self, t: int) -> Plan:
        check_tick(self.kind, t, self._last_tick)
        ticks = tick_block(t, self._last_tick)
        return _plans(self, ticks)[t - ticks.start]

    def _planned(self, t: int) -> Plan:
        """Compute the release at t as integer sums and shifts, highest group first.

        With group sums A, B, C of tops a < b < c the noise is x = A/2^a + B/2^b + C/2^c, and x +
        1/2 = (A + 2^(a-1) + (B + C/2^(c-b)) / 2^(b-a)) / 2^a. For integers n, m >= 1 and any real
        y, floor((n + y)/m) = floor((n + floor(y))/m), so flooring every division on its own, by an
        arithmetic shift, gives floor(x + 1/2) exactly. The carry is at most |B| / 2^(b-a) + 1.
        """
        cells = self._cells_at(t)
        coefficients = {level: a for (level, _), a in cells.items()}
        terms: list[tuple[int, int, int]] = []
        sums: list[tuple[int, int, int, bool]] = []
        carried = 0
        bottoms = (0, *(top for top, _ in self._groups))
        for bottom, (top, levels) in zip(bottoms[-2::-1], self._groups[::-1], strict=True):
            addend = 1 << top >> 1 if bottom == 0 else 0
            bound = carried + addend
            for level in levels:
                if level in coefficients:
                    factor = coefficients[level] >> (self._levels - top)  # exact: level <= top
                    bound += factor * self._reach[level]
                    terms.append((*self._places[level], factor))
            if bound >= 2 * _GROUP_BOUND:
                raise OverflowError(f"haar counter: a sum of {bound.bit_length()} bits at tick {t}")
            sums.append((len(terms), addend, top - bottom, bound < _INT32_BOUND))
            carried = (bound >> (top - bottom)) + 1
        return Plan(tuple(cells), *(read_only(np.array(a, dtype=np.int64)) for a in (terms, sums)))


@memoized(64)
def _plans(counter: HaarCounter, ticks: range) -> tuple[Plan, ...]:
    return tuple(map(counter._planned, ticks))


class HaarColumns(LevelColumns):
    """Noise of each level's current node, in chunks; a tick draws about one new cell per row."""

    def __init__(self, counter: HaarCounter, stream: NoiseStream) -> None:
        super().__init__(counter, stream)
        self._counter = counter
        self._blocks: list[Block] = []
        self._cells: list[Cell | None] = [None] * len(self._tables)

    @property
    def bytes_per_row(self) -> int:
        return sum(table.dtype.itemsize for table in self._tables)

    def at(self, t: int, tags: Tags) -> Longs:
        rows, plan = len(tags), self._counter.plan(t)
        due: list[tuple[Cell, int]] = []  # cells to draw, and the first row to draw
        for cell in plan.cells:
            level = cell[0]
            filled = self._filled[level] if self._cells[level] == cell else 0
            if filled < rows:
                due.append((cell, filled))
                # Unset until this call succeeds: a failure leaves no wrong state.
                self._cells[level] = None
        out = np.empty(rows, dtype=np.int64)
        # Chunks stay in the cache for all levels.
        for first in range(0, rows, CHUNK_ROWS):
            last = min(first + CHUNK_ROWS, rows)
            block = self._block(first // CHUNK_ROWS, last - first)
            # Cells due from the same row on are drawn together.
            together: dict[tuple[int, int], list[Cell]] = {}
            for cell, filled in due:
                if (start := max(first, filled)) < last:
                    together.setdefault((start, id(self._tables[cell[0]])), []).append(cell)
            for (start, _), cells in together.items():
                self._draw(cells, tags[start:last], block, start - first)
            plan.add_up(block, out[first:last])
        for cell, _ in due:
            self._cells[cell[0]], self._filled[cell[0]] = cell, rows
        return out

    def _block(self, index: int, rows: int) -> Block:
        if index == len(self._blocks):
            self._blocks.append(self._counter._block(0))
        narrow, wide = self._blocks[index]
        self._blocks[index] = with_capacity(narrow, rows, 1), with_capacity(wide, rows, 1)
        return self._blocks[index]

    def _draw(self, cells: list[Cell], tags: Tags, block: Block, start: int) -> None:
        table, rows = self._tables[cells[0][0]], slice(start, start + len(tags))
        at_once = max(1, CHUNK_ROWS // len(tags))
        for i in range(0, len(cells), at_once):
            part = cells[i : i + at_once]
            columns = [self._counter._row(block, level)[rows] for level, _ in part]
            if len(part) == 1:
                table.draw(self._stream, part[0], tags, columns[0])
                continue
            drawn = table.draw_cells(self._stream, part, tags)
            for column, noise in zip(columns, drawn, strict=True):
                column[:] = noise
