"""Every kind of broken record gets its reason and no valid one beside it is lost (interfaces.md, Events)."""

import pytest

from workers.agents.events import EventReader
from workers.settings import EventsSettings

SETTINGS = EventsSettings(topic="orders", key="shop", items="products", timestamp="ts")
GOOD = b'{"shop":"s1","products":["a","b"],"ts":1000}'
BROKEN = {
    b"": "not JSON",
    b"\xff": "not JSON",
    b'{"shop":"s1"': "not JSON",
    b'{"shop":"s1","products":["a"],"ts":1}{}': "not JSON",
    b'{"shop":"s1","products":["a"],"ts":1},{"shop":"s1","products":["a"],"ts":1}': "not JSON",
    b'{"shop":"s1","products":["\\ud800"],"ts":1}': "not JSON",
    b"[" * 100_000: "not JSON",
    b'{"deep":' + b"[" * 5_000 + b"]" * 5_000 + b',"shop":"s1","products":["a"],"ts":1}': "not JSON",
    b'{"shop":"s1","ts":1,"products":' + b"[" * 5_000 + b"]" * 5_000 + b"}": "not JSON",
    b"[1]": "not a JSON object",
    b"null": "not a JSON object",
    b'"text"': "not a JSON object",
    b'{"products":["a"],"ts":1}': "missing field 'shop'",
    b'{"shop":7,"products":["a"],"ts":1}': "field 'shop' is not a string",
    b'{"shop":"s1","ts":1}': "missing field 'products'",
    b'{"shop":"s1","products":7,"ts":1}': "field 'products' is not a string, list or object",
    b'{"shop":"s1","products":null,"ts":1}': "field 'products' is not a string, list or object",
    b'{"shop":"s1","products":["a",7],"ts":1}': "field 'products' has an item that is not a string",
    b'{"shop":"s1","products":{"a":-1},"ts":1}': "a count in 'products' is not a non-negative integer",
    b'{"shop":"s1","products":{"a":1.0},"ts":1}': "a count in 'products' is not a non-negative integer",
    b'{"shop":"s1","products":{"a":true},"ts":1}': "a count in 'products' is not a non-negative integer",
    b'{"shop":"s1","products":{"a":"1"},"ts":1}': "a count in 'products' is not a non-negative integer",
    b'{"shop":"s1","products":["a"]}': "missing field 'ts'",
    b'{"shop":"s1","products":["a"],"ts":"1"}': "field 'ts' is not a time in ms",
    b'{"shop":"s1","products":["a"],"ts":-1}': "field 'ts' is not a time in ms",
    b'{"shop":"s1","products":["a"],"ts":10001}': "dated too far ahead",
    b'{"shop":"s1","products":["' + b"x" * 1025 + b'"],"ts":1}': "label too long",
    b'{"shop":"s1","products":["' + "é".encode() * 513 + b'"],"ts":1}': "label too long",
    b'{"shop":"' + b"s" * 1025 + b'","products":[],"ts":1}': "label too long",
    b'{"shop":"s1","products":{"' + b"x" * 1025 + b'":0},"ts":1}': "label too long",
    b'{"shop":"s9","products":["a"],"ts":1}': "key not declared",
    b'{"pad":"' + b"x" * 1_000_000 + b'","shop":"s1","products":["a"],"ts":1}': "record too large",
}


@pytest.mark.parametrize("value", BROKEN, ids=lambda v: BROKEN[v])
def test_a_broken_record_is_named_and_its_neighbours_are_read(value: bytes) -> None:
    """One bad record must neither stop nor shift the batch."""
    reader = EventReader(SETTINGS, frozenset({"s1", "s2"}))
    values = [GOOD, value, GOOD.replace(b"s1", b"s2")]
    events, rejects = reader.read(values, [None] * 3, [0] * 3, latest_ms=10_000)
    assert [(r.index, r.reason) for r in rejects] == [(1, BROKEN[value])]
    assert (list(events.keys), events.items, events.times.tolist()) == (["s1", "s2"], [["a", "b"]] * 2, [1000, 1000])


def test_a_record_without_value_is_rejected() -> None:
    """A tombstone in the events topic is no event."""
    _, rejects = EventReader(SETTINGS, None).read([None], [None], [0], latest_ms=None)
    assert [r.reason for r in rejects] == ["no value"]


@pytest.mark.parametrize(
    "products",
    [b'"a"', b"[]", b'["a","a"]', b'{"a":3,"b":0}', b'["' + b"x" * 1024 + b'"]', b'{"a":99999999999999999999}'],
)
def test_what_is_allowed_is_read(products: bytes) -> None:
    """More than the bounds is no error, and a label of 1,024 bytes is a label."""
    value = b'{"extra":[1],"shop":"s1","products":' + products + b',"ts":5}'
    events, rejects = EventReader(SETTINGS, None).read([value], [None], [0], latest_ms=None)
    assert not rejects and len(events.items) == 1


def test_the_record_key_and_time_are_used_where_the_settings_say_so() -> None:
    """`$key` and a missing timestamp field mean the record's own."""
    reader = EventReader(EventsSettings(topic="t", key="$key", items="q"), None)
    values = [b'{"q":"a"}', b"{", b'{"q":"b"}', b'{"q":"c"}', b'{"q":"d"}']
    events, rejects = reader.read(values, [b"k1", b"k2", None, b"\xff", b"k5"], [10, 20, 30, 40, 50], latest_ms=None)
    assert (list(events.keys), events.items, events.times.tolist()) == (["k1", "k5"], ["a", "d"], [10, 50])
    assert [(r.index, r.reason) for r in rejects] == [
        (1, "not JSON"),
        (2, "record key is no label"),
        (3, "record key is no label"),
    ]


def test_one_histogram_for_everything_needs_no_key() -> None:
    """`$all` counts every event under the stream key `all`."""
    reader = EventReader(EventsSettings(topic="t", key="$all", items="q"), None)
    events, _ = reader.read([b'{"q":"a"}'], [None], [1], latest_ms=None)
    assert list(events.keys) == ["all"]
