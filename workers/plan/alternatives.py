"""The mechanisms that answer the same question, or a near one, at the same budget: built from the same settings with another name.

    running     counts since the epoch began        known_base unk_base sparse_gumb misra_gries meta
    tick        each tick's own counts              known_gauss known_gumbel positive_* unk_gauss limit_dom*
    labels      labels of the largest, now and then pay_what_you_get
    statistic   order statistics of running counts  bounded_max doubling two_level two_level_k

Settings that another mechanism needs and this histogram does not have are assumed, and named in the row. `error` is what no count (of
an order statistic: no answer while it is in its first segment) is off by, with probability 1 - beta, for `items` labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from workers.mechanisms.config import HistogramConfig, UnkBaseConfig
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.order_statistics.config import MaxConfig
from workers.mechanisms.order_statistics.engine import OrderStatistics
from workers.mechanisms.registry import MECHANISMS, build, protects_users
from workers.plan.model import Alternative, Noise
from workers.plan.noise import Figures, last_tick, law, noise_of, thresholds_of, worst_of_all
from workers.plan.untabled import untabled

RUNNING = ("known_base", "unk_base", "sparse_gumb", "misra_gries", "meta")
TICK = (
    "known_gauss", "known_gumbel", "positive_gauss", "positive_laplace", "unk_gauss", "limit_dom", "limit_dom_laplace",
)  # fmt: skip
STATISTIC = ("bounded_max", "doubling", "two_level", "two_level_k")
ANSWERS = {
    "known_base": "running counts of every declared label",
    "unk_base": "running counts of labels that passed the threshold",
    "sparse_gumb": "running counts of a top k of declared labels",
    "misra_gries": "running counts of frequent labels, too low by up to a share of all",
    "meta": "running counts as sums of one-shot releases",
    "known_gauss": "each tick's counts of every declared label",
    "known_gumbel": "each tick's top k of declared labels",
    "positive_gauss": "each tick's counts above the threshold",
    "positive_laplace": "each tick's counts above the threshold",
    "unk_gauss": "each tick's counts clearly above the (kbar + 1)-th",
    "limit_dom_laplace": "each tick's counts clearly above the (kbar + 1)-th",
    "limit_dom": "each tick's top k, fewer where they are not clear",
    "pay_what_you_get": "labels of the largest so far, without counts",
    "bounded_max": "one order statistic, a bound on it known",
    "doubling": "one order statistic, its order of magnitude",
    "two_level": "one order statistic, no bound known",
    "two_level_k": "several order statistics",
}
TOP_K, SWITCHES, SIZE, KBAR, C_MAX = 10, 20, 1_000, 100, 1_000_000
# A constant threshold is solved from every tick: 0.1 s at this horizon (measured).
_CONSTANT_MOST = 1 << 16
_COMMON = (
    "name", "tick_ms", "horizon", "start", "max_items", "max_count", "epsilon", "rho", "delta", "keys", "generation",
)  # fmt: skip
_SINGLE = ("max", "argmax", "min", "quantile")


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a histogram says that others can use.

    Attributes:
        config: with D0 in `max_items`.
        unit: whose presence is hidden.
        users: whether users are protected.
        domain: the declared labels, empty where there are none.
        items: labels that errors are stated for.
        beta: failure probability of the errors.
    """

    config: HistogramConfig
    unit: str
    users: bool
    domain: tuple[str, ...]
    items: int
    beta: float


def alternatives(
    config: HistogramConfig, mechanism: Mechanism, noise: Noise, unit: str, items: int, beta: float
) -> Iterator[Alternative]:
    """The mechanism in use first, then others.

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
        yield from _schedules(asked, config)
    for name in _near(config.mechanism):
        if name == config.mechanism:
            continue
        for assumed in _assumed(asked, name):
            yield _alternative(asked, name, assumed)


def _near(name: str) -> tuple[str, ...]:
    if name in RUNNING:
        return RUNNING
    if name in TICK:
        return (*TICK, "unk_base", "known_base")
    if name in STATISTIC:
        return (*STATISTIC, "known_base")
    return ("unk_base", "sparse_gumb", "misra_gries", "limit_dom")


def _assumed(asked: _Asked, name: str) -> Iterator[dict[str, Any]]:
    """Settings of `name` that the shared ones do not give, kept where this histogram has one of that name."""
    own = asked.config
    labels = len(asked.domain)
    k = getattr(own, "top_k", None) or getattr(own, "k", None) or TOP_K
    if name in ("known_gumbel", "sparse_gumb") and labels:
        k = max(1, min(k, labels if name == "known_gumbel" else labels - 1))
    kbar = getattr(own, "kbar", None)
    kbar = kbar if isinstance(kbar, int) else max(KBAR, k)
    if name == "misra_gries":
        yield {"size": SIZE}
        if labels and own.epsilon is not None:
            yield {"size": min(KBAR, labels), "release": "pure"}
    elif name == "sparse_gumb":
        yield {"top_k": k, "switches": SWITCHES}
    elif name == "meta":
        yield {"algorithm": "known_gauss" if labels else "positive_gauss"}
    elif name == "known_gumbel":
        yield {"k": k}
    elif name == "limit_dom":
        yield {"k": k, "kbar": max(kbar, k)}
    elif name in ("unk_gauss", "limit_dom_laplace"):
        yield {"kbar": kbar}
    elif name in STATISTIC:
        given: dict[str, Any] = {"queries": (_query(own),)} if name == "two_level_k" else {"query": _query(own)}
        if name == "bounded_max":
            given["c_max"] = C_MAX
        if getattr(own, "accounting", "zcdp") == "pure":
            given["accounting"] = "zcdp"
        yield given
    else:
        yield {}


def _query(config: HistogramConfig) -> str:
    queries = config.asked if isinstance(config, MaxConfig) else ()
    return next((query for query in queries if query.partition(":")[0] in _SINGLE), "max")


def _alternative(asked: _Asked, name: str, assumed: dict[str, Any]) -> Alternative:
    kind = MECHANISMS[name]
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    values = {field: getattr(asked.config, field) for field in _COMMON} | assumed
    optional = name in ("meta", "misra_gries")
    needs_domain = "domain" in fields and (
        not optional or assumed.get("algorithm") == "known_gauss" or assumed.get("release") == "pure"
    )
    reason = ""
    if needs_domain:
        values["domain"] = asked.domain
    if needs_domain and not asked.domain:
        # The noise of these does not depend on the list: figures for one that is long enough.
        reason = "needs a list of labels: domain or domain_file"
        values["domain"] = tuple(f"label {i}" for i in range(1 + int(assumed.get("top_k", assumed.get("k", 1)))))
    try:
        config = kind(**values)
        if asked.users and not protects_users(config):
            return _without(name, assumed, 'not with privacy.unit = "user": one user takes part in many releases')
        mechanism = untabled(config) or build(config, asked.unit)
    except ValueError as error:
        return _without(name, assumed, _short(str(error)))
    return _row(asked, config, assumed, mechanism, noise_of(mechanism, config), chosen=False, reason=reason)


def _schedules(asked: _Asked, config: UnkBaseConfig) -> Iterator[Alternative]:
    """The other ways to spread discovery over the ticks."""
    ticks = last_tick(config)
    other: list[dict[str, Any]] = [{"threshold": "per_tick"}]
    if config.horizon_ticks is not None and ticks <= _CONSTANT_MOST:
        other.append({"threshold": "constant"})
    every = 1 << max(0, (ticks.bit_length() - 1) // 2)
    if every > 1 and config.threshold != "every":
        other.append({"threshold": "every", "every": every})
    for assumed in other:
        if assumed["threshold"] != config.threshold:
            changed = msgspec.structs.replace(config, **({"every": None} | assumed))
            mechanism = untabled(changed)
            if mechanism is not None:
                yield _row(asked, changed, assumed, mechanism, noise_of(mechanism, changed), chosen=False)


def _row(
    asked: _Asked,
    config: HistogramConfig,
    assumed: dict[str, Any],
    mechanism: Figures,
    noise: Noise,
    *,
    chosen: bool,
    reason: str = "",
) -> Alternative:
    counts = law(mechanism) in ("gaussian", "laplace")
    error: float | None = None
    if isinstance(mechanism, OrderStatistics):
        error = mechanism.error(1)
    elif counts:
        error = worst_of_all(law(mechanism), noise.worst_sd, noise.ticks_looked_at * asked.items, asked.beta)
    thresholds = thresholds_of(mechanism, config, noise)
    return Alternative(
        mechanism=config.mechanism,
        chosen=chosen,
        possible=not reason,
        assumed=assumed,
        answers=ANSWERS[config.mechanism],
        reason=reason,
        worst_sd=noise.worst_sd if counts else None,
        rms_sd=noise.rms_sd if counts else None,
        threshold=None if thresholds is None else thresholds.most,
        error=error,
    )


def _without(name: str, assumed: dict[str, Any], reason: str) -> Alternative:
    return Alternative(
        mechanism=name, chosen=False, possible=False, assumed=assumed, answers=ANSWERS[name], reason=reason, worst_sd=None,
        rms_sd=None, threshold=None, error=None,
    )  # fmt: skip


def _short(message: str) -> str:
    """A refusal without the histogram it begins with."""
    return message.partition("': ")[2] or message
