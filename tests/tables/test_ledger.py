"""The ledger's blocks bring every row back, and a tick writes only the blocks that it touched."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mechanisms.test_rows import TALLIES, as_dict, contributions
from workers.errors import StateRefused
from workers.mechanisms.noise import NoiseKey
from workers.mechanisms.rows import Columns
from workers.tables import ledger

NAMES = ["a", "b", "shop"]


@given(st.lists(TALLIES, max_size=6), st.data())
def test_what_was_written_block_by_block_is_what_is_loaded(
    parts: list[dict[str, dict[str, int]]], data: st.DataObject
) -> None:
    """Recovery must give the very state that was committed, at every commit."""
    columns = Columns()
    store: dict[str, bytes] = {}
    for tick, tally in enumerate(parts, 1):
        part = contributions(tally)
        columns.merge(part, np.array([NAMES.index(k) for k in part.keys], dtype=np.int32), add_rows=True)
        if columns.n:
            columns.mark_shown(np.array([data.draw(st.integers(0, columns.n - 1))]), tick)
        store.update(ledger.changes(columns))
        columns.clean()
        again = ledger.load(sorted(store.items()))
        assert as_dict(again, NAMES) == as_dict(columns, NAMES)
        assert np.array_equal(again.shown, columns.shown) and np.array_equal(again.tags, columns.tags)
        assert not list(ledger.changes(again))


@settings(max_examples=5, deadline=None)
@given(st.integers(2_000, 9_000))
def test_a_tick_writes_only_the_blocks_that_it_touched(n: int) -> None:
    """With millions of rows a commit must cost what changed, not what is there."""
    labels = [b"%d" % i for i in range(n)]
    columns = Columns()
    columns.append(
        NoiseKey(bytes(32)).tags("k", labels),
        np.zeros(n, np.int32),
        np.fromiter(map(len, labels), np.int64, n),
        b"".join(labels),
    )
    assert len([name for name, _ in ledger.changes(columns) if name[0] == "L"]) == -(-n // ledger.BLOCK_ROWS)
    columns.clean()
    part = contributions({"k": {"1500": 70_000}})
    key = NoiseKey(bytes(32))
    part = type(part)(part.keys, part.key_of_row, key.tags("k", [b"1500"]), part.labels, part.counts)
    columns.merge(part, np.zeros(1, np.int32), add_rows=True)
    assert [name for name, _ in ledger.changes(columns)] == ["C00000001"]


def test_a_missing_or_newer_block_is_refused() -> None:
    """Counting on from a damaged ledger would publish wrong counts under noise that was already used."""
    columns = Columns()
    part = contributions({"a": {str(i): i + 1 for i in range(3000)}})
    columns.merge(part, np.zeros(1, np.int32), add_rows=True)
    blocks = dict(ledger.changes(columns))
    with pytest.raises(StateRefused, match="block before it is missing"):
        ledger.load((k, v) for k, v in blocks.items() if k != "L00000000")
    with pytest.raises(StateRefused, match="label block is missing"):
        ledger.load((k, v) for k, v in blocks.items() if k != "L00000002")
    with pytest.raises(StateRefused, match="upgrade"):
        ledger.load({**blocks, "C00000000": b"\x09" + blocks["C00000000"][1:]}.items())
