"""Refusals of the worker: exit 2, one line that says what to do, no traceback."""

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.worker.harness import Bare, Site, now_ms, quietcount, sale, unk, until
from workers.agents.contribute import ContributeShard
from workers.agents.release import ReleaseShard
from workers.agents.topics import check_topics
from workers.agents.worker import Factory
from workers.runtime.errors import SettingsError
from workers.runtime.metrics import CONTRIBUTE, RELEASE

pytestmark = pytest.mark.slow


def assert_refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    lines = done.stderr.splitlines()
    lines = [line for line in lines if " INFO " not in line and " WARNING " not in line]
    assert len(lines) == 1, done.stderr
    for word in words:
        assert word in lines[0]


@pytest.fixture
def site(cluster: str, tmp_path: Path) -> Site:
    return Site(cluster, tmp_path, [unk()], partitions=2, owners=1)


@pytest.fixture
def bare(cluster: str, tmp_path: Path) -> Site:
    return Site(cluster, tmp_path, [unk()], partitions=2, create=False)


@pytest.fixture(scope="module")
def ran(cluster: str, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A site with the state of a run. The tests below damage it in turn, each in a way that is
    refused before the damage of an earlier one could be.
    """
    site = Site(
        cluster, tmp_path_factory.mktemp("ran"), [unk()], partitions=2, owners=1
    )
    site.run_once()
    return site


def test_key_file_that_is_missing_or_readable_by_others_is_refused(bare: Site) -> None:
    """Anyone who reads the key can subtract the noise."""
    key = bare.directory / "key"
    key.chmod(0o644)
    assert_refused(bare.run_to_end(), "mode 0644", "chmod 600")
    key.unlink()
    assert_refused(bare.run_to_end(), "quietcount key new")


def test_topics_that_do_not_exist_are_refused(cluster: str, tmp_path: Path) -> None:
    """Starting on a mistyped topic would silently publish nothing."""
    site = Site(cluster, tmp_path, [unk()], partitions=2, create=False)
    assert_refused(site.run_to_end(), "events.topic", site.topic, "create it")
    site.create_events()
    assert_refused(
        site.run_to_end(), f"{site.name}.contributions", "quietcount topics", "--create"
    )


def test_a_silent_broker_is_waited_for_by_the_worker_and_refused_by_commands(
    bare: Site,
) -> None:
    """A wrong address looks like an absent Kafka: the line must show the address."""
    bare.document["kafka"]["bootstrap"] = "127.0.0.1:1"
    done = quietcount("topics", "-c", str(bare.write(bare.document)))
    assert_refused(done, "kafka.bootstrap", "127.0.0.1:1")
    with bare.worker() as worker:
        away = "Kafka is away: kafka.bootstrap = '127.0.0.1:1'"
        until(lambda: away in worker.output(), "it says which")
        assert "Traceback" not in worker.output()
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0


def test_wrong_settings_are_refused_before_kafka_is_asked(bare: Site) -> None:
    """If they looked like an absent Kafka, the worker would wait forever. A typing error in the
    privacy budget must not pass for the default.
    """
    table = '{ "security.protocol" = "SASL_SSL", "sasl.mechanism" = "DIGEST-MD5" }'
    bare.document["kafka"] = {"bootstrap": "127.0.0.1:1", "client": Bare(table)}
    wrong = "kafka.client.sasl.mechanism = 'DIGEST-MD5'"
    assert_refused(bare.run_to_end(), wrong, "SCRAM-SHA-512")
    bare.document["histogram"][0]["epsilom"] = 0.1
    assert_refused(bare.run_to_end(), "epsilom", 'did you mean "epsilon"')


def test_changed_epsilon_needs_a_new_generation(ran: Site) -> None:
    """It would publish the same counts under a promise that does not hold. Operators who write
    epsilon in the settings need not know rho or its consequences.
    """
    site = ran
    histogram: dict[str, Any] = site.document["histogram"][0]
    histogram["epsilon"] = 2.0
    assert_refused(
        site.run_to_end(), "'items'", "(epsilon = 20.0 became 2.0)", "generation = 2"
    )
    histogram["generation"] = 2
    site.rewrite()
    old = {s["id"] for s in site.snapshots()}
    at = now_ms()
    with site.running():
        site.produce(1, [sale("b", at)])
        until(
            lambda: any(s["id"] not in old and s["end"] > at for s in site.snapshots()),
            "the new generation publishes",
        )
    assert site.audit().returncode == 0
    histogram["generation"] = 1
    assert_refused(site.run_to_end(), "generation 2 was already used")
    histogram["generation"] = 2


def test_more_parts_than_the_events_topic_gives_owner_partitions_are_refused(
    bare: Site,
) -> None:
    """The settings alone do not say how many there are."""
    bare.create_events()
    del bare.document["worker"]["owner_partitions"]
    bare.rewrite(histogram=[unk(split=2)])
    bare.create_topics()
    bare.rewrite(histogram=[unk(split=3)])
    with pytest.raises(
        SettingsError, match="split = 3: at most the number of owner partitions, 2"
    ):
        check_topics(bare.settings, bare.connection)


def test_changed_number_of_owners_is_refused(ran: Site) -> None:
    """Only `topics --create` adds partitions to the topic that stage 2 reads."""
    ran.document["worker"]["owner_partitions"] = 2
    assert_refused(
        ran.run_to_end(), f"{ran.name}.contributions has 1 partitions", "--create"
    )


def test_a_partition_that_appears_while_the_worker_runs_is_not_read(site: Site) -> None:
    """It is assigned after a metadata refresh; its records belong to no known source or owner."""
    settings = site.settings
    topics = check_topics(settings, site.connection)
    factory = Factory(settings, site.connection, topics, site.key, None)
    read = factory.stages[CONTRIBUTE][site.topic]
    own = factory.stages[RELEASE][settings.contributions_topic]
    source = read(1)
    owner = own(0)
    assert isinstance(source, ContributeShard) and isinstance(owner, ReleaseShard)
    assert source._gil_lock is owner.merge.gil_lock, "one for all shards"
    assert read(2) is None and own(1) is None
