"""What an event costs at the levels of the lifted counter: proved bounds beside brute force."""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest

from bench import lifted_haar
from bench.lifted_haar import (
    EventCost,
    Squares,
    analyze,
    by_kind,
    horizon_costs,
    in_units,
    unbounded_cost,
)
from tests.mechanisms.counters.lifted import nodes_of
from workers.mechanisms.counters import lifted
from workers.mechanisms.counters.lifted import unbounded_weights, weights

HORIZONS = range(13)
INTEGER_HORIZONS = range(9)


def largest(levels: int) -> Fraction:
    """Return the largest cost of 2^h ticks from the nodes of every unit vector, in integers."""
    nodes, _ = analyze(np.eye(1 << levels, dtype=np.int64))
    cost = np.zeros(1 << levels, dtype=object)
    for level, pair in zip(nodes, weights(levels)[0], strict=True):
        interior, edge = (int(weight * 1600) for weight in pair)
        weight = [interior] * len(level)
        weight[0] = weight[-1] = edge
        cost += np.array(weight, dtype=object) @ level.astype(object) ** 2
    return Fraction(cost.max(), 1600 * 64**levels)


def cost_at(tick: int, pairs: Sequence[tuple[Fraction, Fraction]]) -> Fraction:
    """Return the cost of one tick at any horizon, by the definition of the transform."""
    cost = Fraction(0)
    levels = len(pairs)
    for (level, k), node in nodes_of({tick: 1}, levels).items():
        if level:
            interior, edge = pairs[level - 1]
            last = (1 << (levels - level)) - 1
            cost += node**2 * (edge if k in (0, last) else interior)
    return cost


@pytest.fixture(scope="module")
def exact() -> list[float]:
    """The largest costs, with 12 digits or more; of 2^9 ticks and more from `Squares`."""
    found = [float(largest(levels)) for levels in INTEGER_HORIZONS]
    for levels in HORIZONS[len(INTEGER_HORIZONS) :]:
        columns = Squares(levels).columns @ by_kind(levels) - 3.4
        found.append(float(columns.max()))
    return found


def are_largest(bounds: list[float], exact: list[float]) -> bool:
    return bool(np.allclose(bounds, exact, rtol=1e-9, atol=0))


def test_bounds_are_the_largest_costs_of_brute_force_rounded_up() -> None:
    for levels, bound in enumerate(horizon_costs(INTEGER_HORIZONS)):
        over = Fraction(in_units(bound), 4096) - largest(levels)
        assert 0 <= over <= Fraction(1, 4096) + Fraction(1, 1 << 19)
        assert over <= largest(levels) / 500


def test_the_two_brute_forces_agree() -> None:
    for levels in range(7):
        pairs = weights(levels)[0]
        assert largest(levels) == max(
            cost_at(tick, pairs) for tick in range(1 << levels)
        )


@pytest.mark.parametrize("share", [Fraction(98, 100), Fraction(102, 100)])
@pytest.mark.parametrize("name", ["FINEST", "COARSEST", "EDGE", "COARSEST_EDGE"])
def test_a_weight_off_by_two_percent_is_refused(
    monkeypatch: pytest.MonkeyPatch, exact: list[float], name: str, share: Fraction
) -> None:
    """Also where it is one of several; but a level of one or two nodes has no interior."""
    right = getattr(lifted, name)
    for i in range(len(right) if isinstance(right, tuple) else 1):
        wrong = (
            right * share
            if name == "EDGE"
            else (*right[:i], right[i] * share, *right[i + 1 :])
        )
        monkeypatch.setattr(lifted, name, wrong)
        unused = name == "COARSEST" and i < 2
        assert are_largest(horizon_costs(HORIZONS, window=12), exact) == unused, i


def test_another_lifting_is_refused(
    monkeypatch: pytest.MonkeyPatch, exact: list[float]
) -> None:
    assert are_largest(horizon_costs(HORIZONS, window=12), exact)
    monkeypatch.setattr(lifted_haar, "LIFT", 1 / 7.8)
    assert not are_largest(horizon_costs(HORIZONS, window=12), exact)


def test_another_edge_is_refused(
    monkeypatch: pytest.MonkeyPatch, exact: list[float]
) -> None:
    """A reflection about the last node instead of the edge."""

    def inside(place: int, count: int) -> int:
        return (
            min(abs(place), 2 * (count - 1) - place)
            if count > 2
            else min(max(place, 0), count - 1)
        )

    monkeypatch.setattr(lifted_haar, "inside", inside)
    assert not are_largest(horizon_costs(HORIZONS, window=12), exact)


@pytest.mark.parametrize("window", [4, 6, 8])
def test_states_with_a_forgotten_past_are_within_the_radius(window: int) -> None:
    """And half of the radius is too small."""
    true = EventCost([], 14).states[14]
    event = EventCost([], window)
    moved = true - np.repeat(event.states[window], 1 << (14 - window), axis=1)
    distance = np.abs(moved.cumsum(0)).sum(0).max()
    assert event.radius / 2 < distance <= event.radius


@pytest.mark.parametrize("window", [2, 3, 4, 6])
def test_bounds_hold_with_a_forgotten_past(window: int, exact: list[float]) -> None:
    """So short a window costs much, so the radius is in use."""
    found = np.array(horizon_costs(HORIZONS, window))
    assert np.all(found >= np.array(exact) * (1 - 1e-12))
    assert found[-1] > exact[-1] * 1.01


@pytest.mark.slow
@pytest.mark.parametrize("levels", [20, 23, 31, 40])
def test_a_bound_is_close_to_the_cost_of_one_tick(levels: int) -> None:
    """Tick 7/96 2^h, 0.0001 0010 1010 ... in binary, is the worst at 10 to 20 levels."""
    cost = cost_at((7 << levels) // 96, weights(levels)[0])
    (bound,) = horizon_costs(range(levels, levels + 1))
    assert cost <= Fraction(in_units(bound), 4096) <= cost * Fraction(10003, 10000)


@pytest.mark.slow
def test_the_unbounded_counter_costs_most_at_its_first_tick() -> None:
    pairs = list(unbounded_weights())
    over = Fraction(in_units(unbounded_cost()), 4096) - cost_at(0, pairs)
    assert 0 <= over <= Fraction(1, 4096) + Fraction(1, 1 << 19)
    assert all(
        cost_at(tick, pairs) < cost_at(0, pairs)
        for tick in (1, 2, 5, 74, (1 << 40) - 1)
    )
