"""Codes match those of a dictionary, compiled or not, however often the table grows."""

import hashlib
from itertools import product
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.arrays.uncompiled import WAYS, uncompiled
from workers.arrays import words
from workers.arrays.texts import Texts
from workers.events import vocabulary as kernels
from workers.events.columns import PairDigests, ViewDigests, pairs_of
from workers.events.vocabulary import Vocabulary
from workers.mechanisms.noise.keyed import NoiseKey

TEXTS = st.lists(st.binary(max_size=20), max_size=60)
SECRET = np.arange(16, dtype=np.uint8).view(np.uint64)


@pytest.mark.slow
def test_the_hash_is_siphash_1_3() -> None:
    """A weaker hash could be flooded. Expected values: the reference, with one and three rounds."""

    def rotated(x: int, n: int) -> int:
        return (x << n | x >> (64 - n)) & (2**64 - 1)

    def rounds(v: list[int], n: int) -> None:
        for _ in range(n):
            v[0] = (v[0] + v[1]) % 2**64
            v[1] = rotated(v[1], 13) ^ v[0]
            v[0] = rotated(v[0], 32)
            v[2] = (v[2] + v[3]) % 2**64
            v[3] = rotated(v[3], 16) ^ v[2]
            v[0] = (v[0] + v[3]) % 2**64
            v[3] = rotated(v[3], 21) ^ v[0]
            v[2] = (v[2] + v[1]) % 2**64
            v[1] = rotated(v[1], 17) ^ v[2]
            v[2] = rotated(v[2], 32)

    k0, k1 = (int(half) for half in SECRET)
    for n in range(40):
        text = bytes(range(n))
        magic = memoryview(b"somepseudorandomlygeneratedbytes")
        words_of = [int.from_bytes(magic[at : at + 8], "big") for at in range(0, 32, 8)]
        v = [k ^ word for k, word in zip((k0, k1, k0, k1), words_of, strict=True)]
        padded = text + bytes(7 - n % 8) + bytes([n % 256])
        for at in range(0, len(padded), 8):
            word = int.from_bytes(padded[at : at + 8], "little")
            v[3] ^= word
            rounds(v, 1)
            v[0] ^= word
        v[2] ^= 0xFF
        rounds(v, 3)
        for way in WAYS:
            with (
                np.errstate(over="ignore"),
                patch.object(kernels, "sip_round", way(kernels.sip_round)),
                patch.object(kernels, "word_at", way(words.word_at)),
            ):
                # what follows a text is read, and must not count
                for behind in (
                    b"",
                    b"\xff" * 9,
                ):
                    data = np.frombuffer(b"xy" + text + behind, dtype=np.uint8)
                    found = int(way(kernels.sip_hash)(data, 2, 2 + n, SECRET))
                    assert found == v[0] ^ v[1] ^ v[2] ^ v[3]


@settings(max_examples=60, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_codes_are_those_of_a_dictionary(batches: list[list[bytes]]) -> None:
    """A text with two codes would count as two items; two texts with one code as one."""
    vocabulary = Vocabulary()
    expected = dict[bytes, int]()
    for texts in batches:
        codes = vocabulary.codes_of(Texts.of(texts))
        assert codes.tolist() == [
            expected.setdefault(text, len(expected)) for text in texts
        ]
        assert list(vocabulary.texts(codes)) == texts
    assert len(vocabulary) == len(expected)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_codes_are_the_same_where_the_table_is_too_large_for_a_cache(seed: int) -> None:
    """Slots are then prefetched before the comparison, and some texts are added meanwhile."""
    rng = np.random.default_rng(seed)
    vocabulary = Vocabulary()
    expected = dict[bytes, int]()
    for _ in range(12):
        texts = [b"%d" % n for n in rng.integers(0, 250_000, 30_000).tolist()]
        codes = vocabulary.codes_of(Texts.of(texts))
        assert codes.tolist() == [
            expected.setdefault(text, len(expected)) for text in texts
        ]
    assert len(vocabulary._table.slots) >= kernels.LARGE


@pytest.mark.slow
def test_codes_are_the_same_uncompiled_and_with_all_texts_in_one_slot() -> None:
    """Whatever the hash is, only the text decides."""
    texts = [b"%d" % (n % 70) for n in range(300)]
    column = Texts.of(texts)
    places = np.stack((column.ends - column.lengths, column.ends), axis=1)
    expected = dict[bytes, int]()
    wanted = [expected.setdefault(text, len(expected)) for text in texts]
    parts = (
        "sip_hash",
        "sip_round",
        "guess_codes",
        "_same",
        "recent_row",
        "same_bytes",
    )
    plain = {name: uncompiled(getattr(kernels, name)) for name in (*parts, "word_at")}
    for large, same, alike in product((1, 1 << 30), (False, True), (False, True)):
        hashed: dict[str, Any] = {"sip_hash": lambda *_: np.uint64(5)} if same else {}
        placed: dict[str, Any] = {"recent_row": lambda *_: 5} if alike else {}
        with (
            patch.multiple(kernels, LARGE=large, **plain | hashed | placed),
            patch.object(words, "word_at", uncompiled(words.word_at)),
            np.errstate(over="ignore"),
        ):
            slots = np.full(256, -1, dtype=np.int32)
            codes = np.empty(300, dtype=np.int32)
            hashes = np.empty(100, np.uint64)
            ends = np.empty(100, np.int64)
            found = np.empty(kernels.BLOCK_TEXTS, np.uint64)
            recent = np.zeros((kernels.RECENT, 3), dtype=np.uint64)
            of_texts = np.empty(1_000, np.uint8)
            table = kernels.Table(SECRET, slots, hashes, ends, of_texts, found, recent)
            done = uncompiled(kernels.encode_texts)(
                column.text, places, 0, table, 0, codes
            )
        assert done == (300, 70) and codes.tolist() == wanted


def test_first_texts_have_the_first_codes() -> None:
    """Codes tell which stream keys are declared: no other key may get such a code."""
    vocabulary = Vocabulary(["b", "a"])
    assert [vocabulary.code_of(text) for text in ("a", "c", "b", "c")] == [1, 2, 0, 2]
    assert len(Vocabulary()) == 0


def test_a_place_outside_the_data_is_refused() -> None:
    """The loops rely on valid positions, so they are checked here."""
    for place in ([-1, 2], [0, 4], [3, 2]):
        with pytest.raises(IndexError, match="outside the data"):
            Vocabulary().codes(np.zeros(3, dtype=np.uint8), np.array([place]))


def test_tags_are_the_same_however_many_are_remembered() -> None:
    """A tag is an item's identity and its noise: the same if cached, single or in bulk."""
    key = NoiseKey(bytes(32))
    rng = np.random.default_rng(2)
    names = Vocabulary()
    labels = Vocabulary()
    names.codes_of(Texts.of([b"a", "\u00e4".encode(), b""]))
    digits = [b"%d" % n for n in range(400)]
    column = [hashlib.sha256(n).hexdigest().encode()[: int(n) % 60] + n for n in digits]
    labels.codes_of(Texts.of(column))
    digests = PairDigests(key.tag_state, names, labels)
    for size in (5, 300, 40, 400, 400):
        keys = np.sort(rng.integers(0, 3, size)).astype(np.int32)
        codes = rng.permutation(400)[:size].astype(np.int32)
        wanted = [
            key.tags(names.name(k), [column[c]])[0].tolist()
            for k, c in zip(keys.tolist(), codes.tolist(), strict=True)
        ]
        pairs = pairs_of(keys, codes)
        assert digests.of(pairs, labels.texts(codes)).tolist() == wanted
        assert digests.of(pairs).tolist() == wanted


def test_views_whose_codes_mean_the_same_share_what_is_remembered() -> None:
    keys = Vocabulary()
    labels = Vocabulary()
    others = Vocabulary()
    digests = ViewDigests(NoiseKey(bytes(32)).tag_state)
    all_of_it = digests.of("all", keys, labels)
    of_a_kind = digests.of("of-a-kind", keys, labels)
    assert all_of_it is of_a_kind
    assert digests.of("countries", keys, others) is not all_of_it
    # One of them begins another vocabulary first.
    assert digests.of("all", keys, others).names == (keys, others)
    assert digests.of("of-a-kind", keys, labels) is of_a_kind
    assert digests.of("of-a-kind", keys, others) is digests.of("all", keys, others)


@pytest.mark.parametrize("behind", [b"", b"\xff" * 9])
def test_texts_that_look_like_recent_ones_are_told_apart(behind: bytes) -> None:
    """Lookup starts at the last text with the same first and last bytes."""
    like = [b"12345678" + b"x" * n + b"12345678" for n in range(20)]
    like += [b"a\0", b"a", b"", b"\0", b"a\0\0", b"12345678"]
    vocabulary = Vocabulary()
    expected = dict[bytes, int]()
    for texts in (like, like[::-1], [like[0]] * 5, like):
        column = Texts.of(texts)
        data = np.concatenate([column.text, np.frombuffer(behind, dtype=np.uint8)])
        places = np.stack((column.ends - column.lengths, column.ends), axis=1)
        assert vocabulary.codes(data, places).tolist() == [
            expected.setdefault(text, len(expected)) for text in texts
        ]
