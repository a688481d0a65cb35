"""Choice of a counter, and the base class of mechanisms with one counter per item.

A counter gives the noise of one item's running sum at every tick. It is stateless: the noise of
(item, t) is a function of the key, so every item uses the counter that started at tick 1. A counter
that started when the item first occurred would reveal that tick, which is data.

A counter's cost covers an event that changes one count by one (neighbours: the content of one event
emptied, or the reverse). An event touches at most D0 items by at most Dinf, so every item's counter
gets rho / (D0 Dinf^2) (000 Alg. 2 and 3). Parts a_1 + ... <= Dinf of a user's item at different
ticks shift the counter by at most Dinf times the longest unit shift and cost no more.

Kinds: `lifted` (default: the least error without O(T) state), `tree` (the papers' baseline, about
two and a half times its error), `sqrt` (a tenth less than `lifted`, O(T) state and time per item:
for declared domains of few items, at most 2^16 ticks).
"""

import math
from fractions import Fraction

from workers.mechanisms.budget import Budgeted
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.counters.base import Counter, last_tick_of, tick_block
from workers.mechanisms.counters.lifted import LiftedCounter
from workers.mechanisms.counters.sqrt import SqrtCounter
from workers.mechanisms.counters.tree import TreeCounter
from workers.mechanisms.mechanism import Noise
from workers.mechanisms.noise.keyed import NoiseStream
from workers.runtime.frozen import memoized

KINDS = ("lifted", "tree", "sqrt")


@memoized(512)
def make_counter(
    kind: str,
    horizon: int | None,
    rho_item: float,
    radix: int | None = None,
    end_share: float | None = None,
) -> Counter:
    """Return a counter that costs at most rho_item; equal arguments share its cached ticks."""
    if kind != "tree" and radix is not None:
        raise ValueError(f"radix = {radix}: only counter 'tree' has one")
    if kind != "lifted" and end_share is not None:
        raise ValueError(f"end_share = {end_share}: only counter 'lifted' has one")
    if kind == "lifted":
        return LiftedCounter(horizon, rho_item, end_share)
    if kind == "sqrt":
        return SqrtCounter(horizon, rho_item)
    if kind == "tree":
        return TreeCounter(horizon, rho_item, radix)
    raise ValueError(f"counter = {kind!r}: must be one of {', '.join(KINDS)}")


def counter_of(config: HistogramConfig, rho_item: float) -> Counter:
    ticks = config.horizon_ticks
    return make_counter(config.counter, ticks, rho_item, config.radix, config.end_share)


class CounterMechanism(Budgeted):
    _counter: Counter

    @property
    def rho_item(self) -> float:
        return self._counter.rho_item

    def sd(self, t: int) -> float:
        ticks = tick_block(t, last_tick_of(self._counter.horizon))
        return _sds(self._counter, ticks)[t - ticks.start] if t in ticks else self._counter.sd(t)

    def difference_sd(self, t: int, since: int) -> float:
        return self._counter.difference_sd(t, since)


class OnCounters(CounterMechanism):
    """Base class of mechanisms with one counter per item.

    Guarantee: as `Budgeted`, also on streams that react to released values, if counts come from
    `_counter` and discoveries cost at most `delta_discovery`.
    """

    gaussian = True

    def __init__(self, config: HistogramConfig, unit: str, *, discovers: bool) -> None:
        super().__init__(config, unit, discovers=discovers)
        events = config.max_items * config.max_count**2
        rho_item = math.nextafter(float(Fraction(self._budget.rho) / events), 0.0)  # rounded down
        self._counter = counter = counter_of(config, rho_item)
        spent = math.nextafter(counter.rho_item * events, math.inf)
        self._set_cost(spent, 0.0)  # no sampler has a part in it

    def noise(self, stream: NoiseStream) -> Noise:
        return self._counter.columns(stream)


# A worker's owner partitions ask one by one.
@memoized(1024)
def _sds(counter: Counter, ticks: range) -> tuple[float, ...]:
    return tuple(map(counter.sd, ticks))
