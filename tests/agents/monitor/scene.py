"""A hand-over with shards that never open: what the monitor looks at, without a broker."""

from pathlib import Path

from tests.events.reading import ANY, event_reader
from tests.kafka.harness import offline
from workers.agents.contribute import ContributeShard, ContributeStage
from workers.agents.monitor import Health
from workers.agents.release import ReleaseShard
from workers.kafka.handover import Handover
from workers.kafka.offsets import Lag, ReadPosition
from workers.mechanisms.noise.keyed import NoiseKey
from workers.pipeline.factory import histograms, lanes, mechanisms, names_by_lane
from workers.pipeline.growth.owners import Owners
from workers.pipeline.growth.sources import Sources, SourceTopic
from workers.pipeline.histogram import Histogram
from workers.pipeline.merge import Merge
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
KEY = NoiseKey(bytes(32))
SOURCES = Sources((SourceTopic("events", 2, None),))


class Scene:
    def __init__(self, directory: Path, worker: str = "") -> None:
        path = directory / "orders.toml"
        path.write_text(SETTINGS.format(worker=worker))
        self.settings: Settings = load(path)
        self.handover = Handover({})
        self.handover.beat_s = NOW_S
        self.health = Health(self.settings, self.handover)
        self.contribute = [self._contribute(partition) for partition in range(2)]
        self.release = self._release()
        shards = {("events", p): shard for p, shard in enumerate(self.contribute)}
        self.handover.shards = {**shards, ("orders.contributions", 0): self.release}
        self.handover.assigned = True
        for tp, shard in self.handover.shards.items():
            shard.offset = shard.committed = 100
            shard.last_commit_s = NOW_S
            self.handover.lags[tp] = lag = Lag()
            lag.sample(NOW_S, 100, ReadPosition(100, 100, 100))

    def _contribute(self, partition: int) -> ContributeShard:
        stage = ContributeStage(
            events=self.settings.events,
            sources=SOURCES,
            contributions="orders.contributions",
            owners=Owners(1),
            epochs=(),
            names=names_by_lane(self.settings),
            rejects="rejects",
            lanes=lanes(self.settings),
            reader=event_reader(self.settings.events, None),
            declared=ANY,
            count_lane_of={},
            key=KEY,
            commit_interval_s=5.0,
        )
        assignment = offline(partition, self.handover.metrics, "orders-contribute")
        return ContributeShard(assignment, list(SOURCES)[partition], stage)

    def _release(self) -> ReleaseShard:
        built = histograms(
            Histogram,
            self.settings,
            mechanisms(self.settings),
            key=KEY,
            stream="",
            owner=0,
            owners=1,
        )
        return ReleaseShard(
            offline(0, self.handover.metrics, "orders-release"),
            contributions="orders.contributions",
            merge=Merge(built, key=KEY, sources=2, owners=1),
        )
