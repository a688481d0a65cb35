"""Blocks of numbers keep their stored format; look-up, sums and thresholds match arrays."""

import struct
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.arrays.uncompiled import WAYS
from workers.arrays.number_blocks import (
    HEAD_BYTES,
    find_shown,
    look_up,
    mark_blocks,
    pack,
    pack_blocks,
    xor,
)
from workers.arrays.texts import readonly_contiguous

EDGES = [0, 1, 255, 256, 65_535, 65_536, 2**31 - 1]
WIDE = [*EDGES, 2**31, 2**32 - 1, 2**32, 2**63 - 1]


@pytest.mark.parametrize(("kind", "numbers"), [(np.int32, EDGES), (np.int64, WIDE)])
@settings(max_examples=60)
@given(data=st.data())
def test_each_block_has_the_bytes_that_it_has_alone(
    kind: Any, numbers: list[int], data: st.DataObject
) -> None:
    """The narrowest width for its largest number, independent of neighbours."""
    drawn = data.draw(st.lists(st.sampled_from(numbers), min_size=1, max_size=30))
    column = np.array(drawn, dtype=kind)
    rows = data.draw(st.integers(1, 8))
    of_column = range(-(-len(column) // rows))
    blocks = np.array(
        sorted(data.draw(st.sets(st.sampled_from(of_column)))), dtype=np.int64
    )
    parts = [column[block * rows : (block + 1) * rows] for block in blocks.tolist()]
    expected = [
        struct.pack("<BBH", 7, pack(part)[0], len(part)) + pack(part)[1]
        for part in parts
    ]
    for way in WAYS:
        ends = np.empty(len(blocks), dtype=np.int64)
        packed = np.empty((HEAD_BYTES + 8 * rows) * len(blocks), dtype=np.uint8)
        way(pack_blocks)(column, blocks, rows, 7, ends, packed)
        spans = pairwise([0, *ends.tolist()])
        assert [packed[start:end].tobytes() for start, end in spans] == expected


def test_a_head_says_how_many_rows_a_block_of_more_than_a_byte_of_them_has() -> None:
    """Two bytes, the lower one first."""
    for way in WAYS:
        ends = np.empty(1, dtype=np.int64)
        packed = np.empty(HEAD_BYTES + 8 * 1000, dtype=np.uint8)
        way(pack_blocks)(
            np.zeros(2000, dtype=np.int64), np.array([1]), 1000, 1, ends, packed
        )
        assert packed[:HEAD_BYTES].tobytes() == struct.pack("<BBH", 1, 0, 1000)
        assert ends.tolist() == [HEAD_BYTES + 1000]


def test_the_blocks_of_rows_are_marked_and_no_others() -> None:
    """A block's first and last row belong to it; existing marks stay."""
    for way in WAYS:
        blocks = np.array([False, False, False, False, True])
        way(mark_blocks)(readonly_contiguous(np.array([8, 15, 24])), 3, blocks)
        assert blocks.tolist() == [False, True, False, True, True]


@pytest.mark.parametrize("kind", [np.int16, np.int32])
@pytest.mark.parametrize("number", [0, 1, 500])
def test_noise_is_the_number_of_thresholds_at_or_below_a_word(
    kind: Any, number: int
) -> None:
    """Thresholds with equal upper halves; words at and beside one, and with any upper bits."""
    rng = np.random.default_rng(number)
    mark = int(np.iinfo(kind).min)
    lowest = -7
    shared = [int(upper) << 64 for upper in rng.integers(1, 2**64, 4, dtype=np.uint64)]
    drawn_low = [[0, *rng.integers(0, 2**64, 3, dtype=np.uint64)] for _ in shared]
    pairs = zip(shared, drawn_low, strict=True)
    edges = sorted({upper + int(low) for upper, lows in pairs for low in lows})
    halves = np.array(
        [(edge >> 64, edge & (1 << 64) - 1) for edge in edges], dtype=np.uint64
    )
    decided = [_decided(edges, lowest, mark, upper << 124) for upper in range(1 << 4)]
    guide = np.array(decided, dtype=kind)
    uppers_and_lows = rng.integers(0, 2**64, (number, 2), dtype=np.uint64)
    drawn = [int(upper) << 64 | int(low) for upper, low in uppers_and_lows]
    beside_edges = [edge + beside for edge in edges for beside in (-1, 0, 1)]
    numbers = [*drawn, *beside_edges] if number else []
    of_numbers = [(each >> 64, each & (1 << 64) - 1) for each in numbers]
    words = np.array(of_numbers, dtype=np.uint64).reshape(-1, 2)
    expected = [lowest + sum(edge <= each for edge in edges) for each in numbers]
    for way in WAYS:
        out = np.empty(len(words), dtype=kind)
        high, low = (readonly_contiguous(half.copy()) for half in halves.T)
        given = readonly_contiguous(guide)
        of_words = readonly_contiguous(words)
        way(look_up)(given, np.uint64(60), mark, high, low, lowest, of_words, out)
        assert out.tolist() == expected


def _decided(edges: list[int], lowest: int, mark: int, first: int) -> int:
    """Return the words' value from `first` on, by upper four bits; `mark` where it differs."""
    below = sum(edge <= first for edge in edges)
    within = sum(edge < first + (1 << 124) for edge in edges)
    return mark if below != within else lowest + below


@pytest.mark.parametrize("number", [0, 1, 77])
def test_words_are_joined_with_each_cell_half_by_half(number: int) -> None:
    """The same word for two cells would be shared noise."""
    words = np.random.default_rng(1).integers(0, 2**64, (number, 2), dtype=np.uint64)
    cells = np.array([(2**64 - 2, 5), (0, 1), (1, 0)], dtype=np.uint64)
    for way in WAYS:
        out = np.empty((3 * number, 2), dtype=np.uint64)
        way(xor)(readonly_contiguous(words), cells, out)
        pairs = product(cells.tolist(), words.tolist())
        assert out.tolist() == [
            [a ^ upper, b ^ lower] for (upper, lower), (a, b) in pairs
        ]


@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("rows", [0, 1, 63, 64, 65, 200])
@pytest.mark.parametrize("tests", [True, False])
def test_rows_pass_above_the_threshold_once_and_stay(
    kind: Any, rows: int, tests: bool
) -> None:
    """Showing at the threshold, or at a tick without a test, would cost more than delta.

    Rows come in groups: first and last of one, an empty group, and a partial one.
    """
    rng = np.random.default_rng(rows)
    for share in (0.0, 0.01, 0.3, 1.0):
        counts = rng.integers(0, 10, rows)
        noise = rng.integers(-5, 5, rows)
        high = rng.random(rows) < share
        # at the threshold, above
        counts[high] = rng.choice([50, 51, 100], high.sum()) - noise[high]
        shown = np.where(rng.random(rows) < share, 7, 0).astype(kind)
        before = shown.copy()
        first = (shown == 0) & (counts + noise > 50) & tests
        either = np.flatnonzero(first | (shown != 0))
        for way in WAYS:
            new, found, noisy = (np.empty(rows, dtype=np.int64) for _ in range(3))
            fresh, both = way(find_shown)(
                counts, noise, shown, 50, tests, new, found, noisy
            )
            assert new[:fresh].tolist() == np.flatnonzero(first).tolist()
            assert found[:both].tolist() == either.tolist()
            assert noisy[:both].tolist() == (counts + noise)[either].tolist()
            assert np.array_equal(shown, before)
