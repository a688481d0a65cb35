"""Sums, means and the count of all items, through both stages, against plain Python."""

import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from tests.pipeline.pipeline import KEY, Partition, unk
from tests.pipeline.test_snapshots import pages, tick
from workers.arrays.texts import Texts
from workers.arrays.types import Longs
from workers.kafka.records import Records
from workers.mechanisms.config.sums import parse_sum
from workers.mechanisms.counters.base import Counter as NoiseCounter
from workers.mechanisms.ledger import Ledger
from workers.mechanisms.mechanism import Noisy, Release
from workers.mechanisms.registry import build
from workers.pipeline.contributions import Message
from workers.pipeline.factory import count_lane_of, lanes, reader_of, source_reader_of
from workers.pipeline.intake import Intake
from workers.pipeline.snapshots import Means, Windows, join_pages
from workers.settings.settings import Settings, settings_of

Event = dict[str, Any]
PRICE = {"field": "lines[].price", "from": -20, "to": 100.5, "step": 0.25}
TICK_MS = 10


def document(*others: Event, user: bool = False, **changes: Any) -> Event:
    histogram = {
        "name": "h",
        "mechanism": "unk_base",
        "tick": "10ms",
        "horizon": 8,
        "max_items": 2,
    }
    histogram |= {
        "epsilon": 8.0,
        "delta": 1e-4,
        "keys": ["s1", "s2"],
        "sum": PRICE,
    } | changes
    return {
        "worker": {"name": "w", "data_dir": "d", "key_file": "k"},
        "kafka": {"bootstrap": "localhost:9092"},
        "events": {
            "topic": "t",
            "key": "shop",
            "items": "lines[].sku",
            "timestamp": "ts",
        }
        | ({"user": "who"} if user else {}),
        "privacy": {"unit": "user" if user else "event"},
        "histogram": [histogram, *others],
    }


def settings(*others: Event, user: bool = False, **changes: Any) -> Settings:
    return settings_of(document(*others, user=user, **changes), Path())


BEGIN_MS = 1_000_000_000_000
EPOCH = BEGIN_MS // TICK_MS // 8
Exact = dict[tuple[str, str], list[int]]


def some(number: int, items: int, seed: int, ticks: int = 12) -> list[Event]:
    """Return events whose items each have a mean of their own, some of them beyond the range."""
    rng = random.Random(seed)
    found = list[Event]()
    for i in range(number):
        skus = [rng.randrange(items) for _ in range(rng.choice((1, 1, 2, 3)))]
        prices = [round(rng.gauss(130 * sku / items - 20, 15), 3) for sku in skus]
        lines = [
            {"sku": f"i{n}", "price": p} for n, p in zip(skus, prices, strict=True)
        ]
        at = BEGIN_MS + i * ticks * TICK_MS // number
        found.append({"shop": rng.choice(("s1", "s2")), "ts": at, "lines": lines})
    for event in found:  # after all that is drawn above
        event["who"] = f"u{rng.randrange(number // 8)}"
        for line in event["lines"]:
            line["qty"] = rng.randrange(4)
    return found


def clamped(price: float) -> int:
    """Return the price in thousandths, between -20 and 100.5, to the nearest quarter."""
    above = min(max(round(price * 1_000), -20_000), 100_500) + 20_000
    return -20_000 + (above + 125) // 250 * 250


def by_hand(
    events: Iterable[Event],
    epoch: int,
    most: int = 1,
    *,
    count: bool = False,
    user: bool = False,
) -> Exact:
    """Return how often every item counts in an epoch, and what its numbers add up to.

    Two items of an event count, each at most `most` times with its first number; or five of a user,
    each at most so often in all events together.
    """
    found: Exact = {}
    of_user: dict[str, dict[tuple[str, str], int]] = {}
    for place, event in enumerate(events):
        if (event["ts"] // TICK_MS) // 8 != epoch:
            continue
        first = dict[str, int]()
        often = Counter[str]()
        for line in event["lines"]:
            first.setdefault(line["sku"], clamped(line["price"]))
            often[line["sku"]] += line["qty"] if count else 1
        mine = of_user.setdefault(event["who"] if user else f"event {place}", {})
        for sku in [*first][:2]:
            pair = event["shop"], sku
            if not often[sku] or (pair not in mine and len(mine) == 5):
                continue
            counted = min(often[sku], most - mine.get(pair, 0))
            mine[pair] = mine.get(pair, 0) + counted
            before = found.setdefault(pair, [0, 0])
            before[0] += counted
            before[1] += counted * first[sku]
    return found


def messages(given: Settings, events: list[Event], batch: int = 50) -> list[bytes]:
    reader = source_reader_of(given, reader_of(given), 0, [(0, 1)])
    intake = Intake(lanes(given), 0, KEY, count_lane_of=count_lane_of(given.histograms))
    sequences = [0]
    found: list[Message] = []
    for first in [*range(0, len(events), batch), len(events)]:
        part = [json.dumps(event).encode() for event in events[first : first + batch]]
        records = Records.of(part, [b""] * len(part), [0] * len(part))
        for reading in reader.read(records):
            assert not reading.rejects
            intake.add(reading.events)
        if not part:
            intake.read_to_end(events[-1]["ts"] + 20 * TICK_MS)
        made = intake.take_messages(source=0, sequences=sequences, offset=first)
        found += [message for _, message in made]
    return [message.encoded() for message in found]


def last_of_epochs(
    snapshots: Iterable[Any],
) -> dict[tuple[int, str], Mapping[str, Any]]:
    """Return the last snapshot of each epoch and key, by the number of epochs since 1970."""
    found: dict[tuple[int, str], list[Any]] = {}
    for one in map(json.loads, (snapshot.value for snapshot in snapshots)):
        place = one["start"] // TICK_MS // 8, one["key"]
        before = found.get(place, [])
        same = before and before[0]["tick"] == one["tick"]
        found[place] = [*before, one] if same else [one]
    return {place: join_pages(parts) for place, parts in found.items()}


def no_noise(counter: NoiseCounter, *args: Any) -> Longs:
    return np.zeros(len(args[-1]), dtype=np.int64)


@pytest.mark.parametrize("count", [True, False])
@pytest.mark.parametrize("user", [True, False])
def test_without_noise_sums_and_totals_are_exact_also_across_crashes(
    user: bool, count: bool
) -> None:
    """A number is added as often as its item counts.

    Every commit is a restart: all state is read back, and sections that wait are sent again.
    Another histogram serves more stream keys with the same bounds, from the same counts.
    """
    own: dict[str, Any] = {"max_count": 3} | ({"count": "lines[].qty"} if count else {})
    own |= {"max_items_per_user": 5} if user else {}
    plain = {
        "name": "plain",
        "mechanism": "unk_base",
        "tick": "10ms",
        "horizon": 8,
        "max_items": 2,
    }
    plain |= own | {"epsilon": 8.0, "delta": 1e-4, "keys": ["s1", "s2"]}
    given = settings(plain, user=user, **own, keys=["s2"], total_share=0.1)
    events = some(600, 6, seed=5)
    sent = messages(given, events)
    partition = Partition(given.histograms, sources=1)
    snapshots: list[Any] = []
    with patch("workers.mechanisms.counters.lifted.LiftedColumns.at", no_noise):
        released: list[Any] | None = []
        while released is not None:
            snapshots += released
            partition.go_on(sent)
            released = partition.commit(ticks_max=2)
    of_sums = [one for one in snapshots if one.topic.endswith(".h")]
    checked = 0
    for (epoch, key), snapshot in last_of_epochs(of_sums).items():
        exact = by_hand(events, epoch, 3, user=user, count=count)
        mine = {sku: numbers for (shop, sku), numbers in exact.items() if shop == key}
        assert snapshot["all_items"]["count"] == sum(n for n, _ in mine.values())
        shown = zip(snapshot["items"], snapshot["sums"], strict=True)
        for (sku, n), (total, mean, low, high) in shown:
            # A label that the epoch before handed on may have no event yet.
            of_item = mine.get(sku, (0, 0))
            assert [n, total] == [of_item[0], of_item[1] / 1_000]
            if n == 0:
                continue
            assert low <= total / n <= high
            assert mean is None or abs(mean - total / n) < 1e-4
            checked += 1
    assert checked >= 6


def test_all_steps_of_an_item_of_an_event_are_bounded() -> None:
    with pytest.raises(
        ValueError, match="max_count = 2075: with 482 steps of sum at most 2,074$"
    ):
        settings(max_count=2_075)
    assert settings(max_count=2_074).histograms[0].lanes[1].max_count <= 1_000_000


@pytest.mark.parametrize("true_mean", [-20, 0, 40.25, 90, 100.5])
@pytest.mark.parametrize("count", [1, 3, 30, 300])
def test_an_interval_holds_the_mean_whatever_the_count(
    count: int, true_mean: float
) -> None:
    """Also where noise exceeds the count. 20,000 draws: 0.945 is 3 standard errors below 0.95."""
    means = Means(parse_sum(PRICE))
    rng = np.random.default_rng(count)
    n = 20_000
    theta = (true_mean - 40.25) / 0.125
    sd = 20.0
    of_sums = 20.0 * means.steps
    counts = count + np.floor(rng.normal(0, sd, n) + 0.5).astype(np.int64)
    centred = round(theta * count) + np.floor(rng.normal(0, of_sums, n) + 0.5).astype(
        np.int64
    )
    mean, low, high = means.intervals(counts, centred, sd, of_sums)
    assert ((low <= true_mean) & (true_mean <= high)).mean() > 0.945
    known = ~np.isnan(mean)
    assert ((low <= mean) & (mean <= high))[known].all()
    assert (known == (counts > 1.959963984540054 * sd)).all()
    assert (high - low)[~known].min(initial=120.5) == 120.5


@pytest.mark.parametrize("unit", range(-9, 6))
def test_an_error_of_sums_has_the_same_digits_in_any_unit(unit: int) -> None:
    """In billionths it was 0.0; nine digits, and what a reader derives from them is a bound."""
    range_ = {"from": 0, "to": float(f"5e{unit}"), "step": float(f"1e{unit - 2}")}
    means = Means(parse_sum({"field": "x"} | range_))
    in_ones = Means(parse_sum({"field": "x", "from": 0, "to": 5, "step": 0.01}))
    sd = 45.2682
    of_sums = 20_314.123456
    published = means.head(sd, of_sums)["sd"]
    assert published == pytest.approx(means.sd(sd, of_sums), rel=5.1e-9)
    assert published == pytest.approx(
        in_ones.head(sd, of_sums)["sd"] * 10.0**unit, rel=1e-12
    )
    assert of_sums <= means.centred_sd(sd, published) <= 1.01 * of_sums
    config = unk(
        horizon=32,
        windows=(300_000,),
        tick_ms=10_000,
        sum=parse_sum({"field": "x"} | range_),
    )
    mechanism: Any = build(config)
    stated: Any = Windows(config, mechanism).at(31)["windows"]
    [window] = stated
    change = means.sd(
        mechanism.difference_sd(31, 1), mechanism.of_sums.difference_sd(31, 1)
    )
    assert window["sum_sd"] == pytest.approx(change, rel=5.1e-9)


def test_nothing_is_computed_for_counts_that_noise_exceeds() -> None:
    """However much larger it is; a warning of an overflow would fail this test."""
    means = Means(parse_sum(PRICE))
    counts = np.array([-5, 0, 7])
    centred = np.array([2**62, 0, -(2**62)])
    mean, low, high = means.intervals(counts, centred, 1e100, 1e100)
    assert np.isnan(mean).all()
    assert (low == -20.0).all() and (high == 100.5).all()


def test_a_sum_is_rounded_once_however_large() -> None:
    means = Means(
        parse_sum({"field": "x", "from": 0.001, "to": 999.001, "step": 0.001})
    )
    counts = np.array([3, 10**13, -4])
    centred = np.array([-2_996_998, 10**18 + 1, 7])
    middle = Fraction("499.501")
    half = Fraction("0.0005")
    pairs = zip(counts.tolist(), centred.tolist(), strict=True)
    wanted = [float(middle * n + half * d) for n, d in pairs]
    assert means.sums(counts, centred).tolist() == wanted


def test_pages_keep_items_and_their_sums_together() -> None:
    """A reader that joins pages gets what one page of any length would have."""
    labels = [f"label {i}" for i in range(60)]
    ledger = Ledger()
    text = [label.encode() for label in labels]
    ledger.append(KEY.tags("s", text), np.zeros(60, np.int32), Texts.of(text))
    counts = np.arange(60) * 7
    release = Release(
        np.arange(60), counts, 1.5, 3, Noisy(counts * 3, 9.5), Noisy(np.array([5]), 2.5)
    )
    shown = replace(tick(release), means=Means(parse_sum(PRICE)))
    [whole] = [json.loads(page) for page in pages(shown, ledger, 10**9)]
    parts = [json.loads(page) for page in pages(shown, ledger, 2_000)]
    assert len(parts) > 1
    assert all(len(part["items"]) == len(part["sums"]) > 0 for part in parts)
    joined = join_pages(parts) | {"page": 1, "pages": 1}
    assert joined == whole
    assert whole["all_items"] == {"count": 5, "sd": 2.5}


def test_sums_have_noise_of_their_own() -> None:
    """If sums had the counts' noise, twice the sum less R times the count would show the count."""
    given = settings(mechanism="known_base", domain=[f"i{n}" for n in range(400)])
    partition = Partition(given.histograms, sources=1)
    found = last_of_epochs(partition.run(messages(given, some(20, 3, seed=4))))
    [config] = given.histograms
    assert config.sum is not None
    of_counts = []
    of_sums = []
    snapshot = found[max(found)]
    for (_, count), (total, *_) in zip(
        snapshot["items"], snapshot["sums"], strict=True
    ):
        of_counts.append(count)
        of_sums.append(
            float((Decimal(repr(total)) - Decimal("40.25") * count) / Decimal("0.125"))
        )
    # Of 400 independent pairs, a correlation beyond 0.2 has probability 6e-5.
    assert abs(np.corrcoef(of_counts, of_sums)[0, 1]) < 0.2
    ratio = np.std(of_sums) / np.std(of_counts)
    assert 0.8 < ratio / config.sum.steps < 1.25
