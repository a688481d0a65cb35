"""Read the events topics as a source, between offsets fixed at the start, so that reading ends.

A partition ends where an open transaction begins, as for the worker; `notes` says so.

Every partition is read in its order, with one intake, like the worker; the order among partitions
does not affect any snapshot. The watermark of a partition is the time before which no event counts
any more: an event counts at its "effective" time, its own or that watermark if it is later. With
`privacy.rekey` the events are copies, sent on by user: each partition they came from, an origin,
writes its own watermark between them, and the least of these is the partition's, as in the worker.

A time range is in event time. From: earlier events are left out, and not even read if record times
allow it (an event is at most `max_ahead` ahead of its record, otherwise the worker rejected it).
To: the last ticks are those that end by then. A partition is read until its watermark reaches that
time. Nothing later can count in these ticks, so they equal the worker's, late events included.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from workers.agents.topics import check_events, connection_of
from workers.arrays.types import Bools, Longs
from workers.events.columns import Events
from workers.events.formats.reader import RecordFormats
from workers.events.reading import Reject, SourceReader
from workers.kafka.reading import Partition
from workers.kafka.records import Records
from workers.kafka.topic_reader import Bounds, TopicReader, open_reader
from workers.mechanisms.config.views import RECORD_KEY
from workers.pipeline.factory import reader_of, source_reader_of
from workers.pipeline.growth.sources import Place, Sources
from workers.pipeline.rekey_markers import Origins, restore_originals
from workers.pipeline.watermark import Watermark, behind_rejects
from workers.replay.source import EventBatch, Source
from workers.runtime.errors import SettingsError
from workers.settings.settings import Settings
from workers.settings.times import when


@dataclass(slots=True)
class _Partition:
    """A source partition being read: `position` is the next offset, from `start` to `end`.

    `place` is its number and its log (topic and partition). `origins` has the watermarks that
    re-keyed events follow; None: they are not re-keyed.
    """

    place: Place
    reader: SourceReader
    watermark: Watermark
    origins: Origins | None
    start: int
    end: int
    position: int


class TopicSource(Source):
    """Events topics between two offsets of every partition, in an optional range of time."""

    word = "offset"

    def __init__(
        self,
        settings: Settings,
        sources: Sources,
        topic_reader: TopicReader,
        since_ms: int | None,
        until_ms: int | None,
    ) -> None:
        """Read the events from `since_ms` until `until_ms` (None: from the first, to the last)."""
        events = settings.events
        several = len(sources.topics) > 1
        self.name = f"topics {sources}" if several else f"topic {sources}"
        if since_ms is not None or until_ms is not None:
            since = "its beginning" if since_ms is None else when(since_ms)
            until = "its end" if until_ms is None else when(until_ms)
            self.name += f" from {since} to {until}"
        self.until_ms = until_ms
        self._since = since_ms
        self._topic_reader = topic_reader
        self._max_bytes = events.max_bytes
        self._grace_ms = events.grace_ms
        self._user_is_key = events.user == RECORD_KEY
        self.partitions = len(sources)
        self.begins = [source.watermark for source in sources]
        self.places = [
            str(source) if several else f"partition {source.partition}"
            for source in sources
        ]
        reader = reader_of(settings)
        formats = RecordFormats(settings, reader)
        # Latest event time that the worker would accept if it read the topic now.
        self._latest_ms = time.time_ns() // 1_000_000 + events.max_ahead_ms
        # Earlier records have no event in the range. An event may be dated after its record, unless
        # it has the record's time because there is no field for it.
        ahead_ms = 0 if events.timestamp is None else events.max_ahead_ms
        earliest = None if since_ms is None else since_ms - ahead_ms
        # By log: its first offset, and `stable`, the end of what is committed.
        self._bounds = topic_reader.bounds(source.log for source in sources)
        starts = _starts(topic_reader, self._bounds, earliest)
        self._parts: dict[Partition, _Partition] = {}
        for source in sources:
            source_reader = source_reader_of(
                settings, reader, source.partition, sources.placements, formats.make()
            )
            # It finds late events and the end of the range. It has no lanes, "()", as the intakes
            # keep the ticks.
            watermark = Watermark(
                (), events.grace_ms, settings.max_behind_ms, sources.moves
            )
            watermark.resume(source.watermark)
            start = starts[source.log]
            self._parts[source.log] = _Partition(
                source,
                source_reader,
                watermark,
                # None: how many origins there are is not known before their first mark.
                Origins(None) if settings.privacy.rekey else None,
                start,
                self._bounds[source.log].stable,
                position=start,
            )
        # Offsets still to be read; a partition that has ended is not in it.
        self._open = {
            log: (part.start, part.end)
            for log, part in self._parts.items()
            if part.start < part.end
        }
        self.total = sum(part.end - part.start for part in self._parts.values())

    def batches(self) -> Iterator[EventBatch]:
        """Yield the events of all partitions, those of each in its order."""
        for taken in self._topic_reader.read(self._open, self._max_bytes):
            part = self._parts[taken.where]
            if len(taken.records):
                yield from self._batches(part, taken.records, last=taken.ended)
            elif taken.ended:
                self._end(part)

    def notes(self) -> list[str]:
        """Say which partitions end before their logs do, since a transaction is open there."""
        return self._topic_reader.open_transactions(self._bounds)

    def ended(self) -> frozenset[int]:
        """Return the numbers of the partitions that are read to their end."""
        return frozenset(
            part.place.number
            for log, part in self._parts.items()
            if log not in self._open
        )

    def _batches(
        self, part: _Partition, records: Records, *, last: bool
    ) -> Iterator[EventBatch]:
        """Yield the events of some records of a partition; `last`: they are its last."""
        came_late_by_record: Longs | None = None
        if part.origins is not None:
            # As they were before they were copied by user.
            records, came_late_by_record = restore_originals(
                records, user_is_key=self._user_is_key
            )
        for reading in part.reader.read(records, self._latest_ms):
            events = reading.events
            rejected = reading.rejects
            came_late = None
            if part.origins is not None and came_late_by_record is not None:
                came_late = came_late_by_record[events.index]
                # Takes the origins' watermarks, which are no events, out of the rejects.
                rejected = part.origins.take(
                    records,
                    range(reading.start, reading.stop),
                    rejected,
                    part.place,
                )
            part.position = int(records.offsets[reading.stop - 1]) + 1
            ends = last and reading.stop == len(records)
            yield self._batch(
                part, events, records.offsets, rejected, came_late, ends=ends
            )
            # Ended: it was the last part, or the time range ends in it.
            if part.position == part.end:
                return

    def _batch(
        self,
        part: _Partition,
        events: Events,
        offsets: Longs,
        rejected: Sequence[Reject],
        came_late: Longs | None,
        *,
        ends: bool,
    ) -> EventBatch:
        """Return the events that count, in the time range; end the partition where none can follow.

        `came_late` (n,) is as in `EventBatch`; `offsets` are those of the records by
        `Reject.index`; `ends`: no record follows.
        """
        number = len(events)
        if self._since is not None:
            events, came_late = _select(events, came_late, events.times >= self._since)
        early = number - len(events)
        # Advance the partition's time; each event counts at its effective one.
        clock = part.watermark
        if came_late is None or part.origins is None:
            events, effective = self._advance(clock, events)
        else:
            # Re-keyed: time follows the origins, not the order of these records.
            effective = np.maximum(events.times, came_late)
            if clock.watermark is not None:
                effective = np.maximum(effective, clock.watermark)
            clock.watermark = part.origins.watermark
        rejects = [*rejected]
        # Reject what the worker rejected as too late.
        behind = clock.too_far_behind(events.times, effective)
        if behind.any():
            rejects += behind_rejects(events, np.flatnonzero(behind))
            rejects.sort(key=lambda reject: reject.index)
            events, came_late = _select(events, came_late, ~behind)
            effective = effective[~behind]
        # Events after the range count in no tick of it, but take the watermark to its end.
        beyond = 0
        until = self.until_ms
        if until is not None:
            beyond = int((events.times >= until).sum())
            ends = ends or (clock.watermark is not None and clock.watermark >= until)
        if ends:
            self._end(part)
        return EventBatch(
            part.place.number,
            events,
            [(int(offsets[reject.index]), reject.reason) for reject in rejects],
            sum(one.position - one.start for one in self._parts.values()),
            late=int((events.times < effective).sum()),
            outside=early,
            beyond=beyond,
            came_late=came_late,
            watermark=None if part.origins is None else clock.watermark,
        )

    def _advance(self, clock: Watermark, events: Events) -> tuple[Events, Longs]:
        """Advance a partition's time by its events; return these and their effective times.

        The event that takes the watermark to the end of the time range is the last one: no later
        one can count in the range.
        """
        if not len(events):
            return events, events.times
        if self.until_ms is not None:
            # The watermark is the latest time less the grace, but begins at the first event's time.
            passing = events.times >= self.until_ms + self._grace_ms
            if clock.watermark is None:
                passing[0] = events.times[0] >= self.until_ms
            if passing.any():
                events = events.select(np.arange(np.argmax(passing) + 1))
        # None: the wall clock of this reading does not matter.
        return events, clock.advance_by(events.times, None)

    def _end(self, part: _Partition) -> None:
        """End a partition, since nothing further in it can count; progress takes it as read."""
        part.position = part.end
        self._open.pop(part.place.log, None)


@contextmanager
def open_topic(
    settings: Settings,
    since_ms: int | None,
    until_ms: int | None,
    say: Callable[[str], object] = lambda text: None,
) -> Iterator[Source]:
    """Open the events topics in a range of time, which must not end before it begins.

    `say` tells the operator which partition reading waits for.
    """
    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        raise SettingsError(
            f"--from {when(since_ms)} --to {when(until_ms)}: an empty range; --to must be later"
        )
    connection = connection_of(settings)
    sources = check_events(settings, connection)
    with open_reader(connection, say) as topic_reader:
        yield TopicSource(settings, sources, topic_reader, since_ms, until_ms)


def _select(
    events: Events, came_late: Longs | None, chosen: Bools
) -> tuple[Events, Longs | None]:
    """Return the chosen events, with their `came_late` if they are re-keyed."""
    rows = np.flatnonzero(chosen)
    return events.select(rows), None if came_late is None else came_late[rows]


def _starts(
    topic_reader: TopicReader,
    bounds: Mapping[Partition, Bounds],
    earliest_ms: int | None,
) -> dict[Partition, int]:
    """Return the offset to begin with in each log: that of the first record at or after a time.

    If the time is None, it is the log's first offset; if no record is as late, its end (`stable`).
    """
    starts = {log: of.low for log, of in bounds.items()}
    # Kafka takes negative times for its own codes; no record is before 1970.
    if earliest_ms is None or earliest_ms <= 0:
        return starts
    # Ask only about logs that have records.
    asked = {log: earliest_ms for log, of in bounds.items() if of.low < of.stable}
    for log, offset in topic_reader.offsets_at(asked).items():
        end = bounds[log].stable
        starts[log] = end if offset is None else min(offset, end)
    return starts
