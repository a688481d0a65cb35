"""Noise words: the right cipher over the right blocks, separated by domain, and pinned."""

import json
import pickle

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from tests.mechanisms.noise.tables import random_words
from tests.mechanisms.vectors import VECTORS, compute_vectors
from workers.arrays.types import Words
from workers.mechanisms.noise import keyed
from workers.mechanisms.noise.keyed import CHUNK_ROWS, NoiseKey, NoiseStream

KEY = NoiseKey(bytes(range(32)))
STREAM = KEY.stream(bytes(16))


@pytest.mark.slow
def test_noise_equals_the_golden_vectors() -> None:
    """A release repeated after an upgrade or on another machine must be byte-identical."""
    assert compute_vectors() == json.loads(VECTORS.read_text())


@pytest.mark.parametrize(
    "rows", [0, 1, 63, 64, 65, 130, CHUNK_ROWS, 2 * CHUNK_ROWS + 3]
)
def test_words_are_aes_256_of_tag_xor_cell(rows: int) -> None:
    """Batched, chunked encryption equals one block at a time."""
    aes_key = bytes(range(32, 64))
    tags = random_words(rows, 1)
    cell = (2**64 - 3, 12345)
    encryptor = Cipher(algorithms.AES(aes_key), modes.ECB()).encryptor()
    expected = b""
    for high, low in tags.tolist():
        halves = (high ^ cell[0], low ^ cell[1])
        expected += encryptor.update(
            b"".join(half.to_bytes(8, "little") for half in halves)
        )
    words = NoiseStream(aes_key).words(tags, cell)
    assert words.shape == (rows, 2)
    assert words.astype("<u8").tobytes() == expected


def test_chunk_refuses_more_rows_than_its_buffers_hold() -> None:
    """Rows beyond the buffer would otherwise get old words."""
    with pytest.raises(ValueError, match=f"{CHUNK_ROWS + 1} rows"):
        STREAM.chunk(random_words(CHUNK_ROWS + 1, 1), np.zeros((1, 2), dtype=np.uint64))


def test_tags_encode_stream_key_and_label_injectively() -> None:
    """Two items with one tag share their noise and can be differenced."""
    pairs = [
        ("a", b"bc"),
        ("ab", b"c"),
        ("abc", b""),
        ("", b"abc"),
        ("é", b"x"),
        ("a", b"bc\0"),
        ("a\0", b"bc"),
    ]
    tags = {
        tuple(KEY.tags(stream_key, [label])[0].tolist()) for stream_key, label in pairs
    }
    assert len(tags) == len(pairs)


def test_tags_of_a_batch_equal_tags_one_by_one() -> None:
    """The shared, pre-absorbed state must not carry one label into the next."""
    labels = [b"p%d" % number for number in range(50)]
    batch = KEY.tags("shop", labels)
    assert batch.dtype == np.uint64
    assert batch.flags.c_contiguous
    assert (
        batch == np.concatenate([KEY.tags("shop", [label]) for label in labels])
    ).all()
    assert KEY.tags("shop", []).shape == (0, 2)


def test_another_root_key_changes_everything() -> None:
    """A backtest's key must not draw production's noise."""
    other = NoiseKey(bytes(31) + b"\1")
    zero = NoiseKey(bytes(32))
    assert other.fingerprint != zero.fingerprint
    assert zero.fingerprint == NoiseKey(bytes(32)).fingerprint
    assert (other.tags("a", [b"b"]) != zero.tags("a", [b"b"])).all()
    tags = random_words(4, 1)
    one, two = (key.stream(bytes(16)).words(tags, (0, 0)) for key in (other, zero))
    assert (one != two).all()


# n pairs of independent uniform words: the sample correlation has standard deviation 1/sqrt(n) =
# 0.005, so 0.025 is five of them (one false alarm in 1.7 million).
ROWS = 40_000
LIMIT = 0.025


def correlation(first: Words, second: Words) -> float:
    return float(
        np.corrcoef(first[:, 0].astype(float), second[:, 0].astype(float))[0, 1]
    )


def test_words_are_uncorrelated_between_mechanisms_stream_keys_cells_and_items() -> (
    None
):
    """Observers could subtract shared noise; a cell does correlate with itself."""
    labels = [b"p%d" % number for number in range(ROWS)]
    tags = KEY.tags("shop 1", labels)
    others = KEY.tags("shop 2", labels)
    base = STREAM.words(tags, (1, 7))
    assert correlation(base, STREAM.words(tags.copy(), (1, 7))) == pytest.approx(1)
    assert (
        abs(correlation(base, KEY.stream(bytes(15) + b"\1").words(tags, (1, 7))))
        < LIMIT
    )
    assert abs(correlation(base, STREAM.words(others, (1, 7)))) < LIMIT
    assert abs(correlation(base, STREAM.words(tags, (1, 8)))) < LIMIT
    assert abs(correlation(base, STREAM.words(tags, (7, 1)))) < LIMIT
    assert abs(correlation(base[:-1], base[1:])) < LIMIT


@pytest.mark.parametrize("size", [0, 16, 31, 33])
def test_a_root_key_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"root = {size} bytes"):
        NoiseKey(bytes(size))


@pytest.mark.parametrize("size", [0, 15, 17, 32])
def test_a_mechanism_id_of_another_length_is_refused(size: int) -> None:
    """The id is a 16-byte hash; any other length is a caller's mistake."""
    with pytest.raises(ValueError, match=f"mechanism_id = {size} bytes"):
        KEY.stream(bytes(size))


def test_key_material_is_neither_shown_nor_pickled() -> None:
    """Logs, tracebacks and worker processes must not spread the key."""
    root = b"0123456789abcdef0123456789abcdef"
    key = NoiseKey(root)
    assert root.decode() not in repr(key) + str(key)
    assert "secret" in repr(key.stream(bytes(16)))
    for secret in (key, key.stream(bytes(16))):
        with pytest.raises(TypeError, match="not pickled"):
            pickle.dumps(secret)


def test_purposes_of_the_root_key_are_separated() -> None:
    """The fingerprint is stored and tags are in topics; neither may be a mechanism's key."""
    key = NoiseKey(bytes(32))
    keys: list[bytes] = []
    original = keyed.NoiseStream.__init__

    def record(self: NoiseStream, aes_key: bytes) -> None:
        keys.append(aes_key)
        original(self, aes_key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keyed.NoiseStream, "__init__", record)
        key.stream(bytes(16))
    (aes_key,) = keys
    assert len(aes_key) == 32
    assert key.fingerprint not in aes_key
    assert key.tags("", [bytes(16)]).tobytes() not in aes_key
