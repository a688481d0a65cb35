"""`SimulatedConnection` makes clients of the simulated Kafka; `records_of` fetches for a shard."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tests.simulation.broker import Log, Partition, Record
from tests.simulation.loop import current
from tests.simulation.network import Network
from tests.simulation.producer import SimulatedMessage, SimulatedProducer
from workers.kafka.clients import Connection
from workers.kafka.records import Records


class SimulatedConsumer:
    def __init__(self, network: Network, *, uncommitted: bool) -> None:
        self._network = network
        self._uncommitted = uncommitted
        self._positions: dict[Partition, int] = {}

    def _answer(self, timeout: float) -> None:
        current().park(self._network.delay_s())
        if self._network.loop.rng.random() < self._network.rates.unread:
            current().park(timeout)
            raise KafkaException(
                KafkaError(KafkaError._TRANSPORT, "no answer", retriable=True)
            )

    def _end(self, log: Log) -> int:
        return log.end if self._uncommitted else log.stable

    def get_watermark_offsets(
        self, where: TopicPartition, timeout: float
    ) -> tuple[int, int]:
        self._answer(timeout)
        return 0, self._end(self._network.broker.logs[where.topic, where.partition])

    def list_topics(self, timeout: float) -> object:
        self._answer(0.1)
        return topics_of(self._network)

    def assign(self, places: Sequence[TopicPartition]) -> None:
        self._positions = {(one.topic, one.partition): one.offset for one in places}

    def incremental_unassign(self, places: Sequence[TopicPartition]) -> None:
        for one in places:
            self._positions.pop((one.topic, one.partition), None)

    def consume(self, num_messages: int, timeout: float) -> list[SimulatedMessage]:
        current().park(self._network.delay_s())
        found: list[SimulatedMessage] = []
        eof = KafkaError(KafkaError._PARTITION_EOF)
        for where, position in self._positions.items():
            log = self._network.broker.logs[where]
            end = max(self._end(log), position)
            for record in log.data(position, end, uncommitted=self._uncommitted):
                found.append(SimulatedMessage(where, record))
            self._positions[where] = end
            found.append(SimulatedMessage(where, Record(end, None, None, (), 0), eof))
        return found

    def close(self) -> None:
        pass


def topics_of(network: Network) -> Any:
    topics: dict[str, Any] = {}
    for name, number in network.broker.logs:
        topic = topics.setdefault(name, SimpleNamespace(error=None, partitions={}))
        topic.partitions[number] = None
    return SimpleNamespace(
        topics=topics, controller_id=1, brokers={1: None}, cluster_id="s"
    )


class SimulatedAdmin:
    def describe_topics(self, topics: Any, request_timeout: float) -> Any:
        [name] = topics.topic_names
        topic = SimpleNamespace(topic_id=id_of(name))
        return {name: SimpleNamespace(result=lambda: topic)}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def id_of(topic: str) -> str:
    return f"id-of-{topic}"


class Running:
    """The network of the running simulation; factories outlive it."""

    network: Network


class SimulatedConnection(Connection):
    def producer(self, transactional_id: str | None = None, **extra: Any) -> Any:
        assert transactional_id is not None
        made = SimulatedProducer(Running.network, transactional_id)
        current().clients.append(made)
        return made

    def consumer(self, **extra: Any) -> Any:
        uncommitted = extra.get("isolation.level") == "read_uncommitted"
        return SimulatedConsumer(Running.network, uncommitted=uncommitted)

    def admin(self, **extra: Any) -> Any:
        return SimulatedAdmin()

    @contextmanager
    def connect(self, within_s: float) -> Iterator[Any]:
        current().park(Running.network.delay_s())
        yield SimulatedAdmin(), topics_of(Running.network)


def records_of(found: Sequence[Record]) -> Records:
    """Return records in Kafka's layout: headers follow each value."""
    data = bytearray()
    keys = []
    values = []

    def put(text: bytes | None) -> tuple[int, int]:
        if text is None:
            return -1, -1
        data.extend(text)
        return len(data) - len(text), len(data)

    for record in found:
        keys.append(put(record.key))
        values.append(put(record.value))
        data.extend(_varint(len(record.headers)))
        for name, value in record.headers:
            data.extend(_varint(len(name)) + name.encode())
            data.extend(_varint(-1 if value is None else len(value)) + (value or b""))
    shape = len(found), 2
    return Records(
        np.frombuffer(bytes(data), dtype=np.uint8),
        np.array(keys, dtype=np.int64).reshape(shape),
        np.array(values, dtype=np.int64).reshape(shape),
        np.array([one.time_ms for one in found], dtype=np.int64),
        np.array([one.offset for one in found], dtype=np.int64),
        framed=True,
    )


def _varint(number: int) -> bytes:
    number = number << 1 if number >= 0 else (-number << 1) - 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)
