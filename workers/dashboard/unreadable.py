"""Answers to unreadable requests: JSON with the usual headers, quoting nothing that came."""

from __future__ import annotations

from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import BadHttpMethod, LineTooLong

from workers.dashboard.guard import ALLOWED, refusal, set_headers


class Connection(web.RequestHandler):
    """A connection of the server; aiohttp's own answers here would quote the request."""

    __slots__ = ()

    def handle_error(
        self, request: Any, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Return the answer to an unreadable request, or after a fault of ours, which is logged."""
        if status >= 500:
            self.log_exception("an answer failed", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun already")
        if isinstance(exc, BadHttpMethod):
            response = refusal(405, "read-only: GET", Allow=ALLOWED)
        elif isinstance(exc, LineTooLong):
            response = refusal(400, "the address or a header is too long: at most 8,190 bytes")
        else:
            response = refusal(status, "no readable request" if status < 500 else "internal error")
        set_headers(response)
        response.force_close()
        return response
