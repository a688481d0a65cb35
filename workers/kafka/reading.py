"""Reading a partition from its beginning to the end it has now: what audit and the tests do. read_committed, bounded."""

from __future__ import annotations

import time
from collections.abc import Iterator

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from workers.errors import SettingsError
from workers.kafka.clients import Connection, of_no_group

_RECORDS = 5000
# Waited out at the end of every partition: librdkafka gives a batch back when it is full or this is over.
_POLL_S = 0.05
_PATIENCE_S = 60.0


def read_partition(
    connection: Connection,
    topic: str,
    partition: int,
    *,
    whole: bool = False,
    newest: int | None = None,
    since: int = 0,
) -> Iterator[Message]:
    """Yield the committed records of a partition, from the first that the log has to its last stable offset now.

    Args:
        connection: to the cluster.
        topic: topic.
        partition: partition.
        whole: refuse a log whose beginning is gone.
        newest: only this many offsets, the last ones.
        since: none before this offset.

    Raises:
        SettingsError: `whole`, and retention has removed records.
        KafkaException: the partition could not be read within a minute of trying.
    """
    consumer = connection.consumer(
        **{"enable.partition.eof": True, "fetch.wait.max.ms": 20, "queued.max.messages.kbytes": 65_536}
    )
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
        if whole and low > 0:
            raise SettingsError(
                f"{topic}[{partition}] begins at offset {low}: retention removed what was before, so it cannot be computed again. "
                "Keep its retention.ms at -1"
            )
        if newest is not None:
            low = max(low, high - newest)
        low = max(low, since)
        if low >= high:
            return
        consumer.assign([TopicPartition(topic, partition, low)])
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            for message in consumer.consume(num_messages=_RECORDS, timeout=_POLL_S):
                error = message.error()
                if error is None:
                    if (message.offset() or 0) >= high:
                        return
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    if (message.offset() or 0) >= high:
                        return
                elif of_no_group(error):
                    continue
                elif error.fatal() or not error.retriable():
                    raise KafkaException(error)
                deadline = time.monotonic() + _PATIENCE_S
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"reading {topic}[{partition}]"))
    finally:
        consumer.close()
