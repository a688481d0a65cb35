"""Records of a partition as columns, and messages of a transaction.

A compiled parser finds keys and values in record batches as Kafka sends them (message format 2):

    batch     61 bytes of header, then records end to end, compressed together
    record    length, attributes, time delta, offset delta, key length, key, value length, value,
              number of headers, headers; lengths and deltas are zigzag varints, -1 is null

A position is an index into these bytes. The parser's kernels are checked: where the data end before
a record does, they raise IndexError.

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
START, STOP, BASE_OFFSET, BASE_MS, APPEND_MS, RECORD_COUNT = range(6)
# Elements of the cursor of `read_batches`, which it keeps between calls.
BATCH, PARSED, POSITION, LAST_OFFSET, ROWS = range(5)
# A varint of 64 bits has at most ten bytes.
_VARINT_BITS = 70

#: Keys and values, int64 (n, 2): start and stop in the data, start -1 for null; times, ms since
#: 1970, and offsets, int64 (n,).
Columns = tuple[Longs, Longs, Longs, Longs]


@checked_part
def varint(data: Bytes, position: int) -> tuple[Any, int]:
    """Return the zigzag varint at `position`, an int64, and the position after it.

    That position is -1 if it has more than ten bytes. Of a tenth byte only the lowest bit counts,
    the 64th of the number. Raise IndexError if the data end before it does.
    """
    bits = np.uint64(0)
    for shift in range(0, _VARINT_BITS, 7):
        byte = np.uint64(data[position])
        position += 1
        bits |= (byte & np.uint64(127)) << np.uint64(shift)
        if byte < np.uint64(128):
            # Zigzag: 0, 1, 2, 3 stand for 0, -1, 1, -2.
            half = np.int64(bits >> np.uint64(1))
            return (~half if bits & np.uint64(1) else half), position
    return 0, -1


@checked_part
def _past_headers(data: Bytes, position: int, end: int) -> int:
    """Return the position after the headers at `position`; -1 if malformed or beyond `end`.

    Their number is at `position`; `end` is where their record ends.
    """
    number, position = varint(data, position)
    if position < 0 or number < 0:
        return -1
    for _ in range(number):
        # Name and value; a length below 0 is null, which only a value may be.
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
    last_offset: int,
    first_row: int,
    end_row: int,
    columns: Columns,
) -> tuple[int, int]:
    """Parse records from `position` on into the rows first_row..end_row - 1 of `columns`.

    `batch` is their row of `read_batches`; `last_offset` is the offset of the record before. Return
    `end_row` and the position after the last record, or row and position of the first bad one: it
    reaches beyond the batch, its parts do not end where it does, or its offset does not ascend.
    """
    keys, values, times, offsets = columns
    stop = batch[STOP]
    base_offset = batch[BASE_OFFSET]
    base_ms = batch[BASE_MS]
    append_ms = batch[APPEND_MS]
    for row in range(first_row, end_row):
        start = position
        length, position = varint(data, position)
        # A sum of position and length could wrap.
        if position < 0 or length < 1 or length > stop - position:
            return row, start
        end = position + length
        # Attributes, one byte, have no meaning yet.
        delta_ms, position = varint(data, position + 1)
        if position < 0:
            return row, start
        offset_delta, position = varint(data, position)
        offset = base_offset + offset_delta
        if position < 0 or offset <= last_offset:
            return row, start
        last_offset = offset
        times[row] = append_ms if append_ms >= 0 else base_ms + delta_ms
        offsets[row] = offset
        for span in (keys, values):
            length, position = varint(data, position)
            if position < 0 or length > end - position:
                return row, start
            if length < 0:
                span[row, 0] = span[row, 1] = -1
            else:
                span[row, 0] = position
                position += length
                span[row, 1] = position
        if position >= end:
            return row, start
        position = _past_headers(data, position, end)
        if position != end:
            return row, start
    return end_row, position


@checked_kernel
def read_batches(data: Bytes, batches: Longs, cursor: Longs, columns: Columns) -> bool:
    """Parse the next n records of some batches; return whether there were n, none malformed.

    A call goes on where the one before stopped, so that n bounds the memory of many records.

    Args:
        data: uint8, with the batches' uncompressed records.
        batches: int64 (m, 6), a row for each batch: its records are data[START:STOP]; BASE_OFFSET
            and BASE_MS (ms since 1970), to which theirs are added; APPEND_MS, the time of all of
            them under LogAppendTime, else -1; RECORD_COUNT.
        cursor: int64 (5,), updated: the row of the present BATCH, how many of its records are
            PARSED, the POSITION after these, the LAST_OFFSET, and the ROWS that this call filled.
        columns: n rows to fill.

    Raises:
        IndexError: a record goes on beyond the data; ROWS is 0, and all else in `cursor` as before.
    """
    offsets = columns[3]
    cursor[ROWS] = row = 0
    batch_row = cursor[BATCH]
    parsed = cursor[PARSED]
    position = cursor[POSITION]
    last_offset = cursor[LAST_OFFSET]
    is_malformed = False
    while batch_row < len(batches) and row < len(offsets) and not is_malformed:
        batch = batches[batch_row]
        if parsed == 0:
            position = batch[START]
        end_row = min(row + batch[RECORD_COUNT] - parsed, len(offsets))
        stopped, position = _read_records(
            data, batch, position, last_offset, row, end_row, columns
        )
        parsed += stopped - row
        if stopped > row:
            last_offset = offsets[stopped - 1]
        row = stopped
        # A bad record, or bytes behind the last one.
        is_whole = parsed == batch[RECORD_COUNT]
        is_malformed = row < end_row or (is_whole and position != batch[STOP])
        if is_whole and not is_malformed:
            batch_row += 1
            parsed = 0
    cursor[BATCH] = batch_row
    cursor[PARSED] = parsed
    cursor[POSITION] = position
    cursor[LAST_OFFSET] = last_offset
    cursor[ROWS] = row
    return bool(row == len(offsets) and not is_malformed)


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
        """Bytes of key, value and headers, which `MESSAGE_BYTES` limits (runtime.sizes)."""
        header_bytes = sum(
            len(name.encode()) + len(value or b"") for name, value in self.headers
        )
        return len(self.key or b"") + len(self.value or b"") + header_bytes


class Forwarded(Protocol):
    """Records to forward to one topic, tens of thousands a transaction, built as they are sent."""

    @property
    def topic(self) -> str: ...

    def messages(self) -> Iterator[tuple[bytes, bytes, int, int, Headers | None]]:
        """Yield value, key, partition, time in ms and headers of each record, in order."""


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Records of one partition, as spans of one buffer. Sensitive: the repr shows only a count.

    `keys` and `values`, int64 (n, 2), are starts and stops in `data`, -1 for null; `times`, ms
    since 1970, and `offsets`, which ascend, are int64 (n,). If `framed`, `data` are record batches,
    in which headers follow each value; else `data` have keys and values alone.
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
        # Values first, then keys.
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
        """Return the bytes at a row of `keys` or `values`; None for null."""
        start, stop = place.tolist()
        return None if start < 0 else self.data[start:stop].tobytes()

    def headers(self, i: int, max_bytes: int) -> list[tuple[str, bytes | None]] | None:
        """Return a record's headers; None if they have over `max_bytes`.

        Empty without `framed`, and for a null value, which leaves no position to find them by.
        """
        value_stop = int(self.values[i, 1])
        if not self.framed or value_stop < 0:
            return []
        return headers_at(self.data, value_stop, max_bytes)

    def part(self, start: int, stop: int) -> Records:
        """Return the records start..stop - 1, as views of the same data."""
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
    data: Bytes | bytes, position: int, max_bytes: int
) -> list[tuple[str, bytes | None]] | None:
    """Return the headers at `position`, None if over `max_bytes`; names not in UTF-8 are left out.

    `read_batches` has checked them, so no length needs to be.
    """
    number, position = _varint(data, position)
    end = position + max_bytes
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


def _varint(data: Bytes | bytes, position: int) -> tuple[int, int]:
    """Return a zigzag varint and the position after it, as `varint` does, but in Python."""
    bits = shift = 0
    while True:
        byte = int(data[position])
        position += 1
        bits |= (byte & 127) << shift
        if byte < 128:
            # Zigzag: 0, 1, 2, 3 stand for 0, -1, 1, -2.
            return (bits >> 1) ^ -(bits & 1), position
        shift += 7


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Records of a partition from offset `start` to before `end`.

    There may be none right before `end`, where the next batch starts: readers do not see all.
    """

    start: int
    end: int
    records: Records

    def __repr__(self) -> str:
        return f"Batch({self.start}..{self.end}, {len(self)} records)"

    def __len__(self) -> int:
        return len(self.records)

    def split(self, offset: int) -> tuple[Batch, Batch]:
        """Split at an offset; one part is empty if that is outside the batch."""
        offset = min(max(offset, self.start), self.end)
        row = int(np.searchsorted(self.records.offsets, offset))
        first = Batch(self.start, offset, self.records.part(0, row))
        return first, Batch(offset, self.end, self.records.part(row, len(self)))


@dataclass(frozen=True, slots=True, eq=False)
class FetchedRecords:
    """Undecoded record batches of one partition, from offset `start` to before `end`.

    `record_count` is approximate: it may include records before `start`. `parts`, called in the
    shard's thread with the longest value to read, in bytes, yields decoded batches; a far longer
    value is truncated, but stays too long. It raises CorruptRecordException. The hand-over sets
    `shard`, which will process them.
    """

    start: int
    end: int
    record_count: int
    parts: Callable[..., Iterator[Batch]] = field(repr=False)
    shard: object | None = field(default=None, repr=False)
