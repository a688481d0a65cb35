"""Reads the histogram topics: the last ticks of each partition, then new committed records.

Viewers get them at once, from the hub; the history on disk takes them from the backlog, in its own
time. A record is a page of a snapshot; `Pages` joins them.

Beside them it reads what the worker says of its budget, if there is such a topic.

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
from collections.abc import Callable, Mapping
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

from workers.client.config import ReaderSettings
from workers.client.messages import InvalidSnapshot, Pages, SeenSnapshot, decode
from workers.client.reading import offsets_at
from workers.dashboard.hub import TICKS, Hub
from workers.dashboard.store.following import Backlog, place_of
from workers.kafka.clients import unreachable
from workers.kafka.reading import Partition, read_spans
from workers.kafka.topics import among
from workers.kafka.verdicts import Verdict, verdict_of_code
from workers.privacy.public import PublicBudget, UnreadableBudget, decode_budget

logger = logging.getLogger(__name__)

BATCH = 2_000
# A batch is delivered when it is full or this old, which bounds a snapshot's delay.
POLL_S = 0.1
# Offsets at a partition's end, transaction markers included, that are searched for its newest time
# and the length of its ticks.
TAIL_RECORDS = 100
# The newest record of the budget counts; older ones may not be compacted away yet.
BUDGET_RECORDS = 10
# So many offsets of a partition are read at most before its new records.
HISTORY_RECORDS = 100_000
# How often new topics and partitions are looked for.
TOPICS_S = 10.0
# Time limit of a broker's answer.
ANSWER_S = 4.0
# Timeout for the tails of all partitions; without its tail, a partition is read from the start.
TAIL_S = 15.0
RETRY_S = 2.0
# How often a silent broker is probed: it may just have nothing to send.
CHECK_S = 5.0

T = TypeVar("T")


def _refuses(error: KafkaError) -> bool:
    """Return whether the brokers answer, but refuse this reader."""
    # A failed TLS handshake need not be theirs: another server may be there, or the network cut it.
    if error.code() == KafkaError._SSL:
        return False
    return verdict_of_code(error.code()) in (Verdict.FORBIDDEN, Verdict.SETTING)


class Feed:
    """Reads all histogram topics into the hub and the backlog, with one consumer.

    The consumer is used only on its own thread (`_call`), as its calls block.
    """

    def __init__(
        self,
        settings: ReaderSettings,
        hub: Hub,
        backlog: Backlog,
        take: Callable[[list[SeenSnapshot]], None] | None = None,
    ) -> None:
        """`take` gets the new snapshots after the hub, in order: alerts look at them."""
        self._take = take
        self._connection = settings.connection
        self._topics = settings.topics
        self._budget_topic = settings.budget_topic
        self._reads_budget = False
        self._budget: PublicBudget | None = None
        self._hub = hub
        self._backlog = backlog
        self._pages = Pages()
        self._assigned: set[Partition] = set()
        # Partitions whose end has not been reached yet.
        self._unread: set[Partition] = set()
        # Errors that only librdkafka's callback gets: why this reader is refused or TLS fails, and
        # why no broker answers.
        self._refusal: KafkaError | None = None
        self._silence: KafkaError | None = None
        self._invalid = 0  # records so far
        # Ends a search for tails that runs in the thread when the feed is cancelled.
        self._halted = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="feed")
        hub.unread = frozenset(self._topics.values())

    async def run(self) -> None:
        """Read the topics until cancelled; then close the consumer."""
        consumer = await self._consumer(
            {
                # Tells `_read` when a partition has been read.
                "enable.partition.eof": True,
                # From there if the records at an offset were removed.
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
        """Create the consumer, again and again until it succeeds.

        With OAUTHBEARER it fails while no token comes.
        """
        while True:
            try:
                return await self._call(lambda: self._connection.consumer(**options))
            except KafkaException as failed:
                if not unreachable(failed):
                    raise
                self._report_error(failed.args[0])
                await asyncio.sleep(RETRY_S)

    def _call(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Run a function that may block in the feed's thread."""
        return asyncio.get_running_loop().run_in_executor(self._thread, function)

    async def _follow(self, consumer: Consumer) -> None:
        """Read for ever; look for new topics and partitions, and retry after errors."""
        # When to look for topics, and when to probe a broker that may be silent or away.
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
                self._hub.budget = self._budget
                self._hub.publish(snapshots)
                if self._take is not None:
                    self._take(snapshots)
                if error is not None:
                    raise KafkaException(error)
                self._report_reading(missing)
            except KafkaException as failed:
                # Lets librdkafka call `_record_error`. It returns no record: nothing is assigned.
                if not self._assigned:
                    await self._call(lambda: consumer.poll(0))
                self._report_error(failed.args[0])
                # Look at the topics first: they may have changed meanwhile.
                topics_at = 0.0
                await asyncio.sleep(RETRY_S)

    def _assign(self, consumer: Consumer) -> list[str]:
        """Start reading new partitions; return the missing topics."""
        # List all topics: asking for one by name may create it.
        metadata = consumer.list_topics(timeout=ANSWER_S)
        existing = among(metadata, self._topics)
        partitions = [
            (topic, partition)
            for topic, about in existing.items()
            for partition in range(about.partitions)
        ]
        new = [partition for partition in partitions if partition not in self._assigned]
        if new:
            self._unread.update(new)
            starts = self._start_offsets(new)
            self._assigned.update(starts)
            self._backlog.begin(starts)
            consumer.incremental_assign(
                [
                    TopicPartition(topic, partition, offset)
                    for (topic, partition), offset in starts.items()
                ]
            )
        if not self._reads_budget and among(metadata, [self._budget_topic]):
            # Without the right to read it, the page says less.
            with suppress(KafkaException):
                self._assign_budget(consumer)
        return [topic for topic in self._topics if topic not in existing]

    def _assign_budget(self, consumer: Consumer) -> None:
        """Start reading the budget's newest records; KafkaException without the right to."""
        place = TopicPartition(self._budget_topic, 0)
        low, high = consumer.get_watermark_offsets(place, timeout=ANSWER_S)
        start = max(low, high - BUDGET_RECORDS)
        consumer.incremental_assign([TopicPartition(self._budget_topic, 0, start)])
        self._reads_budget = True

    def _check(self, consumer: Consumer) -> None:
        """Ask the broker for something; KafkaException if it is away, not just without news."""
        for place in self._assigned:
            consumer.get_watermark_offsets(
                TopicPartition(*place), timeout=ANSWER_S, cached=False
            )

    def _read(self, consumer: Consumer) -> tuple[list[SeenSnapshot], KafkaError | None]:
        """Return a batch of whole snapshots, and an error (if any) that came after them."""
        snapshots = []
        failed = None
        for message in consumer.consume(num_messages=BATCH, timeout=POLL_S):
            error = message.error()
            if message.topic() == self._budget_topic:
                if error is None:
                    self._take_budget(message)
            elif error is None:
                self._backlog.put(message)
                snapshot = self._decode(message)
                if snapshot is not None:
                    snapshots.append(snapshot)
            elif error.code() == KafkaError._PARTITION_EOF:
                # The history's position moves to the end too, behind transaction markers.
                self._backlog.put(message)
                self._unread.discard(place_of(message))
            else:
                failed = error
        return snapshots, failed

    def _take_budget(self, message: Message) -> None:
        """Keep what a record says of the budget; skip one that this version cannot read."""
        try:
            self._budget = decode_budget(message.value() or b"")
        except UnreadableBudget as error:
            logger.warning("%s: %s; skipped", self._budget_topic, error)

    def _decode(self, message: Message) -> SeenSnapshot | None:
        """Return the snapshot that a record completes; None for an early page or an invalid one."""
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

    def _start_offsets(self, partitions: list[Partition]) -> dict[Partition, int]:
        """Return the offset at which the last ticks of each partition begin.

        A consumer of its own searches for it: that of the feed reads on.
        """
        options = {"enable.partition.eof": True, "error_cb": self._record_error}
        with closing(self._connection.consumer(**options)) as consumer:
            bounds = {
                partition: consumer.get_watermark_offsets(
                    TopicPartition(*partition), timeout=ANSWER_S
                )
                for partition in partitions
            }
            since = self._start_times(consumer, bounds)
            starts = offsets_at(consumer, since, bounds, ANSWER_S)
        return {
            partition: max(start, bounds[partition][1] - HISTORY_RECORDS)
            for partition, start in starts.items()
        }

    def _start_times(
        self, consumer: Consumer, bounds: Mapping[Partition, tuple[int, int]]
    ) -> dict[Partition, int]:
        """Return the time in ms at which the last `TICKS` ticks of each partition begin.

        It is estimated from the last records; partitions in which none is found are left out.
        `bounds` has the first offset and the end of each.
        """
        since: dict[Partition, int] = {}
        tails = {
            partition: (max(low, high - TAIL_RECORDS), high)
            for partition, (low, high) in bounds.items()
            if low < high
        }
        deadline = time.monotonic() + TAIL_S

        def give_up() -> None:
            # `read_spans` ends when there are no spans any more.
            if time.monotonic() > deadline or self._halted:
                tails.clear()

        for chunk in read_spans(consumer, tails, give_up):
            for message in chunk.messages:
                with suppress(InvalidSnapshot):
                    topic = chunk.where[0]
                    frame = decode(self._topics[topic], message.value() or b"")
                    # The offset is looked up by the records' times, which a broker may set: so not
                    # the end of the tick.
                    time_ms = message.timestamp()[1]
                    start_ms = time_ms - TICKS * (frame.end - frame.start)
                    since[chunk.where] = max(since.get(chunk.where, 0), start_ms, 0)
        return since

    def _report_reading(self, missing: list[str]) -> None:
        """Note that Kafka answers; tell viewers which topics are missing or not read yet.

        `missing` are topics that do not exist, or that this reader may not see.
        """
        self._hub.outage.end()
        self._backlog.away = False
        self._silence = None
        self._hub.unread = frozenset(self._topics[topic] for topic, _ in self._unread)
        # A topic that is gone is not missing: what was read of it stays.
        seen = {topic for topic, _ in self._assigned}
        self._hub.missing = frozenset(
            self._topics[topic] for topic in missing if topic not in seen
        )
        reading = "reading" if self._unread else "live"
        self._set_state(
            {"kafka": "missing", "topics": missing} if missing else {"kafka": reading}
        )

    def _set_state(self, state: Mapping[str, object]) -> None:
        """Tell viewers the state of Kafka, and log it if it changed."""
        before = self._hub.state["kafka"]
        after = state["kafka"]
        # Outages are logged separately.
        if self._hub.set_state(state) and "away" not in (before, after):
            logger.info("Kafka: %s", after)

    def _report_error(self, error: KafkaError) -> None:
        """Tell viewers that Kafka is away or refuses this reader, and log why.

        librdkafka's message names brokers, topics and reasons, but no record.
        """
        # The reasons that the callback got say more than the timeout of a call.
        cause = self._refusal or error
        self._refusal = None
        self._backlog.away = True
        if _refuses(cause):
            self._set_state({"kafka": "refused"})
            logger.warning("Kafka: %s", cause.str())
        else:
            # But a failed TLS handshake, also a `_refusal`, says more than that no broker answers.
            if cause.code() != KafkaError._SSL and self._silence is not None:
                cause = self._silence
            self._hub.outage.begin(" ".join(cause.str().split()))
            self._set_state({"kafka": "away"})

    def _record_error(self, error: KafkaError) -> None:
        """Keep an error that librdkafka's callback gets; `_report_error` uses it.

        A `_refusal` is of this reader, or a failed TLS handshake; `_silence`: no broker answers. It
        is called within our calls of the consumer, in the feed's thread.
        """
        if _refuses(error) or error.code() == KafkaError._SSL:
            self._refusal = error
        elif error.code() in (KafkaError._TRANSPORT, KafkaError._RESOLVE):
            self._silence = error
