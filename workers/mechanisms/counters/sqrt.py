"""stub"""
from math import comb
from fractions import Fraction
import itertools
import numpy as np
from workers.mechanisms.accounting import check_rho_item, float_up
from workers.mechanisms.counters import base
from workers.mechanisms.counters.base import Counter
LONGEST_HORIZON = 1 << 16
class SqrtCounter(Counter):
    kind = "sqrt"
    def __init__(self, horizon, rho_item):
        check_rho_item(rho_item)
        if horizon is None: raise ValueError("horizon = unbounded: counter 'sqrt' needs a number of ticks; 'lifted' may be unbounded")
        if not 1 <= horizon <= LONGEST_HORIZON: raise ValueError(f"horizon = {horizon}: must be from 1 to {LONGEST_HORIZON} ticks with counter 'sqrt'")
        self.horizon=self._last_tick=horizon
        f=[1<<90]
        for k in range(1,horizon): f.append(f[-1]*(2*k-1)//(2*k))
        self._f=tuple(f); self._denominator=1<<90
        n=sum(Fraction(x*x,1<<180) for x in f)*(1+Fraction(1,1<<60))
        self._s2=base.rounded_up(n/(2*Fraction(rho_item)))
        self.rho_item=float_up(n/(2*self._s2))
        self._sq=tuple(itertools.accumulate(x*x for x in f))
    def nodes(self,t):
        base.check_tick("sqrt",t,self._last_tick)
        return {(256,t-k):g for k,g in enumerate(self._f[:t])}
    def variance_of(self,node): return self._s2
    def variance(self,t):
        base.check_tick("sqrt",t,self._last_tick)
        return Fraction(self._sq[t-1],1<<180)*self._s2
    def worst_variance(self): return float(self.variance(self.horizon))
    def _shape(self): return {"sigma_squared":str(self._s2)}
    def columns(self,stream): return SqrtColumns(self,stream)
class SqrtColumns:
    def __init__(self,c,s): self._counter,self._stream=c,s
    @property
    def bytes_per_row(self): return 8*self._counter.horizon
    def at(self,t,tags): return self._counter.draw(self._stream,t,tags)
