"""The event log: rows that a scanner of any format writes for the wanted fields of an event.

A scanner walks a record along the tree of wanted paths (`events.tree`) and writes rows to `log`,
int64 (room, 4): the SLOT of the wanted field, the KIND of its value, and START and STOP of its text
in the record's buffer, unless KIND says otherwise. It returns the number of rows used; DECLINED to
leave the record to the general reader; or FULL if there is no room for another row, and the caller
continues with the records before, or retries with more room. A scanner never rejects a record.

A slot occurs at most once per event, or once per element of its list, in element order. The rows
after a LIST of labels or a MAP share its slot. An absent field has no row.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workers.arrays.compiled import kernel, kernel_part
from workers.arrays.types import Longs

Flags = NDArray[np.int8]

COLUMNS = 4
SLOT, KIND, START, STOP = 0, 1, 2, 3

# Valid UTF-8 as CPython defines it, without escapes.
TEXT = 0
# A JSON integer: -?digits, no leading zero, not "-0", at most WHOLE_DIGITS.
WHOLE = 1
# -?digits.digits, at most POINT_DIGITS before the point and BEHIND_DIGITS after it; no exponent.
NUMBER = 2
# START to STOP is the word; both are -1 if the format has no such word.
TRUE, FALSE = 3, 4
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
# As NUMBER, with an exponent of at most EXPONENT_DIGITS; the point is optional.
EXPONENT = 11

# A time in ns has 19 digits, which may overflow int64; a float64 has 17 and leading zeros.
WHOLE_DIGITS, POINT_DIGITS, BEHIND_DIGITS = 19, 15, 30
# Keeps every power of ten within the normal range of a float64.
EXPONENT_DIGITS = 2
# Every map name is compared with all earlier ones, which is quadratic.
MAP_NAMES_MAX = 64
# Charge per declined record, besides its bytes, for what the general reader creates.
DECLINED_EACH = 256

DECLINED, FULL = -1, -2


@kernel_part
def put(log: Longs, used: int, slot: int, kind: int, start: int, stop: int) -> int:
    """Append a row; return the rows used, or FULL. A negative `used` is returned unchanged."""
    if used < 0:
        return used
    if used >= len(log):
        return FULL
    log[used, SLOT], log[used, KIND], log[used, START], log[used, STOP] = slot, kind, start, stop
    return used + 1


@kernel
def ended(number: Longs, values: Longs, room: int, ends: Longs, status: Flags) -> int:
    """Convert row counts, or DECLINED, to the end and status (0 or DECLINED) of each record's log.

    Returns the number of records up to the one that exhausts `room`, inclusive, or n. `room` is in
    bytes: each declined record takes its length plus DECLINED_EACH.
    """
    end = 0
    for i in range(len(number)):
        ends[i], status[i] = end, DECLINED
        if number[i] == DECLINED:
            room -= values[i, 1] - values[i, 0] + DECLINED_EACH
            if room <= 0:
                return i + 1
        else:
            end += number[i]
            ends[i], status[i] = end, 0
    return len(number)


@kernel
def longest_log(ends: Longs) -> int:
    most, before = 0, 0
    for i in range(len(ends)):
        most, before = max(most, ends[i] - before), ends[i]
    return most


@kernel
def widest(texts: Longs) -> int:
    most = 0
    for i in range(len(texts)):
        most = max(most, texts[i, 1] - texts[i, 0])
    return most


@kernel
def outcomes(status: Flags, read: int) -> tuple[int, int]:
    declined, found = 0, 0
    for i in range(len(status)):
        declined += status[i] == DECLINED
        found += status[i] == read
    return declined, found
