"""Many canaries in one run: a lower bound on epsilon from a single replay of events.

Each canary is one event with items that no other canary has; a coin decides whether it is in the
input. It goes all the way from a record to snapshots. An attacker who sees these guesses the coins
of those canaries that the likelihood ratio is surest of, and is silent about the rest.

    m       canaries; their coins are independent, whatever else they share
    r, v    guesses, fixed in advance; right ones
    B       binomial: r guesses, each right with probability e^epsilon / (1 + e^epsilon)

Under (epsilon, delta), v or more guesses are right with probability at most

    P[B >= v] + 2 m delta max_i P[v > B >= v - i] / i

The bound is the epsilon at which this is 5 %. Source: Steinke, Nasr, Jagielski, "Privacy Auditing
with One (1) Training Run" (NeurIPS 2023), the theorem for delta above 0.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import orjson

from tests.attacks.bounds import FAILURE, counter_ratio
from tests.attacks.flaws import half_noise
from tests.attacks.runs import KEY, Published
from workers.arrays.types import Bools, Floats
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.registry import build
from workers.mechanisms.running.on_counters import OnCounters
from workers.replay.offline import fresh_histograms, replay
from workers.replay.sources import open_source
from workers.settings.settings import Settings, settings_of

CANARIES = 100_000
GUESSES = 1_000
EPSILON = 2.0
DELTA = 1e-6
COUNT = 20
#: Events beside a canary with the same items, so that these are shown in either case.
CROWD = 40
TICK_MS = 1_000
START = datetime(2026, 1, 1, tzinfo=UTC)
_ITEMS = ("a", "b")


@dataclass(frozen=True, slots=True)
class Canaries:
    """One row of the table."""

    name: str
    settings: dict[str, Any]  # of the histogram
    half_noise: bool = False

    def bound(
        self, canaries: int = CANARIES, guesses: int = GUESSES, seed: int = 2
    ) -> float:
        """Return the lower bound on epsilon from one run."""
        coins = np.random.default_rng(seed).random(canaries) < 0.5
        settings = self._settings(canaries)
        [config] = settings.histograms
        mechanism = (half_noise if self.half_noise else build)(config, "event")
        scores = _scores(
            mechanism, _published(settings, mechanism, self._lines(coins), canaries)
        )
        surest = np.argsort(-np.abs(scores), kind="stable")[:guesses]
        right = int(((scores[surest] > 0) == coins[surest]).sum())
        return least_epsilon(canaries, guesses, right, DELTA)

    def _settings(self, canaries: int) -> Settings:
        own: dict[str, Any] = {"name": "h", "tick": f"{TICK_MS}ms", "start": START}
        own |= {"epsilon": EPSILON, "delta": DELTA, "max_items": 2, "max_count": COUNT}
        if self._declares:
            own["domain"] = [f"{n}{item}" for n in range(canaries) for item in _ITEMS]
        document = {
            "worker": {"name": "canaries", "data_dir": "d", "key_file": "k"},
            "kafka": {"bootstrap": "localhost:9092"},
            "events": {
                "topic": "t",
                "key": "$all",
                "items": "items",
                "timestamp": "ts",
            },
            "histogram": [own | self.settings],
        }
        return settings_of(document, Path())

    @property
    def _declares(self) -> bool:
        return str(self.settings["mechanism"]).startswith("known")

    def _lines(self, coins: Bools) -> Iterator[bytes]:
        at = int(START.timestamp() * 1_000)
        crowd = 0 if self._declares else CROWD
        for n, counted in enumerate(coins.tolist()):
            items = b",".join(
                b'"%d%b":%d' % (n, item.encode(), COUNT) for item in _ITEMS
            )
            yield b'{"items":{%b},"ts":%d}\n' % (items, at) * (crowd + counted)
        last = at + TICK_MS * (self.settings["horizon"] - 1)
        yield b'{"items":"none","ts":%d}\n' % last


def _published(
    settings: Settings, mechanism: Mechanism, lines: Iterator[bytes], canaries: int
) -> Published:
    """Return what one replay publishes of each canary's items."""
    ticks = int(settings.histograms[0].horizon)
    width = len(_ITEMS)
    counts = np.full((canaries, ticks * width), math.nan)

    def read(value: bytes) -> None:
        snapshot = orjson.loads(value)
        column = (snapshot["tick"] - 1) * width
        for label, count in snapshot["items"]:
            if label != "none":
                counts[int(label[:-1]), column + _ITEMS.index(label[-1])] = count

    with TemporaryDirectory(prefix="quietcount-canaries-") as directory:
        path = Path(directory) / "events.jsonl"
        with path.open("wb") as file:
            file.writelines(lines)
        histograms = fresh_histograms(settings, KEY, built=[mechanism])
        with open_source(settings, str(path)) as source:
            replay(
                settings,
                KEY,
                source,
                lambda one: read(one.value),
                histograms=histograms,
            )
    return Published(counts, np.zeros((canaries, ticks), dtype=np.int64))


def _scores(mechanism: Mechanism, runs: Published) -> Floats:
    """Return a score above 0 for canaries that look counted; 0 where an item is not shown."""
    if isinstance(mechanism, OnCounters):
        moved: Floats = np.full((runs.texts.shape[1], len(_ITEMS)), float(COUNT))
        found = counter_ratio(mechanism._counter, moved, ())(runs)
    else:
        found = runs.counts.sum(axis=1)
    shown = ~np.isnan(runs.counts).any(axis=1)
    scores: Floats = np.where(shown, found - np.median(found[shown]), 0.0)
    return scores


def least_epsilon(canaries: int, guesses: int, right: int, delta: float) -> float:
    """Return the largest epsilon that so many right guesses disprove with 95 %, else 0."""
    low = 0.0
    high = 1.0
    if _chance(canaries, guesses, right, low, delta) >= FAILURE:
        return 0.0
    while high < 100 and _chance(canaries, guesses, right, high, delta) < FAILURE:
        high += 1
    for _ in range(30):
        middle = (low + high) / 2
        if _chance(canaries, guesses, right, middle, delta) < FAILURE:
            low = middle
        else:
            high = middle
    return low


def _chance(
    canaries: int, guesses: int, right: int, epsilon: float, delta: float
) -> float:
    from scipy.stats import binom

    law = binom(guesses, 1 / (1 + math.exp(-epsilon)))
    fewer = np.arange(1, right + 1)
    share = np.cumsum(law.pmf(right - fewer)) / fewer
    return float(law.sf(right - 1)) + 2 * canaries * delta * float(
        share.max(initial=0.0)
    )


def canaries() -> Sequence[Canaries]:
    """The mechanisms that count every item by itself, and some with half their noise."""
    counters = {"horizon": 4}
    found = [
        Canaries(
            "known_base lifted",
            {"mechanism": "known_base", "counter": "lifted"} | counters,
        ),
        Canaries(
            "known_base tree", {"mechanism": "known_base", "counter": "tree"} | counters
        ),
        Canaries("unk_base", {"mechanism": "unk_base"} | counters),
        Canaries("known_gauss", {"mechanism": "known_gauss", "horizon": 1}),
        Canaries("positive_gauss", {"mechanism": "positive_gauss", "horizon": 1}),
    ]
    return found + [Canaries(one.name, one.settings, half_noise=True) for one in found]
