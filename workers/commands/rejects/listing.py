"""The rejects topic by reason. Sensitive: rejects are records as they came."""

from __future__ import annotations

import json
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import cast

from confluent_kafka import Message

from workers.kafka.clients import Connection
from workers.kafka.reading import bounds_of, end_of, read_partition, reader
from workers.kafka.topics import describe
from workers.pipeline.rejected import RETRIED, Rejected, read_reject
from workers.runtime.errors import SettingsError
from workers.settings.settings import Settings

# For transactions to end that began before; a worker's take seconds.
_PATIENCE_S = 60.0
_AGAIN_S = 0.2


@dataclass(slots=True)
class OfReason:
    """The rejects with one reason.

    Attributes:
        number: how many.
        sent: how many of them were sent back.
        cut: how many cannot be, as something of them was left out.
        first_ms, last_ms: when the first and the last was rejected.
        topics: that they came from.
    """

    number: int = 0
    sent: int = 0
    cut: int = 0
    first_ms: int = 1 << 62
    last_ms: int = 0
    topics: set[str] = field(default_factory=set)


def partitions_of(settings: Settings, connection: Connection) -> int:
    """Return how many partitions the rejects topic has.

    Raises:
        SettingsError: there is none, or no broker answers.
    """
    topic = settings.rejects_topic
    existing = describe(connection, [topic])
    if topic not in existing:
        raise SettingsError(
            f"topic {topic} does not exist on {settings.kafka.bootstrap}: `quietcount topics -c FILE --create` makes it, "
            "and a worker that has never run has rejected nothing"
        )
    return existing[topic].partitions


def by_reason(
    settings: Settings, connection: Connection, wanted: Callable[[str], bool], take: Callable[[Rejected, bool], object]
) -> dict[str, OfReason]:
    """Return the rejects by reason, the commonest first.

    Args:
        settings: of the worker.
        connection: to the cluster.
        wanted: which reasons.
        take: is given each reject of them, in order, and whether it was sent back.
    """
    found: dict[str, OfReason] = {}
    for partition in range(partitions_of(settings, connection)):
        sent = sent_back(connection, settings.rejects_topic, partition)
        for message in read_partition(connection, settings.rejects_topic, partition):
            reject = reject_of(message)
            if reject is None or not wanted(reject.reason):
                continue
            one, was_sent = found.setdefault(reject.reason, OfReason()), (message.offset() or 0) in sent
            at = message.timestamp()[1]
            one.number += 1
            one.sent += was_sent
            one.cut += reject.truncated
            one.first_ms, one.last_ms = min(one.first_ms, at), max(one.last_ms, at)
            one.topics.add(reject.topic)
            take(reject, was_sent)
    return dict(sorted(found.items(), key=lambda one: -one[1].number))


def sent_back(connection: Connection, topic: str, partition: int) -> set[int]:
    """Return the offsets of the rejects of a partition that were sent back, as far as is read."""
    found = array("q")
    for message in read_partition(connection, topic, partition):
        found.extend(offsets_of(message))
    return set(found)


def reject_of(message: Message) -> Rejected | None:
    """Return the reject that a record is; None where it is none."""
    return read_reject(_headers(message), message.key(), message.value())


def _headers(message: Message) -> list[tuple[str, bytes | None]]:
    return cast(list[tuple[str, bytes | None]], message.headers() or [])


def offsets_of(message: Message) -> Iterator[int]:
    """Yield the offsets of rejects that a record says were sent back; of others none."""
    if any(name == RETRIED for name, _ in _headers(message)):
        yield from json.loads(message.value() or b"[]")


def wait_for_end(connection: Connection, topic: str, partition: int) -> None:
    """Wait until everything that is in a partition now can be read.

    What another run sent back may lie behind the beginning of a worker's transaction, which hides
    it until it ends.

    Raises:
        SettingsError: a transaction does not end.
    """
    end = end_of(connection, topic, partition)
    deadline = time.monotonic() + _PATIENCE_S
    with reader(connection) as consumer:
        while bounds_of(consumer, topic, partition)[1] < end:
            if time.monotonic() > deadline:
                raise SettingsError(
                    f"{topic}[{partition}]: a transaction has been open for {_PATIENCE_S:g} s, so what lies behind it cannot be "
                    "read: try again when it has ended (a worker that died ends its own when it starts again)"
                )
            time.sleep(_AGAIN_S)
