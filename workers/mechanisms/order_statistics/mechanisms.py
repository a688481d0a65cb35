"""Order statistic mechanisms: configurations of `engine`, which lists the corrections to the paper.

`two_level` (one order statistic) and `two_level_k` (several) need no known bound: doubling
segments, and in each a run of intervals that begins at its noisy sums, with its growth bound as
reach. The error depends on the logarithm of the largest value where a counter's depends on that of
the ticks; with the additive ln(ticks) of AboveThreshold, that is worth it only where values stay
tiny against the horizon.
Source: 001 Algorithms 6, 7 (`two_level`), 11, 12, 16, 17 (`two_level_k`); Lemmas 12 and 27. Printed
(pure, 2 eps in total, eps half of `epsilon`): segments as in `doubling`; intervals of one value as
in `bounded_max`, of k values Lap(6/eps), Lap(12/eps), Lap(3 k/eps), H at eps/3. Corrected: L, which
line 1 of Algorithms 6, 11 and 16 computes from the unknown c_max, is log2 T. Algorithms 13, 16 and
17 (approximate DP) are built as zCDP.

`bounded_max` has a known bound c_max, its reach: one run of intervals over the epoch. The error is
that of a counter over intervals plus ln(ticks), instead of a counter over ticks; a value within
c_max does not use up the capacity.
Source: 001 Algorithms 2 and 3, Lemmas 4 and 6. Printed (pure): Lap(4/eps), Lap(8/eps), H at eps/2 a
binary tree for c_max intervals, K = 3 (err + alpha_mu + alpha_tau).

`doubling` is the segments alone: the answer is that of the last segment that ended, so its error
may be about as large as the value itself.
Source: 001 Algorithms 5, 10 and 15, Lemma 7 and Theorem 2. Printed (pure): Lap(4/eps), Lap(8/eps),
columns Lap(2 D Dinf / eps).
"""

from types import MappingProxyType
from typing import Annotated

from msgspec import Meta

from workers.mechanisms.order_statistics.config import SeveralConfig, SingleConfig
from workers.mechanisms.order_statistics.engine import (
    IntervalRule,
    Intervals,
    OrderStatistics,
)


class BoundedMaxConfig(SingleConfig, frozen=True, kw_only=True, tag="bounded_max"):
    """An order statistic up to `c_max`; above, only the privacy guarantee holds."""

    c_max: Annotated[
        int,
        Meta(ge=1, le=2**40, description="a whole number from 1 to 1,099,511,627,776"),
    ]


class BoundedMax(OrderStatistics):
    # In zCDP equal shares are within a few per cent of the least error.
    weights = MappingProxyType({"test": (1, 1), "sums": (1, 1)})

    config: BoundedMaxConfig

    def _make_intervals(self, inner: IntervalRule, segment: int) -> Intervals:
        return inner.intervals(self.config.c_max, self.config.beta)


class DoublingConfig(SingleConfig, frozen=True, kw_only=True, tag="doubling"):
    """An order statistic, published again whenever it has about doubled."""


class Doubling(OrderStatistics):
    weights = MappingProxyType({"outer_test": (1, 1), "columns": (1, 1)})


class TwoLevelConfig(SingleConfig, frozen=True, kw_only=True, tag="two_level"):
    """One unbounded order statistic."""


class TwoLevelKConfig(SeveralConfig, frozen=True, kw_only=True, tag="two_level_k"):
    """Several unbounded order statistics, or all column sums."""


class TwoLevel(OrderStatistics):
    # In zCDP: the outer test only decides when a segment ends; the inner one enters every error.
    weights = MappingProxyType(
        {"outer_test": (1, 1), "columns": (2, 1), "test": (3, 1), "sums": (2, 1)}
    )
    weights_of_several = MappingProxyType(
        {
            "outer_test": (1, 3),
            "columns": (2, 3),
            "test": (3, 2),
            "sums": (2, 2),
            "updates": (2, 2),
        }
    )
