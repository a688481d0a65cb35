"""`Connection` makes every Kafka client, all with the same settings and credentials.

`[kafka.client]` uses librdkafka's names. `faust_credentials` translates the security settings for
aiokafka and refuses the others, so no client connects with less security than configured. For
OAUTHBEARER all clients share one source of tokens (`tokens`).
"""

import ctypes
import difflib
import logging
import re
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, TypeVar, cast

from aiokafka.errors import KafkaError as ConsumerError
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, cimpl
from confluent_kafka.admin import AdminClient, ClusterMetadata  # type: ignore[attr-defined]  # a re-export
from faust.auth import (
    GSSAPICredentials,
    OAuthCredentials,
    SASLCredentials,
    SSLCredentials,
)

from workers.kafka import tokens
from workers.kafka.tokens import FaustTokens, Login, Tokens
from workers.kafka.verdicts import Verdict, cause_of, verdict_of
from workers.runtime.errors import KafkaAway, KafkaRefuses, SettingsError, describe
from workers.settings.files import CLIENT_RESERVED, check_client_file

logger = logging.getLogger(__name__)

T = TypeVar("T")

_PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
_PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
#: Security options that `faust_credentials` can translate; it refuses all others.
_TRANSLATED = (
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
    "enable.ssl.certificate.verification",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.username",
    "sasl.password",
    "sasl.kerberos.service.name",
)

# How often a wait for answers asks whether to give up.
_SLICE_S = 0.1
#: The broker in the text of an error: `address:port/id: what happened`.
_BROKER_ID = re.compile(r"\S+/(\d+): ")
_UNKNOWN_OPTION = re.compile(r'No such configuration property: "(.+)"')

#: Errors that waiting does not cure, with advice.
_REFUSED = MappingProxyType(
    {
        KafkaError._AUTHENTICATION: "Check sasl.mechanism, sasl.username and sasl.password in [kafka.client]",
        KafkaError._SSL: "Check ssl.ca.location and the other ssl names in [kafka.client], and that this is the broker's TLS port",
    }
)
# Timeout of the first request of `connect`; it doubles with every further one.
_FIRST_ASK_S = 0.5

#: Receives clients' logs; otherwise librdkafka writes to stderr itself.
_LIBRDKAFKA_LOG = logging.getLogger("librdkafka")
#: How often clients look up the leaders of partitions; by default every five minutes.
METADATA_MS = 10_000
#: Discards logs that repeat a message of our own.
_MUTED_LOG = logging.getLogger("librdkafka.muted")
_MUTED_LOG.setLevel(logging.CRITICAL + 1)


@dataclass(frozen=True)
class Connection:
    """Cluster address and credentials, from which every Kafka client is made.

    The repr omits `client`, librdkafka's options, which hold secrets. `embedded` is the cluster id
    of the in-process Kafka (`EmbeddedCluster`), from the process that started it; None for a real
    cluster. `login` says where OAUTHBEARER tokens come from; None without them.
    """

    bootstrap: str
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    embedded: str | None = None
    token_file: Path | None = None
    token_command: tuple[str, ...] = field(default=(), repr=False)
    login: Login | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Check the options, and find where tokens come from; SettingsError for a wrong one."""
        # A read-only copy, since every shard's thread makes clients from it.
        object.__setattr__(self, "client", MappingProxyType(dict(self.client)))
        if not self.bootstrap.strip():
            raise SettingsError(
                "kafka.bootstrap is empty: give host:port, or several separated by commas"
            )
        for name, value in self.client.items():
            if name in CLIENT_RESERVED:
                raise SettingsError(
                    f"kafka.client.{name}: the worker sets this itself; remove it"
                )
            # "probe": librdkafka is to look for the system's certificates.
            if name.endswith(".location") and value != "probe":
                check_client_file(name, value)
        login = tokens.login_of(self.client, self.token_file, self.token_command)
        object.__setattr__(self, "login", login)

    @property
    def tokens(self) -> Tokens | None:
        """The tokens of all clients; None without OAUTHBEARER."""
        return None if self.login is None else tokens.tokens_of(self.login)

    def config(self, **extra: Any) -> dict[str, Any]:
        """Return librdkafka's options of one client; `extra` wins over all others."""
        config = {
            "log_level": 4,
            # Rebootstrap after losing all brokers; by default that takes five minutes.
            "metadata.recovery.rebootstrap.trigger.ms": 10_000,
            # A broker that freezes: by default a request to it takes a minute to time out, and a
            # transactional producer's as long as the transaction may take.
            "socket.timeout.ms": 20_000,
            "topic.metadata.refresh.interval.ms": METADATA_MS,
            # By default, a request about a deleted topic would create it again, with default
            # settings.
            "allow.auto.create.topics": self.embedded is not None,
            **self.client,
            "bootstrap.servers": self.bootstrap,
            "error_cb": _log_error,
            "logger": _LIBRDKAFKA_LOG,
            **extra,
        }
        return config if self.tokens is None else _with_tokens(config, self.tokens)

    def producer(self, transactional_id: str | None = None, **extra: Any) -> Producer:
        """Return a producer; with `transactional_id` transactional but not initialized."""
        config = self.config(**extra)
        if transactional_id is not None:
            config["transactional.id"] = transactional_id
        config.pop("check.crcs", None)  # consumer-only; librdkafka would warn
        return self._create(Producer, config)

    def consumer(self, **extra: Any) -> Consumer:
        """Return a read_committed consumer that joins no group.

        Librdkafka wants one named all the same: ignore errors for which `is_group_denial` is true.
        """
        defaults = {
            "group.id": "quietcount-reader",  # required by librdkafka, never joined
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "isolation.level": "read_committed",
        }
        return self._create(Consumer, self.config(**{**defaults, **extra}))

    def admin(self, **extra: Any) -> AdminClient:
        """Return an admin client for a `with` block, which cancels requests and joins its thread.

        librdkafka calls Python in that thread: collecting the client there, or a response after
        Python's shutdown, ends the process. A traceback can keep a client alive until then.
        """
        return self._create(AdminClient, self.config(**extra))

    def _create(self, kind: Callable[[dict[str, Any]], T], config: dict[str, Any]) -> T:
        """Create a client; SettingsError names an option that librdkafka does not know.

        With OAUTHBEARER this takes a second and needs a token. If none can be had now, the error
        says that the connection failed (`_TRANSPORT`, retriable), so that callers wait as in an
        outage.
        """
        try:
            if self.tokens is not None:
                self.tokens.get()
            return kind(config)
        except KafkaAway as error:
            reason = str(error)
        except KafkaException as error:
            if (unknown := _UNKNOWN_OPTION.match(error.args[0].str())) is not None:
                raise SettingsError(_unknown_option(unknown[1])) from None
            refused = error.args[0].code() == KafkaError.SASL_AUTHENTICATION_FAILED
            if self.tokens is None or not refused:
                raise
            reason = self.tokens.failure or _line(error.args[0])
        raise KafkaException(KafkaError(KafkaError._TRANSPORT, reason, retriable=True))

    def quiet_admin(self, errors: list[KafkaError], **extra: Any) -> AdminClient:
        """Return an admin client that logs nothing and appends its errors to `errors`."""
        return self.admin(error_cb=errors.append, logger=_MUTED_LOG, **extra)

    @contextmanager
    def connect(self, within_s: float) -> Iterator[tuple[AdminClient, ClusterMetadata]]:
        """Yield an admin client and its first metadata, once a broker has answered.

        Raise KafkaRefuses if a broker rejects us, KafkaAway if none answers within `within_s`.
        """
        errors: list[KafkaError] = []
        where = f"kafka.bootstrap = {self.bootstrap!r}"
        ask_s = _FIRST_ASK_S
        deadline = time.monotonic() + within_s
        metadata = None
        try:
            client = self.quiet_admin(errors)
        except KafkaException as exc:
            if not unreachable(exc):
                raise
            raise KafkaAway(text_of(exc)) from exc
        with client as admin:
            while metadata is None:
                try:
                    metadata = admin.list_topics(timeout=ask_s)
                except KafkaException as exc:
                    admin.poll(0)  # calls back with the errors
                    if (refused := _refusal(errors)) is not None:
                        code = refused.code()
                        advice = _REFUSED[code]
                        if self.tokens is not None and code != KafkaError._SSL:
                            advice = self.tokens.advice
                        raise KafkaRefuses(
                            f"{where}: {_line(refused)}. {advice}"
                        ) from exc
                    left_s = deadline - time.monotonic()
                    if left_s <= 0:
                        reason = _line(_network(errors) or exc.args[0])
                        raise KafkaAway(
                            f"{where}: no broker answered within {within_s:g} s ({reason}). Check the address, that Kafka runs "
                            "there, and [kafka.client]: security.protocol and what it needs"
                        ) from exc
                    # A busy broker may need longer for one answer.
                    ask_s = min(2 * ask_s, max(left_s, _FIRST_ASK_S))
            yield admin, metadata

    def no_answer(self, errors: list[KafkaError]) -> str:
        """Say that no broker answers, with the reason if `errors` have one."""
        reason = _refusal(errors) or _network(errors)
        cause = "" if reason is None else f" ({_line(reason)})"
        if self.tokens is not None and (failure := self.tokens.failure) is not None:
            cause = f" ({failure})"
        return f"no broker of {self.bootstrap} answers{cause}"


def _with_tokens(config: dict[str, Any], shared: Tokens) -> dict[str, Any]:
    """Return a configuration whose client gets its tokens from `shared`.

    While `shared` has no token, which it logs itself, the client logs none of the refused logins
    that follow from that.
    """
    on_error = config["error_cb"]

    def on_other_error(error: KafkaError) -> None:
        if error.code() != KafkaError._AUTHENTICATION or not shared.is_failing:
            on_error(error)

    # librdkafka would get tokens itself by the other options.
    kept = {name: value for name, value in config.items() if name not in tokens.NAMES}
    return kept | {
        "oauth_cb": shared.for_librdkafka,
        "error_cb": on_other_error,
        "logger": _TokenLog(config["logger"], shared),
    }


@dataclass(frozen=True)
class _TokenLog:
    """A logger for librdkafka, silent about refused logins while no token can be had."""

    logger: logging.Logger
    tokens: Tokens

    def log(self, level: int, message: str, *args: object) -> None:
        text = message % args if args else message
        if "SASL" not in text or not self.tokens.is_failing:
            self.logger.log(level, "%s", text)


def _unknown_option(name: str) -> str:
    near = difflib.get_close_matches(name, {*_TRANSLATED, *_option_names()}, 1)
    hint = f'did you mean "{near[0]}"?' if near else "its documentation lists them"
    return f"kafka.client.{name}: librdkafka has no such option; {hint}"


def _option_names() -> Iterator[str]:
    """Yield the names of librdkafka's options that have a default, for hints in messages.

    Its Python package does not list them, so they are read from the C library. Their memory is not
    freed: the process ends with the message.
    """
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(cimpl.__file__)
        number = ctypes.c_size_t()
        new = library.rd_kafka_conf_new
        dump = library.rd_kafka_conf_dump
        new.restype = ctypes.c_void_p
        dump.restype = ctypes.POINTER(ctypes.c_char_p)
        # Names and values in turn.
        pairs = dump(ctypes.c_void_p(new()), ctypes.byref(number))
        yield from ((pairs[i] or b"").decode() for i in range(0, number.value, 2))


def _refusal(errors: list[KafkaError]) -> KafkaError | None:
    """Return the first error that waiting does not cure, if there is one."""
    return next((error for error in errors if error.code() in _REFUSED), None)


def _network(errors: list[KafkaError]) -> KafkaError | None:
    """Return the newest error about the network, if any: why nobody answers."""
    codes = KafkaError._TRANSPORT, KafkaError._RESOLVE
    return next((error for error in reversed(errors) if error.code() in codes), None)


def await_answers(
    futures: Iterable[Future[Any]], gives_up: Callable[[set[Future[Any]]], bool]
) -> set[Future[Any]]:
    """Wait for an admin client's answers, until all are there or `gives_up(missing)` is true.

    Return those that are missing.
    """
    waiting = set(futures)
    while waiting:
        waiting = wait(waiting, _SLICE_S).not_done
        if gives_up(waiting):
            break
    return waiting


def unreached(errors: Iterable[KafkaError]) -> set[int]:
    """Return the ids of the brokers that these errors of a client name as not reached.

    While a request waits for a broker that refuses connections, librdkafka (2.16) connects to it
    again without a pause, over a thousand times a second: end such a client.
    """
    return {
        int(match[1])
        for error in errors
        if error.code() == KafkaError._TRANSPORT
        and (match := _BROKER_ID.match(error.str()))
    }


def _line(error: KafkaError) -> str:
    return " ".join(error.str().split())


def faust_credentials(
    connection: Connection,
) -> SSLCredentials | SASLCredentials | OAuthCredentials | GSSAPICredentials | None:
    """Return Faust's `broker_credentials`, None for plaintext; SettingsError if untranslatable."""
    client = connection.client
    protocol = client.get("security.protocol", "plaintext").lower()
    if protocol not in _PROTOCOLS:
        raise SettingsError(
            f"kafka.client.security.protocol = {protocol!r}: use one of {', '.join(_PROTOCOLS)}"
        )
    translated = (*_TRANSLATED, *(tokens.NAMES if connection.tokens else ()))
    for name in client:
        is_security = name.startswith(("ssl.", "sasl.", "enable.ssl.", "https."))
        if is_security and name not in translated:
            raise SettingsError(
                f"kafka.client.{name}: not supported by the Faust consumer; it knows {', '.join(sorted(translated))}"
            )
    context = _tls_context(client) if protocol in ("ssl", "sasl_ssl") else None
    if protocol == "plaintext":
        return None
    if protocol == "ssl":
        return SSLCredentials(context)
    mechanism = client.get("sasl.mechanism", client.get("sasl.mechanisms", "GSSAPI"))
    mechanism = mechanism.upper()
    if mechanism == "GSSAPI":
        service = client.get("sasl.kerberos.service.name", "kafka")
        return GSSAPICredentials(
            kerberos_service_name=service, ssl_context=context, mechanism=mechanism
        )
    if connection.tokens is not None:
        provider = FaustTokens(connection.tokens)
        return OAuthCredentials(oauth_cb=provider, ssl_context=context)
    if mechanism not in _PASSWORD_MECHANISMS:
        allowed = ", ".join((*_PASSWORD_MECHANISMS, tokens.MECHANISM, "GSSAPI"))
        raise SettingsError(
            f"kafka.client.sasl.mechanism = {mechanism!r}: use one of {allowed}"
        )
    for name in ("sasl.username", "sasl.password"):
        if not client.get(name):
            raise SettingsError(f"kafka.client.{name} is missing: {mechanism} needs it")
    return SASLCredentials(
        username=client["sasl.username"],
        password=client["sasl.password"],
        ssl_context=context,
        mechanism=mechanism,
    )


def consumer_security(connection: Connection) -> Mapping[str, Any]:
    """Return the security settings of a worker's consumer as arguments of aiokafka's clients."""
    # Imported late: only commands that read topics without Faust need it here.
    from faust.transport.drivers.aiokafka import credentials_to_aiokafka_auth

    return cast(
        Mapping[str, Any], credentials_to_aiokafka_auth(faust_credentials(connection))
    )


def forbidden(error: BaseException) -> str | None:
    """Return a message for the operator if the broker denied authorization, else None."""
    if verdict_of(error) is not Verdict.FORBIDDEN:
        return None
    return f"Kafka does not allow it: {text_of(error).rstrip('.')}. See deploy/acls.md for the rights that are needed"


def text_of(error: BaseException) -> str:
    """Return an error's text on one line; of one not about Kafka only what `describe` shows.

    Other texts may quote data.
    """
    if (cause := cause_of(error)) is not None:
        return _line(cause)
    of_kafka = isinstance(error, ConsumerError | KafkaAway)
    return " ".join(str(error).split()) if of_kafka else describe(error)


def unreachable(error: BaseException) -> bool:
    """Return whether waiting can cure an error: Kafka is unreachable or still starting."""
    if verdict_of(error) is Verdict.OUTAGE:
        return True
    cause = cause_of(error)
    return cause is not None and cause.retriable()


def is_group_denial(error: KafkaError) -> bool:
    """Return whether an error denies access to the group, which readers name but never join."""
    return error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED


def _log_error(error: KafkaError) -> None:
    logger.warning("Kafka client: %s: %s", error.name(), error.str())


def _tls_context(client: Mapping[str, str]) -> ssl.SSLContext:
    """Translate the TLS options of [kafka.client] to Python's `ssl`, for aiokafka."""
    names = "ssl.ca.location", "ssl.ca.pem", "ssl.key.location", "ssl.key.password"
    ca_file, ca_pem, key_file, key_password = (
        client.get(name) or None for name in names
    )
    # librdkafka's word for the system's certificates, which are Python's default.
    if ca_file == "probe":
        ca_file = None
    try:
        context = ssl.create_default_context(cafile=ca_file, cadata=ca_pem)
        if "ssl.certificate.location" in client:
            context.load_cert_chain(
                client["ssl.certificate.location"], key_file, key_password
            )
    except OSError as exc:  # includes SSLError
        raise SettingsError(
            f"kafka.client.ssl.*: a certificate or key could not be read: {exc}"
        ) from exc
    if client.get("ssl.endpoint.identification.algorithm", "https").lower() == "none":
        context.check_hostname = False
    if client.get("enable.ssl.certificate.verification", "true").lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


#: Partitions of every topic of the embedded cluster; librdkafka has no setting for it.
EMBEDDED_PARTITIONS = 4


class EmbeddedCluster:
    """librdkafka's in-process cluster, for the demo and quick tests; its producer keeps it alive.

    It enforces nothing (read_committed sees open transactions, fenced producers can commit, a
    partition keeps about 5 MiB), so it proves nothing about delivery. Topics appear on first
    request, without ids. A real cluster must give ids, so a worker accepts a cluster as embedded
    only if the process that started it supplies the cluster id (`Connection.embedded`).
    """

    def __enter__(self) -> Self:
        """Start the cluster and set `connection` to it; SettingsError if it does not start."""
        self._owner: Producer | None = Producer(
            {
                "bootstrap.servers": "unused",
                "log_level": 2,
                "test.mock.num.brokers": 1,
            }
        )
        try:
            metadata = self._owner.list_topics(timeout=60)
        except KafkaException as exc:
            raise SettingsError(f"the embedded Kafka did not start: {exc}") from exc
        [broker] = metadata.brokers.values()
        self.bootstrap = f"{broker.host}:{broker.port}"
        # Transactional batches have wrong CRCs.
        client = {"check.crcs": "false"}
        cluster_id = metadata.cluster_id or ""
        self.connection = Connection(self.bootstrap, client, cluster_id)
        return self

    def __exit__(self, *_: object) -> None:
        self._owner = None
