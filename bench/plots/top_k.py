"""SparseGumb, MetaAlgo, UnkBase and KnownBase at one budget on Zipf data: who finds the top k, and how wrong its counts are."""

from collections import Counter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.plots.style import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    Line,
    below,
    grid,
    plain,
    save,
)
from bench.utility_cases import config, labels, zipf
from bench.utility_run import Run
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.registry import build

LABELS = 100
K = 5
TICKS = 1_000
EVENTS = 100
SEEDS = 8
BOUNDS = (1, LABELS)
LINES = {
    "known_base": Line("known_base", BLACK, "o"),
    "unk_base": Line("unk_base", BLUE, "s", (0, (5, 2))),
    "meta known_gumbel": Line("meta, known_gumbel", ORANGE, "^", (0, (1, 1))),
    "meta limit_dom": Line("meta, limit_dom", GREEN, "v", (0, (4, 1, 1, 1))),
    "sparse_gumb": Line("sparse_gumb", PURPLE, "D", (0, (7, 2, 2, 2))),
}
Series = NDArray[np.float64]


def configs(max_items: int) -> dict[str, HistogramConfig]:
    """The contenders, each at epsilon = 1, delta = 1e-6 for the whole epoch."""
    domain = {"domain": labels(LABELS)}
    usual = {"horizon": TICKS, "max_items": max_items}
    return {
        "known_base": config("known_base", **usual, **domain),
        "unk_base": config("unk_base", **usual),
        "meta known_gumbel": config(
            "meta", **usual, **domain, algorithm="known_gumbel", k=K
        ),
        "meta limit_dom": config(
            "meta", **usual, algorithm="limit_dom", k=K, kbar=4 * K
        ),
        "sparse_gumb": config("sparse_gumb", **usual, **domain, top_k=K, switches=5),
    }


def quality(made: HistogramConfig, seed: int) -> tuple[Series, Series]:
    """(recall of the true top k, mean absolute error of their counts) at each tick; an item not shown counts as 0."""
    run = Run(build(made), seed)
    truth = Counter[bytes]()
    recall = np.zeros(TICKS)
    error = np.zeros(TICKS)
    for t, counts in enumerate(zipf(TICKS, LABELS, EVENTS)(seed)):
        run.step(counts)
        truth.update(counts)
        best = sorted(truth, key=lambda label: (-truth[label], label))[:K]
        found = sorted(run.shown, key=lambda label: (-run.shown[label], label))[:K]
        recall[t] = len(set(best) & set(found)) / K
        error[t] = (
            sum(abs(run.shown.get(label, 0) - truth[label]) for label in best) / K
        )
    return recall, error


def draw(directory: Path) -> None:
    """top_k.svg."""
    figure, axes = grid(2, 2, 9.0, 6.6)
    shown = np.unique(np.geomspace(1, TICKS, 28).astype(np.int64))
    for column, max_items in enumerate(BOUNDS):
        for name, made in configs(max_items).items():
            runs = [quality(made, seed) for seed in range(SEEDS)]
            for row in range(2):
                mean = np.mean([run[row] for run in runs], axis=0)
                LINES[name].plot(axes[row][column], shown, mean[shown - 1], markevery=3)
        axes[0][column].set(
            title=f"max_items = {max_items}", ylim=(-0.04, 1.04), xscale="log"
        )
        axes[1][column].set(xlabel="tick (100 events each)", xscale="log", yscale="log")
    truth = [_largest(seed)[shown - 1] for seed in range(SEEDS)]
    for column in range(2):
        axes[1][column].plot(
            shown,
            np.mean(truth, axis=0),
            color="#767676",
            linewidth=1,
            label="their true count: error of showing nothing",
        )
        axes[1][column].sharey(axes[1][0])
        plain(axes[0][column], x="number")
        plain(axes[1][column], x="number", y="number")
    axes[0][0].set_ylabel(f"recall of the true top {K}\n(share found)")
    axes[1][0].set_ylabel(f"mean absolute error of\nthe true top {K}'s counts (events)")
    below(figure, axes[1][0], 3)
    save(figure, "top_k", directory)


def _largest(seed: int) -> Series:
    """Mean true count of the top k at each tick: what publishing nothing would be wrong by."""
    truth = Counter[bytes]()
    found = np.zeros(TICKS)
    for t, counts in enumerate(zipf(TICKS, LABELS, EVENTS)(seed)):
        truth.update(counts)
        found[t] = sum(sorted(truth.values(), reverse=True)[:K]) / K
    return found
