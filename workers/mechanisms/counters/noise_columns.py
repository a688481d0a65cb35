"""What every counter's columns need: room that grows with the ledger, and the check of a tick."""

from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from workers.errors import HorizonExceeded

# Noise in as few bytes as hold it: int16, int32 or int64.
Integers: TypeAlias = NDArray[np.signedinteger[Any]]

_LEAST_CAPACITY = 1024
_TOGETHER = 16


class NoiseColumns(Protocol):
    """A cache of the noise of every row of a partition, for one thread.

    It gives what `Counter.draw` gives, fast for consecutive ticks.
    """

    @property
    def bytes_per_row(self) -> int:
        """Memory of the cache, per row in use."""

    def at(self, t: int, tags: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the noise of each row at tick t.

        Args:
            t: any tick of the horizon, in any order; consecutive ones are fast.
            tags: uint64 (n, 2); between calls rows may only be appended.

        Returns:
            A new int64 array (n,).

        Raises:
            HorizonExceeded: t is outside the horizon.
        """


def grown(columns: Integers, rows: int) -> Integers:
    """Return columns themselves if they have room for the rows, else a copy of twice their room.

    Args:
        columns: (room,), or (columns, room).
        rows: how many there must be room for.
    """
    room = columns.shape[-1]
    if rows <= room:
        return columns
    larger = np.empty((*columns.shape[:-1], max(rows, 2 * room, _LEAST_CAPACITY)), dtype=columns.dtype)
    larger[..., :room] = columns
    return larger


def together(t: int, last_tick: int) -> range:
    """Return the ticks, t among them, for which what follows from public parameters is computed in
    one go.

    A tick's turn comes when much else has been in the processor's caches: computed for one tick
    alone, a threshold took 150 us, and 40 us as one of several.
    """
    first = t - t % _TOGETHER
    return range(max(first, 1), min(first + _TOGETHER, last_tick + 1))


def check_tick(kind: str, tick: int, last_tick: int) -> None:
    """Refuse a tick the counter has no noise for.

    Raises:
        HorizonExceeded: tick is outside 1..last_tick.
    """
    if not 1 <= tick <= last_tick:
        raise HorizonExceeded(f"{kind} counter: tick {tick} is outside 1..{last_tick}")
