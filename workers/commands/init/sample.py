"""Sample the oldest and the newest records of every partition of a topic, in bounded time."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from workers.kafka.clients import Connection, of_no_group
from workers.kafka.reading import EVENTS, bounds_of, reader
from workers.kafka.topics import KAFKAS_OWN
from workers.runtime.errors import SettingsError

# Reading stops then, keeping the records read so far.
PATIENCE_S = 20.0
_INTRODUCE_S = 10.0
_ASK_S = 10.0
# For all records of a sample together; larger ones would hardly be examined in more detail.
BYTES_MAX = 64_000_000
# Offsets are not records: transaction markers take some, and compaction leaves holes.
_WIDER = 4
_POLL_S = 0.1

Spans = dict[int, tuple[int, int]]


@dataclass(frozen=True, slots=True, repr=False)
class Record:
    """One record. Sensitive.

    `time_ms` is Kafka's timestamp, ms since 1970.
    """

    partition: int
    offset: int
    time_ms: int
    key: bytes | None
    value: bytes | None

    @property
    def nbytes(self) -> int:
        return len(self.value or b"") + len(self.key or b"")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Sample:
    """Sampled records of a topic, by partition, in offset order.

    Attributes:
        total: offsets in the topic, approximately its records.
        stopped: whether time ran out before the requested number was read.
    """

    records: list[Record]
    partitions: int
    total: int
    topics: Collection[str]
    stopped: bool = False


def sample_of(connection: Connection, topic: str, number: int) -> Sample:
    """Read about `number` records of a topic, without writing or joining a group.

    Raises:
        SettingsError: no broker answers, the topic does not exist, or no record was read in time.
        KafkaException: the broker refuses reads.
    """
    with connection.introduce(_INTRODUCE_S) as (_, metadata):
        pass
    topics = [name for name in metadata.topics if not name.startswith(KAFKAS_OWN)]
    if topic not in topics:
        raise SettingsError(
            f"--topic {topic}: no such topic on {connection.bootstrap} that this principal may see"
        )
    deadline = time.monotonic() + PATIENCE_S
    partitions = sorted(metadata.topics[topic].partitions)
    with reader(connection, events=True) as consumer:
        bounds = {partition: bounds_of(consumer, topic, partition) for partition in partitions}
        found: dict[tuple[int, int], Record] = {}
        budget = BYTES_MAX
        stopped = False
        there = {partition: bound for partition, bound in bounds.items() if bound[0] < bound[1]}
        # Newest first: they show what events look like now.
        for newest in (True, False):
            spans = _spans(there, number, newest=newest)
            # Do not read records again that were read at the other end.
            limit = -(-number // (2 * max(len(there), 1)))
            for record in _read(consumer, topic, spans, limit, newest, deadline):
                budget -= record.nbytes
                if budget < 0:
                    break
                found[record.partition, record.offset] = record
            stopped = stopped or time.monotonic() > deadline or budget < 0
    if stopped and not found:
        raise SettingsError(
            f"--topic {topic}: no record could be read within {PATIENCE_S:g} s; try again"
        )
    return Sample(
        records=[found[place] for place in sorted(found)],
        partitions=len(partitions),
        total=sum(high - low for low, high in bounds.values()),
        topics=topics,
        stopped=stopped,
    )


def _spans(bounds: Spans, number: int, *, newest: bool) -> Spans:
    """Return the offsets at one end of every partition, half of the sample in all."""
    share = -(-number // (2 * max(len(bounds), 1)))
    if newest:
        return {
            partition: (max(low, high - _WIDER * share), high)
            for partition, (low, high) in bounds.items()
        }
    return {
        partition: (low, min(high, low + _WIDER * share))
        for partition, (low, high) in bounds.items()
    }


def _read(
    consumer: Consumer, topic: str, spans: Spans, limit: int, newest: bool, deadline: float
) -> Iterator[Record]:
    """Yield at most `limit` records of every span, its newest or its oldest.

    All spans together yield at most BYTES_MAX.
    """
    consumer.assign(
        [TopicPartition(topic, partition, start) for partition, (start, _) in spans.items()]
    )
    kept: dict[int, list[Record]] = {partition: [] for partition in spans}
    share, sizes = BYTES_MAX // max(len(spans), 1), dict.fromkeys(spans, 0)
    open_ = set(spans)
    while open_ and time.monotonic() < deadline:
        for message in consumer.consume(num_messages=EVENTS, timeout=_POLL_S):
            partition, offset, ended = _place(message)
            if partition not in open_:
                continue
            if ended or offset >= spans[partition][1] - 1:
                open_.discard(partition)
            if ended or offset >= spans[partition][1]:
                continue
            records = kept[partition]
            records.append(_record(message, partition, offset))
            sizes[partition] += records[-1].nbytes
            if newest:
                while len(records) > limit or (sizes[partition] > share and len(records) > 1):
                    sizes[partition] -= records.pop(0).nbytes
            elif len(records) == limit or sizes[partition] > share:
                open_.discard(partition)
    consumer.unassign()
    for records in kept.values():
        yield from reversed(records)


def _place(message: Message) -> tuple[int, int, bool]:
    """Return a message's partition and offset, and whether it only marks the partition's end.

    Raises:
        KafkaException: the message is an error.
    """
    error = message.error()
    partition, offset = message.partition(), message.offset()
    if error is not None:
        if error.name() == "_PARTITION_EOF":
            return -1 if partition is None else partition, -1, True
        if of_no_group(error) or (error.retriable() and not error.fatal()):
            return -1, -1, False
        raise KafkaException(error)
    return partition or 0, offset or 0, False


def _record(message: Message, partition: int, offset: int) -> Record:
    key, value = message.key(), message.value()
    return Record(
        partition,
        offset,
        message.timestamp()[1],
        key.encode() if isinstance(key, str) else key,
        value.encode() if isinstance(value, str) else value,
    )
