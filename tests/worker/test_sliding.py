"""Windows without epochs in a whole worker: restarts, a takeover, replay, audit, topics."""

import json
import random
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.replay.site import assert_as_replayed
from tests.worker.harness import Site, known, now_ms, sale, succeed, unk, until
from workers.agents.topics import inspect_topics

pytestmark = pytest.mark.slow

WINDOWS: dict[str, Any] = {"horizon": "never", "windows": ["2s", "10s", "1m"]}
LASTS_MS = 20_000
SERIES = ("items.2s", "items.10s", "items.1m")


def site_of(cluster: str, directory: Path, owners: int = 2, **changes: Any) -> Site:
    histograms = [unk(**WINDOWS | changes), known()]
    return Site(cluster, directory, histograms, partitions=2, owners=owners)


def sell(
    site: Site, seed: int, begin_ms: int, lasts_ms: int = LASTS_MS
) -> list[dict[str, Any]]:
    """Send events of the `lasts_ms` from a time on to all source partitions; return them."""
    rng = random.Random(seed)
    sold: list[dict[str, Any]] = []
    for partition in range(site.partitions):
        events = [
            sale(
                rng.choices("abcdef", [20, 15, 10, 5, 2, 1], k=2),
                at,
                key=rng.choice("kl"),
            )
            for at in sorted(begin_ms + rng.randrange(lasts_ms) for _ in range(400))
        ]
        site.produce(partition, events)
        sold += events
    return sold


def test_restarts_and_a_takeover_publish_what_a_replay_of_the_events_does(
    cluster: str, tmp_path: Path
) -> None:
    site = site_of(cluster, tmp_path, total_share=0.2)
    sold: list[dict[str, Any]] = []
    for run, data in enumerate(("data", "data", "elsewhere")):
        # Later than what a worker closed by the clock, so that no event is late.
        begin_ms = now_ms() + 1_000
        end_ms = begin_ms + LASTS_MS
        until(partial(is_after, end_ms), "the events are over")
        sold += sell(site, run, begin_ms)
        with site.worker(data) as worker:
            site.wait_published(end_ms)
            if data == "elsewhere":
                assert worker.stop() == 0
    assert_as_replayed(site, {*SERIES, "known"})
    site.assert_clean()
    compare_with_plain_python(site, sold)


def is_after(time_ms: int) -> bool:
    return now_ms() > time_ms


def compare_with_plain_python(site: Site, sold: list[dict[str, Any]]) -> None:
    compared = 0
    for body in site.snapshots():
        if "window" not in body:
            continue
        begin = body["window"]["from"]
        assert body["end"] - begin >= body["window"]["ms"]
        counts = Counter(
            label
            for event in sold
            if event["key"] == body["key"] and begin <= event["ts"] < body["end"]
            for label in set(event["items"])
        )
        for label, count in body["items"]:
            assert abs(count - counts[label]) <= 7 * body["sd"] + 1
            compared += 1
        total = body["all_items"]
        assert abs(total["count"] - counts.total()) <= 7 * total["sd"] + 1
    assert compared > 500


def test_each_series_has_a_topic_like_any_histogram(
    cluster: str, tmp_path: Path
) -> None:
    site = site_of(cluster, tmp_path, split=2)
    site.create_topics()
    settings = site.settings
    existing = inspect_topics(settings, site.connection).existing
    name = settings.worker.name
    topics = [f"{name}.{one}" for one in (*SERIES, "known")]
    assert list(settings.output_topics) == topics
    partitions = {existing[topic].partitions for topic in topics}
    assert len(partitions) == 1


def test_audit_compares_every_series_and_finds_a_forged_count(
    cluster: str, tmp_path: Path
) -> None:
    paid = {"field": "paid", "from": 0, "to": 8, "step": 0.1}
    histogram = unk(**WINDOWS | {"keys": ["k"], "sum": paid})
    site = Site(cluster, tmp_path, [histogram], partitions=1, owners=1)
    reached = now_ms()
    early = [sale("a", reached - 5_000, paid=2) for _ in range(50)]
    site.produce(0, [*early, *(sale("a", reached, paid=3) for _ in range(40))])
    site.run_until(reached)
    exact = tmp_path / "exact"
    audited = succeed("audit", "-c", str(site.config), "--exact", str(exact))
    for name in SERIES:
        assert f"audit: {name}: " in audited
    lines = [json.loads(line) for line in exact.read_text().splitlines()]
    bodies = site.snapshots()
    newest = {body["histogram"]: body for body in bodies if body["end"] > reached}
    tick = min(body["tick"] for body in bodies if body["end"] > reached)
    by_series = {
        line["histogram"]: line["items"] for line in lines if line["tick"] == tick
    }
    assert [by_series[name][0][2] for name in SERIES] == [40, 90, 90]
    assert set(newest) == set(SERIES)

    [topic, *_] = site.settings.output_topics
    forged = next(body for body in bodies if body["items"])
    forged |= {"items": [["a", forged["items"][0][1] + 1]]}
    value = json.dumps(forged, separators=(",", ":")).encode()
    site.produce(0, [value], key=b"k", topic=topic)
    done = site.audit()
    assert done.returncode == 1
    assert "does not follow from the contributions" in done.stdout
