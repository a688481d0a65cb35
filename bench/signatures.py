"""What signing adds to a tick of an owner partition, in one process without Kafka.

Four source partitions, ticks one after the other: the processor time of digests, commitments, signature and of
encoding what is stored, from the snapshots to the bytes that Kafka takes, and beside it that of all
an owner does for the tick. Digests read all that was counted and published, so the time grows with it.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.pipeline.pipeline import KEY, SIGNATURES, Event, Partition, contribute, unk
from workers.pipeline.contributions import Section
from workers.pipeline.histogram import Histogram
from workers.pipeline.signing import Signing
from workers.pipeline.signing_key import SigningKey
from workers.pipeline.snapshots import Snapshot

TICKS = 500
SOURCES = 4
MOST_US = 100.0
# With up to so many stream keys.
KEYS = 10
# Stream keys, and items of each.
SIZES = ((1, 20), (10, 20), (50, 20), (100, 20), (1, 500))


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


@dataclass(frozen=True)
class Measured:
    """Of a tick: the bytes that are hashed, and the time of signing and of everything, in us."""

    counted_bytes: float
    published_bytes: float
    signing_us: float
    all_us: float


def measured(keys: int, items: int) -> Measured:
    """Return what signing takes of ticks with so many stream keys, and items of each."""
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
    begun = time.thread_time()
    published = owner.run(messages)
    all_seconds = time.thread_time() - begun
    shown = [one for one in published if one.topic != SIGNATURES]
    ticks = len(signing.seconds)
    # The best hundred ticks in a row: others slow this machine down.
    runs = [signing.seconds[at : at + 100] for at in range(0, ticks, 100)]
    return Measured(
        counted_bytes=sum(map(len, messages)) / ticks,
        published_bytes=sum(len(one.value) for one in shown) / ticks,
        signing_us=min(map(statistics.median, runs)) * 1e6,
        all_us=all_seconds / ticks * 1e6,
    )


def table() -> bool:
    """Print the table; return whether up to ten stream keys take no longer than they may."""
    print("stream keys  items of each  counted B  published B  signing us  all us")
    # Compiles the kernels.
    measured(1, 1)
    most = 0.0
    for keys, items in SIZES:
        of_tick = measured(keys, items)
        print(
            f"{keys:11}  {items:13}  {of_tick.counted_bytes:9,.0f}  {of_tick.published_bytes:11,.0f}  "
            f"{of_tick.signing_us:10.1f}  {of_tick.all_us:6,.0f}"
        )
        if keys <= KEYS:
            most = max(most, of_tick.signing_us)
    return most <= MOST_US
