"""Progress records, read from a state topic without a worker or a key.

A progress record ends every transaction of a shard, and says where its next owner continues. Like
any value of a state topic, a long one is stored in pages: records "progress.0000", ... before a
record "progress" that says how many they are (`pipeline.ledger_blocks`).

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
from workers.pipeline.watermark import least_of
from workers.runtime.errors import StateRefused
from workers.settings.settings import stage_topics

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
    """Return the time, ms, up to which all source partitions have closed their ticks.

    It is read from a `partition` of the topic `contributions`, from its owner's `progress` to the
    end. None while a source partition has closed none.
    """
    marks = list(progress.watermarks)
    for record in read_partition(
        connection, contributions, partition, since=progress.position
    ):
        message = decode(record.value() or b"")
        join(marks, message)
        # The last message of a source partition's commit: its watermark holds from here on.
        # Messages in which owners hand keys over have a negative source and no watermark.
        if message.page == message.pages and 0 <= message.source < len(marks):
            marks[message.source] = message.watermark
    return least_of(marks)


def read_states(
    connection: Connection, worker: str, say: Callable[[str], object] = lambda _: None
) -> list[ReleaseProgress | None] | None:
    """Return each owner's progress, None before its first release; None without a state topic.

    `say` is told which owner is being read. Raise SettingsError if no broker answers, StateRefused
    if another version wrote it, KafkaException if it cannot be read.
    """
    topic = stage_topics(worker).release_state
    existing = describe(connection, [topic])
    if topic not in existing:
        return None
    owners = existing[topic].partitions
    states: list[ReleaseProgress | None] = []
    with reader(connection) as consumer:
        for owner in range(owners):
            say(f"owner partition {owner + 1} of {owners}")
            states.append(_newest(consumer, [(topic, owner)]).get((topic, owner)))
    return states


def read_newest(
    connection: Connection, partitions: Iterable[Partition]
) -> dict[Partition, ReleaseProgress]:
    """Return the newest progress of partitions that have one.

    Raise StateRefused if another version wrote it, KafkaException if it cannot be read.
    """
    if not (wanted := list(partitions)):
        return {}
    with reader(connection, uncommitted=True) as consumer:
        return _newest(consumer, wanted)


def _newest(
    consumer: Consumer, wanted: Iterable[Partition]
) -> dict[Partition, ReleaseProgress]:
    """Return decoded progress by partition; StateRefused if another version wrote it."""
    states: dict[Partition, ReleaseProgress] = {}
    for where, value in newest_values(consumer, wanted).items():
        progress = read_progress(value)
        if progress.version != VERSION:
            raise StateRefused(
                f"{where[0]}[{where[1]}]: its progress has version {progress.version}, this program reads {VERSION}: upgrade"
            )
        states[where] = progress
    return states


#: Key of the progress record in the state topics of all stages.
PROGRESS = b"progress"
# Every transaction ends with the progress record: read this many records from the end, then 16
# times as many.
NEWEST = 16
_FURTHER_BACK = 16


def newest_values(
    consumer: Consumer, wanted: Iterable[Partition]
) -> dict[Partition, bytes]:
    """Return the newest progress record of each partition of a state topic that has one.

    Each partition is read from near its end, and from ever further back until a record is found.
    """
    newest_by_partition: dict[Partition, bytes] = {}
    # The first and last + 1 offsets of partitions in which no record was found yet.
    bounds = {where: bounds_of(consumer, *where) for where in wanted}
    bounds = {where: (low, high) for where, (low, high) in bounds.items() if low < high}
    newest = NEWEST
    while bounds:
        starts = {
            where: max(low, high - newest) for where, (low, high) in bounds.items()
        }
        # What was read under the names of the record and its pages.
        values: dict[Partition, dict[bytes, bytes | None]] = {
            where: {} for where in bounds
        }
        # Partitions where only some pages of a record were read, with the error to raise.
        cut: dict[Partition, StateRefused] = {}
        spans = {where: (start, bounds[where][1]) for where, start in starts.items()}
        for taken in read_spans(consumer, spans):
            pairs = values[taken.where]
            for message in taken.messages:
                key = message.key() or b""
                if key.partition(b".")[0] == PROGRESS:
                    pairs[key] = message.value()
                # Pages precede their record; pages of an unfinished record do not count.
                if key == PROGRESS:
                    try:
                        if (value := read_paged(PROGRESS, pairs.get)) is not None:
                            newest_by_partition[taken.where] = value
                    except StateRefused as error:
                        cut[taken.where] = error
        for where, start in starts.items():
            all_read = start == bounds[where][0]
            # Else its pages may be further back.
            if where in cut and where not in newest_by_partition and all_read:
                raise cut[where]
            if where in newest_by_partition or all_read:
                del bounds[where]
        newest *= _FURTHER_BACK
    return newest_by_partition
