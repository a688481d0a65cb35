"""Routes over the stored history, described in docs/api.md, and parsing of their parameters.

GET /api/history           a stream over time
GET /api/epochs            the last snapshot of each epoch

`tick` serves one past tick for /api/snapshots. Files carry a Content-Length, so that a client
notices a truncated one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, BinaryIO, cast

import orjson
from aiohttp import hdrs, web
from multidict import MultiMapping

from workers.dashboard.guard import refusal
from workers.dashboard.hub import History
from workers.dashboard.snapshots import SeenSnapshot, Stream, select_items
from workers.dashboard.store.queries import (
    AnswerTooLarge,
    EpochsQuery,
    Format,
    HistoryQuery,
    NotStored,
    Range,
    TickQuery,
    epochs,
    history,
    history_file,
    one_tick,
)
from workers.dashboard.store.store import QueryFailed, Store
from workers.settings.durations import parse_duration

ITEMS = 100
COMPRESS_FROM = 1_024


class BadQuery(ValueError):
    """Invalid query string; the client sees the message."""


def only_known(query: Mapping[str, str], names: set[str]) -> None:
    for name in query:
        if name not in names:
            raise BadQuery(f"{name[:50]}: unknown; one of {', '.join(sorted(names))}")


def one(query: MultiMapping[str], name: str) -> str:
    given = query.getall(name, [])
    if len(given) != 1:
        raise BadQuery(f"{name}: only one" if given else f"{name} is missing")
    return given[0]


def number(query: MultiMapping[str], name: str, least: int, most: int) -> int:
    text = one(query, name)
    if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
        raise BadQuery(f"{name}: a whole number from {least:,} to {most:,}")
    return int(text)


def number_or(query: MultiMapping[str], name: str, least: int, most: int) -> int | None:
    return number(query, name, least, most) if name in query else None


def stream_of(query: MultiMapping[str]) -> Stream:
    return Stream(one(query, "histogram"), one(query, "key"))


def items_of(query: MultiMapping[str]) -> list[str]:
    named = query.getall("item", [])
    if len(named) > ITEMS:
        raise BadQuery(f"item: at most {ITEMS} of them")
    return named


def json_of(value: Mapping[str, object], status: int = 200) -> web.Response:
    return answer(orjson.dumps(value), status)


def answer(body: bytes, status: int = 200) -> web.Response:
    response = web.Response(body=body, status=status, content_type="application/json")
    if len(body) >= COMPRESS_FROM:
        response.enable_compression()
    return response


ENTRIES = 10_000
EPOCHS = 1_000
TIMES = 2**53 - 1
TYPES = {"csv": "text/csv", "parquet": "application/vnd.apache.parquet"}
CHUNK = 256 << 10
# A client that receives nothing of a file for this long is disconnected.
STALLED_S = 60.0

COMMON = {"histogram", "key", "item", "from", "to", "limit", "format"}
TICK = {"histogram", "key", "at", "epoch", "tick", "id", "item", "top"}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def routes(store: Store, known: frozenset[str], memory: History) -> list[web.RouteDef]:
    """Return the routes over a store; `known` are the histograms of the settings.

    A stream in `memory` that is not in the store yet is known: its history is empty.
    """

    def over_time(query: MultiMapping[str]) -> HistoryQuery:
        only_known(query, COMMON | {"step"})
        limit = number_or(query, "limit", 1, ENTRIES) or 1_000
        return HistoryQuery(**_common(query, known), step=_step(query), limit=limit)

    def by_epoch(query: MultiMapping[str]) -> EpochsQuery:
        only_known(query, COMMON | {"top"})
        limit, top = number_or(query, "limit", 1, EPOCHS), number_or(query, "top", 1, 2**31)
        common = _common(query, known)
        top = 100 if top is None and not common["items"] else top
        return EpochsQuery(**common, top=top, limit=limit or 100)

    def route(
        path: str, parse: Callable[[MultiMapping[str]], HistoryQuery | EpochsQuery]
    ) -> web.RouteDef:
        async def handle(request: web.Request) -> web.StreamResponse:
            asked = parse(request.query)
            try:
                return await _answer(request, store, asked)
            except NotStored:
                return _nothing_yet(asked, request, memory, store)

        return web.get(path, refusing(handle))

    return [route("/api/history", over_time), route("/api/epochs", by_epoch)]


async def tick(query: MultiMapping[str], memory: History, store: Store | None) -> web.Response:
    """Answer /api/snapshots with `at` or `tick`, from memory or else from the store."""
    only_known(query, TICK)
    if ("at" in query) == ("tick" in query):
        raise BadQuery("at, or epoch and tick: one of the two")
    by_time = "at" in query
    asked = TickQuery(
        stream=stream_of(query),
        at=number(query, "at", 0, TIMES) if by_time else None,
        epoch=None if by_time else number(query, "epoch", 1, TIMES),
        tick=None if by_time else number(query, "tick", 1, TIMES),
        id=one(query, "id") if "id" in query else None,
        items=items_of(query),
        top=number_or(query, "top", 1, 2**31),
    )
    held = memory.page(asked.stream, None, memory.ticks)[0]
    found = next((snapshot for snapshot in reversed(held) if _is(snapshot, asked)), None)
    if found is not None:
        line = select_items(found, items=frozenset(asked.items) or None, top=asked.top)
        return answer(b'{"snapshots":[%s],"more":false}' % line)
    snapshot, nearest = None, _nearest(held, asked)
    if store is not None:
        try:
            snapshot, nearest = await store.ask(lambda cursor: one_tick(cursor, asked))
        except (NotStored, QueryFailed):
            if not held:
                raise
    if snapshot is not None:
        return json_of({"snapshots": [snapshot], "more": False})
    if not held and store is None:
        raise NotStored("no such key in the history; /api/histograms lists the keys")
    return json_of({"error": "this tick is not stored", "nearest": nearest}, status=404)


def refusing(handler: Handler) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except (BadQuery, AnswerTooLarge) as error:
            return refusal(400, str(error))
        except NotStored as error:
            return refusal(404, str(error))
        except QueryFailed as error:
            return refusal(503, str(error), **{hdrs.RETRY_AFTER: "5"})

    return handle


def _nothing_yet(
    asked: HistoryQuery | EpochsQuery, request: web.Request, memory: History, store: Store
) -> web.Response:
    """Answer for a stream that is in memory only; raise `NotStored` if it is not, or for a file."""
    held = memory.page(asked.stream, None, memory.ticks)[0]
    if not held or request.query.get("format", "json") != "json":
        raise NotStored("no such key in the history; /api/histograms lists the keys")
    first, last = held[0].end, held[-1].end
    kept = {"first": first, "last": last, "ticks": first, "hours": first}
    about = {"complete": False, "reading": store.reading, "more": False, "kept": kept}
    if isinstance(asked, EpochsQuery):
        return json_of({"epochs": [], **about})
    place = {**asked.stream.as_dict(), "items": list(asked.items)}
    times = {"from": asked.range.since, "to": asked.range.until, "step": asked.step, "next": None}
    return json_of({**place, **times, **about, "series": [], "entries": []})


async def _answer(
    request: web.Request, store: Store, asked: HistoryQuery | EpochsQuery
) -> web.StreamResponse:
    wanted = one(request.query, "format") if "format" in request.query else "json"

    def as_json(cursor: Any) -> bytes:
        if isinstance(asked, HistoryQuery):
            return history(cursor, asked, store.reading)
        return epochs(cursor, asked, store.reading)

    def as_file(cursor: Any) -> BinaryIO:
        return history_file(cursor, asked, store.reading, cast(Format, wanted), store.path)

    if wanted == "json":
        return answer(await store.ask(as_json))
    if wanted not in TYPES:
        raise BadQuery("format: json, csv or parquet")
    with store.place_for_a_file():
        file = await store.make_file(as_file)
        try:
            return await _send(request, file, wanted)
        finally:
            file.close()


async def _send(request: web.Request, file: BinaryIO, wanted: str) -> web.StreamResponse:
    length = file.seek(0, 2)
    file.seek(0)
    name = f"{request.path.rpartition('/')[2]}.{wanted}"
    headers = {hdrs.CONTENT_TYPE: TYPES[wanted], hdrs.CONTENT_LENGTH: str(length)}
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
    except (OSError, TimeoutError):  # client gone, too slow, or disk error: the file is truncated
        if request.transport is not None:
            request.transport.abort()
    return response


def _common(query: MultiMapping[str], known: frozenset[str]) -> dict[str, Any]:
    stream = stream_of(query)
    if stream.histogram not in known:
        raise NotStored("no such histogram; /api/histograms lists them")
    since, until = number_or(query, "from", 0, TIMES), number_or(query, "to", 0, TIMES)
    if since is not None and until is not None and since >= until:
        raise BadQuery("to: larger than from")
    return {"stream": stream, "range": Range(since, until), "items": items_of(query)}


def _step(query: MultiMapping[str]) -> int | None:
    if "step" not in query:
        return None
    text = one(query, "step")
    try:
        step = parse_duration(text if text[-1:].isalpha() else f"{text}ms")
    except ValueError:
        step = 0
    if not 1 <= step <= TIMES:
        raise BadQuery(
            "step: a whole number of ms, at least 1, or a duration such as 10s, 5m, 1h or 1d"
        )
    return step


def _is(snapshot: SeenSnapshot, asked: TickQuery) -> bool:
    if asked.id is not None and snapshot.id != asked.id:
        return False
    if asked.at is not None:
        return snapshot.start < asked.at <= snapshot.end
    return (snapshot.epoch, snapshot.tick) == (asked.epoch, asked.tick)


def _nearest(held: list[SeenSnapshot], asked: TickQuery) -> dict[str, object]:
    def place(snapshot: SeenSnapshot) -> tuple[int, ...]:
        return (snapshot.end,) if asked.at is not None else (snapshot.epoch, snapshot.tick)

    at = (asked.at,) if asked.at is not None else (asked.epoch or 0, asked.tick or 0)
    able = [one for one in held if asked.id in (None, one.id)]
    before = max((one for one in able if place(one) < at), key=place, default=None)
    after = min((one for one in able if place(one) > at), key=place, default=None)
    return {"before": _named(before), "after": _named(after)}


def _named(snapshot: SeenSnapshot | None) -> dict[str, object] | None:
    if snapshot is None:
        return None
    return {"id": snapshot.id, "epoch": snapshot.epoch, "tick": snapshot.tick, "end": snapshot.end}
