"""Broken records get their reason, and no valid neighbour is lost."""

import sys
from collections.abc import Iterator
from threading import Thread

import msgspec
import numpy as np
import pytest

from tests.events.reading import event_reader, read_back
from workers.arrays.types import Bools, Bytes, Longs
from workers.events.json import NESTED_MAX
from workers.events.log import LIST, VALUE, FieldSpans
from workers.events.reading import EventReader
from workers.events.views import ITEMS
from workers.kafka.records import Records
from workers.settings.settings import EventsSettings

SETTINGS = EventsSettings(topic="orders", key="shop", items="products", timestamp="ts")
GOOD = b'{"shop":"s1","products":["a","b"],"ts":1000}'
BROKEN = {
    b"": "not JSON",
    b"\xff": "not JSON",
    b'{"shop":"s1"': "not JSON",
    b'{"shop":"s1","products":["a"],"ts":1}{}': "not JSON",
    b'{"shop":"s1","products":["a"],"ts":1},{"shop":"s1","products":["a"],"ts":1}': "not JSON",
    b'{"shop":"s1","products":["a"],"note":"caf\xe9","ts":1}': "not JSON",
    b'{"shop":"s1","products":["a"],"caf\xe9":1,"ts":1}': "not JSON",
    b'{"shop":"s1","products":["a"],"note":"a \\x22b\\x22","ts":1}': "not JSON",
    b'{"shop":"s1","products":["a"],"note":NaN,"ts":1}': "not JSON",
    b'{"shop":"s1","products":["a"],"note":1,"ts":1,}': "not JSON",
    b"{'shop':'s1','products':['a'],'ts':1}": "not JSON",
    GOOD + b"\n" + GOOD: "not JSON",
    GOOD + b"\0": "not JSON",
    GOOD.decode().encode("utf-16"): "not JSON",
    b"[" * 100_000: "not JSON",
    b'{"deep":'
    + b"[" * 5_000
    + b"]" * 5_000
    + b',"shop":"s1","products":["a"],"ts":1}': "not JSON",
    b'{"shop":"s1","ts":1,"products":' + b"[" * 5_000 + b"]" * 5_000 + b"}": "not JSON",
    b"[1]": "not a JSON object",
    b"null": "not a JSON object",
    b'"text"': "not a JSON object",
    b'{"products":["a"],"ts":1}': "missing field 'shop'",
    b'{"shop":7.5,"products":["a"],"ts":1}': "field 'shop' is not a string, whole number or boolean",
    b'{"shop":"s1","ts":1}': "missing field 'products'",
    b'{"shop":"s1","products":7.0,"ts":1}': "field 'products' is not a string, list or object",
    b'{"shop":"s1","products":null,"ts":1}': "field 'products' is null",
    b'{"shop":"s1","products":["a",7.5],"ts":1}': "field 'products' has an item that is not a string, whole number or boolean",
    b'{"shop":"s1","products":{"a":-1},"ts":1}': "a count in 'products' is not a non-negative integer",
    b'{"shop":"s1","products":{"a":1.5},"ts":1}': "a count in 'products' is not a non-negative integer",
    b'{"shop":"s1","products":{"a":"1.5"},"ts":1}': "a count in 'products' is not a non-negative integer",
    b'{"shop":"s1","products":{"a":true},"ts":1}': "a count in 'products' is not a non-negative integer",
    b'{"shop":"s1","products":{"a":"1 kg"},"ts":1}': "a count in 'products' is a text that holds no number",
    b'{"shop":"s1","products":["a"]}': "missing field 'ts'",
    b'{"shop":"s1","products":["a"],"ts":"-1"}': "field 'ts' is not a time in ms",
    b'{"shop":"s1","products":["a"],"ts":"1 s"}': "field 'ts' is not a time in ms: a text that holds no number",
    b'{"shop":"s1","products":["a"],"ts":-1}': "field 'ts' is not a time in ms",
    b'{"shop":"s1","products":["' + b"x" * 1025 + b'"],"ts":1}': "label too long",
    b'{"shop":"s1","products":["'
    + "é".encode() * 513
    + b'"],"ts":1}': "label too long",
    b'{"shop":"' + b"s" * 1025 + b'","products":[],"ts":1}': "label too long",
    b'{"shop":"s1","products":{"' + b"x" * 1025 + b'":0},"ts":1}': "label too long",
    b'{"pad":"'
    + b"x" * 1_000_000
    + b'","shop":"s1","products":["a"],"ts":1}': "record too large",
}


def nested(depth: int, name: bytes = b"deep") -> bytes:
    return b'{"%b":%b%b,' % (name, b"[" * (depth - 1), b"]" * (depth - 1)) + GOOD[1:]


@pytest.mark.parametrize("value", BROKEN, ids=lambda v: BROKEN[v])
def test_a_broken_record_is_named_and_its_neighbours_are_read(value: bytes) -> None:
    """One bad record must neither stop nor shift the batch."""
    reader = event_reader(SETTINGS)
    [spans] = reader.read(Records.of([GOOD, value, GOOD.replace(b"s1", b"s2")]))
    assert [(r.index, r.reason) for r in spans.rejects] == [(1, BROKEN[value])]
    assert spans.declined == 1
    assert read_back(spans) == [
        (0, 1000, b"s1", None, [b"a", b"b"], [1, 1]),
        (2, 1000, b"s2", None, [b"a", b"b"], [1, 1]),
    ]


def test_a_record_without_value_is_rejected() -> None:
    """A tombstone in the events topic is not an event."""
    [reading] = event_reader(SETTINGS).read(Records.of([None]))
    assert [r.reason for r in reading.rejects] == ["no value"]


def test_an_empty_batch_has_no_events() -> None:
    """A fetch may contain only control records."""
    [spans] = event_reader(SETTINGS).read(Records.of([]))
    assert (len(spans), spans.rejects) == (0, [])


def test_many_labels_get_room() -> None:
    """All labels in a record are read; the scanner resumes where its room ended."""
    counts = [3, 0, 5_000, 1, 40_000, 2]
    values = [
        b'{"shop":"s1","products":[%b],"ts":%d}' % (b",".join([b'"a"'] * n), n)
        for n in counts
    ]
    [spans] = event_reader(SETTINGS).read(Records.of(values))
    assert (spans.rejects, spans.declined, spans.label_counts[0].tolist()) == (
        [],
        0,
        counts,
    )
    assert [row[4] for row in read_back(spans)] == [[b"a"] * n for n in counts]


def test_amounts_are_said_to_be_1_only_where_they_are() -> None:
    """The kernel writes no amounts before the first that is not 1; they must still be there."""
    reader = event_reader(EventsSettings(topic="t", key="$all", items="i"))
    single = b'{"i":{"x":1}}'
    two = b'{"i":{"x":1,"y":2}}'
    repeated = b'{"i":{"x":1,"x":3}}'
    # The general reader decides about duplicate names.
    for values, amounts in (
        ([single] * 3, [1] * 3),
        ([single, two, single], [1, 1, 2, 1]),
        ([two], [1, 2]),
        ([repeated, single], [1, 3]),
        ([two, repeated], [1, 2, 3]),
    ):
        [reading] = reader.read(Records.of(values))
        written = [] if max(amounts) == 1 else amounts
        assert [column.tolist() for column in reading.amounts] == [written]
    many = [b'{"i":[%b]}' % b",".join([b'"a"'] * 1000)] * 140
    [reading] = reader.read(Records.of(many))
    assert [len(column) for column in reading.labels] == [140_000]
    assert [len(column) for column in reading.amounts] == [0]


class _Numbers:
    """Format whose scanner found integer lists of these lengths."""

    def __init__(self, reader: EventReader, lengths: list[int]) -> None:
        slot = int(reader.layout.program.columns[0, ITEMS])
        rows = []
        for length in lengths:
            rows.append((slot, LIST, length, -1))
            rows += [(slot, VALUE, -(10**17) - i, 0) for i in range(length)]
        self._rows = np.array(rows, dtype=np.int64)
        self._ends = np.cumsum([1 + length for length in lengths])

    def scan(self, data: Bytes, values: Longs, plain: Bools) -> Iterator[FieldSpans]:
        status = np.zeros(len(values), dtype=np.int8)
        yield FieldSpans(0, data, self._rows, self._ends, status, lambda _: None)


@pytest.mark.parametrize("length", [1, 7, 60])
def test_whatever_room_ends_first_there_is_more_of_it(length: int) -> None:
    """Most rows are labels that need decoded text: both rooms are too small at first."""
    reader = event_reader(EventsSettings(topic="t", key="$key", items="q"))
    lengths = [length] * 30 + [1]
    records = Records.of([b"x"] * 31, [b"k"] * 31, range(31))
    [spans] = reader.read(records, _Numbers(reader, lengths))
    assert (spans.rejects, spans.declined) == ([], 0)
    wanted = [[b"%d" % (-(10**17) - i) for i in range(n)] for n in lengths]
    assert [row[4] for row in read_back(spans)] == wanted


def test_the_record_key_and_time_are_used_where_the_settings_say_so() -> None:
    """`$key` and a missing time field mean the record's own; errors in the value come first."""
    reader = event_reader(EventsSettings(topic="t", key="$key", items="q"))
    values = (
        b'{"q":"a"} { {"q":"b"} {"q":"c"} {"q":"d"} { {"q":"e"} {"q":"\\u0066"}'.split()
    )
    keys = [b"k1", b"k2", None, b"\xff", b"k\x00\n5", None, b"k" * 1025, None]
    [spans] = reader.read(Records.of(values, keys, range(10, 90, 10)))
    assert read_back(spans) == [
        (0, 10, b"k1", None, [b"a"], [1]),
        (4, 50, b"k\x00\n5", None, [b"d"], [1]),
    ]
    assert len(spans.labels[0]) == 2
    reasons = dict.fromkeys((1, 2, 3, 5, 6, 7), "record key is no label")
    assert {r.index: r.reason for r in spans.rejects} == reasons | {
        1: "not JSON",
        5: "not JSON",
    }


def test_a_user_is_a_string_a_whole_number_or_the_record_key() -> None:
    events = EventsSettings(topic="t", key="shop", items="q", user="who")
    good = {
        b'"ann"': b"ann",
        b"17": b"17",
        b'"17"': b"17",
        b"-17": b"-17",
        b"-0": b"0",
        b"9" * 30: b"9" * 30,
        b'""': b"",
    }
    bad = [b"1.5", b"1e2", b"true", b"null", b"9" * 5_000]
    values = [b'{"shop":"s","q":["a"],"who":%b}' % user for user in [*good, *bad]]
    long = [
        b'{"shop":"s","q":["a"],"who":%b}' % user
        for user in (b'"%b"' % (b"x" * 1025), b"7" * 1025)
    ]
    records = Records.of([*values, b'{"shop":"s","q":["a"]}', *long])
    [spans] = event_reader(events, "who").read(records)
    assert [row[3] for row in read_back(spans)] == [*good.values()]
    reasons = ["field 'who' is not a string or a whole number"] * 3 + [
        "field 'who' is null"
    ]
    reasons += ["label too long", "missing field 'who'", *["label too long"] * 2]
    assert [r.reason for r in spans.rejects] == reasons
    keyed = event_reader(msgspec.structs.replace(events, user="$key"), "$key")
    [spans] = keyed.read(Records.of([values[0], values[0]], [b"bob", None]))
    assert [row[3] for row in read_back(spans)] == [b"bob"]
    assert [r.reason for r in spans.rejects] == ["record key is no label"]


def test_how_deep_an_event_may_be_does_not_depend_on_the_interpreter() -> None:
    """Nested lists hit a msgspec limit that varies between CPython versions; ours applies first."""
    reader = event_reader(SETTINGS)
    values = [nested(depth) for depth in (2, 33, 34, NESTED_MAX, NESTED_MAX + 1)]
    strings = [
        b'{"deep":"' + b"[" * 600 + b'",' + GOOD[1:],
        b'{"deep":"\\"' + b"[" * 600 + b'",' + GOOD[1:],
    ]
    [spans] = reader.read(Records.of(values + strings))
    assert spans.index.tolist() == [0, 1, 2, 3, 5, 6]
    assert [(r.index, r.reason) for r in spans.rejects] == [(4, "not JSON")]


def test_a_deep_event_is_read_deep_in_the_stack_too() -> None:
    """A worker calls its reader a dozen or more frames deep, and every frame counts."""
    found = []

    def read(frames: int) -> None:
        if frames:
            return read(frames - 1)
        [reading] = event_reader(SETTINGS).read(Records.of([nested(NESTED_MAX)]))
        found.append(reading.rejects)
        return None

    thread = Thread(target=read, args=((sys.getrecursionlimit() - NESTED_MAX) // 2,))
    thread.start()
    thread.join()
    assert found == [[]]


def test_what_is_read_is_not_shown() -> None:
    """Records and events hold personal data: a log line or a traceback must not show it."""
    records = Records.of([GOOD.replace(b'"a"', b'"bought-in-secret"')])
    [reading] = event_reader(SETTINGS).read(records)
    shown = repr(records) + repr(reading)
    # As text, and as the numbers of an array. A shorter text might occur in an object's address.
    for secret in (
        "bought",
        str(list(b"bough"))[1:-1],
        str(list(b"bough")).replace(",", "")[1:-1],
    ):
        assert secret not in shown
