"""Request checks and response headers of the dashboard.

Only reading is allowed, under /api/ and /demo/ only to readers with a token or a login, if there
are readers at all. A dashboard without them that listens on this machine alone is local-only.
`/?embed` is the page for a frame in another page.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from ipaddress import ip_address

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

from workers.dashboard.readers import EVERYBODY, Reader, Readers
from workers.runtime.logs import json_fields
from workers.runtime.printing import printable

logger = logging.getLogger(__name__)

READER = web.RequestKey("reader", Reader)
# Characters at most of a name or path from a request in the log.
NAME_CHARS = 100

# Only scripts and styles from this server's files: a label injected as markup could do nothing.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors "
)
# Sites that may frame `/?embed`. A local-only dashboard may only be framed by local pages.
ANYBODY = "*"
THIS_MACHINE = "'self' http://localhost:* http://127.0.0.1:*"
HEADERS = {
    "Content-Security-Policy": POLICY + "'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Server": "quietcount",
}
ALLOWED = "GET, HEAD"
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
# Paths that need the token. The page itself shows nothing before it has one.
PROTECTED = ("/api/", "/demo/")


def is_loopback(host: str) -> bool:
    """Return whether a server on this host can be reached from this machine only."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def refusal(status: int, message: str, **headers: str) -> web.Response:
    """Return a refusal as JSON."""
    return web.json_response({"error": message}, status=status, headers=headers)


def reader_of(request: web.Request) -> Reader:
    """Return who asks, as `guard` has found."""
    reader: Reader = request.get(READER, EVERYBODY)
    return reader


def log_access(
    request: web.Request, response: web.StreamResponse, seconds: float
) -> None:
    """Log who asked for which histogram, and what they got; labels stay out of the log."""
    reader = printable(reader_of(request).name)
    histogram = printable(request.query.get("histogram", "-")[:NAME_CHARS])
    size = response.content_length or response.body_length
    logger.info(
        "access: %s %s %s, histogram %s: %d, %d bytes, %.0f ms",
        reader,
        request.method,
        printable(request.path[:NAME_CHARS]),
        histogram,
        response.status,
        size,
        1_000 * seconds,
        extra=json_fields(
            event="access",
            reader=reader,
            histogram=histogram,
            status=response.status,
        ),
    )


def guard(host: str, readers: Readers | None) -> Middleware:
    """Return the middleware that allows only reading, and only to `readers` if there are any.

    `host` is the address that the dashboard listens on.
    """
    # Without a token, a foreign page on a name that resolves to 127.0.0.1 could read a local-only
    # dashboard (DNS rebinding).
    local_only = readers is None and is_loopback(host)

    @web.middleware
    async def logged(request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer as `guarded` does, and log it: refusals too."""
        begun = time.monotonic()
        response = await guarded(request, handler)
        if request.path.startswith(PROTECTED):
            log_access(request, response, time.monotonic() - begun)
        return response

    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse a request that is not allowed; else note its reader, and let `handler` answer."""
        if request.method not in (hdrs.METH_GET, hdrs.METH_HEAD):
            return refusal(405, "read-only: GET", Allow=ALLOWED)
        names = (*LOCAL_NAMES, _name(host))
        if local_only and _name(request.headers.get(hdrs.HOST, "")) not in names:
            # The host that the request is for, not the one that it comes from.
            why = "without a token this dashboard answers to localhost only (the Host header names another)"
            return refusal(403, why)
        if readers is not None and request.path.startswith(PROTECTED):
            reader = readers.identify(request)
            if reader is None:
                why = "a token is needed: Authorization: Bearer ..."
                return refusal(401, why, **{hdrs.WWW_AUTHENTICATE: "Bearer"})
            request[READER] = reader
        try:
            return await handler(request)
        # aiohttp's own answers, such as 404, would be text that quotes the request.
        except web.HTTPException as error:
            if error.status < 400:  # no error, such as 304
                raise
            if error.status == 404:
                return refusal(
                    404,
                    f"not found: {request.path[:100]}; there are {_addresses(request.app)}",
                )
            return refusal(error.status, error.reason.lower())

    return logged


def _addresses(app: web.Application) -> str:
    """Return the addresses of an application, without the page's files."""
    paths = {resource.canonical for resource in app.router.resources()}
    return ", ".join(sorted(path for path in paths if not path.startswith("/page/")))


def headers_for(
    host: str, readers: Readers | None
) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    """Return the hook that adds the security headers to every response.

    Only `/?embed` may be shown in a frame of other sites.
    """
    frame_sites = framed_by(host, readers)

    async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
        """Set the headers; the page for frames may be framed, by `frame_sites`."""
        set_headers(response)
        if request.path == "/" and "embed" in request.query:
            response.headers["Content-Security-Policy"] = POLICY + frame_sites
            # This older header cannot name sites, and would forbid all.
            response.headers.pop("X-Frame-Options", None)

    return add_headers


def framed_by(host: str, readers: Readers | None) -> str:
    """Return the sites that may show `/?embed` in a frame, as in a Content-Security-Policy.

    They cannot read what is in the frame, and the page changes nothing. A local-only dashboard is
    for pages of this machine.
    """
    return THIS_MACHINE if readers is None and is_loopback(host) else ANYBODY


def set_headers(response: web.StreamResponse) -> None:
    """Set the security headers, and forbid caching unless the response says otherwise."""
    response.headers.update(HEADERS)
    response.headers.setdefault(hdrs.CACHE_CONTROL, "no-store")


def _name(host: str) -> str:
    """Return the host of "host:port" or "host", in the form of LOCAL_NAMES."""
    if host.startswith("["):  # an IPv6 address, as in a Host header
        return host.partition("]")[0] + "]"
    if host.count(":") > 1:  # an IPv6 address, as in --host
        return f"[{host}]"
    return host.partition(":")[0].lower()
