"""Doubling: segments within which the largest column sum about doubles, with all noisy sums at the end of each.

What: the outer level alone (`segments`). The answer at a tick is that of the last segment that ended, so it may be off by about as much
again as the value itself; it is the frame of `two_level`, and by itself a cheap watch on orders of magnitude.
Why: it needs no bound on the value, and ends about log2 of it segments.

Source: 001 Algorithms 5, 10 and 15, Lemma 7 and Theorem 2; corrections in `segments`. Printed (pure): Lap(4/eps), Lap(8/eps), columns
Lap(2 D Dinf / eps). zCDP: rho_test + D Dinf^2 / (2 s_D^2).
"""

from __future__ import annotations

from fractions import Fraction
from types import MappingProxyType

from workers.mechanisms.order_statistics.config import Purse, SingleConfig
from workers.mechanisms.order_statistics.engine import OrderStatistics
from workers.mechanisms.order_statistics.queries import Queries
from workers.mechanisms.order_statistics.segments import Segments

_ZCDP = MappingProxyType({"test": 1, "columns": 1})
_PURE = MappingProxyType({"test": Fraction(1, 2), "columns": Fraction(1, 2)})


class DoublingConfig(SingleConfig, frozen=True, kw_only=True, tag="doubling"):
    """An order statistic, published anew whenever it has about doubled."""


class Doubling(OrderStatistics):
    """See the module, and `OrderStatistics` for the guarantee."""

    kind = "doubling"

    def __init__(self, config: DoublingConfig, unit: str = "event") -> None:
        self.config = config
        purse = Purse.of(config, _ZCDP, _PURE)
        self.segments = Segments.of(config, purse.shares["test"], purse.shares["columns"], config.beta)
        test, columns = self.segments.spent(config.items, config.max_count)
        tv = self.segments.tv + self.segments.changed_tv(config.items)
        guarantee, cost = purse.settle(config, unit, {"test": test, "columns": columns}, tv)
        super().__init__(config, guarantee, cost, Queries(config.asked, config.domain))
