"""MetaAlgo: sums of cells against brute force, noise, price, and crash recovery."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mechanisms.one_shot.test_one_shot import Silent
from tests.mechanisms.small import SMALL, STREAM, show, start
from workers.mechanisms.one_shot.algorithms import (
    KNOWN,
    LIMITED,
    PICKING,
    Name,
)
from workers.mechanisms.running.meta import BLOCK_ROWS, Meta, MetaConfig
from workers.runtime.errors import HorizonExceeded, StateRefused

LABELS = [b"a", b"b", b"c", b"d"]


def meta(algorithm: Name, **changes: object) -> Meta:
    values = SMALL | {"horizon": 40, "max_items": 2, "algorithm": algorithm, "radix": 3}
    values |= {"domain": ("a", "b", "c", "d")} if algorithm in KNOWN else {}
    values |= {"k": 2} if algorithm in PICKING else {}
    values |= {"kbar": 3} if algorithm in LIMITED else {}
    return Meta(MetaConfig(**(values | changes)))


def cells_of(t: int, radix: int) -> list[tuple[int, int]]:
    """Return (first, last) tick of the blocks of t's digits, largest first, by the greedy rule."""
    blocks = []
    first = 1
    while first <= t:
        size = 1
        while (first - 1) % (size * radix) == 0 and first - 1 + size * radix <= t:
            size *= radix
        blocks.append((first, first + size - 1))
        first += size
    return blocks


TICKS = st.dictionaries(st.sampled_from(LABELS), st.integers(1, 60), max_size=4)
STREAMS = st.lists(TICKS, min_size=1, max_size=40)


@settings(max_examples=40, deadline=None)
@given(stream=STREAMS, radix=st.integers(2, 5))
def test_without_noise_a_known_domain_gets_the_running_counts(
    stream: list[dict[bytes, int]], radix: int
) -> None:
    """The cells of t partition 1..t, whatever the base."""
    mechanism = meta("known_gauss", radix=radix)
    state = start(mechanism, ["k"])
    noise = Silent(STREAM, mechanism.algorithm.table)
    total = dict.fromkeys(LABELS, 0)
    for t, counts in enumerate(stream, 1):
        for label, n in counts.items():
            total[label] += n
        assert show(mechanism, state, t, noise, counts) == total


@settings(max_examples=40, deadline=None)
@given(stream=STREAMS, radix=st.integers(2, 5))
def test_without_noise_an_unknown_domain_gets_the_sum_of_the_cells_that_passed(
    stream: list[dict[bytes, int]], radix: int
) -> None:
    """Every cell has its own threshold and contributions: brute force over the cells of t."""
    mechanism = meta("positive_gauss", radix=radix, epsilon=5.0)
    m = mechanism.algorithm.threshold or 0
    state = start(mechanism, ["k"])
    noise = Silent(STREAM, mechanism.algorithm.table)
    for t, counts in enumerate(stream, 1):
        expected: Counter[bytes] = Counter()
        for first, last in cells_of(t, radix):
            for label in LABELS:
                n = sum(tick.get(label, 0) for tick in stream[first - 1 : last])
                expected.update({label: n} if n > m else {})
        assert show(mechanism, state, t, noise, counts) == expected


def test_blocks_are_written_only_when_changed() -> None:
    """A tick that touches one row of 10,000 writes its blocks, not all."""
    mechanism = meta("positive_gauss")
    state = start(mechanism, ["k"])
    many = {b"%d" % i: 1 for i in range(10_000)}
    noise = Silent(STREAM, mechanism.algorithm.table)
    show(mechanism, state, 1, noise, many)
    assert {name for name, _ in state.changed()} == {
        f"mo01/{block:08x}" for block in range(3)
    }
    show(mechanism, state, 2, noise, {b"0": 10**6})
    written = dict(state.changed())
    assert set(written) == {"mo01/00000000", "mn00/00000000"}
    assert len(written["mo01/00000000"]) == 3 + 8 * BLOCK_ROWS
    with pytest.raises(StateRefused):  # of a level that this tree does not have
        state.restore("mo63/00000000", written["mo01/00000000"])


def test_impossible_settings_and_ticks_are_refused() -> None:
    with pytest.raises(
        ValueError, match='kbar is missing: algorithm = "unk_gauss" needs it'
    ):
        meta("unk_gauss", kbar=None)
    with pytest.raises(ValueError, match='k is set: algorithm = "unk_gauss" has none'):
        meta("unk_gauss", k=3)
    with pytest.raises(ValueError, match="needs a number of ticks"):
        meta("unk_gauss", horizon="unbounded", start="2026-01-01T00:00:00Z")
    mechanism = meta("unk_gauss")
    for t in (0, 41):
        with pytest.raises(HorizonExceeded):
            mechanism.step(start(mechanism, ["k"]), t, [], mechanism.noise(STREAM))
