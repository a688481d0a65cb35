"""Wire encoding shared by the binary formats: record header, varints, floats, UTF-8.

A record with a schema in a registry begins with this header:

    0, the schema id in 4 bytes (big-endian), and for Protobuf the path of its message type

The path is a list of zigzag varints, its length first: which message of the file, which one nested
in it, and so on.

`stop` is the exclusive end of the record. A position of REFUSED means invalid bytes. Of a value's
row in the log, functions return KIND, START and STOP, as `events.log` has them.
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
    """Decode a varint as an int64; return it and its end, REFUSED if invalid.

    That is if it is cut off, has more than 64 bits, or is longer than needed.
    """
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
        # A last byte of 0 adds nothing; of the tenth byte only one bit is left.
        if byte == 0 or (shift == 63 and byte > 1):
            return 0, REFUSED
        if shift == 63:
            # The sign bit.
            return value + INT64_MIN, pos
        value |= (byte & BITS) << shift
        shift += 7
    return value, pos


@checked_kernel
def zigzag(data: Bytes, pos: int, stop: int) -> tuple[int, int]:
    """Decode a zigzag integer in its shortest form; return it and its end, or REFUSED.

    Zigzag: the varint 0, 1, 2, 3, 4 ... means 0, -1, 1, -2, 2 ...
    """
    bits, pos = varint(data, pos, stop)
    # The mask clears the sign that `>>` copies: these are 64 unsigned bits.
    return (bits >> 1 & INT64_MAX) ^ -(bits & 1), pos


@checked_part
def fixed(data: Bytes, pos: int, stop: int, size: int) -> tuple[int, int]:
    """Decode 4 little-endian bytes, unsigned, or 8, signed; return the value and its end.

    The end is REFUSED if they reach beyond `stop`.
    """
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
    """Decode a float of 4 or 8 bytes; return kind, START and STOP of its log row, and its end.

    START has the bits of a float64. NaN is no number: of the kind OTHER.
    """
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

    Return kind, START and STOP of the log row, and the end. The end is REFUSED if they reach beyond
    `stop`, if a text is not UTF-8, or if `pos` is REFUSED, as there was no length. Bytes are of the
    kind OTHER, as they are no label.
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
    """Return whether data[start:end] is already a name in a map whose MAP row is log[head].

    The map's log ends before row `used`.
    """
    # After the MAP row, names and values alternate.
    row = head + 1
    while row < used and not same(
        data, start, end, data, log[row, START], log[row, STOP]
    ):
        row += 2
    return row < used


# Bytes of a header without a message path.
HEADER = 5
# Maximum bytes of a message path, so that it fits in an int64 (see `message_path`).
MESSAGE_BYTES = 7

# In place of a row of `pairs`: no value, no schema id, or a pair that is not known yet.
NO_VALUE = -1
NO_ID = -2
UNKNOWN = -3


@checked_part
def message_path(data: Bytes, pos: int, stop: int) -> tuple[int, int]:
    """Return the message path at `pos` as one number, and its end or REFUSED.

    The number consists of the path's bytes, the first one lowest. They are at most MESSAGE_BYTES,
    so they fit in an int64. Different paths have different numbers, as the length comes first.
    """
    begin = pos
    left, pos = zigzag(data, pos, stop)
    if pos == REFUSED or left < 0 or left > MESSAGE_BYTES:
        return 0, REFUSED
    while left > 0:
        index, pos = zigzag(data, pos, stop)
        if pos == REFUSED or index < 0 or pos - begin > MESSAGE_BYTES:
            return 0, REFUSED
        left -= 1
    path = 0
    for place in range(pos - 1, begin - 1, -1):
        path = path << 8 | int(data[place])
    return path, pos


@checked_kernel
def parse_headers(
    data: Bytes,
    values: Longs,
    names_messages: bool,
    pairs: Longs,
    begin: int,
    new_pair: Longs,
    payloads: Longs,
    pair_rows: Longs,
) -> int:
    """Parse record headers from `begin` on, until a pair of schema and message is not in `pairs`.

    Returns n, or the record of that pair: its row in `pair_rows` is UNKNOWN. The caller adds the
    pair and resumes there.

    Args:
        values: (n, 2), start and stop of each record in `data`; a start of -1 is a null value.
        names_messages: whether a message path follows the schema id, as in Protobuf.
        pairs: (k, 2), the known pairs of a schema id and a message path's number (else 0).
        new_pair: int64 (2,), written: the pair that is not in `pairs`.
        payloads: int64 (n, 2), written: start and stop of what follows the header; -1 if none.
        pair_rows: int64 (n,), written: the row of the record's pair in `pairs`, NO_VALUE or NO_ID.
    """
    last = 0
    for record in range(begin, len(values)):
        start = values[record, 0]
        stop = values[record, 1]
        payloads[record, 0] = -1
        payloads[record, 1] = -1
        pair_rows[record] = NO_VALUE if start < 0 else NO_ID
        if start < 0 or stop - start < HEADER or data[start] != 0:
            continue
        schema = 0
        for place in range(start + 1, start + HEADER):
            schema = schema << 8 | int(data[place])
        pos = start + HEADER
        message = 0
        if names_messages:
            message, pos = message_path(data, pos, stop)
            if pos == REFUSED:
                continue
        payloads[record, 0] = pos
        payloads[record, 1] = stop
        # Most records have the same schema as the previous one, with the pair in row `last`.
        if last >= len(pairs) or pairs[last, 0] != schema or pairs[last, 1] != message:
            last = 0
            while last < len(pairs) and (
                pairs[last, 0] != schema or pairs[last, 1] != message
            ):
                last += 1
            if last == len(pairs):
                new_pair[0] = schema
                new_pair[1] = message
                pair_rows[record] = UNKNOWN
                return record
        pair_rows[record] = last
    return len(values)
