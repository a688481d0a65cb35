"""Fetched record batches: the fetch reads headers, the shard's thread decodes records.

aiokafka would create an eleven-field object per record, in the consumer's thread, under the GIL.
Here its fetcher keeps raw bytes (`RecordSet`), `ColumnRecords` reads the 61-byte batch headers, and
the shard checks the CRC, decompresses, and finds records in a compiled loop. As in aiokafka,
aborted transactions and control batches are skipped, and positions move past them. Messages in a
format from before Kafka 0.11 are refused.

Only the producer bounds the decompressed size of a fetch, so the shard decodes it in parts of at
most `PART_RECORDS` records and `PART_BYTES` bytes (or the longest value plus 1 MiB, if more). It
decompresses a longer record batch as a stream and truncates a longer record, which is then rejected
as too large. At most two such buffers exist at a time. A damaged batch ends in
CorruptRecordException, here or in the shard.

The compiled loop is `records.read_batches`. Its *table* has a row for every batch; its *cursor*, an
int64 array, keeps how far it has parsed: POSITION is the index of the next record in the data, ROWS
the number of records that the last call found, BATCH the row of their batch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from aiokafka import client
from aiokafka.consumer import fetcher
from aiokafka.consumer.fetcher import READ_COMMITTED, FetchResult, PartitionRecords
from aiokafka.errors import CorruptRecordException
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import calc_crc32c, encode_varint

from workers.arrays.texts import readonly_contiguous
from workers.arrays.types import Bytes, Longs
from workers.kafka.decompression import Stream, decompress_into
from workers.kafka.reading import name_of
from workers.kafka.records import (
    BATCH,
    LAST_OFFSET,
    POSITION,
    ROWS,
    Batch,
    FetchedRecords,
    Records,
    read_batches,
)
from workers.runtime.errors import SettingsError
from workers.runtime.sizes import MESSAGE_BYTES, VALUE_BYTES

# Its fields are named in `RecordBatch`; the magic is the version of the format.
_HEADER = struct.Struct(">qiibIhiqqqhii")
_LOG_OVERHEAD = 12  # base offset and length, which the length excludes
_MAGIC_AT = 16
_CRC_FROM = 21  # after the CRC itself
# Bits of the attributes.
_CODEC = 7
_APPEND_TIME = 8
_TRANSACTIONAL = 16
_CONTROL = 32

#: Each part, however small, waits for the GIL about sixty times: 0.2 ms on two busy cores.
PART_RECORDS = 60_000
PART_BYTES = 32 << 20
# Room for what a record has beside its value.
_BESIDE_BYTES = 1 << 20
# Headroom (factor, bytes) over the size that the first batch's compression ratio predicts, and the
# ratio assumed for the first batch itself.
_SPARE_FACTOR = 1.25
_SPARE_BYTES = 1 << 12
_FIRST_RATIO = 8
# A truncated record drops a key or headers longer than this, as a reject does.
_KEY_BYTES = VALUE_BYTES // 10
_HEADERS_BYTES = 1 << 16
# Longest record, and longest varint in one.
_RECORD_BYTES_MAX = (1 << 31) - 1
_VARINT_BYTES_MAX = 10


class RecordSet:
    """Undecoded record batches of one response, with the methods that aiokafka calls.

    It takes the place of aiokafka's `MemoryRecords`, which would decode them (`adapt_consumers`).
    """

    def __init__(self, data: bytes) -> None:
        self._data = bytes(data)
        self._position = 0

    def size_in_bytes(self) -> int:
        return len(self._data)

    def has_next(self) -> bool:
        """Return whether another whole record batch follows; the last is often truncated."""
        left = len(self._data) - self._position
        return left > _MAGIC_AT and left >= _LOG_OVERHEAD + self._length()

    def next_batch(self) -> RecordBatch:
        """Return the next batch; raise CorruptRecordException if it is too short for its header."""
        start = self._position
        self._position += _LOG_OVERHEAD + self._length()
        size = self._position - start
        # Older formats have another header.
        if self._data[start + _MAGIC_AT] >= 2 and size < _HEADER.size:
            raise CorruptRecordException(f"a record batch of {size} bytes")
        return RecordBatch(self._data, start, self._position)

    def put_back(self, batch: RecordBatch) -> None:
        """Make `next_batch` return `batch` again, which it returned last."""
        self._position = batch.start

    def _length(self) -> int:
        """Return the next batch's length field, which follows its base offset (8 bytes)."""
        field = self._data[self._position + 8 : self._position + _LOG_OVERHEAD]
        return int.from_bytes(field, signed=True)


class RecordBatch:
    """A record batch, bytes start..stop of a response, and its header.

    For a message in an old format (`is_old`), only the offset is read, for the error that refuses
    it; aiokafka sees the defaults below. Attributes that aiokafka reads have the names that it
    expects.
    """

    record_count = 1
    producer_id: int | None = None
    is_control_batch = is_transactional = False

    def __init__(self, response: bytes, start: int, stop: int) -> None:
        """Read the header of the batch at response[start:stop]."""
        self.response = response
        self.start = start
        self.stop = stop
        self.is_old = response[start + _MAGIC_AT] < 2
        # One message, or one that wraps compressed ones.
        if self.is_old:
            self.base_offset = int.from_bytes(response[start : start + 8], signed=True)
            self.next_offset = self.base_offset + 1
            return
        (
            self.base_offset,
            _length,
            _leader_epoch,
            _magic,
            self.crc,
            self._attributes,
            last_delta,
            self._first_ms,
            self._largest_ms,
            self.producer_id,
            _producer_epoch,
            _first_sequence,
            self.record_count,
        ) = _HEADER.unpack_from(response, start)
        self.next_offset = self.base_offset + last_delta + 1
        self.is_control_batch = bool(self._attributes & _CONTROL)
        self.is_transactional = bool(self._attributes & _TRANSACTIONAL)
        self.codec = self._attributes & _CODEC

    def __iter__(self) -> Any:
        """Return aiokafka's own reader, for other consumers in this process."""
        return iter(self._aiokafka_batch())

    def __next__(self) -> Any:
        """Return the first record, for aiokafka to inspect a control record."""
        return next(iter(self))

    def validate_crc(self) -> bool:
        """Return whether the batch matches the CRC-32C in its header; aiokafka calls this, too."""
        if self.is_old:
            return bool(self._aiokafka_batch().validate_crc())
        # In C, without the GIL, at 1.8 GB/s.
        content = memoryview(self.response)[self.start + _CRC_FROM : self.stop]
        return bool(calc_crc32c(content) == self.crc)

    def _aiokafka_batch(self) -> Any:
        return MemoryRecords(self.response[self.start : self.stop]).next_batch()

    @property
    def payload(self) -> memoryview:
        return memoryview(self.response)[self.start + _HEADER.size : self.stop]

    def row(self, start: int, stop: int) -> tuple[int, ...]:
        """Return this batch's row of the table, if its records are data[start:stop]."""
        # Under LogAppendTime the broker writes the time of arrival there, for all records; -1: each
        # record has its own time.
        append_ms = self._largest_ms if self._attributes & _APPEND_TIME else -1
        return (
            start,
            stop,
            self.base_offset,
            self._first_ms,
            append_ms,
            self.record_count,
        )


def _decode(
    name: str,
    batches: list[RecordBatch],
    start: int,
    end: int,
    fetch_offset: int,
    check_crcs: bool,
    longest: int = MESSAGE_BYTES,
) -> Iterator[Batch]:
    """Yield the records in parts that together cover the offsets from `start` to `end`.

    Records before `fetch_offset` are left out: the broker sends a record batch whole, even if the
    fetch began inside it. `name` is the partition's, for messages; `longest` is the longest value
    to read, in bytes. Raise SettingsError for a message in an old format.
    """
    for batch in batches:
        if batch.is_old:
            raise SettingsError(
                f"{name}: the message at offset {batch.base_offset} has a format from before Kafka 0.11, which is not "
                "supported: copy the topic with a current producer and read the copy, or delete its old records "
                "(kafka-delete-records)"
            )
    if not batches:
        yield Batch(start, end, Records.of([]))
        return
    try:
        if check_crcs and not all(batch.validate_crc() for batch in batches):
            raise CorruptRecordException("Invalid CRC")
        left = sum(batch.record_count for batch in batches)
        for records in _read(batches, longest):
            left -= len(records)
            records = records.part(
                int(np.searchsorted(records.offsets, fetch_offset)), len(records)
            )
            # The last part extends to `end`, past records that readers never see.
            if left == 0:
                yield Batch(start, end, records)
            elif len(records):
                part = Batch(start, int(records.offsets[-1]) + 1, records)
                yield part
                start = part.end
                del part
            # Free them before the next ones are decompressed.
            del records
    except CorruptRecordException as error:
        text = f"{name} from offset {start}: {error.args[0]}"
        raise CorruptRecordException(text) from error


def _read(batches: list[RecordBatch], longest: int) -> Iterator[Records]:
    """Yield the records of the batches in parts, decompressed in bounded memory."""
    if not any(batch.codec for batch in batches):
        # Nothing to decompress: the records stay where they are in the response.
        begin = batches[0].start
        data = np.frombuffer(batches[0].response, dtype=np.uint8)[
            begin : batches[-1].stop
        ]
        starts = [batch.start + _HEADER.size - begin for batch in batches]
        yield from _parse(
            data, batches, starts, [batch.stop - begin for batch in batches]
        )
        return
    buffer_bytes = max(PART_BYTES, longest + _BESIDE_BYTES)
    while batches:
        data, ends = _decompressed(batches, buffer_bytes)
        if ends:
            yield from _parse(data, batches[: len(ends)], [0, *ends[:-1]], ends)
            batches = batches[len(ends) :]
        else:
            # The first batch alone is longer than that, or damaged.
            del data
            yield from _stream(batches[0], longest, buffer_bytes)
            batches = batches[1:]


def _decompressed(
    batches: list[RecordBatch], max_bytes: int
) -> tuple[Bytes, list[int]]:
    """Decompress as many of the first batches as fit in `max_bytes`.

    Return the bytes, uint8, and where each batch ends in them; no ends if even the first is longer
    (or damaged). The guessed buffer grows: joining batches afterwards would take longer and hold
    the GIL.
    """
    guessed = _FIRST_RATIO * len(batches[0].payload) + _SPARE_BYTES
    data = np.empty(min(max_bytes, guessed), dtype=np.uint8)
    ends: list[int] = []
    for batch in batches:
        start = ends[-1] if ends else 0
        size = decompress_into(batch.codec, batch.payload, data.data[start:])
        while size is None and len(data) < max_bytes:
            data = _resized(data[:start], min(max_bytes, 2 * len(data)))
            size = decompress_into(batch.codec, batch.payload, data.data[start:])
        if size is None:
            break
        ends.append(start + size)
        if len(ends) == 1 and len(batches) > 1:
            # The first batch's ratio predicts the size of all.
            packed = sum(len(each.payload) for each in batches)
            ratio = size / max(1, len(batch.payload))
            guessed = int(_SPARE_FACTOR * ratio * packed) + _SPARE_BYTES
            data = _resized(data[:size], max(size, min(max_bytes, guessed)))
    return (data[: ends[-1]] if ends else data), ends


def _resized(data: Bytes, room: int) -> Bytes:
    """Return a copy of `data` with `room` bytes; the further ones are undefined."""
    other = np.empty(room, dtype=np.uint8)
    other[: len(data)] = data
    return other


def _parse(
    data: Bytes, batches: Sequence[RecordBatch], starts: list[int], ends: list[int]
) -> Iterator[Records]:
    """Yield the records of decompressed batches, at most `PART_RECORDS` at once.

    The records of batch i are data[starts[i]:ends[i]], and the batches follow one another.
    """
    spans = zip(batches, starts, ends, strict=True)
    table = np.array(
        [batch.row(start, end) for batch, start, end in spans], dtype=np.int64
    )
    cursor = _start_cursor()
    left = sum(batch.record_count for batch in batches)
    while left:
        n = min(left, PART_RECORDS)
        records, is_whole = _next_records(data, table, cursor, n)
        left -= n
        if not is_whole:
            raise _malformed(batches[int(cursor[BATCH])])
        yield records


def _stream(batch: RecordBatch, longest: int, buffer_bytes: int) -> Iterator[Records]:
    """Yield the records of a batch of more than `buffer_bytes`, without holding it whole.

    Each round fills a buffer from the stream and yields the complete records in it; an incomplete
    last one moves to the beginning of the buffer. A record longer than the buffer is truncated.
    Each part is deleted before the next one is read, so that only one is in memory.
    """
    stream = Stream(batch.codec, batch.payload)
    cursor = _start_cursor()
    left = batch.record_count
    # The bytes beyond `buffer_bytes` are never filled. If a record's length is cut off,
    # `read_batches` reads on into them and returns the records before; without them it would raise
    # IndexError.
    data = np.empty(buffer_bytes + _VARINT_BYTES_MAX, dtype=np.uint8)
    filled = 0
    while left:
        filled += stream.read_into(data.data[filled:buffer_bytes])
        for records in _whole_records(data, filled, batch, cursor, left):
            left -= len(records)
            # No bytes may follow the last record.
            if not left and (cursor[POSITION] != filled or stream.has_more()):
                raise _malformed(batch)
            yield records
            del records
        if not left:
            break
        # The stream has ended inside a record.
        if filled < buffer_bytes:
            raise _malformed(batch)
        begin = int(cursor[POSITION])
        if begin:
            # Copy, because the caller's records are views of `data`.
            data = _resized(data[begin:filled], len(data))
            filled -= begin
        else:
            # This one record is longer than the buffer: read it again from its beginning.
            stream.unread(data.data[:filled])
            del data
            records = _truncated(stream, batch, longest, buffer_bytes, cursor)
            left -= 1
            if not left and stream.has_more():
                raise _malformed(batch)
            yield records
            del records
            data = np.empty(buffer_bytes + _VARINT_BYTES_MAX, dtype=np.uint8)
            filled = 0
        # The next record begins where the buffer does.
        cursor[POSITION] = 0


def _whole_records(
    data: Bytes, filled: int, batch: RecordBatch, cursor: Longs, left: int
) -> Iterator[Records]:
    """Yield the records that the first `filled` bytes have whole; `left` are still to be read."""
    table = np.array([batch.row(0, filled)], dtype=np.int64)
    are_whole = True
    while left and are_whole:
        records, _ = _next_records(data, table, cursor, min(left, PART_RECORDS))
        whole_count = int(cursor[ROWS])
        are_whole = whole_count == len(records)
        left -= whole_count
        if whole_count:
            yield records if are_whole else records.part(0, whole_count)
        del records


def _truncated(
    stream: Stream, batch: RecordBatch, longest: int, buffer_bytes: int, cursor: Longs
) -> Records:
    """Read a record of over `buffer_bytes`, with its value made just longer than `longest` bytes.

    So it is rejected as too large, and is never in memory whole. A longer value is cut. A shorter
    one, in a record with a long key or headers, is padded with zeros. A key or headers that a
    reject would not keep are dropped. The record is encoded again and parsed like all others, which
    checks it and moves `cursor` past it.
    """
    length = stream.read_varint()
    end = stream.position + length
    # A shorter one would have fit, together with the varint of its length.
    if not buffer_bytes - _VARINT_BYTES_MAX < length <= _RECORD_BYTES_MAX:
        raise _malformed(batch)
    attributes = stream.read(1)
    delta_ms = stream.read_varint()
    offset_delta = stream.read_varint()
    key_length = stream.read_varint()
    key = stream.read(key_length) if 0 <= key_length <= _KEY_BYTES else None
    stream.skip(0 if key is not None else key_length)
    value_length = stream.read_varint()
    # Over the limit, and all that a reject has room for.
    cut_length = max(longest, VALUE_BYTES) + 1
    value = stream.read(min(max(0, value_length), cut_length))
    stream.skip(value_length - len(value))
    rest = end - stream.position
    if rest < 1:
        raise _malformed(batch)
    # Headers that are too long are replaced by the number of headers, 0.
    headers = stream.read(rest) if rest <= _HEADERS_BYTES else b"\0"
    stream.skip(end - stream.position)
    body = b"".join(
        (
            attributes,
            _encoded_varint(delta_ms),
            _encoded_varint(offset_delta),
            _encoded_varint(-1 if key is None else len(key)),
            key or b"",
            _encoded_varint(cut_length),
            value.ljust(cut_length, b"\0"),
            headers,
        )
    )
    data = np.frombuffer(_encoded_varint(len(body)) + body, dtype=np.uint8)
    table = np.array([batch.row(0, len(data))], dtype=np.int64)
    cursor[POSITION] = 0
    records, is_whole = _next_records(data, table, cursor, 1)
    if not is_whole:
        raise _malformed(batch)
    return records


def _encoded_varint(number: int) -> bytes:
    """Encode a number as records hold them: a zigzag varint."""
    encoded = bytearray()
    encode_varint(number, encoded.append)
    return bytes(encoded)


def _start_cursor() -> Longs:
    """Return the cursor of `read_batches` before the first record: zeros, but for LAST_OFFSET."""
    cursor = np.zeros(5, dtype=np.int64)
    # Offsets must ascend from this one, and the first may be 0.
    cursor[LAST_OFFSET] = -1
    return cursor


def _next_records(
    data: Bytes, table: Longs, cursor: Longs, n: int
) -> tuple[Records, bool]:
    """Return the next `n` records, and whether all were there, none malformed.

    If not, only the first `cursor[ROWS]` of them are filled. `cursor` moves past these.
    """
    keys, values = np.empty((2, n, 2), dtype=np.int64)
    times, offsets = np.empty((2, n), dtype=np.int64)
    found = Records(
        readonly_contiguous(data), keys, values, times, offsets, framed=True
    )
    is_whole = False
    table = readonly_contiguous(table)
    # IndexError: the last record goes on beyond the data.
    with suppress(IndexError):
        is_whole = bool(
            read_batches(found.data, table, cursor, (keys, values, times, offsets))
        )
    return found, is_whole


def _malformed(batch: RecordBatch) -> CorruptRecordException:
    where = f"the record batch at offset {batch.base_offset}"
    return CorruptRecordException(f"{where} is malformed")


class ColumnRecords(PartitionRecords):  # type: ignore[misc]  # aiokafka is untyped
    """Fetched record batches, not decoded; aiokafka's own class would make record objects."""

    next_fetch_offset: int

    @classmethod
    def of(cls, records: PartitionRecords) -> ColumnRecords:
        """Convert aiokafka's records of a response from which nobody has read yet.

        Their iterator is dropped: it is part of a reference cycle, which would keep the bytes in
        memory.
        """
        if isinstance(records, cls):
            return records
        taken = cls(
            records._tp,
            records._records,
            records._aborted_transactions,
            records.next_fetch_offset,
            key_deserializer=None,
            value_deserializer=None,
            check_crcs=records._check_crcs,
            isolation_level=records._isolation_level,
        )
        records._records_iterator = taken._records_iterator = None
        return taken

    def has_more(self) -> bool:
        return bool(self._records.has_next())

    def take(self, start: int, max_records: int) -> FetchedRecords:
        """Take the next record batches, up to `max_records` in all, but at least one batch.

        They are decoded later, by the shard. `start` is the offset where the previous batch handed
        to it ended. Raise CorruptRecordException for a damaged one.
        """
        fetch_offset = self.next_fetch_offset
        record_count = 0
        batches: list[RecordBatch] = []
        while self._records.has_next():
            batch = self._records.next_batch()
            if record_count and record_count + batch.record_count > max_records:
                self._records.put_back(batch)
                break
            # Not the last record's offset: compaction may have removed later records.
            self.next_fetch_offset = max(self.next_fetch_offset, batch.next_offset)
            # Compaction keeps empty batches to preserve producer state. Batches that the shard does
            # not get are checked here.
            if self._hidden(batch) or batch.record_count == 0:
                if self._check_crcs and not batch.validate_crc():
                    raise CorruptRecordException(f"Invalid CRC - {self._tp}")
            elif batch.record_count < 0:
                raise _malformed(batch)
            # Otherwise all its records are before the position.
            elif batch.next_offset > fetch_offset:
                batches.append(batch)
                record_count += batch.record_count
        decode = partial(
            _decode,
            name_of(self._tp),
            batches,
            start,
            self.next_fetch_offset,
            fetch_offset,
            self._check_crcs,
        )
        return FetchedRecords(start, self.next_fetch_offset, record_count, decode)

    def _hidden(self, batch: RecordBatch) -> bool:
        """Return whether a batch is hidden from readers: for control, or of an aborted transaction.

        Ask once of every batch, in order: a control batch ends its producer's aborted transaction.
        """
        is_control = batch.is_control_batch
        # Batches in an old format have no producer.
        if self._isolation_level != READ_COMMITTED or batch.producer_id is None:
            return is_control
        # Note the aborted transactions that begin before this batch.
        self._consume_aborted_up_to(batch.base_offset)
        if is_control:
            if self._contains_abort_marker(batch):
                self._aborted_producers.discard(batch.producer_id)
            return True
        return batch.is_transactional and batch.producer_id in self._aborted_producers


def take_batch(result: FetchResult, start: int) -> FetchedRecords:
    """Take the next batches of a response, and move aiokafka's position past them.

    They count as beginning at offset `start`, where those before them ended.
    """
    records = ColumnRecords.of(result._partition_records)
    result._partition_records = records
    batch = records.take(start, PART_RECORDS)
    result._update_position()
    if not records.has_more():
        result._partition_records = None
    return batch


def adapt_consumers() -> None:
    """Make all aiokafka consumers of this process keep undecoded batches, and create no topic.

    Otherwise, where brokers allow it, asking about a deleted topic would create it again with
    default settings.
    """
    fetcher.MemoryRecords = RecordSet
    client.MetadataRequest = partial(MetadataRequest, allow_auto_topic_creation=False)
