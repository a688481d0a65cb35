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
