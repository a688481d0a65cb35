"""A direct-mapped cache of what belongs to a pair of codes: each pair has one place, the last one
there is held.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workers.kernels.compiled import kernel
from workers.kernels.tallies import pair_slot

Longs = NDArray[np.int64]
Words = NDArray[np.uint64]

# No pair: as a code of a stream key it is above any that there can be.
FREE = np.uint64(0xFFFFFFFFFFFFFFFF)
_ANY = np.uint64(0)


@kernel
def recall(pairs: Words, held: Words, values: Words, out: Words, missed: Longs) -> int:
    """Write what is held of pairs; return how many are not, whose rows are written to `missed`.

    Args:
        pairs: uint64 (m,).
        held: uint64 (a power of two,), the pair in each place, or FREE.
        values: uint64 (places, 2), what belongs to it.
        out: uint64 (m, 2), written where a pair is held.
        missed: int64 (m,), written from its beginning on, ascending.
    """
    mask = np.uint64(len(held) - 1)
    n = 0
    for row in range(len(pairs)):
        place = pair_slot(pairs[row], _ANY, mask)
        if held[place] == pairs[row]:
            out[row, 0] = values[place, 0]
            out[row, 1] = values[place, 1]
        else:
            missed[n] = row
            n += 1
    return n


@kernel
def remember(pairs: Words, rows: Longs, of_rows: Words, held: Words, values: Words, out: Words) -> None:
    """Hold what belongs to some rows' pairs, and write it to `out` too.

    Args:
        pairs: uint64 (m,).
        rows: int64 (k,).
        of_rows: uint64 (k, 2), what belongs to the pair of each.
        held, values: the cache, as `recall` has it.
        out: uint64 (m, 2), written at `rows`.
    """
    mask = np.uint64(len(held) - 1)
    for i in range(len(rows)):
        row = rows[i]
        place = pair_slot(pairs[row], _ANY, mask)
        held[place] = pairs[row]
        values[place, 0] = out[row, 0] = of_rows[i, 0]
        values[place, 1] = out[row, 1] = of_rows[i, 1]
