"""The exact conversion of Gaussian costs: one-sided, tight, and equal to independent accountants."""

import math
from collections.abc import Callable, Iterator
from decimal import Decimal, localcontext
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf

from workers.mechanisms import accounting
from workers.mechanisms.accounting import (
    epsilon_of,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_rho,
    rho_of,
)

# One unit of the ninth digit, and the margins.
NINE_DIGITS = 1.02e-8
MUS = [1e-6, 1e-3, 0.05, 0.3, 1.0, 4.0, 20.0, 100.0]
DELTAS = [0.5, 1e-3, 1e-9, 1e-15, 1e-100, 1e-300]


def exact_delta(rho: float, epsilon: float) -> mpf:
    """Return the formula of Balle and Wang as it is printed, to at least 60 digits."""
    with mp.workdps(80):
        mu = mp.sqrt(2 * mpf(rho))
        at = mpf(epsilon)
        return mp.ncdf(mu / 2 - at / mu) - mp.exp(at) * mp.ncdf(-mu / 2 - at / mu)


def check_epsilon(rho: float, delta: float) -> float:
    epsilon = gaussian_epsilon(rho, delta)
    assert exact_delta(rho, epsilon) <= delta, "too small"
    if epsilon > 0:
        assert exact_delta(rho, epsilon * (1 - NINE_DIGITS)) > delta, "too large"
    assert epsilon <= epsilon_of(rho, delta)
    return epsilon


def check_rho(epsilon: float, delta: float) -> None:
    rho = gaussian_rho(epsilon, delta)
    assert exact_delta(rho, epsilon) <= delta, "too large"
    assert exact_delta(rho * (1 + NINE_DIGITS), epsilon) > delta, "too small"
    assert rho >= rho_of(epsilon, delta)


@pytest.mark.parametrize("mu", MUS)
@pytest.mark.parametrize("delta", DELTAS)
def test_results_are_exact_to_nine_digits_and_on_the_private_side(
    mu: float, delta: float
) -> None:
    if epsilon := check_epsilon(mu**2 / 2, delta):
        check_rho(epsilon, delta)


@pytest.mark.slow
@given(st.floats(-6, 2), st.floats(-300, math.log10(0.5)))
@settings(max_examples=150, deadline=None)
def test_results_are_exact_anywhere(log_mu: float, log_delta: float) -> None:
    """Every epsilon of nine digits is met again by its own rho, too."""
    delta = 10**log_delta
    if epsilon := check_epsilon(10 ** (2 * log_mu) / 2, delta):
        check_rho(epsilon, delta)
        assert gaussian_epsilon(gaussian_rho(epsilon, delta), delta) <= epsilon


@pytest.mark.slow
@given(
    st.integers(10**8, 10**9 - 1), st.integers(-14, -5), st.floats(-30, math.log10(0.5))
)
@settings(max_examples=150, deadline=None)
def test_rho_of_an_epsilon_of_nine_digits_converts_back_to_at_most_it(
    digits: int, exponent: int, log_delta: float
) -> None:
    epsilon = float(f"{digits}e{exponent}")
    delta = 10**log_delta
    assert gaussian_epsilon(gaussian_rho(epsilon, delta), delta) <= epsilon


def test_mills_ratio_is_as_exact_as_the_proof_needs() -> None:
    """Both sides of the change from series to continued fraction, where each is at its worst."""
    points = [
        -500.0,
        -9.0,
        -0.5,
        0.0,
        1e-9,
        0.7,
        3.0,
        4.999999,
        5.0,
        6.0,
        39.0,
        600.0,
        1540.0,
    ]
    for point in points:
        with localcontext(accounting.PRECISE):
            found = accounting.mills(Decimal(point))
        with mp.workdps(80):
            x = mpf(point)
            expected = mp.erfc(x / mp.sqrt(2)) / 2 / mp.npdf(x)
            assert abs(mpf(str(found)) / expected - 1) < 1e-49, point


def test_delta_is_rounded_up_by_less_than_the_proof_allows() -> None:
    for rho, epsilon in (
        (5e-19, 1e-9),
        (5e-13, 3e-6),
        (0.02, 1.0),
        (5e3, 7e3),
        (5e5, 5.3e5),
    ):
        exact = exact_delta(rho, epsilon)
        with mp.workdps(80):
            found = mpf(str(gaussian_delta(rho, epsilon)))
            assert 0 < found / exact - 1 < 2e-30, (rho, epsilon)


def test_figures_outside_the_proved_range_are_those_of_zcdp() -> None:
    for rho in (1e-20, 1e6, math.inf):
        assert gaussian_delta(rho, 1.0) == math.inf
        assert gaussian_epsilon(rho, 1e-9) == epsilon_of(rho, 1e-9)
    for epsilon, delta in ((1e-12, 1e-15), (1e7, 1e-9)):
        assert gaussian_rho(epsilon, delta) == rho_of(epsilon, delta)
    assert gaussian_epsilon(0.0, 1e-9) == 0.0


def test_extreme_deltas_are_answered() -> None:
    """Newton's steps end also far from a configuration's deltas."""
    for rho in (5e-19, 1e-6, 1.0, 5e5):
        for delta in (5e-324, 1e-310, 1 - 1e-12, math.nextafter(1, 0)):
            assert 0 <= gaussian_epsilon(rho, delta) <= epsilon_of(rho, delta)
    # Where epsilon hardly counts: 2 Phi(mu / 2) - 1 is 0.3.
    assert gaussian_rho(1e-9, 0.3) == pytest.approx(0.77064**2 / 2, rel=1e-4)


def test_a_delta_above_the_total_variation_needs_no_epsilon() -> None:
    """2 Phi(mu/2) - 1 is the delta at epsilon 0."""
    mu = 0.1
    distance = math.erf(mu / 2 / math.sqrt(2))
    assert gaussian_epsilon(mu**2 / 2, distance * (1 + 1e-6)) == 0
    assert 0 < gaussian_epsilon(mu**2 / 2, distance * (1 - 1e-6)) < 1e-5


def test_the_flag_of_the_general_functions_decides() -> None:
    assert epsilon_of(0.02, 1e-9, gaussian=True) == gaussian_epsilon(0.02, 1e-9) < 1.12
    assert epsilon_of(0.02, 1e-9, gaussian=False) == epsilon_of(0.02, 1e-9) > 1.12
    assert (
        rho_of(1.0, 1e-9, gaussian=True)
        == gaussian_rho(1.0, 1e-9)
        > 1.1 * rho_of(1.0, 1e-9)
    )


@pytest.mark.parametrize("value", [0.0, 1.0, -0.1, math.nan])
def test_a_delta_that_converts_nothing_is_refused(value: float) -> None:
    for convert in (gaussian_epsilon, gaussian_rho):
        with pytest.raises(ValueError, match=rf"delta = {value}: must be"):
            convert(1.0, value)


@pytest.mark.parametrize("value", [-1.0, math.nan])
def test_a_cost_that_is_none_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=rf"rho = {value}: must be"):
        gaussian_epsilon(value, 1e-9)
    with pytest.raises(ValueError, match=rf"epsilon = {value}: must be"):
        gaussian_rho(value, 1e-9)


Curve = Callable[[Decimal, Decimal], tuple[Decimal, Decimal, Decimal]]
right: Curve = accounting.gaussian_curve
mills = accounting.mills


def without_half_mu(mu: Decimal, epsilon: Decimal) -> tuple[Decimal, Decimal, Decimal]:
    # right() subtracts mu / 2 from epsilon / mu.
    return right(mu, epsilon + mu * mu / 2)


def halved(mu: Decimal, epsilon: Decimal) -> tuple[Decimal, Decimal, Decimal]:
    found, *slopes = right(mu, epsilon)
    return (found / 2, slopes[0], slopes[1])


def doubled(mu: Decimal, epsilon: Decimal) -> tuple[Decimal, Decimal, Decimal]:
    found, *slopes = right(mu, epsilon)
    return (found * 2, slopes[0], slopes[1])


def other_sign(mu: Decimal, epsilon: Decimal) -> tuple[Decimal, Decimal, Decimal]:
    # Phi(mu / 2 + epsilon / mu) is the tail at -mu / 2 - epsilon / mu.
    a = -epsilon / mu - mu / 2
    lower = mills(a)
    upper = mills(a + mu)
    density = (-a * a / 2).exp() / accounting.ROOT_OF_TWO_PI
    return density * (lower - upper), lower, upper


def without_second_term(
    mu: Decimal, epsilon: Decimal
) -> tuple[Decimal, Decimal, Decimal]:
    a = epsilon / mu - mu / 2
    density = (-a * a / 2).exp() / accounting.ROOT_OF_TWO_PI
    return density * mills(a), mills(a), mills(a + mu)


@pytest.fixture
def fresh() -> Iterator[None]:
    """Figures of a wrong formula must not stay in the cache."""
    forget()
    yield
    forget()


def forget() -> None:
    for function in (epsilon_of, gaussian_rho):
        cached: Any = function
        cached.cache_clear()


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    "wrong", [without_half_mu, halved, doubled, other_sign, without_second_term]
)
def test_the_checks_refuse_a_wrong_formula(
    wrong: Curve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounting, "gaussian_curve", wrong)
    for check, first in ((check_epsilon, 0.02), (check_rho, 1.0)):
        with pytest.raises(AssertionError, match="too"):
            check(first, 1e-9)
