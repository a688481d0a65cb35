"""What a worker's release state says of it, read without a worker.

Only the progress record of each owner partition is read: no key is needed, and nothing exact is in
it but an offset.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from confluent_kafka import Consumer

from workers.agents.merge import VERSION, ReleaseProgress
from workers.errors import StateRefused
from workers.histogram.paging import joined
from workers.kafka.clients import Connection
from workers.kafka.reading import bounds_of, reader, take
from workers.kafka.topics import describe
from workers.settings import internal_topics
from workers.state.progress import PROGRESS, read_progress

# The progress record ends every transaction: only commit markers and aborted records follow it.
_NEWEST = 256
_FURTHER = 64


def read_states(
    connection: Connection, worker: str, say: Callable[[str], object] = lambda _: None
) -> list[ReleaseProgress | None] | None:
    """Return the progress of each owner partition, None where nothing was released yet.

    Return None if the state topic does not exist.

    Args:
        connection: to the cluster.
        worker: the worker's name.
        say: told which owner partition is read.

    Raises:
        SettingsError: no broker answers.
        StateRefused: another version wrote it.
        KafkaException: it cannot be read.
    """
    topic = internal_topics(worker)[2]
    existing = describe(connection, [topic])
    if topic not in existing:
        return None
    owners = existing[topic].partitions
    found: list[ReleaseProgress | None] = []
    with reader(connection) as consumer:
        for owner in range(owners):
            say(f"owner partition {owner + 1} of {owners}")
            value = _newest(consumer, topic, owner)
            progress = None if value is None else read_progress(value)
            if progress is not None and progress.version != VERSION:
                raise StateRefused(
                    f"{topic}[{owner}]: its progress has version {progress.version}, this program reads {VERSION}: upgrade"
                )
            found.append(progress)
    return found


def _newest(consumer: Consumer, topic: str, partition: int) -> bytes | None:
    """Return the newest progress record of a partition."""
    low, high = bounds_of(consumer, topic, partition)
    newest: int | None = _NEWEST
    while True:
        since = low if newest is None else max(low, high - newest)
        found: dict[bytes, bytes | None] = {}
        if since < high:
            for taken in take(consumer, {(topic, partition): (since, high)}):
                for message in taken.messages:
                    key = message.key() or b""
                    if key == PROGRESS or key.startswith(PROGRESS + b"."):
                        found[key] = message.value()
        if since == low:
            return joined(PROGRESS, found.get)
        with suppress(StateRefused):  # some of its pages are further back
            if (value := joined(PROGRESS, found.get)) is not None:
                return value
        newest = None if newest is None or newest >= _NEWEST * _FURTHER**2 else newest * _FURTHER
