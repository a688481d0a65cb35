"""Both stages of a worker on the simulated Kafka, at times chosen by a test."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.cluster.connection import Running, records_of
from tests.kafka.harness import settled
from tests.worker.harness import Site
from workers.agents.release import ReleaseShard
from workers.agents.topics import check_topics
from workers.agents.worker import Factory
from workers.kafka.offsets import LogEnd
from workers.kafka.records import Batch
from workers.kafka.shard import Shard
from workers.runtime.errors import CeilingReached, QuietcountError

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
# 2026-01-01, when day 1 begins; nothing happens before.
FIRST_MS = 1_767_225_600_000


def day(number: float) -> int:
    return FIRST_MS + round((number - 1) * DAY_MS)


def daily(name: str = "items", **changes: object) -> dict[str, object]:
    ticks: dict[str, object] = {
        "name": name,
        "tick": "6h",
        "horizon": 4,
        "max_items": 1,
    }
    price: dict[str, object] = {"mechanism": "unk_base", "epsilon": 1.0, "delta": 1e-6}
    return ticks | price | {"keys": ["k0", "k1", "k2", "k3"]} | changes


class Stages:
    """Worker with stages that run on demand, taken over afresh each time, as after a restart."""

    def __init__(self, site: Site, data: Path | None = None) -> None:
        """Keep state copies under `data`; with None every start has lost them."""
        self.site = site
        self.data = data

    def factory(self) -> Factory:
        site = self.site
        topics = check_topics(site.settings, site.connection)
        return Factory(site.settings, site.connection, topics, site.key, self.data)

    def contribute(self, now_ms: int, events: Iterable[object] = ()) -> None:
        """Send events to every source partition, and close all ticks up to a time by the clock."""
        for partition in range(self.site.partitions):
            self.site.produce(partition, events)
        factory = self.factory()
        for number, (topic, partition) in enumerate(self.site.places):
            place = factory.sources.find(topic, partition)
            assert place is not None
            shard = factory.contribute_shard(place)
            shard.open()
            shard.offset = shard.offset or 0
            self._feed(shard, topic, partition)
            shard.last_commit_s = -1e9  # it is always time to commit
            shard.reached(LogEnd(now_ms, shard.offset or 0))
            shard.close()
            assert shard.partition == number

    def take_over(self, owner: int, factory: Factory | None = None) -> ReleaseShard:
        shard = (factory or self.factory()).release_shard(owner)
        try:
            shard.open()
        except QuietcountError:
            shard.close()
            raise
        shard.offset = shard.offset or 0
        return shard

    def release(self, shard: ReleaseShard) -> None:
        """Publish an owner partition's complete ticks, then release the partition."""
        try:
            self._feed(shard, self.site.settings.contributions_topic, shard.partition)
            shard.idle()
        finally:
            shard.close()

    def go(self, now_ms: int, events: Iterable[object] = ()) -> list[str]:
        """Run both stages as one worker; return each owner partition's refusals."""
        factory = self.factory()
        refused = []
        shards = []
        for owner in range(factory.owners.number):
            try:
                shards.append(self.take_over(owner, factory))
            except CeilingReached as error:
                refused.append(str(error))
        self.contribute(now_ms, events)
        for shard in shards:
            try:
                self.release(shard)
            except CeilingReached as error:
                refused.append(str(error))
        return refused

    def _feed(self, shard: Shard, topic: str, partition: int) -> None:
        settled(self.site.connection, topic, partition)
        start = shard.offset or 0
        log = Running.network.broker.logs[topic, partition]
        if start < log.stable:
            records = records_of(log.data(start, log.stable))
            shard.feed(Batch(start, log.stable, records))


def order(at_ms: int, number: int = 0) -> dict[str, Any]:
    return {"key": f"k{number % 4}", "items": ["tea"], "user": "u0", "ts": at_ms}
