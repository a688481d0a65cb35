"""Other workers on the cluster that count the same events, found by the state that they left.

A worker that is renamed counts the events topic from its beginning: what the old name charged is
in the old state topic, and counts. So does any other worker whose state this principal may read,
unless the settings name it in `privacy.uncounted_workers`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence

from confluent_kafka import KafkaError, KafkaException

from workers.kafka.clients import Connection, forbidden
from workers.kafka.reading import Partition
from workers.kafka.topics import partitions_on
from workers.pipeline.merge import ReleaseProgress
from workers.pipeline.progress import read_tails
from workers.privacy.ceiling.charges import Charge, charges_of, topics_of
from workers.runtime.errors import StateRefused
from workers.settings.settings import Settings, internal_topics
from workers.settings.topic_names import TopicNames

logger = logging.getLogger(__name__)


class OtherWorkers:
    """What other workers have charged for the same events; every owner partition's thread asks."""

    def __init__(self, settings: Settings, connection: Connection) -> None:
        self._settings, self._connection = settings, connection
        self._lock = threading.Lock()
        # Which events a worker counts never changes while its topics live.
        self._elsewhere: set[str] = set()
        self._told: set[str] = set()

    def charges(self) -> list[Charge]:
        """Return what they have charged by now.

        Raises:
            StateRefused: the state of one is of another version: what it charged is not known.
            KafkaException: it cannot be read.
        """
        with self._lock:
            there = partitions_on(self._connection)
            found: list[Charge] = []
            for worker, states in self._states(there).items():
                if not any(overlap(topics_of(state), self._settings.events.topics, there) for state in states):
                    if states:
                        self._elsewhere.add(worker)
                    continue
                if self._untold(worker):
                    logger.warning("worker %s counts the same events: what it charges counts under this ceiling", worker)
                found += [charge for state in states for charge in charges_of(worker, state)]
            return found

    def _states(self, there: Mapping[str, int]) -> dict[str, list[ReleaseProgress]]:
        """Return the progress of every owner partition of each worker that may count the same."""
        places: dict[str, list[Partition]] = {}
        for worker in self._workers(there):
            state = internal_topics(worker)[2]
            places[worker] = [(state, partition) for partition in range(there[state])]
        try:
            tails = read_tails(self._connection, [where for each in places.values() for where in each])
            return {worker: [tails[where] for where in each if where in tails] for worker, each in places.items()}
        except (StateRefused, KafkaException):
            return {worker: self._state(worker, each) for worker, each in places.items()}  # which one is it?

    def _state(self, worker: str, places: Sequence[Partition]) -> list[ReleaseProgress]:
        try:
            return list(read_tails(self._connection, places).values())
        except StateRefused as error:
            raise StateRefused(
                f"what worker {worker} has charged is not known ({error}): upgrade, or if it does not count the same "
                "events, name it in privacy.uncounted_workers"
            ) from error
        except KafkaException as error:
            if _gone(error):
                return []
            if forbidden(error) is None:
                raise
            if self._untold(worker):
                logger.warning(
                    "what worker %s has charged may not be read here, so it does not count under this ceiling", worker
                )
            return []

    def _workers(self, there: Mapping[str, int]) -> Iterator[str]:
        own, left_out = self._settings.worker.name, self._settings.privacy.uncounted_workers
        for topic in there:
            worker = topic.removesuffix(".release-state")
            if worker not in (topic, own, *left_out, *self._elsewhere) and all(name in there for name in internal_topics(worker)[:3]):
                yield worker

    def _untold(self, worker: str) -> bool:
        """Return whether nothing was said of a worker yet."""
        told = worker in self._told
        self._told.add(worker)
        return not told


def overlap(counted: set[str], events: TopicNames, there: Iterable[str] = ()) -> bool:
    """Tell whether names and regular expressions of topics mean some of the events.

    Args:
        counted: of another worker.
        events: of this one.
        there: the topics on the cluster, where either has an expression.
    """
    wanted = {events.pattern} if events.pattern is not None else set(events.names)
    if counted & wanted:
        return True

    def means(entries: Iterable[str], topic: str) -> bool:
        return any(TopicNames.of(entry).matches(topic) if entry.startswith("^") else entry == topic for entry in entries)

    names = {entry for entry in (*counted, *wanted, *there) if not entry.startswith("^")}
    return any(means(counted, name) and means(wanted, name) for name in names)


def _gone(error: KafkaException) -> bool:
    """Return whether a topic was deleted since it was listed."""
    return error.args[0].code() in (KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)
