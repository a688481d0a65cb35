"""Exact output distributions of neighbouring streams against claims; planted flaws are refused."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import pytest

from tests.costs import delta_of
from tests.privacy.enumeration import (
    Event,
    History,
    Law,
    also,
    fixed,
    hockey_stick,
    law_of,
    renyi,
)
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.registry import MECHANISMS, build
from workers.privacy.total import group_failure

pytestmark = pytest.mark.slow

SETTINGS: dict[str, Any] = {"name": "h", "tick_ms": 1, "max_items": 1, "keys": "public"}
SETTINGS["delta"] = 0.2
EPSILONS = (0.5, 1, 2, 3, 4, 5, 6, 7, 8)
# Omitted paths weigh up to 1e-5 here; e^8 times that is subtracted from every hockey stick, so
# nothing is blamed on them.
SLACK = 1e-6


@dataclass(frozen=True)
class Case:
    """A mechanism, a stream, the neighbour's extra event, and a `flaw` that must be detected."""

    name: str
    settings: dict[str, Any]
    stream: list[Event]
    event: Event | Callable[[History], Event]
    flaw: dict[str, object] | Callable[[Any], object]
    tick: int = 1
    floor: float = 1e-8

    def made(self, changes: dict[str, object]) -> Mechanism:
        settings = SETTINGS | {"horizon": len(self.stream)} | self.settings | changes
        return build(MECHANISMS[self.name](**settings))

    def honest(self) -> Mechanism:
        return self.made({})

    def flawed(self) -> Mechanism:
        if isinstance(self.flaw, dict):
            return self.made(self.flaw)
        mechanism = self.honest()
        self.flaw(mechanism)
        return mechanism

    def excess(self, mechanism: Mechanism) -> float:
        """Return the largest excess over the honest mechanism's claims; at most 0 if they hold."""
        world = fixed(*self.stream)
        ticks = len(self.stream)
        p = law_of(mechanism, world, ticks, self.floor)
        q = law_of(mechanism, also(world, self.tick, self.event), ticks, self.floor)
        cost = self.honest().cost()
        discovery = dict(cost.failures).get("discovery", 0.0)
        pairs = ((p, q), (q, p))
        worst = max(excess(one, other, cost.rho, discovery) for one, other in pairs)
        if self.settings.get("release") != "pure":
            return worst
        epsilon = self.honest().guarantee.epsilon
        pure = max(hockey_stick(one, other, epsilon) for one, other in pairs)
        return max(worst, pure - 10 * (p.lost + q.lost))


def on(name: str, **settings: Any) -> partial[Case]:
    """Return a case of this mechanism that lacks its stream, event and flaw."""
    return partial(Case, name, settings)


def excess(p: Law, q: Law, rho: float, discovery: float) -> float:
    """Return the worst excess over delta, discovery (exclusive labels) and rho (Renyi)."""
    curve, alone = curve_excess(p, q, rho, discovery, EPSILONS)
    # Hiding what one neighbour alone has scales a probability by 1 - discovery at most.
    hidden = {order: -order / (order - 1) * math.log1p(-discovery) for order in (2, 3)}
    orders = max(
        renyi(p, q, a) - a * rho * 1.001 - scaled for a, scaled in hidden.items()
    )
    return max(
        curve, alone if discovery else -1.0, orders if p.lost + q.lost < 1e-5 else -1.0
    )


def curve_excess(
    p: Law, q: Law, rho: float, failures: float, epsilons: Sequence[float]
) -> tuple[float, float]:
    """Return the excess over (epsilon, delta) of rho and failures, and that of exclusive labels."""
    over = (
        hockey_stick(p, q, epsilon) - delta_of(rho, epsilon) for epsilon in epsilons
    )
    known = {named(outcome) for outcome in q.of}
    alone = math.fsum(
        mass for outcome, mass in p.of.items() if named(outcome) not in known
    )
    return max(over) - failures, alone - failures - 10 * (p.lost + q.lost)


def named(outcome: object) -> object:
    """Return an outcome's labels without counts, which depend on rare, possibly omitted noise."""
    if isinstance(outcome, tuple):
        return tuple(named(part) for part in outcome if not isinstance(part, int))
    return outcome


def lower(owner: Any, name: str, by: int) -> None:
    object.__setattr__(owner, name, getattr(owner, name) - by)


def lower_threshold(mechanism: Any) -> None:
    lower(mechanism.algorithm, "threshold", mechanism.config.max_count)


def lower_bottom(mechanism: Any) -> None:
    lower(mechanism.algorithm._bottom, "_above", mechanism.config.max_count)


def lower_sketch(mechanism: Any) -> None:
    config = mechanism.config
    items = 1 if config.release == "merge" else config.max_items
    lower(mechanism, "_threshold", items * config.max_count)


def even(history: History) -> Event:
    first: Any = history[0]
    (_, count), _ = first
    return {"a": 1} if count % 2 == 0 else {"b": 1}


TWO: dict[str, Any] = {"max_items": 2, "max_count": 2}
ONE_ITEM = {"max_items": 1}
ONE_COUNT = {"max_count": 1}
OF_A: dict[str, Any] = {"domain": ("a",)}
OF_AB: dict[str, Any] = {"domain": ("a", "b")}
OF_ABC: dict[str, Any] = {"domain": ("a", "b", "c")}
# Counts of one tick, or of the event: AB2 has two of "a" and two of "b".
A1 = {"a": 1}
A2 = {"a": 2}
A3 = {"a": 3}
B1 = {"b": 1}
C1 = {"c": 1}
C2 = {"c": 2}
AB1, AB2, AB3, AB9 = ({"a": n, "b": n} for n in (1, 2, 3, 9))
BC1 = {"b": 1, "c": 1}
BC2 = {"b": 2, "c": 2}
MERGE: dict[str, Any] = {"size": 2, "max_items": 2, "release": "merge"}
PURE: dict[str, Any] = {"rho": None, "release": "pure"}
PAY: dict[str, Any] = {"rho": 2.0, "kbar": 2, "queries": 3}
CASES: dict[str, Case] = {
    "known_gauss": on("known_gauss", rho=4.0, **OF_AB, **TWO)([A3], AB2, ONE_ITEM),
    "known_gumbel": on("known_gumbel", rho=2.0, k=1, **OF_ABC, **TWO)(
        [{**AB3, "c": 4}], AB2, ONE_COUNT
    ),
    "positive_gauss": on("positive_gauss", rho=4.0, **TWO)([A3], AB2, lower_threshold),
    "positive_laplace": on("positive_laplace", rho=4.0, **TWO)(
        [A3], AB2, lower_threshold
    ),
    "unk_gauss": on("unk_gauss", rho=4.0, kbar=1, **TWO)([AB3], BC2, lower_threshold),
    "unk_gauss, two pushed out": on("unk_gauss", rho=4.0, kbar=2, **TWO)(
        [{**AB3, "c": 3, "d": 3}], {"c": 2, "d": 2}, lower_threshold, floor=1e-7
    ),
    "limit_dom_laplace": on("limit_dom_laplace", rho=4.0, kbar=1, **TWO)(
        [AB3], BC2, lower_threshold
    ),
    "limit_dom": on("limit_dom", rho=1.0, k=1, kbar=1, **TWO)([AB3], BC2, lower_bottom),
    "limit_dom, private": on(
        "limit_dom", rho=1.0, k=1, kbar="private", kbar_max=3, **TWO
    )([{**AB3, "c": 4}], AB2, ONE_COUNT),
    "pay, no more than its labels": on(
        "pay_what_you_get", max_items=3, k=1, labels=3, **PAY
    )([AB3, {}, {}], BC1, {"max_items": 3, "rho": 8.0}),
    "pay, new items": on("pay_what_you_get", max_items=2, k=2, labels=6, **PAY)(
        [{}, {}, {}], BC1, lambda m: lower(m._bottom, "_above", 1)
    ),
    "meta": on("meta", rho=12.0, radix=2, algorithm="positive_gauss", **TWO)(
        [{}, A1], AB2, lower_threshold
    ),
    "pmg": on("misra_gries", rho=0.5, size=2)([AB9], C1, {"rho": 2.0}),
    "pmg, a new item": on("misra_gries", rho=2.0, size=2)(
        [{"a": 3, "b": 1}], C1, lower_sketch
    ),
    "pmg, several": on("misra_gries", rho=1.0, size=1, **TWO)(
        [{"a": 30}], A2, ONE_ITEM | ONE_COUNT
    ),
    "merge": on("misra_gries", rho=1.0, **MERGE)([AB9], AB1, {"rho": 4.0}),
    "merge, Dinf": on("misra_gries", rho=4.0, max_count=3, **MERGE)(
        [AB9], AB3, {"max_count": 2}
    ),
    "pure": on("misra_gries", epsilon=3.0, size=2, **PURE, **OF_AB)(
        [{"a": 9, "b": 7}], A1, {"epsilon": 6.0}
    ),
    "pure, one that lowers all": on(
        "misra_gries", epsilon=8.0, size=2, max_count=2, **PURE, **OF_ABC
    )([{"a": 5, "b": 5}], C2, ONE_COUNT, floor=1e-6),
    "pure, two ticks": on("misra_gries", epsilon=6.0, size=1, radix=2, **PURE, **OF_AB)(
        [{}, A2], A1, {"epsilon": 15.0}, floor=1e-7
    ),
    "pmg, Laplace": on(
        "misra_gries", epsilon=1.0, rho=None, size=1, release="pmg_laplace"
    )([{}], C1, lambda m: lower(m, "_threshold", 1)),
    "one tick, pmg": on("misra_gries_tick", epsilon=1.0, rho=None, size=1)(
        [{}], C1, lower_threshold
    ),
    "one tick, gshm": on(
        "misra_gries_tick", epsilon=1.0, rho=None, size=2, release="gshm"
    )([AB1], C1, lower_threshold),
    "one tick, pure": on("misra_gries_tick", epsilon=3.0, size=2, **PURE, **OF_AB)(
        [{"a": 9, "b": 7}], A1, {"epsilon": 6.0}
    ),
    "merge, two new items": on("misra_gries", rho=2.0, **MERGE)(
        [AB1], {"c": 1, "d": 1}, lower_sketch
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_neighbouring_streams_publish_what_the_claim_allows(name: str) -> None:
    """Both directions, all outcomes: mechanism, thresholds and accounting together."""
    assert CASES[name].excess(CASES[name].honest()) <= SLACK


@pytest.mark.parametrize("name", CASES)
def test_a_planted_flaw_is_seen(name: str) -> None:
    """Half the noise, a sensitivity one lower, or a threshold without Dinf must be detected."""
    assert CASES[name].excess(CASES[name].flawed()) > 10 * SLACK


# ---- several events of one person: the price for k events ------------------------------------------

GROUP_EPSILONS = (0.25, 0.5, 1, 2, 3, 4, 6)


@cache
def laws(name: str) -> tuple[Mechanism, int, Law, Law]:
    """Return a case's mechanism, the number of events, and the laws without and with them."""
    kind, stream, ticks, settings = GROUPS[name]
    given: dict[str, Any] = SETTINGS | {"horizon": len(stream)} | settings
    mechanism = build(MECHANISMS[kind](**given))
    world = fixed(*stream)
    richer = world
    for tick in ticks:
        richer = also(richer, tick, {"a": 1})
    p, q = (law_of(mechanism, one, len(stream)) for one in (world, richer))
    return mechanism, len(ticks), p, q


def group_excess(p: Law, q: Law, rho: float, failures: float) -> float:
    """Return the excess over (epsilon, delta), and of exclusive labels, in both directions.

    It is at most 0 if the claim holds.
    """
    return max(
        *curve_excess(p, q, rho, failures, GROUP_EPSILONS),
        *curve_excess(q, p, rho, failures, GROUP_EPSILONS),
    )


# Mechanism, stream, the ticks of events with one item "a", and settings.
RARE: dict[str, Any] = {"rho": 0.25, "delta": 0.002}
GROUPS: dict[str, tuple[str, list[Event], tuple[int, ...], dict[str, object]]] = {
    "positive_gauss": ("positive_gauss", [{}], (1, 1), RARE),
    "positive_laplace": ("positive_laplace", [{}], (1, 1), RARE),
    "pmg": ("misra_gries", [{}], (1, 1), RARE | {"size": 1}),
    "known_gumbel": ("known_gumbel", [AB3], (1, 1), {"rho": 0.1, "k": 1} | OF_AB),
}


@pytest.mark.parametrize("name", GROUPS)
def test_several_events_cost_no_more_than_is_stated(name: str) -> None:
    """k^2 rho and p_k, over all outcomes; k^2 rho of fewer events fails."""
    mechanism, k, p, q = laws(name)
    cost = mechanism.cost()
    one = dict(cost.failures).get("discovery", 0.0)
    failures = group_failure(one, cost.rho, k)
    assert failures < 0.2  # else the claim says nothing
    assert group_excess(p, q, cost.rho * k**2, failures) <= SLACK


def test_k_times_the_delta_of_one_event_is_refused() -> None:
    """The page once claimed this. A hidden item of several events shows far more often."""
    mechanism, k, p, q = laws("positive_gauss")
    cost = mechanism.cost()
    failures = k * dict(cost.failures)["discovery"]
    assert group_excess(p, q, cost.rho * k**2, failures) > 10 * SLACK


def test_k_times_rho_is_refused() -> None:
    """One person's events are dependent: their shifts add up before squaring."""
    mechanism, k, p, q = laws("known_gumbel")
    assert group_excess(p, q, mechanism.cost().rho * k / 2, 0.0) > 10 * SLACK
