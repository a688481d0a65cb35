"""Unique users of the last W: against plain Python, over restarts, forgetting, and planted faults."""

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from tests.mechanisms.running import boards
from tests.mechanisms.running.boards import KEYS, Rules
from tests.mechanisms.small import STREAM, start
from workers.arrays.texts import Texts
from workers.arrays.types import Codes
from workers.mechanisms.ledger import Contributions, Parts
from workers.mechanisms.mechanism import expect_type
from workers.mechanisms.running import sliding, unique
from workers.mechanisms.running.discovery import window_threshold
from workers.mechanisms.running.unique import UniqueState, UniqueUsers
from workers.runtime.errors import StateRefused

Item = tuple[str, bytes]
Tick = Mapping[Item, set[int]]
"""(stream key, label) -> users of one tick."""
DIGESTS = np.random.default_rng(7).integers(1 << 63, size=(500, 2), dtype=np.uint64)


def users_of(
    mechanism: str = "unk_base",
    windows: Sequence[int] = (3, 5, 8),
    hops: Sequence[int] | None = None,
    **changes: Any,
) -> UniqueUsers:
    """Return the mechanism of windows of so many ticks, with little noise."""
    options = {"unique_users": True, "user_period": 2, "max_items_per_user": 3}
    options |= {"epsilon": 40.0} | changes
    made = boards.sliding(mechanism, windows, hops, "user", **options)
    return expect_type(UniqueUsers, made)


def message(rows: Sequence[tuple[str, bytes, int]]) -> tuple[Contributions, Codes]:
    """Return one message; its rows are ordered by stream key."""
    rows = sorted(rows)
    tags = [boards.tag(key, label)[0] for key, label, _ in rows]
    part = Contributions(
        KEYS,
        np.array([KEYS.index(key) for key, _, _ in rows], dtype=np.int32),
        np.array(tags, dtype=np.uint64).reshape(-1, 2),
        Texts.of(label for _, label, _ in rows),
        np.ones(len(rows), dtype=np.int64),
        users=DIGESTS[[user for _, _, user in rows]].reshape(-1, 2),
    )
    return part, np.arange(len(KEYS), dtype=np.int32)


class Board(boards.Board):
    def messages(self, tick: Tick, number: int) -> Parts:
        rows = sorted((*item, user) for item, users in tick.items() for user in users)
        parts = [message(rows[i::number]) for i in range(number)]
        if number > 1 and rows:
            parts.append(message(rows[:1]))  # told twice
        return parts

    @property
    def unique(self) -> UniqueState:
        return expect_type(UniqueState, self.state)


class Model(boards.Model):
    """The rule of windows, with different users in place of counts."""

    def cells(self, i: int) -> Any:
        return unique.cells_of_window(i)

    def memory_of(self, i: int) -> int:
        window = self.mechanism.windows[i]
        return int(window.most_ticks + 3 * 2**window.levels - 2)

    def _window(self, i: int, t: int) -> dict[Item, tuple[int, int]]:
        users: dict[Item, set[int]] = defaultdict(set)
        for tick in self.ticks_in(i, t):
            for item, own in tick.items():
                users[item] |= own
        counts = {item: (len(own), 0) for item, own in users.items()}
        return defaultdict(lambda: (0, 0), counts)


def stream(seed: int, ticks: int, users: int = 60) -> list[Tick]:
    """Return ticks in which users come and go, items are left alone, and some come back."""
    rng = random.Random(seed)
    items = [(KEYS[n % 2], b"%d" % n) for n in range(8)]
    found = list[Tick]()
    active: list[Item] = []
    for t in range(ticks):
        if t % 40 == 0:
            active = rng.sample(items, 3)
        tick = dict[Item, set[int]]()
        for item in active if rng.random() < 0.8 else ():
            number = rng.choice([0, 1, 2, 30])
            if number:
                tick[item] = {rng.randrange(users) for _ in range(number)}
        found.append(tick)
    return found


SHAPES: dict[str, dict[str, Any]] = {
    "unk": {},
    "hops": {"windows": (4, 9, 20), "hops": (1, 2, 4)},
    "one": {"windows": (6,), "user_period": 6},
    "known": {"mechanism": "known_base", "domain": ("0", "1", "2", "7")},
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("forgets", [False, True])
def test_every_tick_is_as_in_plain_python_over_restarts_and_forgetting(
    shape: str, forgets: bool
) -> None:
    mechanism = users_of(**SHAPES[shape])
    board = Board(mechanism)
    model = Model(mechanism)
    rng = random.Random(3)
    least = 2 if forgets else 1 << 20
    pairs = []
    with (
        patch.object(sliding, "LEAST_ROWS", least),
        patch.object(unique, "LEAST_ROWS", least),
    ):
        for t, tick in enumerate(stream(1, 320), 1):
            assert board.step(t, tick, rng.choice([1, 3])) == model.step(t, tick)
            if rng.random() < 0.2:
                board.restart()
            elif rng.random() < 0.2:
                board.store()
            pairs.append(board.unique.pairs.n)
    if shape != "known":
        assert model.shown or model.left
        assert len(model.left) > 1
    assert forgets == any(later < before for before, later in pairwise(pairs))


@pytest.mark.parametrize(
    "flaw", [Rules(late=1), Rules(shorter=1), Rules(memory=1)], ids=str
)
def test_another_rule_gives_other_releases(flaw: Rules) -> None:
    """An expiry a tick late, W - 1 for W, and a memory that is a tick too short."""
    mechanism = users_of(windows=(4, 6), epsilon=0.5, delta=0.4)

    def seen(seed: int) -> bool:
        board = Board(mechanism)
        model = Model(mechanism, flaw)
        for t, tick in enumerate(stream(seed, 200), 1):
            more = {**tick, ("k", b"once %d" % t): {t}}
            if board.step(t, more) != model.step(t, more):
                return True
        return False

    assert any(seen(seed) for seed in range(24))


def test_a_user_counts_once_however_often_and_in_each_window() -> None:
    """With 40 of epsilon the noise is far below a count of 30."""
    mechanism = users_of("known_base", (4, 8), domain=("0",), epsilon=50.0)
    board = Board(mechanism)
    item = "k", b"0"
    for t in range(1, 30):
        board.step(t, {item: set(range(100))} if t in (1, 2, 3) else {})
        state = board.unique
        for i, window in enumerate((4, 8)):
            row = int(np.flatnonzero(state.ledger.keys == 0)[0])
            assert int(state.counts(i)[row]) == (100 if t < 3 + window else 0)


def test_of_equal_tags_the_first_row_is_taken_also_where_halves_are_equal() -> None:
    rng = np.random.default_rng(3)
    for few in (2, 5, 1 << 60):
        tags = rng.integers(few, size=(200, 2), dtype=np.uint64)
        rows = tags.tolist()
        expected = sorted(
            rows.index(tag) for tag in {tuple(row): row for row in rows}.values()
        )
        assert unique._first_of_each(tags).tolist() == expected


def damaged(stored: dict[str, bytes]) -> Iterator[dict[str, bytes]]:
    """Yield stored blocks of which one is missing, cut short, or of another version."""
    name = "mpairs-00000000"
    for block in (stored[name][:-1], stored[name][:1], b"\x02" + stored[name][1:]):
        yield stored | {name: block}
    twice = stored[name][:17] * 2
    yield stored | {name: stored[name][:1] + twice[1:17] * 2 + bytes(8)}
    yield {key: block for key, block in stored.items() if key != name}
    yield {
        key.replace("mpairs-00000000", "mpairs-00000001"): b
        for key, b in stored.items()
    }


def test_damaged_pairs_are_refused() -> None:
    board = Board(users_of())
    for t, tick in enumerate(stream(2, 20), 1):
        board.step(t, tick)
    board.store()
    for blocks in damaged(board.stored):
        with pytest.raises(StateRefused):
            board.load(blocks)


def test_windows_have_noise_of_their_own_and_equal_parts_of_rho() -> None:
    mechanism = users_of("known_base", (4, 8), domain=tuple(map(str, range(2_000))))
    noise = mechanism.noise(STREAM)
    state = start(mechanism, KEYS[:1])
    drawn = expect_type(unique.UniqueNoise, noise).counts(9, state)
    correlation = float(np.corrcoef(drawn[0], drawn[1])[0, 1])
    assert abs(correlation) < 4 / np.sqrt(2_000)
    parts = {window.rho_item for window in mechanism.windows}
    assert len(parts) == 1
    most = mechanism.cost().rho
    assert parts.pop() * 2 * 3 == pytest.approx(most, rel=1e-9)


def test_a_period_adds_no_more_tests_than_are_paid_for() -> None:
    """T8: P + r + 3 * 2^L - 3 tests of one user alone; the number is attained."""
    mechanism = users_of(windows=(5,), user_period=4, epsilon=1.0)
    [window] = mechanism.windows
    most = mechanism.period + mechanism.memory_of(0) - 1
    assert most == 4 + window.most_ticks + 3 * 2**window.levels - 3
    model = Model(mechanism)
    for t in range(1, 200):
        model.step(t, {("k", b"0"): {1}} if t in (41, 44) else {})
    assert model.tested == most


def test_thresholds_cover_all_periods_that_a_window_touches() -> None:
    """T7: events of users; a window of 8 ticks touches 4 periods of 3, one of 5 touches 2 of 5."""
    for window, period, touched in ((8, 3, 4), (5, 5, 2), (4, 40, 2), (1, 1, 1)):
        options: dict[str, Any] = {
            "user_period": period,
            "max_items_per_user": 3,
            "max_items": 2,
        }
        mechanism = boards.sliding(
            windows=(window,), unit="user", max_count=7, **options
        )
        assert type(mechanism) is sliding.Sliding
        [line] = mechanism.windows
        delta = mechanism.delta_discovery
        tests = period + mechanism.memory_of(0) - 1
        expected = window_threshold(line, tests, 3, 7 * touched, delta)
        assert mechanism.threshold_of(0) == expected
        ticks = range(100)
        found = max(
            len({t // period for t in range(end - window, end)})
            for end in ticks[window:]
        )
        assert found == touched


def test_the_cost_is_for_one_period_and_periods_share_noise() -> None:
    for mechanism in (users_of(), users_of("known_base", domain=("0",))):
        cost = mechanism.cost()
        one = replace(cost, times=1).rho_charged
        assert float(one) == cost.rho
        assert replace(cost, times=2).rho_charged == 4 * one
        many = replace(cost, times=1_000).rho_charged
        assert many == 1_000 * Fraction(cost.overlap) * one
        assert cost.overlap > 2
        guarantee = mechanism.guarantee
        assert (guarantee.period, guarantee.overlap) == (20, cost.overlap)
