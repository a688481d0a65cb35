"""Errors of sums, of means and of the count of all items, from the noise of their counters.

A sum is published by two counters: one of the item's count n, one of the "centred" sum D = 2 S - R
n, where S is the sum in steps above the range's low end and R the range in steps. With m the middle
of the range and h half a step, sum = m n + h D and mean = m + h D / n (`pipeline.snapshots`).
"""

import math

from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.config.sums import Sum
from workers.privacy.model import AllItems, MeanError, SumPlan
from workers.privacy.plan.noise import NORMAL_95

# Counts for which a plan states the error of a mean.
MEANS_OF = (100, 1_000, 10_000, 100_000)

Sds = tuple[float, float]
"""The standard deviation at the worst tick, and its root mean square over all ticks."""


def sum_plan(numbers: Sum, rho: float, count_sds: Sds, centred_sds: Sds) -> SumPlan:
    """Plan a sum from the noise of counts and of centred sums; `rho` is all of the budget.

    The sum's own part of it is `numbers.share`. A pair of sds has the worst, then the root mean
    square over the ticks.
    """
    middle = abs(float(numbers.middle))
    half = float(numbers.step) / 2
    # The noise of counts and that of sums are largest at the same tick: they have the same shape.
    worst, rms = (
        math.hypot(middle * count_sd, half * centred_sd)
        for count_sd, centred_sd in zip(count_sds, centred_sds, strict=True)
    )
    return SumPlan(
        field=numbers.field,
        low=float(numbers.from_),
        high=float(numbers.to),
        step=float(numbers.step),
        steps=numbers.steps,
        share=numbers.share,
        rho=rho * numbers.share,
        worst_sd=worst,
        rms_sd=rms,
        means=tuple(
            _mean_error(numbers, count_sds[0], centred_sds[0], n) for n in MEANS_OF
        ),
    )


def _mean_error(
    numbers: Sum, count_sd: float, centred_sd: float, count: int
) -> MeanError:
    """Return half the 95 % interval of a mean of `count` events, at most half the range.

    To first order in the noise: that of D / n is (noise of D - theta * noise of n) / n, theta being
    D / n. It is 0 for a mean in the middle of the range and R for one at its end.
    """
    half = float(numbers.step) / 2
    most = float(numbers.to - numbers.from_) / 2

    def width(theta: float) -> float:
        sd = math.hypot(centred_sd, theta * count_sd)
        return min(most, half * NORMAL_95 * sd / count)

    return MeanError(count=count, middle=width(0.0), end=width(float(numbers.steps)))


def all_items_plan(config: HistogramConfig, rho: float, totals: Sds) -> AllItems:
    """Plan the count of all items from its noise, `totals`; `rho` is all of the budget."""
    share = config.total_share or 0.0
    worst, rms = totals
    return AllItems(share=share, rho=rho * share, worst_sd=worst, rms_sd=rms)
