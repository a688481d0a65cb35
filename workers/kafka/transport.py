"""Faust transport `quietcount`: agents receive a partition's fetched records as `FetchedRecords`.

Three kinds of threads: aiokafka and the decoding of records are in Faust's consumer thread
(`fetch`), Faust itself and the hand-over in the main one (here), every shard in its own. Between
the first two go `Fetched` (batches, tagged with the seek they follow) and `seek_all`.

What keeps records from being lost or given twice:

- Every assignment and revocation raises the consumer's *epoch*. `seek_all` takes it to the other
  thread; a fetch carries the epoch it was made in, and one of an older epoch is dropped: the seek
  that follows it reads it again.
- A batch starts where the one before it ended; a shard refuses another one (`fetch`, `shard`).
- Faust's own commits, seeks and gap tracking are off. The shards' stored offsets decide; the
  group's are for lag tools.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import faust
from aiokafka.errors import IllegalStateError
from faust.app.base import BootStrategy
from faust.tables import TableManager
from faust.transport import drivers
from faust.transport.drivers import aiokafka as driver
from faust.types import TP
from faust.types.tuples import ConsumerMessage
from mode import Service
from mode.utils.futures import notify

from workers.errors import StateRefused, describe
from workers.kafka.clients import Connection, faust_credentials, forbidden, text_of, unreachable
from workers.kafka.fetch import ConsumerThread, Fetched
from workers.kafka.handover import EXIT_FAILED, EXIT_REFUSED, KAFKA_AWAY, Handover, Partition
from workers.kafka.lag import Reading
from workers.kafka.records import FetchedRecords

logger = logging.getLogger(__name__)

__all__ = ["BatchSchema", "Consumer", "QuietcountApp", "Transport", "create_app", "run_app"]

_TICK_S = 0.2
_SOON_S = 0.005
#: How long at most it is waited for a shard to be done with a batch, without looking again.
_ROOM_S = 0.05
_CLOSING_S = 0.05
#: How long agents have to say what they read; Faust waits so long in any case.
_AGENTS_S = 1.0
_ENDED = "the consumer could not go on ({})"


class _WithoutProducer(BootStrategy):
    """The shards have producers of their own; Faust's would only be one more that connects."""

    enable_kafka_producer = False


class _Tables(TableManager):
    """There are none; Faust subscribes once these are registered, for which it waits a second."""

    async def on_start(self) -> None:
        """Go on when the agents have their topics: one that came later would wait for 45 s."""
        wanted = {name for agent in self.app.agents.values() for name in agent.get_topic_names()}
        for _ in range(round(_AGENTS_S / _SOON_S)):
            if self.should_stop or wanted <= {name for topic in self.app.topics for name in topic.topics}:
                break
            await self.sleep(_SOON_S)
        if not self.should_stop:
            await self._update_channels()
            await self.recovery.start()


class QuietcountApp(faust.App):
    """A Faust application that knows its hand-over."""

    BootStrategy = _WithoutProducer

    handover: Handover

    def _create_directories(self) -> None:
        """Do nothing: without tables Faust has nothing to put there, and the disk may be full."""


class Consumer(driver.Consumer):
    """Faust's consumer, in the main thread: epochs, take-over, batches to the agents."""

    epoch = 0
    #: Whether every shard had room for another batch when that was last looked at.
    all_have_room = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.handover: Handover = cast(QuietcountApp, self.app).handover
        self.handover.reader = self
        self.handover.on_freed = self._on_freed
        #: Set when a shard has been done with a batch since then.
        self.freed = asyncio.Event()
        self._acquiring: asyncio.Task[None] | None = None

    def _new_consumer_thread(self) -> ConsumerThread:
        return ConsumerThread(self, loop=self.loop, beacon=self.beacon)

    @property
    def thread(self) -> ConsumerThread:
        """Return the consumer's thread with its own type."""
        return cast(ConsumerThread, self._thread)

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """Give everything up before the group hears that we do; heartbeats go on meanwhile."""
        self.epoch += 1
        self.stop_flow()  # Faust leaves that out when the old assignment was empty
        await self.handover.release()
        await super().on_partitions_revoked(revoked)

    async def perform_seek(self) -> None:
        """Take over what was assigned; Faust calls this after each assignment, the flow stopped.

        Faust stops waiting after `broker_request_timeout`; the epoch then keeps records back.
        """
        self.epoch += 1
        self._acquiring = asyncio.ensure_future(self._acquire(self.epoch))
        await asyncio.shield(self._acquiring)

    async def _acquire(self, epoch: int) -> None:
        assigned = {TP(tp.topic, tp.partition) for tp in self.assignment()}
        try:
            offsets = await self.handover.acquire(assigned, lambda: self.epoch == epoch)
            if self.epoch == epoch:
                await self.thread.call_thread(self.thread.seek_all, epoch, dict(offsets))
        except IllegalStateError:
            logger.info("the partitions were taken away while they were taken over")
        except Exception as exc:
            if self.epoch != epoch or self.should_stop:
                return
            if unreachable(exc):
                self.handover.let_go(text_of(exc))
            else:
                logger.exception("taking over failed")
                self.handover.fail(EXIT_FAILED, f"taking partitions over failed: {describe(exc)}")

    async def on_stop(self) -> None:
        """Give everything up before leaving the group."""
        self.epoch += 1
        await self.handover.release()
        await super().on_stop()

    @Service.task
    async def _ticker(self) -> None:
        while not self.should_stop:
            await self.sleep(_TICK_S)
            self.handover.beat()
            if (ended := self.thread.ended()) is not None:
                self.handover.let_go(_ENDED.format(describe(ended)))
            failure = self.thread.kept_out()
            if failure is not None and (reason := forbidden(failure)) is not None:
                self.handover.fail(EXIT_REFUSED, f"the consumer group {self.app.conf.id}: {reason}")
            if self.epoch == self.thread.epoch and self.flow_active:
                try:
                    await self.handover.tick()
                except Exception as exc:  # a task that raises would end the worker without its own status
                    logger.exception("the timer failed")
                    self.handover.fail(EXIT_FAILED, f"the timer failed: {describe(exc)}")

    async def bounds(self, partitions: Iterable[Partition]) -> Mapping[Partition, tuple[int, int]]:
        """Return the first position of each log and its last stable offset."""
        found = await self.thread.call_thread(self.thread.bounds, list(partitions))
        return cast(Mapping[Partition, tuple[int, int]], found)

    async def ends(self, partitions: Iterable[Partition]) -> Mapping[Partition, int]:
        """Return the last stable offset that each log has now, asked of the broker."""
        found = await self.thread.call_thread(self.thread.ends, self.epoch, list(partitions))
        return cast(Mapping[Partition, int], found)

    def readings(self) -> Mapping[Partition, Reading]:
        """Return the consumer's position in each partition, from what the last fetches said."""
        return self.thread.readings() if self.epoch == self.thread.epoch else {}

    async def commit_group(self, offsets: Mapping[Partition, int]) -> None:
        """Commit the consumer group's offsets, for lag tools."""
        await self.thread.call_thread(self.thread.commit_group, dict(offsets))

    async def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, Any]]:
        """Yield a message with `FetchedRecords` for each partition with records and a shard with
        room.
        """
        if not self.flow_active:
            await self.wait(cast(Any, self.can_resume_flow))
        self.freed.clear()
        active = {tp for tp in self._get_active_partitions() if self.handover.has_room(tp)}
        if not active or self.should_stop:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.freed.wait(), _ROOM_S)
            return
        self.all_have_room = len(active) == len(self._active_partitions)
        try:
            fetched = await self._getmany(active, timeout)
        except self.consumer_stopped_errors:
            raise
        except StateRefused as exc:
            self.handover.fail(EXIT_REFUSED, str(exc))
            await self.sleep(timeout)
            return
        except Exception as exc:
            reason, ended = forbidden(exc), self.thread.ended()
            if unreachable(exc) or (reason is None and ended is not None):
                self.handover.let_go(text_of(exc) if ended is None else _ENDED.format(describe(ended)))
                await self.sleep(timeout)
                return
            if reason is None:
                logger.exception("fetching failed")
            failed = f"fetching failed: {reason or describe(exc)}"
            self.handover.fail(EXIT_FAILED if reason is None else EXIT_REFUSED, failed)
            await self.sleep(timeout)
            return
        if not isinstance(fetched, Fetched):
            await self.sleep(_SOON_S)
            return
        for tp, batch in fetched.items():
            if fetched.epoch != self.epoch or not self.flow_active or self.should_stop:
                return  # a seek comes or came: these are read again
            batch = replace(batch, shard=self.handover.shard(tp))
            if batch.shard is not None:
                self.handover.expect(batch)
                self._read_offset[cast(TP, tp)] = None  # no gap tracking
                yield cast(TP, tp), self._message(cast(TP, tp), batch)

    def _on_freed(self) -> None:
        self.freed.set()
        self.thread.on_freed()

    def _message(self, tp: TP, batch: FetchedRecords) -> ConsumerMessage:
        return ConsumerMessage(
            tp.topic, tp.partition, batch.end - 1, batch.last_ms / 1000.0, 0, None, None,
            cast(Any, batch), None, None, None, tp, generation_id=self.app.consumer_generation_id,
        )  # fmt: skip

    def ack(self, message: Any) -> bool:
        """Forget the message; what counts as done is what a shard has committed."""
        message.acked = True
        self._unacked_messages.discard(message)
        notify(self._waiting_for_ack)
        return True

    async def commit(self, topics: Any = None, start_new_transaction: bool = True) -> bool:
        """Do nothing: the shards commit."""
        return False

    force_commit = commit

    def verify_event_path(self, now: float, tp: TP) -> None:
        """Do nothing: Faust would warn that nothing was committed."""


class Transport(driver.Transport):
    """The driver Faust makes for `quietcount://` addresses."""

    Consumer = Consumer


class BatchSchema(faust.Schema[Any, Any]):
    """Passes the batch through where Faust would decode a message."""

    def loads_key(self, app: Any, message: Any, *, loads: Any = None, serializer: Any = None) -> Any:
        """Return the key as it is."""
        return message.key

    def loads_value(self, app: Any, message: Any, *, loads: Any = None, serializer: Any = None) -> Any:
        """Return the batch as it is."""
        return message.value


drivers.TRANSPORTS.aliases["quietcount"] = f"{__name__}:Transport"


def create_app(
    name: str,
    connection: Connection,
    handover: Handover,
    *,
    data_dir: Path | str = "var",
    session_timeout_s: float = 10.0,
    heartbeat_s: float = 3.0,
    **settings: Any,
) -> QuietcountApp:
    """Return a worker's Faust application, without its agents; its name is also its group's."""
    defaults: dict[str, Any] = {
        "broker": [f"quietcount://{server.strip()}" for server in connection.bootstrap.split(",")],
        "broker_credentials": faust_credentials(connection),
        "broker_client_id": connection.client.get("client.id", "quietcount"),
        "broker_session_timeout": session_timeout_s,
        "broker_heartbeat_interval": heartbeat_s,
        "broker_commit_interval": 3600.0,  # ours does nothing
        "broker_check_crcs": connection.client.get("check.crcs", "true").lower() != "false",
        "consumer_auto_offset_reset": "earliest",  # a reset is noticed and refused, see fetch
        "consumer_max_fetch_size": 4 << 20,
        "TableManager": _Tables,
        "processing_guarantee": "at_least_once",
        "store": "memory://",
        "datadir": str(Path(data_dir) / "faust"),
        "stream_wait_empty": False,
        "table_standby_replicas": 0,
        "topic_allow_declare": False,
        "topic_disable_leader": True,
        "web_enabled": False,
    }
    app = QuietcountApp(name, **{**defaults, **settings})
    app.handover = handover
    return app


class _Worker(faust.Worker):
    """Faust's worker, stopped by the hand-over when something went wrong."""

    #: Whether a signal asked for the end.
    told = False

    @Service.task
    async def _watch(self) -> None:
        handover = cast(QuietcountApp, self.app).handover
        await self.wait(handover.stopping.wait())
        if handover.stopping.is_set():
            self._schedule_shutdown(signal.SIGTERM)

    async def _sentinel_task(self) -> None:
        """Let what closes close; Faust gives it a second."""
        await asyncio.sleep(_CLOSING_S)

    def _on_sigterm(self) -> None:
        self.told = True
        super()._on_sigterm()

    def _on_sigint(self) -> None:
        self.told = True
        super()._on_sigint()


def run_app(app: QuietcountApp, *, loglevel: str | int = "info") -> int:
    """Run the worker until SIGTERM, SIGINT or a failure; return the exit status (see `handover`).

    Logging is left as the caller has set it up. Call it in the main thread. After `KAFKA_AWAY`
    nothing is left of the application, and another one may be run.
    """
    worker = _Worker(app, loglevel=loglevel, override_logging=False, redirect_stdouts=False, quiet=True, workdir=None)
    worker.spinner = None  # it writes terminal codes, also into files
    try:
        worker.execute_from_commandline()
    except SystemExit as exc:
        status = EXIT_FAILED if exc.code else 0
    except Exception:
        logger.exception("the worker failed")
        status = EXIT_FAILED
    app.handover.ended()
    if app.handover.exit_status is None or (app.handover.exit_status == KAFKA_AWAY and worker.told):
        return status
    return app.handover.exit_status
