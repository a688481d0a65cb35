"""The line counter as built, beside its definition in exact numbers (`line.py`, decision 0036)."""

import math
from fractions import Fraction

import numpy as np
import pytest

from tests.mechanisms.counters.line import (
    bounds,
    cost,
    difference,
    event,
    in_units,
    unit,
)
from tests.mechanisms.counters.line import weights as exact_weights
from workers.mechanisms.counters.base import rounded_up
from workers.mechanisms.counters.line import (
    MOST_LEVELS,
    SCALED,
    LineCounter,
    WindowShape,
    cost_of,
    levels_of,
    line_counters,
    rest_of,
    weights,
)
from workers.runtime.frozen import thawed

RHO = 0.05


# (windows, hops)
BOARDS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((1,), (1,)),
    ((2,), (2,)),
    ((6,), (1,)),
    ((5, 16), (4, 1)),
    ((7, 30, 150), (1, 8, 2)),
    ((3, 64, 1_000), (2, 64, 16)),
]


# ---- cost


@pytest.mark.slow
def test_the_cost_is_at_least_what_an_event_costs_for_every_shortest_window() -> None:
    """S in integers; what is stated is at most 1 % too much from 7 levels on, and never 2.6 %."""
    found = bounds(MOST_LEVELS)
    for levels in range(1, MOST_LEVELS + 1):
        assert in_units(found[levels]) == cost_of(levels, None) * 4096
    for shortest in (1 << i for i in range(MOST_LEVELS)):
        found = bounds(MOST_LEVELS, shortest, SCALED)
        for levels in range(levels_of(shortest), MOST_LEVELS + 1):
            stated = cost_of(levels, shortest)
            assert found[levels] <= stated
            too_much = Fraction(1010 if levels >= 7 else 1026, 1000)
            assert stated < found[levels] * too_much


def test_the_cost_covers_every_tick_in_rationals() -> None:
    for levels in range(1, 7):
        for shortest in range(1, 1 << levels):
            w = exact_weights(levels, shortest, SCALED)
            largest = max(cost(tick, w) for tick in range(1 << levels))
            assert largest <= cost_of(levels, shortest)


def test_weights_are_those_of_the_record() -> None:
    for levels in range(1, MOST_LEVELS + 1):
        assert weights(levels, None) == exact_weights(levels)[1:]
        for shortest in (1, 2, 3, 30, 1_000):
            stated = exact_weights(levels, shortest, SCALED)[1:]
            assert weights(levels, shortest) == stated


@pytest.mark.parametrize(("windows", "hops"), BOARDS)
def test_every_node_has_its_share_of_the_cost(
    windows: tuple[int, ...], hops: tuple[int, ...]
) -> None:
    counters = line_counters(windows, hops, RHO)
    levels = counters[0].levels
    shortest = min(windows) if len(windows) > 1 else None
    s2 = cost_of(levels, shortest) / (2 * Fraction(RHO))
    for counter in counters:
        assert counter.levels == levels
        for level, weight in enumerate(weights(levels, shortest), start=1):
            assert counter.variance_of((level, 5)) == rounded_up(s2 / weight)


def spent(counter: LineCounter) -> Fraction:
    """Return the largest rho of one event, by its tick."""
    levels = counter.levels
    costs: list[Fraction] = []
    for tick in range(1 << levels):
        nodes = event(tick, levels).items()
        squares = (value**2 / (2 * counter.variance_of(node)) for node, value in nodes)
        costs.append(sum(squares, Fraction(0)) / 64**levels)
    return max(costs)


@pytest.mark.parametrize(("windows", "hops"), BOARDS[:5])
def test_an_event_costs_at_most_what_is_stated(
    windows: tuple[int, ...], hops: tuple[int, ...]
) -> None:
    (counter, *_) = line_counters(windows, hops, RHO)
    least = Fraction(995, 1000) if len(windows) == 1 else Fraction(95, 100)
    assert least * Fraction(RHO) <= spent(counter) <= Fraction(RHO)


def test_a_weight_off_by_two_percent_costs_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for level in range(6):
        counter = thawed(LineCounter(WindowShape(30, 1, 5), RHO))
        variances = list(counter._variances)
        variances[level] /= Fraction(102, 100)
        monkeypatch.setattr(counter, "_variances", variances)
        assert spent(counter) > Fraction(RHO)


# ---- windows


def counted(counter: LineCounter, t: int) -> list[int]:
    """Return the ticks of events that the noise at t is decoded to, T1; each once or not at all."""
    levels = counter.levels
    whole = unit(levels) * 8**levels
    noise = counter.nodes(t)
    found = []
    for tick in range(t - 2 * counter.most_ticks - 5, t + counter.most_ticks + 5):
        # Tick 1 of a counter is the record's tick 0.
        nodes = event(tick - 1 + counter.offset, levels)
        share = sum(factor * nodes.get(node, 0) for node, factor in noise.items())
        assert share in (0, whole)
        if share:
            found.append(tick)
    return found


@pytest.mark.parametrize(("windows", "hops"), BOARDS[:5])
def test_the_noise_of_a_window_is_that_of_its_ticks(
    windows: tuple[int, ...], hops: tuple[int, ...]
) -> None:
    for counter in line_counters(windows, hops, RHO):
        for t in (1, 2, counter.window + 1, 5 * counter.most_ticks + 3):
            assert counted(counter, t) == [*range(counter.begin(t) + 1, t + 1)]


def test_a_begin_off_by_one_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = thawed(LineCounter(WindowShape(7, 2, 4), RHO))
    begin = counter.begin
    right = [*range(begin(33) + 1, 34)]
    for off in (-1, 1):
        monkeypatch.setattr(counter, "begin", lambda t, off=off: begin(t) + off)
        assert counted(counter, 33) != right


@pytest.mark.parametrize(("windows", "hops"), BOARDS)
def test_a_window_is_a_difference_of_two_places_of_the_path(
    windows: tuple[int, ...], hops: tuple[int, ...]
) -> None:
    """In exact numbers, from tick 1 on: the begin of the first ticks is below 0."""
    for counter in line_counters(windows, hops, RHO):
        levels = counter.levels
        moved = 2 << levels
        for t in [*range(1, (3 << levels) + 2, 1 + levels // 4), 2**40 - 1]:
            begin = counter.begin(t)
            assert begin % counter.hop == 0
            assert counter.window <= t - begin <= counter.most_ticks
            assert begin + counter.hop > t - counter.window
            stated = difference(t + moved, begin + moved, levels)
            assert counter.nodes(t) == stated
            assert all(k >= 0 for _, k in stated)
            assert unit(levels) == counter._denominator


@pytest.mark.parametrize(("windows", "hops"), BOARDS)
def test_the_variance_by_tick_is_that_of_the_nodes(
    windows: tuple[int, ...], hops: tuple[int, ...]
) -> None:
    for counter in line_counters(windows, hops, RHO):
        period = 1 << counter.levels
        ticks = np.arange(1, 2 * period + 3)
        found = counter.variances(ticks)
        some = range(1, 2 * period, 1 + period // 90)
        exact = [float(counter.variance(t)) for t in some]
        np.testing.assert_allclose(found[np.array(some) - 1], exact, rtol=1e-12)
        np.testing.assert_allclose(found[:period], found[period : 2 * period])
        largest = found.max()
        assert largest <= counter.worst_variance() <= largest * (1 + 1e-9)
        curve = counter.curve()
        for last in (1, 2, 7, period - 1, period, period + 5, 2 * period + 2):
            assert math.isclose(curve.mean(last), found[:last].mean() + 1 / 12)
            worst, _ = curve.worst_and_rms(last)
            assert math.isclose(worst**2, found[:last].max() + 1 / 12)
        whole = curve.mean(1 << 40)
        assert math.isclose(whole, found[:period].mean() + 1 / 12, rel_tol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("window", "hop"), [(43_200, 512), (43_200, 1), (100_000, 4_096)]
)
def test_the_worst_tick_of_a_long_window_is_bounded_and_the_mean_close(
    window: int, hop: int
) -> None:
    """Beside every tick of a period: the search leaves out most of them."""
    for counter in (
        *line_counters((window,), (hop,), RHO),
        *line_counters((30, window), (1, hop), RHO),
    ):
        period = 1 << counter.levels
        found = counter.variances(np.arange(1, period + 1))
        largest = found.max()
        assert largest < counter.worst_variance() < largest * 1.002
        curve = counter.curve()
        assert math.isclose(curve.mean(period), found.mean() + 1 / 12, rel_tol=1e-5)
        some = period // 3
        mean = found[:some].mean() + 1 / 12
        assert math.isclose(curve.mean(some), mean, rel_tol=1e-5)


def test_reach_levels_and_rest_are_those_of_the_record() -> None:
    (counter,) = line_counters((1_800,), (16,), RHO)
    assert (counter.most_ticks, counter.levels) == (1_815, 11)
    assert levels_of(1) == levels_of(2) == 1
    assert rest_of(11, 1_815) == 1_815 + 3 * 2**11 - 2


@pytest.mark.parametrize(
    ("window", "hop", "levels", "shortest", "message"),
    [
        (0, 1, 3, None, "window = 0"),
        ((1 << 23) + 1, 1, 23, None, "at most 2\\^23 ticks"),
        (6, 3, 3, None, "hop = 3"),
        (6, 8, 4, None, "hop = 8"),
        (6, 4, 3, None, "levels = 3: must be from 4 to 23"),
        (6, 4, 24, None, "levels = 24"),
        (6, 1, 3, 7, "shortest = 7"),
    ],
)
def test_a_window_that_cannot_be_is_refused(
    window: int, hop: int, levels: int, shortest: int | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        LineCounter(WindowShape(window, hop, levels, shortest), RHO)


# ---- noise
