"""A tick ends where Algorithm 1 ends; its cost depends on its items, not on their weight."""

from heapq import heapify, heappop, heappush, heapreplace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.arrays.uncompiled import WAYS
from tests.mechanisms.misra_gries.test_sketch import (
    COUNTS,
    Tick,
    as_batch,
    held,
    one_by_one,
    tag,
)
from workers.mechanisms.misra_gries import feeding
from workers.mechanisms.misra_gries import sketch as sketch_module
from workers.mechanisms.misra_gries.sketch import Sketch, feed

KERNELS = [name for name in vars(feeding) if hasattr(getattr(feeding, name), "py_func")]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KERNELS:
        monkeypatch.setattr(feeding, name, request.param(getattr(feeding, name)))


@pytest.fixture(params=[1, 2, 24])
def rounds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Use the heap for all rounds, nearly all, or as in production."""
    monkeypatch.setattr(sketch_module, "ROUNDS", request.param)
    monkeypatch.setattr(
        "tests.mechanisms.misra_gries.test_sketch.ROUNDS", request.param
    )
    number: int = request.param
    return number


ITEMS = st.integers(0, 29)


@pytest.mark.slow
@settings(
    deadline=None,
    max_examples=100,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    size=st.integers(1, 9),
    ticks=st.lists(
        st.one_of(
            st.dictionaries(ITEMS, COUNTS, max_size=30),
            st.dictionaries(ITEMS, st.just(1), max_size=30),
            st.sets(st.integers(0, 80), max_size=80).map(
                lambda items: dict.fromkeys(items, 1)
            ),
        ),
        max_size=6,
    ),
)
def test_it_equals_algorithm_1(
    way: None, rounds: int, size: int, ticks: list[Tick]
) -> None:
    """Counters, zero-count keys and their order: the subject of Lemma 2."""
    sketch = Sketch(size)
    expected = dict[int, int]()
    for tick in ticks:
        sketch.feed(as_batch(tick))
        expected = one_by_one(size, expected, tick)
        assert held(sketch) == expected
        assert [int(label) for label in sketch.labels] == sorted(expected)
        assert sketch.tags.tolist() == [tag(item) for item in sorted(expected)]


@pytest.mark.parametrize("size", [1, 7, 40, 150])
def test_every_way_ends_there_on_long_ticks_too(
    way: None, rounds: int, size: int
) -> None:
    """Unordered lists, late hits, and counters that fall by more than one miss's weight."""
    random = np.random.default_rng(size)
    sketch = Sketch(size)
    expected = dict[int, int]()
    for _ in range(8):
        items = np.unique([*random.zipf(1.3, 200) % 300, *random.integers(0, 300, 100)])
        counts = np.minimum(random.zipf(1.8, len(items)), 300)
        tick = dict(zip(items.tolist(), counts.tolist(), strict=True))
        sketch.feed(as_batch(tick))
        expected = one_by_one(size, expected, tick)
        assert held(sketch) == expected


def test_a_weight_costs_nothing_and_is_not_limited() -> None:
    """A few heap steps per item, whatever its weight."""
    heavy = {item: (1 << 45) + item for item in range(200)}
    sketch = Sketch(10)
    for _ in range(3):
        sketch.feed(as_batch(heavy))
    weight = sum(heavy.values())
    assert sketch.total == 3 * weight
    estimates = held(sketch)
    # Equal weights in a row: every count falls by an eleventh of the weight, except for what the
    # counters hold.
    assert (sketch.total - sum(estimates.values())) % 11 == 0 and len(estimates) == 10
    short = [3 * heavy[item] - count for item, count in estimates.items()]
    assert min(short) >= 0 and max(short) <= sketch.total / 11


class Counters:
    """Counters by count and total decrement; the lowest count's smallest key is at hand."""

    def __init__(self, size: int, counters: dict[int, int]) -> None:
        self.size = size
        self.lowered = 0
        self.heights = dict(counters)
        # Counts grow without updating this heap, so an entry may be too low; it is corrected when
        # it comes first.
        self._order = [(count, key) for key, count in counters.items()]
        heapify(self._order)

    def lowest(self) -> int:
        while self._order:
            height, key = self._order[0]
            now = self.heights.get(key)
            if now == height:
                return height - self.lowered
            if now is None:
                heappop(self._order)
            else:
                heapreplace(self._order, (now, key))
        return 0

    def feed(self, item: int, left: int) -> None:
        if item in self.heights:
            self.heights[item] += left
            return
        if len(self.heights) == self.size:
            lowest = min(self.lowest(), left)
            self.lowered += lowest
            left -= lowest
        if left:
            if self.heights and self.lowest() == 0:
                del self.heights[self._order[0][1]]
            self.heights[item] = self.lowered + left
            heappush(self._order, (self.heights[item], item))


def in_a_row(
    size: int, counters: dict[int, int], tick: dict[int, int]
) -> dict[int, int]:
    """Run Algorithm 1 like `one_by_one`, but with all occurrences of an item in one heap step."""
    found = Counters(size, counters)
    items = sorted(tick)
    for fed in range(sketch_module.ROUNDS - 1):
        items = [item for item in items if tick[item] > fed]
        for item in items:
            found.feed(item, 1)
    for item in items:
        if tick[item] >= sketch_module.ROUNDS:
            found.feed(item, tick[item] - sketch_module.ROUNDS + 1)
    return {key: height - found.lowered for key, height in found.heights.items()}


def some_counts(random: np.random.Generator, n: int) -> list[int]:
    """Return counts for one code path: ones, ties, few or many heavy, near the last round."""
    kinds = (
        np.ones(n),
        random.integers(1, 4, n),
        random.integers(1, 1_000_001, n),
        np.full(n, random.integers(1, 60)),
        np.minimum(random.zipf(1.3, n), 1_000_000),
        1 + 1_000_000 // (1 + random.permutation(n)),
        random.integers(22, 27, n),
    )
    counts: list[int] = kinds[random.integers(len(kinds))].astype(np.int64).tolist()
    return counts


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_sketches_of_any_size_end_there_at_any_weight(seed: int) -> None:
    """Sizes to 2,000, counts to a million; sketches of different start ticks share rounds."""
    random = np.random.default_rng(seed)
    size = int(random.choice([1, 2, 5, 31, 32, 33, 64, 100, 300, 2_000]))
    domain = int(random.choice([60, 600, 2_500]))
    sketches = list[Sketch]()
    expected = list[dict[int, int]]()
    for _ in range(3 if size > 100 else 6):
        if len(sketches) < 3:
            sketches.append(Sketch(size))
            expected.append({})
        items = random.choice(
            domain, int(random.integers(1, domain + 1)), replace=False
        ).tolist()
        tick = dict(zip(items, some_counts(random, len(items)), strict=True))
        feed(sketches, as_batch(tick))
        for i, sketch in enumerate(sketches):
            expected[i] = in_a_row(size, expected[i], tick)
            assert held(sketch) == expected[i]
            assert sketch.tags.tolist() == [tag(item) for item in sorted(expected[i])]


@pytest.mark.parametrize("size", [1, 2, 9, 39, 70])
def test_what_is_in_a_row_is_the_same_one_by_one(size: int) -> None:
    """Validate the oracle for heavy items against the printed one for single occurrences."""
    random = np.random.default_rng(size)
    one = dict[int, int]()
    row = dict[int, int]()
    for n in range(30):
        items = random.permutation(80)[: random.integers(1, 80)].tolist()
        counts = (
            random.integers(1, 90, len(items))
            if n % 2
            else random.integers(1, 4, len(items))
        )
        tick = dict(zip(items, counts.tolist(), strict=True))
        one = one_by_one(size, one, tick)
        row = in_a_row(size, row, tick)
        assert one == row


@pytest.mark.parametrize("size", [1, 63, 64, 65, 200])
def test_counters_far_above_zero_wait_until_the_wheel_comes_round(
    way: None, size: int
) -> None:
    """The number of lists is that of counters; heights go far beyond it."""
    sketch = Sketch(size)
    expected = dict[int, int]()
    random = np.random.default_rng(size)
    for low in (1, 400, 1):
        counts = low + random.integers(0, 600, size)
        ones = np.unique(random.integers(size, 1_500, 700)).tolist()
        tick = dict(enumerate(counts.tolist())) | dict.fromkeys(ones, 1)
        sketch.feed(as_batch(tick))
        expected = one_by_one(size, expected, tick)
        assert held(sketch) == expected


@pytest.mark.slow
@given(st.lists(st.integers(0, 1000), unique=True, max_size=40), st.integers(0, 40))
def test_counters_take_turns_by_rank(ranks: list[int], middle: int) -> None:
    """Of the keys at zero the smallest goes first, regardless of arrival order."""
    n = len(ranks)
    of_slot = np.array(ranks, dtype=np.int64)
    middle = min(middle, n)
    for way in WAYS:
        slots = np.arange(n, dtype=np.int32)
        scratch = np.empty(n, dtype=np.int32)
        way(feeding.sort_by_rank)(slots, 0, middle, of_slot, scratch)
        way(feeding.sort_by_rank)(slots, middle, n, of_slot, scratch)
        found = [ranks[slot] for slot in slots.tolist()]
        assert found == sorted(ranks[:middle]) + sorted(ranks[middle:])
        way(feeding.merge_by_rank)(slots, middle, n, of_slot, scratch)
        assert [ranks[slot] for slot in slots.tolist()] == sorted(ranks)


def test_counters_near_the_end_of_64_bits_are_lowered_as_any_others(way: None) -> None:
    """A height is count plus total decrement: it passes 63 bits only where the total would."""
    size = 60
    before = {i: 1 + i % 7 if i % 2 else (1 << 60) + i for i in range(size)}
    tick = dict.fromkeys(range(size, 10 * size), 1)
    sketch = Sketch(size)
    sketch.feed(as_batch(before))
    sketch.feed(as_batch(tick))
    assert held(sketch) == one_by_one(size, before, tick)
