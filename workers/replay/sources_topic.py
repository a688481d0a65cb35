"""Read the events topics as a source, between offsets fixed at the start.

So reading ends even if the topic keeps growing. Every partition is read in its order, with one
intake, like the worker; the order among partitions does not affect any snapshot.

A time range is in event time. From: earlier events are left out; if record times allow it, they
are not even read (an event is at most `max_ahead` ahead of its record, otherwise the worker
rejected it). To: the last ticks are those that end by then. A partition is read until its watermark
reaches that time, because nothing later can count in such a tick. The published ticks are therefore
the worker's, including everything that came late.

With `privacy.rekey` the events are the re-keyed ones, and time follows the origins' markers
(`pipeline/rekey_markers.py`), as in the worker.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from workers.agents.topics import check_events, connection_of
from workers.arrays.types import Longs
from workers.events.columns import Events
from workers.events.decoders import Decoders
from workers.kafka.reading import EVENTS, bounds_of, reader, take
from workers.kafka.records import Records
from workers.mechanisms.config.views import RECORD_KEY
from workers.pipeline.factory import reader_of, source_reader_of
from workers.pipeline.rekey_markers import Origins, read_headers
from workers.pipeline.sources import Place, Sources
from workers.pipeline.watermark import behind_rejects
from workers.replay.source import EventBatch, Source, when
from workers.runtime.errors import SettingsError
from workers.settings.settings import Settings

# Limits of a batch, which holds records of one partition.
RECORDS_AT_ONCE, BYTES_AT_ONCE = 2_000, 8 << 20
_ASK_S = 30.0


@dataclass(slots=True)
class _Partition:
    place: Place
    start: int
    end: int
    position: int
    watermark: int | None = None
    waiting: list[Message] = field(default_factory=list)
    nbytes: int = 0
    origins: Origins | None = None


class TopicSource:
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
        self.until_ms, self._since = until_ms, since_ms
        self._grace, self._consumer = events.grace_ms, consumer
        self._max_behind = settings.max_behind_ms
        self.partitions = len(sources)
        self.places: Sequence[str] = [
            str(place) if several else f"partition {place.partition}" for place in sources
        ]
        reader = reader_of(settings)
        forms = Decoders(settings, reader)
        self._readers = [
            source_reader_of(
                settings, reader, place.partition, place.topic.partitions, forms.form()
            )
            for place in sources
        ]
        # Latest event time that the worker would accept if it read the topic now.
        self._latest_ms = time.time_ns() // 1_000_000 + events.max_ahead_ms
        earliest = (
            None
            if since_ms is None
            else since_ms - (0 if events.timestamp is None else events.max_ahead_ms)
        )
        found = [(place, *_bounds(consumer, place, earliest)) for place in sources]
        self._user_is_key, rekeyed = events.user == RECORD_KEY, settings.privacy.rekey
        self._parts = {
            place.log: _Partition(
                place, start, end, start, origins=Origins(None) if rekeyed else None
            )
            for place, start, end in found
        }
        self._open = {
            log: (part.start, part.end)
            for log, part in self._parts.items()
            if part.start < part.end
        }
        self.total: int | None = sum(part.end - part.start for part in self._parts.values())

    def batches(self) -> Iterator[EventBatch]:
        for taken in take(self._consumer, self._open, most=EVENTS):
            part = self._parts[taken.where]
            part.waiting += taken.messages
            part.nbytes += sum(len(message) for message in taken.messages)
            if taken.ended or len(part.waiting) >= RECORDS_AT_ONCE or part.nbytes >= BYTES_AT_ONCE:
                yield from self._batches(part, whole=taken.ended)

    def ended(self) -> frozenset[int]:
        return frozenset(
            part.place.number for log, part in self._parts.items() if log not in self._open
        )

    def _batches(self, part: _Partition, *, whole: bool) -> Iterator[EventBatch]:
        """Yield a partition's waiting records; `whole`: they are its last."""
        messages, part.waiting, part.nbytes = part.waiting, [], 0
        if not messages:
            self._end(part)
            return
        keys = [message.key() for message in messages]
        said = (
            []
            if part.origins is None
            else [read_headers(message.headers()) for message in messages]
        )
        if part.origins is not None and not self._user_is_key:
            keys = [
                key if message.value() is None else own
                for message, key, (_, own) in zip(messages, keys, said, strict=True)
            ]
        records = Records.of(
            [message.value() for message in messages],
            keys,
            [message.timestamp()[1] for message in messages],
            [message.offset() or 0 for message in messages],
        )
        marks, start = np.array([late for late, _ in said], dtype=np.int64), 0
        for found, rejected, stop in self._readers[part.place.number].read(
            records, self._latest_ms
        ):
            came_late = marks[found.index] if said else None
            if part.origins is not None:
                rejected = part.origins.take(records, range(start, stop), rejected, part.place)
            part.position, start = int(records.offsets[stop - 1]) + 1, stop
            rejects = [(int(records.offsets[each.index]), each.reason) for each in rejected]
            yield self._batch(
                part,
                found,
                records.offsets,
                rejects,
                came_late,
                ends=whole and stop == len(records),
            )
            if part.position == part.end:
                return

    def _batch(
        self,
        part: _Partition,
        found: Events,
        offsets: Longs,
        rejects: list[tuple[int, str]],
        came_late: Longs | None,
        *,
        ends: bool,
    ) -> EventBatch:
        early = 0
        if self._since is not None:
            kept = np.flatnonzero(found.times >= self._since)
            early = len(found) - len(kept)
            found = found.select(kept)
            came_late = None if came_late is None else came_late[kept]
        marks = found.times
        if part.origins is not None and came_late is not None:
            marks = came_late if part.watermark is None else np.maximum(came_late, part.watermark)
            part.watermark = part.origins.watermark
        elif len(found.times):
            # The watermark, as `Intake` has it.
            start = int(found.times[0]) if part.watermark is None else part.watermark
            marks = np.maximum(np.maximum.accumulate(found.times) - self._grace, start)
            if self.until_ms is not None and int(marks[-1]) >= self.until_ms:
                last = int(np.argmax(marks >= self.until_ms)) + 1
                found, marks = found.select(np.arange(last)), marks[:last]
            part.watermark = int(marks[-1])
        if (
            self._max_behind is not None
            and (behind := marks - found.times > self._max_behind).any()
        ):
            late_ones = behind_rejects(found, np.flatnonzero(behind))
            rejects = sorted(
                [*rejects, *((int(offsets[each.index]), each.reason) for each in late_ones)]
            )
            good = np.flatnonzero(~behind)
            found, marks = found.select(good), marks[good]
            came_late = None if came_late is None else came_late[good]
        late = int(np.count_nonzero(found.times < marks))
        beyond = 0 if self.until_ms is None else int(np.count_nonzero(found.times >= self.until_ms))
        if ends or (
            self.until_ms is not None
            and part.watermark is not None
            and part.watermark >= self.until_ms
        ):
            self._end(part)  # nothing further can count
        return EventBatch(
            part.place.number,
            found,
            rejects,
            sum(each.position - each.start for each in self._parts.values()),
            late=late,
            outside=early,
            beyond=beyond,
            came_late=came_late,
            watermark=None if part.origins is None else part.watermark,
        )

    def _end(self, part: _Partition) -> None:
        part.position = part.end
        part.waiting = []
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
