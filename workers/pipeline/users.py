"""Per-user bounds on counted items, where users are protected. No Kafka, no clock.

In each epoch of a lane, a user's first `max_items_per_user` distinct (stream key, item) pairs
count, each at most `max_count` times, in source partition order. The rule reads only that user's
events, so one user moves at most m pairs by at most `max_count` each, whatever ticks they fall in.
In a lane of unique users, whose `max_count` is 0, each of these pairs counts at every event: the
user is in a window, or not, however often.
All events of a user must lie in one source partition: `kafka/placement.py` rejects the others, so a
producer that spreads them loses events but never weakens the guarantee.

Each epoch has two open-addressing tables in memory, of users and of pairs: slots (4 bytes each,
half of them free) hold the numbers of append-only entries. A user is a 128-bit digest; a pair is a
user number and a 64-bit digest of (stream key, label), compared within that user only. Two
colliding pairs of a user count as one: a count may be too low, the guarantee holds, and no user can
change another's count.

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
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import islice
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from workers.arrays.compiled import kernel, kernel_part, kernel_with_arrays
from workers.arrays.texts import readonly_contiguous
from workers.arrays.types import Bytes, Codes, Longs, Words
from workers.mechanisms.config.histogram import Lane
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
    """Columns of one epoch. Sensitive. Capacity beyond `sizes` is free."""

    user_slots: Codes  # (a power of two,), user numbers, -1 where free
    digests: Words  # (users, 2)
    used: NDArray[np.uint16]  # (users,), counted pairs
    pair_slots: Codes  # (a power of two,), pair numbers, valid where marked
    pair_marks: Bytes  # (slots,), 0 where free, else 1 + 7 bits of the pair's hash
    owners: Codes  # (pairs,), user numbers
    pairs: Words  # (pairs,), digests
    counts: Codes  # (pairs,); (0,) where every count is 1
    sizes: Longs  # (2,), numbers of users and pairs
    seed: Words  # (1,), of the hash

    def __repr__(self) -> str:
        return "Table(<sensitive>)"


class Batch(NamedTuple):
    """Users of n events, and their m rows of pairs. Sensitive."""

    users: Words  # (n, 2), digests
    first: Longs  # (n,), each event's first row
    number: Longs  # (n,), of its rows: its distinct labels, at most `max_items`
    pairs: Words  # (m,), digests of (stream key, label)
    amounts: Longs  # (m,); (0,): all 1

    def __repr__(self) -> str:
        return "Batch(<sensitive>)"


@kernel_part
def spread(first: np.uint64, second: np.uint64, seed: np.uint64) -> np.uint64:
    """Hash two words. The seed is secret: no one can collect names that share a slot."""
    mixed = first ^ seed
    mixed = (mixed ^ (mixed >> _32)) * _FIRST
    mixed = (mixed ^ (mixed >> _29) ^ second) * _SECOND
    return mixed ^ (mixed >> _32)


@kernel_part
def mark(hashed: np.uint64) -> np.uint8:
    """Return what marks a slot as taken by a pair of this hash, never 0."""
    # The low bits: the high ones choose the slot.
    return np.uint8(_1 + (hashed & _127))


@kernel_part
def user_slot(
    slots: Codes, digests: Words, seed: np.uint64, first: np.uint64, second: np.uint64
) -> int:
    """Return the slot of the user with this digest, of two words, or the free slot for it."""
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
    owners: Codes,
    pairs: Words,
    hashed: np.uint64,
    owner: int,
    pair: np.uint64,
) -> int:
    """Return the slot of a user's pair, or the free slot for it.

    `owner` is the user's number, `pair` the pair's digest, and `hashed` their hash.
    """
    mask = len(slots) - 1
    own_mark = mark(hashed)
    slot = np.int64(hashed >> _32) & mask
    # Marks are contiguous, so entries of other pairs, scattered in memory, are rarely read.
    while marks[slot] and (
        marks[slot] != own_mark
        or owners[slots[slot]] != owner
        or pairs[slots[slot]] != pair
    ):
        slot = (slot + 1) & mask
    return int(slot)


@kernel
def number_users(
    table: Table, first: int, events: Longs, batch: Batch, owners: Codes
) -> int:
    """Write the users' numbers of `events[first:]` to `owners` (n,), new ones for new users.

    Stop when the table is full; return the place in `events` to resume from, or their number.
    """
    # Unpacked: passing the table counts a reference to each array, which tripled an event's cost.
    slots = table.user_slots
    digests = table.digests
    used = table.used
    sizes = table.sizes
    users = batch.users
    number = batch.number
    seed = table.seed[0]
    mask = len(table.user_slots) - 1
    for start in range(first, len(events), BLOCK_EVENTS):
        block = events[start : start + BLOCK_EVENTS]
        # Guess the number in each user's first slot; -1: new, or in a later slot.
        for event in block:
            hashed = spread(users[event, 0], users[event, 1], seed)
            owners[event] = slots[np.int64(hashed >> _32) & mask]
        for event in block:
            guess = max(owners[event], 0)
            if (
                digests[guess, 0] != users[event, 0]
                or digests[guess, 1] != users[event, 1]
            ):
                owners[event] = -1
        for i in range(len(block)):
            event = block[i]
            if number[event] == 0 or owners[event] >= 0:
                continue
            slot = user_slot(slots, digests, seed, users[event, 0], users[event, 1])
            if slots[slot] < 0:
                if sizes[0] == len(used):
                    return start + i
                slots[slot] = sizes[0]
                digests[sizes[0], 0] = users[event, 0]
                digests[sizes[0], 1] = users[event, 1]
                used[sizes[0]] = 0
                sizes[0] += 1
            owners[event] = slots[slot]
    return len(events)


@kernel
def count_pairs(
    table: Table,
    bounds: tuple[int, int],
    from_event: int,
    events: Longs,
    batch: Batch,
    owners: Codes,
    numbers: Codes,
    counted: Longs,
) -> int:
    """Write how much each row of `events[from_event:]` counts, within its user's bounds.

    Args:
        table: changed: new pairs, and the counts of known ones.
        bounds: the maximum of pairs per user, and of counts per pair; if the latter is 0 (unique
            users), a pair that counted before counts as -1: there is nothing to store.
        owners: (n,), the number of each event's user in the table.
        numbers: (m,), scratch: the number of each row's pair in the table.
        counted: (m,), written, where a row counts.

    Stops when the table is full; returns the place in `events` to resume from, or their number.
    """
    used = table.used
    slots = table.pair_slots
    marks = table.pair_marks
    sizes = table.sizes
    pair_owners = table.owners
    digests = table.pairs
    counts = table.counts
    seed = table.seed[0]
    first = batch.first
    number = batch.number
    pairs = batch.pairs
    amounts = batch.amounts
    (max_pairs, max_count) = bounds
    mask = len(slots) - 1
    for start in range(from_event, len(events), BLOCK_EVENTS):
        block = events[start : start + BLOCK_EVENTS]
        # Guess the number in each pair's first slot; -1: new, or in a later slot.
        for event in block:
            for row in range(first[event], first[event] + number[event]):
                hashed = spread(pairs[row], np.uint64(owners[event]), seed)
                place = np.int64(hashed >> _32) & mask
                numbers[row] = slots[place] if marks[place] == mark(hashed) else -1
        for event in block:
            for row in range(first[event], first[event] + number[event]):
                guess = max(numbers[row], 0)
                if pair_owners[guess] != owners[event] or digests[guess] != pairs[row]:
                    numbers[row] = -1
        for i in range(len(block)):
            event = block[i]
            if sizes[1] + number[event] > len(pair_owners):
                return start + i
            for row in range(first[event], first[event] + number[event]):
                owner = owners[event]
                amount = amounts[row] if len(amounts) else 1
                if amount <= 0 or (max_count == 1 and used[owner] >= max_pairs):
                    # With max_count 1, every pair of a user at the limit has counted or never will.
                    continue
                pair = numbers[row]
                if pair < 0:
                    hashed = spread(pairs[row], np.uint64(owner), seed)
                    slot = pair_slot(
                        slots, marks, pair_owners, digests, hashed, owner, pairs[row]
                    )
                    pair = slots[slot] if marks[slot] else -1
                if pair >= 0:
                    if max_count == 0:
                        counted[row] = -1
                    elif max_count > 1:
                        counted[row] = min(amount, max_count - counts[pair])
                        counts[pair] += counted[row]
                elif used[owner] < max_pairs:
                    pair = sizes[1]
                    slots[slot] = pair
                    marks[slot] = mark(hashed)
                    pair_owners[pair] = owner
                    digests[pair] = pairs[row]
                    counted[row] = min(amount, max(max_count, 1))
                    if max_count > 1:
                        counts[pair] = counted[row]
                    used[owner] += 1
                    sizes[1] += 1
    return len(events)


@kernel
def index_users(slots: Codes, digests: Words, seed: np.uint64, size: int) -> None:
    """Enter the numbers of the first `size` users in free slots."""
    mask = len(slots) - 1
    for number in range(size):
        hashed = spread(digests[number, 0], digests[number, 1], seed)
        slot = np.int64(hashed >> _32) & mask
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = number


@kernel
def index_pairs(
    slots: Codes, marks: Bytes, owners: Codes, pairs: Words, seed: np.uint64, size: int
) -> None:
    """Enter the numbers of the first `size` pairs in free slots, and mark these."""
    mask = len(slots) - 1
    for number in range(size):
        hashed = spread(pairs[number], np.uint64(owners[number]), seed)
        slot = np.int64(hashed >> _32) & mask
        while marks[slot]:
            slot = (slot + 1) & mask
        slots[slot] = number
        marks[slot] = mark(hashed)


@kernel_with_arrays
def entries(events: Longs, batch: Batch, counted: Longs) -> tuple[Words, Words, Longs]:
    """Return the counted rows as columns: user (k, 2), pair (k,) and amount (k,)."""
    users = batch.users
    first = batch.first
    number = batch.number
    pairs = batch.pairs
    size = 0
    for event in events:
        for row in range(first[event], first[event] + number[event]):
            size += counted[row] > 0
    of_user = np.empty((size, 2), dtype=np.uint64)
    of_pair = np.empty(size, dtype=np.uint64)
    added = np.empty(size, dtype=np.int64)
    entry = 0
    for event in events:
        for row in range(first[event], first[event] + number[event]):
            if counted[row] > 0:
                of_user[entry, 0] = users[event, 0]
                of_user[entry, 1] = users[event, 1]
                of_pair[entry] = pairs[row]
                added[entry] = counted[row]
                entry += 1
    return of_user, of_pair, added


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
_ROWS_MAX = 2**31 - 1

_NO_ROWS: Rows = read_only(np.empty(0, _ROW))


class UserEpoch:
    """Table of one (lane, epoch), and its entries not yet stored. Sensitive."""

    def __init__(self, lane: Lane, *, keeps: bool) -> None:
        """`keeps`: whether entries will be stored."""
        self._most = lane.max_items_per_user or 0
        self._max_count = lane.max_count
        self._keeps = keeps
        self._table = _new_table(self._max_count)
        self._new: list[Rows] = []
        # The last stored block, which is written again with more rows, and its number.
        self._tail = _NO_ROWS
        self._sequence = 0
        # What these two are once `changes` are committed.
        self._written: tuple[int, Rows] | None = None
        self.rows = 0  # new since the last commit

    def take(self, events: Longs, batch: Batch, counted: Longs) -> None:
        """Count `events` (k,) of a batch; write the amounts that count to `counted` (m,)."""
        self._take(events, batch, counted)
        if self._keeps:
            users, pairs, added = entries(events, batch, counted)
            rows = np.empty(len(pairs), dtype=_ROW)
            rows["user"] = users
            rows["pair"] = pairs
            rows["added"] = added
            self._new.append(rows)
            self.rows += len(rows)
        np.abs(counted, out=counted)

    def _take(self, events: Longs, batch: Batch, counted: Longs) -> None:
        """Count as `take` does, without noting what is to be stored; enlarge the table if full."""
        users = readonly_contiguous(batch.users)
        pairs = readonly_contiguous(batch.pairs)
        batch = batch._replace(users=users, pairs=pairs)
        owners = np.empty(len(users), dtype=np.int32)
        numbers = np.empty(len(pairs), dtype=np.int32)
        done = 0
        bounds = (self._most, self._max_count)
        while (done := number_users(self._table, done, events, batch, owners)) < len(
            events
        ):
            self._table = _grow_users(self._table)
        done = 0
        while True:
            done = count_pairs(
                self._table, bounds, done, events, batch, owners, numbers, counted
            )
            if done == len(events):
                return
            self._table = _grow_pairs(self._table, int(batch.number[events[done]]))

    def changes(self, name: bytes) -> list[Change]:
        """Return blocks with the entries new since the last commit; `name` begins their names."""
        if not self.rows:
            return []
        rows = np.concatenate([self._tail, *self._new])
        sequence = self._sequence
        made: list[Change] = []
        for start in range(0, len(rows), BLOCK_ROWS):
            part = rows[start : start + BLOCK_ROWS]
            block = VERSION + len(part).to_bytes(4) + part.tobytes()
            made.append((name + sequence.to_bytes(8), block))
            if len(part) >= TAIL_ROWS:
                sequence = sequence + 1
                part = _NO_ROWS
        self._written = sequence, part.copy()  # a slice would keep all rows in memory
        return made

    def committed(self) -> None:
        """Note that the `changes` are stored."""
        if self._written is not None:
            self._sequence, self._tail = self._written
        self._written = None
        self._new = []
        self.rows = 0

    def read_blocks(self, stored: Iterable[tuple[bytes, bytes]]) -> None:
        """Restore the table from stored (name, block) pairs, by counting their rows again."""
        for name, value in stored:
            rows = _decode(value)
            # Each row as an event of its own.
            events = np.arange(len(rows))
            ones = np.ones_like(events)
            added = rows["added"].astype(np.int64)
            counted = np.zeros_like(added)
            batch = Batch(rows["user"], events, ones, rows["pair"], added)
            self._take(events, batch, counted)
            if not np.array_equal(counted, added):
                raise StateRefused(
                    "stored pairs of users are more than their settings allow: the state was changed"
                )
            self._sequence = int.from_bytes(name[-8:])
            self._tail = rows
            if len(rows) >= TAIL_ROWS:
                self._sequence = self._sequence + 1
                self._tail = _NO_ROWS


def _new_table(max_count: int) -> Table:
    """Return an empty table; with a `max_count` of 1 no counts are kept."""
    return Table(
        user_slots=np.full(2 * _ROOM, -1, dtype=np.int32),
        digests=np.zeros((_ROOM, 2), dtype=np.uint64),
        used=np.zeros(_ROOM, dtype=np.uint16),
        pair_slots=np.empty(2 * _ROOM, dtype=np.int32),
        pair_marks=np.zeros(2 * _ROOM, dtype=np.uint8),
        owners=np.zeros(_ROOM, dtype=np.int32),
        pairs=np.zeros(_ROOM, dtype=np.uint64),
        counts=np.zeros(_ROOM if max_count > 1 else 0, dtype=np.int32),
        sizes=np.zeros(2, dtype=np.int64),
        # Local to this process: nothing stored or published depends on it.
        seed=np.array([secrets.randbits(64)], dtype=np.uint64),
    )


def _grow_users(table: Table) -> Table:
    """Return the table with its users, and room for at least one more."""
    users = int(table.sizes[0])
    room = _room(users, 1)
    # Reallocated in place where possible: a copy would need both at once.
    table.digests.resize((room, 2), refcheck=False)
    table.used.resize(room, refcheck=False)
    size = _slots_for(room, len(table.user_slots))
    if size > len(table.user_slots):
        # freed before more is allocated
        table = table._replace(user_slots=np.empty(0, np.int32))
        table = table._replace(user_slots=np.full(size, -1, dtype=np.int32))
        index_users(table.user_slots, table.digests, table.seed[0], users)
    return table


def _grow_pairs(table: Table, rows: int) -> Table:
    """Return the table with its pairs, and room for `rows` more."""
    pairs = int(table.sizes[1])
    room = _room(pairs, rows)
    table.owners.resize(room, refcheck=False)
    table.pairs.resize(room, refcheck=False)
    if len(table.counts):
        table.counts.resize(room, refcheck=False)
    size = _slots_for(room, len(table.pair_slots))
    if size > len(table.pair_slots):
        table = table._replace(
            pair_slots=np.empty(0, np.int32), pair_marks=np.empty(0, np.uint8)
        )
        # Marks record which slots are free.
        slots = np.empty(size, dtype=np.int32)
        marks = np.zeros(size, dtype=np.uint8)
        table = table._replace(pair_slots=slots, pair_marks=marks)
        index_pairs(slots, marks, table.owners, table.pairs, table.seed[0], pairs)
    return table


def _slots_for(room: int, slots: int) -> int:
    """Return a power of two of slots, at most three quarters of them taken."""
    while 4 * room > 3 * slots:
        slots *= 2
    return slots


def _room(used: int, more: int) -> int:
    """Return a capacity for `more` entries beside those in use."""
    room = max(used + more, int(used * _GROWTH))
    if room > _ROWS_MAX:
        raise MemoryError(
            f"{used:,} users or pairs in one epoch: at most {_ROWS_MAX:,}"
        )
    return room


def _decode(block: bytes) -> Rows:
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


class UserPairStore(Protocol):
    """What `Users` reads of the shard's store: blocks of users' pairs, by name (see the module)."""

    def get(self, key: bytes) -> bytes | None: ...
    def items(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]: ...


class Users:
    """Per-user counts of one source partition. Sensitive."""

    def __init__(
        self, lanes: Iterable[Lane], stored: UserPairStore | None = None
    ) -> None:
        """Ignore lanes without a user bound. Without `stored`, everything stays in memory."""
        bounded = [lane for lane in lanes if lane.max_items_per_user is not None]
        self._digests = {lane: _lane_digest(lane) for lane in bounded}
        self._stored = stored
        self._epochs: dict[tuple[Lane, int], UserEpoch] = {}
        self._oldest = dict.fromkeys(self._digests, 0)

    def __repr__(self) -> str:
        return f"Users({len(self._digests)} lanes)"

    @property
    def full(self) -> bool:
        return sum(epoch.rows for epoch in self._epochs.values()) >= ROWS_PENDING_MAX

    def charge(self, lane: Lane, epochs: Longs, batch: Batch) -> Longs:
        """Charge the rows of a batch to its users, in event order; return what each counts (m,).

        `epochs` (n,) are those of the events, -1 for one that does not count.
        """
        counted = np.zeros(len(batch.pairs), dtype=np.int64)
        order = np.argsort(epochs, kind="stable")
        for events in np.split(order, np.flatnonzero(np.diff(epochs[order])) + 1):
            epoch = int(epochs[events[0]])
            # Expired epochs are forgotten: their ticks are closed, so nothing counts there.
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
        """Return deletions of stored expired epochs, in which nothing can count again."""
        if self._stored is None:
            return []
        deletions: list[Change] = []
        size = 0
        for lane, digest in self._digests.items():
            prefix = PREFIX + digest
            first_kept = prefix + _oldest(lane, watermark_ms).to_bytes(8)
            most = DELETIONS_MAX
            for name, value in islice(
                self._stored.items(prefix), most - len(deletions)
            ):
                if name >= first_kept or size >= DELETED_BYTES_MAX:
                    break
                size += len(value)
                deletions.append((name, None))
        return deletions

    def committed(self, watermark_ms: int | None) -> None:
        """Note that `changes` are stored; forget epochs that the watermark has passed."""
        if watermark_ms is not None:
            for lane in self._oldest:
                self._oldest[lane] = _oldest(lane, watermark_ms)
        for lane, epoch in list(self._epochs):
            if epoch < self._oldest[lane]:
                del self._epochs[lane, epoch]
            else:
                self._epochs[lane, epoch].committed()

    def restore(self, watermark_ms: int) -> None:
        """Load the oldest epoch of each lane that the watermark has not passed."""
        for lane in self._oldest:
            self._oldest[lane] = _oldest(lane, watermark_ms)
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


def _oldest(lane: Lane, watermark_ms: int) -> int:
    """Return the number of the epoch with the first tick that the watermark has not passed."""
    return lane.epoch(max(1, (watermark_ms - lane.start_ms) // lane.tick_ms + 1))


def _lane_digest(lane: Lane) -> bytes:
    text = repr(tuple(lane)).encode()
    return blake2b(text, digest_size=8, person=b"qc-lane").digest()
