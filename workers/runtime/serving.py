"""HTTP servers on aiohttp: a listening socket, and a thread with its own event loop."""

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Self, cast

from aiohttp import web

logger = logging.getLogger(__name__)

# Serves until the event is set, and calls the function once it listens.
Run = Callable[[asyncio.Event, Callable[[], None]], Awaitable[None]]


def open_listener(
    host: str, port: int, send_buffer: int | None = None
) -> socket.socket:
    """Return a listening socket (port 0: any free one), or raise OSError.

    `send_buffer` is the size in bytes of a connection's send buffer; None: the system's default.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if send_buffer is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        listener.bind(address)
        listener.listen(512)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def url_of(host: str, listener: socket.socket) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"


#: Returns the response for a status and an error where no handler does: the request is unreadable,
#: or its handler failed.
Refuse = Callable[[int, BaseException | None], web.Response]


class _Connection(web.RequestHandler):
    """Server connection that answers errors itself: aiohttp's answers would quote the request."""

    __slots__ = ("_refuse",)

    def __init__(self, manager: web.Server, refuse: Refuse, **options: Any) -> None:
        super().__init__(manager, **options)
        self._refuse = refuse

    def handle_error(
        self, request: Any, status: int = 500, exc: BaseException | None = None, *_: Any
    ) -> web.StreamResponse:
        """Return the answer to a request that no handler has answered; aiohttp calls this."""
        if isinstance(exc, UnicodeEncodeError) and "Expect" in request.headers:
            # aiohttp's refusal quotes the unknown expectation, which it could not encode.
            status = 417
        if status >= 500:
            self.log_exception("an answer failed", exc_info=exc)
        # Raising ends the connection, by which the client sees that the answer is not whole.
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun already")
        response = self._refuse(status, exc)
        response.force_close()
        return response


async def listen(
    runner: web.AppRunner,
    listener: socket.socket,
    refuse: Refuse,
    tls: ssl.SSLContext | None = None,
) -> asyncio.Server:
    """Serve `runner`, which is set up, on a socket; return the server, which listens.

    Without aiohttp's access log, because URLs may name labels.
    """
    options: dict[str, Any] = {"loop": asyncio.get_running_loop(), "access_log": None}
    manager = cast(web.Server, runner.server)
    return await asyncio.get_running_loop().create_server(
        lambda: _Connection(manager, refuse, **options), sock=listener, ssl=tls
    )


class ServerThread:
    """A server that runs in a thread of its own during a `with` block.

    The block begins once the server listens; an error before that is raised there.
    """

    def __init__(self, run: Run, name: str) -> None:
        """`run` serves in the thread; `name` is what the log calls it."""
        self._run = run
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def call(self, function: Callable[[], object]) -> None:
        """Call a function in the server's event loop, from any thread; do not wait for it."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                self._loop.call_soon_threadsafe(function)

    def __enter__(self) -> Self:
        """Start the thread; return once it listens, or raise why it cannot."""
        self._thread.start()
        self._ready.wait()  # listening or failed; may take long on a busy machine
        if self._error is not None:
            self._thread.join()
            raise self._error
        return self

    def __exit__(self, *_: object) -> None:
        if self._stopped is not None:
            self.call(self._stopped.set)
        self._thread.join()

    def _serve(self) -> None:
        """Run the server in this thread; `__enter__` raises an error from before it listens."""

        async def main() -> None:
            self._loop = asyncio.get_running_loop()
            self._stopped = asyncio.Event()
            await self._run(self._stopped, self._ready.set)

        try:
            asyncio.run(main())
        except BaseException as error:
            self._error = error
            if self._ready.is_set():
                logger.exception("the %s ended", self._name)
            self._ready.set()
