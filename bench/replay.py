"""Events a second of `quietcount replay`: JSON lines and Parquet, into one histogram of 10,000 items with 1,000 ticks.

Each run is the whole command in a process of its own, from reading the settings to the last snapshot in a file, on one core. The time of
the processor is what the targets are held against: others on the machine count in the other one. A run over a tenth of the events, in as
many ticks, stands beside each: it shows what the ticks alone cost, and that memory does not grow with the events.
"""

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tests import ROOT
from workers.commands.key import new_key

ITEMS = 10_000
TICKS = 1_000
TICK_MS = 10_000
START_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z
ROWS = 200_000
TARGETS = {"jsonl": 1_600_000, "parquet": 3_000_000}
SETTINGS = """
[worker]
name = "bench"
data_dir = "data"
key_file = "noise.key"

[kafka]
bootstrap = "localhost:9092"

[events]
topic = "events"
key = "key"
items = "items"
timestamp = "ts"

[[histogram]]
name = "items"
mechanism = "unk_base"
tick = "10s"
start = 2026-01-01T00:00:00Z
horizon = 1024
max_items = 2
epsilon = 1.0
delta = 1e-9
keys = ["shop"]
"""


# The command, which then tells the most memory that its process had; what the kernel tells the
# parent includes the parent.
CHILD = """
import atexit
from workers.cli import main
atexit.register(lambda: print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))))
main()
"""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the command.

    Attributes:
        events: replayed.
        cpu_s, wall_s: time of the processor, and of the clock.
        peak_mb: most memory.
        snapshots_mb: size of what it wrote.
    """

    events: int
    cpu_s: float
    wall_s: float
    peak_mb: int
    snapshots_mb: int


def batches(number: int, each: int) -> Iterator[tuple[list[object], list[int]]]:
    """Items and times of `number` events in order of time; `each` items an event, Zipf-distributed."""
    rng = np.random.default_rng(1)
    weights = np.cumsum(1 / np.arange(1, ITEMS + 1))
    labels = np.array([f"product-{i}" for i in range(ITEMS)], dtype=object)
    for first in range(0, number, ROWS):
        rows = min(ROWS, number - first)
        chosen = labels[
            np.searchsorted(weights, rng.random((rows, each)) * weights[-1])
        ]
        times = START_MS + (first + np.arange(rows)) * (TICKS * TICK_MS) // number
        yield (chosen[:, 0] if each == 1 else chosen).tolist(), times.tolist()


def write(directory: Path, number: int, each: int) -> None:
    """Writes the same events as events.jsonl and as events.parquet."""
    kind = pa.string() if each == 1 else pa.list_(pa.string())
    schema = pa.schema([("key", pa.string()), ("items", kind), ("ts", pa.int64())])
    with (
        (directory / "events.jsonl").open("wb") as lines,
        pq.ParquetWriter(directory / "events.parquet", schema) as table,
    ):
        for items, times in batches(number, each):
            for some, at in zip(items, times, strict=True):
                lines.write(
                    orjson.dumps({"key": "shop", "items": some, "ts": at}) + b"\n"
                )
            table.write_table(
                pa.table(
                    [["shop"] * len(items), pa.array(items, kind), times], schema=schema
                )
            )


def run(
    directory: Path,
    number: int,
    form: str,
    settings: str = SETTINGS,
    ticks: int = TICKS,
) -> Run:
    """Replay one of the files, which has this many ticks."""
    (directory / "settings.toml").write_text(settings)
    if not (directory / "noise.key").exists():
        new_key(directory / "noise.key")
    out = directory / "snapshots.jsonl"
    command = [
        sys.executable,
        "-c",
        CHILD,
        "replay",
        "-c",
        str(directory / "settings.toml"),
    ]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.perf_counter()
    done = subprocess.run(
        [
            *command,
            "--input",
            str(directory / f"events.{form}"),
            "--snapshots",
            str(out),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"replay of {form} ended with {done.returncode}:\n{done.stderr[-2000:]}"
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    wall_s = time.perf_counter() - begun
    with out.open("rb") as lines:
        if sum(1 for _ in lines) != ticks:
            raise RuntimeError(f"replay of {form} did not write {ticks:,} snapshots")
    peak_mb = int(done.stdout.split()[1]) >> 10
    return Run(number, cpu_s, wall_s, peak_mb, out.stat().st_size >> 20)


def table(number: int) -> None:
    """Prints a row for each form, each number of items an event, and a tenth of the events beside all of them."""
    print(
        f"\nreplay into one histogram of {ITEMS:,} items (Zipf), {TICKS:,} ticks, snapshots to a "
        "file, one core"
    )
    print(
        f"{'':52} {'events/s of CPU':>15} {'of the clock':>13} {'peak MB':>8} {'target':>10}"
    )
    for each in (1, 2):
        for events in (number // 10, number):
            with tempfile.TemporaryDirectory() as name:
                directory = Path(name)
                write(directory, events, each)
                for form, title in (("jsonl", "JSON lines"), ("parquet", "Parquet")):
                    found = run(directory, events, form)
                    rate = found.events / found.cpu_s
                    row = f"{title}, {events:,} events, {each} item{'s' * (each > 1)} each, {found.snapshots_mb} MB out"
                    target = TARGETS[form] if events == number else None
                    said = (
                        ""
                        if target is None
                        else f"{target:10,} {'met' if rate >= target else 'NOT met'}"
                    )
                    print(
                        f"{row:52} {rate:15,.0f} {events / found.wall_s:13,.0f} {found.peak_mb:8,} {said}",
                        flush=True,
                    )
