"""The rekey shard: forwards the events of one partition of the events topics, keyed by user.

A commit sends the records, in order, to the partitions of their users; rejects of records without a
readable user; and a mark, with this partition's watermark, to every partition
(`rekey_markers.py`). A record counts at the time it would if this were a source partition. Late
records carry it, so commit boundaries do not matter.

Every mark has the current time and follows the records. Retention uses the latest time in a
segment, so it counts from then on, however old the events are.

The partition is an *origin*; the topic that gets its events is the by-user topic. A record is
*late* if the watermark was past its own time when it was read: then it counts at the watermark.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from workers.agents.source_shard import EventsStage, SourceShard
from workers.arrays.types import Bytes, Longs
from workers.events.log import Format
from workers.events.reading import (
    AHEAD,
    EARLIEST_MS,
    EventReader,
    Reject,
    with_unit,
)
from workers.events.schemas import SchemaWaiter
from workers.events.tree import Node
from workers.kafka.placement import partitions_of
from workers.kafka.records import (
    Batch,
    Forwarded,
    Headers,
    Outgoing,
    Records,
    headers_at,
)
from workers.kafka.shard import Assignment
from workers.mechanisms.config.views import RECORD_KEY
from workers.pipeline.growth.sources import (
    VERSION,
    Place,
    SourceProgress,
    SourceTopic,
    refuse_other_count,
    refuse_other_topic,
)
from workers.pipeline.rekey_markers import HEADER, NO_TIME, Mark, encode_header
from workers.pipeline.watermark import Watermark
from workers.runtime.metrics import REKEY
from workers.runtime.sizes import MESSAGE_BYTES
from workers.settings.settings import RECORDS_AHEAD_MAX_MS

# A transaction takes about 10 ms, even empty; sending this many records takes 50 ms.
PENDING_RECORDS = 20_000
PENDING_BYTES = 8 << 20
# Size of our header without a key.
OURS_BYTES_MAX = len(HEADER) + 9


class RekeyProgress(SourceProgress, kw_only=True, frozen=True):
    """Progress of one origin.

    `sequence` is the number of its next mark. The by-user topic, to which events are sent on, has
    `users` partitions and the broker's id `users_id` (None on an embedded cluster).
    """

    sequence: int
    users: int
    users_id: str | None


_DECODER = msgspec.json.Decoder(RekeyProgress)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ForwardBatch:
    """Records of one batch to forward, see `Forwarded`; one row each. Sensitive.

    `users`, `values` and `keys`, int64 (n, 2), are starts and stops in `data`; `keys` are the
    original ones, start -1 if absent or not kept. `late` is the watermark at a late record, else
    NO_TIME. `times` are ms since 1970, at least 1. `own_bytes` is the size of the record's own
    headers. They lie after its value and are decoded when sent: tuples would take fifty times as
    much memory.
    """

    topic: str
    data: bytes
    users: Longs
    values: Longs
    keys: Longs
    late: Longs
    partitions: Longs
    times: Longs
    own_bytes: Longs

    def sizes(self) -> Longs:
        """Return upper bounds of the messages' sizes in bytes, int64 (n,)."""
        # As if every record got the header that re-keying adds (`rekey_markers`).
        sizes: Longs = OURS_BYTES_MAX + self.own_bytes
        # An original key that is not sent has start and stop -1, so no bytes.
        for spans in (self.users, self.values, self.keys):
            sizes += spans[:, 1] - spans[:, 0]
        return sizes

    def messages(self) -> Iterator[tuple[bytes, bytes, int, int, Headers | None]]:
        """Yield the messages as (value, key: the user, partition, time in ms, headers)."""
        data = self.data
        # Only records that need our header (for an original key or a watermark) or have headers of
        # their own get any.
        is_late = self.late != NO_TIME
        with_headers = (self.keys[:, 0] >= 0) | is_late | (self.own_bytes > 0)
        columns = (
            *self.users.T,
            *self.values.T,
            self.partitions,
            self.times,
            with_headers,
        )
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for row, (
            user,
            user_end,
            value,
            end,
            partition,
            time_ms,
            has_headers,
        ) in enumerate(rows):
            headers = self._headers(row, end) if has_headers else None
            yield data[value:end], data[user:user_end], partition, time_ms, headers

    def _headers(self, row: int, end: int) -> Headers:
        """Return the headers of a record, ours first; `end` is where its value ends in `data`."""
        key, key_end = self.keys[row].tolist()
        original = None if key < 0 else self.data[key:key_end]
        ours = HEADER, encode_header(int(self.late[row]), original)
        own = headers_at(self.data, end, MESSAGE_BYTES) if self.own_bytes[row] else None
        return [ours, *(own or ())]


@dataclass(frozen=True, slots=True, repr=False)
class UserRows:
    """The users in records start..stop of a batch; the rejects are among those without one.

    `rows`, int64 (k,), has the row in the batch of each record to forward, `users`, int64 (k, 2),
    start and stop of its user in `data`. `times`, int64 (stop - start,), has the time of every
    record in ms, NO_TIME if unreadable or rejected. `declined` is how many records the fast reader
    left to the general one (a metric).
    """

    start: int
    stop: int
    data: Bytes
    rows: Longs
    users: Longs
    times: Longs
    rejects: list[Reject]
    declined: int


def read_users(
    users: EventReader,
    events: EventReader,
    records: Records,
    latest_ms: int,
    users_format: Format | None = None,
    events_format: Format | None = None,
) -> Iterator[UserRows]:
    """Read the users of a batch, part by part, so that its records can be forwarded by user.

    The reader `users` reads only user and time. If it finds no user, the full reader `events` tells
    whether a histogram needs one: then the record is a reject, else its time still moves the
    watermark. If events have the time of their records, those after `latest_ms` (Unix ms) are
    rejects too, because forwarding would change their time. A format of None means JSON.
    """
    by_record_time = users.layout.shape.time is None
    for reading in users.read(records, users_format):
        start = reading.start
        rows = reading.index
        places = reading.users
        row_times = reading.times
        assert places is not None, "the shape has a user"
        if by_record_time:
            in_time = row_times <= latest_ms
            rows = rows[in_time]
            places = places[in_time]
            row_times = row_times[in_time]
        times = np.full(reading.stop - start, NO_TIME, dtype=np.int64)
        times[rows - start] = row_times
        rejects: list[Reject] = []
        if len(rows) < len(times):
            left = np.setdiff1d(np.arange(start, reading.stop), rows)
            left_times, rejects = _not_forwarded(events, records, left, events_format)
            times[left - start] = left_times
        yield UserRows(
            start,
            reading.stop,
            reading.data,
            rows,
            places,
            times,
            rejects,
            reading.declined,
        )


def _not_forwarded(
    events: EventReader, records: Records, rows: Longs, fmt: Format | None
) -> tuple[Longs, list[Reject]]:
    """Read again, with the full reader `events`, the rows of a batch that are not forwarded.

    They have no user, or their time is too late. Those that a histogram would count are rejects.
    Return the times (n,) of the others, which still move the watermark (NO_TIME if rejected or
    unreadable), and the rejects.
    """
    some = replace(
        records,
        keys=records.keys[rows],
        values=records.values[rows],
        times=records.times[rows],
        offsets=records.offsets[rows],
    )
    times = np.full(len(rows), NO_TIME, dtype=np.int64)
    rejects: list[Reject] = []
    for reading in events.read(some, fmt):
        # The full reader has already rejected events in a view that have no user. So those that it
        # read in a view have one, and were not forwarded because their time is too late.
        ahead = reading.in_any_view
        rejects += reading.rejects
        for row, time_ms in zip(
            reading.index[ahead].tolist(), reading.times[ahead].tolist(), strict=True
        ):
            rejects.append(Reject(row, with_unit(AHEAD, time_ms, "ms")))
        times[reading.index[~ahead]] = reading.times[~ahead]
    # By the row of the batch, not of `some`.
    in_batch = [Reject(int(rows[reject.index]), reject.reason) for reject in rejects]
    return times, sorted(in_batch, key=lambda reject: reject.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class RekeyStage(EventsStage):
    """Shared by the re-keying shards; `topic` is the by-user topic.

    `with_keys`: a histogram's stream key is the record key, so it is sent along. `users` reads
    users and times, `reader` all that histograms need; see `read_users`.
    """

    topic: SourceTopic
    with_keys: bool
    users: EventReader
    reader: EventReader


class RekeyShard(SourceShard):
    """Shard of one partition of the events topics: forwards its records by user."""

    stage = REKEY
    _stream: RekeyStage

    def __init__(
        self,
        assignment: Assignment,
        place: Place,
        stream: RekeyStage,
        *,
        make_format: Callable[
            [SchemaWaiter, Node | None], Format | None
        ] = lambda _, __: None,
    ) -> None:
        """Forward the records of `place`.

        `make_format` returns the format (None: JSON) that reads the fields of a tree, or all fields
        if it is called with None.
        """
        clock = Watermark(stream.lanes, stream.events.grace_ms, stream.max_behind_ms)
        super().__init__(assignment, place, stream, clock)
        self._users_format = make_format(self, stream.users.layout.tree)
        self._events_format = make_format(self, None)
        # Otherwise the original key is not needed, or it is the user and so also the new key.
        self._with_keys = (
            stream.with_keys and stream.users.layout.shape.user != RECORD_KEY
        )
        # What the next commit sends, and its size; and the number of the next mark.
        self._pending: list[Forwarded] = []
        self._records = 0
        self._bytes = 0
        self._sequence = 0

    def restore(self) -> None:
        """Continue from the stored progress; refuse it if topics have changed since."""
        progress = self._stored(_DECODER)
        if progress is None:
            self._clock.resume(self._place.watermark)
            return
        self._check_sources(progress)
        # The by-user topic and its number of partitions must also be the same: they place users.
        topic = self._stream.topic
        refuse_other_topic(topic, progress.users, progress.users_id)
        refuse_other_count(f"topic {topic.name}", topic.partitions, progress.users)
        self._clock.resume(progress.watermark)
        self._sequence = progress.sequence
        self.offset = progress.offset

    def process(self, batch: Batch) -> None:
        """Queue a batch's records for the partitions of their users; commit if that is due."""
        now_ms = time.time_ns() // 1_000_000
        records = batch.records
        latest_ms = now_ms + self._stream.events.max_ahead_ms
        for part in read_users(
            self._stream.users,
            self._stream.reader,
            records,
            latest_ms,
            self._users_format,
            self._events_format,
        ):
            self.metrics.declined.inc(part.declined)
            late = self._watermarks_of_late(part.times, now_ms, latest_ms)
            too_large = self._add(records, part, late, now_ms)
            relevant = len(part.rows) + len(part.rejects)
            self._reject(records, [*part.rejects, *too_large], relevant)
            enough = self._records >= PENDING_RECORDS or self._bytes >= PENDING_BYTES
            self._done(batch, part.stop, enough=enough)

    def _watermarks_of_late(self, times: Longs, now_ms: int, latest_ms: int) -> Longs:
        """Advance the watermark by `times` (n,), in order; return its value at each late record.

        The result, (n,), is NO_TIME for records that are not late. Missing times, and times before
        `EARLIEST_MS` or after `latest_ms`, do not move the watermark and are never late.
        """
        late = np.full(len(times), NO_TIME, dtype=np.int64)
        timed = np.flatnonzero((times >= EARLIEST_MS) & (times <= latest_ms))
        if len(timed):
            effective = self._clock.advance_by(times[timed], now_ms)
            # A late record counts at the watermark, which had passed its own time.
            behind = times[timed] < effective
            late[timed[behind]] = effective[behind]
        return late

    def _add(
        self, records: Records, part: UserRows, late: Longs, now_ms: int
    ) -> list[Reject]:
        """Add a part's records to the next commit; return rejects of oversized ones.

        `late` comes from `_watermarks_of_late`, for all records of the part, forwarded or not.
        """
        rows = part.rows
        if not len(rows):
            return []
        keys = records.keys[rows] if self._with_keys else np.full((len(rows), 2), -1)
        # Brokers refuse a record dated too far ahead. Where record time is the event time, none is.
        times = np.clip(records.times[rows], 1, now_ms + RECORDS_AHEAD_MAX_MS)
        partitions = partitions_of(part.data, part.users, self._stream.topic.partitions)
        values = records.values[rows]
        data = part.data.tobytes()
        own_bytes = np.zeros(len(rows), dtype=np.int64)
        # In `framed` records, each value is followed by the number of the record's own headers, and
        # then these. The first byte is 0 if there are none.
        has_headers = records.data[values[:, 1]] if records.framed else own_bytes
        for row in np.flatnonzero(has_headers).tolist():
            headers = headers_at(data, int(values[row, 1]), MESSAGE_BYTES)
            # Only to measure the headers.
            message = Outgoing("", None, None, None, headers or ())
            # Headers that are too long make the record too large.
            own_bytes[row] = MESSAGE_BYTES if headers is None else message.nbytes
        sent = ForwardBatch(
            self._stream.topic.name,
            data,
            part.users,
            values,
            keys,
            late[rows - part.start],
            partitions,
            times,
            own_bytes,
        )
        large = np.flatnonzero(sent.sizes() > MESSAGE_BYTES)
        # Start over without these, so that the other columns need not be cut.
        if len(large):
            part = replace(
                part,
                rows=np.delete(rows, large),
                users=np.delete(part.users, large, axis=0),
            )
            self._add(records, part, late, now_ms)
            return [Reject(row, "record too large") for row in rows[large].tolist()]
        self._pending.append(sent)
        self._records += len(rows)
        self._bytes += len(data)
        return []

    def _commit(self, offset: int) -> None:
        """Commit the queued records, the rejects, and a mark to every partition by user."""
        origins = self._sources
        topic = self._stream.topic
        mark = Mark(self.partition, len(origins), self._sequence, self._clock.watermark)
        progress = RekeyProgress(
            version=VERSION,
            offset=offset,
            watermark=mark.watermark,
            sequence=mark.sequence + 1,
            sources=origins.first_count,
            topic_id=self._place.topic.id,
            state_id=self._state_id,
            # Stored only by the partition that decides when others join.
            joined=origins.joined if self.partition == 0 else (),
            users=topic.partitions,
            users_id=topic.id,
        )
        encoded = msgspec.json.encode(mark)
        # A mark is the key of a record without a value.
        marks = [
            Outgoing(topic.name, at, encoded, None) for at in range(topic.partitions)
        ]
        # The records are sent before the marks. No other state changes.
        self._transact(progress, marks, (), self._pending)
        self._sequence = progress.sequence
        self._pending = []
        self._records = 0
        self._bytes = 0
        self._clock.note_commit()
