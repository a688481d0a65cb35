"""The variance of the lifted counter's noise over its ticks: at some, at the worst, on average.

    p, u_j, K    place, (p mod 2^j) / 2^j and p >> j, as in `lifted`
    part of j    (c - e)^2 s2_K + (a / 8)^2 s2_(K-1) + (b / 8)^2 s2_(K+1), c = min(u, 1 - u),
                 a = 1 - u, b = u, e = (a + b) / 8; a or b is 0 at an edge, see `lifted`
    total        (p / 2^h)^2 s2_total

Worst place: the parts depend on p's low bits level by level, so the search goes bit by bit, with
the parts of nodes inside a level. Of the places that agree in their 12 highest bits so far it keeps
only the best: later parts differ between them by less than 2^-11 of one node's variance. The places
found are compared with their true variances, edges included.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from workers.arrays.types import Floats, Longs
from workers.mechanisms.curves import ROUNDING, Curve
from workers.runtime.frozen import Frozen

_KEPT_BITS = 12


class LiftedCurve(Frozen, Curve):
    """`by_level`: s2 of nodes inside a level and of its first and last one, 0 the total's."""

    def __init__(self, by_level: Sequence[tuple[float, float]], offset: int) -> None:
        self._by_level = tuple(by_level)
        self._offset = offset
        self._levels = len(by_level) - 1

    def at(self, ticks: Longs) -> Floats:
        """Return the variance of N at ticks (n,), within a relative 1e-12."""
        places = ticks + self._offset
        total = (places / 2.0**self._levels) ** 2 * self._by_level[0][0]
        for level in range(1, self._levels + 1):
            last = self._last(level)
            k = places >> level
            u = (places & ((1 << level) - 1)) / 2.0**level
            a = (1 - u) * ((k > 0) & (k <= last))
            b = u * (k < last)
            total += (np.minimum(u, 1 - u) - (a + b) / 8) ** 2 * self._of(level, k)
            total += (a / 8) ** 2 * self._of(level, k - 1) + (b / 8) ** 2 * self._of(
                level, k + 1
            )
        return total

    def variance(self, ticks: Longs) -> Floats:
        return self.at(ticks) + ROUNDING

    def candidates(self, last: int) -> Longs:
        """Return some ticks of 1..last, one within 2^-10 of a node's variance of the noisiest."""
        grids = self._grids()
        found = []
        place = self._offset + 1
        after = self._offset + last + 1
        while place < after:
            # The largest block of 2^k places that begins here and ends in range.
            bit = min((place & -place).bit_length(), (after - place).bit_length()) - 1
            found.append(grids[bit] + place)
            place += 1 << bit
        return np.concatenate(found) - self._offset

    def mean(self, last: int) -> float:
        noise = (self._sum(self._offset + last) - self._sum(self._offset)) / last
        return noise + ROUNDING

    def _last(self, level: int) -> int:
        return (1 << (self._levels - level)) - 1

    def _of(self, level: int, node: Longs) -> Floats:
        inside, edge = self._by_level[level]
        return np.where((node == 0) | (node == self._last(level)), edge, inside)

    def _grids(self) -> list[Longs]:
        """Return, by k, the best low k bits for each value of the highest 12 of them."""
        bits = np.zeros(1, dtype=np.int64)
        value = np.zeros(1)
        grids = [bits]
        for level in range(1, self._levels + 1):
            bits = np.concatenate((bits, bits + (1 << (level - 1))))
            u = bits / 2.0**level
            part = (np.minimum(u, 1 - u) - 1 / 8) ** 2 + ((1 - u) ** 2 + u**2) / 64
            value = np.concatenate((value, value)) + part * self._by_level[level][0]
            if level > _KEPT_BITS:
                best = value.reshape(-1, 2).argmax(axis=1) + np.arange(0, len(value), 2)
                bits = bits[best]
                value = value[best]
            grids.append(bits)
        return grids

    def _sum(self, place: int) -> float:
        """Return the sum of the variances of places 0..place."""
        squares = place * (place + 1) * (2 * place + 1) // 6
        total = self._by_level[0][0] * (squares / 4**self._levels)
        for level in range(1, self._levels + 1):
            blocks, rest = divmod(place + 1, 1 << level)
            whole = _moments(level, 1 << level)
            last = self._last(level)
            # The four blocks at and beside the edges have parts of their own.
            beside = {k for k in (0, 1, last - 1, last) if 0 <= k < blocks}
            total += math.fsum(self._block(level, k, whole) for k in beside)
            if (others := min(blocks, last + 1) - len(beside)) > 0:
                total += others * self._block(level, 2, whole)
            total += self._block(level, blocks, _moments(level, rest))
        return float(total)

    def _block(self, level: int, k: int, m: "_Moments") -> float:
        """Return the sum of a level's parts over the first places of block k."""
        last = self._last(level)
        if k > last:  # the end of the last block: u is 0, and nothing has a part
            return 0.0
        a = float(k > 0)
        b = float(k < last)
        own, before, after = self._of(level, np.array([k, k - 1, k + 1])).tolist()
        # a (1 - u) + b u = a + d u
        d = b - a
        of_own = (
            m.cc
            - (a * m.c + d * m.cu) / 4
            + (a * a * m.n + 2 * a * d * m.u + d * d * m.uu) / 64
        )
        of_before = a * (m.n - 2 * m.u + m.uu) / 64
        return float(own * of_own + before * of_before + after * b * m.uu / 64)


class _Moments(NamedTuple):
    """Sums over the first n places of a block: of 1, u, u^2, c, c^2 and c u."""

    n: float
    u: float
    uu: float
    c: float
    cc: float
    cu: float


def _moments(level: int, n: int) -> _Moments:
    width = 1 << level
    u, uu = _sums(n, width)
    below = min(n, width // 2 + 1)  # c = u below, 1 - u beyond
    low_u, low_uu = _sums(below, width)
    high = n - below
    high_u = u - low_u
    high_uu = uu - low_uu
    return _Moments(
        n,
        u,
        uu,
        low_u + high - high_u,
        low_uu + high - 2 * high_u + high_uu,
        low_uu + high_u - high_uu,
    )


def _sums(n: int, width: int) -> tuple[float, float]:
    """Return the sums of u and of u^2."""
    return n * (n - 1) // 2 / width, n * (n - 1) * (2 * n - 1) // 6 / width**2
