"""Windows without epochs: discovery, rest, users, and rules that fail (decision 0036, T4 to T9)."""

import math
import re
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from itertools import accumulate, combinations, groupby, pairwise

import numpy as np
import pytest

from tests import ROOT
from tests.mechanisms.counters.active import nodes_of_path
from tests.mechanisms.counters.line import (
    Vector,
    bounds,
    covariance,
    difference,
    event,
    largest_cost,
    levels_of,
    noisiest,
    rest,
    unit,
    variance,
    weights,
)
from tests.mechanisms.counters.test_line import PROSE, RECORD, best_test, sd_mu
from workers.mechanisms.accounting import gaussian_rho
from workers.mechanisms.noise.normal import quantile_up

PROMISED = 5e-10
Events = frozenset[int]
Rule = Callable[[Events, int], bool]
"""Whether a hidden item with these events is tested at a tick."""


def above(z: float) -> float:
    return math.erfc(z / math.sqrt(2)) / 2


def count(events: Iterable[int], t: int, window: int) -> int:
    """Return the window's count at t: of events in ticks t - window..t - 1."""
    return sum(t - window <= tick < t for tick in events)


def added_tests(others: Events, own: int, rule: Rule, until: int) -> list[int]:
    """Return the ticks at which an item is tested because of one event."""
    ticks = range(until)
    return [t for t in ticks if rule(others | {own}, t) and not rule(others, t)]


def small_streams(ticks: int, most: int) -> Iterator[Events]:
    for events in range(most + 1):
        yield from map(frozenset, combinations(range(ticks), events))


def within(memory: int) -> Rule:
    return lambda events, t: count(events, t, memory) > 0


def right_now(events: Events, t: int) -> bool:
    return t - 1 in events


@pytest.mark.parametrize("window", [2, 3, 5])
def test_an_event_adds_one_test_a_tick_of_the_memory_and_none_beside_other_events(
    window: int,
) -> None:
    """T4, all streams of 9 ticks: the count that is tested is then the event's own."""
    for memory in (window, window + rest(window, levels_of(window))):
        until = 10 + memory
        most = 0
        for others in small_streams(9, 9 if memory == window else 2):
            for own in (3, 4):
                added = added_tests(others - {own}, own, within(memory), until)
                assert all(count(others - {own}, t, window) == 0 for t in added)
                assert all(own < t <= own + memory for t in added)
                most = max(most, len(added))
                for every in (2, 3):
                    some = [t for t in added if t % every == 0]
                    assert len(some) <= -(-memory // every)
        # So with one tick less than this the union bound does not cover an event alone.
        assert most == memory


@pytest.mark.parametrize("rule", [within(2), right_now], ids=["W - 1", "arrivals"])
def test_a_memory_shorter_than_the_window_tests_old_counts(rule: Rule) -> None:
    """Traps 2 and 3: an event makes a count of others' events pass, with a chance above 1/2."""
    window = 3
    counts = [
        count(others, t, window)
        for others in small_streams(6, 6)
        for t in added_tests(others, 6, rule, 12)
    ]
    assert max(counts) > 0
    # A count at the bar: m without the event, m + 1 with it, shown if N >= -1/2.
    assert above(-0.5 / 15.2) > 0.5


@pytest.mark.parametrize("window", [2, 3, 4, 7])
def test_noise_after_the_rest_is_fresh_and_a_tick_earlier_it_is_not(
    window: int,
) -> None:
    """T5: K is exact, at the tick for which the memory of the nodes is longest."""
    levels = levels_of(window)
    ticks = rest(window, levels)
    shares = []
    for used in range(4 << levels, 5 << levels):
        seen = set[tuple[int, int]]()
        for t in range(used + 1):
            seen |= difference(t, 0, levels).keys()
        for t in range(used + ticks + 1, used + ticks + 2 + (1 << levels)):
            assert not seen & difference(t, t - window, levels).keys()
        early = used + ticks
        shares.append(seen & difference(early, early - window, levels).keys())
    assert any(shares)


@pytest.mark.parametrize("window", [2, 3, 4])
def test_added_tests_are_a_rest_away_from_every_count_of_others(window: int) -> None:
    """T4 for events that react: with one tick less of memory some are not."""
    levels = levels_of(window)

    def far(memory: int) -> bool:
        return all(
            t - window >= informative + (3 << levels) - 1
            for others in small_streams(8, 2)
            for own in range(0, 8 + memory, 3)
            for t in added_tests(others, own, within(memory), 10 + 2 * memory)
            for informative in range(t)
            if count(others, informative, window)
        )

    memory = window + rest(window, levels)
    assert far(memory)
    assert not far(memory - 1)


# ---- what an observer who reacts gains from a label that was not shown, or is known


def chance_after_failing(correlation: float, bar: float, luck: float) -> float:
    """Return a lower bound on P(Z' >= bar | Z <= -luck) of correlated normal numbers: a lower sum."""
    grid = np.linspace(luck, luck + 6, 3001).tolist()
    spread = math.sqrt(1 - correlation**2)
    cells = pairwise(grid)
    total = sum(
        (above(x) - above(y)) * above((bar + correlation * x) / spread)
        for x, y in cells
    )
    return total / above(luck)


def test_a_failed_test_is_information() -> None:
    """Trap 9: a label with a high count was not shown, so its next window is likely to be high."""
    rows = re.findall(r"^\| (\d+), every \d+ \| (.*) \|$", RECORD, re.MULTILINE)
    assert len(rows) == 2
    bar = quantile_up(PROMISED)
    for name, row in rows:
        window = int(name)
        levels = levels_of(window)
        w = weights(levels)
        found = []
        for t in range(8 * window, (8 << levels) + 8 * window, window):
            before = difference(t, t - window, levels)
            after = difference(t + window, t, levels)
            both = variance(t, t - window, w) * variance(t + window, t, w)
            found.append(float(covariance(before, after, w)) / math.sqrt(both))
            later = t + rest(window, levels) + 1
            assert not before.keys() & difference(later, later - window, levels).keys()
        worst = min(found)
        times = [
            chance_after_failing(worst, bar, luck) / PROMISED for luck in (1, 2, 3, 4)
        ]
        stated = [f"{worst:.3f}", *(f"{time:.3g}" for time in times)]
        assert row.split(" | ") == stated
        # Without the correlation nothing is gained, and less than the promise is not shown.
        assert chance_after_failing(0.0, bar, 2) <= PROMISED
        assert times[0] > 4


def test_a_label_tested_at_once_is_shown_more_often_than_promised() -> None:
    """Trap 1: its noise was read; every later test alone is above the promise."""
    window = 30
    levels = 5
    w = weights(levels)
    sd = math.sqrt(variance(noisiest(window, w), noisiest(window, w) - window, w))
    bar = quantile_up(PROMISED / window) * sd
    stated = re.search(r"at least ([\d.e-]+), ([\d.e-]+) and ([\d.e-]+)", PROSE)
    assert stated is not None
    for known, chance in zip((6.5, 5, 3.3), stated.groups(), strict=True):
        best = 0.0
        for last in range(8 << levels, 9 << levels):
            read = difference(last, last - window, levels)
            of_read = float(covariance(read, read, w))
            for t in range(last + 1, last + 6):
                tested = difference(t, t - window, levels)
                shared = float(covariance(read, tested, w))
                mean = shared / of_read * known * sd
                left = float(covariance(tested, tested, w)) - shared**2 / of_read
                best = max(best, above((bar - mean) / math.sqrt(left)))
        assert f"{best:.0e}" == chance
        assert best > PROMISED


@pytest.mark.slow
def test_thresholds_are_those_of_the_record() -> None:
    rows = re.findall(
        r"^\| ([\d,]+) \| ([\d.]+) \| ([\d.]+) \| (\d+) \| ([\d.]+) \| (\d+) \|$",
        RECORD,
        re.MULTILINE,
    )
    assert len(rows) == 4
    mu = math.sqrt(2 * gaussian_rho(1.0, PROMISED))
    largest = bounds(16)
    for name, *stated in rows:
        window = int(name.replace(",", ""))
        levels = levels_of(window)
        sd = sd_mu(window, weights(levels), largest[levels]) / mu
        computed = [f"{sd:.2f}"]
        for memory in (window, window + rest(window, levels)):
            quantile = quantile_up(PROMISED / memory)
            computed += [f"{quantile:.3f}", str(math.ceil(quantile * sd + 1 / 2))]
        assert stated == computed


# ---- users


def pieces(ticks: set[int]) -> list[int]:
    """Return the lengths of the intervals that a set of ticks consists of."""
    runs = groupby(enumerate(sorted(ticks)), lambda pair: pair[1] - pair[0])
    return [len(list(run)) for _, run in runs]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("window", "period"),
    [(3, 3), (3, 4), (3, 5), (4, 4), (2, 5), (2, 6), (2, 7), (4, 3)],
)
def test_a_period_of_a_user_moves_an_active_count_by_few_intervals(
    window: int, period: int
) -> None:
    """T8, all sets of events in 14 ticks."""
    begin = 4
    inside = range(begin, begin + period)
    reach = [set(range(tick, tick + window)) for tick in range(14)]
    most = 0
    for bits in range(1 << 14):
        events = [tick for tick in range(14) if bits >> tick & 1]
        own = set[int]().union(*(reach[tick] for tick in events if tick in inside))
        rest_of = (reach[tick] for tick in events if tick not in inside)
        lengths = pieces(own.difference(*rest_of))
        assert sum(lengths) <= period + window - 1
        most = max(most, len(lengths))
    assert most == -(-period // (window + 1))


def unique_noise(t: int, levels: int) -> Vector:
    """Return N(t) with independent ends, in units of 1 / unit(levels)."""
    found = difference(t, t >> levels << levels, levels)
    begin = difference(t >> levels << levels, 0, levels)
    nodes = {node: a for node, a in begin.items() if node[0] <= levels and node[1] >= 2}
    for node, a in nodes.items():
        found[node] = found.get(node, 0) + a
    k = t >> levels
    part = (t - (k << levels)) * 8
    found[levels + 1, k] = unit(levels) - part
    found[levels + 1, k + 1] = part
    return {node: a for node, a in found.items() if a}


def test_the_noise_of_active_counts_is_decoded_and_a_lasting_one_costs_ever_more() -> (
    None
):
    """T8: B C = 1 in integers, for intervals; no charge covers a user who stays."""
    levels = 2
    whole = unit(levels) * 8**levels
    for begin, length in ((33, 1), (34, 5), (40, 9)):
        nodes = nodes_of_path(dict.fromkeys(range(begin, begin + length), 1), levels)
        for t in range(28, 56):
            row = unique_noise(t, levels)
            found = sum(a * nodes.get(node, 0) for node, a in row.items())
            assert found == whole * (begin <= t < begin + length)
    w = weights(levels)
    costs = []
    for blocks in (4, 8, 16, 32):
        ticks = range(32, 32 + (blocks << levels))
        rows = [unique_noise(t, levels) for t in ticks]
        costs.append(best_test(rows, [1] * len(rows), w))
    assert all(later > before * 3 / 2 for before, later in pairwise(costs))


def gram(levels: int) -> tuple[np.ndarray, int]:
    """Return the products of an event's nodes with those `lag` later, in units of 1 / 400 / 64^L."""
    reach = 5 << levels
    w = weights(levels)
    places: dict[tuple[int, int], int] = {}
    columns = [event(tick, levels) for tick in range(reach + (1 << levels))]
    for column in columns:
        for node in column:
            places.setdefault(node, len(places))
    matrix = np.zeros((len(columns), len(places)), dtype=np.int64)
    weight = np.zeros(len(places), dtype=np.int64)
    for node, place in places.items():
        weight[place] = int(w[node[0]] * 400)
    for tick, column in enumerate(columns):
        for node, value in column.items():
            matrix[tick, places[node]] = value
    first = matrix[: 1 << levels] * weight
    return np.array(
        [first[s] @ matrix[s : s + reach].T for s in range(1 << levels)]
    ), reach


@pytest.mark.slow
@pytest.mark.parametrize("window", [30, 150])
def test_periods_of_a_user_add_up_to_at_most_twice_gamma(window: int) -> None:
    """T7, in integers: Gamma is 1 from 5 * 2^L ticks on, and the factor 2 is not idle."""
    levels = levels_of(window)
    products, reach = gram(levels)
    whole = Fraction(400 * 64**levels)
    largest = largest_cost(levels)
    assert Fraction(int(products[:, 0].max())) / whole == largest
    by_lag = np.abs(products).max(0).tolist()
    beyond = [*accumulate(reversed(by_lag), max)][::-1]

    def gamma(period: int) -> Fraction:
        lags = range(period + 1, reach, 2 * period)
        terms = (2 * Fraction(beyond[lag]) / whole / largest for lag in lags)
        return sum(terms, Fraction(1))

    assert gamma(5 << levels) == 1
    single = products[:, 0]
    adjacent = int((single + np.roll(single, -1) + 2 * products[:, 1]).max())
    factor = adjacent / (2 * whole * largest)
    assert f"{float(gamma(window)):.2f} (W = {window})" in PROSE
    assert f"{float(factor):.2f} (W = {window})" in PROSE
    assert 1 < factor < 2 * gamma(2 * window)


# ---- state


def test_counts_of_a_window_need_only_the_ticks_in_it() -> None:
    """T6; trap 7: a late event leaves with the tick in which it counted, not with its own."""
    window = 5
    counted = [
        (3, 3),
        (4, 4),
        (9, 4),
        (9, 9),
        (12, 12),
    ]  # in which tick, and its own time
    for delay, by_time, right in (
        (0, False, True),
        (1, False, False),
        (0, True, False),
    ):
        total = 0
        agrees = True
        for t in range(1, 30):
            total += sum(tick == t - 1 for tick, _ in counted)
            total -= sum(
                (time if by_time else tick) == t - 1 - window - delay
                for tick, time in counted
                if tick < t
            )
            agrees &= total == count((tick for tick, _ in counted), t, window)
        assert agrees == right


def test_every_test_that_the_record_names_is_there() -> None:
    code = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    names = set(re.findall(r"`(test_\w+)`", RECORD))
    assert len(names) > 15
    assert all(f"def {name}(" in code for name in names)
