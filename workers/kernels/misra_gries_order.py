"""The counters of a Misra-Gries sketch in the order of their keys, see `misra_gries`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workers.kernels.compiled import kernel_part

Integers = NDArray[np.int64]
Places = NDArray[np.int32]


@kernel_part
def sort_by_rank(slots: Places, first: int, n: int, ranks: Integers, scratch: Places) -> None:
    """Sort counters by rank, merging the runs that are in order: mostly there are one or two.

    Args:
        slots: (k,), of which those from `first` to n - 1 are sorted.
        first, n: which.
        ranks: (k,), which all differ.
        scratch: (k,), overwritten.
    """
    runs = 2
    while runs > 1:
        runs, start = 0, first
        while start < n:
            middle = run_end(slots, start, n, ranks)
            stop = middle
            if middle < n:
                stop = run_end(slots, middle, n, ranks)
                one, other = start, middle
                for place in range(start, stop):
                    if other >= stop or (one < middle and ranks[slots[one]] < ranks[slots[other]]):
                        scratch[place] = slots[one]
                        one += 1
                    else:
                        scratch[place] = slots[other]
                        other += 1
                for place in range(start, stop):
                    slots[place] = scratch[place]
            runs += 1
            start = stop


@kernel_part
def merge_by_rank(slots: Places, middle: int, n: int, ranks: Integers, scratch: Places) -> None:
    """Merge a few counters into many: each is looked up, and the others are moved, not compared.

    Args:
        slots: (k,), in order up to `middle`, and from there to n; changed.
        middle, n: which.
        ranks: (k,), which all differ.
        scratch: (k,), overwritten.
    """
    few = n - middle
    for i in range(few):
        scratch[i] = slots[middle + i]
    stop = middle
    for i in range(few - 1, -1, -1):
        rank = ranks[scratch[i]]
        low, high = 0, stop
        while low < high:
            half = (low + high) // 2
            if ranks[slots[half]] < rank:
                low = half + 1
            else:
                high = half
        for place in range(stop - 1, low - 1, -1):
            slots[place + i + 1] = slots[place]
        slots[low + i] = scratch[i]
        stop = low


@kernel_part
def run_end(slots: Places, start: int, n: int, ranks: Integers) -> int:
    """Say where the run that begins at `start` ends: the first place that is not in order, or n."""
    stop = start + 1
    while stop < n and ranks[slots[stop - 1]] < ranks[slots[stop]]:
        stop += 1
    return stop
