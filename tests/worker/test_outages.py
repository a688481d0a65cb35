"""Kafka killed, frozen or absent: two log lines, no exit, and every event counts once."""

import json
import re
import signal
import urllib.request
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.broker import Brokers, OwnBroker, fixed_port, local_broker, own_broker
from tests.dashboard.test_command import dashboard
from tests.kafka.harness import read, settled
from tests.kafka.test_shard import Cluster
from tests.worker.harness import (
    Site,
    Worker,
    assert_contiguous,
    now_ms,
    sale,
    unk,
    until,
)
from tests.worker.test_metrics import ask, ready, total
from workers.kafka import transaction
from workers.kafka.clients import Connection
from workers.runtime.errors import KafkaAway

pytestmark = pytest.mark.waits

AWAY = "Kafka is away: "
BACK = "Kafka is back: it was away for"
TIMEOUT_MS = 1_000
# Makes the broker look often for transactions to end, instead of every ten seconds.
PROPERTIES = "transaction.abort.timed.out.transaction.cleanup.interval.ms=500\n"
# Keeps the controller, if frozen with the broker, from declaring it dead when both resume: clients
# that are told of no broker at all, including those of the tests, keep an empty list for a while. A
# killed broker could rejoin only after this time.
LIVING = "broker.session.timeout.ms=3600000\n"


@pytest.fixture
def kafka(own_kafka: None) -> Iterator[OwnBroker]:
    with own_broker(PROPERTIES, port=fixed_port()) as running:
        yield running


@pytest.fixture(scope="module")
def living(own_kafka: None) -> Iterator[OwnBroker]:
    with own_broker(PROPERTIES + LIVING, port=fixed_port()) as running:
        yield running


class Counted:
    """A site with all three stages, and events from distinct users, so that all of them count."""

    def __init__(self, kafka: OwnBroker | Brokers, directory: Path) -> None:
        histograms = [unk(max_items_per_user=1)]
        self.site = Site(
            kafka.bootstrap,
            directory,
            histograms,
            partitions=2,
            owners=1,
            privacy={"unit": "user", "rekey": True},
            events={"user": "who"},
            worker={"metrics_port": 0, "user_partitions": 2},
        )
        self.sent: Counter[str] = Counter()
        self.broken = 0

    def send(self, label: str, events: int, *, flush: bool = True) -> int:
        at = now_ms()
        for i in range(events):
            who = f"{label}-{self.sent[label] + i}"
            self.site.produce(i % 2, [sale([label], at, who=who)], flush=False)
        self.sent[label] += events
        self.site.produce(0, [f"broken {self.broken}".encode()], flush=flush)
        self.broken += 1
        return at

    def assert_exact(self) -> None:
        """Assert that every event, tick and reject is there exactly once and correct."""
        assert self.site.counted() == self.sent
        assert len(self.site.rejects()) == self.broken
        self.site.await_audit()
        assert_contiguous(self.site.snapshots())


def assert_two_lines(output: str) -> None:
    """Assert that the two outage messages alternate, with no other warning; a busy broker may seem
    to be away once more.
    """
    said = re.findall(r"Kafka is (away|back)", output)
    assert len(said) > 1 and said == (["away", "back"] * len(said))[: len(said)], output
    assert not re.search(
        r"Traceback| ERROR |^quietcount: |rdkafka#|Kafka client", output, re.MULTILINE
    ), output


def away(worker: Worker) -> bool:
    """Tell whether the worker reports the outage in every possible way."""
    if AWAY not in worker.output():
        return False
    status, body = ask(worker, "/readyz")
    if not status:  # it is about to listen
        return False
    assert (status, "Kafka has been away for" in body) == (503, True), body
    assert ask(worker, "/healthz")[0] == 200, "a restart would not help"
    assert total("quietcount_kafka_away_seconds", worker) > 0
    return True


def away_seconds(url: str) -> float:
    with urllib.request.urlopen(url + "metrics", timeout=60) as answer:
        text = answer.read().decode()
        name = r"quietcount_kafka_away_seconds\{.*\}"
        [value] = re.findall(f"^{name} (.*)$", text, re.MULTILINE)
    return float(value)


def test_a_killed_kafka_is_waited_for_and_events_count_once(
    kafka: OwnBroker, tmp_path: Path
) -> None:
    """The kill hits commits and a rebalance; one worker starts without Kafka."""
    counted = Counted(kafka, tmp_path)
    site = counted.site
    at = counted.send("before", 2_000)
    log = site.directory / "log"
    with dashboard(site.config) as (page, url), site.worker("one") as one:
        until(lambda: ready(one), "it is at work")
        site.wait_published(at)
        until(lambda: away_seconds(url) == 0, "the dashboard reads")
        counted.send("during", 2_000)
        with site.worker("two") as two:
            until(lambda: "INFO    worker " in two.output(), "it joins the group")
            kafka.kill()
            with site.worker("three") as three, site.worker("four") as four:
                until(lambda: away(four), "one that is started without Kafka waits")
                until(lambda: away(three), "so does the other")
                four.signal(signal.SIGTERM)
                assert four.ended() == 0
                until(lambda: away(one) and away(two), "those at work notice")
                until(
                    lambda: away_seconds(url) > 0 and AWAY in log.read_text(),
                    "so does the page",
                )
                until(
                    lambda: "gave up" in one.output().partition(AWAY)[2],
                    "they are let go",
                )
                kafka.start()
                at = counted.send("after", 2_000)
                workers = (one, two, three)
                until(
                    lambda: all(BACK in worker.output() for worker in workers),
                    "all notice",
                )
                site.wait_published(at)
                until(lambda: any(ready(worker) for worker in workers), "one is ready")
                until(
                    lambda: away_seconds(url) == 0 and BACK in log.read_text(),
                    "the page, too",
                )
                for worker in workers:
                    worker.signal(signal.SIGTERM)
                assert [worker.ended() for worker in workers] == [0, 0, 0]
                for output in (
                    one.output(),
                    two.output(),
                    three.output(),
                    log.read_text(),
                ):
                    assert_two_lines(output)
        page.send_signal(signal.SIGTERM)
        assert page.wait(60) == 0
    counted.assert_exact()


def test_a_frozen_kafka_is_waited_for_and_sigterm_ends_a_worker(
    living: OwnBroker, tmp_path: Path
) -> None:
    """Its connections stay open, so nothing fails: every call just waits."""
    counted = Counted(living, tmp_path)
    site = counted.site
    at = counted.send("before", 1_000)
    with site.worker("one") as one, site.worker("two") as two:
        until(lambda: ready(one) and ready(two), "both are at work")
        site.wait_published(at)
        counted.send("during", 1_000)
        living.freeze()
        try:
            until(lambda: away(one) and away(two), "both notice")
            two.signal(signal.SIGTERM)
            assert two.ended() == 0
        finally:
            living.thaw()
        at = counted.send("after", 1_000)
        until(lambda: BACK in one.output(), "it notices")
        site.wait_published(at)
        assert one.stop() == 0
        assert_two_lines(one.output())
    counted.assert_exact()


class Slow:
    """Records so far apart in time that the broker ends their transaction."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.topic = cluster.output

    def messages(self) -> Iterator[tuple[bytes, bytes, int, int, None]]:
        yield b"first", b"k", 0, 1, None
        connection = self.cluster.connection
        topic = self.cluster.output
        uncommitted = partial(read, connection, topic, isolation="read_uncommitted")
        until(uncommitted, "the first is in the log")
        settled(connection, topic)
        yield b"second", b"k", 0, 1, None


def test_a_transaction_that_the_broker_ended_is_no_newer_owner(
    living: OwnBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker fences a producer that was silent for too long; no new assignment would follow."""
    monkeypatch.setattr(transaction, "TRANSACTION_TIMEOUT_MS", TIMEOUT_MS)
    cluster = Cluster(living.bootstrap, tmp_path)
    cluster.connection = Connection(
        living.bootstrap, {"socket.timeout.ms": str(TIMEOUT_MS)}
    )
    shard = cluster.shard()
    with pytest.raises(KafkaAway, match=f"{cluster.name}: a transaction was open for"):
        shard.transact([], [(b"offset", b"1")], 1, [Slow(cluster)])
    shard.close()
    again = cluster.shard()
    assert again.offset == 0 and cluster.published() == []
    again.close()


@pytest.mark.usefixtures("own_kafka")
def test_the_first_start_on_a_new_cluster_logs_no_error(tmp_path: Path) -> None:
    """Groups and transactions lack topics for seconds; ERROR would suggest a fault."""
    many = "offsets.topic.num.partitions=50\ntransaction.state.log.num.partitions=50\n"
    with local_broker(many) as address:
        site = Site(
            address,
            tmp_path,
            [unk()],
            partitions=2,
            owners=1,
            worker={"log_format": "json"},
        )
        at = now_ms()
        site.produce(0, [sale("a", at)])
        with site.running() as worker:
            site.wait_published(at)
        lines = [json.loads(line) for line in worker.output().splitlines()]
    [place, *_] = [i for i, line in enumerate(lines) if "took over" in line["message"]]
    assert not [
        line for line in lines[: place + 1] if line["level"] in ("error", "critical")
    ]
