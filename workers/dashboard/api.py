"""Routes of the dashboard, described in docs/api.md.

GET /                      the page
GET /api/histograms        list of histograms
GET /api/snapshots         latest snapshots of one stream
GET /api/stream            new snapshots, as server-sent events
GET /api/history, /epochs  stored history: `api_history`
GET /healthz, /readyz      process monitoring
GET /metrics               Kafka outages, for Prometheus

Unreadable requests get a JSON error with the usual headers that quotes nothing from the request.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from aiohttp import hdrs, web
from aiohttp.http_exceptions import BadHttpMethod, LineTooLong
from aiohttp.typedefs import Handler
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder

from workers.dashboard import api_history
from workers.dashboard.api_history import BadQuery, json_of, number_or, only_known
from workers.dashboard.guard import ALLOWED, guard, headers_for, refusal, set_headers
from workers.dashboard.hub import TOPS, Filter, Hub, Viewer, catalogue, event, now_ms
from workers.dashboard.promise import together_of
from workers.dashboard.snapshots import select_items
from workers.dashboard.store.queries import NotStored
from workers.dashboard.store.store import Store
from workers.runtime.metrics import OfWorker, show_outages


class Connection(web.RequestHandler):
    """Server connection; aiohttp's own error responses would quote the request."""

    __slots__ = ()

    def handle_error(
        self, request: Any, status: int = 500, exc: BaseException | None = None, *_: Any
    ) -> web.StreamResponse:
        if status >= 500:
            self.log_exception("an answer failed", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun already")
        if isinstance(exc, BadHttpMethod):
            response = refusal(405, "read-only: GET", Allow=ALLOWED)
        elif isinstance(exc, LineTooLong):
            response = refusal(400, "the address or a header is too long: at most 8,190 bytes")
        else:
            response = refusal(status, "no readable request" if status < 500 else "internal error")
        set_headers(response)
        response.force_close()
        return response


BEAT_S = 5.0
# A viewer that receives nothing for this long is disconnected.
STALLED_S = 60.0
DRAIN_S = 0.05
VIEWERS = 2_000
LIMIT = 1_000
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}

HUB = web.AppKey("hub", Hub)
KNOWN = web.AppKey("known", frozenset)
STORE = web.AppKey("store", Store)


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
) -> web.Application:
    """Return the web application, without Kafka. Without a `token`, readers need none.

    `histograms` are name and horizon, in the settings' order; `further` more fields of
    /api/histograms. Without a `store`, only memory is served.
    """
    app = web.Application(middlewares=[guard(host, token)], client_max_size=1_024)
    app[HUB] = hub
    app[KNOWN] = known = frozenset(histogram for histogram, _ in histograms)
    if store is not None:
        app[STORE] = store
        app.add_routes(api_history.routes(store, known, hub.history))
    app.on_response_prepare.append(headers_for(host, token))
    for path, page in pages().items():
        app.router.add_get(f"/{path}", _serve(page))

    async def health(_request: web.Request) -> web.Response:
        return json_of(hub.state)

    async def ready(_request: web.Request) -> web.Response:
        return json_of(hub.state, status=200 if hub.state["kafka"] == "live" else 503)

    registry = CollectorRegistry(auto_describe=False)
    outages = CollectorRegistry()
    show_outages(hub.away, outages)
    registry.register(OfWorker(outages, name))
    ProcessCollector(registry=registry)

    async def metrics(request: web.Request) -> web.Response:
        encode, kind = choose_encoder(request.headers.get(hdrs.ACCEPT) or "")
        return web.Response(body=encode(registry), headers={hdrs.CONTENT_TYPE: kind})

    async def close(_app: web.Application) -> None:
        hub.close()

    async def list_histograms(request: web.Request) -> web.Response:
        if request.query:
            return refusal(400, "no parameters here")
        listed = catalogue(hub.history, histograms)
        answer = {"worker": name, "now": now_ms(), "state": hub.state, "histograms": listed}
        answer["together"] = together_of(hub.history, histograms)
        kept = {} if store is None else {"history": dict(store.state)}
        return json_of({**answer, **kept, **(further or {})})

    served = {
        "/api/histograms": list_histograms,
        "/api/snapshots": api_history.refusing(_snapshots),
    }
    served |= {"/api/stream": api_history.refusing(_stream), "/healthz": health}
    for path, handler in (served | {"/readyz": ready, "/metrics": metrics}).items():
        app.router.add_get(path, handler)
    app.on_shutdown.append(close)
    return app


def pages() -> dict[str, Page]:
    """Return the files of the page by path; "" is the page itself."""
    found = {}
    for file in files("workers.dashboard").joinpath("page").iterdir():
        kind = TYPES.get(file.name.rpartition(".")[2])
        if kind is not None:
            body = file.read_bytes()
            path = "" if file.name == "index.html" else f"page/{file.name}"
            found[path] = Page(body, kind, hashlib.sha256(body).hexdigest()[:16])
    return found


def _serve(page: Page) -> Handler:
    async def serve(request: web.Request) -> web.Response:
        headers = {hdrs.CACHE_CONTROL: "no-cache"}
        if any(tag.value == page.tag for tag in request.if_none_match or ()):
            response = web.Response(status=304, headers=headers)
        else:
            about: Any = {"content_type": page.kind, "charset": "utf-8", "headers": headers}
            response = web.Response(body=page.body, **about)
            response.enable_compression()
        response.etag = page.tag
        return response

    return serve


async def _snapshots(request: web.Request) -> web.Response:
    query, history = request.query, request.app[HUB].history
    if "histogram" in query and query["histogram"] not in request.app[KNOWN]:
        raise NotStored("no such histogram; /api/histograms lists them")
    if "at" in query or "tick" in query:
        return await api_history.tick(query, history, request.app.get(STORE))
    only_known(query, api_history.TICK | {"after", "limit"})
    if "epoch" in query or "id" in query:
        raise BadQuery("epoch and id: only with tick, or id with at")
    stream, named = api_history.stream_of(query), api_history.items_of(query)
    after, top = number_or(query, "after", 0, 2**63 - 1), number_or(query, "top", 1, 2**31)
    limit = number_or(query, "limit", 1, LIMIT) or 100
    items = frozenset(named) if named else None
    found, more = history.page(stream, after, limit)
    lines = []
    for index, snapshot in enumerate(found):
        if (items is not None or top is not None) and index % 50 == 49:
            await asyncio.sleep(0)  # cutting takes time: yield to other requests
        lines.append(select_items(snapshot, items=items, top=top))
    body = b'{"snapshots":[%s],"more":%s}' % (b",".join(lines), b"true" if more else b"false")
    return api_history.answer(body)


async def _stream(request: web.Request) -> web.StreamResponse:
    query = request.query
    only_known(query, {"histogram", "key", "top"})
    if "top" in query and query["top"] not in {str(top) for top in TOPS}:
        raise BadQuery(f"top: one of {', '.join(map(str, TOPS))}")
    histograms = frozenset(query.getall("histogram")) if "histogram" in query else None
    if histograms is not None and not histograms <= request.app[KNOWN]:
        raise NotStored("no such histogram; /api/histograms lists them")
    keys = frozenset(query.getall("key")) if "key" in query else None
    wanted = Filter(
        histograms=histograms, keys=keys, top=int(query["top"]) if "top" in query else None
    )
    hub = request.app[HUB]
    if len(hub) >= VIEWERS:
        full = f"{VIEWERS:,} viewers are connected already"
        return refusal(503, full, **{hdrs.RETRY_AFTER: "10"})
    headers = {hdrs.CONTENT_TYPE: "text/event-stream", "X-Accel-Buffering": "no"}
    response = web.StreamResponse(headers=headers)
    if request.method == hdrs.METH_HEAD:
        await response.prepare(request)
        return response
    viewer = hub.join(wanted, request.headers.get("Last-Event-ID"))
    try:
        await response.prepare(request)
        await _send(request, response, viewer)
    except (ConnectionError, TimeoutError):
        if request.transport is not None:
            request.transport.abort()  # drops unsent data
    finally:
        hub.leave(viewer)
    return response


async def _send(request: web.Request, response: web.StreamResponse, viewer: Viewer) -> None:
    """Send events until the viewer leaves; choose an event only once the previous one is sent."""
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
