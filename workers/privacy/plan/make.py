"""Plan of a settings file. Reads nothing else: no key, no Kafka, no clock.

Memory and disk of a row come from the sizes of columns, caches and stored blocks. A row is an item
of a stream key that has occurred (known domain: every label of every key). Labels have the mean
size of the declared ones, else 16 bytes. Columns grow by half and noise caches double when full, so
for n rows they hold between n and 2 n. On disk (RocksDB, and again in the changelog topic): tag,
key index, length and text of the label, and count and first tick shown, in at most 8 and 4 bytes.
"""

import math

import msgspec
import numpy as np
from msgspec import structs

from workers.mechanisms.about import Data, SketchBytes
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.config.sums import Sum
from workers.mechanisms.ledger import Ledger
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.registry import event_level
from workers.privacy.ceiling import mechanism_of
from workers.privacy.model import (
    AllItems,
    Error,
    HistogramPlan,
    MeanError,
    Memory,
    Noise,
    Plan,
    Segment,
    Share,
    Size,
    SumPlan,
    Worst,
)
from workers.privacy.phrasing import cautions
from workers.privacy.plan.alternatives import (
    advice,
    alternatives,
    counter_choices,
    end_choices,
)
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

SIZES = (1_000, 100_000, 1_000_000)
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
    config: HistogramConfig, mechanism: Mechanism, topic: str, unit: str
) -> HistogramPlan:
    config = event_level(config, unit)
    noise = noise_of(mechanism, config)
    domain = len(mechanism.domain())
    public = mechanism.public()
    error = _error(config, mechanism, noise)
    counters = tuple(counter_choices(config, mechanism, noise))
    items = domain or COMPARED_ITEMS
    has_counter = isinstance(public.get("counter"), dict) or counters
    plan = HistogramPlan(
        name=config.name,
        mechanism=config.mechanism,
        counter=config.counter if has_counter else None,
        topic=topic,
        tick_ms=config.tick_ms,
        horizon=config.horizon_ticks,
        keys=None if config.keys == "public" else len(config.keys),
        domain=domain or None,
        max_items=config.max_items,
        max_count=config.max_count,
        guarantee=mechanism.guarantee,
        deltas=_deltas(mechanism, config),
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
    numbers = mechanism.config.sum
    curve = mechanism.sum_curve()
    if numbers is None or curve is None:
        return None
    worst, rms = curve.worst_and_rms(noise.ticks_looked_at)
    middle = abs(float(numbers.middle))
    half = float(numbers.step) / 2
    # The curves of counts and sums are largest at the same tick: they have the same shape.
    return SumPlan(
        field=numbers.field,
        low=float(numbers.from_),
        high=float(numbers.to),
        step=float(numbers.step),
        steps=numbers.steps,
        share=numbers.share,
        rho=mechanism.cost().rho * numbers.share,
        worst_sd=math.hypot(middle * noise.worst_sd, half * worst),
        rms_sd=math.hypot(middle * noise.rms_sd, half * rms),
        means=tuple(_mean_error(numbers, noise.worst_sd, worst, n) for n in MEANS_OF),
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


LABEL_BYTES = 16
# Slots of 4 bytes; their number doubles at a load of three quarters.
_INDEX = 5
_INDEX_MOST = 11
_END = 4  # end offset of a label in the text
_COUNT = 8
_DISK_FIXED = 16 + 4 + 2  # tag, key index, length of the label
_DISK_COUNT = 8
_DISK_SHOWN = 4


def memory_of(mechanism: Mechanism, config: HistogramConfig) -> Memory:
    """Return the bytes that a histogram takes per row, in memory and on disk."""
    domain = mechanism.domain()
    label = round(sum(map(len, domain)) / len(domain)) if domain else LABEL_BYTES
    keys = 1 if config.keys == "public" else len(config.keys)
    if (sketches := mechanism.sketch_bytes(label)) is not None:
        return _sketches(sketches, label, keys)
    empty = Ledger()
    arrays = (empty.tags, empty.keys, empty.counts, empty.shown)
    columns = sum(
        int(np.prod(array.shape[1:])) * array.dtype.itemsize for array in arrays
    )
    columns += _END + label + (_COUNT if config.sum is not None else 0)
    extra = mechanism.row_bytes()
    fixed = columns + extra.noise + extra.state
    per_key = keys * extra.per_key
    passing = mechanism.about.family == "tick" and not domain
    disk = _DISK_FIXED + label + _DISK_COUNT + extra.state
    disk += 0 if config.sum is None else _DISK_COUNT
    disk += 0 if domain else _DISK_SHOWN
    row = "an item of a stream key that has occurred in the epoch"
    if domain:
        row = "a label of the domain, of each stream key"
    elif passing:
        row = "an item of a tick: nothing is kept from tick to tick"
        disk = 0
    sizes = tuple(
        Size(
            rows=n,
            memory_least=n * (fixed + _INDEX) + per_key,
            memory_most=n * (2 * fixed + _INDEX_MOST) + per_key,
            disk=0 if passing else n * disk + per_key,
        )
        for n in ((len(domain) * keys,) if domain else SIZES)
    )
    return Memory(
        row=row,
        label_bytes=label,
        columns_per_row=columns,
        index_per_row=_INDEX,
        noise_per_row=extra.noise,
        state_per_row=extra.state,
        disk_per_row=disk,
        rows_most=len(domain) or None,
        per_key=extra.per_key,
        sizes=sizes,
        note=extra.note,
    )


def _sketches(sketch: SketchBytes, label: int, keys: int) -> Memory:
    sketches = Size(
        rows=sketch.counters * keys,
        memory_least=sketch.key_least * keys,
        memory_most=sketch.key_most * keys,
        disk=sketch.key_on_disk * keys,
    )
    return Memory(
        row="a counter of a sketch",
        label_bytes=label,
        columns_per_row=sketch.counter,
        index_per_row=0,
        noise_per_row=0,
        state_per_row=sketch.shown,
        disk_per_row=sketch.counter_on_disk,
        rows_most=sketch.counters,
        per_key=sketch.key_most,
        sizes=(sketches,),
        note=sketch.note,
    )
