"""Loops over text columns: the texts end to end in `text`, where each ends in `ends`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workers.kernels.compiled import kernel
from workers.kernels.words import ONES, WORD, first_marked, put_word, word_at

# Of an item in JSON, behind its label: the longest int64, a bracket and a comma.
ITEM_BYTES = 20 + 2
# Of the largest int64.
_DIGITS = 19
_NEWLINE = 10
_NEWLINES = np.uint64(_NEWLINE) * ONES
_LOWER_BITS = np.uint64(0x7F) * ONES


@kernel
def taken_ends(ends: NDArray[np.int64], rows: NDArray[np.int64], taken: NDArray[np.int64]) -> int:
    """Say where each of the chosen texts ends once they lie end to end.

    Args:
        ends: (n,), where each text ends.
        rows: (m,), which texts, each from 0 to n - 1.
        taken: (m,), the result.

    Returns:
        The bytes of the chosen texts, or -1 where a row is none of the n.
    """
    at = 0
    for i in range(len(rows)):
        row = rows[i]
        if row < 0 or row >= len(ends):
            return -1
        at += ends[row] - (ends[row - 1] if row else 0)
        taken[i] = at
    return at


@kernel
def take_text(
    text: NDArray[np.uint8],
    ends: NDArray[np.int64],
    rows: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> None:
    """Copy the chosen texts, end to end; of eight bytes and more eight at a time, and the last
    eight of them at the end.

    Args:
        text: (bytes,), of all texts.
        ends: (n,), where each text ends.
        rows: (m,), which texts: those that `taken_ends` accepted.
        out: the result, with room for them.
    """
    at = 0
    for i in range(len(rows)):
        row = rows[i]
        start = ends[row - 1] if row else 0
        length = ends[row] - start
        if length >= WORD:
            for place in range(0, length - WORD, WORD):
                put_word(out, at + place, word_at(text, start + place))
            put_word(out, at + length - WORD, word_at(text, start + length - WORD))
        else:
            for place in range(length):
                out[at + place] = text[start + place]
        at += length


@kernel
def items_as_json(
    text: NDArray[np.uint8],
    begins: NDArray[np.int64],
    lengths: NDArray[np.int16],
    rows: NDArray[np.int64],
    counts: NDArray[np.int64],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> None:
    """Write lists of items as JSON, end to end: [["a",3],["b",-1]], one list after the other.

    Labels are copied eight bytes at a time, and what is written beyond one is overwritten (18 ns an
    item, byte by byte 45).

    Args:
        text: what stands before the count of each row, ["a", with its bracket and comma; and
            `WORD` bytes more.
        begins, lengths: (rows,), where each row's begins in `text`, and its bytes.
        rows, counts: (n,), the items.
        starts: (k + 1,), where the items of each list begin.
        ends: (k,), the result: where each list ends in `out`.
        out: the result, with room for 2 bytes a list, ITEM_BYTES and its text an item, and `WORD`
            bytes more.
    """
    ten = np.uint64(10)
    at = 0
    for i in range(len(ends)):
        out[at] = 91  # [
        at += 1
        for k in range(starts[i], starts[i + 1]):
            begin, length = begins[rows[k]], lengths[rows[k]]
            for place in range(0, length, WORD):
                put_word(out, at + place, word_at(text, begin + place))
            at += length
            if counts[k] < 0:
                out[at] = 45  # -
                at += 1
            left = np.uint64(abs(counts[k]))
            digits, power = 1, ten
            while left >= power and digits < _DIGITS:
                power *= ten
                digits += 1
            for place in range(at + digits - 1, at - 1, -1):
                out[place] = np.uint8(48 + left % ten)
                left //= ten
            at += digits
            out[at] = 93  # ]
            out[at + 1] = 44  # ,
            at += 2
        if starts[i] < starts[i + 1]:
            at -= 1  # no comma behind the last one
        out[at] = 93
        at += 1
        ends[i] = at


@kernel
def find_lines(data: NDArray[np.uint8], places: NDArray[np.int64]) -> int:
    """Find the lines of a text, each up to its newline: eight bytes at a time.

    Args:
        data: (n,), the text.
        places: (room, 2), the result: where each line starts and stops, as far as there is room.

    Returns:
        How many lines there are.
    """
    n, found, start = len(data), 0, 0
    whole = n - n % WORD
    for at in range(0, whole, WORD):
        # The highest bit of each byte that is a newline, and of no other.
        other = word_at(data, at) ^ _NEWLINES
        marks = ~((other & _LOWER_BITS) + _LOWER_BITS | other | _LOWER_BITS)
        while marks != 0:
            stop = at + first_marked(marks)
            if found < len(places):
                places[found, 0] = start
                places[found, 1] = stop
            found += 1
            start = stop + 1
            marks &= marks - np.uint64(1)
    for at in range(whole, n):
        if data[at] == _NEWLINE:
            if found < len(places):
                places[found, 0] = start
                places[found, 1] = at
            found += 1
            start = at + 1
    return found
