"""A commit covers whole snapshots only, wherever their pages lie and whenever it is made."""

import random
from dataclasses import dataclass
from typing import Any

import orjson
import pytest

from tests.dashboard.feeding import message
from workers.client import Snapshot, messages
from workers.client import reading as client_reading
from workers.commands.export.export import Cut
from workers.kafka.reading import Partition

TOPIC = "orders.products"
TOPICS = {"orders.products": "products"}
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
                record = message(
                    tick, [(f"i{page}", page)], key=key, page=page, pages=pages
                )
                logs[rng.choice(PARTITIONS)].append(record)
    positions = dict.fromkeys(PARTITIONS, 0)
    ends = {where: len(logs[where]) for where in logs}
    exported: list[Snapshot] = []
    for run in range(4):
        cut = Cut(TOPICS, positions, ends)
        read = dict(positions)
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
    whole = {(record["key"], record["tick"]) for log in logs.values() for record in log}
    assert sorted(map(place, exported)) == sorted(whole)
    assert positions == ends
    for snapshot in exported:
        items = snapshot.items or ()
        assert items == tuple((f"i{i + 1}", i + 1) for i in range(len(items)))


def reading(*documents: dict[str, Any], cut_short: bool = False) -> Cut:
    where = PARTITIONS[0]
    cut = Cut(
        TOPICS, {where: 5}, {where: 5 + len(documents)}, [TOPIC] if cut_short else []
    )
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


def test_a_snapshot_that_never_becomes_whole_is_left_out_once_a_later_one_is_whole() -> (
    None
):
    """Other stream keys are not held up by it, and it is reported once."""
    cut = reading(
        message(1), half(2), message(2, key="s2"), message(3), message(3, key="s2")
    )
    taken, positions = cut.take()
    assert [place(one) for one in taken] == [("s1", 1), ("s2", 2), ("s1", 3), ("s2", 3)]
    assert positions == {PARTITIONS[0]: 10}
    assert [(one.stream.key, one.tick, one.parts) for one in cut.lost] == [("s1", 2, 1)]
    assert cut.take() == ([], positions) and not cut.lost


def part(tick: int, number: int, **changes: Any) -> dict[str, Any]:
    items = [(f"i{number}", tick)]
    return message(tick, items, part=number, parts=2, **changes)


@pytest.mark.parametrize("stop", range(15))
def test_ticks_before_the_last_part_began_are_left_out_wherever_a_run_stops(
    stop: int,
) -> None:
    """Part 2 of s1 begins at tick 4, that of s2 at tick 2; a run stops and another goes on."""
    log = []
    for tick in range(1, 6):
        log += [part(tick, 1), part(tick, 1, key="s2")]
        log += [part(tick, 2, key="s2")] if tick >= 2 else []
        log += [part(tick, 2)] if tick >= 4 else []
    where = PARTITIONS[0]
    position = 0
    exported = []
    lost = []
    for end in (stop, len(log)):
        cut = Cut(TOPICS, {where: position}, {where: end})
        for at in range(position, end):
            receive(cut, where, at, log[at])
            if at % 3 == 0:
                cut.move(where, at + 1)
        cut.move(where, end)
        taken, positions = cut.take()
        position = positions[where]
        exported += [place(one) for one in taken]
        lost += [(one.stream.key, one.tick) for one in cut.lost]
    assert len(log) == 16 and position == 16
    assert sorted(exported) == [
        ("s1", 4),
        ("s1", 5),
        *(("s2", tick) for tick in (2, 3, 4, 5)),
    ]
    assert sorted(lost) == [("s1", 1), ("s1", 2), ("s1", 3), ("s2", 1)]


def test_what_waits_for_a_part_that_never_comes_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No later tick of it is whole: the oldest ticks are left out, and other keys go on."""
    monkeypatch.setattr(client_reading, "RECORDS_WITHIN", 100)
    documents = [
        one for tick in range(1, 201) for one in (part(tick, 1), message(tick, key="b"))
    ]
    cut = reading(*documents)
    taken, _ = cut.take()
    assert [place(one) for one in taken] == [("b", tick) for tick in range(1, 151)]
    assert [one.tick for one in cut.lost] == list(range(1, 151))
    monkeypatch.setattr(messages, "KEPT_BYTES_MAX", 10_000)
    cut = reading(*documents)
    cut.take()
    assert 180 < len(cut.lost) < 195


def test_the_rest_of_a_snapshot_that_retention_cut_is_left_out() -> None:
    """Nobody can have it: the history begins with the next one."""
    taken, positions = reading(half(1), message(2), message(3), cut_short=True).take()
    assert [place(one) for one in taken] == [("s1", 2), ("s1", 3)]
    assert positions == {PARTITIONS[0]: 8}
