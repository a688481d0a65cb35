"""Every input path gives the counts of plain Python on nested, list, time and bucketed events."""

import json
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.worker.harness import Bare, Site, known, now_ms, unk, until
from workers.mechanisms.noise.keyed import NoiseKey
from workers.pipeline.histogram import Histogram
from workers.replay.offline import fresh_histograms, replay
from workers.replay.sources import open_source
from workers.replay.sources_topic import open_topic
from workers.settings.settings import Settings

pytestmark = pytest.mark.slow

PARTITIONS = 3
TICKS = 20
TICK_MS = 1_000
EACH = 150  # events a tick
EDGES = [0, 10, 50, 100, 500]
BUCKETS = ["<0", "[0,10)", "[10,50)", "[50,100)", "[100,500)", ">=500"]
Event = dict[str, Any]
# By histogram, stream key and label.
Counts = Counter[tuple[str, str, str]]

EVENTS: Mapping[str, object] = {
    "key": "order.shop",
    "items": "order.lines[].sku",
    "count": "order.lines[].qty",
    "where": Bare('[{ field = "type", in = ["purchase"] }]'),
    "timestamp": 'meta."created.at"',
}


def where(*conditions: str) -> Bare:
    return Bare("[" + ", ".join(f"{{ {condition} }}" for condition in conditions) + "]")


COUNTRY = where('field = "country", exists = true')
NO_VIEW = where('field = "type", not_in = ["view"]', 'field = "order.vip", in = [true]')
LATENCY = known(
    "latency", items="latency", max_items=1, buckets=EDGES, keys=["17", "18", "true"]
)
del LATENCY["domain"]
HISTOGRAMS: list[dict[str, object]] = [
    unk("products", max_items=3, max_count=4),
    unk("types", items="type", key="$all", where=Bare("[]"), max_items=1, keys=["all"]),
    unk("countries", items="country", where=COUNTRY, max_items=1),
    LATENCY | {"where": where('field = "latency", min = -100, max = 900.5')},
    unk("others", items="order.tags", where=NO_VIEW),
]


def generated(rng: random.Random, unit: str, now_ms: int) -> Iterator[Event]:
    start = now_ms // TICK_MS * TICK_MS - (TICKS + 1) * TICK_MS
    for i in range(TICKS * EACH):
        at = start + i * TICK_MS // EACH
        yield {
            "type": rng.choice(["purchase", "purchase", "refund", "view"]),
            "meta": {"created.at": written(at, unit), "id": i},
            "order": {
                "shop": rng.choice([17, 18]) if rng.random() < 0.9 else True,
                "vip": rng.random() < 0.5,
                "lines": [
                    {
                        "sku": rng.randrange(1000, 1006),
                        "qty": rng.randrange(7),
                        "price": 1.5,
                    }
                    for _ in range(rng.randrange(5))
                ],
                "tags": rng.sample(["new", "gift", "sale", "é"], rng.randrange(4)),
            },
            "country": rng.choice(["CZ", "AT", None]),
            "latency": rng.choice([-3.5, 0, 9.99, 10, 49, 499.9, 500, 10_000]),
        }


def written(at_ms: int, unit: str) -> object:
    if unit == "iso":
        at = datetime.fromtimestamp(at_ms / 1000, tz=UTC)
        return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return (
        at_ms / 1000
        if unit == "s"
        else at_ms * {"ms": 1, "us": 1_000, "ns": 1_000_000}[unit]
    )


def reference(events: list[Event]) -> Counts:
    found: Counts = Counter()
    for event in events:
        order = event["order"]
        shop = json.dumps(order["shop"])
        if event["type"] == "purchase":
            sums: dict[str, int] = {}
            for line in order["lines"]:
                sums[str(line["sku"])] = sums.get(str(line["sku"]), 0) + line["qty"]
            for sku, n in list(sums.items())[:3]:
                found["products", shop, sku] += min(n, 4)
        found["types", "all", event["type"]] += 1
        if event["country"] is not None:
            found["countries", shop, event["country"]] += 1
        if event["latency"] <= 900.5:
            found["latency", shop, BUCKETS[bisect_right(EDGES, event["latency"])]] += 1
        if event["type"] != "view" and order["vip"]:
            for tag in order["tags"][:2]:
                found["others", shop, tag] += 1
    return +found


def exact(
    histograms: list[Any], keys: tuple[str, ...] = ("17", "18", "true", "all")
) -> Counts:
    found: Counts = Counter()
    for histogram in histograms:
        assert isinstance(histogram, Histogram)
        for key in keys:
            with suppress(KeyError):  # not every histogram met it
                for label, n in histogram.exact(key).items():
                    found[histogram.name, key, label] += n
    return +found


def replayed(
    settings: Settings, key: NoiseKey, opening: Callable[[], Any]
) -> tuple[Counts, int]:
    histograms = fresh_histograms(settings, key)
    with opening() as source:
        summary = replay(settings, key, source, lambda _: None, histograms=histograms)
    return exact(histograms), sum(summary.rejects.values())


@pytest.mark.parametrize("unit", ["iso", "s", "us"])
def test_every_way_in_counts_what_plain_python_counts(
    cluster: str, tmp_path: Path, unit: str
) -> None:
    """An invalid field rejects its own event and no other."""
    given = {**EVENTS, "timestamp_unit": unit}
    site = Site(cluster, tmp_path, HISTOGRAMS, partitions=PARTITIONS, events=given)
    rng = random.Random(7)
    events = list(generated(rng, unit, now_ms()))
    bad_shop = events[0] | {"order": events[0]["order"] | {"shop": 1.5}}
    broken = [bad_shop, events[0] | {"type": "purchase", "order": {"shop": 17}}]
    for partition in range(PARTITIONS):
        site.produce(
            partition, events[partition::PARTITIONS] + broken[partition : partition + 1]
        )
    wanted = reference(events)
    with site.running():
        until(lambda: len(site.rejects()) == len(broken), "the rejects are there")
        site.wait_published(now_ms())
    contributed: Counts = Counter()
    lanes = {config.lane: config.name for config in site.settings.histograms}
    for place, n in site.contributed().items():
        contributed[lanes[place.lane], place.key, place.label] += n
    assert +contributed == wanted
    exact_lines = tmp_path / "exact.jsonl"
    site.assert_clean("--exact", str(exact_lines))
    last: dict[tuple[str, str], dict[str, int]] = {}
    for line in exact_lines.read_text().splitlines():
        body = json.loads(line)
        last[body["histogram"], body["key"]] = {
            item[0]: item[2] for item in body["items"]
        }
    # With so little noise nearly all items are shown, with their exact counts.
    named = [
        (place, label, n) for place, items in last.items() for label, n in items.items()
    ]
    shown = Counter({(*place, label): n for place, label, n in named})
    assert all(wanted[place] == n for place, n in shown.items())
    assert len(+shown) > 0.8 * len(wanted), (len(+shown), len(wanted))
    no_shop = "field 'order.shop' is not a string, whole number or boolean"
    assert sorted(site.reasons()) == [no_shop, "missing field 'order.lines'"]

    lines = tmp_path / "events.jsonl"
    table = tmp_path / "events.parquet"
    lines.write_text("".join(json.dumps(event) + "\n" for event in events + broken[1:]))

    def counted_from(opening: Callable[[], Any]) -> tuple[Counts, int]:
        return replayed(site.settings, site.key, opening)

    assert counted_from(lambda: open_source(site.settings, str(lines))) == (wanted, 1)
    assert counted_from(lambda: open_topic(site.settings, None, None)) == (wanted, 2)
    # A column has one type: the shop that is `true` would be 1 in a column of numbers.
    rows = [event for event in events if event["order"]["shop"] is not True]
    if unit == "s":
        metas = [
            {"created.at": float(event["meta"]["created.at"]), "id": 0}
            for event in rows
        ]
        rows = [event | {"meta": meta} for event, meta in zip(rows, metas, strict=True)]
    floats = [row | {"latency": float(row["latency"])} for row in rows]
    pq.write_table(pa.Table.from_pylist(floats), table, row_group_size=97)
    assert counted_from(lambda: open_source(site.settings, str(table))) == (
        reference(rows),
        0,
    )
