"""Check the lifted Haar counter's algebra and weights: `python -m bench.lifted_haar [--fit]`.

Exact, in integers: the factorization B C = A for every horizon up to 512 ticks, and the recursion
at 2^16 and 2^20. In floats: sd * mu of the closed-form weights; with `--fit` beside weights that
are fitted by level and edge (minutes). docs/decisions/0030-lifted-haar.md has the theorem.
"""

import sys
from collections.abc import Callable
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[Any]
Floats = NDArray[np.float64]
Longs = NDArray[np.int64]

# Weights of interior nodes, finest and coarsest levels first, and of edge nodes, in 1/40. Where a
# level is among the finest and the coarsest, they multiply; elsewhere interior nodes have 1.
FINEST, COARSEST = (58, 48, 42), (34, 34, 38, 41, 42)
EDGE, COARSEST_EDGE = 25, (38, 48, 47, 44, 44)
TOTAL = 136


def analyze(counts: Numbers) -> tuple[list[Numbers], Numbers]:
    """Return the nodes C x of integer counts x (2^h, ...), times 8^h: by level, and the total."""
    levels = (len(counts) - 1).bit_length()
    sums, nodes = counts * 8**levels, []
    for _ in range(levels):
        node = sums[0::2] - sums[1::2]
        nodes.append(node)
        lift = np.concatenate([node[1:], -node[-1:]]) - np.concatenate([-node[:1], node[:-1]])
        sums = sums[0::2] + sums[1::2] + _divided(lift, 8)
    return nodes, sums


def synthesize(nodes: list[Numbers], total: Numbers) -> Numbers:
    """Return B z for nodes z: the running sums after 0..2^h ticks."""
    sums = np.concatenate([0 * total, total])
    for node in reversed(nodes):
        padded = np.concatenate([-node[:1], node, -node[-1:]])
        finer = np.empty((2 * len(node) + 1, *sums.shape[1:]), dtype=sums.dtype)
        finer[0::2] = sums - _divided(padded[1:] + padded[:-1], 8)
        finer[1::2] = _divided(finer[0:-1:2] + finer[2::2] + node, 2)
        sums = finer
    return sums


def _divided(numbers: Numbers, divisor: int) -> Numbers:
    if numbers.dtype.kind == "f":
        return numbers / divisor
    quotients = numbers // divisor
    if np.any(quotients * divisor != numbers):
        raise ArithmeticError(f"a number is no multiple of {divisor}")
    return quotients


def check_every_horizon(levels: int) -> None:
    """Check B C = A at 2^h ticks in integers.

    A horizon T of at most 2^h ticks takes the first T columns of C and rows of B.
    """
    counts = np.eye(1 << levels, dtype=np.int64)
    found = synthesize(*analyze(counts))
    if not np.array_equal(found[1:], np.cumsum(counts, axis=0) * 8**levels):
        raise ArithmeticError(f"2^{levels} ticks: B C is not A")


def check_recursion(levels: int, seed: int = 0) -> None:
    """Check B C x = A x at 2^h ticks for random counts x, in integers of any size."""
    counts = np.random.default_rng(seed).integers(-1000, 1000, 1 << levels).astype(object)
    found = synthesize(*analyze(counts))
    if not np.array_equal(found[1:], np.cumsum(counts) * 8**levels):
        raise ArithmeticError(f"2^{levels} ticks: B C x is not A x")


def weights(levels: int) -> tuple[list[tuple[Fraction, Fraction]], Fraction]:
    """Return the weights (interior, edge) of levels 1..h, and the total's."""
    found = []
    for level in range(1, levels + 1):
        interior, edge, top = Fraction(1), Fraction(EDGE, 40), levels - level
        if level <= len(FINEST):
            interior *= Fraction(FINEST[level - 1], 40)
        if top < len(COARSEST):
            interior *= Fraction(COARSEST[top], 40)
            edge *= Fraction(COARSEST_EDGE[top], 40)
        found.append((interior, edge))
    return found, Fraction(TOTAL, 40)


class Squares:
    """Squared entries of C by column and of B by row, summed by kind of node.

    `columns` and `rows` are (2^h, 2 h + 1): interior nodes of levels 1..h, edge nodes, the total.
    """

    def __init__(self, levels: int) -> None:
        self.levels = levels
        self.columns, self.rows = (np.zeros((1 << levels, 2 * levels + 1)) for _ in range(2))
        self._analyze()
        self._synthesize()

    def _add(self, out: Floats, level: int, nodes: Longs, entries: Floats) -> None:
        """Add the squares of `entries` (2^h, k) at `nodes`; equal nodes of a row are one."""
        last = (1 << (self.levels - level)) - 1
        sign = np.where((nodes < 0) | (nodes > last), -1, 1)
        nodes = np.where(nodes < 0, -nodes - 1, np.where(nodes > last, 2 * last + 1 - nodes, nodes))
        entries = entries * sign
        for i, j in combinations(range(nodes.shape[1]), 2):
            same = nodes[:, i] == nodes[:, j]
            entries[same, j] += entries[same, i]
            entries[same, i] = 0
        edge = (nodes == 0) | (nodes == last)
        out[:, level - 1] = np.where(edge, 0, entries**2).sum(1)
        out[:, self.levels + level - 1] = np.where(edge, entries**2, 0).sum(1)

    def _synthesize(self) -> None:
        """Write N_0(t) as a N_j(K) + b N_j(K + 1) + nodes, for j = 0..h."""
        place = np.arange(1, (1 << self.levels) + 1)
        left, right = np.ones(len(place)), np.zeros(len(place))
        for level in range(1, self.levels + 1):
            odd, node = (place & 1) == 1, place >> 1
            halved = np.where(odd, left, right) / 2
            left, right = np.where(odd, 0, left) + halved, np.where(odd, right, 0) + halved
            entries = np.stack([-left / 8, halved - (left + right) / 8, -right / 8], 1)
            self._add(self.rows, level, np.stack([node - 1, node, node + 1], 1), entries)
            place = node
        self.rows[:, -1] = np.where(place == 1, left, right) ** 2

    def _analyze(self) -> None:
        """Follow the few neighboring sums that one event changes at every level."""
        ticks = np.arange(1 << self.levels)
        first, sums = ticks, np.ones((len(ticks), 1))
        for level in range(1, self.levels + 1):
            last = (1 << (self.levels - level)) - 1

            def at(places: Longs, first: Longs = first, sums: Floats = sums) -> Floats:
                inside = np.clip(places - first, 0, sums.shape[1] - 1)
                found = np.take_along_axis(sums, inside[:, None], 1)[:, 0]
                return np.where(places - first == inside, found, 0.0)

            def node(places: Longs, at: Callable[..., Floats] = at, last: int = last) -> Floats:
                sign = np.where((places < 0) | (places > last), -1, 1)
                inner = np.where(places < 0, -places - 1, places)
                inner = np.where(inner > last, 2 * last + 1 - inner, inner)
                return sign * (at(2 * inner) - at(2 * inner + 1))

            begin = first >> 1
            near = [begin - 1 + i for i in range(sums.shape[1] // 2 + 3)]
            entries = np.stack([at(2 * k) - at(2 * k + 1) for k in near[1:-1]], 1)
            nodes = np.stack(near[1:-1], 1)
            # Nodes beyond the edge are reflections, not nodes.
            self._add(self.columns, level, nodes, np.where(nodes > last, 0.0, entries))
            lifted = [at(2 * k) + at(2 * k + 1) + (node(k + 1) - node(k - 1)) / 8 for k in near]
            sums = np.stack(
                [np.where((k >= 0) & (k <= last), s, 0) for k, s in zip(near, lifted, strict=True)],
                1,
            )
            used = np.flatnonzero(np.abs(sums).max(0))
            first, sums = begin - 1 + used[0], sums[:, used[0] : used[-1] + 1]
        self.columns[:, -1] = np.take_along_axis(sums, -first[:, None], 1)[:, 0] ** 2

    def sd_mu(self, by_kind: Floats) -> tuple[float, float]:
        """Return sd * mu of some weights, at the worst tick and as root mean square over ticks."""
        shift, variance = self.columns @ by_kind, self.rows @ (1 / by_kind)
        worst, mean = shift.max() * variance.max(), shift.max() * variance.mean()
        return float(np.sqrt(worst)), float(np.sqrt(mean))


def by_kind(levels: int) -> Floats:
    of_levels, total = weights(levels)
    interior, edge = zip(*of_levels, strict=True)
    return np.array([*interior, *edge, total], dtype=float)


def fitted(squares: Squares) -> Floats:
    """Return weights that minimize the worst tick's sd * mu, by ever harder soft maxima."""
    from scipy.optimize import minimize

    both = np.unique(np.hstack([squares.columns, squares.rows]).round(9), axis=0)
    columns, rows = np.hsplit(both, 2)

    def objective(logs: Floats, power: float) -> tuple[float, Floats]:
        found, value = np.exp(logs), 0.0
        gradient = np.zeros(len(logs))
        for matrix, sign in ((columns, 1), (rows, -1)):
            each = matrix @ found**sign
            soft = (each / each.max()) ** power
            value += np.log(each.max()) + np.log(soft.sum()) / power
            gradient += sign * ((soft / each / soft.sum()) @ matrix) * found**sign
        return value, gradient

    logs = np.log(by_kind(squares.levels))
    for power in (8, 16, 32, 64, 128, 256, 512):
        options = {"maxiter": 3000}
        logs = minimize(objective, logs, (power,), "L-BFGS-B", jac=True, options=options).x
    return np.asarray(np.exp(logs))


def main(fit: bool) -> None:
    for levels in range(10):
        check_every_horizon(levels)
    print("B C = A at every horizon up to 512")
    for levels in (16, 20):
        check_recursion(levels)
        print(f"B C x = A x at 2^{levels}")
    print("sd * mu, worst tick and root mean square")
    for levels in (2, 4, 6, 8, 10, 12, 16, 20):
        squares = Squares(levels)
        text = "{:.4f} {:.4f}".format(*squares.sd_mu(by_kind(levels)))
        if fit and levels <= 12:
            text += ", fitted {:.4f} {:.4f}".format(*squares.sd_mu(fitted(squares)))
        print(f"2^{levels}: {text}")


if __name__ == "__main__":
    main("--fit" in sys.argv[1:])
