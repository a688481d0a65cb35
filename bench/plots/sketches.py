"""Misra-Gries against the exact ledger that has room for as many labels, on data whose heavy labels stay, and on data where they change."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.plots.style import BLACK, BLUE, GREY, ORANGE, Line, below, grid, plain, save
from bench.utility_cases import Stream, config
from bench.utility_run import Counts, Run
from workers.mechanisms.misra_gries.misra_gries import MisraGries, MisraGriesConfig
from workers.mechanisms.registry import build

LABELS = 20_000
TICKS = 64
EVENTS = 4_000
TOP = 20
SEEDS = 4
SIZES = (16, 32, 64, 128, 256, 512, 1_024)
PARTS = 8
LINES = {
    "pmg": Line("misra_gries, pmg", ORANGE, "^", (0, (1, 1))),
    "sketch": Line("one sketch without noise", GREY, "v", (0, (4, 1, 1, 1))),
    "ledger": Line("unk_base, the first labels that fit", BLUE, "s", (0, (5, 2))),
    "all": Line("unk_base, all labels", BLACK, "o"),
}


def stays(seed: int) -> Iterator[Counts]:
    """Zipf with power 1.1, the same in every tick."""
    return _zipf(seed, 1)


def changes(seed: int) -> Iterator[Counts]:
    """The same, but in each eighth of the epoch the labels are others."""
    return _zipf(seed, PARTS)


def _zipf(seed: int, parts: int) -> Iterator[Counts]:
    rng = np.random.default_rng(seed)
    weights = np.arange(1, LABELS + 1) ** -1.1
    for t in range(TICKS):
        part = t * parts // TICKS
        # One event after the other: which labels a ledger meets first is what decides.
        yield Counter(
            b"%d-%d" % (part, i)
            for i in rng.choice(LABELS, size=EVENTS, p=weights / weights.sum()).tolist()
        )


def held(size: int) -> int:
    """Counters that misra_gries may hold: open ones, and released counts of r - 1 blocks on each level."""
    mechanism = build(_sketch(size))
    if not isinstance(mechanism, MisraGries):
        raise TypeError(f"{mechanism!r}: not misra_gries")
    return mechanism.counters_max * mechanism.tree.radix


def error(name: str, size: int, stream: Stream, seed: int) -> float:
    """Mean |published - true| / true over the true top labels at the end; a label not shown counts as 0."""
    truth = Counter[bytes]()
    room = held(size)
    known = set[bytes]()
    run = Run(
        build(_sketch(size) if name == "pmg" else config("unk_base", horizon=TICKS)),
        seed,
    )
    for counts in stream(seed):
        truth.update(counts)
        if name == "ledger":
            for label in counts:
                if len(known) < room:
                    known.add(label)
        run.step(
            {
                label: n
                for label, n in counts.items()
                if name != "ledger" or label in known
            }
        )
    top = [label for label, _ in truth.most_common(TOP)]
    return float(
        np.mean(
            [
                abs(run.shown.get(label, 0) - truth[label]) / truth[label]
                for label in top
            ]
        )
    )


def sketch_error(size: int, stream: Stream, seed: int) -> float:
    """The same for one sketch of all the room that misra_gries has, over the whole epoch and with no noise."""
    truth: Counter[bytes] = Counter()
    counters: dict[bytes, int] = {}
    room = held(size)
    for counts in stream(seed):
        truth.update(counts)
        for label, n in counts.items():
            counters[label] = counters.get(label, 0) + n
        # merging, as `sketch` does it: subtract the (k + 1)-th largest
        if len(counters) > room:
            cut = sorted(counters.values(), reverse=True)[room]
            counters = {label: n - cut for label, n in counters.items() if n > cut}
    top = [label for label, _ in truth.most_common(TOP)]
    return float(
        np.mean(
            [abs(counters.get(label, 0) - truth[label]) / truth[label] for label in top]
        )
    )


def draw(directory: Path) -> None:
    """equal_memory.svg."""
    figure, axes = grid(1, 2, 9.0, 4.6)
    rooms = [held(size) for size in SIZES]
    streams: tuple[tuple[str, Stream], ...] = (
        ("heavy labels stay the same", stays),
        (f"new heavy labels in each {PARTS}th of the epoch", changes),
    )
    for panel, (title, stream) in zip(axes[0], streams, strict=True):
        for name, line in LINES.items():
            means = []
            for size in SIZES if name != "all" else SIZES[:1]:
                runs = [
                    sketch_error(size, stream, seed)
                    if name == "sketch"
                    else error(name, size, stream, seed)
                    for seed in range(SEEDS)
                ]
                means.append(float(np.mean(runs)))
            if name == "all":
                means *= len(SIZES)
            line.plot(panel, rooms, means)
        panel.set(
            xscale="log",
            yscale="log",
            xlabel="counts held at once (labels)",
            title=title,
        )
        panel.sharey(axes[0][0])
        plain(panel, x="number", y="share")
    axes[0][0].set_ylabel(f"mean relative error of\nthe true top {TOP}")
    below(figure, axes[0][0], 2)
    save(figure, "equal_memory", directory)


def _sketch(size: int) -> MisraGriesConfig:
    made = config("misra_gries", horizon=TICKS, size=size)
    if not isinstance(made, MisraGriesConfig):
        raise TypeError(f"{made!r}: not of misra_gries")
    return made
