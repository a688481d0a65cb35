"""Section columns equal what was packed, and keys that do not fit its rows are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.arrays.uncompiled import WAYS
from workers.arrays.text_columns import columns_of
from workers.arrays.texts import readonly_contiguous
from workers.pipeline.ledger_blocks import pack

COUNT = st.sampled_from([1, 255, 256, 65_536, 2**32 - 1, 2**32, 2**63 - 1])
ROWS = st.lists(st.tuples(st.integers(0, 1024), COUNT), max_size=20)


def columns(way: Any, rows: list[tuple[int, int]], keys: list[int]) -> tuple[bool, list[list[int]]]:
    width, packed = pack(np.array([count for _, count in rows], dtype=np.int64))
    out = [np.full(len(rows), -1, dtype=kind) for kind in (np.int64, np.int64, np.int32)]
    lengths = readonly_contiguous(np.array([length for length, _ in rows], dtype="<u2"))
    counts = readonly_contiguous(np.frombuffer(packed, dtype=np.uint8))
    said = way(columns_of)(lengths, counts, width, np.array(keys, dtype=np.int64), *out)
    return bool(said), [column.tolist() for column in out]


@given(ROWS, st.data())
def test_columns_are_those_that_were_packed(
    rows: list[tuple[int, int]], data: st.DataObject
) -> None:
    """A wrong row would be published under a wrong name."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    keys = np.diff([0, *cuts, len(rows)]).tolist()
    ends = np.cumsum([length for length, _ in rows], dtype=np.int64).tolist()
    of_row = [key for key, number in enumerate(keys) for _ in range(number)]
    for way in WAYS:
        assert columns(way, rows, keys) == (True, [ends, [count for _, count in rows], of_row])


@pytest.mark.parametrize(
    "keys", [[], [1], [2, 2], [4, -1], [2**62, 2**62, 2**62, 2**62, 3], [-3, 6]]
)
def test_keys_that_do_not_have_as_many_rows_are_refused(keys: list[int]) -> None:
    """Also where their sum would match but for its sign or 64-bit overflow."""
    for way in WAYS:
        assert columns(way, [(1, 1)] * 3, keys)[0] is False
