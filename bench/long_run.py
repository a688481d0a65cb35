"""A day of a worker in minutes: what grows, measured every hour of it (`python -m bench --only day`).

The worker's clock runs `speed` times faster and reaches the true time at the end. Ticks of a second,
epochs of an hour, a user bound, new users in every event, a new stream key every three hours, and a
restart every two (half of them kills). State topics are compacted often. Exit 1 where the most memory,
disk, state topic or time of a commit of the last third of the day is more than half above that of the
second third.
"""

import random
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exports
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from bench.throughput.process import memory
from tests.broker import LASTING, OwnBroker, free_ports, own_broker
from tests.worker.growing import home
from tests.worker.harness import Site, Worker, sale, unk, until

HOUR_S = 3_600
HOURS = 24
PARTITIONS = 2
KEY_HOURS = 3
RESTART_HOURS = 2
LABELS = [f"item-{i}" for i in range(30)]
PER_HOUR = 40_000
#: Of the worker's process: its clock, from before anything is imported.
FASTER = """\
import sys, time
begin_ns, speed, real_ns = {begin_ns}, {speed}, time.time_ns
time.time_ns = lambda: begin_ns + int((real_ns() - {now_ns}) * speed)
time.time = lambda: time.time_ns() / 1e9
from workers.cli import main
main()
"""
#: Compaction as often as possible, so that a day shows what remains.
COMPACTED = {"segment.bytes": "4194304", "min.cleanable.dirty.ratio": "0.2"}
COMPACTED |= {"delete.retention.ms": "10000", "segment.ms": "30000"}
_COLUMNS = (
    "hour",
    "memory MB",
    "data_dir MB",
    "contribute-state MB",
    "release-state MB",
    "commit ms (stage 1)",
    "commit ms (stage 2)",
    "recovery s",
)
Row = tuple[float, ...]


class Day:
    """A site whose worker's clock begins a day ago."""

    def __init__(self, broker: OwnBroker, directory: Path, speed: float) -> None:
        self._broker = broker
        self.speed = speed
        self.now_ns = time.time_ns()
        self.begin_ns = self.now_ns - HOURS * HOUR_S * 10**9
        # It must not end before the true time does: brokers refuse records dated ahead.
        self.begin_ns += int(HOURS * HOUR_S / speed * 1e9)
        [self._port] = free_ports(1)
        histogram = unk(tick="1s", horizon=HOUR_S, max_items_per_user=4, epsilon=4.0)
        self.site = Site(
            broker.bootstrap,
            directory,
            [histogram],
            partitions=PARTITIONS,
            owners=1,
            worker={"metrics_port": self._port, "metrics_host": "127.0.0.1"},
            events={"user": "$key", "partitioner": "murmur2", "grace": "2m"},
            privacy={"unit": "user"},
        )
        self._compact()

    def _compact(self) -> None:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in COMPACTED.items()
        ]
        topics = [
            f"{self.site.name}.{kind}-state" for kind in ("contribute", "release")
        ]
        resources = [
            ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
            for topic in topics
        ]
        for future in self.site.admin.incremental_alter_configs(resources).values():
            future.result()

    def at_ms(self) -> int:
        """Return the worker's time."""
        passed_ns = (time.time_ns() - self.now_ns) * self.speed
        return (self.begin_ns + int(passed_ns)) // 1_000_000

    def worker(self) -> Worker:
        code = FASTER.format(
            begin_ns=self.begin_ns, now_ns=self.now_ns, speed=self.speed
        )
        return self.site.worker(runner=("-c", code))

    def metrics(self) -> dict[str, float]:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self._port}/metrics", timeout=20
        ) as page:
            lines = page.read().decode().splitlines()
        pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        own = f'worker="{self.site.name}"'
        plain = (
            (name.replace(f",{own}", "").replace(f"{{{own}}}", ""), value)
            for name, _, value in pairs
        )
        return {name: float(value) for name, value in plain}

    def topic_bytes(self, kind: str) -> int:
        folders = self._broker.data.glob(f"{self.site.name}.{kind}-state-*")
        return sum(file.stat().st_size for one in folders for file in one.glob("*.log"))


def folder_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def hours(day: Day, rng: random.Random) -> Iterator[int]:
    """Send an hour of events after another, at the worker's pace; yield the hour after each."""
    start_ms = day.at_ms()
    sent = 0
    for hour in range(1, HOURS + 1):
        keys = [f"k{i}" for i in range(2 + hour // KEY_HOURS)]
        while (at_ms := day.at_ms()) < start_ms + hour * HOUR_S * 1000:
            due = (at_ms - start_ms) * PER_HOUR // (HOUR_S * 1000)
            for _ in range(due - sent):
                user = f"u{rng.randrange(10**9)}".encode()
                event = sale([rng.choice(LABELS)], at_ms, rng.choice(keys))
                day.site.produce(home(user, PARTITIONS), [event], key=user, flush=False)
            sent = due
            time.sleep(0.05)
        yield hour


def measure(speed: float, seed: int) -> list[Row]:
    rng = random.Random(seed)
    rows = []
    properties = "log.cleaner.backoff.ms=1000\nlog.segment.delete.delay.ms=1000\n"
    with (
        own_broker(properties, java=LASTING) as broker,
        tempfile.TemporaryDirectory() as folder,
    ):
        day = Day(broker, Path(folder), speed)
        worker = day.worker()
        try:
            print(" | ".join(_COLUMNS), flush=True)
            before: dict[str, float] = {}
            for hour in hours(day, rng):
                until(partial(ready, day, worker), "the metrics answer")
                now = day.metrics()
                sizes = [
                    memory(worker.process.pid),
                    folder_bytes(Path(folder) / "data"),
                ]
                sizes += [day.topic_bytes(kind) for kind in ("contribute", "release")]
                commits = [
                    _mean_ms(now, before, stage) for stage in ("contribute", "release")
                ]
                recovery = now.get("quietcount_recovery_seconds_sum", 0.0)
                row = (float(hour), *(size / 1e6 for size in sizes), *commits, recovery)
                print(" | ".join(f"{value:.1f}" for value in row), flush=True)
                rows.append(row)
                before = now
                if hour % RESTART_HOURS == 0 and hour < HOURS:
                    if hour % (2 * RESTART_HOURS) == 0:
                        worker.kill()
                    elif (status := worker.stop()) != 0:
                        raise RuntimeError(f"exit {status}: {worker.output()[-2000:]}")
                    worker = day.worker()
                    before = {}
            if (status := worker.stop()) != 0:
                raise RuntimeError(f"exit {status}: {worker.output()[-2000:]}")
            day.site.assert_clean()
            ticks = len({one["end"] for one in day.site.snapshots()})
            print(f"{ticks:,} ticks published, audit clean", flush=True)
        finally:
            worker.kill()
    return rows


def ready(day: Day, worker: Worker) -> bool:
    if not worker.running():
        raise RuntimeError(f"the worker has ended: {worker.output()[-2000:]}")
    try:
        return "quietcount_recovery_seconds_sum" in day.metrics()
    except OSError:
        return False


def _mean_ms(now: dict[str, float], before: dict[str, float], stage: str) -> float:
    def since(of: str) -> float:
        name = f'quietcount_commit_seconds_{of}{{stage="{stage}"}}'
        return now.get(name, 0.0) - before.get(name, 0.0)

    return 1000 * since("sum") / since("count") if since("count") else 0.0


def grown(rows: Sequence[Row]) -> list[str]:
    """Return what is more than half larger in the last third of the day than in the second."""
    third = len(rows) // 3
    found = []
    for i, name in enumerate(_COLUMNS[1:], 1):
        second, last = (
            max(row[i] for row in part)
            for part in (rows[third : 2 * third], rows[2 * third :])
        )
        if last > 1.5 * second:
            found.append(f"{name}: {second:.1f}, then {last:.1f}")
    return found


def run(speed: float, seed: int = 1) -> None:
    """Print the day hour by hour; exit 1 if something grew."""
    print(f"\na day of a worker, {speed:g} times as fast", flush=True)
    if found := grown(measure(speed, seed)):
        print("grew: " + "; ".join(found))
        sys.exit(1)


if __name__ == "__main__":
    run(float(sys.argv[1]) if len(sys.argv) > 1 else 100.0)
