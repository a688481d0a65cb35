"""The last ticks of every stream, within a number of ticks and of bytes, whatever arrives."""

from __future__ import annotations

from collections import Counter, deque

import msgspec

from workers.dashboard.snapshots import SeenSnapshot, Stream

TICKS = 120
MAX_BYTES = 256 << 20
#: The part of MAX_BYTES that is left when there is too much, so that this is rare.
ROOM = 0.9


class History:
    """What is known of each stream, newest last."""

    def __init__(self, ticks: int = TICKS, max_bytes: int = MAX_BYTES) -> None:
        self.ticks, self._max_bytes = ticks, max_bytes
        self._of: dict[Stream, deque[SeenSnapshot]] = {}
        self._bytes: Counter[Stream] = Counter()
        self.bytes = 0
        self.number = 0

    def add(self, snapshot: SeenSnapshot) -> bool:
        """Keep a snapshot if it is new, and return whether it is; make room for it."""
        stream = snapshot.stream
        kept = self._of.setdefault(stream, deque())
        if kept and snapshot.end <= kept[-1].end:
            if snapshot.id == kept[-1].id:
                return False
            # Another series that goes back in time: the topic was started again.
            while kept and kept[-1].end >= snapshot.end:
                self._forget(stream, kept.pop())
        self.number += 1
        kept.append(msgspec.structs.replace(snapshot, number=self.number))
        self._bytes[stream] += len(snapshot.json)
        self.bytes += len(snapshot.json)
        if len(kept) > self.ticks:
            self._forget(stream, kept.popleft())
        if self.bytes > self._max_bytes:
            self._shrink()
        return True

    def streams(self) -> list[Stream]:
        """Return all streams, in the order in which they were first seen."""
        return [stream for stream, kept in self._of.items() if kept]

    def newest(self, stream: Stream) -> SeenSnapshot | None:
        """Return the newest snapshot of a stream."""
        kept = self._of.get(stream)
        return kept[-1] if kept else None

    def all_newest(self, after: int = 0) -> list[SeenSnapshot]:
        """Return each stream's newest snapshot, if numbered above `after`, in order of arrival."""
        found = [kept[-1] for kept in self._of.values() if kept and kept[-1].number > after]
        return sorted(found, key=lambda snapshot: snapshot.number)

    def page(self, stream: Stream, after: int | None, limit: int) -> tuple[list[SeenSnapshot], bool]:
        """Return at most `limit` snapshots of a stream, oldest first, and whether there are more.

        They are the oldest whose tick ends after the time `after`; None: the newest.
        """
        kept = list(self._of.get(stream, ()))
        if after is None:
            return kept[-limit:], False
        found = [snapshot for snapshot in kept if snapshot.end > after]
        return found[:limit], len(found) > limit

    def _shrink(self) -> None:
        """Take from the streams that have most, and leave each its newest snapshot."""
        while self.bytes > self._max_bytes * ROOM:
            longer = (stream for stream, kept in self._of.items() if len(kept) > 1)
            stream = max(longer, key=self._bytes.__getitem__, default=None)
            if stream is None:
                return
            self._forget(stream, self._of[stream].popleft())

    def _forget(self, stream: Stream, snapshot: SeenSnapshot) -> None:
        self._bytes[stream] -= len(snapshot.json)
        self.bytes -= len(snapshot.json)
