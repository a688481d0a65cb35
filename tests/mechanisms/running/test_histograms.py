"""known_base and unk_base: releases, hidden items, and an independent accountant."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mechanisms.small import KEY, SMALL, Silent, counted, labelled
from workers.arrays.types import Longs, Tags
from workers.mechanisms.ledger import Parts
from workers.mechanisms.mechanism import Mechanism, State
from workers.mechanisms.running.base import (
    KnownBase,
    KnownBaseConfig,
    UnkBase,
    UnkBaseConfig,
)


def unk(**changes: object) -> UnkBase:
    return UnkBase(UnkBaseConfig(**(SMALL | changes)))


def known(domain: list[str], **changes: object) -> KnownBase:
    return KnownBase(KnownBaseConfig(**(SMALL | changes), domain=tuple(domain)))


def shown(
    mechanism: Mechanism, state: State, t: int, noise: object, parts: Parts
) -> dict[bytes, int]:
    _, release = mechanism.step(state, t, parts, noise)  # type: ignore[arg-type]  # Silent is a Noise
    return labelled(state, release)


def test_without_noise_unk_base_shows_what_passed_the_threshold_and_keeps_showing_it() -> (
    None
):
    """Discovery is sticky, and a count at the threshold itself is not above it."""
    mechanism = unk()
    state = mechanism.init()
    m = [mechanism.threshold(t) or 0 for t in range(1, 5)]
    parts = [counted({b"a": m[0] + 1, b"b": m[0], b"c": 1})]
    assert shown(mechanism, state, 1, Silent(), parts) == {b"a": m[0] + 1}
    passed = {b"b": m[0]} if m[0] > m[1] else {}
    assert shown(mechanism, state, 2, Silent(), []) == {b"a": m[0] + 1} | passed

    class Drop(Silent):
        def at(self, t: int, tags: Tags) -> Longs:
            return np.full(len(tags), -10 * m[0], dtype=np.int64)

    assert shown(mechanism, state, 3, Drop(), [])[b"a"] == m[0] + 1 - 10 * m[0]


def test_without_noise_known_base_shows_the_whole_domain_and_nothing_else() -> None:
    """Items outside the domain are never released; those inside always are."""
    mechanism = known(["x", "y"])
    state = mechanism.init()
    mechanism.prepare_key(
        state, 0, KEY.tags("k", mechanism.domain()), mechanism.domain()
    )
    parts = [counted({b"x": 3, b"q": 99}), counted({b"x": 2})]
    assert shown(mechanism, state, 1, Silent(), parts) == {b"x": 5, b"y": 0}
    assert shown(mechanism, state, 2, Silent(), [counted({b"y": 1})]) == {
        b"x": 5,
        b"y": 1,
    }


TICKS = st.dictionaries(st.sampled_from([b"a", b"b", b"c", b"d"]), st.integers(1, 500))


@settings(deadline=None, max_examples=30)
@given(st.lists(TICKS, min_size=1, max_size=6))
def test_the_release_is_the_running_sum_plus_the_counters_noise(
    ticks: list[dict[bytes, int]],
) -> None:
    """Also for an item first seen late: its noise is that of a counter which ran from tick 1."""
    mechanism = unk(epsilon=30.0)
    state = mechanism.init()
    noise = mechanism.noise(KEY.stream(b"i" * 16))
    totals: Counter[bytes] = Counter()
    for t, tick in enumerate(ticks, 1):
        totals.update(tick)
        got = shown(mechanism, state, t, noise, [counted(tick)])
        for label, n in got.items():
            z = mechanism._counter.draw(
                KEY.stream(b"i" * 16), t, KEY.tags("k", [label])
            )
            assert n == totals[label] + int(z[0])


WITHOUT_END: dict[str, object] = {
    "horizon": "unbounded",
    "start": "2026-01-01T00:00:00Z",
    "tick_ms": 10,
}


@pytest.mark.parametrize("tick", [2**31 - 1, 2**31, 2**32])
def test_an_epoch_without_an_end_shows_new_items_at_late_ticks(tick: int) -> None:
    """Ticks of 10 ms pass 2^31 after 249 days; an int32 first tick stopped the worker repeatedly."""
    mechanism = unk(**WITHOUT_END, epsilon=20.0)
    state = mechanism.init()
    noise = mechanism.noise(KEY.stream(bytes(16)))
    assert list(
        shown(mechanism, state, tick, noise, [counted({b"often": 100_000})])
    ) == [b"often"]
    assert state.ledger.shown.tolist() == [tick]
