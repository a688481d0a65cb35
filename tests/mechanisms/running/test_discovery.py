"""Discovery thresholds against the exact distribution of the noise, by brute-force convolution."""

import math
from fractions import Fraction
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from workers.arrays.types import Floats
from workers.mechanisms.counters.counter import make_counter
from workers.mechanisms.counters.levels import Counter
from workers.mechanisms.running.discovery import Discovery, _log_theta, make_discovery
from workers.runtime.errors import HorizonExceeded


def mass_of(sigma_squared: Fraction) -> Floats:
    """Return P(x) of N_Z(0, sigma^2) for x = -reach..reach, out to 15 sd."""
    reach = math.ceil(15 * math.sqrt(sigma_squared)) + 2
    x = np.arange(-reach, reach + 1, dtype=np.float64)
    weights = np.exp(-(x**2) / (2 * float(sigma_squared)))
    return np.asarray(weights / weights.sum(), dtype=np.float64)


def exact_tail(counter: Counter, t: int, least: Fraction) -> float:
    """Return P(X >= least), X the noise at t, by convolving the exact masses on a grid.

    Sums of products of positive floats: the relative error is below 1e-10 whatever the tail.
    """
    terms = counter.terms(t)
    denominator = math.lcm(*(coefficient.denominator for coefficient, _ in terms))
    total = np.ones(1)
    for coefficient, sigma_squared in terms:
        mass = mass_of(sigma_squared)
        spread = np.zeros((len(mass) - 1) * int(coefficient * denominator) + 1)
        spread[:: int(coefficient * denominator)] = mass
        total = np.convolve(total, spread)
    reach = len(total) // 2
    first = math.ceil(least * denominator) + reach
    return float(total[max(first, 0) :].sum())


def shown_by_one_event(discovery: Discovery, t: int) -> float:
    """Return P(Dinf + floor(X + 1/2) > m_t), which is P(X >= m_t + 1/2 - Dinf)."""
    least = discovery.threshold(t) + Fraction(1, 2) - discovery.max_count
    return exact_tail(discovery.counter, t, least)


def shares_of(discovery: Discovery, horizon: int) -> list[float]:
    ticks = range(1, horizon + 1)
    return [shown_by_one_event(discovery, t) / discovery.delta_at(t) for t in ticks]


@pytest.mark.parametrize(
    ("kind", "horizon", "rho_item", "delta", "least"),
    [
        ("lifted", 16, 0.5, 1e-9, 0.0),
        ("lifted", 16, 0.03, 1e-6, 0.25),
        ("lifted", 16, 0.004, 1e-6, 0.5),
        ("lifted", 5, 0.004, 1e-3, 0.5),
        ("tree", 16, 0.03, 1e-6, 0.25),
        ("tree", 100, 0.004, 1e-9, 0.5),
    ],
)
def test_discovery_probability_is_at_most_and_close_to_delta_t(
    kind: str, horizon: int, rho_item: float, delta: float, least: float
) -> None:
    """Above it the guarantee is false; far below it items stay hidden. Slack falls as sd grows."""
    shares = shares_of(Discovery(make_counter(kind, horizon, rho_item), 3, 2, delta), horizon)
    assert least <= min(shares) <= max(shares) <= 1


@pytest.mark.parametrize(("rho_item", "least"), [(0.5, 0.0), (0.03, 0.25), (0.004, 0.5)])
def test_discovery_probability_is_at_most_delta_t_up_to_the_last_tick_of_an_end_share(
    rho_item: float, least: float
) -> None:
    """The last tick's noise is one integer and its threshold the smallest."""
    counter = make_counter("lifted", 13, rho_item, end_share=0.6)
    discovery = Discovery(counter, max_items=3, max_count=2, delta=1e-6)
    shares = shares_of(discovery, 13)
    assert least <= min(shares) <= max(shares) <= 1
    assert discovery.threshold(13) == min(discovery.threshold(t) for t in range(1, 14))
    # One lower would be too low: the noise is an integer, so nothing lies between.
    over = exact_tail(counter, 13, Fraction(discovery.threshold(13) - discovery.max_count))
    assert over > discovery.delta_at(13)


@pytest.mark.parametrize("kind", ["lifted", "tree"])
@pytest.mark.parametrize("rho_item", [2.0, 8.0, 50.0, 500.0])
def test_discovery_probability_is_never_above_delta_t_for_tiny_noise(
    kind: str, rho_item: float
) -> None:
    """The discrete Gaussian differs most from a continuous one here."""
    for delta in (0.5, 1e-2, 1e-5, 1e-12):
        assert max(shares_of(Discovery(make_counter(kind, 8, rho_item), 1, 1, delta), 8)) <= 1


def theta_of(v: float, terms: int) -> float:
    return sum(math.exp(-2 * math.pi**2 * n * n * v) for n in range(-terms, terms + 1))


def proved_probability(discovery: Discovery, t: int) -> float:
    """Return the smaller bound on P(X >= m_t + 1/2 - Dinf), derived from the module's proof."""
    terms = [(float(c), float(sigma_squared)) for c, sigma_squared in discovery.counter.terms(t)]
    integral = all(c == 1 for c, _ in terms)
    x = discovery.threshold(t) + (1.0 if integral else 0.5) - discovery.max_count
    variance = sum(c * c * sigma_squared for c, sigma_squared in terms)
    bounds = [math.exp(-x * x / (2 * variance)) if x > 0 else 1.0]
    for u in (0.15, 0.25, 0.5, 1.0):
        added = sum(c * c * u for c, _ in terms)
        theta = math.prod(theta_of(s2 * u / (s2 + u), 40) for _, s2 in terms)
        for shift in (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5):
            z = (x - shift * math.sqrt(added)) / math.sqrt(variance + added)
            kept = math.erfc(-shift / math.sqrt(2)) / 2
            bounds.append(theta * math.erfc(z / math.sqrt(2)) / 2 / kept)
    return min(bounds)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lifted", "tree"])
@pytest.mark.parametrize("rho_item", [0.05, 1.0, 4.0, 20.0])
def test_every_threshold_is_proved_by_one_of_the_two_bounds(
    kind: str, rho_item: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passing the convolution check by luck is not enough: the proof must cover every case.

    Cases this small are normally computed exactly (`exact_tail`); here they take the path of large
    ones.
    """
    monkeypatch.setattr("workers.mechanisms.running.discovery.exact_quantile", lambda *_: None)
    for delta in (1e-2, 1e-4, 1e-7):
        discovery = Discovery(make_counter(kind, 200, rho_item), 1, 1, delta)
        for t in range(1, 201):
            assert proved_probability(discovery, t) <= discovery.delta_at(t)


@pytest.mark.parametrize("sigma_squared", [0.05, 0.3, 1.0, 20.0])
@pytest.mark.parametrize("u", [0.15, 0.25, 0.5, 1.0])
def test_smoothed_noise_has_at_most_theta_times_the_density_of_the_gaussian(
    sigma_squared: float, u: float
) -> None:
    """The lemma behind bound (b), summed numerically over the integers at points along the line."""
    integers = np.arange(-200, 201)
    masses = np.exp(-(integers**2) / (2 * sigma_squared))
    masses /= masses.sum()
    v = sigma_squared * u / (sigma_squared + u)
    theta, both = math.exp(_log_theta(v)), sigma_squared + u
    assert theta == pytest.approx(theta_of(v, 59), rel=1e-9)
    for y in np.linspace(-12, 12, 241):
        sums = (masses * np.exp(-((y - integers) ** 2) / (2 * u))).sum()
        density = sums / math.sqrt(2 * math.pi * u)
        gaussian = math.exp(-y * y / (2 * both)) / math.sqrt(2 * math.pi * both)
        assert density <= theta * gaussian * (1 + 1e-12)


def test_one_lower_threshold_would_break_the_promise_somewhere() -> None:
    """Negative control: thresholds lower by two are too low at some tick."""
    discovery = Discovery(make_counter("lifted", 16, 0.5), max_items=3, max_count=1, delta=1e-9)
    lower = [
        exact_tail(discovery.counter, t, discovery.threshold(t) - 2 + Fraction(1, 2) - 1)
        / discovery.delta_at(t)
        for t in range(1, 17)
    ]
    assert max(lower) > 1


@pytest.mark.parametrize(("kind", "horizon"), [("lifted", 1000), ("tree", 1000), ("lifted", 1)])
def test_deltas_of_a_bounded_horizon_add_up_to_delta(kind: str, horizon: int) -> None:
    """The union bound over ticks and the event's items spends exactly the given delta."""
    discovery = Discovery(make_counter(kind, horizon, 0.01), max_items=3, max_count=1, delta=1e-9)
    total = 3 * sum(Fraction(discovery.delta_at(t)) for t in range(1, horizon + 1))
    assert Fraction(1e-9) * Fraction(999, 1000) <= total <= Fraction(1e-9)


def test_deltas_of_an_unbounded_horizon_add_up_to_less_than_delta() -> None:
    """Octave k: 2^k ticks of 6/(pi^2 (1 + k)^2 2^k); the sum is 1, over 40 octaves 0.985."""
    discovery = Discovery(make_counter("lifted", None, 0.01), max_items=2, max_count=1, delta=1e-6)
    total = Fraction(0)
    for octave in range(40):
        first, last = 2**octave, 2 ** (octave + 1) - 1
        assert discovery.delta_at(first) == discovery.delta_at(last)
        total += 2 * 2**octave * Fraction(discovery.delta_at(first))
    assert Fraction(1e-6) * Fraction(98, 100) <= total <= Fraction(1e-6)


def test_threshold_rises_by_max_count() -> None:
    """One event may bring an item to Dinf, so a count of Dinf is no sign of a second event."""
    counter = make_counter("lifted", 64, 0.01)
    one = Discovery(counter, max_items=1, max_count=1, delta=1e-6)
    five = Discovery(counter, max_items=1, max_count=5, delta=1e-6)
    assert all(five.threshold(t) == one.threshold(t) + 4 for t in range(1, 65))


def test_threshold_is_below_the_sub_gaussian_bound_for_moderate_noise() -> None:
    """The smoothing bound must be in use: it saves several per cent on every threshold."""
    discovery = Discovery(make_counter("lifted", 2**16, 0.0039), max_items=3, max_count=1, delta=1e-9)
    for t in (1, 1000, 43690, 65535):
        sub_gaussian = discovery.counter.sd(t) * math.sqrt(2 * math.log(1 / discovery.delta_at(t)))
        assert discovery.threshold(t) - 1 < 0.97 * sub_gaussian


def test_threshold_is_never_below_the_continuous_gaussian_quantile() -> None:
    """Discrete noise is as wide here, so a lower threshold would prove the bound wrong."""
    for kind, horizon in (("lifted", 4096), ("lifted", None), ("tree", 4096)):
        discovery = Discovery(make_counter(kind, horizon, 0.002), 1, 1, 1e-9)
        for t in (1, 2, 77, 1365, 4095):
            sd = math.sqrt(discovery.counter.variance(t))
            quantile = -NormalDist().inv_cdf(discovery.delta_at(t)) * sd
            assert quantile - 0.5 <= discovery.threshold(t) - 0.5 <= 1.05 * quantile + 1.5


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
        make_discovery(counter, 2, 1, 1e-6, "every", 4),
        make_discovery(counter, 2, 1, 1e-6, "constant"),
    ]
    assert len({one, *others}) == 7


def test_ticks_outside_the_horizon_are_refused() -> None:
    discovery = Discovery(make_counter("lifted", 16, 0.1), max_items=1, max_count=1, delta=1e-6)
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
    arguments: dict[str, Any] = {"max_items": 1, "max_count": 1, "delta": 1e-6} | changed
    with pytest.raises(ValueError, match=message):
        Discovery(make_counter("lifted", 16, 0.1), **arguments)
