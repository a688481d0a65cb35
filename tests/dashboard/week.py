"""Pictures of a week of a board without epochs: midnights, a restart, a lost time, a new generation.

    python -m tests.dashboard.week DIRECTORY

writes a PNG for each of the moments, windows and widths below, to be looked at: does anything jump
that did not happen, and is anything misread? The worker restarts from its stored state every few
hours; the snapshots are those of one that never does.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.dashboard.browser import Window, browser
from tests.dashboard.feeding import Moment, embedded, reads
from tests.pipeline.pipeline import KEY, histogram_of, unk
from workers.arrays.texts import Texts
from workers.dashboard.server import Background, Dashboard
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.ledger import Contributions
from workers.pipeline.histogram import Histogram

TICK_MS = 600_000
HOUR = 6
DAY = 24 * HOUR
TICKS = 7 * DAY
WINDOWS = {"1h": 3_600_000, "6h": 6 * 3_600_000, "1d": 24 * 3_600_000}
WIDTHS = (390, 1_400)
#: Days after the beginning.
LOST = (2.5, 2.625)
NEW_GENERATION = 5.25
#: What is held in the pictures, in days; None: the newest tick. One is moved to the next midnight.
MOMENTS = {"newest": None, "midnight": 4.0, "lost": 2.75, "generation": 5.5}
DAY_MS = 24 * 3_600_000
#: Events an hour at noon, and the days in which a label is there.
LABELS: Mapping[str, tuple[int, float, float]] = {
    "tea": (2_400, 0, 8),
    "coffee": (1_800, 0, 8),
    "cocoa": (900, 0, 8),
    "water": (500, 0, 8),
    "juice": (300, 0, 4.5),
    "ayran": (700, 3.0, 8),
    "kvass": (120, 0, 8),
}


def config(generation: int) -> HistogramConfig:
    return unk(
        name="drinks",
        tick_ms=TICK_MS,
        horizon="never",
        windows=tuple(WINDOWS.values()),
        keys=["all"],
        max_items=1,
        epsilon=1.0,
        delta=1e-9,
        generation=generation,
    )


def contributions(tick: int, begin_ms: int, rng: random.Random) -> Contributions:
    """Return what is counted in a tick: a wave over the day, least at night."""
    hours = (begin_ms // TICK_MS + tick) / HOUR % 24
    wave = 0.55 - 0.45 * math.cos(2 * math.pi * (hours - 2) / 24)
    day = tick / DAY
    counts = {}
    for label, (often, first, last) in LABELS.items():
        mean = often * wave / HOUR
        count = round(rng.gauss(mean, math.sqrt(mean)))
        if first <= day < last and count > 0:
            counts[label.encode()] = count
    labels = list(counts)
    return Contributions(
        ("all",),
        np.zeros(len(labels), dtype=np.int32),
        KEY.tags("all", labels),
        Texts.of(labels),
        np.array(list(counts.values()), dtype=np.int64),
    )


class Worker:
    """A histogram with its stored state."""

    def __init__(self, generation: int, first: int) -> None:
        self._generation = generation
        self._stored: dict[bytes, bytes] = {}
        self.histogram = histogram_of(config(generation))
        self.histogram.start_at(first)

    def step(self, parts: Contributions) -> Iterator[dict[str, Any]]:
        for snapshot in self.histogram.step([parts]):
            yield json.loads(snapshot.value)
        for key, value in self.histogram.changes():
            if value is None:
                self._stored.pop(key, None)
            else:
                self._stored[key] = value

    def restart(self) -> None:
        life = self.histogram.life
        restored: Histogram = histogram_of(config(self._generation))
        restored.restore(life, sorted(self._stored.items()))
        self.histogram = restored


def week(begin_ms: int, *, restarts: bool = True) -> list[dict[str, Any]]:
    """Return the snapshots of the week, in order."""
    rng = random.Random(50)
    first = begin_ms // TICK_MS
    worker = Worker(1, first + 1)
    found = []
    for tick in range(1, TICKS + 1):
        if tick == round(NEW_GENERATION * DAY) + 1:
            worker = Worker(2, first + tick)
        elif restarts and tick % 40 == 0:
            worker.restart()
        made = list(worker.step(contributions(tick, begin_ms, rng)))
        if not LOST[0] < tick / DAY <= LOST[1]:
            found += made
    return found


def held_ms(moment: str, begin_ms: int) -> int | None:
    """Return the end of the tick that is held, None for the newest."""
    day = MOMENTS[moment]
    if day is None:
        return None
    at_ms = begin_ms + round(day * DAY) * TICK_MS
    return -(-at_ms // DAY_MS) * DAY_MS if moment == "midnight" else at_ms


def main(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    names = [f"drinks.{window}" for window in WINDOWS]
    with embedded(*names) as topics, browser() as opened:
        end_ms = Moment.ms // TICK_MS * TICK_MS
        begin_ms = end_ms - TICKS * TICK_MS
        snapshots = week(begin_ms)
        assert snapshots == week(begin_ms, restarts=False)
        topics.send(*snapshots)
        settings = topics.settings(*names)
        with Background(Dashboard(settings, port=0)) as running:
            reads(running)
            for width in WIDTHS:
                for name in names:
                    for moment in MOMENTS:
                        at_ms = held_ms(moment, begin_ms)
                        held = "" if at_ms is None else f"&at={at_ms}"
                        with Window(opened, width=width, height=900) as window:
                            url = f"{running.url}?histogram={name}&key=all{held}&range=week&item=tea"
                            page = window.open(url)
                            page.wait_for_selector("#chart path")
                            page.wait_for_timeout(1_000)
                            path = directory / f"{moment}-{name}-{width}.png"
                            page.screenshot(path=str(path), full_page=True)
                            print(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
