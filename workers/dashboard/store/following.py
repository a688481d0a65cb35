"""Fills the history with the records that the feed reads, and from Kafka with those before them.

The feed never waits for the disk: it leaves records in a bounded `Backlog`. The topic is the real
queue: at the start, after an error, and when the backlog was full, the follower reads everything
between the stored positions and the backlog's beginning with a consumer of its own. A position is
the offset to resume at in a partition. Records are pages of snapshots (`client.messages`).
"""

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaException, Message

from workers.client.config import ReaderSettings
from workers.client.messages import RECORD_BYTES, InvalidSnapshot, Pages
from workers.dashboard.store.writing import Arrival, Position, Writer
from workers.kafka.reading import (
    CHUNK_LARGE_RECORDS,
    Partition,
    bounds_of,
    read_spans,
    reader,
)
from workers.kafka.topics import describe
from workers.runtime.errors import KafkaAway

logger = logging.getLogger(__name__)

POLL_S = 0.5
BACKLOG_BYTES = 16 << 20
AHEAD_KB = 16 << 10
# A transaction stores this many bytes of records, plus at most one record.
PIECE_BYTES = 8 << 20
# Drop a tick whose other records are not within this many of its partition.
RECORDS_WITHIN = 1_000_000


class Backlog:
    """Records that the feed has read and the history has not. Thread-safe; nobody waits.

    It also has the messages that say that a partition has ended: a position may lie behind
    transaction markers, which are no records.
    """

    def __init__(self) -> None:
        # Reentrant: `begin` and `put` hold it when they call `restart`.
        self._lock = threading.RLock()
        # The offset after the feed's last record, by partition.
        self._ends: dict[Partition, int] = {}
        #: Whether the feed gets no answer from Kafka.
        self.away = False
        self.restart()

    def begin(self, starts: Mapping[Partition, int]) -> None:
        """Note where the feed begins to read new partitions."""
        with self._lock:
            self._ends.update(starts)
            # The follower must read what these have before.
            self.restart()

    def put(self, message: Message) -> None:
        """Add a record, or the message that a partition has ended; restart beyond the limit."""
        where = place_of(message)
        offset = message.offset() or 0
        with self._lock:
            # Offsets that go back are of a topic that was deleted and made again.
            made_anew = offset < self._ends[where]
            # A record comes before the end, the message that a partition has ended is at it.
            is_record = message.error() is None
            self._ends[where] = offset + is_record
            self._messages.append(message)
            self._bytes += len(message.value() or b"") + RECORD_BYTES
            if made_anew or self._bytes > BACKLOG_BYTES:
                self.restart()

    def restart(self) -> None:
        """Drop all records: the follower reads those up to here from Kafka."""
        with self._lock:
            # Where the records begin, by partition; empty if they follow on what was taken last.
            self._starts = dict(self._ends)
            self._messages: list[Message] = []
            self._bytes = 0

    def take(self) -> tuple[Mapping[Partition, int], list[Message]]:
        """Return what has come since the last call: (starts, records), and keep none of it.

        After a restart `starts` has, for every partition, the offset where the records begin: all
        before must be read from Kafka. Otherwise it is empty. Raises KafkaAway as `check`.
        """
        self.check()
        with self._lock:
            starts = self._starts
            messages = self._messages
            self.restart()  # empties it
            self._starts = {}
        return starts, messages

    def check(self) -> None:
        """Raise KafkaAway while the feed gets no answer, as the follower would get none either."""
        if self.away:
            raise KafkaAway("the feed gets no answer")


def place_of(message: Message) -> Partition:
    """Return the topic and partition of a message; raise its error if it has none."""
    topic = message.topic()
    partition = message.partition()
    if topic is None or partition is None:
        raise KafkaException(message.error())
    return topic, partition


@dataclass(slots=True)
class _Reading:
    """A partition that is read: from its first offset `low` to its end `high`, then what comes.

    Both are of the time when it was begun; `next` is the next offset to read.
    """

    topic_id: str | None
    low: int
    high: int
    next: int
    pages: Pages = field(default_factory=Pages)

    @property
    def position(self) -> Position:
        """Where to resume after a crash: at the first page of a snapshot not yet complete."""
        waiting = self.pages.first_position
        return Position(self.topic_id, self.next if waiting is None else waiting)


class Follower:
    """Stores the records of all partitions; called by one thread. After an error, make another."""

    def __init__(
        self, settings: ReaderSettings, writer: Writer, backlog: Backlog
    ) -> None:
        self._connection = settings.connection
        self._topics = settings.topics
        self._writer = writer
        self._backlog = backlog
        # How far each partition was read.
        self._partitions: dict[Partition, _Reading] = {}
        # The next transaction: snapshots, their bytes, and partitions whose position has moved.
        self._piece: list[Arrival] = []
        self._bytes = 0
        self._moved: set[Partition] = set()
        # Its records need not follow on what is stored: read all before them from Kafka first.
        backlog.restart()

    @property
    def fraction_read(self) -> float | None:
        """Return which part of the topics, from 0 to 1, has been read; None once all of it has."""
        readings = self._partitions.values()
        offsets = sum(reading.high - reading.low for reading in readings)
        unread = sum(max(reading.high - reading.next, 0) for reading in readings)
        if readings and not unread:
            return None
        return round(1 - unread / offsets, 3) if offsets else 0.0

    def steps(self) -> Iterator[None]:
        """Store all records, a transaction a step, without end; yield after each step.

        KafkaException, QuietcountError: retry later; duckdb.Error: the file failed.
        """
        while True:
            for message in self._messages():
                self._receive(message)
                if self._bytes > PIECE_BYTES:
                    self._store()
                    yield
            self._store()
            yield
            time.sleep(POLL_S)

    def _messages(self) -> Iterator[Message]:
        """Yield the records of the backlog, after a restart first those before it, from Kafka."""
        starts, messages = self._backlog.take()
        if starts:
            with reader(self._connection, queued_kb=AHEAD_KB) as consumer:
                self._find_positions(consumer, starts)
                spans = {
                    where: (reading.next, starts[where])
                    for where, reading in self._partitions.items()
                    if reading.next < starts[where]
                }
                on_wait = self._backlog.check
                for chunk in read_spans(consumer, spans, on_wait, CHUNK_LARGE_RECORDS):
                    yield from chunk.messages
                    # Behind the last record there may be transaction markers.
                    self._partitions[chunk.where].next = chunk.position
        yield from messages

    def _receive(self, message: Message) -> None:
        """Add the snapshot that a record completes to what `_store` writes, unless it is stored."""
        where = place_of(message)
        offset = message.offset() or 0
        reading = self._partitions.get(where)
        # Of a topic that was deleted, or stored before.
        if reading is None or offset < reading.next:
            return
        self._moved.add(where)
        reading.next = offset
        # The message that the partition has ended at this offset.
        if message.error() is not None:
            return
        reading.next += 1
        # A snapshot whose pages lie further apart is dropped: it would hold the position back.
        reading.pages.forget_before(offset - RECORDS_WITHIN)
        topic, part = where
        try:
            snapshot = reading.pages.receive(
                self._topics[topic], message.value(), offset
            )
        except InvalidSnapshot as error:
            # The feed logs those that come later.
            if offset < reading.high:
                line = "%s[%d] offset %d: %s; not in the history"
                logger.info(line, topic, part, offset, error)
            return
        if snapshot is not None:
            self._piece.append(Arrival(part, snapshot))
            self._bytes += len(snapshot.json)

    def _store(self) -> None:
        """Write the snapshots so far, with the positions after them, in one transaction."""
        if self._moved:
            positions = {
                where: self._partitions[where].position for where in self._moved
            }
            self._writer.write(self._piece, positions)
        self._piece = []
        self._moved = set()
        self._bytes = 0

    def _find_positions(
        self, consumer: Consumer, partitions: Iterable[Partition]
    ) -> None:
        """Begin to read all partitions, from their stored positions or else their first offsets.

        Where records were removed before they were read, note a gap.
        """
        existing = describe(self._connection, self._topics)
        positions = self._writer.positions()
        self._partitions = {}
        for where in partitions:
            topic, part = where
            if topic not in existing:
                continue
            low, high = bounds_of(consumer, topic, part)
            topic_id = existing[topic].topic_id
            stored = positions.get(where)
            # Another topic of this name: beyond its end, or of another id where both are known.
            if stored is not None:
                has_ids = topic_id is not None and stored.topic_id is not None
                if stored.next > high or (has_ids and topic_id != stored.topic_id):
                    logger.warning(
                        "history: %s[%d] is not the topic that was read before; reading it from the beginning",
                        topic,
                        part,
                    )
                    stored = None
            start = 0 if stored is None else stored.next
            if start < low:
                self._writer.note_gap(self._topics[topic], part)
                logger.warning(
                    "history: records of %s[%d] were removed before they were read; answers are marked incomplete",
                    topic,
                    part,
                )
            self._partitions[where] = _Reading(topic_id, low, high, max(start, low))
            self._moved.add(where)
