"""Events as columns of codes give the same counts as plain Python over their JSON."""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import json

from tests.arrays.uncompiled import WAYS
from tests.bounding import bound
from tests.events.reading import columns, reader, shape
from workers.events import columns as pairs
from workers.events import vocabulary
from workers.events.columns import (
    ADDED_UP,
    FIRST,
    LAST,
    NO_AMOUNTS,
    EventColumns,
    Events,
    LabelEncoder,
    Names,
    one_label_each,
)
from workers.events.log_values import AMOUNT_MAX
from workers.events.reading import EventReader, SourceReader
from workers.events.vocabulary import Vocabulary
from workers.kafka.records import Records
from workers.mechanisms.config.histogram import Lane
from workers.mechanisms.config.views import Condition, Shape, View, parse
from workers.mechanisms.noise.keyed import NoiseKey
from workers.pipeline.intake import Intake

KEY = NoiseKey(bytes(32))

LANES = [
    Lane(10, 0, 1, 1),
    Lane(10, 50, 2, 1),
    Lane(1_000, 0, 3, 2),
    Lane(7, 0, 100, 5),
]
LABELS = st.sampled_from([f"l{i}" for i in range(24)])
ITEMS = st.one_of(
    LABELS,
    st.lists(LABELS, max_size=5),
    st.lists(LABELS, min_size=14, max_size=24),
    st.dictionaries(LABELS, st.integers(0, 4), max_size=5),
)
EVENTS = st.lists(
    st.tuples(st.sampled_from("abc"), ITEMS, st.integers(0, 300)), max_size=40
)


def plainly(batches: list[list[Any]], grace_ms: int) -> tuple[Counter[Any], set[Any]]:
    """Return counts by (lane, tick, key, label), and the set of named (lane, tick, key)."""
    counts: Counter[Any] = Counter()
    named: set[Any] = set()
    mark = None
    for key, items, time in (event for batch in batches for event in batch):
        mark = time if mark is None else max(mark, time - grace_ms)
        for lane in LANES:
            tick = (max(time, mark) - lane.start_ms) // lane.tick_ms + 1
            if time >= lane.start_ms and tick >= 1:
                named.add((lane, tick, key))
                for label, n in bound(items, lane.max_items, lane.max_count).items():
                    counts[lane, tick, key, label] += n
    return +counts, named


def counted(batches: list[Events], grace_ms: int) -> tuple[Counter[Any], set[Any]]:
    """Return the same from commits after every second batch, and check the tags."""
    intake = Intake(LANES, grace_ms, KEY)
    sequences = [0]
    counts: Counter[Any] = Counter()
    named: set[Any] = set()
    for i, batch in enumerate([*batches, None]):
        if batch is not None:
            intake.add(batch)
            if i % 2 == 0:
                continue
        for _, message in intake.take_messages(source=0, sequences=sequences, offset=0):
            for section in message.sections:
                part = section.contributions()
                named.update((section.lane, section.tick, key) for key in part.keys)
                keys = [part.keys[at] for at in part.key_of_row.tolist()]
                rows = zip(
                    keys, part.labels, part.counts.tolist(), part.tags, strict=True
                )
                for key, label, n, tag in rows:
                    assert (tag == KEY.tags(key, [label])[0]).all() and n > 0
                    counts[section.lane, section.tick, key, label.decode()] += n
    return counts, named


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    st.lists(EVENTS, max_size=4),
    st.integers(0, 60),
    st.sampled_from([1, 6, 1 << 21]),
    st.sampled_from([1, 4, 1 << 17]),
)
def test_columns_count_what_the_events_say(
    batches: list[list[Any]], grace_ms: int, texts_max: int, held: int
) -> None:
    """Covers bounding, ticks, sums and tags, for any event and any vocabulary boundary."""
    with (
        patch.object(vocabulary, "TEXTS_MAX", texts_max),
        patch.object(pairs, "SLOTS", held),
    ):
        by = reader()
        found = counted([columns(batch, by) for batch in batches], grace_ms)
        assert found == plainly(batches, grace_ms)


def test_an_event_holds_each_label_once_in_the_order_of_first_occurrence() -> None:
    rows = [
        ("a", ["x", "y", "x"], 5),
        ("b", {"y": 3, "z": 0}, 6),
        ("a", "x", 7),
        ("c", [], 8),
    ]
    found = columns(rows)
    assert shape(found) == [
        (5, "a", {"x": 2, "y": 1}),
        (6, "b", {"y": 3, "z": 0}),
        (7, "a", {"x": 1}),
        (8, "c", {}),
    ]
    assert list(shape(found)[0][2]) == ["x", "y"]
    assert shape(found.select(np.array([1, 3]))) == [
        (6, "b", {"y": 3, "z": 0}),
        (8, "c", {}),
    ]
    assert shape(found.select(np.array([2]))) == [(7, "a", {"x": 1})]


def test_views_of_one_field_share_its_vocabulary() -> None:
    """A pair counted by both is then known to both; buckets of the field have separate codes."""
    key = parse("key")
    items = parse("items")
    n = parse("n")
    views = {
        "all": View(key, items),
        "some": View(key, items, where=(Condition(field="key", in_=("a",)),)),
        "texts": View(key, n),
        "buckets": View(key, n, edges=(0.0, 5.0)),
    }
    by = SourceReader(
        EventReader(Shape(MappingProxyType(views))), dict.fromkeys(views), earliest_ms=0
    )
    objects = [
        {"key": "b", "items": ["x", "z"], "n": 7},
        {"key": "a", "items": ["y", "x"], "n": 4},
    ]
    [reading] = by.read(Records.of(list(map(json.encode, objects))))
    found = reading.events
    assert not reading.rejects
    names = {name: columns.label_names for name, columns in found.views.items()}
    assert names["all"] is names["some"]
    assert len({id(each) for each in names.values()}) == 3
    texts = {
        name: list(names[name].texts(columns.labels))
        for name, columns in found.views.items()
    }
    # Text found for one view is there for the other, and the names tell which fields it uses.
    assert texts["all"] == texts["some"] == [b"x", b"z", b"y", b"x"]
    assert texts["texts"] == [b"7", b"4"] and texts["buckets"] == [b">=5", b"[0,5)"]
    seen = found.views["some"].included
    assert found.views["all"].included is None
    assert seen is not None and seen.tolist() == [False, True]


def looked(columns: EventColumns) -> Iterator[tuple[str, list[bytes]] | None]:
    """Yield stream key and labels of each event; None if the view excludes it."""
    for i, (start, stop) in enumerate(pairwise([0, *columns.ends.tolist()])):
        labels = list(columns.label_names.texts(columns.labels[start:stop]))
        seen = columns.included is None or columns.included[i]
        yield (columns.key_names.name(columns.keys[i]), labels) if seen else None


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("undeclared", [False, True])
def test_views_of_one_field_see_what_each_sees_alone(
    seed: int, undeclared: bool
) -> None:
    """They share labels, but every view selects its own events."""
    rng = np.random.default_rng(seed)
    key = parse("key")
    items = parse("items")
    kinds = [("a",), ("b", "c"), ("c",)][: 1 + seed % 3]
    views = {
        str(i): View(key, items, where=(Condition(field="kind", in_=kind),))
        for i, kind in enumerate(kinds)
    }
    views["other key"] = View(
        parse("kind"), items, where=(Condition(field="kind", in_=("c",)),)
    )
    objects = [
        {
            "key": f"k{rng.integers(3)}",
            "kind": "abcd"[rng.integers(4)],
            "items": [f"i{i}" for i in rng.integers(0, 4, rng.integers(4))],
        }
        for _ in range(60)
    ]
    served = frozenset({"k0", "k1"} if undeclared else {"k0", "k1", "k2"})

    def read(names: list[str]) -> dict[str, list[tuple[str, list[bytes]] | None]]:
        shape = Shape(MappingProxyType({name: views[name] for name in names}))
        declared = {name: None if name == "other key" else served for name in names}
        by = SourceReader(EventReader(shape), declared, earliest_ms=0)
        [reading] = by.read(Records.of(list(map(json.encode, objects))))
        found = reading.events
        assert bool(reading.rejects) is (undeclared and names != ["other key"])
        return {name: [*looked(columns)] for name, columns in found.views.items()}

    together = read(list(views))
    if undeclared:  # a record that one of them rejects is no event for the others
        counted_kinds = {each for kind in kinds for each in kind}
        objects = [
            each
            for each in objects
            if each["key"] != "k2" or each["kind"] not in counted_kinds
        ]
        undeclared = False
    for name in views:
        assert together[name] == read([name])[name]


@pytest.mark.parametrize(
    ("repeated", "wanted"),
    [(LAST, [7, 2, 1]), (ADDED_UP, [8, 2, 1]), (FIRST, [1, 2, 1])],
)
@pytest.mark.parametrize("others", [0, 30])
def test_a_name_that_is_repeated_with_amounts_counts_once_more_or_last_or_first(
    repeated: int, wanted: list[int], others: int
) -> None:
    """A list adds counts up, a map keeps the last, numbers the first. Long events use another lookup."""
    coder = LabelEncoder(Names())
    data = b"".join(b"%02d" % i for i in range(40))
    places = np.stack((np.arange(0, 80, 2), np.arange(2, 82, 2)), axis=1)
    coder.labels.vocabulary.codes(np.frombuffer(data, dtype=np.uint8), places)
    labels = np.array([4, 5, 4, *range(6, 6 + others), 4], dtype=np.int32)
    amounts = np.array([1, 2, 7, *[3] * others, 1])
    number = np.array([3 + others, 1])
    keys = np.zeros(2, dtype=np.int32)
    first = np.cumsum(number) - number
    made = coder.columns(
        keys, Vocabulary(), first, number, labels, amounts, repeated=repeated
    )
    assert made.labels.tolist() == [4, 5, *range(6, 6 + others), 4]
    assert made.amounts.tolist() == [*wanted[:2], *[3] * others, wanted[2]]
    assert made.ends.tolist() == [2 + others, 3 + others]


def test_amounts_beyond_any_bound_do_not_overflow() -> None:
    """JSON has integers of any size."""
    rows = [("a", {"x": 10**30}, 5)] * 3
    found = columns(rows)
    assert found.views[""].amounts.tolist() == [AMOUNT_MAX] * 3
    assert counted([found], 0) == plainly([rows], 0)
    assert not len(NO_AMOUNTS)


def test_labels_are_alone_where_each_event_has_its_own_only() -> None:
    """Then they are used directly; a wrong label would count for another event."""
    for first, number, alone in (
        ([], [], True),
        ([0], [1], True),
        ([0, 1, 2], [1, 1, 1], True),
        ([0, 1, 2], [1, 2, 1], False),
        ([0, 1, 1], [1, 0, 1], False),
        ([0, 1, 2], [1, 1, -1], False),
        ([0, 2, 1], [1, 1, 1], False),
        ([1, 0], [1, 1], False),
    ):
        for way in WAYS:
            given = (np.array(column, dtype=np.int64) for column in (first, number))
            assert way(one_label_each)(*given) is alone
