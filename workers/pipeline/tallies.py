"""Stage 1 sums: contributions to each tick since the last commit, as rows for the owner partitions.

A backlog's commit has many tallies, most of them small. Those with the same vocabularies form a
group, so that labels and tags are looked up for thousands of rows at once.

A row is the bounded count of a (stream key, label). A vocabulary numbers texts: a code is a text's
number. A pair is 64 bits, the key's code in the upper 32, the label's in the lower; in place of a
label NO_LABEL makes a row of the key itself, which is so sent even if none of its labels counts. A
tag is a keyed hash of both texts. A lane is a tick grid with bounds; an owner is the partition that
publishes a share of the stream keys. A batch has n events with m labels in all, and a view says
which of its events a lane includes.
"""

import secrets
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise
from operator import itemgetter

import numpy as np

from workers.arrays import tallies as kernels
from workers.arrays.blake2b import State
from workers.arrays.texts import readonly_contiguous
from workers.arrays.types import Codes, Longs, Words
from workers.events.columns import EventColumns, ViewDigests, pairs_of, rows_of
from workers.events.vocabulary import Vocabulary
from workers.mechanisms.config.histogram import Lane
from workers.mechanisms.ledger import with_capacity
from workers.pipeline.contributions import Rows
from workers.pipeline.growth.owners import Owners, owner_of, part_owner
from workers.runtime.frozen import read_only

# Row limit of a group of tallies: a new pair is digested once for all of them.
GROUP_ROWS = 1 << 15
_FIRST_ROWS = 1 << 6
# In place of `Table.label_bits`: a hash gives the slot of a pair.
_HASHED = -1
# A hash table has two to four slots a row; a slot for every pair is made while that is no more.
_SLOTS_A_ROW = 4
# For the kernels: the view includes all events.
ALL_SEEN = read_only(np.empty(0, dtype=np.bool_))
_NO_OWNERS: Codes = read_only(np.empty(0, dtype=np.int32))
# A tick and the indices of its events in a batch: (k,), in order.
Run = tuple[int, Longs]


class Tally:
    """Counts by stream key and label of one tick, in the codes of two vocabularies. Sensitive.

    `_table` is a hash table, or has a slot for every possible pair while these are few; its first
    `_used` rows are taken.
    """

    def __init__(self, key_names: Vocabulary, label_names: Vocabulary) -> None:
        """Begin with an empty hash table: rows are found by the slots of their pairs' hashes."""
        self.key_names = key_names
        self.label_names = label_names
        self._table = kernels.Table(
            secret=np.uint64(int.from_bytes(secrets.token_bytes(8))),
            label_bits=_HASHED,
            slots=np.full(2 * _FIRST_ROWS, -1, dtype=np.int32),
            has_row=np.zeros(0, dtype=np.bool_),
            pairs=np.empty(_FIRST_ROWS, dtype=np.uint64),
            counts=np.empty(_FIRST_ROWS, dtype=np.int64),
        )
        self._used = 0

    @classmethod
    def from_counts(
        cls,
        key_names: Vocabulary,
        label_names: Vocabulary,
        keys: Codes,
        pairs: Words,
        counts: Longs,
    ) -> "Tally":
        """Return a tally of counts that were added up elsewhere, such as in a sketch.

        Args:
            keys: (k,), distinct: the stream keys in the order met, also those without a pair.
            pairs: (n,), distinct: stream key and label, with their `counts` (n,).
        """
        tally = cls(key_names, label_names)
        used = len(keys) + len(pairs)
        has_row = np.zeros(len(key_names), dtype=np.bool_)
        has_row[keys] = True
        # The rows of the keys themselves.
        key_rows = keys.astype(np.uint64) << kernels.KEY_BITS | kernels.NO_LABEL
        tally._table = kernels.Table(
            secret=tally._table.secret,
            label_bits=_HASHED,
            # A power of two, more than twice the rows, which `fill_slots` enters.
            slots=np.full(1 << (2 * used).bit_length(), -1, dtype=np.int32),
            has_row=has_row,
            pairs=np.concatenate((key_rows, pairs)),
            counts=np.concatenate((np.zeros(len(keys), dtype=np.int64), counts)),
        )
        tally._used = used
        kernels.fill_slots(tally._table, used)
        return tally

    def __repr__(self) -> str:
        return f"Tally({self._used} rows)"

    def __len__(self) -> int:
        return self._used

    def add(
        self,
        columns: EventColumns,
        events: Longs,
        amounts: Longs,
        max_items: int,
        max_count: int,
    ) -> None:
        """Add bounded counts of one tick's `events` (k,) that the view includes.

        `amounts` (m,) are the labels', or (0,): all 1.
        """
        seen = ALL_SEEN if columns.included is None else columns.included
        parts = seen, columns.keys, columns.ends, columns.labels, amounts
        batch = kernels.LabeledEvents(*map(readonly_contiguous, parts))
        # At most one row for every event's key and each of its labels, and for every possible pair.
        rows = (
            self._used + len(events) + min(len(columns.labels), len(events) * max_items)
        )
        self._make_room(min(rows, len(self.key_names) * (len(self.label_names) + 1)))
        events = readonly_contiguous(events)
        table = self._table
        self._used = kernels.count_events(
            events, batch, max_items, max_count, table, self._used
        )

    def write(
        self, owner_of: Codes, owners: int, out: kernels.LabelRows
    ) -> tuple[list[str], list[int], Longs]:
        """Write the labels' rows to `out`, by owner partition, then by stream key in the order met.

        `owner_of` has the owner partition, below `owners`, of each key's code; `out` has room for
        all rows.

        Returns:
            The stream keys in that order, those without labels included; where the keys of each
            owner partition begin among them, (owners + 1,) with their number; where each key's rows
            begin, (keys + 1,) with the number of rows.
        """
        met, bounds, starts = kernels.group_by_owner(
            self._table, self._used, owner_of, owners, out
        )
        names = [self.key_names.name(code) for code in met.tolist()]
        return names, bounds.tolist(), starts

    def _make_room(self, rows: int) -> None:
        """Make the table large enough for `rows` rows; rebuild its slots if they are too few.

        With few possible pairs, each has a slot: the key's code above the `bits` of the label's.
        """
        secret, bits, slots, has_row, pairs, counts = self._table
        keys = len(self.key_names)
        labels = len(self.label_names)
        if rows > len(pairs):
            pairs = with_capacity(pairs, rows)
            counts = with_capacity(counts, rows)
        has_row = with_capacity(has_row, keys)
        self._table = kernels.Table(secret, bits, slots, has_row, pairs, counts)
        # Each possible pair has a slot, also with the codes that are new.
        if bits != _HASHED and labels <= 1 << bits and keys << bits <= len(slots):
            return
        label_bits = (labels - 1).bit_length() if labels else 0
        if keys << label_bits <= _SLOTS_A_ROW * rows:
            # One slot per possible pair takes no more room than the hash table, and needs no hash.
            bits = label_bits
            size = keys << label_bits
        elif bits != _HASHED or 2 * rows > len(slots):
            # A hash table, at most half full.
            bits = _HASHED
            size = 1 << (2 * rows - 1).bit_length()
        else:
            return
        self._table = self._table._replace(
            label_bits=bits, slots=np.full(size, -1, dtype=np.int32)
        )
        kernels.fill_slots(self._table, self._used)


class UserTally:
    """The users of one tick by stream key and label, in the codes of two vocabularies. Sensitive.

    In place of a `Tally` where different users are counted. A row is a user of an item; it may be
    there several times until the rows are written.
    """

    def __init__(self, key_names: Vocabulary, label_names: Vocabulary) -> None:
        self.key_names = key_names
        self.label_names = label_names
        # By call of `add`: the stream keys met, and pair and user of each row.
        self._keys: list[Codes] = []
        self._pairs: list[Words] = []
        self._users: list[Words] = []
        self._used = 0

    def __repr__(self) -> str:
        return f"UserTally({self._used} rows)"

    def __len__(self) -> int:
        return self._used

    def __bool__(self) -> bool:
        return bool(self._keys)

    def add(
        self, columns: EventColumns, events: Longs, amounts: Longs, users: Words
    ) -> None:
        """Add the users of one tick's `events` (k,) that the view includes, and that count.

        `amounts` (m,) are 0 for labels that do not count; `users` (n, 2) are the events'.
        """
        if columns.included is not None:
            events = events[columns.included[events]]
        if not len(events):
            return
        label_count = np.diff(columns.ends, prepend=0)[events]
        places = rows_of(columns.ends[events] - label_count, label_count)
        counts = amounts[places] > 0
        keys = columns.keys[events]
        pairs = pairs_of(np.repeat(keys, label_count), columns.labels[places])[counts]
        # Keys without a label that counts are sent, too.
        self._keys.append(np.unique(keys))
        self._pairs.append(pairs)
        self._users.append(np.repeat(users[events], label_count, axis=0)[counts])
        self._used += len(pairs)

    def write(
        self, owner_of: Codes, owners: int, out: kernels.LabelRows, users: Words
    ) -> tuple[list[str], list[int], Longs]:
        """Write the distinct rows to `out`, each with count 1, and `users` (rows, 2).

        Order and result are those of `Tally.write`, but stream keys are in the order of their
        codes.
        """
        # The stream keys by owner, and the place of each key's code among them.
        keys = np.unique(np.concatenate(self._keys))
        owner_of_key = owner_of[keys]
        by_owner = np.argsort(owner_of_key, kind="stable")
        keys = keys[by_owner]
        bounds = np.searchsorted(owner_of_key[by_owner], np.arange(owners + 1))
        place_of = np.empty(int(keys.max()) + 1, dtype=np.int64)
        place_of[keys] = np.arange(len(keys))
        # All rows by key, label and user: equal ones follow each other, and the first stays.
        pairs = np.concatenate(self._pairs)
        row_users = np.concatenate(self._users)
        places = place_of[(pairs >> kernels.KEY_BITS).astype(np.int64)]
        order = np.lexsort((row_users[:, 1], row_users[:, 0], pairs, places))
        pairs = pairs[order]
        row_users = row_users[order]
        is_same_user = (row_users[1:] == row_users[:-1]).all(axis=1)
        is_first = np.ones(len(pairs), dtype=np.bool_)
        is_first[1:] = (pairs[1:] != pairs[:-1]) | ~is_same_user
        pairs = pairs[is_first]
        rows = len(pairs)
        out.pairs[:rows] = pairs
        out.labels[:rows] = (pairs & np.uint64(kernels.NO_LABEL)).astype(np.int64)
        out.counts[:rows] = 1
        users[:rows] = row_users[is_first]
        starts = np.searchsorted(places[order][is_first], np.arange(len(keys) + 1))
        names = [self.key_names.name(code) for code in keys.tolist()]
        return names, bounds.tolist(), starts


AnyTally = Tally | UserTally
# What was counted in a lane and tick.
Counted = tuple[Lane, int, AnyTally]


class Tallies:
    """Open tallies of one source partition, by lane and tick. Sensitive."""

    def __init__(self) -> None:
        # One for each pair of vocabularies: full ones are replaced. Only the last is added to.
        self._open: dict[tuple[Lane, int], list[AnyTally]] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    def __repr__(self) -> str:
        return f"Tallies({len(self._open)} ticks)"

    @property
    def rows(self) -> int:
        return sum(len(tally) for tallies in self._open.values() for tally in tallies)

    def add(
        self,
        columns: EventColumns,
        lane: Lane,
        tick: int,
        events: Longs,
        amounts: Longs,
        users: Words | None = None,
    ) -> None:
        """Count one tick's `events` (k,) of a batch in a lane; `amounts` are as in `Tally.add`.

        `users` (n, 2) are those of all events, for lanes that name them.
        """
        tallies = self._open.setdefault((lane, tick), [])
        # Codes are valid only with their own vocabularies.
        names = columns.key_names, columns.label_names
        if not tallies or (tallies[-1].key_names, tallies[-1].label_names) != names:
            tallies.append(UserTally(*names) if lane.names_users else Tally(*names))
        tally = tallies[-1]
        if isinstance(tally, Tally):
            tally.add(columns, events, amounts, lane.max_items, lane.max_count)
        elif users is not None:
            tally.add(columns, events, amounts, users)
        if not tallies[-1]:  # the view skips all of them
            tallies.pop()
        if not tallies:
            del self._open[lane, tick]

    def take(self) -> list[Counted]:
        """Return all tallies with their lanes and ticks, and begin anew."""
        taken = self._open
        self._open = {}
        return [
            (lane, tick, tally)
            for (lane, tick), tallies in taken.items()
            for tally in tallies
        ]


class ContributionBuilder:
    """Makes rows, with tags, for the owners from one source partition's tallies.

    `NoiseKey.tag_state` keys the tags. Not thread-safe.
    """

    def __init__(self, tag_state: Callable[[str], State]) -> None:
        self._tags = ViewDigests(tag_state)
        # By vocabulary and number of owners.
        self._owner_of: dict[tuple[Vocabulary, int], Codes] = {}

    def build(self, counted: Sequence[Counted], owners: Owners) -> list[list[Rows]]:
        """Return the rows for each owner, in the order of `counted`: (lane, tick, tally)."""
        groups = (self._rows(counted, group, owners) for group in _group(counted))
        shares: list[list[Rows]] = [[] for _ in range(owners.number)]
        for _index, owner, rows in sorted(
            chain.from_iterable(groups), key=itemgetter(0)
        ):
            shares[owner].append(rows)
        # Forget vocabularies that have been replaced.
        used = {tally.key_names for _lane, _tick, tally in counted}
        self._owner_of = {
            (names, number): known
            for (names, number), known in self._owner_of.items()
            if names in used
        }
        return shares

    def _rows(
        self, counted: Sequence[Counted], group: Sequence[int], owners: Owners
    ) -> Iterator[tuple[int, int, Rows]]:
        """Yield (index in `counted`, owner, rows) of a group of tallies with equal vocabularies.

        `group` has their indices in `counted`, which is as in `build`.
        """
        first_lane, _tick, first = counted[group[0]]
        key_names = first.key_names
        label_names = first.label_names
        # First the rows of all tallies end to end, so that labels and tags are looked up once.
        room = sum(len(counted[index][2]) for index in group)
        out = kernels.LabelRows(
            np.empty(room, dtype=np.uint64),
            np.empty(room, dtype=np.int64),
            np.empty(room, dtype=np.int64),
        )
        has_users = any(counted[index][0].names_users for index in group)
        users = np.empty((room if has_users else 0, 2), dtype=np.uint64)
        used = 0
        written = []
        for index in group:
            lane, tick, tally = counted[index]
            # How many owners there are in this tick.
            number = owners.at(lane.end_ms(tick))
            free = kernels.LabelRows(
                out.pairs[used:], out.labels[used:], out.counts[used:]
            )
            owner_of_key = self._owners(key_names, number)
            names, bounds, starts = (
                tally.write(owner_of_key, number, free)
                if isinstance(tally, Tally)
                else tally.write(owner_of_key, number, free, users[used:])
            )
            # Where each owner's keys begin, and where each key's rows begin in `out`.
            written.append((index, number, names, bounds, starts + used))
            used += int(starts[-1])
        texts = label_names.texts(out.labels[:used])
        # Tags depend on the texts alone, so the view of any of these lanes will do.
        digests = self._tags.of(first_lane.view, key_names, label_names)
        tags = digests.of(out.pairs[:used], texts)
        # Then each tally's rows, cut by owner: those of its keys `start` to `stop` are a `span`.
        for index, number, names, bounds, starts in written:
            lane, tick, _tally = counted[index]
            for owner, (start, stop) in enumerate(pairwise(bounds)):
                if stop > start:
                    span = slice(int(starts[start]), int(starts[stop]))
                    rows = Rows(
                        lane=lane,
                        tick=tick,
                        names=names[start:stop],
                        starts=starts[start : stop + 1] - span.start,
                        labels=texts.part(span.start, span.stop),
                        counts=out.counts[span],
                        tags=tags[span],
                        users=users[span] if lane.names_users else None,
                    )
                    if lane.split == 1:
                        yield index, owner, rows
                        continue
                    # `owner` has the first part of these keys, the next owners have the others.
                    for part, part_rows in enumerate(rows.parts()):
                        yield index, part_owner(owner, part, number), part_rows

    def _owners(self, names: Vocabulary, owners: int) -> Codes:
        """Return the owner of every stream key of a vocabulary, (k,) by code.

        `owners` is how many there are. Kept for later: vocabularies only grow.
        """
        owner_of_key = self._owner_of.get((names, owners), _NO_OWNERS)
        if len(owner_of_key) < len(names):
            more = [
                owner_of(names.name(code), owners)
                for code in range(len(owner_of_key), len(names))
            ]
            owner_of_key = np.concatenate(
                [owner_of_key, np.array(more, dtype=np.int32)]
            )
            self._owner_of[names, owners] = owner_of_key
        return owner_of_key


def _group(counted: Sequence[Counted]) -> Iterator[list[int]]:
    """Yield the indices of tallies with the same vocabularies, about GROUP_ROWS rows together."""
    groups: dict[tuple[Vocabulary, Vocabulary], list[int]] = {}
    rows: dict[tuple[Vocabulary, Vocabulary], int] = {}
    for index, (_lane, _tick, tally) in enumerate(counted):
        names = tally.key_names, tally.label_names
        groups.setdefault(names, []).append(index)
        rows[names] = rows.get(names, 0) + len(tally)
        if rows[names] >= GROUP_ROWS:
            yield groups.pop(names)
            del rows[names]
    yield from groups.values()


def by_tick(times: Longs, effective: Longs, lane: Lane) -> tuple[Longs, list[Run]]:
    """Sort a batch's events by the tick of `lane` in which each counts.

    `times` (n,) are those of the events, `effective` (n,) those at which they count: later for late
    events. Return each event's tick (n,), 0 if its own time is before tick 1; and the ticks from 1
    on that have events, with their indices.
    """
    n = len(times)
    ticks = np.empty(n, dtype=np.int64)
    # Where a run of events in one tick begins, if these are ascending.
    begins = np.empty(n, dtype=np.int64)
    runs_found, ascending = kernels.ticks_of(
        readonly_contiguous(times),
        readonly_contiguous(effective),
        lane.start_ms,
        lane.tick_ms,
        ticks,
        begins,
    )
    begins = begins[:runs_found]
    order = np.arange(n)
    ordered = ticks
    if not ascending:
        order = np.argsort(ticks, kind="stable")
        ordered = ticks[order]
        begins = np.flatnonzero(np.diff(ordered, prepend=-1))
    stops = [*begins[1:].tolist(), n]
    runs = zip(ordered[begins].tolist(), begins.tolist(), stops, strict=True)
    return ticks, [(tick, order[start:stop]) for tick, start, stop in runs if tick >= 1]
