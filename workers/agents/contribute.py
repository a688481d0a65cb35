"""The contribute shard: decodes and bounds the events of one source partition, and closes ticks.

What is in memory was read since the last commit: a worker that takes over reads it again.

The sums of a commit go to the owner partitions, the partitions of the contributions topic, each of
which has a share of the stream keys. A lane is the tick grid and the bounds that several histograms
share, and with them these sums. With `privacy.rekey` events come from a topic to which they were
sent on by user; origins are the partitions of the events topics that they came from. Owners and
source partitions *grow* when partitions are added to their topics: source partition 0 commits from
when on the new ones count, and every worker restarts its run to know them.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec
import numpy as np

from workers.agents.source_shard import EventsStage, SourceShard
from workers.events.log import Format
from workers.events.reading import Declared, EventReader, SourceReader
from workers.events.schemas import SchemaWaiter
from workers.kafka.placement import Placement
from workers.kafka.records import Batch, Outgoing
from workers.kafka.shard import Assignment
from workers.mechanisms.config.histogram import Lane
from workers.mechanisms.config.ticks import TickGrid
from workers.mechanisms.config.views import RECORD_KEY
from workers.mechanisms.noise.keyed import NoiseKey
from workers.pipeline.growth.epochs import NOTICE_MS, epochs_of_users, next_epoch
from workers.pipeline.growth.owners import Owners
from workers.pipeline.growth.sources import (
    VERSION,
    Place,
    SourceProgress,
    refuse_other_count,
)
from workers.pipeline.intake import Intake
from workers.pipeline.rekey_markers import Origin, Origins, restore_originals
from workers.pipeline.watermark import behind_rejects
from workers.runtime.errors import SourcesGrown, StateRefused
from workers.runtime.gil_lock import GilLock
from workers.runtime.metrics import CONTRIBUTE
from workers.runtime.printing import iso_time


class ContributeProgress(SourceProgress, kw_only=True, frozen=True, omit_defaults=True):
    """Progress of one source partition.

    `first` is the earliest time, ms, at which an event counted; None before any event. `sequences`
    has the number of the next message to each owner. `origins` is the progress of every origin;
    None without re-keying.
    """

    first: int | None
    sequences: list[int]
    origins: list[Origin] | None = None


_DECODER = msgspec.json.Decoder(ContributeProgress)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContributeStage(EventsStage):
    """Shared by the stage-1 shards; `contributions` has a partition for each of `owners`.

    `epochs` are the tick grids of all histograms. `names` has the histograms of every lane,
    `declared` the stream keys served in each view. `count_lane_of` maps each lane of sums to the
    lane that counts the same items. `origins` is how many origins there were at first; None without
    re-keying. `by_clock`: only the clock closes ticks, as in `Watermark`.
    """

    contributions: str
    owners: Owners
    epochs: Sequence[TickGrid]
    reader: EventReader
    declared: Declared
    count_lane_of: Mapping[Lane, Lane]
    key: NoiseKey
    origins: int | None = None
    by_clock: bool = False
    names: Mapping[Lane, Sequence[str]] = field(
        default_factory=lambda: MappingProxyType({})
    )


class ContributeShard(SourceShard):
    """Shard of one source partition: commits the sums of its events to their owners."""

    stage = CONTRIBUTE
    _stream: ContributeStage

    def __init__(
        self,
        assignment: Assignment,
        source: Place,
        stream: ContributeStage,
        *,
        make_format: Callable[[SchemaWaiter], Format | None] = lambda _: None,
        gil_lock: GilLock | None = None,
    ) -> None:
        """Count the events of `source`. `make_format` returns the format of values; None: JSON.

        The worker's shards share `gil_lock`.
        """
        events = stream.events
        lanes = stream.lanes
        self._intake = Intake(
            lanes,
            events.grace_ms,
            stream.key,
            assignment.store,
            count_lane_of=stream.count_lane_of,
            max_behind_ms=stream.max_behind_ms,
            moves=stream.sources.moves,
            by_clock=stream.by_clock,
        )
        # When this shard was opened, by the wall clock.
        self._opened_ms = 0
        super().__init__(assignment, source, stream, self._intake)
        # If users are bounded, reject the events of users who belong in another partition.
        placement = None
        if any(lane.max_items_per_user for lane in lanes):
            placements = stream.sources.placements
            placement = Placement(events.partitioner, source.partition, placements)
        form = make_format(self)
        self._reader = SourceReader(stream.reader, stream.declared, placement, form)
        self._origins = None if stream.origins is None else Origins(stream.origins)
        self._owners = stream.owners
        # By owner: the number of the next message.
        self._sequences = [0] * stream.owners.number
        # How many owners there are to be, if others asked for more; else 0.
        self._wanted_owners = 0
        self.next_topic = stream.contributions
        self._gil_lock = gil_lock or GilLock()
        self._new_events = 0

    def restore(self) -> None:
        """Load the state, and refuse settings by which it would be continued wrongly.

        So where users or stream keys are to move in the middle of an epoch of a histogram, such as
        a new one: what an epoch bounds and adds up must stay in one place.
        """
        self._opened_ms = time.time_ns() // 1_000_000
        self._restore()
        stream = self._stream
        of_users = epochs_of_users(stream.lanes)
        for at, partitions in stream.sources.placements:
            # A number that holds from 0 on has always held: no users moved.
            if at > 0 and self._splits_epoch(of_users, at):
                raise StateRefused(
                    f"users move to {partitions} partitions of {stream.sources} at {iso_time(at)}, in the middle of an epoch of a "
                    "histogram that bounds users: add it, or change its epochs, after that"
                )
        for number, at in self._owners.grown:
            if self._splits_epoch(stream.epochs, at):
                raise StateRefused(
                    f"stream keys move to {number} owner partitions at {iso_time(at)}, in the middle of an epoch of a "
                    "histogram: add it, or change its epochs, after that"
                )

    def _splits_epoch(self, epochs: Sequence[TickGrid], at: int) -> bool:
        """Return whether a time to come, `at` ms, is where not every grid begins an epoch."""
        mark = self._intake.watermark
        return (mark is None or at > mark) and next_epoch(epochs, at - 1) != at

    def _restore(self) -> None:
        """Load the stored progress; StateRefused if it is of other topics, owners or `rekey`."""
        progress = self._stored(_DECODER)
        if progress is None:
            # Nothing is stored yet. A partition that joined later begins at a watermark.
            self._intake.restore(self._place.watermark, None)
            return
        stored = progress.origins
        origins = self._origins
        if (stored is None) != (origins is None):
            setting, before = (
                ("true", "without") if stored is None else ("false", "with")
            )
            raise StateRefused(
                f"privacy.rekey = {setting}, but the state was made {before} it: take a new worker name (a new stream, charged again)"
            )
        if stored is not None and origins is not None:
            # The state may have more origins, which joined after the first commit, but never fewer.
            if len(stored) < len(origins.all):
                refuse_other_count("the events topics", len(origins.all), len(stored))
            origins.all = list(stored)
        self._check_sources(progress)
        self._check_owners(progress.owners or Owners(len(progress.sequences)))
        self._sequences = list(progress.sequences)
        # Messages to owners that are new to the state are numbered from 0.
        self._sequences += [0] * (self._owners.number - len(self._sequences))
        self._intake.restore(progress.watermark, progress.first)
        self.offset = progress.offset

    def _check_owners(self, stored: Owners) -> None:
        """Compare the state's owner partitions with those that this run was started with.

        Raise SourcesGrown if the state has further growths: a restart reads them. Raise
        StateRefused if the first number or a growth that both have is another.
        """
        started = self._owners
        topic = f"the contributions topic {self._stream.contributions}"
        refuse_other_count(topic, started.first, stored.first)
        if len(stored.grown) > len(started.grown):
            raise SourcesGrown(f"{stored.number} owner partitions are counted")
        if stored.grown != started.grown[: len(stored.grown)]:
            raise StateRefused(
                f"{self.store.changelog.topic}[{self.partition}]: the owner partitions have grown otherwise than "
                "source partition 0 says: was it restored from a copy?"
            )

    def grow_owners(self, number: int) -> None:
        """Ask source partition 0 to announce more owners; others ignore it. Thread-safe."""
        if self.partition == 0:
            self._wanted_owners = number

    def idle(self) -> None:
        if self._wanted_owners:
            self._grow_owners()
        super().idle()

    def _grow_owners(self) -> None:
        """Commit that there will be more owners, then raise SourcesGrown, for a restart.

        They begin where epochs of all histograms do, and never before a growth that is already set.
        """
        number = self._wanted_owners
        self._wanted_owners = 0
        owners = self._owners
        after_ms = max([self._notice_ms(), *(at for _, at in owners.grown)])
        at_ms = next_epoch(self._stream.epochs, after_ms)
        # The number must be a multiple, so that each new owner takes over from a single other one.
        # Nothing can be committed before anything is read (no offset): growth is requested again
        # later.
        grows = number > owners.number and number % owners.number == 0
        if self.offset is None or at_ms is None or not grows:
            return
        # The producer must know the new partitions, to which the commit sends messages.
        self.transactions.look_up()
        self._owners = Owners(owners.first, (*owners.grown, (number, at_ms)))
        self._sequences += [0] * (number - owners.number)
        # Send a message to every owner, so that each learns of the growth.
        self._joining = True
        self._commit(self.offset)
        raise SourcesGrown(
            f"{number} owner partitions are counted from {iso_time(at_ms)} on"
        )

    def _notice_ms(self) -> int:
        """Return the earliest time, ms, at which something announced now may take effect.

        No event has counted after that time, even if it was dated ahead, and by then all workers
        have noticed what is committed now.
        """
        return (
            time.time_ns() // 1_000_000 + self._stream.events.max_ahead_ms + NOTICE_MS
        )

    def process(self, batch: Batch) -> None:
        """Add a batch's events to the sums and reject unusable records; commit if that is due."""
        now_ms = time.time_ns() // 1_000_000
        # Events dated later are rejected as too far ahead: of the clock or, if only the clock
        # closes ticks, of the end of the first open tick.
        latest_ms = self._intake.latest_ms(self._opened_ms, now_ms)
        latest_ms += self._stream.events.max_ahead_ms
        records = batch.records
        # Of re-keyed records: the origin's watermark at late ones, else NO_TIME.
        late = None
        origins = self._origins
        if origins is not None:
            user_is_key = self._stream.events.user == RECORD_KEY
            records, late = restore_originals(records, user_is_key=user_is_key)
        for reading in self._reader.read(records, latest_ms):
            columns = reading.events
            rejects = reading.rejects
            self.metrics.declined.inc(reading.declined)
            if origins is not None:
                part = range(reading.start, reading.stop)
                rejects = origins.take(records, part, rejects, self._place)
            behind = self._intake.add(
                columns, now_ms, None if late is None else late[columns.index]
            )
            rejects += behind_rejects(columns, behind)
            relevant = int(np.count_nonzero(columns.in_any_view)) + len(rejects)
            # The records as they were read, so that they can be sent back.
            self._reject(batch.records, rejects, relevant)
            # Re-keyed events move no watermark; the marks among them do.
            if origins is not None:
                self._intake.advance_to(origins.watermark)
            self._new_events += len(columns) - len(behind)
            self._done(batch, reading.stop, enough=self._intake.full)

    def wants_end(self, now_ms: int) -> bool:
        """Return False for re-keyed events, whose ticks origins close; else as the base does."""
        return self._origins is None and super().wants_end(now_ms)

    def _users_from(self) -> int | None:
        """Return the time, ms, at which users move to joining partitions; None if none do.

        Epochs of all histograms that bound users begin then, and all workers know of it by then.
        Re-keyed users never move: the by-user topic keeps its partitions.
        """
        stream = self._stream
        bounds_users = any(lane.max_items_per_user is not None for lane in stream.lanes)
        if self._origins is not None or not bounds_users:
            return None
        return next_epoch(epochs_of_users(stream.lanes), self._notice_ms())

    def _commit(self, offset: int) -> None:
        """Send the sums since the last commit to their owners, and store where to go on."""
        intake = self._intake
        topic = self._stream.contributions
        # Call these before `take_messages`, which treats everything as committed, and
        # `sketch_changes` after it, to delete the stored sketches that it took.
        closed = intake.ticks_closed()
        users = intake.user_changes()
        counted = intake.take_counted()
        with self._gil_lock.for_rows(intake.rows):
            pages = intake.take_messages(
                source=self.partition,
                sequences=self._sequences,
                offset=offset,
                sources=len(self._sources),
                users_from=self._sources.users_from,
                owners=self._owners,
                joining=self._joining,
            )
            messages = [
                Outgoing(topic, owner, None, message.encoded())
                for owner, message in pages
            ]
            sketches = intake.sketch_changes()
        progress = ContributeProgress(
            version=VERSION,
            offset=offset,
            watermark=intake.watermark,
            first=intake.first,
            sequences=self._sequences,
            sources=self._sources.first_count,
            topic_id=self._place.topic.id,
            state_id=self._state_id,
            # Stored only by the partition that decides when others join.
            joined=self._sources.joined if self.partition == 0 else (),
            owners=self._owners,
            origins=None if self._origins is None else self._origins.all,
        )
        self._transact(progress, messages, [*users, *sketches])
        self.metrics.events.inc(self._new_events)
        self.metrics.ticks_closed.inc(closed)
        for lane, (number, late) in counted.items():
            for name in self._stream.names.get(lane, ()):
                self.metrics.count_events(name, number, late)
        self._new_events = 0
