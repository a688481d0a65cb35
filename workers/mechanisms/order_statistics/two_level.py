"""Two-level: one (`two_level`) or several order statistics (`two_level_k`) with no known bound.

What: segments by doubling thresholds (`segments`), and within each a run of `intervals` that begins
at the segment's noisy sums and whose reach is what the segment lets the value grow by.
Why: the error depends on the logarithm of the largest value where a counter's depends on that of
the ticks. The additive ln(ticks) of AboveThreshold stays: it is worth it only where values stay
tiny against the horizon.

Costs: segments (test, columns) and intervals (test, sums and, where several values are watched,
updates), each once for the epoch.
Source: 001 Algorithms 6, 7 (`two_level`), 11, 12, 16, 17 (`two_level_k`); Lemmas 12 and 27. Printed
(pure, 2 eps in total, eps half of `epsilon`): segments Lap(4/eps), Lap(8/eps), Lap(2 D Dinf/eps);
intervals of one value Lap(4/eps), Lap(8/eps), H at eps/2; of k values Lap(6/eps), Lap(12/eps),
Lap(3 k/eps), H at eps/3. Corrected: L, which line 1 of Algorithms 6, 11 and 16 computes from the
unknown c_max, is log2 T; `segments` lists what its noise corrects. Algorithms 13, 16 and 17
(approximate DP) are built as zCDP.
"""

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
