"""Runs a dashboard, as its own process or in a thread of another (the demo, tests).

Its parts: the feed reads Kafka into the hub, for viewers, and into the store, which keeps the
history on disk in a thread of its own; the teller tells of alerts, if there are any.
"""

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from aiohttp import web

from workers.client.config import ReaderSettings, load_reader_settings, read_token
from workers.dashboard.api import application, refuse_unreadable
from workers.dashboard.feed import Feed
from workers.dashboard.guard import is_loopback
from workers.dashboard.hub import Hub
from workers.dashboard.readers import Readers, load_readers, single
from workers.dashboard.store.store import Store
from workers.dashboard.telling import Teller
from workers.kafka.outages import filter_outage_logs
from workers.runtime.errors import SettingsError
from workers.runtime.serving import ServerThread, listen, open_listener, url_of

logger = logging.getLogger(__name__)

PORT = 8080
# Small, because data in the kernel's buffer for a slow viewer becomes stale.
SEND_BUFFER = 128 << 10
# How long open requests may take when the dashboard stops.
CLOSING_S = 1.0
WATCH_S = 0.5


class Tls:
    """A certificate and its key, from files that another program may replace."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._certificate = certificate
        self._key = key
        # When the files that are in use were written.
        self._loaded = self._times()
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            self._load(self.context)
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"--tls-certificate {certificate}, --tls-key {key}: not a certificate and its key "
                f"in PEM: {getattr(error, 'strerror', None) or error}"
            ) from None

    def renew(self) -> None:
        """Use the files for new connections if they have changed and fit together."""
        times = self._times()
        if None in times or times == self._loaded:
            return
        # Also if they do not fit: one of the two may change again, and then they are tried again.
        self._loaded = times
        try:
            # Into a new context first: a certificate is loaded before its key, and one that does
            # not fit would stay in the context that is in use.
            self._load(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH))
            self._load(self.context)
        except (OSError, ValueError):
            logger.warning("TLS: the new certificate and key do not fit; the old stay")

    def _load(self, context: ssl.SSLContext) -> None:
        # A key with a password would be asked for on the terminal.
        context.load_cert_chain(self._certificate, self._key, password="")

    def _times(self) -> tuple[int | None, ...]:
        """Return when certificate and key changed, in ns; None for one that is not there."""
        times: list[int | None] = []
        for path in (self._certificate, self._key):
            try:
                times.append(path.stat().st_mtime_ns)
            except OSError:
                times.append(None)
        return tuple(times)


class Dashboard:
    """A dashboard's web server, and the feed and store behind it."""

    def __init__(
        self,
        settings: ReaderSettings,
        *,
        host: str = "127.0.0.1",
        port: int = PORT,
        readers: Readers | None = None,
        tls: Tls | None = None,
        routes: Iterable[web.RouteDef] = (),
        further: Mapping[str, object] | None = None,
    ) -> None:
        """`routes` and `further`, fields of /api/histograms, are for the demo only."""
        self._host = host
        self._port = port
        self._tls = tls
        self.hub = Hub()
        self.store = Store(settings)
        self._app = application(
            self.hub,
            self.store,
            settings,
            host=host,
            readers=readers,
            further=further,
        )
        self._app.add_routes(routes)
        self._teller = Teller(settings) if settings.alerts else None
        take = None if self._teller is None else self._teller.take
        self._feed = Feed(settings, self.hub, self.store.backlog, take)
        self.url = ""

    async def run(self, stopped: asyncio.Event, ready: Callable[[], None]) -> None:
        """Serve until `stopped`; call `ready` once listening, or raise `SettingsError`."""
        listener = self._listen()
        self.url = url_of(self._host, listener) + "/"
        if self._tls is not None:
            self.url = self.url.replace("http://", "https://", 1)
        runner = web.AppRunner(
            self._app, shutdown_timeout=CLOSING_S, handle_signals=False
        )
        await runner.setup()
        context = None if self._tls is None else self._tls.context
        server = await listen(runner, listener, refuse_unreadable, context)
        # What alerts have seen is loaded before the feed brings anything to look at.
        telling = None
        if self._teller is not None:
            await asyncio.to_thread(self._teller.load)
            telling = asyncio.create_task(self._teller.run())
            telling.add_done_callback(_report_end)
        feed = asyncio.create_task(self._feed.run())
        waiting = asyncio.create_task(stopped.wait())
        watching = asyncio.create_task(self._watch())
        self.store.start()
        try:
            ready()
            await asyncio.wait({feed, waiting}, return_when=asyncio.FIRST_COMPLETED)
            # It never ends by itself: this raises its error.
            if feed.done():
                feed.result()
        finally:
            waiting.cancel()
            watching.cancel()
            server.close()
            await runner.cleanup()
            feed.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await feed
            if telling is not None:
                telling.cancel()
                await asyncio.gather(telling, return_exceptions=True)
            await asyncio.to_thread(self.store.close)

    async def _watch(self) -> None:
        """Forward the store's state to viewers, which the store's thread must not touch.

        Also use a renewed certificate.
        """
        while True:
            self.hub.set_history_state(self.store.state)
            if self._tls is not None:
                self._tls.renew()
            await asyncio.sleep(WATCH_S)

    def _listen(self) -> socket.socket:
        """Open the port; raise SettingsError with what to change if that is impossible."""
        try:
            return open_listener(self._host, self._port, SEND_BUFFER)
        except OSError as error:
            why = f"--host {self._host} --port {self._port}: {error.strerror}"
            if isinstance(error, socket.gaierror):
                why = f"--host {self._host}: not an address to listen on ({error.strerror})"
            elif error.errno == errno.EADDRINUSE:
                why = (
                    f"--port {self._port}: taken on {self._host} by another program; "
                    "choose another port (0: any free one)"
                )
            raise SettingsError(why) from None


def _report_end(task: asyncio.Task[None]) -> None:
    """Log that no more alerts are told, if the task failed rather than was cancelled."""
    if not task.cancelled() and task.exception() is not None:
        logger.error("alerts are not told any more", exc_info=task.exception())


def run_dashboard(
    config: Path,
    *,
    host: str,
    port: int,
    token_file: Path | None,
    readers_file: Path | None = None,
    tls_certificate: Path | None = None,
    tls_key: Path | None = None,
) -> int:
    """Run `quietcount dashboard`: print the address, and serve it until SIGTERM or Ctrl-C."""
    settings = load_reader_settings(config)
    filter_outage_logs()
    if token_file is not None and readers_file is not None:
        raise SettingsError("--token-file, --readers: one of the two")
    if (tls_certificate is None) != (tls_key is None):
        raise SettingsError("--tls-certificate, --tls-key: both or none")
    tls = None
    if tls_certificate is not None and tls_key is not None:
        tls = Tls(tls_certificate, tls_key)
    readers = None
    if token_file is not None:
        readers = single(read_token(token_file))
    if readers_file is not None:
        names = {one.settings_name for one in settings.histograms}
        readers = load_readers(readers_file, names)
    if readers is None and not is_loopback(host):
        print(
            f"quietcount: --host {host} without --token-file or --readers: whoever can reach this port "
            "can read the histograms",
            file=sys.stderr,
        )
    if token_file is not None and token_file.stat().st_mode & 0o077:
        print(
            f"quietcount: {token_file}: others on this machine may read the token: `chmod 600`",
            file=sys.stderr,
        )
    dashboard = Dashboard(settings, host=host, port=port, readers=readers, tls=tls)

    async def main() -> None:
        """Serve until a signal comes."""
        stopped = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        await dashboard.run(
            stopped,
            lambda: print(
                f"Dashboard of {settings.worker}: {dashboard.url}", flush=True
            ),
        )

    asyncio.run(main())
    return 0


class Background(ServerThread):
    """A dashboard in a thread of its own."""

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__(dashboard.run, "dashboard")
        self.dashboard = dashboard

    @property
    def url(self) -> str:
        return self.dashboard.url


def is_free(port: int) -> bool:
    """Return whether a port seems free; another program may still take it."""
    try:
        open_listener("127.0.0.1", port).close()
    except OSError:
        return False
    return True
