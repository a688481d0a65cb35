"""One partition of one stage: transactions, offset and state. Synchronous, independent of Faust.

open       fence the older owner, read the state to its end, `restore`
feed       records in, in order; `process` decides when to `transact`
transact   messages and state changes in one Kafka transaction, then the local copy
close      drop everything; the next owner reads uncommitted records again

The event loop notes ends of the partition's log, each with its time (`offsets.LogEnds`). The shard
calls `reached` for an end when it has processed exactly the records before it.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from workers.kafka.clients import Connection
from workers.kafka.offsets import LogEnd, LogEnds, ReadPosition
from workers.kafka.reading import end_of, hidden_by_transaction
from workers.kafka.records import Batch, FetchedRecords, Forwarded, Outgoing
from workers.kafka.store import Store, recreated
from workers.kafka.transaction import Delivery, Transactions
from workers.runtime.availability import PARTITIONS
from workers.runtime.errors import Fenced
from workers.runtime.metrics import Metrics
from workers.runtime.sizes import MESSAGE_BYTES, Change
from workers.runtime.traces import ShardTraces, Traces

logger = logging.getLogger(__name__)

T = TypeVar("T")

_CLOSE_S = 10.0


class ShardClosed(Exception):
    """The shard was given up while its thread was working: stop, nothing is lost."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a shard is made from: its partition, its transactional id, and where its state is."""

    connection: Connection
    transactional_id: str
    partition: int
    store: Store
    metrics: Metrics = field(default_factory=Metrics)
    traces: Traces | None = None


class Shard:
    """Base of every stage's shards, and the `Owner` that its `Transactions` report to.

    Only `call`, `wants_end` and `shutdown` may run outside its thread.
    """

    stage = "shard"
    #: Topic of the next stage: messages to it have a header that names the trace of this commit.
    next_topic: str | None = None
    #: Longest value to read, in bytes; far longer ones are truncated.
    longest_value = MESSAGE_BYTES

    def __init__(self, assignment: Assignment) -> None:
        """Make the shard of an assignment, without connecting; `open` takes the partition over."""
        self.connection = assignment.connection
        self.metrics = assignment.metrics
        self.transactional_id = assignment.transactional_id
        self.partition = assignment.partition
        self.store = assignment.store
        #: Next position in the partition that it reads. None after `restore`: the log's beginning.
        self.offset: int | None = None
        #: Position up to which everything is committed; for lag tools only.
        self.committed: int | None = None
        self.closed = False
        #: Ends of the log that were noted and not reached yet; the event loop adds them.
        self.ends = LogEnds()
        #: Begin or last progress of the current work (monotonic); None while idle.
        self.busy_since_s: float | None = None
        #: Time of the last commit, or of the opening (monotonic); 0 before.
        self.last_commit_s = 0.0
        #: Seconds spent on fencing and on loading the state, and the state records read.
        self.fence_s = self.load_s = 0.0
        self.loaded_records = 0
        # Work has failed: what it has done is half a result, and nothing may be committed.
        self._failed = False
        self._stage_metrics = self.metrics.stage(self.stage)
        self.traces = ShardTraces(assignment.traces, self.stage, assignment.partition)
        state = self.store.changelog.log
        self.transactions = Transactions(
            self.connection, self.transactional_id, state, self
        )
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=self.transactional_id)
        self._closing: asyncio.Future[None] | None = None

    def restore(self) -> None:
        """Load the state from `self.store` and set `self.offset` (None: the log's beginning)."""

    def process(self, batch: Batch) -> None:
        """Take in the records of a batch; the subclass calls `transact` when a commit is due."""
        raise NotImplementedError

    def commits(self, batch: Batch) -> Iterable[bytes]:
        """Return the headers that name traced commits of the stage before."""
        return ()

    def wants_end(self, now_ms: int) -> bool:
        """Return whether to note the log's end now, since the time there would close a tick.

        Cheap, and callable from any thread.
        """
        return False

    def reached(self, end: LogEnd) -> None:
        """Act on `end.now_ms`: exactly the records in the log at that time have been processed."""

    def idle(self) -> None:
        """Commit if the interval has passed; called about every 200 ms, even with a backlog."""

    def open(self) -> None:
        """Fence the older owner, read the state to its end, restore.

        Raises Fenced (a newer owner intervened), KafkaAway (an open transaction hides the end of
        the state), KafkaException (no broker), ShardClosed (given up), StateRefused (`restore`).
        """
        log = self.store.changelog.log
        started = time.perf_counter()
        self.transactions.take_over()
        self.fence_s = time.perf_counter() - started
        end = end_of(self.connection, *log, self.check_open)
        started = time.perf_counter()
        self.loaded_records = self.store.load(self.connection, self.check_open)
        self.load_s = time.perf_counter() - started
        # `load` reads only what is committed, and stops at an open transaction; `end` does not.
        if (self.store.offset or 0) < end:
            raise hidden_by_transaction(log)
        self.restore()
        self.committed = self.offset
        self.last_commit_s = time.monotonic()

    def feed_fetched(self, fetched: FetchedRecords) -> None:
        """Decode and process record batches, part by part; raise CorruptRecordException."""
        parts = fetched.parts(self.longest_value)
        while True:
            # Decoding is part of the work: if it fails, the shard ends.
            with self._work():
                batch = next(parts, None)
            if batch is None:
                return
            self.feed(batch)
            del batch  # free it before decoding the next

    def feed(self, batch: Batch) -> None:
        """Process `batch`; RuntimeError if it does not begin at the shard's position."""
        self.check_open()
        if batch.start != self.offset:
            # Continuing would lose or double-count records.
            raise RuntimeError(
                f"{self.transactional_id}: is at {self.offset}, was given {batch!r}"
            )
        records = len(batch)
        with (
            self._work(),
            self.traces.batch(self.commits(batch), batch.start, batch.end),
        ):
            # Act on noted ends between the records before and after them.
            while (end := self.ends.take(batch.end)) is not None:
                before, batch = batch.split(end.offset)
                self._process(before)
                self.reached(end)
            self._process(batch)
        self._stage_metrics.records.inc(records)

    def _process(self, batch: Batch) -> None:
        if batch.end > batch.start:
            self.process(batch)
            self.offset = batch.end

    def tick(self, reading: ReadPosition) -> None:
        """Act on noted ends that were reached without a batch: readers see no record there."""
        with self._work():
            if self.offset is not None:
                position = reading.position_of(self.offset)
                while (end := self.ends.take(position)) is not None:
                    self.reached(end)

    def tick_idle(self) -> None:
        with self._work():
            self.idle()

    def check_open(self) -> None:
        if self.closed or self._failed:
            raise ShardClosed(self.transactional_id)

    @contextmanager
    def _work(self) -> Iterator[None]:
        """Mark the shard busy; refuse work after a failure, since it would commit half results."""
        self.check_open()
        self.busy_since_s = time.monotonic()
        try:
            yield
        except BaseException:
            self._failed = True
            raise
        finally:
            self.busy_since_s = None

    def report_progress(self) -> None:
        """Note that the current work goes on, so that it does not count as stuck."""
        if self.busy_since_s is not None:
            self.busy_since_s = time.monotonic()

    def note_wait(self, waits: Mapping[str, str]) -> bool:
        """Report what this shard waits for, and why, by name.

        Return whether a partition that is not available explains it.
        """
        self.metrics.waits.note(self.transactional_id, waits)
        return self.metrics.waits.has(PARTITIONS)

    def close(self) -> None:
        """Drop the producer and the store; the next owner redoes what is not committed."""
        self.closed = True
        self.note_wait({})
        self.transactions.close()
        self.store.close()

    def transact(
        self,
        messages: Sequence[Outgoing],
        changes: Sequence[Change],
        group_offset: int,
        forwarded: Sequence[Forwarded] = (),
        delivery: Delivery | None = None,
    ) -> None:
        """Commit `messages` and `changes` in one transaction, then apply `changes` to the store.

        Arguments and errors are those of `Transactions.transact`. If it raises, the outcome is
        unknown, and the shard must not be used again. `group_offset` is the position in the input
        that is now committed.
        """
        self.check_open()
        started = time.perf_counter()
        with self.traces.commit(len(messages)) as header:
            if header is not None:
                messages = [
                    message._replace(headers=(header,))
                    if message.topic == self.next_topic
                    else message
                    for message in messages
                ]
            state_end = self.transactions.transact(
                messages, changes, forwarded, delivery
            )
            # The changelog's offsets have begun again.
            if changes and state_end < (self.store.offset or 0):
                raise recreated(self.store.changelog.topic)
            if changes:
                self.store.write(changes, state_end)
        self.committed = group_offset
        self.last_commit_s = time.monotonic()
        self._stage_metrics.commit_seconds.observe(time.perf_counter() - started)
        self.transactions.renew()

    def confirm(self) -> None:
        """Raise `Fenced` if the changelog has commits that this shard did not make or read."""
        if not self.store.is_current(self.connection, self.check_open):
            raise Fenced(
                f"{self.transactional_id}: another owner has committed meanwhile"
            )

    def note_abort(self) -> None:
        self._stage_metrics.aborted_transactions.inc()

    async def call(self, function: Callable[..., T], *args: Any) -> T:
        """Run `function` in the shard's thread, after earlier calls; return its result."""
        return await asyncio.get_running_loop().run_in_executor(
            self._pool, function, *args
        )

    async def shutdown(self) -> None:
        """Close in the shard's thread, skipping queued work; wait at most `_CLOSE_S`."""
        self.closed = True
        if self._closing is None:
            self._closing = asyncio.get_running_loop().run_in_executor(
                self._pool, self.close
            )
            self._pool.shutdown(wait=False)  # submitted work still runs
        try:
            await asyncio.wait_for(asyncio.shield(self._closing), _CLOSE_S)
        except TimeoutError:
            name = self.transactional_id
            logger.warning(
                "%s: still at work %g s after it was given up", name, _CLOSE_S
            )
