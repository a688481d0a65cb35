"""Stage 1 without Kafka: events of one source partition in, what a commit says to the owners out.

Time here is the events' own. The *watermark* W of a source partition is the largest of

    event time seen - grace     but an event dated after the wall clock at which it is read counts as
                                dated then, so nobody's wrong clock closes other people's ticks
    wall clock - grace          at the offset where the log ended at that time (`workers/kafka/ends.py`)
    the first event's time      likewise at most the wall clock

A tick is closed when it ends at or before W. An event goes into the tick of its own time if that is
open, else into the open tick that holds W: so an event's tick depends on the order of the partition
and on what was closed before it, never on where a batch or a commit ended.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from workers.agents.contributions import encode
from workers.agents.events import Events
from workers.agents.users import Stored, Users
from workers.changes import Change
from workers.histogram.owners import owner_of
from workers.mechanisms.bounding import Items, bound, bound_lists
from workers.mechanisms.config import Lane


class Intake:
    """What one source partition has contributed since its last commit, and its watermark. Sensitive."""

    def __init__(self, lanes: Sequence[Lane], grace_ms: int, stored: Stored | None = None) -> None:
        """
        Args:
            lanes: tick grids and bounds to count for, each once.
            grace_ms: how long a tick stays open for events that come late.
            stored: what earlier commits left of users' pairs; None keeps those in memory.
        """
        self._lanes = lanes
        self._users = Users(lanes, stored)
        self._grace = grace_ms
        self.watermark: int | None = None
        self.first: int | None = None
        self._open: dict[tuple[Lane, int], dict[str, Counter[str]]] = {}
        self._committed_watermark: int | None = None

    def __repr__(self) -> str:
        return f"Intake(watermark={self.watermark})"

    def restore(self, watermark: int | None, first: int | None) -> None:
        """Go on after a commit that left these behind."""
        self.watermark = self._committed_watermark = watermark
        self.first = first
        self._open = {}
        if watermark is not None:
            self._users.restore(watermark)

    def add(self, events: Events, read_ms: int | None = None) -> None:
        """Count a batch of events, in order.

        Args:
            events: the batch.
            read_ms: wall clock at which it is read, the most to which its times move the watermark;
                None where the events' own times are the only clock (replay).
        """
        for lane, ticks in self._ticks(events.times, read_ms):
            self._count(lane, ticks, events)

    def _ticks(self, times: NDArray[np.int64], read_ms: int | None) -> Iterator[tuple[Lane, NDArray[np.int64]]]:
        """Move the watermark by a batch; yield the tick of each event in each lane (0: none)."""
        if not len(times):
            return
        seen = times if read_ms is None else np.minimum(times, read_ms)
        if self.watermark is None:
            self.watermark = int(seen[0])
        if self.first is None:
            self.first = max(self.watermark, int(seen[0]))
        marks = np.maximum(np.maximum.accumulate(seen) - self._grace, self.watermark)
        self.watermark = int(marks[-1])
        effective = np.maximum(times, marks)
        for lane in self._lanes:
            # The tick that holds a time; a tick is closed when it ends at or before W, so the one that holds W is open.
            ticks = (effective - lane.start_ms) // lane.tick_ms + 1
            if int(times.min()) < lane.start_ms:
                ticks[times < lane.start_ms] = 0  # before tick 1: not part of this lane
            yield lane, ticks

    def _count(self, lane: Lane, ticks: NDArray[np.int64], events: Events) -> None:
        low, high = int(ticks.min()), int(ticks.max())
        if lane.max_items_per_user is not None:
            self._of_users(lane, ticks, events)
            return
        in_order = bool((ticks[1:] >= ticks[:-1]).all())
        for tick in (low,) if low == high else np.unique(ticks).tolist():
            if tick < 1:
                continue
            keys, items = events.keys, events.items
            if low != high and in_order:
                start, stop = np.searchsorted(ticks, (tick, tick + 1)).tolist()
                keys, items = keys[start:stop], items[start:stop]
            elif low != high:
                index = np.flatnonzero(ticks == tick).tolist()
                keys, items = [keys[i] for i in index], [items[i] for i in index]
            tallies = self._open.get((lane, tick))
            if tallies is None:
                tallies = self._open[lane, tick] = defaultdict(Counter)
            if lane.max_count == 1:
                for key, labels in bound_lists(keys, items, lane.max_items).items():
                    tallies[key].update(labels)
            else:
                self._weighted(tallies, keys, items, lane)

    def _of_users(self, lane: Lane, ticks: NDArray[np.int64], events: Events) -> None:
        """Count, event by event in their order, what each user may still add."""
        # Only what counts compiles: most commands never import numba.
        from workers.agents.user_digests import digests_of_pairs, digests_of_users

        if events.users is None:
            raise ValueError("events without users for a lane that bounds them")
        bounded = [
            [(label, n) for label, n in bound(items, lane.max_items, lane.max_count).items() if n]
            for items in events.items
        ]
        number = np.array([len(items) for items in bounded], dtype=np.int64)
        rows = [(key, label) for key, items in zip(events.keys, bounded, strict=True) for label, _ in items]
        counted = self._users.take(
            lane,
            np.array([lane.epoch(tick) if tick >= 1 else -1 for tick in ticks.tolist()], dtype=np.int64),
            digests_of_users(events.users),
            np.cumsum(number) - number,
            number,
            digests_of_pairs(rows),
            np.array([n for items in bounded for _, n in items], dtype=np.int64),
        ).tolist()
        at = 0
        for tick, key, items in zip(ticks.tolist(), events.keys, bounded, strict=True):
            if tick >= 1:
                tallies = self._open.get((lane, tick))
                if tallies is None:
                    tallies = self._open[lane, tick] = defaultdict(Counter)
                for (label, _), n in zip(items, counted[at : at + len(items)], strict=True):
                    if n:
                        tallies[key][label] += n
                # As before: a key that came is named, whether or not anything of it counted.
                _ = tallies[key]
            at += len(items)

    @staticmethod
    def _weighted(tallies: dict[str, Counter[str]], keys: Sequence[str], items: Sequence[Items], lane: Lane) -> None:
        for key, of_event in zip(keys, items, strict=True):
            tallies[key].update(bound(of_event, lane.max_items, lane.max_count))

    def read_to_end(self, now_ms: int) -> None:
        """Close the ticks that were over at wall-clock time `now_ms`: the partition was read to the end it had then."""
        mark = now_ms - self._grace
        if self.watermark is None or mark > self.watermark:
            self.watermark = mark

    def closes(self) -> bool:
        """Tell whether a tick of any lane has closed since the last commit."""
        return self.watermark is not None and self._closed_between(self._committed_watermark, self.watermark)

    def _closed_between(self, before: int | None, mark: int) -> bool:
        if before is None:
            return True
        return any(
            (mark - lane.start_ms) // lane.tick_ms > (before - lane.start_ms) // lane.tick_ms for lane in self._lanes
        )

    def ticks_closed(self) -> int:
        """Return how many ticks, over all lanes, have closed since the last commit; none before the first."""
        mark, before = self.watermark, self._committed_watermark
        if mark is None or before is None:
            return 0
        return sum(
            (mark - lane.start_ms) // lane.tick_ms - (before - lane.start_ms) // lane.tick_ms for lane in self._lanes
        )

    def closes_by_clock(self, now_ms: int, noted_ms: int | None = None) -> bool:
        """Tell whether the wall clock alone would close a tick now that it did not close at `noted_ms`; from any thread."""
        marks = [self.watermark, None if noted_ms is None else noted_ms - self._grace]
        before = max((mark for mark in marks if mark is not None), default=None)
        mark = now_ms - self._grace
        return before is None or (mark > before and self._closed_between(before, mark))

    @property
    def empty(self) -> bool:
        """Whether nothing was counted since the last commit."""
        return not self._open

    @property
    def full(self) -> bool:
        """Whether enough users changed for a commit."""
        return self._users.full

    def user_changes(self) -> list[Change]:
        """Return what is to be stored of users, in the transaction of the commit that follows."""
        return self._users.changes() + ([] if self.watermark is None else self._users.over(self.watermark))

    def commit(
        self, *, source: int, sequences: list[int], offset: int, to_all: bool = False
    ) -> list[tuple[int, bytes]]:
        """Return what to tell the owners, as (owner partition, message); then nothing is open any more.

        Every owner is told when a tick has closed (it is the watermark), else only those that something was counted for.

        Args:
            source: this source partition.
            sequences: next sequence number for each owner; advanced here.
            offset: where the source partition is read on.
            to_all: tell every owner, whatever was counted.
        """
        owners = len(sequences)
        shares: list[list[tuple[Lane, int, dict[str, Counter[str]]]]] = [[] for _ in range(owners)]
        owner: dict[str, int] = {}
        for (lane, tick), tallies in self._open.items():
            split: dict[int, dict[str, Counter[str]]] = {}
            for key, tally in tallies.items():
                to = owner.get(key)
                if to is None:
                    to = owner[key] = owner_of(key, owners)
                split.setdefault(to, {})[key] = tally
            for to, part in split.items():
                shares[to].append((lane, tick, part))
        to_all = to_all or self.closes()
        told: Iterable[int] = range(owners) if to_all else [to for to in range(owners) if shares[to]]
        messages: list[tuple[int, bytes]] = []
        for to in told:
            pages = encode(
                shares[to],
                source=source,
                sequence=sequences[to],
                offset=offset,
                watermark=self.watermark,
                first=self.first,
            )
            sequences[to] += len(pages)
            messages += [(to, page) for page in pages]
        self._open = {}
        self._committed_watermark = self.watermark
        if self.watermark is not None:
            self._users.committed(self.watermark)
        return messages
