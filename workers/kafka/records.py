"""Records of a partition as columns, and messages of a transaction.

A compiled parser finds keys and values in record batches as Kafka sends them (message format 2):

    batch     61 bytes of header, then records end to end, compressed together
    record    length, attributes, time delta, offset delta, key length, key, value length, value,
              number of headers, headers; lengths and deltas are zigzag varints, -1 is null

Source: Kafka's protocol guide, "Record Batch". The tests compare with aiokafka's reader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from workers.arrays.compiled import checked_kernel, checked_part
from workers.arrays.types import Bytes, Longs

# Columns of the batches of `read_batches`.
START, STOP, BASE_OFFSET, BASE_MS, APPEND_MS, NUMBER = range(6)
# Elements of the cursor of `read_batches`, which it keeps between calls.
BATCH, FOUND, AT, LAST_OFFSET, ROWS = range(5)
# A varint of 64 bits has at most ten bytes.
_VARINT_BITS = 70

#: Keys and values, int64 (n, 2): start and stop in the data, start -1 for null; times, ms since
#: 1970, and offsets, int64 (n,).
Columns = tuple[Longs, Longs, Longs, Longs]


@checked_part
def varint(data: Bytes, at: int) -> tuple[Any, int]:
    """Return the zigzag varint at a place and the place after it; -1 if over 64 bits."""
    bits = np.uint64(0)
    for shift in range(0, _VARINT_BITS, 7):
        byte = np.uint64(data[at])
        at += 1
        bits |= (byte & np.uint64(127)) << np.uint64(shift)
        if byte < np.uint64(128):
            half = np.int64(bits >> np.uint64(1))
            return (~half if bits & np.uint64(1) else half), at
    return 0, -1


@checked_part
def _past_headers(data: Bytes, position: int, end: int) -> int:
    """Return the place after a record's headers; -1 if they are malformed."""
    number, position = varint(data, position)
    if position < 0 or number < 0:
        return -1
    for _ in range(number):
        for part in range(2):
            length, position = varint(data, position)
            if (
                position < 0
                or position > end
                or length > end - position
                or (part == 0 and length < 0)
            ):
                return -1
            position += max(length, 0)
    return position


@checked_part
def _read_records(
    data: Bytes,
    batch: Longs,
    position: int,
    last: int,
    first: int,
    end_row: int,
    columns: Columns,
) -> tuple[int, int]:
    """Fill rows first..end_row - 1 from the records at `position` of a row of `batches`.

    `last` is the offset of the record before. Return `end_row` and the place behind the records, or
    row and place of the first bad one.
    """
    keys, values, times, offsets = columns
    stop = batch[STOP]
    base_offset = batch[BASE_OFFSET]
    base_ms = batch[BASE_MS]
    append_ms = batch[APPEND_MS]
    for i in range(first, end_row):
        start = position
        length, position = varint(data, position)
        end = position + length
        if position < 0 or position > stop or length < 1 or end > stop:
            return i, start
        delta_ms, position = varint(data, position + 1)
        if position < 0:
            return i, start
        delta, position = varint(data, position)
        offset = base_offset + delta
        if position < 0 or offset <= last:
            return i, start
        last = offset
        times[i] = append_ms if append_ms >= 0 else base_ms + delta_ms
        offsets[i] = offset
        for span in (keys, values):
            length, position = varint(data, position)
            if position < 0 or length > end - position:
                return i, start
            if length < 0:
                span[i, 0] = span[i, 1] = -1
            else:
                span[i, 0] = position
                position += length
                span[i, 1] = position
        if position >= end:
            return i, start
        position = _past_headers(data, position, end)
        if position != end:
            return i, start
    return end_row, position


@checked_kernel
def read_batches(data: Bytes, batches: Longs, cursor: Longs, columns: Columns) -> bool:
    """Parse the next n records of some batches; return whether all were found.

    `data`, uint8: the batches' uncompressed records, and nothing else. `batches`, int64 (m, 6):
    columns START to NUMBER; APPEND_MS is -1 except under LogAppendTime. `cursor`, int64 (5,), which
    is updated: BATCH, its records FOUND so far, place AT of the next one, LAST_OFFSET, and ROWS
    written by this call. `columns`: n rows, written; offsets must ascend. Raise IndexError, with no
    rows reported, if a record extends beyond the data.
    """
    offsets = columns[3]
    cursor[ROWS] = row = 0
    number = cursor[BATCH]
    parsed = cursor[FOUND]
    position = cursor[AT]
    last = cursor[LAST_OFFSET]
    blocked = False
    while number < len(batches) and row < len(offsets) and not blocked:
        batch = batches[number]
        if parsed == 0:
            position = batch[START]
        end_row = min(row + batch[NUMBER] - parsed, len(offsets))
        stopped, position = _read_records(
            data, batch, position, last, row, end_row, columns
        )
        parsed += stopped - row
        if stopped > row:
            last = offsets[stopped - 1]
        row = stopped
        # By a bad record, or by bytes behind the last one.
        is_whole = parsed == batch[NUMBER]
        blocked = row < end_row or (is_whole and position != batch[STOP])
        if is_whole and not blocked:
            number += 1
            parsed = 0
    cursor[BATCH] = number
    cursor[FOUND] = parsed
    cursor[AT] = position
    cursor[LAST_OFFSET] = last
    cursor[ROWS] = row
    return bool(row == len(offsets) and not blocked)


Headers = Sequence[tuple[str, bytes | None]]


class Outgoing(NamedTuple):
    """One message of a transaction; partition None leaves it to librdkafka's partitioner."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int | None = None

    @property
    def nbytes(self) -> int:
        named = sum(
            len(name.encode()) + len(value or b"") for name, value in self.headers
        )
        return len(self.key or b"") + len(self.value or b"") + named


class Forwarded(Protocol):
    """Records to forward, tens of thousands per transaction, built one by one as it sends them."""

    @property
    def topic(self) -> str: ...

    def messages(self) -> Iterator[tuple[bytes, bytes, int, int, Headers | None]]:
        """Yield value, key, partition, time in ms and headers of each record, in order."""


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Records of one partition, as spans of one buffer. Sensitive: the repr shows only a count.

    Fields are as in `Columns`; `offsets` ascend. If `framed`, headers follow each value in `data`.
    """

    data: NDArray[np.uint8]
    keys: Longs
    values: Longs
    times: Longs
    offsets: Longs
    framed: bool = False

    @classmethod
    def of(
        cls,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        times: Sequence[int] | None = None,
        offsets: Sequence[int] | None = None,
    ) -> Records:
        """Build records; defaults: null keys, times 0 (ms), offsets from 0 on."""
        n = len(values)
        texts = [*values, *([None] * n if keys is None else keys)]
        lengths = np.array([len(text or b"") for text in texts], dtype=np.int64)
        ends = np.cumsum(lengths)
        places = np.stack((ends - lengths, ends), axis=1)
        places[[i for i, text in enumerate(texts) if text is None]] = -1
        return cls(
            np.frombuffer(b"".join(filter(None, texts)), dtype=np.uint8),
            places[n:],
            places[:n],
            np.zeros(n, dtype=np.int64)
            if times is None
            else np.array(times, dtype=np.int64),
            np.arange(n) if offsets is None else np.array(offsets, dtype=np.int64),
        )

    def __len__(self) -> int:
        return len(self.offsets)

    def __repr__(self) -> str:
        return f"Records({len(self)})"

    def key(self, i: int) -> bytes | None:
        return self._text(self.keys[i])

    def value(self, i: int) -> bytes | None:
        return self._text(self.values[i])

    def _text(self, place: Longs) -> bytes | None:
        start, stop = place.tolist()
        return None if start < 0 else self.data[start:stop].tobytes()

    def headers(self, i: int, most: int) -> list[tuple[str, bytes | None]] | None:
        """Return a record's headers; None if they have over `most` bytes.

        Empty if the value is null, or if the buffer has values alone (`framed`).
        """
        value_stop = int(self.values[i, 1])
        if not self.framed or value_stop < 0:
            return []
        return headers_at(self.data, value_stop, most)

    def part(self, start: int, stop: int) -> Records:
        rows = slice(start, stop)
        return Records(
            self.data,
            self.keys[rows],
            self.values[rows],
            self.times[rows],
            self.offsets[rows],
            self.framed,
        )


def headers_at(
    data: Bytes | bytes, position: int, most: int
) -> list[tuple[str, bytes | None]] | None:
    """Return the headers from `position` on that have UTF-8 names; None if over `most` bytes."""
    number, position = _varint(data, position)
    end = position + most
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(number):
        if position >= end:
            return None
        length, position = _varint(data, position)
        name = bytes(data[position : position + length])
        position = position + length
        length, position = _varint(data, position)
        value = None if length < 0 else bytes(data[position : position + length])
        position += max(length, 0)
        with suppress(UnicodeDecodeError):
            headers.append((name.decode(), value))
    return headers if position <= end else None


def _varint(data: Bytes | bytes, at: int) -> tuple[int, int]:
    """The same as `varint`, without numba."""
    bits = shift = 0
    while True:
        byte = int(data[at])
        at += 1
        bits |= (byte & 127) << shift
        if byte < 128:
            return (bits >> 1) ^ -(bits & 1), at
        shift += 7


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Records of a partition; `end`, where the next batch starts, may lie past the last record."""

    start: int
    end: int
    records: Records

    def __repr__(self) -> str:
        return f"Batch({self.start}..{self.end}, {len(self)} records)"

    def __len__(self) -> int:
        return len(self.records)

    def split(self, position: int) -> tuple[Batch, Batch]:
        """Split at `position`; one part is empty if it is outside the batch."""
        position = min(max(position, self.start), self.end)
        at = int(np.searchsorted(self.records.offsets, position))
        first = Batch(self.start, position, self.records.part(0, at))
        return first, Batch(position, self.end, self.records.part(at, len(self)))


@dataclass(frozen=True, slots=True, eq=False)
class FetchedRecords:
    """Undecoded record batches of one partition; `number` is their approximate record count.

    `parts`, called in the shard's thread with the longest value to read, yields decoded batches; it
    truncates a far longer value, but not to within that limit. It raises CorruptRecordException.
    """

    start: int
    end: int
    number: int
    parts: Callable[..., Iterator[Batch]] = field(repr=False)
    shard: object | None = field(default=None, repr=False)
