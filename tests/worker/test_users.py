"""A user's contribution is bounded over partitions, commits, kills and epochs."""

from __future__ import annotations

import json
import random
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from aiokafka.partitioner import murmur2

from tests.worker.harness import (
    Contributed,
    Site,
    known,
    now_ms,
    of_users,
    quietcount,
    sale,
    unk,
    until,
)

pytestmark = pytest.mark.waits

SOURCES = 4
EVENTS = 60_000
USERS = [f"user-{i}" for i in range(2_000)]
KEYS = ["k0", "k1", "k2"]
LABELS = [f"item-{i}" for i in range(200)]


@cache
def place(user: str) -> int:
    return int(murmur2(user.encode()) & 0x7FFFFFFF) % SOURCES


def events(rng: random.Random, end_ms: int) -> list[tuple[int, dict[str, Any]]]:
    """Return orders of the last minute, all but one in a hundred in their user's partition."""
    out = []
    for i in range(EVENTS):
        user = USERS[min(int(rng.paretovariate(0.5)) - 1, len(USERS) - 1)]
        items = rng.choices(LABELS, k=rng.randint(1, 3))
        at = end_ms - 60_000 + 60_000 * i // EVENTS
        wrong = rng.random() < 0.01
        event = sale(items, at, rng.choice(KEYS), who=user)
        out.append(((place(user) + wrong) % SOURCES, event))
    return out


def expected(
    site: Site, sent: list[tuple[int, dict[str, Any]]]
) -> tuple[Counter[Contributed], int]:
    """Return the expected contributions and number of rejects, computed event by event."""
    marks, counted = [0] * SOURCES, []
    for partition, event in sent:
        if place(event["who"]) == partition:
            marks[partition] = max(marks[partition], event["ts"])
            counted.append((event, marks[partition]))
    lanes = {histogram.lane for histogram in site.settings.histograms}
    return of_users(lanes, counted), len(sent) - len(counted)


def test_each_user_counts_at_most_m_times_an_epoch_through_kills(
    bootstrap: str, tmp_path: Path
) -> None:
    """A cap lost in a crash, or committed apart from its counts, breaks the guarantee."""
    rng = random.Random(11)
    bounds: dict[str, Any] = {"tick": "2s", "max_items_per_user": 5, "max_count": 3}
    of_known = known("known", horizon=16, keys=KEYS, domain=LABELS[:20], **bounds)
    kinds: dict[str, Any] = {
        "events": {"user": "who"},
        "worker": {"commit_interval": "100ms"},
        "privacy": {"unit": "user"},
    }
    histograms = [unk("seen", horizon=16, max_items_per_user=3), of_known]
    site = Site(bootstrap, tmp_path, histograms, partitions=SOURCES, **kinds)
    now = now_ms()
    sent = events(rng, now - 2_000)
    for partition, event in sent:
        site.produce(partition, [event], flush=False)
    site.produce(0, [])
    for least in (1, 500):
        with site.worker() as worker:
            until(lambda least=least: len(site.contributed()) > least, "something is contributed")  # type: ignore[misc]  # bound now
            worker.kill()
    with site.running("another") as worker:
        site.wait_published(now)
    total, rejected = expected(site, sent)
    found = site.contributed()
    assert {what: n for what, n in found.items() if n} == dict(total)
    reasons = Counter(site.reasons())
    assert reasons == {"user's records belong in another partition": rejected}
    assert rejected > 100
    site.assert_clean()
    assert {snapshot["guarantee"]["unit"] for snapshot in site.snapshots()} == {"user"}

    of_0 = [event for partition, event in sent if partition == place(event["who"]) == 0]
    one = [json.dumps(event) for event in of_0]
    (tmp_path / "events.jsonl").write_text("\n".join(one) + "\n")
    done = quietcount("replay", "-c", str(site.config), "--input", str(tmp_path / "events.jsonl"))
    assert done.returncode == 0, done.stderr
