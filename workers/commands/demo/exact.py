"""Exact counts of the generator's events, compared with published snapshots. Only for the demo.

Counts are kept per tick of a record's timestamp, like the worker's. A snapshot is compared with
their sum from the start of its epoch, or of its window, to the end of its tick, so both cover the
same events. An origin is an airport, the stream key; a label is a destination. A series is what one
topic has: a window of the last seconds, or the counts since an epoch began. A global tick is
numbered from 1970 on, not from the start of an epoch.

The demo's page draws the exact counts in red beside the private ones:

GET /demo/exact?histogram=H&key=K&after=END
    {"ticks": [{"end", "items": [[label, exact count]], "hidden"}]}
"""

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

from aiohttp import web

from workers.dashboard.guard import refusal
from workers.dashboard.hub import TICKS
from workers.mechanisms.config.ticks import TickGrid


class ExactCounts:
    """Counts per (global tick, origin), written by the generator's thread, read by the viewer's."""

    def __init__(self, grid: TickGrid) -> None:
        self.grid = grid
        self._lock = threading.Lock()
        self._ticks: defaultdict[int, Counter[tuple[str, str]]] = defaultdict(Counter)

    def add(self, time_ms: int, events: Iterable[tuple[str, str]]) -> None:
        """Count (origin, destination) events that all have the same time."""
        tick = self.grid.tick_at(time_ms)
        with self._lock:
            self._ticks[tick].update(events)

    def of(self, tick: int, origin: str) -> Counter[str]:
        """Return an origin's exact counts in one global tick, by destination."""
        with self._lock:
            counts = self._ticks.get(tick, Counter())
            return Counter(
                {dest: n for (airport, dest), n in counts.items() if airport == origin}
            )

    def forget(self, before: int) -> None:
        """Drop the ticks before a global tick, which no board needs any more."""
        with self._lock:
            for tick in [tick for tick in self._ticks if tick < before]:
                del self._ticks[tick]


class CountedTicks:
    """An origin's exact counts in the ticks from `first` to before `next`, which only grow.

    Each tick is added once, and where a window slides subtracted once.
    """

    def __init__(self, exact: ExactCounts, origin: str) -> None:
        """Begin before any tick; `exact` has the counts of each tick."""
        self._exact = exact
        self._origin = origin
        self._slides = False
        self.first = 1
        self.next = 1
        self.counts: Counter[str] = Counter()

    @property
    def needed(self) -> int:
        """The first tick whose counts are read again."""
        return self.first if self._slides else self.next

    def advance(self, first: int, tick: int, *, slides: bool) -> Counter[str]:
        """Return the counts of the ticks from `first` through `tick`, both ascending.

        A window `slides`; otherwise `first` is that of an epoch, and what came before is forgotten.
        """
        self._slides = slides
        # All that was counted is over: another epoch, or a window with other ticks.
        if first >= self.next:
            self.first = first
            self.next = first
            self.counts = Counter()
        # What a window has left behind; an epoch's first tick does not move.
        while slides and self.first < first:
            self.counts.subtract(self._exact.of(self.first, self._origin))
            self.first += 1
        while self.next <= tick:
            self.counts.update(self._exact.of(self.next, self._origin))
            self.next += 1
        # Without the labels that came down to 0.
        return +self.counts


class Row(NamedTuple):
    """An item of a board, with its private and its exact count."""

    label: str
    private: int
    exact: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """Snapshot with its exact counts.

    `tick` is its number in its epoch; `window_ms` the window that it counts, if any; a private
    count must exceed `threshold` to be shown first (None: all are shown); `rows` are as published,
    largest private count first; `hidden` is the exact number of labels that occurred and are not
    shown.
    """

    tick: int
    window_ms: int | None
    end_ms: int
    sd: float
    threshold: float | None
    rows: Sequence[Row]
    hidden: int

    def exact(self) -> dict[str, object]:
        """Return the exact counts as the demo's page reads them."""
        items = [[row.label, row.exact] for row in self.rows]
        return {"end": self.end_ms, "items": items, "hidden": self.hidden}


@dataclass(slots=True)
class Errors:
    """Sums over all snapshots: counts, those within 2 sd of the exact ones, errors and sds."""

    counts: int = 0
    within: int = 0
    absolute: int = 0
    sd: float = 0.0

    def add(self, rows: Sequence[Row], sd: float) -> None:
        """Add a snapshot's rows, whose noise has the standard deviation `sd`."""
        errors = [abs(row.private - row.exact) for row in rows]
        self.counts += len(rows)
        self.within += sum(error <= 2 * sd for error in errors)
        self.absolute += sum(errors)
        self.sd += len(rows) * sd


EXACT_PATH = "demo/exact"


class Boards:
    """Boards by series and key. The viewer's thread makes them, the page's reads the last."""

    def __init__(
        self, exact: ExactCounts, series: Sequence[str], keys: Sequence[str]
    ) -> None:
        """Begin without a board of these series and stream keys, which are origins."""
        self._exact = exact
        self._counted = {
            (name, origin): CountedTicks(exact, origin)
            for name, origin in product(series, keys)
        }
        # Items on the pages so far of a snapshot that is not whole.
        self._pages: dict[tuple[str, str], list[tuple[str, int]]] = {}
        # For the viewer.
        self.newest: dict[tuple[str, str], Board] = {}
        # Guards `_last`, the boards that the page may still ask for.
        self._lock = threading.Lock()
        self._last: dict[tuple[str, str], deque[Board]] = {}
        self.errors = {name: Errors() for name in series}
        self.snapshots = 0

    @property
    def ticks(self) -> int:
        """How many ticks were seen: each has a snapshot for every series and key."""
        return self.snapshots // len(self._counted)

    def complete(self) -> bool:
        """Whether every series and key has a board."""
        return len(self.newest) == len(self._counted)

    def receive(self, snapshot: dict[str, Any]) -> Board | None:
        """Take one page of a snapshot, as parsed JSON; return the board of a whole one.

        None while pages are missing, and for a tick already seen.
        """
        stream = (snapshot["histogram"], snapshot["key"])
        counted = self._counted[stream]
        # As a global tick.
        tick = self._exact.grid.tick_at(snapshot["start"])
        if tick < counted.next:
            return None
        items = self._pages.setdefault(stream, [])
        items += [(label, count) for label, count in snapshot["items"]]
        if snapshot["page"] < snapshot["pages"]:
            return None
        window = snapshot.get("window")
        # The first tick of the epoch, or of the window.
        first = tick - snapshot["tick"] + 1
        if window is not None:
            first = self._exact.grid.tick_at(window["from"])
        exact = counted.advance(first, tick, slides=window is not None)
        rows = [
            Row(label, count, exact[label]) for label, count in self._pages.pop(stream)
        ]
        board = Board(
            tick=snapshot["tick"],
            window_ms=None if window is None else window["ms"],
            end_ms=snapshot["end"],
            sd=snapshot["sd"],
            threshold=snapshot["threshold"],
            rows=rows,
            hidden=len(exact.keys() - {row.label for row in rows}),
        )
        self.newest[stream] = board
        with self._lock:
            self._last.setdefault(stream, deque(maxlen=TICKS)).append(board)
        self.snapshots += 1
        self.errors[stream[0]].add(rows, board.sd)
        # No series and key reads an earlier tick again.
        self._exact.forget(min(counted.needed for counted in self._counted.values()))
        return board

    def after(self, series: str, key: str, end_ms: int) -> list[dict[str, object]]:
        """Return the exact counts of the ticks of a series and key that ended after `end_ms`."""
        with self._lock:
            boards = list(self._last.get((series, key), ()))
        return [board.exact() for board in boards if board.end_ms > end_ms]

    async def answer(self, request: web.Request) -> web.Response:
        """Answer GET /demo/exact, described in the module."""
        query = request.query
        after = query.get("after", "0")
        if not (after.isascii() and after.isdigit() and len(after) < 20):
            return refusal(400, "after: a whole number of ms since 1970")
        series = query.get("histogram", "")
        key = query.get("key", "")
        if (series, key) not in self._counted:
            return refusal(
                404, f"no such histogram and key: {series[:100]!r}, {key[:100]!r}"
            )
        response = web.json_response({"ticks": self.after(series, key, int(after))})
        response.enable_compression()
        return response
