"""The exact quantile equals the sum over all combinations, and is never smaller."""

import itertools
import math
from fractions import Fraction

import pytest

from workers.mechanisms.noise.gaussian import exact_quantile

TERMS = {
    "one": [(Fraction(1), Fraction(2))],
    "halves": [(Fraction(1, 2), Fraction(3, 2)), (Fraction(1), Fraction(1, 4))],
    "three": [(Fraction(c, 4), Fraction(1, s2)) for c, s2 in ((1, 1), (3, 2), (4, 3))],
}


def brute(terms: list[tuple[Fraction, Fraction]]) -> dict[Fraction, float]:
    """Return the probability of every value of X, by enumeration."""
    laws = []
    for c, s2 in terms:
        bound = math.ceil(9 * math.sqrt(float(s2))) + 1
        weights = {z: math.exp(-z * z / (2 * float(s2))) for z in range(-bound, bound + 1)}
        total = sum(weights.values())
        laws.append([(c * z, w / total) for z, w in weights.items()])
    out: dict[Fraction, float] = {}
    for combination in itertools.product(*laws):
        x = sum((v for v, _ in combination), Fraction())
        out[x] = out.get(x, 0.0) + math.prod(w for _, w in combination)
    return out


@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize("delta", [0.3, 0.05, 1e-3, 1e-7])
def test_it_is_the_smallest_point_whose_tail_weighs_at_most_delta(name: str, delta: float) -> None:
    """One lattice point less shows an item more often than delta allows; one more is slack."""
    law = brute(TERMS[name])
    x = exact_quantile(4, [(int(4 * c), s2) for c, s2 in TERMS[name]], delta)
    assert x is not None
    below = max(v for v in law if float(v) < x)
    assert sum(p for v, p in law.items() if float(v) >= x) <= delta
    assert sum(p for v, p in law.items() if v >= below) > delta


def test_what_is_too_large_is_left_to_the_closed_bounds() -> None:
    assert exact_quantile(2**12, [(1, Fraction(400))] * 12, 1e-9) is None
    assert exact_quantile(1, [(1, Fraction(1))], 1e-30) is None
