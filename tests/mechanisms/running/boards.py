"""A histogram without epochs for tests: the mechanism through its blocks, and the rule in Python."""

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np

from tests.mechanisms.small import KEY, SMALL, STREAM, part, start
from tests.mechanisms.stored import read_back, store
from workers.arrays.types import Tags
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.ledger import Parts
from workers.mechanisms.mechanism import Release, WindowReleases, expect_type
from workers.mechanisms.registry import MECHANISMS, build
from workers.mechanisms.running.on_counters import SUM_CELLS
from workers.mechanisms.running.sliding import Sliding, SlidingState

KEYS = ("k", "other")
TICK_MS = 10
Tick = Mapping[tuple[str, bytes], Any]
"""(stream key, label) -> count and steps of one tick, or its users."""
Shown = tuple[Any, ...]


def sliding(
    mechanism: str = "unk_base",
    windows: Sequence[int] = (2, 5, 8),
    hops: Sequence[int] | None = None,
    unit: str = "event",
    **changes: Any,
) -> Sliding:
    """Return the mechanism of windows of so many ticks; hops may differ between short ones."""
    in_ms = tuple(ticks * TICK_MS for ticks in windows)
    options = SMALL | {"horizon": "never", "tick_ms": TICK_MS, "windows": in_ms}
    options |= {"epsilon": 20.0, "delta": 0.01} | changes
    made = MECHANISMS[mechanism](**options)
    if hops is None:
        return expect_type(Sliding, build(made, unit))
    with patch.object(HistogramConfig, "hops", tuple(hops)):
        return expect_type(Sliding, build(made, unit))


def messages(tick: Tick, number: int, with_sums: bool) -> Parts:
    """Return a tick's contributions in several messages; an item may be in more than one."""
    found = []
    for of_sums in (False, True) if with_sums else (False,):
        for i in range(number):
            of_key: dict[str, dict[bytes, int]] = {key: {} for key in KEYS}
            for (key, label), numbers in tick.items():
                n = numbers[of_sums]
                share = n // number + (i < n % number)
                if share:
                    of_key[key][label] = share
            rows, index = part(of_key, KEYS)
            found.append((replace(rows, of_sums=of_sums), index))
    return found


def by_label(state: SlidingState, releases: WindowReleases) -> Shown:
    """Return a tick's releases by stream key and label."""
    return tuple(
        _named(state, release) for release in releases.releases
    ), releases.begins


def _named(state: SlidingState, release: Release) -> Shown:
    rows = release.rows.tolist()
    keys = [KEYS[key] for key in state.ledger.keys[release.rows].tolist()]
    labels = [state.ledger.label(row) for row in rows]
    names = list(zip(keys, labels, strict=True))
    counts = dict(zip(names, release.counts.tolist(), strict=True))
    sums = None
    if release.sums is not None:
        sums = dict(zip(names, release.sums.values.tolist(), strict=True))
    totals = None if release.totals is None else release.totals.values.tolist()
    return counts, sums, totals


@cache
def tag(key: str, label: bytes) -> Tags:
    return KEY.tags(key, [label])


class Board:
    """The mechanism with a store, as an owner partition keeps it."""

    def __init__(self, mechanism: Sliding, stream: Any = STREAM) -> None:
        self.mechanism = mechanism
        self._stream = stream
        self.state: SlidingState = start(mechanism, KEYS)
        self.noise = mechanism.noise(stream)
        self.stored: dict[str, bytes] = {}

    def step(self, t: int, tick: Tick, number: int = 1) -> Shown:
        ledger = self.state.ledger
        state, releases = self.mechanism.step(
            self.state, t, self.messages(tick, number), self.noise
        )
        self.state = expect_type(SlidingState, state)
        if self.state.ledger is not ledger:
            self.stored = {}
        return by_label(self.state, releases)

    def messages(self, tick: Any, number: int) -> Parts:
        return messages(tick, number, self.mechanism.config.sum is not None)

    def store(self) -> None:
        store(self.state, self.stored)

    def restart(self) -> None:
        self.store()
        self.load(self.stored)

    def load(self, blocks: Mapping[str, bytes]) -> None:
        restored = read_back(self.mechanism, blocks, self.state.key_tags)
        self.state = expect_type(SlidingState, restored)
        self.noise = self.mechanism.noise(self._stream)


@dataclass
class Rules:
    """What a flaw changes; each is right as it is."""

    shorter: int = 0  # ticks by which windows are too short
    late: int = 0  # ticks by which an expiry is late
    rest: int = 0  # ticks by which the rest is too short
    only_with_events: bool = False  # tests only in ticks with an event of the item
    memory_is_window: bool = False  # W in place of E
    memory: int = 0  # ticks by which the memory is too short
    bar: int = 0  # by which the threshold is too high
    leaves_at: int = 0  # the largest count with which a label leaves
    unwatched: int = 0  # ticks by which the watch is too short


class Model:
    """The rule in plain Python: it forgets nothing, and adds up every window anew."""

    def __init__(self, mechanism: Sliding, rules: Rules | None = None) -> None:
        self.mechanism = mechanism
        self.rules = rules or Rules()
        self.ticks: dict[int, Tick] = {}
        self.last: dict[tuple[str, bytes], int] = {}
        self.shown: set[tuple[str, bytes]] = set()
        self.left: dict[tuple[str, bytes], int] = {}
        self.met: dict[tuple[str, bytes], None] = {}
        self.tested = 0
        self.returned = 0
        for key in KEYS:
            for label in mechanism.domain():
                self.met[key, label] = None

    def step(self, t: int, tick: Tick) -> Shown:
        mechanism = self.mechanism
        known = bool(mechanism.domain())
        tick = {item: n for item, n in tick.items() if not known or item in self.met}
        self.ticks[t] = tick
        for item in tick:
            self.met[item] = None
            self.last[item] = t
        items = list(self.met)
        exact = [self._window(i, t) for i in range(len(mechanism.windows))]
        noise = [
            self._noise(window, t, items, self.cells(i))
            for i, window in enumerate(mechanism.windows)
        ]
        noisy = [
            {item: exact[i][item][0] + noise[i][item] for item in items}
            for i in range(len(exact))
        ]
        printed = set(items) if known else self._discover(t, tick, noisy)
        found = []
        for i, counts in enumerate(noisy):
            sums = self._sums(i, t, exact[i], printed)
            totals = self._totals(i, t, exact[i])
            own = {item: counts[item] for item in items if item in printed}
            found.append((own, sums, totals))
        if not known:
            longest = max(range(len(exact)), key=lambda i: mechanism.windows[i].window)
            if t % mechanism.windows[longest].window == 0:
                for item in printed:
                    if noisy[longest][item] <= self.rules.leaves_at:
                        self.shown.discard(item)
                        self.left[item] = t
        begins = tuple(window.begin(t) for window in mechanism.windows)
        return tuple(found), begins

    def cells(self, i: int) -> Any:
        """Return what the noise of a window's counts has beside the items' tags."""
        return None

    def memory_of(self, i: int) -> int:
        window = self.mechanism.windows[i]
        memory = window.window + window.hop - 1
        if not self.rules.memory_is_window:
            memory += self.mechanism.rest
        return memory

    def _window(self, i: int, t: int) -> dict[tuple[str, bytes], tuple[int, int]]:
        counts: dict[tuple[str, bytes], tuple[int, int]] = defaultdict(lambda: (0, 0))
        for tick in self.ticks_in(i, t):
            for item, (n, steps) in tick.items():
                before = counts[item]
                counts[item] = before[0] + n, before[1] + steps
        return counts

    def ticks_in(self, i: int, t: int) -> Iterator[Any]:
        window = self.mechanism.windows[i]
        begin = (t - window.window) // window.hop * window.hop
        begin += self.rules.shorter - self.rules.late
        return (self.ticks.get(s, {}) for s in range(begin + 1, t + 1))

    def _noise(
        self, window: Any, t: int, items: Sequence[tuple[str, bytes]], cells: Any = None
    ) -> dict[tuple[str, bytes], int]:
        if not items:
            return {}
        tags = np.concatenate([tag(key, label) for key, label in items])
        if cells is not None:
            tags = tags ^ cells
        return dict(zip(items, window.draw(STREAM, t, tags).tolist(), strict=True))

    def _discover(
        self, t: int, tick: Tick, noisy: Sequence[Mapping[tuple[str, bytes], int]]
    ) -> set[tuple[str, bytes]]:
        mechanism = self.mechanism
        watched = mechanism.watched
        for item, left in self.left.items():
            if item not in self.shown and t <= left + watched - self.rules.unwatched:
                bars = [mechanism._bars[i] for i in range(len(noisy))]
                if any(noisy[i][item] > bar for i, bar in enumerate(bars)):
                    self.shown.add(item)
                    self.returned += 1
        for item, last in self.last.items():
            rested = self.left.get(item, -(1 << 60)) + watched + mechanism.rest
            rested -= self.rules.rest
            if item in self.shown or t <= rested:
                continue
            if self.rules.only_with_events and item not in tick:
                continue
            for i in range(len(mechanism.windows)):
                if last > t - self.memory_of(i) + self.rules.memory:
                    self.tested += 1
                    bar = (mechanism.threshold_of(i) or 0) + self.rules.bar
                    if noisy[i][item] > bar:
                        self.shown.add(item)
        return set(self.shown)

    def _sums(self, i: int, t: int, exact: Any, printed: Any) -> Any:
        of = self.mechanism.config.sum
        if of is None:
            return None
        items = [item for item in self.met if item in printed]
        noise = self._noise(self.mechanism.sum_windows[i], t, items, SUM_CELLS)
        return {
            item: 2 * exact[item][1] - of.steps * exact[item][0] + noise[item]
            for item in items
        }

    def _totals(self, i: int, t: int, exact: Any) -> Any:
        if not self.mechanism.total_windows:
            return None
        found = []
        window = self.mechanism.total_windows[i]
        for key in KEYS:
            total = sum(n for (of, _), (n, _) in exact.items() if of == key)
            noise = window.draw(STREAM, t, tag(key, b"\xff"))
            found.append(total + int(noise[0]))
        return found


def stream(
    rng: random.Random,
    ticks: int,
    labels: int,
    phase: int = 60,
    least: int = 1,
    most: int = 6,
) -> list[Tick]:
    """Return ticks of labels that come and go: each is in about a third of the phases."""
    items = [(KEYS[n % 2], b"%d" % n) for n in range(labels)]
    found = list[Tick]()
    active: list[tuple[str, bytes]] = []
    for t in range(ticks):
        if t % phase == 0:
            active = rng.sample(items, max(1, labels // 3))
        tick = {}
        for item in rng.sample(active, rng.randint(0, len(active))):
            n = rng.randint(least, most)
            tick[item] = n, rng.randint(0, 4 * n)
        found.append(tick)
    return found
