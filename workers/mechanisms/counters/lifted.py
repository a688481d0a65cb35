"""The lifted counter, the default: running sums through the lifted Haar transform.

What: the noise of ticks 1..T is a path over 2^h >= T places, p = t + o. Level j = 1..h cuts them
into 2^(h - j) blocks of 2^j places, numbered from 0; block K has the node (j, K), a normal number
z_j[K]. (0, 0) is the total. Level by level a block's middle follows from its ends: N(t) = N_0(p) of

    N_h(0) = 0,  N_h(1) = z_total
    N_(j-1)(2K)     = N_j(K) - (z_j[K] + z_j[K-1]) / 8,   nothing where there is no K or K - 1
    N_(j-1)(2K + 1) = (N_(j-1)(2K) + N_(j-1)(2K + 2)) / 2 + z_j[K] / 2

Why: the least error of the counters that need no state and few nodes a tick.

    Symbol      Here
    h           `_levels`
    o           `offset`, places before tick 1: 0, or 2^h - T with an end_share; p = t + o
    K           p >> j, the block of level j that begins at or before p
    u_j         (p mod 2^j) / 2^j, how far p is into it
    D           `_denominator` = 8 * 2^h: all coefficients are multiples of 1 / D
    w_(j,k)     `weights`: of level j inside, and at its edges, its first and last node;
                s2_v = s2 / w_v
    L           `cost_of_levels`, at least sum_(j >= 1) w_v C[v, t]^2 at every t; S = L + w_total
    s2          S / (2 rho_item), rounded up
    r_j         kept of a row (an item): N_(j-1)(2K + 2), at the right end of block K of level j,
                here the one with p - 1

Coefficients: with c_j = min(u_j, 1 - u_j), a = 1 - u_j (0 for the first node) and b = u_j (0 for
the last one), c_j - (a + b) / 8 for node K, -a / 8 for K - 1, -b / 8 for K + 1; p / 2^h for the
total. At the end of an epoch, with o = 2^h - T, the total's alone is left.

Guarantee and proofs: docs/decisions/0030-lifted-haar.md. An event in tick t shifts the nodes by
C e_t; all releases together cost S / (2 s2) for each item it changes by one, also when the stream
reacts to them. An `end_share` e is the total's share of it: w_total = e / (1 - e) L.

Unbounded: 50 levels with w_j ~ (j + 2)^-1.2 need no T; t stays below 2^40. The total needs noise
too, but its coefficient is below 2^-10, so a weight of 2^-10 has no visible effect.

Cache: `LiftedColumns` keeps r_j of every row, and a few nodes, in the units of `fixed_point`, whole
multiples of 2^-point. Of a level's nodes N_(j-1)(2K) has parts that add up to 1/4, N_(j-1)(2K + 1)
to 1/2 (3/8 of K, 1/16 of those beside it), with at most two divisions rounded down: in all
1 + h / 2 nodes and 2 h divisions. Levels above `_used` have only one block before the last tick:
nothing is kept of them, and up to its end u_j is small: parts of at most 5 u_j / 4. Rows that this
error leaves undecided, or with a word too small for `normal.rough`, are drawn by `Counter.draw`.
"""

import math
from collections.abc import Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import NamedTuple, Protocol

import numpy as np

from workers.arrays.compiled import kernel, kernel_inline
from workers.arrays.types import Floats, Longs, Tags, Words
from workers.mechanisms.counters.base import (
    Columns,
    Counter,
    Node,
    cells_of,
    check_tick,
    fixed_point,
    root_of,
    rounded_up,
)
from workers.mechanisms.curves import ROUNDING, Curve
from workers.mechanisms.ledger import with_capacity
from workers.mechanisms.noise import normal
from workers.mechanisms.noise.keyed import CHUNK_ROWS, Cell, NoiseStream
from workers.mechanisms.noise.normal import Numbers, rough
from workers.runtime.frozen import Frozen, memoized, read_only

_UNBOUNDED_LEVELS = 50
_TOTAL = (0, 0)

# In 1/40: weights inside a level, of the finest and the coarsest levels (of the two coarsest there
# is no inside); these multiply where a level is both, others have 1. Then of a level's first and
# last node, and of the total, by h and beyond.
FINEST = (58, 48, 42)
COARSEST = (34, 34, 38, 41, 42)
EDGE = 25
COARSEST_EDGE = (38, 48, 47, 44, 44)
TOTAL = 136
TOTAL_OF_FEW = (40, 70, 60, 90, 110)

# L in 1/4096 for h = 0..40, then for an unbounded horizon: `python -m bench.lifted_haar --norms`.
_OF_LEVELS = (
    *(0, 2433, 6873, 11998, 17098, 22132, 26889, 31498, 36063, 40753),
    *(45473, 50310, 55165, 60011, 64862, 69710, 74560, 79409, 84258, 89107),
    *(93956, 98805, 103654, 108507, 113358, 118209, 123059, 127910, 132761, 137612),
    *(142462, 147313, 152164, 157014, 161865, 166716, 171567, 176417, 181268, 186119),
    190970,
)
_OF_UNBOUNDED = Fraction(12717, 4096)

# In place of a cell's number: the node's number is in the state; the node is not needed.
STORED = -2
UNUSED = -1


class Step(NamedTuple):
    """Where `descend` finds the node of a level's block, and those of the blocks beside it.

    A cell of words has two nodes, its halves 0 and 1. "Next" and "last" are the nodes of the block
    after and of the one before. A cell is its index in `Plan.cells`, or `STORED`, or `UNUSED`.
    """

    cell: int
    half: int
    next_cell: int
    next_half: int
    last_cell: int
    last_half: int
    left_stored: int  # 1: N at the left end is in the state, as the right end of the block before
    goes_right: int  # 1: the place is in the right half of the block


class Plan(NamedTuple):
    """What `descend` needs to move rows to a place, from the one before or from nothing.

    `cells` (cells, 2) are those whose words are to be drawn; the other fields are arguments of
    `descend`, in its order.
    """

    cells: Words
    rise_cell: int
    rise_half: int
    steps: Longs
    scales: Floats
    kept_levels: int


class Path(Protocol):
    """What `plan_between` asks of a counter: which nodes there are, and how large."""

    def blocks(self, level: int) -> range:
        """Return the numbers k of a level's nodes."""

    def scale(self, level: int, k: int) -> float:
        """Return the standard deviation of a node in the units of rows."""


# Of places that agree in so many high bits, the search for the noisiest keeps one.
_KEPT_BITS = 12


class LiftedCurve(Frozen, Curve):
    """The variance of the noise at some ticks, at the worst, and on average.

    `by_level` has s2 of nodes, (inside, edge) by level; 0 is the total. The variance is the sum of

        part of j    (c - e)^2 s2_K + (a / 8)^2 s2_(K-1) + (b / 8)^2 s2_(K+1), c = min(u, 1 - u),
                     a = 1 - u, b = u, e = (a + b) / 8; a or b is 0 at an edge
        total        (p / 2^h)^2 s2_total

    Worst place: the part of level j depends on p's lowest j bits, so the search extends p bit by
    bit, with the parts of nodes inside a level. Among places that agree in their 12 highest bits so
    far it keeps only the best: later parts differ between them by less than 2^-11 of one node's
    variance. The places found are compared with their true variances, edges included.
    """

    def __init__(self, by_level: Sequence[tuple[float, float]], offset: int) -> None:
        self._by_level = tuple(by_level)
        self._offset = offset
        self._levels = len(by_level) - 1

    def at(self, ticks: Longs) -> Floats:
        """Return the variance of N at ticks (n,), within a relative 1e-12."""
        places = ticks + self._offset
        # Level 0 is the total, a single node, so inside and edge are the same.
        total = (places / 2.0**self._levels) ** 2 * self._by_level[0][0]
        for level in range(1, self._levels + 1):
            total += self._part(level, places)
        return total

    def variance(self, ticks: Longs) -> Floats:
        return self.at(ticks) + ROUNDING

    def candidates(self, last: int) -> Longs:
        """Return some ticks of 1..last, one within 2^-10 of a node's variance of the noisiest."""
        grids = self._grids()
        places = []
        place = self._offset + 1
        after = self._offset + last + 1
        while place < after:
            # The largest aligned block of 2^k places that begins here and ends in range. Its places
            # differ in their lowest k bits; `grids` has the values of these that may be noisiest.
            k = min((place & -place).bit_length(), (after - place).bit_length()) - 1
            places.append(grids[k] + place)
            place += 1 << k
        return np.concatenate(places) - self._offset

    def mean(self, last: int) -> float:
        noise = (self._sum(self._offset + last) - self._sum(self._offset)) / last
        return noise + ROUNDING

    def _part(self, level: int, places: Longs | Floats) -> Floats:
        """Return a level's part of the variance at places: squared coefficients, each times s2."""
        k, (before, own, after) = coefficients_at(places, level, self._levels)
        beside = before**2 * self._variance_of(level, k - 1)
        beside += after**2 * self._variance_of(level, k + 1)
        return own**2 * self._variance_of(level, k) + beside

    def _last(self, level: int) -> int:
        return (1 << (self._levels - level)) - 1

    def _variance_of(self, level: int, node: Longs) -> Floats:
        inside, edge = self._by_level[level]
        return np.where((node == 0) | (node == self._last(level)), edge, inside)

    def _grids(self) -> list[Longs]:
        """Return, for k = 0..h, the values of p's lowest k bits that may be noisiest, ascending.

        Up to k = 12 these are all values. For larger k, of those that agree in their highest 12
        bits only the one with most variance in levels 1..k is kept. The class bounds what that
        misses.
        """
        bits = np.zeros(1, dtype=np.int64)
        variance = np.zeros(1)
        grids = [bits]
        for level in range(1, self._levels + 1):
            bits = np.concatenate((bits, bits + (1 << (level - 1))))
            u = bits / 2.0**level
            # The part of a level inside: a + b = 1.
            part = (np.minimum(u, 1 - u) - 1 / 8) ** 2 + ((1 - u) ** 2 + u**2) / 64
            inside = self._by_level[level][0]
            variance = np.concatenate((variance, variance)) + part * inside
            if level > _KEPT_BITS:
                # Entries 2 i and 2 i + 1 differ only in the lowest of their highest 13 bits.
                pairs = variance.reshape(-1, 2)
                best = pairs.argmax(axis=1) + np.arange(0, len(variance), 2)
                bits = bits[best]
                variance = variance[best]
            grids.append(bits)
        return grids

    def _sum(self, place: int) -> float:
        """Return the sum of the variances of places 0..place, for `mean`.

        In closed form, block by block: an epoch may have 2^40 places.
        """
        # The total's part: the sum of squares of 0..place, over 4^h.
        squares = place * (place + 1) * (2 * place + 1) // 6
        total = self._by_level[0][0] * (squares / 4**self._levels)
        for level in range(1, self._levels + 1):
            # Whole blocks, and `rest` places of the next one.
            width = 1 << level
            blocks, rest = divmod(place + 1, width)
            last = self._last(level)
            # Blocks 0, 1 and the last two use nodes at an edge, so they have sums of their own. All
            # others have the sum of block 2.
            special = {k for k in (0, 1, last - 1, last) if 0 <= k < blocks}
            others = min(blocks, last + 1) - len(special)
            *sums, sum_of_others = self._block_sums(
                level, np.array([*special, 2]), width
            )
            total += sum(sums) + others * sum_of_others
            total += self._block_sums(level, np.array([blocks]), rest)[0]
        return float(total)

    def _block_sums(self, level: int, k: Longs, n: int) -> Floats:
        """Return a level's part of the variance, summed over the first n places of blocks k (m,).

        In either half of a block the part is a quadratic function of the place. So its sum there
        follows from three values: at the first place, at the last, and halfway between them.
        """
        half = 1 << (level - 1)
        total = np.zeros(len(k))
        for first, stop in ((0, min(n, half)), (half, n)):
            places = stop - first
            if places < 1:
                continue
            three = np.array([[0], [(places - 1) / 2], [places - 1]])
            begin, middle, end = self._part(level, (k << level) + first + three)
            # With x from -1 to 1 over these places the part is middle + slope x + bend x^2. The
            # mean of x is 0, and `square` is the mean of x^2.
            square = (places + 1) / (3 * (places - 1)) if places > 1 else 0.0
            bend = (begin + end) / 2 - middle
            total += places * (middle + bend * square)
        return total


def coefficients_at(
    places: Longs | Floats, level: int, levels: int
) -> tuple[Longs, tuple[Floats, Floats, Floats]]:
    """Return a level's blocks K at places, and the coefficients of nodes K - 1, K and K + 1."""
    last = (1 << (levels - level)) - 1
    k = np.floor(places / 2.0**level).astype(np.int64)
    u = places / 2.0**level - k
    # Beyond the last block, at place 2^h, u is 0: no node has a part.
    a = (1 - u) * ((k > 0) & (k <= last))
    b = u * (k < last)
    return k, (-a / 8, np.minimum(u, 1 - u) - (a + b) / 8, -b / 8)


class LiftedCounter(Counter):
    """Counter of lifted Haar nodes; `end_share` in (0, 1) is the last tick's share of rho_item."""

    kind = "lifted"
    order = 0
    takes = ("end_share",)

    def __init__(
        self, horizon: int | None, rho_item: float, end_share: float | None = None
    ) -> None:
        """Compute node variances for which all releases together cost `rho_item`."""
        super().__init__(horizon, rho_item)
        if end_share is not None and not 0 < end_share < 1:
            raise ValueError(
                f"end_share = {end_share}: must be a number above 0 and below 1"
            )
        if end_share is not None and horizon is None:
            raise ValueError(
                f"end_share = {end_share}: an unbounded horizon has no last tick"
            )
        self.end_share = end_share
        # Weights (inside, edge) of levels 1..h, the total's, and L of the module.
        if horizon is None:
            of_nodes = list(unbounded_weights())
            cost_of_levels = _OF_UNBOUNDED
            # 2^-10 of all: see the module, Unbounded.
            of_total = sum((inside for inside, _edge in of_nodes), Fraction(0)) / 1024
        else:
            levels = (horizon - 1).bit_length()
            of_nodes, of_total = weights(levels)
            cost_of_levels = Fraction(_OF_LEVELS[levels], 4096)
        self._levels = len(of_nodes)
        # With a single tick there is only the total.
        if end_share is not None and of_nodes:
            share = Fraction(repr(end_share))  # 0.6 is exactly six tenths
            of_total = share / (1 - share) * cost_of_levels
        # With an end_share the last tick is place 2^h, where only the total has a part.
        self.offset = 0 if end_share is None else (1 << self._levels) - self._last_tick
        s2 = (cost_of_levels + of_total) / (2 * Fraction(rho_item))
        # By level, 0 the total: (inside, edge).
        self._variances = tuple(
            (rounded_up(s2 / inside), rounded_up(s2 / edge))
            for inside, edge in ((of_total, of_total), *of_nodes)
        )
        self._denominator = 1 << (self._levels + 3)
        sds = [
            [float(root_of(variance)) for variance in pair] for pair in self._variances
        ]
        self._sds = tuple(map(tuple, sds))
        floats = [(float(inside), float(edge)) for inside, edge in self._variances]
        self._curve = LiftedCurve(floats, self.offset)
        # Levels whose first block ends before the last tick: a row keeps something of them.
        self._used = min(self._levels, (self.offset + self._last_tick - 1).bit_length())
        # The error of the cache: see the module.
        self.fixed = fixed_point(
            max(map(max, sds)),
            parts=1 + self._levels / 2,
            largest=self._largest_end(),
            divisions=2 * self._levels,
        )

    def _shape(self) -> dict[str, object]:
        """Return the parameters that determine a tick's nodes and their variances, as JSON."""
        shape: dict[str, object] = {"levels": self._levels, "offset": self.offset}
        if self.end_share is not None:
            shape["end_share"] = repr(self.end_share)
        return shape | {
            "sigma_squared": [[str(v) for v in pair] for pair in self._variances]
        }

    def _largest_end(self) -> float:
        """Bound, for every number that a row keeps, the sum over nodes of |coefficient| sd.

        From it `fixed_point` chooses a type that the numbers fit. They are N at the ends of blocks,
        so at places up to 2^used.
        """
        # The total's (level 0) coefficient is p / 2^h.
        bound = self._sds[0][0] * 2.0 ** (self._used - self._levels)
        for level in range(1, self._levels + 1):
            # The most that a level's absolute coefficients add up to: see the module, Cache.
            coefficients = 1 / 2
            if level > self._used:
                coefficients = 5 / 4 * 2.0 ** (self._used - level)
            bound += max(self._sds[level]) * coefficients
        return bound

    def _last(self, level: int) -> int:
        return (1 << (self._levels - level)) - 1

    def _edge(self, level: int, k: int) -> bool:
        return k == 0 or k == self._last(level)

    def variance_of(self, node: Node) -> Fraction:
        level, k = node
        return self._variances[level][self._edge(level, k)]

    def sd_of(self, node: Node) -> float:
        level, k = node
        return self._sds[level][self._edge(level, k)]

    def nodes(self, t: int) -> dict[Node, int]:
        """Return the non-zero coefficients of N(t) by node, times D."""
        check_tick(self.kind, t, self._last_tick)
        position = t + self.offset
        unit = self._denominator
        factors = {}
        for level in range(1, self._levels + 1):
            k = position >> level
            # u, a and b of the module, times D: multiples of 8.
            u = (position & ((1 << level) - 1)) * (unit >> level)
            a = (unit - u) * (0 < k <= self._last(level))
            b = u * (k < self._last(level))
            factors[level, k] = min(u, unit - u) - (a + b) // 8
            factors[level, k - 1] = -a // 8
            factors[level, k + 1] = -b // 8
        factors[_TOTAL] = position * (unit >> self._levels)
        return {node: factor for node, factor in factors.items() if factor}

    def variances(self, ticks: Longs) -> Floats:
        return self._curve.at(ticks)

    def curve(self) -> Curve:
        """Return the variance of what is published by tick, for plans and reports."""
        return self._curve

    def worst_variance(self) -> float:
        # The candidates may miss a part in 2^10 of a node's variance.
        return super().worst_variance() * (1 + 2.0**-8)

    def blocks(self, level: int) -> range:
        return range(1 << (self._levels - level))

    def scale(self, level: int, k: int) -> float:
        return math.ldexp(self.sd_of((level, k)), self.fixed.point)

    def columns(self, stream: NoiseStream) -> "LiftedColumns":
        return LiftedColumns(self, stream)


class LiftedColumns(Columns):
    """A cache of the noise of all rows at one place, which moves on with the ticks.

    From tick to tick it draws about one and a half nodes a row. A row keeps r_1, r_2, ... of the
    module, z_1 of the next block and, if that is even, of the one after it.
    """

    _counter: LiftedCounter

    def __init__(self, counter: LiftedCounter, stream: NoiseStream) -> None:
        super().__init__(counter, stream)
        # How many of r_1, r_2, ... a row keeps. The next one would be used once in an epoch, when
        # the highest of these levels comes to its second block; rows then start from nothing.
        self._ends_kept = max(counter._used - 1, 0)
        # Also z_1 of the next two blocks.
        self._numbers_kept = self._ends_kept + 2
        # Scratch of `descend`: N at the left and right end of a block, or at the place.
        self._lefts_rights = np.empty((2, CHUNK_ROWS), dtype=np.int64)
        # By chunk of rows: (numbers kept, rows).
        self._states: list[normal.Numbers] = []
        # The place of the last call, and how many rows, the first ones, it moved there.
        self._place: int | None = None
        self._rows_before = 0

    def at(self, t: int, tags: Tags) -> Longs:
        """Return the noise of every row at tick t (n,); `tags` (n, 2) only grow."""
        counter = self._counter
        rows = len(tags)
        check_tick(counter.kind, t, counter._last_tick)
        position = t + counter.offset
        since = self._place
        rows_before = min(self._rows_before, rows)
        if since is None or not self._can_reach(position, since):
            since = None
            rows_before = 0
        # Unset until this call succeeds: a failure leaves no wrong state.
        self._place = None
        out = np.empty(rows, dtype=np.int64)
        # Rows of the last call go on from its place, the others start from nothing.
        self._advance(position, since, tags[:rows_before], 0, out)
        self._advance(position, None, tags[rows_before:], rows_before, out)
        self._place = position
        self._rows_before = rows
        return self._finish(t, tags, out)

    def _can_reach(self, place: int, since: int) -> bool:
        # At the same place N is r_1 if that is even; at an odd one it is not kept.
        later = place > since or (place == since and not place & 1)
        return later and changed_levels(place, since) < self._ends_kept

    def _advance(
        self, position: int, since: int | None, tags: Tags, first: int, out: Longs
    ) -> None:
        """Move rows to a place, from `since` or from nothing, and write their noise to `out`.

        `tags` are those of rows from `first` on; `out` has all rows.
        """
        if not len(tags):
            return
        plan = _plan(self._counter, position, since)
        row = first
        last = first + len(tags)
        # So many rows have CHUNK_ROWS words together, the most that are drawn in one call.
        at_once = CHUNK_ROWS // max(len(plan.cells), 1)
        while row < last:
            index, begin = divmod(row, CHUNK_ROWS)
            rows = min(at_once, last - row, CHUNK_ROWS - begin)
            state = self._state(index, begin + rows)[:, begin : begin + rows]
            # With nothing to do, the place is the right end of its block of level 1, where N is
            # r_1.
            noise: normal.Numbers = state[0]
            if len(plan.cells) or len(plan.steps):
                part = tags[row - first : row - first + rows]
                lefts = self._lefts_rights[0, :rows]
                noise = self._lefts_rights[1, :rows]
                words = self._words(plan.cells, part, row)
                # The rest of the plan: `words` are those of its cells.
                descend(words, normal.table(), *plan[1:], state, lefts, noise)
            self._round(noise, out[row : row + rows], row)
            row += rows

    def _state(self, index: int, rows: int) -> normal.Numbers:
        """Return the kept numbers of a chunk of rows, (numbers, rows), with room for `rows`.

        `index` is the number of a known chunk, or the next one.
        """
        if index == len(self._states):
            self._states.append(
                np.empty((self._numbers_kept, 0), dtype=self._counter.fixed.dtype)
            )
        self._states[index] = with_capacity(self._states[index], rows, axis=1)
        return self._states[index]


def plan_between(
    path: Path,
    position: int,
    since: int | None,
    levels: int,
    rise: Node | None,
    *,
    kept_levels: int,
) -> Plan:
    """Return what `descend` does to move rows: a step down for each level with a new block.

    Args:
        path: the counter that has the nodes.
        position: the place to get to.
        since: the place of the rows; None: they have no state.
        levels: how many, from the finest on, have another block than at `since`.
        rise: the node by which N rises from 0 over the block above these levels; None if the state
            has N at its right end.
        kept_levels: for how many levels, from the finest on, the state has the nodes of the next
            two blocks.
    """
    cells: dict[Cell, int] = {}
    steps = np.zeros((levels, 8), dtype=np.int64)
    scales = np.zeros((levels + 1, 4))

    def cell_of(level: int, k: int) -> tuple[int, int]:
        """Return the number of a node's cell among those to be drawn, and its half."""
        return cells.setdefault((level, k >> 1), len(cells)), k & 1

    for level in range(levels, 0, -1):
        # A place belongs to the block whose right end it may be, so p - 1 is in it.
        k = (position - 1) >> level
        blocks = path.blocks(level)
        # From the block just before, the state has N at its right end: this block's left end. At
        # kept levels it also has this block's node and, if k is even, the next one's. (Two nodes
        # share a cell, 2 i and 2 i + 1: they were drawn together when the block before was odd.)
        left_stored = since is not None and (since - 1) >> level == k - 1
        has_nodes = left_stored and level <= kept_levels
        node = STORED, 0
        if not has_nodes:
            node = cell_of(level, k)
            scales[level - 1, 0] = path.scale(level, k)
        after = UNUSED, 0
        if k + 1 in blocks and has_nodes and not k & 1:
            after = STORED, 0
        elif k + 1 in blocks:
            after = cell_of(level, k + 1)
            scales[level - 1, 1] = path.scale(level, k + 1)
            # Of the one after it, which the state gets too if it is in the same cell.
            scales[level - 1, 3] = path.scale(level, k + 2)
        # From the end of a block the way leads right at all levels below: no left end is used.
        is_end = position & ((1 << level) - 1) == 0
        before = UNUSED, 0
        if k - 1 in blocks and not left_stored and not is_end:
            before = cell_of(level, k - 1)
            scales[level - 1, 2] = path.scale(level, k - 1)
        goes_right = (position - 1) >> (level - 1) & 1
        steps[level - 1] = Step(*node, *after, *before, left_stored, goes_right)
    of_rise = STORED, 0
    if rise is not None:
        of_rise = cell_of(*rise)
        scales[levels, 0] = path.scale(*rise)
    read_only(steps)
    read_only(scales)
    return Plan(cells_of(cells), *of_rise, steps, scales, kept_levels)


def changed_levels(place: int, since: int) -> int:
    """Return how many levels, from the finest on, have another block at `place` than at `since`."""
    return max(((since - 1) ^ (place - 1)).bit_length() - 1, 0)


@memoized(64)
def _plan(counter: LiftedCounter, place: int, since: int | None) -> Plan:
    """Return how rows get to a place, from `since` or from nothing."""
    # From nothing N rises by the total over all places, and every level is new.
    levels = counter._levels if since is None else changed_levels(place, since)
    rise = _TOTAL if since is None else None
    return plan_between(counter, place, since, levels, rise, kept_levels=1)


def weights(levels: int) -> tuple[list[tuple[Fraction, Fraction]], Fraction]:
    """Return the weights w (inside, edge) of levels 1..h, and the total's.

    A node of weight w has the variance s2 / w. They are 1 inside a level and `EDGE` at its edges,
    with factors for the finest and coarsest levels. A search for the least error found these
    constants, in units of 1/40.
    """
    pairs = []
    for level in range(1, levels + 1):
        inside = Fraction(1)
        edge = Fraction(EDGE, 40)
        below_top = levels - level
        if level <= len(FINEST):
            inside *= Fraction(FINEST[level - 1], 40)
        if below_top < len(COARSEST):
            inside *= Fraction(COARSEST[below_top], 40)
            edge *= Fraction(COARSEST_EDGE[below_top], 40)
        pairs.append((inside, edge))
    total = TOTAL_OF_FEW[levels] if levels < len(TOTAL_OF_FEW) else TOTAL
    return pairs, Fraction(total, 40)


@memoized(1)
def unbounded_weights() -> tuple[tuple[Fraction, Fraction], ...]:
    """Return the weights (inside, edge) of levels j = 1..50 without a horizon: (j + 2)^-1.2 both.

    Decimals on a grid of 2^-40 are the same on every machine.
    """
    pairs = []
    with localcontext(prec=50):
        for level in range(1, _UNBOUNDED_LEVELS + 1):
            power = (Decimal("-1.2") * Decimal(level + 2).ln()).exp()
            weight = Fraction(int(power * (1 << 40)), 1 << 40)
            pairs.append((weight, weight))
    return tuple(pairs)


@kernel_inline
def drawn(
    words: Words, cell: int, half: int, i: int, scale: float, table: Floats
) -> np.int64:
    """Return the number z of row i's node, in whole units, from the node's half of a cell of words.

    `words` (cells, rows, 2); `scale` is the node's standard deviation in units.
    """
    return np.int64(rough(words[cell, i, half], table) * scale)


@kernel_inline
def enter_left_half(
    i: int,
    node: np.int64,
    beside: np.int64,
    level: int,
    state: Numbers,
    lefts: Longs,
    out: Longs,
) -> None:
    """Move row i into the left half of its block of a level: the short way through `descend`.

    Rows come from the block before, so `state[level]` has N at its right end, which is this block's
    left end. It becomes N at this block's right end. On entry `out` has the level above's N at the
    right end; on return `lefts` and `out` have N at the two ends of the half. `node` and `beside`
    are the numbers of the block's node and of the next block's.
    """
    left = np.int64(state[level, i])
    # An end is lowered by an eighth of the two nodes beside it.
    right = out[i] - ((node + beside) >> 3)
    lefts[i] = left
    # The half's right end is the block's middle.
    out[i] = (left + right + node) >> 1
    state[level, i] = right


@kernel
def descend(
    words: Words,
    table: Floats,
    rise_cell: int,
    rise_half: int,
    steps: Longs,
    scales: Floats,
    kept_levels: int,
    state: Numbers,
    lefts: Longs,
    out: Longs,
) -> None:
    """Compute N at a place for n rows: a step down for each level that has a new block there.

        N_j      left ------------------------ right     lefts, out: the block's ends
        N_(j-1)  left - e ---- middle ---- right - e'    of which one half is the next block

    Before a level's turn rows have N_j at both ends of the level's block. An eighth of the nodes
    beside each end is taken off it (e, e'), the middle is the mean of the ends and half of the
    block's node, and the half that the place is in is the next level's block. An end that the
    block shares with the one that a row was in before comes from the state.

    Args:
        words: (cells, n, 2), of the nodes that are drawn: in a cell two, the halves. The caller has
            raised those too small for `rough`.
        table: of `normal`, with which `rough` makes normal numbers of words.
        rise_cell, rise_half: the cell and half of the node by which N rises from 0 over the first
            block; `STORED` where the state has N at its right end.
        steps: (levels, 8), by level, finest first: the cell and half of the block's node, of the
            next block's, of the last one's; 1 if N at the left end is in the state; 1 if the place
            is in the right half. A cell may be `STORED`, in the state, or `UNUSED` (see `Step`).
        scales: (levels + 1, 4), standard deviations in units: by level, of the block's node, of the
            next, of the last, of the one after the next; then of the first block's rise.
        kept_levels: how many levels, from the finest on, have nodes in the state.
        state: (ends + 2 kept_levels, n), read and written: by level, from the finest on, N at the
            right end of its block, for the lowest `ends` levels (of the first block, too, if there
            is room); then by kept level the nodes of the next two blocks.
        lefts: (n,), scratch: N at the left end of the block that rows are in.
        out: (n,), written: N at the place, in units; on the way, at the right end of the block.
    """
    levels = len(steps)
    rows = len(out)
    ends = len(state) - 2 * kept_levels
    if rise_cell >= 0:
        for i in range(rows):
            lefts[i] = 0
            end = drawn(words, rise_cell, rise_half, i, scales[levels, 0], table)
            out[i] = end
            if levels < ends:
                state[levels, i] = end
    else:
        # `lefts` stays unset: where levels below change and this one does not, the first step has
        # its left end in the state.
        for i in range(rows):
            out[i] = state[levels, i]
    for level in range(levels - 1, -1, -1):
        # The fields of `Step`, and the scales of their nodes.
        cell = steps[level, 0]
        half = steps[level, 1]
        next_cell = steps[level, 2]
        next_half = steps[level, 3]
        last_cell = steps[level, 4]
        last_half = steps[level, 5]
        left_stored = steps[level, 6]
        goes_right = steps[level, 7]
        scale = scales[level, 0]
        next_scale = scales[level, 1]
        last_scale = scales[level, 2]
        # Of the node after the next. It is in the next one's cell if that is half 0 there.
        pair_scale = scales[level, 3]
        # The state's rows of the next block's node and of the one after it. Levels that are not
        # kept read rows 0 and 1, and do not use them.
        ahead = ends + 2 * level if level < kept_levels else 0

        # Most levels from one tick to the next, in loops as short as they can be; they compute
        # what the general loop below does. The left end is stored, so rows come from the block
        # before: a kept level has this block's node in the state. Only one not kept draws it.
        if left_stored and next_cell != UNUSED and not goes_right:
            if cell >= 0:
                for i in range(rows):
                    node = drawn(words, cell, half, i, scale, table)
                    beside = drawn(words, next_cell, next_half, i, next_scale, table)
                    enter_left_half(i, node, beside, level, state, lefts, out)
            elif next_cell >= 0:
                # The state has no further node: the cell has those of the next two blocks.
                for i in range(rows):
                    node = np.int64(state[ahead, i])
                    beside = drawn(words, next_cell, 0, i, next_scale, table)
                    state[ahead, i] = beside
                    state[ahead + 1, i] = drawn(
                        words, next_cell, 1, i, pair_scale, table
                    )
                    enter_left_half(i, node, beside, level, state, lefts, out)
            else:
                for i in range(rows):
                    node = np.int64(state[ahead, i])
                    beside = np.int64(state[ahead + 1, i])
                    state[ahead, i] = beside
                    enter_left_half(i, node, beside, level, state, lefts, out)
            continue

        for i in range(rows):
            node = np.int64(state[ahead, i])
            if cell >= 0:
                node = drawn(words, cell, half, i, scale, table)
            left = lefts[i]
            # The right end, less an eighth of this block's node and the next one's.
            right = out[i]
            if next_cell != UNUSED:
                beside = np.int64(state[ahead + 1, i])
                if next_cell >= 0:
                    beside = drawn(words, next_cell, next_half, i, next_scale, table)
                right -= (node + beside) >> 3
                if level < kept_levels:
                    state[ahead, i] = beside
                    if next_cell >= 0 and next_half == 0:
                        state[ahead + 1, i] = drawn(
                            words, next_cell, 1, i, pair_scale, table
                        )
            # The left end: stored, and read before the right end is written over it; or less an
            # eighth of this block's node and the last one's.
            if left_stored:
                left = np.int64(state[level, i])
            elif last_cell >= 0:
                before = drawn(words, last_cell, last_half, i, last_scale, table)
                left -= (node + before) >> 3
            if level < ends:
                state[level, i] = right
            # On into the half with the place.
            middle = (left + right + node) >> 1
            if goes_right:
                lefts[i] = middle
                out[i] = right
            else:
                lefts[i] = left
                out[i] = middle
