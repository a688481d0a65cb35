"""[[alert]]: what the dashboard tells when a count passes a limit beyond the noise.

An alert watches the snapshots of one topic, a histogram's or that of one of its windows. `of` says
which numbers in them: counts of items, their sums, or the count of all items. Only a histogram with
horizon = "never" has windows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from workers.mechanisms.config.checked import Checked, display, rules, whole
from workers.mechanisms.config.durations import parse_duration
from workers.mechanisms.config.histogram import TOPIC_NAME
from workers.mechanisms.config.windows import NEVER, series_of
from workers.settings.files import read_secret

_NAME = Meta(
    pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z",
    description='letters, digits, ".", "_" and "-", at most 100, a letter or digit first',
)
_LABELS = "a list of at least one text in quotes"
_Labels = Annotated[tuple[str, ...], Meta(min_length=1, description=_LABELS)]
_WINDOW = 'a window of a histogram with horizon = "never", such as "1h"'
_OF = '"count", "sum" or "all_items"'
_RATE = "a number above 0 and at most 1: false alarms a day, over all items"
_URL = (
    'an address that begins with "http://" or "https://", at most 2,000 characters, '
    '{ file = "..." } or { env = "NAME" }'
)
_Url = Annotated[str, Meta(pattern=r"^https?://[!-~]{1,2000}\Z")]
_TOPIC = 'a Kafka topic name: letters, digits, ".", "_" and "-", at most 249 of them'
_Topic = Annotated[str, Meta(pattern=TOPIC_NAME)]


class AlertSettings(Checked, frozen=True, kw_only=True):
    """One alert, for a number that exceeds `above` by more than noise is likely to explain.

    Numbers that are not above it raise at most `false_alarms` alarms a day in expectation, if there
    are at most `series` of them over all stream keys. `window` is a duration as written, or None
    for counts since an epoch began. `keys` and `items` of None are all. `webhook` and `topic` say
    where alarms are sent.
    """

    name: Annotated[str, _NAME]
    histogram: Annotated[str, _NAME]
    above: Annotated[int, whole(0, 10**15)]
    of: Annotated[Literal["count", "sum", "all_items"], Meta(description=_OF)] = "count"
    window: Annotated[str | None, Meta(description=_WINDOW)] = None
    keys: Annotated[_Labels | None, Meta(description=_LABELS)] = None
    items: Annotated[_Labels | None, Meta(description=_LABELS)] = None
    series: Annotated[int, whole(1, 10**9)] = 10_000
    false_alarms: Annotated[float, Meta(gt=0, le=1, description=_RATE)] = 0.01
    webhook: Annotated[_Url | None, Meta(description=_URL)] = None
    topic: Annotated[_Topic | None, Meta(description=_TOPIC)] = None

    def where(self) -> str:
        return f"alert {self.name}: " if isinstance(self.name, str) else "alert: "

    @property
    def series_name(self) -> str:
        """The name of the series of snapshots that it watches."""
        if self.window is None:
            return self.histogram
        return series_of(self.histogram, parse_duration(self.window)).name

    @property
    def identity(self) -> tuple[object, ...]:
        """What decides which alarms there are: not where they are sent."""
        looked_at = (self.name, self.series_name, self.of, self.keys, self.items)
        return (*looked_at, self.above, self.series, self.false_alarms)

    def complaints(self) -> Iterator[str]:
        """Yield if it is sent nowhere, names items of all items, or has a wrong window."""
        if self.webhook is None and self.topic is None:
            yield "webhook or topic: where it is sent, one of the two or both"
        if self.of == "all_items" and self.items is not None:
            yield 'items: not with of = "all_items", the count of all items together'
        if self.window is not None:
            try:
                parse_duration(self.window)
            except ValueError:
                yield f"window = {display(self.window)}: {_WINDOW}"


def alerts_of(
    document: Mapping[str, Any], base: Path, *, stored: bool
) -> tuple[AlertSettings, ...]:
    """Return the alerts of a settings file; ValueError for a wrong one.

    `stored`: whether the dashboard has a store, which alerts need.
    """
    sections = document.get("alert", [])
    if not isinstance(sections, list) or not all(isinstance(s, dict) for s in sections):
        raise ValueError("alert: sections, each headed [[alert]] in double brackets")
    alerts = [
        _alert(section, number, base) for number, section in enumerate(sections, 1)
    ]
    histograms = document.get("histogram", [])
    for alert in alerts:
        _check_histogram(alert, histograms)
    names = [alert.name for alert in alerts]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(
            f"two alerts have the name {display(twice)}: each needs its own"
        )
    if alerts and not stored:
        raise ValueError(
            "alert: needs dashboard.store, beside which it keeps what is not delivered yet"
        )
    return tuple(alerts)


def _alert(section: Mapping[str, Any], number: int, base: Path) -> AlertSettings:
    """Return one [[alert]], checked by itself; ValueError for a wrong one.

    `number`, from 1, is how messages name it while it may lack a name.
    """
    where = f"alert {number}: "
    known = {rule.name: rule for rule in rules(AlertSettings)}
    for name in section:
        if name not in known:
            raise ValueError(f"{where}{name}: unknown; one of {', '.join(known)}")
    for name, rule in known.items():
        if rule.required and name not in section:
            raise ValueError(f"{where}{name} is missing: {rule.allowed}")
    values = dict(section)
    # Any other table is refused as the wrong type.
    webhook = values.get("webhook")
    if isinstance(webhook, dict) and set(webhook) in ({"file"}, {"env"}):
        values["webhook"] = read_secret(webhook, f"{where}webhook", base)
    return AlertSettings(**values)


def _check_histogram(alert: AlertSettings, histograms: Sequence[Any]) -> None:
    """Refuse an alert about a histogram, a window or a number that the settings do not have.

    `histograms` are the [[histogram]] sections as read: what is wrong in them is reported later.
    """
    named = [
        section
        for section in histograms
        if isinstance(section, dict) and section.get("name") == alert.histogram
    ]
    if not named:
        raise ValueError(
            f"{alert.where()}histogram = {display(alert.histogram)}: no [[histogram]] has this name"
        )
    histogram = named[0]
    # The setting by which a histogram publishes such numbers.
    needed = {"sum": "sum", "all_items": "total_share"}.get(alert.of)
    if needed is not None and needed not in histogram:
        raise ValueError(
            f'{alert.where()}of = "{alert.of}": needs {needed} in the [[histogram]]'
        )
    windows = histogram.get("windows") if histogram.get("horizon") == NEVER else None
    if windows is None:
        if alert.window is None:
            return
        raise ValueError(
            f'{alert.where()}window = {display(alert.window)}: only of a histogram with horizon = "never"'
        )
    # What is wrong with the windows themselves is reported with the histogram.
    if not isinstance(windows, list):
        return
    lengths = set()
    for window in windows:
        with suppress(ValueError):
            lengths.add(parse_duration(window))
    if alert.window is None or parse_duration(alert.window) not in lengths:
        given = "is missing" if alert.window is None else f"= {display(alert.window)}"
        listed = ", ".join(map(display, windows))
        raise ValueError(f"{alert.where()}window {given}: one of {listed}")
