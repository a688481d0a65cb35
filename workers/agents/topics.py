"""The worker's topics on the cluster; the first commit fixes a regular expression's matches.

Partitions count from the first commit on, those that a topic gets later once the state says so.
Stage 1 reads events and sends sums to the owners, the partitions of the contributions topic, where
stage 2 reads them.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata  # type: ignore[attr-defined]  # a re-export

from workers.agents.counted import counted_sources, stored_owners, stored_topics
from workers.agents.growth import (
    Growth,
    OwnerGrowth,
)
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
    split_complaints,
    stage_topics,
)

logger = logging.getLogger(__name__)

#: Interval between looks for new partitions, and matching topics that are not counted.
INTERVAL_S = 5.0
_ANSWER_S = 3.0
_AGAIN_S = 1.0
#: A topic is gone once this many listings in a row lack it.
MISSING_LOOKS = 3
FIXED = "the set of topics is fixed by the first start; a new worker name takes it in (a new stream, charged again)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """Topics on the cluster; `others` match the regular expression but are not counted.

    `existing` is the part of `plan` that exists; `plain`: the settings name one events topic;
    `counted` are their partitions as the state has them, None: all count; likewise
    `counted_owners`; `by_user` is the re-keyed topic that stage 1 reads, None: it reads the events
    topics.
    """

    events: tuple[str, ...]
    others: tuple[str, ...] = ()
    plan: list[Topic]
    existing: dict[str, ExistingTopic]
    plain: bool = True
    counted: Sources | None = None
    counted_owners: Owners | None = None
    by_user: str | None = None
    embedded: bool = False

    def partitions(self, name: str) -> int:
        return self.existing[name].partitions

    def id(self, name: str) -> str | None:
        """Return a topic's id, None only on the embedded cluster; SettingsError if it has none."""
        return None if self.embedded else checked_id(name, self.existing[name].topic_id)

    def stream(self, *names: str) -> str:
        """Return topic names and ids (none on the embedded cluster) as in mechanism ids."""
        return " ".join(f"{name}#{self.id(name) or ''}" for name in names)

    @property
    def origins(self) -> Sources:
        """Counted partitions of the events topics, which must all exist."""
        return self.counted or Sources(tuple(map(self.source, self.events)), self.plain)

    def owners(self, contributions: str) -> Owners:
        """Return the owners that the state counts, else that topic's partitions: it must exist."""
        return self.counted_owners or Owners(self.partitions(contributions))

    def used(self, existing: Mapping[str, ExistingTopic]) -> UsedTopics:
        """Return what the worker reads and writes; it does not write the events topics."""
        least = {
            name: int(topic.config.get("min.insync.replicas", "1"))
            for name, topic in existing.items()
            if name not in self.events
        }
        return UsedTopics(tuple(self.existing), least)

    @property
    def sources(self) -> Sources:
        """Partitions that stage 1 reads."""
        return (
            self.origins
            if self.by_user is None
            else Sources((self.source(self.by_user),))
        )

    def source(self, name: str) -> SourceTopic:
        return SourceTopic(name, self.partitions(name), self.id(name))


def connection_of(settings: Settings, embedded: str | None = None) -> Connection:
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
    """Plan and look up the topics; `events_partitions` is the default for missing events topics.

    Raises SettingsError if no broker answers, or the topics contradict the settings.
    """
    events, unread = events_topics(settings, connection)
    outputs = settings.output_topics
    own = (*settings.internal_topics, settings.budget_topic, *outputs)
    existing = describe(connection, [*events, *own])
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
    )
    embedded = connection.embedded is not None
    contributions = settings.contributions_topic
    # Until a state counts them: the partitions of the topic, or those that it is to have.
    [number] = [topic.partitions for topic in plan if topic.name == contributions]
    owners = Owners(number)
    state = settings.contribute_state_topic
    if not embedded and existing.keys() >= {contributions, state}:
        number = existing[contributions].partitions
        owners = stored_owners(connection, state, existing[state].partitions, number)
    _check_owners(settings, owners, existing)
    topics = Topics(
        events=events,
        others=unread,
        plan=plan,
        existing=existing,
        plain=settings.events.topics.is_single,
        counted_owners=owners,
        by_user=settings.by_user_topic if rekey else None,
        embedded=embedded,
    )
    state = first_state_topic(settings)
    if topics.embedded or not existing.keys() >= {*events, state}:
        return topics
    sources = tuple(map(topics.source, events))
    partitions = existing[state].partitions
    plain = topics.plain
    counted = counted_sources(connection, state, partitions, sources, plain=plain)
    return replace(topics, counted=counted)


def _check_owners(
    settings: Settings, owners: Owners, existing: Mapping[str, ExistingTopic]
) -> None:
    """Raise SettingsError if owners cannot grow as wanted, or are too few for a histogram."""
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
            raise SettingsError(complaint)


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
    absent = [
        topic.name for topic in kafka_topics.missing(topics.plan, topics.existing)
    ]
    for name in topics.events:
        if name in absent:
            raise _no_such_topic(settings, name)
    if absent:
        raise _missing(absent)
    wrong = kafka_topics.find_problems(topics.plan, topics.existing)
    owners = topics.owners(settings.contributions_topic)
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
    """Return the source partitions (`as_produced`: before re-keying), or raise SettingsError."""
    by_user = settings.privacy.rekey and not as_produced
    names = (
        (settings.by_user_topic,) if by_user else events_topics(settings, connection)[0]
    )
    state = first_state_topic(settings)
    existing = describe(connection, [*names, state])
    for name in names:
        if name not in existing:
            raise _missing([name]) if by_user else _no_such_topic(settings, name)
    plain = by_user or settings.events.topics.is_single
    embedded = connection.embedded is not None
    topics = Topics(
        events=names, plan=[], existing=existing, plain=plain, embedded=embedded
    )
    if settings.privacy.rekey or as_produced or embedded or state not in existing:
        return topics.sources
    try:
        now = topics.origins.first
        partitions = existing[state].partitions
        return counted_sources(connection, state, partitions, now, plain=plain)
    except KafkaException as error:
        if forbidden(error) is None:
            raise
        # With only the right to read events, take all their partitions as they are.
        return topics.sources


def events_topics(
    settings: Settings, connection: Connection
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the events topics, and matches of their regular expression that are not counted.

    SettingsError if there is none, or one that is counted is gone.
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
    """Return the topics that the regular expression selects, sorted, except any worker's own."""
    of_workers = {
        *settings.internal_topics,
        settings.budget_topic,
        *settings.output_topics,
    }
    for name in existing:
        # Another worker's: it has a worker's ending, and all internal topics of that name exist.
        worker = name.rpartition(".")[0]
        internal = stage_topics(worker)
        further = (budget_topic(worker), *rekey_topics(worker))
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

    `growths` react to new partitions. `fail` ends the worker, with a sentence for its operator;
    None: no change ends it.
    """

    settings: Settings
    topics: Topics
    metrics: Metrics
    growths: Sequence[Growth | OwnerGrowth] = ()
    fail: Callable[[str], object] | None = None

    def __post_init__(self) -> None:
        topics = self.topics
        # In how many listings in a row a topic was missing.
        self._missing: Counter[str] = Counter()
        self._said = set(kafka_topics.cautions(topics.plan, topics.existing))
        #: What the worker uses, with the replicas that its topics need by now.
        self.used = topics.used(topics.existing)
        self._note_unread(topics.others)

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
        """Let new partitions join; `fail` for changes that would lose something.

        Log matching topics that are not read, and set their metric. `errors` gets those of the
        client.
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
            admin.poll(0)  # serves the callback
            return metadata.controller_id in unreached(errors)

        topics = self.topics
        there = kafka_topics.among(metadata, topics.existing)
        current = kafka_topics.with_details(admin, there, is_away)
        absent = topics.existing.keys() - current.keys()
        self._missing = Counter({name: self._missing[name] + 1 for name in absent})
        # A broker that has just started may not know every topic yet.
        for name, looks in self._missing.items():
            if looks < MISSING_LOOKS:
                current[name] = topics.existing[name]
        problems, notes = kafka_topics.find_changes(
            topics.plan, topics.existing, current
        )
        for note in notes:
            self._say(note)
        self.used = topics.used(current)
        if problems:
            self.fail("; ".join(problems))

    def _note_unread(self, names: Collection[str]) -> None:
        """Log and count topics that match the regular expression but are not read."""
        pattern = self.settings.events.topics.pattern
        for name in sorted(names):
            self._say(
                f"topic {name} matches events.topic = {pattern!r} too, but is not counted: {FIXED}"
            )
        self.metrics.unread_topics.set(len(names))

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            logger.warning("%s", text)


@contextmanager
def watch_topics(connection: Connection, running: RunningTopics) -> Iterator[None]:
    """While the block runs, look at the topics every `INTERVAL_S`."""
    if not running.may_change:
        yield
        return
    ended = threading.Event()

    def poll() -> None:
        # One client for all looks, until it no longer reaches Kafka: then a new one.
        while not ended.wait(_AGAIN_S):
            errors: list[KafkaError] = []
            lost = False
            with suppress(KafkaException), connection.quiet_admin(errors) as admin:
                while not lost and not ended.wait(INTERVAL_S):
                    try:
                        metadata = admin.list_topics(timeout=_ANSWER_S)
                        running.look(admin, metadata, errors)
                        errors.clear()
                    except (KafkaException, QuietcountError) as error:
                        lost = unreachable(error)
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
    return SettingsError(
        f"missing topics: {', '.join(names)}: create them with `quietcount topics -c FILE --create`"
    )


def _no_such_topic(settings: Settings, name: str) -> SettingsError:
    return SettingsError(
        f"events.topic = {name!r}: no such topic on {settings.kafka.bootstrap}; if the name is right, create it "
        "(`quietcount topics -c FILE --create --events-topic`), or allow this worker to read it (deploy/acls.md)"
    )
