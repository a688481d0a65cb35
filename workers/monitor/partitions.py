"""Gauges of what this worker owns now, read when Prometheus asks, so none outlives its partition.

They are read while other threads work: each number is right, but not all are of one moment.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import confluent_kafka
from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from workers.agents.contribute import ContributeShard
from workers.agents.rekey import RekeyShard
from workers.agents.release import ReleaseShard
from workers.kafka.handover import Handover
from workers.metrics import CONTRIBUTE, PREFIX, REKEY, RELEASE
from workers.monitor.health import Health, topics_read
from workers.version import version

#: Name without prefix, labels, help; in the order in which they are shown.
GAUGES: Mapping[str, tuple[tuple[str, ...], str]] = MappingProxyType(
    {
        "build_info": (("version", "python", "librdkafka"), "What runs here; always 1"),
        "ready": ((), "1 when /readyz says so"),
        "partitions_assigned": (("stage",), "Partitions that this worker owns"),
        "topic_partitions": (("stage",), "Partitions of the stage's input topics; the workers together must own all"),
        "tick_seconds": (("histogram",), "Width of a tick"),
        "grace_seconds": (
            (),
            "How long a tick stays open for late events: what always lies between clock and watermark",
        ),
        "rejecting": (("topic",), "1 while nearly all records of a topic are rejected; /readyz says the commonest reason"),
        "watermark_lag_seconds": (
            ("topic", "partition"),
            "Seconds from the time up to which a source partition closed its ticks to now",
        ),
        "release_lag_seconds": (
            ("histogram", "partition"),
            "Seconds from the end of the last tick that an owner partition released to now",
        ),
        "consumer_lag_records": (("stage", "topic", "partition"), "Records in the log that are not processed"),
        "consumer_lag_seconds": (
            ("stage", "topic", "partition"),
            "Seconds for which the log has had records that are not processed",
        ),
        "commit_age_seconds": (
            ("stage", "topic", "partition"),
            "Seconds since the last commit, or since the partition was taken over",
        ),
        "copy_missing": (
            ("stage", "topic", "partition"),
            "1 while the local copy of the state cannot be on disk, and is in memory",
        ),
        "ledger_rows": (("histogram", "partition"), "Rows of the ledger: items of all stream keys"),
        "ledger_bytes": (("histogram", "partition"), "Bytes of the ledger's columns in memory"),
        "waiting_bytes": (("partition", "place"), "Bytes of contributions that wait for a slower source partition"),
    }
)


class Partitions(Collector):
    """The gauges of a hand-over's shards."""

    def __init__(
        self,
        handover: Handover,
        health: Health,
        topic_partitions: Mapping[str, int],
        ticks_ms: Mapping[str, int],
        grace_ms: int,
    ) -> None:
        """Take what the settings say, and the partitions of each stage's input topics."""
        self._handover, self._health, self._topic_partitions = handover, health, topic_partitions
        self._ticks_ms, self._grace_ms = ticks_ms, grace_ms

    def describe(self) -> Iterator[Metric]:
        return iter(_families().values())

    def collect(self) -> Iterator[Metric]:
        families = _families()
        now_s, now_ms = time.monotonic(), time.time_ns() // 1_000_000

        def show(name: str, value: float, *labels: object) -> None:
            families[name].add_metric([str(label) for label in labels], value)

        show("build_info", 1, version() or "unknown", platform.python_version(), confluent_kafka.libversion()[0])
        show("ready", 0 if self._health.not_ready(now_s, now_ms) else 1)
        shards = list(self._handover.shards.items())
        for stage, kind in ((REKEY, RekeyShard), (CONTRIBUTE, ContributeShard), (RELEASE, ReleaseShard)):
            if stage not in self._topic_partitions:
                continue
            show("partitions_assigned", sum(isinstance(shard, kind) for _, shard in shards), stage)
            show("topic_partitions", self._topic_partitions[stage], stage)
        show("grace_seconds", self._grace_ms / 1000)
        for name, tick_ms in self._ticks_ms.items():
            show("tick_seconds", tick_ms / 1000, name)
        for topic in topics_read(self._handover):
            show("rejecting", self._handover.metrics.rejecting.reason(topic, now_s) is not None, topic)
        for tp, shard in shards:
            if shard.closed:  # taken over by another worker, which shows it
                continue
            if (lag := self._handover.lags.get(tp)) is not None:
                show("consumer_lag_records", lag.records, shard.stage, *tp)
                show("consumer_lag_seconds", lag.seconds(now_s), shard.stage, *tp)
            if shard.stats.last_commit_s:
                show("commit_age_seconds", now_s - shard.stats.last_commit_s, shard.stage, *tp)
            show("copy_missing", shard.store.in_memory, shard.stage, *tp)
            if isinstance(shard, ContributeShard | RekeyShard) and shard.watermark is not None:
                show("watermark_lag_seconds", (now_ms - shard.watermark) / 1000, *tp)
            elif isinstance(shard, ReleaseShard):
                for histogram in shard.merge.histograms:
                    name, tick = histogram.name, histogram.next
                    if tick is not None:
                        lag_s = (now_ms - histogram.grid.end(tick - 1)) / 1000
                        show("release_lag_seconds", lag_s, name, shard.partition)
                    show("ledger_rows", histogram.columns.n, name, shard.partition)
                    show("ledger_bytes", histogram.columns.nbytes, name, shard.partition)
                show("waiting_bytes", shard.merge.waiting.held_bytes, shard.partition, "memory")
                show("waiting_bytes", shard.merge.waiting.spilled_bytes, shard.partition, "file")
        yield from families.values()


def _families() -> dict[str, GaugeMetricFamily]:
    return {name: GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=labels) for name, (labels, text) in GAUGES.items()}
