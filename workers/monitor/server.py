"""The operator's port: a small HTTP server in threads of its own, so that it answers even when the event loop is stuck.

GET and HEAD only. What it shows is exact: it listens on 127.0.0.1 unless told otherwise.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import prometheus_client
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder

from workers.errors import SettingsError
from workers.kafka.handover import Handover
from workers.metrics import CONTRIBUTE, RELEASE, OfWorker
from workers.monitor.health import Answer, Health, Rhythm, answers
from workers.monitor.partitions import Partitions
from workers.settings import Settings

logger = logging.getLogger(__name__)

_PLAIN = "text/plain; charset=utf-8"
_CLIENT_S = 10.0


def registry_of(
    settings: Settings, handover: Handover, health: Health, partitions: Mapping[str, int]
) -> CollectorRegistry:
    """Everything that /metrics shows.

    Args:
        settings: of the worker.
        handover: whose shards are looked at.
        health: of the worker.
        partitions: of the input topic of each stage.
    """
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # when a series began: twice the series
    gauges = Partitions(handover, health, partitions, settings.events.grace_ms)
    for config in settings.histograms:
        gauges.add_histogram(config.name, config.tick_ms)
        handover.metrics.expect_histogram(config.name)
    for stage in (CONTRIBUTE, RELEASE):
        handover.metrics.stage(stage)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(OfWorker(handover.metrics.registry, settings.worker.name))
    registry.register(OfWorker(gauges, settings.worker.name))
    ProcessCollector(registry=registry)
    return registry


@contextmanager
def monitor(
    settings: Settings, handover: Handover, partitions: Mapping[str, int], port: int | None
) -> Iterator[str | None]:
    """Serve the operator's port while the block runs; yield its address, or None without a port.

    Args:
        settings: of the worker.
        handover: whose shards are looked at.
        partitions: of the input topic of each stage.
        port: to listen on; 0: any free one.

    Raises:
        SettingsError: the port cannot be had.
    """
    if port is None:
        yield None
        return
    rhythm = Rhythm(
        commit_interval_s=settings.worker.commit_interval_ms / 1000,
        tick_s=min(config.tick_ms for config in settings.histograms) / 1000,
        grace_ms=settings.events.grace_ms,
    )
    health = Health(handover, rhythm)
    server = _listen(settings.worker.metrics_host, port)
    server.registry = registry_of(settings, handover, health, partitions)
    server.answers = answers(health, handover)
    threading.Thread(target=server.serve_forever, name="monitor", daemon=True).start()
    try:
        host, bound = server.server_address[:2]
        name = host.decode() if isinstance(host, bytes) else str(host)
        address = f"http://{f'[{name}]' if ':' in name else name}:{bound}"
        logger.info("metrics, health and readiness (exact: for the operator only): %s/metrics", address)
        yield address
    finally:
        server.shutdown()
        server.server_close()


class _Server(ThreadingHTTPServer):
    """The listening socket and what is served."""

    daemon_threads = True
    registry: CollectorRegistry
    answers: Mapping[str, Callable[[], Answer]]

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: clients that go away in the middle are no news."""


def _listen(host: str, port: int) -> _Server:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        kind = type("_Listener", (_Server,), {"address_family": family})
        server: _Server = kind(address, _Handler)
    except OSError as error:
        reason = error.strerror or str(error)
        raise SettingsError(
            f"worker.metrics_port = {port}: cannot listen on {host}:{port}: {reason}. Each worker of a machine needs a port "
            "of its own: `quietcount run -c FILE --metrics-port PORT`"
        ) from error
    return server


class _Handler(BaseHTTPRequestHandler):
    """Answers one client."""

    server: _Server
    timeout = _CLIENT_S

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            encode, kind = choose_encoder(self.headers.get("Accept") or "")
            self._reply(200, kind, encode(self.server.registry))
        elif path in self.server.answers:
            status, body = self.server.answers[path]()
            self._reply(status, "application/json", json.dumps(body).encode() + b"\n")
        else:
            self._reply(404, _PLAIN, b"/metrics, /healthz or /readyz\n")

    do_HEAD = do_GET

    def _refuse(self) -> None:
        self._reply(405, _PLAIN, b"GET or HEAD\n", ("Allow", "GET, HEAD"))

    do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = _refuse

    def _reply(self, status: int, kind: str, body: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            *headers,
        ):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        """Name no version."""
        return "quietcount"

    def log_message(self, *_: object) -> None:
        """Nothing: a scrape every few seconds is no news."""
