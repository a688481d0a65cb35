"""Source partitions of a worker: every partition of every events topic, in one numbering.

Numbers run from 0, by topic name and then by partition. They identify stage 1's state partition,
transactional id, directory and message source, so a worker's first commit fixes the set: another
set would renumber partitions.
"""

from collections.abc import Iterator

import msgspec

from workers.kafka.topics import ZERO_ID, refuse_without_ids
from workers.pipeline.ledger_blocks import decode_stored
from workers.runtime.errors import StateRefused

#: Key of the set in stage 1's state.
SOURCES = b"sources"
_NEW_NAME = "a new worker name (a new stream, charged again)"


class SourceTopic(msgspec.Struct, frozen=True, array_like=True):
    """An events topic; `id` is the broker's, None on the embedded cluster only."""

    name: str
    partitions: int
    id: str | None


class Place(msgspec.Struct, frozen=True):
    number: int
    topic: SourceTopic
    partition: int

    def __str__(self) -> str:
        return f"{self.topic.name}[{self.partition}]"

    @property
    def log(self) -> tuple[str, int]:
        return self.topic.name, self.partition


class Sources(msgspec.Struct, frozen=True):
    """The events topics, in order; `plain`: one topic is named, so the set need not be stored."""

    topics: tuple[SourceTopic, ...]
    plain: bool = True

    def __str__(self) -> str:
        return ", ".join(topic.name for topic in self.topics)

    def __len__(self) -> int:
        return sum(topic.partitions for topic in self.topics)

    def __iter__(self) -> Iterator[Place]:
        for topic in self.topics:
            for partition in range(topic.partitions):
                yield self.place(topic, partition)

    def place(self, topic: SourceTopic, partition: int) -> Place:
        # `check` refuses partitions added since.
        before = self.topics[: self.topics.index(topic)]
        return Place(sum(each.partitions for each in before) + partition, topic, partition)

    def check(self, place: Place) -> None:
        """Raise StateRefused for a partition added to a topic: its number belongs to another."""
        if place.partition >= place.topic.partitions:
            raise StateRefused(
                f"the events topic {place.topic.name} got more partitions than the {place.topic.partitions} that it had: "
                f"a changed partition count needs {_NEW_NAME}"
            )

    def encoded(self) -> bytes:
        return msgspec.json.encode(StoredSources(topics=self.topics))


class StoredSources(msgspec.Struct, frozen=True):
    """The set in stage 1's state; a JSON object, as paging requires."""

    topics: tuple[SourceTopic, ...]


_DECODER = msgspec.json.Decoder(StoredSources)


def decode_sources(value: bytes) -> tuple[SourceTopic, ...]:
    """Decode the stored topics; raise StateRefused if this version cannot read them."""
    return decode_stored(_DECODER, value, "the stored set of topics").topics


def refuse_other_set(now: Sources, then: tuple[SourceTopic, ...]) -> None:
    """Raise StateRefused if the topics differ from the state's, saying which and how."""
    of_then = {topic.name: topic for topic in then}
    if [topic.name for topic in now.topics] != [topic.name for topic in then]:
        raise StateRefused(
            f"the events topics are {now}; the state was made with {', '.join(of_then)}: another set of topics takes {_NEW_NAME}"
        )
    for topic in now.topics:
        refuse_other_topic(topic, of_then[topic.name].partitions, of_then[topic.name].id)


def refuse_other_count(topic: str, now: int, then: int) -> None:
    """Raise StateRefused if a topic's partition count differs from the state's."""
    if now != then:
        raise StateRefused(
            f"{topic} has {now} partitions; the state was made with {then}: "
            f"a changed partition count needs {_NEW_NAME}"
        )


def refuse_other_topic(now: SourceTopic, partitions: int, topic_id: str | None) -> None:
    """Raise StateRefused if a topic's partition count or id differs from the state's."""
    refuse_other_count(f"the events topic {now.name}", now.partitions, partitions)
    if now.id != topic_id:
        if topic_id in (None, ZERO_ID):
            refuse_without_ids(f"the state of {now.name}")
        raise StateRefused(
            f"the events topic {now.name} was deleted and created again since the state was written: "
            f"its offsets mean other events now; take {_NEW_NAME}"
        )
