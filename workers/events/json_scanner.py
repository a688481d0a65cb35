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
return positions in `data`, or REFUSED where the record is to be declined.

Strings with escapes are decoded into `decoded`, uint8: positions from len(data) on index it.
`filled` is its used length; FULL means no room. A declined record's `filled` is discarded. In the
same way `used` is the number of used rows of `log`, or FULL.

The tree of wanted fields is `nodes`, an integer table with a row for each node. A node's children
are the wanted fields in it; `node` and `child` are numbers of rows.
"""

from typing import NamedTuple

import numpy as np

from workers.arrays.compiled import (
    checked_inline,
    checked_kernel,
    checked_kernel_with_arrays,
    checked_part,
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
    Output,
    end_log,
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
SMALL_U = 117
# This bit makes an ASCII letter lower case.
LOWER = 32
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
def byte_at(data: Bytes, pos: int) -> int:
    """Return the byte at `pos`; an unsigned index skips the negative-index wraparound."""
    return int(data[np.uint64(pos)])


@checked_inline
def peek(data: Bytes, pos: int, stop: int) -> int:
    """Return the byte at `pos`, or END if the record ends before it."""
    return byte_at(data, pos) if pos < stop else END


@checked_part
def skip_space(data: Bytes, pos: int, stop: int) -> int:
    """Return where the white space that starts at `pos` ends."""
    while pos < stop:
        byte = byte_at(data, pos)
        # The first comparison decides at nearly all bytes.
        if byte > SPACE or byte not in (SPACE, NEWLINE, TAB, RETURN):
            break
        pos += 1
    return pos


@checked_part
def utf8_length(data: Bytes, pos: int, stop: int) -> int:
    """Return the byte length of a non-ASCII character; 0 if invalid by table 3-7 of Unicode."""
    lead = int(data[pos])
    # The range of the second byte, which some lead bytes narrow; of later bytes it is the full one.
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
    if pos + length > stop or not low <= data[pos + 1] <= high:
        return 0
    for place in range(pos + 2, pos + length):
        if not 0x80 <= data[place] <= 0xBF:
            return 0
    return length


@checked_part
def skip_plain(data: Bytes, pos: int, stop: int) -> int:
    """Skip plain text up to a quote, backslash, control character, invalid UTF-8 or `stop`."""
    while pos < stop:
        pos = past_plain(data, pos, stop)
        if pos == stop:
            break
        byte = byte_at(data, pos)
        if byte >= 0x80:
            length = utf8_length(data, pos, stop)
            if length == 0:
                break
            pos += length
        elif byte in (QUOTE, BACKSLASH) or byte < SPACE:
            break
        else:
            # Plain after all: `past_plain` stops before the last bytes of `data`.
            pos += 1
    return pos


@checked_part
def closing_quote(data: Bytes, pos: int, stop: int) -> int:
    """Return where the string that opens at `pos` closes; REFUSED if it is invalid or has escapes.

    The caller then tries to decode it.
    """
    if peek(data, pos, stop) != QUOTE:
        return REFUSED
    end = skip_plain(data, pos + 1, stop)
    return end if peek(data, end, stop) == QUOTE else REFUSED


@checked_inline
def utf16_unit(data: Bytes, pos: int, stop: int) -> int:
    """Return the value of the four hexadecimal digits at `pos`; negative if invalid."""
    if pos + 4 > stop:
        return REFUSED
    value = 0
    for place in range(pos, pos + 4):
        # An invalid digit, -1, keeps the value negative.
        value = value << 4 | HEXADECIMAL[data[place]]
    return value


@checked_inline
def escape(data: Bytes, pos: int, stop: int) -> tuple[int, int]:
    """Decode the escape at `pos`, a backslash; return its code point, and its end or REFUSED.

    Two escapes are one if they are a pair of surrogates: a first half, from HIGH to before LOW, and
    a second one, from LOW to before SURROGATES_STOP.
    """
    after = peek(data, pos + 1, stop)
    if after != SMALL_U:
        point = ESCAPES[after] if after != END else REFUSED
        return point, (pos + 2 if point >= 0 else REFUSED)
    pos += 6
    point = utf16_unit(data, pos - 4, stop)
    if HIGH <= point < LOW:
        if peek(data, pos, stop) != BACKSLASH or peek(data, pos + 1, stop) != SMALL_U:
            return REFUSED, REFUSED
        pos += 6
        second = utf16_unit(data, pos - 4, stop)
        if not LOW <= second < SURROGATES_STOP:
            return REFUSED, REFUSED
        return 0x10000 + ((point - HIGH) << 10) + (second - LOW), pos
    if point < 0 or LOW <= point < SURROGATES_STOP:
        return REFUSED, REFUSED
    return point, pos


@checked_part
def skip_text(data: Bytes, pos: int, stop: int) -> int:
    """Return the closing quote of an unwanted string that opens at `pos`."""
    if peek(data, pos, stop) != QUOTE:
        return REFUSED
    pos = skip_plain(data, pos + 1, stop)
    # Nobody reads the text, so its surrogates need not be in pairs.
    while peek(data, pos, stop) == BACKSLASH:
        after = peek(data, pos + 1, stop)
        if after == SMALL_U and utf16_unit(data, pos + 2, stop) >= 0:
            pos += 6
        elif after != END and ESCAPES[after] >= 0:
            pos += 2
        else:
            return REFUSED
        pos = skip_plain(data, pos, stop)
    return pos if peek(data, pos, stop) == QUOTE else REFUSED


@checked_part
def skip_digits(data: Bytes, pos: int, stop: int, most: int) -> int:
    """Return where the digits from `pos` end, at most `most` of them."""
    stop = min(stop, pos + most)
    pos = past_digits(data, pos, stop)
    # `past_digits` goes by eight bytes: it leaves the last ones of `data`.
    while pos < stop and ZERO <= byte_at(data, pos) <= NINE:
        pos += 1
    return pos


@checked_inline
def scan_number(data: Bytes, pos: int, stop: int) -> tuple[int, int]:
    """Return the end of a number, or REFUSED, and its kind in a log.

    That is WHOLE, NUMBER (with a point) or EXPONENT, or OTHER for more digits than a log may have.
    """
    begin = pos
    if peek(data, pos, stop) == MINUS:
        pos += 1
    end = skip_digits(data, pos, stop, NUMBER_DIGITS)
    digits = end - pos
    zero = digits > 0 and data[pos] == ZERO
    if digits == 0 or (zero and digits > 1):
        return REFUSED, kinds.OTHER
    byte = peek(data, end, stop)
    if byte != POINT and byte | LOWER != SMALL_E:
        # As a label, "-0" becomes "0": the general reader does that.
        is_whole = digits <= WHOLE_DIGITS and not (zero and pos > begin)
        return end, kinds.WHOLE if is_whole else kinds.OTHER
    kind = kinds.NUMBER if digits <= POINT_DIGITS else kinds.OTHER
    if byte == POINT:
        pos = end + 1
        end = skip_digits(data, pos, stop, NUMBER_DIGITS)
        if end == pos:
            return REFUSED, kinds.OTHER
        if end - pos > BEHIND_DIGITS:
            kind = kinds.OTHER
        if peek(data, end, stop) | LOWER != SMALL_E:
            return end, kind
    pos = end + 1
    pos += peek(data, pos, stop) in (PLUS, MINUS)
    end = skip_digits(data, pos, stop, NUMBER_DIGITS)
    if end == pos:
        return REFUSED, kinds.OTHER
    within = kind == kinds.NUMBER and end - pos <= EXPONENT_DIGITS
    return end, kinds.EXPONENT if within else kinds.OTHER


@checked_part
def skip_word(data: Bytes, pos: int, stop: int, word: Bytes) -> int:
    """Return the end of `word` if it is at `pos`, else REFUSED."""
    end = pos + len(word)
    return end if end <= stop and same(data, pos, end, word, 0, len(word)) else REFUSED


@checked_part
def skip_name(data: Bytes, pos: int, stop: int) -> int:
    """Return where the value after an unwanted name and its colon begins, or REFUSED."""
    pos = skip_text(data, pos, stop)
    if pos == REFUSED:
        return REFUSED
    pos = skip_space(data, pos + 1, stop)
    return (
        skip_space(data, pos + 1, stop) if peek(data, pos, stop) == COLON else REFUSED
    )


@checked_part
def scan_word(data: Bytes, pos: int, stop: int) -> tuple[int, int]:
    """Return the end (or REFUSED) and kind of true, false or null at `pos`."""
    byte = peek(data, pos, stop)
    if byte == TRUE[0]:
        return skip_word(data, pos, stop, TRUE), kinds.TRUE
    if byte == FALSE[0]:
        return skip_word(data, pos, stop, FALSE), kinds.FALSE
    if byte == NULL[0]:
        return skip_word(data, pos, stop, NULL), kinds.NULL
    return REFUSED, kinds.OTHER


@checked_part
def skip_flat(data: Bytes, pos: int, stop: int) -> int:
    """Return the end of an unwanted value that is no list or object, or REFUSED."""
    byte = peek(data, pos, stop)
    if byte == QUOTE:
        pos = skip_text(data, pos, stop)
        return pos + 1 if pos != REFUSED else REFUSED
    end, _ = scan_word(data, pos, stop)
    if end == REFUSED:
        end, _ = scan_number(data, pos, stop)
    return end


@checked_part
def skip(data: Bytes, pos: int, stop: int) -> int:
    """Return the end of an unwanted value with all that is in it, or REFUSED."""
    depth = 0
    # A bit for each open level, the innermost lowest: 1 for an object, 0 for a list.
    is_object = 0
    while True:
        # A value begins here.
        byte = peek(data, pos, stop)
        opened = byte in (OPEN_LIST, OPEN_OBJECT)
        if opened:
            if depth == DEPTH_MAX:
                return REFUSED
            depth += 1
            is_object = is_object << 1 | (byte == OPEN_OBJECT)
            pos = skip_space(data, pos + 1, stop)
        else:
            pos = skip_flat(data, pos, stop)
        # After a value or an opening bracket: close all levels that end here.
        while depth > 0 and pos != REFUSED:
            pos = skip_space(data, pos, stop)
            byte = peek(data, pos, stop)
            if byte != (CLOSE_OBJECT if is_object & 1 else CLOSE_LIST):
                break
            depth -= 1
            is_object >>= 1
            pos += 1
            opened = False
        if depth == 0 or pos == REFUSED:
            return pos
        # A comma separates the next value from a previous one.
        if not opened:
            if byte != COMMA:
                return REFUSED
            pos = skip_space(data, pos + 1, stop)
        if is_object & 1:
            pos = skip_name(data, pos, stop)
            if pos == REFUSED:
                return REFUSED


@checked_part
def same(
    data: Bytes, start: int, stop: int, other: Bytes, begin: int, end: int
) -> bool:
    """Return whether data[start:stop] equals other[begin:end]."""
    if stop - start != end - begin:
        return False
    # Nothing past the end of an array is equal; `same_bytes` is not bounds-checked.
    within = min(start, begin) >= 0 and stop <= len(data) and end <= len(other)
    return within and same_bytes(data, start, other, begin, stop - start)


@checked_kernel
def nesting_depth(record: Bytes) -> int:
    """Return how deeply a record is nested; of what is no JSON, any number."""
    depth = 0
    deepest = 0
    in_text = False
    pos = 0
    while pos < len(record):
        byte = int(record[pos])
        if byte == QUOTE:
            in_text = not in_text
        elif in_text:
            # An escaped quote does not end the string.
            pos += byte == BACKSLASH
        elif byte in (OPEN_LIST, OPEN_OBJECT):
            depth += 1
            deepest = max(deepest, depth)
        elif byte in (CLOSE_LIST, CLOSE_OBJECT):
            depth -= 1
        pos += 1
    return deepest


@checked_kernel_with_arrays
def valid_texts(data: Bytes, texts: Longs, most: int) -> Bools:
    """Return a mask (n,) of the texts that exist and are valid UTF-8 of at most `most` bytes.

    `texts`, int64 (n, 2), has start and stop of each, a negative start if there is none.
    """
    valid = np.zeros(len(texts), dtype=np.bool_)
    for i in range(len(texts)):
        pos = texts[i, 0]
        stop = texts[i, 1]
        if pos < 0 or stop - pos > most:
            continue
        while pos < stop:
            length = 1 if data[pos] < 0x80 else utf8_length(data, pos, stop)
            if length == 0:
                break
            pos += length
        valid[i] = pos == stop
    return valid


@checked_inline
def put_utf8(decoded: Bytes, filled: int, point: int) -> int:
    """Write a code point in UTF-8; return the bytes filled then."""
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
    data: Bytes, pos: int, stop: int, decoded: Bytes, filled: int
) -> tuple[int, int]:
    """Decode the string at `pos`; return the closing quote or REFUSED, and `filled` or FULL.

    Its characters are in `decoded` from the former `filled` on.
    """
    pos += 1
    # No character is longer than its escape, so the rest of the record would fit.
    if filled + (stop - pos) > len(decoded):
        return REFUSED, FULL
    while pos < stop:
        byte = int(data[pos])
        if byte == BACKSLASH:
            point, pos = escape(data, pos, stop)
            if pos == REFUSED:
                return REFUSED, filled
            filled = put_utf8(decoded, filled, point)
            continue
        if byte == QUOTE:
            return pos, filled
        length = 1 if byte < 0x80 else utf8_length(data, pos, stop)
        if byte < SPACE or length == 0:
            return REFUSED, filled
        for _ in range(length):
            decoded[filled] = data[pos]
            filled += 1
            pos += 1
    return REFUSED, filled


@checked_part
def put_decoded(
    data: Bytes,
    pos: int,
    stop: int,
    decoded: Bytes,
    filled: int,
    log: Longs,
    used: int,
    slot: int,
) -> tuple[int, int, int]:
    """Decode and log the string at `pos`.

    Returns its end or REFUSED, the rows used or FULL, and the bytes of `decoded` filled.
    """
    end, more = decoded_text(data, pos, stop, decoded, filled)
    if end == REFUSED:
        return REFUSED, FULL if more == FULL else used, filled
    start = len(data) + filled
    return end + 1, put(log, used, slot, TEXT, start, len(data) + more), more


@checked_inline
def same_text(
    data: Bytes, decoded: Bytes, start: int, stop: int, begin: int, end: int
) -> bool:
    """Compare the text from `start` to `stop` with the one from `begin` to `end`.

    Positions from len(data) on are those in `decoded`.
    """
    if stop - start != end - begin:
        return False
    first = data
    if start >= len(data):
        first = decoded
        start -= len(data)
        stop -= len(data)
    second = data
    if begin >= len(data):
        second = decoded
        begin -= len(data)
        end -= len(data)
    return same(first, start, stop, second, begin, end)


# In place of a kind: the string has an escape, or is invalid.
ESCAPED = -1


@checked_inline
def scan_value(data: Bytes, pos: int, stop: int) -> tuple[int, int]:
    """Return the end (or REFUSED) and kind of a value; OTHER for a list or object.

    For a string that is not plain, return ESCAPED as the kind and no end: it must be decoded.
    """
    byte = peek(data, pos, stop)
    if byte == QUOTE:
        end = skip_plain(data, pos + 1, stop)
        return end + 1, (kinds.TEXT if peek(data, end, stop) == QUOTE else ESCAPED)
    if byte == MINUS or ZERO <= byte <= NINE:
        end, kind = scan_number(data, pos, stop)
        # Beyond the limits of a log: the general reader decides.
        return REFUSED if kind == kinds.OTHER else end, kind
    if byte in (OPEN_LIST, OPEN_OBJECT):
        return skip(data, pos, stop), kinds.OTHER
    return scan_word(data, pos, stop)


@checked_inline
def log_value(
    data: Bytes,
    pos: int,
    stop: int,
    decoded: Bytes,
    filled: int,
    log: Longs,
    used: int,
    slot: int,
) -> tuple[int, int, int]:
    """Log a single value: the row of a list or object only says that there is one.

    Returns the value's end or REFUSED, the rows used or FULL, and the bytes of `decoded` filled.
    """
    end, kind = scan_value(data, pos, stop)
    if kind == ESCAPED:
        return put_decoded(data, pos, stop, decoded, filled, log, used, slot)
    if kind == OTHER:
        return end, put(log, used, slot, OTHER, NONE, NONE), filled
    # A text is logged without its quotes.
    quote = kind == TEXT
    return end, put(log, used, slot, kind, pos + quote, end - quote), filled


# Columns of `nodes`: the slot of the value, what is wanted (ONE ...), the children's rows, CHILDREN
# to before CHILDREN_STOP, the row of each element of a list, and the slot of that list.
NODE_SLOT, SORT, CHILDREN, CHILDREN_STOP, ELEMENTS, LIST_SLOT = range(6)
# The location of the node's name in `names`, its `signature`, and the `bit`s of its children.
NAME_START = 6
NAME_STOP = 7
SIGNATURE = 8
BITS = 9
# 1 if the name may be in a record as it is; 0 if JSON must escape some of it, or there is no name.
UNESCAPED = 10
NODE_COLUMNS = 11
# Wanted at a node: one value, items, an object or a list; of SEVERAL, only null can be read.
ONE, ITEMS, OBJECT, ELEMENTS_OF, SEVERAL = range(5)
NONE = -1

# Columns of `stack`, one row for each outer level: its `node`, `list_row`, `expected` and
# `previous` in `scan_record`.
HELD_NODE = 0
HELD_LIST_ROW = 1
HELD_EXPECTED = 2
HELD_PREVIOUS = 3
HELD_COLUMNS = 4

# Columns of `seen`, a row for each node: whether it occurred in the current object; and from the
# last record, since field order rarely changes: its first child, and the field that came after it.
SEEN = 0
LAST_FIRST = 1
LAST_NEXT = 2
SEEN_COLUMNS = 3


class Walk(NamedTuple):
    """The tree of wanted fields, and what one thread notes of the record that it scans."""

    nodes: Longs  # (n, NODE_COLUMNS): the tree, its root in row 0
    names: Bytes  # of the nodes, in quotes, as UTF-8; padded by a word
    stack: Longs  # (depth, HELD_COLUMNS): the levels that are open
    seen: Longs  # (n, SEEN_COLUMNS): by node, in which order its fields come


@checked_kernel
def signature(data: Bytes, start: int, stop: int) -> int:
    """Combine length, first and last byte of a name data[start:stop], to tell most names apart.

    There are quotes around it: an empty name has these as its first and last byte.
    """
    return (stop - start) << 16 | int(data[start]) << 8 | int(data[stop - 1])


@checked_kernel
def bit(sign: int) -> int:
    """Map a signature to a number below 64: its bit in the BITS of the parent.

    A name whose bit is not set there is no child's; most other names are ruled out by that.
    """
    return (sign + (sign >> 7) + (sign >> 13)) & 63


@checked_part
def child_named(
    data: Bytes, start: int, stop: int, nodes: Longs, names: Bytes, node: int, hint: int
) -> int:
    """Return the child of `node` that data[start:stop] names; NONE if it names none.

    The search begins with the child `hint`, the likely one, and goes round.
    """
    sign = signature(data, start, stop)
    if not nodes[node, BITS] >> bit(sign) & 1:
        return NONE
    first = nodes[node, CHILDREN]
    end = nodes[node, CHILDREN_STOP]
    child = hint
    for _ in range(end - first):
        if child == end:
            child = first
        if nodes[child, SIGNATURE] == sign:
            name_start = nodes[child, NAME_START]
            name_stop = nodes[child, NAME_STOP]
            if same(data, start, stop, names, name_start, name_stop):
                return child
        child += 1
    return NONE


@checked_inline
def is_named(
    data: Bytes, pos: int, stop: int, nodes: Longs, names: Bytes, child: int
) -> bool:
    """Return whether the name at `pos`, with its quotes, is that of `child`, byte for byte.

    False does not mean that it is another one: it may be written with escapes.
    """
    if nodes[child, UNESCAPED] == 0:
        return False
    # `names` has the quotes, too.
    begin = nodes[child, NAME_START] - 1
    end = nodes[child, NAME_STOP] + 1
    behind = pos + end - begin
    return behind <= stop and same(data, pos, behind, names, begin, end)


@checked_part
def child_escaped(
    data: Bytes,
    pos: int,
    stop: int,
    walk: Walk,
    node: int,
    hint: int,
    decoded: Bytes,
    filled: int,
) -> tuple[int, int]:
    """Return the closing quote of a name with escapes at `pos`, and the child of `node` it names.

    The quote is FULL if `decoded` has no room, or REFUSED; the child is NONE if it names none. The
    search begins with the child `hint`, the likely one.
    """
    end, more = decoded_text(data, pos, stop, decoded, filled)
    if end == REFUSED:
        return FULL if more == FULL else REFUSED, NONE
    # `signature` needs quotes around an empty name, and `decoded` has none; but a name with an
    # escape is not empty. Nobody reads the decoded name later, so `filled` stays.
    return end, child_named(decoded, filled, more, walk.nodes, walk.names, node, hint)


@checked_part
def log_items(
    data: Bytes,
    pos: int,
    stop: int,
    decoded: Bytes,
    filled: int,
    log: Longs,
    used: int,
    slot: int,
) -> tuple[int, int, int]:
    """Log a list of labels, or an object label -> count, with a row for each name and value.

    Before them is the row of the LIST or MAP, whose START is the number of elements or entries.
    Returns the end or REFUSED, the rows used or FULL, and the bytes of `decoded` filled.
    """
    head = used
    count = 0
    is_map = peek(data, pos, stop) == OPEN_OBJECT
    close = CLOSE_OBJECT if is_map else CLOSE_LIST
    used = put(log, used, slot, kinds.MAP if is_map else kinds.LIST, 0, NONE)
    pos = skip_space(data, pos + 1, stop)
    if peek(data, pos, stop) == close:
        return pos + 1, used, filled
    while used != FULL:
        if is_map:
            if peek(data, pos, stop) != QUOTE or count == MAP_NAMES_MAX:
                return REFUSED, used, filled
            name = used
            pos, used, filled = log_value(
                data, pos, stop, decoded, filled, log, used, slot
            )
            if pos == REFUSED or used == FULL:
                return REFUSED, used, filled
            # Of a repeated name, the last value wins: that is left to the general reader.
            for other in range(head + 1, name, 2):
                if same_text(
                    data,
                    decoded,
                    log[name, START],
                    log[name, STOP],
                    log[other, START],
                    log[other, STOP],
                ):
                    return REFUSED, used, filled
            pos = skip_space(data, pos, stop)
            if peek(data, pos, stop) != COLON:
                return REFUSED, used, filled
            pos = skip_space(data, pos + 1, stop)
        pos, used, filled = log_value(data, pos, stop, decoded, filled, log, used, slot)
        if pos == REFUSED:
            return REFUSED, used, filled
        count += 1
        pos = skip_space(data, pos, stop)
        byte = peek(data, pos, stop)
        if byte == close:
            break
        if byte != COMMA:
            return REFUSED, used, filled
        pos = skip_space(data, pos + 1, stop)
    if used != FULL:
        log[head, START] = count
    return pos + 1, used, filled


@checked_inline
def scan_record(
    data: Bytes,
    pos: int,
    stop: int,
    walk: Walk,
    log: Longs,
    used: int,
    decoded: Bytes,
    filled: int,
) -> tuple[int, int]:
    """Log the wanted values of a record from row `used` on.

    Follows the tree of wanted fields, with a level of `stack` for each open object or list: data
    never recurses. Fields usually come in the order of the last record, so a name is first compared
    with that of the child `expected` next.

    Returns the rows used, DECLINED or FULL, and the bytes of `decoded` filled.
    """
    nodes, names, stack, seen = walk
    # The child that the next value belongs to, at first the root; NONE: an unwanted one.
    child = 0
    # The innermost level: its node (of a list: of its elements), row in the log if it is a list,
    # and the children expected next and seen last if it is an object.
    level = 0
    node = NONE
    list_row = NONE
    expected = NONE
    previous = NONE
    pos = skip_space(data, pos, stop)
    if peek(data, pos, stop) != OPEN_OBJECT:
        return DECLINED, filled
    while True:
        # The value of `child` begins at `pos`: skip it, log it, or open its level.
        opens = False
        if child == NONE:
            pos = skip(data, pos, stop)
        else:
            slot = nodes[child, NODE_SLOT]
            sort = nodes[child, SORT]
            byte = peek(data, pos, stop)
            if sort == ITEMS and byte in (OPEN_LIST, OPEN_OBJECT):
                pos, used, filled = log_items(
                    data, pos, stop, decoded, filled, log, used, slot
                )
            elif sort in (ONE, ITEMS):
                pos, used, filled = log_value(
                    data, pos, stop, decoded, filled, log, used, slot
                )
            elif byte == NULL[0] and list_row == NONE:
                # Null instead of an object or list: all that is wanted in it is absent. In a list,
                # the general reader decides.
                end = skip_word(data, pos, stop, NULL)
                if slot != NONE:
                    used = put(log, used, slot, kinds.NULL, pos, end)
                pos = end
            elif (
                byte != (OPEN_OBJECT if sort == OBJECT else OPEN_LIST)
                or sort == SEVERAL
            ):
                # SEVERAL: one view wants a list here and another an object, say.
                return DECLINED, filled
            else:
                opens = True
                pos += 1
                # Wanted as a value as well, which an object or list is not.
                if slot != NONE:
                    used = put(log, used, slot, kinds.OTHER, NONE, NONE)
                if level > 0:
                    stack[level - 1, HELD_NODE] = node
                    stack[level - 1, HELD_LIST_ROW] = list_row
                    stack[level - 1, HELD_EXPECTED] = expected
                    stack[level - 1, HELD_PREVIOUS] = previous
                level += 1
                if sort == OBJECT:
                    node = child
                    list_row = NONE
                    expected = seen[child, LAST_FIRST]
                    previous = NONE
                    for other in range(
                        nodes[child, CHILDREN], nodes[child, CHILDREN_STOP]
                    ):
                        seen[other, SEEN] = 0
                else:
                    node = nodes[child, ELEMENTS]
                    list_row = used
                    used = put(log, used, nodes[child, LIST_SLOT], kinds.LIST, 0, NONE)
            if used == FULL:
                return FULL, filled
        if pos == REFUSED:
            return DECLINED, filled
        # After a value or an opening bracket: close all levels that end here.
        while True:
            pos = skip_space(data, pos, stop)
            byte = peek(data, pos, stop)
            if byte != (CLOSE_OBJECT if list_row == NONE else CLOSE_LIST):
                break
            opens = False
            pos += 1
            level -= 1
            if level == 0:
                return (
                    used if skip_space(data, pos, stop) == stop else DECLINED
                ), filled
            node = stack[level - 1, HELD_NODE]
            list_row = stack[level - 1, HELD_LIST_ROW]
            expected = stack[level - 1, HELD_EXPECTED]
            previous = stack[level - 1, HELD_PREVIOUS]
        # Next value of the innermost level; a comma separates it from a previous one.
        if not opens:
            if byte != COMMA:
                return DECLINED, filled
            pos = skip_space(data, pos + 1, stop)
        if list_row != NONE:
            # Another element.
            log[list_row, START] += 1
            child = node
            continue
        # The next name: of the child that is expected, as it is; of another; or with escapes.
        if is_named(data, pos, stop, nodes, names, expected):
            child = expected
            end = pos + 1 + nodes[child, NAME_STOP] - nodes[child, NAME_START]
        else:
            end = closing_quote(data, pos, stop)
            if end != REFUSED:
                child = child_named(data, pos + 1, end, nodes, names, node, expected)
            elif peek(data, pos, stop) == QUOTE:
                end, child = child_escaped(
                    data, pos, stop, walk, node, expected, decoded, filled
                )
            if end < 0:
                return (FULL if end == FULL else DECLINED), filled
        if child != NONE:
            # Of a repeated name, the last value wins: that is left to the general reader.
            if seen[child, SEEN]:
                return DECLINED, filled
            seen[child, SEEN] = 1
            # Expect the same order in the next record.
            if child != expected and previous == NONE:
                seen[node, LAST_FIRST] = child
            elif child != expected:
                seen[previous, LAST_NEXT] = child
            previous = child
            expected = seen[child, LAST_NEXT]
        pos = skip_space(data, end + 1, stop)
        if peek(data, pos, stop) != COLON:
            return DECLINED, filled
        pos = skip_space(data, pos + 1, stop)


@checked_kernel
def scan_all(
    data: Bytes,
    values: Longs,
    plain: Bools,
    walk: Walk,
    decoded: Bytes,
    begin: int,
    out: Output,
) -> tuple[int, int]:
    """Log the records from `begin` on, until `out` is full; decline those that are not `plain`.

    `values`, int64 (n, 2), has start and stop of each record, a negative start if it has no value.
    Also stops once declined records have `out.declined_bytes` in total, so that their objects never
    fill the memory. Returns the record to resume from, or n, and the bytes used in `decoded`.
    """
    used = 0
    filled = 0
    bytes_left = out.declined_bytes
    for i in range(begin, len(values)):
        end = DECLINED
        if plain[i] and values[i, 0] >= 0:
            end, more = scan_record(
                data, values[i, 0], values[i, 1], walk, out.rows, used, decoded, filled
            )
            if end == FULL:
                return i, filled
            if end != DECLINED:
                filled = more
        used, bytes_left = end_log(out, i, values, used, end, bytes_left)
        if bytes_left <= 0:
            return i + 1, filled
    return len(values), filled
