"""misra_gries: releases, memory, cost, and recovery after crashes."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.mechanisms import small
from tests.mechanisms.misra_gries.test_sketch import one_by_one
from tests.mechanisms.small import KEY, SMALL, Silent
from workers.mechanisms.ledger import Contributions
from workers.mechanisms.mechanism import Items
from workers.mechanisms.misra_gries.misra_gries import MisraGries, MisraGriesConfig
from workers.mechanisms.misra_gries.state import SketchState
from workers.runtime.errors import HorizonExceeded

KEYS = ("k", "other")
Tick = dict[int, int]


def config(**changes: object) -> MisraGriesConfig:
    values = SMALL | {
        "horizon": 20,
        "epsilon": 50.0,
        "delta": 1e-2,
        "size": 5,
        "radix": 3,
    }
    return MisraGriesConfig(**(values | changes))


def start(mechanism: MisraGries) -> SketchState:
    state: SketchState = small.start(mechanism, KEYS)
    return state


def part(of_key: dict[str, Tick]) -> tuple[Contributions, NDArray[np.int32]]:
    labelled = {
        key: {b"%03d" % item: n for item, n in tick.items()}
        for key, tick in of_key.items()
    }
    return small.part(labelled, KEYS)


def released(items: Items, key: int = 0) -> dict[int, int]:
    own = np.flatnonzero(items.keys == key).tolist()
    return {int(items.labels[i]): int(items.counts[i]) for i in own}


def by_tag(name: str, items: range) -> dict[int, int]:
    tags = KEY.tags(name, [b"%03d" % item for item in items]).tolist()
    return {
        item: place
        for place, item in enumerate(sorted(items, key=lambda item: tags[item]))
    }


def cells_of(mechanism: MisraGries, ticks: list[Tick], t: int) -> Iterator[list[Tick]]:
    """Yield the ticks of every cell named by t's digits, the largest first."""
    above = 0
    for level in range(mechanism.tree.levels - 1, -1, -1):
        width = mechanism.tree.radix**level
        while above + width <= t:
            yield ticks[above : above + width]
            above += width


def expected(
    mechanism: MisraGries, ticks: list[Tick], t: int, name: str
) -> dict[int, int]:
    """Return the noiseless release at t, cell by cell; `merge` merges histograms in order."""
    place = by_tag(name, range(12))
    size = mechanism.config.size
    item_at = {p: item for item, p in place.items()}
    total: Counter[int] = Counter()
    for of_cell in cells_of(mechanism, ticks, t):
        cell: dict[int, int] = {}
        for tick in of_cell:
            placed = {place[item]: n for item, n in tick.items()}
            if mechanism.config.release == "pmg":
                cell = one_by_one(size, cell, placed)
            else:
                sums = Counter(cell) + Counter(placed)
                least = (
                    sorted(sums.values(), reverse=True)[size] if len(sums) > size else 0
                )
                cell = {key: n - least for key, n in sums.items() if n > least}
        threshold = mechanism.threshold(t) or 0
        total.update({item_at[p]: n for p, n in cell.items() if n > threshold})
    return dict(total)


STREAMS = st.lists(
    st.dictionaries(st.integers(0, 11), st.integers(1, 60), max_size=12),
    min_size=1,
    max_size=20,
)


@pytest.mark.slow
@pytest.mark.parametrize("release", ["pmg", "merge"])
@settings(deadline=None, max_examples=60)
@given(ticks=STREAMS, size=st.integers(1, 6), radix=st.integers(2, 5))
def test_cells_of_t_are_added(
    release: str, ticks: list[Tick], size: int, radix: int
) -> None:
    """Cells by the digits of t, items above the threshold, sorted by stream key and label."""
    mechanism = MisraGries(config(release=release, size=size, radix=radix))
    state = start(mechanism)
    for t, tick in enumerate(ticks, 1):
        other = {item: n + 1 for item, n in tick.items() if item % 2}
        parts = [part({"k": tick, "none": {5: 5}, "other": other})]
        _, items = mechanism.step(state, t, parts, Silent())
        assert released(items) == expected(mechanism, ticks[:t], t, "k")
        odd = [
            {item: n + 1 for item, n in own.items() if item % 2} for own in ticks[:t]
        ]
        assert released(items, 1) == expected(mechanism, odd, t, "other")
        pairs = list(zip(items.keys.tolist(), items.labels, strict=True))
        assert pairs == sorted(pairs) and items.threshold == mechanism.threshold(t)
        assert mechanism.counters_max == size * mechanism.tree.levels
        assert state.counters <= len(KEYS) * mechanism.counters_max


def test_a_tick_writes_the_cells_it_touched() -> None:
    mechanism = MisraGries(config(size=50))
    state = start(mechanism)
    mechanism.step(state, 1, [part({"k": dict.fromkeys(range(40), 30)})], Silent())
    assert {name[:2] for name, _ in state.changed()} == {"mo", "mr"}
    assert not state.changed()
    mechanism.step(state, 2, [], Silent())
    assert {name[:2] for name, _ in state.changed()} <= {"mo"}


def test_levels_that_had_the_same_items_are_fed_and_held_once_also_after_a_crash() -> (
    None
):
    mechanism = MisraGries(config(horizon=27))
    state = start(mechanism)
    store = dict[str, bytes]()
    held = []
    for t in range(1, 12):
        mechanism.step(state, t, [part({"k": dict.fromkeys(range(4), t)})], Silent())
        store.update(state.changed())
        again = start(mechanism)
        for name, block in store.items():
            again.restore(name, block)
        assert again.counters == state.counters
        held.append(state.counters // 4)
    # Levels 1 to 3 begin together; level 1 restarts at 4 (its cell of 7 to 9 is never released, so
    # not kept), levels 1 and 2 restart at 10.
    assert held == [1, 1, 1, 2, 2, 1, 1, 1, 1, 2, 2]


def test_ticks_outside_the_horizon_and_settings_without_a_guarantee_are_refused() -> (
    None
):
    mechanism = MisraGries(config())
    with pytest.raises(HorizonExceeded):
        mechanism.step(start(mechanism), 21, [], Silent())
    wrong = {
        "horizon": "unbounded",
        "size": 0,
        "release": "lap",
        "counter": "lifted",
        "radix": 1,
    }
    for name, value in wrong.items():
        with pytest.raises(ValueError, match=name):
            config(**{name: value})
    with pytest.raises(ValueError, match="below what the integer samplers can promise"):
        MisraGries(config(delta=1e-50))
