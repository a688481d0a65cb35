"""What stands before the payload of a record whose schema a registry keeps.

    0, the schema's id in 4 bytes (the highest first), of Protobuf which of its messages it is

Schema and message of a record have a number: its row of `known`. One that is not in it yet is the
caller's to find out, and the records are gone through from there on.
"""

from __future__ import annotations

from workers.kernels.compiled import part_reads_outside, reads_outside
from workers.kernels.wire.parts import REFUSED, Bytes, Longs, zigzag

HEADER = 5
# Bytes that say which message it is, as one number, the first byte lowest. They say themselves how
# many they are, so no two messages have the same.
MESSAGE_BYTES = 7

# What a record's number is if it has none: no value, no schema's id in it, one not known yet.
NO_VALUE, NO_ID, UNKNOWN = -1, -2, -3


@part_reads_outside
def message(data: Bytes, at: int, stop: int) -> tuple[int, int]:
    """Return the bytes that say which message of its schema a record is, and where they end."""
    begin = at
    left, at = zigzag(data, at, stop)
    if at == REFUSED or left < 0 or left > MESSAGE_BYTES:
        return 0, REFUSED
    while left > 0:
        index, at = zigzag(data, at, stop)
        if at == REFUSED or index < 0 or at - begin > MESSAGE_BYTES:
            return 0, REFUSED
        left -= 1
    found = 0
    for place in range(at - 1, begin - 1, -1):
        found = found << 8 | int(data[place])
    return found, at


@reads_outside
def cut(
    data: Bytes, values: Longs, named: bool, known: Longs, begin: int,
    ids: Longs, payloads: Longs, numbers: Longs,
) -> int:  # fmt: skip
    """Cut what stands before the payloads of records, from `begin` on, until one is not known.

    Args:
        data: uint8 (b,), the bytes of the batch.
        values: int64 (n, 2), start and stop of each record; a negative start: it has no value.
        named: whether records name a message of their schema.
        known: int64 (k, 2), id and message of those that have a number, their row.
        begin: the first record to look at.
        ids: int64 (n, 2), written: id and message of each record; -1 without.
        payloads: int64 (n, 2), written: start and stop of what the schema is about.
        numbers: int64 (n,), written: row of `known`; NO_VALUE or NO_ID.

    Returns:
        n; or the record that is not known: its `ids` are written, its number is UNKNOWN.
    """
    last = 0
    for row in range(begin, len(values)):
        start, stop = values[row, 0], values[row, 1]
        ids[row, 0], ids[row, 1] = -1, -1
        payloads[row, 0], payloads[row, 1], numbers[row] = -1, -1, NO_VALUE if start < 0 else NO_ID
        if start < 0 or stop - start < HEADER or data[start] != 0:
            continue
        schema = 0
        for place in range(start + 1, start + HEADER):
            schema = schema << 8 | int(data[place])
        at, which = start + HEADER, 0
        if named:
            which, at = message(data, at, stop)
            if at == REFUSED:
                continue
        ids[row, 0], ids[row, 1] = schema, which
        payloads[row, 0], payloads[row, 1] = at, stop
        # Most records are of the schema of the one before.
        if last >= len(known) or known[last, 0] != schema or known[last, 1] != which:
            last = 0
            while last < len(known) and (known[last, 0] != schema or known[last, 1] != which):
                last += 1
            if last == len(known):
                numbers[row] = UNKNOWN
                return row
        numbers[row] = last
    return len(values)
