"""The worker's topics on the cluster: what the settings need, what is there, and what is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from workers.errors import SettingsError
from workers.kafka.clients import Connection
from workers.kafka.topic_ids import checked_id, stream_name
from workers.kafka.topics import Existing, Topic, describe, missing, plan_topics, problems
from workers.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """The topics as they are on the cluster."""

    plan: list[Topic]
    existing: dict[str, Existing]
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


def connection_of(settings: Settings, embedded: str | None = None) -> Connection:
    """Return how to reach the cluster: an embedded one if its id is given."""
    return Connection(settings.kafka.bootstrap, settings.kafka.client, embedded=embedded)


def look_at_topics(settings: Settings, connection: Connection) -> Topics:
    """Return what the worker needs, and what the cluster has of it.

    Raises:
        SettingsError: no broker answers, or what is there contradicts the settings.
    """
    name, events = settings.worker.name, settings.events.topic
    outputs = [settings.output_topic(config) for config in settings.histograms]
    existing = describe(connection, [events, *settings.internal_topics, *outputs])
    plan = plan_topics(name, events, None, settings.worker.owner_partitions, outputs, existing)
    return Topics(plan=plan, existing=existing, embedded=connection.embedded is not None)


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

    Raises:
        SettingsError: one is missing, or no broker answers.
    """
    topic = settings.events.topic
    existing = describe(connection, [topic])
    if topic not in existing:
        raise _no_such_topic(settings, topic)
    count = existing[topic].partitions
    return [SourcePartition(topic, partition, count) for partition in range(count)]


def _no_such_topic(settings: Settings, name: str) -> SettingsError:
    return SettingsError(
        f"events.topic = {name!r}: no such topic on {settings.kafka.bootstrap}; create it first, or "
        "allow this worker to read it (deploy/acls.md)"
    )


def check_topics(settings: Settings, connection: Connection) -> Topics:
    """Return the topics, all there and as they must be.

    Raises:
        SettingsError: a topic is missing or unusable; says what to do.
    """
    topics = look_at_topics(settings, connection)
    absent = [topic.name for topic in missing(topics.plan, topics.existing)]
    if settings.events.topic in absent:
        raise _no_such_topic(settings, settings.events.topic)
    if absent:
        raise SettingsError(
            f"missing topics: {', '.join(absent)}: create them with `quietcount topics -c FILE --create`"
        )
    wrong = problems(topics.plan, topics.existing)
    if wrong:
        raise SettingsError("; ".join(wrong))
    return topics
