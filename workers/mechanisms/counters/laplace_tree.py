"""A tree over the ticks with discrete Laplace noise on every block: sums of a pure epsilon.

    r, L        `radix`, `levels`: blocks of r^j ticks at levels j = 0..L - 1, as in `tree`
    D, Dinf     an event changes the sums of at most D items, by at most Dinf each, in one block
                a level; `sensitivity` is D Dinf
    b           `scale` of the noise of a block: L D Dinf / epsilon, rounded up

The sum at t is that of the blocks that t's base-r digits name. The block sums of all D sums change
by at most L D Dinf = b epsilon together (l1), so all noisy block sums are epsilon-DP, also where
the stream reacts to published sums: a block's noise does not depend on the stream. Source: Chan,
Shi, Song, "Private and Continual Release of Statistics" (binary; also Fact 4 and Algorithm 19 of
Henzinger, Sricharan, Steiner).

A discrete Laplace variable's moment generating function is at most that of the continuous one of
the same scale (cosh is convex in its square): E e^(l Z) <= 1 / (1 - b^2 l^2) for l b < 1. So a sum
of n of them exceeds x with probability at most e^(-l x) (1 - b^2 l^2)^-n, for every such l.
"""

import math
from fractions import Fraction

import numpy as np

from workers.arrays.types import Longs, Tags
from workers.mechanisms.counters.base import check_tick
from workers.mechanisms.counters.tree import Tree
from workers.mechanisms.curves import DigitCurve
from workers.mechanisms.noise import discrete_laplace as laplace
from workers.mechanisms.noise.keyed import NoiseStream
from workers.runtime.frozen import Frozen, memoized


class LaplaceTree(Frozen):
    """The public parameters of a tree with discrete Laplace noise on its blocks, and that noise.

    `horizon` is T in ticks; the other arguments are symbols of the module.
    """

    kind = "laplace tree"

    def __init__(
        self, horizon: int, epsilon: Fraction, sensitivity: int, radix: int = 2
    ) -> None:
        """Compute the scale of the noise that `epsilon` pays for; ValueError if it is too large."""
        self.horizon = horizon
        self.radix = radix
        self._tree = Tree(horizon, radix)
        self.levels = self._tree.levels
        self.scale = laplace.round_up_scale(self.levels * sensitivity / epsilon)
        if self.scale > laplace.LARGEST_SCALE:
            raise ValueError(
                f"epsilon: noise of scale {float(self.scale):g} on each column is more than the "
                f"{laplace.LARGEST_SCALE} there is a table for"
                ' (a larger epsilon, a smaller max_items or max_count, or accounting = "zcdp")'
            )

    @property
    def variance(self) -> float:
        """The variance of the noise of one block."""
        return laplace.discrete_laplace(self.scale).variance

    @property
    def tv(self) -> float:
        """The distance of the noise of one block from its law."""
        return laplace.discrete_laplace(self.scale).tv

    def curve(self) -> DigitCurve:
        return DigitCurve(self.radix, [self.variance] * self.levels)

    def sd(self, t: int) -> float:
        check_tick(self.kind, t, self.horizon)
        return math.sqrt(self._tree.cells(t) * self.variance)

    def difference_sd(self, t: int, since: int) -> float:
        """Return the sd of the sum at t minus that at `since` < t (0: no noise)."""
        # Tick 0 has no blocks, and needs no check.
        for tick in (t, since or t):
            check_tick(self.kind, tick, self.horizon)
        # Blocks of both sums cancel.
        apart = self._tree.cells_at(t) ^ self._tree.cells_at(since)
        return math.sqrt(len(apart) * self.variance)

    def bound(self, values: float, beta: float) -> float:
        """Bound the absolute noise of `values` sums, at any ticks, with failure probability beta.

        The module's tail bound, solved for x, at the best of 1,000 values of l b.
        """
        # The most blocks of a sum.
        blocks = self.curve().used_blocks(self.horizon)
        scale = float(self.scale)
        # Both tails of each value.
        log = math.log(2 * values / beta)
        lb = np.linspace(0, 1, 1_002)[1:-1]
        return float(((log - blocks * np.log1p(-(lb**2))) / lb).min()) * scale

    def public(self) -> dict[str, object]:
        """Return every parameter that changes a noise value, as JSON."""
        return {
            "kind": self.kind,
            "horizon": self.horizon,
            "levels": self.levels,
            "radix": self.radix,
            "scale": str(self.scale),
            "table_version": laplace.TABLE_VERSION,
        }

    def draw(self, stream: NoiseStream, t: int, tags: Tags) -> Longs:
        """Return the noise of every row at tick t: the sum of that of its blocks."""
        check_tick(self.kind, t, self.horizon)
        sampler = laplace.discrete_laplace(self.scale)
        total = np.zeros(len(tags), dtype=np.int64)
        for level, first, end in self._tree.blocks(t):
            for block in range(first, end):
                total += sampler.values(stream, (level, block), tags)
        return total

    def columns(self, stream: NoiseStream) -> "LaplaceColumns":
        return LaplaceColumns(self, stream)


class LaplaceColumns:
    """The noise of all rows, drawn again at every tick: unlike other counters it keeps nothing."""

    bytes_per_row = 0

    def __init__(self, tree: LaplaceTree, stream: NoiseStream) -> None:
        self._tree = tree
        self._stream = stream

    def at(self, t: int, tags: Tags) -> Longs:
        return self._tree.draw(self._stream, t, tags)


@memoized(512)
def laplace_tree(
    horizon: int, epsilon: Fraction, sensitivity: int, radix: int = 2
) -> LaplaceTree:
    """Return the tree of these settings, the same object for equal arguments."""
    return LaplaceTree(horizon, epsilon, sensitivity, radix)
