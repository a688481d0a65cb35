"""The local copy of the state may vanish or be old: Kafka has all of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.worker.harness import Site, known, now_ms, sale, unk

pytestmark = pytest.mark.waits


def burst(site: Site) -> None:
    at = now_ms()
    site.burst(3_000, lambda i: sale([f"x{i % 1_500}", "a"], at, f"k{i % 5}"))
    # a busy broker may have taken longer than a tick
    site.wait_published(now_ms())


def test_state_is_recovered_without_and_from_an_old_local_copy(
    bootstrap: str, tmp_path: Path
) -> None:
    """After a replaced machine or restored disk the output must be the same bytes."""
    site = Site(bootstrap, tmp_path, [unk(), known(keys=["k0", "k1", "k2", "k3", "k4"])])
    data, old = tmp_path / "data", tmp_path / "old"
    with site.worker() as worker:
        burst(site)
        worker.kill()
    shutil.copytree(data, old)
    shutil.rmtree(data)
    with site.running() as worker:  # from the changelog alone
        burst(site)
    shutil.rmtree(data)
    shutil.copytree(old, data)
    with site.running() as worker:  # from a copy that is a run old
        burst(site)
    site.assert_clean()
    counted = site.contributed()
    assert counted.total() == 3 * site.partitions * 3_000 * 2
