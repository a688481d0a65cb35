"""Tokens of clouds: Amazon's signer, offline, and the metadata service of an Azure machine."""

import base64
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import pytest
from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from workers.kafka.tokens import Login, login_of
from workers.runtime.errors import KafkaAway, KafkaRefuses, SettingsError

SASL = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
PREFIX = "sasl.oauthbearer."
MSK = {"method": "aws_msk_iam", "aws.region": "eu-west-1"}
HUB = "https://shop.servicebus.windows.net"


def login(options: dict[str, str]) -> Login:
    client = SASL | {PREFIX + name: value for name, value in options.items()}
    found = login_of(client, None, ())
    assert found is not None
    return found


@pytest.fixture
def identity(monkeypatch: pytest.MonkeyPatch) -> Credentials:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted-secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "session")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return Credentials("AKIATEST", "planted-secret", "session")


def test_a_token_of_msk_is_what_its_brokers_check(identity: Credentials) -> None:
    """A presigned address, whose signature anyone with the secret can compute again."""
    source = login(MSK).source
    token = source.fetch()
    assert "planted" not in repr(token) + repr(source)
    padded = token.value + "=" * (-len(token.value) % 4)
    parts = urlsplit(base64.urlsafe_b64decode(padded).decode())
    signed = dict(parse_qsl(parts.query))
    assert parts.hostname == "kafka.eu-west-1.amazonaws.com"
    assert signed["Action"] == "kafka-cluster:Connect"
    assert signed["X-Amz-Credential"].startswith("AKIATEST/")
    life_s = int(signed["X-Amz-Expires"])
    assert token.renew_s < token.expires_s
    assert 0 < token.expires_s - token.renew_s < life_s
    request = AWSRequest(
        "GET",
        f"https://{parts.hostname}/?{urlencode({'Action': signed['Action']})}",
    )
    request.context["timestamp"] = signed["X-Amz-Date"]
    signer = SigV4QueryAuth(identity, "kafka-cluster", "eu-west-1", life_s)
    fields = {
        name: value
        for name, value in signed.items()
        if name not in ("X-Amz-Signature", "User-Agent")
    }
    request.url = f"https://{parts.hostname}/?{urlencode(fields)}"
    request.headers["host"] = parts.hostname
    text = signer.canonical_request(request).rsplit("\n", 1)[0]
    canonical = f"{text}\n{sha256(b'').hexdigest()}"
    to_sign = signer.string_to_sign(request, canonical)
    assert signer.signature(to_sign, request) == signed["X-Amz-Signature"]


def test_without_an_identity_or_the_signer_msk_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    with pytest.raises(KafkaAway, match="no AWS credentials now: "):
        login(MSK).source.fetch()
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", None)
    with pytest.raises(KafkaRefuses, match=r"install quietcount\[aws\]"):
        login(MSK).source.fetch()


@contextmanager
def metadata(status: int, answer: dict[str, str]) -> Iterator[tuple[str, list[str]]]:
    """Serve as an Azure machine does; yield the address, and what was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            known = self.headers["Metadata"] == "true"
            body = json.dumps(answer).encode()
            self.send_response(status if known else 400)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/metadata/token", asked
        server.shutdown()
        thread.join()


def test_a_managed_identity_asks_the_metadata_service_and_no_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    found = {"access_token": "opaque", "expires_in": "86399"}
    with metadata(200, found) as (url, asked):
        options = {"method": "azure_imds", "token.endpoint.url": url, "scope": HUB}
        token = login(options | {"client.id": "me"}).source.fetch()
        login(options).source.fetch()
    assert token.value == "opaque"
    assert 0 < token.expires_s - token.renew_s < 86_399
    wanted = {"api-version": ["2018-02-01"], "resource": [HUB]}
    queries = [parse_qs(urlsplit(one).query) for one in asked]
    assert queries == [wanted | {"client_id": ["me"]}, wanted]
    with (
        metadata(400, {"error": "invalid_request"}) as (url, _),
        pytest.raises(KafkaRefuses, match="answered 400.* managed identity"),
    ):
        login(options | {"token.endpoint.url": url}).source.fetch()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"method": "aws_msk_iam"}, "aws.region = .*such as .eu-west-1."),
        (MSK | {"aws.region": "http://evil"}, "the region of the cluster"),
        (MSK | {"scope": "x"}, "scope: only with .*oidc"),
        ({"method": "azure_imds"}, "scope is missing"),
        ({"method": "azure_imds", "scope": HUB, "client.secret": "x"}, "only with"),
        ({"method": "azure_imds", "scope": HUB, "aws.region": "x"}, "only with"),
    ],
)
def test_wrong_settings_of_clouds_are_refused(
    options: dict[str, str], said: str
) -> None:
    with pytest.raises(SettingsError, match=said):
        login(options)
