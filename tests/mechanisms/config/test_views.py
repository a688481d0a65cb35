"""Settings that no event can fulfil are refused with their place; satisfiable ones are accepted."""

import re
from pathlib import Path as File
from typing import Any

import pytest

from tests.events.shapes_corpus import Case, difference, document
from workers.events.reading import EventReader
from workers.mechanisms.config.views import Path
from workers.settings.settings import settings_of

BUCKETS = {"buckets": [0, 10]}


def shape(
    events: dict[str, Any], *histograms: dict[str, Any], user: str | None = None
) -> Any:
    return settings_of(document(events, list(histograms) or [{}], user), File()).shape


def where(field: str, **asked: Any) -> dict[str, Any]:
    return {
        "where": [{"field": field} | {name.rstrip("_"): v for name, v in asked.items()}]
    }


A = {"key": "k", "items": "order.lines[].sku"}
# Message: the events section and the histograms that it refuses (one without settings if none).
WRONG: dict[str, tuple[dict[str, Any], ...]] = {
    'events.count = "k": must be a field other than key\'s': (A | {"count": "k"},),
    'events.items = "a.b": must be a field other than key\'s': (
        {"key": "a.b", "items": '"a"."b"'},
    ),
    "histogram 'h0': timestamp = \"t\": must be a field other than key's": (
        A | {"timestamp": "t"},
        {"key": "t"},
    ),
    'events.items = "k.x": it is inside key = "k", so no event has both': (
        {"key": "k", "items": "k.x"},
    ),
    'events.items = "order.lines[].sku": it is inside timestamp = "order", so no event has both': (
        A | {"timestamp": "order"},
    ),
    'events.timestamp = "order.lines.at": "order.lines" is a list for another path': (
        A | {"timestamp": "order.lines.at"},
    ),
    'events.count = "order.n": must be in the same list as items = "order.lines[].sku"': (
        A | {"count": "order.n"},
    ),
    'count = "l[].n": must be in the same list as items = "i", or both without []': (
        {"key": "k", "items": "i", "count": "l[].n"},
    ),
    'events.count = "l[].n": it is inside items = "l[]"': (
        {"key": "k", "items": "l[]", "count": "l[].n"},
    ),
    'events.items = "i": another path goes through it': (
        A | {"items": "i"},
        {},
        {"items": "i.x"},
    ),
    'events.where: field = "order" is an object for another path, so it never has such a value': (
        A | where("order", in_=["a"]),
    ),
    "histogram 'h0': where: field = \"order\" is an object for another path": (
        A,
        where("order", min=1),
    ),
    'events.where: field = "order.lines" is an object for another path': (
        A | where("order.lines", max=1),
    ),
    'events.where: field = "order.lines.x": "order.lines" is a list for another path': (
        A | where("order.lines.x", exists=True),
    ),
    'events.where: field = "l": "l" is a list for another path': (
        {"key": "k", "items": "l[]"} | where("l", in_=["a"]),
    ),
    'events.where: field = "k.x" is inside key = "k", so no event has both': (
        A | where("k.x", in_=["a"]),
    ),
    'where: field = "i.x" is inside items = "i", so no event has both': (
        {"key": "k", "items": "i"} | where("i.x", min=1),
        BUCKETS,
    ),
    'where: field = "i.x.y" is inside items = "i", so no event has both': (
        {"key": "k", "items": "i"} | where("i.x.y", exists=True),
    ),
    'events.key = "k[]": one value is wanted, so no []': (
        {"key": "k[]", "items": "i"},
    ),
    'events.timestamp = "t[]": one value is wanted, so no []': (
        A | {"timestamp": "t[]"},
    ),
    "histogram 'h0': key = \"l[].k\": one value is wanted, so no []": (
        A,
        {"key": "l[].k"},
    ),
    "histogram 'h0': items = \"a b\": at character 2, ' ': a name with such a character must be in quotes": (
        A,
        {"items": "a b"},
    ),
    "histogram 'h0': key = \"$kye\": ": (A, {"key": "$kye"}),
    'events.timestamp_unit = "s": only with timestamp': (A | {"timestamp_unit": "s"},),
    'events.timestamp_unit = "min": "ms", "s", "us", "ns", "iso"': (
        A | {"timestamp": "t", "timestamp_unit": "min"},
    ),
    'events.missing = "skip": "reject" or "empty"': (A | {"missing": "skip"},),
    "events.items is missing": ({"key": "k"},),
    "histogram 'h0': where, condition 1: in, not_in, min, max or exists is missing": (
        A,
        {"where": [{"field": "a"}]},
    ),
    'events.where = {"field": "a"}: a list such as': (A | {"where": {"field": "a"}},),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_no_event_can_fulfil_is_refused(message: str) -> None:
    """Operators see it before the first event, not in a million rejects."""
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        shape(*WRONG[message])
    assert "\n" not in str(refused.value)


EMPTY = b'{"k":"a","order":{"lines":[]}}'
ITEM: dict[str, Any] = {"key": "k", "items": "i"}
# Odd-looking settings that can match, with an event that does.
RIGHT: dict[str, tuple[dict[str, Any], list[dict[str, Any]], bytes]] = {
    "an object that is not a word": (A | where("order", not_in=["x"]), [{}], EMPTY),
    "an object that is there": (
        A | where("order", exists=True),
        [{}],
        b'{"k":"a","order":{"lines":[{"sku":1}]}}',
    ),
    "a list that is there": (A | where("order.lines", exists=True), [{}], EMPTY),
    "nothing in a list": (A | where("order.lines.x", exists=False), [{}], EMPTY),
    "nothing in a key": (A | where("k.x", not_in=["y"]), [{}], EMPTY),
    "the key itself": (A | where("k", in_=["a"]), [{}], EMPTY),
    "an item itself": (ITEM | where("i", in_=["a"]), [{}], b'{"k":"a","i":"a"}'),
    "a number in its bucket": (ITEM | where("i", min=5), [BUCKETS], b'{"k":"a","i":7}'),
    "one of the counts": (
        ITEM | where("i.milk", min=1),
        [{}],
        b'{"k":"a","i":{"milk":2}}',
    ),
    "in another histogram": (
        A,
        [where("type", in_=["a"]), {"items": "order.total", "key": "$all"}],
        b'{"order":{"total":1},"type":"b"}',
    ),
    "two lists": (
        A,
        [{}, {"items": "order.lines[].colour"}, {"items": "tags[]"}],
        b'{"k":"a","order":{"lines":[{"sku":1,"colour":2}]},"tags":[]}',
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_nothing_that_could_match_is_refused(name: str) -> None:
    """All readers accept an event of that shape, and some view looks at it."""
    events, histograms, value = RIGHT[name]
    settings = settings_of(document(events, histograms, None), File())
    views = [config.view for config in settings.histograms]
    case = Case(events, histograms, None, EventReader(settings.shape), views, [])
    outcome = difference(case, [b"{}", b"{}", value])
    assert outcome.differs is None and outcome.readable >= 1


def test_histograms_that_agree_share_a_view() -> None:
    """Any own setting makes another view; omitted ones come from [events]."""
    first = where("type", in_=["a"])
    events = {"key": "k", "items": "l[].i", "count": "l[].n"} | first
    own: list[dict[str, Any]] = [
        {},
        {},
        {"key": "other"},
        {"items": "x"},
        {"items": "x"},
        {"count": "l[].m"},
        {"where": []},
        where("n", min=1),
        BUCKETS | {"items": "x"},
    ]
    views = list(shape(events, *own).views.values())
    assert [
        (str(v.key), str(v.items), v.count and str(v.count), v.edges) for v in views
    ] == [
        ("k", "l[].i", "l[].n", None),
        ("other", "l[].i", "l[].n", None),
        ("k", "x", None, None),
        ("k", "l[].i", "l[].m", None),
        ("k", "l[].i", "l[].n", None),
        ("k", "l[].i", "l[].n", None),
        ("k", "x", None, (0.0, 10.0)),
    ]
    fields = [[one.field for one in view.where] for view in views]
    assert fields == [["type"]] * 4 + [[], ["n"], ["type"]]
    assert list(shape(events).views) == [""]


def test_settings_of_events_are_in_the_shape() -> None:
    own = {"timestamp": "t", "timestamp_unit": "iso", "missing": "empty"}
    plain = shape(A)
    found = shape(A | own, user="who.id")
    assert (plain.time, plain.unit, plain.empty, plain.user) == (
        None,
        "ms",
        False,
        None,
    )
    assert (found.time, found.unit, found.empty) == (Path(("t",)), "iso", True)
    assert found.user == Path(("who", "id"))
