"""Every mechanism in one worker that is killed in between; audit proves every snapshot."""

import random
import time
import tomllib
from pathlib import Path

import pytest

from tests import ROOT
from tests.worker.harness import Site, sale, until
from workers.mechanisms.registry import MECHANISMS

pytestmark = pytest.mark.waits

EXAMPLES = ROOT / "examples" / "mechanisms"
LABELS = ["tea", "cup", "pot", "spoon", "kettle", "sugar", "milk", "lemon"]
TICKS = 70  # the examples' horizon is 64: an epoch ends within


def test_all_of_them_survive_a_kill_and_audit_finds_every_snapshot(
    bootstrap: str, tmp_path: Path
) -> None:
    """State, noise and budget of every mechanism are restored from the changelog unchanged."""
    histograms = []
    for name in (*MECHANISMS, "misra_gries_pure"):
        [histogram] = tomllib.loads((EXAMPLES / f"{name}.toml").read_text())["histogram"]
        histograms.append(histogram | {"tick": "1s"})
    site = Site(bootstrap, tmp_path, histograms, partitions=2, owners=2)
    rng = random.Random(1)
    now = int(time.time() * 1000) // 1000 * 1000
    base = now - TICKS * 1000
    half, weights = TICKS // 2, [2.0**-i for i in range(len(LABELS))]

    def send(ticks: range) -> None:
        for tick in ticks:
            for partition in range(2):
                events = []
                for i in range(20):
                    key, items = rng.choice(["s1", "s2"]), rng.choices(LABELS, weights, k=2)
                    events.append(sale(items, base + 1000 * tick + 10 * i, key))
                site.produce(partition, events, flush=False)
        site.produce(0, [])

    send(range(half))
    with site.worker() as worker:
        until(lambda: min(site.published_to().values()) > 0, "every histogram has published")
        # One event counts in all of them: the joint guarantee is logged before anything is
        # published.
        said = worker.output()
        assert "WARNING" in said and "all histograms together: epsilon = " in said
        assert "is above 5" in said
        worker.kill()
    send(range(half, TICKS))
    with site.running() as worker:
        # The first one may have published up to now before it was killed; this tick is the second
        # one's.
        site.wait_published(int(time.time() * 1000) + 1000)
    # One audit, of the kind that also writes exact counts: it compares the same, and it takes half
    # of the test.
    site.assert_clean("--exact", str(tmp_path / "exact.jsonl"))
    assert {body["mechanism"] for body in site.snapshots()} == set(MECHANISMS)
