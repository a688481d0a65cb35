"""Stage 1's sketches are Algorithm 4 of each tick, however batches, commits and restarts fall."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bounding import Items, bound
from tests.events.reading import columns, reader
from tests.mechanisms.misra_gries.sets import algorithm_4
from tests.pipeline.pipeline import rows_of
from workers.kafka.store import Changelog, Store
from workers.mechanisms.config.histogram import Lane
from workers.mechanisms.noise.keyed import NoiseKey
from workers.pipeline import source_sketches
from workers.pipeline.contributions import Section
from workers.pipeline.growth.owners import owner_of
from workers.pipeline.intake import Intake
from workers.runtime.errors import StateRefused
from workers.runtime.sizes import VALUE_BYTES

KEY = NoiseKey(bytes(32))
SIZE = 3
LANES = [Lane(10, 0, 4, 1, sketch=SIZE), Lane(7, 3, 1, 1, sketch=1), Lane(10, 0, 2, 1)]
EVENT = st.tuples(
    st.sampled_from(["k1", "k2", "k3"]),
    st.one_of(
        st.lists(st.sampled_from("abcdefghi"), max_size=6),
        st.dictionaries(st.sampled_from("abcdefghi"), st.integers(0, 2)),
    ),
    st.integers(0, 60),
)

Event = tuple[str, Items, int]
# Counters by lane, tick and stream key.
Sent = dict[tuple[Lane, int, str], dict[str, int]]


def sets_by_hand(
    events: Sequence[Event], grace: int
) -> dict[tuple[Lane, int, str], list[list[str]]]:
    """Return the sets of every lane, tick and stream key, in the order of the partition."""
    sets: dict[tuple[Lane, int, str], list[list[str]]] = {}
    mark = None
    for key, items, time in events:
        mark = time if mark is None else max(mark, time - grace)
        for lane in LANES:
            if lane.sketch and time >= lane.start_ms:
                tick = (max(time, mark) - lane.start_ms) // lane.tick_ms + 1
                counted = bound(items, lane.max_items, 1)
                labels = [label for label, n in counted.items() if n]
                sets.setdefault((lane, tick, key), []).append(labels)
    return sets


def of_section(section: Section) -> Sent:
    found: Sent = {(section.lane, section.tick, key): {} for key in section.keys}
    for key, label, count in rows_of(section):
        found[section.lane, section.tick, key][label] = count
    return found


@pytest.mark.slow
@given(
    st.lists(EVENT, max_size=60),
    st.sampled_from([0, 5, 25]),
    st.booleans(),
    st.data(),
)
def test_a_tick_is_sent_once_and_is_algorithm_4_of_its_events(
    events: list[Event], grace: int, same_reader: bool, data: st.DataObject
) -> None:
    """Commits and kills fall anywhere, and codes of labels change; the state is what was stored."""
    owners = 2
    store = Store(None, Changelog("state", 0)).open()
    intake = Intake(LANES, grace, KEY, store)
    intake.restore(None, None)
    sequences = [0] * owners
    sent: Sent = {}
    own = reader()
    at = 0
    while at < len(events):
        size = data.draw(st.integers(1, 7))
        intake.add(columns(events[at : at + size], own if same_reader else None))
        at += size
        what = data.draw(st.sampled_from(["go on", "commit", "commit, die"]))
        if what.startswith("commit") or at >= len(events):
            for owner, message in intake.take_messages(
                source=0,
                sequences=sequences,
                offset=at,
                ending=at >= len(events),
            ):
                for section in message.sections:
                    if not section.lane.sketch:
                        continue
                    for place, counters in of_section(section).items():
                        assert place not in sent, "a tick is sent once"
                        assert owner_of(place[2], owners) == owner
                        sent[place] = counters
            store.write(intake.sketch_changes(), at)
        if what == "commit, die":
            again = Intake(LANES, grace, KEY, store)
            again.restore(intake.watermark, intake.first)
            intake = again
    expected = {
        (lane, tick, key): algorithm_4(lane.sketch, sets)
        for (lane, tick, key), sets in sets_by_hand(events, grace).items()
    }
    assert sent == expected
    assert not list(store.items(source_sketches.PREFIX))


def stored_by(lane: Lane, events: list[Event]) -> Store:
    """Return the store after a commit of these events, whose tick is open."""
    store = Store(None, Changelog("state", 0)).open()
    intake = Intake([lane], 0, KEY, store)
    intake.restore(None, None)
    intake.add(columns(events))
    intake.take_messages(source=0, sequences=[0], offset=1)
    store.write(intake.sketch_changes(), 1)
    return store


LONG = Lane(1_000, 0, 2_000, 1, sketch=2_000)
OPEN: list[Event] = [
    ("k", [f"{i:01000}" for i in range(first, first + 500)], 1)
    for first in (0, 500, 1_000)
]


def test_a_sketch_too_long_for_a_message_is_stored_in_pages() -> None:
    store = stored_by(LONG, OPEN)
    sizes = [len(value) for _, value in store.items(source_sketches.PREFIX)]
    assert len(sizes) == 3
    assert max(sizes) <= VALUE_BYTES
    intake = Intake([LONG], 0, KEY, store)
    intake.restore(1, 1)
    intake.read_to_end(1_000)
    [(_, message), *_] = intake.take_messages(source=0, sequences=[0], offset=2)
    assert sum(section.rows for section in message.sections) >= 1
    store.write(intake.sketch_changes(), 2)
    assert not list(store.items(source_sketches.PREFIX))


def test_what_was_stored_for_a_lane_that_is_gone_is_deleted() -> None:
    """It has missed the events since, so it must not count if the lane comes back."""
    store = stored_by(LONG, OPEN)
    intake = Intake([LONG._replace(sketch=3)], 0, KEY, store)
    intake.restore(1, 1)
    assert not intake.take_messages(source=0, sequences=[0], offset=2)
    store.write(intake.sketch_changes(), 2)
    assert not list(store.items(source_sketches.PREFIX))


def test_damaged_or_missing_blocks_are_refused() -> None:
    keys: list[Event] = [(f"k{i}", ["a", "b"], 1) for i in range(100)]
    lane = Lane(1_000, 0, 4, 1, sketch=SIZE)
    whole = dict(stored_by(lane, keys).items(source_sketches.PREFIX))
    assert len(whole) == 2
    first, second = sorted(whole)
    for damaged in (
        {second: whole[second]},
        {first: whole[first][:-1], second: whole[second]},
        {first: b"\x02" + whole[first][1:]},
        {first: whole[second]},
        {first: whole[first] + b"x"},
    ):
        store = Store(None, Changelog("state", 0)).open()
        store.write(damaged.items(), 1)
        with pytest.raises(StateRefused):
            Intake([lane], 0, KEY, store).restore(1, 1)
