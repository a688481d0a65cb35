"""Topics, events with known totals, worker processes and their output, for tests of the Kafka
layer.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # a re-export

from tests.admin import admin_of
from workers.kafka.clients import Connection
from workers.kafka.reading import await_commits, bounds_of, reader, take
from workers.kafka.records import Batch
from workers.kafka.shard import Assignment, Shard
from workers.kafka.store import Changelog, Store
from workers.kafka.transaction import Transactions
from workers.runtime.metrics import Metrics

PARTITIONS, OWNERS = 4, 2
TOPICS = {
    "events": PARTITIONS,
    "contributions": OWNERS,
    "contribute-state": PARTITIONS,
    "release-state": OWNERS,
    "totals": OWNERS,
}
PATIENCE_S = 300.0


def unique(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:10]}"


def create_topic(connection: Connection, name: str, partitions: int = 1, **config: str) -> None:
    """Create a topic; underscores in the names of `config` replace dots."""
    settings = {key.replace("_", "."): value for key, value in config.items()}
    admin = admin_of(connection)
    await_all(admin.create_topics([NewTopic(name, partitions, 1, config=settings)]))
    wait_until(lambda: name in admin.list_topics(timeout=60).topics, f"topic {name}")


def await_all(futures: Mapping[Any, Future[Any]]) -> None:
    """Wait for the answers to an admin client's request."""
    for future in futures.values():
        future.result(PATIENCE_S)


def offline(partition: int, metrics: Metrics | None = None, name: str = "shard") -> Assignment:
    """Return an assignment of a shard that never opens, so needs no Kafka."""
    connection, store = Connection("unused:9092"), Store(None, Changelog("state", partition))
    return Assignment(connection, f"{name}-{partition}", partition, store, metrics or Metrics())


class Keeper(Shard):
    """Shard with its offset in its state."""

    def restore(self) -> None:
        self.offset = int(self.store.get(b"offset") or 0)

    def process(self, batch: Batch) -> None:
        pass


def before_commit(transactions: Transactions, act: Callable[[], object]) -> None:
    """Call `act` once instead of the next commit, when the whole transaction is in the log."""
    insist = transactions._insist

    def acting(name: str, call: Callable[[float], object]) -> None:
        if name == "commit":
            assert transactions._producer is not None
            transactions._call(transactions._producer.flush, 120)
            del transactions._insist  # the class has it
            act()
        insist(name, call)

    transactions._insist = acting  # type: ignore[method-assign]


def abort() -> None:
    """Raise an error that requires an abort."""
    raise KafkaException(KafkaError(KafkaError._INCONSISTENT, "injected", txn_requires_abort=True))


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
        return [message for taken in take(consumer, spans) for message in taken.messages]


def settled(connection: Connection, topic: str, partition: int = 0) -> None:
    """Wait until no transaction is open in a partition."""
    await_commits(connection, [(topic, partition)])


def wait_until(done: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.05)


class Scene:
    """A worker name with its topics, the events sent to it and its processes."""

    def __init__(self, connection: Connection, directory: Path, *, create: bool = True) -> None:
        self.connection, self.directory = connection, directory
        self.name = unique("count")
        self.events = f"{self.name}.events"
        self.brake = directory / "brake"
        self.expected: Counter[str] = Counter()
        self.workers: list[Worker] = []
        self._random = random.Random(self.name)
        self._producer = connection.producer(None, **{"linger.ms": 5})
        if create:
            for topic, partitions in TOPICS.items():
                policy = {"cleanup_policy": "compact"} if topic.endswith("-state") else {}
                create_topic(connection, f"{self.name}.{topic}", partitions, **policy)

    def send(self, count: int) -> None:
        """Send `count` events; they are in the log when this returns."""
        for _ in range(count):
            label = f"x{self._random.randrange(40)}"
            self.expected[label] += 1
            partition = self._random.randrange(PARTITIONS)
            self._producer.produce(self.events, label.encode(), partition=partition)
            if not self._random.randrange(500):
                self._producer.poll(0)
        if self._producer.flush(PATIENCE_S):
            raise TimeoutError("sending events")

    def worker(self, label: str, **options: Any) -> Worker:
        """Start a worker with its own data directory; it is slow while file `brake` exists."""
        started = Worker(self, label, options)
        self.workers.append(started)
        return started

    def totals(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for owner in range(OWNERS):
            messages = read(self.connection, f"{self.name}.totals", owner)
            if messages:
                total.update(json.loads(messages[-1].value() or b"{}"))
        return total

    def contributed(self) -> int:
        return sum(
            sum(json.loads(message.value() or b"{}").values())
            for owner in range(OWNERS)
            for message in read(self.connection, f"{self.name}.contributions", owner)
        )

    def wait_exact(self) -> None:
        """Wait until the totals cover every event, then check that they are exact."""
        expected = self.expected.total()
        wait_until(lambda: self.totals().total() >= expected, f"{expected} events counted")
        assert self.totals() == self.expected
        assert self.contributed() == expected

    def close(self) -> None:
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.process.kill()
            worker.process.wait(PATIENCE_S)


class Worker:
    def __init__(self, scene: Scene, label: str, options: dict[str, Any]) -> None:
        self.log = scene.directory / f"{label}.log"
        arguments = {
            "name": scene.name,
            "bootstrap": scene.connection.bootstrap,
            "client": dict(scene.connection.client),
            "events": scene.events,
            "data_dir": str(scene.directory / f"data-{label}"),
            "owners": OWNERS,
            "brake": str(scene.brake),
            **options,
        }
        with self.log.open("ab") as output:
            command = [sys.executable, "-m", "tests.kafka.counting", json.dumps(arguments)]
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, marker: str, times: int = 1) -> None:
        def logged() -> bool:
            if self.process.poll() is not None and self.text().count(marker) < times:
                raise RuntimeError(f"ended with {self.process.returncode}: {self.text()[-3000:]}")
            return self.text().count(marker) >= times

        wait_until(logged, f"{marker!r} in {self.text()[-1500:]}")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        self.signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)
