"""The line counter, in exact numbers: what docs/decisions/0036-windows-without-epochs.md proves.

Symbol          Here
L               `levels`
node            (level, k): d_j[k] for levels 1..L, the step c[k] at level L + 1
C x             `analyze`, in units of 8^-L
N(t) - N(s)     `difference`: its coefficients, in units of `unit(levels)`
w               `weights`, by level; the noise of a node has variance s2 / w
"""

import math
from collections.abc import Mapping
from fractions import Fraction
from functools import cache

import numpy as np

from bench.lifted_haar import EventCost
from workers.arrays.types import Longs

Node = tuple[int, int]
Vector = dict[Node, int]
FINEST = (Fraction(3, 2), Fraction(6, 5), Fraction(21, 20))
HIGHEST = Fraction(23, 20)
STEPS = Fraction(7, 4)

# Of `bounds`: all weights are multiples of 1/4000, states of 2^-51, and squares of 2^-44.
_WEIGHT = 4000
_STATE_BITS = 51
_NODE_BITS = 22
_WINDOW = 17


def levels_of(window: int) -> int:
    return max(1, (window - 1).bit_length())


def weights(
    levels: int, shortest: int | None = None, kappa: Fraction = Fraction(1)
) -> list[Fraction]:
    """Return w by level, 0 at level 0; kappa is for several windows, the shortest given."""
    found = [Fraction(0)]
    for level in range(1, levels + 1):
        weight = FINEST[level - 1] if level <= len(FINEST) else Fraction(1)
        if level == levels:
            weight *= HIGHEST
        if shortest is not None and 1 << level > 2 * shortest:
            weight *= kappa
        found.append(weight)
    found.append(STEPS * kappa)
    return found


def analyze(counts: Mapping[int, int], levels: int) -> Vector:
    """Return the nodes C x of counts by tick, in units of 8^-levels."""
    sums = {tick: count * 8**levels for tick, count in counts.items()}
    found: Vector = {}
    for level in range(1, levels + 1):
        blocks = {place >> 1 for place in sums}
        nodes = {k: sums.get(2 * k, 0) - sums.get(2 * k + 1, 0) for k in blocks}
        lifted = {}
        for k in {block + i for block in blocks for i in (-1, 0, 1)}:
            correction, rest = divmod(nodes.get(k + 1, 0) - nodes.get(k - 1, 0), 8)
            assert rest == 0
            lifted[k] = sums.get(2 * k, 0) + sums.get(2 * k + 1, 0) + correction
        found |= {(level, k): node for k, node in nodes.items() if node}
        sums = lifted
    return found | {(levels + 1, k): step for k, step in sums.items() if step}


def product(a: Vector, b: Vector, w: list[Fraction]) -> Fraction:
    """Return G, the weighted product of what two events do to the nodes."""
    return _by_level(a, b, w) / (1 << 6 * (len(w) - 2))


def _by_level(a: Vector, b: Vector, factors: list[Fraction]) -> Fraction:
    sums = [0] * len(factors)
    for node in a.keys() & b.keys():
        sums[node[0]] += a[node] * b[node]
    pairs = zip(sums, factors, strict=True)
    return sum((total * factor for total, factor in pairs), Fraction(0))


@cache
def event(tick: int, levels: int) -> Vector:
    return analyze({tick: 1}, levels)


def cost(tick: int, w: list[Fraction]) -> Fraction:
    """Return mu^2 of one event in a tick, where s2 = 1."""
    nodes = event(tick, len(w) - 2)
    return product(nodes, nodes, w)


@cache
def largest_cost(levels: int) -> Fraction:
    """Return S: the cost is the same 2^levels ticks later."""
    return max(cost(tick, weights(levels)) for tick in range(1 << levels))


def unit(levels: int) -> int:
    return 8 << levels


def difference(t: int, since: int, levels: int) -> Vector:
    """Return the coefficients of N(t) - N(since), in units of 1 / unit(levels)."""
    found: Vector = {}
    for tick, sign in ((t, 1), (since, -1)):
        for node, coefficient in _path(tick, levels).items():
            found[node] = found.get(node, 0) + sign * coefficient
    for k in range(since >> levels, t >> levels):
        step = levels + 1, k
        found[step] = found.get(step, 0) + unit(levels)
    return {node: coefficient for node, coefficient in found.items() if coefficient}


@cache
def _path(t: int, levels: int) -> Vector:
    """Return N(t) less the steps of whole blocks before t."""
    whole = unit(levels)
    found = {}
    for level in range(1, levels + 1):
        k = t >> level
        u = (t - (k << level)) * (whole >> level)
        found[level, k - 1] = -(whole - u) // 8
        found[level, k] = min(u, whole - u) - whole // 8
        found[level, k + 1] = -u // 8
    found[levels + 1, t >> levels] = (t - (t >> levels << levels)) * 8
    return found


def covariance(a: Vector, b: Vector, w: list[Fraction]) -> Fraction:
    """Return the covariance of two differences of noise, where s2 = 1."""
    variances = [1 / weight if weight else Fraction(0) for weight in w]
    return _by_level(a, b, variances) / unit(len(w) - 2) ** 2


def variance(t: int, since: int, w: list[Fraction]) -> Fraction:
    nodes = difference(t, since, len(w) - 2)
    return covariance(nodes, nodes, w)


def noisiest(window: int, w: list[Fraction]) -> int:
    """Return a tick at which a window has the largest variance; floats only choose it."""
    levels = len(w) - 2
    t = np.arange(1 << levels, dtype=np.int64) + (window >> levels << levels)
    t += 1 << levels
    total = np.zeros(len(t))
    for level in range(1, levels + 1):
        now = _coefficients(t, level)
        then = _coefficients(t - window, level)
        apart = (t >> level) - ((t - window) >> level)
        squares = (now**2).sum(0) + (then**2).sum(0)
        for i in range(3):
            for k in range(3):
                squares -= 2 * (apart + i == k) * now[i] * then[k]
        total += squares / float(w[level])
    start = ((t - window) & ((1 << levels) - 1)) / 2.0**levels
    end = (t & ((1 << levels) - 1)) / 2.0**levels
    blocks = (t >> levels) - ((t - window) >> levels)
    apart_steps = (1 - start) ** 2 + end**2 + blocks - 1
    steps = np.where(blocks == 0, (end - start) ** 2, apart_steps)
    total += steps / float(w[levels + 1])
    return int(t[total.argmax()])


def _coefficients(t: Longs, level: int) -> np.ndarray:
    u = (t & ((1 << level) - 1)) / 2.0**level
    return np.array([-(1 - u) / 8, np.minimum(u, 1 - u) - 1 / 8, -u / 8])


def rest(window: int, levels: int) -> int:
    """Return K: windows that end more than K ticks after a tick share no noise with it."""
    return window + (3 << levels) - 2


def bounds(
    most: int, shortest: int | None = None, kappa: Fraction = Fraction(1)
) -> list[Fraction]:
    """Return upper bounds of S for levels 0..most, computed in integers; 0 for no level.

    Of the weights that `weights` gives for several windows, the shortest given.

    As `EventCost` (section 6 of 0030, "middle"), with integers that are rounded up in place of
    floats. A tick's state at level j is that of the highest 17 of its j lowest bits, exact up to
    level 17; further up, nodes and steps are off by at most `slack`, in units of 2^-22.
    """
    scale = _WEIGHT << (2 * _NODE_BITS)
    w = weights(most + 1, shortest, kappa)
    costs = np.zeros(1, dtype=np.int64)
    found = [Fraction(0)]
    for level in range(most):
        own = weights(level + 1, shortest, kappa)
        both = []
        highest = []
        for of_nodes, of_steps in _squares(min(level, _WINDOW + 1)):
            last = int(own[level + 1] * _WEIGHT) * of_nodes
            highest.append(costs + last + int(own[level + 2] * _WEIGHT) * of_steps)
            both.append(costs + int(w[level + 1] * _WEIGHT) * of_nodes)
        found.append(Fraction(int(np.concatenate(highest).max()), scale))
        if level >= _WINDOW:
            both = [half.reshape(-1, 2).max(1) for half in both]
        costs = np.concatenate(both)
    return found


@cache
def _steps() -> list[tuple[Longs, Longs]]:
    """Return by bit what lifts a state, in 1/8, and its nodes."""
    return [
        ((lifted * 8).astype(np.int64), nodes.astype(np.int64))
        for lifted, nodes in EventCost([], window=2)._steps
    ]


@cache
def _states(window: int = _WINDOW) -> tuple[list[Longs], Fraction]:
    """Return the states of levels 0..window, and how far a higher one is from that of its highest bits."""
    one = 1 << _STATE_BITS
    units = one * np.eye(5, dtype=np.int64)[:, :, None]
    paths = units
    states = [paths[2]]
    farthest = 0
    for _ in range(window):
        eighths = np.concatenate([lifted @ paths for lifted, _ in _steps()], 2)
        assert not (eighths & 7).any()
        paths = eighths >> 3
        states.append(paths[2])
        farthest = max(farthest, _distance(paths[2] - units[2]))
    shrunk = Fraction(_distance(paths[1:] - paths[:-1]), one)
    return states, shrunk * Fraction(farthest, one) / (1 - shrunk)


@cache
def _squares(level: int) -> list[tuple[Longs, Longs]]:
    """Bound by bit the squares of the next level's nodes and steps; of all levels above 17 alike."""
    return [
        (_square(level, nodes, 0), _square(level, lifted, 3))
        for lifted, nodes in _steps()
    ]


def _square(level: int, matrix: Longs, shift: int) -> Longs:
    """Bound |matrix s|^2 at the states s of a level, the matrix in units of 2^-shift."""
    states, radius = _states()
    exact = np.abs(matrix @ states[min(level, _WINDOW)])
    rounded = -(-exact >> (_STATE_BITS + shift - _NODE_BITS))
    found: Longs = (rounded**2).sum(0)
    if level <= _WINDOW:
        return found
    slack = _slack(matrix, shift, radius)
    roots = np.sqrt(found).astype(np.int64) + 1
    assert (roots**2 >= found).all()
    return np.asarray((roots + slack) ** 2)


def _slack(matrix: Longs, shift: int, radius: Fraction) -> int:
    """Bound |matrix e| of states that differ by e, within the radius, in units of 2^-22."""
    turned = matrix[:, :-1] - matrix[:, 1:]
    steepest = Fraction(int((turned**2).sum(0).max()), 4**shift)
    return math.isqrt(math.ceil(radius**2 * steepest * 4**_NODE_BITS)) + 1


def _distance(moved: Longs) -> int:
    return int(np.abs(moved.cumsum(-2)).sum(-2).max())


# Of `products_apart`: states of so many bits, and lags in so many parts of a block.
_PAIR_BITS = 10
PARTS = 8


def products_apart() -> tuple[list[Fraction], list[Fraction]]:
    """Bound the products of two events at one level of weight 1: of nodes, and of steps.

    Entry i: of events i / PARTS blocks of the level apart or more. Events in blocks k and k' = k +
    d have nodes k - 1..k + 1, k' - 1..k' + 1, and sums k - 2..k + 2. All pairs of states of
    _PAIR_BITS bits; a state of more bits is within a radius of that of its highest ones.
    """
    states, radius = _states(_PAIR_BITS)
    found = []
    for width, shift, which in ((3, 0, 1), (5, 3, 0)):
        most = [0] * (width * PARTS)
        matrices = [step[which] for step in _steps()]
        slack = max(_slack(matrix, shift, radius) for matrix in matrices)
        for level in range(_PAIR_BITS + 2):
            exact = level <= _PAIR_BITS
            of_states = states[min(level, _PAIR_BITS)]
            # By the highest bits of a tick within its block.
            parts = np.concatenate([one @ of_states for one in matrices], axis=1)
            parts >>= _STATE_BITS + shift - _NODE_BITS
            for apart in range(width):
                _note_products(most, parts, apart, 0 if exact else slack)
        for i in reversed(range(len(most) - 1)):
            most[i] = max(most[i], most[i + 1])
        found.append([Fraction(one, 1 << (2 * _NODE_BITS)) for one in most])
    return found[0], found[1]


def _note_products(most: list[int], parts: Longs, apart: int, slack: int) -> None:
    """Raise `most` to the products of all pairs `apart` whole blocks apart."""
    width, number = parts.shape
    early = parts[apart:]
    late = parts[: width - apart]
    # Rounding is by less than a unit each.
    lengths = [np.sqrt((one**2).sum(0)).astype(np.int64) + 1 for one in (early, late)]
    off = slack + width
    products = np.abs(early.T @ late)
    products += off * (lengths[0][:, None] + lengths[1][None, :]) + off**2
    places = np.arange(number, dtype=np.int64)
    # Lower bits, which the states do not have, make a lag less than one unit longer.
    lags = apart * number + places[None, :] - places[:, None] + bool(slack)
    entries = np.clip(PARTS * lags // number, -1, len(most) - 1)
    for entry in range(max(0, entries.min()), entries.max() + 1):
        here = products[entries == entry]
        if len(here):
            most[entry] = max(most[entry], int(here.max()))


def in_units(bound: Fraction) -> int:
    """Return a bound in 1/4096, rounded up."""
    return math.ceil(bound * 4096)
