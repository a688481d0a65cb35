"""Unique users of sliding windows through both stages, against counts of people in plain Python.

2,000 items with independent noise. Of 2,000 intervals with p = 0.95, a share outside 0.93 to 0.97
has probability 4e-5. Half of the noise, or twice the noise, must fail.
"""

import json
import random
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from tests.pipeline.pipeline import Partition
from tests.pipeline.test_sliding_intervals import Body, about, covered
from tests.pipeline.test_sums import BEGIN_MS, TICK_MS, Event, document, messages
from workers.arrays.types import Longs, Tags
from workers.mechanisms.counters.active import ActiveColumns
from workers.pipeline.snapshots import join_pages
from workers.settings.settings import Settings, settings_of

NUMBER = 2_000
TICKS = 12
LABELS = [f"i{n}" for n in range(NUMBER)]
# Of a user and period of 3 ticks; users have up to 4 in a tick.
PAIRS = 3
PERIOD = 3


def given(**changes: Any) -> Settings:
    own: dict[str, Any] = {
        "mechanism": "known_base",
        "horizon": "never",
        "windows": ["30ms", "70ms"],
        "hop": 2,
        "unique_users": True,
        "user_period": "30ms",
        "max_items_per_user": PAIRS,
        "keys": ["s1"],
        "domain": LABELS,
        "epsilon": 1.0,
    } | changes
    body = document(user=True, **own)
    for one in body["histogram"]:
        one.pop("sum")
        if one["mechanism"] == "unk_base":
            one.pop("domain")
    return settings_of(body, Path())


@cache
def events() -> tuple[Event, ...]:
    """Return what 3,000 users do, in the order of time."""
    rng = random.Random(1)
    found = list[Event]()
    number = 40_000
    for i in range(number):
        user = rng.randrange(3_000)
        own = [LABELS[(7 * user + 311 * j) % (NUMBER - 300)] for j in range(6)]
        lines = [{"sku": sku} for sku in rng.sample(own, rng.choice([1, 2]))]
        ts = BEGIN_MS + i * TICKS // number * TICK_MS
        found.append({"shop": "s1", "ts": ts, "who": f"u{user}", "lines": lines})
    return tuple(found)


def tick_of(ts: int) -> int:
    return ts // TICK_MS + 1


def counted() -> dict[int, set[tuple[str, str]]]:
    """Return the pairs (item, user) of each tick that the first pairs of a period let count."""
    admitted: dict[tuple[int, str], set[str]] = defaultdict(set)
    found: dict[int, set[tuple[str, str]]] = defaultdict(set)
    for event in events():
        tick = tick_of(event["ts"])
        who = event["who"]
        pairs = admitted[(tick - 1) // PERIOD, who]
        for line in event["lines"]:
            sku = line["sku"]
            if sku in pairs or len(pairs) < PAIRS:
                pairs.add(sku)
                found[tick].add((sku, who))
    return found


def whole(snapshots: Any) -> list[Body]:
    pages: dict[tuple[str, int], list[Body]] = defaultdict(list)
    for one in snapshots:
        body = json.loads(one.value)
        pages[body["histogram"], body["tick"]].append(body)
    return [join_pages(bodies) for bodies in pages.values()]


def last_tick(settings: Settings) -> list[Body]:
    partition = Partition(settings.histograms, sources=1)
    partition.receive(messages(settings, list(events()), 10_000), 0)
    for _ in range(TICKS):
        released = partition.commit(ticks_max=1)
    assert released is not None
    return whole(released)


def shares() -> dict[str, float]:
    """Return the share of intervals that hold the number of people, by window."""
    pairs = counted()
    # The bound must matter, and people come again: events in their place would be too many.
    assert sum(map(len, pairs.values())) < sum(
        len(event["lines"]) for event in events()
    )
    window = [pair for tick in sorted(pairs)[-7:] for pair in pairs[tick]]
    assert len(window) > 1.2 * len(set(window))

    def intervals() -> Any:
        for body in last_tick(given()):
            assert body["window"]["counts"] == "users"
            first = tick_of(body["window"]["from"])
            last = tick_of(body["end"]) - 1
            assert last == tick_of(BEGIN_MS) + TICKS - 1
            people: dict[str, set[str]] = {label: set() for label in LABELS}
            for tick in range(first, last + 1):
                for sku, who in pairs[tick]:
                    people[sku].add(who)
            assert len(body["items"]) == NUMBER
            for label, n in body["items"]:
                yield body["histogram"], len(people[label]), *about(n, body["sd"])

    return covered(intervals())


def test_95_of_100_intervals_hold_how_many_different_people_there_were() -> None:
    found = shares()
    assert set(found) == {"h.30ms", "h.70ms"}
    assert all(0.93 < share < 0.97 for share in found.values()), found


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_half_or_twice_the_noise_fails(factor: float) -> None:
    own = ActiveColumns.at

    def scaled(self: ActiveColumns, t: int, tags: Tags) -> Longs:
        noise: Longs = np.rint(own(self, t, tags) * factor).astype(np.int64)
        return noise

    with patch.object(ActiveColumns, "at", scaled):
        found = shares()
    for share in found.values():
        assert share > 0.97 if factor < 1 else share < 0.93, found


@pytest.mark.parametrize("mechanism", ["known_base", "unk_base"])
def test_commits_and_restarts_change_no_byte(mechanism: str) -> None:
    """The messages of stage 1 differ by commit; duplicates of a user in a tick are one."""
    settings = given(mechanism=mechanism, epsilon=40.0)
    some = list(events())[::40]
    for event in some[:200]:
        event["lines"] = [{"sku": "i1"}]
    by_batch = []
    for batch in (50, 333):
        partition = Partition(settings.histograms, sources=1)
        values = messages(settings, some, batch)
        found: list[Any] = []
        partition.receive(values, 0)
        while (released := partition.commit(ticks_max=2)) is not None:
            found += released
            partition.go_on(values)
        by_batch.append({(one.topic, one.key, one.value) for one in found})
    assert by_batch[0] == by_batch[1]
    assert len(by_batch[0]) > TICKS
    shown = [body["items"] for body in map(json.loads, (v for _, _, v in by_batch[0]))]
    assert any(shown)
