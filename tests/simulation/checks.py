"""The invariants, checked at every append and marker, and the whole at the end.

one set of bytes    of a tick, read uncommitted too, over all attempts
exactly once        every event in one tick of each lane, or one reject
no gap, no double   among the committed snapshots of a stream key
charged first       with a ceiling: an epoch's reservation is committed before its first tick
one line of state   every commit continues the state that the one before it left
whole               a transaction is committed as its client sent it, and only if it asked
"""

import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from tests.cluster.broker import Attempt, Log, Record, Watcher
from tests.pipeline.pipeline import rows_of
from workers.agents.progress import PROGRESS, read_progress
from workers.mechanisms.config.histogram import Lane
from workers.pipeline.contributions import decode
from workers.pipeline.growth.owners import Owners
from workers.pipeline.growth.sources import Joined, SourceProgress
from workers.pipeline.merge import Merge


class Violation(Exception):
    """An invariant does not hold."""


@dataclass(frozen=True)
class Roles:
    """Which topic is what; `outputs` has histograms by topic."""

    contributions: str
    rejects: str
    #: State of the stage that reads events.
    first_state: str
    release_state: str
    states: tuple[str, ...]
    outputs: Mapping[str, str]


#: A stream key, and which part of it.
Place = tuple[bytes, int]


def place_of(key: bytes | None, value: bytes) -> Place:
    return key or b"", json.loads(value).get("part", 1)


@dataclass
class Checks(Watcher):
    roles: Roles
    ceiling: bool
    #: Which lanes each event should count in, by label, and labels by the event's bytes.
    events: dict[str, bytes] = field(default_factory=dict)
    counted: Counter[tuple[Lane, str]] = field(default_factory=Counter)
    rejected: Counter[bytes] = field(default_factory=Counter)
    #: Checksums of ticks, whether or not they were committed.
    ticks: dict[tuple[str, int, Place], int] = field(default_factory=dict)
    #: Snapshots that another attempt brought again.
    repeated: int = 0
    #: End of the last committed tick, by output topic and place.
    ends: dict[tuple[str, Place], int] = field(default_factory=dict)
    attempts: list[Attempt] = field(default_factory=list)
    progress: dict[int, bytes] = field(default_factory=dict)
    #: Committed growth of the events topic, and of the owners.
    joined: tuple[Joined, ...] = ()
    owners: Owners | None = None
    published: dict[str, dict[tuple[Place, int], bytes]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    _state_ends: dict[tuple[str, int], int] = field(default_factory=dict)
    _read_to: dict[tuple[str, int], int] = field(default_factory=dict)
    _reserved: dict[tuple[int, str], int] = field(default_factory=dict)

    # ---- at every step ------------------------------------------------------------------------

    def appended(self, log: Log, records: Sequence[Record]) -> None:
        histogram = self.roles.outputs.get(log.where[0])
        if histogram is None:
            return
        for record in records:
            value = record.value or b""
            of_part = place_of(record.key, value)
            place = (log.where[0], record.time_ms, of_part)
            found = zlib.crc32(value)
            self.repeated += place in self.ticks
            if self.ticks.setdefault(place, found) != found:
                raise Violation(f"{histogram}: a tick has two sets of bytes: {value!r}")
            if self.ceiling:
                self._check_charge(histogram, record, json.loads(value)["epoch"])

    def _check_charge(self, histogram: str, record: Record, epoch: int) -> None:
        assert record.attempt is not None
        owner = int(record.attempt.owner.rpartition("-")[2])
        if self._reserved.get((owner, histogram), -1) >= epoch:
            return
        value = self.progress.get(owner)
        reserved = (
            None
            if value is None
            else read_progress(value).histograms[histogram].reserved
        )
        if not isinstance(reserved, int) or reserved < epoch:
            raise Violation(
                f"{histogram}: epoch {epoch} is published; charged up to {reserved}"
            )
        self._reserved[owner, histogram] = reserved

    def marked(self, log: Log, records: Sequence[Record], committed: bool) -> None:
        topic = log.where[0]
        if topic in self.roles.outputs:
            self._read(log)
        attempts = {
            id(one.attempt): one.attempt for one in records if one.attempt is not None
        }
        if not committed:
            return
        if len(attempts) > 1:
            raise Violation(
                f"{log}: one commit of the records of {len(attempts)} transactions"
            )
        for attempt in attempts.values():
            if not attempt.commits:
                raise Violation(
                    f"{log}: committed, and {attempt.owner} did not ask for it"
                )
            if not attempt.committed:
                self.attempts.append(attempt)
            attempt.committed += len(records)
            if topic in self.roles.states:
                self._check_line(log, attempt, records)
        if topic == self.roles.contributions:
            self._count(records)
        elif topic == self.roles.rejects:
            for record in records:
                self._reject(record.value or b"")

    def _check_line(
        self, log: Log, attempt: Attempt, records: Sequence[Record]
    ) -> None:
        before = self._state_ends.get(log.where, 0)
        if before > attempt.based_on:
            raise Violation(
                f"{log}: {attempt.owner} continues the state at {attempt.based_on}, which ended at {before}"
            )
        self._state_ends[log.where] = records[-1].offset + 1
        topic, number = log.where
        values = [one.value or b"" for one in records if one.key == PROGRESS]
        if topic == self.roles.release_state and values:
            self.progress[number] = values[-1]
        elif (topic, number) == (self.roles.first_state, 0) and values:
            joined = msgspec.json.decode(values[-1], type=SourceProgress).joined
            if joined[: len(self.joined)] != self.joined:
                raise Violation(
                    f"{log}: partitions that joined are forgotten: {joined}"
                )
            self.joined = joined
        if (topic, number) == (self.roles.states[0], 0) and values:
            owners = msgspec.json.decode(values[-1], type=SourceProgress).owners
            known = self.owners
            if known is not None and (
                owners is None or owners.grown[: len(known.grown)] != known.grown
            ):
                raise Violation(f"{log}: owners are forgotten: {owners}")
            self.owners = owners

    def _count(self, records: Sequence[Record]) -> None:
        for record in records:
            for section in decode(record.value or b"").sections:
                for _, label, n in rows_of(section):
                    place = section.lane, label
                    self.counted[place] += n
                    if self.counted[place] > 1:
                        raise Violation(
                            f"event {label} counts {self.counted[place]} times"
                        )

    def _reject(self, value: bytes) -> None:
        self.rejected[value] += 1
        if self.rejected[value] > 1:
            raise Violation(f"{value!r} is rejected {self.rejected[value]} times")

    def _read(self, log: Log) -> None:
        """Take what a reader of committed records gets: nothing behind an open transaction."""
        records = log.data(self._read_to.get(log.where, 0), log.stable)
        self._read_to[log.where] = log.stable
        self._publish(log.where[0], records)

    def _publish(self, topic: str, records: Sequence[Record]) -> None:
        for record in records:
            place = place_of(record.key, record.value or b"")
            value = json.loads(record.value or b"")
            before = self.ends.get((topic, place))
            start = value["start"]
            end = value["end"]
            if before is not None and start != before:
                raise Violation(
                    f"{topic} {place}: a tick begins at {start}, expected {before}"
                )
            self.ends[topic, place] = end
            self.published[topic][place, end] = record.value or b""

    # ---- at the end ---------------------------------------------------------------------------

    def missing(self, lanes: Sequence[Lane]) -> list[str]:
        """Return the events that are in no tick or reject yet."""
        return [
            label
            for label, value in self.events.items()
            if value not in self.rejected
            and not all((lane, label) in self.counted for lane in lanes)
        ]

    def check_end(self, lanes: Sequence[Lane]) -> None:
        for label, value in self.events.items():
            times = [self.counted[lane, label] for lane in lanes]
            wanted = int(value not in self.rejected)
            if times != [wanted] * len(lanes):
                raise Violation(
                    f"event {label} counts {times} times; it is rejected: {not wanted}"
                )
        for attempt in self.attempts:
            if attempt.committed != attempt.messages:
                raise Violation(
                    f"{attempt.owner}: {attempt.committed} of {attempt.messages} messages are committed"
                )

    def check_snapshots(self, owner: int, contributions: Log, merge: Merge) -> None:
        """Compare an owner's committed snapshots with those of its contributions alone."""
        for record in contributions.data(0, contributions.stable):
            merge.receive(record.value or b"", record.offset)
        merge.reached(contributions.stable)
        while (released := merge.release()).ticks:
            for one in released.snapshots:
                place = place_of(one.key.encode(), one.value)
                found = self.published[one.topic].get((place, one.end_ms))
                if found is not None and found != one.value:
                    raise Violation(
                        f"{one.topic}: {found!r} is published, right is {one.value!r}"
                    )
