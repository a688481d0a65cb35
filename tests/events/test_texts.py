"""Texts that are not Unicode, and what a reject says of a number or a time that is none."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.events.reading import read_general
from tests.events.shapes_corpus import document
from workers.events.project import NOT_UNICODE
from workers.events.reading import EventReader
from workers.kafka.records import Records
from workers.settings.settings import settings_of


def reader_of(
    events: dict[str, Any], *histograms: dict[str, Any], user: str | None = None
) -> EventReader:
    stated = document(
        {"key": "$all", "items": "i", **events}, [*histograms] or [{}], user
    )
    return EventReader(settings_of(stated, Path()).shape)


def outcomes(reader: EventReader, *values: bytes) -> list[str]:
    """Return the time of each event, or the reason why it is a reject; both readers agree."""
    records = Records.of(values, times=[0] * len(values))
    found = []
    for read in (EventReader.read, read_general):
        [spans] = read(reader, records)
        counted = spans.in_any_view
        times = map(str, spans.times[counted].tolist())
        by_record = dict(zip(spans.index[counted].tolist(), times, strict=True))
        by_record |= {reject.index: reject.reason for reject in spans.rejects}
        found.append([by_record.get(row, "skipped") for row in range(len(values))])
    assert found[0] == found[1]
    return found[0]


HALF = b'"so nice \\ud83d"'


def test_half_a_surrogate_pair_in_an_unused_field_counts() -> None:
    """Python and JavaScript write it where they cut a text within an emoji; RFC 8259 allows it."""
    reader = reader_of({"timestamp": "t"})
    values = (
        b'{"i":"a","t":7,"note":%b}' % HALF,
        b'{"note":[{"x":%b}],"i":"a","t":7}' % HALF,
        b'{%b:1,"i":["a"],"t":7}' % HALF,
        b'{"i":"a","t":7,"note":"\\udc00\\ud83d\\ud83d"}',
    )
    assert outcomes(reader, *values) == ["7"] * 4
    # The compiled scanner reads it, too, unless it is in a name.
    [spans] = reader.read(Records.of(values[:2]))
    assert spans.declined == 0


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (b'{"k":"s","u":"u","c":"x","i":%b}', "field 'i'"),
        (b'{"k":"s","u":"u","c":"x","i":["a",%b]}', "field 'i' has an item that"),
        (b'{"k":"s","u":"u","c":"x","i":{%b:1}}', "a label in 'i'"),
        (b'{"k":%b,"u":"u","c":"x","i":"a"}', "field 'k'"),
        (b'{"k":"s","u":%b,"c":"x","i":"a"}', "field 'u'"),
        (b'{"k":"s","u":"u","c":%b,"i":"a"}', "field 'c'"),
    ],
)
def test_half_a_surrogate_pair_in_a_used_field_is_a_reject_that_names_it(
    value: bytes, name: str
) -> None:
    """It has no UTF-8, so it is no label, key or user, and equals no value of a condition."""
    where = [{"field": "c", "not_in": ["y"]}]
    reader = reader_of({"key": "k", "where": where}, user="u")
    assert outcomes(reader, value % HALF) == [f"{name} is {NOT_UNICODE}"]


@pytest.mark.parametrize("text", ["", "2 kg", "٢"])
def test_a_text_that_holds_no_number_says_so(text: str) -> None:
    """A number is exactly what JSON writes: anything else is a guess."""
    value = json.dumps(
        {"i": "a", "n": text, "p": text, "o": {"x": text}, "t": text}
    ).encode()
    why = "a text that holds no number"
    assert outcomes(reader_of({"count": "n"}), value) == [f"field 'n' is {why}"]
    assert outcomes(reader_of({"items": "o"}), value) == [f"a count in 'o' is {why}"]
    assert outcomes(reader_of({}, {"items": "p", "buckets": [0, 2]}), value) == [
        f"field 'p' is {why}"
    ]
    of_sum = {"sum": {"field": "p", "from": 0, "to": 1, "step": 0.5}}
    assert outcomes(reader_of({}, of_sum), value) == [f"field 'p' is {why}"]
    timed = reader_of({"timestamp": "t", "timestamp_unit": "us"})
    assert outcomes(timed, value) == [f"field 't' is not a time in us: {why}"]
    bounded = reader_of({"where": [{"field": "n", "min": -10}]})
    assert outcomes(bounded, value) == ["skipped"]


@pytest.mark.parametrize(
    ("unit", "value", "reason"),
    [
        ("s", '"1795341600000000"', "a time in s: microseconds?"),
        ("ms", '"2026-11-22T10:00:00Z"', "a time in ms: ISO 8601?"),
        ("iso", '"1795341600000000"', "an ISO time: a number as text, microseconds?"),
        ("iso", "1795341600", "an ISO time: a number, seconds?"),
        ("iso", '"17"', "an ISO time: a number as text"),
        ("iso", '"2026-11-22"', "an ISO time: a date without a time of day"),
        ("iso", '"2026-02-30T10:00:00Z"', "an ISO time: no such date, time or offset"),
        (
            "iso",
            '"2026-11-22T10:00:00+24:00"',
            "an ISO time: no such date, time or offset",
        ),
        ("iso", '"2026-11-22T10:00:60Z"', "an ISO time: no such date, time or offset"),
        (
            "iso",
            '"Sun, 22 Nov 2026 10:00:00 GMT"',
            "an ISO time: a date with the name of a month",
        ),
        (
            "iso",
            '"22/Nov/2026:10:00:00 +0000"',
            "an ISO time: a date with the name of a month",
        ),
        (
            "iso",
            '"2026-11-22T10:00[Europe/Berlin]"',
            "an ISO time: a time zone by name, not by its offset",
        ),
        (
            "iso",
            '"2026-11-22 10:00:00 CET"',
            "an ISO time: a time zone by name, not by its offset",
        ),
        ("iso", '"2026-11-22 10:00:00 PM"', "an ISO time: a time with AM or PM"),
        ("iso", '"\\ud83d"', "an ISO time"),
    ],
)
def test_a_time_that_cannot_be_read_says_what_it_is(
    unit: str, value: str, reason: str
) -> None:
    """The reason names the unit that would fit, also for texts."""
    reader = reader_of({"timestamp": "t", "timestamp_unit": unit})
    found = outcomes(reader, b'{"i":"a","t":%b}' % value.encode())
    assert found == [f"field 't' is not {reason}"]


def test_ordinary_offsets_and_texts_are_read_by_the_compiled_reader() -> None:
    """The general reader costs fifty times as much."""
    reader = reader_of({"timestamp": "t", "timestamp_unit": "iso"})
    zones = ("+00", "-05", "+0530", "+05:30", "-09:30", "Z", "")
    values = [
        b'{"i":"a","t":"2026-11-22T10:00:00.5%b"}' % zone.encode() for zone in zones
    ]
    [spans] = reader.read(Records.of(values))
    assert (len(spans), spans.declined) == (len(values), 0)
