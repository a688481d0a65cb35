"""The log of one event: what a compiled scanner of any format writes about the wanted fields.

A scanner walks one record along the tree of wanted paths (`events.tree`) and writes rows to a
scratch array `log`, int64 (room, 4). It returns how many rows are used; DECLINED where the general
reader has to decide about the record; FULL where there is no room for another row: the caller makes
do with the records before, or gives this one more room. It never rejects a record.

    row     SLOT    which wanted field the row is about
            KIND    what is there
            START   and STOP: where its text is in the record's buffer, or as KIND says

A slot occurs at most once an event, or once an element of its list, in the order of the elements.
Rows behind a LIST of labels or a MAP are in its slot too. A field that is absent has no row.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workers.arrays.compiled import kernel, kernel_part

Flags = NDArray[np.int8]
Longs = NDArray[np.int64]

COLUMNS = 4
SLOT, KIND, START, STOP = 0, 1, 2, 3

# Valid UTF-8 as CPython sees it, no escapes left.
TEXT = 0
# A whole number as JSON writes it: -?digits, no leading zero, not "-0", WHOLE_DIGITS at most.
WHOLE = 1
# -?digits.digits, at most POINT_DIGITS digits before the point, BEHIND_DIGITS behind; no exponent.
NUMBER = 2
# START to STOP is the word; both are -1 in formats that have no word for it.
TRUE, FALSE = 3, 4
NULL = 5
# START is the number of elements. In the list's own slot, or in that of items that are a list.
LIST = 6
# START is the number of entries; for each follow a TEXT (its name) and a row for its value.
MAP = 7
# A value of any other sort: an object or a list where one value is wanted, bytes, NaN.
OTHER = 8
# A whole number in a binary format: START is it.
VALUE = 9
# A float in a binary format: START is the bits of its float64.
REAL = 10
# A number with an exponent, as JSON writes it: of at most POINT_DIGITS digits before the point,
# BEHIND_DIGITS behind it if there is one, and EXPONENT_DIGITS in the exponent.
EXPONENT = 11

# A time in ns has 19 digits, more than int64 always holds; a float64 has 17 and leading zeros.
WHOLE_DIGITS, POINT_DIGITS, BEHIND_DIGITS = 19, 15, 30
# Then no power of ten overflows a float64, and none is subnormal.
EXPONENT_DIGITS = 2
# Each name of a map is compared with those before it: with many that would take long.
MAP_NAMES_MAX = 64
# What the general reader makes of a record beside its bytes.
DECLINED_EACH = 256

# What a scanner returns instead of the number of rows.
DECLINED, FULL = -1, -2


@kernel_part
def put(log: Longs, used: int, slot: int, kind: int, start: int, stop: int) -> int:
    """Add a row and return how many are used then; FULL where there is no room for it.

    A `used` below 0, so FULL or DECLINED, is returned as it is, and nothing is written.
    """
    if used < 0:
        return used
    if used >= len(log):
        return FULL
    log[used, SLOT], log[used, KIND], log[used, START], log[used, STOP] = slot, kind, start, stop
    return used + 1


@kernel
def ended(number: Longs, values: Longs, room: int, ends: Longs, status: Flags) -> int:
    """Write where the log of each record ends, and which are declined, from how many rows each has.

    Args:
        number: int64 (n,), rows of each record, or DECLINED.
        values: int64 (n, 2), start and stop of each record; both -1 where it has no value.
        room: for declined records, each of which takes its bytes and DECLINED_EACH.
        ends: int64 (n,), written.
        status: int8 (n,), written: DECLINED or 0.

    Returns:
        How many records there are up to the one that takes the last of the room; n if none does.
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
    """Return how many rows the longest of some logs has, that end at ends[i]."""
    most, before = 0, 0
    for i in range(len(ends)):
        most, before = max(most, ends[i] - before), ends[i]
    return most


@kernel
def widest(texts: Longs) -> int:
    """Return how many bytes the longest of some texts has, int64 (n, 2), start and stop of each."""
    most = 0
    for i in range(len(texts)):
        most = max(most, texts[i, 1] - texts[i, 0])
    return most


@kernel
def outcomes(status: Flags, read: int) -> tuple[int, int]:
    """Return how many of some records are declined, and how many are `read`."""
    declined, found = 0, 0
    for i in range(len(status)):
        declined += status[i] == DECLINED
        found += status[i] == read
    return declined, found
