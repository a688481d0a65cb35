"""A worker whose settings do not fit its events reports this, and continues."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worker.harness import Site, now_ms, unk, until
from tests.worker.test_metrics import ask, ready, total

pytestmark = pytest.mark.waits


def event(i: int, **changes: object) -> dict[str, object]:
    return {"key": "k", "items": [f"p{i % 3}"], "ts": now_ms() - 1_000 + i} | changes


def test_a_worker_that_rejects_nearly_all_says_so_at_once_and_when_it_is_over(
    bootstrap: str, tmp_path: Path
) -> None:
    """`/readyz`, the metric and the log agree, and the command that they name exists."""
    site = Site(bootstrap, tmp_path, [unk()], partitions=2, worker={"metrics_port": 0})
    site.produce(0, [event(i, key=None) for i in range(300)])
    with site.worker() as worker:
        until(lambda: "nearly all records are rejected (" in worker.output(), "the line")
        worker.at_work()
        assert not ready(worker)
        body = ask(worker, "/readyz")[1]
        assert "nearly all records are rejected" in body and "quietcount check -c FILE" in body
        assert total("quietcount_rejecting", worker, topic=site.topic) == 1
        site.produce(1, [event(i) for i in range(400)])
        until(lambda: "it is over" in worker.output(), "the other line")
        until(lambda: ready(worker), "it is ready")
        assert worker.stop() == 0
        assert worker.output().count("nearly all records are rejected (") == 1
