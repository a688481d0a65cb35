"""All ticks of all streams: the newest from memory, the others from the history, or why not yet.

What is not read yet is never said to be missing. The history gets a tick a moment after memory, and
what is older than memory while it reads the topics from their beginning. `hub.history` is in
memory; the history, on disk, is the store's.
"""

import asyncio
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson

from workers.client.messages import SeenSnapshot, Stream, select_items
from workers.dashboard.hub import READING, Hub
from workers.dashboard.store.queries import (
    NotReadYet,
    NotStored,
    TickQuery,
    beginnings,
    iso,
    locate,
    one_tick,
)
from workers.dashboard.store.store import Query, QueryFailed, Store

# A request waits this long for the newest snapshots, which are read within a second or two.
READ_WAIT_S = 10.0
READ_POLL_S = 0.05
HISTORY_POLL_S = 0.25
NAME_CHARS = 100

T = TypeVar("T")


class Unanswered(Exception):
    """A query without an answer; the client sees the message and the nearest ticks.

    `nearest` has those before and after the tick that was asked for, where they are known.
    """

    status: int  # of the HTTP response

    def __init__(self, message: str, nearest: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.nearest = nearest


class NotYet(Unanswered):
    """The ticks are not read yet."""

    status = 503


class NoTick(Unanswered):
    """The tick is not stored."""

    status = 404


@dataclass(frozen=True, slots=True)
class Ticks:
    """Finds ticks in memory (the hub) or in the history (the store).

    Refuses with NotYet, NoTick, NotStored or QueryFailed.
    """

    hub: Hub
    store: Store

    async def wait_until_read(self, histograms: Collection[str]) -> None:
        """Wait, `READ_WAIT_S` at most, until the newest snapshots of histograms are read.

        So requests right after the start get an answer, not a refusal.
        """
        until = time.monotonic() + READ_WAIT_S
        while self.hub.waits_for_kafka(histograms) and time.monotonic() < until:
            await asyncio.sleep(READ_POLL_S)

    async def newest(self, stream: Stream) -> SeenSnapshot:
        """Return a stream's newest tick, once it has been read."""
        await self.wait_until_read([stream.histogram])
        why = self.hub.why_unread(stream.histogram)
        if why is not None:
            raise NotYet(f"{stream.histogram} is not read yet: {why}")
        snapshot = self.hub.history.newest(stream)
        if snapshot is None:
            raise _no_such_key(stream)
        return snapshot

    def unread(self, stream: Stream) -> str | None:
        """Return why ticks of a stream may be missing in the history; None once all were read."""
        reading = self.store.reading
        if reading is not None:
            return f"the history is still being read: {100 * reading:.0f} % of the topics so far"
        # A topic that has just come is read into memory first.
        why = self.hub.why_unread(stream.histogram)
        return None if why is None else f"{stream.histogram} is not read yet: {why}"

    async def ask(self, stream: Stream, query: Query[T]) -> T:
        """Return the history's answer; wait a moment for a new key, which memory has a bit earlier.

        Raise NotYet with the reason if what is missing may still be read, else NotStored.
        """
        # Before the query: it may lack what is read while it runs.
        unread = self.unread(stream)
        until = time.monotonic() + READ_WAIT_S
        while True:
            try:
                return await self.store.ask(query)
            except NotReadYet:
                raise NotYet(unread or READING) from None
            except NotStored:
                is_new = self.hub.history.newest(stream) is not None
                comes_soon = is_new and self.store.reading is None
                if not comes_soon or time.monotonic() >= until:
                    break
            await asyncio.sleep(HISTORY_POLL_S)
        if unread is None and is_new:
            key = f"{stream.key[:NAME_CHARS]!r}"
            unread = f"the history does not have this new key yet: {key}"
        raise _no_such_key(stream) if unread is None else NotYet(unread)

    async def find(self, query: TickQuery) -> bytes:
        """Return a tick as JSON, with the items that the query asks for.

        NoTick and NotYet name its nearest neighbours.
        """
        in_memory = [
            snapshot
            for snapshot in self._in_memory(query.stream)
            if query.id in (None, snapshot.id)
        ]
        for snapshot in reversed(in_memory):
            if _matches(snapshot, query):
                items = frozenset(query.items) or None
                line = select_items(snapshot, items=items, top=query.top)
                return with_end_time(line, snapshot.end)
        # Before the query: it may lack what is read while it runs.
        unread = self.unread(query.stream)
        try:
            stored, nearest = await self.ask(
                query.stream, lambda cursor: one_tick(cursor, query)
            )
        except (QueryFailed, NotYet) as error:
            raise NotYet(str(error), _nearest(in_memory, query)) from None
        if stored is not None:
            return with_end_time(orjson.dumps(stored), stored["end"])
        if unread is not None:
            raise NotYet(unread, nearest)
        raise NoTick("this tick is not stored", nearest)

    async def began(self, stream: Stream, series: str) -> int | None:
        """Return when a series, by its `id`, began to count from zero, ms; None if not known."""
        previous: SeenSnapshot | None = None
        for snapshot in self._in_memory(stream):
            # The first in memory: it is the series' first if no tick is missing before it.
            if snapshot.id == series:
                if previous is not None and previous.end == snapshot.start:
                    return snapshot.start
                break
            previous = snapshot

        def query(cursor: Any) -> int | None:
            where = locate(cursor, stream)
            return beginnings(cursor, stream, where, [series]).get(series)

        return await self.ask(stream, query)

    def _in_memory(self, stream: Stream) -> list[SeenSnapshot]:
        """Return all ticks of a stream that are in memory, oldest first."""
        return self.hub.history.page(stream, None, self.hub.history.ticks)[0]


def with_end_time(line: bytes, end_ms: int) -> bytes:
    """Return a snapshot's JSON with its end as a readable time in UTC added."""
    # Before the closing brace.
    return b'%b,"end_time":"%b"}' % (line.rstrip()[:-1], iso(end_ms).encode())


def _no_such_key(stream: Stream) -> NotStored:
    where = f"no such key: {stream.key[:NAME_CHARS]!r} of {stream.histogram}"
    return NotStored(f"{where}; /api/histograms lists the keys")


def _matches(snapshot: SeenSnapshot, query: TickQuery) -> bool:
    """Return whether a snapshot is the tick that a query names, by time or by number."""
    if query.at is not None:
        return snapshot.start < query.at <= snapshot.end
    return (snapshot.epoch, snapshot.tick) == (query.epoch, query.tick)


def _nearest(in_memory: list[SeenSnapshot], query: TickQuery) -> dict[str, object]:
    """Return the ticks in memory that come right before and after the one that a query names.

    They are in the order of what it is named by: a time `at`, or an epoch and tick.
    """

    def position(snapshot: SeenSnapshot) -> tuple[int, ...]:
        if query.at is not None:
            return (snapshot.end,)
        return (snapshot.epoch, snapshot.tick)

    wanted: tuple[int, ...] = (query.epoch or 0, query.tick or 0)
    if query.at is not None:
        wanted = (query.at,)
    earlier = [snapshot for snapshot in in_memory if position(snapshot) < wanted]
    later = [snapshot for snapshot in in_memory if position(snapshot) > wanted]
    return {
        "before": _named(max(earlier, key=position, default=None)),
        "after": _named(min(later, key=position, default=None)),
    }


def _named(snapshot: SeenSnapshot | None) -> dict[str, object] | None:
    """Return the fields by which an answer names a tick."""
    if snapshot is None:
        return None
    return {name: getattr(snapshot, name) for name in ("id", "epoch", "tick", "end")}
