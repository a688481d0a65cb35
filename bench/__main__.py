"""All benchmarks in one run, on one real broker: `make bench`, or `python -m bench [--events N] [--only NAME]`.

worker   events/s of one `quietcount run` beside a plain Faust table agent on the same topic
core     nanoseconds a row and tick of the core's releases
items    a tick of a million items with every per-item mechanism, beside `unk_base`; 1,000 columns: exit 1 where a tick takes over 100 us
replay   events/s of `quietcount replay` from JSON lines and Parquet; a sweep: exit 1 where 24 combinations cost 6 single runs
utility  measured error beside the error that each mechanism's theorem promises; exit 1 where a promise does not hold
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from bench import columns, mechanism_step, per_item, release_columns, replay, sweep, utility, worker
from bench.events import KEYS, produce
from tests.broker import broker
from tests.worker.harness import ROOT

PARTITIONS = 4


def bench_worker(number: int, domain: int, owners: int, runs: int, plain_events: int, densities: list[int]) -> None:
    """One worker beside plain Faust, which gets two tries of which the better one counts; ours are all shown."""
    print(
        f"\n{number:,} events, 2 items each, {KEYS} stream keys, {domain:,} items (Zipf), {PARTITIONS} source partitions, "
        f"{owners} owner partitions"
    )
    table: list[tuple[str, float]] = []
    plain = 0.0
    with broker() as bootstrap, tempfile.TemporaryDirectory() as directory:
        for density in densities:
            for i in range(runs):
                place = worker.site(bootstrap, Path(directory) / f"{density}-{i}", PARTITIONS, owners)
                last_ms = produce(bootstrap, place.topic, PARTITIONS, number, domain, density)
                if i == 0:
                    plain = max(plain, plain_rate(bootstrap, place.topic, plain_events))
                run = worker.run(place, number, last_ms)
                table.append((f"quietcount run, {density:,} events a tick, run {i + 1}", run.rate))
                print(
                    f"  {run.events:,} events in {run.seconds:.2f} s (done {run.since_start_s:.1f} s after the process "
                    f"began), {run.commits} commits, {run.snapshots:,} snapshots",
                    flush=True,
                )
    print(f"\n{'':52} {'events/s':>10} {'ratio':>8}")
    print(f"{f'plain Faust table agent ({plain_events:,} events)':52} {plain:10,.0f} {1.0:8.1f}")
    for name, rate in table:
        print(f"{name:52} {rate:10,.0f} {rate / plain:8.1f}")


def plain_rate(bootstrap: str, topic: str, number: int) -> float:
    """Events a second of the plain agent, in a process of its own."""
    command = [sys.executable, "-m", "bench.plain_faust", bootstrap, topic, str(PARTITIONS), str(number)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the plain Faust agent failed:\n{done.stderr[-3000:]}")
    return float(done.stdout.rpartition("rate=")[2].split()[0])


def bench_core(rows: int, ticks: int) -> None:
    """The core alone, on one thread."""
    print(f"\nunk_base, whole step, {rows:,} rows, horizon 2^16, {ticks} ticks: ns a row and tick")
    for counter in ("haar", "tree"):
        step = mechanism_step.measure(rows, ticks, 65_536, counter)
        print(
            f"  {counter}: mean {step.mean:.1f}, most {step.most:.0f}; first tick after a restart {step.first:.0f}",
            flush=True,
        )
    print("noise alone:")
    for kind, horizon in (("haar", 65_536), ("haar", None), ("tree", 65_536)):
        print(f"  {release_columns.measure(kind, horizon, 0.0039, rows, 1, ticks)}", flush=True)


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("worker", "core", "items", "replay", "utility"), default=None)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--domain", type=int, default=10_000)
    parser.add_argument("--owners", type=int, default=2)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--plain-events", type=int, default=20_000)
    parser.add_argument("--events-a-tick", type=int, nargs="+", default=[10_000, 50_000])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--ticks", type=int, default=64)
    parser.add_argument("--replay-events", type=int, default=10_000_000)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--horizon", type=int, default=512)
    given = parser.parse_args()
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}")
    kept = True  # targets and promises
    if given.only in (None, "worker"):
        bench_worker(given.events, given.domain, given.owners, given.runs, given.plain_events, given.events_a_tick)
    if given.only in (None, "core"):
        bench_core(given.rows, given.ticks)
    if given.only in (None, "items"):
        per_item.table(given.rows, ticks=8, horizon=1_024, only=())
        kept = columns.table(columns=1_000, ticks=20_000, touched=3, horizon=1 << 16)
    if given.only in (None, "replay"):
        replay.table(given.replay_events)
        kept = sweep.table(given.replay_events) and kept
    if given.only in (None, "utility"):
        kept = utility.table(given.seeds, given.horizon) and kept
    if not kept:
        sys.exit(1)


if __name__ == "__main__":
    main()
