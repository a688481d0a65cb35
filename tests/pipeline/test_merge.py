"""Stage 2 is a pure function of its topic: stable bytes, exact counts plus noise, no repeats."""

import json
from collections import Counter
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipeline.pipeline import (
    KEY,
    Event,
    Partition,
    contents,
    contribute,
    exact,
    histogram_of,
    unk,
)
from workers.mechanisms.config.histogram import EPOCH
from workers.mechanisms.counters.kinds import make_counter
from workers.mechanisms.noise.keyed import NoiseKey
from workers.mechanisms.registry import build
from workers.mechanisms.running.base import KnownBaseConfig
from workers.pipeline import merge
from workers.pipeline.contributions import decode
from workers.pipeline.growth.owners import owner_of
from workers.runtime.errors import StateRefused

pytestmark = pytest.mark.slow

KEYS = st.sampled_from(["k1", "k2", "k3"])
LABELS = st.sampled_from("abcde")
VISIT = st.tuples(KEYS, st.lists(LABELS, max_size=3), st.integers(0, 150))
EVENTS = st.lists(VISIT, max_size=30).map(
    lambda events: sorted(events, key=lambda e: e[2])
)
Partitions = list[list[Event]]
BOUNDED: dict[str, Any] = {
    "tick_ms": 20,
    "horizon": 4,
    "max_items": 1,
    "rho": 2.0,
    "delta": 1e-6,
}
DOMAIN: dict[str, Any] = {
    "keys": ("k1", "k2"),
    "domain": ("a", "zz"),
    "counter": "tree",
}
KNOWN = KnownBaseConfig(name="known", **BOUNDED, **DOMAIN)


@settings(max_examples=60)
@given(st.lists(EVENTS, min_size=1, max_size=3), st.data())
def test_crashes_anywhere_change_nothing(
    partitions: Partitions, data: st.DataObject
) -> None:
    """A restarted owner must publish its predecessor's bytes, in every histogram's order.

    Some source partitions may join later.
    """
    wide = unk(name="wide", tick_ms=20, max_items=1, horizon="unbounded", start=EPOCH)
    configs = [unk(), KNOWN, wide]
    # An epoch is 80 ms: the last event's epoch ends and another begins, without a thousand ms of
    # empty ticks behind them.
    later = st.lists(st.integers(0, 5), max_size=len(partitions) - 1).map(sorted)
    joins = data.draw(later)
    [messages] = contribute(partitions, configs, owners=1, further_ms=100, joins=joins)
    first = len(partitions) - len(joins)
    whole = [(s.topic, s.key, s.value) for s in Partition(configs, first).run(messages)]
    waiting = data.draw(st.sampled_from([0, 1 << 20]))
    crashing = Partition(configs, first, waiting_bytes_max=waiting)
    published: list[tuple[str, str, bytes]] = []
    position = 0
    for _ in range(200):
        size = data.draw(st.integers(1, 10)) if position < len(messages) else 1
        position = crashing.receive(messages[position : position + size], position)
        while True:
            ticks_max = data.draw(st.integers(1, 9))
            by_lane = data.draw(st.booleans())
            with patch.object(
                merge, "TICKS_IN_A_ROW", data.draw(st.sampled_from([1, 2, 32]))
            ):
                part = crashing.commit(ticks_max, by_lane=by_lane)
            published += [(s.topic, s.key, s.value) for s in part or ()]
            if part is None or data.draw(st.booleans()):
                break
        if position >= len(messages) and part is None:
            break
        if data.draw(st.booleans()):
            position = crashing.restart()
    else:
        pytest.fail("did not come to an end")
    assert all(n == 1 for n in Counter(whole).values())
    # Histograms may interleave, but each publishes its ticks in order.
    assert sorted(published, key=lambda each: each[0]) == sorted(
        whole, key=lambda each: each[0]
    )


@settings(max_examples=40)
@given(st.lists(EVENTS, min_size=2, max_size=3), st.integers(1, 2), st.integers(0, 5))
def test_source_partitions_that_join_later_count_once_and_in_open_ticks(
    partitions: Partitions, owners: int, round_: int
) -> None:
    """A join that an owner reads late, or applies too early, would change a published tick."""
    joins = [round_] * (len(partitions) - 1)
    messages = contribute(partitions, [unk()], owners=owners, joins=joins)
    total: Counter[tuple[str, str]] = Counter()
    for owner in range(owners):
        whole = [decode(value) for value in messages[owner]]
        for what, n in contents(whole).items():
            total[what.key, what.label] += n
        found = Partition([unk()], 1, owner, owners).run(messages[owner])
        assert found or not total  # a source that never closes would hold every tick
    every = exact(partitions, unk()).values()
    assert total == sum(every, Counter())


def test_a_source_partition_that_has_not_joined_is_refused() -> None:
    """Its events would be counted in ticks that may be published."""
    events: Partitions = [[("k1", ["a"], 1)], [("k1", ["a"], 1)]]
    [messages] = contribute(events, [unk()], owners=1)
    owner = Partition([unk()], 1)
    with pytest.raises(
        StateRefused, match="source partition 1 of 1: it has not joined"
    ):
        owner.run([message for message in messages if decode(message).source == 1])


@settings(max_examples=40)
@given(st.lists(EVENTS, min_size=1, max_size=3), st.integers(1, 3))
def test_released_minus_noise_is_the_exact_count(
    partitions: Partitions, owners: int
) -> None:
    """Nothing lost or doubled, and the counter's own noise at every tick."""
    config = unk()
    mechanism = build(config)
    spent = mechanism._counter.rho_item  # type: ignore[attr-defined]  # the counter is rebuilt from what it spent
    counter = make_counter("lifted", config.horizon_ticks, spent)
    per_tick = exact(partitions, config)
    messages = contribute(partitions, [config], owners=owners)
    seen: dict[int, set[str]] = {}
    for owner in range(owners):
        running: Counter[tuple[str, str]] = Counter()
        epoch = 0
        last = 0
        for snapshot in Partition([config], len(partitions), owner, owners).run(
            messages[owner]
        ):
            body = json.loads(snapshot.value)
            tick = body["start"] // config.tick_ms + 1
            assert body["end"] - body["start"] == config.tick_ms
            assert body["tick"] == (tick - 1) % 8 + 1
            assert owner_of(snapshot.key, owners) == owner
            seen.setdefault(tick, set()).add(snapshot.key)
            if (body["epoch"], tick) != (epoch, last):
                if body["epoch"] != epoch:
                    running = Counter()
                epoch = body["epoch"]
                last = tick
                running.update(per_tick.get(tick, Counter()))
            stream = KEY.stream(bytes.fromhex(body["id"]))
            labels = [label for label, _ in body["items"]]
            tags = KEY.tags(snapshot.key, [label.encode() for label in labels])
            noise = counter.draw(stream, body["tick"], tags)
            for (label, noisy), z in zip(body["items"], noise.tolist(), strict=True):
                assert noisy - z == running[snapshot.key, label] > 0
    ticks = [time // 10 + 1 for events in partitions for _, _, time in events]
    if ticks:
        assert sorted(seen) == list(range(min(seen), max(seen) + 1))
        assert min(seen) <= min(ticks) and max(seen) >= max(ticks)


def run(
    events: list[Event], *configs: object, stop: int | None = None
) -> tuple[Partition, list[bytes]]:
    [messages] = contribute([events], configs, owners=1, step=1)  # type: ignore[arg-type]  # the records of this file
    partition = Partition(configs, 1)  # type: ignore[arg-type]  # as above
    partition.run(messages[:stop])
    return partition, messages


TEN: list[Event] = [("k1", ["a"], 10 * i + 1) for i in range(10)]


def test_a_new_generation_begins_anew_with_other_noise_and_leaves_nothing_of_the_old_one() -> (
    None
):
    """A deliberate change raises the generation; old state must go and its number stay used."""
    partition, messages = run(TEN, unk(), stop=6)
    ids = {json.loads(s.value)["id"] for s in Partition([unk()], 1).run(messages)}
    partition.configs = [unk(generation=2, epsilon=30.0)]
    partition.go_on(messages)
    later = partition.release_all()
    assert later and not ids & {json.loads(s.value)["id"] for s in later}
    assert not [k for k in partition.store if k.startswith(b"h/1/")]
    [(name, life)] = partition.merge.progress().retired
    assert (name, life.generation) == ("h", 1)
    partition.configs = [unk(generation=1)]
    with pytest.raises(
        StateRefused, match="generation 2 was already used|generation = 1"
    ):
        partition.restart()


def test_a_histogram_that_left_the_settings_is_refused_and_goes_on_when_it_is_back() -> (
    None
):
    """Ticks would be missed, so the worker does not start; after restoring it, none were."""
    whole, messages = run(TEN, unk(), unk(name="other"))
    partition, _ = run(TEN, unk(), unk(name="other"), stop=5)
    partition.configs = [unk()]
    said = "'other' is no longer in the settings.*: quietcount retire -c FILE other"
    with pytest.raises(StateRefused, match=said):
        partition.restart()
    partition.configs = [unk(), unk(name="renamed")]
    with pytest.raises(
        StateRefused, match=f"{said}. If 'renamed' is a new name for it"
    ):
        partition.restart()
    partition.configs = [unk(), unk(name="other")]
    partition.go_on(messages)
    partition.release_all()
    ends = {h.name: h.life for h in partition.merge.histograms}
    assert ends == {h.name: h.life for h in whole.merge.histograms}
    assert ends["other"].next is not None


def test_a_histogram_that_published_nothing_may_leave_the_settings() -> None:
    """A typo in a name, fixed before the first event, costs nothing."""
    partition = Partition([unk(), unk(name="other")], 1)
    partition.store[b"progress"] = msgspec.json.encode(partition.merge.progress())
    partition.configs = [unk()]
    partition.restart()
    assert [name for name, _ in partition.merge.progress().retired] == ["other"]


def test_a_key_may_be_declared_later_but_not_withdrawn() -> None:
    """Stream keys are independent, so adding is safe; removing would leave a gap."""
    partition, messages = run(TEN, unk(keys=("k1",)), stop=5)
    partition.configs = [unk(keys=("k1", "k2"))]
    partition.go_on(messages)
    assert {s.key for s in partition.release_all()} == {"k1", "k2"}
    partition.configs = [unk(keys=("k2",))]
    with pytest.raises(StateRefused, match="no longer declared"):
        partition.restart()


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (
            {"configs": [unk(epsilon=39.0)]},
            r"\(epsilon = 40.0 became 39.0\).*set generation = 2",
        ),
        ({"configs": [unk(max_items=1)]}, "max_items = 2 became 1.*set generation = 2"),
        ({"configs": [unk(tick_ms=5)]}, "tick_ms.*set generation = 2"),
        (
            {"configs": [unk(horizon=9)]},
            r"\(horizon = 8 became 9\).*set generation = 2",
        ),
        ({"key": NoiseKey(bytes(32))}, "key file holds another key"),
        ({"sources": 2}, "events topic has 2 partitions"),
        ({"owners": 2}, "contributions topic has 2 partitions"),
        ({"stream": "created again"}, "internal topics are not those"),
    ],
)
def test_state_of_other_settings_another_key_or_topic_is_refused(
    other: dict[str, object], said: str
) -> None:
    """No release is better than an unaccounted one. The same noise under other data or scale gives
    the difference away.
    """
    partition, _ = run(TEN, unk())
    for name, value in other.items():
        setattr(partition, name, value)
    with pytest.raises(StateRefused, match=said):
        partition.restart()


def test_a_source_that_lost_its_progress_stops_the_release() -> None:
    """Its events would count twice: the guarantee would be off by a factor."""
    partition, messages = run(TEN, unk(), stop=5)
    with pytest.raises(StateRefused, match="sent number 0 where 5 follows"):
        partition.merge.receive(messages[0], 5)
    with pytest.raises(StateRefused, match="sent number 6 where 5 follows"):
        partition.merge.receive(messages[6], 5)


def test_a_stated_start_publishes_from_the_first_tick_of_the_epoch() -> None:
    """Output depends on the configuration; without a start it begins with the first event."""
    events: list[Event] = [("k1", ["a"], 115), ("k1", ["a"], 175)]
    for start, first in ((EPOCH, 81), (None, 111)):
        config = unk(keys=("k1",), start=start)
        _, messages = run(events, config)
        body = json.loads(Partition([config], 1).run(messages)[0].value)
        assert body["start"] + 1 == first


def test_a_state_that_was_lost_brings_other_noise() -> None:
    """Recounting the ticks under the same noise would give the difference away."""
    partition, messages = run(TEN, unk(), stop=5)
    partition.configs = [unk(generation=2)]
    partition.go_on(messages)
    before = {json.loads(s.value)["id"] for s in partition.release_all()}
    again = {
        json.loads(s.value)["id"]
        for s in Partition([unk(generation=2)], 1).run(messages)
    }
    assert before and again and not before & again


def test_a_changed_field_or_topic_is_a_changed_mechanism() -> None:
    """Other items under the same running counts would be another stream under the same noise."""
    life = histogram_of(unk(), topic="t").life
    for change in ({"topic": "t2"}, {"topic": "t", "events": {"items": "b"}}):
        other = histogram_of(unk(), **change)
        with pytest.raises(StateRefused, match="topic|events.items"):
            other.restore(life, [])


def test_a_long_run_of_empty_ticks_is_logged_once_before_it_is_published(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One wrong date before or after the others makes a worker publish for hours."""
    far = 10 * (merge.EMPTY_TICKS_TOLD + 50)
    configs = [unk(start=EPOCH), unk(name="g", start=EPOCH, max_items=1)]
    events = [("k1", ["a"], time) for time in (5, far, far + 15, 2 * far + 15)]
    [messages] = contribute([events], configs, owners=1, further_ms=100)
    partition = Partition(configs, 1)
    partition.receive(messages, 0)
    while partition.merge.release().ticks:
        continue
    told = [
        record.getMessage()
        for record in caplog.records
        if "in a row" in record.getMessage()
    ]
    assert len(told) == 4
    assert (
        "histogram h: 10,049 ticks in a row, from 1970-01-01T00:00:00.010+00:00"
        in told[0]
    )


def test_a_worker_that_catches_up_on_full_ticks_logs_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with patch.object(merge, "EMPTY_TICKS_TOLD", 20):
        events = [("k1", ["a"], 100 * i) for i in range(40)]
        [messages] = contribute([events], [unk(start=EPOCH)], owners=1, further_ms=100)
        partition = Partition([unk(start=EPOCH)], 1)
        partition.receive(messages, 0)
        while partition.merge.release().ticks:
            continue
    assert not caplog.records
