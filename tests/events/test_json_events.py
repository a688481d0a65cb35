"""The compiled reader of JSON agrees with the general one, compiled and uncompiled."""

import random
from itertools import product

import pytest

from tests.arrays.uncompiled import plain_python
from tests.events.json_corpus import (
    ESCAPES,
    INSIDE,
    VALUES,
    Generator,
    compare,
    corpus,
    difference,
    readers,
    record,
)
from tests.events.reading import event_reader, one
from workers.events import json_scanner, log, log_values, reading, views
from workers.kafka.records import Records
from workers.mechanisms.config.histogram import LABEL_BYTES_MAX
from workers.settings.settings import EventsSettings

pytestmark = pytest.mark.slow

EVENTS = EventsSettings(topic="t", key="key", items="items", timestamp="ts")


def first_difference(records: int, every: int = 1) -> str | None:
    """Compare scanner and general reader; `every` = 5 uses one in five of the settings."""
    values = corpus()
    for by in readers()[::every]:
        found, *_ = difference(by, values)
        if found:
            return found
    return next((found for found, *_ in compare(records, 3) if found), None)


def test_the_readers_agree_about_hostile_json() -> None:
    """Covers hostile input at every place in an event, with all kinds of settings."""
    assert first_difference(0) is None


def test_the_readers_agree_about_mutated_events() -> None:
    """The long run is `python -m tests.events.json_corpus --records 10000000`."""
    said, scanned, found, _ = zip(*compare(100_000, 2), strict=True)
    assert set(said) == {None}
    # A scanner that declines everything would agree as well.
    assert sum(found) > 30_000
    assert sum(scanned) > 0.6 * sum(found)


def test_the_reader_as_plain_python_agrees_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Correctness must not depend on how numba compiles the source."""
    plain = plain_python((log, json_scanner, log_values, views))
    monkeypatch.setattr(json_scanner, "scan_all", plain[json_scanner]["scan_all"])
    monkeypatch.setattr(reading, "project_views", plain[views]["project_views"])
    assert first_difference(2_000, every=5) is None


PLAIN = [
    record(),
    record(items=b'"a"'),
    record(items=b"[]"),
    record(items=b"{}"),
    record(items=b'{"a":1,"b":999999999999}'),
    record(items=b'["a","a",""]'),
    record(items='["é","商品","\U0001f600"]'.encode(), key='"žluť"'.encode()),
    record(user=b"0"),
    record(user=b"999999999999999999"),
    record(ts=b"0"),
    record(ts=b"9007199254740992"),
    record(key=b'"' + b"x" * 1024 + b'"'),
    record(x=b'{"a":[1,-0,-1.5,true,false,null,"\\n\\"\\\\",{}],"b":{"c":[]}}'),
    record(x=b"[" * 32 + b"]" * 32),
    b' \t\r\n{ "key" : "k" , "items" : [ "a" , "b" ] , "ts" : 1 , "user" : "u" } \n',
    record(items=b"{" + b",".join(b'"l%d":1' % i for i in range(64)) + b"}"),
]


def test_plain_events_are_not_declined() -> None:
    """Text beyond ASCII, spaces, other fields and counts are ordinary."""
    reader = event_reader(EVENTS, "user")
    for value in PLAIN:
        spans, rejects = one(reader.read(Records.of([value])))
        assert (rejects, spans.declined) == ([], 0), value


def test_utf8_is_what_cpython_says_it_is() -> None:
    """Covers every first two bytes, followed by all mixtures of valid and invalid ones."""
    tails = b"\x80 \x80\x80 \xbf\xbf \x80a \xc0\x80 \x80\xff a \x7f\x80 \xbf\xbf\xbf".split()
    heads = (bytes(pair) for pair in product(range(256), repeat=2))
    texts = [head + tail for head, tail in product(heads, [b"", *tails])]
    generator = random.Random(1)
    texts += [
        bytes(generator.choices(range(0x70, 256), k=generator.randrange(9)))
        for _ in range(20_000)
    ]
    records = Records.of(texts)
    valid = json_scanner.valid_texts(records.data, records.values, 1_024)
    assert valid.tolist() == [is_utf8(text) for text in texts]
    few = records.values[::97]
    plain = plain_python([log, json_scanner])[json_scanner]["valid_texts"]
    assert plain(records.data, few, 1_024).tolist() == valid[::97].tolist()


def is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_a_label_is_no_longer_than_a_label_may_be() -> None:
    """Both sides of the greatest length, and without a limit."""
    records = Records.of([b"x" * 1024, b"x" * 1025, None, b"", "é".encode() * 512])
    found = json_scanner.valid_texts(records.data, records.values, 1_024)
    assert found.tolist() == [True, False, False, True, True]
    assert log_values.LABEL_BYTES_MAX == LABEL_BYTES_MAX
    assert len(ESCAPES) > 20


def depth_of(value: bytes) -> int:
    depth = deepest = 0
    rest = iter(value)
    inside = False
    for byte in rest:
        if byte == ord('"'):
            inside = not inside
        elif inside and byte == ord("\\"):
            next(rest, None)
        elif not inside:
            depth += (byte in b"[{") - (byte in b"]}")
            deepest = max(deepest, depth)
    return deepest


def test_depth_is_that_of_brackets_outside_strings() -> None:
    """A string may be full of brackets and escaped quotes."""
    events = Generator(4).batch([b"key", b"items", b"ts", b"user"], 2_000)
    values: list[bytes | None] = [*VALUES, *INSIDE, *events, None]
    records = Records.of(values)
    expected = [0 if value is None else depth_of(value) for value in values]
    plain = plain_python([log, json_scanner])[json_scanner]["nesting_depths"]
    for depths in (json_scanner.nesting_depths, plain):
        assert depths(records.data, records.values).tolist() == expected
