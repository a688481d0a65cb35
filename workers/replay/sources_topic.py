"""Read the events topics as a source, between offsets fixed at the start, so that reading ends.

Every partition is read in its order, with one intake, like the worker; the order among partitions
does not affect any snapshot. With `privacy.rekey` the events are the re-keyed ones, and time
follows the origins' markers (`pipeline/rekey_markers.py`), as in the worker.

A time range is in event time. From: earlier events are left out, and not even read if record times
allow it (an event is at most `max_ahead` ahead of its record, otherwise the worker rejected it).
To: the last ticks are those that end by then. A partition is read until its watermark reaches that
time. Nothing later can count in these ticks, so they equal the worker's, late events included.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from workers.agents.topics import check_events, connection_of
from workers.arrays.types import Longs
from workers.events.columns import Events
from workers.events.formats.reader import RecordFormats
from workers.events.reader import Reject
from workers.events.source_reader import SourceReader
from workers.kafka.reading import EVENTS, bounds_of, read_spans, reader
from workers.kafka.records import Records
from workers.mechanisms.config.views import RECORD_KEY
from workers.pipeline.factory import reader_of, source_reader_of
from workers.pipeline.rekey_markers import Origins, read_headers
from workers.pipeline.sources import Place, Sources
from workers.pipeline.watermark import Watermark, behind_rejects
from workers.replay.source import EventBatch, Source
from workers.runtime.errors import SettingsError
from workers.settings.settings import Settings
from workers.settings.times import when

# Limits of a batch, which holds records of one partition.
RECORDS_AT_ONCE, BYTES_AT_ONCE = 2_000, 8 << 20
_ASK_S = 30.0


@dataclass(slots=True)
class _Partition:
    place: Place
    reader: SourceReader
    watermark: Watermark
    origins: Origins | None
    start: int
    end: int
    position: int
    waiting: list[Message] = field(default_factory=list)
    nbytes: int = 0


class TopicSource(Source):
    """Events topics between two offsets of every partition, in an optional range of time."""

    word = "offset"

    def __init__(
        self,
        settings: Settings,
        sources: Sources,
        consumer: Consumer,
        since_ms: int | None,
        until_ms: int | None,
    ) -> None:
        events, several = settings.events, len(sources.topics) > 1
        self.name = f"topics {sources}" if several else f"topic {sources}"
        if since_ms is not None or until_ms is not None:
            since, until = (None if at is None else when(at) for at in (since_ms, until_ms))
            self.name += f" from {since or 'its beginning'} to {until or 'its end'}"
        self.until_ms, self._since, self._consumer = until_ms, since_ms, consumer
        self._grace_ms, self._user_is_key = events.grace_ms, events.user == RECORD_KEY
        self.partitions = len(sources)
        self.begins = [one.watermark for one in sources]
        self.places = [str(one) if several else f"partition {one.partition}" for one in sources]
        reader = reader_of(settings)
        formats = RecordFormats(settings, reader)
        # Latest event time that the worker would accept if it read the topic now.
        self._latest_ms = time.time_ns() // 1_000_000 + events.max_ahead_ms
        ahead_ms = 0 if events.timestamp is None else events.max_ahead_ms
        earliest = None if since_ms is None else since_ms - ahead_ms
        self._parts: dict[tuple[str, int], _Partition] = {}
        for place in sources:
            start, end = _bounds(consumer, place, earliest)
            of = place.partition, sources.placements, formats.make()
            source = source_reader_of(settings, reader, *of)
            watermark = Watermark((), events.grace_ms, settings.max_behind_ms, sources.moves)
            watermark.resume(place.watermark)
            origins = Origins(None) if settings.privacy.rekey else None
            part = _Partition(place, source, watermark, origins, start, end, position=start)
            self._parts[place.log] = part
        parts = self._parts.items()
        self._open = {log: (of.start, of.end) for log, of in parts if of.start < of.end}
        self.total = sum(part.end - part.start for part in self._parts.values())

    def batches(self) -> Iterator[EventBatch]:
        for taken in read_spans(self._consumer, self._open, most=EVENTS):
            part = self._parts[taken.where]
            part.waiting += taken.messages
            part.nbytes += sum(len(message) for message in taken.messages)
            if taken.ended or len(part.waiting) >= RECORDS_AT_ONCE or part.nbytes >= BYTES_AT_ONCE:
                yield from self._batches(part, whole=taken.ended)

    def ended(self) -> frozenset[int]:
        parts = self._parts.items()
        return frozenset(part.place.number for log, part in parts if log not in self._open)

    def _batches(self, part: _Partition, *, whole: bool) -> Iterator[EventBatch]:
        """Yield a partition's waiting records; `whole`: they are its last."""
        messages, part.waiting, part.nbytes = part.waiting, [], 0
        if not messages:
            self._end(part)
            return
        keys = [message.key() for message in messages]
        headers: list[tuple[int, bytes | None]] = []
        if part.origins is not None:
            headers = [read_headers(message.headers()) for message in messages]
            if not self._user_is_key:
                each = zip(messages, keys, headers, strict=True)
                keys = [key if one.value() is None else own for one, key, (_, own) in each]
        records = Records.from_messages(messages, keys)
        marks, start = np.array([late for late, _ in headers], dtype=np.int64), 0
        for found, rejected, stop in part.reader.read(records, self._latest_ms):
            came_late = None
            if part.origins is not None:
                came_late = marks[found.index]
                rejected = part.origins.take(records, range(start, stop), rejected, part.place)
            part.position, start = int(records.offsets[stop - 1]) + 1, stop
            ends = whole and stop == len(records)
            yield self._batch(part, found, records.offsets, rejected, came_late, ends=ends)
            if part.position == part.end:
                return

    def _batch(
        self,
        part: _Partition,
        found: Events,
        offsets: Longs,
        rejected: Sequence[Reject],
        came_late: Longs | None,
        *,
        ends: bool,
    ) -> EventBatch:
        def select(rows: Longs) -> None:
            nonlocal found, came_late
            found = found.select(rows)
            came_late = None if came_late is None else came_late[rows]

        number = len(found)
        if self._since is not None:
            select(np.flatnonzero(found.times >= self._since))
        early, mark = number - len(found), part.watermark
        if came_late is not None and part.origins is not None:
            effective = np.maximum(found.times, came_late)
            if mark.watermark is not None:
                effective = np.maximum(effective, mark.watermark)
            mark.watermark = part.origins.watermark
        elif len(found):
            if self.until_ms is not None:
                passing = found.times >= self.until_ms + self._grace_ms
                if mark.watermark is None:
                    passing[0] = found.times[0] >= self.until_ms  # the watermark begins there
                if passing.any():
                    select(np.arange(np.argmax(passing) + 1))
            effective = mark.advance_by(found.times, None)
        else:
            effective = found.times
        rejects = [*rejected]
        behind = mark.too_far_behind(found.times, effective)
        if behind.any():
            rejects += behind_rejects(found, np.flatnonzero(behind))
            rejects.sort(key=lambda each: each.index)
            select(np.flatnonzero(~behind))
            effective = effective[~behind]
        beyond, until = 0, self.until_ms
        if until is not None:
            beyond = int((found.times >= until).sum())
            ends = ends or (mark.watermark is not None and mark.watermark >= until)
        if ends:
            self._end(part)  # nothing further can count
        return EventBatch(
            part.place.number,
            found,
            [(int(offsets[each.index]), each.reason) for each in rejects],
            sum(each.position - each.start for each in self._parts.values()),
            late=int((found.times < effective).sum()),
            outside=early,
            beyond=beyond,
            came_late=came_late,
            watermark=None if part.origins is None else mark.watermark,
        )

    def _end(self, part: _Partition) -> None:
        part.position = part.end
        self._open.pop(part.place.log, None)


@contextmanager
def open_topic(settings: Settings, since_ms: int | None, until_ms: int | None) -> Iterator[Source]:
    """Open the events topics in a range of time, which must not end before it begins."""
    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        raise SettingsError(
            f"--from {when(since_ms)} --to {when(until_ms)}: an empty range; --to must be later"
        )
    connection = connection_of(settings)
    sources = check_events(settings, connection)
    with reader(connection, events=True) as consumer:
        yield TopicSource(settings, sources, consumer, since_ms, until_ms)


def _bounds(consumer: Consumer, place: Place, earliest_ms: int | None) -> tuple[int, int]:
    low, high = bounds_of(consumer, *place.log)
    if earliest_ms is None or earliest_ms <= 0 or low == high:
        return low, high
    [found] = consumer.offsets_for_times([TopicPartition(*place.log, earliest_ms)], timeout=_ASK_S)
    if found.error is not None:
        raise KafkaException(found.error)
    return (high if found.offset < 0 else min(found.offset, high)), high
