"""Every client through TLS, SCRAM and ACLs, with only the rights of deploy/acls.md."""

import logging
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message

from tests import ROOT
from tests.kafka.loaded import LoginSite
from tests.kafka.secure import MECHANISM, Secure, rules_of, secure_broker
from tests.worker.harness import Bare, quietcount, until
from tests.worker.test_metrics import ready
from workers.client.config import load_reader_settings
from workers.commands.key import new_signing_key
from workers.dashboard.server import Background, Dashboard
from workers.kafka.clients import Connection

pytestmark = pytest.mark.waits

ACLS = ROOT / "deploy" / "acls.md"
PASSWORD = "Planted, with a space"


@pytest.fixture(scope="module")
def secure(
    own_kafka: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secure]:
    with secure_broker(tmp_path_factory.mktemp("secure")) as broker:
        yield broker


class SecureSite(LoginSite):
    says_one_line = True

    def __init__(self, secure: Secure, directory: Path) -> None:
        super().__init__(secure.inside, directory, create=False)
        self.secure = secure
        self.create_events()
        (directory / "password").write_text(PASSWORD + "\n")
        (directory / "password").chmod(0o600)

    def user(self, role: str, without: tuple[str, str] = ("nothing", "")) -> str:
        """Create a principal with a role's rights from the table, except one operation on the
        resources that match a word.
        """
        name = f"{role}-{uuid.uuid4().hex[:8]}"
        self.secure.add_user(name, PASSWORD)
        names = {
            "<name>": self.name,
            "<events>": self.topic,
            "<reader>": f"{self.name}-readers",
        }
        word, operation = without
        for histogram in self.settings.histograms:
            names["<histogram>"] = self.settings.output_topic(histogram)
            rules = rules_of(ACLS, role, names)
            for i, rule in enumerate(rules):
                if word in f"{rule.resource} {rule.name}":
                    kept = tuple(each for each in rule.operations if each != operation)
                    rules[i] = replace(rule, operations=kept)
            self.secure.allow(rules, name)
        return name

    def login(self, user: str, ca: Path | None = None) -> dict[str, str]:
        authority = str(ca or self.secure.ca)
        protocol = {"security.protocol": "SASL_SSL", "ssl.ca.location": authority}
        return protocol | {"sasl.mechanism": MECHANISM, "sasl.username": user}

    def come_in_as(
        self, user: str, password: str = '{ file = "password" }', ca: Path | None = None
    ) -> None:
        client = self.login(user, ca) | {"sasl.password": Bare(password)}
        self.log_in(self.secure.bootstrap, client)


@pytest.fixture
def site(secure: Secure, tmp_path: Path) -> SecureSite:
    return SecureSite(secure, tmp_path)


def test_each_principal_does_its_work_with_the_rights_of_the_table_and_no_others(
    site: SecureSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three libraries must log in, and the table must suffice."""
    monkeypatch.setenv("QUIETCOUNT_TEST_PASSWORD", PASSWORD)
    new_signing_key(site.directory / "signing.key")
    site.document["worker"]["signing_key_file"] = "signing.key"
    site.come_in_as(site.user("admin"), '{ env = "QUIETCOUNT_TEST_PASSWORD" }')
    created = quietcount("topics", "-c", str(site.config), "--create")
    assert created.returncode == 0, created.stderr
    site.document["events"]["max_bytes"] = 200
    site.come_in_as(site.user("worker"))
    long = {
        "key": "k",
        "items": ["a"],
        "ts": time.time_ns() // 1_000_000,
        "note": "x" * 200,
    }
    site.produce(0, [long])
    at = time.time_ns() // 1_000_000
    with site.worker() as worker:
        for partition in range(2):
            site.produce(
                partition, [{"key": "k", "items": ["a"], "ts": at}] * 100 + [b"{"]
            )
        until(lambda: ready(worker), "it is ready")
        site.wait_published(at)
        until(lambda: len(site.rejects()) == 3, "what is broken is put aside")
        assert worker.stop() == 0
        assert PASSWORD not in worker.output() and "Traceback" not in worker.output()
    assert site.contributed().total() == 200
    for data in ("data", "lost"):  # the second one reads its state from the changelog
        with site.worker(data) as worker:
            later = time.time_ns() // 1_000_000
            site.wait_published(later)
            assert worker.stop() == 0
    site.come_in_as(site.user("operator"))
    checked = quietcount("check", "-c", str(site.config))
    assert checked.returncode == 0, checked.stderr
    replayed = quietcount("replay", "-c", str(site.config), "--topic")
    assert replayed.returncode == 0 and "replay: 200 events" in replayed.stderr, (
        replayed.stderr
    )
    site.document["events"]["max_bytes"] = 1_000_000
    site.config = site.write(site.document)
    back = quietcount("rejects", "-c", str(site.config), "--retry")
    assert back.returncode == 0 and "sent back: 1 record," in back.stdout, (
        back.stdout + back.stderr
    )
    site.come_in_as(site.user("auditor"))
    audit = site.audit()
    assert audit.returncode == 0, audit.stdout + audit.stderr
    reader = site.user("reader")
    assert read_one(site, reader, f"{site.name}.items").error() is None
    refused = read_one(site, reader, f"{site.name}.contributions").error()
    assert (
        refused is not None and refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    )
    site.come_in_as(reader)
    output = ("--output", str(site.directory / "out"), "--format", "csv")
    exported = quietcount("export", "-c", str(site.config), *output)
    assert exported.returncode == 0 and "rows from" in exported.stdout, exported.stderr
    assert "items: " in site.verify("signing.key")


def read_one(site: SecureSite, user: str, topic: str) -> Message:
    login = site.login(user) | {"sasl.password": PASSWORD}
    group = {"group.id": f"{site.name}-readers", "auto.offset.reset": "earliest"}
    with closing(
        Connection(site.secure.bootstrap, login).consumer(**group)
    ) as consumer:
        consumer.subscribe([topic])
        found = until(lambda: consumer.poll(1.0), f"something from {topic}")
        assert found is not None
        return found


@pytest.mark.parametrize("command", ["topics", "run", "audit"])
@pytest.mark.parametrize("wrong", ["password", "certificate"])
def test_a_login_that_fails_is_one_line_at_once(
    site: SecureSite, command: str, wrong: str
) -> None:
    """A changed password must not look like an absent broker, and no stranger may get one."""
    words = ("Authentication failed", "sasl.password")
    if wrong == "password":
        site.come_in_as(site.user("worker"))
        (site.directory / "password").write_text("PlantedWrong")
    else:
        words = ("certificate", "ssl.ca.location")
        site.come_in_as(site.user("worker"), ca=site.secure.other_ca)
    line = site.refused_line(command)
    assert all(word in line for word in words)


@pytest.mark.parametrize(
    ("wrong", "state", "word"),
    [
        ("password", "refused", "Authentication failed"),
        ("ca", "away", "certificate verify failed"),
    ],
)
def test_a_dashboard_that_is_not_let_in_says_why(
    site: SecureSite,
    caplog: pytest.LogCaptureFixture,
    wrong: str,
    state: str,
    word: str,
) -> None:
    """It retries an absent Kafka, so only its log and page can tell."""
    site.come_in_as(
        site.user("reader"), ca=site.secure.other_ca if wrong == "ca" else None
    )
    if wrong == "password":
        (site.directory / "password").write_text("PlantedWrong")
    served = Background(Dashboard(load_reader_settings(site.config), port=0))
    with caplog.at_level(logging.WARNING), served:
        until(lambda: word in caplog.text, "the reason")
        until(lambda: served.dashboard.hub.state == {"kafka": state}, "the state")
    assert "Planted" not in caplog.text


def test_a_client_without_tls_is_told_to_look_at_the_protocol(site: SecureSite) -> None:
    """The broker does not answer such a client at all."""
    site.log_in(site.secure.bootstrap, {})
    assert "security.protocol" in site.refused_line("topics")


@pytest.mark.parametrize(
    "right",
    ["contributions WRITE", "events READ", "transactional-id WRITE", "group READ"],
)
def test_a_missing_right_ends_the_worker_with_one_line(
    site: SecureSite, right: str
) -> None:
    """It must not look like a newer owner or an absent broker, nor wait forever."""
    site.create_topics()
    resource, operation = right.split()
    site.come_in_as(site.user("worker", without=(resource, operation)))
    site.produce(0, [{"key": "k", "items": ["a"], "ts": time.time_ns() // 1_000_000}])
    done = site.run_to_end()
    assert done.returncode == 2, done.stderr
    [line] = [
        line for line in done.stderr.splitlines() if line.startswith("quietcount: ")
    ]
    assert "deploy/acls.md" in line and (
        "does not allow" in line or "no such topic" in line
    )
    assert "Traceback" not in done.stderr
