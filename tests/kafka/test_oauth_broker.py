"""Workers and commands that log in with tokens to a real broker, which ends sessions with them."""

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka.oauth import OAUTH, OAuthBroker, OAuthSite, TokenServer, oauth_broker
from tests.worker.harness import Worker, now_ms, quietcount, sale, until
from workers.client.config import load_reader_settings
from workers.dashboard.server import Background, Dashboard
from workers.kafka import tokens

pytestmark = pytest.mark.waits

SCRIPT = "import sys; sys.stdout.write(open(sys.argv[1]).read())"


@pytest.fixture(scope="module")
def server() -> Iterator[TokenServer]:
    with TokenServer().serving() as serving:
        yield serving


@pytest.fixture(scope="module")
def broker(own_kafka: None, server: TokenServer) -> Iterator[OAuthBroker]:
    with oauth_broker(server) as running:
        yield running


@pytest.fixture
def site(
    broker: OAuthBroker,
    server: TokenServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> OAuthSite:
    monkeypatch.setattr(tokens, "tokens_of", tokens._SharedTokens().of)
    server.life_s = 3600.0
    server.answer_with = None
    server.asked.clear()
    return OAuthSite(broker, server, tmp_path)


def test_a_worker_goes_on_when_its_tokens_expire(site: OAuthSite) -> None:
    """The broker ends every session with its token: no event may be lost or counted twice."""
    # Below ten seconds, librdkafka would renew a session (at 90 %) before its token (at 80 %, once
    # a second). Brokers do not renew a session in its first second; under load, a session may begin
    # so late that its token of 11 s ends within the next.
    site.server.life_s = 16.0
    with site.worker() as worker:
        worker.at_work()
        at = site.load(11.0)
        site.wait_published(at)
        assert worker.stop() == 0
    # At its start and after 12.8 s.
    assert len(site.server.asked) >= 2
    for word in ("Kafka is away", "Kafka client:", "Traceback", "Planted", "token"):
        assert word not in worker.output()
    site.assert_exact()


@pytest.mark.parametrize("command", ["run", "check"])
def test_a_wrong_secret_is_one_line_at_once(site: OAuthSite, command: str) -> None:
    """It must not look like an absent Kafka."""
    site.secret.write_text("PlantedWrong")
    line = site.refused_line(command)
    assert "it answered 401 (invalid_client). Check sasl.oauthbearer.client.id" in line


def test_a_token_that_the_broker_does_not_accept_is_one_line(site: OAuthSite) -> None:
    """Only the broker knows who signs its tokens."""
    (site.directory / "token").write_text(TokenServer().token())
    site.log_in(site.broker.bootstrap, OAUTH, token_file="token")
    line = site.refused_line("topics")
    assert "kafka.bootstrap" in line and "Check the token in kafka.token_file" in line


def test_commands_take_a_token_from_a_program(site: OAuthSite) -> None:
    (site.directory / "token").write_text(site.server.token())
    arguments = [sys.executable, "-c", SCRIPT, str(site.directory / "token")]
    site.log_in(site.broker.bootstrap, OAUTH, token_command=arguments)
    done = quietcount("topics", "-c", str(site.config))
    assert done.returncode == 0, done.stderr


def test_an_expired_token_file_is_waited_for(site: OAuthSite, tmp_path: Path) -> None:
    """Something else renews it, perhaps late: a command says so, a worker waits and goes on."""
    path = site.directory / "token"
    path.write_text(site.server.token(-60))
    site.log_in(site.broker.bootstrap, OAUTH, token_file="token")
    assert "its token expired at 20" in site.refused_line("check")
    with Worker(
        site.config, tmp_path / "debug.log", options=("--debug", "run")
    ) as worker:
        until(lambda: "Kafka is away: kafka.token_file" in worker.output(), "it waits")
        path.write_text(site.server.token())
        until(lambda: "Kafka is back" in worker.output(), "it has a token")
        at = now_ms()
        site.produce(0, [sale(["a"], at)])
        site.wait_published(at)
        assert worker.stop() == 0
        assert path.read_text() not in worker.output()


def test_a_dashboard_waits_for_its_first_token(
    site: OAuthSite, caplog: pytest.LogCaptureFixture
) -> None:
    """It starts without Kafka, too."""
    site.server.answer_with = 503, b""
    served = Background(Dashboard(load_reader_settings(site.config), port=0))
    with caplog.at_level(logging.WARNING), served:
        until(lambda: "it answered 503" in caplog.text, "the reason", 30.0)
        site.server.answer_with = None
        until(
            lambda: served.dashboard.hub.state == {"kafka": "live"}, "the state", 30.0
        )
    assert "Planted" not in caplog.text
