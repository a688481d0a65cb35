"""Strings of JSON with escapes, decoded.

What they say is not in the bytes of the batch, so it is written to `decoded`, uint8, a buffer that
lies behind them: places from len(data) on are in it. `filled` is how much of it is used; FULL where
it has no room. Whoever declines a record goes on with what was filled before it.

The parts of JSON: what is plain of it, for scanners that say yes only where they are sure.

Everything here is stricter than the general reader (msgspec), never laxer. Plain is:

    text    a string without a backslash
    escape  any of JSON's; of surrogates, both of a pair
    number  any of JSON's, with at most NUMBER_DIGITS digits before the point, behind it and in the
            exponent
    value   a string with escapes or without, a number, true, false, null; lists and objects of
            such values, at most DEPTH_MAX in each other

Every string is valid UTF-8 as CPython sees it, also where msgspec would not look.

All share their arguments: `data` uint8 (b,), the bytes of a batch; `at`, the place to begin;
`stop`, where the record ends, which is not read. They return places in `data`, and REFUSED where
something is not plain.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workers.arrays.compiled import (
    kernel_part,
    part_reads_outside,
    reads_outside_in_place,
    reads_outside_with_arrays,
)
from workers.arrays.words import past_digits, past_plain, same_bytes
from workers.events.log import FULL, OTHER, TEXT, put

Bytes = NDArray[np.uint8]
Longs = NDArray[np.int64]
Flags = NDArray[np.bool_]

REFUSED = -1
END = -1
QUOTE, BACKSLASH, COMMA, COLON, PLUS, MINUS, POINT = 34, 92, 44, 58, 43, 45, 46
OPEN_LIST, CLOSE_LIST, OPEN_OBJECT, CLOSE_OBJECT = 91, 93, 123, 125
SPACE, TAB, NEWLINE, RETURN = 32, 9, 10, 13
ZERO, NINE = 48, 57
TRUE, FALSE, NULL = (np.frombuffer(word, dtype=np.uint8) for word in (b"true", b"false", b"null"))
SMALL_E, LARGE_E, SMALL_U = 101, 69, 117
# What a byte behind a backslash writes, and what it is as a hexadecimal digit; -1: nothing.
ESCAPES = np.full(256, -1)
ESCAPES[list(b'"\\/bfnrt')] = list(b'"\\/\b\f\n\r\t')
HEXADECIMAL = np.full(256, -1)
HEXADECIMAL[list(b"0123456789abcdefABCDEF")] = [*range(16), *range(10, 16)]
ESCAPES.flags.writeable = HEXADECIMAL.flags.writeable = False
# Units of UTF-16 from HIGH on, and those from LOW to SURROGATES_STOP, are the halves of a pair.
HIGH, LOW, SURROGATES_STOP = 0xD800, 0xDC00, 0xE000
# Of a whole number with more than 4,300 digits the general reader says that it is not JSON.
NUMBER_DIGITS = 400
# A bit of 64 for each level says whether it is an object.
DEPTH_MAX = 32


@reads_outside_in_place
def byte_at(data: Bytes, at: int) -> int:
    """Return the byte at `at`; an index without a sign is not first counted from the end."""
    return int(data[np.uint64(at)])


@reads_outside_in_place
def look(data: Bytes, at: int, stop: int) -> int:
    """Return the byte at `at`, or END behind the record, which is no byte."""
    return byte_at(data, at) if at < stop else END


@part_reads_outside
def space(data: Bytes, at: int, stop: int) -> int:
    """Return where the white space that begins at `at` ends."""
    while at < stop:
        byte = byte_at(data, at)
        if byte > SPACE or byte not in (SPACE, NEWLINE, TAB, RETURN):
            break
        at += 1
    return at


@part_reads_outside
def character(data: Bytes, at: int, stop: int) -> int:
    """Return how many bytes the UTF-8 character beyond ASCII at `at` has; 0 where it is invalid.

    Table 3-7 of the Unicode standard: neither surrogates, nor overlong forms, nor beyond U+10FFFF.
    """
    lead = int(data[at])
    low, high, length = 0x80, 0xBF, 2
    if lead < 0xC2 or lead > 0xF4:
        return 0
    if lead >= 0xE0:
        length = 3
        if lead == 0xE0:
            low = 0xA0
        elif lead == 0xED:
            high = 0x9F
        elif lead >= 0xF0:
            length = 4
            if lead == 0xF0:
                low = 0x90
            elif lead == 0xF4:
                high = 0x8F
    if at + length > stop or not low <= data[at + 1] <= high:
        return 0
    for place in range(at + 2, at + length):
        if not 0x80 <= data[place] <= 0xBF:
            return 0
    return length


@part_reads_outside
def plain(data: Bytes, at: int, stop: int) -> int:
    """Return the first place that does not go on with a string.

    That is a quote, a backslash, a control character, invalid UTF-8 or `stop`.
    """
    while at < stop:
        at = past_plain(data, at, stop)
        if at == stop:
            break
        byte = byte_at(data, at)
        if byte >= 0x80:
            length = character(data, at, stop)
            if length == 0:
                break
            at += length
        elif byte in (QUOTE, BACKSLASH) or byte < SPACE:
            break
        else:
            at += 1
    return at


@part_reads_outside
def text(data: Bytes, at: int, stop: int) -> int:
    """Return the closing quote of a string without escapes; `at` is its opening quote."""
    if look(data, at, stop) != QUOTE:
        return REFUSED
    end = plain(data, at + 1, stop)
    return end if look(data, end, stop) == QUOTE else REFUSED


@reads_outside_in_place
def unit(data: Bytes, at: int, stop: int) -> int:
    """Return the number of the four hexadecimal digits at `at`; a negative one: they are none."""
    if at + 4 > stop:
        return REFUSED
    value = 0
    for place in range(at, at + 4):
        # A digit that is none is -1, and so is whatever has it in front.
        value = value << 4 | HEXADECIMAL[data[place]]
    return value


@reads_outside_in_place
def escape(data: Bytes, at: int, stop: int) -> tuple[int, int]:
    """Return the character that the escape at `at`, a backslash, writes, and where it ends."""
    after = look(data, at + 1, stop)
    if after != SMALL_U:
        found = ESCAPES[after] if after != END else REFUSED
        return found, (at + 2 if found >= 0 else REFUSED)
    at += 6
    found = unit(data, at - 4, stop)
    if HIGH <= found < LOW:
        if look(data, at, stop) != BACKSLASH or look(data, at + 1, stop) != SMALL_U:
            return REFUSED, REFUSED
        at += 6
        second = unit(data, at - 4, stop)
        if not LOW <= second < SURROGATES_STOP:
            return REFUSED, REFUSED
        return 0x10000 + ((found - HIGH) << 10) + (second - LOW), at
    if found < 0 or LOW <= found < SURROGATES_STOP:
        return REFUSED, REFUSED
    return found, at


@part_reads_outside
def escaped_text(data: Bytes, at: int, stop: int) -> int:
    """Return the closing quote of a string with escapes or without."""
    if look(data, at, stop) != QUOTE:
        return REFUSED
    at = plain(data, at + 1, stop)
    while look(data, at, stop) == BACKSLASH:
        _, at = escape(data, at, stop)
        if at == REFUSED:
            return REFUSED
        at = plain(data, at, stop)
    return at if look(data, at, stop) == QUOTE else REFUSED


@part_reads_outside
def digits(data: Bytes, at: int, stop: int, most: int) -> int:
    """Return where the digits that begin at `at` end, at most `most` of them."""
    stop = min(stop, at + most)
    at = past_digits(data, at, stop)
    while at < stop and ZERO <= byte_at(data, at) <= NINE:
        at += 1
    return at


@part_reads_outside
def skip_number(data: Bytes, at: int, stop: int) -> int:
    """Return where a number ends."""
    if look(data, at, stop) == MINUS:
        at += 1
    end = digits(data, at, stop, NUMBER_DIGITS)
    if at == end or (data[at] == ZERO and at + 1 < end):
        return REFUSED
    byte = look(data, end, stop)
    if byte == POINT:
        at = end + 1
        end = digits(data, at, stop, NUMBER_DIGITS)
        if at == end:
            return REFUSED
        byte = look(data, end, stop)
    if byte not in (SMALL_E, LARGE_E):
        return end
    at = end + 1
    at += look(data, at, stop) in (PLUS, MINUS)
    end = digits(data, at, stop, NUMBER_DIGITS)
    return end if at < end else REFUSED


@part_reads_outside
def skip_word(data: Bytes, at: int, stop: int, word: Bytes) -> int:
    """Return where the word at `at` ends."""
    end = at + len(word)
    return end if end <= stop and same(data, at, end, word, 0, len(word)) else REFUSED


@part_reads_outside
def skip_name(data: Bytes, at: int, stop: int) -> int:
    """Return where the value of a name at `at`, which may be anything, begins."""
    at = escaped_text(data, at, stop)
    if at == REFUSED:
        return REFUSED
    at = space(data, at + 1, stop)
    return space(data, at + 1, stop) if look(data, at, stop) == COLON else REFUSED


@part_reads_outside
def skip_flat(data: Bytes, at: int, stop: int) -> int:
    """Return where a value that is neither a list nor an object ends."""
    byte = look(data, at, stop)
    if byte == QUOTE:
        at = escaped_text(data, at, stop)
        return at + 1 if at != REFUSED else REFUSED
    if byte == TRUE[0]:
        return skip_word(data, at, stop, TRUE)
    if byte == FALSE[0]:
        return skip_word(data, at, stop, FALSE)
    if byte == NULL[0]:
        return skip_word(data, at, stop, NULL)
    return skip_number(data, at, stop)


@part_reads_outside
def skip(data: Bytes, at: int, stop: int) -> int:
    """Return where the value at `at` ends, whatever it is."""
    depth = 0
    objects = 0  # the lowest bit says whether the innermost level is an object
    while True:
        byte = look(data, at, stop)
        opened = byte in (OPEN_LIST, OPEN_OBJECT)
        if opened:
            if depth == DEPTH_MAX:
                return REFUSED
            depth += 1
            objects = objects << 1 | (byte == OPEN_OBJECT)
            at = space(data, at + 1, stop)
        else:
            at = skip_flat(data, at, stop)
        # A value is at its end, or one has been opened: close what closes here.
        while depth > 0 and at != REFUSED:
            at = space(data, at, stop)
            byte = look(data, at, stop)
            if byte != (CLOSE_OBJECT if objects & 1 else CLOSE_LIST):
                break
            depth -= 1
            objects >>= 1
            at += 1
            opened = False
        if depth == 0 or at == REFUSED:
            return at
        # Then the next value of the innermost level is due; behind another one a comma leads to it.
        if not opened:
            if byte != COMMA:
                return REFUSED
            at = space(data, at + 1, stop)
        if objects & 1:
            at = skip_name(data, at, stop)
            if at == REFUSED:
                return REFUSED


@part_reads_outside
def same(data: Bytes, start: int, stop: int, other: Bytes, begin: int, end: int) -> bool:
    """Return whether data[start:stop] and other[begin:end] are equal."""
    if stop - start != end - begin:
        return False
    # Beyond an array nothing is equal, and eight bytes at a time are not checked.
    within = min(start, begin) >= 0 and stop <= len(data) and end <= len(other)
    return within and same_bytes(data, start, other, begin, stop - start)


@reads_outside_with_arrays
def depths(data: Bytes, values: Longs) -> Longs:
    """Return how many lists and objects each record opens in each other, at most.

    Counted are the brackets outside strings, so it is the depth of any JSON, and some number for
    what is none.

    Args:
        data: uint8 (b,).
        values: int64 (n, 2), start and stop of each record; a negative start is none, of depth 0.

    Returns:
        int64 (n,).
    """
    deepest = np.zeros(len(values), dtype=np.int64)
    for i in range(len(values)):
        if values[i, 0] < 0:
            continue
        depth, inside, at = 0, False, values[i, 0]
        while at < values[i, 1]:
            byte = int(data[at])
            if byte == QUOTE:
                inside = not inside
            elif inside:
                at += byte == BACKSLASH  # what follows it does not end the string
            elif byte in (OPEN_LIST, OPEN_OBJECT):
                depth += 1
                deepest[i] = max(deepest[i], depth)
            elif byte in (CLOSE_LIST, CLOSE_OBJECT):
                depth -= 1
            at += 1
    return deepest


@reads_outside_with_arrays
def are_texts(data: Bytes, texts: Longs, most: int) -> Flags:
    """Return which texts are valid UTF-8 of at most `most` bytes; quotes and controls are allowed.

    Args:
        data: uint8 (b,).
        texts: int64 (n, 2), start and stop of each; a negative start is none, and no text.
    """
    valid = np.zeros(len(texts), dtype=np.bool_)
    for i in range(len(texts)):
        at, stop = texts[i, 0], texts[i, 1]
        if at < 0 or stop - at > most:
            continue
        while at < stop:
            length = 1 if data[at] < 0x80 else character(data, at, stop)
            if length == 0:
                break
            at += length
        valid[i] = at == stop
    return valid


@reads_outside_in_place
def encoded(decoded: Bytes, filled: int, point: int) -> int:
    """Write a character as UTF-8 and return how much is filled then."""
    if point < 0x80:
        decoded[filled] = point
        return filled + 1
    if point < 0x800:
        decoded[filled] = 0xC0 | point >> 6
    else:
        if point < 0x10000:
            decoded[filled] = 0xE0 | point >> 12
        else:
            decoded[filled] = 0xF0 | point >> 18
            filled += 1
            decoded[filled] = 0x80 | (point >> 12 & 0x3F)
        filled += 1
        decoded[filled] = 0x80 | (point >> 6 & 0x3F)
    decoded[filled + 1] = 0x80 | (point & 0x3F)
    return filled + 2


@part_reads_outside
def decoded_text(data: Bytes, at: int, stop: int, decoded: Bytes, filled: int) -> tuple[int, int]:
    """Decode the string at `at`, whose opening quote is there.

    Returns:
        its closing quote, or REFUSED; how much is filled then, or FULL.
    """
    at += 1
    # No character is longer than its escape.
    if filled + (stop - at) > len(decoded):
        return REFUSED, FULL
    while at < stop:
        byte = int(data[at])
        if byte == BACKSLASH:
            point, at = escape(data, at, stop)
            if at == REFUSED:
                return REFUSED, filled
            filled = encoded(decoded, filled, point)
            continue
        if byte == QUOTE:
            return at, filled
        length = 1 if byte < 0x80 else character(data, at, stop)
        if byte < SPACE or length == 0:
            return REFUSED, filled
        for _ in range(length):
            decoded[filled] = data[at]
            filled += 1
            at += 1
    return REFUSED, filled


@part_reads_outside
def put_decoded(
    data: Bytes, at: int, stop: int, decoded: Bytes, filled: int, log: Longs, used: int, slot: int
) -> tuple[int, int, int]:
    """Log the string at `at` as a text.

    Returns:
        where it ends, or REFUSED; how many rows are used now, or FULL; how much is filled then.
    """
    end, more = decoded_text(data, at, stop, decoded, filled)
    if more == FULL:
        return REFUSED, FULL, filled
    if end == REFUSED:
        return REFUSED, used, filled
    return end + 1, put(log, used, slot, TEXT, len(data) + filled, len(data) + more), more


@part_reads_outside
def same_beyond(data: Bytes, decoded: Bytes, start: int, begin: int, length: int) -> bool:
    """Return whether two texts are equal of which one or both are decoded."""
    behind, beyond = start - len(data), begin - len(data)
    if behind < 0:
        return same(data, start, start + length, decoded, beyond, beyond + length)
    if beyond < 0:
        return same(decoded, behind, behind + length, data, begin, begin + length)
    return same(decoded, behind, behind + length, decoded, beyond, beyond + length)


@reads_outside_in_place
def same_text(data: Bytes, decoded: Bytes, start: int, stop: int, begin: int, end: int) -> bool:
    """Return whether the texts from `start` to `stop` and from `begin` to `end` are equal."""
    if stop - start != end - begin:
        return False
    if max(start, begin) < len(data):
        return same(data, start, stop, data, begin, end)
    return same_beyond(data, decoded, start, begin, stop - start)


@kernel_part
def put_one(log: Longs, used: int, slot: int, kind: int, at: int, end: int) -> int:
    """Log the value of a kind that `json_log.one` says from `at` to `end`; see `put`."""
    if kind == OTHER:
        return put(log, used, slot, OTHER, -1, -1)
    quote = kind == TEXT
    return put(log, used, slot, kind, at + quote, end - quote)
