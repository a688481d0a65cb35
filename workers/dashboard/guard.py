"""Request checks and response headers of the dashboard."""

import hashlib
import hmac
from collections.abc import Awaitable, Callable
from ipaddress import ip_address

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

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
    return web.json_response({"error": message}, status=status, headers=headers)


def guard(host: str, token: str | None) -> Middleware:
    """Return the middleware that allows only reading, and only with the token if there is one."""
    # Without a token, a foreign page on a name that resolves to 127.0.0.1 could read a local-only
    # dashboard (DNS rebinding).
    local_only = token is None and is_loopback(host)
    digest = hashlib.sha256(token.encode()).digest() if token is not None else None

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method not in (hdrs.METH_GET, hdrs.METH_HEAD):
            return refusal(405, "read-only: GET", Allow=ALLOWED)
        names = (*LOCAL_NAMES, _name(host))
        if local_only and _name(request.headers.get(hdrs.HOST, "")) not in names:
            why = "without a token this dashboard answers to localhost only (the Host header names another)"
            return refusal(403, why)
        if (
            digest
            and request.path.startswith(PROTECTED)
            and not _has_token(request, digest)
        ):
            why = "a token is needed: Authorization: Bearer ..."
            return refusal(401, why, **{hdrs.WWW_AUTHENTICATE: "Bearer"})
        try:
            return await handler(request)
        except web.HTTPException as error:
            if error.status < 400:
                raise
            if error.status == 404:
                return refusal(
                    404,
                    f"not found: {request.path[:100]}; there are {_addresses(request.app)}",
                )
            return refusal(error.status, error.reason.lower())

    return middleware


def _addresses(app: web.Application) -> str:
    """Return the addresses of an application, without the page's files."""
    paths = {resource.canonical for resource in app.router.resources()}
    return ", ".join(sorted(path for path in paths if not path.startswith("/page/")))


def headers_for(
    host: str, token: str | None
) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    """Return the hook that adds the security headers to every response.

    Only `/?embed` may be shown in a frame of other sites.
    """
    by = framed_by(host, token)

    async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
        set_headers(response)
        if request.path == "/" and "embed" in request.query:
            response.headers["Content-Security-Policy"] = POLICY + by
            response.headers.pop("X-Frame-Options", None)

    return add_headers


def framed_by(host: str, token: str | None) -> str:
    """Return the sites that may frame `?embed`; they cannot read it, and it changes nothing."""
    return THIS_MACHINE if token is None and is_loopback(host) else ANYBODY


def set_headers(response: web.StreamResponse) -> None:
    """Set the security headers, and forbid caching unless the response says otherwise."""
    response.headers.update(HEADERS)
    response.headers.setdefault(hdrs.CACHE_CONTROL, "no-store")


def _has_token(request: web.Request, digest: bytes) -> bool:
    """Return whether the request has the token; the comparison takes constant time."""
    scheme, _, given = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    found = hashlib.sha256(given.strip().encode("utf-8", "surrogateescape")).digest()
    return hmac.compare_digest(found, digest) and scheme.lower() == "bearer"


def _name(host: str) -> str:
    """Return the host of "host:port", in the form of LOCAL_NAMES."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    if host.count(":") > 1:  # an IPv6 address, as in --host
        return f"[{host}]"
    return host.partition(":")[0].lower()
