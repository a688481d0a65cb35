"""Alerts: which items are above a limit beyond the noise, with a rate of false alarms.

A row is above the limit X if its count is more than X by over z sd + 1/2, the margin. The same
holds of sums, and of the count of all items, with their own sd (`_measure`). If at most n items are
counted over all stream keys of an alert and T ticks end in a day, z is the normal quantile of
a / (n T): then quiet items, whose true counts are at most X, raise at most `a` alarms a day in
expectation. In the settings, X is `above`, n is `series` and a is `false_alarms`.

Proof: a published count is the true one plus floor(N + 1/2), N normal with the stated sd, and so
exceeds X + z sd + 1/2 with a chance of at most a / (n T); the rest is a union bound over items and
ticks. It needs nothing of the noise of different ticks and items, which may be shared, and holds
for items that are hidden until their noise is high too. An item whose true count is d sd below X
counts for exp(-z d - d^2 / 2) of one of the n.

An item alarms once: again only after a count of at most X, or in another series. This is
post-processing of snapshots and costs no privacy.

The state is what has been looked at, who is above, and what is not delivered. An alert's id is made
from its settings, series, key, item and tick: what is looked at twice after a crash has the same.
"""

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, NamedTuple

import msgspec
import orjson

from workers.client.messages import SeenSnapshot
from workers.dashboard.store.queries import iso
from workers.settings.alerts import AlertSettings

logger = logging.getLogger(__name__)

DAY_MS = 86_400_000
# Their counts differ from the truth by rounded normal noise.
MECHANISMS = frozenset({"unk_base", "known_base"})
# Covers the rounding of the quantile, and of the standard deviation (sd) in a snapshot.
SD_SLACK = 1 + 1e-6


class Watched(msgspec.Struct):
    """What has been looked at of one alert's stream key, up to the tick that ends at `end` ms.

    `id` is that of its series. `above` has the items above the limit, each with the tick of its
    alarm, and `rows` is how many items were shown.
    """

    id: str
    end: int
    above: dict[str, int]
    rows: int = 0


class Alarms:
    """The rules of all alerts, and what they have seen."""

    def __init__(self, alerts: Sequence[AlertSettings]) -> None:
        self._rules: dict[str, list[_Rule]] = {}
        for alert in alerts:
            self._rules.setdefault(alert.series_name, []).append(_Rule(alert))

    def take(
        self, snapshot: SeenSnapshot
    ) -> list[tuple[AlertSettings, dict[str, Any]]]:
        """Look at a snapshot; return each alarm as its alert and a message.

        A snapshot that was looked at before has none.
        """
        rules = [
            rule
            for rule in self._rules.get(snapshot.histogram, ())
            if rule.is_news(snapshot)
        ]
        if not rules:
            return []
        fields = orjson.loads(snapshot.json)
        return [
            (rule.alert, message) for rule in rules for message in rule.take(fields)
        ]

    def stored(self) -> dict[str, dict[str, Watched]]:
        """Return what each alert has seen, by its digest and stream key."""
        return {
            rule.digest: rule.watched
            for rules in self._rules.values()
            for rule in rules
        }

    def restore(self, stored: Mapping[str, dict[str, Watched]]) -> None:
        """Take what was stored; of alerts whose settings have changed nothing was seen."""
        for rules in self._rules.values():
            for rule in rules:
                rule.watched = stored.get(rule.digest, {})


class _Measured(NamedTuple):
    """The values that an alert compares with its limit, by item, and their error.

    A value differs from the true one by normal noise of this `sd`, and by at most `rounding` more.
    """

    values: dict[str, float]
    sd: float
    rounding: float = 0.5


# The name under which the count of all items is compared, of which there is one.
ALL_ITEMS = ""


def _measure(alert: AlertSettings, snapshot: Mapping[str, Any]) -> _Measured | None:
    """Return the values that an alert compares: counts, sums, or the count of all items.

    None where the snapshot has none with normal noise of a stated sd.
    """
    if snapshot["sd"] is None or snapshot["mechanism"] not in MECHANISMS:
        return None
    items = snapshot.get("items") or ()
    if alert.of == "all_items":
        total = snapshot.get("all_items")
        if total is None:
            return None
        return _Measured({ALL_ITEMS: total["count"]}, total["sd"])
    if alert.of == "count":
        return _Measured(dict(items), snapshot["sd"])
    declared = snapshot.get("sum")
    if declared is None:
        return None
    values = {
        label: total  # the row goes on with the mean
        for (label, _), (total, *_) in zip(items, snapshot["sums"], strict=True)
    }
    # A sum is the middle of the range times a count, and half a step times another whole number:
    # both numbers are off by 1/2 at most, besides their noise.
    middle = (declared["from"] + declared["to"]) / 2
    rounding = abs(middle) / 2 + declared["step"] / 4
    return _Measured(values, declared["sd"], rounding)


def margin_of(
    alert: AlertSettings, tick_ms: int, rows: int, sd: float, rounding: float = 0.5
) -> float:
    """Return the margin, by which a value must exceed the limit, if ticks last `tick_ms`.

    `rows` is the number of items shown; where that is more than the settings say, it counts. `sd`
    and `rounding` are the value's errors.
    """
    # n T, with T at least 1: ticks may last longer than a day.
    tests_a_day = max(alert.series, rows) * max(1.0, DAY_MS / tick_ms)
    quantile = -NormalDist().inv_cdf(alert.false_alarms / tests_a_day)
    # Both factors were rounded.
    return quantile * sd * SD_SLACK + rounding


@dataclass
class _Rule:
    """One alert, with what it has seen (`watched`) by stream key."""

    alert: AlertSettings
    watched: dict[str, Watched] = field(default_factory=dict)
    warned: bool = False

    @property
    def digest(self) -> str:
        return _digest(repr(self.alert.identity))

    def is_news(self, snapshot: SeenSnapshot) -> bool:
        """Return whether a snapshot is of the alert's stream keys and was not looked at before."""
        if self.alert.keys is not None and snapshot.key not in self.alert.keys:
            return False
        # After a restart the last ticks are read again, those of an ended series too.
        seen = self.watched.get(snapshot.key)
        return seen is None or seen.end < snapshot.end

    def take(self, snapshot: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Look at a snapshot, as parsed JSON; yield a message for each new alarm.

        That is an item which exceeds the limit by more than the margin, and has not stayed above
        the limit since its last alarm.
        """
        alert = self.alert
        key = snapshot["key"]
        measured = _measure(alert, snapshot)
        if measured is None:
            self._warn(f"it has no {alert.of} with normal noise of a stated error")
            return
        values = measured.values
        seen = self.watched.get(key)
        # In another series all counts begin anew.
        above = seen.above if seen is not None and seen.id == snapshot["id"] else {}
        # The chance of a false alarm is one for all stream keys of the alert.
        rows = len(values) + sum(
            other.rows for name, other in self.watched.items() if name != key
        )
        if rows > alert.series:
            self._warn(
                f"more than series = {alert.series:,} items are shown; they count"
            )
        tick_ms = snapshot["end"] - snapshot["start"]
        margin = margin_of(alert, tick_ms, rows, measured.sd, measured.rounding)
        # Those that stay above: an item that is not shown any more counts as back at the limit.
        above = {
            item: tick
            for item, tick in above.items()
            if values.get(item, alert.above) > alert.above
        }
        for item, value in values.items():
            wanted = alert.items is None or item in alert.items
            if wanted and item not in above and value - alert.above > margin:
                above[item] = snapshot["tick"]
                yield self._message(snapshot, item, value, measured.sd, margin)
        self.watched[key] = Watched(
            id=snapshot["id"], end=snapshot["end"], above=above, rows=len(values)
        )

    def _message(
        self,
        snapshot: Mapping[str, Any],
        item: str,
        value: float,
        sd: float,
        margin: float,
    ) -> dict[str, Any]:
        """Return the message about an item that exceeds the limit by more than the margin."""
        alert = self.alert
        # Makes the id: the same if the snapshot is looked at again after a crash.
        named = [self.digest, snapshot["id"], snapshot["key"], item, snapshot["tick"]]
        message = {
            "alert": alert.name,
            "alert_id": _digest(repr(named)),
            "histogram": snapshot["histogram"],
            "key": snapshot["key"],
            "item": None if alert.of == "all_items" else item,
            alert.of: value,
            "sd": sd,
            "above": alert.above,
            "margin": round(margin, 4),
            "false_alarms": alert.false_alarms,
            "id": snapshot["id"],
            "epoch": snapshot["epoch"],
            "tick": snapshot["tick"],
            "start": snapshot["start"],
            "end": snapshot["end"],
            "end_time": iso(snapshot["end"]),
        }
        if "window" in snapshot:
            message["window"] = snapshot["window"]
        return message

    def _warn(self, why: str) -> None:
        """Log once what is wrong with the alert."""
        if not self.warned:
            self.warned = True
            logger.warning("alert %s: %s", self.alert.name, why)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
