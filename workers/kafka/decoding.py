"""Fetched record batches: the fetch reads headers, the shard's thread decodes records.

aiokafka would create an eleven-field object per record, in the consumer's thread, under the GIL.
Here its fetcher keeps raw bytes (`RecordSet`), `ColumnRecords` reads the 61-byte batch headers, and
the shard checks the CRC, decompresses, and finds records in a compiled loop. As in aiokafka,
aborted transactions and control batches are skipped, and positions move past them. Messages in a
format from before Kafka 0.11 are refused.

Only the producer bounds the decompressed size of a fetch, so the shard decodes it in parts of at
most `PART_RECORDS` records and `PART_BYTES` bytes (or the longest value plus 1 MiB, if more). It
decompresses a longer record batch as a stream and truncates a longer record, which is then rejected
as too large. At most two such buffers exist at a time.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from aiokafka.consumer import fetcher
from aiokafka.consumer.fetcher import READ_COMMITTED, FetchResult, PartitionRecords
from aiokafka.errors import CorruptRecordException
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import calc_crc32c, encode_varint

from workers.arrays.texts import readonly_contiguous
from workers.arrays.types import Bytes, Longs
from workers.kafka.decompression import Stream, decompress_into
from workers.kafka.records import (
    AT,
    BATCH,
    LAST_OFFSET,
    ROWS,
    Batch,
    FetchedRecords,
    Records,
    read_batches,
)
from workers.runtime.errors import SettingsError
from workers.runtime.sizes import MESSAGE_BYTES, VALUE_BYTES

# Base offset, length, leader epoch, magic, CRC, attributes, last offset delta, first and largest
# timestamp, producer id and epoch, first sequence number, number of records.
_HEADER = struct.Struct(">qiibIhiqqqhii")
_LOG_OVERHEAD = 12  # base offset and length, which the length excludes
_MAGIC_AT = 16
_CRC_FROM = 21
_CODEC = 7
_APPEND_TIME = 8
_TRANSACTIONAL = 16
_CONTROL = 32

#: Each part, however small, waits for the GIL about sixty times: 0.2 ms on two busy cores.
PART_RECORDS = 60_000
PART_BYTES = 32 << 20
_BESIDE_BYTES = 1 << 20
# Headroom (factor, bytes) over the size that the first batch's compression ratio predicts, and the
# ratio assumed for the first batch itself.
_SPARE = 1.25
_SPARE_BYTES = 1 << 12
_FIRST = 8
# A truncated record drops a key or headers longer than this, as a reject does.
_KEY_BYTES = VALUE_BYTES // 10
_HEADERS_BYTES = 1 << 16
# Longest record, and longest varint in one.
_RECORD_BYTES_MAX = (1 << 31) - 1
_LENGTH_BYTES = 10


class RecordSet:
    """Undecoded record batches of one response; replaces aiokafka's `MemoryRecords`."""

    def __init__(self, data: bytes) -> None:
        self._data = bytes(data)
        self._at = 0

    def size_in_bytes(self) -> int:
        return len(self._data)

    def has_next(self) -> bool:
        """Return whether another whole record batch follows; the last is often truncated."""
        left = len(self._data) - self._at
        return left > _MAGIC_AT and left >= _LOG_OVERHEAD + self._length()

    def next_batch(self) -> RecordBatch:
        """Return the next batch; raise CorruptRecordException if it is too short for its header."""
        start = self._at
        self._at += _LOG_OVERHEAD + self._length()
        size = self._at - start
        # Older batches have another header.
        if self._data[start + _MAGIC_AT] >= 2 and size < _HEADER.size:
            raise CorruptRecordException(f"a record batch of {size} bytes")
        return RecordBatch(self._data, start, self._at)

    def put_back(self, batch: RecordBatch) -> None:
        self._at = batch.start

    def _length(self) -> int:
        return int.from_bytes(
            self._data[self._at + 8 : self._at + _LOG_OVERHEAD], signed=True
        )


class RecordBatch:
    """One record batch and its header; only the base offset of a message in an old format."""

    number = 1
    producer_id: int | None = None
    is_control_batch = is_transactional = False

    def __init__(self, response: bytes, start: int, stop: int) -> None:
        self.response = response
        self.start = start
        self.stop = stop
        self.is_old = response[start + _MAGIC_AT] < 2
        if self.is_old:
            self.base_offset = int.from_bytes(response[start : start + 8], signed=True)
            self.next_offset = self.base_offset + 1
            return
        header = _HEADER.unpack_from(response, start)
        self.base_offset, _, _, _, self.crc, self._attributes, last = header[:7]
        self._first_ms, self._last_ms, self.producer_id, _, _, self.number = header[7:]
        self.next_offset = self.base_offset + last + 1
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
        """Return the `batches` row of `read_batches` for records in start..stop."""
        append_ms = self._last_ms if self._attributes & _APPEND_TIME else -1
        return start, stop, self.base_offset, self._first_ms, append_ms, self.number


def _decode(
    name: str,
    batches: list[RecordBatch],
    start: int,
    end: int,
    first: int,
    check_crcs: bool,
    longest: int = MESSAGE_BYTES,
) -> Iterator[Batch]:
    """Yield the records in parts that together cover the offsets from `start` to `end`.

    Records before `first` are left out: the broker sends a record batch whole, even if the fetch
    began inside it. `name` is the partition's, for messages; `longest` is the longest value to
    read, in bytes.
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
        left = sum(batch.number for batch in batches)
        for records in _read(batches, longest):
            left -= len(records)
            # Leave out those before `first`.
            records = records.part(
                int(np.searchsorted(records.offsets, first)), len(records)
            )
            if left == 0:
                yield Batch(start, end, records)
            elif len(records):
                part = Batch(start, int(records.offsets[-1]) + 1, records)
                yield part
                start = part.end
                del part
            del records
    except CorruptRecordException as error:
        text = f"{name} from offset {start}: {error.args[0]}"
        raise CorruptRecordException(text) from error


def _read(batches: list[RecordBatch], longest: int) -> Iterator[Records]:
    """Yield the records of the batches in parts, decompressed in bounded memory."""
    if not any(batch.codec for batch in batches):
        begin = batches[0].start
        data = np.frombuffer(batches[0].response, dtype=np.uint8)[
            begin : batches[-1].stop
        ]
        starts = [batch.start + _HEADER.size - begin for batch in batches]
        yield from _parse(
            data, batches, starts, [batch.stop - begin for batch in batches]
        )
        return
    most = max(PART_BYTES, longest + _BESIDE_BYTES)
    while batches:
        data, ends = _decompressed(batches, most)
        if ends:
            yield from _parse(data, batches[: len(ends)], [0, *ends[:-1]], ends)
        else:
            del data
            yield from _stream(batches[0], longest, most)
        batches = batches[max(1, len(ends)) :]


def _decompressed(batches: list[RecordBatch], most: int) -> tuple[Bytes, list[int]]:
    """Decompress as many of the first batches as fit in `most` bytes.

    Return the bytes, uint8, and where each batch ends in them; no ends if even the first is longer
    (or damaged). The guessed buffer grows: joining batches afterwards would take longer and hold
    the GIL.
    """
    data = np.empty(
        min(most, _FIRST * len(batches[0].payload) + _SPARE_BYTES), dtype=np.uint8
    )
    ends: list[int] = []
    for batch in batches:
        at = ends[-1] if ends else 0
        size = decompress_into(batch.codec, batch.payload, data.data[at:])
        while size is None and len(data) < most:
            data = _resized(data[:at], min(most, 2 * len(data)))
            size = decompress_into(batch.codec, batch.payload, data.data[at:])
        if size is None:
            break
        ends.append(at + size)
        if len(ends) == 1 and len(batches) > 1:
            others = sum(len(other.payload) for other in batches[1:])
            guessed = (
                int(_SPARE * size * (1 + others / max(1, len(batch.payload))))
                + _SPARE_BYTES
            )
            data = _resized(data[:size], max(size, min(most, guessed)))
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

    Batch i is data[starts[i]:ends[i]], and the batches follow one another.
    """
    spans = zip(batches, starts, ends, strict=True)
    rows = np.array([batch.row(*at) for batch, *at in spans], dtype=np.int64)
    cursor = _start_cursor()
    left = sum(batch.number for batch in batches)
    while left:
        n = min(left, PART_RECORDS)
        records, whole = _next_records(data, rows, cursor, n)
        left -= n
        if not whole or (left == 0 and cursor[BATCH] < len(batches)):
            raise _malformed(batches[min(int(cursor[BATCH]), len(batches) - 1)])
        yield records


def _stream(batch: RecordBatch, longest: int, most: int) -> Iterator[Records]:
    """Yield the records of a batch of more than `most` bytes, without holding it whole.

    A buffer of that size is filled from the stream, and what is left of a record at its end moves
    to its beginning.
    """
    stream = Stream(batch.codec, batch.payload)
    cursor = _start_cursor()
    left = batch.number
    data = np.empty(most + _LENGTH_BYTES, dtype=np.uint8)
    filled = 0
    while left:
        filled += stream.read_into(data.data[filled:most])
        for records in _whole_records(data, filled, batch, cursor, left):
            left -= len(records)
            if not left and (cursor[AT] != filled or stream.has_more()):
                raise _malformed(batch)
            yield records
            del records
        if not left:
            break
        # The stream has ended inside a record.
        if filled < most:
            raise _malformed(batch)
        begin = int(cursor[AT])
        if begin:
            data = _resized(data[begin:filled], len(data))
            filled -= begin
        else:
            # One record is longer than the buffer: read it again from its beginning.
            stream.unread(data.data[:filled])
            del data
            records = _truncated(stream, batch, longest, most, cursor)
            left -= 1
            if not left and stream.has_more():
                raise _malformed(batch)
            yield records
            del records
            data = np.empty(most + _LENGTH_BYTES, dtype=np.uint8)
            filled = 0
        cursor[AT] = 0


def _whole_records(
    data: Bytes, filled: int, batch: RecordBatch, cursor: Longs, left: int
) -> Iterator[Records]:
    """Yield the records that the first `filled` bytes have whole; `left` are still to be read."""
    rows = np.array([batch.row(0, filled)], dtype=np.int64)
    are_whole = True
    while left and are_whole:
        records, _ = _next_records(data, rows, cursor, min(left, PART_RECORDS))
        number = int(cursor[ROWS])
        are_whole = number == len(records)
        left -= number
        if number:
            yield records if are_whole else records.part(0, number)
        del records


def _truncated(
    stream: Stream, batch: RecordBatch, longest: int, most: int, cursor: Longs
) -> Records:
    """Return a record of over `most` bytes, its value cut (or padded) to just over the limit.

    So it is rejected as too large, as any longer value is, and is never in memory whole.
    """
    length = stream.read_varint()
    end = stream.at + length
    if not most - _LENGTH_BYTES < length <= _RECORD_BYTES_MAX:
        raise _malformed(batch)
    attributes = stream.read(1)
    delta_ms = stream.read_varint()
    delta = stream.read_varint()
    key_length = stream.read_varint()
    key = stream.read(key_length) if 0 <= key_length <= _KEY_BYTES else None
    stream.skip(0 if key is not None else key_length)
    value_length = stream.read_varint()
    kept = max(longest, VALUE_BYTES) + 1
    value = stream.read(min(max(0, value_length), kept))
    stream.skip(value_length - len(value))
    rest = end - stream.at
    if rest < 1:
        raise _malformed(batch)
    headers = stream.read(rest) if rest <= _HEADERS_BYTES else b"\0"
    stream.skip(end - stream.at)
    key_field = _varint(-1) if key is None else _varint(len(key)) + key
    fields = attributes, _varint(delta_ms), _varint(delta), key_field, _varint(kept)
    body = b"".join((*fields, value.ljust(kept, b"\0"), headers))
    data = np.frombuffer(_varint(len(body)) + body, dtype=np.uint8)
    row = np.array([batch.row(0, len(data))], dtype=np.int64)
    cursor[AT] = 0
    records, whole = _next_records(data, row, cursor, 1)
    if not whole:
        raise _malformed(batch)
    return records


def _varint(number: int) -> bytes:
    """Encode a number as records hold them: a zigzag varint."""
    found = bytearray()
    encode_varint(number, found.append)
    return bytes(found)


def _start_cursor() -> Longs:
    """Return the cursor of `read_batches` before the first record."""
    cursor = np.zeros(5, dtype=np.int64)
    cursor[LAST_OFFSET] = -1
    return cursor


def _next_records(
    data: Bytes, rows: Longs, cursor: Longs, n: int
) -> tuple[Records, bool]:
    """Return the next `n` records, and whether `read_batches` found all that it was to find.

    If it did not, only the first `cursor[ROWS]` rows are filled. `cursor` moves on.
    """
    keys, values = np.empty((2, n, 2), dtype=np.int64)
    times, offsets = np.empty((2, n), dtype=np.int64)
    found = Records(
        readonly_contiguous(data), keys, values, times, offsets, framed=True
    )
    whole = False
    rows = readonly_contiguous(rows)
    # IndexError: the last record goes on beyond the data.
    with suppress(IndexError):
        whole = bool(
            read_batches(found.data, rows, cursor, (keys, values, times, offsets))
        )
    return found, whole


def _malformed(batch: RecordBatch) -> CorruptRecordException:
    where = f"the record batch at offset {batch.base_offset}"
    return CorruptRecordException(f"{where} is malformed")


class ColumnRecords(PartitionRecords):  # type: ignore[misc]  # aiokafka is untyped
    """Fetched record batches, not decoded; aiokafka's own class would make record objects."""

    next_fetch_offset: int

    @classmethod
    def of(cls, records: PartitionRecords) -> ColumnRecords:
        """Convert aiokafka's records of a response that nobody has read from.

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
            None,
            None,
            records._check_crcs,
            records._isolation_level,
        )
        records._records_iterator = taken._records_iterator = None
        return taken

    def has_more(self) -> bool:
        return bool(self._records.has_next())

    def take(self, start: int, most: int) -> FetchedRecords:
        """Take the next record batches, at least one, with up to `most` records in all.

        They are decoded later, by the shard. `start` is where the previous batch handed to it
        ended. Raise CorruptRecordException for a damaged one.
        """
        first = self.next_fetch_offset
        number = 0
        batches: list[RecordBatch] = []
        while self._records.has_next():
            batch = self._records.next_batch()
            if number and number + batch.number > most:
                self._records.put_back(batch)
                break
            # Not the last record's offset: compaction may have removed later records.
            self.next_fetch_offset = max(self.next_fetch_offset, batch.next_offset)
            # Compaction keeps empty batches, to preserve producer state.
            if self._hidden(batch) or batch.number == 0:
                if self._check_crcs and not batch.validate_crc():
                    raise CorruptRecordException(f"Invalid CRC - {self._tp}")
            elif batch.number < 0:
                raise _malformed(batch)
            elif batch.next_offset > first:
                batches.append(batch)
                number += batch.number
        name = f"{self._tp.topic}[{self._tp.partition}]"
        end = self.next_fetch_offset
        decode = partial(_decode, name, batches, start, end, first, self._check_crcs)
        return FetchedRecords(start, end, number, decode)

    def _hidden(self, batch: RecordBatch) -> bool:
        """Return whether a batch is hidden from readers: for control, or of an aborted transaction.

        Ask of every batch in order: control batches tell whose transactions were aborted.
        """
        control = batch.is_control_batch
        if self._isolation_level != READ_COMMITTED or batch.producer_id is None:
            return control
        self._consume_aborted_up_to(batch.base_offset)
        if control:
            if self._contains_abort_marker(batch):
                self._aborted_producers.discard(batch.producer_id)
            return True
        return batch.is_transactional and batch.producer_id in self._aborted_producers


def take_batch(result: FetchResult, start: int) -> FetchedRecords:
    """Take the next part of a response, which begins at `start`, and move aiokafka's position."""
    records = ColumnRecords.of(result._partition_records)
    result._partition_records = records
    batch = records.take(start, PART_RECORDS)
    result._update_position()
    if not records.has_more():
        result._partition_records = None
    return batch


def keep_raw_batches() -> None:
    """Make all aiokafka consumers of this process keep undecoded batches (`RecordSet`)."""
    fetcher.MemoryRecords = RecordSet
