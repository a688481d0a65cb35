"""The rekey shard: forwards the events of one partition of the events topics, keyed by user.

A commit is one Kafka transaction (`Shard.transact`): the records, in order, to the partitions of
their users; rejects, the records whose user cannot be read; a mark to every partition
(`rekey_markers.py`); and the progress record. A record counts where it would count if this
partition were a source partition. A late record carries that time, so it depends on the order here,
not on where a commit ends. Commits happen when a tick closes, every `commit_interval`, and whenever
enough is pending.

Every commit writes a mark with the current time behind the records in each partition. Retention
uses the latest time in a segment, so it counts from then on, however old the events are.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from workers.agents.rejects import Rejects
from workers.events.field_spans import Format
from workers.events.reader import EARLIEST_MS, Reject
from workers.events.schemas import Waiting
from workers.events.tree import Node
from workers.events.user_reader import NO_TIME, RecordUsers, UserReader
from workers.kafka.clients import Connection
from workers.kafka.offsets import End
from workers.kafka.placement import partitions_of
from workers.kafka.records import Batch, Forwarded, Headers, Outgoing, Records, headers_at
from workers.kafka.shard import Shard
from workers.kafka.store import Store
from workers.pipeline.ledger_blocks import joined, pages
from workers.pipeline.progress import PROGRESS
from workers.pipeline.rekey_markers import HEADER, Mark, header_of
from workers.pipeline.sources import (
    SOURCES,
    Place,
    Sources,
    SourceTopic,
    refuse_other_set,
    refuse_other_topic,
    stored_set,
)
from workers.pipeline.watermark import Watermark
from workers.runtime.errors import StateRefused
from workers.runtime.metrics import REKEY, Metrics
from workers.runtime.sizes import MESSAGE_BYTES
from workers.settings.settings import RECORDS_AHEAD_MAX_MS, EventsSettings

VERSION = 1
# A transaction takes about 10 ms, whatever is in it; sending this many records takes 50.
PENDING_RECORDS = 20_000
PENDING_BYTES = 8 << 20
# Size of our header without a key.
OURS_BYTES_MAX = len(HEADER) + 9

Longs = NDArray[np.int64]


class RekeyProgress(msgspec.Struct, kw_only=True, frozen=True):
    """Progress of one partition; stored with every commit. Sensitive: it counts events."""

    version: int
    offset: int
    watermark: int | None
    sequence: int
    sources: int
    topic_id: str | None
    users: int
    users_id: str | None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Sent:
    """Records of one batch to forward, see `Forwarded`. Sensitive.

    Attributes:
        users, values, keys: int64 (n, 2), start and stop in `data`; keys are the records' original
            ones, start -1 where there is none or it is not kept.
        late: int64 (n,), the watermark that each came behind, or NO_TIME.
        partitions: int64 (n,).
        times: int64 (n,), ms since 1970, at least 1.
        own: int64 (n,), bytes of each record's own headers, which follow its value; 0 without any.
            Tuples take fifty times as much memory, so headers are decoded when sent.
    """

    data: bytes
    users: Longs
    values: Longs
    keys: Longs
    late: Longs
    partitions: Longs
    times: Longs
    own: Longs

    def sizes(self) -> Longs:
        """Return upper bounds of the messages' sizes in bytes, int64 (n,)."""
        found: Longs = OURS_BYTES_MAX + self.own
        for places in (self.users, self.values, self.keys):
            found += places[:, 1] - places[:, 0]
        return found

    def messages(self) -> Iterator[tuple[bytes, bytes, int, int, Headers | None]]:
        data, noted = self.data, (self.keys[:, 0] >= 0) | (self.late != NO_TIME) | (self.own > 0)
        if not noted.any():  # nearly always
            ends = (
                self.users[:, 0],
                self.users[:, 1],
                self.values[:, 0],
                self.values[:, 1],
                self.partitions,
                self.times,
            )
            for user, stop, value, end, partition, time_ms in zip(
                *(column.tolist() for column in ends), strict=True
            ):
                yield data[value:end], data[user:stop], partition, time_ms, None
            return
        columns = (
            self.users,
            self.values,
            self.keys,
            self.late,
            self.partitions,
            self.times,
            noted,
            self.own,
        )
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for (user, stop), (value, end), (key, key_end), late, partition, time_ms, says, own in rows:
            headers: Headers | None = None
            if says:
                ours = HEADER, header_of(late, None if key < 0 else data[key:key_end])
                headers = [ours, *((headers_at(data, end, MESSAGE_BYTES) or ()) if own else ())]
            yield data[value:end], data[user:stop], partition, time_ms, headers


@dataclass(frozen=True, slots=True, kw_only=True)
class ByUser:
    """Topics around the re-keying stage.

    `origins` are the partitions of the events topics, `topic` is the destination. `with_keys` means
    that record keys are used as stream keys, and so are forwarded.
    """

    events: EventsSettings
    origins: Sources
    topic: SourceTopic
    rejects: str
    with_keys: bool


class RekeyShard(Shard):
    """The stage before stage 1, of one partition; see the module."""

    stage = REKEY

    def __init__(
        self,
        connection: Connection,
        transactional_id: str,
        place: Place,
        state_topic: str,
        store: Store,
        *,
        stream: ByUser,
        clock: Watermark,
        reader: UserReader,
        form: Callable[[Waiting, Node | None], Format | None] = lambda _, __: None,
        commit_interval_s: float,
        metrics: Metrics | None = None,
    ) -> None:
        """`form` is as in `Decoders.form`. `commit_interval_s` is the most time between reading a
        record and committing it.
        """
        super().__init__(connection, transactional_id, place.number, state_topic, store, metrics)
        self._stream, self._place, self._clock, self._reader = stream, place, clock, reader
        self.longest_value = stream.events.max_bytes
        self._form, self._whole = form(self, reader.tree), form(self, None)
        self._rejects = Rejects(stream.rejects, place, self.metrics)
        self._with_keys = stream.with_keys and not reader.user_is_key
        self._pending: list[Forwarded] = []
        self._records = self._bytes = 0
        self._sequence = 0
        self._interval_s, self._last_commit_s = commit_interval_s, 0.0
        self._set_stored = stream.origins.plain

    @property
    def watermark(self) -> int | None:
        """Time up to which this partition has closed its ticks, ms since 1970."""
        return self._clock.watermark

    def open(self) -> None:
        self._stream.origins.check(self._place)
        super().open()

    def restore(self) -> None:
        self._last_commit_s = time.monotonic()
        value = joined(PROGRESS, self.store.get)
        if value is None:
            return
        progress = msgspec.json.decode(value, type=RekeyProgress)
        if progress.version != VERSION:
            raise StateRefused(
                f"{self.state_topic}: version {progress.version}; this worker knows {VERSION}: upgrade it"
            )
        known = joined(SOURCES, self.store.get)
        if known is not None:
            refuse_other_set(self._stream.origins, stored_set(known))
            self._set_stored = True
        else:
            refuse_other_topic(self._place.topic, progress.sources, progress.topic_id)
        refuse_other_topic(self._stream.topic, progress.users, progress.users_id)
        self._clock.resume(progress.watermark)
        self._sequence, self.offset = progress.sequence, progress.offset

    def process(self, batch: Batch) -> None:
        now_ms = time.time_ns() // 1_000_000
        records, latest_ms = batch.records, now_ms + self._stream.events.max_ahead_ms
        found = self._reader.read(records, latest_ms, self._form, self._whole)
        self.metrics.declined.inc(found.declined)
        late = self._late(found.times, now_ms, latest_ms)
        too_large = self._send_on(records, found, late, now_ms)
        rejects = [*found.rejects, *too_large]
        self._rejects.add(records, rejects)
        known = int(np.count_nonzero(found.known)) + len(found.rejects)
        reasons = Counter(reject.reason for reject in rejects)
        self.metrics.rejecting.note(self._place.topic.name, time.monotonic(), known, reasons)
        if (
            self._due()
            or self._records >= PENDING_RECORDS
            or self._bytes >= PENDING_BYTES
            or self._rejects.full
        ):
            self._commit_all(batch.end)

    def _late(self, times: Longs, now_ms: int, latest_ms: int) -> Longs:
        """Advance the watermark by `times`; return it at late records, else NO_TIME, int64 (n,)."""
        late = np.full(len(times), NO_TIME, dtype=np.int64)
        timed = np.flatnonzero((times >= EARLIEST_MS) & (times <= latest_ms))
        if len(timed):
            effective = self._clock.pass_by(times[timed], now_ms)
            behind = times[timed] < effective
            late[timed[behind]] = effective[behind]
        return late

    def _send_on(
        self, records: Records, found: RecordUsers, late: Longs, now_ms: int
    ) -> list[Reject]:
        """Add records with a known user to the next commit; return rejects of oversized ones."""
        rows = np.flatnonzero(found.known)
        if not len(rows):
            return []
        keys = (
            records.keys[rows] if self._with_keys else np.full((len(rows), 2), -1, dtype=np.int64)
        )
        # Brokers refuse a record dated too far ahead. Where record time is the event time, none is.
        times = np.clip(records.times[rows], 1, now_ms + RECORDS_AHEAD_MAX_MS)
        partitions = partitions_of(found.data, found.users[rows], self._stream.topic.partitions)
        values = records.values[rows]
        # The number of a record's own headers follows its value.
        with_own = np.flatnonzero(records.data[values[:, 1]]) if records.framed else rows[:0]
        data, own = found.data.tobytes(), np.zeros(len(rows), dtype=np.int64)
        for row in with_own.tolist():
            headers = headers_at(data, int(values[row, 1]), MESSAGE_BYTES)
            own[row] = (
                MESSAGE_BYTES if headers is None else Outgoing("", None, None, None, headers).nbytes
            )
        sent = Sent(data, found.users[rows], values, keys, late[rows], partitions, times, own)
        large = np.flatnonzero(sent.sizes() > MESSAGE_BYTES)
        if len(large):
            found.known[rows[large]] = False
            self._send_on(records, found, late, now_ms)
            return [Reject(row, "record too large") for row in rows[large].tolist()]
        self._pending.append(sent)
        self._records += len(rows)
        self._bytes += len(data)
        return []

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
        stream = self._stream
        mark = Mark(self.partition, len(stream.origins), self._sequence, self._clock.watermark)
        progress = RekeyProgress(
            version=VERSION,
            offset=offset,
            watermark=mark.watermark,
            sequence=mark.sequence + 1,
            sources=len(stream.origins),
            topic_id=self._place.topic.id,
            users=stream.topic.partitions,
            users_id=stream.topic.id,
        )
        marks = [
            Outgoing(stream.topic.name, partition, msgspec.json.encode(mark), None)
            for partition in range(stream.topic.partitions)
        ]
        sources = [] if self._set_stored else pages(SOURCES, stream.origins.encoded())
        changes = [*sources, *pages(PROGRESS, msgspec.json.encode(progress))]
        self.transact(
            marks + self._rejects.messages, changes, offset, self._pending, stream.topic.name
        )
        self._set_stored, self._sequence = True, progress.sequence
        self._pending, self._records, self._bytes = [], 0, 0
        self._last_commit_s = time.monotonic()
        self._clock.note_commit()
        self._rejects.committed()
