"""Progress records, read from a state topic without a worker or a key.

The only exact figure in a progress record is an offset. `read_newest` reads uncommitted records, so
it includes epochs that another worker is about to commit, and misses no acknowledged commit. (A
commit returns before its marker is in every partition, so read-committed could miss it.)
"""

from collections.abc import Callable, Iterable

import msgspec
from confluent_kafka import Consumer

from workers.agents.newest import newest_values
from workers.kafka.clients import Connection
from workers.kafka.reading import Partition, read_partition, reader
from workers.kafka.topics import describe
from workers.pipeline.contributions import decode
from workers.pipeline.ledger_blocks import decode_stored
from workers.pipeline.merge import VERSION, ReleaseProgress, join
from workers.runtime.errors import StateRefused
from workers.settings.settings import internal_topics

_DECODER = msgspec.json.Decoder(ReleaseProgress)


def read_progress(value: bytes) -> ReleaseProgress:
    """Decode a progress record; raise StateRefused if this version cannot read it."""
    return decode_stored(_DECODER, value, "the stored progress")


def complete_ms(
    connection: Connection,
    contributions: str,
    partition: int,
    progress: ReleaseProgress,
) -> int | None:
    """Return the time up to which ticks are complete; None while a source has no watermark."""
    marks = list(progress.watermarks)
    for record in read_partition(
        connection, contributions, partition, since=progress.position
    ):
        message = decode(record.value() or b"")
        join(marks, message)
        if message.page == message.pages and 0 <= message.source < len(marks):
            marks[message.source] = message.watermark
    known = [mark for mark in marks if mark is not None]
    return min(known) if len(known) == len(marks) else None


def read_states(
    connection: Connection, worker: str, say: Callable[[str], object] = lambda _: None
) -> list[ReleaseProgress | None] | None:
    """Return each owner's progress, None before its first release; None without a state topic.

    Raise SettingsError if no broker answers, StateRefused if another version wrote it,
    KafkaException if it cannot be read.
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
            found.append(_newest(consumer, [(topic, owner)]).get((topic, owner)))
    return found


def read_newest(
    connection: Connection, partitions: Iterable[Partition]
) -> dict[Partition, ReleaseProgress]:
    """Return the newest progress of partitions that have one; raises as `read_states` does."""
    if not (wanted := list(partitions)):
        return {}
    with reader(connection, uncommitted=True) as consumer:
        return _newest(consumer, wanted)


def _newest(
    consumer: Consumer, wanted: Iterable[Partition]
) -> dict[Partition, ReleaseProgress]:
    found: dict[Partition, ReleaseProgress] = {}
    for where, value in newest_values(consumer, wanted).items():
        found[where] = read_progress(value)
        if (version := found[where].version) != VERSION:
            raise StateRefused(
                f"{where[0]}[{where[1]}]: its progress has version {version}, this program reads {VERSION}: upgrade"
            )
    return found
