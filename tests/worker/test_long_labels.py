"""Whoever fills the worker's blocks with the longest labels learns nothing from it: publication goes on, whatever the data."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from tests.worker.harness import Site, unk, until

TICK_MS = 1_000
#: Labels that fill a block of the ledger to the last byte that it had room for: the victim's is the next one.
FILLERS = 1_023


def fillers(at: int) -> list[object]:
    """Events with labels of 1,024 bytes under a stream key of control characters."""
    return [{"key": "\x01" * 900, "items": [f"{i:04d}" + "\x01\x02" * 510], "ts": at} for i in range(FILLERS)]


@pytest.mark.parametrize("mechanism", ["unk_base", "meta", "pay_what_you_get"])
def test_a_block_of_the_longest_labels_is_written_with_and_without_the_victims_single_label(
    bootstrap: str, tmp_path: Path, mechanism: str
) -> None:
    """A count of 1 is below every threshold: if one more label stopped the worker, its silence would tell of it."""
    histogram = {
        "unk_base": unk("items"),
        "meta": unk("items", mechanism="meta", algorithm="unk_gauss", kbar=100),
        "pay_what_you_get": unk("items", mechanism="pay_what_you_get", k=3, kbar=100, labels=60_000, queries=10_000),
    }[mechanism]
    at = time.time_ns() // 1_000_000
    for world in ("without", "with"):
        site = Site(bootstrap, tmp_path / world, [histogram], partitions=1, owners=1)
        site.produce(0, fillers(at))
        victim = [{"key": "\x01" * 900, "items": ["v" * 1_024], "ts": at + 1}] if world == "with" else []
        site.produce(0, victim)
        goes_on(site, at + TICK_MS)
        if world == "with":
            shutil.rmtree(site.directory / "data")  # all of the state is read back from Kafka
        goes_on(site, at + 2 * TICK_MS)
        site.assert_clean()


def goes_on(site: Site, at: int) -> None:
    """Starts the worker again; it publishes what comes next."""
    site.produce(0, [{"key": "other", "items": ["a"], "ts": at}])
    with site.worker() as worker:
        until(lambda: not worker.running() or min(site.published_to().values()) > at, "the next tick is published")
        assert worker.running(), worker.output()
        assert worker.stop() == 0
