"""Alternatives at the same settings and budget: other counters, and other mechanisms.

`noise.KINDS` lists mechanisms for the same or a similar question. Each row names the settings
assumed because this histogram lacks them. `error` bounds the error of every count (of an order
statistic: every answer in its first segment) with probability 1 - beta, for `items` labels.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from workers.mechanisms.config.histogram import (
    END_MECHANISMS,
    SQRT_HORIZON_MAX,
    SQRT_MECHANISMS,
    HistogramConfig,
    UnkBaseConfig,
)
from workers.mechanisms.counters.counter import CounterMechanism, make_counter
from workers.mechanisms.counters.tree import best_radix, default_radix
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.order_statistics.config import MaxConfig
from workers.mechanisms.order_statistics.engine import OrderStatistics
from workers.mechanisms.registry import MECHANISMS, build, protects_users
from workers.privacy.plan.memory import cache_bytes, memory_of
from workers.privacy.plan.model import Alternative, CounterChoice, Noise
from workers.privacy.plan.noise import (
    CONSTANT_MOST,
    COUNT_LAWS,
    KINDS,
    DigitCurve,
    alternatives_to,
    blocks_of,
    curve,
    curve_of,
    last_tick,
    noise_of,
    thresholds_of,
    worst_and_rms,
    worst_of_all,
)

TOP_K = 10
SWITCHES = 20
SIZE = 1_000
KBAR = 100
C_MAX = 1_000_000
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
_SINGLE = ("max", "argmax", "min", "quantile")


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
    if isinstance(config, UnkBaseConfig):
        for assumed in _schedules(config):
            changed = structs.replace(config, **({"every": None} | assumed))
            yield _built(case, changed, assumed)
    for name in alternatives_to(config.mechanism):
        if name != config.mechanism:
            for assumed in _assumed(case, name):
                yield _alternative(case, name, assumed)


def _assumed(case: _Case, name: str) -> Iterator[Assumed]:
    """Yield settings of `name` beyond the shared ones, from this histogram if possible."""
    own = case.config
    labels = len(case.domain)
    k = getattr(own, "top_k", None) or getattr(own, "k", None) or TOP_K
    if name in ("known_gumbel", "sparse_gumb") and labels:
        k = max(1, min(k, labels if name == "known_gumbel" else labels - 1))
    kbar = getattr(own, "kbar", None)
    kbar = kbar if isinstance(kbar, int) else max(KBAR, k)
    if KINDS[name].family == "statistic":
        given: Assumed = {"query": _query(own)}
        if name == "two_level_k":
            given = {"queries": (_query(own),)}
        if name == "bounded_max":
            given["c_max"] = C_MAX
        if getattr(own, "accounting", "zcdp") == "pure":
            given["accounting"] = "zcdp"
        yield given
        return
    needed: dict[str, Assumed] = {
        "misra_gries": {"size": SIZE},
        "sparse_gumb": {"top_k": k, "switches": SWITCHES},
        "meta": {"algorithm": "known_gauss" if labels else "positive_gauss"},
        "known_gumbel": {"k": k},
        "limit_dom": {"k": k, "kbar": max(kbar, k)},
        "unk_gauss": {"kbar": kbar},
        "limit_dom_laplace": {"kbar": kbar},
    }
    yield needed.get(name, {})
    if name == "misra_gries" and labels and own.epsilon is not None:
        yield {"size": min(KBAR, labels), "release": "pure"}


def _query(config: HistogramConfig) -> str:
    queries = config.asked if isinstance(config, MaxConfig) else ()
    return next(
        (query for query in queries if query.partition(":")[0] in _SINGLE), "max"
    )


def _alternative(case: _Case, name: str, assumed: Assumed) -> Alternative:
    kind = MECHANISMS[name]
    values = {field: getattr(case.config, field) for field in _COMMON} | assumed
    if name in END_MECHANISMS:
        values["end_share"] = case.config.end_share
    needs_domain = "domain" in kind.__struct_fields__
    reason = ""
    if name in ("meta", "misra_gries"):  # only some of their variants
        needs_domain = "known_gauss" in assumed.values() or "pure" in assumed.values()
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
    if case.config.max_items_per_user is not None and not protects_users(config):
        reason = 'not with privacy.unit = "user": one user takes part in many releases'
        return _impossible(name, assumed, reason)
    return _built(case, config, assumed, reason)


def _schedules(config: UnkBaseConfig) -> Iterator[Assumed]:
    ticks = last_tick(config)
    if config.threshold != "per_tick":
        yield {"threshold": "per_tick"}
    solvable = config.horizon_ticks is not None and ticks <= CONSTANT_MOST
    if config.threshold != "constant" and solvable:
        yield {"threshold": "constant"}
    every = 1 << max(0, (ticks.bit_length() - 1) // 2)
    if config.threshold != "every" and every > 1:
        yield {"threshold": "every", "every": every}


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
    error: float | None = None
    if isinstance(mechanism, OrderStatistics):
        error = mechanism.error(1)
    elif counts:
        values = noise.ticks_looked_at * case.items
        error = worst_of_all(mechanism.law, noise.worst_sd, values, case.beta)
    thresholds = thresholds_of(mechanism, config, noise)
    return Alternative(
        mechanism=config.mechanism,
        chosen=chosen,
        possible=not reason,
        assumed=assumed,
        answers=KINDS[config.mechanism].answers,
        reason=reason,
        worst_sd=noise.worst_sd if counts else None,
        rms_sd=noise.rms_sd if counts else None,
        threshold=None if thresholds is None else thresholds.most,
        error=error,
    )


def _impossible(name: str, assumed: Assumed, reason: object) -> Alternative:
    # Strip the histogram's name from the message.
    why = str(reason).partition("': ")[2] or str(reason)
    answers = KINDS[name].answers
    return Alternative(
        mechanism=name, possible=False, assumed=assumed, answers=answers, reason=why
    )


def counter_choices(
    config: HistogramConfig, mechanism: Mechanism, noise: Noise
) -> Iterator[CounterChoice]:
    """Yield every possible counter, the one in use first; `config` has D0 in `max_items`."""
    if blocks := blocks_of(mechanism):
        yield from _blocks(config, blocks, noise)
    elif isinstance(mechanism, OrderStatistics):
        if mechanism.inner is not None and not config.pure:
            yield from _intervals(config, mechanism)
    elif isinstance(mechanism, CounterMechanism):
        yield from _running(config, mechanism, noise, mechanism.rho_item)


def _running(
    config: HistogramConfig, mechanism: Mechanism, noise: Noise, rho_item: float
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
        else:
            other = make_counter(kind, ticks, rho_item, radix)
            worst, rms = worst_and_rms(curve_of(other.public()), noise.ticks_looked_at)
            # sparse_gumb redraws noise for the few items it shows.
            held = 0 if config.mechanism == "sparse_gumb" else cache_bytes(other)
        times = worst / noise.worst_sd
        yield structs.replace(
            choice, worst_sd=worst, rms_sd=rms, times_worst=times, noise_per_row=held
        )


def _why_not_sqrt(config: HistogramConfig) -> str:
    if config.mechanism not in SQRT_MECHANISMS:
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
            worst, rms = worst_and_rms(curve(other, last), last)
        yield CounterChoice(
            counter="tree",
            radix=radix,
            chosen=radix == own,
            worst_sd=worst,
            rms_sd=rms,
            times_worst=worst / noise.worst_sd,
        )


def _intervals(
    config: HistogramConfig, mechanism: OrderStatistics
) -> Iterator[CounterChoice]:
    own = (config.counter, config.radix)
    for kind, radix in dict.fromkeys([own, ("lifted", None), ("tree", None)]):
        chosen = (kind, radix) == own
        other = (
            mechanism
            if chosen
            else build(structs.replace(config, counter=kind, radix=radix))
        )
        if isinstance(other, OrderStatistics):
            yield CounterChoice(
                counter=kind,
                radix=radix,
                chosen=chosen,
                error=other.error(1),
                times_worst=other.error(1) / mechanism.error(1),
            )
