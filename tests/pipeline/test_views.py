"""Several views of one stream: a lane counts its own view's events, and all share the clock."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from tests.events.reading import events_of
from tests.events.shapes_corpus import document
from tests.pipeline.pipeline import contents
from workers.events.columns import Events
from workers.events.reading import EventReader, Reject, SourceReader
from workers.kafka.records import Records
from workers.mechanisms.noise.keyed import NoiseKey
from workers.pipeline.contributions import Message
from workers.pipeline.factory import declared_keys, lanes
from workers.pipeline.intake import Intake
from workers.settings.settings import Settings, settings_of

KEY = NoiseKey(bytes(32))
EVENTS = {
    "key": "shop",
    "items": "lines[].sku",
    "count": "lines[].qty",
    "timestamp": "ts",
    "missing": "empty",
}
OWN: list[dict[str, Any]] = [
    {"max_count": 9},
    {"items": "country", "where": [{"field": "type", "in": ["purchase"]}]},
    {"items": "page.type", "key": "$all", "where": [{"field": "type", "in": ["view"]}]},
    {
        "items": "total",
        "buckets": [0, 10, 100],
        "where": [{"field": "total", "exists": True}],
    },
]


Worker = tuple[Settings, SourceReader, Intake]


def worker(own: list[dict[str, Any]], user: str | None = None, **events: Any) -> Worker:
    given = settings_of(document(EVENTS | events, own, user), Path())
    reader = SourceReader(EventReader(given.shape), declared_keys(given), earliest_ms=0)
    return given, reader, Intake(lanes(given), 0, KEY)


def counted(
    messages: list[tuple[int, Message]], given: Settings
) -> list[Counter[tuple[str, str]]]:
    found = [Counter[tuple[str, str]]() for _ in given.histograms]
    for what, n in contents(message for _, message in messages).items():
        for histogram, config in enumerate(given.histograms):
            if config.lane == what.lane:
                found[histogram][what.key, what.label] += n
    return found


def records(*events: dict[str, Any]) -> Records:
    return Records.of([json.dumps(event).encode() for event in events])


def read(reader: SourceReader, *events: dict[str, Any]) -> tuple[Events, list[Reject]]:
    return events_of(reader.read(records(*events)))


LINES = [{"sku": "a", "qty": 2}, {"sku": "b", "qty": 1}]
ORDER = {
    "shop": 1,
    "type": "purchase",
    "country": "at",
    "lines": LINES,
    "total": 10,
    "ts": 5,
}
PAGE = {"shop": 2, "type": "view", "page": {"type": "home"}, "ts": 6}


def test_an_event_is_accepted_whole_or_not_at_all() -> None:
    """One view must not count an event that another one looking at it cannot."""
    given, reader, intake = worker(OWN)
    bad = ORDER | {"country": ["at", 1.5]}
    others = bad | {"type": "refund"}, PAGE | {"page": 5}, PAGE | {"country": 1.5}
    events, rejects = read(reader, bad, *others)
    assert [(reject.index, reject.reason) for reject in rejects] == [
        (
            0,
            "field 'country' has an item that is not a string, whole number or boolean",
        ),
        (2, "field 'page' is not an object"),
    ]
    intake.add(events)
    found = counted(intake.take_messages(source=0, sequences=[0], offset=4), given)
    views: list[Any] = [{("1", "a"): 2, ("1", "b"): 1}, {}, {("all", "home"): 1}]
    assert found == [*views, {("1", "[10,100)"): 1}]


def test_a_skipped_event_moves_the_watermark_and_is_told_to_nobody() -> None:
    """Time advances for all; events without a time, or too far ahead, are ignored."""
    given, reader, intake = worker(OWN[1:2])
    other = {"type": "refund", "ts": 25_000}
    no_time = {"type": "refund"}
    wrong_time = {"ts": "soon"}
    batch = records({"type": "x", "ts": 3, "country": 1.5}, other, no_time, wrong_time)
    events, rejects = events_of(reader.read(batch, latest_ms=30_000))
    assert (rejects, events.times.tolist()) == ([], [3, 25_000])
    intake.add(events)
    assert intake.watermark == 25_000 and intake.has_closed_tick()
    messages = intake.take_messages(source=0, sequences=[0], offset=4)
    assert counted(messages, given) == [{}] and not any(
        message.sections for _, message in messages
    )
    ahead = records(other | {"ts": 30_001}, ORDER | {"ts": 30_001})
    events, rejects = events_of(reader.read(ahead, latest_ms=30_000))
    assert (len(events), [reject.reason for reject in rejects]) == (
        0,
        ["dated too far ahead"],
    )


def test_each_histogram_serves_its_own_keys() -> None:
    """Keys of another view do not belong here; unserved keys of a looking view are rejects."""
    purchases = [{"field": "type", "in": ["purchase"]}]
    own: list[dict[str, Any]] = [{"keys": ["1", "2"], "where": purchases}]
    own.append({"items": "page.type", "keys": ["3"]})
    _, reader, _ = worker(own, missing="empty")
    shops = PAGE | {"shop": 3}, PAGE | {"shop": 4}, ORDER | {"shop": 5}
    events, rejects = read(reader, ORDER, *shops)
    assert rejects == [Reject(index, "key not declared") for index in (2, 3)]
    assert len(events) == 2


def test_users_are_bounded_in_each_lane_by_itself() -> None:
    """Views have separate user bounds; within a view the bound covers all events."""
    own: list[dict[str, Any]] = [{"max_items_per_user": 2, "max_count": 2}]
    own.append({"items": "country", "max_items_per_user": 1})
    given, reader, intake = worker(own, user="who")
    of_17 = ORDER | {"who": 17}
    more = (
        {"lines": [{"sku": "c", "qty": 5}]},
        {"country": "cz"},
        {"who": "ann", "country": "cz"},
    )
    shopping = records(of_17, *(of_17 | changes for changes in more))
    events, rejects = events_of(reader.read(shopping))
    assert not rejects
    intake.add(events)
    found = counted(intake.take_messages(source=0, sequences=[0], offset=4), given)
    assert found == [{("1", "a"): 4, ("1", "b"): 3}, {("1", "at"): 1, ("1", "cz"): 1}]
