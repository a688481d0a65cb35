"""Word-wise loops over eight bytes equal byte-wise ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from workers.arrays.words import (
    digits_at,
    first_marked,
    not_plain,
    past_digits,
    past_plain,
    put_word,
    same_bytes,
    word_at,
)

PLAIN = frozenset(range(0x20, 0x80)) - set(b'"\\')
DIGITS = frozenset(b"0123456789")
OTHERS = b'\x00\x1f !"#[]\x7f\x80\xa2\xdc\xff'


def texts() -> list[NDArray[np.uint8]]:
    """Return texts around a word's length, special and other bytes in every place."""
    rng, made = np.random.default_rng(5), []
    for length in range(26):
        for kinds in (b"aZ ~\x7f", b"0123456789", b'a"\\\x1f\x80', b"0:/9", OTHERS):
            made += [rng.choice(np.frombuffer(kinds, dtype=np.uint8), length) for _ in range(20)]
    for byte in range(256):
        for place in range(8):
            one = np.full(8, ord("5"), dtype=np.uint8)
            one[place] = byte
            made.append(one)
    return made


@pytest.mark.slow
@pytest.mark.parametrize(("past", "wanted"), [(past_plain, PLAIN), (past_digits, DIGITS)])
def test_a_run_ends_at_most_a_word_early_near_the_end(past: Any, wanted: frozenset[int]) -> None:
    """Callers continue byte by byte, so the result must never pass the end."""
    for text in texts():
        for at in range(len(text) + 1):
            for stop in range(at, len(text) + 1):
                end = next((place for place in range(at, stop) if text[place] not in wanted), stop)
                found = past(text, at, stop)
                assert found <= end
                # Where whole words fit in the array, it is exact.
                assert found == end or found > len(text) - 8
    assert past(np.zeros(8, dtype=np.uint8), -3, 4) == -3


def test_the_first_mark_is_that_of_the_first_byte_that_is_meant() -> None:
    for byte in range(256):
        for place in range(8):
            text = np.full(8, ord("a"), dtype=np.uint8)
            text[place] = byte
            marks = np.uint64(not_plain(np.uint64(word_at(text, 0))))
            assert (marks != 0) == (byte not in PLAIN)
            if marks != 0:
                assert first_marked(marks) == place


def test_up_to_eight_digits_are_their_number() -> None:
    rng = np.random.default_rng(6)
    drawn = rng.integers(0, 10**8, 1_000).tolist()
    for number in [0, 1, 10, 99_999_999, 12_345_678, 90_000_009, *drawn]:
        for digits in range(1, 9):
            written = (b"%08d" % number)[-digits:]
            text = np.frombuffer(b"x" + written + b',"\xff0z{}9', dtype=np.uint8)
            assert digits_at(text, 1, digits) == int(written)


def test_same_bytes_are_the_same_and_others_are_not() -> None:
    """Every length and place of a difference, at array ends and within."""
    rng = np.random.default_rng(7)
    for length in range(27):
        for before, behind in ((0, 0), (0, 9), (3, 0), (5, 12)):
            text = rng.integers(0, 256, before + length + behind).astype(np.uint8)
            more = rng.integers(0, 256, behind).astype(np.uint8)
            parts = np.zeros(2, dtype=np.uint8), text[before : before + length], more
            other = np.concatenate(parts)
            assert same_bytes(text, before, other, 2, length)
            for place in range(length):
                other[2 + place] ^= 1 << int(rng.integers(8))
                assert not same_bytes(text, before, other, 2, length)
                other[2 + place] = text[before + place]


def test_a_word_is_written_as_it_was_read() -> None:
    rng = np.random.default_rng(7)
    for at in range(9):
        text, out = rng.integers(0, 256, 16).astype(np.uint8), np.full(24, 7, dtype=np.uint8)
        put_word(out, at, np.uint64(word_at(text, 3)))
        assert out.tolist() == [7] * at + text[3:11].tolist() + [7] * (16 - at)
