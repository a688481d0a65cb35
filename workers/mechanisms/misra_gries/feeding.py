"""The last round of a tick of Misra-Gries: all that an item has left in a row, item by item.

Where weights differ, one miss may lower everybody by millions, so no list is kept for each height
as in `misra_gries`, whose arrays these are, and whose rounds come before. But the lowest counter
only ever rises (`floor` is its height): a radix heap says who is lowest. A counter is in list i
where i is the highest bit, counted from one, in which its height differs from `floor`; in list 0
are those at `floor`, the others come nearer from list to list. That has no comparison whose end
nobody can foretell, as a binary heap has in every step, and takes a third of the time (measured:
2.5 and 7 ms for 43,000 items and 10,000 counters).

A hit does not move a counter: it is in a list that is too low until that is looked at.

Source: Lebeda and Tetek, "Better Differentially Private Approximate Histograms and Heavy Hitters
using the Misra-Gries Sketch", Algorithm 1; that this ends where it ends is tested item by item.
Ahuja, Mehlhorn, Orlin and Tarjan, "Faster Algorithms for the Shortest Path Problem", for the heap.

The counters of a Misra-Gries sketch in the order of their keys, see `misra_gries`.

Algorithm 1 of Misra-Gries over a whole tick: one occurrence after another, in the order of
`sketch`.

A tick is fed in rounds: one of every item, one more of every item that has a second, and so on; the
last round takes all that an item has left in a row. Here are the rounds of ones, and in
`misra_gries_rest` is the last one. Between them nothing but these arrays is kept:

    heights  int64 (k,)     a counter's count, plus how often everybody was lowered (`lowered`)
    ranks    int64 (k,)     place of a counter's key among all keys of sketch and tick
    held     uint32 (words,)  a bit for each item of the tick: whether a counter has it
    slot_of  int32 (n,)     which counter that is, of no meaning where none has it

The items of a round are bits as well, 32 of them a word, the first one the lowest: a million items
are 125 kB, which the processor's nearest memories hold, all rounds of a tick 3 MB.

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

from workers.arrays.compiled import kernel_in_place, kernel_part, kernel_with_arrays

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


Bits = NDArray[np.uint32]


@kernel_in_place
def ones_in(word: int | np.int64) -> int:
    """Return how many bits of a word are one: one instruction, once it is compiled."""
    ones = 0
    while word != 0:
        word &= word - 1
        ones += 1
    return ones


@kernel_in_place
def turn_over(bits_of: Bits, item: int) -> None:
    """Turn an item's bit over."""
    bits_of[item >> 5] ^= np.uint32(1 << (item & 31))


@kernel_with_arrays
def feed_rounds(
    rounds: NDArray[np.uint32],
    heights: Integers,
    ranks: Integers,
    slot_of: Places,
    held: Bits,
    bits: int,
) -> int:
    """Feed rounds of one of each item.

    Args:
        rounds: (rounds, words), the items of each round.
        heights: (k,), the counts to begin with; changed.
        ranks: (k,), ascending to begin with; changed.
        slot_of, held: see the module; changed.
        bits: see the module.

    Returns:
        How often everybody was lowered.
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
    # No calls in this loop but where everybody is lowered: a call that gets arrays takes longer
    # than all of a step (measured: 25 ns, 6 ns).
    for number in range(len(rounds)):
        items = rounds[number]
        whole = False  # whether everybody was lowered before in this round
        in_order = False  # whether those of `zeros` that stay will be in order
        word, fed = -1, False
        while not fed and word + 1 < len(items):
            word += 1
            rest = np.int64(items[word])
            while rest != 0:
                low = rest & -rest
                rest ^= low
                item = (word << 5) + ones_in(low - 1)
                if held[word] & low:
                    heights[slot_of[item]] += 1
                    continue
                while turn < waiting and heights[zeros[turn]] != lowered:  # it was hit meanwhile
                    turn += 1
                    in_order = False
                if turn < waiting:
                    slot = zeros[turn]
                    turn += 1
                    if (
                        ranks[slot] & of_tick == of_tick
                    ):  # the key that gives way is of the tick too
                        turn_over(held, ranks[slot] >> bits)
                    ranks[slot] = (np.int64(item) << bits) | of_tick
                    slot_of[item] = slot
                    turn_over(held, item)
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
                    lowered, turn, waiting = rest_of_round(
                        items,
                        item + 1,
                        lowered,
                        zeros,
                        same,
                        waiting,
                        heights,
                        ranks,
                        slot_of,
                        held,
                        bits,
                        heads,
                        behind,
                        scratch,
                    )
                    fed = True
                    break
                if waiting > same:
                    sort_by_rank(zeros, same, waiting, ranks, scratch)
                    merge_by_rank(zeros, same, waiting, ranks, scratch)
                whole = True
    return lowered


@kernel_part
def rest_of_round(
    items: Bits,
    begun: int,
    lowered: int,
    zeros: Places,
    same: int,
    now: int,
    heights: Integers,
    ranks: Integers,
    slot_of: Places,
    held: Bits,
    bits: int,
    heads: Places,
    behind: Places,
    scratch: Places,
) -> tuple[int, int, int]:
    """Feed the rest of a round from where everybody was lowered, for the second time in it or
    later.

    Those that had their turn since the time before have keys that came in this round, so none of
    them is hit before the next: one miss for each of them, and one that lowers everybody, again and
    again. Of all these keys only the last ones stay. So misses are counted until the round is over,
    32 items at once where there is no hit, and then the last turns are taken, in which those before
    them are forgotten.

    Who comes off the wheel joins them. One whose rank is below that of the item at which everybody
    was lowered cannot be hit in this round either. The ranks of the others, `late`, are above those
    of all: they have their turns last, if they are not hit first, and then their keys are gone.

    Args:
        items: (words,), the items of the round.
        begun: the first item to go on with.
        lowered: how often everybody was lowered, just now for the last time.
        zeros: (k,), who is at zero: the first `same` by rank, with keys of this round, and behind
            them, up to `now`, who came off the wheel; changed.
        same, now: see `zeros`.
        heights, ranks: (k,), changed.
        slot_of, held: see the module; changed.
        bits: see the module.
        heads, behind: the wheel, see `off_the_wheel`; changed.
        scratch: (k,), overwritten.

    Returns:
        How often everybody was lowered; how many of `zeros` have had their turn since; how many
        there are of them, by rank.
    """
    of_tick, mask, stop = (1 << bits) - 1, len(heads) - 1, len(items) << 5
    begun_before = begun
    misses = 0
    early = late = sorted_apart(zeros, same, now, begun - 1, ranks, bits, scratch)
    for word in range(begun >> 5, len(items)):
        rest = np.int64(items[word])
        if word == begun >> 5:
            rest &= -(1 << (begun & 31))
        # Mostly nothing more is to be done: 1.8 of 10.7 ms less than by the loop.
        if rest & held[word] == 0:
            n = ones_in(rest)
            if misses + n <= early:
                misses += n
                continue
        while rest != 0:
            hits = rest & held[word]
            low = hits & -hits  # the first item that is hit
            run = rest & (low - 1)  # those before it, all where none is hit
            n = ones_in(run)
            if n == 0 or misses + n <= early:
                misses += n
                rest ^= run | low
                if hits != 0:
                    heights[slot_of[(word << 5) + ones_in(low - 1)]] += 1
                continue
            for _ in range(early - misses):
                run &= run - 1
            low = run & -run
            rest &= -low << 1
            misses = max(misses, early) + 1
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
                    turn_over(held, ranks[slot] >> bits)
                    ranks[slot] -= 1  # no key of the tick any more: it gets another one in the end
                continue
            lowered += 1
            begun, begun_before = (word << 5) + ones_in(low - 1) + 1, begun
            same = now = early = late = misses - 1
            misses = 0
            if heads[lowered & mask] >= 0:
                now = off_the_wheel(lowered, zeros, same, heights, heads, behind)
                early = late = sorted_apart(zeros, same, now, begun - 1, ranks, bits, scratch)
    if begun_before < begun:
        take_turns(items, begun_before, begun, zeros, same, ranks, slot_of, held, bits)
    merge_by_rank(zeros, same, early, ranks, scratch)
    take_turns(items, begun, stop, zeros, misses, ranks, slot_of, held, bits)
    for turn in range(max(early, misses)):
        heights[zeros[turn]] = lowered + (turn < misses)
    waiting = max(early, misses)
    while late < now:
        zeros[waiting] = zeros[late]
        waiting += 1
        late += 1
    return lowered, misses, waiting


@kernel_part
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


@kernel_part
def take_turns(
    items: Bits,
    start: int,
    stop: int,
    zeros: Places,
    n: int,
    ranks: Integers,
    slot_of: Places,
    held: Bits,
    bits: int,
) -> None:
    """Give counters to the first n misses of a stretch of a round, one after the other.

    No key that gives way is of the stretch: all came before it in the round, or are below it.

    Args:
        items: (words,), the items of the round.
        start, stop: the first item of the stretch, and the first behind it.
        zeros: (k,), the counters.
        n: how many.
        ranks, slot_of, held, bits: see the module; changed.
    """
    of_tick = (1 << bits) - 1
    turn = 0
    for word in range(start >> 5, min((stop >> 5) + 1, len(items))):
        missed = np.int64(items[word]) & ~np.int64(held[word])
        if word == start >> 5:
            missed &= -(1 << (start & 31))
        if word == stop >> 5:
            missed &= (1 << (stop & 31)) - 1
        taken = missed
        while turn < n and missed != 0:
            low = missed & -missed
            missed ^= low
            item = (word << 5) + ones_in(low - 1)
            slot = zeros[turn]
            turn += 1
            if ranks[slot] & of_tick == of_tick:
                turn_over(held, ranks[slot] >> bits)
            ranks[slot] = (np.int64(item) << bits) | of_tick
            slot_of[item] = slot
        held[word] ^= np.uint32(taken ^ missed)  # all at once: 1.4 of 9.0 ms less than one by one
        if turn == n:
            break


@kernel_part
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


@kernel_part
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


# List 0, and one for each bit of a height.
LISTS = 64
ZERO, ONE = np.uint64(0), np.uint64(1)


@kernel_with_arrays
def feed_rest(
    items: Integers,
    weights: Integers,
    by_rank: Places,
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
        by_rank: (k,), the counters, ascending by rank.
        lowered: how often everybody was lowered before.
        heights, ranks: (k,), changed.
        slot_of, held: see `misra_gries`; changed.
        bits: see `misra_gries`.

    Returns:
        How often everybody was lowered in all.
    """
    k, of_tick = len(heights), (1 << bits) - 1
    ends = np.full((LISTS, 2), -1, dtype=np.int32)
    behind = np.empty(k, dtype=np.int32)
    lowest = np.empty(k, dtype=np.int32)  # list 0, by rank; those before `turn` had their turn
    scratch = np.empty(k, dtype=np.int32)
    floor = lowered
    for place in range(k):
        append(by_rank[place], floor, heights, ends, behind)
    turn = waiting = 0
    for place in range(len(items)):
        item, weight = items[place], weights[place]
        if held[item >> 5] >> (item & 31) & 1:
            heights[slot_of[item]] += weight
            continue
        while turn == waiting or heights[lowest[turn]] != floor:
            if turn < waiting:  # it was hit meanwhile
                append(lowest[turn], floor, heights, ends, behind)
                turn += 1
                continue
            floor = come_nearer(floor, heights, ends, behind)
            turn = waiting = 0
            slot = ends[0, 0]
            ends[0, 0] = -1
            in_order = True
            while slot >= 0:
                in_order &= waiting == 0 or ranks[lowest[waiting - 1]] < ranks[slot]
                lowest[waiting] = slot
                waiting += 1
                slot = behind[slot]
            if not in_order:
                sort_by_rank(lowest, 0, waiting, ranks, scratch)
        # Everybody is lowered until one is at zero, or nothing is left of the item.
        if weight <= floor - lowered:
            lowered += weight
            continue
        slot = lowest[turn]
        turn += 1
        if ranks[slot] & of_tick == of_tick:  # the key that gives way is of the tick too
            turn_over(held, ranks[slot] >> bits)
        ranks[slot] = (item << bits) | of_tick
        slot_of[item] = slot
        turn_over(held, item)
        heights[slot] = lowered + weight
        lowered = floor
        append(slot, floor, heights, ends, behind)
    return lowered


@kernel_in_place
def append(slot: int, floor: int, heights: Integers, ends: Places, behind: Places) -> None:
    """Put a counter at the end of its list, so that lists stay by rank as far as they were.

    Args:
        slot: which.
        floor: see the module.
        heights: (k,).
        ends: (LISTS, 2), the first and the last counter in each list, where the first is not -1;
            changed.
        behind: (k,), the counter behind each in its list, -1 behind the last; changed.
    """
    number, apart = 0, np.uint64(heights[slot] ^ floor)
    while apart != ZERO:  # one instruction, once it is compiled; not where there is a sign
        apart >>= ONE
        number += 1
    behind[slot] = -1
    if ends[number, 0] < 0:
        ends[number, 0] = slot
    else:
        behind[ends[number, 1]] = slot
    ends[number, 1] = slot


@kernel_part
def come_nearer(floor: int, heights: Integers, ends: Places, behind: Places) -> int:
    """Raise the floor to the height of the lowest counter, where list 0 is empty.

    Args:
        floor, heights, ends, behind: see `append`; all lists together are not empty.

    Returns:
        The new floor.
    """
    number = 0
    while ends[0, 0] < 0:
        while ends[number, 0] < 0:
            number += 1
        first = slot = ends[number, 0]
        height = heights[slot]
        while slot >= 0:
            height = min(height, heights[slot])
            slot = behind[slot]
        ends[number, 0] = -1
        if (height ^ floor) >> (number - 1) == 1:  # else all were hit, and are in later lists
            floor = height
        while first >= 0:
            slot = first
            first = behind[slot]
            append(slot, floor, heights, ends, behind)
    return floor
