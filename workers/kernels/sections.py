"""The columns of a section of contributions, from the bytes that it comes as."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workers.kernels.compiled import kernel


@kernel
def columns_of(
    lengths: NDArray[np.uint16],
    packed: NDArray[np.uint8],
    width: int,
    rows_of_key: NDArray[np.int64],
    ends: NDArray[np.int64],
    counts: NDArray[np.int64],
    key_of_row: NDArray[np.int32],
) -> bool:
    """Write where each row's label ends, its count, and which stream key it is of.

    Args:
        lengths: (n,), bytes of each label.
        packed: (n << width,), the counts.
        width: 0 to 3 for counts of 1, 2, 4 or 8 bytes, the lowest first.
        rows_of_key: (k,), how many rows each stream key has.
        ends, counts, key_of_row: (n,), the results.

    Returns:
        Whether the stream keys have n rows; else none is written.
    """
    n, end = len(lengths), 0
    for i in range(n):
        end += lengths[i]
        ends[i] = end
    if width == 0:  # nearly always, and several rows at a time
        for i in range(n):
            counts[i] = packed[i]
    else:
        for i in range(n):
            count = np.uint64(0)
            for place in range(1 << width):
                count |= np.uint64(packed[(i << width) + place]) << np.uint64(8 * place)
            counts[i] = np.int64(count)
    rows = 0
    for key in range(len(rows_of_key)):
        if rows_of_key[key] < 0 or rows_of_key[key] > n - rows:
            return False
        rows += rows_of_key[key]
    if rows != n:
        return False
    row = 0
    for key in range(len(rows_of_key)):
        for _ in range(rows_of_key[key]):
            key_of_row[row] = key
            row += 1
    return True
