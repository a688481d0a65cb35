"""User-level protection: a user moves at most m pairs of an epoch by `max_count` each."""

from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import accumulate
from typing import Any

import msgspec
import numpy as np
import pytest
from aiokafka.partitioner import murmur2
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.events import reading
from tests.events.reading import ANY, event_reader, events_of
from tests.pipeline.pipeline import Contributed, contents, of_users
from workers.events.columns import Events
from workers.events.reading import Reject, SourceReader
from workers.kafka.placement import Placement
from workers.kafka.records import Records
from workers.kafka.store import Changelog, Store
from workers.mechanisms.config.histogram import Lane, names_of
from workers.mechanisms.noise.keyed import NoiseKey
from workers.mechanisms.registry import build
from workers.mechanisms.running.base import KnownBaseConfig, UnkBaseConfig
from workers.pipeline import users as module
from workers.pipeline.intake import Intake
from workers.pipeline.users import Batch, Users
from workers.runtime.errors import StateRefused
from workers.settings.settings import EventsSettings

KEY = NoiseKey(bytes(32))
LANE = Lane(10, 0, 3, 1, 2, 4)
ENDLESS = Lane(10, 0, 3, 1, 2, None)
WEIGHTED = Lane(10, 0, 3, 3, 2, 4)
Visit = tuple[str, str, list[str], int]  # user, stream key, items, time
LABELS = st.lists(st.sampled_from("abcde"), max_size=4)
NAMES = st.sampled_from(["u1", "u2", "u3"]), st.sampled_from(["k1", "k2"])
VISIT = st.tuples(*NAMES, LABELS, st.integers(0, 150))


def columns(visits: Sequence[Visit]) -> Events:
    events = [(key, items, time, user) for user, key, items, time in visits]
    return reading.columns(events, reading.reader(users=True))


def by_hand(visits: Sequence[Visit], lane: Lane) -> Counter[Contributed]:
    """Return what counts of visits, whose times are relative to the lane's start."""
    marks = accumulate((lane.start_ms + time for *_, time in visits), max)
    events = (
        {"who": user, "key": key, "items": items} for user, key, items, _ in visits
    )
    return of_users([lane], zip(events, marks, strict=True))


class Source:
    def __init__(self, lanes: Sequence[Lane]) -> None:
        self.lanes = lanes
        self.store = Store(None, Changelog("state", 0)).open()
        self.offset = 0
        self.total: Counter[Contributed] = Counter()
        self.watermark: int | None = None
        self.first: int | None = None
        self.restart()

    def restart(self) -> None:
        self.intake = Intake(self.lanes, 0, KEY, self.store)
        self.intake.restore(self.watermark, self.first)

    def commit(self) -> None:
        changes = self.intake.user_changes()
        said = self.intake.take_messages(source=0, sequences=[0], offset=0)
        self.total += contents(message for _, message in said)
        self.offset += 1
        self.store.write(changes, self.offset)
        self.watermark = self.intake.watermark
        self.first = self.intake.first

    def run(self, visits: Sequence[Visit]) -> Counter[Contributed]:
        self.intake.add(columns(visits))
        self.commit()
        return self.total


@pytest.mark.slow
@settings(max_examples=200)
@given(st.lists(VISIT, max_size=40), st.data())
def test_the_first_m_pairs_of_a_user_count_in_an_epoch_wherever_commits_restarts_and_blocks_end(
    visits: list[Visit], data: st.DataObject
) -> None:
    """A cap lost in a crash counts a user again, once for every crash."""
    with pytest.MonkeyPatch.context() as patch:
        tail = data.draw(st.integers(1, 6))
        patch.setattr(module, "TAIL_ROWS", tail)
        patch.setattr(module, "BLOCK_ROWS", tail + data.draw(st.integers(0, 5)))
        patch.setattr(module, "_ROOM", data.draw(st.sampled_from([4, 1_024])))
        source = Source([LANE, ENDLESS, WEIGHTED])
        at = 0
        while at < len(visits):
            size = data.draw(st.integers(1, 9))
            source.intake.add(columns(visits[at : at + size]))
            if data.draw(st.booleans()):
                source.restart()  # what was added since the last commit is read again
                continue
            at += size
            source.commit()
            if data.draw(st.booleans()):
                source.restart()
    expected = [by_hand(visits, lane) for lane in (LANE, ENDLESS, WEIGHTED)]
    assert source.total == sum(expected, Counter())


def test_a_cap_that_a_restart_forgets_is_found() -> None:
    """Control: the comparison detects a source that lost its stored users."""
    visits = [("u", "k", ["a", "b"], 5)] * 2
    source = Source([LANE])
    source.run(visits[:1])
    source.store = Store(None, Changelog("state", 0)).open()
    source.restart()
    assert source.run(visits[1:]) != by_hand(visits, LANE)


def test_small_commits_make_few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """One block a commit would be a million names a year, all read by a new owner."""
    monkeypatch.setattr(module, "TAIL_ROWS", 10)
    source = Source([ENDLESS])
    for i in range(35):
        source.run([(f"u{i}", "k", ["a"], 5)])
        if i % 4 == 0:
            source.restart()
    sizes = [5 + 28 * rows for rows in (10, 10, 10, 5)]
    assert [len(value) for _, value in source.store.items(b"U")] == sizes
    assert sum(source.total.values()) == 35


def test_nothing_counts_in_an_epoch_whose_users_are_forgotten() -> None:
    """Fail closed: users would count again. The intake never asks, as the ticks are closed."""
    held = Users([LANE])
    ones = np.ones(3, np.int64)
    batch = Batch(
        np.ones((3, 2), np.uint64), np.arange(3), ones, np.ones(3, np.uint64), ones
    )
    held.committed(40)
    assert held.charge(LANE, np.array([0, 1, -1]), batch).tolist() == [0, 1, 0]


def test_blocks_of_past_epochs_are_deleted_in_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Unbounded state fills the disk; deleting everything at once exceeds one transaction."""
    monkeypatch.setattr(module, "DELETIONS_MAX", 4)
    monkeypatch.setattr(module, "TAIL_ROWS", 1)
    source = Source([LANE])
    for i in range(10):
        source.run([(f"u{i}", "k", ["a"], 5)])
    assert len(list(source.store.items(b"U"))) == 10
    source.run([("v", "k", ["a"], 39)])
    assert len(list(source.store.items(b"U"))) == 11
    for left in (8, 4, 1):
        source.run([("v", "k", ["a"], 40)])
        assert len(list(source.store.items(b"U"))) == left
    assert source.total[Contributed(LANE, 5, "k", "a")] == 1
    monkeypatch.setattr(module, "DELETED_BYTES_MAX", 40)
    for i in range(4):
        source.run([(f"u{i}", "k", ["a"], 79)])
    source.run([("v", "k", [], 80)])
    # of five, 33 bytes each, the first two
    assert len(list(source.store.items(b"U"))) == 3


def test_pairs_of_another_version_are_refused() -> None:
    """Misreading them would let a user count again."""
    source = Source([LANE])
    source.run([("u", "k", ["a"], 5)])
    ((name, value),) = source.store.items(b"U")
    changed = value[:29] + b"\2\0\0\0"
    others = [
        (other, "another version") for other in (b"\x03" + value[1:], value[:-1], b"")
    ]
    for broken, says in (*others, (changed, "more than their settings allow")):
        store = Store(None, Changelog("state", 0)).open()
        store.write([(name, broken)], 1)
        with pytest.raises(StateRefused, match=says):
            Users([LANE], store).restore(5)


def test_a_user_is_known_by_a_digest_and_must_be_in_its_partition() -> None:
    """What a user may be, `tests/events/test_reader.py` tells."""
    events = EventsSettings(topic="t", key="shop", items="q", user="who")
    at = int(murmur2(b"17") & 0x7FFFFFFF) % 64
    placement = Placement("murmur2", at, [(0, 64)])
    placed = SourceReader(event_reader(events, "who"), ANY, placement, earliest_ms=0)
    whos = (b'"ann"', b"17")
    values = [b'{"shop":"s","q":["a"],"who":%b}' % who for who in whos]
    found, rejects = events_of(placed.read(Records.of(values)))
    assert found.users is not None
    digest = blake2b(b"17", digest_size=16, person=b"qc-user").digest()
    assert found.users.tobytes() == digest
    assert rejects == [Reject(0, "user's records belong in another partition")]


def configs() -> Iterator[KnownBaseConfig | UnkBaseConfig]:
    for counter in ("lifted", "tree"):
        shared: Any = {"name": "h", "tick_ms": 10, "horizon": 8, "keys": "public"}
        shared["counter"] = counter
        shared |= {
            "max_items": 1,
            "max_items_per_user": 7,
            "epsilon": 1.0,
            "delta": 1e-6,
        }
        yield UnkBaseConfig(**shared)
        yield KnownBaseConfig(domain=("a", "b"), **shared)


def test_a_user_with_m_items_costs_what_an_event_with_m_items_costs() -> None:
    """D0 := m in every formula: noise and thresholds are those of max_items = 7 at event level."""
    weighted = [msgspec.structs.replace(config, max_count=3) for config in configs()]
    for config in (*configs(), *weighted):
        of_users = build(config, "user")
        of_events = build(
            msgspec.structs.replace(config, max_items=7, max_items_per_user=None)
        )
        assert of_users.guarantee.unit == "user"
        for t in range(1, 9):
            assert of_users.sd(t) == of_events.sd(t) > build(config).sd(t)
            assert of_users.threshold(t) == of_events.threshold(t)
        assert of_users.public() == {**of_events.public(), "unit": "user"}


def test_mechanisms_whose_cost_is_not_a_sum_over_items_do_not_protect_users() -> None:
    """A user takes part in a top-k pick at every tick with an item of theirs."""
    known = set(names_of(lambda about: about.per_item))
    always = {"known_base", "unk_base", "known_gauss"}
    assert known >= always | {"positive_gauss", "positive_laplace"}
    once_a_release = {"known_gumbel", "unk_gauss", "limit_dom", "limit_dom_laplace"}
    once_a_release |= {"sparse_gumb", "misra_gries", "meta", "pay_what_you_get"}
    once_a_release |= {"bounded_max", "doubling", "two_level", "two_level_k"}
    assert not known & once_a_release
    assert all(config.protects_users for config in configs())
