"""Made-up snapshots for the dashboard's tests, and a topic to put them on."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import orjson
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # a re-export

from tests.admin import admin_of
from workers.dashboard.config import DashboardSettings, HistogramTopic
from workers.dashboard.snapshots import Pages, SeenSnapshot
from workers.kafka.clients import Connection, EmbeddedCluster

TICK_MS = 10_000
START_MS = 1_700_000_000_000
PATIENCE_S = 300.0
#: Of `recent`: so wide that the newest tick is still called new where all of it takes minutes.
RECENT_MS = 60_000
#: As the value of a field: a snapshot without it.
GONE: Any = ...


def in_order(connection: Connection) -> Producer:
    """Return a producer whose records stay in order, and single, where a new topic's leader makes it send them again."""
    return connection.producer(None, **{"enable.idempotence": True})


def message(
    tick: int = 1, items: Iterable[tuple[str, int]] = (("tea", 5),), **changes: Any
) -> dict[str, Any]:
    """A snapshot as the worker publishes it; `changes` replace fields, and those that are GONE vanish."""
    start = START_MS + (tick - 1) * TICK_MS
    document = {
        "histogram": "products",
        "key": "s1",
        "epoch": 1,
        "tick": tick,
        "start": start,
        "end": start + TICK_MS,
        "items": items if items is GONE else [list(item) for item in items],
        "sd": 17.25,
        "threshold": 121.0,
        "guarantee": {"unit": "event", "rho": 0.021, "epsilon": 1.0, "delta": 1e-9},
        "mechanism": "unk_base",
        "id": "0123456789abcdef" * 2,
        "page": 1,
        "pages": 1,
    } | changes
    return {name: value for name, value in document.items() if value is not GONE}


def snapshot(
    tick: int = 1, items: Iterable[tuple[str, int]] = (("tea", 5),), **changes: Any
) -> SeenSnapshot:
    """The same, as it is kept."""
    document = message(tick, items, **changes)
    found = Pages().receive(document["histogram"], orjson.dumps(document))
    assert found is not None
    return found


def answer(tick: int, **fields: Any) -> dict[str, Any]:
    """A snapshot that answers a query."""
    return message(
        tick, GONE, **{"sd": None, "threshold": None, "mechanism": "two_level", **fields}
    )


class Moment:
    """What `recent` counts from: the moment at which the last cluster was made, so that the ticks of one test meet."""

    ms = 0


def new_topic(name: str, partitions: int) -> NewTopic:
    """A topic that keeps records of any year, as histogram topics do."""
    return NewTopic(name, partitions, 1, config={"retention.ms": "-1"})


class Topics:
    """Histogram topics on a cluster, filled by a plain producer."""

    def __init__(self, connection: Connection, prefix: str = "orders") -> None:
        self.connection, self.prefix = connection, prefix
        self.producer = in_order(connection)
        self.sent: list[dict[str, Any]] = []

    def send(self, *documents: dict[str, Any]) -> None:
        """Publishes snapshots."""
        for document in documents:
            self.sent.append(document)
            while True:
                try:
                    self.producer.produce(
                        f"{self.prefix}.{document['histogram']}",
                        orjson.dumps(document),
                        document["key"].encode(),
                        timestamp=document["end"],
                    )
                    break
                except BufferError:
                    self.producer.poll(0.1)
        assert self.producer.flush(120) == 0

    def remove(self, name: str, leaving: int) -> None:
        """Removes the oldest records of each partition of a topic on a real broker, as its retention would."""
        topic, admin, ends = (
            f"{self.prefix}.{name}",
            admin_of(self.connection),
            self.connection.consumer(),
        )
        try:
            for part in ends.list_topics(topic, timeout=60).topics[topic].partitions:
                low, high = ends.get_watermark_offsets(TopicPartition(topic, part), timeout=60)
                if high > low:
                    place = TopicPartition(topic, part, high - leaving)
                    admin.delete_records([place])[place].result()
        finally:
            ends.close()

    def settings(self, *names: str, horizon: int | None = 1_024) -> DashboardSettings:
        """The settings of a dashboard over them."""
        shown = tuple(
            HistogramTopic(name=name, topic=f"{self.prefix}.{name}", horizon=horizon)
            for name in names
        )
        return DashboardSettings(worker=self.prefix, connection=self.connection, histograms=shown)

    def toml(self, *names: str) -> str:
        """The least settings file of a dashboard over them."""
        head = f'[worker]\nname = "{self.prefix}"\n[kafka]\nbootstrap = {json.dumps(self.connection.bootstrap)}\n'
        client = "".join(
            f"{json.dumps(name)} = {json.dumps(value)}\n"
            for name, value in self.connection.client.items()
        )
        return (
            head
            + f"[kafka.client]\n{client}"
            + "".join(f'[[histogram]]\nname = "{name}"\n' for name in names)
        )


@contextmanager
def embedded(*names: str) -> Iterator[Topics]:
    """Topics on an embedded cluster, each of which exists."""
    with EmbeddedCluster() as cluster:
        Moment.ms = time.time_ns() // 1_000_000
        topics = Topics(cluster.connection)
        with cluster.connection.admin() as admin:
            for name in names:
                admin.list_topics(f"orders.{name}", timeout=60)
        yield topics


@contextmanager
def on_a_broker(bootstrap: str, partitions: int) -> Iterator[Topics]:
    """A topic `products` of its own on a real broker, gone afterwards."""
    topics = Topics(Connection(bootstrap), f"dash{uuid.uuid4().hex[:10]}")
    name, admin = f"{topics.prefix}.products", admin_of(topics.connection)
    admin.create_topics([new_topic(name, partitions)])[name].result()
    yield topics
    admin.delete_topics([name])[name].result()


def recent(
    tick: int, items: Iterable[tuple[str, int]], ticks: int = 1, **changes: Any
) -> dict[str, Any]:
    """A snapshot whose tick of a minute ended within the last one, if it is the last of `ticks`."""
    now = Moment.ms // RECENT_MS * RECENT_MS
    end = now - (ticks - tick) * RECENT_MS
    return message(tick, items, start=end - RECENT_MS, end=end, **changes)
