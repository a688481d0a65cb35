"""A tick of labels that nobody saw before: what it costs exactly, and in sketches of stage 1.

Both stages in one process a way, without Kafka: bytes sent and stored, memory, time. The events are
made up: each has a frequent label and new ones.
"""

import json
import os
import resource
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from typing import NamedTuple

from workers.events.reading import EventReader, SourceReader
from workers.kafka.records import Records
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.noise.keyed import NoiseKey
from workers.mechanisms.registry import MECHANISMS, build
from workers.pipeline.histogram import Histogram
from workers.pipeline.intake import Intake
from workers.pipeline.merge import Merge
from workers.settings.settings import EventsSettings, shape_of

NEW = 19  # in an event, beside the frequent one
BATCH = 5_000
BATCHES_A_COMMIT = 4
SIZE = 1_000
TICK_MS = 3_600_000
_KEY = NoiseKey(bytes(range(32)))
_FIELDS = EventsSettings(topic="t", key="key", items="items", timestamp="ts")
_MB = 1e6
WAYS = ("unk_base", "misra_gries merge", "misra_gries pamg")


class Cost(NamedTuple):
    """What a tick cost: bytes, seconds, and the frequent label's noisy count."""

    sent: int
    stored: int
    memory: int
    seconds: float
    often: int | None


def config_of(way: str) -> HistogramConfig:
    """Return the settings of one of `WAYS`."""
    mechanism, _, release = way.partition(" ")
    more: dict[str, object] = {}
    if release:
        more = {"size": SIZE, "release": release}
    values: dict[str, object] = {
        "name": "h",
        "tick_ms": TICK_MS,
        "horizon": 1,
        "max_items": 1 + NEW,
        "epsilon": 1.0,
        "delta": 1e-9,
        "keys": "public",
    }
    kind: Callable[..., HistogramConfig] = MECHANISMS[mechanism]
    return kind(**values, **more)


def batches(labels: int) -> Iterator[list[bytes]]:
    """Yield the values of events with this many new labels in all, then one of the next tick."""
    events = labels // NEW
    for first in range(0, events, BATCH):
        yield [
            json.dumps(
                {
                    "key": "k",
                    "items": ["often", *(f"label-{i * NEW + j}" for j in range(NEW))],
                    "ts": i * TICK_MS // events,
                }
            ).encode()
            for i in range(first, min(first + BATCH, events))
        ]
    yield [b'{"key": "k", "items": ["often"], "ts": %d}' % TICK_MS]


def measure(way: str, labels: int) -> Cost:
    """Count a tick of `labels` new labels in this process."""
    config = config_of(way)
    histogram = Histogram(
        config,
        build(config),
        worker="bench",
        topic="t",
        stream="bench",
        events={},
        key=_KEY,
        owner=(0, 1),
    )
    reader = SourceReader(
        EventReader(shape_of(_FIELDS, None)), {"": None}, earliest_ms=0
    )
    intake = Intake(config.lanes, 0, _KEY)
    merge = Merge([histogram], key=_KEY, sources=1, owners=1)
    before = _memory()
    begun = time.process_time()
    sent = stored = offset = 0
    sequences = [0]
    shown: dict[str, int] = {}
    for number, values in enumerate(batches(labels)):
        for reading in reader.read(Records.of(values)):
            intake.add(reading.events)
        if number % BATCHES_A_COMMIT and not intake.has_closed_tick():
            continue
        for _, message in intake.take_messages(
            source=0, sequences=sequences, offset=offset
        ):
            value = message.encoded()
            sent += len(value)
            merge.receive(value, offset)
            offset += 1
        stored += sum(len(value or b"") for _, value in intake.sketch_changes())
        merge.reached(offset)
        for snapshot in merge.release().snapshots:
            shown |= dict(json.loads(snapshot.value)["items"])
        stored += sum(len(value or b"") for _, value in merge.changes())
    seconds = time.process_time() - begun
    return Cost(sent, stored, _memory() - before, seconds, shown.get("often"))


def table(labels: int) -> None:
    """Measure every way in a process of its own, and print what each costs."""
    print(
        f"\none tick of {labels:,} new labels in {labels // NEW:,} events, size = {SIZE:,}:"
        " MB sent and stored, MB of memory, seconds, the frequent label's count"
    )
    context = get_context("forkserver" if os.name == "posix" else "spawn")
    for way in WAYS:
        with context.Pool(1) as pool:
            pool.apply(measure, (way, NEW * BATCH))  # compiles
        with context.Pool(1) as pool:
            cost = pool.apply(measure, (way, labels))
        print(
            f"  {way:18} {cost.sent / _MB:9.3f} {cost.stored / _MB:9.3f} {cost.memory / _MB:8.0f}"
            f" {cost.seconds:7.1f} {cost.often}",
            flush=True,
        )


def _memory() -> int:
    """Return the most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
