"""Windows without epochs in a whole worker: audit. `test_keeping.py` has restarts and a takeover."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.worker.harness import Site, now_ms, sale, succeed, unk

pytestmark = pytest.mark.slow

WINDOWS: dict[str, Any] = {"horizon": "never", "windows": ["2s", "10s", "1m"]}
SERIES = ("items.2s", "items.10s", "items.1m")


def is_after(time_ms: int) -> bool:
    return now_ms() > time_ms


def test_audit_compares_every_series_and_finds_a_forged_count(
    cluster: str, tmp_path: Path
) -> None:
    paid = {"field": "paid", "from": 0, "to": 8, "step": 0.1}
    histogram = unk(**WINDOWS | {"keys": ["k"], "sum": paid})
    site = Site(cluster, tmp_path, [histogram], partitions=1, owners=1)
    reached = now_ms()
    early = [sale("a", reached - 5_000, paid=2) for _ in range(50)]
    site.produce(0, [*early, *(sale("a", reached, paid=3) for _ in range(40))])
    site.run_until(reached)
    exact = tmp_path / "exact"
    audited = succeed("audit", "-c", str(site.config), "--exact", str(exact))
    for name in SERIES:
        assert f"audit: {name}: " in audited
    lines = [json.loads(line) for line in exact.read_text().splitlines()]
    bodies = site.snapshots()
    newest = {body["histogram"]: body for body in bodies if body["end"] > reached}
    tick = min(body["tick"] for body in bodies if body["end"] > reached)
    by_series = {
        line["histogram"]: line["items"] for line in lines if line["tick"] == tick
    }
    assert [by_series[name][0][2] for name in SERIES] == [40, 90, 90]
    assert set(newest) == set(SERIES)
    site.check_forged(next(body for body in bodies if body["items"]))
