"""Copy new snapshots from the histogram topics into an output, each once.

A commit covers the records before one offset of each partition. The offsets are chosen so that all
records of a snapshot (its pages) lie on the same side: those before are exported, the others are
read again by the next commit or run.
"""

import math
from collections.abc import Collection, Mapping
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import click
import msgspec
from confluent_kafka import Message

from workers.client.reading import Assembly, Between, Snapshot, Topics, open_topics
from workers.client.tables import table
from workers.commands.export.files import Files
from workers.commands.export.iceberg import Table
from workers.commands.export.output import Output, Progress, Selection, State
from workers.dashboard.config import load_dashboard
from workers.kafka.reading import Partition
from workers.runtime.errors import SettingsError
from workers.runtime.printing import plural
from workers.settings.times import when

# A commit has this many rows, and those of at most one more snapshot and fetch.
ROWS = 250_000

Offset = tuple[Partition, int]


def export(
    config: Path,
    *,
    output: Path,
    kind: str,
    histograms: tuple[str, ...],
    since: str | None,
    until: str | None,
) -> int:
    """Export up to the present ends of the topics, and say how much that was."""
    between = Between.of(since, until, ("--from", "--to"))
    settings = load_dashboard(config)
    selection = Selection(
        worker=settings.worker,
        format=kind,
        histograms=tuple(sorted(set(histograms))),
        since_ms=between.since_ms,
        until_ms=between.until_ms,
    )
    opener = Table.open if kind == "iceberg" else Files.open
    with opener(output, kind) as sink:
        before = sink.load()
        if before is not None and before.selection != selection:
            raise SettingsError(
                f"--output {output}: holds {_described(before.selection)}, and this is "
                f"{_described(selection)}; give another directory"
            )
        with open_topics(settings, selection.histograms) as topics:
            run = _Run(sink, topics, selection, before)
            run.read()
    click.echo(run.summary)
    return 0


def _described(selection: Selection) -> str:
    since, until = (
        "..." if at is None else when(at) for at in (selection.since_ms, selection.until_ms)
    )
    names = ", ".join(selection.histograms) or "all histograms"
    return f"{selection.format} of {selection.worker}, {names}, from {since} to {until}"


class _Run:
    """One run of an export."""

    def __init__(
        self, sink: Output, topics: Topics, selection: Selection, before: State | None
    ) -> None:
        self._sink, self._topics, self._selection = sink, topics, selection
        self._between = Between(selection.since_ms, selection.until_ms)
        self._before = {} if before is None else before.topics
        self._positions = self._starts()
        # Read from where retention left off: a snapshot's first pages may be gone.
        cut_short = {
            where[0]
            for where, (low, _) in topics.bounds.items()
            if 0 < low == self._positions[where]
        }
        ends = {where: high for where, (_, high) in topics.bounds.items()}
        self._cut = Cut(topics.histogram_of, self._positions, ends, cut_short)
        self._rows = self._snapshots = 0
        self._ends: list[int] = []

    def _starts(self) -> dict[Partition, int]:
        """Return the positions to read from; refuse topics that lost or changed what is there."""
        starts = self._topics.starts(self._between.since_ms)
        for topic, progress in self._before.items():
            if topic not in self._topics.existing:
                continue
            places = [(at, *self._topics.bounds[topic, part]) for part, at in progress.next.items()]
            same = self._topics.existing[topic].topic_id == progress.topic_id
            if not same or any(at > high for at, _, high in places):
                raise SettingsError(
                    f"{topic}: not the topic that was exported before; export this one to another --output"
                )
            for at, low, _ in places:
                if at < low:
                    raise SettingsError(
                        f"{topic}: retention removed the records from offset {at} to {low - 1} of a partition "
                        "before they were exported; export what is left to another --output"
                    )
            starts |= {(topic, part): at for part, at in progress.next.items()}
        return starts

    def read(self) -> None:
        for where, messages, position, _ in self._topics.read(dict(self._positions)):
            for message in messages:
                self._cut.receive(where, message)
            self._cut.move(where, position)
            if self._cut.rows >= ROWS:
                self._commit()
        self._commit()

    def _commit(self) -> None:
        found, positions = self._cut.take()
        if positions == self._positions and self._before:
            return
        wanted = [one for one in found if self._between.contains(one.end)]
        rows = table(wanted)
        topics = dict(self._before)
        for name, topic in self._topics.existing.items():
            next_of = {part: at for (other, part), at in positions.items() if other == name}
            topics[name] = Progress(topic.topic_id, next_of)
        self._sink.commit(rows, State(self._selection, topics))
        self._positions, self._before = positions, topics
        self._rows += len(rows)
        self._snapshots += len(wanted)
        ends = [*self._ends, *(one.end for one in wanted)]
        self._ends = [min(ends), max(ends)] if ends else []

    @property
    def summary(self) -> str:
        if not self._snapshots:
            return "nothing new"
        since, until = map(when, self._ends)
        counted = f"{plural(self._rows, 'row')} from {plural(self._snapshots, 'snapshot')}"
        return f"{counted}, of ticks that ended from {since} to {until}"


class _Place(msgspec.Struct, frozen=True):
    """Of which snapshot a record has a page."""

    key: str
    id: str
    tick: int
    end: int


_PLACES = msgspec.json.Decoder(_Place)


class _Whole(NamedTuple):
    snapshot: Snapshot
    records: list[Offset]


class Cut:
    """Snapshots read so far, and the offsets up to which all of them are whole.

    The run reads each partition up to its offset in `ends`. `cut_short` names topics that lost
    their first records to retention: a snapshot that never becomes whole there is left out.
    """

    def __init__(
        self,
        histogram_of: Mapping[str, str],
        positions: Mapping[Partition, int],
        ends: Mapping[Partition, int],
        cut_short: Collection[str] = (),
    ) -> None:
        self.rows = 0
        self._assembly = Assembly(histogram_of)
        self._positions = dict(positions)
        self._cut_short = cut_short
        self._whole: list[_Whole] = []
        self._parts: dict[tuple[str, _Place], list[Offset]] = {}
        self._ends = ends
        # The end of the newest tick of each partition, infinite once it is read.
        self._passed = {where: self._end_of(where, 0) for where in positions}
        # The end of the newest whole snapshot, by topic and stream key.
        self._newest: dict[tuple[str, str], int] = {}

    def _end_of(self, where: Partition, end_ms: float) -> float:
        return math.inf if self._positions[where] >= self._ends[where] else end_ms

    def receive(self, where: Partition, message: Message) -> None:
        record = where, message.offset() or 0
        found = self._assembly.receive(where, message)
        if found is None:
            place = _PLACES.decode(message.value() or b"")
            self._parts.setdefault((where[0], place), []).append(record)
        else:
            place = _Place(found.key, found.id, found.tick, found.end)
            self._whole.append(_Whole(found, [*self._parts.pop((where[0], place), ()), record]))
            self._newest[where[0], found.key] = found.end
            self.rows += max(len(found.items or ()), 1)
        self._passed[where] = place.end

    def move(self, where: Partition, position: int) -> None:
        """Note that all records before a position were received."""
        self._positions[where] = position
        self._passed[where] = self._end_of(where, self._passed[where])

    def take(self) -> tuple[list[Snapshot], dict[Partition, int]]:
        """Return the whole snapshots before a cut, each once, and the offsets of the cut."""
        self._drop_lost()
        cut, free = dict(self._positions), self._whole
        waiting = list(self._parts.values())
        self._whole = []
        while waiting:
            for where, offset in chain.from_iterable(waiting):
                cut[where] = min(cut[where], offset)
            late = [one for one in free if any(at >= cut[where] for where, at in one.records)]
            free = [one for one in free if all(at < cut[where] for where, at in one.records)]
            self._whole += late
            waiting = [one.records for one in late]
        self.rows = sum(max(len(one.snapshot.items or ()), 1) for one in self._whole)
        return [one.snapshot for one in free], cut

    def _drop_lost(self) -> None:
        """Drop snapshots that lack pages for ever: every partition has later ones, or was read."""
        for (topic, place), records in list(self._parts.items()):
            passed = min(end for where, end in self._passed.items() if where[0] == topic)
            if min(passed, self._newest.get((topic, place.key), 0)) <= place.end:
                continue
            if topic not in self._cut_short:
                (_, partition), offset = records[0]
                raise SettingsError(
                    f"{topic}[{partition}] offset {offset}: a snapshot with missing pages"
                )
            del self._parts[topic, place]
