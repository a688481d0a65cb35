"""The split of (epsilon, delta) or (rho, delta), and the guarantee once the noise is known.

    delta = delta_conversion + delta_discovery + delta_numerical

`delta_conversion` turns the cost into (epsilon, delta) once, `delta_discovery` pays for items whose
publication reveals that they exist, and `delta_numerical` for the distance of the integer samplers
from the ideal distributions (`accounting.sampler_delta`); Gaussian mechanisms have none. Order
statistics, whose accounting may be pure, have their own split in `order_statistics.config`.
"""

from dataclasses import replace

from workers.mechanisms.accounting import (
    PrivacyCost,
    check_sampler_delta,
    epsilon_of,
    rho_of,
    sampler_delta,
)
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.mechanism import Mechanism

# The samplers' share of delta; their true figure (about 1e-35) is checked against it.
NUMERICAL_SHARE = 1e-6
# The rest pays for conversion; other shares change threshold or noise by a few parts in 1,000.
DISCOVERY_SHARE = 0.5


def split(
    config: HistogramConfig, *, discovers: bool, gaussian: bool = False
) -> PrivacyCost:
    """Return what a histogram may spend: its rho for noise, and the parts of delta set aside.

    `discovers`: whether it needs a part for showing unknown labels; `gaussian`: whether all noise
    is Gaussian, which needs no part for samplers. `ValueError` if the budget is too small to use.
    """
    discovery = config.delta * DISCOVERY_SHARE if discovers else 0.0
    numerical = 0.0 if gaussian else config.delta * NUMERICAL_SHARE
    conversion = config.delta - discovery - numerical
    if config.rho is not None:
        rho = config.rho
        epsilon = epsilon_of(config.rho, conversion, gaussian=gaussian)
    elif config.epsilon is not None:
        rho = rho_of(config.epsilon, conversion, gaussian=gaussian)
        epsilon = config.epsilon
    else:
        raise ValueError("epsilon = None: give epsilon or rho")
    parts = ("numerical", numerical), ("discovery", discovery)
    failures = tuple((name, part) for name, part in parts if part)
    return PrivacyCost(rho, epsilon, config.delta, failures=failures, gaussian=gaussian)


class Budgeted(Mechanism):
    """Base class of mechanisms with a `split` budget.

    Guarantee: (epsilon(rho, delta_conversion), delta_conversion + delta_discovery +
    delta_numerical)-DP for the content of one event, over all ticks of an epoch together.
    `_cost` is the budget until constructors, with noise calibrated to it, end with `_set_cost`.
    """

    def __init__(self, config: HistogramConfig, unit: str, *, discovers: bool) -> None:
        super().__init__(config, unit)
        gaussian = self.about.gaussian
        self._cost = split(config, discovers=discovers, gaussian=gaussian)

    def _set_cost(self, rho: float, tv: float, *, times: int = 1) -> None:
        """Set the cost after the noise is calibrated; `ValueError` if delta is too small.

        `rho` is what the noise costs. `tv` is the distance of its sampler from its law in one draw,
        and `times` is how many draws an event may change. If `times` is 1, `tv` may be that of all
        these draws together.
        """
        # Until now `_cost` was the budget (see the class).
        budget = self._cost
        numerical = sampler_delta(budget.epsilon, times, tv)
        check_sampler_delta(budget.delta, budget.epsilon, numerical, NUMERICAL_SHARE)
        # What it cost to choose bounds from a sample, once for all epochs.
        sample_rho = self.config.bounds_rho or 0.0
        # The noise costs no more than the budget, but as a float `rho` is rounded up and may exceed
        # it.
        self._cost = replace(budget, rho=min(budget.rho, rho), sample_rho=sample_rho)
