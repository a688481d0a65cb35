"""What every format of events is: a compiled scanner of plain records, and a decoder of any.

What reading takes is bounded whatever the records hold: a batch is scanned in parts, each with as
many records as there is room for. Ordinary batches are one part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from workers.events.log import COLUMNS, DECLINED, ended

Bytes = NDArray[np.uint8]
Bools = NDArray[np.bool_]
Flags = NDArray[np.int8]
Longs = NDArray[np.int64]
#: From a record on, into `number` and `rows`: the bytes that places in these mean, and the record
#: where there was no more room.
Scan = Callable[[int, Longs, Longs], tuple[Bytes, int]]

# Rows that a part of a batch may have: so many for each record, and ROWS_LEAST at least, 8 MiB.
ROWS_FORESEEN, ROWS_LEAST = 8, 1 << 18
# Only one record alone may have more: one for each of its bytes, and so many. In Avro an item may
# take no bytes; what has more than this is left to the general reader.
ROWS_FREE = 1 << 16
# Bytes of the records of a part about which the general reader decides. It makes up to 50 of one.
DECLINED_BYTES = 2 << 20


@dataclass(frozen=True, slots=True, repr=False)
class Logs:
    """What a scanner found of a part of a batch: of consecutive records.

    Attributes:
        begin: the place of the first of them in the batch.
        data: uint8, the bytes of the records, and behind them what the scanner adds.
        rows: int64 (m, 4), the logs of the records end to end; see `events.log`.
        ends: int64 (n,), where each record's end.
        status: int8 (n,), DECLINED where the scanner does not read a record.
        decode: returns a record, by its place in the batch, as plain objects; raises ValueError
            with the reason why it is none.
    """

    begin: int
    data: Bytes
    rows: Longs
    ends: Longs
    status: Flags
    decode: Callable[[int], object]

    @classmethod
    def declined(cls, data: Bytes, n: int, decode: Callable[[int], object]) -> Logs:
        """Return the logs of n records none of which was scanned."""
        rows, ends = np.empty((0, COLUMNS), dtype=np.int64), np.zeros(n, dtype=np.int64)
        return cls(0, data, rows, ends, np.full(n, DECLINED, dtype=np.int8), decode)


def parts(values: Longs, scan: Scan, decode: Callable[[int], object]) -> Iterator[Logs]:
    """Scan a batch; yield the logs of its records, part by part, at least one.

    Args:
        values: int64 (n, 2), start and stop of each record; both -1 where it has no value.
        scan: the scanner.
        decode: see `Logs`.
    """
    n, done, room = len(values), 0, 0
    number = np.empty(n, dtype=np.int64)
    while True:
        begin, room = done, max(room, ROWS_FORESEEN * (n - done) + 64, ROWS_LEAST)
        rows = np.empty((room, COLUMNS), dtype=np.int64)
        data, done = scan(begin, number, rows)
        if begin == done < n:
            # Not even one record has room.
            most = int(values[begin, 1] - values[begin, 0]) + ROWS_FREE
            if room < most:
                del rows
                room = min(2 * room, most)
                continue
            number[begin], done = DECLINED, begin + 1
        room, first = 0, 0
        while True:
            ends, status = (
                np.empty(done - begin, dtype=np.int64),
                np.empty(done - begin, dtype=np.int8),
            )
            m = ended(number[begin:done], values[begin:done], DECLINED_BYTES, ends, status)
            last = first + int(ends[m - 1]) if m else first
            yield Logs(begin, data, rows[first:last], ends[:m], status[:m], decode)
            begin, first = begin + m, last
            if begin == done:
                break
        if done == n:
            return


class Format(Protocol):
    """How records are encoded."""

    def scan(self, data: Bytes, values: Longs, plain: Bools | None = None) -> Iterator[Logs]:
        """Log the wanted fields of records, part by part.

        Args:
            data: uint8 (b,).
            values: int64 (n, 2), start and stop of each; a negative start: it has no value.
            plain: bool (n,), the others are declined unseen; None: all are looked at.
        """
