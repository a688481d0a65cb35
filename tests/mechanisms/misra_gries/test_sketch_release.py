"""One-shot releases of sketches: noise of the right law and size, thresholds that hold, and costs that enumeration confirms."""

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from scipy.special import ndtr

from tests.mechanisms.misra_gries.test_sketch import TICKS, Tick, fed, held, neighbours
from workers.mechanisms.misra_gries.release import (
    _delta_of,
    _largest,
    pmg,
    pmg_scale,
    pmg_threshold,
    pure,
    pure_scale,
    reduced,
    sparse_gaussian,
    sparse_gaussian_delta,
    sparse_gaussian_parameters,
)
from workers.mechanisms.misra_gries.sketch import Sketch, batch, pamg
from workers.mechanisms.noise.discrete_laplace import DiscreteLaplace
from workers.mechanisms.noise.gaussian import IntegerGaussian
from workers.mechanisms.noise.keyed import NoiseKey

KEY = NoiseKey(b"k" * 32)
STREAM = KEY.stream(b"i" * 16)
KEY_TAG = KEY.tags("k", [b"\xff"])


def sketch_of(counts: dict[bytes, int], size: int) -> Sketch:
    """Tags as in use: of the labels, so that the order is another one than the labels'."""
    sketch = Sketch(size)
    sketch.feed(batch(KEY.tags("k", list(counts)), list(counts), np.array(list(counts.values()), dtype=np.int64)))
    return sketch


def laplace_law(scale: float) -> NDArray[np.float64]:
    bound = math.ceil(60 * scale)
    law = np.exp(-np.abs(np.arange(-bound, bound + 1)) / scale)
    normed: NDArray[np.float64] = law / law.sum()
    return normed


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-9])
@pytest.mark.parametrize("zeros", [None, 50])
def test_the_threshold_hides_a_count_of_one_and_the_one_below_does_not(
    epsilon: float, delta: float, zeros: int | None
) -> None:
    """Lemma 5 with the law of the sum of both noises, against a convolution; never above the printed threshold."""
    law = np.convolve(laplace_law(1 / epsilon), laplace_law(1 / epsilon))
    tail = np.cumsum(law[::-1])[::-1][len(law) // 2 :]  # P(noise >= 0), P(noise >= 1), ...
    threshold, keys = pmg_threshold(epsilon, delta, zeros=zeros), 4 if zeros is None else zeros
    assert keys * tail[threshold] <= delta * (1 + 1e-6)
    assert keys * tail[threshold - 1] > delta * (1 - 1e-6)
    assert threshold <= pmg_threshold(epsilon, delta, zeros=zeros, printed=True)


def test_the_printed_threshold_is_the_papers_integer_form() -> None:
    """1 + 2 ceil(ln(6 e^eps / ((e^eps + 1) delta)) / eps), shown from there on: ln(6 e / ((e + 1) 1e-6)) is 15.29."""
    assert pmg_threshold(1.0, 1e-6, printed=True) + 1 == 1 + 2 * 16


def noise_of_pmg(blocks: int) -> tuple[list[int], list[int]]:
    sketch = sketch_of({b"a": 10_000, b"b": 20_000}, 4)
    shown = [pmg(sketch, 0.5, 100, STREAM, KEY_TAG, block) for block in range(blocks)]
    assert all(release.labels == (b"a", b"b") for release in shown)
    return [int(s.counts[0]) - 10_000 for s in shown], [int(s.counts[1]) - 20_000 for s in shown]


def test_pmg_adds_one_noise_to_each_counter_and_one_to_all() -> None:
    """Variance 2 v, and v in common: half and double of either are far outside what 4,000 releases allow."""
    a, b = map(np.array, noise_of_pmg(4_000))
    v = DiscreteLaplace(pmg_scale(0.5)).variance
    # The sum of two Laplace has kurtosis below 6 and so sd of its sample variance below 2v sqrt(5/4000) = 0.035 * 2v: 6 sd are 21 %.
    assert np.var(a) == pytest.approx(2 * v, rel=0.21) and np.var(b) == pytest.approx(2 * v, rel=0.21)
    assert np.cov(a, b)[0, 1] == pytest.approx(v, rel=0.35)
    # b - a is the difference of two: chi-squared against its exact law, false alarm 1e-4, and a planted scale error is seen.
    assert difference_fits(b - a, 0.5) > 1e-4
    assert difference_fits(b - a, 0.5 * 1.1) < 1e-4


def difference_fits(difference: NDArray[np.int64], epsilon: float) -> float:
    law = np.convolve(laplace_law(1 / epsilon), laplace_law(1 / epsilon))
    middle, width = len(law) // 2, 10
    inner = law[middle - width : middle + width + 1]
    expected = np.concatenate(([law[: middle - width].sum()], inner, [law[middle + width + 1 :].sum()])) * len(
        difference
    )
    observed = np.bincount(np.clip(difference, -width - 1, width + 1) + width + 1, minlength=2 * width + 3)
    return float(stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue)


def test_pmg_shows_only_what_passes_the_threshold_sorted_by_label() -> None:
    """The order in which a sketch holds its keys would leak."""
    sketch = sketch_of({b"%03d" % i: 1 + 20 * i for i in range(40)}, 64)
    shown = pmg(sketch, 1.0, 300, STREAM, KEY_TAG)
    assert list(shown.labels) == sorted(shown.labels) and len(shown.labels) == len(shown.counts) > 10
    assert (shown.counts > 300).all() and b"000" not in shown.labels
    again = pmg(sketch, 1.0, 300, STREAM, KEY_TAG)
    assert again.labels == shown.labels and again.counts.tolist() == shown.counts.tolist()


def test_pmg_is_private_on_every_small_neighbouring_pair() -> None:
    """Exact enumeration: the hockey-stick divergence at epsilon is below delta; not so with half the noise or a lower threshold."""
    epsilon, delta = 1.0, 1e-2
    threshold = pmg_threshold(epsilon, delta)
    pairs = set()
    for stream in product(range(3), repeat=4):
        for at in range(5):
            for item in range(3):
                ticks: list[Tick] = [{x: 1} for x in stream]
                more = [*ticks[:at], {item: 1}, *ticks[at:]]
                a, b = (tuple(sorted(held(fed(2, own)).items())) for own in (more, ticks))
                pairs |= {(a, b), (b, a)}
    high: list[tuple[Counters, Counters]] = [
        (((0, 25), (1, 25)), ((0, 24), (1, 25))),
        (((0, 25), (1, 25)), ((0, 24), (1, 24))),
    ]
    pairs |= {pair for a, b in high for pair in ((a, b), (b, a))}

    def worst(noise_epsilon: float, threshold: int) -> float:
        return max(pmg_divergence(a, b, noise_epsilon, epsilon, threshold) for a, b in pairs)

    assert worst(epsilon, threshold) <= delta
    assert worst(2 * epsilon, threshold) > delta  # half the noise
    assert worst(epsilon, threshold - 4) > delta


Counters = tuple[tuple[int, int], ...]


def pmg_divergence(a: Counters, b: Counters, noise_epsilon: float, epsilon: float, threshold: int) -> float:
    """sum over outputs of max(0, P_a - e^epsilon P_b), by adding up over the common noise; at most two keys."""
    outputs = [pmg_law(own, noise_epsilon, threshold) for own in (a, b)]
    total = 0.0
    for keys in outputs[0].keys() | outputs[1].keys():
        p, q = outputs[0].get(keys), outputs[1].get(keys)
        if p is not None:
            total += float(np.maximum(p - (0 if q is None else math.exp(epsilon) * q), 0).sum())
    return total


REACH = 70


def pmg_law(counters: Counters, epsilon: float, threshold: int) -> dict[tuple[int, ...], NDArray[np.float64]]:
    """Probability of each output, by shown keys: an array over their noisy counts threshold + 1 ... threshold + REACH."""
    law = np.exp(-np.abs(np.arange(-120, 121)) * epsilon)
    law /= law.sum()
    result: dict[tuple[int, ...], NDArray[np.float64]] = {}
    for eta in range(-30, 31):
        factors: list[tuple[float, NDArray[np.float64]]] = []
        for _, count in counters:
            low = threshold + 1 - count - eta + 120
            visible = np.array([law[i] if 0 <= i < 241 else 0.0 for i in range(low, low + REACH)])
            factors.append((float(law[: max(low, 0)].sum()), visible))
        for chosen in product((False, True), repeat=len(counters)):
            weight = np.array(law[eta + 120])
            keys = []
            for (key, _), (hidden, visible), shown in zip(counters, factors, chosen, strict=True):
                if shown:
                    keys.append(key)
                    weight = np.multiply.outer(weight, visible)
                else:
                    weight = weight * hidden
            name = tuple(keys)
            result[name] = result[name] + weight if name in result else weight
    return result


@settings(deadline=None, max_examples=300)
@given(st.integers(1, 6), TICKS, st.integers(0, 5), st.integers(0, 11))
def test_the_reduced_sketch_moves_by_less_than_two_in_l1(size: int, ticks: list[Tick], at: int, item: int) -> None:
    """Algorithm 3 in units of 1/(k+1): 2k - 1, tighter than the paper's 2 (k + 1), and its estimate keeps the bound."""
    a, b = fed(size, neighbours(ticks, at, item)), fed(size, ticks)
    x, y = (dict(zip(sketch.labels, reduced(sketch).tolist(), strict=True)) for sketch in (a, b))
    assert sum(abs(x.get(label, 0) - y.get(label, 0)) for label in x.keys() | y.keys()) <= 2 * size - 1
    for i in range(12):
        exact = sum(tick.get(i, 0) for tick in ticks)
        assert 0 <= exact * (size + 1) - y.get(b"%d" % i, 0) <= b.total


def test_the_reduced_sketch_reaches_its_sensitivity() -> None:
    """2k - 1 is attained, so no less noise would do."""
    a, b = fed(4, [{0: 9, 1: 9, 2: 9, 3: 10}]), fed(4, [{0: 9, 1: 9, 2: 9, 3: 9}])
    assert int(np.abs(reduced(a) - reduced(b)).sum()) == 2 * 4 - 1


def test_pure_releases_the_largest_of_the_whole_domain_with_the_noise_it_promises() -> None:
    """Items that never occurred get noise too, else their absence would show; scale (2k-1)/epsilon in units of 1/(k+1)."""
    labels = [b"%04d" % i for i in range(300)]
    tags = KEY.tags("k", labels)
    shown = pure(sketch_of({b"0005": 4_000, b"0007": 2_000}, 5), 1.0, STREAM, tags, labels)
    assert list(shown.labels) == sorted(shown.labels) and len(shown.labels) == 5
    # gamma is 1,000; noise of sd 2.1: beyond 40 once in 10^11.
    assert dict(zip(shown.labels, shown.counts.tolist(), strict=True))[b"0005"] == pytest.approx(3_000, abs=40)
    empty = {pure(sketch_of({}, 1), 0.01, STREAM, tags, labels, block).labels for block in range(40)}
    assert len(empty) > 20
    single = sketch_of({b"0005": 40_000}, 3)
    shows = [pure(single, 0.01, STREAM, tags, labels, block) for block in range(2_000)]
    counts = [int(show.counts[show.labels.index(b"0005")]) for show in shows]
    # k = 3: scale 500 in units of 1/4, variance 2 * 500^2 / 16; sd of the sample variance sqrt(5/2000) = 5 %.
    assert np.var(counts) == pytest.approx(31_250, rel=0.3) and np.mean(counts) == pytest.approx(30_000, abs=25)
    with pytest.raises(ValueError, match="not declared"):
        pure(single, 1.0, STREAM, tags[:3], labels[:3])


@given(st.lists(st.integers(-2, 2), min_size=1, max_size=12), st.integers(1, 12))
def test_of_equal_noisy_counts_those_are_shown_whose_labels_come_first(counts: list[int], k: int) -> None:
    """Whatever the order in which a domain was declared, or a sketch holds its keys."""
    labels = [b"%02d" % (7 * i % 13) for i in range(len(counts))]
    expected = sorted(range(len(counts)), key=lambda i: (-counts[i], labels[i]))[:k]
    assert sorted(_largest(np.array(counts), labels, min(k, len(counts)))) == sorted(expected)


def printed_condition(epsilon: float, sigma: float, tau: float, most: int) -> float:
    """Theorem 5 as printed, for continuous noise."""
    hidden = float(ndtr(tau / sigma))
    worst = 1 - hidden**most
    for j in range(1, most + 1):
        gamma = (most - j) * math.log(hidden)
        q = hidden ** (most - j)
        root = math.sqrt(j)

        def stick(e: float, root: float = root) -> float:
            upper = ndtr(root / (2 * sigma) - e * sigma / root)
            return float(upper - math.exp(e) * ndtr(-root / (2 * sigma) - e * sigma / root))

        worst = max(worst, 1 - q + q * stick(epsilon - gamma), stick(epsilon + gamma))
    return worst


@pytest.mark.parametrize(
    ("epsilon", "sigma", "most", "threshold"), [(1.0, 12.0, 8, 60), (0.5, 30.0, 20, 130), (2, 9.0, 12, 55)]
)
def test_the_integer_condition_agrees_with_theorem_5(epsilon: float, sigma: float, most: int, threshold: int) -> None:
    """Noise of many units is nearly continuous: a key shows from `threshold` + 1 on, in the middle between the integers."""
    ours = sparse_gaussian_delta(epsilon, Fraction(sigma) ** 2, threshold, most)
    assert ours == pytest.approx(printed_condition(epsilon, sigma, threshold - 0.5, most), rel=0.02)


# The last: the neighbour with one counter less is the one that is better told from the other; elsewhere it is the one with more.
@pytest.mark.parametrize(
    ("s2", "threshold", "epsilon"), [(2.0, 4, 1.0), (2.0, 2, 0.3), (4.0, 5, 0.5), (9.0, 1, 3.0), (4.0, 4, 0.05)]
)
def test_the_integer_condition_equals_exact_enumeration(s2: float, threshold: int, epsilon: float) -> None:
    """Small noise, two counters: the divergence of every case, added up outcome by outcome."""
    z = np.arange(-30, 31)
    law = np.exp(-z * z / (2 * s2))
    law /= law.sum()

    def releases(counts: tuple[int, ...]) -> NDArray[np.float64]:
        """Law of the noisy counts, each clipped to the threshold where it is not shown, or where the counter is zero."""
        joint = np.ones(())
        for count in counts:
            shown = np.zeros(120)
            if count == 0:
                shown[0] = 1
            else:
                for noise, weight in zip(z.tolist(), law.tolist(), strict=True):
                    shown[max(0, count + noise - threshold)] += weight
            joint = np.multiply.outer(joint, shown)
        return joint

    worst = 0.0
    for less in product((0, 1, 5, 40), repeat=2):
        for up in product((0, 1), repeat=2):
            p, q = releases(tuple(c + u for c, u in zip(less, up, strict=True))), releases(less)
            worst = max(worst, *(float(np.maximum(x - math.exp(epsilon) * y, 0).sum()) for x, y in ((p, q), (q, p))))
    ours = sparse_gaussian_delta(epsilon, Fraction(s2), threshold, 2)
    assert worst <= ours <= worst * (1 + 1e-5)
    # One counter in both neighbours, one in the larger alone: a case by itself, which need not be the worst.
    p, q = releases((41, 1)), releases((40, 0))
    mixed = max(float(np.maximum(x - math.exp(epsilon) * y, 0).sum()) for x, y in ((p, q), (q, p)))
    assert mixed <= _delta_of(epsilon, Fraction(s2), threshold, 2, 1) <= mixed * (1 + 1e-5)


@pytest.mark.parametrize("most", [1, 16, 200])
def test_parameters_meet_delta_and_less_noise_does_not(most: int) -> None:
    """Calibrated on the private side, and not far from the edge; better than the simple parameters of Lemma 6."""
    sigma_squared, threshold = sparse_gaussian_parameters(0.9, 1e-6, most)
    assert sparse_gaussian_delta(0.9, sigma_squared, threshold, most) <= 1e-6
    assert sparse_gaussian_delta(0.9, sigma_squared * Fraction(9, 10), threshold, most) > 1e-6
    assert sigma_squared < most * 2 * math.log(2.5e6) / 0.81


def test_the_sparse_release_has_its_noise_and_shows_above_the_threshold() -> None:
    """On PAMG's counters: variance sigma^2, where half and double are rejected, sorted, and zero counters refused."""
    counters = pamg(5_000, [[b"%05d" % i for i in range(3_000)]] * 500)
    tags = KEY.tags("k", list(counters))
    shown = sparse_gaussian(counters, tags, Fraction(400), 200, STREAM)
    assert shown.labels == tuple(sorted(counters))
    # sd of the sample variance: sqrt(2/3000) = 2.6 %.
    assert np.var(shown.counts) == pytest.approx(IntegerGaussian(Fraction(400)).sigma_squared, rel=0.15)
    assert np.mean(shown.counts) == pytest.approx(500, abs=6 * 20 / math.sqrt(3_000))
    assert len(sparse_gaussian(counters, tags, Fraction(400), 600, STREAM).labels) == 0
    with pytest.raises(ValueError, match="above zero"):
        sparse_gaussian({b"a": 0}, tags[:1], Fraction(4), 3, STREAM)


@pytest.mark.parametrize("epsilon", [0.0, math.inf, math.nan])
def test_budgets_that_buy_nothing_are_refused(epsilon: float) -> None:
    """Fail closed."""
    for call in (lambda: pmg_threshold(epsilon, 0.1), lambda: pure_scale(3, epsilon)):
        with pytest.raises(ValueError, match="epsilon"):
            call()
    with pytest.raises(ValueError, match="sigma_squared"):
        sparse_gaussian_delta(1.0, Fraction(1, 2), 3, 1)
