"""BLAKE2b in compiled loops: hashlib is the oracle."""

import hashlib
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.arrays import blake2b
from workers.arrays.blake2b import State, digests, start
from workers.arrays.types import Bytes, Longs
from workers.mechanisms.noise.keyed import NoiseKey

BYTES = np.random.default_rng(12).integers(0, 256, 8_000, dtype=np.uint8)
KEY = bytes(range(7, 39))


def whole(state: State, data: Bytes, starts: Longs, stops: Longs) -> list[bytes]:
    out = np.zeros((len(starts), 2), dtype=np.uint64)
    digests(*state, data, starts, stops, out)
    return [row.tobytes() for row in out]


def by_hashlib(prefix: bytes, texts: list[bytes], **fields: Any) -> list[bytes]:
    before = hashlib.blake2b(prefix, digest_size=16, **fields)
    found = []
    for text in texts:
        after = before.copy()
        after.update(text)
        found.append(after.digest())
    return found


FIELDS = [
    {},
    {"key": KEY},
    {"key": bytes(64), "person": b"qc-item-tag"},
    {"person": b"p" * 16},
]


@pytest.mark.slow
@pytest.mark.parametrize("fields", FIELDS)
def test_every_length_of_a_text_has_hashlibs_digest(fields: dict[str, bytes]) -> None:
    """hashlib made earlier versions' pairs and tags: one wrong bit counts a user again."""
    stops = np.arange(5_001) + 17
    starts = np.full(5_001, 17, np.int64)
    prefixes = [b"", b"a", bytes(11), *(BYTES[:n].tobytes() for n in (127, 128, 129))]
    for prefix in prefixes:
        found = whole(start(prefix, digest_size=16, **fields), BYTES, starts, stops)
        assert found == by_hashlib(
            prefix, [BYTES[17:stop].tobytes() for stop in stops], **fields
        )


@pytest.mark.slow
def test_every_length_of_a_prefix_has_hashlibs_digest() -> None:
    """`start` absorbs the prefix blocks except the last."""
    lengths = [0, 1, 2, 12, 60, 127, 128, 129, 255, 256, 257, 1_024]
    stops = np.cumsum(lengths, dtype=np.int64)
    starts = stops - np.array(lengths)
    texts = [BYTES[a:b].tobytes() for a, b in zip(starts, stops, strict=True)]
    for size in (*range(260), *range(380, 390), *range(1_020, 1_030)):
        prefix = BYTES[3 : 3 + size].tobytes()
        for fields in ({}, {"key": KEY, "person": b"qc-pair"}):
            found = whole(start(prefix, digest_size=16, **fields), BYTES, starts, stops)
            assert found == by_hashlib(prefix, texts, **fields)


def test_texts_side_by_side_leave_nothing_in_each_others_blocks() -> None:
    """Texts of one and of several blocks alternate in the same lanes."""
    lengths = np.random.default_rng(5).choice(
        [0, 1, 7, 8, 9, 60, 100, 116, 117, 128, 300], 3_000
    )
    starts = np.random.default_rng(6).integers(0, len(BYTES) - 300, len(lengths))
    for prefix in (b"", bytes(12), BYTES[:120].tobytes()):
        found = whole(
            start(prefix, key=KEY, digest_size=16), BYTES, starts, starts + lengths
        )
        spans = zip(starts.tolist(), lengths.tolist(), strict=True)
        texts = [BYTES[first : first + n].tobytes() for first, n in spans]
        assert found == by_hashlib(prefix, texts, key=KEY)


@pytest.mark.slow
@settings(max_examples=300)
@given(
    st.binary(max_size=300),
    st.lists(st.binary(max_size=300), max_size=6),
    st.binary(max_size=64),
    st.binary(max_size=16),
    st.integers(8, 64),
)
def test_any_key_person_and_size_give_the_first_words_of_hashlibs_digest(
    prefix: bytes, texts: list[bytes], key: bytes, person: bytes, size: int
) -> None:
    data = np.frombuffer(b"".join(texts), dtype=np.uint8)
    stops = np.cumsum([len(text) for text in texts], dtype=np.int64)
    starts = stops - np.array([len(text) for text in texts], dtype=np.int64)
    found = whole(
        start(prefix, key=key, person=person, digest_size=size), data, starts, stops
    )
    known = min(size // 8 * 8, 16)
    for text, digest in zip(texts, found, strict=True):
        exact = hashlib.blake2b(
            prefix + text, key=key, person=person, digest_size=size
        ).digest()
        assert digest[:known] == exact[:known]


def test_one_bit_of_anything_makes_another_digest() -> None:
    """Control: the comparisons above would miss a digest that ignores its text."""
    data = BYTES[:200].copy()
    one = np.array([0])
    kinds: Any = ({}, {"key": b"\1"}, {"person": b"q"})
    states = [start(b"p", digest_size=16, **fields) for fields in kinds]
    seen = {whole(state, data, one, one + 200)[0] for state in states}
    seen |= {whole(start(b"q", digest_size=16), data, one, one + 200)[0]}
    for at in range(200):
        data[at] ^= 1
        seen |= set(whole(start(b"p", digest_size=16), data, one, one + 200))
        data[at] ^= 1
    assert len(seen) == 204


def test_tags_are_those_of_the_noise_key() -> None:
    """A row found under another tag would get other noise than before."""
    key = NoiseKey(bytes(range(32)))
    labels = [b"", b"ann", "größe".encode(), bytes(127), bytes(1_024)]
    stops = np.cumsum([len(label) for label in labels])
    starts = stops - [len(label) for label in labels]
    data = np.frombuffer(b"".join(labels), dtype=np.uint8)
    for stream_key in ("", "Köln", "x" * 1_024):
        out = np.zeros((len(labels), 2), dtype=np.uint64)
        digests(*key.tag_state(stream_key), data, starts, stops, out)
        assert np.array_equal(out, key.tags(stream_key, labels))


def test_a_span_outside_the_buffer_is_refused() -> None:
    """Spans come from untrusted bytes: a wrong one must not read other memory."""
    state = start(b"", digest_size=16)
    out = np.zeros((1, 2), dtype=np.uint64)
    for first, last in ((-1, 3), (5, 4), (0, 101), (101, 101), (2**62, 2**62 + 1)):
        with pytest.raises(IndexError, match="outside"):
            digests(*state, BYTES[:100], np.array([first]), np.array([last]), out)
    assert not out.any()


def test_a_state_is_frozen_and_secret() -> None:
    """The tag state derives from the root key: it must not be logged, and threads share it."""
    state = NoiseKey(bytes(range(32))).tag_state("k")
    assert repr(state) == "State(<secret>)" == str(state)
    for column in (state.words, state.rest):
        with pytest.raises(ValueError, match="read-only"):
            column[:1] = 0
    sizes = {"digest_size": 0}, {"digest_size": 65}
    for wrong in ({"key": bytes(65)}, {"person": bytes(17)}, *sizes):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            start(b"", **cast(Any, {"digest_size": 16, **wrong}))


@pytest.mark.slow
def test_uncompiled_the_kernels_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mix", "compress"):
        monkeypatch.setattr(blake2b, name, getattr(blake2b, name).py_func)
    lengths = [0, 1, 127, 128, 129, 300]
    stops = np.cumsum(lengths, dtype=np.int64)
    starts = stops - np.array(lengths)
    texts = [BYTES[a:b].tobytes() for a, b in zip(starts, stops, strict=True)]
    out = np.zeros((len(lengths), 2), dtype=np.uint64)
    with np.errstate(over="ignore"):
        state = start(b"p" * 130, key=KEY, digest_size=16)
        cast(Any, digests).py_func(*state, BYTES, starts, stops, out)
    assert [row.tobytes() for row in out] == by_hashlib(b"p" * 130, texts, key=KEY)
