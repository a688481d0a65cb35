"""Base of the shards that read events: their topics must not change, and when they commit.

A commit is one Kafka transaction: the stage's messages, the rejects, and the progress record with
the resume offset. It happens when a tick closes, every `commit_interval`, or if enough is pending.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from workers.agents.rejects import Rejects
from workers.events.reader import Reject
from workers.kafka.offsets import End
from workers.kafka.records import Forwarded, Outgoing, Records
from workers.kafka.shard import Assignment, Shard
from workers.mechanisms.config.histogram import Lane
from workers.pipeline.ledger_blocks import joined, pages
from workers.pipeline.progress import PROGRESS
from workers.pipeline.sources import (
    SOURCES,
    Place,
    Sources,
    refuse_other_set,
    refuse_other_topic,
    stored_set,
)
from workers.pipeline.watermark import Watermark
from workers.runtime.errors import StateRefused
from workers.runtime.sizes import Change
from workers.settings.settings import EventsSettings

VERSION = 1


class SourceProgress(msgspec.Struct, kw_only=True, frozen=True):
    """Progress of one partition; stored with every commit. Sensitive: its offset counts events."""

    version: int
    offset: int
    watermark: int | None


P = TypeVar("P", bound=SourceProgress)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsStage:
    """What the shards of a stage that reads events share.

    `commit_interval_s` is the longest time between reading and committing a record, `max_behind_ms`
    the longest time after its own at which an event may count (None: no limit).
    """

    events: EventsSettings
    sources: Sources
    rejects: str
    lanes: Sequence[Lane]
    commit_interval_s: float
    max_behind_ms: int | None = None


class SourceShard(Shard):
    """Shard of one partition of events; subclasses read them and implement `_commit_all`."""

    def __init__(
        self, assignment: Assignment, place: Place, stream: EventsStage, clock: Watermark
    ) -> None:
        super().__init__(assignment)
        self._place, self._stream, self._clock = place, stream, clock
        self.longest_value = stream.events.max_bytes
        self._rejects = Rejects(stream.rejects, place, self.metrics)
        self._interval_s, self._last_commit_s = stream.commit_interval_s, 0.0
        self._set_stored = stream.sources.plain

    @property
    def watermark(self) -> int | None:
        """Time up to which this partition has closed its ticks, ms since 1970."""
        return self._clock.watermark

    def open(self) -> None:
        self._stream.sources.check(self._place)
        super().open()

    def _stored(self, kind: type[P]) -> P | None:
        self._last_commit_s = time.monotonic()
        value = joined(PROGRESS, self.store.get)
        if value is None:
            return None
        progress = msgspec.json.decode(value, type=kind)
        if progress.version != VERSION:
            raise StateRefused(
                f"{self.state_topic}: version {progress.version}; this worker knows {VERSION}: upgrade it"
            )
        return progress

    def _check_sources(self, partitions: int, topic_id: str | None) -> None:
        """Refuse topics other than the state's; the arguments describe a single topic."""
        known = joined(SOURCES, self.store.get)
        if known is not None:
            refuse_other_set(self._stream.sources, stored_set(known))
            self._set_stored = True
        else:
            refuse_other_topic(self._place.topic, partitions, topic_id)

    def _reject(self, records: Records, rejects: Sequence[Reject], relevant: int) -> None:
        """Add rejects to the next commit; `relevant`: records for a histogram, or rejected."""
        self._rejects.add(records, rejects)
        reasons = Counter(reject.reason for reject in rejects)
        self.metrics.rejecting.note(self._place.topic.name, time.monotonic(), relevant, reasons)

    def wants_end(self, now_ms: int) -> bool:
        return self._clock.closes_by_clock(now_ms, self.ends.noted_ms)

    def reached(self, end: End) -> None:
        self._clock.read_to_end(end.now_ms)
        self.idle()

    def idle(self) -> None:
        if self.offset is None or (self.offset == self.committed and not self._clock.closes()):
            return
        if self._due():
            self._commit_all(self.offset)

    def _due(self) -> bool:
        return time.monotonic() - self._last_commit_s >= self._interval_s or self._clock.close_due()

    def _commit_all(self, offset: int) -> None:
        raise NotImplementedError

    def _commit(
        self,
        progress: SourceProgress,
        messages: list[Outgoing],
        changes: Sequence[Change] = (),
        forwarded: Sequence[Forwarded] = (),
    ) -> None:
        sources = [] if self._set_stored else pages(SOURCES, self._stream.sources.encoded())
        changes = [*changes, *sources, *pages(PROGRESS, msgspec.json.encode(progress))]
        messages = messages + self._rejects.messages
        self.transact(messages, changes, progress.offset, forwarded)
        self._set_stored = True
        self._last_commit_s = time.monotonic()
        self._rejects.committed()
