"""Filling blocks with the longest labels reveals nothing: publication continues."""

import random
import shutil
from pathlib import Path

import pytest

from tests.worker.harness import Site, now_ms, sale, unk

pytestmark = pytest.mark.waits

TICK_MS = 1_000
# A block of the former size with this many of these labels and one short one is just below the
# broker's limit after lz4; the victim's single label makes it too long (both seen on a real broker,
# with the labels of `fillers`).
FILLERS = 1_007
KEY = "\x01" * 900  # control characters: JSON makes six characters of each
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"


def fillers(at: int) -> list[object]:
    """Return events with incompressible labels of 1,024 bytes, under one control-character key."""
    rng = random.Random(1)
    labels = ["".join(rng.choices(LETTERS, k=1_024)) for _ in range(FILLERS)]
    return [sale([label], at, KEY) for label in labels]


@pytest.mark.parametrize("mechanism", ["unk_base", "meta", "pay_what_you_get"])
def test_a_block_of_the_longest_labels_is_written_with_and_without_the_victims_single_label(
    bootstrap: str, tmp_path: Path, mechanism: str
) -> None:
    """A count of 1 is below every threshold; a stopped worker would reveal the label."""
    more: dict[str, dict[str, object]] = {
        "meta": {"algorithm": "unk_gauss", "kbar": 100},
        "pay_what_you_get": {"k": 3, "kbar": 100, "labels": 60_000, "queries": 10_000},
    }
    histogram = unk("items", mechanism=mechanism, **more.get(mechanism, {}))
    at = now_ms()
    for world in ("without", "with"):
        site = Site(bootstrap, tmp_path / world, [histogram], partitions=1, owners=1)
        site.produce(0, fillers(at))
        if world == "with":
            victim = "".join(random.Random(0).choices(LETTERS, k=1_024))
            site.produce(0, [sale([victim], at + 1, KEY)])
        goes_on(site, at + TICK_MS)
        if world == "with":
            # all of the state is read back from Kafka
            shutil.rmtree(site.directory / "data")
        goes_on(site, at + 2 * TICK_MS)
        site.assert_clean()


def goes_on(site: Site, at: int) -> None:
    site.produce(0, [{"key": "other", "items": ["a"], "ts": at}])
    with site.running() as worker:
        site.published_or_ended(worker, at + 1)
        assert worker.running(), worker.output()
