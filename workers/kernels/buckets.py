"""Which bucket a number lies in (`mechanisms/buckets.py`)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from workers.kernels.compiled import kernel, kernel_part


@kernel_part
def bucket(value: float, edges: NDArray[np.float64]) -> int:
    """Return the bucket of a number: how many edges are not above it; -1 if it is not a number.

    Args:
        value: any; infinities lie in the first and the last bucket.
        edges: (n,), ascending.
    """
    if math.isnan(value):
        return -1
    low, high = 0, len(edges)
    while low < high:
        middle = (low + high) >> 1
        if edges[middle] <= value:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def buckets(values: NDArray[np.float64], edges: NDArray[np.float64], found: NDArray[np.int64]) -> None:
    """Find the bucket of each number of a column.

    Args:
        values: (m,), the numbers.
        edges: (n,), ascending.
        found: (m,), the result: 0..n, or -1 where it is not a number.
    """
    for i in range(len(values)):
        found[i] = bucket(values[i], edges)
