"""Where users are protected, one user moves at most m (stream key, item) pairs of an epoch by one each, whatever they do."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.agents import users as module
from workers.agents.contributions import decode
from workers.agents.events import EventReader, Events
from workers.agents.intake import Intake
from workers.agents.users import Users
from workers.errors import StateRefused
from workers.kafka.store import Changelog, Store
from workers.mechanisms.config import KnownBaseConfig, Lane, UnkBaseConfig
from workers.mechanisms.noise.keyed import NoiseKey
from workers.mechanisms.registry import MECHANISMS, PER_ITEM, build, protects_users
from workers.settings import EventsSettings

KEY = NoiseKey(bytes(32))
LANE = Lane(10, 0, 3, 1, 2, 4)
ENDLESS = Lane(10, 0, 3, 1, 2, None)
Visit = tuple[str, str, list[str], int]  # user, stream key, items, time
VISIT = st.tuples(
    st.sampled_from(["u1", "u2", "u3"]),
    st.sampled_from(["k1", "k2"]),
    st.lists(st.sampled_from("abcde"), max_size=4),
    st.integers(0, 150),
)


def columns(visits: Sequence[Visit]) -> Events:
    return Events(
        [v[1] for v in visits], [v[2] for v in visits], np.array([v[3] for v in visits], dtype=np.int64),
        [v[0] for v in visits],
    )  # fmt: skip


class Source:
    """One source partition with a store that survives restarts."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self.lanes, self.store, self.offset = lanes, Store(None, Changelog("state", 0)).open(), 0
        self.total: Counter[tuple[Lane, int, str, str]] = Counter()
        self.watermark: int | None = None
        self.first: int | None = None
        self.restart()

    def restart(self) -> None:
        self.intake = Intake(self.lanes, 0, self.store)
        self.intake.restore(self.watermark, self.first)

    def commit(self) -> None:
        changes = self.intake.user_changes()
        for _, value in self.intake.commit(source=0, sequences=[0], offset=0):
            for section in decode(value).sections:
                found = section.contributions(KEY)
                for at, label, n in zip(found.key_of_row.tolist(), found.labels, found.counts.tolist(), strict=True):
                    self.total[section.lane, section.tick, found.keys[at], label.decode()] += n
        self.offset += 1
        self.store.write(changes, self.offset)
        self.watermark, self.first = self.intake.watermark, self.intake.first

    def run(self, visits: Sequence[Visit]) -> Counter[tuple[Lane, int, str, str]]:
        self.intake.add(columns(visits))
        self.commit()
        return self.total


def by_hand(visits: Sequence[Visit], lane: Lane) -> Counter[tuple[Lane, int, str, str]]:
    """One event at a time, in words."""
    total: Counter[tuple[Lane, int, str, str]] = Counter()
    counted: dict[tuple[int, str], set[tuple[str, str]]] = defaultdict(set)
    mark = 0
    for user, key, items, time in visits:
        mark = max(mark, time)
        tick = mark // lane.tick_ms + 1
        epoch = 0 if lane.horizon is None else (tick - 1) // lane.horizon
        for label in list(dict.fromkeys(items))[: lane.max_items]:
            pairs = counted[epoch, user]
            if (key, label) not in pairs and len(pairs) < (lane.max_items_per_user or 0):
                pairs.add((key, label))
                total[lane, tick, key, label] += 1
    return total


@settings(deadline=None, max_examples=150)
@given(st.lists(VISIT, max_size=40), st.data())
def test_the_first_m_pairs_of_a_user_count_once_an_epoch_wherever_commits_and_restarts_fall(
    visits: list[Visit], data: st.DataObject
) -> None:
    """A cap forgotten by a crash counts a user again: the promise would be off by as many crashes as there were."""
    source = Source([LANE, ENDLESS])
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
    assert source.total == by_hand(visits, LANE) + by_hand(visits, ENDLESS)


@settings(deadline=None, max_examples=150)
@given(st.lists(VISIT, max_size=40))
def test_taking_a_user_away_moves_at_most_m_cells_an_epoch_by_one_each(visits: list[Visit]) -> None:
    """It is what every formula with D0 = m stands on; a user's time stays, as with events."""
    for lane in (LANE, ENDLESS):
        whole = Source([lane]).run(visits)
        without = Source([lane]).run([v if v[0] != "u1" else (v[0], v[1], [], v[3]) for v in visits])
        assert not without - whole
        difference = whole - without
        assert set(difference.values()) <= {1}
        epochs = Counter(lane.epoch(tick) for _, tick, _, _ in difference)
        assert all(n <= 2 for n in epochs.values())
        items = Counter((lane.epoch(tick), key, label) for _, tick, key, label in difference)
        assert set(items.values()) <= {1}


def test_memory_and_store_agree_when_users_are_dropped_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between commits only so many users are held; who was dropped is looked up again."""
    monkeypatch.setattr(module, "USERS_HELD", 3)
    monkeypatch.setattr(module, "PAIRS_HELD", 2)
    rng = random.Random(5)
    visits = [(f"u{rng.randrange(20)}", "k", rng.choices("abcdef", k=2), 3 * i) for i in range(400)]
    stored, held = Source([LANE]), Intake([LANE], 0)
    for at in range(0, len(visits), 7):
        stored.run(visits[at : at + 7])
        held.add(columns(visits[at : at + 7]))
        held.commit(source=0, sequences=[0], offset=0)
    assert stored.total == by_hand(visits, LANE)
    users: Any = held._users  # what is held: no longer users of epochs that are over
    assert len(users._held) <= 40


def test_users_of_epochs_that_are_over_are_deleted_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """State that only grows fills every disk; deletions of a million users do not fit one transaction."""
    monkeypatch.setattr(module, "FORGOTTEN_AT_ONCE", 4)
    source = Source([LANE])
    source.run([(f"u{i}", "k", ["a"], 5) for i in range(10)])
    assert len(list(source.store.items(b"u"))) == 10
    source.run([("v", "k", ["a"], 39)])
    assert len(list(source.store.items(b"u"))) == 11
    for left in (8, 4, 1):
        source.run([("v", "k", ["a"], 40)])
        assert len(list(source.store.items(b"u"))) == left
    assert source.total[LANE, 5, "k", "a"] == 1


def test_pairs_of_another_version_are_refused() -> None:
    """Reading them wrongly would let a user count again."""
    source = Source([LANE])
    source.run([("u", "k", ["a"], 5)])
    ((name, value),) = source.store.items(b"u")
    for broken in (b"\x02" + value[1:], value[:-1]):
        store = Store(None, Changelog("state", 0)).open()
        store.write([(name, broken)], 1)
        with pytest.raises(StateRefused, match="another version"):
            Users([LANE], store).take(LANE, 1, "u", "k", ["b"])


def test_a_user_is_read_from_its_field_or_the_record_key_and_must_be_in_its_partition() -> None:
    """A user whose records lie in several partitions would be counted in each."""
    events = EventsSettings(topic="t", key="shop", items="q", user="who")
    reader = EventReader(events, None, "who")
    good = [b'{"shop":"s","q":["a"],"who":"ann"}', b'{"shop":"s","q":["a"],"who":17}']
    bad = [b'{"shop":"s","q":["a"]}', b'{"shop":"s","q":["a"],"who":1.5}', b'{"shop":"s","q":["a"],"who":true}']
    found, rejects = reader.read(good + bad, [None] * 5, [0] * 5, latest_ms=None)
    assert found.users == ["ann", "17"]
    assert [r.reason for r in rejects] == ["missing field 'who'"] + [
        "field 'who' is not a string or a whole number"
    ] * 2
    found, rejects = reader.read(good, [None] * 2, [0] * 2, latest_ms=None, here=lambda user: user == "17")
    assert (found.users, [(r.index, r.reason) for r in rejects]) == (
        ["17"],
        [(0, "user's records belong in another partition")],
    )
    long = b'{"shop":"s","q":["a"],"who":"' + b"x" * 1025 + b'"}'
    assert [r.reason for r in reader.read([long], [None], [0], latest_ms=None)[1]] == ["label too long"]
    keyed = EventReader(msgspec.structs.replace(events, user="$key"), None, "$key")
    found, rejects = keyed.read([good[0], good[0]], [b"ann", None], [0, 0], latest_ms=None)
    assert (found.users, [r.reason for r in rejects]) == (["ann"], ["record key is no label"])


def configs() -> Iterator[KnownBaseConfig | UnkBaseConfig]:
    for counter in ("haar", "tree"):
        shared: Any = {
            "name": "h", "tick_ms": 10, "horizon": 8, "max_items": 1, "max_items_per_user": 7, "epsilon": 1.0,
            "delta": 1e-6, "keys": "public", "counter": counter,
        }  # fmt: skip
        yield UnkBaseConfig(**shared)
        yield KnownBaseConfig(domain=("a", "b"), **shared)


def test_a_user_with_m_items_costs_what_an_event_with_m_items_costs() -> None:
    """D0 := m in every formula: noise and thresholds are those of max_items = 7 at event level."""
    for config in configs():
        of_users = build(config, "user")
        of_events = build(msgspec.structs.replace(config, max_items=7, max_items_per_user=None))
        assert of_users.guarantee.unit == "user"
        for t in range(1, 9):
            assert of_users.sd(t) == of_events.sd(t) > build(config).sd(t)
            assert of_users.threshold(t) == of_events.threshold(t)
        assert of_users.public() == {**of_events.public(), "unit": "user"}


def test_mechanisms_whose_cost_is_not_a_sum_over_items_do_not_protect_users() -> None:
    """A user takes part in as many picks of a top k as there are ticks with an item of theirs."""
    known = {name for name, kind in MECHANISMS.items() if kind.__struct_config__.tag in PER_ITEM}
    assert known == {"known_base", "unk_base", "known_gauss", "positive_gauss", "positive_laplace"}
    assert all(protects_users(config) for config in configs())
