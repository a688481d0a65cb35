"""Clients of the simulated Kafka, as `Connection` makes them; `follow` fetches for a shard."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, Protocol, Self, TypeVar

import numpy as np
from aiokafka.record.util import encode_varint
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tests.cluster.broker import Broker, Headers, Log, Partition, Record
from tests.cluster.loop import current
from tests.cluster.network import Network
from tests.cluster.producer import SimulatedMessage, SimulatedProducer, partition_of
from workers.kafka.clients import Connection
from workers.kafka.offsets import LogEnd, ReadPosition
from workers.kafka.records import Batch, Records
from workers.kafka.shard import Shard
from workers.kafka.topic_reader import Bounds, ReadRecords
from workers.runtime.sizes import MESSAGE_BYTES

T = TypeVar("T")
#: Records that a shard is handed at once, at most.
BATCH_RECORDS = 5_000
#: How often a shard looks for records, about as a worker does.
PAUSE_S = 0.05


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
        log = self._network.broker.logs.get((where.topic, where.partition))
        if log is None:
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        return 0, self._end(log)

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


class PlainProducer:
    """Appends to logs at once, without a transaction."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def produce(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        partition: int = -1,
        timestamp: int = 0,
        headers: Headers = (),
        on_delivery: Callable[[None, None], None] | None = None,
    ) -> None:
        broker = self._network.broker
        if partition < 0:
            partition = partition_of(key, broker.partitions(topic))
        time_ms = timestamp or self._network.loop.now_ms
        record = Record(0, key, value, headers, time_ms, committed=True)
        broker.logs[topic, partition].append(record)
        if on_delivery is not None:
            on_delivery(None, None)

    def poll(self, timeout: float) -> int:
        return 0

    def flush(self, timeout: float = 0.0) -> int:
        return 0


def topics_of(network: Network) -> Any:
    topics: dict[str, Any] = {}
    for name, number in network.broker.logs:
        topic = topics.setdefault(name, SimpleNamespace(error=None, partitions={}))
        topic.partitions[number] = None
    return SimpleNamespace(
        topics=topics, controller_id=1, brokers={1: None}, cluster_id="s"
    )


def _answered(result: Callable[[], T]) -> "Future[T]":
    future: Future[T] = Future()
    try:
        future.set_result(result())
    except KafkaException as error:
        future.set_exception(error)
    return future


class SimulatedAdmin:
    """Of whichever simulation runs, since tests keep admin clients."""

    @property
    def _broker(self) -> Broker:
        return Running.network.broker

    def list_topics(self, topic: str | None = None, timeout: float = 0.0) -> Any:
        return topics_of(Running.network)

    def create_topics(
        self, topics: Sequence[Any], operation_timeout: float = 0.0
    ) -> Mapping[str, "Future[None]"]:
        return {one.topic: _answered(partial(self._create, one)) for one in topics}

    def _create(self, new: Any) -> None:
        if self._broker.partitions(new.topic):
            raise KafkaException(KafkaError(KafkaError.TOPIC_ALREADY_EXISTS))
        number = max(new.num_partitions, 1)
        self._broker.create_topic(new.topic, number, new.config or {})

    def delete_topics(self, topics: Sequence[str]) -> Mapping[str, "Future[None]"]:
        delete = self._broker.delete_topic
        return {one: _answered(partial(delete, one)) for one in topics}

    def describe_topics(
        self, topics: Any, request_timeout: float
    ) -> Mapping[str, "Future[Any]"]:
        def described(name: str) -> Any:
            return SimpleNamespace(topic_id=self._broker.id_of(name))

        return {
            name: _answered(partial(described, name)) for name in topics.topic_names
        }

    def describe_configs(
        self, resources: Sequence[Any], request_timeout: float
    ) -> Mapping[Any, "Future[Any]"]:
        def described(name: str) -> Any:
            config = self._broker.configs.get(name, {})
            return {key: SimpleNamespace(value=value) for key, value in config.items()}

        return {one: _answered(partial(described, one.name)) for one in resources}

    def describe_consumer_groups(
        self, groups: Sequence[str], request_timeout: float
    ) -> Mapping[str, "Future[Any]"]:
        members = SimpleNamespace(members=self._broker.workers)
        return {one: _answered(lambda: members) for one in groups}

    def list_offsets(
        self, asked: Iterable[TopicPartition], isolation_level: object
    ) -> Mapping[TopicPartition, "Future[Any]"]:
        def end(where: TopicPartition) -> Any:
            log = self._broker.logs[where.topic, where.partition]
            return SimpleNamespace(offset=log.stable)

        # Longer than the markers of a commit that was acknowledged just now.
        current().park(0.01)
        return {one: _answered(partial(end, one)) for one in asked}

    def poll(self, timeout: float) -> int:
        return 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class AbsentAdmin(SimulatedAdmin):
    """Of an address at which nobody answers."""

    def list_topics(self, topic: str | None = None, timeout: float = 0.0) -> Any:
        current().park(timeout)
        raise KafkaException(KafkaError(KafkaError._TRANSPORT, "Connection refused"))


class SimulatedReader:
    """As `workers.kafka.topic_reader.TopicReader`."""

    def __init__(self, network: Network) -> None:
        self._logs = network.broker.logs

    def bounds(self, logs: Iterable[Partition]) -> dict[Partition, Bounds]:
        found = {where: self._logs[where] for where in logs}
        return {where: Bounds(0, log.stable, log.end) for where, log in found.items()}

    def offsets_at(self, times: Mapping[Partition, int]) -> dict[Partition, int | None]:
        return {
            where: next(
                (one.offset for one in self._logs[where].records if one.time_ms >= at),
                None,
            )
            for where, at in times.items()
        }

    def open_transactions(self, bounds: object) -> list[str]:
        return []

    def read(
        self,
        spans: dict[Partition, tuple[int, int]],
        longest: int = MESSAGE_BYTES,
        until_s: float = math.inf,
    ) -> Iterator[ReadRecords]:
        positions = {where: start for where, (start, _) in spans.items()}
        while spans:
            for where in list(spans):
                end = spans[where][1]
                start = positions[where]
                stop = positions[where] = min(end, start + BATCH_RECORDS)
                if stop == end:
                    del spans[where]
                found = records_of(self._logs[where].data(start, stop))
                yield ReadRecords(where, found, stop, stop == end)


class Running:
    """The network of the running simulation; factories outlive it."""

    network: Network


class SimulatedConnection(Connection):
    def producer(self, transactional_id: str | None = None, **extra: Any) -> Any:
        if transactional_id is None:
            return PlainProducer(Running.network)
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


class Fetched(Protocol):
    """What a record of a log has."""

    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Headers: ...
    @property
    def time_ms(self) -> int: ...
    @property
    def offset(self) -> int: ...


def records_of(found: Sequence[Fetched]) -> Records:
    """Return records in Kafka's layout: headers follow each value."""
    data = bytearray()
    keys = []
    values = []

    def put(text: bytes | None) -> tuple[int, int]:
        if text is None:
            return -1, -1
        data.extend(text)
        return len(data) - len(text), len(data)

    def put_sized(text: bytes | None) -> None:
        encode_varint(-1 if text is None else len(text), data.append)
        data.extend(text or b"")

    for record in found:
        keys.append(put(record.key))
        values.append(put(record.value))
        encode_varint(len(record.headers), data.append)
        for name, value in record.headers:
            put_sized(name.encode())
            put_sized(value)
    shape = len(found), 2
    return Records(
        np.frombuffer(bytes(data), dtype=np.uint8),
        np.array(keys, dtype=np.int64).reshape(shape),
        np.array(values, dtype=np.int64).reshape(shape),
        np.array([one.time_ms for one in found], dtype=np.int64),
        np.array([one.offset for one in found], dtype=np.int64),
        framed=True,
    )


def follow(
    shard: Shard,
    log: Log,
    pause_s: Callable[[], float] = lambda: PAUSE_S,
    next_end: Callable[[int, int], int] = lambda start, stable: min(
        stable, start + BATCH_RECORDS
    ),
) -> Iterator[int]:
    """Open a shard and give it what its log has, for ever; yield the position where it opens.

    `pause_s` is how long to wait for more, `next_end` where the next batch ends.
    """
    shard.open()
    if shard.offset is None:
        shard.offset = shard.committed = 0
    handed = shard.offset
    yield handed
    actor = current()
    while True:
        actor.park(pause_s())
        now_ms = actor.loop.now_ms
        stable = log.stable
        if handed < stable:
            end = next_end(handed, stable)
            shard.feed(Batch(handed, end, records_of(log.data(handed, end))))
            handed = end
        shard.tick_idle()
        if not shard.ends.full and shard.wants_end(now_ms):
            shard.ends.note(LogEnd(now_ms, stable))
        if shard.ends:
            shard.tick(ReadPosition(handed, handed, stable))
