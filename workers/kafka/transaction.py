"""The transactions of one transactional id: messages and state changes, all of them or none.

    take_over  fence the older owner, end its open transaction
    run        begin, produce, commit; abort and repeat where the broker asks for it
    renew      begin a new epoch where an EndTxn may still be on its way to the broker
    close      drop the producer; the next owner aborts what is still open

Everything that one `run` sends becomes visible together, at most once, and only while the
transactional id has no newer owner. The shard (`kafka/shard.py`) says whether it was given up
meanwhile, and is told that long work goes on. What may follow what is a table:
`kafka/transaction_state.py`.

An EndTxn that librdkafka sent twice may arrive a second time in the middle of the next transaction,
and end it. librdkafka sends it again only after `retry.backoff.ms`, so a commit that is answered
sooner has sent it once (`_SENT_ONCE_S`), and costs nothing more. Any other, and every abort, is
followed by a new producer with a new epoch, under which the broker refuses the late one
(docs/reliability.md).
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from workers.kafka.clients import Connection, unreachable
from workers.kafka.records import Forwarded, Outgoing
from workers.kafka.transaction_state import Event, State, after
from workers.runtime.errors import Fenced, KafkaAway, MessageTooLong, SettingsError
from workers.runtime.sizes import BATCH_BYTES, MESSAGE_BYTES, Change

logger = logging.getLogger(__name__)

#: How librdkafka says that a newer producer has our transactional id.
_FENCED = frozenset(
    (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)
)
#: Delivery failures that repeating the transaction cannot cure.
_HOPELESS = frozenset(
    (
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_RECORD,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    )
)
#: What becomes of messages whose transaction has failed for another reason.
_PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
# One call to the broker; whoever is given up meanwhile waits no longer than this.
_CALL_S = 1.0
# Between two calls that ask for the same thing.
_AGAIN_S = 0.05
# A shard that has waited for so long says so: Kafka is there, or it would have been given up
# (`kafka/outages.py`), but does not do this.
_LONG_S = 20.0
# After so long without progress it begins again, with a new client: a client that was told by a
# broker that has just come back that there are no brokers may believe it for minutes (seen).
_STUCK_S = 60.0
# librdkafka waits so long, with 20 % more or less, before it sends a request again
# (`rd_kafka_broker_buf_retry`).
_RETRY_BACKOFF_MS = 1_000
# A commit that ends sooner after the last delivery has sent EndTxn once: a second one is sent 0.8 s
# after the first at the earliest. Usually it takes 10 ms.
_SENT_ONCE_S = 0.5 * _RETRY_BACKOFF_MS / 1000
# Must exceed the longest commit, or the broker aborts it, again and again: a tick of ten million
# new items is about 700 MB, which at 5 MB/s takes 140 s. Whoever takes a partition over ends its
# open transaction at once. The broker allows 15 minutes, unless told otherwise.
TRANSACTION_TIMEOUT_MS = 300_000


class Owner(Protocol):
    """The shard whose transactions these are."""

    def check_open(self) -> None:
        """Raise if the shard was given up."""

    def goes_on(self) -> None:
        """Note that long work is not stuck."""

    def note_abort(self) -> None:
        """Note that a transaction was aborted and will be repeated."""

    def confirm(self) -> None:
        """Raise `Fenced` if another owner has committed since this one last did, or took over."""


class Transactions:
    """The producer of one transactional id, used by its shard's thread only."""

    def __init__(
        self, connection: Connection, transactional_id: str, state: tuple[str, int], owner: Owner
    ) -> None:
        """Describe them; `state` is the topic and partition of the state changes."""
        self._connection, self._id, self._owner = connection, transactional_id, owner
        self._state_topic, self._state_partition = state
        self._producer: Producer | None = None
        self._state = State.NEW
        # Where the state partition ends once the last attempt is committed; -1: not reported.
        self._state_end = -1
        self._failure: KafkaError | None = None
        self._begun_s = time.monotonic()
        # EndTxn was not sent before: the last delivery report, or the begin of the commit.
        self._delivered_s = self._begun_s

    def take_over(self) -> None:
        """Fence the older owner and end its transaction; `Fenced` where a newer one came."""
        with self._failing():
            self._initialize()

    def renew(self) -> None:
        """Begin a new epoch if an EndTxn may still be on its way to the broker.

        Not later than necessary: the longer ago the last commit, the likelier is a newer owner, who
        would be fenced by this.

        Raises:
            Fenced: a newer owner has committed.
            KafkaAway, ShardClosed: as `run`.
        """
        if self._state is not State.TAINTED:
            return
        with self._failing():
            self._drop()
            self._enter(Event.RENEW)
            self._initialize()
            self._owner.confirm()
            self._enter(Event.CONFIRMED)

    def close(self) -> None:
        """Drop the producer; an open transaction is left to the next owner to abort."""
        self._enter(Event.CLOSE)
        self._drop()

    def _enter(self, event: Event) -> None:
        self._state = after(self._state, event)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Allow nothing more once the block has raised: what became of it is not known."""
        try:
            yield
        except BaseException:
            self._enter(Event.FAIL)
            raise

    def _initialize(self) -> None:
        """Make the producer, which fences every older one of this id."""
        self._begun_s = time.monotonic()
        self._producer = producer = self._connection.producer(
            self._id,
            **{
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "retry.backoff.ms": _RETRY_BACKOFF_MS,
                "retry.backoff.max.ms": _RETRY_BACKOFF_MS,
                "topic.metadata.refresh.fast.interval.ms": 100,  # would follow retry.backoff.ms
                "compression.type": "lz4",
                # Commit flushes at once; this only lets messages of a transaction travel together.
                "linger.ms": 5,
                # A batch of several messages stays below both; a longer message never gets here
                # (`_refuse_unsendable`).
                "batch.size": BATCH_BYTES,
                "message.max.bytes": BATCH_BYTES,
                # A key's snapshots lie where a Java producer would put them.
                "partitioner": "murmur2_random",
                "queue.buffering.max.messages": 1_000_000,
            },
        )
        # Connect first: a cold init_transactions sits out a 500 ms timer.
        self._insist("connect", lambda within_s: producer.list_topics(timeout=within_s))
        # The broker may be busy for a while with ending the older owner's transaction.
        self._insist("initialize", producer.init_transactions)
        self._enter(Event.INITIALIZED)

    def _drop(self) -> None:
        """Let go of the producer, with everything that it has not sent."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        # librdkafka frees its error twice ("double free") if the answer to a request that is still
        # on its way brings a second fatal one: what was sent is waited for, for a while.
        producer.purge(in_flight=False)
        until_s = time.monotonic() + _CALL_S
        while len(producer) and time.monotonic() < until_s:
            with suppress(KafkaException):
                self._call(producer.poll, _AGAIN_S)
        producer.purge()

    def run(
        self,
        messages: Sequence[Outgoing],
        changes: Sequence[Change],
        forwarded: Sequence[Forwarded] = (),
        to: str = "",
    ) -> int:
        """Commit `messages` and state `changes` as one transaction, repeated until it is committed.

        Args:
            messages, changes: see `Shard.transact`.
            forwarded: records that go to the topic `to`, before the messages.
            to: a topic to each of whose partitions a message goes too: only messages are reported,
                and a partition that takes none must not look like one that is slow.

        Returns:
            Where the state partition ends now; -1 without changes.

        Raises:
            Fenced: a newer owner exists; the transaction was not committed.
            ShardClosed: the owner was given up. Whether it was committed is not known then: its
                next owner reads that in the changelog.
            KafkaAway: the broker ended it, for it had not heard of it for too long; or nothing has
                moved for a minute. Whether it was committed is not known then either.
            KafkaException: it cannot be committed (too large, not authorised).
        """
        self._refuse_unsendable(messages, changes)
        pause = 0.05
        while not self._attempt(messages, changes, forwarded, to):
            self._owner.note_abort()
            time.sleep(pause)
            pause = min(2 * pause, 5.0)
            self._owner.check_open()
        return self._state_end

    def _refuse_unsendable(self, messages: Sequence[Outgoing], changes: Sequence[Change]) -> None:
        """Raise where a message is longer than any encoder makes one: a last line of defence."""
        for message in (
            *messages,
            *(Outgoing(self._state_topic, None, key, value) for key, value in changes),
        ):
            if message.nbytes > MESSAGE_BYTES:
                raise MessageTooLong(
                    f"{message.topic}: a message of {message.nbytes:,} bytes, at most {MESSAGE_BYTES:,}: "
                    "this is a defect of Quietcount. Nothing of this transaction was sent; please report it"
                )

    def _attempt(
        self,
        messages: Sequence[Outgoing],
        changes: Sequence[Change],
        forwarded: Sequence[Forwarded],
        to: str,
    ) -> bool:
        """Return whether a transaction was committed; if not, it may be repeated."""
        self.renew()
        self._enter(Event.BEGIN)
        with self._failing():
            producer = self._producer
            assert producer is not None  # ready to begin
            self._state_end, self._failure, self._begun_s = -1, None, time.monotonic()
            try:
                producer.begin_transaction()
                for records in forwarded:
                    self._forward(producer, to, records)
                for message in messages:
                    self._produce(producer, message)
                for key, value in changes:
                    state = Outgoing(self._state_topic, self._state_partition, key, value)
                    self._produce(producer, state)
                self._commit(producer)
            except KafkaException as exc:
                self._abort(producer, exc)
                return False
            if changes and self._state_end < 0:
                self._call(producer.poll, 1.0)
                if self._state_end < 0:
                    raise RuntimeError(f"{self._id}: committed, but no state message was reported")
            return True

    def _commit(self, producer: Producer) -> None:
        """Deliver and commit; a message that could not be delivered makes it ask for an abort."""
        self._enter(Event.COMMIT)
        self._delivered_s = time.monotonic()
        self._insist("commit", producer.commit_transaction)
        took_s = time.monotonic() - self._delivered_s
        if took_s < _SENT_ONCE_S:
            self._enter(Event.COMMITTED)
        else:
            self._enter(Event.COMMITTED_IN_DOUBT)
            logger.warning(
                "%s: committed after %.1f s: going on with a new producer epoch", self._id, took_s
            )

    def _abort(self, producer: Producer, exc: KafkaException) -> None:
        """Abort the transaction; raise where repeating it is of no use."""
        error: KafkaError = exc.args[0]
        self._raise_if_over(error)
        failure = self._failure
        if failure is None or failure.code() in _PURGED:
            failure = error
        self._enter(Event.ABORT)
        if not error.txn_requires_abort():
            self._insist("abort", producer.abort_transaction)
            raise exc
        logger.warning("%s: transaction aborted: %s: %s", self._id, failure.name(), failure.str())
        if failure.code() in _HOPELESS:
            with suppress(KafkaException, Fenced, KafkaAway):
                self._insist("abort", producer.abort_transaction)
            raise KafkaException(failure)
        self._insist("abort", producer.abort_transaction)
        self._enter(Event.ABORTED)
        self._failure = failure

    def _produce(self, producer: Producer, message: Outgoing) -> None:
        """Hand one message to librdkafka, waiting while its queue is full."""
        options: dict[str, Any] = {}
        if message.partition is not None:
            options["partition"] = message.partition
        if message.headers:
            options["headers"] = list(message.headers)
        if message.timestamp_ms is not None:
            options["timestamp"] = message.timestamp_ms
        while True:
            try:
                producer.produce(
                    message.topic,
                    message.value,
                    message.key,
                    on_delivery=self._delivered,
                    **options,
                )
                return
            except BufferError:
                self._call(producer.poll, 0.1)
                self._owner.check_open()
                self._owner.goes_on()

    def _forward(self, producer: Producer, topic: str, records: Forwarded) -> None:
        """Hand records to librdkafka, which says nothing of them unless their transaction fails."""
        produce: Callable[..., None] = producer.produce
        for value, key, partition, time_ms, headers in records.messages():
            try:
                produce(topic, value, key, partition, None, None, time_ms, headers)
            except BufferError:
                self._produce(
                    producer, Outgoing(topic, partition, key, value, headers or (), time_ms)
                )

    def _call(self, call: Callable[[float], object], wait_s: float) -> None:
        """Call librdkafka, raising `KafkaException` for a fatal error that a callback met."""
        try:
            call(wait_s)
        except:  # a fatal error may be raised as a KafkaError, which nothing else catches
            error: object = sys.exc_info()[1]
            if isinstance(error, SystemError):  # it met two, and lost them: the next call says it
                error = KafkaError(KafkaError._FAIL, "two callbacks failed", retriable=True)
            if isinstance(error, KafkaError):
                raise KafkaException(error) from None
            raise

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        """Take note of a delivery report: a failure, or how far the state partition now reaches."""
        self._delivered_s = time.monotonic()
        if error is not None:
            if self._failure is None or self._failure.code() in _PURGED:
                self._failure = error
        elif message.topic() == self._state_topic and message.partition() == self._state_partition:
            offset = message.offset()
            if offset is not None:
                self._state_end = max(self._state_end, offset + 1)

    def _insist(self, name: str, call: Callable[[float], object]) -> None:
        """Call, and again for as long as the outcome is unknown, unless given up.

        Nothing else may be asked meanwhile: librdkafka takes up a call only where it was left.
        """
        began_s = said_s = going_s = time.monotonic()
        left = self._waiting()
        while True:
            try:
                self._call(call, _CALL_S)
                return
            except KafkaException as exc:
                error: KafkaError = exc.args[0]
                self._raise_if_over(error)
                again = error.retriable() or (name == "connect" and unreachable(exc))
                if error.txn_requires_abort() or not again:
                    raise
            self._owner.check_open()
            self._owner.goes_on()
            now_s = time.monotonic()
            if self._waiting() < left:  # large and under way
                left, going_s = self._waiting(), now_s
            if now_s - going_s >= _STUCK_S:
                raise KafkaAway(
                    f"{self._id}: to {name} has taken {now_s - began_s:.0f} s: {error.str()}"
                )
            if now_s - said_s >= _LONG_S:
                said_s = now_s
                logger.warning(
                    "%s: Kafka answers, but to %s has taken %.0f s so far: %s",
                    self._id,
                    name,
                    now_s - began_s,
                    error.str(),
                )
            time.sleep(_AGAIN_S)

    def _waiting(self) -> int:
        """Return how many messages the producer has to send."""
        return 0 if self._producer is None else len(self._producer)

    def _raise_if_over(self, error: KafkaError) -> None:
        if error.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
            raise SettingsError(
                f"the brokers' transaction.max.timeout.ms is below {TRANSACTION_TIMEOUT_MS}, the time that a commit "
                "of this worker may take: raise it (Kafka's default is 900000)"
            )
        if error.code() in _FENCED:
            took_s = time.monotonic() - self._begun_s
            if took_s >= TRANSACTION_TIMEOUT_MS / 1000:  # then the broker itself fences a producer
                raise KafkaAway(
                    f"{self._id}: a transaction was open for {took_s:.0f} s: {error.str()}"
                ) from KafkaException(error)
            raise Fenced(f"{self._id}: {error.name()}: {error.str()}") from KafkaException(error)
        # Such as after requests that came late or twice.
        if error.fatal() and error.code() not in _HOPELESS:
            raise KafkaAway(
                f"{self._id}: the producer cannot go on: {error.name()}: {error.str()}"
            ) from KafkaException(error)
