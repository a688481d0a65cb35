"""How long after its tick a snapshot can be read, while events come at a steady rate.

From the end of the tick (there is no grace) to the moment at which a consumer with read_committed has its last page; the clock is
the same. Ticks are a second wide; the first ticks are left out, in which everything is compiled and loaded.
"""

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from confluent_kafka import Consumer, TopicPartition

from bench.throughput.events import KEYS, Shape
from bench.throughput.process import Watch
from bench.throughput.worker import forget, log_lines, site
from tests import ROOT
from tests.forked import QUIETCOUNT
from tests.worker.harness import until

WARM_S = 8
PATIENCE_S = 30


@dataclass(frozen=True, slots=True)
class Latency:
    """What was found at one rate.

    Attributes:
        rate: events a second.
        snapshots: how many were measured.
        p50_s, p99_s, worst_s: from the end of the tick to its being readable.
        cpu_us: of the worker, for an event.
        late_s: how late the producer was at most.
    """

    rate: int
    snapshots: int
    p50_s: float
    p99_s: float
    worst_s: float
    cpu_us: float
    late_s: float


def measure(
    bootstrap: str,
    directory: Path,
    rate: int,
    seconds: int,
    partitions: int,
    owners: int,
    domain: int,
) -> Latency:
    """Run a worker while a process sends `rate` events a second for `seconds` after the warm-up."""
    place = site(
        bootstrap, directory, Shape(domain=domain), partitions, owners, tick="1s"
    )
    topic = place.settings.output_topic(place.settings.histograms[0])
    consumer = place.connection.consumer(**{"fetch.wait.max.ms": 10})
    consumer.assign(
        [
            TopicPartition(topic, i, 0)
            for i in place.admin.list_topics(topic, timeout=60).topics[topic].partitions
        ]
    )
    sending = [
        bootstrap,
        place.topic,
        str(partitions),
        str(rate),
        str(WARM_S + seconds),
        str(domain),
    ]
    with place.worker(runner=QUIETCOUNT) as worker, Watch(worker.process.pid) as watch:
        until(
            lambda: any(log_lines(worker, "acquired")), "the worker has its partitions"
        )
        begun_ms = time.time() * 1000
        command = [sys.executable, "-m", "bench.throughput.steady", *sending]
        with subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, text=True
        ) as producer:
            delays = _delays(consumer, producer)
            said = producer.communicate()[0]
        if producer.returncode != 0 or not worker.running():
            raise RuntimeError(
                f"the producer or the worker failed:\n{worker.output()[-3000:]}"
            )
        used = watch.used_between(begun_ms + WARM_S * 1000, time.time() * 1000)
        worker.stop()
    consumer.close()
    forget(place)
    first = min(end_ms for _, end_ms in delays) + WARM_S * 1000
    found = (
        np.array([delay for (_, end_ms), delay in delays.items() if end_ms >= first])
        / 1000
    )
    p50, p99 = np.quantile(found, [0.5, 0.99]).tolist()
    late_s = float(said.partition("late=")[2]) / 1000
    return Latency(
        rate,
        len(found),
        p50,
        p99,
        float(found.max()),
        used / (rate * seconds) * 1e6,
        late_s,
    )


def _delays(
    consumer: Consumer, producer: subprocess.Popen[str]
) -> dict[tuple[bytes, int], float]:
    """Return how many ms after the end of its tick the last page of each snapshot was read, by stream key and end.

    Raises:
        RuntimeError: half a minute after the last event its snapshots are not there.
    """
    delays: dict[tuple[bytes, int], float] = {}
    reached: dict[bytes, int] = {}
    ended_ms = 0.0
    while not ended_ms or len(reached) < KEYS or min(reached.values()) < ended_ms:
        message = consumer.poll(0.1)
        now_ms = time.time() * 1000
        if message is not None and message.error() is None:
            key = message.key() or b""
            end_ms = message.timestamp()[1]
            reached[key] = end_ms
            delays[key, end_ms] = now_ms - end_ms
        if not ended_ms and producer.poll() is not None:
            ended_ms = now_ms
        if ended_ms and now_ms > ended_ms + PATIENCE_S * 1000:
            raise RuntimeError(
                f"{PATIENCE_S} s after the last event its snapshots are not there: the worker is "
                "too slow"
            )
    return delays
