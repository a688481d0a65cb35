"""The consumer thread: takes what aiokafka has fetched, as columns; knows where batches start.

Rules that keep records from being lost or given twice (see also `transport`):

- A batch starts where the one before it ended; `_drain` awaits nothing, so a fetch's epoch and
  positions are exact.
- aiokafka's position must be where this thread left it. If it is not, aiokafka moved it because the
  broker no longer had that position: `StateRefused`, for what lies between was never counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, cast

from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import Fetcher, FetchResult
from aiokafka.errors import ConsumerStoppedError
from aiokafka.errors import KafkaError as ConsumerError
from aiokafka.structs import OffsetAndMetadata
from faust.transport.drivers import aiokafka as driver
from faust.types import TP

from workers.errors import StateRefused, describe
from workers.kafka.clients import text_of, unreachable
from workers.kafka.decoding import PART_RECORDS, ColumnRecords, keep_bytes
from workers.kafka.handover import Partition
from workers.kafka.lag import Reading
from workers.kafka.records import FetchedRecords

logger = logging.getLogger(__name__)

#: How long the broker may hold a fetch. aiokafka has one fetch under way for each broker, so a
#: partition whose records were just taken waits this long while the others have none.
FETCH_WAIT_MS = 100
_ASK_S = 10.0
_BOUNDS_S = 60.0
_LEAVE_S, _LEAVE_AWAY_S = 3.0, 0.2
_LOOK_S = 0.1


class Fetched(dict[Partition, FetchedRecords]):
    """Batches by partition, with the epoch of the seek that their positions follow."""

    epoch = -1


class ConsumerThread(driver.AIOKafkaConsumerThread):
    """aiokafka's thread: knows where every partition's next batch starts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.epoch = -1
        self._error: Exception | None = None
        self._room: asyncio.Future[None] | None = None  # while records are waited for, not of all shards
        self._chain: dict[Partition, int] = {}  # where the next batch starts
        self._consumed: dict[Partition, int] = {}  # aiokafka's position: beyond that, past records nobody may see

    async def on_start(self) -> None:
        """Start aiokafka's consumer; without a broker have the hand-over let go, and wait."""
        try:
            await super().on_start()
        except ConsumerError as exc:
            if not unreachable(exc):
                raise
            handover = cast(Any, self.consumer).handover
            self.parent_loop.call_soon_threadsafe(handover.let_go, text_of(exc))
            while not self.should_stop:
                await self.sleep(_LOOK_S)

    async def on_thread_stop(self) -> None:
        """Leave the group, unless no broker answers: then the group will notice by itself."""
        try:
            away = cast(Any, self.consumer).handover.metrics.away.is_so
            await asyncio.wait_for(super().on_thread_stop(), _LEAVE_AWAY_S if away else _LEAVE_S)
        # Closing, aiokafka waits for its tasks, and lets out whatever ended them.
        except (Exception, asyncio.CancelledError) as exc:  # noqa: BLE001
            logger.debug("the group was not left: %s", describe(exc))
            if self._consumer is not None:
                # All connections are closed before the first of them is waited for.
                with suppress(Exception, asyncio.CancelledError):
                    await self._consumer._client.close()
        self._consumer = None  # with what it had fetched

    def _create_worker_consumer(self, transport: Any) -> Any:
        keep_bytes()
        consumer = super()._create_worker_consumer(transport)  # only made: start() comes later and reads these
        consumer._isolation_level = "read_committed"
        consumer._fetch_max_wait_ms = FETCH_WAIT_MS
        return consumer

    def readings(self) -> dict[Partition, Reading]:
        """Return the position in each partition and the end by its last fetch; asks nobody."""
        subscription = None if self._consumer is None else self._consumer._subscription.subscription
        assignment = None if subscription is None else subscription.assignment
        found: dict[Partition, Reading] = {}
        for tp, handed in list(self._chain.items()):
            state = None if assignment is None else assignment.state_value(TopicPartition(*tp))
            if state is not None and state.highwater is not None:
                end = state.highwater if state.lso is None or state.lso < 0 else state.lso
                found[tp] = Reading(handed, self._consumed.get(tp, handed), end)
        return found

    def kept_out(self) -> BaseException | None:
        """Return what keeps the consumer out of its group; aiokafka tells only those who fetch."""
        coordinator = None if self._consumer is None else self._consumer._coordinator
        return cast(BaseException | None, getattr(coordinator, "_pending_exception", None))

    def ended(self) -> BaseException | None:
        """Return what ended aiokafka's own tasks, which nothing begins again.

        Such as a broker that has just come back, and for a moment says that there are no brokers.
        """
        consumer = self._consumer
        if consumer is None or consumer._closed:
            return None
        tasks = (
            getattr(consumer._coordinator, "_coordination_task", None),
            getattr(consumer._fetcher, "_fetch_task", None),
        )
        done = (task for task in tasks if task is not None and task.done() and not task.cancelled())
        return next((error for task in done if (error := task.exception()) is not None), None)

    async def seek_all(self, epoch: int, offsets: dict[Partition, int]) -> None:
        """Go on at `offsets`; what is fetched from now on belongs to `epoch`."""
        consumer = self._ensure_consumer()
        for tp, offset in offsets.items():
            consumer.seek(TopicPartition(*tp), offset)
        self._chain, self._consumed, self.epoch = dict(offsets), dict(offsets), epoch

    async def ends(self, epoch: int, partitions: list[Partition]) -> dict[Partition, int]:
        """Return the last stable offset that each log has now; nothing if a seek came meanwhile."""
        consumer = self._ensure_consumer()
        ends = await asyncio.wait_for(consumer.end_offsets([TopicPartition(*tp) for tp in partitions]), _ASK_S)
        return {(tp.topic, tp.partition): end for tp, end in ends.items()} if self.epoch == epoch else {}

    async def bounds(self, partitions: list[Partition]) -> dict[Partition, tuple[int, int]]:
        """Return first position and last stable offset of each log."""
        consumer = self._ensure_consumer()
        asked = [TopicPartition(*tp) for tp in partitions]
        both = asyncio.gather(consumer.beginning_offsets(asked), consumer.end_offsets(asked))
        low, high = await asyncio.wait_for(both, _BOUNDS_S)
        return {(tp.topic, tp.partition): (low[tp], high[tp]) for tp in asked}

    async def commit_group(self, offsets: dict[Partition, int]) -> None:
        """Commit the group's offsets, or do not: nothing depends on them."""
        consumer = self._ensure_consumer()
        assigned = consumer.assignment()
        group = {TopicPartition(*tp): OffsetAndMetadata(offset, "") for tp, offset in offsets.items()}
        try:
            await asyncio.wait_for(consumer.commit({tp: at for tp, at in group.items() if tp in assigned}), _ASK_S)
        except (ConsumerError, TimeoutError, AssertionError) as exc:
            logger.debug("group offsets were not committed: %s", describe(exc))

    async def _fetch_records(
        self, consumer: Any, active_partitions: Any, timeout: float | None = None, max_records: int | None = None
    ) -> Any:
        """Take what was fetched, waiting up to `timeout`; replaces `Fetcher.fetched_records`."""
        fetcher: Fetcher = consumer._fetcher
        if consumer._closed or fetcher._closed:
            raise ConsumerStoppedError
        if not self.consumer.flow_active or self.epoch != getattr(self.consumer, "epoch", None):
            return {}
        with fetcher._subscriptions.fetch_context():
            if fetcher._subscriptions.reassignment_in_progress:
                await fetcher._subscriptions.wait_for_assignment()
            fetched = self._drain(fetcher, active_partitions)
            if not fetched and timeout:
                waiter = fetcher._create_fetch_waiter()
                await self._wait(waiter, timeout)
                if not waiter.done():
                    waiter.cancel()
                elif not fetcher._closed:
                    waiter.result()  # an authorisation failure is raised here
                    fetched = self._drain(fetcher, active_partitions)
            return fetched

    async def _wait(self, waiter: asyncio.Future[Any], timeout: float) -> None:
        """Wait for records, no longer than until a shard has room that had none."""
        consumer = cast(Any, self.consumer)
        if consumer.all_have_room:
            await asyncio.wait([waiter], timeout=timeout)
            return
        self._room = room = asyncio.get_running_loop().create_future()
        # After that was set: what is freed from now on is told, and what was before is seen here.
        if not consumer.freed.is_set():
            await asyncio.wait([waiter, room], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        self._room = None

    def on_freed(self) -> None:
        """Wake what waits for records: there is room for others. Called in any thread."""
        room = self._room
        if room is not None:
            self.thread_loop.call_soon_threadsafe(lambda: None if room.done() else room.set_result(None))

    def _drain(self, fetcher: Fetcher, partitions: Iterable[Partition]) -> Fetched:
        """Take fetched records of `partitions`, with no await: tag and positions are exact."""
        error, self._error = self._error, None
        if error is not None:
            raise error
        fetched = Fetched()
        if self.epoch != getattr(self.consumer, "epoch", None):  # revoked while we waited: our positions are old
            return fetched
        fetched.epoch = self.epoch
        for tp in [tp for tp in fetcher._records if tp in partitions and tp in self._chain]:
            try:
                batch = self._take_result(fetcher, tp)
            except Exception as exc:
                if not fetched:
                    raise
                self._error = exc  # what was taken before it is handed over first
                break
            if batch is not None:
                fetched[TP(tp.topic, tp.partition)] = batch
        return fetched

    def _take_result(self, fetcher: Fetcher, tp: TopicPartition) -> FetchedRecords | None:
        """Take records of one partition, letting aiokafka fetch on when none are left."""
        result = fetcher._records[tp]
        batch = self._take(tp, result) if isinstance(result, FetchResult) else None
        if batch is None or not result.has_more():
            del fetcher._records[tp]
            fetcher._notify(fetcher._wait_consume_future)
        if not isinstance(result, FetchResult):
            result.check_raise()  # an error aiokafka met while fetching
        return batch

    def _take(self, tp: TopicPartition, result: FetchResult) -> FetchedRecords | None:
        """Take up to `PART_RECORDS` and move aiokafka's position past them."""
        state = result._assignment.state_value(tp)
        if state is None or not state.has_valid_position or not result.check_assignment(tp):
            result._partition_records = None  # as aiokafka does: fetched for another position, fetched again
            return None
        if state.position != self._consumed[tp]:
            raise StateRefused(
                f"{tp.topic}[{tp.partition}]: the broker no longer has position {self._consumed[tp]} and went on at "
                f"{state.position}: retention overtook this worker, or the log was cut. Raise the topic's retention"
            )
        records = ColumnRecords.of(result._partition_records)
        result._partition_records = records
        batch = records.take(self._chain[tp], PART_RECORDS)
        result._update_position()
        if not records.has_more():
            result._partition_records = None
        self._consumed[tp] = state.position
        if not batch.number:
            return None
        self._chain[tp] = batch.end
        return batch
