"""Columns of numbers: noise lookup, threshold tests, and blocks as bytes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.arrays.compiled import kernel
from workers.arrays.types import Bools, Bytes, Codes, Longs, Words

Narrow = NDArray[np.int16] | Codes
Sums = Codes | Longs

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
    return np.frombuffer(data, dtype=_WIDTHS[code], count=count, offset=offset)


@kernel
def xor(words: Words, others: Words, out: Words) -> None:
    """Write all words (n, 2) xor each of `others` (k, 2) to `out` (k n, 2), by rows of `others`.

    Words are item tags and `others` cells: the results are what AES makes noise of.
    """
    n = len(words)
    for j in range(len(others)):
        upper = others[j, 0]
        lower = others[j, 1]
        for i in range(n):
            out[j * n + i, 0] = words[i, 0] ^ upper
            out[j * n + i, 1] = words[i, 1] ^ lower


@kernel
def look_up(
    guide: Narrow,
    shift: np.uint64,
    open_mark: int,
    high: Words,
    low: Words,
    lowest: int,
    words: Words,
    out: Narrow,
) -> None:
    """Write `lowest` plus the number of thresholds at or below each 128-bit word to `out` (n,).

    `guide` has the value at a word's upper half >> `shift`, or `open_mark` where these bits do not
    decide it. `high` and `low` (k,) are the halves of the ascending thresholds; `words` (n, 2)
    have the upper half first.
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
    shown: Sums,
    threshold: int,
    discovers: bool,
    new: Longs,
    rows: Longs,
    noisy: Longs,
) -> tuple[int, int]:
    """Find the rows that a tick newly shows, and all that it shows, with their noisy counts.

    `shown` (n,) is 0 for rows not shown before; if `discovers`, a noisy count above `threshold`
    shows its row from now on. Writes ascending rows to `new` and `rows`, and the noisy counts of
    `rows` to `noisy`; returns the lengths of `new` and `rows`.
    """
    # Skipping groups without such rows, most of a large ledger, halves the time.
    fresh = 0
    written = 0
    for begin in range(0, len(counts), GROUP_ROWS):
        stop = min(begin + GROUP_ROWS, len(counts))
        found = 0
        for row in range(begin, stop):  # vectorized
            found += (shown[row] != 0) | (
                discovers & (counts[row] + noise[row] > threshold)
            )
        if found == 0:
            continue
        # Written at each row, and kept by advancing only where the row counts: no branch to guess.
        for row in range(begin, stop):
            count = counts[row] + noise[row]
            before = shown[row] != 0
            first = discovers and not before and count > threshold
            new[fresh] = row
            fresh += first
            rows[written] = row
            noisy[written] = count
            written += before or first
    return fresh, written


@kernel
def find_printed(
    counts: Longs,
    noise: Longs,
    thresholds: Longs,
    since: Longs,
    shown: Sums,
    left: Longs,
    last: Longs,
    rested: int,
    remembered: int,
    passed: Longs,
    new: Longs,
    rows: Longs,
    noisy: Longs,
) -> tuple[int, int, int]:
    """Find the rows that a tick of windows without epochs newly shows, and all that it shows.

    A hidden row is shown if some window has a noisy count above its threshold, and its last event
    is after that window's tick in `since`.

    Args:
        counts: (windows, n or more), exact counts.
        noise: (windows, n).
        thresholds, since: (windows,).
        shown: (n,), 0 for rows not shown before.
        left: (n,), the tick at which a row was last hidden again; 0: never.
        last: (n,), the tick of a row's last event.
        rested: a tick above 0: rows hidden then or later rest, and are not shown again yet.
        remembered: rows without an event after this tick can be forgotten, unless shown or at rest.
        passed: scratch for `GROUP_ROWS` rows.
        new, rows: (n,), written: newly shown rows and all shown ones, ascending.
        noisy: (windows, n), written: the noisy counts of `rows`.

    Returns the lengths of `new` and `rows`, and how many rows cannot be forgotten.
    """
    # A group's columns are read once, and all windows are tested while they are in the cache.
    fresh = 0
    written = 0
    alive = 0
    for begin in range(0, len(shown), GROUP_ROWS):
        stop = min(begin + GROUP_ROWS, len(shown))
        for row in range(begin, stop):
            passed[row - begin] = 0
        for i in range(len(thresholds)):
            threshold = thresholds[i]
            after = since[i]
            # Integers: with booleans it is not vectorized, and takes twice as long.
            for row in range(begin, stop):
                passed[row - begin] |= int(
                    (counts[i, row] + noise[i, row] > threshold) & (last[row] > after)
                )
        found = 0
        for row in range(begin, stop):  # vectorized
            found += (shown[row] != 0) | passed[row - begin]
            alive += (
                (shown[row] != 0) | (left[row] >= rested) | (last[row] > remembered)
            )
        if found == 0:
            continue
        for row in range(begin, stop):
            before = shown[row] != 0
            first = passed[row - begin] and not before and left[row] < rested
            new[fresh] = row
            fresh += first
            rows[written] = row
            written += before or first
    for i in range(len(thresholds)):
        for k in range(written):
            noisy[i, k] = counts[i, rows[k]] + noise[i, rows[k]]
    return fresh, written, alive


@kernel
def take_counts(counts: Longs, rows: Longs, taken: Longs) -> int:
    """Move the counts (n,) that are not 0 to `taken`, and write their rows; return how many.

    `rows` and `taken` (n,) are written from their beginning, by ascending row; `counts` become 0.
    """
    found = 0
    for begin in range(0, len(counts), GROUP_ROWS):
        stop = min(begin + GROUP_ROWS, len(counts))
        some = 0
        for row in range(begin, stop):  # vectorized
            some |= counts[row]
        if some == 0:
            continue
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
    """Add the counts (n,) of each stream key to `totals` (keys,)."""
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
    """Concatenate `blocks` (m,) of a column of numbers >= 0, little-endian, each as narrow as fits.

    The head of a block has bytes for version (1), width (1: 0 to 3 for numbers of 1, 2, 4 or 8
    bytes) and rows (2). Block b begins at row b * block_rows and is not empty; block_rows < 2^16.
    Writes each block's end to `ends` (m,); `packed` has room for a head per block, 8 bytes per row.
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
