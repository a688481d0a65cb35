"""BLAKE2b of many texts with one prefix, equal to hashlib's.

`start` absorbs key, person and prefix once; `digests` finishes that state for each of n spans of a
buffer. A text of one block takes 0.15 us; hashlib takes 0.5, makes two objects and holds the GIL.

    Symbol (RFC 7693)   Here
    h                   `State.words`: eight state words, little-endian in the digest
    t                   `State.length` plus the bytes of the text
    m                   `block`: 128 bytes, or 16 words; numba runs on little-endian machines only
    SIGMA, IV, F, G     `_SIGMA`, `_IV`, `compress`, `mix`

Source: RFC 7693, sections 2.5 to 3.3; parameter block with key length and personalization: BLAKE2
(2013), section 2.5.
"""

from typing import Final, NamedTuple

import numpy as np

from workers.arrays.compiled import (
    kernel,
    kernel_inline,
    kernel_part,
    kernel_with_arrays,
)
from workers.arrays.types import Bytes, Longs, Words

BLOCK_BYTES: Final = 128
PERSON_BYTES: Final = 16
KEY_BYTES_MAX: Final = 64
DIGEST_BYTES_MAX: Final = 64

_IV = np.array(
    [
        0x6A09E667F3BCC908,
        0xBB67AE8584CAA73B,
        0x3C6EF372FE94F82B,
        0xA54FF53A5F1D36F1,
        0x510E527FADE682D1,
        0x9B05688C2B3E6C1F,
        0x1F83D9ABFB41BD6B,
        0x5BE0CD19137E2179,
    ],
    dtype=np.uint64,
)
# Block word for each half of a G; rounds 10 and 11 repeat 0 and 1.
_SIGMA = np.array(
    [
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
        [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
        [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4],
        [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
        [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13],
        [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
        [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11],
        [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
        [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5],
        [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
    ],
    dtype=np.uint8,
)[[*range(10), 0, 1]]
_IV.flags.writeable = _SIGMA.flags.writeable = False
# F's finalization flag: whether more blocks follow, or this one is the last.
_MORE = np.uint64(0)
_LAST = np.uint64(0xFFFFFFFFFFFFFFFF)
# Digests computed side by side: a row of their words fills one or two vector registers.
LANES: Final = 8
# Where each row of LANES words begins in the array of `round_side_by_side`.
_ROW = tuple(np.uint64(LANES * row) for row in range(32))
_16, _24, _32, _40, _48, _63, _1 = (np.uint64(n) for n in (16, 24, 32, 40, 48, 63, 1))


class State(NamedTuple):
    """The digest state before the text, passed to `digests` as `*state`. Secret if the key is."""

    words: Words  # (8,), after all blocks but the last
    rest: Bytes  # (0 to 128,), bytes of the last block, not compressed yet
    length: int  # bytes in all, including the key's block

    def __repr__(self) -> str:
        return "State(<secret>)"


def start(
    prefix: bytes, *, key: bytes = b"", person: bytes = b"", digest_size: int
) -> State:
    """Return the state after a prefix; raise ValueError for an argument out of range."""
    if len(key) > KEY_BYTES_MAX:
        raise ValueError(f"key = {len(key)} bytes: at most {KEY_BYTES_MAX}")
    if len(person) > PERSON_BYTES:
        raise ValueError(f"person = {len(person)} bytes: at most {PERSON_BYTES}")
    if not 1 <= digest_size <= DIGEST_BYTES_MAX:
        raise ValueError(
            f"digest_size = {digest_size}: must be from 1 to {DIGEST_BYTES_MAX}"
        )
    parameters = np.zeros(8, dtype=np.uint64)
    # Digest size, key length, fan-out 1, depth 1: the sequential mode.
    parameters[0] = digest_size | len(key) << 8 | 1 << 16 | 1 << 24
    parameters[6:] = np.frombuffer(person.ljust(PERSON_BYTES, b"\0"), dtype=np.uint64)
    words = _IV ^ parameters
    absorbed = (key.ljust(BLOCK_BYTES, b"\0") if key else b"") + prefix
    # Keep the last block, even if full: without a text, it is compressed as the last.
    done = max(0, len(absorbed) - 1) // BLOCK_BYTES * BLOCK_BYTES
    for at in range(0, done, BLOCK_BYTES):
        block = np.frombuffer(absorbed, dtype=np.uint64, count=16, offset=at)
        compress(words, block, np.uint64(at + BLOCK_BYTES), _MORE)
    rest = np.frombuffer(absorbed[done:], dtype=np.uint8)
    # Read-only, since threads share it, and numba compiles for one array type.
    words.flags.writeable = rest.flags.writeable = False
    return State(words, rest, len(absorbed))


@kernel_part
def mix(
    a: np.uint64, b: np.uint64, c: np.uint64, d: np.uint64, x: np.uint64, y: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    """Mix two words of the block into four state words: G of RFC 7693."""
    a = a + b + x
    d ^= a
    d = d >> _32 | d << _32
    c = c + d
    b ^= c
    b = b >> _24 | b << _40
    a = a + b + y
    d ^= a
    d = d >> _16 | d << _48
    c = c + d
    b ^= c
    b = b >> _63 | b << _1
    return a, b, c, d


@kernel
def compress(words: Words, block: Words, length: np.uint64, last: np.uint64) -> None:
    """Absorb a block (16,) into the state words (8,), in place: F of RFC 7693.

    `length` includes this block's bytes; `last` is all ones for the last block, else 0.
    """
    # Scalars, so that the compiler can keep them in registers.
    v0 = words[0]
    v1 = words[1]
    v2 = words[2]
    v3 = words[3]
    v4 = words[4]
    v5 = words[5]
    v6 = words[6]
    v7 = words[7]
    v8 = _IV[0]
    v9 = _IV[1]
    v10 = _IV[2]
    v11 = _IV[3]
    v12 = _IV[4] ^ length
    v13 = _IV[5]
    v14 = _IV[6] ^ last
    v15 = _IV[7]
    for r in range(12):
        s = _SIGMA[r]
        v0, v4, v8, v12 = mix(v0, v4, v8, v12, block[s[0]], block[s[1]])
        v1, v5, v9, v13 = mix(v1, v5, v9, v13, block[s[2]], block[s[3]])
        v2, v6, v10, v14 = mix(v2, v6, v10, v14, block[s[4]], block[s[5]])
        v3, v7, v11, v15 = mix(v3, v7, v11, v15, block[s[6]], block[s[7]])
        v0, v5, v10, v15 = mix(v0, v5, v10, v15, block[s[8]], block[s[9]])
        v1, v6, v11, v12 = mix(v1, v6, v11, v12, block[s[10]], block[s[11]])
        v2, v7, v8, v13 = mix(v2, v7, v8, v13, block[s[12]], block[s[13]])
        v3, v4, v9, v14 = mix(v3, v4, v9, v14, block[s[14]], block[s[15]])
    words[0] ^= v0 ^ v8
    words[1] ^= v1 ^ v9
    words[2] ^= v2 ^ v10
    words[3] ^= v3 ^ v11
    words[4] ^= v4 ^ v12
    words[5] ^= v5 ^ v13
    words[6] ^= v6 ^ v14
    words[7] ^= v7 ^ v15


@kernel_part
def round_side_by_side(v: Words) -> None:
    """Run one of the twelve rounds of F on LANES digests at once.

    `v` (32 LANES,) has a row of LANES words for each of v0 .. v15 in `compress`, then one for each
    of the block's 16 words in the order of this round. One array with fixed rows lets the compiler
    vectorize the loop.
    """
    for lane in range(LANES):
        i = np.uint64(lane)
        v0 = v[i]
        v1 = v[i + _ROW[1]]
        v2 = v[i + _ROW[2]]
        v3 = v[i + _ROW[3]]
        v4 = v[i + _ROW[4]]
        v5 = v[i + _ROW[5]]
        v6 = v[i + _ROW[6]]
        v7 = v[i + _ROW[7]]
        v8 = v[i + _ROW[8]]
        v9 = v[i + _ROW[9]]
        v10 = v[i + _ROW[10]]
        v11 = v[i + _ROW[11]]
        v12 = v[i + _ROW[12]]
        v13 = v[i + _ROW[13]]
        v14 = v[i + _ROW[14]]
        v15 = v[i + _ROW[15]]
        v0, v4, v8, v12 = mix(v0, v4, v8, v12, v[i + _ROW[16]], v[i + _ROW[17]])
        v1, v5, v9, v13 = mix(v1, v5, v9, v13, v[i + _ROW[18]], v[i + _ROW[19]])
        v2, v6, v10, v14 = mix(v2, v6, v10, v14, v[i + _ROW[20]], v[i + _ROW[21]])
        v3, v7, v11, v15 = mix(v3, v7, v11, v15, v[i + _ROW[22]], v[i + _ROW[23]])
        v0, v5, v10, v15 = mix(v0, v5, v10, v15, v[i + _ROW[24]], v[i + _ROW[25]])
        v1, v6, v11, v12 = mix(v1, v6, v11, v12, v[i + _ROW[26]], v[i + _ROW[27]])
        v2, v7, v8, v13 = mix(v2, v7, v8, v13, v[i + _ROW[28]], v[i + _ROW[29]])
        v3, v4, v9, v14 = mix(v3, v4, v9, v14, v[i + _ROW[30]], v[i + _ROW[31]])
        v[i] = v0
        v[i + _ROW[1]] = v1
        v[i + _ROW[2]] = v2
        v[i + _ROW[3]] = v3
        v[i + _ROW[4]] = v4
        v[i + _ROW[5]] = v5
        v[i + _ROW[6]] = v6
        v[i + _ROW[7]] = v7
        v[i + _ROW[8]] = v8
        v[i + _ROW[9]] = v9
        v[i + _ROW[10]] = v10
        v[i + _ROW[11]] = v11
        v[i + _ROW[12]] = v12
        v[i + _ROW[13]] = v13
        v[i + _ROW[14]] = v14
        v[i + _ROW[15]] = v15


@kernel_part
def last_blocks(
    words: Words,
    blocks: Words,
    lengths: Words,
    rows: Longs,
    number: int,
    v: Words,
    out: Words,
) -> None:
    """Write the digests of `number` <= LANES texts of one block each to `rows` of `out` (n, 2).

    `words` (8,) is the state before these blocks, the same for all. Word w of the block in lane i
    is blocks[w * LANES + i]. `lengths` counts the bytes absorbed with each block; `v` (32 LANES,)
    is scratch. Lanes from `number` on are computed too, from old blocks, and not written.
    """
    # As in `compress`: state, then IV, with the length in v12 and the flag in v14.
    for lane in range(LANES):
        for row in range(8):
            v[row * LANES + lane] = words[row]
            v[(8 + row) * LANES + lane] = _IV[row]
        v[12 * LANES + lane] ^= lengths[lane]
        v[14 * LANES + lane] ^= _LAST
    for r in range(12):
        for place in range(16):
            word = int(_SIGMA[r, place])
            for lane in range(LANES):
                v[(16 + place) * LANES + lane] = blocks[word * LANES + lane]
        round_side_by_side(v)
    for lane in range(number):
        out[rows[lane], 0] = words[0] ^ v[lane] ^ v[8 * LANES + lane]
        out[rows[lane], 1] = words[1] ^ v[LANES + lane] ^ v[9 * LANES + lane]


@kernel_inline
def fill(
    block: Bytes, begin: int, used_before: int, data: Bytes, position: int, stop: int
) -> int:
    """Copy data[position:stop], as much as fits, to block[begin:]; return where the copy ends.

    The block's bytes from `used_before` on are 0; those behind the copy are set to 0.
    """
    used = min(begin + stop - position, BLOCK_BYTES)
    for j in range(begin, used):
        block[j] = data[position]
        position += 1
    for j in range(used, used_before):
        block[j] = 0
    return used


@kernel_with_arrays
def digests(
    words: Words,
    rest: Bytes,
    length: int,
    data: Bytes,
    starts: Longs,
    stops: Longs,
    out: Words,
) -> None:
    """Write the digest of a prefix and data[starts[i]:stops[i]], together, for each i, to `out`.

    `words`, `rest` and `length` are the `State` after the prefix, which `start` returns. `out`
    (n, 2) gets the first 16 bytes of each digest as little-endian words: a digest of 8 bytes is
    column 0. A span outside of data raises IndexError. Texts of one block run LANES at a time.
    """
    # One array type, and loops instead of slices, save 2 s of compile time.
    # The block that is being filled, with zeros from `used` on; it begins with the prefix's rest.
    as_words = np.zeros(16, dtype=np.uint64)
    block = as_words.view(np.uint8)
    for j in range(len(rest)):
        block[j] = rest[j]
    used = len(rest)
    # Texts of one block, which wait until there are LANES of them: word w of lane i is
    # blocks[w * LANES + i], and its bytes from block_bytes[i] on are 0.
    blocks = np.zeros(16 * LANES, dtype=np.uint64)
    block_bytes = np.zeros(LANES, dtype=np.int64)
    lengths = np.zeros(LANES, dtype=np.uint64)
    rows = np.zeros(LANES, dtype=np.int64)
    waiting = 0
    for lane in range(LANES):
        for word in range(16):
            blocks[word * LANES + lane] = as_words[word]
        block_bytes[lane] = len(rest)
    v = np.zeros(32 * LANES, dtype=np.uint64)
    state = np.zeros(8, dtype=np.uint64)
    for i in range(len(starts)):
        position = starts[i]
        stop = stops[i]
        if not 0 <= position <= stop <= len(data):
            raise IndexError("a text lies outside the buffer")
        if len(rest) + stop - position <= BLOCK_BYTES:
            used = fill(block, len(rest), used, data, position, stop)
            # Copy what can differ: words before are the prefix's, and those behind are 0.
            for word in range(
                len(rest) >> 3, (max(used, block_bytes[waiting]) + 7) >> 3
            ):
                blocks[word * LANES + waiting] = as_words[word]
            block_bytes[waiting] = used
            lengths[waiting] = np.uint64(length + stop - position)
            rows[waiting] = i
            waiting += 1
        else:
            # Block by block; the first one begins with the prefix's rest.
            for word in range(8):
                state[word] = words[word]
            absorbed = length - len(rest)
            begin = len(rest)
            while position < stop:
                used = fill(block, begin, used, data, position, stop)
                position += used - begin
                absorbed += used
                last = _LAST if position == stop else _MORE
                compress(state, as_words, np.uint64(absorbed), last)
                begin = 0
            out[i, 0] = state[0]
            out[i, 1] = state[1]
            # For the next text; what the last block had behind the rest is still there.
            for j in range(len(rest)):
                block[j] = rest[j]
            used = max(used, len(rest))
        if waiting == LANES or (waiting > 0 and i == len(starts) - 1):
            last_blocks(words, blocks, lengths, rows, waiting, v, out)
            waiting = 0
