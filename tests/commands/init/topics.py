"""Five topics of different shape, as people have them, and samples of them without Kafka."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from aiokafka.partitioner import murmur2

from workers.commands.init.draft import Draft, OperatorAnswers, SampleGuesses
from workers.commands.init.formats import decode_sample
from workers.commands.init.sample import Record, Sample

NOW_MS = 1_795_300_000_000
SPAN_MS = 6 * 3_600_000
Event = dict[str, Any]
Keyed = tuple[str | None, Event]


def iso(at_ms: int) -> str:
    """Return a time as ISO 8601 has it."""
    return (
        datetime.fromtimestamp(at_ms / 1000, UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


def flights(rng: random.Random, at: int) -> Keyed:
    """A departure, flat, with numbers and names."""
    carrier = rng.choice(["UA", "AA", "DL", "B6", "EV", "MQ"])
    return None, {
        "departed": iso(at),
        "carrier": carrier,
        "flight": rng.randrange(1, 3000),
        "tailnum": f"N{rng.randrange(10**5)}",
        "origin": rng.choice(["EWR", "JFK", "LGA"]),
        "dest": f"D{int(rng.triangular(0, 40, 0)):02}",
        "dep_delay": rng.gauss(10, 30) // 1,
        "distance": rng.randrange(90, 3000),
    }


def orders(rng: random.Random, at: int) -> Keyed:
    """An order with lines, in a topic with refunds that have none; seconds since 1970."""
    if rng.random() < 0.2:
        return None, {
            "type": "refund",
            "order": {"id": rng.randrange(10**9), "shop": "s1"},
            "created": at // 1000,
        }
    lines = [
        {
            "sku": rng.randrange(1000, 1030),
            "qty": rng.randrange(1, 4),
            "price": rng.randrange(1, 99) + 0.99,
        }
        for _ in range(rng.randrange(1, 5))
    ]
    order = {"id": rng.randrange(10**9), "shop": rng.choice(["s1", "s2", "s3"]), "lines": lines}
    return None, {"type": "purchase", "order": order, "created": at // 1000}


def web_log(rng: random.Random, at: int) -> Keyed:
    """A request."""
    return None, {
        "ts": at,
        "ip": f"10.{rng.randrange(256)}.{rng.randrange(256)}.{rng.randrange(256)}",
        "method": rng.choice(["GET", "POST"]),
        "path": f"/page/{int(rng.triangular(0, 60, 0))}",
        "status": rng.choice([200, 200, 200, 304, 404]),
        "bytes": int(rng.lognormvariate(7, 2)),
        "latency_ms": round(rng.lognormvariate(3, 1), 2),
        "agent": rng.choice(["Mozilla/5.0 (X11; Linux x86_64)", "curl/8.0"]),
        "request_id": f"{rng.getrandbits(128):032x}",
    }


def sensors(rng: random.Random, at: int) -> Keyed:
    """A reading."""
    kind = rng.choice(["temperature", "humidity"])
    value = rng.gauss(21, 2) if kind == "temperature" else rng.uniform(30, 70)
    sensor = f"sensor-{rng.randrange(200)}"
    return sensor, {
        "sensor": sensor,
        "type": kind,
        "value": round(value, 2),
        "at": at * 1000,
        "battery": rng.randrange(101),
    }


def users(rng: random.Random, at: int) -> Keyed:
    """What a user did, keyed by session."""
    session = f"s-{int(rng.paretovariate(0.5)) % 500}"
    page = rng.choice(["home", "search", "cart", "help", "product"])
    tags = rng.sample(["new", "eu", "beta"], rng.randrange(3))
    action = rng.choice(["click", "view"])
    return session, {
        "session": session,
        "action": action,
        "context": {"page": page, "when": iso(at)},
        "tags": tags,
    }


TOPICS: dict[str, Callable[[random.Random, int], Keyed]] = {
    "flights": flights,
    "orders": orders,
    "web-log": web_log,
    "sensors": sensors,
    "users": users,
}


def events(name: str, number: int, end_ms: int = NOW_MS, seed: int = 1) -> Iterator[Keyed]:
    """Yield events of a topic in order of their times, over six hours."""
    rng = random.Random(f"{name}{seed}")
    for i in range(number):
        yield TOPICS[name](rng, end_ms - SPAN_MS + i * SPAN_MS // number)


def partition_of(key: str | None, place: int, partitions: int) -> int:
    """Return where Java's producer puts a record; without a key, in turns."""
    return place % partitions if key is None else (murmur2(key.encode()) & 0x7FFFFFFF) % partitions


def sample_of(
    keyed: Iterable[tuple[str | None, object]],
    partitions: int = 3,
    topics: Sequence[str] = ("events",),
) -> Sample:
    """Return a sample that holds the whole topic: objects as JSON, bytes as they are."""
    records = []
    offsets = [0] * partitions
    for place, (key, value) in enumerate(keyed):
        partition = partition_of(key, place, partitions)
        body = value if isinstance(value, bytes) or value is None else json.dumps(value).encode()
        records.append(
            Record(
                partition,
                offsets[partition],
                NOW_MS - 1000 + place % 1000,
                None if key is None else key.encode(),
                body,
            )
        )
        offsets[partition] += 1
    records.sort(key=lambda record: (record.partition, record.offset))
    return Sample(records=records, partitions=partitions, total=len(records), topics=topics)


def draft_of(sample: Sample, answers: OperatorAnswers | None = None) -> Draft:
    """Return what is guessed of a sample."""
    return SampleGuesses(
        sample, decode_sample([record.value for record in sample.records]), NOW_MS
    ).draft(answers or OperatorAnswers())
