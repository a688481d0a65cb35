"""Late events leave a trace: a counter for each histogram, and a line in the log."""

from pathlib import Path

import pytest

from tests.worker.harness import Site, now_ms, sale, unk, until
from tests.worker.test_metrics import total

pytestmark = pytest.mark.waits

HOUR_MS = 3_600_000


def test_events_whose_tick_was_closed_are_counted_and_logged(
    bootstrap: str, tmp_path: Path
) -> None:
    slow = unk("slow", tick="1d", horizon=30)
    site = Site(bootstrap, tmp_path, [unk(), slow], worker={"metrics_port": 0})
    begin = now_ms() // (24 * HOUR_MS) * 24 * HOUR_MS
    site.produce(0, [sale(["a"], begin + 60_000 + i) for i in range(500)])
    late = [sale(["a"], begin + i) for i in range(200)]
    site.produce(0, late)
    with site.running() as worker:
        events = "quietcount_histogram_events_total"
        until(
            lambda: total(events, worker, histogram="items") == 700, "all is committed"
        )
        assert total("quietcount_late_events_total", worker, histogram="items") == 200
        assert total("quietcount_late_events_total", worker, histogram="slow") == 0
        until(lambda: "items: many events come late" in worker.output(), "it is said")
        assert "(200 of 700 within a minute)" in worker.output()
        assert "slow: many events" not in worker.output()
