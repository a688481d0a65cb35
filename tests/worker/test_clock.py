"""Ticks close by event time, and by the wall clock where a partition is read to its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worker.harness import Site, known, now_ms, sale, until

pytestmark = pytest.mark.waits


def one_partition(bootstrap: str, directory: Path, **events: object) -> Site:
    return Site(bootstrap, directory, [known(keys=["k"])], partitions=1, owners=1, events=events)


def test_idle_partitions_close_ticks_by_the_wall_clock(bootstrap: str, tmp_path: Path) -> None:
    """A quiet shop must not hold up all others; empty ticks are published as well."""
    site = Site(bootstrap, tmp_path, [known(keys=["k", "silent"])])
    at = now_ms()
    # partitions 0, 1 and 3 never see an event
    site.produce(2, [sale("a", at)])
    site.run_until(at + 5_000)
    site.assert_clean()
    snapshots = site.snapshots()
    assert {s["key"] for s in snapshots} == {"k", "silent"}
    for key in ("k", "silent"):
        assert len({s["tick"] for s in snapshots if s["key"] == key}) >= 5


def test_late_event_counts_in_the_open_tick_and_one_from_the_future_is_rejected(
    bootstrap: str, tmp_path: Path
) -> None:
    """A closed tick never changes, and one wrong clock must not close the ticks of all."""
    site = one_partition(bootstrap, tmp_path, max_ahead="10s")
    at = now_ms()
    # before the worker is there: it is not late, whatever this machine does
    site.produce(0, [sale("a", at)])
    with site.running():
        site.wait_published(at)
        site.produce(0, [sale("b", at)])  # its tick is closed
        site.produce(0, [sale("c", at + 3_600_000)])
        until(
            lambda: any(what.label == "b" for what in site.contributed()),
            "the late event is contributed",
        )
        until(site.rejects, "the early event is rejected")
        site.wait_published(at + 5_000)
    ticks = {what.label: what.tick for what in site.contributed()}
    assert ticks["a"] == at // 1_000 + 1
    assert ticks["b"] > ticks["a"]
    assert "c" not in ticks
    assert site.reasons() == ["dated too far ahead"]
    assert max(s["end"] for s in site.snapshots()) < at + 3_600_000
    site.assert_clean()


def test_times_that_no_event_can_have_neither_stop_a_worker_nor_begin_its_histograms(
    bootstrap: str, tmp_path: Path
) -> None:
    """First events once did: seconds read as ms, and a time of 2001 with ticks of a second."""
    site = one_partition(bootstrap, tmp_path)
    at = now_ms()
    times = (at // 1_000, 1_000_000_000_000, at, 1_000_000_000_000, at * 1_000)
    site.produce(0, [sale(label, ts) for label, ts in zip("abcde", times, strict=True)])
    site.run_until(at + 2_000)
    assert {what.label for what in site.contributed()} == {"c"}
    assert min(snapshot["end"] for snapshot in site.snapshots()) > at
    assert site.reasons() == [
        "dated before 2000: seconds instead of ms?",
        "dated too far behind",
        "dated too far behind",
        "dated too far ahead: microseconds instead of ms?",
    ]
    site.assert_clean()


def test_an_event_dated_ahead_waits_for_its_tick_and_moves_nobody_elses(
    bootstrap: str, tmp_path: Path
) -> None:
    """A fast clock must not show in the ticks of others: it once closed them early."""
    site = one_partition(bootstrap, tmp_path, max_ahead="1m")
    with site.running():
        at = now_ms()
        site.produce(0, [sale("ahead", at + 8_000)])
        latest: dict[str, int] = {}
        for label in ("a", "b", "c"):
            now = now_ms()
            site.produce(0, [sale(label, now)])
            wanted = {"ahead", *latest, label}
            until(
                lambda: wanted <= {what.label for what in site.contributed()},  # noqa: B023  # called at once
                f"{label} is contributed",
            )
            latest[label] = now_ms() // 1_000 + 1
        site.wait_published(at + 9_000)
    ticks = {what.label: what.tick for what in site.contributed()}
    assert ticks.pop("ahead") == (at + 8_000) // 1_000 + 1
    # On a slow machine the clock may have closed a tick before its event came; nothing else may.
    assert all(ticks[label] <= latest[label] for label in latest)
    site.assert_clean()
