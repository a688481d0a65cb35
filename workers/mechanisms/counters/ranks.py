"""Noise in two dimensions: ranks of numbers in buckets, over time and over values at once.

What: the rank at place p is the count of buckets 0..p - 1. Its noise at tick t is

    N(t, p) = sum over value nodes q of b_q(p) N_q(t) / sqrt(w_q)

N_q(t) is the noise of a counter of ticks, with a row for each value node q; b_q(p) are the
coefficients of `lifted`'s inverse transform, over B buckets in place of ticks. So a place is a sum
over pairs of a time node and a value node, and all places of a stream key are a fast inverse
transform of its rows: a few additions a bucket.

Why: with a counter for each bucket a rank has the noise of up to B buckets. Here a rank, and so
every range, has that of 3 log2 B rows. One bucket has more than with its own counter.

    Symbol      Here
    B, h        `buckets`; `levels`, 2^h >= B
    q           value node (level, k) as in `lifted` with 2^h ticks; (0, 0) is the total
    w_q         `weights`; edges and total differ from those of `lifted`
    S, P        the largest sum over q of w_q C[q, b]^2 over buckets b; and the largest
                |sum over q of w_q C[q, b] C[q, c]| over two different buckets
    W(m)        m S + m (m - 1) P, m the items that one event or user changes
    K(p, r)     `covariance`: of two places, where every N_q(t) has variance 1
    K_b         `of_bucket`: the largest variance of one bucket, likewise
    A           `amplification`: the largest sum over q of |b_q(p)| / sqrt(w_q) over places p
    row         a value node of a stream key: the counter of ticks has noise for each. A tag, two
                words, names a stream key, or one of its rows

Released are rank + floor(N(t, p) + 1/2), as the differences between neighbours: the counts of
buckets. So every range of buckets has two roundings. Cost: W(m) Dinf^2 times that of the counter of
ticks for a count changed by one. Proof: docs/decisions/0041-ranks.md.

Rounding. `Columns.reals` gives N_q(t) off by at most e. The transform is done in floats; with X the
largest |N_q(t)| / sqrt(w_q), every number in it is below (h + 1) X, each level adds at most
3 (h + 1) X 2^-53 to the error of a place, and the products before it 2^-52 (h + 1) X: for h <= 12
less than 2^-43 X in all. So N(t, p) is off by at most A e + 2^-43 X. Where an integer is as near to
N + 1/2, the place is summed up again from `Counter.reals`, at most 3 h + 1 products off by less
than 2^-43 X, too; and where that does not decide either, from as many bits as it takes.
"""

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from types import MappingProxyType

import numpy as np

from workers.arrays.types import Floats, Longs, Tags
from workers.mechanisms.counters import lifted
from workers.mechanisms.counters.base import Columns, Counter, Node, root_of
from workers.mechanisms.counters.lifted import LiftedCounter
from workers.mechanisms.counters.line import (
    LineColumns,
    LineCounter,
    WindowShape,
    shapes_of,
)
from workers.mechanisms.curves import ROUNDING, Curve
from workers.mechanisms.noise.keyed import NoiseStream
from workers.runtime.frozen import Frozen, memoized, read_only

BUCKETS_MAX = 4096
# In 1/40: of the first and last node of the two finest levels, so that the outermost buckets have
# little more noise than the others; of the total.
FINEST_EDGE = (58, 40)
TOTAL = 70

# S and P in 1/4096 for h = 1..12, rounded up: `python -m bench.ranks`.
_EVENTS = (
    *(13108, 19508, 23697, 29090, 34423, 39437, 44445, 49010, 53565, 58117, 62669),
    67220,
)
_PAIRS = (
    *(1229, 5069, 8860, 14046, 19339, 24373, 29387, 33996, 38561, 43116, 47668),
    52219,
)

# By how much floats may be off: see the module, Rounding.
_FLOATS = 2.0**-43
# The row of a value node (level, k) has the stream key's tag, xored with this bit, the level and k.
# No cell of a counter or of sums has the bit, so no row shares words with other noise.
_VALUES = 1 << 57
_LEVEL_SHIFT = 40
_NODE_SHIFT = 16


class Ranks(Frozen):
    """The value direction: the transform over B buckets, its cost and its covariances."""

    def __init__(self, buckets: int) -> None:
        """Number the value nodes as rows, and compute their scales and the noise of a bucket."""
        if not 2 <= buckets <= BUCKETS_MAX:
            raise ValueError(
                f"{buckets:,} buckets: noise of ranks takes 2 to {BUCKETS_MAX:,}"
            )
        self.buckets = buckets
        self.levels = (buckets - 1).bit_length()
        self._weights = weights(self.levels)
        # By level, from 0, the buckets, on: how many blocks begin before place B.
        blocks = [-(-buckets >> level) for level in range(self.levels + 1)]
        self._blocks = tuple(blocks)
        # By level, from 1 on: how many nodes have a part in these places. They are those of the
        # level's blocks, and of the next block if there is one.
        self._rows = tuple(
            min(1 << (self.levels - level), blocks[level] + 1)
            for level in range(1, self.levels + 1)
        )
        # In the order of a stream key's rows: the total, then level by level.
        nodes = [(0, 0)]
        for level, rows in enumerate(self._rows, start=1):
            nodes += [(level, k) for k in range(rows)]
        self.nodes = tuple(nodes)
        # The row of each node.
        self.numbers = MappingProxyType({node: row for row, node in enumerate(nodes)})
        # A node's row has the stream key's tag, two words, xored with one of these: see `_VALUES`.
        cells = [
            (_VALUES | level << _LEVEL_SHIFT | k << _NODE_SHIFT, 0)
            for level, k in nodes
        ]
        self._cells = read_only(np.array(cells, dtype=np.uint64))
        # 1 / sqrt(w_q) of each row.
        self.scales = read_only(
            np.array([float(root_of(1 / self.weight(node))) for node in nodes])
        )
        # The largest variance of a bucket, which is the difference of the ranks at its ends.
        places = np.arange(buckets + 1)
        variances = self.covariance(places, places)
        beside = self.covariance(places[1:], places[:-1])
        self.of_bucket = float((variances[1:] + variances[:-1] - 2 * beside).max())
        self.amplification = self._amplification()

    def weight(self, node: Node) -> Fraction:
        """Return w_q."""
        level, k = node
        inside, edge = self._weights[level]
        return edge if self._is_edge(level, k) else inside

    def units(self, items: int) -> Fraction:
        """Return W(items) / S: what several buckets cost, where one costs 1."""
        pair = Fraction(_PAIRS[self.levels - 1], _EVENTS[self.levels - 1])
        return items + items * (items - 1) * pair

    @property
    def of_event(self) -> Fraction:
        """S: one bucket changed by one costs this times what a row changed by one costs."""
        return Fraction(_EVENTS[self.levels - 1], 4096)

    def rho_of_row(self, rho_bucket: float) -> float:
        """Return what a row changed by one may cost, so that a bucket costs at most `rho_bucket`.

        One bucket changes several rows. Rounded down.
        """
        return math.nextafter(float(Fraction(rho_bucket) / self.of_event), 0.0)

    def rho_of_bucket(self, rho_row: float) -> float:
        """Return what a bucket changed by one costs, where a row costs `rho_row`; rounded up."""
        return math.nextafter(float(Fraction(rho_row) * self.of_event), math.inf)

    def public(self) -> dict[str, object]:
        """Return every parameter that changes a noise value, as JSON."""
        of_levels = [[str(inside), str(edge)] for inside, edge in self._weights]
        return {"buckets": self.buckets, "weights": of_levels}

    def tags(self, key_tags: Tags) -> Tags:
        """Return the tags of the rows of stream keys, key by key.

        A word is AES(tag XOR cell), so a row's own part of its cells is in its tag.
        """
        rows: Tags = key_tags[:, None, :] ^ self._cells[None, :, :]
        return rows.reshape(-1, 2)

    def coefficients(self, position: int) -> dict[Node, float]:
        """Return the non-zero b_q(p) of place p = `position` by value node q, exact in doubles.

        They are the factors with which `synthesize` adds up the nodes at the place.
        """
        factors: dict[Node, float] = {}
        for level in range(1, self.levels + 1):
            k = position >> level
            last = (1 << (self.levels - level)) - 1
            u = math.ldexp(position & ((1 << level) - 1), -level)
            # The weights of block k's two ends at the place. An eighth of the nodes beside them is
            # taken off an end, but not off the very first and last.
            left = (1 - u) * (0 < k <= last)
            right = u * (k < last)
            factors[level, k - 1] = -left / 8
            # Half of node k is added at the block's middle, and less towards its ends.
            factors[level, k] = min(u, 1 - u) - (left + right) / 8
            factors[level, k + 1] = -right / 8
        factors[0, 0] = math.ldexp(position, -self.levels)
        return {node: factor for node, factor in factors.items() if factor}

    def synthesize(self, rows: Floats) -> Floats:
        """Return the noise of places 1..B (keys, B) from that of rows N_q / sqrt(w_q) (keys, q).

        From the two ends of all places down, level by level: an eighth of the two nodes beside it
        is taken off every end of a block, and a block's middle is the mean of its ends and half of
        its node: the inverse of the step of `lifted`.
        """
        keys = len(rows)
        # Noise at the ends of this level's blocks; at first of the one block: 0 and the total.
        ends = np.zeros((keys, 2))
        ends[:, 1] = rows[:, 0]
        # Rows are the total, then level by level: taken from behind.
        stop = rows.shape[1]
        for level in range(self.levels, 0, -1):
            blocks = self._blocks[level]
            first = stop - self._rows[level - 1]
            nodes = rows[:, first:stop]
            stop = first
            # For end K, the left one of block K: the sum of the nodes beside it, K - 1 and K. The
            # level's very first and very last ends are not lowered. (`inner` counts the ends
            # between two nodes. The last of `blocks` has a node after it, unless it is the level's
            # last block.)
            beside = np.zeros((keys, blocks + 1))
            inner = nodes.shape[1] - 1
            beside[:, 1 : inner + 1] = nodes[:, :inner] + nodes[:, 1:]
            ends -= beside / 8
            finer = np.empty((keys, 2 * blocks + 1))
            finer[:, 0::2] = ends
            finer[:, 1::2] = (ends[:, :-1] + ends[:, 1:] + nodes[:, :blocks]) / 2
            # The last block of the next level may begin beyond place B.
            ends = finer[:, : self._blocks[level - 1] + 1]
        return ends[:, 1:]

    def covariance(self, places: Longs, others: Longs) -> Floats:
        """Return the covariance of the noise at pairs of places (n,), for rows of variance 1.

        That is the sum over all value nodes q of b_q(place) b_q(other) / w_q.
        """
        of_total = self._weights[0][0]
        total = places / 2.0**self.levels * (others / 2.0**self.levels)
        total = total / float(of_total)
        for level in range(1, self.levels + 1):
            k, factors = lifted.coefficients_at(places, level, self.levels)
            other_k, other_factors = lifted.coefficients_at(others, level, self.levels)
            inside, edge = map(float, self._weights[level])
            last = (1 << (self.levels - level)) - 1
            # Nodes k - 1, k, k + 1 have a part at a place; those that both places share count.
            for i in range(3):
                node = k + (i - 1)
                shared = np.zeros(len(places))
                for j in range(3):
                    is_same = other_k + (j - 1) == node
                    shared += np.where(is_same, other_factors[j], 0.0)
                is_edge = (node == 0) | (node == last)
                total += factors[i] * shared / np.where(is_edge, edge, inside)
        return total

    def _amplification(self) -> float:
        """Return a bound on A: every node counts with the least weight of its level."""
        places = np.arange(1, self.buckets + 1)
        of_total = self._weights[0][0]
        sums = places / 2.0**self.levels / math.sqrt(of_total)
        for level in range(1, self.levels + 1):
            factors = lifted.coefficients_at(places, level, self.levels)[1]
            least = float(min(self._weights[level]))
            sums = sums + sum(map(np.abs, factors)) / math.sqrt(least)
        return float(sums.max()) * (1 + 2.0**-40)

    def _is_edge(self, level: int, k: int) -> bool:
        return k == 0 or k == (1 << (self.levels - level)) - 1


@memoized(64)
def ranks_of(buckets: int) -> Ranks:
    """Return the transform over so many buckets."""
    return Ranks(buckets)


def weights(levels: int) -> tuple[tuple[Fraction, Fraction], ...]:
    """Return w_q by level, (inside, edge); level 0 is the total.

    They are those of `lifted`, but for the total and the edges of the two finest levels.
    """
    total = Fraction(TOTAL, 40)
    pairs = lifted.weights(levels)[0]
    for i, edge in enumerate(FINEST_EDGE[:levels]):
        pairs[i] = (pairs[i][0], Fraction(edge, 40))
    return ((total, total), *pairs)


class RankCurve(Frozen, Curve):
    """The variance of the noisiest bucket by tick, from that of the rows."""

    def __init__(self, rows: Curve, of_bucket: float) -> None:
        self._rows = rows
        self._of_bucket = of_bucket

    def variance(self, ticks: Longs) -> Floats:
        return self._scaled(self._rows.variance(ticks))

    def candidates(self, last: int) -> Longs:
        return self._rows.candidates(last)

    def mean(self, last: int) -> float:
        return float(self._scaled(np.array([self._rows.mean(last)]))[0])

    def _scaled(self, variances: Floats) -> Floats:
        # A row is rounded once, a bucket at both ends.
        return (variances - ROUNDING) * self._of_bucket + 2 * ROUNDING


class Ranked(Counter):
    """A counter of ticks for the rows of `ranks`, which are the noise of buckets.

    Its variances are those of the noisiest bucket, and `rho_item` is the cost of one bucket changed
    by one at one tick (`Ranks.units` for several). Methods that draw noise, such as `reals`, give
    that of a row.
    """

    ranks: Ranks

    def variance(self, t: int) -> Fraction:
        return super().variance(t) * Fraction(self.ranks.of_bucket)

    def variances(self, ticks: Longs) -> Floats:
        return super().variances(ticks) * self.ranks.of_bucket

    def curve(self) -> RankCurve:
        return RankCurve(super().curve(), self.ranks.of_bucket)

    def sd(self, t: int) -> float:
        return math.sqrt(float(self.variance(t)) + 2 * ROUNDING)

    def difference_sd(self, t: int, since: int) -> float:
        """Return the sd of the noisiest bucket at t minus that at `since` < t (0: no noise)."""
        if not since:
            return self.sd(t)
        variance = float(self.difference_variance(t, since)) * self.ranks.of_bucket
        # A bucket has two rounded ends at each of two ticks; rounding each adds `ROUNDING`, 1/12.
        return math.sqrt(variance + 4 * ROUNDING)

    def worst_variance(self) -> float:
        return super().worst_variance() * self.ranks.of_bucket

    def public(self) -> dict[str, object]:
        return super().public() | {"ranks": self.ranks.public()}

    def exact_place(self, stream: NoiseStream, t: int, tag: Tags, position: int) -> int:
        """Return the rounded noise of the rank at a place, floor(N(t, p) + 1/2), exactly.

        As in `Counter.exact`, use more and more words of the nodes of one stream key, tag (1, 2),
        until both ends of an interval around N(t, p) round to the same number.
        """
        ranks = self.ranks
        rows = ranks.tags(tag)
        words = 2
        while True:
            digits = 20 * words
            small = Fraction(1, 10**digits)
            lower = upper = Fraction(0)
            for node, coefficient in ranks.coefficients(position).items():
                row = ranks.numbers[node]
                # Bounds on N_q(t).
                ends = self.interval(stream, t, rows[row : row + 1], words)
                with localcontext(prec=digits + 20):
                    weight = ranks.weight(node)
                    root = (Decimal(weight.denominator) / weight.numerator).sqrt()
                factor = Fraction(coefficient) * Fraction(root)
                low, high = sorted(factor * end for end in ends)
                # More than the root is off by.
                slack = max(abs(low), abs(high)) * small
                lower += low - slack
                upper += high + slack
            rounded = math.floor(lower + Fraction(1, 2))
            if rounded == math.floor(upper + Fraction(1, 2)):
                return rounded
            words += 1


class RankedLifted(Ranked, LiftedCounter):
    """Ranks over the ticks of an epoch: every value node's row has the noise of `lifted`."""

    def __init__(
        self,
        ranks: Ranks,
        horizon: int | None,
        rho_item: float,
        end_share: float | None = None,
    ) -> None:
        """Make the rows' counter so that a bucket costs at most `rho_item`."""
        self.ranks = ranks
        # What one row may cost: a bucket changes several rows.
        rho_row = ranks.rho_of_row(rho_item)
        super().__init__(horizon, rho_row, end_share)
        # In place of the cost of a row, which the base class has set.
        self.rho_item = ranks.rho_of_bucket(rho_row)


class RankedLine(Ranked, LineCounter):
    """Ranks in a window: every value node's row has the noise of `line`."""

    def __init__(self, ranks: Ranks, shape: WindowShape, rho_item: float) -> None:
        """Make the rows' counter so that a bucket costs at most `rho_item`."""
        self.ranks = ranks
        # What one row may cost: a bucket changes several rows.
        rho_row = ranks.rho_of_row(rho_item)
        super().__init__(shape, rho_row)
        # In place of the cost of a row, which the base class has set.
        self.rho_item = ranks.rho_of_bucket(rho_row)


@memoized(64)
def ranked_counter(
    buckets: int, horizon: int | None, rho_item: float, end_share: float | None
) -> RankedLifted:
    """Return a counter whose noise of one bucket costs at most rho_item."""
    return RankedLifted(ranks_of(buckets), horizon, rho_item, end_share)


@memoized(64)
def ranked_lines(
    buckets: int,
    windows: tuple[int, ...],
    hops: tuple[int, ...],
    rho_item: float,
) -> tuple[RankedLine, ...]:
    """Return the counters of windows, of these ticks and hops, that share one noise path.

    All together cost at most `rho_item` for one bucket changed by one at one tick.
    """
    ranks = ranks_of(buckets)
    shapes = shapes_of(windows, hops)
    return tuple(RankedLine(ranks, shape, rho_item) for shape in shapes)


class RankColumns:
    """A single-threaded cache of the noise of all buckets of stream keys, by window.

    It keeps that of their rows in the cache of the rows' counters, and transforms it at every tick.
    A counter without windows is one window. What it returns depends on tick and tags alone.
    """

    def __init__(self, counters: tuple[Ranked, ...], stream: NoiseStream) -> None:
        """Begin without rows; `counters` has one for each window, or one of epochs."""
        self._counters = counters
        self._stream = stream
        self._ranks = counters[0].ranks
        self._rows: Columns | LineColumns
        # All windows share one cache, as they share their nodes; a counter of epochs comes alone.
        lines = tuple(one for one in counters if isinstance(one, RankedLine))
        if lines:
            self._rows = LineColumns(lines, stream)
        else:
            self._rows = counters[0].columns(stream)
        # The tags of all rows of the last call.
        self._tags: Tags = np.empty((0, 2), dtype=np.uint64)

    @property
    def bytes_per_row(self) -> int:
        """Bytes a bucket: its share of the bytes of its stream key's rows."""
        rows = len(self._ranks.nodes)
        return -(-self._rows.bytes_per_row * rows // self._ranks.buckets)

    def at(self, t: int, key_tags: Tags) -> Longs:
        """Return the noise of every bucket in the first window, stream key by stream key."""
        return self.windows(t, key_tags)[0]

    def windows(self, t: int, key_tags: Tags) -> tuple[Longs, ...]:
        """Return the noise of every bucket by window, (keys B,); `key_tags` (keys, 2) only grow."""
        rows = len(self._ranks.nodes)
        # Stream keys are only ever added, so the same number means the same keys.
        known_keys = len(self._tags) // rows
        if len(key_tags) != known_keys:
            self._tags = self._ranks.tags(key_tags)
        of_windows = self._rows.reals(t, self._tags)
        return tuple(
            self._bucket_noise(counter, t, key_tags, noise.reshape(-1, rows))
            for counter, noise in zip(self._counters, of_windows, strict=True)
        )

    def _bucket_noise(
        self, counter: Ranked, t: int, key_tags: Tags, rows: Floats
    ) -> Longs:
        """Return the noise of all buckets, from that of `rows` before rounding (keys, q).

        A bucket's noise is the difference of the rounded noise of the ranks at its ends. Ranks that
        the error of floats leaves undecided are drawn again, more exactly.
        """
        ranks = self._ranks
        # Rounded noise of the ranks at places 0..B; place 0 has none.
        noise = np.zeros((len(key_tags), ranks.buckets + 1), dtype=np.int64)
        if not len(key_tags):
            return noise[:, 1:].reshape(-1)
        fixed = counter.fixed
        scaled = rows * ranks.scales
        of_places = ranks.synthesize(scaled)
        # A e + 2^-43 X of the module.
        error = ranks.amplification * math.ldexp(fixed.error, -fixed.point)
        error += float(np.abs(scaled).max()) * _FLOATS
        shifted = of_places + 0.5
        whole = np.floor(shifted)
        # A NaN compares as false: its place is drawn again.
        decided = np.abs(shifted - np.rint(shifted)) > error
        noise[:, 1:] = np.where(decided, whole, 0)
        for key in np.flatnonzero(~decided.all(axis=1)).tolist():
            undecided = np.flatnonzero(~decided[key]) + 1
            tag = key_tags[key : key + 1]
            noise[key, undecided] = self._draw(counter, t, tag, undecided.tolist())
        return np.diff(noise, axis=1).reshape(-1)

    def _draw(self, counter: Ranked, t: int, tag: Tags, places: list[int]) -> list[int]:
        """Return the rounded noise of the ranks at some places of one stream key, tag (1, 2).

        They are the places that `_bucket_noise` leaves undecided. Draws without the cache: in
        floats, and exactly where floats do not decide either.
        """
        ranks = self._ranks
        of_places = [_rows_of(ranks.buckets, position) for position in places]
        # The rows with a part at any of the places, ascending, and their noise.
        used = np.unique(np.concatenate([rows for rows, _ in of_places]))
        noise, error_of_rows = counter.reals(self._stream, t, ranks.tags(tag)[used])
        noise *= ranks.scales[used]
        # A e + 2^-43 X of the module.
        error = ranks.amplification * error_of_rows
        error += float(np.abs(noise).max()) * _FLOATS
        drawn = []
        for position, (rows, factors) in zip(places, of_places, strict=True):
            shifted = math.fsum(factors * noise[np.searchsorted(used, rows)]) + 0.5
            # A NaN compares as false.
            if abs(shifted - np.rint(shifted)) > error:
                drawn.append(math.floor(shifted))
            else:
                drawn.append(counter.exact_place(self._stream, t, tag, position))
        return drawn


@memoized(2 * BUCKETS_MAX)
def _rows_of(buckets: int, place: int) -> tuple[Longs, Floats]:
    """Return the rows with a part at a place, and their b_q(p)."""
    ranks = ranks_of(buckets)
    nodes = ranks.coefficients(place)
    rows = np.array([ranks.numbers[node] for node in nodes], dtype=np.int64)
    factors = np.array(list(nodes.values()))
    return read_only(rows), read_only(factors)
