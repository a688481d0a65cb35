"""Per-user bounds on counted items, where users are protected. No Kafka, no clock.

In each epoch of a lane, a user's first `max_items_per_user` distinct (stream key, item) pairs
count, each at most `max_count` times, in source partition order. The rule reads only that user's
events, so one user moves at most m pairs by at most `max_count` each, whatever ticks they fall in.
In a lane of unique users, whose `max_count` is 0, each of these pairs counts at every event: the
user is in a window, or not, however often.
All events of a user must lie in one source partition: `kafka/placement.py` rejects the others, so a
producer that spreads them loses events but never weakens the guarantee.

Each epoch has two open-addressing tables in memory, of users and of pairs: slots (4 bytes each, a
quarter or more of them free) hold the numbers of append-only entries. A search begins at the slot
of a hash and goes on to the next ones until it finds the entry or a free slot. A user is a 128-bit
digest; a pair is a user number and a 64-bit digest of (stream key, label), compared within that
user only. Two colliding pairs of a user count as one: a count may be too low, the guarantee holds,
and no user can change another's count.

59 M pairs of 10 M users take 1.7 GB, 2.0 GB with counts. Memory latency bounds look-ups, so a
branch-free loop first guesses the entries of a block of events, and the processor fetches them in
parallel (20 M events of 10 M users: 140 ns an event instead of 210). Marks avoid a cache miss at
every slot passed (100 ns a new pair instead of 160).

Every commit stores its new entries in counting order. The last block is rewritten until it has
TAIL_ROWS rows, so small commits leave few blocks. Integers of the rows are little endian, others
big endian.

    name    b"U", lane (8 bytes), epoch (8), sequence (8)
    block   version (1), n (4), rows of user (16), pair (8) and added (4)
"""

import secrets
from collections.abc import Iterable
from hashlib import blake2b
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from workers.arrays.compiled import kernel, kernel_part, kernel_with_arrays
from workers.arrays.texts import readonly_contiguous
from workers.arrays.types import Bytes, Codes, Longs, Words
from workers.mechanisms.config.histogram import Lane
from workers.pipeline.ledger_blocks import StoredPairs
from workers.runtime.errors import StateRefused
from workers.runtime.frozen import read_only
from workers.runtime.sizes import VALUE_BYTES, Change

# Odd constants of MurmurHash3's and SplitMix64's finalizers.
_FIRST = np.uint64(0xFF51AFD7ED558CCD)
_SECOND = np.uint64(0xBF58476D1CE4E5B9)
_1 = np.uint64(1)
_29 = np.uint64(29)
_32 = np.uint64(32)
_127 = np.uint64(127)
# Events per block: the memory that their guesses touch fits in a core's own cache.
BLOCK_EVENTS = 256


class Table(NamedTuple):
    """Columns of one epoch, of users and of pairs. Sensitive.

    A user's number is its row in the columns `user_...`, a pair's its row in `pair_...`. Rows
    beyond `sizes` are free. Row 0 always exists, since kernels read it even if there is no entry.
    """

    user_slots: Codes  # (a power of two,), user numbers, -1 where free
    user_digests: Words  # (users, 2)
    user_pairs: NDArray[np.uint16]  # (users,), how many pairs of the user have counted
    pair_slots: Codes  # (a power of two,), pair numbers, valid where marked
    pair_marks: Bytes  # (slots,), 0 where free, else the `mark` of the pair in the slot
    pair_users: Codes  # (pairs,), user numbers
    pair_digests: Words  # (pairs,)
    pair_counts: Codes  # (pairs,), what has counted; (0,) where every count is 1
    sizes: Longs  # (2,), how many users and how many pairs there are
    seed: Words  # (1,), of the hash (`spread`)

    def __repr__(self) -> str:
        return "Table(<sensitive>)"


class Batch(NamedTuple):
    """Users of n events, and their m rows: one for each (stream key, label) of an event. Sensitive.

    Event i has the rows first_row[i] : first_row[i] + row_count[i], at most `max_items`.
    """

    users: Words  # (n, 2), digests
    first_row: Longs  # (n,)
    row_count: Longs  # (n,)
    pairs: Words  # (m,), digests of (stream key, label)
    amounts: Longs  # (m,); (0,): all 1

    def __repr__(self) -> str:
        return "Batch(<sensitive>)"


@kernel_part
def spread(first: np.uint64, second: np.uint64, seed: np.uint64) -> np.uint64:
    """Hash two words, by steps as in MurmurHash3's and SplitMix64's finalizers.

    The seed is secret: no one can collect names that share a slot.
    """
    mixed = first ^ seed
    mixed = (mixed ^ (mixed >> _32)) * _FIRST
    mixed = (mixed ^ (mixed >> _29) ^ second) * _SECOND
    return mixed ^ (mixed >> _32)


@kernel_part
def mark(hashed: np.uint64) -> np.uint8:
    """Return what marks a slot as taken by a pair of this hash: 1 to 128, as 0 is for free slots.

    Most other pairs have another mark, so a search need not read their entries.
    """
    # The lowest bits: the upper 32 choose the slot.
    return np.uint8(_1 + (hashed & _127))


@kernel_part
def user_slot(
    slots: Codes, digests: Words, seed: np.uint64, first: np.uint64, second: np.uint64
) -> int:
    """Return the slot of the user with this digest, of two words, or the free slot for it.

    `digests` are those of all users, by number. Some slots are always free, so the search ends.
    """
    mask = len(slots) - 1
    slot = np.int64(spread(first, second, seed) >> _32) & mask
    while slots[slot] >= 0 and (
        digests[slots[slot], 0] != first or digests[slots[slot], 1] != second
    ):
        slot = (slot + 1) & mask
    return int(slot)


@kernel_part
def pair_slot(
    slots: Codes,
    marks: Bytes,
    users: Codes,
    digests: Words,
    hashed: np.uint64,
    user: int,
    digest: np.uint64,
) -> int:
    """Return the slot of a user's pair, or the free slot for it.

    `users` (numbers) and `digests` are those of all pairs; the wanted pair has `user` and `digest`,
    which `hashed` is the hash of. Some slots are always free, so the search ends.
    """
    mask = len(slots) - 1
    own_mark = mark(hashed)
    slot = np.int64(hashed >> _32) & mask
    # Marks are contiguous, so entries of other pairs, scattered in memory, are rarely read.
    while marks[slot] and (
        marks[slot] != own_mark
        or users[slots[slot]] != user
        or digests[slots[slot]] != digest
    ):
        slot = (slot + 1) & mask
    return int(slot)


@kernel
def number_users(
    table: Table, first: int, events: Longs, batch: Batch, user_numbers: Codes
) -> int:
    """Find the user numbers of `events[first:]` in the table; enter new users.

    Writes `user_numbers` (n,), by event; those of events without rows mean nothing. Stops when the
    table is full: returns the place in `events` to resume from, or their number.
    """
    # Unpacked: passing the table counts a reference to each array, which tripled an event's cost.
    slots = table.user_slots
    digests = table.user_digests
    user_pairs = table.user_pairs
    sizes = table.sizes
    users = batch.users
    row_count = batch.row_count
    seed = table.seed[0]
    mask = len(slots) - 1
    for start in range(first, len(events), BLOCK_EVENTS):
        block = events[start : start + BLOCK_EVENTS]
        # Guess the number in each user's first slot; -1: new, or in a later slot.
        for event in block:
            hashed = spread(users[event, 0], users[event, 1], seed)
            user_numbers[event] = slots[np.int64(hashed >> _32) & mask]
        # Drop wrong guesses. Without one, entry 0 is read in its place, to do without a branch.
        for event in block:
            guess = max(user_numbers[event], 0)
            if (
                digests[guess, 0] != users[event, 0]
                or digests[guess, 1] != users[event, 1]
            ):
                user_numbers[event] = -1
        # Search for the others, in order: a user may be new at one event and known at the next.
        for i in range(len(block)):
            event = block[i]
            if row_count[event] == 0 or user_numbers[event] >= 0:
                continue
            slot = user_slot(slots, digests, seed, users[event, 0], users[event, 1])
            if slots[slot] < 0:
                if sizes[0] == len(user_pairs):
                    return start + i
                slots[slot] = sizes[0]
                digests[sizes[0], 0] = users[event, 0]
                digests[sizes[0], 1] = users[event, 1]
                user_pairs[sizes[0]] = 0
                sizes[0] += 1
            user_numbers[event] = slots[slot]
    return len(events)


@kernel
def count_pairs(
    table: Table,
    bounds: tuple[int, int],
    first: int,
    events: Longs,
    batch: Batch,
    user_numbers: Codes,
    pair_numbers: Codes,
    counted: Longs,
) -> int:
    """Write how much each row of `events[first:]` counts, within its user's bounds.

    Args:
        table: changed: new pairs, and the counts of known ones.
        bounds: the maximum of pairs per user, and of counts per pair; if the latter is 0 (unique
            users), a pair that counted before counts as -1: there is nothing to store.
        user_numbers: (n,), the number of each event's user in the table.
        pair_numbers: (m,), scratch: the number of each row's pair in the table.
        counted: (m,), 0 before; written where a row counts.

    Stops when the table is full, before the first event that may not have room for all its rows;
    returns the place in `events` to resume from, or their number.
    """
    user_pairs = table.user_pairs
    slots = table.pair_slots
    marks = table.pair_marks
    sizes = table.sizes
    users = table.pair_users
    digests = table.pair_digests
    counts = table.pair_counts
    seed = table.seed[0]
    first_row = batch.first_row
    row_count = batch.row_count
    pairs = batch.pairs
    amounts = batch.amounts
    (max_pairs, max_count) = bounds
    mask = len(slots) - 1
    for start in range(first, len(events), BLOCK_EVENTS):
        block = events[start : start + BLOCK_EVENTS]
        # Guess the number in each pair's first slot; -1: new, or in a later slot.
        for event in block:
            for row in range(first_row[event], first_row[event] + row_count[event]):
                hashed = spread(pairs[row], np.uint64(user_numbers[event]), seed)
                place = np.int64(hashed >> _32) & mask
                is_likely = marks[place] == mark(hashed)
                pair_numbers[row] = slots[place] if is_likely else -1
        # Drop wrong guesses. Without one, entry 0 is read in its place, to do without a branch.
        for event in block:
            for row in range(first_row[event], first_row[event] + row_count[event]):
                guess = max(pair_numbers[row], 0)
                if users[guess] != user_numbers[event] or digests[guess] != pairs[row]:
                    pair_numbers[row] = -1
        # Count in order: a pair may be new at one event and known at the next.
        for i in range(len(block)):
            event = block[i]
            if sizes[1] + row_count[event] > len(users):
                return start + i
            for row in range(first_row[event], first_row[event] + row_count[event]):
                user = user_numbers[event]
                amount = amounts[row] if len(amounts) else 1
                if amount <= 0 or (max_count == 1 and user_pairs[user] >= max_pairs):
                    # With max_count 1, every pair of a user at the limit has counted or never will.
                    continue
                pair = pair_numbers[row]
                if pair < 0:
                    # It was not guessed: search. From here on, -1 means a new pair, for the free
                    # `slot`.
                    hashed = spread(pairs[row], np.uint64(user), seed)
                    slot = pair_slot(
                        slots, marks, users, digests, hashed, user, pairs[row]
                    )
                    pair = slots[slot] if marks[slot] else -1
                if pair >= 0:
                    if max_count == 0:
                        counted[row] = -1
                    elif max_count > 1:
                        counted[row] = min(amount, max_count - counts[pair])
                        counts[pair] += counted[row]
                elif user_pairs[user] < max_pairs:
                    # A new pair, and its user may have one more; else it does not count.
                    pair = sizes[1]
                    slots[slot] = pair
                    marks[slot] = mark(hashed)
                    users[pair] = user
                    digests[pair] = pairs[row]
                    counted[row] = min(amount, max(max_count, 1))
                    if max_count > 1:
                        counts[pair] = counted[row]
                    user_pairs[user] += 1
                    sizes[1] += 1
    return len(events)


@kernel
def index_users(slots: Codes, digests: Words, seed: np.uint64, size: int) -> None:
    """Enter the numbers of the first `size` users in `slots`, which are all free: -1.

    They are distinct, so each takes the first free slot from its hash on, as `user_slot` searches.
    """
    mask = len(slots) - 1
    for number in range(size):
        hashed = spread(digests[number, 0], digests[number, 1], seed)
        slot = np.int64(hashed >> _32) & mask
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = number


@kernel
def index_pairs(
    slots: Codes, marks: Bytes, users: Codes, digests: Words, seed: np.uint64, size: int
) -> None:
    """Enter the numbers of the first `size` pairs in `slots`, and mark these: all are unmarked.

    They are distinct, so each takes the first free slot from its hash on, as `pair_slot` searches.
    """
    mask = len(slots) - 1
    for number in range(size):
        hashed = spread(digests[number], np.uint64(users[number]), seed)
        slot = np.int64(hashed >> _32) & mask
        while marks[slot]:
            slot = (slot + 1) & mask
        slots[slot] = number
        marks[slot] = mark(hashed)


@kernel_with_arrays
def entries(events: Longs, batch: Batch, counted: Longs) -> tuple[Words, Words, Longs]:
    """Return the k rows of `events` to store, as columns: user (k, 2), pair (k,), amount (k,).

    `counted` (m,) is that of `count_pairs`: above 0 where there is something to store.
    """
    users = batch.users
    first_row = batch.first_row
    row_count = batch.row_count
    pairs = batch.pairs
    size = 0
    for event in events:
        for row in range(first_row[event], first_row[event] + row_count[event]):
            size += counted[row] > 0
    entry_users = np.empty((size, 2), dtype=np.uint64)
    entry_pairs = np.empty(size, dtype=np.uint64)
    amounts = np.empty(size, dtype=np.int64)
    entry = 0
    for event in events:
        for row in range(first_row[event], first_row[event] + row_count[event]):
            if counted[row] > 0:
                entry_users[entry, 0] = users[event, 0]
                entry_users[entry, 1] = users[event, 1]
                entry_pairs[entry] = pairs[row]
                amounts[entry] = counted[row]
                entry += 1
    return entry_users, entry_pairs, amounts


VERSION = b"\x02"
Rows = NDArray[np.void]
_ROW = np.dtype([("user", "<u8", 2), ("pair", "<u8"), ("added", "<u4")])
ROW_BYTES = _ROW.itemsize
HEAD_BYTES = 1 + 4
BLOCK_ROWS = (VALUE_BYTES - HEAD_BYTES) // ROW_BYTES
TAIL_ROWS = 1_024
# Initial capacity and growth factor: tables may be most of a worker's memory.
_ROOM = 1_024
_GROWTH = 1.25
# Entries are numbered in int32.
_ROWS_MAX = 2**31 - 1

_NO_ROWS: Rows = read_only(np.empty(0, _ROW))


class UserEpoch:
    """Table of one (lane, epoch), and the rows of its blocks not yet stored. Sensitive."""

    def __init__(self, lane: Lane, *, keeps: bool) -> None:
        """`keeps`: whether to keep new rows for `changes`, as there is a store to put them in."""
        # The limits of a user's pairs, which each of these lanes has, and of a pair's counts.
        self._bounds = lane.max_items_per_user or 0, lane.max_count
        self._keeps = keeps
        self._table = _new_table(lane.max_count)
        # Rows since the last commit, and their number.
        self._new: list[Rows] = []
        self.new_rows = 0
        # The number of the next block to write, and stored rows that it begins with: while a block
        # is short, it is written again under its number, with more rows.
        self._sequence = 0
        self._tail = _NO_ROWS
        # What `_sequence` and `_tail` become once `changes` are committed.
        self._after_commit: tuple[int, Rows] | None = None

    def take(self, events: Longs, batch: Batch, counted: Longs) -> None:
        """Count `events` (k,) of a batch; write the amounts that count to `counted` (m,)."""
        self._count(events, batch, counted)
        if self._keeps:
            users, pairs, added = entries(events, batch, counted)
            rows = np.empty(len(pairs), dtype=_ROW)
            rows["user"] = users
            rows["pair"] = pairs
            rows["added"] = added
            self._new.append(rows)
            self.new_rows += len(rows)
        # `count_pairs` wrote -1 for a unique user's known pair: it counts, with nothing to store.
        np.abs(counted, out=counted)

    def _count(self, events: Longs, batch: Batch, counted: Longs) -> None:
        """Write to `counted` what `count_pairs` does, and enlarge the table where it is full."""
        users = readonly_contiguous(batch.users)
        pairs = readonly_contiguous(batch.pairs)
        batch = batch._replace(users=users, pairs=pairs)
        user_numbers = np.empty(len(users), dtype=np.int32)
        pair_numbers = np.empty(len(pairs), dtype=np.int32)
        # Both kernels return how many events are done when the table is full.
        done = 0
        while True:
            done = number_users(self._table, done, events, batch, user_numbers)
            if done == len(events):
                break
            self._table = _grow_users(self._table)
        done = 0
        while True:
            done = count_pairs(
                self._table,
                self._bounds,
                done,
                events,
                batch,
                user_numbers,
                pair_numbers,
                counted,
            )
            if done == len(events):
                return
            # Room for the event at which it stopped.
            self._table = _grow_pairs(self._table, int(batch.row_count[events[done]]))

    def changes(self, name: bytes) -> list[Change]:
        """Return blocks with the rows new since the last commit; `name` begins their names."""
        if not self.new_rows:
            return []
        rows = np.concatenate([self._tail, *self._new])
        sequence = self._sequence
        blocks: list[Change] = []
        for start in range(0, len(rows), BLOCK_ROWS):
            part = rows[start : start + BLOCK_ROWS]
            block = VERSION + len(part).to_bytes(4) + part.tobytes()
            blocks.append((name + sequence.to_bytes(8), block))
            # If the last block has fewer rows, they are the next tail; else there is none.
            if len(part) >= TAIL_ROWS:
                sequence = sequence + 1
                part = _NO_ROWS
        # A copy: a slice would keep all rows in memory.
        self._after_commit = sequence, part.copy()
        return blocks

    def committed(self) -> None:
        """Note that the `changes` are stored."""
        if self._after_commit is not None:
            self._sequence, self._tail = self._after_commit
        self._after_commit = None
        self._new = []
        self.new_rows = 0

    def read_blocks(self, stored: Iterable[tuple[bytes, bytes]]) -> None:
        """Restore the table from stored (name, block) pairs, by counting their rows again.

        `stored` are in the order in which they were counted. Raise StateRefused if more is stored
        than counts within the bounds.
        """
        for name, value in stored:
            rows = _decode(value)
            # Each row as an event of its own.
            events = np.arange(len(rows))
            ones = np.ones_like(events)
            added = rows["added"].astype(np.int64)
            counted = np.zeros_like(added)
            batch = Batch(rows["user"], events, ones, rows["pair"], added)
            self._count(events, batch, counted)
            if not np.array_equal(counted, added):
                raise StateRefused(
                    "stored pairs of users are more than their settings allow: the state was changed"
                )
            # Where writing goes on: in the last block, if it is short.
            self._sequence = int.from_bytes(name[-8:])
            self._tail = rows
            if len(rows) >= TAIL_ROWS:
                self._sequence = self._sequence + 1
                self._tail = _NO_ROWS


def _new_table(max_count: int) -> Table:
    """Return an empty table; without a `max_count` above 1 no counts are kept.

    No slot is marked, so `pair_slots` need no values.
    """
    return Table(
        user_slots=np.full(2 * _ROOM, -1, dtype=np.int32),
        user_digests=np.zeros((_ROOM, 2), dtype=np.uint64),
        user_pairs=np.zeros(_ROOM, dtype=np.uint16),
        pair_slots=np.empty(2 * _ROOM, dtype=np.int32),
        pair_marks=np.zeros(2 * _ROOM, dtype=np.uint8),
        pair_users=np.zeros(_ROOM, dtype=np.int32),
        pair_digests=np.zeros(_ROOM, dtype=np.uint64),
        pair_counts=np.zeros(_ROOM if max_count > 1 else 0, dtype=np.int32),
        sizes=np.zeros(2, dtype=np.int64),
        # Local to this process: nothing stored or published depends on it.
        seed=np.array([secrets.randbits(64)], dtype=np.uint64),
    )


def _grow_users(table: Table) -> Table:
    """Return the table with its users, and room for at least one more."""
    users = int(table.sizes[0])
    room = _room(users, 1)
    # Reallocated in place where possible: a copy would need both at once.
    table.user_digests.resize((room, 2), refcheck=False)
    table.user_pairs.resize(room, refcheck=False)
    size = _slots_for(room, len(table.user_slots))
    if size > len(table.user_slots):
        # The old slots are freed before the new ones are allocated.
        table = table._replace(user_slots=np.empty(0, np.int32))
        table = table._replace(user_slots=np.full(size, -1, dtype=np.int32))
        index_users(table.user_slots, table.user_digests, table.seed[0], users)
    return table


def _grow_pairs(table: Table, rows: int) -> Table:
    """Return the table with its pairs, and room for `rows` more."""
    pairs = int(table.sizes[1])
    room = _room(pairs, rows)
    # Reallocated in place where possible: a copy would need both at once.
    users = table.pair_users
    digests = table.pair_digests
    users.resize(room, refcheck=False)
    digests.resize(room, refcheck=False)
    if len(table.pair_counts):
        table.pair_counts.resize(room, refcheck=False)
    size = _slots_for(room, len(table.pair_slots))
    if size > len(table.pair_slots):
        # The old slots are freed before the new ones are allocated.
        table = table._replace(
            pair_slots=np.empty(0, np.int32), pair_marks=np.empty(0, np.uint8)
        )
        # Marks record which slots are free.
        slots = np.empty(size, dtype=np.int32)
        marks = np.zeros(size, dtype=np.uint8)
        table = table._replace(pair_slots=slots, pair_marks=marks)
        index_pairs(slots, marks, users, digests, table.seed[0], pairs)
    return table


def _slots_for(room: int, slots: int) -> int:
    """Return how many slots a table with `room` for entries needs, when it now has `slots`.

    They are doubled until entries take at most three quarters, so that searches are short, and end.
    """
    while 4 * room > 3 * slots:
        slots *= 2
    return slots


def _room(used: int, more: int) -> int:
    """Return a capacity for `more` entries beside those in use.

    A quarter more than are in use, if that is larger, so that a table seldom grows. Raise
    MemoryError if there would be more than int32 numbers.
    """
    room = max(used + more, int(used * _GROWTH))
    if room > _ROWS_MAX:
        raise MemoryError(
            f"{used:,} users or pairs in one epoch: at most {_ROWS_MAX:,}"
        )
    return room


def _decode(block: bytes) -> Rows:
    """Return a stored block's rows; StateRefused if this version did not write it."""
    rows = int.from_bytes(block[1:HEAD_BYTES])
    if block[:1] != VERSION or len(block) != HEAD_BYTES + rows * ROW_BYTES:
        raise StateRefused(
            "stored pairs of users are of another version: were they written by a newer one?"
        )
    return np.frombuffer(block, _ROW, offset=HEAD_BYTES)


PREFIX = b"U"
# Rows between commits: 6 MB of blocks in one transaction.
ROWS_PENDING_MAX = 200_000
# Delete expired epochs in steps, so that no transaction grows with the number of users.
DELETIONS_MAX = 20_000
# A store yields values with names, and blocks are long: no step reads much more than this.
DELETED_BYTES_MAX = 64 << 20


class Users:
    """Per-user counts of one source partition. Sensitive."""

    def __init__(
        self, lanes: Iterable[Lane], stored: StoredPairs | None = None
    ) -> None:
        """Ignore lanes without a user bound. Without `stored`, everything stays in memory."""
        bounded = [lane for lane in lanes if lane.max_items_per_user is not None]
        self._digests = {lane: _lane_digest(lane) for lane in bounded}
        self._stored = stored
        self._epochs: dict[tuple[Lane, int], UserEpoch] = {}
        # The first epoch of each lane in which something can still count.
        self._oldest = dict.fromkeys(self._digests, 0)

    def __repr__(self) -> str:
        return f"Users({len(self._digests)} lanes)"

    @property
    def full(self) -> bool:
        new_rows = sum(epoch.new_rows for epoch in self._epochs.values())
        return new_rows >= ROWS_PENDING_MAX

    def charge(self, lane: Lane, epochs: Longs, batch: Batch) -> Longs:
        """Charge the rows of a batch to its users, in event order; return what each counts (m,).

        `epochs` (n,) are those of the events, -1 for one that does not count.
        """
        counted = np.zeros(len(batch.pairs), dtype=np.int64)
        # The events of each epoch; a batch has at least one event.
        order = np.argsort(epochs, kind="stable")
        for events in np.split(order, np.flatnonzero(np.diff(epochs[order])) + 1):
            epoch = int(epochs[events[0]])
            # Expired epochs are forgotten: their ticks are closed, so nothing counts there. Nor
            # does it in -1.
            if epoch >= self._oldest[lane]:
                self._of(lane, epoch).take(events, batch, counted)
        return counted

    def changes(self) -> list[Change]:
        """Return entries new since the last commit, for the transaction of its contributions."""
        epochs = self._epochs.items()
        return [
            change
            for (lane, number), epoch in epochs
            for change in epoch.changes(self._prefix(lane, number))
        ]

    def expired(self, watermark_ms: int) -> list[Change]:
        """Return deletions of stored blocks of expired epochs, in which nothing can count again.

        Only as many as keep a transaction small; the next call returns the next ones.
        """
        if self._stored is None:
            return []
        deletions: list[Change] = []
        read_bytes = 0
        for lane, digest in self._digests.items():
            prefix = PREFIX + digest
            # Names of a lane are in the order of epochs, so all before this one are expired.
            first_kept = prefix + _first_open(lane, watermark_ms).to_bytes(8)
            for name, value in islice(
                self._stored.items(prefix), DELETIONS_MAX - len(deletions)
            ):
                if name >= first_kept or read_bytes >= DELETED_BYTES_MAX:
                    break
                read_bytes += len(value)
                deletions.append((name, None))
        return deletions

    def committed(self, watermark_ms: int | None) -> None:
        """Note that `changes` are stored; forget epochs that the watermark has passed."""
        if watermark_ms is not None:
            for lane in self._oldest:
                self._oldest[lane] = _first_open(lane, watermark_ms)
        for lane, epoch in list(self._epochs):
            if epoch < self._oldest[lane]:
                del self._epochs[lane, epoch]
            else:
                self._epochs[lane, epoch].committed()

    def restore(self, watermark_ms: int) -> None:
        """Load the oldest epoch of each lane that the watermark has not passed.

        Nearly all events are in it; a later one is loaded at its first event.
        """
        for lane in self._oldest:
            self._oldest[lane] = _first_open(lane, watermark_ms)
            self._of(lane, self._oldest[lane])

    def _of(self, lane: Lane, number: int) -> UserEpoch:
        """Return an epoch of a lane, loaded if it is stored."""
        epoch = self._epochs.get((lane, number))
        if epoch is None:
            epoch = UserEpoch(lane, keeps=self._stored is not None)
            if self._stored is not None:
                epoch.read_blocks(self._stored.items(self._prefix(lane, number)))
            self._epochs[lane, number] = epoch
        return epoch

    def _prefix(self, lane: Lane, epoch: int) -> bytes:
        return PREFIX + self._digests[lane] + epoch.to_bytes(8)


def _first_open(lane: Lane, watermark_ms: int) -> int:
    """Return the number of the epoch with the first tick that ends after the watermark."""
    # Ticks count from 1; before the start of the lane, the watermark has passed none.
    return lane.epoch(max(1, (watermark_ms - lane.start_ms) // lane.tick_ms + 1))


def _lane_digest(lane: Lane) -> bytes:
    """Return the lane's part of the names of its blocks: part of the stored format."""
    text = repr(tuple(lane)).encode()
    return blake2b(text, digest_size=8, person=b"qc-lane").digest()
