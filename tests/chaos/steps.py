"""Named steps of a worker, and wrappers around the product's functions that act at them.

`install` patches classes of this process; only `tests.chaos.worker` calls it.
"""

import functools
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka.admin import AdminClient

from workers.agents import growth, progress, topics, worker
from workers.agents.ceiling_guard import CeilingGuard
from workers.agents.release import ReleaseShard
from workers.agents.source_shard import SourceShard
from workers.kafka import shard as kafka_shard
from workers.kafka import store as kafka_store
from workers.kafka import topics as kafka_topics
from workers.kafka.handover import Handover
from workers.kafka.shard import Shard
from workers.kafka.store import Store
from workers.kafka.transaction import Transactions
from workers.kafka.transport import Consumer, ConsumerThread
from workers.pipeline.histogram import Histogram
from workers.pipeline.users import Users
from workers.runtime.errors import SourcesGrown


class Step(NamedTuple):
    """`feature` of a segment that reaches it; `seldom` within the life of a worker."""

    feature: str
    seldom: bool = False


STEPS = {
    "commit: before begin": Step(""),
    "commit: produced": Step(""),
    "commit: committed, copy not written": Step(""),
    "commit: copy written": Step(""),
    "take-over: fenced": Step("", seldom=True),
    "take-over: state half read": Step("", seldom=True),
    "take-over: restored": Step("", seldom=True),
    "hand-over: revoked": Step("", seldom=True),
    "hand-over: last commit": Step("", seldom=True),
    "hand-over: closing": Step("", seldom=True),
    "hand-over: given up": Step("", seldom=True),
    "outage: giving up": Step("outage", seldom=True),
    "outage: Kafka is back": Step("outage", seldom=True),
    "outage: fenced": Step("outage", seldom=True),
    "outage: first commit": Step("outage", seldom=True),
    "epoch: ended": Step("epochs", seldom=True),
    "epoch: committed": Step("epochs", seldom=True),
    "users: block made": Step("user"),
    "users: block committed": Step("user"),
    "re-key: records, no mark": Step("rekey"),
    "re-key: one of several marks": Step("rekey"),
    "ceiling: before the reservation": Step("ceiling", seldom=True),
    "ceiling: reserved, others not read": Step("ceiling", seldom=True),
    "ceiling: after the reservation": Step("ceiling", seldom=True),
    "generation: raised": Step("raised", seldom=True),
    "generation: committed": Step("raised", seldom=True),
    "growth: state topic to be grown": Step("growth", seldom=True),
    "growth: to be committed": Step("growth", seldom=True),
    "growth: committed": Step("growth", seldom=True),
    "growth: run begun again": Step("growth", seldom=True),
    "growth: new partition restored": Step("growth", seldom=True),
}
#: Steps of a worker's start, in this order, at which the broker is killed (`--starts`).
START_STEPS = (
    "start: before Kafka is asked",
    "start: connected",
    "start: topics listed",
    "start: ids known",
    "start: owners to be read",
    "start: sources to be read",
    "start: end of state asked",
    "start: topics checked",
    "start: states to be checked",
    "start: release state to be read",
    "start: coordinator to be asked",
    "start: coordinator known",
    "start: consumer to be made",
    "start: consumer made",
    "start: group joined",
    "take-over: connected",
    "take-over: fenced",
    "take-over: end of state asked",
    "take-over: state half read",
    "take-over: topic id asked",
    "take-over: restored",
    "start: log bounds asked",
    "start: to seek",
    "commit: before begin",
    "commit: produced",
    "commit: committed, copy not written",
    "commit: copy written",
)
BROKER = "broker"
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "term": signal.SIGTERM}
# Longest wait of a commit for the revocation that is to meet it.
_MEET_S = 1.0


class Journal:
    """One line for each event of a process: monotonic time, what, and who."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, what: str, who: str) -> None:
        os.write(self._file, f"{time.monotonic():.3f}\t{what}\t{who}\n".encode())


class Acting:
    """Acts that this process has left, in order; the first is the one that is waited for."""

    def __init__(
        self, journal: Journal, acts: list[tuple[str, str, int, str]], broker: str = ""
    ) -> None:
        """`acts` are (kind, step, nth, part of the transactional id).

        `broker` is the file with the number of the broker's process.
        """
        self.journal = journal
        self._acts = acts
        self._broker = broker
        self._lock = threading.Lock()

    def awaits(self, step: str) -> bool:
        return bool(self._acts) and self._acts[0][1] == step

    def at(
        self, step: str, who: str, before: Callable[[], object] = lambda: None
    ) -> None:
        """Act if it is the step's turn; `before` runs first. What ends the process is its last."""
        with self._lock:
            if not self.awaits(step):
                return
            kind, _, nth, of = self._acts[0]
            if of not in who:
                return
            self._acts[0] = kind, step, nth - 1, of
            if nth > 1:
                return
            before()
            self.journal.note(f"{kind} {step}", who)
            del self._acts[: 1 if kind in ("stop", BROKER) else None]
            if kind == BROKER:
                with suppress(ProcessLookupError):  # another worker was quicker
                    os.kill(int(Path(self._broker).read_text()), signal.SIGKILL)
            else:
                os.kill(os.getpid(), SIGNALS[kind])


def patch(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace a function of a class or module by `make` of it."""
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(make(original)))


def before(owner: Any, name: str, act: Callable[[Any], object]) -> None:
    """Run `act` on the first argument before each call of a function."""

    def make(original: Any) -> Any:
        def call(one: Any, *args: Any, **options: Any) -> Any:
            act(one)
            return original(one, *args, **options)

        return call

    patch(owner, name, make)


def after(owner: Any, name: str, act: Callable[[Any], object]) -> None:
    """Run `act` on the first argument after each call of a function that raises nothing."""

    def make(original: Any) -> Any:
        def call(one: Any, *args: Any, **options: Any) -> Any:
            found = original(one, *args, **options)
            act(one)
            return found

        return call

    patch(owner, name, make)


def install(acting: Acting) -> None:
    _starts(acting)
    _commits(acting)
    _take_over(acting)
    _hand_over(acting)
    _runs(acting)
    _releases(acting)
    _sources(acting)
    _growth(acting)


def _starts(acting: Acting) -> None:
    """Patch what only a start does, or does first."""

    def reach(step: str) -> Callable[[object], None]:
        return lambda _: acting.at(step, "")

    def made(original: Any) -> Any:
        async def call(self: ConsumerThread) -> None:
            await original(self)
            acting.at("start: consumer made", "")

        return call

    before(worker, "check_topics", reach("start: before Kafka is asked"))
    after(worker, "check_topics", reach("start: topics checked"))
    before(kafka_topics, "among", reach("start: connected"))
    before(kafka_topics, "with_details", reach("start: topics listed"))
    before(AdminClient, "describe_configs", reach("start: ids known"))
    before(topics, "stored_owners", reach("start: owners to be read"))
    before(topics, "counted_sources", reach("start: sources to be read"))
    before(worker, "check_states", reach("start: states to be checked"))
    before(progress, "_newest", reach("start: release state to be read"))
    before(progress, "bounds_of", reach("start: end of state asked"))
    before(worker, "await_coordinator", reach("start: coordinator to be asked"))
    after(worker, "await_coordinator", reach("start: coordinator known"))
    before(ConsumerThread, "on_start", reach("start: consumer to be made"))
    patch(ConsumerThread, "on_start", made)
    before(Handover, "acquire", reach("start: group joined"))
    after(Transactions, "look_up", reach("take-over: connected"))
    before(kafka_shard, "end_of", reach("take-over: end of state asked"))
    before(kafka_store, "current_id", reach("take-over: topic id asked"))
    before(Consumer, "bounds", reach("start: log bounds asked"))
    before(ConsumerThread, "seek_all", reach("start: to seek"))


def _commits(acting: Acting) -> None:
    at = acting.at

    def commit(original: Any) -> Any:
        def call(self: Transactions, producer: Any) -> None:
            def flush() -> None:
                self._call(producer.flush, 10)

            at("commit: produced", self._id, flush)
            if acting.awaits("hand-over: last commit"):
                until_s = time.monotonic() + _MEET_S
                while (
                    not getattr(self._owner, "closed", True)
                    and time.monotonic() < until_s
                ):
                    time.sleep(0.02)
                if getattr(self._owner, "closed", False):
                    at("hand-over: last commit", self._id, flush)
            original(self, producer)

        return call

    def committed(shard: Shard) -> None:
        acting.journal.note("commit", shard.transactional_id)
        at("commit: copy written", shard.transactional_id)

    before(Transactions, "_attempt", lambda self: at("commit: before begin", self._id))
    patch(Transactions, "_commit", commit)
    after(
        Transactions,
        "transact",
        lambda self: at("commit: committed, copy not written", self._id),
    )
    after(Shard, "transact", committed)


def _take_over(acting: Acting) -> None:
    at = acting.at
    loading = threading.local()

    def load(original: Any) -> Any:
        def call(self: Store, *args: Any) -> int:
            loading.now = True
            try:
                records: int = original(self, *args)
            finally:
                loading.now = False
            return records

        return call

    def write(store: Store) -> None:
        if getattr(loading, "now", False):
            at("take-over: state half read", store.changelog.topic)

    def opened(shard: Shard) -> None:
        acting.journal.note("open", shard.transactional_id)
        at("take-over: restored", shard.transactional_id)

    after(Transactions, "take_over", lambda self: at("take-over: fenced", self._id))
    patch(Store, "load", load)
    before(Store, "write", write)
    after(Shard, "open", opened)


def _hand_over(acting: Acting) -> None:
    at = acting.at

    def give_up(original: Any) -> Any:
        async def call(self: Handover) -> None:
            held = bool(self.shards)
            if held:
                at("hand-over: revoked", "")
            await original(self)
            if held:
                at("hand-over: given up", "")

        return call

    def close(shard: Shard) -> None:
        acting.journal.note("close", shard.transactional_id)
        at("hand-over: closing", shard.transactional_id)

    patch(Handover, "give_up", give_up)
    before(Shard, "close", close)


def _runs(acting: Acting) -> None:
    """Patch what a process does in its second run, after an outage or a growth."""
    at = acting.at
    runs = [0]

    def run(_: object) -> None:
        runs[0] += 1
        for step in ("outage: Kafka is back", "growth: run begun again"):
            again(step, "")

    def again(step: str, who: str) -> None:
        if runs[0] > 1:
            at(step, who)

    before(Handover, "stop_for_outage", lambda _: at("outage: giving up", ""))
    before(worker, "_run_once", run)
    after(Transactions, "take_over", lambda self: again("outage: fenced", self._id))
    after(
        Shard,
        "transact",
        lambda self: again("outage: first commit", self.transactional_id),
    )


def _releases(acting: Acting) -> None:
    """Patch the steps of stage 2; a shard has a thread of its own."""
    at = acting.at
    here = threading.local()

    def open_epoch(original: Any) -> Any:
        def call(self: Histogram, *args: Any) -> None:
            ended = self._epoch is not None
            original(self, *args)
            if ended:
                here.epoch = True
                at("epoch: ended", self.name)

        return call

    def begin_ms(original: Any) -> Any:
        def call(self: ReleaseShard, *args: Any) -> int | None:
            found: int | None = original(self, *args)
            if found is not None:
                here.raised = True
                at("generation: raised", self.transactional_id)
            return found

        return call

    def committed(shard: ReleaseShard) -> None:
        for flag, step in (
            ("epoch", "epoch: committed"),
            ("raised", "generation: committed"),
        ):
            if getattr(here, flag, False):
                setattr(here, flag, False)
                at(step, shard.transactional_id)

    def reserve(original: Any) -> Any:
        def call(self: ReleaseShard, *args: Any) -> None:
            at("ceiling: before the reservation", self.transactional_id)
            here.reserving = True
            original(self, *args)
            here.reserving = False
            at("ceiling: after the reservation", self.transactional_id)

        return call

    def refresh(_: CeilingGuard) -> None:
        if getattr(here, "reserving", False):
            at("ceiling: reserved, others not read", "")

    patch(Histogram, "_open", open_epoch)
    patch(ReleaseShard, "_begin_ms", begin_ms)
    after(ReleaseShard, "_commit", committed)
    patch(ReleaseShard, "_reserve", reserve)
    before(CeilingGuard, "refresh", refresh)


def _sources(acting: Acting) -> None:
    at = acting.at
    here = threading.local()

    def changes(original: Any) -> Any:
        def call(self: Users) -> Any:
            made = original(self)
            if made:
                here.block = True
                at("users: block made", "")
            return made

        return call

    def committed(shard: Shard) -> None:
        if getattr(here, "block", False):
            here.block = False
            at("users: block committed", shard.transactional_id)

    def forward(original: Any) -> Any:
        def call(self: Transactions, producer: Any, *args: Any) -> None:
            original(self, producer, *args)
            at(
                "re-key: records, no mark",
                self._id,
                lambda: self._call(producer.flush, 10),
            )

        return call

    def produce(original: Any) -> Any:
        def call(self: Transactions, producer: Any, message: Any) -> None:
            original(self, producer, message)
            if message.topic.endswith(".by-user"):
                step = "re-key: one of several marks"
                at(step, self._id, lambda: self._call(producer.flush, 10))

        return call

    patch(Users, "changes", changes)
    after(Shard, "transact", committed)
    patch(Transactions, "_forward", forward)
    patch(Transactions, "_produce", produce)


def _growth(acting: Acting) -> None:
    at = acting.at

    def join(original: Any) -> Any:
        def call(self: SourceShard) -> None:
            at("growth: to be committed", self.transactional_id)
            try:
                original(self)
            except SourcesGrown:
                at("growth: committed", self.transactional_id)
                raise

        return call

    def opened(shard: Shard) -> None:
        if (
            isinstance(shard, SourceShard)
            and shard._place.number >= shard._sources.first_count
        ):
            at("growth: new partition restored", shard.transactional_id)

    before(
        growth, "add_partitions", lambda _: at("growth: state topic to be grown", "")
    )
    patch(SourceShard, "_join", join)
    after(Shard, "open", opened)
