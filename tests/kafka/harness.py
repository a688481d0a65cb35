"""Topics, shards and their transactions, for tests of the Kafka layer."""

import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, cast

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # a re-export

from tests.admin import admin_of
from workers.kafka.clients import Connection
from workers.kafka.reading import await_commits, bounds_of, read_spans, reader
from workers.kafka.records import Batch
from workers.kafka.shard import Assignment, Shard
from workers.kafka.store import Changelog, Store
from workers.kafka.transaction import Transactions
from workers.runtime.metrics import Metrics

PATIENCE_S = 300.0


def unique(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:10]}"


def create_topic(
    connection: Connection, name: str, partitions: int = 1, **config: str
) -> None:
    """Create a topic; underscores in the names of `config` replace dots."""
    settings = {key.replace("_", "."): value for key, value in config.items()}
    admin = admin_of(connection)
    await_all(admin.create_topics([NewTopic(name, partitions, 1, config=settings)]))
    wait_until(lambda: name in admin.list_topics(timeout=60).topics, f"topic {name}")


def await_all(futures: Mapping[Any, Future[Any]]) -> None:
    for future in futures.values():
        future.result(PATIENCE_S)


def offline(
    partition: int, metrics: Metrics | None = None, name: str = "shard"
) -> Assignment:
    """Return an assignment of a shard that never opens, so needs no Kafka."""
    connection = Connection("unused:9092")
    store = Store(None, Changelog("state", partition))
    return Assignment(
        connection, f"{name}-{partition}", partition, store, metrics or Metrics()
    )


class Keeper(Shard):
    def restore(self) -> None:
        self.offset = int(self.store.get(b"offset") or 0)

    def process(self, batch: Batch) -> None:
        pass


def commits(shard: Shard) -> float:
    seconds = shard.metrics.stage(shard.stage).commit_seconds
    return float(sum(bucket.get() for bucket in seconds._buckets))


def aborts(shard: Shard) -> float:
    return float(shard.metrics.stage(shard.stage).aborted_transactions._value.get())


def before_commit(transactions: Transactions, act: Callable[[], object]) -> None:
    """Call `act` once instead of the next commit, when the whole transaction is in the log."""
    insist = transactions._call_until_done

    def acting(name: str, call: Callable[[float], object]) -> None:
        if name == "commit":
            assert transactions._producer is not None
            transactions._call(transactions._producer.flush, 120)
            del transactions._call_until_done  # the class has it
            act()
        insist(name, call)

    cast(Any, transactions)._call_until_done = acting


def abort() -> None:
    raise KafkaException(
        KafkaError(KafkaError._INCONSISTENT, "injected", txn_requires_abort=True)
    )


def open_transaction(
    connection: Connection, topic: str, key: bytes, value: bytes
) -> Producer:
    producer = connection.producer(unique("open"))
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, value, key, 0)
    producer.flush(60)
    return producer


def read(
    connection: Connection,
    topic: str,
    partition: int = 0,
    isolation: str = "read_committed",
    *,
    since: int = 0,
) -> list[Message]:
    with reader(connection, uncommitted=isolation == "read_uncommitted") as consumer:
        low, high = bounds_of(consumer, topic, partition)
        low = max(low, since)
        spans = {(topic, partition): (low, high)} if low < high else {}
        return [
            message
            for taken in read_spans(consumer, spans)
            for message in taken.messages
        ]


def settled(connection: Connection, topic: str, partition: int = 0) -> None:
    await_commits(connection, [(topic, partition)])


def wait_until(
    done: Callable[[], bool], what: str, patience_s: float = PATIENCE_S
) -> None:
    deadline = time.monotonic() + patience_s
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.05)
