"""Read log values as numbers, labels, counts and times.

A log value is a row of an event log (`events.log`): a KIND, and START and STOP of its text in
`data`, or START alone for a value of a binary format. A number in digits is WHOLE, NUMBER (with a
point) or EXPONENT; START is an integer if the KIND is VALUE, and the bits of a float64 if it is
REAL. The functions here read the usual forms of a value exactly as the general reader
(`events.project`) does, and leave all others to it: by -1, or by the bounds -inf and inf. Texts may
hold numbers, as producers write them in quotes.
"""

import math

import numpy as np

from workers.arrays.compiled import checked_inline, checked_part, kernel_inline
from workers.arrays.types import Bytes, Longs
from workers.arrays.words import WORD, digits_at, write_integer
from workers.events import log as kinds
from workers.events.json_scanner import (
    COLON,
    MINUS,
    NINE,
    PLUS,
    POINT,
    SMALL_E,
    SPACE,
    ZERO,
    byte_at,
    peek,
    scan_number,
)
from workers.events.log import KIND, START, STOP
from workers.runtime.frozen import read_only
from workers.settings.times import TIME_MAX_MS

# Maximum UTF-8 bytes of a label, stream key or user, as in `mechanisms.config.histogram`.
LABEL_BYTES_MAX = 1024
# Longer counts are left to the general reader; these are below AMOUNT_MAX.
COUNT_DIGITS = 12
# Larger counts count as this: far above the largest `max_count`, and low enough that the sum over a
# batch fits in 64 bits.
AMOUNT_MAX = 1 << 40
# Any integer of this many digits fits in int64.
INT64_DIGITS = 18
# Digits and powers of ten that a float64 holds exactly; digits beyond FLOAT_DIGITS are ignored.
EXACT_DIGITS = 15
EXACT_POWER = 22
FLOAT_DIGITS = 17
# Bound on the relative error of `parse_real`: 10^-16 for the digits that it ignores, and 2^-53 for
# each of its roundings, of which there are fewer than 150; together below 2e-14.
NEAR = 1e-13
WORD_POWER = 10**WORD
# Numbers of a sum are compared in whole numbers and parts of 10^-16; both fit in 64 bits.
PART_DIGITS = 16
PART = 10**PART_DIGITS
POWERS = read_only(10 ** np.arange(PART_DIGITS + 1, dtype=np.int64))
WHOLE_MAX = 10**17
# Units of a time.
MS = 0
S = 1
US = 2
NS = 3
ISO = 4
# Below any offset in minutes.
NO_OFFSET = -1 << 20
LARGE_T = 84
LARGE_Z = 90

# Texts and all numbers.
_TIME_KINDS = (
    kinds.TEXT,
    kinds.WHOLE,
    kinds.NUMBER,
    kinds.VALUE,
    kinds.REAL,
    kinds.EXPONENT,
)

TRUE_WORD = np.frombuffer(b"true", dtype=np.uint8)
FALSE_WORD = np.frombuffer(b"false", dtype=np.uint8)


@checked_inline
def parse_integer(data: Bytes, start: int, stop: int) -> int:
    """Parse -?digits, at most INT64_DIGITS of them; the scanner has checked that they are digits.

    No digits are 0.
    """
    value = 0
    position = start
    minus = data[start] == MINUS
    if minus:
        position += 1
    # `digits_at` reads WORD (8) bytes unchecked: only where these lie in `data`. The loop checks
    # every index, and so raises for a wrong `start`.
    digits = stop - position
    if position >= 0 and 0 < digits <= WORD and position + WORD <= len(data):
        value = digits_at(data, position, digits)
    elif position >= 0 and WORD < digits <= 2 * WORD and stop <= len(data):
        # The two words are parsed independently: neither waits for the other.
        value = digits_at(data, position, digits - WORD) * WORD_POWER + digits_at(
            data, stop - WORD, WORD
        )
    else:
        while position < stop:
            value = value * 10 + (byte_at(data, position) - ZERO)
            position += 1
    return -value if minus else value


@checked_part
def parse_real(data: Bytes, start: int, stop: int) -> tuple[float, bool]:
    """Parse a logged number; return a float64, and whether it is certainly the nearest.

    If not, its relative error is below NEAR. It is always finite: the digits and exponents that a
    log may have keep a number below 10^114 and, unless it is 0, above 10^-130.
    """
    # The number is value * 10^power; `digits` counts those from the first that is not 0 on.
    value = 0
    digits = 0
    power = 0
    before_point = True
    position = start
    minus = data[start] == MINUS
    if minus:
        position += 1
    while position < stop and data[position] | 32 != SMALL_E:
        if data[position] == POINT:
            before_point = False
        elif digits < FLOAT_DIGITS:
            value = value * 10 + (int(data[position]) - ZERO)
            digits += value > 0
            power -= not before_point
        else:
            # Cut off: a float64 cannot tell it.
            digits += 1
            power += before_point
        position += 1
    if position < stop:
        power += parse_integer(data, position + 1 + (data[position + 1] == PLUS), stop)
    # Powers of ten are exact up to EXACT_POWER, so scaling rounds only once, at the end.
    scale = 1.0
    for _ in range(abs(power)):
        scale *= 10.0
    real = value * scale if power > 0 else value / scale
    # Both operands are exact, so there is a single rounding.
    exact = digits <= EXACT_DIGITS and abs(power) <= EXACT_POWER
    return (-real if minus else real), exact


@checked_part
def kind_in_text(data: Bytes, start: int, stop: int) -> int:
    """Return the kind of the number that a text holds.

    OTHER if it certainly holds none. TEXT if the general reader has to decide: it begins like a
    number but does not end like one, or has more digits than a log may have.
    """
    byte = peek(data, start, stop)
    if byte != MINUS and not ZERO <= byte <= NINE:
        return kinds.OTHER
    end, kind = scan_number(data, start, stop)
    return kind if end == stop and kind != kinds.OTHER else kinds.TEXT


@checked_inline
def past_whole_digits(data: Bytes, start: int, stop: int) -> int:
    """Return the end of the digits before the point in a number: the point, or else `stop`."""
    for pos in range(start, stop):
        if data[pos] == POINT:
            return pos
    return stop


@checked_part
def decimal_parts(data: Bytes, start: int, stop: int) -> tuple[int, int]:
    """Parse a decimal number, rounded down to whole + part / PART with 0 <= part < PART.

    Returns whole and part. A whole beyond WHOLE_MAX is returned as that. Digit by digit, so that
    the cost is that of the digits, whatever the exponent is.
    """
    minus = data[start] == MINUS
    first = start + minus
    point = -1
    end = first
    while end < stop and data[end] | 32 != SMALL_E:
        if data[end] == POINT:
            point = end
        end += 1
    exponent = 0
    if end < stop:
        exponent = parse_integer(data, end + 1 + (data[end + 1] == PLUS), stop)
    # The power of ten of each digit, from the first on; digits below PART only decide how a
    # negative number is rounded down.
    power = (end if point < 0 else point) - first + exponent
    integer = 0
    part = 0
    # Whether any digit below 1 / PART is not 0.
    rest = False
    for digit in range(first, end):
        if digit == point:
            continue
        value = int(data[digit]) - ZERO
        power -= 1
        if power >= 0:
            if value > 0 and power >= PART_DIGITS:
                integer = WHOLE_MAX
            elif value > 0:
                integer = min(integer + value * POWERS[power], WHOLE_MAX)
        elif power >= -PART_DIGITS:
            part += value * POWERS[PART_DIGITS + power]
        elif value > 0:
            rest = True
            break
    if not minus:
        return integer, part
    # Rounded down: the part is counted from the whole number below.
    below = part + rest
    return (-integer, 0) if below == 0 else (-integer - 1, PART - below)


@kernel_inline
def number_bounds(data: Bytes, log: Longs, row: int) -> tuple[float, float, bool]:
    """Return bounds on the float64 nearest to the number in log row `row`, and whether it is one.

    The bounds are usually equal. Where they are not, the caller checks that its answer is the same
    for both. They are -inf and inf for a text about which the general reader has to decide.
    """
    kind = log[row, KIND]
    start = log[row, START]
    stop = log[row, STOP]
    if kind == kinds.TEXT:
        kind = kind_in_text(data, start, stop)
        if kind == kinds.TEXT:
            return -math.inf, math.inf, True
    if kind in (kinds.NUMBER, kinds.EXPONENT, kinds.WHOLE):
        if kind == kinds.WHOLE and stop - start <= INT64_DIGITS:
            real = float(parse_integer(data, start, stop))
            return real, real, True
        real, exact = parse_real(data, start, stop)
        off = 0.0 if exact else abs(real) * NEAR
        return real - off, real + off, True
    if kind == kinds.VALUE:
        return float(start), float(start), True
    if kind == kinds.REAL:
        # Perhaps infinite, but never NaN, which is logged as OTHER.
        real = np.int64(start).view(np.float64)
        return real, real, True
    return 0.0, 0.0, False


@checked_part
def write_boolean(data: Bytes, used: int, kind: int) -> int:
    """Write "true" or "false" after `used` bytes; return the bytes used then."""
    word = TRUE_WORD if kind == kinds.TRUE else FALSE_WORD
    for pos in range(len(word)):
        data[used + pos] = word[pos]
    return used + len(word)


@kernel_inline
def label(
    data: Bytes, written: Bytes, used: int, log: Longs, row: int
) -> tuple[int, int, int]:
    """Return start and stop of the value in log row `row` as a label.

    And as a third the bytes used in `written`: a text that is not in `data` is written there, and
    its positions count on from len(data). The start is -1 if the value is no label, or too long.
    The caller has made sure that there is room for the text.
    """
    kind = log[row, KIND]
    start = log[row, START]
    stop = log[row, STOP]
    if kind in (kinds.TEXT, kinds.WHOLE):
        return (
            (start, stop, used) if stop - start <= LABEL_BYTES_MAX else (-1, -1, used)
        )
    end = -1
    if kind == kinds.VALUE:
        end = write_integer(written, used, start)
    elif kind in (kinds.TRUE, kinds.FALSE):
        # Only JSON has the word in `data`; a binary format logs a boolean with a START of -1.
        if start >= 0:
            return start, stop, used
        end = write_boolean(written, used, kind)
    if end < 0:
        return -1, -1, used
    return len(data) + used, len(data) + end, end


@checked_part
def unusual_count(data: Bytes, start: int, stop: int, kind: int) -> int:
    """Return the count in a text, or one such as 2.0; -1 if it is none, or has too many digits."""
    if kind == kinds.TEXT:
        kind = kind_in_text(data, start, stop)
    if kind not in (kinds.WHOLE, kinds.NUMBER):
        return -1
    point = past_whole_digits(data, start, stop)
    # Only zeros may follow the point.
    for pos in range(point + 1, stop):
        if data[pos] != ZERO:
            return -1
    few = point - start <= COUNT_DIGITS and data[start] != MINUS
    return parse_integer(data, start, point) if few else -1


@checked_inline
def item_count(data: Bytes, log: Longs, row: int) -> int:
    """Return the count in log row `row`; -1 if it is none, or has more than COUNT_DIGITS digits.

    A count above AMOUNT_MAX is returned as AMOUNT_MAX.
    """
    kind = log[row, KIND]
    start = log[row, START]
    stop = log[row, STOP]
    if kind == kinds.WHOLE:
        few = stop - start <= COUNT_DIGITS and data[start] != MINUS
        return parse_integer(data, start, stop) if few else -1
    if kind == kinds.VALUE:
        return min(start, AMOUNT_MAX) if start >= 0 else -1
    return unusual_count(data, start, stop, kind)


@checked_part
def two_digits(data: Bytes, pos: int) -> int:
    """Parse two digits; -1 if invalid."""
    tens = int(data[pos]) - ZERO
    ones = int(data[pos + 1]) - ZERO
    return tens * 10 + ones if 0 <= tens <= 9 and 0 <= ones <= 9 else -1


@checked_part
def offset_minutes(data: Bytes, pos: int, stop: int) -> int:
    """Return the minutes of an offset from UTC, (+|-)hh[[:]mm]; NO_OFFSET for any other form."""
    plus = data[pos] == PLUS
    if (not plus and data[pos] != MINUS) or stop - pos < 3:
        return NO_OFFSET
    hours = two_digits(data, pos + 1)
    minutes = 0
    if stop - pos > 3:
        begin = pos + 3 + (data[pos + 3] == COLON)
        if stop - begin != 2:
            return NO_OFFSET
        minutes = two_digits(data, begin)
    if not 0 <= hours <= 23 or not 0 <= minutes <= 59:
        return NO_OFFSET
    return 60 * hours + minutes if plus else -60 * hours - minutes


@checked_part
def iso_time(data: Bytes, start: int, stop: int) -> int:
    """Return the ms since 1970 of YYYY-MM-DD(T| )hh:mm:ss[.f][Z|+hh[[:]mm]]; -1 for other forms."""
    length = stop - start
    if length < 19:
        return -1
    century = two_digits(data, start)
    year = two_digits(data, start + 2)
    month = two_digits(data, start + 5)
    day = two_digits(data, start + 8)
    hour = two_digits(data, start + 11)
    minute = two_digits(data, start + 14)
    second = two_digits(data, start + 17)
    if min(century, year, month, day, hour, minute, second) < 0:
        return -1
    if data[start + 4] != MINUS or data[start + 7] != MINUS:
        return -1
    if data[start + 13] != COLON or data[start + 16] != COLON:
        return -1
    if data[start + 10] != LARGE_T and data[start + 10] != SPACE:
        return -1
    year += 100 * century
    # Months have 31 and 30 days in turn, up to July and again from August on.
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    days = 30 + ((month + (month > 7)) & 1) if month != 2 else 28 + leap
    if year < 1970 or not 1 <= month <= 12 or not 1 <= day <= days:
        return -1
    if hour > 23 or minute > 59 or second > 59:
        return -1
    position = start + 19
    fraction = 0
    scale = 100
    if position < stop and data[position] == POINT:
        position += 1
        begin = position
        # Digits below a ms are cut off: `scale` is then 0.
        while position < stop and 0 <= int(data[position]) - ZERO <= 9:
            fraction += (int(data[position]) - ZERO) * scale
            scale //= 10
            position += 1
        if position == begin or position - begin > 9:
            return -1
    offset = 0
    if position < stop and not (stop - position == 1 and data[position] == LARGE_Z):
        offset = offset_minutes(data, position, stop)
        if offset == NO_OFFSET:
            return -1
    # Days since 1970 in the Gregorian calendar, with years that begin in March, so that a leap day
    # comes last; from March 1 of the year 0 to 1970 there are 719,468.
    years, months = (year, month - 3) if month > 2 else (year - 1, month + 9)
    leaps = years // 4 - years // 100 + years // 400
    passed = 365 * years + leaps + (153 * months + 2) // 5 + day - 1 - 719_468
    return (
        ((passed * 24 + hour) * 60 + minute - offset) * 60 + second
    ) * 1000 + fraction


@checked_inline
def whole_time(data: Bytes, start: int, stop: int, unit: int) -> int:
    """Return the time, an integer in `unit` since 1970, in ms; below 0 if it is not readable here.

    That is for times before 1970 and for too many digits; the caller bounds the result.
    """
    if data[start] == MINUS:
        return -1
    if unit in (US, NS):
        # Drop the digits below a ms before parsing: a log has at most 19, of which the rest fits.
        stop -= 3 if unit == US else 6
        if stop <= start:
            return 0  # less than a ms
        return parse_integer(data, start, stop)
    if stop - start > INT64_DIGITS:
        return -1
    value = parse_integer(data, start, stop)
    if unit == MS:
        return value
    return value * 1000 if value <= TIME_MAX_MS // 1000 else -1


@checked_inline
def decimal_seconds(data: Bytes, start: int, stop: int) -> int:
    """Return the ms, cut off, of a number of seconds with a point that is not negative."""
    point = past_whole_digits(data, start, stop)
    ms = 0
    # The whole digits, at most 15 in a log, and three decimals; those that are not written are 0.
    for pos in range(start, point + 4):
        if pos != point:
            ms = ms * 10 + (int(data[pos]) - ZERO if pos < stop else 0)
    return ms


@checked_part
def unusual_time(data: Bytes, start: int, stop: int, kind: int, unit: int) -> int:
    """Return an unusual time in ms; -1 if the general reader has to decide.

    Unusual is a number in quotes, or one with a point in a unit other than seconds.
    """
    if kind == kinds.TEXT:
        kind = kind_in_text(data, start, stop)
    if kind not in (kinds.WHOLE, kinds.NUMBER) or data[start] == MINUS:
        return -1
    if kind == kinds.NUMBER and unit == S:
        return decimal_seconds(data, start, stop)
    # Fractions of a ms are cut off.
    return whole_time(data, start, past_whole_digits(data, start, stop), unit)


@checked_inline
def parse_time(data: Bytes, log: Longs, row: int, unit: int) -> int:
    """Return the time in log row `row` in ms since 1970; -1 if the general reader has to decide."""
    kind = log[row, KIND]
    start = log[row, START]
    stop = log[row, STOP]
    if unit == ISO:
        ms = iso_time(data, start, stop) if kind == kinds.TEXT else -1
    elif kind == kinds.WHOLE:
        ms = whole_time(data, start, stop, unit)
    elif kind == kinds.VALUE:
        if unit == MS:
            ms = start
        elif unit == S:
            ms = start * 1000 if 0 <= start <= TIME_MAX_MS // 1000 else -1
        else:
            ms = start // (1000 if unit == US else 1_000_000)
    elif unit == S and kind == kinds.NUMBER and data[start] != MINUS:
        ms = decimal_seconds(data, start, stop)
    elif unit == S and kind == kinds.REAL:
        real = np.int64(start).view(np.float64)
        # To the nearest us first, as in `events.times`: the float may lie just below its ms. Up to
        # 1e12 s, the us fit in 64 bits.
        ms = round(real * 1e6) // 1000 if 0.0 <= real <= 1e12 else -1
    elif kind in (kinds.TEXT, kinds.NUMBER):
        ms = unusual_time(data, start, stop, kind, unit)
    else:
        ms = -1
    return ms if 0 <= ms <= TIME_MAX_MS else -1


@checked_part
def may_be_time(log: Longs, row: int, unit: int) -> bool:
    """Return whether the general reader might read the value in log row `row` as a time in `unit`.

    False if the field is absent (row -1).
    """
    if row < 0:
        return False
    kind = log[row, KIND]
    if unit == ISO:
        return bool(kind == kinds.TEXT)
    return kind in _TIME_KINDS
