"""Stage 2 is a pure function of its topic: stable bytes, exact counts plus noise, no repeats."""

import json
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import strategies as st

from tests.pipeline.pipeline import (
    Event,
    Partition,
    contribute,
    histogram_of,
    unk,
)
from workers.mechanisms.config.histogram import EPOCH
from workers.mechanisms.noise.keyed import NoiseKey
from workers.pipeline import merge
from workers.pipeline.contributions import decode
from workers.runtime.errors import StateRefused

pytestmark = pytest.mark.slow

KEYS = st.sampled_from(["k1", "k2", "k3"])
LABELS = st.sampled_from("abcde")
VISIT = st.tuples(KEYS, st.lists(LABELS, max_size=3), st.integers(0, 150))
EVENTS = st.lists(VISIT, max_size=30).map(
    lambda events: sorted(events, key=lambda e: e[2])
)
Partitions = list[list[Event]]


def test_a_source_partition_that_has_not_joined_is_refused() -> None:
    """Its events would be counted in ticks that may be published."""
    events: Partitions = [[("k1", ["a"], 1)], [("k1", ["a"], 1)]]
    [messages] = contribute(events, [unk()], owners=1)
    owner = Partition([unk()], 1)
    with pytest.raises(
        StateRefused, match="source partition 1 of 1: it has not joined"
    ):
        owner.run([message for message in messages if decode(message).source == 1])


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
        ({"configs": [unk(tick_ms=5)]}, "tick_ms.*set generation = 2"),
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
