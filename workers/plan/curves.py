"""The variance of published noise as a function of the tick: its worst tick, its mean, and any ticks at once, for any horizon.

What: a curve is made from the parameters that a counter publishes (`Counter.public`). Nothing here is released; floats will do.

    Symbol       Here
    T            `last`: ticks 1..last are looked at
    h, c_j       as in `haar`; sigma_j^2 = `variances[j]`, j = 0 the total
    d_j          digits of t, as in `tree`

Worst tick of haar: sum_j c_j(t)^2 sigma_j^2 depends on t's low bits level by level, so the best are kept bit by bit. Of the ticks that
agree in their 12 highest bits so far only the best is kept: what follows differs between them by less than 2^-12 of one level's
variance. Up to 4,096 ticks all are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ticks = NDArray[np.int64]

_KEPT_BITS = 12
_ROUNDING = 1 / 12


class Curve(Protocol):
    """The variance of what is published."""

    def variance(self, ticks: Ticks) -> Floats:
        """At each of these ticks, from 1."""
        ...

    def loudest(self, last: int) -> Ticks:
        """Ticks up to `last` of largest variance, the largest first; at least one."""
        ...

    def mean(self, last: int) -> float:
        """The mean over all ticks up to `last`."""
        ...


class HaarCurve:
    """`haar`: sum_j c_j^2 sigma_j^2, and what rounding adds."""

    def __init__(self, variances: Sequence[float]) -> None:
        self._variances = list(variances)
        self._levels = len(self._variances) - 1

    def variance(self, ticks: Ticks) -> Floats:
        total = self._above(ticks, 0)
        lowest = (ticks & -ticks).astype(np.float64)
        missing = np.minimum(lowest / 2.0**self._levels, 1.0)  # 2^-k, k fractional bits
        return total + (1 - missing**2) * _ROUNDING

    def loudest(self, last: int) -> Ticks:
        grids = self._grids()
        found = [np.array([last], dtype=np.int64)]
        for bit in range(last.bit_length()):
            if last >> bit & 1:
                # Every tick below `last` agrees with it above some bit that is 1 there and 0 in the tick.
                ticks = grids[bit] + (last >> (bit + 1) << (bit + 1))
                found.append(ticks[ticks > 0])
        ticks = np.concatenate(found)
        return ticks[np.argsort(-self.variance(ticks), kind="stable")]

    def mean(self, last: int) -> float:
        total = self._variances[0] * float(Fraction(_squares(last), last << (2 * self._levels)))
        for level in range(1, self._levels + 1):
            width = 1 << level
            cycle = _squares(width // 2) + _squares(width // 2 - 1)
            cycles, rest = divmod(last + 1, width)
            part = _squares(rest - 1) if rest <= width // 2 + 1 else cycle - _squares(width - rest)
            total += self._variances[level] * float(Fraction(cycles * cycle + part, last * width**2))
        missing = sum(
            Fraction((last >> zeros) - (last >> (zeros + 1)), 4 ** max(0, self._levels - zeros))
            for zeros in range(last.bit_length())
        )
        return total + (1 - float(missing / last)) * _ROUNDING

    def _above(self, ticks: Ticks, level: int) -> Floats:
        """The terms of the levels above this one, and of the total."""
        total = (ticks / 2.0**self._levels) ** 2 * self._variances[0]
        for upper in range(level + 1, self._levels + 1):
            inside = ticks & ((1 << upper) - 1)
            total += (np.minimum(inside, (1 << upper) - inside) / 2.0**upper) ** 2 * self._variances[upper]
        return total

    def _grids(self) -> list[Ticks]:
        """For each k the best low k bits, one for each value of the highest 12 of them."""
        bits, value = np.zeros(1, dtype=np.int64), np.zeros(1)
        grids = [bits]
        for level in range(1, self._levels + 1):
            bits = np.concatenate((bits, bits + (1 << (level - 1))))
            distance = np.minimum(bits, (1 << level) - bits) / 2.0**level
            value = np.concatenate((value, value)) + distance**2 * self._variances[level]
            if level > _KEPT_BITS:
                best = value.reshape(-1, 2).argmax(axis=1) + np.arange(0, len(value), 2)
                bits, value = bits[best], value[best]
            grids.append(bits)
        return grids


class DigitCurve:
    """`tree`, and the mechanisms that add up its cells: sum_j d_j sigma_j^2, and what rounding adds."""

    def __init__(self, radix: int, variances: Sequence[float], *, rounding: float = 0.0) -> None:
        self._radix, self._rounding = radix, rounding
        self._variances = list(variances)

    def variance(self, ticks: Ticks) -> Floats:
        total, rest = np.full(len(ticks), self._rounding), ticks
        for variance in self._variances:
            total += (rest % self._radix) * variance
            rest = rest // self._radix
        return total

    def loudest(self, last: int) -> Ticks:
        found = {last}
        for level in range(len(self._variances)):
            width = self._radix**level
            if last // width % self._radix:
                found.add(last // width * width - 1)  # this digit one less, those below it as large as they can be
        ticks = np.array(sorted(found - {0}), dtype=np.int64)
        return ticks[np.argsort(-self.variance(ticks), kind="stable")]

    def mean(self, last: int) -> float:
        total = self._rounding
        for level, variance in enumerate(self._variances):
            width = self._radix**level
            cycles, rest = divmod(last + 1, width * self._radix)
            digit, more = divmod(rest, width)
            whole = (self._radix * (self._radix - 1) // 2) * width
            total += variance * ((cycles * whole + digit * (digit - 1) // 2 * width + digit * more) / last)
        return total


class TableCurve:
    """One variance for each of the first ticks; the last of them for every later one."""

    def __init__(self, variances: Floats) -> None:
        self._variances = variances

    def variance(self, ticks: Ticks) -> Floats:
        found: Floats = self._variances[np.minimum(ticks, len(self._variances)) - 1]
        return found

    def loudest(self, last: int) -> Ticks:
        ticks = np.arange(1, min(last, len(self._variances)) + 1)
        return ticks[np.argsort(-self.variance(ticks), kind="stable")]

    def mean(self, last: int) -> float:
        own = self._variances[:last]
        return float((own.sum() + self._variances[-1] * (last - len(own))) / last)


def curve_of(counter: Mapping[str, object]) -> Curve:
    """The curve of a counter, from what `Counter.public` says."""
    if counter["kind"] == "haar":
        return HaarCurve(variances(counter))
    if counter["kind"] == "tree":
        return DigitCurve(_whole(counter["radix"]), variances(counter))
    return sqrt_curve(_whole(counter["horizon"]), rho_item_of(counter))


def rho_item_of(counter: Mapping[str, object]) -> float:
    """What one unit of change of one item costs, from what `Counter.public` says."""
    if counter["kind"] == "sqrt":
        return _whole(counter["norm_squared"]) / (2 * float(Fraction(str(counter["sigma_squared"]))))
    return sum(1 / (2 * variance) for variance in variances(counter))


def sqrt_curve(horizon: int, rho_item: float) -> Curve:
    """The sqrt counter with C not rounded: within one part in forty-eight of the variance, see `sqrt`."""
    k = np.arange(1, horizon, dtype=np.float64)
    squares = np.cumsum(np.concatenate(([1.0], np.cumprod((2 * k - 1) / (2 * k)))) ** 2)
    return TableCurve(squares * squares[-1] / (2 * rho_item) + _ROUNDING)


def _squares(n: int) -> int:
    """1 + 4 + ... + n^2; 0 for n < 1."""
    return n * (n + 1) * (2 * n + 1) // 6 if n > 0 else 0


def variances(counter: Mapping[str, object]) -> list[float]:
    values = counter["sigma_squared"]
    if not isinstance(values, list):
        raise TypeError(f"sigma_squared = {values!r}: not a list")
    return [float(Fraction(value)) for value in values]


def _whole(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{value!r}: not a whole number")
    return value
