"""Algorithm 1 of Misra-Gries over a whole tick: one occurrence after another, in the order of
`sketch`.

A tick is fed in rounds: one of every item, one more of every item that has a second, and so on; the
last round takes all that an item has left in a row. Here are the rounds of ones, and in
`misra_gries_rest` is the last one. Between them nothing but these arrays is kept:

    heights  int64 (k,)     a counter's count, plus how often everybody was lowered (`lowered`)
    ranks    int64 (k,)     place of a counter's key among all keys of sketch and tick
    slot_of  int32 (n,)     which counter has an item of the tick, -1 where none has

To lower everybody is to add one to `lowered`: a counter is at zero where its height is `lowered`. A
rank is `before << bits | number` for a key that is not of the tick, `before` being how many items
of the tick are smaller and `number` its own, and `item << bits | all ones` for an item of the tick.
Counters that were never used have the largest ranks: as in the paper they are larger than every
key.

Which counter is at zero next is asked at every miss, so there is a wheel of lists, one for each
height up to k: a counter waits in the list of the height that it had when it was put there. When
everybody is lowered to a height its list is walked: who was hit meanwhile moves on, the others are
at zero, and take turns by rank. A counter that had its turn is at one, so the next time it is at
zero without having been in a list; and where it is the same ones again and again, only their last
turns are taken (`rest_of_round`). That is a few steps for each occurrence, whatever k is.

Source: Lebeda and Tetek, "Better Differentially Private Approximate Histograms and Heavy Hitters
using the Misra-Gries Sketch", Algorithm 1. That this ends where it ends is tested item by item.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workers.kernels.compiled import kernel, kernel_with_arrays

Integers = NDArray[np.int64]
Places = NDArray[np.int32]


@kernel_with_arrays
def feed_rounds(
    counts: Integers, rounds: int, heights: Integers, ranks: Integers, slot_of: Places,
    bits: int, left: Places
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
    # No calls in this loop but where everybody is lowered: a call that gets arrays takes longer
    # than all of a step (measured: 25 ns, 6 ns).
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
            if whole:
                place, lowered, turn, waiting = rest_of_round(
                    left, place, remaining, lowered, zeros, same, waiting,
                    heights, ranks, slot_of, bits, heads, behind, scratch,
                )  # fmt: skip
            elif waiting > same:
                sort_by_rank(zeros, same, waiting, ranks, scratch)
                merge_by_rank(zeros, same, waiting, ranks, scratch)
            whole = True
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
def rest_of_round(
    left: Places, place: int, remaining: int, lowered: int, zeros: Places, same: int, now: int,
    heights: Integers, ranks: Integers, slot_of: Places, bits: int, heads: Places,
    behind: Places, scratch: Places
) -> tuple[int, int, int, int]:
    """Feed the rest of a round from where everybody was lowered, for the second time in it or
    later.

    Those that had their turn since the time before have keys that came in this round, so none of
    them is hit before the next: one miss for each of them, and one that lowers everybody, again and
    again. Of all these keys only the last ones stay. So misses are counted until the round is over,
    and then the last turns are taken, in which those before them are forgotten.

    Who comes off the wheel joins them. One whose rank is below that of the item at which everybody
    was lowered cannot be hit in this round either. The ranks of the others, `late`, are above those
    of all: they have their turns last, if they are not hit first, and then their keys are gone.

    Args:
        left: (n,), the items of the round: the first `remaining`.
        place: where in them to go on.
        remaining: see `left`.
        lowered: how often everybody was lowered, just now for the last time.
        zeros: (k,), who is at zero: the first `same` by rank, with keys of this round, and behind
            them, up to `now`, who came off the wheel; changed.
        same, now: see `zeros`.
        heights, ranks: (k,), changed.
        slot_of: (n,), changed.
        bits: see the module.
        heads, behind: the wheel, see `off_the_wheel`; changed.
        scratch: (k,), overwritten.

    Returns:
        Where in the round to go on: its end; how often everybody was lowered; how many of `zeros`
            have
        had their turn since; how many there are of them, by rank.
    """
    of_tick, mask = (1 << bits) - 1, len(heads) - 1
    begun = begun_before = place
    misses = 0
    early = late = sorted_apart(zeros, same, now, left[place - 1], ranks, bits, scratch)
    while place < remaining:
        slot = slot_of[left[place]]
        place += 1
        if slot >= 0:
            heights[slot] += 1
            continue
        misses += 1
        if misses <= early:
            continue
        while late < now and heights[zeros[late]] != lowered:  # it was hit meanwhile
            slot = zeros[late]
            behind[slot] = heads[heights[slot] & mask]
            heads[heights[slot] & mask] = slot
            late += 1
        if late < now:
            slot = zeros[late]
            late += 1
            zeros[misses - 1] = slot
            if ranks[slot] & of_tick == of_tick:
                slot_of[ranks[slot] >> bits] = -1
                ranks[slot] -= 1  # no key of the tick any more: it gets another one in the end
            continue
        lowered += 1
        begun, begun_before = place, begun
        same = now = early = late = misses - 1
        misses = 0
        if heads[lowered & mask] >= 0:
            now = off_the_wheel(lowered, zeros, same, heights, heads, behind)
            early = late = sorted_apart(zeros, same, now, left[place - 1], ranks, bits, scratch)
    if begun_before < begun:
        take_turns(left, begun_before, begun, zeros, same, ranks, slot_of, bits)
    merge_by_rank(zeros, same, early, ranks, scratch)
    take_turns(left, begun, place, zeros, misses, ranks, slot_of, bits)
    for turn in range(max(early, misses)):
        heights[zeros[turn]] = lowered + (turn < misses)
    waiting = max(early, misses)
    while late < now:
        zeros[waiting] = zeros[late]
        waiting += 1
        late += 1
    return place, lowered, misses, waiting


@kernel
def sorted_apart(
    zeros: Places, same: int, now: int, item: int, ranks: Integers, bits: int, scratch: Places
) -> int:
    """Sort who came off the wheel by rank; say where those begin whose ranks are above the item's.

    Args:
        zeros: (k,), of which those from `same` to `now` - 1 are sorted.
        same, now: see `zeros`.
        item: of the tick.
        ranks, bits, scratch: see `rest_of_round`.
    """
    sort_by_rank(zeros, same, now, ranks, scratch)
    rank = ((np.int64(item) + 1) << bits) - 1
    while same < now and ranks[zeros[same]] < rank:
        same += 1
    return same


@kernel
def take_turns(
    left: Places, place: int, stop: int, zeros: Places, n: int, ranks: Integers, slot_of: Places,
    bits: int
) -> None:
    """Give counters to the first n misses of a stretch of a round, one after the other.

    Args:
        left: (n,), the items of the round.
        place, stop: where the stretch begins and ends.
        zeros: (k,), the counters.
        n: how many.
        ranks, slot_of, bits: see the module; changed.
    """
    of_tick = (1 << bits) - 1
    turn = 0
    while turn < n and place < stop:
        item = left[place]
        place += 1
        if slot_of[item] < 0:
            slot = zeros[turn]
            turn += 1
            if ranks[slot] & of_tick == of_tick:
                slot_of[ranks[slot] >> bits] = -1
            ranks[slot] = (np.int64(item) << bits) | of_tick
            slot_of[item] = slot


@kernel
def still_at_zero(
    lowered: int, zeros: Places, n: int, heights: Integers, heads: Places, behind: Places
) -> int:
    """Keep those counters that are at zero; the others go into the wheel.

    Args:
        lowered: how often everybody was lowered.
        zeros: (k,), of which the first n are looked at; changed, in the order that they had.
        n: how many.
        heights, heads, behind: see `off_the_wheel`; the wheel is changed.

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
        heads: (buckets,), the first counter in each list of the wheel, -1 where it is empty;
            changed.
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
