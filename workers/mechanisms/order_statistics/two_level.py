from __future__ import annotations

from types import MappingProxyType

from workers.mechanisms.order_statistics.config import SeveralConfig, SingleConfig
from workers.mechanisms.order_statistics.engine import OrderStatistics


class TwoLevelConfig(SingleConfig, frozen=True, kw_only=True, tag="two_level"):
    """One order statistic, with no bound on it."""


class TwoLevelKConfig(SeveralConfig, frozen=True, kw_only=True, tag="two_level_k"):
    """Several order statistics, or all column sums, with no bound on them."""


class TwoLevel(OrderStatistics):
    """See the module, and `OrderStatistics` for the guarantee."""

    kind = "two_level"
    # In zCDP: the outer test only decides when a segment ends; the inner one enters every error.
    weights = MappingProxyType({"outer_test": (1, 1), "columns": (2, 1), "test": (3, 1), "sums": (2, 1)})
    weights_of_several = MappingProxyType(
        {"outer_test": (1, 3), "columns": (2, 3), "test": (3, 2), "sums": (2, 2), "updates": (2, 2)}
    )


class TwoLevelK(TwoLevel):
    """See the module, and `OrderStatistics` for the guarantee."""

    kind = "two_level_k"
