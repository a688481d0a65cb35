"""What is no request at all gets an answer like every other: with the headers, and nothing of it quoted or logged."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest
from aiohttp import web

from workers.dashboard.api import application
from workers.dashboard.hub import Hub
from workers.dashboard.server import listen

SECRET = b"secret-label"
NAMES = {"content-security-policy", "x-content-type-options", "x-frame-options"}
NAMES |= {"referrer-policy", "permissions-policy"}


async def told(port: int, sent: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer to some bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    first, *lines = head.decode().split("\r\n")
    parts = (line.partition(": ") for line in lines)
    return int(first.split()[1]), {name.lower(): value for name, _, value in parts}, body


async def ask(app: web.Application, *sent: bytes) -> list[tuple[int, dict[str, str], bytes]]:
    """The answers of a server over an application."""
    runner = web.AppRunner(app)
    await runner.setup()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    server = await listen(runner, listener)
    try:
        return [await told(listener.getsockname()[1], one) for one in sent]
    finally:
        server.close()
        await runner.cleanup()


def test_what_is_no_request_is_refused_like_everything_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = application(Hub(), [], name="orders", host="127.0.0.1", token=None)
    long = SECRET * 1_000
    requests = (
        b"FOO /%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % SECRET,
        b"GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % long,
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: %s\r\n\r\n" % long,
        b"GET /%s HTTP/9.9\r\nHost: localhost\r\n\r\n" % SECRET,
        b"GET /%s HTTP/1.1\r\n\r\n" % SECRET,
    )
    with caplog.at_level(logging.INFO):
        answers = asyncio.run(ask(app, *requests))
    assert [status for status, _, _ in answers] == [405, 400, 400, 400, 400]
    for _, headers, body in answers:
        assert headers.keys() >= NAMES
        assert headers["server"] == "quietcount"
        assert headers["content-type"].startswith("application/json")
        assert body.startswith(b'{"error": "')
        assert SECRET not in body
    assert not caplog.records


def test_a_fault_of_the_server_is_logged_and_not_told(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(_request: web.Request) -> web.Response:
        raise RuntimeError(SECRET.decode())

    app = application(Hub(), [], name="orders", host="127.0.0.1", token=None)
    app.router.add_get("/fault", fail)
    request = b"GET /fault HTTP/1.1\r\nHost: localhost\r\n\r\n"
    [(status, headers, body)] = asyncio.run(ask(app, request))
    assert (status, body) == (500, b'{"error": "internal error"}')
    assert headers.keys() >= NAMES
    assert [record.message for record in caplog.records] == ["an answer failed"]
