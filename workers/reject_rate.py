"""Whether nearly all records of a topic are rejected: said when it begins, and when it is over.

Counted are records that some histogram looks at, over the last minute. It begins as soon as there
are enough of them, and ends where most are accepted, far below where it began, so that it does not
come and go; or when nothing was read for long.
"""

from __future__ import annotations

import collections
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock

logger = logging.getLogger(__name__)

WINDOW_S = 60.0
#: Of so many records at least.
LEAST = 100
#: It begins above one share of rejects, and ends at the other.
BEGINS, ENDS = 0.9, 0.5
#: It is over when nothing was read for so long.
QUIET_S = 600.0
_STEP_S = 5.0


@dataclass(slots=True)
class _Step:
    """What was read in a few seconds."""

    number: int
    records: int = 0
    rejects: collections.Counter[str] = field(default_factory=collections.Counter)


@dataclass(slots=True)
class _Topic:
    """What was read of a topic within the window, and whether nearly all of it is rejected."""

    steps: deque[_Step] = field(default_factory=deque)
    rejecting: str | None = None
    last_s: float = 0.0


class RejectRate:
    """The shares of rejects, by topic; safe to use from any thread."""

    def __init__(self) -> None:
        self._lock, self._topics = Lock(), dict[str, _Topic]()

    def note(self, topic: str, now_s: float, records: int, rejects: Mapping[str, int]) -> None:
        """Note what a batch brought, and say in the log what changes by it.

        Args:
            topic: of the events.
            now_s: monotonic clock.
            records: those that some histogram looks at, and those that are rejected.
            rejects: how many of them, by reason.
        """
        if not records:
            return
        with self._lock:
            of_topic = self._topics.setdefault(topic, _Topic())
            number, steps = int(now_s // _STEP_S), of_topic.steps
            if not steps or steps[-1].number < number:
                steps.append(_Step(number))
            steps[-1].records += records
            steps[-1].rejects.update(rejects)
            while steps[0].number <= number - WINDOW_S / _STEP_S:
                steps.popleft()
            of_topic.last_s = now_s
            self._decide(topic, of_topic)

    def reason(self, topic: str, now_s: float) -> str | None:
        """Return the commonest reason while nearly all of a topic is rejected, else None."""
        with self._lock:
            of_topic = self._topics.get(topic)
            if of_topic is None:
                return None
            if of_topic.rejecting is not None and now_s - of_topic.last_s > QUIET_S:
                self._over(topic, of_topic)
            return of_topic.rejecting

    def _decide(self, topic: str, of_topic: _Topic) -> None:
        records = sum(step.records for step in of_topic.steps)
        rejects = sum((step.rejects for step in of_topic.steps), collections.Counter[str]())
        number = rejects.total()
        if number > BEGINS * records and (records >= LEAST or of_topic.rejecting is not None):
            [(reason, _)] = rejects.most_common(1)
            if of_topic.rejecting is None:
                logger.error(
                    "%s: nearly all records are rejected (%d of %d within a minute), most of them: %s. "
                    "`quietcount check -c FILE` says why, with examples",
                    topic,
                    number,
                    records,
                    reason,
                )
            of_topic.rejecting = reason
        elif number <= ENDS * records and of_topic.rejecting is not None:
            self._over(topic, of_topic)

    def _over(self, topic: str, of_topic: _Topic) -> None:
        of_topic.rejecting = None
        logger.warning("%s: it is over that nearly all records are rejected", topic)
