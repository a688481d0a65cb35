"""Ranks over a killed worker and a take-over: every event counts once, and audit repeats all bytes."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.worker.harness import Site, known, now_ms, sale

pytestmark = pytest.mark.waits

EVENTS = 2_000
BUCKETS = {"from": 1, "to": 1000, "count": 30, "scale": "log"}


def test_ranks_survive_a_killed_worker_and_a_take_over(
    bootstrap: str, tmp_path: Path
) -> None:
    """Of an epoch, and in windows without epochs, which have a counter of their own."""
    both = {"for": "quantiles", "max_items": 1, "buckets": BUCKETS, "quantiles": [0.5]}
    epoch = known("epoch", keys=["k", "l"], **both)
    never = {"horizon": "never", "windows": ["4s"]}
    window = known("window", keys=["k", "l"], **never, **both)
    del epoch["domain"], window["domain"]
    site = Site(bootstrap, tmp_path, [epoch, window], partitions=2, owners=2)
    rng = np.random.default_rng(1)
    sent: dict[str, list[float]] = {"k": [], "l": []}

    def produce() -> int:
        at = now_ms()
        for key, numbers in sent.items():
            drawn = rng.lognormal(3, 0.5, EVENTS).round(3).tolist()
            for partition in range(site.partitions):
                half = drawn[partition::2]
                site.produce(partition, [sale(number, at, key) for number in half])
            numbers += drawn
        return at

    with site.worker("one") as one, site.worker("two") as two:
        site.wait_published(produce())
        produce()
        one.kill()
        shutil.rmtree(tmp_path / "one")
        site.wait_published(produce())
        two.kill()
    produce()
    # A third takes all over from Kafka alone, in the middle of the epoch.
    with site.running("three"):
        site.wait_published(produce())
    # Both histograms read the same contributions.
    assert site.counted().total() == len(sent) * EVENTS * 5
    site.assert_clean()
    snapshots = site.snapshots()
    for key, numbers in sent.items():
        last = [one for one in snapshots if one["key"] == key and "window" not in one][
            -1
        ]
        [median] = last["quantiles"]
        assert median["value"] == pytest.approx(np.median(numbers), rel=0.1)
        assert abs(sum(count for _, count in last["items"]) - len(numbers)) < 500
    assert any(one.get("window") for one in snapshots)
