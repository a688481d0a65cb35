"""Kernels of Privacy-Aware Misra-Gries sketches (PAMG), which are fed with sets: one set, one step.

A step adds one to the counter of each of its labels, and takes on new ones. If there are then more
than `size` counters, all go down by one, once, and those at zero are dropped. At most n / (size +
1) steps of a stream with n labels do that: each takes more than `size` from the sum of counters.

All stream keys' counters are rows of one table. A *pair*, the code of the stream key in the upper
32 bits and that of the label in the lower, finds a row through a hash table with linear probing. A
key's rows form a linked list. Lowering a key's counters adds one to its `lowered`: a counter is its
height less that. It reads the whole list to drop those at zero, which costs no more than the
increments that it takes back.

Source: Lebeda and Tetek, "Better Differentially Private Approximate Histograms and Heavy Hitters
using the Misra-Gries Sketch", Algorithm 4.
"""

from typing import NamedTuple

import numpy as np

from workers.arrays.compiled import kernel, kernel_part
from workers.arrays.tallies import KEY_BITS, ONE, LabeledEvents, pair_slot
from workers.arrays.types import Bools, Codes, Longs, Words

# Places of `SketchTable.used`.
KEYS = 0
ROWS = 1
FREE = 2


class SketchTable(NamedTuple):
    """Counters of all stream keys; arrays by key have an element for each code. Sensitive.

    Attributes:
        secret: of the hash.
        slots: int32 (a power of two, at least twice the possible rows,), a row, or -1 where free.
        pairs: uint64 (possible rows,), key and label of a counter.
        heights: int64 (possible rows,), the counter plus its key's `lowered`.
        next_row: int32 (possible rows,), the next row of the key, or the next free row; -1: none.
        first: int32 (keys,), a key's first row; -1: none.
        counters: int64 (keys,), how many counters a key has.
        lowered: int64 (keys,), how often a key's counters went down.
        changed: bool (keys,), keys fed since the caller cleared it.
        place: int32 (keys,), the place of a key in `met`; -1 before it is met.
        met: int32 (keys,), keys in the order in which events first had them.
        used: int64 (3,): how many keys were met and rows used, and the first free row, or -1.
    """

    secret: np.uint64
    slots: Codes
    pairs: Words
    heights: Longs
    next_row: Codes
    first: Codes
    counters: Longs
    lowered: Longs
    changed: Bools
    place: Codes
    met: Codes
    used: Longs

    def __repr__(self) -> str:
        return "SketchTable(<sensitive>)"


@kernel_part
def meet_key(key: int, table: SketchTable) -> None:
    """Add a stream key to `met` if it is new there, even if its events have no labels.

    `used[KEYS]` is how many keys were met before.
    """
    if table.place[key] < 0:
        table.place[key] = table.used[KEYS]
        table.met[table.used[KEYS]] = key
        table.used[KEYS] += 1
        table.changed[key] = True


@kernel_part
def counter_of(key: int, label: int, table: SketchTable) -> int:
    """Return the row of a label's counter, a new one at zero if it has none.

    The table must have room for it: a row, and slots that are at most half full.
    """
    pairs = table.pairs
    slots = table.slots
    pair = np.uint64(key) << KEY_BITS | np.uint64(label)
    mask = np.uint64(len(slots) - 1)
    slot = pair_slot(pair, table.secret, mask)
    row = int(slots[slot])
    while row >= 0:
        if pairs[row] == pair:
            return row
        slot = slot + ONE & mask
        row = int(slots[slot])
    # A new one takes the first row of the list of free ones, else one never used.
    row = int(table.used[FREE])
    if row >= 0:
        table.used[FREE] = table.next_row[row]
    else:
        row = int(table.used[ROWS])
        table.used[ROWS] += 1
    slots[slot] = row
    pairs[row] = pair
    table.heights[row] = table.lowered[key]
    table.next_row[row] = table.first[key]
    table.first[key] = row
    table.counters[key] += 1
    return row


@kernel_part
def free_slot(row: int, table: SketchTable) -> None:
    """Free a row's slot, and move later rows up so that no search ends at it too early.

    A search goes from a pair's own slot (`pair_slot`) to the first free one.
    """
    slots = table.slots
    pairs = table.pairs
    mask = np.uint64(len(slots) - 1)
    hole = pair_slot(pairs[row], table.secret, mask)
    while slots[hole] != row:
        hole = hole + ONE & mask
    slot = hole + ONE & mask
    while slots[slot] >= 0:
        home = pair_slot(pairs[slots[slot]], table.secret, mask)
        # Its search passes the hole if it begins there or before: if this slot is no nearer to the
        # hole than to its own slot, counting on around the end.
        if slot - home & mask >= slot - hole & mask:
            slots[hole] = slots[slot]
            hole = slot
        slot = slot + ONE & mask
    slots[hole] = -1


@kernel_part
def lower_all(key: int, table: SketchTable) -> None:
    """Take one from every counter of a stream key, and drop those at zero."""
    next_row = table.next_row
    table.lowered[key] += 1
    lowered = table.lowered[key]
    before = -1
    row = int(table.first[key])
    while row >= 0:
        after = int(next_row[row])
        if table.heights[row] > lowered:
            before = row
            row = after
            continue
        free_slot(row, table)
        # Out of the key's list, and into that of free rows.
        if before < 0:
            table.first[key] = after
        else:
            next_row[before] = after
        next_row[row] = table.used[FREE]
        table.used[FREE] = row
        table.counters[key] -= 1
        row = after


@kernel
def feed_sets(
    events: Longs, batch: LabeledEvents, max_items: int, size: int, table: SketchTable
) -> None:
    """Feed `events` (k,), in order: the set of each one's first `max_items` labels is one step.

    `events` are places in the batch. The table must have room for all of their labels. A label with
    an amount of 0 is not in the set.
    """
    seen, keys, ends, labels, amounts = batch
    # An empty column means the same value in every row: all seen, all amounts 1.
    weighted = len(amounts) > 0
    all_seen = len(seen) == 0
    for i in events:
        if not all_seen and not seen[i]:
            continue
        key = int(keys[i])
        meet_key(key, table)
        # Labels are distinct, in order of first occurrence: the bound keeps the first ones.
        begin = ends[i - 1] if i else 0
        for k in range(begin, min(ends[i], begin + max_items)):
            if weighted and amounts[k] <= 0:
                continue
            row = counter_of(key, int(labels[k]), table)
            table.heights[row] += 1
            table.changed[key] = True
        # Once for the whole set, however many of its labels are new.
        if table.counters[key] > size:
            lower_all(key, table)


@kernel
def put_counters(
    keys: Codes, counters: Longs, labels: Codes, counts: Longs, table: SketchTable
) -> None:
    """Enter stored counters into a table with room for them that has none of these keys.

    Key i of `keys` (k,), which are distinct, has the next counters[i] of `labels` and `counts`
    (n,).
    """
    place = 0
    for i in range(len(keys)):
        key = int(keys[i])
        meet_key(key, table)
        for _ in range(counters[i]):
            row = counter_of(key, int(labels[place]), table)
            # A key that is new here was never lowered.
            table.heights[row] = counts[place]
            place += 1


@kernel
def take_counters(
    start: int,
    stop: int,
    table: SketchTable,
    counters: Longs,
    pairs: Words,
    counts: Longs,
) -> int:
    """Write the counters of the keys met[start:stop], key by key; return how many they are.

    Writes how many each key has to `counters` (stop - start,), and the pair and the count of each
    counter to `pairs` and `counts`, which must have room for all.
    """
    used = 0
    for place in range(start, stop):
        key = int(table.met[place])
        counters[place - start] = table.counters[key]
        row = int(table.first[key])
        while row >= 0:
            pairs[used] = table.pairs[row]
            counts[used] = table.heights[row] - table.lowered[key]
            used += 1
            row = int(table.next_row[row])
    return used


@kernel
def fill_sketch_slots(table: SketchTable) -> None:
    """Enter all rows in the table's slots; all are free, as the caller has just added slots."""
    mask = np.uint64(len(table.slots) - 1)
    for place in range(table.used[KEYS]):
        row = int(table.first[table.met[place]])
        while row >= 0:
            slot = pair_slot(table.pairs[row], table.secret, mask)
            while table.slots[slot] >= 0:
                slot = slot + ONE & mask
            table.slots[slot] = row
            row = int(table.next_row[row])
