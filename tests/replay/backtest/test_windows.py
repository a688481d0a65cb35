"""A backtest of windows without epochs: each is compared, and told, for itself."""

import tomllib
from pathlib import Path

import pytest

from tests.replay.backtest.backtests import events, runs_in, text_of
from tests.replay.site import run_replay, settings_of
from tests.worker.harness import unk
from workers.replay.backtest.results import by_histogram, read
from workers.replay.report.pages import histogram_section
from workers.runtime.errors import SettingsError
from workers.settings.settings import settings_of as parsed


@pytest.mark.slow
def test_every_window_is_an_outcome_of_one_run(tmp_path: Path) -> None:
    """Windows, hops and horizons can be varied; a series is compared where it is published."""
    settings = settings_of(tmp_path, [unk(horizon="never", windows=["4s", "16s"])])
    (tmp_path / "in.jsonl").write_bytes(text_of(events(1_000)))
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
            assert (
                one.without_epochs and one.given["hop"] == one.row.varied["items.hop"]
            )
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


def test_windows_of_a_histogram_with_epochs_change_nothing(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, [unk(windows=["4s"])])
    with pytest.raises(SettingsError, match="windows cannot be varied"):
        runs_in(settings, tmp_path, 'windows=["4s"],["8s"]')
