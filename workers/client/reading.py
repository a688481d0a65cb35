"""Whole snapshots, typed, from the histogram topics: read_committed, from any position.

A record of a topic is a page of a part of a snapshot (`messages`), and a tick has a snapshot for
each stream key. A stream is the snapshots of one histogram and stream key; within a partition its
ticks ascend. A position is the offset of a partition's next record.
"""

import math
import time
from collections import Counter
from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec
import orjson
from confluent_kafka import Consumer, Message, TopicPartition

from workers.client.config import ReaderSettings, load_reader_settings
from workers.client.messages import (
    CountedWindow,
    Frame,
    Head,
    InvalidSnapshot,
    LostTick,
    Pages,
    SeenSnapshot,
    Stream,
)
from workers.kafka.clients import Connection
from workers.kafka.reading import (
    CHUNK_LARGE_RECORDS,
    FetchedChunk,
    Partition,
    bounds_of,
    read_partition,
    read_spans,
    reader,
)
from workers.kafka.topics import ExistingTopic, describe
from workers.privacy.public import PublicBudget, decode_budget
from workers.runtime.errors import SettingsError
from workers.settings.times import parse_time

# Time between two looks at the ends of topics that are followed.
_LOOK_AGAIN_S = 0.2
_ASK_S = 30.0
# Offsets of a partition's end that are first searched for its newest ticks. Transaction markers
# take offsets too.
_TAIL = 100
# A tick whose other records are not within this many, for each partition of its topic, is lost.
RECORDS_WITHIN = 1_000_000


class Item(NamedTuple):
    label: str
    count: int  # type: ignore[assignment]  # instead of the method of tuples


class Sum(NamedTuple):
    """An item's sum, and its mean with its interval; `mean` is None where the count may be 0."""

    sum: float
    mean: float | None
    low: float
    high: float


class Quantile(msgspec.Struct, frozen=True):
    """A quantile of numbers, such as q = 0.5: its bucket, its value, and a 95 % interval around it.

    `bucket` is a label, None while too little is counted; `value` is None then, and in the buckets
    below and above all edges. `low` and `high` are None where the interval is open.
    """

    q: float
    bucket: str | None
    value: float | None
    low: float | None
    high: float | None


class Window(msgspec.Struct, frozen=True, omit_defaults=True):
    """The errors of changes over a window of `ms`, which is the last `ticks` ticks.

    They are standard deviations of the change of a count, of a sum, and of the count of all items;
    None: not published. If `ticks` is more than the snapshot's `tick`, the change begins in the
    epoch before, whose `id` is `previous_id`.
    """

    ms: int
    ticks: int
    sd: float
    sum_sd: float | None = None
    all_items_sd: float | None = None


class Snapshot(Head, frozen=True):
    """A whole snapshot, with the fields of docs/settings.md.

    `items` is None for answers to queries; `sums` has one for each item, or none. `sd` is the
    standard deviation of the noise of every count, and a new item is shown above `threshold`; each
    is None where the mechanism has none.
    `edges` are those of the buckets of numbers. Without epochs, `items` has the counts of `window`,
    which else is None. `previous_id` is the `id` of the epoch before, if it was published.
    `further` has every other field: those of answers, and those that a later version adds.
    """

    sd: float | None
    threshold: float | None
    items: tuple[Item, ...] | None = None
    sums: tuple[Sum, ...] = ()
    edges: tuple[float, ...] = ()
    quantiles: tuple[Quantile, ...] = ()
    windows: tuple[Window, ...] = ()
    previous_id: str | None = None
    window: CountedWindow | None = None
    further: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def stream(self) -> Stream:
        return Stream(self.histogram, self.key)


_TYPED = frozenset((*Snapshot.__struct_fields__, "page", "pages")) - {"further"}
_SNAPSHOTS = msgspec.json.Decoder(Snapshot)


def snapshots(
    config: str | Path,
    *histograms: str,
    since: str | int | None = None,
    until: str | int | None = None,
    follow: bool = False,
) -> Generator[Snapshot]:
    """Yield snapshots in the order of each partition, up to the ends of the topics.

    Args:
        config: the settings file.
        histograms: their names; none: all of the file.
        since, until: only ticks with `since` < end <= `until`: RFC 3339, a day, or ms since 1970;
            None: no bound.
        follow: wait for more at the ends, for ever.
    """
    between = Between.of(since, until)
    with open_topics(load_reader_settings(Path(config)), histograms) as topics:
        positions = topics.starts(between.since_ms)
        assembly = Assembly(topics.histogram_of)
        while True:
            for _where, found in topics.snapshots(positions, assembly):
                if between.contains(found.end):
                    yield found
            if not follow:
                return
            time.sleep(_LOOK_AGAIN_S)
            topics.find_ends()


def latest(config: str | Path, *histograms: str) -> dict[Stream, Snapshot]:
    """Return the snapshots of each partition's newest tick, by histogram and stream key."""
    with open_topics(load_reader_settings(Path(config)), histograms) as topics:
        newest: dict[Stream, Snapshot] = {}
        for snapshot in topics.newest():
            known = newest.get(snapshot.stream)
            # A topic that got more partitions may have a stream key in several.
            if known is None or known.end <= snapshot.end:
                newest[snapshot.stream] = snapshot
        return dict(sorted(newest.items()))


def budget(config: str | Path) -> PublicBudget | None:
    """Return what the worker last said of its budget; None if it has said nothing yet.

    Its `sentence()` says how long the worker may run on.
    """
    settings = load_reader_settings(Path(config))
    topic = settings.budget_topic
    if topic not in describe(settings.connection, [topic]):
        return None
    newest = None
    # It has one partition, and is short: compacted.
    for message in read_partition(settings.connection, topic, 0):
        newest = message
    return None if newest is None else decode_budget(newest.value() or b"")


class Between(NamedTuple):
    """Ticks with `since_ms` < end <= `until_ms`; None: no bound."""

    since_ms: int | None
    until_ms: int | None

    @classmethod
    def of(
        cls,
        since: str | int | None,
        until: str | int | None,
        names: tuple[str, str] = ("since", "until"),
    ) -> Self:
        """Parse the bounds, each RFC 3339, a day, ms since 1970, or None: no bound.

        `names` are what messages call them.
        """
        since_ms, until_ms = (
            None if bound is None else parse_time(name, str(bound))
            for name, bound in zip(names, (since, until), strict=True)
        )
        if since_ms is not None and until_ms is not None and since_ms >= until_ms:
            raise SettingsError(
                f"{names[0]} {since}, {names[1]} {until}: an empty range"
            )
        return cls(since_ms, until_ms)

    def contains(self, end_ms: int) -> bool:
        after = self.since_ms is None or end_ms > self.since_ms
        return after and (self.until_ms is None or end_ms <= self.until_ms)


class Assembly:
    """Joins the pages and parts of snapshots, of the records of several topics.

    First `start` with what will be read, then `receive` each record and `finish` each partition;
    `take_lost` from time to time.

    A tick that lacks records is lost once a later tick of its stream is whole, since these follow
    in order. But a topic that was copied, or that got more partitions, has a stream in several: so
    a tick is lost only when all partitions of its topic are read up to its end. Memory is bounded:
    beyond it, or `RECORDS_WITHIN`, the oldest ticks are lost.
    """

    def __init__(self, histogram_of: Mapping[str, str]) -> None:
        """`histogram_of` has the histogram of each topic."""
        self._histogram_of = histogram_of
        self._pages = {topic: Pages(keeps=True) for topic in histogram_of}
        # By partition with more to read: the end of the last tick that was read, 0 before any.
        self._last_end_ms: dict[Partition, int] = {}
        # By topic.
        self._record_count: Counter[str] = Counter()
        self._partition_count: Counter[str] = Counter()

    def start(
        self, positions: Mapping[Partition, int], ends: Mapping[Partition, int]
    ) -> None:
        """Note that each partition will be read from its position to its end, both offsets.

        A partition with nothing left to read is finished already.
        """
        self._last_end_ms = {
            where: 0 for where, offset in positions.items() if offset < ends[where]
        }
        self._partition_count = Counter(topic for topic, _ in positions)

    def receive(self, where: Partition, message: Message) -> Snapshot | None:
        """Return the snapshot that a record completes; None while others are missing.

        Raise InvalidSnapshot, which says where, for a record that no worker wrote.
        """
        topic, partition = where
        pages = self._pages[topic]
        self._record_count[topic] += 1
        try:
            # The running number is for `take_lost`: what waits for too many others is lost.
            whole = pages.receive(
                self._histogram_of[topic],
                message.value(),
                position=self._record_count[topic],
            )
            snapshot = None if whole is None else typed(whole)
        except InvalidSnapshot as error:
            place = f"{topic}[{partition}] offset {message.offset()}"
            raise InvalidSnapshot(f"{place}: {error}") from None
        self._last_end_ms[where] = pages.last.end
        return snapshot

    def last(self, topic: str) -> Frame:
        """Return the frame of the record of a topic that was received last."""
        return self._pages[topic].last

    def finish(self, where: Partition) -> None:
        """Note that a partition was read up to its end."""
        self._last_end_ms.pop(where, None)

    def take_lost(self) -> list[tuple[str, LostTick]]:
        """Forget ticks that stay incomplete; return them with their topics, each once."""
        # By topic: all partitions were read up to here. A topic with nothing left is missing.
        read_to_ms: dict[str, float] = {}
        for (topic, _), end_ms in self._last_end_ms.items():
            read_to_ms[topic] = min(end_ms, read_to_ms.get(topic, math.inf))
        lost = []
        for topic, pages in self._pages.items():
            pages.forget_outdated(before_ms=read_to_ms.get(topic, math.inf))
            # A tick of which the first record came longer ago is lost.
            within = RECORDS_WITHIN * self._partition_count[topic]
            pages.forget_before(position=self._record_count[topic] - within)
            lost += [(topic, tick) for tick in pages.lost]
            pages.lost.clear()
        return lost


def typed(seen: SeenSnapshot) -> Snapshot:
    """Return a snapshot with typed fields; raise InvalidSnapshot for fields of other types."""
    try:
        snapshot = _SNAPSHOTS.decode(seen.json)
    # Its message names fields and types only, so it may be shown.
    except msgspec.DecodeError as error:
        raise InvalidSnapshot(f"a record that is no snapshot: {error}") from None
    further = {
        name: value
        for name, value in orjson.loads(seen.json).items()
        if name not in _TYPED
    }
    return msgspec.structs.replace(snapshot, further=further)


def offsets_at(
    consumer: Consumer,
    times_ms: Mapping[Partition, int],
    bounds: Mapping[Partition, tuple[int, int]],
    timeout_s: float = _ASK_S,
) -> dict[Partition, int]:
    """Return the offset of each partition's first record of its time in `times_ms` or later.

    It is the partition's very first offset where no time is given, or no record is as late: then
    all is read. `bounds` has the first offset and the end of each partition.
    """
    starts = {where: low for where, (low, _) in bounds.items()}
    asked = [
        TopicPartition(*where, time_ms)
        for where, time_ms in times_ms.items()
        if starts[where] < bounds[where][1]
    ]
    for answer in consumer.offsets_for_times(asked, timeout=timeout_s) if asked else ():
        where = answer.topic, answer.partition
        # No such record: -1. The embedded cluster cannot look up a time and returns the end.
        if answer.offset < bounds[where][1]:
            starts[where] = max(starts[where], answer.offset)
    return starts


class Topics:
    """Topics of histograms, read up to their ends at one moment.

    `bounds` has the first offset and that end for each partition, `ends` the end alone.
    """

    def __init__(
        self,
        consumer: Consumer,
        existing: Mapping[str, ExistingTopic],
        histogram_of: Mapping[str, str],
    ) -> None:
        """`existing` and `histogram_of` have the same topics, by name."""
        self._consumer = consumer
        self.existing = existing
        self.histogram_of = histogram_of
        self.find_ends()

    def find_ends(self) -> None:
        """Look up the bounds of the partitions: `read` ends at them."""
        self.bounds = {
            (topic.name, partition): bounds_of(self._consumer, topic.name, partition)
            for topic in self.existing.values()
            for partition in range(topic.partitions)
        }

    @property
    def ends(self) -> dict[Partition, int]:
        return {where: end for where, (_first, end) in self.bounds.items()}

    def starts(self, since_ms: int | None = None) -> dict[Partition, int]:
        """Return an offset of each partition from which on all ticks that end after `since_ms` are.

        A record's time is the end of its tick, or later if the broker sets it: then earlier ticks
        come too. None: the first offset.
        """
        since = {} if since_ms is None else dict.fromkeys(self.bounds, since_ms)
        return offsets_at(self._consumer, since, self.bounds)

    def read(self, positions: dict[Partition, int]) -> Iterator[FetchedChunk]:
        """Yield records from `positions` to the ends, and move `positions` past them."""
        ends = self.ends
        spans = {
            where: (offset, ends[where])
            for where, offset in positions.items()
            if offset < ends[where]
        }
        # A page may have a megabyte.
        for chunk in read_spans(self._consumer, spans, max_records=CHUNK_LARGE_RECORDS):
            positions[chunk.where] = chunk.position
            yield chunk

    def newest(self) -> Iterator[Snapshot]:
        """Yield the snapshots of each partition's newest tick, reading no more than its tail."""
        size = _TAIL
        while True:
            starts = {
                where: max(low, high - size)
                for where, (low, high) in self.bounds.items()
            }
            tails: dict[Partition, list[Snapshot]] = {where: [] for where in starts}
            for where, snapshot in self.snapshots(
                dict(starts), Assembly(self.histogram_of)
            ):
                tails[where].append(snapshot)
            # The first tick of a tail may be cut, and the newest must be whole: two after the first
            # say that it is, unless the tail is all that the partition has.
            if all(
                starts[where] == self.bounds[where][0]
                or len({snapshot.end for snapshot in tail}) > 2
                for where, tail in tails.items()
            ):
                break
            size *= 10
        for tail in tails.values():
            newest_ms = max((snapshot.end for snapshot in tail), default=0)
            yield from (snapshot for snapshot in tail if snapshot.end == newest_ms)

    def snapshots(
        self, positions: dict[Partition, int], assembly: Assembly
    ) -> Iterator[tuple[Partition, Snapshot]]:
        """Yield snapshots from `positions` to the ends, with the partition of their last record.

        As records are read, `positions` move past them. Ticks that are lost are left out.
        """
        assembly.start(positions, self.ends)
        for chunk in self.read(positions):
            for message in chunk.messages:
                if (found := assembly.receive(chunk.where, message)) is not None:
                    yield chunk.where, found
            if chunk.ended:
                assembly.finish(chunk.where)
            assembly.take_lost()


def no_such_topic(connection: Connection, topic: str) -> SettingsError:
    """Return the error, to be raised, that a topic does not exist or may not be seen."""
    return SettingsError(
        f"no such topic on {connection.bootstrap}: {topic}; "
        "`quietcount topics --create` makes it, or this principal may not see it"
    )


@contextmanager
def open_topics(
    settings: ReaderSettings, histograms: Collection[str] = ()
) -> Iterator[Topics]:
    """Yield the topics of some histograms (none: of all); refuse those that do not exist."""
    topic_of = {histogram.name: histogram.topic for histogram in settings.histograms}
    for name in histograms:
        if name not in topic_of:
            raise SettingsError(
                f"histogram {name}: not in the settings file; it has {', '.join(topic_of)}"
            )
    histogram_of = {topic_of[name]: name for name in histograms or topic_of}
    existing = describe(settings.connection, histogram_of)
    for topic in histogram_of:
        if topic not in existing:
            raise no_such_topic(settings.connection, topic)
    with reader(settings.connection) as consumer:
        yield Topics(consumer, existing, histogram_of)
