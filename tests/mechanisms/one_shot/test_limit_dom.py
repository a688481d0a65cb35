"""Tails of threshold noise, LimitDom's law with its bar, and the candidate set."""

import math
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mechanisms.noise.test_selection import Law, enumerated, statistic
from tests.mechanisms.small import KEY, STREAM
from workers.mechanisms.one_shot import algorithms
from workers.mechanisms.one_shot.algorithms import (
    Bottom,
    Cell,
    OneShotNoise,
    Parameters,
    top_candidates,
)

pytestmark = pytest.mark.slow


def law_of(exponents: Iterable[float]) -> list[float]:
    weights = [math.exp(-one) for one in exponents]
    total = math.fsum(weights)
    return [w / total for w in weights]


@pytest.mark.parametrize(
    "spread",
    [Fraction(1, 16), Fraction(1, 4), Fraction(1), Fraction(30), Fraction(400)],
)
@pytest.mark.parametrize("delta", [0.3, 1e-3, 1e-9])
def test_quantiles_are_the_smallest_by_brute_force(
    spread: Fraction, delta: float
) -> None:
    """One lower shows one event's item too often; one higher costs accuracy."""
    root = Fraction(math.isqrt(math.ceil(spread)))
    support = range(-45 * (1 + int(root)), 45 * (1 + int(root)) + 1)
    for law, quantile, parameter in (
        (
            law_of(x * x / (2 * float(spread)) for x in support),
            algorithms.gaussian_quantile,
            spread,
        ),
        (
            law_of(abs(x) / float(root) for x in support),
            algorithms.laplace_quantile,
            root,
        ),
    ):
        for mass, x in (
            (np.array(law), quantile(parameter, delta)),
            (np.convolve(law, law), quantile(parameter, delta, difference=True)),
        ):
            middle = len(mass) // 2
            assert mass[middle + x :][::-1].sum() <= delta
            assert mass[middle + x - 1 :][::-1].sum() > delta


@pytest.mark.parametrize("scale", [Fraction(1), Fraction(37, 5)])
def test_logistic_quantile_is_the_smallest_integer(scale: Fraction) -> None:
    """Two Gumbel differ by a logistic: 1 / (1 + exp(x/b)), not exp(-x/(2b)) as 000 allows for."""
    x = algorithms.logistic_quantile(scale, 1e-6)
    assert (
        1 / (1 + math.exp(x / float(scale)))
        <= 1e-6
        < 1 / (1 + math.exp((x - 1) / float(scale)))
    )


def cell_of(counts: list[int], keys: int = 1) -> Cell:
    labels = [b"%d" % i for i in range(len(counts))]
    key_tags = KEY.tags("k", [b"\xff%d" % i for i in range(keys)])
    of_row = np.zeros(len(counts), dtype=np.int32)
    return Cell(
        KEY.tags("k", labels), of_row, np.array(counts, dtype=np.int64), key_tags
    )


def drawn_with(
    bottom: Bottom, counts: list[int], k: int, draws: int
) -> dict[tuple[int, ...], int]:
    """Count every pick sequence over ticks 1..draws; len(counts) is BOTTOM."""
    cell = cell_of(counts)
    noise = OneShotNoise(STREAM, None)
    observed = Counter[tuple[int, ...]]()
    rows = np.arange(len(counts))
    for t in range(draws):
        picks, ended = bottom.pick(cell, rows, 0, k, noise, (0, t))
        observed[(*picks.tolist(), *([len(counts)] if ended else []))] += 1
    return observed


def test_limit_dom_picks_by_the_law_of_002_with_its_bar() -> None:
    """Keyed words through the whole query against enumeration; a bar one count off is rejected."""
    counts = [9, 8, 8, 2]
    k = 2
    kbar = 3
    scale = Fraction(2)
    bottom = Bottom(Parameters(max_items=1, max_count=1, k=k, kbar=kbar), scale, 0.05)
    bar = counts[kbar] + 1 + algorithms.logistic_quantile(scale, 0.05)
    observed = drawn_with(bottom, counts, k, 20_000)

    def law(height: int) -> Law:
        weights = [math.exp(count / 2) for count in (*counts[:kbar], height)]
        sequences = enumerated(weights, k, bottom=3)
        return {tuple(4 if i == 3 else i for i in s): p for s, p in sequences.items()}

    assert statistic(observed, law(bar)) < 6
    assert statistic(observed, law(bar + 1)) > 6


def test_a_private_kbar_is_chosen_by_the_exponential_mechanism_on_its_cost() -> None:
    """Mixture over kbar of LimitDom's laws, enumerated; omitting the choice's noise is rejected."""
    counts = [9, 6, 5, 1]
    k = 1
    scale = Fraction(2)
    delta = 0.05
    bottom = Bottom(
        Parameters(max_items=3, max_count=1, k=k, kbar=3, private=True), scale, delta
    )
    observed = drawn_with(bottom, counts, k, 20_000)
    bars = {
        kb: counts[kb] + 1 + algorithms.logistic_quantile(scale, delta / min(3, kb))
        for kb in (1, 2, 3)
    }

    def mixture(chance: dict[int, float]) -> Law:
        law: Law = {}
        for kb, bar in bars.items():
            weights = [math.exp(count / 2) for count in (*counts[:kb], bar)]
            for sequence, p in enumerated(weights, k, bottom=kb).items():
                name = tuple(4 if i == kb else i for i in sequence)
                law[name] = law.get(name, 0.0) + p * chance[kb] / sum(chance.values())
        return law

    assert (
        statistic(
            observed, mixture({kb: math.exp(-bar / 2) for kb, bar in bars.items()})
        )
        < 6
    )
    lowest = {kb: float(bar == min(bars.values())) + 1e-9 for kb, bar in bars.items()}
    assert statistic(observed, mixture(lowest)) > 6


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_one_event_changes_few_of_the_kbar_largest(data: st.DataObject) -> None:
    """Ties by tag: at most D0 differ, each by at most Dinf above the next count; the bar moves by
    at most Dinf, taking an item's place.
    """
    counts = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=12))
    kbar = data.draw(st.integers(1, 6))
    most = data.draw(st.integers(1, 3))
    chosen = data.draw(st.sets(st.integers(0, len(counts) - 1), max_size=4))
    more = [
        c + (data.draw(st.integers(1, most)) if i in chosen else 0)
        for i, c in enumerate(counts)
    ]
    tops = []
    bars = []
    for h in (counts, more):
        cell = cell_of(h)
        top, bar = top_candidates(
            cell, cell.largest(np.flatnonzero(cell.counts), kbar + 1), kbar
        )
        tops.append(set(top.tolist()))
        bars.append(bar)
        present = [i for i in range(len(h)) if h[i]]
        order = sorted(present, key=lambda i: (-h[i], *cell.tags[i].tolist()))
        assert top.tolist() == order[:kbar]
    assert 0 <= bars[1] - bars[0] <= most
    for h, seen, limit, others in (
        (counts, tops[0], bars[0], tops[1]),
        (more, tops[1], bars[1], tops[0]),
    ):
        assert len(seen - others) <= len(chosen)
        assert all(h[i] - limit <= most for i in seen - others)
    changed_in_both = len(chosen & tops[0] & tops[1])
    assert changed_in_both + (bars[0] != bars[1]) <= len(chosen)
