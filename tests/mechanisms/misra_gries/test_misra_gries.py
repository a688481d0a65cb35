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
from workers.runtime.errors import HorizonExceeded, StateRefused

STREAM = KEY.stream(b"i" * 16)
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


def run(
    mechanism: MisraGries, ticks: list[Tick], crash: bool, split: bool = False
) -> list[tuple[object, ...]]:
    """Return the releases and stores of every tick; with `crash`, restore the state after each."""
    state = start(mechanism)
    noise = mechanism.noise(STREAM)
    store: dict[str, bytes] = {}
    seen: list[tuple[object, ...]] = []
    for t, tick in enumerate(ticks, 1):
        parts = [part({"k": tick})]
        if split:  # the same items in other messages and another order
            some = {item: n // 2 for item, n in tick.items() if n > 1}
            rest = {item: n - some.get(item, 0) for item, n in reversed(tick.items())}
            parts = [part({"k": rest}), part({"k": some})]
        _, items = mechanism.step(state, t, parts, noise)
        changed = list(state.changed())
        store.update(changed)
        shown = items.keys.tolist(), list(items.labels), items.counts.tolist(), items.sd
        seen.append((*shown, changed))
        if crash:
            state = start(mechanism)
            noise = mechanism.noise(STREAM)
            for name, block in sorted(store.items(), reverse=t % 2 == 0):
                state.restore(name, block)
    return seen


@pytest.mark.parametrize("release", ["pmg", "merge"])
@settings(deadline=None, max_examples=30)
@given(ticks=STREAMS)
def test_crashes_and_other_messages_change_no_byte(
    release: str, ticks: list[Tick]
) -> None:
    """Repeating a tick with other noise or data would reveal it; message splits must not matter."""
    mechanism = MisraGries(config(release=release))
    plain = run(mechanism, ticks, crash=False)
    assert run(mechanism, ticks, crash=True) == plain
    assert run(mechanism, ticks, crash=False, split=True) == plain


def test_changed_cells_are_stored_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick writes the cells it touched, in pages; a missing or unknown page is refused."""
    monkeypatch.setattr("workers.mechanisms.misra_gries.state.PAGE_BYTES", 100)
    mechanism = MisraGries(config(size=50))
    state = start(mechanism)
    mechanism.step(state, 1, [part({"k": dict.fromkeys(range(40), 30)})], Silent())
    blocks = dict(state.changed())
    assert len(blocks) > 20 and all(len(block) <= 105 for block in blocks.values())
    assert not state.changed()
    again = start(mechanism)
    for name, block in blocks.items():
        again.restore(name, block)
    assert again.counters == state.counters and again.shown() == state.shown() != []
    mechanism.step(state, 2, [], Silent())
    assert {name[:2] for name, _ in state.changed()} <= {"mo"}
    for wrong in ("mo000000000.0001", "mx000000000000.0", "z"):
        with pytest.raises(StateRefused):
            again.restore(wrong, b"\x01\x00\x00\x01\x00")
    with pytest.raises(StateRefused, match="version 9"):
        again.restore(next(iter(blocks)), b"\x09" + next(iter(blocks.values()))[1:])
    for page in (".0000", ".0001"):
        lacking = start(mechanism)
        paged = [name for name in blocks if name[:12] + ".0001" in blocks]
        gone = next(name for name in paged if name.endswith(page))
        for name, block in blocks.items():
            if name != gone:
                lacking.restore(name, block)
        with pytest.raises(StateRefused, match="missing"):
            lacking.shown()


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


@pytest.mark.parametrize(
    ("release", "max_items", "max_count", "norm_squared"),
    [
        ("pmg", 1, 1, 1.0),
        ("pmg", 3, 2, 36.0),
        ("merge", 9, 1, 5.0),
        ("merge", 9, 2, 20.0),
    ],
)
def test_the_cost_is_one_gaussian_release_a_level_at_the_sketchs_l2_sensitivity(
    release: str, max_items: int, max_count: int, norm_squared: float
) -> None:
    mechanism = MisraGries(
        config(
            release=release,
            max_items=max_items,
            max_count=max_count,
            epsilon=2.0,
            delta=1e-6,
        )
    )
    cost = dict(mechanism.cost().failures)
    assert mechanism.tree.levels == 3
    rho = 3 * norm_squared / (2 * float(mechanism.sigma_squared))
    assert mechanism.cost().rho == pytest.approx(rho)
    assert sum(cost.values()) + 0.4e-6 < 1e-6


def test_counts_stay_within_the_error_of_the_theorem() -> None:
    """Zipf data: n/(k+1) for sketches, threshold and noise per cell; fails below 1e-6 (5 sd)."""
    mechanism = MisraGries(
        config(size=60, horizon=64, radix=2, epsilon=1.0, delta=1e-6)
    )
    random = np.random.default_rng(3)
    state = start(mechanism)
    noise = mechanism.noise(STREAM)
    exact: Counter[int] = Counter()
    for t in range(1, 65):
        tick = Counter((random.zipf(1.4, 3_000) % 900).tolist())
        exact.update(tick)
        _, items = mechanism.step(state, t, [part({"k": dict(tick)})], noise)
        assert state.counters <= mechanism.counters_max
        shown = released(items)
        cells = mechanism.tree.cells(t)
        low = (
            exact.total() / 61
            + cells * (mechanism.threshold(t) or 0)
            + 6 * mechanism.sd(t)
        )
        high = -6 * mechanism.sd(t)
        assert all(high <= n - shown.get(item, 0) <= low for item, n in exact.items())
        assert shown.keys() <= exact.keys() and shown[1] > 0


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
