"""What was counted in a window that begins in the epoch before, against plain Python."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from tests.pipeline.pipeline import histogram_of, unk
from tests.pipeline.test_carried import Counts, counted
from workers.client.changes import changes
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.running.base import KnownBaseConfig
from workers.pipeline.snapshots import join_pages

Body = Mapping[str, Any]
HORIZON = 12
ITEMS = 2_000
LABELS = tuple(f"i{number}" for number in range(ITEMS))
WINDOW = 9
# Far above a count of one in the noise, so that rounding does not show.
KNOWN = KnownBaseConfig(
    name="h",
    tick_ms=10,
    horizon=HORIZON,
    keys="public",
    max_items=1,
    epsilon=1.0,
    delta=1e-6,
    domain=LABELS,
    windows=(10 * WINDOW,),
)


def stream(seed: int) -> list[Counts]:
    rng = np.random.default_rng(seed)
    rates = rng.integers(0, 40, ITEMS)
    ticks: list[Counts] = []
    for _ in range(2 * HORIZON):
        drawn = rng.poisson(rates).tolist()
        ticks.append({label: n for label, n in zip(LABELS, drawn, strict=True) if n})
    return ticks


def published(config: HistogramConfig, ticks: Sequence[Counts]) -> list[Body]:
    histogram = histogram_of(config)
    histogram.start_at(1)
    return [
        join_pages([json.loads(page.value) for page in histogram.step(counted(counts))])
        for counts in ticks
    ]


def exact(ticks: Sequence[Counts], begin: int, end: int) -> Counter[str]:
    """Return what was counted in ticks begin + 1 to end, from 1."""
    found: Counter[str] = Counter()
    for counts in ticks[begin:end]:
        found.update(counts)
    return found


@pytest.fixture(scope="module")
def known() -> tuple[list[Counts], list[Body]]:
    ticks = stream(1)
    return ticks, published(KNOWN, ticks)


@pytest.mark.parametrize("tick", [1, 4, 8])
@pytest.mark.parametrize("stated", [True, False], ids=["window", "bound"])
def test_changes_of_2000_items_over_midnight_lie_within_their_intervals(
    known: tuple[list[Counts], list[Body]], tick: int, stated: bool
) -> None:
    """With n = 2,000 and p = 0.95 a share below 0.926 has probability 1e-6, as one above 0.972."""
    ticks, bodies = known
    end = HORIZON + tick
    begin = end - WINDOW
    newer = dict(bodies[end - 1])
    if not stated:
        newer["windows"] = []
    last = bodies[HORIZON - 1]
    older = bodies[begin - 1]
    found = changes(newer, older, older["end"], last=last)
    assert found["change"]["exact"] is stated
    assert found["change"]["last"] == {
        "id": newer["previous_id"],
        "epoch": 1,
        "tick": HORIZON,
        "end": last["end"],
        "threshold": None,
        "absent": [],
    }
    assert not found["change"]["new"]
    assert found["counts"] == [
        dict(newer["items"])[label] for label, _ in found["items"]
    ]
    right = exact(ticks, begin, end)
    off = np.array([n - right[label] for label, n in found["items"]])
    assert len(off) == ITEMS

    def share(times: float) -> float:
        within = np.abs(off) <= 1.96 * times * found["sd"]
        return float(within.mean())

    if stated:
        assert 0.926 < share(1.0) < 0.972
        assert share(0.5) < 0.75, "twice the noise is found"
        assert share(2.0) > 0.99, "half the noise is found"
        of_one_epoch = newer["sd"] / found["sd"]
        assert tick == 8 or share(of_one_epoch) < 0.926
    else:
        assert share(1.0) > 0.926
        assert found["sd"] >= changes(bodies[end - 1], older, 0, last=last)["sd"]


def test_a_window_from_the_beginning_of_the_epoch_before_counts_both_in_full(
    known: tuple[list[Counts], list[Body]],
) -> None:
    ticks, bodies = known
    newer = bodies[HORIZON + 2]
    last = bodies[HORIZON - 1]
    found = changes(newer, None, 0, last=last)
    right = exact(ticks, 0, HORIZON + 3)
    off = np.array([n - right[label] for label, n in found["items"]])
    assert found["change"]["exact"] and found["change"]["tick"] == 0
    assert found["sd"] == pytest.approx(
        float(np.hypot(newer["sd"], last["sd"])), abs=1e-4
    )
    assert 0.926 < np.mean(np.abs(off) <= 1.96 * found["sd"]) < 0.972


def test_items_of_one_epoch_alone_are_new_and_what_they_may_have_more_is_said() -> None:
    """Hidden until midnight: more by at most the last threshold; shown since late: less."""
    config = unk(
        horizon=HORIZON, max_items=1, epsilon=4.0, delta=1e-6, windows=(10 * WINDOW,)
    )
    ticks: list[Counts] = [{"old": 50} for _ in range(2 * HORIZON)]
    for tick in range(HORIZON):
        # Below the threshold in the first epoch, beyond it in the first tick of the second.
        ticks[tick] = {**ticks[tick], "hidden": 1}
    ticks[6] = {**ticks[6], "late": 500}
    ticks[HORIZON] = {**ticks[HORIZON], "hidden": 400, "fresh": 400}
    bodies = published(config, ticks)
    newer = bodies[HORIZON + 1]
    last = bodies[HORIZON - 1]
    older = bodies[HORIZON + 2 - WINDOW - 1]
    found = changes(newer, older, older["end"], last=last)
    change = found["change"]
    assert set(change["new"]) == {"hidden", "fresh", "late"}
    assert set(change["last"]["absent"]) == {"hidden", "fresh"}
    right = exact(ticks, HORIZON + 2 - WINDOW, HORIZON + 2)
    margin = 5 * found["sd"]
    for label, n in found["items"]:
        low = n
        high = n
        if label in change["last"]["absent"]:
            high += change["last"]["threshold"]
        elif label in change["new"]:
            low -= change["threshold"]
        assert low - margin <= right[label] <= high + margin, label
    assert right["hidden"] == 407
