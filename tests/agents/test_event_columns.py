"""Events as columns count what events as lists count."""

from __future__ import annotations

from collections import Counter
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.agents import column_tallies
from workers.agents.column_tallies import TAGS_HELD, Ready
from workers.agents.contributions import Section, decode
from workers.agents.event_columns import AMOUNT_MAX, EventColumns, Vocabulary, columns_of_events, distinct, joined
from workers.agents.events import Events
from workers.mechanisms.config import Lane
from workers.mechanisms.ledger import Contributions
from workers.mechanisms.noise.keyed import NoiseKey
from workers.replay.stages import ReplayIntake

KEY = NoiseKey(bytes(32))

LANES = [Lane(10, 0, 1, 1), Lane(10, 50, 2, 1), Lane(1_000, 0, 3, 2), Lane(7, 0, 100, 5), Lane(10, 0, 2, 1, 3, 4)]
LABELS = st.sampled_from([f"l{i}" for i in range(12)])
ITEMS = st.one_of(
    LABELS,
    st.lists(LABELS, max_size=5),
    st.lists(LABELS, min_size=9, max_size=14),
    st.dictionaries(LABELS, st.integers(0, 4), max_size=5),
)
EVENTS = st.lists(st.tuples(st.sampled_from("abc"), ITEMS, st.integers(0, 300), st.sampled_from("uvw")), max_size=40)


def listed(rows: list[Any]) -> Events:
    keys, items, times, users = ([row[i] for row in rows] for i in range(4))
    return Events(keys, items, np.array(times, dtype=np.int64), users)


def counted(batches: list[Any], grace_ms: int) -> tuple[Any, set[Any]]:
    """What a commit after each second batch hands over: counts by (lane, tick, key, label), and the (lane, tick, key)s that are named."""
    intake, sequences = ReplayIntake(LANES, grace_ms), [0]
    counts: Counter[Any] = Counter()
    named: set[Any] = set()

    def commit() -> None:
        parts: list[Section | Ready] = []
        for _, message in intake.commit(source=0, sequences=sequences, offset=0):
            parts += decode(message).sections
        for part in (*parts, *intake.columns.take(KEY)):
            of_part = part.contributions(KEY)
            again = msgspec.msgpack.decode(part.encoded(), type=Section).contributions(KEY)
            assert rows(again) == rows(of_part)  # what waits in a file is the same
            for key, label, count, tag in rows(of_part):
                assert tag == tuple(KEY.tags(key, [label])[0].tolist()) and count > 0
                counts[part.lane, part.tick, key, label] += count
            named.update((part.lane, part.tick, key) for key in of_part.keys)

    for i, batch in enumerate(batches):
        if isinstance(batch, EventColumns):
            intake.add_columns(batch)
        else:
            intake.add(batch)
        if i % 2:
            commit()
    commit()
    return counts, named


def rows(part: Contributions) -> set[Any]:
    keys = [part.keys[i] for i in part.key_of_row.tolist()]
    found = set(zip(keys, part.labels, part.counts.tolist(), map(tuple, part.tags.tolist()), strict=True))
    assert len(found) == len(part.labels)  # each item once
    return found


@settings(max_examples=150, deadline=None)
@given(st.lists(EVENTS, max_size=4), st.integers(0, 60), st.integers(1, 6), st.sampled_from([1, 25, TAGS_HELD]))
def test_columns_count_what_lists_count(
    batches: list[list[Any]], grace_ms: int, texts_max: int, tags_held: int
) -> None:
    """Replay must bound, close and add up as the worker does, whatever an event looks like and when it comes."""
    keys, labels = Vocabulary(texts_max), Vocabulary(texts_max)
    lists, columns = [listed(rows) for rows in batches], []
    for events in lists:
        keys.begin()
        labels.begin()
        columns.append(distinct(columns_of_events(events, keys, labels)))
    with patch.object(column_tallies, "TAGS_HELD", tags_held):
        assert counted(columns, grace_ms) == counted(lists, grace_ms)


@settings(max_examples=100, deadline=None)
@given(st.lists(EVENTS, min_size=1, max_size=4))
def test_joined_columns_are_the_events_one_after_the_other(batches: list[list[Any]]) -> None:
    """Lines are decoded in small portions and counted in large ones."""
    keys, labels = Vocabulary(), Vocabulary()
    together = distinct(joined([columns_of_events(listed(rows), keys, labels) for rows in batches]))
    alone = distinct(columns_of_events(listed([row for rows in batches for row in rows]), keys, labels))
    assert together.events().keys == alone.events().keys
    assert as_counts(together) == as_counts(alone)
    assert together.users == alone.users
    assert together.times.tolist() == alone.times.tolist()


def as_counts(columns: EventColumns) -> list[dict[str, int]]:
    return [
        dict.fromkeys(items, 1) if isinstance(items, list) else dict(items)  # type: ignore[arg-type]  # never a string here
        for items in columns.events().items
    ]


def test_the_columns_of_events_are_the_events() -> None:
    """A lane that bounds users looks at one event after the other."""
    rows = [("a", ["x", "y", "x"], 5, "u"), ("b", {"y": 3, "z": 0}, 6, "v"), ("a", "x", 7, "u"), ("c", [], 8, "w")]
    columns = distinct(columns_of_events(listed(rows), Vocabulary(), Vocabulary()))
    events = columns.events()
    assert list(events.keys) == ["a", "b", "a", "c"]
    assert list(events.items) == [{"x": 2, "y": 1}, {"y": 3, "z": 0}, {"x": 1}, {}]
    assert events.users == ["u", "v", "u", "w"]
    assert list(columns.events().items[0]) == ["x", "y"]  # the order of first occurrence decides what counts


@pytest.mark.parametrize(("last", "wanted"), [(True, [7, 2, 1]), (False, [8, 2, 1])])
def test_a_name_that_is_repeated_with_amounts_counts_once_more_or_last(last: bool, wanted: list[int]) -> None:
    """A JSON object keeps the last value of a name; a list of structures is a list."""
    codes = np.array([4, 5, 4, 4], dtype=np.int32)
    columns = EventColumns(
        times=np.array([1, 2]), keys=np.zeros(2, dtype=np.int32), key_names=["k"], labels=codes,
        amounts=np.array([1, 2, 7, 1]), ends=np.array([3, 4]), label_names=list("abcdef"),
    )  # fmt: skip
    once = distinct(columns, last=last)
    assert once.amounts is not None
    assert (once.labels.tolist(), once.amounts.tolist(), once.ends.tolist()) == ([4, 5, 4], wanted, [2, 3])


def test_amounts_beyond_any_bound_do_not_overflow() -> None:
    """JSON has integers of any size."""
    rows = [("a", {"x": 10**30}, 5, "u")] * 3
    columns = distinct(columns_of_events(listed(rows), Vocabulary(), Vocabulary()))
    assert columns.amounts is not None and columns.amounts.tolist() == [AMOUNT_MAX] * 3
    assert counted([columns], 0) == counted([listed(rows)], 0)
