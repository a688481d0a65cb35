"""stub"""
from bisect import bisect_right
from functools import partial
from fractions import Fraction
import numpy as np
from workers.mechanisms.accounting import check_rho_item, float_up
from workers.mechanisms.counters import base
from workers.mechanisms.counters.base import Counter
from workers.runtime.frozen import Frozen
UNBOUNDED_RADIX = 5
class TreeCounter(Counter):
    kind = "tree"
    def __init__(self, horizon, rho_item, radix=None):
        if radix is not None and radix < 2:
            raise ValueError(f"radix = {radix}: must be at least 2")
        check_rho_item(rho_item)
        self.horizon=horizon
        self._last_tick=base.last_tick_of(horizon)
        self.radix = radix or default_radix(horizon)
        self._tree = Tree(self._last_tick, self.radix)
        n=self._tree.levels
        w=[Fraction(1)]*n if horizon is not None else [Fraction(1,l+2) for l in range(n)]
        self._s2=tuple(base.rounded_up(sum(w)/(2*Fraction(rho_item)*x)) for x in w)
        self.rho_item=float_up(sum(1/(2*s) for s in self._s2))
    def nodes(self,t):
        base.check_tick("tree",t,self._last_tick)
        return dict.fromkeys(self._tree.cells_at(t),1)
    def variance_of(self,node): return self._s2[node[0]]
    def variances(self,ticks):
        total=np.zeros(len(ticks)); rest=ticks
        for s in self._s2:
            total+=rest%self.radix*float(s); rest=rest//self.radix
        return total
    def worst_variance(self): return float(min((self.radix-1)*self._tree.levels,self._last_tick)*max(self._s2))
    def _shape(self): return {"levels":self._tree.levels,"radix":self.radix,"sigma_squared":[str(s) for s in self._s2]}
    def columns(self,stream): return TreeColumns(self,stream)
class TreeColumns:
    def __init__(self,c,s): self._counter,self._stream=c,s
    bytes_per_row=8
    def at(self,t,tags): return self._counter.draw(self._stream,t,tags)


class Tree(Frozen):
    """Ticks 1..horizon in base r: blocks (cells) of r^j ticks at levels j = 0..L_r - 1."""

    def __init__(self, horizon: int, radix: int) -> None:
        self.horizon, self.radix = horizon, radix
        self.levels = digits_of(horizon, radix)

    def blocks(self, t: int) -> list[tuple[int, int, int]]:
        """Return (level, first, last + 1) of the blocks that make up 1..t, highest level first."""
        found, above = [], 0
        for level in reversed(range(self.levels)):
            first, last = above * self.radix, t // self.radix**level
            if first < last:
                found.append((level, first, last))
            above = last
        return found

    def cells_at(self, t: int) -> set[tuple[int, int]]:
        """Return (level, number) of the blocks that make up 1..t."""
        found = self.blocks(t)
        return {(level, block) for level, first, last in found for block in range(first, last)}

    def cells(self, t: int) -> int:
        """Return the number of blocks that make up 1..t: the sum of t's digits."""
        return sum(last - first for _, first, last in self.blocks(t))

    def top_level(self, t: int) -> int:
        """Return the highest level with a block complete at t."""
        level = 0
        while level + 1 < self.levels and t % self.radix ** (level + 1) == 0:
            level += 1
        return level

    def open_levels(self, t: int) -> list[int]:
        """Return the levels where a later tick uses the block that holds tick t."""
        found = []
        for level in range(self.levels):
            width = self.radix**level
            block = (t - 1) // width + 1
            named = block % self.radix or level == self.levels - 1
            if named and block * width <= self.horizon:
                found.append(level)
        return found


def default_radix(horizon: int | None) -> int:
    return UNBOUNDED_RADIX if horizon is None else best_radix(base.last_tick_of(horizon))


def best_radix(horizon: int, power: int = 2) -> int:
    """Return the smallest r* = argmin (r - 1) L_r^power; `power` is 3 for a shared pure epsilon.

    Compares only the smallest base for each number of digits, the best with that many.
    """
    candidates = []
    for number in range(1, horizon.bit_length() + 1):
        radix = 2 + bisect_right(range(2, horizon + 1), horizon, key=partial(pow, exp=number))
        candidates.append(((radix - 1) * number**power, radix))
    return min(candidates)[1]


def digits_of(horizon: int, radix: int) -> int:
    """Return L_r = floor(log_r horizon) + 1, in integers."""
    digits = 0
    while horizon:
        horizon //= radix
        digits += 1
    return digits
