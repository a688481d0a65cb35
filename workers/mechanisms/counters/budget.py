"""How a histogram's (epsilon, delta) or (rho, delta) becomes noise per item: the split of delta, and the zCDP left for counting.

    delta = delta_conversion + delta_discovery + delta_numerical

`delta_conversion` turns zCDP into (epsilon, delta) once, `delta_discovery` pays for items that show that they exist, and
`delta_numerical` for the distance of the integer sampler from the ideal one (`accounting.sampler_delta`): in the noise on counts, and in
every tick's test of whether an item may be shown, whose bound is one on the ideal noise.
An event touches at most D0 items by at most Dinf, so each item's counter gets rho / (D0 Dinf^2) (000 Alg. 2 and 3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from workers.mechanisms.accounting import Cost, check_sampler_delta, epsilon_of, float_up, rho_of, sampler_delta
from workers.mechanisms.config import HistogramConfig
from workers.mechanisms.counters.counter import Counter, make_counter
from workers.mechanisms.counters.tree import LONGEST_HORIZON
from workers.mechanisms.frozen import Frozen
from workers.mechanisms.mechanism import Guarantee, Noise, State
from workers.mechanisms.noise.keyed import NoiseStream

# Reserved for the sampler's distance, as a share of delta; the true figure (about 1e-35) is checked against it.
NUMERICAL_SHARE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """One histogram's budget, spent: the counter it buys and the guarantee it gives, for one epoch.

    Attributes:
        guarantee: for one event; its rho is what is spent, at most what was asked for.
        counter: one unit of change of one item costs `counter.rho_item` zCDP.
        delta_discovery: total probability that an item of one event shows that it exists.
        delta_numerical: charged for the sampler's distance from the ideal.
        delta_conversion: used to turn rho into epsilon.
    """

    guarantee: Guarantee
    counter: Counter
    delta_discovery: float
    delta_numerical: float
    delta_conversion: float

    def cost(self) -> Cost:
        """zCDP and the failure probabilities that are added to it."""
        deltas = [("numerical", self.delta_numerical)]
        if self.delta_discovery:
            deltas.append(("discovery", self.delta_discovery))
        return Cost(rho=self.guarantee.rho, deltas=tuple(deltas))


class OnCounters(Frozen):
    """What a mechanism says that spends its budget on a counter for each item."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._counter = budget.counter

    @property
    def guarantee(self) -> Guarantee:
        return self._budget.guarantee

    def cost(self) -> Cost:
        return self._budget.cost()

    def sd(self, t: int) -> float:
        return self._counter.sd(t)

    def init(self) -> State:
        return State()

    def noise(self, stream: NoiseStream) -> Noise:
        return self._counter.columns(stream)


def spend(config: HistogramConfig, *, unit: str, discovery_share: float, every: int = 1) -> Budget:
    """Splits a histogram's budget.

    Args:
        config: with epsilon or rho, delta, max_items (D0) and max_count (Dinf).
        unit: whose presence is hidden; "event".
        discovery_share: part of delta spent on discovering items, 0 for a known domain.
        every: only each of so many ticks tests for new items.

    Raises:
        ValueError: the budget cannot be met, or delta is below what the samplers can promise.

    Returns:
        The budget; every rounding goes to the private side.

    Guarantee: (guarantee.epsilon, guarantee.delta)-DP for the content of one event, over all snapshots of an epoch, for a mechanism
    whose counts come from `counter` and whose discoveries cost at most `delta_discovery`; adaptive streams included (integer orders).
    """
    sensitivity_squared = config.max_items * config.max_count**2
    delta_discovery = config.delta * discovery_share
    delta_numerical = config.delta * NUMERICAL_SHARE
    delta_conversion = config.delta - delta_discovery - delta_numerical
    rho = config.rho if config.rho is not None else rho_of(_given(config.epsilon), delta_conversion)
    rho_item = math.nextafter(float(Fraction(rho) / sensitivity_squared), 0.0)
    counter = make_counter(config.counter, config.horizon_ticks, rho_item, config.radix)
    spent = min(rho, math.nextafter(counter.rho_item * sensitivity_squared, math.inf))
    epsilon = config.epsilon if config.epsilon is not None else epsilon_of(rho, delta_conversion)
    tests = (config.horizon_ticks or LONGEST_HORIZON) // every if discovery_share else 0
    tests_tv = float_up(tests * Fraction(counter.test_tv))
    true_numerical = sampler_delta(epsilon, config.max_items, counter.tv, tests_tv)
    mostly_tests = config.max_items * tests_tv > true_numerical / 2
    otherwise = "a shorter horizon" if mostly_tests else "a smaller epsilon or rho"
    check_sampler_delta(config.delta, epsilon, true_numerical, NUMERICAL_SHARE, otherwise)
    return Budget(
        guarantee=Guarantee(unit=unit, rho=spent, epsilon=epsilon, delta=config.delta),
        counter=counter,
        delta_discovery=delta_discovery,
        delta_numerical=delta_numerical,
        delta_conversion=delta_conversion,
    )


def _given(epsilon: float | None) -> float:
    if epsilon is None:
        raise ValueError("epsilon = None: give epsilon or rho")
    return epsilon
