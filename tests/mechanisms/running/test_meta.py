"""MetaAlgo: sums of cells against brute force, noise, price, and crash recovery."""

from collections import Counter
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mechanisms.one_shot.test_one_shot import Silent
from tests.mechanisms.small import KEY, SMALL, STREAM, counted, labelled
from workers.mechanisms.counters.tree import TreeCounter
from workers.mechanisms.one_shot.algorithms import (
    KNOWN,
    LIMITED,
    PICKING,
    Name,
    OneShotNoise,
)
from workers.mechanisms.running.meta import BLOCK_ROWS, Meta, MetaConfig, MetaState
from workers.runtime.errors import HorizonExceeded, StateRefused

NAMES = get_args(Name)
LABELS = [b"a", b"b", b"c", b"d"]


def meta(algorithm: Name, **changes: object) -> Meta:
    values = SMALL | {"horizon": 40, "max_items": 2, "algorithm": algorithm, "radix": 3}
    values |= {"domain": ("a", "b", "c", "d")} if algorithm in KNOWN else {}
    values |= {"k": 2} if algorithm in PICKING else {}
    values |= {"kbar": 3} if algorithm in LIMITED else {}
    return Meta(MetaConfig(**(values | changes)))


def met(mechanism: Meta) -> MetaState:
    state = mechanism.init()
    state.key_tags = KEY.tags("k", [b"\xff"])
    mechanism.prepare_key(
        state, 0, KEY.tags("k", mechanism.domain()), mechanism.domain()
    )
    return state


def shown(
    mechanism: Meta,
    state: MetaState,
    t: int,
    counts: dict[bytes, int],
    noise: OneShotNoise,
) -> dict[bytes, int]:
    _, release = mechanism.step(state, t, [counted(counts)] if counts else [], noise)
    return labelled(state, release)


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
    state = met(mechanism)
    noise = Silent(STREAM, mechanism.algorithm.table)
    total = dict.fromkeys(LABELS, 0)
    for t, counts in enumerate(stream, 1):
        for label, n in counts.items():
            total[label] += n
        assert shown(mechanism, state, t, counts, noise) == total


@settings(max_examples=40, deadline=None)
@given(stream=STREAMS, radix=st.integers(2, 5))
def test_without_noise_an_unknown_domain_gets_the_sum_of_the_cells_that_passed(
    stream: list[dict[bytes, int]], radix: int
) -> None:
    """Every cell has its own threshold and contributions: brute force over the cells of t."""
    mechanism = meta("positive_gauss", radix=radix, epsilon=5.0)
    m = mechanism.algorithm.threshold or 0
    state = met(mechanism)
    noise = Silent(STREAM, mechanism.algorithm.table)
    for t, counts in enumerate(stream, 1):
        expected: Counter[bytes] = Counter()
        for first, last in cells_of(t, radix):
            for label in LABELS:
                n = sum(tick.get(label, 0) for tick in stream[first - 1 : last])
                expected.update({label: n} if n > m else {})
        assert shown(mechanism, state, t, counts, noise) == expected


def test_blocks_are_written_only_when_changed() -> None:
    """A tick that touches one row of 10,000 writes its blocks, not all."""
    mechanism = meta("positive_gauss")
    state = met(mechanism)
    many = {b"%d" % i: 1 for i in range(10_000)}
    noise = Silent(STREAM, mechanism.algorithm.table)
    shown(mechanism, state, 1, many, noise)
    assert {name for name, _ in state.changed()} == {
        f"mo01/{block:08x}" for block in range(3)
    }
    shown(mechanism, state, 2, {b"0": 10**6}, noise)
    written = dict(state.changed())
    assert set(written) == {"mo01/00000000", "mn00/00000000"}
    assert len(written["mo01/00000000"]) == 3 + 8 * BLOCK_ROWS
    with pytest.raises(StateRefused):  # of a level that this tree does not have
        state.restore("mo63/00000000", written["mo01/00000000"])


@pytest.mark.parametrize("name", NAMES)
def test_the_price_is_one_release_a_level(name: Name) -> None:
    """000 Theorem 3 over L_r cells; for Gaussian noise it equals the tree counter's price."""
    mechanism = meta(name)
    assert mechanism.levels == 4
    assert [mechanism.cells(t) for t in (1, 5, 26, 27)] == [1, 3, 6, 1]
    assert mechanism.guarantee.rho == pytest.approx(4 * mechanism.algorithm.rho)
    assert sum(part for _, part in mechanism.cost().failures) < 1e-6
    assert 4 * mechanism.algorithm.delta <= dict(mechanism.cost().failures).get(
        "discovery", 0.0
    )
    if name == "known_gauss":
        tree = TreeCounter(40, mechanism.guarantee.rho / 2, 3)
        for t in (1, 26, 40):
            assert mechanism.sd(t) ** 2 == pytest.approx(
                float(tree.variance(t)), rel=1e-4
            )


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
            mechanism.step(met(mechanism), t, [], mechanism.noise(STREAM))


@pytest.mark.parametrize("name", NAMES)
def test_errors_stay_within_the_theorem(name: Name) -> None:
    """Two large items at every tick: off by at most 6 sd and one missed threshold a cell."""
    mechanism = meta(name, epsilon=2.0)
    state = met(mechanism)
    noise = mechanism.noise(STREAM)
    assert isinstance(noise, OneShotNoise)
    for t in range(1, 41):
        found = shown(mechanism, state, t, {b"a": 2000, b"b": 1500}, noise)
        for label, each in ((b"a", 2000), (b"b", 1500)):
            assert abs(found[label] - each * t) <= 6 * mechanism.sd(t)
