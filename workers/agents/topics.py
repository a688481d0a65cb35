"""The worker's topics on the cluster: what the settings need, what is there, and what is wrong.

Which topics a regular expression means is settled by a worker's first commit, which stores them
(`pipeline/sources.py`): one that matches later is named, and never counted.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from confluent_kafka import KafkaException

from workers.kafka.clients import Connection
from workers.kafka.reading import bounds_of, reader, take
from workers.kafka.topics import (
    Existing,
    Topic,
    checked_id,
    describe,
    missing,
    names_on,
    plan_topics,
    problems,
    stream_name,
)
from workers.pipeline.ledger_blocks import joined
from workers.pipeline.sources import SOURCES, Sources, SourceTopic, stored_set
from workers.runtime.errors import QuietcountError, SettingsError
from workers.runtime.errors import describe as describe_error
from workers.runtime.metrics import Metrics
from workers.settings.settings import Settings, internal_topics, rekey_topics

logger = logging.getLogger(__name__)

#: How often a cluster is asked for topics that match and are not counted.
LOOK_S = 60.0
FIXED = "the set of topics is fixed by the first start; a new worker name takes it in (a new stream, charged again)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """The topics as they are on the cluster.

    Attributes:
        events: names of the events topics, in order.
        others: those that match the regular expression too, but are not counted.
        plan: what is needed.
        existing: what is there of it.
        plain: whether the settings name one events topic.
        by_user: the topic of the same events keyed by user, which stage 1 reads; None: it reads
            them where they are.
        embedded: whether this is the embedded cluster.
    """

    events: tuple[str, ...]
    others: tuple[str, ...] = ()
    plan: list[Topic]
    existing: dict[str, Existing]
    plain: bool = True
    by_user: str | None = None
    embedded: bool = False

    def partitions(self, name: str) -> int:
        return self.existing[name].partitions

    def id(self, name: str) -> str | None:
        """Return the broker's id of a topic, None on the embedded cluster and nowhere else.

        Raises:
            SettingsError: a real cluster gave none.
        """
        return None if self.embedded else checked_id(name, self.existing[name].topic_id)

    def stream(self, *names: str) -> str:
        """Return what the mechanism id says of topics and their incarnations."""
        return stream_name(*((name, self.id(name)) for name in names))

    @property
    def origins(self) -> Sources:
        """The partitions of the events topics, which must all be there."""
        return Sources(tuple(map(self._source, self.events)), self.plain)

    @property
    def sources(self) -> Sources:
        """The source partitions, those that stage 1 reads."""
        return self.origins if self.by_user is None else Sources((self._source(self.by_user),))

    def _source(self, name: str) -> SourceTopic:
        return SourceTopic(name, self.partitions(name), self.id(name))


def connection_of(settings: Settings, embedded: str | None = None) -> Connection:
    """Return how to reach the cluster: an embedded one if its id is given."""
    return Connection(settings.kafka.bootstrap, settings.kafka.client, embedded=embedded)


def look_at_topics(
    settings: Settings, connection: Connection, events_partitions: int | None = None
) -> Topics:
    """Return what the worker needs, and what the cluster has of it.

    An events topic that is missing will have `events_partitions`, as far as nothing else says how
    many.

    Raises:
        SettingsError: no broker answers, or what is there contradicts the settings.
    """
    events, others = events_topics(settings, connection)
    outputs = [settings.output_topic(config) for config in settings.histograms]
    existing = describe(connection, [*events, *settings.internal_topics, *outputs])
    worker, rekey = settings.worker, settings.privacy.rekey
    plan = plan_topics(
        worker.name,
        events,
        events_partitions,
        worker.owner_partitions,
        outputs,
        existing,
        rekey=rekey,
        user_partitions=worker.user_partitions,
    )
    return Topics(
        events=events,
        others=others,
        plan=plan,
        existing=existing,
        plain=settings.events.topics.one,
        by_user=settings.by_user_topic if rekey else None,
        embedded=connection.embedded is not None,
    )


class SourcePartition(NamedTuple):
    """A partition of an events topic, which has so many of them."""

    topic: str
    partition: int
    partitions: int

    @property
    def log(self) -> tuple[str, int]:
        """Return its topic's name and its partition there, as Kafka's clients want them."""
        return self.topic, self.partition


def source_partitions(settings: Settings, connection: Connection) -> list[SourcePartition]:
    """Return the partitions of the events topics, which must be there; nothing else need be.

    With `privacy.rekey` these are the topics that producers write.

    Raises:
        SettingsError: one is missing, or no broker answers.
    """
    sources = check_events(settings, connection, as_produced=True)
    return [
        SourcePartition(place.topic.name, place.partition, place.topic.partitions)
        for place in sources
    ]


def partitions_by_user(settings: Settings, connection: Connection) -> list[SourcePartition]:
    """Return the partitions of the topic by user; none without `privacy.rekey`, or before there is
    one.
    """
    if not settings.privacy.rekey:
        return []
    name = settings.by_user_topic
    found = describe(connection, [name]).get(name)
    return (
        []
        if found is None
        else [SourcePartition(name, p, found.partitions) for p in range(found.partitions)]
    )


def check_topics(settings: Settings, connection: Connection) -> Topics:
    """Return the topics, all there and as they must be.

    Raises:
        SettingsError: a topic is missing or unusable; says what to do.
    """
    topics = look_at_topics(settings, connection)
    absent = [topic.name for topic in missing(topics.plan, topics.existing)]
    for name in topics.events:
        if name in absent:
            raise _no_such_topic(settings, name)
    if absent:
        raise _missing(absent)
    wrong = problems(topics.plan, topics.existing)
    if wrong:
        raise SettingsError("; ".join(wrong))
    return topics


def check_events(
    settings: Settings, connection: Connection, *, as_produced: bool = False
) -> Sources:
    """Return the source partitions: those of the events topics, or of the one with their events by
    user (unless `as_produced`). They must be there; nothing else need be.

    Raises:
        SettingsError: one is missing.
    """
    by_user = settings.privacy.rekey and not as_produced
    if by_user:
        names: tuple[str, ...] = (settings.by_user_topic,)
        plain = True
    else:
        names, plain = events_topics(settings, connection)[0], settings.events.topics.one
    existing = describe(connection, names)
    for name in names:
        if name not in existing:
            if by_user:
                raise _missing([name])
            raise _no_such_topic(settings, name)
    embedded = connection.embedded is not None
    return Topics(events=names, plan=[], existing=existing, plain=plain, embedded=embedded).sources


# ---- a regular expression ------------------------------------------------------------------------


def events_topics(
    settings: Settings, connection: Connection
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the events topics, and those that match too and are not counted; asks the cluster only
    where the settings have a regular expression.

    Raises:
        SettingsError: nothing matches, or a topic that the state was made with is gone.
    """
    wanted = settings.events.topics
    if wanted.pattern is None:
        return wanted.names, ()
    there = names_on(connection)
    found = matching(settings, there)
    state = (
        settings.rekey_state_topic if settings.privacy.rekey else settings.contribute_state_topic
    )
    stored = _stored(connection, state) if state in there else None
    if stored is None:
        if not found:
            raise SettingsError(
                f"events.topic = {wanted.pattern!r}: matches no topic on {settings.kafka.bootstrap}; create one first, "
                "or allow this worker to see it (deploy/acls.md)"
            )
        return tuple(found), ()
    for topic in stored:
        if topic.name not in there:
            raise _no_such_topic(settings, topic.name)
    names = tuple(topic.name for topic in stored)
    return names, tuple(name for name in found if name not in names)


def matching(settings: Settings, there: Collection[str]) -> list[str]:
    """Return those of the cluster's topics that the regular expression means, in order.

    A worker's own topics are no events, whatever they are called: neither those of this one nor the
    internal ones of another.
    """
    own = {
        *settings.internal_topics,
        *(settings.output_topic(config) for config in settings.histograms),
    }
    for name in there:
        worker = name.rpartition(".")[0]
        internal = internal_topics(worker)
        if name in (*internal, *rekey_topics(worker)) and all(topic in there for topic in internal):
            own.add(name)
    return [
        name for name in sorted(there) if name not in own and settings.events.topics.matches(name)
    ]


@contextmanager
def watching(
    settings: Settings, connection: Connection, topics: Topics, metrics: Metrics
) -> Iterator[None]:
    """Look now and then, while the block runs, for topics that match and are not counted: each is
    said once, and their number is a metric.
    """
    told: set[str] = set()

    def tell(names: Collection[str]) -> None:
        for name in names:
            if name not in told:
                logger.warning(
                    "topic %s matches events.topic = %r too, but is not counted: %s",
                    name,
                    settings.events.topics.pattern,
                    FIXED,
                )
        told.update(names)
        metrics.unread_topics.set(len(names))

    def look() -> None:
        while not ended.wait(LOOK_S):
            try:
                tell(
                    [
                        name
                        for name in matching(settings, names_on(connection))
                        if name not in topics.events
                    ]
                )
            except (KafkaException, QuietcountError) as error:
                logger.debug("the topics could not be looked at: %s", describe_error(error))

    tell(topics.others)
    if settings.events.topics.pattern is None:
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=look, name="topics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()


def _stored(connection: Connection, state: str) -> tuple[SourceTopic, ...] | None:
    """Return the events topics that the state of stage 1 was made with; None before its first
    commit.

    Each source partition's first commit has them, so they are at the beginning of its changelog.
    """
    partitions = describe(connection, [state])[state].partitions
    with reader(connection) as consumer:
        for partition in range(partitions):
            low, high = bounds_of(consumer, state, partition)
            if low == high:
                continue
            found: dict[bytes, bytes | None] = {}
            for taken in take(consumer, {(state, partition): (low, high)}):
                found |= {message.key() or b"": message.value() for message in taken.messages}
                if SOURCES in found:  # the head comes behind the pages
                    break
            if (value := joined(SOURCES, found.get)) is not None:
                return stored_set(value)
    return None


def _missing(names: Sequence[str]) -> SettingsError:
    return SettingsError(
        f"missing topics: {', '.join(names)}: create them with `quietcount topics -c FILE --create`"
    )


def _no_such_topic(settings: Settings, name: str) -> SettingsError:
    return SettingsError(
        f"events.topic = {name!r}: no such topic on {settings.kafka.bootstrap}; if the name is right, create it "
        "(`quietcount topics -c FILE --create --events-topic`), or allow this worker to read it (deploy/acls.md)"
    )
