"""Routes over the stored history, described in docs/api.md, and parsing of their parameters.

GET /api/history           a stream over time
GET /api/epochs            the last snapshot of each epoch

`tick` serves one past tick for /api/snapshots. Files carry a Content-Length, so that a client
notices a truncated one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
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

# Most items in one query.
ITEMS = 100
COMPRESS_FROM = 1_024


class BadQuery(ValueError):
    """Invalid query string; the client sees the message."""


def only_known(query: Mapping[str, str], names: set[str]) -> None:
    """Raise Question for unknown parameters."""
    for name in query:
        if name not in names:
            raise BadQuery(f"{name[:50]}: unknown; one of {', '.join(sorted(names))}")


def one(query: MultiMapping[str], name: str) -> str:
    """Return the value of a parameter that must occur exactly once."""
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

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def routes(store: Store, known: frozenset[str], memory: History) -> list[web.RouteDef]:
    """Return the routes over a store; `known` are the histograms of the settings.

    A stream in `memory` that is not in the store yet is known: its history is empty.
    """

    async def ask_history(request: web.Request) -> web.StreamResponse:
        query = request.query
        only_known(query, {"histogram", "key", "item", "from", "to", "step", "limit", "format"})
        limit = number_or(query, "limit", 1, ENTRIES)
        asked = HistoryQuery(
            stream=_known(query, known),
            range=_range(query),
            items=items_of(query),
            step=_step(query),
            limit=limit or 1_000,
        )
        try:
            return await _answer(request, store, asked, partial(_ask_history, asked, store))
        except NotStored:
            return _nothing_yet(asked, request, memory, store)

    async def ask_epochs(request: web.Request) -> web.StreamResponse:
        query = request.query
        only_known(query, {"histogram", "key", "item", "top", "from", "to", "limit", "format"})
        limit, top = number_or(query, "limit", 1, EPOCHS), number_or(query, "top", 1, 2**31)
        items = items_of(query)
        asked = EpochsQuery(
            stream=_known(query, known),
            range=_range(query),
            items=items,
            top=100 if top is None and not items else top,
            limit=limit or 100,
        )
        try:
            return await _answer(request, store, asked, partial(_ask_epochs, asked, store))
        except NotStored:
            return _nothing_yet(asked, request, memory, store)

    return [
        web.get("/api/history", refusing(ask_history)),
        web.get("/api/epochs", refusing(ask_epochs)),
    ]


async def tick(query: MultiMapping[str], memory: History, store: Store | None) -> web.Response:
    """Answer /api/snapshots with `at` or `tick`, from memory or else from the store."""
    only_known(query, {"histogram", "key", "at", "epoch", "tick", "id", "item", "top"})
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
        except NotStored:
            if not held:
                raise
        except QueryFailed:
            if not held:
                raise
    if snapshot is not None:
        return json_of({"snapshots": [snapshot], "more": False})
    if not held and store is None:
        raise NotStored("no such key: nothing is kept of it; /api/histograms lists the keys")
    return json_of({"error": "this tick is not kept", "nearest": nearest}, status=404)


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
    """Return the answer for a stream that is in memory only.

    Raises:
        Unknown: the stream is not in memory either, or a file is requested.
    """
    held = memory.page(asked.stream, None, memory.ticks)[0]
    if not held or request.query.get("format", "json") != "json":
        raise NotStored("no such key: nothing is kept of it; /api/histograms lists the keys")
    first, last = held[0].end, held[-1].end
    kept = {"first": first, "last": last, "ticks": first, "hours": first}
    about: dict[str, object] = {
        "complete": False,
        "reading": store.reading,
        "more": False,
        "kept": kept,
    }
    if isinstance(asked, EpochsQuery):
        return json_of({"epochs": []} | about)
    place = {
        "histogram": asked.stream.histogram,
        "key": asked.stream.key,
        "items": list(asked.items),
    }
    times = {"from": asked.range.since, "to": asked.range.until, "step": asked.step, "next": None}
    return json_of(place | times | about | {"series": [], "entries": []})


def _ask_history(asked: HistoryQuery, store: Store, cursor: Any) -> bytes:
    return history(cursor, asked, store.reading)


def _ask_epochs(asked: EpochsQuery, store: Store, cursor: Any) -> bytes:
    return epochs(cursor, asked, store.reading)


async def _answer(
    request: web.Request,
    store: Store,
    asked: HistoryQuery | EpochsQuery,
    as_json: Callable[[Any], bytes],
) -> web.StreamResponse:
    wanted = one(request.query, "format") if "format" in request.query else "json"
    if wanted == "json":
        return answer(await store.ask(as_json))
    if wanted not in TYPES:
        raise BadQuery("format: json, csv or parquet")
    with store.place_for_a_file():
        file = await store.make_file(
            lambda cursor: history_file(
                cursor, asked, store.reading, cast(Format, wanted), store.path
            )
        )
        try:
            return await _send(request, file, wanted)
        finally:
            file.close()


async def _send(request: web.Request, file: BinaryIO, wanted: str) -> web.StreamResponse:
    length = file.seek(0, 2)
    file.seek(0)
    name = request.path.rpartition("/")[2]
    response = web.StreamResponse(
        headers={
            hdrs.CONTENT_TYPE: TYPES[wanted],
            hdrs.CONTENT_LENGTH: str(length),
            hdrs.CONTENT_DISPOSITION: f'attachment; filename="{name}.{wanted}"',
        }
    )
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


# ---- parameters ----------------------------------------------------------------------------------


def _known(query: MultiMapping[str], known: frozenset[str]) -> Stream:
    stream = stream_of(query)
    if stream.histogram not in known:
        raise NotStored("no such histogram; /api/histograms lists them")
    return stream


def _range(query: MultiMapping[str]) -> Range:
    since, until = number_or(query, "from", 0, TIMES), number_or(query, "to", 0, TIMES)
    if since is not None and until is not None and since >= until:
        raise BadQuery("to: larger than from")
    return Range(since, until)


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


# ---- ticks in memory -----------------------------------------------------------------------------


def _is(snapshot: SeenSnapshot, asked: TickQuery) -> bool:
    if asked.id is not None and snapshot.id != asked.id:
        return False
    if asked.at is not None:
        return snapshot.start < asked.at <= snapshot.end
    return (snapshot.epoch, snapshot.tick) == (asked.epoch, asked.tick)


def _nearest(held: list[SeenSnapshot], asked: TickQuery) -> dict[str, object]:
    """Return the nearest ticks in memory before and after a missing one."""

    def place(snapshot: SeenSnapshot) -> tuple[int, ...]:
        return (snapshot.end,) if asked.at is not None else (snapshot.epoch, snapshot.tick)

    at = (asked.at,) if asked.at is not None else (asked.epoch or 0, asked.tick or 0)
    able = sorted((one for one in held if asked.id in (None, one.id)), key=place)
    before, after = (
        [one for one in able if place(one) < at],
        [one for one in able if place(one) > at],
    )
    return {
        "before": _named(before[-1] if before else None),
        "after": _named(after[0] if after else None),
    }


def _named(snapshot: SeenSnapshot | None) -> dict[str, object] | None:
    if snapshot is None:
        return None
    return {"id": snapshot.id, "epoch": snapshot.epoch, "tick": snapshot.tick, "end": snapshot.end}
