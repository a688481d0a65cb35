"""Copy new snapshots from the histogram topics into an output, each once.

A commit covers the records before one offset of each partition. The offsets are chosen so that all
records of a snapshot (its pages and parts) lie on the same side: those before are exported, the
others are read again by the next commit or run. A snapshot that stays incomplete is left out, and
named in the output by the commit that passes its records.
"""

from collections.abc import Collection, Mapping
from itertools import chain
from typing import NamedTuple

import click
from confluent_kafka import Message

from workers.client.config import load_reader_settings
from workers.client.messages import LostTick, Stream
from workers.client.reading import Assembly, Between, Snapshot, Topics, open_topics
from workers.client.tables import Tables
from workers.commands.export.files import Files
from workers.commands.export.iceberg import Catalog
from workers.commands.export.output import Output, Progress, Selection, State
from workers.commands.options import Export
from workers.kafka.reading import Partition
from workers.runtime.errors import SettingsError
from workers.runtime.printing import plural, printable
from workers.settings.times import when

# A commit has this many rows, and those of at most one more snapshot and fetch.
ROWS = 250_000

# Where a record lies: topic and partition, and its offset there.
RecordPlace = tuple[Partition, int]


def export(chosen: Export) -> int:
    """Export up to the present ends of the topics, and say how much that was."""
    between = Between.of(chosen.since, chosen.until, ("--from", "--to"))
    settings = load_reader_settings(chosen.config)
    selection = Selection(
        worker=settings.worker,
        format=chosen.kind,
        histograms=tuple(sorted(set(chosen.histograms))),
        since_ms=between.since_ms,
        until_ms=between.until_ms,
    )
    opener = Catalog.open if chosen.kind == "iceberg" else Files.open
    with opener(chosen.output, chosen.kind) as sink:
        before = sink.load()
        if before is not None and before.selection != selection:
            raise SettingsError(
                f"--output {chosen.output}: holds {_described(before.selection)}, and this is "
                f"{_described(selection)}; give another directory"
            )
        with open_topics(settings, selection.histograms) as topics:
            run = _Run(sink, topics, selection, before)
            run.read()
    click.echo(run.summary)
    return 0


def _described(selection: Selection) -> str:
    """Return what is exported, in words."""
    since, until = (
        "..." if bound_ms is None else when(bound_ms)
        for bound_ms in (selection.since_ms, selection.until_ms)
    )
    names = ", ".join(selection.histograms) or "all histograms"
    return f"{selection.format} of {selection.worker}, {names}, from {since} to {until}"


class _Run:
    """One run of an export: reads the topics to their present ends, and commits as it goes."""

    def __init__(
        self, sink: Output, topics: Topics, selection: Selection, before: State | None
    ) -> None:
        """Begin where the last export ended, with the state `before`; None: there was none."""
        self._sink = sink
        self._topics = topics
        self._selection = selection
        self._between = Between(selection.since_ms, selection.until_ms)
        self._before = {} if before is None else before.topics
        self._positions = self._starts()
        # Topics that lost their first records to retention, and are read from there: a snapshot's
        # first pages may be gone.
        cut_short = {
            topic
            for (topic, partition), (low, _high) in topics.bounds.items()
            if 0 < low == self._positions[topic, partition]
        }
        self._cut = Cut(topics.histogram_of, self._positions, topics.ends, cut_short)
        self._rows = 0
        self._snapshots = 0
        self._lost = 0
        # When the first and the last exported tick ended, ms; empty before there is one.
        self._first_and_last: list[int] = []

    def _starts(self) -> dict[Partition, int]:
        """Return the offsets to read from: where the last export ended, else by the selected time.

        Raise SettingsError for a topic that is another one by now, or lost what was not exported.
        """
        starts = self._topics.starts(self._between.since_ms)
        for topic, progress in self._before.items():
            if topic not in self._topics.existing:
                continue
            is_same = self._topics.existing[topic].topic_id == progress.topic_id
            if not is_same or any(
                offset > self._topics.bounds[topic, partition][1]
                for partition, offset in progress.next.items()
            ):
                raise SettingsError(
                    f"{topic}: not the topic that was exported before; export this one to another --output"
                )
            for partition, offset in progress.next.items():
                low, _high = self._topics.bounds[topic, partition]
                if offset < low:
                    raise SettingsError(
                        f"{topic}: retention removed the records from offset {offset} to {low - 1} of a partition "
                        "before they were exported; export what is left to another --output"
                    )
            starts |= {(topic, part): offset for part, offset in progress.next.items()}
        return starts

    def read(self) -> None:
        """Read all records, and commit whenever enough rows have come."""
        # Some messages of a partition at a time, and the offset before which all were read.
        for chunk in self._topics.read(dict(self._positions)):
            for message in chunk.messages:
                self._cut.receive(chunk.where, message)
            self._cut.move(chunk.where, chunk.position)
            if self._cut.rows >= ROWS:
                self._commit()
        self._commit()

    def _commit(self) -> None:
        """Write the whole snapshots so far, with the offsets to continue at, in one step."""
        snapshots, positions = self._cut.take()
        lost = [tick for tick in self._cut.lost if self._between.contains(tick.end)]
        # Nothing new. But the first commit is made without rows too: it keeps the selection.
        if positions == self._positions and self._before:
            return
        selected = [
            snapshot for snapshot in snapshots if self._between.contains(snapshot.end)
        ]
        rows = Tables.of(selected)
        topics = dict(self._before)
        for name, topic in self._topics.existing.items():
            next_offsets = {
                partition: offset
                for (other, partition), offset in positions.items()
                if other == name
            }
            topics[name] = Progress(topic.topic_id, next_offsets)
        self._sink.commit(rows, State(self._selection, topics))
        self._positions = positions
        self._before = topics
        self._rows += len(rows.items)
        self._snapshots += len(selected)
        self._lost += len(lost)
        _say_lost(lost)
        ends = [*self._first_and_last, *(snapshot.end for snapshot in selected)]
        self._first_and_last = [min(ends), max(ends)] if ends else []

    @property
    def summary(self) -> str:
        """A sentence on what was exported."""
        left_out = f"; {plural(self._lost, 'tick')} left out" if self._lost else ""
        if not self._snapshots:
            return f"nothing new{left_out}"
        first, last = map(when, self._first_and_last)
        return (
            f"{plural(self._rows, 'row')} from {plural(self._snapshots, 'snapshot')}, of ticks that ended from {first} to "
            f"{last}{left_out}"
        )


def _say_lost(lost: list[LostTick]) -> None:
    """Name each stream whose ticks were left out, on stderr."""
    ticks_of: dict[tuple[Stream, bool], list[LostTick]] = {}
    for tick in lost:
        ticks_of.setdefault((tick.stream, tick.parts > 1), []).append(tick)
    for ((histogram, key), in_parts), ticks in ticks_of.items():
        first = when(min(tick.end for tick in ticks))
        last = when(max(tick.end for tick in ticks))
        cause = "without all their parts" if in_parts else "with missing pages"
        counted = plural(len(ticks), "tick")
        click.echo(
            f"{histogram} {printable(key)}: {counted} {cause} left out, ended from {first} to {last}",
            err=True,
        )


class _SnapshotId(NamedTuple):
    """The snapshot that a record belongs to: its pages and parts have all of this in common."""

    topic: str
    key: str
    id: str
    tick: int


class _Finished(NamedTuple):
    """A whole snapshot, or one that stays incomplete, and where all its records lie."""

    snapshot: Snapshot | LostTick
    records: list[RecordPlace]


class Cut:
    """Snapshots read since the last commit, from which `take` returns what can be committed.

    A cut is an offset of each partition that has no snapshot's records on both sides: the next
    commit or run reads on from there. The run reads each partition up to its offset in `ends`.
    `cut_short` names topics that lost their first records to retention: a snapshot that stays
    incomplete there is nothing to report.
    """

    def __init__(
        self,
        histogram_of: Mapping[str, str],
        positions: Mapping[Partition, int],
        ends: Mapping[Partition, int],
        cut_short: Collection[str] = (),
    ) -> None:
        """Begin at the offsets `positions`; `histogram_of` has the series of each topic.

        The others are as in the class's docstring.
        """
        # Rows in the output of the whole snapshots that `take` has not returned yet.
        self.rows = 0
        # Ticks that were left out before the last cut.
        self.lost: list[LostTick] = []
        self._assembly = Assembly(histogram_of)
        self._assembly.start(positions, ends)
        self._positions = dict(positions)
        self._ends = ends
        self._cut_short = cut_short
        self._finished: list[_Finished] = []
        self._waiting: dict[_SnapshotId, list[RecordPlace]] = {}

    def receive(self, where: Partition, message: Message) -> None:
        """Take a record; it completes a snapshot, or waits for the others of its own."""
        record = where, message.offset() or 0
        topic, _partition = where
        snapshot = self._assembly.receive(where, message)
        # The record itself: the last one that the assembly got of its topic.
        head = self._assembly.last(topic)
        its_id = _SnapshotId(topic, head.key, head.id, head.tick)
        if snapshot is None:
            self._waiting.setdefault(its_id, []).append(record)
        else:
            self._finish(its_id, snapshot, [record])
            self.rows += _rows(snapshot)

    def move(self, where: Partition, position: int) -> None:
        """Note that all records before a position were received."""
        self._positions[where] = position
        # Nothing more comes from there: snapshots that still lack records of it are lost.
        if position >= self._ends[where]:
            self._assembly.finish(where)
        for topic, tick in self._assembly.take_lost():
            its_id = _SnapshotId(topic, tick.stream.key, tick.id, tick.tick)
            self._finish(its_id, tick)

    def take(self) -> tuple[list[Snapshot], dict[Partition, int]]:
        """Return the whole snapshots before a cut, each once, and the offsets of the cut."""
        cut = dict(self._positions)
        before = self._finished
        waiting = list(self._waiting.values())
        self._finished = []
        # Cut before the records of every snapshot that waits for more. That may cut off some of a
        # finished snapshot's records: then it waits too, and the cut moves again.
        while waiting:
            for where, offset in chain.from_iterable(waiting):
                cut[where] = min(cut[where], offset)
            early: list[_Finished] = []
            waiting = []
            for finished in before:
                if all(offset < cut[where] for where, offset in finished.records):
                    early.append(finished)
                else:
                    self._finished.append(finished)
                    waiting.append(finished.records)
            before = early
        self.rows = sum(_rows(finished.snapshot) for finished in self._finished)
        snapshots: list[Snapshot] = []
        self.lost = []
        for snapshot, records in before:
            if isinstance(snapshot, Snapshot):
                snapshots.append(snapshot)
                continue
            # Else it is retention that took some of its records.
            (topic, _partition), _offset = records[0]
            if topic not in self._cut_short:
                self.lost.append(snapshot)
        return snapshots, cut

    def _finish(
        self,
        its_id: _SnapshotId,
        snapshot: Snapshot | LostTick,
        last: Collection[RecordPlace] = (),
    ) -> None:
        """Note that a snapshot is whole or lost; its records wait no more.

        `last` has the record that made it whole, which has not waited; none if it is lost.
        """
        records = [*self._waiting.pop(its_id, ()), *last]
        self._finished.append(_Finished(snapshot, records))


def _rows(snapshot: Snapshot | LostTick) -> int:
    """Return how many rows a snapshot takes in the output, which decides when to commit.

    That is one an item, and at least one; none for a snapshot that is left out.
    """
    if isinstance(snapshot, LostTick):
        return 0
    return max(len(snapshot.items or ()), 1)
