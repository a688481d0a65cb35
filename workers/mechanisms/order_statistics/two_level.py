"""Two-level: order statistics of column sums with no bound known beforehand, one (`two_level`) or several at once (`two_level_k`).

What: segments by doubling thresholds (`segments`), and within each a run of `intervals` that begins at the segment's noisy sums and
whose reach is what the segment lets the value grow by.
Why: the error depends on the logarithm of the largest value where a counter's depends on that of the ticks. The additive ln(ticks) of
AboveThreshold stays: it is worth it only where values stay tiny against the horizon.

Costs: segments (test, columns) and intervals (test, sums and, where several values are watched, updates), each once for the epoch.
Source: 001 Algorithms 6, 7 (`two_level`), 11, 12, 16, 17 (`two_level_k`); Lemmas 12 and 27. Printed (pure, 2 eps in total, eps half of
`epsilon`): segments Lap(4/eps), Lap(8/eps), Lap(2 D Dinf/eps); intervals of one value Lap(4/eps), Lap(8/eps), H at eps/2; of k values
Lap(6/eps), Lap(12/eps), Lap(3 k/eps), H at eps/3. Corrected: L, which line 1 of Algorithms 6, 11 and 16 computes from the unknown c_max, is
log2 T; `segments` lists what its noise corrects. Algorithms 13, 16 and 17 (approximate DP) are built as zCDP.
"""

from __future__ import annotations

from fractions import Fraction
from types import MappingProxyType

from workers.mechanisms.order_statistics.config import MaxConfig, Purse, SeveralConfig, SingleConfig
from workers.mechanisms.order_statistics.engine import OrderStatistics
from workers.mechanisms.order_statistics.intervals import IntervalRule, Intervals
from workers.mechanisms.order_statistics.queries import Queries
from workers.mechanisms.order_statistics.segments import Segments

# The outer test only decides when a segment ends; the inner one enters every error.
_ZCDP_ONE = MappingProxyType({"outer_test": 1, "columns": 2, "test": 3, "sums": 2})
_ZCDP_SEVERAL = MappingProxyType({"outer_test": 1, "columns": 2, "test": 3, "sums": 2, "updates": 2})
_OUTER_PURE = MappingProxyType({"outer_test": Fraction(1, 4), "columns": Fraction(1, 4)})
_PURE_ONE = MappingProxyType({**_OUTER_PURE, "test": Fraction(1, 4), "sums": Fraction(1, 4)})
_PURE_SEVERAL = MappingProxyType(
    {**_OUTER_PURE, "test": Fraction(1, 6), "sums": Fraction(1, 6), "updates": Fraction(1, 6)}
)


class TwoLevelConfig(SingleConfig, frozen=True, kw_only=True, tag="two_level"):
    """One order statistic, with no bound on it."""


class TwoLevelKConfig(SeveralConfig, frozen=True, kw_only=True, tag="two_level_k"):
    """Several order statistics, or all column sums, with no bound on them."""


class _TwoLevel(OrderStatistics):
    def __init__(self, config: MaxConfig, unit: str) -> None:
        queries = Queries(config.asked, config.domain)
        one = queries.k == 1
        purse = Purse.of(config, _ZCDP_ONE if one else _ZCDP_SEVERAL, _PURE_ONE if one else _PURE_SEVERAL)
        share = purse.shares
        self.segments = Segments.of(config, share["outer_test"], share["columns"], config.beta / 2)
        self.inner = IntervalRule.of(config, queries.k, share["test"], share["sums"], share.get("updates"))
        outer_test, columns = self.segments.spent(config.items, config.max_count)
        test, sums, updates = self.inner.spent()
        spent = {"outer_test": outer_test, "columns": columns, "test": test, "sums": sums}
        if not one:
            spent["updates"] = updates
        tv = self.segments.tv + self.segments.changed_tv(config.items) + self.inner.tv
        guarantee, cost = purse.settle(config, unit, spent, tv)
        super().__init__(config, guarantee, cost, queries)

    def _make_intervals(self, segment: int) -> Intervals:
        segments = self.segments_in_use
        # Segment j's part of half of beta: 1 / (j (j + 1)) adds up to 1.
        beta = self._config.beta / (2 * segment * (segment + 1))
        return self.inner_in_use.intervals(segments.growth(segment), beta, segments.column_error(segment))


class TwoLevel(_TwoLevel):
    """See the module, and `OrderStatistics` for the guarantee."""

    kind = "two_level"

    def __init__(self, config: TwoLevelConfig, unit: str = "event") -> None:
        self.config = config
        super().__init__(config, unit)


class TwoLevelK(_TwoLevel):
    """See the module, and `OrderStatistics` for the guarantee."""

    kind = "two_level_k"

    def __init__(self, config: TwoLevelKConfig, unit: str = "event") -> None:
        self.config = config
        super().__init__(config, unit)
