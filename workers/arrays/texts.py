"""Columns of texts, which hold the labels of both stages without an object per label.

A column is one buffer of bytes with all texts end to end, and where each of them ends. The kernels
copy eight bytes at a time (`words`), write lists of labels and counts as JSON, and find lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.arrays.compiled import kernel, kernel_part
from workers.arrays.types import Bytes, Codes, Longs
from workers.arrays.words import (
    ONES,
    WORD,
    WRITTEN_MAX,
    first_marked,
    put_word,
    word_at,
    write_integer,
)


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """Read-only column of texts: concatenated bytes, and the ascending ends of the texts in them.

    Raises ValueError if the last end is not that of the bytes.
    """

    text: Bytes
    ends: Longs

    def __post_init__(self) -> None:
        """Check that the texts end with the bytes, and make both arrays read-only."""
        last = int(self.ends[-1]) if len(self.ends) else 0
        if last != len(self.text):
            raise ValueError(
                f"ends: {len(self.ends)} texts end at {last} of {len(self.text)} bytes"
            )
        object.__setattr__(self, "text", readonly_contiguous(self.text))
        object.__setattr__(self, "ends", readonly_contiguous(self.ends))

    @classmethod
    def of(cls, texts: Iterable[bytes]) -> Texts:
        texts = list(texts)
        lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
        return cls.from_lengths(b"".join(texts), lengths)

    @classmethod
    def from_lengths(cls, text: bytes, lengths: NDArray[Any]) -> Texts:
        """Return a column over `text`, without a copy, given its texts' lengths (n,)."""
        return cls(
            np.frombuffer(text, dtype=np.uint8), np.cumsum(lengths, dtype=np.int64)
        )

    @classmethod
    def concat(cls, columns: Sequence[Texts]) -> Texts:
        if len(columns) == 1:
            return columns[0]
        if not columns:
            return NO_TEXTS
        starts = np.cumsum([0, *(len(column.text) for column in columns[:-1])])
        ends = [
            column.ends + start
            for column, start in zip(columns, starts.tolist(), strict=True)
        ]
        return cls(
            np.concatenate([column.text for column in columns]), np.concatenate(ends)
        )

    def __repr__(self) -> str:
        return f"Texts({len(self.ends)})"

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, row: int) -> bytes:
        n = len(self.ends)
        if not -n <= row < n:
            raise IndexError(f"text {row} of {n}")
        row %= n
        start = int(self.ends[row - 1]) if row else 0
        return self.text[start : int(self.ends[row])].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        whole = self.text.tobytes()
        return (whole[start:end] for start, end in pairwise((0, *self.ends.tolist())))

    @property
    def lengths(self) -> Longs:
        lengths = self.ends.copy()
        lengths[1:] -= self.ends[:-1]
        return lengths

    def part(self, start: int, stop: int) -> Texts:
        """Return the texts start..stop - 1, without a copy of their bytes."""
        ends = self.ends[start:stop]
        before = int(self.ends[start - 1]) if 0 < start <= len(self.ends) else 0
        return Texts(
            self.text[before : int(ends[-1]) if len(ends) else before], ends - before
        )

    def take(self, rows: NDArray[Any]) -> Texts:
        """Return the texts of `rows` (m,), in that order; raise IndexError for a wrong row."""
        rows = readonly_contiguous(np.ascontiguousarray(rows, dtype=np.int64))
        ends = np.empty(len(rows), dtype=np.int64)
        size = gather_ends(self.ends, rows, ends)
        if size < 0:
            raise IndexError(f"rows: one of them is not below {len(self)}")
        text = np.empty(size, dtype=np.uint8)
        gather_text(self.text, self.ends, rows, text)
        return Texts(text, ends)


def readonly_contiguous(array: NDArray[Any]) -> NDArray[Any]:
    """Return a contiguous, read-only view or copy: kernels are compiled for such arguments only."""
    flags = array.flags
    if flags.c_contiguous and not flags.writeable:
        return array
    view = np.ascontiguousarray(array).view()
    view.setflags(write=False)
    return view


NO_TEXTS = Texts(np.empty(0, dtype=np.uint8), np.empty(0, dtype=np.int64))


# Of a JSON item after its label: the longest int64, a bracket and a comma.
ITEM_BYTES = WRITTEN_MAX + 2
# Bits of a number that encodes an item; results of `items_as_numbers` without numbers.
NUMBER_BITS = 63
NO_RANK = -1
TOO_LONG = -2
_NEWLINE = 10
_NEWLINES = np.uint64(_NEWLINE) * ONES
_LOWER_BITS = np.uint64(0x7F) * ONES


@kernel
def gather_ends(ends: Longs, rows: Longs, taken: Longs) -> int:
    """Write the ends of the concatenated texts `rows` (m,); return the last, -1 for a bad row."""
    at = 0
    for i in range(len(rows)):
        row = rows[i]
        if row < 0 or row >= len(ends):
            return -1
        at += ends[row] - (ends[row - 1] if row else 0)
        taken[i] = at
    return at


@kernel
def gather_text(text: Bytes, ends: Longs, rows: Longs, out: Bytes) -> None:
    """Concatenate the texts `rows`, which `gather_ends` accepted, eight bytes at a time."""
    written = 0
    for i in range(len(rows)):
        row = rows[i]
        start = ends[row - 1] if row else 0
        length = ends[row] - start
        if length >= WORD:
            # The last word may overlap the one before it.
            for place in range(0, length - WORD, WORD):
                put_word(out, written + place, word_at(text, start + place))
            put_word(out, written + length - WORD, word_at(text, start + length - WORD))
        else:
            for place in range(length):
                out[written + place] = text[start + place]
        written += length


@kernel
def unpack_rows(
    lengths: NDArray[np.uint16],
    packed: Bytes,
    width: int,
    rows_of_key: Longs,
    ends: Longs,
    counts: Longs,
    key_of_row: Codes,
) -> bool:
    """Write the label's end, the count and the stream key of each of n rows of a message.

    `lengths` (n,) are bytes per label; `packed` (n << width,) has little-endian counts of 1, 2, 4
    or 8 bytes (width 0 to 3); `rows_of_key` (k,) says how many rows each stream key has, in order.
    Returns False, with `key_of_row` not written, unless these are n rows together.
    """
    n = len(lengths)
    end = 0
    for i in range(n):
        end += lengths[i]
        ends[i] = end
    # Of one byte, nearly always; vectorized.
    if width == 0:
        for i in range(n):
            counts[i] = packed[i]
    else:
        for i in range(n):
            count = np.uint64(0)
            for place in range(1 << width):
                count |= np.uint64(packed[(i << width) + place]) << np.uint64(8 * place)
            counts[i] = np.int64(count)
    # Numbers from outside: none is negative, and their sum never passes n.
    rows = 0
    for key in range(len(rows_of_key)):
        if rows_of_key[key] < 0 or rows_of_key[key] > n - rows:
            return False
        rows += rows_of_key[key]
    if rows != n:
        return False
    row = 0
    for key in range(len(rows_of_key)):
        for _ in range(rows_of_key[key]):
            key_of_row[row] = key
            row += 1
    return True


@kernel_part
def bits_of(number: np.uint64) -> int:
    """Return how many bits a number has, without leading zeros."""
    bits = 0
    while number:
        number >>= np.uint64(1)
        bits += 1
    return bits


@kernel
def items_as_numbers(
    rows: Longs,
    counts: Longs,
    list_of: Codes,
    ranks: Longs,
    lengths: NDArray[np.int16],
    lists: int,
    numbers: Longs,
) -> tuple[int, int, int, int]:
    """Encode items (n,) as numbers that sort by list, then descending count, then rank.

        list << shift | (largest count - count) << rank bits | rank

    An item is a row and its count. `list_of` has the list (< lists) of every row, `ranks` its
    place in the order of labels (-1 or beyond the end: not known yet), `lengths` the bytes of its
    text. Returns shift, rank bits, largest count, and bytes of all items' texts; in place of shift
    NO_RANK if a rank is not known, TOO_LONG if 63 bits do not suffice.
    """
    if not len(rows):
        return 0, 0, 0, 0
    largest = counts[0]
    least = counts[0]
    highest = 0
    size = 0
    for i in range(len(rows)):
        row = rows[i]
        if row >= len(ranks) or ranks[row] < 0:
            return NO_RANK, 0, 0, 0
        largest = max(largest, counts[i])
        least = min(least, counts[i])
        highest = max(highest, ranks[row])
        size += lengths[row]
    rank_bits = bits_of(np.uint64(highest))
    # Unsigned, since the difference may have 64 bits.
    shift = rank_bits + bits_of(np.uint64(largest) - np.uint64(least))
    if shift + bits_of(np.uint64(lists)) > NUMBER_BITS:
        return TOO_LONG, 0, 0, 0
    for i in range(len(rows)):
        row = rows[i]
        list_part = np.int64(list_of[row]) << shift
        count_part = (largest - counts[i]) << rank_bits
        numbers[i] = list_part | count_part | ranks[row]
    return shift, rank_bits, largest, size


@kernel
def numbers_as_json(
    text: Bytes,
    begins: Longs,
    lengths: NDArray[np.int16],
    by_rank: Longs,
    numbers: Longs,
    packing: tuple[int, int, int],
    ends: Longs,
    out: Bytes,
) -> None:
    """Write lists of items, end to end, as JSON such as [["a",3],["b",-1]].

    Copies labels eight bytes at a time and overwrites the excess: 18 ns per item, 45 bytewise.
    The caller guarantees all room.

    Args:
        text: the part before each row's count, ["a", and `WORD` bytes more.
        begins, lengths: (rows,), of each row's part of `text`.
        by_rank: the row of each rank.
        numbers: of the items, sorted: list, largest count less count, and rank, as
            `items_as_numbers` has put them together.
        packing: where the list begins in a number, the bits of the rank, and the largest count.
        ends: (k,), written: the end of each list in `out`.
        out: room for 2 bytes per list, ITEM_BYTES and its text per item, and `WORD` bytes more.
    """
    (shift, rank_bits, largest) = packing
    rank_mask = (np.int64(1) << rank_bits) - 1
    within_list = (np.int64(1) << shift) - 1
    written = 0
    k = 0
    for i in range(len(ends)):
        out[written] = 91  # [
        written += 1
        first = k
        while k < len(numbers) and numbers[k] >> shift == i:
            row = by_rank[numbers[k] & rank_mask]
            count = largest - ((numbers[k] & within_list) >> rank_bits)
            begin = begins[row]
            length = lengths[row]
            # Whole words, whatever the length: what follows is overwritten by what comes next.
            for offset in range(0, length, WORD):
                put_word(out, written + offset, word_at(text, begin + offset))
            written += length
            written = write_integer(out, written, count)
            out[written] = 93  # ]
            out[written + 1] = 44  # ,
            written += 2
            k += 1
        if k > first:
            written -= 1  # no comma behind the last one
        out[written] = 93
        written += 1
        ends[i] = written


@kernel
def find_lines(data: Bytes, places: Longs) -> int:
    """Write start and stop of every line that ends with a newline to `places` (room, 2).

    Lines that do not fit are not written, but counted: return how many there are.
    """
    n = len(data)
    lines = 0
    start = 0
    words_stop = n - n % WORD
    for position in range(0, words_stop, WORD):
        # The highest bit of each byte that is a newline, and of no other: of those that are 0 in
        # `other`. Adding 0x7F carries into the highest bit unless the lower ones are 0.
        other = word_at(data, position) ^ _NEWLINES
        marks = ~((other & _LOWER_BITS) + _LOWER_BITS | other | _LOWER_BITS)
        while marks != 0:
            stop = position + first_marked(marks)
            if lines < len(places):
                places[lines, 0] = start
                places[lines, 1] = stop
            lines += 1
            start = stop + 1
            # Clear the lowest mark.
            marks &= marks - np.uint64(1)
    for position in range(words_stop, n):
        if data[position] == _NEWLINE:
            if lines < len(places):
                places[lines, 0] = start
                places[lines, 1] = position
            lines += 1
            start = position + 1
    return lines
