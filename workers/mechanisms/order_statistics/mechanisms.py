"""Order statistic mechanisms: configurations of `engine`, which lists the corrections to the paper.

Paper 001 is Henzinger, Sricharan, Steiner (docs/mechanisms.md, Papers).

Each answers queries about column sums, the running counts of declared labels. An epoch is divided
into segments, outer level, which end when the largest watched value reaches a threshold that
doubles, and a segment into intervals, inner level, which close when a watched value has grown by a
step. Only then the answer changes. A class's `weights` divide the budget between its parts, (in
zCDP, in pure accounting as printed): "outer_test" and "columns" of segments, "test", "sums" and
"updates" of intervals. Settings declare in `about` what tables, plans and the dashboard say of the
mechanism (`About`).

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

from functools import partial
from types import MappingProxyType
from typing import Annotated, Any

from workers.mechanisms.about import About, Data
from workers.mechanisms.config.checked import whole
from workers.mechanisms.order_statistics.config import OneQueryConfig, QueryListConfig
from workers.mechanisms.order_statistics.engine import (
    IntervalRule,
    Intervals,
    OrderStatistics,
)

_ANSWERS = "Answers about the running counts. An answer changes only when the counts have grown enough."
_about = partial(
    About,
    family="statistic",
    noise_is_on="a column's sum, at most; an answer also waits until it has grown enough: see the errors",
    needs_end=True,
    may_be_pure=True,
    in_ledger=True,
)
_COMPARED_C_MAX = 1_000_000


class BoundedMaxConfig(OneQueryConfig, frozen=True, kw_only=True, tag="bounded_max"):
    """An order statistic up to `c_max`; above, only the privacy guarantee holds."""

    about = _about(
        order_in_tables=140,
        text_in_plan="one order statistic, a bound on it known",
        text_on_dashboard=_ANSWERS,
        counters="steady",
    )

    c_max: Annotated[int, whole(1, 2**40)]

    @classmethod
    def _query_settings(cls, query: str) -> dict[str, Any]:
        return {"query": query, "c_max": _COMPARED_C_MAX}


class BoundedMax(OrderStatistics):
    """One run of intervals over the whole epoch."""

    # By part: (in zCDP, pure). In zCDP equal shares are within a few per cent of the least error.
    weights = MappingProxyType({"test": (1, 1), "sums": (1, 1)})

    configs = (BoundedMaxConfig,)
    config: BoundedMaxConfig

    @property
    def source(self) -> str:
        return "Henzinger, Sricharan, Steiner: Lemma 6"

    def _largest_value(self, data: Data) -> int:
        return self.config.c_max

    def _make_intervals(self, inner: IntervalRule, segment: int) -> Intervals:
        return inner.intervals(self.config.c_max, self.config.beta)


class DoublingConfig(OneQueryConfig, frozen=True, kw_only=True, tag="doubling"):
    """An order statistic, published again whenever it has about doubled."""

    about = _about(
        order_in_tables=150,
        text_in_plan="one order statistic, its order of magnitude",
        text_on_dashboard="The order of magnitude of the running counts. An answer changes only when the counts have grown enough.",
    )


class Doubling(OrderStatistics):
    """Segments alone: a new answer where one ends."""

    configs = (DoublingConfig,)
    # By part: (in zCDP, pure).
    weights = MappingProxyType({"outer_test": (1, 1), "columns": (1, 1)})

    @property
    def source(self) -> str:
        return "Henzinger, Sricharan, Steiner: Theorem 2"

    def _error_in(self, segment: int, value: int) -> float:
        """Bound the error in a segment if no watched value passes V = `value`.

        It is for plans, and smaller than the error that answers state. The true value in segment j
        lies between K_(j-1) - low - |G_(j-1)|, since the previous segment has ended, and
        min(V, K_j + high + |G_j|), with K_j the segment's threshold, G_j the columns' noise and
        low, high the bounds of its test; the answer is the value at the start, off by |G_j|.
        """
        segments = self.segments_in_use
        column_error = segments.column_error(segment)
        _, high = segments.bounds(segment)
        largest = segments.threshold(segment) + high + column_error
        largest = min(float(value), largest)
        smallest = 0.0
        if segment > 1:
            before = segment - 1
            low, _ = segments.bounds(before)
            smallest = segments.threshold(before) - low - segments.column_error(before)
            smallest = max(smallest, 0.0)
        return min(self.error(segment), largest - smallest + column_error)


class TwoLevelConfig(OneQueryConfig, frozen=True, kw_only=True, tag="two_level"):
    """One unbounded order statistic."""

    about = _about(
        order_in_tables=160,
        text_in_plan="one order statistic, no bound known",
        text_on_dashboard=_ANSWERS,
        counters="steady",
    )


class TwoLevelKConfig(QueryListConfig, frozen=True, kw_only=True, tag="two_level_k"):
    """Several unbounded order statistics, or all column sums."""

    about = _about(
        order_in_tables=170,
        text_in_plan="several order statistics",
        text_on_dashboard=_ANSWERS,
        counters="steady",
    )


class TwoLevel(OrderStatistics):
    """Segments, and a run of intervals in each."""

    configs = (TwoLevelConfig, TwoLevelKConfig)
    # By part: (in zCDP, pure); of one watched value, and of several. In zCDP, most goes to the
    # inner "test", which enters every error: "outer_test" only decides when a segment ends.
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

    @property
    def source(self) -> str:
        lemmas = "14 and 15" if isinstance(self.config, TwoLevelConfig) else "31 and 32"
        return f"Henzinger, Sricharan, Steiner: Lemmas {lemmas}"
