"""Lines are split exactly at newlines, eight bytes at a time or one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.arrays.text_columns import find_lines
from workers.arrays.texts import readonly_contiguous

# Includes bytes that differ from a newline in one bit, or carry into the next byte.
BYTES = st.sampled_from([0, 1, 8, 9, 10, 11, 14, 26, 42, 74, 127, 128, 137, 138, 139, 255])


@settings(max_examples=300, deadline=None)
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
