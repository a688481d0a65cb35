"""Decisions of the hand-over, without a broker: which shard works, clock advances, exits."""

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import wraps

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.kafka.harness import offline
from workers.kafka.handover import KAFKA_AWAY, WAITING_MAX, Handover
from workers.kafka.offsets import LogEnd, ReadPosition
from workers.kafka.reading import Partition
from workers.kafka.records import Batch, FetchedRecords, Records
from workers.kafka.shard import Shard
from workers.kafka.transport import _log_unretrieved
from workers.runtime import errors

pytestmark = pytest.mark.slow

EVENTS: list[Partition] = [("events", 0), ("events", 1)]


class Log:
    def __init__(self) -> None:
        self.log: dict[Partition, tuple[int, int]] = {}
        self.at: dict[Partition, int] = {}
        self.asked: list[Partition] = []
        self.read: dict[Partition, ReadPosition] = {}
        self.told: dict[Partition, int] = {}
        self.late: asyncio.Event | None = None

    async def bounds(
        self, partitions: Iterable[Partition]
    ) -> Mapping[Partition, tuple[int, int]]:
        if self.late is not None:
            await self.late.wait()
        return {tp: self.log.get(tp, (0, 100)) for tp in partitions}

    async def ends(self, partitions: Iterable[Partition]) -> Mapping[Partition, int]:
        self.asked += partitions
        return {tp: end for tp, end in self.at.items() if tp in self.asked}

    def read_positions(self) -> Mapping[Partition, ReadPosition]:
        return self.read

    async def commit_group(self, offsets: Mapping[Partition, int]) -> None:
        self.told.update(offsets)


class Recorder(Shard):
    def __init__(self, partition: int) -> None:
        super().__init__(offline(partition))
        self.starts_at: int | None = 0
        self.fails: Exception | None = None
        self.seen: list[object] = []
        self.gate = threading.Event()
        self.gate.set()

    def open(self) -> None:
        if self.fails is not None:
            raise self.fails
        self.offset = self.committed = self.starts_at

    def process(self, batch: Batch) -> None:
        self.gate.wait(300)
        if self.fails is not None:
            raise self.fails
        self.seen.append(batch.start)

    def wants_end(self, now_ms: int) -> bool:
        return self.ends.noted_ms != now_ms

    def reached(self, end: LogEnd) -> None:
        self.seen.append(end)


class Stage:
    def __init__(self) -> None:
        self.log = Log()
        self.made: dict[int, Recorder] = {}
        self.prepare: Callable[[Recorder], None] = lambda shard: None
        factories = {"events": self.make}
        self.handover = Handover(factories, now_ms=lambda: 5000)
        self.handover.reader = self.log
        self.handover.exit_deadline_s = 3600

    def make(self, partition: int) -> Recorder:
        shard = self.made[partition] = Recorder(partition)
        self.prepare(shard)
        return shard

    def batch(
        self, partition: int, start: int, end: int, *offsets: int
    ) -> FetchedRecords:
        at = offsets or (start,)
        part = Batch(start, end, Records.of([b"x"] * len(at), offsets=at))
        batch = FetchedRecords(start, end, len(at), lambda _: iter([part]))
        claimed = self.handover.claim(("events", partition), batch)
        assert claimed is not None
        return claimed

    async def fail(self, where: str, failure: Exception) -> None:
        """Fail a shard in `open` or in `process`, and wait until the worker stops."""
        if where == "open":
            self.prepare = lambda shard: setattr(shard, "fails", failure)
            assert await self.handover.acquire(EVENTS) == {}
        else:
            await self.handover.acquire(EVENTS)
            self.made[0].fails = failure
            await self.handover.feed(self.batch(0, 0, 1))
            await settle(self.handover.stopping.is_set)

    async def fence(self) -> None:
        """Take the partitions over, and fence the first one's shard."""
        await self.handover.acquire(EVENTS)
        self.made[0].fails = errors.Fenced("newer")
        await self.handover.feed(self.batch(0, 0, 1))
        await settle(lambda: self.made[0].closed)


@pytest.fixture
def stage() -> Stage:
    return Stage()


def looped(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test of a `stage` in its own loop, and give up every shard at the end."""

    @wraps(test)
    def run(stage: Stage, **others: object) -> None:
        async def main() -> None:
            await test(stage=stage, **others)
            for shard in stage.made.values():
                shard.gate.set()
            await stage.handover.give_up()

        asyncio.run(main())

    return run


async def settle(done: Callable[[], bool]) -> None:
    for _ in range(20_000):
        if done():
            return
        await asyncio.sleep(0.005)
    raise TimeoutError


@looped
async def test_acquire_returns_the_offsets_to_read_from(stage: Stage) -> None:
    """A stored position is the authority; without one, reading starts at the beginning."""
    stage.log.log = {EVENTS[0]: (10, 50), EVENTS[1]: (10, 50)}
    stage.prepare = lambda shard: setattr(
        shard, "starts_at", 50 if shard.partition else None
    )
    assert await stage.handover.acquire(EVENTS) == {EVENTS[0]: 10, EVENTS[1]: 50}
    assert stage.handover.exit_status is None


@pytest.mark.parametrize(
    ("stored", "reason"),
    [(9, "retention removed records"), (51, "re-created or lost its tail")],
)
@looped
async def test_a_stored_position_outside_the_log_is_refused(
    stage: Stage, stored: int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Records were removed uncounted, or offsets reassigned."""
    stage.log.log = {EVENTS[0]: (10, 50)}
    stage.prepare = lambda shard: setattr(shard, "starts_at", stored)
    assert await stage.handover.acquire(EVENTS[:1]) == {}
    assert stage.handover.stopping.is_set()
    assert stage.handover.exit_status == 2
    assert reason in caplog.text


@looped
async def test_a_take_over_that_another_has_overtaken_changes_nothing(
    stage: Stage,
) -> None:
    """Its late answer took the lags of the newer one away, so the worker was never ready again."""
    late = stage.log.late = asyncio.Event()
    ours = True
    first = asyncio.ensure_future(stage.handover.acquire(EVENTS, lambda: ours))
    await settle(lambda: [one.offset for one in stage.made.values()] == [0, 0])
    ours = False
    stage.log.late = None
    await stage.handover.acquire(EVENTS)
    late.set()
    assert await first == {}
    assert stage.handover.assigned and set(stage.handover.lags) == set(EVENTS)


@looped
async def test_a_take_over_whose_shards_were_released_meanwhile_changes_nothing(
    stage: Stage,
) -> None:
    """Without a broker all is let go, and the same assignment stays ours."""
    late = stage.log.late = asyncio.Event()
    acquired = asyncio.ensure_future(stage.handover.acquire(EVENTS))
    await settle(lambda: [one.offset for one in stage.made.values()] == [0, 0])
    await stage.handover.give_up()
    late.set()
    assert await acquired == {}
    assert not stage.handover.assigned and not stage.handover.lags


@looped
async def test_a_slow_shard_does_not_delay_another(stage: Stage) -> None:
    """Partitions are independent: one slow commit must not stop the rest."""
    await stage.handover.acquire(EVENTS)
    slow = stage.made[0]
    fast = stage.made[1]
    slow.gate.clear()
    await stage.handover.feed(stage.batch(0, 0, 1))
    for start in range(5):
        await stage.handover.feed(stage.batch(1, start, start + 1))
    await settle(lambda: fast.offset == 5)
    assert (slow.seen, fast.seen) == ([], [0, 1, 2, 3, 4])
    slow.gate.set()
    await settle(lambda: slow.offset == 1)


@looped
async def test_batches_that_wait_for_a_shard_are_bounded(stage: Stage) -> None:
    """Without a bound, a backlog would be fetched into memory."""
    await stage.handover.acquire(EVENTS)
    stage.made[0].gate.clear()
    for start in range(WAITING_MAX):
        assert stage.handover.has_room(EVENTS[0])
        await stage.handover.feed(stage.batch(0, start, start + 1))
    assert not stage.handover.has_room(EVENTS[0])
    assert stage.handover.has_room(EVENTS[1])
    room: list[bool] = []
    stage.handover.on_freed = lambda: room.append(stage.handover.has_room(EVENTS[0]))
    stage.made[0].gate.set()
    await settle(lambda: len(room) == WAITING_MAX)
    assert all(room), "there is room when it is told"


@looped
async def test_an_end_behind_invisible_records_is_reached_without_one(
    stage: Stage,
) -> None:
    """A log that ends in transaction markers has no record that would advance the shard."""
    await stage.handover.acquire(EVENTS[:1])
    stage.log.at = {EVENTS[0]: 3}
    stage.log.read = {EVENTS[0]: ReadPosition(1, 3, 3)}
    await stage.handover.tick()
    await settle(lambda: not stage.handover._at_work)
    shard = stage.made[0]
    assert shard.seen == []  # one record is fetched and still on its way
    await stage.handover.feed(stage.batch(0, 0, 1))
    await stage.handover.tick()
    await settle(lambda: len(shard.seen) == 2)
    assert shard.seen == [0, LogEnd(5000, 3)]


@looped
async def test_a_fenced_shard_is_dropped_and_the_worker_leaves_if_it_stays_so(
    stage: Stage,
) -> None:
    """A newer owner exists: publish nothing more, and do not hold its partition forever."""
    stage.handover.fenced_grace_s = 0.05
    await stage.fence()
    assert [stage.handover.has_room(tp) for tp in EVENTS] == [False, True]
    await settle(lambda: stage.handover.exit_status is not None)
    assert stage.handover.exit_status == 75


@looped
async def test_a_fenced_shard_whose_partition_is_reassigned_is_forgotten(
    stage: Stage,
) -> None:
    """After a freeze the group has moved on; rejoining is enough."""
    stage.handover.fenced_grace_s = 3600
    await stage.fence()
    fenced = stage.made[0]
    await stage.handover.acquire(EVENTS)
    # As the timer does: one that is so short would be over before the take-over.
    stage.handover._still_fenced(fenced)
    assert stage.handover.has_room(EVENTS[0])
    assert stage.handover.exit_status is None


@pytest.mark.parametrize(
    ("failure", "status", "away"),
    [
        (errors.StateRefused("no"), 2, False),
        (errors.SettingsError("no"), 2, False),
        (errors.QuietcountError("no"), 2, False),
        (ZeroDivisionError("no"), 70, False),
        (KafkaException(KafkaError(KafkaError._TRANSPORT)), KAFKA_AWAY, True),
        (
            KafkaException(KafkaError(KafkaError.COORDINATOR_NOT_AVAILABLE)),
            KAFKA_AWAY,
            True,
        ),
        (errors.KafkaAway("a transaction was open for 301 s"), KAFKA_AWAY, True),
        (errors.CopyFailed("the disk cannot be read"), KAFKA_AWAY, False),
    ],
)
@pytest.mark.parametrize("where", ["open", "process"])
@looped
async def test_a_failure_ends_the_worker_or_lets_it_begin_again(
    stage: Stage,
    where: str,
    failure: Exception,
    status: int,
    away: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Refusals are one message, and defects show their traceback.

    No outage and no bad copy ends the process, and no partial work continues.
    """
    await stage.fail(where, failure)
    assert stage.made[0].closed
    assert (
        stage.handover.exit_status == status
        and stage.handover.metrics.outage.is_active == away
    )
    assert any(record.exc_info for record in caplog.records) == (status == 70)
    stage.handover.dispose()


@looped
async def test_a_batch_of_a_shard_that_was_given_up_does_nothing(stage: Stage) -> None:
    """Batches in flight when partitions are revoked belong to the next owner."""
    await stage.handover.acquire(EVENTS)
    old = stage.made[0]
    late = stage.batch(0, 0, 1)
    await stage.handover.give_up()
    await stage.handover.feed(late)
    await asyncio.sleep(0.05)
    assert (old.seen, old.offset) == ([], 0)
    assert stage.handover.exit_status is None


def test_only_a_late_commit_of_group_offsets_fails_quietly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """aiokafka shields it, so nobody awaits it once the worker has given up; it costs nothing."""

    async def _do_commit_offsets() -> None:
        raise ValueError

    async def other() -> None:
        raise ValueError

    async def forget() -> None:
        asyncio.get_running_loop().set_exception_handler(_log_unretrieved)
        forgotten = [
            asyncio.ensure_future(one()) for one in (_do_commit_offsets, other)
        ]
        await asyncio.sleep(0.01)
        del forgotten
        gc.collect()

    asyncio.run(forget())
    assert [one.name for one in caplog.records if one.levelname == "ERROR"] == [
        "asyncio"
    ]
