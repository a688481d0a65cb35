"""Fetched record batches: their headers are read where they are fetched, their records in the
shard's thread.

aiokafka would make an object of eleven fields for each record, in the consumer's thread, under the
GIL. Here its fetcher keeps the bytes of a response as they came (`RecordSet`), `ColumnRecords`
reads 61 bytes of header a record batch, and the shard checks the CRC, decompresses, and finds the
records in compiled loops. The rules of what may be seen are aiokafka's own: aborted transactions
and control batches are skipped, positions move past what was skipped. Batches of message formats 0
and 1 (brokers before 0.11, topics that were never rewritten) go through aiokafka's own decoder.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import Any

import cramjam
import numpy as np
from aiokafka import codec
from aiokafka.consumer import fetcher
from aiokafka.consumer.fetcher import READ_COMMITTED, PartitionRecords
from aiokafka.errors import CorruptRecordException
from aiokafka.record.memory_records import MemoryRecords
from numpy.typing import NDArray

from workers.kafka.records import FetchedRecords, Records
from workers.kernels.records import crc_tables, first_damaged, read_batches
from workers.mechanisms.frozen import read_only
from workers.mechanisms.texts import fixed

# Base offset, length, leader epoch, magic, crc, attributes, last offset delta, first and largest
# time, producer id and epoch, first sequence number, number of records.
_HEADER = struct.Struct(">qiibIhiqqqhii")
_LOG_OVERHEAD = 12  # base offset and length, which the length does not count
_MAGIC_AT, _CRC_FROM = 16, 21
_CODEC, _APPEND_TIME, _TRANSACTIONAL, _CONTROL = 7, 8, 16, 32
_TABLES = read_only(crc_tables())
_LZ4 = 3
# How much more room the records of several batches get than they would need if all were compressed
# as the first is, and at most: a batch may shrink to a ten-thousandth, and the others not at all.
# Where it is too little they are copied once more.
_SPARE, _SPARE_BYTES, _GUESSED_MOST = 1.25, 1 << 12, 64 << 20
_UNPACK: Mapping[int, Callable[[bytes], bytes]] = MappingProxyType(
    {1: codec.gzip_decode, 2: codec.snappy_decode, _LZ4: codec.lz4_decode, 4: codec.zstd_decode}
)


class RecordSet:
    """The record batches of one response, undecoded; in the place of aiokafka's `MemoryRecords`."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = bytes(data), 0

    def size_in_bytes(self) -> int:
        """Return the bytes of all record batches."""
        return len(self._data)

    def has_next(self) -> bool:
        """Tell whether another whole record batch follows; the last one is often cut off."""
        left = len(self._data) - self._at
        return left > _MAGIC_AT and left >= _LOG_OVERHEAD + self._length()

    def next_batch(self) -> RecordBatch:
        """Return the next record batch."""
        start = self._at
        self._at += _LOG_OVERHEAD + self._length()
        size = self._at - start
        if self._data[start + _MAGIC_AT] >= 2 and size < _HEADER.size:
            raise CorruptRecordException(f"a record batch of {size} bytes")
        return RecordBatch(self._data, start, self._at)

    def _length(self) -> int:
        return int.from_bytes(self._data[self._at + 8 : self._at + _LOG_OVERHEAD], signed=True)


class RecordBatch:
    """One record batch: its header, and where its bytes are.

    Attributes:
        response, start, stop: the bytes of the response that it came in, and which of them it is.
        base_offset, next_offset: of its first record, and behind its last.
        number: of records.
        last_ms: the latest of their times.
        producer_id: None in formats that have none.
        is_control_batch, is_transactional: what its records are.
        is_legacy: whether it is of a message format before 2.
        is_compressed: whether its records are.
    """

    def __init__(self, response: bytes, start: int, stop: int) -> None:
        self.response, self.start, self.stop = response, start, stop
        self.is_legacy = response[start + _MAGIC_AT] < 2
        if self.is_legacy:
            records = list(self._stock())
            self._records = records
            self.base_offset, self.next_offset = records[0].offset, records[-1].offset + 1
            self.number, self.last_ms = len(records), max(record.timestamp or 0 for record in records)
            self.producer_id, self.is_control_batch, self.is_transactional = None, False, False
            return
        (
            self.base_offset, _, _, _, self._crc, self._attributes, last, self._first_ms, self.last_ms,
            self.producer_id, _, _, self.number,
        ) = _HEADER.unpack_from(response, start)  # fmt: skip
        self.next_offset = self.base_offset + last + 1
        self.is_control_batch = bool(self._attributes & _CONTROL)
        self.is_transactional = bool(self._attributes & _TRANSACTIONAL)
        self.is_compressed = bool(self._attributes & _CODEC)

    def __iter__(self) -> Any:
        """Return aiokafka's own reader, for other consumers in this process."""
        return iter(self._stock())

    def __next__(self) -> Any:
        """Return the first record, for aiokafka to look at a control record."""
        return next(iter(self))

    def validate_crc(self) -> bool:
        """Tell whether the bytes match their CRC."""
        return bool(self._stock().validate_crc())

    def _stock(self) -> Any:
        """Return aiokafka's own batch of these bytes."""
        return MemoryRecords(self.response[self.start : self.stop]).next_batch()

    @property
    def crc(self) -> tuple[int, int, int]:
        """Which bytes of the response the CRC is of, start and stop, and the CRC."""
        return self.start + _CRC_FROM, self.stop, self._crc

    @property
    def payload(self) -> memoryview:
        """The records' bytes as they came."""
        return memoryview(self.response)[self.start + _HEADER.size : self.stop]

    def decompressed(self) -> bytes | memoryview:
        """Return the records' bytes."""
        kind = self._attributes & _CODEC
        return _UNPACK[kind](self.payload.tobytes()) if kind else self.payload

    def decompress_into(self, room: memoryview) -> int:
        """Write the records' bytes to the beginning of `room`, and return how many there are; -1:
        `decompressed` has to do it, or to say why it cannot.
        """
        if self._attributes & _CODEC != _LZ4:
            return -1
        try:
            return int(cramjam.lz4.decompress_into(self.payload, room))
        except cramjam.DecompressionError:  # there is no room, or they are damaged
            return -1

    def row(self, start: int, stop: int) -> tuple[int, ...]:
        """Return what `kernels.records.read_batches` takes where the records lie from start to
        stop.
        """
        append_ms = self.last_ms if self._attributes & _APPEND_TIME else -1
        return start, stop, self.base_offset, self._first_ms, append_ms, self.number

    @property
    def legacy(self) -> Records:
        """The records of a batch of an old format."""
        found = self._records
        return Records.of(
            [r.value for r in found],
            [r.key for r in found],
            [-1 if r.timestamp is None else r.timestamp for r in found],
            [r.offset for r in found],
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Decode:
    """The records of some batches from a position on."""

    name: str
    batches: list[RecordBatch]
    first: int
    check_crcs: bool

    def __call__(self) -> Records:
        if self.check_crcs and not _undamaged(self.batches):
            raise CorruptRecordException(f"Invalid CRC - {self.name}")
        parts: list[Records] = []
        for is_legacy, group in groupby(self.batches, key=lambda batch: batch.is_legacy):
            batches = list(group)
            parts += [batch.legacy for batch in batches] if is_legacy else [_read(batches)]
        records = parts[0] if len(parts) == 1 else _joined(parts)
        # A seek may lead into a record batch, which the broker sends whole.
        return records.part(int(np.searchsorted(records.offsets, self.first)), len(records))


def _undamaged(batches: list[RecordBatch]) -> bool:
    """Tell whether the bytes of all batches, which came in one response, match their CRCs."""
    crcs = np.array([batch.crc for batch in batches if not batch.is_legacy], dtype=np.int64).reshape(-1, 3)
    if len(crcs):
        data = np.frombuffer(batches[0].response, dtype=np.uint8)
        if first_damaged(data, fixed(crcs[:, :2]), fixed(crcs[:, 2]), _TABLES) < len(crcs):
            return False
    return all(batch.validate_crc() for batch in batches if batch.is_legacy)


def _read(batches: list[RecordBatch]) -> Records:
    """Return the records of batches of today's format, which came in one response."""
    if any(batch.is_compressed for batch in batches):
        data, ends = _decompressed(batches)
        starts = [0, *ends[:-1]]
    else:
        begin = batches[0].start
        data = np.frombuffer(batches[0].response, dtype=np.uint8)[begin : batches[-1].stop]
        starts = [batch.start + _HEADER.size - begin for batch in batches]
        ends = [batch.stop - begin for batch in batches]
    rows = [batch.row(*place) for batch, *place in zip(batches, starts, ends, strict=True)]
    n = sum(batch.number for batch in batches)
    found = Records(
        fixed(data),
        np.empty((n, 2), dtype=np.int64),
        np.empty((n, 2), dtype=np.int64),
        np.empty(n, dtype=np.int64),
        np.empty(n, dtype=np.int64),
        framed=True,
    )
    places = found.keys, found.values, found.times, found.offsets
    try:
        bad = read_batches(found.data, fixed(np.array(rows, dtype=np.int64)), *places)
    except IndexError:
        bad = len(batches) - 1  # behind the others there are bytes
    if bad < len(batches):
        raise CorruptRecordException(f"the record batch at offset {batches[bad].base_offset} holds no records")
    return found


def _decompressed(batches: list[RecordBatch]) -> tuple[NDArray[np.uint8], list[int]]:
    """Return the records' bytes of batches end to end, and where each batch's end.

    A batch with several of them is decompressed where it belongs: to join them afterwards takes
    longer than to decompress them, and keeps the GIL.
    """
    first = np.frombuffer(batches[0].decompressed(), dtype=np.uint8)
    if len(batches) == 1:
        return first, [len(first)]
    data = np.empty(_room(len(first), [len(batch.payload) for batch in batches]), dtype=np.uint8)
    data[: len(first)] = first
    ends = [len(first)]
    for batch in batches[1:]:
        at = ends[-1]
        size = batch.decompress_into(data.data[at:])
        if size < 0:
            part = np.frombuffer(batch.decompressed(), dtype=np.uint8)
            size = len(part)
            if at + size > len(data):
                data = np.resize(data, 2 * (at + size))
            data[at : at + size] = part
        ends.append(at + size)
    return data[: ends[-1]], ends


def _room(first: int, packed: list[int]) -> int:
    """Return how many bytes the records of batches may have, of which the first has `first`; at
    least so many.
    """
    guessed = int(_SPARE * first * sum(packed) / max(1, packed[0]))
    return max(first, min(guessed, _GUESSED_MOST)) + _SPARE_BYTES


def _joined(parts: list[Records]) -> Records:
    """Return several records as one; none where there are none."""
    if not parts:
        return Records.of([])
    shifts = np.cumsum([0, *(len(part.data) for part in parts[:-1])]).tolist()
    keys, values = (
        np.concatenate(
            [
                np.where(places < 0, places, places + shift)
                for places, shift in zip((getattr(part, name) for part in parts), shifts, strict=True)
            ]
        )
        for name in ("keys", "values")
    )
    return Records(
        fixed(np.concatenate([part.data for part in parts])),
        keys,
        values,
        np.concatenate([part.times for part in parts]),
        np.concatenate([part.offsets for part in parts]),
        framed=all(part.framed for part in parts),
    )


class ColumnRecords(PartitionRecords):  # type: ignore[misc]  # aiokafka is untyped
    """A fetch response of one partition, taken record batch by record batch."""

    next_fetch_offset: int

    @classmethod
    def of(cls, records: PartitionRecords) -> ColumnRecords:
        """Take over a response that aiokafka has stored and nobody has begun to read.

        Its own iterator refers to it, in a circle, so that the bytes of every response would stay
        until the next collection of cycles: that is dropped.
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
        """Tell whether record batches are left."""
        return bool(self._records.has_next())

    def take(self, start: int, most: int) -> FetchedRecords:
        """Take whole record batches until there are at least `most` records or none are left.

        Args:
            start: position at which the batch begins: records that nobody may see may lie between
                it and the first.
            most: records.

        Raises:
            CorruptRecordException: a record batch that nobody may see does not match its CRC.
        """
        first, number, last_ms = self.next_fetch_offset, 0, -1
        batches: list[RecordBatch] = []
        while number < most and self._records.has_next():
            batch = self._records.next_batch()
            # Not the last record's offset: compaction may have removed records after it.
            self.next_fetch_offset = max(self.next_fetch_offset, batch.next_offset)
            if self._hidden(batch):
                if self._check_crcs and not batch.validate_crc():
                    raise CorruptRecordException(f"Invalid CRC - {self._tp}")
            elif batch.next_offset > first:
                batches.append(batch)
                number += batch.number
                last_ms = max(last_ms, batch.last_ms)
        decode = _Decode(str(self._tp), batches, first, self._check_crcs)
        return FetchedRecords(start, self.next_fetch_offset, number, last_ms, decode)

    def _hidden(self, batch: RecordBatch) -> bool:
        """Tell whether a record batch is a transaction marker or of an aborted transaction."""
        control = batch.is_control_batch
        if self._isolation_level != READ_COMMITTED or batch.producer_id is None:
            return control
        self._consume_aborted_up_to(batch.base_offset)
        if control:
            if self._contains_abort_marker(batch):
                self._aborted_producers.discard(batch.producer_id)
            return True
        return batch.is_transactional and batch.producer_id in self._aborted_producers


def keep_bytes() -> None:
    """Have aiokafka's fetchers keep responses as bytes, which `ColumnRecords` reads."""
    fetcher.MemoryRecords = RecordSet
