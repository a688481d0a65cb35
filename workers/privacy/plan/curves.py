"""The variance of published noise as a function of the tick: at any ticks, its worst, its mean.

What: a curve is made from the parameters that a counter publishes (`Counter.public`), for any
horizon. Nothing here is released; floats will do.

    Symbol       Here
    T            `last`: ticks 1..last are looked at
    h, o, c_j    as in `haar`; sigma_j^2 = `variances[j]`, j = 0 the total
    d_j          digits of t, as in `tree`

Worst tick of haar: sum_j c_j(t)^2 sigma_j^2 depends on t's low bits level by level, so the best are
kept bit by bit. Of the ticks that agree in their 12 highest bits so far only the best is kept: what
follows differs between them by less than 2^-12 of one level's variance. Up to 4,096 ticks all are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ticks = NDArray[np.int64]

_KEPT_BITS = 12
_ROUNDING = 1 / 12


class Curve:
    """The variance of what is published."""

    def variance(self, ticks: Ticks) -> Floats:
        """Return it at each of these ticks, from 1."""
        raise NotImplementedError

    def mean(self, last: int) -> float:
        """Return the mean over all ticks up to `last`."""
        raise NotImplementedError

    def loudest(self, last: int) -> Ticks:
        """Return ticks up to `last` of largest variance, the largest first; at least one."""
        ticks = self._candidates(last)
        return ticks[np.argsort(-self.variance(ticks), kind="stable")]

    def _candidates(self, last: int) -> Ticks:
        raise NotImplementedError


class HaarCurve(Curve):
    """`haar`: sum_j c_j^2 sigma_j^2, and what rounding adds; `offset` ticks are before tick 1."""

    def __init__(self, variances: Sequence[float], offset: int = 0) -> None:
        self._variances = list(variances)
        self._levels = len(self._variances) - 1
        self._offset = offset

    def variance(self, ticks: Ticks) -> Floats:
        places = ticks + self._offset
        total = (places / 2.0**self._levels) ** 2 * self._variances[0]
        for upper in range(1, self._levels + 1):
            inside = places & ((1 << upper) - 1)
            total += (np.minimum(inside, (1 << upper) - inside) / 2.0**upper) ** 2 * self._variances[upper]
        lowest = (places & -places).astype(np.float64)
        missing = np.minimum(lowest / 2.0**self._levels, 1.0)  # 2^-k, k fractional bits
        return total + (1 - missing**2) * _ROUNDING

    def _candidates(self, last: int) -> Ticks:
        grids = self._grids()
        found = []
        place, after = self._offset + 1, self._offset + last + 1
        while place < after:
            # The largest block of 2^k places that begins here and holds none too late.
            bit = min((place & -place).bit_length(), (after - place).bit_length()) - 1
            found.append(grids[bit] + place)
            place += 1 << bit
        return np.concatenate(found) - self._offset

    def mean(self, last: int) -> float:
        own = self._sum(self._offset + last) - self._sum(self._offset)
        return own / last

    def _sum(self, last: int) -> float:
        """Return the sum over the places 1..last."""
        if last == 0:
            return 0.0
        total = self._variances[0] * float(Fraction(_squares(last), 1 << (2 * self._levels)))
        for level in range(1, self._levels + 1):
            width = 1 << level
            cycle = _squares(width // 2) + _squares(width // 2 - 1)
            cycles, rest = divmod(last + 1, width)
            part = _squares(rest - 1) if rest <= width // 2 + 1 else cycle - _squares(width - rest)
            total += self._variances[level] * float(Fraction(cycles * cycle + part, width**2))
        missing = sum(
            Fraction((last >> zeros) - (last >> (zeros + 1)), 4 ** max(0, self._levels - zeros))
            for zeros in range(last.bit_length())
        )
        return total + (last - float(missing)) * _ROUNDING

    def _grids(self) -> list[Ticks]:
        """Return for each k the best low k bits, one for each value of the highest 12 of them."""
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


class DigitCurve(Curve):
    """`tree`, and mechanisms that add up its cells: sum_j d_j sigma_j^2, and what rounding adds."""

    def __init__(self, radix: int, variances: Sequence[float], *, rounding: float = 0.0) -> None:
        self._radix, self._rounding = radix, rounding
        self._variances = list(variances)

    def variance(self, ticks: Ticks) -> Floats:
        total, rest = np.full(len(ticks), self._rounding), ticks
        for variance in self._variances:
            total += (rest % self._radix) * variance
            rest = rest // self._radix
        return total

    def _candidates(self, last: int) -> Ticks:
        found = {last}
        for level in range(len(self._variances)):
            width = self._radix**level
            if last // width % self._radix:
                # This digit one less, those below it as large as they can be.
                found.add(last // width * width - 1)
        return np.array(sorted(found - {0}), dtype=np.int64)

    def mean(self, last: int) -> float:
        total = self._rounding
        for level, variance in enumerate(self._variances):
            width = self._radix**level
            cycles, rest = divmod(last + 1, width * self._radix)
            digit, more = divmod(rest, width)
            whole = (self._radix * (self._radix - 1) // 2) * width
            total += variance * ((cycles * whole + digit * (digit - 1) // 2 * width + digit * more) / last)
        return total


class TableCurve(Curve):
    """One variance for each of the first ticks; the last of them for every later one."""

    def __init__(self, variances: Floats) -> None:
        self._variances = variances

    def variance(self, ticks: Ticks) -> Floats:
        found: Floats = self._variances[np.minimum(ticks, len(self._variances)) - 1]
        return found

    def _candidates(self, last: int) -> Ticks:
        return np.arange(1, min(last, len(self._variances)) + 1)

    def mean(self, last: int) -> float:
        own = self._variances[:last]
        return float((own.sum() + self._variances[-1] * (last - len(own))) / last)


def curve_of(counter: Mapping[str, Any]) -> Curve:
    """Return the curve of a counter, from what `Counter.public` says."""
    if counter["kind"] == "haar":
        return HaarCurve(variances(counter), counter.get("offset", 0))
    if counter["kind"] == "tree":
        return DigitCurve(counter["radix"], variances(counter))
    return sqrt_curve(counter["horizon"], rho_item_of(counter))


def rho_item_of(counter: Mapping[str, Any]) -> float:
    """Return what one unit of change of one item costs, from what `Counter.public` says."""
    if counter["kind"] == "sqrt":
        return float(counter["norm_squared"] / (2 * float(Fraction(counter["sigma_squared"]))))
    return sum(1 / (2 * variance) for variance in variances(counter))


def sqrt_curve(horizon: int, rho_item: float) -> Curve:
    """Return the sqrt counter's curve with C not rounded: within a forty-eighth, see `sqrt`."""
    k = np.arange(1, horizon, dtype=np.float64)
    squares = np.cumsum(np.concatenate(([1.0], np.cumprod((2 * k - 1) / (2 * k)))) ** 2)
    return TableCurve(squares * squares[-1] / (2 * rho_item) + _ROUNDING)


def variances(counter: Mapping[str, Any]) -> list[float]:
    """Return the variance of each level, from what `Counter.public` says."""
    values = counter["sigma_squared"]
    if not isinstance(values, list):
        raise TypeError(f"sigma_squared = {values!r}: not a list")
    return [float(Fraction(value)) for value in values]


def _squares(n: int) -> int:
    """Return 1 + 4 + ... + n^2; 0 for n < 1."""
    return n * (n + 1) * (2 * n + 1) // 6 if n > 0 else 0
