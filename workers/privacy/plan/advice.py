"""Advice derived from a plan's figures: when another mechanism, counter or `end_share` is better.

`end_share` trades noise at other ticks for less noise at an epoch's last tick, at the same cost.
The recommended share is the largest one with at most a third more noise at the worst tick than
without any, if it takes at least a twentieth off the last tick. Only the operator knows whether the
last tick matters.
"""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

from msgspec import structs

from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.registry import MECHANISMS, build
from workers.privacy.model import (
    Alternative,
    CounterChoice,
    EndChoice,
    HistogramPlan,
    Noise,
)
from workers.privacy.plan.noise import buckets_of

SHARES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
_WORST_RATIO_MAX = Fraction(4, 3)
_WORTHWHILE = 0.95
_SEGMENTS_MOST = 64


def end_choices(
    config: HistogramConfig, mechanism: Mechanism, unit: str
) -> tuple[EndChoice, ...]:
    """Return the effect of each share, none first; `config` has D0 in `max_items`."""
    last = config.horizon_ticks
    if not config.can_end or last is None or last == 1:
        return ()
    own = config.end_share
    shares = [None, *sorted({*SHARES, *(() if own is None else (own,))})]
    rows = list(_rows(config, mechanism, unit, shares, last))
    best = _best(rows)
    return tuple(structs.replace(row, recommended=row is best) for row in rows)


def _rows(
    config: HistogramConfig,
    mechanism: Mechanism,
    unit: str,
    shares: Sequence[float | None],
    last: int,
) -> Iterator[EndChoice]:
    quick = config.with_quick_thresholds()
    slow = quick is not config
    for share in shares:
        changed = structs.replace(quick, end_share=share)
        chosen = share == config.end_share
        try:
            one = mechanism if chosen else build(changed, unit)
        except ValueError:
            continue  # more noise than any table covers
        counter = one.public()["counter"]
        offset = counter.get("offset", 0) if isinstance(counter, dict) else 0
        variance = one.curve(last)
        worst, rms = variance.worst_and_rms(last)
        threshold = None if slow else one.threshold(last)
        yield EndChoice(
            end_share=share,
            chosen=chosen,
            recommended=False,
            offset=offset,
            worst_sd=worst,
            rms_sd=rms,
            last_sd=one.sd(last),
            last_threshold=None if threshold is None else float(threshold),
            curve=buckets_of(variance, last),
        )


def _best(rows: Sequence[EndChoice]) -> EndChoice | None:
    none = next((row for row in rows if row.end_share is None), None)
    if none is None:
        return None
    most = none.worst_sd * math.nextafter(float(_WORST_RATIO_MAX), 2)
    near = [row for row in rows if row.end_share is not None and row.worst_sd <= most]
    best = min(near, key=lambda row: row.last_sd, default=None)
    return (
        best
        if best is not None and best.last_sd <= _WORTHWHILE * none.last_sd
        else None
    )


def advice(
    config: HistogramConfig, mechanism: Mechanism, plan: HistogramPlan
) -> Iterator[str]:
    """Yield one sentence for each conclusion; `config` has D0 in `max_items`."""
    others = plan.mechanisms
    yield from _counter(plan.counters)
    yield from _end(plan.ends)
    family = config.about.family
    if family == "statistic":
        yield from _statistic(mechanism, others)
    if family == "running":
        yield from _running(config, mechanism, others)
    if family == "tick":
        yield from _tick(mechanism, plan.noise, others)
    yield from _schedule(others)


def _counter(counters: Sequence[CounterChoice]) -> Iterator[str]:
    usable = [c for c in counters[1:] if c.possible and c.times_worst is not None]
    best = min(usable, key=lambda c: c.times_worst or 1.0, default=None)
    if best is not None and (times := best.times_worst or 1.0) < _WORTHWHILE:
        name = f'counter = "{best.counter}"' + (
            f", radix = {best.radix}" if best.radix else ""
        )
        what = "the error promised" if best.error is not None else "the worst noise"
        held = ""
        if best.counter == "sqrt" and best.noise_per_row:
            held = f", at {best.noise_per_row:,} bytes an item"
        yield f"{name} would give {100 * times:.0f} % of {what}{held}."


def _end(ends: Sequence[EndChoice]) -> Iterator[str]:
    own = next((row for row in ends if row.chosen and row.end_share is None), None)
    named = next((row for row in ends if row.recommended), None)
    if own is not None and named is not None:
        yield (
            f"If you keep only the last counts of an epoch: end_share = {named.end_share} would give the last tick "
            f"{100 * named.last_sd / own.last_sd:.0f} % of its noise, and the worst tick {100 * named.worst_sd / own.worst_sd:.0f} %."
        )


def _plain(
    others: Sequence[Alternative], *, listed: bool | None = None
) -> list[Alternative]:
    """Return the rows of plain counters, for listed labels or for others; None: for any."""
    return [
        row
        for row in others
        if (kind := MECHANISMS[row.mechanism]).about.plain
        and listed in (None, kind.lists_labels(row.assumed))
    ]


def _statistic(mechanism: Mechanism, others: Sequence[Alternative]) -> Iterator[str]:
    rows = [row for row in _plain(others, listed=True) if row.error is not None]
    if not rows:
        return
    counts = rows[0].error or 0.0
    name = rows[0].mechanism
    own = mechanism.first_error() or 0.0
    if own >= counts:
        yield (
            f"Not worth it here: {name} is off by at most {counts:,.0f} in any count, so also in its maximum, where this "
            f"promises {own:,.0f} at best. Order statistics pay only where values stay tiny against the horizon."
        )
        return
    below = [
        value
        for _, value, error in mechanism.segments_up_to(_SEGMENTS_MOST)
        if error < counts
    ]
    if not below:
        yield f"Worth it up to c_max: {name} is off by up to {counts:,.0f} in a count, this by {own:,.0f}."
        return
    yield (
        f"Worth it while the value stays below about {below[-1]:,}: {name} is "
        f"off by up to {counts:,.0f} in a count, and from there on less than this."
    )


def _running(
    config: HistogramConfig, mechanism: Mechanism, others: Sequence[Alternative]
) -> Iterator[str]:
    own = others[0].error
    listed = bool(mechanism.domain())
    possible = (row for row in _plain(others, listed=listed) if row.possible)
    plain = next((row for row in possible if row.error), None)
    if config.pays and own and plain and plain.error and plain.error < own:
        yield (
            f"{plain.mechanism} has {100 * plain.error / own:.0f} % of this noise at the same budget; "
            f"{config.mechanism} {config.pays}."
        )
    yield from mechanism.hints()
    if config.about.plain and not listed:
        for row in _plain(others, listed=True):
            if row.worst_sd is not None:
                yield f"With a list of labels, {row.mechanism} would show them all, without a threshold; worst sd {row.worst_sd:,.3g}."
    if config.horizon_ticks is None:
        yield "An epoch without an end has more noise at every length than one of that length; counts never restart."


def _tick(
    mechanism: Mechanism, noise: Noise, others: Sequence[Alternative]
) -> Iterator[str]:
    running = [row for row in _plain(others) if row.possible and row.worst_sd]
    yield "Each tick by itself: horizon does not change the noise. Adding up n snapshots has noise of sqrt(n) times the sd."
    if running and running[0].worst_sd:
        ticks = (running[0].worst_sd / noise.worst_sd) ** 2
        if ticks < noise.ticks_looked_at:
            yield f"For sums over more than {ticks:,.0f} ticks the running counts of {running[0].mechanism} have less noise."
    gauss = mechanism.about.gaussian_like
    row = next((row for row in others if row.mechanism == gauss), None)
    if row is None or not row.worst_sd:
        return
    less = row.worst_sd / noise.worst_sd
    if mechanism.law == "laplace" and less < 1:
        yield f"{gauss} does the same with {100 * less:.0f} % of the noise, and a lower threshold."
    elif row.possible and less < 1:
        yield f"{gauss} has {100 * less:.0f} % of this noise; a top k pays where max_items is above 2 k."


def _schedule(others: Sequence[Alternative]) -> Iterator[str]:
    own = others[0].threshold
    rows = [
        row
        for row in others[1:]
        if row.mechanism == others[0].mechanism and row.threshold is not None
    ]
    best = min(rows, key=lambda row: row.threshold or 0.0, default=None)
    if (
        best is not None
        and own is not None
        and best.threshold is not None
        and best.threshold < own
    ):
        named = ", ".join(f"{name} = {value}" for name, value in best.assumed.items())
        yield f"{named} would bring the highest threshold from {own:,.0f} down to {best.threshold:,.0f}."
