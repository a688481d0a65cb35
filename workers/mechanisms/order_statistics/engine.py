"""Engine of the order statistics: doubling segments and the intervals within them.

Paper 001 is Henzinger, Sricharan, Steiner (docs/mechanisms.md, Papers). d is the number of columns
(declared labels, whose sums are running counts), T that of ticks, D the most columns that an event
changes, by at most Dinf.

An epoch is divided into segments, outer level, and a segment into intervals, inner level; each ends
where a test, AboveThreshold, stops: noise tau on a threshold for a run of ticks, and noise mu on
the value at each tick. Only then the published answer changes. Some mechanisms have one level only.
A tick that ends no segment and closes no interval costs a few integer comparisons per stream key.
Source: 001 Algorithms 2, 3, 5 to 8, 10 to 13, 15 to 17, as corrected below.

The budget is divided into parts: "outer_test" and "columns" (the noise G) of segments, "test",
"sums" (the noise N) and, with several watched values, "updates" (the noise u_i) of intervals. A
part's budget is rho, or epsilon where accounting is pure.

Noise cells (column noise uses the columns' tags, all other noise the stream key's tag):

    use     noise, hi = use << 56 | ...          lo
    0x30    outer tau                            segment
    0x31    outer mu                             tick
    0x32    G, per column                        segment that ends
    0x33    inner tau          | segment         interval
    0x34    inner mu                             tick
    0x35    N, per column      | segment << 8 | level of the counter's own cell     its node
    0x36    u_i                | segment         interval << 32 | i

Inner level (`IntervalRule`): noisy sums s = h + G + N, with exact sums h, G from the segment's
start, and N from a continual counter H after the closed intervals. AboveThreshold compares the
watched values g_i(s) with thresholds K_i, with one tau and one mu per tick for all. A stop closes
the interval: H takes its counts, s and the answers are recomputed, reached thresholds rise by
`step`.

    k           number of watched values; with k = 1 the threshold always rises (Algorithms 2, 7)
    u_i         k > 1: noise; K_i rises iff g_i(s) + u_i > K_i - C (Algorithms 8, 12, 13, 17)
    C           `clearance` = low + alpha_U, with low and high the bounds of AboveThreshold
    growth      Delta: growth limit of the watched values of h + G; c_max, or by segment
    n, e        `capacity`: intervals H has noise for, none closes after that; H's error over them

H publishes every column's sum once after each interval, guaranteed for adaptive input: in zCDP a
lifted or tree counter with rho / (D Dinf^2) per column, pure a `LaplaceTree` (001 Fact 4).

Costs, once for all intervals and segments (they are disjoint in ticks): AboveThreshold; H; and for
k > 1 k Dinf^2 / (2 s_U^2) rho, or pure k Dinf / scale. Error at a tick of one run, with probability
1 - beta: a tick that closes an interval publishes g_i(s), off by e; any other has g_i(h) <= K_i +
high + e. The close that raised K_i had g_i(s) > K_i - step - low (k > 1: - C - alpha_U), and values
only grow. So
    k = 1: step + low + high + 3 e    k > 1: step + C + alpha_U + high + 3 e   (segments: + alpha_G)
and thresholds rise at most (growth + low + e) / step times (k > 1: k (growth + C + alpha_U + e) /
step). zCDP: n is the power of two that minimizes this error; step follows from n. Pure: as printed,
step = 3 (e + low (k > 1: C) + alpha_G) and n = growth (k > 1: k growth), with alpha_mu + alpha_tau
for low.

Outer level (`Segments`): AboveThreshold on the largest watched value of s = h + G, with threshold
K_j = first * 2^(j - 1) in segment j = 1, 2, ... When it stops, every column gets fresh noise (s_D)
in addition, and s is published. Within a segment the value grows only by about the threshold, so
the inner level needs no known bound. alpha_G bounds |G_j|. Costs: AboveThreshold; and D Dinf^2 / (2
s_D^2) rho once, or pure D Dinf / scale: the released increments s_(j+1) - s_j are a segment's exact
counts plus fresh noise, and an event is in one segment.

Printed (pure; Algorithms 5, 10, 15): first = 1, log2 T segments, d for D Dinf. Corrected:
Algorithm 15 line 9 would need four times its variance for the (eps/2) it claims (an l2 norm of
sqrt(d) at eps/2 has 2 d ln(1.25/delta) / (eps/2)^2), and line 13 of Algorithm 16 depends on d, not
on k; here s_D^2 follows from rho. The test's j < log T keeps the last segment, with a threshold of
only about T/2, from ending, so the value may grow in it by more than the promised 2^(j-1) + 2
alpha_DM (measured at T = 1,000: missed in 8 of 8 runs); here there are ceil(log2 T) + 1 segments.
In zCDP the first threshold is the power of two above low + high, since below it noise alone ends
segments, and log2 T is no limit, because a tick may hold any number of events.

Stored when a segment ends or an interval closes: block "mNNNNNNNN" (stream key index, hexadecimal).
Releases depend otherwise only on exact counts and noise words. After a version byte:

    segment, interval, since, k, d     five little-endian int64
    thresholds    k int64     K_i
    start         d int64     G: column noise since the segment began
    noise         d int64     N: column noise since the interval began
    shown         d int64     noisy sums that the answers are computed from
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType

import msgspec
import numpy as np

from workers.arrays.types import Longs, Tags
from workers.mechanisms.about import Bound, Data, Figure, RowBytes
from workers.mechanisms.bounds import laplace_sum, normal_bound
from workers.mechanisms.counters.base import Counter
from workers.mechanisms.counters.kinds import make_counter
from workers.mechanisms.counters.laplace_tree import LaplaceTree, laplace_tree
from workers.mechanisms.curves import ROUNDING, Curve, TableCurve
from workers.mechanisms.ledger import Parts
from workers.mechanisms.mechanism import (
    Answers,
    Mechanism,
    Noise,
    State,
    body_of,
    expect_type,
    short_hash,
    unknown_block,
)
from workers.mechanisms.noise import discrete_laplace as laplace
from workers.mechanisms.noise import gaussian
from workers.mechanisms.noise.discrete_laplace import DiscreteLaplace
from workers.mechanisms.noise.keyed import NoiseStream
from workers.mechanisms.order_statistics import config as settings
from workers.mechanisms.order_statistics.above_threshold import (
    BLOCK_TICKS,
    AboveThreshold,
)
from workers.mechanisms.order_statistics.config import (
    CELL_TV,
    OrderStatisticConfig,
    Queries,
)
from workers.runtime.errors import StateRefused
from workers.runtime.frozen import Frozen

BLOCK_VERSION = 1
# What rounding to an integer adds to a bound on real noise. Noise from a table does not need it,
# but keeps it, as published errors and mechanism ids depend on these bounds.
_ROUNDED = 0.5
_HEAD = 5
_BLOCK_NAME = re.compile("m[0-9a-f]{8}")


@dataclass(slots=True)
class KeyState:
    """State of one stream key (sensitive)."""

    # From 1; intervals from 1 in each segment.
    segment: int
    interval: int
    # The tick from which the answer holds, or 0: there is none yet.
    since: int
    # (k,), K_i of the watched values.
    thresholds: Longs
    # (d,), noise of the columns: G of the segment, N of the interval.
    segment_noise: Longs
    interval_noise: Longs
    # (d,), the noisy sums that the answer is computed from.
    shown: Longs
    # Whether it has changed since it was stored. What follows is not stored.
    changed: bool = True
    # Whether counts have changed since `excess` and `largest` were computed.
    stale: bool = True
    # The inner test's value: the most by which a watched value exceeds its threshold.
    excess: int = 0
    # The outer test's value: the largest watched value.
    largest: int = 0
    # The noise of the thresholds, one for each run of a test; None until it is drawn.
    inner_tau: int | None = None
    outer_tau: int | None = None
    # Empty until it is made.
    answer: Mapping[str, object] = field(default_factory=dict)

    def __repr__(self) -> str:
        return "KeyState(<sensitive>)"

    def encode(self) -> bytes:
        """Return the stored form, without the version byte: see the module."""
        k = len(self.thresholds)
        d = len(self.shown)
        head = np.array((self.segment, self.interval, self.since, k, d))
        noise = (self.segment_noise, self.interval_noise)
        parts = (head, self.thresholds, *noise, self.shown)
        return np.concatenate(parts).astype("<i8").tobytes()

    @classmethod
    def decode(cls, block: bytes) -> KeyState:
        """Decode stored numbers; raise `StateRefused` if they are incomplete."""
        if len(block) < 8 * _HEAD or len(block) % 8:
            raise StateRefused("stored state of a partition is cut short")
        numbers = np.frombuffer(block, dtype="<i8").astype(np.int64)
        segment, interval, since, k, d = numbers[:_HEAD].tolist()
        numbers = numbers[_HEAD:]
        # Thresholds double from segment to segment, and counts have 64 bits.
        possible = (
            1 <= segment <= 64 and interval >= 1 and since >= 0 and min(k, d) >= 0
        )
        if not possible or len(numbers) != k + 3 * d:
            raise StateRefused("stored state of a partition is truncated or damaged")
        parts = np.split(numbers, [k, k + d, k + 2 * d])
        thresholds, segment_noise, interval_noise, shown = (p.copy() for p in parts)
        return cls(
            segment,
            interval,
            since,
            thresholds,
            segment_noise,
            interval_noise,
            shown,
            changed=False,
        )


class OrderStatisticState(State):
    """Columns (d rows per stream key, in key order) and one `KeyState` per stream key."""

    def __init__(self) -> None:
        super().__init__()
        self.by_key: dict[int, KeyState] = {}

    def changed(self) -> Sequence[tuple[str, bytes]]:
        """Return the blocks to store, of stream keys that changed since the last call."""
        blocks: list[tuple[str, bytes]] = []
        for key, state in sorted(self.by_key.items()):
            if state.changed:
                state.changed = False
                block = bytes((BLOCK_VERSION,)) + state.encode()
                blocks.append((f"m{key:08x}", block))
        return blocks

    def restore(self, name: str, block: bytes) -> None:
        """Take back a block that `changed` returned."""
        if not _BLOCK_NAME.fullmatch(name):
            raise unknown_block(name)
        numbers = body_of(name, block, BLOCK_VERSION)
        self.by_key[int(name[1:], 16)] = KeyState.decode(numbers)


@dataclass(frozen=True, slots=True)
class OneVector:
    """Noise of a vector released once; an event changes `changed` (D) entries by at most Dinf.

    Discrete Gaussian at D Dinf^2 / (2 sigma^2) rho, or discrete Laplace of scale b at D Dinf / b.
    Its moment generating function is at most that of the continuous one of the same scale (cosh is
    convex in its square), so the tail bounds for Laplace sums hold for it.
    """

    sampler: gaussian.IntegerGaussian | DiscreteLaplace
    changed: int
    parameter: Fraction  # the scale, or sigma^2
    spent: Fraction  # pure epsilon or rho
    variance: float  # at least that of one entry's noise

    @classmethod
    def of(
        cls, budget: Fraction, changed: int, max_count: int, *, pure: bool
    ) -> OneVector:
        """Return the noise that a budget (rho, or pure epsilon) pays for; `max_count` is Dinf."""
        sampler: gaussian.IntegerGaussian | DiscreteLaplace
        if pure:
            numerator = Fraction(changed * max_count)  # the cost is this over b
            parameter = laplace.round_up_scale(numerator / budget)
            sampler = laplace.discrete_laplace(parameter)
            variance = sampler.variance
        else:
            numerator = Fraction(changed * max_count**2, 2)  # over sigma^2
            parameter = gaussian.round_up_sigma_squared(numerator / budget)
            sampler = gaussian.integer_gaussian(parameter)
            variance = float(parameter)
        return cls(sampler, changed, parameter, numerator / parameter, variance)

    def bound(self, beta: float) -> float:
        """Bound one entry's absolute noise, with failure probability at most beta."""
        if isinstance(self.sampler, DiscreteLaplace):
            # P(|x| > a + 1) <= exp(-a/b) for integer noise and every real a.
            return float(self.parameter) * math.log(1 / beta) + 1
        # Noise from a table does not need `_ROUNDED`: see there.
        return normal_bound(float(self.parameter), 1, beta) + _ROUNDED

    def sum_bound(self, times: int, beta: float) -> float:
        """Bound an entry's absolute sum over `times` vectors, with failure probability beta."""
        if isinstance(self.sampler, DiscreteLaplace):
            return laplace_sum(times, float(self.parameter), 1, beta)
        # As in `bound`.
        return normal_bound(times * float(self.parameter), 1, beta) + _ROUNDED


MOST_INTERVALS = 1 << 30
# Two runs of comparisons' noise, 256 ticks each, as Python integers.
_BLOCKS_KEPT = 2 * 256 * 36


@dataclass(frozen=True, slots=True)
class Intervals:
    """Public numbers of one run of intervals, symbols as in the module.

    A run lasts a segment, or the epoch if there are no segments.
    """

    # By how much a reached threshold rises.
    step: int
    # C: how far below its threshold a value may be, with noise of its own, to raise it.
    clearance: int
    # n: how many intervals can close.
    capacity: int
    # Bound on the error of this run's answers.
    error: float
    # e + alpha_G: by how much more the sum of a named label may fall short.
    spread: float


class IntervalRule(Frozen):
    """The inner level of the module: when an interval closes, and the noise of all its parts.

    `share` is the budget of each part ("test", "sums", "updates"): rho, or epsilon if pure. There
    are no updates with one watched value.
    """

    def __init__(
        self, config: OrderStatisticConfig, k: int, share: Mapping[str, Fraction]
    ) -> None:
        max_count = config.max_count
        pure = config.pure
        self.config = config
        self.k = k
        self.sums_share = share["sums"]
        self.test = AboveThreshold.of(share["test"], max_count, pure=pure)
        # u_i of all k values; None: with one value the threshold always rises.
        update = share.get("updates")
        self.update = (
            None if update is None else OneVector.of(update, k, max_count, pure=pure)
        )

    @property
    def spent(self) -> dict[str, Fraction]:
        """The cost of each part, of all intervals together: rho, or epsilon if pure."""
        updates = {} if self.update is None else {"updates": self.update.spent}
        return {"test": self.test.spent, "sums": self.sums_share, **updates}

    @property
    def tv(self) -> float:
        """A bound on the total variation distance from its law of all noise that hides one event.

        That is the test's noise, one node a level in the counters of the event's columns, and the k
        noise values of an update. Every value except the test's is within `CELL_TV` of its law. A
        counter of `MOST_INTERVALS` has at most the levels of base 2.
        """
        noise_values = self.config.most_columns * MOST_INTERVALS.bit_length() + self.k
        return self.test.tv(self.config.ticks) + noise_values * CELL_TV

    def intervals(
        self, growth: int, beta: float, start_error: float = 0.0
    ) -> Intervals:
        """Return the numbers of one run of intervals: their step, capacity and error.

        Args:
            growth: by how much a watched value can grow in the run.
            beta: with this probability at most, the run's error exceeds the returned bound.
            start_error: alpha_G, the error of the sums that the run begins with.
        """
        if self.config.pure:
            # As printed: n = k growth.
            capacity = min(self.k * growth, MOST_INTERVALS)
            return self._numbers(capacity, growth, beta, start_error)
        # The power of two with the least error; more intervals than ticks are of no use.
        most = min(MOST_INTERVALS, 1 << (self.config.ticks - 1).bit_length())
        candidates = (
            self._numbers(1 << i, growth, beta, start_error)
            for i in range(most.bit_length())
        )
        return min(candidates, key=lambda numbers: numbers.error)

    def counter(self, capacity: int) -> Counter | LaplaceTree:
        """Return H, the counter of column noise, for `capacity` intervals."""
        config = self.config
        # D Dinf, in the l1 norm.
        sensitivity = config.most_columns * config.max_count
        if config.pure:
            return laplace_tree(capacity, self.sums_share, sensitivity)
        # Of each column changed by one: rho / (D Dinf^2), rounded down.
        rho_item = float(self.sums_share / (sensitivity * config.max_count))
        rho_item = math.nextafter(rho_item, 0.0)
        return make_counter(config.counter, capacity, rho_item, config.radix)

    def column_variance(self, capacity: int) -> float:
        """Return a bound on the variance of N, the noise of a column, which zCDP counters round."""
        counter = self.counter(capacity)
        if isinstance(counter, LaplaceTree):
            return counter.levels * counter.variance
        # And that of rounding to an integer, 1/12.
        return counter.worst_variance() + ROUNDING

    def public(self) -> dict[str, object]:
        """Return the parameters that determine intervals from sums and noise, as JSON."""
        return {
            "above_threshold": self.test.public(),
            "sums": str(self.sums_share),
            "counter": LaplaceTree.kind if self.config.pure else self.config.counter,
            "radix": self.config.radix,
            "update": None if self.update is None else str(self.update.parameter),
        }

    def _numbers(
        self, n: int, growth: int, beta: float, start_error: float
    ) -> Intervals:
        """Return the numbers of a run with capacity n, by the module's formulas.

        `growth` is Delta, `start_error` alpha_G, and `beta` the probability with which the error
        may be larger: tau, mu and u have a sixth of it each, and H has a third.
        """
        low, high = self.test.bounds(
            beta / (6 * (n + 1)), beta / (6 * self.config.ticks)
        )
        # e, alpha_U and C; with one watched value there are no updates, and low stands for C.
        e = self._sums_error(n, beta / 3)
        alpha_u = 0.0
        clearance = 0
        low_or_c = low
        if self.update is not None:
            alpha_u = self.update.bound(beta / 6 / (self.k * n))
            least = low + alpha_u
            if self.config.pure:
                # 18/eps (k ln(6 k Delta / beta) + ln(6 T / beta)); tau has scale 6/eps.
                logs = self.k * math.log(6 * n / beta) + math.log(
                    6 * self.config.ticks / beta
                )
                least = max(3 * float(self.test.tau_scale) * logs, least)
            clearance = math.ceil(least)
            low_or_c = clearance
        least_step = 3 * (low_or_c + e + start_error)
        if not self.config.pure:
            # So large that thresholds rise at most n times.
            least_step = self.k * (growth + low_or_c + alpha_u + e) / n
        step = math.ceil(least_step)
        error = step + low_or_c + alpha_u + high + 3 * e + start_error
        return Intervals(step, clearance, n, error, spread=e + start_error)

    def _sums_error(self, n: int, beta: float) -> float:
        """Return e: a bound on |N| of every column after each of n intervals."""
        each = beta / (len(self.config.domain) * n)
        counter = self.counter(n)
        if isinstance(counter, LaplaceTree):
            return laplace_sum(counter.levels, float(counter.scale), 1, each)
        # N is rounded to an integer, by at most `_ROUNDED`.
        return normal_bound(self.column_variance(n), 1, each) + _ROUNDED


MOST_SEGMENTS = 40


class Segments(Frozen):
    """Public numbers of the outer level; any bound fails in an epoch with probability `beta`."""

    def __init__(
        self, config: OrderStatisticConfig, share: Mapping[str, Fraction], beta: float
    ) -> None:
        max_count = config.max_count
        pure = config.pure
        self.test = AboveThreshold.of(share["outer_test"], max_count, pure=pure)
        # The fresh noise of every column where a segment ends.
        self.column = OneVector.of(
            share["columns"], config.most_columns, max_count, pure=pure
        )
        self.columns = len(config.domain)
        self.ticks = config.ticks
        self.beta = beta
        # The threshold of the first segment, and how many segments there are.
        if pure:
            self.first = 1
            self.most = (config.ticks - 1).bit_length() + 1
        else:
            # The power of two above low + high, as noise alone ends segments below it.
            self.first = 1 << math.ceil(math.log2(max(1.0, sum(self.bounds(1)))))
            self.most = MOST_SEGMENTS

    @property
    def spent(self) -> dict[str, Fraction]:
        return {"outer_test": self.test.spent, "columns": self.column.spent}

    @property
    def tv(self) -> float:
        return self.test.tv(self.ticks) + self.column.changed * CELL_TV

    def threshold(self, segment: int) -> int:
        """Return K_j."""
        return self.first << (segment - 1)

    def bounds(self, segment: int) -> tuple[float, float]:
        """Return (low, high) of AboveThreshold: thirds of beta for all segments and all ticks."""
        return self.test.bounds(self._part(segment), self.beta / (3 * self.ticks))

    def column_error(self, segment: int) -> float:
        """Return alpha_G: a bound on |G_j| of every column, the noise of j - 1 segment ends."""
        if segment == 1:
            return 0.0
        return self.column.sum_bound(segment - 1, self._part(segment) / self.columns)

    def growth(self, segment: int) -> int:
        """Return Delta_j: a bound on a watched value's growth in h + G before the segment ends.

        It starts at -alpha_G or above, and a tick that does not stop leaves it at most K_j + high.
        Pure, as printed: 2^(j-1) + 2 alpha_DM, with alpha_DM = low + alpha_G + L and the number of
        segments for L.
        """
        low, high = self.bounds(segment)
        alpha_g = self.column_error(segment)
        # In zCDP noise is one-sided.
        if self.test.one_sided:
            return math.ceil(self.threshold(segment) + high + alpha_g)
        return math.ceil(self.threshold(segment) + 2 * (low + alpha_g + self.most))

    def column_variance(self, segment: int) -> float:
        return (segment - 1) * self.column.variance

    def public(self) -> dict[str, object]:
        """Return the parameters that determine segments from sums and noise, as JSON."""
        return {
            "above_threshold": self.test.public(),
            "column": str(self.column.parameter),
            "column_law": "discrete gaussian"
            if self.test.one_sided
            else "discrete laplace",
            "first": self.first,
            "most": self.most,
        }

    def _part(self, segment: int) -> float:
        """Return segment j's part of a third of beta: 1 / (j (j + 1)) adds up to 1."""
        return self.beta / (3 * segment * (segment + 1))


OUTER_TAU, OUTER_MU, OUTER_COLUMNS, INNER_TAU, INNER_MU, INNER_COLUMNS, UPDATES = range(
    0x30, 0x37
)
_INDEX_BITS = 32


class OrderStatisticNoise:
    """All noise of an epoch, by the cells in the module's table."""

    def __init__(self, mechanism: OrderStatistics, stream: NoiseStream) -> None:
        self._mechanism = mechanism
        self._stream = stream
        # By use and stream key: the number of a block of ticks, and mu at each of its ticks.
        self._blocks: dict[tuple[int, int], tuple[int, list[int]]] = {}

    def at(self, t: int, tags: Tags) -> Longs:
        """Raise TypeError: exact sums must not pass for noisy ones."""
        closes = "its columns are noised when an interval closes"
        raise TypeError(f"this mechanism has no noise of a row at a tick: {closes}")

    def outer_tau(self, tag: Tags, segment: int) -> int:
        test = self._mechanism.segments_in_use.test
        return int(test.tau(self._stream, (OUTER_TAU << 56, segment), tag)[0])

    def outer_mu(self, key: int, tag: Tags, t: int) -> int:
        return self._mu(self._mechanism.segments_in_use.test, OUTER_MU, key, tag, t)

    def outer_columns(self, tags: Tags, segment: int) -> Longs:
        column = self._mechanism.segments_in_use.column
        return column.sampler.values(self._stream, (OUTER_COLUMNS << 56, segment), tags)

    def inner_tau(self, tag: Tags, segment: int, interval: int) -> int:
        test = self._mechanism.inner_in_use.test
        cell = (INNER_TAU << 56 | segment, interval)
        return int(test.tau(self._stream, cell, tag)[0])

    def inner_mu(self, key: int, tag: Tags, t: int) -> int:
        return self._mu(self._mechanism.inner_in_use.test, INNER_MU, key, tag, t)

    def inner_columns(self, tags: Tags, segment: int, interval: int) -> Longs:
        """Return N, the noise of each column after an interval of a segment.

        A word is AES(tag XOR cell), and the counter knows cells of its own only: the segment is
        XORed into the tags instead.
        """
        of_segment = np.array([INNER_COLUMNS << 56 | segment << 8, 0], dtype=np.uint64)
        return self._mechanism.sum_noise(segment).draw(
            self._stream, interval, tags ^ of_segment
        )

    def updates(self, tag: Tags, segment: int, interval: int, k: int) -> Longs:
        """Return u_1..u_k, k > 1, which decide at a close which thresholds rise."""
        update = expect_type(OneVector, self._mechanism.inner_in_use.update)
        # A word is AES(tag XOR cell): i, in the cell's low bits, is XORed into the tag, and one
        # call draws all.
        indices = np.zeros((k, 2), dtype=np.uint64)
        indices[:, 1] = np.arange(k, dtype=np.uint64)
        cell = UPDATES << 56 | segment, interval << _INDEX_BITS
        return update.sampler.values(self._stream, cell, indices ^ tag)

    def _mu(self, test: AboveThreshold, use: int, key: int, tag: Tags, t: int) -> int:
        """Return the noise of a test at a tick, drawn with a block of ticks and kept."""
        block = t // BLOCK_TICKS
        # -1: none is kept yet.
        number, noise = self._blocks.get((use, key), (-1, []))
        if number != block:
            noise = test.mu_block(self._stream, use << 56, tag, block)
            self._blocks[use, key] = block, noise
        return noise[t % BLOCK_TICKS]


class OrderStatistics(Mechanism):
    """Base class of the order statistics; `weights` decides which of the two levels exist.

    Guarantee: `guarantee`, for the content of one event, over all ticks of an epoch together, on
    streams that may react to published answers (zCDP: at integer orders). The segments do not
    depend on the intervals in them, so the outer level is one mechanism and the inner ones, given
    its outcome, are disjoint in ticks: their costs add. The constructor raises ValueError if the
    budget cannot be met, or needs noise for which there is no table.
    """

    law = "sum"
    config: OrderStatisticConfig
    # Each part's weight in the budget: (in zCDP, in pure accounting as the paper prints it), with
    # one watched value and with several. With "columns" there are segments, with "sums" intervals.
    weights: Mapping[str, tuple[int, int]] = MappingProxyType({})
    weights_of_several: Mapping[str, tuple[int, int]] = MappingProxyType({})
    segments: Segments | None = None
    inner: IntervalRule | None = None

    def __init__(self, config: OrderStatisticConfig, unit: str = "event") -> None:
        super().__init__(config, unit)
        self.queries = Queries(config.asked, config.domain)
        weights = self.weights if self.queries.k == 1 else self.weights_of_several
        share = settings.shares_of(config, weights)
        spent = dict[str, Fraction]()
        tv = 0.0
        if "columns" in share:
            # The levels share beta.
            beta = config.beta / (2 if "sums" in share else 1)
            self.segments = Segments(config, share, beta)
            spent = self.segments.spent
            tv = self.segments.tv
        if "sums" in share:
            self.inner = IntervalRule(config, self.queries.k, share)
            spent = spent | self.inner.spent
            tv = tv + self.inner.tv
        self._cost = settings.combined_cost(config, share, spent, tv)
        # Computed for all segments now, so that noise without a table is refused before any tick;
        # none without an inner level.
        numbered = range(1, (self.segments.most if self.segments else 1) + 1)
        inner = self.inner
        self._intervals = tuple(
            self._make_intervals(inner, segment) for segment in numbered if inner
        )

    def intervals(self, segment: int) -> Intervals:
        """Return the numbers of the intervals in a segment, from 1."""
        return self._intervals[segment - 1]

    def _make_intervals(self, inner: IntervalRule, segment: int) -> Intervals:
        """Return the numbers of a segment's intervals, from its bound on growth."""
        segments = self.segments_in_use
        # The outer level has the other half of beta. Segments' parts 1 / (j (j + 1)) add up to 1.
        beta = self.config.beta / (2 * segment * (segment + 1))
        return inner.intervals(
            segments.growth(segment), beta, segments.column_error(segment)
        )

    def error(self, segment: int) -> float:
        """Bound the error of answers in a segment, with probability 1 - beta over the epoch.

        Of an answer that names labels it bounds how much less their sums may be than they should.
        """
        if self.inner is None:
            segments = self.segments_in_use
            return segments.growth(segment) + segments.column_error(segment)
        numbers = self.intervals(segment)
        # A label is named by noisy sums, so its true sum may fall short by their error as well.
        spread = numbers.spread if self.queries.names_labels else 0.0
        return numbers.error + spread

    def first_error(self) -> float:
        return self.error(1)

    def segments_up_to(self, most: int) -> Iterator[tuple[int, int, float]]:
        """Yield (number, threshold, error of answers) of the first `most` segments, for a plan."""
        if self.segments is not None:
            for segment in range(1, min(most, self.segments.most) + 1):
                error = self.error(segment)
                yield segment, self.segments.threshold(segment), error

    def curve(self, last: int) -> Curve:
        ticks = min(self.segments.most if self.segments is not None else 1, last)
        return TableCurve(np.array([self.sd(t) ** 2 for t in range(1, ticks + 1)]))

    def row_bytes(self) -> RowBytes:
        kept = 8 * (self.queries.k + 3 * len(self._domain))
        note = "the further state is written only when an answer is made anew"
        return RowBytes(per_key=kept + _BLOCKS_KEPT, note=note)

    def figures(self, last: int, worst: int) -> Iterator[Figure]:
        """Yield the error of answers, where it is the same in the whole epoch."""
        if self.segments is None:
            error = float(round(self.error(1), 4))
            meaning = "no answer is off by more, with probability 1 - beta, up to c_max"
            yield Figure("error", error, meaning)

    def bounds(self, beta: float, data: Data) -> tuple[Bound, ...]:
        """Bound the error of every answer, in the worst segment that the data can reach.

        It fails with the probability of the setting `beta`, which calibrates the mechanism,
        whatever the argument.
        """
        config = self.config
        value = self._largest_value(data)
        segments = range(1, self._last_segment(value) + 1)
        error = max(self._error_in(segment, value) for segment in segments)
        text = f"error of every answer, over {config.ticks:,} ticks"
        assumes = f"no watched value passes {value:,}"
        return (Bound("answer", text, assumes, config.beta, error, self.source),)

    @property
    def source(self) -> str:
        """Return where the error bound comes from."""
        raise NotImplementedError

    def _largest_value(self, data: Data) -> int:
        return data.value

    def _error_in(self, segment: int, value: int) -> float:
        return self.error(segment)

    def _last_segment(self, value: int) -> int:
        """Return the last segment that values up to `value` reach, with probability 1 - beta.

        Segment j ends only if value + |G_j| + low > K_j, so a value that stays at V never ends the
        first segment with K_j >= V + column_error(j) + low.
        """
        segments = self.segments
        if segments is None:
            return 1
        for segment in range(1, segments.most):
            low = segments.bounds(segment)[0]
            reached = value + segments.column_error(segment) + low
            if segments.threshold(segment) >= reached:
                return segment
        return segments.most

    def _parameters(self) -> Mapping[str, object]:
        """Return the public parameters of which the mechanism id, and so its noise, is a hash."""
        config = self.config
        parameters: dict[str, object] = {
            "accounting": config.accounting,
            "beta": repr(config.beta),
            "horizon": config.ticks,
            "queries": list(self.queries.asked),
            "domain": short_hash(msgspec.json.encode(config.domain)),
        }
        if self.segments is not None:
            parameters["segments"] = self.segments.public()
        if self.inner is not None:
            parameters["partition"] = {
                **self.inner.public(),
                "intervals": [
                    [one.step, one.clearance, one.capacity] for one in self._intervals
                ],
            }
        return parameters

    def sd(self, t: int) -> float:
        """Return a bound on a column's noise sd at tick t.

        An answer may also be out of date, as no test has stopped yet; `error` covers that.
        """
        self._check(t)
        variance = 0.0
        segment = 1
        if self.segments is not None:
            # A tick ends at most one segment.
            segment = min(t + 1, self.segments.most)
            variance += self.segments.column_variance(segment)
        if self.inner is not None:
            capacity = max(
                self.intervals(one).capacity for one in range(1, segment + 1)
            )
            variance += self.inner.column_variance(capacity)
        return float(np.sqrt(variance))

    def init(self) -> State:
        return OrderStatisticState()

    def noise(self, stream: NoiseStream) -> Noise:
        return OrderStatisticNoise(self, stream)

    def prepare_key(
        self, state: State, key: int, tags: Tags, labels: Sequence[bytes]
    ) -> None:
        """Begin a stream key with no answer, all counts at zero, and its first thresholds."""
        super().prepare_key(state, key, tags, labels)
        zeros = np.zeros(len(self._domain), dtype=np.int64)
        expect_type(OrderStatisticState, state).by_key[key] = KeyState(
            segment=1,
            interval=1,
            since=0,
            thresholds=self._first_thresholds(zeros, 1),
            segment_noise=zeros,
            interval_noise=zeros,
            shown=zeros,
        )

    def step(
        self, state: State, t: int, contributions: Parts, noise: Noise
    ) -> tuple[State, Answers]:
        """Count a tick, and return every stream key's answer, renewed if a test stopped."""
        self._check(t)
        state = expect_type(OrderStatisticState, state)
        noise = expect_type(OrderStatisticNoise, noise)
        state.merge(contributions, add_rows=False)
        for _, key_index in contributions:
            # -1: a stream key that this histogram does not serve.
            for key in key_index[key_index >= 0].tolist():
                state.by_key[key].stale = True
        answers = {
            key: self._tick(state, key, t, noise) for key in range(len(state.by_key))
        }
        return state, Answers(answers, None)

    def _tick(
        self, state: OrderStatisticState, key: int, t: int, noise: OrderStatisticNoise
    ) -> Mapping[str, object]:
        """Return a stream key's answer at tick t, after the tests that may renew it."""
        key_state = state.by_key[key]
        tag = state.key_tags[key : key + 1]
        # What the tests look at changes only with counts, thresholds and noise.
        if key_state.stale:
            sums = self._sums(state, key) + key_state.segment_noise
            if self.segments is not None:
                key_state.largest = int(self.queries.values(sums).max())
            if self.inner is not None:
                watched = self.queries.values(sums + key_state.interval_noise)
                key_state.excess = int((watched - key_state.thresholds).max())
            key_state.stale = False
        # First whether the segment ends: that renews everything else.
        if self.segments is not None and key_state.segment < self.segments.most:
            if key_state.outer_tau is None:
                key_state.outer_tau = noise.outer_tau(tag, key_state.segment)
            threshold = self.segments.threshold(key_state.segment) + key_state.outer_tau
            if key_state.largest + noise.outer_mu(key, tag, t) > threshold:
                self._end_segment(state, key, t, noise)
                return self._answer(key_state)
        # Then whether the interval closes, while there is noise for another.
        if (
            self.inner is not None
            and key_state.interval <= self.intervals(key_state.segment).capacity
        ):
            if key_state.inner_tau is None:
                key_state.inner_tau = noise.inner_tau(
                    tag, key_state.segment, key_state.interval
                )
            if key_state.excess + noise.inner_mu(key, tag, t) > key_state.inner_tau:
                self._close_interval(state, key, t, noise)
        return self._answer(key_state)

    def _end_segment(
        self, state: OrderStatisticState, key: int, t: int, noise: OrderStatisticNoise
    ) -> None:
        """Begin the next segment: publish all sums with fresh noise."""
        key_state = state.by_key[key]
        # In addition to that of earlier segments.
        key_state.segment_noise = key_state.segment_noise + noise.outer_columns(
            self._tags(state, key), key_state.segment
        )
        key_state.interval_noise = np.zeros_like(key_state.interval_noise)
        key_state.segment = key_state.segment + 1
        key_state.interval = 1
        key_state.outer_tau = None
        key_state.shown = self._sums(state, key) + key_state.segment_noise
        key_state.thresholds = self._first_thresholds(
            key_state.shown, key_state.segment
        )
        self._mark_changed(key_state, t)

    def _close_interval(
        self, state: OrderStatisticState, key: int, t: int, noise: OrderStatisticNoise
    ) -> None:
        """Begin the next interval: raise reached thresholds, then publish the sums with new N.

        Thresholds are compared with the sums as the test saw them, with the interval's old N.
        """
        key_state = state.by_key[key]
        numbers = self.intervals(key_state.segment)
        sums = self._sums(state, key) + key_state.segment_noise
        if self.queries.k == 1:
            key_state.thresholds = key_state.thresholds + numbers.step
        else:
            # Which thresholds are reached is tested again, with noise of its own.
            tag = state.key_tags[key : key + 1]
            update = noise.updates(
                tag, key_state.segment, key_state.interval, self.queries.k
            )
            watched = self.queries.values(sums + key_state.interval_noise) + update
            reached = watched > key_state.thresholds - numbers.clearance
            key_state.thresholds = key_state.thresholds + numbers.step * reached
        key_state.interval_noise = noise.inner_columns(
            self._tags(state, key), key_state.segment, key_state.interval
        )
        key_state.interval += 1
        key_state.shown = sums + key_state.interval_noise
        self._mark_changed(key_state, t)

    def _mark_changed(self, key_state: KeyState, t: int) -> None:
        """Note that sums and thresholds are new at tick t, to be stored; the inner test restarts.

        The outer test goes on unless its segment has ended.
        """
        key_state.since = t
        key_state.inner_tau = None
        key_state.answer = {}
        key_state.changed = True
        key_state.stale = True

    def _first_thresholds(self, sums: Longs, segment: int) -> Longs:
        """Return the thresholds K_i of a run that begins at these noisy sums."""
        if self.inner is None:
            return np.zeros(0, dtype=np.int64)
        return self.queries.values(sums) + self.intervals(segment).step

    def _answer(self, key_state: KeyState) -> Mapping[str, object]:
        """Return the published answer, made once for the sums that are shown."""
        if not key_state.answer:
            since = key_state.since
            records = self.queries.answers(key_state.shown, updated=since > 0)
            # Of one query the record itself.
            answer = records[0] if len(records) == 1 else {"answers": records}
            error = round(self.error(key_state.segment), 4)
            key_state.answer = {**answer, "since": since, "error": error}
        return key_state.answer

    def _sums(self, state: OrderStatisticState, key: int) -> Longs:
        """Return the exact column sums of a stream key, (d,)."""
        d = len(self._domain)
        return state.ledger.counts[key * d : (key + 1) * d]

    def _tags(self, state: OrderStatisticState, key: int) -> Tags:
        d = len(self._domain)
        return state.ledger.tags[key * d : (key + 1) * d]

    @property
    def segments_in_use(self) -> Segments:
        return expect_type(Segments, self.segments)

    @property
    def inner_in_use(self) -> IntervalRule:
        return expect_type(IntervalRule, self.inner)

    def sum_noise(self, segment: int) -> Counter | LaplaceTree:
        return self.inner_in_use.counter(self.intervals(segment).capacity)
