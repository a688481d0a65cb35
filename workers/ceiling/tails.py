"""The newest progress of many owner partitions, read from the ends of their state topics.

It is read uncommitted: what somebody else was about to commit counts as charged, whether or not the
commit succeeds, and what was acknowledged before is certainly seen. (A commit returns before its
marker is in every partition, so a reader of committed records could miss it.)
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from confluent_kafka import Consumer

from workers.agents.merge import VERSION, ReleaseProgress
from workers.errors import StateRefused
from workers.histogram.paging import joined
from workers.kafka.clients import Connection
from workers.kafka.reading import Partition, bounds_of, reader, take
from workers.state.progress import PROGRESS, read_progress

# The progress ends every transaction; only its marker, and aborted records, follow it.
NEWEST = 16
_FURTHER = 16


def read_tails(connection: Connection, partitions: Iterable[Partition]) -> dict[Partition, ReleaseProgress]:
    """Return the newest progress of each partition that has one.

    Raises:
        StateRefused: another version wrote it.
        KafkaException: it cannot be read.
    """
    wanted = list(partitions)
    if not wanted:
        return {}
    with reader(connection, uncommitted=True) as consumer:
        return _read(consumer, wanted)


def _read(consumer: Consumer, wanted: list[Partition]) -> dict[Partition, ReleaseProgress]:
    found: dict[Partition, ReleaseProgress] = {}
    bounds = {where: bounds_of(consumer, *where) for where in wanted}
    bounds = {where: (low, high) for where, (low, high) in bounds.items() if low < high}
    newest = NEWEST
    while bounds:
        spans = {where: (max(low, high - newest), high) for where, (low, high) in bounds.items()}
        values: dict[Partition, dict[bytes, bytes | None]] = {where: {} for where in spans}
        whole: dict[Partition, bytes] = {}
        for taken in take(consumer, dict(spans)):
            pairs = values[taken.where]
            for message in taken.messages:
                key = message.key() or b""
                if key == PROGRESS or key.startswith(PROGRESS + b"."):
                    pairs[key] = message.value()
                if key == PROGRESS:
                    # Its pages come before it. Those of one that is being written do not count.
                    with suppress(StateRefused):
                        if (value := joined(PROGRESS, pairs.get)) is not None:
                            whole[taken.where] = value
        for where, value in whole.items():
            found[where] = _checked(where, value)
        bounds = {
            where: span for where, span in bounds.items() if where not in whole and spans[where][0] > span[0]
        }
        newest *= _FURTHER
    return found


def _checked(where: Partition, value: bytes) -> ReleaseProgress:
    progress = read_progress(value)
    if progress.version != VERSION:
        raise StateRefused(
            f"{where[0]}[{where[1]}]: its progress has version {progress.version}, this program reads {VERSION}: upgrade"
        )
    return progress
