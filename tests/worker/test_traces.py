"""Spans of a real worker, as a collector receives them."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Self

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)

from tests.worker.harness import Site, now_ms, sale, unk
from workers.kafka.reading import bounds_of, read_spans, reader
from workers.runtime.traces import Traces

pytestmark = pytest.mark.slow


class Collector(ThreadingHTTPServer):
    """Takes spans while its block runs."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.spans: list[Any] = []
        self.endpoint = f"http://127.0.0.1:{self.server_port}/v1/traces"

    def __enter__(self) -> Self:
        Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                self.server.spans += scope.spans
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_a_released_tick_leads_back_to_the_batches_of_its_events(
    cluster: str, tmp_path: Path
) -> None:
    """An operator who asks why a tick was late follows the links; snapshots carry no trace."""
    site = Site(cluster, tmp_path, [unk()], partitions=1, owners=1)
    with Collector() as collector:
        site.set("worker", traces=collector.endpoint)
        with site.worker() as worker:
            at = now_ms()
            event = json.dumps(sale(["a"], at, "k0")).encode()
            site.wait_published(site.burst(100, lambda _: event))
            assert worker.stop() == 0
    spans = {span.span_id: span for span in collector.spans}

    def behind(name: str, found: list[Any]) -> list[Any]:
        linked = [spans[link.span_id] for span in found for link in span.links]
        assert linked and {span.name for span in linked} == {name}
        return linked

    released = [
        one for one in collector.spans if one.name == "release commit" and one.links
    ]
    commits = behind("contribute commit", behind("release batch", released))
    batches = behind("contribute batch", [one for one in commits if one.links])
    ends = [
        n.value.int_value for one in batches for n in one.attributes if n.key == "end"
    ]
    assert max(ends) == 100
    topic = site.settings.output_topic(site.settings.histograms[0])
    with reader(site.connection) as consumer:
        where = {(topic, 0): bounds_of(consumer, topic, 0)}
        for taken in read_spans(consumer, where):
            assert not any(message.headers() for message in taken.messages)


def test_no_span_has_the_text_of_an_error() -> None:
    """It may quote an event."""
    said = "what an event said"
    with Collector() as collector:
        traces = Traces(collector.endpoint, "worker")
        with pytest.raises(ValueError, match=said), traces.span("contribute batch", ()):
            raise ValueError(said)
        traces.close()
    [span] = collector.spans
    assert span.name == "contribute batch"
    assert said.encode() not in span.SerializeToString()
