"""Faust transport `quietcount`: agents receive a partition's fetched records as `FetchedRecords`.

The consumer thread runs aiokafka and takes fetched record batches; the main thread runs Faust and
the hand-over; shards decode in their own threads. These rules prevent lost and duplicate records:

- Every assignment and revocation raises the consumer's *epoch*; `seek_all` passes it to the
  consumer thread. A fetch of an older epoch is dropped: the next seek reads it again.
- A batch starts where the previous one ended; a shard refuses any other batch. `_drain` never
  awaits, so a fetch's epoch and positions are exact.
- If aiokafka's position is not where this thread left it, the broker no longer had that position,
  and the records in between were never counted: `StateRefused`.
- Faust's own commits, seeks and gap tracking are off. The shards' stored offsets decide; the
  group's offsets are for lag tools.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import faust
from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import Fetcher, FetchResult
from aiokafka.errors import ConsumerStoppedError, IllegalStateError
from aiokafka.errors import KafkaError as ConsumerError
from aiokafka.structs import OffsetAndMetadata
from faust.app.base import BootStrategy
from faust.tables import TableManager
from faust.transport import drivers
from faust.transport.drivers import aiokafka as driver
from faust.types import TP
from faust.types.tuples import ConsumerMessage
from mode import Service
from mode.utils.futures import notify

from workers.kafka.clients import METADATA_MS, Connection, faust_credentials, forbidden
from workers.kafka.decoding import adapt_consumers, take_batch
from workers.kafka.handover import EXIT_FAILED, EXIT_REFUSED, KAFKA_AWAY, Handover
from workers.kafka.offsets import ReadPosition
from workers.kafka.reading import Partition, name_of
from workers.kafka.records import FetchedRecords
from workers.runtime.errors import KafkaAway, StateRefused, describe

logger = logging.getLogger(__name__)

#: Longest time the broker may hold a fetch. aiokafka has one fetch in flight per broker, so a
#: drained partition waits this long while the others have no records.
FETCH_WAIT_MS = 100
# Timeout of a first attempt to look up leaders.
_METADATA_S = 3.0
# Of a commit of the group's offsets.
_COMMIT_S = 10.0
# Of a question for log ends: of all together, of one alone; and for how long they are asked alone.
_ENDS_S = 3.0
_ALONE_S = 1.0
_APART_S = 30.0
_BOUNDS_S = 60.0
# Of leaving the group, and of that during an outage.
_LEAVE_S = 3.0
_LEAVE_AWAY_S = 0.2
_LOOK_S = 0.1


class Fetched(dict[TP, FetchedRecords]):
    """Batches by partition, and the epoch under which they were fetched; -1: none, if empty."""

    epoch = -1


class ConsumerThread(driver.AIOKafkaConsumerThread):
    """The thread that runs aiokafka's consumer, in an event loop of its own."""

    consumer: Consumer

    def __post_init__(self) -> None:
        """Initialize epochs and positions; Faust's services do this here, not in `__init__`."""
        super().__post_init__()
        self.thread_loop.set_exception_handler(_log_unretrieved)
        # That of the last seek; -1 before the first.
        self.epoch = -1
        # The error of a fetch, to be raised once the batches before it were handed over.
        self._error: Exception | None = None
        # Completed when a shard gets room, while `_wait` waits for that.
        self._room: asyncio.Future[None] | None = None
        # Until then (monotonic) the ends of logs are asked for one by one.
        self._apart_until_s = 0.0
        # Of every partition that is read: where the last batch ended, at which the next one must
        # start; and aiokafka's position, which may be further, past records that readers never see.
        self._next_start: dict[Partition, int] = {}
        self._position: dict[Partition, int] = {}

    async def on_start(self) -> None:
        """Start aiokafka's consumer; if that fails, tell the hand-over to stop."""
        try:
            await super().on_start()
        except ConsumerError as exc:
            failed = self.consumer.handover.consumer_failed
            self.parent_loop.call_soon_threadsafe(failed, "starting the consumer", exc)
            while not self.should_stop:
                await self.sleep(_LOOK_S)

    async def on_thread_stop(self) -> None:
        """Leave the group. If no broker answers, let the group time out instead."""
        try:
            away = self.consumer.handover.metrics.outage.is_active
            await asyncio.wait_for(
                super().on_thread_stop(), _LEAVE_AWAY_S if away else _LEAVE_S
            )
        # aiokafka re-raises the errors that ended its tasks.
        except (Exception, asyncio.CancelledError) as exc:  # noqa: BLE001
            logger.debug("the group was not left: %s", describe(exc))
            if self._consumer is not None:
                # This closes all connections before it awaits any of them.
                closing = asyncio.wait_for(self._consumer._client.close(), _LEAVE_S)
                await asyncio.gather(closing, return_exceptions=True)
        self._consumer = None  # releases fetched data

    def close(self) -> None:
        """Do nothing: `on_thread_stop` closes the consumer.

        Faust calls this from the main thread if the group rebalances while the worker stops, and
        would close this loop's sockets from the main loop; uvloop's may then crash the process.
        """

    def _create_worker_consumer(self, transport: Any) -> Any:
        """Return aiokafka's consumer as Faust makes it, changed where Faust has no setting.

        Faust would read uncommitted records, since it does not manage our transactions.
        """
        adapt_consumers()
        consumer = super()._create_worker_consumer(transport)
        consumer._isolation_level = "read_committed"
        consumer._fetch_max_wait_ms = FETCH_WAIT_MS
        consumer._client_rack = cast(QuietcountApp, self.consumer.app).rack
        _limit_metadata(consumer._client)
        return consumer

    def read_positions(self) -> dict[Partition, ReadPosition]:
        """Return position and ends of the log per partition, as of its last fetch; no request.

        The main thread calls this, so data that the consumer's thread changes is copied first.
        """
        consumer = self._consumer
        subscription = None if consumer is None else consumer._subscription.subscription
        assignment = None if subscription is None else subscription.assignment
        positions: dict[Partition, ReadPosition] = {}
        if assignment is None:
            return positions
        for tp, handed in list(self._next_start.items()):
            state = assignment.state_value(TopicPartition(*tp))
            if state is not None and state.highwater is not None:
                # None or -1 if the broker did not say.
                stable = None if state.lso is None or state.lso < 0 else state.lso
                positions[tp] = ReadPosition(
                    handed=handed,
                    position=self._position.get(tp, handed),
                    end=state.highwater,
                    stable=stable,
                    fetched_ms=state.timestamp or 0,
                )
        return positions

    def group_error(self) -> BaseException | None:
        """Return what keeps the consumer out of its group, if any; aiokafka raises it later."""
        coordinator = None if self._consumer is None else self._consumer._coordinator
        error: BaseException | None = getattr(coordinator, "_pending_exception", None)
        return error

    def task_failure(self) -> BaseException | None:
        """Return why one of aiokafka's tasks has ended, if so: nothing restarts it."""
        consumer = self._consumer
        if consumer is None or consumer._closed:
            return None
        for task in (
            getattr(consumer._coordinator, "_coordination_task", None),
            getattr(consumer._fetcher, "_fetch_task", None),
        ):
            if task is not None and task.done() and not task.cancelled():
                # The fetch task ends without an error if one of its requests was cancelled.
                error: BaseException | None = task.exception()
                return error or ConsumerStoppedError("it stopped by itself")
        return None

    async def seek_all(self, epoch: int, offsets: dict[Partition, int]) -> None:
        """Read on at `offsets`, from now on under `epoch`; pause all other partitions."""
        consumer = self._ensure_consumer()
        for tp, offset in offsets.items():
            consumer.seek(TopicPartition(*tp), offset)
        # Partitions that have not joined: fetched and never taken, they would slow the others down.
        consumer.pause(*(tp for tp in consumer.assignment() if tp not in offsets))
        self._next_start = dict(offsets)
        self._position = dict(offsets)
        self.epoch = epoch

    async def ends(
        self, epoch: int, partitions: list[Partition]
    ) -> dict[Partition, int]:
        """Return the last stable offset of each log that answers; nothing if a seek intervened.

        aiokafka answers for all or none, so after a failure the logs are asked one by one: a leader
        that does not answer must not hold up the clock of the others.
        """
        consumer = self._ensure_consumer()
        asked = [TopicPartition(*tp) for tp in partitions]
        parts = [asked]
        within_s = _ENDS_S
        if time.monotonic() < self._apart_until_s:
            parts = [[tp] for tp in asked]
            within_s = _ALONE_S
        calls = (
            asyncio.wait_for(consumer.end_offsets(part), within_s) for part in parts
        )
        found: dict[Partition, int] = {}
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(answer, dict):
                found |= answer
            elif isinstance(answer, (ConsumerError, TimeoutError)):
                self._apart_until_s = time.monotonic() + _APART_S
            else:
                raise answer
        return found if self.epoch == epoch else {}

    async def bounds(
        self, partitions: list[Partition]
    ) -> dict[Partition, tuple[int, int]]:
        """Return the first offset and the last stable offset of each log; an error if one fails."""
        consumer = self._ensure_consumer()
        asked = [TopicPartition(*tp) for tp in partitions]
        both = asyncio.gather(
            consumer.beginning_offsets(asked), consumer.end_offsets(asked)
        )
        low, high = await asyncio.wait_for(both, _BOUNDS_S)
        return {tp: (low[tp], high[tp]) for tp in asked}

    async def commit_group(self, offsets: dict[Partition, int]) -> None:
        """Show lag tools the offsets of partitions that are assigned; a failure is only logged."""
        consumer = self._ensure_consumer()
        group = {
            tp: OffsetAndMetadata(offsets[tp], "")
            for tp in consumer.assignment()
            if tp in offsets
        }
        try:
            await asyncio.wait_for(consumer.commit(group), _COMMIT_S)
        # AssertionError: aiokafka knows no broker to ask for the group's coordinator.
        except (ConsumerError, TimeoutError, AssertionError) as exc:
            logger.debug("group offsets were not committed: %s", describe(exc))

    async def _fetch_records(
        self,
        consumer: Any,
        active_partitions: Any,
        timeout: float | None = None,
        max_records: int | None = None,
    ) -> Any:
        """Take fetched records as `Fetched`, waiting up to `timeout`; {} during a hand-over.

        By default Faust calls `Fetcher.fetched_records` here, which decodes them; these are its
        steps, with `_drain` in place of decoding.
        """
        fetcher: Fetcher = consumer._fetcher
        if consumer._closed or fetcher._closed:
            raise ConsumerStoppedError
        if not self.consumer.flow_active or self.epoch != self.consumer.epoch:
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
                    waiter.result()  # raises authorization failures
                    fetched = self._drain(fetcher, active_partitions)
            return fetched

    async def _wait(self, waiter: asyncio.Future[Any], timeout: float) -> None:
        """Wait for a fetch (`waiter`), or, if some shards had no room, until one of them has."""
        consumer = self.consumer
        if consumer.all_have_room:
            await asyncio.wait([waiter], timeout=timeout)
            return
        self._room = room = asyncio.get_running_loop().create_future()
        # `on_freed` completes `_room` only for room made from now on; `freed` tells of earlier
        # room.
        if not consumer.freed.is_set():
            await asyncio.wait(
                [waiter, room], timeout=timeout, return_when=asyncio.FIRST_COMPLETED
            )
        self._room = None

    def on_freed(self) -> None:
        """Wake `_wait`. Callable from any thread."""
        if (room := self._room) is not None:
            self.thread_loop.call_soon_threadsafe(notify, room)

    def _drain(self, fetcher: Fetcher, partitions: Iterable[Partition]) -> Fetched:
        """Take what was fetched, at most one batch of a partition."""
        error = self._error
        self._error = None
        if error is not None:
            raise error
        fetched = Fetched()
        # Revoked while we waited: our positions are old.
        if self.epoch != self.consumer.epoch:
            return fetched
        fetched.epoch = self.epoch
        for tp in [
            tp for tp in fetcher._records if tp in partitions and tp in self._next_start
        ]:
            try:
                batch = self._take_result(fetcher, tp)
            except Exception as exc:
                if not fetched:
                    raise
                self._error = exc  # raised after these batches were handed over
                break
            if batch is not None:
                fetched[TP(*tp)] = batch
        return fetched

    def _take_result(
        self, fetcher: Fetcher, tp: TopicPartition
    ) -> FetchedRecords | None:
        """Take a partition's next batch, if any; raise the error of its fetch."""
        result = fetcher._records[tp]
        batch = self._take(tp, result) if isinstance(result, FetchResult) else None
        # A response that is used up, or an error, makes way for the next fetch.
        if batch is None or not result.has_more():
            del fetcher._records[tp]
            fetcher._notify(fetcher._wait_consume_future)
        if not isinstance(result, FetchResult):
            result.check_raise()  # an error from aiokafka's fetch
        return batch

    def _take(self, tp: TopicPartition, result: FetchResult) -> FetchedRecords | None:
        """Return the next batch of a response; None if it has none, or is of an old position.

        Refuse a gap: records that the broker no longer has were never counted.
        """
        state = result._assignment.state_value(tp)
        is_assigned = state is not None and state.has_valid_position
        if not is_assigned or not result.check_assignment(tp):
            # Fetched for another position: drop it; aiokafka will fetch again.
            result._partition_records = None
            return None
        if state.position != self._position[tp]:
            if cast(QuietcountApp, self.consumer.app).rack is not None:
                # A replica may have been behind. The next take-over asks the leader.
                raise KafkaAway(f"{name_of(tp)}: a replica lacks {self._position[tp]}")
            raise StateRefused(
                f"{name_of(tp)}: the broker no longer has position {self._position[tp]} and went on at "
                f"{state.position}: retention overtook this worker, or the log was cut. Raise the topic's retention"
            )
        # From here on `state.position`, aiokafka's, is past the batch.
        batch = take_batch(result, self._next_start[tp])
        self._position[tp] = state.position
        # Nothing visible: the next batch will cover these offsets, too.
        if not batch.record_count:
            return None
        self._next_start[tp] = batch.end
        return batch


def _limit_metadata(client: Any) -> None:
    """Do not wait 90 s for one broker's metadata: it may be frozen, and others know the leaders."""
    update = client._metadata_update
    within_s = _METADATA_S

    async def limited(*args: Any) -> bool:
        """Call `_metadata_update`, but give up after `within_s`: False makes aiokafka retry."""
        nonlocal within_s
        try:
            updated = bool(await asyncio.wait_for(update(*args), within_s))
        except TimeoutError:
            within_s *= 2  # the network may be slow
            return False
        within_s = _METADATA_S
        # `wait_for` loses a cancellation that meets the answer (Python 3.11), and aiokafka waits
        # for this task's end: a stop beside a broker's end hung.
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError
        return updated

    client._metadata_update = limited


def _log_unretrieved(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log as asyncio does, except that a late commit of group offsets failed.

    aiokafka shields it, so nobody awaits it if `commit_group` has given up.
    """
    coroutine = getattr(context.get("future"), "get_coro", lambda: None)()
    if getattr(coroutine, "__name__", "") == "_do_commit_offsets":
        logger.debug(
            "group offsets were not committed: %s", describe(context["exception"])
        )
    else:
        loop.default_exception_handler(context)


_TICK_S = 0.2
_SOON_S = 0.005
_ROOM_S = 0.05
_CLOSING_S = 0.05
#: Time for agents to declare their topics; Faust waits this long in any case.
_AGENTS_S = 1.0
_ENDED = "the consumer failed ({})"
#: The consumer's thread answers within seconds; after this it never will.
_ANSWER_S = 60.0
_SILENT = "the consumer does not answer"


class _WithoutProducer(BootStrategy):
    """Omits Faust's producer: shards have their own, so it would only add a connection."""

    enable_kafka_producer = False


class _Tables(TableManager):
    """Empty table manager; by default Faust waits a second for tables before it subscribes."""

    async def on_start(self) -> None:
        """Wait for the agents to declare their topics, for 1 s at most; then go on as Faust does.

        Faust subscribes then; a topic that is declared later is not read for 45 s.
        """
        wanted = {
            name
            for agent in self.app.agents.values()
            for name in agent.get_topic_names()
        }
        for _ in range(round(_AGENTS_S / _SOON_S)):
            declared = {name for topic in self.app.topics for name in topic.topics}
            if self.should_stop or wanted <= declared:
                break
            await self.sleep(_SOON_S)
        if not self.should_stop:
            await self._update_channels()
            await self.recovery.start()


class QuietcountApp(faust.App):
    """Faust's application, with the hand-over to which its consumer passes batches."""

    BootStrategy = _WithoutProducer

    handover: Handover
    #: Fetches come from a replica in this rack, where the cluster has one; None: from leaders.
    rack: str | None = None

    def _create_directories(self) -> None:
        """Do nothing: without tables Faust stores nothing here, and the disk may be full."""


class Consumer(driver.Consumer):
    """Faust's consumer: passes assignments and fetched batches to the hand-over."""

    #: Raised by every assignment and revocation; see the module.
    epoch = 0
    #: Whether the shards of all partitions had room at the last fetch.
    all_have_room = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Let the hand-over read positions here, and tell us when a shard has room."""
        super().__init__(*args, **kwargs)
        self.handover: Handover = cast(QuietcountApp, self.app).handover
        self.handover.reader = self
        self.handover.on_freed = self._on_freed
        # Set when a shard gets room for a batch.
        self.freed = asyncio.Event()
        self._acquiring: asyncio.Task[None] | None = None

    def _new_consumer_thread(self) -> ConsumerThread:
        return ConsumerThread(self, loop=self.loop, beacon=self.beacon)

    @property
    def thread(self) -> ConsumerThread:
        return cast(ConsumerThread, self._thread)

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """Release all shards before answering the group; heartbeats continue meanwhile."""
        self.epoch += 1
        self.stop_flow()  # Faust skips this when the old assignment was empty
        await self.handover.give_up()
        await super().on_partitions_revoked(revoked)

    async def perform_seek(self) -> None:
        """Take over the new assignment, in a task that continues if Faust stops waiting for it.

        If there is a newer assignment by then, the epoch keeps out records of the older one.
        """
        self.epoch += 1
        self._acquiring = asyncio.ensure_future(self._acquire(self.epoch))
        await asyncio.shield(self._acquiring)

    async def _acquire(self, epoch: int) -> None:
        """Open the shards of the new assignment, and begin to read where they are."""
        assigned = {TP(*tp) for tp in self.assignment()}
        try:
            offsets = await self.handover.acquire(assigned, lambda: self.epoch == epoch)
            if self.epoch == epoch:
                await self.thread.call_thread(
                    self.thread.seek_all, epoch, dict(offsets)
                )
        except IllegalStateError:
            logger.info("the partitions were revoked during the takeover")
        except Exception as exc:  # noqa: BLE001  # the hand-over decides
            # A failure does not matter once the assignment is over.
            if self.epoch != epoch or self.should_stop:
                return
            self.handover.consumer_failed("taking partitions over", exc)

    async def on_stop(self) -> None:
        self.epoch += 1
        await self.handover.give_up()
        await super().on_stop()

    @Service.task
    async def _ticker(self) -> None:
        """Run the hand-over's timer, and stop the worker if its consumer has failed."""
        while not self.should_stop:
            await self.sleep(_TICK_S)
            self.handover.beat()
            if (ended := self.thread.task_failure()) is not None:
                self.handover.stop_for_outage(_ENDED.format(describe(ended)))
            failure = self.thread.group_error()
            if failure is not None and (reason := forbidden(failure)) is not None:
                self.handover.fail(
                    EXIT_REFUSED, f"the consumer group {self.app.conf.id}: {reason}"
                )
            # Not between an assignment and its seek, when positions are those of older shards.
            if self.epoch == self.thread.epoch and self.flow_active:
                # A task that raises would end the worker without its own status.
                try:
                    await self._answer(self.handover.tick())
                except Exception as exc:
                    logger.exception("the timer failed")
                    self.handover.fail(
                        EXIT_FAILED, f"the timer failed: {describe(exc)}"
                    )

    async def _answer(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Return a call's result; if the consumer does not answer, stop and return None."""
        try:
            return await asyncio.wait_for(call, _ANSWER_S)
        except (TimeoutError, asyncio.CancelledError):
            task = asyncio.current_task()
            # If it was not this task that was cancelled, it was a request of the consumer: go on.
            if task is not None and task.cancelling():
                raise
            self.handover.stop_for_outage(_SILENT)
            return None

    async def bounds(
        self, partitions: Iterable[Partition]
    ) -> Mapping[Partition, tuple[int, int]]:
        """Ask for bounds in the consumer's thread (`LogReader`)."""
        found: dict[Partition, tuple[int, int]] = await self.thread.call_thread(
            self.thread.bounds, list(partitions)
        )
        return found

    async def ends(self, partitions: Iterable[Partition]) -> Mapping[Partition, int]:
        """Ask for ends in the consumer's thread (`LogReader`); none if a seek intervenes."""
        found: dict[Partition, int] = await self.thread.call_thread(
            self.thread.ends, self.epoch, list(partitions)
        )
        return found

    def read_positions(self) -> Mapping[Partition, ReadPosition]:
        return self.thread.read_positions() if self.epoch == self.thread.epoch else {}

    async def commit_group(self, offsets: Mapping[Partition, int]) -> None:
        await self.thread.call_thread(self.thread.commit_group, dict(offsets))

    async def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, Any]]:
        """Yield a `FetchedRecords` message per partition with records and a shard with room."""
        if not self.flow_active:
            await self.wait(cast(Any, self.can_resume_flow))
        # Clear it first: room that is made while we ask who has room sets it again.
        self.freed.clear()
        active = {
            tp for tp in self._get_active_partitions() if self.handover.has_room(tp)
        }
        if not active or self.should_stop:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.freed.wait(), _ROOM_S)
            return
        self.all_have_room = len(active) == len(self._active_partitions)
        try:
            fetched = await self._answer(self._getmany(active, timeout))
        except self.consumer_stopped_errors:
            raise
        except Exception as exc:  # noqa: BLE001  # the hand-over decides
            self._fetching_failed(exc)
            await self.sleep(timeout)
            return
        if not isinstance(fetched, Fetched):  # the flow stopped, or nothing answered
            await self.sleep(_SOON_S)
            return
        for tp, batch in fetched.items():
            if fetched.epoch != self.epoch or not self.flow_active or self.should_stop:
                return  # a seek follows or has happened, and these are fetched again
            claimed = self.handover.claim(tp, batch)
            if claimed is not None:
                self._read_offset[tp] = None  # no gap tracking
                yield tp, self._message(tp, claimed)

    def _fetching_failed(self, error: Exception) -> None:
        """Stop for an outage if a task of aiokafka has ended; else the hand-over decides."""
        ended = self.thread.task_failure()
        refused = isinstance(error, StateRefused) or forbidden(error) is not None
        if ended is not None and not refused:
            self.handover.stop_for_outage(_ENDED.format(describe(ended)))
        else:
            self.handover.consumer_failed("fetching", error)

    def _on_freed(self) -> None:
        """Note that a shard, which had no room for a batch, has room again."""
        self.freed.set()
        self.thread.on_freed()

    def _message(self, tp: TP, batch: FetchedRecords) -> ConsumerMessage:
        """Wrap a batch as a message of Faust, for the agent of its topic."""
        return ConsumerMessage(
            tp.topic,
            tp.partition,
            batch.end - 1,  # offset, the last that it covers
            timestamp=0.0,
            timestamp_type=0,
            headers=None,
            key=None,
            value=cast(Any, batch),
            checksum=None,
            tp=tp,
            generation_id=self.app.consumer_generation_id,
        )

    def ack(self, message: Any) -> bool:
        """Forget the message; only a shard's commit marks records as processed."""
        message.acked = True
        self._unacked_messages.discard(message)
        notify(self._waiting_for_ack)
        return True

    async def commit(
        self, topics: Any = None, start_new_transaction: bool = True
    ) -> bool:
        """Do nothing: the shards commit."""
        return False

    force_commit = commit

    def verify_event_path(self, now: float, tp: TP) -> None:
        """Do nothing: Faust would warn that nothing was committed."""


class Transport(driver.Transport):
    """The transport that `quietcount://` addresses select."""

    Consumer = Consumer


class BatchSchema(faust.Schema[Any, Any]):
    """Schema that passes batches through where Faust would decode a message."""

    def loads_key(self, app: Any, message: Any, **_: Any) -> Any:
        return message.key

    def loads_value(self, app: Any, message: Any, **_: Any) -> Any:
        return message.value


drivers.TRANSPORTS.aliases["quietcount"] = f"{__name__}:Transport"


def create_app(
    name: str, connection: Connection, handover: Handover, data_dir: Path
) -> QuietcountApp:
    """Return a worker's Faust application, without its agents; `name` is also its group id."""
    # The session's timeout is short: after a crash the others take over when it expires. Faust's
    # tables, leader, web server and creation of topics are not used.
    settings: dict[str, Any] = {
        "broker": [
            f"quietcount://{server.strip()}"
            for server in connection.bootstrap.split(",")
        ],
        "broker_credentials": faust_credentials(connection),
        "broker_client_id": connection.client.get("client.id", "quietcount"),
        "broker_session_timeout": 10.0,
        "broker_heartbeat_interval": 3.0,
        "broker_commit_interval": 3600.0,  # our `commit` does nothing
        "broker_check_crcs": connection.client.get("check.crcs", "true").lower()
        != "false",
        "consumer_auto_offset_reset": "earliest",  # `_take` detects and refuses a reset
        "consumer_max_fetch_size": 4 << 20,
        "consumer_metadata_max_age_ms": METADATA_MS,
        "TableManager": _Tables,
        "processing_guarantee": "at_least_once",
        "store": "memory://",
        "datadir": str(data_dir / "faust"),
        "stream_wait_empty": False,
        "table_standby_replicas": 0,
        "topic_allow_declare": False,
        "topic_disable_leader": True,
        "web_enabled": False,
    }
    app = QuietcountApp(name, **settings)
    app.handover = handover
    app.rack = connection.client.get("client.rack")
    return app


class _Worker(faust.Worker):
    """Faust's worker, which also stops when the hand-over says so."""

    #: A signal has requested the shutdown.
    stop_requested = False

    @Service.task
    async def _watch(self) -> None:
        """Shut down as after SIGTERM once the hand-over sets `stopping`."""
        handover = cast(QuietcountApp, self.app).handover
        await self.wait(handover.stopping.wait())
        # If it is not set, the wait ended because the worker is already stopping.
        if handover.stopping.is_set():
            self._schedule_shutdown(signal.SIGTERM)

    async def _sentinel_task(self) -> None:
        """Wait briefly for resources to close; Faust waits a second."""
        await asyncio.sleep(_CLOSING_S)

    def _on_sigterm(self) -> None:
        self.stop_requested = True
        super()._on_sigterm()

    def _on_sigint(self) -> None:
        self.stop_requested = True
        super()._on_sigint()


def run_app(app: QuietcountApp) -> int:
    """Run the worker in the main thread until a signal or a failure; return the exit status.

    `KAFKA_AWAY` is not a real one: it asks the caller to begin another run.
    """
    options: dict[str, Any] = {"override_logging": False, "redirect_stdouts": False}
    worker = _Worker(app, loglevel="info", quiet=True, workdir=None, **options)
    worker.spinner = None  # it writes terminal codes even to files
    try:
        worker.execute_from_commandline()
    except SystemExit as exc:
        status = EXIT_FAILED if exc.code else 0
    except Exception:
        logger.exception("the worker failed")
        status = EXIT_FAILED
    app.handover.dispose()
    own = app.handover.exit_status
    # A worker that is stopped by a signal during an outage does not begin again.
    is_stopped = own == KAFKA_AWAY and worker.stop_requested
    return status if own is None or is_stopped else own
