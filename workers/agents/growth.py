"""Partitions that topics get while workers run: who notices, and when they count.

`state` is the topic of stage 1's state (or re-keying's), which has a partition for each partition
that counts; `counts` are the numbers of partitions of all topics on the cluster.

Every worker looks at the topics' partition counts. On growth it adds the missing partitions to the
state topic, and asks the shard of source partition 0, if it is here, to let the new ones join
(`SourceShard.grow`). A worker that finds in that shard's progress partitions that it does not know
restarts its run, and so numbers and reads them (decisions/0031). The same holds for partitions of
the contributions topic, which are owners: stage 1's source partition 0 tells from when on
(`ContributeShard.grow_owners`, decisions/0034).
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from workers.agents.counted import stored_owners, stored_progress
from workers.kafka.clients import Connection
from workers.kafka.topics import add_partitions
from workers.pipeline.growth.epochs import next_epoch
from workers.pipeline.growth.owners import Owners
from workers.pipeline.growth.sources import Sources, SourceTopic
from workers.runtime.errors import KafkaAway, SettingsError
from workers.settings.settings import Settings

logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class _Noticing:
    """Base of `OwnerGrowth` and `Growth`, which notice new partitions during one run.

    `grow` asks the shard of source partition 0 to commit the new size to the state. `restart`
    begins another run, which reads the new partitions.
    """

    connection: Connection
    grow: Callable[..., object]
    restart: Callable[[], object]
    _logged = ""

    def _log_new(self, text: str) -> None:
        """Log a text, unless it is the one logged last."""
        if text != self._logged:
            self._logged = text
            logger.warning("%s", text)

    def _add(self, topic: str, partitions: int, but: str) -> None:
        """Add partitions to a state topic, up to this number; if that fails, log `but` and why."""
        try:
            add_partitions(self.connection, topic, partitions)
        except (SettingsError, KafkaAway) as error:
            self._log_new(f"{but}: {error}")


@dataclass(kw_only=True)
class OwnerGrowth(_Noticing):
    """Growth of the owners, which are the contributions topic's partitions, during one run.

    Each `look` takes the next step: restart if the stored state already counts more owners; else
    add the missing state partitions; at the next look, have the new owners counted (`grow`). All
    brokers know the new partitions by then. `owners` are those that this run started with.
    """

    settings: Settings
    owners: Owners
    # The number of owners for which a look found all state partitions first.
    _ready_for = 0

    def look(self, counts: Mapping[str, int]) -> None:
        """Compare the counted owners with the partitions on the cluster, `counts` by topic."""
        settings = self.settings
        number = counts.get(settings.contributions_topic, 0)
        counted = self.owners.number
        if number <= counted:
            return
        what = f"topic {settings.contributions_topic} has {number} partitions now"
        but = f"{what}, but only {counted} owner partitions are counted"
        state = settings.contribute_state_topic
        owners = stored_owners(self.connection, state, counts.get(state, 0), counted)
        release_state = settings.release_state_topic
        if len(owners.grown) > len(self.owners.grown):
            logger.info("%s: restarting to know the new owners", what)
            self.restart()
        elif number % counted:
            self._log_new(f"{but}: no multiple of {counted}")
        elif next_epoch((one.grid for one in settings.histograms), 0) is None:
            self._log_new(f"{but}: epochs of all histograms never begin together")
        elif counts.get(release_state, 0) < number:
            self._add(release_state, number, but)
        elif self._ready_for != number:
            # Brokers learn of new partitions one after the other: by the next look all know them.
            self._ready_for = number
        else:
            self._log_new(
                f"{what}: stream keys move to the new owners where an epoch begins"
            )
            self.grow(number)


@dataclass(kw_only=True)
class Growth(_Noticing):
    """Growth of the events topics during one run: partitions that do not count yet are to join.

    Each `look` takes the next step: restart if the stored state already counts more; else add the
    missing partitions of the state topic `state`; then have the new ones counted (`grow`).
    `sources` are those that this run started with. `refusal` says why no partition can join, if so.
    """

    state: str
    sources: Sources
    refusal: str | None = None

    def look(self, counts: Mapping[str, int]) -> None:
        """Compare the counted partitions with those on the cluster, `counts` by topic."""
        topics = self.sources.topics
        grown = tuple(
            SourceTopic(
                topic.name, max(topic.partitions, counts.get(topic.name, 0)), topic.id
            )
            for topic in topics
        )
        needed = sum(topic.partitions for topic in grown)
        state_partitions = counts.get(self.state, 0)
        new = [topic for topic in grown if topic not in topics]
        if not new:
            # Before the first commit all partitions count, even those newer than the state topic.
            if 0 < state_partitions < needed:
                has = f"topic {self.state} has {state_partitions} partitions"
                self._add(self.state, needed, has)
            return
        what = ", ".join(
            f"the events topic {topic.name} has {topic.partitions} partitions now"
            for topic in new
        )
        but = f"{what}, but only {len(self.sources)} source partitions are counted"
        if self.refusal is not None:
            self._log_new(f"{but}: {self.refusal}")
            return
        progress = stored_progress(self.connection, self.state, state_partitions)
        if progress is not None and len(progress.joined) > len(self.sources.joined):
            logger.info("%s: restarting to read the new ones", what)
            self.restart()
            return
        if state_partitions < needed:
            # Brokers must know them before they are used, so the rest waits for the next look.
            self._add(self.state, needed, but)
            return
        self._log_new(f"{what}: the new ones join")
        self.grow(grown)
