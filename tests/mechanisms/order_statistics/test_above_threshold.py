"""AboveThreshold: stopping law, privacy loss of one event, and noise."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.mechanisms.noise.keyed import NoiseKey
from workers.mechanisms.order_statistics.above_threshold import (
    BLOCK_TICKS,
    AboveThreshold,
)

STREAM = NoiseKey(b"k" * 32).stream(b"m" * 16)
TAGS = np.random.default_rng(1).integers(0, 2**63, size=(200_000, 2), dtype=np.uint64)
BOTH = pytest.mark.parametrize("one_sided", [True, False])


def masses(scale: Fraction, one_sided: bool) -> tuple[np.ndarray, int]:
    """Return the noise probabilities on lowest.., far beyond double precision."""
    reach = math.ceil(60 * float(scale))
    x = np.arange(0 if one_sided else -reach, reach + 1)
    weights = np.exp(-np.abs(x) / float(scale))
    return weights / weights.sum(), int(x[0])


def stopping(test: AboveThreshold, values: list[int], threshold: int) -> np.ndarray:
    """Return the probability of each stopping tick, and of never, by enumeration of tau and mu."""
    tau, tau_from = masses(test.tau_scale, test.one_sided)
    mu, mu_from = masses(test.mu_scale, test.one_sided)
    above = np.concatenate((np.cumsum(mu[::-1])[::-1], [0.0]))  # P(mu >= mu_from + i)
    going = tau.copy()
    found = []
    bars = threshold + tau_from + np.arange(len(tau))
    for value in values:
        needed = np.clip(bars - value + 1 - mu_from, 0, len(mu))
        found.append(float(np.sum(going * above[needed])))
        going = going * (1 - above[needed])
    return np.array([*found, going.sum()])


def stops(test: AboveThreshold, values: list[int], threshold: int) -> np.ndarray:
    bars = threshold + test.tau(STREAM, (1, 0), TAGS)
    at = np.full(len(TAGS), len(values))
    for t in range(len(values) - 1, -1, -1):
        at[values[t] + test.mu(STREAM, (2, t), TAGS) > bars] = t
    return np.bincount(at, minlength=len(values) + 1)


@pytest.mark.slow
@BOTH
def test_it_stops_where_enumeration_says_it_does(one_sided: bool) -> None:
    """200,000 runs; a false alarm once in 10,000; noise 10 % too wide is detected."""
    from scipy.stats import chisquare

    test = AboveThreshold(1, Fraction(3, 2), Fraction(5, 2), one_sided)
    values = [0, 1, 1, 3, 6]
    threshold = 5
    found = stops(test, values, threshold)
    assert chisquare(found, stopping(test, values, threshold) * len(TAGS)).pvalue > 1e-4
    wide = AboveThreshold(
        1, test.tau_scale, test.mu_scale * Fraction(11, 10), one_sided
    )
    assert chisquare(found, stopping(wide, values, threshold) * len(TAGS)).pvalue < 1e-9


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.integers(0, 12), min_size=1, max_size=8),
    moved=st.lists(st.integers(0, 2), min_size=8, max_size=8),
    one_sided=st.booleans(),
)
def test_the_loss_of_one_event(
    values: list[int], moved: list[int], one_sided: bool
) -> None:
    """The exact guarantee: loss in [-e2, e1 + e2], every Renyi divergence at most a rho."""
    test = AboveThreshold(2, Fraction(7, 2), Fraction(5), one_sided)
    without = stopping(test, values, 6)
    with_event = stopping(test, [v + m for v, m in zip(values, moved, strict=False)], 6)
    seen = np.minimum(without, with_event) > 1e-12
    loss = np.log(without[seen] / with_event[seen])
    e1 = 2 / 3.5
    e2 = 2 / 5
    assert loss.max() <= e1 + e2 + 1e-6 and loss.min() >= -e2 - 1e-6
    for p, q in ((without, with_event), (with_event, without)):
        for order in (2, 3, 8, 32):
            total = float(np.sum(p[seen] ** order * q[seen] ** (1.0 - order)))
            assert (
                math.log(total) / (order - 1) <= order * float(test.span**2 / 8) + 1e-6
            )


def test_the_range_is_not_larger_than_it_needs_to_be() -> None:
    """A loose range would hide a factor: this one is met to 10 %."""
    test = AboveThreshold(1, Fraction(10), Fraction(20), one_sided=True)
    low = stopping(test, [0] * 2000, 30)
    high = stopping(test, [1] * 1999 + [0], 30)
    loss = np.log(low / high)
    assert 0.9 * float(test.span) < loss.max() - loss.min() <= float(test.span) + 1e-6


def test_a_block_of_ticks_has_the_words_of_its_ticks() -> None:
    """Batching is for speed alone: a restart in mid-block must draw the same noise."""
    test = AboveThreshold(1, Fraction(3), Fraction(9, 2), True)
    tag = TAGS[:1]
    use = 0x34 << 56
    block = test.mu_block(STREAM, use, tag, 5)
    ticks = range(5 * BLOCK_TICKS, 6 * BLOCK_TICKS)
    assert block == [int(test.mu(STREAM, (use, t), tag)[0]) for t in ticks]


@pytest.mark.parametrize("reach", [1, 3])
def test_calibration_ends_on_the_private_side(reach: int) -> None:
    for amount in (Fraction(1, 1000), Fraction(1, 7), Fraction(2)):
        assert (
            0.999 * amount
            < AboveThreshold.of(amount, reach, pure=False).spent
            <= amount
        )
        assert (
            0.999 * amount < AboveThreshold.of(amount, reach, pure=True).spent <= amount
        )
