"""Compiled scanner that writes the event log (`events.log`) of Avro records.

The program (`events.formats.avro`) has a row for every type at every node, int64 (rows, 6):

    OP      the type
    SLOT    log slot of the value; negative if none
    A, B    record and union: first row in `parts`, and number of rows
            enum: first symbol in `names`, and number of symbols
            fixed: A is the size
            array and map: A is the row of an element or value, B the slot of the LIST or MAP row
            in the log, negative without one
            constant: first row in `constants`, and number of rows
    C, D    map: first entry in `names`, and number, of the names that are wanted as fields

Every byte is checked, even in unwanted values: shortest form of numbers, UTF-8, stated lengths of
blocks, no trailing bytes. The program's texts (enum symbols, field names, defaults) follow the
records in `data`, from `base` on.
"""

from typing import NamedTuple

from workers.arrays.compiled import checked_inline, checked_kernel, checked_part
from workers.arrays.types import Bytes, Longs
from workers.events import log as kinds
from workers.events.formats.wire import REFUSED, delimited, has_name, real, zigzag
from workers.events.json_scanner import same
from workers.events.log import (
    DECLINED,
    FULL,
    KIND,
    MAP_NAMES_MAX,
    START,
    STOP,
    Output,
    end_log,
    put,
)
from workers.events.log import SLOT as LOG_SLOT

OP, SLOT, A, B, C, D = range(6)
COLUMNS = 6

# Types without parts come first.
NULL_OP, BOOLEAN, INT, LONG, FLOAT, DOUBLE, STRING, BYTES, FIXED, ENUM = range(10)
LAST_FLAT = ENUM
UNION = 10
CONSTANT = 11
DECLINE = 12
RECORD = 13
ARRAY = 14
MAP_OP = 15

# Columns of `stack`, which has a frame for every record, array or map that is open: its row;
# of a record, the next of its `parts`; how many fields of the record, or values of the block, are
# left; of an array or map, its LIST or MAP row in the log, the count of its values, and the stated
# end of its block, or -1. F_COUNT of a map that is wanted as fields has a bit for each name met.
F_ROW, F_NEXT, F_LEFT, F_HEAD, F_COUNT, F_END = range(6)
FRAME = 6
# Step limit for values that take no bytes: a hostile record may claim 2^62 of them.
STEPS_FREE = 65_536
STEPS_A_BYTE = 8
INT_MAX = 2**31 - 1
# Maximum wanted names of a map; a bit per name marks it as seen.
CHILDREN_MAX = 60


class Program(NamedTuple):
    """All schemas of a thread as tables, whose rows refer to each other by number.

    Attributes:
        rows: int64 (n, 6), a row for every type at every node (see the module).
        parts: int64 (n,), row numbers: the fields of records and the branches of unions, in order.
        names: int64 (n, 3), start and stop of a name in the texts, and the row of its value (of
            an enum symbol 0: it has none).
        constants: int64 (n, 4), log rows that are written as they are, such as defaults.
    """

    rows: Longs
    parts: Longs
    names: Longs
    constants: Longs


class Scan(NamedTuple):
    """A batch and its program.

    `data` has the records, and from `base` on the program's texts. `stack`, int64 (depth, FRAME),
    is scratch for one record; deeper ones are declined.
    """

    data: Bytes
    base: int
    program: Program
    stack: Longs


@checked_inline
def scan_flat(scan: Scan, row: int, pos: int, stop: int) -> tuple[int, int, int, int]:
    """Read a value without parts at `pos`, whose type is in `row` of the program.

    Returns KIND, START and STOP of its log row, and its end, REFUSED if it is invalid.
    """
    data = scan.data
    rows = scan.program.rows
    names = scan.program.names
    op = rows[row, OP]
    a = rows[row, A]
    if op in (STRING, BYTES):
        length, pos = zigzag(data, pos, stop)
        return delimited(data, pos, stop, length, op == STRING)
    if op in (LONG, INT):
        value, pos = zigzag(data, pos, stop)
        is_within = op == LONG or -INT_MAX - 1 <= value <= INT_MAX
        return kinds.VALUE, value, -1, pos if is_within else REFUSED
    if op == NULL_OP:
        return kinds.NULL, -1, -1, pos
    if op == BOOLEAN:
        if pos >= stop or data[pos] > 1:
            return kinds.TRUE, 0, 0, REFUSED
        return (kinds.TRUE if data[pos] == 1 else kinds.FALSE), -1, -1, pos + 1
    if op == ENUM:
        symbol, pos = zigzag(data, pos, stop)
        if pos == REFUSED or not 0 <= symbol < rows[row, B]:
            return kinds.TEXT, 0, 0, REFUSED
        return (
            kinds.TEXT,
            scan.base + names[a + symbol, 0],
            scan.base + names[a + symbol, 1],
            pos,
        )
    if op == FIXED:
        return kinds.OTHER, -1, -1, pos + a if a <= stop - pos else REFUSED
    return real(data, pos, stop, 4 if op == FLOAT else 8)


@checked_part
def block(data: Bytes, pos: int, stop: int) -> tuple[int, int, int]:
    """Read the head of a block of a list or map.

    Returns the number of its values, where they begin (REFUSED if invalid), and where they are
    stated to end (-1 if that is not stated: a negative count says that it is).
    """
    count, pos = zigzag(data, pos, stop)
    if pos == REFUSED or count >= 0:
        return count, pos, -1
    size, pos = zigzag(data, pos, stop)
    # No record has 2^62 values, and -count of the least int64 would overflow.
    if pos == REFUSED or not 0 <= size <= stop - pos or count < -(2**62):
        return 0, REFUSED, -1
    return -count, pos, pos + size


@checked_kernel
def scan_record(
    scan: Scan, pos: int, stop: int, root: int, log: Longs, used: int
) -> int:
    """Log the record data[pos:stop] from row `used` on; return the rows used, DECLINED or FULL.

    `root` is the program's row of the record's type.
    """
    data, base, program, stack = scan
    rows, parts, names, constants = program
    # Frames of `stack` in use.
    depth = 0
    row = root
    # Every turn reads the value of the type in `row`, unless that is a union: then the next turn
    # reads the branch. A stack instead of recursion: a hostile record must not end the process. Nor
    # may it take forever: a list can state 2^62 nulls, which have no bytes.
    steps_left = STEPS_FREE + STEPS_A_BYTE * (stop - pos)
    while True:
        steps_left -= 1
        if steps_left < 0:
            return DECLINED
        op = rows[row, OP]
        slot = rows[row, SLOT]
        if op <= LAST_FLAT:
            kind, start, end, pos = scan_flat(scan, row, pos, stop)
            if pos == REFUSED:
                return DECLINED
            if slot >= 0:
                used = put(log, used, slot, kind, start, end)
                if used == FULL:
                    return FULL
        elif op == UNION:
            branch, pos = zigzag(data, pos, stop)
            if pos == REFUSED or not 0 <= branch < rows[row, B]:
                return DECLINED
            row = parts[rows[row, A] + branch]
            continue
        elif op == CONSTANT:
            for constant in range(rows[row, A], rows[row, A] + rows[row, B]):
                kind = constants[constant, KIND]
                start = constants[constant, START]
                end = constants[constant, STOP]
                # Start and stop of a text are those in the program's texts.
                shift = base if kind in (kinds.TEXT, kinds.WHOLE) else 0
                log_slot = constants[constant, LOG_SLOT]
                used = put(log, used, log_slot, kind, start + shift, end + shift)
            if used == FULL:
                return FULL
        elif op == DECLINE or depth == len(stack):
            return DECLINED
        else:
            # A record, array or map: open a frame. Wanted as a value as well, which it is not.
            if slot >= 0:
                used = put(log, used, slot, kinds.OTHER, -1, -1)
            stack[depth, F_ROW] = row
            stack[depth, F_COUNT] = 0
            stack[depth, F_END] = -1
            stack[depth, F_LEFT] = 0
            if op == RECORD:
                stack[depth, F_NEXT] = rows[row, A]
                stack[depth, F_LEFT] = rows[row, B]
            else:
                stack[depth, F_HEAD] = used
                if rows[row, B] >= 0:
                    kind = kinds.LIST if op == ARRAY else kinds.MAP
                    used = put(log, used, rows[row, B], kind, 0, -1)
            if used == FULL:
                return FULL
            depth += 1
        # After a value or an opening: find the next value.
        while True:
            if depth == 0:
                return used if pos == stop else DECLINED
            top = depth - 1
            holder = stack[top, F_ROW]
            op = rows[holder, OP]
            if op == RECORD:
                if stack[top, F_LEFT] == 0:
                    depth -= 1
                    continue
                stack[top, F_LEFT] -= 1
                row = parts[stack[top, F_NEXT]]
                stack[top, F_NEXT] += 1
                break
            # A list or map comes in blocks; an empty one ends it.
            slot = rows[holder, B]
            if stack[top, F_LEFT] == 0:
                if stack[top, F_END] >= 0 and stack[top, F_END] != pos:
                    return DECLINED
                left, pos, end = block(data, pos, stop)
                if pos == REFUSED:
                    return DECLINED
                if left == 0:
                    # The count is known only now.
                    if slot >= 0:
                        log[stack[top, F_HEAD], START] = stack[top, F_COUNT]
                    depth -= 1
                    continue
                stack[top, F_LEFT] = left
                stack[top, F_END] = end
            stack[top, F_LEFT] -= 1
            row = rows[holder, A]
            if op == ARRAY:
                stack[top, F_COUNT] += 1
                break
            length, pos = zigzag(data, pos, stop)
            _, start, end, pos = delimited(data, pos, stop, length, True)
            if pos == REFUSED:
                return DECLINED
            # For items, F_COUNT counts them. If a name repeats, the last value wins: that is left
            # to the general reader.
            if slot >= 0:
                if stack[top, F_COUNT] == MAP_NAMES_MAX or has_name(
                    data, start, end, log, stack[top, F_HEAD], used
                ):
                    return DECLINED
                stack[top, F_COUNT] += 1
                used = put(log, used, slot, kinds.TEXT, start, end)
                if used == FULL:
                    return FULL
            # For fields (never both), F_COUNT has a bit for each wanted name that was met. The
            # value of a wanted name has its own row, instead of the row for all values.
            first = rows[holder, C]
            for bit in range(rows[holder, D]):
                name = first + bit
                if same(
                    data, start, end, data, base + names[name, 0], base + names[name, 1]
                ):
                    if stack[top, F_COUNT] >> bit & 1:
                        return DECLINED
                    stack[top, F_COUNT] |= 1 << bit
                    row = names[name, 2]
                    break
            break


@checked_kernel
def scan_all(scan: Scan, values: Longs, roots: Longs, begin: int, out: Output) -> int:
    """Log records from `begin` on until `out` is full; return where to resume, or n.

    `values`, int64 (n, 2), has start and stop of each record, and `roots` (n,) the program's row of
    its type, or DECLINED to leave it to the general reader. Also stops once declined records have
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
