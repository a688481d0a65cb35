"""Scan JSON records along the tree of wanted paths into event logs.

The scanner declines every record that it is unsure of to the general reader
(`events.json`). It reads:

    record  one object, surrounded by optional white space
    names   strings in every object on a wanted path; each wanted name once
    values  strings, numbers within the limits of `events.log`, true, false, null; unopened lists
            and objects that `json_parts.skip` accepts
    items   at a place that is opened: such values, lists of them, and objects of at most
            MAP_NAMES_MAX of them with distinct names
    inner   null, or the object or list that the wanted paths require
    others  anything `json_parts.skip` accepts

Strings with escapes are decoded into a buffer after the batch; see `json_parts`.
"""

from __future__ import annotations

from typing import NamedTuple

from workers.arrays.compiled import checked_inline, checked_kernel, checked_part
from workers.arrays.types import Bytes, Longs
from workers.events import log as kinds
from workers.events.json_parts import (
    CLOSE_LIST,
    CLOSE_OBJECT,
    COLON,
    COMMA,
    FALSE,
    MINUS,
    NINE,
    NULL,
    OPEN_LIST,
    OPEN_OBJECT,
    PLUS,
    POINT,
    QUOTE,
    REFUSED,
    SMALL_E,
    TRUE,
    ZERO,
    decoded_text,
    digits,
    look,
    plain,
    put_decoded,
    put_one,
    same,
    same_text,
    skip,
    skip_word,
    space,
    text,
)
from workers.events.log import (
    BEHIND_DIGITS,
    DECLINED,
    EXPONENT_DIGITS,
    FULL,
    MAP_NAMES_MAX,
    POINT_DIGITS,
    START,
    STOP,
    WHOLE_DIGITS,
    put,
)

LOWER = 32
ESCAPED = -1


@checked_inline
def number(data: Bytes, at: int, stop: int) -> tuple[int, int]:
    begin = at
    if look(data, at, stop) == MINUS:
        at += 1
    end = digits(data, at, stop, WHOLE_DIGITS)
    zero = end > at and data[at] == ZERO
    if end == at or (zero and end > at + 1):
        return REFUSED, kinds.OTHER
    byte = look(data, end, stop)
    if byte != POINT and byte | LOWER != SMALL_E:
        return (REFUSED if zero and at > begin else end), kinds.WHOLE
    if end - at > POINT_DIGITS:
        return REFUSED, kinds.OTHER
    if byte == POINT:
        at = end + 1
        end = digits(data, at, stop, BEHIND_DIGITS)
        if end == at:
            return REFUSED, kinds.NUMBER
        if look(data, end, stop) | LOWER != SMALL_E:
            return end, kinds.NUMBER
    at = end + 1
    at += look(data, at, stop) in (PLUS, MINUS)
    end = digits(data, at, stop, EXPONENT_DIGITS)
    return (end if end > at else REFUSED), kinds.EXPONENT


@checked_part
def word(data: Bytes, at: int, stop: int) -> tuple[int, int]:
    byte = look(data, at, stop)
    if byte == TRUE[0]:
        return skip_word(data, at, stop, TRUE), kinds.TRUE
    if byte == FALSE[0]:
        return skip_word(data, at, stop, FALSE), kinds.FALSE
    if byte == NULL[0]:
        return skip_word(data, at, stop, NULL), kinds.NULL
    if byte in (OPEN_LIST, OPEN_OBJECT):
        return skip(data, at, stop), kinds.OTHER
    return REFUSED, kinds.OTHER


@checked_inline
def one(data: Bytes, at: int, stop: int) -> tuple[int, int]:
    """Return the end (or REFUSED) and kind of a value; ESCAPED for a string that is not plain."""
    byte = look(data, at, stop)
    if byte == QUOTE:
        end = plain(data, at + 1, stop)
        return end + 1, (kinds.TEXT if look(data, end, stop) == QUOTE else ESCAPED)
    if byte == MINUS or ZERO <= byte <= NINE:
        return number(data, at, stop)
    return word(data, at, stop)


# Columns of `nodes`. The children of a node are contiguous, from FIRST to LAST.
NODE_SLOT, SORT, FIRST, LAST, ELEMENTS, LIST_SLOT = range(6)
# The location of the node's name in `names`, its `signature`, and the `bit`s of its children.
NAME_START, NAME_STOP, SIGNATURE, BITS = 6, 7, 8, 9
# 1 if the name may occur in JSON unescaped, else 0.
PLAIN = 10
NODE_COLUMNS = 11
# Wanted at a node: one value, items, an object or a list; of SEVERAL, only null can be read.
ONE, ITEMS, OBJECT, ELEMENTS_OF, SEVERAL = range(5)
NONE = -1

# Columns of `stack`: the node of a level (of a list: that of its elements); the LIST row of a list,
# NONE for an object; the child to try first; the previous wanted child, or NONE.
HELD_NODE, HELD_ROW, HELD_HINT, HELD_BEFORE = 0, 1, 2, 3
HELD_COLUMNS = 4

# Columns of `seen`: whether a child occurred in the current object; and as hints from the last
# record, since field order rarely changes: the node's first child, and the child after this one.
SEEN, MET, NEXT = 0, 1, 2
SEEN_COLUMNS = 3


class Walk(NamedTuple):
    """The wanted fields, and scratch of one thread; int64 tables with the columns above.

    `nodes` and `seen` have a row per node, root first; `stack` has one per level of the tree.
    `names`, uint8, are in UTF-8 and quotes, padded by one machine word.
    """

    nodes: Longs
    names: Bytes
    stack: Longs
    seen: Longs


@checked_kernel
def signature(data: Bytes, start: int, stop: int) -> int:
    """Combine length, first and last byte of a name; quotes make an empty one safe to read."""
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
    first, last = nodes[node, FIRST], nodes[node, LAST]
    child = hint
    for _ in range(last - first):
        if child == last:
            child = first
        if nodes[child, SIGNATURE] == sign:
            begin, end = nodes[child, NAME_START], nodes[child, NAME_STOP]
            if same(data, start, stop, names, begin, end):
                return child
        child += 1
    return NONE


@checked_inline
def is_named(data: Bytes, at: int, stop: int, nodes: Longs, names: Bytes, child: int) -> bool:
    if nodes[child, PLAIN] == 0:
        return False
    begin, end = nodes[child, NAME_START] - 1, nodes[child, NAME_STOP] + 1
    behind = at + end - begin
    return behind <= stop and same(data, at, behind, names, begin, end)


@checked_part
def child_escaped(
    data: Bytes, at: int, stop: int, walk: Walk, node: int, hint: int, decoded: Bytes, filled: int
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
def opened(
    data: Bytes, at: int, stop: int, log: Longs, used: int, slot: int, decoded: Bytes, filled: int
) -> tuple[int, int, int]:
    """Log a list or object as items, a row for each value; returns as `json_parts.put_decoded`."""
    row, count = used, 0
    mapped = look(data, at, stop) == OPEN_OBJECT
    close = CLOSE_OBJECT if mapped else CLOSE_LIST
    used = put(log, used, slot, kinds.MAP if mapped else kinds.LIST, 0, NONE)
    at = space(data, at + 1, stop)
    if look(data, at, stop) == close:
        return at + 1, used, filled
    while used != FULL:
        if mapped:
            if look(data, at, stop) != QUOTE or count == MAP_NAMES_MAX:
                return REFUSED, used, filled
            name, end = used, plain(data, at + 1, stop)
            if look(data, end, stop) == QUOTE:
                used = put(log, used, slot, kinds.TEXT, at + 1, end)
                at = end + 1
            else:
                at, used, filled = put_decoded(data, at, stop, decoded, filled, log, used, slot)
            if at == REFUSED or used == FULL:
                return REFUSED, used, filled
            for other in range(row + 1, name, 2):
                start, end = log[name, START], log[name, STOP]
                if same_text(data, decoded, start, end, log[other, START], log[other, STOP]):
                    return REFUSED, used, filled
            at = space(data, at, stop)
            if look(data, at, stop) != COLON:
                return REFUSED, used, filled
            at = space(data, at + 1, stop)
        end, kind = one(data, at, stop)
        if kind == ESCAPED:
            end, used, filled = put_decoded(data, at, stop, decoded, filled, log, used, slot)
        elif end != REFUSED:
            used = put_one(log, used, slot, kind, at, end)
        if end == REFUSED:
            return REFUSED, used, filled
        count += 1
        at = space(data, end, stop)
        byte = look(data, at, stop)
        if byte == close:
            break
        if byte != COMMA:
            return REFUSED, used, filled
        at = space(data, at + 1, stop)
    if used != FULL:
        log[row, START] = count
    return at + 1, used, filled


@checked_inline
def event(
    data: Bytes, at: int, stop: int, walk: Walk, log: Longs, used: int, decoded: Bytes, filled: int
) -> tuple[int, int]:
    """Log a record from row `used` on; return the rows used, DECLINED or FULL, and `filled`."""
    nodes, names, stack, seen = walk
    level = 0
    node, row, hint = NONE, NONE, NONE
    child, before = 0, NONE
    at = space(data, at, stop)
    if look(data, at, stop) != OPEN_OBJECT:
        return DECLINED, filled
    while True:
        # The value of `child` begins at `at`; NONE: not wanted.
        opens = False
        if child == NONE:
            at = skip(data, at, stop)
        else:
            slot, sort = nodes[child, NODE_SLOT], nodes[child, SORT]
            byte = look(data, at, stop)
            if sort == ITEMS and byte in (OPEN_LIST, OPEN_OBJECT):
                at, used, filled = opened(data, at, stop, log, used, slot, decoded, filled)
            elif sort in (ONE, ITEMS):
                end, kind = one(data, at, stop)
                if kind == ESCAPED:
                    end, used, filled = put_decoded(
                        data, at, stop, decoded, filled, log, used, slot
                    )
                else:
                    used = put_one(log, used, slot, kind, at, end)
                at = end
            elif byte == NULL[0] and row == NONE:
                # Wanted fields within it are absent.
                end = skip_word(data, at, stop, NULL)
                if slot != NONE:
                    used = put(log, used, slot, kinds.NULL, at, end)
                at = end
            elif byte != (OPEN_OBJECT if sort == OBJECT else OPEN_LIST) or sort == SEVERAL:
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
                    node, row, hint, before = child, NONE, seen[child, MET], NONE
                    for each in range(nodes[child, FIRST], nodes[child, LAST]):
                        seen[each, SEEN] = 0
                else:
                    node, row = nodes[child, ELEMENTS], used
                    used = put(log, used, nodes[child, LIST_SLOT], kinds.LIST, 0, NONE)
            if used == FULL:
                return FULL, filled
        if at == REFUSED:
            return DECLINED, filled
        # After a value or an opening bracket: close all levels that end here.
        while True:
            at = space(data, at, stop)
            byte = look(data, at, stop)
            if byte != (CLOSE_OBJECT if row == NONE else CLOSE_LIST):
                break
            opens = False
            at += 1
            level -= 1
            if level == 0:
                return (used if space(data, at, stop) == stop else DECLINED), filled
            node = stack[level - 1, HELD_NODE]
            row = stack[level - 1, HELD_ROW]
            hint = stack[level - 1, HELD_HINT]
            before = stack[level - 1, HELD_BEFORE]
        # Next value of the innermost level; a comma separates it from a previous one.
        if not opens:
            if byte != COMMA:
                return DECLINED, filled
            at = space(data, at + 1, stop)
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
            elif look(data, at, stop) == QUOTE:
                end, child = child_escaped(data, at, stop, walk, node, hint, decoded, filled)
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
            before, hint = child, seen[child, NEXT]
        at = space(data, end + 1, stop)
        if look(data, at, stop) != COLON:
            return DECLINED, filled
        at = space(data, at + 1, stop)


@checked_kernel
def logs(
    data: Bytes, values: Longs, walk: Walk, begin: int, number: Longs, rows: Longs, decoded: Bytes
) -> tuple[int, int]:
    """Log the records from `begin` on, until the output is full.

    Returns the record to resume from with more room, or n; and the bytes used in `decoded`. The log
    rows of each record, or DECLINED, are written to `number`.
    """
    used, filled = 0, 0
    for i in range(begin, len(values)):
        number[i] = DECLINED
        start, stop = values[i, 0], values[i, 1]
        if start >= 0:
            end, more = event(data, start, stop, walk, rows, used, decoded, filled)
            if end == FULL:
                return i, filled
            if end != DECLINED:
                number[i] = end - used
                used, filled = end, more
    return len(values), filled
