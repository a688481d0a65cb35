"""Counters: sums of normal noise over public nodes, exactly rounded, and helpers for ticks.

    Symbol          Here
    T               `horizon`, ticks; None is unbounded
    rho_item        zCDP cost of all releases per unit of change of an item's count at a tick
    z_v             the number of node v = (level, k) of an item, N(0, s2_v): a function of the key,
                    the item and the node, from half k mod 2 of cell (level, k >> 1)
    a_v, D          `nodes(t)`, `_denominator`: N(t) = sum_v a_v z_v / D
    s2_v            `variance_of(v)`
    row, tag        an item of a stream key, and the two words that name it in noise, (1, 2)

The release at t is count + floor(N(t) + 1/2) of real numbers, so rounding is post-processing of a
Gaussian mechanism (docs/decisions/0030-lifted-haar.md, 3). `Counter.draw` computes N in floats:
with c_v = a_v sqrt(s2_v) / D, n nodes, and z off by at most `normal.FINE_ERROR`, N is off by at
most sum_v |c_v| (FINE_ERROR + (n + 6) 10 2^-53), with products and sums in any order. A z too large
for `normal.fine` is computed from two words: p >= 2^-64, so z < 10, and p is known to 2^-128,
so z is off by less than 2^-64. Where an integer is as near to N + 1/2, or p < 2^-64,
`Counter.exact` takes more bits of every number until floor(N + 1/2) is the same at both ends of an
interval around N. `columns` keep numbers of rows from tick to tick, in fixed point: whole units of
2^-point, from cheaper numbers (`normal.rough`). They give what `draw` does, which they call for
rows that their error leaves undecided, and for those with a word too small for `rough`.

Difference of two ticks: sum_v (a_v(t) - a_v(s)) z_v / D, and two roundings, counted as if
independent; tick 0 has no noise.
"""

import math
from collections.abc import Iterable
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import ClassVar, NamedTuple

import numpy as np

from workers.arrays.types import Floats, Longs, Tags, Words
from workers.mechanisms.accounting import check_rho_item
from workers.mechanisms.curves import Curve
from workers.mechanisms.noise import normal
from workers.mechanisms.noise.gaussian import round_up_sigma_squared
from workers.mechanisms.noise.keyed import CHUNK_ROWS, Cell, NoiseStream
from workers.mechanisms.noise.normal import add_fine, decide, raise_small
from workers.runtime.errors import HorizonExceeded
from workers.runtime.frozen import Frozen, memoized, read_only

LONGEST_HORIZON = 1 << 40
# A node's further words are in the same half of cells with further numbers; k is below 2^41.
_FURTHER = 1 << 48
# Bits behind the point, for `fixed_point`. 32-bit numbers have 15 to 24: fewer leave too many rows
# undecided, and more decide few more. 64-bit numbers have 20.
_LEAST_POINT = 15
_MOST_POINT = 24
_WIDE_POINT = 20
# The sd is at most 2^24: beyond it most rows would be drawn a second time. A row's sums, whose
# absolute coefficients add up to less than 2^12, still fit 64 bits.
_LARGEST_VARIANCE = 1 << 48
# A bound on |z| of a number that is computed in floats.
_LARGEST_Z = 10
# For `Counter._with_small`: digits of a number, and a word that `normal.fine` can read.
_SMALL_DIGITS = 20
_ANY_WORD = np.uint64(1 << 63)

Node = tuple[int, int]


def check_tick(kind: str, tick: int, last_tick: int) -> None:
    if not 1 <= tick <= last_tick:
        raise HorizonExceeded(f"{kind} counter: tick {tick} is outside 1..{last_tick}")


def last_tick_of(horizon: int | None) -> int:
    """Return the last tick that has noise: the horizon, or 2^40 - 1 if it is unbounded."""
    if horizon is not None and not 1 <= horizon <= LONGEST_HORIZON:
        raise ValueError(
            f"horizon = {horizon}: must be from 1 to 2^40 ticks, or unbounded"
        )
    return LONGEST_HORIZON - 1 if horizon is None else horizon


class _Terms(NamedTuple):
    """The nodes of a tick, k of them: their cells and halves, c_v (k,), and the error of N."""

    cells: Words  # (k, 2)
    halves: Longs
    factors: Floats
    error: float


class Counter(Frozen):
    """A counter's public parameters and noise; ticks outside the horizon raise `HorizonExceeded`.

    `rho_item` is the cost of the rounded variances, at most the requested one. Of a kind:

    kind        its name in the settings
    order       its place in comparisons; the first is the default; None: no setting names it
    takes       its settings, "radix" or "end_share": arguments after `horizon` and `rho_item`
    longest     most ticks of an epoch; None: any number, or no end
    grows       a row's state grows with every tick: only for declared labels
    """

    kind: ClassVar[str]
    order: ClassVar[int | None] = None
    takes: ClassVar[tuple[str, ...]] = ()
    longest: ClassVar[int | None] = None
    grows: ClassVar[bool] = False

    fixed: "FixedPoint"
    _denominator: int = 1

    def __init__(self, horizon: int | None, rho_item: float) -> None:
        check_rho_item(rho_item)
        if self.is_beyond(horizon):
            ticks = horizon or "unbounded"
            raise ValueError(
                f"horizon = {ticks}: must be from 1 to {self.longest} ticks with counter {self.kind!r}"
            )
        self.horizon = horizon
        self.rho_item = rho_item
        self._last_tick = last_tick_of(horizon)

    @classmethod
    def radixes(cls, horizon: int | None) -> tuple[int | None, ...]:
        """Return the values of `radix` with which a plan compares it, the default first."""
        return (None,)

    @classmethod
    def is_beyond(cls, horizon: int | None) -> bool:
        """Return whether an epoch of so many ticks is longer than this kind allows."""
        ticks = math.inf if horizon is None else horizon
        return cls.longest is not None and ticks > cls.longest

    def __repr__(self) -> str:
        own = "".join(f", {name}={getattr(self, name)}" for name in self.takes)
        return f"{type(self).__name__}(horizon={self.horizon}, rho_item={self.rho_item}{own})"

    def nodes(self, t: int) -> dict[Node, int]:
        """Return the non-zero a_v of tick t."""
        raise NotImplementedError

    def variance_of(self, node: Node) -> Fraction:
        """Return s2_v, the variance of a node."""
        raise NotImplementedError

    def sd_of(self, node: Node) -> float:
        return float(root_of(self.variance_of(node)))

    def variance(self, t: int) -> Fraction:
        """Return the variance of N(t)."""
        return self._variance(self.nodes(t))

    def variances(self, ticks: Longs) -> Floats:
        """Return the variance of N at several ticks (n,), within a relative 1e-12."""
        return np.array([float(self.variance(t)) for t in ticks.tolist()])

    def curve(self) -> Curve:
        """Return the variance of the published integers by tick."""
        raise NotImplementedError

    def worst_variance(self) -> float:
        """Return a bound on the variance of N(t), the noise before rounding, over all ticks.

        It is the largest variance itself, or at most 1 % more (`lifted`).
        """
        return _worst_variance(self)

    def sd(self, t: int) -> float:
        """Return the standard deviation of the published integer, including rounding."""
        return math.sqrt(normal.rounded_variance(_variance_at(self, t)))

    def difference_sd(self, t: int, since: int) -> float:
        """Return the sd of the published integer at t minus that at `since` < t (0: no noise)."""
        if not since:
            return self.sd(t)
        variance = float(self.difference_variance(t, since))
        # What rounding adds at either tick.
        for tick in (t, since):
            own = _variance_at(self, tick)
            variance += normal.rounded_variance(own) - own
        return math.sqrt(variance)

    def difference_variance(self, t: int, since: int) -> Fraction:
        """Return the variance of N(t) - N(since)."""
        later = self.nodes(t)
        earlier = self.nodes(since)
        changes = later | {node: later.get(node, 0) - a for node, a in earlier.items()}
        return self._variance(changes)

    def _variance(self, multiples: dict[Node, int]) -> Fraction:
        """Return the variance of sum_v a_v z_v / D, for any multiples a_v."""
        # By denominator: adding a fraction for every node took four times as long (measured).
        sums: dict[int, int] = {}
        for node, a in multiples.items():
            numerator, denominator = self.variance_of(node).as_integer_ratio()
            sums[denominator] = sums.get(denominator, 0) + a * a * numerator
        common = math.lcm(*sums)
        total = sum(n * (common // d) for d, n in sums.items())
        return Fraction(total, common * self._denominator**2)

    def public(self) -> dict[str, object]:
        """Return every parameter that changes a noise value, as JSON."""
        own = {"kind": self.kind, "horizon": self.horizon}
        return own | self._shape() | {"normal_version": normal.VERSION}

    def _shape(self) -> dict[str, object]:
        """Return the parameters that determine a tick's nodes and their variances."""
        raise NotImplementedError

    def draw(self, stream: NoiseStream, t: int, tags: Tags) -> Longs:
        """Return the noise of every row at tick t, rounded: floor(N + 1/2)."""
        noise, error_bound = self.reals(stream, t, tags)
        noise += 0.5
        whole = np.floor(noise)
        # A NaN, of a word too small for floats, compares as false: its row is drawn exactly.
        decided = np.abs(noise - np.rint(noise)) > error_bound
        out: Longs = np.where(decided, whole, 0).astype(np.int64)
        # Rarely any: with about twice the error bound's probability.
        for row in np.flatnonzero(~decided).tolist():
            out[row] = self.exact(stream, t, tags[row : row + 1])
        return out

    def reals(self, stream: NoiseStream, t: int, tags: Tags) -> tuple[Floats, float]:
        """Return N of every row at tick t (NaN where floats cannot tell), and its error bound."""
        terms = _terms(self, t)
        noise = np.empty(len(tags))
        # So many rows have CHUNK_ROWS words together, the most that are drawn in one call.
        rows = max(1, CHUNK_ROWS // max(1, len(terms.cells)))
        for first in range(0, len(tags), rows):
            part = tags[first : first + rows]
            of_part = self._floats(stream, terms, part)
            for row in np.flatnonzero(np.isnan(of_part)).tolist():
                of_part[row] = self._with_small(stream, terms, part[row : row + 1])
            noise[first : first + rows] = of_part
        return noise, terms.error

    def _floats(self, stream: NoiseStream, terms: _Terms, tags: Tags) -> Floats:
        """Return N of the rows, (n,), NaN where a word is too small for `normal.fine`."""
        out = np.zeros(len(tags))
        # One row may have more nodes than the CHUNK_ROWS words of a call: in parts.
        at_once = CHUNK_ROWS // len(tags)
        for first in range(0, len(terms.cells), at_once):
            some = slice(first, first + at_once)
            words = stream.chunk(tags, terms.cells[some]).reshape(-1, len(tags), 2)
            add_fine(
                words, terms.halves[some], terms.factors[some], normal.table(), out
            )
        return out

    def _with_small(self, stream: NoiseStream, terms: _Terms, tag: Tags) -> float:
        """Return N of one item that has words too small for `normal.fine`.

        Nodes with such a word are computed from a second one; NaN if that is too small as well.
        `exact` would take 5 ms for every node (measured): minutes a tick for a row of sqrt.
        """
        out = np.zeros(1)
        for first in range(0, len(terms.cells), CHUNK_ROWS):
            some = slice(first, first + CHUNK_ROWS)
            cells = terms.cells[some]
            halves = terms.halves[some]
            factors = terms.factors[some]
            words = stream.chunk(tag, cells).reshape(-1, 1, 2).copy()
            of_nodes = words[np.arange(len(halves)), 0, halves]
            # Twice, as the lowest bit of a word is the sign.
            small = np.flatnonzero(of_nodes < np.uint64(2 * normal.FINE_LEAST)).tolist()
            # Add all nodes in floats; the small ones get factor 0, and a word that gives a number.
            words[small] = _ANY_WORD
            others = factors.copy()
            others[small] = 0
            add_fine(words, halves, others, normal.table(), out)
            # Then the small ones, one by one.
            for i in small:
                level, number = map(int, cells[i])
                further = stream.words(tag, (level, number + _FURTHER))[0, halves[i]]
                sign, v = _sign_and_rest(int(of_nodes[i]) << 64 | int(further), 2)
                # All bits of the first word but the sign are 0, so two words do not tell enough.
                if v < 1 << 64:
                    return math.nan
                # p is in [v, v + 1] / 2^128: its middle.
                z = normal.inverse(Fraction(2 * v + 1, 1 << 129), _SMALL_DIGITS)
                out[0] += factors[i] * sign * float(z)
        return float(out[0])

    def columns(self, stream: NoiseStream) -> "Columns":
        """Return a cache of `draw`, for one thread."""
        raise NotImplementedError

    def exact(self, stream: NoiseStream, t: int, tag: Tags) -> int:
        """Return floor(N + 1/2) of one item, tag (1, 2), from as many bits as that takes."""
        words = 2
        while True:
            lower, upper = self.interval(stream, t, tag, words)
            rounded = math.floor(lower + Fraction(1, 2))
            if rounded == math.floor(upper + Fraction(1, 2)):
                return rounded
            words += 1

    def interval(
        self, stream: NoiseStream, t: int, tag: Tags, words: int
    ) -> tuple[Fraction, Fraction]:
        """Return bounds on N of one item, tag (1, 2), from the first `words` words of every node.

        Their bits but the sign make the whole number v, and a node's number is in size between the
        upper quantiles at (v + 1) / 2^(bits + 1) and v / 2^(bits + 1), each computed to 10^-digits.
        """
        # All bits of the words but the sign; digits for them and five more (0.302 > log10 2).
        bits = 64 * words - 1
        digits = math.ceil(bits * 0.302) + 5
        small = Fraction(1, 10**digits)
        lower = upper = Fraction(0)
        for (level, k), a in self.nodes(t).items():
            # Join the node's words, the highest first; further words are in cells of their own.
            value = 0
            for further in range(words):
                word = stream.words(tag, (level, (k >> 1) + _FURTHER * further))[
                    0, k & 1
                ]
                value = value << 64 | int(word)
            sign, v = _sign_and_rest(value, words)
            if v == 0:
                # The number has no upper bound yet: bounds so wide that more words are taken.
                return Fraction(-(1 << 100)), Fraction(1 << 100)
            s2 = self.variance_of((level, k))
            with localcontext(prec=digits + 20):
                root = (Decimal(s2.numerator) / s2.denominator).sqrt()
            factor = Fraction(a, self._denominator) * Fraction(root) * sign
            lowest = (
                Fraction(normal.inverse(Fraction(v + 1, 2 << bits), digits)) - small
            )
            highest = Fraction(normal.inverse(Fraction(v, 2 << bits), digits)) + small
            # A negative factor swaps the ends.
            ends = sorted((factor * lowest, factor * highest))
            # Far more than the root adds, which is off by a relative 10^-(digits + 20).
            slack = abs(factor) * 40 * small
            lower = lower + ends[0] - slack
            upper = upper + ends[1] + slack
        return lower, upper


def _sign_and_rest(value: int, words: int) -> tuple[int, int]:
    """Split a number of `words` 64-bit words into the sign, -1 or 1, and the other bits.

    The sign is the lowest bit of the first word.
    """
    shift = 64 * (words - 1)
    first = value >> shift
    rest = value & ((1 << shift) - 1)
    return (-1 if first & 1 else 1), (first >> 1) << shift | rest


@memoized(512)
def _worst_variance(counter: Counter) -> float:
    ticks = counter.curve().candidates(counter._last_tick)
    return float(counter.variances(ticks).max())


# Asked for once for each stream key.
@memoized(64)
def _terms(counter: Counter, t: int) -> _Terms:
    """Return the nodes of a tick as arrays, which `draw` sums up."""
    check_tick(counter.kind, t, counter._last_tick)
    nodes = counter.nodes(t)
    # Node (level, k) is half k mod 2 of cell (level, k >> 1).
    numbers = np.array(list(nodes), dtype=np.int64).reshape(-1, 2)
    halves = numbers[:, 1] & 1
    cells = (numbers >> (0, 1)).astype(np.uint64)
    factors = np.array(
        [a / counter._denominator * counter.sd_of(v) for v, a in nodes.items()]
    )
    # The module's bound; its last factor is for the roundings of this sum itself.
    of_each = normal.FINE_ERROR + (len(nodes) + 6) * _LARGEST_Z * 2.0**-53
    error = float(np.abs(factors).sum()) * of_each * (1 + 2.0**-20)
    return _Terms(read_only(cells), read_only(halves), read_only(factors), error)


class FixedPoint(NamedTuple):
    """How a cache keeps noise: as whole units of 2^-point, off by at most `error` units at a tick.

    `dtype` is the type of the numbers that a row keeps.
    """

    point: int
    error: int
    dtype: np.dtype[np.int32] | np.dtype[np.int64]


def fixed_point(
    sd: float, parts: float, largest: float, divisions: int = 0
) -> FixedPoint:
    """Return the units in which a cache keeps noise, and the error of a sum of nodes in them.

    Args:
        sd: the largest of a node.
        parts: the absolute coefficients of a sum add up to at most this.
        largest: of a number that a row keeps, absolute coefficients times their sd add up to at
            most this, so it fits its type.
        divisions: how many divisions of a sum are rounded down, each off by one unit.

    A node is off by at most 1 + ROUGH_ERROR sd 2^point units. The factor 1 + 2^-7 allows for
    floats: up to 5,000 roundings of a node, or of a sum it is in, by 6.4 2^-53 sd each.
    """
    # As many bits behind the point as let the largest number fit 32 bits, with its sign. If that is
    # too few, use 64 bits, with `_WIDE_POINT` behind the point.
    point = min(31 - math.ceil(math.log2(normal.LARGEST * largest + 1)), _MOST_POINT)
    dtype: np.dtype[np.int32] | np.dtype[np.int64] = np.dtype(np.int32)
    if point < _LEAST_POINT:
        point = _WIDE_POINT
        dtype = np.dtype(np.int64)
    node = 1 + math.ldexp(normal.ROUGH_ERROR * sd * (1 + 2.0**-7), point)
    # One unit more, as the sum is computed in floats.
    return FixedPoint(point, math.ceil(parts * node) + divisions + 1, dtype)


class Columns:
    """A single-threaded cache of `Counter.draw`, fast for consecutive ticks.

    Either `at` or `reals` is called, always the same. A kind's `at` computes units of 2^-point, and
    passes them through `_round` and `_finish`.

    It leaves to `draw` undecided rows of a tick, and rows that ever had a word too small for
    `normal.rough`: about one word in 2^30.
    """

    # Of each row, in the counter's `fixed` type.
    _numbers_kept: int

    def __init__(self, counter: Counter, stream: NoiseStream) -> None:
        self._counter = counter
        self._stream = stream
        # Where `raise_small` and `decide` list rows, with room for the one more that they need.
        self._listed = np.empty(CHUNK_ROWS + 1, dtype=np.int64)
        # Rows whose units are wrong, as they ever had a small word; and those of this tick that the
        # error leaves undecided.
        self._inexact: set[int] = set()
        self._undecided: list[int] = []
        # False once `reals` is called: from then on `at` returns units of 2^-fixed.point.
        self._rounds = True

    @property
    def bytes_per_row(self) -> int:
        return self._numbers_kept * self._counter.fixed.dtype.itemsize

    def at(self, t: int, tags: Tags) -> Longs:
        """Return the noise of every row at tick t; `tags` only grows."""
        raise NotImplementedError

    def reals(self, t: int, tags: Tags) -> tuple[Floats, ...]:
        """Return, for each counter (here one), the noise of every row before rounding, (n,).

        It is off by at most the error of `fixed_point`. After the first call `at` returns units of
        2^-point, so a cache serves either `at` or `reals`.
        """
        self._rounds = False
        units = self.at(t, tags)
        return (reals_of(self._counter, self._stream, t, tags, units, self._inexact),)

    def _words(self, cells: Words, tags: Tags, row: int) -> Words:
        """Return words (cells, n, 2), at most CHUNK_ROWS, of rows from `row` on.

        Words too small for `rough` are raised, and `_finish` draws their rows exactly.
        """
        words = self._stream.chunk(tags, cells)
        if small := raise_small(words, self._listed):
            # Words are cell by cell, and in a cell row by row.
            self._inexact.update((self._listed[:small] % len(tags) + row).tolist())
        return words.reshape(len(cells), len(tags), 2)

    def _round(self, noise: normal.Numbers, out: Longs, row: int) -> None:
        """Round noise in units of 2^-point to `out`, of at most CHUNK_ROWS rows from `row` on.

        Rows that the error of the units leaves undecided are noted, and `_finish` draws them
        exactly. Where `reals` asks for it, the units themselves are written.
        """
        if not self._rounds:
            out[:] = noise
            return
        fixed = self._counter.fixed
        undecided = decide(noise, fixed.point, fixed.error, out, self._listed)
        self._undecided += (self._listed[:undecided] + row).tolist()

    def _finish(self, t: int, tags: Tags, out: Longs) -> Longs:
        """Draw the rows that are undecided, or had a small word, exactly; return `out`."""
        if not self._rounds:
            return out
        # A failed call may have left rows that this call does not have.
        redrawn = {row for row in (*self._undecided, *self._inexact) if row < len(tags)}
        rows = np.array(sorted(redrawn), dtype=np.int64)
        self._undecided.clear()
        if len(rows):
            out[rows] = self._counter.draw(self._stream, t, tags[rows])
        return out


def reals_of(
    counter: Counter,
    stream: NoiseStream,
    t: int,
    tags: Tags,
    units: Longs,
    inexact: Iterable[int],
) -> Floats:
    """Return noise given in `units` of 2^-point, (n,), as real numbers.

    `inexact` rows had a word too small for units, so their noise is drawn again in floats: NaN
    where `Counter.reals` cannot tell. Its error bound is ignored, as that of units is larger.
    """
    noise = np.ldexp(units.astype(np.float64), -counter.fixed.point)
    # A failed call may have left rows that this call does not have.
    rows = np.array([row for row in inexact if row < len(tags)], dtype=np.int64)
    if len(rows):
        noise[rows] = counter.reals(stream, t, tags[rows])[0]
    return noise


def cells_of(cells: Iterable[Cell]) -> Words:
    """Return cells as uint64 (n, 2)."""
    return read_only(np.array(list(cells), dtype=np.uint64).reshape(-1, 2).copy())


@memoized(1024)
def root_of(variance: Fraction) -> Decimal:
    """Return the square root to 40 digits."""
    with localcontext(prec=40):
        return (Decimal(variance.numerator) / variance.denominator).sqrt()


@memoized(1 << 14)
def _variance_at(counter: Counter, t: int) -> float:
    """Return the variance of N(t): a plan looks at a tick alone, and as the end of windows."""
    return float(counter.variance(t))


def rounded_up(variance: Fraction) -> Fraction:
    """Round a variance up, to a grid that all machines share; `ValueError` if it is too large."""
    on_grid = round_up_sigma_squared(variance)
    if on_grid > _LARGEST_VARIANCE:
        raise ValueError(
            f"sigma_squared = {float(on_grid):g}: must be above 0 and at most {_LARGEST_VARIANCE} "
            "(a larger rho, or fewer levels, needs less noise)"
        )
    return on_grid
