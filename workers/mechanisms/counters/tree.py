"""The tree counter: running sums as sums of the blocks that t's base-r digits name, the papers' baseline.

What: every block of r^j ticks (j = 0..L_r - 1) has its count noised once; the running sum at t adds the d_j blocks of
each level j, d_j the digits of t in base r.
Why: it is what the papers analyse, so `plan` and the tests compare with it; `haar` has half its error.

    Symbol      Here
    r           `radix`; r* = argmin (r - 1) L_r^2
    T           `horizon`
    L_r         `_levels` = floor(log_r T) + 1, the digits of T
    d_j         digit j of t, the lowest is j = 0
    w_j         weight of level j; sigma_j^2 = (sum_i w_i) / (2 rho_item w_j); bounded horizons: all 1

    release(t) = h_t + sum_j sum_{q = r floor(t/r^(j+1))}^{floor(t/r^j) - 1} Z_(j, q)

Sensitivity: an event changes the one block of each level that holds its tick, by one: l2 sqrt(L_r).
Guarantee: rho = sum_j 1/(2 sigma_j^2) for each item an event changes by one, for all releases together; with equal weights that is
L_r / (2 sigma^2).

Unbounded: the levels grow as long as anyone waits, each r times as long as the one below, and w_j = 1/(j + 2) needs no T: levels 0..L - 1
with r^L >= 2^40 hold every tick below 2^40, so an event still changes one block of each of L levels, and sum_j w_j = H_(L+1) - 1
is a finite sum, added up in fractions: sum_j 1/(2 sigma_j^2) <= rho_item sum_j w_j / sum_i w_i = rho_item.
Of bases 2, 3, 4, 5, 6, 8, 10, 16 and
weights (j + 1)^-0.8, (j + 2)^-p, p = 0, 0.6, 1, 1.2, r = 5 with p = 1 is best or within 5 % of it at 2^10..2^20 (computed): worst sd times
sqrt(2 rho) 11.9 / 18.3 / 21.8 / 32.0 at 2^10 / 2^16 / 2^20 / 2^30.

Source: Cardoso, Rogers, "Differentially Private Histograms under Continual Observation", Algorithm 1 and Theorem 1; the
theorem calls the l2 sensitivity L_r (it is sqrt(L_r)), and the algorithm's level index is off by one.
"""

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from workers.mechanisms.accounting import check_rho_item, float_up
from workers.mechanisms.counters.noise_columns import Integers, check_tick, grown
from workers.mechanisms.frozen import Frozen
from workers.mechanisms.noise.gaussian import TABLE_VERSION, integer_gaussian, round_up_sigma_squared
from workers.mechanisms.noise.keyed import CHUNK_ROWS, NoiseStream

LONGEST_HORIZON = 1 << 40
_UNBOUNDED_LAST_TICK = LONGEST_HORIZON - 1
_UNBOUNDED_RADIX = 5


class TreeCounter(Frozen):
    """See the module, and `counters.Counter` for what each member means.

    Args:
        horizon: ticks, 1..2^40; None is unbounded.
        rho_item: what it may cost, above 0.
        radix: base, at least 2; None takes r*, unbounded 5.

    Raises:
        ValueError: a parameter is outside its range.
    """

    kind = "tree"

    def __init__(self, horizon: int | None, rho_item: float, radix: int | None = None) -> None:
        check_rho_item(rho_item)
        if horizon is not None and not 1 <= horizon <= LONGEST_HORIZON:
            raise ValueError(f"horizon = {horizon}: must be from 1 to 2^40 ticks, or unbounded")
        if radix is not None and radix < 2:
            raise ValueError(f"radix = {radix}: must be at least 2")
        self.horizon = horizon
        self._last_tick = _UNBOUNDED_LAST_TICK if horizon is None else horizon
        if radix is None:
            radix = _UNBOUNDED_RADIX if horizon is None else best_radix(horizon)
        self.radix = radix
        self._levels = digits_of(self._last_tick, self.radix)
        weights = [Fraction(1, 1 if horizon is not None else level + 2) for level in range(self._levels)]
        scale = sum(weights, Fraction(0)) / (2 * Fraction(rho_item))
        self._sigma_squared = tuple(round_up_sigma_squared(scale / weight) for weight in weights)
        self._tables = tuple(integer_gaussian(sigma_squared) for sigma_squared in self._sigma_squared)
        self.rho_item = float_up(sum((1 / (2 * value) for value in self._sigma_squared), Fraction(0)))
        self.cells_per_event = self._levels
        self.tv = float_up(sum((Fraction(table.tv) for table in self._tables), Fraction(0)))
        cells = min((self.radix - 1) * self._levels, self._last_tick)
        self.test_tv = float_up(cells * max(Fraction(table.test_tv) for table in self._tables))
        # No release adds more than r - 1 cells of each level, nor more than T.
        largest = sum((self.radix - 1) * table.bound for table in self._tables)
        largest = min(largest, self._last_tick * max(table.bound for table in self._tables))
        self._sums_dtype = np.dtype(np.int16 if largest < 1 << 15 else np.int32 if largest < 1 << 31 else np.int64)

    def __repr__(self) -> str:
        return f"TreeCounter(horizon={self.horizon}, rho_item={self.rho_item}, radix={self.radix})"

    def variance(self, t: int) -> Fraction:
        """sum_j d_j sigma_j^2."""
        blocks = self._blocks(t)
        return sum(((last - first) * self._sigma_squared[level] for level, first, last in blocks), Fraction(0))

    def sd(self, t: int) -> float:
        """The standard deviation of the published integer; the noise is one already."""
        return math.sqrt(self.variance(t))

    def terms(self, t: int) -> list[tuple[Fraction, Fraction]]:
        """One term (1, sigma_j^2) for each block that is added."""
        return [
            (Fraction(1), self._sigma_squared[level])
            for level, first, last in self._blocks(t)
            for _ in range(first, last)
        ]

    def public(self) -> dict[str, object]:
        """Every parameter that changes a noise value."""
        return {
            "kind": self.kind,
            "horizon": self.horizon,
            "levels": self._levels,
            "radix": self.radix,
            "sigma_squared": [str(value) for value in self._sigma_squared],
            "table_version": TABLE_VERSION,
        }

    def draw(self, stream: NoiseStream, t: int, tags: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The noise of each row at t, without a cache."""
        blocks = self._blocks(t)
        out = np.zeros(len(tags), dtype=np.int64)
        noise = self._scratch(len(tags))
        for start in range(0, len(tags), CHUNK_ROWS):
            part, total = tags[start : start + CHUNK_ROWS], out[start : start + CHUNK_ROWS]
            for level, first, last in blocks:
                self._add(stream, level, first, last, part, total, noise)
        return out

    def columns(self, stream: NoiseStream) -> "TreeColumns":
        """A cache of this counter's noise."""
        return TreeColumns(self, stream)

    def _blocks(self, t: int) -> list[tuple[int, int, int]]:
        """(level, first, last + 1) of the blocks that make up the prefix 1..t, highest level first, none empty."""
        check_tick(self.kind, t, self._last_tick)
        found = []
        above = 0
        for level in range(self._levels - 1, -1, -1):
            first, last = above * self.radix, t // self.radix**level
            if first < last:
                found.append((level, first, last))
            above = last
        return found

    def _add(
        self,
        stream: NoiseStream,
        level: int,
        first: int,
        last: int,
        tags: NDArray[np.uint64],
        total: Integers,
        scratch: list[Integers],
    ) -> None:
        """Add the noise of blocks first..last-1 of a level to total, for at most CHUNK_ROWS rows."""
        if not len(tags):
            return
        noise = scratch[level][: len(tags)]
        for block in range(first, last):
            self._tables[level].draw(stream, (level, block), tags, noise)
            np.add(total, noise, out=total)

    def _scratch(self, rows: int) -> list[Integers]:
        """Room for one chunk's noise of each level; levels of one width share it."""
        room: dict[np.dtype[np.int16] | np.dtype[np.int32], Integers] = {}
        for table in self._tables:
            if table.dtype not in room:
                room[table.dtype] = np.empty(min(CHUNK_ROWS, rows), dtype=table.dtype)
        return [room[table.dtype] for table in self._tables]


class TreeColumns:
    """For each level the noise of t with its lower digits set to zero; see `counters.NoiseColumns`.

    The next tick changes the lowest non-zero digit's level alone, by one new block; the result is that level's column.
    """

    def __init__(self, counter: TreeCounter, stream: NoiseStream) -> None:
        self._counter = counter
        self._stream = stream
        self._columns: list[Integers] = [np.empty(0, dtype=counter._sums_dtype) for _ in range(counter._levels)]
        # The blocks each column holds the sum of beyond the level above: (first, last + 1).
        self._reached: list[tuple[int, int] | None] = [None] * counter._levels
        self._filled = [0] * counter._levels

    def __repr__(self) -> str:
        return f"TreeColumns({self._counter!r})"

    @property
    def bytes_per_row(self) -> int:
        """Memory of the cache, per row in use."""
        return sum(column.dtype.itemsize for column in self._columns)

    def at(self, t: int, tags: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The noise of each row at t."""
        rows = len(tags)
        blocks = self._counter._blocks(t)
        starts: list[tuple[int, int]] = []  # (rows the column already holds, the block up to which it holds them)
        for level, first, last in blocks:
            self._columns[level] = grown(self._columns[level], rows)
            reached = self._reached[level]
            usable = reached is not None and reached[0] == first and reached[1] <= last
            starts.append((self._filled[level], reached[1]) if usable and reached is not None else (0, first))
            # Until this call is through, the column counts as unknown: a failure half way leaves nothing wrong behind.
            self._reached[level] = None
        # Rows beyond `rows` would stay at an older block: they count as not held.
        filled = [
            rows if held < rows or reached < last else held
            for (held, reached), (_, _, last) in zip(starts, blocks, strict=True)
        ]
        noise = self._counter._scratch(rows)
        out = np.empty(rows, dtype=np.int64)
        for start in range(0, rows, CHUNK_ROWS):
            end = min(start + CHUNK_ROWS, rows)
            above: Integers | None = None
            for (level, first, last), (held, reached_block) in zip(blocks, starts, strict=True):
                column = self._columns[level]
                middle = min(max(start, held), end)
                self._counter._add(
                    self._stream, level, reached_block, last, tags[start:middle], column[start:middle], noise
                )
                column[middle:end] = 0 if above is None else above[middle:end]
                self._counter._add(self._stream, level, first, last, tags[middle:end], column[middle:end], noise)
                above = column
            if above is not None:
                out[start:end] = above[start:end]
        for (level, first, last), rows_held in zip(blocks, filled, strict=True):
            self._reached[level] = (first, last)
            self._filled[level] = rows_held
        return out


def best_radix(horizon: int, power: int = 2) -> int:
    """r* = argmin (r - 1) L_r^2, the smallest one if several are as good; with power 3, where L levels share a pure epsilon.

    For each number of digits the smallest base that needs no more is the best; only those are compared.
    """
    candidates = []
    for levels in range(1, horizon.bit_length() + 1):
        low, high = 2, horizon + 1
        while low < high:
            middle = (low + high) // 2
            if middle**levels > horizon:
                high = middle
            else:
                low = middle + 1
        candidates.append(((low - 1) * levels**power, low))
    return min(candidates)[1]


def digits_of(horizon: int, radix: int) -> int:
    """L_r = floor(log_r horizon) + 1, in integers."""
    digits = 0
    while horizon:
        horizon //= radix
        digits += 1
    return digits
