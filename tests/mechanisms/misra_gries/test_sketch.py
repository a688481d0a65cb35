"""The Misra-Gries sketch: item-by-item feeding, bounds at every step, one event's effect."""

from bisect import bisect_left
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.arrays.texts import Texts
from workers.mechanisms.misra_gries.sketch import (
    ROUNDS,
    Sketch,
    SketchBatch,
    SortedTags,
    batch,
)

pytestmark = pytest.mark.slow

Tick = dict[int, int]
ITEMS = st.integers(0, 11)
COUNTS = st.one_of(st.integers(1, 4), st.integers(ROUNDS - 1, 2 * ROUNDS))
TICKS = st.lists(st.dictionaries(ITEMS, COUNTS, max_size=12), min_size=1, max_size=6)


def tag(item: int) -> list[int]:
    """Return a tag; upper halves collide, so lower halves decide, in another order than labels."""
    return [item // 3, (item % 3) << 62]


def as_batch(tick: Tick) -> SketchBatch:
    items = sorted(tick, reverse=True)
    tags = np.array([tag(item) for item in items], dtype=np.uint64).reshape(-1, 2)
    counts = np.array([tick[item] for item in items], dtype=np.int64)
    return batch(tags, Texts.of(b"%d" % item for item in items), counts)


def one_by_one(size: int, counters: dict[int, int], tick: Tick) -> dict[int, int]:
    """Run Algorithm 1 as printed, in `sketch`'s order: by tag, dummies fill up to `size`."""
    counters = dict(counters)
    rounds = [
        [item for item in sorted(tick) if tick[item] > fed] for fed in range(ROUNDS - 1)
    ]
    rest = [item for item in sorted(tick) for _ in range(tick[item] - ROUNDS + 1)]
    for item in (item for stream in (*rounds, rest) for item in stream):
        if item in counters:
            counters[item] += 1
        elif len(counters) == size and min(counters.values()) >= 1:
            counters = {key: count - 1 for key, count in counters.items()}
        else:
            zero = [key for key, count in counters.items() if count == 0]
            if zero:
                del counters[min(zero)]
            counters[item] = 1
    return counters


def held(sketch: Sketch) -> dict[int, int]:
    return dict(zip(map(int, sketch.labels), sketch.counts.tolist(), strict=True))


def fed(size: int, ticks: list[Tick], *, merged: bool = False) -> Sketch:
    sketch = Sketch(size)
    for tick in ticks:
        (sketch.add if merged else sketch.feed)(as_batch(tick))
    return sketch


@pytest.mark.parametrize("merged", [False, True])
@settings(deadline=None, max_examples=150)
@given(size=st.integers(1, 7), ticks=TICKS)
def test_estimates_stay_within_bounds(
    merged: bool, size: int, ticks: list[Tick]
) -> None:
    """At most the true count and short by at most n/(k+1), outside the sketch too."""
    sketch = Sketch(size)
    exact = Counter[int]()
    for tick in ticks:
        (sketch.add if merged else sketch.feed)(as_batch(tick))
        exact.update(tick)
        estimates = held(sketch)
        assert len(estimates) <= size and sketch.total == exact.total()
        for item in range(12):
            assert (
                0 <= exact[item] - estimates.get(item, 0) <= exact.total() / (size + 1)
            )


def neighbours(ticks: list[Tick], at: int, item: int) -> list[Tick]:
    at %= len(ticks)
    more = {**ticks[at], item: ticks[at].get(item, 0) + 1}
    return [*ticks[:at], more, *ticks[at + 1 :]]


@settings(deadline=None, max_examples=500)
@given(st.integers(1, 6), TICKS, st.integers(0, 5), ITEMS)
def test_lemma_2_for_one_item_more(
    size: int, ticks: list[Tick], at: int, item: int
) -> None:
    """Lemma 2, which makes the noise independent of k."""
    more = held(fed(size, neighbours(ticks, at, item)))
    less = held(fed(size, ticks))
    dummies = size - len(more), size - len(less)
    only_more = more.keys() - less.keys()
    only_less = less.keys() - more.keys()
    assert len(only_more) + max(0, dummies[0] - dummies[1]) <= 2
    assert len(only_less) + max(0, dummies[1] - dummies[0]) <= 2
    assert all(more[key] <= 1 for key in only_more) and all(
        less[key] <= 1 for key in only_less
    )
    moved = {
        key: more.get(key, 0) - less.get(key, 0) for key in more.keys() | less.keys()
    }
    one = sorted(move for move in moved.values() if move) == [1]
    lowered = len(less) == size and all(moved[key] == -1 for key in less)
    assert one or (lowered and not any(more[key] for key in only_more))


@settings(deadline=None, max_examples=200)
@given(
    st.integers(1, 6), TICKS, st.integers(0, 5), st.lists(ITEMS, min_size=1, max_size=4)
)
def test_lemma_2_for_m_items(
    size: int, ticks: list[Tick], at: int, items: list[int]
) -> None:
    """The group form: a * 1 + b with |a| + |b| <= m on keys that stay, and no more than 2 m
    others, none above m.
    """
    sketches = [held(fed(size, ticks))]
    for item in items:
        ticks = neighbours(ticks, at, item)
        sketches.append(held(fed(size, ticks)))
    m = len(items)
    first = sketches[0]
    last = sketches[-1]
    stay = set(first).intersection(*sketches)
    moves = [last[key] - first[key] for key in stay]
    assert (
        min(abs(a) + sum(abs(move - a) for move in moves) for a in range(-m, m + 1))
        <= m
    )
    for end in (first, last):
        others = [count for key, count in end.items() if key not in stay]
        assert len(others) <= 2 * m and max(others, default=0) <= m


@settings(deadline=None, max_examples=300)
@given(
    st.integers(1, 6),
    TICKS,
    st.integers(0, 5),
    st.sets(ITEMS, min_size=1),
    st.integers(1, 3),
)
def test_an_event_of_any_number_of_items_moves_merged_counters_by_its_largest_count(
    size: int, ticks: list[Tick], at: int, items: set[int], most: int
) -> None:
    """Lemma 1 of Section 7: l2 is sqrt(k) times the largest count; ones move the same way."""
    more = ticks
    for item in items:
        for _ in range(1 + item % most):
            more = neighbours(more, at, item)
    a = held(fed(size, more, merged=True))
    b = held(fed(size, ticks, merged=True))
    moves = [a.get(key, 0) - b.get(key, 0) for key in a.keys() | b.keys()]
    assert max(map(abs, moves), default=0) <= most
    assert sum(move * move for move in moves) <= size * most**2
    if most == 1:
        assert set(moves) <= {0, 1} or set(moves) <= {0, -1}
        assert sum(map(abs, moves)) <= size and (
            a.keys() <= b.keys() or b.keys() <= a.keys()
        )


def test_a_sketch_without_counters_is_refused() -> None:
    """A sketch of size 0 has no guarantee."""
    with pytest.raises(ValueError, match="size = 0"):
        Sketch(0)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 2)), max_size=40
    ),
    st.sampled_from([0, 1, 5, 58, 63]),
)
def test_tags_are_sorted_and_found(
    parts: list[tuple[int, int, int]], shift: int
) -> None:
    """Tags equal in the bits sorted first differ behind them."""
    values = [((a << 61) | ((b << shift) & (2**61 - 1)), c) for a, b, c in parts]
    tags = np.array(list(dict.fromkeys(values)), dtype=np.uint64).reshape(-1, 2)
    found = SortedTags(tags)
    assert found.rows.tolist() == np.lexsort((tags[:, 1], tags[:, 0])).tolist()
    ascending = sorted(map(tuple, tags.tolist()))
    assert list(map(tuple, found.all().tolist())) == ascending
    values = [(upper, lower + more) for upper, lower in ascending for more in (0, 1)]
    keys = np.array(values, dtype=np.uint64).reshape(-1, 2)
    before, known = found.positions(keys)
    assert before.tolist() == [
        bisect_left(ascending, tuple(key)) for key in keys.tolist()
    ]
    assert known.tolist() == [tuple(key) in ascending for key in keys.tolist()]
