"""Columns show exactly the records that aiokafka's own path shows."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as Partition
from aiokafka.consumer.fetcher import READ_COMMITTED, PartitionRecords
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from tests.kafka.harness import create_topic, settled, unique
from workers.kafka.clients import Connection
from workers.kafka.decoding import ColumnRecords

Row = tuple[int, int, bytes | None, bytes | None]


def rows_of(records: ColumnRecords, most: int) -> list[Row]:
    """Read everything in steps of `most`."""
    rows: list[Row] = []
    while records.has_more():
        taken = records.take(0, most)
        rows += zip(taken.offsets, taken.timestamps, taken.keys, taken.values, strict=True)
    return rows


async def response(bootstrap: str, topic: str, start: int) -> ColumnRecords:
    """Return what aiokafka fetched from `start` and nobody has read."""
    partition = Partition(topic, 0)
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed") as consumer:
        consumer.assign([partition])
        consumer.seek(partition, start)
        while partition not in consumer._fetcher._records:
            await asyncio.sleep(0.01)
        return ColumnRecords.of(consumer._fetcher._records[partition]._partition_records)


async def expected(bootstrap: str, topic: str, start: int) -> tuple[list[Row], int]:
    """Return what aiokafka's own path makes of the same log, and the position it ends at."""
    partition = Partition(topic, 0)
    found: list[Any] = []
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed") as consumer:
        consumer.assign([partition])
        consumer.seek(partition, start)
        end = (await consumer.end_offsets([partition]))[partition]
        while (position := await consumer.position(partition)) < end:
            for records in (await consumer.getmany(timeout_ms=100)).values():
                found += records
    return [(r.offset, r.timestamp, r.key, r.value) for r in found], position


@pytest.mark.parametrize("compression", ["none", "gzip", "lz4", "snappy", "zstd"])
def test_columns_show_what_read_committed_shows(bootstrap: str, compression: str) -> None:
    """Aborted records, transaction markers, null keys and values, and a start inside a record batch."""
    connection, topic = Connection(bootstrap), unique("columns")
    create_topic(connection, topic)
    producer = connection.producer(topic, **{"compression.type": compression, "linger.ms": 100})
    producer.init_transactions(120)
    now_ms = time.time_ns() // 1_000_000  # records of long ago would be rolled into segments of their own
    for round_ in range(6):
        producer.begin_transaction()
        for i in range(20):
            value = None if i == 7 else b"%d-%d" % (round_, i)
            producer.produce(topic, value, None if i % 2 else b"k", 0, timestamp=now_ms + i)
        producer.flush(120)
        if round_ % 2:
            producer.abort_transaction(120)
        else:
            producer.commit_transaction(120)
    settled(connection, topic)
    for start, visible in ((0, 60), (5, 55), (45, 37)):
        rows, position = asyncio.run(expected(bootstrap, topic, start))
        records = asyncio.run(response(bootstrap, topic, start))
        assert rows_of(records, 15) == rows
        assert len(rows) == visible
        assert records.next_fetch_offset == position


def batch(count: int) -> bytearray:
    """Return one record batch."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    for i in range(count):
        builder.append(i, 1000 + i, None, b"value-%d" % i, [])
    return bytearray(builder.build())


def columns(raw: bytes, *, check_crcs: bool = True, start: int = 0) -> ColumnRecords:
    """Return the columns of a response of these bytes."""
    response = PartitionRecords(
        Partition("t", 0), MemoryRecords(raw), None, start, None, None, check_crcs, READ_COMMITTED
    )
    return ColumnRecords.of(response)


def test_a_record_batch_is_never_split() -> None:
    """A position inside a record batch would have all of it decoded again."""
    records = columns(bytes(batch(10)))
    assert records.take(0, 3).offsets == list(range(10))
    assert not records.has_more()


def test_a_start_inside_a_record_batch_skips_what_lies_before_it() -> None:
    """Brokers answer with whole record batches: records before the position were counted already."""
    assert columns(bytes(batch(10)), start=4).take(0, 100).offsets == [4, 5, 6, 7, 8, 9]


def test_a_damaged_record_batch_is_refused() -> None:
    """A flipped bit would become a wrong count; with the check off it is read as it is."""
    raw = batch(10)
    raw[-3] ^= 1
    with pytest.raises(CorruptRecordException, match="Invalid CRC"):
        columns(bytes(raw)).take(0, 100)
    assert len(columns(bytes(raw), check_crcs=False).take(0, 100).values) == 10


def test_taking_over_a_response_twice_goes_on_where_it_stood() -> None:
    """A response that was not read to its end stays with the fetcher and is met again."""
    records = columns(bytes(batch(10)))
    records.take(0, 100)
    assert ColumnRecords.of(records) is records
