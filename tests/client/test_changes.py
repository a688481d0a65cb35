"""Sums and means over a window, from two snapshots as they are published."""

import json
from typing import Any

import pytest

from tests.dashboard.feeding import START_MS, sliding
from tests.pipeline.pipeline import Partition
from tests.pipeline.test_sums import EPOCH, TICK_MS, by_hand, messages, settings, some
from workers.client.changes import can_subtract, changes
from workers.pipeline.snapshots import join_pages

ITEMS = 1_000
TICKS = 8


@pytest.fixture(scope="module")
def published() -> tuple[dict[tuple[str, int], Any], list[dict[str, Any]]]:
    """Return the snapshots of an epoch by stream key and tick, and the events."""
    of: Any = {"mechanism": "known_base", "domain": [f"i{n}" for n in range(ITEMS)]}
    given = settings(epsilon=40.0, windows=["40ms"], **of)
    events = some(40_000, ITEMS, seed=2, ticks=TICKS)
    pages: dict[tuple[str, int], list[Any]] = {}
    for one in Partition(given.histograms, sources=1).run(
        messages(given, events, 10_000)
    ):
        page = json.loads(one.value)
        if page["start"] // TICK_MS // TICKS == EPOCH:
            pages.setdefault((page["key"], page["tick"]), []).append(page)
    return {place: join_pages(of) for place, of in pages.items()}, events


@pytest.mark.slow
@pytest.mark.parametrize(("since", "most"), [(4, 0.975), (2, 1.0), (0, 0.975)])
def test_means_of_2000_items_in_a_window_lie_within_their_intervals(
    published: Any, since: int, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a stated window, over another one (an upper bound), and since the epoch's start.

    With n = 2,000 and p = 0.95 a share below 0.93 has probability 3e-5.
    """
    snapshots, events = published
    exact = by_hand([e for e in events if e["ts"] // TICK_MS % TICKS >= since], EPOCH)

    def covered() -> tuple[float, float, int]:
        """Return the shares of means in their interval and of sums within 1.96 sd, of how many."""
        means = sums = n = 0
        for key in ("s1", "s2"):
            newer = snapshots[key, TICKS]
            older = snapshots.get((key, since))
            found = changes(newer, older, 0)
            rows = zip(found["items"], found["sums"], strict=True)
            for (label, _), (total, mean, low, high) in rows:
                if (key, label) not in exact:
                    continue
                times, right = exact[key, label]
                assert -20 <= low <= high <= 100.5 and (
                    mean is None or low <= mean <= high
                )
                means += low <= right / 1_000 / times <= high
                sums += abs(total - right / 1_000) <= 1.96 * found["sum"]["sd"]
                n += 1
        return means / n, sums / n, n

    of_means, of_sums, n = covered()
    assert n > 1_900 and all(0.93 < share <= most for share in (of_means, of_sums))
    if since == 4:
        halves = {"sd": 0.5, "sum_sd": 0.5}
        for key in ("s1", "s2"):
            [window] = snapshots[key, TICKS]["windows"]
            half = window | {
                name: window[name] * times for name, times in halves.items()
            }
            monkeypatch.setitem(snapshots[key, TICKS], "windows", [half])
        halved = covered()
        assert max(halved[:2]) < 0.85, halved


def test_two_snapshots_of_a_window_are_never_subtracted() -> None:
    """The planted fault: without its window such a snapshot looks like one of running counts."""
    of_hour = sliding("1h", START_MS, [("tea", 5)])
    assert not can_subtract(of_hour)
    windows = [{"ms": 60_000, "ticks": 6, "sd": 3.5}]
    assert not can_subtract(of_hour | {"windows": windows})
    assert can_subtract({name: of_hour[name] for name in of_hour if name != "window"})
