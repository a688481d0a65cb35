"""Retire a histogram that left the settings, for good.

One transaction per owner partition moves the histogram's progress to the retired ones, where
`budget` still counts it and its generation cannot be reused, and deletes its stored pairs. After a
crash, another call completes the work.
"""

import msgspec

from workers.agents.progress import PROGRESS, complete_ms, read_progress, read_states
from workers.agents.state import group_size
from workers.kafka.clients import Connection
from workers.kafka.shard import Assignment, Shard
from workers.kafka.store import Changelog, Store
from workers.kafka.topics import describe as describe_topics
from workers.pipeline.ledger_blocks import read_paged, split_pages
from workers.runtime.errors import SettingsError
from workers.runtime.sizes import Change
from workers.settings.settings import Settings


def retire(settings: Settings, connection: Connection, name: str) -> tuple[int, int]:
    """End a histogram's generation; return it and the number of owner partitions that had it.

    Raises SettingsError if the settings have the histogram, the state does not, or workers of this
    name run; StateRefused if another version wrote the state; KafkaException.
    """
    if name in (config.name for config in settings.histograms):
        raise SettingsError(
            f"histogram {name!r} is in the settings: take its [[histogram]] out first, for every worker of this name"
        )
    states = read_states(connection, settings.worker.name) or []
    # Progress of the owners that have the histogram, by partition.
    lives = {
        owner: state
        for owner, state in enumerate(states)
        if state and name in state.histograms
    }
    if not lives:
        there = sorted(
            {known for state in states if state for known in state.histograms}
        )
        raise SettingsError(
            f"histogram {name!r}: the state of worker {settings.worker.name!r} has no such histogram running; "
            f"{'it has ' + ', '.join(there) if there else 'it has none'}"
        )
    group = settings.worker.name
    # Running workers would be fenced, and refuse to restart.
    if members := group_size(connection, group):
        raise SettingsError(
            f"workers of {group!r} are running ({members} of them): stop all first, and start all with the new settings after it "
            "(one that was killed counts for 10 s more)"
        )
    topic = settings.release_state_topic
    topic_id = describe_topics(connection, [topic])[topic].topic_id
    for owner in lives:
        # None: keep the store in memory, since this process ends soon.
        store = Store(None, Changelog(topic, owner, topic_id))
        shard = _Owner(Assignment(connection, f"{group}-release-{owner}", owner, store))
        try:
            shard.open()
            shard.retire(name, settings.contributions_topic)
        finally:
            shard.close()
    # The newest generation: an owner that never ran with it still has the one before.
    return max(state.histograms[name].generation for state in lives.values()), len(
        lives
    )


class _Owner(Shard):
    """Shard of an owner partition that only retires a histogram; opening it fences a worker."""

    stage = "retire"

    def retire(self, name: str, contributions: str) -> None:
        """Move the histogram's progress to the retired ones, and delete all else that it stored."""
        value = read_paged(PROGRESS, self.store.get)
        progress = None if value is None else read_progress(value)
        if progress is None or (life := progress.histograms.pop(name, None)) is None:
            return
        # Its charges count up to all that an owner may have published to readers of uncommitted
        # records before it died. None: no tick was complete, so there was nothing to publish.
        until = complete_ms(self.connection, contributions, self.partition, progress)
        if until is not None:
            life.until = until
        progress.retired.append((name, life))
        stored = self.store.items(f"{name}/{life.generation}/".encode())
        changes: list[Change] = [(key, None) for key, _ in stored]
        changes += split_pages(PROGRESS, msgspec.json.encode(progress))
        self.transact([], changes, progress.offset)
