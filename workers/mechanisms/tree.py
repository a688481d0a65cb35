"""The tree counter: running sums as sums of the blocks that t's base-r digits name, the papers' baseline.

What: every block of r^j ticks (j = 0..L_r - 1) has its count noised once; the running sum at t adds the d_j blocks of
each level j, d_j the digits of t in base r.
Why: it is what the papers analyse, so `plan` and the tests compare with it; `haar` has half its error.

    Symbol      Here
    r           `radix`; r* = argmin (r - 1) L_r^2
    T           `horizon`
    L_r         `_levels` = floor(log_r T) + 1, the digits of T
    d_j         digit j of t, the lowest is j = 0
    sigma^2     L_r / (2 rho_item), the same on every level

    release(t) = h_t + sum_j sum_{q = r floor(t/r^(j+1))}^{floor(t/r^j) - 1} Z_(j, q)

Sensitivity: an event changes the one block of each level that holds its tick, by one: l2 sqrt(L_r).
Guarantee: rho = L_r / (2 sigma^2) for each item an event changes by one, for all releases together.

Source: Cardoso, Rogers, "Differentially Private Histograms under Continual Observation", Algorithm 1 and Theorem 1; the
theorem calls the l2 sensitivity L_r (it is sqrt(L_r)), and the algorithm's level index is off by one.
"""

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from workers.mechanisms.accounting import check_rho_item, float_up
from workers.mechanisms.columns import Integers, check_tick, grown
from workers.mechanisms.gaussian import TABLE_VERSION, integer_gaussian, round_up_sigma_squared
from workers.mechanisms.noise import CHUNK_ROWS, NoiseStream

LONGEST_HORIZON = 1 << 40


class TreeCounter:
    """See the module, and `counters.Counter` for what each member means.

    Args:
        horizon: ticks, 1..2^40.
        rho_item: what it may cost, above 0.
        radix: base, at least 2; None takes r*.

    Raises:
        ValueError: a parameter is outside its range.
    """

    kind = "tree"

    def __init__(self, horizon: int, rho_item: float, radix: int | None = None) -> None:
        check_rho_item(rho_item)
        if not 1 <= horizon <= LONGEST_HORIZON:
            raise ValueError(f"horizon = {horizon}: must be from 1 to 2^40 ticks")
        if radix is not None and radix < 2:
            raise ValueError(f"radix = {radix}: must be at least 2")
        self.horizon: int | None = horizon
        self._last_tick = horizon
        self.radix = best_radix(horizon) if radix is None else radix
        self._levels = digits_of(horizon, self.radix)
        self._sigma_squared = round_up_sigma_squared(Fraction(self._levels) / (2 * Fraction(rho_item)))
        self._table = integer_gaussian(self._sigma_squared)
        self.rho_item = float_up(self._levels / (2 * self._sigma_squared))
        self.cells_per_event = self._levels
        self.tv = float_up(self._levels * Fraction(self._table.tv))
        # No release adds more than (r - 1) L_r cells, nor more than T.
        largest = min((self.radix - 1) * self._levels, horizon) * self._table.bound
        self._sums_dtype = np.dtype(np.int16 if largest < 1 << 15 else np.int32 if largest < 1 << 31 else np.int64)

    def __repr__(self) -> str:
        return f"TreeCounter(horizon={self.horizon}, rho_item={self.rho_item}, radix={self.radix})"

    def variance(self, t: int) -> Fraction:
        """(sum of t's digits) * sigma^2."""
        return sum(last - first for _, first, last in self._blocks(t)) * self._sigma_squared

    def sd(self, t: int) -> float:
        """The standard deviation of the published integer; the noise is one already."""
        return math.sqrt(self.variance(t))

    def terms(self, t: int) -> list[tuple[Fraction, Fraction]]:
        """One term (1, sigma^2) for each block that is added."""
        return [(Fraction(1), self._sigma_squared) for _, first, last in self._blocks(t) for _ in range(first, last)]

    def public(self) -> dict[str, object]:
        """Every parameter that changes a noise value."""
        return {
            "kind": self.kind,
            "horizon": self.horizon,
            "levels": self._levels,
            "radix": self.radix,
            "sigma_squared": [str(self._sigma_squared)] * self._levels,
            "table_version": TABLE_VERSION,
        }

    def draw(self, stream: NoiseStream, t: int, tags: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The noise of each row at t, without a cache."""
        blocks = self._blocks(t)
        out = np.zeros(len(tags), dtype=np.int64)
        noise = np.empty(min(CHUNK_ROWS, len(tags)), dtype=self._table.dtype)
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
        noise: Integers,
    ) -> None:
        """Add the noise of blocks first..last-1 of a level to total, for at most CHUNK_ROWS rows."""
        if not len(tags):
            return
        for block in range(first, last):
            self._table.draw(stream, (level, block), tags, noise[: len(tags)])
            np.add(total, noise[: len(tags)], out=total)


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
        noise = np.empty(min(CHUNK_ROWS, rows), dtype=self._counter._table.dtype)
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


def best_radix(horizon: int) -> int:
    """r* = argmin (r - 1) L_r^2, the smallest one if several are as good.

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
        candidates.append(((low - 1) * levels**2, low))
    return min(candidates)[1]


def digits_of(horizon: int, radix: int) -> int:
    """L_r = floor(log_r horizon) + 1, in integers."""
    digits = 0
    while horizon:
        horizon //= radix
        digits += 1
    return digits
