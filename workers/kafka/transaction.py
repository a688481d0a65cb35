"""The transactions of one transactional id: messages and state changes, all of them or none.

    take_over  fence the older owner, end its open transaction
    run        begin, produce, commit; abort and repeat where the broker asks for it
    close      drop the producer; the next owner aborts what is still open

Everything that one `run` sends becomes visible together, at most once, and only while the
transactional id has no newer owner. The shard (`kafka/shard.py`) says whether it was given up
meanwhile, and is told that long work goes on.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from workers.changes import Change
from workers.errors import Fenced, KafkaAway, MessageTooLong, SettingsError
from workers.kafka.clients import Connection, unreachable
from workers.kafka.records import Forwarded, Outgoing
from workers.mechanisms.sizes import BATCH_BYTES, MESSAGE_BYTES

logger = logging.getLogger(__name__)

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
# One call to the broker; whoever is given up meanwhile waits no longer than this.
_CALL_S = 1.0
# Between two calls that ask for the same thing.
_AGAIN_S = 0.05
# A shard that has waited for so long says so: Kafka is there, or it would have been given up
# (`outages/watch.py`), but does not do this.
_LONG_S = 20.0
# After so long without progress it begins again, with a new client: a client that was told by a
# broker that has just come back that there are no brokers may believe it for minutes (seen).
_STUCK_S = 60.0
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


class Transactions:
    """The producer of one transactional id, used by its shard's thread only."""

    def __init__(self, connection: Connection, transactional_id: str, state: tuple[str, int], owner: Owner) -> None:
        """Describe them; `state` is the topic and partition of the state changes."""
        self._connection, self._id, self._owner = connection, transactional_id, owner
        self._state_topic, self._state_partition = state
        self._producer: Producer | None = None
        # Where the state partition ends once the last attempt is committed; -1: not reported.
        self._state_end = -1
        self._failure: KafkaError | None = None
        self._begun_s = time.monotonic()

    def take_over(self) -> None:
        """Fence the older owner and end its transaction; `Fenced` where a newer one came."""
        self._begun_s = time.monotonic()
        self._producer = producer = self._connection.producer(
            self._id,
            **{
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
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
        self._insist("initialise", producer.init_transactions)

    def close(self) -> None:
        """Drop the producer; an open transaction is left to the next owner to abort."""
        self._producer = None

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
        producer = self._producer
        if producer is None:
            raise RuntimeError(f"{self._id}: the shard is not open")
        self._refuse_unsendable(messages, changes)
        pause = 0.05
        while not self._attempt(producer, messages, changes, forwarded, to):
            self._owner.note_abort()
            time.sleep(pause)
            pause = min(2 * pause, 5.0)
            self._owner.check_open()
        return self._state_end

    def _refuse_unsendable(self, messages: Sequence[Outgoing], changes: Sequence[Change]) -> None:
        """Raise where a message is longer than any encoder makes one: a last line of defence."""
        for message in (*messages, *(Outgoing(self._state_topic, None, key, value) for key, value in changes)):
            if message.nbytes > MESSAGE_BYTES:
                raise MessageTooLong(
                    f"{message.topic}: a message of {message.nbytes:,} bytes, at most {MESSAGE_BYTES:,}: "
                    "this is a defect of Quietcount. Nothing of this transaction was sent; please report it"
                )

    def _attempt(
        self,
        producer: Producer,
        messages: Sequence[Outgoing],
        changes: Sequence[Change],
        forwarded: Sequence[Forwarded],
        to: str,
    ) -> bool:
        """Return whether a transaction was committed; if not, it may be repeated."""
        self._state_end, self._failure, self._begun_s = -1, None, time.monotonic()
        try:
            producer.begin_transaction()
            for records in forwarded:
                self._forward(producer, to, records)
            for message in messages:
                self._produce(producer, message)
            for key, value in changes:
                self._produce(producer, Outgoing(self._state_topic, self._state_partition, key, value))
            # Flushes; a message that could not be delivered makes it ask for an abort.
            self._insist("commit", producer.commit_transaction)
        except KafkaException as exc:
            error: KafkaError = exc.args[0]
            self._raise_if_fenced(error)
            failure = error if self._failure is None or self._failure.code() in _PURGED else self._failure
            if not error.txn_requires_abort():
                self._insist("abort", producer.abort_transaction)
                raise
        else:
            if changes and self._state_end < 0:
                self._serve(producer, 1.0)
                if self._state_end < 0:
                    raise RuntimeError(f"{self._id}: committed, but no state message was reported")
            return True
        logger.warning("%s: transaction aborted: %s: %s", self._id, failure.name(), failure.str())
        if failure.code() in _HOPELESS:
            with suppress(KafkaException, Fenced):
                self._insist("abort", producer.abort_transaction)
            raise KafkaException(failure)
        self._insist("abort", producer.abort_transaction)
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
        while True:
            try:
                producer.produce(message.topic, message.value, message.key, on_delivery=self._delivered, **options)
                return
            except BufferError:
                self._serve(producer, 0.1)
                self._owner.check_open()
                self._owner.goes_on()

    def _forward(self, producer: Producer, topic: str, records: Forwarded) -> None:
        """Hand records to librdkafka, which says nothing of them unless their transaction fails."""
        produce: Callable[..., None] = producer.produce
        for value, key, partition, time_ms, headers in records.messages():
            try:
                produce(topic, value, key, partition, None, None, time_ms, headers)
            except BufferError:
                self._produce(producer, Outgoing(topic, partition, key, value, headers or (), time_ms))

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
                call(_CALL_S)
                return
            except KafkaException as exc:
                error: KafkaError = exc.args[0]
                self._raise_if_fenced(error)
                again = error.retriable() or (name == "connect" and unreachable(exc))
                if error.txn_requires_abort() or not again:
                    raise
            self._owner.check_open()
            self._owner.goes_on()
            now_s = time.monotonic()
            if self._waiting() < left:  # large and under way
                left, going_s = self._waiting(), now_s
            if now_s - going_s >= _STUCK_S:
                raise KafkaAway(f"{self._id}: to {name} has taken {now_s - began_s:.0f} s: {error.str()}")
            if now_s - said_s >= _LONG_S:
                said_s = now_s
                logger.warning(
                    "%s: Kafka answers, but to %s has taken %.0f s so far: %s", self._id, name, now_s - began_s, error.str()
                )
            time.sleep(_AGAIN_S)

    def _waiting(self) -> int:
        """Return how many messages the producer has to send."""
        return 0 if self._producer is None else len(self._producer)

    def _raise_if_fenced(self, error: KafkaError) -> None:
        if error.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
            raise SettingsError(
                f"the brokers' transaction.max.timeout.ms is below {TRANSACTION_TIMEOUT_MS}, the time that a commit "
                "of this worker may take: raise it (Kafka's default is 900000)"
            )
        if error.code() in _FENCED or (error.fatal() and error.code() not in _HOPELESS):
            took_s = time.monotonic() - self._begun_s
            if took_s >= TRANSACTION_TIMEOUT_MS / 1000:  # then the broker itself fences a producer
                raise KafkaAway(f"{self._id}: a transaction was open for {took_s:.0f} s: {error.str()}") from KafkaException(error)
            raise Fenced(f"{self._id}: {error.name()}: {error.str()}") from KafkaException(error)
