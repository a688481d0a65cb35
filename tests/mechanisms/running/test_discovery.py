"""Discovery thresholds against the exact distribution of the noise."""

import math
from fractions import Fraction
from typing import Any

import mpmath
import pytest
from mpmath import mp

from workers.mechanisms.counters.base import Counter
from workers.mechanisms.counters.kinds import make_counter
from workers.mechanisms.running.discovery import Discovery, make_discovery
from workers.runtime.errors import HorizonExceeded


def exact_tail(counter: Counter, t: int, least: Fraction) -> float:
    """Return P(N >= least), N the noise at t before rounding, within a relative 1e-13."""
    with mp.workprec(120):
        variance = counter.variance(t)
        sd = mpmath.sqrt(mpmath.mpf(variance.numerator) / variance.denominator)
        return float(mpmath.erfc(mpmath.mpf(float(least)) / sd / mpmath.sqrt(2)) / 2)


def shown_by_one_event(discovery: Discovery, t: int) -> float:
    """Return P(Dinf + floor(N + 1/2) > m_t), which is P(N >= m_t + 1/2 - Dinf)."""
    least = discovery.threshold(t) + Fraction(1, 2) - discovery.max_count
    return exact_tail(discovery.counter, t, least)


@pytest.mark.parametrize(
    ("arguments", "delta"),
    [
        (("lifted", 16, 0.5), 1e-9),
        (("lifted", 16, 0.004), 1e-6),
        (("lifted", 5, 0.004), 1e-3),
        (("lifted", 13, 0.03, None, 0.6), 1e-6),
        (("lifted", 8, 500.0), 0.5),
        (("lifted", 8, 50.0), 1e-12),
        (("tree", 16, 0.03), 1e-6),
        (("tree", 100, 0.004), 1e-9),
    ],
    ids=str,
)
def test_a_threshold_keeps_delta_and_one_lower_would_not(
    arguments: tuple[Any, ...], delta: float
) -> None:
    """Above delta_t the guarantee is false; a threshold too high hides items."""
    discovery = Discovery(
        make_counter(*arguments), max_items=3, max_count=2, delta=delta
    )
    for t in range(1, discovery.counter._last_tick + 1):
        assert shown_by_one_event(discovery, t) <= discovery.delta_at(t)
        lower = discovery.threshold(t) - Fraction(1, 2) - discovery.max_count
        assert exact_tail(discovery.counter, t, lower) > discovery.delta_at(t) * (
            1 - 1e-9
        )


@pytest.mark.parametrize("every", [1, 8])
def test_deltas_of_an_unbounded_horizon_add_up_to_less_than_delta(every: int) -> None:
    """Octave k: 2^k tests of 6/(pi^2 (1 + k)^2 2^k); the sum is 1, over 36 octaves 0.983."""
    discovery = Discovery(make_counter("lifted", None, 0.01), 2, 1, 1e-6, every)
    total = Fraction(0)
    for octave in range(36):
        first = 2**octave
        last = 2 ** (octave + 1) - 1
        delta = discovery.delta_at(every * first)
        assert delta == discovery.delta_at(every * last)
        total += 2 * 2**octave * Fraction(delta)
    assert Fraction(1e-6) * Fraction(98, 100) <= total <= Fraction(1e-6)


@pytest.mark.parametrize(
    ("horizon", "every", "ticks"),
    [
        (4100, None, (1, 15, 16, 17, 4095, 4096, 4100)),
        (4100, 3, (3, 15, 18, 48, 4098)),
        (None, None, (1, 16, 31, 2**40 - 17, 2**40 - 1)),
    ],
)
def test_thresholds_that_are_computed_together_are_those_of_their_ticks(
    horizon: int | None, every: int | None, ticks: tuple[int, ...]
) -> None:
    """A neighbour's threshold would exceed an item's delta; beyond the horizon there is none."""
    discovery = Discovery(make_counter("lifted", horizon, 0.01), 2, 1, 1e-6, every)
    for t in ticks:
        assert discovery.threshold(t) == discovery._compute_threshold(t)
    for t in (0, 4101 if horizon else 2**40):
        with pytest.raises((HorizonExceeded, ValueError)):
            discovery.threshold(t)
    assert len({discovery.threshold(t) for t in ticks}) > 1


def test_histograms_of_equal_budgets_share_thresholds_and_others_do_not() -> None:
    """Any parameter that changes the thresholds must produce another object."""
    counter = make_counter("lifted", 5000, 0.01)
    assert counter is make_counter("lifted", 5000, 0.01)
    one = make_discovery(counter, 2, 1, 1e-6)
    assert one is make_discovery(counter, 2, 1, 1e-6)
    others = [
        make_discovery(make_counter("lifted", 5000, 0.011), 2, 1, 1e-6),
        make_discovery(counter, 3, 1, 1e-6),
        make_discovery(counter, 2, 2, 1e-6),
        make_discovery(counter, 2, 1, 1e-7),
        make_discovery(counter, 2, 1, 1e-6, 4),
        make_discovery(counter, 2, 1, 1e-6, constant=True),
    ]
    assert len({one, *others}) == 7


def test_ticks_outside_the_horizon_are_refused() -> None:
    discovery = Discovery(
        make_counter("lifted", 16, 0.1), max_items=1, max_count=1, delta=1e-6
    )
    for t in (0, 17):
        with pytest.raises(HorizonExceeded):
            discovery.threshold(t)
        with pytest.raises(HorizonExceeded):
            discovery.delta_at(t)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"max_items": 0}, "max_items = 0"),
        ({"max_count": 0}, "max_count = 0"),
        ({"delta": 0.0}, "delta = 0.0"),
        ({"delta": 1.0}, "delta = 1.0"),
        ({"delta": math.nan}, "delta = nan"),
    ],
)
def test_parameters_outside_their_range_are_refused(
    changed: dict[str, object], message: str
) -> None:
    arguments: dict[str, Any] = {
        "max_items": 1,
        "max_count": 1,
        "delta": 1e-6,
    } | changed
    with pytest.raises(ValueError, match=message):
        Discovery(make_counter("lifted", 16, 0.1), **arguments)
