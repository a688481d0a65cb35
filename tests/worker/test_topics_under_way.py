"""What is done to the topics of a worker that runs: one line, exit 2 or a wait, and no traceback."""

import re
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exports
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tests.forked import QUICKER
from tests.worker.harness import Site, Worker, now_ms, sale, unk, until

pytestmark = pytest.mark.waits

MINE = ("contributions", "contribute-state", "release-state", "rejects", "items")


def configure(site: Site, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    for future in site.admin.incremental_alter_configs([resource]).values():
        future.result()


def recreate(site: Site, topic: str) -> None:
    partitions = len(site.admin.list_topics(timeout=60).topics[topic].partitions)
    policy = "compact" if topic.endswith("-state") else "delete"
    site.delete_topic(topic)
    made = NewTopic(topic, partitions, 1, config={"cleanup.policy": policy})
    for future in site.admin.create_topics([made]).values():
        future.result()


def at_work(site: Site, worker: Worker) -> int:
    """Let a worker publish a tick, and send events of the next ones."""
    at = now_ms()
    site.produce(0, [sale("a", at)])
    worker.at_work()
    site.wait_published(at)
    for i in range(20):
        site.produce(0, [sale("b", now_ms() + 200 * i), b"broken"])
    return at


def assert_refused(worker: Worker, *words: str) -> None:
    assert worker.ended() == 2, worker.output()
    output = worker.output()
    assert "Traceback" not in output and " CRITICAL " not in output, output
    [line] = [line for line in output.splitlines() if line.startswith("quietcount: ")]
    for word in words:
        assert re.search(word, line), line


@pytest.fixture
def site(bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv(QUICKER, "workers.agents.topics.INTERVAL_S=0.5")
    return Site(bootstrap, tmp_path, [unk()], partitions=1, owners=1)


@pytest.mark.parametrize("topic", MINE)
def test_a_deleted_topic_ends_the_worker_with_its_name(site: Site, topic: str) -> None:
    name = f"{site.name}.{topic}"
    with site.worker() as worker:
        at_work(site, worker)
        site.delete_topic(name)
        assert_refused(
            worker, f"(topic {name} does not exist any more|missing topics: {name})"
        )


def test_a_deleted_events_topic_ends_the_worker_with_its_name(site: Site) -> None:
    with site.worker() as worker:
        at_work(site, worker)
        site.delete_topic(site.topic)
        assert_refused(worker, f"topic {site.topic} does not exist any more")


@pytest.mark.parametrize("topic", MINE)
def test_a_limit_below_what_is_needed_ends_the_worker_and_raised_again_nothing_is_lost(
    site: Site, topic: str
) -> None:
    """It ended with 70 and a traceback, as a defect."""
    name = f"{site.name}.{topic}"
    with site.worker() as worker:
        at_work(site, worker)
        # The marker that ends a transaction still fits.
        configure(site, name, "max.message.bytes", "100")
        said = f"{name} has max.message.bytes = 100"
        assert_refused(worker, said, "1000000", "kafka-configs.sh")
    configure(site, name, "max.message.bytes", "1048588")
    site.run_once("c")
    assert site.counted() == {"a": 1, "b": 20, "c": 1}
    assert len(site.rejects()) == 20
    site.assert_clean()


@pytest.mark.parametrize("topic", ["contributions", "rejects", "items"])
def test_compaction_switched_on_ends_the_worker_and_off_again_nothing_is_lost(
    site: Site, topic: str
) -> None:
    """Of the histogram's nothing showed it; a reject stopped all workers, and blamed the clock."""
    name = f"{site.name}.{topic}"
    with site.worker() as worker:
        at_work(site, worker)
        configure(site, name, "cleanup.policy", "delete,compact")
        site.produce(0, [sale("c", now_ms()), b"broken"])
        said = f"{name} has cleanup.policy = (delete,compact|compact,delete) and needs delete"
        assert_refused(worker, said)
        assert "clock" not in worker.output()
    configure(site, name, "cleanup.policy", "delete")
    site.run_once("d")
    assert site.counted() == {"a": 1, "b": 20, "c": 1, "d": 1}
    site.assert_clean()


@pytest.mark.parametrize("topic", ["contributions", "items"])
def test_more_replicas_in_sync_than_there_are_hold_the_worker_up(
    site: Site, topic: str
) -> None:
    name = f"{site.name}.{topic}"
    with site.running() as worker:
        at_work(site, worker)
        configure(site, name, "min.insync.replicas", "3")
        site.produce(0, [sale("c", now_ms())])
        held = f"held up: {name}[0]: 1 of its 1 replicas are in sync, 3 are needed"
        until(lambda: held in worker.output(), "it says what it waits for")
        configure(site, name, "min.insync.replicas", "1")
        until(lambda: "no longer held up" in worker.output(), "it goes on")
        site.wait_published(now_ms())
    assert site.counted() == {"a": 1, "b": 20, "c": 1}
    site.assert_clean()


@pytest.mark.parametrize("topic", ["rejects", "items"])
def test_a_written_topic_that_is_made_again_has_a_hole_which_is_said(
    site: Site, topic: str
) -> None:
    name = f"{site.name}.{topic}"
    with site.running() as worker:
        at_work(site, worker)
        recreate(site, name)
        said = f"topic {name} was deleted and created again while this worker ran: what was in it"
        until(lambda: said in worker.output(), "it says so")
        at = now_ms()
        site.produce(0, [sale("c", at), b"broken"])
        site.wait_published(at)
    assert "Traceback" not in worker.output()
    assert site.counted()["c"] == 1


def test_a_hole_is_said_by_the_next_run_if_the_worker_met_the_missing_topic(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It began its run again before it had looked at its topics, and took the new one for its own."""
    monkeypatch.setenv(QUICKER, "workers.agents.topics.INTERVAL_S=600")
    name = f"{site.name}.items"
    with site.running() as worker:
        at_work(site, worker)
        policy = {"cleanup.policy": "delete"}
        made = NewTopic(name, 1, 1, config=policy)
        site.delete_topic(name)
        until(lambda: "beginning the run again" in worker.output(), "it meets that")
        for future in site.admin.create_topics([made]).values():
            future.result()
        said = f"topic {name} was deleted and created again while this worker ran: what was in it"
        until(lambda: said in worker.output(), "it says so")
        at = now_ms()
        site.produce(0, [sale("c", at)])
        site.wait_published(at)
    assert worker.output().count(said) == 1
    assert site.counted()["c"] == 1


@pytest.mark.parametrize(
    "topic", ["contributions", "contribute-state", "release-state"]
)
def test_state_that_is_made_again_under_a_worker_is_never_continued(
    site: Site, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit into the new topic looks like a whole state, without the users it had counted.

    The worker has to make that commit before it sees what became of the topic.
    """
    monkeypatch.delenv(QUICKER)
    name = f"{site.name}.{topic}"
    with site.worker() as worker:
        at_work(site, worker)
        recreate(site, name)
        site.produce(0, [sale("c", now_ms())])
        assert worker.ended() == 2, worker.output()
        assert "Traceback" not in worker.output()
    again = site.run_to_end()
    assert again.returncode == 2, again.stderr
    assert "Traceback" not in again.stderr
    assert re.search(
        "created again|not those its state was made with|was lost", again.stderr
    )


def test_a_retention_that_is_lowered_is_said_once(site: Site) -> None:
    name = f"{site.name}.items"
    said = f"{name} has retention.ms = 86400000"
    with site.running() as worker:
        at_work(site, worker)
        configure(site, name, "retention.ms", "86400000")
        until(lambda: said in worker.output(), "it says so")
        looks(site, worker)
    assert worker.output().count(said) == 1


def looks(site: Site, worker: Worker) -> None:
    """Wait until it has looked at its topics again: another caution was noticed."""
    configure(site, f"{site.name}.contributions", "retention.ms", "86400000")
    said = "contributions has retention.ms"
    until(lambda: said in worker.output(), "it looks again")
