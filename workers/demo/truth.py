"""Exact counts for the demo's page, drawn in red beside the private ones. Only the demo has them.

GET /demo/exact?histogram=H&key=K&after=END
    {"ticks": [{"end", "items": [[label, exact count]], "hidden"}]}
"""

from __future__ import annotations

import threading
from collections import deque

from aiohttp import web

from workers.dashboard.history import TICKS
from workers.demo.boards import Board

PATH = "demo/exact"


class Truth:
    """Exact counts of the labels published at the last ticks, for a thread that reads them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[tuple[str, str], deque[dict[str, object]]] = {}

    def add(self, board: Board) -> None:
        """Take in a tick."""
        tick = {
            "end": board.end_ms,
            "items": [[row.label, row.exact] for row in board.rows],
            "hidden": board.hidden,
        }
        with self._lock:
            self._of.setdefault((board.histogram, board.key), deque(maxlen=TICKS)).append(tick)

    def after(self, histogram: str, key: str, end_ms: int) -> list[dict[str, object]]:
        """Return the ticks of a stream that ended after `end_ms`, oldest first."""
        with self._lock:
            kept = list(self._of.get((histogram, key), ()))
        return [tick for tick in kept if int(str(tick["end"])) > end_ms]

    def routes(self) -> list[web.RouteDef]:
        """Return what to add to the demo's dashboard."""
        return [web.get(f"/{PATH}", self._answer)]

    async def _answer(self, request: web.Request) -> web.Response:
        query = request.query
        after = query.get("after", "0")
        if not (after.isascii() and after.isdigit() and len(after) < 20):
            raise web.HTTPBadRequest
        ticks = self.after(query.get("histogram", ""), query.get("key", ""), int(after))
        response = web.json_response({"ticks": ticks})
        response.enable_compression()
        return response
