"""Tokens for OAUTHBEARER: where they come from, when they are renewed, and what is said about it."""

import asyncio
import fcntl
import json
import logging
import math
import os
import ssl
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from aiokafka.errors import KafkaConnectionError
from confluent_kafka import KafkaException
from faust.auth import OAuthCredentials

from tests.kafka.harness import wait_until
from tests.kafka.oauth import CLIENT, OAUTH, SECRET, TokenServer, dripping
from tests.kafka.secure import write_certificates
from workers.kafka import tokens
from workers.kafka.clients import Connection, faust_credentials, unreachable
from workers.kafka.tokens import Token, Tokens
from workers.runtime.errors import KafkaAway, KafkaRefuses, SettingsError
from workers.settings.files import CLIENT_SECRETS

SCRIPT = "import sys; sys.stderr.write('PlantedError'); sys.stdout.write(open(sys.argv[1]).read())"


@pytest.fixture(scope="module")
def server() -> Iterator[TokenServer]:
    with TokenServer().serving() as serving:
        yield serving


@pytest.fixture(autouse=True)
def calm(server: TokenServer, monkeypatch: pytest.MonkeyPatch) -> None:
    # a process asks once for all its connections
    monkeypatch.setattr(tokens, "tokens_of", tokens._SharedTokens().of)
    server.answer_with = None
    server.life_s = 3600.0
    server.asked.clear()


def source_of(connection: Connection) -> Tokens:
    """Return the tokens of a process that has none yet."""
    assert connection.login is not None
    return Tokens(connection.login.source, dict(connection.login.extensions))


def refusal(client: dict[str, str]) -> str:
    """Return why a source has no token; no form of the secret is in it."""
    with pytest.raises((KafkaAway, SettingsError)) as caught:
        source_of(Connection("a:1", client)).get()
    assert "Planted" not in str(caught.value)
    return str(caught.value)


# --- Settings


def test_the_request_is_librdkafkas(server: TokenServer) -> None:
    """An operator moves settings over from another librdkafka client."""
    client = server.client(sasl_oauthbearer_scope="read write:all")
    token = source_of(Connection("a:1", client)).get()
    login = f"{CLIENT}:{SECRET}"
    fields = {"grant_type": "client_credentials", "scope": "read write:all"}
    assert server.asked == [fields | {"login": login, "path": "/token"}]
    assert token.value.count(".") == 2


def test_both_clients_have_one_source_and_librdkafka_sees_no_secret(
    server: TokenServer,
) -> None:
    """Two sources would ask twice as often, and could disagree."""
    connection = Connection(
        "a:1", server.client(sasl_oauthbearer_extensions="one=1,two=a b")
    )
    credentials = faust_credentials(connection)
    assert isinstance(credentials, OAuthCredentials)
    config = connection.config()
    assert not [
        name for name in config if name.startswith(("sasl.oauthbearer.", "https."))
    ]
    value, _, _, extensions = config["oauth_cb"]("")
    assert asyncio.run(credentials.oauth_cb.token()) == value
    assert credentials.oauth_cb.extensions() == extensions == {"one": "1", "two": "a b"}
    assert len(server.asked) == 1
    assert SECRET not in repr(connection) + repr(source_of(connection).__dict__)


GOOD = OAUTH | {
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.client.id": "quiet",
    "sasl.oauthbearer.client.secret": "Planted",
    "sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:1/token",
}


@pytest.mark.parametrize(
    ("changes", "more", "words"),
    [
        (
            {"method": None},
            {},
            ['method = "default"', "exactly one of", "kafka.token_command"],
        ),
        (
            {"method": "magic"},
            {},
            ['method = "magic"', '"oidc", "azure_imds", "aws_msk_iam"'],
        ),
        (
            {},
            {"token_file": Path("t")},
            ['method = "oidc", kafka.token_file', "exactly one of"],
        ),
        ({"client.id": None}, {}, ["client.id is missing"]),
        ({"client.secret": ""}, {}, ["client.secret is missing"]),
        (
            {"token.endpoint.url": "ftp://a/b"},
            {},
            ["token.endpoint.url: ", '"https://host:port'],
        ),
        ({"token.endpoint.url": "https://Planted@a/"}, {}, ["token.endpoint.url: "]),
        ({"extensions": "auth=x"}, {}, ['extensions = "auth=x"', "name=value"]),
        ({"extensions": "a1=x"}, {}, ['extensions = "a1=x"', "only letters"]),
        ({"grant.type": "jwt"}, {}, ["grant.type: not supported; use"]),
        ({"method": "default"}, {"token_file": Path("t")}, ["client.id: only with"]),
        (
            {"../mechanism": "PLAIN"},
            {},
            ['method: only with security.protocol = "SASL_SSL"'],
        ),
        (
            {"../../security.protocol": "SSL"},
            {},
            ["method: only with security.protocol"],
        ),
        (
            {"../../https.ca.location": "/none"},
            {},
            ["kafka.client.https.ca.location: "],
        ),
    ],
)
def test_wrong_settings_are_one_line(
    changes: dict[str, str | None], more: dict[str, Path], words: list[str]
) -> None:
    """They are known before Kafka is asked, and a secret is never in the line."""
    client: dict[str, str | None] = dict(GOOD)
    for name, value in changes.items():
        client[os.path.normpath(f"sasl/oauthbearer/{name}").replace("/", ".")] = value
    kept = {name: value for name, value in client.items() if value is not None}
    with pytest.raises(SettingsError) as caught:
        Connection("a:1", kept, **more)  # type: ignore[arg-type]  # by name
    line = str(caught.value)
    assert line.startswith("kafka.") and all(word in line for word in words)
    assert "\n" not in line and "Planted" not in line


def test_a_token_goes_only_with_oauthbearer(tmp_path: Path) -> None:
    """Otherwise the operator would believe that it protects something."""
    with pytest.raises(SettingsError, match=r"^kafka\.token_file: only with"):
        Connection("a:1", {}, token_file=tmp_path / "token")


def test_every_name_of_the_secret_must_be_a_file_or_a_variable() -> None:
    assert set(tokens._SECRET) <= set(CLIENT_SECRETS)


# --- What an endpoint, a file and a command answer


@pytest.mark.slow
def test_the_expiry_in_a_token_comes_before_the_one_beside_it(
    server: TokenServer,
) -> None:
    """Brokers go by the token's own."""
    source = source_of(Connection("a:1", server.client()))
    server.answer_with = (
        200,
        json.dumps({"access_token": server.token(100), "expires_in": 9999}).encode(),
    )
    now_s = time.time()
    assert source.get().expires_s == pytest.approx(now_s + 100, abs=3)
    assert source.get().renew_s == pytest.approx(now_s + 80, abs=3)
    opaque = source_of(Connection("a:1", server.client()))
    server.answer_with = 200, b'{"access_token": "opaque", "expires_in": "50"}'
    assert opaque.get().expires_s == pytest.approx(now_s + 50, abs=3)
    endless = source_of(Connection("a:1", server.client()))
    server.answer_with = 200, b'{"access_token": "opaque"}'
    assert endless.get().expires_s == math.inf
    assert endless.get().renew_s == pytest.approx(now_s + 300, abs=3)


@pytest.mark.parametrize(
    ("status", "body", "is_away", "word"),
    [
        (503, b"PlantedBody", True, "it answered 503"),
        (429, b"{}", True, "it answered 429"),
        (
            401,
            b'{"error": "invalid_client"}',
            False,
            "it answered 401 (invalid_client). Check",
        ),
        (400, b'{"error": "Planted!"}', False, "it answered 400. Check"),
        (302, b"", False, "it answered 302. Check"),
        (200, b"[PlantedBody", False, "no access_token"),
        (200, b"[" * 100_000, False, "no access_token"),
        (
            200,
            b'{"access_token": "Planted\\nToken"}',
            False,
            "no token: it must be one word",
        ),
        (
            200,
            b'{"access_token": "Planted", "expires_in": -5}',
            True,
            "its token expired at 20",
        ),
    ],
)
def test_what_an_endpoint_answers_is_told_without_quoting_it(
    server: TokenServer, status: int, body: bytes, is_away: bool, word: str
) -> None:
    """Only a passing failure may look like an absent Kafka; a redirect would take the secret along."""
    server.answer_with = status, body
    source = source_of(Connection("a:1", server.client()))
    with pytest.raises(KafkaAway if is_away else KafkaRefuses) as caught:
        source.get()
    assert word in str(caught.value) and "Planted" not in str(caught.value)
    assert len(server.asked) == 1


def test_an_endpoint_that_is_away_or_a_stranger_is_told_apart(tmp_path: Path) -> None:
    """No stranger may get the secret."""
    assert "Connection refused" in refusal(GOOD)
    ca, other_ca, keystore = write_certificates(tmp_path)
    secure = TokenServer()
    url = secure.url.replace("http:", "https:")
    client = secure.client() | {"sasl.oauthbearer.token.endpoint.url": url}
    with secure.serving(keystore):
        refused = refusal(client | {"https.ca.location": str(other_ca)})
        assert (
            "certificate verify failed" in refused
            and "Check https.ca.location" in refused
        )
        assert not secure.asked
        for authority in (
            {"https.ca.location": str(ca)},
            {"https.ca.pem": ca.read_text()},
        ):
            assert source_of(Connection("a:1", client | authority)).get()


def test_a_file_is_read_again_and_waited_for_when_it_has_expired(
    server: TokenServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something else renews it, perhaps a little late."""
    monkeypatch.setattr(tokens, "FILE_S", 0.0)
    path = tmp_path / "token"
    source = source_of(Connection("a:1", OAUTH, token_file=path))
    with pytest.raises(KafkaRefuses, match="No such file"):
        source.get()
    source = source_of(Connection("a:1", OAUTH, token_file=path))
    path.write_text(server.token(-5))
    with pytest.raises(KafkaAway, match="its token expired at 20"):
        source.get()
    source = source_of(Connection("a:1", OAUTH, token_file=path))
    for first in (server.token(), server.token(), "opaque"):
        path.write_text(first + "\n")
        assert source.get().value == first


def test_a_command_runs_without_a_shell_and_its_errors_stay_with_it(
    tmp_path: Path,
) -> None:
    """Its output may hold secrets."""
    path = tmp_path / "$(echo token)"
    path.write_text("opaque\n")
    arguments = (sys.executable, "-c", SCRIPT, str(path))
    connection = Connection("a:1", OAUTH, token_command=arguments)
    assert source_of(connection).get().value == "opaque"
    assert "echo" not in repr(connection)
    failing = source_of(
        Connection("a:1", OAUTH, token_command=(sys.executable, "-c", "Planted"))
    )
    with pytest.raises(KafkaAway, match=r", \.\.\.\]: exit status 1$"):
        failing.get()
    absent = source_of(
        Connection("a:1", OAUTH, token_command=("/none/such", "Planted"))
    )
    with pytest.raises(KafkaRefuses, match=r'\["/none/such", \.\.\.\]: No such file'):
        absent.get()


@pytest.mark.parametrize(
    ("head", "drip", "word"),
    [
        (
            b"HTTP/1.1 200 OK\r\n\r\n",
            b" " * 65_536,
            "its answer has more than 1,048,576 bytes",
        ),
        (b"HTTP/1.1 200 OK\r\n\r\n", b" ", "it took more than 1 s"),
        (b"HTTP/1.1 200 OK\r\nX-Slow: ", b"a", "it took more than 1 s"),
        (b"", b"H", "it took more than 1 s"),
    ],
)
def test_an_endpoint_that_never_ends_its_answer_is_given_up(
    head: bytes, drip: bytes, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every byte arrives in time, and the answer never: all clients would wait for it."""
    monkeypatch.setattr(tokens, "_TIMEOUT_S", 1.0)
    with dripping(head, drip) as url:
        client = GOOD | {"sasl.oauthbearer.token.endpoint.url": url}
        source = source_of(Connection("a:1", client))
        with pytest.raises((KafkaAway, SettingsError), match=word):
            source.get()


def test_a_connection_that_is_made_after_the_deadline_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a busy machine, its endless answer was read for ever."""
    monkeypatch.setattr(tokens, "_TIMEOUT_S", 0.1)
    context = tokens.Endpoint._context

    def slow(self: tokens.Endpoint) -> ssl.SSLContext:
        time.sleep(0.3)
        return context(self)

    monkeypatch.setattr(tokens.Endpoint, "_context", slow)
    with dripping(b"HTTP/1.1 200 OK\r\n\r\n", b" ") as url:
        client = GOOD | {"sasl.oauthbearer.token.endpoint.url": url}
        source = source_of(Connection("a:1", client))
        with pytest.raises(KafkaAway, match="it took more than 0.1 s"):
            source.get()


def unreadable(directory: Path) -> tuple[Path, Path]:
    """Return a named pipe without a writer, and a file of 100 MiB."""
    pipe = directory / "pipe"
    huge = directory / "huge"
    os.mkfifo(pipe)
    huge.touch()
    os.truncate(huge, 100 << 20)
    return pipe, huge


def test_a_token_file_that_is_no_file_or_too_long_is_refused_at_once(
    tmp_path: Path,
) -> None:
    """A named pipe without a writer would hang every client; a device has no end."""
    pipe, huge = unreadable(tmp_path)
    said = "longer than 1,048,576 bytes"
    unusable = {
        pipe: "not a regular file",
        Path("/dev/zero"): "not a regular file",
        huge: said,
    }
    for path, word in (unusable | {tmp_path: "Is a directory"}).items():
        with pytest.raises(KafkaRefuses, match=f"kafka.token_file = .*: {word}"):
            source_of(Connection("a:1", OAUTH, token_file=path)).get()


@pytest.mark.parametrize(
    ("program", "word"),
    [
        ("print('x' * 65_536)", "it printed more than 1,048,576 bytes"),
        ("print('x', flush=True); time.sleep(0.1)", "it took more than 1 s"),
        ("os.close(1); time.sleep(3600)", "it took more than 1 s"),
        ("subprocess.run(['sleep', '3600'], pass_fds=[lock])", "it took more than 1 s"),
    ],
)
def test_a_command_that_never_ends_is_ended_with_what_it_started(
    program: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that prints without end took all memory of the machine."""
    monkeypatch.setattr(tokens, "_TIMEOUT_S", 1.0)
    held = tmp_path / "held"
    # Its children inherit the lock, which the last of them to end releases.
    script = (
        "import fcntl, os, subprocess, sys, time; lock = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)\n"
        f"fcntl.flock(lock, fcntl.LOCK_EX); os.write(lock, b'held')\nwhile True: {program}"
    )
    arguments = (sys.executable, "-c", script, str(held))
    source = source_of(Connection("a:1", OAUTH, token_command=arguments))
    with pytest.raises((KafkaAway, SettingsError), match=word):
        source.get()
    assert held.read_bytes() == b"held"
    with held.open() as file:
        wait_until(lambda: locked(file), "all have ended")


def locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def test_a_certificate_that_a_library_would_read_for_ever_is_refused(
    tmp_path: Path,
) -> None:
    pipe, huge = unreadable(tmp_path)
    for name in ("ssl.ca.location", "https.ca.location", "ssl.key.location"):
        for path, word in (
            (pipe, "not a regular file"),
            (huge, "longer than 16,777,216 bytes"),
        ):
            with pytest.raises(
                SettingsError, match=rf"kafka.client.{name} = .*: {word}"
            ):
                Connection("a:1", {name: str(path)})


# --- Renewal


class Fake:
    """A source and a clock; every token lives 100 s, unless `error` is set."""

    advice = "Check it"

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.fetched = 0
        self.error: KafkaAway | KafkaRefuses | None = None
        self.tokens = Tokens(self, now_s=lambda: self.now_s)

    def fetch(self) -> Token:
        self.fetched += 1
        if self.error is not None:
            raise self.error
        return Token(f"Planted{self.fetched}", self.now_s + 100, self.now_s + 80)

    def at(self, now_s: float) -> str:
        self.now_s = now_s
        return self.tokens.get().value


def test_a_token_is_renewed_after_four_fifths_of_its_life() -> None:
    fake = Fake()
    found = [fake.at(now_s) for now_s in (1000, 1079, 1080, 1159, 1160)]
    assert found == ["Planted1", "Planted1", "Planted2", "Planted2", "Planted3"]


def test_librdkafka_is_told_to_ask_again_when_there_is_something_new() -> None:
    """It asks after 80 % of the life that it is told; a client made late must not keep a token to its end."""
    fake = Fake()
    for now_s in (1000.0, 1079.0):
        fake.now_s = now_s
        _, told_s, *_ = fake.tokens.for_librdkafka("")
        assert now_s + 0.8 * (told_s - now_s) == pytest.approx(max(1080.0, now_s + 1))
    fake.now_s = 1085.0
    fake.error = KafkaAway("away")
    _, told_s, *_ = fake.tokens.for_librdkafka("")
    assert 1085 + 0.8 * (told_s - 1085) == pytest.approx(1086)


def test_a_failing_renewal_is_told_once_and_the_old_token_used_to_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A token server that restarts must cost nothing."""
    fake = Fake()
    with caplog.at_level(logging.INFO):
        assert fake.at(1000) == "Planted1"
        fake.error = KafkaRefuses("it answered 401")
        assert {fake.at(now_s) for now_s in (1080, 1080.5, 1081, 1082, 1083, 1099)} == {
            "Planted1"
        }
        assert fake.tokens.failure is None
        assert fake.fetched == 1 + 4  # at 1080, 1081, 1083, 1099: with backoff
        # It had a token, so waiting may help.
        with pytest.raises(KafkaAway, match="it answered 401"):
            fake.at(1101)
        assert fake.tokens.failure == "it answered 401"
        fake.error = None
        assert fake.at(1200) == f"Planted{fake.fetched}"
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "no new Kafka token: it answered 401. The present one is valid for 20 s more; trying again",
        "a new Kafka token, after 120 s without",
    ]
    assert "Planted" not in caplog.text


def test_without_a_token_clients_wait_as_for_an_absent_kafka(
    server: TokenServer,
) -> None:
    """The code that makes a client handles an absent Kafka by waiting."""
    server.answer_with = 503, b""
    connection = Connection("a:1", server.client())
    with pytest.raises(KafkaException) as caught:
        connection.producer()
    assert unreachable(caught.value) and "it answered 503" in str(caught.value)
    with pytest.raises(KafkaAway, match="it answered 503"), connection.connect(1.0):
        pass
    credentials = faust_credentials(connection)
    assert isinstance(credentials, OAuthCredentials)
    with pytest.raises(KafkaConnectionError, match="it answered 503"):
        asyncio.run(credentials.oauth_cb.token())
