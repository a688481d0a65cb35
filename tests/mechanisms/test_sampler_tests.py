"""Sampling from a table: how much more often a threshold is passed; and counters, which have none."""

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest

from tests.mechanisms.small import SMALL
from workers.mechanisms.noise.gaussian import IntegerGaussian, integer_gaussian
from workers.mechanisms.running.base import UnkBase, UnkBaseConfig

Law = dict[int, int]
# Masses are whole numbers over 2^300: far finer than 2^-128, and fast to multiply.
BITS = 300
UNIT = 1 << (BITS - 128)


def sampled(table: IntegerGaussian) -> Law:
    """Return a table's law: how many of the 2^128 words give each value."""
    pairs = zip(table._high.tolist(), table._low.tolist(), strict=True)
    steps = [0, *((high << 64) + low for high, low in pairs), 1 << 128]
    widths = (above - below for below, above in pairwise(steps))
    return {table._lowest + i: width * UNIT for i, width in enumerate(widths)}


def ideal(sigma_squared: Fraction) -> Law:
    """Return the discrete Gaussian out to 2^-200 of its centre, to 90 digits."""
    with localcontext() as context:
        context.prec = 100
        twice = Decimal(2 * sigma_squared.numerator) / Decimal(
            sigma_squared.denominator
        )
        reach = math.isqrt(math.ceil(400 * sigma_squared)) + 1
        weights = {x: (-Decimal(x * x) / twice).exp() for x in range(-reach, reach + 1)}
        scale = Decimal(1 << BITS) / sum(weights.values())
        return {x: int(weight * scale) for x, weight in weights.items()}


def excess(one: Law, other: Law) -> Fraction:
    largest = difference = 0
    for x in sorted(one.keys() | other.keys(), reverse=True):
        difference += one.get(x, 0) - other.get(x, 0)
        largest = max(largest, abs(difference))
    return Fraction(largest, 1 << BITS)


@pytest.mark.parametrize("text", ["1/5", "1", "77/3", "900"])
def test_a_table_passes_no_threshold_more_often_than_it_says(text: str) -> None:
    """Half a unit for rounding one threshold, at most the distance of the whole law."""
    sigma_squared = Fraction(text)
    table = integer_gaussian(sigma_squared)
    found = excess(sampled(table), ideal(sigma_squared))
    assert Fraction(1, 10 << 128) < found <= Fraction(1, 1 << 128) <= Fraction(table.tv)


def test_counters_need_nothing_of_delta_for_samplers() -> None:
    """Their noise is exact: half of delta is for discovery, the rest converts; however small it is."""
    values: Any = SMALL | {"horizon": 1 << 17, "max_items": 2, "delta": 1e-27}
    mechanism = UnkBase(UnkBaseConfig(**values))
    assert dict(mechanism.cost().failures) == {"discovery": 0.5e-27}
    assert mechanism.cost().gaussian
