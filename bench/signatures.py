"""What signing adds to a tick of an owner partition, in one process without Kafka.

Four source partitions, ticks one after the other: the processor time of digests, commitments, signature and of
encoding what is stored, from the snapshots to the bytes that Kafka takes.
"""

import statistics
import time
from collections.abc import Iterator, Sequence

from tests.pipeline.pipeline import KEY, SIGNATURES, Event, Partition, contribute, unk
from workers.pipeline.contributions import Section
from workers.pipeline.histogram import Histogram
from workers.pipeline.signing import Signing
from workers.pipeline.signing_key import SigningKey
from workers.pipeline.snapshots import Snapshot

TICKS = 500
SOURCES = 4
MOST_US = 100.0
# Stream keys, and items of each.
SIZES = ((1, 20), (10, 20), (1, 500), (100, 20))


class Timed(Signing):
    """Signs, and keeps how long each tick took, in s."""

    seconds: list[float]

    def sign(
        self,
        histogram: Histogram,
        tick: int,
        snapshots: Sequence[Snapshot],
        sections: Sequence[Section],
    ) -> Iterator[Snapshot]:
        begun = time.thread_time()
        records = list(super().sign(histogram, tick, snapshots, sections))
        self.changes()
        self.seconds.append(time.thread_time() - begun)
        self._changed.add(histogram.name)
        yield from records


def measured(keys: int, items: int) -> tuple[float, float]:
    """Return the time of signing a tick, in us, and the bytes of its snapshots."""
    config = unk(horizon=2 * TICKS, epsilon=50.0, max_items=items)
    events: list[Event] = [
        (f"key-{key}", [f"item-{i}" for i in range(items)], 10 * tick + source)
        for tick in range(TICKS)
        for source in range(SOURCES)
        for key in range(keys)
    ]
    partitions = [
        [event for event in events if event[2] % 10 == source]
        for source in range(SOURCES)
    ]
    [messages] = contribute(partitions, [config], owners=1, step=keys, further_ms=100)
    owner = Partition([config], SOURCES)
    signing = Timed(SIGNATURES, "w", 0, KEY, SigningKey(bytes(32)))
    signing.seconds = []
    owner.merge._signing = signing
    shown = [one for one in owner.run(messages) if one.topic != SIGNATURES]
    size = sum(len(one.value) for one in shown) / len(signing.seconds)
    # The best hundred ticks in a row: others slow this machine down.
    runs = [
        signing.seconds[at : at + 100] for at in range(0, len(signing.seconds), 100)
    ]
    return min(map(statistics.median, runs)) * 1e6, size


def table() -> bool:
    """Print the table; return whether ten stream keys take no longer than they may."""
    print("stream keys  items of each  bytes a tick  us a tick and owner")
    found = {}
    for keys, items in SIZES:
        found[keys, items], size = measured(keys, items)
        print(f"{keys:11}  {items:13,}  {size:12,.0f}  {found[keys, items]:19.1f}")
    return found[10, 20] <= MOST_US
