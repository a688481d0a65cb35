"""Read this worker's own logs to their current ends, read_committed, in one shared loop.

Producers of events may compress them in ways that librdkafka does not read: `topic_reader` does.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from workers.kafka.clients import Connection, is_group_denial, unreachable
from workers.kafka.verdicts import Verdict, verdict_of
from workers.runtime.errors import KafkaAway, SettingsError

#: Records per call, over all partitions; fewer where each may have a megabyte, as snapshots may.
CHUNK_RECORDS = 5_000
CHUNK_LARGE_RECORDS = 100
# librdkafka decompresses a response at once. Our topics use lz4, which expands up to 255 times.
_FETCH_BYTES = 8_000_000
_POLL_S = 0.02
# Longest time without a record, and without an answer about a log's ends; timeout of one request.
_PATIENCE_S = 60.0
_ASK_S = 30.0
_LOOK_S = 1.0


Partition = tuple[str, int]  # topic, partition


def name_of(where: Partition) -> str:
    """Return a log's name in messages, such as "orders[3]"."""
    return f"{where[0]}[{where[1]}]"


# An `on_wait` is called repeatedly while nothing arrives, and may raise to end the wait.
Callback = Callable[[], None]


class FetchedChunk(NamedTuple):
    """A partition's next records, the offset after them, and whether that ends its span."""

    where: Partition
    messages: list[Message]
    position: int
    ended: bool


@contextmanager
def reader(
    connection: Connection, *, uncommitted: bool = False, queued_kb: int = 65_536
) -> Iterator[Consumer]:
    """Yield a consumer for `bounds_of` and `read_spans`, which fetches up to `queued_kb` ahead.

    If `uncommitted`, the end of a log is past open transactions, not before the first one.
    """
    config: dict[str, object] = {
        "isolation.level": "read_uncommitted" if uncommitted else "read_committed",
        "enable.partition.eof": True,
        # A position that the log no longer has is an error: by default it would be the end.
        "auto.offset.reset": "error",
        "fetch.wait.max.ms": 10,  # the default 500 ms would be wasted at the end
        "fetch.queue.backoff.ms": 10,
        "fetch.message.max.bytes": _FETCH_BYTES,
        "queued.max.messages.kbytes": queued_kb,
    }
    consumer = connection.consumer(**config)
    try:
        yield consumer
    finally:
        consumer.close()


def bounds_of(
    consumer: Consumer, topic: str, partition: int, on_wait: Callback = lambda: None
) -> tuple[int, int]:
    """Return a log's first offset and its end, for what the consumer may see.

    Under read_committed the first open transaction is the end. Raise KafkaException if there is no
    answer for 30 s.
    """
    deadline = time.monotonic() + _ASK_S
    log = TopicPartition(topic, partition)
    while True:
        try:
            low, high = consumer.get_watermark_offsets(log, timeout=_LOOK_S)
        except KafkaException as error:
            # A broker may learn late of a partition that was just added.
            unknown = verdict_of(error) is Verdict.MISSING
            if not (unknown or unreachable(error)) or time.monotonic() > deadline:
                raise
            on_wait()
            time.sleep(_POLL_S)  # some errors return immediately
        else:
            return low, high


def end_of(
    connection: Connection, topic: str, partition: int, on_wait: Callback = lambda: None
) -> int:
    """Return a log's end, regardless of open transactions."""
    with reader(connection, uncommitted=True) as consumer:
        return bounds_of(consumer, topic, partition, on_wait)[1]


def await_commits(connection: Connection, partitions: Iterable[Partition]) -> None:
    """Wait until every transaction now in these logs has ended; KafkaAway after a minute.

    This is needed to read everything that was committed: a broker acknowledges a commit before
    read_committed readers see it in every partition.
    """
    # These ends are past open transactions; those of a read_committed reader are before them.
    with reader(connection, uncommitted=True) as consumer:
        ends = {where: bounds_of(consumer, *where)[1] for where in partitions}
    deadline = time.monotonic() + _PATIENCE_S
    with reader(connection) as consumer:
        for where, end in ends.items():
            while bounds_of(consumer, *where)[1] < end:
                if time.monotonic() > deadline:
                    raise hidden_by_transaction(where)
                time.sleep(_POLL_S)


def hidden_by_transaction(where: Partition) -> KafkaAway:
    """Return the error for a log of ours whose end is hidden by a transaction without an owner."""
    return KafkaAway(
        f"{name_of(where)}: a transaction is open and has no owner, and hides "
        "what was committed after it began: kafka-transactions.sh finds it and can abort it"
    )


def read_spans(
    consumer: Consumer,
    spans: dict[Partition, tuple[int, int]],
    on_wait: Callback = lambda: None,
    max_records: int = CHUNK_RECORDS,
) -> Iterator[FetchedChunk]:
    """Yield the records in `spans` of offsets, up to `max_records` at once, until all have ended.

    Raise KafkaException after a minute without progress. A span that has ended is deleted from
    `spans`; the caller may delete others to end them early.
    """
    assigned = set(spans)
    # Explicit offsets: OFFSET_BEGINNING costs a 500 ms retry (measured).
    consumer.assign(
        [TopicPartition(*where, start) for where, (start, _) in spans.items()]
    )
    names = ", ".join(map(name_of, sorted(spans)))
    problem = KafkaError(KafkaError._TIMED_OUT, f"reading {names}")
    deadline = time.monotonic() + _PATIENCE_S
    while spans:
        if done := assigned - spans.keys():
            consumer.incremental_unassign([TopicPartition(*where) for where in done])
            assigned -= done
        by_partition: dict[Partition, list[Message]] = {}
        ended: set[Partition] = set()
        for message in consumer.consume(num_messages=max_records, timeout=_POLL_S):
            where = message.topic() or "", message.partition() or 0
            offset = message.offset() or 0
            error = message.error()
            # The end of a log is told like a record, at the offset that the next one will have.
            if error is None or error.code() == KafkaError._PARTITION_EOF:
                if where in spans:
                    part = by_partition.setdefault(where, [])
                    end = spans[where][1]
                    if error is None and offset < end:
                        part.append(message)
                    position = offset + 1 if error is None else offset
                    if position >= end:
                        ended.add(where)
            # A denied group is not a failure: readers must name a group but never join it.
            elif not is_group_denial(error):
                failure = KafkaException(error)
                if error.fatal() or not unreachable(failure):
                    raise failure
                problem = error
        if by_partition:
            deadline = time.monotonic() + _PATIENCE_S
        elif time.monotonic() > deadline:
            raise KafkaException(problem)
        else:
            on_wait()
        for where, messages in by_partition.items():
            if where in ended:
                yield FetchedChunk(where, messages, spans.pop(where)[1], True)
            elif messages:
                yield FetchedChunk(
                    where, messages, (messages[-1].offset() or 0) + 1, False
                )


def read_partition(
    connection: Connection,
    topic: str,
    partition: int,
    *,
    whole: bool = False,
    since: int = 0,
) -> Iterator[Message]:
    """Yield the committed records from offset `since` on, up to the present end.

    With `whole`, SettingsError if retention removed the log's beginning.
    """
    with reader(connection) as consumer:
        low, high = bounds_of(consumer, topic, partition)
        if whole and low > 0:
            raise SettingsError(
                f"{topic}[{partition}] begins at offset {low}: retention removed what was before, so it cannot be "
                "computed again. Keep its retention.ms at -1"
            )
        low = max(low, since)
        if low < high:
            for taken in read_spans(consumer, {(topic, partition): (low, high)}):
                yield from taken.messages
