"""The operator's port: HTTP from a thread of its own, which answers even when the worker is stuck.

GET and HEAD only. Its figures are exact, so it listens on 127.0.0.1 unless told otherwise.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import MappingProxyType
from typing import Self

import prometheus_client
from aiohttp import hdrs, web
from aiohttp.typedefs import Handler
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder

from workers.errors import SettingsError
from workers.kafka.handover import Handover
from workers.metrics import CONTRIBUTE, RELEASE, OfWorker
from workers.monitor.health import Answer, Health, answers
from workers.monitor.partitions import Partitions
from workers.serving import InThread, listening, url_of
from workers.settings import Settings

logger = logging.getLogger(__name__)

CLOSING_S = 1.0
HEADERS = MappingProxyType(
    {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Server": "quietcount"}
)


def registry_of(
    settings: Settings, handover: Handover, health: Health, partitions: Mapping[str, int]
) -> CollectorRegistry:
    """Return all that /metrics shows; `partitions` are those of each stage's input topics."""
    # When each series began would be told too, and there would be twice as many series.
    # When a series began would be a second series for each.
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # it has no types
    ticks_ms = {config.name: config.tick_ms for config in settings.histograms}
    gauges = Partitions(handover, health, partitions, ticks_ms, settings.events.grace_ms)
    for name in ticks_ms:
        handover.metrics.expect_histogram(name)
    for stage in (CONTRIBUTE, RELEASE):
        handover.metrics.stage(stage)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(OfWorker(handover.metrics.registry, settings.worker.name))
    registry.register(OfWorker(gauges, settings.worker.name))
    ProcessCollector(registry=registry)
    return registry


class OperatorsPort:
    """The port of one worker: it listens from the first `show` to the end of the `with` block."""

    def __init__(self, settings: Settings, port: int | None) -> None:
        """Take the port; 0 is any free one, None is none."""
        self._settings, self._port = settings, port
        self._shown = _Shown()
        self._open = ExitStack()
        #: Where it listens; None: nowhere.
        self.address: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def show(self, handover: Handover, partitions: Mapping[str, int]) -> None:
        """Show a hand-over from now on; `partitions` are those of each stage's input topics.

        Raises:
            SettingsError: the port cannot be had.
        """
        settings = self._settings
        if self._port is None:
            return
        health = Health(
            handover,
            commit_interval_s=settings.worker.commit_interval_ms / 1000,
            tick_s=min(config.tick_ms for config in settings.histograms) / 1000,
            grace_ms=settings.events.grace_ms,
        )
        self._shown.registry = registry_of(settings, handover, health, partitions)
        self._shown.states = answers(health, handover)
        if self.address is None:
            self._listen(self._port)

    def _listen(self, port: int) -> None:
        host = self._settings.worker.metrics_host
        try:
            listener = listening(host, port)
        except OSError as error:
            reason = error.strerror or str(error)
            raise SettingsError(
                f"worker.metrics_port = {port}: cannot listen on {host}:{port}: {reason}. Each worker of a machine "
                "needs a port of its own: `quietcount run -c FILE --metrics-port PORT`"
            ) from error
        app = _application(self._shown)

        async def run(stopped: asyncio.Event, ready: Callable[[], None]) -> None:
            runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=CLOSING_S)
            await runner.setup()
            try:
                await web.SockSite(runner, listener).start()
                ready()
                await stopped.wait()
            finally:
                await runner.cleanup()

        self._open.enter_context(listener)
        self._open.enter_context(InThread(run, "monitor"))
        self.address = url_of(listener.getsockname()[0], listener)
        logger.info("metrics, health and readiness (exact: for the operator only): %s/metrics", self.address)


class _Shown:
    """What the port shows now."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.states: Mapping[str, Callable[[], Answer]] = {}


def _application(shown: _Shown) -> web.Application:
    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method not in (hdrs.METH_GET, hdrs.METH_HEAD):
            response: web.StreamResponse = web.Response(
                status=405, text="GET or HEAD\n", headers={hdrs.ALLOW: "GET, HEAD"}
            )
        elif request.match_info.http_exception is not None:
            response = web.Response(status=404, text="/metrics, /healthz or /readyz\n")
        else:
            response = await handler(request)
        response.headers.update(HEADERS)
        return response

    async def metrics(request: web.Request) -> web.Response:
        encode, kind = choose_encoder(request.headers.get(hdrs.ACCEPT) or "")
        return web.Response(body=encode(shown.registry), headers={hdrs.CONTENT_TYPE: kind})

    async def state(request: web.Request) -> web.Response:
        status, body = shown.states[request.path]()
        text = json.dumps(body).encode() + b"\n"
        return web.Response(status=status, body=text, content_type="application/json")

    app = web.Application(middlewares=[guard])
    app.router.add_get("/metrics", metrics)
    for path in shown.states:
        app.router.add_get(path, state)
    return app
