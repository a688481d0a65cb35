"""Crash and repeat give the same bytes: every mechanism's example, both stages, whole epochs."""

import contextlib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import msgspec
import pytest

from tests import ROOT
from tests.pipeline.pipeline import Event, Partition, contribute
from workers.mechanisms.config.histogram import HistogramConfig, Lane
from workers.mechanisms.noise.keyed import NoiseKey
from workers.mechanisms.registry import MECHANISMS
from workers.pipeline.factory import mechanisms
from workers.pipeline.snapshots import Snapshot
from workers.runtime.errors import QuietcountError
from workers.settings.settings import load

pytestmark = pytest.mark.slow

EXAMPLES = ROOT / "examples" / "mechanisms"
# One for each mechanism, and those for options with other state or contributions.
NAMES = (*MECHANISMS, "misra_gries_pure", "misra_gries_pamg")
LABELS = ["tea", "cup", "pot", "spoon", "kettle", "sugar", "milk", "lemon"]
TICKS = 75  # the examples' horizon is 64: one epoch and the beginning of the next


@cache
def small(name: str) -> HistogramConfig:
    [config] = load(EXAMPLES / f"{name}.toml").histograms
    return msgspec.structs.replace(config, tick_ms=10)


def events(seed: int) -> list[Event]:
    """Return a few orders a tick, some empty ticks, the first labels most often."""
    rng = random.Random(seed)
    out: list[Event] = []
    for tick in range(TICKS):
        for _ in range(rng.choice([0, 1, 5, 40])):
            items = rng.choices(
                LABELS, [2.0**-i for i in range(len(LABELS))], k=rng.randint(0, 3)
            )
            out.append(
                (rng.choice(["s1", "s1", "s2"]), items, 10 * tick + rng.randrange(10))
            )
    return sorted(out, key=lambda event: event[2])


def sent(lane: Lane, *partitions: list[Event]) -> Sequence[bytes]:
    config = next(one for one in map(small, NAMES) if one.lane == lane)
    [messages] = contribute(partitions, [config], owners=1, step=20)
    return messages


@cache
def in_lane(lane: Lane) -> Sequence[bytes]:
    """Return what all mechanisms of a lane read, from two source partitions."""
    return sent(lane, events(1), events(2))


@cache
def in_orders(lane: Lane) -> Sequence[Sequence[bytes]]:
    """Return the messages of the same events, differently spread over source partitions."""
    stream = events(4)
    return sent(lane, stream, []), sent(lane, stream[1::2], stream[0::2])


@cache
def uninterrupted(name: str) -> Counter[tuple[str, bytes]]:
    config = small(name)
    made = Partition([config], 2).run(in_lane(config.lane))
    return Counter(map(key_and_value, made))


def key_and_value(snapshot: Snapshot) -> tuple[str, bytes]:
    return snapshot.key, snapshot.value


def with_crashes(
    name: str, restart: Callable[[Partition], int] = Partition.restart
) -> Iterator[tuple[str, bytes]]:
    """Yield the output with twelve crashes between receive and commit, re-reading after each."""
    config = small(name)
    messages = in_lane(config.lane)
    rng = random.Random(config.mechanism)
    crashing = Partition([config], 2)
    position = 0
    crashes = 12
    while True:
        position = crashing.receive(
            messages[position : position + rng.randint(1, 9)], position
        )
        part = crashing.commit(ticks_max=rng.randint(1, 5))
        yield from map(key_and_value, part or ())
        if position >= len(messages) and part is None:
            break
        if crashes and rng.random() < 0.4:
            crashes -= 1
            position = restart(crashing)
    assert crashes == 0


@pytest.mark.parametrize("name", NAMES)
def test_crashes_anywhere_change_no_byte(name: str) -> None:
    """Lost or redrawn state would give a tick other noise, or other data the same noise."""
    whole = uninterrupted(name)
    assert Counter(with_crashes(name)) == whole
    bodies = [json.loads(value) for _, value in whole]
    ticks = {(body["epoch"], body["tick"]) for body in bodies}
    assert len(ticks) >= TICKS
    assert {epoch for epoch, _ in ticks} >= {1, 2}


@pytest.mark.parametrize("name", NAMES)
def test_a_restart_that_makes_its_noise_anew_is_seen(name: str) -> None:
    """Negative control, planted: each restart has another key."""
    whole = uninterrupted(name)

    def restart(partition: Partition) -> int:
        partition.key = NoiseKey(bytes(range(1, 33)))
        return partition.restart()

    with contextlib.suppress(QuietcountError):  # refusing is better still
        assert any(one not in whole for one in with_crashes(name, restart))


@pytest.mark.parametrize("name", NAMES)
def test_the_same_events_in_another_order_of_arrival_give_the_same_items(
    name: str,
) -> None:
    """The source partition and order of arrival are data and must not show."""
    config = small(name)
    runs = []
    for messages in in_orders(config.lane):
        published = Partition([config], 2).run(messages)
        runs.append({(json.loads(s.value)["start"], s.key): s.value for s in published})
    one, other = runs
    common = one.keys() & other.keys()
    assert len(common) > TICKS
    assert all(one[at] == other[at] for at in common)


def test_there_is_an_example_for_each_mechanism_and_no_other() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.toml")} == set(NAMES)
    for path in EXAMPLES.glob("*.toml"):
        assert [m.kind for m in mechanisms(load(path))] == [
            path.stem.removesuffix("_pure").removesuffix("_pamg")
        ]
