"""One-shot releases of a Misra-Gries sketch: with noise that does not grow with k, over a declared domain, and of merged sketches.

    pmg               Algorithm 2, integer form: discrete Laplace of scale 1/epsilon on each counter and one more for all of them
    pure              Algorithm 3 and Section 6: epsilon-DP over a declared domain, the largest k
    sparse_gaussian   Theorem 5 (GSHM): integer Gaussian noise on merged sketches and on `sketch.pamg`

    Symbol      Here
    k           counters; l, the most counters that differ between neighbours: k for merged sketches and PAMG
    a           exp(-1/b), b the scale of the discrete Laplace noise
    q           P(1 + Z <= threshold): a counter that one neighbour alone has, at its largest, is not shown
    H_j(e)      hockey-stick divergence of order exp(e) of N_Z(0, sigma^2)^j and itself shifted by one in every coordinate

Neighbours: one item of the sketch's input added or removed (`pmg`, `pure`), one item of one of the merged streams, or one user (PAMG).
What is shown is sorted by label: the order in which a sketch holds its keys would leak.

Corrections to the paper. Section 6: gamma moves by +1/(k+1), not -1/(k+1), when one counter grows, so the l1 sensitivity of Algorithm 3 is
at most (2k-1)/(k+1), and 2k-1 after the multiplication by k+1 that makes it an integer; the noise built is for that, not for 2.
Section 5.2 notes that Algorithm 2's threshold bounds the two noises one by one; `pmg_threshold` adds up the law of their sum instead, and
gives the paper's integer form (`printed`) for comparison.
Theorem 5 is for continuous noise; `sparse_gaussian_delta` has the same three cases for integer noise, with H_j bounded from above:
the sum of j discrete Gaussians has at most `fold` times the probabilities of N_Z(0, j sigma^2) (complete the square, Poisson summation),
and H_j depends on the sum alone.

Source: Lebeda and Tetek, Sections 5 to 8; Wilkins et al., "Exact Privacy Analysis of the Gaussian Sparse Histogram Mechanism", Theorem 5.4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from workers.mechanisms.frozen import kept, read_only
from workers.mechanisms.ledger import Rows, Tags
from workers.mechanisms.misra_gries.domain import DomainTags
from workers.mechanisms.misra_gries.sketch import Sketch
from workers.mechanisms.noise.discrete_laplace import discrete_laplace, round_up_scale
from workers.mechanisms.noise.gaussian import integer_gaussian, round_up_sigma_squared
from workers.mechanisms.noise.keyed import NoiseStream
from workers.mechanisms.noise.selection import kth_largest

# Kinds of noise cells of this family: 0x40 belongs to the continual mechanism.
USE_PMG, USE_PURE, USE_GAUSSIAN = 0x41, 0x42, 0x43
# Far above what floating point loses in the sums here, far below what is visible in a threshold.
_OUTWARD = 1 + 1e-9


@dataclass(frozen=True, slots=True)
class Shown:
    """A released sketch: labels, ascending, with their noisy counts."""

    labels: tuple[bytes, ...]
    counts: NDArray[np.int64]


def cell(use: int, level: int, block: int) -> tuple[int, int]:
    """The noise cell of one release."""
    return (use << 56) | level, block


def shown_above(labels: Sequence[bytes], noisy: NDArray[np.int64], threshold: int) -> Shown:
    """Those above the threshold, by label."""
    kept = sorted((labels[i], i) for i in np.flatnonzero(noisy > threshold).tolist())
    return Shown(tuple(label for label, _ in kept), noisy[[i for _, i in kept]])


# ---- Algorithm 2 -------------------------------------------------------------------------------------------------


def pmg_scale(epsilon: float) -> Fraction:
    """1/epsilon, rounded up."""
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon = {epsilon}: must be a finite number above 0")
    return round_up_scale(1 / Fraction(epsilon))


def pmg_threshold(epsilon: float, delta: float, *, zeros: int | None = None, printed: bool = False) -> int:
    """A key is shown iff its noisy count is above this.

    Args:
        epsilon: of the release.
        delta: of the release.
        zeros: None for a sketch that keeps zero counters, so that at most four keys, two of either neighbour, are not
            common; or the size k of a standard one that drops them: up to k keys, all of one neighbour.
        printed: the paper's integer form, 1 + 2 ceil(ln(6 e^eps / ((e^eps + 1) delta)) / eps) at least, instead of the law of the sum.

    Raises:
        ValueError: epsilon or delta is out of range.
    """
    scale = pmg_scale(epsilon)
    if not 0 < delta < 1:
        raise ValueError(f"delta = {delta}: must be a number above 0 and below 1")
    if printed:
        samples = 6 if zeros is None else zeros + 1
        one = math.ceil(math.log(samples / ((1 + math.exp(-epsilon)) * delta)) / epsilon * _OUTWARD)
        return 2 * one  # shown iff noisy >= 1 + 2 one
    keys = 4 if zeros is None else zeros
    low, high = 0, 1
    while keys * _two_laplace_tail(scale, high) > delta:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if keys * _two_laplace_tail(scale, middle) <= delta else (middle, high)
    return high  # a count of 1 is shown iff the noise is at least `high`


def pmg(sketch: Sketch, epsilon: float, threshold: int, stream: NoiseStream, key_tag: Tags, block: int = 0) -> Shown:
    """Algorithm 2.

    Guarantee: (epsilon, delta)-DP for one item of the input added or removed, delta that of `pmg_threshold`, plus the samplers' distance.

    Args:
        sketch: fed, not merged.
        epsilon: of the release.
        threshold: from `pmg_threshold`.
        stream: the mechanism's noise.
        key_tag: uint64 (1, 2), the tag of the stream key: where the noise of all counters together comes from.
        block: number of the release; each has its own noise.
    """
    table, where = discrete_laplace(pmg_scale(epsilon)), cell(USE_PMG, 0, block)
    noise = np.empty(len(sketch.counts) + 1, dtype=table.dtype)
    table.draw(stream, where, np.concatenate((sketch.tags, key_tag)), noise)
    noisy = sketch.counts + noise[:-1] + int(noise[-1])
    return shown_above(sketch.labels, noisy, threshold)


def _two_laplace_tail(scale: Fraction, t: int) -> float:
    """P(X + Y >= t) for two discrete Laplace of this scale, t >= 1, rounded up.

    P(X + Y = n) = ((1-a)/(1+a))^2 a^n (n + (1+a^2)/(1-a^2)) for n >= 0, summed from t on.
    """
    b = float(scale)
    a, rest = math.exp(-1 / b), -math.expm1(-1 / b)
    constant = (1 + a * a) / (rest * (1 + a))
    series = math.exp(-t / b) * ((t + constant) / rest + a / rest**2)
    return (rest / (1 + a)) ** 2 * series * _OUTWARD


# ---- Algorithm 3 -------------------------------------------------------------------------------------------------


def reduced(sketch: Sketch) -> NDArray[np.int64]:
    """Algorithm 3, times k + 1 to be an integer: max(0, (k+1) c - sum of all c). Its l1 sensitivity is at most 2k - 1."""
    lowered: NDArray[np.int64] = np.maximum((sketch.size + 1) * sketch.counts - int(sketch.counts.sum()), 0)
    return lowered


def pure_scale(size: int, epsilon: float | Fraction) -> Fraction:
    """Scale of the noise of `pure`, in units of 1/(k+1), rounded up."""
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon = {epsilon}: must be a finite number above 0")
    return round_up_scale(Fraction(2 * size - 1) / Fraction(epsilon))


def pure(
    sketch: Sketch, epsilon: float, stream: NoiseStream, domain: Tags, labels: Sequence[bytes], block: int = 0
) -> Shown:
    """The k largest noisy counts of a declared domain.

    Guarantee: epsilon-DP for one item of the input added or removed (up to the sampler's distance).

    Args:
        sketch: fed, not merged, with items of the domain alone.
        epsilon: of the release.
        stream: the mechanism's noise.
        domain: uint64 (d, 2), tags of the declared domain.
        labels: its d labels.
        block: number of the release; each has its own noise.

    Raises:
        ValueError: the sketch holds an item outside the domain, or size / epsilon needs more noise than the sampler has.
    """
    table = discrete_laplace(pure_scale(sketch.size, epsilon))
    noise = np.empty(len(labels), dtype=table.dtype)
    table.draw(stream, cell(USE_PURE, 0, block), domain, noise)
    rows, parts = largest_parts(sketch, DomainTags(domain), labels, noise.astype(np.int64))
    kept = sorted((labels[i], n) for i, n in zip(rows.tolist(), parts.tolist(), strict=True))
    counts = np.array([n for _, n in kept], dtype=np.int64)
    return Shown(tuple(label for label, _ in kept), whole(counts, sketch.size))


def largest_parts(
    sketch: Sketch, domain: DomainTags, labels: Sequence[bytes], noise: NDArray[np.int64]
) -> tuple[Rows, NDArray[np.int64]]:
    """What Algorithm 3 shows: the places in the domain of the k largest noisy counts, and these counts times k + 1.

    Args:
        sketch: fed, not merged, with items of the domain alone.
        domain: the declared domain.
        labels: its d labels.
        noise: int64 (d,), of each label; changed.

    Raises:
        ValueError: the sketch holds an item outside the domain.
    """
    rows, known = domain.places(sketch.tags)
    if not known.all():
        raise ValueError("domain: the sketch holds an item that is not declared")
    noise[rows] += reduced(sketch)
    best = _largest(noise, labels, min(sketch.size, len(labels)))
    return best, noise[best]


def _largest(counts: NDArray[np.int64], labels: Sequence[bytes], k: int) -> Rows:
    """The places of the k largest, of equal ones those whose labels come first."""
    if not k:
        return np.empty(0, dtype=np.int64)
    least = kth_largest(counts, k)
    larger = np.flatnonzero(counts > least)
    equal = np.flatnonzero(counts == least)
    if len(larger) + len(equal) > k:
        first = sorted(equal.tolist(), key=labels.__getitem__)[: k - len(larger)]
        equal = np.array(first, dtype=np.int64)
    return np.concatenate((larger, equal))


def whole(parts: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Counts from counts times size + 1: floor(x / (size + 1) + 1/2)."""
    rounded: NDArray[np.int64] = (2 * parts + size + 1) // (2 * size + 2)
    return rounded


# ---- Theorem 5 ---------------------------------------------------------------------------------------------------


def sparse_gaussian_delta(epsilon: float, sigma_squared: Fraction, threshold: int, differing: int) -> float:
    """The delta of `sparse_gaussian`, rounded up: the largest of Theorem 5's three cases, for integer noise.

    Args:
        epsilon: at least 0.
        sigma_squared: of the noise, at least 1.
        threshold: a key is shown iff its noisy count is above this, at least 1.
        differing: l.

    Raises:
        ValueError: a parameter is out of range.
    """
    _check(epsilon, sigma_squared, threshold, differing)
    return max(_delta_of(epsilon, sigma_squared, threshold, differing, j) for j in range(differing + 1))


def sparse_gaussian_parameters(epsilon: float, delta: float, differing: int) -> tuple[Fraction, int]:
    """(sigma^2, threshold) with the smallest sigma found for which `sparse_gaussian` is (epsilon, delta)-DP, and half of delta for either.

    Args:
        epsilon: above 0.
        delta: inside 0..1.
        differing: l.

    Raises:
        ValueError: a parameter is out of range.
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta = {delta}: must be a number above 0 and below 1")
    _check(epsilon, Fraction(1), 1, differing)

    def found(sigma_squared: Fraction) -> int | None:
        table = _tails(sigma_squared)
        threshold = 1 + next(x for x in range(len(table)) if differing * table[x] <= delta / 2)
        # The worst j is at one of the ends but for rounding: the ends decide, all others are looked at once, at the end.
        ends = (0, 1, (differing + 1) // 2, differing)
        return (
            threshold
            if max(_delta_of(epsilon, sigma_squared, threshold, differing, j) for j in ends) <= delta
            else None
        )

    low, high = Fraction(1), Fraction(2)
    while found(high) is None:
        low, high = high, 4 * high
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (low, middle) if found(middle) is not None else (middle, high)
    while True:
        sigma_squared = round_up_sigma_squared(high)
        threshold = found(sigma_squared)
        if threshold is not None and sparse_gaussian_delta(epsilon, sigma_squared, threshold, differing) <= delta:
            return sigma_squared, threshold
        high *= Fraction(101, 100)


def sparse_gaussian(
    counters: Mapping[bytes, int],
    tags: Tags,
    sigma_squared: Fraction,
    threshold: int,
    stream: NoiseStream,
    block: int = 0,
) -> Shown:
    """Counters above zero with integer Gaussian noise, those above the threshold.

    Guarantee: (epsilon, sparse_gaussian_delta(epsilon, ...))-DP for neighbours whose counters differ by one, all upwards or all downwards,
    in at most l places (merged sketches, PAMG: l = k), up to the sampler's distance.

    Args:
        counters: label -> count.
        tags: uint64 (n, 2), the tag of each label.
        sigma_squared: of the noise.
        threshold: a key is shown iff its noisy count is above this.
        stream: the mechanism's noise.
        block: number of the release; each has its own noise.
    """
    table = integer_gaussian(sigma_squared)
    counts = np.fromiter(counters.values(), dtype=np.int64, count=len(counters))
    if (counts < 1).any():
        raise ValueError("counters: one is zero; only counters above zero may be released so")
    noise = np.empty(len(counts), dtype=table.dtype)
    table.draw(stream, cell(USE_GAUSSIAN, 0, block), tags, noise)
    return shown_above(list(counters), counts + noise, threshold)


def _check(epsilon: float, sigma_squared: Fraction, threshold: int, differing: int) -> None:
    if not 0 <= epsilon < math.inf:
        raise ValueError(f"epsilon = {epsilon}: must be a finite number of at least 0")
    if sigma_squared < 1:
        raise ValueError(f"sigma_squared = {float(sigma_squared):g}: must be at least 1")
    if threshold < 1:
        raise ValueError(f"threshold = {threshold}: must be at least 1")
    if differing < 1:
        raise ValueError(f"differing = {differing}: must be at least 1")


def _delta_of(epsilon: float, sigma_squared: Fraction, threshold: int, differing: int, j: int) -> float:
    """Theorem 5 where j of the differing counters are in both neighbours and the others in one alone, rounded up."""
    tails = _tails(sigma_squared)
    tail = float(tails[min(threshold - 1, len(tails) - 1)])
    log_q = (differing - j) * math.log1p(-tail)  # all that one neighbour alone has stay hidden, rounded down
    hidden = math.exp(log_q)
    shown = -math.expm1(log_q) * _OUTWARD
    if j == 0:
        return shown
    # log_q is at most 0: epsilon - log_q for the neighbour with more, epsilon + log_q for the other one.
    more = shown + hidden * _hockey_stick(epsilon - log_q, sigma_squared, j)
    return max(more, _hockey_stick(epsilon + log_q, sigma_squared, j))


@kept(64)
def _tails(sigma_squared: Fraction) -> NDArray[np.float64]:
    """P(Z > x) for x = 0, 1, ... of N_Z(0, sigma^2), rounded up, as far as floats go."""
    s2 = float(sigma_squared)
    z = np.arange(math.ceil(40 * math.sqrt(s2)) + 2, dtype=np.float64)
    weights = np.exp(-z * z / (2 * s2))
    above = np.append(np.cumsum(weights[:0:-1])[::-1], 0.0)
    # What lies beyond the table is far below a float's least value for the deltas in use.
    return read_only(above / (2 * weights.sum() - 1) * _OUTWARD + 1e-300)


def _hockey_stick(epsilon: float, sigma_squared: Fraction, j: int) -> float:
    """H_j(epsilon), rounded up: sum of fold * P(s) (1 - exp(epsilon - loss(s))) over loss(s) = (2 s + j) / (2 sigma^2) above epsilon."""
    s2 = float(sigma_squared)
    variance = j * s2
    first = math.floor(epsilon * s2 - j / 2)  # one too early at most: such terms are clipped to 0
    width = math.ceil(12 * math.sqrt(variance)) + 2
    s = np.arange(first, max(first, 0) + width, dtype=np.float64)
    gain = -np.expm1(np.minimum(epsilon - (2 * s + j) / (2 * s2), 0.0))
    total = math.sqrt(2 * math.pi * variance)  # the normaliser of N_Z(0, v) is at least this
    # What lies beyond: at most the tail from there on, by the sub-Gaussian bound.
    beyond = math.exp(-((max(first, 0) + width) ** 2) / (2 * variance))
    mass = float((np.exp(-s * s / (2 * variance)) * gain).sum()) / total
    return min(1.0, (mass + beyond) * _fold(s2, j) * _OUTWARD)


def _fold(s2: float, j: int) -> float:
    """Most by which a probability of the sum of j discrete Gaussians is above that of N_Z(0, j s2)."""
    i = np.arange(1, j, dtype=np.float64)
    eta = np.exp(-2 * math.pi**2 * s2 * i / (i + 1)) * 2 * _OUTWARD  # the further terms weigh less
    return float(np.prod((1 + eta) / (1 - eta))) if j > 1 else 1.0
