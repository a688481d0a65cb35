"""The tables about events through a broker: `python -m bench --only worker`, `latency`, `many-items`."""

import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import MappingProxyType

from bench.throughput import (
    formats,
    latency,
    many_items,
    rekeyed,
    sampled,
    split,
    streams,
    worker,
)
from bench.throughput.events import Shape
from bench.throughput.producing import fill
from bench.throughput.worker import Run, contributed, expected, forget, site
from tests import ROOT
from tests.broker import LASTING, broker
from tests.worker.harness import Site

NAMES = ("worker", "formats", "rekey", "latency", "many-items", "split")
#: That of the peers, and of most rows.
PARTITIONS = 4
#: Of the rate of one histogram in epochs, for the same events in three windows.
WINDOWS_SHARE = 0.8
# Of the histogram, by what is counted.
_SETTINGS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "event": {},
        "user": {},
        "window": {"horizon": "never", "windows": ["1m", "1h", "1d"]},
    }
)


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table: whole run and steady in events a second, 0 where it was not measured."""

    title: str
    whole: float
    steady: float = 0.0
    since_start: float = 0.0
    cpu_us: float = 0.0
    peak: int = 0
    short: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """A topic and how the worker counts it."""

    title: str
    shape: Shape
    partitions: int
    number: int
    settings: Mapping[str, object]


def options(parser: ArgumentParser) -> None:
    """Add the options of these tables."""
    parser.add_argument(
        "--events", type=int, default=10_000_000, help="of each run of the worker"
    )
    parser.add_argument("--events-a-tick", type=int, default=50_000)
    parser.add_argument("--owners", type=int, default=2)
    parser.add_argument(
        "--domain",
        type=int,
        nargs="+",
        default=[10_000, 1_000_000],
        help="numbers of items",
    )
    parser.add_argument(
        "--partitions",
        type=int,
        nargs="+",
        default=[4, 2, 1],
        help="of the events topic",
    )
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument(
        "--unit",
        choices=tuple(_SETTINGS),
        nargs="+",
        default=["event", "user"],
        help="counted in epochs; window: events in the last minute, hour and day, without epochs",
    )
    parser.add_argument(
        "--runs", type=int, default=1, help="of the worker, for each row, in turns"
    )
    parser.add_argument(
        "--warm-up",
        type=int,
        default=5_000_000,
        help="events before what is measured; 0: none",
    )
    parser.add_argument(
        "--plain-events",
        type=int,
        default=20_000,
        help="for the plain Faust agent; 0: without it",
    )
    parser.add_argument(
        "--streams-events",
        type=int,
        default=None,
        help="for Kafka Streams; as --events; 0: without it",
    )
    parser.add_argument("--streams-threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument(
        "--profile",
        action="store_true",
        help="show where the worker's time goes, which costs some",
    )
    parser.add_argument(
        "--rates",
        type=int,
        nargs="+",
        default=[100_000, 400_000],
        help="of the latency's table",
    )
    parser.add_argument(
        "--seconds", type=int, default=60, help="for each of these rates"
    )
    parser.add_argument(
        "--items", type=int, default=10_000_000, help="of `many-items` and `split`"
    )


def tables(given: Namespace, names: tuple[str, ...]) -> None:
    """Print these tables, on one broker."""
    with broker(LASTING) as bootstrap, tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        if given.warm_up and not {"worker", "formats", "rekey"}.isdisjoint(names):
            _warm_up(bootstrap, directory / "warm-up", given)
        if "worker" in names:
            throughput(bootstrap, directory, given)
        if "formats" in names:
            formats.table(bootstrap, directory / "formats", given)
        if "rekey" in names:
            rekeyed.rekeyed(bootstrap, directory, given)
        if "latency" in names:
            delays(bootstrap, directory, given)
        if "many-items" in names:
            items(bootstrap, directory, given.items)
        if "split" in names:
            parts(bootstrap, directory, given.items)


def _warm_up(bootstrap: str, directory: Path, given: Namespace) -> None:
    """Run a worker once: a broker that has just begun compiles its own code for half a minute, on the same cores, and
    what is measured first would pay for that.
    """
    place = site(bootstrap, directory, Shape(), PARTITIONS, given.owners)
    last_ms = fill(
        bootstrap, place.topic, PARTITIONS, given.warm_up, Shape(), given.events_a_tick
    )
    worker.run(place, given.warm_up, last_ms)
    forget(place)


def throughput(bootstrap: str, directory: Path, given: Namespace) -> None:
    """Print the worker beside its peers, ratios first."""
    cases = [
        Case(
            f"{unit}s, {domain:,} items, {partitions} partition{'s' * (partitions > 1)}",
            shape,
            partitions,
            given.events,
            settings,
        )
        for unit, settings in _SETTINGS.items()
        for domain in given.domain
        for partitions in given.partitions
        # 1, 2 and 4 partitions with the few items; the many items with the most partitions only.
        if unit in given.unit
        and (domain == given.domain[0] or partitions == given.partitions[0])
        for shape in [Shape(domain=domain, users=given.users if unit == "user" else 0)]
    ]
    print(
        f"\n{given.events:,} events, {given.events_a_tick:,} a tick, 2 items each, {given.owners} owner partitions",
        flush=True,
    )
    peers: list[Row] = []
    runs: dict[str, list[Run]] = {case.title: [] for case in cases}
    for turn in range(given.runs):
        for number, case in enumerate(cases):
            place = site(
                bootstrap,
                directory / f"{number}-{turn}",
                case.shape,
                case.partitions,
                given.owners,
                **case.settings,
            )
            last_ms = fill(
                bootstrap,
                place.topic,
                case.partitions,
                case.number,
                case.shape,
                given.events_a_tick,
            )
            if not peers:
                peers = _peers(place, given)
            out = directory / "profile.json" if given.profile else None
            run = worker.run(place, case.number, last_ms, out)
            _check(place, case)
            forget(place)
            runs[case.title].append(run)
            _print_run(case, run)
            if out is not None:
                sampled.table(out, case.number, 40)
    rows = [
        Row(title, run.whole, run.steady, run.since_start, run.cpu_us, run.peak)
        for title, of_case in runs.items()
        for run in of_case
    ]
    _print_rows(peers, rows)
    _print_windows(runs)


def _print_windows(runs: Mapping[str, list[Run]]) -> None:
    """Print the rate of windows as a share of that of epochs, turn by turn, for the same events."""
    for title, of_windows in runs.items():
        of_epochs = runs.get(title.replace("windows", "events", 1), [])
        if not title.startswith("windows") or not of_epochs:
            continue
        turns = list(zip(of_windows, of_epochs, strict=True))
        shares = [windows.steady / epochs.steady for windows, epochs in turns]
        by_cpu = [epochs.cpu_us / windows.cpu_us for windows, epochs in turns]
        missed = "" if median(shares) >= WINDOWS_SHARE else "   below its target"
        print(
            f"{title}: {median(shares):.2f} of the steady rate of events in an epoch "
            f"({min(shares):.2f} to {max(shares):.2f} in {len(turns)} turns), "
            f"{median(by_cpu):.2f} by CPU{missed}",
            flush=True,
        )


def _peers(place: Site, given: Namespace) -> list[Row]:
    """Measure what else counts the same topic."""
    rows = []
    if given.plain_events:
        command = [
            sys.executable,
            "-m",
            "bench.throughput.plain_faust",
            place.connection.bootstrap,
            place.topic,
        ]
        done = subprocess.run(
            [*command, str(place.partitions), str(given.plain_events)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"the plain Faust agent failed:\n{done.stderr[-3000:]}")
        rate = float(done.stdout.rpartition("rate=")[2].split()[0])
        rows.append(
            Row(
                f"plain Faust table agent ({given.plain_events:,} events)",
                rate,
                short="Faust",
            )
        )
        print(f"  plain Faust: {rate:,.0f} events/s", flush=True)
    number = given.events if given.streams_events is None else given.streams_events
    for threads in given.streams_threads if number else ():
        run = streams.measure(
            place.connection.bootstrap,
            place.topic,
            number,
            threads,
            all_of_it=number == given.events,
        )
        title = f"Kafka Streams {streams.version()} EOS v2, {threads} thread{'s' * (threads > 1)}"
        if number != given.events:
            title += f" ({number:,} events)"
        steady = number / 2 / run.half_s
        cpu_us = run.cpu_s / number * 1e6
        rows.append(
            Row(
                title,
                number / run.whole_s,
                steady,
                cpu_us=cpu_us,
                short=f"Streams {threads}",
            )
        )
        print(f"  {title}: {number:,} events in {run.whole_s:.1f} s", flush=True)
    return rows


def _check(place: Site, case: Case) -> None:
    """Refuse a run in which anything was lost or counted twice."""
    found = contributed(place)
    right = expected(case.shape, case.partitions, case.number)
    if found != right:
        raise RuntimeError(
            f"{case.title}: the contributions add up to {found:,}, not to {right:,}"
        )


def _print_run(case: Case, run: Run) -> None:
    print(
        f"  {case.title}: {run.events:,} events in {(run.end_ms - run.ready_ms) / 1000:.2f} s"
        f" (and {(run.ready_ms - run.start_ms) / 1000:.1f} s to start), {run.counted:,} before the "
        "first commits,"
        f" {run.commits} commits, {run.whole_cpu_s / run.events * 1e6:.2f} us of CPU an event with all that",
        flush=True,
    )


def _print_rows(peers: list[Row], rows: list[Row]) -> None:
    """Print one table: each row's whole run beside those of the peers, its rates, CPU and memory."""
    heads = [f"/ {peer.short}" for peer in peers]
    wide = max(len(row.title) for row in [*peers, *rows])
    print(
        "\n(whole run: from the first event, or the partitions' being taken over, to the last; "
        "steady: see docs/performance.md)"
    )
    print(
        f"{'':{wide}} {''.join(f'{head:>12}' for head in heads)} {'whole/s':>11} {'steady/s':>11} "
        f"{'with start':>11}"
        f" {'CPU us':>7} {'peak MB':>8}"
    )
    for row in [*peers, *rows]:
        ratios = "".join(f"{row.whole / peer.whole:12.1f}" for peer in peers)
        figures = [
            f"{row.whole:11,.0f}",
            f"{row.steady:11,.0f}" if row.steady else f"{'':11}",
            f"{row.since_start:11,.0f}" if row.since_start else f"{'':11}",
            f"{row.cpu_us:7.2f}" if row.cpu_us else f"{'':7}",
            f"{row.peak / 1e6:8,.0f}" if row.peak else "",
        ]
        print(f"{row.title:{wide}} {ratios} {' '.join(figures)}".rstrip(), flush=True)


def delays(bootstrap: str, directory: Path, given: Namespace) -> None:
    """Print how long after their ticks snapshots can be read."""
    print(
        f"\nsnapshots after the end of their tick of 1 s, {given.domain[0]:,} items, {PARTITIONS} "
        "source partitions"
    )
    print(
        f"{'events/s':>10} {'p50 s':>7} {'p99 s':>7} {'worst':>7} {'snapshots':>10} {'CPU us':>7} "
        f"{'producer late':>14}"
    )
    for rate in given.rates:
        found = latency.measure(
            bootstrap,
            directory / f"latency-{rate}",
            rate,
            given.seconds,
            PARTITIONS,
            given.owners,
            given.domain[0],
        )
        print(
            f"{rate:10,} {found.p50_s:7.3f} {found.p99_s:7.3f} {found.worst_s:7.3f} "
            f"{found.snapshots:10,}"
            f" {found.cpu_us:7.2f} {found.late_s:13.2f}s",
            flush=True,
        )


def items(bootstrap: str, directory: Path, number: int) -> None:
    """Print what many items in one owner partition take."""
    found = many_items.measure(bootstrap, directory / "items", number)
    print(f"\n{found.items:,} items in one owner partition, the whole worker")
    print(
        f"  counted in {found.counting_s:.1f} s, {found.items / found.counting_s / 1e6:.2f} M "
        "items/s"
    )
    for title, size in (
        ("both stages, after counting", found.counted),
        ("recovered", found.recovered),
    ):
        print(
            f"  {(size - found.empty) / found.items:.0f} bytes of RSS an item, {title} "
            f"({size / 1e6:,.0f} MB)"
        )
    print(
        f"  {found.empty / 1e6:,.0f} MB with nothing; recovery without the local copy "
        f"{found.recovery_s:.2f} s, "
        f"{found.items / found.recovery_s / 1e6:.2f} M items/s",
        flush=True,
    )


def parts(bootstrap: str, directory: Path, number: int) -> None:
    """Print what one stream key takes on several owner partitions."""
    print(f"\n{number:,} items of one stream key, the whole worker")
    print(
        f"{'parts':>6} {'processes':>10} {'seconds':>8} {'M items/s':>10}  peak MB of each process"
    )
    for processes in (1, 2):
        for some in (1, 2, 4):
            place = directory / f"split-{some}-{processes}"
            found = split.measure(bootstrap, place, number, some, processes)
            peaks = ", ".join(f"{peak / 1e6:,.0f}" for peak in found.peaks)
            print(
                f"{some:6} {processes:10} {found.seconds:8.1f} {number / found.seconds / 1e6:10.2f}  {peaks}",
                flush=True,
            )
