"""The integer samplers: exact at every 128-bit threshold, with negative controls."""

import bisect
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import pytest

from tests.mechanisms.noise.tables import (
    WORDS,
    drawn,
    random_words,
    sample,
    words_of,
)
from tests.mechanisms.small import STREAM
from workers.mechanisms.noise.discrete_laplace import (
    LARGEST_SCALE,
    discrete_laplace,
    geometric,
    round_up_scale,
)
from workers.mechanisms.noise.gaussian import (
    LARGEST_SIGMA_SQUARED,
    integer_gaussian,
    round_up_sigma_squared,
)
from workers.mechanisms.noise.inversion import InversionTable


class Law(NamedTuple):
    """P(x) is proportional to exp(-exponent(parameter, x)), for x >= 0 only if `one_sided`."""

    made: Callable[[Fraction], InversionTable]
    exponent: Callable[[Fraction, int], Fraction]
    one_sided: bool
    largest: int
    parameters: tuple[str, ...]


SCALES = ("1/20", "1/2", "1", "22/7", "60")
VARIANCES = ("1/100", "1/4", "1", "5/2", "300", "12345/7")
LAWS = {
    "gaussian": Law(
        integer_gaussian,
        lambda s2, x: x * x / (2 * s2),
        False,
        LARGEST_SIGMA_SQUARED,
        VARIANCES,
    ),
    "laplace": Law(
        discrete_laplace, lambda b, x: abs(x) / b, False, LARGEST_SCALE, SCALES
    ),
    "geometric": Law(geometric, lambda b, x: x / b, True, LARGEST_SCALE, SCALES),
}
CASES = [
    pytest.param(name, text, marks=[] if name == "gaussian" else pytest.mark.slow)
    for name, law in LAWS.items()
    for text in law.parameters
]
every_table = pytest.mark.parametrize(("name", "text"), CASES)


@cache
def masses(name: str, parameter: Fraction, reach: int) -> list[Decimal]:
    """Return P(x) up to x = reach, without the recurrence of the sampler's table."""
    law = LAWS[name]
    with localcontext() as context:
        context.prec = 110
        ratios = (
            law.exponent(parameter, x).as_integer_ratio() for x in range(reach + 1)
        )
        half = [(-Decimal(n) / Decimal(d)).exp() for n, d in ratios]
        weights = half if law.one_sided else [*half[:0:-1], *half]
        total = sum(weights, Decimal(0))
        return [weight / total for weight in weights]


@cache
def thresholds(name: str, text: str) -> tuple[InversionTable, int, list[int]]:
    """Return the table, its lowest value, and round(2^128 P(X <= x)) from there to the bound."""
    table = LAWS[name].made(Fraction(text))
    lowest = 0 if LAWS[name].one_sided else -table.bound
    reach = 2 * table.bound + 30  # far beyond
    with localcontext() as context:
        context.prec = 110
        sums = list(accumulate(masses(name, Fraction(text), reach)))
        first = lowest if LAWS[name].one_sided else reach - table.bound
        inside = sums[first : first + table.bound - lowest]
        return table, lowest, [int((one * WORDS).to_integral_value()) for one in inside]


@every_table
def test_values_change_exactly_at_the_128_bit_thresholds(name: str, text: str) -> None:
    table, lowest, edges = thresholds(name, text)
    assert all(0 < edge < WORDS for edge in edges)
    for words in ([edge - 1 for edge in edges], edges):
        expected = [lowest + bisect.bisect_right(edges, word) for word in words]
        assert sample(table, words_of(words)).tolist() == expected
    assert sample(table, words_of([0, WORDS - 1])).tolist() == [lowest, table.bound]


@every_table
def test_stated_total_variation_distance_is_an_upper_bound(
    name: str, text: str
) -> None:
    """The guarantee charges `tv`: it must cover threshold rounding and the tail beyond."""
    table, _, edges = thresholds(name, text)
    reach = table.bound + 30
    with localcontext() as context:
        context.prec = 110
        beyond = 0 if LAWS[name].one_sided else 30
        ideal = masses(name, Fraction(text), reach)
        inside = ideal[beyond : len(ideal) - 30]
        distance = 1 - sum(inside, Decimal(0))
        for mass, (low, high) in zip(inside, pairwise([0, *edges, WORDS]), strict=True):
            distance += abs(mass - Decimal(high - low) / WORDS)
        assert distance / 2 <= Decimal(table.tv)
    assert table.tv < 2**-110


@pytest.mark.slow
@pytest.mark.parametrize("text", SCALES)
def test_stated_moments_are_those_of_the_law(text: str) -> None:
    scale = Fraction(text)
    xs = range(-5000, 5001)
    laplace = zip(xs, map(float, masses("laplace", scale, 5000)), strict=True)
    variance = sum(x * x * mass for x, mass in laplace)
    assert discrete_laplace(scale).variance == pytest.approx(variance)
    one_sided = list(
        zip(xs[5000:], map(float, masses("geometric", scale, 5000)), strict=True)
    )
    mean = sum(x * mass for x, mass in one_sided)
    assert geometric(scale).mean == pytest.approx(mean)
    variance = sum((x - mean) ** 2 * mass for x, mass in one_sided)
    assert geometric(scale).variance == pytest.approx(variance)


def test_words_that_meet_a_threshold_in_the_upper_half_are_decided_by_the_lower_half() -> (
    None
):
    """The tie of one word in 2^64: lower halves at each threshold, upper halves beside it."""
    gaussian, lowest, edges = thresholds("gaussian", "5/2")
    values = []
    for edge in edges:
        upper = edge >> 64 << 64
        values += [
            upper,
            upper + 2**64 - 1,
            max(edge - 2**64, 0),
            min(edge + 2**64, WORDS - 1),
        ]
    expected = [sum(edge <= value for edge in edges) + lowest for value in values]
    assert sample(gaussian, words_of(values)).tolist() == expected


@pytest.mark.parametrize("text", VARIANCES)
def test_the_guide_table_gives_what_the_full_search_gives(text: str) -> None:
    gaussian, lowest, edges = thresholds("gaussian", text)
    words = random_words(1 << 16, 3)
    top = np.arange(1 << 16, dtype=np.uint64)
    words[:, 0] = (words[:, 0] >> np.uint64(16)) | (top << np.uint64(48))
    expected = (
        np.searchsorted(words_of(edges)[:, 0], words[:, 0], side="right") + lowest
    )
    assert (sample(gaussian, words) == expected).all()


def test_draw_gives_each_row_the_sample_of_its_word() -> None:
    tags = random_words(20_001, 7)
    gaussian = integer_gaussian(Fraction(300))
    words = STREAM.words(tags, (1, 2))
    assert (drawn(gaussian, 20_001, 7) == sample(gaussian, words)).all()


@pytest.mark.parametrize("name", LAWS)
def test_a_parameter_outside_the_range_is_refused(name: str) -> None:
    """Zero noise and a table larger than memory are both refused with the limit."""
    law = LAWS[name]
    for parameter in (0, -1, law.largest + 1):
        with pytest.raises(ValueError, match=f"at most {law.largest}"):
            law.made(Fraction(parameter))


@pytest.mark.parametrize("text", ["1/3", "1/1000000000", "1", "1000000/7", "99/100"])
@pytest.mark.parametrize("rounded", [round_up_scale, round_up_sigma_squared])
def test_parameters_are_rounded_up_by_little(
    rounded: Callable[[Fraction], Fraction], text: str
) -> None:
    """Rounding down would cost more privacy than stated; rounding far up costs accuracy."""
    value = Fraction(text)
    found = rounded(value)
    assert value <= found <= value * (1 + Fraction(1, 1 << 15))
    assert found.denominator & (found.denominator - 1) == 0
    assert rounded(found) == found
