"""The line counter: factorization, cost and error, T1 to T3 of decision 0036, in exact numbers."""

import math
import re
from fractions import Fraction
from itertools import product as all_of
from pathlib import Path
from random import Random

import numpy as np
import pytest

from tests.mechanisms.counters import line
from tests.mechanisms.counters.line import (
    Vector,
    bounds,
    cost,
    covariance,
    difference,
    event,
    in_units,
    largest_cost,
    levels_of,
    noisiest,
    product,
    unit,
    variance,
    weights,
)

DECISIONS = Path(__file__).parents[3] / "docs" / "decisions"
RECORD = (DECISIONS / "0036-windows-without-epochs.md").read_text()
PROSE = " ".join(RECORD.split())
S_TABLE = [
    int(number)
    for number in re.findall(r"\d{5}", RECORD.partition("S in 1/4096")[2])[:18]
]


def decoded(noise: Vector, nodes: Vector) -> int:
    """Return a row of B times a column of C, in units of unit(L)^-1 8^-L."""
    return sum(coefficient * nodes.get(node, 0) for node, coefficient in noise.items())


def windows_are_decoded(levels: int, dropped: int | None = None) -> bool:
    """Compare every window of up to three blocks with the events in it; without a node k."""
    whole = unit(levels) * 8**levels
    ticks = range(-1, 4 << levels)
    columns = [(s, event(s, levels)) for s in ticks]
    for t in range(4 << levels):
        for since in {0, t // 3, t // 2, t - 1, t - (1 << levels), t - (3 << levels)}:
            if not 0 <= since <= t:
                continue
            noise = difference(t, since, levels)
            if dropped is not None:
                noise = {node: a for node, a in noise.items() if node[1] != dropped}
            if any(decoded(noise, c) != whole * (since <= s < t) for s, c in columns):
                return False
    return True


@pytest.mark.parametrize("levels", [1, 2, 3, 4])
def test_every_window_is_decoded(levels: int) -> None:
    """T1, in integers: B C = A, with the nodes below 0 that the first ticks have (trap 5)."""
    assert windows_are_decoded(levels)
    assert not windows_are_decoded(levels, dropped=-1)


def test_another_lifting_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def half_as_much(t: int, levels: int) -> Vector:
        return {
            (level, k): a + (level == 1) * a // 2
            for (level, k), a in path(t, levels).items()
        }

    path = line._path
    monkeypatch.setattr(line, "_path", half_as_much)
    assert not windows_are_decoded(2)


@pytest.mark.parametrize("levels", [1, 3, 5])
def test_the_recursion_gives_the_closed_form_wherever_it_begins(levels: int) -> None:
    """The noise of a window is a function of its nodes, not of what was computed before (T6)."""
    random = Random(levels)
    z = {
        (level, k): Fraction(random.randrange(-99, 99))
        for level, k in all_of(range(1, levels + 2), range(-4 << levels, 8 << levels))
    }

    def path(first: int, last: int) -> dict[int, Fraction]:
        """Return N at ticks from `first` to `last`, where N_L is 0 at the first block's begin."""
        begin = (first >> levels) - 1
        sums = {begin: Fraction(0)}
        for k in range(begin, (last >> levels) + 3):
            sums[k + 1] = sums[k] + z[levels + 1, k]
        for level in range(levels, 0, -1):
            finer = {
                2 * k: n - (z[level, k] + z[level, k - 1]) / 8 for k, n in sums.items()
            }
            for k in sums:
                if 2 * k + 2 in finer:
                    ends = finer[2 * k] + finer[2 * k + 2]
                    finer[2 * k + 1] = ends / 2 + z[level, k] / 2
            sums = finer
        return {t: sums[t] for t in range(first, last + 1)}

    long = path(0, (4 << levels) - 1)
    for since, t in (
        (0, 1),
        (1, 2 << levels),
        (3, 7),
        (1 << levels, (4 << levels) - 1),
    ):
        short = path(since, t)
        terms = (a * z[node] for node, a in difference(t, since, levels).items())
        assert long[t] - long[since] == sum(terms) / unit(levels)
        assert short[t] - short[since] == long[t] - long[since]


def test_the_cost_is_that_of_the_record_up_to_8_levels() -> None:
    """T2, in rationals; and an event costs the same a block later."""
    assert len(S_TABLE) == 18
    for levels in range(1, 9):
        assert in_units(largest_cost(levels)) == S_TABLE[levels - 1]
        w = weights(levels)
        for tick in range(0, 1 << levels, 7):
            assert cost(tick, w) == cost(tick + (3 << levels), w)


@pytest.mark.parametrize("at", [1, 2, 3, 4, 5])
def test_a_weight_off_by_two_percent_has_another_cost(at: int) -> None:
    w = weights(4)
    w[at] *= Fraction(102, 100)
    found = max(cost(tick, w) for tick in range(16))
    assert in_units(found) > S_TABLE[3]


@pytest.mark.slow
def test_the_cost_is_bounded_in_integers_up_to_40_levels() -> None:
    """T2: exact up to 17 levels but for rounding up, and tight at 40."""
    found = bounds(40)
    assert [in_units(bound) for bound in found[1:19]] == S_TABLE
    for levels in range(1, 9):
        assert 0 <= found[levels] - largest_cost(levels) < Fraction(1, 1 << 17)
    for levels in (17, 18, 23, 31, 40):
        at_a_third = cost((1 << levels) // 3, weights(levels))
        assert at_a_third <= found[levels] <= at_a_third * Fraction(10003, 10000)
    assert f"at 40 levels {in_units(found[40])}" in PROSE


def best_test(rows: list[Vector], response: list[int], w: list[Fraction]) -> Fraction:
    """Return a lower bound of a' Sigma^-1 a: (y'a)^2 / y' Sigma y for a y near the best one.

    Floats only choose y, in units of 2^-40; what they choose is evaluated in rationals.
    """
    names = sorted(set().union(*rows))
    place = {node: i for i, node in enumerate(names)}
    matrix = np.zeros((len(rows), len(names)))
    for i, row in enumerate(rows):
        for node, a in row.items():
            matrix[i, place[node]] = a / math.sqrt(w[node[0]])
    y = np.linalg.solve(matrix @ matrix.T, np.array(response, dtype=float))
    y = np.rint(y / np.abs(y).max() * 2.0**40)
    total: Vector = {}
    for weight, row in zip(y.astype(np.int64).tolist(), rows, strict=True):
        for node, a in row.items():
            total[node] = total.get(node, 0) + weight * a
    gained = sum(int(v) * a for v, a in zip(y, response, strict=True))
    return gained**2 / covariance(total, total, w)


@pytest.mark.slow
@pytest.mark.parametrize(("window", "blocks"), [(6, 14), (16, 9), (30, 9)])
def test_the_best_test_of_all_releases_reaches_the_cost(
    window: int, blocks: int
) -> None:
    """T2, dense: no more than the nodes show, and in the middle no less."""
    levels = levels_of(window)
    w = weights(levels)
    rows = [difference(t, 0, levels) for t in range(1, (blocks << levels) + 1)]
    middle = blocks // 2 << levels
    for tick in range(middle, middle + (1 << levels), 5):
        response = [int(t > tick) for t in range(1, len(rows) + 1)]
        found = best_test(rows, response, w)
        assert 1 - Fraction(1, 10**5) < found / cost(tick, w) <= 1


@pytest.mark.slow
def test_one_window_alone_costs_more_at_a_longer_horizon() -> None:
    """Trap 8: a charge computed for 8 blocks is too low for 32."""
    window = 6
    w = weights(3)
    lowest = []
    for blocks in (8, 32):
        ticks = range(window, (blocks << 3) + 1)
        rows = [difference(t, t - window, 3) for t in ticks]
        lowest.append(
            max(
                best_test(rows, [int(0 < t - s <= window) for t in ticks], w)
                for s in range(blocks // 2 << 3, (blocks // 2 + 1) << 3)
            )
        )
    assert lowest[0] * Fraction(102, 100) < lowest[1] < largest_cost(3)


def sd_mu(window: int, w: list[Fraction], largest: Fraction) -> float:
    t = noisiest(window, w)
    return math.sqrt(largest * variance(t, t - window, w))


ERRORS = re.findall(r"^\| ([\d,]+) \(.*?\) \| (\S+) \|", RECORD, re.MULTILINE)


@pytest.mark.slow
def test_errors_are_those_of_the_record() -> None:
    found = bounds(16)
    assert len(ERRORS) == 4
    for name, error in ERRORS:
        window = int(name.replace(",", ""))
        levels = levels_of(window)
        computed = sd_mu(window, weights(levels), found[levels])
        assert f"{computed:.2f}" == error


@pytest.mark.slow
def test_one_noise_for_three_windows_has_the_errors_of_the_record() -> None:
    rows = re.findall(r"^\| kappa (\S+) \| (.*) \|$", RECORD, re.MULTILINE)
    assert len(rows) == 3
    for kappa, row in rows:
        levels = 11
        w = weights(levels, 30, Fraction(kappa))
        largest = max(cost(tick, w) for tick in range(1 << levels))
        stated = [float(cell) for cell in row.split(" | ")]
        computed = [sd_mu(window, w, largest) for window in (30, 150, 1800)]
        assert stated == [round(error, 2) for error in computed]


@pytest.mark.parametrize("window", [2, 3, 6, 16, 30, 150])
def test_a_window_cut_off_at_tick_0_has_less_noise_than_the_noisiest(
    window: int,
) -> None:
    """So a threshold for the noisiest tick covers the first ticks as well."""
    w = weights(levels_of(window))
    t = noisiest(window, w)
    largest = variance(t, t - window, w)
    assert all(variance(t, 0, w) < largest for t in range(1, window))


def test_noise_of_a_running_sum_walks() -> None:
    """Trap 6: N(t) alone has a variance that grows by 1 / w_c a block; a window's does not."""
    levels = 3
    w = weights(levels)
    start = variance(8, 0, w)
    for blocks in (10, 100, 1000):
        walked = variance(blocks << levels, 0, w)
        assert walked >= (blocks - 1) / w[levels + 1]
        t = (blocks << levels) + 5
        assert variance(t, t - 6, w) == variance(t + 8, t + 2, w) < 2 * start


def test_two_noises_on_one_event_are_two_charges() -> None:
    """Trap 4: a window read from one path before a tick and from another after it."""
    w = weights(3)
    window = 6
    changed = 5 << 3
    tick = changed - 3
    first = [difference(t, t - window, 3) for t in range(20, changed)]
    second = [difference(t, t - window, 3) for t in range(changed, 60)]
    other = [{(level, k + 1000): a for (level, k), a in row.items()} for row in second]
    response = [int(0 < t - tick <= window) for t in range(20, 60)]
    one_path = best_test(first + second, response, w)
    two_paths = best_test(first + other, response, w)
    assert one_path <= cost(tick, w) < two_paths


def test_events_far_apart_share_no_node() -> None:
    """The reach of T7: 5 * 2^L ticks suffice, and 5 fewer do not."""
    for levels in (1, 2, 3):
        w = weights(levels)
        for tick in range(1 << levels):
            for lag in range((5 << levels) - 4, (5 << levels) + 9):
                assert not event(tick, levels).keys() & event(tick + lag, levels).keys()
        lag = (5 << levels) - 5
        shared = [
            product(event(tick, levels), event(tick + lag, levels), w)
            for tick in range(1 << levels)
        ]
        assert any(shared)
