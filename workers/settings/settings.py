"""The settings file: one TOML file, typed and checked once; unknown names are refused.

An error is one line: the file, the field, its value, and the allowed values. Paths in the file are
relative to the file itself. `events.topic` is one name, several in any order, or a Python regular
expression for whole names.

A section is a class below, whose attributes are the settings in it with their ranges and, for
messages, the allowed values in words; `mechanisms.config.checked` reads them as *rules*. A class's
`complaints()` yields what ranges cannot say; the first one is the error. `where` is how messages
about a section begin, and `base` the directory of the file. What a histogram reads of an event is
its *view*; histograms with equal views share one.
"""

from __future__ import annotations

import difflib
import itertools
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from workers.mechanisms.config import views
from workers.mechanisms.config.checked import Checked, display, rules, whole
from workers.mechanisms.config.durations import ALLOWED as DURATION_ALLOWED
from workers.mechanisms.config.durations import format_duration, parse_duration
from workers.mechanisms.config.histogram import (
    TOPIC_NAME,
    Conditions,
    Duration,
    HistogramConfig,
    names_of,
)
from workers.mechanisms.config.histogram import FieldPath as Field
from workers.mechanisms.config.sums import parse_sum
from workers.mechanisms.config.views import ALL_KEYS, RECORD_KEY, Shape, View, parse
from workers.mechanisms.registry import MECHANISMS
from workers.runtime.errors import SettingsError
from workers.settings import durations
from workers.settings.alerts import alerts_of
from workers.settings.files import client_values, read_file, read_secret, resolve_domain

_TOPIC_ALLOWED = (
    'a Kafka topic name: letters, digits, ".", "_" and "-", at most 249 of them; a list of such '
    'names; or a regular expression of whole names, such as "^orders-.*"'
)
TOPICS_MAX = 1_000
PATTERN_MAX = 1_001


class TopicNames(msgspec.Struct, frozen=True):
    """The events topics: sorted names, or no names and a regular expression."""

    names: tuple[str, ...]
    pattern: str | None = None

    @classmethod
    def of(cls, topic: str | tuple[str, ...]) -> TopicNames:
        """Return what a value of `events.topic` says: names, or an expression ("^...")."""
        if isinstance(topic, str):
            return cls((), topic) if topic.startswith("^") else cls((topic,))
        return cls(tuple(sorted(topic)))

    def __str__(self) -> str:
        return self.pattern or ", ".join(self.names)

    @property
    def is_single(self) -> bool:
        """Whether exactly one topic is named; an expression names none."""
        return len(self.names) == 1

    @property
    def identity(self) -> str | list[str]:
        """The topics as in mechanism ids, which must never change: a text, or a list of names."""
        return (
            str(self)
            if self.is_single or self.pattern is not None
            else list(self.names)
        )

    def matches(self, topic: str) -> bool:
        """Return whether the expression includes a topic; False where topics are named."""
        return (
            self.pattern is not None and re.fullmatch(self.pattern, topic) is not None
        )


def topic_complaints(topic: str | tuple[str, ...]) -> Iterator[str]:
    """Yield errors in `events.topic` beyond its type.

    Here and not as a pattern of the field: for a union of an array and a text with a pattern,
    msgspec 0.22 mixes up fields, and the next collection of cycles ends the process.
    """
    names = (topic,) if isinstance(topic, str) else topic
    is_pattern = isinstance(topic, str) and topic.startswith("^")
    fits = (
        1 < len(topic) <= PATTERN_MAX
        if is_pattern
        else all(re.match(TOPIC_NAME, name) for name in names)
    )
    if not fits or not 0 < len(names) <= TOPICS_MAX:
        yield f"topic = {display(topic)}: {_TOPIC_ALLOWED}"
    elif len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        yield f"topic holds {display(repeated)} more than once: every one only once"
    elif is_pattern:
        try:
            re.compile(names[0])
        except (re.error, OverflowError, RecursionError) as error:
            yield f"topic = {display(topic)}: not a regular expression: {error}"


ALL_STREAM_KEY = "all"
DAY_MS = 86_400_000
KEEP_MAX_MS = 36_500 * DAY_MS

_HOST = r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}"
FIELD = f"{views.SYNTAX}, at most 1,000 characters"
_KEY = f'{FIELD}, "{RECORD_KEY}" (the record key) or "{ALL_KEYS}"'
_PERIOD_MIN_MS = 1_000
_PERIOD_MAX_MS = 3_653 * DAY_MS
_PERIOD = '"epoch", or a duration from "1s" to "3653d", such as "30d"'
_USER = f'{FIELD} or "{RECORD_KEY}" (the record key)'


def _duration(least: int, most: int) -> Meta:
    """Return the range of a duration in ms, with its words for messages."""
    return Meta(
        ge=least,
        le=most,
        description=f"a duration from {format_duration(least)} to {format_duration(most)}",
    )


def _allowed(allowed: str, pattern: str | None = None) -> Meta:
    """Return what a field may hold: words for messages, and a pattern that is checked."""
    return Meta(description=allowed, pattern=pattern)


_NAME = _allowed(
    'letters, digits, ".", "_" and "-", at most 100, a letter or digit first',
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z",
)
_ADDRESS = _allowed(
    'an address of this machine, such as "127.0.0.1" or "0.0.0.0"',
    r"^[A-Za-z0-9._:-]+\Z",
)
# Allowed values, in the words of messages.
_KEY_FILE = "a file name in quotes; `quietcount key new FILE` makes the file"
_Partitions = Annotated[int, whole(1, 10_000)]
_PARTITIONS = "a whole number from 1 to 10,000; if left out, "
_OWNER_PARTITIONS = _PARTITIONS + "the events topic's number of partitions"
_USER_PARTITIONS = _PARTITIONS + "as many as the events topics have together"
_KEEP_CONTRIBUTIONS = (
    "a duration from 1s to 36500d; if left out, they are kept for ever"
)
_SIGNING_KEY_FILE = "a file name in quotes; if left out, nothing is signed"
_PORT = "a port from 0 to 65535 (0: any free one, named in the log); if left out, no metrics are served"
_MAX_BEHIND = (
    "; if left out, the longest epoch or window of the histograms, at least 7d"
)
_PARTITIONERS = '"murmur2" (Java, Faust, aiokafka) or "crc32" (librdkafka): how producers place a user\'s records'
_HOSTS = '"host:port", or several separated by commas'
_TRACES = '"http://..." or "https://...": where OTLP is taken over HTTP'
_Url = Annotated[str, Meta(pattern=r"^https?://[!-~]+\Z")]
_CLIENT = "librdkafka names with their values"
_TOKEN_FILE = "a file name in quotes: a token that something else renews"
_TOKEN_COMMAND = 'a list of texts: a program and its arguments, such as ["/usr/bin/token", "--kafka"]'
_Argument = Annotated[str, Meta(pattern=r"^[^\0]+\Z")]
_MISSING = '"reject" or "empty": what an event without items is'
_UNITS = ", ".join(f'"{unit}"' for unit in views.UNITS)
_STORE = "a file name in quotes; if left out, a file that ends with the dashboard"
_EPSILON = "a number above 0 and at most 1000"
_DELTA = "a number from 1e-50 to 0.5, such as 1e-8"
_WORKERS = 'a list of names of workers, such as ["old-orders"]'
_LOGIN = "the name to log in with, without a colon"
_WAIT = "a duration from 0ms to 10m"
_BYTES = "a whole number of bytes from 1 to 100,000,000"
_URL = r"https?://[^\s,@/]+(/[^\s,@]*)?"
_URLS = '"http://host:port" or "https://...", without a user in it; or several separated by commas'


def _name_in_file(attribute: str) -> str:
    """Return a field's name in the file: without a unit (`_ms`) or a closing underscore."""
    return attribute.removesuffix("_ms").removesuffix("_")


class Section(Checked, frozen=True, kw_only=True, rename=_name_in_file):
    """Base of the file's sections; `where()` is how messages about one begin."""

    def where(self) -> str:
        """Return the section's name and a dot: "worker." for `WorkerSettings`."""
        return type(self).__name__.removesuffix("Settings").lower() + "."


class WorkerSettings(Section, frozen=True, kw_only=True):
    """[worker]: its name, files, numbers of partitions, commits, and what it tells operators.

    If settings are left out (None), there are as many partitions as the events topics have,
    contributions are kept for ever, nothing is signed, no metrics are served and no traces sent.
    """

    name: Annotated[str, _NAME]
    data_dir: Annotated[Path, _allowed("a directory name in quotes")]
    key_file: Annotated[Path, _allowed(_KEY_FILE)]
    signing_key_file: Annotated[Path | None, _allowed(_SIGNING_KEY_FILE)] = None
    commit_interval_ms: Annotated[Duration, _duration(10, 600_000)] = 5_000
    owner_partitions: Annotated[_Partitions | None, _allowed(_OWNER_PARTITIONS)] = None
    user_partitions: Annotated[_Partitions | None, _allowed(_USER_PARTITIONS)] = None
    keep_contributions_ms: Annotated[
        Annotated[int, Meta(ge=1_000, le=KEEP_MAX_MS)] | None,
        Meta(description=_KEEP_CONTRIBUTIONS, extra={"duration": True}),
    ] = None
    metrics_port: Annotated[
        Annotated[int, whole(0, 65_535)] | None, _allowed(_PORT)
    ] = None
    metrics_host: Annotated[str, _ADDRESS] = "127.0.0.1"
    log_format: Literal["text", "json"] = "text"
    traces: Annotated[_Url | None, _allowed(_TRACES)] = None


class KafkaSettings(Section, frozen=True, kw_only=True):
    """[kafka]: the cluster, librdkafka's options, and where OAUTHBEARER tokens come from, if used.

    Values of options may be secret: both reprs (rich would print all fields) show only names.
    """

    bootstrap: Annotated[str, _allowed(_HOSTS, rf"^{_HOST}(, ?{_HOST})*\Z")]
    client: Annotated[dict[str, str], _allowed(_CLIENT)] = msgspec.field(
        default_factory=dict
    )
    token_file: Annotated[Path | None, _allowed(_TOKEN_FILE)] = None
    token_command: Annotated[tuple[_Argument, ...], _allowed(_TOKEN_COMMAND)] = ()

    def __repr__(self) -> str:
        return f"KafkaSettings(bootstrap={self.bootstrap!r}, client=<{', '.join(self.client)}>)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("bootstrap", self.bootstrap), ("client", sorted(self.client))]


class EventsSettings(Section, frozen=True, kw_only=True):
    """[events]: the topic, the fields of an event that are read, and how late it may come.

    If settings are left out (None), every histogram names its items, each item counts once, the
    record's time is the event's, there are no users, and `Settings.max_behind_ms` is the default.
    The setting `where` is the attribute `where_`, since `where` is a method.
    """

    topic: Annotated[str | tuple[str, ...], _allowed(_TOPIC_ALLOWED)]
    key: Annotated[Field, _allowed(_KEY)]
    items: Annotated[Field | None, _allowed(FIELD)] = None
    count: Annotated[Field | None, _allowed(FIELD)] = None
    where_: Annotated[Conditions, _allowed(views.ALLOWED)] = ()
    missing: Annotated[Literal["reject", "empty"], _allowed(_MISSING)] = "reject"
    timestamp: Annotated[Field | None, _allowed(FIELD)] = None
    timestamp_unit: Annotated[
        Literal["ms", "s", "us", "ns", "iso"], _allowed(_UNITS)
    ] = "ms"
    user: Annotated[Field | None, _allowed(_USER)] = None
    format: Literal["json", "avro", "protobuf", "json_schema"] = "json"
    partitioner: Annotated[Literal["murmur2", "crc32"], _allowed(_PARTITIONERS)] = (
        "murmur2"
    )
    grace_ms: Annotated[Duration, _duration(0, 604_800_000)] = 0
    max_ahead_ms: Annotated[Duration, _duration(0, 31_622_400_000)] = 300_000
    max_behind_ms: Annotated[
        Annotated[int, Meta(ge=0, le=KEEP_MAX_MS)] | None,
        Meta(
            description=f"a duration from 0s to 36500d{_MAX_BEHIND}",
            extra={"duration": True},
        ),
    ] = None
    max_bytes: Annotated[int, Meta(ge=1, le=100_000_000, description=_BYTES)] = (
        1_000_000
    )

    @property
    def topics(self) -> TopicNames:
        return TopicNames.of(self.topic)

    def complaints(self) -> Iterator[str]:
        """Yield wrong topics, keys, users and paths, and fields that two settings name."""
        yield from topic_complaints(self.topic)
        if self.key.startswith("$") and self.key not in (RECORD_KEY, ALL_KEYS):
            yield f"key = {display(self.key)}: {_KEY}"
        if (
            self.user is not None
            and self.user.startswith("$")
            and self.user != RECORD_KEY
        ):
            yield f"user = {display(self.user)}: {_USER}"
        paths = ("key", "items", "count", "timestamp", "user")
        yield from views.path_complaints({name: getattr(self, name) for name in paths})
        if self.timestamp is None and self.timestamp_unit != "ms":
            yield f"timestamp_unit = {display(self.timestamp_unit)}: only with timestamp"
        # These must read different fields; `count` may read any. By field, the setting that has it.
        setting_of = {self.key: "key"}
        for name in ("items", "timestamp", "user"):
            field = getattr(self, name)
            if field in setting_of:
                yield f"{name} = {display(field)}: must be a JSON field other than {setting_of[field]}'s"
            if field is not None:
                setting_of[field] = name


class DashboardSettings(Section, frozen=True, kw_only=True):
    """[dashboard]: the file of its history, and how long ticks and hourly values are kept."""

    store: Annotated[Path | None, _allowed(_STORE)] = None
    keep_ticks_ms: Annotated[Duration, _duration(60_000, KEEP_MAX_MS)] = 30 * DAY_MS
    keep_hours_ms: Annotated[Duration, _duration(60_000, KEEP_MAX_MS)] = 730 * DAY_MS

    def complaints(self) -> Iterator[str]:
        """Yield that hourly values would be deleted before the ticks they are made of."""
        if self.keep_hours_ms < self.keep_ticks_ms:
            hours, ticks = map(
                format_duration, (self.keep_hours_ms, self.keep_ticks_ms)
            )
            yield f"keep_hours = {hours}: at least keep_ticks, {ticks}"


_DELIVER_AFTER_MS = 2_000


class PrivacySettings(Section, frozen=True, kw_only=True):
    """[privacy]: whom the guarantee protects, and the ceiling over all histograms, if any.

    `neighbours`: it hides what a record says ("content"), or also whether there was one ("record").
    Without `max_epsilon` and `max_delta` (None), there is no ceiling.
    """

    unit: Literal["event", "user"] = "event"
    neighbours: Literal["content", "record"] = "content"
    deliver_after_ms: Annotated[
        Annotated[int, Meta(ge=100, le=60_000)] | None,
        Meta(
            description="a duration from 100ms to 1m; if left out, 2s",
            extra={"duration": True},
        ),
    ] = None
    rekey: Annotated[bool, _allowed("true or false")] = False
    max_epsilon: Annotated[
        Annotated[float, Meta(gt=0, le=1_000)] | None, _allowed(_EPSILON)
    ] = None
    max_delta: Annotated[
        Annotated[float, Meta(ge=1e-50, le=0.5)] | None, _allowed(_DELTA)
    ] = None
    period: Annotated[str, _allowed(_PERIOD)] = "epoch"
    uncounted_workers: Annotated[tuple[str, ...], _allowed(_WORKERS)] = ()

    @property
    def period_ms(self) -> int | None:
        """Length of a period; None: an epoch."""
        return None if self.period == "epoch" else parse_duration(self.period)

    @property
    def delivery_ms(self) -> int | None:
        """How long after its end a tick is delivered; None: as soon as it is ready.

        When it is ready depends on the records, which neighbours = "record" must not show.
        """
        if self.neighbours == "content":
            return None
        return self.deliver_after_ms or _DELIVER_AFTER_MS

    def complaints(self) -> Iterator[str]:
        """Yield settings that others rule out, a wrong period, and half a ceiling."""
        if self.neighbours == "content" and self.deliver_after_ms is not None:
            after = display(format_duration(self.deliver_after_ms))
            yield f'deliver_after = {after}: only with neighbours = "record"'
        if self.neighbours == "record" and self.rekey:
            yield (
                'rekey = true: not with neighbours = "record": the order in which records of several partitions are sent on '
                "depends on when each was read"
            )
        try:
            period_ms = self.period_ms
        except ValueError:
            period_ms = 0  # not a duration at all: refused as one outside the range
        if period_ms is not None and not _PERIOD_MIN_MS <= period_ms <= _PERIOD_MAX_MS:
            yield f"period = {display(self.period)}: {_PERIOD}"
        if (self.max_epsilon is None) != (self.max_delta is None):
            names = ("max_epsilon", "max_delta")
            given, lacking = names if self.max_delta is None else names[::-1]
            yield f"{lacking} is missing: a ceiling is both, and {given} is given"
        elif self.max_epsilon is None:
            # Without a ceiling these have no effect.
            for name, default in (("period", "epoch"), ("uncounted_workers", ())):
                value = getattr(self, name)
                if value != default:
                    yield f"{name} = {display(value)}: only with max_epsilon and max_delta"


# Settings of [schema_registry] that are secrets, and that are files.
_SECRETS = ("password", "token", "key_password")
_FILES = ("ca", "certificate", "key", "reader_schema")
_SECRET = '{ file = "..." } or { env = "NAME" }'
_File = Path | None


class SchemaRegistrySettings(Section, frozen=True, kw_only=True):
    """[schema_registry]. Holds secrets: the repr shows only the registry's address.

    Without a `reader_schema` (None), the names of fields are those of each record's own schema.
    """

    url: Annotated[str, _allowed(_URLS, rf"^{_URL}(, ?{_URL})*\Z")]
    user: Annotated[
        Annotated[str, Meta(pattern=r"^[^:]+\Z")] | None, _allowed(_LOGIN)
    ] = None
    password: Annotated[str | None, _allowed(_SECRET)] = None
    token: Annotated[str | None, _allowed(_SECRET)] = None
    ca: Annotated[_File, _allowed("a file with the certificates to trust, in PEM")] = (
        None
    )
    certificate: Annotated[
        _File, _allowed("a file with this client's certificate, in PEM")
    ] = None
    key: Annotated[_File, _allowed("a file with the certificate's key, in PEM")] = None
    key_password: Annotated[str | None, _allowed(_SECRET)] = None
    timeout_ms: Annotated[Duration, _duration(100, 300_000)] = 10_000
    unknown_wait_ms: Annotated[Duration, Meta(ge=0, le=600_000, description=_WAIT)] = (
        30_000
    )
    reader_schema: Annotated[_File, _allowed("a file with an Avro schema")] = None

    def where(self) -> str:
        return "schema_registry."

    def complaints(self) -> Iterator[str]:
        """Yield halves of logins and certificates, and two logins at once."""
        if (self.user is None) != (self.password is None):
            yield "user and password: give both or neither"
        if self.token is not None and self.user is not None:
            yield "token: give a token, or user and password, not both"
        if (self.certificate is None) != (self.key is None):
            yield "certificate and key: give both or neither"
        if self.key_password is not None and self.key is None:
            yield "key_password: only with key"

    def client(self) -> dict[str, Any]:
        """Return the options of confluent-kafka's registry client except the URL."""
        options: dict[str, Any] = {"timeout": self.timeout_ms / 1000}
        if self.user is not None:
            options["basic.auth.user.info"] = f"{self.user}:{self.password}"
        if self.token is not None:
            # The client requires a cluster, as Confluent Cloud has; other registries ignore it.
            options |= {
                "bearer.auth.credentials.source": "STATIC_TOKEN",
                "bearer.auth.token": self.token,
                "bearer.auth.logical.cluster": "",
            }
        for name in ("ca", "certificate", "key"):
            if getattr(self, name) is not None:
                options[f"ssl.{name}.location"] = str(getattr(self, name))
        if self.key_password is not None:
            options["ssl.key.password"] = self.key_password
        return options

    def __repr__(self) -> str:
        return f"SchemaRegistrySettings(url={self.url!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("url", self.url)]


def registry_values(table: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """Return the section's values with secrets read, and paths from `base` on.

    Raises SettingsError for a secret that is written in the file itself or cannot be read, for a
    file that cannot be read, and for a user in the address.
    """
    values = dict(table)
    if "@" in str(values.get("url", "")):
        # The value is not shown: it may hold a password.
        raise SettingsError(
            "schema_registry.url: must name no user: use user and password"
        )
    for name, value in table.items():
        where = f"schema_registry.{name}"
        if name in _SECRETS and value is not None:
            if not isinstance(value, dict) or set(value) not in ({"file"}, {"env"}):
                raise SettingsError(
                    f"{where}: a secret must not be written here: use {_SECRET}"
                )
            values[name] = read_secret(value, where, base)
        elif name in _FILES and value is not None:
            if not isinstance(value, str) or not value:
                raise SettingsError(
                    f"{where} = {display(value)}: a file name in quotes"
                )
            try:
                read_file(base / value)
            except SettingsError as error:
                raise SettingsError(f"{where}: {error}") from None
            values[name] = base / value
    return values


Record = TypeVar("Record", bound=Checked)
T = TypeVar("T")

#: Kafka refuses timestamps an hour ahead (`message.timestamp.after.max.ms`); clocks may be behind.
RECORDS_AHEAD_MAX_MS = 3_000_000
#: Least default of `events.max_behind`: the longest epoch may be shorter.
MAX_BEHIND_MIN_MS = 7 * DAY_MS


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings, checked. Paths are absolute when they come from `load`."""

    worker: WorkerSettings
    kafka: KafkaSettings
    events: EventsSettings
    privacy: PrivacySettings = PrivacySettings()
    schema_registry: SchemaRegistrySettings | None = None
    histograms: tuple[HistogramConfig, ...]

    def __post_init__(self) -> None:
        for complaint in self._complaints():
            raise ValueError(complaint)

    @property
    def contributions_topic(self) -> str:
        return stage_topics(self.worker.name).contributions

    @property
    def contribute_state_topic(self) -> str:
        return stage_topics(self.worker.name).contribute_state

    @property
    def release_state_topic(self) -> str:
        return stage_topics(self.worker.name).release_state

    @property
    def rejects_topic(self) -> str:
        return stage_topics(self.worker.name).rejects

    @property
    def budget_topic(self) -> str:
        return budget_topic(self.worker.name)

    @property
    def signatures_topic(self) -> str | None:
        """The public topic of signed ticks; None if nothing is signed."""
        signs = self.worker.signing_key_file is not None
        return signatures_topic(self.worker.name) if signs else None

    @property
    def by_user_topic(self) -> str:
        return rekey_topics(self.worker.name)[0]

    @property
    def rekey_state_topic(self) -> str:
        return rekey_topics(self.worker.name)[1]

    @property
    def internal_topics(self) -> tuple[str, ...]:
        """The topics that only workers read and write."""
        of_rekeying = rekey_topics(self.worker.name) if self.privacy.rekey else ()
        return (*stage_topics(self.worker.name), *of_rekeying)

    @property
    def user_field(self) -> str | None:
        """The field with an event's user if users are protected; None if events are."""
        return self.events.user if self.privacy.unit == "user" else None

    @property
    def shape(self) -> Shape:
        return shape_of(self.events, self.user_field, self.histograms)

    @property
    def max_behind_ms(self) -> int | None:
        """How late an event may arrive and still count; None: without limit.

        By default it is the longest epoch or window of the histograms, at least MAX_BEHIND_MIN_MS.
        """
        if self.events.max_behind_ms is not None:
            return self.events.max_behind_ms
        longest = MAX_BEHIND_MIN_MS
        for histogram in self.histograms:
            if histogram.without_epochs:
                longest = max(longest, *histogram.windows)
                continue
            # An epoch without end.
            if histogram.horizon_ticks is None:
                return None
            longest = max(longest, histogram.horizon_ticks * histogram.tick_ms)
        return longest

    def outputs(self, histogram: HistogramConfig) -> tuple[tuple[str, str], ...]:
        """Return the name and the topic of each of a histogram's series."""
        return histogram.outputs(self.output_topic(histogram))

    @property
    def output_topics(self) -> tuple[str, ...]:
        """Return the topics of all histograms, in the order of the settings."""
        outputs = itertools.chain.from_iterable(map(self.outputs, self.histograms))
        return tuple(topic for _, topic in outputs)

    def output_topic(self, histogram: HistogramConfig) -> str:
        """Return a histogram's topic; with windows, what the topics of its windows begin with."""
        return histogram.topic or f"{self.worker.name}.{histogram.name}"

    def _complaints(self) -> Iterator[str]:
        """Yield what is wrong between sections; each section has checked itself."""
        if not self.histograms:
            yield "histogram is missing: give at least one [[histogram]]"
        of_users = self.privacy.unit == "user"
        if of_users and self.events.user is None:
            yield f'events.user is missing: privacy.unit = "user" needs it: {FIELD} or "{RECORD_KEY}"'
        if not of_users and self.events.partitioner != "murmur2":
            yield f'events.partitioner = {display(self.events.partitioner)}: only with privacy.unit = "user"'
        if of_users and not self.events.topics.is_single and not self.privacy.rekey:
            yield (
                f'events.topic = {display(self.events.topic)}: privacy.unit = "user" needs one topic, keyed by user, or '
                "privacy.rekey = true: in several a user's events lie in several partitions, each of which would bound "
                "the user by itself"
            )
        if (self.schema_registry is not None) != (
            self.events.format in ("avro", "protobuf")
        ):
            needs = "is missing" if self.schema_registry is None else "is there"
            yield f'[schema_registry] {needs}: it belongs to events.format = "avro" and "protobuf", and to no other'
        yield from self._rekey_complaints(of_users)
        names: set[str] = set()
        for histogram in self.histograms:
            if histogram.name in names:
                yield f"{histogram.where()}name = {display(histogram.name)}: another histogram has this name"
            names.add(histogram.name)
            for complaint in self._histogram_complaints(histogram, of_users):
                yield f"{histogram.where()}{complaint}"
        # Complaints about a view name the first histogram that has it; "" is the view of [events].
        # A histogram's lanes are what stage 1 counts for it: counts, perhaps sums.
        histogram_of = {
            lane.view: config
            for config in reversed(self.histograms)
            for lane in config.lanes
        }
        for view, complaint in views.complaints(self.shape):
            section = histogram_of[view].where() if view else "events."
            yield f"{section}{complaint}"
        yield from self._name_complaints()

    def _histogram_complaints(
        self, histogram: HistogramConfig, of_users: bool
    ) -> Iterator[str]:
        """Yield what in a histogram does not fit other sections; the caller adds its name."""
        yield from _user_complaints(histogram, of_users)
        if self.privacy.neighbours == "record":
            yield from _record_complaints(histogram)
        yield from split_complaints(histogram, self.worker.owner_partitions)
        all_keys = (histogram.key or self.events.key) == ALL_KEYS
        if all_keys and histogram.keys != (ALL_STREAM_KEY,):
            yield f'keys: leave it out with events.key = "{ALL_KEYS}" (the one stream key is "{ALL_STREAM_KEY}")'

    def _name_complaints(self) -> Iterator[str]:
        """Yield topics whose names are too long, or are those of other topics."""
        purpose_of: dict[str, str] = {}
        for topic, purpose in self._topics():
            # Its parts were checked: only its length can be wrong.
            if not re.match(TOPIC_NAME, topic):
                yield f"{purpose} = {display(topic)}: of {len(topic)} characters, and a topic's name has at most 249"
            # Kafka's metrics conflate "." and "_", so it refuses names that differ only in these.
            other = purpose_of.setdefault(topic.replace(".", "_"), purpose)
            if other != purpose:
                yield f"{purpose} = {display(topic)}: needs a topic of its own; {other} has this name too (. and _ count as equal)"

    def _rekey_complaints(self, of_users: bool) -> Iterator[str]:
        """Yield what does not fit re-keying (events are forwarded by user), or needs it.

        `of_users`: users are protected, not events.
        """
        events = self.events
        if not self.privacy.rekey:
            if self.worker.user_partitions is not None:
                yield f"worker.user_partitions = {self.worker.user_partitions}: only with privacy.rekey = true"
            return
        if not of_users:
            yield 'privacy.rekey = true: only with privacy.unit = "user"'
        if events.partitioner != "murmur2":
            yield f"events.partitioner = {display(events.partitioner)}: only without privacy.rekey, which places users by murmur2"
        if events.timestamp is None and events.max_ahead_ms > RECORDS_AHEAD_MAX_MS:
            yield (
                f"events.max_ahead = {display(format_duration(events.max_ahead_ms))}: at most "
                f"{format_duration(RECORDS_AHEAD_MAX_MS)} with privacy.rekey and without events.timestamp: brokers take no "
                "records that are dated further ahead"
            )

    def _topics(self) -> Iterator[tuple[str, str]]:
        """Yield every topic whose name the settings decide, and what messages call it."""
        for topic in self.internal_topics:
            yield topic, f"the worker's {topic}"
        yield self.budget_topic, f"the worker's {self.budget_topic}"
        if self.signatures_topic is not None:
            yield self.signatures_topic, f"the worker's {self.signatures_topic}"
        for topic in self.events.topics.names:
            yield topic, "events.topic"
        for histogram in self.histograms:
            for name, topic in self.outputs(histogram):
                # Histograms with windows have a series, and a topic, for each window.
                of_series = "" if name == histogram.name else f" of {name}"
                yield topic, f"{histogram.where()}topic{of_series}"


def shape_of(
    events: EventsSettings,
    user: str | None = None,
    histograms: Iterable[HistogramConfig] = (),
) -> Shape:
    """Return the fields to read from an event, with a view for every way histograms look at it.

    `user` is the field of its user, None where users are not read. Without histograms, there is
    the view of `[events]`, named "". Histograms with equal views have equal view names.
    """
    view_by_name: dict[str, View] = {}
    for config in histograms:
        view = view_by_name[config.view] = view_of(events, config)
        if config.sum_lane is not None:
            # Sums have a lane (what stage 1 counts) and a view of their own, beside those of the
            # counts.
            view_by_name[config.sum_lane.view] = replace(
                view, count=None, sum=config.sum
            )
    return Shape(
        views=MappingProxyType(view_by_name or {"": view_of(events)}),
        time=None if events.timestamp is None else parse(events.timestamp),
        unit=events.timestamp_unit,
        user=views.parse_field(user),
        empty=events.missing == "empty",
    )


def view_of(events: EventsSettings, histogram: HistogramConfig | None = None) -> View:
    """Return a histogram's view of an event; None: the view of `[events]`.

    A view is the fields that are read (stream key, items, count), and which events are included.
    """
    key = events.key
    items = events.items
    count = events.count
    where = events.where_
    edges = None
    if histogram is not None:
        if histogram.items is not None or histogram.count is not None:
            # The count of [events] belongs to its items and has no meaning for others.
            items = histogram.items or items
            count = histogram.count
        key = histogram.key or key
        where = where if histogram.where_ is None else histogram.where_
        edges = None if histogram.buckets is None else histogram.buckets.edges
    if items is None:
        raise ValueError(f"events.items is missing: {FIELD}")
    return View(
        key=views.parse_field(key),
        items=parse(items),
        count=None if count is None else parse(count),
        where=where,
        edges=edges,
    )


class StageTopics(NamedTuple):
    """Internal topics of stage 1 (contribute) and 2 (release); `rekey_topics` has two more."""

    contributions: str
    contribute_state: str
    release_state: str
    rejects: str


def stage_topics(worker: str) -> StageTopics:
    """Return the internal topics of a worker's stages, by the worker's name."""
    return StageTopics(
        contributions=f"{worker}.contributions",
        contribute_state=f"{worker}.contribute-state",
        release_state=f"{worker}.release-state",
        rejects=f"{worker}.rejects",
    )


def budget_topic(worker: str) -> str:
    """Return the topic that tells readers of the budget, beside the histogram topics."""
    return f"{worker}.budget"


def signatures_topic(worker: str) -> str:
    """Return the topic of signed ticks, beside the histogram topics."""
    return f"{worker}.signatures"


def rekey_topics(worker: str) -> tuple[str, str]:
    """Return the topics of re-keying: of events by user, and of its state."""
    return f"{worker}.by-user", f"{worker}.rekey-state"


def _per_item() -> list[str]:
    """Return the names of the mechanisms that treat items one by one."""
    return names_of(lambda about: about.per_item)


def _per_item_in_a_tick() -> list[str]:
    """Return the names of those among them that treat every tick by itself."""
    return names_of(lambda about: about.per_item and about.family == "tick")


def _user_complaints(histogram: HistogramConfig, of_users: bool) -> Iterator[str]:
    """Yield what in a histogram does not fit who is protected: users, or (False) events.

    `bounds_rho` is budget that was spent on the histogram's bounds.
    """
    bound = histogram.max_items_per_user
    if of_users and bound is None:
        yield 'max_items_per_user is missing: privacy.unit = "user" needs it'
    elif of_users and histogram.bounds_rho is not None:
        yield f'bounds_rho = {histogram.bounds_rho}: only with privacy.unit = "event", which it was spent on'
    elif of_users and not histogram.protects_users:
        yield (
            f'mechanism = "{histogram.mechanism}": privacy.unit = "user" needs {", ".join(_per_item())}, '
            f"or meta with one of {', '.join(_per_item_in_a_tick())} as its algorithm"
        )
    elif not of_users and bound is not None:
        yield f'max_items_per_user = {bound}: only with privacy.unit = "user"'


def _record_complaints(histogram: HistogramConfig) -> Iterator[str]:
    """Yield what in a histogram would show whether there was a certain record.

    Called with neighbours = "record", whose guarantee hides that.
    """
    mode = 'privacy.neighbours = "record"'
    if histogram.start is None:
        yield f"start is missing: {mode} needs it: else the first record decides where publishing begins"
    if histogram.bounds_rho is not None:
        yield f"bounds_rho = {histogram.bounds_rho}: not with {mode}: another record changes which are sampled"
    if histogram.keys == "public":
        yield f'keys = "public": {mode} needs declared keys: each name of a key shows that a record had it'


def split_complaints(histogram: HistogramConfig, owners: int | None) -> Iterator[str]:
    """Yield why a histogram cannot be split; `owners` is None where it is not known yet."""
    split = histogram.split
    if split == 1:
        return
    setting = f"split = {split}"
    if not histogram.about.per_item:
        yield f"{setting}: needs a mechanism that treats items one by one: {', '.join(_per_item())}"
    if histogram.buckets is not None:
        yield f"{setting}: not with buckets"
    if owners is not None and split > owners:
        yield f"{setting}: at most the number of owner partitions, {owners}"


def load(path: str | Path) -> Settings:
    """Read and check a settings file and the files it names; raises like `from_file`."""
    return from_file(Path(path), settings_of)


def from_file(path: Path, read: Callable[[Mapping[str, Any], Path], T]) -> T:
    """Return what `read` makes of a TOML file's content and its directory.

    Whatever is wrong is a SettingsError of one line, which begins with the file.
    """
    try:
        # Editors on Windows begin a file with a byte order mark, which TOML does not know.
        text = read_file(path, may_be_pipe=True).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SettingsError(
            f"{path}: not UTF-8 at byte {error.start:,}; a TOML file is UTF-8"
        ) from None
    try:
        # As tomllib does, only sooner.
        if _DEEP_KEY.search(text):
            raise RecursionError
        return read(tomllib.loads(text), path.absolute().parent)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: not TOML: {error}") from None
    except (ValueError, SettingsError) as error:
        raise SettingsError(f"{path}: {error}") from None
    except RecursionError:
        raise SettingsError(f"{path}: not TOML: nested too deeply") from None


# A key of over 100 dotted parts: tomllib takes time and memory that grow with their square.
_DEEP_KEY = re.compile(
    r"""(?<![\w-])(?:(?:[\w-]++|"(?:\\.|[^"\\\n])*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){100}""",
    re.ASCII,
)


def settings_of(document: Mapping[str, Any], base: Path) -> Settings:
    """Check a document; ValueError for a wrong section or field, SettingsError for a wrong file."""
    _refuse_unknown(
        "",
        document,
        (*_SECTIONS, "schema_registry", "dashboard", "histogram", "alert"),
    )
    # [dashboard] and [[alert]] are only checked here; the dashboard reads them.
    history = dashboard_of(document.get("dashboard", {}), base)
    alerts_of(document, base, stored=history.store is not None)
    for name, record in _SECTIONS.items():
        required = [rule.name for rule in rules(record) if rule.required]
        if required and name not in document:
            raise ValueError(
                f"[{name}] is missing: a section with {', '.join(required)}"
            )
        _must_be_section(name, document.get(name, {}))
    kafka = kafka_of(document["kafka"], base)
    worker = _section(WorkerSettings, document["worker"], "worker.")
    events = _section(EventsSettings, document["events"], "events.")
    histograms = document.get("histogram", [])
    if not isinstance(histograms, list) or not all(
        isinstance(section, dict) for section in histograms
    ):
        raise ValueError(
            "histogram: must be one or more sections, each headed [[histogram]] in double brackets"
        )
    signing = worker.signing_key_file
    return Settings(
        worker=msgspec.structs.replace(
            worker,
            data_dir=base / worker.data_dir,
            key_file=base / worker.key_file,
            signing_key_file=None if signing is None else base / signing,
        ),
        kafka=kafka,
        events=events,
        privacy=_section(PrivacySettings, document.get("privacy", {}), "privacy."),
        schema_registry=registry_of(document.get("schema_registry"), base),
        histograms=tuple(
            _histogram(section, position, events, base)
            for position, section in enumerate(histograms, 1)
        ),
    )


_SECTIONS: Mapping[str, type[Section]] = MappingProxyType(
    {
        "worker": WorkerSettings,
        "kafka": KafkaSettings,
        "events": EventsSettings,
        "privacy": PrivacySettings,
    }
)


def _must_be_section(name: str, values: object) -> dict[str, Any]:
    """Return the table that [name] is; SettingsError if the file has a value of that name."""
    if not isinstance(values, dict):
        raise SettingsError(f"{name} = {display(values)}: must be a section, [{name}]")
    return values


def kafka_of(values: Mapping[str, Any], base: Path) -> KafkaSettings:
    """Return [kafka], checked, with secrets read and paths from `base` on."""
    kafka = dict(values)
    if "client" in kafka:
        kafka["client"] = client_values(kafka["client"], base)
    settings = _section(KafkaSettings, kafka, "kafka.")
    if settings.token_file is None:
        return settings
    return msgspec.structs.replace(settings, token_file=base / settings.token_file)


def dashboard_of(values: object, base: Path) -> DashboardSettings:
    """Return [dashboard], checked, with the path of its store from `base` on."""
    settings = _section(
        DashboardSettings, _must_be_section("dashboard", values), "dashboard."
    )
    if settings.store is None:
        return settings
    store = base / settings.store
    # DuckDB would take what follows a question mark for options, and a backslash for a slash.
    if {"?", "\\"} & set(str(store.absolute())):
        raise SettingsError(
            f"dashboard.store = {display(str(settings.store))}: the whole path must have no ? and "
            "no backslash; give another file"
        )
    return msgspec.structs.replace(settings, store=store)


def registry_of(values: object, base: Path) -> SchemaRegistrySettings | None:
    """Return [schema_registry], checked, with secrets read; None if there is no such section."""
    if values is None:
        return None
    table = registry_values(_must_be_section("schema_registry", values), base)
    return _section(SchemaRegistrySettings, table, "schema_registry.")


def _histogram(
    values: dict[str, Any], position: int, events: EventsSettings, base: Path
) -> HistogramConfig:
    """Return a [[histogram]], checked; `position` from 1 names one without a name.

    Files that it names are read, and durations that count ticks become numbers of ticks. Which
    class it becomes, and so which settings it has, depends on its `mechanism`.
    """
    values = dict(values)
    name = values.get("name")
    where = (
        f"histogram {name!r}: " if isinstance(name, str) else f"histogram {position}: "
    )
    allowed = "one of " + ", ".join(sorted(MECHANISMS))
    if "mechanism" not in values:
        raise ValueError(f"{where}mechanism is missing: {allowed}")
    mechanism = values.pop("mechanism")
    if not isinstance(mechanism, str) or mechanism not in MECHANISMS:
        close = difflib.get_close_matches(str(mechanism), MECHANISMS, 1)
        hint = f'did you mean "{close[0]}"? It must be {allowed}' if close else allowed
        raise ValueError(f"{where}mechanism = {display(mechanism)}: {hint}")
    if values.get("key", events.key) == ALL_KEYS:
        values.setdefault("keys", [ALL_STREAM_KEY])
    record = MECHANISMS[mechanism]
    # Whether `domain` (its labels) is required; None: the mechanism takes none.
    needs_domain = {rule.name: rule.required for rule in rules(record)}.get("domain")
    resolve_domain(values, needs_domain, where, base)
    durations.count_ticks(values, where)
    # Settings that are no longer in `values`.
    further = ("mechanism",) if needs_domain is None else ("mechanism", "domain_file")
    return _section(record, values, where, further)


def _section(
    record: type[Record],
    values: dict[str, Any],
    where: str,
    further: Iterable[str] = (),
) -> Record:
    """Return a section as its class, `record`; raise ValueError, which begins with `where`.

    Durations become ms, and the tables in _PARSED what they say. `further` are settings that the
    caller has taken out of `values`: a message about an unknown name lists them too.
    """
    by_name = {rule.name: rule for rule in rules(record)}
    _refuse_unknown(where, values, (*by_name, *further))
    for rule in by_name.values():
        if rule.required and rule.name not in values:
            raise ValueError(f"{where}{rule.name} is missing: {rule.allowed}")
    arguments = {}
    for name, value in values.items():
        rule = by_name[name]
        if rule.duration:
            try:
                value = (
                    list(map(parse_duration, value))
                    if isinstance(value, list)
                    else parse_duration(value)
                )
            except ValueError:
                raise ValueError(
                    f"{where}{name} = {display(value)}: {rule.allowed}: {DURATION_ALLOWED}"
                ) from None
        elif name in _PARSED:
            # `prefix` is the setting's name, or empty if the parser's messages begin with it.
            prefix, parse_table = _PARSED[name]
            try:
                value = parse_table(value)
            except ValueError as error:
                raise ValueError(f"{where}{prefix}{error}") from None
        arguments[rule.attribute] = value
    return record(**arguments)


# Settings that are tables: what comes before the parser's messages, and the parser.
_PARSED: Mapping[str, tuple[str, Callable[[Any], object]]] = MappingProxyType(
    {"where": ("", views.conditions), "sum": ("sum", parse_sum)}
)


def _refuse_unknown(where: str, values: Iterable[str], known: Iterable[str]) -> None:
    """Raise ValueError for the first name in `values` that is not `known`, with a similar one."""
    known = list(known)
    for name in values:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = (
                f'did you mean "{close[0]}"?' if close else f"one of {', '.join(known)}"
            )
            raise ValueError(f"{where}{name}: unknown name; {hint}")
