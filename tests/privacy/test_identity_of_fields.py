"""Every setting of every mechanism is in the mechanism id, or exempted here with a reason."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.utility_cases import own_settings
from tests.events.shapes_corpus import document
from workers.mechanisms.config.buckets import Buckets
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.config.sums import parse_sum
from workers.mechanisms.counters.kinds import kinds_of
from workers.mechanisms.identity import describe, mechanism_id
from workers.mechanisms.noise.keyed import NoiseKey
from workers.mechanisms.registry import MECHANISMS, build
from workers.pipeline.factory import histograms, lanes, mechanisms
from workers.pipeline.histogram import Histogram
from workers.settings.settings import settings_of

DOMAIN = ("a", "b", "c", "d")
SHARED: dict[str, object] = {
    "name": "h",
    "tick_ms": 10,
    "horizon": 64,
    "max_items": 2,
    "epsilon": 1.0,
    "delta": 1e-6,
    "keys": ("s",),
}
OWN: dict[str, dict[str, object]] = {
    "known_base": {"domain": DOMAIN},
    "unk_base": {},
    "meta": {"algorithm": "limit_dom", "k": 2, "kbar": 3},
    "sparse_gumb": {"domain": DOMAIN, "top_k": 2, "switches": 3},
    "bounded_max": {"domain": DOMAIN, "c_max": 100},
    "doubling": {"domain": DOMAIN},
    "two_level": {"domain": DOMAIN},
    "two_level_k": {"domain": DOMAIN, "queries": ("max",)},
    "misra_gries": {"size": 8},
    "misra_gries_tick": {"size": 8},
    "known_gauss": {"domain": DOMAIN},
    "known_gumbel": {"domain": DOMAIN, "k": 2},
    "unk_gauss": {"kbar": 3},
    "limit_dom": {"k": 2, "kbar": "private", "kbar_max": 5},
    "limit_dom_laplace": {"kbar": 3},
    "positive_laplace": {},
    "positive_gauss": {},
    "pay_what_you_get": {
        "k": 2,
        "kbar": "private",
        "kbar_max": 5,
        "labels": 9,
        "queries": 5,
    },
}
for unnamed in sorted(MECHANISMS.keys() - OWN.keys()):
    OWN[unnamed] = own_settings(unnamed)
    if "domain" in OWN[unnamed]:
        OWN[unnamed]["domain"] = DOMAIN
# Another value of each field, and the settings it requires.
PLAIN: dict[str, object] = {
    "name": "g",
    "tick_ms": 20,
    "horizon": 65,
    "start": datetime(2026, 1, 1, tzinfo=UTC),
    "max_items": 3,
    "max_count": 2,
    "max_items_per_user": 3,
    "epsilon": 1.1,
    "delta": 1e-7,
    "counter": "tree",
    "end_share": 0.6,
    "keys": ("s", "r"),
    "split": 2,
    "generation": 2,
    "windows": (20,),
    "topic": "elsewhere",
    "domain": ("a", "b", "c", "e"),
    "threshold": "constant",
    "bounds_rho": 1e-4,
    "every": 2,
    "k": 1,
    "kbar": 4,
    "kbar_max": 6,
    "top_k": 1,
    "switches": 4,
    "eta": 7,
    "accounting": "pure",
    "beta": 0.01,
    "c_max": 200,
    "query": "min",
    "queries": ("max", "min"),
    "size": 9,
    "release": "merge",
    "labels": 10,
    "sum": parse_sum({"field": "paid", "from": 0, "to": 9, "step": 1}),
    "total_share": 0.1,
}
OTHER: dict[str, dict[str, object]] = {
    **{name: {name: value} for name, value in PLAIN.items()},
    "rho": {"rho": 0.02, "epsilon": None},
    "radix": {"counter": "tree", "radix": 3},
    "algorithm": {"algorithm": "positive_gauss", "k": None, "kbar": None},
}
SPECIAL: dict[tuple[str, str], dict[str, object]] = {
    ("unk_base", "every"): {"threshold": "every", "every": 2},
    ("sparse_gumb", "accounting"): {"accounting": "paper"},
    ("meta", "domain"): {"algorithm": "known_gumbel", "domain": DOMAIN, "kbar": None},
    ("pay_what_you_get", "queries"): {"queries": 6},
    ("pay_what_you_get", "kbar"): {"kbar": 4, "kbar_max": None},
    ("limit_dom", "kbar"): {"kbar": 4, "kbar_max": None},
    ("meta", "radix"): {"radix": 7},
    ("misra_gries", "radix"): {"radix": 7},
    ("misra_gries", "domain"): {"release": "pure", "domain": DOMAIN},
    ("misra_gries_tick", "domain"): {"release": "pure", "domain": DOMAIN},
    ("misra_gries_tick", "release"): {"release": "gshm"},
    ("meta", "size"): {"algorithm": "pmg", "k": None, "kbar": None, "size": 9},
}
# No other value is allowed, or it does not change what is published of a stream key served by both
# settings.
EXEMPT = {
    "keys": "stream keys share no event and no noise (docs/decisions/0008)",
    "windows": "they change no noise, and what a snapshot says of them follows from the rest of it; audit compares without (decision 0019)",
    "max_items_per_user": "at event level it is refused by the settings; at user level it takes the place of max_items",
}
# Buckets, quantiles and `for` need each other and a domain: tested below. The others are, with [events],
# what is counted: tested at the end. `hop`, `user_period` and `unique_users` need `horizon = "never"`:
# tested below.
# `label` and `unit` need buckets too: tests/settings/test_histogram.py.
ELSEWHERE = (
    *("buckets", "quantiles", "for_", "label", "unit"),
    *("key", "items", "count", "where_", "hop", "user_period", "unique_users"),
)


def config(kind: str, /, **changes: object) -> HistogramConfig:
    return MECHANISMS[kind](**(SHARED | OWN[kind] | changes))  # type: ignore[arg-type]  # checked by the record itself


def an_id(found: HistogramConfig, unit: str = "event") -> bytes:
    own: dict[str, Any] = {
        "histogram": found.name,
        "topic": found.topic or f"w.{found.name}",
    }
    own |= {
        name: getattr(found, name) for name in ("generation", "tick_ms", "start_ms")
    }
    own["mechanism"] = build(found, unit).public()
    return mechanism_id(describe(worker="w", stream="s#1", events={}, **own), 1, 1)


def fields(name: str) -> list[str]:
    kind = MECHANISMS[name]
    one_value = {
        "counter": len(kinds_of(kind.about)) < 2,
        "radix": not kind.about.counters,
        "rho": kind.about.needs_epsilon,
        # It has no last tick, or no counter over the ticks.
        "end_share": not kind.about.takes_end_share,
        "bounds_rho": not kind.about.plain,
        "sum": not kind.about.takes_sum,
        "total_share": not kind.about.takes_total_share,
        "windows": not config(name).subtracts,
    }
    found = [field.name for field in msgspec.structs.fields(kind)]
    return [
        field
        for field in found
        if field not in ELSEWHERE and not one_value.get(field, False)
    ]


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_setting_is_in_the_mechanism_id(name: str) -> None:
    """Equal noise under another scale or other data can be subtracted, exposing the data."""
    own = fields(name)
    assert own
    for field in own:
        changed = config(name, **SPECIAL.get((name, field), OTHER[field]))
        assert getattr(changed, field) != getattr(config(name), field), field
        assert (an_id(changed) != an_id(config(name))) is (field not in EXEMPT), field


@pytest.mark.parametrize("name", ["known_base", "unk_base"])
def test_windows_without_epochs_are_in_the_id_with_their_hops(name: str) -> None:
    """Other than in epochs, windows decide how many levels the noise has, and when labels are shown."""
    settings: dict[str, object] = {"horizon": "never", "windows": (100, 2_000)}
    same = [
        an_id(config(name, **settings | change))
        for change in ({}, {"hop": 1}, {"hop": 2}, {"windows": (100, 2_010)})
    ]
    assert len({*same, an_id(config(name))}) == 5


@pytest.mark.parametrize("name", ["known_base", "unk_base"])
def test_periods_of_users_and_what_is_counted_of_them_are_in_the_id(name: str) -> None:
    settings: dict[str, object] = {"horizon": "never", "windows": (100, 2_000)}
    settings |= {"user_period": 5, "max_items_per_user": 3}
    same = [
        an_id(config(name, **settings | change), "user")
        for change in ({}, {"user_period": 6}, {"unique_users": True})
    ]
    assert len({*same, an_id(config(name), "user")}) == 4


@pytest.mark.parametrize("name", [name for name in OWN if "domain" in OWN[name]])
def test_the_order_of_a_domain_is_in_the_id_where_it_decides_what_a_word_picks(
    name: str,
) -> None:
    """The same id must mean the same bytes, or audit reports false errors."""
    ordered = not MECHANISMS[name].about.whole_domain
    assert (an_id(config(name, domain=DOMAIN[::-1])) != an_id(config(name))) is ordered


def test_meta_with_picks_has_the_order_of_its_domain_in_the_id() -> None:
    """Its cells pick as `known_gumbel` does."""
    own: dict[str, object] = {"algorithm": "known_gumbel", "k": 2, "kbar": None}
    one, other = (
        config("meta", **own, domain=domain) for domain in (DOMAIN, DOMAIN[::-1])
    )
    assert an_id(one) != an_id(other)


def test_pure_misra_gries_has_its_domain_in_its_order_and_its_budget_in_the_id() -> (
    None
):
    """Tags are stored in the declared order; a pure epsilon has other noise."""
    own: dict[str, object] = {"release": "pure", "domain": DOMAIN}
    other: dict[str, object] = {
        "epsilon": 1.1,
        "delta": 1e-7,
        "size": 9,
        "max_count": 2,
        "max_items": 3,
        "horizon": 65,
        "radix": 7,
    }
    changes: list[dict[str, object]] = [{name: value} for name, value in other.items()]
    changes += [{}, {"domain": DOMAIN[::-1]}, {"domain": DOMAIN[:3]}]
    changes += [{"release": release, "domain": None} for release in ("pmg", "merge")]
    found = {an_id(config("misra_gries", **(own | change))) for change in changes}
    assert len(found) == len(changes)


@pytest.mark.parametrize("name", MECHANISMS)
def test_the_unit_is_in_the_id(name: str) -> None:
    one, other = (
        dict(build(config(name), unit).public()) for unit in ("event", "user")
    )
    assert one.pop("unit") != other.pop("unit")
    assert one == other


def with_buckets(
    name: str, edges: tuple[float, ...], **more: object
) -> HistogramConfig:
    buckets = Buckets(edges)
    sketched = name.startswith("misra_gries")
    own: dict[str, object] = {"release": "pure"} if sketched else {}
    if name == "meta":
        own = {"algorithm": "known_gauss", "k": None, "kbar": None}
    return config(name, buckets=buckets, domain=buckets.labels, **own, **more)


WITH_DOMAIN = [
    name for name, kind in MECHANISMS.items() if "domain" in kind.__struct_fields__
]


@pytest.mark.parametrize("name", WITH_DOMAIN)
def test_edges_are_in_the_mechanism_id(name: str) -> None:
    """They define the count; labels are already in the id, but a domain may have equal ones."""
    first = with_buckets(name, (0, 1, 2.5))
    other = with_buckets(name, (0, 1, 2.25))
    assert an_id(first) == an_id(with_buckets(name, (0.0, 1.0, 2.5)))
    assert an_id(first) != an_id(other)
    assert an_id(first) != an_id(msgspec.structs.replace(first, buckets=None))


@pytest.mark.parametrize("name", ["known_base", "known_gauss", "meta"])
def test_quantiles_are_in_the_mechanism_id(name: str) -> None:
    """They change the output: for audit, the same id must mean the same bytes."""
    default = with_buckets(name, (0, 1, 2))
    assert an_id(default) == an_id(with_buckets(name, (0, 1, 2), quantiles=(0.5,)))
    assert an_id(default) != an_id(with_buckets(name, (0, 1, 2), quantiles=(0.5, 0.9)))
    assert an_id(default) != an_id(with_buckets(name, (0, 1, 2), quantiles=()))


def test_what_a_histogram_is_for_is_part_of_the_id() -> None:
    default = with_buckets("known_base", (0, 1, 2))
    assert an_id(default) == an_id(with_buckets("known_base", (0, 1, 2), for_="counts"))
    ranks = with_buckets("known_base", (0, 1, 2), for_="quantiles")
    assert an_id(default) != an_id(ranks)


# ---- what is counted of an event ------------------------------------------------------------------

EVENTS = {"key": "shop", "items": "lines[].sku", "timestamp": "ts"}
KNOWN: dict[str, Any] = {"mechanism": "known_base", "domain": ["a", "b"]}


Setting = dict[str, Any]


def ids(events: Setting, *own: Setting, user: str | None = None) -> list[Setting]:
    given = settings_of(document(events, list(own) or [{}], user), Path())
    place: dict[str, Any] = {"stream": "s#1", "owner": 0, "owners": 1}
    found = histograms(
        Histogram, given, mechanisms(given), key=NoiseKey(bytes(32)), **place
    )
    return [dict(histogram.life.description) for histogram in found]


CHANGES: dict[str, dict[str, Any]] = {
    "key": {"key": "region"},
    "items": {"items": "lines[].colour"},
    "items of another sort": {"items": "lines"},
    "count": {"count": "lines[].qty"},
    "where": {"where": [{"field": "type", "in": ["purchase"]}]},
    "another value": {"where": [{"field": "type", "in": ["refund"]}]},
    "not in": {"where": [{"field": "type", "not_in": ["purchase"]}]},
    "a bound": {"where": [{"field": "type", "min": 1}]},
    "another bound": {"where": [{"field": "type", "max": 1}]},
    "there": {"where": [{"field": "type", "exists": True}]},
    "not there": {"where": [{"field": "type", "exists": False}]},
    "missing": {"missing": "empty"},
    "unit": {"timestamp_unit": "s"},
    "time": {"timestamp": "at"},
}


def test_every_change_of_what_is_counted_is_another_id() -> None:
    """The same noise on other data could be subtracted, exposing the data."""
    described = [
        ids(EVENTS)[0],
        *(ids(EVENTS | change)[0] for change in CHANGES.values()),
    ]
    counted = [one["events"] for one in described]
    assert all(one not in counted[:place] for place, one in enumerate(counted))


@pytest.mark.parametrize("name", ["key", "items", "count", "where", "a bound"])
def test_a_histogram_of_its_own_has_the_id_of_events_that_say_the_same(
    name: str,
) -> None:
    """The place of a setting does not change what is counted."""
    change = CHANGES[name] | ({"items": EVENTS["items"]} if name == "count" else {})
    own = ids(EVENTS, change)[0]
    shared = ids(EVENTS | change)[0]
    plain = ids(EVENTS)[0]
    assert own["events"] == shared["events"] != plain["events"]


def test_settings_that_say_nothing_new_have_the_ids_that_they_had() -> None:
    """An upgrade must not begin new series, nor charge for them."""
    old = {"topic": "t", "key": "shop", "items": "sku", "timestamp": None}
    plain = {"key": "shop", "items": "sku"}
    assert ids(plain)[0]["events"] == old
    assert (
        ids(plain | {"missing": "reject", "where": []}, {"where": []})[0]["events"]
        == old
    )
    users = {"user": "who", "partitioner": "murmur2", "max_items": 3}
    assert ids(plain, user="who")[0]["events"] == old | users


def test_lanes_without_a_view_of_their_own_are_as_they_were() -> None:
    """Kafka messages and users' pairs name lanes by six fields."""
    given = settings_of(document(EVENTS, [{}, {"items": "sku"}], None), Path())
    first, second = lanes(given)
    assert (first.view, tuple(first)[:6]) == ("", (10_000, 0, 3, 1, None, None))
    assert len(second.view) == 16 and tuple(second)[:6] == tuple(first)[:6]
