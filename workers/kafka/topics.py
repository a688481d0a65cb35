"""The topics a worker needs: planning, checks and creation. Existing topics are never altered.

topic                        partitions        cleanup   retention   contents
<events>, each               yours             yours     yours       the events
<name>.by-user               users             delete    7 days      with rekey: the events again
<name>.rekey-state           as all events     compact   -           with rekey: its progress
<name>.contributions         owners            delete    infinite    stage 1's messages, audited
<name>.contribute-state      as all events (1) compact   -           stage 1's state
<name>.release-state         owners            compact   -           stage 2's state
<name>.rejects               as all events     delete    default     dead letters
<name>.<histogram>           owners            delete    infinite    snapshots, with ticks' times
<name>.budget                1                 compact   -           for readers: what is left
<name>.signatures            owners            delete    infinite    with a signing key: its records

(1) With rekey: as <name>.by-user, which stage 1 then reads. Its partition count never changes: it
determines each user's partition. Every transaction that writes it ends with records of that day in
every partition (agents/rekey.py), so retention counts from when records were written.

`users` and `owners` are the partition counts of the topics of stage 1's input by user and of its
messages; stage 2 has a shard for every owner.

All but the events topics need record batches of 1,000,000 bytes: see runtime/sizes.py. Snapshots
carry their tick's timestamp, so a finite retention would delete those of an old stream immediately.

Noise is derived from topic ids (`mechanisms/identity.py`). A re-created topic with the same id
would get the same noise over other data, and the difference of the published results would be
exact. So the worker refuses clusters without ids (Kafka before 2.8, KIP-516) and state made without
them, except on the embedded cluster, which ends with the demo, as does its key.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NoReturn

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exports
    AdminClient,
    ClusterMetadata,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from workers.kafka.clients import Connection, await_answers
from workers.runtime.errors import SettingsError, StateRefused
from workers.runtime.sizes import BATCH_BYTES, TOPIC_BYTES
from workers.settings.settings import budget_topic, rekey_topics, stage_topics

#: 16 zero bytes in Kafka's notation of ids.
ZERO_ID = "AAAAAAAAAAAAAAAAAAAAAA"


def checked_id(topic: str, topic_id: object) -> str:
    """Return a topic's id as text; SettingsError if the cluster gives it none."""
    text = "" if topic_id is None else str(topic_id)
    if text in ("", ZERO_ID):
        raise SettingsError(
            f"topic {topic}: the cluster gives it no topic id, so it cannot be distinguished from one that was deleted "
            "and created again, which must get other noise. This takes Kafka 2.8 or newer; with ZooKeeper also "
            "inter.broker.protocol.version 2.8 or newer on every broker (with KRaft there are always ids)"
        )
    return text


def lacks_ids(stream: str) -> bool:
    """Return whether a stream, "topic#id" for each topic, has a topic without an id."""
    return any(topic.endswith(("#", f"#{ZERO_ID}")) for topic in stream.split(" "))


def refuse_without_ids(state: str) -> NoReturn:
    """Refuse a state whose stream `lacks_ids`; `state` names it in the message."""
    raise StateRefused(
        f"{state}: made on a cluster that gave topics no ids, so Quietcount cannot tell whether a topic was deleted and "
        "created again: take a new worker name (a new stream, charged again). If one was, snapshots from before and "
        "after share noise"
    )


#: As retention.ms.
INFINITE = -1
# Purposes of topics, which decide what is checked, as messages name them.
EVENTS = "events"
BY_USER = "events, keyed by user"
CONTRIBUTIONS = "contributions"
SNAPSHOTS = "snapshots"
SIGNATURES = "signatures"
REJECTS = "dead letters"
REKEY_STATE = "state of rekeying"
CONTRIBUTE_STATE = "state of stage 1"
RELEASE_STATE = "state of stage 2"
BUDGET = "what is left of the budget"
COMPACT = "compact"
#: Topics whose records compaction would remove, or refuse, and what that means.
_LOST_BY_COMPACTION = MappingProxyType(
    {
        BY_USER: "all but the last event of a user would vanish",
        CONTRIBUTIONS: "records would vanish",
        REJECTS: "it takes no record without a key, so one reject would stop every worker",
        SNAPSHOTS: "all but the last snapshot of a stream key would vanish",
        SIGNATURES: "all but the last signature of a histogram would vanish",
    }
)
#: Topics that the worker never reads.
_ONLY_WRITTEN = (REJECTS, SNAPSHOTS, BUDGET, SIGNATURES)
BY_USER_RETENTION_MS = 7 * 86_400_000
DEFAULT_PARTITIONS = 4
_ANSWER_S = 10.0
_AGAIN_S = 0.05
#: Prefix of librdkafka's in-process cluster ids; Kafka's own ids are 22 characters of base64.
_EMBEDDED = "mockCluster"
#: Prefix of Kafka's own topics: __consumer_offsets, __transaction_state.
INTERNAL_PREFIX = "__"
# Settings of topics that checks and messages use.
_SHOWN = (
    "cleanup.policy",
    "retention.ms",
    "retention.bytes",
    "max.message.bytes",
    "min.insync.replicas",
    "segment.bytes",
    "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms",
    "message.timestamp.difference.max.ms",
)


@dataclass(frozen=True)
class Topic:
    """A topic that the worker needs, and `purpose`, which decides what is checked of it.

    `retention_ms` None: the cluster's default; `INFINITE`: keep everything.
    """

    name: str
    partitions: int
    cleanup_policy: str
    retention_ms: int | None
    purpose: str

    def config(self) -> dict[str, str]:
        """Return the settings to create the topic with."""
        config = {"cleanup.policy": self.cleanup_policy}
        # Forwarded events keep their time, whatever the brokers' default.
        if self.purpose == BY_USER:
            config["message.timestamp.type"] = "CreateTime"
        if self.retention_ms is not None:
            config["retention.ms"] = str(self.retention_ms)
        if self.purpose != EVENTS:
            config["max.message.bytes"] = str(TOPIC_BYTES)
        return config


@dataclass(frozen=True)
class ExistingTopic:
    """A topic on the cluster. On the embedded one `topic_id` is None and `config` empty."""

    name: str
    partitions: int
    topic_id: str | None = None
    config: Mapping[str, str] = field(default_factory=dict)


def plan_topics(
    name: str,
    events_topics: Sequence[str],
    events_partitions: int | None,
    owners: int | None,
    histogram_topics: Sequence[str],
    existing: Mapping[str, ExistingTopic],
    *,
    rekey: bool = False,
    user_partitions: int | None = None,
    signatures: str | None = None,
) -> list[Topic]:
    """Return every topic that worker `name` needs, in the order of the module's table.

    Existing topics take precedence. `events_partitions` applies to every missing events topic,
    unless existing state has other counts. `owners` and `user_partitions` (with `rekey`) default
    to the counts of an earlier start, else of the events. `owners` may be a multiple of an earlier
    count: the topics that lack partitions get them later. `signatures` is that topic's name, with a
    signing key.
    """
    contributions, contribute_state, release_state, rejects = stage_topics(name)
    by_user, rekey_state = rekey_topics(name)
    state = rekey_state if rekey else contribute_state
    of_events = _event_partitions(events_topics, existing, state, events_partitions)
    plan = [Topic(topic, n, "delete", None, EVENTS) for topic, n in of_events.items()]
    # Partitions that stage 1 reads: those of the events topics, or with rekey of the by-user topic.
    sources = sum(of_events.values())
    if rekey:
        origins = sources
        sources = user_partitions or sources
        if by_user in existing:
            sources = existing[by_user].partitions
            if user_partitions not in (None, sources):
                raise SettingsError(
                    f"worker.user_partitions = {user_partitions}, but topic {by_user} has {sources} partitions: the number "
                    "cannot change, since users are hashed onto them. Set it back, or use a new worker.name"
                )
        plan.append(Topic(by_user, sources, "delete", BY_USER_RETENTION_MS, BY_USER))
        plan.append(Topic(rekey_state, origins, "compact", None, REKEY_STATE))
    # Topics with a partition for every owner.
    of_owners = [
        existing[topic] for topic in (contributions, release_state) if topic in existing
    ]
    for topic in of_owners:
        if owners is not None and owners % topic.partitions:
            raise SettingsError(
                f"worker.owner_partitions = {owners}, but topic {topic.name} has {topic.partitions} partitions: the number of "
                "owners may only grow, to a multiple. Set it back, or use a new worker.name"
            )
    # The contributions topic comes first here: the state topic may have more for a moment.
    owners = owners or (of_owners[0].partitions if of_owners else sources)
    plan += [
        Topic(contributions, owners, "delete", INFINITE, CONTRIBUTIONS),
        Topic(contribute_state, sources, "compact", None, CONTRIBUTE_STATE),
        Topic(release_state, owners, "compact", None, RELEASE_STATE),
        Topic(rejects, sources, "delete", None, REJECTS),
    ]
    plan += [
        Topic(topic, owners, "delete", INFINITE, SNAPSHOTS)
        for topic in histogram_topics
    ]
    plan.append(Topic(budget_topic(name), 1, "compact", None, BUDGET))
    if signatures is not None:
        plan.append(Topic(signatures, owners, "delete", INFINITE, SIGNATURES))
    return plan


def _event_partitions(
    topics: Sequence[str],
    existing: Mapping[str, ExistingTopic],
    state: str,
    partitions: int | None,
) -> dict[str, int]:
    """Return the partition count of every events topic: its own, or that to create it with.

    The `state` topic of the stage that reads them has one partition for each of theirs. So if it
    exists, the partitions that existing topics do not account for are shared equally by the missing
    ones; else each of these gets `partitions`.
    """
    present = {
        topic: existing[topic].partitions for topic in topics if topic in existing
    }
    absent = len(topics) - len(present)
    if absent and state in existing:
        left = existing[state].partitions - sum(present.values())
        if left > 0 and left % absent == 0:
            partitions = left // absent
    return {
        topic: present.get(topic, partitions or DEFAULT_PARTITIONS) for topic in topics
    }


def describe(connection: Connection, names: Iterable[str]) -> dict[str, ExistingTopic]:
    """Return the existing topics among `names`; refuse a cluster without ids or answers."""
    # List all topics: asking for one by name may create it.
    with _connect(connection) as (admin, metadata):
        found = among(metadata, names)
        return found if connection.embedded is not None else with_details(admin, found)


def among(metadata: ClusterMetadata, names: Iterable[str]) -> dict[str, ExistingTopic]:
    """Return the existing topics among `names`, without ids and settings."""
    return {
        name: ExistingTopic(name, len(metadata.topics[name].partitions))
        for name in dict.fromkeys(names)
        if name in metadata.topics and metadata.topics[name].error is None
    }


def with_details(
    admin: AdminClient,
    listed: Mapping[str, ExistingTopic],
    is_away: Callable[[], bool] = lambda: False,
) -> dict[str, ExistingTopic]:
    """Return topics with their ids, and with the settings that checks use (`_SHOWN`).

    A topic whose settings this principal may not see has none. Raises KafkaException once `is_away`
    says that the controller, which is asked for both, cannot be reached.
    """
    detailed = dict(listed)
    if not detailed:
        return detailed
    for name, topic_id in _topic_ids(admin, list(listed), is_away).items():
        detailed[name] = replace(detailed[name], topic_id=topic_id)
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in listed]
    asked = admin.describe_configs(resources, request_timeout=_ANSWER_S)
    _await(asked.values(), is_away)
    for resource, future in asked.items():
        with suppress(KafkaException):
            entries = future.result()
            name = resource.name
            shown = {key: str(entries[key].value) for key in _SHOWN if key in entries}
            detailed[name] = replace(detailed[name], config=shown)
    return detailed


def _await(futures: Collection[Future[Any]], is_away: Callable[[], bool]) -> None:
    """Wait for answers of the controller; raise KafkaException once it `is_away`."""
    if await_answers(futures, lambda _: is_away()):
        raise KafkaException(
            KafkaError(KafkaError._TRANSPORT, "the controller is not reached")
        )


def _topic_ids(
    admin: AdminClient, names: list[str], is_away: Callable[[], bool]
) -> dict[str, str]:
    """Return the ids; a new topic may be known to the broker that listed it, but not to another."""
    deadline = time.monotonic() + _ANSWER_S
    while True:
        described = admin.describe_topics(
            TopicCollection(names), request_timeout=_ANSWER_S
        )
        _await(described.values(), is_away)
        try:
            return {
                name: checked_id(name, future.result().topic_id)
                for name, future in described.items()
            }
        except KafkaException as error:
            unknown = error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
            if not unknown or time.monotonic() >= deadline:
                raise
        time.sleep(_AGAIN_S)


def default_partitions(connection: Connection) -> int:
    """Return the brokers' num.partitions; `DEFAULT_PARTITIONS` if it is not shown."""
    with _connect(connection) as (admin, metadata):
        broker = ConfigResource(ResourceType.BROKER, str(min(metadata.brokers)))
        [future] = admin.describe_configs([broker], request_timeout=_ANSWER_S).values()
        with suppress(KafkaException, KeyError):
            return int(future.result()["num.partitions"].value)
    return DEFAULT_PARTITIONS


def partition_counts(connection: Connection) -> dict[str, int]:
    """Return the partition counts of the topics that this principal may see (`counts_of`)."""
    with _connect(connection) as (_, metadata):
        return counts_of(metadata)


def counts_of(metadata: ClusterMetadata) -> dict[str, int]:
    """Return partition counts by topic, sorted, without Kafka's own topics."""
    return {
        name: len(topic.partitions)
        for name, topic in sorted(metadata.topics.items())
        if topic.error is None and not name.startswith(INTERNAL_PREFIX)
    }


def current_id(connection: Connection, topic: str) -> str:
    """Return the id that a topic has now; SettingsError if the cluster gives it none."""
    with connection.admin() as admin:
        asked = admin.describe_topics(
            TopicCollection([topic]), request_timeout=_ANSWER_S
        )
        return checked_id(topic, asked[topic].result().topic_id)


@contextmanager
def _connect(connection: Connection) -> Iterator[tuple[AdminClient, ClusterMetadata]]:
    """Yield an admin client and the cluster's metadata, once the cluster has a controller."""
    where = f"kafka.bootstrap = {connection.bootstrap!r}"
    embedded = connection.embedded
    with connection.connect(_ANSWER_S) as (admin, metadata):
        # A cluster has no controller during an election; the embedded one never has one, by which
        # it is told from a real cluster.
        if embedded is not None:
            known = embedded.startswith(_EMBEDDED) and metadata.cluster_id == embedded
            if not known or metadata.controller_id in metadata.brokers:
                raise SettingsError(
                    f"{where}: not the expected embedded Kafka; "
                    "leave --embedded out, it is for the demo's own worker"
                )
        deadline = time.monotonic() + _ANSWER_S
        while embedded is None and metadata.controller_id not in metadata.brokers:
            if time.monotonic() >= deadline:
                raise SettingsError(
                    f"{where}: the cluster has had no controller for {_ANSWER_S:g} s, and "
                    "without one it reports no topic ids: repair its controllers, then start again"
                )
            time.sleep(_AGAIN_S)
            metadata = admin.list_topics(timeout=_ANSWER_S)
        yield admin, metadata


def find_problems(
    plan: Sequence[Topic], existing: Mapping[str, ExistingTopic]
) -> list[str]:
    """Return one sentence per problem with existing topics that prevents the start.

    Counts that will be mended, since partitions are added while workers run, are no problem.
    """
    problems = []
    # A state topic has as many partitions as the events topics or, in stage 1 with rekey, as the
    # by-user topic.
    events = [topic.name for topic in plan if topic.purpose == EVENTS]
    events_have = (
        f"{events[0]} has" if len(events) == 1 else f"{', '.join(events)} together have"
    )
    by_user_has = next(
        (f"{topic.name} has" for topic in plan if topic.purpose == BY_USER), events_have
    )
    growing = find_growing(plan, existing)
    for topic, current in _existing(plan, existing):
        name = topic.name
        purpose = topic.purpose
        has = current.partitions
        # librdkafka's partitioner places its records, or all are in the first one.
        any_count_works = purpose in _ONLY_WRITTEN
        # New owners' partitions are added to it first, then to the contributions topic.
        may_be_ahead = purpose == RELEASE_STATE
        fits = has == topic.partitions or any_count_works or may_be_ahead
        if fits or topic in growing:
            pass
        elif purpose == CONTRIBUTIONS:
            problems.append(
                f"{name} has {has} partitions, and worker.owner_partitions is {topic.partitions}: "
                "`quietcount topics -c FILE --create` adds the others"
            )
        elif purpose in (CONTRIBUTE_STATE, REKEY_STATE):
            input_has = events_have if purpose == REKEY_STATE else by_user_has
            problems.append(
                f"{input_has} {topic.partitions} partitions, but {name} was made for {has}: a changed "
                "partition count or set of topics needs a new worker.name (a new stream, charged again)"
            )
        else:
            problems.append(f"{name} has {has} partitions and needs {topic.partitions}")
        problems += _config_problems(topic, current)
    return problems


def policies(value: str) -> set[str]:
    """Return the policies in a `cleanup.policy`: Kafka takes them in any order and case."""
    return {policy.strip().lower() for policy in value.split(",")} - {""}


def _config_problems(topic: Topic, current: ExistingTopic) -> list[str]:
    """Return what in a topic's settings would lose the worker's records or refuse them.

    Settings that this principal cannot see are assumed to be right.
    """
    problems = []
    name = topic.name
    purpose = topic.purpose
    policy = current.config.get("cleanup.policy", topic.cleanup_policy)
    has_policy = f"{name} has cleanup.policy = {policy}"
    # The budget topic is compacted too, but is not state: only readers use it.
    is_state = topic.cleanup_policy == COMPACT and purpose != BUDGET
    if is_state and policies(policy) != {COMPACT}:
        problems.append(f"{has_policy} and needs compact: state would be lost")
    if purpose in _LOST_BY_COMPACTION and COMPACT in policies(policy):
        lost = _LOST_BY_COMPACTION[purpose]
        problems.append(
            f"{has_policy} and needs delete: {lost}; change it with kafka-configs.sh"
        )
    hints = {
        "max.message.bytes": f", to {TOPIC_BYTES} as Kafka has it by default",
        "segment.bytes": "",
    }
    # The worker writes to all but the events topics.
    for setting, hint in hints.items():
        limit = int(current.config.get(setting, TOPIC_BYTES))
        if purpose != EVENTS and limit < BATCH_BYTES:
            problems.append(
                f"{name} has {setting} = {limit} and needs {BATCH_BYTES}: long labels in the data could "
                f"stop the worker; raise it with kafka-configs.sh{hint}"
            )
    return problems


def cautions(plan: Sequence[Topic], existing: Mapping[str, ExistingTopic]) -> list[str]:
    """Return one sentence per topic setting that may lose something, yet lets the worker start."""
    sentences = []
    infinite = str(INFINITE)
    for topic, current in _existing(plan, existing):
        for name in ("retention.ms", "retention.bytes"):
            retention = current.config.get(name, infinite)
            if topic.retention_ms == INFINITE and retention != infinite:
                sentences.append(
                    f"{topic.name} has {name} = {retention}: what it removes cannot be audited (-1 keeps everything)"
                )
        policy = current.config.get("cleanup.policy", "")
        if topic.purpose == EVENTS and COMPACT in policies(policy):
            sentences.append(
                f"{topic.name} has cleanup.policy = {policy}: an event that a later record of its key replaces "
                "before the worker has read it is never counted, and nothing shows it; delete keeps every event"
            )
    return sentences


def find_changes(
    plan: Sequence[Topic],
    before: Mapping[str, ExistingTopic],
    current: Mapping[str, ExistingTopic],
) -> tuple[list[str], list[str]]:
    """Return what must end a worker that runs, and what its operator should know, as sentences.

    `before` are the topics as they were when it began. A changed number of partitions is neither
    (agents/growth.py).
    """
    problems: list[str] = []
    for topic, old in _existing(plan, before):
        new = current.get(topic.name)
        if new is None:
            problems.append(str(gone(topic.name)))
            continue
        if new.topic_id != old.topic_id and topic.purpose not in _ONLY_WRITTEN:
            problems.append(
                f"topic {topic.name} was deleted and created again while this worker ran: start it again, and it says "
                "what to do"
            )
        problems += _config_problems(topic, new)
    return problems, [*holes(plan, before, current), *cautions(plan, current)]


def holes(
    plan: Sequence[Topic],
    before: Mapping[str, ExistingTopic],
    current: Mapping[str, ExistingTopic],
) -> list[str]:
    """Return a sentence for each topic that the worker only writes and that was created again.

    `before` are the topics as they were at the start. The worker goes on, but readers see a gap.
    """
    return [
        f"topic {topic.name} was deleted and created again while this worker ran: what was in it is gone, and "
        "is not published again"
        for topic, old in _existing(plan, before)
        if topic.purpose in _ONLY_WRITTEN
        and topic.name in current
        and current[topic.name].topic_id != old.topic_id
    ]


def gone(topic: str) -> SettingsError:
    """Return the error for a topic that a worker uses and the cluster no longer lists."""
    return SettingsError(
        f"topic {topic} does not exist any more, or this worker may no longer see it: it was deleted, or a right was "
        "withdrawn (deploy/acls.md)"
    )


def _existing(
    plan: Sequence[Topic], existing: Mapping[str, ExistingTopic]
) -> Iterator[tuple[Topic, ExistingTopic]]:
    """Yield every planned topic that exists, with what exists."""
    return ((topic, existing[topic.name]) for topic in plan if topic.name in existing)


def find_growing(
    plan: Sequence[Topic], existing: Mapping[str, ExistingTopic]
) -> list[Topic]:
    """Return the state topic of the stage that reads the events, if it has fewer partitions.

    Further partitions of the events join while workers run (`agents/growth.py`).
    """
    rekey = any(topic.purpose == BY_USER for topic in plan)
    state = REKEY_STATE if rekey else CONTRIBUTE_STATE
    return [
        topic
        for topic, current in _existing(plan, existing)
        if topic.purpose == state and current.partitions < topic.partitions
    ]


def find_lacking(
    plan: Sequence[Topic], existing: Mapping[str, ExistingTopic]
) -> list[Topic]:
    """Return the topics that lack partitions, in the order in which they are to get them."""
    of_owners = [
        topic
        for topic, current in _existing(plan, existing)
        if topic.purpose in (RELEASE_STATE, CONTRIBUTIONS)
        and current.partitions < topic.partitions
    ]
    # Contributions last: a worker that sees its new partitions has the new owners counted.
    of_owners.sort(key=lambda topic: topic.purpose == CONTRIBUTIONS)
    return [*find_growing(plan, existing), *of_owners]


def missing(
    plan: Sequence[Topic], existing: Mapping[str, ExistingTopic]
) -> list[Topic]:
    return [topic for topic in plan if topic.name not in existing]


def add_partitions(connection: Connection, topic: str, partitions: int) -> None:
    """Add partitions to an internal topic, up to `partitions`; SettingsError if that is refused."""
    with connection.admin() as admin:
        [asked] = admin.create_partitions([NewPartitions(topic, partitions)]).values()
        try:
            asked.result(timeout=_ANSWER_S)
        except KafkaException as exc:
            # Another worker may have added them just now.
            if exc.args[0].code() != KafkaError.INVALID_PARTITIONS:
                raise SettingsError(
                    f"topic {topic} needs {partitions} partitions, and they could not be added: {exc.args[0].str()}; "
                    "`quietcount topics -c FILE --create` adds them"
                ) from exc


def create_missing(
    connection: Connection, plan: Sequence[Topic], existing: Mapping[str, ExistingTopic]
) -> list[str]:
    """Create the planned topics that are missing; return the names of those created.

    Waits a while until brokers list them, and refuses a cluster that gives them no ids.
    """
    absent = missing(plan, existing)
    if not absent:
        return []
    names = [topic.name for topic in absent]
    with _connect(connection) as (admin, _):
        if connection.embedded is not None:  # listing a topic creates it
            for name in names:
                admin.list_topics(name, timeout=_ANSWER_S)
            return names
        created = []
        requests = [
            NewTopic(topic.name, topic.partitions, -1, config=topic.config())
            for topic in absent
        ]
        for name, future in admin.create_topics(
            requests, operation_timeout=_ANSWER_S
        ).items():
            try:
                future.result()
            except KafkaException as exc:
                if exc.args[0].name() != "TOPIC_ALREADY_EXISTS":
                    raise SettingsError(
                        f"topic {name} could not be created: {exc.args[0].str()}"
                    ) from exc
            else:
                created.append(name)
        deadline = time.monotonic() + _ANSWER_S
        with suppress(KafkaException):
            while time.monotonic() < deadline:
                listed = among(admin.list_topics(timeout=_ANSWER_S), names)
                if len(listed) == len(names):
                    break
                time.sleep(_AGAIN_S)
    # On an empty cluster this is the first check that it has ids.
    describe(connection, names)
    return created
