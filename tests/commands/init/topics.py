"""Five topics of different shape, as people have them, and samples of them without Kafka."""

import json
import random
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiokafka.partitioner import murmur2

from workers.commands.init.draft import Draft, SampleGuesses
from workers.commands.init.formats import decode_sample
from workers.commands.init.sample import Record, Sample
from workers.commands.init.tick_choice import choose_tick
from workers.commands.init.writing import settings_text
from workers.events.schemas import Access
from workers.settings.settings import Settings, settings_of

NOW_MS = 1_795_300_000_000
SPAN_MS = 6 * 3_600_000
Event = dict[str, Any]
Keyed = tuple[str | None, Event]
Answers = dict[str, Any]


def iso(at_ms: int) -> str:
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def flights(rng: random.Random, at: int) -> Keyed:
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


def orders(rng: random.Random, at_ms: int) -> Keyed:
    """An order with lines, in a topic with refunds that have none; seconds since 1970."""
    if rng.random() < 0.2:
        order: Event = {"id": rng.randrange(10**9), "shop": "s1"}
        return None, {"type": "refund", "order": order, "created": at_ms // 1000}

    def line() -> Event:
        sku = rng.randrange(1000, 1030)
        qty = rng.randrange(1, 4)
        return {"sku": sku, "qty": qty, "price": rng.randrange(1, 99) + 0.99}

    lines = [line() for _ in range(rng.randrange(1, 5))]
    order = {
        "id": rng.randrange(10**9),
        "shop": rng.choice(["s1", "s2", "s3"]),
        "lines": lines,
    }
    return None, {"type": "purchase", "order": order, "created": at_ms // 1000}


def web_log(rng: random.Random, at: int) -> Keyed:
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
    kind = rng.choice(["temperature", "humidity"])
    value = rng.gauss(21, 2) if kind == "temperature" else rng.uniform(30, 70)
    sensor = f"sensor-{rng.randrange(200)}"
    reading = {"sensor": sensor, "type": kind, "value": round(value, 2)}
    return sensor, reading | {"at": at * 1000, "battery": rng.randrange(101)}


def users(rng: random.Random, at: int) -> Keyed:
    session = f"s-{int(rng.paretovariate(0.5)) % 500}"
    page = rng.choice(["home", "search", "cart", "help", "product"])
    tags = rng.sample(["new", "eu", "beta"], rng.randrange(3))
    action = rng.choice(["click", "view"])
    place = {"page": page, "when": iso(at)}
    return session, {
        "session": session,
        "action": action,
        "context": place,
        "tags": tags,
    }


TOPICS: dict[str, Callable[[random.Random, int], Keyed]] = {
    topic.__name__.replace("_", "-"): topic
    for topic in (flights, orders, web_log, sensors, users)
}


def events(
    name: str, number: int, end_ms: int = NOW_MS, seed: int = 1
) -> Iterator[Keyed]:
    rng = random.Random(f"{name}{seed}")
    for i in range(number):
        yield TOPICS[name](rng, end_ms - SPAN_MS + i * SPAN_MS // number)


def partition_of(key: str | None, place: int, partitions: int) -> int:
    """Return where Java's producer puts a record; without a key, in turns."""
    return (
        place % partitions
        if key is None
        else (murmur2(key.encode()) & 0x7FFFFFFF) % partitions
    )


def sample_of(
    keyed: Iterable[tuple[str | None, object]],
    partitions: int = 3,
    topics: Sequence[str] = ("events",),
) -> Sample:
    """Return a sample that holds the whole topic: objects as JSON, bytes as they are."""
    records = []
    offsets = Counter[int]()
    for place, (key, value) in enumerate(keyed):
        partition = partition_of(key, place, partitions)
        body = (
            value
            if isinstance(value, bytes) or value is None
            else json.dumps(value).encode()
        )
        key_bytes = None if key is None else key.encode()
        logged = NOW_MS - 1000 + place % 1000
        records.append(Record(partition, offsets[partition], logged, key_bytes, body))
        offsets[partition] += 1
    records.sort(key=lambda record: (record.partition, record.offset))
    return Sample(
        records=records, partitions=partitions, total=len(records), topics=topics
    )


def guesses_of(sample: Sample, access: Access | None = None) -> SampleGuesses:
    """Return the guesses; without answers that change a range they serve for many drafts."""
    decoded = decode_sample([record.value for record in sample.records], access)
    return SampleGuesses(sample, decoded, NOW_MS)


def draft_of(
    sample: Sample, answers: Answers | None = None, access: Access | None = None
) -> Draft:
    return guesses_of(sample, access).draft(**answers or {})


def text_of(draft: Draft) -> str:
    """Return the settings file of a draft."""
    names: Any = {
        "bootstrap": "localhost:9092",
        "topic": "events",
        "output": Path("x.toml"),
    }
    now = datetime(2026, 11, 22, tzinfo=UTC)
    choice = choose_tick(draft, NOW_MS)
    return settings_text(draft, choice, **names, client={}, registry={}, now=now)


def written(sample: Sample, answers: Answers | None = None) -> tuple[str, Draft]:
    draft = draft_of(sample, answers)
    return text_of(draft), draft


def loaded(text: str) -> Settings:
    return settings_of(tomllib.loads(text), Path("/nowhere"))


def comments(text: str) -> str:
    return " ".join(text.replace("#", " ").split())
