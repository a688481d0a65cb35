"""The local state may be lost, or stale: Kafka has all of it."""

import shutil
from pathlib import Path

import pytest

from tests.worker.harness import Site, known, now_ms, sale, unk

pytestmark = pytest.mark.slow


def burst(site: Site) -> None:
    at = now_ms()
    site.burst(3_000, lambda i: sale([f"x{i % 1_500}", "a"], at, f"k{i % 5}"))
    # a busy broker may have taken longer than a tick
    site.wait_published(now_ms())


def test_state_is_recovered_without_or_from_an_old_copy(
    cluster: str, tmp_path: Path
) -> None:
    """After a replaced machine or restored disk the output must be the same bytes."""
    site = Site(cluster, tmp_path, [unk(), known(keys=["k0", "k1", "k2", "k3", "k4"])])
    data = tmp_path / "data"
    old = tmp_path / "old"
    with site.running():
        burst(site)
    shutil.copytree(data, old)
    shutil.rmtree(data)
    with site.running():  # from the changelog alone
        burst(site)
    shutil.rmtree(data)
    shutil.copytree(old, data)
    with site.running():  # from a copy that is a run old
        burst(site)
    site.assert_clean()
    counted = site.contributed()
    assert counted.total() == 3 * site.partitions * 3_000 * 2
