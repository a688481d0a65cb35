"""Bounds on the largest of many noise values, each of which fails with probability `beta`.

The union is over all `values`; nothing here changes a release, so floats suffice. Papers by number:
000 is Cardoso, Rogers; 001 is Henzinger, Sricharan, Steiner (docs/mechanisms.md, Papers).
"""

import math
from statistics import NormalDist

_NORMAL = NormalDist()


def normal_bound(variance: float, values: float, beta: float) -> float:
    """Bound all |sub-Gaussian values|: P(|X| > x) <= 2 exp(-x^2 / (2 v)) (000 Theorem 2)."""
    return math.sqrt(2 * variance * math.log(2 * values / beta))


def laplace_bound(scale: float, values: float, beta: float) -> float:
    """Bound all |Laplace values|: P(|X| > x) = exp(-x / b) (001 Fact 6)."""
    return scale * math.log(values / beta)


def laplace_sum(terms: int, scale: float, values: float, beta: float) -> float:
    """Bound all |sums of `terms` Laplace values| (001 Lemma 2)."""
    log = math.log(2 * values / beta)
    return 2 * scale * math.sqrt(2 * log) * max(math.sqrt(terms), math.sqrt(log))


def subset_bound(variance: float, terms: int, values: float, beta: float) -> float:
    """Bound the sums over all 2^terms subsets, as noise decides which cells show an item."""
    return math.sqrt(
        2 * terms * variance * (terms * math.log(2) + math.log(2 * values / beta))
    )


def normal_quantile(tail: float) -> float:
    """Return PhiInv(1 - tail); 1 - tail as a float would lose a small tail."""
    return -_NORMAL.inv_cdf(tail)
