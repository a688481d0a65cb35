"""Millions of items in one owner partition: memory an item, and recovery without the local copy, of the whole worker.

Each item occurs once, two an event, in one stream key. The first process has all items in both stages: the vocabulary of
stage 1 and the ledger of stage 2. Then its data directory is deleted; the second process has what it recovered, and no more.
"""

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from bench.throughput.events import ITEMS_AN_EVENT, Shape
from bench.throughput.process import memory
from bench.throughput.producing import fill
from bench.throughput.worker import (
    contributed,
    forget,
    log_lines,
    ready_ms,
    site,
    wait_released,
)
from tests.forked import QUIETCOUNT
from tests.worker.harness import until

EVENTS_A_TICK = 250_000


@dataclass(frozen=True, slots=True)
class ManyItems:
    """What was found.

    Attributes:
        items: of one owner partition.
        counting_s: from when the partitions were taken over to the last release.
        empty, counted, recovered: resident bytes of a worker with nothing, after counting, and after recovery.
        recovery_s: to take over without the local copy, as the worker logs it.
    """

    items: int
    counting_s: float
    empty: int
    counted: int
    recovered: int
    recovery_s: float


def measure(bootstrap: str, directory: Path, items: int) -> ManyItems:
    """Count `items` items, and recover them."""
    shape = Shape(domain=items, in_turn=True, keys=1)
    number = items // ITEMS_AN_EVENT
    place = site(bootstrap, directory, shape, 1, 1)
    with place.worker(runner=QUIETCOUNT) as worker:
        until(
            lambda: any(log_lines(worker, "acquired")), "the worker has its partitions"
        )
        time.sleep(2)
        empty = memory(worker.process.pid)
        worker.stop()
    last_ms = fill(bootstrap, place.topic, 1, number, shape, EVENTS_A_TICK)
    with place.worker(runner=QUIETCOUNT) as worker:
        end_ms = wait_released(place, worker, last_ms)
        counting_s = (end_ms - ready_ms(worker)) / 1000
        counted = memory(worker.process.pid)
        worker.stop()
    if (found := contributed(place)) != items:
        raise RuntimeError(
            f"{found:,} contributions to {items:,} items that occur once"
        )
    shutil.rmtree(directory / "data")
    with place.worker(runner=QUIETCOUNT) as worker:
        until(lambda: any(log_lines(worker, "acquired")), "the worker has recovered")
        recovered = memory(worker.process.pid)
        recovery_s = float(next(log_lines(worker, "acquired"))["seconds"])
        worker.stop()
    forget(place)
    return ManyItems(items, counting_s, empty, counted, recovered, recovery_s)
