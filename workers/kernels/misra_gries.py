"""Algorithm 1 of Misra-Gries over a whole tick: one occurrence after another, in the order of `sketch`.

A tick is fed in rounds: one of every item, one more of every item that has a second, and so on; the
last round takes all that an item has left in a row. `feed_rounds` makes the rounds of ones,
`feed_rest` the last one. Between them nothing but these arrays is kept:

    heights  int64 (k,)     a counter's count, plus how often everybody was lowered (`lowered`)
    ranks    int64 (k,)     place of a counter's key among all keys of sketch and tick
    slot_of  int32 (n,)     which counter has an item of the tick, -1 where none has

To lower everybody is to add one to `lowered`: a counter is at zero where its height is `lowered`. A
rank is `before << bits | number` for a key that is not of the tick, `before` being how many items of
the tick are smaller and `number` its own, and `item << bits | all ones` for an item of the tick.
Counters that were never used have the largest ranks: as in the paper they are larger than every key.

Which counter is at zero next is asked at every miss, so neither way looks at all of them for it. Ones
use a wheel of lists, one for each height up to k: a counter waits in the list of the height that it
had when it was put there. When everybody is lowered to a height its list is walked: who was hit
meanwhile moves on, the others are at zero, and take turns by rank. A counter that had its turn is at
one, so the next time it is at zero without having been in a list. That is a few steps for each
occurrence, whatever k is. Where weights differ, one miss may lower everybody by millions: there a heap says who
is lowest, in O(log k) for each item, not for each occurrence.

Source: Lebeda and Tetek, "Better Differentially Private Approximate Histograms and Heavy Hitters
using the Misra-Gries Sketch", Algorithm 1. That both ways end where it ends is tested item by item.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workers.kernels.compiled import kernel

Integers = NDArray[np.int64]
Places = NDArray[np.int32]


@kernel
def feed_rounds(
    counts: Integers,
    rounds: int,
    heights: Integers,
    ranks: Integers,
    slot_of: Places,
    bits: int,
    left: Places,
) -> tuple[int, int]:
    """Feed rounds of one of each item.

    Args:
        counts: (n,), how often each item occurs, at least once; items are ascending by key.
        rounds: how many of these rounds there are, at most.
        heights: (k,), the counts to begin with; changed.
        ranks: (k,), ascending to begin with; changed.
        slot_of: (n,), changed.
        bits: see the module.
        left: (n,), the result: the items that occur more often than there are rounds, ascending.

    Returns:
        How often everybody was lowered, and how many items are left.
    """
    k = len(heights)
    buckets = 64
    while buckets < k:
        buckets *= 2
    heads = np.full(buckets, -1, dtype=np.int32)
    behind = np.full(k, -1, dtype=np.int32)
    scratch = np.empty(k, dtype=np.int32)
    # Who was at zero when everybody was lowered last, by rank; those before `turn` had their turn.
    zeros = np.arange(k).astype(np.int32)
    lowered = turn = 0
    waiting = next_zeros(lowered, k, zeros, heights, ranks, heads, behind, scratch)
    of_tick = (1 << bits) - 1
    remaining = len(counts)
    for item in range(remaining):
        left[item] = item
    # No calls in this loop but for `next_zeros`: one that gets arrays takes longer than all of a step.
    for fed in range(1, rounds + 1):
        kept = 0
        for place in range(remaining):
            item = left[place]
            left[kept] = item  # written whether it stays or not: no branch that cannot be foretold
            kept += counts[item] > fed
            if slot_of[item] >= 0:
                heights[slot_of[item]] += 1
                continue
            while turn < waiting and heights[zeros[turn]] != lowered:  # it was hit meanwhile
                turn += 1
            if turn == waiting:
                lowered += 1
                turn = 0
                if waiting or heads[lowered & (buckets - 1)] >= 0:
                    waiting = next_zeros(
                        lowered, waiting, zeros, heights, ranks, heads, behind, scratch
                    )
                continue
            slot = zeros[turn]
            turn += 1
            if ranks[slot] & of_tick == of_tick:  # the key that gives way is of the tick too
                slot_of[ranks[slot] >> bits] = -1
            ranks[slot] = (np.int64(item) << bits) | of_tick
            slot_of[item] = slot
            heights[slot] = lowered + 1
        remaining = kept
    return lowered, remaining


@kernel
def feed_rest(
    items: Places,
    counts: Integers,
    fed: int,
    lowered: int,
    heights: Integers,
    ranks: Integers,
    slot_of: Places,
    bits: int,
) -> int:
    """Feed all that is left of some items, one item after the other.

    Args:
        items: (m,), which, ascending.
        counts: (n,), how often each item of the tick occurs: more than `fed` times for those.
        fed: how many of each were fed before.
        lowered: how often everybody was lowered before.
        heights, ranks: (k,), changed.
        slot_of: (n,), changed.
        bits: see the module.

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
        weight = counts[item] - fed
        if slot_of[item] >= 0:
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
            slot_of[ranks[slot] >> bits] = -1
        ranks[slot] = (np.int64(item) << bits) | of_tick
        slot_of[item] = slot
        heights[slot] = known[slot] = height
        sink(0, heap, known, ranks)
    return lowered


@kernel
def next_zeros(
    lowered: int,
    before: int,
    zeros: Places,
    heights: Integers,
    ranks: Integers,
    heads: Places,
    behind: Places,
    scratch: Places,
) -> int:
    """Say who is at zero, now that everybody was lowered.

    Args:
        lowered: how often.
        before: how many counters are in no list of the wheel: the first of `zeros`.
        zeros: (k,), the result, by rank: who is at zero and in no list; the others go into the wheel.
        heights, ranks: (k,).
        heads: (buckets,), the first counter in each list of the wheel, -1 where it is empty; changed.
        behind: (k,), the counter behind each in its list, -1 behind the last; changed.
        scratch: (k,), overwritten.

    Returns:
        How many there are.
    """
    mask = len(heads) - 1
    waits = heads[lowered & mask]
    heads[lowered & mask] = -1
    found = 0
    for place in range(before):
        slot = zeros[place]
        if heights[slot] == lowered:
            zeros[found] = slot
            found += 1
        else:
            behind[slot] = heads[heights[slot] & mask]
            heads[heights[slot] & mask] = slot
    while waits >= 0:
        slot = waits
        waits = behind[slot]
        if heights[slot] == lowered:
            zeros[found] = slot
            found += 1
        else:
            behind[slot] = heads[heights[slot] & mask]
            heads[heights[slot] & mask] = slot
    sort_by_rank(zeros, found, ranks, scratch)
    return found


@kernel
def sort_by_rank(slots: Places, n: int, ranks: Integers, scratch: Places) -> None:
    """Sort counters by rank, merging the runs that are in order: mostly that is all of them.

    Args:
        slots: (k,), of which the first n are sorted.
        n: how many.
        ranks: (k,), which all differ.
        scratch: (k,), overwritten.
    """
    runs = 2
    while runs > 1:
        runs = start = 0
        while start < n:
            middle = run_end(slots, start, n, ranks)
            stop = run_end(slots, middle, n, ranks) if middle < n else n
            if middle < n:
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


@kernel
def run_end(slots: Places, start: int, n: int, ranks: Integers) -> int:
    """Say where the run that begins at `start` ends: the first place that is not in order, or n."""
    stop = start + 1
    while stop < n and ranks[slots[stop - 1]] < ranks[slots[stop]]:
        stop += 1
    return stop


@kernel
def sink(place: int, heap: Places, known: Integers, ranks: Integers) -> None:
    """Move the counter at `place` of the heap down to where it belongs.

    Args:
        place: where it is.
        heap: (k,), counters; those below `place` are in order: no parent is above a child by height,
            then by rank.
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
