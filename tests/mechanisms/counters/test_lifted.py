"""The lifted counter: factorization, sensitivity, correct rounding, and the design's figures."""

from collections.abc import Sequence
from fractions import Fraction
from statistics import NormalDist

import mpmath
import numpy as np
import pytest
from mpmath import mp

from bench.lifted_haar import analyze
from tests.mechanisms.small import STREAM, numbered
from workers.arrays.types import Tags, Words
from workers.mechanisms.counters import base, lifted
from workers.mechanisms.counters.base import Node
from workers.mechanisms.counters.lifted import LiftedCounter
from workers.mechanisms.noise.keyed import Cell, NoiseStream
from workers.runtime.frozen import thawed

HORIZONS = [1, 2, 3, 5, 8, 21, 33, 64, 100]
Matrix = dict[Node, list[Fraction]]


def strategy(levels: int) -> Matrix:
    """Return C, by node its entries at the 2^levels places, from the program of the proof."""
    by_level, total = analyze(np.eye(1 << levels, dtype=np.int64))
    found = {(0, 0): [Fraction(int(value), 8**levels) for value in total[0]]}
    for level, nodes in enumerate(by_level, start=1):
        for k, row in enumerate(nodes):
            found[level, k] = [Fraction(int(value), 8**levels) for value in row]
    return found


def decoded(counter: LiftedCounter, matrix: Matrix, t: int, place: int) -> Fraction:
    """Return (B C) at tick t and a place."""
    sums = (a * matrix[node][place] for node, a in counter.nodes(t).items())
    return sum(sums, Fraction(0)) / counter._denominator


@pytest.mark.slow
@pytest.mark.parametrize("share", [None, 0.6])
@pytest.mark.parametrize("horizon", HORIZONS)
def test_decoding_the_nodes_gives_the_running_sum(
    horizon: int, share: float | None
) -> None:
    counter = LiftedCounter(horizon, 0.1, share)
    levels = (horizon - 1).bit_length()
    assert counter.offset == (0 if share is None else (1 << levels) - horizon)
    matrix = strategy(levels)
    for t in range(1, horizon + 1):
        for s in range(1, horizon + 1):
            assert decoded(counter, matrix, t, s + counter.offset - 1) == (s <= t)


def spent(counter: LiftedCounter, matrix: Matrix) -> list[Fraction]:
    """Return what one event costs, by its tick."""
    places = range(counter.offset, counter.offset + counter._last_tick)
    return [
        sum(
            (
                row[place] ** 2 / (2 * counter.variance_of(node))
                for node, row in matrix.items()
            ),
            Fraction(0),
        )
        for place in places
    ]


@pytest.mark.parametrize("share", [None, 0.01, 0.6, 0.99])
@pytest.mark.parametrize("horizon", HORIZONS)
def test_an_event_costs_at_most_what_is_stated_in_whichever_tick_it_lies(
    horizon: int, share: float | None
) -> None:
    counter = LiftedCounter(horizon, 0.1, share)
    levels = (horizon - 1).bit_length()
    costs = spent(counter, strategy(levels))
    assert max(costs) <= Fraction(counter.rho_item)
    if horizon == 1 << levels:
        # The rounding of L and of variances costs less than half a per cent.
        assert max(costs) >= Fraction(counter.rho_item) * Fraction(995, 1000)
    if share is not None and horizon > 1:
        of_total = 1 / (2 * counter.variance_of((0, 0)))
        assert float(of_total) == pytest.approx(0.1 * share, rel=1e-4)


@pytest.mark.parametrize("fault", ["coefficient", "edge", "weight", "bound"])
def test_a_fault_in_the_mechanism_is_noticed(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1/8 that is not 1/8, an edge without its reflection, a weight off by 2 %, half a bound."""
    counter = thawed(LiftedCounter(32, 0.1))
    matrix = strategy(5)
    nodes = counter.nodes
    if fault in ("coefficient", "edge"):

        def wrong(t: int) -> dict[Node, int]:
            found = nodes(t)
            for level, k in list(found):
                if fault == "coefficient" and level == 2:
                    found[level, k] += counter._denominator // 64
                if fault == "edge" and (level, k) == (3, 0) and t < 8:
                    found[level, k] -= counter._denominator // 64
            return found

        monkeypatch.setattr(counter, "nodes", wrong)
        sums = (
            (t, s, decoded(counter, matrix, t, s - 1))
            for t in range(1, 33)
            for s in range(1, 33)
        )
        assert any(found != (s <= t) for t, s, found in sums)
        return
    if fault == "weight":
        for level in range(6):
            variances = [list(pair) for pair in counter._variances]
            variances[level] = [s2 / Fraction(102, 100) for s2 in variances[level]]
            wrong_weight = thawed(LiftedCounter(32, 0.1))
            monkeypatch.setattr(wrong_weight, "_variances", variances)
            assert max(spent(wrong_weight, matrix)) > Fraction(counter.rho_item)
        return
    halved = tuple(value // 2 for value in lifted._OF_LEVELS)
    monkeypatch.setattr(lifted, "_OF_LEVELS", halved)
    counter = thawed(LiftedCounter(32, 0.1))
    assert max(spent(counter, matrix)) > Fraction(counter.rho_item)


@pytest.mark.parametrize("share", [0.01, 0.6, 0.99])
@pytest.mark.parametrize("horizon", HORIZONS)
def test_the_last_tick_has_the_noise_of_the_total_alone(
    horizon: int, share: float
) -> None:
    counter = LiftedCounter(horizon, 0.1, share)
    assert counter.nodes(horizon) == {(0, 0): counter._denominator}


# ---- correct rounding, against an independent computation


def number(
    stream: NoiseStream, tag: Tags, node: Node, variance: Fraction
) -> mpmath.mpf:
    """Return a node's number to 200 bits, from its first 256 bits."""
    level, k = node
    digits = 0
    for further in range(4):
        word = stream.words(tag, (level, (k >> 1) + (further << 48)))[0, k & 1]
        digits = digits << 64 | int(word)
    sign = digits >> 192 & 1
    rest = (digits >> 193) << 192 | digits & ((1 << 192) - 1)
    with mp.workprec(320):
        p = (mpmath.mpf(rest) + 0.5) / mpmath.mpf(2) ** 256
        z = mpmath.mpf(-NormalDist().inv_cdf(float(p)))
        for _ in range(3):  # Newton: 16 digits, 32, 64, 128
            density = mpmath.exp(-z * z / 2) / mpmath.sqrt(2 * mpmath.pi)
            z += (mpmath.erfc(z / mpmath.sqrt(2)) / 2 - p) / density
        scale = mpmath.sqrt(mpmath.mpf(variance.numerator) / variance.denominator)
        return (-z if sign else z) * scale


def synthesized(counter: LiftedCounter, stream: NoiseStream, tag: Tags) -> list[int]:
    """Return floor(N + 1/2) at every tick, by the recursion of the definition."""
    levels = counter._levels

    def z(level: int, k: int) -> mpmath.mpf:
        return number(stream, tag, (level, k), counter.variance_of((level, k)))

    with mp.workprec(260):
        sums = [mpmath.mpf(0), z(0, 0)]
        for level in range(levels, 0, -1):
            own = [z(level, k) for k in range(1 << (levels - level))]
            padded = [-own[0], *own, -own[-1]]
            lifted_sums = [
                s - (padded[k + 1] + padded[k]) / 8 for k, s in enumerate(sums)
            ]
            finer = [lifted_sums[0]]
            for k, node in enumerate(own):
                finer += [
                    (lifted_sums[k] + lifted_sums[k + 1] + node) / 2,
                    lifted_sums[k + 1],
                ]
            sums = finer
        ticks = range(counter.offset + 1, counter.offset + counter._last_tick + 1)
        return [int(mpmath.floor(sums[place] + 0.5)) for place in ticks]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("horizon", "rho_item", "share"),
    [
        (1, 0.01, None),
        (2, 3.0, None),
        (13, 0.01, 0.6),
        (32, 1e-3, None),
        (16, 1e-8, None),
    ],
)
def test_noise_is_that_of_an_independent_computation(
    horizon: int, rho_item: float, share: float | None
) -> None:
    """The recursion at 200 bits, by another library; compiled, in floats, and exactly."""
    counter = LiftedCounter(horizon, rho_item, share)
    tags = numbered("independent", 12)
    columns = counter.columns(STREAM)
    slow = [
        synthesized(counter, STREAM, tags[row : row + 1]) for row in range(len(tags))
    ]
    for t in range(1, horizon + 1):
        expected = [of_row[t - 1] for of_row in slow]
        assert columns.at(t, tags).tolist() == expected
        assert counter.draw(STREAM, t, tags).tolist() == expected
        assert counter.exact(STREAM, t, tags[:1]) == expected[0]


class Planted(NoiseStream, shared=False):
    """A stream whose first digits of one node are given; the rest are pseudorandom."""

    def __init__(self, digits: Sequence[int]) -> None:
        super().__init__(bytes(32))
        self._digits = digits
        self.most = 0

    def chunk(self, tags: Tags, cells: Words) -> Words:
        words = super().chunk(tags, cells)
        for i, (_, node) in enumerate(cells.tolist()):
            further = node >> 48
            self.most = max(self.most, further + 1)
            if further < len(self._digits):
                words[i * len(tags) : (i + 1) * len(tags)] = self._digits[further]
        return words


@pytest.mark.parametrize("above", [0, 1])
@pytest.mark.parametrize("planted", [1, 2, 3, 4])
def test_more_bits_are_taken_until_they_decide(planted: int, above: int) -> None:
    """N is so near to 3 + 1/2 that its first 1 to 4 words do not decide on which side it is."""
    counter = LiftedCounter(1, 0.01)
    bits = 64 * planted - 1
    with mp.workprec(400):
        variance = counter.variance_of((0, 0))
        sd = mpmath.sqrt(mpmath.mpf(variance.numerator) / variance.denominator)
        p = mpmath.erfc(mpmath.mpf(7) / 2 / sd / mpmath.sqrt(2)) / 2
        v = int(mpmath.floor(p * mpmath.mpf(2) ** (bits + 1)))
    # The digits of the boundary, or the next: below or above it by less than their last place.
    v += above
    first = (v >> (64 * (planted - 1))) << 1
    rest = [
        (v >> (64 * (planted - 1 - i))) & ((1 << 64) - 1) for i in range(1, planted)
    ]
    stream = Planted([first, *rest])
    tags = numbered("planted", 4)
    found = counter.draw(stream, 1, tags)
    exact = [counter.exact(stream, 1, tags[i : i + 1]) for i in range(4)]
    assert found.tolist() == exact
    assert counter.columns(stream).at(1, tags).tolist() == exact
    assert set(exact) <= {3, 4}
    if above:
        assert set(exact) == {3}  # a larger p is a smaller number
    assert stream.most >= max(planted, 2) + (0 if above else planted > 1)


def test_neither_path_shares_a_word_between_nodes() -> None:
    """The cells of different nodes, and of their further bits, differ."""
    counter = LiftedCounter(64, 0.01)
    seen: dict[tuple[Cell, int], Node] = {}
    for t in range(1, 65):
        for level, k in counter.nodes(t):
            for further in range(5):
                cell = (level, (k >> 1) + further * base._FURTHER)
                assert seen.setdefault((cell, k & 1), (level, k)) == (level, k)
