"""Spent budget stays spent: through both stages and their store, with a crash after every tick."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import pytest

from tests.mechanisms.small import SMALL
from tests.pipeline.pipeline import Event, Partition, contribute
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.registry import MECHANISMS

pytestmark = pytest.mark.slow

TICKS = 24
DOMAIN = tuple("abcdefgh")
Body = Mapping[str, Any]


def published(
    config: HistogramConfig, messages: Sequence[bytes], *, crashing: bool
) -> list[Body]:
    """Return the first epoch's snapshots; if `crashing`, every process ends at its commit."""
    partition = Partition([config], 1)
    found = list[Body]()
    position = 0
    while True:
        position = partition.receive(messages[position:], position)
        part = partition.commit(ticks_max=1)
        if part is None:
            return [body for body in found if body["epoch"] == 1]
        found += [json.loads(snapshot.value) for snapshot in part]
        if crashing:
            partition.receive(messages[position:], position)
            partition.merge.release(ticks_max=2)  # released, never committed
            position = partition.restart()


def made(name: str, **values: object) -> HistogramConfig:
    """Return a configuration with ticks of 10 ms, all in one epoch."""
    usual: Any = SMALL | {"tick_ms": 10, "horizon": TICKS} | values
    return MECHANISMS[name](**usual)


@pytest.mark.parametrize("crashing", [False, True])
@pytest.mark.parametrize(("labels", "queries"), [(7, 20), (40, 5), (6, 2), (3, 1)])
def test_pay_what_you_get_refuses_from_the_answer_on_that_used_its_budget_up(
    labels: int, queries: int, crashing: bool
) -> None:
    """A refusal too early wastes budget; an answer too late spends unpromised privacy."""
    left = {"labels": labels, "queries": queries}
    config = made(
        "pay_what_you_get", max_items=3, epsilon=8.0, k=3, kbar=5, every=1, **left
    )
    events: list[Event] = [
        ("s1", ["a", "b", "c"], 10 * t + n // 10)
        for t in range(TICKS)
        for n in range(100)
    ]
    answered = 0
    [messages] = contribute([events], [config], owners=1, step=10)
    bodies = published(config, messages, crashing=crashing)
    assert [body["tick"] for body in bodies] == list(range(1, TICKS + 1))
    for answer in bodies:
        if left["labels"] and left["queries"]:
            assert "refused" not in answer
            answered += 1
            returned = len(answer["labels"])
            # Three labels are requested, or the remainder; BOTTOM is charged as one.
            asked = min(3, left["labels"])
            left["labels"] -= returned if answer["complete"] else returned + 1
            left["queries"] -= 1
            assert returned <= asked and answer["complete"] is (returned == asked)
        else:
            assert answer["refused"] is True and "labels" not in answer
        assert (answer["labels_left"], answer["queries_left"]) == (
            left["labels"],
            left["queries"],
        )
    assert 0 in left.values() and 1 <= answered < TICKS


def sparse(switches: int, top_k: int) -> HistogramConfig:
    return made(
        "sparse_gumb",
        domain=DOMAIN,
        eta=100,
        epsilon=20.0,
        top_k=top_k,
        switches=switches,
    )


@cache
def overtaking() -> Sequence[Event]:
    events: list[Event] = []
    for t in range(TICKS):
        leader = t // 3
        # Later leaders pass within a tick; every label also has an event a tick.
        events += [("s1", [DOMAIN[leader]], 10 * t + 1)] * (
            300 * 2**leader if t % 3 == 0 else 1
        )
        events += [("s1", [label], 10 * t + 2) for label in DOMAIN]
    return events


@cache
def overtaking_sent() -> Sequence[bytes]:
    """Return the messages; stage 1 knows only the lane, not switches or picks."""
    [messages] = contribute([overtaking()], [sparse(1, 1)], owners=1, step=500)
    return messages


@pytest.mark.parametrize("crashing", [False, True])
@pytest.mark.parametrize(("switches", "top_k"), [(1, 1), (3, 1), (3, 2)])
def test_sparse_gumb_switches_s_times_at_most_and_goes_on_publishing_counts(
    switches: int, top_k: int, crashing: bool
) -> None:
    """It follows the leader within its switches, then keeps counting the last items."""
    config = sparse(switches, top_k)
    assert config.lane == sparse(1, 1).lane
    bodies = published(config, overtaking_sent(), crashing=crashing)
    assert [body["tick"] for body in bodies] == list(range(1, TICKS + 1))
    chosen = [frozenset(label for label, _ in body["items"]) for body in bodies]
    assert all(len(labels) == top_k for labels in chosen)
    switched = [t for t in range(1, TICKS) if chosen[t] != chosen[t - 1]]
    assert len(switched) == switches
    in_tick = Counter(
        (at // 10, label) for _, items, at in overtaking() for label in items
    )
    exact = Counter[str]()
    for t, body in enumerate(bodies):
        exact.update({label: in_tick[t, label] for label in DOMAIN})
        assert all(
            abs(count - exact[label]) < 8 * body["sd"] for label, count in body["items"]
        )
    last = bodies[switched[-1] :]
    assert (
        len(last) > 6 and len({tuple(map(tuple, body["items"])) for body in last}) > 3
    )
