"""Values of JSON where one is wanted: where each ends, and what kind of the log it is."""

from __future__ import annotations

from workers.kernels.compiled import part_reads_outside, reads_outside_in_place
from workers.kernels.reading.json_parts import FALSE as FALSE_WORD
from workers.kernels.reading.json_parts import (
    MINUS,
    NINE,
    OPEN_LIST,
    OPEN_OBJECT,
    PLUS,
    POINT,
    QUOTE,
    REFUSED,
    SMALL_E,
    ZERO,
    Bytes,
    digits,
    look,
    plain,
    skip,
    skip_word,
)
from workers.kernels.reading.json_parts import NULL as NULL_WORD
from workers.kernels.reading.json_parts import TRUE as TRUE_WORD
from workers.kernels.reading.log import (
    BEHIND_DIGITS,
    EXPONENT,
    EXPONENT_DIGITS,
    FALSE,
    NULL,
    NUMBER,
    OTHER,
    POINT_DIGITS,
    TEXT,
    TRUE,
    WHOLE,
    WHOLE_DIGITS,
)

# The bit by which small letters differ from large ones.
LOWER = 32
# What `one` says of a string that is not plain, which is no kind of the log.
ESCAPED = -1


@reads_outside_in_place
def number(data: Bytes, at: int, stop: int) -> tuple[int, int]:
    """Return where the number at `at` ends, and its kind; see `one`."""
    begin = at
    if look(data, at, stop) == MINUS:
        at += 1
    end = digits(data, at, stop, WHOLE_DIGITS)
    zero = end > at and data[at] == ZERO
    if end == at or (zero and end > at + 1):
        return REFUSED, OTHER
    byte = look(data, end, stop)
    if byte != POINT and byte | LOWER != SMALL_E:
        return (REFUSED if zero and at > begin else end), WHOLE
    if end - at > POINT_DIGITS:
        return REFUSED, OTHER
    if byte == POINT:
        at = end + 1
        end = digits(data, at, stop, BEHIND_DIGITS)
        if end == at:
            return REFUSED, NUMBER
        if look(data, end, stop) | LOWER != SMALL_E:
            return end, NUMBER
    at = end + 1
    at += look(data, at, stop) in (PLUS, MINUS)
    end = digits(data, at, stop, EXPONENT_DIGITS)
    return (end if end > at else REFUSED), EXPONENT


@part_reads_outside
def word(data: Bytes, at: int, stop: int) -> tuple[int, int]:
    """Return where the word, the list or the object at `at` ends, and its kind; see `one`."""
    byte = look(data, at, stop)
    if byte == TRUE_WORD[0]:
        return skip_word(data, at, stop, TRUE_WORD), TRUE
    if byte == FALSE_WORD[0]:
        return skip_word(data, at, stop, FALSE_WORD), FALSE
    if byte == NULL_WORD[0]:
        return skip_word(data, at, stop, NULL_WORD), NULL
    if byte in (OPEN_LIST, OPEN_OBJECT):
        return skip(data, at, stop), OTHER
    return REFUSED, OTHER


@reads_outside_in_place
def one(data: Bytes, at: int, stop: int) -> tuple[int, int]:
    """Return where the value at `at` ends, and its kind where one value is wanted, or REFUSED.

    A string that is not plain is ESCAPED, and where it ends is not said.
    """
    byte = look(data, at, stop)
    if byte == QUOTE:
        end = plain(data, at + 1, stop)
        return end + 1, (TEXT if look(data, end, stop) == QUOTE else ESCAPED)
    if byte == MINUS or ZERO <= byte <= NINE:
        return number(data, at, stop)
    return word(data, at, stop)
