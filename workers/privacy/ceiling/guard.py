"""Keeps the ceiling of one owner partition: nothing that would exceed it is published.

What the partition has charged is in its own progress. What the others have, of this worker and of
every other one that counts the same events, is read from their state topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from workers.kafka.clients import Connection
from workers.kafka.reading import bounds_of, reader
from workers.pipeline.merge import ReleaseProgress
from workers.pipeline.progress import read_tails
from workers.privacy.ceiling.ceiling import Ceiling, Held, parts_of
from workers.privacy.ceiling.charges import EVER, Charge, charges_of, merged
from workers.privacy.ceiling.others import OtherWorkers
from workers.runtime.errors import CeilingReached
from workers.settings.settings import Settings

# A message names so many of what is charged.
_NAMED = 4


class CeilingGuard:
    """The ceiling of one owner partition, used by its thread."""

    def __init__(
        self, ceiling: Ceiling, settings: Settings, connection: Connection, owner: int, owners: int, others: OtherWorkers
    ) -> None:
        """Take the settings, which owner partition of how many it is, and what finds the others."""
        self._ceiling, self._settings, self._connection = ceiling, settings, connection
        self._owner, self._others = owner, others
        state = settings.release_state_topic
        self._partitions = [(state, partition) for partition in range(owners)]
        self._charges: list[Charge] = []
        self._looked = False

    def look(self) -> None:
        """Read what everybody else has charged by now.

        Raises:
            CeilingReached: it is not known what this worker has charged.
            StateRefused: somebody's state is of another version.
            KafkaException: it cannot be read.
        """
        # Before the state: whatever was published is charged there by now.
        published = None if self._looked else self._published()
        tails = read_tails(self._connection, self._partitions)
        if published is not None and not tails:
            raise CeilingReached(
                f"{self._ceiling}: topic {published} holds snapshots, and {self._settings.release_state_topic} says of "
                "none what they cost: it was deleted or emptied. Restore it, or delete all topics of this worker, "
                "after the last period in which they were published"
            )
        self._looked, own = True, self._settings.worker.name
        self._charges = [
            *(
                charge
                for (_, partition), progress in tails.items()
                if partition != self._owner
                for charge in charges_of(own, progress, self._settings)
            ),
            *self._others.charges(),
        ]

    def check(self, progress: ReleaseProgress, beginning: Mapping[str, int]) -> None:
        """Check the periods that touch an epoch of each histogram, by what was looked at last.

        Args:
            progress: of this owner partition.
            beginning: an epoch of each histogram, which is charged with what is charged already.

        Raises:
            CeilingReached: a period would hold more than it may.
        """
        own = charges_of(self._settings.worker.name, progress, self._settings, beginning)
        charges = merged([*own, *self._charges])
        for name, epoch in beginning.items():
            [config] = [one for one in self._settings.histograms if one.name == name]
            [charge] = [one for one in own if (one.histogram, one.generation) == (name, config.generation)]
            held = self._ceiling.fullest(charges, *charge.span(epoch))
            if not self._ceiling.holds(held.epsilon):
                begin, _ = charge.span(epoch)
                raise CeilingReached(
                    f"{self._ceiling}: epoch {epoch:,} of histogram {charge.histogram!r}{_dated(begin)} would bring one "
                    f"{self._ceiling.unit} to {self._sum(held, charges)}, with {named(charges, held, self._ceiling.unit)}. No tick "
                    "of it is published, and its contributions wait: raise the ceiling, take back what was added, or begin "
                    "later (docs/budget.md)"
                )

    def _sum(self, held: Held, charges: Sequence[Charge]) -> str:
        if held.epsilon is not None:
            return f"epsilon {held.epsilon:.6g} at that delta"
        paid = [charge for charge, count in zip(charges, held.counts, strict=True) if count]
        unlike = next((charge for charge in paid if charge.unit != self._ceiling.unit), None)
        return "no epsilon at that delta" + ("" if unlike is None else f" ({unlike} protected another unit)")

    def _published(self) -> str | None:
        """Return an output topic with records of this worker; None where there is none."""
        settings = self._settings
        with reader(self._connection, uncommitted=True) as consumer:
            topics = consumer.list_topics(timeout=60).topics
            for config in settings.histograms:
                topic = settings.output_topic(config)
                for partition in topics[topic].partitions if topic in topics else ():
                    if bounds_of(consumer, topic, partition)[1] > 0:
                        return topic
        return None


def named(charges: Iterable[Charge], held: Held, unit: str) -> str:
    """Return what a window holds, in words."""
    found = [
        f"{charge}{f' ({part.times:,} epochs)' if part.times > 1 else ''}"
        for charge, part in parts_of(list(charges), held.counts, unit)
    ]
    more = f" and {len(found) - _NAMED:,} more" if len(found) > _NAMED else ""
    return ", ".join(found[:_NAMED]) + more


def _dated(begin: int) -> str:
    return "" if begin == -EVER else f", from {moment(begin)},"


def moment(milliseconds: int) -> str:
    """Return a time as text."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    except (OverflowError, ValueError):  # a tick edge beyond the year 9999
        return f"{milliseconds:,} ms since 1970"
