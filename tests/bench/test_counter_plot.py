"""The formulas behind docs/plots/counters.svg."""

import numpy as np
import pytest

from bench.plots import counters
from workers.mechanisms.counters.lifted import LiftedCounter
from workers.mechanisms.counters.sqrt import SqrtCounter

TICKS = 1 << 10


@pytest.mark.parametrize(("level", "least"), [(10, 2.91), (16, 4.23), (20, 5.11)])
def test_lower_bound(level: int, least: float) -> None:
    assert round(counters.bound(1 << level).rms, 2) == least


def test_lower_bound_is_the_mean_singular_value() -> None:
    values = np.linalg.svd(np.tri(100), compute_uv=False)
    assert counters.bound(100).rms == pytest.approx(values.mean(), rel=1e-12)


@pytest.mark.parametrize(("level", "most"), [(10, 3.55), (16, 5.05), (20, 6.05)])
def test_lifted_is_as_good_as_documented(level: int, most: float) -> None:
    found = counters.lifted(1 << level)
    assert counters.bound(1 << level).worst < found.rms < found.worst <= most


def test_lifted_agrees_with_the_variance_at_every_tick() -> None:
    counter = LiftedCounter(TICKS, counters.RHO_ITEM)
    variances = counter.variances(np.arange(1, TICKS + 1))
    found = counters.lifted(TICKS)
    assert found.worst**2 == pytest.approx(variances.max(), rel=2e-3)
    assert found.rms**2 == pytest.approx(variances.mean(), rel=1e-9)


@pytest.mark.parametrize("height", range(5))
def test_node_variance_is_that_of_least_squares(height: int) -> None:
    """Every node of the subtree measures the sum of its leaves, each with variance 1."""
    blocks = [
        np.kron(np.eye(2 ** (height - j)), np.ones(2**j)) for j in range(height + 1)
    ]
    measured = np.vstack(blocks)
    root = np.ones(2**height)
    variance = root @ np.linalg.inv(measured.T @ measured) @ root
    assert counters.node_variance(height) == pytest.approx(variance, rel=1e-12)


def test_honaker_is_the_mean_and_maximum_over_ticks() -> None:
    level = 6
    variances = [
        sum(
            (level + 1) * counters.node_variance(j)
            for j in range(level + 1)
            if t >> j & 1
        )
        for t in range(1, 2**level + 1)
    ]
    found = counters.honaker(2**level)
    assert found.worst**2 == pytest.approx(max(variances), rel=1e-12)
    assert found.rms**2 == pytest.approx(np.mean(variances), rel=1e-12)


def test_sqrt_is_that_of_the_counter() -> None:
    """The counter rounds its noise variance up, by less than a part in 10^5."""
    variances = SqrtCounter(TICKS, counters.RHO_ITEM).variances(np.arange(1, TICKS + 1))
    found = counters.sqrt(TICKS)
    assert found.worst**2 == pytest.approx(variances.max(), rel=1e-5)
    assert found.rms**2 == pytest.approx(variances.mean(), rel=1e-5)


@pytest.mark.slow
def test_blt_is_a_factorization_and_its_error_that_of_its_matrices() -> None:
    strategy, noise = counters.coefficients(*counters.fitted(TICKS), TICKS)
    assert np.convolve(strategy, noise)[:TICKS] == pytest.approx(1, abs=1e-9)
    error = np.linalg.norm(strategy) * np.linalg.norm(noise)
    assert counters.blt(TICKS).worst == pytest.approx(error, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("level", counters.LEVELS)
def test_blt_is_within_half_a_percent_of_sqrt(level: int) -> None:
    assert counters.blt(1 << level).worst < 1.005 * counters.sqrt(1 << level).worst
