"""The topics of a worker: planned from what exists, created where missing, never altered."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from tests.kafka.harness import create_topic, unique
from tests.settings.test_settings import TOPICS
from workers.kafka.clients import EMBEDDED_PARTITIONS, Connection, EmbeddedCluster
from workers.kafka.topics import (
    ExistingTopic,
    Topic,
    cautions,
    create_missing,
    describe,
    find_changes,
    find_growing,
    find_lacking,
    find_problems,
    missing,
    plan_topics,
)
from workers.runtime.errors import KafkaAway, SettingsError

pytestmark = pytest.mark.slow

EVENTS = ("eu", "us", "e1")


def counts(plan: Sequence[Topic]) -> dict[str, int]:
    return {topic.name.removeprefix("w."): topic.partitions for topic in plan}


def known(**topics: int) -> dict[str, ExistingTopic]:
    """Return existing topics; underscores replace hyphens, and all but events are the worker's."""
    named = {name.replace("_", "-"): count for name, count in topics.items()}
    names = {
        name if name in EVENTS else f"w.{name}": count for name, count in named.items()
    }
    return {name: ExistingTopic(name, count) for name, count in names.items()}


def all_of(number: int, *further: str) -> dict[str, int]:
    names = ("contributions", "contribute-state", "release-state", "rejects", *further)
    return dict.fromkeys(names, number) | {"budget": 1}


def test_partition_counts_follow_the_events_topic() -> None:
    """Every source partition needs its state partition, or progress would be lost."""
    plan = plan_topics("w", ["w.events"], None, None, ["w.products"], known(events=6))
    assert counts(plan) == all_of(6, "events", "products")


@pytest.mark.parametrize("sibling", ["contributions", "release_state"])
def test_missing_topics_take_the_partitions_of_their_siblings(sibling: str) -> None:
    """Owners were fixed at the first start: a topic made later must fit them."""
    existing = known(events=6, **{sibling: 2})
    planned = counts(plan_topics("w", ["w.events"], None, None, [], existing))
    assert planned == all_of(6, "events") | {"contributions": 2, "release-state": 2}


def test_owners_that_contradict_existing_topics_are_refused() -> None:
    """Stream keys are hashed onto owners: another number would split their counts."""
    with pytest.raises(SettingsError, match=r"owner_partitions = 3.*has 2"):
        plan_topics("w", ["e"], 4, 3, [], known(contributions=2))
    assert (
        counts(plan_topics("w", ["e"], 4, 4, [], known(contributions=2)))[
            "contributions"
        ]
        == 4
    )
    made = known(e=4, contributions=2, release_state=4)
    plan = plan_topics("w", ["e"], 4, 4, [], made)
    assert [topic.name for topic in find_lacking(plan, made)] == ["w.contributions"]
    assert any(
        "--create` adds the others" in problem for problem in find_problems(plan, made)
    )


@pytest.mark.parametrize("rekey", [False, True])
def test_a_missing_events_topic_gets_the_partitions_of_the_state(rekey: bool) -> None:
    """Another number would be refused at the start."""
    state = "rekey-state" if rekey else "contribute-state"
    existing = known(e1=4, **{state: 10})
    planned = counts(
        plan_topics("w", ["e1", "e2", "e3"], 1, None, [], existing, rekey=rekey)
    )
    assert [planned[name] for name in ("e1", "e2", "e3", state)] == [4, 3, 3, 10]
    planned = counts(plan_topics("w", ["e1", "e2"], 1, None, [], {}, rekey=rekey))
    assert [planned[name] for name in ("e1", "e2", state)] == [1, 1, 2]


def test_new_topics_keep_what_is_audited_compact_state_and_take_long_batches() -> None:
    """The audit reads every contribution again; a cluster's own default may be too short."""
    events, *written = plan_topics("w", ["e"], 4, 2, ["w.products"], {})
    assert "max.message.bytes" not in events.config()
    assert {topic.config()["max.message.bytes"] for topic in written} == {"1048588"}
    assert [topic.config().get("retention.ms") for topic in written] == [
        "-1",
        None,
        None,
        None,
        "-1",
        None,
    ]
    compact = {topic.name for topic in written if topic.cleanup_policy == "compact"}
    assert compact == {"w.contribute-state", "w.release-state", "w.budget"}


def test_create_makes_what_is_missing_and_alters_nothing(bootstrap: str) -> None:
    """An operator's own topic settings stay."""
    connection = Connection(bootstrap)
    name = unique("topics")
    events = f"{name}.events"
    create_topic(connection, events, 3, retention_ms="12345")
    outputs = [f"{name}.out"]
    names = [topic.name for topic in plan_topics(name, [events], None, 2, outputs, {})]
    existing = describe(connection, names)
    plan = plan_topics(name, [events], None, 2, outputs, existing)
    assert create_missing(connection, plan, existing) == [
        n for n in names if n != events
    ]
    after = describe(connection, names)
    assert missing(plan, after) == []
    assert find_problems(plan, after) == []
    assert {n: t.partitions for n, t in after.items()} == {
        t.name: t.partitions for t in plan
    }
    assert after[events].config["retention.ms"] == "12345"
    made = after[f"{name}.contributions"].config
    assert (made["retention.ms"], made["max.message.bytes"]) == ("-1", "1048588")
    assert len({topic.topic_id for topic in after.values()} - {None}) == len(plan)
    assert create_missing(connection, plan, after) == []
    assert create_missing(connection, plan, existing) == [], (
        "created by somebody else meanwhile"
    )


def test_a_broker_that_does_not_know_a_new_topic_yet_is_asked_again(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers learn of a topic one after another (seen in a cluster of three under load)."""
    connection = Connection(bootstrap)
    name = unique("topics")
    create_topic(connection, name, 1)
    ask = AdminClient.describe_topics
    asked = []

    def describe_topics(
        self: AdminClient, topics: Any, **options: Any
    ) -> dict[str, Any]:
        asked.append(topics)
        if len(asked) > 1:
            return ask(self, topics, **options)
        unknown: Future[Any] = Future()
        unknown.set_exception(
            KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        )
        return {name: unknown}

    monkeypatch.setattr(AdminClient, "describe_topics", describe_topics)
    assert describe(connection, [name])[name].topic_id
    assert len(asked) == 2


def test_topics_that_would_lose_state_are_reported(bootstrap: str) -> None:
    """A state topic that deletes by age loses progress, and then everything is counted again."""
    connection = Connection(bootstrap)
    name = unique("topics")
    long = {"max_message_bytes": "9000000"}
    create_topic(connection, f"{name}.contribute-state", 2, **long)
    create_topic(connection, f"{name}.contributions", 2, retention_ms="60000", **long)
    plan = plan_topics(name, [f"{name}.events"], 2, 2, [], {})
    existing = describe(connection, [topic.name for topic in plan])
    assert [line.split(" and ")[0] for line in find_problems(plan, existing)] == [
        f"{name}.contribute-state has cleanup.policy = delete"
    ]
    assert [line.split(":")[0] for line in cautions(plan, existing)] == [
        f"{name}.contributions has retention.ms = 60000"
    ]


@pytest.mark.parametrize("short", TOPICS)
def test_every_topic_that_takes_too_short_batches_is_refused(short: str) -> None:
    """Long labels would make a message that the topic never accepts."""
    plan = plan_topics("w", ["w.events"], 2, 2, ["w.products"], {})
    existing = {}
    for topic in plan:
        limit = "999999" if topic.name == f"w.{short}" else "1000000"
        existing[topic.name] = ExistingTopic(
            topic.name, topic.partitions, "id", {"max.message.bytes": limit}
        )
    [line] = find_problems(plan, existing)
    assert line.startswith(
        f"w.{short} has max.message.bytes = 999999 and needs 1000000: long labels"
    )
    assert "kafka-configs.sh" in line


def test_a_broker_that_does_not_answer_is_named() -> None:
    """This is the most common mistake: the message names the address and what to check."""
    words = r"kafka\.bootstrap = '127\.0\.0\.1:1'.*Check the address"
    with pytest.raises(KafkaAway, match=words):
        describe(Connection("127.0.0.1:1"), ["x"])


def test_topics_of_the_embedded_cluster_have_no_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has no controller to ask: only a caller told that it is embedded starts without ids."""
    with EmbeddedCluster() as cluster:
        plan = plan_topics(
            "demo", ["demo.events"], EMBEDDED_PARTITIONS, None, ["demo.products"], {}
        )
        names = [topic.name for topic in plan]
        assert describe(cluster.connection, names) == {}
        assert create_missing(cluster.connection, plan, {}) == names
        after = describe(cluster.connection, names)
        assert list(after.values()) == [
            ExistingTopic(name, EMBEDDED_PARTITIONS) for name in names
        ]
        assert find_problems(plan, after) == []
        monkeypatch.setattr("workers.kafka.topics._ANSWER_S", 1.0)
        with pytest.raises(SettingsError, match="no controller"):
            describe(Connection(cluster.bootstrap, cluster.connection.client), names)


def test_several_events_topics_have_a_state_partition_for_each_of_their_partitions() -> (
    None
):
    """The number of owners equals it too, unless configured."""
    existing = known(eu=3, us=2, contribute_state=8)
    plan = plan_topics("w", ["eu", "us", "new"], 1, None, [], existing)
    assert counts(plan) == all_of(8) | {"eu": 3, "us": 2, "new": 3}
    existing = known(eu=3, us=2, contribute_state=6)
    plan = plan_topics("w", ["eu", "us"], None, None, [], existing)
    [line] = find_problems(plan, existing)
    words = "eu, us together have 5 partitions, but w.contribute-state was made for 6: "
    assert line.startswith(words)


def test_the_state_of_the_stage_that_reads_the_events_may_have_to_grow() -> None:
    """The events topics have got more partitions, which join later; nothing is wrong."""
    existing = known(eu=3, us=2, contribute_state=4)
    plan = plan_topics("w", ["eu", "us"], None, None, [], existing)
    assert find_problems(plan, existing) == []
    assert [
        (topic.name, topic.partitions) for topic in find_growing(plan, existing)
    ] == [("w.contribute-state", 5)]
    existing = known(eu=3, us=2, by_user=7, contribute_state=5, rekey_state=4)
    plan = plan_topics("w", ["eu", "us"], None, None, [], existing, rekey=True)
    assert [topic.name for topic in find_growing(plan, existing)] == ["w.rekey-state"]
    assert len(find_problems(plan, existing)) == 1  # of the by-user topic


def test_events_by_user_have_partitions_of_their_own_number_which_stage_1_has_then() -> (
    None
):

    def planned(
        existing: dict[str, ExistingTopic], users: int | None
    ) -> dict[str, int]:
        plan = plan_topics(
            "w",
            ["eu", "us"],
            None,
            None,
            [],
            existing,
            rekey=True,
            user_partitions=users,
        )
        assert [topic.name for topic in plan][2:4] == ["w.by-user", "w.rekey-state"]
        # Not the cluster's retention, which may be for ever; and events keep their time.
        by_user = plan[2].config()
        assert by_user["retention.ms"] == str(7 * 24 * 3_600_000)
        assert by_user["message.timestamp.type"] == "CreateTime"
        assert find_problems(plan, existing) == []
        return counts(plan)

    events = known(eu=3, us=2)
    assert planned(events, None) == all_of(5, "by-user", "rekey-state") | {
        "eu": 3,
        "us": 2,
    }
    made = events | known(by_user=7)
    for found in (planned(events, 7), planned(made, None), planned(made, 7)):
        assert found == all_of(7, "by-user") | {"rekey-state": 5, "eu": 3, "us": 2}
    words = "worker.user_partitions = 8, but topic w.by-user has 7 partitions"
    with pytest.raises(SettingsError, match=words):
        planned(made, 8)
    wrong = made | known(rekey_state=6, contribute_state=5)
    plan = plan_topics("w", ["eu", "us"], None, None, [], wrong, rekey=True)
    compact = ExistingTopic("w.by-user", 7, config={"cleanup.policy": "compact"})
    found_wrong = find_problems(plan, wrong | {"w.by-user": compact})
    assert [line.partition(":")[0] for line in found_wrong] == [
        "w.by-user has cleanup.policy = compact and needs delete",
        "eu, us together have 5 partitions, but w.rekey-state was made for 6",
        "w.by-user has 7 partitions, but w.contribute-state was made for 5",
    ]


LOSES = {
    "contributions": "records would vanish",
    "by-user": "all but the last event of a user",
    "rejects": "it takes no record without a key",
    "products": "all but the last snapshot of a stream key",
}


@pytest.mark.parametrize(
    "policy", ["compact", "compact,delete", "delete, compact", "COMPACT"]
)
@pytest.mark.parametrize("topic", LOSES)
def test_compaction_is_refused_wherever_it_would_lose_records(
    topic: str, policy: str
) -> None:
    """Rejects have no key: the broker would refuse the first one, and all workers would stop for good."""
    plan = plan_topics("w", ["w.events"], 2, 2, ["w.products"], {}, rekey=True)
    existing = {
        one.name: ExistingTopic(
            one.name, one.partitions, "id", {"cleanup.policy": "delete"}
        )
        for one in plan
        if one.cleanup_policy == "delete"
    }
    assert find_problems(plan, existing) == []
    compacted = ExistingTopic(f"w.{topic}", 2, "id", {"cleanup.policy": policy})
    [line] = find_problems(plan, existing | {compacted.name: compacted})
    assert line.startswith(
        f"w.{topic} has cleanup.policy = {policy} and needs delete: "
    )
    assert LOSES[topic] in line


@pytest.mark.parametrize("policy", ["delete", "compact,delete", "Delete,Compact", ""])
def test_state_is_compacted_and_nothing_else(policy: str) -> None:
    plan = plan_topics("w", ["w.events"], 2, 2, [], {}, rekey=True)
    for state in ("contribute-state", "release-state", "rekey-state"):
        name = f"w.{state}"
        existing = {name: ExistingTopic(name, 2, "id", {"cleanup.policy": policy})}
        problems = find_problems(plan, existing)
        assert [line for line in problems if f"{policy} and needs compact" in line]


def test_the_budget_topic_may_have_any_policy_and_number_of_partitions() -> None:
    """Its record is written again and again, to the first one: nothing would be lost."""
    plan = plan_topics("w", ["w.events"], 2, 2, [], {})
    for policy in ("delete", "compact"):
        budget = ExistingTopic("w.budget", 3, "id", {"cleanup.policy": policy})
        assert find_problems(plan, {"w.budget": budget}) == []


def test_a_compacted_events_topic_is_a_caution() -> None:
    """It may be meant; but which events count depends on when the broker cleans."""
    plan = plan_topics("w", ["w.events"], 2, 2, [], {})
    for policy, number in (("compact", 1), ("Delete,Compact", 1), ("delete", 0)):
        existing = {
            "w.events": ExistingTopic("w.events", 2, "id", {"cleanup.policy": policy})
        }
        assert find_problems(plan, existing) == []
        assert len(cautions(plan, existing)) == number


def test_topics_are_made_with_their_own_policy_whatever_the_clusters_is() -> None:
    """`log.cleanup.policy = compact` would apply to every topic that names none."""
    for topic in plan_topics("w", ["w.events"], 2, 2, ["w.products"], {}, rekey=True):
        assert topic.config()["cleanup.policy"] in ("compact", "delete")


def test_what_was_done_to_topics_of_a_running_worker_is_told_apart() -> None:
    """A histogram that was made again has a hole; any other topic holds what the worker rests on."""
    plan = plan_topics("w", ["w.events"], 2, 2, ["w.products"], {})
    before = {one.name: ExistingTopic(one.name, one.partitions, "id") for one in plan}
    assert find_changes(plan, before, before) == ([], [])
    for topic in plan:
        others = {name: one for name, one in before.items() if name != topic.name}
        [gone], notes = find_changes(plan, before, others)
        assert (
            gone.startswith(f"topic {topic.name} does not exist any more") and not notes
        )
        again = others | {
            topic.name: ExistingTopic(topic.name, topic.partitions, "other")
        }
        problems, notes = find_changes(plan, before, again)
        written = topic.name in ("w.rejects", "w.products", "w.budget")
        [said] = notes if written else problems
        assert said.startswith(
            f"topic {topic.name} was deleted and created again while this"
        )
        assert not (problems if written else notes)
    short = ExistingTopic("w.products", 2, "id", {"max.message.bytes": "50"})
    [line], _ = find_changes(plan, before, before | {"w.products": short})
    assert line.startswith("w.products has max.message.bytes = 50 and needs 1000000")
