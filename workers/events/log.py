"""The event log: rows that a scanner of any format writes for the wanted fields of an event.

A scanner walks a record along the tree of wanted paths (`events.tree`) and writes rows to `log`,
int64 (room, 4): the SLOT of the wanted field, the KIND of its value, and START and STOP of its text
in the record's buffer, unless KIND says otherwise. It returns the number of rows used, DECLINED to
leave the record to the general reader, or FULL if no room is left: the caller continues with the
records before, or retries with more room. A scanner never rejects a record.

A slot occurs at most once per event, or once per element of its list, in element order. The rows
after a LIST of labels or a MAP share its slot. An absent field has no row. Large batches are
scanned in parts, to bound memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from workers.arrays.compiled import kernel_inline, kernel_part
from workers.arrays.types import Bools, Bytes, Longs
from workers.runtime.frozen import read_only

Flags = NDArray[np.int8]

COLUMNS = 4
SLOT = 0
KIND = 1
START = 2
STOP = 3

# Valid UTF-8 as CPython defines it, without escapes.
TEXT = 0
# A JSON integer: -?digits, no leading zero, not "-0", at most WHOLE_DIGITS.
WHOLE = 1
# -?digits.digits, at most POINT_DIGITS before the point and BEHIND_DIGITS after it; no exponent.
NUMBER = 2
# START to STOP is the word; both are -1 if the format has no such word.
TRUE = 3
FALSE = 4
NULL = 5
# START is the number of elements. The slot is the list's own, or that of the items.
LIST = 6
# START is the number of entries; each is followed by a TEXT (its name) and a row for its value.
MAP = 7
# Any other value: an object or list where a single value is wanted, bytes, NaN.
OTHER = 8
# An integer in a binary format: START is its value.
VALUE = 9
# A float in a binary format: START has the bits of its float64.
REAL = 10
# As NUMBER, plus an exponent of at most EXPONENT_DIGITS; the point is optional.
EXPONENT = 11

# A time in ns has 19 digits, which may overflow int64; a float64 has 17 and leading zeros.
WHOLE_DIGITS = 19
POINT_DIGITS = 15
BEHIND_DIGITS = 30
# Keeps every power of ten within the normal range of a float64.
EXPONENT_DIGITS = 2
# Every map name is compared with all earlier ones, which is quadratic.
MAP_NAMES_MAX = 64
# Bytes charged per declined record, besides its own, for the general reader's objects.
DECLINED_EACH = 256

DECLINED = -1
FULL = -2


@kernel_part
def put(log: Longs, used: int, slot: int, kind: int, start: int, stop: int) -> int:
    """Append a row; return the rows used, or FULL. Returns a negative `used` unchanged."""
    if used < 0:
        return used
    if used >= len(log):
        return FULL
    log[used, SLOT] = slot
    log[used, KIND] = kind
    log[used, START] = start
    log[used, STOP] = stop
    return used + 1


# Maximum bytes of declined records in a part. The general reader uses up to 50 bytes per byte.
DECLINED_BYTES = 2 << 20


class Output(NamedTuple):
    """Logs as a scanner writes them, for the records of a batch from some index on.

    `rows`, int64 (room, 4), has the concatenated logs; `ends`, int64 (n,), the end of each record's
    log; `status`, int8 (n,), is 0, or DECLINED where there is none. Once declined records have
    `declined_bytes`, the scanner returns: the general reader's objects would fill the memory.
    """

    rows: Longs
    ends: Longs
    status: Flags
    declined_bytes: int


@kernel_inline
def end_log(
    out: Output, record: int, values: Longs, used: int, end: int, bytes_left: int
) -> tuple[int, int]:
    """Note in `out` that a record's log ends before row `end`, or that the record is DECLINED.

    `values`, int64 (n, 2), has start and stop of each record; the records before it used `used`
    rows, and a declined one uses none. Returns the rows used now, and what is left of `bytes_left`,
    the bytes that declined records may still have in this part; each is charged DECLINED_EACH more.
    """
    if end != DECLINED:
        out.status[record] = 0
        out.ends[record] = end
        return end, bytes_left
    out.status[record] = DECLINED
    out.ends[record] = used
    return used, bytes_left - (values[record, 1] - values[record, 0]) - DECLINED_EACH


def longs(rows: object, columns: int) -> Longs:
    """Return rows of whole numbers, maybe none, as a frozen table."""
    return read_only(np.array(rows, dtype=np.int64)).reshape(-1, columns)


#: Scans a batch from a record on, until the output is full. Returns the bytes that START and STOP
#: of the rows index, and the first record that is not scanned.
Scan = Callable[[int, Output], tuple[Bytes, int]]

# Log rows of a part: ROWS_EXPECTED per record, and at least ROWS_MIN, 8 MiB.
ROWS_EXPECTED = 8
ROWS_MIN = 1 << 18
# Limit for a single record: one row per byte, plus ROWS_FREE, because an Avro item may be empty.
ROWS_FREE = 1 << 16


@dataclass(frozen=True, slots=True, repr=False)
class FieldSpans:
    """Scanner output for one part of a batch, consecutive records from index `begin` on.

    `data` has the record bytes and then bytes that the scanner adds; `rows`, int64 (m, 4), the
    concatenated logs; `ends`, int64 (n,), the end of each log; `status`, int8 (n,), DECLINED if
    not scanned. `decode` returns the record at a batch index, or raises ValueError(reject reason).
    """

    begin: int
    data: Bytes
    rows: Longs
    ends: Longs
    status: Flags
    decode: Callable[[int], object]

    @classmethod
    def declined(
        cls, data: Bytes, n: int, decode: Callable[[int], object]
    ) -> FieldSpans:
        """Return the output for a batch of `n` records that are all left to the general reader."""
        rows = np.empty((0, COLUMNS), dtype=np.int64)
        ends = np.zeros(n, dtype=np.int64)
        return cls(0, data, rows, ends, np.full(n, DECLINED, dtype=np.int8), decode)


def scan_parts(
    values: Longs, scan: Scan, decode: Callable[[int], object]
) -> Iterator[FieldSpans]:
    """Scan a batch and yield its logs in parts, at least one.

    `values`, int64 (n, 2), has start and stop of each record, (-1, -1) if it has no value.
    """
    n = len(values)
    done = 0
    # Rows for the next part; 0: as many as are expected.
    room = 0
    ends = np.empty(n, dtype=np.int64)
    status = np.empty(n, dtype=np.int8)
    while True:
        begin = done
        room = max(room, ROWS_EXPECTED * (n - done), ROWS_MIN)
        rows = np.empty((room, COLUMNS), dtype=np.int64)
        data, done = scan(begin, Output(rows, ends, status, DECLINED_BYTES))
        if begin == done < n:
            # Not even one record fits: try it with more rows, up to its limit, then decline it.
            most = int(values[begin, 1] - values[begin, 0]) + ROWS_FREE
            if room < most:
                del rows  # before the larger ones are made
                room = min(2 * room, most)
                continue
            ends[begin] = 0
            status[begin] = DECLINED
            done = begin + 1
        room = 0
        used = int(ends[done - 1]) if done > begin else 0
        part = slice(begin, done)
        yield FieldSpans(begin, data, rows[:used], ends[part], status[part], decode)
        if done == n:
            return


class Format(Protocol):
    """A record format: its scanner, and in `FieldSpans.decode` its general reader."""

    def scan(self, data: Bytes, values: Longs, plain: Bools) -> Iterator[FieldSpans]:
        """Log the wanted fields of records, part by part.

        `values`, int64 (n, 2), has start and stop of each record, negative if it has no value;
        False in `plain`, bool (n,), declines a record unscanned, for the general reader.
        """
