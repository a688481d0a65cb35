"""Bounds on the largest of many noise values, each of which fails with probability `beta`.

`draws` is how many noise values there are: each may fail with probability beta / draws (union
bound). Nothing here changes a release, so floats suffice. Papers by number:
000 is Cardoso, Rogers; 001 is Henzinger, Sricharan, Steiner (docs/mechanisms.md, Papers).
"""

import math
from statistics import NormalDist

_NORMAL = NormalDist()


def normal_bound(variance: float, draws: float, beta: float) -> float:
    """Bound all |sub-Gaussian values|: P(|X| > x) <= 2 exp(-x^2 / (2 v)) (000 Theorem 2)."""
    return math.sqrt(2 * variance * math.log(2 * draws / beta))


def laplace_bound(scale: float, draws: float, beta: float) -> float:
    """Bound all |Laplace values|: P(|X| > x) = exp(-x / b) (001 Fact 6)."""
    return scale * math.log(draws / beta)


def laplace_sum(terms: int, scale: float, draws: float, beta: float) -> float:
    """Bound all |sums of `terms` Laplace values| (001 Lemma 2)."""
    log = math.log(2 * draws / beta)
    return 2 * scale * math.sqrt(2 * log) * max(math.sqrt(terms), math.sqrt(log))


def subset_bound(variance: float, terms: int, draws: float, beta: float) -> float:
    """Bound all |sums over any of the 2^terms subsets of `terms` sub-Gaussian values|.

    For a count that is a sum over cells, where noise decides which of these show the item.
    """
    return math.sqrt(
        2 * terms * variance * (terms * math.log(2) + math.log(2 * draws / beta))
    )


def normal_quantile(tail: float) -> float:
    """Return PhiInv(1 - tail); 1 - tail as a float would lose a small tail."""
    return -_NORMAL.inv_cdf(tail)
