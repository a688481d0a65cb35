"""Runs a dashboard: as a process of its own, or in a thread of another one (the demo, tests)."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, cast

from aiohttp import web

from workers.dashboard.api import application
from workers.dashboard.config import DashboardSettings
from workers.dashboard.feed import Feed
from workers.dashboard.guard import is_loopback
from workers.dashboard.hub import Hub
from workers.dashboard.unreadable import Connection
from workers.errors import SettingsError

logger = logging.getLogger(__name__)

PORT = 8080
#: What a slow viewer has in the kernel's buffer is old; so that buffer is small.
SEND_BUFFER = 128 << 10
CLOSING_S = 1.0


class Dashboard:
    """Server and feed of one dashboard."""

    def __init__(
        self,
        settings: DashboardSettings,
        *,
        host: str = "127.0.0.1",
        port: int = PORT,
        token: str | None = None,
        routes: Iterable[web.RouteDef] = (),
        further: Mapping[str, object] | None = None,
    ) -> None:
        """
        Args:
            settings: from the settings file.
            host: address to listen on.
            port: port; 0: any free one.
            token: what readers of the API must send; None: nothing.
            routes: further ones; only the demo has any.
            further: what /api/histograms says beside the rest; where the demo's exact counts are.
        """
        self._settings, self._host, self._port = settings, host, port
        self.hub = Hub()
        histograms = [(shown.name, shown.horizon) for shown in settings.histograms]
        self._app = application(self.hub, histograms, name=settings.worker, host=host, token=token, further=further)
        self._app.add_routes(routes)
        topics = {shown.topic: shown.name for shown in settings.histograms}
        self._feed = Feed(settings.connection, topics, self.hub)
        self.url = ""

    async def run(self, stopped: asyncio.Event, ready: Callable[[], None]) -> None:
        """Serve until `stopped`; call `ready` when it listens.

        Raises:
            SettingsError: the address cannot be listened on.
        """
        listener = self._listen()
        port = listener.getsockname()[1]
        self.url = f"http://{f'[{self._host}]' if ':' in self._host else self._host}:{port}/"
        runner = web.AppRunner(self._app, shutdown_timeout=CLOSING_S, handle_signals=False)
        await runner.setup()
        server = await listen(runner, listener)
        feed: asyncio.Task[None] | None = None
        try:
            feed = asyncio.create_task(self._feed.run())
            ready()
            waiting = asyncio.create_task(stopped.wait())
            await asyncio.wait({feed, waiting}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if feed.done():
                feed.result()
        finally:
            server.close()
            await runner.cleanup()
            if feed is not None:
                feed.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await feed

    def _listen(self) -> socket.socket:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            listener = socket.socket(family, kind, protocol)
        except OSError as error:
            raise SettingsError(f"--host {self._host}: not an address to listen on ({error.strerror})") from None
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
            listener.bind(address)
            listener.listen(512)
        except OSError as error:
            listener.close()
            if error.errno == errno.EADDRINUSE:
                raise SettingsError(
                    f"--port {self._port}: taken on {self._host} by another program; choose another port (0: any free one)"
                ) from None
            raise SettingsError(f"--host {self._host} --port {self._port}: {error.strerror}") from None
        listener.setblocking(False)
        return listener


async def listen(runner: web.AppRunner, listener: socket.socket) -> asyncio.Server:
    """Let the application of a runner that was set up answer on a socket. No access log: addresses of the page name labels."""
    options: dict[str, Any] = {"loop": asyncio.get_running_loop(), "access_log": None}
    manager = cast(web.Server, runner.server)
    return await asyncio.get_running_loop().create_server(lambda: Connection(manager, **options), sock=listener)


def serve(dashboard: Dashboard, say: Callable[[str], None]) -> int:
    """Run a dashboard until SIGTERM or Ctrl-C.

    Returns:
        The exit code, 0.
    """

    async def main() -> None:
        stopped = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        await dashboard.run(stopped, lambda: say(dashboard.url))

    asyncio.run(main())
    return 0


class Background:
    """A dashboard in a thread, for as long as the `with` block lasts."""

    def __init__(self, dashboard: Dashboard) -> None:
        self.dashboard = dashboard
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="dashboard", daemon=True)

    @property
    def url(self) -> str:
        """Where it listens."""
        return self.dashboard.url

    def call(self, function: Callable[[], object]) -> None:
        """Run something on the dashboard's own event loop."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(function)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()  # it listens, or has failed; on a busy machine that may take long
        if self._error is not None:
            self._thread.join()
            raise self._error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stopped is not None:
            self.call(self._stopped.set)
        self._thread.join()

    def _run(self) -> None:
        async def main() -> None:
            self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
            await self.dashboard.run(self._stopped, self._ready.set)

        try:
            asyncio.run(main())
        except BaseException as error:
            self._error = error
            if self._ready.is_set():
                logger.exception("the dashboard ended")
            self._ready.set()


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Return whether nobody listens on a port, as far as can be told before one does."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def open_to_others(host: str, token: str | None) -> bool:
    """Return whether others than this machine can read, without a token."""
    return token is None and not is_loopback(host)
