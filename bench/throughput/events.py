"""The events of the benchmarks, as the payload of record batches: drawn in columns, written in compiled loops.

    {"key":"shop-3","items":["product-12","product-7"],"ts":1767225600000}                     events
    {"key":"shop-3","items":["product-12","product-7"],"ts":1767225600000,"user":"user-99"}    of users

Two different items each, ten stream keys, items by Zipf's law. The record's key is the user, where there is one, and so is
what decides its partition; other records have no key. Making an event takes less than half of what the worker needs for
it, so that events can be made while a worker is measured (`steady`).
"""

from dataclasses import dataclass

import numpy as np

from workers.arrays.compiled import kernel_with_arrays
from workers.arrays.types import Bytes, Longs
from workers.kafka.placement import murmur2

KEYS = 10
ITEMS_AN_EVENT = 2
#: More than a record takes, with all its numbers at their longest.
RECORD_BYTES_MAX = 256

_KEY = np.frombuffer(b'{"key":"shop-', dtype=np.uint8)
_ITEMS = np.frombuffer(b'","items":["product-', dtype=np.uint8)
_NEXT_ITEM = np.frombuffer(b'","product-', dtype=np.uint8)
_TIME = np.frombuffer(b'"],"ts":', dtype=np.uint8)
_USER = np.frombuffer(b',"user":"user-', dtype=np.uint8)
_RECORD_KEY = np.frombuffer(b"user-", dtype=np.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What events look like.

    Attributes:
        domain: number of items.
        users: number of users, each as likely as the other; 0: events have none.
        in_turn: items come one after the other, so that each occurs, in place of Zipf's law.
        keys: number of stream keys.
    """

    domain: int = 10_000
    users: int = 0
    in_turn: bool = False
    keys: int = KEYS


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """Events without their times.

    Attributes:
        keys: int64 (n,).
        items: int64 (n, 2), different ones.
        users: int64 (n,); empty where there are none.
        partitions: int64 (n,), where they belong.
    """

    keys: Longs
    items: Longs
    users: Longs
    partitions: Longs


class Events:
    """Draws events of a shape, the same ones each time, block by block."""

    def __init__(self, shape: Shape, partitions: int) -> None:
        self.shape = shape
        self._partitions = partitions
        self._rng = np.random.default_rng(1)
        self._drawn = 0
        weights = np.cumsum(1 / np.arange(1, shape.domain + 1))
        self._cumulative = weights / weights[-1]
        self._home = np.empty(shape.users, dtype=np.int64)
        place_users(self._home, partitions)

    def draw(self, n: int) -> Drawn:
        """Return the next `n` events."""
        shape = self.shape
        rng = self._rng
        if shape.in_turn:
            first = ITEMS_AN_EVENT * self._drawn
            items = (
                np.arange(first, first + ITEMS_AN_EVENT * n).reshape(n, ITEMS_AN_EVENT)
                % shape.domain
            )
        else:
            items = np.searchsorted(self._cumulative, rng.random((n, ITEMS_AN_EVENT)))
            same = items[:, 0] == items[:, 1]
            items[same, 1] = (items[same, 1] + 1) % shape.domain
        keys = rng.integers(0, shape.keys, size=n)
        users = (
            rng.integers(0, shape.users, size=n)
            if shape.users
            else np.empty(0, dtype=np.int64)
        )
        partitions = (
            self._home[users]
            if shape.users
            else (self._drawn + np.arange(n)) % self._partitions
        )
        self._drawn += n
        return Drawn(keys, items, users, partitions)


def payload(drawn: Drawn, rows: Longs, times: Longs) -> Bytes:
    """Return the records of a batch.

    Args:
        drawn: events.
        rows: int64 (m,), which of them, in their order.
        times: int64 (n,) of all events, ms since 1970.
    """
    out = np.empty(RECORD_BYTES_MAX * len(rows), dtype=np.uint8)
    users = drawn.users[rows] if len(drawn.users) else drawn.users
    return out[
        : put_records(out, drawn.keys[rows], drawn.items[rows], times[rows], users)
    ]


@kernel_with_arrays
def put_text(out: Bytes, at: int, text: Bytes) -> int:
    """Write a text at `at`; return the place after it."""
    for byte in text:
        out[at] = byte
        at += 1
    return at


@kernel_with_arrays
def put_number(out: Bytes, at: int, number: int) -> int:
    """Write a number that is not negative, in decimal; return the place after it."""
    power = 1
    while power <= number // 10:
        power *= 10
    while power > 0:
        out[at] = 48 + number // power % 10
        at += 1
        power //= 10
    return at


@kernel_with_arrays
def put_varint(out: Bytes, at: int, number: int) -> int:
    """Write a number as Kafka's records have it, 7 bits a byte with the sign in the lowest; return the place after it."""
    left = (number << 1) ^ (number >> 63)
    while left > 127:
        out[at] = left & 127 | 128
        at += 1
        left >>= 7
    out[at] = left
    return at + 1


@kernel_with_arrays
def put_event(out: Bytes, key: int, one: int, other: int, time: int, user: int) -> int:
    """Write an event's JSON at the beginning of `out`, without a user where that is -1; return its length."""
    at = put_number(out, put_text(out, 0, _KEY), key)
    at = put_number(out, put_text(out, at, _ITEMS), one)
    at = put_number(out, put_text(out, at, _NEXT_ITEM), other)
    at = put_number(out, put_text(out, at, _TIME), time)
    if user >= 0:
        at = put_number(out, put_text(out, at, _USER), user)
        out[at] = 34  # "
        at += 1
    out[at] = 125  # }
    return at + 1


@kernel_with_arrays
def put_records(
    out: Bytes, keys: Longs, items: Longs, times: Longs, users: Longs
) -> int:
    """Write the records of a batch.

    Args:
        out: uint8, at least `RECORD_BYTES_MAX` for each record; written.
        keys, times: int64 (n,); the first time is that of the batch.
        items: int64 (n, 2).
        users: int64 (n,), or empty: records without a key.

    Returns:
        The length of what was written.
    """
    record = np.empty(RECORD_BYTES_MAX, dtype=np.uint8)
    event = np.empty(RECORD_BYTES_MAX, dtype=np.uint8)
    text = np.empty(RECORD_BYTES_MAX, dtype=np.uint8)
    end = 0
    for i in range(len(keys)):
        user = users[i] if len(users) else -1
        length = put_event(event, keys[i], items[i, 0], items[i, 1], times[i], user)
        record[0] = 0  # attributes
        at = put_varint(record, 1, times[i] - times[0])
        at = put_varint(record, at, i)
        if user < 0:
            at = put_varint(record, at, -1)
        else:
            key_length = put_number(text, put_text(text, 0, _RECORD_KEY), user)
            at = put_text(record, put_varint(record, at, key_length), text[:key_length])
        at = put_text(record, put_varint(record, at, length), event[:length])
        at = put_varint(record, at, 0)  # headers
        end = put_text(out, put_varint(out, end, at), record[:at])
    return end


@kernel_with_arrays
def place_users(home: Longs, partitions: int) -> None:
    """Write each user's partition, as Java's clients choose it, into int64 (users,)."""
    text = np.empty(RECORD_BYTES_MAX, dtype=np.uint8)
    for user in range(len(home)):
        length = put_number(text, put_text(text, 0, _RECORD_KEY), user)
        home[user] = murmur2(text, 0, length) % partitions
