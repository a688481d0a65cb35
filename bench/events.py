"""The events of the benchmarks: two items each, ten stream keys, Zipf-distributed items, in order of time."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import orjson
from confluent_kafka import Producer

KEYS = 10
ITEMS_AN_EVENT = 2
TICK_S = 10


def events(number: int, domain: int, end_ms: int, events_a_tick: int) -> Iterator[bytes]:
    """`number` events whose last one lies at `end_ms`; two different items each, out of `domain`."""
    rng = np.random.default_rng(1)
    weights = 1 / np.arange(1, domain + 1)
    cumulative = np.cumsum(weights / weights.sum())
    step_ms = TICK_S * 1000 / events_a_tick
    for first in range(0, number, 100_000):
        rows = min(100_000, number - first)
        items = np.minimum(np.searchsorted(cumulative, rng.random((rows, ITEMS_AN_EVENT))), domain - 1)
        items[:, 1] += (items[:, 0] == items[:, 1]) * (1 - domain * (items[:, 1] == domain - 1))
        keys = rng.integers(0, KEYS, size=rows).tolist()
        for i, (key, (one, other)) in enumerate(zip(keys, items.tolist(), strict=True)):
            at = end_ms - int((number - 1 - first - i) * step_ms)
            yield orjson.dumps({"key": f"shop-{key}", "items": [f"product-{one}", f"product-{other}"], "ts": at})


def produce(bootstrap: str, topic: str, partitions: int, number: int, domain: int, events_a_tick: int) -> int:
    """Fills the topic, an event to each partition in turn; returns the time of the last event."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 50,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    end_ms = time.time_ns() // 1_000_000
    for i, value in enumerate(events(number, domain, end_ms, events_a_tick)):
        while True:
            try:
                producer.produce(topic, value, partition=i % partitions)
                break
            except BufferError:
                producer.poll(0.1)
        if i % 1_000 == 0:
            producer.poll(0)
    producer.flush(120)
    return end_ms
