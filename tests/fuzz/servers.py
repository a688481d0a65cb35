"""Raw bytes on a socket of a real server: the dashboard's API and the operator's port.

After the input comes a request that ends the connection, so that most inputs are answered at once.
No new seeds are kept: what a server says within a time limit is not the same on every machine.
"""

import asyncio
import logging
import re
import socket
import struct
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage

from tests.agents.monitor.scene import Scene
from tests.dashboard.feeding import reader_settings, unopened
from tests.dashboard.test_api import filled
from tests.events.comparison import Differs
from tests.fuzz.fuzzing import Target
from workers.agents.monitor import OperatorPort
from workers.dashboard.api import application, refuse_unreadable
from workers.dashboard.readers import single
from workers.runtime.serving import ServerThread, listen, open_listener

TOKEN = "correct-horse-battery"
#: An unfinished request, or a stream of events, is left after so long.
QUIET_S = 0.1
#: A server that does not answer for this long is stuck.
STUCK_S = 30.0
#: Check that the server still answers after an unanswered input, and after this many others.
ASKED_EVERY = 20
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")
_END = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
_RESET = struct.pack("ii", 1, 0)

HEADERS = (
    b"Host: localhost",
    b"Host: [::1]:80",
    b"Host: evil.example",
    b"Accept-Encoding: gzip, br",
    b"Connection: keep-alive",
    b"Content-Length: 5",
    b"Content-Length: -1",
    b"Transfer-Encoding: chunked",
    b"Expect: 100-continue",
    b"Upgrade: websocket",
    b"Authorization: Bearer " + TOKEN.encode(),
    b"Authorization: Bearer \xff",
    b'If-None-Match: "x"',
    b"If-None-Match: *",
    b"Last-Event-ID: 1-2",
    b"Range: bytes=0-1",
    b"Accept: application/openmetrics-text; version=1.0.0",
    b"Accept: " + b"a," * 50,
    b"Expect: \xff",
)
PARTS = (
    b"\r\n",
    b"\n",
    b"\r\n\r\n",
    b"%00",
    b"%ff",
    b"%",
    b"?",
    b"&",
    b"=",
    b"..",
    b"/",
    b"#",
    b"//",
    b"HTTP/1.0",
    b"HTTP/2.0",
    b"HEAD",
    b"POST",
    b"OPTIONS *",
    b"5\r\nhello\r\n0\r\n\r\n",
    b"histogram=products",
    b"key=s1",
    b"item=tea",
    b"top=1",
    b"after=0",
    b"limit=1",
    b"at=1700000010000",
    b"epoch=1",
    b"tick=1",
    b"id=x",
    b"top=10",
    b"from=0",
    b"to=9",
)
DASHBOARD = (
    "/",
    "/?embed",
    "/page/page.js",
    "/api/histograms",
    "/healthz",
    "/readyz",
    "/metrics",
    "/nothing",
    "/api/snapshots?histogram=products&key=s1&after=0&limit=2&top=1",
    "/api/snapshots?histogram=products&key=s1&at=1700000020000",
    "/api/snapshots?histogram=products&key=s1&epoch=1&tick=3&item=tea",
    "/api/snapshots?histogram=maximum&key=s1",
    "/api/history?histogram=products&key=s1&step=10s",
    "/api/stream?histogram=products&key=s1&top=10",
)
OPERATOR = ("/metrics", "/healthz", "/readyz", "/nothing", "/metrics?name[]=x")


def dashboard(token: str | None) -> Target:
    return target(
        "dashboard" if token is None else "dashboard_token",
        DASHBOARD,
        served_dashboard(token),
    )


def operator() -> Target:
    return target("operator", OPERATOR, served_operator())


def served_dashboard(token: str | None) -> Callable[[ExitStack], int]:
    def start(stack: ExitStack) -> int:
        listener = open_listener("127.0.0.1", 0)
        port = int(listener.getsockname()[1])

        async def serve(stopped: asyncio.Event, ready: Callable[[], None]) -> None:
            settings = reader_settings("products", "maximum")
            app = application(
                filled(),
                unopened(),
                settings,
                readers=None if token is None else single(token),
            )
            runner = web.AppRunner(app, shutdown_timeout=1.0, handle_signals=False)
            await runner.setup()
            server = await listen(runner, listener, refuse_unreadable)
            ready()
            await stopped.wait()
            server.close()
            await runner.cleanup()

        stack.enter_context(ServerThread(serve, "fuzzed dashboard"))
        return port

    return start


def served_operator() -> Callable[[ExitStack], int]:
    def start(stack: ExitStack) -> int:
        directory = stack.enter_context(TemporaryDirectory(prefix="quietcount-fuzz-"))
        scene = Scene(Path(directory))
        port = stack.enter_context(OperatorPort(scene.settings, 0))
        port.show(scene.handover, {"contribute": 2, "release": 1})
        return int((port.address or "").rpartition(":")[2])

    return start


class Errors(logging.Handler):
    """What servers log as an error: an exception that no handler expected."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        kind = record.exc_info[0] if record.exc_info else None
        if kind is not None and issubclass(kind, BadHttpMessage):
            return  # the operator's port logs every unreadable request: see test_fuzz
        self.seen.append(f"{record.getMessage()[:200]} {kind.__name__ if kind else ''}")


def target(
    name: str, paths: tuple[str, ...], start: Callable[[ExitStack], int]
) -> Target:
    stack = ExitStack()
    ports = list[int]()
    errors = Errors()
    unasked = [0]

    def run(data: bytes) -> str:
        if not ports:
            ports.append(start(stack))
            logging.getLogger("aiohttp.server").addHandler(errors)
            logging.getLogger("asyncio").addHandler(errors)
        answer, waits = exchange(ports[0], data + _END)
        unasked[0] = 0 if waits or not answer else (unasked[0] + 1) % ASKED_EVERY
        if unasked[0] == 0 and not _STATUS.match(exchange(ports[0], _END, STUCK_S)[0]):
            raise Differs(f"the server answers no more after {STUCK_S:g} s")
        if errors.seen:
            said = errors.seen.copy()
            errors.seen.clear()
            raise Differs(f"the server logged {said[0]}")
        statuses = [found.decode() for found in _STATUS.findall(answer)]
        if any(status >= "500" and status != "503" for status in statuses):
            raise Differs(f"status {statuses}: {answer[:300]!r}")
        return f"{' '.join(statuses[:3])}{' waits' if waits else ''}" or "closed"

    seeds = [
        b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path.encode() for path in paths
    ]
    headers = b"\r\n".join(HEADERS[:1] + HEADERS[10:12] + HEADERS[13:14])
    seeds += [
        b"GET %b HTTP/1.1\r\n%b\r\n\r\n" % (path.encode(), headers) for path in paths
    ]
    seeds += [
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
        seeds[0] + seeds[1],
    ]
    words = (*PARTS, *(header + b"\r\n" for header in HEADERS))
    return Target(
        name, run, seeds, words, max_bytes=20_000, keeps=False, close=stack.close
    )


def exchange(port: int, data: bytes, patience_s: float = QUIET_S) -> tuple[bytes, bool]:
    """Return what a server answers, and whether it still waits for more or has more to send."""
    received = bytearray()
    with socket.create_connection(("127.0.0.1", port), timeout=STUCK_S) as connection:
        # Closed by a reset: else thousands of connections would stay in TIME_WAIT.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        try:
            connection.sendall(data)
            connection.settimeout(patience_s)
            while piece := connection.recv(1 << 16):
                received += piece
        except TimeoutError:
            return bytes(received), True
        except ConnectionError:
            pass
    return bytes(received), False
