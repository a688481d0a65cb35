"""Reads the histogram topics: the last ticks of each partition, then new committed records.

Joins no group, commits nothing, and needs read permission on the histogram topics only. Retries
until stopped, and reports its state:

    connecting    no broker has answered yet
    missing       topics do not exist or are not visible
    reading       history is being read
    live          everything has been read
    away          the broker has stopped answering
    refused       the broker denies access to a topic, or the login
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any, TypeVar

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from workers.client.messages import InvalidSnapshot, Pages, SeenSnapshot, decode
from workers.dashboard.hub import TICKS, Hub
from workers.kafka.clients import Connection, unreachable
from workers.kafka.verdicts import Verdict, verdict_of_code

logger = logging.getLogger(__name__)

BATCH = 2_000
# A batch is delivered when it is full or this old, which bounds a snapshot's delay.
POLL_S = 0.1
# At a partition's end, with transaction markers; searched for its newest time and tick width.
TAIL_RECORDS = 100
# Per partition, if the broker cannot look up offsets by time.
HISTORY_RECORDS = 100_000
TOPICS_S = 10.0
ANSWER_S = 4.0
# Timeout for the tails of all partitions; without its tail, a partition is read from the start.
TAIL_S = 15.0
RETRY_S = 2.0
# How often a silent broker is probed: it may just have nothing to send.
CHECK_S = 5.0

T = TypeVar("T")
Place = tuple[str, int]


def _refuses(error: KafkaError) -> bool:
    """Return whether the brokers answer, but refuse this reader."""
    # A failed handshake may as well be another server's, or the network's.
    if error.code() == KafkaError._SSL:
        return False
    return verdict_of_code(error.code()) in (Verdict.FORBIDDEN, Verdict.SETTING)


class Feed:
    """One consumer, used only on its own thread (`_call`); `topics` maps topics to histograms."""

    def __init__(
        self, connection: Connection, topics: Mapping[str, str], hub: Hub
    ) -> None:
        self._connection = connection
        self._topics = topics
        self._hub = hub
        self._pages = Pages()
        self._assigned: dict[Place, int] = {}
        self._unread: set[Place] = set()
        self._cause: KafkaError | None = None
        self._silence: KafkaError | None = None
        self._invalid = 0
        self._halted = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="feed")
        hub.unread = frozenset(topics.values())

    async def run(self) -> None:
        consumer = await self._consumer(
            {
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 100,
                "queued.max.messages.kbytes": 32_768,
                "error_cb": self._record_error,
            }
        )
        try:
            await self._follow(consumer)
        finally:
            self._halted = True
            await asyncio.shield(self._call(consumer.close))
            self._thread.shutdown(wait=False)

    async def _consumer(self, options: Mapping[str, Any]) -> Consumer:
        """Create the consumer; with OAUTHBEARER that waits for a token."""
        while True:
            try:
                return await self._call(lambda: self._connection.consumer(**options))
            except KafkaException as failed:
                if not unreachable(failed):
                    raise
                self._report_error(failed.args[0])
                await asyncio.sleep(RETRY_S)

    def _call(self, function: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._thread, function)

    async def _follow(self, consumer: Consumer) -> None:
        topics_at = check_at = 0.0
        missing: list[str] = []
        while True:
            try:
                if time.monotonic() >= topics_at:
                    missing = await self._call(lambda: self._assign(consumer))
                    topics_at = time.monotonic() + (RETRY_S if missing else TOPICS_S)
                    check_at = time.monotonic() + CHECK_S
                    self._report_reading(missing)
                elif time.monotonic() >= check_at:
                    await self._call(lambda: self._check(consumer))
                    check_at = time.monotonic() + CHECK_S
                if not self._assigned:
                    await asyncio.sleep(RETRY_S)
                    continue
                snapshots, error = await self._call(lambda: self._read(consumer))
                self._hub.publish(snapshots)
                if error is not None:
                    raise KafkaException(error)
                self._report_reading(missing)
            except KafkaException as failed:
                if not self._assigned:
                    # Calls only `_record_error`: nothing is assigned.
                    await self._call(lambda: consumer.poll(0))
                self._report_error(failed.args[0])
                topics_at = 0.0
                await asyncio.sleep(RETRY_S)

    def _assign(self, consumer: Consumer) -> list[str]:
        """Start reading new partitions; return the missing topics."""
        existing = partitions_of(consumer, self._topics)
        new = [partition for partition in existing if partition not in self._assigned]
        if new:
            self._unread.update(new)
            starts = self._start_offsets(new)
            self._assigned.update(starts)
            consumer.incremental_assign(
                [TopicPartition(*tp, at) for tp, at in starts.items()]
            )
        present = {topic for topic, _ in existing}
        return [topic for topic in self._topics if topic not in present]

    def _check(self, consumer: Consumer) -> None:
        for place in self._assigned:
            consumer.get_watermark_offsets(
                TopicPartition(*place), timeout=ANSWER_S, cached=False
            )

    def _read(self, consumer: Consumer) -> tuple[list[SeenSnapshot], KafkaError | None]:
        snapshots = []
        failed = None
        for message in consumer.consume(num_messages=BATCH, timeout=POLL_S):
            error = message.error()
            if error is None:
                snapshot = self._decode(message)
                if snapshot is not None:
                    snapshots.append(snapshot)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._unread.discard(place_of(message))
            else:
                failed = error
        return snapshots, failed

    def _decode(self, message: Message) -> SeenSnapshot | None:
        topic, partition = place_of(message)
        try:
            return self._pages.receive(self._topics[topic], message.value())
        except InvalidSnapshot as error:
            self._invalid += 1
            if self._invalid.bit_count() == 1:  # the first, second, fourth, ...
                place = f"{topic}[{partition}] offset {message.offset()}"
                logger.warning(
                    "%s: %s; skipped, %d so far", place, error, self._invalid
                )
            return None

    def _start_offsets(self, partitions: list[Place]) -> dict[Place, int]:
        """Return the offset at which the last ticks of each partition begin."""
        options = {"enable.partition.eof": True, "error_cb": self._record_error}
        with closing(self._connection.consumer(**options)) as with_end:
            bounds = {
                partition: with_end.get_watermark_offsets(
                    TopicPartition(*partition), timeout=ANSWER_S
                )
                for partition in partitions
            }
            since = self._start_times(with_end, bounds)
            times = [
                TopicPartition(*partition, time_ms)
                for partition, time_ms in since.items()
            ]
            answers = (
                with_end.offsets_for_times(times, timeout=ANSWER_S) if times else []
            )
        offsets = {
            (answer.topic, answer.partition): answer.offset for answer in answers
        }
        starts = {}
        for partition, (low, high) in bounds.items():
            # The embedded cluster cannot look up a time and returns the end.
            offset = offsets.get(partition, -1)
            starts[partition] = max(
                offset if offset < high else low, high - HISTORY_RECORDS, low
            )
        return starts

    def _start_times(
        self, consumer: Consumer, bounds: Mapping[Place, tuple[int, int]]
    ) -> dict[Place, int]:
        """Return each partition's history start time, estimated from its last records."""
        since: dict[Place, int] = {}
        open_ends = {
            partition for partition, (low, high) in bounds.items() if low < high
        }
        if not open_ends:
            return since
        tails = {
            partition: max(low, high - TAIL_RECORDS)
            for partition, (low, high) in bounds.items()
        }
        consumer.assign(
            [TopicPartition(*partition, tails[partition]) for partition in open_ends]
        )
        deadline = time.monotonic() + TAIL_S
        while open_ends and time.monotonic() < deadline and not self._halted:
            for message in consumer.consume(num_messages=BATCH, timeout=POLL_S):
                partition = place_of(message)
                error = message.error()
                if error is not None:
                    if error.code() == KafkaError._PARTITION_EOF:
                        open_ends.discard(partition)
                    elif error.fatal() or _refuses(error):
                        raise KafkaException(error)
                    continue
                with suppress(InvalidSnapshot):
                    frame = decode(self._topics[partition[0]], message.value() or b"")
                    # Use the record's timestamp: the broker may be configured to set it.
                    ends = message.timestamp()[1] - TICKS * (frame.end - frame.start)
                    since[partition] = max(since.get(partition, 0), ends, 0)
        consumer.unassign()
        return since

    def _report_reading(self, missing: list[str]) -> None:
        self._hub.outage.end()
        self._silence = None
        self._hub.unread = frozenset(self._topics[topic] for topic, _ in self._unread)
        # What was read of a topic that is gone stays.
        seen = {topic for topic, _ in self._assigned}
        self._hub.missing = frozenset(
            self._topics[topic] for topic in missing if topic not in seen
        )
        reading = "reading" if self._unread else "live"
        self._set_state(
            {"kafka": "missing", "topics": missing} if missing else {"kafka": reading}
        )

    def _set_state(self, state: Mapping[str, object]) -> None:
        before = self._hub.state["kafka"]
        after = state["kafka"]
        # Outages are logged separately.
        if self._hub.set_state(state) and "away" not in (before, after):
            logger.info("Kafka: %s", after)

    def _report_error(self, error: KafkaError) -> None:
        """Log an error: librdkafka's message names brokers, topics and reasons, but no record."""
        # Only the callback gets the reason for a broker's silence.
        cause = self._cause or error
        self._cause = None
        if _refuses(cause):
            self._set_state({"kafka": "refused"})
            logger.warning("Kafka: %s", cause.str())
        else:
            said = cause if cause.code() == KafkaError._SSL else self._silence or cause
            self._hub.outage.begin(" ".join(said.str().split()))
            self._set_state({"kafka": "away"})

    def _record_error(self, error: KafkaError) -> None:
        """Record an error from librdkafka's callback, which runs within our calls in the thread."""
        if _refuses(error) or error.code() == KafkaError._SSL:
            self._cause = error
        elif error.code() in (KafkaError._TRANSPORT, KafkaError._RESOLVE):
            self._silence = error


def partitions_of(consumer: Consumer, topics: Iterable[str]) -> list[Place]:
    # List all topics: asking for one by name may create it.
    found = consumer.list_topics(timeout=ANSWER_S).topics
    there = [
        found[topic]
        for topic in topics
        if topic in found and found[topic].error is None
    ]
    return [
        (str(about.topic), partition)
        for about in there
        for partition in about.partitions
    ]


def place_of(message: Message) -> Place:
    topic = message.topic()
    partition = message.partition()
    if topic is None or partition is None:
        raise KafkaException(message.error())
    return topic, partition
