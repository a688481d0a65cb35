"""What goes into a shard and comes out of it: batches of records, and the messages of a
transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from workers.mechanisms.sizes import MESSAGE_BYTES

Longs = NDArray[np.int64]
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
        """Bytes of key, value and headers together."""
        named = sum(len(name.encode()) + len(value or b"") for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + named


class Forwarded(Protocol):
    """Records that go on to another topic, made one by one when a transaction sends them: it has
    tens of thousands.
    """

    def messages(self) -> Iterator[tuple[bytes, bytes, int, int, Headers | None]]:
        """Yield value, key, partition, time in ms and headers of each, in order."""


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Records of one partition, as places in one buffer. Sensitive: the repr shows their number
    only.

    Attributes:
        data: uint8, all their bytes.
        keys, values: int64 (n, 2), start and stop of each in `data`; start -1 for null.
        times: int64 (n,), ms since 1970.
        offsets: int64 (n,), ascending.
        framed: whether `data` is as Kafka sends it, a record's headers behind its value.
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
        """Return records made of these bytes.

        Args:
            values: of the n records.
            keys: of the records; None: all null.
            times: of the records, ms; None: 0.
            offsets: of the records; None: from 0 on.
        """
        n = len(values)
        texts = [*values, *([None] * n if keys is None else keys)]
        lengths = np.array([0 if text is None else len(text) for text in texts], dtype=np.int64)
        places = np.stack((np.cumsum(lengths) - lengths, np.cumsum(lengths)), axis=1)
        places[[i for i, text in enumerate(texts) if text is None]] = -1
        return cls(
            np.frombuffer(b"".join(text for text in texts if text is not None), dtype=np.uint8),
            places[n:],
            places[:n],
            np.zeros(n, dtype=np.int64) if times is None else np.array(times, dtype=np.int64),
            np.arange(n) if offsets is None else np.array(offsets, dtype=np.int64),
        )

    def __len__(self) -> int:
        return len(self.offsets)

    def __repr__(self) -> str:
        return f"Records({len(self)})"

    def key(self, i: int) -> bytes | None:
        """Return one record's key."""
        return self._text(self.keys[i])

    def value(self, i: int) -> bytes | None:
        """Return one record's value."""
        return self._text(self.values[i])

    def _text(self, place: Longs) -> bytes | None:
        start, stop = place.tolist()
        return None if start < 0 else self.data[start:stop].tobytes()

    def headers(self, i: int, most: int) -> list[tuple[str, bytes | None]] | None:
        """Return one record's headers, None where they have more than `most` bytes; none where the
        bytes are not known to have them.

        They follow the value, so a record without one gives none.
        """
        at = int(self.values[i, 1])
        return headers_at(self.data, at, most) if self.framed and at >= 0 else []

    def part(self, start: int, stop: int) -> Records:
        """Return the records start..stop-1; their bytes are not copied."""
        rows = slice(start, stop)
        return Records(
            self.data, self.keys[rows], self.values[rows], self.times[rows], self.offsets[rows], self.framed
        )


def headers_at(data: NDArray[np.uint8] | bytes, at: int, most: int) -> list[tuple[str, bytes | None]] | None:
    """Return the headers of a record of today's format, from their number on, None where they have
    more than `most` bytes; one with a name that is not UTF-8 is left out.
    """
    number, at = _varint(data, at)
    end = at + most
    found: list[tuple[str, bytes | None]] = []
    for _ in range(number):
        if at >= end:
            return None
        length, at = _varint(data, at)
        name, at = bytes(data[at : at + length]), at + length
        length, at = _varint(data, at)
        value = None if length < 0 else bytes(data[at : at + length])
        at += max(length, 0)
        with suppress(UnicodeDecodeError):
            found.append((name.decode(), value))
    return found if at <= end else None


def _varint(data: NDArray[np.uint8] | bytes, at: int) -> tuple[int, int]:
    """Return the zigzag number at a place, and the place behind it.

    `kernels.records` has the same, compiled: who counts nothing does without numba.
    """
    bits = shift = 0
    while True:
        byte = int(data[at])
        at += 1
        bits |= (byte & 127) << shift
        if byte < 128:
            return (bits >> 1) ^ -(bits & 1), at
        shift += 7


class Batch:
    """Consecutive records of one partition; `start` and `end` are positions, not the records'
    offsets.

    `end` may lie beyond the last record (what nobody may see is skipped); the next batch starts
    there.
    """

    __slots__ = ("end", "records", "start")

    def __init__(self, start: int, end: int, records: Records) -> None:
        self.start, self.end, self.records = start, end, records

    def __len__(self) -> int:
        return len(self.records)

    def split(self, position: int) -> tuple[Batch, Batch]:
        """Return what lies before `position` and the rest; a position outside gives one that is
        empty.
        """
        position = min(max(position, self.start), self.end)
        at = int(np.searchsorted(self.records.offsets, position))
        first = Batch(self.start, position, self.records.part(0, at))
        return first, Batch(position, self.end, self.records.part(at, len(self)))

    def __repr__(self) -> str:
        return f"Batch({self.start}..{self.end}, {len(self)} records)"


@dataclass(frozen=True, slots=True, eq=False)
class FetchedRecords:
    """Record batches of one partition as they were fetched, on their way to their shard's thread.

    Attributes:
        start, end: positions, as those of the `Batch`.
        number: about how many records there are.
        last_ms: the latest of their times.
        decode: yields the records in parts, given the longest value that is read; called in the
            shard's thread. Raises CorruptRecordException.
        shard: whose they are.
    """

    start: int
    end: int
    number: int
    last_ms: int
    decode: Callable[[int], Iterator[Batch]]
    shard: object | None = None

    def __repr__(self) -> str:
        return f"FetchedRecords({self.start}..{self.end}, about {self.number} records)"

    def parts(self, longest: int = MESSAGE_BYTES) -> Iterator[Batch]:
        """Yield the records, decoded, in one part or more, each of which begins where the one
        before it ends. A record that is far longer than `longest` comes cut, and still longer.
        """
        return self.decode(longest)


@dataclass
class ShardStats:
    """What a shard has done, for the hand-over and the health check; written by its thread, read by
    any.
    """

    transactions: int = 0
    aborted: int = 0
    last_commit_s: float = 0.0  # monotonic; when it was opened, before the first
    fence_s: float = 0.0
    load_s: float = 0.0
    loaded_records: int = 0
