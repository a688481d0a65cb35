"""Backtests for the tests: events that are easy to count by hand, and what was measured of them."""

import io
import json
import random
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.replay.site import T0
from workers.mechanisms.noise.keyed import NoiseKey
from workers.pipeline.snapshots import Snapshot
from workers.replay.backtest.grid import Run, make_grid, runs_of
from workers.replay.backtest.results import Input, Results, RunRow
from workers.replay.backtest.sweep import Backtest
from workers.replay.source import EventBatch
from workers.replay.sources import JsonLines
from workers.settings.settings import Settings

KEY = NoiseKey(bytes(range(32)))
LABELS = [f"i{i:02}" for i in range(30)]


def events(
    number: int,
    *,
    seconds: float = 40.0,
    keys: str = "ab",
    seed: int = 1,
    most: int = 5,
) -> list[dict[str, object]]:
    """Events in order of time, of up to `most` items each, some of them twice; the first items are frequent."""
    rng = random.Random(seed)
    found = list[dict[str, object]]()
    weights = [1 / (i + 1) for i in range(len(LABELS))]
    for i in range(number):
        key = rng.choice(keys)
        size = rng.randrange(most + 1)
        items = rng.choices(LABELS, weights=weights, k=size)
        found.append(
            {"key": key, "items": items, "ts": T0 + int(i * seconds * 1000 / number)}
        )
    return found


def text_of(some: Sequence[object]) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n" for event in some)


class Interrupted(JsonLines):
    number = signal.SIGINT

    def batches(self) -> Iterator[EventBatch]:
        for count, batch in enumerate(super().batches()):
            yield batch
            if count == 3:
                signal.raise_signal(self.number)


def lines(
    settings: Settings, content: bytes, kind: type[JsonLines] = JsonLines
) -> JsonLines:
    return kind(settings, "text", io.BytesIO(content), total=len(content))


def runs_in(
    settings: Settings, directory: Path, *varies: str, seeds: int = 1
) -> list[Run]:
    grid = make_grid(settings, directory / "settings.toml", varies)
    return runs_of(grid.combinations, seeds)


def a_run(run: int, epsilon: float = 0.5, seed: int = 0, **more: Any) -> RunRow:
    """Return a row of runs.parquet of a histogram `h` of 32 ticks in one epoch."""
    of: dict[str, Any] = {
        "histogram": "h",
        "window_ms": None,
        "mechanism": "unk_base",
        "varied": {},
        "settings": "{}",
        "rho": 0.1,
        "delta": 1e-9,
        "unit": "event",
        "tick_ms": 1_000,
        "first_tick": 1,
        "ticks": 32,
        "epochs": 1,
        "events": 7,
        "complete": True,
    }
    return RunRow(run=run, seed=seed, epsilon=epsilon, **(of | more))


def an_input(**more: Any) -> Input:
    of: dict[str, Any] = {
        "complete": True,
        "events": 5_000,
        "late": 2,
        "outside": 0,
        "top": 10,
        "first_ms": 60_000,
        "last_ms": 1_900_000,
        "word": "line",
    }
    return Input(**(of | more))


def backtest(
    settings: Settings,
    directory: Path,
    some: Sequence[object],
    *varies: str,
    seeds: int = 1,
    top: int = 5,
    snapshots: list[dict[str, Any]] | None = None,
) -> Results:
    """Runs the combinations over the events; `snapshots` takes those of the first seed."""
    grid = make_grid(settings, directory / "settings.toml", varies)
    runs = Backtest(runs_of(grid.combinations, seeds), KEY, top)
    for one in runs.watches():
        one.histogram.written = snapshots is not None and one.run.seed == 0

    def write(snapshot: Snapshot) -> None:
        if snapshots is not None:
            snapshots.append(json.loads(snapshot.value))

    summary = runs.run(
        settings, lines(settings, text_of(some)), write, lambda summary: None
    )
    return runs.results(summary, "line", grid.left_out)


def numbers(
    results: Results,
    metric: str,
    *,
    run: int = 1,
    seed: int = 0,
    key: str = "",
    size: int = 0,
) -> dict[int, float]:
    wanted = (run, seed, metric, key, 0, size)
    found = [
        dict(zip(one.ticks.tolist(), one.values.tolist(), strict=True))
        for one in results.series
        if (one.run, one.seed, one.metric, one.key, one.rank, one.size) == wanted
    ]
    assert len(found) <= 1, "more than one series of the same name"
    return found[0] if found else {}


def bounded(
    event: dict[str, object], max_items: int, max_count: int
) -> Iterator[tuple[str, int]]:
    items = event["items"]
    assert isinstance(items, list)
    for label in list(dict.fromkeys(items))[:max_items]:
        yield label, min(items.count(label), max_count)
