"""Columns show exactly the records of aiokafka's own path."""

import asyncio
import gc
import time
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import chain
from typing import Any

import numpy as np
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as Partition
from aiokafka.errors import CorruptRecordException
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from tests.kafka import bombs
from tests.kafka.bombs import columns, record, response
from tests.kafka.harness import create_topic, settled, unique
from workers.kafka.clients import Connection
from workers.kafka.decoding import ColumnRecords, RecordSet, adapt_consumers
from workers.kafka.records import FetchedRecords, Records
from workers.runtime.errors import SettingsError

Row = tuple[int, int, bytes | None, bytes | None]


def whole(fetched: FetchedRecords) -> Records:
    [part] = fetched.parts()
    return part.records


def rows_of(records: ColumnRecords, most: int) -> list[Row]:
    rows: list[Row] = []
    while records.has_more():
        for part in records.take(0, most).parts():
            taken = part.records
            times = part.records.times.tolist()
            for i, offset in enumerate(taken.offsets.tolist()):
                rows.append((offset, times[i], taken.key(i), taken.value(i)))
    return rows


def offsets(records: ColumnRecords, most: int = 100) -> list[int]:
    found: list[int] = whole(records.take(0, most)).offsets.tolist()
    return found


@asynccontextmanager
async def consumer_at(
    bootstrap: str, partition: Partition, start: int
) -> AsyncIterator[Any]:
    level = "read_committed"
    async with AIOKafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level=level
    ) as consumer:
        consumer.assign([partition])
        consumer.seek(partition, start)
        yield consumer


async def fetched(bootstrap: str, topic: str, start: int) -> ColumnRecords:
    adapt_consumers()
    partition = Partition(topic, 0)
    async with consumer_at(bootstrap, partition, start) as consumer:
        while partition not in consumer._fetcher._records:
            await asyncio.sleep(0.01)
        return ColumnRecords.of(
            consumer._fetcher._records[partition]._partition_records
        )


async def expected(bootstrap: str, topic: str, start: int) -> tuple[list[Row], int]:
    """Return the records of the same log from aiokafka's own path, and the final position."""
    partition = Partition(topic, 0)
    found: list[Any] = []
    async with consumer_at(bootstrap, partition, start) as consumer:
        end = (await consumer.end_offsets([partition]))[partition]
        while (position := await consumer.position(partition)) < end:
            for records in (await consumer.getmany(timeout_ms=100)).values():
                found += records
    return [row_of(record) for record in found], position


def row_of(record: Any) -> Row:
    return record.offset, record.timestamp, record.key, record.value


@pytest.mark.parametrize("compression", ["none", "gzip", "lz4", "snappy", "zstd"])
def test_columns_show_what_read_committed_shows(
    bootstrap: str, compression: str
) -> None:
    """Covers aborted records, markers, nulls, and a start inside a record batch."""
    connection = Connection(bootstrap)
    topic = unique("columns")
    create_topic(connection, topic)
    producer = connection.producer(
        topic, **{"compression.type": compression, "linger.ms": 100}
    )
    producer.init_transactions(120)
    # Records of long ago would be rolled into segments of their own.
    now_ms = time.time_ns() // 1_000_000
    for round_ in range(6):
        producer.begin_transaction()
        for i in range(20):
            value = None if i == 7 else b"%d-%d" % (round_, i)
            producer.produce(
                topic, value, None if i % 2 else b"k", 0, timestamp=now_ms + i
            )
        producer.flush(120)
        (producer.abort_transaction if round_ % 2 else producer.commit_transaction)(120)
    settled(connection, topic)
    for start, visible in ((0, 60), (5, 55), (45, 37)):
        rows, position = asyncio.run(expected(bootstrap, topic, start))
        records = asyncio.run(fetched(bootstrap, topic, start))
        assert rows_of(records, 15) == rows
        assert len(rows) == visible
        assert records.next_fetch_offset == position


def batch(count: int, codec: str = "none", base: int = 0) -> bytes:
    pieces = chain.from_iterable(record(i, b"value-%d" % i) for i in range(count))
    return bombs.batch(codec, pieces, count, base)


def test_a_record_batch_is_never_split() -> None:
    """A position inside a record batch would have all of it decoded again."""
    records = columns(batch(10))
    assert offsets(records, 3) == list(range(10))
    assert not records.has_more()


@pytest.mark.parametrize("codec", ["none", "gzip", "lz4"])
@pytest.mark.parametrize(
    "lengths", [(0, 3, 0, 4_000, 1), (30_000, 1, 30_000), (5, 90_000, 5, 90_000)]
)
def test_batches_decompressed_together_are_complete(
    codec: str, lengths: tuple[int, ...]
) -> None:
    """The first batch determines the initial room; batches that need more must not be cut off."""
    rng = np.random.default_rng(0)
    raw = b""
    wanted = []
    for number, length in enumerate(lengths):
        values = [
            bytes(length) if number % 2 == 0 else rng.bytes(length) for _ in range(3)
        ]
        pieces = chain.from_iterable(record(i, value) for i, value in enumerate(values))
        raw += bombs.batch(codec if number != 1 else "none", pieces, 3, 3 * number)
        wanted += values
    taken = whole(columns(raw).take(0, 100))
    assert [taken.value(i) for i in range(len(taken))] == wanted
    assert taken.offsets.tolist() == list(range(3 * len(lengths)))


def test_a_batch_that_cannot_be_decompressed_is_refused_behind_others_too() -> None:
    """With a valid CRC the producer itself is at fault, and the contents must not be guessed."""
    good = batch(100, "lz4")
    damaged = bytearray(good)
    damaged[70:90] = bytes(20)
    parts = columns(good + bytes(damaged), check_crcs=False).take(0, 1_000).parts()
    assert len(next(parts)) == 100
    with pytest.raises(CorruptRecordException, match="lz4"):
        next(parts)


def test_a_start_inside_a_record_batch_skips_what_lies_before_it() -> None:
    """Brokers answer with whole record batches: earlier records were counted already."""
    assert offsets(columns(batch(10), start=4)) == [4, 5, 6, 7, 8, 9]


def test_a_damaged_record_batch_is_refused() -> None:
    """A flipped bit would become a wrong count; with the check off it is read as it is."""
    raw = bytearray(batch(10))
    raw[-3] ^= 1
    with pytest.raises(CorruptRecordException, match="Invalid CRC"):
        offsets(columns(bytes(raw)))
    assert len(offsets(columns(bytes(raw), check_crcs=False))) == 10


def test_taking_over_a_response_twice_goes_on_where_it_stood() -> None:
    """A response that was not fully read stays with the fetcher and comes up again."""
    records = columns(batch(10))
    records.take(0, 100)
    assert ColumnRecords.of(records) is records


def test_the_bytes_of_a_response_go_with_it_and_wait_for_no_collection_of_cycles() -> (
    None
):
    raw = RecordSet(batch(10))
    stored = response(raw)
    records = ColumnRecords.of(stored)
    taken = whole(records.take(0, 100))
    gone = [weakref.ref(each) for each in (raw, stored, records)]
    gc.disable()
    try:
        del raw, stored, records
        assert [each() for each in gone] == [None] * 3
    finally:
        gc.enable()
    assert len(taken) == 10


@pytest.mark.parametrize("codec", [0, 1])
@pytest.mark.parametrize("magic", [0, 1])
def test_messages_of_formats_before_kafka_0_11_are_refused_by_topic_and_offset(
    magic: int, codec: int
) -> None:
    """A topic from before Kafka 0.11 that was never rewritten holds both."""
    builder = LegacyRecordBatchBuilder(magic, codec, 1 << 20)
    for i in range(4):
        builder.append(3 + i, 1000 + i if magic else None, b"k", b"old-%d" % i)
    old = bytes(builder.build())
    # aiokafka leaves the offset of a compressed message to the broker.
    named = 0 if codec else 3
    for raw in (old, batch(3) + old, old + batch(3, base=7)):
        records = columns(raw)
        with pytest.raises(SettingsError) as refused:
            list(records.take(0, 100).parts())
        text = str(refused.value)
        assert text.startswith(
            f"t[0]: the message at offset {named} has a format from before Kafka 0.11"
        )
        assert "kafka-delete-records" in text


@pytest.mark.parametrize("cut", range(0, 200, 7))
def test_bytes_that_are_no_records_are_refused(cut: int) -> None:
    """With the CRC check off, a damaged length must never lead outside the record batch."""
    raw = batch(10)
    for value in (0, 1, 0x7F, 0xFF):
        damaged = bytearray(raw)
        damaged[61 + cut % (len(raw) - 61)] = value
        try:
            found = whole(columns(bytes(damaged), check_crcs=False).take(0, 100))
        except CorruptRecordException:
            continue
        places = (*found.keys.tolist(), *found.values.tolist())
        assert all(-1 <= start <= stop <= len(found.data) for start, stop in places)


def test_other_consumers_in_the_process_read_as_before() -> None:
    """Keeping responses as bytes must not affect other users of aiokafka in the process."""
    raw = batch(10)
    ours = response(RecordSet(raw))
    stock = response(MemoryRecords(raw))
    assert list(map(row_of, ours)) == list(map(row_of, stock))


def test_records_made_of_bytes_are_those_bytes() -> None:
    """Null is not empty."""
    made = Records.of([b"a", None, b"", b"xyz"], [None, b"k", b"", None])
    assert [made.value(i) for i in range(4)] == [b"a", None, b"", b"xyz"]
    assert [made.key(i) for i in range(4)] == [None, b"k", b"", None]
    assert [made.part(1, 3).value(i) for i in range(2)] == [None, b""]
