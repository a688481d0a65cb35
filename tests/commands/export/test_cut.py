"""A commit covers whole snapshots only, wherever their pages lie and whenever it is made."""

from dataclasses import dataclass
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.dashboard.feeding import message
from workers.commands.export.export import Cut
from workers.runtime.errors import SettingsError

TOPIC, TOPICS = "orders.products", {"orders.products": "products"}
PARTITIONS = 3


@dataclass
class Record:
    """As much of a confluent_kafka.Message as is read."""

    at: int
    content: bytes

    def offset(self) -> int:
        return self.at

    def value(self) -> bytes:
        return self.content


Logs = list[list[bytes]]


@st.composite
def logs(draw: st.DrawFn) -> Logs:
    """Ticks of three stream keys, their pages anywhere: also in several partitions."""
    found: Logs = [[] for _ in range(PARTITIONS)]
    for tick in range(1, draw(st.integers(1, 6)) + 1):
        for key in "abc":
            pages = draw(st.integers(1, 3))
            for page in range(1, pages + 1):
                document = message(tick, [(f"i{page}", page)], key=key, page=page, pages=pages)
                found[draw(st.integers(0, PARTITIONS - 1))].append(orjson.dumps(document))
    return found


def place(snapshot: Any) -> tuple[str, int]:
    return snapshot.key, snapshot.tick


@given(logs(), st.data())
def test_every_snapshot_is_exported_once_and_whole(found: Logs, data: st.DataObject) -> None:
    """Whatever is read first, wherever a commit falls, and wherever a run is killed."""
    positions = {(TOPIC, part): 0 for part in range(PARTITIONS)}
    exported: list[Any] = []
    for last in (False, False, False, True):
        cut, read = Cut(TOPICS, positions), dict(positions)
        steps = 100 if last else data.draw(st.integers(0, 20))
        for _ in range(steps):
            left = [where for where, at in read.items() if at < len(found[where[1]])]
            if not left:
                break
            where = data.draw(st.sampled_from(left))
            for _ in range(data.draw(st.integers(1, 4))):
                if read[where] < len(found[where[1]]):
                    value = found[where[1]][read[where]]
                    cut.receive(where, Record(read[where], value))  # type: ignore[arg-type]
                    read[where] += 1
            cut.move(where, read[where])
            if data.draw(st.booleans()):
                taken, positions = cut.take()
                exported += taken
        if last:
            taken, positions = cut.take()
            exported += taken
    whole = {(key, tick) for log in found for key, tick in map(_key_and_tick, log)}
    assert sorted(map(place, exported)) == sorted(whole)
    assert positions == {(TOPIC, part): len(log) for part, log in enumerate(found)}
    for one in exported:
        assert [label for label, _ in one.items] == [f"i{i + 1}" for i in range(len(one.items))]
    assert not Cut(TOPICS, positions).take()[0]


def _key_and_tick(value: bytes) -> tuple[str, int]:
    document = orjson.loads(value)
    return document["key"], document["tick"]


def reading(*documents: dict[str, Any], cut_short: bool = False) -> Cut:
    cut = Cut(TOPICS, {(TOPIC, 0): 5}, [TOPIC] if cut_short else [])
    for at, document in enumerate(documents, 5):
        cut.receive((TOPIC, 0), Record(at, orjson.dumps(document)))  # type: ignore[arg-type]
    cut.move((TOPIC, 0), 5 + len(documents))
    return cut


def half(tick: int) -> dict[str, Any]:
    return message(tick, page=2, pages=2)


def test_a_snapshot_that_may_still_become_whole_is_read_again() -> None:
    taken, positions = reading(message(1), half(2), message(2, key="s2")).take()
    assert [place(one) for one in taken] == [("s1", 1)]
    assert positions == {(TOPIC, 0): 6}


def test_a_snapshot_that_never_becomes_whole_ends_the_export() -> None:
    with pytest.raises(SettingsError, match=r"products\[0\] offset 6: .* other pages are missing"):
        reading(message(1), half(2), message(3)).take()


def test_the_rest_of_a_snapshot_that_retention_cut_is_left_out() -> None:
    """Nobody can have it: the history begins with the next one."""
    taken, positions = reading(half(1), message(2), message(3), cut_short=True).take()
    assert [place(one) for one in taken] == [("s1", 2), ("s1", 3)]
    assert positions == {(TOPIC, 0): 8}
