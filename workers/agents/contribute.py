"""The contribute shard: decodes and bounds the events of one source partition, and closes ticks.

A commit is one Kafka transaction (`Shard.transact`): the messages to the owners, the rejects, and
the progress record with this partition's resume offset. After it nothing is held in memory: the
partition's next owner reads everything after that offset again. Commits happen whenever a tick
closes, and every `commit_interval`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from workers.agents.rejects import Rejects
from workers.events.field_spans import Format
from workers.events.reader import EventReader
from workers.events.schemas import Waiting
from workers.events.source_reader import Declared, SourceReader
from workers.kafka.clients import Connection
from workers.kafka.offsets import End
from workers.kafka.placement import Placement
from workers.kafka.records import Batch, Outgoing
from workers.kafka.shard import Shard
from workers.kafka.store import Store
from workers.mechanisms.config.histogram import Lane
from workers.mechanisms.config.views import RECORD_KEY
from workers.mechanisms.noise.keyed import NoiseKey
from workers.pipeline.intake import Intake
from workers.pipeline.ledger_blocks import joined, pages
from workers.pipeline.progress import PROGRESS
from workers.pipeline.rekey_markers import Origin, Origins, arrived
from workers.pipeline.sources import (
    SOURCES,
    Place,
    Sources,
    refuse_other_set,
    refuse_other_topic,
    stored_set,
)
from workers.pipeline.watermark import behind_rejects
from workers.runtime.errors import StateRefused
from workers.runtime.gil_lock import GilLock
from workers.runtime.metrics import CONTRIBUTE, Metrics
from workers.settings.settings import EventsSettings

VERSION = 1


class ContributeProgress(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Progress of one source partition; stored with every commit. Sensitive: its offset counts
    events.

    `origins` is the progress of every events partition; None where these are the source partitions.
    """

    version: int
    offset: int
    watermark: int | None
    first: int | None
    sequences: list[int]
    sources: int
    topic_id: str | None
    origins: list[Origin] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Topics and settings around stage 1.

    Attributes:
        owners: number of owner partitions.
        origins: number of partitions from which events were re-keyed; None where the events topics
            are the sources.
        max_behind_ms: longest time after its own at which an event may count; None: no limit.
    """

    events: EventsSettings
    sources: Sources
    contributions: str
    owners: int
    rejects: str
    origins: int | None = None
    max_behind_ms: int | None = None


class ContributeShard(Shard):
    """Stage 1 of one source partition; see the module."""

    stage = CONTRIBUTE

    def __init__(
        self,
        connection: Connection,
        transactional_id: str,
        place: Place,
        state_topic: str,
        store: Store,
        *,
        stream: Stream,
        lanes: Sequence[Lane],
        reader: EventReader,
        declared: Declared,
        form: Callable[[Waiting], Format | None] = lambda _: None,
        key: NoiseKey,
        commit_interval_s: float,
        turns: GilLock | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        """`declared` is as in `SourceReader`, `form` as in `Decoders.form`. `commit_interval_s` is
        the most time between reading a record and committing it. `turns` are shared by the worker's
        shards.
        """
        super().__init__(connection, transactional_id, place.number, state_topic, store, metrics)
        self._stream, self._place = stream, place
        self.longest_value = stream.events.max_bytes
        self._intake = Intake(
            lanes, stream.events.grace_ms, key, store, max_behind_ms=stream.max_behind_ms
        )
        of_users = any(lane.max_items_per_user for lane in lanes)
        placement = (
            Placement(stream.events.partitioner, place.partition, place.topic.partitions)
            if of_users
            else None
        )
        self._reader = SourceReader(reader, declared, placement, form(self))
        self._origins = None if stream.origins is None else Origins(stream.origins)
        self._sequences = [0] * stream.owners
        self._rejects = Rejects(stream.rejects, place, self.metrics)
        self._interval_s, self._turns = commit_interval_s, turns or GilLock()
        self._last_commit_s = 0.0
        self._new_events = 0
        self._set_stored = stream.sources.plain

    @property
    def watermark(self) -> int | None:
        """Time up to which this source partition has closed its ticks, ms since 1970."""
        return self._intake.watermark

    def open(self) -> None:
        self._stream.sources.check(self._place)
        super().open()

    def restore(self) -> None:
        self._last_commit_s = time.monotonic()
        value = joined(PROGRESS, self.store.get)
        if value is None:
            return
        progress = msgspec.json.decode(value, type=ContributeProgress)
        stream = self._stream
        if progress.version != VERSION:
            raise StateRefused(
                f"{self.state_topic}: version {progress.version}; this worker knows {VERSION}: upgrade it"
            )
        self._restore_origins(progress.origins)
        known = joined(SOURCES, self.store.get)
        if known is not None:
            refuse_other_set(stream.sources, stored_set(known))
            self._set_stored = True
        else:
            refuse_other_topic(self._place.topic, progress.sources, progress.topic_id)
        if len(progress.sequences) != stream.owners:
            raise StateRefused(
                f"the contributions topic {stream.contributions} has {stream.owners} partitions; the state was made with "
                f"{len(progress.sequences)}: a changed partition count needs a new worker name (a new stream, charged again)"
            )
        self._sequences = list(progress.sequences)
        self._intake.restore(progress.watermark, progress.first)
        self.offset = progress.offset

    def _restore_origins(self, stored: list[Origin] | None) -> None:
        if (stored is None) != (self._origins is None):
            now, then = ("true", "without") if stored is None else ("false", "with")
            raise StateRefused(
                f"privacy.rekey = {now}, but the state was made {then} it: take a new worker name (a new stream, charged again)"
            )
        if stored is not None and self._origins is not None:
            if len(stored) != len(self._origins.all):
                raise StateRefused(
                    f"the events topics have {len(self._origins.all)} partitions; the state was made with {len(stored)}: "
                    "a changed partition count needs a new worker name (a new stream, charged again)"
                )
            self._origins.all = list(stored)

    def process(self, batch: Batch) -> None:
        now_ms = time.time_ns() // 1_000_000
        latest_ms = now_ms + self._stream.events.max_ahead_ms
        records, late = batch.records, None
        if self._origins is not None:
            records, late = arrived(records, user_is_key=self._stream.events.user == RECORD_KEY)
        start = 0
        for found, rejects, stop in self._reader.read(records, latest_ms):
            self.metrics.declined.inc(self._reader.declined)
            if self._origins is not None:
                rejects = self._origins.take(records, range(start, stop), rejects, self._place)
            behind = self._intake.add(found, now_ms, None if late is None else late[found.index])
            rejects += behind_rejects(found, behind)
            self._rejects.add(batch.records, rejects)  # unchanged, so that they can be sent back
            self.metrics.rejecting.note(
                self._place.topic.name,
                time.monotonic(),
                int(np.count_nonzero(found.looked_at)) + len(rejects),
                Counter(reject.reason for reject in rejects),
            )
            if self._origins is not None:
                self._intake.advance_to(self._origins.watermark)
            self._new_events += len(found) - len(behind)
            if self._due() or self._rejects.full or self._intake.full:
                self._commit_all(batch.end if stop == len(records) else int(records.offsets[stop]))
            start = stop
            self.report_progress()

    def wants_end(self, now_ms: int) -> bool:
        # Where the clock closes ticks by origin, the origins' marks say so.
        return self._origins is None and self._intake.closes_by_clock(now_ms, self.ends.noted_ms)

    def reached(self, end: End) -> None:
        self._intake.read_to_end(end.now_ms)
        self.idle()

    def idle(self) -> None:
        if self.offset is None or (self.offset == self.committed and not self._intake.closes()):
            return
        if self._due():
            self._commit_all(self.offset)

    def _due(self) -> bool:
        return (
            time.monotonic() - self._last_commit_s >= self._interval_s or self._intake.close_due()
        )

    def _commit_all(self, offset: int) -> None:
        closed = self._intake.ticks_closed()
        users = self._intake.user_changes()
        with self._turns.one(self._intake.rows):
            said = self._intake.commit(
                source=self.partition, sequences=self._sequences, offset=offset
            )
            messages = [
                Outgoing(self._stream.contributions, owner, None, message.encoded())
                for owner, message in said
            ]
        progress = ContributeProgress(
            version=VERSION,
            offset=offset,
            watermark=self._intake.watermark,
            first=self._intake.first,
            sequences=self._sequences,
            sources=len(self._stream.sources),
            topic_id=self._place.topic.id,
            origins=None if self._origins is None else self._origins.all,
        )
        sources = [] if self._set_stored else pages(SOURCES, self._stream.sources.encoded())
        changes = [*users, *sources, *pages(PROGRESS, msgspec.json.encode(progress))]
        self.transact(messages + self._rejects.messages, changes, offset)
        self._set_stored = True
        self._last_commit_s = time.monotonic()
        self.metrics.events.inc(self._new_events)
        self.metrics.ticks_closed.inc(closed)
        self._new_events = 0
        self._rejects.committed()
