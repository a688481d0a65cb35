"""The API as consumers use it: queries, the stream, refusals, and the headers of every answer."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import orjson
import pytest
from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer
from aiohttp.web import Application, AppRunner, Request, Response, StreamResponse
from multidict import MultiDict

from tests.dashboard.feeding import (
    GONE,
    PATIENCE_S,
    START_MS,
    message,
    public_budget,
    reader_settings,
    seen,
    sliding,
    snapshot,
    unopened,
)
from tests.dashboard.store.making import iso
from tests.dashboard.test_hub import on_a_loop
from workers.client.messages import Stream
from workers.dashboard import api
from workers.dashboard.api import application, pages, refuse_unreadable
from workers.dashboard.hub import Filter, Hub
from workers.dashboard.readers import single
from workers.dashboard.store.store import Store
from workers.runtime.serving import listen

Client = TestClient[Request, Application]
TOKEN = "correct-horse-battery"
SNAPSHOTS = "/api/snapshots?histogram=products&key=s1"


@asynccontextmanager
async def client(
    hub: Hub,
    token: str | None = None,
    host: str = "127.0.0.1",
    store: Store | None = None,
    names: tuple[str, ...] = ("products", "maximum"),
) -> AsyncIterator[Client]:
    settings = reader_settings(*names)
    app = application(
        hub,
        store or unopened(),
        settings,
        host=host,
        readers=None if token is None else single(token),
    )
    async with TestClient(TestServer(app)) as found:
        yield found


def filled() -> Hub:
    hub = Hub()
    hub.publish(
        [snapshot(tick, [("tea", 10 * tick), ("cup", 5)]) for tick in range(1, 8)]
    )
    query = {"histogram": "maximum", "query": "max", "value": 70}
    hub.publish([snapshot(7, GONE, **query, sd=None, threshold=None)])
    return hub


async def events(
    response: ClientResponse, count: int
) -> list[tuple[str, Any, str | None]]:
    found: list[tuple[str, Any, str | None]] = []
    fields: dict[str, str] = {}
    async for raw in response.content:
        line = raw.decode().rstrip("\n")
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
            continue
        if fields.get("event", "beat") != "beat":
            found.append(
                (fields["event"], orjson.loads(fields["data"]), fields.get("id"))
            )
        fields = {}
        if len(found) == count:
            return found
    raise AssertionError(f"the stream ended after {found}")


@on_a_loop
async def test_histograms_and_snapshots_are_answered_as_json() -> None:
    async with client(filled()) as http:
        found = await (await http.get("/api/histograms")).json()
        assert found["worker"] == "orders"
        listed = [(one["histogram"], one["keys"]) for one in found["histograms"]]
        assert listed == [("products", ["s1"]), ("maximum", ["s1"])]
        assert "exact" not in found
        answer = await http.get(SNAPSHOTS)
        assert answer.content_type == "application/json"
        sent = [message(t, [("tea", 10 * t), ("cup", 5)]) for t in range(1, 8)]
        body = await answer.json()
        ends = [one.pop("end_time") for one in body["snapshots"]]
        assert body == {"snapshots": sent, "more": False}
        assert (
            ends[0] == "2023-11-14T22:13:30.000Z"
            and [iso(one["end"]) for one in sent] == ends
        )
        body = await (await http.get("/api/snapshots?histogram=maximum&key=s1")).json()
        [query] = body["snapshots"]
        assert (query["query"], query["value"], query["sd"]) == ("max", 70, None)


@on_a_loop
async def test_how_long_the_board_may_run_is_counted_from_its_newest_tick() -> None:
    hub = filled()
    async with client(hub) as http:
        assert (await (await http.get("/api/histograms")).json())["budget"] is None
        hub.budget = public_budget()
        told = (await (await http.get("/api/histograms")).json())["budget"]
        assert told.pop("sentence").startswith(
            "This board may run another 40 days, until 25 December 2023: then it has told"
        )
        plain = msgspec.to_builtins(hub.budget)
        assert told == plain | {"histograms": [plain["histograms"][0]]}


@on_a_loop
async def test_a_window_is_a_series_of_its_own_and_nothing_is_subtracted_from_it() -> (
    None
):
    hub = Hub()
    windows = ("1m", "1h")
    sent = {
        window: sliding(window, START_MS, [("tea", 10), ("cup", 5)])
        for window in windows
    }
    hub.publish([seen(document) for document in sent.values()])
    names = ("products.1m", "products.1h", "maximum")
    hour = "/api/snapshots?histogram=products.1h&key=s1"
    async with client(hub, names=names) as http:
        [found] = (await (await http.get(hour)).json())["snapshots"]
        assert found.pop("end_time") and found == sent["1h"]
        listed = (await (await http.get("/api/histograms")).json())["histograms"]
        of = [(one["histogram"], one["name"], one["window_ms"]) for one in listed]
        assert of == [
            ("products.1m", "products", 60_000),
            ("products.1h", "products", 3_600_000),
            ("maximum", "maximum", None),
        ]
        for asked in ("window=1m", "window=5m", f"since={START_MS - 1}"):
            for at in ("", f"&at={START_MS}", "&at=1"):
                answer = await http.get(f"{hour}&{asked}{at}")
                assert answer.status == 400
                assert (await answer.json())["error"] == (
                    "products.1h counts a window already, and windows cannot be subtracted: "
                    "without window and since, ask for one of products.1m, products.1h"
                )
        answer = await http.get("/api/snapshots?histogram=products&key=s1")
        assert answer.status == 404
        assert "products.1h" in (await answer.json())["error"]


@on_a_loop
async def test_after_goes_on_where_the_last_answer_ended() -> None:
    async with client(filled()) as http:
        after = 0
        seen = []
        for _ in range(4):
            body = await (await http.get(f"{SNAPSHOTS}&limit=3&after={after}")).json()
            seen += [one["tick"] for one in body["snapshots"]]
            after = body["snapshots"][-1]["end"] if body["snapshots"] else after
        assert seen == [1, 2, 3, 4, 5, 6, 7]
        assert not body["more"]


@on_a_loop
async def test_items_can_be_picked_and_cut() -> None:
    async with client(filled()) as http:
        body = await (await http.get(f"{SNAPSHOTS}&limit=2&item=cup&item=none")).json()
        found = [(one["items"], one["total_items"]) for one in body["snapshots"]]
        assert found == [([["cup", 5]], 2)] * 2
        body = await (await http.get(f"{SNAPSHOTS}&limit=2&top=1")).json()
        assert [one["items"] for one in body["snapshots"]] == [
            [["tea", 60]],
            [["tea", 70]],
        ]


@pytest.mark.parametrize(
    ("path", "status", "word"),
    [
        ("/api/snapshots?key=s1", 400, "histogram is missing"),
        ("/api/snapshots?histogram=products", 400, "key is missing"),
        (f"{SNAPSHOTS}&key=s2", 400, "key: only one"),
        (
            "/api/snapshots?histogram=products&key=s9",
            404,
            "no such key: 's9' of products",
        ),
        (
            "/api/snapshots?histogram=products&key=s9&window=1h",
            404,
            "no such key: 's9'",
        ),
        (
            "/api/snapshots?histogram=nothing&key=s1",
            404,
            "no such histogram: 'nothing'; one of maximum, products",
        ),
        (
            "/api/snapshots?histogram=nothing&key=s1&at=1",
            404,
            "no such histogram: 'nothing'",
        ),
        (f"{SNAPSHOTS}&after=-1", 400, "after: a whole number"),
        (f"{SNAPSHOTS}&after=1e3", 400, "after: a whole number"),
        (f"{SNAPSHOTS}&limit=0", 400, "limit: a whole number from 1"),
        (f"{SNAPSHOTS}&limit=99999", 400, "to 1,000"),
        (f"{SNAPSHOTS}&limit=%D9%A3", 400, "limit"),
        (
            f"{SNAPSHOTS}&lmit=3",
            400,
            "lmit: unknown; one of after, at, epoch, histogram, id, item, key, limit, since, tick, top, window",
        ),
        (
            f"{SNAPSHOTS}&at=1&limit=3",
            400,
            "limit: unknown with at or tick; one of at, epoch, histogram, id, item, key, since, tick, top, window",
        ),
        (
            f"{SNAPSHOTS}&window=1h&after=3",
            400,
            "after: unknown with window or since; one of at,",
        ),
        (f"{SNAPSHOTS}&" + "item=a&" * 101, 400, "at most 100"),
        ("/api/stream?histogram=nothing", 404, "no such histogram: 'nothing'"),
        ("/api/stream?top=7", 400, "top: one of 10, 100, 1000, 10000"),
        ("/api/stream?tick=7", 400, "tick: unknown; one of histogram, key, top"),
        (
            "/api/histograms?histogram=products",
            400,
            "histogram: unknown; this address takes no",
        ),
        (
            "/api/nothing",
            404,
            "not found: /api/nothing; there are /, /api/epochs, /api/histograms, ",
        ),
        (
            "/api/histograms/",
            404,
            "not found: /api/histograms/; there are /, /api/epochs, /api/histograms, ",
        ),
        ("/demo/exact?histogram=products&key=s1", 404, "not found"),
        ("/page/../config.py", 404, "not found"),
        ("/page/%2e%2e/config.py", 404, "not found"),
    ],
)
@on_a_loop
async def test_what_cannot_be_answered_is_refused_with_a_reason(
    path: str, status: int, word: str
) -> None:
    async with client(filled()) as http:
        answer = await http.get(path)
        assert answer.status == status
        assert word in (await answer.json())["error"]


@on_a_loop
async def test_the_stream_sends_the_newest_and_what_comes_and_resumes() -> None:
    hub = filled()
    async with client(hub) as http:
        async with http.get("/api/stream?histogram=products") as stream:
            assert stream.content_type == "text/event-stream"
            [state, first] = await events(stream, 2)
            assert (state[0], first[0], first[1]["tick"]) == ("state", "snapshot", 7)
            hub.publish([snapshot(8)])
            [second] = await events(stream, 1)
            assert second[1] == message(8)
        hub.publish([snapshot(9)])
        resumed = {"Last-Event-ID": str(second[2])}
        async with http.get(
            "/api/stream?histogram=products", headers=resumed
        ) as stream:
            [_, third] = await events(stream, 2)
            assert third[1]["tick"] == 9
        async with asyncio.timeout(PATIENCE_S):
            while len(hub):  # the server notices within a moment that they have gone
                await asyncio.sleep(0.05)


class Clogged(asyncio.WriteTransport):
    """A connection that takes one thing and holds it until it is told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.held = 0

    def get_write_buffer_size(self) -> int:
        return self.held

    def is_closing(self) -> bool:
        return False


@on_a_loop
async def test_the_next_event_is_chosen_when_the_last_has_left() -> None:
    hub = Hub()
    clogged = Clogged()
    written: list[bytes] = []

    async def write(data: bytes) -> None:
        written.append(data)
        clogged.held = len(data)

    viewer = hub.join(Filter())
    request = SimpleNamespace(transport=clogged)
    response = SimpleNamespace(write=write)
    sending = api._send(cast(Request, request), cast(StreamResponse, response), viewer)
    task = asyncio.create_task(sending)
    for tick in range(1, 20):
        hub.publish([snapshot(tick)])
        await asyncio.sleep(0.01)
    sent = b"".join(written)
    assert sent.count(b"event: snapshot") == 0  # the state went out, and is held
    clogged.held = 0
    while b"event: snapshot" not in b"".join(written):
        clogged.held = 0
        await asyncio.sleep(0.01)
    [first] = [
        block
        for block in b"".join(written).split(b"\n\n")
        if b"event: snapshot" in block
    ]
    assert b'"tick":19,' in first
    task.cancel()


@on_a_loop
async def test_every_answer_has_the_security_headers() -> None:
    async with client(filled()) as http:
        files = ("/", "/page/app.js", "/page/style.css")
        for path in (*files, "/api/histograms", "/api/stream", "/nothing", "/healthz"):
            async with http.get(path) as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert (
                    "default-src 'none'" in policy
                    and "frame-ancestors 'none'" in policy
                )
                assert "unsafe" not in policy
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert answer.headers["Referrer-Policy"] == "no-referrer"
                assert answer.headers["Cache-Control"] in ("no-store", "no-cache")
                assert answer.headers["Server"] == "quietcount"
                assert "Access-Control-Allow-Origin" not in answer.headers


@on_a_loop
async def test_nothing_but_reading_is_allowed() -> None:
    async with client(filled()) as http:
        for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
            for path in (
                "/",
                "/api/histograms",
                "/api/snapshots",
                "/api/stream",
                "/nothing",
            ):
                answer = await http.request(method, path)
                assert answer.status == 405
                assert answer.headers["Allow"] == "GET, HEAD"
        for path in ("/", "/api/histograms", "/api/stream"):
            answer = await http.head(path)
            assert (answer.status, await answer.read()) == (200, b"")


@on_a_loop
async def test_with_a_token_nothing_is_told_without_it() -> None:
    async with client(filled(), token=TOKEN, host="0.0.0.0") as http:
        wrong = (
            "Bearer ",
            f"Bearer {TOKEN}x",
            f"Basic {TOKEN}",
            "Bearer \udcff",
            TOKEN,
            None,
        )
        stored = ("/api/history", "/api/epochs")
        for path in (
            "/api/histograms",
            SNAPSHOTS,
            "/api/stream",
            *stored,
            "/api/x",
            "/demo/exact",
        ):
            for given in wrong:
                headers = {} if given is None else {"Authorization": given}
                answer = await http.get(path, headers=headers)
                assert answer.status == 401
                assert answer.headers["WWW-Authenticate"] == "Bearer"
                assert b"tea" not in await answer.read()
        for scheme in ("Bearer", "bearer"):
            headers = {"Authorization": f"{scheme} {TOKEN}"}
            assert (await http.get("/api/histograms", headers=headers)).status == 200
        for path in ("/", "/page/app.js", "/healthz", "/readyz"):
            body = await (await http.get(path)).read()
            assert b"s1" not in body.replace(b"s10", b"") or path.startswith("/page")
        assert (await http.get("/")).status == 200


@on_a_loop
async def test_without_a_token_a_local_dashboard_answers_to_local_names_only() -> None:
    """A foreign page whose name resolves to 127.0.0.1 could otherwise read it (DNS rebinding)."""
    async with client(filled()) as http:
        for host in (
            "localhost",
            "localhost:8080",
            "127.0.0.1:9",
            "[::1]:8080",
            "LOCALHOST",
        ):
            assert (
                await http.get("/api/histograms", headers={"Host": host})
            ).status == 200
        evil = [f"{part}evil.example" for part in ("", "127.0.0.1.", "localhost.")]
        for host in (*evil, "evil.example:8080", ""):
            assert (
                await http.get("/api/histograms", headers={"Host": host})
            ).status == 403
    for token, host in ((TOKEN, "127.0.0.1"), (None, "0.0.0.0")):
        async with client(filled(), token, host) as http:
            headers = {"Host": "counts.example", "Authorization": f"Bearer {TOKEN}"}
            assert (await http.get("/api/histograms", headers=headers)).status == 200


@on_a_loop
async def test_the_page_needs_nothing_from_elsewhere_and_nothing_inline() -> None:
    for path, page in pages().items():
        text = page.body.decode().replace("http://www.w3.org/", "")
        assert "http://" not in text and "https://" not in text, path
        markup = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write")
        for trick in (*markup, "eval(", ' style="', " onclick="):
            assert trick not in text, f"{path} has {trick}"
    async with client(filled()) as http:
        first = await http.get("/page/app.js")
        again = await http.get(
            "/page/app.js", headers={"If-None-Match": first.headers["ETag"]}
        )
        assert (first.status, first.content_type, again.status) == (
            200,
            "text/javascript",
            304,
        )


@on_a_loop
async def test_readiness_follows_kafka() -> None:
    hub = filled()
    store = unopened()
    store.state = {"state": "live"}
    async with client(hub, store=store) as http:
        assert (await http.get("/readyz")).status == 503
        hub.set_state({"kafka": "live"})
        assert (await http.get("/readyz")).status == 200
        hub.set_state({"kafka": "away"})
        assert (await http.get("/readyz")).status == 503
        assert (await http.get("/healthz")).status == 200


@on_a_loop
async def test_more_viewers_than_the_limit_are_turned_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(api, "VIEWERS_MAX", 3)
    async with client(filled()) as http:
        streams = [await http.get("/api/stream") for _ in range(3)]
        answer = await http.get("/api/stream")
        assert (answer.status, answer.headers["Retry-After"]) == (503, "10")
        for stream in streams:
            stream.close()


# ---- what is no request at all --------------------------------------------------------------------

SECRET = b"secret-label"
NAMES = {"content-security-policy", "x-content-type-options", "x-frame-options"}
NAMES |= {"referrer-policy", "permissions-policy"}


def empty_app() -> Application:
    return application(Hub(), unopened(), reader_settings())


async def told(port: int, sent: bytes) -> tuple[int, dict[str, str], bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    first, *lines = head.decode().split("\r\n")
    parts = (line.partition(": ") for line in lines)
    return (
        int(first.split()[1]),
        {name.lower(): value for name, _, value in parts},
        body,
    )


async def answers_of(
    app: Application, *sent: bytes
) -> list[tuple[int, dict[str, str], bytes]]:
    runner = AppRunner(app)
    await runner.setup()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    server = await listen(runner, listener, refuse_unreadable)
    try:
        return [await told(listener.getsockname()[1], one) for one in sent]
    finally:
        server.close()
        await runner.cleanup()


def test_what_is_no_request_is_refused_like_everything_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = empty_app()
    long = SECRET * 1_000
    requests = (
        b"FOO /%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % SECRET,
        b"GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % long,
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: %s\r\n\r\n" % long,
        b"GET /%s HTTP/9.9\r\nHost: localhost\r\n\r\n" % SECRET,
        b"GET /%s HTTP/1.1\r\n\r\n" % SECRET,
        b"GET / HTTP/1.1\r\nHost: localhost\r\nExpect: %s\xff\r\n\r\n" % SECRET,
    )
    with caplog.at_level(logging.INFO):
        answers = asyncio.run(answers_of(app, *requests))
    assert [status for status, _, _ in answers] == [405, 400, 400, 400, 400, 417]
    for _, headers, body in answers:
        assert headers.keys() >= NAMES
        assert headers["server"] == "quietcount"
        assert headers["content-type"].startswith("application/json")
        assert body.startswith(b'{"error": "')
        assert SECRET not in body
    assert not caplog.records


def test_a_fault_of_the_server_is_logged_and_not_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(_request: Request) -> Response:
        raise RuntimeError(SECRET.decode())

    app = empty_app()
    app.router.add_get("/fault", fail)
    request = b"GET /fault HTTP/1.1\r\nHost: localhost\r\n\r\n"
    [(status, headers, body)] = asyncio.run(answers_of(app, request))
    assert (status, body) == (500, b'{"error": "internal error"}')
    assert headers.keys() >= NAMES
    assert [record.message for record in caplog.records] == ["an answer failed"]


def test_a_key_may_be_named_as_in_the_settings() -> None:
    asked = MultiDict({"histogram": "products", "key": "$all"})
    assert api.stream_of(asked) == Stream("products", "all")
