"""Which partitions count, as the stored state has them: source partitions, and owners.

Partitions that a topic gets later count only once the state says so: of the events topics as source
partitions, of the contributions topic as owners of stream keys.

Read at every start, before anything of the state is. Without stored state, all that the topics have
count.
"""

import msgspec

from workers.agents.progress import newest_values
from workers.kafka.clients import Connection
from workers.kafka.reading import bounds_of, read_spans, reader
from workers.pipeline.growth.owners import Owners
from workers.pipeline.growth.sources import (
    SOURCES,
    SourceProgress,
    Sources,
    SourceTopic,
    decode_sources,
    refuse_other_set,
    refuse_several,
)
from workers.pipeline.ledger_blocks import decode_stored, read_paged

_DECODER = msgspec.json.Decoder(SourceProgress)


def counted_sources(
    connection: Connection,
    state: str,
    state_partitions: int,
    topics: tuple[SourceTopic, ...],
    *,
    plain: bool,
) -> Sources:
    """Return the counted partitions of `topics`: those in the state, or all if there is none.

    `state` is the state topic. `plain`: the settings name a single topic. Raise StateRefused if the
    state is unreadable, or if the topics differ from those in the state or have fewer partitions.
    The topics are compared only if the total differs; every source shard compares them again.
    """
    progress = stored_progress(connection, state, state_partitions)
    if progress is None:
        return Sources(topics, plain, assumed=True)
    counted = topics
    # Topics have grown since the first commit, and count as they were then; or they are others.
    if progress.sources != sum(topic.partitions for topic in topics):
        stored = stored_topics(connection, state, state_partitions)
        if stored is None:
            refuse_several(topics)
            [topic] = topics
            stored = (SourceTopic(topic.name, progress.sources, topic.id),)
        refuse_other_set(topics, stored)
        counted = tuple(
            SourceTopic(topic.name, before.partitions, topic.id)
            for topic, before in zip(topics, stored, strict=True)
        )
    return Sources(counted, plain, progress.joined)


def stored_progress(
    connection: Connection, state: str, partitions: int
) -> SourceProgress | None:
    """Return source partition 0's progress, which has all growth; before it has one, any other's.

    None without one. Topic `state` has this many `partitions`.
    """
    with reader(connection) as consumer:
        values = newest_values(consumer, [(state, 0)])
        if not values:
            others = [(state, partition) for partition in range(1, partitions)]
            values = newest_values(consumer, others)
    # Any one of them will do.
    for value in values.values():
        return decode_stored(_DECODER, value, f"{state}: the stored progress")
    return None


def stored_topics(
    connection: Connection, state: str, partitions: int
) -> tuple[SourceTopic, ...] | None:
    """Return the events topics as they were at the first commit, None before one.

    Every source partition's first commit has stored them, so reading one partition of topic `state`
    nearly always ends at its beginning.
    """
    with reader(connection) as consumer:
        for partition in range(partitions):
            low, high = bounds_of(consumer, state, partition)
            pairs: dict[bytes, bytes | None] = {}
            spans = {(state, partition): (low, high)} if low < high else {}
            for taken in read_spans(consumer, spans):
                pairs |= {
                    message.key() or b"": message.value() for message in taken.messages
                }
                # Its pages, if it is long, come before it.
                if SOURCES in pairs:
                    break
            if (value := read_paged(SOURCES, pairs.get)) is not None:
                return decode_sources(value)
    return None


def stored_owners(
    connection: Connection, state_topic: str, state_partitions: int, default: int
) -> Owners:
    """Return the owner partitions of stage 1's state topic; `default` of them before it has any."""
    progress = stored_progress(connection, state_topic, state_partitions)
    return (
        Owners(default)
        if progress is None or progress.owners is None
        else progress.owners
    )
