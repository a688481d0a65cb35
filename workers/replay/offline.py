"""Replay past events through the worker's core without Kafka. For the operator: exact data.

Like the worker, it has one `Intake`, which bounds and sums events, per source partition; a single
owner partition publishes all stream keys, from the sums that a `Merge` collects. A lane is a way to
bound and sum events by tick, for all histograms with equal bounds. Time comes from the data alone,
as the watermark, before which no event counts any more: a tick is released when that of every
source partition has passed it, and the end of the input closes the last one. From the same records
and mechanism ids, a worker produces the same output to the byte, with one exception: at the end of
a partition, a worker also closes ticks by the clock, so an event that arrives after that counts in
a later tick there.

The mechanism ids are separate ("replay"), so a backtest never draws production's noise. The same
input, settings and key give the same bytes on every machine.
"""

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import NamedTuple, Protocol

import numpy as np

from workers.arrays.tag_index import Rows
from workers.arrays.types import Longs, Tags
from workers.mechanisms.config.histogram import Lane
from workers.mechanisms.ledger import Contributions, rows_by_key
from workers.mechanisms.mechanism import Answers, Items, Mechanism, Release
from workers.mechanisms.noise.keyed import NoiseKey
from workers.pipeline import factory
from workers.pipeline.contributions import Message
from workers.pipeline.growth.owners import parts_of
from workers.pipeline.histogram import Histogram
from workers.pipeline.intake import Intake
from workers.pipeline.merge import Merge, Released
from workers.pipeline.snapshots import ReleasedTick, Snapshot
from workers.pipeline.watermark import BACKLOG_TICKS_MAX
from workers.replay.gaps import EventTimes
from workers.replay.interrupts import Interrupts
from workers.replay.source import EventBatch, Source
from workers.runtime.errors import StateRefused
from workers.runtime.process import keep_freed_memory
from workers.settings.settings import Settings
from workers.settings.times import when


class ReplayMerge(Merge):
    """Merge whose input may end; it refuses a huge gap of ticks: no clock bounds a file's times."""

    # When the last tick of each lane ends; None until the input has ended.
    _ends: dict[Lane, int] | None = None

    def _begin(self, lane: Lane, complete: int) -> None:
        """Start those histograms of a lane that have not begun; refuse too many ticks to release.

        `complete`, ms, is the time up to which ticks are complete.
        """
        super()._begin(lane, complete)
        for histogram in self._lanes[lane]:
            next_tick = histogram.next
            grid = histogram.grid
            if (
                next_tick is not None
                and (gap := grid.tick_at(complete) - next_tick) > BACKLOG_TICKS_MAX
            ):
                raise StateRefused(
                    f"histogram {histogram.name!r}: {gap:,} ticks are to be published after "
                    f"{when(grid.start(next_tick))} at once, more than {BACKLOG_TICKS_MAX:,}: are all "
                    "times of the events right? If they are, set start later or tick wider"
                )

    def end_of_input(self, until_ms: int | None = None) -> None:
        """Note that no event follows: this completes the tick that holds the watermark, too.

        That is done in every lane if the tick ends by `until_ms`. A worker would keep the tick open
        until the watermark has passed its end.
        """
        if (complete := self.complete_ms) is None:
            return
        self._ends = {}
        for lane in self._lanes:
            passed = (complete - lane.start_ms) // lane.tick_ms + 1
            end = lane.start_ms + passed * lane.tick_ms
            self._ends[lane] = end if until_ms is None else min(end, until_ms)

    def _complete_in(self, lane: Lane, complete: int) -> int:
        """Return the time up to which the ticks of a lane are complete."""
        return complete if self._ends is None else self._ends[lane]


class ReplayHistogram(Histogram):
    """Histogram that stores nothing, and makes snapshots only if `written`.

    `observe` is called with every released tick of every series (a series: the counts since an
    epoch began, or a window), while the exact `columns` are those of that tick. With the setting
    `split`, a stream key's items are spread over parts, each with snapshots of its own.
    """

    observe: Callable[[ReleasedTick], object] | None = None
    written = True
    #: Rows shown because the epoch before showed them.
    carried: Rows = np.empty(0, dtype=np.int64)

    @property
    def last_tick(self) -> int:
        """The tick released last, numbered over all epochs from 1; 0 before any event."""
        return (self.next or 1) - 1

    def _note_carried(self, rows: Rows) -> None:
        self.carried = rows

    def step(self, parts: Sequence[Contributions]) -> Iterator[Snapshot]:
        """Release the next tick, of these contributions; return its snapshots."""
        released = self.advance(parts)  # by series
        if self.observe is not None:
            for tick in released:
                self.observe(tick)
        if not self.written:
            return iter(())
        return chain.from_iterable(map(self.snapshots, released))

    def snapshots(self, tick: ReleasedTick) -> Iterator[Snapshot]:
        """Yield the snapshots of a tick, with those of all parts of a stream key's items.

        In a worker, every owner partition releases only its own part.
        """
        release = tick.release
        if tick.parts == 1 or isinstance(release, Answers):
            yield from super().snapshots(tick)
            return
        parts = parts_of(self._tags(release), tick.parts)
        for part in range(tick.parts):
            of_part = _select(release, np.flatnonzero(parts == part))
            # As if this were the part of every stream key that lies here.
            part_of = dict.fromkeys(self._keys, part)
            yield from self._snapshots(
                replace(tick, release=of_part), part_of.__getitem__
            )

    def _tags(self, release: Release | Items) -> Tags:
        """Return the items' tags, keyed hashes of (stream key, label): they decide the parts."""
        if isinstance(release, Release):
            return self._state.ledger.tags[release.rows]
        tags = np.empty((len(release.keys), 2), dtype=np.uint64)
        for key, rows in rows_by_key(release.keys):
            tags[rows] = self._key.tags(
                self._keys[key], [release.labels[row] for row in rows]
            )
        return tags

    def series_sums(self, number: int) -> Longs:
        """Return the exact sum of every row in series `number`, in steps."""
        return self._state.sums(number)

    def forget(self) -> None:
        """Discard the changes that a worker would store, so that memory does not grow with them."""
        self._deletions = []
        self._stored_keys = len(self._keys)
        self._state.changed()  # returns changes of the mechanism, and forgets them
        self._state.ledger.clean()


def _select(release: Release | Items, rows: Rows) -> Release | Items:
    """Return a release of the items in some of its `rows`, counted from 0."""
    counts = release.counts[rows]
    if isinstance(release, Release):
        sums = release.sums
        if sums is not None:
            sums = replace(sums, values=sums.values[rows])
        return replace(release, rows=release.rows[rows], counts=counts, sums=sums)
    labels = [release.labels[row] for row in rows.tolist()]
    return replace(release, keys=release.keys[rows], labels=labels, counts=counts)


STREAM = "replay"
REJECTS_LISTED = 100


class Rejected(NamedTuple):
    """A rejected record: `number` is its line, row or offset in its partition."""

    partition: int
    number: int
    reason: str


@dataclass(slots=True)
class Summary:
    """Totals of a replay. Exact.

    events      valid ones, within the time range; from `first_ms` to `last_ms`
    late        of these, those dated further back than `grace` allows
    moved       of these, by histogram, those whose tick was closed: they count in a later one
    outside     events outside the range
    rejects     by reason; `first_rejects` are the first hundred
    ticks       released ones, of all histograms
    position    progress in the source; `total` is its length (None: unknown)
    partial     stopped before the end, with whole ticks only
    times       when there were events, and when not
    """

    times: EventTimes
    events: int = 0
    late: int = 0
    moved: Counter[str] = field(default_factory=Counter)
    outside: int = 0
    rejects: Counter[str] = field(default_factory=Counter)
    first_rejects: list[Rejected] = field(default_factory=list)
    ticks: int = 0
    snapshots: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    position: int = 0
    total: int | None = None
    seconds: float = 0.0
    partial: bool = False


def fresh_histograms(
    settings: Settings,
    key: NoiseKey,
    stream: str = STREAM,
    built: Sequence[Mechanism] | None = None,
) -> list[ReplayHistogram]:
    """Return histograms before their first tick, with `built` mechanisms (None: of `settings`)."""
    built = factory.mechanisms(settings) if built is None else built
    return factory.histograms(
        ReplayHistogram, settings, built, key=key, stream=stream, owner=0, owners=1
    )


#: Takes every snapshot, ordered by tick, then histogram; None: no snapshot is made.
Write = Callable[[Snapshot], object] | None
Progress = Callable[[Summary], object]


class Merging(Protocol):
    """What `Offline` needs of a merge, which makes ticks of contributions: see `pipeline.merge`.

    `take` gets each message with its offset; `reached` then says up to which offset all are taken.
    `release` returns complete ticks; after `end_of_input` also the last ones.
    """

    def take(self, message: Message, offset: int) -> None: ...
    def reached(self, position: int) -> None: ...
    def release(self, *, after_tick: Callable[[], object] = ...) -> Released: ...
    def end_of_input(self, until_ms: int | None = None) -> None: ...


class Offline:
    """Both stages of the worker, fed batch by batch; histograms share reading and summing."""

    def __init__(
        self,
        settings: Settings,
        key: NoiseKey,
        histograms: Sequence[ReplayHistogram],
        source: Source,
        *,
        write: Write = None,
        may_stop: Callable[[], object] | None = None,
        after_tick: Callable[[Summary], object] | None = None,
        merge: Merging | None = None,
    ) -> None:
        """Take fresh `histograms`, of any settings that have the `[events]` of `settings`.

        `write` takes their snapshots (None: none are made). `may_stop`, called between released
        ticks, may raise KeyboardInterrupt. `after_tick` follows every tick of a lane; if it raises,
        `write` does not get the ticks of the last few seconds.
        `merge` receives the contributions (None: a local `ReplayMerge`).
        """
        self.histograms = histograms
        times = EventTimes([histogram.config for histogram in histograms])
        self.summary = Summary(times, total=source.total)
        self._source = source
        self._until = source.until_ms
        self._write = write
        self._may_stop = may_stop or (lambda: None)
        self._after_tick = partial(after_tick or (lambda summary: None), self.summary)
        # A histogram with sums has a second lane, after that of its counts.
        of_all = (lane for one in histograms for lane in (one.lane, one.sum_lane))
        lanes = list(dict.fromkeys(lane for lane in of_all if lane is not None))
        number = source.partitions
        grace_ms = settings.events.grace_ms
        count_lane_of = factory.count_lane_of(histograms)
        self._intakes = [
            Intake(lanes, grace_ms, key, count_lane_of=count_lane_of)
            for _ in range(number)
        ]
        # `begins` may be empty: then no partition has a watermark yet.
        for intake, watermark in zip(self._intakes, source.begins, strict=False):
            intake.restore(watermark, None)  # None: no event came before
        # By source partition: the number of its next message to each owner, here only one.
        self._sequences = [[0] for _ in range(number)]
        self._merge: Merging = merge or ReplayMerge(
            histograms, key=key, sources=number, owners=1
        )
        # Of the next message, as if those of all partitions were in one topic.
        self._offset = 0
        self._begun = time.perf_counter()
        for histogram in histograms:
            histogram.written = histogram.written and write is not None

    def add(self, batch: EventBatch) -> None:
        """Count a batch and release completed ticks, without waiting for ended partitions."""
        self._note(batch)
        intake = self._intakes[batch.partition]
        intake.add(batch.events, came_late=batch.came_late)
        intake.advance_to(batch.watermark)
        # By lane: how many events counted, and how many of them came after their tick was closed.
        for lane, (_, late) in intake.take_counted().items():
            for histogram in self.histograms:
                if histogram.lane == lane:
                    self.summary.moved[histogram.name] += late
        ended = self._source.ended()
        if self._commit(batch.partition) or ended:
            self._commit_ended(ended)
            self._release()
        self.summary.seconds = time.perf_counter() - self._begun

    def finish(self) -> None:
        """Close the last ticks at the end of the input, and release them."""
        last = self.summary.last_ms
        if last is not None:
            # No partition has further events, so the latest time of any holds for all.
            for partition, intake in enumerate(self._intakes):
                intake.advance_to(last)
                self._commit(partition, ending=True)
            self._merge.end_of_input(self._until)
            self._release()
        self.summary.seconds = time.perf_counter() - self._begun

    def _note(self, batch: EventBatch) -> None:
        """Add a batch to the summary."""
        summary = self.summary
        times = batch.events.times
        summary.position = batch.position
        summary.outside += batch.outside + batch.beyond
        summary.late += batch.late
        for number, reason in batch.rejects:
            summary.rejects[reason] += 1
            if len(summary.first_rejects) < REJECTS_LISTED:
                summary.first_rejects.append(Rejected(batch.partition, number, reason))
        # Events beyond the range are included, as they close ticks.
        if len(times):
            summary.events += len(times) - batch.beyond
            known = [at for at in (summary.first_ms, summary.last_ms) if at is not None]
            summary.first_ms = min([int(times.min()), *known])
            summary.last_ms = max([int(times.max()), *known])
            summary.times.add(times)

    def _commit(self, partition: int, *, ending: bool = False) -> bool:
        """Pass counts to the merge if a tick closed, or the input ends; return whether it did."""
        intake = self._intakes[partition]
        if not ending and not intake.has_closed_tick():
            return False
        if self._until is not None and intake.watermark is not None:
            # The source stops there, so no tick that ends later is complete.
            intake.watermark = min(intake.watermark, self._until)
        messages = intake.take_messages(
            source=partition,
            sequences=self._sequences[partition],
            offset=self.summary.position,
            ending=ending,
            max_bytes=None,  # nothing is sent
        )
        for _, message in messages:  # all to the only owner
            self._merge.take(message, self._offset)
            self._offset += 1
        self._merge.reached(self._offset)
        return True

    def _commit_ended(self, ended: frozenset[int]) -> None:
        """Advance ended partitions to the least watermark of open ones: no tick waits for them.

        An open partition without a watermark may still have events of any time.
        """
        watermarks = [
            intake.watermark for p, intake in enumerate(self._intakes) if p not in ended
        ]
        least = min((time for time in watermarks if time is not None), default=None)
        if least is None or None in watermarks:
            return
        for partition in ended:
            self._intakes[partition].advance_to(least)
            self._commit(partition)

    def _release(self) -> None:
        """Release completed ticks until none is left; write their snapshots."""
        while (released := self._merge.release(after_tick=self._after_tick)).ticks:
            for histogram in self.histograms:
                histogram.forget()
            if self._write is not None:
                for snapshot in released.snapshots:
                    self._write(snapshot)
            self.summary.ticks += released.ticks
            self.summary.snapshots += len(released.snapshots)
            self._may_stop()


def replay(
    settings: Settings,
    key: NoiseKey,
    source: Source,
    write: Write = None,
    progress: Progress = lambda summary: None,
    *,
    histograms: Sequence[ReplayHistogram] | None = None,
    merge: Merging | None = None,
    after_tick: Callable[[Summary], object] | None = None,
) -> Summary:
    """Run histograms over a source to its end or to Ctrl-C, which leaves `partial` totals.

    Ctrl-C waits for whole batches. What a caller does afterwards, in an `Interrupts` context around
    this call, is not interrupted by it, so that results are written; a second Ctrl-C is raised.
    `progress` is called after every batch. `after_tick` is called after every tick of a lane, and
    only it may end a batch early, by KeyboardInterrupt; without it a batch may end after any
    release. `histograms` are fresh (None: those of `settings`). `merge` takes what the events add
    up to (None: it is released here).
    """
    histograms = histograms or fresh_histograms(settings, key)
    with Interrupts() as interrupts, infrequent_gc():
        offline = Offline(
            settings,
            key,
            histograms,
            source,
            write=write,
            # With `after_tick` only that may stop.
            may_stop=interrupts.check if after_tick is None else None,
            after_tick=after_tick,
            merge=merge,
        )
        summary = offline.summary
        try:
            try:
                for batch in source.batches():
                    with interrupts.deferred():
                        offline.add(batch)
                        progress(summary)
                with interrupts.deferred():
                    offline.finish()
            finally:
                # Before the signal is caught, so that no second one can interrupt.
                interrupts.defer_rest()
        except KeyboardInterrupt:
            if interrupts.insisted:
                raise
            summary.partial = True
        return summary


@contextmanager
def infrequent_gc() -> Iterator[None]:
    """Run the cyclic collector less often, as in the worker: short-lived lists have no cycles."""
    keep_freed_memory()
    before = gc.get_threshold()
    # Existing objects stay, so the collector need not look at them.
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
