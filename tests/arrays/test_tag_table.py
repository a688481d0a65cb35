"""The table finds exactly the entered tags, compiled or not, also under collisions."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.arrays.uncompiled import WAYS
from workers.arrays import tag_index
from workers.arrays.tag_index import TagIndex

Tag = tuple[int, int]
Tags = NDArray[np.uint64]
# Halves that share a slot, or a fingerprint, or both, with others that differ from them.
HALVES = st.sampled_from([0, 1, 2, 15, 16, 17, 1 << 33, 5 << 33, (1 << 64) - 1])
TAGS = st.lists(st.tuples(HALVES, HALVES), unique=True, min_size=1, max_size=40)


@pytest.mark.slow
@settings(max_examples=60)
@given(tags=TAGS, entered=st.integers(0, 40), bits=st.sampled_from([6, 7, 12]))
def test_a_tag_has_the_row_that_a_dictionary_says(
    tags: list[Tag], entered: int, bits: int
) -> None:
    """A lost row would start a second count of an item; a wrong one would count another item."""
    entered = min(entered, len(tags))
    row_tags = np.array(tags, dtype=np.uint64)
    expected = [row if row < entered else -1 for row in range(len(tags))]
    counts = np.arange(1, len(tags) + 1)
    for way in WAYS:
        slots = np.zeros(1 << bits, dtype=np.uint32)
        way(tag_index.enter_rows)(slots, row_tags, 0, entered)
        rows = np.empty(len(tags), dtype=np.int64)
        way(tag_index.find_rows)(slots, row_tags, row_tags, rows)
        assert rows.tolist() == expected
        totals = np.full(len(tags), 1 << 60)
        room = np.empty(tag_index.BATCH_TAGS, dtype=np.int64)
        left = way(tag_index.add_to_rows)(
            slots, row_tags, totals, row_tags, counts, rows, room
        )
        assert left == len(tags) - entered
        assert rows.tolist() == expected
        assert (totals - (1 << 60)).tolist() == [*range(1, entered + 1), *[0] * left]


@pytest.mark.parametrize("way", WAYS)
def test_a_search_goes_on_at_the_beginning_and_ends_at_a_free_slot(way: Any) -> None:
    """A tag that has no row has the row -1."""
    slots = np.zeros(8, dtype=np.uint32)
    row_tags = np.array([[7, 1 << 40], [7, 2 << 40]], dtype=np.uint64)
    row_of = way(tag_index.row_of)
    assert row_of(slots, row_tags, *row_tags[0]) == -1
    way(tag_index.enter_rows)(slots, row_tags, 0, 1)
    assert row_of(slots, row_tags, *row_tags[0]) == 0
    assert row_of(slots, row_tags, *row_tags[1]) == -1


@settings(max_examples=20)
@given(st.lists(st.integers(0, 3_000), max_size=5), st.integers(0, 1 << 32))
def test_an_index_grows_without_losing_a_row(parts: list[int], seed: int) -> None:
    """A full table re-enters all rows, with shorter fingerprints."""
    rng = np.random.default_rng(seed)
    row_tags = rng.integers(0, 1 << 64, size=(sum(parts), 2), dtype=np.uint64)
    index = TagIndex()
    n = 0
    for part in parts:
        n += part
        index.enter(n, row_tags)
        assert np.array_equal(index.find(row_tags, row_tags)[:n], np.arange(n))
        assert (index.find(row_tags, row_tags)[n:] == -1).all()
    assert index.nbytes <= max(8192, 11 * n)


def test_more_rows_than_a_slot_can_name_are_refused_before_memory_is_taken() -> None:
    """A wrapped number would be another row's."""
    with pytest.raises(OverflowError, match="at most 3,221,225,472"):
        TagIndex().reserve(3_221_225_473, np.empty((0, 2), dtype=np.uint64))
