"""Users whom record keys place on partitions move when a topic gets more, between epochs."""

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.events.reading import columns, reader
from tests.pipeline.pipeline import KEY, Partition, contents, unk
from workers.kafka.placement import Placement, partitions_of
from workers.mechanisms.config.histogram import Lane
from workers.pipeline.contributions import Message, messages
from workers.pipeline.growth.epochs import epochs_of_users, next_epoch
from workers.pipeline.growth.owners import Owners
from workers.pipeline.intake import Intake
from workers.runtime.errors import StateRefused

LANES = st.builds(
    Lane,
    tick_ms=st.integers(1, 6),
    start_ms=st.integers(0, 30),
    max_items=st.just(1),
    max_count=st.just(1),
    max_items_per_user=st.just(1),
    horizon=st.integers(1, 8),
)


@given(st.lists(LANES, min_size=1, max_size=3), st.integers(-50, 200))
def test_users_move_at_the_next_time_at_which_epochs_of_all_histograms_begin(
    lanes: Sequence[Lane], after_ms: int
) -> None:
    """In the middle of an epoch a user who moves would be counted twice up to the bound."""
    epochs = [(lane.start_ms, lane.tick_ms * (lane.horizon or 0)) for lane in lanes]
    all_ms = np.lcm.reduce([width for _, width in epochs])
    times = np.arange(after_ms + 1, after_ms + 1 + all_ms)
    begins = np.logical_and.reduce(
        [(times - start) % width == 0 for start, width in epochs]
    )
    expected = int(times[np.argmax(begins)]) if begins.any() else None
    assert next_epoch(epochs_of_users(lanes), after_ms) == expected
    assert (
        next_epoch(epochs_of_users([*lanes, lanes[0]._replace(horizon=None)]), after_ms)
        is None
    )


def test_a_user_is_placed_by_the_partitions_of_the_time_of_the_event() -> None:
    names = [f"user-{i}".encode() for i in range(200)]
    ends = np.cumsum([len(name) for name in names])
    places = np.stack([ends - [len(name) for name in names], ends], axis=1)
    data = np.frombuffer(b"".join(names), dtype=np.uint8)
    times = np.arange(200) % 3 * 50  # 0, 50 and 100
    counts = np.where(times < 50, 2, np.where(times < 100, 4, 7))
    homes = [
        int(partitions_of(data, places[i : i + 1], counts[i])[0]) for i in range(200)
    ]
    for partition in range(7):
        placement = Placement("murmur2", partition, [(0, 2), (50, 4), (100, 7)])
        belongs = placement.belongs(data, places, times)
        assert belongs.tolist() == [home == partition for home in homes]


def test_an_event_from_before_users_moved_does_not_count_after_it() -> None:
    """Its user may have used up the new epoch elsewhere."""
    lane = unk().lane
    intake = Intake([lane], 0, KEY, moves=[80])
    events = [("k", ["a"], 70), ("k", ["b"], 75), ("k", ["c"], 90), ("k", ["d"], 78)]
    assert intake.add(columns(events, reader())).tolist() == [3]
    counted = contents(
        message
        for _, message in intake.take_messages(source=0, sequences=[0], offset=4)
    )
    assert sorted(what.label for what in counted) == ["a", "b", "c"]


def joining(
    source: int, sequence: int, sources: int, events: Sequence[str], at: int
) -> Message:
    """Return a commit with one label each in a tick that ends after `at`, of a lane with users."""
    lane = unk(max_items_per_user=1).lane
    intake = Intake([lane._replace(max_items_per_user=None)], 0, KEY)
    intake.add(columns([("k", [label], at) for label in events], reader()))
    rows = intake._builder.build(intake._tallies.take(), Owners(1))[0]
    rows = [msgspec.structs.replace(each, lane=lane) for each in rows]
    [message] = messages(
        rows,
        source=source,
        sequence=sequence,
        offset=0,
        watermark=10,
        first=5,
        key=KEY.fingerprint,
        sources=sources,
        users_from=80 if sources > 1 else None,
    )
    return message


def test_a_worker_that_does_not_know_that_users_moved_is_refused() -> None:
    """It would count users in an epoch in which they count elsewhere."""
    owner = Partition([unk(max_items_per_user=1)], 1).merge
    owner.take(joining(0, 0, 1, ["a"], 60), 0)
    owner.take(joining(0, 1, 2, [], 60), 1)
    owner.take(joining(1, 0, 2, ["a"], 90), 2)
    owner.take(joining(1, 1, 1, ["a"], 70), 3)
    with pytest.raises(
        StateRefused, match="source partition 1 does not know that users moved to 2"
    ):
        owner.take(joining(1, 2, 1, ["a"], 80), 4)
