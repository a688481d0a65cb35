"""Late events leave a trace: a counter for each histogram, and a line in the log."""

from pathlib import Path

import pytest

from tests.cluster.worker import Process
from tests.worker.harness import Site, Worker, now_ms, sale, unk, until

pytestmark = pytest.mark.slow

DAY_MS = 86_400_000


def total(name: str, worker: Worker, histogram: str) -> float:
    process = worker.process
    assert isinstance(process, Process)
    if process.factory is None:
        return 0
    sample = process.factory.metrics.registry.get_sample_value
    return sample(name, {"histogram": histogram}) or 0


def test_events_whose_tick_was_closed_are_counted_and_logged(
    cluster: str, tmp_path: Path
) -> None:
    slow = unk("slow", tick="1d", horizon=30)
    site = Site(cluster, tmp_path, [unk(), slow])
    begin = now_ms() // DAY_MS * DAY_MS
    site.produce(0, [sale(["a"], begin + 60_000 + i) for i in range(500)])
    late = [sale(["a"], begin + i) for i in range(200)]
    site.produce(0, late)
    with site.running() as worker:
        events = "quietcount_histogram_events_total"
        until(lambda: total(events, worker, "items") == 700, "all is committed")
        assert total("quietcount_late_events_total", worker, "items") == 200
        assert total("quietcount_late_events_total", worker, "slow") == 0
        until(lambda: "items: many events come late" in worker.output(), "it is said")
        assert "(200 of 700 within a minute)" in worker.output()
        assert "slow: many events" not in worker.output()
