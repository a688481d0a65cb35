"""Alternatives at the same settings and budget: other counters, and other mechanisms.

Mechanisms of one family are for the same or a similar question. Each row names the settings
assumed because this histogram lacks them. `error` bounds the error of every count (of an order
statistic: every answer in its first segment) with probability 1 - beta, for `items` labels.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from workers.mechanisms.config.histogram import SQRT_HORIZON_MAX, HistogramConfig
from workers.mechanisms.counters.tree import best_radix, default_radix
from workers.mechanisms.curves import DigitCurve
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.registry import MECHANISMS, build
from workers.privacy.model import Alternative, CounterChoice, Noise
from workers.privacy.plan.memory import memory_of
from workers.privacy.plan.noise import (
    COUNT_LAWS,
    alternatives_to,
    last_tick,
    noise_of,
    thresholds_of,
    worst_of_all,
)

_COMMON: tuple[str, ...] = (
    "name",
    "tick_ms",
    "horizon",
    "start",
    "max_items",
    "max_count",
)
_COMMON += ("epsilon", "rho", "delta", "keys", "generation")
Assumed = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Case:
    config: HistogramConfig
    unit: str
    domain: tuple[str, ...]
    noise: Noise
    items: int
    beta: float


def alternatives(
    config: HistogramConfig,
    mechanism: Mechanism,
    noise: Noise,
    unit: str,
    items: int,
    beta: float,
) -> Iterator[Alternative]:
    """Yield the mechanism in use first, then others; `config` has D0 in `max_items`."""
    domain = tuple(getattr(config, "domain", None) or ())
    case = _Case(config, unit, domain, noise, items, beta)
    yield _row(case, config, {}, mechanism)
    for assumed in config.other_schedules(last_tick(config)):
        changed = structs.replace(config, **({"every": None} | assumed))
        yield _built(case, changed, assumed)
    for name in alternatives_to(config.mechanism):
        if name != config.mechanism:
            for assumed in MECHANISMS[name].beside(config):
                yield _alternative(case, name, assumed)


def _alternative(case: _Case, name: str, assumed: Assumed) -> Alternative:
    kind = MECHANISMS[name]
    values = {field: getattr(case.config, field) for field in _COMMON} | assumed
    if kind.about.ends:
        values["end_share"] = case.config.end_share
    needs_domain = kind.lists_labels(assumed)
    reason = ""
    if needs_domain:
        values["domain"] = case.domain
    if needs_domain and not case.domain:
        # Their noise does not depend on the list, so any list that is long enough works.
        reason = "needs a list of labels: domain, domain_file or buckets"
        count = 1 + int(assumed.get("top_k") or assumed.get("k") or 1)
        values["domain"] = tuple(f"label {i}" for i in range(count))
    try:
        config = kind(**values)
    except ValueError as error:
        return _impossible(name, assumed, error)
    if case.config.max_items_per_user is not None and not config.protects_users:
        reason = 'not with privacy.unit = "user": one user takes part in many releases'
        return _impossible(name, assumed, reason)
    return _built(case, config, assumed, reason)


def _built(
    case: _Case, config: HistogramConfig, assumed: Assumed, why: str = ""
) -> Alternative:
    try:
        mechanism = build(config, case.unit)
    except ValueError as error:
        return _impossible(config.mechanism, assumed, error)
    return _row(case, config, assumed, mechanism, why)


def _row(
    case: _Case,
    config: HistogramConfig,
    assumed: Assumed,
    mechanism: Mechanism,
    reason: str = "",
) -> Alternative:
    chosen = config is case.config
    counts = mechanism.law in COUNT_LAWS
    noise = case.noise if chosen else noise_of(mechanism, config)
    error = mechanism.first_error()
    if counts:
        values = noise.ticks_looked_at * case.items
        error = worst_of_all(mechanism.law, noise.worst_sd, values, case.beta)
    thresholds = thresholds_of(mechanism, config, noise)
    return Alternative(
        mechanism=config.mechanism,
        chosen=chosen,
        possible=not reason,
        assumed=assumed,
        answers=config.about.answers,
        reason=reason,
        worst_sd=noise.worst_sd if counts else None,
        rms_sd=noise.rms_sd if counts else None,
        threshold=None if thresholds is None else thresholds.most,
        error=error,
    )


def _impossible(name: str, assumed: Assumed, reason: object) -> Alternative:
    # Strip the histogram's name from the message.
    why = str(reason).partition("': ")[2] or str(reason)
    answers = MECHANISMS[name].about.answers
    return Alternative(
        mechanism=name, possible=False, assumed=assumed, answers=answers, reason=why
    )


def counter_choices(
    config: HistogramConfig, mechanism: Mechanism, noise: Noise
) -> Iterator[CounterChoice]:
    """Yield every possible counter, the one in use first; `config` has D0 in `max_items`."""
    first_error = mechanism.first_error()
    if blocks := mechanism.blocks():
        yield from _blocks(config, blocks, noise)
    elif not config.about.counters or config.pure:
        return
    elif first_error is not None:
        yield from _intervals(config, mechanism, first_error)
    else:
        yield from _running(config, mechanism, noise)


def _running(
    config: HistogramConfig, mechanism: Mechanism, noise: Noise
) -> Iterator[CounterChoice]:
    ticks = config.horizon_ticks
    best = default_radix(config.horizon_ticks)
    kinds = [("lifted", None), ("tree", best), ("tree", 2), ("sqrt", None)]
    own = (config.counter, (config.radix or best) if config.counter == "tree" else None)
    for kind, radix in dict.fromkeys([own, *kinds]):
        choice = CounterChoice(counter=kind, radix=radix, chosen=(kind, radix) == own)
        if kind == "sqrt" and (reason := _why_not_sqrt(config)):
            choice = structs.replace(choice, possible=False, reason=reason)
        if choice.chosen:
            worst = noise.worst_sd
            rms = noise.rms_sd
            held = memory_of(mechanism, config).noise_per_row
        elif kind == "sqrt" and (ticks is None or ticks > SQRT_HORIZON_MAX):
            yield choice
            continue
        elif other := mechanism.other_counter(kind, radix):
            variance, held = other
            worst, rms = variance.worst_and_rms(noise.ticks_looked_at)
        else:
            continue
        times = worst / noise.worst_sd
        yield structs.replace(
            choice, worst_sd=worst, rms_sd=rms, times_worst=times, noise_per_row=held
        )


def _why_not_sqrt(config: HistogramConfig) -> str:
    if "sqrt" not in config.about.counters:
        return "only where labels are declared: an item that comes later would be caught up from tick 1"
    if config.horizon_ticks is None or config.horizon_ticks > SQRT_HORIZON_MAX:
        return f"only for a horizon of at most {SQRT_HORIZON_MAX:,} ticks"
    return ""


def _blocks(
    config: HistogramConfig, blocks: DigitCurve, noise: Noise
) -> Iterator[CounterChoice]:
    last = noise.ticks_looked_at
    own = blocks.radix
    for radix in dict.fromkeys((own, best_radix(last), 2, 4, 16)):
        if radix == own:
            worst = noise.worst_sd
            rms = noise.rms_sd
        elif radix > last:
            continue
        else:
            try:
                other = build(structs.replace(config, radix=radix))
            except ValueError:
                continue
            worst, rms = other.curve(last).worst_and_rms(last)
        yield CounterChoice(
            counter="tree",
            radix=radix,
            chosen=radix == own,
            worst_sd=worst,
            rms_sd=rms,
            times_worst=worst / noise.worst_sd,
        )


def _intervals(
    config: HistogramConfig, mechanism: Mechanism, first_error: float
) -> Iterator[CounterChoice]:
    own = (config.counter, config.radix)
    for kind, radix in dict.fromkeys([own, ("lifted", None), ("tree", None)]):
        other = mechanism
        if (kind, radix) != own:
            other = build(structs.replace(config, counter=kind, radix=radix))
        error = other.first_error() or 0.0
        yield CounterChoice(
            counter=kind,
            radix=radix,
            chosen=(kind, radix) == own,
            error=error,
            times_worst=error / first_error,
        )
