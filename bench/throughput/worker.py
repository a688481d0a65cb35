"""One `quietcount run` process that works off a backlog: transactions, ledger, snapshots, everything on.

    steady   from when every source partition had committed once (what was committed by then is not counted) to the
             transaction with which the last owner released the tick of the last event
    whole    from when it has taken its partitions over, to the same; as Kafka Streams' is from its first event
    start    from when its process began

All by the records the worker itself writes, and by its log. Afterwards the contributions are added up: the sum must be exact.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec
import numpy as np

from bench.throughput.events import ITEMS_AN_EVENT, Shape
from bench.throughput.process import Watch
from bench.throughput.producing import TICK_S, blocks
from tests.admin import delete_topics
from tests.forked import QUIETCOUNT
from tests.worker.harness import Site, Worker, unk, until
from workers.agents import contribute
from workers.agents.progress import PROGRESS
from workers.arrays.number_blocks import unpack
from workers.kafka.reading import end_of, read_partition
from workers.pipeline.contributions import decode
from workers.pipeline.merge import ReleaseProgress

PATIENCE_S = 1_800.0
#: Pairs of stream key and item of one user in an epoch, where users are protected.
PAIRS_A_USER = 10
#: Of the state topic only its end is read: the progress record comes last in each transaction.
_NEWEST = 30
_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Run:
    """What a run took.

    Attributes:
        events: all of them.
        counted: those that were committed when each source partition had committed once.
        start_ms, ready_ms, first_ms, end_ms: when the process began, had taken its partitions over, had committed each of
            them once, and had released the last tick.
        steady_cpu_s, whole_cpu_s: time of the processor from `first_ms`, and from the beginning of the process.
        peak: bytes of memory at most.
        commits: of stage 1.
    """

    events: int
    counted: int
    start_ms: float
    ready_ms: float
    first_ms: float
    end_ms: float
    steady_cpu_s: float
    whole_cpu_s: float
    peak: int
    commits: int

    @property
    def steady(self) -> float:
        """Events a second after the first commits."""
        return (self.events - self.counted) / (self.end_ms - self.first_ms) * 1e3

    @property
    def whole(self) -> float:
        """Events a second from when the partitions were taken over."""
        return self.events / (self.end_ms - self.ready_ms) * 1e3

    @property
    def since_start(self) -> float:
        """Events a second from the beginning of the process."""
        return self.events / (self.end_ms - self.start_ms) * 1e3

    @property
    def cpu_us(self) -> float:
        """Microseconds of the processor an event, after the first commits."""
        return self.steady_cpu_s / max(1, self.events - self.counted) * 1e6


def site(
    bootstrap: str,
    directory: Path,
    shape: Shape,
    partitions: int,
    owners: int,
    **changes: object,
) -> Site:
    """Make a worker's site with the settings that are measured; `changes` are to its histogram."""
    histogram = unk(
        "products", tick=f"{TICK_S}s", max_items=ITEMS_AN_EVENT, epsilon=1.0, delta=1e-9
    )
    users = {"max_items_per_user": PAIRS_A_USER} if shape.users else {}
    return Site(
        bootstrap,
        directory,
        [histogram | users | changes],
        partitions=partitions,
        owners=owners,
        worker={"commit_interval": "5s", "log_format": "json"},
        events={"user": "user"} if shape.users else {},
        privacy={"unit": "user" if shape.users else "event"},
    )


def run(place: Site, number: int, last_ms: int, profile: Path | None = None) -> Run:
    """Start a worker on the backlog and wait until its last tick is published.

    Args:
        place: where the events are.
        number: of events.
        last_ms: time of the last one.
        profile: where to write which code its threads ran (`sampled`), if anywhere.

    Raises:
        RuntimeError: the worker ended.
    """
    start_ms = time.time() * 1000
    runner = (
        QUIETCOUNT
        if profile is None
        else ("-m", "bench.throughput.sampled", str(profile))
    )
    with place.worker(runner=runner) as worker, Watch(worker.process.pid) as watch:
        end_ms = wait_released(place, worker, last_ms)
        worker.stop()
    first_ms, counted, commits = _first_commits(place)
    steady = watch.used_between(first_ms, end_ms)
    whole = watch.used_between(0.0, end_ms)
    return Run(
        number,
        counted,
        start_ms,
        ready_ms(worker),
        first_ms,
        end_ms,
        steady,
        whole,
        watch.peak,
        commits,
    )


def wait_released(place: Site, worker: Worker, last_ms: int) -> int:
    """Wait until every owner has released the tick that holds `last_ms`; return when the last one did, ms.

    Raises:
        RuntimeError: the worker ended.
    """
    settings = place.settings
    left = set(range(settings.worker.owner_partitions or place.partitions))
    ends: list[int] = []

    def done() -> bool:
        if not worker.running():
            raise RuntimeError(f"the worker ended:\n{worker.output()[-5000:]}")
        # What asks the broker takes from what is measured; when it was is in the records.
        time.sleep(_LOOK_S)
        for owner in sorted(left):
            if found := _released(place, owner, last_ms):
                ends.append(found)
                left.remove(owner)
        return not left

    until(done, "the backlog is published", PATIENCE_S)
    return max(ends)


def _released(place: Site, owner: int, last_ms: int) -> int | None:
    """Return when an owner released the tick that holds `last_ms`, if it has."""
    configs = place.settings.histograms
    connection = place.connection
    topic = place.settings.release_state_topic
    since = end_of(connection, topic, owner) - _NEWEST
    for message in read_partition(connection, topic, owner, since=since):
        if message.key() == PROGRESS:
            progress = msgspec.json.decode(message.value() or b"", type=ReleaseProgress)
            reached = [
                (config.lane, progress.histograms[config.name].next)
                for config in configs
            ]
            if all(
                t is not None and lane.start_ms + (t - 1) * lane.tick_ms > last_ms
                for lane, t in reached
            ):
                return message.timestamp()[1]
    return None


def _first_commits(place: Site) -> tuple[int, int, int]:
    """Return when every partition had committed once, how many events those held, and how many commits there were."""
    commits: dict[int, list[tuple[int, int]]] = {}
    for message in place.read(place.settings.contribute_state_topic):
        if message.key() == PROGRESS:
            progress = msgspec.json.decode(
                message.value() or b"", type=contribute.ContributeProgress
            )
            commits.setdefault(message.partition() or 0, []).append(
                (message.timestamp()[1], progress.offset)
            )
    first_ms = max(min(of_one)[0] for of_one in commits.values())
    counted = sum(
        max(offset for at, offset in of_one if at <= first_ms)
        for of_one in commits.values()
    )
    return first_ms, counted, sum(map(len, commits.values()))


def log_lines(worker: Worker, event: str) -> Iterator[dict[str, str]]:
    """Yield the worker's log lines about an event."""
    for line in worker.output().splitlines():
        if line.startswith("{") and (entry := json.loads(line)).get("event") == event:
            yield entry


def ready_ms(worker: Worker) -> float:
    """Return when a worker had first taken partitions over."""
    return (
        datetime.fromisoformat(next(log_lines(worker, "acquired"))["time"]).timestamp()
        * 1000
    )


def expected(shape: Shape, partitions: int, number: int) -> int:
    """Return what the contributions of `fill`'s events must add up to."""
    if not shape.users:
        return ITEMS_AN_EVENT * number
    pairs = []
    for drawn, _ in blocks(shape, partitions, number, 0, 1):
        of_event = drawn.users * shape.keys + drawn.keys
        pairs.append((of_event[:, None] * shape.domain + drawn.items).ravel())
    users = np.unique(np.concatenate(pairs)) // (shape.keys * shape.domain)
    return int(np.minimum(np.bincount(users), PAIRS_A_USER).sum())


def contributed(place: Site) -> int:
    """Return the sum of all contributions."""
    total = 0
    for message in place.read(place.settings.contributions_topic):
        for section in decode(message.value() or b"").sections:
            total += int(unpack(section.width, section.counts).sum(dtype="int64"))
    return total


def forget(place: Site) -> None:
    """Delete a site's topics, so that the broker has no more to keep than what is measured."""
    delete_topics(place.admin, place.name)
