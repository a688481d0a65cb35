"""Kernels over columns of numbers with an element per row, most often a row of the ledger.

A *row* is an item of a stream key. Its *noisy count* is its exact count plus noise; it is *shown*
if a snapshot has it: once a noisy count was above the threshold, or because all rows are. Noise is
drawn by inversion: a random word's place among ascending thresholds. `pack` and `pack_blocks` store
columns with the fewest bytes per number, 2^w with the width code w from 0 to 3.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.arrays.compiled import kernel
from workers.arrays.types import Bools, Bytes, Codes, Longs, Words

Noise = NDArray[np.int16] | Codes
Ticks = Codes | Longs

# Rows that are looked at together: groups without anything to do are skipped.
GROUP_ROWS = 64
# Head of a block: version, width, rows.
HEAD_BYTES = 4
_WIDTHS: tuple[np.dtype[Any], ...] = tuple(
    np.dtype(f"<u{size}") for size in (1, 2, 4, 8)
)


def pack(column: NDArray[Any]) -> tuple[int, bytes]:
    """Return a column of integers from 0 to 2^64 - 1 as (width code, bytes)."""
    largest = int(column.max(initial=0))
    code = next(i for i, kind in enumerate(_WIDTHS) if largest < 1 << 8 * kind.itemsize)
    return code, column.astype(_WIDTHS[code]).tobytes()


def unpack(code: int, data: bytes, *, count: int = -1, offset: int = 0) -> NDArray[Any]:
    """Return `count` numbers (-1: all) of the width `code` that begin at byte `offset` of data."""
    return np.frombuffer(data, dtype=_WIDTHS[code], count=count, offset=offset)


@kernel
def xor(tags: Words, cells: Words, out: Words) -> None:
    """Write tag xor cell, of every tag (n, 2) for every cell (k, 2), to `out` (k n, 2), by cell.

    `mechanisms.noise.keyed` turns each into a random word with AES. A tag is an item's digest; a
    cell says which of the item's noise values is drawn, such as that of a block of ticks.
    """
    n = len(tags)
    for j in range(len(cells)):
        upper = cells[j, 0]
        lower = cells[j, 1]
        for i in range(n):
            out[j * n + i, 0] = tags[i, 0] ^ upper
            out[j * n + i, 1] = tags[i, 1] ^ lower


@kernel
def look_up(
    guide: Noise,
    shift: np.uint64,
    open_mark: int,
    high: Words,
    low: Words,
    lowest: int,
    words: Words,
    out: Noise,
) -> None:
    """Draw noise by inversion: write the noise of each random 128-bit word to `out` (n,).

    It is `lowest` plus the number of thresholds at or below the word. `high` and `low` (k,) are the
    halves of the ascending thresholds; `words` (n, 2) have the upper half first. `guide` has the
    noise by a word's uppermost bits (upper half >> `shift`), or `open_mark` where they do not
    decide it.
    """
    # The guide decides nearly all words; the others lie near a threshold and need a binary search.
    for i in range(len(words)):
        value = guide[words[i, 0] >> shift]
        if value == open_mark:
            first = 0
            last = len(high)
            while first < last:
                middle = (first + last) >> 1
                equal = high[middle] == words[i, 0]
                if high[middle] < words[i, 0] or (equal and low[middle] <= words[i, 1]):
                    first = middle + 1
                else:
                    last = middle
            value = lowest + first
        out[i] = value


@kernel
def find_shown(
    counts: Longs,
    noise: Longs,
    shown: Ticks,
    threshold: int,
    discovers: bool,
    new: Longs,
    rows: Longs,
    noisy: Longs,
) -> tuple[int, int]:
    """Find the rows that a tick newly shows, and all that it shows, with their noisy counts.

    `shown` (n,) has the tick since which a row is shown, 0 for a hidden one; if `discovers`, a
    noisy count above `threshold` shows its row from now on. Writes ascending rows to `new` and
    `rows`, and the noisy counts of `rows` to `noisy`, each with room for n; returns the lengths of
    `new` and `rows`.
    """
    # Skipping groups without such rows, most of a large ledger, halves the time.
    newly_shown = 0
    all_shown = 0
    for begin in range(0, len(counts), GROUP_ROWS):
        stop = min(begin + GROUP_ROWS, len(counts))
        found = 0
        for row in range(begin, stop):  # vectorized
            found += (shown[row] != 0) | (
                discovers & (counts[row] + noise[row] > threshold)
            )
        if found == 0:
            continue
        # Every row is written, and overwritten by the next one unless the end advances: no branch
        # to guess.
        for row in range(begin, stop):
            count = counts[row] + noise[row]
            was_shown = shown[row] != 0
            is_new = discovers and not was_shown and count > threshold
            new[newly_shown] = row
            newly_shown += is_new
            rows[all_shown] = row
            noisy[all_shown] = count
            all_shown += was_shown or is_new
    return newly_shown, all_shown


@kernel
def find_printed(
    counts: Longs,
    noise: Longs,
    thresholds: Longs,
    since: Longs,
    shown: Ticks,
    left: Longs,
    last: Longs,
    rested: int,
    remembered: int,
    passed: Longs,
    new: Longs,
    rows: Longs,
    noisy: Longs,
) -> tuple[int, int, int]:
    """Find the rows that a tick of sliding windows newly shows, and all that it shows (prints).

    Unlike in `find_shown`, a shown row may be hidden again, and then has to rest before it is shown
    again. Windows count the same rows over different lengths of time, and show a row together. A
    hidden row is shown if in some window its noisy count is above the window's threshold, and its
    last event is after the window's tick in `since`; but not while it rests.

    Args:
        counts: (windows, n or more), exact counts.
        noise: (windows, n).
        thresholds, since: (windows,).
        shown: (n,), the tick since which a row is shown, 0 for a hidden one.
        left: (n,), the tick at which a row was last hidden again; 0: it never was.
        last: (n,), the tick of a row's last event.
        rested: a tick above 0: rows that left at it or later rest still.
        remembered: rows without an event after this tick can be forgotten, unless shown or at rest.
        passed: scratch for `GROUP_ROWS` rows.
        new, rows: (n,), written: newly shown rows and all shown ones, ascending.
        noisy: (windows, n), written: the noisy counts of `rows`.

    Returns the lengths of `new` and `rows`, and how many rows cannot be forgotten.
    """
    # A group's columns are read once, and all windows are tested while they are in the cache.
    newly_shown = 0
    all_shown = 0
    not_forgotten = 0
    for begin in range(0, len(shown), GROUP_ROWS):
        stop = min(begin + GROUP_ROWS, len(shown))
        for row in range(begin, stop):
            passed[row - begin] = 0
        for i in range(len(thresholds)):
            threshold = thresholds[i]
            event_after = since[i]
            # Integers: with booleans it is not vectorized, and takes twice as long.
            for row in range(begin, stop):
                passed[row - begin] |= int(
                    (counts[i, row] + noise[i, row] > threshold)
                    & (last[row] > event_after)
                )
        found = 0
        for row in range(begin, stop):  # vectorized
            found += (shown[row] != 0) | passed[row - begin]
            not_forgotten += (
                (shown[row] != 0) | (left[row] >= rested) | (last[row] > remembered)
            )
        if found == 0:
            continue
        # As in `find_shown`: kept only where the end advances.
        for row in range(begin, stop):
            was_shown = shown[row] != 0
            is_new = passed[row - begin] and not was_shown and left[row] < rested
            new[newly_shown] = row
            newly_shown += is_new
            rows[all_shown] = row
            all_shown += was_shown or is_new
    for i in range(len(thresholds)):
        for k in range(all_shown):
            noisy[i, k] = counts[i, rows[k]] + noise[i, rows[k]]
    return newly_shown, all_shown, not_forgotten


@kernel
def take_counts(counts: Longs, rows: Longs, taken: Longs) -> int:
    """Move the counts (n,) that are not 0 to `taken`, and write their rows; return how many.

    `rows` and `taken` (n,) are written from their beginning, by ascending row; `counts` become 0.
    """
    found = 0
    for begin in range(0, len(counts), GROUP_ROWS):
        stop = min(begin + GROUP_ROWS, len(counts))
        bits = 0
        for row in range(begin, stop):  # vectorized
            bits |= counts[row]
        if bits == 0:
            continue
        # Every row is written, and kept only where `found` advances.
        for row in range(begin, stop):
            count = counts[row]
            counts[row] = 0
            rows[found] = row
            taken[found] = count
            found += count != 0
    return found


@kernel
def add_at_rows(totals: Longs, rows: Longs, numbers: Longs, sign: int) -> None:
    """Add `sign` times the numbers (m,) to the totals of `rows` (m,)."""
    for i in range(len(rows)):
        totals[rows[i]] += sign * numbers[i]


@kernel
def add_by_key(keys: Codes, counts: Longs, totals: Longs) -> None:
    """Add each of the counts (n,) to the total of its stream key: `keys` (n,) index `totals`."""
    for row in range(len(keys)):
        totals[keys[row]] += counts[row]


@kernel
def mark_blocks(rows: Longs, block_bits: int, blocks: Bools) -> None:
    """Mark the blocks, of 2^block_bits rows each, that contain any of `rows`."""
    for i in range(len(rows)):
        blocks[rows[i] >> block_bits] = True


@kernel
def pack_blocks(
    column: Longs | Codes,
    blocks: Longs,
    block_rows: int,
    version: int,
    ends: Longs,
    packed: Bytes,
) -> None:
    """Write `blocks` (m,) of a column of numbers >= 0 end to end, each as narrow as it fits.

    Block b has the rows from b * block_rows on, at most block_rows < 2^16 and at least one. It
    begins with a head of four bytes: `version`, width code, and number of rows (2); then its
    numbers follow, all little-endian. Writes each block's end to `ends` (m,); `packed` has room for
    a head per block and 8 bytes per row.
    """
    position = 0
    for i in range(len(blocks)):
        first = blocks[i] * block_rows
        stop = min(first + block_rows, len(column))
        largest = 0
        for row in range(first, stop):
            largest = max(largest, column[row])
        width = 0
        while width < 3 and largest >> (8 << width):
            width += 1
        packed[position] = version
        packed[position + 1] = width
        packed[position + 2] = (stop - first) & 255
        packed[position + 3] = (stop - first) >> 8
        position += HEAD_BYTES
        if width == 0:  # most blocks; vectorized
            for row in range(first, stop):
                packed[position + row - first] = column[row]
            position += stop - first
        else:
            for row in range(first, stop):
                number = column[row]
                for _ in range(1 << width):
                    packed[position] = number & 255
                    number >>= 8
                    position += 1
        ends[i] = position
