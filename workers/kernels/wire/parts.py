"""What binary formats share: numbers of variable length, floats, and text that is valid UTF-8.

As everywhere in the kernels `data` is uint8 (b,), `at` the place to begin and `stop` where the
record ends, which is not read. A place of REFUSED says that nothing valid is there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workers.kernels.compiled import part_reads_outside, reads_outside
from workers.kernels.reading.json_parts import character

Bytes = NDArray[np.uint8]
Longs = NDArray[np.int64]

REFUSED = -1
MORE, BITS = 0x80, 0x7F
LEAST = -(2**63)


@reads_outside
def zigzag(data: Bytes, at: int, stop: int) -> tuple[int, int]:
    """Return a whole number with its sign in the lowest bit, in its shortest form, and its end."""
    if at >= stop:
        return 0, REFUSED
    byte = int(data[at])
    at += 1
    negative, value, shift = byte & 1, (byte & BITS) >> 1, 6
    while byte >= MORE:
        if at >= stop or shift > 62:
            return 0, REFUSED
        byte = int(data[at])
        at += 1
        if byte == 0 or (shift == 62 and byte > 1):
            return 0, REFUSED
        value |= (byte & BITS) << shift
        shift += 7
    return (-1 - value if negative else value), at


@part_reads_outside
def varint(data: Bytes, at: int, stop: int) -> tuple[int, int]:
    """Return 64 bits, as an int64, in their shortest form, and where they end."""
    if at >= stop:
        return 0, REFUSED
    byte = int(data[at])
    at += 1
    value, shift = byte & BITS, 7
    while byte >= MORE:
        if at >= stop or shift > 63:
            return 0, REFUSED
        byte = int(data[at])
        at += 1
        if byte == 0 or (shift == 63 and byte > 1):
            return 0, REFUSED
        if shift == 63:
            return value + LEAST, at
        value |= (byte & BITS) << shift
        shift += 7
    return value, at


@part_reads_outside
def fixed(data: Bytes, at: int, stop: int, size: int) -> tuple[int, int]:
    """Return `size` bytes, the lowest first, without a sign but for 8 of them, and their end."""
    if size > stop - at:
        return 0, REFUSED
    value = 0
    for place in range(min(size, 7)):
        value |= int(data[at + place]) << 8 * place
    if size == 8:
        value |= (int(data[at + 7]) & BITS) << 56
        if data[at + 7] >= MORE:
            value += LEAST
    return value, at + size


@part_reads_outside
def is_nan(bits: int) -> bool:
    """Tell whether these bits of a float64 are no number."""
    return bits & 0x7FF0000000000000 == 0x7FF0000000000000 and bits & 0xFFFFFFFFFFFFF != 0


@part_reads_outside
def widened(bits: int) -> int:
    """Return the bits of a float64 that is the float32 of these 32 bits."""
    exponent, rest = bits >> 23 & 0xFF, bits & 0x7FFFFF
    if exponent == 0xFF:
        exponent = 0x7FF
    elif exponent > 0:
        exponent += 1023 - 127
    elif rest > 0:
        exponent = 1023 - 126
        while rest < 0x800000:
            rest <<= 1
            exponent -= 1
        rest &= 0x7FFFFF
    wide = exponent << 52 | rest << 29
    return wide + LEAST if bits >> 31 & 1 else wide


@part_reads_outside
def is_text(data: Bytes, at: int, end: int) -> bool:
    """Tell whether data[at:end] is valid UTF-8."""
    while at < end:
        if data[at] < MORE:
            at += 1
        else:
            length = character(data, at, end)
            if length == 0:
                return False
            at += length
    return True
