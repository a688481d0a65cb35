"""Partitions that topics get while workers run: who notices, and when they count.

Every worker looks at the topics' partition counts. On growth it adds the missing partitions to the
state topic, and asks the shard of source partition 0, if it is here, to let the new ones join
(`SourceShard.grow`). A worker that finds in that shard's progress partitions that it does not know
restarts its run, and so numbers and reads them (decisions/0031). The same holds for partitions of
the contributions topic, which are owners: stage 1's source partition 0 tells from when on
(`ContributeShard.grow_owners`, decisions/0034).
"""

import logging
from collections.abc import Callable, Mapping, Sequence

from workers.agents.counted import counted_owners, stored_progress
from workers.kafka.clients import Connection
from workers.kafka.topics import add_partitions
from workers.mechanisms.config.ticks import TickGrid
from workers.pipeline.growth.epochs import next_epoch
from workers.pipeline.growth.owners import Owners
from workers.pipeline.growth.sources import Sources, SourceTopic
from workers.runtime.errors import KafkaAway, SettingsError

logger = logging.getLogger(__name__)


class _Noticing:
    _connection: Connection
    _said = ""

    def _say(self, text: str, *parts: object) -> None:
        if text % parts != self._said:
            self._said = text % parts
            logger.warning(text, *parts)

    def _add(self, topic: str, partitions: int, why: tuple[object, ...]) -> None:
        try:
            add_partitions(self._connection, topic, partitions)
        except (SettingsError, KafkaAway) as error:
            self._say("%s, but only %d %s are counted: %s", *why, error)


class OwnerGrowth(_Noticing):
    """What a worker does, during one run, about partitions that the contributions topic gets."""

    def __init__(
        self,
        connection: Connection,
        owners: Owners,
        *,
        contributions: str,
        contribute_state: str,
        release_state: str,
        epochs: Sequence[TickGrid],
        grow: Callable[[int], object],
        restart: Callable[[], object],
    ) -> None:
        """`epochs` are those of all histograms; `grow` asks the shard of source partition 0."""
        self._connection = connection
        self._owners = owners
        self._contributions = contributions
        self._state = contribute_state
        self._release_state = release_state
        self._epochs = epochs
        self._grow = grow
        self._restart = restart
        self._seen = 0

    def look(self, counts: Mapping[str, int]) -> None:
        """Compare the counted owners with the partitions on the cluster, by topic."""
        number = counts.get(self._contributions, 0)
        counted = self._owners.number
        if number <= counted:
            return
        what = f"topic {self._contributions} has {number} partitions now"
        why = what, counted, "owner partitions"
        owners = counted_owners(
            self._connection, self._state, counts.get(self._state, 0), counted
        )
        if len(owners.grown) > len(self._owners.grown):
            logger.info("%s: restarting to know the new owners", what)
            self._restart()
        elif number % counted:
            self._say(
                "%s, but only %d %s are counted: %s", *why, f"no multiple of {counted}"
            )
        elif next_epoch(self._epochs, 0) is None:
            never = "epochs of all histograms never begin together"
            self._say("%s, but only %d %s are counted: %s", *why, never)
        elif counts.get(self._release_state, 0) < number:
            self._add(self._release_state, number, why)
        elif self._seen != number:
            self._seen = number  # by then, every broker knows of them
        else:
            self._say(
                "%s: stream keys move to the new owners where an epoch begins", what
            )
            self._grow(number)


class Growth(_Noticing):
    """What a worker does, during one run, about partitions that have not joined."""

    def __init__(
        self,
        connection: Connection,
        state: str,
        sources: Sources,
        *,
        grow: Callable[[Sequence[SourceTopic]], object],
        restart: Callable[[], object],
        refusal: str | None = None,
    ) -> None:
        """`grow` asks the shard of source partition 0; `refusal`: why none can join, if so."""
        self._connection = connection
        self._state = state
        self._sources = sources
        self._grow = grow
        self._restart = restart
        self._refusal = refusal

    def look(self, counts: Mapping[str, int]) -> None:
        """Compare the counted partitions with those on the cluster, by topic."""
        topics = self._sources.topics
        grown = tuple(
            SourceTopic(
                topic.name, max(topic.partitions, counts.get(topic.name, 0)), topic.id
            )
            for topic in topics
        )
        new = [
            topic
            for topic, before in zip(grown, topics, strict=True)
            if topic != before
        ]
        if not new:
            return
        what = ", ".join(
            f"the events topic {topic.name} has {topic.partitions} partitions now"
            for topic in new
        )
        why = what, len(self._sources), "source partitions"
        if self._refusal is not None:
            self._say("%s, but only %d %s are counted: %s", *why, self._refusal)
            return
        places = counts.get(self._state, 0)
        progress = stored_progress(self._connection, self._state, places)
        if progress is not None and len(progress.joined) > len(self._sources.joined):
            logger.info("%s: restarting to read the new ones", what)
            self._restart()
            return
        needed = sum(topic.partitions for topic in grown)
        if places < needed:
            self._add(self._state, needed, why)
            return  # its new partitions must be known before they are used
        self._say("%s: the new ones join", what)
        self._grow(grown)
