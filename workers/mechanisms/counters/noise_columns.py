"""What every counter's noise columns need: room that grows with the ledger, and the check of a tick."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from workers.errors import HorizonExceeded

# Noise in as few bytes as hold it: int16, int32 or int64.
Integers: TypeAlias = NDArray[np.signedinteger[Any]]

_LEAST_CAPACITY = 1024


def grown(column: Integers, rows: int) -> Integers:
    """The column itself if it has room for so many rows, else a copy of at least twice its room."""
    if rows <= len(column):
        return column
    larger = np.empty(max(rows, 2 * len(column), _LEAST_CAPACITY), dtype=column.dtype)
    larger[: len(column)] = column
    return larger


def check_tick(kind: str, tick: int, last_tick: int) -> None:
    """Refuse a tick the counter has no noise for.

    Raises:
        HorizonExceeded: tick is outside 1..last_tick.
    """
    if not 1 <= tick <= last_tick:
        raise HorizonExceeded(f"{kind} counter: tick {tick} is outside 1..{last_tick}")
