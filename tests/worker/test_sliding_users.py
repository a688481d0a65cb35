"""Unique users, and users by period, of boards without epochs in a whole worker."""

import random
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.replay.site import assert_as_replayed
from tests.worker.harness import Site, now_ms, sale, unk, until
from tests.worker.test_sliding import is_after
from tests.worker.test_users import hash_of

pytestmark = pytest.mark.slow

WINDOWS: dict[str, Any] = {"horizon": "never", "windows": ["2s", "10s", "1m"]}
PERIOD_MS = 2_000
USERS: dict[str, Any] = WINDOWS | {"user_period": f"{PERIOD_MS}ms"}
UNIQUE: dict[str, Any] = USERS | {"unique_users": True, "epsilon": 40.0}
SERIES = {
    f"{name}.{window}" for name in ("people", "visits") for window in WINDOWS["windows"]
}
SOURCES = 2
LASTS_MS = 16_000
EVENTS = 1_500


def site_of(cluster: str, directory: Path, bound: int, *, rekey: bool) -> Site:
    """Return a site of two histograms, in which so many pairs of a user and period count."""
    histograms = [
        unk("people", **UNIQUE, max_items_per_user=bound),
        unk("visits", **USERS, max_items_per_user=bound, max_count=3),
    ]
    privacy = {"unit": "user"} | ({"rekey": True} if rekey else {})
    kinds: dict[str, Any] = {
        "events": {"user": "who"},
        "worker": {"commit_interval": "100ms"},
        "privacy": privacy,
    }
    return Site(cluster, directory, histograms, partitions=SOURCES, owners=2, **kinds)


def visit(site: Site, rng: random.Random, begin_ms: int) -> list[dict[str, Any]]:
    """Send events of a few users; return those that count: with re-keying in any partition, else in the user's."""
    sent = []
    for i in range(EVENTS):
        at = begin_ms + i * LASTS_MS // EVENTS
        who = f"u{rng.randrange(150)}"
        items = rng.choices("abcdef", [20, 15, 10, 5, 2, 1], k=2)
        event = sale(items, at, key=rng.choice("kl"), who=who)
        partition = hash_of(who) % SOURCES
        if site.settings.privacy.rekey:
            partition = rng.randrange(SOURCES)
        elif i % 100 == 0:
            site.produce((partition + 1) % SOURCES, [event], flush=False)
            continue
        sent.append(event)
        site.produce(partition, [event], flush=False)
    site.produce(0, [])
    return sent


def compare_with_plain_python(
    site: Site, sent: list[dict[str, Any]], bound: int
) -> None:
    """Compare with how many people there were, of whom so many pairs count in a period."""
    people: dict[tuple[str, str, int], set[str]] = defaultdict(set)
    admitted: dict[tuple[str, int], set[tuple[str, str]]] = defaultdict(set)
    for event in sent:
        pairs = admitted[event["who"], event["ts"] // PERIOD_MS]
        for label in dict.fromkeys(event["items"]):
            pair = event["key"], label
            if pair in pairs or len(pairs) < bound:
                pairs.add(pair)
                people[*pair, event["ts"] // 1_000].add(event["who"])
    compared = 0
    for body in site.snapshots():
        if not body["histogram"].startswith("people."):
            continue
        assert body["guarantee"]["unit"] == "user"
        assert body["guarantee"]["period"] == PERIOD_MS
        seconds = range(body["window"]["from"] // 1_000, body["end"] // 1_000)
        for label, count in body["items"]:
            met = (people[body["key"], label, second] for second in seconds)
            exact = len(set().union(*met))
            assert abs(count - exact) <= 7 * body["sd"] + 1
            compared += 1
    assert compared > 200


def test_kills_and_a_takeover_publish_what_a_replay_of_the_events_does(
    cluster: str, tmp_path: Path
) -> None:
    site = site_of(cluster, tmp_path, 4, rekey=False)
    rng = random.Random(3)
    sent: list[dict[str, Any]] = []
    for run, data in enumerate(("data", "data", "elsewhere")):
        # Later than what a worker closed by the clock, so that no event is late.
        begin_ms = now_ms() + 1_000
        end_ms = begin_ms + LASTS_MS
        until(partial(is_after, end_ms), "the events are over")
        sent += visit(site, rng, begin_ms)
        with site.worker(data) as worker:
            site.wait_published(end_ms)
            if run == 0:
                worker.kill()
            else:
                assert worker.stop() == 0
    assert_as_replayed(site, SERIES)
    site.assert_clean()
    assert set(site.reasons()) == {"user's records belong in another partition"}
    compare_with_plain_python(site, sent, 4)


def test_rekeyed_users_count_once_whatever_partitions_they_come_from(
    cluster: str, tmp_path: Path
) -> None:
    # All of a user's pairs: which come first is not known where partitions are read side by side.
    site = site_of(cluster, tmp_path, 12, rekey=True)
    begin_ms = now_ms() - LASTS_MS - 1_000
    sent = visit(site, random.Random(5), begin_ms)
    site.run_until(begin_ms + LASTS_MS)
    assert not site.rejects()
    site.assert_clean()
    compare_with_plain_python(site, sent, 12)
