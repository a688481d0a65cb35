"""Reads the histogram topics into the history, from the beginning or the stored positions.

A separate consumer, so that viewers never wait for the disk; it joins no group. The topic is the
queue: unstored records are read again.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import (
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)

from workers.client.messages import InvalidSnapshot, Pages
from workers.dashboard.feed import ANSWER_S, TOPICS_S, Place, partitions_of, place_of
from workers.dashboard.store.writing import Arrival, Position, Writer
from workers.kafka.clients import Connection

logger = logging.getLogger(__name__)

BATCH = 500
POLL_S = 0.5
# A transaction stores this many bytes of snapshots, plus at most one snapshot.
PIECE_BYTES = 8 << 20
# Drop a tick whose other records are not within this many of its partition.
RECORDS_WITHIN = 1_000_000


@dataclass(slots=True)
class _Partition:
    topic_id: str | None
    low: int
    high: int
    next: int
    pages: Pages = field(default_factory=Pages)

    @property
    def position(self) -> Position:
        waiting = self.pages.first_offset
        return Position(self.topic_id, self.next if waiting is None else waiting)


class Follower:
    """A consumer and the writer behind it, called by one thread."""

    def __init__(
        self, connection: Connection, topics: Mapping[str, str], writer: Writer
    ) -> None:
        self._connection = connection
        self._topics = topics
        self._writer = writer
        options: dict[str, Any] = {
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "queued.max.messages.kbytes": 16_384,
            # The feed reports Kafka's state.
            "error_cb": lambda _: None,
            "logger": logging.getLogger("librdkafka.unheard"),
        }
        self._consumer = connection.consumer(**options)
        self._partitions: dict[Place, _Partition] = {}
        self._unread: set[Place] = set()
        self._topics_at = 0.0

    def close(self) -> None:
        self._consumer.close()

    @property
    def read(self) -> float | None:
        """Return the fraction of the topics that has been read; None once all of it has."""
        if self._partitions and not self._unread:
            return None
        ends = sum(one.high - one.low for one in self._partitions.values())
        done = sum(
            min(one.next, one.high) - one.low for one in self._partitions.values()
        )
        return round(done / ends, 3) if ends else 0.0

    def step(self) -> None:
        """Read and store one poll; KafkaException: retry later; duckdb.Error: the file failed."""
        if time.monotonic() >= self._topics_at:
            self._assign()
            self._topics_at = time.monotonic() + TOPICS_S
        if not self._partitions:
            time.sleep(POLL_S)
            return
        messages = self._consumer.consume(num_messages=BATCH, timeout=POLL_S)
        moved: set[Place] = set()
        piece: list[Arrival] = []
        size = 0
        failed: KafkaError | None = None
        for message in messages:
            partition = place_of(message)
            error = message.error()
            if error is None:
                arrived = self._receive(partition, message)
                moved.add(partition)
                if arrived is not None:
                    piece.append(arrived)
                    size += len(arrived.snapshot.json)
                    if size > PIECE_BYTES:
                        # Without positions: after a crash these arrive again and are skipped.
                        self._writer.write(piece, {})
                        piece = []
                        size = 0
            elif error.code() == KafkaError._PARTITION_EOF:
                self._unread.discard(partition)
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                self._restart(partition)
                moved.discard(partition)
            else:
                failed = error
        if piece or moved:
            self._writer.write(
                piece,
                {
                    partition: self._partitions[partition].position
                    for partition in moved
                },
            )
        if failed is not None:
            raise KafkaException(failed)

    def _receive(self, partition: Place, message: Message) -> Arrival | None:
        reading = self._partitions[partition]
        offset = message.offset() or 0
        reading.next = offset + 1
        snapshot = None
        try:
            snapshot = reading.pages.receive(
                self._topics[partition[0]], message.value(), offset
            )
        except InvalidSnapshot as error:
            if partition in self._unread:  # the feed reports later ones
                logger.info(
                    "%s[%d] offset %d: %s; not in the history",
                    *partition,
                    offset,
                    error,
                )
        reading.pages.forget_before(offset - RECORDS_WITHIN)
        return None if snapshot is None else Arrival(partition[1], snapshot)

    def _assign(self) -> None:
        existing = partitions_of(self._consumer, self._topics)
        new = [partition for partition in existing if partition not in self._partitions]
        if not new:
            return
        ids: dict[str, str] = {}
        if self._connection.embedded is None:
            with self._connection.quiet_admin([]) as admin:
                names = TopicCollection(sorted({topic for topic, _ in new}))
                answers = admin.describe_topics(names, request_timeout=ANSWER_S)
                ids = {
                    topic: str(future.result().topic_id)
                    for topic, future in answers.items()
                }
        stored = self._writer.positions()
        begun = {
            partition: self._begin(
                partition, ids.get(partition[0]), stored.get(partition)
            )
            for partition in new
        }
        self._unread.update(begun)
        self._partitions.update(begun)
        starts = [
            TopicPartition(*partition, reading.next)
            for partition, reading in begun.items()
        ]
        self._consumer.incremental_assign(starts)

    def _begin(
        self, partition: Place, topic_id: str | None, stored: Position | None
    ) -> _Partition:
        low, high = self._consumer.get_watermark_offsets(
            TopicPartition(*partition), timeout=ANSWER_S
        )
        start = low if stored is None else stored.next
        name = f"{partition[0]}[{partition[1]}]"
        if stored is not None:
            has_ids = topic_id is not None and stored.topic_id is not None
            if start > high or (has_ids and topic_id != stored.topic_id):
                logger.warning(
                    "history: %s is not the topic that was read before; reading it from the beginning",
                    name,
                )
                start = low
                stored = None
        if start < low or (stored is None and low > 0):
            start = low
            self._writer.note_gap(self._topics[partition[0]], partition[1])
            logger.warning(
                "history: records of %s were removed before they were read; answers are marked incomplete",
                name,
            )
        return _Partition(topic_id, low, high, start)

    def _restart(self, place: Place) -> None:
        """Restart a partition whose unread records were removed."""
        self._consumer.incremental_unassign([TopicPartition(*place)])
        del self._partitions[place]
        self._topics_at = 0.0
