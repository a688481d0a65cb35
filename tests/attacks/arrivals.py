"""What the arrival of a snapshot tells of one event, through a worker and a broker.

`side_channels` measures processor time, which nobody outside the worker's machine sees. Here
the observer is a consumer of the histogram topic, beside the broker: it notes how long after the
end of its tick each snapshot can be read.
"""

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from threading import Event, Thread
from types import MappingProxyType
from typing import Any

import numpy as np
import orjson
from confluent_kafka import TopicPartition

from tests.attacks.side_channels import (
    CROWD,
    DELTA,
    EPSILON,
    HORIZON,
    SIDES,
    Seen,
    Sides,
)
from tests.broker import own_broker
from tests.forked import QUIETCOUNT
from tests.worker.harness import Bare, Site, sale, unk, until
from workers.arrays.types import Bools

ROWS = ("known item, alone", "new item, alone", "new item", "900 new items")
TICK_MS = 100
#: Settings under which a tick is delivered at a fixed time.
FIXED = MappingProxyType({"neighbours": "record", "deliver_after": "300ms"})
#: Ticks before the first that is measured.
_WARM = 50


def arrivals(
    bootstrap: str,
    directory: Path,
    sides: Sides,
    seed: int = 2,
    privacy: Mapping[str, Any] = MappingProxyType({}),
) -> Seen:
    """Run a row's ticks through a worker; the only column is the arrival, us after the tick."""
    histogram: dict[str, Any] = {
        "tick": f"{TICK_MS}ms",
        "horizon": HORIZON,
        "keys": ["k"],
    }
    histogram |= {"epsilon": EPSILON, "delta": DELTA, "max_items": sides.max_items}
    histogram["start"] = Bare(
        datetime.fromtimestamp(_now_ms() // 60_000 * 60, UTC).isoformat()
    )
    short = {"commit_interval": f"{TICK_MS}ms"}
    place = Site(
        bootstrap,
        directory,
        [unk(**histogram)],
        partitions=1,
        owners=1,
        worker=short,
        privacy=dict(privacy),
    )
    world: Bools = np.random.default_rng(seed).permutation(sides.ticks) % 2 == 0
    with place.worker(runner=QUIETCOUNT), _arrivals(place) as found:
        _produce(
            place,
            sides,
            np.concatenate([np.zeros(_WARM, dtype=np.bool_), world]),
            found,
        )
        times = np.array([found[end] for end in sorted(found)[-sides.ticks :]])
    return Seen(times[:, None], world, frozenset())


def _produce(place: Site, sides: Sides, world: Bools, found: dict[int, float]) -> None:
    """Send the events of each tick in its first half, until the last tick's snapshot is there."""
    producer = place.connection.producer(None, **{"linger.ms": 0})
    crowd = [[item] for item in CROWD] if sides.crowd else []
    place.produce(0, [sale(["first"], _now_ms(), "k")])
    until(lambda: found, "the worker publishes")
    first = _now_ms() // TICK_MS * TICK_MS + TICK_MS
    for tick, is_there in enumerate(world.tolist()):
        at = first + tick * TICK_MS
        contents = [*crowd, (sides.with_it if is_there else sides.without)(tick)]
        values = [orjson.dumps(sale(items, at, "k")) for items in contents]
        time.sleep(max(0.0, (at + TICK_MS // 10 - time.time() * 1000) / 1000))
        for value in values:
            producer.produce(place.topic, value, partition=0)
        producer.poll(0)
    last = first + len(world) * TICK_MS
    until(lambda: last in found, "the last tick is published")
    for end in [end for end in found if end > last]:
        del found[end]


@contextmanager
def _arrivals(place: Site) -> Iterator[dict[int, float]]:
    """Yield when snapshots could be read, us after the end of their ticks, by that end in ms."""
    [config] = place.settings.histograms
    consumer = place.connection.consumer(**{"fetch.wait.max.ms": 10})
    topic = place.settings.output_topic(config)
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: dict[int, float] = {}
    ended = Event()

    def read() -> None:
        while not ended.is_set():
            message = consumer.poll(0.1)
            now_us = time.time_ns() / 1_000
            if message is not None and message.error() is None:
                end_ms = message.timestamp()[1]
                found[end_ms] = now_us - end_ms * 1_000

    reader = Thread(target=read)
    reader.start()
    try:
        yield found
    finally:
        ended.set()
        reader.join()
        consumer.close()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def table() -> None:
    """Print what arrivals tell. Like all times they are not covered by the claim."""
    print(
        f"\narrival of snapshots at a consumer: medians without and with, us, and epsilon at least (claim {EPSILON:g})"
    )
    with own_broker() as broker, tempfile.TemporaryDirectory() as directory:
        for number, sides in enumerate(one for one in SIDES if one.name in ROWS):
            for name, privacy in (("", {}), (", delivered at fixed times", FIXED)):
                place = Path(directory) / f"{number}{name[:1]}"
                # Its site prints the topics that it makes.
                with redirect_stdout(StringIO()):
                    seen = arrivals(broker.bootstrap, place, sides, privacy=privacy)
                without, with_it = seen.medians(0)
                found = f"{without:10,.0f} {with_it:8,.0f} {seen.bound(0):6.2f}"
                print(f"{sides.name + name:46}{found}", flush=True)
