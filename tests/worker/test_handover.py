"""Hand-over of partitions between workers: frozen, stopped, or with a stolen transactional id."""

import contextlib
import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.worker.harness import Site, known, now_ms, sale, unk, until

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


def test_a_frozen_worker_is_replaced_and_rejoins(
    bootstrap: str, tmp_path: Path
) -> None:
    """A machine that pauses and resumes is the classic way to get two owners of one partition."""
    site = Site(bootstrap, tmp_path, [unk(), known()])
    sent = 0
    with site.worker("one") as one:
        site.wait_published(burst(site, 500))
        with site.worker("two") as two:
            until(
                lambda: any((tmp_path / "two").glob("contribute-*")), "partitions move"
            )
            burst(site, 5_000)  # at work while it freezes
            one.signal(signal.SIGSTOP)
            # every partition goes on: the other one has them all
            site.wait_published(burst(site, 500))
            one.signal(signal.SIGCONT)
            burst(site, 5_000)
            site.wait_published(burst(site, 500))
            assert two.stop() == 0
            # only the one that was frozen is left
            site.wait_published(burst(site, 500))
            sent = 4 * (500 + 5_000 + 500 + 5_000 + 500 + 500)
            assert one.running()
            assert one.stop() == 0
    assert total(site) == 2 * sent
    site.assert_clean()


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


def test_workers_come_and_go_under_load_and_sigterm_exits_0(
    bootstrap: str, tmp_path: Path
) -> None:
    """Deployments replace workers all day: partitions move during work, without a kill."""
    site = Site(bootstrap, tmp_path, [unk(), known()])
    with site.worker("one") as one:
        site.wait_published(burst(site, 10_000))
        with site.worker("two") as two:
            burst(site, 10_000)
            until(
                lambda: any((tmp_path / "two").glob("contribute-*")), "partitions move"
            )
            site.wait_published(burst(site, 10_000))
            burst(site, 20_000)
            assert one.stop() == 0
            site.wait_published(burst(site, 100))
            assert two.stop() == 0
            assert "Traceback" not in one.output() + two.output()
    assert total(site) == 2 * 4 * 50_100
    site.assert_clean()
