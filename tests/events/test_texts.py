"""Texts that are not Unicode, numbers written as texts, and times in every common spelling."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.events.reading import amounts_of, one
from tests.events.shapes_corpus import document
from workers.events.project import NOT_UNICODE
from workers.events.reading import EventReader
from workers.kafka.records import Records
from workers.settings.settings import settings_of

TIME_MS = 1_795_341_600_000  # 2026-11-22T10:00:00Z


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
    for read in (reader.read, reader.read_general):
        spans, rejects = one(read(records))
        counted = spans.in_any_view
        times = map(str, spans.times[counted].tolist())
        by_record = dict(zip(spans.index[counted].tolist(), times, strict=True))
        by_record |= {reject.index: reject.reason for reject in rejects}
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
    spans, _ = one(reader.read(Records.of(values[:2])))
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


def test_a_record_that_is_not_utf_8_is_not_json_wherever_its_bytes_are() -> None:
    """RFC 8259 requires UTF-8, so whether a record counts does not depend on what is counted."""
    values = (
        b'{"i":"a","note":"caf\xe9"}',
        b'{"i":"a","caf\xe9":1}',
        b'{"i":"caf\xe9"}',
    )
    good = b'{"i":"a","note":"caf\xc3\xa9"}'
    assert outcomes(reader_of({}), *values, good) == ["not JSON"] * 3 + ["0"]


def test_a_byte_order_mark_before_a_record_is_ignored() -> None:
    """Windows and .NET write one; RFC 8259 allows readers to ignore it."""
    reader = reader_of({"timestamp": "t"})
    value = b'\xef\xbb\xbf{"i":"a","t":7}'
    assert outcomes(reader, value, b"\xef\xbb\xbf" + value) == ["7", "not JSON"]


NUMBERS = {
    "us": ("1795341600000000", "1795341600000999.9", "1.7953416e15"),
    "ms": ("1795341600000", "1795341600000.0", "1795341600000.999"),
    "ns": ("1795341600000000000",),
    "s": ("1795341600", "1795341600.0", "1795341600.0009"),
}


@pytest.mark.parametrize("unit", NUMBERS)
def test_a_time_may_be_a_number_or_a_text_that_holds_it(unit: str) -> None:
    """BigQuery, OTLP and the JSON of proto3 write 64-bit numbers as texts."""
    reader = reader_of({"timestamp": "t", "timestamp_unit": unit})
    for number in NUMBERS[unit]:
        texts = (
            b'{"i":"a","t":%b}' % number.encode(),
            b'{"i":"a","t":"%b"}' % number.encode(),
        )
        assert outcomes(reader, *texts) == [str(TIME_MS)] * 2


def test_counts_sums_buckets_and_bounds_may_be_texts_that_hold_numbers() -> None:
    """The same number, written in another way, is the same event."""
    reader = reader_of(
        {"count": "n"},
        {"items": "i", "sum": {"field": "p", "from": 0, "to": 10, "step": 0.5}},
        {"items": "p", "buckets": [0, 2, 5]},
        {"items": "i", "where": [{"field": "n", "min": 2, "max": 2}]},
        {"items": "o"},
    )
    values = (
        b'{"i":"a","n":2,"p":2.5,"o":{"x":3}}',
        b'{"i":"a","n":"2","p":"2.5","o":{"x":"3"}}',
        b'{"i":"a","n":2.0,"p":2.50,"o":{"x":3.0}}',
        b'{"i":"a","n":"2.0","p":"25e-1","o":{"x":"3e0"}}',
    )
    assert outcomes(reader, *values) == ["0"] * 4
    for read in (reader.read, reader.read_general):
        spans, _ = one(read(Records.of(values)))
        for view in range(len(reader.layout.names)):
            amounts = amounts_of(spans, reader.layout.column_of[view])
            firsts = spans.first[view].tolist()
            numbers = spans.number[view].tolist()
            assert numbers == [1] * 4
            assert len({amounts[first] for first in firsts}) == 1
    spans, _ = one(reader.read(Records.of(values[:2])))
    assert spans.declined == 0


NO_NUMBERS = (
    "",
    " 2",
    "2 ",
    "+2",
    "007",
    "2 kg",
    "1,5",
    "NaN",
    "Infinity",
    "0x10",
    "1_000",
    "٢",
)


@pytest.mark.parametrize("text", NO_NUMBERS)
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


SAME_TIME = (
    *("2026-11-22T10:00:00Z", "2026-11-22T10:00:00+00", "2026-11-22T05:00:00-05"),
    *(
        "2026-11-22 10:00:00.000000+00",
        "2026-11-22T15:30:00+0530",
        "2026-11-22T10:00:00-00:00",
    ),
    *("2026-11-22T10:00:00Z[UTC]", "2026-11-22T11:00:00+01:00[Europe/Berlin]"),
    *(
        "20261122T100000Z",
        "20261122T110000.000+0100",
        "20261122T1000Z",
        "2026-11-22T10:00",
    ),
    *(
        "2026-11-22 10:00:00 UTC",
        "2026-11-22 10:00:00 GMT",
        "2026-11-22 11:00:00 +0100",
    ),
    *("2026-11-22t10:00:00z", "2026-11-22T10:00:00,000000000Z", "2026-11-22 10:00:00"),
)


@pytest.mark.parametrize("text", SAME_TIME)
def test_a_time_is_the_same_in_every_spelling_of_iso_8601(text: str) -> None:
    """What databases and languages write: Postgres, BigQuery, Java, Ruby, .NET."""
    reader = reader_of({"timestamp": "t", "timestamp_unit": "iso"})
    assert outcomes(reader, b'{"i":"a","t":"%b"}' % text.encode()) == [str(TIME_MS)]


def test_the_end_of_a_day_and_a_leap_second_are_the_midnight_after_it() -> None:
    """ISO 8601 has both; a leap second only ever ends a day in UTC."""
    reader = reader_of({"timestamp": "t", "timestamp_unit": "iso"})
    texts = (
        *("2026-12-31T24:00:00Z", "2026-12-31T23:59:60Z", "2026-12-31T15:59:60-08:00"),
        "2027-01-01T00:00:00Z",
    )
    values = [b'{"i":"a","t":"%b"}' % text.encode() for text in texts]
    assert set(outcomes(reader, *values)) == {"1798761600000"}


def test_ordinary_offsets_and_texts_are_read_by_the_compiled_reader() -> None:
    """The general reader costs fifty times as much."""
    reader = reader_of({"timestamp": "t", "timestamp_unit": "iso"})
    zones = ("+00", "-05", "+0530", "+05:30", "-09:30", "Z", "")
    values = [
        b'{"i":"a","t":"2026-11-22T10:00:00.5%b"}' % zone.encode() for zone in zones
    ]
    spans, _ = one(reader.read(Records.of(values)))
    assert (len(spans), spans.declined) == (len(values), 0)
