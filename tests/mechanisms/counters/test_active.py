"""The noise of active counts: what it costs, and that columns give what is drawn."""

import math
import re
from fractions import Fraction
from itertools import accumulate

import numpy as np
import pytest

from tests import ROOT
from tests.mechanisms.counters import active as exact
from tests.mechanisms.counters.drawn import assert_drawn, random_tags
from tests.mechanisms.counters.line import in_units, products_apart, unit
from tests.mechanisms.counters.test_line_windows import gram, unique_noise
from tests.mechanisms.small import STREAM
from workers.mechanisms.config.windows import default_hop
from workers.mechanisms.counters import active, line
from workers.mechanisms.counters.active import ActiveColumns, ActiveCounter

RECORD = (ROOT / "docs" / "decisions" / "0042-users-without-epochs.md").read_text()


def counter_of(window: int = 30, hop: int = 1, period: int = 30) -> ActiveCounter:
    return ActiveCounter(window, hop, period, 0.02)


def test_the_path_is_that_of_the_record() -> None:
    """In the record end K is node K, and here K - 1; all are moved by the offset."""
    for window, period in ((3, 2), (6, 5), (30, 30)):
        counter = counter_of(window, 1, period)
        levels = counter.levels
        for t in range(4 << levels, 9 << levels):
            expected = {
                (level, k - (level > levels)): a
                for (level, k), a in unique_noise(t + counter.offset, levels).items()
            }
            assert counter.nodes(t) == expected
            assert counter._denominator == unit(levels)


def test_the_variance_follows_from_the_nodes() -> None:
    counter = counter_of()
    ticks = np.arange(1, 200, dtype=np.int64)
    by_nodes = [float(counter.variance(t)) for t in ticks.tolist()]
    assert counter.variances(ticks) == pytest.approx(by_nodes, rel=1e-12)
    period = 1 << counter.levels
    assert max(by_nodes) <= counter.worst_variance() <= max(by_nodes) * (1 + 1e-9)
    mean = counter.curve().mean(period) - 1 / 12
    assert mean == pytest.approx(np.mean(by_nodes[:period]), rel=1e-9)


def test_a_long_window_has_a_bound_on_its_worst_tick() -> None:
    counter = counter_of(150_000, 1024, 8_640)
    ticks = np.random.default_rng(3).integers(1, 1 << 20, size=20_000)
    found = counter.variances(ticks.astype(np.int64)).max()
    assert found <= counter.worst_variance() <= found * 1.02


@pytest.mark.parametrize("levels", [1, 2, 3, 4])
def test_no_interval_costs_more_than_the_bound(levels: int) -> None:
    """All intervals of up to 5 blocks, in rationals; the bound is met."""
    largest = Fraction(-100)
    for begin in range(64, 64 + (1 << levels)):
        for ticks in range(1, (5 << levels) + 1):
            cost = exact.cost_of_interval(begin, ticks, levels)
            assert cost <= active.cost_of(levels, ticks)
            largest = max(largest, cost - exact.ENDS * Fraction(ticks, 1 << levels))
    assert active._OVERHEADS[levels - 1] == math.ceil(largest * 4096)


@pytest.mark.slow
def test_the_bounds_are_those_of_the_program() -> None:
    found = exact.overheads(active.MOST_LEVELS)[1:]
    assert [math.ceil(one * 4096) for one in found] == list(active._OVERHEADS)


@pytest.mark.slow
@pytest.mark.parametrize("levels", [6, 9, 12])
def test_the_bound_is_close_to_some_interval(levels: int) -> None:
    """Steps at a third and at two thirds of all levels' blocks cost nearly the most."""
    third = (1 << levels) // 3
    worst = Fraction(0)
    for begin in (third, 2 * third, third + 1):
        for ticks in (third, 2 * third, (1 << levels) + third, (2 << levels) + third):
            cost = exact.cost_of_interval(begin + (4 << levels), ticks, levels)
            worst = max(worst, cost - exact.ENDS * Fraction(ticks, 1 << levels))
    assert Fraction(94, 100) < worst * 4096 / active._OVERHEADS[levels - 1] <= 1


def test_weights_are_those_of_the_program() -> None:
    assert all(active.weights(n) == exact.weights(n) for n in range(1, 23))


def test_periods_of_one_user_cost_at_most_the_overlap_times_their_sum() -> None:
    """All periods, every second, and the first few; by periods much shorter than the window too."""
    for window, period in ((6, 6), (6, 2), (9, 4)):
        counter = counter_of(window, 1, period)
        levels = counter.levels
        reach = counter.most_ticks
        single = active.cost_of(levels, period + reach - 1)
        for number in (1, 2, 3, 8, 20):
            for step in (1, 2, 5):
                ticks = set[int]()
                for i in range(number):
                    for event in (0, period - 1):
                        first = (i * step) * period + event + 64
                        ticks |= set(range(first, first + window))
                nodes = exact.nodes_of_path(dict.fromkeys(ticks, 1), levels)
                cost = sum(
                    (node * node * exact.weights(levels)[level - 1])
                    for (level, _), node in nodes.items()
                ) / Fraction(64**levels)
                assert cost <= min(number, counter.overlap) * number * single


def test_columns_give_what_is_drawn() -> None:
    """Over block ends, skipped ticks, new rows and a restart."""
    counter = counter_of(6, 2, 4)
    columns = ActiveColumns(counter, STREAM)
    tags = random_tags(500)
    rng = np.random.default_rng(5)
    t = 1
    rows = 100
    for i in range(120):
        t += int(rng.choice([1, 1, 1, 2, 7, 40]))
        rows = min(500, rows + int(rng.integers(8)))
        if i == 60:
            columns = ActiveColumns(counter, STREAM)
        assert_drawn([counter], columns, t, tags[:rows])


def test_columns_of_much_noise_give_what_is_drawn() -> None:
    counter = ActiveCounter(40_000, 512, 40_000, 1e-9)
    assert counter.fixed.dtype == np.int64
    columns = ActiveColumns(counter, STREAM)
    tags = random_tags(200)
    for t in (16_380, 16_383, 16_384, 16_385, 16_386, 40_000, 1 << 30, (1 << 30) + 1):
        assert_drawn([counter], columns, t, tags)


@pytest.mark.parametrize("factor", [1.0, 0.5, 2.0])
def test_noise_has_the_variance_stated(factor: float) -> None:
    """20,000 rows, 4 sigma: half and twice the variance are found."""
    counter = counter_of(150, 2, 150)
    rows = 20_000
    for t in (3, 64, 100):
        noise = counter.draw(STREAM, t, random_tags(rows, t)).astype(float)
        stated = (float(counter.variance(t)) + 1 / 12) * factor
        off = abs((noise**2).mean() / stated - 1)
        assert (off < 4 * math.sqrt(2 / rows)) == (factor == 1.0)


def test_noise_after_the_rest_is_fresh_and_a_tick_earlier_it_is_not() -> None:
    counter = counter_of(6, 1, 6)
    rest = active.rest_of(counter.levels)
    block = 1 << counter.levels

    def shared(t: int, later: int) -> bool:
        before: set[tuple[int, int]] = set()
        for tick in range(1, t + 1):
            before |= counter.nodes(tick).keys()
        return bool(before & counter.nodes(later).keys())

    ticks = range(2 * block, 4 * block)
    assert not any(shared(t, t + rest + 1 + i) for t in ticks for i in (0, 1, 5))
    assert any(shared(t, t + rest) for t in ticks)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((0, 1, 1), "window = 0"),
        ((5, 3, 1), "hop = 3"),
        ((5, 1, 6), "period = 6: must be from 1 to the window's 5 ticks"),
        ((1 << 24, 1, 1), "window = 16777216"),
    ],
)
def test_bad_arguments_are_refused(
    arguments: tuple[int, int, int], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        ActiveCounter(*arguments, 0.02)


def test_figures_are_those_of_the_record() -> None:
    rows = re.findall(
        r"^\| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \| (\d+) \| (.*) \|$",
        RECORD,
        re.MULTILINE,
    )
    assert len(rows) == 6
    for *given, levels, figures in rows:
        window, period, hop = (int(text.replace(",", "")) for text in given)
        counter = ActiveCounter(window, hop, period, 0.5)
        assert hop == default_hop(window)
        assert int(levels) == counter.levels
        rms = math.sqrt(counter.curve().mean(1 << counter.levels) - 1 / 12)
        worst = math.sqrt(counter.worst_variance())
        assert figures == f"{worst:.2f} | {rms:.2f} | {float(counter.overlap):.2f}"
    stated = " ".join(map(str, active._OVERHEADS))
    assert stated in " ".join(RECORD.split())


@pytest.mark.slow
def test_what_two_events_have_in_common_is_bounded() -> None:
    """0042: Gamma for any L and P, from the products by level; above that of all pairs of ticks."""
    nodes, steps = products_apart()
    assert [in_units(one) for one in nodes] == list(line._PRODUCTS)
    assert [in_units(one) for one in steps] == list(line._PRODUCTS_OF_STEPS)
    for window, stated in (
        (30, "1.58"),
        (150, "1.77"),
        (1_800, "1.31"),
        (43_200, "1.39"),
    ):
        gamma = line.overlap_of(line.levels_of(window), None, window) / 2
        assert f"{float(gamma):.2f}" == stated
        assert stated in RECORD


@pytest.mark.parametrize("levels", [3, 5])
def test_the_overlap_covers_all_products_of_events_so_far_apart(levels: int) -> None:
    """Gamma of T7 by brute force, for all periods up to five blocks."""
    products, reach = gram(levels)
    by_lag = np.abs(products).max(0).tolist()
    beyond = [*accumulate(reversed(by_lag), max)][::-1]
    cost = line.cost_of(levels, None)
    whole = 400 * 64**levels
    for period in range(1, (5 << levels) + 2):
        lags = range(period + 1, reach, 2 * period)
        shared = sum(Fraction(beyond[lag], whole) for lag in lags)
        exact_factor = 2 + 4 * shared / cost
        found = line.overlap_of(levels, None, period)
        assert exact_factor <= found
    assert line.overlap_of(levels, None, 5 << levels) == 2
