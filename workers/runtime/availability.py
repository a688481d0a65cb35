"""Kafka's outages, and what else the worker waits for, each logged at its start and end."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from threading import Lock
from typing import NamedTuple

from workers.runtime.logs import json_fields

logger = logging.getLogger(__name__)


class Outage:
    """The current outage, if any, and the number of outages so far. Thread-safe."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        """Begin without an outage; `now_s` is a monotonic clock."""
        self._lock = Lock()
        self._now_s = now_s
        self._since_s: float | None = None
        #: Why no broker answers; "" without an outage.
        self.reason = ""
        #: Outages so far, for the metrics.
        self.count = 0

    @property
    def seconds(self) -> float:
        """How long the current outage has lasted; 0 without one."""
        # Read once: another thread may end the outage.
        since_s = self._since_s
        return 0.0 if since_s is None else max(0.0, self._now_s() - since_s)

    @property
    def is_active(self) -> bool:
        return self._since_s is not None

    def begin(self, reason: str, since_s: float | None = None) -> None:
        """Record and log that Kafka is away, since `since_s` (monotonic) or now.

        During an outage only `reason` is replaced.
        """
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
        """Record and log that Kafka answers again, if it was away."""
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
    """What waits, since when (monotonic) and why; `source` is who noted it."""

    source: str
    what: str
    since_s: float
    why: str


class Waits:
    """What the worker waits for while brokers answer, and why, by source. Thread-safe."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        """Begin without waits; `now_s` is a monotonic clock."""
        self._lock = Lock()
        self._now_s = now_s
        self._by_source: dict[str, list[_Wait]] = {}
        # Since when the worker is held up, if `say` has logged it; transactions are logged apart.
        self._logged_since_s: float | None = None
        # Partitions that `say` has logged as held up by a transaction, with the time since when.
        self._logged_transactions: dict[str, float] = {}

    def note(
        self,
        source: str,
        waits: Mapping[str, str],
        since_s: Mapping[str, float] | None = None,
    ) -> None:
        """Replace a source's waits; those that continue keep their start.

        `waits` says why each thing waits; `since_s` has starts that the caller knows (monotonic).
        """
        with self._lock:
            before = self._by_source.pop(source, [])
            now_s = self._now_s()
            starts_s = {wait.what: wait.since_s for wait in before}
            starts_s |= since_s or {}
            if waits:
                self._by_source[source] = [
                    _Wait(source, what, starts_s.get(what, now_s), why)
                    for what, why in waits.items()
                ]

    def drop_transactions(self) -> None:
        """Drop the waits for transactions, unlogged: another worker has the partitions now."""
        with self._lock:
            self._by_source.pop(TRANSACTIONS, None)
            self._logged_transactions = {}

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

    def _longest_s(self, waits: Sequence[_Wait]) -> float:
        """Return for how long the oldest of these waits has lasted; 0 below `HELD_UP_S`."""
        now_s = self._now_s()
        seconds = max((now_s - wait.since_s for wait in waits), default=0.0)
        return seconds if seconds >= HELD_UP_S else 0.0

    def _named(self, waits: Sequence[_Wait]) -> list[str]:
        """Return a text for every wait: those for partitions first, then the oldest."""
        now_s = self._now_s()
        ordered = sorted(
            waits, key=lambda wait: (wait.source != PARTITIONS, wait.since_s, wait.what)
        )
        return [
            f"{wait.what}: {wait.why} (for {now_s - wait.since_s:.0f} s)"
            for wait in ordered
        ]

    def _all(self) -> list[_Wait]:
        with self._lock:
            return list(chain.from_iterable(self._by_source.values()))

    def say(self) -> None:
        """Log once that the worker is held up, and once that this is over."""
        all_waits = self._all()
        self._say_transactions([w for w in all_waits if w.source == TRANSACTIONS])
        waits = [w for w in all_waits if w.source != TRANSACTIONS]
        # 0 below `HELD_UP_S`.
        held_up_s = self._longest_s(waits)
        now_s = self._now_s()
        # Unavailable partitions explain other waits, but are noticed some seconds later: the line
        # waits for them, up to twice `HELD_UP_S`, so that it names the cause.
        is_explained = self.has(PARTITIONS) or held_up_s >= 2 * HELD_UP_S
        if held_up_s and is_explained and self._logged_since_s is None:
            self._logged_since_s = now_s - held_up_s
            logger.warning(
                "held up: %s. Waiting for it; nothing is lost",
                listed(self._named(waits), "; "),
                extra=json_fields(event="held_up"),
            )
        elif self._logged_since_s is not None and not waits:
            took_s = now_s - self._logged_since_s
            self._logged_since_s = None
            logger.warning(
                "no longer held up, after %.0f s",
                took_s,
                extra=json_fields(event="goes_on", seconds=round(took_s, 1)),
            )

    def _say_transactions(self, waits: Sequence[_Wait]) -> None:
        """Log once that a transaction holds a partition up, and once that this is over."""
        since_s = {wait.what: wait.since_s for wait in waits}
        with self._lock:
            logged_s = self._logged_transactions
            new = [wait for wait in waits if wait.what not in logged_s]
            over = {what: logged_s[what] for what in logged_s.keys() - since_s}
            self._logged_transactions = since_s
        if new:
            logger.warning(
                "held up: %s. Nothing is lost; what it hides counts when it ends, as late events",
                listed(self._named(new), "; "),
                extra=json_fields(event="held_up"),
            )
        if over:
            took_s = self._now_s() - min(over.values())
            logger.warning(
                "no longer held up by an open transaction: %s, after %.0f s",
                listed(sorted(over), ", "),
                took_s,
                extra=json_fields(event="goes_on", seconds=round(took_s, 1)),
            )

    def forget(self) -> None:
        """Forget all waits: Kafka is away, which explains them."""
        with self._lock:
            self._by_source.clear()
            self._logged_since_s = None
            self._logged_transactions = {}


def listed(names: Sequence[str], separator: str) -> str:
    """Join the first three names, and say how many more there are."""
    named = list(names[:_NAMED_MAX])
    if more := len(names) - len(named):
        named.append(f"and {more} more")
    return separator.join(named)
