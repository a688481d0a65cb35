"""Two-level against the counters where the maximum is small: the error of the largest column sum, over all ticks of an epoch."""

from pathlib import Path

import numpy as np

from bench.plots.style import (
    BLACK,
    BLUE,
    GREY,
    ORANGE,
    RED,
    Line,
    below,
    grid,
    plain,
    save,
)
from bench.printed import error_bounds
from bench.utility_cases import config, labels
from bench.utility_run import Run
from workers.mechanisms.about import Data
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.registry import build

COLUMNS = 8
SEEDS = 3
LINES = {
    "tree": Line("known_base, tree", BLUE, "s", (0, (5, 2))),
    "lifted": Line("known_base, lifted", BLACK, "o"),
    "two_level": Line("two_level", RED, "D", (0, (7, 2, 2, 2))),
    "bounded_max": Line("bounded_max (told the maximum)", ORANGE, "^", (0, (1, 1))),
}
MAXIMA = (1, 3, 10, 30, 100, 300, 1_000, 3_000)
MANY_TICKS = 1 << 14
HORIZONS = tuple(1 << h for h in (6, 8, 10, 12, 14, 16))
LONG_HORIZONS = tuple(1 << h for h in range(6, 31, 2))
SMALL = 10


def made(name: str, ticks: int, maximum: int) -> HistogramConfig:
    """A contender at epsilon = 1, delta = 1e-6; events of one item."""
    usual = {"horizon": ticks, "domain": labels(COLUMNS)}
    if name in ("tree", "lifted"):
        return config("known_base", **usual, counter=name)
    return config(
        name, **usual, **({"c_max": maximum} if name == "bounded_max" else {})
    )


def worst(name: str, ticks: int, maximum: int, seed: int) -> float:
    """The worst |published maximum - true maximum| of an epoch; the first column grows evenly to `maximum`, the others to parts of it."""
    run = Run(build(made(name, ticks, maximum)), seed)
    sums = np.zeros(COLUMNS, dtype=np.int64)
    names = [label.encode() for label in labels(COLUMNS)]
    ends = maximum // np.arange(1, COLUMNS + 1)
    found = 0.0
    for t in range(1, ticks + 1):
        now = ends * t // ticks
        added = now - sums
        sums = now
        run.step({names[i]: int(added[i]) for i in np.flatnonzero(added).tolist()})
        published = max(run.shown.values()) if run.shown else run.answer["value"]
        found = max(found, abs(float(published) - float(sums[0])))
    return found


def draw(directory: Path) -> None:
    """small_maxima.svg."""
    figure, axes = grid(1, 2, 9.0, 4.4)
    left, right = axes[0]
    for name, line in LINES.items():
        line.plot(
            left, MAXIMA, [_mean(name, MANY_TICKS, maximum) for maximum in MAXIMA]
        )
        line.plot(right, HORIZONS, [_mean(name, ticks, SMALL) for ticks in HORIZONS])
        promised = [
            error_bounds(made(name, ticks, SMALL), data=Data(value=SMALL))[0].ours
            for ticks in LONG_HORIZONS
        ]
        right.plot(
            LONG_HORIZONS, promised, color=line.color, linewidth=0.9, linestyle=":"
        )
    left.plot(MAXIMA, MAXIMA, color=GREY, linewidth=1, label="publishing 0 for ever")
    right.axhline(SMALL, color=GREY, linewidth=1)
    left.set(
        xscale="log",
        yscale="log",
        xlabel="largest count at the end of the epoch (events)",
        title="T = $2^{14}$ ticks",
    )
    left.set_ylabel("worst error of the published maximum\nover an epoch (events)")
    right.set(
        xscale="log",
        yscale="log",
        xlabel="ticks in the epoch, T",
        title=f"largest count {SMALL} (dotted: what is promised)",
    )
    right.set_xscale("log", base=2)
    plain(left, x="number", y="number")
    right.set_xticks(LONG_HORIZONS[::2])
    plain(right, y="number")
    right.text(
        LONG_HORIZONS[-1],
        SMALL * 1.07,
        "publishing 0",
        ha="right",
        va="bottom",
        color=GREY,
    )
    below(figure, left, 3)
    save(figure, "small_maxima", directory)


def _mean(name: str, ticks: int, maximum: int) -> float:
    return float(np.mean([worst(name, ticks, maximum, seed) for seed in range(SEEDS)]))
