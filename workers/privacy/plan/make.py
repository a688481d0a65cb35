"""Plan of a settings file. Reads nothing else: no key, no Kafka, no clock."""

import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
from msgspec import structs

from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.config.sums import Sum
from workers.mechanisms.counters.counter import OnCounters
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.misra_gries.misra_gries import MisraGries
from workers.mechanisms.one_shot.config import OneShotConfig, PayWhatYouGetConfig
from workers.mechanisms.order_statistics.config import MaxConfig
from workers.mechanisms.order_statistics.engine import OrderStatistics
from workers.mechanisms.registry import event_level
from workers.mechanisms.running.sparse_gumb import SparseGumb, SparseGumbConfig
from workers.privacy.ceiling import mechanism_of
from workers.privacy.phrasing import cautions
from workers.privacy.plan.advice import advice, end_choices
from workers.privacy.plan.alternatives import alternatives, counter_choices
from workers.privacy.plan.memory import SIZES, memory_of
from workers.privacy.plan.model import (
    AllItems,
    Error,
    Figure,
    HistogramPlan,
    MeanError,
    Noise,
    Plan,
    Segment,
    Share,
    SumPlan,
    Worst,
)
from workers.privacy.plan.noise import (
    COUNT_LAWS,
    NORMAL_95,
    DigitCurve,
    blocks_of,
    curve_of,
    discovery_step,
    mean_over_ticks,
    noise_of,
    thresholds_of,
    worst_and_rms,
    worst_of_all,
)
from workers.privacy.theorems import BETA, Data, bottom_of, error_bounds, printed_of
from workers.privacy.total import charge_of, conversion_delta, total_of
from workers.settings.settings import Settings

SEGMENTS = 12
_ODDS = 19  # of a pick: the larger of two wins 19 out of 20 times
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
    conversion = sum(share.delta for share in deltas if share.name == "conversion")
    public = mechanism.public()
    error = _error(config, mechanism, noise, unit)
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
        printed=tuple(printed_of(mechanism, noise, conversion)),
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
    if of is None or not isinstance(mechanism, OnCounters) or mechanism.of_sums is None:
        return None
    worst, rms = worst_and_rms(
        curve_of(mechanism.of_sums.public()), noise.ticks_looked_at
    )
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
    if (
        share is None
        or not isinstance(mechanism, OnCounters)
        or mechanism.of_totals is None
    ):
        return None
    worst, rms = worst_and_rms(
        curve_of(mechanism.of_totals.public()), noise.ticks_looked_at
    )
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


def _error(
    config: HistogramConfig, mechanism: Mechanism, noise: Noise, unit: str
) -> Error:
    beta = config.beta if isinstance(config, MaxConfig) else BETA
    domain = len(mechanism.domain())
    ticks = noise.ticks_looked_at
    law = mechanism.law
    sd = noise.worst_sd
    shown = _most_shown(config, mechanism)
    counts = ((shown,) if shown else SIZES) if law in COUNT_LAWS else ()
    data = Data(items=domain or COMPARED_ITEMS, ticks=ticks)
    return Error(
        beta=beta,
        mean_absolute_error=mean_over_ticks(mechanism, ticks),
        worst=tuple(
            Worst(items=n, error=worst_of_all(law, sd, ticks * n, beta)) for n in counts
        ),
        segments=tuple(_segments(mechanism)),
        figures=tuple(_figures(config, mechanism, noise)),
        theorems=error_bounds(
            config, beta=beta, data=data, mechanism=mechanism, unit=unit
        ),
    )


def _most_shown(config: HistogramConfig, mechanism: Mechanism) -> int | None:
    domain = len(mechanism.domain()) or None
    if isinstance(config, SparseGumbConfig):
        return config.top_k
    if isinstance(config, OneShotConfig):
        p = config.parameters()
        return p.k or p.kbar or domain
    blocks = blocks_of(mechanism)
    if isinstance(mechanism, MisraGries) and domain and blocks:
        return min(domain, mechanism.config.size * blocks.levels * (blocks.radix - 1))
    return domain


def _segments(mechanism: Mechanism) -> Iterator[Segment]:
    if (
        isinstance(mechanism, OrderStatistics)
        and (segments := mechanism.segments) is not None
    ):
        for one in range(1, min(SEGMENTS, segments.most) + 1):
            error = round(mechanism.error(one), 4)
            yield Segment(segment=one, up_to=segments.threshold(one), error=error)


def _figures(
    config: HistogramConfig, mechanism: Mechanism, noise: Noise
) -> Iterator[Figure]:
    public = mechanism.public()
    if isinstance(mechanism, OrderStatistics) and mechanism.segments is None:
        error = float(round(mechanism.error(1), 4))
        meaning = "no answer is off by more, with probability 1 - beta, up to c_max"
        yield Figure("error", error, meaning)
    # Tick 1 chooses; nothing is tested before tick 2.
    if isinstance(mechanism, SparseGumb) and noise.ticks_looked_at > 1:
        meaning = "at tick 2 an item outside must lie this far above the least shown"
        yield Figure("eta_first", float(mechanism.eta(2)), meaning)
        last = float(mechanism.eta(noise.ticks_looked_at))
        yield Figure("eta_last", last, "the same at the last tick")
    if isinstance(mechanism, MisraGries):
        share = 1 / (mechanism.config.size + 1)
        meaning = "of all items up to t, most that a count lacks before noise"
        yield Figure("undercount_share", share, meaning)
    if blocks := blocks_of(mechanism):
        digits = DigitCurve(blocks.radix, [1.0] * blocks.levels)
        most = digits.variance(np.array([noise.worst_tick]))[0]
        yield Figure("blocks_most", float(most), "blocks added at the worst tick")
    scale = _pick_scale(public)
    if scale is not None:
        gap = scale * math.log(_ODDS)
        yield Figure(
            "pick_scale", scale, "scale of the Gumbel noise that a pick is equal to"
        )
        yield Figure(
            "pick_gap_95", gap, "of two items so far apart the larger is picked in 95 %"
        )
    if bottom := bottom_of(public):
        meaning = "BOTTOM lies this far above the (kbar + 1)-th largest count"
        yield Figure("bar_above_the_rest", float(bottom), meaning)
    if isinstance(config, PayWhatYouGetConfig):
        yield Figure("labels", float(config.labels), "budget of labels in an epoch")
        yield Figure("queries", float(config.queries), "budget of answers in an epoch")
    if every := discovery_step(config):
        meaning = "new items are shown only at multiples of this tick"
        yield Figure("every", float(every), meaning)


def _pick_scale(public: Mapping[str, Any]) -> float | None:
    parameters = public.get("algorithm", public)
    scale = (
        parameters["scales"][0] if "scales" in parameters else parameters.get("scale")
    )
    return None if scale is None else float(Fraction(scale))
