"""With `neighbours = "record"` a tick is delivered at its fixed time, or else at the next one."""

from collections.abc import Callable, Sequence
from typing import Any, cast
from unittest.mock import patch

import pytest

from tests.neighbours.driver import Clock
from workers.agents import release
from workers.agents.release import ReleaseShard
from workers.kafka.records import Outgoing
from workers.kafka.transaction import Delivery
from workers.mechanisms.config.histogram import Lane
from workers.pipeline.merge import Merge

GRACE_MS = 100
AFTER_MS = 300
WAIT_MS = GRACE_MS + AFTER_MS
LANES = Lane(1_000, 0, 1, 1), Lane(250, 0, 1, 1)
SNAPSHOT = Outgoing("counts", None, b"k", b"{}", (), 5_000)


def shard(complete_ms: int | None = None, delivery_ms: int | None = AFTER_MS) -> Any:
    """Return a release shard of which ticks are complete up to a time."""
    made = cast(Any, object.__new__(ReleaseShard))
    merge = cast(Any, object.__new__(Merge))
    merge._lanes = {lane: [] for lane in LANES}
    merge.watermarks = [complete_ms]
    made.merge = merge
    made._delivery_ms = delivery_ms
    made._wait_ms = WAIT_MS
    return made


@pytest.mark.parametrize(
    ("now_ms", "last_ms", "at_ms"),
    [
        (5_050, 5_000, 5_000 + WAIT_MS),  # ready early
        (5_400, 5_000, 5_000 + WAIT_MS),  # just in time
        (5_401, 5_000, 5_250 + WAIT_MS),  # too late: the next tick of the narrower lane
        (5_900, 5_000, 5_500 + WAIT_MS),  # of two times later
        (5_050, 6_000, 6_000 + WAIT_MS),  # a tick that is over by a clock ahead
    ],
)
def test_a_tick_is_delivered_at_its_time_or_at_the_next(
    now_ms: int, last_ms: int, at_ms: int
) -> None:
    clock = Clock()
    clock.now_ms = now_ms
    with patch.object(release, "time", clock):
        assert shard()._deliver_at(last_ms) == at_ms / 1000


@pytest.mark.parametrize(
    ("now_ms", "complete_ms", "prepares"),
    [
        (5_050, 4_750, True),  # what is delivered at 5,150 is complete
        (4_930, 4_500, False),  # it is not, and there is time
        (5_000, 4_500, True),  # there is none: what is complete goes out alone
        (59_980, 5_000, False),  # a backlog waits for what is due with it
        (60_000, 59_750, True),
    ],
)
def test_what_is_due_together_is_prepared_together(
    now_ms: int, complete_ms: int, prepares: bool
) -> None:
    """Else one late tick would make every later one late, as each waits for the one before."""
    clock = Clock()
    clock.now_ms = now_ms
    with patch.object(release, "time", clock):
        assert shard(complete_ms)._may_prepare() == prepares


def test_snapshots_are_sent_at_the_time_and_all_else_before() -> None:
    given: list[tuple[Sequence[Outgoing], Delivery | None]] = []
    made = shard()
    made._commit = lambda messages, delivery=None: given.append((messages, delivery))
    handed = Outgoing("contributions", 1, None, b"state")
    made._publish([SNAPSHOT], [handed])
    [(messages, delivery)] = given
    assert messages == [handed]
    assert delivery is not None
    assert delivery.messages == [SNAPSHOT]
    at: Callable[[], float] = delivery.time_s
    clock = Clock()
    clock.now_ms = 5_010
    with patch.object(release, "time", clock):
        assert at() == 5.4


def test_without_the_setting_all_goes_at_once() -> None:
    given: list[object] = []
    made = shard(5_000, None)
    made._commit = lambda messages, delivery=None: given.append((messages, delivery))
    made._publish([SNAPSHOT], [])
    assert given == [([SNAPSHOT], None)]
    assert made._may_prepare()
