"""The upper quantile equals the sum over all combinations, and is never smaller."""

import itertools
import math
from fractions import Fraction

import pytest

from workers.mechanisms.noise.gaussian import upper_quantile


def brute(sigma_squared: float, count: int) -> dict[int, float]:
    """Return the probability of every sum, by enumeration."""
    bound = math.ceil(9 * math.sqrt(sigma_squared)) + 1
    weights = {
        z: math.exp(-z * z / (2 * sigma_squared)) for z in range(-bound, bound + 1)
    }
    total = sum(weights.values())
    out: dict[int, float] = {}
    for terms in itertools.product(weights, repeat=count):
        own = math.prod(weights[z] / total for z in terms)
        out[sum(terms)] = out.get(sum(terms), 0.0) + own
    return out


@pytest.mark.parametrize(
    "sigma_squared", [Fraction(1, 4), Fraction(3, 2), Fraction(30)]
)
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("delta", [0.3, 0.05, 1e-3, 1e-7])
def test_it_is_the_smallest_point_whose_tail_weighs_at_most_delta(
    sigma_squared: Fraction, count: int, delta: float
) -> None:
    """One less shows an item more often than delta allows; one more is slack."""
    law = brute(float(sigma_squared), count)
    x = upper_quantile(sigma_squared, count, delta)
    assert x is not None
    assert sum(p for v, p in law.items() if v >= x) <= delta
    assert sum(p for v, p in law.items() if v >= x - 1) > delta


def test_what_is_too_large_is_left_to_the_closed_bound() -> None:
    assert upper_quantile(Fraction(10**5), 2, 1e-9) is None
    assert upper_quantile(Fraction(1), 1, 1e-30) is None
