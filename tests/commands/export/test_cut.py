"""A commit covers whole snapshots only, wherever their pages lie and whenever it is made."""

import random
from dataclasses import dataclass
from typing import Any

import orjson
import pytest

from tests.dashboard.feeding import message
from workers.client import Snapshot
from workers.commands.export.export import Cut
from workers.kafka.reading import Partition
from workers.runtime.errors import SettingsError

TOPIC, TOPICS = "orders.products", {"orders.products": "products"}
PARTITIONS = [(TOPIC, part) for part in range(3)]


@dataclass
class Record:
    """As much of a confluent_kafka.Message as is read."""

    at: int
    content: bytes

    def offset(self) -> int:
        return self.at

    def value(self) -> bytes:
        return self.content


def receive(cut: Cut, where: Partition, at: int, document: dict[str, Any]) -> None:
    cut.receive(where, Record(at, orjson.dumps(document)))  # type: ignore[arg-type]


def place(snapshot: Snapshot) -> tuple[str, int]:
    return snapshot.key, snapshot.tick


@pytest.mark.parametrize("seed", range(100))
def test_every_snapshot_is_exported_once_and_whole(seed: int) -> None:
    """Pages anywhere, also in several partitions; read in any order; a commit, or a kill, anywhere."""
    rng = random.Random(seed)
    logs: dict[Partition, list[dict[str, Any]]] = {where: [] for where in PARTITIONS}
    for tick in range(1, 6):
        for key in "abc":
            pages = rng.choice((1, 1, 2, 3))
            for page in range(1, pages + 1):
                one = message(tick, [(f"i{page}", page)], key=key, page=page, pages=pages)
                logs[rng.choice(PARTITIONS)].append(one)
    positions, ends = dict.fromkeys(PARTITIONS, 0), {where: len(logs[where]) for where in logs}
    exported: list[Snapshot] = []
    for run in range(4):
        cut, read = Cut(TOPICS, positions, ends), dict(positions)
        left = [where for where in PARTITIONS if read[where] < ends[where]]
        while left and (run == 3 or rng.random() < 0.9):
            where = rng.choice(left)
            stop = min(read[where] + rng.randint(1, 4), ends[where])
            for at in range(read[where], stop):
                receive(cut, where, at, logs[where][at])
            read[where] = stop
            cut.move(where, stop)
            left = [where for where in PARTITIONS if read[where] < ends[where]]
            if not left or rng.random() < 0.3:
                taken, positions = cut.take()
                exported += taken
    whole = {(one["key"], one["tick"]) for log in logs.values() for one in log}
    assert sorted(map(place, exported)) == sorted(whole)
    assert positions == ends
    for snapshot in exported:
        items = snapshot.items or ()
        assert items == tuple((f"i{i + 1}", i + 1) for i in range(len(items)))


def reading(*documents: dict[str, Any], cut_short: bool = False) -> Cut:
    where = PARTITIONS[0]
    cut = Cut(TOPICS, {where: 5}, {where: 5 + len(documents)}, [TOPIC] if cut_short else [])
    for at, document in enumerate(documents, 5):
        receive(cut, where, at, document)
    cut.move(where, 5 + len(documents))
    return cut


def half(tick: int) -> dict[str, Any]:
    return message(tick, page=2, pages=2)


def test_a_snapshot_that_may_still_become_whole_is_read_again() -> None:
    taken, positions = reading(message(1), half(2), message(2, key="s2")).take()
    assert [place(one) for one in taken] == [("s1", 1)]
    assert positions == {PARTITIONS[0]: 6}


def test_a_snapshot_that_never_becomes_whole_ends_the_export() -> None:
    with pytest.raises(
        SettingsError, match=r"products\[0\] offset 6: a snapshot with missing pages"
    ):
        reading(message(1), half(2), message(3)).take()


def test_the_rest_of_a_snapshot_that_retention_cut_is_left_out() -> None:
    """Nobody can have it: the history begins with the next one."""
    taken, positions = reading(half(1), message(2), message(3), cut_short=True).take()
    assert [place(one) for one in taken] == [("s1", 2), ("s1", 3)]
    assert positions == {PARTITIONS[0]: 8}
