"""Plan of a settings file. Reads nothing else: no key, no Kafka, no clock.

Memory and disk of a row come from the sizes of columns, caches and stored blocks. A row is an item
of a stream key that has occurred (known domain: every label of every key). Labels have the mean
size of the declared ones, else 16 bytes. Columns grow by half and noise caches double when full, so
for n rows they hold between n and 2 n. On disk (RocksDB, and again in the changelog topic): tag,
key index, length and text of the label, and count and first tick shown, in at most 8 and 4 bytes.
A tag is a keyed hash that stands for a label; stream keys are spread over owner partitions.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec import structs

from workers.mechanisms.about import Data, SketchBytes
from workers.mechanisms.config.durations import length_of
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.counters.line import LineCounter
from workers.mechanisms.ledger import Ledger
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.registry import event_level
from workers.mechanisms.running.sliding import Sliding
from workers.privacy.ceiling import mechanism_of
from workers.privacy.model import (
    AllItems,
    Error,
    HistogramPlan,
    Memory,
    Noise,
    Plan,
    Segment,
    Share,
    Size,
    SumPlan,
    WithoutEpochs,
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
    mean_over_ticks,
    noise_of,
    thresholds_of,
    worst_of_all,
)
from workers.privacy.plan.ranks import rank_choices
from workers.privacy.plan.sums import all_items_plan, sum_plan
from workers.privacy.plan.windows import (
    longest,
    noise_of_window,
    thresholds_of_windows,
    without_epochs,
)
from workers.privacy.total import charge_of, conversion_delta, total_of
from workers.settings.settings import Settings

# Without a list of labels: the numbers of rows for which errors and memory are stated.
SIZES = (1_000, 100_000, 1_000_000)
# How many ranges of values, each with its error bound, are stated of mechanisms with queries.
SEGMENTS = 12
# Without a list of labels: items for which mechanisms are compared.
COMPARED_ITEMS = 1_000


def make_plan(settings: Settings) -> Plan:
    """Plan every histogram, and their total; raise SettingsError if a budget cannot be met."""
    unit = settings.privacy.unit
    plans = []
    charges = []
    for config in settings.histograms:
        mechanism = mechanism_of(config, unit)
        plans.append(plan_of(config, mechanism, settings.output_topic(config), unit))
        charges.append(charge_of(config, mechanism))
    delivery_ms = settings.privacy.delivery_ms
    return Plan(
        worker=settings.worker.name,
        histograms=tuple(plans),
        total=total_of(charges),
        deliver_after_ms=None
        if delivery_ms is None
        else delivery_ms + settings.events.grace_ms,
    )


def plan_of(
    config: HistogramConfig, mechanism: Mechanism, topic: str, unit: str
) -> HistogramPlan:
    """Plan one histogram: guarantee, noise, errors, memory, alternatives and advice.

    `topic` is where it publishes; `unit` is what is protected, "event" or "user".
    """
    # `max_items` becomes the most items of one protected event or user.
    config = event_level(config, unit)
    noise = noise_of(mechanism, config)
    without = None
    if isinstance(mechanism, Sliding):
        without = without_epochs(mechanism, config, topic, unit)
        window = longest(without)
        noise = noise_of_window(noise, window)
        thresholds = thresholds_of_windows(without)
        sums = window.sum
        all_items = window.all_items
    else:
        thresholds = thresholds_of(mechanism, config, noise)
        sums = _sum(mechanism, noise)
        all_items = _all_items(mechanism, noise)
    domain = len(mechanism.domain())
    public = mechanism.public()
    error = _error(config, mechanism, noise)
    counters = tuple(counter_choices(config, mechanism, noise))
    items = domain or COMPARED_ITEMS
    # Only if the mechanism has a counter or can choose one: the setting always has a value.
    counter = None
    if without is not None:
        counter = LineCounter.kind
    elif isinstance(public.get("counter"), dict) or counters:
        counter = config.counter
    plan = HistogramPlan(
        name=config.name,
        mechanism=config.mechanism,
        counter=counter,
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
        thresholds=thresholds,
        sum=sums,
        all_items=all_items,
        without_epochs=without,
        ranks=rank_choices(config, unit),
        error=error,
        memory=_memory(mechanism, config, without),
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
    """Plan the sums of a histogram that has them, from the noise of its counts; else None."""
    numbers = mechanism.config.sum
    curve = mechanism.sum_curve()
    if numbers is None or curve is None:
        return None
    counts = noise.worst_sd, noise.rms_sd
    sums = curve.worst_and_rms(noise.ticks_looked_at)
    return sum_plan(numbers, mechanism.cost().rho, counts, sums)


def _all_items(mechanism: Mechanism, noise: Noise) -> AllItems | None:
    """Plan the count of all items of a stream key, if the histogram publishes it; else None."""
    curve = mechanism.total_curve()
    if curve is None:
        return None
    totals = curve.worst_and_rms(noise.ticks_looked_at)
    return all_items_plan(mechanism.config, mechanism.cost().rho, totals)


def _deltas(mechanism: Mechanism, config: HistogramConfig) -> tuple[Share, ...]:
    """Return the named parts of delta; the rest, "conversion", turns rho into an epsilon.

    A pure epsilon has no such part.
    """
    cost = mechanism.cost()
    named = [Share(name=name, delta=delta) for name, delta in cost.failures]
    if (left := conversion_delta([cost])) > 0 and not config.pure:
        named.append(Share(name="conversion", delta=left))
    return tuple(named)


def _error(config: HistogramConfig, mechanism: Mechanism, noise: Noise) -> Error:
    """Return the expected errors; `noise` is that of the counts whose errors are bounded."""
    beta = config.error_beta
    domain = len(mechanism.domain())
    ticks = noise.ticks_looked_at
    law = mechanism.law
    sd = noise.worst_sd
    sizes: Sequence[int] = ()
    if law in COUNT_LAWS:
        # Only what is shown can be off.
        shown = mechanism.most_shown()
        sizes = (shown,) if shown else SIZES
    data = Data(items=domain or COMPARED_ITEMS, ticks=ticks)
    return Error(
        beta=beta,
        mean_absolute_error=mean_over_ticks(mechanism, ticks),
        worst=tuple(
            Worst(items=n, error=worst_of_all(law, sd, ticks * n, beta)) for n in sizes
        ),
        segments=tuple(
            Segment(segment=number, up_to=value, error=round(error, 4))
            for number, value, error in mechanism.segments_up_to(SEGMENTS)
        ),
        figures=tuple(mechanism.figures(ticks, noise.worst_tick)),
        theorems=mechanism.bounds(beta, data),
    )


def _memory(
    mechanism: Mechanism, config: HistogramConfig, without: WithoutEpochs | None
) -> Memory:
    """Return the bytes per row; without epochs, with what an item keeps for its windows.

    `without` has the windows, None for a histogram with epochs.
    """
    memory = memory_of(mechanism, config)
    if without is None:
        return memory
    kept = sum(window.kept for window in without.windows)
    row = memory.row
    if without.remembered is not None:
        span = length_of(without.remembered * config.tick_ms, up=True)
        row = f"an item of a stream key with an event in the last {span}, shown, or at rest"
    # If users are counted, the mechanism's note says what a user takes.
    kept_by = f"{memory.note}, and" if memory.note else "beside these, an item"
    note = f"{kept_by} keeps 3 bytes or more for each hop with events, up to {kept:,} of them"
    return structs.replace(memory, row=row, note=note)


# All in bytes a row. Of a label, if none are declared:
LABEL_BYTES = 16
# Index: slots of 4 bytes, whose number doubles when three quarters are full. So a row has 4/3 to
# 8/3 of them.
_INDEX_LEAST = 5
_INDEX_MOST = 11
_END = 4  # end offset of a label in the text
_SUM = 8
_DISK_FIXED = 16 + 4 + 2  # tag, key index, length of the label
_DISK_COUNT = 8  # or sum
_DISK_SHOWN = 4
_DISK_TICKS = 16  # of the last event, and of leaving


def memory_of(mechanism: Mechanism, config: HistogramConfig) -> Memory:
    """Return the bytes that a histogram takes per row, in memory and on disk."""
    domain = mechanism.domain()
    label = round(sum(map(len, domain)) / len(domain)) if domain else LABEL_BYTES
    keys = 1 if config.keys == "public" else len(config.keys)
    if (sketches := mechanism.sketch_bytes(label)) is not None:
        return _sketches(sketches, label, keys)
    # Widths are those of the arrays that hold the rows. The index, added below, takes between
    # _INDEX_LEAST and _INDEX_MOST bytes a row; _DISK_... are the parts of a stored row.
    empty = Ledger()
    arrays = (empty.tags, empty.keys, empty.counts, empty.shown)
    columns = sum(
        int(np.prod(array.shape[1:])) * array.dtype.itemsize for array in arrays
    )
    # Labels are one text, with an offset for the end of each.
    columns += _END + label + (_SUM if config.sum is not None else 0)
    extra = mechanism.row_bytes()
    fixed = columns + extra.noise + extra.state
    per_key = keys * extra.per_key
    # Whether rows are dropped after every tick.
    passing = mechanism.about.family == "tick" and not domain
    disk = _DISK_FIXED + label
    # Without epochs, counts are stored by hop (a few ticks), beside the rows: `_memory` notes it.
    if not config.without_epochs:
        disk += _DISK_COUNT + extra.state
        disk += 0 if config.sum is None else _DISK_COUNT
    if not domain:
        disk += _DISK_SHOWN + (_DISK_TICKS if config.without_epochs else 0)
    row = "an item of a stream key that has occurred in the epoch"
    if domain:
        row = "a label of the domain, of each stream key"
    elif passing:
        row = "an item of a tick: nothing is kept from tick to tick"
        disk = 0
    sizes = tuple(
        Size(
            rows=n,
            memory_least=n * (fixed + _INDEX_LEAST) + per_key,
            memory_most=n * (2 * fixed + _INDEX_MOST) + per_key,
            disk=0 if passing else n * disk + per_key,
        )
        for n in ((len(domain) * keys,) if domain else SIZES)
    )
    return Memory(
        row=row,
        label_bytes=label,
        columns_per_row=columns,
        index_per_row=_INDEX_LEAST,
        noise_per_row=extra.noise,
        state_per_row=extra.state,
        disk_per_row=disk,
        rows_most=len(domain) or None,
        per_key=extra.per_key,
        sizes=sizes,
        note=extra.note,
    )


def _sketches(sketch: SketchBytes, label: int, keys: int) -> Memory:
    """Return the bytes of sketches, one per stream key, whose size does not depend on the items.

    `label` is the length of a label in bytes, `keys` the number of stream keys.
    """
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
