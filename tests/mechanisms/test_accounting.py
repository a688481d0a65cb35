"""Conversions against independent accountants: always on the private side, and tight."""

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.printed import paper_epsilon
from tests.costs import delta_of
from workers.mechanisms.accounting import (
    PrivacyCost,
    check_sampler_delta,
    epsilon_of,
    float_up,
    rho_of,
    sampler_delta,
)

RHOS = [1e-6, 1e-4, 0.0039, 0.0243, 0.5, 3.0, 40.0]
DELTAS = [1e-3, 1e-6, 1e-9, 1e-15]


def gaussian_delta(rho: float, epsilon: float) -> float:
    """Return the exact delta of the Gaussian mechanism with this rho (Balle, Wang 2018)."""
    mu = math.sqrt(2 * rho)
    root = math.sqrt(2)  # erfc keeps the relative accuracy of small tails
    kept, lost = (
        math.erfc((epsilon / mu + side * mu / 2) / root) / 2 for side in (-1, 1)
    )
    return kept - math.exp(epsilon) * lost


@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize("delta", DELTAS)
def test_epsilon_equals_that_of_an_independent_accountant(
    rho: float, delta: float
) -> None:
    """dp_accounting, given integer orders near the best one, finds the same epsilon."""
    from dp_accounting import dp_event
    from dp_accounting.rdp import rdp_privacy_accountant

    best = 1 + math.sqrt(math.log(1 / delta) / rho)
    orders = sorted({max(2, round(best * factor / 200)) for factor in range(20, 400)})
    accountant = rdp_privacy_accountant.RdpAccountant(orders)
    accountant.compose(dp_event.GaussianDpEvent(1 / math.sqrt(2 * rho)))
    expected = accountant.get_epsilon(delta)
    # Its orders are a grid of half a per cent around the best one: it may be slightly above,
    # and never below.
    assert expected * (1 - 1e-4) <= epsilon_of(rho, delta) <= expected * (1 + 1e-8)


@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize("delta", DELTAS)
def test_epsilon_is_met_by_the_exact_gaussian_mechanism(
    rho: float, delta: float
) -> None:
    assert gaussian_delta(rho, epsilon_of(rho, delta)) <= delta


@pytest.mark.parametrize("epsilon", [1e-6, 0.01, 0.5, 1.0, 3.0, 10.0, 50.0])
@pytest.mark.parametrize("delta", [*DELTAS, 0.5])
def test_calibrated_rho_meets_epsilon_and_1_percent_more_does_not(
    epsilon: float, delta: float
) -> None:
    rho = rho_of(epsilon, delta)
    assert epsilon_of(rho, delta) <= epsilon
    assert delta_of(rho, epsilon) <= delta
    assert epsilon_of(rho * 1.01, delta) > epsilon
    assert delta_of(rho * 1.01, epsilon) > delta


@pytest.mark.slow
@given(st.floats(1e-9, 100), st.floats(1e-20, 0.9))
@settings(max_examples=200, deadline=None)
def test_conversions_agree_with_each_other(rho: float, delta: float) -> None:
    """epsilon_of, delta_of and rho_of read one curve, each rounded to the private side."""
    epsilon = epsilon_of(rho, delta)
    if epsilon > 0:
        assert delta_of(rho, epsilon) <= delta * (1 + 1e-6)
        assert rho_of(epsilon, delta) == pytest.approx(rho, rel=1e-6)


@given(st.floats(1e-9, 50), st.floats(1e-15, 0.1), st.integers(2, 10**6))
@settings(max_examples=200, deadline=None)
def test_no_order_gives_a_smaller_epsilon(rho: float, delta: float, order: int) -> None:
    """Formula of Canonne, Kamath, Steinke at one order."""
    at_order = (
        order * rho + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)
    )
    assert epsilon_of(rho, delta) <= max(at_order, 0) * (1 + 1e-8) + 1e-300


def test_epsilon_at_one_and_a_millionth_beats_the_papers_conversion_as_stated() -> None:
    """At epsilon 1, delta 1e-6 the noise is 0.85 of the papers' conversion."""
    paper_rho = (math.sqrt(math.log(1e6) + 1) - math.sqrt(math.log(1e6))) ** 2
    assert paper_epsilon(paper_rho, 1e-6) == pytest.approx(1, rel=1e-8)
    assert math.sqrt(paper_rho / rho_of(1, 1e-6)) == pytest.approx(0.85, abs=0.01)


def test_extremes_are_answered_and_not_rounded_to_nothing() -> None:
    """Only zero cost is free; an unbounded cost is infinite."""
    assert epsilon_of(0, 1e-9) == 0
    assert delta_of(0, 0) == 0
    assert epsilon_of(math.inf, 1e-9) == math.inf
    assert delta_of(math.inf, 1) == 1
    assert delta_of(1e-8, 5) > 0
    assert delta_of(1.0, 0.0) <= 1
    assert epsilon_of(1e6, 1e-9) > 2e6
    assert 0 < rho_of(1e-9, 1e-12) < 1e-18


def test_results_have_nine_significant_digits_so_machines_agree() -> None:
    """The last bits of exp and log differ between machines; published values must not."""
    for value in (epsilon_of(0.0123, 1e-9), delta_of(0.0123, 1.0), rho_of(0.77, 1e-9)):
        assert value == float(f"{value:.8e}")


@pytest.mark.parametrize("value", [-1.0, math.nan])
def test_rho_outside_its_range_is_refused(value: float) -> None:
    attempts: list[Callable[[], object]] = [
        lambda: epsilon_of(value, 0.1),
        lambda: delta_of(value, 1),
        lambda: PrivacyCost(value, 1.0, 0.0),
    ]
    for convert in attempts:
        with pytest.raises(ValueError, match=rf"rho = {value}: must be"):
            convert()


@pytest.mark.parametrize("value", [-0.1, 0.0, 1.0, 2.0, math.nan])
def test_delta_outside_its_range_is_refused(value: float) -> None:
    """zCDP cannot promise delta = 0."""
    for convert in (epsilon_of, rho_of):
        with pytest.raises(ValueError, match=rf"delta = {value}: must be"):
            convert(1, value)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_epsilon_that_nothing_can_be_calibrated_to_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=rf"epsilon = {value}: must be"):
        rho_of(value, 1e-9)


def test_a_delta_that_is_no_probability_is_refused() -> None:
    with pytest.raises(ValueError, match=r"delta of 'discovery' = 1\.5"):
        PrivacyCost(0.1, 1.0, 1e-6, failures=(("discovery", 1.5),))


def test_float_up_is_the_next_float_at_or_above() -> None:
    third = Fraction(1, 3)
    assert Fraction(float_up(third)) >= third
    assert Fraction(math.nextafter(float_up(third), 0)) < third


def test_sampler_delta_is_the_formula_rounded_up() -> None:
    """(1 + e^eps) D0 TV, at most 1."""
    assert sampler_delta(1.0, 3, 1e-30) == pytest.approx((1 + math.e) * 3e-30, rel=1e-8)
    assert sampler_delta(1.0, 3, 1e-30) >= (1 + math.e) * 3e-30
    assert sampler_delta(1e6, 3, 1e-30) == 1
    with pytest.raises(ValueError, match="epsilon = -1"):
        sampler_delta(-1, 3, 1e-30)


def test_a_refused_delta_is_told_what_would_do() -> None:
    """The figure is a value for delta, not for the samplers' part; the error says if none works."""
    check_sampler_delta(1e-6, 1.0, 1e-12, 1e-6)
    figure = r"delta = 0\.01: .* at epsilon = 47\.78 \(4\.2e-02\)"
    with pytest.raises(
        ValueError, match=figure + ": a larger delta, or a smaller epsilon or rho"
    ):
        check_sampler_delta(0.01, 47.78, 4.2e-8, 1e-6)
    none = r"delta = 0\.3: .* \(no delta is enough\): a smaller epsilon or rho"
    with pytest.raises(ValueError, match=none):
        check_sampler_delta(0.3, 75.4, 1.5e-4, 1e-6)
    with pytest.raises(ValueError, match="no delta is enough"):
        check_sampler_delta(0.5, 1.0, math.nan, 1.0)
