"""The real shards of every stage in one process, with only Kafka and the clock replaced.

Transactions are recorded, and what they send is what the next stage reads. Everything above them is
the worker's own: readers, commits, restarts from committed state, a raised generation.

Stages read only what earlier ones sent, so a run takes shard by shard through the script. Where a
shard's input is that of another world, byte for byte, its commits are taken from there: that equal
inputs give equal outputs is what `tests/contract` and every 16th world here, run whole, show.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple, cast
from unittest.mock import patch

from tests.cluster.connection import records_of
from tests.neighbours.formats import Registered
from tests.neighbours.scenes import BY_USER, Record, Scene, Step
from workers.agents import ceiling_guard, contribute, rekey, release, source_shard
from workers.agents.progress import read_progress
from workers.events import columns
from workers.events import log as logs
from workers.events.formats import protobuf
from workers.events.formats import reader as formats
from workers.events.formats.protobuf_schemas import compile_schema
from workers.kafka import shard as shards
from workers.kafka import store
from workers.kafka.offsets import LogEnd
from workers.kafka.reading import Partition
from workers.kafka.records import Batch, Headers, Outgoing, Records
from workers.kafka.transaction import Delivery
from workers.mechanisms.accounting import PrivacyCost
from workers.pipeline import merge, users, waiting, watermark
from workers.pipeline.contributions import decode
from workers.pipeline.intake import Intake
from workers.pipeline.merge import Merge, ReleaseProgress
from workers.privacy import ceiling
from workers.privacy.total import epsilon_at
from workers.runtime.errors import CeilingReached
from workers.runtime.metrics import CONTRIBUTE, REKEY, RELEASE
from workers.runtime.sizes import Change


class Clock:
    """Replaces the module `time` in what shards run; the script sets it."""

    now_ms = 0

    def time_ns(self) -> int:
        return self.now_ms * 1_000_000

    def time(self) -> float:
        return self.now_ms / 1000

    monotonic = perf_counter = time


CLOCK = Clock()
# Of stage and partition, or topic and partition.
Where = tuple[str, int]


class Sent(NamedTuple):
    """A record of an internal topic, and the step of the script that sent it."""

    offset: int
    step: int
    key: bytes | None
    value: bytes | None
    time_ms: int
    headers: Headers


@dataclass(slots=True)
class Commit:
    """One transaction; `state` is what the state topic got."""

    stage: str
    partition: int
    step: int
    now_ms: int
    messages: list[Outgoing]
    forwarded: list[tuple[bytes, bytes, int, int, Headers | None]]
    state: dict[bytes, bytes | None]

    def sent(
        self, log: Where
    ) -> Iterator[tuple[bytes | None, bytes | None, int, Headers]]:
        """Yield key, value, time and headers of what it sent to a partition."""
        topic, partition = log
        if topic == BY_USER:
            for value, key, to, time_ms, headers in self.forwarded:
                if to == partition:
                    yield key, value, time_ms, headers or ()
        for one in self.messages:
            if (one.topic, one.partition) == log:
                yield one.key, one.value, self.now_ms, one.headers


class ShardRun:
    """One shard through the script, with its restarts. The double of its `Transactions`.

    An owner partition sees the charges of those before it, `owners`, as they were at each step.
    They are public, so equal in both worlds unless that is found there.
    """

    def __init__(
        self, scene: Scene, where: Where, records: "Log", owners: "Sequence[Trail]" = ()
    ) -> None:
        self.scene = scene
        self.where = where
        self.log = records
        self._owners = owners
        self.commits: list[Commit] = []
        self._state: dict[bytes, bytes] = {}
        self._state_end = self._step = 0
        self._shard: Any = None
        self._factory = scene.factories[0]

    def perform(self, script: Sequence[Step]) -> "Trail":
        try:
            self._perform(script)
        except CeilingReached as error:  # the worker ends
            return Trail(self.where, self.commits, f"step {self._step}: {error}")
        finally:
            # A shard has megabytes, and knows this one: a cycle would keep them.
            self._shard = None
        return Trail(self.where, self.commits)

    def _perform(self, script: Sequence[Step]) -> None:
        for self._step, step in enumerate(script):
            if step.kind == "raise":
                self._factory = self.scene.factories[1]
                self._shard = None
            if (step.stage, step.partition) != self.where:
                continue
            CLOCK.now_ms = step.now_ms
            if step.kind == "restart":
                self._shard = None
                continue
            shard = self._shard = self._shard or self._opened()
            if step.kind == "read":
                batch = self.log.batch(shard.offset, step, self._step)
                if batch.end > batch.start:
                    shard.feed(batch)
            elif step.kind == "end":
                with shard._work():
                    shard.reached(LogEnd(step.now_ms, shard.offset))
            else:
                shard.tick_idle()

    def transact(
        self,
        messages: Sequence[Outgoing],
        changes: Sequence[Change],
        forwarded: Any = (),
        delivery: Delivery | None = None,
    ) -> int:
        sent = [message for records in forwarded for message in records.messages()]
        stage, partition = self.where
        at_ms = CLOCK.now_ms
        messages = list(messages)
        if delivery is not None:
            at_ms = max(at_ms, round(1000 * delivery.time_s()))
            messages += delivery.messages
        of = stage, partition, self._step, at_ms
        self.commits.append(Commit(*of, messages, sent, dict(changes)))
        for key, value in changes:
            if value is None:
                self._state.pop(key, None)
            else:
                self._state[key] = value
        self._state_end += len(changes) + 1
        return self._state_end

    def take_over(self) -> None: ...

    def renew(self) -> None: ...

    def close(self) -> None: ...

    def _opened(self) -> Any:
        stage, partition = self.where
        factory = self._factory
        shard = cast(Any, None)
        if stage == RELEASE:
            shard = factory.release_shard(partition)
        elif stage == REKEY:
            shard = factory.rekey_shard(list(factory.topics.origins)[partition])
        else:
            shard = factory.contribute_shard(list(factory.sources)[partition])
        shard.transactions = self
        shard.connection = self  # for `complete_ms`
        shard.store.load = self._load
        if stage == RELEASE and shard._guard is not None:
            shard._guard.others = ceiling_guard.OtherWorkers(
                factory.settings, cast(Any, self)
            )
        self._shard = shard
        shard.open()
        shard.offset = shard.offset or 0
        return shard

    def _load(self, *_: object) -> int:
        copy = self._shard.store.open()
        if self._state_end:
            copy.write(list(self._state.items()), self._state_end)
        return len(self._state)

    def charges(self, places: Sequence[Partition]) -> dict[Partition, ReleaseProgress]:
        """Double of `workers.agents.progress.read_newest`."""
        found = {}
        for place in places:
            own = self.commits if place[1] == self.where[1] else ()
            commits = (
                self._owners[place[1]].commits if place[1] < len(self._owners) else own
            )
            before = [commit for commit in commits if commit.step <= self._step]
            if before:
                found[place] = read_progress(before[-1].state[b"progress"] or b"")
        return found

    def complete_ms(self, progress: ReleaseProgress) -> int | None:
        """Double of `workers.agents.progress.complete_ms`."""
        marks = list(progress.watermarks)
        for sent in self.log.until(self._step):
            if sent.offset >= progress.position:
                message = decode(sent.value or b"")
                if message.page == message.pages:
                    marks[message.source] = message.watermark
        known = [mark for mark in marks if mark is not None]
        return min(known) if len(known) == len(marks) else None


class Log:
    """What a shard reads: an internal topic's partition."""

    def __init__(self, where: Where, commits: Sequence[Commit]) -> None:
        """`commits` are those of the stage before, by step."""
        self.sent: list[Sent] = []
        self._ends: list[tuple[int, int]] = []  # step and end of every transaction
        end = 0
        for commit in commits:
            before = end
            for one in commit.sent(where):
                self.sent.append(Sent(end, commit.step, *one))
                end += 1
            if end > before:
                end += 1  # its marker
                self._ends.append((commit.step, end))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Log) and self.sent == other.sent

    def until(self, step: int) -> list[Sent]:
        return self.sent[: bisect_left(self.sent, step, key=attrgetter("step"))]

    def batch(self, start: int, step: Step, at: int) -> Batch:
        present = self.until(at)
        first = bisect_left(present, start, key=attrgetter("offset"))
        part = present[first : first + step.most]
        if first + step.most >= len(present):
            place = bisect_left(self._ends, (at, 0))
            end = self._ends[place - 1][1] if place else 0
        else:
            end = part[-1].offset + 1
        return Batch(start, max(start, end), records_of(part))


class Events(Log):
    """A partition of an events topic."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Events) and self.records == other.records

    def batch(self, start: int, step: Step, at: int) -> Batch:
        part = []
        for one in self.records[start : start + step.most]:
            if one.arrived_ms > step.now_ms:
                break
            part.append(one)
        stop = start + len(part)
        keys = [one.key for one in part]
        times = [one.time_ms for one in part]
        values = [one.value for one in part]
        return Batch(start, stop, Records.of(values, keys, times, range(start, stop)))


class World:
    """The commits of all shards, from the records of every partition of events."""

    def __init__(
        self,
        scene: Scene,
        streams: Sequence[Sequence[Record]],
        script: Sequence[Step],
        others: "Sequence[World]" = (),
    ) -> None:
        """`others`: worlds to take commits from, where a shard's input is equal."""
        self.of: dict[Where, Trail] = {}
        self._logs: dict[Where, Log] = {}
        self.scene = scene
        self._script = script
        self._others = others
        logs: list[Log] = [Events(records) for records in streams]
        if scene.rekey:
            commits = self._stage(REKEY, logs)
            logs = [Log((BY_USER, source), commits) for source in range(scene.sources)]
        commits = self._stage(CONTRIBUTE, logs)
        topic = scene.contributions
        self._stage(
            RELEASE, [Log((topic, owner), commits) for owner in range(scene.owners)]
        )

    def log(self, stage: str, partition: int) -> Log:
        """Return what a shard reads."""
        return self._logs[stage, partition]

    def _stage(self, stage: str, logs: Sequence[Log]) -> list[Commit]:
        """Return the commits of a stage, by step."""
        for partition, log in enumerate(logs):
            where = stage, partition
            self._logs[where] = log
            equal = (one.of[where] for one in self._others if one._logs[where] == log)
            self.of[where] = next(equal, None) or self._performed(where, log)
        trails = (self.of[stage, partition].commits for partition in range(len(logs)))
        return sorted(chain.from_iterable(trails), key=attrgetter("step"))

    def _performed(self, where: Where, log: Log) -> "Trail":
        owners = (
            [self.of[RELEASE, owner] for owner in range(where[1])]
            if where[0] == RELEASE
            else []
        )
        with tight() if self.scene.tight else nullcontext():
            return ShardRun(self.scene, where, log, owners).perform(self._script)


@dataclass(frozen=True, eq=False, slots=True)
class Trail:
    """What a shard did; worlds in which it read the same share it. `ended`: where it had to end."""

    where: Where
    commits: list[Commit]
    ended: str | None = None


_compile_schema = cache(compile_schema)


@cache
def _remembered(costs: tuple[PrivacyCost, ...], delta: float) -> float | None:
    return epsilon_at(costs, delta)


def _epsilon_at(costs: Sequence[PrivacyCost], delta: float) -> float | None:
    """Double that computes equal charges of worlds once."""
    return _remembered(tuple(costs), delta)


@contextmanager
def replaced() -> Iterator[None]:
    """Replace clock, Kafka and registry in the modules of shards."""
    doubles: list[tuple[Any, str, Any]] = [
        # It takes longer to clear a shard's megabytes of them than to read a stream.
        (columns, "SLOTS", 256),
        (shards, "end_of", lambda *_: 0),
        (release, "complete_ms", lambda run, _, __, at: run.complete_ms(at)),
        (formats, "Registry", Registered),
        # A process for each.
        (protobuf, "compile_schema", _compile_schema),
        (ceiling_guard, "read_newest", lambda run, places: run.charges(places)),
        (ceiling_guard, "partition_counts", lambda _: {}),
        (ceiling_guard.CeilingGuard, "_published", lambda self: None),
        (ceiling_guard.OtherWorkers, "charges", lambda self: []),
        (ceiling, "epsilon_at", _epsilon_at),
    ]
    clocked = (
        contribute,
        rekey,
        release,
        source_shard,
        shards,
        store,
        watermark,
        waiting,
    )
    with ExitStack() as patches:
        for module, name, double in (
            *doubles,
            *((module, "time", CLOCK) for module in clocked),
        ):
            patches.enter_context(patch.object(module, name, double))
        yield


# A planted leak may stand in the method's place, and calls this.
_TAKE_MESSAGES = Intake.take_messages


@contextmanager
def tight() -> Iterator[None]:
    """Make buffers hold a record or two, messages some rows, and transactions a tick."""
    limits: list[tuple[Any, str, int]] = [
        (source_shard, "REJECTS_MAX", 1),
        (users, "ROWS_PENDING_MAX", 2),
        (rekey, "PENDING_RECORDS", 1),
        (logs, "DECLINED_BYTES", 1),
        (merge, "BYTES_MAX", 1),
        (merge, "TICKS_IN_A_ROW", 1),
    ]
    of_calls: list[tuple[Any, str, int]] = [
        (Merge.__init__, "waiting_bytes_max", 400),
        (_TAKE_MESSAGES, "max_bytes", 300),
    ]
    with ExitStack() as patches:
        for module, name, most in limits:
            patches.enter_context(patch.object(module, name, most))
        for function, name, most in of_calls:
            patches.enter_context(patch.dict(function.__kwdefaults__, {name: most}))
        yield
