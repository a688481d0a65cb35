"""The wall clock closes ticks at an offset, whatever the shard's speed and the batches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kafka.harness import offline
from workers.kafka.offsets import ENDS_MAX, LogEnd, LogEnds, ReadPosition
from workers.kafka.records import Batch, Records
from workers.kafka.shard import Shard


class Recorder(Shard):
    """Shard without Kafka that records offsets and ends in the order it meets them."""

    def __init__(self) -> None:
        super().__init__(offline(0))
        self.offset = 0
        self.seen: list[int | LogEnd] = []

    def process(self, batch: Batch) -> None:
        offsets = batch.records.offsets.tolist()
        assert all(batch.start <= offset < batch.end for offset in offsets)
        self.seen += offsets

    def reached(self, end: LogEnd) -> None:
        self.seen.append(end)


def batch_of(start: int, end: int, visible: set[int]) -> Batch:
    offsets = [offset for offset in range(start, end) if offset in visible]
    return Batch(start, end, Records.of([b""] * len(offsets), offsets=offsets))


@pytest.mark.slow
@given(
    st.sets(st.integers(0, 29)),
    st.lists(st.integers(0, 30), max_size=6).map(sorted),
    st.sets(st.integers(1, 29)).map(sorted),
    st.data(),
)
def test_records_and_ends_are_met_in_the_order_of_the_log(
    visible: set[int], ends: list[int], cuts: list[int], data: st.DataObject
) -> None:
    """Neither the time an end is noted nor batch boundaries matter."""
    shard = Recorder()
    noted = [LogEnd(1000 + i, offset) for i, offset in enumerate(ends)]
    waiting = list(noted)
    for start, stop in zip([0, *cuts], [*cuts, 30], strict=True):
        # Ends past this batch may be noted early; those within it must have been.
        while waiting and (waiting[0].offset < stop or data.draw(st.booleans())):
            shard.ends.note(waiting.pop(0))
        shard.feed(batch_of(start, stop, visible))
        if data.draw(st.booleans()):
            shard.tick(ReadPosition(stop, stop, 30))
    for end in waiting:
        shard.ends.note(end)
    shard.tick(ReadPosition(30, 30, 30))
    expected: list[int | LogEnd] = sorted(visible)
    for end in reversed(noted):
        expected.insert(sum(offset < end.offset for offset in visible), end)
    assert shard.seen == expected
    assert not shard.ends


def test_an_end_that_was_noted_too_late_is_met_at_once() -> None:
    """Records may be processed before the answer is noted; nothing may wait forever."""
    shard = Recorder()
    shard.feed(batch_of(0, 5, set(range(5))))
    shard.ends.note(LogEnd(1000, 3))
    shard.feed(batch_of(5, 7, {5, 6}))
    assert shard.seen == [0, 1, 2, 3, 4, LogEnd(1000, 3), 5, 6]


def test_a_shard_far_behind_is_asked_for_no_more_ends() -> None:
    """Memory for a backlog is bounded: a later end closes the ticks in between."""
    ends = LogEnds()
    for i in range(ENDS_MAX):
        assert not ends.full
        ends.note(LogEnd(i, i))
    assert ends.full
    assert ends.take(0) == LogEnd(0, 0)
    assert not ends.full
    assert ends.take(0) is None
