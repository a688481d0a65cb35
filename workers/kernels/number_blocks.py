"""Blocks of a column of numbers as bytes: each in the narrowest width that holds its largest
number, little-endian.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workers.kernels.compiled import kernel

Integers = NDArray[np.int64]


@kernel
def pack_blocks(
    column: Integers | NDArray[np.int32],
    blocks: Integers,
    block_rows: int,
    widths: NDArray[np.uint8],
    ends: Integers,
    packed: NDArray[np.uint8],
) -> None:
    """Write some blocks of a column end to end.

    Args:
        column: (n,), numbers of at least 0.
        blocks: (m,), which blocks, each with at least one row: block b begins at row b *
            block_rows.
        block_rows: rows of a block; the last one of the column may have fewer.
        widths: (m,), the result: 0 to 3 for numbers of 1, 2, 4 or 8 bytes.
        ends: (m,), the result: where each block ends in `packed`.
        packed: the result, with room for 8 bytes a row.
    """
    at = 0
    for i in range(len(blocks)):
        first = blocks[i] * block_rows
        stop = min(first + block_rows, len(column))
        largest = 0
        for row in range(first, stop):
            largest = max(largest, column[row])
        width = 0
        while width < 3 and largest >> (8 << width):
            width += 1
        if width == 0:  # most blocks, and several rows at a time
            for row in range(first, stop):
                packed[at + row - first] = column[row]
            at += stop - first
            first = stop
        for row in range(first, stop):
            number = column[row]
            for _ in range(1 << width):
                packed[at] = number & 255
                number >>= 8
                at += 1
        widths[i] = width
        ends[i] = at
