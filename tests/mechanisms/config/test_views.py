"""Settings that no event can fulfil are refused with their place; satisfiable ones are accepted."""

from __future__ import annotations

import re
from pathlib import Path as File
from typing import Any

import pytest

from tests.events.shapes_corpus import Case, difference, document
from workers.events.reader import EventReader
from workers.mechanisms.config.views import Path
from workers.settings.settings import settings_of

BUCKETS = {"buckets": [0, 10]}


def shape(events: dict[str, Any], *histograms: dict[str, Any], user: str | None = None) -> Any:
    return settings_of(document(events, list(histograms) or [{}], user), File()).shape


def where(field: str, **asked: Any) -> dict[str, Any]:
    return {
        "where": [{"field": field, **{name.rstrip("_"): value for name, value in asked.items()}}]
    }


A = {"key": "k", "items": "order.lines[].sku"}
WRONG: dict[str, tuple[dict[str, Any], list[dict[str, Any]], str]] = {
    "the same": (A | {"count": "k"}, [{}], 'events.count = "k": must be a field other than key\'s'),
    "written otherwise": (
        {"key": "a.b", "items": '"a"."b"'},
        [{}],
        'events.items = "a.b": must be a field other than key\'s',
    ),
    "the time of a histogram's key": (
        A | {"timestamp": "t"},
        [{"key": "t"}],
        "histogram 'h0': timestamp = \"t\": must be a field other than key's",
    ),
    "within a key": (
        {"key": "k", "items": "k.x"},
        [{}],
        'events.items = "k.x": it is inside key = "k", so no event has both',
    ),
    "around": (
        A | {"timestamp": "order"},
        [{}],
        'events.items = "order.lines[].sku": it is inside timestamp = "order", so no event has both',
    ),
    "through a list": (
        A | {"timestamp": "order.lines.at"},
        [{}],
        'events.timestamp = "order.lines.at": "order.lines" is a list for another path',
    ),
    "a count elsewhere": (
        A | {"count": "order.n"},
        [{}],
        'events.count = "order.n": must be in the same list as items = "order.lines[].sku"',
    ),
    "a count in a list": (
        {"key": "k", "items": "i", "count": "l[].n"},
        [{}],
        'count = "l[].n": must be in the same list as items = "i", or both without []',
    ),
    "beside elements": (
        {"key": "k", "items": "l[]", "count": "l[].n"},
        [{}],
        'events.count = "l[].n": it is inside items = "l[]"',
    ),
    "through items of another": (
        A | {"items": "i"},
        [{}, {"items": "i.x"}],
        'events.items = "i": another path goes through it',
    ),
    "an object": (
        A | where("order", in_=["a"]),
        [{}],
        'events.where: field = "order" is an object for another path, so it never has such a value',
    ),
    "an object's bound": (
        A,
        [where("order", min=1)],
        "histogram 'h0': where: field = \"order\" is an object for another path",
    ),
    "of a list": (
        A | where("order.lines", max=1),
        [{}],
        'events.where: field = "order.lines" is an object for another path',
    ),
    "in a list": (
        A | where("order.lines.x", exists=True),
        [{}],
        'events.where: field = "order.lines.x": "order.lines" is a list for another path',
    ),
    "elements": (
        {"key": "k", "items": "l[]"} | where("l", in_=["a"]),
        [{}],
        'events.where: field = "l": "l" is a list for another path',
    ),
    "within a value": (
        A | where("k.x", in_=["a"]),
        [{}],
        'events.where: field = "k.x" is inside key = "k", so no event has both',
    ),
    "within a bucket": (
        {"key": "k", "items": "i"} | where("i.x", min=1),
        [BUCKETS],
        'where: field = "i.x" is inside items = "i", so no event has both',
    ),
    "deep in an object": (
        {"key": "k", "items": "i"} | where("i.x.y", exists=True),
        [{}],
        'where: field = "i.x.y" is inside items = "i", so no event has both',
    ),
    "[] in a key": (
        {"key": "k[]", "items": "i"},
        [{}],
        'events.key = "k[]": one value is wanted, so no []',
    ),
    "[] in a time": (
        A | {"timestamp": "t[]"},
        [{}],
        'events.timestamp = "t[]": one value is wanted, so no []',
    ),
    "[] in a histogram's key": (
        A,
        [{"key": "l[].k"}],
        "histogram 'h0': key = \"l[].k\": one value is wanted, so no []",
    ),
    "no path": (
        A,
        [{"items": "a b"}],
        "histogram 'h0': items = \"a b\": at character 2, ' ': a name with such a character must be in quotes",
    ),
    "no such key": (A, [{"key": "$kye"}], "histogram 'h0': key = \"$kye\": "),
    "a unit of no time": (
        A | {"timestamp_unit": "s"},
        [{}],
        'events.timestamp_unit = "s": only with timestamp',
    ),
    "no unit": (
        A | {"timestamp": "t", "timestamp_unit": "min"},
        [{}],
        'events.timestamp_unit = "min": "ms", "s", "us", "ns", "iso"',
    ),
    "no missing": (A | {"missing": "skip"}, [{}], 'events.missing = "skip": "reject" or "empty"'),
    "no items": ({"key": "k"}, [{}], "events.items is missing"),
    "no condition": (
        A,
        [{"where": [{"field": "a"}]}],
        "histogram 'h0': where, condition 1: in, not_in, min, max or exists is missing",
    ),
    "no condition at all": (
        A | {"where": {"field": "a"}},
        [{}],
        'events.where = {"field": "a"}: a list such as',
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_no_event_can_fulfil_is_refused(name: str) -> None:
    """Operators see it before the first event, not in a million rejects."""
    events, histograms, message = WRONG[name]
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        shape(events, *histograms)
    assert "\n" not in str(refused.value)


# Odd-looking settings that can match, with an event that does.
RIGHT: dict[str, tuple[dict[str, Any], list[dict[str, Any]], bytes]] = {
    "an object that is not a word": (
        A | where("order", not_in=["x"]),
        [{}],
        b'{"k":"a","order":{"lines":[]}}',
    ),
    "an object that is there": (
        A | where("order", exists=True),
        [{}],
        b'{"k":"a","order":{"lines":[{"sku":1}]}}',
    ),
    "a list that is there": (
        A | where("order.lines", exists=True),
        [{}],
        b'{"k":"a","order":{"lines":[]}}',
    ),
    "nothing in a list": (
        A | where("order.lines.x", exists=False),
        [{}],
        b'{"k":"a","order":{"lines":[]}}',
    ),
    "nothing in a key": (A | where("k.x", not_in=["y"]), [{}], b'{"k":"a","order":{"lines":[]}}'),
    "the key itself": (A | where("k", in_=["a"]), [{}], b'{"k":"a","order":{"lines":[]}}'),
    "an item itself": (
        {"key": "k", "items": "i"} | where("i", in_=["a"]),
        [{}],
        b'{"k":"a","i":"a"}',
    ),
    "a number in its bucket": (
        {"key": "k", "items": "i"} | where("i", min=5),
        [BUCKETS],
        b'{"k":"a","i":7}',
    ),
    "one of the counts": (
        {"key": "k", "items": "i"} | where("i.milk", min=1),
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
    case = Case(
        events,
        histograms,
        None,
        EventReader(settings.shape),
        [config.view for config in settings.histograms],
        [],
    )
    said, _, number = difference(case, [b"{}", b"{}", value])
    assert said is None and number >= 1


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
    assert [str(view.key) for view in views] == ["k", "other", "k", "k", "k", "k", "k"]
    assert [str(view.items) for view in views] == [
        "l[].i",
        "l[].i",
        "x",
        "l[].i",
        "l[].i",
        "l[].i",
        "x",
    ]
    assert [view.count and str(view.count) for view in views] == [
        "l[].n",
        "l[].n",
        None,
        "l[].m",
        "l[].n",
        "l[].n",
        None,
    ]
    assert [[one.field for one in view.where] for view in views] == [["type"]] * 4 + [
        [],
        ["n"],
        ["type"],
    ]
    assert [view.edges for view in views] == [None] * 6 + [(0.0, 10.0)]
    assert list(shape(events).views) == [""]


def test_settings_of_events_are_in_the_shape() -> None:
    plain, found = (
        shape(A),
        shape(A | {"timestamp": "t", "timestamp_unit": "iso", "missing": "empty"}, user="who.id"),
    )
    assert (plain.time, plain.unit, plain.empty, plain.user) == (None, "ms", False, None)
    assert (found.time, found.unit, found.empty, found.user) == (
        Path(("t",)),
        "iso",
        True,
        Path(("who", "id")),
    )
