"""What the users of one epoch have counted, and how that is stored: as blocks of what is new in
each commit.

    version (1), n (4, big endian), users (16 each), pairs (8 each), added (4 each, little endian)

A block is written again with what follows until it has TAIL_ROWS rows, so that many small commits
do not leave many small blocks. Earlier versions wrote one entry a user instead, in which each pair
counts once: it is still read.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from workers.changes import Change
from workers.errors import StateRefused
from workers.kernels import users as kernels
from workers.mechanisms.config import Lane
from workers.mechanisms.frozen import read_only
from workers.mechanisms.sizes import VALUE_BYTES
from workers.mechanisms.texts import fixed

VERSION = b"\x01"
ROW_BYTES = 16 + 8 + 4
HEAD_BYTES = 1 + 4
BLOCK_ROWS = (VALUE_BYTES - HEAD_BYTES) // ROW_BYTES
TAIL_ROWS = 1_024
# How many entries of the old form are put into arrays together.
_READ_AT_ONCE = 10_000
# Room to begin with, and how much more each time: tables may be most of a worker's memory.
_ROOM = 1_024
_GROWTH = 1.25
_NUMBERS = 2**31 - 1

Columns = tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64]]
"""Users (n, 2), pairs (n,), amounts (n,)."""
_NO_ROWS: Columns = (
    read_only(np.empty((0, 2), np.uint64)),
    read_only(np.empty(0, np.uint64)),
    read_only(np.empty(0, np.int64)),
)


class UserEpoch:
    """One epoch of one lane: its table, and what is to be stored of it. Sensitive."""

    def __init__(self, lane: Lane, *, keeps: bool) -> None:
        """
        Args:
            lane: it bounds users.
            keeps: whether what counts is noted for `changes`.
        """
        self._most, self._max_count = lane.max_items_per_user or 0, lane.max_count
        self._keeps = keeps
        self._table = _empty(self._max_count)
        self._new: list[Columns] = []
        self._tail = _NO_ROWS
        self._sequence = 0
        self._written: tuple[int, Columns] | None = None
        self.rows = 0  # that are new since the last commit

    def take(
        self,
        events: NDArray[np.int64],
        users: NDArray[np.uint64],
        first: NDArray[np.int64],
        number: NDArray[np.int64],
        pairs: NDArray[np.uint64],
        amounts: NDArray[np.int64],
        counted: NDArray[np.int64],
    ) -> None:
        """Write what counts of some events into `counted`; arguments as of the kernel."""
        self._take(events, users, first, number, pairs, amounts, counted)
        if self._keeps:
            found = kernels.entries(events, users, first, number, pairs, counted)
            if len(found[1]):
                self._new.append(found)
                self.rows += len(found[1])

    def _take(
        self,
        events: NDArray[np.int64],
        users: NDArray[np.uint64],
        first: NDArray[np.int64],
        number: NDArray[np.int64],
        pairs: NDArray[np.uint64],
        amounts: NDArray[np.int64],
        counted: NDArray[np.int64],
    ) -> None:
        users, pairs = fixed(users), fixed(pairs)
        owners = np.empty(len(users), dtype=np.int32)
        numbers = np.empty(len(pairs), dtype=np.int32)
        done = 0
        while (done := kernels.number_users(self._table, done, events, users, number, owners)) < len(events):
            self._table = _with_users(self._table)
        done, most, max_count = 0, self._most, self._max_count
        while (
            done := kernels.count_pairs(
                self._table, most, max_count, done, events, owners, first, number, pairs, amounts, numbers, counted
            )
        ) < len(events):
            self._table = _with_pairs(self._table, int(number[events[done]]))

    def changes(self, name: bytes) -> list[Change]:
        """Return the blocks that are new, or longer than when they were written last."""
        if not self.rows:
            return []
        columns = _joined([self._tail, *self._new])
        made: list[Change] = []
        sequence, rows = self._sequence, len(columns[1])
        for start in range(0, rows, BLOCK_ROWS):
            part = _cut(columns, start, start + BLOCK_ROWS)
            made.append((name + sequence.to_bytes(8), _encode(part)))
            if len(part[1]) >= TAIL_ROWS:
                sequence, part = sequence + 1, _NO_ROWS
        self._written = sequence, _joined([part])
        return made

    def committed(self) -> None:
        """Note that what `changes` returned is stored."""
        if self._written is not None:
            self._sequence, self._tail = self._written
        self._written, self._new, self.rows = None, [], 0

    def read_blocks(self, stored: Iterable[tuple[bytes, bytes]]) -> None:
        """Read what `changes` returned in earlier lives, in order."""
        for name, value in stored:
            columns = _decode(value)
            self._enter(columns)
            sequence, rows = int.from_bytes(name[-8:]), len(columns[1])
            full = rows >= TAIL_ROWS
            self._sequence, self._tail = (sequence + 1, _NO_ROWS) if full else (sequence, columns)

    def read_entries(self, stored: Iterator[tuple[bytes, bytes]]) -> None:
        """Read what earlier versions left: one entry a user."""
        while some := list(islice(stored, _READ_AT_ONCE)):
            for _, value in some:
                if value[:1] != VERSION or len(value) % 8 != 1:
                    raise StateRefused("a user's stored pairs are of another version: was it written by a newer one?")
            users = np.frombuffer(b"".join(name[-16:] for name, _ in some), "<u8").reshape(-1, 2)
            pairs = np.frombuffer(b"".join(value[1:] for _, value in some), "<u8")
            each = [len(value) // 8 for _, value in some]
            self._enter((users.repeat(each, axis=0), pairs, np.ones(len(pairs), np.int64)))

    def _enter(self, columns: Columns) -> None:
        users, pairs, added = columns
        rows = np.arange(len(pairs))
        counted = np.zeros(len(pairs), dtype=np.int64)
        self._take(rows, users, rows, np.ones_like(rows), pairs, added, counted)
        if not np.array_equal(counted, added):
            raise StateRefused("stored pairs of users are more than their settings allow: the state was changed")


def _empty(max_count: int) -> kernels.Table:
    return kernels.Table(
        user_slots=np.full(2 * _ROOM, -1, dtype=np.int32),
        digests=np.zeros((_ROOM, 2), dtype=np.uint64),
        used=np.zeros(_ROOM, dtype=np.uint16),
        pair_slots=np.empty(2 * _ROOM, dtype=np.int32),
        pair_marks=np.zeros(2 * _ROOM, dtype=np.uint8),
        owners=np.zeros(_ROOM, dtype=np.int32),
        pairs=np.zeros(_ROOM, dtype=np.uint64),
        counts=np.zeros(_ROOM if max_count > 1 else 0, dtype=np.int32),
        sizes=np.zeros(2, dtype=np.int64),
        # Of this process alone: nothing that is stored or published depends on it.
        seed=np.array([secrets.randbits(64)], dtype=np.uint64),
    )


def _with_users(table: kernels.Table) -> kernels.Table:
    """Return a table with room for more users."""
    users = int(table.sizes[0])
    room = _room(users, 1)
    # Reallocated in place where possible: a copy would need both at once.
    table.digests.resize((room, 2), refcheck=False)
    table.used.resize(room, refcheck=False)
    size = _slots_for(room, len(table.user_slots))
    if size > len(table.user_slots):
        table = table._replace(user_slots=np.empty(0, np.int32))  # freed before more is taken
        table = table._replace(user_slots=np.full(size, -1, dtype=np.int32))
        kernels.index_users(table.user_slots, table.digests, table.seed[0], users)
    return table


def _with_pairs(table: kernels.Table, rows: int) -> kernels.Table:
    """Return a table with room for at least `rows` more pairs."""
    pairs = int(table.sizes[1])
    room = _room(pairs, rows)
    table.owners.resize(room, refcheck=False)
    table.pairs.resize(room, refcheck=False)
    if len(table.counts):
        table.counts.resize(room, refcheck=False)
    size = _slots_for(room, len(table.pair_slots))
    if size > len(table.pair_slots):
        table = table._replace(pair_slots=np.empty(0, np.int32), pair_marks=np.empty(0, np.uint8))
        # Marks say which slots are free.
        slots, marks = np.empty(size, dtype=np.int32), np.zeros(size, dtype=np.uint8)
        table = table._replace(pair_slots=slots, pair_marks=marks)
        kernels.index_pairs(slots, marks, table.owners, table.pairs, table.seed[0], pairs)
    return table


def _slots_for(room: int, slots: int) -> int:
    """Return how many slots: a power of two, at most three quarters of them taken."""
    while 4 * room > 3 * slots:
        slots *= 2
    return slots


def _room(held: int, more: int) -> int:
    room = max(held + more, int(held * _GROWTH))
    if room > _NUMBERS:
        raise MemoryError(f"{held:,} users or pairs in one epoch: at most {_NUMBERS:,}")
    return room


def _joined(parts: list[Columns]) -> Columns:
    """Return one set of columns, a copy: parts of it keep nothing else in memory."""
    users, pairs, added = zip(*parts, strict=True)
    return np.concatenate(users), np.concatenate(pairs), np.concatenate(added)


def _cut(columns: Columns, start: int, stop: int) -> Columns:
    users, pairs, added = columns
    return users[start:stop], pairs[start:stop], added[start:stop]


def _encode(columns: Columns) -> bytes:
    users, pairs, added = columns
    return b"".join(
        (
            VERSION,
            len(pairs).to_bytes(4),
            users.astype("<u8").tobytes(),
            pairs.astype("<u8").tobytes(),
            added.astype("<u4").tobytes(),
        )
    )


def _decode(block: bytes) -> Columns:
    rows = int.from_bytes(block[1:HEAD_BYTES])
    if block[:1] != VERSION or len(block) != HEAD_BYTES + rows * ROW_BYTES:
        raise StateRefused("stored pairs of users are of another version: were they written by a newer one?")
    users = np.frombuffer(block, "<u8", 2 * rows, HEAD_BYTES).reshape(-1, 2)
    pairs = np.frombuffer(block, "<u8", rows, HEAD_BYTES + 16 * rows)
    added = np.frombuffer(block, "<u4", rows, HEAD_BYTES + 24 * rows)
    return users, pairs, added.astype(np.int64)
