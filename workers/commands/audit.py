"""Recompute every snapshot from the contributions and compare byte for byte (`quietcount audit`).

It proves that every published snapshot is the exact sum of the contributions plus the noise derived
from the key, that no tick is missing or published twice, and that the contributions have no gap.
It needs the operator's key and access to exact data.

An owner partition ("owner") holds a share of the stream keys, in one partition of the contributions
topic. If a stream key's items are split over several owners, each holds a part. When the topic
grew, owners "handed over" stream keys to new ones (`pipeline.growth.owners`): what they sent is
recomputed too. So are the commitments in signed ticks (`pipeline.signatures`). The release state
says which ticks an owner has published. A series is what one output topic gets: a window, or the
counts since an epoch began. `Histogram.outputs` has a pair (series, topic) for each; a series'
number is its place there. Another generation of a histogram is one with other settings.

Where old contributions were deleted (`agents.keeping`), the audit of an owner begins with an older
state of it that was kept, a checkpoint; snapshots published before that are only counted.
"""

import hashlib
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

import msgspec
import orjson
from confluent_kafka import Message
from msgspec.structs import replace

from workers.agents.keeping import checkpoints
from workers.agents.progress import PROGRESS, read_progress
from workers.agents.topics import check_topics, connection_of
from workers.commands.compiling import ensure_compiled
from workers.kafka.reading import await_commits, bounds_of, read_partition, reader
from workers.kafka.store import Changelog, Store
from workers.mechanisms.noise.keyed import NoiseKey
from workers.pipeline.contributions import Section, decode
from workers.pipeline.factory import histograms, mechanisms
from workers.pipeline.growth.owners import HandedOver, owner_of
from workers.pipeline.histogram import Histogram
from workers.pipeline.ledger_blocks import read_paged
from workers.pipeline.merge import Merge, Pairs, ReleaseProgress
from workers.pipeline.signatures import decode as decode_signature
from workers.pipeline.signing import Chain, Commitments
from workers.pipeline.snapshots import Snapshot
from workers.runtime.errors import SettingsError
from workers.runtime.printing import ProgressLine
from workers.runtime.sizes import Change
from workers.settings.files import read_key
from workers.settings.settings import Settings
from workers.settings.times import when

EXIT_DIFFERENCE = 1
# Cannot match inside a label: its quotes are escaped, and no colon follows an item's label.
_WINDOWS = re.compile(rb',"windows":\[[^\]]*\]')


class Difference(Exception):
    """What was published is not what the contributions give; the message says where."""


# Histogram, generation, owner partition, and tick as numbered from the start of its grid.
Tick = tuple[str, int, int, int]
#: A tick's commitments to key and settings, and to contributions, as hexadecimal digits.
Committed = tuple[str, str]


@dataclass(slots=True)
class Tally:
    """The snapshots of one series that were found equal; `ticks` has the ends of theirs in ms.

    `keys` are their stream keys.
    """

    snapshots: int = 0
    ticks: set[int] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)


class Restored(NamedTuple):
    """An owner's histograms as in a checkpoint, with the progress of those that still run."""

    merge: Merge
    progress: ReleaseProgress

    def next_tick(self, name: str) -> int | None:
        """Return the tick with which a histogram continues; None if it had not begun."""
        life = self.progress.histograms.get(name)
        return None if life is None else life.next


class RecomputedHistogram(Histogram):
    """A histogram that publishes again what a worker has published.

    Its stream keys are those that the worker's state names, with the tick from which each was
    served: `served_from`. Which keys the settings allow by now does not matter.
    """

    def repeat(self, first: int, served_from: Mapping[str, int]) -> None:
        """Begin at the tick `first`, the first one that was published."""
        self.start_at(first)
        self.serve_from(first, served_from)
        # Those served before `first`, by another owner, which handed them over.
        for key in served_from.keys() - self._declared.keys():
            self._append_key(key, served_from[key])

    def serve_from(self, begin: int, served_from: Mapping[str, int]) -> None:
        """Have `advance` begin to serve the keys of tick `begin` and later, each at its tick.

        A histogram restored from a checkpoint has those served before.
        """
        # No key is served because an event has it, even if the settings allow that by now.
        self._public = False
        self._declared = {k: tick for k, tick in served_from.items() if tick >= begin}


class Recommitted:
    """A `TickSigner` for `Merge` that only computes an owner's commitments again, into `computed`.

    They depend on the noise key. It signs nothing, so it has no chain of records to continue.
    """

    def __init__(
        self, noise: NoiseKey, owner: int, computed: dict[Tick, Committed]
    ) -> None:
        """Put the commitments of an owner's ticks into `computed`; `noise` is the worker's key."""
        self._owner = owner
        self._computed = computed
        self._commitments = Commitments(noise, owner)

    def sign(
        self,
        histogram: Histogram,
        tick: int,
        snapshots: Sequence[Snapshot],
        sections: Sequence[Section],
    ) -> Iterator[Snapshot]:
        """Note a tick's commitments where `Merge` would have it signed; yield no record."""
        settings = self._commitments.commit_to_settings(histogram)
        contributions = self._commitments.commit_to_counted(histogram, tick, sections)
        generation = histogram.life.generation
        self._computed[histogram.name, generation, self._owner, tick] = (
            settings.hex(),
            contributions.hex(),
        )
        yield from ()

    def restore(
        self, chains: Mapping[str, Chain], histograms: Iterable[Histogram]
    ) -> None:
        """Do nothing: there is no chain."""

    def changes(self) -> list[Change]:
        """Return nothing to store."""
        return []


class Auditor:
    """Comparison of a worker's published snapshots with those that its contributions give."""

    def __init__(self, settings: Settings) -> None:
        """Connect to the Kafka of the worker to audit, with its settings and its key."""
        self._settings = settings
        self._key = NoiseKey(read_key(settings.worker.key_file))
        self._connection = connection_of(settings)
        self._topics = check_topics(settings, self._connection)
        self._outputs = settings.output_topics
        self._owners = self._topics.owners
        # What was handed over to each owner, by histogram and generation, until it is recomputed.
        self._handed: dict[int, dict[tuple[str, int], HandedOver]] = {}
        self._built = mechanisms(settings)
        # Digests of published snapshots without their windows, until one recomputed is equal.
        self._published: Counter[bytes] = Counter()
        # Digests of whole snapshots that have windows: windows may change while a histogram runs.
        self._windowed: set[bytes] = set()
        # The `id` of every recomputed series.
        self._ids: set[str] = set()
        # By (series, stream key, part from 1), the start of a tick, ms: the first one that was not
        # published yet when the state was read, and the first one after a checkpoint.
        self._next: dict[tuple[str, str, int], int] = {}
        self._begins: dict[tuple[str, str, int], int] = {}
        # What the audit of an owner begins with, if its old contributions are deleted.
        self._restored: dict[int, Restored] = {}
        #: By series.
        self.tallies: dict[str, Tally] = {
            series.name: Tally()
            for config in settings.histograms
            for series in config.series
        }
        #: Messages read from the contributions topic.
        self.messages = 0
        #: Snapshots of earlier generations or settings.
        self.others = 0
        #: Snapshots that are equal but for their windows.
        self.other_windows = 0
        #: Snapshots from before a checkpoint.
        self.older = 0
        # What the signatures of recomputed ticks should commit to.
        self._computed: dict[Tick, Committed] = {}
        #: Signed commitments that were found equal.
        self.commitments = 0

    @property
    def begin_ms(self) -> int | None:
        """The time from which on everything is compared; None if from the first snapshot."""
        return max(self._begins.values(), default=None)

    def run(self, progress: ProgressLine, exact: IO[bytes] | None) -> None:
        """Compare everything, to the first `Difference`.

        Write every snapshot's line, with exact counts, to `exact`; None: nowhere.
        """
        self._progress = progress
        self._exact = exact
        # The worker may be running: read the states before the published snapshots.
        states = [self._state(owner) for owner in range(self._owners.number)]
        outputs = [
            (topic, partition)
            for topic in self._outputs
            for partition in range(self._topics.partitions(topic))
        ]
        await_commits(self._connection, outputs)
        self._note_published()
        # From the highest number down: owners that joined later come first, so that what an owner
        # handed over can be compared with what they received.
        for owner, state in reversed(list(enumerate(states))):
            if owner >= self._owners.first:
                self._read_handed(owner)
            if state is not None:
                self._recompute(owner, *state)
        if self._published.total():
            self._explain_rest()
        if self._settings.signatures_topic is not None:
            self._match_commitments(self._settings.signatures_topic)

    def _match_commitments(self, topic: str) -> None:
        """Compare what was committed to in public with what the key and contributions give.

        Whether signatures are genuine and complete is for `quietcount verify` to say.
        """
        for message in self._messages(topic):
            record = decode_signature(message.value() or b"")
            where = f"{topic}[{message.partition()}] offset {message.offset()}"
            if record is None:
                raise Difference(f"{where}: not a record of a signed tick")
            tick = record.histogram, record.generation, record.owner, record.tick
            computed = self._computed.get(tick)
            # Of an ended generation, or outside what was computed.
            if computed is None:
                continue
            for what, expected, published in zip(
                ("key and settings", "contributions"),
                computed,
                (record.commitment, record.contributions),
                strict=True,
            ):
                if expected != published:
                    raise Difference(
                        f"{where}: histogram {record.histogram!r}, the tick that ends at {when(record.end)}: the signed "
                        f"commitment to its {what} is not to what was counted"
                    )
            self.commitments += 1

    def _note_published(self) -> None:
        """Keep the digests of every published snapshot, for `_match` and `_explain_rest`."""
        for topic in self._outputs:
            for message in self._messages(topic):
                key = message.key() or b""
                value = message.value() or b""
                without_windows = _without_windows(value)
                self._published[_digest(topic, key, without_windows)] += 1
                if without_windows != value:
                    self._windowed.add(_digest(topic, key, value))

    def _messages(self, topic: str) -> Iterator[Message]:
        for partition in range(self._topics.partitions(topic)):
            yield from read_partition(self._connection, topic, partition)

    def _state(self, owner: int) -> tuple[Merge, int] | None:
        """Return an owner's histograms as in its state, and the offset before which it counted.

        None if it has no state. Also note the checkpoint that the audit of the owner begins with.
        """
        topic = self._settings.release_state_topic
        # Without a directory for a copy on disk: it is only read.
        store = Store(None, Changelog(topic, owner, self._topics.id(topic)))
        store.load(self._connection)
        value = read_paged(PROGRESS, store.get)
        if value is None:
            return None
        stored = read_progress(value)
        current = self._merge(owner)
        # It refuses state of another key, topic or mechanism.
        current.restore(stored, store.items)
        self._note_checkpoint(owner, store, current)
        return current, stored.position

    def _note_checkpoint(self, owner: int, store: Store, current: Merge) -> None:
        """Begin with the oldest checkpoint that can be used, if old contributions are deleted.

        That is one from which on all contributions are still there.
        """
        topic = self._settings.contributions_topic
        with reader(self._connection) as consumer:
            first_offset, _end = bounds_of(consumer, topic, owner)
        if not first_offset:
            return
        # The older one first. If none can be used, `_recompute` cannot read the contributions.
        for checkpoint in checkpoints(store):
            # Where reading resumes after it.
            if checkpoint.progress.offset >= first_offset:
                items = partial(checkpoint.items, store)
                self._begin_with(owner, current, checkpoint.progress, items)
                return

    def _begin_with(
        self, owner: int, current: Merge, progress: ReleaseProgress, items: Pairs
    ) -> None:
        """Begin the audit of an owner with the state in a checkpoint."""
        running = {
            (histogram.name, histogram.life.generation)
            for histogram in current.histograms
        }
        # Ended generations are not computed again.
        progress.histograms = {
            name: life
            for name, life in progress.histograms.items()
            if (name, life.generation) in running
        }
        progress.retired = []
        merge = self._merge(owner)
        merge.restore(progress, items)
        self._restored[owner] = Restored(merge, progress)

    def _read_handed(self, owner: int) -> None:
        """Read what was handed over to an owner, which may take several messages."""
        topic = self._settings.contributions_topic
        handed = dict[tuple[str, int], HandedOver]()
        # Unless old contributions are deleted, none may be missing at the beginning.
        whole = owner not in self._restored
        for message in read_partition(self._connection, topic, owner, whole=whole):
            if (page := decode(message.value() or b"").handed) is not None:
                generation = page.histogram, page.generation
                keys_before = handed[generation].keys if generation in handed else []
                handed[generation] = replace(page, keys=keys_before + page.keys)
        self._handed[owner] = handed

    def _repeating(self, owner: int, current: Merge) -> Merge:
        """Return histograms that compute again what an owner has published.

        They begin where those of its state, `current`, began, or at a checkpoint, with the stream
        keys that were served since: those of now, and those handed over to new owners.
        """
        restored = self._restored.get(owner)
        repeating = self._merge(owner) if restored is None else restored.merge
        # By histogram and generation: stream keys, with the tick from which they were served.
        handed_over = dict[tuple[str, int], dict[str, int]]()
        for _new_owner, by_generation in self._handed_by(owner):
            for generation, handed in by_generation.items():
                handed_over.setdefault(generation, {}).update(handed.keys)
        for published, histogram in zip(
            current.histograms, repeating.histograms, strict=True
        ):
            # The first tick that was published; None: there is none yet.
            first = published.life.first
            generation = (published.name, published.life.generation)
            # (`_merge` makes no others: the second is for the type checker.)
            if first is None or not isinstance(histogram, RecomputedHistogram):
                continue
            served = published.served() | handed_over.get(generation, {})
            # Where the checkpoint continues; None: from `first` on.
            begin = None if restored is None else restored.next_tick(published.name)
            if begin is not None:
                for key in histogram.served():
                    # Snapshots number parts from 1.
                    part = histogram.part_of(key) + 1
                    self._note_begin(histogram, key, part, begin)
                histogram.serve_from(begin, served)
                continue
            histogram.repeat(first, served)
            if published.takes_over:
                self._check_taken(owner, published, served)
        return repeating

    def _note_moved(self, new_owner: int, merge: Merge, handed: HandedOver) -> None:
        """Note that keys which left an owner before its checkpoint are computed by `new_owner`.

        What the old one published of them, up to the hand-over, is not computed by anyone.
        """
        for histogram in merge.histograms:
            if histogram.name == handed.histogram:
                for key, part in self._parts_handed(new_owner, handed):
                    self._note_begin(histogram, key, part, handed.tick)

    def _parts_handed(
        self, new_owner: int, handed: HandedOver
    ) -> Iterator[tuple[str, int]]:
        """Yield the stream keys handed over to an owner, with the part, from 1, of each.

        A part keeps its number when it moves.
        """
        # How many there were after the growth that added the owner.
        owners = next(number for number in self._owners.numbers if number > new_owner)
        for key, _since in handed.keys:
            # `part_owner` reversed: a key's parts lie with its owner and with those that follow it.
            yield key, (new_owner - owner_of(key, owners)) % owners + 1

    def _note_begin(self, histogram: Histogram, key: str, part: int, tick: int) -> None:
        """Note that a part of a stream key's snapshots is computed from a tick on.

        If it is noted twice, as it moved between owners, the later tick counts.
        """
        start_ms = histogram.grid.start(tick)
        for series, _topic in histogram.outputs:
            output = (series, key, part)
            self._begins[output] = max(start_ms, self._begins.get(output, 0))

    def _handed_by(
        self, owner: int
    ) -> Iterator[tuple[int, dict[tuple[str, int], HandedOver]]]:
        """Yield the owners that took stream keys over from this one, with what each of them got."""
        for new_owner, handed in self._handed.items():
            # Keys lie with their hash modulo the owners, whose number became a multiple.
            if new_owner % self._owners.number_before(new_owner) == owner:
                yield new_owner, handed

    def _check_taken(
        self, owner: int, histogram: Histogram, served: Mapping[str, int]
    ) -> None:
        """Check that an owner serves all that was handed over to it.

        `served` has its stream keys, each with the tick from which it is served.
        """
        handed = self._handed[owner].get((histogram.name, histogram.life.generation))
        first = histogram.life.first
        if handed is None or first is None or first < handed.tick:
            raise Difference(
                f"histogram {histogram.name!r}: owner partition {owner} began, and nothing was handed over to it"
            )
        for key, since in handed.keys:
            if served.get(key) != since:
                raise Difference(
                    f"histogram {histogram.name!r}, key {key!r}: handed over to owner partition {owner} and not served there"
                )

    def _take_handed(
        self, histogram: Histogram, new_owner: int, expected: HandedOver
    ) -> None:
        """Check that an owner was handed what recomputing the old owner hands over, `expected`.

        Raise Difference if not, else take it out of `_handed`: what is left there in the end is an
        error. `histogram` is the old owner's, which publishes nothing of these keys from the
        hand-over's tick on: that is noted in `_next`.
        """
        handed = self._handed[new_owner].pop(
            (expected.histogram, expected.generation), None
        )
        restored = self._restored.get(new_owner)
        if restored is not None and restored.next_tick(expected.histogram) is not None:
            # The message may have been deleted: then the checkpoint has the keys.
            handed = handed or expected
        if (
            handed is None
            or handed.tick != expected.tick
            or dict(handed.keys) != dict(expected.keys)
        ):
            raise _wrongly_handed(expected.histogram, new_owner)
        start_ms = histogram.grid.start(expected.tick)
        for key, part in self._parts_handed(new_owner, expected):
            for series, _topic in histogram.outputs:
                # The new owner was recomputed before, and has set where its own state ends: that
                # counts. Only if it has no state yet, all from the hand-over on is newer.
                self._next.setdefault((series, key, part), start_ms)

    def _merge(self, owner: int) -> Merge:
        """Return fresh histograms of an owner, with nothing counted yet."""
        settings = self._settings
        # The topics that the noise depends on.
        stream = self._topics.stream(
            settings.contributions_topic, settings.release_state_topic
        )
        fresh = histograms(
            RecomputedHistogram,
            settings,
            self._built,
            key=self._key,
            stream=stream,
            owner=owner,
            # Contributions tell of more owners and sources, as they told the worker.
            owners=self._owners.first,
        )
        signing = None
        if settings.signatures_topic is not None:
            signing = Recommitted(self._key, owner, self._computed)
        return Merge(
            fresh,
            key=self._key,
            sources=self._topics.sources.first_count,
            owners=self._owners.first,
            signing=signing,
        )

    def _recompute(self, owner: int, current: Merge, position: int) -> None:
        """Release an owner partition's ticks again; remove matches from the published snapshots.

        `current` are the histograms of its state, which has counted the contributions before the
        offset `position`.
        """
        topic = self._settings.contributions_topic
        merge = self._repeating(owner, current)
        restored = self._restored.get(owner)
        since = 0 if restored is None else restored.progress.offset
        # The tick before which each histogram has stopped publishing, if it has begun (`next`).
        ends = {
            histogram.name: histogram.next
            for histogram in current.histograms
            if histogram.next is not None
        }
        for message in read_partition(
            self._connection, topic, owner, whole=restored is None, since=since
        ):
            offset = message.offset() or 0
            if offset >= position:
                break
            merge.receive(message.value() or b"", offset)
            merge.reached(offset + 1)
            self.messages += 1
            self._release(merge, ends)
        # Offsets without a message, such as a transaction's end, may lie before it.
        merge.reached(position)
        self._release(merge, ends)
        # The first one will do.
        for histogram in self._unfinished(merge, ends):
            raise Difference(
                f"histogram {histogram.name!r}: ticks up to {ends[histogram.name] - 1} were "
                f"released, but the contributions cover only those before {histogram.next}"
            )
        # What `_take_handed` has left: it was handed over before the checkpoint, or wrongly.
        recomputed = {
            (histogram.name, histogram.life.generation)
            for histogram in merge.histograms
        }
        for new_owner, by_generation in self._handed_by(owner):
            for (name, generation), handed in by_generation.items():
                if (name, generation) not in recomputed:
                    continue
                begin = 0 if restored is None else restored.next_tick(name) or 0
                if handed.tick < begin:
                    self._note_moved(new_owner, merge, handed)
                elif handed.tick < ends.get(name, 0):
                    raise _wrongly_handed(name, new_owner)
        # From here on, published snapshots of this owner are newer than its state.
        for histogram in merge.histograms:
            if (end := ends.get(histogram.name)) is None:
                continue
            for key in histogram.served():
                part = histogram.part_of(key) + 1
                for series, _topic in histogram.outputs:
                    self._next[series, key, part] = histogram.grid.start(end)

    def _release(self, merge: Merge, ends: dict[str, int]) -> None:
        """Release the ticks that are complete, and match what they give with what was published.

        `ends` has the tick before which each histogram has stopped publishing.
        """
        by_topic = {
            topic: (histogram, number)
            for histogram in merge.histograms
            for number, (_series, topic) in enumerate(histogram.outputs)
        }
        by_name = {histogram.name: histogram for histogram in merge.histograms}
        # Batches bound the memory; for the exact counts, which are those after the last released
        # tick, it is one at a time.
        ticks_max = 50 if self._exact is None else 1
        # A worker stopped while catching up has released fewer ticks than the contributions allow.
        while (
            self._unfinished(merge, ends)
            and (released := merge.release(ticks_max=ticks_max)).ticks
        ):
            # Nothing is stored here, and the changes would pile up.
            merge.changes()
            for new_owner, handed in released.handed:
                if handed.tick < ends.get(handed.histogram, 0):
                    self._take_handed(by_name[handed.histogram], new_owner, handed)
            for snapshot in released.snapshots:
                histogram, number = by_topic[snapshot.topic]
                # A batch may go on beyond what a histogram has published: its last tick ends where
                # the first one that it has not published starts.
                end_ms = histogram.grid.start(ends.get(histogram.name, 0))
                if snapshot.end_ms <= end_ms:
                    self._match(histogram, number, snapshot)
                    if self._exact is not None:
                        self._exact.write(_with_exact(histogram, number, snapshot))
            compared = sum(tally.snapshots for tally in self.tallies.values())
            self._progress.update(f"{compared:,} snapshots compared")

    @staticmethod
    def _unfinished(merge: Merge, ends: Mapping[str, int]) -> list[Histogram]:
        """Return the histograms that have published ticks not recomputed yet."""
        return [
            histogram
            for histogram in merge.histograms
            if (histogram.next or 0) < ends.get(histogram.name, 0)
        ]

    def _match(self, histogram: Histogram, number: int, snapshot: Snapshot) -> None:
        """Take one recomputed snapshot, of series `number`, out of those published; count it.

        Raise Difference if it was not published, or twice. The windows that it states are those of
        the settings when it was published: where they have changed since, that is only counted.
        So `_published` counts digests without windows, and `_windowed` has those of whole records.
        """
        without_windows = _without_windows(snapshot.value)
        digest = _digest(snapshot.topic, snapshot.key.encode(), without_windows)
        if digest not in self._published:
            raise Difference(self._mismatch(snapshot))
        if self._published[digest] > 1:
            raise Difference(
                f"{_name(snapshot.value)}: published {self._published[digest]} times"
            )
        del self._published[digest]
        # Skipped where no published snapshot states windows, nor does this one.
        if self._windowed or without_windows != snapshot.value:
            whole = _digest(snapshot.topic, snapshot.key.encode(), snapshot.value)
            self.other_windows += whole not in self._windowed
        self._ids.add(histogram.ids[number])
        series, _topic = histogram.outputs[number]
        tally = self.tallies[series]
        tally.snapshots += 1
        tally.ticks.add(snapshot.end_ms)
        tally.keys.add(snapshot.key)

    def _mismatch(self, snapshot: Snapshot) -> str:
        """Return how the published record differs from a computed one, or that it is missing."""
        computed = orjson.loads(snapshot.value)
        for message in self._messages(snapshot.topic):
            if message.key() == snapshot.key.encode():
                published = orjson.loads(message.value() or b"null")
                if not isinstance(published, dict):
                    continue
                # In `windows` they may differ, see `_match`.
                fields = [
                    name
                    for name, value in computed.items()
                    if published.get(name) != value and name != "windows"
                ]
                # With another one of these, it is the record of another tick, series, part or page.
                if not {"start", "id", "part", "page"}.intersection(fields):
                    return f"{_name(snapshot.value)}: published {_excerpt(published, fields)}, computed {_excerpt(computed, fields)}"
        return f"{_name(snapshot.value)}: missing"

    def _explain_rest(self) -> None:
        """Count the published snapshots that no recomputed one was equal to, if they may exist.

        That is, if they are older than a checkpoint, newer than the state, or of another
        generation, which is not recomputed. Raise Difference for others.
        """
        for topic in self._outputs:
            for message in self._messages(topic):
                value = message.value() or b""
                if (
                    _digest(topic, message.key() or b"", _without_windows(value))
                    not in self._published
                ):
                    continue
                try:
                    published = orjson.loads(value)
                    name = _name(value)
                    recomputed = published["id"] in self._ids
                    output = (
                        published["histogram"],
                        published["key"],
                        published.get("part", 1),
                    )
                    # By a running worker, since the state was read. (If that lacks it: infinity.)
                    newer = published["start"] >= self._next.get(output, math.inf)
                    older = published["start"] < self._begins.get(output, -math.inf)
                except (ValueError, KeyError, TypeError):
                    raise Difference(
                        f"{topic}[{message.partition()}] offset {message.offset()}: not a snapshot"
                    ) from None
                if older:
                    self.older += 1
                    continue
                if recomputed and not newer:
                    raise Difference(
                        f"{name}: published, but it does not follow from the contributions"
                    )
                self.others += not newer


def _wrongly_handed(name: str, owner: int) -> Difference:
    """Return what is wrong with the keys of a histogram that an owner was handed."""
    return Difference(
        f"histogram {name!r}: owner partition {owner} got other stream keys handed over than those "
        "that follow from the contributions"
    )


def _with_exact(histogram: Histogram, number: int, snapshot: Snapshot) -> bytes:
    """Return the line of `--exact` for a snapshot of the series `number` of a histogram.

    It has the released numbers beside the exact ones.
    """
    body = orjson.loads(snapshot.value)
    counts = histogram.exact(snapshot.key, number)
    # Mechanisms without running counts have no exact counts.
    items = [
        [label, released, counts.get(label)]
        for label, released in body.get("items", [])
    ]
    names = ("histogram", "key", "epoch", "tick", "part", "page")
    line = {name: body[name] for name in names if name in body} | {"items": items}
    if "sums" in body:
        labels = (label for label, *_ in items)
        sums = histogram.exact_sums(snapshot.key, labels, number)
        # What else is published of a sum, the mean's range, has no exact value.
        line["sums"] = [
            [total, exact_total, mean, exact_mean]
            for (total, mean, *_), (exact_total, exact_mean) in zip(
                body["sums"], sums, strict=True
            )
        ]
    if "all_items" in body:
        line["all_items"] = [body["all_items"]["count"], sum(counts.values())]
    return orjson.dumps(line) + b"\n"


def audit(settings: Settings, exact: Path | None = None) -> int:
    """Run the audit, print its findings, and return 0, or 1 after the first difference.

    `exact` is a new file for every snapshot with its exact counts, which must never be published;
    None: without.
    """
    auditor = Auditor(settings)
    ensure_compiled()
    with ProgressLine() as progress, _new_file(exact) as file:
        try:
            auditor.run(progress, file)
        except Difference as difference:
            print(f"audit: difference: {difference}")
            return EXIT_DIFFERENCE
    for name, tally in auditor.tallies.items():
        print(
            f"audit: {name}: {tally.snapshots:,} snapshots of {len(tally.ticks):,} ticks and "
            f"{len(tally.keys):,} stream keys, equal byte for byte"
        )
    if auditor.other_windows:
        print(
            f"audit: {auditor.other_windows:,} snapshots with other windows than now, compared without them"
        )
    if auditor.begin_ms is not None:
        print(
            f"audit: begins at {when(auditor.begin_ms)}: contributions before it are deleted "
            f"(worker.keep_contributions), so {auditor.older:,} earlier snapshots were not compared"
        )
    if auditor.others:
        print(
            f"audit: {auditor.others:,} snapshots of earlier generations or settings, not recomputed"
        )
    if auditor.commitments:
        print(
            f"audit: {auditor.commitments:,} signed commitments to key, settings and contributions, equal"
        )
    print(f"audit: {auditor.messages:,} contributions, no gap and none twice: clean")
    return 0


def _new_file(path: Path | None) -> AbstractContextManager[IO[bytes] | None]:
    """Open a new file for exact counts that only its owner can read; None: open none."""
    if path is None:
        return nullcontext()
    try:
        return open(path, "xb", opener=partial(os.open, mode=0o600))
    except OSError as error:
        raise SettingsError(
            f"--exact {path}: {error.strerror}; give the name of a new file"
        ) from error


def _digest(topic: str, key: bytes, value: bytes) -> bytes:
    """Return a digest of a record; the lengths keep topic, key and value apart."""
    lengths = b"%d %d " % (len(topic), len(key))
    return hashlib.blake2b(
        lengths + topic.encode() + key + value, digest_size=16
    ).digest()


def _without_windows(value: bytes) -> bytes:
    """Return a snapshot without its windows."""
    return _WINDOWS.sub(b"", value, count=1)


def _name(value: bytes) -> str:
    """Return which snapshot this is, for a message."""
    body = orjson.loads(value)
    part = f"part {body['part']}, " if "part" in body else ""
    return (
        f"histogram {body['histogram']!r}, key {body['key']!r}, epoch {body['epoch']}, "
        f"tick {body['tick']}, {part}page {body['page']}"
    )


def _excerpt(body: dict[str, object], fields: list[str]) -> str:
    text = msgspec.json.encode({name: body.get(name) for name in fields}).decode()
    return text if len(text) <= 200 else text[:197] + "..."
