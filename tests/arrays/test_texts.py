"""A column of texts equals a list of bytes; loops over eight bytes equal those over one."""

from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.arrays.uncompiled import uncompiled
from workers.arrays import texts as module
from workers.arrays.texts import Texts, find_lines, readonly_contiguous
from workers.arrays.words import (
    digits_at,
    first_marked,
    not_plain,
    past_digits,
    past_plain,
    put_word,
    same_bytes,
    word_at,
    write_integer,
)

LISTS = st.lists(st.binary(max_size=6), max_size=12)


@given(LISTS, st.data())
def test_a_column_is_read_taken_and_cut_as_a_list(
    texts: list[bytes], data: st.DataObject
) -> None:
    column = Texts.of(texts)
    assert list(column) == texts and len(column) == len(texts)
    assert [column[row] for row in range(-len(texts), len(texts))] == texts * 2
    assert column.lengths.tolist() == [len(text) for text in texts]
    rows = data.draw(
        st.lists(st.integers(0, max(len(texts) - 1, 0)), max_size=20 if texts else 0)
    )
    taken = column.take(np.array(rows, dtype=np.int32))
    assert list(taken) == [texts[row] for row in rows]
    start = data.draw(st.integers(0, len(texts)))
    stop = data.draw(st.integers(start, len(texts)))
    assert list(column.part(start, stop)) == texts[start:stop]
    backwards = column.part(start, stop).take(np.arange(stop - start)[::-1])
    assert list(backwards) == texts[start:stop][::-1]


@given(st.lists(LISTS, max_size=4))
def test_columns_are_joined_as_lists(parts: list[list[bytes]]) -> None:
    assert list(Texts.concat([Texts.of(part) for part in parts])) == [
        *chain.from_iterable(parts)
    ]


def test_a_row_that_is_none_is_refused() -> None:
    column = Texts.of([b"a", b"bc"])
    for row in (2, -1, 1 << 40):
        with pytest.raises(IndexError, match="not below 2"):
            column.take(np.array([0, row]))
    for row in (2, -3):
        with pytest.raises(IndexError, match=f"{row} of 2"):
            column[row]


def test_bytes_and_ends_that_do_not_belong_together_are_refused() -> None:
    """A truncated message must not be read beyond its end."""
    for text, lengths in ((b"abc", [1, 1]), (b"abc", [2, 2]), (b"a", []), (b"", [1])):
        with pytest.raises(ValueError, match="ends: "):
            Texts.from_lengths(text, np.array(lengths, dtype=np.uint16))


def test_nobody_can_write_to_a_column() -> None:
    own = np.frombuffer(bytearray(b"abc"), dtype=np.uint8)
    column = Texts(own, np.array([1, 3]))
    for array in (column.text, column.ends):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    assert own.flags.writeable, "only through the column"
    assert "abc" not in repr(column)


def test_the_loops_do_the_same_uncompiled() -> None:
    column = Texts.of([b"", b"xy", b"z"])
    rows = np.array([2, 1, 1, 0])
    ends = np.empty(4, dtype=np.int64)
    text = np.empty(5, dtype=np.uint8)
    assert uncompiled(module.gather_ends)(column.ends, rows, ends) == 5
    uncompiled(module.gather_text)(column.text, column.ends, rows, text)
    assert text.tobytes() == b"zxyxy" and ends.tolist() == [1, 3, 5, 5]
    assert uncompiled(module.gather_ends)(column.ends, np.array([3]), ends) == -1


# Includes bytes that differ from a newline in one bit, or carry into the next byte.
BYTES = st.sampled_from(
    [0, 1, 8, 9, 10, 11, 14, 26, 42, 74, 127, 128, 137, 138, 139, 255]
)


@pytest.mark.slow
@settings(max_examples=300)
@given(st.lists(BYTES, max_size=80).map(bytes), st.integers(0, 12))
def test_lines_are_what_splitting_gives(text: bytes, room: int) -> None:
    """A missed newline joins two events into a reject; an extra one cuts an event."""
    places = np.full((room + 1, 2), -1, dtype=np.int64)
    found = find_lines(
        readonly_contiguous(np.frombuffer(text, dtype=np.uint8)), places[:room]
    )
    expected = text.split(b"\n")[:-1]
    assert found == len(expected)
    got = [text[start:stop] for start, stop in places[: min(found, room)].tolist()]
    assert got == expected[:room]
    assert (places[min(found, room) :] == -1).all()


PLAIN = frozenset(range(0x20, 0x80)) - set(b'"\\')
DIGITS = frozenset(b"0123456789")
OTHERS = b'\x00\x1f !"#[]\x7f\x80\xa2\xdc\xff'


def texts() -> list[NDArray[np.uint8]]:
    """Return texts around a word's length, special and other bytes in every place."""
    rng = np.random.default_rng(5)
    made = []
    for length in range(26):
        for kinds in (b"aZ ~\x7f", b"0123456789", b'a"\\\x1f\x80', b"0:/9", OTHERS):
            made += [
                rng.choice(np.frombuffer(kinds, dtype=np.uint8), length)
                for _ in range(20)
            ]
    for byte in range(256):
        for place in range(8):
            one = np.full(8, ord("5"), dtype=np.uint8)
            one[place] = byte
            made.append(one)
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("past", "wanted"), [(past_plain, PLAIN), (past_digits, DIGITS)]
)
def test_a_run_ends_at_most_a_word_early_near_the_end(
    past: Any, wanted: frozenset[int]
) -> None:
    """Callers continue byte by byte, so the result must never pass the end."""
    for text in texts():
        for at in range(len(text) + 1):
            for stop in range(at, len(text) + 1):
                end = next(
                    (place for place in range(at, stop) if text[place] not in wanted),
                    stop,
                )
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
        text = rng.integers(0, 256, 16).astype(np.uint8)
        out = np.full(24, 7, dtype=np.uint8)
        put_word(out, at, np.uint64(word_at(text, 3)))
        assert out.tolist() == [7] * at + text[3:11].tolist() + [7] * (16 - at)


def test_a_number_is_written_as_python_writes_it() -> None:
    """All lengths, both signs, and the least number, which has no positive counterpart."""
    powers = [10**n + d for n in range(19) for d in (-1, 0, 1)]
    for number in [*powers, *(-n for n in powers), 2**63 - 1, -(2**63)]:
        out = np.full(24, 120, dtype=np.uint8)
        end = write_integer(out, 2, number)
        assert out.tobytes() == (b"xx%d" % number).ljust(24, b"x")
        assert end == 2 + len(str(number))
