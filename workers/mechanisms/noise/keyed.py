"""Keyed noise words: a pure function of (root key, mechanism id, stream key, item, cell).

Each (item, cell) of a mechanism gets 128 pseudorandom bits, identical on every repetition: a tick
published twice must carry the same noise, and two mechanisms may never share any, or an observer
could subtract it (`docs/guarantee.md`).

    tag             `NoiseKey.tags`: keyed BLAKE2b-128 of (stream key, label), for every mechanism
    AES key         `NoiseKey.stream`: keyed BLAKE2b-256 of the mechanism id, one per mechanism
    cell            two uint64 (hi, lo) for one noise value of the item, such as (level, node)
    word            AES-256(tag XOR cell): 128 bits

Everything else derived from the root key is keyed BLAKE2b too, with another `person` for each use.

Guarantee: the words are indistinguishable from independent uniform ones as long as BLAKE2b is a
pseudorandom function and AES-256 a pseudorandom permutation, up to the chance that tag XOR cell
collides for two (item, cell) pairs: at most q^2 / 2^128 for q words in use under one mechanism id.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence

import numpy as np
from cryptography.hazmat.primitives.ciphers import (
    Cipher,
    CipherContext,
    algorithms,
    modes,
)

from workers.arrays.blake2b import State, start
from workers.arrays.number_blocks import xor
from workers.arrays.texts import readonly_contiguous
from workers.arrays.types import Tags, Words
from workers.runtime.frozen import Frozen

Cell = tuple[int, int]

ROOT_BYTES = 32
MECHANISM_ID_BYTES = 16
# 16 B in and 16 B out per row stay in a core's L2 cache (measured with 1 MiB, per row and tick:
# 8,192 rows 22 ns, 16,384 rows 18 ns, 32,768 rows 17 ns).
CHUNK_ROWS = 16384

_AES_BLOCK = 16
_TAG = b"qc-item-tag"
# fixed byte order, so that a big-endian machine draws the same noise
_WORD = np.dtype("<u8")


class NoiseKey(Frozen):
    """The operator's root key: 32 secret random bytes."""

    def __init__(self, root: bytes) -> None:
        if len(root) != ROOT_BYTES:
            raise ValueError(
                f"root = {len(root)} bytes: must be exactly {ROOT_BYTES} bytes"
            )
        self.__root = bytes(root)

    def __repr__(self) -> str:
        return "NoiseKey(<secret>)"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a NoiseKey is not pickled: its root key stays in the key file")

    @property
    def fingerprint(self) -> bytes:
        """Return 16 bytes that identify the key without revealing it.

        They show which messages and stored state were made with another key, and are refused.
        """
        return hashlib.blake2b(
            key=self.__root, person=b"qc-fingerprint", digest_size=16
        ).digest()

    def commitment(self, description: bytes) -> bytes:
        """Return 32 bytes that commit to the key and a description, and reveal neither.

        Signed records publish them, so an operator cannot change either afterwards unnoticed.
        """
        return hashlib.blake2b(
            description, key=self.__root, person=b"qc-commitment", digest_size=32
        ).digest()

    def salts(self, context: bytes) -> bytes:
        """Return 32 secret bytes, from which the salts of a signed record's hashes are derived.

        `context` identifies the record. Without the salts nobody can test guesses of what was
        hashed.
        """
        return hashlib.blake2b(
            context, key=self.__root, person=b"qc-salts", digest_size=32
        ).digest()

    def tags(self, stream_key: str, labels: Sequence[bytes]) -> Tags:
        """Return the 128-bit tags of a stream key's items (UTF-8 labels), C-contiguous."""
        keyed = hashlib.blake2b(
            _prefix(stream_key), key=self.__root, person=_TAG, digest_size=16
        )
        digests = bytearray()
        for label in labels:
            state = keyed.copy()
            state.update(label)
            digests += state.digest()
        return (
            np.frombuffer(digests, dtype=_WORD)
            .reshape(-1, 2)
            .astype(np.uint64, copy=False)
        )

    def tag_state(self, stream_key: str) -> State:
        """Return the secret BLAKE2b state of `tags` before the label, for compiled loops."""
        return start(_prefix(stream_key), key=self.__root, person=_TAG, digest_size=16)

    def stream(self, mechanism_id: bytes) -> NoiseStream:
        """Return the noise of one mechanism; its id differs with each parameter and epoch."""
        if len(mechanism_id) != MECHANISM_ID_BYTES:
            raise ValueError(
                f"mechanism_id = {len(mechanism_id)} bytes: must be exactly {MECHANISM_ID_BYTES} bytes"
            )
        keyed = hashlib.blake2b(
            mechanism_id, key=self.__root, person=b"qc-mechanism", digest_size=32
        )
        return NoiseStream(keyed.digest())


def _prefix(stream_key: str) -> bytes:
    # The length makes the encoding of (key, label) injective: ("a", "bc") != ("ab", "c").
    text = stream_key.encode()
    return len(text).to_bytes(8, "little") + text


class _Scratch(threading.local):
    """One thread's cipher context and buffers: concurrent calls must not share them."""

    def __init__(self, aes_key: bytes) -> None:
        # ECB, as a word is AES of its own block alone.
        self.cipher: CipherContext = Cipher(
            algorithms.AES(aes_key), modes.ECB()
        ).encryptor()
        self.blocks: Words = np.empty((CHUNK_ROWS, 2), dtype=_WORD)
        # update_into needs space for one block beyond the words of a call.
        self.words: Words = np.empty((CHUNK_ROWS + 1, 2), dtype=_WORD)
        # The same memory as bytes, for the cipher.
        self.blocks_bytes = self.blocks.data.cast("B")
        self.words_bytes = self.words.data.cast("B")


class NoiseStream(Frozen):
    """The 128-bit words of one mechanism, by (item tag, cell). Thread-safe."""

    def __init__(self, aes_key: bytes) -> None:
        self.__scratch = _Scratch(aes_key)

    def __repr__(self) -> str:
        return "NoiseStream(<secret>)"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a NoiseStream is not pickled: it holds key material")

    def words(self, tags: Tags, cell: Cell) -> Words:
        """Return words[i] = AES-256(tags[i] XOR cell), a new array (n, 2), upper half first."""
        out = np.empty((len(tags), 2), dtype=np.uint64)
        cells = np.array([cell], dtype=np.uint64)
        for first in range(0, len(tags), CHUNK_ROWS):
            part = tags[first : first + CHUNK_ROWS]
            out[first : first + len(part)] = self.chunk(part, cells)
        return out

    def chunk(self, tags: Tags, cells: Words) -> Words:
        """Return AES-256(tag XOR cell) of tags (n, 2) and cells (k, 2), at most CHUNK_ROWS words.

        The array (k n, 2), cell by cell, is valid until the thread's next call.
        """
        rows = len(cells) * len(tags)
        if rows > CHUNK_ROWS:
            raise ValueError(f"tags = {rows} rows: at most {CHUNK_ROWS}")
        scratch = self.__scratch
        xor(
            readonly_contiguous(tags), readonly_contiguous(cells), scratch.blocks[:rows]
        )
        size = rows * _AES_BLOCK
        # update_into needs space for one block beyond its output.
        scratch.cipher.update_into(
            scratch.blocks_bytes[:size], scratch.words_bytes[: size + _AES_BLOCK]
        )
        return scratch.words[:rows]
