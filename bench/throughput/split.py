"""One stream key with millions of items on 1, 2 and 4 owner partitions, in 1 and 2 processes: time and memory.

Each item occurs once, two an event; the events topic has 4 partitions, the contributions topic too. Processes start
together on the backlog; the time is from when the first has partitions to the last release of the last part.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.throughput.events import ITEMS_AN_EVENT, Shape
from bench.throughput.many_items import EVENTS_A_TICK
from bench.throughput.process import memory
from bench.throughput.producing import fill
from bench.throughput.worker import contributed, forget, ready_ms, site, wait_released
from tests.forked import QUIETCOUNT

PARTITIONS = 4


@dataclass(frozen=True, slots=True)
class Split:
    """What was found; `peaks` are the most bytes of each process."""

    seconds: float
    peaks: tuple[int, ...]


def measure(
    bootstrap: str, directory: Path, items: int, parts: int, processes: int
) -> Split:
    """Count `items` items of one stream key in `parts` parts."""
    shape = Shape(domain=items, in_turn=True, keys=1)
    place = site(bootstrap, directory, shape, PARTITIONS, PARTITIONS, split=parts)
    number = items // ITEMS_AN_EVENT
    last_ms = fill(bootstrap, place.topic, PARTITIONS, number, shape, EVENTS_A_TICK)
    with ExitStack() as running:
        workers = [
            running.enter_context(place.worker(f"data-{i}", runner=QUIETCOUNT))
            for i in range(processes)
        ]
        end_ms = wait_released(place, workers[0], last_ms)
        peaks = tuple(memory(worker.process.pid, "VmHWM") for worker in workers)
        for worker in workers:
            worker.stop()
    if (found := contributed(place)) != items:
        raise RuntimeError(
            f"{found:,} contributions to {items:,} items that occur once"
        )
    forget(place)
    return Split((end_ms - min(map(ready_ms, workers))) / 1000, peaks)
