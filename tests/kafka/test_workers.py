"""Two worker stages through Faust on a real broker: every event counts once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from tests.admin import admin_of
from tests.kafka.harness import PARTITIONS, PATIENCE_S, TOPICS, Scene, Worker, await_all, wait_until
from workers.kafka.clients import Connection, EmbeddedCluster

pytestmark = pytest.mark.slow


@pytest.fixture
def counting(bootstrap: str, tmp_path: Path) -> Iterator[Scene]:
    with closing(Scene(Connection(bootstrap), tmp_path)) as made:
        yield made


def braked(counting: Scene, label: str) -> Worker:
    """Return a worker that has made its first commits of many, slowly."""
    counting.send(24000)
    counting.brake.touch()
    worker = counting.worker(label)
    wait_until(lambda: counting.contributed() >= 1000, "the first commits")
    return worker


def test_counts_are_exact_after_kill_nine(counting: Scene) -> None:
    """Neither open transactions nor a stale copy may lose or repeat an event."""
    braked(counting, "a").process.kill()
    counting.brake.unlink()
    counting.send(2000)
    assert counting.contributed() < counting.expected.total(), "killed too late to prove anything"
    again = counting.worker("a")  # the same data directory: its copies are behind the changelog
    counting.wait_exact()
    assert again.end() == 0


def test_counts_are_exact_when_a_frozen_worker_comes_back(counting: Scene) -> None:
    """It wakes up in the middle of its work, after a take-over: it must not publish."""
    frozen = braked(counting, "frozen")
    frozen.signal(signal.SIGSTOP)
    counting.brake.unlink()
    assert counting.contributed() < counting.expected.total(), "frozen too late to prove anything"
    other = counting.worker("other")
    counting.wait_exact()
    frozen.signal(signal.SIGCONT)
    frozen.wait_for("took over", times=2)  # it joins the group again and gets its share
    counting.send(3000)
    counting.wait_exact()
    assert frozen.end() == 0
    assert other.end() == 0


def test_sigterm_hands_over_and_exits_zero(counting: Scene) -> None:
    """Rolling restarts are routine: exit status 0, and the other worker continues exactly."""
    counting.brake.touch()
    leaving = counting.worker("leaving")
    leaving.wait_for("took over")
    staying = counting.worker("staying")
    staying.wait_for("took over")
    counting.send(24000)
    wait_until(lambda: counting.contributed() >= 500, "the first commits")
    assert counting.contributed() < counting.expected.total() / 2, "handed over too late"
    leaving.signal(signal.SIGTERM)
    counting.brake.unlink()
    assert leaving.process.wait(PATIENCE_S) == 0
    counting.wait_exact()
    assert staying.end() == 0


def test_a_stranger_with_our_transactional_id_makes_the_worker_leave(counting: Scene) -> None:
    """Two groups must not alternate forever: the older one logs it and exits with 75."""
    worker = counting.worker("a", fenced_grace_s=1.0)
    worker.wait_for("took over")
    names = [f"{counting.name}-contribute-{partition}" for partition in range(PARTITIONS)]
    strangers = [counting.connection.producer(name) for name in names]
    for stranger in strangers:
        stranger.init_transactions(120)
    counting.send(100)
    assert worker.process.wait(PATIENCE_S) == 75
    assert "outside the group" in worker.text()
    assert counting.contributed() == 0, "a fenced worker published"


def test_records_removed_before_they_were_counted_are_refused(counting: Scene) -> None:
    """Retention overtook the worker: publishing over the gap would be silently wrong."""
    counting.send(400)
    worker = counting.worker("a")
    counting.wait_exact()
    assert worker.end() == 0
    counting.send(400)
    consumer = counting.connection.consumer()
    places = [TopicPartition(counting.events, p) for p in range(PARTITIONS)]
    for place in places:
        _, place.offset = consumer.get_watermark_offsets(place)
    consumer.close()
    await_all(admin_of(counting.connection).delete_records(places))
    worker = counting.worker("a")
    assert worker.process.wait(PATIENCE_S) == 2
    assert "retention removed records" in worker.text()
    assert "Traceback" not in worker.text()


def test_the_clock_comes_when_the_log_is_read_to_its_end(counting: Scene) -> None:
    """Stage 1 commits by the clock alone here: otherwise the last events would never count."""
    counting.send(700)
    worker = counting.worker("a", by_clock=True)
    counting.wait_exact()
    counting.send(30)
    counting.wait_exact()
    assert worker.end() == 0


def test_group_offsets_follow_for_lag_tools(counting: Scene) -> None:
    """Operators' lag tools read the group's offsets."""
    counting.send(300)
    worker = counting.worker("a")
    counting.wait_exact()
    consumer = counting.connection.consumer(**{"group.id": counting.name})
    partitions = [TopicPartition(counting.events, p) for p in range(PARTITIONS)]

    def lag() -> int:
        committed = consumer.committed(partitions, timeout=60)
        return sum(
            consumer.get_watermark_offsets(each)[1] - max(each.offset, 0) for each in committed
        )

    wait_until(lambda: lag() == 0, "no lag")
    consumer.close()
    assert worker.end() == 0


def test_the_worker_runs_on_the_embedded_cluster(tmp_path: Path) -> None:
    """The demo needs every part of the plumbing on librdkafka's in-process cluster."""
    with (
        EmbeddedCluster() as cluster,
        closing(Scene(cluster.connection, tmp_path, create=False)) as counting,
    ):
        with counting.connection.admin() as admin:
            for topic in TOPICS:
                admin.list_topics(f"{counting.name}.{topic}", timeout=60)  # asking makes them
        counting.send(2000)
        worker = counting.worker("a")
        wait_until(lambda: counting.totals() == counting.expected, "all events counted")
        assert worker.end() == 0
