"""Stage 1's sums: what the events of a source partition add to each tick since the last commit."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from workers.events.columns import EventColumns, Longs
from workers.events.vocabulary import Codes, Vocabulary
from workers.histogram.owners import owner_of
from workers.kernels import tallies as kernels
from workers.mechanisms.config import Lane
from workers.mechanisms.frozen import read_only
from workers.mechanisms.ledger import grown
from workers.mechanisms.texts import fixed

_FIRST_ROWS = 1 << 6
# Instead of the bits of a label: slots are found by a hash, of which there are two to four a row.
_HASHED = -1
_SLOTS_A_ROW = 4
_ALL_SEEN = read_only(np.empty(0, dtype=np.bool_))
A = TypeVar("A", bound=np.generic)


class Run(NamedTuple):
    """A tick, and the events of a batch that go into it: int64 (k,), in order."""

    tick: int
    events: Longs


class KeyRows(NamedTuple):
    """What a tally holds, in the order of its stream keys.

    Attributes:
        names: the k stream keys, also those without rows.
        owners: int64 (k,), each key's owner partition, ascending.
        starts: int64 (k + 1,), where each key's rows begin.
        keys, labels: int32 (n,), codes.
        counts: int64 (n,), each above 0.
    """

    names: list[str]
    owners: Longs
    starts: Longs
    keys: Codes
    labels: Codes
    counts: Longs


class Tally:
    """Counts by stream key and label of one tick. Sensitive: its repr shows none."""

    def __init__(self, key_names: Vocabulary, label_names: Vocabulary) -> None:
        self.key_names, self.label_names = key_names, label_names
        self._secret = np.uint64(int.from_bytes(secrets.token_bytes(8)))
        self._slots, self._bits = np.full(2 * _FIRST_ROWS, -1, dtype=np.int32), _HASHED
        self._pairs = np.empty(_FIRST_ROWS, dtype=np.uint64)
        self._counts = np.empty(_FIRST_ROWS, dtype=np.int64)
        self._told = np.zeros(0, dtype=np.bool_)
        self._used = 0

    def __repr__(self) -> str:
        return f"Tally({self._used} rows)"

    def __len__(self) -> int:
        return self._used

    def add(self, columns: EventColumns, events: Longs, amounts: Longs, max_items: int, max_count: int) -> None:
        """Add those of some events of a batch that its view looks at, bounded.

        Args:
            columns: the batch.
            events: int64 (k,), the events that go into this tick, in order.
            amounts: int64 (m,), of the labels, or (0,): all 1.
            max_items, max_count: D0 and Dinf.
        """
        ends = fixed(columns.ends)
        # At most a row for each event's key and for each of its labels, and for each pair there is.
        rows = self._used + len(events) + min(len(columns.labels), len(events) * max_items)
        self._told = grown(self._told, len(self.key_names))
        self._make_room(min(rows, len(self.key_names) * (len(self.label_names) + 1)))
        self._used = kernels.count_events(
            fixed(events),
            _ALL_SEEN if columns.seen is None else fixed(columns.seen),
            fixed(columns.keys),
            ends,
            fixed(columns.labels),
            fixed(amounts),
            max_items,
            max_count,
            self._told,
            self._secret,
            self._bits,
            self._slots,
            self._pairs,
            self._counts,
            self._used,
        )

    def rows(self, owners: int) -> KeyRows:
        """Return the rows by stream key: by owner partition, then in the order in which the keys
        were met.
        """
        keys = np.empty(len(self._told), dtype=np.int32)
        keys = keys[: kernels.keys_met(self._pairs, self._used, keys)]
        met = [self.key_names.name(code) for code in keys.tolist()]
        owner = np.array([owner_of(name, owners) for name in met], dtype=np.int64)
        by_owner = np.argsort(owner, kind="stable")
        places = np.empty(len(self._told), dtype=np.int32)
        places[keys[by_owner]] = np.arange(len(keys), dtype=np.int32)
        starts, n = np.zeros(len(keys) + 1, dtype=np.int64), self._used - len(keys)
        of_key, labels, counts = np.empty(n, dtype=np.int32), np.empty(n, dtype=np.int32), np.empty(n, dtype=np.int64)
        kernels.group_by_key(self._pairs, self._counts, self._used, places, starts, of_key, labels, counts)
        return KeyRows([met[place] for place in by_owner.tolist()], owner[by_owner], starts, of_key, labels, counts)

    def _make_room(self, rows: int) -> None:
        if rows > len(self._pairs):
            self._pairs, self._counts = self._wider(self._pairs, rows), self._wider(self._counts, rows)
        keys, labels = len(self.key_names), len(self.label_names)
        if self._bits != _HASHED and labels <= 1 << self._bits and keys << self._bits <= len(self._slots):
            return
        bits = (labels - 1).bit_length() if labels else 0
        if keys << bits <= _SLOTS_A_ROW * rows:
            # A slot for each pair is no more than the table would have, and needs no hash.
            self._bits, slots = bits, keys << bits
        elif self._bits != _HASHED or 2 * rows > len(self._slots):
            self._bits, slots = _HASHED, 1 << (2 * rows - 1).bit_length()
        else:
            return
        self._slots = np.full(slots, -1, dtype=np.int32)
        kernels.refill(self._pairs, self._used, self._secret, self._bits, self._slots)

    def _wider(self, column: NDArray[A], rows: int) -> NDArray[A]:
        """Return a column with room for more rows; behind those that are used it holds anything."""
        wider = np.empty(max(rows, len(column) + len(column) // 2), dtype=column.dtype)
        wider[: self._used] = column[: self._used]
        return wider


class Tallies:
    """The open tallies of one source partition, by lane and tick. Sensitive."""

    def __init__(self) -> None:
        self._open: dict[tuple[Lane, int], list[Tally]] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    def __repr__(self) -> str:
        return f"Tallies({len(self._open)} ticks)"

    @property
    def rows(self) -> int:
        """How many rows all of them have."""
        return sum(len(tally) for tallies in self._open.values() for tally in tallies)

    def add(self, columns: EventColumns, lane: Lane, tick: int, events: Longs, amounts: Longs) -> None:
        """Add those of some events of a batch that its view looks at.

        Args:
            columns: of the batch.
            lane: whose bounds apply.
            tick: from 1.
            events: int64 (k,), the events that go into it, in order.
            amounts: int64 (m,), of the labels, or (0,): all 1.
        """
        tallies = self._open.setdefault((lane, tick), [])
        # Codes mean something beside their own vocabularies only.
        if not tallies or (tallies[-1].key_names, tallies[-1].label_names) != (
            columns.key_names,
            columns.label_names,
        ):
            tallies.append(Tally(columns.key_names, columns.label_names))
        tallies[-1].add(columns, events, amounts, lane.max_items, lane.max_count)
        if not tallies[-1]:  # the view looks at none of them
            tallies.pop()
        if not tallies:
            del self._open[lane, tick]

    def take(self) -> Iterator[tuple[Lane, int, Tally]]:
        """Yield what was counted since the last call, and forget it."""
        taken, self._open = self._open, {}
        for (lane, tick), tallies in taken.items():
            for tally in tallies:
                yield lane, tick, tally


def by_tick(ticks: Longs) -> list[Run]:
    """Return each tick from 1 on, ascending, with its events in their order.

    Args:
        ticks: int64 (n,), of each event; below 1: none.
    """
    if not len(ticks):
        return []
    order, begins = np.arange(len(ticks)), _begins(ticks)
    if not (ticks[begins[1:]] > ticks[begins[:-1]]).all():
        order = np.argsort(ticks, kind="stable")
        ticks = ticks[order]
        begins = _begins(ticks)
    stops = np.append(begins[1:], len(ticks)).tolist()
    runs = zip(ticks[begins].tolist(), begins.tolist(), stops, strict=True)
    return [Run(tick, order[start:stop]) for tick, start, stop in runs if tick >= 1]


def _begins(ticks: Longs) -> Longs:
    """Return where another tick than the one before begins."""
    return np.concatenate(([0], np.flatnonzero(ticks[1:] != ticks[:-1]) + 1))
