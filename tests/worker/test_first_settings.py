"""`init`, `check` and `run` on topics of many shapes, against counts of plain Python."""

import json
import random
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from tests.commands.init.topics import SPAN_MS, TOPICS, Event, Keyed, partition_of
from tests.registry_server import registry_server
from tests.worker.harness import Site, Worker, now_ms, succeed, unk
from workers.events.times import time_ms
from workers.settings.settings import Settings

pytestmark = pytest.mark.slow

PARTITIONS = 2
# Enough events that ticks are an hour or less, and all of them are over.
EVENTS = 20_000
AGO_MS = 3_600_000
# The sensors' readings are in Avro.
READING = """{"type": "record", "name": "Reading", "fields": [
    {"name": "sensor", "type": "string"},
    {"name": "type", "type": {"type": "enum", "name": "Kind", "symbols": ["humidity", "temperature"]}},
    {"name": "value", "type": ["null", "double"]},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "battery", "type": "int"}
]}"""
# Noise that far above its sd happens once in 10^9 times.
SDS = 6.2


Encode = Callable[[Event], bytes]
# Time, stream key, label, count.
Counted = Iterator[tuple[int, str, str, int]]


def flights(settings: Settings, events: list[Keyed]) -> Counted:
    for _, event in events:
        at = time_ms(event["departed"], "iso")
        assert at is not None
        yield at, event["origin"], event["dest"], 1


def orders(settings: Settings, events: list[Keyed]) -> Counted:
    [histogram] = settings.histograms
    for _, event in events:
        sums: Counter[str] = Counter()
        for line in event["order"].get("lines", ()):
            sums[str(line["sku"])] += line["qty"]
        for sku, n in list(sums.items())[: histogram.max_items]:
            yield (
                event["created"] * 1000,
                event["order"]["shop"],
                sku,
                min(n, histogram.max_count),
            )


def web_log(settings: Settings, events: list[Keyed]) -> Counted:
    return ((event["ts"], "all", event["path"], 1) for _, event in events)


def sensors(settings: Settings, events: list[Keyed]) -> Counted:
    buckets = settings.histograms[0].buckets
    assert buckets is not None
    edges = buckets.edges
    labels = buckets.labels
    for _, event in events:
        yield (
            event["at"] // 1000,
            event["type"],
            labels[bisect_right(edges, event["value"])],
            1,
        )


def users(settings: Settings, events: list[Keyed]) -> Counted:
    [histogram] = settings.histograms
    pairs: dict[tuple[int, str], Counter[str]] = defaultdict(Counter)
    for _, event in events:
        at = time_ms(event["context"]["when"], "iso")
        assert at is not None and isinstance(histogram.horizon, int)
        assert histogram.max_items_per_user is not None
        used = pairs[at // (histogram.tick_ms * histogram.horizon), event["session"]]
        for tag in event["tags"][: histogram.max_items]:
            if used[tag] < histogram.max_count and (
                tag in used or len(used) < histogram.max_items_per_user
            ):
                used[tag] += 1
                yield at, "all", tag, 1


GUESSED: dict[str, dict[str, object]] = {
    "flights": {"key": "origin", "items": "dest", "timestamp": "departed"},
    "orders": {
        "items": "order.lines[].sku",
        "count": "order.lines[].qty",
        "timestamp_unit": "s",
    },
    "web-log": {"key": "$all", "items": "path", "timestamp": "ts"},
    "sensors": {
        "key": "type",
        "items": "value",
        "timestamp_unit": "us",
        "format": "avro",
    },
    "users": {"user": "session", "items": "tags", "timestamp": "context.when"},
}
CASES: dict[str, tuple[list[str], Callable[[Settings, list[Keyed]], Counted]]] = {
    "flights": (["--keys", "public"], flights),
    "orders": (["--keys", "declare"], orders),
    "web-log": ([], web_log),
    "sensors": (["--keys", "public"], sensors),
    "users": (["--users"], users),
}


@pytest.mark.parametrize("kind", CASES)
def test_what_init_writes_counts_right(
    kind: str, cluster: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """This is the path of a new user; a day that begins meanwhile begins an epoch."""
    (options, reference) = CASES[kind]
    guessed = GUESSED[kind]
    # Its topic, and how to read what is published; `init` writes the settings.
    site = Site(cluster, tmp_path, [unk()], partitions=PARTITIONS, create=False)
    site.create_events()
    encode: Encode = lambda event: json.dumps(event).encode()  # noqa: E731
    if kind == "sensors":
        url = request.getfixturevalue("registry_url")
        serializer = AvroSerializer(SchemaRegistryClient({"url": url}), READING)
        context = SerializationContext(site.topic, MessageField.VALUE)
        encode = lambda event: serializer(event, context) or b""  # noqa: E731
        options = [*options, "--schema-registry", url]
    events = fill(site, kind, encode)
    site.config = file = tmp_path / "first.toml"
    new = "--bootstrap", cluster, "--topic", site.topic, "--output", str(file)
    succeed("init", *new, *options)
    text = file.read_text()
    file.write_text(text.replace("epsilon = 1.0\n", "epsilon = 8.0\n"))
    settings = site.settings
    assert {name: getattr(settings.events, name) for name in guessed} == guessed
    assert settings.histograms[0].tick_ms <= AGO_MS

    succeed("key", "new", str(tmp_path / "first.key"))
    succeed("check", "-c", str(file))
    succeed("topics", "-c", str(file), "--create")
    counted = list(reference(settings, events))
    with Worker(file, tmp_path / "worker.log") as worker:
        site.published_or_ended(worker, max(at for at, *_ in counted) + 1)
        assert worker.stop() == 0
    site.assert_clean()
    assert_right(site, counted)


@pytest.fixture(scope="module")
def registry_url(
    registry_program: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    with registry_server(tmp_path_factory.mktemp("registry")) as server:
        yield server.url


def fill(site: Site, kind: str, encode: Encode) -> list[Keyed]:
    rng = random.Random(kind)
    found = []
    start = now_ms() - AGO_MS - SPAN_MS // 2
    for i in range(EVENTS):
        key, event = TOPICS[kind](rng, start + i * (SPAN_MS // 2) // EVENTS)
        place = partition_of(key, i, PARTITIONS)
        sent_key = None if key is None else key.encode()
        site.produce(place, [encode(event)], key=sent_key, flush=False)
        found.append((key, event))
    site.produce(0, [])  # flush
    return found


def assert_right(site: Site, counted: list[tuple[int, str, str, int]]) -> None:
    """Assert counts of the epoch within their noise, with no item above threshold missing."""
    [histogram] = site.settings.histograms
    assert isinstance(histogram.horizon, int)
    epoch_ms = histogram.tick_ms * histogram.horizon
    seen = 0
    shown = 0
    for snapshot in site.snapshots():
        first = snapshot["start"] // epoch_ms * epoch_ms
        end = snapshot["end"]
        sd = snapshot["sd"]
        exact: Counter[str] = Counter()
        for at, key, label, n in counted:
            if key == snapshot["key"] and first <= at < end:
                exact[label] += n
        found = dict(snapshot["items"])
        for label, n in found.items():
            place = snapshot["key"], snapshot["tick"], label, n, exact[label]
            assert abs(n - exact[label]) <= SDS * sd + 1, place
        passing = snapshot["threshold"] or 0
        above = {label for label, n in exact.items() if n > passing + SDS * sd}
        missing = above - found.keys()
        assert not missing, (snapshot["key"], snapshot["tick"], missing)
        seen = seen + 1
        shown = shown + len(found)
    assert seen > 2 and shown > 2 * seen
