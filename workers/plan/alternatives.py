"""The mechanisms for the same question, or a near one, from the same settings and budget.

Which those are is in `kinds`. Settings that another mechanism needs and this histogram does not
have are assumed, and named in the row. `error` bounds that of every count (of an order statistic:
of every answer while it is in its first segment) with probability 1 - beta, for `items` labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from workers.mechanisms.config import END_MECHANISMS, HistogramConfig, UnkBaseConfig
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.order_statistics.config import MaxConfig
from workers.mechanisms.order_statistics.engine import OrderStatistics
from workers.mechanisms.registry import MECHANISMS, build, protects_users
from workers.plan.kinds import KINDS, near
from workers.plan.model import Alternative, Noise
from workers.plan.noise import COUNT_LAWS, last_tick, noise_of, thresholds_of, worst_of_all

TOP_K, SWITCHES, SIZE, KBAR, C_MAX = 10, 20, 1_000, 100, 1_000_000
# A constant threshold is solved from every tick: 0.1 s at this horizon (measured).
_CONSTANT_MOST = 1 << 16
_COMMON = (
    "name", "tick_ms", "horizon", "start", "max_items", "max_count", "epsilon", "rho", "delta", "keys", "generation",
)  # fmt: skip
_SINGLE = ("max", "argmax", "min", "quantile")


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a histogram says that others can use; `users` is whether users are protected."""

    config: HistogramConfig
    unit: str
    users: bool
    domain: tuple[str, ...]
    items: int
    beta: float


def alternatives(
    config: HistogramConfig, mechanism: Mechanism, noise: Noise, unit: str, items: int, beta: float
) -> Iterator[Alternative]:
    """Yield the mechanism in use first, then others.

    Args:
        config: with D0 in `max_items` (`registry.in_events`).
        mechanism: built from it.
        noise: its noise.
        unit: whose presence is hidden.
        items: labels that errors are stated for.
        beta: failure probability of the errors.
    """
    domain = tuple(getattr(config, "domain", None) or ())
    asked = _Asked(config, unit, config.max_items_per_user is not None, domain, items, beta)
    yield _row(asked, config, {}, mechanism, noise, chosen=True)
    if isinstance(config, UnkBaseConfig):
        for assumed in _schedules(config):
            changed = msgspec.structs.replace(config, **({"every": None} | assumed))
            yield _built(asked, changed, assumed)
    for name in near(config.mechanism):
        if name != config.mechanism:
            for assumed in _assumed(asked, name):
                yield _alternative(asked, name, assumed)


def _assumed(asked: _Asked, name: str) -> Iterator[dict[str, Any]]:
    """Yield settings of `name` that the shared ones do not give, as this histogram has them."""
    own, labels = asked.config, len(asked.domain)
    k = getattr(own, "top_k", None) or getattr(own, "k", None) or TOP_K
    if name in ("known_gumbel", "sparse_gumb") and labels:
        k = max(1, min(k, labels if name == "known_gumbel" else labels - 1))
    kbar = getattr(own, "kbar", None)
    kbar = kbar if isinstance(kbar, int) else max(KBAR, k)
    if KINDS[name].family == "statistic":
        given: dict[str, Any] = {"queries": (_query(own),)} if name == "two_level_k" else {"query": _query(own)}
        if name == "bounded_max":
            given["c_max"] = C_MAX
        if getattr(own, "accounting", "zcdp") == "pure":
            given["accounting"] = "zcdp"
        yield given
        return
    needed: dict[str, dict[str, Any]] = {
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
    return next((query for query in queries if query.partition(":")[0] in _SINGLE), "max")


def _alternative(asked: _Asked, name: str, assumed: dict[str, Any]) -> Alternative:
    kind = MECHANISMS[name]
    values = {field: getattr(asked.config, field) for field in _COMMON} | assumed
    if name in END_MECHANISMS:
        values["end_share"] = asked.config.end_share
    optional = name in ("meta", "misra_gries")
    needs_domain = "domain" in kind.__struct_fields__ and (
        not optional or assumed.get("algorithm") == "known_gauss" or assumed.get("release") == "pure"
    )
    reason = ""
    if needs_domain:
        values["domain"] = asked.domain
    if needs_domain and not asked.domain:
        # The noise of these does not depend on the list: figures for one that is long enough.
        reason = "needs a list of labels: domain, domain_file or buckets"
        values["domain"] = tuple(f"label {i}" for i in range(1 + int(assumed.get("top_k", assumed.get("k", 1)))))
    try:
        config = kind(**values)
    except ValueError as error:
        return _without(name, assumed, error)
    if asked.users and not protects_users(config):
        return _without(
            name, assumed, 'not with privacy.unit = "user": one user takes part in many releases'
        )
    return _built(asked, config, assumed, reason)


def _schedules(config: UnkBaseConfig) -> Iterator[dict[str, Any]]:
    """Yield the other ways to spread discovery over the ticks."""
    ticks = last_tick(config)
    if config.threshold != "per_tick":
        yield {"threshold": "per_tick"}
    if config.threshold != "constant" and config.horizon_ticks is not None and ticks <= _CONSTANT_MOST:
        yield {"threshold": "constant"}
    every = 1 << max(0, (ticks.bit_length() - 1) // 2)
    if config.threshold != "every" and every > 1:
        yield {"threshold": "every", "every": every}


def _built(asked: _Asked, config: HistogramConfig, assumed: dict[str, Any], reason: str = "") -> Alternative:
    try:
        mechanism = build(config, asked.unit)
    except ValueError as error:
        return _without(config.mechanism, assumed, error)
    return _row(asked, config, assumed, mechanism, noise_of(mechanism, config), chosen=False, reason=reason)


def _row(
    asked: _Asked,
    config: HistogramConfig,
    assumed: dict[str, Any],
    mechanism: Mechanism,
    noise: Noise,
    *,
    chosen: bool,
    reason: str = "",
) -> Alternative:
    counts = mechanism.law in COUNT_LAWS
    error: float | None = None
    if isinstance(mechanism, OrderStatistics):
        error = mechanism.error(1)
    elif counts:
        error = worst_of_all(mechanism.law, noise.worst_sd, noise.ticks_looked_at * asked.items, asked.beta)
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


def _without(name: str, assumed: dict[str, Any], reason: object) -> Alternative:
    # A refusal, without the histogram that it begins with.
    said = str(reason).partition("': ")[2] or str(reason)
    return Alternative(
        mechanism=name, chosen=False, possible=False, assumed=assumed, answers=KINDS[name].answers, reason=said,
    )  # fmt: skip
