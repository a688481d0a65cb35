"""Kafka's outages, and what else the worker waits for, each logged at its start and end."""

import logging
import time
from collections.abc import Callable, Mapping
from threading import Lock
from typing import NamedTuple

from workers.runtime.logs import json_fields

logger = logging.getLogger(__name__)


class Outage:
    """The current outage, if any, and the number of outages so far. Thread-safe."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._lock, self._now_s = Lock(), now_s
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
            seconds, self._since_s, self.reason = self._now_s() - self._since_s, None, ""
        logger.warning(
            "Kafka is back: it was away for %.0f s",
            seconds,
            extra=json_fields(event="kafka_back", seconds=round(seconds, 1)),
        )


#: A wait this long is logged, and makes the worker unready.
HELD_UP_S = 5.0
#: The source of waits that explain others: partitions that are not available.
PARTITIONS = "partitions"
_NAMED_MAX = 3


class _Wait(NamedTuple):
    since_s: float
    why: str


class Waits:
    """What the worker waits for while brokers answer, and why, by source. Thread-safe."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._lock, self._now_s = Lock(), now_s
        self._by_source: dict[str, dict[str, _Wait]] = {}
        self._said_s: float | None = None

    def note(self, source: str, waits: Mapping[str, str]) -> None:
        """Replace what a source waits for; what it waited for before keeps its beginning."""
        with self._lock:
            before, now_s = self._by_source.pop(source, {}), self._now_s()
            if waits:
                self._by_source[source] = {
                    what: _Wait(before[what].since_s if what in before else now_s, why)
                    for what, why in waits.items()
                }

    def has(self, source: str) -> bool:
        return source in self._by_source

    @property
    def seconds(self) -> float:
        """How long the worker has been held up; 0 below `HELD_UP_S`."""
        since = [wait.since_s for _, _, wait in self._all()]
        seconds = self._now_s() - min(since) if since else 0.0
        return seconds if seconds >= HELD_UP_S else 0.0

    @property
    def reasons(self) -> list[str]:
        """What waits, why and for how long, if the worker is held up: partitions first."""
        if not self.seconds:
            return []
        found, now_s = self._all(), self._now_s()
        found.sort(key=lambda one: (one[0] != PARTITIONS, one[2].since_s, one[1]))
        return [f"{what}: {wait.why} (for {now_s - wait.since_s:.0f} s)" for _, what, wait in found]

    def _all(self) -> list[tuple[str, str, _Wait]]:
        with self._lock:
            sources = self._by_source.items()
            return [(of, what, wait) for of, waits in sources for what, wait in waits.items()]

    def say(self) -> None:
        """Log once that the worker is held up, and once that this is over."""
        seconds, now_s = self.seconds, self._now_s()
        # Partitions are looked at every few seconds, and explain the rest.
        explained = self.has(PARTITIONS) or seconds >= 2 * HELD_UP_S
        if seconds and explained and self._said_s is None:
            self._said_s, reasons = now_s - seconds, self.reasons
            named = reasons[:_NAMED_MAX]
            if more := len(reasons) - len(named):
                named.append(f"and {more} more")
            logger.warning(
                "held up: %s. Waiting for it; nothing is lost",
                "; ".join(named),
                extra=json_fields(event="held_up"),
            )
        elif self._said_s is not None and not self._by_source:
            took_s, self._said_s = now_s - self._said_s, None
            logger.warning(
                "no longer held up, after %.0f s",
                took_s,
                extra=json_fields(event="goes_on", seconds=round(took_s, 1)),
            )

    def forget(self) -> None:
        """Forget all waits: Kafka is away, which explains them."""
        with self._lock:
            self._by_source.clear()
            self._said_s = None
