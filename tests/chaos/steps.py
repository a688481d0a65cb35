"""Named steps of a worker, and wrappers around the product's functions that act at them.

`install` patches classes of this process; only `tests.chaos.worker` calls it.
"""

import functools
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from workers.agents import growth, worker
from workers.agents.release import ReleaseShard
from workers.agents.source_shard import SourceShard
from workers.kafka.handover import Handover
from workers.kafka.shard import Shard
from workers.kafka.store import Store
from workers.kafka.transaction import Transactions
from workers.pipeline.histogram import Histogram
from workers.pipeline.users import Users
from workers.privacy.ceiling_guard import CeilingGuard
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

    def __init__(self, journal: Journal, acts: list[tuple[str, str, int, str]]) -> None:
        """`acts` are (kind, step, nth, part of the transactional id)."""
        self.journal, self._acts = journal, acts
        self._lock = threading.Lock()

    def awaits(self, step: str) -> bool:
        return bool(self._acts) and self._acts[0][1] == step

    def at(self, step: str, who: str, before: Callable[[], object] = lambda: None) -> None:
        """Act if it is the step's turn; `before` runs first."""
        with self._lock:
            if not self.awaits(step):
                return
            kind, _, nth, of = self._acts[0]
            if of not in who:
                return
            self._acts[0] = kind, step, nth - 1, of
            if nth > 1:
                return
            del self._acts[0]
        before()
        self.journal.note(f"{kind} {step}", who)
        os.kill(os.getpid(), SIGNALS[kind])


def patch(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace a function of a class or module by `make` of it."""
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(make(original)))


def install(acting: Acting) -> None:
    _commits(acting)
    _take_over(acting)
    _hand_over(acting)
    _outages(acting)
    _releases(acting)
    _sources(acting)
    _growth(acting)


def _commits(acting: Acting) -> None:
    at = acting.at

    def attempt(original: Any) -> Any:
        def call(self: Transactions, *args: Any) -> bool:
            at("commit: before begin", self._id)
            done: bool = original(self, *args)
            return done

        return call

    def commit(original: Any) -> Any:
        def call(self: Transactions, producer: Any) -> None:
            def flush() -> None:
                self._call(producer.flush, 10)

            at("commit: produced", self._id, flush)
            if acting.awaits("hand-over: last commit"):
                until_s = time.monotonic() + _MEET_S
                while not getattr(self._owner, "closed", True) and time.monotonic() < until_s:
                    time.sleep(0.02)
                if getattr(self._owner, "closed", False):
                    at("hand-over: last commit", self._id, flush)
            original(self, producer)

        return call

    def run(original: Any) -> Any:
        def call(self: Transactions, *args: Any) -> int:
            end: int = original(self, *args)
            at("commit: committed, copy not written", self._id)
            return end

        return call

    def transact(original: Any) -> Any:
        def call(self: Shard, *args: Any) -> None:
            original(self, *args)
            acting.journal.note("commit", self.transactional_id)
            at("commit: copy written", self.transactional_id)

        return call

    patch(Transactions, "_attempt", attempt)
    patch(Transactions, "_commit", commit)
    patch(Transactions, "run", run)
    patch(Shard, "transact", transact)


def _take_over(acting: Acting) -> None:
    at, loading = acting.at, threading.local()

    def take_over(original: Any) -> Any:
        def call(self: Transactions) -> None:
            original(self)
            at("take-over: fenced", self._id)

        return call

    def load(original: Any) -> Any:
        def call(self: Store, *args: Any) -> int:
            loading.now = True
            try:
                records: int = original(self, *args)
            finally:
                loading.now = False
            return records

        return call

    def write(original: Any) -> Any:
        def call(self: Store, *args: Any) -> None:
            if getattr(loading, "now", False):
                at("take-over: state half read", self.changelog.topic)
            original(self, *args)

        return call

    def opened(original: Any) -> Any:
        def call(self: Shard) -> None:
            original(self)
            acting.journal.note("open", self.transactional_id)
            at("take-over: restored", self.transactional_id)

        return call

    patch(Transactions, "take_over", take_over)
    patch(Store, "load", load)
    patch(Store, "write", write)
    patch(Shard, "open", opened)


def _hand_over(acting: Acting) -> None:
    at = acting.at

    def release(original: Any) -> Any:
        async def call(self: Handover) -> None:
            held = bool(self.shards)
            if held:
                at("hand-over: revoked", "")
            await original(self)
            if held:
                at("hand-over: given up", "")

        return call

    def close(original: Any) -> Any:
        def call(self: Shard) -> None:
            acting.journal.note("close", self.transactional_id)
            at("hand-over: closing", self.transactional_id)
            original(self)

        return call

    patch(Handover, "release", release)
    patch(Shard, "close", close)


def _outages(acting: Acting) -> None:
    at, runs = acting.at, [0]

    def stop_for_outage(original: Any) -> Any:
        def call(self: Handover, *args: Any) -> None:
            at("outage: giving up", "")
            original(self, *args)

        return call

    def run_once(original: Any) -> Any:
        def call(*args: Any) -> int:
            runs[0] += 1
            if runs[0] > 1:
                at("outage: Kafka is back", "")
                at("growth: run begun again", "")
            status: int = original(*args)
            return status

        return call

    def take_over(original: Any) -> Any:
        def call(self: Transactions) -> None:
            original(self)
            if runs[0] > 1:
                at("outage: fenced", self._id)

        return call

    def transact(original: Any) -> Any:
        def call(self: Shard, *args: Any) -> None:
            original(self, *args)
            if runs[0] > 1:
                at("outage: first commit", self.transactional_id)

        return call

    patch(Handover, "stop_for_outage", stop_for_outage)
    patch(worker, "_run_once", run_once)
    patch(Transactions, "take_over", take_over)
    patch(Shard, "transact", transact)


def _releases(acting: Acting) -> None:
    """Patch the steps of stage 2; a shard has a thread of its own."""
    at, here = acting.at, threading.local()

    def open_epoch(original: Any) -> Any:
        def call(self: Histogram, epoch: int) -> None:
            ended = self._epoch is not None
            original(self, epoch)
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

    def commit(original: Any) -> Any:
        def call(self: ReleaseShard, *args: Any) -> None:
            original(self, *args)
            for flag, step in (("epoch", "epoch: committed"), ("raised", "generation: committed")):
                if getattr(here, flag, False):
                    setattr(here, flag, False)
                    at(step, self.transactional_id)

        return call

    def reserve(original: Any) -> Any:
        def call(self: ReleaseShard, *args: Any) -> None:
            at("ceiling: before the reservation", self.transactional_id)
            here.reserving = True
            original(self, *args)
            here.reserving = False
            at("ceiling: after the reservation", self.transactional_id)

        return call

    def refresh(original: Any) -> Any:
        def call(self: CeilingGuard) -> None:
            if getattr(here, "reserving", False):
                at("ceiling: reserved, others not read", "")
            original(self)

        return call

    patch(Histogram, "_open", open_epoch)
    patch(ReleaseShard, "_begin_ms", begin_ms)
    patch(ReleaseShard, "_commit", commit)
    patch(ReleaseShard, "_reserve", reserve)
    patch(CeilingGuard, "refresh", refresh)


def _sources(acting: Acting) -> None:
    at, here = acting.at, threading.local()

    def changes(original: Any) -> Any:
        def call(self: Users) -> Any:
            made = original(self)
            if made:
                here.block = True
                at("users: block made", "")
            return made

        return call

    def transact(original: Any) -> Any:
        def call(self: Shard, *args: Any) -> None:
            original(self, *args)
            if getattr(here, "block", False):
                here.block = False
                at("users: block committed", self.transactional_id)

        return call

    def forward(original: Any) -> Any:
        def call(self: Transactions, producer: Any, *args: Any) -> None:
            original(self, producer, *args)
            at("re-key: records, no mark", self._id, lambda: self._call(producer.flush, 10))

        return call

    def produce(original: Any) -> Any:
        def call(self: Transactions, producer: Any, message: Any) -> None:
            original(self, producer, message)
            if message.topic.endswith(".by-user"):
                step = "re-key: one of several marks"
                at(step, self._id, lambda: self._call(producer.flush, 10))

        return call

    patch(Users, "changes", changes)
    patch(Shard, "transact", transact)
    patch(Transactions, "_forward", forward)
    patch(Transactions, "_produce", produce)


def _growth(acting: Acting) -> None:
    at = acting.at

    def add_partitions(original: Any) -> Any:
        def call(*args: Any) -> None:
            at("growth: state topic to be grown", "")
            original(*args)

        return call

    def join(original: Any) -> Any:
        def call(self: SourceShard) -> None:
            at("growth: to be committed", self.transactional_id)
            try:
                original(self)
            except SourcesGrown:
                at("growth: committed", self.transactional_id)
                raise

        return call

    def opened(original: Any) -> Any:
        def call(self: Shard) -> None:
            original(self)
            if isinstance(self, SourceShard) and self._place.number >= self._sources.first_count:
                at("growth: new partition restored", self.transactional_id)

        return call

    patch(growth, "add_partitions", add_partitions)
    patch(SourceShard, "_join", join)
    patch(Shard, "open", opened)
