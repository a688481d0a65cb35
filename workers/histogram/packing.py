"""Columns of counts as bytes: little-endian, in the narrowest unsigned width that holds them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_WIDTHS: tuple[np.dtype[Any], ...] = tuple(np.dtype(f"<u{size}") for size in (1, 2, 4, 8))


def pack(column: NDArray[Any]) -> tuple[int, bytes]:
    """Return a column of integers from 0 to 2^64 - 1 as (width code, bytes)."""
    largest = int(column.max(initial=0))
    code = next(i for i, kind in enumerate(_WIDTHS) if largest < 1 << 8 * kind.itemsize)
    return code, column.astype(_WIDTHS[code]).tobytes()


def unpack(code: int, data: bytes, *, count: int = -1, offset: int = 0) -> NDArray[Any]:
    """Return the column that `pack` made; it has `count` integers at `offset` (-1: the rest)."""
    return np.frombuffer(data, dtype=_WIDTHS[code], count=count, offset=offset)
