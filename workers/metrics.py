"""The worker's counters: one `Metrics` a process, with a Prometheus registry of its own.

Shards and the hand-over count here, once a batch, commit or release, never once an event. What
belongs to a partition that may go away is read when Prometheus asks (`monitor/partitions.py`).
Labels are stage, histogram, topic, partition and a reject's reason, never a label, stream key or
user of the data. Totals are exact, so they are for the operator only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from workers.outages.away import Away
from workers.reject_rate import RejectRate

PREFIX = "quietcount"
REKEY, CONTRIBUTE, RELEASE = "rekey", "contribute", "release"
# A transaction takes about 10 ms on a quiet broker; one that waits for a broker, up to 15 s.
_COMMIT_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
# A tick of a million rows takes about half a second; one call releases up to 500 ticks.
_RELEASE_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_RECOVERY_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)


@dataclass(frozen=True, slots=True)
class StageMetrics:
    """What every shard of a stage counts."""

    records: Counter
    commit_seconds: Histogram
    aborted: Counter


class Metrics:
    """The worker's counters and histograms; safe to use from any thread."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry(auto_describe=True)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, namespace=PREFIX, registry=registry)

        def histogram(name: str, text: str, buckets: Iterable[float], *labels: str) -> Histogram:
            return Histogram(name, text, labels, namespace=PREFIX, registry=registry, buckets=tuple(buckets))

        self._records = counter("records", "Records read; some of them again after a hand-over", "stage")
        self.events = counter("events", "Events whose contribution was committed, each once over all workers")
        self.rejects = counter(
            "rejects", "Records that were no events and were committed to the rejects topic", "reason"
        )
        self.declined = counter(
            "declined", "Records that the fast reader left to the general one; some of them again after a hand-over"
        )
        self.ticks_closed = counter(
            "ticks_closed", "Ticks that source partitions closed, over all source partitions and tick grids"
        )
        self.ticks_released = counter(
            "ticks_released", "Ticks that owner partitions released: each tick once for each of them", "histogram"
        )
        self.snapshots = counter("snapshots", "Snapshot records that were published", "histogram")
        self.snapshot_bytes = counter(
            "snapshot_bytes", "Bytes of the snapshot records that were published", "histogram"
        )
        self._commit_seconds = histogram(
            "commit_seconds", "Seconds that a Kafka transaction took, with all its repetitions", _COMMIT_S, "stage"
        )
        self._aborted = counter("transactions_aborted", "Transactions that were aborted and tried again", "stage")
        self.release_seconds = histogram(
            "release_seconds", "Seconds to merge and release the complete ticks, before they are committed", _RELEASE_S
        )
        self.recovery_seconds = histogram(
            "recovery_seconds",
            "Seconds from an assignment until its partitions are taken over, state loaded",
            _RECOVERY_S,
        )
        self.recovered_records = counter("recovered_records", "State records read from changelogs while taking over")
        self.acquired = counter("partitions_acquired", "Partitions of either stage that were taken over")
        self.released = counter("partitions_given_up", "Partitions of either stage that were given up")
        self.unread_topics = Gauge(
            "unread_topics",
            "Topics that match events.topic and are not counted, since the set of topics is fixed by the first start",
            namespace=PREFIX,
            registry=registry,
        )
        #: Whether Kafka is away; a gauge and a counter show it.
        self.away = Away()
        show_outages(self.away, registry)
        self.registry_waits = counter(
            "schema_registry_waits", "Times that records had to wait for a schema because the registry did not answer"
        )
        #: Says of each topic whether nearly all of it is rejected; a gauge shows it.
        self.rejecting = RejectRate()
        self.fenced = counter("fenced", "Shards of this worker that a newer owner took over while they were at work")

    def stage(self, name: str) -> StageMetrics:
        """Return the counters of a stage's shards, which the metrics show from now on."""
        return StageMetrics(self._records.labels(name), self._commit_seconds.labels(name), self._aborted.labels(name))

    def expect_histogram(self, name: str) -> None:
        """Show a histogram's counters before the first count: no alert works on an absent one."""
        for counter in (self.ticks_released, self.snapshots, self.snapshot_bytes):
            counter.labels(name)


def show_outages(away: Away, registry: CollectorRegistry) -> None:
    """Add what there is to see of outages of Kafka to a registry."""
    registry.register(_Outages(away))


class _Outages(Collector):
    """How long Kafka has been away, and how often it was."""

    def __init__(self, away: Away) -> None:
        self._away = away

    def describe(self) -> Iterator[Metric]:
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            f"{PREFIX}_kafka_away_seconds", "Seconds for which no broker has answered; 0 while Kafka is there", self._away.seconds
        )
        yield CounterMetricFamily(f"{PREFIX}_kafka_outages", "Times that Kafka went away", self._away.outages)


class OfWorker(Collector):
    """A registry's metrics, with the worker's name on every series."""

    def __init__(self, inner: Collector, worker: str) -> None:
        self._inner, self._worker = inner, worker

    def collect(self) -> Iterator[Metric]:
        for family in self._inner.collect():
            family.samples = [
                sample._replace(labels={"worker": self._worker, **sample.labels}) for sample in family.samples
            ]
            yield family
