"""PMG errs by no more than its paper's Theorem 8 in 95 % of all streams."""

from fractions import Fraction

import pytest

from tests.mechanisms.misra_gries.theorem_8 import BETA, EPSILON, missed


@pytest.mark.parametrize("size", [16, 256])
def test_errors_stay_within_theorem_8(size: int) -> None:
    assert missed(size, 300, epsilon=Fraction(EPSILON)) <= BETA


@pytest.mark.parametrize("size", [16, 256])
def test_four_times_the_noise_is_seen(size: int) -> None:
    assert missed(size, 300, epsilon=Fraction(EPSILON, 4)) > BETA
