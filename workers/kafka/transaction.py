"""Atomic transactions of one transactional id: messages and state changes.

Everything sent by one `transact` becomes visible together, at most once, and only while the
transactional id has no newer owner. The transitions are in `kafka/transaction_state.py`.

EndTxn is the request that ends a transaction: commits or aborts it. A retransmitted one may arrive
during the next transaction and end that. librdkafka retries only
after `retry.backoff.ms`, so a commit answered sooner sent its EndTxn once (`_SENT_ONCE_S`). After
any other commit, and after every abort, a new producer with a new epoch follows; the broker then
refuses the late EndTxn (docs/reliability.md).
"""

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any, NamedTuple, Protocol

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from workers.kafka.clients import Connection, unreachable
from workers.kafka.records import Forwarded, Outgoing
from workers.kafka.refusals import refusal_of
from workers.kafka.transaction_state import Event, State, next_state
from workers.kafka.verdicts import Verdict, verdict_of_code
from workers.runtime.errors import Fenced, KafkaAway, MessageTooLong, SettingsError
from workers.runtime.sizes import BATCH_BYTES, MESSAGE_BYTES, Change

logger = logging.getLogger(__name__)

#: Delivery failures that a retry of the transaction cannot cure.
_PERMANENT = (Verdict.SETTING, Verdict.FORBIDDEN, Verdict.MISSING)
#: Errors of messages whose transaction failed for another reason.
_PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
# Timeout of one call; it bounds the wait after the shard is given up.
_CALL_S = 1.0
# Between calls; between attempts at a transaction twice as long every time.
_AGAIN_S = 0.05
_PAUSE_MAX_S = 5.0
# Without progress for this long, restart with a new client: after a recovering broker reported no
# brokers, a client may believe it for minutes (seen).
_STUCK_S = 60.0
# librdkafka's wait before it retries a request, give or take 20 % (`rd_kafka_broker_buf_retry`).
_RETRY_BACKOFF_MS = 1_000
# A commit answered faster sent one EndTxn: a retry follows after 0.8 s or more (usual: 10 ms).
_SENT_ONCE_S = 0.5 * _RETRY_BACKOFF_MS / 1000
# Must exceed the longest commit: a tick of ten million new items is about 700 MB, 140 s at 5 MB/s.
# A new owner ends the open transaction at once. The broker allows 15 minutes by default.
TRANSACTION_TIMEOUT_MS = 300_000


class Delivery(NamedTuple):
    """Messages that are sent and committed at a time, however long it took to make them.

    `time_s` is called when all else has been sent, and returns that time, s since 1970. So the time
    at which readers see them does not reveal the size of the state, not even to readers of
    uncommitted records.
    """

    messages: Sequence[Outgoing]
    time_s: Callable[[], float]


class Owner(Protocol):
    """The shard whose transactions these are: what they report to it and ask of it."""

    def check_open(self) -> None:
        """Raise if the shard was given up."""

    def report_progress(self) -> None: ...

    def note_wait(self, waits: Mapping[str, str]) -> bool:
        """Note for operators what waits, by transactional id, and why; {} ends the wait.

        Return whether a partition that is not available explains it: then the caller goes on to
        wait, where it would give up after a while.
        """

    def note_abort(self) -> None: ...

    def confirm(self) -> None:
        """Raise `Fenced` if another owner has committed since this one's commit or take-over."""


class Transactions:
    """The producer of one transactional id, used by its shard's thread only."""

    def __init__(
        self,
        connection: Connection,
        transactional_id: str,
        state: tuple[str, int],
        owner: Owner,
    ) -> None:
        """Configure without connecting; `state` is the state topic and partition."""
        self._connection = connection
        self._id = transactional_id
        self._owner = owner
        self._state_log = state
        self._producer: Producer | None = None
        self._state = State.NEW
        # Of the present or last attempt: end of the state partition (-1: not reported), and the
        # error and topic of the first message that could not be delivered.
        self._state_end = -1
        self._failure: KafkaError | None = None
        self._failed_topic: str | None = None
        self._begun_s = time.monotonic()
        # EndTxn is sent after this: last delivery report, or begin of the commit (monotonic).
        self._delivered_s = self._begun_s

    def take_over(self) -> None:
        """Fence the older owner and end its transaction; `Fenced` if a newer owner exists."""
        with self._failing():
            self._initialize()

    def renew(self) -> None:
        """Begin a new epoch if an EndTxn may still be in flight, so that brokers refuse it.

        This would also fence a newer owner, so call it right after a commit, when one is unlikely.
        Raise Fenced if a newer owner has committed; KafkaAway and ShardClosed as in `transact`.
        """
        if self._state is not State.TAINTED:
            return
        with self._failing():
            self._drop()
            self._enter(Event.RENEW)
            self._initialize()
            self._owner.confirm()
            self._enter(Event.CONFIRMED)

    def look_up(self) -> None:
        """Learn which partitions there are: a client would notice new ones after minutes."""
        producer = self._producer
        assert producer is not None
        self._call_until_done(
            "connect", lambda within_s: producer.list_topics(timeout=within_s)
        )

    def close(self) -> None:
        self._enter(Event.CLOSE)
        self._drop()

    def _enter(self, event: Event) -> None:
        self._state = next_state(self._state, event)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Fail permanently if the block raises: its outcome is unknown."""
        try:
            yield
        except BaseException:
            self._enter(Event.FAIL)
            raise

    def _initialize(self) -> None:
        """Make a producer and register its id, which fences every older owner."""
        self._begun_s = time.monotonic()
        self._producer = producer = self._connection.producer(
            self._id,
            **{
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                # `_SENT_ONCE_S` relies on these.
                "retry.backoff.ms": _RETRY_BACKOFF_MS,
                "retry.backoff.max.ms": _RETRY_BACKOFF_MS,
                "topic.metadata.refresh.fast.interval.ms": 100,  # else it follows retry.backoff.ms
                "compression.type": "lz4",
                # Only batches a transaction's messages: commit flushes immediately.
                "linger.ms": 5,
                # `transact` rejects any longer message.
                "batch.size": BATCH_BYTES,
                "message.max.bytes": BATCH_BYTES,
                # Places a key's snapshots where a Java producer would.
                "partitioner": "murmur2_random",
                "queue.buffering.max.messages": 1_000_000,
            },
        )
        # Connect first: without a connection, init_transactions waits out a 500 ms timer. After an
        # answer about a single topic, it still does so one time in five (measured).
        self.look_up()
        self._call_until_done("initialize", producer.init_transactions)
        self._enter(Event.INITIALIZED)

    def _drop(self) -> None:
        """Discard the producer, with what it has not sent."""
        producer = self._producer
        self._producer = None
        if producer is None:
            return
        # Purging messages in flight is risky: if their request then brings a second fatal error,
        # librdkafka frees its error twice. So first purge only the queue, and wait for the others.
        producer.purge(in_flight=False)
        until_s = time.monotonic() + _CALL_S
        while len(producer) and time.monotonic() < until_s:
            with suppress(KafkaException):
                self._call(producer.poll, _AGAIN_S)
        producer.purge()

    def transact(
        self,
        messages: Sequence[Outgoing],
        changes: Sequence[Change],
        forwarded: Sequence[Forwarded] = (),
        delivery: Delivery | None = None,
    ) -> int:
        """Commit `messages` and state `changes` as one transaction, repeated until it is committed.

        Once they are sent, the messages of `delivery` follow at its time, and then the commit. The
        slow part is over by then, and readers of uncommitted records learn no more than others.

        `changes` are keys and values of the state partition (None deletes); later ones win.
        `forwarded` records are sent first, without delivery reports. So `messages` must have one
        for every partition of their topic: its report distinguishes a slow partition from one that
        accepts nothing.

        Return the end of the state partition; -1 without changes. Raise Fenced if a newer owner
        exists (not committed); KafkaException if it cannot be committed (too large, not authorized,
        dated too far ahead), which says why; MessageTooLong for a defective encoder. The outcome is
        unknown after ShardClosed (the next owner reads it from the changelog) and KafkaAway (the
        broker timed the transaction out, or a minute passed without progress).
        """
        states = [Outgoing(*self._state_log, key, value) for key, value in changes]
        delivered = () if delivery is None else delivery.messages
        for message in chain(messages, states, delivered):
            if message.nbytes > MESSAGE_BYTES:
                raise MessageTooLong(
                    f"{message.topic}: a message of {message.nbytes:,} bytes, at most {MESSAGE_BYTES:,}: "
                    "this is a defect of Quietcount. Nothing of this transaction was sent; please report it"
                )
        pause_s = _AGAIN_S
        while not self._attempt(messages, states, forwarded, delivery):
            self._owner.note_abort()
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)
            self._owner.check_open()
        return self._state_end

    def _attempt(
        self,
        messages: Sequence[Outgoing],
        states: Sequence[Outgoing],
        forwarded: Sequence[Forwarded],
        delivery: Delivery | None,
    ) -> bool:
        """Try the transaction once; return whether it was committed.

        False: it was aborted, and another attempt may succeed.
        """
        self.renew()
        self._enter(Event.BEGIN)
        with self._failing():
            producer = self._producer
            assert producer is not None
            self._state_end = -1
            self._failure = None
            self._begun_s = time.monotonic()
            self._failed_topic = None
            try:
                producer.begin_transaction()
                for records in forwarded:
                    self._forward(producer, records)
                for message in chain(messages, states):
                    self._produce(producer, message)
                if delivery is not None:
                    self._await_time(producer, delivery)
                    for message in delivery.messages:
                        self._produce(producer, message)
                self._commit(producer)
            except KafkaException as exc:
                self._abort(producer, exc)
                return False
            # A report may come after the commit's answer.
            if states and self._state_end < 0:
                self._call(producer.poll, _CALL_S)
                if self._state_end < 0:
                    raise RuntimeError(
                        f"{self._id}: committed, but no state message was reported"
                    )
            return True

    def _await_time(self, producer: Producer, delivery: Delivery) -> None:
        """Send what is queued; then wait for the time of delivery."""

        def flush(within_s: float) -> None:
            """Send what is queued; raise a retriable error if time is up and no delivery failed."""
            if producer.flush(within_s) and self._failure is None:
                raise KafkaException(
                    KafkaError(KafkaError._TIMED_OUT, "not sent yet", retriable=True)
                )

        self._call_until_done("send", flush)
        time_s = delivery.time_s()
        while (left_s := time_s - time.time()) > 0:
            self._owner.check_open()
            self._owner.report_progress()
            self._call(producer.poll, min(left_s, _AGAIN_S))

    def _commit(self, producer: Producer) -> None:
        """Deliver and commit; the commit fails if a message cannot be delivered.

        A commit that took long may have sent its EndTxn more than once, so it needs a new epoch.
        """
        self._enter(Event.COMMIT)
        self._delivered_s = time.monotonic()
        self._call_until_done("commit", producer.commit_transaction)
        took_s = time.monotonic() - self._delivered_s
        if took_s < _SENT_ONCE_S:
            self._enter(Event.COMMITTED)
        else:
            self._enter(Event.COMMITTED_IN_DOUBT)
            logger.warning(
                "%s: committed after %.1f s: continuing with a new producer epoch",
                self._id,
                took_s,
            )

    def _abort(self, producer: Producer, exc: KafkaException) -> None:
        """Abort because of `exc`; return only if another attempt may succeed.

        Otherwise raise the cause: `exc`, or the error of an undeliverable message.
        """
        error: KafkaError = exc.args[0]
        self._raise_if_final(error)
        # The first undelivered message's error says more than the transaction's.
        failure = self._failure
        if failure is None or failure.code() in _PURGED:
            failure = error
            self._failed_topic = None
        self._enter(Event.ABORT)
        if error.code() == KafkaError._STATE:
            # The broker ended the transaction; librdkafka has not served the error that says so.
            raise KafkaAway(
                f"{self._id}: the transaction has ended: {failure.str()}"
            ) from exc
        # The transaction is intact: a call was refused, and would be again.
        if not error.txn_requires_abort():
            self._call_until_done("abort", producer.abort_transaction)
            raise exc
        if verdict_of_code(failure.code()) in _PERMANENT:
            with suppress(KafkaException, Fenced, KafkaAway):
                self._call_until_done("abort", producer.abort_transaction)
            raise self._refusal(failure)
        logger.warning(
            "%s: transaction aborted: %s: %s", self._id, failure.name(), failure.str()
        )
        self._call_until_done("abort", producer.abort_transaction)
        self._enter(Event.ABORTED)

    def _refusal(self, failure: KafkaError) -> KafkaException:
        """Return the failure of a transaction that a retry cannot commit, with its cause.

        If a broker refused a record, the topic's settings tell why; a missing right explains
        itself.
        """
        topic = self._failed_topic
        if topic is None:
            return KafkaException(failure)
        why = f"topic {topic}: {failure.str()}"
        if verdict_of_code(failure.code()) is not Verdict.FORBIDDEN:
            refusal = refusal_of(self._connection, topic, failure)
            why = f"{refusal}. Nothing of this transaction counts"
        return KafkaException(KafkaError(failure.code(), why))

    def _produce(self, producer: Producer, message: Outgoing) -> None:
        """Queue a message whose delivery is reported, waiting while the queue is full."""
        options: dict[str, Any] = {"on_delivery": self._delivered}
        if message.partition is not None:
            options["partition"] = message.partition
        if message.headers:
            options["headers"] = list(message.headers)
        if message.timestamp_ms is not None:
            options["timestamp"] = message.timestamp_ms
        while True:
            try:
                producer.produce(message.topic, message.value, message.key, **options)
                return
            except BufferError:
                self._call(producer.poll, 0.1)
                self._owner.check_open()
                self._owner.report_progress()

    def _forward(self, producer: Producer, records: Forwarded) -> None:
        """Queue records without delivery reports; the transaction reports failure."""
        produce: Callable[..., None] = producer.produce
        topic = records.topic
        for value, key, partition, time_ms, headers in records.messages():
            try:
                produce(
                    topic, value, key, partition, timestamp=time_ms, headers=headers
                )
            except BufferError:
                # The queue is full: `_produce` waits for room.
                message = Outgoing(topic, partition, key, value, headers or (), time_ms)
                self._produce(producer, message)

    def _call(self, call: Callable[[float], object], wait_s: float) -> None:
        """Call librdkafka, raising `KafkaException` for a fatal error from a callback.

        Such an error surfaces as a KafkaError, which is not an Exception: only a bare `except`
        catches it.
        """
        try:
            call(wait_s)
        except:
            error: object = sys.exc_info()[1]
            # If there are two errors at once, both are lost; the next call reports them again.
            if isinstance(error, SystemError):
                error = KafkaError(
                    KafkaError._FAIL, "two callbacks failed", retriable=True
                )
            if isinstance(error, KafkaError):
                raise KafkaException(error) from None
            raise

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        """Take a delivery report: note the cause of a failure, and the state's new end."""
        self._delivered_s = time.monotonic()
        if error is not None:
            # Messages are purged because another one failed, which may be reported later.
            if self._failure is None or self._failure.code() in _PURGED:
                self._failure = error
                self._failed_topic = message.topic()
        elif (message.topic(), message.partition()) == self._state_log:
            offset = message.offset()
            if offset is not None:
                self._state_end = max(self._state_end, offset + 1)

    def _call_until_done(self, name: str, call: Callable[[float], object]) -> None:
        """Repeat a call while its outcome is unknown: librdkafka allows no other meanwhile.

        `call` gets its timeout in seconds. `name` is its verb in messages; "connect" is also
        repeated while no broker can be reached. Raise KafkaAway after `_STUCK_S` without progress
        that no unavailable partition explains.
        """
        began_s = progress_s = time.monotonic()
        undelivered = self._undelivered()
        has_waited = False
        while True:
            try:
                self._call(call, _CALL_S)
                if has_waited:
                    self._owner.note_wait({})
                return
            except KafkaException as exc:
                error: KafkaError = exc.args[0]
                self._raise_if_final(error)
                again = error.retriable() or (name == "connect" and unreachable(exc))
                if error.txn_requires_abort() or not again:
                    raise
            self._owner.check_open()
            self._owner.report_progress()
            now_s = time.monotonic()
            # A large transaction takes long, but goes on.
            progresses = self._undelivered() < undelivered
            wait = {} if progresses else {self._id: f"to {name}: {error.str()}"}
            has_waited = True
            is_explained = self._owner.note_wait(wait)
            if progresses or is_explained:
                undelivered = self._undelivered()
                progress_s = now_s
            if now_s - progress_s >= _STUCK_S:
                raise KafkaAway(
                    f"{self._id}: to {name} has taken {now_s - began_s:.0f} s: {error.str()}"
                )
            time.sleep(_AGAIN_S)

    def _undelivered(self) -> int:
        """Return how many messages are not delivered yet; fewer than before is progress."""
        return 0 if self._producer is None else len(self._producer)

    def _raise_if_final(self, error: KafkaError) -> None:
        """Raise if this producer cannot go on after `error`; else return."""
        if error.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
            raise SettingsError(
                f"the brokers' transaction.max.timeout.ms is below {TRANSACTION_TIMEOUT_MS}, the time that a commit "
                "of this worker may take: raise it (Kafka's default is 900000)"
            )
        cause = KafkaException(error)
        if verdict_of_code(error.code()) is Verdict.FENCED:
            took_s = time.monotonic() - self._begun_s
            # By then the broker itself fences the producer: there need be no newer owner.
            if took_s >= TRANSACTION_TIMEOUT_MS / 1000:
                raise KafkaAway(
                    f"{self._id}: a transaction was open for {took_s:.0f} s: {error.str()}"
                ) from cause
            raise Fenced(f"{self._id}: {error.name()}: {error.str()}") from cause
        # Permanent failures need no new producer: `_abort` raises them, with their cause.
        if error.fatal() and verdict_of_code(error.code()) not in _PERMANENT:
            raise KafkaAway(
                f"{self._id}: the producer cannot continue: {error.name()}: {error.str()}"
            ) from cause
