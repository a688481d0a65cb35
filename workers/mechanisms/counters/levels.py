"""Base classes of the counters, and helpers for their columns and ticks.

    Symbol          Here
    T               `horizon`, ticks; None is unbounded
    rho_item        zCDP cost of all releases per unit of change of an item's count at a tick
    c_j, sigma_j^2  `cells(t)`: the release at t is h_t + floor(sum_j c_j Z_j + 1/2),
                    Z_j ~ N_Z(0, sigma_j^2)
    w_j             weight of level j; sigma_j^2 = (sum_i w_i) / (2 rho_item w_j), rounded up
    TV              `tv`: total variation distance of the sampled noise from the ideal, over the
                    cells one event changes
    a_v             `_cells_at(t)`: the coefficient of cell v's noise at t times `_denominator`, D
    K               `test_tv`: the same distance for one threshold test of one tick's noise
    x               `reach`: an upper bound on every |Z| that a table can give

Difference of two ticks: sum_v (a_v(t) - a_v(s)) Z_v / D; tick 0 has no noise. Noise at t is a
multiple of g / D, g the greatest common divisor of D and all a_v(t), so rounding adds
(1 - (g / D)^2) / 12, counted for both ticks as if independent of the rest. Noise tables are built
on first draw and shared by all threads; a counter's cost needs none.

A table has at most 2 x + 1 values, each off by at most 2^-128; the omitted mass is at most 2^-180.
"""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import ClassVar, Protocol

import numpy as np

from workers.arrays.types import Floats, Longs, Tags
from workers.mechanisms.accounting import check_rho_item, float_up
from workers.mechanisms.mechanism import Noise
from workers.mechanisms.noise import gaussian
from workers.mechanisms.noise.gaussian import IntegerGaussian, integer_gaussian, reach
from workers.mechanisms.noise.keyed import Cell, NoiseStream
from workers.runtime.errors import HorizonExceeded
from workers.runtime.frozen import Frozen

LONGEST_HORIZON = 1 << 40
_TICKS_AT_ONCE = 16
_UNIT = Fraction(1, 1 << 128)
_OMITTED_MASS = Fraction(1, 1 << 180)


class NoiseColumns(Noise, Protocol):
    """A single-threaded cache of `Counter.draw`, fast for consecutive ticks."""

    @property
    def bytes_per_row(self) -> int: ...


def tick_block(t: int, last_tick: int) -> range:
    """Return the ticks to compute with t: a threshold takes 150 us alone, 40 us in a batch."""
    first = t - t % _TICKS_AT_ONCE
    return range(max(first, 1), min(first + _TICKS_AT_ONCE, last_tick + 1))


def check_tick(kind: str, tick: int, last_tick: int) -> None:
    if not 1 <= tick <= last_tick:
        raise HorizonExceeded(f"{kind} counter: tick {tick} is outside 1..{last_tick}")


class Counter(Frozen):
    """A counter's public parameters and noise; ticks outside the horizon raise `HorizonExceeded`.

    `rho_item` is the cost of the rounded variances, at most the requested one. `test_tv` bounds how
    much likelier the sampled noise exceeds a threshold at one tick than the ideal noise: a sum over
    the cells that a tick adds. With all other cells fixed, a threshold on the sum is a threshold on
    one cell, whatever its coefficient.
    """

    kind: ClassVar[str]
    integral: ClassVar[bool] = False  # whether the noise is an integer at every tick
    horizon: int | None
    rho_item: float
    cells_per_event: int  # cells that one event of one item changes
    tv: float  # upper bound, over these cells' noise together
    test_tv: float

    def __repr__(self) -> str:
        return f"{type(self).__name__}(horizon={self.horizon}, rho_item={self.rho_item})"

    def variance(self, t: int) -> Fraction:
        """Return sum_j c_j^2 sigma_j^2: the variance of the noise before rounding."""
        raise NotImplementedError

    def sd(self, t: int) -> float:
        """Return the standard deviation of the published integer, including rounding."""
        raise NotImplementedError

    def difference_sd(self, t: int, since: int) -> float:
        """Return the sd of the published integer at t minus that at `since` < t (0: no noise)."""
        raise NotImplementedError

    def cells(self, t: int) -> dict[Cell, tuple[Fraction, Fraction]]:
        """Return (c_j, sigma_j^2) of every cell with a non-zero coefficient at t: the noise's law.

        A cell is one independent discrete Gaussian, the same at every tick: the noise of two
        ticks has covariance sum c_j c'_j sigma_j^2.
        """
        d = self._denominator
        return {
            cell: (Fraction(a, d), self._variance_of(cell[0]))
            for cell, a in self._cells_at(t).items()
        }

    def terms(self, t: int) -> list[tuple[Fraction, Fraction]]:
        return list(self.cells(t).values())

    def multiples(self, t: int) -> tuple[int, list[tuple[int, Fraction]]]:
        """Return D and `terms` with integers D c_j: ten times as fast as fractions."""
        cells = self._cells_at(t).items()
        return self._denominator, [(a, self._variance_of(level)) for (level, _), a in cells]

    def coefficients(self, t: Longs) -> Iterator[tuple[Floats, Floats, Fraction]]:
        """Yield c_j, the number of equal terms, and sigma_j^2 of several ticks t (n,)."""
        for row, tick in enumerate(t.tolist()):
            hot = np.zeros(len(t))
            hot[row] = 1.0
            for coefficient, sigma_squared in self.terms(tick):
                yield float(coefficient) * hot, hot, sigma_squared

    _denominator: int = 1

    def _cells_at(self, t: int) -> dict[Cell, int]:
        """Return the non-zero a_v at t, by (level, number in it)."""
        raise NotImplementedError

    def _variance_of(self, level: int) -> Fraction:
        raise NotImplementedError

    def public(self) -> dict[str, object]:
        """Return every parameter that changes a noise value, as JSON."""
        return {
            "kind": self.kind,
            "horizon": self.horizon,
            **self._shape(),
            "table_version": gaussian.TABLE_VERSION,
        }

    def _shape(self) -> dict[str, object]:
        """Return the parameters that determine a tick's cells and their variances."""
        raise NotImplementedError

    def draw(self, stream: NoiseStream, t: int, tags: Tags) -> Longs:
        """Return the noise of every row at tick t, rounded: floor(x + 1/2)."""
        return self.columns(stream).at(t, tags)

    def columns(self, stream: NoiseStream) -> NoiseColumns:
        raise NotImplementedError


class LevelCounter(Counter):
    def __init__(self, horizon: int | None, rho_item: float) -> None:
        check_rho_item(rho_item)
        self.horizon, self._last_tick = horizon, last_tick_of(horizon)
        weights = self._weights()
        total = sum(weights, Fraction(0)) / (2 * Fraction(rho_item))
        sigma_squared = (gaussian.round_up_sigma_squared(total / weight) for weight in weights)
        self._sigma_squared = tuple(sigma_squared)
        # Integer sums take a tenth of the time of fractions.
        common = math.lcm(*(value.denominator for value in self._sigma_squared))
        self._over_one = tuple(int(value * common) for value in self._sigma_squared), common
        self._reach = tuple(map(reach, self._sigma_squared))
        self.rho_item = float_up(sum((1 / (2 * s2) for s2 in self._sigma_squared), Fraction(0)))
        self.cells_per_event = len(weights)
        self.tv = float_up(sum(((x + 2) * _UNIT + _OMITTED_MASS for x in self._reach), Fraction(0)))
        self.test_tv = float_up(self._cells_of_a_tick() * (_UNIT + _OMITTED_MASS))

    def variance(self, t: int) -> Fraction:
        numerators, common = self._over_one
        total = sum(a * a * numerators[level] for (level, _), a in self._cells_at(t).items())
        return Fraction(total, common * self._denominator**2)

    def sd(self, t: int) -> float:
        cells, d, (numerators, common) = self._cells_at(t), self._denominator, self._over_one
        total = sum(a * a * numerators[level] for (level, _), a in cells.items())
        # One integer division rounds like a fraction; summing fractions takes five times as long.
        rounding = common * (d * d - math.gcd(d, *cells.values()) ** 2)
        return math.sqrt((12 * total + rounding) / (12 * common * d * d))

    def difference_sd(self, t: int, since: int) -> float:
        now = self._cells_at(t)
        then = self._cells_at(since) if since else {}
        d, (numerators, common) = self._denominator, self._over_one
        changes = now | {cell: now.get(cell, 0) - before for cell, before in then.items()}
        total = sum(change * change * numerators[cell[0]] for cell, change in changes.items())
        variance = total / (common * d * d)
        for cells in (now, then):
            if cells:
                variance += (1 - (math.gcd(d, *cells.values()) / d) ** 2) / 12
        return math.sqrt(variance)

    def _variance_of(self, level: int) -> Fraction:
        return self._sigma_squared[level]

    def _weights(self) -> Sequence[Fraction]:
        raise NotImplementedError

    def _cells_of_a_tick(self) -> int:
        raise NotImplementedError

    def _shape(self) -> dict[str, object]:
        return {"sigma_squared": [str(value) for value in self._sigma_squared]}

    @property
    def _tables(self) -> tuple[IntegerGaussian, ...]:
        return tuple(map(integer_gaussian, self._sigma_squared))


class LevelColumns:
    def __init__(self, counter: LevelCounter, stream: NoiseStream) -> None:
        self._stream = stream
        self._tables = counter._tables
        self._filled = [0] * len(self._tables)


def last_tick_of(horizon: int | None) -> int:
    if horizon is not None and not 1 <= horizon <= LONGEST_HORIZON:
        raise ValueError(f"horizon = {horizon}: must be from 1 to 2^40 ticks, or unbounded")
    return LONGEST_HORIZON - 1 if horizon is None else horizon
