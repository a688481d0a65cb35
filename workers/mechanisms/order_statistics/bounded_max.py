"""BoundedMaxSum: an order statistic of column sums where a bound on it is known beforehand.

What: one run of `intervals` over the whole epoch, with reach = c_max. No interval closes once its
capacity is used up; a value that stays within c_max does not get there.
Why: the error is that of a counter over intervals plus ln(ticks), instead of a counter over ticks.

Source: 001 Algorithms 2 and 3, Lemmas 4 and 6. Printed (pure, accounting = "pure"): Lap(4/eps),
Lap(8/eps), H at eps/2 a binary tree for c_max intervals, K = 3 (err + alpha_mu + alpha_tau). zCDP:
rho_test + D Dinf^2 rho_H, with the smallest error that `intervals` finds.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Annotated

from msgspec import Meta

from workers.mechanisms.order_statistics.config import SingleConfig
from workers.mechanisms.order_statistics.engine import OrderStatistics
from workers.mechanisms.order_statistics.intervals import IntervalRule, Intervals


class BoundedMaxConfig(SingleConfig, frozen=True, kw_only=True, tag="bounded_max"):
    """An order statistic whose largest possible value is known.

    Attributes:
        c_max: the bound; beyond it no error is promised (the privacy is).
    """

    c_max: Annotated[int, Meta(ge=1, le=2**40, description="a whole number from 1 to 1,099,511,627,776")]


class BoundedMax(OrderStatistics):
    """See the module, and `OrderStatistics` for the guarantee."""

    kind = "bounded_max"
    # One test of about 2 ln(T / beta) / sqrt(rho), three times H's error: in zCDP equal shares are
    # within a few per cent of the best.
    weights = MappingProxyType({"test": (1, 1), "sums": (1, 1)})

    def __init__(self, config: BoundedMaxConfig, unit: str = "event") -> None:
        self._c_max = config.c_max
        super().__init__(config, unit)

    def _make_intervals(self, inner: IntervalRule, segment: int) -> Intervals:
        return inner.intervals(self._c_max, self.config.beta)
