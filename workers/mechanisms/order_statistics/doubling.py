"""Doubling: segments within which the largest sum about doubles, with noisy sums at their ends.

What: the outer level alone (`segments`). The answer at a tick is that of the last segment that
ended, so it may be off by about as much again as the value itself; it is the frame of `two_level`,
and by itself a cheap watch on orders of magnitude.
Why: it needs no bound on the value, and ends about log2 of it segments.

Source: 001 Algorithms 5, 10 and 15, Lemma 7 and Theorem 2; corrections in `segments`. Printed
(pure): Lap(4/eps), Lap(8/eps), columns Lap(2 D Dinf / eps). zCDP: rho_test + D Dinf^2 / (2 s_D^2).
"""

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
