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
from types import MappingProxyType
from typing import Any

import numpy as np
from aiokafka import codec
from aiokafka.consumer import fetcher
from aiokafka.consumer.fetcher import READ_COMMITTED, PartitionRecords
from aiokafka.errors import CorruptRecordException
from aiokafka.record.memory_records import MemoryRecords

from workers.kafka.records import FetchedRecords, Records
from workers.kernels.records import crc32c, crc_tables, read_records
from workers.mechanisms.frozen import read_only
from workers.mechanisms.texts import fixed

# Base offset, length, leader epoch, magic, crc, attributes, last offset delta, first and largest
# time, producer id and epoch, first sequence number, number of records.
_HEADER = struct.Struct(">qiibIhiqqqhii")
_LOG_OVERHEAD = 12  # base offset and length, which the length does not count
_MAGIC_AT, _CRC_FROM = 16, 21
_CODEC, _APPEND_TIME, _TRANSACTIONAL, _CONTROL = 7, 8, 16, 32
_TABLES = read_only(crc_tables())
_UNPACK: Mapping[int, Callable[[bytes], bytes]] = MappingProxyType(
    {1: codec.gzip_decode, 2: codec.snappy_decode, 3: codec.lz4_decode, 4: codec.zstd_decode}
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
        data = memoryview(self._data)[start : self._at]
        if data[_MAGIC_AT] >= 2 and len(data) < _HEADER.size:
            raise CorruptRecordException(f"a record batch of {len(data)} bytes")
        return RecordBatch(data)

    def _length(self) -> int:
        return int.from_bytes(self._data[self._at + 8 : self._at + _LOG_OVERHEAD], signed=True)


class RecordBatch:
    """One record batch: its header, and its bytes.

    Attributes:
        base_offset, next_offset: of its first record, and behind its last.
        number: of records.
        last_ms: the latest of their times.
        producer_id: None in formats that have none.
        is_control_batch, is_transactional: what its records are.
    """

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._legacy = data[_MAGIC_AT] < 2
        if self._legacy:
            records = list(MemoryRecords(bytes(data)).next_batch())
            self._records = records
            self.base_offset, self.next_offset = records[0].offset, records[-1].offset + 1
            self.number, self.last_ms = len(records), max(record.timestamp or 0 for record in records)
            self.producer_id, self.is_control_batch, self.is_transactional = None, False, False
            return
        (
            self.base_offset, _, _, _, self._crc, self._attributes, last, self._first_ms, self.last_ms,
            self.producer_id, _, _, self.number,
        ) = _HEADER.unpack_from(data)  # fmt: skip
        self.next_offset = self.base_offset + last + 1
        self.is_control_batch = bool(self._attributes & _CONTROL)
        self.is_transactional = bool(self._attributes & _TRANSACTIONAL)

    def __iter__(self) -> Any:
        """Return aiokafka's own reader, for other consumers in this process."""
        return iter(MemoryRecords(bytes(self._data)).next_batch())

    def __next__(self) -> Any:
        """Return the first record, for aiokafka to look at a control record."""
        return next(iter(self))

    def validate_crc(self) -> bool:
        """Tell whether the bytes match their CRC."""
        if self._legacy:
            return bool(MemoryRecords(bytes(self._data)).next_batch().validate_crc())
        return bool(self._crc == crc32c(np.frombuffer(self._data[_CRC_FROM:], dtype=np.uint8), _TABLES))

    def payload(self) -> bytes | memoryview:
        """Return the records' bytes, decompressed."""
        data = self._data[_HEADER.size :]
        kind = self._attributes & _CODEC
        return _UNPACK[kind](data.tobytes()) if kind else data

    def read(self, data: np.ndarray[Any, Any], start: int, stop: int, rows: slice, into: Records) -> None:
        """Write where the records lie, which are data[start:stop], to some rows of `into`."""
        append_ms = self.last_ms if self._attributes & _APPEND_TIME else -1
        places = (into.keys[rows], into.values[rows], into.times[rows], into.offsets[rows])
        try:
            good = read_records(data, start, stop, self.base_offset, self._first_ms, append_ms, *places)
        except IndexError:
            good = False
        if not good:
            raise CorruptRecordException(f"the record batch at offset {self.base_offset} holds no records")

    @property
    def legacy(self) -> Records | None:
        """The records of an old format; None for a batch of today's."""
        if not self._legacy:
            return None
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
        parts: list[Records] = []
        plain: list[RecordBatch] = []
        for batch in self.batches:
            if self.check_crcs and not batch.validate_crc():
                raise CorruptRecordException(f"Invalid CRC - {self.name}")
            if (old := batch.legacy) is not None:
                parts += [*([_read(plain)] if plain else []), old]
                plain = []
            else:
                plain.append(batch)
        if plain:
            parts.append(_read(plain))
        records = parts[0] if len(parts) == 1 else _joined(parts)
        # A seek may lead into a record batch, which the broker sends whole.
        return records.part(int(np.searchsorted(records.offsets, self.first)), len(records))


def _read(batches: list[RecordBatch]) -> Records:
    """Return the records of batches of today's format."""
    payloads = [batch.payload() for batch in batches]
    data = fixed(np.frombuffer(payloads[0] if len(payloads) == 1 else b"".join(payloads), dtype=np.uint8))
    n = sum(batch.number for batch in batches)
    into = Records(
        data,
        np.empty((n, 2), dtype=np.int64),
        np.empty((n, 2), dtype=np.int64),
        np.empty(n, dtype=np.int64),
        np.empty(n, dtype=np.int64),
        framed=True,
    )
    start = row = 0
    for batch, payload in zip(batches, payloads, strict=True):
        stop = start + len(payload)
        batch.read(data, start, stop, slice(row, row + batch.number), into)
        start, row = stop, row + batch.number
    return into


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
