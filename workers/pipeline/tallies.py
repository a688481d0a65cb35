"""Stage 1 sums: contributions to each tick since the last commit, as rows for the owner partitions.

A backlog's commit has many tallies, most of them small. Tallies with the same vocabularies are
processed together, so that labels and tags are looked up for thousands of rows at once.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from workers.arrays import tallies as kernels
from workers.arrays.blake2b import State
from workers.arrays.texts import readonly_contiguous
from workers.arrays.types import Codes, Longs, Words
from workers.events.columns import DigestsOfViews, EventColumns
from workers.events.vocabulary import Vocabulary
from workers.mechanisms.config.histogram import Lane
from workers.mechanisms.ledger import with_capacity
from workers.pipeline.contributions import Rows
from workers.pipeline.histogram import owner_of
from workers.runtime.frozen import read_only

# Row limit of tallies processed together. A new pair is then digested once for every tally in
# which it appears.
TOGETHER_ROWS = 1 << 15
_FIRST_ROWS = 1 << 6
# Replaces the bits of a label: slots are found by a hash, two to four slots a row.
_HASHED = -1
_SLOTS_A_ROW = 4
_ALL_SEEN = read_only(np.empty(0, dtype=np.bool_))
A = TypeVar("A", bound=np.generic)


class Run(NamedTuple):
    """A tick and its events in a batch: int64 (k,), in order."""

    tick: int
    events: Longs


class TallyKeys(NamedTuple):
    """Stream keys of a tally, in the order in which its rows are written.

    Attributes:
        names: k stream keys, including those without rows.
        bounds: where the keys of each owner partition begin, and k.
        starts: int64 (k + 1,), where each key's rows begin.
    """

    names: list[str]
    bounds: list[int]
    starts: Longs


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

    def add(
        self, columns: EventColumns, events: Longs, amounts: Longs, max_items: int, max_count: int
    ) -> None:
        """Add bounded counts of a batch's events, except those that its view skips.

        Args:
            events: int64 (k,), the events of this tick, in order.
            amounts: int64 (m,), of the labels, or (0,): all 1.
            max_items, max_count: D0 and Dinf.
        """
        ends = readonly_contiguous(columns.ends)
        # At most one row for every event's key and each of its labels, and for every possible pair.
        rows = self._used + len(events) + min(len(columns.labels), len(events) * max_items)
        self._told = with_capacity(self._told, len(self.key_names))
        self._make_room(min(rows, len(self.key_names) * (len(self.label_names) + 1)))
        self._used = kernels.count_events(
            readonly_contiguous(events),
            _ALL_SEEN if columns.seen is None else readonly_contiguous(columns.seen),
            readonly_contiguous(columns.keys),
            ends,
            readonly_contiguous(columns.labels),
            readonly_contiguous(amounts),
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

    def write(
        self, owner_of: Codes, owners: int, pairs: Words, labels: Longs, counts: Longs
    ) -> TallyKeys:
        """Write the rows by owner partition, then by stream key in the order met.

        Args:
            owner_of: int32 (codes of keys or more,), owner partition of each key.
            pairs, labels, counts: uint64, int64 and int64 (rows or more,), written: pair, label
                code and count of each row.
        """
        codes = len(self._told)
        bounds, starts = np.zeros(owners + 1, dtype=np.int64), np.zeros(codes + 1, dtype=np.int64)
        places, met = np.empty(codes, dtype=np.int32), np.empty(codes, dtype=np.int32)
        k = kernels.group_by_owner(
            self._pairs,
            self._counts,
            self._used,
            owner_of,
            bounds,
            places,
            met,
            starts,
            pairs,
            labels,
            counts,
        )
        names = [self.key_names.name(code) for code in met[:k].tolist()]
        return TallyKeys(names, bounds.tolist(), starts[: k + 1])

    def _make_room(self, rows: int) -> None:
        if rows > len(self._pairs):
            self._pairs, self._counts = (
                self._wider(self._pairs, rows),
                self._wider(self._counts, rows),
            )
        keys, labels = len(self.key_names), len(self.label_names)
        if (
            self._bits != _HASHED
            and labels <= 1 << self._bits
            and keys << self._bits <= len(self._slots)
        ):
            return
        bits = (labels - 1).bit_length() if labels else 0
        if keys << bits <= _SLOTS_A_ROW * rows:
            # One slot per pair takes no more room than the hash table, and needs no hash.
            self._bits, slots = bits, keys << bits
        elif self._bits != _HASHED or 2 * rows > len(self._slots):
            self._bits, slots = _HASHED, 1 << (2 * rows - 1).bit_length()
        else:
            return
        self._slots = np.full(slots, -1, dtype=np.int32)
        kernels.refill(self._pairs, self._used, self._secret, self._bits, self._slots)

    def _wider(self, column: NDArray[A], rows: int) -> NDArray[A]:
        """Return a larger copy of a column; its unused rows are uninitialized."""
        wider = np.empty(max(rows, len(column) + len(column) // 2), dtype=column.dtype)
        wider[: self._used] = column[: self._used]
        return wider


class Counted(NamedTuple):
    lane: Lane
    tick: int
    tally: Tally


class Tallies:
    """Open tallies of one source partition, by lane and tick. Sensitive."""

    def __init__(self) -> None:
        self._open: dict[tuple[Lane, int], list[Tally]] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    def __repr__(self) -> str:
        return f"Tallies({len(self._open)} ticks)"

    @property
    def rows(self) -> int:
        return sum(len(tally) for tallies in self._open.values() for tally in tallies)

    def add(
        self, columns: EventColumns, lane: Lane, tick: int, events: Longs, amounts: Longs
    ) -> None:
        """Add events of a batch to a tick (from 1), with the lane's bounds; see `Tally.add`."""
        tallies = self._open.setdefault((lane, tick), [])
        # Codes are valid only with their own vocabularies.
        if not tallies or (tallies[-1].key_names, tallies[-1].label_names) != (
            columns.key_names,
            columns.label_names,
        ):
            tallies.append(Tally(columns.key_names, columns.label_names))
        tallies[-1].add(columns, events, amounts, lane.max_items, lane.max_count)
        if not tallies[-1]:  # the view skips all of them
            tallies.pop()
        if not tallies:
            del self._open[lane, tick]

    def take(self) -> list[Counted]:
        """Return and forget the tallies since the last call."""
        taken, self._open = self._open, {}
        return [
            Counted(lane, tick, tally)
            for (lane, tick), tallies in taken.items()
            for tally in tallies
        ]


class ContributionBuilder:
    """Builder of one source partition's rows. Not thread-safe."""

    def __init__(self, tag_state: Callable[[str], State]) -> None:
        """Take the initial hash state of a stream key's tags; see `NoiseKey.tag_state`."""
        self._tags = DigestsOfViews(tag_state)
        self._owner_of: dict[Vocabulary, Codes] = {}

    def of(self, counted: Sequence[Counted], owners: int) -> list[list[Rows]]:
        """Return rows by owner partition, in tally order; `owners` is the same at every call."""
        of_tally: list[list[tuple[int, Rows]]] = [[] for _ in counted]
        for group in _together(counted):
            for place, owner, rows in self._rows(counted, group, owners):
                of_tally[place].append((owner, rows))
        shares: list[list[Rows]] = [[] for _ in range(owners)]
        for of_one in of_tally:
            for owner, rows in of_one:
                shares[owner].append(rows)
        # Forget vocabularies that have been replaced.
        used = {each.tally.key_names for each in counted}
        self._owner_of = {names: known for names, known in self._owner_of.items() if names in used}
        return shares

    def _rows(
        self, counted: Sequence[Counted], group: Sequence[int], owners: int
    ) -> Iterator[tuple[int, int, Rows]]:
        """Yield index, owner and rows of tallies that share vocabularies."""
        first = counted[group[0]]
        key_names, label_names = first.tally.key_names, first.tally.label_names
        room = sum(len(counted[place].tally) for place in group)
        pairs, labels = np.empty(room, dtype=np.uint64), np.empty(room, dtype=np.int64)
        counts = np.empty(room, dtype=np.int64)
        owner_of_key, used = self._owners(key_names, owners), 0
        of_keys = []
        for place in group:
            rows = slice(used, None)
            keys = counted[place].tally.write(
                owner_of_key, owners, pairs[rows], labels[rows], counts[rows]
            )
            of_keys.append((place, used, keys))
            used += int(keys.starts[-1])
        texts = label_names.texts(labels[:used])
        tags = self._tags.of(first.lane.view, key_names, label_names).of(pairs[:used], texts)
        for place, begin, keys in of_keys:
            lane, tick, _ = counted[place]
            for owner in range(owners):
                start, stop = keys.bounds[owner], keys.bounds[owner + 1]
                if stop > start:
                    starts = keys.starts[start : stop + 1] + begin
                    own = slice(int(starts[0]), int(starts[-1]))
                    yield (
                        place,
                        owner,
                        Rows(
                            lane=lane,
                            tick=tick,
                            names=keys.names[start:stop],
                            starts=starts - own.start,
                            labels=texts.part(own.start, own.stop),
                            counts=counts[own],
                            tags=tags[own],
                        ),
                    )

    def _owners(self, names: Vocabulary, owners: int) -> Codes:
        known = self._owner_of.get(names)
        if known is None or len(known) < len(names):
            known = np.empty(0, dtype=np.int32) if known is None else known
            more = [owner_of(names.name(code), owners) for code in range(len(known), len(names))]
            self._owner_of[names] = known = np.concatenate([known, np.array(more, dtype=np.int32)])
        return known


def _together(counted: Sequence[Counted]) -> Iterator[list[int]]:
    """Yield indices of tallies to process together."""
    open_: dict[tuple[Vocabulary, Vocabulary], list[int]] = {}
    rows: dict[tuple[Vocabulary, Vocabulary], int] = {}
    for place, (_, _, tally) in enumerate(counted):
        names = tally.key_names, tally.label_names
        open_.setdefault(names, []).append(place)
        rows[names] = rows.get(names, 0) + len(tally)
        if rows[names] >= TOGETHER_ROWS:
            yield open_.pop(names)
            del rows[names]
    yield from open_.values()


def by_tick(times: Longs, effective: Longs, lane: Lane) -> tuple[Longs, list[Run]]:
    """Assign events to ticks.

    Args:
        times, effective: int64 (n,), the events' own times, and those at which they count, which
            are not earlier.

    Returns:
        the tick of each event, int64 (n,), 0 before tick 1; and every tick from 1 that has events,
        ascending, with its events in order.
    """
    n = len(times)
    ticks, begins = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    found, ascending = kernels.ticks_of(
        readonly_contiguous(times),
        readonly_contiguous(effective),
        lane.start_ms,
        lane.tick_ms,
        ticks,
        begins,
    )
    begins, order, ordered = begins[:found], np.arange(n), ticks
    if not ascending:
        order = np.argsort(ticks, kind="stable")
        ordered = ticks[order]
        begins = np.flatnonzero(np.diff(ordered, prepend=-1))
    stops = [*begins[1:].tolist(), n]
    runs = zip(ordered[begins].tolist(), begins.tolist(), stops, strict=True)
    return ticks, [Run(tick, order[start:stop]) for tick, start, stop in runs if tick >= 1]
