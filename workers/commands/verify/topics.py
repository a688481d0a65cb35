"""The topics themselves as a copy: everything signed must be there, and everything there signed."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from confluent_kafka import TIMESTAMP_CREATE_TIME, Consumer

from workers.client.config import ReaderSettings
from workers.client.reading import no_such_topic
from workers.client.verifying import NotAsSigned, Place, SignedHistory
from workers.commands.verify.records import Records
from workers.kafka.reading import (
    Partition,
    await_commits,
    bounds_of,
    read_spans,
    reader,
)
from workers.kafka.topics import ExistingTopic, describe
from workers.pipeline.signatures import SignedTick
from workers.runtime.printing import ProgressLine
from workers.settings.settings import signatures_topic

Bounds = Mapping[Partition, tuple[int, int]]
#: Takes the value of a record of the signatures.
Keep = Callable[[bytes], object]


def signatures_of(settings: ReaderSettings) -> ExistingTopic:
    """Return the topic of signatures; raise SettingsError if there is none."""
    name = signatures_topic(settings.worker)
    found = describe(settings.connection, [name])
    if name not in found:
        raise no_such_topic(settings.connection, name)
    return found[name]


class SignedTopics:
    """The signatures and histogram topics of a worker, up to their ends now."""

    def __init__(self, settings: ReaderSettings, progress: ProgressLine) -> None:
        """Look up the topics that the settings name; raise SettingsError without signatures."""
        self._connection = settings.connection
        self._histogram_of = settings.topics
        self._progress = progress
        self._signatures = signatures_of(settings)

    def read_signatures(self, history: SignedHistory, keep: Keep) -> None:
        """Take all records of the signatures topic; `keep` gets their values."""
        with reader(self._connection) as consumer:
            bounds = _bounds(consumer, [self._signatures])
            for record in _read(consumer, bounds):
                take_signature(history, record)
                keep(record.value)
        history.finish()

    def verify(self, history: SignedHistory, keep: Keep) -> Records:
        """Check the histogram topics against the signatures topic.

        What is published meanwhile may lack its counterpart: records from after the first look at
        the signatures need no snapshot, and signatures are read up to a look after the last one.
        """
        existing = describe(self._connection, self._histogram_of)
        for topic in self._histogram_of:
            if topic not in existing:
                raise no_such_topic(self._connection, topic)
        outputs = list(existing.values())
        # Snapshots signed after the first look, which may not have been published before the next.
        later: set[Place] = set()
        records = Records(history)
        with reader(self._connection) as consumer:
            # A snapshot and its signature are published together. So what was signed at the first
            # look is among the snapshots read, and all of these are among the signatures read.
            first_look = _bounds(consumer, [self._signatures])
            await_commits(self._connection, _partitions(outputs))
            published = _bounds(consumer, outputs)
            await_commits(self._connection, _partitions([self._signatures]))
            signed = _bounds(consumer, [self._signatures])
            for record in _read(consumer, signed):
                tick = take_signature(history, record)
                keep(record.value)
                _begin, end = first_look[record.log]
                if record.offset >= end:
                    later |= places_of(tick)
                self._progress.update(f"{history.records:,} signatures")
            history.finish()
            for number, record in enumerate(_read(consumer, published), 1):
                take_snapshot(records, self._histogram_of[record.log[0]], record)
                self._progress.update(f"{number:,} records of snapshots")
        records.finish()
        # Series whose first snapshots were deleted by retention: their topics begin above 0.
        cut = {
            self._histogram_of[topic]
            for (topic, _), (low, _) in published.items()
            if low
        }
        served = set(self._histogram_of.values())

        def must_be_there(place: Place) -> bool:
            """Return whether a signed snapshot cannot be missing in the topics."""
            series, key, end_ms = place
            # Of a histogram that the settings lack, or signed after the first look.
            if series not in served or place in later:
                return False
            if series not in cut:
                return True
            # Retention deletes the oldest: nothing behind the first tick that is still there.
            ends_ms = records.checked[series].ends.get(key)
            return ends_ms is not None and end_ms >= ends_ms[0]

        history.refuse_missing(filter(must_be_there, history.signed))
        return records


class Record(NamedTuple):
    """A record of a topic; `time_ms` is as the worker stated it, None if the broker replaced it."""

    log: Partition
    offset: int
    key: bytes
    value: bytes
    time_ms: int | None

    @property
    def place(self) -> str:
        topic, partition = self.log
        return f"{topic}[{partition}] offset {self.offset}"


def take_signature(history: SignedHistory, record: Record) -> SignedTick:
    """Take a record of the signatures topic; raise NotAsSigned for a wrong key or time.

    The signature does not cover them, but the tick that is signed says what they must be.
    """
    tick = history.add(record.value, record.place, record.log)
    key = f"{tick.histogram}/{tick.owner}".encode()
    if record.key != key or record.time_ms not in (None, tick.end):
        raise NotAsSigned(
            f"{record.place}: its record has another key or time than is signed"
        )
    return tick


def take_snapshot(records: Records, series: str, record: Record) -> None:
    """Check a record of a histogram topic."""
    records.take(
        series, record.value, record.place, record.log, record.key, record.time_ms
    )


def places_of(tick: SignedTick) -> set[Place]:
    """Return the snapshots that a record signs."""
    return {
        (series, key, tick.end) for series, keys in tick.heads.items() for key in keys
    }


def _partitions(topics: list[ExistingTopic]) -> list[Partition]:
    return [(one.name, part) for one in topics for part in range(one.partitions)]


def _bounds(consumer: Consumer, topics: list[ExistingTopic]) -> Bounds:
    """Return the first offset and the end of every partition, as they are now."""
    return {where: bounds_of(consumer, *where) for where in _partitions(topics)}


def _read(consumer: Consumer, bounds: Bounds) -> Iterator[Record]:
    """Yield all records within bounds, in the order of each partition."""
    spans = {where: span for where, span in bounds.items() if span[0] < span[1]}
    for chunk in read_spans(consumer, spans) if spans else ():
        for message in chunk.messages:
            # Of another kind, it is the time at which the broker got the record.
            kind, time_ms = message.timestamp()
            yield Record(
                chunk.where,
                message.offset() or 0,
                message.key() or b"",
                message.value() or b"",
                time_ms if kind == TIMESTAMP_CREATE_TIME else None,
            )
