"""Check the lifted Haar counter: `python -m bench.lifted_haar [--fit | --norms]`.

Exact, in integers: the factorization B C = A for every horizon up to 512 ticks, and the recursion
at 2^16 and 2^20. In floats: sd * mu of the closed-form weights; with `--fit` beside weights that
are fitted by level and edge (minutes). With `--norms`: proved bounds of what an event costs at all
levels, for every horizon. docs/decisions/0030-lifted-haar.md has the theorems.
"""

import math
import sys
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.mechanisms.counters.lifted import COARSEST, unbounded_weights, weights

Numbers = NDArray[Any]
Floats = NDArray[np.float64]
Longs = NDArray[np.int64]

LIFT = 1 / 8
# Levels until a state depends little on the place before them; doubles hold 17 exactly.
WINDOW = 17


def analyze(counts: Numbers) -> tuple[list[Numbers], Numbers]:
    """Return the nodes C x of integer counts x (2^h, ...), times 8^h: by level, and the total."""
    levels = (len(counts) - 1).bit_length()
    sums = counts * 8**levels
    nodes = []
    for _ in range(levels):
        node = sums[0::2] - sums[1::2]
        nodes.append(node)
        lift = np.concatenate([node[1:], -node[-1:]]) - np.concatenate(
            [-node[:1], node[:-1]]
        )
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
    counts = (
        np.random.default_rng(seed).integers(-1000, 1000, 1 << levels).astype(object)
    )
    found = synthesize(*analyze(counts))
    if not np.array_equal(found[1:], np.cumsum(counts) * 8**levels):
        raise ArithmeticError(f"2^{levels} ticks: B C x is not A x")


class Squares:
    """Squared entries of C by column and of B by row, summed by kind of node.

    `columns` and `rows` are (2^h, 2 h + 1): interior nodes of levels 1..h, edge nodes, the total.
    """

    def __init__(self, levels: int) -> None:
        self.levels = levels
        self.columns, self.rows = (
            np.zeros((1 << levels, 2 * levels + 1)) for _ in range(2)
        )
        self._analyze()
        self._synthesize()

    def _add(self, out: Floats, level: int, nodes: Longs, entries: Floats) -> None:
        """Add the squares of `entries` (2^h, k) at `nodes`; equal nodes of a row are one."""
        last = (1 << (self.levels - level)) - 1
        sign = np.where((nodes < 0) | (nodes > last), -1, 1)
        nodes = np.where(
            nodes < 0, -nodes - 1, np.where(nodes > last, 2 * last + 1 - nodes, nodes)
        )
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
        left = np.ones(len(place))
        right = np.zeros(len(place))
        for level in range(1, self.levels + 1):
            odd = (place & 1) == 1
            node = place >> 1
            halved = np.where(odd, left, right) / 2
            left = np.where(odd, 0, left) + halved
            right = np.where(odd, right, 0) + halved
            entries = np.stack([-left / 8, halved - (left + right) / 8, -right / 8], 1)
            self._add(
                self.rows, level, np.stack([node - 1, node, node + 1], 1), entries
            )
            place = node
        self.rows[:, -1] = np.where(place == 1, left, right) ** 2

    def _analyze(self) -> None:
        """Follow the few neighboring sums that one event changes at every level."""
        ticks = np.arange(1 << self.levels)
        first = ticks
        sums = np.ones((len(ticks), 1))
        for level in range(1, self.levels + 1):
            last = (1 << (self.levels - level)) - 1

            def at(places: Longs, first: Longs = first, sums: Floats = sums) -> Floats:
                inside = np.clip(places - first, 0, sums.shape[1] - 1)
                found = np.take_along_axis(sums, inside[:, None], 1)[:, 0]
                return np.where(places - first == inside, found, 0.0)

            def node(
                places: Longs, at: Callable[..., Floats] = at, last: int = last
            ) -> Floats:
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
            lifted = [
                at(2 * k) + at(2 * k + 1) + (node(k + 1) - node(k - 1)) / 8
                for k in near
            ]
            sums = np.stack(
                [
                    np.where((k >= 0) & (k <= last), s, 0)
                    for k, s in zip(near, lifted, strict=True)
                ],
                1,
            )
            used = np.flatnonzero(np.abs(sums).max(0))
            first = begin - 1 + used[0]
            sums = sums[:, used[0] : used[-1] + 1]
        self.columns[:, -1] = np.take_along_axis(sums, -first[:, None], 1)[:, 0] ** 2

    def sd_mu(self, by_kind: Floats) -> tuple[float, float]:
        """Return sd * mu of some weights, at the worst tick and as root mean square over ticks."""
        shift = self.columns @ by_kind
        variance = self.rows @ (1 / by_kind)
        worst = shift.max() * variance.max()
        mean = shift.max() * variance.mean()
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
        found = np.exp(logs)
        value = 0.0
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
        logs = minimize(
            objective, logs, (power,), "L-BFGS-B", jac=True, options=options
        ).x
    return np.asarray(np.exp(logs))


class EventCost:
    """Upper bounds of the cost of an event: the sum of w C[node, t]^2 over all levels' nodes.

    Section 6 of the decision has the proof. The state of a tick t at level j are the sums s_j at
    the places k - 2..k + 2 around k = t >> j; all others are 0. `states[j]` (5, 2^j) are those of
    levels up to q = `window`, by t mod 2^j. The state of a higher level is within `radius` of that
    of `states[q]` by the highest q of those bits. `costs[j]` bounds the cost of levels 1..j where
    no edge is near, by the same bits.
    """

    def __init__(self, interior: list[Fraction], window: int = WINDOW) -> None:
        """Take the weights of interior nodes by level."""
        places = np.arange(-2, 3)
        nodes = np.arange(-3, 4)[:, None]
        self._steps = []
        for bit in (0, 1):
            first = places + bit == 2 * nodes
            second = places + bit == 2 * nodes + 1
            differences = first * 1.0 - second
            lifted = (first | second)[1:-1] + (
                differences[2:] - differences[:-2]
            ) * LIFT
            self._steps.append((lifted, differences[2:-2]))
        self.window = window
        self._follow()
        self.costs = [np.zeros(1)]
        for level, weight in enumerate(interior):
            both = [
                self.costs[level]
                + float(weight) * self._squares(level, nodes.T @ nodes)
                for _, nodes in self._steps
            ]
            if level >= window:
                both = [cost.reshape(-1, 2).max(1) for cost in both]
            self.costs.append(np.concatenate(both))

    def _follow(self) -> None:
        """Set `states` and `radius`, from what the first levels make of every place's unit."""
        paths = unit = np.eye(5)[:, :, None]
        self.states = [paths[2]]
        farthest = 0.0
        for _ in range(self.window):
            paths = np.concatenate([lifted @ paths for lifted, _ in self._steps], 2)
            self.states.append(paths[2])
            farthest = max(farthest, _distance(paths[2] - unit[2]))
        shrunk = _distance(paths[1:] - paths[:-1])
        self.radius = shrunk * farthest / (1 - shrunk)

    def _squares(self, level: int, form: Floats) -> Floats:
        """Bound a quadratic form at the states of a level."""
        states = self.states[min(level, self.window)]
        squares: Floats = np.einsum("it,it->t", form @ states, states)
        if level <= self.window:
            return squares
        steepest = max(
            form[i, i] + form[i + 1, i + 1] - 2 * form[i, i + 1] for i in range(4)
        )
        slack = self.radius * math.sqrt(max(steepest, 0))
        return np.asarray((np.sqrt(np.maximum(squares, 0)) + slack) ** 2)

    def worst(
        self, weights: list[tuple[Fraction, Fraction]], level: int, places: int
    ) -> float:
        """Bound the cost at the ticks below places * 2^level, with weights (interior, edge).

        Up to this level the interior weights are ours. The right edge must be farther than one
        place from these, places + 2 <= 2^(h - level), except at level 0.
        """

        @cache
        def form(level: int, place: int) -> Floats:
            """Return the cost of the levels above this one as a form of the state at a place."""
            if level == len(weights):
                return np.zeros((5, 5))
            lifted, nodes = self._steps[place & 1]
            parent = place >> 1
            count = 1 << (len(weights) - level - 1)
            sums = np.zeros((5, 5))
            for i, row in enumerate(lifted):
                sums[inside(parent - 2 + i, count) - parent + 2] += row
            near = np.arange(parent - 1, parent + 2)
            interior, edge = (float(weight) for weight in weights[level])
            weight = np.where((near == 0) | (near == count - 1), edge, interior)
            coarser = sums.T @ form(level + 1, parent) @ sums
            return np.asarray(coarser + nodes.T @ (weight[:, None] * nodes))

        # Every tick at the highest level where its place is 2 or more: up to there, no edge is near.
        ranges = [
            (0, 0, min(2, places << level)),
            *((below, 2, 4) for below in range(level)),
        ]
        ranges.append((level, 2, places))
        return max(
            float((self.costs[below] + self._squares(below, form(below, place))).max())
            for below, start, stop in ranges
            for place in range(start, stop)
        )


def inside(place: int, count: int) -> int:
    """Return where the reflection d[-1] = -d[0], d[n] = -d[n-1] puts the lift of a place outside."""
    return min(max(place, 0), count - 1)


def _distance(moved: Floats) -> float:
    """Return the largest cost of moving the sums of a state (..., 5, n) by one place each."""
    return float(np.abs(moved.cumsum(-2)).sum(-2).max())


def horizon_costs(horizons: range, window: int = WINDOW) -> list[float]:
    """Bound the cost of an event at 2^h ticks, without the total's, for every h."""
    interior = [weight for weight, _ in weights(max(horizons))[0]]
    event = EventCost(interior[: -len(COARSEST)], window)
    found = []
    for levels in horizons:
        level = max(levels - len(COARSEST), 0)
        # The right half mirrors the left one.
        half = ((1 << (levels - level)) + 1) // 2
        found.append(event.worst(weights(levels)[0], level, half))
    return found


def unbounded_cost(window: int = WINDOW) -> float:
    """Bound the cost of an event at a tick below 2^40 of 50 levels with the weights of unbounded horizons."""
    interior = [weight for weight, _ in unbounded_weights()]
    return EventCost(interior[:38], window).worst([(w, w) for w in interior], 38, 4)


def in_units(bound: float) -> int:
    """Return a bound in 1/4096, rounded up; 2^-20 is more than all roundings of floats."""
    return math.ceil((bound + 2**-20) * 4096) if bound else 0


def main(fit: bool, norms: bool) -> None:
    if norms:
        print("cost of an event at all levels in 1/4096, 2^0 to 2^40 ticks")
        print(*map(in_units, horizon_costs(range(41))), sep=", ")
        print("unbounded:", in_units(unbounded_cost()))
        return
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
    main("--fit" in sys.argv[1:], "--norms" in sys.argv[1:])
