"""The exact privacy loss of small sketches is at most the claim, and planted flaws exceed it.

All neighbours of all streams of at most six elements over four labels, all outcomes of the noise.
"""

import math
from collections.abc import Iterator
from fractions import Fraction
from functools import cache

import pytest

from tests.mechanisms.misra_gries.theorem_8 import printed_threshold
from tests.privacy.sketch_loss import (
    Law,
    Pair,
    delta_of_pair,
    merged,
    misra_gries,
    pair,
    pairs_of,
    streams_up_to,
)
from workers.mechanisms.accounting import gaussian_rho
from workers.mechanisms.misra_gries.releases import (
    GshmLaw,
    PmgLaw,
    PureLaw,
    gshm_delta,
    shared_tail,
)

SIZES = (1, 2, 3)
LENGTH = 6


@cache
def fed(size: int, decrement: int = 1, apart: int = 1) -> frozenset[Pair]:
    length = LENGTH if apart == 1 else 5
    pairs = pairs_of(lambda s: misra_gries(size, s, decrement=decrement), length, apart)
    return frozenset(pairs)


@cache
def of_two_streams(size: int) -> frozenset[Pair]:
    """Return the pairs of merged sketches, one of which differs by an element (Corollary 2)."""
    sketches = {s: misra_gries(size, s) for s in streams_up_to(4)}
    others = {tuple(sorted(sketch.items())) for sketch in sketches.values()}
    found = set[Pair]()
    for stream, one in sketches.items():
        for i in range(len(stream)):
            two = sketches[stream[:i] + stream[i + 1 :]]
            for other in map(dict, others):
                found.add(pair(merged(size, one, other), merged(size, two, other)))
    return frozenset(found)


def discrete_laplace(scale: Fraction) -> Law:
    q = math.exp(-1 / scale)
    return lambda x: (1 - q) / (1 + q) * q ** abs(x)


def rounded_gaussian(sigma_squared: Fraction) -> Law:
    root = math.sqrt(2 * sigma_squared)
    edge = [0.5 * math.erfc((x - 0.5) / root) for x in range(200)]
    return lambda x: edge[abs(x)] - edge[abs(x) + 1] if x else 1 - 2 * edge[1]


def worst_of_pmg(
    law: PmgLaw, pairs: frozenset[Pair], *, lower: int = 0, shared: bool = True
) -> float:
    noise = discrete_laplace(law.scale)

    def delta(found: Pair) -> float:
        reach = math.ceil((14 if len(found) < 4 else 9) * law.scale)
        return delta_of_pair(
            found,
            law.epsilon,
            noise=noise,
            threshold=law.threshold - lower,
            reach=reach,
            shared=noise if shared else None,
        )

    return max(map(delta, pairs))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("epsilon", "delta"), [(1, 0.02), (2, 0.1), (3, 0.05)])
def test_pmg_loses_what_it_claims_and_no_flaw_does(
    size: int, epsilon: int, delta: float
) -> None:
    law = PmgLaw(size, 1, Fraction(epsilon), delta)
    assert worst_of_pmg(law, fed(size)) <= law.delta <= delta
    assert worst_of_pmg(law, fed(size), lower=1) > law.delta
    if size > 1:  # one counter can fall by no more than what it has
        assert worst_of_pmg(law, fed(size, 2)) > delta
    if size == 2 and epsilon > 1:
        assert worst_of_pmg(law, fed(size), shared=False) > law.delta


def test_the_claim_of_pmg_is_attained() -> None:
    """State S6 of Lemma 2: two counters leave, of 1 and 0. So no lower threshold would do."""
    law = PmgLaw(2, 1, Fraction(1), 0.02)
    assert worst_of_pmg(law, fed(2)) == pytest.approx(law.delta, rel=0.01)
    assert shared_tail(law.scale, 1, 1, law.threshold - 1) > 0.02


@pytest.mark.parametrize("size", [1, 2])
def test_pmg_of_events_with_two_items_loses_no_more_than_its_claim(size: int) -> None:
    law = PmgLaw(size, 2, Fraction(2), 0.2)
    assert worst_of_pmg(law, fed(size, apart=2)) <= law.delta <= 0.2
    # Calibrated for one item, events of two lose more.
    one = PmgLaw(size, 1, Fraction(2), 0.2)
    assert worst_of_pmg(one, fed(size, apart=2)) > one.delta


def lowered(found: Pair, world: int, size: int) -> list[int]:
    counts = [max(counts[world], 0) for counts in found]
    return [max(0, (size + 1) * n - sum(counts)) for n in counts]


def distances(size: int, pairs: frozenset[Pair]) -> Iterator[int]:
    for found in pairs:
        one, two = (lowered(found, world, size) for world in (0, 1))
        yield sum(abs(a - b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("size", SIZES)
def test_the_loss_of_pure_is_its_l1_distance_over_the_scale(size: int) -> None:
    """Laplace noise on every label loses exactly that: an outcome beyond all counts attains it."""
    law = PureLaw(size, 1, Fraction(1))
    worst = max(distances(size, fed(size))) / law.scale
    assert worst <= law.epsilon <= 1
    assert worst == pytest.approx(1, rel=1e-4)
    assert max(distances(size, fed(size, 2))) / law.scale > 1 or size == 1
    # A sensitivity one lower: 2 k - 2 in units of 1 / (k + 1).
    assert worst * (2 * size - 1) > 2 * size - 2


def worst_of_gshm(law: GshmLaw, pairs: frozenset[Pair], *, lower: int = 0) -> float:
    noise = rounded_gaussian(law.sigma_squared)
    reach = math.ceil(6 * math.sqrt(law.sigma_squared))
    threshold = law.threshold - lower
    return max(
        delta_of_pair(found, law.epsilon, noise=noise, threshold=threshold, reach=reach)
        for found in pairs
    )


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("epsilon", "delta"), [(3.0, 0.01), (0.5, 0.1)])
def test_gshm_loses_what_it_claims_and_no_flaw_does(
    size: int, epsilon: float, delta: float
) -> None:
    law = GshmLaw(size, epsilon, delta)
    exact = float(
        gshm_delta(size, law.sigma_squared, law.threshold, epsilon),
    )
    assert delta * 0.999 < exact <= delta
    pairs = of_two_streams(size)
    assert worst_of_gshm(law, pairs) <= exact
    if (
        epsilon > 1
    ):  # with more noise, sums of eight elements never come above the threshold
        assert worst_of_gshm(law, pairs, lower=1) > delta
        assert worst_of_gshm(law, fed(2, 2)) > delta


def test_merged_sketches_differ_by_one_in_one_direction() -> None:
    """Corollary 2, which GSHM's condition is about."""
    for size in SIZES:
        for found in of_two_streams(size):
            moves = {max(one, 0) - max(two, 0) for one, two in found}
            assert moves <= {0, 1} or moves <= {0, -1}
            assert sum(one != two for one, two in found) <= size


def test_thresholds_and_noise_are_lower_than_the_papers() -> None:
    """What decision 0039 and docs/papers.md say that exact conditions save."""
    law = PmgLaw(100, 1, Fraction(1), 1e-9)
    assert law.threshold + 1 == 25
    assert math.ceil(printed_threshold(1, 1e-9)) == 45
    for delta, saved in ((1e-9, 0.02), (0.05, 0.15)):
        halves = 100 / (2 * gaussian_rho(1.0, delta / 2))
        least = GshmLaw(100, 1.0, delta).sigma_squared
        assert 1 - math.sqrt(least / halves) == pytest.approx(saved, abs=0.005)
