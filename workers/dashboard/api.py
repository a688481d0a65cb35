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

Error responses are JSON and quote nothing from an unreadable request. Files carry a Content-Length,
so that a client notices a truncated one.

Memory and history are filled by two consumers. What is not read yet is 503, never empty or 404; a
request waits up to `READ_WAIT_S` for memory, which is filled a moment after a start.
"""

import asyncio
import hashlib
import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from typing import Any, BinaryIO, NamedTuple, TypeVar, cast

import orjson
from aiohttp import hdrs, web
from aiohttp.http_exceptions import BadHttpMethod, LineTooLong
from aiohttp.typedefs import Handler
from multidict import MultiMapping
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder

from workers.client.changes import can_subtract, changes, ticks_of
from workers.client.messages import SeenSnapshot, Stream, select_items
from workers.client.schema import snapshot_schema
from workers.dashboard.guard import ALLOWED, guard, headers_for, refusal, set_headers
from workers.dashboard.hub import (
    READING,
    TOPS,
    Filter,
    Hub,
    Viewer,
    catalog,
    event,
    joint_guarantee,
    now_ms,
)
from workers.dashboard.store.queries import (
    AnswerTooLarge,
    EpochsQuery,
    Format,
    HistoryQuery,
    NotReadYet,
    NotStored,
    Range,
    TickQuery,
    beginnings,
    epochs,
    history,
    history_file,
    iso,
    locate,
    one_tick,
)
from workers.dashboard.store.store import Query, QueryFailed, Store
from workers.mechanisms.config.histogram import EPOCH
from workers.mechanisms.config.views import ALL_KEYS
from workers.mechanisms.registry import MECHANISMS
from workers.runtime.metrics import WithWorkerLabel, register_outages
from workers.settings.durations import parse_duration
from workers.settings.settings import ALL_STREAM_KEY


def refuse_unreadable(status: int, error: BaseException | None) -> web.Response:
    """Return the response to an unreadable request, or after a failed handler."""
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


BEAT_S = 5.0
# A request waits this long for the newest snapshots, which are read within a second or two.
READ_WAIT_S = 10.0
READ_POLL_S = 0.05
HISTORY_POLL_S = 0.25
RETRY_AFTER = {"Retry-After": "5"}
NAME_CHARS = 100
# A client that receives nothing for this long is disconnected.
STALLED_S = 60.0
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
CHANGES_KEPT = 64
CHANGES_BYTES = 256 << 10
COMPRESS_FROM = 1_024
ENTRIES_MAX = 10_000
EPOCHS_MAX = 1_000
INT_MAX = 2**53 - 1
FILE_TYPES = {"csv": "text/csv", "parquet": "application/vnd.apache.parquet"}
CHUNK = 256 << 10

HISTORY_PARAMS = {"histogram", "key", "item", "from", "to", "limit", "format"}
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

T = TypeVar("T")

HUB = web.AppKey("hub", Hub)
KNOWN = web.AppKey("known", frozenset)
STORE = web.AppKey("store", Store)
CHANGES = web.AppKey("changes", dict)


class BadQuery(ValueError):
    """Invalid query string; the client sees the message."""


class NotYet(Exception):
    """A query for ticks not read yet; the client sees the message and the nearest ticks."""

    def __init__(
        self, message: str, nearest: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(message)
        self.nearest = nearest


def refuse_unknown(query: Mapping[str, str], names: set[str], beside: str = "") -> None:
    for name in query:
        if name not in names:
            listed = ", ".join(sorted(names))
            raise BadQuery(f"{name[:NAME_CHARS]}: unknown{beside}; one of {listed}")


def refuse_histogram(name: str, known: frozenset[str]) -> None:
    if name not in known:
        listed = ", ".join(sorted(known))
        raise NotStored(f"no such histogram: {name[:NAME_CHARS]!r}; one of {listed}")


def no_such_key(stream: Stream) -> NotStored:
    where = f"no such key: {stream.key[:NAME_CHARS]!r} of {stream.histogram}"
    return NotStored(f"{where}; /api/histograms lists the keys")


async def wait_until_read(hub: Hub, histograms: Collection[str]) -> None:
    """Wait a moment for the newest snapshots of histograms that are about to be read."""
    until = time.monotonic() + READ_WAIT_S
    while hub.waits_for_kafka(histograms) and time.monotonic() < until:
        await asyncio.sleep(READ_POLL_S)


async def require_read(hub: Hub, histogram: str) -> None:
    """Wait as `wait_until_read`; raise `NotYet` if a histogram is not read then."""
    await wait_until_read(hub, [histogram])
    why = hub.why_unread(histogram)
    if why is not None:
        raise NotYet(f"{histogram} is not read yet: {why}")


async def ask_history(hub: Hub, store: Store, stream: Stream, query: Query[T]) -> T:
    """Ask the history; wait a moment for a new key, which memory may have a little earlier."""
    until = time.monotonic() + READ_WAIT_S
    while True:
        try:
            return await store.ask(query)
        except NotStored:
            comes = store.reading is None and hub.history.newest(stream) is not None
            if not comes or time.monotonic() >= until:
                raise
        await asyncio.sleep(HISTORY_POLL_S)


def history_unread(stream: Stream, hub: Hub, store: Store) -> str | None:
    """Return why ticks of a stream may be missing in the history; None once all were read."""
    reading = store.reading
    if reading is not None:
        return f"the history is still being read: {100 * reading:.0f} % of the topics so far"
    # A topic that has just come is read by one of the two first.
    why = hub.why_unread(stream.histogram)
    return None if why is None else f"{stream.histogram} is not read yet: {why}"


def param(query: MultiMapping[str], name: str) -> str:
    given = query.getall(name, [])
    if len(given) != 1:
        raise BadQuery(f"{name}: only one" if given else f"{name} is missing")
    return given[0]


def int_param(query: MultiMapping[str], name: str, least: int, most: int) -> int:
    text = param(query, name)
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
    return int_param(query, name, least, most) if name in query else None


def time_param(query: MultiMapping[str], name: str, most: int = INT_MAX) -> int | None:
    """Return a time in ms since 1970; it is given in ms or in ISO 8601 (without a zone: UTC)."""
    text = param(query, name) if name in query else ""
    if name not in query or (text.isascii() and text.isdigit()):
        return optional_int(query, name, 0, most)
    try:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        found = (moment - EPOCH) // timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        found = -1
    if found < 0:
        raise BadQuery(
            f"{name}: a whole number of ms since 1970, or a time such as 2026-11-22T14:00:00Z"
        )
    return found


def duration_param(query: MultiMapping[str], name: str) -> int:
    text = param(query, name)
    try:
        found = parse_duration(text if text[-1:].isalpha() else f"{text}ms")
    except ValueError:
        found = 0
    if not 1 <= found <= INT_MAX:
        raise BadQuery(
            f"{name}: a whole number of ms from 1, or a duration such as 10s, 5m, 1h or 1d"
        )
    return found


def stream_of(query: MultiMapping[str]) -> Stream:
    key = param(query, "key")
    # What the settings call "$all" has this stream key.
    return Stream(param(query, "histogram"), ALL_STREAM_KEY if key == ALL_KEYS else key)


def items_of(query: MultiMapping[str]) -> list[str]:
    named = query.getall("item", [])
    if len(named) > ITEMS_MAX:
        raise BadQuery(f"item: at most {ITEMS_MAX} of them")
    return named


def json_of(
    value: Mapping[str, object],
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> web.Response:
    return answer(orjson.dumps(value), status, headers)


def answer(
    body: bytes, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    kind = "application/json"
    response = web.Response(
        body=body, status=status, content_type=kind, headers=headers
    )
    if len(body) >= COMPRESS_FROM:
        response.enable_compression()
    return response


class Page(NamedTuple):
    body: bytes
    kind: str
    tag: str


def application(
    hub: Hub,
    histograms: Sequence[tuple[str, int | None]],
    *,
    name: str,
    host: str,
    token: str | None,
    further: Mapping[str, object] | None = None,
    store: Store | None = None,
    words: Mapping[str, Mapping[str, str | None]] | None = None,
) -> web.Application:
    """Return the web application, without Kafka. Without a `token`, readers need none.

    `histograms` are (name, horizon) in settings order, `words` what the settings call each one's
    numbers; `further` extends /api/histograms. Without a `store`, only memory is served.
    """
    app = web.Application(middlewares=[guard(host, token)], client_max_size=1_024)
    app[HUB] = hub
    app[CHANGES] = {}
    names = [histogram for histogram, _ in histograms]
    app[KNOWN] = frozenset(names)
    app.on_response_prepare.append(headers_for(host, token))
    schema = _page(orjson.dumps(snapshot_schema()), "application/schema+json")
    app.router.add_get("/snapshot.schema.json", _serve(schema))
    for path, page in pages().items():
        app.router.add_get(f"/{path}", _serve(page))

    async def health(_request: web.Request) -> web.Response:
        return json_of(hub.state)

    async def ready(_request: web.Request) -> web.Response:
        opening = store is not None and store.opening
        live = hub.state["kafka"] == "live" and not opening
        about = {} if store is None else {"history": dict(store.state)}
        state = {**hub.state, **about}
        return json_of(state) if live else json_of(state, 503, RETRY_AFTER)

    registry = CollectorRegistry(auto_describe=False)
    outages = CollectorRegistry()
    register_outages(hub.outage, outages)
    registry.register(WithWorkerLabel(outages, name))
    ProcessCollector(registry=registry)

    async def metrics(request: web.Request) -> web.Response:
        encode, kind = choose_encoder(request.headers.get(hdrs.ACCEPT) or "")
        return web.Response(body=encode(registry), headers={hdrs.CONTENT_TYPE: kind})

    async def close(_app: web.Application) -> None:
        hub.close()

    async def list_histograms(request: web.Request) -> web.Response:
        for parameter in request.query:
            return refusal(
                400,
                f"{parameter[:NAME_CHARS]}: unknown; this address takes no parameters",
            )
        await wait_until_read(hub, names)
        unread = [
            histogram
            for histogram in names
            if histogram in hub.unread and histogram not in hub.missing
        ]
        listed = catalog(hub.history, histograms, words or {}, hub.missing)
        listing = {
            "worker": name,
            "now": now_ms(),
            "state": hub.state,
            "histograms": listed,
        }
        listing["together"] = joint_guarantee(hub.history, histograms)
        listing |= {} if store is None else {"history": dict(store.state)}
        listing |= further or {}
        if not unread:
            return json_of(listing)
        # Also send what is known so far: the page shows it beside the state of Kafka.
        error = f"{', '.join(unread)}: not read yet: {hub.why_unread(unread[0])}"
        return json_of({"error": error} | listing, 503, RETRY_AFTER)

    served = {
        "/api/histograms": list_histograms,
        "/api/snapshots": json_errors(_snapshots),
    }
    served |= {
        "/api/stream": json_errors(_stream),
        "/healthz": health,
        "/readyz": ready,
    }
    if store is not None:
        app[STORE] = store
        served |= {
            "/api/history": json_errors(_over_time),
            "/api/epochs": json_errors(_by_epoch),
        }
    for path, handler in (served | {"/metrics": metrics}).items():
        app.router.add_get(path, handler)
    app.on_shutdown.append(close)
    return app


def pages() -> dict[str, Page]:
    """Return the page's files by path; "" is the page itself."""
    pages_by_path = {}
    for file in files("workers.dashboard").joinpath("page").iterdir():
        kind = PAGE_TYPES.get(file.name.rpartition(".")[2])
        if kind is not None:
            body = file.read_bytes()
            path = "" if file.name == "index.html" else f"page/{file.name}"
            pages_by_path[path] = _page(body, kind)
    pages_by_path["page/mechanisms.js"] = _page(_mechanisms_module(), PAGE_TYPES["js"])
    return pages_by_path


def _page(body: bytes, kind: str) -> Page:
    return Page(body, kind, hashlib.sha256(body).hexdigest()[:16])


def _mechanisms_module() -> bytes:
    """Return the properties of every mechanism that the page uses, as a JavaScript module."""
    names = ("family", "page", "rule", "subtracts", "whole_domain")
    declared = {
        mechanism: {name: getattr(config.about, name) for name in names}
        for mechanism, config in MECHANISMS.items()
    }
    return b"export const MECHANISMS = " + orjson.dumps(declared) + b";\n"


def _serve(page: Page) -> Handler:
    async def serve(request: web.Request) -> web.Response:
        headers = {hdrs.CACHE_CONTROL: "no-cache"}
        if any(tag.value == page.tag for tag in request.if_none_match or ()):
            response = web.Response(status=304, headers=headers)
        else:
            response = web.Response(
                body=page.body,
                content_type=page.kind,
                charset="utf-8",
                headers=headers,
            )
            response.enable_compression()
        response.etag = page.tag
        return response

    return serve


async def _snapshots(request: web.Request) -> web.Response:
    query = request.query
    hub = request.app[HUB]
    if "histogram" in query:
        refuse_histogram(query["histogram"], request.app[KNOWN])
    if "window" in query or "since" in query:
        return await _shared(request)
    if "at" in query or "tick" in query:
        return await tick(query, hub, request.app.get(STORE))
    refuse_unknown(query, NEWEST_PARAMS | TICK_PARAMS)
    if "epoch" in query or "id" in query:
        raise BadQuery("epoch and id: only with tick, or id with at")
    stream = stream_of(query)
    named = items_of(query)
    after = time_param(query, "after", 2**63 - 1)
    top = optional_int(query, "top", 1, 2**31)
    limit = optional_int(query, "limit", 1, SNAPSHOTS_MAX) or 100
    items = frozenset(named) if named else None
    await require_read(hub, stream.histogram)
    if hub.history.newest(stream) is None:
        raise no_such_key(stream)
    found, more = hub.history.page(stream, after, limit)
    lines = []
    for index, snapshot in enumerate(found):
        if (items is not None or top is not None) and index % 50 == 49:
            await asyncio.sleep(0)  # cutting takes time: yield to other requests
        line = select_items(snapshot, items=items, top=top)
        lines.append(with_end_time(line, snapshot.end))
    body = b'{"snapshots":[%s],"more":%s}' % (
        b",".join(lines),
        b"true" if more else b"false",
    )
    return answer(body)


def with_end_time(line: bytes, end_ms: int) -> bytes:
    return b'%b,"end_time":"%b"}' % (line.rstrip()[:-1], iso(end_ms).encode())


async def _stream(request: web.Request) -> web.StreamResponse:
    query = request.query
    refuse_unknown(query, {"histogram", "key", "top"})
    if "top" in query and query["top"] not in {str(top) for top in TOPS}:
        raise BadQuery(f"top: one of {', '.join(map(str, TOPS))}")
    histograms = frozenset(query.getall("histogram")) if "histogram" in query else None
    for histogram in histograms or ():
        refuse_histogram(histogram, request.app[KNOWN])
    keys = frozenset(query.getall("key")) if "key" in query else None
    top = int(query["top"]) if "top" in query else None
    selection = Filter(histograms=histograms, keys=keys, top=top)
    hub = request.app[HUB]
    if len(hub) >= VIEWERS_MAX:
        full = f"{VIEWERS_MAX:,} viewers are connected already"
        return refusal(503, full, **{hdrs.RETRY_AFTER: "10"})
    headers = {hdrs.CONTENT_TYPE: "text/event-stream", "X-Accel-Buffering": "no"}
    response = web.StreamResponse(headers=headers)
    if request.method == hdrs.METH_HEAD:
        await response.prepare(request)
        return response
    viewer = hub.join(selection, request.headers.get("Last-Event-ID"))
    try:
        await response.prepare(request)
        await _send(request, response, viewer)
    except (ConnectionError, TimeoutError):
        if request.transport is not None:
            request.transport.abort()  # drops unsent data
    finally:
        hub.leave(viewer)
    return response


async def _send(
    request: web.Request, response: web.StreamResponse, viewer: Viewer
) -> None:
    """Send events until the viewer leaves; choose each only after the previous one is sent."""
    transport = request.transport
    await response.write(b"retry: 1000\n\n")
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
            while transport.get_write_buffer_size():
                await asyncio.sleep(DRAIN_S)


async def _over_time(request: web.Request) -> web.StreamResponse:
    query = request.query
    refuse_unknown(query, HISTORY_PARAMS | {"step"})
    limit = optional_int(query, "limit", 1, ENTRIES_MAX) or 1_000
    step = duration_param(query, "step") if "step" in query else None
    history_query = HistoryQuery(
        stream=_known_stream(request),
        range=_range(query),
        items=items_of(query),
        step=step,
        limit=limit,
    )
    return await _answer(request, history_query)


async def _by_epoch(request: web.Request) -> web.StreamResponse:
    query = request.query
    refuse_unknown(query, HISTORY_PARAMS | {"top"})
    limit = optional_int(query, "limit", 1, EPOCHS_MAX)
    top = optional_int(query, "top", 1, 2**31)
    stream = _known_stream(request)
    span = _range(query)
    items = items_of(query)
    if top is None and not items:
        top = 100
    epochs_query = EpochsQuery(
        stream=stream, range=span, items=items, top=top, limit=limit or 100
    )
    return await _answer(request, epochs_query)


async def tick(query: MultiMapping[str], hub: Hub, store: Store | None) -> web.Response:
    """Answer /api/snapshots with `at` or `tick`, from memory or else from the store."""
    refuse_unknown(query, TICK_PARAMS, " with at or tick")
    found, nearest = await _find(_tick_query(query), hub, store)
    if found is None:
        return json_of(
            {"error": "this tick is not stored", "nearest": nearest}, status=404
        )
    return answer(b'{"snapshots":[%s],"more":false}' % found)


async def _shared(request: web.Request) -> web.Response:
    """Answer /api/snapshots with `window` or `since`, once for all that ask alike.

    The viewers of a stream do: the page names the tick that it shows.
    """
    cache = request.app[CHANGES]
    query = tuple(request.query.items())
    store = request.app.get(STORE)
    if (task := cache.get(query)) is None:
        made = changed(request.query, request.app[HUB], store)
        task = cache[query] = asyncio.ensure_future(made)
        while len(cache) > CHANGES_KEPT:
            del cache[next(iter(cache))]
    keep = False
    try:
        body, status = await asyncio.shield(task)
        # The newest tick changes, and what is missing may be read yet.
        final = (
            status == 200
            and "at" in request.query
            and (store is None or store.reading is None)
        )
        keep = final and len(body) <= CHANGES_BYTES
    finally:
        if not keep and cache.get(query) is task:
            del cache[query]
    return answer(body, status)


async def changed(
    query: MultiMapping[str], hub: Hub, store: Store | None
) -> tuple[bytes, int]:
    """Return changes in place of counts as JSON, and the status."""
    refuse_unknown(query, TICK_PARAMS, " with window or since")
    if ("window" in query) == ("since" in query):
        raise BadQuery("window or since: one of the two")
    stream = stream_of(query)
    items = frozenset(items_of(query)) or None
    top = optional_int(query, "top", 1, 2**31)
    if "at" in query or "tick" in query:
        at_end = replace(_tick_query(query), items=(), top=None)
        line, nearest = await _find(at_end, hub, store)
    else:
        await require_read(hub, stream.histogram)
        newest = hub.history.newest(stream)
        if newest is None:
            raise no_such_key(stream)
        line = newest.json
        nearest = {}
    if line is None:
        return orjson.dumps(
            {"error": "this tick is not stored", "nearest": nearest}
        ), 404
    newer = await asyncio.to_thread(orjson.loads, line)
    if not can_subtract(newer):
        raise BadQuery(f"the counts of {newer['mechanism']} cannot be subtracted")
    since = time_param(query, "since")
    width = newer["end"] - newer["start"]
    if since is not None and since >= newer["end"]:
        raise BadQuery("since: before the end of the tick")
    window = duration_param(query, "window") if since is None else newer["end"] - since
    older = None
    begin_ms = newer["end"] - newer["tick"] * width
    first_tick = newer["tick"] - ticks_of(newer, window)
    if first_tick > 0:
        at_beginning = TickQuery(
            stream=stream, epoch=newer["epoch"], tick=first_tick, id=newer["id"]
        )
        line, nearest = await _find(at_beginning, hub, store)
        if line is None and (before := nearest["before"]) is not None:
            # What is kept before it begins a longer window.
            earlier = replace(at_beginning, tick=before["tick"])
            line, _ = await _find(earlier, hub, store)
        if line is not None:
            older = await asyncio.to_thread(orjson.loads, line)
            begin_ms = older["end"]
        elif (begun := await _began(stream, newer["id"], hub, store)) is not None:
            begin_ms = begun
        else:
            error = "no tick at the beginning of this window is stored"
            return orjson.dumps({"error": error, "nearest": nearest}), 404
    snapshot = await asyncio.to_thread(
        changes, newer, older, begin_ms, items=items, top=top
    )
    snapshot["end_time"] = iso(snapshot["end"])
    snapshot["change"]["from_time"] = iso(begin_ms)
    return await asyncio.to_thread(
        orjson.dumps, {"snapshots": [snapshot], "more": False}
    ), 200


async def _began(
    stream: Stream, series: str, hub: Hub, store: Store | None
) -> int | None:
    """Return when a series began to count from zero; None if that is not known."""
    in_memory = hub.history.page(stream, None, hub.history.ticks)[0]
    before: SeenSnapshot | None = None
    for snapshot in in_memory:
        if snapshot.id == series:
            if before is not None and before.end == snapshot.start:
                return snapshot.start  # it follows another one
            break
        before = snapshot
    if store is None:
        return None

    def query(cursor: Any) -> int | None:
        return beginnings(cursor, stream, locate(cursor, stream), [series]).get(series)

    try:
        return await ask_history(hub, store, stream, query)
    except NotStored:
        raise NotYet(f"{_COMES_LATER}: {stream.key[:NAME_CHARS]!r}") from None


def _tick_query(query: MultiMapping[str]) -> TickQuery:
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
        top=optional_int(query, "top", 1, 2**31),
    )


# A key whose first snapshots are in memory.
_COMES_LATER = "the history does not have this new key yet"


async def _find(
    query: TickQuery, hub: Hub, store: Store | None
) -> tuple[bytes | None, dict[str, Any]]:
    """Return a tick as JSON, or None and its nearest neighbours; `NotYet` if it may be unread."""
    in_memory = hub.history.page(query.stream, None, hub.history.ticks)[0]
    matching = next(
        (snapshot for snapshot in reversed(in_memory) if _matches(snapshot, query)),
        None,
    )
    if matching is not None:
        line = select_items(
            matching, items=frozenset(query.items) or None, top=query.top
        )
        return with_end_time(line, matching.end), {}
    snapshot = None
    nearest = _nearest(in_memory, query)
    if store is None:
        why = hub.why_unread(query.stream.histogram)
        if why is not None:
            raise NotYet(f"{query.stream.histogram} is not read yet: {why}", nearest)
        if not in_memory:
            raise no_such_key(query.stream)
        return None, nearest
    unread = history_unread(query.stream, hub, store)
    try:
        snapshot, nearest = await ask_history(
            hub, store, query.stream, lambda cursor: one_tick(cursor, query)
        )
    except QueryFailed as error:
        raise NotYet(str(error), nearest) from None
    except NotStored:
        if unread is None and not in_memory:
            raise no_such_key(query.stream) from None
    if snapshot is not None:
        return with_end_time(orjson.dumps(snapshot), snapshot["end"]), {}
    if unread is not None:
        raise NotYet(unread, nearest)
    return None, nearest


def json_errors(handler: Handler) -> Handler:
    """Return a handler that answers errors of queries as JSON."""

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except (BadQuery, AnswerTooLarge) as error:
            return refusal(400, str(error))
        except NotStored as error:
            return refusal(404, str(error))
        except QueryFailed as error:
            return refusal(503, str(error), **RETRY_AFTER)
        except NotYet as error:
            near = {} if error.nearest is None else {"nearest": error.nearest}
            return json_of({"error": str(error), **near}, 503, RETRY_AFTER)

    return handle


def _not_stored(hub: Hub, stream: Stream, unread: str | None) -> Exception:
    """Return why a stream is not in the history: not read yet, or no such key."""
    if unread is not None:
        return NotYet(unread)
    if hub.history.newest(stream) is not None:
        return NotYet(f"{_COMES_LATER}: {stream.key[:NAME_CHARS]!r}")
    return no_such_key(stream)


async def _answer(
    request: web.Request, query: HistoryQuery | EpochsQuery
) -> web.StreamResponse:
    store = request.app[STORE]
    file_type = param(request.query, "format") if "format" in request.query else "json"

    def as_json(cursor: Any) -> bytes:
        if isinstance(query, HistoryQuery):
            return history(cursor, query, reading)
        return epochs(cursor, query, reading)

    def as_file(cursor: Any) -> BinaryIO:
        return history_file(cursor, query, reading, cast(Format, file_type), store.path)

    if file_type not in ("json", *FILE_TYPES):
        raise BadQuery(
            f"format = {file_type[:NAME_CHARS]!r}: must be json, csv or parquet"
        )
    # Taken before the query: the answer may lack what is read while it runs.
    reading = store.reading
    hub = request.app[HUB]
    stream = query.stream
    unread = history_unread(stream, hub, store)
    try:
        if file_type == "json":
            return answer(await ask_history(hub, store, stream, as_json))
        await ask_history(hub, store, stream, lambda cursor: locate(cursor, stream))
        async with store.make_file(as_file) as file:
            return await _send_file(
                request, file, _file_name(query, file_type), file_type
            )
    except NotReadYet:
        raise NotYet(unread or READING) from None
    except NotStored:
        raise _not_stored(hub, stream, unread) from None


def _file_name(query: HistoryQuery | EpochsQuery, file_type: str) -> str:
    """Return a name that says histogram, key and range, of characters that any system takes."""
    since, until = query.range
    ends = (
        "begin" if since is None else iso(since),
        "now" if until is None else iso(until),
    )
    which = ["epochs"] if isinstance(query, EpochsQuery) else []
    parts = [
        re.sub(r"[^A-Za-z0-9._-]", "", part.replace(".000Z", "Z"))[:80]
        for part in (*query.stream, *which, *ends)
    ]
    return f"{'_'.join(parts)}.{file_type}"


async def _send_file(
    request: web.Request, file: BinaryIO, name: str, wanted: str
) -> web.StreamResponse:
    length = file.seek(0, 2)
    file.seek(0)
    headers = {hdrs.CONTENT_TYPE: FILE_TYPES[wanted], hdrs.CONTENT_LENGTH: str(length)}
    headers[hdrs.CONTENT_DISPOSITION] = f'attachment; filename="{name}"'
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    if request.method == hdrs.METH_HEAD:
        return response
    try:
        while chunk := await asyncio.to_thread(file.read, CHUNK):
            async with asyncio.timeout(STALLED_S):
                await response.write(chunk)
        async with asyncio.timeout(STALLED_S):
            await response.write_eof()
    except (
        OSError,
        TimeoutError,
    ):
        # client gone, too slow, or disk error: the file is truncated
        if request.transport is not None:
            request.transport.abort()
    return response


def _known_stream(request: web.Request) -> Stream:
    stream = stream_of(request.query)
    refuse_histogram(stream.histogram, request.app[KNOWN])
    return stream


def _range(query: MultiMapping[str]) -> Range:
    since = time_param(query, "from")
    until = time_param(query, "to")
    if since is not None and until is not None and since >= until:
        raise BadQuery("to: larger than from")
    return Range(since, until)


def _matches(snapshot: SeenSnapshot, query: TickQuery) -> bool:
    if query.id is not None and snapshot.id != query.id:
        return False
    if query.at is not None:
        return snapshot.start < query.at <= snapshot.end
    return (snapshot.epoch, snapshot.tick) == (query.epoch, query.tick)


def _nearest(in_memory: list[SeenSnapshot], query: TickQuery) -> dict[str, object]:
    def position(snapshot: SeenSnapshot) -> tuple[int, ...]:
        if query.at is not None:
            return (snapshot.end,)
        return (snapshot.epoch, snapshot.tick)

    wanted: tuple[int, ...] = (query.epoch or 0, query.tick or 0)
    if query.at is not None:
        wanted = (query.at,)
    same = [snapshot for snapshot in in_memory if query.id in (None, snapshot.id)]
    earlier = [snapshot for snapshot in same if position(snapshot) < wanted]
    later = [snapshot for snapshot in same if position(snapshot) > wanted]
    return {
        "before": _named(max(earlier, key=position, default=None)),
        "after": _named(min(later, key=position, default=None)),
    }


def _named(snapshot: SeenSnapshot | None) -> dict[str, object] | None:
    if snapshot is None:
        return None
    return {
        "id": snapshot.id,
        "epoch": snapshot.epoch,
        "tick": snapshot.tick,
        "end": snapshot.end,
    }
