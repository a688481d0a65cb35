"""Boards without epochs against the rule in plain Python, through restarts and forgetting."""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from scipy.stats import norm

from tests.mechanisms.running.boards import (
    Board,
    Model,
    Rules,
    Shown,
    Tick,
    sliding,
    stream,
)
from tests.mechanisms.running.test_discovery import exact_tail
from workers.arrays.types import Longs
from workers.mechanisms.config.buckets import parse_buckets
from workers.mechanisms.config.sums import parse_sum
from workers.mechanisms.mechanism import State
from workers.mechanisms.running import sliding as module
from workers.mechanisms.running.sliding import Sliding, WindowNoise

SUM = parse_sum({"field": "x", "from": -2, "to": 0, "step": 0.5, "share": 0.3})
DOMAIN = tuple(str(n) for n in range(0, 30, 3))
BOARDS: dict[str, dict[str, Any]] = {
    "one": {"windows": (6,)},
    "several": {},
    "hops": {"windows": (4, 9, 16), "hops": (1, 2, 8)},
    "a hop": {"windows": (9, 5), "hop": 4},
    "sums": {"sum": SUM, "total_share": 0.2, "hops": (2, 4, 4)},
    "known": {"mechanism": "known_base", "domain": DOMAIN},
    "known sums": {"mechanism": "known_base", "domain": DOMAIN, "sum": SUM},
    "buckets": {
        "mechanism": "known_base",
        "buckets": parse_buckets([1, 2, 3]),
        "domain": parse_buckets([1, 2, 3]).labels,
    },
}


@contextmanager
def forgetting(least_rows: int) -> Iterator[None]:
    with patch.object(module, "LEAST_ROWS", least_rows):
        yield


def events(mechanism: Sliding, seed: int, most: int = 6) -> list[Tick]:
    """Return ticks of 20 times the longest window, or more."""
    longest = max(window.window for window in mechanism.windows)
    most_memory = longest + mechanism.rest
    ticks = max(20 * longest, 5 * most_memory)
    rng = random.Random(seed)
    return stream(rng, ticks, 30, phase=most_memory, most=most)


def transcript(
    mechanism: Sliding, ticks: Sequence[Tick], seed: int | None = None
) -> list[Shown]:
    """Return all releases; with a seed, restarted at random ticks, stored between them."""
    rng = random.Random(seed)
    board = Board(mechanism)
    found = []
    for t, tick in enumerate(ticks, 1):
        found.append(board.step(t, tick, 1 if seed is None else rng.randint(1, 3)))
        if seed is not None and rng.random() < 0.4:
            board.store()
        if seed is not None and rng.random() < 0.2:
            board.restart()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", BOARDS)
def test_releases_are_those_of_the_rule(name: str) -> None:
    """Neither restarts at random ticks nor forgetting changes a bit of the releases."""
    mechanism = sliding(**BOARDS[name])
    ticks = events(mechanism, 1)
    model = Model(mechanism)
    expected = [model.step(t, tick) for t, tick in enumerate(ticks, 1)]
    assert transcript(mechanism, ticks) == expected
    with forgetting(4):
        assert transcript(mechanism, ticks, seed=1) == expected
    if not mechanism.domain():
        # Not for nothing: labels left, and some were shown again.
        assert model.left.keys() & model.shown


@pytest.mark.slow
@pytest.mark.parametrize(
    "flaw",
    [
        Rules(shorter=1),
        Rules(late=1),
        Rules(rest=1),
        Rules(only_with_events=True),
        Rules(memory_is_window=True),
        Rules(bar=1),
        Rules(leaves_at=-1),
        Rules(unwatched=1),
    ],
    ids=str,
)
def test_another_rule_gives_other_releases(flaw: Rules) -> None:
    """Planted: each is found within a few boards; labels are watched for one window only."""
    config = sliding(windows=(3, 6), epsilon=0.5, delta=0.4).config
    with patch.object(module, "WATCHED", 1):
        mechanism = Sliding(config)

    def seen(seed: int) -> bool:
        ticks = [
            {**tick, ("k", b"once %d" % t): (1, 0)}
            for t, tick in enumerate(events(mechanism, seed, most=1))
        ]
        board = Board(mechanism)
        model = Model(mechanism, flaw)
        return any(
            board.step(t, tick) != model.step(t, tick)
            for t, tick in enumerate(ticks, 1)
        )

    assert any(seen(seed) for seed in range(24))


def test_a_forgotten_label_comes_back_with_the_noise_it_would_have_had() -> None:
    mechanism = sliding(windows=(3,), epsilon=8.0)
    often = {("k", b"often"): (500, 0)}
    silence = 4 * mechanism.memory_of(0) + mechanism.watched
    others: list[Tick] = [{("k", b"%d" % t): (1, 0)} for t in range(silence)]
    ticks = [{**others[0], **often}, *others[1:], often, often]
    with forgetting(4):
        board = Board(mechanism)
        found = []
        held = []
        for t, tick in enumerate(ticks, 1):
            found.append(board.step(t, tick))
            ledger = board.state.ledger
            held.append(b"often" in map(ledger.label, range(ledger.n)))
    assert held[0] and not held[-3] and held[-1]
    assert found == transcript(mechanism, ticks)
    shown = [("k", b"often") in tick[0][0][0] for tick in found]
    assert shown[0] and not shown[-3] and shown[-2]


@pytest.mark.slow
def test_memory_and_disk_stay_as_they_are_while_new_labels_come_for_ever() -> None:
    """Rows, hops and stored bytes are bounded by what windows and tests need."""
    mechanism = sliding(windows=(3, 8, 16), hops=(1, 2, 4), epsilon=2.0)
    a_tick = 3
    memory = max(map(mechanism.memory_of, range(3)))
    board = Board(mechanism)
    sizes = []
    hops = []
    with forgetting(64):
        for t in range(1, 6 * memory):
            board.step(t, {("k", b"%d %d" % (t, n)): (1, 0) for n in range(a_tick)})
            board.store()
            ledger = board.state.ledger
            shown = int((ledger.shown != 0).sum() + (ledger.left != 0).sum())
            assert ledger.n <= 2 * (a_tick * memory + shown) + a_tick
            sizes.append(sum(map(len, board.stored.values())))
            hops.append(board.state.hops.number)
    # 3 ticks, 4 hops of 2, and 4 of 4.
    assert set(hops[20:]) == {3 + 4 + 4}
    half = len(sizes) // 2
    assert max(sizes[half:]) < 1.1 * max(sizes[:half])


@pytest.mark.parametrize(
    "options",
    [
        {"windows": (5,), "epsilon": 1.0},
        {"windows": (2, 5, 8), "hops": (1, 4, 8), "max_items": 3, "max_count": 2},
        {"windows": (3, 7), "sum": SUM, "total_share": 0.2, "delta": 1e-9},
    ],
    ids=str,
)
def test_all_tests_that_one_event_adds_cost_at_most_delta(
    options: dict[str, Any],
) -> None:
    """Exactly E_i tests of window i, at ticks of their exact noise; a lower bar costs too much."""
    mechanism = sliding(**options)
    config = mechanism.config
    model = Model(mechanism)
    for t in range(1, 300):
        model.step(t, {("k", b"x"): (1, 0)} if t == 7 else {})
    windows = mechanism.windows
    memories = list(map(mechanism.memory_of, range(len(windows))))
    assert model.tested == sum(memories)
    ticks = range(1, (1 << windows[0].levels) + 1)
    for i, window in enumerate(windows):
        reached = (mechanism.threshold_of(i) or 0) + Fraction(1, 2) - config.max_count
        worst = max(exact_tail(window, t, reached) for t in ticks)
        lower = max(exact_tail(window, t, reached - 1) for t in ticks)
        part = config.delta / 2 / len(windows) / config.max_items
        assert worst * memories[i] <= part < lower * memories[i]


@contextmanager
def scripted(script: Mapping[tuple[int, int], int]) -> Iterator[None]:
    """Replace the noise of counts: that of (tick, window), the same for all items, else 0."""

    def counts(self: WindowNoise, t: int, state: State) -> Longs:
        rows = state.ledger.n
        return np.array([np.full(rows, script.get((t, i), 0)) for i in range(2)])

    with patch.object(WindowNoise, "counts", counts):
        yield


def shown_at(mechanism: Sliding, ticks: Mapping[int, Tick], last: int) -> list[int]:
    """Return the ticks up to `last` at which anything is printed; restarted after each."""
    board = Board(mechanism)
    found = []
    for t in range(1, last + 1):
        (counts, _, _), _ = board.step(t, ticks.get(t, {}))[0]
        if counts:
            found.append(t)
        board.restart()
    return found


EVENT: Tick = {("k", b"x"): (1, 0)}


@pytest.mark.parametrize("hops", [(1, 1), (1, 4)], ids=str)
def test_an_item_is_tested_at_just_the_ticks_of_its_memory(
    hops: tuple[int, int],
) -> None:
    """Where noise would pass any bar an item shows itself if, and only if, it is tested."""
    mechanism = sliding(windows=(3, 6), hops=hops)
    first = 4
    for i in range(2):
        end = first + mechanism.memory_of(i)
        reach = (3 + hops[0] - 1, 6 + hops[1] - 1)
        # 16 ticks at the reach of 9, 8 at that of 6.
        block = 16 if reach[1] > 8 else 8
        assert end - first == reach[i] + reach[1] + 3 * block - 2
        for t in (first - 1, first, first + 2, end - 2, end - 1, end, end + 1):
            with scripted({(t, i): 1 << 40}):
                found = shown_at(mechanism, {first: EVENT}, t)
            assert found == ([t] if first <= t < end else []), (i, t)


def test_a_label_that_left_is_watched_and_tested_again_after_just_its_rest() -> None:
    """It is printed at the tick at which it leaves; after the watch no noise shows it for K ticks."""
    mechanism = sliding(windows=(3, 6))
    left = 12
    watched = range(left + 1, left + mechanism.watched + 1)
    assert mechanism.watched == 7 * 6
    again = watched[-1] + mechanism.rest + 1
    script = {(t, i): 1 << 40 for t in range(2, again + 3) for i in range(2)}
    script[left, 1] = -(1 << 40)
    # As long as it is watched its noisy counts are just at its bars.
    counts = (3, 6)
    for t in watched:
        script |= {(t, i): mechanism._bars[i] - counts[i] for i in range(2)}
    ticks = dict.fromkeys(range(1, again + 3), EVENT)
    with scripted(script):
        found = shown_at(mechanism, ticks, again + 2)
    assert found == [*range(2, left + 1), again, again + 1, again + 2]
    # One above a bar shows it, at the first tick of the watch and at the last.
    for t in (watched[0], watched[-1]):
        for i in range(2):
            above = script | {(t, i): script[t, i] + 1}
            above |= {(later, 1): 0 for later in range(t + 1, again + 3)}
            with scripted(above):
                assert shown_at(mechanism, ticks, t) == [*range(2, left + 1), t]
    # At other ticks, and by counts of other windows, no label leaves.
    for place in ((left - 1, 1), (left + 3, 1), (left, 0)):
        kept = script | {(left, 1): 1 << 40, place: -(1 << 40)}
        with scripted(kept):
            assert shown_at(mechanism, ticks, left + 6) == [*range(2, left + 7)]
    # A count of just 0 leaves, and one above it stays.
    for n, stays in ((-6, False), (-5, True)):
        with scripted(script | {(left, 1): n}):
            found = shown_at(mechanism, ticks, left + 1)
        assert (found == [*range(2, left + 2)]) is stays


def test_bars_of_watched_labels_are_those_of_the_record() -> None:
    """Noise alone passes one in D ticks with probability 1 % at most, by a union bound."""
    mechanism = sliding(windows=(30, 1_800, 43_200), epsilon=1.0, delta=1e-9)
    bars = [mechanism._bars[i] for i in range(3)]
    assert bars == [117, 168, 198]
    assert [mechanism.threshold_of(i) for i in range(3)] == [168, 241, 284]
    assert mechanism.rest / 43_200 == pytest.approx(5.56, abs=0.01)
    ticks = mechanism.watched
    assert ticks == 7 * 43_200
    for lower in (0, 1):
        passes = 0.0
        for bar, window in zip(bars, mechanism.windows, strict=True):
            sd = math.sqrt(window.worst_variance())
            passes += ticks * float(norm.sf((bar - lower + 0.5) / sd))
        assert (passes <= 0.01) is (lower == 0)
    # Probability that a label with so many events a day leaves at a look.
    sd = math.sqrt(mechanism.windows[2].worst_variance())
    for events_a_day, leaves in ((0, 0.5), (35, 0.16), (71, 0.023), (106, 0.0014)):
        assert norm.cdf(-events_a_day / sd) == pytest.approx(leaves, rel=0.04)
