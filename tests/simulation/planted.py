"""Faults planted in the worker, each of which the simulation must find."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import msgspec

from tests.cluster.broker import Log, Record
from tests.cluster.connection import Running
from tests.cluster.loop import current
from tests.cluster.producer import SimulatedProducer
from workers.agents.contribute import ContributeShard
from workers.agents.progress import PROGRESS
from workers.agents.release import ReleaseShard
from workers.kafka import shard as shard_module
from workers.kafka import transaction
from workers.kafka.records import Outgoing
from workers.kafka.shard import Shard
from workers.pipeline.growth.sources import Sources
from workers.pipeline.histogram import Histogram
from workers.pipeline.intake import Intake
from workers.pipeline.merge import Merge
from workers.pipeline.source_sketches import Sketches

Planting = Callable[[], Iterator[object]]


def state_first() -> Iterator[object]:
    """Commit the state, then the messages: two transactions."""
    transact = Shard.transact

    def twice(
        self: Shard, messages: Any, changes: Any, group_offset: int, forwarded: Any = ()
    ) -> None:
        transact(self, [], changes, group_offset)
        transact(self, messages, [], group_offset, forwarded)

    yield patch.object(Shard, "transact", twice)


def no_fence() -> Iterator[object]:
    """Take over with the epoch of the older owner."""

    def ask(self: Any) -> None:
        found = self._broker.transactions.get(self._name)
        if found is None or found.epoch < 0:
            original(self)
            return
        self._pid = found.pid
        self._epoch = found.epoch
        logs = self._broker.logs
        states = {where: log.producers.get(found.pid) for where, log in logs.items()}
        self._next = {
            where: one.last + 1 for where, one in states.items() if one is not None
        }

    original = SimulatedProducer._ask
    yield patch.object(SimulatedProducer, "_ask", ask)


def unconfirmed() -> Iterator[object]:
    """Continue under a new epoch although another owner may have committed."""
    yield patch.object(Shard, "confirm", lambda self: None)


def off_by_one() -> Iterator[object]:
    """Resume one record too early."""
    restore = ContributeShard.restore

    def early(self: ContributeShard) -> None:
        restore(self)
        if self.offset:
            self.offset -= 1

    yield patch.object(ContributeShard, "restore", early)


def no_new_epoch() -> Iterator[object]:
    """Keep the epoch after a commit that may have been sent twice."""
    yield patch.object(transaction, "_SENT_ONCE_S", math.inf)


def hidden_state() -> Iterator[object]:
    """Take over although a transaction hides the newest state."""
    yield patch.object(shard_module, "end_of", lambda *_: 0)


def old_copy() -> Iterator[object]:
    """Resume from an older progress record, and check no chain."""
    restore = ContributeShard.restore

    def older(self: ContributeShard) -> None:
        log = Running.network.broker.logs[self.store.changelog.log]
        found = [one.value for one in log.data(0, log.stable) if one.key == PROGRESS]
        if len(found) > 1:
            self.store._opened().write([(PROGRESS, found[-2])], None)
        restore(self)

    def follow(self: Any, message: Any, offset: int) -> None:
        self._sequences[message.source] = message.sequence + 1
        if message.page == message.pages:
            self.watermarks[message.source] = message.watermark
            self._firsts[message.source] = message.first

    yield patch.object(ContributeShard, "restore", older)
    yield patch.object(Merge, "_follow", follow)


def charge_with_tick() -> Iterator[object]:
    """Charge an epoch in the transaction of its first tick, not before it."""

    def reserve(self: ReleaseShard, histograms: Any) -> None:
        for histogram in histograms:
            histogram.reserve()

    yield patch.object(ReleaseShard, "_reserve", reserve)


def watermark_ahead() -> Iterator[object]:
    """Send a watermark beyond the events that were sent."""
    commit = Intake.take_messages

    def ahead(self: Intake, **given: Any) -> Any:
        return [
            (
                owner,
                msgspec.structs.replace(one, watermark=(one.watermark or 0) + 25_000),
            )
            for owner, one in commit(self, **given)
        ]

    yield patch.object(Intake, "take_messages", ahead)


def uncommitted_input() -> Iterator[object]:
    """Release ticks from contributions whose transaction may still be aborted."""
    data = Log.data
    stable = vars(Log)["stable"]

    def is_input(log: Log) -> bool:
        return log.where[0].endswith(".contributions")

    def read(
        self: Log, start: int, stop: int, *, uncommitted: bool = False
    ) -> list[Record]:
        return data(self, start, stop, uncommitted=uncommitted or is_input(self))

    end = property(lambda self: self.end if is_input(self) else stable.fget(self))
    yield patch.object(Log, "data", read)
    yield patch.object(Log, "stable", end)


def owners_noise() -> Iterator[object]:
    """Give a tick other bytes under every owner."""
    commit = ReleaseShard._commit

    def other(self: ReleaseShard, messages: Sequence[Outgoing]) -> None:
        spaces = b" " * int(current().name.partition("#")[2].partition(" ")[0])
        changed = [
            one
            if one.topic == self._contributions
            else one._replace(value=(one.value or b"") + spaces)
            for one in messages
        ]
        commit(self, changed)

    yield patch.object(ReleaseShard, "_commit", other)


def joins_unsaid() -> Iterator[object]:
    """Tell of partitions that join only the owners that get counts in that commit."""
    commit = Intake.take_messages

    def unsaid(self: Intake, *, joining: bool, **given: Any) -> Any:
        return commit(self, joining=False, **given)

    yield patch.object(Intake, "take_messages", unsaid)


def joins_early() -> Iterator[object]:
    """Let partitions that join close ticks from the beginning."""
    grown = Sources.grown

    def early(self: Sources, now: Any, watermark: int | None, *more: Any) -> Any:
        return grown(self, now, None, *more)

    yield patch.object(Sources, "grown", early)


def keeps_keys() -> Iterator[object]:
    """Hand stream keys over, and go on publishing them."""
    hand_over = Histogram._hand_over

    def keep(self: Histogram, tick: int, owners: int) -> None:
        kept = self._keys, self._since, self._index
        hand_over(self, tick, owners)
        self._keys, self._since, self._index = kept

    yield patch.object(Histogram, "_hand_over", keep)


def begins_alone() -> Iterator[object]:
    """Begin in a new owner without the stream keys that are handed over to it."""
    make = Histogram.__init__

    def alone(self: Histogram, *parts: Any, **of: Any) -> None:
        make(self, *parts, **of)
        self.takes_over = False

    yield patch.object(Histogram, "__init__", alone)


def sketches_in_memory() -> Iterator[object]:
    """Do not store what was counted in a tick that is still open."""
    yield patch.object(Intake, "sketch_changes", lambda self: [])


def sketches_fed_again() -> Iterator[object]:
    """Keep the sketches of a tick that was sent."""
    changes = Sketches.changes

    def kept(self: Sketches) -> list[Any]:
        return [change for change in changes(self) if change[1] is not None]

    yield patch.object(Sketches, "changes", kept)


PLANTS: Mapping[str, Planting] = MappingProxyType(
    {
        plant.__name__.replace("_", "-"): plant
        for plant in (
            state_first,
            no_fence,
            unconfirmed,
            off_by_one,
            no_new_epoch,
            hidden_state,
            old_copy,
            charge_with_tick,
            watermark_ahead,
            uncommitted_input,
            owners_noise,
            joins_early,
            joins_unsaid,
            keeps_keys,
            begins_alone,
            sketches_in_memory,
            sketches_fed_again,
        )
    }
)


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Plant a fault by its name; None: no fault."""
    patches: list[Any] = [] if name is None else list(PLANTS[name]())
    for one in patches:
        one.start()
    try:
        yield
    finally:
        for one in patches:
            one.stop()
