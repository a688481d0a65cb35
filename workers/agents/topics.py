"""The worker's topics on the cluster: which there are to be, and what happens to them meanwhile.

Where the settings give a regular expression, the first commit fixes the events topics that match.
Partitions count from the first commit on, those that a topic gets later once the state says so.
Stage 1 reads events and sends sums to the owners, the partitions of the contributions topic, where
stage 2 reads them. With `privacy.rekey`, events are first sent on by user, to the by-user topic:
then stage 1 reads that, and the partitions of the events topics are *origins*.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata  # type: ignore[attr-defined]  # a re-export

from workers.agents.counted import counted_sources, stored_owners, stored_topics
from workers.agents.growth import Growth, OwnerGrowth
from workers.kafka import topics as kafka_topics
from workers.kafka.clients import Connection, forbidden, unreachable, unreached
from workers.kafka.topics import (
    ExistingTopic,
    Topic,
    checked_id,
    counts_of,
    describe,
    partition_counts,
)
from workers.kafka.unavailable import UsedTopics
from workers.pipeline.growth.epochs import next_epoch
from workers.pipeline.growth.owners import Owners
from workers.pipeline.growth.sources import Sources, SourceTopic
from workers.runtime.errors import QuietcountError, SettingsError
from workers.runtime.errors import describe as describe_error
from workers.runtime.metrics import Metrics
from workers.settings.settings import (
    Settings,
    budget_topic,
    rekey_topics,
    signatures_topic,
    split_complaints,
    stage_topics,
)

logger = logging.getLogger(__name__)

#: Interval between looks for new partitions, and matching topics that are not counted.
INTERVAL_S = 5.0
_ANSWER_S = 3.0
# Before a new client, after one that did not reach Kafka.
_AGAIN_S = 1.0
#: A topic is gone once this many listings in a row lack it.
MISSING_LOOKS = 3
FIXED = "the set of topics is fixed by the first start; a new worker name takes it in (a new stream, charged again)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """Every topic that the worker needs, and the partitions that count.

    `existing` is the part of `plan` that is on the cluster; the rest has the partitions it is
    planned with. `unread` match the regular expression but are not counted. `origins` are the
    counted partitions of the events topics, `by_user` those of the topic they are re-keyed to.
    `embedded`: the cluster is the caller's own, which gives topics no ids.
    """

    plan: list[Topic]
    existing: dict[str, ExistingTopic]
    unread: tuple[str, ...] = ()
    origins: Sources
    by_user: Sources | None = None
    owners: Owners
    embedded: bool = False

    @property
    def sources(self) -> Sources:
        """Partitions that stage 1 reads."""
        return self.origins if self.by_user is None else self.by_user

    @property
    def events(self) -> tuple[str, ...]:
        return tuple(topic.name for topic in self.origins.first)

    def partitions(self, name: str) -> int:
        return self.existing[name].partitions

    def id(self, name: str) -> str | None:
        return _id(self.existing[name], self.embedded)

    def stream(self, *names: str) -> str:
        """Return the names and ids of topics as text, for mechanism ids: noise depends on both."""
        return " ".join(f"{name}#{self.id(name) or ''}" for name in names)

    def used(self, existing: Mapping[str, ExistingTopic]) -> UsedTopics:
        """Return the topics that the worker uses, and how many replicas its writes to them need.

        `existing` has the topics' settings as they are now. The worker never writes events topics.
        """
        least = {
            name: int(topic.config.get("min.insync.replicas", "1"))
            for name, topic in existing.items()
            if name not in self.events
        }
        return UsedTopics(tuple(self.existing), least)


def _id(topic: ExistingTopic, embedded: bool) -> str | None:
    """Return a topic's id, None only on the embedded cluster; SettingsError if it has none."""
    return None if embedded else checked_id(topic.name, topic.topic_id)


def _source(topic: ExistingTopic, embedded: bool) -> SourceTopic:
    return SourceTopic(topic.name, topic.partitions, _id(topic, embedded))


def connection_of(settings: Settings, embedded: str | None = None) -> Connection:
    """Return the connection to the settings' Kafka, or to the `embedded` one with this id."""
    kafka = settings.kafka
    return Connection(
        kafka.bootstrap,
        kafka.client,
        embedded,
        token_file=kafka.token_file,
        token_command=kafka.token_command,
    )


def inspect_topics(
    settings: Settings, connection: Connection, events_partitions: int | None = None
) -> Topics:
    """Plan the worker's topics, look them up, and read from the state which partitions count.

    A missing events topic is planned with `events_partitions`. Raises SettingsError if no broker
    answers, or the topics contradict the settings.
    """
    events, unread = events_topics(settings, connection)
    outputs = settings.output_topics
    signatures = settings.signatures_topic
    written = [*settings.internal_topics, settings.budget_topic, *outputs]
    written += [] if signatures is None else [signatures]
    existing = describe(connection, [*events, *written])
    worker = settings.worker
    rekey = settings.privacy.rekey
    plan = kafka_topics.plan_topics(
        worker.name,
        events,
        events_partitions,
        worker.owner_partitions,
        outputs,
        existing,
        rekey=rekey,
        user_partitions=worker.user_partitions,
        signatures=signatures,
    )
    planned = {topic.name: topic.partitions for topic in plan}
    embedded = connection.embedded is not None

    def source(name: str) -> SourceTopic:
        """Return an events topic as it is on the cluster, else as it is to be."""
        if name in existing:
            return _source(existing[name], embedded)
        return SourceTopic(name, planned[name], None)

    # The stored state has the number of owners and origins. Without one, they are all partitions
    # that their topics have or will get. An embedded cluster begins without state.
    state = settings.contribute_state_topic
    owners = Owners(planned[settings.contributions_topic])
    if not embedded and existing.keys() >= {settings.contributions_topic, state}:
        number = existing[settings.contributions_topic].partitions
        owners = stored_owners(connection, state, existing[state].partitions, number)
    _check_owners(settings, owners, existing)
    is_single = settings.events.topics.is_single
    origins = Sources(tuple(map(source, events)), is_single)
    first_state = first_state_topic(settings)
    if not embedded and existing.keys() >= {*events, first_state}:
        partitions = existing[first_state].partitions
        origins = counted_sources(
            connection, first_state, partitions, origins.first, plain=is_single
        )
    return Topics(
        plan=plan,
        existing=existing,
        unread=unread,
        origins=origins,
        by_user=Sources((source(settings.by_user_topic),)) if rekey else None,
        owners=owners,
        embedded=embedded,
    )


def _check_owners(
    settings: Settings, owners: Owners, existing: Mapping[str, ExistingTopic]
) -> None:
    """Raise SettingsError if owners cannot grow as wanted, or are too few for a split histogram.

    They grow where epochs of all histograms begin together.
    """
    wanted = settings.worker.owner_partitions
    epochs = (one.grid for one in settings.histograms)
    grows = wanted is not None and settings.contributions_topic in existing
    if grows and wanted != owners.number and next_epoch(epochs, 0) is None:
        raise SettingsError(
            f"worker.owner_partitions = {wanted}: there are {owners.number}, and more need a time at which epochs of "
            f"all histograms begin together: there never is one{_endless(settings)}"
        )
    owners_now = owners.at(time.time_ns() // 1_000_000)
    for config in settings.histograms:
        for complaint in split_complaints(config, owners_now):
            raise SettingsError(f"{config.where()}{complaint}")


def _endless(settings: Settings) -> str:
    """Return which histograms keep owners from growing for ever, and what to do, if any do."""
    endless = (one for one in settings.histograms if one.horizon_ticks is None)
    names = [config.name for config in endless]
    if not names:
        return ""
    return (
        f" ({', '.join(names)}: without an epoch's end). A worker of another name may have more of them: a new stream, "
        "which begins with nothing and is charged again"
    )


def first_state_topic(settings: Settings) -> str:
    """Return the state topic of the stage that reads the events topics."""
    rekey = settings.privacy.rekey
    return settings.rekey_state_topic if rekey else settings.contribute_state_topic


def partitions_by_user(settings: Settings, connection: Connection) -> Sources:
    """Return the by-user topic's partitions; none without `privacy.rekey` or before it exists."""
    if not settings.privacy.rekey:
        return Sources(())
    topics = describe(connection, [settings.by_user_topic]).values()
    return Sources(
        tuple(SourceTopic(one.name, one.partitions, one.topic_id) for one in topics)
    )


def check_topics(settings: Settings, connection: Connection) -> Topics:
    """Return the worker's topics; raise SettingsError if one is missing or unusable."""
    topics = inspect_topics(settings, connection)
    absent = kafka_topics.missing(topics.plan, topics.existing)
    for topic in absent:
        if topic.purpose == kafka_topics.EVENTS:
            raise _no_such_topic(settings, topic.name)
    if absent:
        raise _missing([topic.name for topic in absent])
    wrong = kafka_topics.find_problems(topics.plan, topics.existing)
    owners = topics.owners
    for name in (settings.contributions_topic, settings.release_state_topic):
        if topics.partitions(name) < owners.number:
            wrong.append(
                f"topic {name} has {topics.partitions(name)} partitions, and there are {owners.number} owners: "
                "`quietcount topics -c FILE --create` adds the others"
            )
    if wrong:
        raise SettingsError("; ".join(wrong))
    return topics


def check_events(
    settings: Settings, connection: Connection, *, as_produced: bool = False
) -> Sources:
    """Return the partitions from which a command reads events; SettingsError if topics are missing.

    With `privacy.rekey` they are those of the by-user topic, unless the events are wanted
    `as_produced`, before re-keying. Except then, only partitions that the state counts are
    returned.
    """
    by_user = settings.privacy.rekey and not as_produced
    names = (
        (settings.by_user_topic,) if by_user else events_topics(settings, connection)[0]
    )
    state = first_state_topic(settings)
    existing = describe(connection, [*names, state])
    for name in names:
        if name not in existing:
            raise _missing([name]) if by_user else _no_such_topic(settings, name)
    is_single = by_user or settings.events.topics.is_single
    embedded = connection.embedded is not None
    sources = Sources(
        tuple(_source(existing[name], embedded) for name in names), is_single
    )
    if settings.privacy.rekey or as_produced or embedded or state not in existing:
        return sources
    try:
        partitions = existing[state].partitions
        return counted_sources(
            connection, state, partitions, sources.first, plain=is_single
        )
    except KafkaException as error:
        if forbidden(error) is None:
            raise
        # This principal may read the events but not the state: return all partitions.
        return sources


def events_topics(
    settings: Settings, connection: Connection
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the events topics, and matches of their regular expression that are not counted.

    Those that the first commit fixed, or before it all that match. SettingsError if there is none,
    or one that is counted is gone.
    """
    events = settings.events.topics
    if events.pattern is None:
        return events.names, ()
    counts = partition_counts(connection)
    matches = matching(settings, counts)
    state = first_state_topic(settings)
    stored = (
        stored_topics(connection, state, counts[state]) if state in counts else None
    )
    if stored is None:
        if not matches:
            raise SettingsError(
                f"events.topic = {events.pattern!r}: matches no topic on {settings.kafka.bootstrap}; create one first, "
                "or allow this worker to see it (deploy/acls.md)"
            )
        return tuple(matches), ()
    for topic in stored:
        if topic.name not in counts:
            raise _no_such_topic(settings, topic.name)
    names = tuple(topic.name for topic in stored)
    return names, tuple(name for name in matches if name not in names)


def matching(settings: Settings, existing: Collection[str]) -> list[str]:
    """Return the topics that the regular expression selects, sorted, without any worker's own.

    What a worker writes is never counted, even if the expression matches it.
    """
    of_workers = {
        *settings.internal_topics,
        settings.budget_topic,
        *settings.output_topics,
    }
    for name in existing:
        # "<worker>.budget", for example, is another worker's if all of that worker's internal
        # topics exist; else it only looks like it.
        worker = name.rpartition(".")[0]
        internal = stage_topics(worker)
        further = (
            budget_topic(worker),
            signatures_topic(worker),
            *rekey_topics(worker),
        )
        if name in (*internal, *further) and all(
            topic in existing for topic in internal
        ):
            of_workers.add(name)
    selects = settings.events.topics.matches
    return [
        name for name in sorted(existing) if name not in of_workers and selects(name)
    ]


@dataclass
class RunningTopics:
    """The worker's topics during one run: `look` finds what was done to them since its start.

    `topics` are those of the start. `growths` react to new partitions. `fail` ends the worker, with
    a sentence for its operator; None: no change ends it.
    """

    settings: Settings
    topics: Topics
    metrics: Metrics
    growths: Sequence[Growth | OwnerGrowth] = ()
    fail: Callable[[str], object] | None = None

    def __post_init__(self) -> None:
        topics = self.topics
        # By topic: how many of the latest listings in a row lacked it.
        self._missing: Counter[str] = Counter()
        # Sentences not to be logged again; the start has logged these.
        self._logged = set(kafka_topics.cautions(topics.plan, topics.existing))
        #: The worker's topics, with the replicas that its writes need: `look` updates them.
        self.used = topics.used(topics.existing)
        self._note_unread(topics.unread)

    @property
    def may_change(self) -> bool:
        """Whether anything can happen to the topics that this run reacts to."""
        has_pattern = self.settings.events.topics.pattern is not None
        return has_pattern or bool(self.growths) or self.fail is not None

    def look(
        self,
        admin: AdminClient,
        metadata: ClusterMetadata,
        errors: Sequence[KafkaError],
    ) -> None:
        """Compare the topics with those of the start; the client `admin` has got `metadata` now.

        Let new partitions join; `fail` for changes that would lose something. Log matching topics
        that are not read, and set their metric. `errors` are those that the client has met: they
        tell which brokers it does not reach.
        """
        counts = counts_of(metadata)
        if self.settings.events.topics.pattern is not None:
            matches = matching(self.settings, counts)
            self._note_unread(set(matches).difference(self.topics.events))
        for growth in self.growths:
            growth.look(counts)
        if self.fail is None:
            return

        def is_away() -> bool:
            """Return whether the controller, which has the details, cannot be reached."""
            admin.poll(0)  # serves the callback that fills `errors`
            return metadata.controller_id in unreached(errors)

        topics = self.topics
        listed = kafka_topics.among(metadata, topics.existing)
        current = kafka_topics.with_details(admin, listed, is_away)
        absent = topics.existing.keys() - current.keys()
        self._missing = Counter({name: self._missing[name] + 1 for name in absent})
        # A broker that has just started may not know every topic yet: taken as unchanged.
        for name, looks in self._missing.items():
            if looks < MISSING_LOOKS:
                current[name] = topics.existing[name]
        problems, notes = kafka_topics.find_changes(
            topics.plan, topics.existing, current
        )
        for note in notes:
            self._log_once(note)
        self.used = topics.used(current)
        if problems:
            self.fail("; ".join(problems))

    def _note_unread(self, names: Collection[str]) -> None:
        """Log and count topics that match the regular expression but are not read."""
        pattern = self.settings.events.topics.pattern
        for name in sorted(names):
            self._log_once(
                f"topic {name} matches events.topic = {pattern!r} too, but is not counted: {FIXED}"
            )
        self.metrics.unread_topics.set(len(names))

    def _log_once(self, text: str) -> None:
        if text not in self._logged:
            self._logged.add(text)
            logger.warning("%s", text)


@contextmanager
def watch_topics(connection: Connection, running: RunningTopics) -> Iterator[None]:
    """While the block runs, look at the topics every `INTERVAL_S`."""
    if not running.may_change:
        yield
        return
    ended = threading.Event()

    def poll() -> None:
        """Look at the topics until the block ends, with one client as long as it reaches Kafka."""
        while not ended.wait(_AGAIN_S):
            # Filled by the client.
            errors: list[KafkaError] = []
            is_lost = False
            with suppress(KafkaException), connection.quiet_admin(errors) as admin:
                while not is_lost and not ended.wait(INTERVAL_S):
                    try:
                        metadata = admin.list_topics(timeout=_ANSWER_S)
                        running.look(admin, metadata, errors)
                        errors.clear()
                    except (KafkaException, QuietcountError) as error:
                        is_lost = unreachable(error)
                        logger.debug(
                            "the topics could not be looked at: %s",
                            describe_error(error),
                        )

    thread = threading.Thread(target=poll, name="topics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(2 * _ANSWER_S)  # its client must not outlive Python


def _missing(names: Sequence[str]) -> SettingsError:
    """Return the error for topics of the worker's own that do not exist."""
    return SettingsError(
        f"missing topics: {', '.join(names)}: create them with `quietcount topics -c FILE --create`"
    )


def _no_such_topic(settings: Settings, name: str) -> SettingsError:
    """Return the error for an events topic that does not exist, or may not be seen."""
    return SettingsError(
        f"events.topic = {name!r}: no such topic on {settings.kafka.bootstrap}; if the name is right, create it "
        "(`quietcount topics -c FILE --create --events-topic`), or allow this worker to read it (deploy/acls.md)"
    )
