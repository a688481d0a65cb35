"""Ceiling enforcement for one owner partition: nothing that would exceed the ceiling is published.

The ceiling (`privacy.max_epsilon`, `max_delta`) bounds what all histograms together may cost one
event or user in a period; a charge is the cost of epochs of one histogram. An owner partition is a
partition of the contributions topic, which has a share of the stream keys.

The partition's own charges are in its progress; those of other partitions and workers on the same
events are in their state topics. A renamed worker counts the events topic from its beginning, so
charges under the old name count too, as does every other worker with a state that this principal
may read, unless `privacy.uncounted_workers` lists it.
"""

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from confluent_kafka import KafkaException

from workers.agents.progress import read_newest
from workers.kafka.clients import Connection, forbidden
from workers.kafka.reading import Partition, bounds_of, reader
from workers.kafka.topics import partition_counts
from workers.kafka.verdicts import Verdict, verdict_of
from workers.pipeline.merge import ReleaseProgress
from workers.privacy.ceiling import (
    Ceiling,
    FullestWindow,
    charges_of,
    merge,
    parts_of,
    topics_of,
)
from workers.privacy.total import EVER, Charge
from workers.runtime.errors import CeilingReached, StateRefused
from workers.runtime.printing import iso_time
from workers.settings.settings import Settings, TopicNames, stage_topics

logger = logging.getLogger(__name__)


class OtherWorkers:
    """Charges of other workers for the same events; all owner partitions' threads share it."""

    def __init__(self, settings: Settings, connection: Connection) -> None:
        self.settings = settings
        self.connection = connection
        self._lock = threading.Lock()
        # Workers that count other events. `_workers` skips them: a worker's events never change
        # while its topics exist.
        self._elsewhere: set[str] = set()
        # Workers that a warning has named.
        self._warned: set[str] = set()

    def charges(self) -> list[Charge]:
        """Read the current charges of the workers that count any of this worker's events topics.

        Raise StateRefused or KafkaException if some are unreadable.
        """
        with self._lock:
            counts = partition_counts(self.connection)
            charges: list[Charge] = []
            for worker, states in self._states(counts).items():
                topics = self.settings.events.topics
                if not any(
                    topics_overlap(topics_of(state), topics, counts) for state in states
                ):
                    # Without a state, a worker's events are not known yet: look at it again next
                    # time.
                    if states:
                        self._elsewhere.add(worker)
                    continue
                if self._first_warning(worker):
                    logger.warning(
                        "worker %s counts the same events: its charges count under this ceiling",
                        worker,
                    )
                charges += [
                    charge for state in states for charge in charges_of(worker, state)
                ]
            return charges

    def _states(self, counts: Mapping[str, int]) -> dict[str, list[ReleaseProgress]]:
        """Return the progress of other workers' owner partitions, by worker.

        `counts` has the partition counts of all topics.
        """
        places: dict[str, list[Partition]] = {}
        for worker in self._workers(counts):
            state = stage_topics(worker).release_state
            places[worker] = [(state, partition) for partition in range(counts[state])]
        try:
            newest = read_newest(
                self.connection, list(chain.from_iterable(places.values()))
            )
            return {
                worker: [newest[where] for where in partitions if where in newest]
                for worker, partitions in places.items()
            }
        except (StateRefused, KafkaException):
            # One by one, so that an unreadable worker is named, or left out where that is allowed.
            return {
                worker: self._state(worker, partitions)
                for worker, partitions in places.items()
            }

    def _state(self, worker: str, places: Sequence[Partition]) -> list[ReleaseProgress]:
        """Return the progress of one worker's owner partitions.

        Nothing if its topic has gone or may not be read: then its charges do not count here.
        """
        try:
            return list(read_newest(self.connection, places).values())
        except StateRefused as error:
            raise StateRefused(
                f"the charges of worker {worker} are unknown ({error}): upgrade, or name it in "
                "privacy.uncounted_workers if it does not count the same events"
            ) from error
        except KafkaException as error:
            if verdict_of(error) is Verdict.MISSING:
                return []
            if forbidden(error) is None:
                raise
            if self._first_warning(worker):
                logger.warning(
                    "no right to read the charges of worker %s, so they do not count here",
                    worker,
                )
            return []

    def _workers(self, counts: Mapping[str, int]) -> Iterator[str]:
        """Yield other workers that may count the same events: those with topics on this cluster.

        `counts` has the partition counts of all topics.
        """
        own_name = self.settings.worker.name
        left_out = self.settings.privacy.uncounted_workers
        for topic in counts:
            # Any topic without this ending stays as it is, and names no worker.
            worker = topic.removesuffix(".release-state")
            stages = stage_topics(worker)
            needed = {
                stages.contributions,
                stages.contribute_state,
                stages.release_state,
            }
            is_other = worker not in (topic, own_name, *left_out, *self._elsewhere)
            if is_other and needed <= counts.keys():
                yield worker

    def _first_warning(self, worker: str) -> bool:
        """Return whether a worker's first warning is due, and record it."""
        told = worker in self._warned
        self._warned.add(worker)
        return not told


def topics_overlap(
    counted: set[str], events: TopicNames, existing: Iterable[str] = ()
) -> bool:
    """Return whether a worker that counts the topics `counted` may count one of `events`.

    Entries of `counted` are names and regular expressions ("^..."). Whether two expressions have a
    topic in common is tested with the names in both sets and the `existing` topics.
    """
    named = {events.pattern} if events.pattern is not None else set(events.names)
    if counted & named:
        return True

    patterns = [TopicNames.of(entry) for entry in counted]
    return any(
        (topic in counted or any(pattern.matches(topic) for pattern in patterns))
        and (topic in named or events.matches(topic))
        for topic in {*counted, *named, *existing}
        if not topic.startswith("^")
    )


# Most charges that a message names.
_CHARGES_NAMED = 4


@dataclass
class CeilingGuard:
    """The ceiling of owner partition `owner`, used only by its thread.

    `owners` is how many owner partitions this worker knows; there may be more by now.
    """

    ceiling: Ceiling
    owner: int
    owners: int
    others: OtherWorkers
    #: Of all other partitions and workers, at the last `refresh`.
    charges: Sequence[Charge] = ()
    # Whether `refresh` has looked for lost charges.
    _refreshed = False

    def refresh(self) -> None:
        """Read the current charges of all other partitions and workers.

        Raise CeilingReached if this worker's own charges are lost, StateRefused or KafkaException
        if others are unreadable.
        """
        # On the first call only: if there are snapshots but no charges, the state topic was lost.
        # Look for snapshots first, since a charge is always written before its snapshots.
        published = None if self._refreshed else self._published()
        connection = self.others.connection
        state = self.others.settings.release_state_topic
        number = max(self.owners, partition_counts(connection).get(state, 0))
        newest = read_newest(connection, [(state, owner) for owner in range(number)])
        if published is not None and not newest:
            raise CeilingReached(
                f"{self.ceiling}: topic {published} holds snapshots, but "
                f"{self.others.settings.release_state_topic} has no charge for them: it was deleted or "
                "emptied. Restore it, or delete all topics of this worker, after the last period "
                "in which they were published"
            )
        self._refreshed = True
        worker = self.others.settings.worker.name
        # `check` adds this partition's own charges, which may be newer than those read here.
        # `where` is (topic, partition).
        others = [newest[where] for where in newest if where[1] != self.owner]
        charges = (charges_of(worker, state, self.others.settings) for state in others)
        self.charges = [*chain.from_iterable(charges), *self.others.charges()]

    def check(self, progress: ReleaseProgress, beginning: Mapping[str, int]) -> None:
        """Raise CeilingReached if the epochs about to begin would exceed the ceiling in a period.

        `beginning` has the number of each histogram's epoch. Their charges are added to those in
        this owner's `progress` and those from the last `refresh`.
        """
        settings = self.others.settings
        of_owner = charges_of(settings.worker.name, progress, settings, beginning)
        charges = merge([*of_owner, *self.charges])
        generations = {config.name: config.generation for config in settings.histograms}
        for name, epoch in beginning.items():
            generation = (settings.worker.name, name, generations[name])
            [charge] = [one for one in of_owner if one.generation_id == generation]
            # In ms. A histogram's only epoch, which has no end, begins at -EVER.
            begin, end = charge.span(epoch)
            # Of all periods that overlap the epoch, the most expensive one.
            window = self.ceiling.fullest(charges, begin, end)
            if not self.ceiling.holds(window.epsilon):
                dated = "" if begin == -EVER else f", from {iso_time(begin)},"
                what = f"epoch {epoch:,} of histogram {name!r}{dated}"
                if charge.charged_once:
                    what = f"histogram {name!r}, charged once and for ever,"
                unit = self.ceiling.unit
                cost = self._cost_text(window, charges)
                raise CeilingReached(
                    f"{self.ceiling}: {what} would bring one {unit} to {cost}, "
                    f"with {describe_charges(charges, window, unit)}. No tick of it is published, and its "
                    "contributions wait: raise the ceiling, undo the change, or begin later (docs/budget.md)"
                )

    def _cost_text(self, window: FullestWindow, charges: Sequence[Charge]) -> str:
        """Return the cost of a period as text: its epsilon at the ceiling's delta.

        An epsilon of None means that there is no guarantee. If a charge for another unit is the
        reason, name it.
        """
        if window.epsilon is not None:
            return f"epsilon {window.epsilon:.6g} at that delta"
        for charge, _cost in parts_of(charges, window.counts, self.ceiling.unit):
            if charge.unit != self.ceiling.unit:
                return f"no epsilon at that delta ({charge} protected another unit)"
        return "no epsilon at that delta"

    def _published(self) -> str | None:
        """Return a topic of this worker to which snapshots were written; None if there is none.

        Snapshots without a charge show that charges were lost.
        """
        settings = self.others.settings
        with reader(self.others.connection, uncommitted=True) as consumer:
            topics = consumer.list_topics(timeout=60).topics
            for topic in settings.output_topics:
                for partition in topics[topic].partitions if topic in topics else ():
                    # The end offset stays above 0 even after all records have expired.
                    if bounds_of(consumer, topic, partition)[1] > 0:
                        return topic
        return None


def describe_charges(
    charges: Sequence[Charge], window: FullestWindow, unit: str
) -> str:
    """List the charges in a window for a message: the first few, and how many more.

    A charge without epochs in the window is listed if it took a sample, which costs too.
    """
    names = []
    for charge, cost in parts_of(charges, window.counts, unit):
        times = f" ({cost.times:,} epochs)" if cost.times > 1 else ""
        names.append(f"{charge}{' (its sample)' if cost.only_sample else times}")
    listed = ", ".join(names[:_CHARGES_NAMED])
    further = len(names) - _CHARGES_NAMED
    return listed if further <= 0 else f"{listed} and {further:,} more"
