"""Made-up snapshots for the dashboard's tests, and a topic to put them on."""

import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import orjson
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # a re-export

from tests.admin import admin_of
from tests.worker.harness import until
from workers.client.config import HistogramTopic, ReaderSettings
from workers.client.messages import Pages, SeenSnapshot
from workers.dashboard.server import Background, Dashboard
from workers.dashboard.store.store import Store
from workers.kafka.clients import Connection, EmbeddedCluster
from workers.mechanisms.config.buckets import Buckets
from workers.mechanisms.config.durations import parse_duration
from workers.pipeline.snapshots import Numeric
from workers.privacy.public import (
    PublicBudget,
    PublicCeiling,
    PublicGeneration,
    PublicTotal,
)

Document = dict[str, Any]

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


def sliding(
    length: str, end: int, items: Iterable[tuple[str, int]], **changes: Any
) -> dict[str, Any]:
    """A snapshot of a window of `products`, which has no epochs; its ticks count from 1970."""
    window_ms = parse_duration(length)
    tick_ms = changes.pop("tick_ms", TICK_MS)
    fields = {
        "histogram": f"products.{length}",
        "start": end - tick_ms,
        "end": end,
        "window": {"ms": window_ms, "from": end - window_ms},
        "id": f"{window_ms:032x}",
    }
    return message(end // tick_ms, items, **(fields | changes))


def snapshot(
    tick: int = 1, items: Iterable[tuple[str, int]] = (("tea", 5),), **changes: Any
) -> SeenSnapshot:
    return seen(message(tick, items, **changes))


def seen(document: Document) -> SeenSnapshot:
    found = Pages().receive(document["histogram"], orjson.dumps(document))
    assert found is not None
    return found


def answer(tick: int, **fields: Any) -> dict[str, Any]:
    usual = {"sd": None, "threshold": None, "mechanism": "two_level"}
    return message(tick, GONE, **(usual | fields))


def reader_settings(
    *names: str,
    connection: Connection | None = None,
    prefix: str = "orders",
    horizon: int | None = 1_024,
) -> ReaderSettings:
    """Settings of a dashboard, by default of one whose Kafka is away."""
    return ReaderSettings(
        worker=prefix,
        connection=connection or Connection("127.0.0.1:1", {"log_level": "0"}),
        histograms=tuple(_topic(name, f"{prefix}.{name}", horizon) for name in names),
    )


def _topic(name: str, topic: str, horizon: int | None) -> HistogramTopic:
    """A histogram, or a window of one without epochs: `products.1h`."""
    window_of, _, window = name.partition(".")
    if not window:
        return HistogramTopic(name, topic, horizon)
    window_ms = parse_duration(window)
    return HistogramTopic(name, topic, window_of=window_of, window_ms=window_ms)


def unopened() -> Store:
    """A history that is never opened: only memory answers."""
    return Store(reader_settings())


def reads(running: Background) -> None:
    """Wait until the history, and so memory too, has everything."""
    store = running.dashboard.store
    until(lambda: store.state == {"state": "live"}, "all is read", PATIENCE_S)


def public_budget(worker: str = "orders", left_days: int | None = 41) -> PublicBudget:
    """What a worker tells readers under a ceiling; `left_days` None: it may run without end."""
    day_ms = 86_400_000
    newest = START_MS // day_ms * day_ms
    until = None if left_days is None else newest + left_days * day_ms
    generations = tuple(
        PublicGeneration(name, 1, "running", 1.0, 1e-9, 4, endless=False)
        for name in ("products", "regions")
    )
    return PublicBudget(
        worker=worker,
        unit="user",
        neighbours="content",
        fingerprint="e0d3" * 16,
        newest=newest,
        histograms=generations,
        total=PublicTotal(2.2, 8e-9),
        ceiling=PublicCeiling(6.0, 1e-6, "90d", 2.1, until),
    )


class Moment:
    """What `recent` counts from: the moment at which the last cluster was made, so that the ticks of one test meet."""

    ms = 0


Show = Callable[..., tuple["Topics", str]]


def new_topic(name: str, partitions: int) -> NewTopic:
    """A topic that keeps records of any year, as histogram topics do."""
    return NewTopic(name, partitions, 1, config={"retention.ms": "-1"})


class Topics:
    """Histogram topics on a cluster, filled by a plain producer."""

    def __init__(self, connection: Connection, prefix: str = "orders") -> None:
        self.connection = connection
        self.prefix = prefix
        self.producer = in_order(connection)
        self.sent: list[dict[str, Any]] = []

    def send(self, *documents: dict[str, Any]) -> None:
        for document in documents:
            self.sent.append(document)
            topic = f"{self.prefix}.{document['histogram']}"
            key = document["key"].encode()
            record = topic, orjson.dumps(document), key
            while True:
                try:
                    self.producer.produce(*record, timestamp=document["end"])
                    break
                except BufferError:
                    self.producer.poll(0.1)
        assert self.producer.flush(120) == 0

    def remove(self, name: str, leaving: int) -> None:
        """Removes the oldest records of each partition of a topic on a real broker, as its retention would."""
        topic = f"{self.prefix}.{name}"
        admin = admin_of(self.connection)
        ends = self.connection.consumer()
        try:
            for part in ends.list_topics(topic, timeout=60).topics[topic].partitions:
                low, high = ends.get_watermark_offsets(
                    TopicPartition(topic, part), timeout=60
                )
                if high > low:
                    place = TopicPartition(topic, part, high - leaving)
                    admin.delete_records([place])[place].result()
        finally:
            ends.close()

    def settings(self, *names: str, horizon: int | None = 1_024) -> ReaderSettings:
        return reader_settings(
            *names, connection=self.connection, prefix=self.prefix, horizon=horizon
        )

    def served(
        self, *names: str, horizon: int | None = 1_024, **options: Any
    ) -> Background:
        settings = self.settings(*names, horizon=horizon)
        return Background(Dashboard(settings, **({"port": 0} | options)))

    def toml(self, *names: str) -> str:
        head = f'[worker]\nname = "{self.prefix}"\n[kafka]\nbootstrap = {json.dumps(self.connection.bootstrap)}\n'
        given = self.connection.client.items()
        client = "".join(
            f"{json.dumps(name)} = {json.dumps(value)}\n" for name, value in given
        )
        windows: dict[str, list[str]] = {}
        for name in names:
            own_name, _, window = name.partition(".")
            windows.setdefault(own_name, []).extend([window] if window else [])
        histograms = ""
        for own_name, lengths in windows.items():
            never = f'horizon = "never"\nwindows = {json.dumps(lengths)}\n'
            histograms += f'[[histogram]]\nname = "{own_name}"\n'
            histograms += never if lengths else ""
        return f"{head}[kafka.client]\n{client}{histograms}"


@contextmanager
def embedded(*names: str) -> Iterator[Topics]:
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
    name = f"{topics.prefix}.products"
    admin = admin_of(topics.connection)
    admin.create_topics([new_topic(name, partitions)])[name].result()
    # The controller has it; brokers list it a little later.
    until(
        lambda: name in admin.list_topics(timeout=60).topics,
        "the topic is listed",
        PATIENCE_S,
    )
    yield topics
    admin.delete_topics([name])[name].result()


def recent(
    tick: int, items: Iterable[tuple[str, int]], ticks: int = 1, **changes: Any
) -> dict[str, Any]:
    """A snapshot whose tick of a minute ended within the last one, if it is the last of `ticks`."""
    now = Moment.ms // RECENT_MS * RECENT_MS
    end = now - (ticks - tick) * RECENT_MS
    return message(tick, items, start=end - RECENT_MS, end=end, **changes)


def numbers(
    tick: int,
    edges: Sequence[float],
    counts: Sequence[int],
    quantiles: Sequence[float],
    sd: float,
    ticks: int = 1,
) -> dict[str, Any]:
    """A snapshot of these counts, in the order of the buckets, as the worker publishes it."""
    numeric = Numeric(Buckets(tuple(edges)), quantiles)
    items = sorted(
        zip(numeric.labels, counts, strict=True), key=lambda item: (-item[1], item[0])
    )
    fields = numeric.fields(items, sd)
    fields |= {
        "edges": list(fields["edges"]),
        "histogram": "latency",
        "mechanism": "known_base",
    }
    return recent(tick, items, ticks=ticks, threshold=None, sd=sd, **fields)
