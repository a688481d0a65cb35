"""The line counter: windows that slide for ever, from one noise path that is paid for once.

What: a window's noise at tick t is N(t) - N(b), b its begin, of a path N along the whole line of
places, p = t + o. (`lifted` has the same path, with edges and a total.) Level j = 1..L cuts the
line into blocks of 2^j places; block K has the node (j, K), a normal number z_j[K]. Over block K
of 2^L places the path rises by a step z_c[K], and within it descends: N(t) = N_0(p), for all
integers K,

    N_L(K + 1)      = N_L(K) + z_c[K]
    N_(j-1)(2K)     = N_j(K) - (z_j[K] + z_j[K-1]) / 8
    N_(j-1)(2K + 1) = (N_(j-1)(2K) + N_(j-1)(2K + 2)) / 2 + z_j[K] / 2

    Symbol      Here
    W, g        `window` and `hop`, ticks; g is a power of two, at most W
    b           `begin`: floor((t - W) / g) g; at the first ticks below 0, where nothing is counted
    r           `most_ticks` of a window: W + g - 1; r <= 2^L for all windows of one path
    shortest    of several windows of one path the shortest, in ticks; None for a single window.
                Levels much longer than it then get less weight: it does not use them much
    L           `levels`; nodes of level j = 1..L are (j, k), the steps z_c are (L + 1, k)
    o           `offset`: 2^(L + 1). Moving ticks by whole blocks of 2^L moves every node by whole
                nodes of equal weight, so the law is the same, and no k is negative
    K           p >> j, the block of level j that begins at or before p
    u_j, u'_j   (p mod 2^j) / 2^j, how far p is into it; the same of b's place
    w           `weights`: by level, the last is that of steps; s2_j = s2 / w_j is a node's variance
    S           `cost_of`, at least the sum of w_v C[v, t]^2 at every t
    s2          S / (2 rho_item), rounded up
    r_j         kept of a row (an item): N_(j-1)(2K + 2), at the right end of block K of level j,
                here the one with p - 1

Coefficients in N(t), and with the opposite sign in -N(b): min(u_j, 1 - u_j) - 1/8 of node K,
-(1 - u_j) / 8 of K - 1, -u_j / 8 of K + 1. Steps: u_L z_c[K] - u'_L z_c[K'], and z_c[K'] where b
lies in the block before, K' = K - 1.

Cache: `LineColumns` has a `Cursor` at t and one at the begin of each window; a cursor is all rows
at one place, and moves on with the ticks. Its numbers are relative to N_L at the begin of its block
of 2^L places, in fixed point: whole units of 2^-point. The error of a window, in nodes: of each
level's nodes a place has coefficients that add up to at most 1/2, two places 1; of steps two places
in one block have |u_L - u'_L|, in two blocks u_L + 1 - u'_L: at most 2. In all L + 2. Rounding
down: from level j to j - 1, an even place is too high by 0 to 7/8 unit, an odd one, the mean of two
even ones, by -1/2 to 7/8 more than the ends of its block. So a place is too high by -L / 2 to
7 L / 8, and a difference of two off by at most 11 L / 8. Rows that this error leaves undecided, or
inexact by a word too small for `normal.rough`, are drawn by `Counter.draw`.

Guarantee and proofs: docs/decisions/0036-windows-without-epochs.md. All windows at all ticks
together, for ever, cost S / (2 s2) for each item that an event changes by one, also when the stream
reacts to them.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from workers.arrays.types import Floats, Longs, Tags, Words
from workers.mechanisms.accounting import check_rho_item
from workers.mechanisms.counters.base import (
    Counter,
    Node,
    cells_of,
    check_tick,
    fixed_point,
    reals_of,
    root_of,
    rounded_up,
)
from workers.mechanisms.counters.lifted import (
    Plan,
    changed_levels,
    descend,
    plan_between,
)
from workers.mechanisms.curves import ROUNDING, Curve
from workers.mechanisms.ledger import with_capacity
from workers.mechanisms.noise import normal
from workers.mechanisms.noise.keyed import CHUNK_ROWS, NoiseStream
from workers.mechanisms.noise.normal import (
    Numbers,
    add_rough,
    decide_difference,
    raise_small,
)
from workers.runtime.frozen import Frozen, memoized, read_only

FINEST = (Fraction(3, 2), Fraction(6, 5), Fraction(21, 20))
HIGHEST = Fraction(23, 20)
STEPS = Fraction(7, 4)
# With several windows, a factor on steps and on levels j with 2^j > 2 * the shortest window.
SCALED = Fraction(7, 10)

# S in 1/4096 for L = 1..23, of one window: `bounds` in tests/mechanisms/counters/line.py.
_COSTS = (
    *(14458, 19722, 24817, 29522, 34428, 39248, 44112, 48954, 53807, 58654),
    *(63504, 68353, 73202, 78051, 82900, 87749, 92599, 97448, 102300, 107151),
    *(112002, 116853, 121703),
)
# At least by how much it is less if steps and the highest 0, 1, 2, ... levels are scaled.
_SAVED = (
    *(1901, 4073, 5280, 6979, 8303, 9825, 11247, 12718, 14165, 15623),
    *(17076, 18532, 19986, 21441, 22895, 24351, 25806, 27261, 28716, 30172),
    *(31627, 33082, 34667),
)
MOST_LEVELS = len(_COSTS)

# A cursor keeps nodes of this many of the finest levels, but of none at hops longer than this, at
# which it would skip some of their blocks.
KEPT_LEVELS = 2
LONGEST_KEPT_HOP = 4

# For windows of at most this many ticks, without hops, noise is kept until a window begins there.
LONGEST_PAST = 32

# In 1/4096, of weight 1: what two events 0, 1, 2, ... eighths of 2^j ticks apart or more have in
# common in nodes of level j, and in steps (`products_apart`, beside `bounds`). Nothing beyond.
_EIGHTHS = 8
_PRODUCTS = (
    *(6403, 6378, 6378, 6378, 6378, 6307, 6029, 4808, 1963, 965, 885, 769),
    *(286, 232, 156, 129, 81, 24, 12, 11, 6, 3, 2, 1),
)
_PRODUCTS_OF_STEPS = (
    *(5521, 5452, 5213, 4893, 4522, 4002, 3222, 2277, 1377, 1377, 1377, 1377, 1377),
    *(1347, 1204, 939, 465, 204, 204, 183, 176, 175, 164, 133, 73, 21, 21, 19, 13, 13),
    *(12, 11, 7, 2, 2, 2, 1, 1, 1, 1),
)

# A line has no edges; k is below 2^41.
_BLOCKS = range(1 << 42)

# Of a place, in the search for the noisiest; and of the ticks that stand for all in a mean.
_KEPT_BITS = 14


class LineCurve(Frozen, Curve):
    """The variance of one window's noise at some ticks, at the worst, and on average.

    `by_level` has s2 of nodes of levels 1..L, then of steps. Let s = t - W. The variance is the sum
    of a part for each level: the squares of its nodes' coefficients in N(t) - N(b), times s2_j.

    Period: level j's part depends on s mod 2^j, as u_j of both ends do, and their distance in
    blocks. (Where 2^j < g, b is a multiple of 2^(j+1), at least two blocks before t, and two ends
    at that distance share node K' + 1, of coefficient -u' / 8 = 0.) The part of steps depends on
    s mod 2^L. So the variance is periodic in 2^L ticks.

    Worst tick: the search extends s bit by bit, lowest first. Among values that agree in their 14
    highest bits so far it keeps only the one with most variance.

    What that misses (`slack`): for two such values of l bits, the ends of the windows are less than
    2^(l-14) ticks apart, and so are their begins (b is rounded down to a bit that they share, or
    moves no more than s). At a later level, the coefficients in N(t) are a vector that changes
    continuously with t, of length below 2/5, at a rate of less than 51/50 for each 2^j ticks. So
    the part changes at a rate of less than 2 (4/5) (2 * 51/50) < 4, times s2_j, and the part of
    steps at a rate of at most 2 (1 + 1) = 4.
    """

    def __init__(self, by_level: Sequence[float], window: int, hop: int) -> None:
        """Take s2 of levels 1..L and then of steps, and the window and its hop in ticks."""
        self._by_level = tuple(by_level)
        self._levels = len(by_level) - 1
        self._window = window
        self._hop = hop
        # The most variance that `candidates` can miss: see the class. With 15 or more `bits` of s,
        # `_grids` drops values that are less than 2^(bits - 14) ticks from one that it keeps. The
        # kept one has at least as much variance in levels up to `bits`. In each higher level it may
        # have less, by less than 4 s2 / 2^level a tick (steps count as level L).
        self.slack = math.fsum(
            4 * s2 * 2.0 ** (bits - _KEPT_BITS - min(level, self._levels))
            for bits in range(_KEPT_BITS + 1, self._levels)
            for level, s2 in enumerate(by_level, start=1)
            if level > bits
        )

    def at(self, ticks: Longs) -> Floats:
        """Return the variance of N(t) - N(b) at ticks (n,), within a relative 1e-12."""
        since = ticks - self._window
        total = np.zeros(len(ticks))
        for level in range(1, self._levels + 2):
            total += self._part(level, since)
        return total

    def variance(self, ticks: Longs) -> Floats:
        return self.at(ticks) + ROUNDING

    def candidates(self, last: int) -> Longs:
        """Return some ticks of 1..last, one within `slack` of the noisiest."""
        grids = _grids(self)
        period = 1 << self._levels
        if last >= period:
            # Ticks s + W, moved by whole periods into 1..period.
            return ((grids[-1] + self._window - 1) & (period - 1)) + 1
        blocks = []
        since = 1 - self._window
        after = since + last
        while since < after:
            # The largest aligned block of 2^k ticks that begins here and ends in range. The s in it
            # differ in their lowest k bits; `grids` has the values of these that may be noisiest.
            k = (after - since).bit_length() - 1
            if since:
                k = min(k, (since & -since).bit_length() - 1)
            blocks.append(grids[k] + since)
            since += 1 << k
        return np.concatenate(blocks) + self._window

    def worst(self) -> float:
        """Return a bound on the variance at all ticks, at most `slack` above the largest."""
        largest = float(self.at(self.candidates(1 << self._levels)).max())
        return (largest + self.slack) * (1 + 2.0**-36)

    def mean(self, last: int) -> float:
        """Return the mean variance of the published integers over ticks 1..last.

        The part of a level is periodic, so add up whole periods and the rest, level by level.
        """
        sums = []
        for level in range(1, self._levels + 2):
            period = 1 << min(level, self._levels)
            cycles, rest = divmod(last, period)
            if cycles:
                sums.append(cycles * self._sum(level, period))
            if rest:
                sums.append(self._sum(level, rest))
        return math.fsum(sums) / last + ROUNDING

    def _sum(self, level: int, ticks: int) -> float:
        """Return the sum of a level's part over ticks 1..`ticks`.

        Of more than 2^14 ticks it is estimated, from as many that are evenly spread over them.
        """
        number = min(ticks, 1 << _KEPT_BITS)
        # The middles of `number` equal stretches of ticks.
        spread = (2 * np.arange(number) + 1) * ticks // (2 * number) + 1
        part = self._part(level, spread - self._window)
        return float(part.mean()) * ticks

    def _part(self, level: int, since: Longs) -> Floats:
        """Return what a level (levels + 1: steps) adds to the variance at ticks `since` + W (n,).

        A node counts with the difference of its coefficients at the window's two ends.
        """
        width = min(level, self._levels)
        t = since + self._window
        begin = since // self._hop * self._hop
        # u_j at both ends, and how many blocks they are apart.
        u = (t & ((1 << width) - 1)) / 2.0**width
        v = (begin & ((1 << width) - 1)) / 2.0**width
        apart = (t >> width) - (begin >> width)
        s2 = self._by_level[level - 1]
        if level > self._levels:
            return s2 * np.where(apart == 0, (u - v) ** 2, u**2 + (1 - v) ** 2)
        ends = coefficients_of(u)
        begins = coefficients_of(v)
        # A place has the nodes of its block and of those beside it. Three blocks apart, none is
        # shared.
        if self._window >> width > 2:
            return s2 * sum((a**2 for a in (*ends, *begins)), np.zeros(len(since)))
        total = np.zeros(len(since))
        # Both places have nodes K - 1, K, K + 1 of their blocks K, here 0, 1, 2. The begin's are
        # `apart` nodes earlier, so the end's `node` is the begin's i where apart is i - node.
        for node, end in enumerate(ends):
            shared = np.zeros(len(since))
            for i in range(node, 3):
                shared = np.where(apart == i - node, begins[i], shared)
            total += (end - shared) ** 2
        # The begin's nodes that lie before all of the end's.
        for node, coefficient in enumerate(begins):
            total += np.where(apart > node, coefficient, 0) ** 2
        return s2 * total


def coefficients_of(u: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the coefficients of nodes K - 1, K and K + 1 of a level in N, where u = u_j (n,)."""
    return (u - 1) / 8, np.minimum(u, 1 - u) - 1 / 8, -u / 8


@memoized(64)
def _grids(curve: LineCurve) -> tuple[Longs, ...]:
    """Return, for k = 0..L, the values of s mod 2^k at which the noise may be largest, ascending.

    s = t - W. Up to k = 14 these are all values. For larger k, of those that agree in their highest
    14 bits only the one with most variance in levels 1..k is kept. `LineCurve.slack` bounds what
    that misses.
    """
    since = np.zeros(1, dtype=np.int64)
    variance = np.zeros(1)
    grids = [since]
    for level in range(1, curve._levels + 1):
        since = np.concatenate((since, since + (1 << (level - 1))))
        variance = np.concatenate((variance, variance)) + curve._part(level, since)
        if level == curve._levels:
            # Steps depend on as many bits as the highest level.
            variance += curve._part(level + 1, since)
        if level > _KEPT_BITS:
            # Entries 2 i and 2 i + 1 differ only in the lowest of their highest 15 bits.
            pairs = variance.reshape(-1, 2)
            best = pairs.argmax(axis=1) + np.arange(0, len(variance), 2)
            since = since[best]
            variance = variance[best]
        grids.append(since)
    return tuple(map(read_only, grids))


class WindowCounter(Counter):
    """Base of counters of one window, from the nodes of a path on the whole line of ticks.

    Args:
        window: ticks.
        hop: a power of two of ticks, at most the window.
        levels: L.
        sigma_squared: s2, that of a node of weight 1.
        weights: of levels 1..L, and of level L + 1.
        rho_item: the cost of all windows of the path together.
    """

    _curve: LineCurve

    def __init__(
        self,
        window: int,
        hop: int,
        levels: int,
        sigma_squared: Fraction,
        weights: Sequence[Fraction],
        rho_item: float,
    ) -> None:
        """Set the variances of nodes, s2 / w rounded up, and what follows from L."""
        # There is no horizon: windows go on forever.
        super().__init__(None, rho_item)
        self.window = window
        self.hop = hop
        self.most_ticks = window + hop - 1
        self.levels = levels
        self.offset = 2 << levels
        # Of levels 1..L, then of level L + 1: the steps of `line`, the ends of `active`.
        self._variances = tuple(
            rounded_up(sigma_squared / weight) for weight in weights
        )
        self._sds = tuple(float(root_of(variance)) for variance in self._variances)
        # All coefficients are multiples of 1 / (8 * 2^L).
        self._denominator = 8 << levels

    def _shape(self) -> dict[str, object]:
        """Return the parameters that determine a tick's nodes and their variances, as JSON."""
        return {
            "window": self.window,
            "hop": self.hop,
            "levels": self.levels,
            "offset": self.offset,
            "sigma_squared": [str(variance) for variance in self._variances],
        }

    def begin(self, t: int) -> int:
        """Return b: the counts of ticks b + 1..t are in the window at tick t. May be below 0."""
        return (t - self.window) // self.hop * self.hop

    def variance_of(self, node: Node) -> Fraction:
        return self._variances[node[0] - 1]

    def sd_of(self, node: Node) -> float:
        return self._sds[node[0] - 1]

    def _path(self, position: int) -> dict[Node, int]:
        """Return the coefficients of nodes of levels 1..L in N_0(position), times 8 * 2^L."""
        unit = self._denominator
        factors: dict[Node, int] = {}
        for level in range(1, self.levels + 1):
            k = position >> level
            # u_j, in the same multiples: always a multiple of 8.
            u = (position & ((1 << level) - 1)) * (unit >> level)
            factors[level, k - 1] = (u - unit) // 8
            factors[level, k] = min(u, unit - u) - unit // 8
            factors[level, k + 1] = -u // 8
        return factors

    def blocks(self, level: int) -> range:
        """Return the numbers k that nodes of a level may have: all."""
        return _BLOCKS

    def scale(self, level: int, k: int) -> float:
        """Return the sd of a node in the units of `fixed_point`."""
        return math.ldexp(self._sds[level - 1], self.fixed.point)

    def variances(self, ticks: Longs) -> Floats:
        return self._curve.at(ticks)

    def curve(self) -> Curve:
        return self._curve

    def worst_variance(self) -> float:
        return _worst(self._curve)


@memoized(512)
def _worst(curve: LineCurve) -> float:
    return curve.worst()


class WindowShape(NamedTuple):
    """A window, and what its noise depends on of the other windows of its path.

    Attributes:
        window: ticks.
        hop: a power of two of ticks, at most the window.
        levels: L, the same for all windows of one path; at least `levels_of(most_ticks)`.
        shortest: of several windows of one path the shortest, in ticks; None for a single one.
    """

    window: int
    hop: int
    levels: int
    shortest: int | None = None


class LineCounter(WindowCounter):
    """The noise of one window; `line_counters` makes those that share a path.

    Args:
        shape: the window.
        rho_item: the cost of all windows of the path together.
    """

    kind = "line"

    def __init__(self, shape: WindowShape, rho_item: float) -> None:
        """Compute node variances for which all windows of the path together cost `rho_item`."""
        window, hop, levels, shortest = shape
        check_rho_item(rho_item)
        check_window(window, hop)
        most_ticks = window + hop - 1
        if most_ticks > 1 << MOST_LEVELS:
            raise ValueError(
                f"window = {window}: at most 2^{MOST_LEVELS} ticks, with a hop of {hop} less 1"
            )
        if not levels_of(most_ticks) <= levels <= MOST_LEVELS:
            raise ValueError(
                f"levels = {levels}: must be from {levels_of(most_ticks)} to {MOST_LEVELS} with a "
                f"window of {window} ticks and a hop of {hop}"
            )
        if shortest is not None and not 1 <= shortest <= window:
            raise ValueError(
                f"shortest = {shortest}: must be from 1 to the window's {window} ticks"
            )
        self.shortest = shortest
        # With this variance of a node of weight 1, all windows of the path cost `rho_item`.
        s2 = cost_of(levels, shortest) / (2 * Fraction(rho_item))
        of_levels = weights(levels, shortest)
        super().__init__(window, hop, levels, s2, of_levels, rho_item)
        self._curve = LineCurve(list(map(float, self._variances)), window, hop)
        # The error of the cache: see the module. A row keeps places relative to their block's
        # begin, at most half of each level's nodes and one step.
        self.fixed = fixed_point(
            max(self._sds),
            parts=levels + 2,
            largest=sum(self._sds[:-1]) / 2 + self._sds[-1],
            divisions=math.ceil(11 * levels / 8),
        )

    def nodes(self, t: int) -> dict[Node, int]:
        """Return the non-zero coefficients of N(t) - N(b) by node, times 8 * 2^L."""
        check_tick(self.kind, t, self._last_tick)
        end = t + self.offset
        begin = self.begin(t) + self.offset
        factors: dict[Node, int] = {}
        # N at each place, less N_L at the begin of its block of 2^L places: nodes of levels 1..L,
        # and u_L of the block's step.
        for place, sign in ((end, 1), (begin, -1)):
            of_place = self._path(place)
            inside = place & ((1 << self.levels) - 1)
            of_place[self.levels + 1, place >> self.levels] = 8 * inside
            for node, factor in of_place.items():
                factors[node] = factors.get(node, 0) + sign * factor
        # Begins of two blocks next to each other are a whole step apart.
        if begin >> self.levels < end >> self.levels:
            factors[self.levels + 1, begin >> self.levels] += self._denominator
        return {node: factor for node, factor in factors.items() if factor}


class LineColumns:
    """A single-threaded cache of the noise of all windows of one path.

    What it returns is what `draw` of each counter returns, bit for bit. One cursor is at t, and one
    at the begin of each window, which moves once a hop. Both are relative to N_L at the begin of
    their blocks of 2^L places; where a window begins in the block before, these are a step apart,
    z_c of that block, which the cursor at t keeps. A short window begins where the cursor at t was
    not long ago: see `PastBegin`.
    """

    def __init__(self, counters: tuple[LineCounter, ...], stream: NoiseStream) -> None:
        """Begin without rows; `counters` has one for each window of one path."""
        self._counters = counters
        self._stream = stream
        self._end = Cursor(counters[0], stream, keeps_step=True)
        # The cursor at t has been at the begin of a short window: see `PastBegin`.
        self._begins = [
            PastBegin(counter, stream, self._end)
            if counter.hop == 1 and counter.window <= LONGEST_PAST
            else Cursor(counter, stream, hop=counter.hop)
            for counter in counters
        ]
        # Where `decide_difference` lists the rows of a chunk that it leaves undecided.
        self._undecided = np.empty(CHUNK_ROWS + 1, dtype=np.int64)
        # How many rows, the first ones, the last call moved to its places.
        self._rows_before = 0
        # False once `reals` is called: from then on `at` returns units of 2^-fixed.point.
        self._rounds = True

    @property
    def bytes_per_row(self) -> int:
        return sum(cursor.bytes_per_row for cursor in (self._end, *self._begins))

    def at(self, t: int, tags: Tags) -> Longs:
        """Return the noise of every row at tick t, in whole numbers (windows, n).

        `tags` (n, 2) are those of the last call, and possibly more behind them.
        """
        # Offset and ticks are the same for all windows of a path.
        first = self._counters[0]
        check_tick(first.kind, t, first._last_tick)
        rows = len(tags)
        rows_before = min(self._rows_before, rows)
        # 0 until this call succeeds: after a failure the next call draws all rows from nothing.
        self._rows_before = 0
        self._end.set_place(t + first.offset, rows_before)
        for counter, cursor in zip(self._counters, self._begins, strict=True):
            cursor.set_place(counter.begin(t) + first.offset, rows_before)
        out = np.empty((len(self._counters), rows), dtype=np.int64)
        undecided: list[list[int]] = [[] for _ in self._counters]
        for row in range(0, rows, CHUNK_ROWS):
            part = tags[row : row + CHUNK_ROWS]
            self._end.move_chunk(part, row)
            for i, cursor in enumerate(self._begins):
                cursor.move_chunk(part, row)
                noise = out[i, row : row + CHUNK_ROWS]
                undecided[i] += self._round(cursor, noise, row)
        self._rows_before = rows
        for i, counter in enumerate(self._counters):
            # A failed call may have left inexact rows that this call does not have.
            exact = {*undecided[i], *(row for row in self._inexact(i) if row < rows)}
            # `reals` asks for units, which stay as they are: it draws inexact rows itself.
            if exact and self._rounds:
                numbers = np.array(sorted(exact), dtype=np.int64)
                out[i, numbers] = counter.draw(self._stream, t, tags[numbers])
        return out

    def reals(self, t: int, tags: Tags) -> tuple[Floats, ...]:
        """Return the noise of every row before rounding, by window, (n,) each.

        Ranks add it up over nodes before they round. It is off by at most the error of the cache.
        After the first call `at` returns units of 2^-point, so a cache serves either `at` or
        `reals`.
        """
        self._rounds = False
        windows = enumerate(zip(self._counters, self.at(t, tags), strict=True))
        return tuple(
            reals_of(counter, self._stream, t, tags, units, self._inexact(i))
            for i, (counter, units) in windows
        )

    def _inexact(self, i: int) -> set[int]:
        """Return the rows that are wrong in window i: a word was too small for `normal.rough`."""
        return {*self._end.inexact, *self._begins[i].inexact}

    def _round(self, begin: "Begin", out: Longs, row: int) -> list[int]:
        """Write a window's noise to `out`, for rows from `row` on; return undecided rows.

        It is rounded unless `reals` asks for units of 2^-point. The cursor at t and that at the
        window's begin have just moved these rows.
        """
        ends = self._end.noise[: len(out)]
        begins = begin.noise[: len(out)]
        # Each is relative to the begin of its block, and begins of adjacent blocks are a step
        # apart. (Subtract in place, as the cursor computes its noise again for every chunk.)
        if begin.block < self._end.block:
            begins -= self._end.step_before(row, len(out))
        if not self._rounds:
            np.subtract(ends, begins, out)
            return []
        fixed = self._counters[0].fixed
        number = decide_difference(
            ends, begins, fixed.point, fixed.error, out, self._undecided
        )
        return [int(found) + row for found in self._undecided[:number]]


class Cursor:
    """A cache of the noise of all rows at one place of the path, which moves on with the ticks.

    `set_place` sets the next place, and `move_chunk` brings CHUNK_ROWS rows there. `noise` is then
    N of the chunk at the place, less N_L at the begin of its block, in fixed point. The place moves
    on by about `hop` ticks. With `keeps_step` a row also has the step of the block before
    (`step_before`).
    """

    def __init__(
        self,
        counter: WindowCounter,
        stream: NoiseStream,
        *,
        hop: int = 1,
        keeps_step: bool = False,
    ) -> None:
        """Begin without rows; the place will move on by `hop` ticks or more.

        `keeps_step`: a row also has the step of the block before its own.
        """
        self._counter = counter
        self._stream = stream
        self._keeps_step = keeps_step
        self._levels = counter.levels
        # At hops of many ticks the finest levels skip blocks: their nodes are drawn each time.
        self._kept_levels = KEPT_LEVELS if hop <= LONGEST_KEPT_HOP else 0
        # A row's numbers, N relative to N_L at the begin of its block of 2^L places. First those
        # for `descend`: r_1..r_L, N at the end of that block (its step), and by kept level the
        # nodes of the next two blocks. Last, with `keeps_step`, the step of the block before.
        self._numbers_descended = counter.levels + 1 + 2 * self._kept_levels
        self._numbers_kept = self._numbers_descended + keeps_step
        # By chunk of rows: (numbers kept, rows).
        self._states: list[Numbers] = []
        # The place to move rows to, and the one before.
        self._place = 0
        self._since = 0
        # Whether a block of 2^L places begins between them.
        self._enters = False
        # How many of the first rows can be moved on from the place before.
        self._rows_before = 0
        # Rows whose noise is wrong, as a word was raised, and the place from which it is right.
        self.inexact: dict[int, int] = {}
        self.noise = np.empty(CHUNK_ROWS, dtype=np.int64)
        # Scratch of `descend` and `raise_small`.
        self._lefts = np.empty(CHUNK_ROWS, dtype=np.int64)
        self._raised = np.empty(CHUNK_ROWS + 1, dtype=np.int64)

    @property
    def bytes_per_row(self) -> int:
        return self._numbers_kept * self._counter.fixed.dtype.itemsize

    @property
    def block(self) -> int:
        """The block of 2^L places in which the place lies; its end belongs to it."""
        return (self._place - 1) >> self._levels

    def set_place(self, next_place: int, rows_before: int) -> None:
        """Set the place that `move_chunk` brings rows to, from where they are or from nothing.

        The first `rows_before` rows are at the place set before; others have no state.
        """
        last_block = self.block
        self._since = self._place
        self._place = next_place
        # Rows cannot go back. At the same place again they have N, as r_1, if it is even.
        can_go_on = next_place > self._since or (
            next_place == self._since and not next_place & 1
        )
        # Nor can they skip a block, as they lack its step. Then they start from nothing.
        if not can_go_on or self.block - last_block > 1:
            rows_before = 0
        self._enters = self.block > last_block
        self._rows_before = rows_before
        # Rows that start from nothing are exact again, and so are those past their `until`.
        self.inexact = {
            row: until
            for row, until in self.inexact.items()
            if row < rows_before and until > next_place
        }

    def move_chunk(self, tags: Tags, row: int, first: int = 0) -> None:
        """Bring a chunk of rows, the first of which is `row`, to the place.

        The chunk's rows before `first` are left out. They may not come back while the rows behind
        them move on (`PastBegin.set_place`).
        """
        # Up to `old` the chunk's rows are at the place before; the others are new.
        old = min(max(self._rows_before - row, first), len(tags))
        state = self._state(row, len(tags))
        if old > first:
            if self._enters:
                self._enter(state[:, first:old])
            self._descend(self._since, tags, state, first, old, row)
        if old < len(tags):
            if self._keeps_step:
                self._draw_step(tags, state, old, row)
            self._descend(None, tags, state, old, len(tags), row)

    def forget(self, row: int) -> None:
        """Free the memory of the chunk that begins at `row`: all its rows are left out."""
        if row // CHUNK_ROWS < len(self._states):
            self._states[row // CHUNK_ROWS] = self._no_rows()

    def step_before(self, row: int, rows: int) -> Numbers:
        """Return z_c of the block before, for `rows` rows of the chunk that begins at `row`."""
        return self._states[row // CHUNK_ROWS][-1, :rows]

    def _state(self, row: int, rows: int) -> Numbers:
        """Return the numbers kept of the chunk that begins at `row`, with room for `rows` rows."""
        index = row // CHUNK_ROWS
        while index >= len(self._states):
            self._states.append(self._no_rows())
        self._states[index] = with_capacity(self._states[index], rows, axis=1)
        return self._states[index]

    def _no_rows(self) -> Numbers:
        return np.empty((self._numbers_kept, 0), dtype=self._counter.fixed.dtype)

    def _enter(self, state: Numbers) -> None:
        """Make the kept numbers of rows, `state` (numbers, n), relative to the next block of 2^L.

        It begins where the block that rows leave ends, a step further on the path.
        """
        # After r_1..r_L comes N at the end of the block that rows leave. `descend` will overwrite
        # it with that of the next block.
        step = state[self._levels]
        if self._keeps_step:
            state[-1] = step
        state[: self._levels] -= step

    def _draw_step(self, tags: Tags, state: Numbers, first: int, row: int) -> None:
        """Draw the step of the block before for new rows, those of a chunk from `first` on."""
        level = self._levels + 1
        k = self.block - 1
        # The words of one cell; this node is its half k mod 2.
        words = self._words(cells_of([(level, k >> 1)]), tags[first:], row + first)[0]
        steps = state[-1, first : len(tags)]
        steps[:] = 0
        scale = self._counter.scale(level, k)
        add_rough(words, k & 1, scale, normal.table(), steps)

    def _descend(
        self,
        since: int | None,
        tags: Tags,
        state: Numbers,
        first: int,
        last: int,
        row: int,
    ) -> None:
        """Bring rows first..last - 1 of a chunk to the place, from `since` or from nothing.

        `tags` and `state` (numbers, rows) are the whole chunk's, `row` its first row.
        """
        plan = _plan(self._counter, self._place, since, self._kept_levels)
        # No level has a new block: the place is the end of a block of level 1, where N is r_1.
        if not len(plan.steps):
            self.noise[first:last] = state[0, first:last]
            return
        # All but the step of the block before.
        numbers = state[: self._numbers_descended]
        # So many rows have CHUNK_ROWS words together, the most that are drawn in one call.
        at_once = CHUNK_ROWS // max(len(plan.cells), 1)
        for begin in range(first, last, at_once):
            end = min(begin + at_once, last)
            words = self._words(plan.cells, tags[begin:end], row + begin)
            # The rest of the plan: `words` are those of its cells.
            descend(
                words,
                normal.table(),
                *plan[1:],
                numbers[:, begin:end],
                self._lefts[: end - begin],
                self.noise[begin:end],
            )

    def _words(self, cells: Words, tags: Tags, row: int) -> Words:
        """Return words (cells, n, 2), at most CHUNK_ROWS, of rows from `row` on.

        Words too small for `rough` are raised, which makes N wrong. Their rows are `inexact` until
        the place where the nodes of these words no longer have a part in N.
        """
        words = self._stream.chunk(tags, cells)
        raised = raise_small(words, self._raised)
        for number in self._raised[:raised].tolist():
            cell, i = divmod(number, len(tags))
            # A cell is (level, k >> 1); steps, of level L + 1, have the blocks of level L.
            level = min(int(cells[cell, 0]), self._levels)
            # In the place's block k, nodes up to k + 2 are drawn. A node has a part in its own
            # block and those beside it, so node k + 2 has none from the begin of block k + 4 on.
            k = (self._place - 1) >> level
            until = (k + 4) << level
            self.inexact[row + i] = max(self.inexact.get(row + i, 0), until)
        return words.reshape(len(cells), len(tags), 2)


class PastBegin:
    """The begin of a short window: the place at which the cursor at t was W ticks ago.

    It keeps the noise that this cursor had in the last W ticks, in place of numbers to descend by.
    Younger rows have a cursor of their own, until they have been there for W ticks. Use it like a
    `Cursor`, at every tick, after the cursor at t has moved.
    """

    def __init__(
        self, counter: WindowCounter, stream: NoiseStream, end: Cursor
    ) -> None:
        """Begin without rows; `end` is the cursor at t."""
        self._end = end
        self._window = counter.window
        self._dtype = counter.fixed.dtype
        # The cursor of the last rows, those without kept noise at the place.
        self._young = Cursor(counter, stream)
        # A ring of W slots, with a place in slot place mod W. By slot: the place, and how many of
        # the first rows have noise there.
        self._places = [0] * counter.window
        self._rows_at = [0] * counter.window
        # By chunk of rows: the kept noise, (slots, rows).
        self._past: list[Numbers] = []
        # How many of the first rows have kept noise at the place.
        self._known = 0
        # The slot of the place, and of the cursor at t, which are W apart.
        self._slot = 0
        # Rows whose kept noise is wrong, as a word was raised, and the place up to which it is.
        self._past_inexact: dict[int, int] = {}
        self.noise = np.empty(CHUNK_ROWS, dtype=np.int64)

    @property
    def bytes_per_row(self) -> int:
        """Bytes of a row, while it also has a cursor of its own."""
        return self._window * self._dtype.itemsize + self._young.bytes_per_row

    @property
    def block(self) -> int:
        return self._young.block

    @property
    def inexact(self) -> set[int]:
        return {*self._past_inexact, *self._young.inexact}

    def set_place(self, next_place: int, rows_before: int) -> None:
        """Set the place that `move_chunk` brings rows to, and find the rows with noise kept there.

        The first `rows_before` rows are at the place set before; others have no state.
        """
        slot = next_place % self._window
        # Known rows have noise kept at the place. The young cursor moves the others, behind them.
        known_before = self._known
        self._known = 0
        if self._places[slot] == next_place:
            self._known = min(self._rows_at[slot], rows_before)
        # The young cursor has not moved the rows that were known before. If some of them are no
        # longer known, it cannot go on with these, and draws all from nothing.
        can_go_on = self._known >= known_before
        self._young.set_place(next_place, rows_before if can_go_on else 0)
        self._past_inexact = {
            row: until
            for row, until in self._past_inexact.items()
            if until > next_place
        }
        # `move_chunk` reads the noise at the place from its slot, and replaces it with that at t, a
        # window later.
        self._slot = slot
        self._places[slot] = next_place + self._window
        self._rows_at[slot] = 0

    def move_chunk(self, tags: Tags, row: int) -> None:
        """Bring a chunk of rows, which begins at `row`, to the place, and set `noise`.

        For known rows, the first ones, it is in the slot; the young cursor moves the others. Then
        the slot gets the noise of the cursor at t, for the tick at which the window begins there.
        """
        rows = len(tags)
        known = min(max(self._known - row, 0), rows)
        index = row // CHUNK_ROWS
        if index == len(self._past):
            self._past.append(np.empty((self._window, 0), dtype=self._dtype))
        self._past[index] = with_capacity(self._past[index], rows, axis=1)
        past = self._past[index][self._slot, :rows]
        self.noise[:known] = past[:known]
        if known < rows:
            self._young.move_chunk(tags, row, known)
            self.noise[known:rows] = self._young.noise[known:rows]
        else:
            # The young cursor is not asked for these rows again, so drop its numbers.
            self._young.forget(row)
        past[:] = self._end.noise[:rows]
        self._rows_at[self._slot] = row + rows
        self._past_inexact.update(self._end.inexact)


Begin = Cursor | PastBegin


@memoized(256)
def _plan(
    counter: WindowCounter, place: int, since: int | None, kept_levels: int
) -> Plan:
    """Return how rows of any window of the path get from `since`, or from nothing, to a place.

    `kept_levels`: of how many levels, from the finest on, the rows keep nodes.
    """
    levels = counter.levels
    rise: Node | None = None
    block = (place - 1) >> levels
    if since is not None and (since - 1) >> levels == block:
        levels = changed_levels(place, since)
    else:
        # In another block of 2^L places all levels are new, and N rises over it by its step.
        rise = levels + 1, block
    return plan_between(counter, place, since, levels, rise, kept_levels=kept_levels)


def check_window(window: int, hop: int) -> None:
    """Raise ValueError if a window of so many ticks cannot begin at multiples of `hop`."""
    if window < 1:
        raise ValueError(f"window = {window}: must be at least 1 tick")
    if not 1 <= hop <= window or hop & (hop - 1):
        raise ValueError(
            f"hop = {hop}: must be a power of two from 1 to the window's {window} ticks"
        )


def levels_of(most_ticks: int) -> int:
    """Return L, so that a window of `most_ticks` begins in its end's block or the one before."""
    return max(1, (most_ticks - 1).bit_length())


def rest_of(levels: int, most_ticks: int) -> int:
    """Return K: windows that end more than K ticks after a tick share no noise with it.

    A node of the highest level has a part in fewer than 3 * 2^L places, so two places that share it
    are at most 3 * 2^L - 2 apart. The longest window begins `most_ticks` before its end.
    """
    return most_ticks + (3 << levels) - 2


@memoized(64)
def line_counters(
    windows: tuple[int, ...], hops: tuple[int, ...], rho_item: float
) -> tuple[LineCounter, ...]:
    """Return the counters of windows that share one noise path, at a cost of rho_item in all.

    Args:
        windows: ticks.
        hops: ticks, by window.
        rho_item: zCDP cost of all windows at all ticks, for an item changed by one in one tick.
    """
    return tuple(LineCounter(shape, rho_item) for shape in shapes_of(windows, hops))


def shapes_of(windows: Sequence[int], hops: Sequence[int]) -> tuple[WindowShape, ...]:
    """Return the shapes of windows of one path, from their ticks and hops."""
    pairs = list(zip(windows, hops, strict=True))
    levels = levels_of(max(window + hop - 1 for window, hop in pairs))
    shortest = min(windows) if len(windows) > 1 else None
    return tuple(WindowShape(window, hop, levels, shortest) for window, hop in pairs)


def weights(levels: int, shortest: int | None) -> list[Fraction]:
    """Return the weights w of levels 1..L and of steps; a node of weight w has variance s2 / w.

    A search for little noise found the factors. With a `shortest` window (see the module), steps
    and levels j with 2^j > 2 * shortest weigh less, which leaves more for the levels that it uses.
    """
    by_level = []
    for level in range(1, levels + 1):
        weight = FINEST[level - 1] if level <= len(FINEST) else Fraction(1)
        if level == levels:
            weight *= HIGHEST
        if shortest is not None and 1 << level > 2 * shortest:
            weight *= SCALED
        by_level.append(weight)
    by_level.append(STEPS if shortest is None else STEPS * SCALED)
    return by_level


def cost_of(levels: int, shortest: int | None) -> Fraction:
    """Return S: the sum of w_v C[v, t]^2 over all nodes is at most this, at every tick.

    The table is for the weights of one window. Where `weights` scales some of them, S is less.
    """
    cost = _COSTS[levels - 1]
    if shortest is not None:
        # The lowest level that `weights` scales: 2^lowest > 2 * shortest.
        lowest = (2 * shortest).bit_length()
        scaled_levels = max(levels + 1 - lowest, 0)
        cost -= _SAVED[scaled_levels]
    return Fraction(cost, 4096)


def overlap_of(levels: int, shortest: int | None, period: int) -> Fraction:
    """Return F: what one user does in n periods costs at most min(n, F) n times one period's bound.

    `period` is its length in ticks. Events of different periods cost more together where they shift
    the same nodes. F adds up by how much, over every second period. Events of periods q and q + 2 i
    are more than (2 i - 1) `period` ticks apart, and share at most what nodes of all levels allow
    at that distance. That is given by products of their coefficients, tabled by eighths of 2^j
    ticks for level j (docs/decisions/0036-windows-without-epochs.md, T7).
    """
    by_level = weights(levels, shortest)
    shared = Fraction(0)
    # Beyond 5 * 2^L ticks nothing is shared.
    for distance in range(period, 5 << levels, 2 * period):
        for level, weight in enumerate(by_level, start=1):
            products = _PRODUCTS if level <= levels else _PRODUCTS_OF_STEPS
            eighths = _EIGHTHS * distance >> min(level, levels)
            if eighths < len(products):
                shared += weight * Fraction(products[eighths], 4096)
    # 2 (1 + 2 shared / S): one 2 for even and odd periods, one for those before and after.
    return 2 + 4 * shared / cost_of(levels, shortest)
