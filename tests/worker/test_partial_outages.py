"""Three brokers of which some are away: the worker says what it waits for, and goes on by itself."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # a re-export

from tests.broker import Brokers, OwnBroker
from tests.chaos.rounds import Cluster, cluster
from tests.chaos.schedule import Act, Round, Segment, Start, Trouble
from tests.chaos.test_chaos import SESSION_S
from tests.chaos.worker import Workers
from tests.worker.harness import Worker, until
from tests.worker.test_metrics import ask, ready, total
from tests.worker.test_outages import Counted
from workers.kafka.clients import Connection
from workers.kafka.unavailable import UsedTopics, unavailable

pytestmark = pytest.mark.waits

HELD_UP = "WARNING held up: "
GOES_ON = "WARNING no longer held up"

# Says which partitions a broker has another replica read.
SAYING = """
from aiokafka.consumer.fetcher import Fetcher
from workers.cli import main
update = Fetcher._update_preferred_read_replica
def said(self, tp, replica):
    print(f"replica {replica}", flush=True)
    update(self, tp, replica)
Fetcher._update_preferred_read_replica = said
main()
"""


@pytest.fixture(scope="module")
def chaos(
    own_kafka: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Three brokers, and workers with a plan of what is done to them."""
    directory = tmp_path_factory.mktemp("segments")
    with Workers() as workers, cluster(3, directory, workers) as running:
        yield running


@pytest.fixture
def brokers(chaos: Cluster) -> Brokers:
    assert chaos.brokers is not None
    return chaos.brokers


def is_held_up(worker: Worker) -> bool:
    """Tell whether the worker says so in every way."""
    if not total("quietcount_held_up_seconds", worker):
        return False
    output = worker.output()
    status, body = ask(worker, "/readyz")
    assert status == 503 and "(for " in body, body
    assert ask(worker, "/healthz")[0] == 200, "a restart would not help"
    return output.count(HELD_UP) > output.count(GOES_ON)


def goes_on(worker: Worker) -> bool:
    output = worker.output()
    return ready(worker) and output.count(HELD_UP) == output.count(GOES_ON)


def test_a_worker_cut_off_from_a_broker_and_moved_leaders_lose_nothing(
    chaos: Cluster,
) -> None:
    trouble = [Trouble("cut off", 1, 5.0, 6.0), Trouble("leaders moved", 2, 11.0, 0.0)]
    starts = [Start([Act("kill", after_s=12.0)]), Start([Act("stop", after_s=8.0)])]
    given = Segment(
        number=0, seed=10, starts=starts, session_s=SESSION_S, ahead_ms=15_000
    )
    [result] = chaos.run(Round([given], trouble))
    assert not result.wrong, result.wrong
    assert len(result.ends) == 2


def test_a_worker_goes_on_whatever_brokers_are_away(
    brokers: Brokers, tmp_path: Path
) -> None:
    """Restart each in turn, freeze one forever, kill two of three: every event counts once."""
    counted = Counted(brokers, tmp_path)
    site = counted.site
    at = counted.send("before", 500)
    with site.worker("one") as one, site.worker("two") as two:
        workers = (one, two)
        until(lambda: all(map(ready, workers)), "both are at work")
        site.wait_published(at)
        for number, broker in enumerate(brokers):
            broker.stop()
            counted.send(f"restart {number}", 200, flush=False)
            broker.start()
            at = counted.send(f"restarted {number}", 200)
            site.wait_published(at)
        with Connection(brokers.bootstrap).admin() as admin:
            events = admin.list_topics(site.topic, timeout=10).topics[site.topic]
            of_events = {
                one for each in events.partitions.values() for one in each.replicas
            }
        frozen = brokers[min({1, 2, 3} - of_events) - 1]
        frozen.freeze()
        site.wait_published(counted.send("frozen", 200))  # others lead what it led
        frozen.thaw()
        at = counted.send("thawed", 200)
        site.wait_published(at)
        until(lambda: all(map(ready, workers)), "both are ready")
        # One is left, and no majority of controllers: metadata shows nothing of it.
        gone = Brokers(brokers[1:])
        gone.each(OwnBroker.kill)
        until(lambda: all(map(is_held_up, workers)), "both say so")
        until(lambda: "its leader does not answer" in ask(one, "/readyz")[1], "and why")
        gone.each(OwnBroker.start)
        counted.send("after", 500)
        # A partition that is back later than the other one gives its events to a later tick.
        until(lambda: site.counted() == counted.sent, "all are counted")
        # The end of the first one may hold up the other: what they say is compared before.
        until(lambda: all(map(goes_on, workers)), "both say that they go on")
        for worker in workers:
            assert worker.stop() == 0
            output = worker.output()
            assert " ERROR " not in output and "Kafka is away" not in output
    counted.assert_exact()


def test_events_are_fetched_from_a_replica_in_the_workers_rack(
    brokers: Brokers, tmp_path: Path
) -> None:
    """Traffic between zones costs money."""
    counted = Counted(brokers, tmp_path)
    counted.site.set("kafka", client={"client.rack": "rack-1"})
    with counted.site.worker(runner=["-c", SAYING]) as worker:
        # A broker answers with the replica to read from where it is not that one itself.
        for _ in range(3):
            counted.site.wait_published(counted.send("some", 100))
        assert "\nreplica 1\n" in worker.output()
        assert worker.stop() == 0
    counted.assert_exact()


def test_partitions_without_a_leader_or_enough_replicas_are_named(
    brokers: Brokers,
) -> None:
    new = [
        NewTopic("alone", 3, 1),
        NewTopic("all", 1, 3, config={"min.insync.replicas": "3"}),
        NewTopic("fine", 3, 3),
    ]
    used = UsedTopics(("alone", "all", "fine"), {"all": 3, "fine": 2})
    errors: list[KafkaError] = []
    with Connection(brokers.bootstrap).quiet_admin(errors) as admin:
        for made in admin.create_topics(new).values():
            made.result()

        def found() -> dict[str, str]:
            return unavailable(admin, errors, used, 3.0, lambda: False)

        until(lambda: not found(), "all are there")
        # A broker may not know yet what another one does.
        known = until(
            lambda: admin.list_topics("alone", timeout=10).topics["alone"].partitions,
            "it is known",
        )
        leader = known[0].leader
        brokers[leader - 1].kill()
        until(lambda: set(found()) == {"alone[0]", "all[0]"}, "only these are not")
        assert found() == {
            "alone[0]": "it has no leader",
            "all[0]": "2 of its 3 replicas are in sync, 3 are needed",
        }
        brokers[leader - 1].start()
        until(lambda: not found(), "all are there again")
