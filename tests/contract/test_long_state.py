"""State over several blocks, parts or pages is restored whole, or refused."""

from __future__ import annotations

import pytest

from tests.contract.long_messages import TICK, longest, max_state, pay_state
from workers.mechanisms.one_shot.pay import PayState
from workers.mechanisms.order_statistics.engine import MaxState
from workers.pipeline import ledger_blocks
from workers.pipeline.ledger_blocks import joined, pages
from workers.runtime.errors import StateRefused

pytestmark = pytest.mark.slow


def test_a_partition_of_many_columns_is_restored_from_its_pages() -> None:
    """40,000 columns take 1.28 MB: a lost page would give other thresholds under the same noise."""
    blocks = max_state().changed()
    assert [name for name, _ in blocks] == ["m00100000", "m00100000.0001"]
    again = MaxState()
    for name, block in blocks:
        again.restore(name, block)
    [was], [found] = (made.of.values() for made in (max_state(), again))
    assert found.encode() == was.encode()
    with pytest.raises(StateRefused, match="a page of block m00100000 is missing"):
        MaxState().restore(*blocks[1])
    half = MaxState()
    half.restore(*blocks[0])
    assert half.of == {}, "not taken for whole"


def test_budgets_of_many_stream_keys_are_restored_from_their_blocks() -> None:
    """With keys = "public" the data sets their number: a block of 131,000 was never accepted."""
    was, again = pay_state(), PayState()
    blocks = was.changed()
    assert len(blocks) == 4
    for name, block in blocks:
        again.restore(name, block)
    assert again.left == was.left
    damaged = PayState()
    damaged.restore(*blocks[0])
    with pytest.raises(StateRefused, match="a block before"):
        damaged.restore(*blocks[2])


@pytest.mark.parametrize(
    "commits", [(1, 100, 170, 171, 1_024, 1_025, 2_500), (2_500,), (1_000, 1_500)]
)
def test_stream_keys_are_stored_by_parts_and_none_is_left_behind(commits: tuple[int, ...]) -> None:
    """171 keys of control characters exceeded a block; key order is noise and count order."""
    keys, since = [longest(i) for i in range(commits[-1])], list(range(TICK, TICK + commits[-1]))
    store, stored = dict[str, bytes](), 0
    for n in commits:
        store.update(ledger_blocks.key_changes(keys[:n], since[:n], stored))
        stored = n
        found = [pair for _, value in sorted(store.items()) for pair in ledger_blocks.decode(value)]
        assert found == list(zip(keys[:n], since[:n], strict=True))
    assert store == dict(ledger_blocks.key_changes(keys, since, 0))
    assert not list(ledger_blocks.key_changes(keys, since, len(keys)))


def test_short_keys_are_stored_in_one_block() -> None:
    stored = dict(ledger_blocks.key_changes(["s1", "s2"], [4, 7], 0))
    assert stored == {"keys/00000000": b'[["s1",4],["s2",7]]'}


def test_a_long_value_is_joined_from_its_pages_or_refused() -> None:
    """Half a progress record must not pass, nor stale pages of a longer one."""
    long, short, store = b'{"a":"' + b"x" * 95 + b'"}', b'{"a":1}', dict[bytes, bytes | None]()
    for value in (long, short, long[:40] + b"}", long):
        store.update(pages(b"progress", value, 40))
        assert joined(b"progress", store.get) == value
    assert pages(b"progress", long, 40)[-1] == (b"progress", b'{"pages":3}')
    del store[b"progress.0001"]
    with pytest.raises(StateRefused, match="a page of progress is missing"):
        joined(b"progress", store.get)
    assert joined(b"other", store.get) is None
