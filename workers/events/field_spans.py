"""Format interface: a compiled scanner of plain records, and a decoder of any record.

Memory is bounded: a batch is scanned in parts. Ordinary batches have one part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from workers.arrays.types import Bools, Bytes, Longs
from workers.events.log import COLUMNS, DECLINED, Flags, ended

#: Scans from a record on into `number` and `rows`; returns the indexed bytes and the next record.
Scan = Callable[[int, Longs, Longs], tuple[Bytes, int]]

# Log rows of a part: ROWS_FORESEEN per record, and at least ROWS_LEAST, 8 MiB.
ROWS_FORESEEN, ROWS_LEAST = 8, 1 << 18
# Only a single record may have more: one row per byte, plus ROWS_FREE, because an Avro item may
# take no bytes. Beyond that, the general reader decides.
ROWS_FREE = 1 << 16
# Maximum bytes of declined records in a part. The general reader uses up to 50 bytes per byte.
DECLINED_BYTES = 2 << 20


@dataclass(frozen=True, slots=True, repr=False)
class FieldSpans:
    """Scanner output for consecutive records, one part of a batch.

    Attributes:
        begin: batch index of the first record.
        data: uint8, the record bytes followed by bytes that the scanner adds.
        rows: int64 (m, 4), the concatenated logs; see `events.log`.
        ends, status: int64 and int8 (n,), end of each record's log; DECLINED if it was not read.
        decode: returns the record at a batch index; ValueError has the reject reason.
    """

    begin: int
    data: Bytes
    rows: Longs
    ends: Longs
    status: Flags
    decode: Callable[[int], object]

    @classmethod
    def declined(cls, data: Bytes, n: int, decode: Callable[[int], object]) -> FieldSpans:
        rows, ends = np.empty((0, COLUMNS), dtype=np.int64), np.zeros(n, dtype=np.int64)
        return cls(0, data, rows, ends, np.full(n, DECLINED, dtype=np.int8), decode)


def parts(values: Longs, scan: Scan, decode: Callable[[int], object]) -> Iterator[FieldSpans]:
    """Scan a batch and yield its logs in parts, at least one; a missing value is (-1, -1)."""
    n, done, room = len(values), 0, 0
    number = np.empty(n, dtype=np.int64)
    while True:
        begin, room = done, max(room, ROWS_FORESEEN * (n - done) + 64, ROWS_LEAST)
        rows = np.empty((room, COLUMNS), dtype=np.int64)
        data, done = scan(begin, number, rows)
        if begin == done < n:
            # Not even one record fits.
            most = int(values[begin, 1] - values[begin, 0]) + ROWS_FREE
            if room < most:
                del rows
                room = min(2 * room, most)
                continue
            number[begin], done = DECLINED, begin + 1
        room, first = 0, 0
        while True:
            ends = np.empty(done - begin, dtype=np.int64)
            status = np.empty(done - begin, dtype=np.int8)
            m = ended(number[begin:done], values[begin:done], DECLINED_BYTES, ends, status)
            last = first + int(ends[m - 1]) if m else first
            yield FieldSpans(begin, data, rows[first:last], ends[:m], status[:m], decode)
            begin, first = begin + m, last
            if begin == done:
                break
        if done == n:
            return


class Format(Protocol):
    def scan(self, data: Bytes, values: Longs, plain: Bools | None = None) -> Iterator[FieldSpans]:
        """Log the wanted fields of records, part by part.

        `values` is int64 (n, 2), start and stop of each record; negative if it has no value. False
        in `plain`, bool (n,), declines a record without scanning.
        """
