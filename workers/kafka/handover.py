"""This worker's shards: partition take-over, release and failures.

    acquire   after an assignment: open a shard per partition, fencing its older owner
    feed      pass a batch to its shard; shards work in parallel, a shard's batches stay in order
    beat      every 200 ms: the event loop is alive; once a second, how far shards are behind
    tick      after it: commits by interval, and the wall clock for shards at their log's end
    give_up   before a revocation is answered: give up every shard

    event                                           reaction                                exit
    a newer owner fenced a shard                    drop it, and wait to be reassigned       -
    ... and the partition is still ours after       stop: another worker uses our            75
        `fenced_grace_s`                            transactional ids
    Kafka is unreachable, or ended a transaction    release everything, then start again     -
        because it could not be reached             from stored state (`KAFKA_AWAY`)
    a local copy cannot be read                     the same, without these files            -
    more source partitions are counted now          the same, to read them                   -
    a topic is not there, or another one            the same: the start checks all topics    -
    settings or state refused, or not authorized    stop cleanly, one message                2
    any other failure in a shard                    stop, with the traceback in the log      70

Shutdown saves nothing: all durable state is in Kafka.
"""

import asyncio
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from aiokafka.errors import KafkaError as ConsumerError

from workers.kafka.clients import forbidden, text_of, unreachable
from workers.kafka.offsets import Lag, LogEnd, ReadPosition
from workers.kafka.reading import Partition, name_of
from workers.kafka.records import FetchedRecords
from workers.kafka.shard import Shard, ShardClosed
from workers.kafka.verdicts import Verdict, verdict_of
from workers.runtime.availability import TRANSACTIONS
from workers.runtime.errors import (
    CopyFailed,
    Fenced,
    QuietcountError,
    SourcesGrown,
    describe,
)
from workers.runtime.logs import json_fields
from workers.runtime.metrics import Metrics

logger = logging.getLogger(__name__)

EXIT_REFUSED = 2
EXIT_FAILED = 70
EXIT_FENCED = 75
#: Not an exit status: the result of a run that ended because Kafka was away.
KAFKA_AWAY = -1

#: Fetched but unprocessed batches of a shard: one in progress, one waiting.
WAITING_MAX = 2
_GROUP_COMMIT_S = 5.0
_LAG_S = 1.0
# After these a wait for partitions of the group, or for an answer about log ends, is reported: the
# one takes some seconds, the other milliseconds.
_JOIN_S = 8.0
_ENDS_S = 3.0


class LogReader(Protocol):
    """What the hand-over needs of the consumer that reads the logs."""

    async def bounds(
        self, partitions: Iterable[Partition]
    ) -> Mapping[Partition, tuple[int, int]]:
        """Return the first offset and the last stable offset of each log."""

    async def ends(self, partitions: Iterable[Partition]) -> Mapping[Partition, int]:
        """Ask the broker for the last stable offset of each log; some may get no answer."""

    def read_positions(self) -> Mapping[Partition, ReadPosition]: ...

    async def commit_group(self, offsets: Mapping[Partition, int]) -> None:
        """Commit the consumer group's offsets, for lag tools; failure is not an error."""


class Handover:
    """Owner of this worker's shards. Its methods run in the event loop, shards in threads."""

    #: For a fenced shard's partition to be assigned elsewhere; for a stopping worker to end.
    fenced_grace_s = exit_deadline_s = 30.0

    def __init__(
        self,
        factories: Mapping[str, Callable[[int], Shard | None]],
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        metrics: Metrics | None = None,
    ) -> None:
        """`factories` make the shard of a topic's partition; None: it is not read (yet)."""
        self.factories = dict(factories)
        self.shards: dict[Partition, Shard] = {}
        self.metrics = Metrics() if metrics is None else metrics
        self.lags: dict[Partition, Lag] = {}
        #: Whether the last assignment was taken over.
        self.assigned = False
        #: When the event loop last ran `beat` (monotonic).
        self.beat_s = time.monotonic()
        self.exit_status: int | None = None
        self.stopping = asyncio.Event()
        self.reader: LogReader | None = None
        #: Called when a shard has room for another batch.
        self.on_freed: Callable[[], None] = lambda: None
        self._now_ms = now_ms
        # How many fetched batches each shard has not processed.
        self._waiting: Counter[Shard] = Counter()
        # Work by the timer that is queued or running, by shard and kind (`_start_once`).
        self._at_work: set[tuple[Shard, str]] = set()
        self._tasks: set[asyncio.Task[object]] = set()
        # The offsets that were last committed to the consumer group.
        self._group_offsets: dict[Partition, int] = {}
        self._next_group_commit_s = self._next_lag_s = 0.0
        # Since when the group's assignment, and all answers about log ends, have been waited for.
        self._unassigned_since_s: float | None = self.beat_s
        self._ends_asked_since_s: float | None = None
        # Logs whose ends were asked for, without an answer yet.
        self._unanswered: set[Partition] = set()
        # Ends the process if stopping hangs (`_end`).
        self._exit_timer: threading.Timer | None = None

    async def acquire(
        self,
        partitions: Iterable[Partition],
        still_ours: Callable[[], bool] = lambda: True,
    ) -> dict[Partition, int]:
        """Open a shard per partition; return the offsets to read from (none if revoked).

        `still_ours` tells whether the assignment still holds: it may end while shards open.
        """
        started = time.perf_counter()
        await self.give_up()
        if not still_ours():
            return {}
        self._unassigned_since_s = None
        new: dict[Partition, Shard] = {}
        for topic, partition in partitions:
            make = self.factories.get(topic)
            if make is not None and (shard := make(partition)) is not None:
                new[topic, partition] = shard
        self.shards = new
        if not new:
            self.assigned = True
            return {}

        def overtaken() -> bool:
            """Return whether a revocation or a later assignment came meanwhile."""
            return not still_ours() or self.shards is not new

        opening = (shard.call(shard.open) for shard in new.values())
        opened = await asyncio.gather(*opening, return_exceptions=True)
        if overtaken():
            return {}
        for shard, failure in zip(new.values(), opened, strict=True):
            if failure is not None:
                self._failed(shard, failure)
        if self.exit_status is not None:
            return {}
        still_open = {tp: shard for tp, shard in new.items() if not shard.closed}
        bounds = await self._reader().bounds(still_open)
        if overtaken():
            return {}
        offsets = self._positions(still_open, bounds)
        self.lags = {tp: Lag() for tp in offsets}
        self.assigned = True
        self._report_acquired(new.values(), len(offsets), time.perf_counter() - started)
        return offsets

    def _report_acquired(
        self, shards: Collection[Shard], partitions: int, recovery_s: float
    ) -> None:
        """Log and measure how long it took to open shards; `partitions` can be read now."""
        records = sum(shard.loaded_records for shard in shards)
        self.metrics.acquired.inc(partitions)
        self.metrics.recovery_seconds.observe(recovery_s)
        self.metrics.recovered_records.inc(records)
        seconds = round(recovery_s, 3)
        logger.info(
            "took over %d partitions in %.0f ms (fencing %.0f ms, %d state records in %.0f ms)",
            partitions,
            recovery_s * 1e3,
            max(shard.fence_s for shard in shards) * 1e3,
            records,
            max(shard.load_s for shard in shards) * 1e3,
            extra=json_fields(event="acquired", partitions=partitions, seconds=seconds),
        )

    def _positions(
        self,
        shards: Mapping[Partition, Shard],
        bounds: Mapping[Partition, tuple[int, int]],
    ) -> dict[Partition, int]:
        """Return each shard's start offset, after checking that its log still has it."""
        offsets: dict[Partition, int] = {}
        for tp, shard in shards.items():
            low, high = bounds[tp]
            if shard.offset is None:
                shard.offset = shard.committed = low
            next_record = f"{name_of(tp)}: the next record to count is {shard.offset}, but the log"
            if shard.offset > high:
                self.fail(
                    EXIT_REFUSED,
                    f"{next_record} ends at {high}: the topic was re-created or lost its tail, and counting it again could "
                    "count records twice. Restore the topic, or continue under a new worker.name (a new epoch, charged again)",
                )
                return {}
            if shard.offset < low:
                self.fail(
                    EXIT_REFUSED,
                    f"{next_record} now begins at {low}: retention removed records that were never counted. Nothing is "
                    "published over a gap. Raise the topic's retention, and continue under a new worker.name (a new epoch, "
                    "charged again) or restore the log",
                )
                return {}
            offsets[tp] = shard.offset
        return offsets

    async def give_up(self) -> None:
        """Give up every shard; return when their threads have ended, or after ten seconds."""
        old = self.shards
        self.shards = {}
        self.assigned = False
        self.lags = {}
        self.metrics.waits.drop_transactions()
        self._unassigned_since_s = time.monotonic()
        self._waiting.clear()
        self._group_offsets.clear()
        if old:
            started = time.perf_counter()
            await asyncio.gather(*(shard.shutdown() for shard in old.values()))
            number = len(old)
            self.metrics.released.inc(number)
            took_s = time.perf_counter() - started
            logger.info(
                "gave up %d partitions in %.0f ms",
                number,
                took_s * 1e3,
                extra=json_fields(
                    event="given_up", partitions=number, seconds=round(took_s, 3)
                ),
            )

    def _open_shard(self, partition: Partition) -> Shard | None:
        shard = self.shards.get(partition)
        return None if shard is None or shard.closed else shard

    def has_room(self, partition: Partition) -> bool:
        """Return whether a partition's shard takes another fetched batch now."""
        shard = self._open_shard(partition)
        return shard is not None and self._waiting[shard] < WAITING_MAX

    def claim(
        self, partition: Partition, batch: FetchedRecords
    ) -> FetchedRecords | None:
        """Return `batch` with its open shard, and count it as waiting; None without a shard."""
        shard = self._open_shard(partition)
        if shard is None:
            return None
        self._waiting[shard] += 1
        return replace(batch, shard=shard)

    async def feed(self, batch: FetchedRecords) -> None:
        """Queue `batch` for its shard's thread and return; `has_room` bounds that queue."""
        shard = batch.shard
        if isinstance(shard, Shard) and not shard.closed:
            self._start(
                self._run(shard, lambda: self._free(shard), shard.feed_fetched, batch)
            )

    def _free(self, shard: Shard) -> None:
        """Note that a shard is done with a batch, so that another one can be fetched."""
        self._waiting.subtract([shard])
        self.on_freed()

    def beat(self) -> None:
        """Record that the event loop is alive; once a second sample every shard's lag.

        Transactions that hold partitions up are noted in the metrics' waits, from which they are
        logged.
        """
        now_s = self.beat_s = time.monotonic()
        if now_s < self._next_lag_s or self.reader is None:
            return
        self._next_lag_s = now_s + _LAG_S
        self._note_waits(now_s)
        for tp, reading in self.reader.read_positions().items():
            shard = self.shards.get(tp)
            lag = self.lags.get(tp)
            if shard is not None and lag is not None and shard.offset is not None:
                lag.sample(now_s, shard.offset, reading)
        held_up = {
            name_of(tp): lag.transaction
            for tp, lag in self.lags.items()
            if lag.transaction.holds_up
        }
        whys = {log: transaction.why for log, transaction in held_up.items()}
        since_s = {log: transaction.since_s for log, transaction in held_up.items()}
        self.metrics.waits.note(TRANSACTIONS, whys, since_s)

    def _note_waits(self, now_s: float) -> None:
        """Report what takes too long: joining the group, or answers about log ends."""
        waits = {}
        unassigned_s = self._unassigned_since_s
        asked_s = self._ends_asked_since_s
        if unassigned_s is not None and now_s - unassigned_s > _JOIN_S:
            waits["the consumer group"] = "it has assigned no partitions"
        if asked_s is not None and now_s - asked_s > _ENDS_S:
            for tp in self._unanswered:
                waits[f"the clock of {name_of(tp)}"] = "the log's end is not known"
        self.metrics.waits.note("hand-over", waits)

    async def tick(self) -> None:
        """Let shards commit by interval, and let the wall clock close their ticks.

        For the clock, note where each log ends now; the shard closes ticks when it has read up to
        there.
        """
        # Before asking for the ends, which then cover every record in the log at that time.
        now_ms = self._now_ms()
        shards = {tp: shard for tp, shard in self.shards.items() if not shard.closed}
        for shard in shards.values():
            self._start_once(shard, "idle", shard.tick_idle)
        asked = [
            tp
            for tp, shard in shards.items()
            if not shard.ends.full and shard.wants_end(now_ms)
        ]
        # Kept until all logs have answered: `_note_waits` reports how long that takes.
        if self._ends_asked_since_s is None:
            self._ends_asked_since_s = time.monotonic()
        try:
            self._unanswered = set(asked)
            ends = await self._reader().ends(asked) if asked else {}
            self._unanswered -= ends.keys()
            if not self._unanswered:
                self._ends_asked_since_s = None
            for tp, offset in ends.items():
                # Not if the partition was given up meanwhile.
                if self.shards.get(tp) is shards[tp]:
                    shards[tp].ends.note(LogEnd(now_ms, offset))
            # An idle shard gets no batches, so it acts on noted ends here.
            for tp, reading in self._reader().read_positions().items():
                current = self.shards.get(tp)
                if current is not None and current.ends:
                    self._start_once(current, "clock", current.tick, reading)
            await self._commit_group(shards)
        except (ConsumerError, TimeoutError) as exc:
            logger.debug("the log ends could not be queried: %s", describe(exc))

    async def _commit_group(self, shards: Mapping[Partition, Shard]) -> None:
        """Show changed offsets in the consumer group, every `_GROUP_COMMIT_S`."""
        if time.monotonic() < self._next_group_commit_s:
            return
        self._next_group_commit_s = time.monotonic() + _GROUP_COMMIT_S
        shown = self._group_offsets
        changed = {
            tp: offset
            for tp, shard in shards.items()
            if (offset := shard.committed) is not None and offset != shown.get(tp)
        }
        if changed:
            await self._reader().commit_group(changed)
            shown.update(changed)

    def fail(self, status: int, message: str) -> None:
        """Stop with exit status `status`, unless one is set, and log `message` for the operator."""
        if self.exit_status is None:
            self.exit_status = status
            logger.critical(
                "%s", message, extra=json_fields(event="stopping", status=status)
            )
            self._end(status)

    def stop_for_outage(self, reason: str = "") -> None:
        """Stop, to begin the run again once Kafka answers.

        `reason` begins the outage unless it has begun; without one Kafka is not taken to be away.
        """
        if self.exit_status is None:
            self.exit_status = KAFKA_AWAY
            if reason:
                self.metrics.outage.begin(reason)
            self._end(EXIT_FAILED)

    def _end(self, status: int) -> None:
        """Stop the worker; if that hangs, end the process with `status` after `exit_deadline_s`."""
        self.stopping.set()
        self._exit_timer = threading.Timer(self.exit_deadline_s, os._exit, (status,))
        self._exit_timer.daemon = True
        self._exit_timer.start()

    def dispose(self) -> None:
        """Clean up what would outlive the run: the exit timer, references to large objects, waits.

        Faust keeps a reference to this, and the process may begin another run.
        """
        if self._exit_timer is not None:
            self._exit_timer.cancel()
        self.factories.clear()
        self.shards = {}
        self.lags = {}
        self.reader = None
        self.on_freed = lambda: None
        self._waiting.clear()
        self._at_work.clear()
        self.metrics.waits.note("hand-over", {})

    def _failed(self, shard: Shard, failure: BaseException) -> None:
        """React to an exception from a shard's thread, as the module's table says."""
        if isinstance(failure, ShardClosed):
            return
        if shard.closed:  # given up while working: its next owner repeats the work
            logger.info("%s ended with %s", shard.transactional_id, describe(failure))
            return
        shard.closed = True
        self._start(shard.shutdown())
        if isinstance(failure, Fenced):
            self.metrics.fenced.inc()
            fields = json_fields(
                event="fenced", stage=shard.stage, partition=shard.partition
            )
            logger.warning("a newer owner took over: %s", failure, extra=fields)
            loop = asyncio.get_running_loop()
            loop.call_later(self.fenced_grace_s, self._still_fenced, shard)
        else:
            self._react(shard.transactional_id, failure, shard.transactional_id)

    def consumer_failed(self, what: str, failure: BaseException) -> None:
        """React to a failure of the consumer while `what`, as to one of a shard."""
        self._react(what, failure, f"{what} failed")

    def _react(self, what: str, failure: BaseException, refusal: str) -> None:
        """Begin the run again, or stop; `refusal` begins the message of a wrong setting."""
        verdict = verdict_of(failure)
        if unreachable(failure):
            self.stop_for_outage(text_of(failure))
        elif verdict in (Verdict.MISSING, Verdict.FENCED):
            # Whether the topic is gone, the checks of the next start tell.
            logger.info("%s: %s: beginning the run again", what, text_of(failure))
            self.stop_for_outage()
        elif isinstance(failure, CopyFailed):
            logger.warning("worker.data_dir: %s: reading all of it again", failure)
            self.stop_for_outage()
        elif isinstance(failure, SourcesGrown):
            logger.info("%s: beginning the run again", failure)
            self.stop_for_outage()
        elif isinstance(failure, QuietcountError):
            self.fail(EXIT_REFUSED, str(failure))
        elif verdict in (Verdict.FORBIDDEN, Verdict.SETTING):
            reason = forbidden(failure) or text_of(failure)
            self.fail(EXIT_REFUSED, f"{refusal}: {reason}")
        else:
            logger.error("%s failed", what, exc_info=failure)
            self.fail(EXIT_FAILED, f"{what} failed: {describe(failure)}")

    def _still_fenced(self, shard: Shard) -> None:
        """Stop if a fenced shard's partition is still ours: no other worker of the group has it."""
        if shard in self.shards.values():
            self.fail(
                EXIT_FENCED,
                f"{shard.transactional_id} was taken over and its partition is still assigned here after "
                f"{self.fenced_grace_s:g} s: is another worker using the same worker.name outside the group?",
            )

    async def _run(
        self,
        shard: Shard,
        done: Callable[[], None],
        work: Callable[..., None],
        *args: Any,
    ) -> None:
        """Run `work` in a shard's thread unless it is closed; `done` is called in any case."""
        try:
            if not shard.closed:
                await shard.call(work, *args)
        except Exception as exc:  # noqa: BLE001  # a shard's failure must not go unnoticed in a task
            self._failed(shard, exc)
        finally:
            done()

    def _start_once(
        self, shard: Shard, kind: str, work: Callable[..., None], *args: Any
    ) -> None:
        """Start `work`, unless work of the same `kind` is still queued for the shard."""
        entry = (shard, kind)
        if entry not in self._at_work:
            self._at_work.add(entry)
            self._start(
                self._run(shard, lambda: self._at_work.discard(entry), work, *args)
            )

    def _start(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Start a task and hold on to it: asyncio itself keeps only a weak reference."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _reader(self) -> LogReader:
        if self.reader is None:
            raise RuntimeError("the hand-over has no consumer yet")
        return self.reader
