"""Kernels that bound events and tally them by pair of stream key and label.

A *pair* is a uint64: the code of the stream key in the upper 32 bits, that of the label in the
lower 32, or NO_LABEL, all ones, to record the key itself even when its events have no items; so
pair & NO_LABEL is the label. A tally maps pairs to rows in order of first occurrence: by one slot
per possible pair if these are few (slot number: key << `label_bits` | label), else by a hash table
with linear probing, at most half full. A per-process secret keys the hash: events choose the pairs.
"""

from typing import NamedTuple

import numpy as np

from workers.arrays.compiled import kernel, kernel_part, kernel_with_arrays
from workers.arrays.types import Bools, Codes, Longs, Words

KEY_BITS = np.uint64(32)
NO_LABEL = np.uint64((1 << 32) - 1)
ONE = np.uint64(1)


class LabeledEvents(NamedTuple):
    """Events of a batch with their labels, which are distinct in each event."""

    seen: Bools  # (n,); unseen events add nothing, not even their stream key; (0,): all are seen
    keys: Codes  # (n,)
    ends: Longs  # (n,), end of each event's labels
    labels: Codes  # (m,)
    amounts: Longs  # (m,); (0,): all 1


class Table(NamedTuple):
    """Rows of a tally, and the slots that index them. Sensitive."""

    secret: np.uint64  # of the hash
    label_bits: int  # -1: the hash gives a pair's slot
    # The pair's row, -1 where free: one slot per possible pair, or a power of two, at least twice
    # the possible rows.
    slots: Codes
    has_row: Bools  # (codes of keys,), stream keys that have a row of their own
    pairs: Words  # (possible rows,)
    counts: Longs  # (possible rows,)

    def __repr__(self) -> str:
        return "Table(<sensitive>)"


class LabelRows(NamedTuple):
    """The rows of a tally that have a label, by stream key. Sensitive."""

    pairs: Words
    labels: Longs  # the label's code, which its pair has too
    counts: Longs

    def __repr__(self) -> str:
        return "LabelRows(<sensitive>)"


@kernel
def effective_times(
    times: Longs, latest: int, grace: int, watermark: int, out: Longs
) -> int:
    """Write each event's effective time, max(time, watermark), to `out` (n,); return the watermark.

    The watermark never falls; it follows the times, capped at `latest`, `grace` behind them. A late
    event so counts at the watermark. All are in ms.
    """
    # An event's own time may advance the watermark, but never beyond that time.
    for i in range(len(times)):
        watermark = max(watermark, min(times[i], latest) - grace)
        out[i] = max(times[i], watermark)
    return watermark


@kernel
def ticks_of(
    times: Longs, effective: Longs, start: int, width: int, ticks: Longs, begins: Longs
) -> tuple[int, bool]:
    """Write the tick of each event's effective time, which is not before its time.

    Tick 1 starts at `start`, and every tick lasts `width`. Writes `ticks` (n,); 0 if the event's
    own time is before `start`, so that it counts in no tick however late it comes. Writes `begins`:
    the first event, and every event in another tick than the one before it. Returns the number of
    `begins`, and whether ticks never decrease.
    """
    runs = 0
    ascending = True
    # The last tick computed covers first <= time < stop; none at first.
    tick = 0
    first = 0
    stop = 0
    for i in range(len(times)):
        if times[i] < start:
            ticks[i] = 0
        else:
            # Most events share the previous event's tick, which saves the slow division.
            if not first <= effective[i] < stop:
                tick = (effective[i] - start) // width + 1
                first = start + (tick - 1) * width
                stop = first + width
            ticks[i] = tick
        if i == 0 or ticks[i] != ticks[i - 1]:
            begins[runs] = i
            runs += 1
            ascending &= i == 0 or ticks[i] > ticks[i - 1]
    return runs, bool(ascending)


@kernel_part
def pair_slot(pair: np.uint64, secret: np.uint64, mask: np.uint64) -> np.uint64:
    """Return the slot of a hash table, of `mask` + 1 slots, where the search for a pair begins."""
    # Two rounds of multiplying by an odd constant of random bits; the low bits are mixed least.
    mixed = (pair ^ secret) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ mixed >> np.uint64(32)) * np.uint64(0xD6E8FEB86659FD93)
    return mixed >> np.uint64(29) & mask


@kernel_part
def find_or_enter(
    pair: np.uint64, secret: np.uint64, slots: Codes, pairs: Words, used: int
) -> int:
    """Return the row of a pair; an absent one is entered as row `used`, the first unused one.

    The caller then counts one more row. `slots` is at most half full, so the search ends.
    """
    mask = np.uint64(len(slots) - 1)
    slot = pair_slot(pair, secret, mask)
    while True:
        row = int(slots[slot])
        if row < 0:
            slots[slot] = used
            pairs[used] = pair
            return used
        if pairs[row] == pair:
            return row
        slot = slot + ONE & mask


@kernel
def count_events(
    events: Longs,
    batch: LabeledEvents,
    max_items: int,
    max_count: int,
    table: Table,
    used: int,
) -> int:
    """Add each event's first `max_items` labels to a tally, each with at most `max_count`.

    `events` (k,) are places in the batch; the table has `used` rows, and room for all that they may
    add. Returns its new number of rows.
    """
    seen, keys, ends, labels, amounts = batch
    secret, label_bits, slots, has_row, pairs, counts = table
    # An empty column means the same value in every row: all seen, all amounts 1.
    weighted = len(amounts) > 0
    all_seen = len(seen) == 0
    for i in events:
        if not all_seen and not seen[i]:
            continue
        key = np.uint64(keys[i]) << KEY_BITS
        if not has_row[keys[i]]:
            has_row[keys[i]] = True
            pairs[used] = key | NO_LABEL
            counts[used] = 0
            used += 1
        # Labels are in order of first occurrence: the bound keeps the first ones.
        begin = ends[i - 1] if i else 0
        for k in range(begin, min(ends[i], begin + max_items)):
            amount = min(int(amounts[k]), max_count) if weighted else 1
            if amount > 0:
                pair = key | np.uint64(labels[k])
                if label_bits >= 0:
                    slot = np.int64(keys[i]) << label_bits | labels[k]
                    row = int(slots[slot])
                    if row < 0:
                        slots[slot] = row = used
                        pairs[row] = pair
                else:
                    row = find_or_enter(pair, secret, slots, pairs, used)
                if row == used:  # it is new
                    counts[row] = 0
                    used += 1
                counts[row] += amount
    return used


@kernel
def bound_events(
    ends: Longs, amounts: Longs, max_items: int, max_count: int, out: Longs
) -> None:
    """Write the bounded amount of every label, as `count_events` would add it, to `out` (m,)."""
    weighted = len(amounts) > 0
    begin = 0
    for i in range(len(ends)):
        for k in range(begin, ends[i]):
            amount = min(amounts[k], max_count) if weighted else 1
            out[k] = amount if k < begin + max_items else 0
        begin = ends[i]


@kernel
def multiply_numbers(
    ends: Longs, counted: Longs, number_ends: Longs, numbers: Longs, out: Longs
) -> bool:
    """Write what each label of a view of sums adds: its number times how often it counts.

    Args:
        ends: (n,), the end of each event's labels in the view of counts.
        counted: (m,), how often each of these labels counts, after bounding.
        number_ends: (n,), the end of each event's labels in the view of sums: the same labels, or
            none where this view leaves the event out.
        numbers: (k,), of each label in the view of sums, in steps; (0,): all 1.
        out: (k,), written.

    Returns False if an event's labels differ between the views.
    """
    weighted = len(numbers) > 0
    begin = 0
    number_begin = 0
    for i in range(len(ends)):
        labels = number_ends[i] - number_begin
        if labels > 0 and labels != ends[i] - begin:
            return False
        for k in range(labels):
            number = numbers[number_begin + k] if weighted else 1
            out[number_begin + k] = number * counted[begin + k]
        begin = ends[i]
        number_begin = number_ends[i]
    return True


@kernel
def fill_slots(table: Table, used: int) -> None:
    """Enter the label rows among the first `used` rows in the table's slots, which are empty.

    A stream key's own row needs no slot: `has_row` says whether there is one.
    """
    secret, label_bits, slots, _, pairs, _ = table
    mask = np.uint64(len(slots) - 1)
    for row in range(used):
        label = pairs[row] & NO_LABEL
        if label == NO_LABEL:
            continue
        if label_bits >= 0:
            slots[pairs[row] >> KEY_BITS << np.uint64(label_bits) | label] = row
            continue
        slot = pair_slot(pairs[row], secret, mask)
        while slots[slot] >= 0:
            slot = slot + ONE & mask
        slots[slot] = row


@kernel_with_arrays
def group_by_owner(
    table: Table, used: int, owner_of: Codes, owners: int, out: LabelRows
) -> tuple[Codes, Longs, Longs]:
    """Sort a tally's rows by owner partition, within that by stream key.

    Every key has one row with NO_LABEL; the others are written to `out`. Keys of an owner, and
    labels of a key, stay in order of first occurrence; `owner_of` maps key codes to owners. Returns
    the keys' codes by owner, the start of each owner's keys (owners + 1,) and of each key's rows in
    `out` (keys + 1,); the last two end with the total.
    """
    pairs = table.pairs
    codes = len(table.has_row)
    owner_starts = np.zeros(owners + 1, dtype=np.int64)
    row_starts = np.zeros(codes + 1, dtype=np.int64)
    # The place of a key, by code, and the code at a place.
    place_of = np.empty(codes, dtype=np.int32)
    code_at = np.empty(codes, dtype=np.int32)
    # Two counting sorts: counts by group become the groups' starts, and then every entry takes the
    # next place of its group. First keys by owner:
    keys = 0
    for row in range(used):
        if pairs[row] & NO_LABEL == NO_LABEL:
            owner_starts[owner_of[pairs[row] >> KEY_BITS] + 1] += 1
            keys += 1
    for owner in range(1, len(owner_starts)):
        owner_starts[owner] += owner_starts[owner - 1]
    next_places = owner_starts.copy()
    for row in range(used):
        if pairs[row] & NO_LABEL == NO_LABEL:
            code = pairs[row] >> KEY_BITS
            owner = owner_of[code]
            place_of[code] = next_places[owner]
            code_at[place_of[code]] = code
            next_places[owner] += 1
    # Then label rows by key.
    for row in range(used):
        if pairs[row] & NO_LABEL != NO_LABEL:
            row_starts[place_of[pairs[row] >> KEY_BITS] + 1] += 1
    for key in range(1, keys + 1):
        row_starts[key] += row_starts[key - 1]
    next_places = row_starts.copy()
    for row in range(used):
        label = pairs[row] & NO_LABEL
        if label != NO_LABEL:
            key = place_of[pairs[row] >> KEY_BITS]
            place = next_places[key]
            out.pairs[place] = pairs[row]
            out.labels[place] = label
            out.counts[place] = table.counts[row]
            next_places[key] += 1
    return code_at[:keys], owner_starts, row_starts[: keys + 1]
