"""A column of texts equals a list of bytes; lines are split exactly at newlines."""

from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.arrays.uncompiled import uncompiled
from workers.arrays import text_columns
from workers.arrays.text_columns import find_lines
from workers.arrays.texts import Texts, readonly_contiguous

LISTS = st.lists(st.binary(max_size=6), max_size=12)


@given(LISTS, st.data())
def test_a_column_is_read_taken_and_cut_as_a_list(texts: list[bytes], data: st.DataObject) -> None:
    column = Texts.of(texts)
    assert list(column) == texts and len(column) == len(texts)
    assert [column[row] for row in range(-len(texts), len(texts))] == texts * 2
    assert column.lengths.tolist() == [len(text) for text in texts]
    rows = data.draw(st.lists(st.integers(0, max(len(texts) - 1, 0)), max_size=20 if texts else 0))
    taken = column.take(np.array(rows, dtype=np.int32))
    assert list(taken) == [texts[row] for row in rows]
    start = data.draw(st.integers(0, len(texts)))
    stop = data.draw(st.integers(start, len(texts)))
    assert list(column.part(start, stop)) == texts[start:stop]
    backwards = column.part(start, stop).take(np.arange(stop - start)[::-1])
    assert list(backwards) == texts[start:stop][::-1]


@given(st.lists(LISTS, max_size=4))
def test_columns_are_joined_as_lists(parts: list[list[bytes]]) -> None:
    assert list(Texts.concat([Texts.of(part) for part in parts])) == [*chain.from_iterable(parts)]


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
    column, rows = Texts.of([b"", b"xy", b"z"]), np.array([2, 1, 1, 0])
    ends, text = np.empty(4, dtype=np.int64), np.empty(5, dtype=np.uint8)
    assert uncompiled(text_columns.taken_ends)(column.ends, rows, ends) == 5
    uncompiled(text_columns.take_text)(column.text, column.ends, rows, text)
    assert text.tobytes() == b"zxyxy" and ends.tolist() == [1, 3, 5, 5]
    assert uncompiled(text_columns.taken_ends)(column.ends, np.array([3]), ends) == -1


# Includes bytes that differ from a newline in one bit, or carry into the next byte.
BYTES = st.sampled_from([0, 1, 8, 9, 10, 11, 14, 26, 42, 74, 127, 128, 137, 138, 139, 255])


@settings(max_examples=300)
@given(st.lists(BYTES, max_size=80).map(bytes), st.integers(0, 12))
def test_lines_are_what_splitting_gives(text: bytes, room: int) -> None:
    """A missed newline joins two events into a reject; an extra one cuts an event."""
    places = np.full((room + 1, 2), -1, dtype=np.int64)
    found = find_lines(readonly_contiguous(np.frombuffer(text, dtype=np.uint8)), places[:room])
    expected = text.split(b"\n")[:-1]
    assert found == len(expected)
    got = [text[start:stop] for start, stop in places[: min(found, room)].tolist()]
    assert got == expected[:room]
    assert (places[min(found, room) :] == -1).all()
