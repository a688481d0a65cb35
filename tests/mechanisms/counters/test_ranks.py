"""Noise of ranks: factorization, cost, covariance and rounding, against exact arithmetic."""

import math
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from tests.mechanisms.counters import line
from tests.mechanisms.counters.lifted import Nodes, nodes_of
from workers.mechanisms.counters import ranks
from workers.mechanisms.counters.base import Counter
from workers.mechanisms.counters.ranks import (
    RankColumns,
    Ranked,
    RankedLine,
    ranked_counter,
    ranked_lines,
    ranks_of,
)
from workers.mechanisms.noise.keyed import NoiseKey

KEY = NoiseKey(b"k" * 32)
STREAM = KEY.stream(b"noise of ranks  ")
TAGS = KEY.tags("k", [b"%d" % i for i in range(3)])


@cache
def column(bucket: int, levels: int) -> Nodes:
    """Return C e_b: the value nodes of a count of 1 in one bucket."""
    return nodes_of({bucket: 1}, levels)


def product(one: Nodes, other: Nodes, levels: int) -> Fraction:
    """Return the weighted product of what two buckets' counts do to the nodes."""
    transform = ranks_of(1 << levels)
    shared = one.keys() & other.keys()
    return sum((transform.weight(v) * one[v] * other[v] for v in shared), Fraction(0))


def cost(bucket: int, levels: int) -> Fraction:
    """Return the square of what a count in one bucket does to the nodes."""
    nodes = column(bucket, levels)
    return product(nodes, nodes, levels)


@pytest.mark.parametrize("buckets", [2, 3, 5, 6, 16, 21, 64])
def test_every_rank_is_decoded(buckets: int) -> None:
    """b_q(p), summed with the nodes of the buckets below p, is 1 for each of them, else 0."""
    transform = ranks_of(buckets)
    for place in range(buckets + 1):
        row = transform.coefficients(place)
        for bucket in range(buckets):
            nodes = column(bucket, transform.levels)
            found = sum(Fraction(row.get(v, 0.0)) * node for v, node in nodes.items())
            assert found == (bucket < place)


@pytest.mark.parametrize("buckets", [2, 3, 4, 5, 9, 16, 37, 200])
def test_the_transform_and_the_covariance_are_those_of_the_coefficients(
    buckets: int,
) -> None:
    transform = ranks_of(buckets)
    rows = np.zeros((buckets, len(transform.nodes)))
    for place in range(1, buckets + 1):
        for node, factor in transform.coefficients(place).items():
            rows[place - 1, transform.numbers[node]] = factor
    found = transform.synthesize(np.eye(len(transform.nodes)))
    assert np.abs(found.T - rows).max() < 1e-12
    scaled = rows * transform.scales
    places = np.arange(1, buckets + 1)
    pairs = np.meshgrid(places, places)
    covariance = transform.covariance(*(of.ravel() for of in pairs))
    assert (
        np.abs(covariance.reshape(buckets, buckets) - scaled @ scaled.T).max() < 1e-12
    )
    of_buckets = np.diff(np.vstack((np.zeros(len(scaled.T)), scaled)), axis=0)
    assert transform.of_bucket == pytest.approx((of_buckets**2).sum(axis=1).max())
    assert transform.amplification >= np.abs(scaled).sum(axis=1).max()


@pytest.mark.slow
@pytest.mark.parametrize("levels", range(1, 13))
def test_what_an_event_costs_is_the_dearest_bucket_of_every_number_of_buckets(
    levels: int,
) -> None:
    """In rationals. Mirrored buckets cost the same: the first half has one as dear as any."""
    half = range(max(1, 1 << levels >> 1))
    costs = [cost(b, levels) for b in half]
    for b in (0, len(half) // 2, len(half) - 1):
        mirrored = column((1 << levels) - 1 - b, levels)
        assert product(mirrored, mirrored, levels) == costs[b]
    stated = ranks_of(1 << levels).of_event
    assert max(costs) <= stated <= max(costs) + Fraction(2, 4096)


@pytest.mark.parametrize("levels", range(1, 6))
def test_what_several_buckets_cost_is_at_most_that_of_the_worst_pairs(
    levels: int,
) -> None:
    """In rationals, over all pairs; of all B buckets at once too."""
    transform = ranks_of(1 << levels)
    columns = [column(b, levels) for b in range(transform.buckets)]
    pairs = [
        abs(product(one, other, levels))
        for i, one in enumerate(columns)
        for other in columns[:i]
    ]
    pair = (transform.units(2) / 2 - 1) * transform.of_event
    assert max(pairs) <= pair <= max(pairs) + Fraction(2, 4096)
    every: Nodes = {}
    for nodes in columns:
        for v, node in nodes.items():
            every[v] = every.get(v, Fraction(0)) + node
    stated = transform.units(len(columns)) * transform.of_event
    assert product(every, every, levels) <= stated


def test_in_16_ticks_and_16_buckets_every_event_costs_what_is_stated() -> None:
    """The shift of an event by the inverse covariance of all that is published, exactly.

    a' Sigma^-1 a is the square of the nodes' shift, as B is square: checked on the triangular
    system of ticks and on that of values, whose product it is.
    """
    levels = 4
    counter = ranked_counter(16, 16, 0.25, None)
    transform = counter.ranks
    of_ticks = [
        sum(
            node**2 / counter.variance_of(v) for v, node in column(tick, levels).items()
        )
        for tick in range(16)
    ]
    of_buckets = [cost(b, levels) for b in range(16)]
    costs = [one * other / 2 for one in of_ticks for other in of_buckets]
    assert Fraction(249, 1000) < max(costs) <= Fraction(counter.rho_item)
    assert counter.rho_item <= 0.25
    shift = solved(16, transform)
    assert shift == {bucket: cost(bucket, levels) for bucket in range(16)}


def solved(buckets: int, transform: ranks.Ranks) -> dict[int, Fraction]:
    """Return a' K^-1 a for the ranks of each bucket, by elimination in rationals."""
    rows = [transform.coefficients(place) for place in range(1, buckets + 1)]
    matrix = [
        [
            sum(
                (
                    Fraction(one[v]) * Fraction(other[v]) / transform.weight(v)
                    for v in one.keys() & other.keys()
                ),
                Fraction(0),
            )
            for other in rows
        ]
        + [Fraction(bucket <= place) for bucket in range(buckets)]
        for place, one in enumerate(rows)
    ]
    for i in range(buckets):
        matrix[i] = [value / matrix[i][i] for value in matrix[i]]
        for j in range(buckets):
            if j != i and matrix[j][i]:
                factor = matrix[j][i]
                matrix[j] = [
                    a - factor * b for a, b in zip(matrix[j], matrix[i], strict=True)
                ]
    return {
        bucket: sum(
            (matrix[place][buckets + bucket] for place in range(bucket, buckets)),
            Fraction(0),
        )
        for bucket in range(buckets)
    }


def counters() -> list[tuple[Ranked, ...]]:
    return [
        (ranked_counter(6, 13, 0.1, None),),
        (ranked_counter(5, 13, 0.1, 0.6),),
        ranked_lines(7, (3, 8), (1, 2), 0.1),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("windows", counters())
def test_released_noise_is_the_exact_sum_rounded(
    windows: tuple[Ranked, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns from tick to tick, after a restart and with more keys, against 40 digits."""
    interval = Counter.interval

    @cache
    def of_row(
        counter: Counter, t: int, tag: bytes, words: int
    ) -> tuple[Fraction, Fraction]:
        tags = np.frombuffer(tag, dtype=np.uint64).reshape(1, 2)
        return interval(counter, STREAM, t, tags, words)

    # Compute a node's row once, not for every place that it has a part in.
    monkeypatch.setattr(
        Counter,
        "interval",
        lambda counter, _, t, tag, words: of_row(counter, t, tag.tobytes(), words),
    )
    running = RankColumns(windows, STREAM)
    for t in range(1, 13):
        keys = TAGS[: 2 + t // 7]
        found = running.windows(t, keys)
        if t not in (1, 12):
            continue
        again = RankColumns(windows, STREAM).windows(t, keys)
        for counter, noise, fresh in zip(windows, found, again, strict=True):
            buckets = counter.ranks.buckets
            ranked = noise.reshape(len(keys), buckets).cumsum(axis=1)
            assert (noise == fresh).all()
            for key in range(len(keys)):
                tag = keys[key : key + 1]
                exact = [
                    counter.exact_place(STREAM, t, tag, p + 1) for p in range(buckets)
                ]
                assert ranked[key].tolist() == exact


def test_where_fixed_point_does_not_decide_floats_or_more_bits_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Floats give the released ranks; where nothing is said to be decided, exact sums do."""
    counter = ranked_counter(6, 13, 0.1, None)
    columns = RankColumns((counter,), STREAM)
    expected = columns.at(5, TAGS[:1])
    floats = columns._draw(counter, 5, TAGS[:1], [1, 2, 3, 4, 5, 6])
    assert floats == expected.cumsum().tolist()
    monkeypatch.setattr(ranks, "_FLOATS", 1e300)
    assert (columns.at(5, TAGS[:1]) == expected).all()


KEYS = 400


@pytest.mark.parametrize("factor", [1.0, 0.5, 2.0])
def test_noise_has_the_stated_covariance(factor: float) -> None:
    """Of ranks at one tick, over keys and places; half and twice the variance must fail."""
    counter = ranked_counter(24, 64, 0.02, None)
    tags = KEY.tags("many", [b"%d" % i for i in range(KEYS)])
    noise = RankColumns((counter,), STREAM).at(41, tags).reshape(KEYS, 24)
    ranked = noise.cumsum(axis=1)
    places = np.arange(1, 25)
    of_row = float(super(Ranked, counter).variance(41)) * factor
    stated = counter.ranks.covariance(places, places) * of_row + 1 / 12
    ratios = (ranked**2).mean(axis=0) / stated
    # Places share noise: the mean of their ratios has at most the error of a single one.
    is_right = abs(ratios.mean() - 1) < 4.5 * math.sqrt(2 / KEYS)
    assert bool(is_right) is (factor == 1)
    if factor == 1:
        assert noise.std(axis=0).max() < 1.2 * counter.sd(41)


def test_a_window_is_a_difference_of_one_path() -> None:
    """The line's rows are those of `line`: its cost in 0036 times S of the buckets."""
    (counter,) = ranked_lines(6, (5,), (1,), 0.1)
    assert isinstance(counter, RankedLine)
    weights = line.weights(counter.levels)
    nodes = line.event(40, counter.levels)
    row = line.product(nodes, nodes, weights)
    most = max(cost(b, 3) for b in range(6))
    unit = float(counter.variance_of((1, 0))) * float(weights[1])
    assert float(row) * float(most) / (2 * unit) <= counter.rho_item <= 0.1
