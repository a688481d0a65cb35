"""Sampling's addition to the chance of showing an item of one event: exact, and as charged."""

import math
import re
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest

from tests.mechanisms.small import SMALL
from workers.mechanisms.budget import NUMERICAL_SHARE
from workers.mechanisms.config.histogram import EPOCH, UnkBaseConfig
from workers.mechanisms.counters.base import Counter
from workers.mechanisms.counters.counter import make_counter
from workers.mechanisms.noise.gaussian import IntegerGaussian, integer_gaussian
from workers.mechanisms.running.base import UnkBase

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
        twice = Decimal(2 * sigma_squared.numerator) / Decimal(sigma_squared.denominator)
        reach = math.isqrt(math.ceil(400 * sigma_squared)) + 1
        weights = {x: (-Decimal(x * x) / twice).exp() for x in range(-reach, reach + 1)}
        scale = Decimal(1 << BITS) / sum(weights.values())
        return {x: int(weight * scale) for x, weight in weights.items()}


def of_sum(laws: list[tuple[int, Law]]) -> Law:
    """Return the law of a sum of independent values with whole coefficients."""
    total: Law = {0: 1 << BITS}
    for coefficient, law in laws:
        found: Law = {}
        for at, mass in total.items():
            for x, weight in law.items():
                place = at + coefficient * x
                found[place] = found.get(place, 0) + (mass * weight >> BITS)
        total = found
    return total


def excess(one: Law, other: Law) -> Fraction:
    largest = difference = 0
    for x in sorted(one.keys() | other.keys(), reverse=True):
        difference += one.get(x, 0) - other.get(x, 0)
        largest = max(largest, abs(difference))
    return Fraction(largest, 1 << BITS)


@pytest.mark.parametrize("text", ["1/5", "1", "77/3", "900"])
def test_a_table_passes_no_threshold_more_often_than_it_says(text: str) -> None:
    """Half a unit for rounding one threshold; the total variation sums over all thresholds."""
    sigma_squared = Fraction(text)
    table = integer_gaussian(sigma_squared)
    found = excess(sampled(table), ideal(sigma_squared))
    assert Fraction(1, 10 << 128) < found <= Fraction(table.test_tv) <= Fraction(table.tv)


@pytest.mark.parametrize(
    ("kind", "horizon", "radix"),
    [("lifted", 2, None), ("lifted", 4, None), ("tree", 5, 3), ("tree", 4, 2), ("sqrt", 3, None)],
)
def test_no_tick_passes_a_threshold_more_often_than_its_counter_says(
    kind: str, horizon: int, radix: int | None
) -> None:
    """A hybrid over a tick's weighted cells: the bound is of the exact figure's size."""
    counter = make_counter(kind, horizon, 40.0, radix)
    largest = max(excess_at(counter, t) for t in range(1, horizon + 1))
    assert Fraction(1, 10 << 128) < largest <= Fraction(counter.test_tv) <= 100 * largest


def excess_at(counter: Counter, t: int) -> Fraction:
    terms = counter.terms(t)
    whole = math.lcm(*(c.denominator for c, _ in terms))
    tables = of_sum([(int(c * whole), sampled(integer_gaussian(s2))) for c, s2 in terms])
    return excess(tables, of_sum([(int(c * whole), ideal(s2)) for c, s2 in terms]))


def settings(**changes: object) -> UnkBaseConfig:
    """Return settings of many ticks, with an unusually small delta."""
    values: Any = SMALL | {"horizon": 1 << 17, "max_items": 2, "delta": 1e-27} | changes
    return UnkBaseConfig(**values)


@pytest.mark.parametrize(
    "changes", [{}, {"counter": "tree"}, {"horizon": "unbounded", "start": EPOCH, "delta": 1e-21}]
)
def test_a_delta_that_covers_the_counts_but_not_the_tests_is_refused_and_told_what_is_enough(
    changes: dict[str, object],
) -> None:
    """Noise is tested at every tick; charged once, 2^17 tests paid for two dozen cells."""
    config = settings(**changes)
    with pytest.raises(ValueError, match="a shorter horizon") as refused:
        UnkBase(config)
    found = re.search(r"\((\S+)\): a larger delta", str(refused.value))
    assert found is not None
    # A smaller delta has a little more noise.
    enough = UnkBase(settings(**(changes | {"delta": float(found[1]) * 1.1})))
    of_counts = (1 + math.e) * 2 * enough._counter.tv
    # By what was charged before it passed.
    assert of_counts < config.delta * NUMERICAL_SHARE < dict(enough.cost().failures)["numerical"]


def test_the_tests_of_an_epoch_are_charged_each() -> None:
    """D0 tests at each tick, or at each n-th; none over a known domain."""
    with pytest.raises(ValueError, match="shorter horizon"):
        UnkBase(settings())
    UnkBase(settings(threshold="every", every=1 << 10))
    UnkBase(settings(horizon=1 << 7))
    small = [UnkBase(settings(delta=1e-9, horizon=horizon)) for horizon in (1 << 7, 1 << 17)]
    for mechanism in small:
        counter, ticks = mechanism._counter, mechanism.config.horizon_ticks
        assert ticks is not None
        exact = ticks * Fraction(counter.test_tv) + Fraction(1 + math.e) * Fraction(counter.tv)
        assert 2 * exact < Fraction(dict(mechanism.cost().failures)["numerical"])
