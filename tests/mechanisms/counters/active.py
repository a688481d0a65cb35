"""Cost of an active count, bounded in integers: T8 of docs/decisions/0036-windows-without-epochs.md.

Symbol      Here
H_s         the step at tick s: 0 before it, 1 from it on; an interval is H_s - H_s', s < s'
y_j, z_j    nodes of a path, as in T8; y_j(K) of H_s is 0 for K < k - 2 and 1 for K > k + 2,
            k = s >> j, and z_j[K] is 0 but for K = k - 2..k + 1
state       y_j(k - 2..k + 2), a function of the j lowest bits of s
d           blocks of 2^j ticks between k of s and of s'; FAR for all from there on
A           `overheads`: no interval of l ticks costs more than A + w_g l / 2^L
"""

import math
from fractions import Fraction

import numpy as np

from tests.mechanisms.counters.line import Vector
from workers.arrays.types import Longs

FINEST = (Fraction(3, 2), Fraction(6, 5), Fraction(21, 20))
HIGHEST = (Fraction(17, 20), Fraction(7, 10))
ENDS = Fraction(3)

FAR = 5
# A state is that of so many of the highest bits, exact up to this level.
_BITS = 10
_ONE = 1 << (3 * _BITS)
_WEIGHT = 400
# Squares are rounded up to multiples of 2^-30.
_SQUARE_BITS = 30
_NEVER = -(1 << 60)
#: By the lowest bit of k of s, that of s', and d.
Squares = dict[tuple[int, int, int], Longs]


def weights(levels: int) -> list[Fraction]:
    """Return the weights of levels 1..L, and of ends."""
    found = []
    for level in range(1, levels + 1):
        weight = FINEST[level - 1] if level <= len(FINEST) else Fraction(1)
        below = levels - level
        if below < len(HIGHEST):
            weight *= HIGHEST[-1 - below]
        found.append(weight)
    return [*found, ENDS]


def nodes_of_path(path: dict[int, int], levels: int) -> Vector:
    """Return the nodes of a path of counts, in units of 8^-levels; level L + 1 are its ends."""
    sums = {t: value * 8**levels for t, value in path.items()}
    found: Vector = {}
    for level in range(1, levels + 1):
        blocks = {place >> 1 for place in sums}
        blocks |= {k - 1 for k in blocks}
        nodes = {
            k: 2 * sums.get(2 * k + 1, 0) - sums.get(2 * k, 0) - sums.get(2 * k + 2, 0)
            for k in blocks
        }
        sums = {
            k: sums.get(2 * k, 0) + (nodes.get(k, 0) + nodes.get(k - 1, 0)) // 8
            for k in blocks | {k + 1 for k in blocks}
        }
        found |= {(level, k): node for k, node in nodes.items() if node}
    return found | {(levels + 1, k): end for k, end in sums.items() if end}


def cost_of_interval(begin: int, ticks: int, levels: int) -> Fraction:
    """Return mu^2 of one interval, where s2 = 1."""
    nodes = nodes_of_path(dict.fromkeys(range(begin, begin + ticks), 1), levels)
    w = weights(levels)
    sums = [0] * (levels + 1)
    for (level, _), node in nodes.items():
        sums[level - 1] += node * node
    total = sum((a * b for a, b in zip(sums, w, strict=True)), Fraction(0))
    return Fraction(total, 64**levels)


def _next(states: Longs, bit: int) -> tuple[Longs, Longs]:
    """Return the states one level up, and their nodes k - 2..k + 1, of states (n, 5).

    `bit` is the lowest of k below. Multiples of 8 stay whole.
    """
    number = len(states)
    wide = np.concatenate(
        [
            np.zeros((number, 8), dtype=np.int64),
            states,
            np.full((number, 8), _ONE, dtype=np.int64),
        ],
        axis=1,
    )

    def value(place: int) -> Longs:
        column: Longs = wide[:, place + 10 - bit]
        return column

    nodes = [
        2 * value(2 * i + 1) - value(2 * i) - value(2 * i + 2) for i in range(-3, 3)
    ]
    lifted = [value(2 * i) + ((nodes[i + 3] + nodes[i + 2]) >> 3) for i in range(-2, 3)]
    assert not nodes[0].any()
    assert not nodes[5].any()
    return np.stack(lifted, axis=1), np.stack(nodes[1:5], axis=1)


def _states() -> list[Longs]:
    """Return the states of levels 0.._BITS; of the last also those of `_BITS` bits further up."""
    found = [np.array([[0, 0, 1, 1, 1]], dtype=np.int64) * _ONE]
    for _ in range(_BITS):
        assert not (found[-1] & 7).any()
        found.append(np.concatenate([_next(found[-1], bit)[0] for bit in (0, 1)]))
    return found


def _slacks(states: Longs) -> Longs:
    """Bound by how much, in all 5 places together, a state differs from that of its highest bits.

    Two states from _BITS levels below, their bits equal, are closer by `shrunk`; and no state is
    further from the first one than `farthest`: such a one is as near to one of `states`.
    """
    first = np.array([0, 0, 1, 1, 1], dtype=np.int64) * _ONE
    shrunk = np.zeros(len(states), dtype=np.int64)
    for unit in _ONE * np.eye(5, dtype=np.int64):
        current = (first + unit)[None, :]
        for _ in range(_BITS):
            current = np.concatenate([_next(current, bit)[0] for bit in (0, 1)])
        np.maximum(shrunk, np.abs(current - states).sum(axis=1), out=shrunk)
    least = 1 - Fraction(int(shrunk.max()), _ONE)
    assert least > 0
    reached = int(np.abs(states - first).sum(axis=1).max())
    farthest = math.ceil(Fraction(reached, _ONE) / least * 4096)
    return -(-shrunk * farthest >> 12)


def _in_units(values: Longs) -> Longs:
    """Return sums of squares in units of 2^-_SQUARE_BITS, rounded up."""
    found: Longs = -(-values >> (6 * _BITS - _SQUARE_BITS))
    return found


def _grown(squares: Longs, off: Longs) -> Longs:
    """Bound |x + e|^2, given |x|^2 and a bound on |e|."""
    if not off.any():
        return squares
    lengths = np.sqrt(squares).astype(np.int64) + 1
    assert (lengths**2 >= squares).all()
    return squares + 2 * lengths * off + off**2


def _squares(up: Longs, down: Longs, apart: int, slacks: Longs) -> Longs:
    """Bound the squares of nodes of two steps, (n, 4) each, the second `apart` further on."""
    width = up.shape[1]
    exact = (up**2).sum(1)[:, None] + (down**2).sum(1)[None, :]
    if apart < width:
        exact -= 2 * up[:, apart:] @ down[:, : width - apart].T
    # A place is in two nodes with a factor of 1, or in one with 2.
    off = 2 * (slacks[:, None] + slacks[None, :])
    return _in_units(_grown(exact, off))


def _ends(states: Longs, apart: int, slacks: Longs) -> Longs:
    """Bound the squares of ends of an interval, less its length in blocks, (n, n)."""
    number = len(states)
    up = np.pad(states, ((0, 0), (0, apart)), constant_values=_ONE)
    down = np.pad(states, ((0, 0), (apart, 0)))
    # The square |up - down|^2, expanded; parts that overflow 64 bits wrap around and back.
    total = (up**2).sum(1)[:, None] + (down**2).sum(1)[None, :] - 2 * up @ down.T
    squares = _in_units(_grown(total, slacks[:, None] + slacks[None, :]))
    # Of lower bits, which the states do not have, at most one unit is lost.
    lost = int(slacks.any())
    places_of = np.arange(number, dtype=np.int64)
    length = places_of[None, :] - places_of[:, None] - lost
    shift = _SQUARE_BITS - number.bit_length() + 1
    return squares - (apart << _SQUARE_BITS) - (length << shift)


def _all_ends(states: Longs, slacks: Longs) -> list[Longs]:
    """Return what ends cost, by how far they are apart."""
    factor = int(ENDS * _WEIGHT)
    return [factor * _ends(states, apart, slacks) for apart in range(FAR + 1)]


def _squares_of_nodes(states: Longs, slacks: Longs) -> Squares:
    """Bound the squares of nodes of all pairs of states, by their lowest bits and how far they are apart."""
    nodes = [_next(states, bit)[1] for bit in (0, 1)]
    return {
        (p, q, apart): _squares(nodes[p], nodes[q], apart, slacks)
        for p in (0, 1)
        for q in (0, 1)
        for apart in range(FAR + 1)
        if 2 * apart >= p - q
    }


def _step(costs: Longs, weight: Fraction, squares: Squares) -> Longs:
    """Return the largest costs one level up by (d, state of s, of s')."""
    number = costs.shape[1]
    grows = number < 1 << _BITS
    half = number if grows else number // 2
    found = np.empty((FAR + 1, 2 * half, 2 * half), dtype=np.int64)
    # With s' in the half before that of s there is no interval.
    found[0, half:, :half] = _NEVER
    factor = int(weight * _WEIGHT)
    assert factor == weight * _WEIGHT
    for (p, q, apart), own in squares.items():
        total = factor * own
        total += costs[min(2 * apart - p + q, FAR)]
        part = found[apart, p * half : (p + 1) * half, q * half : (q + 1) * half]
        if grows:
            part[:] = total
        else:
            # Four states become one: that of their highest bits.
            total = np.maximum(total[::2], total[1::2])
            np.maximum(total[:, ::2], total[:, 1::2], out=part)
    return found


def overheads(most: int) -> list[Fraction]:
    """Return A of levels 1..most, 0 for no level, bounded in integers."""
    states = _states()
    exact = [np.zeros(len(of_level), dtype=np.int64) for of_level in states]
    squares = list(map(_squares_of_nodes, states[:_BITS], exact))
    ends = list(map(_all_ends, states, exact))
    # Further up states stay the same, and are bounds.
    slacks = _slacks(states[-1])
    squares.append(_squares_of_nodes(states[-1], slacks))
    ends.append(_all_ends(states[-1], slacks))

    # Below the two highest levels, weights are those of every larger number of levels too.
    lower = np.zeros((FAR + 1, 1, 1), dtype=np.int64)
    found = [Fraction(0)]
    for levels in range(1, most + 1):
        own = weights(levels)
        below = max(0, levels - len(HIGHEST))
        if below:
            finest = FINEST[below - 1] if below <= len(FINEST) else Fraction(1)
            lower = _step(lower, finest, squares[min(below - 1, _BITS)])
        costs = lower
        for level in range(below, levels):
            costs = _step(costs, own[level], squares[min(level, _BITS)])
        of_ends = ends[min(levels, _BITS + 1)]
        largest = max(
            int((costs[apart] + of_ends[apart]).max()) for apart in range(FAR + 1)
        )
        found.append(Fraction(largest, _WEIGHT << _SQUARE_BITS))
    return found
