"""Routes of the dashboard, described in docs/api.md.

GET /                      the page
GET /snapshot.schema.json  the JSON Schema of snapshots
GET /api/histograms        list of histograms
GET /api/snapshots         latest snapshots of one stream
GET /api/stream            new snapshots, as server-sent events
GET /api/history           a stored stream over time
GET /api/epochs            the last stored snapshot of each epoch
GET /healthz, /readyz      process monitoring
GET /metrics               Kafka outages, for Prometheus

Error responses are JSON and quote nothing from an unreadable request. Files are chunked, so that a
client notices a truncated one.

What is not read yet is 503, never empty or 404 (`ticks`).

A stream is a histogram's snapshots for one stream key, one each tick. A series is the part of it
that counts on from one zero: an epoch, with an id of its own. The hub has the newest ticks in
memory, the store the history on disk. Viewers are the clients of /api/stream. What one topic has is
a histogram here, also one window of a histogram without epochs: `settings_name` is what the
settings call that.
"""

import asyncio
import hashlib
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.resources import files
from typing import Any, NamedTuple, cast

import orjson
from aiohttp import hdrs, web
from aiohttp.http_exceptions import BadHttpMethod, LineTooLong
from aiohttp.typedefs import Handler
from multidict import MultiDict, MultiMapping
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder

from workers.client.changes import can_subtract, changes, ticks_of
from workers.client.config import HistogramTopic, ReaderSettings
from workers.client.messages import Stream, select_items
from workers.client.schema import snapshot_schema
from workers.dashboard.guard import (
    ALLOWED,
    guard,
    headers_for,
    reader_of,
    refusal,
    set_headers,
)
from workers.dashboard.hub import (
    READING,
    TOPS,
    Filter,
    Hub,
    Viewer,
    budget_for,
    catalog,
    event,
    joint_guarantee,
    now_ms,
)
from workers.dashboard.readers import Reader, Readers
from workers.dashboard.store.files import (
    Format,
    HistoryFile,
    Table,
    TicksGone,
    tick_file,
)
from workers.dashboard.store.queries import (
    AnswerTooLarge,
    EpochsQuery,
    HistoryQuery,
    NotReadYet,
    NotStored,
    Range,
    TickQuery,
    epochs,
    history,
    iso,
    locate,
)
from workers.dashboard.store.store import QueryFailed, Store
from workers.dashboard.ticks import (
    NAME_CHARS,
    NoTick,
    NotYet,
    Ticks,
    Unanswered,
    with_end_time,
)
from workers.mechanisms.config.durations import parse_duration
from workers.mechanisms.config.histogram import EPOCH
from workers.mechanisms.config.views import ALL_KEYS
from workers.mechanisms.registry import MECHANISMS
from workers.runtime.metrics import OutageMetrics, WithWorkerLabel
from workers.settings.settings import ALL_STREAM_KEY


def refuse_unreadable(status: int, error: BaseException | None) -> web.Response:
    """Return the response to a request that aiohttp could not read, or whose handler failed.

    `status` is the one that aiohttp would answer with: from 500 on for a failed handler.
    """
    if isinstance(error, BadHttpMethod):
        response = refusal(405, "read-only: GET", Allow=ALLOWED)
    elif isinstance(error, LineTooLong):
        response = refusal(
            400, "the address or a header is too long: at most 8,190 bytes"
        )
    else:
        response = refusal(
            status, "no readable request" if status < 500 else "internal error"
        )
    set_headers(response)
    return response


# A viewer gets an event at least so often.
BEAT_S = 5.0
RETRY_AFTER = {"Retry-After": "5"}
# A client that receives nothing for this long is disconnected.
STALLED_S = 60.0
# Time between two looks whether a viewer's connection has taken what was written.
DRAIN_S = 0.05
VIEWERS_MAX = 2_000
SNAPSHOTS_MAX = 1_000
PAGE_TYPES = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}
ITEMS_MAX = 100
KEYS_MAX = 100
# Answers with changes that are kept for further viewers, and the bytes of one at most.
CHANGES_KEPT = 64
CHANGES_BYTES = 256 << 10
# Bytes from which an answer is compressed.
COMPRESS_FROM = 1_024
ENTRIES_MAX = 10_000
EPOCHS_MAX = 1_000
TOP_MAX = 2**31
# Integers that a browser reads exactly.
INT_MAX = 2**53 - 1
FILE_TYPES = {"csv": "text/csv", "parquet": "application/vnd.apache.parquet"}
# Bytes of a file that are read and sent at once.
CHUNK = 256 << 10
#: Whether a file has all ticks of its range, as far as the dashboard knows.
COMPLETE = "Quietcount-Complete"

TABLES = ("items", "ticks")
HISTORY_PARAMS = {
    "histogram",
    "key",
    "item",
    "from",
    "to",
    "limit",
    "format",
    "table",
}
NEWEST_PARAMS = {"histogram", "key", "after", "limit", "item", "top"}
TICK_PARAMS = {
    "histogram",
    "key",
    "at",
    "epoch",
    "tick",
    "id",
    "item",
    "top",
    "window",
    "since",
}


class BadQuery(ValueError):
    """Invalid query string; the client sees the message."""


def refuse_unknown(query: Mapping[str, str], names: set[str], beside: str = "") -> None:
    """Raise BadQuery if a query has a parameter that is not in `names`.

    `beside` ends "unknown" in the message, such as " with at or tick".
    """
    for name in query:
        if name not in names:
            listed = ", ".join(sorted(names))
            raise BadQuery(f"{name[:NAME_CHARS]}: unknown{beside}; one of {listed}")


def param(query: MultiMapping[str], name: str) -> str:
    """Return a parameter that must be given exactly once."""
    given = query.getall(name, [])
    if len(given) != 1:
        raise BadQuery(f"{name}: only one" if given else f"{name} is missing")
    return given[0]


def int_param(query: MultiMapping[str], name: str, least: int, most: int) -> int:
    """Return a parameter, given exactly once, that is a whole number from `least` to `most`."""
    text = param(query, name)
    # `isdigit` takes digits of other scripts too, and `int` refuses very many with another error.
    if not (
        text.isascii()
        and text.isdigit()
        and len(text) < 20
        and least <= int(text) <= most
    ):
        raise BadQuery(f"{name}: a whole number from {least:,} to {most:,}")
    return int(text)


def optional_int(
    query: MultiMapping[str], name: str, least: int, most: int
) -> int | None:
    """Return a whole number like `int_param`, or None if it is not given."""
    return int_param(query, name, least, most) if name in query else None


def time_param(query: MultiMapping[str], name: str, most: int = INT_MAX) -> int | None:
    """Return a time in ms since 1970, None if it is not given.

    It is given in ms, at most `most`, or in ISO 8601 (without a zone: UTC).
    """
    if name not in query:
        return None
    text = param(query, name)
    if text.isascii() and text.isdigit():
        return int_param(query, name, 0, most)
    try:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        time_ms = (moment - EPOCH) // timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        time_ms = -1
    # No time, or one before 1970.
    if time_ms < 0:
        raise BadQuery(
            f"{name}: a whole number of ms since 1970, or a time such as 2026-11-22T14:00:00Z"
        )
    return time_ms


def duration_param(query: MultiMapping[str], name: str) -> int:
    """Return a duration in ms; it is given in ms or such as 10s, 5m, 1h or 1d."""
    text = param(query, name)
    try:
        duration_ms = parse_duration(text if text[-1:].isalpha() else f"{text}ms")
    except ValueError:
        duration_ms = 0  # refused below
    if not 1 <= duration_ms <= INT_MAX:
        raise BadQuery(
            f"{name}: a whole number of ms from 1, or a duration such as 10s, 5m, 1h or 1d"
        )
    return duration_ms


def stream_of(query: MultiMapping[str]) -> Stream:
    """Return the stream, a histogram and one of its stream keys, that a query names."""
    key = param(query, "key")
    return _stream(param(query, "histogram"), key)


def _stream(histogram: str, key: str) -> Stream:
    # In the settings, all keys together are "$all"; their snapshots have this stream key.
    return Stream(histogram, ALL_STREAM_KEY if key == ALL_KEYS else key)


def items_of(query: MultiMapping[str]) -> list[str]:
    """Return the labels that a query asks for; an empty list is for all."""
    named = query.getall("item", [])
    if len(named) > ITEMS_MAX:
        raise BadQuery(f"item: at most {ITEMS_MAX} of them")
    return named


def json_of(
    value: Mapping[str, object],
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> web.Response:
    """Return a response with a value as its JSON body."""
    return answer(orjson.dumps(value), status, headers)


def answer(
    body: bytes, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Return a response with a JSON body, compressed unless it is short."""
    kind = "application/json"
    response = web.Response(
        body=body, status=status, content_type=kind, headers=headers
    )
    if len(body) >= COMPRESS_FROM:
        response.enable_compression()
    return response


class StaticFile(NamedTuple):
    """A file as served: its bytes, MIME type and ETag."""

    body: bytes
    content_type: str
    etag: str


def application(
    hub: Hub,
    store: Store,
    settings: ReaderSettings,
    *,
    host: str = "127.0.0.1",
    readers: Readers | None = None,
    further: Mapping[str, object] | None = None,
) -> web.Application:
    """Return the web application of a dashboard that listens on `host`.

    It answers from the hub and the store, which the caller fills. Without `readers`, everybody may
    read all. The fields `further` extend the answer of /api/histograms.
    """
    histograms = settings.histograms
    ticks = Ticks(hub, store)
    api = _Api(ticks, {histogram.name: histogram for histogram in histograms})
    app = web.Application(middlewares=[guard(host, readers)], client_max_size=1_024)
    app.on_response_prepare.append(headers_for(host, readers))
    schema = _static_file(orjson.dumps(snapshot_schema()), "application/schema+json")
    app.router.add_get("/snapshot.schema.json", _serve(schema))
    for path, file in pages().items():
        app.router.add_get(f"/{path}", _serve(file))

    async def health(_request: web.Request) -> web.Response:
        return json_of(hub.state)

    async def ready(_request: web.Request) -> web.Response:
        live = hub.state["kafka"] == "live" and not store.opening
        state = {**hub.state, "history": dict(store.state)}
        return json_of(state) if live else json_of(state, 503, RETRY_AFTER)

    # Metrics of outages get a label with the worker's name, those of the process do not.
    registry = CollectorRegistry(auto_describe=False)
    outages = CollectorRegistry()
    outages.register(OutageMetrics(hub.outage))
    registry.register(WithWorkerLabel(outages, settings.worker))
    ProcessCollector(registry=registry)

    async def metrics(request: web.Request) -> web.Response:
        encode, kind = choose_encoder(request.headers.get(hdrs.ACCEPT) or "")
        return web.Response(body=encode(registry), headers={hdrs.CONTENT_TYPE: kind})

    async def close(_app: web.Application) -> None:
        hub.close()

    async def list_histograms(request: web.Request) -> web.Response:
        """Answer /api/histograms: those that the reader may see, and what they promise together.

        While some are not read yet it is a 503, with what is known so far.
        """
        for parameter in request.query:
            return refusal(
                400,
                f"{parameter[:NAME_CHARS]}: unknown; this address takes no parameters",
            )
        await ticks.wait_until_read([histogram.name for histogram in histograms])
        seen = [
            histogram
            for histogram in histograms
            if reader_of(request).may_see(histogram.settings_name)
        ]
        unread = [
            histogram.name
            for histogram in seen
            if histogram.name in hub.unread and histogram.name not in hub.missing
        ]
        listing = {
            "worker": settings.worker,
            "now": now_ms(),
            "state": hub.state,
            "histograms": catalog(hub.history, seen, hub.missing),
            "together": joint_guarantee(hub.history, seen),
            "budget": budget_for(hub, seen),
            "history": dict(store.state),
            **(further or {}),
        }
        if not unread:
            return json_of(listing)
        # The page shows what is known so far beside the state of Kafka.
        error = f"{', '.join(unread)}: not read yet: {hub.why_unread(unread[0])}"
        return json_of({"error": error} | listing, 503, RETRY_AFTER)

    served = {
        "/api/histograms": list_histograms,
        "/api/snapshots": json_errors(api.snapshots),
        "/api/stream": json_errors(api.stream),
        "/healthz": health,
        "/readyz": ready,
        "/api/history": json_errors(api.history),
        "/api/epochs": json_errors(api.epochs),
        "/metrics": metrics,
    }
    for path, handler in served.items():
        app.router.add_get(path, handler)
    app.on_shutdown.append(close)
    return app


def pages() -> dict[str, StaticFile]:
    """Return the page's files by path; "" is the page itself."""
    pages_by_path = {}
    for file in files("workers.dashboard").joinpath("page").iterdir():
        kind = PAGE_TYPES.get(file.name.rpartition(".")[2])
        if kind is not None:
            body = file.read_bytes()
            path = "" if file.name == "index.html" else f"page/{file.name}"
            pages_by_path[path] = _static_file(body, kind)
    pages_by_path["page/mechanisms.js"] = _static_file(
        _mechanisms_module(), PAGE_TYPES["js"]
    )
    return pages_by_path


def _static_file(body: bytes, content_type: str) -> StaticFile:
    return StaticFile(body, content_type, hashlib.sha256(body).hexdigest()[:16])


def _mechanisms_module() -> bytes:
    """Return the properties of every mechanism that the page uses, as a JavaScript module."""
    names = (
        "family",
        "text_on_dashboard",
        "threshold_rule",
        "subtracts",
        "whole_domain",
    )
    declared = {
        mechanism: {name: getattr(config.about, name) for name in names}
        for mechanism, config in MECHANISMS.items()
    }
    return b"export const MECHANISMS = " + orjson.dumps(declared) + b";\n"


def _serve(file: StaticFile) -> Handler:
    """Return a handler for a file; a browser that has it already gets 304 instead."""

    async def serve(request: web.Request) -> web.Response:
        """Send `file`, unless the request names its ETag."""
        # A browser may keep the file, but asks each time whether it has changed.
        headers = {hdrs.CACHE_CONTROL: "no-cache"}
        if any(tag.value == file.etag for tag in request.if_none_match or ()):
            response = web.Response(status=304, headers=headers)
        else:
            response = web.Response(
                body=file.body,
                content_type=file.content_type,
                charset="utf-8",
                headers=headers,
            )
            response.enable_compression()
        response.etag = file.etag
        return response

    return serve


class _Beginning(NamedTuple):
    """Where a window begins over which the change of counts is asked for: at the time `ms`.

    `older` is the tick that ends there, as parsed JSON, whose counts are subtracted; None if the
    series begins there. `last` is the last tick of the epoch before, if the window begins in that
    epoch: its counts are added.
    """

    older: dict[str, Any] | None
    ms: int
    last: dict[str, Any] | None = None


class _Api:
    """The handlers that answer queries about streams."""

    def __init__(self, ticks: Ticks, histograms: Mapping[str, HistogramTopic]) -> None:
        """`histograms` are all that there are, by name."""
        self._ticks = ticks
        self._hub = ticks.hub
        self._store = ticks.store
        self._histograms = histograms
        # Answers with changes, being computed or kept, by the parameters of their query.
        self._changes: dict[tuple[tuple[str, str], ...], asyncio.Task[bytes]] = {}

    def _seen_by(self, reader: Reader) -> set[str]:
        """Return the names of the histograms that a reader may see."""
        return {
            name
            for name, histogram in self._histograms.items()
            if reader.may_see(histogram.settings_name)
        }

    def _refuse_unknown(self, request: web.Request, histogram: str) -> None:
        """Raise NotStored if there is no such histogram, or this reader may not see it."""
        seen = self._seen_by(reader_of(request))
        if histogram not in seen:
            listed = ", ".join(sorted(seen))
            name = repr(histogram[:NAME_CHARS])
            raise NotStored(f"no such histogram: {name}; one of {listed}")

    async def snapshots(self, request: web.Request) -> web.Response:
        """Answer /api/snapshots: the newest ticks, one tick, or the change over a window."""
        file_form = _file_of(request.query)
        query = MultiDict(request.query)
        for name in ("format", "table"):
            query.popall(name, None)
        if "histogram" in query:
            for histogram in query.getall("histogram"):
                self._refuse_unknown(request, histogram)
        if "window" in query or "since" in query:
            body = await self._changes_json(query)
            return await _tick_answer(body, file_form)
        if "at" in query or "tick" in query:
            refuse_unknown(query, TICK_PARAMS, " with at or tick")
            line = await self._ticks.find(_tick_query(query))
            body = b'{"snapshots":[%s],"more":false}' % line
            return await _tick_answer(body, file_form)
        if file_form is not None:
            raise BadQuery("format: only with at, tick, window or since")
        # The message about parameters of one tick says more than "unknown".
        refuse_unknown(query, NEWEST_PARAMS | TICK_PARAMS)
        if "epoch" in query or "id" in query:
            raise BadQuery("epoch and id: only with tick, or id with at")
        stream = stream_of(query)
        items = frozenset(items_of(query)) or None
        # Any integer of 64 bits: one after all ticks is no error.
        after = time_param(query, "after", 2**63 - 1)
        top = optional_int(query, "top", 1, TOP_MAX)
        limit = optional_int(query, "limit", 1, SNAPSHOTS_MAX) or 100
        # Raises if the stream is unknown, or not read yet.
        await self._ticks.newest(stream)
        page, more = self._hub.history.page(stream, after, limit)
        lines = []
        for index, snapshot in enumerate(page):
            if (items is not None or top is not None) and index % 50 == 49:
                await asyncio.sleep(0)  # cutting takes time: yield to other requests
            line = select_items(snapshot, items=items, top=top)
            lines.append(with_end_time(line, snapshot.end))
        body = b'{"snapshots":[%s],"more":%s}' % (
            b",".join(lines),
            b"true" if more else b"false",
        )
        return answer(body)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Send new snapshots as server-sent events until the viewer leaves."""
        query = request.query
        refuse_unknown(query, {"histogram", "key", "top"})
        if "top" in query and query["top"] not in {str(top) for top in TOPS}:
            raise BadQuery(f"top: one of {', '.join(map(str, TOPS))}")
        histograms = query.getall("histogram", [])
        for histogram in histograms:
            self._refuse_unknown(request, histogram)
        reader = reader_of(request)
        # No histogram is named: all that the reader may see.
        if not histograms and reader.histograms is not None:
            histograms = sorted(self._seen_by(reader))
        selection = Filter(
            histograms=frozenset(histograms) or None,
            keys=frozenset(query.getall("key", [])) or None,
            top=int(query["top"]) if "top" in query else None,
        )
        if len(self._hub) >= VIEWERS_MAX:
            full = f"{VIEWERS_MAX:,} viewers are connected already"
            return refusal(503, full, **{hdrs.RETRY_AFTER: "10"})
        # A proxy such as nginx must not hold events back.
        headers = {hdrs.CONTENT_TYPE: "text/event-stream", "X-Accel-Buffering": "no"}
        response = web.StreamResponse(headers=headers)
        if request.method == hdrs.METH_HEAD:  # no events are wanted
            await response.prepare(request)
            return response
        viewer = self._hub.join(selection, request.headers.get("Last-Event-ID"))
        try:
            await response.prepare(request)
            await _send(request, response, viewer)
        except (ConnectionError, TimeoutError):
            if request.transport is not None:
                request.transport.abort()  # drops unsent data
        finally:
            self._hub.leave(viewer)
        return response

    async def history(self, request: web.Request) -> web.StreamResponse:
        """Answer /api/history: a stream over time."""
        query = request.query
        refuse_unknown(query, HISTORY_PARAMS | {"step"})
        limit = optional_int(query, "limit", 1, ENTRIES_MAX) or 1_000
        step = duration_param(query, "step") if "step" in query else None
        span = _range(query)
        items = items_of(query)
        queries = [
            HistoryQuery(stream=stream, range=span, items=items, step=step, limit=limit)
            for stream in self._known_streams(request)
        ]
        return await self._answer(request, queries)

    async def epochs(self, request: web.Request) -> web.StreamResponse:
        """Answer /api/epochs: the last stored snapshot of each epoch."""
        query = request.query
        refuse_unknown(query, HISTORY_PARAMS | {"top"})
        limit = optional_int(query, "limit", 1, EPOCHS_MAX) or 100
        top = optional_int(query, "top", 1, TOP_MAX)
        span = _range(query)
        items = items_of(query)
        # Items that are named are all listed.
        if top is None and not items:
            top = 100
        queries = [
            EpochsQuery(stream=stream, range=span, items=items, top=top, limit=limit)
            for stream in self._known_streams(request)
        ]
        return await self._answer(request, queries)

    def _known_streams(self, request: web.Request) -> list[Stream]:
        """Return the streams that a query names, of a histogram that its reader may see.

        Only files may be of several stream keys.
        """
        query = request.query
        if "format" not in query or "key" not in query:
            streams = [stream_of(query)]
        else:
            keys = list(dict.fromkeys(query.getall("key")))
            if len(keys) > KEYS_MAX:
                raise BadQuery(f"key: at most {KEYS_MAX} of them")
            streams = [_stream(param(query, "histogram"), key) for key in keys]
        self._refuse_unknown(request, streams[0].histogram)
        return streams

    async def _changes_json(self, query: MultiMapping[str]) -> bytes:
        """Return the answer with changes (`window` or `since`), computed once for equal queries.

        Those of all viewers of a stream are equal, since the page names the tick that it shows. So
        the running computation is kept as a task, and its answer if it can no longer change.
        """
        cache = self._changes
        parameters = tuple(query.items())
        if (task := cache.get(parameters)) is None:
            task = cache[parameters] = asyncio.ensure_future(self._changed(query))
            while len(cache) > CHANGES_KEPT:
                del cache[next(iter(cache))]
        keep = False
        try:
            # One viewer that leaves must not cancel it for the others.
            body = await asyncio.shield(task)
            # Without a time the newest tick is meant; and what the store has not read may come.
            final = "at" in query and self._store.reading is None
            keep = final and len(body) <= CHANGES_BYTES
        finally:
            # Also after an error. Another task may have taken its place.
            if not keep and cache.get(parameters) is task:
                del cache[parameters]
        return body

    async def _changed(self, query: MultiMapping[str]) -> bytes:
        """Return a tick as JSON, with changes over a window in place of its counts."""
        refuse_unknown(query, TICK_PARAMS, " with window or since")
        if ("window" in query) == ("since" in query):
            raise BadQuery("window or since: one of the two")
        stream = stream_of(query)
        self._refuse_changes_of_a_window(stream.histogram)
        items = frozenset(items_of(query)) or None
        top = optional_int(query, "top", 1, TOP_MAX)
        # A tick with all its items: the largest changes need not be of the largest counts.
        if "at" in query or "tick" in query:
            whole_tick = replace(_tick_query(query), items=(), top=None)
            line = await self._ticks.find(whole_tick)
        else:
            line = (await self._ticks.newest(stream)).json
        newer = await asyncio.to_thread(orjson.loads, line)
        if not can_subtract(newer):
            raise BadQuery(f"the counts of {newer['mechanism']} cannot be subtracted")
        since = time_param(query, "since")
        if since is None:
            window_ms = duration_param(query, "window")
        else:
            window_ms = newer["end"] - since
            if window_ms <= 0:
                raise BadQuery("since: before the end of the tick")
        begin = await self._beginning(stream, newer, window_ms)
        # Parsing, subtracting and writing take time: in another thread, others are answered.
        snapshot = await asyncio.to_thread(
            changes,
            newer,
            begin.older,
            begin.ms,
            last=begin.last,
            items=items,
            top=top,
        )
        snapshot["end_time"] = iso(snapshot["end"])
        snapshot["change"]["from_time"] = iso(begin.ms)
        changed = {"snapshots": [snapshot], "more": False}
        return await asyncio.to_thread(orjson.dumps, changed)

    def _refuse_changes_of_a_window(self, histogram: str) -> None:
        """Raise BadQuery for changes of a histogram that counts a window already.

        Two windows overlap, or have events between them: their difference is no count.
        """
        settings_name = self._histograms[histogram].window_of
        if settings_name is None:
            return
        windows = [
            other.name
            for other in self._histograms.values()
            if other.window_of == settings_name
        ]
        raise BadQuery(
            f"{histogram} counts a window already, and windows cannot be subtracted: without window "
            f"and since, ask for one of {', '.join(windows)}"
        )

    async def _beginning(
        self, stream: Stream, newer: Mapping[str, Any], window_ms: int
    ) -> _Beginning:
        """Return where a window that ends with the tick `newer` begins.

        That is in its epoch, in the one before, or, if that is not known, where its epoch began.
        """
        # The tick at whose end the window begins, by its number, from 1, in the epoch of `newer`.
        # 0 is the beginning of the epoch, below 0 the epoch before.
        older_tick = newer["tick"] - ticks_of(newer, window_ms)
        if older_tick > 0:
            return await self._beginning_in(stream, newer, older_tick)
        start_ms = newer["end"] - newer["tick"] * (newer["end"] - newer["start"])
        at_start = _Beginning(None, start_ms)
        previous_id = newer.get("previous_id")
        if older_tick == 0 or not isinstance(previous_id, str):
            return at_start
        # The last tick of the epoch before ends where this epoch began.
        query = TickQuery(stream=stream, at=start_ms, id=previous_id)
        try:
            last = orjson.loads(await self._ticks.find(query))
        except NoTick:
            # What was counted before the epoch began is not known.
            return at_start
        # `older_tick` is negative: so many ticks before that one.
        begin = await self._beginning_in(stream, last, last["tick"] + older_tick)
        return begin._replace(last=last)

    async def _beginning_in(
        self, stream: Stream, snapshot: Mapping[str, Any], older_tick: int
    ) -> _Beginning:
        """Return the beginning of a window at the end of a tick in the epoch of `snapshot`.

        `older_tick` is its number there; 0 or less: where the epoch began. It may have been thinned
        out of the history: then the window begins at the last stored tick before it, or where the
        series began.
        """
        if older_tick <= 0:
            tick_ms = snapshot["end"] - snapshot["start"]
            start_ms = snapshot["end"] - snapshot["tick"] * tick_ms
            return _Beginning(None, start_ms)
        query = TickQuery(
            stream=stream, epoch=snapshot["epoch"], tick=older_tick, id=snapshot["id"]
        )
        try:
            line = await self._ticks.find(query)
        except NoTick as missing:
            nearest = missing.nearest or {}
            before = nearest["before"]
            if before is None:
                begun = await self._ticks.began(stream, snapshot["id"])
                if begun is not None:
                    return _Beginning(None, begun)
                error = "no tick at the beginning of this window is stored"
                raise NoTick(error, nearest) from None
            # The window becomes longer.
            line = await self._ticks.find(replace(query, tick=before["tick"]))
        older = await asyncio.to_thread(orjson.loads, line)
        return _Beginning(older, older["end"])

    async def _answer(
        self, request: web.Request, queries: Sequence[HistoryQuery | EpochsQuery]
    ) -> web.StreamResponse:
        """Answer queries on the history as JSON, or as a CSV or Parquet file to download."""
        store = self._store
        query = queries[0]
        stream = query.stream
        file_form = _file_of(request.query)
        # Taken before the query: the answer may lack what is read while it runs.
        reading = store.reading
        unread = self._ticks.unread(stream)

        def as_json(cursor: Any) -> bytes:
            if isinstance(query, HistoryQuery):
                return history(cursor, query, reading)
            return epochs(cursor, query, reading)

        if file_form is None:
            if len(queries) > 1:
                raise BadQuery("key: only one, but in a file")
            return answer(await self._ticks.ask(stream, as_json))
        # Refuses an unknown stream before the answer begins.
        for other in queries:
            await self._ticks.ask(other.stream, partial(locate, stream=other.stream))
        async with store.sending() as directory:
            file = HistoryFile(queries, file_form.table, file_form.format, directory)
            try:
                await store.make_piece(lambda cursor: file.plan(cursor, reading))
                name = _history_name(queries, file_form, file.complete)
                return await self._send_file(request, file, name, file_form.format)
            except NotReadYet:
                raise NotYet(unread or READING) from None
            finally:
                await asyncio.to_thread(file.close)

    async def _send_file(
        self, request: web.Request, file: HistoryFile, name: str, file_type: str
    ) -> web.StreamResponse:
        """Send a file; if it cannot be sent whole, drop the connection: the client notices."""
        response = web.StreamResponse(
            headers={hdrs.CONTENT_TYPE: FILE_TYPES[file_type]}
        )
        response.headers[hdrs.CONTENT_DISPOSITION] = f'attachment; filename="{name}"'
        response.headers[COMPLETE] = str(file.complete).lower()
        if file_type == "csv":
            response.enable_compression()
        if request.method == hdrs.METH_HEAD:
            await response.prepare(request)
            return response
        try:
            for piece in file.pieces():
                with await self._store.make_piece(piece) as part:
                    while chunk := await asyncio.to_thread(part.read, CHUNK):
                        if not response.prepared:
                            await response.prepare(request)
                        async with asyncio.timeout(STALLED_S):
                            await response.write(chunk)
            async with asyncio.timeout(STALLED_S):
                await response.write_eof()
        except (OSError, TimeoutError, QueryFailed, TicksGone):
            if not response.prepared:
                raise
            # The client is gone or too slow, or the rest cannot be read.
            if request.transport is not None:
                request.transport.abort()
        return response


async def _send(
    request: web.Request, response: web.StreamResponse, viewer: Viewer
) -> None:
    """Send events until the viewer leaves; choose each only after the previous one is sent.

    So a slow viewer misses ticks, rather than getting old ones. An event "beat" with the server's
    time shows, every `BEAT_S`, that the connection lives.
    """
    transport = request.transport
    await response.write(b"retry: 1000\n\n")  # ms after which to connect again
    beat_at = time.monotonic() + BEAT_S
    while transport is not None and not transport.is_closing():
        line = await viewer.take(max(0.0, beat_at - time.monotonic()))
        if viewer.closed:
            return
        if line is None or time.monotonic() >= beat_at:
            line = (line or b"") + event("beat", {"now": now_ms()})
            beat_at = time.monotonic() + BEAT_S
        async with asyncio.timeout(STALLED_S):
            await response.write(line)
            # Until all is handed to the kernel: `write` returns earlier.
            while transport.get_write_buffer_size():
                await asyncio.sleep(DRAIN_S)


def _tick_query(query: MultiMapping[str]) -> TickQuery:
    """Return the query for one tick, named by a time `at`, or by `epoch` and `tick`."""
    if ("at" in query) == ("tick" in query):
        raise BadQuery("at, or epoch and tick: one of the two")
    by_time = "at" in query
    return TickQuery(
        stream=stream_of(query),
        at=time_param(query, "at"),
        epoch=None if by_time else int_param(query, "epoch", 1, INT_MAX),
        tick=None if by_time else int_param(query, "tick", 1, INT_MAX),
        id=param(query, "id") if "id" in query else None,
        items=items_of(query),
        top=optional_int(query, "top", 1, TOP_MAX),
    )


def json_errors(handler: Handler) -> Handler:
    """Return a handler that does the same, and answers errors of queries as JSON."""

    async def handle(request: web.Request) -> web.StreamResponse:
        """Answer as `handler` does; an error of a query becomes its HTTP status and JSON."""
        try:
            return await handler(request)
        except (BadQuery, AnswerTooLarge) as error:
            return refusal(400, str(error))
        except NotStored as error:
            return refusal(404, str(error))
        except QueryFailed as error:
            return refusal(503, str(error), **RETRY_AFTER)
        except TicksGone:
            why = "ticks of the answer were removed meanwhile: ask again"
            return refusal(503, why, **RETRY_AFTER)
        except Unanswered as error:
            near = {} if error.nearest is None else {"nearest": error.nearest}
            again = RETRY_AFTER if error.status == 503 else {}
            return json_of({"error": str(error), **near}, error.status, again)

    return handle


class _File(NamedTuple):
    """The file that a query wants instead of JSON: a table of items or of ticks, and its format."""

    table: Table
    format: Format

    def name(self, *parts: str) -> str:
        """Return a name for the file, of parts that say what is in it.

        It has only characters that any system takes; times are without ms if these are 0.
        """
        table = () if self.table == "items" else (self.table,)
        safe = [
            re.sub(r"[^A-Za-z0-9._-]", "", part.replace(".000Z", "Z"))[:80]
            for part in (*parts, *table)
        ]
        return f"{'_'.join(safe)}.{self.format}"


def _file_of(query: MultiMapping[str]) -> _File | None:
    """Return the file that a query wants; None for JSON."""
    file_type = param(query, "format") if "format" in query else "json"
    table = param(query, "table") if "table" in query else "items"
    if file_type == "json":
        if "table" in query:
            raise BadQuery("table: only with format=csv or format=parquet")
        return None
    if file_type not in FILE_TYPES:
        raise BadQuery(
            f"format = {file_type[:NAME_CHARS]!r}: must be json, csv or parquet"
        )
    if table not in TABLES:
        raise BadQuery(f"table = {table[:NAME_CHARS]!r}: must be items or ticks")
    return _File(cast(Table, table), cast(Format, file_type))


def _history_name(
    queries: Sequence[HistoryQuery | EpochsQuery], wanted: _File, complete: bool
) -> str:
    """Return a file's name, such as products_s1_begin_now.csv, for queries of one histogram."""
    query = queries[0]
    since, until = query.range
    begin = "begin" if since is None else iso(since)
    end = "now" if until is None else iso(until)
    keys = query.stream.key if len(queries) == 1 else f"{len(queries)}-keys"
    epochs = ["epochs"] if isinstance(query, EpochsQuery) else []
    incomplete = [] if complete else ["incomplete"]
    return wanted.name(query.stream.histogram, keys, *epochs, begin, end, *incomplete)


async def _tick_answer(body: bytes, file_form: _File | None) -> web.Response:
    """Answer /api/snapshots with one tick, as JSON or, made of this JSON, as a file."""
    if file_form is None:
        return answer(body)

    def make_file() -> tuple[str, bytes]:
        """Return the file's name and its content."""
        [fields] = orjson.loads(body)["snapshots"]
        parts = [fields["histogram"], fields["key"]]
        if "change" in fields:
            parts.append(iso(fields["change"]["from"]))
        name = file_form.name(*parts, iso(fields["end"]))
        return name, tick_file(fields, file_form.table, file_form.format)

    name, content = await asyncio.to_thread(make_file)
    response = web.Response(body=content, content_type=FILE_TYPES[file_form.format])
    response.headers[hdrs.CONTENT_DISPOSITION] = f'attachment; filename="{name}"'
    if file_form.format == "csv":
        response.enable_compression()
    return response


def _range(query: MultiMapping[str]) -> Range:
    """Return the time range that a query names with `from` and `to`, which may be left out."""
    since = time_param(query, "from")
    until = time_param(query, "to")
    if since is not None and until is not None and since >= until:
        raise BadQuery("to: larger than from")
    return Range(since, until)
