"""Discrete Laplace and geometric samplers: exact thresholds, correct law, negative controls."""

import bisect
import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest

from tests.mechanisms.noise.tables import WORDS, drawn, follows, sample, words_of
from workers.mechanisms.noise.discrete_laplace import (
    LARGEST_SCALE,
    DiscreteLaplace,
    Geometric,
    discrete_laplace,
    geometric,
    round_up_scale,
)

pytestmark = pytest.mark.slow

SCALES = [Fraction(1, 20), Fraction(1, 2), Fraction(1), Fraction(22, 7), Fraction(60)]
Sampler = Callable[[Fraction], DiscreteLaplace | Geometric]
every_kind = pytest.mark.parametrize("kind", [discrete_laplace, geometric])


def law(kind: Sampler, scale: Fraction, x: int) -> float:
    q = math.exp(-1 / float(scale))
    if kind is geometric:
        return float((1 - q) * q**x) if x >= 0 else 0.0
    return float((1 - q) / (1 + q) * q ** abs(x))


def cumulative(kind: Sampler, scale: Fraction, x: int) -> int:
    """Return round(2^128 P(X <= x)), without the recurrence of the sampler's table."""
    with localcontext() as context:
        context.prec = 110
        one = Decimal(scale.denominator) / Decimal(scale.numerator)
        if kind is geometric:
            return WORDS - int((WORDS * (-one * (x + 1)).exp()).to_integral_value())
        mass = WORDS * (-one * (-x if x < 0 else x + 1)).exp() / (1 + (-one).exp())
        tail = int(mass.to_integral_value())
        return tail if x < 0 else WORDS - tail


@every_kind
@pytest.mark.parametrize("scale", SCALES)
def test_values_change_exactly_at_the_128_bit_thresholds(kind: Sampler, scale: Fraction) -> None:
    """A word just below a threshold gives the smaller value, the threshold the larger."""
    table = kind(scale)
    least = 0 if kind is geometric else -table.bound
    edges = [cumulative(kind, scale, x) for x in range(least, table.bound)]
    assert all(0 < edge < WORDS for edge in edges)
    for words in ([edge - 1 for edge in edges], edges):
        expected = [least + bisect.bisect_right(edges, word) for word in words]
        assert sample(table, words_of(words)).tolist() == expected
    assert sample(table, words_of([0, WORDS - 1])).tolist() == [least, table.bound]


@every_kind
@pytest.mark.parametrize("scale", SCALES)
def test_stated_total_variation_distance_covers_the_rounding(
    kind: Sampler, scale: Fraction
) -> None:
    """The guarantee charges `tv`; summed here from thresholds and the law at 110 digits."""
    table = kind(scale)
    least = 0 if kind is geometric else -table.bound
    edges = [0, *(cumulative(kind, scale, x) for x in range(least, table.bound)), WORDS]
    with localcontext() as context:
        context.prec = 110
        q = (-Decimal(scale.denominator) / Decimal(scale.numerator)).exp()
        front = 1 - q if kind is geometric else (1 - q) / (1 + q)
        beyond, distance = Decimal(1), Decimal(0)
        for x in range(least, table.bound + 1):
            mass = front * q ** abs(x)
            beyond -= mass
            distance += abs(mass - Decimal(edges[x - least + 1] - edges[x - least]) / WORDS)
        assert (distance + beyond) / 2 <= Decimal(table.tv)
    assert table.tv < 2**-110


@every_kind
@pytest.mark.parametrize("scale", SCALES[1:4])
def test_samples_follow_the_law_and_not_half_or_double_its_scale(
    kind: Sampler, scale: Fraction
) -> None:
    """200,000 keyed draws; six sd and 12 above the mean is not met by chance."""
    table = kind(scale)
    values, xs = drawn(table, 200_000, 5), range(-table.bound, table.bound + 1)
    for factor, accepted in ((Fraction(1), True), (Fraction(1, 2), False), (Fraction(2), False)):
        expected = np.array([law(kind, scale * factor, x) for x in xs])
        assert follows(values, -table.bound, expected) is accepted


@pytest.mark.parametrize("scale", SCALES)
def test_stated_moments_are_those_of_the_law(scale: Fraction) -> None:
    xs = range(-5000, 5001)
    variance = sum(x * x * law(discrete_laplace, scale, x) for x in xs)
    assert discrete_laplace(scale).variance == pytest.approx(variance)
    mean = sum(x * law(geometric, scale, x) for x in xs)
    assert geometric(scale).mean == pytest.approx(mean)
    variance = sum((x - mean) ** 2 * law(geometric, scale, x) for x in xs)
    assert geometric(scale).variance == pytest.approx(variance)


@every_kind
@pytest.mark.parametrize("scale", [Fraction(0), Fraction(-1), Fraction(LARGEST_SCALE + 1)])
def test_a_scale_outside_the_range_is_refused(kind: Sampler, scale: Fraction) -> None:
    """Zero noise and a table larger than memory are both refused with the limit."""
    with pytest.raises(ValueError, match=f"at most {LARGEST_SCALE}"):
        kind(scale)


@pytest.mark.parametrize("scale", [Fraction(1, 3), Fraction(1, 10**9), Fraction(10**3, 7)])
def test_scales_are_rounded_up_by_little(scale: Fraction) -> None:
    assert scale <= round_up_scale(scale) <= scale * (1 + Fraction(1, 1 << 15))
    assert round_up_scale(round_up_scale(scale)) == round_up_scale(scale)
