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
one, so the next time it is at zero without having been in a list; and where it is the same ones again
and again, only their last turns are taken (`same_again`). That is a few steps for each occurrence,
whatever k is. Where weights differ, one miss may lower everybody by millions: there a heap says who
is lowest, in O(log k) for each item, not for each occurrence.

Source: Lebeda and Tetek, "Better Differentially Private Approximate Histograms and Heavy Hitters
using the Misra-Gries Sketch", Algorithm 1. That both ways end where it ends is tested item by item.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workers.kernels.compiled import kernel, kernel_with_arrays

Integers = NDArray[np.int64]
Places = NDArray[np.int32]


@kernel_with_arrays
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
    waiting = still_at_zero(lowered, zeros, k, heights, heads, behind)
    of_tick = (1 << bits) - 1
    remaining = len(counts)
    for item in range(remaining):
        left[item] = item
    # No calls in this loop but where everybody is lowered: a call that gets arrays takes longer than
    # all of a step (measured: 25 ns, 6 ns).
    for fed in range(1, rounds + 1):
        place = 0
        whole = False  # whether everybody was lowered before in this round
        in_order = False  # whether those of `zeros` that stay will be in order
        while place < remaining:
            item = left[place]
            place += 1
            if slot_of[item] >= 0:
                heights[slot_of[item]] += 1
                continue
            while turn < waiting and heights[zeros[turn]] != lowered:  # it was hit meanwhile
                turn += 1
                in_order = False
            if turn < waiting:
                slot = zeros[turn]
                turn += 1
                if ranks[slot] & of_tick == of_tick:  # the key that gives way is of the tick too
                    slot_of[ranks[slot] >> bits] = -1
                ranks[slot] = (np.int64(item) << bits) | of_tick
                slot_of[item] = slot
                heights[slot] = lowered + 1
                continue
            lowered += 1
            turn = 0
            if waiting == 0 and heads[lowered & (buckets - 1)] < 0:
                continue
            same = still_at_zero(lowered, zeros, waiting, heights, heads, behind)
            waiting = off_the_wheel(lowered, zeros, same, heights, heads, behind)
            if not in_order:
                sort_by_rank(zeros, 0, same, ranks, scratch)
                in_order = True
            if whole and waiting == same:
                place, lowered, turn, waiting = same_again(
                    left, place, remaining, lowered, zeros, same, heights, ranks, slot_of, bits, heads, behind
                )
            whole = True
            if waiting > same:
                sort_by_rank(zeros, same, waiting, ranks, scratch)
                merge_by_rank(zeros, same, waiting, ranks, scratch)
        remaining = more_than(fed, counts, left, remaining)
    return lowered, remaining


@kernel
def more_than(fed: int, counts: Integers, left: Places, remaining: int) -> int:
    """Keep the items that occur more than `fed` times.

    Args:
        fed: how often.
        counts: (n,), how often each item occurs.
        left: (n,), items, of which the first `remaining` count; changed.
        remaining: how many.

    Returns:
        How many are kept.
    """
    kept = 0
    for place in range(remaining):
        item = left[place]
        left[kept] = item  # written whether it stays or not: no branch that cannot be foretold
        kept += counts[item] > fed
    return kept


@kernel
def same_again(
    left: Places,
    place: int,
    remaining: int,
    lowered: int,
    zeros: Places,
    waiting: int,
    heights: Integers,
    ranks: Integers,
    slot_of: Places,
    bits: int,
    heads: Places,
    behind: Places,
) -> tuple[int, int, int, int]:
    """Feed on while the same counters come to zero again and again, and each has its turn.

    All that are at zero have keys that came in this round, so none of them is hit before the next:
    one miss for each of them, and one that lowers everybody, again and again. Of all those keys only
    the last ones stay. So misses are counted until somebody else comes to zero or the round is over,
    and then the last turns are taken, in which those before them are forgotten.

    Args:
        left: (n,), the items of the round: the first `remaining`.
        place: where in them to go on.
        remaining: see `left`.
        lowered: how often everybody was lowered, just now for the last time.
        zeros: (k,), who is at zero: the first `waiting`.
        waiting: see `zeros`.
        heights, ranks: (k,), changed.
        slot_of: (n,), changed.
        bits: see the module.
        heads, behind: the wheel, see `off_the_wheel`; changed.

    Returns:
        Where in the round to go on; how often everybody was lowered; how many of `zeros` have had
        their turn since; how many are at zero, with those that came off the wheel behind the others.
    """
    misses, begun, begun_before, now = 0, place, place, waiting
    while place < remaining:
        slot = slot_of[left[place]]
        place += 1
        if slot >= 0:
            heights[slot] += 1
            continue
        misses += 1
        if misses > waiting:
            lowered += 1
            misses, begun, begun_before = 0, place, begun
            if heads[lowered & (len(heads) - 1)] >= 0:
                now = off_the_wheel(lowered, zeros, waiting, heights, heads, behind)
                if now > waiting:
                    break
    of_tick = (1 << bits) - 1
    for turn in range(waiting):
        heights[zeros[turn]] = lowered + (turn < misses)
    turn = 0
    for at in range(begun_before, place):
        if at == begun:
            turn = 0
        item = left[at]
        if slot_of[item] < 0 and turn < waiting:
            slot = zeros[turn]
            turn += 1
            if ranks[slot] & of_tick == of_tick:
                slot_of[ranks[slot] >> bits] = -1
            ranks[slot] = (np.int64(item) << bits) | of_tick
            slot_of[item] = slot
    return place, lowered, misses, now


@kernel_with_arrays
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
def still_at_zero(
    lowered: int, zeros: Places, n: int, heights: Integers, heads: Places, behind: Places
) -> int:
    """Keep those counters that are at zero; the others go into the wheel.

    Args:
        lowered: how often everybody was lowered.
        zeros: (k,), of which the first n are looked at; changed, in the order that they had.
        n: how many.
        heights: (k,).
        heads, behind: the wheel, see `off_the_wheel`; changed.

    Returns:
        How many are kept.
    """
    mask = len(heads) - 1
    kept = 0
    for place in range(n):
        slot = zeros[place]
        if heights[slot] == lowered:
            zeros[kept] = slot
            kept += 1
        else:
            behind[slot] = heads[heights[slot] & mask]
            heads[heights[slot] & mask] = slot
    return kept


@kernel
def off_the_wheel(
    lowered: int, zeros: Places, n: int, heights: Integers, heads: Places, behind: Places
) -> int:
    """Add the counters of the wheel that are at zero now.

    Args:
        lowered: how often everybody was lowered.
        zeros: (k,), with n counters in it; changed.
        n: how many.
        heights: (k,).
        heads: (buckets,), the first counter in each list of the wheel, -1 where it is empty; changed.
        behind: (k,), the counter behind each in its list, -1 behind the last; changed.

    Returns:
        How many there are with them.
    """
    mask = len(heads) - 1
    waits = heads[lowered & mask]
    heads[lowered & mask] = -1
    while waits >= 0:
        slot = waits
        waits = behind[slot]
        if heights[slot] == lowered:
            zeros[n] = slot
            n += 1
        else:  # it was hit meanwhile, or it is higher by a whole turn of the wheel
            behind[slot] = heads[heights[slot] & mask]
            heads[heights[slot] & mask] = slot
    return n


@kernel
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


@kernel
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
