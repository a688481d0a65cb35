"""Exact selection: the law of the picks, with and without BOTTOM, against enumeration."""

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.mechanisms.noise.tables import random_words
from workers.mechanisms.noise.selection import (
    gumbel_top_k,
    kth_largest,
    peel,
    selection_tv,
)

pytestmark = pytest.mark.slow

Law = dict[tuple[int, ...], float]
DRAWS = 40_000


def words(count: int, seed: int = 1) -> list[tuple[int, int]]:
    return [(high, low) for high, low in random_words(count, seed).tolist()]


def enumerated(weights: list[float], k: int, bottom: int | None = None) -> Law:
    """Return the probability of every pick sequence; candidate `bottom` ends it, inclusive."""
    law: Law = {}
    for order in itertools.permutations(range(len(weights)), min(k, len(weights))):
        sequence = order[: order.index(bottom) + 1] if bottom in order else order
        left = sum(weights)
        probability = 1.0
        for pick in sequence:
            probability *= weights[pick] / left
            left -= weights[pick]
        law[sequence] = probability
    return law


def statistic(observed: dict[tuple[int, ...], int], law: Law) -> float:
    """Return Pearson's statistic less its mean, in standard deviations."""
    total = sum(observed.values())
    assert observed.keys() <= law.keys()
    chi = sum(
        (observed.get(o, 0) - total * p) ** 2 / (total * p) for o, p in law.items()
    )
    return (chi - (len(law) - 1)) / math.sqrt(2 * (len(law) - 1))


@pytest.mark.parametrize(
    ("counts", "scale", "k"),
    [([3, 1, 1, 0], Fraction(2), 2), ([5, 5, 4], Fraction(3, 2), 3)],
)
def test_picks_follow_the_peeled_exponential_mechanism_and_not_one_ten_per_cent_off(
    counts: list[int], scale: Fraction, k: int
) -> None:
    """40,000 draws: over 6 sd by chance once in millions; weights 10 % off give far more."""
    drawn = words(DRAWS * k)
    observed: Counter[tuple[int, ...]] = Counter()
    for i in range(DRAWS):
        picks = gumbel_top_k(np.array(counts), scale, k, drawn[i * k : i * k + k])
        observed[tuple(picks.tolist())] += 1
    weights = [math.exp(count / float(scale)) for count in counts]
    assert statistic(observed, enumerated(weights, k)) < 6
    assert statistic(observed, enumerated([1.1 * weights[0], *weights[1:]], k)) > 6


def test_picks_end_with_bottom_as_often_as_enumeration_says() -> None:
    """LimitDom's law: label orders down to BOTTOM; a BOTTOM of 10 % more weight is rejected."""
    counts = [4, 3, 3]
    bottom = 4
    scale = Fraction(2)
    k = 2
    drawn = words(DRAWS * k, seed=2)
    observed: Counter[tuple[int, ...]] = Counter()
    for i in range(DRAWS):
        own = drawn[i * k : i * k + k]
        picks, ended = peel(np.array(counts), bottom, scale, k, own)
        observed[(*picks.tolist(), *([len(counts)] if ended else []))] += 1
    weights = [math.exp(count / float(scale)) for count in (*counts, bottom)]
    assert statistic(observed, enumerated(weights, k, bottom=3)) < 6
    assert (
        statistic(observed, enumerated([*weights[:3], 1.1 * weights[3]], k, bottom=3))
        > 6
    )


def test_a_pick_splits_the_words_exactly_at_the_cumulative_weights() -> None:
    """To the last of 128 bits: counts one apart at scale 1 split at e / (e + 1)."""
    edge = int(Fraction(math.e) / (Fraction(math.e) + 1) * 2**128)
    for offset, pick in ((-(2**80), 0), (2**80, 1)):  # a float's e is right to 2^-53
        word = divmod(edge + offset, 2**64)
        assert gumbel_top_k(np.array([8, 7]), Fraction(1), 1, [word]).tolist() == [pick]
    for value, pick in ((2**127, 1), (2**127 - 1, 0)):
        word = divmod(value, 2**64)
        assert gumbel_top_k(np.array([7, 7]), Fraction(1), 1, [word]).tolist() == [pick]


@pytest.mark.parametrize("top", [10**6, 177])
def test_wide_gaps_are_picked_in_order_and_small_weights_are_made_anew(
    top: int,
) -> None:
    """Without rebasing, weights after the first pick would be 0, or (gap 176) 4 and 2."""
    counts = np.array([10**9, 0, 10**6, 1, -(10**9)])
    assert gumbel_top_k(counts, Fraction(1, 100), 5, words(5)).tolist() == [
        0,
        2,
        3,
        1,
        4,
    ]
    draws = DRAWS // 4
    drawn = words(2 * draws, seed=3)
    counts = np.array([top, 1, 0])
    pairs = zip(drawn[::2], drawn[1::2], strict=True)
    second = [int(gumbel_top_k(counts, Fraction(1), 2, pair)[1]) for pair in pairs]
    # The share is 0.731 with sd sqrt(p q / n) = 0.0044. Weights 4 and 2 would give 0.667, 14 of
    # them below; six are allowed (a false alarm in 5e8).
    share = second.count(1) / draws
    assert share == pytest.approx(math.e / (1 + math.e), abs=6 * 0.0044)


def exact(
    counts: NDArray[np.int64], scale: Fraction, drawn: list[tuple[int, int]]
) -> list[int]:
    """Peel with one float weight per candidate, largest count first, ties by index."""
    left = sorted(range(len(counts)), key=lambda i: (-counts[i], i))
    picks = []
    for high, _ in drawn:
        weights = np.array(
            [math.exp((counts[i] - counts[left[0]]) / float(scale)) for i in left]
        )
        at = int(
            np.searchsorted(
                np.cumsum(weights) / weights.sum(), high / 2**64, side="right"
            )
        )
        picks.append(left.pop(min(at, len(left) - 1)))
    return picks


@pytest.mark.parametrize("scale", [Fraction(1, 3), Fraction(5), Fraction(1000)])
def test_grouping_by_count_picks_what_peeling_candidate_by_candidate_picks(
    scale: Fraction,
) -> None:
    counts = np.random.default_rng(4).zipf(1.4, 300).clip(0, 10**5)
    drawn = words(60, seed=5)
    assert gumbel_top_k(counts, scale, 60, drawn).tolist() == exact(
        counts, scale, drawn
    )


COUNTS = st.one_of(st.integers(-3, 3), st.integers(-(2**62), 2**62))


@given(st.lists(COUNTS, min_size=1, max_size=30), st.data())
def test_the_kth_largest_is_found_also_where_most_are_equal_and_a_few_are_huge(
    counts: list[int], data: st.DataObject
) -> None:
    """Small counts are tallied and large ones sorted; both paths give the k-th of all."""
    k = data.draw(st.integers(1, len(counts)))
    assert kth_largest(np.array(counts), k) == sorted(counts, reverse=True)[k - 1]


def test_the_kth_largest_of_counts_that_lie_ever_wider_apart_is_found() -> None:
    """Counts just beyond twice the number up to them: dropping the largest leaves a new outlier."""
    counts = np.array([0, *range(5, 10_003, 2)])
    for k in (1, 3_000, len(counts) - 1, len(counts)):
        assert kth_largest(counts, k) == np.sort(counts)[-k]


def test_fewer_candidates_than_picks_are_all_picked_once() -> None:
    assert sorted(
        gumbel_top_k(np.array([1, 2, 3]), Fraction(1), 9, words(3)).tolist()
    ) == [0, 1, 2]
    assert gumbel_top_k(np.empty(0, dtype=np.int64), Fraction(1), 9, []).tolist() == []
    assert peel(np.empty(0, dtype=np.int64), 5, Fraction(1), 3, words(1))[1]


def test_too_few_words_are_refused() -> None:
    """A word used twice would be noise used twice."""
    with pytest.raises(ValueError, match="one for each of 2 picks"):
        gumbel_top_k(np.array([1, 2, 3]), Fraction(1), 2, words(1))


def test_the_charged_distance_grows_with_picks_and_candidates_and_stays_tiny() -> None:
    assert 1000 * 10**6 / 2**128 <= selection_tv(10**6, 1000) < 1e-28
