"""The noise of active counts: how many users had an event in a window, for ever.

What: a(t) + N(t), a(t) the users active at tick t. The noise N is a path along a line of places,
p = t + o for tick t. Level j = 1..L cuts the line into blocks of 2^j places, each with a node, a
normal number z_j[K]. The ends of the blocks of 2^L places are independent (in `line` they are sums
of steps), and from there the path descends: N(t) = N_0(p), for all integers K,

    N_L(K)          = z_e[K], the end of block K - 1
    N_(j-1)(2K)     = N_j(K) - (z_j[K] + z_j[K-1]) / 8
    N_(j-1)(2K + 1) = (N_(j-1)(2K) + N_(j-1)(2K + 2)) / 2 + z_j[K] / 2

A user who stays changes a(t) for as long: no charge covers a life, and one that grew with it would
buy nothing of a path that walks. So the promise is for one user and period.

    Symbol      Here
    W, g        `window` and `hop`, ticks; g is a power of two, at most W: windows begin at its
                multiples
    r           `most_ticks` of a window: W + g - 1
    P           `period`, ticks: events of one user in one period are protected together. P <= W,
                so that emptying them changes a(t) by 1 in a single interval, of at most
                P + r - 1 ticks
    L           `levels`: an interval is at most 3 * 2^L ticks
    o           `offset`: 2^(L + 1), so that no block has a negative number
    K, u_j      p >> j, the number of p's block of level j; (p mod 2^j) / 2^j, how far p is into it
    z_j[K]      node (j, K); z_e[K] is node (L + 1, K - 1)
    w           `weights`: of levels 1..L, then of ends; s2_j = s2 / w_j is a node's variance
    A           `_OVERHEADS`: an interval of l ticks costs at most A + w_e l / 2^L, `cost_of`
    s2          cost_of / (2 rho_item), rounded up

Coefficients in N(t): min(u_j, 1 - u_j) - 1/8 of node K of level j, -(1 - u_j) / 8 of K - 1,
-u_j / 8 of K + 1; of the ends of the block of p, 1 - u_L and u_L.

Cache: `ActiveColumns` moves rows (items) from tick to tick in fixed point, whole units of
2^-point. Their error, in nodes: the coefficients of a level add up to at most 1/2, those of the
two ends to 1. Rounding down on the way adds at most 7 L / 8 units (as in `LineColumns`), and one
for the end before. A row is decided where this error cannot change the whole number that its noise
is rounded to; the others are drawn exactly.

Guarantee and proofs: docs/decisions/0036-windows-without-epochs.md, T8, and
docs/decisions/0042-users-without-epochs.md. Everything that one user does in one period costs at
most rho_item for each of the items whose count it changes, also when the stream reacts to what is
published. n periods cost at most min(n, `overlap`) n times that.
"""

import math
from fractions import Fraction

import numpy as np

from workers.arrays.types import Floats, Longs, Tags
from workers.mechanisms.accounting import check_rho_item
from workers.mechanisms.counters.base import Node, check_tick, fixed_point
from workers.mechanisms.counters.line import (
    FINEST,
    Cursor,
    LineCurve,
    WindowCounter,
    check_window,
    coefficients_of,
)
from workers.mechanisms.noise.keyed import CHUNK_ROWS, NoiseStream
from workers.mechanisms.noise.normal import decide

# Factors on the weights of the highest level and of the one below it, and the weight of ends.
HIGHEST = (Fraction(7, 10), Fraction(17, 20))
ENDS = Fraction(3)

# A in 1/4096 for L = 1..22: `overheads` in tests/mechanisms/counters/active.py.
_OVERHEADS = (
    *(12596, 22511, 32103, 41429, 51544, 60897, 70754, 80374, 90112, 99791, 109661),
    *(119459, 129269, 139042, 148828, 158622, 168417, 178211, 188006, 197800, 207595),
    217389,
)
MOST_LEVELS = len(_OVERHEADS)
# An interval has at most so many blocks of 2^L ticks.
_BLOCKS_MOST = 3


class ActiveCurve(LineCurve):
    """The variance of the noise N(t) by tick t, at the worst, and on average.

    `by_level` has s2 of nodes of levels 1..L, then of ends. The searches are those of `LineCurve`,
    for the variance of a difference N(t) - N(b) by s = t - W. Here nothing is subtracted, so W = 0
    and s = t. `LineCurve` allows for two places that move with t. A single one changes the variance
    at most half as fast, so the bound on what the search misses (`slack`) still holds.
    """

    def __init__(self, by_level: tuple[float, ...]) -> None:
        super().__init__(by_level, window=0, hop=1)

    def _part(self, level: int, since: Longs) -> Floats:
        """Return what a level (L + 1: ends) adds to the variance of N(t) at ticks t = `since` (n,).

        `LineCurve` calls it with t - W, and W is 0 here.
        """
        # Ends belong to blocks of 2^L places, as the highest level does.
        width = min(level, self._levels)
        u = (since & ((1 << width) - 1)) / 2.0**width
        s2 = self._by_level[level - 1]
        coefficients = coefficients_of(u) if level <= self._levels else (1 - u, u)
        return s2 * sum((a**2 for a in coefficients), np.zeros(len(since)))


class ActiveCounter(WindowCounter):
    """The noise of how many users had an event in a window; see the module.

    Args:
        window: ticks.
        hop: a power of two of ticks, at most the window.
        period: ticks, at most the window.
        rho_item: what one user's period costs an item whose count it changes.
    """

    kind = "active"

    def __init__(self, window: int, hop: int, period: int, rho_item: float) -> None:
        """Compute `overlap`, and node variances for which a period costs `rho_item`."""
        check_rho_item(rho_item)
        check_window(window, hop)
        if not 1 <= period <= window:
            raise ValueError(
                f"period = {period}: must be from 1 to the window's {window} ticks"
            )
        # An event is in the window for at most `most_ticks`. A user's events of one period are at
        # most period - 1 ticks apart, so together they change a(t) in at most `changed_ticks`.
        most_ticks = window + hop - 1
        changed_ticks = period + most_ticks - 1
        levels = levels_of(changed_ticks)
        if levels > MOST_LEVELS:
            raise ValueError(
                f"window = {window}: with its hop and a period of {period} ticks at most 3 * 2^{MOST_LEVELS} ticks"
            )
        # A node of weight w has the variance s2 / w, so that a period costs cost / (2 s2).
        cost = cost_of(levels, changed_ticks)
        s2 = cost / (2 * Fraction(rho_item))
        super().__init__(window, hop, levels, s2, weights(levels), rho_item)
        self.period = period
        # A bound on the cost of n periods of a user, as a multiple of n times one period's cost.
        # The periods form at most n groups of consecutive periods. A group is no longer than a
        # window, so its events change counts in one interval of ticks. Nodes reach less than 4 *
        # 2^L ticks, so the intervals of every `classes`-th group share no node, and their costs add
        # up. All `classes` sets of such groups together cost at most `classes` times as much.
        group_ticks = (window // period) * period
        classes = 1 + math.ceil(Fraction((4 << levels) + most_ticks - 1, group_ticks))
        self.overlap = classes * cost_of(levels, group_ticks + most_ticks - 1) / cost
        self._curve = ActiveCurve(tuple(map(float, self._variances)))
        # The error of the cache: see the module. A row keeps at most half of each level's nodes
        # and one end.
        self.fixed = fixed_point(
            max(self._sds),
            parts=levels / 2 + 1,
            largest=sum(self._sds[:-1]) / 2 + self._sds[-1],
            divisions=math.ceil(7 * levels / 8) + 1,
        )

    def _shape(self) -> dict[str, object]:
        return super()._shape() | {"period": self.period}

    def nodes(self, t: int) -> dict[Node, int]:
        """Return the non-zero coefficients of N(t) by node, as multiples of 1 / (8 * 2^L)."""
        check_tick(self.kind, t, self._last_tick)
        place = t + self.offset
        block = place >> self.levels
        # u_L in these multiples; the ends have 1 - u_L and u_L.
        u = 8 * (place & ((1 << self.levels) - 1))
        factors = self._path(place)
        factors[self.levels + 1, block - 1] = self._denominator - u
        factors[self.levels + 1, block] = u
        return {node: factor for node, factor in factors.items() if factor}


class ActiveColumns:
    """A single-threaded cache of one window's noise, bit for bit what `ActiveCounter.draw` gives.

    A `Cursor` of `line` moves the rows. It takes the path over a block of 2^L places to begin at 0
    and to rise by a step to the block's end. Here the step is z_e of this block's end, but the path
    begins at z_e of the block before. The cursor's noise lacks that, times 1 - u_L: `at` adds it.
    """

    def __init__(self, counter: ActiveCounter, stream: NoiseStream) -> None:
        self._counter = counter
        self._stream = stream
        # It keeps z_e of the block before, as a step.
        self._cursor = Cursor(counter, stream, keeps_step=True)
        # Where `decide` lists the rows of a chunk that it leaves undecided.
        self._undecided = np.empty(CHUNK_ROWS + 1, dtype=np.int64)
        # How many rows, the first ones, the last call moved to its tick.
        self._rows_before = 0

    @property
    def bytes_per_row(self) -> int:
        return self._cursor.bytes_per_row

    def at(self, t: int, tags: Tags) -> Longs:
        """Return the noise of every row at tick t, in whole numbers (n,).

        `tags` (n, 2) are those of the last call, and possibly more behind them.
        """
        counter = self._counter
        cursor = self._cursor
        check_tick(counter.kind, t, counter._last_tick)
        rows = len(tags)
        rows_before = min(self._rows_before, rows)
        # 0 until this call succeeds: after a failure the next call draws all rows from nothing.
        self._rows_before = 0
        place = t + counter.offset
        cursor.set_place(place, rows_before)
        # Until the end of the block of 2^L places.
        ticks_left = ((cursor.block + 1) << counter.levels) - place
        out = np.empty(rows, dtype=np.int64)
        redrawn: set[int] = set()
        fixed = counter.fixed
        for row in range(0, rows, CHUNK_ROWS):
            part = tags[row : row + CHUNK_ROWS]
            cursor.move_chunk(part, row)
            # The cursor's noise has this block's end, times u_L. Add the end of the block before,
            # times 1 - u_L = ticks_left / 2^L, rounded down, as two products that fit 64 bits.
            end = cursor.step_before(row, len(part)).astype(np.int64)
            whole = end >> counter.levels
            rest = end - (whole << counter.levels)
            noise = cursor.noise[: len(part)] + whole * ticks_left
            noise += (rest * ticks_left) >> counter.levels
            rounded = out[row : row + CHUNK_ROWS]
            number = decide(noise, fixed.point, fixed.error, rounded, self._undecided)
            redrawn.update((self._undecided[:number] + row).tolist())
        self._rows_before = rows
        # Rows that are undecided, or had a word too small for the cursor, are drawn exactly.
        redrawn.update(cursor.inexact)
        if redrawn:
            numbers = np.array(sorted(redrawn), dtype=np.int64)
            out[numbers] = counter.draw(self._stream, t, tags[numbers])
        return out


def levels_of(ticks: int) -> int:
    """Return L for intervals of at most so many ticks: the least with 3 * 2^L >= `ticks`."""
    return max(1, (-(-ticks // _BLOCKS_MOST) - 1).bit_length())


def rest_of(levels: int) -> int:
    """Return K: noise more than K ticks after a tick has no node in common with any up to it."""
    return (3 << levels) - 2


def weights(levels: int) -> list[Fraction]:
    """Return the weights w of levels 1..L and of ends; a node of weight w has variance s2 / w.

    A search for little noise found them. They are 1, except for the finest levels (the factors of
    `line`), the two highest, and ends.
    """
    by_level = []
    for level in range(1, levels + 1):
        weight = FINEST[level - 1] if level <= len(FINEST) else Fraction(1)
        below = levels - level
        if below < len(HIGHEST):
            weight *= HIGHEST[below]
        by_level.append(weight)
    return [*by_level, ENDS]


def cost_of(levels: int, ticks: int) -> Fraction:
    """Bound the sum of w_v (shift of node v)^2 where the counts of `ticks` ticks change by one."""
    return Fraction(_OVERHEADS[levels - 1], 4096) + ENDS * Fraction(ticks, 1 << levels)
