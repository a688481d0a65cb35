"""What a released cell of Misra-Gries sketches shows: counts above a threshold, or the largest k of
a declared domain (Algorithm 3).

    Symbol      Here
    k           counters of the sketch
    gamma       the sum of all counters over k + 1, by which Algorithm 3 lowers each of them

What is shown is sorted by label: the order in which a sketch holds its keys would leak.

Correction to the paper, Section 6: gamma moves by +1/(k+1), not -1/(k+1), when one counter grows,
so the l1 sensitivity of Algorithm 3 is at most (2k-1)/(k+1), and 2k-1 after the multiplication by
k+1 that makes it an integer; the noise built is for that, not for 2.

Source: Lebeda and Tetek, Section 6.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from workers.mechanisms.ledger import Rows
from workers.mechanisms.misra_gries.domain import DomainTags
from workers.mechanisms.misra_gries.sketch import Sketch
from workers.mechanisms.noise.discrete_laplace import round_up_scale
from workers.mechanisms.noise.selection import kth_largest
from workers.mechanisms.texts import Texts


@dataclass(frozen=True, slots=True)
class Shown:
    """A released sketch: labels, ascending, with their noisy counts."""

    labels: tuple[bytes, ...]
    counts: NDArray[np.int64]


def shown_above(labels: Texts, noisy: NDArray[np.int64], threshold: int) -> Shown:
    """Those above the threshold, by label."""
    kept = np.flatnonzero(noisy > threshold)
    names = list(labels.take(kept))
    order = sorted(range(len(names)), key=names.__getitem__)
    return Shown(tuple(names[i] for i in order), noisy[kept[order]])


def reduced(sketch: Sketch) -> NDArray[np.int64]:
    """Algorithm 3, times k + 1 to be an integer: max(0, (k+1) c - sum of all c). Its l1 sensitivity
    is at most 2k - 1.
    """
    lowered: NDArray[np.int64] = np.maximum((sketch.size + 1) * sketch.counts - int(sketch.counts.sum()), 0)
    return lowered


def pure_scale(size: int, epsilon: float | Fraction) -> Fraction:
    """Return the scale of Algorithm 3's noise in units of 1/(k+1), rounded up."""
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon = {epsilon}: must be a finite number above 0")
    return round_up_scale(Fraction(2 * size - 1) / Fraction(epsilon))


def largest_parts(
    sketch: Sketch, domain: DomainTags, labels: Sequence[bytes], noise: NDArray[np.int64]
) -> tuple[Rows, NDArray[np.int64]]:
    """What Algorithm 3 shows: the places in the domain of the k largest noisy counts, and these
    counts times k + 1.

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
