"""The integer Gaussian sampler: exact at every threshold, with negative controls."""

import bisect
import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest

from tests.mechanisms.noise.tables import WORDS, drawn, follows, random_words, sample, words_of
from tests.mechanisms.small import STREAM
from workers.mechanisms.noise.gaussian import (
    LARGEST_SIGMA_SQUARED,
    IntegerGaussian,
    integer_gaussian,
    round_up_sigma_squared,
)

VARIANCES = list(map(Fraction, ("1/100", "1/4", "1", "5/2", "300", "12345/7")))


def masses(sigma_squared: Fraction, reach: int) -> list[Decimal]:
    """Return P(x) for x = -reach..reach, without the recurrence of the sampler's table."""
    with localcontext() as context:
        context.prec = 110
        numerator, denominator = map(Decimal, sigma_squared.as_integer_ratio())
        exponents = (-Decimal(x * x) * denominator / (2 * numerator) for x in range(reach + 1))
        half = [exponent.exp() for exponent in exponents]
        weights = [*half[:0:-1], *half]
        total = sum(weights, Decimal(0))
        return [weight / total for weight in weights]


def thresholds(sigma_squared: Fraction, bound: int) -> list[int]:
    """Return round(2^128 P(X <= x)) for x = -bound .. bound - 1, with masses far beyond."""
    reach = 2 * bound + 30
    with localcontext() as context:
        context.prec = 110
        total, found = Decimal(0), []
        for x, mass in zip(range(-reach, bound), masses(sigma_squared, reach), strict=False):
            total += mass
            if x >= -bound:
                found.append(int((total * WORDS).to_integral_value()))
        return found


@pytest.mark.parametrize("sigma_squared", VARIANCES)
def test_values_change_exactly_at_the_128_bit_thresholds(sigma_squared: Fraction) -> None:
    """A word below a threshold gives the smaller value, the threshold the larger: 128 bits."""
    gaussian = IntegerGaussian(sigma_squared)
    edges = thresholds(sigma_squared, gaussian.bound)
    assert len(edges) == 2 * gaussian.bound
    assert edges[0] > 0
    assert edges[-1] < WORDS
    for words in ([edge - 1 for edge in edges], edges):
        expected = [bisect.bisect_right(edges, word) - gaussian.bound for word in words]
        assert sample(gaussian, words_of(words)).tolist() == expected
    assert sample(gaussian, words_of([0, WORDS - 1])).tolist() == [-gaussian.bound, gaussian.bound]


def test_words_that_meet_a_threshold_in_the_upper_half_are_decided_by_the_lower_half() -> None:
    """The tie of one word in 2^64: lower halves at each threshold, upper halves beside it."""
    sigma_squared = Fraction(5, 2)
    gaussian = IntegerGaussian(sigma_squared)
    edges = thresholds(sigma_squared, gaussian.bound)
    values = []
    for edge in edges:
        upper = edge >> 64 << 64
        values += [upper, upper + 2**64 - 1, max(edge - 2**64, 0), min(edge + 2**64, WORDS - 1)]
    expected = [sum(edge <= value for edge in edges) - gaussian.bound for value in values]
    assert sample(gaussian, words_of(values)).tolist() == expected


@pytest.mark.parametrize("sigma_squared", VARIANCES)
def test_the_guide_table_gives_what_the_full_search_gives(sigma_squared: Fraction) -> None:
    gaussian = IntegerGaussian(sigma_squared)
    words, top = random_words(1 << 16, 3), np.arange(1 << 16, dtype=np.uint64)
    words[:, 0] = (words[:, 0] >> np.uint64(16)) | (top << np.uint64(48))
    edges = words_of(thresholds(sigma_squared, gaussian.bound))[:, 0]
    expected = np.searchsorted(edges, words[:, 0], side="right") - gaussian.bound
    assert (sample(gaussian, words) == expected).all()


@pytest.mark.parametrize("sigma_squared", VARIANCES)
def test_stated_total_variation_distance_is_an_upper_bound(sigma_squared: Fraction) -> None:
    """The guarantee charges `tv`: it must cover threshold rounding and the tail beyond."""
    gaussian = IntegerGaussian(sigma_squared)
    reach = gaussian.bound + 30
    with localcontext() as context:
        context.prec = 110
        ideal = masses(sigma_squared, reach)
        edges = [0, *thresholds(sigma_squared, gaussian.bound), WORDS]
        distance = sum(ideal[:30]) + sum(ideal[-30:])
        for mass, low, high in zip(ideal[30:-30], edges, edges[1:], strict=False):
            distance += abs(mass - Decimal(high - low) / WORDS)
        assert distance / 2 <= Decimal(gaussian.tv)
    assert gaussian.tv < 2**-115


@pytest.mark.parametrize("sigma_squared", VARIANCES[1:5])
def test_samples_follow_the_discrete_gaussian_and_not_half_or_double_its_variance(
    sigma_squared: Fraction,
) -> None:
    """200,000 keyed draws; six sd and 12 above the mean is not met by chance."""
    values = drawn(integer_gaussian(sigma_squared), 200_000, 5)
    for factor, accepted in ((Fraction(1), True), (Fraction(1, 2), False), (Fraction(2), False)):
        reach = 14 * math.isqrt(math.ceil(sigma_squared * factor)) + 14
        law = np.array(masses(sigma_squared * factor, reach), dtype=np.float64)
        assert follows(values, -reach, law) is accepted


def test_draw_gives_each_row_the_sample_of_its_word() -> None:
    tags, gaussian = random_words(20_001, 7), integer_gaussian(Fraction(300))
    words = STREAM.words(tags, (1, 2))
    assert (drawn(gaussian, 20_001, 7) == sample(gaussian, words)).all()


def test_large_noise_uses_32_bits_and_keeps_its_variance() -> None:
    """No int16 wrap: 100,000 draws give the variance within 5 sd (sd sqrt(2/n) = 0.45 %)."""
    gaussian = integer_gaussian(Fraction(10**8))
    assert gaussian.dtype == np.int32
    assert gaussian.bound > 13 * 10**4
    assert drawn(gaussian, 100_000, 11).var() == pytest.approx(1e8, rel=0.0225)


@pytest.mark.parametrize(
    "sigma_squared", [Fraction(0), Fraction(-1), Fraction(LARGEST_SIGMA_SQUARED + 1)]
)
def test_a_variance_outside_the_range_is_refused(sigma_squared: Fraction) -> None:
    """Zero noise and a table larger than memory are both refused with the limit."""
    with pytest.raises(ValueError, match=f"at most {LARGEST_SIGMA_SQUARED}"):
        IntegerGaussian(sigma_squared)


@pytest.mark.parametrize("text", ["1/3", "1/1000000000", "1", "1000000/7", "99/100"])
def test_variances_are_rounded_up_by_little(text: str) -> None:
    """Rounding down would cost more privacy than stated; rounding far up costs accuracy."""
    value = Fraction(text)
    rounded = round_up_sigma_squared(value)
    assert value <= rounded <= value * (1 + Fraction(1, 1 << 15))
    assert rounded.denominator & (rounded.denominator - 1) == 0
    assert round_up_sigma_squared(rounded) == rounded
