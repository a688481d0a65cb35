"""Loops over normal numbers: words in, numbers or rounded sums out; see `normal`.

Imported where noise is drawn alone: most commands need no compiler.
"""

import numpy as np

from workers.arrays.compiled import kernel, kernel_inline
from workers.arrays.types import Floats, Longs, Words
from workers.mechanisms.noise.normal import (
    CENTER,
    DEGREE,
    FINE_LEAST,
    LEAST_BITS,
    PART_BITS,
    ROUGH_LEAST,
    Numbers,
)

_REST_BITS = 52 - PART_BITS
_FIRST_PART = (1023 + LEAST_BITS) << PART_BITS
_ONE = np.uint64(1)
_SIGN_SHIFT = np.uint64(63)
_GROUP_ROWS = 64
_NONE = np.uint64(0)
_ROUGH_BITS = np.uint64(ROUGH_LEAST.bit_length())
_ROUGH_LEAST = np.uint64(2 * ROUGH_LEAST)
_FINE_LEAST = np.uint64(2 * FINE_LEAST)


@kernel_inline
def rough(word: np.uint64, table: Floats) -> float:
    """Return z within `ROUGH_ERROR`, from the first terms of its polynomial."""
    # No mask and no branch: LLVM's code for a mask waits for the number before (14 ns), and a
    # branch on a random sign is mispredicted half the time.
    v = np.float64(np.int64(word >> _ONE))
    row = (v.view(np.int64) >> _REST_BITS) - _FIRST_PART
    x = v - table[row, CENTER]
    z = table[row, 3]
    z = z * x + table[row, 2]
    z = z * x + table[row, 1]
    z = z * x + table[row, 0]
    return np.uint64(np.float64(z).view(np.uint64) ^ (word << _SIGN_SHIFT)).view(
        np.float64
    )


@kernel_inline
def fine(word: np.uint64, table: Floats) -> float:
    """Return z within `FINE_ERROR`."""
    v = np.float64(np.int64(word >> _ONE))
    row = (v.view(np.int64) >> _REST_BITS) - _FIRST_PART
    x = v - table[row, CENTER]
    z = table[row, DEGREE]
    for n in range(DEGREE - 1, -1, -1):
        z = z * x + table[row, n]
    return np.uint64(np.float64(z).view(np.uint64) ^ (word << _SIGN_SHIFT)).view(
        np.float64
    )


@kernel
def raise_small(words: Words, found: Longs) -> int:
    """Raise words (n, 2) too small for `rough`; return how many rows, listed in `found`."""
    flat = words.reshape(-1)
    small = 0
    for i in range(len(flat)):  # vectorized
        small += int(flat[i] >> _ROUGH_BITS == _NONE)
    if small == 0:
        return 0
    small = 0
    for i in range(len(words)):
        if min(words[i, 0], words[i, 1]) < _ROUGH_LEAST:
            words[i, 0] |= _ROUGH_LEAST
            words[i, 1] |= _ROUGH_LEAST
            found[small] = i
            small += 1
    return small


@kernel
def add_fine(
    words: Words, halves: Longs, factors: Floats, table: Floats, out: Floats
) -> None:
    """Add factors[k] z of words[k, :, halves[k]] to `out` (n,); NaN where v is too small."""
    for k in range(len(factors)):
        for i in range(len(out)):
            word = words[k, i, halves[k]]
            if word < _FINE_LEAST:
                out[i] = np.nan
            else:
                out[i] += factors[k] * fine(word, table)


@kernel
def decide(
    values: Numbers, point: int, error: int, out: Longs, open_rows: Longs
) -> int:
    """Round numbers in units of 2^-point, off by at most `error` units: floor(x + 1/2) to `out`.

    Return how many are not decided, listed in `open_rows` (one longer than `out`).
    """
    found = 0
    half = (1 << point) >> 1
    mask = (1 << point) - 1
    for first in range(0, len(out), _GROUP_ROWS):
        last = min(first + _GROUP_ROWS, len(out))
        close = 0
        for i in range(first, last):  # vectorized
            value = np.int64(values[i]) + half
            out[i] = value >> point
            close += int(((value + error) & mask) <= 2 * error)
        for i in range(first, last if close else first):
            open_rows[found] = i
            found += int(((np.int64(values[i]) + half + error) & mask) <= 2 * error)
    return found


@kernel
def add_rough(
    words: Words, half: int, scale: float, table: Floats, out: Numbers
) -> None:
    """Add scale z, an integer, of words (n, 2) to `out` (n,)."""
    for i in range(len(out)):
        out[i] = out[i] + np.int64(rough(words[i, half], table) * scale)
