"""Windows added and changed while a histogram runs: one series, one noise."""

import json
from pathlib import Path

import pytest

from tests.worker.harness import Site, now_ms, sale, succeed, unk

pytestmark = pytest.mark.slow


def test_windows_may_change_and_audit_compares_the_rest(
    cluster: str, tmp_path: Path
) -> None:
    """Nothing is charged again; forged counts are found; window metadata changes no count."""
    paid = {"field": "paid", "from": -2, "to": 8, "step": 0.1}
    histogram = unk(keys=["k"], sum=paid, total_share=0.2)
    site = Site(cluster, tmp_path, [histogram], partitions=1, owners=1)
    seen: list[tuple[int, ...]] = []
    for windows in ([], ["1s"], ["2s", "5s"]):
        site.document["histogram"][0] |= {"windows": windows}
        site.rewrite()
        reached = now_ms()  # later than every tick that an earlier run has published
        # The numbers of "a" count as 0.1 and 8, and "b" is never shown.
        sold = [sale("a", reached, paid=paid) for paid in [0.12] * 50 + [9] * 50]
        site.produce(0, [*sold, sale("b", reached, paid=1)])
        site.run_until(reached)
        *_, last = site.snapshots()
        seen.append(tuple(window["ms"] for window in last.get("windows", ())))
    assert seen == [(), (1_000,), (2_000, 5_000)]
    bodies = site.snapshots()
    assert len({body["id"] for body in bodies}) == 1
    audited = succeed(
        "audit", "-c", str(site.config), "--exact", str(tmp_path / "exact")
    )
    others = sum(
        tuple(w["ms"] for w in body.get("windows", ())) != seen[-1] for body in bodies
    )
    assert 0 < others < len(bodies)
    said = (
        f"audit: {others} snapshots with other windows than now, compared without them"
    )
    assert said in audited
    lines = map(json.loads, (tmp_path / "exact").read_text().splitlines())
    [line] = [line for line in lines if line["tick"] == last["tick"]]
    [[label, count]] = last["items"]
    [[total, mean, *_]] = last["sums"]
    assert line["items"] == [[label, count, 300]] and label == "a"
    assert line["sums"] == [[total, 150 * 8.1, mean, 4.05]]
    assert line["all_items"] == [last["all_items"]["count"], 303]
    assert abs(total - 150 * 8.1) <= 6 * last["sum"]["sd"]

    site.check_forged(bodies[-1])
