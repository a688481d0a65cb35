"""Plan of a settings file. Reads nothing else: no key, no Kafka, no clock."""

import math

import msgspec
from msgspec import structs

from workers.mechanisms.about import Data
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.config.sums import Sum
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.registry import event_level
from workers.privacy.ceiling import mechanism_of
from workers.privacy.model import (
    AllItems,
    Error,
    HistogramPlan,
    MeanError,
    Noise,
    Plan,
    Segment,
    Share,
    SumPlan,
    Worst,
)
from workers.privacy.phrasing import cautions
from workers.privacy.plan.advice import advice, end_choices
from workers.privacy.plan.alternatives import alternatives, counter_choices
from workers.privacy.plan.memory import SIZES, memory_of
from workers.privacy.plan.noise import (
    COUNT_LAWS,
    NORMAL_95,
    mean_over_ticks,
    noise_of,
    thresholds_of,
    worst_of_all,
)
from workers.privacy.total import charge_of, conversion_delta, total_of
from workers.settings.settings import Settings

SEGMENTS = 12
COMPARED_ITEMS = 1_000
# Counts for which a plan states the error of a mean.
MEANS_OF = (100, 1_000, 10_000, 100_000)


def make_plan(settings: Settings) -> Plan:
    """Plan every histogram, and their total; raise SettingsError if a budget cannot be met."""
    unit = settings.privacy.unit
    plans = []
    charges = []
    for config in settings.histograms:
        mechanism = mechanism_of(config, unit)
        plans.append(plan_of(config, mechanism, settings.output_topic(config), unit))
        charges.append(charge_of(config, mechanism))
    return Plan(
        worker=settings.worker.name, histograms=tuple(plans), total=total_of(charges)
    )


def plan_of(
    given: HistogramConfig, mechanism: Mechanism, topic: str, unit: str
) -> HistogramPlan:
    config = event_level(given, unit)
    noise = noise_of(mechanism, config)
    domain = len(mechanism.domain())
    deltas = _deltas(mechanism, config)
    public = mechanism.public()
    error = _error(config, mechanism, noise)
    counters = tuple(counter_choices(config, mechanism, noise))
    items = domain or COMPARED_ITEMS
    has_counter = isinstance(public.get("counter"), dict) or counters
    plan = HistogramPlan(
        name=given.name,
        mechanism=given.mechanism,
        counter=config.counter if has_counter else None,
        topic=topic,
        tick_ms=given.tick_ms,
        horizon=given.horizon_ticks,
        keys=None if given.keys == "public" else len(given.keys),
        domain=domain or None,
        max_items=config.max_items,
        max_count=config.max_count,
        guarantee=mechanism.guarantee,
        deltas=deltas,
        parameters=msgspec.json.decode(msgspec.json.encode(public)),
        noise=noise,
        thresholds=thresholds_of(mechanism, config, noise),
        sum=_sum(mechanism, noise),
        all_items=_all_items(mechanism, noise),
        error=error,
        memory=memory_of(mechanism, config),
        counters=counters,
        ends=end_choices(config, mechanism, unit),
        mechanisms=tuple(
            alternatives(config, mechanism, noise, unit, items, error.beta)
        ),
        warnings=tuple(
            cautions(mechanism.guarantee.epsilon, mechanism.guarantee.delta, unit)
        ),
    )
    return structs.replace(plan, advice=tuple(advice(config, mechanism, plan)))


def _sum(mechanism: Mechanism, noise: Noise) -> SumPlan | None:
    of = mechanism.config.sum
    curve = mechanism.sum_curve()
    if of is None or curve is None:
        return None
    worst, rms = curve.worst_and_rms(noise.ticks_looked_at)
    middle = abs(float(of.middle))
    half = float(of.step) / 2
    # The curves of counts and sums are largest at the same tick: they have the same shape.
    return SumPlan(
        field=of.field,
        low=float(of.from_),
        high=float(of.to),
        step=float(of.step),
        steps=of.steps,
        share=of.share,
        rho=mechanism.cost().rho * of.share,
        worst_sd=math.hypot(middle * noise.worst_sd, half * worst),
        rms_sd=math.hypot(middle * noise.rms_sd, half * rms),
        means=tuple(_mean_error(of, noise.worst_sd, worst, n) for n in MEANS_OF),
    )


def _mean_error(of: Sum, sd: float, of_sums: float, count: int) -> MeanError:
    """Return half the interval, to first order, at most half the range."""
    half = float(of.step) / 2
    most = float(of.to - of.from_) / 2

    def width(theta: float) -> float:
        return min(most, half * NORMAL_95 * math.hypot(of_sums, theta * sd) / count)

    return MeanError(count=count, middle=width(0.0), end=width(float(of.steps)))


def _all_items(mechanism: Mechanism, noise: Noise) -> AllItems | None:
    share = mechanism.config.total_share
    curve = mechanism.total_curve()
    if share is None or curve is None:
        return None
    worst, rms = curve.worst_and_rms(noise.ticks_looked_at)
    return AllItems(
        share=share, rho=mechanism.cost().rho * share, worst_sd=worst, rms_sd=rms
    )


def _deltas(mechanism: Mechanism, config: HistogramConfig) -> tuple[Share, ...]:
    """Return the parts of delta; the rest converts rho, unless epsilon is pure."""
    cost = mechanism.cost()
    named = [Share(name=name, delta=delta) for name, delta in cost.failures]
    if (left := conversion_delta([cost])) > 0 and not config.pure:
        named.append(Share(name="conversion", delta=left))
    return tuple(named)


def _error(config: HistogramConfig, mechanism: Mechanism, noise: Noise) -> Error:
    beta = config.error_beta
    domain = len(mechanism.domain())
    ticks = noise.ticks_looked_at
    law = mechanism.law
    sd = noise.worst_sd
    shown = mechanism.most_shown()
    counts = ((shown,) if shown else SIZES) if law in COUNT_LAWS else ()
    data = Data(items=domain or COMPARED_ITEMS, ticks=ticks)
    return Error(
        beta=beta,
        mean_absolute_error=mean_over_ticks(mechanism, ticks),
        worst=tuple(
            Worst(items=n, error=worst_of_all(law, sd, ticks * n, beta)) for n in counts
        ),
        segments=tuple(
            Segment(segment=number, up_to=value, error=round(error, 4))
            for number, value, error in mechanism.segments_up_to(SEGMENTS)
        ),
        figures=tuple(mechanism.figures(ticks, noise.worst_tick)),
        theorems=mechanism.bounds(beta, data),
    )
