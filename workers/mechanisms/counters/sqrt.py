"""The sqrt counter: running sums through the square-root Toeplitz factorization.

What: for the few always-on counters of a declared domain. With A the matrix of all prefix sums,
every tick s has one node z_s of an item, and N(t) = sum_{s <= t} f_(t-s) z_s.
Why: within 12 % of the best error of any such mechanism; O(T) state and time per item and tick, so
T is at most 2^16.

    Symbol      Here
    T           `horizon`
    f_k         binom(2k, k) / 4^k, the coefficients of (1 - x)^-1/2; (f * f)_k = 1
    f'_k        f_k rounded to a multiple of 2^-90; N uses these, B is their Toeplitz matrix
    C           B^-1 A: its first column c, whose norm is the largest, is (1 - x)^-1 / f'
    s2          ||c||^2 / (2 rho_item), rounded up

Sensitivity: an event in tick s shifts the nodes by column s of C. With e = f' - f, at most 2^-90
each, and h = 1 / f = (1 - x)^1/2, whose absolute coefficients add up to 2, c = f / (1 + e h). So
||e h||_1 <= T 2^-89 = d, and ||c|| <= ||f|| / (1 - d) <= (||f'|| + sqrt(T) 2^-90) / (1 - d), and
||c||^2 <= ||f'||^2 (1 + 2^-60).
Guarantee: rho = ||c||^2 / (2 s2) for each item it changes by one, for all releases together, also
when the stream reacts to them: B is lower triangular with positive diagonal, and invertible
(docs/decisions/0030-lifted-haar.md, 2).

A row (an item) keeps z_s of every tick in fixed point, whole units of 2^-point; N is their sum with
f' as floats, in parts of 1,024 ticks. A node is in at most 1,024 + 64 + 2 roundings, which
`fixed_point` allows for; rounding N to a unit counts as a division.

Source: Fichtenberger, Henzinger, Upadhyay, "Constant Matters" and Henzinger, Upadhyay, Upadhyay,
"Almost Tight Error Bounds on Differentially Private Continual Counting".
"""

import itertools
import math
from fractions import Fraction

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
    root_of,
    rounded_up,
)
from workers.mechanisms.curves import ROUNDING, TableCurve
from workers.mechanisms.ledger import with_capacity
from workers.mechanisms.noise import normal
from workers.mechanisms.noise.keyed import NoiseStream
from workers.mechanisms.noise.normal import add_rough
from workers.runtime.frozen import memoized, read_only

# Level of this counter's nodes, (LEVEL, tick); those of the others stay below 64.
LEVEL = 1 << 8
# Bits of f' behind the point.
_BITS = 90
# N is summed up in parts of at most this many ticks and rows.
_PART_TICKS = 1024
_PART_ROWS = 2048


class SqrtCounter(Counter):
    """Counter with a node for each tick s, which tick t weighs by f_(t-s): see the module."""

    kind = "sqrt"
    order = 2
    longest = 1 << 16
    grows = True

    def __init__(self, horizon: int | None, rho_item: float) -> None:
        """Compute f' and the variance of a node, which is the same for all."""
        super().__init__(horizon, rho_item)
        # 2^90 f'_k, and the sums of their squares up to k.
        self._column, self._squares = _factors(self._last_tick)
        self._denominator = 1 << _BITS
        # A bound on ||c||^2 from ||f'||^2: see the module.
        norm_squared = Fraction(self._squares[-1], 1 << (2 * _BITS)) * (
            1 + Fraction(1, 1 << 60)
        )
        self._node_variance = rounded_up(norm_squared / (2 * Fraction(rho_item)))
        self.rho_item = float_up(norm_squared / (2 * self._node_variance))
        self._factors = read_only(
            np.array([f / self._denominator for f in self._column])
        )
        self._sd = float(root_of(self._node_variance))
        # A row keeps the nodes themselves.
        self.fixed = fixed_point(
            self._sd,
            parts=float(self._factors.sum()),
            largest=self._sd,
            divisions=1,
        )

    def nodes(self, t: int) -> dict[Node, int]:
        check_tick(self.kind, t, self._last_tick)
        return {(LEVEL, t - k): f for k, f in enumerate(self._column[:t])}

    def variance_of(self, node: Node) -> Fraction:
        return self._node_variance

    def sd_of(self, node: Node) -> float:
        return self._sd

    def variance(self, t: int) -> Fraction:
        """Return the variance of N(t): s2 times the sum of f'_k^2 over k < t."""
        check_tick(self.kind, t, self._last_tick)
        return (
            Fraction(self._squares[t - 1], self._denominator**2) * self._node_variance
        )

    def variances(self, ticks: Longs) -> Floats:
        scale = float(self._node_variance)
        squares: Floats = np.cumsum(self._factors**2)[ticks - 1] * scale
        return squares

    def curve(self) -> TableCurve:
        """Return the variance of the published integers by tick."""
        ticks = np.arange(1, self._last_tick + 1)
        return TableCurve(self.variances(ticks) + ROUNDING)

    def difference_sd(self, t: int, since: int) -> float:
        """Return the sd of the published integer at t minus that at `since` < t (0: no noise)."""
        check_tick(self.kind, t, self._last_tick)
        if not since:
            return self.sd(t)
        check_tick(self.kind, since, self._last_tick)
        # Nodes after `since` are in N(t) alone, with f'_0..f'_(t - since - 1); the others are in
        # both, with two factors that are t - since apart.
        squares = self._squares[t - since - 1]
        squares += _squares_of_differences(self._last_tick, t - since)[since - 1]
        variance = float(Fraction(squares, self._denominator**2) * self._node_variance)
        # What rounding adds at both ends.
        for end in (t, since):
            unrounded = float(self.variance(end))
            variance += normal.rounded_variance(unrounded) - unrounded
        return math.sqrt(variance)

    def _shape(self) -> dict[str, object]:
        return {"bits": _BITS, "sigma_squared": str(self._node_variance)}

    def columns(self, stream: NoiseStream) -> "SqrtColumns":
        return SqrtColumns(self, stream)


class SqrtColumns(Columns):
    """A cache of every node of every row, which a tick adds up: O(t) per row and tick."""

    _counter: SqrtCounter

    def __init__(self, counter: SqrtCounter, stream: NoiseStream) -> None:
        super().__init__(counter, stream)
        self._numbers_kept = counter._last_tick
        # By part of _PART_ROWS rows: the nodes (ticks, rows), and of how many ticks and rows, the
        # first ones, it has them.
        self._parts: list[tuple[normal.Numbers, int, int]] = []

    def at(self, t: int, tags: Tags) -> Longs:
        """Return the noise of every row at tick t (n,); `tags` (n, 2) only grow."""
        check_tick(self._counter.kind, t, self._counter._last_tick)
        out = np.empty(len(tags), dtype=np.int64)
        for index, first in enumerate(range(0, len(tags), _PART_ROWS)):
            part = tags[first : first + _PART_ROWS]
            nodes = self._nodes(index, t, part)[:t, : len(part)]
            noise = np.zeros(len(part))
            # In parts of ticks, so that a node is in few roundings: see the module.
            for start in range(0, t, _PART_TICKS):
                stop = min(start + _PART_TICKS, t)
                # The node of tick s, row s - 1, has the factor f'_(t - s).
                noise += (
                    self._counter._factors[t - stop : t - start][::-1]
                    @ nodes[start:stop]
                )
            rounded = np.rint(noise).astype(np.int64)
            self._round(rounded, out[first : first + len(part)], first)
        return self._finish(t, tags, out)

    def _nodes(self, index: int, t: int, tags: Tags) -> normal.Numbers:
        """Return the nodes of ticks 1..t, (t, n) or more, of a part of rows, in units.

        Those that are not kept yet are drawn. `index` is the part's number, `tags` are its rows'.
        """
        if index == len(self._parts):
            self._parts.append(
                (np.empty((0, 0), dtype=self._counter.fixed.dtype), 0, 0)
            )
        nodes, ticks, rows = self._parts[index]
        if ticks < t or rows < len(tags):
            nodes = with_capacity(with_capacity(nodes, t), len(tags), axis=1)
            row = index * _PART_ROWS
            # The first `rows` rows have nodes up to `ticks`, and lack later ones; others lack all.
            self._draw(nodes, ticks, t, tags[:rows], row)
            self._draw(nodes[:, rows:], 0, max(t, ticks), tags[rows:], row + rows)
            # Rows beyond `tags` may lack the later ticks: they count as rows without nodes.
            self._parts[index] = nodes, max(t, ticks), len(tags)
        return nodes

    def _draw(
        self,
        nodes: normal.Numbers,
        first: int,
        last: int,
        tags: Tags,
        row: int,
    ) -> None:
        """Draw the nodes of ticks first + 1..last of some rows into `nodes` (ticks, rows).

        `tags` (n, 2) are those of these rows, and `row` is the number of the first of them.
        """
        if not len(tags):
            return
        # The standard deviation of a node in units.
        scale = math.ldexp(self._counter._sd, self._counter.fixed.point)
        for tick in range(first + 1, last + 1):
            # A cell of words has the nodes of an even tick and of the next.
            words = self._words(cells_of([(LEVEL, tick >> 1)]), tags, row)[0]
            of_tick = nodes[tick - 1, : len(tags)]
            of_tick[:] = 0
            add_rough(words, tick & 1, scale, normal.table(), of_tick)


@memoized(16)
def _factors(horizon: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the whole numbers 2^90 f'_k, k < T = `horizon`, and the sums of their squares.

    f_k = f_(k-1) (2 k - 1) / (2 k) is kept to 2^-120 and rounded down k times, so off by less than
    2^-104 before it is rounded to 2^-90.
    """
    dropped_bits = 120 - _BITS
    f_k = 1 << 120
    column = []
    for k in range(horizon):
        # Rounded to the nearest.
        column.append((f_k + (1 << (dropped_bits - 1))) >> dropped_bits)
        f_k = f_k * (2 * k + 1) // (2 * k + 2)
    return tuple(column), tuple(itertools.accumulate(f * f for f in column))


@memoized(16)
def _squares_of_differences(horizon: int, apart: int) -> tuple[int, ...]:
    """Return sum 2^180 (f'_k - f'_(k - apart))^2 over apart <= k < apart + s, for s = 1, 2, ...

    Multiplied by 2^-180 and the variance of a node, this is what the nodes of ticks 1..s add to the
    variance of N(s + apart) - N(s). The last s is `horizon` - `apart`.
    """
    column = _factors(horizon)[0]
    steps = zip(column[apart:], column, strict=False)
    return tuple(
        itertools.accumulate((later - earlier) ** 2 for later, earlier in steps)
    )
