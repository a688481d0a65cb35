"""A registry behind TLS that lets in only who it knows: a proxy before the real one asks for what the settings say."""

import base64
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from tests.events.registry.test_registry import Shard, in_thread, register
from tests.kafka.harness import wait_until
from tests.kafka.secure import _authority, _signed
from tests.registry_server import RegistryServer
from workers.events.schemas import Access, AlwaysOpen, Registry
from workers.settings.settings import SchemaRegistrySettings, _section, registry_values


@contextmanager
def behind_tls(
    registry: RegistryServer, directory: Path, authorization: str
) -> Iterator[str]:
    """The URL of the registry for whoever trusts `ca.pem` and says `authorization`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers["Authorization"] != authorization:
                self.send_response(401)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            try:
                with urllib.request.urlopen(
                    f"http://127.0.0.1:{registry.port}{self.path}", timeout=10
                ) as answer:
                    status = answer.status
                    body = answer.read()
            except urllib.error.HTTPError as error:
                status = error.code
                body = error.read()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *what: Any) -> None:
            """Say nothing."""

    authority, key = _authority("Quietcount tests")
    (directory / "ca.pem").write_bytes(authority.public_bytes(Encoding.PEM))
    (directory / "own.pem").write_bytes(_signed(authority, key))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(directory / "own.pem")
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"https://localhost:{server.server_port}/apis/ccompat/v7"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def opened(directory: Path, **values: Any) -> Registry:
    settings = _section(
        SchemaRegistrySettings, registry_values(values, directory), "schema_registry."
    )
    return Registry(
        Access(settings.url, settings.client(), settings.unknown_wait_ms / 1000)
    )


@pytest.mark.parametrize("kind", ["password", "token"])
def test_who_may_and_trusts_the_authority_gets_schemas(
    registry: RegistryServer, tmp_path: Path, kind: str
) -> None:
    (tmp_path / "secret").write_text("s3cret\n")
    secret = {"file": "secret"}
    access: dict[str, Any] = (
        {"token": secret} if kind == "token" else {"user": "me", "password": secret}
    )
    said = (
        "Bearer s3cret"
        if kind == "token"
        else f"Basic {base64.b64encode(b'me:s3cret').decode()}"
    )
    number = register(registry)
    with behind_tls(registry, tmp_path, said) as url:
        schemas = opened(tmp_path, url=url, ca="ca.pem", unknown_wait="0s", **access)
        assert schemas.schema(number, AlwaysOpen()) is not None
        assert schemas.schema(920_000, AlwaysOpen()) is None


@pytest.mark.parametrize("wrong", ["password", "ca"])
def test_who_may_not_waits_and_the_log_says_why(
    registry: RegistryServer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    wrong: str,
) -> None:
    (tmp_path / "secret").write_text("s3cret")
    number = register(registry)
    with behind_tls(registry, tmp_path, "Basic nobody") as url:
        trust = {} if wrong == "ca" else {"ca": "ca.pem"}
        schemas = opened(
            tmp_path, url=url, user="me", password={"file": "secret"}, **trust
        )
        shard = Shard()
        thread, found = in_thread(lambda: schemas.schema(number, shard))
        said = "CERTIFICATE_VERIFY_FAILED" if wrong == "ca" else "HTTP 401"
        wait_until(lambda: said in caplog.text, "it is said")
        assert not found
        assert "s3cret" not in caplog.text
        shard.closed.set()
        thread.join(120)
