"""Kafka's outages, and what else the worker waits for, each logged at its start and end."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import NamedTuple

from workers.runtime.logs import json_fields

logger = logging.getLogger(__name__)


class Outage:
    """The current outage, if any, and the number of outages so far. Thread-safe."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._lock = Lock()
        self._now_s = now_s
        self._since_s: float | None = None
        self.reason = ""
        self.count = 0

    @property
    def seconds(self) -> float:
        since_s = self._since_s
        return 0.0 if since_s is None else max(0.0, self._now_s() - since_s)

    @property
    def is_active(self) -> bool:
        return self._since_s is not None

    def begin(self, reason: str, since_s: float | None = None) -> None:
        """Record and log once that Kafka is away, since `since_s` (monotonic) or now."""
        with self._lock:
            self.reason = reason
            if self._since_s is not None:
                return
            self._since_s = self._now_s() if since_s is None else since_s
            self.count += 1
        logger.warning(
            "Kafka is away: %s. Waiting for it; nothing is lost",
            reason.rstrip("."),
            extra=json_fields(event="kafka_away"),
        )

    def end(self) -> None:
        with self._lock:
            if self._since_s is None:
                return
            seconds = self._now_s() - self._since_s
            self._since_s = None
            self.reason = ""
        logger.warning(
            "Kafka is back: it was away for %.0f s",
            seconds,
            extra=json_fields(event="kafka_back", seconds=round(seconds, 1)),
        )


#: A wait this long is logged, and makes the worker unready.
HELD_UP_S = 5.0
#: The source of waits that explain others: partitions that are not available.
PARTITIONS = "partitions"
#: The source of waits for transactions of other producers, which nothing else explains or causes.
TRANSACTIONS = "transactions"
_NAMED_MAX = 3


class _Wait(NamedTuple):
    since_s: float
    why: str


class Waits:
    """What the worker waits for while brokers answer, and why, by source. Thread-safe."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._lock = Lock()
        self._now_s = now_s
        self._by_source: dict[str, dict[str, _Wait]] = {}
        self._said_s: float | None = None
        # Logs reported as held up by a transaction, with the time since when.
        self._said_of: dict[str, float] = {}

    def note(
        self,
        source: str,
        waits: Mapping[str, str],
        since_s: Mapping[str, float] | None = None,
    ) -> None:
        """Replace a source's waits; those that continue keep their start.

        `since_s` has known starts (monotonic).
        """
        with self._lock:
            before = self._by_source.pop(source, {})
            now_s = self._now_s()
            known = {what: wait.since_s for what, wait in before.items()} | dict(
                since_s or {}
            )
            if waits:
                self._by_source[source] = {
                    what: _Wait(known.get(what, now_s), why)
                    for what, why in waits.items()
                }

    def drop(self, source: str) -> None:
        """Drop a source's waits without logging: another worker has them now."""
        with self._lock:
            self._by_source.pop(source, None)
            if source == TRANSACTIONS:
                self._said_of = {}

    def has(self, source: str) -> bool:
        return source in self._by_source

    @property
    def seconds(self) -> float:
        """How long the worker has been held up; 0 below `HELD_UP_S`."""
        return self._longest_s(self._all())

    @property
    def reasons(self) -> list[str]:
        """What waits, why and for how long, if the worker is held up: partitions first."""
        return self._named(self._all()) if self.seconds else []

    def _longest_s(self, found: Sequence[tuple[str, str, _Wait]]) -> float:
        """Return for how long the oldest of these waits has lasted; 0 below `HELD_UP_S`."""
        since = [wait.since_s for _, _, wait in found]
        seconds = self._now_s() - min(since) if since else 0.0
        return seconds if seconds >= HELD_UP_S else 0.0

    def _named(self, found: Sequence[tuple[str, str, _Wait]]) -> list[str]:
        """Return a text for every wait: for partitions first, then the oldest."""
        now_s = self._now_s()
        ordered = sorted(
            found, key=lambda one: (one[0] != PARTITIONS, one[2].since_s, one[1])
        )
        return [
            f"{what}: {wait.why} (for {now_s - wait.since_s:.0f} s)"
            for _, what, wait in ordered
        ]

    def _all(self) -> list[tuple[str, str, _Wait]]:
        """Return every wait as its source, what waits, and since when and why."""
        with self._lock:
            sources = self._by_source.items()
            return [
                (of, what, wait)
                for of, waits in sources
                for what, wait in waits.items()
            ]

    def say(self) -> None:
        """Log once that the worker is held up, and once that this is over."""
        found = self._all()
        transactions = [one for one in found if one[0] == TRANSACTIONS]
        waits = [one for one in found if one[0] != TRANSACTIONS]
        self._say_transactions(transactions)
        seconds = self._longest_s(waits)
        now_s = self._now_s()
        # Partitions are looked at every few seconds, and explain the rest.
        explained = self.has(PARTITIONS) or seconds >= 2 * HELD_UP_S
        if seconds and explained and self._said_s is None:
            self._said_s = now_s - seconds
            logger.warning(
                "held up: %s. Waiting for it; nothing is lost",
                _listed(self._named(waits), "; "),
                extra=json_fields(event="held_up"),
            )
        elif self._said_s is not None and not waits:
            took_s = now_s - self._said_s
            self._said_s = None
            logger.warning(
                "no longer held up, after %.0f s",
                took_s,
                extra=json_fields(event="goes_on", seconds=round(took_s, 1)),
            )

    def _say_transactions(self, found: Sequence[tuple[str, str, _Wait]]) -> None:
        """Log every held-up partition log once, and once when it is free again."""
        since_s = {what: wait.since_s for _, what, wait in found}
        with self._lock:
            new = [one for one in found if one[1] not in self._said_of]
            over = {
                what: at for what, at in self._said_of.items() if what not in since_s
            }
            self._said_of = since_s
        if new:
            logger.warning(
                "held up: %s. Nothing is lost; what it hides counts when it ends, as late events",
                _listed(self._named(new), "; "),
                extra=json_fields(event="held_up"),
            )
        if over:
            took_s = self._now_s() - min(over.values())
            logger.warning(
                "no longer held up by an open transaction: %s, after %.0f s",
                _listed(sorted(over), ", "),
                took_s,
                extra=json_fields(event="goes_on", seconds=round(took_s, 1)),
            )

    def forget(self) -> None:
        """Forget all waits: Kafka is away, which explains them."""
        with self._lock:
            self._by_source.clear()
            self._said_s = None
            self._said_of = {}


def _listed(names: Sequence[str], separator: str) -> str:
    """Join the first names, and say how many more there are."""
    named = list(names[:_NAMED_MAX])
    if more := len(names) - len(named):
        named.append(f"and {more} more")
    return separator.join(named)
