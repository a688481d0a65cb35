"""Gauges of what this worker owns now, looked at when Prometheus asks; those of a partition that was given up are gone at once.

Everything is read from other threads while they work: single numbers, each of them right, not all of the same moment.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType

import confluent_kafka
from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from workers.agents.contribute import ContributeShard
from workers.agents.release import ReleaseShard
from workers.kafka.handover import Handover, Partition
from workers.kafka.shard import Shard
from workers.metrics import CONTRIBUTE, PREFIX, RELEASE
from workers.monitor.health import Health

#: Name without prefix, labels, help; in the order in which they are shown.
GAUGES: Mapping[str, tuple[tuple[str, ...], str]] = MappingProxyType(
    {
        "build_info": (("version", "python", "librdkafka"), "What runs here; always 1"),
        "ready": ((), "1 when /readyz says so"),
        "partitions_assigned": (("stage",), "Partitions that this worker owns"),
        "topic_partitions": (("stage",), "Partitions of the stage's input topic; the workers together must own all"),
        "tick_seconds": (("histogram",), "Width of a tick"),
        "grace_seconds": (
            (),
            "How long a tick stays open for late events: what always lies between clock and watermark",
        ),
        "watermark_lag_seconds": (
            ("partition",),
            "Seconds from the time up to which a source partition closed its ticks to now",
        ),
        "release_lag_seconds": (
            ("histogram", "partition"),
            "Seconds from the end of the last tick that an owner partition released to now",
        ),
        "consumer_lag_records": (("stage", "partition"), "Records in the log that are not processed"),
        "consumer_lag_seconds": (
            ("stage", "partition"),
            "Seconds for which the log has had records that are not processed",
        ),
        "commit_age_seconds": (
            ("stage", "partition"),
            "Seconds since the last commit, or since the partition was taken over",
        ),
        "ledger_rows": (("histogram", "partition"), "Rows of the ledger: items of all stream keys"),
        "ledger_bytes": (("histogram", "partition"), "Bytes of the ledger's columns in memory"),
        "waiting_bytes": (("partition", "place"), "Bytes of contributions that wait for a slower source partition"),
    }
)


class Partitions(Collector):
    """The gauges; see the module."""

    def __init__(
        self, handover: Handover, health: Health, topic_partitions: Mapping[str, int], grace_ms: int = 0
    ) -> None:
        """
        Args:
            handover: whose shards they are.
            health: says whether the worker is ready.
            topic_partitions: of the input topic of each stage.
            grace_ms: how long a tick stays open for late events.
        """
        self._grace_s = grace_ms / 1000
        self._handover, self._health, self._topic_partitions = handover, health, dict(topic_partitions)
        self._tick_seconds: dict[str, float] = {}

    def add_histogram(self, name: str, tick_ms: int) -> None:
        """Show the width of a histogram's tick."""
        self._tick_seconds[name] = tick_ms / 1000

    def describe(self) -> Iterator[Metric]:
        return iter(self._families().values())

    def collect(self) -> Iterator[Metric]:
        families = self._families()
        now_s, now_ms = time.monotonic(), time.time_ns() // 1_000_000
        families["build_info"].add_metric([_version(), platform.python_version(), confluent_kafka.libversion()[0]], 1)
        families["ready"].add_metric([], 0 if self._health.not_ready(now_s, now_ms) else 1)
        shards = list(self._handover.shards.items())
        for stage, kind in ((CONTRIBUTE, ContributeShard), (RELEASE, ReleaseShard)):
            families["partitions_assigned"].add_metric([stage], sum(isinstance(s, kind) for _, s in shards))
            families["topic_partitions"].add_metric([stage], self._topic_partitions[stage])
        families["grace_seconds"].add_metric([], self._grace_s)
        for name, seconds in self._tick_seconds.items():
            families["tick_seconds"].add_metric([name], seconds)
        for tp, shard in shards:
            if shard.closed:  # taken over by another worker, which shows it
                continue
            self._either(families, tp, shard, now_s)
            if isinstance(shard, ContributeShard):
                if shard.watermark is not None:
                    lag_s = (now_ms - shard.watermark) / 1000
                    families["watermark_lag_seconds"].add_metric([str(shard.partition)], lag_s)
            elif isinstance(shard, ReleaseShard):
                self._release(families, shard, now_ms)
        yield from families.values()

    def _either(self, families: dict[str, GaugeMetricFamily], tp: Partition, shard: Shard, now_s: float) -> None:
        labels = [shard.stage, str(shard.partition)]
        lag = self._handover.lags.get(tp)
        if lag is not None:
            families["consumer_lag_records"].add_metric(labels, lag.records)
            families["consumer_lag_seconds"].add_metric(labels, lag.seconds(now_s))
        if shard.stats.last_commit_s:
            families["commit_age_seconds"].add_metric(labels, now_s - shard.stats.last_commit_s)

    @staticmethod
    def _release(families: dict[str, GaugeMetricFamily], shard: ReleaseShard, now_ms: int) -> None:
        partition = str(shard.partition)
        for histogram in shard.merge.histograms:
            labels, tick = [histogram.name, partition], histogram.next
            if tick is not None:
                lag_s = (now_ms - histogram.grid.end(tick - 1)) / 1000
                families["release_lag_seconds"].add_metric(labels, lag_s)
            families["ledger_rows"].add_metric(labels, histogram.rows)
            families["ledger_bytes"].add_metric(labels, histogram.nbytes)
        waiting = shard.merge.waiting
        families["waiting_bytes"].add_metric([partition, "memory"], waiting.held_bytes)
        families["waiting_bytes"].add_metric([partition, "file"], waiting.spilled_bytes)

    @staticmethod
    def _families() -> dict[str, GaugeMetricFamily]:
        return {
            name: GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=labels) for name, (labels, text) in GAUGES.items()
        }


def _version() -> str:
    try:
        return version("quietcount")
    except PackageNotFoundError:
        return "unknown"
