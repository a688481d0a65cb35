"""Eight bytes of a text at a time, as one unsigned number; the first byte is the lowest.

A word's marks are its matching bytes' highest bits. Bytes after the first match may be marked too,
so only the first mark counts. Positions are checked against the array's end only.
"""

import numpy as np

from workers.arrays.compiled import kernel_inline
from workers.arrays.types import Bytes

WORD = 8
# A byte repeated eight times: 1, the highest bit, and characters.
ONES = np.uint64(0x0101010101010101)
HIGHEST = np.uint64(0x8080808080808080)
QUOTES = np.uint64(0x2222222222222222)
BACKSLASHES = np.uint64(0x5C5C5C5C5C5C5C5C)
SPACES = np.uint64(0x2020202020202020)
ZEROS = np.uint64(0x3030303030303030)
# Added to a byte, makes 128 or more of all but 0 to 9.
BEYOND_NINE = np.uint64(0x7676767676767676)
TEN = np.uint64(10)
# Digits of the largest int64, and the bytes of the longest one.
DIGITS_MAX = 19
WRITTEN_MAX = 20
# Times one in byte k, its highest byte is k.
PLACES = np.uint64(0x0001020304050607)


@kernel_inline
def word_at(data: Bytes, pos: int) -> np.uint64:
    """Return data[pos : pos + 8] as a little-endian number; compiled, it is one load."""
    # With an unsigned index, LLVM merges the eight reads into one load.
    first = np.uint64(pos)
    word = np.uint64(0)
    for place in range(WORD):
        word |= np.uint64(data[first + np.uint64(place)]) << np.uint64(8 * place)
    return word


@kernel_inline
def put_word(out: Bytes, pos: int, word: np.uint64) -> None:
    """Write a number as eight bytes, little-endian, from out[pos] on; compiled, it is one store."""
    first = np.uint64(pos)
    for place in range(WORD):
        out[first + np.uint64(place)] = np.uint8(word >> np.uint64(8 * place))


@kernel_inline
def first_marked(marks: np.uint64) -> int:
    """Return the index of a word's first marked byte; one must be marked."""
    # Only the lowest bit that is set: x & -x.
    lowest = marks & (~marks + np.uint64(1))
    # Shifted from bit 8 k + 7 to 8 k, it is 2^(8 k); PLACES times that has k in its highest byte.
    return int(np.int64(((lowest >> np.uint64(7)) * PLACES) >> np.uint64(56)))


@kernel_inline
def not_plain(word: np.uint64) -> np.uint64:
    """Mark quotes, backslashes, control characters and bytes beyond ASCII.

    Subtracting 1 borrows from a byte that is 0, a quote's or backslash's after the xor, and so sets
    its highest bit; subtracting a space does so for control characters.
    """
    quotes = word ^ QUOTES
    backslashes = word ^ BACKSLASHES
    return ((quotes - ONES) | (backslashes - ONES) | (word - SPACES) | word) & HIGHEST


@kernel_inline
def past_plain(data: Bytes, pos: int, stop: int) -> int:
    """Return where plain ASCII from `pos` ends, at most `stop`.

    It reads whole words, so near the end of `data` it stops up to seven bytes early: the caller
    looks at those one by one. A negative `pos`, of a wrong index, is returned.
    """
    last = len(data) - WORD
    if pos < 0:
        return pos
    while pos < stop and pos <= last:
        marks = not_plain(word_at(data, pos))
        if marks != 0:
            return min(pos + first_marked(marks), stop)
        pos += WORD
    return min(pos, stop)


@kernel_inline
def past_digits(data: Bytes, position: int, stop: int) -> int:
    """Return where digits from `position` end, at most `stop`.

    It reads whole words, so near the end of `data` it stops up to seven bytes early: the caller
    looks at those one by one. A negative `position`, of a wrong index, is returned.
    """
    last = len(data) - WORD
    if position < 0:
        return position
    while position < stop and position <= last:
        digits = word_at(data, position) ^ ZEROS
        marks = (digits | (digits + BEYOND_NINE)) & HIGHEST
        if marks != 0:
            return min(position + first_marked(marks), stop)
        position += WORD
    return min(position, stop)


@kernel_inline
def digits_at(data: Bytes, pos: int, number: int) -> int:
    """Return the value of `number` digits, 1 to 8, at `pos`; eight bytes there must be readable."""
    # Bytes after the digits are shifted out; zeros take their place in front.
    digits = (word_at(data, pos) ^ ZEROS) << np.uint64(8 * (WORD - number))
    # Join neighbours to numbers of two, four and eight digits, each in the lower half of its bytes.
    # The first digit is in the lowest byte: ten times that, plus the next one, which moves down.
    pairs = (digits * np.uint64(10) + (digits >> np.uint64(8))) & np.uint64(
        0x00FF00FF00FF00FF
    )
    fours = (pairs * np.uint64(100) + (pairs >> np.uint64(16))) & np.uint64(
        0x0000FFFF0000FFFF
    )
    eight = (fours * np.uint64(10_000) + (fours >> np.uint64(32))) & np.uint64(
        0xFFFFFFFF
    )
    return int(np.int64(eight))


@kernel_inline
def write_integer(out: Bytes, pos: int, number: int) -> int:
    """Write an int64 in decimal from out[pos] on; return its end, at most WRITTEN_MAX further."""
    if number < 0:
        out[pos] = 45  # -
        pos += 1
    # Unsigned: the least int64 has no positive counterpart.
    left = np.uint64(abs(number))
    # Counted up to DIGITS_MAX: one more power of ten would overflow.
    digits = 1
    power = TEN
    while left >= power and digits < DIGITS_MAX:
        power *= TEN
        digits += 1
    for place in range(pos + digits - 1, pos - 1, -1):
        out[place] = np.uint8(48 + left % TEN)
        left //= TEN
    return pos + digits


@kernel_inline
def same_bytes(
    data: Bytes, start: int, compared: Bytes, begin: int, length: int
) -> bool:
    """Return whether two texts of `length` bytes are equal; both lie within their arrays."""
    while length >= WORD:
        if word_at(data, start) != word_at(compared, begin):
            return False
        start += WORD
        begin += WORD
        length -= WORD
    if length <= 0:
        return True
    if start + WORD <= len(data) and begin + WORD <= len(compared):
        # Bytes after the texts are shifted out.
        behind = np.uint64(8 * (WORD - length))
        return bool(((word_at(data, start) ^ word_at(compared, begin)) << behind) == 0)
    same = 0
    while (
        same < length
        and data[np.uint64(start + same)] == compared[np.uint64(begin + same)]
    ):
        same += 1
    return same == length
