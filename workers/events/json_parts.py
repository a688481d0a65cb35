"""Building blocks of the JSON scanner, stricter than the general reader (msgspec), never laxer.

They accept as plain:

    text    a string without a backslash
    escape  any JSON escape; surrogates only in pairs
    number  any JSON number with at most NUMBER_DIGITS digits in every part
    value   a string with or without escapes, a number, true, false, null; lists and objects of
            such values, nested at most DEPTH_MAX deep

Every string must be valid UTF-8 as CPython defines it, even where msgspec would not check.
`data`, uint8 (b,), has the bytes of a batch; `stop` is the exclusive end of the record. Functions
return positions in `data`, or REFUSED if not plain.

Strings with escapes are decoded into `decoded`, uint8, which logically follows the batch: positions
from len(data) on index it. `filled` is its used length; FULL means that it has no room. If a record
is declined, the caller continues from the previous `filled`.
"""

from __future__ import annotations

import numpy as np

from workers.arrays.compiled import (
    checked_inline,
    checked_kernel_with_arrays,
    checked_part,
    kernel_part,
)
from workers.arrays.types import Bools, Bytes, Longs
from workers.arrays.words import past_digits, past_plain, same_bytes
from workers.events.log import FULL, OTHER, TEXT, put

REFUSED = -1
END = -1
QUOTE, BACKSLASH, COMMA, COLON, PLUS, MINUS, POINT = 34, 92, 44, 58, 43, 45, 46
OPEN_LIST, CLOSE_LIST, OPEN_OBJECT, CLOSE_OBJECT = 91, 93, 123, 125
SPACE, TAB, NEWLINE, RETURN = 32, 9, 10, 13
ZERO, NINE = 48, 57
TRUE, FALSE, NULL = (np.frombuffer(word, dtype=np.uint8) for word in (b"true", b"false", b"null"))
SMALL_E, LARGE_E, SMALL_U = 101, 69, 117
# By byte: the character that it escapes to, and its value as a hexadecimal digit; -1: invalid.
ESCAPES = np.full(256, -1)
ESCAPES[list(b'"\\/bfnrt')] = list(b'"\\/\b\f\n\r\t')
HEXADECIMAL = np.full(256, -1)
HEXADECIMAL[list(b"0123456789abcdefABCDEF")] = [*range(16), *range(10, 16)]
ESCAPES.flags.writeable = HEXADECIMAL.flags.writeable = False
# UTF-16 surrogates: high halves from HIGH on, low halves from LOW to SURROGATES_STOP.
HIGH, LOW, SURROGATES_STOP = 0xD800, 0xDC00, 0xE000
# The general reader rejects integers of more than 4,300 digits as not JSON.
NUMBER_DIGITS = 400
# Below 64: one bit per level, the innermost lowest, says whether it is an object.
DEPTH_MAX = 32


@checked_inline
def byte_at(data: Bytes, at: int) -> int:
    """Return the byte at `at`; an unsigned index skips the negative-index wraparound."""
    return int(data[np.uint64(at)])


@checked_inline
def look(data: Bytes, at: int, stop: int) -> int:
    return byte_at(data, at) if at < stop else END


@checked_part
def space(data: Bytes, at: int, stop: int) -> int:
    while at < stop:
        byte = byte_at(data, at)
        if byte > SPACE or byte not in (SPACE, NEWLINE, TAB, RETURN):
            break
        at += 1
    return at


@checked_part
def character(data: Bytes, at: int, stop: int) -> int:
    """Return the byte length of a non-ASCII character; 0 if invalid by table 3-7 of Unicode."""
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


@checked_part
def plain(data: Bytes, at: int, stop: int) -> int:
    """Skip plain text up to a quote, backslash, control character, invalid UTF-8 or `stop`."""
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


@checked_part
def text(data: Bytes, at: int, stop: int) -> int:
    """Return the closing quote of a string without escapes that opens at `at`."""
    if look(data, at, stop) != QUOTE:
        return REFUSED
    end = plain(data, at + 1, stop)
    return end if look(data, end, stop) == QUOTE else REFUSED


@checked_inline
def unit(data: Bytes, at: int, stop: int) -> int:
    """Return the value of the four hexadecimal digits at `at`; negative if invalid."""
    if at + 4 > stop:
        return REFUSED
    value = 0
    for place in range(at, at + 4):
        # An invalid digit is -1, and keeps the value negative.
        value = value << 4 | HEXADECIMAL[data[place]]
    return value


@checked_inline
def escape(data: Bytes, at: int, stop: int) -> tuple[int, int]:
    """Decode the escape at `at`, a backslash; return its code point and end."""
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


@checked_part
def escaped_text(data: Bytes, at: int, stop: int) -> int:
    if look(data, at, stop) != QUOTE:
        return REFUSED
    at = plain(data, at + 1, stop)
    while look(data, at, stop) == BACKSLASH:
        _, at = escape(data, at, stop)
        if at == REFUSED:
            return REFUSED
        at = plain(data, at, stop)
    return at if look(data, at, stop) == QUOTE else REFUSED


@checked_part
def digits(data: Bytes, at: int, stop: int, most: int) -> int:
    stop = min(stop, at + most)
    at = past_digits(data, at, stop)
    while at < stop and ZERO <= byte_at(data, at) <= NINE:
        at += 1
    return at


@checked_part
def skip_number(data: Bytes, at: int, stop: int) -> int:
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


@checked_part
def skip_word(data: Bytes, at: int, stop: int, word: Bytes) -> int:
    end = at + len(word)
    return end if end <= stop and same(data, at, end, word, 0, len(word)) else REFUSED


@checked_part
def skip_name(data: Bytes, at: int, stop: int) -> int:
    at = escaped_text(data, at, stop)
    if at == REFUSED:
        return REFUSED
    at = space(data, at + 1, stop)
    return space(data, at + 1, stop) if look(data, at, stop) == COLON else REFUSED


@checked_part
def skip_flat(data: Bytes, at: int, stop: int) -> int:
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


@checked_part
def skip(data: Bytes, at: int, stop: int) -> int:
    depth = 0
    objects = 0
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
        if not opened:
            if byte != COMMA:
                return REFUSED
            at = space(data, at + 1, stop)
        if objects & 1:
            at = skip_name(data, at, stop)
            if at == REFUSED:
                return REFUSED


@checked_part
def same(data: Bytes, start: int, stop: int, other: Bytes, begin: int, end: int) -> bool:
    if stop - start != end - begin:
        return False
    # Nothing past the end of an array is equal; `same_bytes` is not bounds-checked.
    within = min(start, begin) >= 0 and stop <= len(data) and end <= len(other)
    return within and same_bytes(data, start, other, begin, stop - start)


@checked_kernel_with_arrays
def depths(data: Bytes, values: Longs) -> Longs:
    """Return the nesting depth of each record, int64 (n,): exact for valid JSON, 0 for no value."""
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
                at += byte == BACKSLASH  # an escaped quote does not end the string
            elif byte in (OPEN_LIST, OPEN_OBJECT):
                depth += 1
                deepest[i] = max(deepest[i], depth)
            elif byte in (CLOSE_LIST, CLOSE_OBJECT):
                depth -= 1
            at += 1
    return deepest


@checked_kernel_with_arrays
def are_texts(data: Bytes, texts: Longs, most: int) -> Bools:
    """Return a mask of the texts that exist and are valid UTF-8 of at most `most` bytes."""
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


@checked_inline
def encoded(decoded: Bytes, filled: int, point: int) -> int:
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


@checked_part
def decoded_text(data: Bytes, at: int, stop: int, decoded: Bytes, filled: int) -> tuple[int, int]:
    """Decode the string at `at`; return the closing quote or REFUSED, and `filled` or FULL."""
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


@checked_part
def put_decoded(
    data: Bytes, at: int, stop: int, decoded: Bytes, filled: int, log: Longs, used: int, slot: int
) -> tuple[int, int, int]:
    """Log the string at `at`; return its end or REFUSED, the rows used or FULL, and `filled`."""
    end, more = decoded_text(data, at, stop, decoded, filled)
    if more == FULL:
        return REFUSED, FULL, filled
    if end == REFUSED:
        return REFUSED, used, filled
    return end + 1, put(log, used, slot, TEXT, len(data) + filled, len(data) + more), more


@checked_part
def same_beyond(data: Bytes, decoded: Bytes, start: int, begin: int, length: int) -> bool:
    """Compare two texts, at least one of them in `decoded`."""
    behind, beyond = start - len(data), begin - len(data)
    if behind < 0:
        return same(data, start, start + length, decoded, beyond, beyond + length)
    if beyond < 0:
        return same(decoded, behind, behind + length, data, begin, begin + length)
    return same(decoded, behind, behind + length, decoded, beyond, beyond + length)


@checked_inline
def same_text(data: Bytes, decoded: Bytes, start: int, stop: int, begin: int, end: int) -> bool:
    if stop - start != end - begin:
        return False
    if max(start, begin) < len(data):
        return same(data, start, stop, data, begin, end)
    return same_beyond(data, decoded, start, begin, stop - start)


@kernel_part
def put_one(log: Longs, used: int, slot: int, kind: int, at: int, end: int) -> int:
    """Log the value from `at` to `end`, of a kind that `json_scanner.one` returned; see `put`."""
    if kind == OTHER:
        return put(log, used, slot, OTHER, -1, -1)
    quote = kind == TEXT
    return put(log, used, slot, kind, at + quote, end - quote)
