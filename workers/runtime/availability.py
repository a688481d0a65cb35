"""Whether Kafka is away: one line when it goes, one when it is back, and figures in between.

Who notices is elsewhere (`kafka/outages.py`, the hand-over, the dashboard's feed); this only keeps
what they said, so that nobody says it twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from threading import Lock

from workers.runtime.logs import about

logger = logging.getLogger(__name__)


class Away:
    """An outage, or none; safe to use from any thread."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._lock, self._now_s = Lock(), now_s
        self._since_s: float | None = None
        #: Why, in the client's words; empty while Kafka answers.
        self.reason = ""
        #: How many outages there were.
        self.outages = 0

    @property
    def seconds(self) -> float:
        """Return how long Kafka has been away; 0: it is not."""
        since_s = self._since_s
        return 0.0 if since_s is None else max(0.0, self._now_s() - since_s)

    @property
    def is_so(self) -> bool:
        """Return whether Kafka is away."""
        return self._since_s is not None

    def lost(self, reason: str, since_s: float | None = None) -> None:
        """Note that Kafka is away, since now or a time of the monotonic clock, and say so once."""
        with self._lock:
            self.reason = reason
            if self._since_s is not None:
                return
            self._since_s = self._now_s() if since_s is None else since_s
            self.outages += 1
        logger.warning(
            "Kafka is away: %s. Waiting for it; nothing is lost",
            reason.rstrip("."),
            extra=about(event="kafka_away"),
        )

    def found(self) -> None:
        """Note that Kafka answers, and say for how long it was away, if it was."""
        with self._lock:
            if self._since_s is None:
                return
            seconds, self._since_s, self.reason = self._now_s() - self._since_s, None, ""
        logger.warning(
            "Kafka is back: it was away for %.0f s",
            seconds,
            extra=about(event="kafka_back", seconds=round(seconds, 1)),
        )
