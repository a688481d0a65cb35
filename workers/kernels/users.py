"""What users have counted in one epoch: two open-addressing tables, of users and of their pairs.

What: a user's first `most` distinct pairs count, each at most `max_count` times. A user is a digest
of 128 bits and is numbered in order of appearance; a pair is a user's number and a digest of 64
bits of (stream key, label), so digests of pairs are compared within one user only: two pairs of one
user that collide count as one, and no user's events can change what another's count.

    slots     where the hash of an entry points, or the next that was free: the entry's number
    entries   columns in order of appearance: never moved, never removed

Why slots and entries: a slot is 4 bytes, so that half of them may be free, and entries grow at
their end. 59 M pairs of 10 M users take 1.7 GB, 2.0 GB where counts are kept. Why a guess before
each look-up: nearly every look-up waits for memory. A loop without branches lets the processor ask
for a block's entries all at once (20 M events of 10 M users: 210 ns an event, 140 with it). Why
marks: of three slots passed each was another miss (160 ns a new pair, 100 with them).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from workers.kernels.compiled import kernel, kernel_part, kernel_with_arrays

# Odd constants of MurmurHash3's and SplitMix64's finalizers.
_FIRST = np.uint64(0xFF51AFD7ED558CCD)
_SECOND = np.uint64(0xBF58476D1CE4E5B9)
_1, _29, _32, _127 = np.uint64(1), np.uint64(29), np.uint64(32), np.uint64(127)
# Events that are guessed together: what they touch stays in a core's own cache.
AHEAD = 256


class Table(NamedTuple):
    """The columns of one epoch. Sensitive.

    Attributes:
        user_slots: int32 (a power of two,), numbers of users.
        digests: uint64 (users, 2).
        used: uint16 (users,), how many pairs of the user count.
        pair_slots: int32 (a power of two,), numbers of pairs where a slot is taken.
        pair_marks: uint8 (slots,), 0 where the slot is free, else 1 + 7 bits of the pair's hash.
        owners: int32 (pairs,), the user's number.
        pairs: uint64 (pairs,), digests.
        counts: int32 (pairs,), how much the pair counted; (0,) where that is always 1.
        sizes: int64 (2,), how many users and pairs there are; room behind them is free.
        seed: uint64 (1,), of the hash.
    """

    user_slots: NDArray[np.int32]
    digests: NDArray[np.uint64]
    used: NDArray[np.uint16]
    pair_slots: NDArray[np.int32]
    pair_marks: NDArray[np.uint8]
    owners: NDArray[np.int32]
    pairs: NDArray[np.uint64]
    counts: NDArray[np.int32]
    sizes: NDArray[np.int64]
    seed: NDArray[np.uint64]

    def __repr__(self) -> str:
        return "Table(<sensitive>)"


@kernel_part
def spread(first: np.uint64, second: np.uint64, seed: np.uint64) -> np.uint64:
    """Return a hash of two words.

    Users choose their names, and digests of names have no key: without a seed that nobody knows,
    somebody could collect names that all point to one slot, and every look-up would walk past them.
    """
    mixed = first ^ seed
    mixed = (mixed ^ (mixed >> _32)) * _FIRST
    mixed = (mixed ^ (mixed >> _29) ^ second) * _SECOND
    return mixed ^ (mixed >> _32)


@kernel_part
def mark(hashed: np.uint64) -> np.uint8:
    """Return a taken slot's mark: low bits of the hash, as its high ones are the slot."""
    return np.uint8(_1 + (hashed & _127))


@kernel_part
def user_slot(
    slots: NDArray[np.int32], digests: NDArray[np.uint64], seed: np.uint64, first: np.uint64, second: np.uint64
) -> int:
    """Return the slot of the user with this digest, or the free one where it belongs."""
    mask = len(slots) - 1
    at = np.int64(spread(first, second, seed) >> _32) & mask
    while slots[at] >= 0 and (digests[slots[at], 0] != first or digests[slots[at], 1] != second):
        at = (at + 1) & mask
    return int(at)


@kernel_part
def pair_slot(
    slots: NDArray[np.int32],
    marks: NDArray[np.uint8],
    owners: NDArray[np.int32],
    pairs: NDArray[np.uint64],
    hashed: np.uint64,
    owner: int,
    pair: np.uint64,
) -> int:
    """Return the slot of this pair of a user, with this hash, or the free one where it belongs."""
    mask, own = len(slots) - 1, mark(hashed)
    at = np.int64(hashed >> _32) & mask
    # Marks lie side by side: entries of other pairs, anywhere in memory, are hardly ever looked at.
    while marks[at] and (marks[at] != own or owners[slots[at]] != owner or pairs[slots[at]] != pair):
        at = (at + 1) & mask
    return int(at)


@kernel_part
def guess_users(
    slots: NDArray[np.int32],
    digests: NDArray[np.uint64],
    seed: np.uint64,
    events: NDArray[np.int64],
    users: NDArray[np.uint64],
    owners: NDArray[np.int32],
) -> None:
    """Write each event's user number if the first slot has it, else -1: look on, or new.

    Args:
        events: int64 (k,).
        users: uint64 (n, 2), digest of each event's user.
        owners: int32 (n,), written at `events`.
    """
    mask = len(slots) - 1
    for event in events:
        owners[event] = slots[np.int64(spread(users[event, 0], users[event, 1], seed) >> _32) & mask]
    for event in events:
        number = max(owners[event], 0)
        if digests[number, 0] != users[event, 0] or digests[number, 1] != users[event, 1]:
            owners[event] = -1


@kernel
def number_users(
    table: Table,
    at: int,
    events: NDArray[np.int64],
    users: NDArray[np.uint64],
    number: NDArray[np.int64],
    owners: NDArray[np.int32],
) -> int:
    """Number the users of events in order until the table is full; return how many of `events` are
    done.

    Args:
        table: of the epoch, changed.
        at: the first of `events` that is not done.
        events: int64 (k,), which events.
        users: uint64 (n, 2), digest of each event's user.
        number: int64 (n,), how many rows an event has; one without is passed over.
        owners: int32 (n,), the user's number, written for each event.
    """
    # Arrays by themselves: passing the table to a function counts a reference to each of its
    # arrays, which made an event three times as dear.
    slots, digests, used, sizes, seed = table.user_slots, table.digests, table.used, table.sizes, table.seed[0]
    for start in range(at, len(events), AHEAD):
        block = events[start : start + AHEAD]
        guess_users(slots, digests, seed, block, users, owners)
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


@kernel_part
def guess_pairs(
    slots: NDArray[np.int32],
    marks: NDArray[np.uint8],
    of_pair: NDArray[np.int32],
    held: NDArray[np.uint64],
    seed: np.uint64,
    events: NDArray[np.int64],
    owners: NDArray[np.int32],
    first: NDArray[np.int64],
    number: NDArray[np.int64],
    pairs: NDArray[np.uint64],
    numbers: NDArray[np.int32],
) -> None:
    """Write the number of each row's pair if the first slot has it, else -1: look on, or new.

    Args:
        events, owners, first, number, pairs: as in `count_pairs`.
        numbers: int32 (m,), written at the events' rows.
    """
    mask = len(slots) - 1
    for event in events:
        for row in range(first[event], first[event] + number[event]):
            hashed = spread(pairs[row], np.uint64(owners[event]), seed)
            at = np.int64(hashed >> _32) & mask
            numbers[row] = slots[at] if marks[at] == mark(hashed) else -1
    for event in events:
        for row in range(first[event], first[event] + number[event]):
            found = max(numbers[row], 0)
            if of_pair[found] != owners[event] or held[found] != pairs[row]:
                numbers[row] = -1


@kernel
def count_pairs(
    table: Table,
    most: int,
    max_count: int,
    at: int,
    events: NDArray[np.int64],
    owners: NDArray[np.int32],
    first: NDArray[np.int64],
    number: NDArray[np.int64],
    pairs: NDArray[np.uint64],
    amounts: NDArray[np.int64],
    numbers: NDArray[np.int32],
    counted: NDArray[np.int64],
) -> int:
    """Count the rows of events in order until the table is full; return how many of `events` are
    done.

    Args:
        table: of the epoch, changed.
        most: how many pairs of a user count.
        max_count: how much a pair counts at most.
        at: the first of `events` that is not done.
        events: int64 (k,), which events.
        owners: int32 (n,), number of each event's user.
        first: int64 (n,), the event's first row.
        number: int64 (n,), how many rows it has.
        pairs: uint64 (m,), digest of each row's pair.
        amounts: int64 (m,), of each row; (0,): 1 each.
        numbers: int32 (m,), room for guesses.
        counted: int64 (m,), written where a row counts.
    """
    used, slots, sizes, seed = table.used, table.pair_slots, table.sizes, table.seed[0]
    of_pair, held, counts, marks = table.owners, table.pairs, table.counts, table.pair_marks
    for start in range(at, len(events), AHEAD):
        block = events[start : start + AHEAD]
        guess_pairs(slots, marks, of_pair, held, seed, block, owners, first, number, pairs, numbers)
        for i in range(len(block)):
            event = block[i]
            if sizes[1] + number[event] > len(of_pair):
                return start + i
            for row in range(first[event], first[event] + number[event]):
                owner = owners[event]
                amount = amounts[row] if len(amounts) else 1
                if amount <= 0 or (max_count == 1 and used[owner] >= most):
                    # Where pairs count once, each of a user who is done has counted or never will.
                    continue
                pair = numbers[row]
                if pair < 0:
                    hashed = spread(pairs[row], np.uint64(owner), seed)
                    slot = pair_slot(slots, marks, of_pair, held, hashed, owner, pairs[row])
                    pair = slots[slot] if marks[slot] else -1
                if pair >= 0:
                    if max_count > 1:
                        counted[row] = min(amount, max_count - counts[pair])
                        counts[pair] += counted[row]
                elif used[owner] < most:
                    pair = sizes[1]
                    slots[slot] = pair
                    marks[slot] = mark(hashed)
                    of_pair[pair] = owner
                    held[pair] = pairs[row]
                    counted[row] = min(amount, max_count)
                    if max_count > 1:
                        counts[pair] = counted[row]
                    used[owner] += 1
                    sizes[1] += 1
    return len(events)


@kernel
def index_users(slots: NDArray[np.int32], digests: NDArray[np.uint64], seed: np.uint64, size: int) -> None:
    """Fill free slots with the users there are, no two of which are the same."""
    mask = len(slots) - 1
    for number in range(size):
        at = np.int64(spread(digests[number, 0], digests[number, 1], seed) >> _32) & mask
        while slots[at] >= 0:
            at = (at + 1) & mask
        slots[at] = number


@kernel
def index_pairs(
    slots: NDArray[np.int32],
    marks: NDArray[np.uint8],
    owners: NDArray[np.int32],
    pairs: NDArray[np.uint64],
    seed: np.uint64,
    size: int,
) -> None:
    """Fill free slots with the pairs there are, no two of which are the same."""
    mask = len(slots) - 1
    for number in range(size):
        hashed = spread(pairs[number], np.uint64(owners[number]), seed)
        at = np.int64(hashed >> _32) & mask
        while marks[at]:
            at = (at + 1) & mask
        slots[at] = number
        marks[at] = mark(hashed)


@kernel_with_arrays
def entries(
    events: NDArray[np.int64],
    users: NDArray[np.uint64],
    first: NDArray[np.int64],
    number: NDArray[np.int64],
    pairs: NDArray[np.uint64],
    counted: NDArray[np.int64],
) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64]]:
    """Return what counted as columns: user (k, 2), pair (k,) and amount (k,).

    Args:
        events, first, number, pairs, counted: as in `count_pairs`, once it is done.
        users: as in `number_users`.
    """
    size = 0
    for event in events:
        for row in range(first[event], first[event] + number[event]):
            size += counted[row] > 0
    of_user = np.empty((size, 2), dtype=np.uint64)
    of_pair = np.empty(size, dtype=np.uint64)
    added = np.empty(size, dtype=np.int64)
    at = 0
    for event in events:
        for row in range(first[event], first[event] + number[event]):
            if counted[row] > 0:
                of_user[at, 0] = users[event, 0]
                of_user[at, 1] = users[event, 1]
                of_pair[at] = pairs[row]
                added[at] = counted[row]
                at += 1
    return of_user, of_pair, added
