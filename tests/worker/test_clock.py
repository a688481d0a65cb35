"""Ticks close by event time, and by the wall clock where a partition is read to its end."""

from pathlib import Path

import pytest

from tests.worker.harness import Site, known, now_ms, sale, until

pytestmark = pytest.mark.slow


def test_wrong_times_are_rejected_late_events_count_in_the_open_tick_and_early_ones_in_their_own(
    cluster: str, tmp_path: Path
) -> None:
    """A closed tick never changes, and one wrong clock must not close the ticks of all.

    First events once stopped a worker, or began its histograms: seconds read as ms, and a time of
    2001 with ticks of a second. A fast clock once closed the ticks of others early.
    """
    histograms = [known(keys=["k"], domain=["first", "late", "ahead", "a", "b", "c"])]
    site = Site(
        cluster,
        tmp_path,
        histograms,
        partitions=1,
        owners=1,
        events={"max_ahead": "1m"},
    )

    def contributed() -> set[str]:
        return {what.label for what in site.contributed()}

    at = now_ms()
    in_2001 = 1_000_000_000_000
    # Before the worker is there, so "first" is not late, whatever this machine does.
    times = {
        "s": at // 1_000,
        "x": in_2001,
        "first": at,
        "y": in_2001,
        "us": at * 1_000,
    }
    site.produce(0, [sale(label, time) for label, time in times.items()])
    with site.running():
        site.wait_published(at + 2_000)
        site.produce(0, [sale("late", at)])  # its tick is closed
        begun = now_ms()
        site.produce(
            0, [sale("ahead", begun + 8_000), sale("far ahead", at + 3_600_000)]
        )
        latest: dict[str, int] = {}
        for label in ("a", "b", "c"):
            site.produce(0, [sale(label, now_ms())])
            wanted = {"first", "late", "ahead", *latest, label}
            until(
                lambda wanted=wanted: wanted <= contributed(),  # type: ignore[misc]  # bound now
                f"{label} is contributed",
            )
            latest[label] = now_ms() // 1_000 + 1
        site.wait_published(begun + 9_000)
    ticks = {what.label: what.tick for what in site.contributed()}
    assert ticks.pop("first") == at // 1_000 + 1 < ticks.pop("late")
    assert ticks.pop("ahead") == (begun + 8_000) // 1_000 + 1
    # On a slow machine the clock may have closed a tick before its event came; nothing else may.
    assert ticks.keys() == latest.keys() and all(
        ticks[label] <= latest[label] for label in ticks
    )
    ends = [snapshot["end"] for snapshot in site.snapshots()]
    assert at < min(ends) and max(ends) < at + 3_600_000
    behind = "dated too far behind"
    ahead = "dated too far ahead"
    first = "dated before 2000: seconds instead of ms?"
    in_us = f"{ahead}: microseconds instead of ms?"
    assert site.reasons() == [first, behind, behind, in_us, ahead]
    site.assert_clean()
