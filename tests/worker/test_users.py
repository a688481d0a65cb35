"""Bounds on users over partitions, commits, kills and epochs, also with re-keyed events."""

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiokafka.partitioner import murmur2

from tests.pipeline.pipeline import Contributed, contents, of_users
from tests.worker.harness import Bare, Site, known, now_ms, sale, succeed, unk, until
from tests.worker.test_refusals import assert_refused
from workers.pipeline.contributions import Message
from workers.pipeline.merge import Released
from workers.pipeline.rekey_markers import HEADER
from workers.replay.offline import Offline, fresh_histograms
from workers.replay.sources_topic import open_topic

pytestmark = pytest.mark.slow

SOURCES = 4
TOPICS = (1, SOURCES - 1)
USER_PARTITIONS = 3
GRACE_MS = 2_000
USERS = [f"user-{i}" for i in range(2_000)]
KEYS = ["k0", "k1", "k2"]
LABELS = [f"item-{i}" for i in range(200)]
OF_USERS: dict[str, Any] = {"tick": "2s", "max_items_per_user": 5, "max_count": 3}
KNOWN = known("known", horizon=16, keys=KEYS, domain=LABELS[:20], **OF_USERS)
HISTOGRAMS = unk("seen", horizon=16, max_items_per_user=3), KNOWN


@cache
def hash_of(user: str) -> int:
    return int(murmur2(user.encode()) & 0x7FFFFFFF)


def orders(rng: random.Random, number: int, end_ms: int) -> Iterator[dict[str, Any]]:
    for i in range(number):
        user = USERS[min(int(rng.paretovariate(0.5)) - 1, len(USERS) - 1)]
        items = rng.choices(LABELS, k=rng.randint(1, 3))
        key = rng.choice(KEYS)
        yield sale(items, end_ms - 60_000 + 60_000 * i // number, key, who=user)


def send(site: Site, sent: list[tuple[int, dict[str, Any]]]) -> None:
    for partition, event in sent:
        site.produce(partition, [event], flush=False)
    site.produce(0, [])


def counts(site: Site) -> dict[Contributed, int]:
    return {what: n for what, n in site.contributed().items() if n}


def test_each_user_counts_at_most_m_times_through_kills(
    cluster: str, tmp_path: Path
) -> None:
    """A cap lost in a crash, or committed apart from its counts, breaks the guarantee."""
    rng = random.Random(11)
    site = Site(
        cluster,
        tmp_path,
        HISTOGRAMS,
        events={"user": "who"},
        worker={"commit_interval": "100ms"},
        privacy={"unit": "user"},
        partitions=SOURCES,
    )
    now = now_ms()
    sent = []
    marks = [0] * SOURCES
    accepted = []
    for event in orders(rng, 20_000, now - 2_000):
        own = hash_of(event["who"]) % SOURCES
        partition = (
            own + (rng.random() < 0.01)
        ) % SOURCES  # one in a hundred goes astray
        sent.append((partition, event))
        if partition == own:
            marks[partition] = max(marks[partition], event["ts"])
            accepted.append((event, marks[partition]))
    send(site, sent)
    for least in (1, 500):
        with site.worker() as worker:
            until(
                lambda least=least: len(site.contributed()) > least,  # type: ignore[misc]  # bound now
                "something is contributed",
            )
            worker.kill()
    site.run_until(now)
    lanes = {histogram.lane for histogram in site.settings.histograms}
    assert counts(site) == dict(of_users(lanes, accepted))
    rejected = len(sent) - len(accepted)
    assert Counter(site.reasons()) == {
        "user's records belong in another partition": rejected
    }
    assert rejected > 100
    site.assert_clean()
    assert {snapshot["guarantee"]["unit"] for snapshot in site.snapshots()} == {"user"}

    lines = tmp_path / "events.jsonl"
    of_0 = (event for event, _ in accepted if hash_of(event["who"]) % SOURCES == 0)
    lines.write_text("".join(json.dumps(event) + "\n" for event in of_0))
    succeed("replay", "-c", str(site.config), "--input", str(lines))


def site_of(cluster: str, directory: Path, **events: object) -> Site:
    return Site(
        cluster,
        directory,
        HISTOGRAMS,
        topics=TOPICS,
        events={"user": "who", "grace": f"{GRACE_MS}ms"} | events,
        worker={"commit_interval": "100ms", "user_partitions": USER_PARTITIONS},
        privacy={"unit": "user", "rekey": True},
    )


def backlog(rng: random.Random, end_ms: int) -> list[tuple[int, dict[str, Any]]]:
    """Return orders of the last minute, with every user in all partitions; the last partition is 20
    s behind, and some orders are late.
    """
    out = []
    for event in orders(rng, 15_000, end_ms):
        origin = rng.randrange(SOURCES)
        event["ts"] -= 20_000 if origin == SOURCES - 1 else 0
        event["ts"] -= rng.randrange(3 * GRACE_MS) if rng.random() < 0.1 else 0
        out.append((origin, event))
    return out


def by_user(site: Site) -> list[Any]:
    messages = site.read(site.settings.by_user_topic)
    return [message for message in messages if message.value() is not None]


def expected(
    site: Site, sent: list[tuple[int, dict[str, Any]]]
) -> Counter[Contributed]:
    """Return the expected contributions: ticks follow the order in each partition of the events
    topics; the items counted per user follow the order in the re-keyed topic.
    """
    ticks: dict[bytes, list[int]] = defaultdict(list)
    marks: list[int | None] = [None] * SOURCES
    for origin, event in sent:
        at = event["ts"]
        before = marks[origin]
        marks[origin] = mark = at if before is None else max(before, at - GRACE_MS)
        ticks[msgspec.json.encode(event)].append(max(at, mark))
    assert max(map(len, ticks.values())) == 1, "no two events are the same"
    events = [msgspec.json.decode(message.value() or b"") for message in by_user(site)]
    dated = [(event, *ticks[msgspec.json.encode(event)]) for event in events]
    return of_users({histogram.lane for histogram in site.settings.histograms}, dated)


def assert_sent_on(site: Site, sent: list[tuple[int, dict[str, Any]]]) -> None:
    """Assert that every event is once in its user's partition, in the order of its origin."""
    number = {
        msgspec.json.encode(event): (origin, i)
        for i, (origin, event) in enumerate(sent)
    }
    last: dict[tuple[int, int], int] = {}
    found = by_user(site)
    for message in found:
        event = msgspec.json.decode(message.value() or b"")
        own = hash_of(event["who"]) % USER_PARTITIONS
        assert (message.key(), message.partition()) == (event["who"].encode(), own)
        origin, i = number.pop(msgspec.json.encode(event))
        assert last.get((message.partition(), origin), -1) < i
        last[message.partition(), origin] = i
    assert not number and len(found) == len(sent)


def test_rekeyed_events_count_once_in_their_own_tick(
    cluster: str, tmp_path: Path
) -> None:
    """Duplicated copies break the counts; late events of a lagging partition break ticks."""
    rng = random.Random(7)
    site = site_of(cluster, tmp_path)
    now = now_ms()
    sent = backlog(rng, now - 2 * GRACE_MS)
    send(site, sent)
    for least in (0, 2_000, 8_000):
        with site.worker() as worker:
            until(
                lambda least=least: len(by_user(site)) > least,  # type: ignore[misc]  # bound now
                "something is sent on",
            )
            worker.kill()
    with site.running():
        until(lambda: len(by_user(site)) == len(sent), "all are sent on")
        site.wait_published(now)
    assert_sent_on(site, sent)
    assert counts(site) == dict(expected(site, sent))
    assert not site.rejects()
    site.assert_clean()
    assert replayed(site) == dict(expected(site, sent))


class Collected:
    def __init__(self) -> None:
        self.total: Counter[Contributed] = Counter()

    def take(self, message: Message, offset: int) -> None:
        self.total += contents([message])

    def reached(self, position: int) -> None: ...

    def release(self, **_: object) -> Released:
        return Released(0, [])

    def end_of_input(self, until_ms: int | None = None) -> None: ...


def replayed(site: Site) -> dict[Contributed, int]:
    collected = Collected()
    with open_topic(site.settings, None, None) as source:
        histograms = fresh_histograms(site.settings, site.key)
        offline = Offline(site.settings, site.key, histograms, source, merge=collected)
        for batch in source.batches():
            offline.add(batch)
        offline.finish()
    return {what: n for what, n in collected.total.items() if n}


def event(who: object, label: object, at: int, **more: object) -> dict[str, object]:
    return sale(label, at, who=who, **more)


def test_keys_times_and_headers_go_along_when_rekeyed(
    cluster: str, tmp_path: Path
) -> None:
    """Record keys used as stream keys must survive; unused events need no user."""
    where = Bare('[{ field = "type", not_in = ["ping"] }]')
    kinds: dict[str, Any] = {"events": {"user": "who", "key": "$key", "where": where}}
    kinds["privacy"] = {"unit": "user", "rekey": True}
    histograms = [unk(max_items_per_user=50)]
    site = Site(cluster, tmp_path, histograms, topics=(1, 2), owners=1, **kinds)
    at = now_ms() - 5_000
    one, two = site.topics
    # only the general reader reads it
    escaped = b'{"key": "k", "items": "b", "ts": %d, "who": "bob\\u00e4\\""}' % at
    ours = [(HEADER, b"not ours, but under this name")]
    sent: list[
        tuple[str, int, bytes | None, object, list[tuple[str, str | bytes | None]]]
    ] = [
        (
            one,
            0,
            b"session-1",
            event("ann", "a", at),
            [("trace", b"1"), ("none", None)],
        ),
        (two, 0, b"session-2", event("ann", "a", at), []),
        (two, 1, None, event("ann", "a", at), []),
        (two, 1, b"session-1", event(17, "b", at), []),
        (two, 1, b"session-1", escaped, []),
        (two, 1, b"s", event(None, "c", at, type="ping"), []),
        (two, 1, b"s", event(None, "c", at), []),
        (two, 1, b"s", sale("c", at), []),
        (two, 1, b"s", b"no JSON", []),
        (two, 1, b"s", None, []),
        (two, 1, b"s", event("ann", "c", at + 86_400_000), []),
        (two, 1, b"s", event("ann", "c", at - 8 * 86_400_000), []),
        (two, 1, b"s", event("ann", "c", at // 1_000), []),
        (two, 1, b"s", event("ann", None, at), []),
        (two, 1, b"session-3", event("ann", "d", at - 3_600_000), [*ours]),
        (two, 1, b"s", event("ann", "e", at, more="x" * 992_000), []),
    ]
    for topic, partition, key, value, headers in sent:
        encoded = (
            value
            if value is None or isinstance(value, bytes)
            else msgspec.json.encode(value)
        )
        site.producer.produce(
            topic, encoded, key, partition, headers=headers, timestamp=at - 60_000
        )
    site.produce(0, [])  # flush
    with site.running():
        until(lambda: len(site.rejects()) == 10, "all rejects")
        site.wait_published(at)
    wanted = {
        ("session-1", "a"): 1,
        ("session-2", "a"): 1,
        ("session-1", "b"): 2,
        ("session-3", "d"): 1,
    }
    total: Counter[tuple[str, str]] = Counter()
    for what, n in site.contributed().items():
        total[what.key, what.label] += n
    assert total == wanted
    found_in = [
        (h["topic"].removeprefix(site.name), h["reason"]) for _, h in site.rejects()
    ]
    rejects = Counter(found_in)
    assert rejects == {
        ("-events-1", "field 'who' is null"): 1,
        ("-events-1", "missing field 'who'"): 1,
        ("-events-1", "not JSON"): 1,
        ("-events-1", "no value"): 1,
        ("-events-1", "record too large"): 1,
        (".by-user", "record key is no label"): 1,
        (".by-user", "dated too far ahead"): 1,
        (".by-user", "dated too far behind"): 1,
        (".by-user", "dated before 2000: seconds instead of ms?"): 1,
        (".by-user", "field 'items' is null"): 1,
    }
    found = by_user(site)
    users = Counter(message.key() for message in found)
    assert users == {b"ann": 8, b"17": 1, 'bob\u00e4"'.encode(): 1}
    assert {message.timestamp()[1] for message in found} == {at - 60_000}
    own = [message.headers()[1:] for message in found if message.headers()]
    of_sender = [("trace", b"1"), ("none", None)]
    assert sorted(map(repr, filter(None, own))) == sorted(map(repr, (of_sender, ours)))
    assert sorted(message.value() for message in found) == sorted(
        value if isinstance(value, bytes) else msgspec.json.encode(value)
        for *_, value, _ in sent
        if value == escaped
        or (
            isinstance(value, dict)
            and value.get("who") in ("ann", 17)
            and "more" not in value
        )
    )
    site.assert_clean()


def test_state_of_other_topics_or_without_rekey_is_refused(
    cluster: str, tmp_path: Path
) -> None:
    """Users would land in other partitions, or events would be sent twice."""
    site = site_of(cluster, tmp_path)
    at = now_ms() - 5_000
    site.produce(0, [event("ann", "item-1", at)])
    with site.running():
        until(lambda: len(site.contributed()) > 0, "something is contributed")
    site.set("worker", user_partitions=5)
    said = "worker.user_partitions = 5", "has 3 partitions", "hashed onto them"
    assert_refused(site.run_to_end(), *said)
    del site.document["worker"]["user_partitions"]
    events = site.document["events"]["topic"]
    site.set("events", topic=events[1])
    made_with = (
        f"the state was made with {events[0]}, {events[1]}: another set of topics"
    )
    done = site.run_to_end()
    of_release = "its state belongs to another mechanism" in done.stderr
    assert_refused(done, "events.topic" if of_release else made_with)
    site.create_topic(f"{site.topic}-9", 1)
    site.set("events", topic=[events[1], f"{site.topic}-9"])
    # Both stages refuse it with their own messages; which one is first varies.
    done = site.run_to_end()
    of_release = "its state belongs to another mechanism" in done.stderr
    assert_refused(done, "events.topic" if of_release else made_with)
    site.set("events", topic=events[1])
    site.set("privacy", rekey=False)
    done = site.run_to_end()
    of_release = "its state belongs to another mechanism" in done.stderr
    of_rekey = "privacy.rekey = false, but the state was made with it"
    assert_refused(done, "events.rekey = true became null" if of_release else of_rekey)
    site.set("events", topic=events)
    site.set("privacy", rekey=True)
    # Deleting the state of the stage makes it send everything again.
    state = f"{site.name}.rekey-state"
    site.delete_topic(state)
    succeed("replay", "-c", str(site.config), "--topic")
    assert_refused(site.run_to_end(), f"missing topics: {state}")
    site.create_topics()
    assert_refused(
        site.run_to_end(), "mark 0 of partition", "events were lost or sent on twice"
    )
