"""JSON records, scanned along the tree of wanted paths into the log of an event.

The scanner says what is at the wanted places only where it is sure; else it declines, and the
general reader (`events.json_objects`) decides about that record alone. What it reads is:

    record  one object between white space
    names   strings in each object that is walked; each wanted one once
    values  at a wanted place: strings; whole numbers of at most WHOLE_DIGITS digits, not -0;
            decimals of at most POINT_DIGITS digits before the point and BEHIND_DIGITS behind it,
            and exponents of at most EXPONENT_DIGITS;
            true, false, null; what `json_parts.skip` knows, where a list or an object is not opened
    items   at a place that is opened: such values, lists of them, and objects of at most
            MAP_NAMES_MAX of them, each name once
    inner   null, or an object or a list as the paths through the place say; nothing else
    others  what `json_parts.skip` knows

A string with escapes is decoded behind the bytes of the batch, see `json_texts`.

Values of JSON where one is wanted: where each ends, and what kind of the log it is.
"""

from __future__ import annotations

from workers.arrays.compiled import part_reads_outside, reads_outside, reads_outside_in_place
from workers.events.json_parts import (
    CLOSE_LIST,
    CLOSE_OBJECT,
    COLON,
    COMMA,
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
    Longs,
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
from workers.events.json_parts import FALSE as FALSE_WORD
from workers.events.json_parts import NULL as NULL_WORD
from workers.events.json_parts import TRUE as TRUE_WORD
from workers.events.log import (
    BEHIND_DIGITS,
    DECLINED,
    EXPONENT,
    EXPONENT_DIGITS,
    FALSE,
    FULL,
    LIST,
    MAP,
    MAP_NAMES_MAX,
    NULL,
    NUMBER,
    OTHER,
    POINT_DIGITS,
    START,
    STOP,
    TEXT,
    TRUE,
    WHOLE,
    WHOLE_DIGITS,
    put,
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


# Columns of `nodes`. Children of a node lie side by side, from FIRST to LAST.
NODE_SLOT, SORT, FIRST, LAST, ELEMENTS, LIST_SLOT = 0, 1, 2, 3, 4, 5
# Where the node's own name is in `names`, its `signature`, and which `bit`s its children have.
NAME_START, NAME_STOP, SIGNATURE, BITS = 6, 7, 8, 9
# Whether a string of JSON may be the name as it is, in quotes: 1 or 0.
PLAIN = 10
NODE_COLUMNS = 11
# What is looked for at a node: one value; items; an object with children; a list with elements.
# Where several of the last three are wanted of one place, it is read only if it is null.
ONE, ITEMS, OBJECT, ELEMENTS_OF, SEVERAL = 0, 1, 2, 3, 4
# No node, no slot, no row.
NONE = -1

# Columns of `stack`: the node of a level (of a list: that of its elements); the LIST row of a list,
# NONE for an object; the child that is looked at first; the wanted one before it, or NONE.
HELD_NODE, HELD_ROW, HELD_HINT, HELD_BEFORE = 0, 1, 2, 3
HELD_COLUMNS = 4

# Columns of `seen`. Whether a child occurred in the object that is walked; and of the last record,
# since fields most often come in the same order: which child of this one came first, and which came
# behind it in its object. What these say is only where to look first.
SEEN, MET, NEXT = 0, 1, 2
SEEN_COLUMNS = 3


@reads_outside
def signature(data: Bytes, start: int, stop: int) -> int:
    """Return length, first and last byte of a name in one number.

    The name is in quotes, so the bytes before and behind it are there, also of an empty one.
    """
    return (stop - start) << 16 | int(data[start]) << 8 | int(data[stop - 1])


@reads_outside
def bit(sign: int) -> int:
    """Return one of 64 bits for a signature: a name whose bit no child has is none of them."""
    return (sign + (sign >> 7) + (sign >> 13)) & 63


@part_reads_outside
def child_named(
    data: Bytes, start: int, stop: int, nodes: Longs, names: Bytes, node: int, hint: int
) -> int:
    """Return the child of a node that data[start:stop] names; NONE: none of them.

    Args:
        hint: the child to look at first.
    """
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


@reads_outside_in_place
def is_named(data: Bytes, at: int, stop: int, nodes: Longs, names: Bytes, child: int) -> bool:
    """Return whether the name of a child stands at `at`, in quotes and as it is."""
    if nodes[child, PLAIN] == 0:
        return False
    begin, end = nodes[child, NAME_START] - 1, nodes[child, NAME_STOP] + 1
    behind = at + end - begin
    return behind <= stop and same(data, at, behind, names, begin, end)


@part_reads_outside
def child_escaped(
    data: Bytes,
    at: int,
    stop: int,
    decoded: Bytes,
    filled: int,
    nodes: Longs,
    names: Bytes,
    node: int,
    hint: int,
) -> tuple[int, int]:
    """Return the closing quote of the name at `at`, which is not plain, and the child it names.

    It is decoded only to be compared. FULL, or REFUSED, in place of the quote.
    """
    end, more = decoded_text(data, at, stop, decoded, filled)
    if more == FULL:
        return FULL, NONE
    if end == REFUSED:
        return REFUSED, NONE
    # It has an escape, so it is not empty.
    return end, child_named(decoded, filled, more, nodes, names, node, hint)


@part_reads_outside
def opened(
    data: Bytes, at: int, stop: int, log: Longs, used: int, slot: int, decoded: Bytes, filled: int
) -> tuple[int, int, int]:
    """Log the list or the object at `at` as items: a row for each value in it.

    Returns:
        where it ends, or REFUSED; how many rows are used now, or FULL; how much is filled then.
    """
    row, count = used, 0
    mapped = look(data, at, stop) == OPEN_OBJECT
    close = CLOSE_OBJECT if mapped else CLOSE_LIST
    used = put(log, used, slot, MAP if mapped else LIST, 0, NONE)
    at = space(data, at + 1, stop)
    if look(data, at, stop) == close:
        return at + 1, used, filled
    while used != FULL:
        if mapped:
            if look(data, at, stop) != QUOTE or count == MAP_NAMES_MAX:
                return REFUSED, used, filled
            name, end = used, plain(data, at + 1, stop)
            if look(data, end, stop) == QUOTE:
                used = put(log, used, slot, TEXT, at + 1, end)
                at = end + 1
            else:
                at, used, filled = put_decoded(data, at, stop, decoded, filled, log, used, slot)
            if at == REFUSED or used == FULL:
                return REFUSED, used, filled
            for other in range(row + 1, name, 2):
                if same_text(
                    data,
                    decoded,
                    log[name, START],
                    log[name, STOP],
                    log[other, START],
                    log[other, STOP],
                ):
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


@reads_outside_in_place
def event(
    data: Bytes,
    at: int,
    stop: int,
    nodes: Longs,
    names: Bytes,
    log: Longs,
    used: int,
    stack: Longs,
    seen: Longs,
    decoded: Bytes,
    filled: int,
) -> tuple[int, int]:
    """Log one record, data[at:stop].

    Args:
        data: uint8 (b,), the bytes of the batch.
        nodes: int64 (n, NODE_COLUMNS), the tree as `JsonTree` lays it out; its root is the first.
        names: uint8, the names of the nodes, end to end.
        log: int64 (room, 4), written from row `used` on.
        stack: int64 (levels of the tree, HELD_COLUMNS), scratch: the levels around the innermost.
        seen: int64 (n, SEEN_COLUMNS), scratch: of each node, see above.
        decoded, filled: see `json_texts`.

    Returns:
        how many rows are used, DECLINED, or FULL; how much is filled then.
    """
    level = 0
    node, row, hint = NONE, NONE, NONE
    child, before = 0, NONE
    at = space(data, at, stop)
    if look(data, at, stop) != OPEN_OBJECT:
        return DECLINED, filled
    while True:
        # `at` is where the value of `child` begins; NONE: nobody wants it.
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
            elif byte == NULL_WORD[0] and row == NONE:
                # What is wanted within it is absent.
                end = skip_word(data, at, stop, NULL_WORD)
                if slot != NONE:
                    used = put(log, used, slot, NULL, at, end)
                at = end
            elif byte != (OPEN_OBJECT if sort == OBJECT else OPEN_LIST) or sort == SEVERAL:
                return DECLINED, filled
            else:
                opens = True
                at += 1
                if slot != NONE:
                    used = put(log, used, slot, OTHER, NONE, NONE)
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
                    used = put(log, used, nodes[child, LIST_SLOT], LIST, 0, NONE)
            if used == FULL:
                return FULL, filled
        if at == REFUSED:
            return DECLINED, filled
        # A value is at its end, or one has been opened: close what closes here.
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
        # Then the next value of the innermost level is due; behind another one a comma leads to it.
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
                end, child = child_escaped(
                    data, at, stop, decoded, filled, nodes, names, node, hint
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
            before, hint = child, seen[child, NEXT]
        at = space(data, end + 1, stop)
        if look(data, at, stop) != COLON:
            return DECLINED, filled
        at = space(data, at + 1, stop)


@reads_outside
def logs(
    data: Bytes,
    values: Longs,
    nodes: Longs,
    names: Bytes,
    begin: int,
    stack: Longs,
    seen: Longs,
    number: Longs,
    rows: Longs,
    used: int,
    decoded: Bytes,
    filled: int,
) -> tuple[int, int, int]:
    """Log the records from `begin` on one by one, until there is no room.

    Args:
        data, nodes, names, stack, seen: see `event`.
        values: int64 (n, 2), start and stop of each record; a negative start: it has no value.
        begin: the first record to read.
        number: int64 (n,), written: how many rows each record has, or DECLINED.
        rows: int64 (room, 4), the logs end to end, written from `used` on.
        used: how many rows are there already.
        decoded: uint8 (room,), texts that had escapes end to end, written from `filled` on; places
            from len(data) on mean these.
        filled: how much of it is used already.

    Returns:
        the record to begin with when `rows` and `decoded` have more room, n at the end; how many
        rows are used; how much of `decoded` is.
    """
    for i in range(begin, len(values)):
        number[i] = DECLINED
        if values[i, 0] >= 0:
            end, more = event(
                data,
                values[i, 0],
                values[i, 1],
                nodes,
                names,
                rows,
                used,
                stack,
                seen,
                decoded,
                filled,
            )
            if end == FULL:
                return i, used, filled
            if end != DECLINED:
                number[i] = end - used
                used, filled = end, more
    return len(values), used, filled
