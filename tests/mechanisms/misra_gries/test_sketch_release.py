"""Released sketch cells: Algorithm 3's sensitivity, ties, and an order that does not leak."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mechanisms.misra_gries.test_sketch import TICKS, Tick, fed, neighbours
from workers.arrays.texts import Texts
from workers.mechanisms.misra_gries import misra_gries, releases
from workers.mechanisms.misra_gries.misra_gries import largest_parts, shown_above
from workers.mechanisms.misra_gries.sketch import Sketch, SortedTags, batch, reduced
from workers.mechanisms.noise.keyed import NoiseKey

KEY = NoiseKey(b"k" * 32)


def test_only_what_passes_the_threshold_is_shown_sorted_by_label() -> None:
    """The sketch's own key order would leak."""
    labels = [b"%03d" % (17 * i % 40) for i in range(40)]
    noisy = np.array([20 * (17 * i % 40) for i in range(40)])
    shown, counts = shown_above(Texts.of(labels), noisy, 300)
    assert shown == [b"%03d" % i for i in range(16, 40)]
    assert counts.tolist() == [20 * i for i in range(16, 40)]


def test_a_sketch_with_an_item_outside_the_domain_is_refused() -> None:
    """It would appear without noise for declared labels absent from the sketch."""
    labels = [b"%04d" % i for i in range(5)]
    tags = KEY.tags("k", labels)
    sketch = Sketch(3)
    sketch.feed(batch(tags[3:4], Texts.of(labels[3:4]), np.array([40_000])))
    with pytest.raises(ValueError, match="not declared"):
        largest_parts(
            sketch, SortedTags(tags[:3]), labels[:3], np.zeros(3, dtype=np.int64)
        )


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(st.integers(1, 6), TICKS, st.integers(0, 5), st.integers(0, 11))
def test_algorithm_3_moves_by_2k_minus_1(
    size: int, ticks: list[Tick], at: int, item: int
) -> None:
    """Algorithm 3 in units of 1/(k+1): 2k - 1, below 2 (k + 1); the estimate keeps its bound."""
    a = fed(size, neighbours(ticks, at, item))
    b = fed(size, ticks)
    x, y = (
        dict(zip(sketch.labels, reduced(sketch).tolist(), strict=True))
        for sketch in (a, b)
    )
    moves = [abs(x.get(label, 0) - y.get(label, 0)) for label in x.keys() | y.keys()]
    assert sum(moves) <= 2 * size - 1
    for i in range(12):
        exact = sum(tick.get(i, 0) for tick in ticks)
        assert 0 <= exact * (size + 1) - y.get(b"%d" % i, 0) <= b.total


def test_the_reduced_sketch_reaches_its_sensitivity() -> None:
    """2k - 1 is attained, so less noise would not suffice."""
    a = fed(4, [{0: 9, 1: 9, 2: 9, 3: 10}])
    b = fed(4, [{0: 9, 1: 9, 2: 9, 3: 9}])
    assert int(np.abs(reduced(a) - reduced(b)).sum()) == 2 * 4 - 1


@given(st.lists(st.integers(-2, 2), min_size=1, max_size=12), st.integers(1, 12))
def test_ties_go_to_the_lower_label(counts: list[int], k: int) -> None:
    """Whatever order the domain was declared in, or the sketch holds its keys in."""
    labels = [b"%02d" % (7 * i % 13) for i in range(len(counts))]
    expected = sorted(range(len(counts)), key=lambda i: (-counts[i], labels[i]))[:k]
    assert sorted(
        misra_gries._largest(np.array(counts), labels, min(k, len(counts)))
    ) == sorted(expected)


@pytest.mark.parametrize("epsilon", [0.0, math.inf, math.nan])
def test_budgets_that_buy_nothing_are_refused(epsilon: float) -> None:
    with pytest.raises(ValueError, match="epsilon"):
        releases._scale(Fraction(5), epsilon)
