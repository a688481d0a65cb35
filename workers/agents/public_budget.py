"""Keeps `<name>.budget`, which tells readers about the budget, up to date (`privacy.public`).

The owner of partition 0 notes its progress when an epoch is charged or first published, and when it
starts; the other owners publish the same ticks. A thread of its own computes the record and writes
it, so that no tick waits for it. A record replaces the one before: to write it again, late, or from
two workers changes nothing for its readers, and it has no part in what is published otherwise.
"""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import msgspec
from confluent_kafka import KafkaException

from workers.agents.progress import read_progress
from workers.kafka.answered import AnsweredProducer
from workers.kafka.clients import Connection
from workers.privacy.public import KEY, public_budget
from workers.privacy.total import Charge
from workers.runtime.errors import QuietcountError
from workers.runtime.errors import describe as describe_error
from workers.settings.settings import Settings

logger = logging.getLogger(__name__)

#: The record is written again at this interval: another one may have been lost, or come too late.
AGAIN_S = 600.0
RETRY_S = 5.0
_ANSWER_S = 10.0
#: How long the end of a worker waits for its last record.
_LAST_S = 3.0


class Noted(NamedTuple):
    """A progress record as stored, and the charges of others against the same budget.

    The writer's thread computes the published record from both.
    """

    progress: bytes
    others: tuple[Charge, ...]


class BudgetWriter:
    """Writes the record that follows from what was noted last; `note` is for any thread."""

    def __init__(self, settings: Settings, connection: Connection) -> None:
        self._settings = settings
        self._producer = AnsweredProducer(
            connection, _ANSWER_S, **{"enable.idempotence": True}
        )
        # Guards `_noted`, which is not processed yet, and `_ended`; notified when either changes.
        self._changed = threading.Condition()
        self._noted: Noted | None = None
        self._ended = False
        # Only the writing thread uses these: the record that is still to be written, the one
        # written last, and the failure logged last (None after a success).
        self._unwritten: bytes | None = None
        self._written: bytes | None = None
        self._failure: str | None = None

    def note(self, progress: bytes, others: Sequence[Charge]) -> None:
        """Have the record written that follows from a stored progress record."""
        with self._changed:
            self._noted = Noted(progress, tuple(others))
            self._changed.notify_all()

    @contextmanager
    def running(self) -> Iterator[None]:
        """While the block runs, write what is noted; at its end, what is not yet written."""
        thread = threading.Thread(target=self._write_all, name="budget", daemon=True)
        thread.start()
        try:
            yield
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()
            # Wait for a write in progress and the last one: the client must not outlive Python.
            thread.join(_ANSWER_S + 2 * _LAST_S)

    def _write_all(self) -> None:
        """Write what is noted until the block ends; repeat the last record every `AGAIN_S`.

        Retry a failed write after `RETRY_S`. Runs in the thread that `running` starts.
        """
        # Nothing to repeat yet: wait for the first note.
        wait_s: float | None = None
        while True:
            with self._changed:
                has_news = self._changed.wait_for(
                    lambda: self._noted is not None or self._ended, wait_s
                )
                ended = self._ended
            # `wait_s` has passed: repeat the last record, unless one is still to be written.
            if not has_news and self._unwritten is None:
                self._unwritten = self._written
            is_written = self.write(_LAST_S if ended else _ANSWER_S)
            if ended:
                return
            wait_s = AGAIN_S if is_written else RETRY_S

    def write(self, answer_s: float) -> bool:
        """Write the newest note's record, or retry one that failed; return whether it is written.

        True also if there is nothing to write. `answer_s` is how long to wait for the broker.
        """
        with self._changed:
            noted = self._noted
            self._noted = None
        if noted is not None:
            self._unwritten = self._record(noted)
        record = self._unwritten
        if record is None:
            return True
        topic = self._settings.budget_topic
        # Why Kafka may not have the record; None: it has.
        failure: str | None
        try:
            failure = self._producer.produce(
                topic, record, answer_s, key=KEY, partition=0
            )
        except (KafkaException, BufferError) as error:
            failure = describe_error(error)
        self._report(failure)
        if failure is None:
            self._written = record
            self._unwritten = None
        return failure is None

    def _record(self, noted: Noted) -> bytes | None:
        """Compute the record to publish; None before the first tick, or if that fails (logged)."""
        try:
            budget = public_budget(
                self._settings, read_progress(noted.progress), noted.others
            )
        except QuietcountError as error:
            self._report(describe_error(error))
            return None
        return None if budget is None else msgspec.json.encode(budget)

    def _report(self, failure: str | None) -> None:
        """Log a failure, unless it was the last one logged."""
        if failure is not None and failure != self._failure:
            logger.warning(
                "topic %s: what is left of the budget cannot be written for readers now: %s",
                self._settings.budget_topic,
                failure,
            )
        self._failure = failure
