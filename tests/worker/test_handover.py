"""A rebalance at the end of a worker, and a stolen transactional id; `tests/chaos` has the others."""

import contextlib
import json
import subprocess
from pathlib import Path

import pytest

from tests.worker.harness import Site, now_ms, sale, unk

pytestmark = pytest.mark.waits

# Faust calls `consumer.close` where the group rebalances while the worker stops. In debug mode an
# event loop refuses calls from another thread, which otherwise may crash the process.
CLOSING = """
from faust.app.base import App
from workers.cli import main
stop = App.on_stop
async def on_stop(app):
    app._on_rebalance_when_stopped()
    await stop(app)
App.on_stop = on_stop
main()
"""


def burst(site: Site, number: int) -> int:
    """Send current events to every partition; return the time when all are there."""
    at = now_ms()
    some = [
        json.dumps(sale(["a", f"x{i % 7}"], at, f"k{i % 3}")).encode()
        for i in range(21)
    ]
    return site.burst(number, lambda i: some[i % 21])


def total(site: Site) -> int:
    counted = site.contributed()
    lane = next(iter(counted)).lane
    return sum(n for what, n in counted.items() if what.lane == lane)


def test_a_rebalance_while_a_worker_stops_touches_no_other_threads_loop(
    bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvloop crashed about one SIGTERM in a hundred on a busy machine."""
    monkeypatch.setenv("PYTHONASYNCIODEBUG", "1")
    site = Site(bootstrap, tmp_path, [unk()])
    with site.worker(runner=["-c", CLOSING]) as worker:
        site.wait_published(burst(site, 100))
        assert worker.stop() == 0
        assert "Traceback" not in worker.output()


def test_a_worker_that_a_stranger_fences_exits_75(
    bootstrap: str, tmp_path: Path
) -> None:
    """Two owners must not both publish, and a supervisor must learn of it."""
    site = Site(bootstrap, tmp_path, [unk()])
    with site.worker() as worker:
        site.wait_published(burst(site, 100))
        bursts = 1
        strangers = []
        # More than once: after a pause of the machine the group may have reassigned the partition
        # to it.
        while worker.running() and bursts < 6:
            strangers.append(site.connection.producer(f"{site.name}-contribute-0"))
            strangers[-1].init_transactions(120)
            burst(site, 100)
            bursts += 1
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(90)
        assert worker.ended() == 75
        assert "is another worker using the same worker.name" in worker.output()
        assert "Traceback" not in worker.output()
    with site.running() as worker:  # which fences the stranger in its turn
        site.wait_published(burst(site, 100))
    assert total(site) == 2 * 4 * 100 * (bursts + 1)
    site.assert_clean()
