"""Loops over text columns: the texts end to end in `text`, where each ends in `ends`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workers.kernels.compiled import kernel


@kernel
def taken_ends(ends: NDArray[np.int64], rows: NDArray[np.int64], taken: NDArray[np.int64]) -> int:
    """Say where each of the chosen texts ends once they lie end to end.

    Args:
        ends: (n,), where each text ends.
        rows: (m,), which texts, each from 0 to n - 1.
        taken: (m,), the result.

    Returns:
        The bytes of the chosen texts, or -1 where a row is none of the n.
    """
    at = 0
    for i in range(len(rows)):
        row = rows[i]
        if row < 0 or row >= len(ends):
            return -1
        at += ends[row] - (ends[row - 1] if row else 0)
        taken[i] = at
    return at


@kernel
def take_text(
    text: NDArray[np.uint8],
    ends: NDArray[np.int64],
    rows: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> None:
    """Copy the chosen texts, end to end.

    Args:
        text: (bytes,), of all texts.
        ends: (n,), where each text ends.
        rows: (m,), which texts: those that `taken_ends` accepted.
        out: the result, with room for them.
    """
    at = 0
    for i in range(len(rows)):
        row = rows[i]
        start = ends[row - 1] if row else 0
        for place in range(start, ends[row]):
            out[at] = text[place]
            at += 1
