"""Tokens for SASL/OAUTHBEARER: one source in a process, shared by all Kafka clients.

    Endpoint       asks a token endpoint (RFC 6749, client credentials), as librdkafka's "oidc" does
    AzureIdentity  asks the metadata service of an Azure machine for its managed identity's token
    AwsIdentity    signs a token for Amazon MSK with the machine's or the environment's AWS identity
    File           reads a file that something else renews
    Command        runs a program that prints a token

`Tokens` renews a token after 80 % of its life. While that fails, it retries with backoff and hands
out the present token until that expires. No message holds a token or secret.
"""

import asyncio
import base64
import http.client
import json
import logging
import math
import os
import re
import selectors
import signal
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol, Self
from urllib.parse import quote, urlencode, urlsplit

from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaConnectionError

from workers.mechanisms.config.checked import display
from workers.runtime.errors import KafkaAway, KafkaRefuses, SettingsError
from workers.runtime.logs import json_fields
from workers.settings.files import NotReadable, read_bounded

logger = logging.getLogger(__name__)

MECHANISM = "OAUTHBEARER"
_PREFIX = "sasl.oauthbearer."
_METHOD, _EXTENSIONS, _SCOPE = (
    _PREFIX + name for name in ("method", "extensions", "scope")
)
_URL = _PREFIX + "token.endpoint.url"
_REGION = _PREFIX + "aws.region"
_METHODS = ("default", "oidc", "azure_imds", "aws_msk_iam")
_AZURE_URL = "http://169.254.169.254/metadata/identity/oauth2/token"
_AZURE_VERSION = "2018-02-01"
# librdkafka's names and aliases.
_ID = (_PREFIX + "client.id", _PREFIX + "client.credentials.client.id")
_SECRET = (_PREFIX + "client.secret", _PREFIX + "client.credentials.client.secret")
_CA_FILE = "https.ca.location"
_CA_PEM = "https.ca.pem"
_OF_ENDPOINT = (*_ID, *_SECRET, _URL, _SCOPE, _CA_FILE, _CA_PEM)
#: Options of [kafka.client] that this module replaces: librdkafka never sees them.
NAMES = (_METHOD, _EXTENSIONS, _REGION, *_OF_ENDPOINT)

_RENEW_AT = 0.8
_BACKOFF_S = 1.0
_BACKOFF_MAX_S = 10.0
#: A file is read again this often; and so often is a token renewed that tells no expiry.
FILE_S = 10.0
_UNKNOWN_S = 300.0
#: For one request with its answer, or one run of the command.
_TIMEOUT_S = 10.0
# How long a client that has a valid token waits for the next one.
_PATIENCE_S = 1.0
#: Of a token, with what is around it. Brokers take half of it (sasl.server.max.receive.size).
_BYTES_MAX = 1 << 20
_PRINTABLE = re.compile(r"[\x21-\x7e]+")
_EXTENSION = re.compile(r"(?!auth=)([A-Za-z]+)=([\x20-\x7e]*)")
_AWS_REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-[0-9]+")
_ERROR_CODE = re.compile(r"[a-z_]{1,40}")
_HTTP_RETRIED = (408, 425, 429)
# The year 5138: a number beyond it is not in seconds.
_EXPIRY_MAX_S = 1e11


class Token(NamedTuple):
    """`expires_s`: seconds since 1970, infinite if unknown. `renew_s`: when to ask for the next."""

    value: str
    expires_s: float
    renew_s: float

    def __repr__(self) -> str:
        return f"Token(expires_s={self.expires_s})"


class Source(Protocol):
    """Where tokens come from; `advice` tells the operator what to check if brokers refuse one."""

    def fetch(self) -> Token:
        """Return a valid token; KafkaAway if waiting may help, else KafkaRefuses."""

    @property
    def advice(self) -> str: ...


class Tokens:
    """The present token, renewed when a client asks for it. Thread-safe."""

    def __init__(
        self,
        source: Source,
        extensions: Mapping[str, str] = MappingProxyType({}),
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """Begin without a token: the first `get` asks `source`. `now_s` returns s since 1970."""
        self._source = source
        self._now_s = now_s
        # SASL extensions, which brokers get with every token.
        self.extensions = dict(extensions)
        self._fetching = Lock()
        self._token: Token | None = None
        # When a failed source is asked again, and since when it fails (since 1970).
        self._retry_s = self._failing_since_s = -math.inf
        self._backoff_s = _BACKOFF_S
        self._failure: KafkaAway | KafkaRefuses | None = None

    @property
    def advice(self) -> str:
        return self._source.advice

    @property
    def is_failing(self) -> bool:
        """Whether the last renewal failed: refused logins follow from that, and it was logged."""
        return self._failure is not None

    @property
    def failure(self) -> str | None:
        """Why there is no valid token now; None if there is one."""
        return None if self._valid() or self._failure is None else str(self._failure)

    def get(self) -> Token:
        """Return a valid token, renewed if due.

        Raises:
            KafkaAway: there is none now, though there may be again.
            KafkaRefuses: there never was one, and waiting does not help.
        """
        token = self._valid()
        if token is not None and self._now_s() < token.renew_s:
            return token
        # All clients ask at the same time; one with a valid token does not wait long for the next.
        if self._fetching.acquire(timeout=-1 if token is None else _PATIENCE_S):
            try:
                # Unless another client has renewed it while this one waited.
                if self._token is token or self._valid() is None:
                    self._renew()
            finally:
                self._fetching.release()
        if (token := self._valid()) is not None:
            return token
        if self._token is None and isinstance(self._failure, KafkaRefuses):
            raise KafkaRefuses(str(self._failure))
        raise KafkaAway(str(self._failure))

    def for_librdkafka(self, _config: str) -> tuple[str, float, str, dict[str, str]]:
        """Return the answer to `oauth_cb`: token, expiry, principal (unused) and extensions.

        librdkafka asks again after 80 % of the life that it is told, and uses a token until it has
        another. So it is not told the token's own expiry, but one that makes it ask when the next
        token is due. An exception makes it ask again in 10 s.
        """
        token = self.get()
        now_s = self._now_s()
        ask_s = token.renew_s if now_s < token.renew_s else self._retry_s
        told_expiry_s = now_s + max(ask_s - now_s, 1.0) / _RENEW_AT
        return token.value, told_expiry_s, "", self.extensions

    def _valid(self) -> Token | None:
        """Return the present token, None if it has expired or there is none."""
        token = self._token
        return token if token is not None and self._now_s() < token.expires_s else None

    def _renew(self) -> None:
        """Ask the source for the next token, unless it failed a moment ago."""
        if self._now_s() < self._retry_s:
            return
        try:
            self._token = self._source.fetch()
        except (KafkaAway, KafkaRefuses) as error:
            self._note_failure(error)
        else:
            self._note_success()

    def _note_failure(self, error: KafkaAway | KafkaRefuses) -> None:
        """Back off; log the first failure, unless there never was a token: `get` raises then."""
        is_first = self._failure is None
        self._failure = error
        now_s = self._now_s()
        self._retry_s = now_s + self._backoff_s
        self._backoff_s = min(2 * self._backoff_s, _BACKOFF_MAX_S)
        if is_first and self._token is not None:
            self._failing_since_s = now_s
            logger.warning(
                "no new Kafka token: %s. The present one is valid for %.0f s more; trying again",
                error,
                max(0.0, self._token.expires_s - now_s),
                extra=json_fields(event="token_failed"),
            )

    def _note_success(self) -> None:
        """Reset the backoff; log the end of a failure, if its begin was logged."""
        has_failed = self._failure is not None
        self._failure = None
        self._retry_s = -math.inf
        self._backoff_s = _BACKOFF_S
        # It is -inf if the failure was not logged.
        if has_failed and self._failing_since_s > 0:
            logger.warning(
                "a new Kafka token, after %.0f s without",
                self._now_s() - self._failing_since_s,
                extra=json_fields(event="token_renewed"),
            )


class FaustTokens(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka has no types
    """Tokens for aiokafka, which asks at every connection."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    async def token(self) -> str:
        """Return a valid token, fetched in a thread; KafkaConnectionError makes aiokafka retry."""
        loop = asyncio.get_running_loop()
        try:
            return (await loop.run_in_executor(None, self._tokens.get)).value
        except (KafkaAway, SettingsError) as error:
            raise KafkaConnectionError(str(error)) from None

    def extensions(self) -> dict[str, str]:
        return self._tokens.extensions


@dataclass(frozen=True)
class Endpoint:
    """A token endpoint, and how this client identifies itself there.

    `ca_file` or `ca_pem` has the certificates to trust, as a path or as text; else the system's.
    """

    url: str
    client_id: str
    secret: str = field(repr=False)
    scope: str = ""
    ca_file: str | None = None
    ca_pem: str | None = None

    # Further ones for urllib.
    handlers: ClassVar[tuple[urllib.request.BaseHandler, ...]] = ()

    @property
    def where(self) -> str:
        return f"kafka.client.{_URL} = {display(self.url.partition('?')[0])}"

    @property
    def advice(self) -> str:
        return f"Check {_ID[0]}, {_SECRET[0]} and {_SCOPE} in [kafka.client], and that the brokers accept tokens from this issuer"

    def _request(self) -> urllib.request.Request:
        """Return the request for a token (RFC 6749, 4.4); HTTP Basic identifies the client."""
        login = base64.b64encode(f"{self.client_id}:{self.secret}".encode()).decode()
        body = "grant_type=client_credentials"
        # Characters that the operator has already encoded stay as they are.
        if self.scope:
            body += "&scope=" + quote(self.scope, safe="%:/.")
        headers = {
            "Accept": "application/json",
            "Authorization": f"Basic {login}",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        return urllib.request.Request(self.url, body.encode(), headers, method="POST")

    def fetch(self) -> Token:
        """Ask for a token; it expires as it says itself, else after the answer's `expires_in`."""
        begun_s = time.time()
        answer = self._ask(self._request())
        try:
            fields = json.loads(answer)
            value = fields["access_token"]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise KafkaRefuses(
                f"{self.where}: its answer has no access_token"
            ) from None
        try:
            # A number, or a text with one; it may be absent, or a text such as "NaN".
            expires_s = begun_s + float(fields.get("expires_in"))
        except (ValueError, TypeError, OverflowError):
            expires_s = math.inf
        return _token(
            value, self.where, math.inf if math.isnan(expires_s) else expires_s
        )

    def _ask(self, request: urllib.request.Request) -> bytes:
        """Send the request; bound the time for the whole answer, as urllib does for each read."""
        late = f"{self.where}: it took more than {_TIMEOUT_S:g} s"
        with _Deadline(_TIMEOUT_S) as deadline:
            try:
                answer = self._answer(request, deadline)
            except (KafkaAway, SettingsError):
                # After the deadline all errors are its consequence.
                if not deadline.passed:
                    raise
                raise KafkaAway(late) from None
            if deadline.passed:
                raise KafkaAway(late)
            return answer

    def _answer(self, request: urllib.request.Request, deadline: "_Deadline") -> bytes:
        """Return the answer; raise KafkaAway if a retry may help, else KafkaRefuses."""
        web = _Web(deadline, self._context())
        opener = urllib.request.build_opener(web, _NoRedirects(), *self.handlers)
        try:
            with opener.open(request, timeout=_TIMEOUT_S) as response:
                answer = bytes(response.read(_BYTES_MAX + 1))
            if len(answer) > _BYTES_MAX:
                raise KafkaRefuses(
                    f"{self.where}: its answer has more than {_BYTES_MAX:,} bytes"
                )
            return answer
        except urllib.error.HTTPError as error:
            with error:
                text = f"{self.where}: it answered {error.code}{_error_code(error)}"
            if error.code >= 500 or error.code in _HTTP_RETRIED:
                raise KafkaAway(text) from None
            raise KafkaRefuses(f"{text}. {self.advice}") from None
        except OSError as error:
            reason = getattr(error, "reason", error)
            text = f"{self.where}: {' '.join(str(reason).split()) or type(reason).__name__}"
            if isinstance(reason, ssl.SSLCertVerificationError):
                raise KafkaRefuses(
                    f"{text}. Check {_CA_FILE} in [kafka.client]"
                ) from None
            raise KafkaAway(text) from None
        # Their messages quote the answer or the request.
        except (http.client.HTTPException, ValueError) as error:
            raise KafkaAway(f"{self.where}: {type(error).__name__}") from None

    def _context(self) -> ssl.SSLContext:
        """Return TLS settings that trust the given certificates, else the system's."""
        try:
            if self.ca_file is not None and Path(self.ca_file).is_dir():
                return ssl.create_default_context(capath=self.ca_file)
            return ssl.create_default_context(cafile=self.ca_file, cadata=self.ca_pem)
        except (OSError, ValueError) as error:  # includes SSLError
            name = _CA_FILE if self.ca_pem is None else _CA_PEM
            raise KafkaRefuses(
                f"kafka.client.{name}: no certificates: {error}"
            ) from None


@dataclass(frozen=True)
class AzureIdentity(Endpoint):
    """The managed identity of an Azure machine; `scope` is the resource, such as an event hub."""

    # Its address is of this machine alone: never asked through a proxy.
    handlers: ClassVar[tuple[urllib.request.BaseHandler, ...]] = (
        urllib.request.ProxyHandler({}),
    )

    @property
    def advice(self) -> str:
        return f"Check {_SCOPE} in [kafka.client], and that this machine has a managed identity with rights on it"

    def _request(self) -> urllib.request.Request:
        """Return the request for a token; the machine it comes from takes the place of a secret."""
        named = {"api-version": _AZURE_VERSION, "resource": self.scope}
        if self.client_id:
            named["client_id"] = self.client_id
        # The service refuses what a redirected browser could send: requests without the header.
        address = f"{self.url}?{urlencode(named)}"
        return urllib.request.Request(address, headers={"Metadata": "true"})


@dataclass(frozen=True)
class AwsIdentity:
    """An AWS identity, from where boto3 looks for one: environment, files, the machine's role."""

    region: str

    advice = f"Check {_REGION} in [kafka.client], and that the identity has kafka-cluster:Connect on the cluster"

    def fetch(self) -> Token:
        """Sign a token; KafkaAway if no credentials are found now."""
        where = f'kafka.client.{_METHOD} = "aws_msk_iam"'
        try:
            from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
        except ImportError:
            raise KafkaRefuses(f"{where}: install quietcount[aws]") from None
        try:
            value, expires_ms = MSKAuthTokenProvider.generate_auth_token(self.region)
        except Exception as error:  # noqa: BLE001 (botocore has dozens; their texts may name keys)
            raise KafkaAway(
                f"{where}: no AWS credentials now: {type(error).__name__}"
            ) from None
        return _token(value, where, expires_ms / 1_000)


class _Deadline:
    """Ends the connections of one request after `within_s`, however its peer drips bytes."""

    def __init__(self, within_s: float) -> None:
        """Make the timer, which starts with the `with` block."""
        self.passed = False
        self._sockets: list[socket.socket] = []
        self._timer = threading.Timer(within_s, self._end)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        for copy in self._sockets:
            copy.close()

    def connect(self, *args: Any, **kwargs: Any) -> socket.socket:
        """Open a connection as `http.client` does, and note its socket so that it can be ended."""
        connected = socket.create_connection(*args, **kwargs)
        # A copy: TLS takes the socket over, and the answer outlives its connection.
        self._sockets.append(connected.dup())
        # The deadline may have passed meanwhile, and ended only the others.
        if self.passed:
            self._end()
        return connected

    def _end(self) -> None:
        """Shut all sockets down, from the timer's thread: what reads or writes them then fails."""
        self.passed = True
        for copy in self._sockets:
            with suppress(OSError):
                copy.shutdown(socket.SHUT_RDWR)


class _Web(urllib.request.HTTPSHandler, urllib.request.HTTPHandler):
    """HTTP and HTTPS over connections that a deadline can end."""

    def __init__(self, deadline: _Deadline, context: ssl.SSLContext) -> None:
        super().__init__(context=context)
        self._deadline = deadline
        self._tls = context

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self._open(http.client.HTTPConnection, request)

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self._open(http.client.HTTPSConnection, request, context=self._tls)

    def _open(
        self, kind: Any, request: urllib.request.Request, **more: Any
    ) -> http.client.HTTPResponse:
        """Open a request over a `kind` of connection, `more` being its further options."""

        def connection(host: str, **options: Any) -> http.client.HTTPConnection:
            """Make a connection, which will open its socket with `_Deadline.connect`."""
            made: http.client.HTTPConnection = kind(host, **options)
            made._create_connection = self._deadline.connect  # type: ignore[attr-defined]
            return made

        return self.do_open(connection, request, **more)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would take the secret to another address."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _error_code(error: urllib.error.HTTPError) -> str:
    """Return RFC 6749's error code; the rest of an answer may quote the request."""
    try:
        code = json.loads(error.read(_BYTES_MAX))["error"]
        return f" ({code})" if _ERROR_CODE.fullmatch(code) else ""
    except Exception:  # noqa: BLE001  # any answer, or none
        return ""


@dataclass(frozen=True)
class File:
    """A file with a token, which something else renews."""

    path: Path

    advice = "Check the token in kafka.token_file, and that the brokers accept tokens from this issuer"

    def fetch(self) -> Token:
        """Return the file's token, to be read again after `FILE_S`: it may be replaced early."""
        where = f"kafka.token_file = {display(str(self.path))}"
        try:
            content = read_bounded(self.path, _BYTES_MAX)
        except NotReadable as error:
            raise KafkaRefuses(f"{where}: {error}") from None
        token = _token(content.decode("latin-1").strip(), where)
        return token._replace(renew_s=min(token.renew_s, time.time() + FILE_S))


@dataclass(frozen=True)
class Command:
    """A program, with its arguments, that prints a token."""

    arguments: tuple[str, ...] = field(repr=False)  # may hold a secret

    advice = "Check the token that kafka.token_command prints, and that the brokers accept tokens from this issuer"

    def fetch(self) -> Token:
        """Run the program, and return the token that it prints; KafkaAway if it fails."""
        where = f"kafka.token_command = [{display(self.arguments[0])}, ...]"
        try:
            # In a session of its own, so that what it starts ends with it.
            process = subprocess.Popen(
                self.arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # may hold a secret
                start_new_session=True,
            )
        except OSError as error:
            raise KafkaRefuses(f"{where}: {error.strerror}") from None
        with process:
            try:
                output = _output_of(process, where)
            finally:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
        if process.returncode != 0:
            raise KafkaAway(f"{where}: exit status {process.returncode}")
        return _token(output.decode("latin-1").strip(), where)


def _output_of(process: "subprocess.Popen[bytes]", where: str) -> bytes:
    """Return what a process prints until it ends; raise if that is too late or too much."""
    assert process.stdout is not None
    deadline_s = time.monotonic() + _TIMEOUT_S
    output = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not selector.select(left_s):
                raise KafkaAway(f"{where}: it took more than {_TIMEOUT_S:g} s")
            piece = os.read(process.stdout.fileno(), 1 << 16)
            if not piece:
                break
            output += piece
            if len(output) > _BYTES_MAX:
                raise KafkaRefuses(
                    f"{where}: it printed more than {_BYTES_MAX:,} bytes"
                )
    try:
        process.wait(max(0.0, deadline_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise KafkaAway(f"{where}: it took more than {_TIMEOUT_S:g} s") from None
    return bytes(output)


def _token(value: object, where: str, expires_s: float = math.inf) -> Token:
    """Return a checked token; it expires as its own claims say, else at `expires_s`.

    Raise KafkaAway if it has expired, KafkaRefuses if `value` is not a token. `where` begins
    messages; they never show the token.
    """
    if not isinstance(value, str) or _PRINTABLE.fullmatch(value) is None:
        raise KafkaRefuses(
            f"{where}: no token: it must be one word of printable ASCII characters"
        )
    now_s = time.time()
    expires_s = _expiry(value) or expires_s
    if expires_s <= now_s:
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(expires_s))
        raise KafkaAway(f"{where}: its token expired at {at}")
    wait_s = _UNKNOWN_S if expires_s == math.inf else _RENEW_AT * (expires_s - now_s)
    return Token(value, expires_s, now_s + wait_s)


def _expiry(value: str) -> float | None:
    """Return the expiry (`exp`, s since 1970) of a JWT, which brokers verify and this does not."""
    try:
        _, claims, _ = value.split(".")
        padding = "=" * (-len(claims) % 4)
        exp = json.loads(base64.urlsafe_b64decode(claims + padding))["exp"]
        return float(exp) if 0 < exp < _EXPIRY_MAX_S else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


@dataclass(frozen=True)
class Login:
    """Where tokens come from (an AzureIdentity is an Endpoint), and their SASL extensions."""

    source: Endpoint | AwsIdentity | File | Command
    extensions: tuple[tuple[str, str], ...] = ()


class _SharedTokens:
    """One `Tokens` for every login, so that all its clients share renewals. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._by_login: dict[Login, Tokens] = {}

    def of(self, login: Login) -> Tokens:
        """Return the tokens of a login; equal logins share them."""
        with self._lock:
            if login not in self._by_login:
                self._by_login[login] = Tokens(login.source, dict(login.extensions))
            return self._by_login[login]


tokens_of = _SharedTokens().of


def login_of(
    client: Mapping[str, str], token_file: Path | None, token_command: tuple[str, ...]
) -> Login | None:
    """Return the login that the settings describe; None without OAUTHBEARER.

    `client` is [kafka.client]. Raise SettingsError for settings that are missing or contradictory,
    or that would have no effect.
    """
    mechanism = client.get("sasl.mechanism", client.get("sasl.mechanisms", "")).upper()
    protocol = client.get("security.protocol", "plaintext")
    # Sources of tokens for which librdkafka has no option.
    sources = {"kafka.token_file": token_file, "kafka.token_command": token_command}
    sources_given = [name for name, value in sources.items() if value]
    given = [
        *sources_given,
        *(f"kafka.client.{name}" for name in client if name.startswith(_PREFIX)),
    ]
    if mechanism != MECHANISM or not protocol.lower().startswith("sasl_"):
        if given:
            needed = (
                f'security.protocol = "SASL_SSL" and sasl.mechanism = "{MECHANISM}"'
            )
            raise SettingsError(f"{given[0]}: only with {needed} in [kafka.client]")
        return None
    for name in client:
        if name.startswith(_PREFIX) and name not in NAMES:
            raise SettingsError(
                f"kafka.client.{name}: not supported; use {', '.join(NAMES)}"
            )
    method = client.get(_METHOD, "default")
    if method not in _METHODS:
        listed = ", ".join(f'"{one}"' for one in _METHODS)
        raise SettingsError(
            f"kafka.client.{_METHOD} = {display(method)}: one of {listed}"
        )
    # A method other than "default" is a source, too.
    if len(sources_given) + (method != "default") != 1:
        raise SettingsError(
            f"kafka.client.{_METHOD} = {display(method)}{''.join(f', {name}' for name in sources_given)}: {MECHANISM} needs "
            "exactly one of another method, kafka.token_file and kafka.token_command"
        )
    extensions = _extensions(client.get(_EXTENSIONS, ""))
    if _REGION in client and method != "aws_msk_iam":
        raise SettingsError(
            f'kafka.client.{_REGION}: only with {_METHOD} = "aws_msk_iam"'
        )
    if method == "oidc":
        return Login(_endpoint(client), extensions)
    if method == "azure_imds":
        return Login(_azure(client), extensions)
    for name in _OF_ENDPOINT:
        if name in client:
            raise SettingsError(f'kafka.client.{name}: only with {_METHOD} = "oidc"')
    if method == "aws_msk_iam":
        return Login(_aws(client), extensions)
    return Login(File(token_file) if token_file else Command(token_command), extensions)


def _endpoint(client: Mapping[str, str]) -> Endpoint:
    """Return the token endpoint that [kafka.client] describes (method "oidc")."""

    def required(*names: str) -> str:
        """Return the value of an option under any of its names; SettingsError without one."""
        if not (value := _option(client, names)):
            raise SettingsError(
                f'kafka.client.{names[0]} is missing: {_METHOD} = "oidc" needs it'
            )
        return value

    url = required(_URL)
    if not _is_http(url):
        # The value is not shown: it may hold a password.
        allowed = '"https://host:port/path" or "http://...", without a user in it'
        raise SettingsError(f"kafka.client.{_URL}: {allowed}")
    ca_file = client.get(_CA_FILE) or None
    ca_pem = client.get(_CA_PEM) or None
    if ca_file and ca_pem:
        raise SettingsError(f"kafka.client.{_CA_FILE} and {_CA_PEM}: give one of them")
    # librdkafka's word for the system's certificates.
    ca_file = None if ca_file == "probe" else ca_file
    endpoint = Endpoint(
        url=url,
        client_id=required(*_ID),
        secret=required(*_SECRET),
        scope=client.get(_SCOPE, ""),
        ca_file=ca_file,
        ca_pem=ca_pem,
    )
    # Refuses certificates that cannot be read now, not at the first token.
    endpoint._context()
    return endpoint


def _option(client: Mapping[str, str], names: tuple[str, ...]) -> str:
    """Return the value of an option that has aliases, "" if it is not set."""
    return next((client[name] for name in names if client.get(name)), "")


def _azure(client: Mapping[str, str]) -> AzureIdentity:
    """Return the managed identity that [kafka.client] describes (method "azure_imds")."""
    for name in (*_SECRET, _CA_FILE, _CA_PEM):
        if name in client:
            raise SettingsError(f'kafka.client.{name}: only with {_METHOD} = "oidc"')
    scope = client.get(_SCOPE)
    if not scope:
        raise SettingsError(
            f'kafka.client.{_SCOPE} is missing: {_METHOD} = "azure_imds" needs the resource, such as '
            '"https://NAMESPACE.servicebus.windows.net"'
        )
    url = client.get(_URL, _AZURE_URL)
    if not _is_http(url) or "?" in url:
        allowed = '"http://host/path", the metadata service'
        raise SettingsError(f"kafka.client.{_URL}: {allowed}")
    client_id = _option(client, _ID)
    return AzureIdentity(url=url, client_id=client_id, secret="", scope=scope)


def _aws(client: Mapping[str, str]) -> AwsIdentity:
    """Return the AWS identity that [kafka.client] describes (method "aws_msk_iam")."""
    region = client.get(_REGION, "")
    if _AWS_REGION.fullmatch(region) is None:
        raise SettingsError(
            f'kafka.client.{_REGION} = {display(region)}: the region of the cluster, such as "eu-west-1"'
        )
    return AwsIdentity(region)


def _is_http(url: str) -> bool:
    """Return whether a URL is http or https, with a host and without a user."""
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and "@" not in parts.netloc and parts.port != 0
    except ValueError:
        return False
    return (
        parts.scheme in ("http", "https")
        and has_host
        and _PRINTABLE.fullmatch(url) is not None
    )


def _extensions(text: str) -> tuple[tuple[str, str], ...]:
    """Parse SASL extensions, name=value pairs that the broker gets with every token.

    Return a tuple, since a `Login` must be hashable.
    """
    extensions = {}
    for pair in filter(None, text.split(",")):
        match = _EXTENSION.fullmatch(pair.strip())
        if match is None:
            raise SettingsError(
                f"kafka.client.{_EXTENSIONS} = {display(text)}: name=value, several separated by commas; a name has only "
                'letters and is not "auth"'
            )
        extensions[match[1]] = match[2]
    return tuple(extensions.items())
