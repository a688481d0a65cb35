"""Kafka's outages, shared by all detectors: each is logged once at its start and at its end."""

import logging
import time
from collections.abc import Callable
from threading import Lock

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
