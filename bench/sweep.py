"""What a sweep costs: 24 combinations of settings over the same events, beside single runs of `quietcount replay`.

The single run writes its snapshots, the sweep its results (not the pictures, which cost the same whatever was run). On one core it is the
time of the processor that is compared; on all cores the clock is shown, too, with the three seeds that a sweep has by default.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench import replay
from tests import ROOT

EPSILONS = "0.25,0.5,1,2"
BOUNDS = "1,2,3"
DELTAS = "1e-9,1e-6"
COMBINATIONS = 24
SINGLE_RUNS = 6
CHILD = """
import os, sys
import workers.replay.report.report
from workers.cli import execute
if sys.argv[1] == "one":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
workers.replay.report.report.write_report = lambda directory: []
code = execute(sys.argv[2:])
peaks = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(peaks[0])
sys.exit(code)
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a sweep: time of the processor, of all processes, and of the clock; most memory of the process that reads."""

    cpu_s: float
    wall_s: float
    peak_mb: int


def run(directory: Path, form: str, *, seeds: int, cores: str) -> Cost:
    """One sweep over events that `replay.write` wrote.

    Args:
        directory: where they are; `replay.run` has put the settings there.
        form: "jsonl" or "parquet".
        seeds: of each combination.
        cores: "one" or "all".
    """
    varies = [
        f"--vary={name}={values}"
        for name, values in (
            ("epsilon", EPSILONS),
            ("max_items", BOUNDS),
            ("delta", DELTAS),
        )
    ]
    options = [
        "--input",
        str(directory / f"events.{form}"),
        "--report",
        str(directory / "report"),
        "--force",
        *varies,
    ]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.perf_counter()
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            CHILD,
            cores,
            "replay",
            "-c",
            str(directory / "settings.toml"),
            "--seeds",
            str(seeds),
            *options,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"the sweep ended with {done.returncode}:\n{done.stderr[-2000:]}"
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(cpu_s, time.perf_counter() - begun, int(done.stdout.split()[1]) >> 10)


def table(number: int, forms: tuple[str, ...] = ("parquet", "jsonl")) -> bool:
    """Prints the rows of each form; returns whether 24 combinations cost less than 6 single runs."""
    kept = True
    print(
        f"\na sweep of {COMBINATIONS} combinations over {number:,} events, 2 items each, "
        f"{replay.TICKS:,} ticks"
    )
    print(f"{'':52} {'CPU s':>8} {'clock s':>8} {'MB':>6} {'single runs':>12}")
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        replay.write(directory, number, 2)
        for form in forms:
            single = replay.run(directory, number, form)
            print(
                f"{f'{form}: single run':52} {single.cpu_s:8.1f} {single.wall_s:8.1f} {single.peak_mb:6,}",
                flush=True,
            )
            for cores, seeds in (("one", 1), ("all", 3)):
                cost = run(directory, form, seeds=seeds, cores=cores)
                met = cost.cpu_s < SINGLE_RUNS * single.cpu_s
                said = (
                    f" target {SINGLE_RUNS}: {'met' if met else 'NOT met'}"
                    if seeds == 1
                    else ""
                )
                kept = kept and (met or seeds > 1)
                where = (
                    "one core"
                    if cores == "one"
                    else f"{len(os.sched_getaffinity(0))} cores"
                )
                row = f"{form}: {COMBINATIONS} combinations, {seeds} seed{'s' * (seeds > 1)}, {where}"
                print(
                    f"{row:52} {cost.cpu_s:8.1f} {cost.wall_s:8.1f} {cost.peak_mb:6,} {cost.cpu_s / single.cpu_s:12.1f}{said}",
                    flush=True,
                )
    return kept


if __name__ == "__main__":
    table(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000)
