"""A token server (RFC 6749 client credentials, JWKS), and a broker that accepts its tokens."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests.broker import BRIEF, free_ports, own_broker
from tests.kafka.loaded import LoginSite
from tests.worker.harness import Bare
from workers.settings.files import CLIENT_SECRETS

CLIENT = "quiet"
SECRET = "PlantedSecret, with: a space"
_PACKAGE = "org.apache.kafka.common.security.oauthbearer"
PROPERTIES = """\
listeners=PLAINTEXT://127.0.0.1:{{port}},OAUTH://127.0.0.1:{oauth},CONTROLLER://127.0.0.1:{{controller}}
advertised.listeners=PLAINTEXT://127.0.0.1:{{port}},OAUTH://127.0.0.1:{oauth}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,OAUTH:SASL_PLAINTEXT
inter.broker.listener.name=PLAINTEXT
sasl.enabled.mechanisms=OAUTHBEARER
listener.name.oauth.oauthbearer.sasl.jaas.config={package}.OAuthBearerLoginModule required;
listener.name.oauth.oauthbearer.sasl.server.callback.handler.class={handler}
sasl.oauthbearer.jwt.validator.class={package}.BrokerJwtValidator
listener.name.oauth.oauthbearer.connections.max.reauth.ms=3600000
sasl.oauthbearer.jwks.endpoint.url={jwks}
sasl.oauthbearer.clock.skew.seconds=0
sasl.oauthbearer.expected.audience=kafka
sasl.oauthbearer.expected.issuer=tests
"""


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _number(value: int) -> str:
    return _encoded(value.to_bytes((value.bit_length() + 7) // 8, "big"))


@contextmanager
def dripping(head: bytes, drip: bytes) -> Iterator[str]:
    """Serve the URL of an endpoint that answers with `head`, then sends `drip` endlessly."""
    ended = Event()

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(65_536)
            connection.sendall(head)
            while not ended.wait(0.0 if len(drip) > 1 else 0.05):
                connection.sendall(drip)

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                Thread(target=answer, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        Thread(target=accept, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/token"
        finally:
            ended.set()


class TokenServer:
    """Serves /token and /jwks. `answer_with` replaces the token by a status and a body."""

    def __init__(self, life_s: float = 3600.0) -> None:
        self._key = rsa.generate_private_key(65537, 2048)
        self.life_s = life_s
        self.answer_with: tuple[int, bytes] | None = None
        self.asked: list[dict[str, Any]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._send(200, json.dumps(server.jwks()).encode())

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                login = base64.b64decode(
                    self.headers["Authorization"].removeprefix("Basic ")
                )
                fields = {name: value for name, [value] in parse_qs(body).items()}
                server.asked.append(
                    fields | {"login": login.decode(), "path": self.path}
                )
                self._send(*server.answer(login.decode(), fields))

            def _send(self, status: int, body: bytes) -> None:
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", "/elsewhere")
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._handler = Handler
        self.port = free_ports(1)[0]

    def token(self, life_s: float | None = None, **claims: object) -> str:
        now = time.time()
        life_s = self.life_s if life_s is None else life_s
        times = {"iat": now - 1, "exp": now + life_s}
        content = {"sub": CLIENT, "iss": "tests", "aud": "kafka", **times, **claims}
        head = {"alg": "RS256", "kid": "1", "typ": "JWT"}
        signed = ".".join(
            _encoded(json.dumps(part).encode()) for part in (head, content)
        )
        made = self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{_encoded(made)}"

    def jwks(self) -> dict[str, Any]:
        public = self._key.public_key().public_numbers()
        key = {"kty": "RSA", "kid": "1", "use": "sig", "alg": "RS256"}
        return {"keys": [key | {"n": _number(public.n), "e": _number(public.e)}]}

    def answer(self, login: str, fields: dict[str, str]) -> tuple[int, bytes]:
        if self.answer_with is not None:
            return self.answer_with
        if (
            login != f"{CLIENT}:{SECRET}"
            or fields["grant_type"] != "client_credentials"
        ):
            quoted = {"error": "invalid_client", "error_description": f"wrong: {login}"}
            return 401, json.dumps(quoted).encode()
        token = {
            "access_token": self.token(),
            "token_type": "Bearer",
            "expires_in": self.life_s,
        }
        return 200, json.dumps(token).encode()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/token"

    @contextmanager
    def serving(self, tls: Path | None = None) -> Iterator[TokenServer]:
        """Serve while the block lasts, always at the same port; `tls`: key and certificate."""
        http = ThreadingHTTPServer(("127.0.0.1", self.port), self._handler)
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls)
            http.socket = context.wrap_socket(http.socket, server_side=True)
        thread = Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield self
        finally:
            http.shutdown()
            http.server_close()
            thread.join()

    def client(self, **changes: str) -> dict[str, str]:
        """Return [kafka.client] for this server's tokens; `_` stands for `.` in names."""
        changed = {name.replace("_", "."): value for name, value in changes.items()}
        return OAUTH | {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": CLIENT,
            "sasl.oauthbearer.client.secret": SECRET,
            "sasl.oauthbearer.token.endpoint.url": self.url,
            **changed,
        }


OAUTH = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}


@dataclass(frozen=True)
class OAuthBroker:
    """A broker's address for tokens, and the one without login (`inside`)."""

    bootstrap: str
    inside: str


@contextmanager
def oauth_broker(server: TokenServer) -> Iterator[OAuthBroker]:
    """Run a broker; `server` must serve its keys when the first client logs in."""
    [port] = free_ports(1)
    jwks = f"http://127.0.0.1:{server.port}/jwks"
    properties = PROPERTIES.format(
        oauth=port,
        package=_PACKAGE,
        handler=f"{_PACKAGE}.OAuthBearerValidatorCallbackHandler",
        jwks=jwks,
    )
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={jwks}"
    with own_broker(properties, java=(*BRIEF, allowed)) as running:
        yield OAuthBroker(f"127.0.0.1:{port}", running.bootstrap)


class OAuthSite(LoginSite):
    """A site with two workers' settings: every command logs in with tokens of `server`."""

    def __init__(
        self, broker: OAuthBroker, server: TokenServer, directory: Path
    ) -> None:
        super().__init__(broker.inside, directory)
        self.broker = broker
        self.server = server
        self.secret = directory / "secret"
        self.secret.write_text(SECRET + "\n")
        in_files = dict.fromkeys(CLIENT_SECRETS, Bare('{ file = "secret" }'))
        client = server.client()
        secrets = {name: in_files[name] for name in client.keys() & in_files.keys()}
        self.log_in(broker.bootstrap, client | secrets)

    def assert_exact(self) -> None:
        # Clients are quicker without tokens.
        self.rewrite(kafka={"bootstrap": self.broker.inside})
        super().assert_exact()
