"""One partition of one stage: its transactional producer, its offset, its state, all used by one thread of its own.

    open       fence the older owner, read the state to its end, `restore`
    feed       records in, in order; `process` decides when to `transact`
    transact   messages and state changes in one Kafka transaction, then the local copy
    close      forget everything; what was not committed is read again by the next owner

A shard is synchronous and knows nothing of Faust: a test may call its methods directly. `contribute` and `release` are
subclasses. The transaction's promise: all of `messages` and `changes` become visible together, at most once, and only
while no newer owner of the transactional id exists.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from workers.changes import Change
from workers.errors import Fenced, MessageTooLong
from workers.kafka.clients import Connection
from workers.kafka.ends import End, Ends
from workers.kafka.records import Batch, Outgoing, ShardStats
from workers.kafka.store import Store
from workers.mechanisms.sizes import BATCH_BYTES, MESSAGE_BYTES
from workers.metrics import Metrics

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: How librdkafka says that a newer producer has our transactional id.
_FENCED = frozenset((KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED))
#: Delivery failures that repeating the transaction cannot cure.
_HOPELESS = frozenset(
    (
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_RECORD,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    )
)
#: What becomes of messages whose transaction has failed for another reason.
_PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
_CALL_S = 30.0  # one call to the broker
_AGAIN_S = 0.05  # between two calls that ask for the same thing
_PATIENCE_S = 120.0  # repeating a transaction: longer outages end the worker, and its supervisor starts it again
# Must exceed the longest commit, or the broker aborts it, again and again: a tick of ten million new items is about 700 MB, which at
# 5 MB/s takes 140 s. Whoever takes a partition over ends its open transaction at once. The broker allows 15 minutes, unless told otherwise.
TRANSACTION_TIMEOUT_MS = 300_000


class ShardClosed(Exception):
    """The shard was given up while its thread was at work: stop, nothing is lost."""


class Shard:
    """Base of both stages; see the module. Everything but `call`, `wants_end` and `shutdown` runs in its thread."""

    #: What the metrics call it.
    stage = "shard"

    def __init__(
        self,
        connection: Connection,
        transactional_id: str,
        partition: int,
        state_topic: str,
        store: Store,
        metrics: Metrics | None = None,
    ) -> None:
        self.connection = connection
        self.transactional_id = transactional_id
        self.partition = partition
        self.state_topic = state_topic
        self.store = store
        #: Position to go on at in the source partition. None after `restore`: the log's beginning.
        self.offset: int | None = None
        #: Position up to which everything is committed; told to the consumer group, for lag tools only.
        self.committed: int | None = None
        self.closed = False
        #: Ends of its log, noted by the event loop, that it has not reached.
        self.ends = Ends()
        #: When the piece of work began that its thread is at, or last showed that it goes on; None between two.
        self.busy_since_s: float | None = None
        self._failed = False
        self.stats = ShardStats()
        self.metrics = Metrics() if metrics is None else metrics
        self._counted = self.metrics.stage(self.stage)
        self._producer: Producer | None = None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=transactional_id)
        self._closing: asyncio.Future[None] | None = None
        self._state_end = -1
        self._failure: KafkaError | None = None

    # ---- what a stage says --------------------------------------------------------------------

    def restore(self) -> None:
        """Read the state from `self.store` and set `self.offset` (None: the log's beginning)."""

    def process(self, batch: Batch) -> None:
        """Take the records of `batch`, calling `transact` where something is to be committed."""
        raise NotImplementedError

    def wants_end(self, now_ms: int) -> bool:
        """Tell, cheaply and from any thread, whether the log's end should be noted now."""
        return False

    def reached(self, end: End) -> None:
        """Act on the wall clock: every record that was in the log at `end.now_ms` has been processed, and none after it."""

    def idle(self) -> None:
        """Called about every 200 ms, whatever the backlog; for commits by interval."""

    # ---- life ---------------------------------------------------------------------------------

    def open(self) -> None:
        """Take the partition over: fence the older owner, read the state to its end, restore.

        Raises:
            Fenced: an even newer owner came in between.
            KafkaException: the broker could not be reached.
            StateRefused: by `restore`.
        """
        started = time.perf_counter()
        self._producer = producer = self.connection.producer(
            self.transactional_id,
            **{
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "compression.type": "lz4",
                "linger.ms": 5,  # commit flushes at once; this only lets messages of one transaction travel together
                # A batch of several messages stays below both; a longer message never gets here (`_refuse_unsendable`).
                "batch.size": BATCH_BYTES,
                "message.max.bytes": BATCH_BYTES,
                "partitioner": "murmur2_random",  # a key's snapshots lie where a Java producer would put them
                "queue.buffering.max.messages": 1_000_000,
            },
        )
        producer.list_topics(timeout=_CALL_S)  # connect first: a cold init_transactions sits out a 500 ms timer
        self._initialise(producer)
        self.stats.fence_s = time.perf_counter() - started
        loading = self.store.load(self.connection)
        self.stats.load_s, self.stats.loaded_records = loading.seconds, loading.records
        self.restore()
        self.committed = self.offset
        self.stats.last_commit_s = time.monotonic()

    def feed(self, batch: Batch) -> None:
        """Process `batch`, which must begin where the shard stands.

        Raises:
            RuntimeError: it begins elsewhere; going on would lose records or count them twice.
        """
        self.check_open()
        if batch.start != self.offset:
            raise RuntimeError(f"{self.transactional_id}: stands at {self.offset}, was given {batch!r}")
        records = len(batch)
        with self._work():
            while (end := self.ends.take(batch.end)) is not None:
                before, batch = batch.split(end.offset)
                self._process(before)
                self.reached(end)
            self._process(batch)
        self._counted.records.inc(records)

    def _process(self, batch: Batch) -> None:
        if batch.end > batch.start:
            self.process(batch)
            self.offset = batch.end

    def tick(self, handed: int, position: int) -> None:
        """Act on the ends that were reached without a further record.

        Args:
            handed: where the last batch that was fetched ended.
            position: that, moved past records that nobody may see.
        """
        with self._work():
            if self.offset is not None:
                passed = position if self.offset == handed else self.offset
                while (end := self.ends.take(passed)) is not None:
                    self.reached(end)

    def tick_idle(self) -> None:
        """Call `idle` unless the shard was given up."""
        with self._work():
            self.idle()

    def check_open(self) -> None:
        """Raise `ShardClosed` if the shard was given up, or has failed."""
        if self.closed or self._failed:
            raise ShardClosed(self.transactional_id)

    @contextmanager
    def _work(self) -> Iterator[None]:
        """Do nothing more after a failure: what was queued behind it would commit half of what it left."""
        self.check_open()
        self.busy_since_s = time.monotonic()
        try:
            yield
        except BaseException:
            self._failed = True
            raise
        finally:
            self.busy_since_s = None

    def goes_on(self) -> None:
        """Say, in the middle of long work, that it is not stuck."""
        if self.busy_since_s is not None:
            self.busy_since_s = time.monotonic()

    def close(self) -> None:
        """Drop the producer (an open transaction is left to the next owner to abort) and close the store."""
        self.closed = True
        self._producer = None
        self.store.close()

    # ---- transactions -------------------------------------------------------------------------

    def transact(self, messages: Sequence[Outgoing], changes: Sequence[Change], group_offset: int) -> None:
        """Commit `messages` and the state `changes` as one Kafka transaction, then apply `changes` to the store.

        The transaction is repeated until it is committed. When this raises, nothing may be assumed of its fate, and the
        shard must not be used again.

        Args:
            messages: what becomes visible to read_committed consumers.
            changes: keys of the state topic's partition and their new values (None deletes), later ones winning.
            group_offset: source position that is now committed, for lag tools.

        Raises:
            Fenced: a newer owner exists; the transaction was not committed.
            ShardClosed: the shard was given up before the transaction began.
            KafkaException: it cannot be committed (too large, not authorised, broker away for minutes).
        """
        self.check_open()
        producer = self._producer
        if producer is None:
            raise RuntimeError(f"{self.transactional_id}: the shard is not open")
        self._refuse_unsendable(messages, changes)
        started = time.perf_counter()
        deadline, pause = time.monotonic() + _PATIENCE_S, 0.05
        while not self._attempt(producer, messages, changes):
            self.stats.aborted += 1
            self._counted.aborted.inc()
            if time.monotonic() > deadline:
                raise KafkaException(self._failure)
            time.sleep(pause)
            pause = min(2 * pause, 5.0)
            self.check_open()
        if changes:
            self.store.write(changes, self._state_end)
        self.committed = group_offset
        self.stats.transactions += 1
        self.stats.last_commit_s = time.monotonic()
        self._counted.commit_seconds.observe(time.perf_counter() - started)

    def _refuse_unsendable(self, messages: Sequence[Outgoing], changes: Sequence[Change]) -> None:
        """Raise where a message is longer than any encoder makes one: the last line of defence, which nothing should reach."""
        for message in (*messages, *(Outgoing(self.state_topic, None, key, value) for key, value in changes)):
            if message.nbytes > MESSAGE_BYTES:
                raise MessageTooLong(
                    f"{message.topic}: a message of {message.nbytes:,} bytes, at most {MESSAGE_BYTES:,}: this is a defect of Quietcount. "
                    "Nothing of this transaction was sent; please report it"
                )

    def _attempt(self, producer: Producer, messages: Sequence[Outgoing], changes: Sequence[Change]) -> bool:
        """Try one transaction; False: it was aborted and may be repeated (`_failure` says why)."""
        self._state_end, self._failure = -1, None
        try:
            producer.begin_transaction()
            for message in messages:
                self._produce(producer, message)
            for key, value in changes:
                self._produce(producer, Outgoing(self.state_topic, self.partition, key, value))
            self._commit(producer)  # flushes; a message that could not be delivered makes it ask for an abort
        except KafkaException as exc:
            error: KafkaError = exc.args[0]
            self._raise_if_fenced(error)
            failure = error if self._failure is None or self._failure.code() in _PURGED else self._failure
            if not error.txn_requires_abort():
                self._abort(producer)
                raise
        else:
            if changes and self._state_end < 0:
                self._serve(producer, 1.0)
                if self._state_end < 0:
                    raise RuntimeError(f"{self.transactional_id}: committed, but no state message was reported")
            return True
        logger.warning("%s: transaction aborted: %s: %s", self.transactional_id, failure.name(), failure.str())
        if failure.code() in _HOPELESS:
            with suppress(KafkaException, Fenced):
                self._abort(producer)
            raise KafkaException(failure)
        self._abort(producer)
        self._failure = failure
        return False

    def _produce(self, producer: Producer, message: Outgoing) -> None:
        """Hand one message to librdkafka, waiting while its queue is full."""
        options: dict[str, Any] = {}
        if message.partition is not None:
            options["partition"] = message.partition
        if message.headers:
            options["headers"] = list(message.headers)
        if message.timestamp_ms is not None:
            options["timestamp"] = message.timestamp_ms
        deadline, left = time.monotonic() + _CALL_S, len(producer)
        while True:
            try:
                producer.produce(message.topic, message.value, message.key, on_delivery=self._delivered, **options)
                return
            except BufferError:
                if time.monotonic() > deadline:
                    raise
                self._serve(producer, 0.1)
                if len(producer) < left:  # the broker takes what it was sent: slow is not stuck
                    deadline, left = time.monotonic() + _CALL_S, len(producer)
                    self.goes_on()

    def _serve(self, producer: Producer, wait_s: float) -> None:
        """Serve delivery reports, raising `KafkaException` for a fatal error."""
        try:
            producer.poll(wait_s)
        except:  # for a fatal error it raises a KafkaError, which is no exception class: nothing else catches it
            error = sys.exc_info()[1]
            if isinstance(error, KafkaError):
                raise KafkaException(error) from None
            raise

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        """Take note of a delivery report: a failure, or how far the state partition now reaches."""
        if error is not None:
            if self._failure is None or self._failure.code() in _PURGED:
                self._failure = error
        elif message.topic() == self.state_topic and message.partition() == self.partition:
            offset = message.offset()
            if offset is not None:
                self._state_end = max(self._state_end, offset + 1)

    def _commit(self, producer: Producer) -> None:
        self._insist("commit", producer.commit_transaction, producer)

    def _abort(self, producer: Producer) -> None:
        self._insist("abort", producer.abort_transaction)

    def _initialise(self, producer: Producer) -> None:
        """Fence the older owner and end its transaction; the broker may be busy with that for a while."""
        self._insist("initialise", producer.init_transactions)

    def _insist(self, name: str, call: Callable[[float], object], sending: Producer | None = None) -> None:
        """Call, and call again while the outcome is not known or `sending` sends, unless the shard is given up meanwhile."""
        deadline, left = time.monotonic() + _PATIENCE_S, 0 if sending is None else len(sending)
        while True:
            try:
                call(_CALL_S)
                return
            except KafkaException as exc:
                error: KafkaError = exc.args[0]
                self._raise_if_fenced(error)
                if sending is not None and len(sending) < left:  # large and under way, which is not stuck
                    deadline, left = time.monotonic() + _PATIENCE_S, len(sending)
                    self.goes_on()
                if not error.retriable() or time.monotonic() > deadline or self.closed:
                    raise
                logger.info("%s: %s asked again: %s", self.transactional_id, name, error.str())
                time.sleep(_AGAIN_S)

    def _raise_if_fenced(self, error: KafkaError) -> None:
        if error.code() in _FENCED or (error.fatal() and error.code() not in _HOPELESS):
            raise Fenced(f"{self.transactional_id}: {error.name()}: {error.str()}") from KafkaException(error)

    # ---- called from the event loop -----------------------------------------------------------

    async def call(self, function: Callable[..., T], *args: Any) -> T:
        """Run `function` in the shard's thread, after what was asked of it before."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)

    async def shutdown(self, wait_s: float = 10.0) -> bool:
        """Close in the shard's thread; what waits for that thread does nothing. False: it did not end in time."""
        self.closed = True
        if self._closing is None:
            self._closing = asyncio.get_running_loop().run_in_executor(self._pool, self.close)
            self._pool.shutdown(wait=False)  # what was submitted is still run
        try:
            await asyncio.wait_for(asyncio.shield(self._closing), wait_s)
        except TimeoutError:
            logger.warning("%s: still at work %g s after it was given up", self.transactional_id, wait_s)
            return False
        return True
