"""The worker's metrics: one `Metrics` per process, with its own Prometheus registry.

Shards and the hand-over update it once per batch, commit or release, never per event. Values of a
partition that may go away are read on every scrape (`agents/monitor.py`). Labels are stage,
histogram, topic, partition and reject reason, never a label, stream key or user of the data. Totals
are exact, so they are for the operator only. The class `Histogram` is Prometheus's, here alone.

`RejectRate` logs when nearly all of a topic's relevant records in a minute (at least `RECORDS_MIN`)
are rejected, and when that ends: at a far lower share (no flapping), or after `QUIET_S` of silence.
`LateRate` does the same where more than a tenth of a histogram's events come late.
"""

import collections
import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from threading import Lock

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from workers.runtime.availability import Outage, Waits

logger = logging.getLogger(__name__)

WINDOW_S = 60.0
RECORDS_MIN = 100
#: Shares of rejects above which the alarm is raised, and at or below which it is cleared.
ALARM = 0.9
CLEAR = 0.5
#: The same for late events.
LATE_ALARM = 0.1
LATE_CLEAR = 0.05
LATE = "late"
QUIET_S = 600.0
_STEP_S = 5.0


@dataclass(slots=True)
class _Step:
    """Records and rejects, by reason, of `_STEP_S` seconds; `number` counts steps of the clock."""

    number: int
    records: int = 0
    rejects: collections.Counter[str] = field(default_factory=collections.Counter)


@dataclass(slots=True)
class _LastMinute:
    """A topic's (or histogram's) last minute in steps, and its alarm."""

    steps: deque[_Step] = field(default_factory=deque)
    #: The commonest reason, while the alarm is raised.
    alarm: str | None = None
    #: When records came last.
    last_s: float = 0.0


class RejectRate:
    """Reject rates by topic, each with an alarm. Thread-safe."""

    _alarm_above = ALARM
    _clear_at = CLEAR

    def __init__(self) -> None:
        self._lock = Lock()
        self._by_topic = dict[str, _LastMinute]()

    def note(
        self, topic: str, now_s: float, records: int, rejects: Mapping[str, int]
    ) -> None:
        """Add a batch's relevant `records`, some of them `rejects`, by reason; log a change."""
        if not records:
            return
        with self._lock:
            minute = self._by_topic.setdefault(topic, _LastMinute())
            number = int(now_s // _STEP_S)
            steps = minute.steps
            if not steps or steps[-1].number < number:
                steps.append(_Step(number))
            steps[-1].records += records
            steps[-1].rejects.update(rejects)
            # Forget what is older than a minute.
            while steps[0].number <= number - WINDOW_S / _STEP_S:
                steps.popleft()
            minute.last_s = now_s
            self._decide(topic, minute)

    def reason(self, topic: str, now_s: float) -> str | None:
        """Return the commonest reason while the alarm is raised, else None.

        An alarm that no records have confirmed or ended for `QUIET_S` is cleared first.
        """
        with self._lock:
            minute = self._by_topic.get(topic)
            if minute is None:
                return None
            if minute.alarm is not None and now_s - minute.last_s > QUIET_S:
                self._clear(topic, minute)
            return minute.alarm

    def _decide(self, topic: str, minute: _LastMinute) -> None:
        """Raise the alarm of a topic, or clear it, by its rejects within the last minute."""
        records = sum(step.records for step in minute.steps)
        by_reason = collections.Counter[str]()
        for step in minute.steps:
            by_reason += step.rejects
        rejects = by_reason.total()
        # A few records raise no alarm, but they do not end one either.
        is_enough = records >= RECORDS_MIN or minute.alarm is not None
        if rejects > self._alarm_above * records and is_enough:
            [(reason, _)] = by_reason.most_common(1)
            if minute.alarm is None:
                self._log_alarm(
                    topic, f"{rejects} of {records} within a minute", reason
                )
            minute.alarm = reason
        elif rejects <= self._clear_at * records and minute.alarm is not None:
            self._clear(topic, minute)

    def _clear(self, topic: str, minute: _LastMinute) -> None:
        minute.alarm = None
        self._log_clear(topic)

    def _log_alarm(self, topic: str, share: str, reason: str) -> None:
        """Log the alarm of a topic; `share` is as in "95 of 100 within a minute"."""
        logger.error(
            "%s: nearly all records are rejected (%s), most of them: %s. `quietcount check -c FILE` says why, with examples",
            topic,
            share,
            reason,
        )

    def _log_clear(self, topic: str) -> None:
        logger.warning("%s: its records are accepted again", topic)


class LateRate(RejectRate):
    """Shares of late events of histograms, in place of shares of rejects in topics."""

    _alarm_above = LATE_ALARM
    _clear_at = LATE_CLEAR

    def _log_alarm(self, topic: str, share: str, reason: str) -> None:
        """Log the alarm of a histogram, called `topic` here; the one reason is lateness."""
        logger.warning(
            "%s: many events come late, after their tick has closed, and count in a later one (%s): "
            "a longer events.grace waits for them",
            topic,
            share,
        )

    def _log_clear(self, topic: str) -> None:
        logger.warning("%s: few of its events come late now", topic)


PREFIX = "quietcount"
REKEY = "rekey"
CONTRIBUTE = "contribute"
RELEASE = "release"
_BOUNDS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
    *(30.0, 60.0, 120.0, 300.0, 900.0),
)
# A transaction takes about 10 ms on a quiet broker, up to 15 s if it waits for a broker.
_COMMIT_S = _BOUNDS_S[2:-2]
# A tick of a million rows takes about half a second; one call releases up to 500 ticks.
_RELEASE_S = _BOUNDS_S[:-4]
_RECOVERY_S = _BOUNDS_S[6:]


@dataclass(frozen=True, slots=True)
class StageMetrics:
    """The series of one stage, which all its shards in this process update."""

    records: Counter
    commit_seconds: Histogram
    aborted_transactions: Counter


class Metrics:
    """The worker's counters and histograms. Thread-safe."""

    def __init__(self) -> None:
        """Make and register all series; a shard gets its own from `stage`."""
        self.registry = registry = CollectorRegistry(auto_describe=True)

        def counter(name: str, words: str, *labels: str) -> Counter:
            return Counter(name, words, labels, namespace=PREFIX, registry=registry)

        def histogram(
            name: str, words: str, buckets: tuple[float, ...], *labels: str
        ) -> Histogram:
            """Make and register a Prometheus histogram with these upper `buckets`."""
            return Histogram(
                name,
                words,
                labels,
                namespace=PREFIX,
                registry=registry,
                buckets=buckets,
            )

        again = "some of them again after a hand-over"
        self._records = counter("records", f"Records read; {again}", "stage")
        self.events = counter(
            "events",
            "Events counted in a committed contribution, once across all workers",
        )
        self.rejects = counter(
            "rejects",
            "Records that were no events and were committed to the rejects topic",
            "reason",
        )
        self.declined = counter(
            "declined", f"Records that the fast reader left to the general one; {again}"
        )
        self.ticks_closed = counter(
            "ticks_closed",
            "Ticks that source partitions closed, over all source partitions and tick grids",
        )
        self.ticks_released = counter(
            "ticks_released",
            "Ticks that owner partitions released: each tick once for each of them",
            "histogram",
        )
        self.snapshots = counter(
            "snapshots", "Snapshot records that were published", "histogram"
        )
        self.histogram_events = counter(
            "histogram_events",
            "Events that a histogram counted in a committed contribution, once across all workers",
            "histogram",
        )
        self.late_events = counter(
            "late_events",
            "Of these, events that came after their tick had closed, and count in a later one",
            "histogram",
        )
        self.snapshot_bytes = counter(
            "snapshot_bytes",
            "Bytes of the snapshot records that were published",
            "histogram",
        )
        self._commit_seconds = histogram(
            "commit_seconds",
            "Seconds that a Kafka transaction took, with all its repetitions",
            _COMMIT_S,
            "stage",
        )
        self._aborted = counter(
            "transactions_aborted",
            "Transactions that were aborted and tried again",
            "stage",
        )
        self.release_seconds = histogram(
            "release_seconds",
            "Seconds to merge and release the complete ticks, before they are committed",
            _RELEASE_S,
        )
        self.recovery_seconds = histogram(
            "recovery_seconds",
            "Seconds from an assignment until its partitions are taken over, state loaded",
            _RECOVERY_S,
        )
        self.recovered_records = counter(
            "recovered_records", "State records read from changelogs while taking over"
        )
        self.acquired = counter(
            "partitions_acquired", "Partitions of either stage that were taken over"
        )
        self.released = counter(
            "partitions_given_up", "Partitions of either stage that were given up"
        )
        self.unread_topics = Gauge(
            "unread_topics",
            (
                "Topics that match events.topic and are not counted, "
                "since the set of topics is fixed by the first start"
            ),
            namespace=PREFIX,
            registry=registry,
        )
        self.outage = Outage()
        self.waits = Waits()
        registry.register(OutageMetrics(self.outage))
        held_up = Gauge(
            "held_up_seconds",
            "Seconds for which something has waited while brokers answer; 0 below 5",
            namespace=PREFIX,
            registry=registry,
        )
        held_up.set_function(lambda: self.waits.seconds)
        self.registry_waits = counter(
            "schema_registry_waits",
            "Times that records had to wait for a schema because the registry did not answer",
        )
        self.rejecting = RejectRate()
        self.late = LateRate()
        self._lock = Lock()
        # Histograms for which `begins_to_publish` was called.
        self._publishing = set[str]()
        self.fenced = counter(
            "fenced",
            "Shards of this worker that a newer owner took over while they were at work",
        )

    def stage(self, name: str) -> StageMetrics:
        """Return a stage's own metrics, which are shown from now on, if only as zero."""
        return StageMetrics(
            records=self._records.labels(name),
            commit_seconds=self._commit_seconds.labels(name),
            aborted_transactions=self._aborted.labels(name),
        )

    def begins_to_publish(self, histogram: str) -> bool:
        """Return True the first time that this is asked of a histogram, for a line in the log."""
        with self._lock:
            is_first = histogram not in self._publishing
            self._publishing.add(histogram)
        return is_first

    def expect_histogram(self, name: str) -> None:
        """Show a histogram's counters, as zero so far: Prometheus cannot alert on absent series."""
        for counter in (
            self.ticks_released,
            self.snapshots,
            self.snapshot_bytes,
            self.histogram_events,
            self.late_events,
        ):
            counter.labels(name)

    def count_events(self, histogram: str, events: int, late: int) -> None:
        """Add `events` of a commit, of which `late` came after their tick had closed."""
        self.histogram_events.labels(histogram).inc(events)
        self.late_events.labels(histogram).inc(late)
        self.late.note(histogram, time.monotonic(), events, {LATE: late})


class OutageMetrics(Collector):
    """Collector of the metrics of Kafka's outages, computed at every scrape."""

    def __init__(self, outage: Outage) -> None:
        self._outage = outage

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics, of which the registry needs only the names here."""
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        """Yield how long the present outage lasts, and how many there were."""
        yield GaugeMetricFamily(
            f"{PREFIX}_kafka_away_seconds",
            "Seconds for which no broker has answered; 0 while Kafka is there",
            self._outage.seconds,
        )
        yield CounterMetricFamily(
            f"{PREFIX}_kafka_outages",
            "Times that Kafka went away",
            self._outage.count,
        )


class WithWorkerLabel(Collector):
    """Collector that adds the label `worker` to every series of another collector."""

    def __init__(self, inner: Collector, worker: str) -> None:
        self._inner = inner
        self._worker = worker

    def collect(self) -> Iterator[Metric]:
        """Add the label to the inner collector's metrics, which it makes for every scrape."""
        for family in self._inner.collect():
            family.samples = [
                sample._replace(labels={"worker": self._worker, **sample.labels})
                for sample in family.samples
            ]
            yield family
