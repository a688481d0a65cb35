"""Blocks of numbers are packed as one block is: the stored format, which never changes."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.uncompiled import WAYS
from workers.histogram.packing import pack
from workers.kernels.number_blocks import pack_blocks

EDGES = [0, 1, 255, 256, 65_535, 65_536, 2**31 - 1]
WIDE = [*EDGES, 2**31, 2**32 - 1, 2**32, 2**63 - 1]


@pytest.mark.parametrize(("kind", "numbers"), [(np.int32, EDGES), (np.int64, WIDE)])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_each_block_has_the_bytes_that_it_has_alone(kind: Any, numbers: list[int], data: st.DataObject) -> None:
    """The narrowest width for its largest number, and no trace of its neighbours."""
    column = np.array(data.draw(st.lists(st.sampled_from(numbers), min_size=1, max_size=30)), dtype=kind)
    rows = data.draw(st.integers(1, 8))
    of_column = range(-(-len(column) // rows))
    blocks = np.array(sorted(data.draw(st.sets(st.sampled_from(of_column)))), dtype=np.int64)
    expected = [pack(column[block * rows : (block + 1) * rows]) for block in blocks.tolist()]
    for way in WAYS:
        widths, ends = np.empty(len(blocks), dtype=np.uint8), np.empty(len(blocks), dtype=np.int64)
        packed = np.empty(8 * rows * len(blocks), dtype=np.uint8)
        way(pack_blocks)(column, blocks, rows, widths, ends, packed)
        starts = [0, *ends.tolist()]
        found = [packed[start:end].tobytes() for start, end in zip(starts, ends.tolist(), strict=False)]
        assert list(zip(widths.tolist(), found, strict=True)) == expected
