"""The counted part of an event is in the mechanism id; settings without it keep their ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.events.shapes_corpus import document
from workers.mechanisms.noise.keyed import NoiseKey
from workers.pipeline.factory import histograms, lanes, mechanisms
from workers.pipeline.histogram import Histogram
from workers.settings.settings import settings_of

EVENTS = {"key": "shop", "items": "lines[].sku", "timestamp": "ts"}
KNOWN: dict[str, Any] = {"mechanism": "known_base", "domain": ["a", "b"]}


Setting = dict[str, Any]


def ids(events: Setting, *own: Setting, user: str | None = None) -> list[Setting]:
    given = settings_of(document(events, list(own) or [{}], user), Path())
    place: dict[str, Any] = {"stream": "s#1", "owner": 0, "owners": 1}
    found = histograms(Histogram, given, mechanisms(given), key=NoiseKey(bytes(32)), **place)
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
    described = [ids(EVENTS)[0], *(ids(EVENTS | change)[0] for change in CHANGES.values())]
    counted = [one["events"] for one in described]
    assert all(one not in counted[:place] for place, one in enumerate(counted))


@pytest.mark.parametrize("name", ["key", "items", "count", "where", "a bound"])
def test_a_histogram_of_its_own_has_the_id_of_events_that_say_the_same(name: str) -> None:
    """The place of a setting does not change what is counted."""
    change = CHANGES[name] | ({"items": EVENTS["items"]} if name == "count" else {})
    own, shared, plain = ids(EVENTS, change)[0], ids(EVENTS | change)[0], ids(EVENTS)[0]
    assert own["events"] == shared["events"] != plain["events"]


def test_settings_that_say_nothing_new_have_the_ids_that_they_had() -> None:
    """An upgrade must not begin new series, nor charge for them."""
    old = {"topic": "t", "key": "shop", "items": "sku", "timestamp": None}
    plain = {"key": "shop", "items": "sku"}
    assert ids(plain)[0]["events"] == old
    assert ids(plain | {"missing": "reject", "where": []}, {"where": []})[0]["events"] == old
    users = {"user": "who", "partitioner": "murmur2", "max_items": 3}
    assert ids(plain, user="who")[0]["events"] == old | users


def test_lanes_without_a_view_of_their_own_are_as_they_were() -> None:
    """Kafka messages and users' pairs name lanes by six fields."""
    given = settings_of(document(EVENTS, [{}, {"items": "sku"}], None), Path())
    first, second = lanes(given)
    assert (first.view, tuple(first)[:6]) == ("", (10_000, 0, 3, 1, None, None))
    assert len(second.view) == 16 and tuple(second)[:6] == tuple(first)[:6]
