"""Fills a topic with the benchmarks' events: whole record batches, lz4, over one socket a broker.

A client that takes records one by one needs a microsecond for each, more than the worker that is measured.
"""

import socket
import struct
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

import numpy as np
from aiokafka.codec import lz4_encode
from aiokafka.record.util import calc_crc32c
from confluent_kafka.admin import AdminClient
from numpy.typing import NDArray

from bench.throughput.events import Drawn, Events, Shape, payload

#: Makes the records of a batch of events, rows of them, and all times: `events.payload`, or in another form.
Maker = Callable[[Drawn, NDArray[np.int64], NDArray[np.int64]], NDArray[np.uint8]]

TICK_S = 10
#: Records of a batch, about: 70 kB compressed. A producer that fills batches of a megabyte has as many and more.
BATCH_RECORDS = 5_000
_PRODUCE = 0
_VERSION = 3
_LZ4 = 3
# As librdkafka and Kafka's Java client compress by default or nearly so; aiokafka's own, 9, takes
# 1.3 us an event.
_LEVEL = 1
_HEAD = struct.Struct(">qiibI")
_REST = struct.Struct(">hiqqqhii")
_PATIENCE_MS = 60_000


def record_batch(records: bytes, number: int, first_ms: int, last_ms: int) -> bytes:
    """Return a record batch (version 2) of `number` records."""
    body: bytes = lz4_encode(records, level=_LEVEL)
    # No producer id, no epoch, no sequence: not idempotent, and sent once.
    rest = _REST.pack(_LZ4, number - 1, first_ms, last_ms, -1, -1, -1, number) + body
    crc: int = calc_crc32c(rest)
    return _HEAD.pack(0, 9 + len(rest), -1, 2, crc) + rest


class Sender:
    """Sends record batches to the leaders of a topic's partitions and waits for each answer."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        found = AdminClient({"bootstrap.servers": bootstrap}).list_topics(
            topic, timeout=60
        )
        self._topic = topic.encode()
        self._leader = {
            number: partition.leader
            for number, partition in found.topics[topic].partitions.items()
        }
        self._sockets = {
            number: socket.create_connection((broker.host, broker.port), 60)
            for number, broker in found.brokers.items()
            if number in self._leader.values()
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for connection in self._sockets.values():
            connection.close()

    def send(self, batches: dict[int, bytes]) -> None:
        """Send a batch to each of these partitions.

        Raises:
            RuntimeError: the broker refused one.
        """
        for partition, batch in batches.items():
            # the correlation is the partition
            body = struct.pack(">hhih", _PRODUCE, _VERSION, partition, -1)
            # no transaction, all replicas, one topic
            body += struct.pack(">hhii", -1, -1, _PATIENCE_MS, 1)
            body += struct.pack(">h", len(self._topic)) + self._topic
            body += struct.pack(">iii", 1, partition, len(batch)) + batch
            self._sockets[self._leader[partition]].sendall(
                struct.pack(">i", len(body)) + body
            )
        for partition in batches:
            answer = self._answer(self._sockets[self._leader[partition]])
            # Correlation, one topic, its name, one partition, its number: then comes the error.
            (error,) = struct.unpack_from(
                ">h", answer, 4 + 4 + 2 + len(self._topic) + 4 + 4
            )
            if error:
                raise RuntimeError(
                    f"the broker refused a batch for partition {partition}: error {error}"
                )

    def _answer(self, connection: socket.socket) -> bytes:
        (length,) = struct.unpack(">i", self._exactly(connection, 4))
        return self._exactly(connection, length)

    def _exactly(self, connection: socket.socket, number: int) -> bytes:
        parts = b""
        while len(parts) < number:
            part = connection.recv(number - len(parts))
            if not part:
                raise RuntimeError("the broker closed the connection")
            parts += part
        return parts


def batches(
    drawn: Drawn, times: NDArray[np.int64], partitions: int, make: Maker = payload
) -> dict[int, bytes]:
    """Return a record batch for each partition that these events have; times are theirs, ascending."""
    made = {}
    for partition in range(partitions):
        rows = np.flatnonzero(drawn.partitions == partition)
        if len(rows):
            records = make(drawn, rows, times).tobytes()
            made[partition] = record_batch(
                records, len(rows), int(times[rows[0]]), int(times[rows[-1]])
            )
    return made


def blocks(
    shape: Shape, partitions: int, number: int, end_ms: int, events_a_tick: int
) -> Iterator[tuple[Drawn, NDArray[np.int64]]]:
    """Yield `number` events in order of time with their times; the last one lies at `end_ms`."""
    events = Events(shape, partitions)
    step_ms = TICK_S * 1000 / events_a_tick
    for first in range(0, number, BATCH_RECORDS * partitions):
        rows = min(BATCH_RECORDS * partitions, number - first)
        ago = (number - 1 - first - np.arange(rows)) * step_ms
        yield events.draw(rows), end_ms - ago.astype(np.int64)


def fill(
    bootstrap: str,
    topic: str,
    partitions: int,
    number: int,
    shape: Shape,
    events_a_tick: int,
    make: Maker = payload,
) -> int:
    """Fill the topic; return the time of the last event, ms, whose tick is over by then."""
    end_ms = time.time_ns() // 1_000_000 - TICK_S * 1000
    with Sender(bootstrap, topic) as sender:
        for drawn, times in blocks(shape, partitions, number, end_ms, events_a_tick):
            sender.send(batches(drawn, times, partitions, make))
    return end_ms
