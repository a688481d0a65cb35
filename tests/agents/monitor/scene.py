"""A hand-over with shards that never open: what the monitor looks at, without a broker."""

from __future__ import annotations

from pathlib import Path

from tests.events.reading import ANY, event_reader
from workers.agents.contribute import ContributeShard, Stream
from workers.agents.release import ReleaseShard
from workers.kafka.clients import Connection
from workers.kafka.handover import Handover
from workers.kafka.offsets import Lag, Reading
from workers.kafka.store import Changelog, Store
from workers.mechanisms.noise.keyed import NoiseKey
from workers.pipeline.factory import histograms, lanes, mechanisms
from workers.pipeline.histogram import Histogram
from workers.pipeline.merge import Merge
from workers.pipeline.sources import Sources, SourceTopic
from workers.settings.settings import Settings, load

SETTINGS = """\
[worker]
name = "orders"
data_dir = "var"
key_file = "key"
commit_interval = "5s"
{worker}
[kafka]
bootstrap = "unused:9092"
[events]
topic = "events"
key = "shop"
items = "products"
[[histogram]]
name = "products"
mechanism = "unk_base"
tick = "10s"
horizon = 64
max_items = 2
epsilon = 1.0
delta = 1e-9
keys = ["s1"]
"""
NOW_S = 1e12  # beyond any real monotonic clock
NOW_MS = 1_700_000_000_000
SOURCES = Sources((SourceTopic("events", 2, None),))


class Scene:
    """Two source partitions and one owner, all assigned here."""

    def __init__(self, directory: Path, worker: str = "") -> None:
        path = directory / "orders.toml"
        path.write_text(SETTINGS.format(worker=worker))
        self.settings: Settings = load(path)
        self.handover = Handover({})
        self.handover.beat_s = NOW_S
        self.contribute = [self._contribute(partition) for partition in range(2)]
        self.release = self._release()
        shards = {("events", p): shard for p, shard in enumerate(self.contribute)}
        self.handover.shards = {**shards, ("orders.contributions", 0): self.release}
        self.handover.assigned = True
        for tp, shard in self.handover.shards.items():
            shard.offset = shard.committed = 100
            shard.stats.last_commit_s = NOW_S
            self.handover.lags[tp] = lag = Lag()
            lag.sample(NOW_S, 100, Reading(100, 100, 100))

    def _contribute(self, partition: int) -> ContributeShard:
        events = self.settings.events
        return ContributeShard(
            Connection("unused:9092"),
            f"orders-contribute-{partition}",
            list(SOURCES)[partition],
            "state",
            Store(None, Changelog("state", partition)),
            stream=Stream(
                events=events,
                sources=SOURCES,
                contributions="orders.contributions",
                owners=1,
                rejects="rejects",
            ),
            lanes=lanes(self.settings),
            reader=event_reader(events, None),
            declared=ANY,
            key=NoiseKey(bytes(32)),
            commit_interval_s=5.0,
            metrics=self.handover.metrics,
        )

    def _release(self) -> ReleaseShard:
        key = NoiseKey(bytes(32))
        built = histograms(
            Histogram,
            self.settings,
            mechanisms(self.settings),
            key=key,
            stream="",
            owner=0,
            owners=1,
        )
        return ReleaseShard(
            Connection("unused:9092"),
            "orders-release-0",
            0,
            "state",
            Store(None, Changelog("state", 0)),
            contributions="orders.contributions",
            merge=Merge(built, key=key, sources=2, owners=1),
            metrics=self.handover.metrics,
        )
