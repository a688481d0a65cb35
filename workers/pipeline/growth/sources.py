"""Source partitions of a worker: every partition of every events topic, in one numbering.

Numbers identify stage 1's state partition, transactional id, directory and message source, so they
never change. The first commit fixes the set of topics, numbered by topic name and then by
partition. Partitions that a topic gets later take the next numbers when they *join*: source
partition 0 commits that in its progress, and tells every owner in the same transaction. Until then
nobody reads them (decisions/0031).
"""

from collections.abc import Iterator, Sequence

import msgspec

from workers.kafka.topics import ZERO_ID, refuse_without_ids
from workers.pipeline.growth.owners import Owners
from workers.pipeline.ledger_blocks import decode_stored
from workers.runtime.errors import StateRefused

#: Key of the first set in stage 1's state.
SOURCES = b"sources"
_NEW_NAME = "a new worker name (a new stream, charged again)"


class SourceTopic(msgspec.Struct, frozen=True, array_like=True):
    """An events topic; `id` is the broker's, None on the embedded cluster only."""

    name: str
    partitions: int
    id: str | None


class Joined(msgspec.Struct, frozen=True, array_like=True):
    """Growth of a topic to `partitions`.

    The new ones close no tick before `watermark`, source partition 0's at that time: events dated
    earlier are late. None: no tick was closed yet. `users_from` is the event time, ms, from which
    on users are spread over the new ones, too, by the record key; None: nothing relied on where a
    user's records are when these joined.
    """

    topic: str
    partitions: int
    watermark: int | None
    users_from: int | None = None


class Place(msgspec.Struct, frozen=True):
    """A counted partition: its number among the sources, and the topic and partition that it is.

    `watermark`, ms, is where one that joined later begins: it closes no tick before. It is None if
    the partition begins without one. `log` is its topic and partition.
    """

    number: int
    topic: SourceTopic
    partition: int
    watermark: int | None = None

    def __str__(self) -> str:
        return f"{self.topic.name}[{self.partition}]"

    @property
    def log(self) -> tuple[str, int]:
        return self.topic.name, self.partition


class Sources(msgspec.Struct, frozen=True):
    """The counted partitions; iterating yields them in the order of their numbers.

    `first` has the topics, in order, with the partitions of the first commit, `joined` how they
    have grown since. `plain`: the settings name one topic, so the set need not be stored.
    `assumed`: nothing was committed yet, so all partitions that the topics have count.
    """

    first: tuple[SourceTopic, ...]
    plain: bool = True
    joined: tuple[Joined, ...] = ()
    assumed: bool = False

    def __str__(self) -> str:
        return ", ".join(topic.name for topic in self.first)

    def __len__(self) -> int:
        return sum(topic.partitions for topic in self.topics)

    def __iter__(self) -> Iterator[Place]:
        """Yield the partitions by their numbers, which never change: in the order they joined."""
        topics = {topic.name: topic for topic in self.topics}
        counts = dict.fromkeys(topics, 0)
        # The partitions of the first commit as if they had joined one topic after another.
        first = (Joined(topic.name, topic.partitions, None) for topic in self.first)
        number = 0
        for growth in (*first, *self.joined):
            topic = topics[growth.topic]
            for partition in range(counts[topic.name], growth.partitions):
                yield Place(number, topic, partition, growth.watermark)
                number += 1
            counts[topic.name] = growth.partitions

    @property
    def first_count(self) -> int:
        """How many source partitions there were at the first commit."""
        return sum(topic.partitions for topic in self.first)

    @property
    def topics(self) -> tuple[SourceTopic, ...]:
        """The topics with the partitions that are counted now."""
        now = {joined.topic: joined.partitions for joined in self.joined}
        return tuple(
            SourceTopic(topic.name, now.get(topic.name, topic.partitions), topic.id)
            for topic in self.first
        )

    def find(self, topic: str, partition: int) -> Place | None:
        """Return a counted partition's place; None for one that has not joined."""
        return next((place for place in self if place.log == (topic, partition)), None)

    def grown(
        self,
        topics: Sequence[SourceTopic],
        watermark: int | None,
        users_from: int | None = None,
    ) -> tuple[Joined, ...]:
        """Return `joined`, and behind it the growth to the partitions that `topics` have now.

        `watermark` and `users_from` are those of the new growth, as `Joined` describes.
        """
        counted = {topic.name: topic.partitions for topic in self.topics}
        new = tuple(
            Joined(topic.name, topic.partitions, watermark, users_from)
            for topic in topics
            if topic.partitions > counted.get(topic.name, topic.partitions)
        )
        return *self.joined, *new

    @property
    def users_from(self) -> int | None:
        """When users move to the partitions that joined last, event time, ms; None: they do not."""
        return self.joined[-1].users_from if self.joined else None

    @property
    def moves(self) -> list[int]:
        """All event times, ms, at which users moved or will move, ascending."""
        return [one.users_from for one in self.joined if one.users_from is not None]

    @property
    def placements(self) -> tuple[tuple[int, int], ...]:
        """Return over how many partitions users are spread: pairs (event time, number), ascending.

        Each number holds from its event time, ms, until the next one does. Only histograms that
        bound users need this, and they count a single topic. If a growth has a `users_from` of
        None, there were no such histograms, so no user had a place: its number holds from 0 on.
        """
        joined = ((growth.users_from or 0, growth.partitions) for growth in self.joined)
        return (0, self.first[0].partitions), *joined

    def encoded(self) -> bytes:
        """Encode the first set, which every state of stage 1 stores once."""
        return msgspec.json.encode(StoredSources(topics=self.first))


class StoredSources(msgspec.Struct, frozen=True):
    """The first set in stage 1's state; a JSON object, as paging requires."""

    topics: tuple[SourceTopic, ...]


_DECODER = msgspec.json.Decoder(StoredSources)


#: Of the progress of stage 1 and of rekeying.
VERSION = 1


class SourceProgress(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Progress of one source partition or origin, stored with every commit.

    An origin is a partition whose events are sent on by user. `offset` is where reading resumes,
    `watermark` the time, ms, up to which ticks are closed (None: none is). `sources` is how many
    partitions there were at first. `topic_id` is the broker's id of this one's topic, `state_id`
    that of the state topic when its first record was written (None: an embedded cluster's).
    `joined`, in partition 0's progress only, is how the topics have grown since; `owners`, in stage
    1's only, the owner partitions that it knows of. Sensitive: the offset counts events.
    """

    version: int
    offset: int
    watermark: int | None
    sources: int
    topic_id: str | None
    joined: tuple[Joined, ...] = ()
    owners: Owners | None = None
    state_id: str | None = None


def decode_sources(value: bytes) -> tuple[SourceTopic, ...]:
    """Decode the stored topics; raise StateRefused if this version cannot read them."""
    return decode_stored(_DECODER, value, "the stored set of topics").topics


def refuse_other_set(
    topics: Sequence[SourceTopic], stored: Sequence[SourceTopic]
) -> None:
    """Raise StateRefused if `topics` are others than the state's, or have fewer partitions."""
    names = [topic.name for topic in topics]
    stored_names = [topic.name for topic in stored]
    if names != stored_names:
        raise StateRefused(
            f"the events topics are {', '.join(names)}; the state was made with {', '.join(stored_names)}: another set of "
            f"topics takes {_NEW_NAME}"
        )
    for topic, before in zip(topics, stored, strict=True):
        refuse_other_topic(topic, before.partitions, before.id)


def refuse_several(topics: Sequence[SourceTopic]) -> None:
    """Raise StateRefused if there are several topics, for a state that was made with one."""
    if len(topics) > 1:
        names = ", ".join(topic.name for topic in topics)
        raise StateRefused(
            f"the events topics are {names}; the state was made with one topic: another set of topics takes {_NEW_NAME}"
        )


def refuse_other_count(topic: str, partitions: int, stored: int) -> None:
    """Raise StateRefused if a topic's number of partitions is another than the state's, `stored`.

    The worker's own topics may not change it: the count decides where everything lies.
    """
    if partitions != stored:
        raise StateRefused(
            f"{topic} has {partitions} partitions; the state was made with {stored}: "
            f"a changed partition count needs {_NEW_NAME}"
        )


def refuse_other_topic(
    topic: SourceTopic, stored_partitions: int, stored_id: str | None
) -> None:
    """Raise StateRefused if a topic has another id than the state's, or fewer partitions.

    Another id means that it was deleted and created again, so stored offsets mean other events.
    """
    if topic.partitions < stored_partitions:
        refuse_other_count(
            f"the events topic {topic.name}", topic.partitions, stored_partitions
        )
    if topic.id != stored_id:
        # Clusters without topic ids give none or zeros, which identify nothing.
        if stored_id in (None, ZERO_ID):
            refuse_without_ids(f"the state of {topic.name}")
        raise StateRefused(
            f"the events topic {topic.name} was deleted and created again since the state was written: "
            f"its offsets mean other events now; take {_NEW_NAME}"
        )
