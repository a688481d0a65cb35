"""Vocabulary: a hash table from texts (labels and stream keys) to integer codes.

Codes are numbers from 0 on, in order of first occurrence. The table uses linear probing (a text is
in the slot of its hash, or in the next one that was free) and is at most half full. The hash is
SipHash-1-3 under a random secret, so outsiders cannot choose labels that collide.

Most texts recur. In a small table, `recent` finds these without the hash: a cache with one row for
each value of a cheap hash, which holds the last text with that value. In a table larger than the
processor's caches, `guess_codes` looks up many texts at once instead.

Texts to look up are `places`, int64 (n, 2), their start and stop in `data`. Places are checked per
block, not at every index: a lookup takes 26 ns instead of 95.

Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012.
"""

import secrets
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from workers.arrays.compiled import kernel, kernel_inline, kernel_part
from workers.arrays.texts import Texts, readonly_contiguous
from workers.arrays.types import Bytes, Codes, Longs, Words
from workers.arrays.words import WORD, same_bytes, word_at
from workers.mechanisms.ledger import with_capacity

# Texts per block: their slots are read together, before any comparison.
BLOCK_TEXTS = 256
OUTSIDE = -1
# From this many slots on, the table exceeds a core's own cache and `guess_codes` pays. A text takes
# 29 ns below this size (41 with guessing), and 62 ns (87 without) at 175,000 texts.
LARGE = 1 << 18
# Rows of `recent`, and its columns: the first eight bytes of a text, zero-padded; the last eight,
# 0 if the text is shorter; and in one word its length plus 1 (so that no text looks like a free
# row, 0) in the upper half, and its code in the lower.
RECENT_BITS = 16
RECENT = 1 << RECENT_BITS
HEAD, TAIL, SIZE_AND_CODE = range(3)
RECENT_COLUMNS = 3
_HALF = np.uint64(32)
_LOWER = np.uint64(0xFFFFFFFF)
# 2^64 divided by the golden ratio: the upper bits of a product depend on all lower bits.
_ODD = np.uint64(0x9E3779B97F4A7C15)


@kernel_part
def sip_round(
    v0: np.uint64, v1: np.uint64, v2: np.uint64, v3: np.uint64
) -> tuple[np.uint64, ...]:
    """Return the state after one round of SipHash."""
    v0 += v1
    v1 = v1 << np.uint64(13) | v1 >> np.uint64(51)
    v1 ^= v0
    v0 = v0 << np.uint64(32) | v0 >> np.uint64(32)
    v2 += v3
    v3 = v3 << np.uint64(16) | v3 >> np.uint64(48)
    v3 ^= v2
    v0 += v3
    v3 = v3 << np.uint64(21) | v3 >> np.uint64(43)
    v3 ^= v0
    v2 += v1
    v1 = v1 << np.uint64(17) | v1 >> np.uint64(47)
    v1 ^= v2
    v2 = v2 << np.uint64(32) | v2 >> np.uint64(32)
    return v0, v1, v2, v3


@kernel_part
def sip_hash(data: Bytes, start: int, stop: int, secret: Words) -> np.uint64:
    """Return SipHash-1-3 of data[start:stop] under `secret`, uint64 (2,)."""
    # The four constants are those of the paper.
    v0 = secret[0] ^ np.uint64(0x736F6D6570736575)
    v1 = secret[1] ^ np.uint64(0x646F72616E646F6D)
    v2 = secret[0] ^ np.uint64(0x6C7967656E657261)
    v3 = secret[1] ^ np.uint64(0x7465646279746573)
    pos = start
    while stop - pos >= 8:
        word = word_at(data, pos)
        v3 ^= word
        v0, v1, v2, v3 = sip_round(v0, v1, v2, v3)
        v0 ^= word
        pos += 8
    # The last word has the length in its top byte, and the up to seven bytes that are left. They
    # are cut out of eight bytes if these lie in `data`, by two shifts of half as many bits as
    # there are to drop: one shift by 64 would be undefined.
    word = np.uint64(stop - start) << np.uint64(56)
    half = np.uint64(4 * (8 - (stop - pos)))
    if stop - start >= 8:
        word |= word_at(data, stop - 8) >> half >> half
    elif pos + WORD <= len(data):
        word |= word_at(data, pos) << half << half >> half >> half
    else:
        shift = np.uint64(0)
        for k in range(pos, stop):
            word |= np.uint64(data[k]) << shift
            shift += np.uint64(8)
    v3 ^= word
    v0, v1, v2, v3 = sip_round(v0, v1, v2, v3)
    v0 ^= word
    v2 ^= np.uint64(0xFF)
    for _ in range(3):
        v0, v1, v2, v3 = sip_round(v0, v1, v2, v3)
    return v0 ^ v1 ^ v2 ^ v3


@kernel_part
def inside(places: Longs, size: int) -> bool:
    """Return whether all texts, of start and stop `places` (n, 2), lie in a buffer of this size."""
    # All are looked at, without branches, since hardly ever one is wrong.
    wrong = 0
    for i in range(len(places)):
        start = places[i, 0]
        stop = places[i, 1]
        wrong |= (start < 0) | (start > stop) | (stop > size)
    return wrong == 0


class Table(NamedTuple):
    """The hash table of a vocabulary. Sensitive.

    Attributes:
        secret: uint64 (2,), of the hash.
        slots: int32 (a power of two,): the code in each slot, -1 if free.
        hashes, ends: uint64 and int64 (capacity,), by code: the hash of a text, its end in `text`.
        text: uint8, the texts by code, end to end.
        block_hashes: uint64 (BLOCK_TEXTS,), scratch for hashes.
        recent: uint64 (RECENT, 3), the last text in each row (see HEAD), or 0. Finds most texts in
            4 to 6 ns instead of 24.
    """

    secret: Words
    slots: Codes
    hashes: Words
    ends: Longs
    text: Bytes
    block_hashes: Words
    recent: Words


@kernel_part
def guess_codes(data: Bytes, places: Longs, table: Table, guesses: Codes) -> None:
    """Write the hash of each text to `block_hashes`, and its probable code, or -1, to `guesses`.

    `places` (n, 2), n <= BLOCK_TEXTS, are start and stop of texts in `data`. A code is probable if
    the text's first slot has it and the hashes are equal; the caller compares the texts. Each loop
    reads what no turn before it decides, so the processor overlaps the reads: half the time if the
    table exceeds the caches.
    """
    slots = table.slots
    hashes = table.hashes
    block_hashes = table.block_hashes
    mask = np.uint64(len(slots) - 1)
    for i in range(len(places)):
        block_hashes[i] = sip_hash(data, places[i, 0], places[i, 1], table.secret)
    for i in range(len(places)):
        guesses[i] = slots[block_hashes[i] & mask]
    for i in range(len(places)):
        code = guesses[i]
        if code < 0 or hashes[code] != block_hashes[i]:
            guesses[i] = -1


@kernel
def encode_texts(
    data: Bytes, places: Longs, begin: int, table: Table, used: int, codes: Codes
) -> tuple[int, int]:
    """Write the codes of the texts places[begin:]; a new text gets the next code, `used`.

    A known text is found, in a large table, where `guess_codes` guessed it, in a small one among
    the recent texts, and else by its hash.

    Returns first the number of texts that have their codes: all, or less if the table is full and
    the caller is to resume there; or OUTSIDE if a text is not in the data. Second, the codes used.
    """
    secret, slots, hashes, ends, text, block_hashes, recent = table
    mask = np.uint64(len(slots) - 1)
    large = len(slots) >= LARGE
    for block in range(begin, len(places), BLOCK_TEXTS):
        stop_at = min(block + BLOCK_TEXTS, len(places))
        if not inside(places[block:stop_at], len(data)):
            return OUTSIDE, used
        if large:
            guess_codes(data, places[block:stop_at], table, codes[block:stop_at])
        for i in range(block, stop_at):
            start = places[i, 0]
            stop = places[i, 1]
            if (
                large
                and codes[i] >= 0
                and _same(data, start, stop, text, ends, codes[i])
            ):
                continue
            # The first eight bytes, the last eight (0 if there are fewer) and the length determine
            # a text of at most sixteen bytes; a longer one is also compared with that of the code.
            # In a large table, texts seldom recur soon enough for `recent`.
            entry = -1
            head = np.uint64(0)
            tail = np.uint64(0)
            # Plus 1, so that an empty text differs from a free row, which is all 0.
            size = np.uint64(stop - start + 1)
            if not large and start + WORD <= len(data):
                head = word_at(data, start)
                if stop - start >= WORD:
                    tail = word_at(data, stop - WORD)
                else:
                    # Drop the bytes after the text; two shifts, as one by 64 is undefined.
                    behind = np.uint64(4 * (WORD - (stop - start)))
                    head = head << behind << behind
                entry = recent_row(head, tail)
                same_ends = recent[entry, HEAD] == head and recent[entry, TAIL] == tail
                # The size is in the upper half of the word, the code in the lower.
                if same_ends and recent[entry, SIZE_AND_CODE] >> _HALF == size:
                    known = int(np.int64(recent[entry, SIZE_AND_CODE] & _LOWER))
                    if stop - start <= 2 * WORD or _same(
                        data, start, stop, text, ends, known
                    ):
                        codes[i] = known
                        continue
            # Linear probing: the text's own slot, or the next free one.
            hashed = (
                block_hashes[i - block]
                if large
                else sip_hash(data, start, stop, secret)
            )
            slot = hashed & mask
            while True:
                code = slots[slot]
                if code < 0:
                    # A free slot: the text is new.
                    text_used = ends[used - 1] if used else 0
                    full = 2 * (used + 1) > len(slots) or used == len(ends)
                    if full or text_used + stop - start > len(text):
                        return i, used
                    slots[slot] = code = used
                    hashes[used] = hashed
                    for k in range(stop - start):
                        text[text_used + k] = data[start + k]
                    ends[used] = text_used + stop - start
                    used += 1
                    break
                if hashes[code] == hashed and _same(
                    data, start, stop, text, ends, code
                ):
                    break
                slot = slot + np.uint64(1) & mask
            codes[i] = code
            if entry >= 0:
                recent[entry, HEAD] = head
                recent[entry, TAIL] = tail
                recent[entry, SIZE_AND_CODE] = size << _HALF | np.uint64(code)
    return len(places), used


@kernel_inline
def recent_row(head: np.uint64, tail: np.uint64) -> int:
    """Return the only row of the cache `recent` in which a text can be.

    `head` and `tail` are its first and last eight bytes, see HEAD. The hash is cheap and without a
    secret: whoever makes texts collide only overwrites rows, so that the table is asked instead.
    """
    return int(np.int64(((head ^ tail * _ODD) * _ODD) >> np.uint64(64 - RECENT_BITS)))


@kernel_part
def _same(
    data: Bytes, start: int, stop: int, text: Bytes, ends: Longs, code: int
) -> bool:
    """Return whether data[start:stop] is the text of a code."""
    begin = ends[code - 1] if code else 0
    if ends[code] - begin != stop - start:
        return False
    return same_bytes(data, start, text, begin, stop - start)


@kernel
def fill_slots(hashes: Words, used: int, slots: Codes) -> None:
    """Enter the codes below `used` in empty slots: each in the first free one from its hash on."""
    mask = np.uint64(len(slots) - 1)
    for code in range(used):
        slot = hashes[code] & mask
        while slots[slot] >= 0:
            slot = slot + np.uint64(1) & mask
        slots[slot] = code


# A vocabulary with more texts, or more bytes of text, is replaced.
TEXTS_MAX = 1 << 21
BYTES_MAX = 128 << 20
# Initial room: for so many texts of 16 bytes on average.
_FIRST_TEXTS = 1 << 10
# Maximum codes, the first ones, whose texts `name` keeps as Python strings.
NAMES_KEPT = 10_000


class Vocabulary:
    """Texts and their permanent codes, by order of occurrence. Not thread-safe. Sensitive.

    The texts `initial` have the first codes.
    """

    def __init__(self, initial: Iterable[str] = ()) -> None:
        # To begin with; `_grow` doubles what is full.
        self._table = Table(
            secret=np.frombuffer(secrets.token_bytes(16), dtype=np.uint64),
            slots=np.full(4 * _FIRST_TEXTS, -1, dtype=np.int32),
            hashes=np.empty(_FIRST_TEXTS, dtype=np.uint64),
            ends=np.empty(_FIRST_TEXTS, dtype=np.int64),
            text=np.empty(16 * _FIRST_TEXTS, dtype=np.uint8),
            block_hashes=np.empty(BLOCK_TEXTS, dtype=np.uint64),
            recent=np.zeros((RECENT, RECENT_COLUMNS), dtype=np.uint64),
        )
        self._used = 0
        self._names: list[str] = []
        self.codes_of(Texts.of(text.encode() for text in initial))

    def __repr__(self) -> str:
        return f"Vocabulary({self._used} texts)"

    def __len__(self) -> int:
        return self._used

    @property
    def full(self) -> bool:
        """Whether to begin another vocabulary with the next batch: this one still takes texts."""
        return self._used > TEXTS_MAX or self._bytes > BYTES_MAX

    @property
    def _bytes(self) -> int:
        """Bytes of all texts together."""
        return int(self._table.ends[self._used - 1]) if self._used else 0

    def codes(self, data: Bytes, places: Longs) -> Codes:
        """Return the codes of texts, adding new ones; raise IndexError if one is outside `data`."""
        codes = np.empty(len(places), dtype=np.int32)
        data = readonly_contiguous(data)
        places = readonly_contiguous(places)
        done = 0
        while True:
            done, self._used = encode_texts(
                data, places, done, self._table, self._used, codes
            )
            if done == len(places):
                return codes
            if done == OUTSIDE:
                raise IndexError("places: a text lies outside the data")
            self._grow(int(places[done, 1] - places[done, 0]))

    def codes_of(self, texts: Texts) -> Codes:
        return self.codes(
            texts.text, np.stack((texts.ends - texts.lengths, texts.ends), axis=1)
        )

    def code_of(self, text: str) -> int:
        return int(self.codes_of(Texts.of([text.encode()]))[0])

    @property
    def _texts(self) -> Texts:
        """All texts, by code."""
        return Texts(self._table.text[: self._bytes], self._table.ends[: self._used])

    def texts(self, codes: NDArray[np.int32] | NDArray[np.int64]) -> Texts:
        return self._texts.take(codes)

    def name(self, code: int) -> str:
        """Return a code's text; caches the first NAMES_KEPT, since stream keys recur."""
        if len(self._names) <= code < NAMES_KEPT:
            more = self._texts.part(len(self._names), NAMES_KEPT)
            self._names += [text.decode() for text in more]
        if code < len(self._names):
            return self._names[code]
        return self._texts[code].decode()

    def _grow(self, length: int) -> None:
        """Make room for one more text, of `length` bytes: double each array that is full."""
        table = self._table
        used = self._used
        if used == len(table.ends):
            table = table._replace(
                hashes=with_capacity(table.hashes, 2 * used),
                ends=with_capacity(table.ends, 2 * used),
            )
        if self._bytes + length > len(table.text):
            size = max(2 * len(table.text), self._bytes + length)
            table = table._replace(text=with_capacity(table.text, size))
        if 2 * (used + 1) > len(table.slots):
            table = table._replace(
                slots=np.full(2 * len(table.slots), -1, dtype=np.int32)
            )
            fill_slots(table.hashes, used, table.slots)
        self._table = table
