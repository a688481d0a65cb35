"""The release shard: merges one owner partition of the contributions topic, adds noise, publishes.

A partition's messages have the sums of its stream keys, from every source partition, tick by tick.
A tick is complete once all source partitions have closed it. A histogram's generation is a number
that the operator raises to start it over; its "life" is the stored record of one. A guard enforces
a ceiling on what may be spent: then every epoch is charged, in a commit of its own, before its
first tick.

One Kafka transaction commits a tick: snapshots, changed ledger blocks and stream keys, the
mechanisms' state and the progress record. Its input is already in the contributions topic, so if
the worker dies, the next owner releases the same ticks with the same bytes, or finds them released.

A new generation has other bytes, so it must not publish a tick that an older owner worked on: that
transaction may have been aborted after readers of uncommitted records saw it. The older owner,
fenced before the state is read, only worked on ticks completed by the topic's contents at that
time. So a new generation begins after every tick complete at take-over, released or not.
A histogram's first epoch is recorded before its first tick, so every later generation can see it.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import msgspec
from confluent_kafka import TopicPartition

from workers.agents.ceiling_guard import CeilingGuard
from workers.agents.keeping import Keeping
from workers.agents.progress import PROGRESS, complete_ms, read_progress
from workers.kafka.records import Batch, Outgoing
from workers.kafka.shard import Assignment, Shard
from workers.kafka.transaction import Delivery
from workers.pipeline.contributions import handing_over
from workers.pipeline.growth.owners import HandedOver
from workers.pipeline.histogram import Histogram
from workers.pipeline.ledger_blocks import read_paged, split_pages
from workers.pipeline.merge import Merge, Released, ReleaseProgress
from workers.pipeline.watermark import commit_gap_s, is_behind
from workers.privacy.total import Charge
from workers.runtime.errors import StateRefused
from workers.runtime.metrics import RELEASE
from workers.runtime.traces import HEADER

# More than the headers of a contributions message: one, of a trace.
_HEADERS_BYTES = 256

logger = logging.getLogger(__name__)


class ReleaseShard(Shard):
    """Shard of one owner partition: publishes the ticks that all source partitions closed."""

    stage = RELEASE

    def __init__(
        self,
        assignment: Assignment,
        *,
        contributions: str,
        merge: Merge,
        guard: CeilingGuard | None = None,
        grace_ms: int = 0,
        delivery_ms: int | None = None,
        keep_ms: int | None = None,
        note_budget: Callable[[bytes, Sequence[Charge]], None] | None = None,
    ) -> None:
        """Merge messages of the topic `contributions`.

        Args:
            merge: has released no tick yet.
            guard: enforces the ceiling, if any.
            delivery_ms: how long after its end and `grace_ms` a tick is delivered; None: as soon as
                it is ready.
            keep_ms: how long contributions are kept after their ticks are published, before
                `agents.keeping` deletes them; None: for ever.
            note_budget: gets the progress, and the charges of others, when epochs are charged or
                begin to be published (`agents.public_budget`); None: another owner's shard tells.
        """
        super().__init__(assignment)
        self.merge = merge
        self._contributions = contributions
        self._guard = guard
        merge.reserving = guard is not None
        self._commit_gap_s = commit_gap_s(
            [histogram.lane for histogram in merge.histograms]
        )
        # When the last release began, by the monotonic clock.
        self._released_s = -math.inf
        self._grace_ms = grace_ms
        self._delivery_ms = delivery_ms
        # From the end of a tick to its delivery.
        self._wait_ms = grace_ms + (delivery_ms or 0)
        # The time of the commit after which `_keep` looked last.
        self._kept_commit_s = 0.0
        self._note_budget = note_budget
        # The epochs at the last call of it.
        self._noted_epochs: object = None
        self._keeping: Keeping | None = None
        if keep_ms is not None:
            log = TopicPartition(contributions, self.partition)
            self._keeping = Keeping(self.connection, log, keep_ms)
        self._name_of = {
            topic: histogram.name
            for histogram in merge.histograms
            for _series, topic in histogram.outputs
        }

    def open(self) -> None:
        """Open as every shard does; then check that the ceiling lets the next epochs begin."""
        super().open()
        guard = self._guard
        # Read the charges of others first: they are both noted and checked.
        if guard is not None:
            guard.refresh()
        # Also without a ceiling. Before the check, which may end the worker: readers should still
        # learn what is spent.
        self._note_epochs()
        if guard is not None:
            guard.check(self.merge.progress(), _next_epochs(self.merge.histograms))

    def restore(self) -> None:
        """Load the state of the histograms, and learn where to read on."""
        value = read_paged(PROGRESS, self.store.get)
        if value is not None:
            progress = read_progress(value)
            self.merge.restore(
                progress, self.store.items, begin_ms=self._begin_ms(progress)
            )
            self.offset = progress.offset
        # Whether epochs are charged before their first ticks: under a ceiling always.
        self.merge.reserving = self._guard is not None or self._unrecorded()
        if self._keeping is not None:
            self._keeping.restore(self.store)

    def _unrecorded(self) -> bool:
        """Return whether a histogram that has published nothing must still record its first epoch.

        `_reserve` records it, so that every later generation can see it (see the module).
        """
        return any(
            h.life.next == h.life.first and not h.reserved
            for h in self.merge.histograms
        )

    def _begin_ms(self, progress: ReleaseProgress) -> int | None:
        """Return the time after which new generations begin; None if no stored generation ends now.

        It is the end of all ticks that contributions complete (see the module). To find it, the
        rest of the topic must be read, so this is done only if a generation ends.
        """
        stored = [*progress.retired, *progress.histograms.items()]
        running = {
            (name, life.generation) for name, life in progress.histograms.items()
        }
        wanted = {(h.name, h.config.generation) for h in self.merge.histograms}
        new = {name for name, _ in wanted - running}
        replaces = not new.isdisjoint(name for name, _ in stored)
        # Nothing ends: no stored generation is replaced by a new one, and none left the settings.
        if not replaces and running <= wanted:
            return None
        return complete_ms(
            self.connection, self._contributions, self.partition, progress
        )

    def process(self, batch: Batch) -> None:
        """Merge a batch of contributions, and release the ticks that it completes."""
        for i, offset in enumerate(batch.records.offsets.tolist()):
            value = batch.records.value(i)
            if value is None:
                raise StateRefused(
                    f"contributions offset {offset}: a message without a value: something else writes to this topic"
                )
            self.merge.receive(value, offset)
        self.merge.reached(batch.end)
        self._release()
        self._keep()

    def commits(self, batch: Batch) -> Iterable[bytes]:
        """Yield the `traceparent` headers of messages: a span names the commits they are from."""
        for i in range(len(batch)):
            for name, value in batch.records.headers(i, _HEADERS_BYTES) or ():
                if name == HEADER and value is not None:
                    yield value

    def idle(self) -> None:
        if self.offset is not None:
            self._release()
            self._keep()

    def _release(self) -> None:
        """Release and commit all complete ticks that need not wait.

        In a backlog, ticks wait up to `_commit_gap_s` for others to share a transaction; with
        delivery at fixed times, they wait until `_may_prepare`. Epochs that must be charged before
        their first tick are charged in between, by a separate commit.
        """
        is_soon = time.monotonic() - self._released_s < self._commit_gap_s
        in_backlog = is_behind(self.merge.complete_ms, self._grace_ms)
        if is_soon and in_backlog and self._delivery_ms is None:
            return
        # Until nothing is left: a call of `merge.release` is limited, and stops before an epoch
        # that is to be charged.
        while self._may_prepare():
            ticks_before = self._ticks()
            started = time.perf_counter()
            began_s = time.monotonic()
            # With delivery at fixed times, only the ticks due next: later ones have their own time.
            until_ms = None if self._delivery_ms is None else self._next_due_ms()
            released = self.merge.release(
                after_tick=self.report_progress, by_lane=True, until_ms=until_ms
            )
            if released.ticks:
                self.metrics.release_seconds.observe(time.perf_counter() - started)
                # No partition is stated, so the key decides it. There are no headers.
                messages = [
                    Outgoing(
                        one.topic, None, one.key.encode(), one.value, (), one.end_ms
                    )
                    for one in released.snapshots
                ]
                self._publish(messages, list(self._hand_over(released.handed)))
                self._note_epochs()
                self._count(released, ticks_before)
                self._released_s = began_s
            if released.beginning:
                self._reserve(released.beginning)
            elif not released.ticks:
                return

    def _may_prepare(self) -> bool:
        """Return whether to release ticks now: always, unless they are delivered at fixed times.

        In that case, release once all ticks due next are complete, since they are delivered
        together. After half of `_delivery_ms`, the time for preparing them, stop waiting for the
        missing ones.
        """
        complete_ms = self.merge.complete_ms
        if self._delivery_ms is None or complete_ms is None:
            return True
        end_ms = self._next_due_ms()
        left_ms = end_ms + self._wait_ms - time.time_ns() // 1_000_000
        return complete_ms >= end_ms or left_ms <= self._delivery_ms / 2

    def _next_due_ms(self) -> int:
        """Return the end of the tick, of any histogram, that is due next: `_wait_ms` after it."""
        now_ms = time.time_ns() // 1_000_000
        return self.merge.end_after(now_ms - self._wait_ms)

    def _deliver_at(self, last_ms: int) -> float:
        """Return when to deliver ready ticks, in s since 1970; the last of them ends at `last_ms`.

        A tick is due `_wait_ms` after its end. Ready ticks that are overdue wait until a tick of
        any histogram is due next: the time of delivery does not tell how long the work took.
        """
        end_ms = max(last_ms, self._next_due_ms())
        return (end_ms + self._wait_ms) / 1000

    def _publish(
        self, snapshots: Sequence[Outgoing], handed: Sequence[Outgoing]
    ) -> None:
        """Commit snapshots, messages `handed` to other owners, and the state, in one transaction.

        If ticks are delivered at fixed times, the snapshots are sent only then. All else is sent
        before, since no reader of snapshots sees it.
        """
        if self._delivery_ms is None or not snapshots:
            self._commit([*snapshots, *handed])
            return
        last_ms = max(one.timestamp_ms or 0 for one in snapshots)
        self._commit(handed, Delivery(snapshots, partial(self._deliver_at, last_ms)))

    def _commit(
        self, messages: Sequence[Outgoing], delivery: Delivery | None = None
    ) -> None:
        """Commit messages and the state of their histograms in one transaction."""
        progress = self.merge.progress()
        # A progress record ends every transaction.
        changes = [
            *self.merge.changes(),
            *split_pages(PROGRESS, msgspec.json.encode(progress)),
        ]
        self.transact(messages, changes, progress.offset, delivery=delivery)

    def _keep(self) -> None:
        """Make a checkpoint of the state if one is due, and delete contributions before the older.

        At most once after every commit.
        """
        keeping = self._keeping
        if keeping is None or self._kept_commit_s == self.last_commit_s:
            return
        value = read_paged(PROGRESS, self.store.get)
        if value is None:
            return
        progress = read_progress(value)
        if keeping.is_due(progress):
            # A progress record ends every transaction.
            changes = [*keeping.changes(self.store), *split_pages(PROGRESS, value)]
            self.transact([], changes, progress.offset)
            keeping.restore(self.store)
        keeping.delete(progress.offset)
        self._kept_commit_s = self.last_commit_s

    def _hand_over(
        self, handed: Sequence[tuple[int, HandedOver]]
    ) -> Iterator[Outgoing]:
        """Yield messages with the state of stream keys that are another owner's from now on.

        `handed` pairs that owner's partition with the state.
        """
        for owner, keys in handed:
            for message in handing_over(keys, key=self.merge.key.fingerprint):
                yield Outgoing(self._contributions, owner, None, message.encoded())

    def _reserve(self, histograms: Sequence[Histogram]) -> None:
        """Charge the epochs that the next tick of these histograms begins, in a commit before it.

        Without a ceiling this is only for a histogram's first tick. Readers of uncommitted records
        may see it although its transaction is aborted, so a later generation must know of it.
        """
        guard = self._guard
        epochs = _next_epochs(histograms)
        if guard is not None:
            # Before the commit too, so that a refused epoch is not charged.
            guard.check(self.merge.progress(), epochs)
        for histogram in histograms:
            histogram.reserve()
        self._commit([])
        if guard is None:
            # Once all first epochs are recorded, `merge.release` no longer needs to stop.
            self.merge.reserving = self._unrecorded()
            return
        # Another may charge at the same time. Both write before they read, so one sees the other.
        guard.refresh()
        self._note_epochs()
        guard.check(self.merge.progress(), epochs)

    def _note_epochs(self) -> None:
        """Update the public budget record if more epochs were charged or published."""
        if self._note_budget is None:
            return
        # For each histogram: the last epoch charged ahead of its first tick, and the last
        # published.
        epochs = [
            (one.life.reserved, one.published_epoch) for one in self.merge.histograms
        ]
        if epochs != self._noted_epochs:
            self._noted_epochs = epochs
            charges = () if self._guard is None else self._guard.charges
            self._note_budget(msgspec.json.encode(self.merge.progress()), charges)

    def _ticks(self) -> dict[str, int]:
        """Return how many ticks of every histogram have been released so far."""
        # A histogram with a next tick also has a first one.
        return {
            h.name: h.next - (h.life.first or 0)
            for h in self.merge.histograms
            if h.next is not None
        }

    def _count(self, released: Released, ticks_before: dict[str, int]) -> None:
        """Update the metrics after a release; `ticks_before` is `_ticks` from before it."""
        for name, ticks in self._ticks().items():
            new_ticks = ticks - ticks_before.get(name, 0)
            self.metrics.ticks_released.labels(name).inc(new_ticks)
        sizes: dict[str, list[int]] = {}
        for snapshot in released.snapshots:
            sizes.setdefault(snapshot.topic, []).append(len(snapshot.value))
        for topic, of_topic in sizes.items():
            if topic not in self._name_of:  # signatures
                continue
            name = self._name_of[topic]
            self.metrics.snapshots.labels(name).inc(len(of_topic))
            if self.metrics.begins_to_publish(name):
                told = "histogram %s: first snapshot published since the start, on topic %s"
                logger.info(told, name, topic)
            self.metrics.snapshot_bytes.labels(name).inc(sum(of_topic))


def _next_epochs(histograms: Sequence[Histogram]) -> dict[str, int]:
    """Return the epoch of every histogram's next tick, where that tick is known."""
    return {h.name: epoch for h in histograms if (epoch := h.next_epoch) is not None}
