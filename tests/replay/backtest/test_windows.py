"""A backtest of windows without epochs: every figure once more from events and snapshots, with loops."""

import itertools
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from tests.replay.backtest.backtests import (
    backtest,
    bounded,
    events,
    numbers,
    runs_in,
    text_of,
)
from tests.replay.site import T0, run_replay, settings_of
from tests.worker.harness import known, unk
from workers.mechanisms.counters.line import line_counters
from workers.mechanisms.running import sliding
from workers.replay.backtest.results import Results, by_histogram, read
from workers.replay.backtest.truth import Exact
from workers.replay.report.pages import histogram_section
from workers.runtime.errors import SettingsError
from workers.settings.settings import settings_of as parsed

TOP = 5
WINDOWS = ("4s", "16s")
OF_SUM = {"field": "paid", "from": 0, "to": 6, "step": 1}
SERIES = tuple(f"items.{window}" for window in WINDOWS)


def board(**changes: object) -> dict[str, object]:
    of = {"keys": ["a", "b"], "horizon": "never", "windows": list(WINDOWS)}
    return unk() | of | {"epsilon": 30.0} | changes


def some_events() -> list[dict[str, Any]]:
    """Two seconds of every three have events; later ones have other items, so that labels leave."""
    found: list[dict[str, Any]] = events(4_000, seconds=120.0)
    for place, event in enumerate(found):
        event["paid"] = place % 9 - 1
        if event["ts"] - T0 > 70_000:
            event["items"] = [f"late-{item}" for item in event["items"]]
    return [event for event in found if (event["ts"] // 1_000) % 3]


class Made:
    """A backtest with two seeds, what its first published, and the events."""

    def __init__(self, directory: Path, **changes: object) -> None:
        self.events = some_events()
        self.snapshots: list[dict[str, Any]] = []
        settings = settings_of(directory, [board(sum=OF_SUM, **changes)])
        # Rows are forgotten, so that a run's rows are not those of its truth.
        with patch.object(sliding, "LEAST_ROWS", 8):
            self.results = backtest(
                settings,
                directory,
                self.events,
                seeds=2,
                top=TOP,
                snapshots=self.snapshots,
            )

    def exact(
        self, snapshot: Mapping[str, Any], *, wide: bool
    ) -> tuple[Counter[str], Counter[str]]:
        """Return the counts and sums of a snapshot's window, by label."""
        counts: Counter[str] = Counter()
        sums: Counter[str] = Counter()
        for event in self.events:
            inside = snapshot["window"]["from"] <= event["ts"] < snapshot["end"]
            if not inside or event["key"] != snapshot["key"]:
                continue
            if wide:
                counts.update(event["items"])
                continue
            for label, times in bounded(event, 2, 1):
                counts[label] += times
                sums[label] += min(max(int(event["paid"]), 0), 6)
        return counts, sums

    def of(self, series: str) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """Yield the tick and the snapshots, one a key, of every tick of a series."""
        mine = [one for one in self.snapshots if one["histogram"] == series]
        for end, group in itertools.groupby(mine, key=lambda one: int(one["end"])):
            yield end // 1_000, list(group)


def of_series(results: Results, series: str) -> Results:
    rows = [one for one in results.series if one.histogram == series]
    return Results(results.input, results.runs, rows, results.boards)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("windows"))


@pytest.mark.slow
@pytest.mark.parametrize("series", SERIES)
def test_errors_recall_and_sums_are_those_of_the_window(
    made: Made, series: str
) -> None:
    results = of_series(made.results, series)
    names = [
        "error_mean",
        "error_worst",
        "error_unbounded_mean",
        "recall",
        "lost",
        "shown",
        "sum_error_mean",
        "mean_coverage",
    ]
    found = {name: numbers(results, name) for name in names}
    measured = 0
    for tick, snapshots in made.of(series):
        off: list[int] = []
        off_wide: list[int] = []
        off_sums: list[float] = []
        hold: list[bool] = []
        recalls: list[float] = []
        totals = np.zeros(2)
        tied = False
        for snapshot in snapshots:
            counts, sums = made.exact(snapshot, wide=False)
            wide, _ = made.exact(snapshot, wide=True)
            totals += (counts.total(), wide.total())
            shown = snapshot["items"]
            off += [count - counts[label] for label, count in shown]
            off_wide += [count - wide[label] for label, count in shown]
            published = [count for _, count in shown[TOP - 1 : TOP + 1]]
            tied = tied or len(set(published)) < len(published)
            best = sorted(counts.values(), reverse=True)[:TOP]
            if best:
                right = sum(counts[label] >= best[-1] for label, _ in shown[:TOP])
                recalls.append(min(right, len(best)) / len(best))
            for (label, _), (total, _, low, high) in zip(
                shown, snapshot["sums"], strict=True
            ):
                if counts[label]:
                    off_sums.append(abs(total - sums[label]))
                    hold.append(low <= sums[label] / counts[label] <= high)
        assert found["shown"][tick] == len(off)
        if totals[1]:
            assert found["lost"][tick] == pytest.approx(1 - totals[0] / totals[1])
            if not tied:
                assert found["recall"][tick] == pytest.approx(np.mean(recalls))
        if off:
            assert found["error_mean"][tick] == pytest.approx(np.abs(off).mean())
            assert found["error_worst"][tick] == np.abs(off).max()
            wide_mean = np.abs(off_wide).mean()
            assert found["error_unbounded_mean"][tick] == pytest.approx(wide_mean)
            measured += 1
        if off_sums:
            assert found["sum_error_mean"][tick] == pytest.approx(np.mean(off_sums))
            assert found["mean_coverage"][tick] == pytest.approx(np.mean(hold))
    assert measured > 100
    # The two windows are not the same.
    assert 0.9 < numbers(results, "coverage", seed=1)[0] < 0.99


def test_delays_go_from_the_first_time_a_window_reached_a_size(made: Made) -> None:
    for series in SERIES:
        results = of_series(made.results, series)
        reached: dict[tuple[int, str, str], int] = {}
        first: dict[tuple[str, str], int] = {}
        for tick, snapshots in made.of(series):
            for snapshot in snapshots:
                key = snapshot["key"]
                for label, count in made.exact(snapshot, wide=False)[0].items():
                    for size in (1, 2, 5, 10, 20):
                        if count >= size:
                            reached.setdefault((size, key, label), tick)
                for label, _ in snapshot["items"]:
                    first.setdefault((key, label), tick)
        for size in (1, 2, 5, 10, 20):
            mine = {one[1:]: tick for one, tick in reached.items() if one[0] == size}
            delays = [
                max(first[one] - at, 0) for one, at in mine.items() if one in first
            ]
            assert numbers(results, "passed", size=size) == {0: len(mine)}
            found = numbers(results, "found", size=size)[0]
            assert found == pytest.approx(len(delays) / len(mine)), (series, size)
            mean = numbers(results, "delay_mean", size=size)[0]
            assert mean == pytest.approx(np.mean(delays))


def test_boards_have_the_counts_of_the_window(made: Made) -> None:
    rows = [row for row in made.results.boards if row.run == 1 and row.seed == 0]
    assert {row.histogram for row in rows} == set(SERIES)
    for series in SERIES:
        snapshots = {
            (one["key"], tick): one for tick, all_ in made.of(series) for one in all_
        }
        mine = [row for row in rows if row.histogram == series]
        assert len({row.tick for row in mine}) > 3
        for row in mine:
            snapshot = snapshots[row.key, row.tick]
            assert row.exact == made.exact(snapshot, wide=False)[0][row.label]
            assert row.exact_unbounded == made.exact(snapshot, wide=True)[0][row.label]
            assert row.released == dict(snapshot["items"]).get(row.label)


@pytest.mark.slow
def test_a_truth_that_forgets_a_tick_late_is_found(tmp_path: Path) -> None:
    """The control: the exact counts of a window that is one tick longer."""
    own = Exact.__init__

    def longer(self: Exact, *of: Any, windows: Any, **more: Any) -> None:
        late = line_counters([one.window + 1 for one in windows], [1, 1], 1.0)
        own(self, *of, windows=late, **more)

    with patch.object(Exact, "__init__", longer):
        late = Made(tmp_path)
    with pytest.raises(AssertionError):
        test_errors_recall_and_sums_are_those_of_the_window(late, SERIES[0])


@pytest.mark.slow
def test_every_window_is_an_outcome_of_one_run(tmp_path: Path) -> None:
    """Windows, hops and horizons can be varied; a series is compared where it is published."""
    settings = settings_of(tmp_path, [board()])
    (tmp_path / "in.jsonl").write_bytes(text_of(some_events()))
    varied = ('windows=["4s"],["4s","16s"]', "hop=1,2", "--seeds", "1")
    options = ("--report", tmp_path / "out", "--vary", varied[0], "--vary", *varied[1:])
    assert run_replay(tmp_path, *options) == 0
    outcomes = by_histogram(read(tmp_path / "out"))
    assert {name: [one.number for one in of] for name, of in outcomes.items()} == {
        "items.4s": [1, 2, 3, 4],
        "items.16s": [3, 4],
    }
    for of in outcomes.values():
        for one in of:
            assert one.never and one.given["hop"] == one.row.varied["items.hop"]
            [pasted] = tomllib.loads("\n".join(histogram_section(one)))["histogram"]
            again = parsed(
                tomllib.loads((tmp_path / "settings.toml").read_text())
                | {"histogram": [pasted]},
                tmp_path,
            )
            assert again.histograms[0].name == "items"
            number_of_windows = 1 if one.number < 3 else 2
            assert len(again.histograms[0].windows) == number_of_windows
    text = (tmp_path / "out" / "report.html").read_text()
    assert "for one event (no epochs: windows in ticks of 1s" in text
    assert "and epoch" not in text and "of an epoch" not in text
    plots = {path.name for path in (tmp_path / "out" / "plots").glob("*.svg")}
    for name in ("items.4s", "items.16s"):
        kinds = ("error_over_ticks", "discovery", "coverage", "board_1")
        assert {f"{name}-{kind}.svg" for kind in kinds} <= plots
    assert len(runs_in(settings, tmp_path, "horizon=never,64")) == 2


def test_a_declared_domain_is_measured_by_window(tmp_path: Path) -> None:
    some = some_events()
    domain = sorted({item for event in some for item in event["items"]})
    snapshots: list[dict[str, Any]] = []
    histogram = known(
        domain=[*domain, "none"],
        keys=["a", "b"],
        horizon="never",
        windows=["4s"],
        epsilon=30.0,
    )
    settings = settings_of(tmp_path, [histogram])
    results = backtest(settings, tmp_path, some, top=TOP, snapshots=snapshots)
    exact: Counter[tuple[int, str, str]] = Counter()
    for event in some:
        for label, times in bounded(event, 2, 1):
            for tick in range(event["ts"] // 1_000 + 1, event["ts"] // 1_000 + 5):
                exact[tick, event["key"], label] += times
    found = numbers(results, "error_mean")
    off: dict[int, list[int]] = {}
    for snapshot in snapshots:
        tick = snapshot["end"] // 1_000
        assert len(snapshot["items"]) == len(domain) + 1
        off.setdefault(tick, []).extend(
            abs(count - exact[tick, snapshot["key"], label])
            for label, count in snapshot["items"]
        )
    assert len(found) == len(off) + 1 > 100
    for tick, errors in off.items():
        assert found[tick] == pytest.approx(np.mean(errors))


def test_windows_of_a_histogram_with_epochs_change_nothing(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, [unk(windows=["4s"])])
    with pytest.raises(SettingsError, match="windows cannot be varied"):
        runs_in(settings, tmp_path, 'windows=["4s"],["8s"]')
