"""Other discovery schedules spend at most delta: by exact tails and planted items."""

import math
from fractions import Fraction

import numpy as np
import pytest

from tests.mechanisms.running.test_discovery import exact_tail, shown_by_one_event
from tests.mechanisms.running.test_histograms import shown, unk
from tests.mechanisms.small import Silent, counted
from workers.mechanisms.counters.kinds import make_counter
from workers.mechanisms.running.discovery import (
    _CHUNK_TICKS,
    ConstantDiscovery,
    Discovery,
    _Noise,
    _tails,
    make_discovery,
)
from workers.runtime.errors import HorizonExceeded


@pytest.mark.parametrize(
    ("kind", "horizon", "rho_item", "delta", "least"),
    [
        ("lifted", 16, 0.03, 1e-6, 0.5),
        ("lifted", 16, 0.5, 1e-9, 0.0),
        ("lifted", 5, 0.004, 1e-3, 0.6),
        ("tree", 16, 0.03, 1e-6, 0.4),
        ("tree", 100, 0.01, 1e-9, 0.5),
        ("lifted", 8, 50.0, 1e-5, 0.0),
        ("tree", 8, 500.0, 0.3, 0.0),
    ],
)
def test_the_exact_tails_over_all_ticks_add_up_to_at_most_delta_and_close_to_it(
    kind: str, horizon: int, rho_item: float, delta: float, least: float
) -> None:
    """The constant threshold's only promise; a tenth lower breaks it where noise is large."""
    discovery = ConstantDiscovery(make_counter(kind, horizon, rho_item), 3, 2, delta)
    total = 3 * sum(shown_by_one_event(discovery, t) for t in range(1, horizon + 1))
    assert least * delta <= total <= delta
    if least:
        lower = Fraction(discovery.threshold(1) * 9, 10) + Fraction(1, 2) - 2
        tails = (exact_tail(discovery.counter, t, lower) for t in range(1, horizon + 1))
        assert 3 * sum(tails) > delta


@pytest.mark.parametrize("kind", ["lifted", "tree"])
@pytest.mark.parametrize("horizon", [300, 20_000])
def test_delta_of_each_tick_bounds_the_groups_and_adds_up_to_delta(
    kind: str, horizon: int
) -> None:
    """Tails of odd and even ticks differ by seven times, so every tick is added up."""
    discovery = ConstantDiscovery(make_counter(kind, horizon, 0.01), 2, 1, 1e-8)
    x = discovery.threshold(1) + 0.5 - 1
    chunks = range(1, horizon + 1, _CHUNK_TICKS)
    tails = np.concatenate([_tails(discovery._noise_of(t), x) for t in chunks])
    assert len(tails) == discovery._groups.ticks.sum() == horizon
    grouped = float(_tails(discovery._groups, x) @ discovery._groups.ticks)
    assert 0.6e-8 <= 2 * tails.sum() <= 2 * grouped * (1 + 1e-12) <= 1e-8
    assert grouped <= 1.03 * tails.sum()
    for t in (1, 2, horizon // 3, horizon):
        assert discovery.delta_at(t) == pytest.approx(tails[t - 1], rel=1e-12)


def test_the_bound_on_the_normal_tail_is_one() -> None:
    """Sampford's inequality, against erfc; far out it is tight."""
    x = np.linspace(0.01, 37, 4001)
    exact = np.array([math.erfc(value / math.sqrt(2)) / 2 for value in x.tolist()])
    one = _Noise(np.ones(1), np.ones(1))
    bound = np.array([_tails(one, value)[0] for value in x.tolist()])
    assert (bound >= exact * (1 - 1e-12)).all()
    assert (bound[x > 4] <= 1.002 * exact[x > 4]).all()
    assert _tails(one, 0.0)[0] == _tails(one, -3.0)[0] == 1


@pytest.mark.parametrize(("horizon", "expected"), [(2**10, 24.2), (2**16, 37.0)])
def test_the_constant_threshold_is_as_computed_by_hand_and_below_the_largest_of_the_ticks_own(
    horizon: int, expected: float
) -> None:
    """(threshold - 1) mu at delta / D0 = 1e-9; equal shares pay about 3 % more."""
    counter = make_counter("lifted", horizon, 0.005)
    constant = ConstantDiscovery(counter, 1, 1, 1e-9)
    per_tick = Discovery(counter, 1, 1, 1e-9)
    mu = math.sqrt(2 * counter.rho_item)
    assert (constant.threshold(1) - 1) * mu == pytest.approx(expected, rel=0.01)
    variances = [
        constant._noise_of(t).variance for t in range(1, horizon + 1, _CHUNK_TICKS)
    ]
    worst = int(np.argmax(np.concatenate(variances))) + 1
    assert constant.threshold(1) < 0.98 * per_tick.threshold(worst)


@pytest.mark.parametrize(
    ("horizon", "every"), [(1000, 1), (1000, 64), (1000, 999), (64, 64)]
)
def test_deltas_of_every_nth_tick_add_up_to_delta(horizon: int, every: int) -> None:
    discovery = Discovery(make_counter("lifted", horizon, 0.01), 3, 1, 1e-9, every)
    deltas = [Fraction(discovery.delta_at(t)) for t in range(1, horizon + 1)]
    assert Fraction(1e-9) * Fraction(999, 1000) <= 3 * sum(deltas) <= Fraction(1e-9)
    tested = [t for t, delta in enumerate(deltas, 1) if delta]
    assert tested == list(range(every, horizon + 1, every))


def test_a_test_every_64_ticks_has_a_lower_threshold_than_one_at_each_tick() -> None:
    """The option's benefit: larger shares, and little noise of the six lowest levels."""
    counter = make_counter("lifted", 2**14, 0.005)
    every = Discovery(counter, 1, 1, 1e-9, 64)
    each = Discovery(counter, 1, 1, 1e-9)
    for t in (64, 64 * 85, 64 * 255):
        assert every.threshold(t) < 0.94 * max(
            each.threshold(t + shift) for shift in (0, 21, 43)
        )


def test_between_discoveries_nothing_new_is_shown_and_what_was_shown_stays() -> None:
    """Showing a new item at those ticks is not paid for, however large its count."""
    mechanism = unk(threshold="every", every=3)
    state = mechanism.init()
    assert [t for t in range(1, 7) if mechanism.threshold(t) is not None] == [3, 6]
    assert shown(mechanism, state, 1, Silent(), [counted({b"a": 10**6})]) == {}
    assert shown(mechanism, state, 2, Silent(), []) == {}
    assert shown(mechanism, state, 3, Silent(), []) == {b"a": 10**6}
    _, release = mechanism.step(state, 4, [counted({b"b": 10**6})], Silent())
    assert (len(release.rows), release.threshold) == (1, None)
    assert shown(mechanism, state, 6, Silent(), []) == {b"a": 10**6, b"b": 10**6}


@pytest.mark.parametrize(
    "changes", [{"threshold": "constant"}, {"threshold": "every", "every": 4}]
)
def test_the_cost_does_not_depend_on_the_schedule(changes: dict[str, object]) -> None:
    """All of delta_discovery is reserved, whichever ticks spend it."""
    assert unk(**changes).cost() == unk().cost()


UNBOUNDED: dict[str, object] = {
    "horizon": "unbounded",
    "start": "2026-01-01T00:00:00Z",
    "tick_ms": 10,
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"threshold": "constant"} | UNBOUNDED, 'threshold = "constant"'),
        ({"threshold": "constant", "horizon": 2**20 + 1}, "at most 1,048,576 ticks"),
        ({"threshold": "every"}, "every is missing"),
        ({"every": 5}, "every = 5: only with"),
        ({"threshold": "every", "every": 65}, "every = 65: no new item"),
        ({"threshold": "every", "every": 0}, "every = 0"),
        ({"threshold": "weekly"}, 'threshold = "weekly"'),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        unk(**changes)


def test_parameters_outside_their_range_are_refused() -> None:
    """Also where no settings record checks them first."""
    with pytest.raises(ValueError, match="every = 17"):
        make_discovery(make_counter("lifted", 16, 0.1), 1, 1, 1e-6, 17)
    with pytest.raises(ValueError, match="unbounded"):
        ConstantDiscovery(make_counter("lifted", None, 0.1), 1, 1, 1e-6)
    with pytest.raises(HorizonExceeded):
        ConstantDiscovery(make_counter("lifted", 16, 0.1), 1, 1, 1e-6).threshold(17)
