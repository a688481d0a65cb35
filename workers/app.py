"""The worker: from settings to a running Faust application with both stages, and the checks before it may start.

`prepare` refuses what must not start (a missing topic, another partition count, an unreadable key), `run` starts Faust. The two agents
hand each record batch to its shard; everything else happens there (`agents/contribute.py`, `agents/release.py`).
"""

from __future__ import annotations

import gc
import logging
from collections.abc import AsyncIterable
from dataclasses import dataclass
from pathlib import Path

from workers.agents.contribute import ContributeShard, Stream
from workers.agents.events import EventReader
from workers.agents.factory import declared_keys, histograms, lanes, mechanisms
from workers.agents.merge import Merge
from workers.agents.release import ReleaseShard
from workers.errors import SettingsError
from workers.histogram.histogram import Histogram
from workers.kafka.clients import Connection
from workers.kafka.handover import Handover
from workers.kafka.records import Batch
from workers.kafka.store import Changelog, Store
from workers.kafka.topic_ids import checked_id, stream_name
from workers.kafka.topics import (
    Existing,
    Topic,
    cautions,
    describe,
    missing,
    plan_topics,
    problems,
)
from workers.kafka.transport import BatchSchema, QuietcountApp, create_app, run_app
from workers.mechanisms.frozen import check_frozen
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.noise.keyed import NoiseKey
from workers.metrics import CONTRIBUTE, RELEASE, Metrics
from workers.monitor.server import monitor
from workers.settings import Settings, internal_topics, read_key

logger = logging.getLogger(__name__)


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
        topic_id = self.existing[name].topic_id
        return None if self.embedded else checked_id(name, topic_id)


def connection_of(settings: Settings, embedded: str | None = None) -> Connection:
    """Return how to reach the cluster, which is an embedded one where its id is given."""
    return Connection(settings.kafka.bootstrap, settings.kafka.client, embedded=embedded)


def look_at_topics(settings: Settings, connection: Connection) -> Topics:
    """Return what the worker needs, and what the cluster has of it.

    Raises:
        SettingsError: no broker answers, or what is there contradicts the settings.
    """
    name, events = settings.worker.name, settings.events.topic
    outputs = [settings.output_topic(config) for config in settings.histograms]
    existing = describe(connection, [events, *internal_topics(settings.worker.name), *outputs])
    plan = plan_topics(name, events, None, settings.worker.owner_partitions, outputs, existing)
    return Topics(plan=plan, existing=existing, embedded=connection.embedded is not None)


def check_topics(settings: Settings, connection: Connection) -> Topics:
    """Return the topics, all there and as they must be.

    Raises:
        SettingsError: a topic is missing or unusable; says what to do.
    """
    topics = look_at_topics(settings, connection)
    absent = [topic.name for topic in missing(topics.plan, topics.existing)]
    if settings.events.topic in absent:
        raise SettingsError(
            f"events.topic = {settings.events.topic!r}: no such topic on {settings.kafka.bootstrap}; create it first, or "
            "allow this worker to read it (deploy/acls.md)"
        )
    if absent:
        raise SettingsError(
            f"missing topics: {', '.join(absent)}: create them with `quietcount topics -c FILE --create`"
        )
    wrong = problems(topics.plan, topics.existing)
    if wrong:
        raise SettingsError("; ".join(wrong))
    return topics


class Factory:
    """Makes the shards of this worker; one for each partition that it is assigned."""

    def __init__(
        self, settings: Settings, connection: Connection, topics: Topics, key: NoiseKey, data_dir: Path | None
    ) -> None:
        """
        Args:
            settings: of the worker.
            connection: to the cluster.
            topics: as they are on the cluster.
            key: the operator's root key.
            data_dir: where local copies of the state are kept; None: in memory.
        """
        self._settings, self._connection, self._topics, self._key = settings, connection, topics, key
        self._data_dir = data_dir
        self.metrics = Metrics()
        # Every owner partition's thread steps these.
        self.mechanisms: tuple[Mechanism, ...] = tuple(mechanisms(settings))
        self._reader = EventReader(settings.events, declared_keys(settings), settings.user_field)
        self._stream = Stream(
            events=settings.events,
            events_id=topics.id(settings.events.topic),
            sources=topics.partitions(settings.events.topic),
            contributions=settings.contributions_topic,
            owners=topics.partitions(settings.contributions_topic),
            rejects=settings.rejects_topic,
        )
        # Every shard's thread reads these; what else a shard has it makes for itself, and `metrics` has locks.
        shared = {"key": key, "mechanisms": self.mechanisms, "reader": self._reader, "stream": self._stream}
        for what, value in {**shared, "connection": connection}.items():
            check_frozen(value, what)

    def contribute(self, partition: int) -> ContributeShard:
        """Stage 1 of a source partition."""
        settings = self._settings
        state = settings.contribute_state_topic
        return ContributeShard(
            self._connection,
            f"{settings.worker.name}-contribute-{partition}",
            partition,
            state,
            self._store("contribute", state, partition),
            stream=self._stream,
            lanes=lanes(settings),
            reader=self._reader,
            commit_interval_s=settings.worker.commit_interval_ms / 1000,
            metrics=self.metrics,
        )

    def release(self, partition: int) -> ReleaseShard:
        """Stage 2 of an owner partition."""
        settings = self._settings
        state = settings.release_state_topic
        contributions = self._stream.contributions
        owners = self._stream.owners
        merge = Merge(
            histograms(
                Histogram,
                settings,
                self.mechanisms,
                key=self._key,
                stream=stream_name((contributions, self._topics.id(contributions)), (state, self._topics.id(state))),
                owner=partition,
                owners=owners,
            ),
            key=self._key,
            sources=self._stream.sources,
            owners=owners,
            directory=self._data_dir,
        )
        return ReleaseShard(
            self._connection,
            f"{settings.worker.name}-release-{partition}",
            partition,
            state,
            self._store("release", state, partition),
            contributions=contributions,
            merge=merge,
            metrics=self.metrics,
        )

    def _store(self, stage: str, topic: str, partition: int) -> Store:
        path = None if self._data_dir is None else self._data_dir / f"{stage}-{partition}"
        return Store(path, Changelog(topic, partition, self._topics.id(topic)))


def build_app(settings: Settings, factory: Factory, connection: Connection) -> QuietcountApp:
    """Return the Faust application: two agents over shards."""
    contributions = settings.contributions_topic
    stages = {settings.events.topic: factory.contribute, contributions: factory.release}
    handover = Handover(stages, metrics=factory.metrics)
    app = create_app(settings.worker.name, connection, handover, data_dir=settings.worker.data_dir)

    @app.agent(app.topic(settings.events.topic, schema=BatchSchema()))
    async def contribute(stream: AsyncIterable[Batch]) -> None:
        async for batch in stream:
            await handover.feed(batch)

    @app.agent(app.topic(contributions, schema=BatchSchema()))
    async def release(stream: AsyncIterable[Batch]) -> None:
        async for batch in stream:
            await handover.feed(batch)

    return app


def run(settings: Settings, *, metrics_port: int | None = None, embedded: str | None = None) -> int:
    """Run the worker until it is told to stop.

    Args:
        settings: of the worker.
        metrics_port: instead of the settings' own.
        embedded: cluster id of the embedded Kafka that the caller started; None: a real cluster.

    Returns:
        The exit status: 0 after SIGTERM or SIGINT, 2 for refused settings or state, 75 when it stays fenced.

    Raises:
        SettingsError: it cannot start.
    """
    import uvloop

    key = NoiseKey(read_key(settings.worker.key_file))
    connection = connection_of(settings, embedded)
    topics = check_topics(settings, connection)
    data_dir = settings.worker.data_dir
    try:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise SettingsError(
            f"worker.data_dir = {str(data_dir)!r}: {error.strerror}; give a directory that can be written"
        ) from error
    for caution in cautions(topics.plan, topics.existing):
        logger.warning("%s", caution)
    factory = Factory(settings, connection, topics, key, None if topics.embedded else data_dir)
    logger.info("worker %s", settings.worker.name)
    for config, mechanism in zip(settings.histograms, factory.mechanisms, strict=True):
        promise = mechanism.guarantee
        logger.info(
            "histogram %s: %s, epsilon %.4g and delta %.3g for one %s and epoch",
            config.name,
            mechanism.kind,
            promise.epsilon,
            promise.delta,
            promise.unit,
        )
    uvloop.install()
    # Events are short-lived lists without cycles: with Python's usual thresholds, looking for cycles in them costs a third of
    # what it takes to read them (measured: 1.65 us an event with the usual ones, 0.93 with these).
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)
    app = build_app(settings, factory, connection)
    partitions = {
        CONTRIBUTE: topics.partitions(settings.events.topic),
        RELEASE: topics.partitions(settings.contributions_topic),
    }
    port = settings.worker.metrics_port if metrics_port is None else metrics_port
    with monitor(settings, app.handover, partitions, port):
        return run_app(app)
