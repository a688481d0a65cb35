"""The part of a settings file that the dashboard reads: Kafka and the histogram topics.

Nothing else is checked. So the worker's own file works without its key file, data
directory, domain file or read permission on events; so does one with only `[worker] name`,
`[kafka]`, the name of each `[[histogram]]` (without epochs also `horizon` and `windows`) and
perhaps `[dashboard]` and `[[alert]]`.

A histogram with `horizon = "never"` has no epochs: it counts sliding windows, and each of them is a
series of snapshots in a topic of its own. Any other histogram is one series.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from workers.kafka.clients import Connection
from workers.mechanisms.config.checked import Checked, display, rules
from workers.mechanisms.config.durations import ALLOWED, parse_duration
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.config.windows import NEVER, series_of
from workers.pipeline.snapshots import OF_USERS
from workers.runtime.errors import SettingsError
from workers.settings.alerts import AlertSettings, alerts_of
from workers.settings.durations import count_ticks
from workers.settings.files import read_file
from workers.settings.settings import (
    DashboardSettings,
    KafkaSettings,
    WorkerSettings,
    budget_topic,
    dashboard_of,
    from_file,
    kafka_of,
)

TOKEN_CHARACTERS = 16


@dataclass(frozen=True, slots=True)
class HistogramTopic:
    """A series of snapshots and its topic: a histogram, or one window of one without epochs.

    `name` is what snapshots and queries call the series. `horizon` is the ticks in an epoch; None
    if there are no epochs, or none is stated.

    `label` and `unit` say what the numbers in its buckets are, `sum_field` which field is added up,
    `key_field` which one has its stream keys; any of them may be missing. `counts` is "users" where
    different users are counted.

    `window_of` is the name in the settings of the histogram that this is a window of, and
    `window_ms` the window's length; both are None with epochs. `selection` is a text, equal for
    histograms that count the same items of the same events; None where the file does not state the
    events. `bounds_rho` is the privacy cost (rho) of choosing bounds from a sample.
    """

    name: str
    topic: str
    horizon: int | None = None
    label: str | None = None
    unit: str | None = None
    sum_field: str | None = None
    key_field: str | None = None
    counts: str | None = None
    window_of: str | None = None
    window_ms: int | None = None
    selection: str | None = None
    bounds_rho: float = 0.0

    @property
    def settings_name(self) -> str:
        """The histogram's name in the settings."""
        return self.window_of or self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderSettings:
    """What a reader of histogram topics needs of a settings file."""

    worker: str
    connection: Connection
    histograms: tuple[HistogramTopic, ...]
    history: DashboardSettings = field(default_factory=DashboardSettings)
    alerts: tuple[AlertSettings, ...] = ()

    @property
    def budget_topic(self) -> str:
        return budget_topic(self.worker)

    @property
    def topics(self) -> dict[str, str]:
        """The names of the series, by topic."""
        return {histogram.topic: histogram.name for histogram in self.histograms}


def load_reader_settings(path: Path) -> ReaderSettings:
    return from_file(path, _read)


def read_token(path: Path) -> str:
    """Return the API token that a file has as its only line; raise SettingsError for another.

    It goes into an HTTP header: so printable ASCII without blanks.
    """
    try:
        token = read_file(path).decode("ascii").strip()
    except UnicodeDecodeError:
        token = ""
    if len(token) < TOKEN_CHARACTERS or not all(
        "!" <= character <= "~" for character in token
    ):
        raise SettingsError(
            f"{path}: a token is at least {TOKEN_CHARACTERS} ASCII characters without blanks, "
            "such as `openssl rand -hex 32` makes"
        )
    return token


def _read(document: Mapping[str, Any], base: Path) -> ReaderSettings:
    """Return what a reader needs of a parsed file, and check nothing else.

    Relative paths are from `base`, the directory of the file. The caller adds the file's name to a
    ValueError, which is about a wrong setting.
    """
    for section, needed in (("worker", "its name"), ("kafka", "bootstrap")):
        if not isinstance(document.get(section), dict):
            raise SettingsError(f"[{section}] is missing: the dashboard needs {needed}")
    worker = _value(WorkerSettings, "name", document["worker"], "worker.")
    # Only the settings of [kafka] that exist: a wrong name is for the worker to report.
    known = {rule.name for rule in rules(KafkaSettings)}
    given = {name: value for name, value in document["kafka"].items() if name in known}
    kafka = kafka_of(given, base)
    histograms = document.get("histogram")
    if not isinstance(histograms, list) or not all(
        isinstance(section, dict) for section in histograms
    ):
        raise ValueError(
            "histogram is missing: one or more sections, each begun by [[histogram]]"
        )
    # A histogram without epochs has several topics: all with what its section says of its events.
    topics: list[HistogramTopic] = []
    for i, section in enumerate(histograms, 1):
        selection = _selection(section) if "events" in document else None
        key_field = _key_field(document.get("events"), section)
        for series in _series(section, f"histogram {i}: ", worker):
            topics.append(replace(series, selection=selection, key_field=key_field))
    for setting in ("name", "topic"):
        values = [getattr(topic, setting) for topic in topics]
        if twice := next((value for value in values if values.count(value) > 1), None):
            raise ValueError(
                f"two histograms have the {setting} {display(twice)}: each needs its own"
            )
    history = dashboard_of(document.get("dashboard", {}), base)
    alerts = alerts_of(document, base, stored=history.store is not None)
    taken = {topic.topic for topic in topics}
    for alert in alerts:
        if alert.topic in taken:
            raise ValueError(
                f"{alert.where()}topic = {display(alert.topic)}: a histogram has this topic"
            )
    return ReaderSettings(
        worker=worker,
        connection=Connection(
            kafka.bootstrap,
            kafka.client,
            token_file=kafka.token_file,
            token_command=kafka.token_command,
        ),
        histograms=tuple(topics),
        history=history,
        alerts=alerts,
    )


def _series(
    values: Mapping[str, Any], where: str, worker: str
) -> Iterator[HistogramTopic]:
    """Yield the topics of a [[histogram]]: its own, or without epochs one for each window.

    `values` is the section, `where` what messages call it, `worker` the worker's name.
    """
    histogram = _histogram(values, where, worker)
    if values.get("horizon") != NEVER:
        yield histogram
        return
    windows = values.get("windows")
    if not isinstance(windows, list) or not windows:
        raise ValueError(
            f'{where}windows is missing: horizon = "never" needs it, such as ["1m", "1h", "1d"]'
        )
    for window in windows:
        try:
            window_ms = parse_duration(window)
        except ValueError:
            window_ms = 0
        if window_ms < 1:
            raise ValueError(f"{where}windows holds {display(window)}: {ALLOWED}")
        series = series_of(histogram.name, window_ms)
        yield replace(
            histogram,
            name=series.name,
            topic=histogram.topic + series.suffix,
            window_of=histogram.name,
            window_ms=window_ms,
        )


# The settings that decide which items of which events a histogram counts, under which stream key.
_SELECTING = ("key", "items", "count", "where", "buckets", "unique_users")


def _selection(values: Mapping[str, Any]) -> str:
    """Return a text that is equal for sections that count the same items of the same events."""
    return repr([values.get(name) for name in _SELECTING])


def _key_field(events: object, values: Mapping[str, Any]) -> str | None:
    """Return the field that a histogram's stream keys are read from; None if they are in no field.

    `values` is its section; without a key of its own it has that of the section [events].
    """
    shared = events.get("key") if isinstance(events, dict) else None
    key = values.get("key", shared)
    # "$all" and "$key" name no field: one key for all events, and the key of the record.
    return key if isinstance(key, str) and not key.startswith("$") else None


def _histogram(values: Mapping[str, Any], where: str, worker: str) -> HistogramTopic:
    """Return the topic of a [[histogram]] as if it had epochs; leave most errors to the worker.

    `values` is the section, `where` what messages call it, `worker` the worker's name.
    """
    texts = {
        name: _value(HistogramConfig, name, values, where)
        for name in ("name", "topic", "label", "unit")
        if name in values or name == "name"
    }
    times = {name: values[name] for name in ("tick", "horizon") if name in values}
    # Replaces, in `times`, a horizon that is a duration by a number of ticks.
    with suppress(ValueError):
        count_ticks(times, where)
    horizon = times.get("horizon")
    if not isinstance(horizon, int) or isinstance(horizon, bool) or horizon <= 0:
        horizon = None
    bounds_rho = values.get("bounds_rho")
    sum_section = values.get("sum")
    sum_field = sum_section.get("field") if isinstance(sum_section, dict) else None
    return HistogramTopic(
        name=texts["name"],
        topic=texts.get("topic", f"{worker}.{texts['name']}"),
        horizon=horizon,
        label=texts.get("label"),
        unit=texts.get("unit"),
        sum_field=sum_field if isinstance(sum_field, str) else None,
        counts=OF_USERS if values.get("unique_users") is True else None,
        bounds_rho=float(bounds_rho) if isinstance(bounds_rho, int | float) else 0.0,
    )


def _value(
    record: type[Checked], name: str, values: Mapping[str, Any], where: str
) -> str:
    """Return the setting `name` of a section, which must be there, as a text.

    It is checked by the rule that the worker's `record` of such sections has. `values` is the
    section, `where` what messages call it.
    """
    rule = next(rule for rule in rules(record) if rule.name == name)
    if name not in values:
        raise ValueError(f"{where}{name} is missing: {rule.allowed}")
    try:
        return str(rule.checked(values[name]))
    except msgspec.ValidationError:
        raise ValueError(
            f"{where}{name} = {display(values[name])}: {rule.allowed}"
        ) from None
