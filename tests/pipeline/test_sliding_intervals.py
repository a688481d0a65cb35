"""What is published of sliding windows, against counts in plain Python: 95 of 100 intervals hold.

2,000 independent items or stream keys each. Of 2,000 with p = 0.95, a share outside 0.93 to 0.97 has
probability 4e-5. Half of the noise, or twice the noise, must fail.
"""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest

from tests.pipeline.pipeline import Partition
from tests.pipeline.test_quantiles import EDGES, interpolated
from tests.pipeline.test_sums import (
    BEGIN_MS,
    TICK_MS,
    Event,
    clamped,
    document,
    messages,
)
from workers.arrays.types import Longs, Tags
from workers.mechanisms.counters.line import LineColumns
from workers.pipeline.snapshots import join_pages
from workers.settings.settings import Settings, settings_of

NUMBER = 2_000
MOST = 20
TICKS = 10
LABELS = [f"i{n}" for n in range(NUMBER)]
KEYS = [f"k{n}" for n in range(NUMBER)]
WINDOWS = ("30ms", "70ms")
# Of every other stream key; eight events follow each other.
VALUES = ([-1, 5, 20, 20, 40, 70, 70, 120], [-1, 5, 5, 5, 20, 20, 70, 120])
Z95 = 1.96
Body = dict[str, Any]
Intervals = Iterator[tuple[str, float, float | None, float | None]]
"""What is published, the exact number, and the interval's ends; None: no bound."""


class Case(NamedTuple):
    given: Settings
    events: list[Event]
    sent: list[bytes]


def case(events: list[Event], **changes: Any) -> Case:
    base: dict[str, Any] = {
        "horizon": "never",
        "windows": list(WINDOWS),
        "hop": 2,
        "epsilon": 50.0,
        "max_count": MOST,
        "count": "lines[].qty",
    }
    body = document(**base | changes)
    if "buckets" in changes:
        body["histogram"][0].pop("sum")
    given = settings_of(body, Path())
    return Case(given, events, messages(given, events, 10_000))


def at_tick(place: int, places: int) -> int:
    return BEGIN_MS + place * TICKS // places * TICK_MS


@cache
def of_items() -> Case:
    """Return one stream key whose every item is in each tick, weighted."""
    rng = random.Random(1)
    events = list[Event]()
    number = 2 * TICKS * NUMBER // 2
    for i in range(number):
        pair = 2 * i % NUMBER, (2 * i + 1) % NUMBER
        lines = [
            {
                "sku": LABELS[n],
                "qty": rng.randrange(MOST // 2, MOST + 1),
                "price": round(rng.gauss(130 * n / NUMBER - 20, 15), 3),
            }
            for n in pair
        ]
        events.append({"shop": "s1", "ts": at_tick(i, number), "lines": lines})
    return case(events, mechanism="known_base", keys=["s1"], domain=LABELS)


@cache
def of_keys() -> Case:
    """Return 2,000 stream keys, most of whose items are hidden."""
    rng = random.Random(2)
    events = list[Event]()
    number = TICKS * NUMBER
    for i in range(number):
        lines = [
            {"sku": sku, "qty": rng.randrange(MOST + 1), "price": 1.0}
            for sku in rng.sample(LABELS[:4], 2)
        ]
        shop = rng.choice(KEYS)
        events.append({"shop": shop, "ts": at_tick(i, number), "lines": lines})
    return case(events, mechanism="unk_base", keys=KEYS, total_share=0.3)


@cache
def of_numbers() -> Case:
    """Return 2,000 stream keys, each with numbers in buckets."""
    rng = random.Random(3)
    events = list[Event]()
    number = 2 * TICKS * NUMBER
    for i in range(number):
        values = VALUES[i % len(VALUES)]
        line = {
            "value": values[i // NUMBER % len(values)],
            "qty": rng.randrange(MOST // 2, MOST + 1),
        }
        shop = KEYS[i % NUMBER]
        events.append({"shop": shop, "ts": at_tick(i, number), "lines": [line]})
    return case(
        events,
        mechanism="known_base",
        keys=KEYS,
        items="lines[].value",
        buckets=list(EDGES),
        max_items=1,
        quantiles=[0.5],
    )


def published(one: Case) -> list[Body]:
    """Return the whole snapshots of the last tick with events."""
    partition = Partition(one.given.histograms, sources=1)
    partition.receive(one.sent, 0)
    for _ in range(TICKS):
        released = partition.commit(ticks_max=1)
    assert released is not None
    pages: dict[tuple[str, str], list[Body]] = {}
    for snapshot in released:
        body = json.loads(snapshot.value)
        pages.setdefault((body["histogram"], body["key"]), []).append(body)
    return [join_pages(bodies) for bodies in pages.values()]


def in_window(one: Case, body: Body) -> Iterator[Event]:
    """Yield the events from `window.from` to `end`, of all stream keys."""
    first = body["window"]["from"]
    assert body["window"]["ms"] <= body["end"] - first < body["window"]["ms"] + 20
    assert body["end"] == BEGIN_MS + TICKS * TICK_MS
    return (event for event in one.events if first <= event["ts"] < body["end"])


def about(value: float, sd: float) -> tuple[float, float]:
    return value - Z95 * sd, value + Z95 * sd


def items_intervals(one: Case, bodies: Sequence[Body]) -> Intervals:
    for body in bodies:
        counts = dict.fromkeys(LABELS, 0)
        sums = dict.fromkeys(LABELS, 0)
        for event in in_window(one, body):
            for line in event["lines"]:
                counts[line["sku"]] += line["qty"]
                sums[line["sku"]] += line["qty"] * clamped(line["price"])
        assert [label for label, _ in sorted(body["items"])] == sorted(LABELS)
        name = body["histogram"]
        of_sums = body["sum"]["sd"]
        for (label, n), row in zip(body["items"], body["sums"], strict=True):
            total, mean, low, high = row
            assert mean is not None and low <= mean <= high
            exact = sums[label] / 1_000
            yield f"{name} counts", counts[label], *about(n, body["sd"])
            yield f"{name} sums", exact, *about(total, of_sums)
            yield f"{name} means", exact / counts[label], low, high


def by_key(one: Case, body: Body) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {key: [] for key in KEYS}
    for event in in_window(one, body):
        found[event["shop"]] += event["lines"]
    return found


def totals_intervals(one: Case, bodies: Sequence[Body]) -> Intervals:
    lines: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for body in bodies:
        name = body["histogram"]
        if name not in lines:
            lines[name] = by_key(one, body)
        exact = 0
        of_all = body["all_items"]
        for event in lines[name][body["key"]]:
            exact += event["qty"]
        yield f"{name} all_items", exact, *about(of_all["count"], of_all["sd"])


def quantiles_intervals(one: Case, bodies: Sequence[Body]) -> Intervals:
    lines: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for body in bodies:
        name = body["histogram"]
        if name not in lines:
            lines[name] = by_key(one, body)
        counts = [0] * (len(EDGES) + 1)
        for line in lines[name][body["key"]]:
            counts[sum(line["value"] >= edge for edge in EDGES)] += line["qty"]
        exact = interpolated(counts, 0.5)
        [quantile] = body["quantiles"]
        assert exact is not None
        assert quantile["bucket"] is not None
        yield f"{name} quantiles", exact, quantile["low"], quantile["high"]


def covered(found: Intervals) -> dict[str, float]:
    """Return the share of intervals that hold the exact number, by what is published."""
    held: dict[str, list[bool]] = {}
    for name, exact, low, high in found:
        above = low is None or low <= exact
        below = high is None or exact <= high
        held.setdefault(name, []).append(above and below)
    assert {len(each) for each in held.values()} == {NUMBER}
    return {name: sum(each) / NUMBER for name, each in held.items()}


CASES: dict[str, tuple[Callable[[], Case], Any, int]] = {
    "counts, sums, means": (of_items, items_intervals, 6),
    "all_items": (of_keys, totals_intervals, 2),
    "quantiles": (of_numbers, quantiles_intervals, 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_95_of_100_intervals_of_a_sliding_window_hold_what_was_counted(
    name: str,
) -> None:
    make, intervals, series = CASES[name]
    one = make()
    shares = covered(intervals(one, published(one)))
    assert len(shares) == series
    assert all(0.93 < share < 0.97 for share in shares.values()), shares


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_half_or_twice_the_noise_fails(name: str, factor: float) -> None:
    own = LineColumns.at

    def scaled(self: LineColumns, t: int, tags: Tags) -> Longs:
        noise: Longs = np.rint(own(self, t, tags) * factor).astype(np.int64)
        return noise

    make, intervals, series = CASES[name]
    one = make()
    with patch.object(LineColumns, "at", scaled):
        shares = covered(intervals(one, published(one)))
    assert len(shares) == series
    for share in shares.values():
        assert share > 0.97 if factor < 1 else share < 0.93, shares
