"""Users: how much of an event's items still counts, where users are protected. No Kafka, no clock.

In each epoch of a lane the first `max_items_per_user` distinct (stream key, item) pairs of a user
count, each at most `max_count` times in all, in the order of the source partition. The rule reads
that user's own events alone, so one user moves at most m pairs by at most `max_count` each,
whatever ticks they fall in. It holds only if all events of a user lie in one source partition:
`kafka/placement.py` rejects those that lie elsewhere, so a producer that spreads a user's records
loses events instead of weakening the promise.

In memory each epoch of a lane has a table (`kernels/users.py`), exact but for a user's digest of
128 bits and a pair's of 64, compared within one user. Two pairs of one user that collide count as
one: a count may be too low, the promise holds.

What is stored: what is new in each commit, in the order in which it counted, as blocks.

    b"U" + lane (8 bytes) + epoch (8, big endian) + sequence (8, big endian)  ->  a block
    b"u" + lane (8 bytes) + epoch (8, big endian) + user (16)  ->  of earlier versions, only read

Both are in `user_epoch.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from workers.changes import Change
from workers.mechanisms.config import Lane
from workers.mechanisms.frozen import read_only

if TYPE_CHECKING:
    from workers.agents.user_epoch import UserEpoch

PREFIX = b"U"
PREFIX_OF_ENTRIES = b"u"
# Rows between commits: 6 MB of blocks in one transaction.
ROWS_HELD = 200_000
# Blocks, or entries, of epochs that are over go in steps, so that no transaction grows with users.
FORGOTTEN_AT_ONCE = 20_000
# A store gives values with names, and blocks are long: no step reads much more than this.
FORGOTTEN_BYTES_AT_ONCE = 64 << 20

_ONE_EACH = read_only(np.empty(0, np.int64))


class Stored(Protocol):
    """What was committed: a shard's store, or nothing."""

    def get(self, key: bytes) -> bytes | None: ...
    def items(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]: ...


class Users:
    """What the users of one source partition have counted. Sensitive."""

    def __init__(self, lanes: Iterable[Lane], stored: Stored | None = None) -> None:
        """
        Args:
            lanes: those that bound users.
            stored: what was committed; None keeps everything in memory (replay).
        """
        self._digests = {lane: _lane_digest(lane) for lane in lanes if lane.max_items_per_user is not None}
        self._stored = stored
        self._epochs: dict[tuple[Lane, int], UserEpoch] = {}
        self._oldest = dict.fromkeys(self._digests, 0)

    def __repr__(self) -> str:
        return f"Users({len(self._digests)} lanes)"

    @property
    def full(self) -> bool:
        """Whether so much is new that it should be committed."""
        return sum(epoch.rows for epoch in self._epochs.values()) >= ROWS_HELD

    def take(
        self,
        lane: Lane,
        epochs: NDArray[np.int64],
        users: NDArray[np.uint64],
        first: NDArray[np.int64],
        number: NDArray[np.int64],
        pairs: NDArray[np.uint64],
        amounts: NDArray[np.int64] | None = None,
    ) -> NDArray[np.int64]:
        """Return how much of each row counts, event by event in their order, and use it up.

        Args:
            lane: one that bounds users.
            epochs: int64 (n,), of each event; -1: it has no tick and is skipped.
            users: uint64 (n, 2), digest of each event's user.
            first: int64 (n,), the event's first row.
            number: int64 (n,), how many rows it has: its distinct labels, at most `max_items`.
            pairs: uint64 (m,), digest of each row's (stream key, label).
            amounts: int64 (m,), how much each row adds; None: 1 each.

        Returns:
            int64 (m,); 0 for rows that do not count.
        """
        counted = np.zeros(len(pairs), dtype=np.int64)
        # Nothing counts in an epoch whose users are forgotten; the intake has closed its ticks.
        oldest = self._oldest[lane]
        for epoch, events in _by_epoch(epochs):
            if epoch >= oldest:
                held = self._of(lane, epoch)
                held.take(events, users, first, number, pairs, _ONE_EACH if amounts is None else amounts, counted)
        return counted

    def changes(self) -> list[Change]:
        """Return what is new since the last commit, for the transaction of its contributions."""
        return [
            change for (lane, epoch), held in self._epochs.items() for change in held.changes(self._name(lane, epoch))
        ]

    def over(self, watermark_ms: int) -> list[Change]:
        """Return deletions of what is stored of epochs that are over: nothing of theirs can count
        again.
        """
        if self._stored is None:
            return []
        deletions: list[Change] = []
        size = 0
        for lane, digest in self._digests.items():
            oldest = _oldest(lane, watermark_ms).to_bytes(8)
            for prefix in (PREFIX + digest, PREFIX_OF_ENTRIES + digest):
                for name, value in islice(self._stored.items(prefix), FORGOTTEN_AT_ONCE - len(deletions)):
                    if name >= prefix + oldest or size >= FORGOTTEN_BYTES_AT_ONCE:
                        break
                    size += len(value)
                    deletions.append((name, None))
        return deletions

    def committed(self, watermark_ms: int | None) -> None:
        """Note that what `changes` returned is stored: forget epochs that are over; none is with a
        watermark of None.
        """
        if watermark_ms is not None:
            for lane in self._oldest:
                self._oldest[lane] = _oldest(lane, watermark_ms)
        self._epochs = {at: held for at, held in self._epochs.items() if at[1] >= self._oldest[at[0]]}
        for held in self._epochs.values():
            held.committed()

    def restore(self, watermark_ms: int) -> None:
        """Go on after a commit that left this watermark: read what is stored of its epochs."""
        for lane in self._oldest:
            self._oldest[lane] = _oldest(lane, watermark_ms)
            self._of(lane, self._oldest[lane])

    def _of(self, lane: Lane, epoch: int) -> UserEpoch:
        # Only what counts compiles: most commands never import numba.
        from workers.agents.user_epoch import UserEpoch

        held = self._epochs.get((lane, epoch))
        if held is None:
            held = UserEpoch(lane, keeps=self._stored is not None)
            if self._stored is not None:
                name = self._name(lane, epoch)
                held.read_entries(self._stored.items(PREFIX_OF_ENTRIES + name[len(PREFIX) :]))
                held.read_blocks(self._stored.items(name))
            self._epochs[lane, epoch] = held
        return held

    def _name(self, lane: Lane, epoch: int) -> bytes:
        return PREFIX + self._digests[lane] + epoch.to_bytes(8)


def _by_epoch(epochs: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield each epoch but -1 and its events, in order."""
    if not len(epochs):
        return
    order = np.argsort(epochs, kind="stable")
    for events in np.split(order, np.flatnonzero(np.diff(epochs[order])) + 1):
        epoch = int(epochs[events[0]])
        if epoch >= 0:
            yield epoch, events


def _oldest(lane: Lane, watermark_ms: int) -> int:
    """Return the epoch of the first tick that is open."""
    return lane.epoch(max(1, (watermark_ms - lane.start_ms) // lane.tick_ms + 1))


def _lane_digest(lane: Lane) -> bytes:
    return blake2b(repr(tuple(lane if lane.view else lane[:-1])).encode(), digest_size=8, person=b"qc-lane").digest()
