"""Stage 1 without Kafka: turns events of one source partition into messages for the owners.

The watermark W is the position in event time (`watermark.py`). An event goes into the tick of its
own time if that is open, else into the open tick that holds W. So its tick depends only on the
partition's order and the ticks already closed, never on where a batch or commit ended. For events
re-keyed by user (`rekey.py`), the origin partition's order and W decide: late events carry their
time, and marks advance W here.

A lane is a tick grid with bounds and a view (what is read of an event); all histograms with equal
ones share it. An owner is a partition of the contributions topic, with a share of the stream keys.
A batch has n events and m labels (names of items), concatenated; codes number texts.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from workers.arrays.tallies import bound_events, multiply_numbers
from workers.arrays.texts import readonly_contiguous
from workers.arrays.types import Longs, Words
from workers.events.columns import (
    EventColumns,
    Events,
    ViewDigests,
    pair_state,
    pairs_of,
)
from workers.mechanisms.config.histogram import Lane
from workers.mechanisms.noise.keyed import NoiseKey
from workers.pipeline.contributions import Message, messages
from workers.pipeline.growth.owners import Owners
from workers.pipeline.ledger_blocks import StoredPairs
from workers.pipeline.source_sketches import Sketches, lane_name
from workers.pipeline.tallies import ContributionBuilder, Run, Tallies, by_tick
from workers.pipeline.users import Batch, Users
from workers.pipeline.watermark import NO_LIMIT, Watermark, late_events
from workers.runtime.sizes import VALUE_BYTES, Change

_NO_SUMS: Mapping[Lane, Lane] = MappingProxyType({})


class Intake(Watermark):
    """Contributions of one source partition since its last commit, and its watermark. Sensitive."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        grace_ms: int,
        key: NoiseKey,
        stored: StoredPairs | None = None,
        *,
        count_lane_of: Mapping[Lane, Lane] = _NO_SUMS,
        max_behind_ms: int | None = None,
        moves: Sequence[int] = (),
        by_clock: bool = False,
    ) -> None:
        """`stored` holds committed user pairs and sketches; without it, they are kept in memory.

        A user pair is a user's stream key and label, which counts against the user's bounds once an
        epoch. `count_lane_of` maps every lane of sums to its lane of counts, which comes before it
        in `lanes`: a number is added as often as its item counts. `max_behind_ms`, `moves`,
        `by_clock`: as in `Watermark`.
        """
        super().__init__(lanes, grace_ms, max_behind_ms, moves, by_clock=by_clock)
        self._count_lane_of = count_lane_of
        self._key = key
        self._builder = ContributionBuilder(key.tag_state)
        # Digests of stream key and label, by which users' pairs are known.
        self._pairs = ViewDigests(pair_state)
        self._users = Users(
            [lane for lane in lanes if lane not in count_lane_of], stored
        )
        # First time (ms) at which an event counted; owners take the first tick from it.
        self.first: int | None = None
        self._tallies = Tallies()
        self._sketches = Sketches()
        self._stored = stored
        # Numbers of events, for the metrics.
        self._counted: Counter[Lane] = Counter()
        self._late: Counter[Lane] = Counter()

    def restore(self, watermark: int | None, first: int | None) -> None:
        """Begin at the watermark and first time of the last commit; None where there is none.

        A partition that joins has a watermark to begin at, too. What was counted since the commit
        is dropped: the shard reads those events again.
        """
        self.resume(watermark)
        self.first = first
        # With `by_clock`, ticks are published from the first watermark on, even without events.
        if first is None and self.by_clock:
            self.first = self.watermark
        self._tallies = Tallies()
        self._counted.clear()
        self._late.clear()
        lanes = {lane_name(lane): lane for lane in self._lanes if lane.sketch}
        self._sketches.restore(self._stored, lanes)
        # Otherwise nothing was committed, so nothing is stored.
        if watermark is not None:
            self._users.restore(watermark)

    def add(
        self, events: Events, read_ms: int | None = None, came_late: Longs | None = None
    ) -> Longs:
        """Count a batch in order; return indices of events too far behind to count, (k,).

        Every lane adds each event's labels to the tally, or sketch, of the tick in which the event
        counts. `read_ms` is the wall clock of the read, which limits the watermark; None in replay.
        `came_late` (n,), only for re-keyed events: for an event late at its origin the origin's
        watermark, for others any smaller time than their own.
        """
        if not len(events):
            return np.empty(0, dtype=np.int64)
        watermark_before = self.watermark
        effective = self._effective_times(events.times, read_ms, came_late)
        behind = np.flatnonzero(self.too_far_behind(events.times, effective))
        if len(behind):
            good = np.delete(np.arange(len(events)), behind)
            if not len(good):
                return behind
            events = events.select(good)
            effective = effective[good]
        is_rekeyed = came_late is not None
        self._note_first(effective, watermark_before, read_ms, rekeyed=is_rekeyed)
        # By grid, which most lanes share: each event's tick, (tick, its events), and late events.
        grids: dict[tuple[int, int], tuple[Longs, list[Run], Longs]] = {}
        # By lane: how often each label counts, for the lane of sums that comes later.
        bounded: dict[Lane, Longs] = {}
        for lane in self._lanes:
            grid = lane.start_ms, lane.tick_ms
            if grid not in grids:
                late = late_events(events.times, effective, lane)
                grids[grid] = (*by_tick(events.times, effective, lane), late)
            ticks, runs, late = grids[grid]
            columns = events.views[lane.view]
            amounts = self._bounded_amounts(lane, events, ticks, bounded)
            for tick, rows in runs:
                if lane.sketch:
                    self._sketches.add(columns, lane, tick, rows, amounts)
                else:
                    users = events.users
                    self._tallies.add(columns, lane, tick, rows, amounts, users)
            if lane not in self._count_lane_of:
                self._note_counted(lane, columns, ticks, late)
        return behind

    def _effective_times(
        self, times: Longs, read_ms: int | None, came_late: Longs | None
    ) -> Longs:
        """Return the time (n,) at which each event counts: its own, or a later watermark.

        Events move the watermark, except re-keyed ones, which bring that of their origin along.
        """
        if came_late is None:
            return self.advance_by(times, read_ms)
        effective: Longs = np.maximum(times, came_late)
        if self.watermark is None:
            return effective
        return np.maximum(effective, self.watermark)

    def _note_first(
        self,
        effective: Longs,
        watermark_before: int | None,
        read_ms: int | None,
        *,
        rekeyed: bool,
    ) -> None:
        """Set `first` to the first time at which an event counts, at most that of the read.

        `watermark_before` is that before the batch. Origins of re-keyed events have watermarks of
        their own, so a later batch may hold an earlier event; else the first event decides.
        """
        latest = NO_LIMIT if read_ms is None else read_ms
        if rekeyed:
            least = min(int(effective.min()), latest)
            self.first = least if self.first is None else min(least, self.first)
        elif self.first is None:
            first = min(int(effective[0]), latest)
            # If the clock was set back, `latest` may be before the watermark, where nothing counts.
            if watermark_before is not None:
                first = max(watermark_before, first)
            self.first = first

    def _bounded_amounts(
        self, lane: Lane, events: Events, ticks: Longs, bounded: dict[Lane, Longs]
    ) -> Longs:
        """Return what each of the m labels adds in a lane, (m,), or (0,) if each adds 1.

        With bounds on users they are applied here; those on an event are applied by the tallies.
        `bounded` passes what a lane counts on to its lane of sums, which comes later and multiplies
        it by the events' numbers.
        """
        columns = events.views[lane.view]
        count_lane = self._count_lane_of.get(lane)
        if count_lane is not None:
            counts = events.views[count_lane.view]
            return _multiplied(columns, counts, bounded[count_lane])
        if lane.max_items_per_user is not None:
            # Events that the view leaves out must not use up their user's bound: treat them as
            # events before tick 1.
            if columns.included is not None:
                ticks = np.where(columns.included, ticks, 0)
            bounded[lane] = self._bound_users(lane, ticks, columns, events.users)
            return bounded[lane]
        # Only a lane of sums needs these: the tallies bound what an event counts by themselves.
        if lane in self._count_lane_of.values():
            bounded[lane] = _bounded(lane, columns)
        return columns.amounts

    def _note_counted(
        self, lane: Lane, columns: EventColumns, ticks: Longs, late: Longs
    ) -> None:
        """Add to the numbers of events that a lane counted, and of those that came late.

        `ticks` (n,) are 0 for events before tick 1, which do not count; `late` are the indices of
        late ones that do. Neither counts if the lane's view leaves it out.
        """
        counts = ticks > 0
        if columns.included is not None:
            counts &= columns.included
            late = late[columns.included[late]]
        self._counted[lane] += int(np.count_nonzero(counts))
        self._late[lane] += len(late)

    def take_counted(self) -> dict[Lane, tuple[int, int]]:
        """Return how many events every lane counted since the last call, and how many came late."""
        counted = self._counted
        late = self._late
        self._counted = Counter()
        self._late = Counter()
        return {lane: (number, late[lane]) for lane, number in counted.items()}

    def _bound_users(
        self, lane: Lane, ticks: Longs, events: EventColumns, users: Words | None
    ) -> Longs:
        """Return how often every label counts (m,), bounded for each user in its epoch.

        `ticks` (n,) are below 1 for events that do not count.
        """
        if users is None:
            raise ValueError("events without users for a lane that bounds them")
        # Numbered from 0, as by `Lane.epoch`. Without a horizon there is only epoch 0.
        horizon = lane.horizon or NO_LIMIT
        epochs = np.where(ticks < 1, -1, (ticks - 1) // horizon)
        # A row for every label, with the key of its event.
        labels = np.diff(events.ends, prepend=0)
        keys = np.repeat(events.keys, labels)
        digests = self._pairs.of(lane.view, events.key_names, events.label_names)
        # The first word of a digest is enough to tell the pairs of one user apart.
        pairs = np.ascontiguousarray(digests.of(pairs_of(keys, events.labels))[:, 0])
        batch = Batch(
            users=users,
            first_row=events.ends - labels,
            row_count=labels,
            pairs=pairs,
            amounts=_bounded(lane, events),
        )
        return self._users.charge(lane, epochs, batch)

    @property
    def empty(self) -> bool:
        """Whether nothing is to be sent that was counted."""
        return not self._tallies and not self._sketches

    @property
    def rows(self) -> int:
        """How many rows the tallies have, a measure of the work of the next commit."""
        return self._tallies.rows

    @property
    def full(self) -> bool:
        """Whether the users in memory are so many that a commit is due."""
        return self._users.full

    def sketch_changes(self) -> list[Change]:
        """Return the changes of sketches to store with the messages that were taken last."""
        return self._sketches.changes()

    def user_changes(self) -> list[Change]:
        """Return the next commit's changes of users: new pairs, and deletions of expired epochs.

        An epoch has expired when the watermark has passed it: none of its ticks is open.
        """
        changes = self._users.changes()
        if self.watermark is not None:
            changes += self._users.expired(self.watermark)
        return changes

    def take_messages(
        self,
        *,
        source: int,
        sequences: list[int],
        offset: int,
        sources: int = 0,
        users_from: int | None = None,
        owners: Owners | None = None,
        joining: bool = False,
        ending: bool = False,
        max_bytes: int | None = VALUE_BYTES,
    ) -> list[tuple[int, Message]]:
        """Return a commit's (owner partition, message) pairs, and forget what they carry.

        If a tick has closed, or partitions are `joining`, every owner gets a message, else only
        owners with contributions do. Sketches are sent once their tick has closed, or if the input
        is `ending`.

        Args:
            source: this source partition's number.
            sequences: by owner, the number of its next message; advanced.
            offset: where reading resumes after this commit.
            sources, users_from, owners: as in `Message`; without `owners`, their number has never
                changed.
        """
        owners = Owners(len(sequences)) if owners is None else owners
        closes = self.has_closed_tick()
        counted = self._tallies.take()
        # A closed tick implies a watermark. None takes all sketches.
        if ending or (closes and self.watermark is not None):
            counted += self._sketches.take(None if ending else self.watermark)
        shares = self._builder.build(counted, owners)
        pages_by_owner: list[tuple[int, Message]] = []
        for owner, share in enumerate(shares):
            if not (closes or joining or share):
                continue
            pages = messages(
                share,
                source=source,
                sequence=sequences[owner],
                offset=offset,
                watermark=self.watermark,
                first=self.first,
                key=self._key.fingerprint,
                sources=sources,
                users_from=users_from,
                owners=owners,
                max_bytes=max_bytes,
            )
            sequences[owner] += len(pages)
            pages_by_owner += [(owner, page) for page in pages]
        # If the transaction fails, the shard begins again from what is stored.
        self.note_commit()
        self._users.committed(self.watermark)
        return pages_by_owner


def _bounded(lane: Lane, events: EventColumns) -> Longs:
    """Return how often every label of an event counts (m,), by the bounds on an event alone."""
    # A max_count of 0 is for unique users: a label counts for its user, once.
    bounded = np.empty(len(events.labels), dtype=np.int64)
    ends = readonly_contiguous(events.ends)
    amounts = readonly_contiguous(events.amounts)
    bound_events(ends, amounts, lane.max_items, max(lane.max_count, 1), bounded)
    return bounded


def _multiplied(numbers: EventColumns, counts: EventColumns, counted: Longs) -> Longs:
    """Return the steps to add for every label of a view with numbers: number times count.

    `numbers` and `counts` are the same items read in two views; `counted` has their bounded counts.
    """
    out = np.empty(len(numbers.labels), dtype=np.int64)
    ends_of_counts = readonly_contiguous(counts.ends)
    ends = readonly_contiguous(numbers.ends)
    steps = readonly_contiguous(numbers.amounts)
    if not multiply_numbers(ends_of_counts, counted, ends, steps, out):
        raise ValueError("an event's items differ between its counts and its numbers")
    return out
