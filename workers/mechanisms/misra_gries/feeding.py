"""Algorithm 1 of Misra-Gries over a whole tick: one occurrence after another, in `sketch` order.

Round j feeds the j-th occurrence of each item; the last round feeds all remaining occurrences, item
by item (`feed_rest`). Only `Counters` carry over. A round's items are bits, 32 per word, lowest
first: a million items take 125 kB, which fits the nearest caches.

Decrementing all counters adds one to `lowered`: a counter is at zero where its height is `lowered`.
Every miss needs the next one at zero, so a wheel has a list for each height up to k, and a counter
waits in the list of its height at insertion. When `lowered` reaches a height, counters of its list
that were hit meanwhile move on, the others are at zero and are replaced by rank. A replaced counter
is at one, so it is next at zero without having been in a list. Where the same counters are replaced
repeatedly, only the last replacements are carried out (`rest_of_round`).

In the last round one miss may lower all counters by millions, too many for a wheel. But the lowest
counter only rises (`floor` is its height), so a radix heap finds it: list i has the counters with a
height that differs from `floor` in bit i, counted from one, and in none above; list 0 those at
`floor`. A hit counter stays in its list, then too low, until that is processed. A binary heap, with
an unpredictable comparison in every step, takes three times as long (measured: 7 and 2.5 ms for
43,000 items and 10,000 counters).

Source: Lebeda and Tetek, "Better Differentially Private Approximate Histograms and Heavy Hitters
using the Misra-Gries Sketch", Algorithm 1; tests compare the result item by item. Ahuja, Mehlhorn,
Orlin and Tarjan, "Faster Algorithms for the Shortest Path Problem", for the heap.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from workers.arrays.compiled import kernel_inline, kernel_part, kernel_with_arrays

Bits = NDArray[np.uint32]
Integers = NDArray[np.int64]
Places = NDArray[np.int32]


class Counters(NamedTuple):
    """The k counters while a tick of n items is fed; the kernels change all of these arrays.

    A slot is a counter's number, an item its place among the tick's items. Ranks order the counters
    as their keys are ordered. They are distinct; their lowest `slot_bits` are ones if the counter
    holds an item of the tick, else its slot, which is less:

        item << slot_bits | ones
        number of smaller items of the tick << slot_bits | slot; unused counters come last
    """

    heights: Integers  # (k,): count plus `lowered`
    ranks: Integers  # (k,)
    slot_of: Places  # (n,): the item's counter, undefined if none
    held: Bits  # (words,): one bit per item of the tick, set if a counter holds it
    slot_bits: int


class Wheel(NamedTuple):
    """Linked lists of counters by height, modulo the number of lists; -1: none."""

    heads: Places  # (lists, a power of two): the first counter
    next_slot: Places  # (k,): the one after each counter


@kernel_part
def sort_by_rank(
    slots: Places, first: int, end: int, ranks: Integers, scratch: Places
) -> None:
    """Sort the counters in `slots[first:end]` by rank, all distinct, by merging ordered runs.

    Usually there are one or two runs.
    """
    # Each pass merges two neighbouring runs to one, until a pass finds only one.
    runs = 2
    while runs > 1:
        runs = 0
        start = first
        while start < end:
            middle = run_end(slots, start, end, ranks)
            stop = middle
            if middle < end:
                stop = run_end(slots, middle, end, ranks)
                left = start
                right = middle
                for place in range(start, stop):
                    if right >= stop or (
                        left < middle and ranks[slots[left]] < ranks[slots[right]]
                    ):
                        scratch[place] = slots[left]
                        left += 1
                    else:
                        scratch[place] = slots[right]
                        right += 1
                for place in range(start, stop):
                    slots[place] = scratch[place]
            runs += 1
            start = stop


@kernel_part
def merge_by_rank(
    slots: Places, middle: int, end: int, ranks: Integers, scratch: Places
) -> None:
    """Merge the few `slots[middle:end]` into those before, by binary search.

    Both parts are in order of rank, and so is `slots[:end]` afterwards.
    """
    few = end - middle
    for i in range(few):
        scratch[i] = slots[middle + i]
    # From the last of the few to the first: those before slots[stop] have not moved yet, and move
    # up by the number of the few that come before them.
    stop = middle
    for i in range(few - 1, -1, -1):
        rank = ranks[scratch[i]]
        low = 0
        high = stop
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
def run_end(slots: Places, start: int, end: int, ranks: Integers) -> int:
    """Return the first place after `start` that is out of order, or `end`."""
    stop = start + 1
    while stop < end and ranks[slots[stop - 1]] < ranks[slots[stop]]:
        stop += 1
    return stop


@kernel_inline
def ones_in(word: int | np.int64) -> int:
    """Return the number of one bits in a word; compiles to one instruction."""
    ones = 0
    while word != 0:
        word &= word - 1
        ones += 1
    return ones


@kernel_inline
def rank_of(item: int, slot_bits: int) -> int:
    """Return the rank of a counter that holds an item of this tick, as `Counters` has them."""
    return int((np.int64(item) << slot_bits) | ((1 << slot_bits) - 1))


@kernel_inline
def is_of_tick(rank: int, slot_bits: int) -> bool:
    """Return whether a counter with this rank holds an item of this tick (see `Counters`).

    If so, the rank's lowest `slot_bits` are ones, and the bits above are the item.
    """
    ones = (1 << slot_bits) - 1
    return rank & ones == ones


@kernel_inline
def flip(bits_of: Bits, item: int) -> None:
    """Change the bit of an item."""
    bits_of[item >> 5] ^= np.uint32(1 << (item & 31))


@kernel_inline
def put_on_wheel(slot: int, height: int, wheel: Wheel) -> None:
    """Put a counter at the head of the list for its height."""
    place = height & (len(wheel.heads) - 1)
    wheel.next_slot[slot] = wheel.heads[place]
    wheel.heads[place] = slot


@kernel_inline
def replace(slot: int, item: int, counters: Counters) -> None:
    """Let a counter hold an item of the tick in place of its own; the caller sets its height."""
    slot_bits = counters.slot_bits
    rank = counters.ranks[slot]
    if is_of_tick(rank, slot_bits):  # only items of this tick have a bit in `held`
        flip(counters.held, rank >> slot_bits)
    counters.ranks[slot] = rank_of(item, slot_bits)
    counters.slot_of[item] = slot
    flip(counters.held, item)


@kernel_with_arrays
def feed_rounds(rounds: Bits, counters: Counters) -> int:
    """Feed the rounds before the last one; return the number of decrements.

    A hit adds one to the item's counter. A miss replaces the next counter at zero by rank; without
    one, it decrements all counters, and those then at zero are found. `rounds` (rounds, words) has
    one bit per item: 32 items in a word, the lowest bit first. `counters` are changed in place.
    """
    heights = counters.heights
    ranks = counters.ranks
    held_bits = counters.held
    k = len(heights)
    # The wheel has a list for each height up to k, rounded up to a power of two.
    buckets = 64
    while buckets < k:
        buckets *= 2
    heads = np.full(buckets, -1, dtype=np.int32)
    wheel = Wheel(heads, np.full(k, -1, dtype=np.int32))
    scratch = np.empty(k, dtype=np.int32)
    # zeros[:waiting] were at zero after the last decrement, by rank. Those before `turn` were
    # replaced since, or hit; the others may have been hit, and then are above zero.
    zeros = np.arange(k).astype(np.int32)
    lowered = turn = 0
    waiting = still_at_zero(lowered, zeros, k, heights, wheel)
    # Calls only at a decrement: passing arrays costs 25 ns, a whole step 6 ns (measured).
    for number in range(len(rounds)):
        items = rounds[number]
        all_lowered = False  # whether this round has decremented before
        # Whether those of `zeros` that stay at the next decrement are in order. They are if this
        # round has replaced all of them, as its items ascend.
        in_order = False
        fed = False  # whether `rest_of_round` fed the rest
        for word in range(len(items)):
            if fed:
                break
            to_feed = np.int64(items[word])
            while to_feed != 0:
                bit = to_feed & -to_feed
                to_feed ^= bit
                item = (word << 5) + ones_in(bit - 1)
                if held_bits[word] & bit:
                    heights[counters.slot_of[item]] += 1
                    continue
                # Pass those that were hit since they were at zero: they keep their old ranks.
                while turn < waiting and heights[zeros[turn]] != lowered:
                    turn += 1
                    in_order = False
                if turn < waiting:
                    slot = zeros[turn]
                    turn += 1
                    replace(slot, item, counters)
                    heights[slot] = lowered + 1
                    continue
                lowered += 1
                turn = 0
                # None were at zero before, so none were replaced; and none wait for this height.
                if waiting == 0 and heads[lowered & (buckets - 1)] < 0:
                    continue
                # Those replaced since are at one, and so at zero again; others come from the wheel.
                replaced = still_at_zero(lowered, zeros, waiting, heights, wheel)
                waiting = take_from_wheel(lowered, zeros, replaced, heights, wheel)
                if not in_order:
                    sort_by_rank(zeros, 0, replaced, ranks, scratch)
                    in_order = True
                if all_lowered:
                    lowered, turn, waiting = rest_of_round(
                        items,
                        item + 1,
                        lowered,
                        zeros,
                        replaced,
                        waiting,
                        counters,
                        wheel,
                        scratch,
                    )
                    fed = True
                    break
                if waiting > replaced:
                    sort_by_rank(zeros, replaced, waiting, ranks, scratch)
                    merge_by_rank(zeros, replaced, waiting, ranks, scratch)
                all_lowered = True
    return lowered


@kernel_part
def rest_of_round(
    items: Bits,
    start: int,
    lowered: int,
    zeros: Places,
    replaced: int,
    arrived: int,
    counters: Counters,
    wheel: Wheel,
    scratch: Places,
) -> tuple[int, int, int]:
    """Feed the rest of a round, from item `start` on, after two decrements in it.

    A counter that a miss of this round replaced holds an item that the round is past, so it is not
    hit again before the next round. Until the next decrement each of these counters takes one miss
    more, and only the items of its last miss stay. Hence misses are only counted, 32 items at once
    where none is hit, and the last replacements are carried out at the end. Counters that come from
    the wheel join them at a decrement: they are safe too if their rank is below that of the item
    at the decrement; the others may be hit, and come last, as their ranks are above all safe ones.

        zeros[:safe]                 at zero after the last decrement, and not hit in this round:
                                     zeros[:replaced] were replaced before that decrement, and
                                     zeros[replaced:safe] are from the wheel, both by rank
        zeros[:misses]               took the misses since the last decrement, one each
        zeros[next_unsafe:arrived]   from the wheel, by rank: at zero then, hit since or not

    Always replaced <= safe <= next_unsafe <= arrived and misses <= next_unsafe: an unsafe counter
    that is replaced moves down to the others that took a miss.

    Args:
        items: the round, one bit per item.
        start: the item after the last decrement.
        lowered: the decrements so far.
        zeros: (k,), the counters at zero, changed: `replaced` that were replaced, by rank, then,
            up to `arrived`, those from the wheel.
        scratch: (k,).

    Returns the decrements then, how many of `zeros` were replaced since the last one, and how many
    of `zeros` there are, by rank: `lowered`, `turn` and `waiting` of `feed_rounds`.
    """
    heights, ranks, slot_of, held_bits, slot_bits = counters
    mask = len(wheel.heads) - 1
    stop = len(items) << 5
    # Items from `start` on are fed after the last decrement, those from `previous_start` to `start`
    # between the last two.
    previous_start = start
    misses = 0
    safe = sort_arrivals(zeros, replaced, arrived, start - 1, counters, scratch)
    next_unsafe = safe
    for word in range(start >> 5, len(items)):
        to_feed = np.int64(items[word])
        # Not those before `start`.
        if word == start >> 5:
            to_feed &= -(1 << (start & 31))
        # The usual case: takes 1.8 of 10.7 ms less than the loop.
        if to_feed & held_bits[word] == 0:
            n = ones_in(to_feed)
            if misses + n <= safe:
                misses += n
                continue
        while to_feed != 0:
            hits = to_feed & held_bits[word]
            first_hit = hits & -hits
            # All, if there is no hit.
            before_hit = to_feed & (first_hit - 1)
            n = ones_in(before_hit)
            # Enough safe counters for these misses: count them, and the hit.
            if n == 0 or misses + n <= safe:
                misses += n
                to_feed ^= before_hit | first_hit
                if hits != 0:
                    heights[slot_of[(word << 5) + ones_in(first_hit - 1)]] += 1
                continue
            # Safe counters take what they can; `miss` is the bit of the first miss that finds none.
            for _ in range(safe - misses):
                before_hit &= before_hit - 1
            misses = max(misses, safe)
            miss = before_hit & -before_hit
            # Go on after it.
            to_feed &= -miss << 1
            # Unsafe counters that were hit are not at zero.
            while next_unsafe < arrived and heights[zeros[next_unsafe]] != lowered:
                put_on_wheel(zeros[next_unsafe], heights[zeros[next_unsafe]], wheel)
                next_unsafe += 1
            if next_unsafe < arrived:
                slot = zeros[next_unsafe]
                next_unsafe += 1
                zeros[misses] = slot
                misses += 1
                # Its old item is a miss from now on. The new one is assigned at the end: until then
                # the rank is not that of an item of the tick, but still in order.
                if is_of_tick(ranks[slot], slot_bits):
                    flip(held_bits, ranks[slot] >> slot_bits)
                    ranks[slot] -= 1
                continue
            # No counter is at zero: a decrement, after which those that took a miss are at zero.
            lowered += 1
            previous_start = start
            start = (word << 5) + ones_in(miss - 1) + 1
            replaced = arrived = safe = next_unsafe = misses
            misses = 0
            if wheel.heads[lowered & mask] >= 0:
                arrived = take_from_wheel(lowered, zeros, replaced, heights, wheel)
                safe = sort_arrivals(
                    zeros, replaced, arrived, start - 1, counters, scratch
                )
                next_unsafe = safe
    # Carry out the last replacements: those before the last decrement, then those after it. All
    # before these two were replaced again.
    if previous_start < start:
        assign_misses(items, previous_start, start, zeros, replaced, counters)
    merge_by_rank(zeros, replaced, safe, ranks, scratch)
    assign_misses(items, start, stop, zeros, misses, counters)
    waiting = max(safe, misses)
    # Those that took a miss are at one, the others at zero.
    for place in range(waiting):
        heights[zeros[place]] = lowered + (place < misses)
    while next_unsafe < arrived:
        zeros[waiting] = zeros[next_unsafe]
        waiting += 1
        next_unsafe += 1
    return lowered, misses, waiting


@kernel_part
def sort_arrivals(
    zeros: Places,
    first: int,
    arrived: int,
    item: int,
    counters: Counters,
    scratch: Places,
) -> int:
    """Sort the counters that came from the wheel, `zeros[first:arrived]`, by rank.

    Return the place from which on ranks are at least that of `item`, the miss that decremented:
    the counters before it hold items that this round is past, so it cannot hit them.
    """
    sort_by_rank(zeros, first, arrived, counters.ranks, scratch)
    rank = rank_of(item, counters.slot_bits)
    place = first
    while place < arrived and counters.ranks[zeros[place]] < rank:
        place += 1
    return place


@kernel_part
def assign_misses(
    items: Bits, start: int, stop: int, zeros: Places, n: int, counters: Counters
) -> None:
    """Let the counters `zeros[:n]`, in order, hold the first n misses among items start..stop - 1.

    `items` is the round, one bit per item; a miss is an item of it that no counter holds. Those
    that the counters held until now become misses, but none of start..stop - 1: the caller only
    replaces counters of items that this round is past, or whose bit it has cleared. `slot_of` of an
    item that nothing holds means nothing. The caller sets heights.
    """
    _heights, ranks, slot_of, held_bits, slot_bits = counters
    turn = 0
    for word in range(start >> 5, min((stop >> 5) + 1, len(items))):
        missed = np.int64(items[word]) & ~np.int64(held_bits[word])
        # Not those outside of start..stop - 1.
        if word == start >> 5:
            missed &= -(1 << (start & 31))
        if word == stop >> 5:
            missed &= (1 << (stop & 31)) - 1
        all_missed = missed
        while turn < n and missed != 0:
            low = missed & -missed
            missed ^= low
            item = (word << 5) + ones_in(low - 1)
            slot = zeros[turn]
            turn += 1
            if is_of_tick(ranks[slot], slot_bits):
                flip(held_bits, ranks[slot] >> slot_bits)
            ranks[slot] = rank_of(item, slot_bits)
            slot_of[item] = slot
        # Those assigned are held now: all at once takes 1.4 of 9.0 ms less than one by one.
        held_bits[word] ^= np.uint32(all_missed ^ missed)
        if turn == n:
            break


@kernel_part
def still_at_zero(
    lowered: int, zeros: Places, n: int, heights: Integers, wheel: Wheel
) -> int:
    """Keep those of `zeros[:n]` at zero, in order, at its beginning; return how many they are.

    A counter is at zero if its height is `lowered`. The others go to the wheel.
    """
    kept = 0
    for place in range(n):
        slot = zeros[place]
        if heights[slot] == lowered:
            zeros[kept] = slot
            kept += 1
        else:
            put_on_wheel(slot, heights[slot], wheel)
    return kept


@kernel_part
def take_from_wheel(
    lowered: int, zeros: Places, n: int, heights: Integers, wheel: Wheel
) -> int:
    """Append the wheel's counters at zero to `zeros[:n]`, in any order; return the new n."""
    place = lowered & (len(wheel.heads) - 1)
    slot = wheel.heads[place]
    wheel.heads[place] = -1
    while slot >= 0:
        following = wheel.next_slot[slot]
        if heights[slot] == lowered:
            zeros[n] = slot
            n += 1
        else:
            # Hit since it was put there, or higher by a whole turn of the wheel.
            put_on_wheel(slot, heights[slot], wheel)
        slot = following
    return n


# List 0, and one for every bit of a height.
LISTS = 64
ZERO = np.uint64(0)
ONE = np.uint64(1)


@kernel_with_arrays
def feed_rest(
    items: Integers,
    weights: Integers,
    by_rank: Places,
    lowered: int,
    counters: Counters,
) -> int:
    """Feed the last round: all remaining occurrences, item by item in ascending order.

    Args:
        items: the items with occurrences left.
        weights: how many each has left.
        by_rank: (k,), all counters by rank.
        lowered: the decrements so far.
        counters: changed in place.

    Returns the number of decrements then.
    """
    heights = counters.heights
    ranks = counters.ranks
    held_bits = counters.held
    k = len(heights)
    # The radix heap's lists: first and last counter of each (first -1 if empty), and the next one.
    ends = np.full((LISTS, 2), -1, dtype=np.int32)
    next_slot = np.empty(k, dtype=np.int32)
    # Counters taken from list 0, by rank; those before `turn` had their turn.
    lowest = np.empty(k, dtype=np.int32)
    scratch = np.empty(k, dtype=np.int32)
    # No height is below the floor.
    floor = lowered
    for place in range(k):
        append(by_rank[place], floor, heights, ends, next_slot)
    turn = waiting = 0
    for place in range(len(items)):
        item = items[place]
        weight = weights[place]
        is_hit = held_bits[item >> 5] >> (item & 31) & 1
        if is_hit:
            heights[counters.slot_of[item]] += weight
            continue
        # Find the next counter at the floor; one that was hit meanwhile goes back to a list.
        while turn == waiting or heights[lowest[turn]] != floor:
            if turn < waiting:
                append(lowest[turn], floor, heights, ends, next_slot)
                turn += 1
                continue
            floor = raise_floor(floor, heights, ends, next_slot)
            turn = waiting = 0
            slot = ends[0, 0]
            ends[0, 0] = -1
            in_order = True
            while slot >= 0:
                in_order &= waiting == 0 or ranks[lowest[waiting - 1]] < ranks[slot]
                lowest[waiting] = slot
                waiting += 1
                slot = next_slot[slot]
            if not in_order:
                sort_by_rank(lowest, 0, waiting, ranks, scratch)
        # Each occurrence lowers all counters by one, until the lowest is at zero.
        if weight <= floor - lowered:
            lowered += weight
            continue
        # The next occurrence replaces that counter, and the others are hits.
        slot = lowest[turn]
        turn += 1
        replace(slot, item, counters)
        heights[slot] = lowered + weight
        lowered = floor
        append(slot, floor, heights, ends, next_slot)
    return lowered


@kernel_inline
def append(
    slot: int, floor: int, heights: Integers, ends: Places, next_slot: Places
) -> None:
    """Append a counter to its list: that of the highest bit in which it differs from the floor.

    `ends` (lists, 2) has the first and the last counter of each list, the first -1 if it is empty,
    and `next_slot` (k,) the one after each counter.
    """
    number = 0
    differing = np.uint64(heights[slot] ^ floor)
    # Compiles to one instruction; a signed number would not.
    while differing != ZERO:
        differing >>= ONE
        number += 1
    next_slot[slot] = -1
    if ends[number, 0] < 0:
        ends[number, 0] = slot
    else:
        next_slot[ends[number, 1]] = slot
    ends[number, 1] = slot


@kernel_part
def raise_floor(floor: int, heights: Integers, ends: Places, next_slot: Places) -> int:
    """Raise the floor to the lowest counter's height, so that list 0 has counters; return it.

    A radix heap's step: while list 0 is empty, distribute the first list that is not. `ends`
    (lists, 2) has the first and the last counter of each list, the first -1 if it is empty, and
    `next_slot` (k,) the one after each counter.
    """
    # Lists before `number` stay empty until list 0 has counters: others belong in later lists.
    number = 0
    while ends[0, 0] < 0:
        # Some list has counters.
        while ends[number, 0] < 0:
            number += 1
        slot = ends[number, 0]
        lowest = heights[slot]
        while slot >= 0:
            lowest = min(lowest, heights[slot])
            slot = next_slot[slot]
        # Lists ascend, so the lowest of this one is the lowest of all, unless hits raised all of
        # its counters. Then they differ from the floor in a higher bit, and belong in later lists.
        if (lowest ^ floor) >> (number - 1) == 1:
            floor = lowest
        slot = ends[number, 0]
        ends[number, 0] = -1
        while slot >= 0:
            following = next_slot[slot]
            append(slot, floor, heights, ends, next_slot)
            slot = following
    return floor
