"""Compiled scanner that writes the event log (`events.log`) of Protobuf messages.

The program (`events.formats.protobuf`) has a row of `messages`, int64 (n, 5), for each message type
at each node:

    FIRST, N      first row in `fields`, sorted by number, and number of rows
    MODE          CLOSED: unknown fields are skipped; STRICT: one declines; DECLINES: always
    MISSING, M    first row in `missing`, and number of rows

A field is a row of `fields`, int64 (n, 10):

    NUMBER, TYPE  as in a descriptor; MAP: a map whose entries are read; DECLINE
    SLOT          of the value or of the list's values; negative if none
    HEAD          list and map: slot of the LIST or MAP row
    OUTER         list and map: slot of the field itself if a single value is wanted
    INNER, COUNT  message: row of `messages`; enum: first number in `names`, and number of names;
                  map: first name in `names`, and number of names
    BIT           singular field: its bit, or that of its oneof; -1 if not tracked
    STATE         list and map: row of `lists`; UNWANTED; -1 for others
    VALUE_ROW     map: row of its value

A row of `missing`, int64 (n, 6), is a log row for a field that a message lacks: BIT and STATE, one
of which is -1, slot, kind, start and stop.

While a message is read, `seen` has the bits of its fields so far. A list may come in many fields,
so a row of `lists` has its state: which log row is the LIST or MAP row, the *head*, whose START
counts the values, and where the list's log ended at its last value.

Every byte is checked, even in unwanted values. Declines what a decoder would normalize: numbers in
a long form, a wanted field twice, lists in pieces.
"""

from typing import NamedTuple

import numpy as np

from workers.arrays.compiled import checked_inline, checked_kernel, checked_part
from workers.arrays.types import Bytes, Longs
from workers.events import log as kinds
from workers.events.formats.wire import (
    REFUSED,
    delimited,
    fixed,
    has_name,
    real,
    varint,
    zigzag,
)
from workers.events.json_scanner import same
from workers.events.log import (
    DECLINED,
    FULL,
    MAP_NAMES_MAX,
    START,
    Output,
    end_log,
    put,
)

FIRST, N, MODE, MISSING, M = range(5)
MESSAGE_COLUMNS = 5
CLOSED = 0
STRICT = 1
DECLINES = 2

NUMBER, TYPE, SLOT, HEAD, OUTER, INNER, COUNT, BIT, STATE, VALUE_ROW = range(10)
FIELD_COLUMNS = 10
UNWANTED = -2

DOUBLE = 1
FLOAT = 2
INT64 = 3
UINT64 = 4
INT32 = 5
FIXED64 = 6
FIXED32 = 7
BOOL = 8
STRING = 9
MESSAGE = 11
BYTES = 12
UINT32 = 13
ENUM = 14
SFIXED32 = 15
SFIXED64 = 16
SINT32 = 17
SINT64 = 18
MAP = 19
DECLINE = 20
# Wire types: varint, 8 bytes, length-delimited, 4 bytes. WIRES is by TYPE; -1: none.
VARINT = 0
EIGHT = 1
LENGTH = 2
FOUR = 5
WIRES = np.array(
    [-1, 1, 5, 0, 0, 0, 1, 5, 0, 2, -1, 2, 2, 0, 0, 5, 1, 0, 0, 2, -1], dtype=np.int64
)
WIRES.flags.writeable = False

# Columns of `stack`, which has a frame for every message that is open: row of `messages`, its end,
# the bits seen, and the place among its fields of the one expected next.
F_MESSAGE = 0
F_END = 1
F_SEEN = 2
F_HINT = 3
FRAME = 4
# Columns of `missing`.
M_BIT, M_STATE, M_SLOT, M_KIND, M_START, M_STOP = range(6)
MISSING_COLUMNS = 6
# Columns of `lists`: log row of the head (-1: no value yet), where the list's log ended, and a bit
# for each wanted name of a map that was met.
L_HEAD = 0
L_END = 1
L_SEEN = 2
LIST_COLUMNS = 3
NUMBER_MAX = 2**29 - 1
# Maximum bits of a frame, and wanted names of a map.
BITS_MAX = 60


class Program(NamedTuple):
    """All message types of a thread; see the module for `messages`, `fields` and `missing`.

    `names`, int64 (n, 3): start and stop in the texts, and enum number or slot of a map value.
    """

    messages: Longs
    fields: Longs
    missing: Longs
    names: Longs


class Scan(NamedTuple):
    """A batch and its program; `data` has the records, then from `base` on the program's texts.

    Scratch: `stack`, int64 (depth, 4), deeper messages are declined; `lists`, int64 (states, 3).
    """

    data: Bytes
    base: int
    program: Program
    stack: Longs
    lists: Longs


@checked_part
def row_of(table: Longs, column: int, first: int, count: int, number: int) -> int:
    """Return the row with a `number` in a column, by bisection; -1 if none.

    Only the `count` rows from `first` on are searched, which are sorted by that column.
    """
    low = first
    high = first + count
    while low < high:
        middle = (low + high) // 2
        if table[middle, column] < number:
            low = middle + 1
        else:
            high = middle
    return low if low < first + count and table[low, column] == number else -1


@checked_inline
def scalar(scan: Scan, row: int, pos: int, stop: int) -> tuple[int, int, int, int]:
    """Read a value at `pos`, which is no message, of the field in `row` of `fields`.

    Returns KIND, START and STOP of its log row, and its end, REFUSED if invalid.
    """
    data = scan.data
    fields = scan.program.fields
    names = scan.program.names
    kind = fields[row, TYPE]
    if kind in (STRING, BYTES):
        length, pos = varint(data, pos, stop)
        return delimited(data, pos, stop, length, kind == STRING)
    if kind in (FLOAT, DOUBLE):
        return real(data, pos, stop, 4 if kind == FLOAT else 8)
    if kind in (SINT32, SINT64):
        value, pos = zigzag(data, pos, stop)
    elif WIRES[kind] == VARINT:
        value, pos = varint(data, pos, stop)
    else:
        value, pos = fixed(data, pos, stop, 8 if WIRES[kind] == EIGHT else 4)
    if kind == BOOL:
        end = pos if 0 <= value <= 1 else REFUSED
        return kinds.TRUE if value == 1 else kinds.FALSE, -1, -1, end
    if kind == ENUM:
        name = row_of(names, 2, fields[row, INNER], fields[row, COUNT], value)
        if name < 0:
            return kinds.TEXT, 0, 0, REFUSED
        base = scan.base
        return kinds.TEXT, base + names[name, 0], base + names[name, 1], pos
    if kind == SFIXED32 and value >= 2**31:
        value -= 2**32
    # A decoder would cut bits off.
    if kind in (INT32, SINT32):
        is_within = -(2**31) <= value < 2**31
    elif kind == UINT32:
        is_within = 0 <= value < 2**32
    else:
        # Beyond an int64, unsigned numbers look negative.
        is_within = value >= 0 or kind not in (UINT64, FIXED64)
    return kinds.VALUE, value, -1, pos if is_within else REFUSED


@checked_part
def open_list(scan: Scan, row: int, log: Longs, used: int) -> int:
    """Count one more value of the list or map in `row` of `fields`; the caller then logs the value.

    The count is START of the head, the LIST or MAP row, which is logged before the first value.
    Returns the rows used, or FULL; DECLINED if other rows were logged since the value before: the
    values of a list must follow each other in the log.
    """
    fields = scan.program.fields
    lists = scan.lists
    state = fields[row, STATE]
    has_head = fields[row, HEAD] >= 0
    if lists[state, L_HEAD] < 0:
        # Where a view wants the field as a single value, OTHER says that it has another form.
        if fields[row, OUTER] >= 0:
            used = put(log, used, fields[row, OUTER], kinds.OTHER, -1, -1)
        # Without a head row, this number only says that a value was met.
        lists[state, L_HEAD] = used
        if has_head:
            kind = kinds.MAP if fields[row, TYPE] == MAP else kinds.LIST
            used = put(log, used, fields[row, HEAD], kind, 0, -1)
    elif has_head and lists[state, L_END] != used:
        # Wanted fields of each message in a list are logged between the list's values. They have
        # their own slots, so the values need not follow each other.
        has_own_slots = (
            fields[row, TYPE] == MESSAGE and fields[row, SLOT] != fields[row, HEAD]
        )
        if not has_own_slots:
            return DECLINED
    # `used` is negative if the log is full.
    if used > 0 and has_head:
        log[lists[state, L_HEAD], START] += 1
    return used


@checked_part
def log_value(
    scan: Scan, row: int, pos: int, stop: int, log: Longs, used: int
) -> tuple[int, int]:
    """Log the value at `pos` of the field in `row` of `fields`.

    Returns its end or REFUSED, and the rows used, DECLINED or FULL.
    """
    fields = scan.program.fields
    lists = scan.lists
    kind, start, end, pos = scalar(scan, row, pos, stop)
    if pos == REFUSED:
        return REFUSED, DECLINED
    state = fields[row, STATE]
    if state >= 0:
        used = open_list(scan, row, log, used)
    if fields[row, SLOT] >= 0:
        used = put(log, used, fields[row, SLOT], kind, start, end)
    if state >= 0:
        lists[state, L_END] = used
    return pos, used


@checked_part
def log_map_entry(
    scan: Scan, row: int, pos: int, stop: int, log: Longs, used: int
) -> int:
    """Log the map entry data[pos:stop] of the field in `row` of `fields`.

    Returns the rows used, DECLINED or FULL.
    """
    data, base, program, _, lists = scan
    fields = program.fields
    names = program.names
    value_row = fields[row, VALUE_ROW]
    value_type = fields[value_row, TYPE]
    # Name and value (a log row) are empty texts unless the entry has them.
    name = base
    name_end = base
    kind = kinds.TEXT
    start = base
    end = base
    has_name_field = False
    has_value_field = False
    # An entry is a message with the name as field 1 and the value as field 2.
    while pos < stop:
        tag, pos = varint(data, pos, stop)
        if tag == 1 << 3 | LENGTH and not has_name_field:
            length, pos = varint(data, pos, stop)
            _, name, name_end, pos = delimited(data, pos, stop, length, True)
            has_name_field = True
        elif tag == 2 << 3 | WIRES[value_type] and not has_value_field:
            kind, start, end, pos = scalar(scan, value_row, pos, stop)
            has_value_field = True
        else:
            return DECLINED
        if pos == REFUSED:
            return DECLINED
    if not has_value_field:
        # Log the type's default; enum and bytes are left to the general reader.
        if value_type in (ENUM, BYTES):
            return DECLINED
        if value_type == BOOL:
            kind = kinds.FALSE
            start = -1
            end = -1
        elif value_type != STRING:
            kind = kinds.REAL if value_type in (FLOAT, DOUBLE) else kinds.VALUE
            start = 0
            end = -1
    state = fields[row, STATE]
    used = open_list(scan, row, log, used)
    if used < 0:
        return used
    # As items: of a repeated name, the last value wins, which is left to the general reader.
    slot = fields[row, HEAD]
    if slot >= 0:
        head = lists[state, L_HEAD]
        if log[head, START] > MAP_NAMES_MAX or has_name(
            data, name, name_end, log, head, used
        ):
            return DECLINED
        used = put(log, used, slot, kinds.TEXT, name, name_end)
        used = put(log, used, slot, kind, start, end)
        lists[state, L_END] = used
    # As fields: the names that are wanted have slots of their own.
    for bit in range(fields[row, COUNT]):
        name_row = fields[row, INNER] + bit
        wanted_start = base + names[name_row, 0]
        wanted_stop = base + names[name_row, 1]
        if same(data, name, name_end, data, wanted_start, wanted_stop):
            if lists[state, L_SEEN] >> bit & 1:
                return DECLINED
            lists[state, L_SEEN] |= 1 << bit
            used = put(log, used, names[name_row, 2], kind, start, end)
    return used


@checked_part
def log_missing(scan: Scan, message: int, seen: int, log: Longs, used: int) -> int:
    """Log the rows of fields that a message lacks; return the rows used, or FULL.

    `message` is its row of `messages`, and `seen` has the bits of the fields that it has.
    """
    messages = scan.program.messages
    missing = scan.program.missing
    first = messages[message, MISSING]
    number = messages[message, M]
    for row in range(first, first + number):
        bit = missing[row, M_BIT]
        state = missing[row, M_STATE]
        kind = missing[row, M_KIND]
        there = seen >> bit & 1 != 0 if bit >= 0 else scan.lists[state, L_HEAD] >= 0
        if not there:
            # Start and stop of a text are those in the program's texts.
            shift = scan.base if kind == kinds.TEXT else 0
            start = missing[row, M_START] + shift
            stop = missing[row, M_STOP] + shift
            used = put(log, used, missing[row, M_SLOT], kind, start, stop)
    return used


@checked_part
def skip_field(data: Bytes, pos: int, stop: int, wire: int) -> int:
    """Return the end of the value of an unknown field, by its wire type; REFUSED for a group."""
    if wire == VARINT:
        return varint(data, pos, stop)[1]
    if wire == LENGTH:
        length, pos = varint(data, pos, stop)
        return pos + length if pos != REFUSED and 0 <= length <= stop - pos else REFUSED
    size = 8 if wire == EIGHT else 4
    return pos + size if wire in (EIGHT, FOUR) and size <= stop - pos else REFUSED


@checked_kernel
def scan_record(
    scan: Scan, pos: int, stop: int, root: int, log: Longs, used: int
) -> int:
    """Log the message data[pos:stop] from row `used` on; return the rows used, DECLINED or FULL.

    `root` is the row of `messages` of its type.
    """
    data, _, program, stack, lists = scan
    messages = program.messages
    fields = program.fields
    # Frames of `stack` in use.
    depth = 1
    lists[:, L_HEAD] = -1
    lists[:, L_SEEN] = 0
    stack[0, F_MESSAGE] = root
    stack[0, F_END] = stop
    stack[0, F_SEEN] = 0
    stack[0, F_HINT] = 0
    while True:
        # Every turn reads a field of the innermost message, or ends that message.
        top = depth - 1
        message = stack[top, F_MESSAGE]
        end = stack[top, F_END]
        if messages[message, MODE] == DECLINES:
            return DECLINED
        if pos == end:
            used = log_missing(scan, message, stack[top, F_SEEN], log, used)
            depth = top
            if depth == 0 or used < 0:
                return used
            continue
        tag, pos = varint(data, pos, end)
        number = tag >> 3
        wire = tag & 7
        if pos == REFUSED or not 1 <= number <= NUMBER_MAX:
            return DECLINED
        first = messages[message, FIRST]
        count = messages[message, N]
        # Most messages have their fields in the order of the schema: try the next row first.
        row = first + stack[top, F_HINT]
        if row == first + count or fields[row, NUMBER] != number:
            row = row_of(fields, NUMBER, first, count, number)
        if row < 0:
            pos = skip_field(data, pos, end, wire)
            if pos == REFUSED or messages[message, MODE] == STRICT:
                return DECLINED
            continue
        stack[top, F_HINT] = row - first + 1
        kind = fields[row, TYPE]
        bit = fields[row, BIT]
        state = fields[row, STATE]
        # Of a field that comes twice, or of a oneof, the last value wins: upb decides that.
        if bit >= 0:
            if stack[top, F_SEEN] >> bit & 1:
                return DECLINED
            stack[top, F_SEEN] |= 1 << bit
        if kind not in (MESSAGE, MAP):
            # Repeated numbers may be packed behind one length, whatever the schema says; singular
            # ones, of `state` -1, may not.
            if WIRES[kind] == wire:
                pos, used = log_value(scan, row, pos, end, log, used)
            elif wire == LENGTH and state != -1 and kind != DECLINE:
                length, pos = varint(data, pos, end)
                if pos == REFUSED or not 0 <= length <= end - pos:
                    return DECLINED
                last = pos + length
                while pos < last and used >= 0:
                    pos, used = log_value(scan, row, pos, last, log, used)
            else:
                return DECLINED
            if used < 0:
                return used
            continue
        length, pos = varint(data, pos, end)
        if wire != LENGTH or pos == REFUSED or not 0 <= length <= end - pos:
            return DECLINED
        if kind == MAP:
            used = log_map_entry(scan, row, pos, pos + length, log, used)
            pos += length
        else:
            if depth == len(stack):
                return DECLINED
            if state >= 0:
                used = open_list(scan, row, log, used)
            # Where a single value is wanted, of the field or of each element, OTHER says that it is
            # a message.
            if fields[row, SLOT] >= 0:
                used = put(log, used, fields[row, SLOT], kinds.OTHER, -1, -1)
            # The rows of this element's own fields follow, which `open_list` allows for.
            if state >= 0:
                lists[state, L_END] = used
            stack[depth, F_MESSAGE] = fields[row, INNER]
            stack[depth, F_END] = pos + length
            stack[depth, F_SEEN] = 0
            stack[depth, F_HINT] = 0
            depth += 1
        if used < 0:
            return used


@checked_kernel
def scan_all(scan: Scan, values: Longs, roots: Longs, begin: int, out: Output) -> int:
    """Log messages from `begin` on until `out` is full; return where to resume, or n.

    `values`, int64 (n, 2), has start and stop of each, and `roots` (n,) the row of `messages` of
    its type, or DECLINED to leave it to the general reader. Also stops once declined messages have
    `out.declined_bytes` in total, so that their objects never fill the memory.
    """
    used = 0
    bytes_left = out.declined_bytes
    for i in range(begin, len(values)):
        end = DECLINED
        if roots[i] != DECLINED:
            end = scan_record(
                scan, values[i, 0], values[i, 1], roots[i], out.rows, used
            )
        if end == FULL:
            return i
        used, bytes_left = end_log(out, i, values, used, end, bytes_left)
        if bytes_left <= 0:
            return i + 1
    return len(values)
