"""How a histogram's (epsilon, delta) or (rho, delta) is split where no counter is in use; `budget` does the same for counters.

    delta = delta_conversion + delta_discovery + delta_numerical

`delta_discovery` pays for items that show that they exist, `delta_numerical` for the samplers' distance from their laws.
"""

from __future__ import annotations

from dataclasses import dataclass

from workers.mechanisms.accounting import Cost, check_sampler_delta, epsilon_of, rho_of, sampler_delta
from workers.mechanisms.config import HistogramConfig
from workers.mechanisms.counters.budget import NUMERICAL_SHARE
from workers.mechanisms.frozen import Frozen
from workers.mechanisms.mechanism import Guarantee

DISCOVERY_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What may be spent in an epoch: `rho` on noise, `delta_discovery` on discovery."""

    rho: float
    epsilon: float
    delta_conversion: float
    delta_discovery: float
    delta_numerical: float

    def cost(self, rho: float) -> Cost:
        """What is spent, as data."""
        deltas = [("numerical", self.delta_numerical)]
        if self.delta_discovery:
            deltas.append(("discovery", self.delta_discovery))
        return Cost(rho=rho, deltas=tuple(deltas))

    def guarantee(self, unit: str, rho: float, tv: float, delta: float) -> Guarantee:
        """The promise, once it is known what the noise is.

        Args:
            unit: whose presence is hidden.
            rho: spent, at most `self.rho`.
            tv: distance from their laws of all samples whose true value one event changes, together.
            delta: as configured.

        Raises:
            ValueError: delta is below what the samplers can promise.
        """
        true_numerical = sampler_delta(self.epsilon, 1, tv)
        check_sampler_delta(delta, self.epsilon, true_numerical, NUMERICAL_SHARE)
        return Guarantee(unit=unit, rho=rho, epsilon=self.epsilon, delta=delta)


class OnShare(Frozen):
    """What a mechanism says that spends its share on one-shot releases."""

    _share: Share
    _guarantee: Guarantee

    @property
    def guarantee(self) -> Guarantee:
        return self._guarantee

    def cost(self) -> Cost:
        return self._share.cost(self._guarantee.rho)


def share(config: HistogramConfig, *, discovers: bool) -> Share:
    """Splits a histogram's budget; `discovers` where items of an unknown domain are shown."""
    discovery = config.delta * DISCOVERY_SHARE if discovers else 0.0
    numerical = config.delta * NUMERICAL_SHARE
    conversion = config.delta - discovery - numerical
    if config.rho is not None:
        rho, epsilon = config.rho, epsilon_of(config.rho, conversion)
    elif config.epsilon is not None:
        rho, epsilon = rho_of(config.epsilon, conversion), config.epsilon
    else:
        raise ValueError("epsilon = None: give epsilon or rho")
    return Share(
        rho=rho, epsilon=epsilon, delta_conversion=conversion, delta_discovery=discovery, delta_numerical=numerical
    )
