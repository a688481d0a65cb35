"""The tree counter, the papers' baseline: running sums of the blocks given by t's base-r digits.

What: every block of r^j ticks (level j = 0..L_r - 1) has its count noised once; the running sum at
t adds the d_j latest blocks of level j, d_j the digits of t in base r. Blocks of a level are
numbered from 0; (level, number) is a block's cell, and its node.
Why: the papers analyse it, so `plan` and the tests compare with it; `lifted` has two fifths of
its error.

    Symbol      Here
    r           `radix`; r* = argmin (r - 1) L_r^2
    T           `horizon`
    L_r         `_levels` = floor(log_r T) + 1, the digits of T
    w_j         weight of level j, below; bounded horizons: all 1
    sigma_j^2   `_variances`: of a block of level j, in proportion to 1 / w_j

    release(t) = h_t + sum_j sum_{q = r floor(t/r^(j+1))}^{floor(t/r^j) - 1} Z_(j, q)

Sensitivity: an event changes the one block of each level that holds its tick, by one: l2 sqrt(L_r).
Guarantee: rho = sum_j 1/(2 sigma_j^2) for each item an event changes by one, for all releases
together; with equal weights that is L_r / (2 sigma^2).

Unbounded: w_j = 1/(j + 2) needs no T. Levels 0..L - 1 with r^L >= 2^40 hold every tick below 2^40,
so an event still changes one block of each of L levels, and
sum_j 1/(2 sigma_j^2) <= rho_item sum_j w_j / sum_i w_i = rho_item.
Of bases 2, 3, 4, 5, 6, 8, 10, 16 and weights (j + 1)^-0.8, (j + 2)^-p, p = 0, 0.6, 1, 1.2, r = 5
with p = 1 is best or within 5 % of it at 2^10..2^20 (computed): worst sd times sqrt(2 rho)
11.9 / 18.3 / 21.8 / 32.0 at 2^10 / 2^16 / 2^20 / 2^30.

Source: Cardoso, Rogers, "Differentially Private Histograms under Continual Observation", Algorithm
1 and Theorem 1; the theorem calls the l2 sensitivity L_r (it is sqrt(L_r)), and the algorithm's
level index is off by one.
"""

import math
from bisect import bisect_right
from fractions import Fraction
from functools import partial

import numpy as np

from workers.arrays.types import Floats, Longs, Tags
from workers.mechanisms.accounting import float_up
from workers.mechanisms.counters.base import (
    Columns,
    Counter,
    Node,
    cells_of,
    check_tick,
    fixed_point,
    last_tick_of,
    root_of,
    rounded_up,
)
from workers.mechanisms.curves import ROUNDING, DigitCurve
from workers.mechanisms.ledger import with_capacity
from workers.mechanisms.noise import normal
from workers.mechanisms.noise.keyed import CHUNK_ROWS, NoiseStream
from workers.mechanisms.noise.normal import add_rough
from workers.runtime.frozen import Frozen

UNBOUNDED_RADIX = 5


class TreeCounter(Counter):
    """Counter of base-r blocks; `radix` is at least 2, None for r* (5 if unbounded)."""

    kind = "tree"
    order = 1
    takes = ("radix",)

    def __init__(
        self, horizon: int | None, rho_item: float, radix: int | None = None
    ) -> None:
        """Compute block variances for which all releases cost `rho_item`; radix None is r*."""
        super().__init__(horizon, rho_item)
        if radix is not None and radix < 2:
            raise ValueError(f"radix = {radix}: must be at least 2")
        self.radix = radix or default_radix(horizon)
        self._tree = Tree(self._last_tick, self.radix)
        weights = [Fraction(1)] * self._tree.levels
        if horizon is None:
            weights = [Fraction(1, level + 2) for level in range(self._tree.levels)]
        # With s2 / w_j for level j, all levels cost sum_j w_j / (2 s2).
        s2 = sum(weights, Fraction(0)) / (2 * Fraction(rho_item))
        self._variances = tuple(rounded_up(s2 / weight) for weight in weights)
        # What the rounded variances cost.
        self.rho_item = float_up(
            sum((1 / (2 * variance) for variance in self._variances), Fraction(0))
        )
        self._sds = tuple(float(root_of(variance)) for variance in self._variances)
        most_blocks = min((self.radix - 1) * self._tree.levels, self._last_tick)
        self.fixed = fixed_point(
            max(self._sds), parts=most_blocks, largest=max(self._sds) * most_blocks
        )

    @classmethod
    def radixes(cls, horizon: int | None) -> tuple[int | None, ...]:
        return default_radix(horizon), 2

    def nodes(self, t: int) -> dict[Node, int]:
        check_tick(self.kind, t, self._last_tick)
        return dict.fromkeys(self._tree.cells_at(t), 1)

    def variance_of(self, node: Node) -> Fraction:
        return self._variances[node[0]]

    def sd_of(self, node: Node) -> float:
        return self._sds[node[0]]

    def variances(self, ticks: Longs) -> Floats:
        """Return the variance of N at several ticks (n,): the sum over their digits."""
        total = np.zeros(len(ticks))
        for variance in self._variances:
            ticks, digit = np.divmod(ticks, self.radix)
            total += digit * float(variance)
        return total

    def curve(self) -> DigitCurve:
        variances = list(map(float, self._variances))
        return DigitCurve(self.radix, variances, rounding=ROUNDING)

    def _shape(self) -> dict[str, object]:
        """Return the parameters that determine a tick's nodes and their variances, as JSON."""
        shape = {"levels": self._tree.levels, "radix": self.radix}
        return shape | {
            "sigma_squared": [str(variance) for variance in self._variances]
        }

    def columns(self, stream: NoiseStream) -> "TreeColumns":
        return TreeColumns(self, stream)


class TreeColumns(Columns):
    """A cache of sums of the noise of blocks, a column of all rows for each level.

    The column of a level sums the blocks that t names of that level and of all levels above it.
    From tick to tick it only gets the level's new blocks, as long as t names the same blocks of the
    levels above; else it begins with a copy of the column above. The lowest column is N(t).
    """

    _counter: TreeCounter

    def __init__(self, counter: TreeCounter, stream: NoiseStream) -> None:
        super().__init__(counter, stream)
        levels = range(counter._tree.levels)
        self._columns = [np.empty(0, dtype=counter.fixed.dtype) for _ in levels]
        self._numbers_kept = len(levels)
        # By level that the last tick named: its blocks in the sums, (first, last + 1).
        self._summed: dict[int, tuple[int, int]] = {}
        # How many of the first rows have these sums.
        self._rows_before = 0

    def at(self, t: int, tags: Tags) -> Longs:
        """Return the noise of every row at tick t (n,); `tags` (n, 2) only grow."""
        rows = len(tags)
        check_tick(self._counter.kind, t, self._counter._last_tick)
        # (level, first, last + 1) of the blocks that t names, the highest level first.
        blocks = self._counter._tree.blocks(t)
        for level, _, _ in blocks:
            self._columns[level] = with_capacity(self._columns[level], rows)
        summed = self._summed
        # Empty until this call succeeds: a failure leaves no wrong state.
        self._summed = {}
        out = np.empty(rows, dtype=np.int64)
        for start in range(0, rows, CHUNK_ROWS):
            end = min(start + CHUNK_ROWS, rows)
            above: normal.Numbers | None = None
            for level, first, stop in blocks:
                column = self._columns[level]
                # If the last tick did not name the level, None equals no block.
                summed_first, summed_stop = summed.get(level, (None, 0))
                # Rows before `middle` have a sum that lacks only the latest blocks. No row has one
                # if the levels above had other blocks (`first` tells), or this level had more.
                middle = start
                if summed_first == first and summed_stop <= stop:
                    middle = min(max(start, self._rows_before), end)
                old = slice(start, middle)
                new = slice(middle, end)
                self._add(level, summed_stop, stop, tags[old], column[old], start)
                # The column above is complete by now.
                column[new] = 0 if above is None else above[new]
                self._add(level, first, stop, tags[new], column[new], middle)
                above = column
            if above is not None:
                self._round(above[start:end], out[start:end], start)
        self._summed = {level: (first, stop) for level, first, stop in blocks}
        self._rows_before = rows
        return self._finish(t, tags, out)

    def _add(
        self,
        level: int,
        first: int,
        stop: int,
        tags: Tags,
        sums: normal.Numbers,
        row: int,
    ) -> None:
        """Add blocks first..stop - 1 of a level to the `sums` of rows from `row` on.

        `tags` are those of these rows, at most CHUNK_ROWS.
        """
        if not len(tags):
            return
        # The standard deviation of a block in units.
        scale = math.ldexp(self._counter._sds[level], self._counter.fixed.point)
        for block in range(first, stop):
            # A cell of words has two nodes, those of an even block and of the next.
            words = self._words(cells_of([(level, block >> 1)]), tags, row)[0]
            add_rough(words, block & 1, scale, normal.table(), sums)


class Tree(Frozen):
    """Ticks 1..horizon in base r: blocks (cells) of r^j ticks at levels j = 0..L_r - 1.

    Block q of level j holds ticks q r^j + 1 .. (q + 1) r^j.
    """

    def __init__(self, horizon: int, radix: int) -> None:
        self.horizon = horizon
        self.radix = radix
        self.levels = digits_of(horizon, radix)

    def blocks(self, t: int) -> list[tuple[int, int, int]]:
        """Return (level, first, last + 1) of the blocks that make up 1..t, highest level first."""
        blocks = []
        # How many blocks of the level above lie in 1..t.
        above = 0
        for level in reversed(range(self.levels)):
            first = above * self.radix
            stop = t // self.radix**level
            if first < stop:
                blocks.append((level, first, stop))
            above = stop
        return blocks

    def cells_at(self, t: int) -> set[tuple[int, int]]:
        """Return (level, number) of the blocks that make up 1..t."""
        return {
            (level, block)
            for level, first, stop in self.blocks(t)
            for block in range(first, stop)
        }

    def cells(self, t: int) -> int:
        """Return the number of blocks that make up 1..t: the sum of t's digits."""
        return sum(stop - first for _, first, stop in self.blocks(t))

    def top_level(self, t: int) -> int:
        """Return the highest level with a block that ends at t."""
        level = 0
        while level + 1 < self.levels and t % self.radix ** (level + 1) == 0:
            level += 1
        return level

    def open_levels(self, t: int) -> list[int]:
        """Return the levels at which the block that holds tick t is in the sum of some tick.

        A block is in none if it is the last part of a block a level above, which then takes its
        place, or ends after the horizon.
        """
        levels = []
        for level in range(self.levels):
            width = self.radix**level
            # The number of the block after the one that holds t.
            stop = (t - 1) // width + 1
            is_summed = stop % self.radix or level == self.levels - 1
            if is_summed and stop * width <= self.horizon:
                levels.append(level)
        return levels


def default_radix(horizon: int | None) -> int:
    return UNBOUNDED_RADIX if horizon is None else best_radix(last_tick_of(horizon))


def best_radix(horizon: int, power: int = 2) -> int:
    """Return the smallest r* = argmin (r - 1) L_r^power: the base with the least worst variance.

    The worst tick adds (r - 1) L_r blocks. The L_r levels share the cost, so a block's variance is
    in proportion to L_r (`power` 2), or to L_r^2 (3) where they share a pure epsilon.
    """
    candidates = []
    for digits in range(1, horizon.bit_length() + 1):
        # The best base for a number of digits is the smallest with radix^digits > horizon: the
        # first after the bases with a power of at most the horizon.
        radix = 2 + bisect_right(
            range(2, horizon + 1), horizon, key=partial(pow, exp=digits)
        )
        candidates.append(((radix - 1) * digits**power, radix))
    return min(candidates)[1]


def digits_of(horizon: int, radix: int) -> int:
    """Return L_r = floor(log_r horizon) + 1, in integers."""
    digits = 0
    while horizon:
        horizon //= radix
        digits += 1
    return digits
