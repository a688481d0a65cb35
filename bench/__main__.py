"""All benchmarks in one run, on one real broker: `make bench`, or `python -m bench [--events N] [--only NAME ...]`.

worker      events/s of one `quietcount run`, of events and of users, beside a plain Faust table and Kafka Streams on the same topic
formats     events/s in JSON, Avro and Protobuf, with one histogram and with five over different fields, filters and buckets
rekey       events/s with and without `privacy.rekey`, the same events
latency     how long after its tick a snapshot can be read, at steady rates
many-items  memory an item and recovery of a worker with 10 M items in one owner partition
split       one stream key with 10 M items on 1, 2 and 4 owner partitions, in 1 and 2 processes
core        nanoseconds a row and tick of the core's releases
items       a tick of a million items with every per-item mechanism, beside `unk_base`; 1,000 columns: exit 1 where a tick takes over 100 us
replay      events/s of `quietcount replay` from JSON lines and Parquet
coverage    whether error bars hold right after an item appears, and what mends them
sweep       one replay of 24 combinations of settings: exit 1 where they cost 6 single runs
history     a year of ticks of ten seconds in the dashboard's history: size, memory, and how long each view takes; exit 1 at 1 GB or 300 ms
users       `quietcount replay` of 59.0 M records of 10 M users: seconds and memory
sqlp        the table of DP-SQLP, section 5.1, beside ours: keys, norms, seconds and memory; exit 1 where C = 32 misses its targets
day         a day of a worker in a quarter of an hour: memory, disk, state topics and commits by its hours; exit 1 where one grows
labels      a tick of ten million new labels: bytes sent and stored, and memory, exactly and in sketches of stage 1
windows     30 days of a board without epochs, a million new labels a day: memory, disk, state topic; exit 1 where one is not flat
signatures  what signing adds to a tick of an owner partition; exit 1 above 0.1 ms for ten stream keys of 20 items
utility     measured error beside the error that each mechanism's theorem promises, and of sketches; exit 1 where a promise does not hold

docs/performance.md has the figures of the first three, of `replay`, of `users` and of `sqlp`.
"""

import argparse
import os
import platform
import sys
from collections.abc import Callable, Collection

from bench import (
    columns,
    coverage,
    history,
    long_run,
    mechanism_step,
    new_labels,
    per_item,
    release_columns,
    replay,
    signatures,
    sketches,
    sqlp,
    sweep,
    users_table,
    utility,
    window_columns,
    windows_days,
)
from bench.throughput import table
from tests.broker import a_broker_or_its_programs, kafka_programs
from tests.registry_server import application
from tests.system import java_compiler, maven, provide

NAMES = (
    *table.NAMES,
    "core",
    "coverage",
    "day",
    "history",
    "items",
    "labels",
    "replay",
    "sweep",
    "users",
    "sqlp",
    "signatures",
    "utility",
    "windows",
)


def bench_core(rows: int, ticks: int) -> None:
    """The core alone, on one thread."""
    print(
        f"\nunk_base, whole step, {rows:,} rows, horizon 2^16, or without epochs (line), {ticks} ticks"
    )
    for counter in ("lifted", "tree", "line"):
        step = mechanism_step.measure(rows, ticks, 65_536, counter)
        print(f"  {mechanism_step.line_of(counter, step)}", flush=True)
    print("noise alone:")
    for kind, horizon in (("lifted", 65_536), ("lifted", None), ("tree", 65_536)):
        print(
            f"  {release_columns.measure(kind, horizon, 0.0039, rows, 1, ticks)}",
            flush=True,
        )
    print("noise of windows that never reset:")
    print(
        window_columns.measure(rows, window_columns.LONGEST_HOP, 0.0039),
        flush=True,
    )


def programs(
    given: argparse.Namespace, through: Collection[str]
) -> list[Callable[[], object]]:
    """Return what finds the programs that these benchmarks need."""
    needed: list[Callable[[], object]] = []
    if through:
        needed.append(a_broker_or_its_programs)
    if "formats" in through:
        needed.append(application)
    if "worker" in through and given.streams_events != 0:
        needed += [maven, java_compiler]
    if "day" in given.only:
        needed.append(kafka_programs)
    return needed


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=NAMES, nargs="+", default=NAMES)
    table.options(parser)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--ticks", type=int, default=64)
    parser.add_argument("--replay-events", type=int, default=10_000_000)
    parser.add_argument(
        "--user-ticks",
        type=int,
        nargs="+",
        default=[100, 1_000],
        help="horizons of `users` and `sqlp`",
    )
    parser.add_argument(
        "--user-share",
        type=float,
        default=1.0,
        help="of the 10 M users, for a quicker run",
    )
    parser.add_argument("--history-days", type=int, default=365)
    parser.add_argument("--windows-labels", type=int, default=1_000_000)
    parser.add_argument("--new-labels", type=int, default=10_000_000)
    parser.add_argument(
        "--windows-minutes",
        type=int,
        choices=(1, 2, 5, 10, 15, 30, 60),
        default=60,
        help="ticks of `windows`",
    )
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--horizon", type=int, default=512)
    given = parser.parse_args()
    # What is measured keeps what Python compiles of it, as it does for its users.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    print(
        f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}"
    )
    kept = True  # targets and promises
    through = tuple(name for name in table.NAMES if name in given.only)
    refusal = provide(*programs(given, through))
    if refusal is not None:
        sys.exit(refusal)
    if through:
        table.tables(given, through)
    if "core" in given.only:
        bench_core(given.rows, given.ticks)
    if "items" in given.only:
        per_item.table(given.rows, ticks=8, horizon=1_024, only=())
        kept = columns.table(columns=1_000, ticks=20_000, touched=3, horizon=1 << 16)
    if "day" in given.only:
        long_run.run(100.0)
    if "coverage" in given.only:
        coverage.table()
    if "history" in given.only:
        kept = history.table(given.history_days) and kept
    if "labels" in given.only:
        new_labels.table(given.new_labels)
    if "replay" in given.only:
        replay.table(given.replay_events)
    if "sweep" in given.only:
        kept = sweep.table(given.replay_events) and kept
    if "users" in given.only:
        users_table.table(tuple(given.user_ticks), given.user_share)
    if "sqlp" in given.only:
        kept = sqlp.table(tuple(given.user_ticks), given.user_share) and kept
    if "signatures" in given.only:
        kept = signatures.table() and kept
    if "utility" in given.only:
        kept = utility.table(given.seeds, given.horizon) and kept
        sketches.table()
    if "windows" in given.only:
        load = windows_days.Load(
            labels=given.windows_labels, tick_ms=60_000 * given.windows_minutes
        )
        kept = windows_days.table(load) and kept
    if not kept:
        sys.exit(1)


if __name__ == "__main__":
    main()
