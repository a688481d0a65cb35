"""Events sent on by user, on a real broker: what counts is what counts where they came from, through kills, and each once."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import msgspec
from aiokafka.partitioner import murmur2

from tests.worker.harness import Contributed, Site, known, unk, until

TOPICS = (1, 3)
ORIGINS, USER_PARTITIONS = sum(TOPICS), 3
EVENTS = 40_000
GRACE_MS = 2_000
USERS = [f"user-{i}" for i in range(1_000)]
KEYS = ["k0", "k1", "k2"]
LABELS = [f"item-{i}" for i in range(200)]
HISTOGRAMS = (
    unk("seen", horizon=16, max_items_per_user=3),
    known("known", tick="2s", horizon=16, max_items_per_user=5, max_count=3, keys=KEYS, domain=LABELS[:20]),
)


def place(user: str) -> int:
    return int(murmur2(user.encode()) & 0x7FFFFFFF) % USER_PARTITIONS


def site_of(bootstrap: str, directory: Path, **events: object) -> Site:
    return Site(
        bootstrap, directory, HISTOGRAMS, topics=TOPICS,
        events={"user": "who", "grace": f"{GRACE_MS}ms"} | events,
        worker={"commit_interval": "100ms", "user_partitions": USER_PARTITIONS},
        privacy={"unit": "user", "rekey": True},
    )  # fmt: skip


def backlog(rng: random.Random, end_ms: int) -> list[tuple[int, dict[str, Any]]]:
    """Orders of the last minute, each user's in all partitions; the last one is 20 s behind, and some come late."""
    out = []
    for i in range(EVENTS):
        origin = rng.randrange(ORIGINS)
        user = USERS[min(int(rng.paretovariate(0.5)) - 1, len(USERS) - 1)]
        at = end_ms - 60_000 + 60_000 * i // EVENTS - (20_000 if origin == ORIGINS - 1 else 0)
        at -= rng.randrange(3 * GRACE_MS) if rng.random() < 0.1 else 0
        out.append((origin, {"key": rng.choice(KEYS), "items": rng.choices(LABELS, k=rng.randint(1, 3)), "ts": at, "who": user}))
    return out


def by_user(site: Site) -> list[Any]:
    """The records of the topic that are no marks, partition by partition."""
    return [message for message in site.read(site.settings.by_user_topic) if message.value() is not None]


def expected(site: Site, sent: list[tuple[int, dict[str, Any]]]) -> Counter[Contributed]:
    """What must be contributed, in words: ticks by the order in each partition of the events topics, which of a user's items by
    the order in the topic by user."""
    ticks: dict[bytes, list[int]] = defaultdict(list)
    marks: list[int | None] = [None] * ORIGINS
    for origin, event in sent:
        at, before = event["ts"], marks[origin]
        marks[origin] = mark = at if before is None else max(before, at - GRACE_MS)
        ticks[msgspec.json.encode(event)].append(max(at, mark))
    assert max(map(len, ticks.values())) == 1, "no two events are the same"
    total: Counter[Contributed] = Counter()
    pairs: dict[Any, Counter[tuple[str, str]]] = defaultdict(Counter)
    lanes = {histogram.lane for histogram in site.settings.histograms}
    for message in by_user(site):
        event = msgspec.json.decode(message.value() or b"")
        [at] = ticks[msgspec.json.encode(event)]
        for lane in lanes:
            tick = (at - lane.start_ms) // lane.tick_ms + 1
            used = pairs[lane, (tick - 1) // (lane.horizon or 1), event["who"]]
            for label in list(dict.fromkeys(event["items"]))[: lane.max_items]:
                pair = event["key"], label
                if pair in used or len(used) < (lane.max_items_per_user or 0):
                    added = min(event["items"].count(label), lane.max_count - used[pair])
                    used[pair] += added
                    total[Contributed(lane, tick, *pair)] += added
    return +total


def assert_sent_on(site: Site, sent: list[tuple[int, dict[str, Any]]]) -> None:
    """Every event is in the partition of its user once, under the user, and those of one origin are in their order."""
    number = {msgspec.json.encode(event): (origin, i) for i, (origin, event) in enumerate(sent)}
    last: dict[tuple[int, int], int] = {}
    found = by_user(site)
    for message in found:
        event = msgspec.json.decode(message.value() or b"")
        assert (message.key(), message.partition()) == (event["who"].encode(), place(event["who"]))
        origin, i = number.pop(msgspec.json.encode(event))
        assert last.get((message.partition(), origin), -1) < i
        last[message.partition(), origin] = i
    assert not number and len(found) == len(sent)


def send(site: Site, sent: list[tuple[int, dict[str, Any]]]) -> None:
    for origin, event in sent:
        site.produce(origin, [event], flush=False)
    site.produce(0, [])


def test_through_kills_every_event_counts_once_in_its_own_tick_under_its_user(bootstrap: str, tmp_path: Path) -> None:
    """A copy that is made twice, or half, breaks the counts; a lagging partition whose events come late breaks the ticks."""
    rng = random.Random(7)
    site = site_of(bootstrap, tmp_path)
    now = time.time_ns() // 1_000_000
    sent = backlog(rng, now - 2 * GRACE_MS)
    send(site, sent)
    for least in (0, 2_000, 10_000):
        with site.worker() as worker:
            until(lambda least=least: len(by_user(site)) > least, "something is sent on")  # type: ignore[misc]  # bound now
            worker.kill()
    with site.worker("one") as one, site.worker("two") as two:
        until(lambda: all("took over" in each.output() for each in (one, two)), "both are at work")
        until(lambda: len(site.contributed()) > 500, "something is contributed")
        one.kill()
        until(lambda: len(by_user(site)) == len(sent), "all are sent on")
        site.wait_published(now)
        assert two.stop() == 0
    assert_sent_on(site, sent)
    assert {what: n for what, n in site.contributed().items() if n} == dict(expected(site, sent))
    assert not site.rejects()
    site.assert_clean()
