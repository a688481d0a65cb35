"""Scan JSON records along the tree of wanted paths into event logs.

The scanner is stricter than the general reader (`events.json`), never laxer, and declines to it
every record that it is unsure of. It reads:

    record  one object, surrounded by optional white space
    names   strings in every object on a wanted path; each wanted name once
    values  strings, numbers within the limits of `events.log`, true, false, null; lists and objects
            that are skipped
    items   such values, lists of them, objects of at most MAP_NAMES_MAX with distinct names
    inner   null, or the object or list that the wanted paths require
    others  skipped: strings (unpaired surrogate escapes, too), numbers with at most NUMBER_DIGITS
            digits in every part, true, false, null; lists and objects of such values, nested at
            most DEPTH_MAX deep

Every string must be valid UTF-8 as CPython defines it.
`data`, uint8 (b,), has the bytes of a batch; `stop` is the exclusive end of the record. Functions
return positions in `data`, or REFUSED.

Strings with escapes are decoded into `decoded`, uint8: positions from len(data) on index it.
`filled` is its used length; FULL means no room. A declined record's `filled` is discarded.
"""

from typing import NamedTuple

import numpy as np

from workers.arrays.compiled import (
    checked_inline,
    checked_kernel,
    checked_kernel_with_arrays,
    checked_part,
    kernel_part,
)
from workers.arrays.types import Bools, Bytes, Longs
from workers.arrays.words import past_digits, past_plain, same_bytes
from workers.events import log as kinds
from workers.events.log import (
    BEHIND_DIGITS,
    DECLINED,
    EXPONENT_DIGITS,
    FULL,
    MAP_NAMES_MAX,
    OTHER,
    POINT_DIGITS,
    START,
    STOP,
    TEXT,
    WHOLE_DIGITS,
    put,
)

REFUSED = -1
END = -1
QUOTE = 34
BACKSLASH = 92
COMMA = 44
COLON = 58
PLUS = 43
MINUS = 45
POINT = 46
OPEN_LIST = 91
CLOSE_LIST = 93
OPEN_OBJECT = 123
CLOSE_OBJECT = 125
SPACE = 32
TAB = 9
NEWLINE = 10
RETURN = 13
ZERO = 48
NINE = 57
TRUE, FALSE, NULL = (
    np.frombuffer(word, dtype=np.uint8) for word in (b"true", b"false", b"null")
)
SMALL_E = 101
LARGE_E = 69
SMALL_U = 117
# By byte: the character that it escapes, and its value as a hexadecimal digit; -1: invalid.
ESCAPES = np.full(256, -1)
ESCAPES[list(b'"\\/bfnrt')] = list(b'"\\/\b\f\n\r\t')
HEXADECIMAL = np.full(256, -1)
HEXADECIMAL[list(b"0123456789abcdefABCDEF")] = [*range(16), *range(10, 16)]
ESCAPES.flags.writeable = HEXADECIMAL.flags.writeable = False
# UTF-16 surrogates: high halves from HIGH on, low halves from LOW to SURROGATES_STOP.
HIGH = 0xD800
LOW = 0xDC00
SURROGATES_STOP = 0xE000
NUMBER_DIGITS = 400
# Below 64: one bit per level, the innermost lowest, marks objects.
DEPTH_MAX = 32


@checked_inline
def byte_at(data: Bytes, at: int) -> int:
    """Return the byte at `at`; an unsigned index skips the negative-index wraparound."""
    return int(data[np.uint64(at)])


@checked_inline
def peek(data: Bytes, at: int, stop: int) -> int:
    return byte_at(data, at) if at < stop else END


@checked_part
def skip_space(data: Bytes, at: int, stop: int) -> int:
    while at < stop:
        byte = byte_at(data, at)
        if byte > SPACE or byte not in (SPACE, NEWLINE, TAB, RETURN):
            break
        at += 1
    return at


@checked_part
def utf8_length(data: Bytes, at: int, stop: int) -> int:
    """Return the byte length of a non-ASCII character; 0 if invalid by table 3-7 of Unicode."""
    lead = int(data[at])
    low = 0x80
    high = 0xBF
    length = 2
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
def skip_plain(data: Bytes, at: int, stop: int) -> int:
    """Skip plain text up to a quote, backslash, control character, invalid UTF-8 or `stop`."""
    while at < stop:
        at = past_plain(data, at, stop)
        if at == stop:
            break
        byte = byte_at(data, at)
        if byte >= 0x80:
            length = utf8_length(data, at, stop)
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
    if peek(data, at, stop) != QUOTE:
        return REFUSED
    end = skip_plain(data, at + 1, stop)
    return end if peek(data, end, stop) == QUOTE else REFUSED


@checked_inline
def unit(data: Bytes, at: int, stop: int) -> int:
    """Return the value of the four hexadecimal digits at `at`; negative if invalid."""
    if at + 4 > stop:
        return REFUSED
    value = 0
    for place in range(at, at + 4):
        # An invalid digit, -1, keeps the value negative.
        value = value << 4 | HEXADECIMAL[data[place]]
    return value


@checked_inline
def escape(data: Bytes, at: int, stop: int) -> tuple[int, int]:
    """Decode the escape at `at`, a backslash; return its code point and end."""
    after = peek(data, at + 1, stop)
    if after != SMALL_U:
        found = ESCAPES[after] if after != END else REFUSED
        return found, (at + 2 if found >= 0 else REFUSED)
    at += 6
    found = unit(data, at - 4, stop)
    if HIGH <= found < LOW:
        if peek(data, at, stop) != BACKSLASH or peek(data, at + 1, stop) != SMALL_U:
            return REFUSED, REFUSED
        at += 6
        second = unit(data, at - 4, stop)
        if not LOW <= second < SURROGATES_STOP:
            return REFUSED, REFUSED
        return 0x10000 + ((found - HIGH) << 10) + (second - LOW), at
    if found < 0 or LOW <= found < SURROGATES_STOP:
        return REFUSED, REFUSED
    return found, at


@checked_inline
def skip_escape(data: Bytes, at: int, stop: int) -> int:
    """Return the end of the escape at `at`, a backslash; surrogates need not be in pairs."""
    after = peek(data, at + 1, stop)
    if after == SMALL_U:
        return at + 6 if unit(data, at + 2, stop) >= 0 else REFUSED
    return at + 2 if after != END and ESCAPES[after] >= 0 else REFUSED


@checked_part
def skip_escaped(data: Bytes, at: int, stop: int) -> int:
    """Skip the rest of an unwanted string from an escape on, as `skip_text`."""
    while peek(data, at, stop) == BACKSLASH:
        at = skip_escape(data, at, stop)
        if at == REFUSED:
            return REFUSED
        at = skip_plain(data, at, stop)
    return at if peek(data, at, stop) == QUOTE else REFUSED


@checked_part
def skip_text(data: Bytes, at: int, stop: int) -> int:
    """Return the closing quote of an unwanted string that opens at `at`."""
    if peek(data, at, stop) != QUOTE:
        return REFUSED
    at = skip_plain(data, at + 1, stop)
    if peek(data, at, stop) == QUOTE:
        return at
    return skip_escaped(data, at, stop)


@checked_part
def skip_digits(data: Bytes, at: int, stop: int, most: int) -> int:
    stop = min(stop, at + most)
    at = past_digits(data, at, stop)
    while at < stop and ZERO <= byte_at(data, at) <= NINE:
        at += 1
    return at


@checked_part
def skip_number(data: Bytes, at: int, stop: int) -> int:
    if peek(data, at, stop) == MINUS:
        at += 1
    end = skip_digits(data, at, stop, NUMBER_DIGITS)
    if at == end or (data[at] == ZERO and at + 1 < end):
        return REFUSED
    byte = peek(data, end, stop)
    if byte == POINT:
        at = end + 1
        end = skip_digits(data, at, stop, NUMBER_DIGITS)
        if at == end:
            return REFUSED
        byte = peek(data, end, stop)
    if byte not in (SMALL_E, LARGE_E):
        return end
    at = end + 1
    at += peek(data, at, stop) in (PLUS, MINUS)
    end = skip_digits(data, at, stop, NUMBER_DIGITS)
    return end if at < end else REFUSED


@checked_part
def skip_word(data: Bytes, at: int, stop: int, word: Bytes) -> int:
    end = at + len(word)
    return end if end <= stop and same(data, at, end, word, 0, len(word)) else REFUSED


@checked_part
def skip_name(data: Bytes, at: int, stop: int) -> int:
    at = skip_text(data, at, stop)
    if at == REFUSED:
        return REFUSED
    at = skip_space(data, at + 1, stop)
    return skip_space(data, at + 1, stop) if peek(data, at, stop) == COLON else REFUSED


@checked_part
def scan_word(data: Bytes, at: int, stop: int) -> tuple[int, int]:
    byte = peek(data, at, stop)
    if byte == TRUE[0]:
        return skip_word(data, at, stop, TRUE), kinds.TRUE
    if byte == FALSE[0]:
        return skip_word(data, at, stop, FALSE), kinds.FALSE
    if byte == NULL[0]:
        return skip_word(data, at, stop, NULL), kinds.NULL
    return REFUSED, kinds.OTHER


@checked_part
def skip_flat(data: Bytes, at: int, stop: int) -> int:
    byte = peek(data, at, stop)
    if byte == QUOTE:
        at = skip_text(data, at, stop)
        return at + 1 if at != REFUSED else REFUSED
    end, _ = scan_word(data, at, stop)
    return skip_number(data, at, stop) if end == REFUSED else end


@checked_part
def skip(data: Bytes, at: int, stop: int) -> int:
    depth = 0
    objects = 0
    while True:
        byte = peek(data, at, stop)
        opened = byte in (OPEN_LIST, OPEN_OBJECT)
        if opened:
            if depth == DEPTH_MAX:
                return REFUSED
            depth += 1
            objects = objects << 1 | (byte == OPEN_OBJECT)
            at = skip_space(data, at + 1, stop)
        else:
            at = skip_flat(data, at, stop)
        while depth > 0 and at != REFUSED:
            at = skip_space(data, at, stop)
            byte = peek(data, at, stop)
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
            at = skip_space(data, at + 1, stop)
        if objects & 1:
            at = skip_name(data, at, stop)
            if at == REFUSED:
                return REFUSED


@checked_part
def same(
    data: Bytes, start: int, stop: int, other: Bytes, begin: int, end: int
) -> bool:
    if stop - start != end - begin:
        return False
    # Nothing past the end of an array is equal; `same_bytes` is not bounds-checked.
    within = min(start, begin) >= 0 and stop <= len(data) and end <= len(other)
    return within and same_bytes(data, start, other, begin, stop - start)


@checked_kernel_with_arrays
def nesting_depths(data: Bytes, values: Longs) -> Longs:
    """Return the nesting depth of each record, int64 (n,): exact for valid JSON, 0 for no value."""
    deepest = np.zeros(len(values), dtype=np.int64)
    for i in range(len(values)):
        if values[i, 0] < 0:
            continue
        depth = 0
        inside = False
        at = values[i, 0]
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
def valid_texts(data: Bytes, texts: Longs, most: int) -> Bools:
    """Return a mask of the texts that exist and are valid UTF-8 of at most `most` bytes."""
    valid = np.zeros(len(texts), dtype=np.bool_)
    for i in range(len(texts)):
        at = texts[i, 0]
        stop = texts[i, 1]
        if at < 0 or stop - at > most:
            continue
        while at < stop:
            length = 1 if data[at] < 0x80 else utf8_length(data, at, stop)
            if length == 0:
                break
            at += length
        valid[i] = at == stop
    return valid


@checked_inline
def put_utf8(decoded: Bytes, filled: int, point: int) -> int:
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
def decoded_text(
    data: Bytes, at: int, stop: int, decoded: Bytes, filled: int
) -> tuple[int, int]:
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
            filled = put_utf8(decoded, filled, point)
            continue
        if byte == QUOTE:
            return at, filled
        length = 1 if byte < 0x80 else utf8_length(data, at, stop)
        if byte < SPACE or length == 0:
            return REFUSED, filled
        for _ in range(length):
            decoded[filled] = data[at]
            filled += 1
            at += 1
    return REFUSED, filled


@checked_part
def put_decoded(
    data: Bytes,
    at: int,
    stop: int,
    decoded: Bytes,
    filled: int,
    log: Longs,
    used: int,
    slot: int,
) -> tuple[int, int, int]:
    """Log the string at `at`; return its end or REFUSED, the rows used or FULL, and `filled`."""
    end, more = decoded_text(data, at, stop, decoded, filled)
    if more == FULL:
        return REFUSED, FULL, filled
    if end == REFUSED:
        return REFUSED, used, filled
    return (
        end + 1,
        put(log, used, slot, TEXT, len(data) + filled, len(data) + more),
        more,
    )


@checked_part
def same_beyond(
    data: Bytes, decoded: Bytes, start: int, begin: int, length: int
) -> bool:
    """Compare two texts, at least one of them in `decoded`."""
    behind = start - len(data)
    beyond = begin - len(data)
    if behind < 0:
        return same(data, start, start + length, decoded, beyond, beyond + length)
    if beyond < 0:
        return same(decoded, behind, behind + length, data, begin, begin + length)
    return same(decoded, behind, behind + length, decoded, beyond, beyond + length)


@checked_inline
def same_text(
    data: Bytes, decoded: Bytes, start: int, stop: int, begin: int, end: int
) -> bool:
    if stop - start != end - begin:
        return False
    if max(start, begin) < len(data):
        return same(data, start, stop, data, begin, end)
    return same_beyond(data, decoded, start, begin, stop - start)


@kernel_part
def put_one(log: Longs, used: int, slot: int, kind: int, at: int, end: int) -> int:
    """Log the value from `at` to `end`, of a kind that `scan_value` returned; see `put`."""
    if kind == OTHER:
        return put(log, used, slot, OTHER, -1, -1)
    quote = kind == TEXT
    return put(log, used, slot, kind, at + quote, end - quote)


LOWER = 32
ESCAPED = -1


@checked_inline
def scan_number(data: Bytes, at: int, stop: int) -> tuple[int, int]:
    begin = at
    if peek(data, at, stop) == MINUS:
        at += 1
    end = skip_digits(data, at, stop, WHOLE_DIGITS)
    zero = end > at and data[at] == ZERO
    if end == at or (zero and end > at + 1):
        return REFUSED, kinds.OTHER
    byte = peek(data, end, stop)
    if byte != POINT and byte | LOWER != SMALL_E:
        return (REFUSED if zero and at > begin else end), kinds.WHOLE
    if end - at > POINT_DIGITS:
        return REFUSED, kinds.OTHER
    if byte == POINT:
        at = end + 1
        end = skip_digits(data, at, stop, BEHIND_DIGITS)
        if end == at:
            return REFUSED, kinds.NUMBER
        if peek(data, end, stop) | LOWER != SMALL_E:
            return end, kinds.NUMBER
    at = end + 1
    at += peek(data, at, stop) in (PLUS, MINUS)
    end = skip_digits(data, at, stop, EXPONENT_DIGITS)
    return (end if end > at else REFUSED), kinds.EXPONENT


@checked_inline
def scan_value(data: Bytes, at: int, stop: int) -> tuple[int, int]:
    """Return the end (or REFUSED) and kind of a value; ESCAPED for a string that is not plain."""
    byte = peek(data, at, stop)
    if byte == QUOTE:
        end = skip_plain(data, at + 1, stop)
        return end + 1, (kinds.TEXT if peek(data, end, stop) == QUOTE else ESCAPED)
    if byte == MINUS or ZERO <= byte <= NINE:
        return scan_number(data, at, stop)
    if byte in (OPEN_LIST, OPEN_OBJECT):
        return skip(data, at, stop), kinds.OTHER
    return scan_word(data, at, stop)


# Columns of `nodes`. The children of a node are contiguous, from FIRST to LAST.
NODE_SLOT, SORT, FIRST, LAST, ELEMENTS, LIST_SLOT = range(6)
# The location of the node's name in `names`, its `signature`, and the `bit`s of its children.
NAME_START = 6
NAME_STOP = 7
SIGNATURE = 8
BITS = 9
# 1 if the name may occur in JSON unescaped, else 0.
PLAIN = 10
NODE_COLUMNS = 11
# Wanted at a node: one value, items, an object or a list; of SEVERAL, only null can be read.
ONE, ITEMS, OBJECT, ELEMENTS_OF, SEVERAL = range(5)
NONE = -1

# Columns of `stack`, one row per level: the node (of a list: of its elements); LIST row, NONE for
# an object; the child to try first; the previous wanted child, or NONE.
HELD_NODE = 0
HELD_ROW = 1
HELD_HINT = 2
HELD_BEFORE = 3
HELD_COLUMNS = 4

# Columns of `seen`: whether a child occurred in the current object; hints from the last record,
# since field order rarely changes: the node's first child, and the child after this one.
SEEN = 0
MET = 1
NEXT = 2
SEEN_COLUMNS = 3


class Walk(NamedTuple):
    """The wanted fields, and scratch of one thread; int64 tables with the columns above.

    `nodes` and `seen` have the root in row 0. `names`, uint8, are quoted UTF-8, padded by a word.
    """

    nodes: Longs
    names: Bytes
    stack: Longs
    seen: Longs


@checked_kernel
def signature(data: Bytes, start: int, stop: int) -> int:
    """Combine length, first and last byte of a name; quotes make an empty one safe to index."""
    return (stop - start) << 16 | int(data[start]) << 8 | int(data[stop - 1])


@checked_kernel
def bit(sign: int) -> int:
    """Map a signature to one of 64 bits, to rule out most names that match no child."""
    return (sign + (sign >> 7) + (sign >> 13)) & 63


@checked_part
def child_named(
    data: Bytes, start: int, stop: int, nodes: Longs, names: Bytes, node: int, hint: int
) -> int:
    """Return the child that data[start:stop] names, trying `hint` first; NONE if not found."""
    sign = signature(data, start, stop)
    if not nodes[node, BITS] >> bit(sign) & 1:
        return NONE
    first = nodes[node, FIRST]
    last = nodes[node, LAST]
    child = hint
    for _ in range(last - first):
        if child == last:
            child = first
        if nodes[child, SIGNATURE] == sign:
            begin = nodes[child, NAME_START]
            end = nodes[child, NAME_STOP]
            if same(data, start, stop, names, begin, end):
                return child
        child += 1
    return NONE


@checked_inline
def is_named(
    data: Bytes, at: int, stop: int, nodes: Longs, names: Bytes, child: int
) -> bool:
    if nodes[child, PLAIN] == 0:
        return False
    begin = nodes[child, NAME_START] - 1
    end = nodes[child, NAME_STOP] + 1
    behind = at + end - begin
    return behind <= stop and same(data, at, behind, names, begin, end)


@checked_part
def child_escaped(
    data: Bytes,
    at: int,
    stop: int,
    walk: Walk,
    node: int,
    hint: int,
    decoded: Bytes,
    filled: int,
) -> tuple[int, int]:
    """Return the closing quote, FULL or REFUSED, of a non-plain name, and the child it names."""
    end, more = decoded_text(data, at, stop, decoded, filled)
    if more == FULL:
        return FULL, NONE
    if end == REFUSED:
        return REFUSED, NONE
    # The name has an escape, so it is not empty.
    return end, child_named(decoded, filled, more, walk.nodes, walk.names, node, hint)


@checked_part
def log_items(
    data: Bytes,
    at: int,
    stop: int,
    log: Longs,
    used: int,
    slot: int,
    decoded: Bytes,
    filled: int,
) -> tuple[int, int, int]:
    """Log a list or object as items, a row for each value; returns as `put_decoded`."""
    row = used
    count = 0
    mapped = peek(data, at, stop) == OPEN_OBJECT
    close = CLOSE_OBJECT if mapped else CLOSE_LIST
    used = put(log, used, slot, kinds.MAP if mapped else kinds.LIST, 0, NONE)
    at = skip_space(data, at + 1, stop)
    if peek(data, at, stop) == close:
        return at + 1, used, filled
    while used != FULL:
        if mapped:
            if peek(data, at, stop) != QUOTE or count == MAP_NAMES_MAX:
                return REFUSED, used, filled
            name = used
            end = skip_plain(data, at + 1, stop)
            if peek(data, end, stop) == QUOTE:
                used = put(log, used, slot, kinds.TEXT, at + 1, end)
                at = end + 1
            else:
                at, used, filled = put_decoded(
                    data, at, stop, decoded, filled, log, used, slot
                )
            if at == REFUSED or used == FULL:
                return REFUSED, used, filled
            for other in range(row + 1, name, 2):
                start = log[name, START]
                end = log[name, STOP]
                if same_text(
                    data, decoded, start, end, log[other, START], log[other, STOP]
                ):
                    return REFUSED, used, filled
            at = skip_space(data, at, stop)
            if peek(data, at, stop) != COLON:
                return REFUSED, used, filled
            at = skip_space(data, at + 1, stop)
        end, kind = scan_value(data, at, stop)
        if kind == ESCAPED:
            end, used, filled = put_decoded(
                data, at, stop, decoded, filled, log, used, slot
            )
        elif end != REFUSED:
            used = put_one(log, used, slot, kind, at, end)
        if end == REFUSED:
            return REFUSED, used, filled
        count += 1
        at = skip_space(data, end, stop)
        byte = peek(data, at, stop)
        if byte == close:
            break
        if byte != COMMA:
            return REFUSED, used, filled
        at = skip_space(data, at + 1, stop)
    if used != FULL:
        log[row, START] = count
    return at + 1, used, filled


@checked_inline
def scan_record(
    data: Bytes,
    at: int,
    stop: int,
    walk: Walk,
    log: Longs,
    used: int,
    decoded: Bytes,
    filled: int,
) -> tuple[int, int]:
    """Log a record from row `used` on; return the rows used, DECLINED or FULL, and `filled`."""
    nodes, names, stack, seen = walk
    level = 0
    node = NONE
    row = NONE
    hint = NONE
    child = 0
    before = NONE
    at = skip_space(data, at, stop)
    if peek(data, at, stop) != OPEN_OBJECT:
        return DECLINED, filled
    while True:
        # The value of `child` begins at `at`; NONE: not wanted.
        opens = False
        if child == NONE:
            at = skip(data, at, stop)
        else:
            slot = nodes[child, NODE_SLOT]
            sort = nodes[child, SORT]
            byte = peek(data, at, stop)
            if sort == ITEMS and byte in (OPEN_LIST, OPEN_OBJECT):
                at, used, filled = log_items(
                    data, at, stop, log, used, slot, decoded, filled
                )
            elif sort in (ONE, ITEMS):
                end, kind = scan_value(data, at, stop)
                if kind == ESCAPED:
                    end, used, filled = put_decoded(
                        data, at, stop, decoded, filled, log, used, slot
                    )
                else:
                    used = put_one(log, used, slot, kind, at, end)
                at = end
            elif byte == NULL[0] and row == NONE:
                end = skip_word(data, at, stop, NULL)
                if slot != NONE:
                    used = put(log, used, slot, kinds.NULL, at, end)
                at = end
            elif (
                byte != (OPEN_OBJECT if sort == OBJECT else OPEN_LIST)
                or sort == SEVERAL
            ):
                return DECLINED, filled
            else:
                opens = True
                at += 1
                if slot != NONE:
                    used = put(log, used, slot, kinds.OTHER, NONE, NONE)
                if level > 0:
                    stack[level - 1, HELD_NODE] = node
                    stack[level - 1, HELD_ROW] = row
                    stack[level - 1, HELD_HINT] = hint
                    stack[level - 1, HELD_BEFORE] = before
                level += 1
                if sort == OBJECT:
                    node = child
                    row = NONE
                    hint = seen[child, MET]
                    before = NONE
                    for each in range(nodes[child, FIRST], nodes[child, LAST]):
                        seen[each, SEEN] = 0
                else:
                    node = nodes[child, ELEMENTS]
                    row = used
                    used = put(log, used, nodes[child, LIST_SLOT], kinds.LIST, 0, NONE)
            if used == FULL:
                return FULL, filled
        if at == REFUSED:
            return DECLINED, filled
        # After a value or an opening bracket: close all levels that end here.
        while True:
            at = skip_space(data, at, stop)
            byte = peek(data, at, stop)
            if byte != (CLOSE_OBJECT if row == NONE else CLOSE_LIST):
                break
            opens = False
            at += 1
            level -= 1
            if level == 0:
                return (
                    used if skip_space(data, at, stop) == stop else DECLINED
                ), filled
            node = stack[level - 1, HELD_NODE]
            row = stack[level - 1, HELD_ROW]
            hint = stack[level - 1, HELD_HINT]
            before = stack[level - 1, HELD_BEFORE]
        # Next value of the innermost level; a comma separates it from a previous one.
        if not opens:
            if byte != COMMA:
                return DECLINED, filled
            at = skip_space(data, at + 1, stop)
        if row != NONE:
            log[row, START] += 1
            child = node
            continue
        if is_named(data, at, stop, nodes, names, hint):
            child = hint
            end = at + 1 + nodes[child, NAME_STOP] - nodes[child, NAME_START]
        else:
            end = text(data, at, stop)
            if end != REFUSED:
                child = child_named(data, at + 1, end, nodes, names, node, hint)
            elif peek(data, at, stop) == QUOTE:
                end, child = child_escaped(
                    data, at, stop, walk, node, hint, decoded, filled
                )
            if end < 0:
                return (FULL if end == FULL else DECLINED), filled
        if child != NONE:
            if seen[child, SEEN]:
                return DECLINED, filled
            seen[child, SEEN] = 1
            if child != hint and before == NONE:
                seen[node, MET] = child
            elif child != hint:
                seen[before, NEXT] = child
            before = child
            hint = seen[child, NEXT]
        at = skip_space(data, end + 1, stop)
        if peek(data, at, stop) != COLON:
            return DECLINED, filled
        at = skip_space(data, at + 1, stop)


@checked_kernel
def scan_all(
    data: Bytes,
    values: Longs,
    walk: Walk,
    begin: int,
    number: Longs,
    rows: Longs,
    decoded: Bytes,
) -> tuple[int, int]:
    """Log the records from `begin` on, until the output is full.

    Returns the record to resume from, or n, and the bytes used in `decoded`; writes the log rows of
    each record, or DECLINED, to `number`.
    """
    used = 0
    filled = 0
    for i in range(begin, len(values)):
        number[i] = DECLINED
        start = values[i, 0]
        stop = values[i, 1]
        if start >= 0:
            end, more = scan_record(
                data, start, stop, walk, rows, used, decoded, filled
            )
            if end == FULL:
                return i, filled
            if end != DECLINED:
                number[i] = end - used
                used = end
                filled = more
    return len(values), filled
