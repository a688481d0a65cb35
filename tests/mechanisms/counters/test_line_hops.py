"""Windows that begin in hops: T4 to T6 of decision 0036 with reaches, and the errors as built."""

import math
import re
from itertools import combinations, pairwise

import pytest

from tests.mechanisms.counters.line import difference, rest, unit, weights
from tests.mechanisms.counters.test_line import DECISIONS, ERRORS, RECORD
from workers.mechanisms.config.windows import default_hop
from workers.mechanisms.counters.base import Node
from workers.mechanisms.counters.line import (
    LineCounter,
    cost_of,
    levels_of,
    line_counters,
    rest_of,
)

RHO = 0.015
MU = math.sqrt(2 * RHO)
# By windows; each has another hop, and the last is no multiple of its own.
SMALL = [((3, 4), (2, 1)), ((2, 4), (2, 4)), ((3, 5), (1, 4))]
boards = pytest.mark.parametrize(("windows", "hops"), SMALL)
Events = frozenset[int]


def errors(counter: LineCounter) -> tuple[float, float]:
    """Return sd * mu without rounding, at the noisiest tick and as root mean square."""
    curve = counter.curve()
    period = 1 << counter.levels
    worst = float(counter.variances(curve.candidates(period)).max())
    return math.sqrt(worst) * MU, math.sqrt(curve.mean(period) - 1 / 12) * MU


@pytest.mark.slow
def test_errors_without_hops_are_within_a_percent_of_the_record() -> None:
    for name, error in ERRORS:
        (counter,) = line_counters((int(name.replace(",", "")),), (1,), RHO)
        assert errors(counter)[0] == pytest.approx(float(error), rel=0.01)
    # The working paper's: root mean squares, and three windows in one noise with kappa 7/10.
    for window, rms in ((30, 2.69), (150, 3.42), (1_800, 4.64)):
        (counter,) = line_counters((window,), (1,), RHO)
        assert errors(counter)[1] == pytest.approx(rms, rel=0.01)
    for windows, worst in (
        ((30, 150, 1_800), (3.23, 3.93, 4.86)),
        ((30, 1_800, 43_200), (3.72, 5.41, 6.49)),
    ):
        counters = line_counters(windows, (1, 1, 1), RHO)
        found = [errors(counter)[0] for counter in counters]
        assert found == pytest.approx(worst, rel=0.01)


@pytest.mark.slow
def test_errors_with_hops_are_those_of_the_record() -> None:
    pattern = r"^\| ([\d,; ]+) \| ([\d; ]+) \| ([\d.; ]+) \| ([\d.; ]+) \|$"
    rows = re.findall(pattern, RECORD, re.MULTILINE)
    assert len(rows) == 6
    for row in rows:
        windows, hops, worst, rms = (cell.split("; ") for cell in row)
        ticks = tuple(int(window.replace(",", "")) for window in windows)
        assert [str(default_hop(window)) for window in ticks] == hops
        counters = line_counters(ticks, tuple(map(default_hop, ticks)), RHO)
        found = [errors(counter) for counter in counters]
        assert [f"{error:.2f}" for error, _ in found] == worst
        assert [f"{error:.2f}" for _, error in found] == rms


def test_noise_is_the_same_in_the_first_ticks() -> None:
    """A window may begin below tick 0, where there is nothing to count."""
    for windows, hops in SMALL:
        for counter in line_counters(windows, hops, RHO):
            period = 1 << counter.levels
            for t in range(1, 2 * period):
                assert counter.variance(t) == counter.variance(t + period)


# ---- T5


@boards
def test_noise_after_the_rest_is_fresh(
    windows: tuple[int, ...], hops: tuple[int, ...]
) -> None:
    """Windows that end more than K ticks after a tick share no node with any up to it."""
    counters = line_counters(windows, hops, RHO)
    levels = counters[0].levels
    reach = max(counter.most_ticks for counter in counters)
    ticks = rest_of(levels, reach)
    assert ticks == rest(reach, levels)
    early = False
    for used in range(4 << levels, 5 << levels):
        seen = set[Node]()
        for t in range(1, used + 1):
            for counter in counters:
                seen |= counter.nodes(t).keys()
        for t in range(used + ticks + 1, used + ticks + 2 + (1 << levels)):
            assert not any(seen & counter.nodes(t).keys() for counter in counters)
        # A rest of windows that are a hop shorter is too short.
        short = used + ticks - max(hops) + 1
        early |= any(seen & counter.nodes(short).keys() for counter in counters)
    assert early


# ---- T4


def counts(counter: LineCounter, events: Events, t: int) -> int:
    return sum(counter.begin(t) < tick <= t for tick in events)


def is_tested(events: Events, t: int, memory: int) -> bool:
    return any(t - memory < tick <= t for tick in events)


@boards
def test_an_event_is_alone_where_it_adds_a_test_and_a_rest_away_from_counts_of_others(
    windows: tuple[int, ...], hops: tuple[int, ...]
) -> None:
    """All pairs of other events: with a memory of E = reach + K, and not with less.

    With E = W the first part fails: an old event may still be in a window that began in hops.
    """
    counters = line_counters(windows, hops, RHO)
    levels = counters[0].levels
    rest_ticks = rest_of(levels, max(counter.most_ticks for counter in counters))

    def holds(counter: LineCounter, memory: int) -> tuple[bool, bool]:
        alone = True
        far = True
        most = 0
        for others in map(frozenset, combinations(range(1, 9), 2)):
            uses = [
                t
                for t in range(1, 20)
                if any(counts(other, others, t) for other in counters)
            ]
            for own in range(1, 9 + memory, 3):
                added = [
                    t
                    for t in range(own, own + memory + 1)
                    if is_tested(others | {own}, t, memory)
                    and not is_tested(others, t, memory)
                ]
                most = max(most, len(added))
                for t in added:
                    alone &= counts(counter, others - {own}, t) == 0
                    last_use = max((use for use in uses if use < t), default=None)
                    if last_use is not None and own not in others:
                        begin = counter.begin(t)
                        far &= begin >= last_use + (3 << levels) - 1
        assert most == memory
        return alone, far

    for counter in counters:
        assert holds(counter, counter.most_ticks + rest_ticks) == (True, True)
        assert holds(counter, counter.most_ticks)[0]
        if counter.hop > 1:
            assert not holds(counter, counter.window)[0]


# ---- T6


@boards
def test_a_count_is_a_sum_of_whole_hops_and_of_the_ticks_since_the_last(
    windows: tuple[int, ...], hops: tuple[int, ...]
) -> None:
    """So state holds at most W / g + 1 sums; and one more hop would count old events."""
    events = frozenset((1, 2, 4, 5, 9, 10, 11, 15))
    for counter in line_counters(windows, hops, RHO):
        hop = counter.hop
        sums: dict[int, int] = {}
        for t in range(1, 40):
            sums[(t - 1) // hop] = sums.get((t - 1) // hop, 0) + (t in events)
            first = counter.begin(t) // hop
            sums = {k: count for k, count in sums.items() if k >= first}
            assert sum(sums.values()) == counts(counter, events, t)
            assert len(sums) <= -(-counter.window // hop) + 1


# ---- decayed counts, decision 0037

DECAYED = (DECISIONS / "0037-decayed-counts.md").read_text()
# Of five windows of W / 4, W / 2, W, 2 W, 4 W, in 1/16.
SHARES = (4, 4, 4, 3, 1)


def weighted_sd_mu(kernel: list[float], levels: int) -> float:
    """Return sd * mu of the counts of ages 0, 1, ... with these weights, at the worst of 16 ticks."""
    w = weights(levels)
    variances = []
    for sixteenth in range(16):
        t = (20 << levels) + (sixteenth << levels) // 16
        total: dict[Node, float] = {}
        for age, (weight, later) in enumerate(pairwise([*kernel, 0.0])):
            if weight == later:
                continue
            for node, factor in difference(t, t - age - 1, levels).items():
                total[node] = total.get(node, 0.0) + (weight - later) * factor
        squares = (factor**2 / float(w[node[0]]) for node, factor in total.items())
        variances.append(sum(squares) / unit(levels) ** 2)
    return math.sqrt(float(cost_of(levels, None)) * max(variances))


@pytest.mark.slow
def test_a_decayed_count_is_a_sum_of_windows_with_less_noise_than_one() -> None:
    rows = re.findall(
        r"^\| (\d+) \| (\S+) \| (\S+) \| (\S+) \|$", DECAYED, re.MULTILINE
    )
    assert len(rows) == 2
    for name, *stated in rows:
        mean_age = int(name)
        decayed = [math.exp(-age / mean_age) for age in range(8 * mean_age)]
        stairs = [0.0] * (4 * mean_age)
        for i, share in enumerate(SHARES):
            for age in range(mean_age << i >> 2):
                stairs[age] += share / 16
        kernels = ([1.0] * mean_age, decayed, stairs)
        errors_of = [
            weighted_sd_mu(kernel, levels_of(len(kernel))) for kernel in kernels
        ]
        assert [f"{error:.2f}" for error in errors_of] == stated
        age_of_stairs = sum(age * share for age, share in enumerate(stairs))
        assert 0.955 < age_of_stairs / sum(stairs) / mean_age < 0.975
