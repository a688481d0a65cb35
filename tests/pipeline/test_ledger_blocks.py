"""Ledger blocks restore every row, and a tick writes only the blocks it touched."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mechanisms.test_ledger import contributions
from workers.arrays.texts import Texts
from workers.mechanisms.ledger import Ledger
from workers.mechanisms.noise.keyed import NoiseKey
from workers.pipeline import ledger_blocks
from workers.runtime.errors import StateRefused
from workers.runtime.sizes import VALUE_BYTES

NAMES = ["a", "b", "shop"]


@settings(max_examples=5)
@given(st.integers(2_000, 9_000))
def test_a_tick_writes_only_the_blocks_that_it_touched(n: int) -> None:
    """With millions of rows a commit must cost what changed, not what exists."""
    labels = [b"%d" % i for i in range(n)]
    columns = Ledger()
    columns.append(
        NoiseKey(bytes(32)).tags("k", labels), np.zeros(n, np.int32), Texts.of(labels)
    )
    written = [name for name, _ in ledger_blocks.changes(columns) if name[0] == "L"]
    assert len(written) == -(-n // ledger_blocks.BLOCK_ROWS)
    columns.clean()
    tags = NoiseKey(bytes(32)).tags("k", [b"1500"])
    part = replace(contributions({"k": {"1500": 70_000}}), tags=tags)
    columns.merge(part, np.zeros(1, np.int32), add_rows=True)
    assert [name for name, _ in ledger_blocks.changes(columns)] == ["C00000001"]


def test_a_missing_or_newer_block_is_refused() -> None:
    """Continuing from a damaged ledger would publish wrong counts under used noise."""
    columns = Ledger()
    part = contributions({"a": {str(i): i + 1 for i in range(3000)}})
    columns.merge(part, np.zeros(1, np.int32), add_rows=True)
    blocks = dict(ledger_blocks.changes(columns))
    with pytest.raises(StateRefused, match="block before it is missing"):
        ledger_blocks.load(((k, v) for k, v in blocks.items() if k != "L00000000"), 1)
    with pytest.raises(StateRefused, match="label block is missing"):
        ledger_blocks.load(((k, v) for k, v in blocks.items() if k != "L00000002"), 1)
    with pytest.raises(StateRefused, match="upgrade"):
        ledger_blocks.load(
            {**blocks, "C00000000": b"\x09" + blocks["C00000000"][1:]}.items(), 1
        )


@pytest.mark.parametrize("key", [1, 2**31 - 1, 2**32 - 1])
def test_a_row_of_a_stream_key_that_is_not_stored_is_refused(key: int) -> None:
    """A kernel would add its count beyond an array: found by `tests.fuzz`, as a segmentation fault."""
    columns = Ledger()
    columns.merge(contributions({"a": {"1": 1}}), np.zeros(1, np.int32), add_rows=True)
    blocks = dict(ledger_blocks.changes(columns))
    assert ledger_blocks.load(blocks.items(), 1).n == 1
    labels = bytearray(blocks["L00000000"])
    labels[20:24] = key.to_bytes(4, "little")
    with pytest.raises(StateRefused, match="stream key is none of 1"):
        ledger_blocks.load({**blocks, "L00000000": bytes(labels)}.items(), 1)


def grown(columns: Ledger, lengths: list[int], tick: int) -> None:
    """Append rows with labels of these lengths, all shown at `tick`."""
    key = NoiseKey(bytes(32))
    first = columns.n
    labels = [b"%04d" % (first + i) + bytes(n - 4) for i, n in enumerate(lengths)]
    rows = columns.append(
        key.tags("k", labels), np.zeros(len(labels), np.int32), Texts.of(labels)
    )
    columns.counts[rows] = first + 1
    columns.counts_changed.append(rows)
    columns.mark_shown(rows, tick)


@pytest.mark.slow
@given(
    st.lists(
        st.lists(st.sampled_from([4, 900, 1024]), min_size=1, max_size=700), max_size=6
    )
)
def test_blocks_of_long_labels_grow_by_parts_and_are_loaded_whole(
    commits: list[list[int]],
) -> None:
    columns = Ledger()
    store = dict[str, bytes]()
    for tick, lengths in enumerate(commits, 1):
        before = columns.stored_rows
        grown(columns, lengths, tick)
        written = dict(ledger_blocks.changes(columns))
        assert all(len(value) <= VALUE_BYTES for value in written.values())
        store.update(written)
        columns.clean()
        again = ledger_blocks.load(sorted(store.items()), len(NAMES))
        labels = [columns.label(row) for row in range(columns.n)]
        assert [again.label(row) for row in range(again.n)] == labels
        assert np.array_equal(again.tags, columns.tags)
        assert np.array_equal(again.counts, columns.counts)
        fresh = Ledger()
        grown(fresh, list(map(len, labels)), tick)
        at_once = {n: v for n, v in ledger_blocks.changes(fresh) if n[0] == "L"}
        assert at_once == {n: v for n, v in store.items() if n[0] == "L"}
        assert before // ledger_blocks.BLOCK_ROWS <= min(
            int(name[1:9], 16) for name in written
        )


def test_a_missing_part_is_refused() -> None:
    """Lost rows would renumber the rows behind them and so change counts."""
    columns = Ledger()
    grown(columns, [1024] * 3000, 1)
    blocks = dict(ledger_blocks.changes(columns))
    names = [f"L{block:08x}{part}" for block in range(3) for part in ("", ".01")]
    assert set(names) <= set(blocks)
    for lost in [name for name in blocks if name[0] == "L"]:
        with pytest.raises(StateRefused, match="missing"):
            ledger_blocks.load(
                ((n, v) for n, v in blocks.items() if n != lost), len(NAMES)
            )


def test_the_bytes_of_a_block_are_head_tags_keys_lengths_and_text() -> None:
    """The stored format is fixed: a worker must read what the one before it wrote."""
    columns = Ledger()
    grown(columns, [20] * 1024, 1)
    labels = columns.label_column(0, 1024)
    tags = columns.tags.astype("<u8").tobytes()
    keys = columns.keys.astype("<u4").tobytes()
    behind = labels.lengths.astype("<u2").tobytes() + labels.text.tobytes()
    written = dict(ledger_blocks.changes(columns))["L00000000"]
    assert written == b"\x01\x00\x00\x04" + tags + keys + behind


@pytest.mark.parametrize("tick", [2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40])
def test_late_ticks_are_noted_and_restored(tick: int) -> None:
    """An endless epoch passes tick 2^31 after 25 days of ticks of 1 ms and must go on."""
    columns = Ledger()
    grown(columns, [10] * 5, 7)
    narrow = columns.shown.dtype
    columns.mark_shown(np.array([3]), tick)
    grown(columns, [10] * 2_000, tick)
    again = ledger_blocks.load(ledger_blocks.changes(columns), len(NAMES))
    assert columns.shown[:5].tolist() == again.shown[:5].tolist() == [7, 7, 7, tick, 7]
    assert again.shown[5:].tolist() == [tick] * 2_000
    assert narrow == np.int32, "four bytes an item as long as they suffice"
    assert again.shown.dtype == (np.int32 if tick < 2**31 else np.int64)


@pytest.mark.parametrize(
    "number", [b"", b"x", b"-1", b"1.5", b"1", b"999999999", b"9" * 5_000]
)
def test_a_number_of_pages_that_is_none_is_refused_at_once(number: bytes) -> None:
    with pytest.raises(StateRefused, match="is missing"):
        ledger_blocks.read_paged(
            b"progress", {b"progress": b'{"pages":%b}' % number}.get
        )


@pytest.mark.parametrize("value", [b"", b'[["\xff",1]]', b"[" * 5_000, b"[[1,1]]"])
def test_stream_keys_that_cannot_be_decoded_are_refused(value: bytes) -> None:
    with pytest.raises(StateRefused, match="another version"):
        ledger_blocks.decode(value)
