"""Interface of replay sources: events as batches of columns.

A source is read once, in order, and holds at most one batch. Files must be sorted by time: an event
dated further back than the setting `events.grace` allows would count in the wrong tick, so a
`FileSource` refuses it. A `Shape` is what the settings read of an event: its time, its user, and a
view, the stream key and the items, for the histograms that count the same.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from types import MappingProxyType
from typing import TypeVar

import numpy as np

from workers.arrays.types import Longs
from workers.events.columns import Events
from workers.events.reading import Reject
from workers.kafka.records import Records
from workers.mechanisms.config.durations import format_duration
from workers.mechanisms.config.views import RECORD_KEY, Path, Shape, complaints
from workers.runtime.errors import SettingsError
from workers.settings.settings import Settings
from workers.settings.times import when

T = TypeVar("T")
Field = TypeVar("Field", Path | str, Path | str | None)


def prefetch(pieces: Iterator[T]) -> Generator[T]:
    """Prefetch from an iterator, which nothing else may use, in a background thread.

    `pieces` must not modify a piece after yielding it, nor block indefinitely, as a pipe can: an
    early stop waits for the next piece.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as reader:
        coming = reader.submit(next, pieces, None)
        while (piece := coming.result()) is not None:
            coming = reader.submit(next, pieces, None)
            yield piece


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events that were read together, from one partition.

    rejects     (line, row or offset; reason) of every rejected record
    position    progress in the source after them, in the unit of `Source.total`
    late        number of events dated further back than `grace` allows, counted in the open tick
    outside     number of events before a topic's time range; they are left out
    beyond      number of events after it; they are also in `events`, since they close ticks
    came_late   of re-keyed events, (n,): for one that was late where it came from, the watermark
                there, for others a time before their own; None: not re-keyed
    watermark   the partition's time after this batch; None: it follows from the events
    """

    partition: int
    events: Events
    rejects: list[tuple[int, str]]
    position: int
    late: int = 0
    outside: int = 0
    beyond: int = 0
    came_late: Longs | None = None
    watermark: int | None = None


class Source:
    """Base class of sources of events; those of one partition are in the worker's order.

    name        in messages
    partitions  how many there are; they are numbered from 0
    places      their names in messages (empty: nothing to distinguish)
    begins      the first watermark of each: it closes no tick before (empty: none has one)
    total       the final `EventBatch.position`; None: unknown
    word        what the numbers of rejects count: "line", "row" or "offset"
    until_ms    no tick that ends after it is published (None: no limit)
    """

    name: str
    partitions = 1
    places: Sequence[str] = ()
    begins: Sequence[int | None] = ()
    total: int | None
    word: str
    until_ms: int | None = None

    def batches(self) -> Iterator[EventBatch]:
        """Yield the events; refuse a source that is unreadable or runs backwards in time."""
        raise NotImplementedError

    def ended(self) -> frozenset[int]:
        """Return the numbers of the partitions that have no further events."""
        return frozenset()

    def notes(self) -> Sequence[str]:
        """Return notes on what could not be read; called at the end of the source."""
        return ()


class FileSource(Source):
    """A file, whose records are numbered from 1; `shape` has the fields to read in them."""

    def __init__(self, settings: Settings, name: str, total: int | None) -> None:
        self.name = name
        self.total = total
        self.shape = shape_of_files(settings)
        self._grace = settings.events.grace_ms
        self._latest = 0  # latest time so far, ms

    def sample(self, number: int) -> Records:
        """Return the first records as whole JSON events, without reading any as events."""
        raise NotImplementedError

    def _batch(
        self, number: int, events: Events, rejected: Iterable[Reject], position: int
    ) -> EventBatch:
        """Return the records from the one with this number on, as read; refuse unsorted times."""
        if len(events):
            self._check_order(events.times, number + events.index)
        rejects = [(number + each.index, each.reason) for each in rejected]
        # A file is one partition, number 0.
        return EventBatch(0, events, rejects, position)

    def _check_order(self, times: Longs, numbers: Longs) -> None:
        """Refuse events dated further back than `grace`; note the latest time."""
        # Fast path: times are usually sorted.
        if (times[1:] >= times[:-1]).all() and times[0] >= self._latest:
            self._latest = int(times[-1])
            return
        latest = np.maximum(np.maximum.accumulate(times), self._latest)
        back = latest - times
        if int(back.max()) > self._grace:
            at = int(np.argmax(back > self._grace))
            off = int(back[at])
            span = f"{off:,} ms" if off < 1000 else f"{timedelta(seconds=off // 1000)}"
            raise SettingsError(
                f"{self.name}: {self.word} {numbers[at]:,} is dated {when(int(times[at]))}, {span} before an earlier "
                f"{self.word}: events.grace = {format_duration(self._grace)!r} does not allow that, as it would count in the wrong tick. "
                "Sort the input by time, or raise events.grace"
            )
        self._latest = int(latest[-1])


def shape_of_files(settings: Settings) -> Shape:
    """Return the fields to read from events in a file; refuse a field with two meanings.

    A file has no records, so what the settings take from a record is in a field there: its time,
    without `events.timestamp`, in `ts`, and its key, also as the user, in `key`.
    """
    shape = settings.shape
    views = {
        name: replace(view, key=_in_file(view.key))
        for name, view in shape.views.items()
    }
    time = shape.time or Path(("ts",))
    user = _in_file(shape.user)
    found = replace(shape, views=MappingProxyType(views), time=time, user=user)
    for _, complaint in complaints(found):
        raise SettingsError(
            f"events.{complaint}; in a file the record key is the field 'key', and the time is 'ts' if events.timestamp is left out"
        )
    return found


def _in_file(field: Field) -> Field | Path:
    return Path(("key",)) if field == RECORD_KEY else field
