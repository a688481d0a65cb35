"""Users: which (stream key, item) pairs of a user still count, where users are protected (mechanisms.md 7). No Kafka, no clock.

In each epoch of a lane the first `max_items_per_user` distinct pairs of a user count, each once, in the order of the source partition.
The rule reads that user's own events alone, so one user moves at most m pairs by one each, whatever ticks they fall in. It holds only
if all events of a user lie in one source partition: `kafka/placement.py` rejects those that lie elsewhere, so a producer that spreads a
user's records loses events instead of weakening the promise.

What is stored: for each lane, epoch and user with a pair that counted, the pairs' digests. Keys hold lanes and users as digests:

    b"u" + lane (8 bytes) + epoch (8, big endian) + user (16)  ->  version (1 byte), pairs (8 each)

Two pairs of one user with the same 64-bit digest would count as one: a count may be one too low, the promise holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import islice
from typing import Protocol

from workers.changes import Change
from workers.errors import StateRefused
from workers.mechanisms.config import Lane

VERSION = b"\x01"
PREFIX = b"u"
# Between commits everything that changed is held; after one, no more users than this are.
USERS_HELD = 100_000
PAIRS_HELD = 200_000
# Users of an epoch that is over are forgotten in steps, so that no transaction grows with their number.
FORGOTTEN_AT_ONCE = 20_000


class Stored(Protocol):
    """What was committed: a shard's store, or nothing."""

    def get(self, key: bytes) -> bytes | None: ...
    def items(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]: ...


class Users:
    """The pairs of one source partition's users. Sensitive."""

    def __init__(self, lanes: Iterable[Lane], stored: Stored | None = None) -> None:
        """
        Args:
            lanes: those that bound users.
            stored: what was committed; None keeps everything in memory (replay).
        """
        self._places = {lane: _lane_key(lane) for lane in lanes if lane.max_items_per_user is not None}
        self._stored = stored
        self._held: dict[bytes, set[int]] = {}
        self._changed: set[bytes] = set()
        self._begun: list[int] = []  # the oldest epoch of each lane that is held
        self._pairs: dict[tuple[str, str], int] = {}
        self._digests: dict[str, bytes] = {}

    def __repr__(self) -> str:
        return f"Users({len(self._places)} lanes)"

    @property
    def full(self) -> bool:
        """Whether so much changed that it should be committed."""
        return len(self._changed) >= USERS_HELD

    def take(self, lane: Lane, tick: int, user: str, key: str, labels: Iterable[str]) -> list[str]:
        """Return those of an event's labels that count, in their order, and use them up.

        Args:
            lane: one that bounds users.
            tick: global tick of the event.
            user: the event's.
            key: stream key.
            labels: of the event, distinct.
        """
        place = self._places[lane] + lane.epoch(tick).to_bytes(8) + self._digest(user)
        pairs = self._held.get(place)
        if pairs is None:
            pairs = self._held[place] = self._load(place)
        most = lane.max_items_per_user or 0
        counted = []
        for label in labels:
            if len(pairs) >= most:
                break
            pair = self._pair(key, label)
            if pair not in pairs:
                pairs.add(pair)
                counted.append(label)
        if counted:
            self._changed.add(place)
        return counted

    def changes(self) -> list[Change]:
        """Return what changed since the last commit, to be committed with the contributions it belongs to."""
        return [
            (place, VERSION + b"".join(pair.to_bytes(8) for pair in sorted(self._held[place])))
            for place in sorted(self._changed)
        ]

    def over(self, watermark_ms: int) -> list[Change]:
        """Return deletions of stored users of epochs whose ticks are all closed: nothing of theirs can count again."""
        if self._stored is None:
            return []
        deletions: list[Change] = []
        for lane, place in self._places.items():
            limit = place + self._oldest(lane, watermark_ms).to_bytes(8)
            for name, _ in islice(self._stored.items(place), FORGOTTEN_AT_ONCE):
                if name >= limit:
                    break
                deletions.append((name, None))
        return deletions

    def committed(self, watermark_ms: int) -> None:
        """Note that what `changes` returned is stored: forget it, and what belongs to epochs that are over."""
        self._changed.clear()
        if self._stored is not None:
            if len(self._held) > USERS_HELD:
                self._held.clear()
            return
        oldest = [self._oldest(lane, watermark_ms) for lane in self._places]
        if oldest == self._begun:
            return
        self._begun = oldest
        for epoch, place in zip(oldest, self._places.values(), strict=True):
            limit = place + epoch.to_bytes(8)
            self._held = {name: pairs for name, pairs in self._held.items() if name >= limit or name[:9] != place}

    @staticmethod
    def _oldest(lane: Lane, watermark_ms: int) -> int:
        return lane.epoch(max(1, (watermark_ms - lane.start_ms) // lane.tick_ms + 1))

    def _load(self, place: bytes) -> set[int]:
        value = None if self._stored is None else self._stored.get(place)
        if value is None:
            return set()
        if value[:1] != VERSION or len(value) % 8 != 1:
            raise StateRefused("a user's stored pairs are of another version: was it written by a newer one?")
        return {int.from_bytes(value[i : i + 8]) for i in range(1, len(value), 8)}

    def _digest(self, user: str) -> bytes:
        found = self._digests.get(user)
        if found is None:
            if len(self._digests) >= USERS_HELD:
                self._digests.clear()
            found = self._digests[user] = blake2b(user.encode(), digest_size=16, person=b"qc-user").digest()
        return found

    def _pair(self, key: str, label: str) -> int:
        found = self._pairs.get((key, label))
        if found is None:
            if len(self._pairs) >= PAIRS_HELD:
                self._pairs.clear()
            name = key.encode()
            text = len(name).to_bytes(4) + name + label.encode()
            digest = blake2b(text, digest_size=8, person=b"qc-pair").digest()
            found = self._pairs[key, label] = int.from_bytes(digest)
        return found


def _lane_key(lane: Lane) -> bytes:
    text = repr(tuple(lane)).encode()
    return PREFIX + blake2b(text, digest_size=8, person=b"qc-lane").digest()
