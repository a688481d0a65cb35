"""Both ways to feed a pass, stretches and heap, end where Algorithm 1 ends; a tick costs in its items, not in their weight."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.mechanisms.misra_gries.test_sketch import COUNTS, as_batch, held, one_by_one, tag
from workers.mechanisms.misra_gries import feeding
from workers.mechanisms.misra_gries.sketch import Sketch

# What an item of the heap is said to cost, in us, and how many stretches are tried: the heap does all, stretches do what they can, as in
# use, and stretches that give way to the heap amid a pass.
WAYS = {"heap": (0.0, 4), "stretches": (1e9, 4), "in use": (feeding._HEAP_US, feeding._FEW_STRETCHES), "over": (2.0, 0)}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small batches would hardly ever come to stretches, and long ones never to the heap alone."""
    heap_us, few_stretches = WAYS[request.param]
    monkeypatch.setattr(feeding, "_HEAP_US", heap_us)
    monkeypatch.setattr(feeding, "_FEW_STRETCHES", few_stretches)


ITEMS = st.integers(0, 29)


@settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    size=st.integers(1, 9),
    ticks=st.lists(
        st.one_of(
            st.dictionaries(ITEMS, COUNTS, max_size=30),
            st.dictionaries(ITEMS, st.just(1), max_size=30),
            st.sets(st.integers(0, 80), max_size=80).map(lambda items: dict.fromkeys(items, 1)),
        ),
        max_size=6,
    ),
)
def test_every_way_ends_where_algorithm_1_ends(way: None, size: int, ticks: list[dict[int, int]]) -> None:
    """Counters, keys with count zero and their order: what Lemma 2 is about."""
    sketch, expected = Sketch(size), dict[int, int]()
    for tick in ticks:
        sketch.feed(as_batch(tick))
        expected = one_by_one(size, expected, tick)
        assert held(sketch) == expected
        assert sketch.tags.tolist() == [tag(item) for item in sorted(expected)]


@pytest.mark.parametrize("size", [1, 7, 40, 150])
def test_every_way_ends_there_on_long_ticks_too(way: None, size: int) -> None:
    """Many rounds in one stretch, hits that come too late, and counters that fall by more than one miss's weight."""
    random = np.random.default_rng(size)
    sketch, expected = Sketch(size), dict[int, int]()
    for _ in range(8):
        items = np.unique(np.concatenate((random.zipf(1.3, 200) % 300, random.integers(0, 300, 100))))
        counts = np.minimum(random.zipf(1.8, len(items)), 300)
        tick = dict(zip(items.tolist(), counts.tolist(), strict=True))
        sketch.feed(as_batch(tick))
        expected = one_by_one(size, expected, tick)
        assert held(sketch) == expected


def test_a_weight_costs_nothing_and_is_not_limited() -> None:
    """One step of the heap an item, whatever it weighs, also beyond what a machine word would hold beside its rank."""
    heavy = {item: (1 << 45) + item for item in range(200)}
    sketch = Sketch(10)
    for _ in range(3):
        sketch.feed(as_batch(heavy))
    weight = sum(heavy.values())
    assert sketch.total == 3 * weight
    estimates = held(sketch)
    # Items of the same weight in a row: everybody's count is lowered by the eleventh part of it, but for what is in the counters.
    assert (sketch.total - sum(estimates.values())) % 11 == 0 and len(estimates) == 10
    assert all(0 <= 3 * heavy[item] - count <= sketch.total / 11 for item, count in estimates.items())


def test_a_tick_of_equal_items_takes_a_handful_of_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million items of weight one must not cost a million steps: the heap is never reached, and stretches are few."""
    stretches = 0
    whole = feeding._Pass.stretch

    def counted(self: feeding._Pass) -> None:
        nonlocal stretches
        stretches += 1
        whole(self)

    def never(self: feeding.Feeding, passes: object) -> None:
        raise AssertionError("by_heap")

    monkeypatch.setattr(feeding._Pass, "stretch", counted)
    monkeypatch.setattr(feeding.Feeding, "_by_heap", never)
    sketch = Sketch(50)
    for _ in range(3):
        sketch.feed(as_batch(dict.fromkeys(range(100_000), 1)))
    assert stretches < 60
    assert sketch.total == 300_000 and len(sketch.counts) == 50


def test_counters_near_the_end_of_64_bits_are_lowered_as_any_others(way: None) -> None:
    """How many rounds there are is a matter of sums over counters, which pass 64 bits long before a counter does."""
    size = 60
    before = {i: 1 + i % 7 if i % 2 else (1 << 60) + i for i in range(size)}
    tick = dict.fromkeys(range(size, 10 * size), 1)
    sketch = Sketch(size)
    sketch.feed(as_batch(before))
    sketch.feed(as_batch(tick))
    assert held(sketch) == one_by_one(size, before, tick)
