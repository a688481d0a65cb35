"""A full or lost disk: Kafka has all of the local state."""

import resource
import shutil
from pathlib import Path

import pytest

from tests.forked import QUICKER
from tests.worker.harness import Site, Worker, now_ms, sale, unk, until
from tests.worker.test_metrics import total

pytestmark = pytest.mark.waits

WITHOUT = "Continuing with the state in memory"
AGAIN = "can be written again: the local copy is complete"
# More than the log of a worker, and less than RocksDB's file of the labels below.
FULL_BYTES = 200_000
LABELS = 10_000


def limit(worker: Worker, most_bytes: int) -> None:
    """Limit the file size; the system's error differs from a full disk's in wording only."""
    limits = most_bytes, resource.RLIM_INFINITY
    resource.prlimit(worker.process.pid, resource.RLIMIT_FSIZE, limits)


def send(site: Site, number: int) -> int:
    """Send events with new labels; return their time, once they are published."""
    at = now_ms()
    for i in range(LABELS // 10):
        items = [f"label {number} {i} {j}" for j in range(10)]
        site.produce(i % 2, [sale(items, at)], flush=False)
    site.produce(0, [sale([], at)])
    return at


def test_a_full_or_lost_disk_costs_only_the_copy(
    bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that ended because of its copy would end again at every restart."""
    site = Site(
        bootstrap,
        tmp_path,
        [unk(max_items=10)],
        partitions=2,
        owners=1,
        worker={"metrics_port": 0},
    )
    data = tmp_path / "data"
    data.mkdir()
    (data / "contribute-1").write_text("in the way")  # at the start already
    # Its copies are on disk soon.
    monkeypatch.setenv(QUICKER, "workers.kafka.store._FLUSH_S=1.0")
    with site.running() as worker:
        site.wait_published(send(site, 1))
        assert (
            f"{data}/contribute-1 cannot be opened: File exists. {WITHOUT}"
            in worker.output()
        )
        (data / "contribute-1").unlink()
        until(
            lambda: f"{data}/contribute-1 {AGAIN}" in worker.output(),
            "its copy is made",
        )
        limit(worker, FULL_BYTES)
        site.wait_published(send(site, 2))
        full = f"{data}/release-0 cannot be written: IO error: "
        until(lambda: full in worker.output(), "the disk is full")
        said = worker.output().partition(full)[2].partition("\n")[0]
        assert "File too large" in said and WITHOUT in said, said
        assert total("quietcount_copy_missing", worker, stage="release") == 1
        limit(worker, resource.RLIM_INFINITY)
        until(
            lambda: f"{data}/release-0 {AGAIN}" in worker.output(),
            "there is room again",
        )
        assert total("quietcount_copy_missing", worker) == 0
        shutil.rmtree(data / "release-0")
        site.wait_published(send(site, 3))
        gone = f"{data}/release-0 cannot be found: No such file or directory. {WITHOUT}"
        until(lambda: gone in worker.output(), "it is noticed")
        until(
            lambda: worker.output().count(f"{data}/release-0 {AGAIN}") == 2,
            "it is made again",
        )
    output = worker.output()
    assert "Traceback" not in output and " ERROR " not in output
    with site.running() as worker:  # from the copies that were made
        site.wait_published(send(site, 4))
    output = worker.output()
    assert "reading all of it again" not in output and "data_dir" not in output
    assert site.contributed().total() == 4 * LABELS
    site.assert_clean()
