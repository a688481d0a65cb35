"""Owners that grow, without Kafka: their topics, and what they hand over to each other."""

from collections.abc import Sequence
from typing import Any

from tests.pipeline.pipeline import Event, Partition, contribute, unk
from workers.mechanisms.running.base import UnkBaseConfig
from workers.pipeline.contributions import decode
from workers.pipeline.growth.owners import Owners
from workers.pipeline.signing_key import SigningKey
from workers.pipeline.snapshots import Snapshot

KEYS = [f"k{i}" for i in range(6)]
#: Epochs of 40 ms both.
FINE = unk(horizon=4)
WIDE = unk(name="wide", tick_ms=20, horizon=2, keys=("k0", "k1", "k2", "k3"))
GROWS = {1: 4, 3: 8}
#: An event of every key in every tick.
STEADY: list[Event] = [(key, ["a"], at) for at in range(1, 400, 10) for key in KEYS]
Published = list[tuple[int, Snapshot]]


def grown_of(topics: Sequence[Sequence[bytes]], owners: int) -> Owners:
    told = [
        decode(value).owners or Owners(owners) for topic in topics for value in topic
    ]
    return max(told, key=lambda one: one.number, default=Owners(owners))


class Fleet:
    """All owners, which hand stream keys over to each other."""

    def __init__(self, topics: list[list[bytes]], owners: int, **of: Any) -> None:
        self.topics = [list(topic) for topic in topics]
        numbers = range(len(topics))
        self.owners = [
            Partition(owner=number, owners=owners, **of) for number in numbers
        ]
        self.positions = [0] * len(topics)
        self.published: Published = []

    def read(self, owner: int, number: int) -> None:
        at = self.positions[owner]
        self.positions[owner] = self.owners[owner].receive(
            self.topics[owner][at : at + number], at
        )

    def commit(self, owner: int, ticks_max: int) -> bool:
        part = self.owners[owner].commit(ticks_max)
        self.published += [(owner, each) for each in part or ()]
        for to, message in self.owners[owner].handed:
            self.topics[to].append(message)
        self.owners[owner].handed = []
        return part is not None

    def restart(self, owner: int) -> None:
        self.positions[owner] = self.owners[owner].restart()

    def finish(self) -> "Fleet":
        for owner, topic in enumerate(self.topics):
            self.read(owner, len(topic))
            while self.commit(owner, 500):
                pass
            assert self.positions[owner] == len(topic)
        return self

    def bytes(self) -> list[tuple[int, str, str, bytes]]:
        return sorted(
            (owner, *(s.topic, s.key, s.value)) for owner, s in self.published
        )


def fleet(
    partitions: list[list[Event]],
    configs: Sequence[UnkBaseConfig],
    *,
    signing_key: SigningKey | None = None,
    **of: Any,
) -> Fleet:
    given: dict[str, Any] = {"owners": 2, "further_ms": 100, "grows": GROWS} | of
    topics = contribute(partitions, configs, **given)
    first = len(partitions) - len(given.get("joins", ()))
    own: dict[str, Any] = {"sources": first, "signing_key": signing_key}
    return Fleet(topics, given["owners"], configs=configs, **own)


def cut(found: Fleet, at_ms: int) -> None:
    """Let all owners read and publish what source partitions closed up to about a time."""
    for owner, topic in enumerate(found.topics):
        marks = [decode(value).watermark or 0 for value in topic]
        found.read(owner, sum(mark <= at_ms for mark in marks))
        while found.commit(owner, 500):
            pass


def begun_again(
    partitions: list[list[Event]],
    signing_key: SigningKey,
    next_key: SigningKey | None = None,
) -> Fleet:
    """Return owners that begin a new generation in the middle, perhaps with another key."""
    found = fleet(partitions, [FINE], grows={}, step=12, signing_key=signing_key)
    cut(found, 80)
    for number, owner in enumerate(found.owners):
        owner.configs = [unk(horizon=4, generation=2)]
        owner.signing_key = next_key or signing_key
        found.restart(number)
    return found.finish()
