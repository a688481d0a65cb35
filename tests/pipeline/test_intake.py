"""Stage 1 counts every event once, in a tick that depends only on the partition's order."""

from collections import Counter
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bounding import Items, bound
from tests.events.reading import columns
from tests.pipeline.pipeline import Contributed, contents
from workers.arrays import tallies as kernels
from workers.arrays.texts import Texts
from workers.events.columns import NO_AMOUNTS, EventColumns
from workers.events.vocabulary import Vocabulary
from workers.mechanisms.config.histogram import Lane
from workers.mechanisms.noise.keyed import NoiseKey
from workers.pipeline import tallies
from workers.pipeline.contributions import Section
from workers.pipeline.growth.owners import owner_of
from workers.pipeline.intake import Intake
from workers.pipeline.tallies import Tally

KEY = NoiseKey(bytes(32))
LANES = [Lane(10, 0, 2, 1), Lane(10, 20, 1, 3), Lane(7, 3, 2, 1)]
EVENT = st.tuples(
    st.sampled_from(["k1", "k2", "k3"]),
    st.one_of(
        st.lists(st.sampled_from("abc"), max_size=3),
        st.dictionaries(st.sampled_from("abc"), st.integers(0, 5)),
    ),
    st.integers(0, 60),
)


Event = tuple[str, Items, int]


def by_hand(events: list[Event], grace: int) -> Counter[Contributed]:
    """Process one event at a time: the watermark closes ticks; late events go to the open one."""
    total: Counter[Contributed] = Counter()
    mark = None
    for key, items, time in events:
        mark = time if mark is None else max(mark, time - grace)
        for lane in LANES:
            if time >= lane.start_ms:
                tick = (max(time, mark) - lane.start_ms) // lane.tick_ms + 1
                for label, n in bound(items, lane.max_items, lane.max_count).items():
                    total[Contributed(lane, tick, key, label)] += n
    return +total


@pytest.mark.slow
@given(
    st.lists(EVENT, max_size=40),
    st.sampled_from([0, 5, 25]),
    st.sampled_from([1, 6, tallies.GROUP_ROWS]),
    st.data(),
)
def test_where_batches_and_commits_end_changes_nothing(
    events: list[Event], grace: int, together: int, data: st.DataObject
) -> None:
    """A restart re-reads from the last commit; its place and batched ticks must not matter."""
    with patch.object(tallies, "GROUP_ROWS", together):
        check_where_they_end(events, grace, data)


def check_where_they_end(events: list[Event], grace: int, data: st.DataObject) -> None:
    """Commit wherever the data say, and sum up the owners' messages."""
    intake = Intake(LANES, grace, KEY)
    owners = 3
    sequences = [0] * owners
    got: Counter[Contributed] = Counter()
    marks: list[int | None] = [None] * owners
    expected_sequence = [0] * owners
    at = 0
    while at < len(events) or not intake.empty:
        size = data.draw(st.integers(1, 7))
        intake.add(columns(events[at : at + size]))
        at += size
        if at >= len(events) or data.draw(st.booleans()):
            closes = intake.has_closed_tick()
            told = set()
            for owner, message in intake.take_messages(
                source=0, sequences=sequences, offset=at
            ):
                told.add(owner)
                assert message.sequence == expected_sequence[owner]
                expected_sequence[owner] += 1
                for section in message.sections:
                    end = section.lane.start_ms + section.tick * section.lane.tick_ms
                    before = marks[owner]
                    assert before is None or end > before, "added to a closed tick"
                    part = section.contributions()
                    named = zip(part.key_of_row.tolist(), part.labels, strict=True)
                    tags = [
                        KEY.tags(part.keys[key], [label])[0].tolist()
                        for key, label in named
                    ]
                    assert part.tags.tolist() == tags
                    assert {owner_of(name, owners) for name in section.keys} <= {owner}
                got += contents([message])
                marks[owner] = message.watermark
            assert not closes or told == {0, 1, 2}
            again = Intake(LANES, grace, KEY)  # a restart
            again.restore(intake.watermark, intake.first)
            intake = again
    assert got == by_hand(events, grace)


@pytest.mark.slow
@given(st.lists(EVENT, max_size=40), st.sampled_from([0, 5, 25]), st.integers(1, 7))
def test_events_are_called_late_where_their_tick_was_closed(
    events: list[Event], grace: int, size: int
) -> None:
    """Behind the watermark, but in a tick that is still open, an event is not late."""
    intake = Intake(LANES, grace, KEY)
    for start in range(0, len(events), size):
        intake.add(columns(events[start : start + size]))
    counted = Counter[Lane]()
    late = Counter[Lane]()
    mark = None
    for _, _, time in events:
        mark = time if mark is None else max(mark, time - grace)
        for lane in LANES:
            own = time - lane.start_ms
            at = max(time, mark) - lane.start_ms
            counted[lane] += own >= 0
            late[lane] += own >= 0 and own // lane.tick_ms < at // lane.tick_ms
    lanes = LANES if events else []
    assert intake.take_counted() == {
        lane: (counted[lane], late[lane]) for lane in lanes
    }
    assert intake.take_counted() == {}


def test_only_events_of_a_view_are_late_in_it_also_when_sent_on_by_user() -> None:
    """An origin's mark says by how much; a restart forgets what is read again."""
    lane = Lane(10, 0, 1, 1)
    events = columns(
        [("k", ["a"], 12), ("k", ["b"], 33), ("k", ["c"], 13), ("k", ["d"], 14)]
    )
    [(name, view)] = events.views.items()
    seen = np.array([True, True, True, False])
    events = replace(events, views={name: replace(view, included=seen)})
    intake = Intake([lane], grace_ms=0, key=KEY)
    intake.add(events)
    assert intake.take_counted() == {lane: (3, 1)}
    by_user = Intake([lane], grace_ms=0, key=KEY)
    by_user.add(events, came_late=np.array([15, 0, 25, 25]))
    assert by_user.take_counted() == {lane: (3, 1)}
    by_user.add(events, came_late=np.array([15, 0, 25, 25]))
    by_user.restore(None, None)
    assert by_user.take_counted() == {}


def test_the_wall_clock_closes_and_what_comes_after_counts_in_the_open_tick() -> None:
    """An idle partition must not delay its boards, and a closed tick never changes."""
    lane = Lane(10, 0, 1, 1)
    intake = Intake([lane], grace_ms=5, key=KEY)
    intake.add(columns([("k", ["a"], 12)]))
    intake.take_messages(source=0, sequences=[0], offset=1)
    assert not intake.closes_by_clock(24) and intake.closes_by_clock(25)
    # A noted end that was not reached closes its ticks once.
    assert not intake.closes_by_clock(34, noted_ms=25) and intake.closes_by_clock(
        35, noted_ms=25
    )
    intake.read_to_end(47)
    assert intake.has_closed_tick() and intake.watermark == 42
    intake.take_messages(source=0, sequences=[1], offset=1)
    intake.add(columns([("k", ["late"], 13), ("k", ["b"], 55)]))
    [(_, message)] = intake.take_messages(source=0, sequences=[2], offset=3)
    assert [(s.tick, s.labels) for s in message.sections] == [(5, b"late"), (6, b"b")]


def test_nobody_dated_ahead_moves_another_event_to_a_later_tick() -> None:
    """One clock must not affect others: the wall clock bounds what a future date closes."""
    lane = Lane(10, 0, 1, 1)
    for ahead in (13, 40, 10**9):
        intake = Intake([lane], grace_ms=0, key=KEY)
        events = [("k", ["a"], 11), ("k", ["ahead"], ahead), ("k", ["b"], 13)]
        intake.add(columns(events), read_ms=14)
        assert (intake.watermark, intake.first) == (min(ahead, 14), 11)
        intake.add(columns([("k", ["c"], 12)]), read_ms=19)
        [(_, message)] = intake.take_messages(source=0, sequences=[0], offset=4)
        ticks = {label: s.tick for s in message.sections for label in _labels(s)}
        assert ticks == {"a": 2, "b": 2, "c": 2, "ahead": ahead // 10 + 1}


def test_a_first_event_dated_ahead_begins_at_the_wall_clock() -> None:
    """Otherwise present events would precede the beginning and be lost."""
    intake = Intake([Lane(10, 0, 1, 1)], grace_ms=0, key=KEY)
    intake.add(columns([("k", ["ahead"], 95)]), read_ms=42)
    assert (intake.watermark, intake.first) == (42, 42)
    intake.add(columns([("k", ["b"], 43)]), read_ms=44)
    [(_, message)] = intake.take_messages(source=0, sequences=[0], offset=2)
    assert {s.tick for s in message.sections} == {10, 5}


def _labels(section: Section) -> list[str]:
    lengths = np.frombuffer(section.lengths, dtype="<u2").tolist()
    ends = np.cumsum(lengths).tolist()
    return [
        section.labels[end - n : end].decode()
        for n, end in zip(lengths, ends, strict=True)
    ]


def test_an_empty_partition_closes_ticks_by_the_wall_clock_alone() -> None:
    """One silent source partition must not stop all histograms."""
    intake = Intake([Lane(10, 0, 1, 1)], grace_ms=0, key=KEY)
    intake.read_to_end(100)
    [(_, message)] = intake.take_messages(source=2, sequences=[0], offset=0)
    assert (message.watermark, message.first, message.sections) == (100, None, [])


def test_owners_of_stream_keys_never_change() -> None:
    """The owner is part of the stored format: another hash would split a key's ledger."""
    assert [owner_of(key, 7) for key in ("s1", "JFK", "é", "")] == [1, 4, 4, 0]


def count_of(tally: Tally) -> Counter[tuple[int, int]]:
    """Return the tally's counts by the codes of key and label, each from one row."""
    n = len(tally)
    pairs = tally._table.pairs[:n].tolist()
    rows = zip(pairs, tally._table.counts[:n].tolist(), strict=True)
    found = {
        (pair >> 32, pair & kernels.NO_LABEL): count
        for pair, count in rows
        if pair & kernels.NO_LABEL != kernels.NO_LABEL
    }
    assert len(set(pairs)) == n == len(found) + len({key for key, _ in found})
    return Counter(found)


@pytest.mark.parametrize("seed", range(8))
def test_counts_are_the_same_while_vocabularies_and_batches_grow(seed: int) -> None:
    """Few events among many labels use a hash, many use an index; switching loses nothing."""
    rng = np.random.default_rng(seed)
    keys = Vocabulary()
    labels = Vocabulary()
    tally = Tally(keys, labels)
    expected = Counter[tuple[int, int]]()
    tables = set()
    n_keys = 3
    n_labels = 300
    for n in (1, 3, 200, 5, 40_000, 2, 3_000):
        n_keys = n_keys + int(rng.integers(0, 5))
        n_labels = n_labels * int(rng.integers(1, 3))
        for names, number in ((keys, n_keys), (labels, n_labels)):
            names.codes_of(Texts.of(str(i).encode() for i in range(len(names), number)))
        of_keys = rng.integers(0, n_keys, n).astype(np.int32)
        of_labels = rng.integers(0, n_labels, n).astype(np.int32)
        ends = np.arange(1, n + 1)
        columns = EventColumns(of_keys, keys, ends, of_labels, NO_AMOUNTS, labels, None)
        tally.add(columns, np.arange(n), NO_AMOUNTS, 1, 1)
        expected.update(zip(of_keys.tolist(), of_labels.tolist(), strict=True))
        tables.add(tally._table.label_bits >= 0)
        assert count_of(tally) == expected
    assert tables == {True, False}
