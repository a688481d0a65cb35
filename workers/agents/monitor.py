"""Operator's port: metrics, health and readiness over HTTP, from a separate thread.

It answers even when the worker is stuck, and listens on 127.0.0.1 by default, since the figures are
exact. Gauges show what this worker owns at the scrape, so none outlives its partition; as other
threads keep working, the values may differ slightly in time.

    alive   the event loop turns, and no shard's thread is stuck in one piece of work (else restart)
    ready   partitions assigned and taken over, their logs read up to now, stage 1 commits in time
            (else wait before the next worker is stopped), and most records are accepted

A worker without partitions is ready; an unreachable broker makes a worker unready, never dead.
"""

from __future__ import annotations

import asyncio
import json
import logging
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import MappingProxyType

import confluent_kafka
import prometheus_client
from aiohttp import hdrs, web
from aiohttp.typedefs import Handler
from prometheus_client import CollectorRegistry, Metric, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from workers.agents.release import ReleaseShard
from workers.agents.source_shard import SourceShard
from workers.kafka.handover import KAFKA_AWAY, Handover
from workers.runtime.errors import SettingsError
from workers.runtime.metrics import CONTRIBUTE, PREFIX, RELEASE, WithWorkerLabel
from workers.runtime.process import version
from workers.runtime.serving import ServerThread, listen, open_listener, url_of
from workers.settings.settings import Settings

logger = logging.getLogger(__name__)

#: Name without prefix, with labels in Prometheus' notation, and help; in display order.
GAUGES: Mapping[str, str] = MappingProxyType(
    {
        "build_info{version,python,librdkafka}": "What runs here; always 1",
        "ready": "1 when /readyz says so",
        "partitions_assigned{stage}": "Partitions that this worker owns",
        "topic_partitions{stage}": "Partitions of the stage's input topics; the workers together must own all",
        "tick_seconds{histogram}": "Width of a tick",
        "grace_seconds": "How long a tick stays open for late events: what always lies between clock and watermark",
        "rejecting{topic}": "1 while nearly all records of a topic are rejected; /readyz gives the most common reason",
        "watermark_lag_seconds{topic,partition}": "Seconds from the time up to which a source partition closed its ticks to now",
        "release_lag_seconds{histogram,partition}": "Seconds from the end of the last tick that an owner partition released to now",
        "consumer_lag_records{stage,topic,partition}": "Records in the log that are not processed",
        "consumer_lag_seconds{stage,topic,partition}": "Seconds for which the log has had records that are not processed",
        "commit_age_seconds{stage,topic,partition}": "Seconds since the last commit, or since the partition was taken over",
        "copy_missing{stage,topic,partition}": "1 while the state is in memory because its local copy cannot be on disk",
        "ledger_rows{histogram,partition}": "Rows of the ledger: items of all stream keys",
        "ledger_bytes{histogram,partition}": "Bytes of the ledger's columns in memory",
        "waiting_bytes{partition,place}": "Bytes of contributions that wait for a slower source partition",
    }
)


@dataclass(eq=False)
class PartitionGauges(Collector):
    """The gauges of `GAUGES`, read from the hand-over and its shards at every scrape.

    The hand-over has this worker's shards, by topic and partition; `topic_partitions` is by stage.
    """

    health: Health
    topic_partitions: Mapping[str, int]

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges with their values now; a value that is not known is left out."""
        families = _families()
        settings = self.health.settings
        handover = self.health.handover
        now_s = time.monotonic()
        now_ms = time.time_ns() // 1_000_000

        def show(name: str, value: float, *labels: object) -> None:
            """Set a gauge, with the values of its labels in the order of `GAUGES`."""
            families[name].add_metric([str(label) for label in labels], value)

        versions = platform.python_version(), confluent_kafka.libversion()[0]
        show("build_info", 1, version() or "unknown", *versions)
        show("ready", 0 if self.health.readiness_reasons(now_s, now_ms) else 1)
        shards = list(handover.shards.items())
        for stage, number in self.topic_partitions.items():
            assigned = sum(shard.stage == stage for _, shard in shards)
            show("partitions_assigned", assigned, stage)
            show("topic_partitions", number, stage)
        show("grace_seconds", settings.events.grace_ms / 1000)
        for config in settings.histograms:
            show("tick_seconds", config.tick_ms / 1000, config.name)
        rejecting = handover.metrics.rejecting
        for topic in source_topics(handover):
            show("rejecting", rejecting.reason(topic, now_s) is not None, topic)
        for tp, shard in shards:
            if shard.closed:  # taken over by another worker, which shows it
                continue
            where = shard.stage, *tp
            if (lag := handover.lags.get(tp)) is not None:
                show("consumer_lag_records", lag.records, *where)
                show("consumer_lag_seconds", lag.seconds(now_s), *where)
            if shard.last_commit_s:  # 0 before it is opened
                show("commit_age_seconds", now_s - shard.last_commit_s, *where)
            show("copy_missing", shard.store.in_memory, *where)
            if isinstance(shard, SourceShard) and shard.watermark is not None:
                show("watermark_lag_seconds", (now_ms - shard.watermark) / 1000, *tp)
            elif isinstance(shard, ReleaseShard):
                for histogram in shard.merge.histograms:
                    name = histogram.name
                    tick = histogram.next
                    if tick is not None:
                        lag_s = (now_ms - histogram.grid.end(tick - 1)) / 1000
                        show("release_lag_seconds", lag_s, name, shard.partition)
                    columns = histogram.columns
                    show("ledger_rows", columns.n, name, shard.partition)
                    show("ledger_bytes", columns.nbytes, name, shard.partition)
                waiting = shard.merge.waiting
                show("waiting_bytes", waiting.held_bytes, shard.partition, "memory")
                show("waiting_bytes", waiting.spilled_bytes, shard.partition, "file")
        yield from families.values()


def _families() -> dict[str, GaugeMetricFamily]:
    """Return an empty metric for every gauge, by its name without prefix."""
    families = {}
    for gauge, text in GAUGES.items():
        # A name may have labels, as in "name{stage,topic}".
        name, _, labels = gauge.rstrip("}").partition("{")
        names = labels.split(",") if labels else ()
        families[name] = GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=names)
    return families


#: The event loop is stuck if it stands still for this long; it turns every 0.2 s.
LOOP_S = 30.0
#: A shard is stuck after this long at one piece of work. A mechanism's longest step takes seconds,
#: and waiting for Kafka does not count.
SHARD_S = 600.0
#: Reading is behind once a record has waited this long in the log.
BEHIND_S = 30.0
#: Allowed beyond the longest time between two commits of stage 1.
COMMIT_MARGIN_S = 60.0


# HTTP status, and the body as JSON.
Answer = tuple[int, dict[str, object]]


class Health:
    """Liveness and readiness of a hand-over and its shards. Thread-safe."""

    def __init__(self, settings: Settings, handover: Handover) -> None:
        """`handover` has this worker's shards, how far behind each is, and when its loop turned."""
        self.settings = settings
        self.handover = handover
        # A source shard commits within `_idle_s` of reading an event; without events it may take
        # `_tick_s` more, until the clock closes its next tick.
        self._idle_s = settings.worker.commit_interval_ms / 1000 + COMMIT_MARGIN_S
        self._tick_s = min(config.tick_ms for config in settings.histograms) / 1000

    def liveness_reasons(self, now_s: float) -> list[str]:
        """Return the reasons to restart the worker, if any; `now_s` is monotonic."""
        reasons = []
        # The event loop notes when it turned last.
        still_s = now_s - self.handover.beat_s
        if still_s > LOOP_S:
            reasons.append(f"the event loop has stood still for {still_s:.0f} s")
        for shard in list(self.handover.shards.values()):
            work_s = 0.0 if shard.busy_since_s is None else now_s - shard.busy_since_s
            if work_s > SHARD_S:
                name = shard.transactional_id
                reasons.append(
                    f"{name} has been at one piece of work for {work_s:.0f} s"
                )
        return reasons

    def readiness_reasons(self, now_s: float, now_ms: int) -> list[str]:
        """Return why the worker is not ready, if so; `now_s` is monotonic, `now_ms` wall clock."""
        handover = self.handover
        if handover.exit_status not in (None, KAFKA_AWAY):
            return ["stopping"]
        outage = handover.metrics.outage
        if outage.is_active:
            return [f"Kafka has been away for {outage.seconds:.0f} s: {outage.reason}"]
        reasons = handover.metrics.waits.reasons
        if not handover.assigned:
            return [
                *reasons,
                "no partitions are assigned, or they are still being taken over",
            ]
        for topic in source_topics(handover):
            reason = handover.metrics.rejecting.reason(topic, now_s)
            if reason is not None:
                reasons.append(
                    f"{topic}: nearly all records are rejected, most of them: {reason}: `quietcount check -c FILE` says why"
                )
        for tp, shard in list(handover.shards.items()):
            name = f"{tp[0]}[{tp[1]}]"
            if shard.closed:
                reasons.append(
                    f"{name}: taken over by a newer owner, and not reassigned yet"
                )
                continue
            lag = handover.lags.get(tp)
            if lag is None or not lag.reached:
                reasons.append(
                    f"{name}: not read yet up to where it ended when it was taken over"
                )
            elif (behind_s := lag.seconds(now_s)) > BEHIND_S:
                reasons.append(f"{name}: {behind_s:.0f} s behind")
            if isinstance(shard, SourceShard):
                age_s = now_s - shard.last_commit_s
                if age_s > self._longest_s(shard, now_ms):
                    reasons.append(f"{name}: no commit for {age_s:.0f} s")
        return reasons

    def healthz(self) -> Answer:
        reasons = self.liveness_reasons(time.monotonic())
        return 503 if reasons else 200, {"alive": not reasons, "reasons": reasons}

    def readyz(self) -> Answer:
        """Answer /readyz: whether the worker is ready, why not, and the progress of its shards."""
        now_s = time.monotonic()
        reasons = self.readiness_reasons(now_s, time.time_ns() // 1_000_000)
        shards = []
        for tp, shard in list(self.handover.shards.items()):
            lag = self.handover.lags.get(tp)
            committed_s = shard.last_commit_s
            shards.append(
                {
                    "stage": shard.stage,
                    "topic": tp[0],
                    "partition": tp[1],
                    "behind_seconds": None
                    if lag is None
                    else round(lag.seconds(now_s), 1),
                    "commit_age_seconds": round(now_s - committed_s, 1)
                    if committed_s
                    else None,
                }
            )
        body = {"ready": not reasons, "reasons": reasons, "partitions": shards}
        return 503 if reasons else 200, body

    def _longest_s(self, shard: SourceShard, now_ms: int) -> float:
        """Return how long a shard that works as it should may now be without a commit, in s."""
        # It has read events that are not committed.
        if shard.offset != shard.committed:
            return self._idle_s
        # The clock closes the next tick, later if events dated ahead have closed some early.
        ahead_ms = 0
        if shard.watermark is not None:
            ahead_ms = max(0, shard.watermark + self.settings.events.grace_ms - now_ms)
        return self._idle_s + self._tick_s + ahead_ms / 1000


def source_topics(handover: Handover) -> list[str]:
    """Return the topics from which this worker's shards read events."""
    shards = list(handover.shards.items())
    return list(
        dict.fromkeys(tp[0] for tp, shard in shards if isinstance(shard, SourceShard))
    )


CLOSING_S = 1.0
_OPENMETRICS = "application/openmetrics-text"
HEADERS = MappingProxyType(
    {
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "Server": "quietcount",
    }
)


def _refuse_unreadable(status: int, _: BaseException | None) -> web.Response:
    text = "no readable request\n" if status < 500 else "internal error\n"
    return web.Response(status=status, text=text, headers=HEADERS)


def metrics_registry(
    health: Health, partitions: Mapping[str, int]
) -> CollectorRegistry:
    """Return everything that /metrics shows, every series with the worker's name.

    `partitions` has the number of partitions of every stage's input.
    """
    settings = health.settings
    metrics = health.handover.metrics
    # Creation times would double the number of series.
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # it has no types
    for config in settings.histograms:
        metrics.expect_histogram(config.name)
    for stage in (CONTRIBUTE, RELEASE):
        metrics.stage(stage)
    registry = CollectorRegistry(auto_describe=False)
    for collector in (metrics.registry, PartitionGauges(health, partitions)):
        registry.register(WithWorkerLabel(collector, settings.worker.name))
    ProcessCollector(registry=registry)
    return registry


class OperatorPort(ExitStack):
    """Port of one worker, open from the first `show` to the end of the `with` block."""

    def __init__(self, settings: Settings, port: int | None) -> None:
        """Port 0 is any free one; None: nothing is served."""
        super().__init__()
        self._settings = settings
        self._port = port
        # What is shown now: /metrics, and by path the functions that answer the others.
        self._registry = CollectorRegistry()
        self._states: Mapping[str, Callable[[], Answer]] = {}
        self.address: str | None = None

    def show(self, handover: Handover, partitions: Mapping[str, int]) -> None:
        """Show a hand-over from now on; raise SettingsError if the port cannot be opened.

        `partitions` has the number of partitions of every stage's input.
        """
        if self._port is None:
            return
        health = Health(self._settings, handover)
        self._registry = metrics_registry(health, partitions)
        self._states = {"/healthz": health.healthz, "/readyz": health.readyz}
        if self.address is None:
            self._listen(self._port)

    def _listen(self, port: int) -> None:
        """Serve on a port, in a thread, until the context ends."""
        host = self._settings.worker.metrics_host
        try:
            listener = open_listener(host, port)
        except OSError as error:
            reason = error.strerror or str(error)
            raise SettingsError(
                f"worker.metrics_port = {port}: cannot listen on {host}:{port}: {reason}. Each worker of a machine "
                "needs a port of its own: `quietcount run -c FILE --metrics-port PORT`"
            ) from error
        app = self._application()

        async def run(stopped: asyncio.Event, ready: Callable[[], None]) -> None:
            """Serve in the thread's event loop until `stopped`; call `ready` once it serves."""
            runner = web.AppRunner(
                app, handle_signals=False, access_log=None, shutdown_timeout=CLOSING_S
            )
            await runner.setup()
            try:
                server = await listen(runner, listener, _refuse_unreadable)
                ready()
                await stopped.wait()
                server.close()
            finally:
                await runner.cleanup()

        self.enter_context(listener)
        self.enter_context(ServerThread(run, "monitor"))
        self.address = url_of(listener.getsockname()[0], listener)
        logger.info(
            "metrics, health and readiness (exact: for the operator only): %s/metrics",
            self.address,
        )

    def _application(self) -> web.Application:
        """Return the HTTP application: /metrics, /healthz, /readyz, and for all else an error."""

        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            """Answer wrong methods and paths, all else by `handler`; add headers to all."""
            if request.method not in (hdrs.METH_GET, hdrs.METH_HEAD):
                response: web.StreamResponse = web.Response(
                    status=405, text="GET or HEAD\n", headers={hdrs.ALLOW: "GET, HEAD"}
                )
            elif request.match_info.http_exception is not None:
                response = web.Response(
                    status=404, text="/metrics, /healthz or /readyz\n"
                )
            else:
                response = await handler(request)
            response.headers.update(HEADERS)
            return response

        async def metrics(request: web.Request) -> web.Response:
            """Answer /metrics, in OpenMetrics' format if the request accepts it."""
            # Reduced to whether it names OpenMetrics: other contents make `choose_encoder` fail.
            accepted = request.headers.get(hdrs.ACCEPT) or ""
            encode, kind = choose_encoder(
                _OPENMETRICS if _OPENMETRICS in accepted else ""
            )
            return web.Response(
                body=encode(self._registry), headers={hdrs.CONTENT_TYPE: kind}
            )

        async def state(request: web.Request) -> web.Response:
            """Answer /healthz or /readyz."""
            status, body = self._states[request.path]()
            text = json.dumps(body).encode() + b"\n"
            return web.Response(
                status=status, body=text, content_type="application/json"
            )

        app = web.Application(middlewares=[guard])
        app.router.add_get("/metrics", metrics)
        for path in self._states:
            app.router.add_get(path, state)
        return app
