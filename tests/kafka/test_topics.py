"""The topics of a worker: planned from what exists, created where missing, never altered."""

from __future__ import annotations

import pytest

from tests.kafka.harness import create_topic, unique
from workers.kafka.clients import Connection
from workers.kafka.embedded import PARTITIONS, EmbeddedCluster
from workers.kafka.topics import (
    Existing,
    cautions,
    create_missing,
    describe,
    missing,
    plan_topics,
    problems,
)
from workers.runtime.errors import SettingsError

pytestmark = pytest.mark.slow


def partitions(**existing: int) -> dict[str, int]:
    """Return planned partition counts by short name; underscores in `existing` replace hyphens."""
    found = {f"w.{name.replace('_', '-')}": count for name, count in existing.items()}
    known = {name: Existing(name, count) for name, count in found.items()}
    plan = plan_topics("w", ["w.events"], None, None, ["w.products"], known)
    return {topic.name.removeprefix("w."): topic.partitions for topic in plan}


def test_partition_counts_follow_the_events_topic() -> None:
    """Every source partition needs its state partition, or progress would be lost."""
    assert partitions(events=6) == {
        "events": 6,
        "contributions": 6,
        "contribute-state": 6,
        "release-state": 6,
        "rejects": 6,
        "products": 6,
    }


@pytest.mark.parametrize("sibling", ["contributions", "release_state"])
def test_missing_topics_take_the_partitions_of_their_siblings(sibling: str) -> None:
    """Owners were fixed at the first start: a topic made later must fit them."""
    planned = partitions(events=6, **{sibling: 2})
    assert (planned["contributions"], planned["release-state"], planned["contribute-state"]) == (
        2,
        2,
        6,
    )


def test_owners_that_contradict_existing_topics_are_refused() -> None:
    """Stream keys are hashed onto owners: another number would split their counts."""
    existing = {"w.contributions": Existing("w.contributions", 2)}
    with pytest.raises(SettingsError, match=r"owner_partitions = 3.*has 2"):
        plan_topics("w", ["e"], 4, 3, [], existing)
    both = {**existing, "w.release-state": Existing("w.release-state", 3)}
    with pytest.raises(SettingsError, match="same number"):
        plan_topics("w", ["e"], 4, None, [], both)


@pytest.mark.parametrize("rekey", [False, True])
def test_an_events_topic_yet_to_come_gets_the_partitions_that_the_state_was_made_for(
    rekey: bool,
) -> None:
    """Another number would be refused at the start."""
    state = "w.rekey-state" if rekey else "w.contribute-state"
    existing = {name: Existing(name, n) for name, n in (("e1", 4), (state, 10))}
    planned = {
        topic.name: topic.partitions
        for topic in plan_topics("w", ["e1", "e2", "e3"], 1, None, [], existing, rekey=rekey)
    }
    assert (planned["e1"], planned["e2"], planned["e3"], planned[state]) == (4, 3, 3, 10)
    planned = {
        topic.name: topic.partitions
        for topic in plan_topics("w", ["e1", "e2"], 1, None, [], {}, rekey=rekey)
    }
    assert (planned["e1"], planned["e2"], planned[state]) == (1, 1, 2)


def test_contributions_are_kept_for_ever_and_state_is_compacted() -> None:
    """The audit reads every contribution again; state is the last value of its key."""
    plan = {topic.name: topic for topic in plan_topics("w", ["e"], 4, 2, [], {})}
    assert plan["w.contributions"].config()["retention.ms"] == "-1"
    assert {name for name, topic in plan.items() if topic.cleanup_policy == "compact"} == {
        "w.contribute-state",
        "w.release-state",
    }


def test_create_makes_what_is_missing_and_alters_nothing(bootstrap: str) -> None:
    """An operator's own topic settings stay."""
    connection, name = Connection(bootstrap), unique("topics")
    events = f"{name}.events"
    create_topic(connection, events, 3, retention_ms="12345")
    outputs = [f"{name}.out"]
    names = [topic.name for topic in plan_topics(name, [events], None, 2, outputs, {})]
    existing = describe(connection, names)
    plan = plan_topics(name, [events], None, 2, outputs, existing)
    assert create_missing(connection, plan, existing) == [
        topic.name for topic in plan if topic.name != events
    ]
    after = describe(connection, names)
    assert missing(plan, after) == []
    assert problems(plan, after) == []
    assert {n: t.partitions for n, t in after.items()} == {t.name: t.partitions for t in plan}
    assert after[events].config["retention.ms"] == "12345"
    assert after[f"{name}.contributions"].config["retention.ms"] == "-1"
    assert len({topic.topic_id for topic in after.values()} - {None}) == len(plan)
    assert create_missing(connection, plan, after) == []
    assert create_missing(connection, plan, existing) == [], "created by somebody else meanwhile"


def test_topics_that_would_lose_state_are_reported(bootstrap: str) -> None:
    """A state topic that deletes by age loses progress, and then everything is counted again."""
    connection, name = Connection(bootstrap), unique("topics")
    create_topic(connection, f"{name}.contribute-state", 2, max_message_bytes="9000000")
    create_topic(
        connection, f"{name}.contributions", 2, retention_ms="60000", max_message_bytes="9000000"
    )
    plan = plan_topics(name, [f"{name}.events"], 2, 2, [], {})
    existing = describe(connection, [topic.name for topic in plan])
    assert [line.split(" and ")[0] for line in problems(plan, existing)] == [
        f"{name}.contribute-state has cleanup.policy = delete"
    ]
    assert [line.split(":")[0] for line in cautions(plan, existing)] == [
        f"{name}.contributions has retention.ms = 60000"
    ]


@pytest.mark.parametrize(
    "short", ["contributions", "contribute-state", "release-state", "rejects", "products"]
)
def test_every_topic_that_takes_too_short_batches_is_refused(bootstrap: str, short: str) -> None:
    """Long labels would make a message that the topic never accepts."""
    connection, name = Connection(bootstrap), unique("topics")
    plan = plan_topics(name, [f"{name}.events"], 2, 2, [f"{name}.products"], {})
    for topic in plan:
        limit = "999999" if topic.name == f"{name}.{short}" else "1000000"
        create_topic(
            connection,
            topic.name,
            topic.partitions,
            max_message_bytes=limit,
            cleanup_policy=topic.cleanup_policy,
        )
    [line] = problems(plan, describe(connection, [topic.name for topic in plan]))
    assert line.startswith(
        f"{name}.{short} has max.message.bytes = 999999 and needs 1000000: long labels"
    )
    assert "kafka-configs.sh" in line


def test_what_create_makes_is_long_enough_whatever_the_cluster_has() -> None:
    """A cluster's own default may be lower than Kafka's."""
    _, *written = plan_topics("w", ["e"], 4, 2, ["w.products"], {})
    assert {topic.config()["max.message.bytes"] for topic in written} == {"1048588"}


def test_a_broker_that_does_not_answer_is_named() -> None:
    """This is the most common mistake: the message names the address and what to check."""
    with pytest.raises(
        SettingsError, match=r"kafka\.bootstrap = '127\.0\.0\.1:1'.*Check the address"
    ):
        describe(Connection("127.0.0.1:1"), ["x"])


def test_topics_of_the_embedded_cluster_have_no_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no controller to ask: only a caller told that it is embedded starts without ids."""
    with EmbeddedCluster() as cluster:
        plan = plan_topics("demo", ["demo.events"], PARTITIONS, None, ["demo.products"], {})
        names = [topic.name for topic in plan]
        assert describe(cluster.connection, names) == {}
        assert create_missing(cluster.connection, plan, {}) == names
        after = describe(cluster.connection, names)
        assert list(after.values()) == [Existing(name, PARTITIONS) for name in names]
        assert problems(plan, after) == []
        monkeypatch.setattr("workers.kafka.topics._ANSWER_S", 1.0)
        with pytest.raises(SettingsError, match="no controller"):
            describe(Connection(cluster.bootstrap, cluster.connection.client), names)


def test_several_events_topics_have_a_state_partition_for_each_of_their_partitions() -> None:
    """The number of owners equals it too, unless configured."""
    existing = {
        name: Existing(name, n) for name, n in (("eu", 3), ("us", 2), ("w.contribute-state", 4))
    }
    plan = plan_topics("w", ["eu", "us", "new"], 1, None, [], existing)
    found = {topic.name.removeprefix("w."): topic.partitions for topic in plan}
    assert found == {
        "eu": 3,
        "us": 2,
        "new": 1,
        "contributions": 6,
        "contribute-state": 6,
        "release-state": 6,
        "rejects": 6,
    }
    [line] = problems(plan, existing)
    assert line.startswith(
        "eu, us, new together have 6 partitions, but w.contribute-state was made for 4: "
    )


def test_events_by_user_have_partitions_of_their_own_number_which_stage_1_has_then() -> None:
    """Another number would separate a user's later events from the earlier ones."""

    def planned(existing: dict[str, Existing], users: int | None) -> dict[str, int]:
        plan = plan_topics(
            "w", ["eu", "us"], None, None, [], existing, rekey=True, user_partitions=users
        )
        assert [topic.name for topic in plan][2:4] == ["w.by-user", "w.rekey-state"]
        assert plan[2].config()["retention.ms"] == str(7 * 24 * 3_600_000), (
            "not the cluster's, which may be for ever"
        )
        assert plan[2].config()["message.timestamp.type"] == "CreateTime", (
            "or the events lose their time"
        )
        assert problems(plan, existing) == []
        return {topic.name.removeprefix("w."): topic.partitions for topic in plan}

    events = {"eu": Existing("eu", 3), "us": Existing("us", 2)}
    assert planned(events, None) == {
        "eu": 3,
        "us": 2,
        "by-user": 5,
        "rekey-state": 5,
        "contributions": 5,
        "contribute-state": 5,
        "release-state": 5,
        "rejects": 5,
    }
    made = events | {"w.by-user": Existing("w.by-user", 7)}
    for found in (planned(events, 7), planned(made, None), planned(made, 7)):
        assert found["rekey-state"] == 5
        assert {
            found[name] for name in ("by-user", "contribute-state", "contributions", "rejects")
        } == {7}
    with pytest.raises(
        SettingsError, match=r"worker.user_partitions = 8, but topic w.by-user has 7 partitions"
    ):
        planned(made, 8)
    wrong = made | {
        "w.rekey-state": Existing("w.rekey-state", 4),
        "w.contribute-state": Existing("w.contribute-state", 5),
    }
    plan = plan_topics("w", ["eu", "us"], None, None, [], wrong, rekey=True)
    found_wrong = problems(
        plan, wrong | {"w.by-user": Existing("w.by-user", 7, config={"cleanup.policy": "compact"})}
    )
    assert [line.partition(":")[0] for line in found_wrong] == [
        "w.by-user has cleanup.policy = compact and needs delete",
        "eu, us together have 5 partitions, but w.rekey-state was made for 4",
        "w.by-user has 7 partitions, but w.contribute-state was made for 5",
    ]
