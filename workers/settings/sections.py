"""The sections of the settings file but [[histogram]]: each field with its range, in words too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from workers.durations import format_duration, parse_duration
from workers.mechanisms.checked import Checked, display
from workers.mechanisms.config import Conditions, Duration, FieldPath
from workers.settings.topic_names import ALLOWED as TOPIC_ALLOWED
from workers.settings.topic_names import TopicNames, topic_complaints
from workers.shapes.conditions import ALLOWED as CONDITIONS_ALLOWED
from workers.shapes.paths import SYNTAX
from workers.shapes.views import ALL_KEYS, RECORD_KEY, UNITS, path_complaints

ALL_STREAM_KEY = "all"

DAY_MS = 86_400_000
KEEP_MAX_MS = 36_500 * DAY_MS

_HOST = r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}"
FIELD = f"{SYNTAX}, at most 1,000 characters"
_KEY = f'{FIELD}, "{RECORD_KEY}" (the record key) or "{ALL_KEYS}"'
_PERIOD_MIN, _PERIOD_MAX = 1_000, 3_653 * 86_400_000
_PERIOD = '"epoch", or a duration from "1s" to "3653d", such as "30d"'
_USER = f'{FIELD} or "{RECORD_KEY}" (the record key)'


def _whole(least: int, most: int, of: str = "") -> Meta:
    return Meta(ge=least, le=most, description=f"a whole number {of}from {least:,} to {most:,}")


def _lasting(least: int, most: int) -> Meta:
    words = f"a duration from {format_duration(least)} to {format_duration(most)}"
    return Meta(ge=least, le=most, description=words)


def _lasting_or_none(least: int, most: int, otherwise: str) -> Meta:
    words = f"a duration from {format_duration(least)} to {format_duration(most)}; if left out, {otherwise}"
    return Meta(description=words, extra={"duration": True})


def _says(allowed: str, pattern: str | None = None) -> Meta:
    return Meta(description=allowed, pattern=pattern)


class Section(Checked, frozen=True, kw_only=True):
    """A section of the settings file, named after its class."""

    def where(self) -> str:
        return type(self).__name__.removesuffix("Settings").lower() + "."


class WorkerSettings(Section, frozen=True, kw_only=True):
    """[worker]: the worker's name and where it keeps its data."""

    name: Annotated[
        str,
        _says(
            'letters, digits, ".", "_" and "-", at most 100, a letter or digit first',
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z",
        ),
    ]
    data_dir: Annotated[Path, _says("a directory name in quotes")]
    key_file: Annotated[Path, _says("a file name in quotes; `quietcount key new FILE` makes the file")]
    commit_interval_ms: Annotated[Duration, _lasting(10, 600_000)] = msgspec.field(
        name="commit_interval", default=5_000
    )
    owner_partitions: Annotated[
        Annotated[int, _whole(1, 10_000)] | None,
        _says("a whole number from 1 to 10,000; if left out, the events topic's number of partitions"),
    ] = None
    user_partitions: Annotated[
        Annotated[int, _whole(1, 10_000)] | None,
        _says("a whole number from 1 to 10,000; if left out, as many as the events topics have together"),
    ] = None
    metrics_port: Annotated[
        Annotated[int, _whole(0, 65_535)] | None,
        _says("a port from 0 to 65535 (0: any free one, named in the log); if left out, no metrics are served"),
    ] = None
    metrics_host: Annotated[
        str,
        _says(
            'an address of this machine, such as "127.0.0.1" or "0.0.0.0"',
            pattern=r"^[A-Za-z0-9._:-]+\Z",
        ),
    ] = "127.0.0.1"
    log_format: Annotated[Literal["text", "json"], _says('"text" or "json"')] = "text"


class KafkaSettings(Section, frozen=True, kw_only=True):
    """[kafka]: where the cluster is, and options for librdkafka.

    May hold secrets: the repr shows only names.
    """

    bootstrap: Annotated[str, _says('"host:port", or several separated by commas', pattern=rf"^{_HOST}(, ?{_HOST})*\Z")]
    client: Annotated[dict[str, str], _says("librdkafka names with their values")] = msgspec.field(default_factory=dict)

    def __repr__(self) -> str:
        return f"KafkaSettings(bootstrap={self.bootstrap!r}, client=<{', '.join(self.client)}>)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("bootstrap", self.bootstrap), ("client", sorted(self.client))]


class EventsSettings(Section, frozen=True, kw_only=True):
    """[events]: the topic, and where an event has its stream key, items and time."""

    topic: Annotated[str | tuple[str, ...], _says(TOPIC_ALLOWED)]
    key: Annotated[FieldPath, _says(_KEY)]
    items: Annotated[FieldPath | None, _says(FIELD)] = None
    count: Annotated[FieldPath | None, _says(FIELD)] = None
    where_: Annotated[Conditions, _says(CONDITIONS_ALLOWED)] = msgspec.field(name="where", default=())
    missing: Annotated[Literal["reject", "empty"], _says('"reject" or "empty": what an event without items is')] = "reject"
    timestamp: Annotated[FieldPath | None, _says(FIELD)] = None
    timestamp_unit: Annotated[
        Literal["ms", "s", "us", "ns", "iso"], _says(", ".join(f'"{unit}"' for unit in UNITS))
    ] = "ms"
    user: Annotated[FieldPath | None, _says(_USER)] = None
    format: Annotated[
        Literal["json", "avro", "protobuf", "json_schema"], _says('"json", "avro", "protobuf" or "json_schema"')
    ] = "json"
    partitioner: Annotated[
        Literal["murmur2", "crc32"],
        _says('"murmur2" (Java, Faust, aiokafka) or "crc32" (librdkafka): how producers place a user\'s records'),
    ] = "murmur2"
    grace_ms: Annotated[Duration, _lasting(0, 604_800_000)] = msgspec.field(name="grace", default=0)
    max_ahead_ms: Annotated[Duration, _lasting(0, 31_622_400_000)] = msgspec.field(name="max_ahead", default=300_000)
    max_behind_ms: Annotated[
        Annotated[int, Meta(ge=0, le=KEEP_MAX_MS)] | None,
        _lasting_or_none(0, KEEP_MAX_MS, "the longest epoch of the histograms, at least 7d"),
    ] = msgspec.field(name="max_behind", default=None)
    max_bytes: Annotated[int, _whole(1, 100_000_000, "of bytes ")] = 1_000_000

    @property
    def topics(self) -> TopicNames:
        """Which topics hold the events."""
        return TopicNames.of(self.topic)

    def complaints(self) -> Iterator[str]:
        yield from topic_complaints(self.topic)
        if self.key.startswith("$") and self.key not in (RECORD_KEY, ALL_KEYS):
            yield f"key = {display(self.key)}: {_KEY}"
        if self.user is not None and self.user.startswith("$") and self.user != RECORD_KEY:
            yield f"user = {display(self.user)}: {_USER}"
        yield from path_complaints(
            {name: getattr(self, name) for name in ("key", "items", "count", "timestamp", "user")}
        )
        if self.timestamp is None and self.timestamp_unit != "ms":
            yield f"timestamp_unit = {display(self.timestamp_unit)}: only with timestamp"
        taken = {self.key: "key"}
        for name in ("items", "timestamp", "user"):
            field = getattr(self, name)
            if field in taken:
                yield f"{name} = {display(field)}: must be a JSON field other than {taken[field]}'s"
            if field is not None:
                taken[field] = name


class HistorySettings(Section, frozen=True, kw_only=True):
    """[dashboard]: where the dashboard keeps what it has read, and for how long."""

    store: Annotated[Path | None, _says("a file name in quotes; if left out, a file that ends with the dashboard")] = None
    keep_ticks_ms: Annotated[Duration, _lasting(60_000, KEEP_MAX_MS)] = msgspec.field(name="keep_ticks", default=30 * DAY_MS)
    keep_hours_ms: Annotated[Duration, _lasting(60_000, KEEP_MAX_MS)] = msgspec.field(name="keep_hours", default=730 * DAY_MS)

    def where(self) -> str:
        return "dashboard."

    def complaints(self) -> Iterator[str]:
        if self.keep_hours_ms < self.keep_ticks_ms:
            yield (
                f"keep_hours = {format_duration(self.keep_hours_ms)}: at least keep_ticks, "
                f"{format_duration(self.keep_ticks_ms)}"
            )


class PrivacySettings(Section, frozen=True, kw_only=True):
    """[privacy]: the unit of protection, and the most that it may lose in any period."""

    unit: Annotated[Literal["event", "user"], _says('"event" or "user"')] = "event"
    rekey: Annotated[bool, _says("true or false")] = False
    max_epsilon: Annotated[
        Annotated[float, Meta(gt=0, le=1_000)] | None, _says("a number above 0 and at most 1000")
    ] = None
    max_delta: Annotated[
        Annotated[float, Meta(ge=1e-50, le=0.5)] | None, _says("a number from 1e-50 to 0.5, such as 1e-8")
    ] = None
    period: Annotated[str, _says(_PERIOD)] = "epoch"
    uncounted_workers: Annotated[tuple[str, ...], _says('a list of names of workers, such as ["old-orders"]')] = ()

    @property
    def period_ms(self) -> int | None:
        """Return how long a period lasts; None where it is an epoch."""
        return None if self.period == "epoch" else parse_duration(self.period)

    def complaints(self) -> Iterator[str]:
        try:
            lasts = self.period_ms
        except ValueError:
            lasts = 0
        if lasts is not None and not _PERIOD_MIN <= lasts <= _PERIOD_MAX:
            yield f"period = {display(self.period)}: {_PERIOD}"
        if (self.max_epsilon is None) != (self.max_delta is None):
            given, lacks = ("max_epsilon", "max_delta") if self.max_delta is None else ("max_delta", "max_epsilon")
            yield f"{lacks} is missing: a ceiling is both, and {given} is given"
        elif self.max_epsilon is None:
            for name, value, default in (("period", self.period, "epoch"), ("uncounted_workers", self.uncounted_workers, ())):
                if value != default:
                    yield f"{name} = {display(value)}: only with max_epsilon and max_delta"
