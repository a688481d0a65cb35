"""The last round of a tick of Misra-Gries: all that an item has left in a row, item by item.

Where weights differ, one miss may lower everybody by millions. So a heap says who is lowest, in
O(log k) for each item, not for each occurrence. The arrays are those of `misra_gries`, whose rounds
come before.

Source: Lebeda and Tetek, "Better Differentially Private Approximate Histograms and Heavy Hitters
using the Misra-Gries Sketch", Algorithm 1. That this ends where it ends is tested item by item.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workers.kernels.compiled import kernel, kernel_with_arrays
from workers.kernels.misra_gries import turn_over

Integers = NDArray[np.int64]
Places = NDArray[np.int32]
Bits = NDArray[np.uint32]


@kernel_with_arrays
def feed_rest(
    items: Integers,
    weights: Integers,
    lowered: int,
    heights: Integers,
    ranks: Integers,
    slot_of: Places,
    held: Bits,
    bits: int,
) -> int:
    """Feed all that is left of some items, one item after the other.

    Args:
        items: (m,), which, ascending.
        weights: (m,), how many are left of each, at least one.
        lowered: how often everybody was lowered before.
        heights, ranks: (k,), changed.
        slot_of, held: see `misra_gries`; changed.
        bits: see `misra_gries`.

    Returns:
        How often everybody was lowered in all.
    """
    k, of_tick = len(heights), (1 << bits) - 1
    known = heights.copy()  # the heights by which the heap is in order: a hit is not told to it
    heap = np.arange(k).astype(np.int32)
    for parent in range(k // 2 - 1, -1, -1):
        sink(parent, heap, known, ranks)
    for place in range(len(items)):
        item = items[place]
        weight = weights[place]
        if held[item >> 5] >> (item & 31) & 1:
            heights[slot_of[item]] += weight
            continue
        slot = heap[0]
        while known[slot] != heights[slot]:  # it was hit meanwhile
            known[slot] = heights[slot]
            sink(0, heap, known, ranks)
            slot = heap[0]
        # Everybody is lowered until one is at zero, or nothing is left of the item.
        if weight <= heights[slot] - lowered:
            lowered += weight
            continue
        height = lowered + weight
        lowered = heights[slot]
        if ranks[slot] & of_tick == of_tick:  # the key that gives way is of the tick too
            turn_over(held, ranks[slot] >> bits)
        ranks[slot] = (item << bits) | of_tick
        slot_of[item] = slot
        turn_over(held, item)
        heights[slot] = known[slot] = height
        sink(0, heap, known, ranks)
    return lowered


@kernel
def sink(place: int, heap: Places, known: Integers, ranks: Integers) -> None:
    """Move the counter at `place` of the heap down to where it belongs.

    Args:
        place: where it is.
        heap: (k,), counters; those below `place` are in order: no parent is above a child by
            height, then by rank.
        known: (k,), the height of each counter.
        ranks: (k,).
    """
    k = len(heap)
    slot = heap[place]
    height, rank = known[slot], ranks[slot]
    child = 2 * place + 1
    while child < k:
        lower = heap[child]
        if child + 1 < k:
            other = heap[child + 1]
            if known[other] < known[lower] or (
                known[other] == known[lower] and ranks[other] < ranks[lower]
            ):
                lower = other
                child += 1
        if known[lower] > height or (known[lower] == height and ranks[lower] > rank):
            break
        heap[place] = lower
        place = child
        child = 2 * place + 1
    heap[place] = slot
