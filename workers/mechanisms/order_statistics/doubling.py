from __future__ import annotations

from types import MappingProxyType

from workers.mechanisms.order_statistics.config import SingleConfig
from workers.mechanisms.order_statistics.engine import OrderStatistics


class DoublingConfig(SingleConfig, frozen=True, kw_only=True, tag="doubling"):
    """An order statistic, published again whenever it has about doubled."""


class Doubling(OrderStatistics):
    """See the module, and `OrderStatistics` for the guarantee."""

    kind = "doubling"
    weights = MappingProxyType({"outer_test": (1, 1), "columns": (1, 1)})
