"""Progress records, read from a state topic without a worker or a key.

The only exact figure in a progress record is an offset. `read_newest` reads uncommitted records, so
it includes epochs that another worker is about to commit, and misses no acknowledged commit. (A
commit returns before its marker is in every partition, so read-committed could miss it.)
"""

from collections.abc import Callable, Iterable

import msgspec
from confluent_kafka import Consumer

from workers.kafka.clients import Connection
from workers.kafka.reading import (
    Partition,
    bounds_of,
    read_partition,
    read_spans,
    reader,
)
from workers.kafka.topics import describe
from workers.pipeline.contributions import decode
from workers.pipeline.ledger_blocks import decode_stored, read_paged
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


#: Key of the progress record in the state topics of all stages.
PROGRESS = b"progress"
# The progress record ends every transaction: read few records first, then more from further back.
NEWEST = 16
_FURTHER_BACK = 16


def newest_values(
    consumer: Consumer, wanted: Iterable[Partition]
) -> dict[Partition, bytes]:
    """Return the newest progress record of each partition of a state topic that has one."""
    newest_by_partition: dict[Partition, bytes] = {}
    bounds = {where: bounds_of(consumer, *where) for where in wanted}
    bounds = {where: (low, high) for where, (low, high) in bounds.items() if low < high}
    newest = NEWEST
    while bounds:
        spans = {
            where: (max(low, high - newest), high)
            for where, (low, high) in bounds.items()
        }
        values: dict[Partition, dict[bytes, bytes | None]] = {
            where: {} for where in spans
        }
        complete: dict[Partition, bytes] = {}
        cut: dict[Partition, StateRefused] = {}
        for taken in read_spans(consumer, dict(spans)):
            where = taken.where
            pairs = values[taken.where]
            for message in taken.messages:
                key = message.key() or b""
                if key == PROGRESS or key.startswith(PROGRESS + b"."):
                    pairs[key] = message.value()
                # Pages precede their record; pages of an unfinished record do not count.
                if key == PROGRESS:
                    try:
                        if (value := read_paged(PROGRESS, pairs.get)) is not None:
                            complete[where] = value
                    except (
                        StateRefused
                    ) as error:  # some of its pages may be further back
                        cut[where] = error
        newest_by_partition |= complete
        for where, refusal in cut.items():
            if where not in complete and spans[where][0] == bounds[where][0]:
                raise refusal
        for where, (first, _) in spans.items():
            if where in complete or first == bounds[where][0]:
                del bounds[where]
        newest *= _FURTHER_BACK
    return newest_by_partition
