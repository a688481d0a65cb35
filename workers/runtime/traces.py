"""OpenTelemetry spans of a shard's work: what it read, what it committed, and from what.

    <stage> batch    part of a fetch was processed; links to the commits that wrote its messages
    <stage> commit   one transaction; links to the batches since the last one

A commit's context travels to the next stage in the header `traceparent` of its messages, never of a
snapshot: a tick has one set of bytes. Attributes are exact (numbers of records), as metrics are.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from workers.runtime.errors import SettingsError

if TYPE_CHECKING:
    from opentelemetry.trace import Link

#: https://www.w3.org/TR/trace-context/
HEADER = "traceparent"
#: Further batches of one transaction are not linked; the SDK keeps as many links by default.
_LINKS_MAX = 128


class Traces:
    """Sends spans from a thread of its own; those that no collector takes are dropped."""

    def __init__(self, endpoint: str, worker: str) -> None:
        """`endpoint` takes OTLP over HTTP. Raise SettingsError without the (optional) SDK."""
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import (
                OTLPSpanExporter,
            )
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace.propagation import tracecontext
        except ImportError as error:
            raise SettingsError(
                f"worker.traces = {endpoint!r} needs OpenTelemetry: pip install 'quietcount[traces]'"
            ) from error
        resource = Resource.create(
            {"service.name": "quietcount", "quietcount.worker": worker}
        )
        # `close` shuts it down.
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        sending = BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint))
        self._provider.add_span_processor(sending)
        self._tracer = self._provider.get_tracer("quietcount")
        # The module, for `current` and `read`.
        self._api = trace
        self._headers = tracecontext.TraceContextTextMapPropagator()

    def close(self) -> None:
        """Send what is left, for at most some seconds."""
        self._provider.shutdown()

    def span(self, name: str, links: Iterable["Link"], **attributes: int) -> Any:
        """Return a context manager: a new span while its block runs, without errors' texts."""
        return self._tracer.start_as_current_span(
            name,
            links=list(links),
            attributes=attributes,
            # Both would have the text of an error, which may have an event's.
            record_exception=False,
            set_status_on_exception=False,
        )

    def current(self) -> "Link":
        """Return a link to the current span."""
        return self._api.Link(self._api.get_current_span().get_span_context())

    def header(self) -> tuple[str, bytes]:
        """Return the header that names the current span."""
        carrier = dict[str, str]()
        self._headers.inject(carrier)
        return HEADER, carrier[HEADER].encode()

    def read(self, header: bytes) -> "Link":
        """Return a link to the span that a header names; to none if it is malformed."""
        context = self._headers.extract({HEADER: header.decode("ascii", "replace")})
        return self._api.Link(self._api.get_current_span(context).get_span_context())


class ShardTraces:
    """The spans of one shard, in its thread; without `traces` there are none."""

    def __init__(self, traces: Traces | None, stage: str, partition: int) -> None:
        """`stage` and `partition` say in the spans which shard it was."""
        self._traces = traces
        self._stage = stage
        self._partition = partition
        # The batches since the last commit.
        self._batches: list[Link] = []

    @contextmanager
    def batch(self, headers: Iterable[bytes], start: int, end: int) -> Iterator[None]:
        """Trace the processing of a batch, from offset `start` to before `end`.

        `headers` of its messages name the commits that wrote them.
        """
        if self._traces is None:
            yield
            return
        links = [self._traces.read(header) for header in dict.fromkeys(headers)]
        place = {"partition": self._partition, "start": start, "end": end}
        with self._traces.span(f"{self._stage} batch", links, **place):
            if len(self._batches) < _LINKS_MAX:
                self._batches.append(self._traces.current())
            yield

    @contextmanager
    def commit(self, messages: int) -> Iterator[tuple[str, bytes] | None]:
        """Trace a transaction of so many messages; yield the header that they carry, if traced."""
        if self._traces is None:
            yield None
            return
        links = self._batches
        self._batches = []
        size = {"partition": self._partition, "messages": messages}
        with self._traces.span(f"{self._stage} commit", links, **size):
            yield self._traces.header()
