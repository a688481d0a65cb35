"""Long times without events are found, whatever the order in which the events are read."""

import random
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipeline.pipeline import unk
from tests.replay.backtest.backtests import text_of
from tests.replay.site import T0, Printed, run_replay, settings_of
from tests.worker import harness
from workers.mechanisms.config.histogram import EPOCH
from workers.replay.gaps import EMPTY_TICKS_TOLD, EventTimes, empty_ticks, gap_remarks

TICK_MS = 60_000
CONFIG = unk(tick_ms=TICK_MS, start=EPOCH)
FAR = 3 * EMPTY_TICKS_TOLD * TICK_MS


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=30),
    st.integers(1, 5),
    st.randoms(),
)
def test_gaps_are_those_between_the_sorted_times(
    places: list[int], batch: int, rng: random.Random
) -> None:
    times = sorted(T0 + place * EMPTY_TICKS_TOLD * TICK_MS // 2 for place in places)
    found = EventTimes([CONFIG])
    mixed = rng.sample(times, len(times))
    for start in range(0, len(mixed), batch):
        found.add(np.array(mixed[start : start + batch], dtype=np.int64))
    least = EMPTY_TICKS_TOLD * TICK_MS
    expected = [
        (first, second, i + 1, len(times) - i - 1)
        for i, (first, second) in enumerate(pairwise(times))
        if second - first >= least
    ]
    gaps = [(gap.start_ms, gap.end_ms, gap.before, gap.after) for gap in found.gaps()]
    assert gaps == expected


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (
            1,
            500,
            "the date of the 1 event before them right? If it is not, remove the event, or",
        ),
        (2, 500, "the dates of the 2 events before them right?"),
        (
            500,
            1,
            "the date of the 1 event after them right? If it is not, remove the event",
        ),
        (500, 500, "a wider tick publishes fewer"),
    ],
)
def test_a_remark_asks_about_the_few_events_on_one_side(
    before: int, after: int, words: str
) -> None:
    found = EventTimes([CONFIG])
    found.add(np.arange(before) + T0)
    found.add(np.arange(after) + T0 + FAR)
    [remark] = gap_remarks(found.gaps(), CONFIG, stream_keys=3)
    [gap] = found.gaps()
    number = empty_ticks(gap, CONFIG)
    assert abs(number - 3 * EMPTY_TICKS_TOLD) <= 1
    assert (
        f"{number:,} ticks in a row have no event, {3 * number:,} empty snapshots"
        in remark
    )
    assert words in remark


def test_ticks_before_the_start_are_not_published() -> None:
    found = EventTimes([CONFIG])
    found.add(np.array([T0, T0 + FAR]))
    start = datetime.fromtimestamp((T0 + FAR) / 1_000 - 300, UTC)
    late = unk(tick_ms=TICK_MS, start=start)
    assert list(gap_remarks(found.gaps(), late)) == []


@pytest.mark.slow
@pytest.mark.parametrize("report", [False, True])
def test_replay_tells_empty_ticks_beside_a_wrong_date(
    tmp_path: Path, capsys: Printed, report: bool
) -> None:
    settings_of(tmp_path, [harness.unk(tick="1h", horizon="1d", keys=["a"])])
    old = {"key": "a", "items": ["i"], "ts": T0 - 60 * 86_400_000}
    events = [{"key": "a", "items": ["i"], "ts": T0 + i} for i in range(30)]
    (tmp_path / "in.jsonl").write_bytes(text_of([old, *events]))
    options = ["--report", str(tmp_path / "report")] if report else []
    assert run_replay(tmp_path, *options) == 0
    said = capsys.readouterr().err
    assert "1,439 ticks in a row have no event" in said
    assert "is the date of the 1 event before them right?" in said
    assert "set start = 2026-01-01T00:00:00Z" in said
    config = tmp_path / "settings.toml"
    config.write_text(
        config.read_text().replace(
            "[[histogram]]", "[[histogram]]\nstart = 2026-01-01T00:00:00Z"
        )
    )
    options = [*options, "--force"] if report else []
    assert run_replay(tmp_path, *options) == 0
    assert "have no event" not in capsys.readouterr().err
