"""Noise, thresholds and state of a histogram without epochs, by window.

All windows come from one noise path (docs/decisions/0036-windows-without-epochs.md), whose noise
repeats after 2^L ticks: worst and root mean square are over such a period. `sd_times_mu` is the
standard deviation times mu, mu^2 = 2 rho_item, rho_item the cost of all windows together for an
item changed by one. A label not shown is tested, against the window's threshold, at every tick of
its memory; one that left is watched, then rests: it is neither shown nor tested for some ticks.
"""

import math
from dataclasses import replace

from msgspec import structs

from workers.mechanisms.config.durations import format_duration
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.config.windows import Series
from workers.mechanisms.counters.line import WindowCounter
from workers.mechanisms.mechanism import Mechanism, expect_type
from workers.mechanisms.registry import build
from workers.mechanisms.running.sliding import Sliding
from workers.privacy.model import (
    Noise,
    OneWindow,
    PeriodsCost,
    Thresholds,
    UserPeriods,
    WindowPlan,
    WithoutEpochs,
)
from workers.privacy.plan.noise import (
    NORMAL_ONE_SIDE_95,
    half_width_95,
    mean_absolute_error,
)
from workers.privacy.plan.sums import Sds, all_items_plan, sum_plan
from workers.privacy.total import compose

# Events this many periods of the noise apart have no part of it in common (0036, T7).
_PERIODS_APART = 5
# How many periods of one user a plan gives the cost of.
_PERIODS = (1, 2, 7, 30)
_SHOWN = "a label is shown, in all windows, once its noisy count in one of them is above its threshold"


def worst_and_rms(counter: WindowCounter) -> Sds:
    """Return the worst and the root mean square sd of a window's counts, over a period."""
    return counter.curve().worst_and_rms(1 << counter.levels)


def longest(plan: WithoutEpochs) -> WindowPlan:
    """Return the longest window, which represents the histogram where there is room for one."""
    return max(plan.windows, key=lambda window: window.ticks)


def noise_of_window(noise: Noise, window: WindowPlan) -> Noise:
    """Return a histogram's noise with the sds replaced by those of one window."""
    return structs.replace(
        noise,
        on=f"each count of the last {format_duration(window.ms)}",
        worst_sd=window.worst_sd,
        worst_tick=window.worst_tick,
        rms_sd=window.rms_sd,
    )


def thresholds_of_windows(plan: WithoutEpochs) -> Thresholds | None:
    """Return the least and the greatest threshold; None where all labels are shown."""
    thresholds = [
        (window.threshold, window)
        for window in plan.windows
        if window.threshold is not None
    ]
    if not thresholds:
        return None
    most, window = max(thresholds, key=lambda pair: pair[0])
    return Thresholds(
        meaning=_SHOWN,
        least=min(pair[0] for pair in thresholds),
        most=most,
        most_tick=window.worst_tick,
        ticks_computed=plan.period,
        likely_from=window.likely_from or 0,
    )


def without_epochs(
    mechanism: Sliding, config: HistogramConfig, topic: str, unit: str
) -> WithoutEpochs:
    """Plan all windows of a histogram without epochs; `topic` begins the names of their topics."""
    levels = max(window.levels for window in mechanism.windows)  # L of the module
    windows = tuple(
        _window(mechanism, config, index, series, topic, unit)
        for index, series in enumerate(config.series)
    )
    tests = mechanism.threshold_of(0) is not None
    tested = [window.tested_for or 0 for window in windows]
    return WithoutEpochs(
        period=1 << levels,
        windows=windows,
        leaves_at=max(config.window_ticks) if tests else None,
        watched=mechanism.watched if tests else None,
        rests=mechanism.rest if tests else None,
        remembered=max(tested) if tests else None,
        fresh_after=_PERIODS_APART << levels,  # in ticks: a period has 2^L
        users=user_periods(config, mechanism),
    )


def user_periods(config: HistogramConfig, mechanism: Mechanism) -> UserPeriods | None:
    """Return what one user's periods cost without epochs; None if events are protected."""
    period = config.user_period
    if period is None:
        return None
    cost = mechanism.cost()
    costs = []
    for number in _PERIODS:
        joint = compose([replace(cost, times=number)])
        costs.append(
            PeriodsCost(
                periods=number, rho=joint.rho, epsilon=joint.epsilon, delta=joint.delta
            )
        )
    return UserPeriods(
        ms=period * config.tick_ms,
        ticks=period,
        unique=bool(config.unique_users),
        overlap=cost.overlap,
        costs=tuple(costs),
    )


def _window(
    mechanism: Sliding,
    config: HistogramConfig,
    index: int,
    series: Series,
    topic: str,
    unit: str,
) -> WindowPlan:
    """Plan one window: its noise, threshold, sums, and what it would be if it were the only one.

    `index` is its place in the settings; `topic` begins the name of its topic.
    """
    counter = mechanism.windows[index]
    worst, rms = worst_and_rms(counter)
    period = 1 << counter.levels  # ticks, as in the module
    mu = math.sqrt(2 * counter.rho_item)
    threshold = mechanism.threshold_of(index)
    rho = mechanism.cost().rho
    sums = None
    if config.sum is not None:
        of_sums = worst_and_rms(mechanism.sum_windows[index])
        sums = sum_plan(config.sum, rho, (worst, rms), of_sums)
    all_items = None
    if config.total_share is not None:
        of_totals = worst_and_rms(mechanism.total_windows[index])
        all_items = all_items_plan(config, rho, of_totals)
    return WindowPlan(
        series=series.name,
        topic=topic + series.suffix,
        ms=config.windows[index],
        ticks=counter.window,
        hop=counter.hop,
        most_ticks=counter.most_ticks,
        worst_sd=worst,
        worst_tick=int(counter.curve().noisiest(period)[0]),
        rms_sd=rms,
        sd_times_mu=(worst * mu, rms * mu),
        # The error is computed as if every tick had the rms sd; the half width has the worst sd.
        mean_absolute_error=mean_absolute_error(mechanism.law, rms),
        half_width_95=half_width_95(mechanism.law, worst),
        threshold=None if threshold is None else float(threshold),
        tested_for=None if threshold is None else mechanism.memory_of(index),
        likely_from=(
            None
            if threshold is None
            else math.ceil(threshold + NORMAL_ONE_SIDE_95 * worst)
        ),
        kept=-(-counter.most_ticks // counter.hop),  # a sum for each hop, rounded up
        sum=sums,
        all_items=all_items,
        alone=_alone(config, index, unit),
    )


def _alone(config: HistogramConfig, index: int, unit: str) -> OneWindow | None:
    """Return a window's noise if it were the only one at this budget; None if it is.

    `index` is its place in the settings.
    """
    if len(config.windows) == 1:
        return None
    one_window = structs.replace(config, windows=(config.windows[index],))
    only = expect_type(Sliding, build(one_window, unit))
    worst, rms = worst_and_rms(only.windows[0])
    threshold = only.threshold_of(0)
    return OneWindow(
        worst_sd=worst,
        rms_sd=rms,
        threshold=None if threshold is None else float(threshold),
    )
