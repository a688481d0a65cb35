"""Wire encoding shared by the binary formats: record header, varints, floats, UTF-8.

A record with a schema in a registry begins with this header:

    0, the schema id in 4 bytes (big-endian), and for Protobuf the path of its message type

`stop` is the exclusive end of the record. A position of REFUSED means invalid bytes.
"""

import numpy as np

from workers.arrays.compiled import checked_inline, checked_kernel, checked_part
from workers.arrays.types import Bytes, Longs
from workers.arrays.words import word_at
from workers.events.json_scanner import same, utf8_length
from workers.events.log import OTHER, REAL, START, STOP, TEXT

REFUSED = -1
MORE = 0x80
BITS = 0x7F
INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1


@checked_part
def varint(data: Bytes, pos: int, stop: int) -> tuple[int, int]:
    """Decode a varint as an int64; return it and its end, REFUSED if cut off or too long."""
    if pos >= stop:
        return 0, REFUSED
    byte = int(data[pos])
    pos += 1
    value = byte & BITS
    shift = 7
    while byte >= MORE:
        if pos >= stop or shift > 63:
            return 0, REFUSED
        byte = int(data[pos])
        pos += 1
        if byte == 0 or (shift == 63 and byte > 1):
            return 0, REFUSED
        if shift == 63:
            return value + INT64_MIN, pos
        value |= (byte & BITS) << shift
        shift += 7
    return value, pos


@checked_kernel
def zigzag(data: Bytes, pos: int, stop: int) -> tuple[int, int]:
    """Decode a zigzag integer in its shortest form; return it and its end."""
    bits, pos = varint(data, pos, stop)
    return (bits >> 1 & INT64_MAX) ^ -(bits & 1), pos


@checked_part
def fixed(data: Bytes, pos: int, stop: int, size: int) -> tuple[int, int]:
    """Decode 4 little-endian bytes, unsigned, or 8, signed; return the value and its end."""
    if size > stop - pos or stop > len(data):
        return 0, REFUSED
    if size == 8:
        return int(np.uint64(word_at(data, pos)).view(np.int64)), pos + 8
    value = 0
    for place in range(size):
        value |= int(data[pos + place]) << 8 * place
    return value, pos + size


@checked_part
def real(data: Bytes, pos: int, stop: int, size: int) -> tuple[int, int, int, int]:
    """Decode a float of 4 or 8 bytes; return kind, START and STOP of its log row, and its end."""
    bits, pos = fixed(data, pos, stop, size)
    if size == 4:
        bits = int(np.float64(np.uint32(bits).view(np.float32)).view(np.int64))
    is_nan = (
        bits & 0x7FF0000000000000 == 0x7FF0000000000000 and bits & 0xFFFFFFFFFFFFF != 0
    )
    return (OTHER if is_nan else REAL), bits, -1, pos


@checked_inline
def delimited(
    data: Bytes, pos: int, stop: int, length: int, is_text: bool
) -> tuple[int, int, int, int]:
    """Decode text or bytes from `pos` on, before which their length was read.

    Return kind, START and STOP of the log row, and the end; or as the end REFUSED, if they reach
    beyond `stop`, or a text is not UTF-8. Bytes are no label: of the kind OTHER.
    """
    if pos == REFUSED or not 0 <= length <= stop - pos:
        return OTHER, 0, 0, REFUSED
    end = pos + length
    if not is_text:
        return OTHER, -1, -1, end
    start = pos
    while pos < end:
        width = 1 if data[pos] < MORE else utf8_length(data, pos, end)
        if width == 0:
            return OTHER, 0, 0, REFUSED
        pos += width
    return TEXT, start, end, end


@checked_part
def has_name(
    data: Bytes, start: int, end: int, log: Longs, head: int, used: int
) -> bool:
    """Return whether data[start:end] is already a name in the map whose log begins at `head`."""
    # Names and values alternate.
    row = head + 1
    while row < used and not same(
        data, start, end, data, log[row, START], log[row, STOP]
    ):
        row += 2
    return row < used


HEADER = 5
# Maximum bytes of a message path, read as a little-endian number; unique, as its length is first.
MESSAGE_BYTES = 7

# In place of a number: no value, no schema id, or a pair that is not known yet.
NO_VALUE = -1
NO_ID = -2
UNKNOWN = -3


@checked_part
def message_path(data: Bytes, pos: int, stop: int) -> tuple[int, int]:
    """Return the encoded message path of a record as one number, and its end."""
    begin = pos
    left, pos = zigzag(data, pos, stop)
    if pos == REFUSED or left < 0 or left > MESSAGE_BYTES:
        return 0, REFUSED
    while left > 0:
        index, pos = zigzag(data, pos, stop)
        if pos == REFUSED or index < 0 or pos - begin > MESSAGE_BYTES:
            return 0, REFUSED
        left -= 1
    found = 0
    for place in range(pos - 1, begin - 1, -1):
        found = found << 8 | int(data[place])
    return found, pos


@checked_kernel
def parse_headers(
    data: Bytes,
    values: Longs,
    named: bool,
    pairs: Longs,
    begin: int,
    ids: Longs,
    payloads: Longs,
    numbers: Longs,
) -> int:
    """Parse record headers from `begin` on, until a pair of schema and message is not in `pairs`.

    Returns n, or the record of that pair: its `ids` are written, its number is UNKNOWN. The caller
    resolves it and resumes there.

    Args:
        values: (n, 2), start and stop of each record in `data`; a start of -1 is a null value.
        named: whether a message path follows the schema id, as in Protobuf.
        pairs: (k, 2), the known (schema id, message) pairs.
        ids, payloads: int64 (n, 2), written: id and message, start and stop; -1 if none.
        numbers: int64 (n,), written: row of `pairs`, NO_VALUE or NO_ID.
    """
    last = 0
    for row in range(begin, len(values)):
        start = values[row, 0]
        stop = values[row, 1]
        ids[row, 0] = -1
        ids[row, 1] = -1
        payloads[row, 0] = -1
        payloads[row, 1] = -1
        numbers[row] = NO_VALUE if start < 0 else NO_ID
        if start < 0 or stop - start < HEADER or data[start] != 0:
            continue
        schema = 0
        for place in range(start + 1, start + HEADER):
            schema = schema << 8 | int(data[place])
        pos = start + HEADER
        which = 0
        if named:
            which, pos = message_path(data, pos, stop)
            if pos == REFUSED:
                continue
        ids[row, 0] = schema
        ids[row, 1] = which
        payloads[row, 0] = pos
        payloads[row, 1] = stop
        # Most records have the same schema as the previous one.
        if last >= len(pairs) or pairs[last, 0] != schema or pairs[last, 1] != which:
            last = 0
            while last < len(pairs) and (
                pairs[last, 0] != schema or pairs[last, 1] != which
            ):
                last += 1
            if last == len(pairs):
                numbers[row] = UNKNOWN
                return row
        numbers[row] = last
    return len(values)
