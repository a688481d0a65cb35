"""Alerts: which items count more than a limit beyond the noise, with a rate of false alarms.

A row is above the limit X if its count is more than X by over z sd + 1/2. If at most n items are
counted over all stream keys of an alert and T ticks end in a day, z is the normal quantile of
a / (n T): then quiet items, whose true counts are at most X, raise at most `a` alarms a day in
expectation. For a published count is the true one plus floor(N + 1/2), N normal with the stated sd,
and so exceeds X + z sd + 1/2 with a chance of at most a / (n T): a union bound over items and
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
from typing import Any

import msgspec
import orjson

from workers.client.messages import SeenSnapshot
from workers.dashboard.store.queries import iso
from workers.settings.alerts import AlertSettings

logger = logging.getLogger(__name__)

DAY_MS = 86_400_000
# Their counts differ from the truth by rounded normal noise.
MECHANISMS = frozenset({"unk_base", "known_base"})
# Covers that the standard deviation (sd) in a snapshot and the quantile are rounded.
ROUNDING = 1 + 1e-6


class Watched(msgspec.Struct):
    """What has been looked at of one alert's stream key, up to the tick that ends at `end` ms.

    `id` is its series. `above` has the items above the limit, each with the tick of its alarm, and
    `rows` is how many items were shown.
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
        """Return the alarms of a snapshot as messages; none of one that was looked at before."""
        rules = [
            rule
            for rule in self._rules.get(snapshot.histogram, ())
            if rule.is_news(snapshot)
        ]
        if not rules:
            return []
        fields = orjson.loads(snapshot.json)
        return [(rule.alert, found) for rule in rules for found in rule.take(fields)]

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


def margin(alert: AlertSettings, width_ms: int, rows: int, sd: float) -> float:
    """Return by how much a count must exceed the limit, if ticks last `width_ms`.

    `rows` is the number of items shown; where that is more than the settings say, it counts.
    """
    tests_a_day = max(alert.series, rows) * max(1.0, DAY_MS / width_ms)
    quantile = -NormalDist().inv_cdf(alert.false_alarms / tests_a_day)
    return quantile * sd * ROUNDING + 0.5


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
        if self.alert.keys is not None and snapshot.key not in self.alert.keys:
            return False
        # After a restart the last ticks are read again, those of an ended series too.
        seen = self.watched.get(snapshot.key)
        return seen is None or seen.end < snapshot.end

    def take(self, snapshot: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Look at a snapshot, as parsed JSON; yield a message for each new alarm."""
        alert = self.alert
        key = snapshot["key"]
        sd = snapshot["sd"]
        if sd is None or snapshot["mechanism"] not in MECHANISMS:
            self._warn("its counts do not have normal noise of a stated error")
            return
        items = snapshot.get("items") or ()
        seen = self.watched.get(key)
        # In another series all counts begin anew.
        above = seen.above if seen is not None and seen.id == snapshot["id"] else {}
        # The chance of a false alarm is one for all stream keys of the alert.
        rows = len(items) + sum(
            other.rows for name, other in self.watched.items() if name != key
        )
        if rows > alert.series:
            self._warn(
                f"more than series = {alert.series:,} items are shown; they count"
            )
        beyond = margin(alert, snapshot["end"] - snapshot["start"], rows, sd)
        counts = dict(items)
        # An item that is not shown any more counts as back at the limit.
        above = {
            item: tick
            for item, tick in above.items()
            if counts.get(item, alert.above) > alert.above
        }
        for item, count in counts.items():
            wanted = alert.items is None or item in alert.items
            if wanted and item not in above and count - alert.above > beyond:
                above[item] = snapshot["tick"]
                yield self._message(snapshot, item, count, beyond)
        self.watched[key] = Watched(
            id=snapshot["id"], end=snapshot["end"], above=above, rows=len(items)
        )

    def _message(
        self, snapshot: Mapping[str, Any], item: str, count: int, beyond: float
    ) -> dict[str, Any]:
        """Return the message of an item that counts more than `beyond` over the limit."""
        alert = self.alert
        # No more than this: what is looked at again after a crash has the same id.
        named = [self.digest, snapshot["id"], snapshot["key"], item, snapshot["tick"]]
        message = {
            "alert": alert.name,
            "alert_id": _digest(repr(named)),
            "histogram": snapshot["histogram"],
            "key": snapshot["key"],
            "item": item,
            "count": count,
            "sd": snapshot["sd"],
            "above": alert.above,
            "margin": round(beyond, 4),
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
