"""A results directory is written whole, read back as it was, the same to the byte, and never over somebody's files."""

from pathlib import Path

import numpy as np
import pytest

from tests.replay.backtest.backtests import a_run, an_input
from tests.replay.site import Patch
from workers.replay.backtest.results import (
    BOARDS,
    REJECTS,
    RESULTS,
    RUNS,
    BoardRow,
    Results,
    Series,
    prepare,
    read,
    write,
)
from workers.runtime.errors import SettingsError


def some() -> Results:
    rejects = [(0, 3, "not JSON"), (0, 4, "not JSON")]
    found = Results(an_input(counts={"not JSON": 2}, first=rejects, left_out=["a: b"]))
    found.runs += [
        a_run(1, varied={"h.epsilon": "0.5"}),
        a_run(2, varied={"g.tick": None}),
    ]
    ticks = np.array([0, 3, 4])
    values = np.array([0.5, 0.25, 0.75])
    found.series.append(Series(1, 0, "h", "", "recall", 0, 0, ticks, values))
    found.series.append(
        Series(1, 0, "h", "ключ", "found", 0, 100, np.array([0]), np.array([1.0]))
    )
    of = (1, 0, "h", "", 4, 4000)
    found.boards.append(BoardRow(*of, 1, "<b>\u202e🍵", 12, 13, True, -3, 2.5, None))
    found.boards.append(BoardRow(*of, 2, "tea", 11, None, False, None, None, 7))
    return found


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    write(tmp_path, some())
    tables = read(tmp_path)
    assert tables.input == some().input
    rows = tables.results.to_pylist()
    recall = [(row["tick"], row["value"]) for row in rows if row["metric"] == "recall"]
    assert recall == [(0, 0.5), (3, 0.25), (4, 0.75)]
    last = {"run": 1, "seed": 0, "histogram": "h", "key": "ключ", "tick": 0, "rank": 0}
    assert rows[-1] == last | {"size": 100, "metric": "found", "value": 1.0}
    runs = tables.runs.to_pylist()
    varied = [(row["run"], row["set.h.epsilon"], row["set.g.tick"]) for row in runs]
    assert varied == [(1, "0.5", None), (2, None, None)]
    boards = tables.boards.to_pylist()
    assert [BoardRow(**row) for row in boards] == some().boards
    assert {path.name for path in tmp_path.iterdir()} == {
        RUNS,
        RESULTS,
        BOARDS,
        REJECTS,
    }


def test_results_of_nothing_are_results(tmp_path: Path) -> None:
    write(tmp_path, Results(some().input))
    tables = read(tmp_path)
    assert (tables.runs.num_rows, tables.results.num_rows, tables.boards.num_rows) == (
        0,
        0,
        0,
    )
    assert {"run", "metric", "value"} <= set(tables.results.column_names)


def test_somebodys_files_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(
        SettingsError, match=r"not empty: choose another directory, or use --force"
    ):
        prepare(tmp_path, force=False)
    prepare(tmp_path, force=True)
    write(tmp_path, some())
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    prepare(tmp_path / "new" / "deep", force=False)
    assert (tmp_path / "new" / "deep").is_dir()


def test_a_file_in_the_place_of_the_directory_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(
            SettingsError, match="--report .*: (File exists|Not a directory)"
        ):
            prepare(place, force=True)


@pytest.mark.parametrize("missing", ["pyarrow", "matplotlib", "jinja2"])
def test_a_missing_package_is_named(
    missing: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == missing else object()
    )
    message = rf"--report needs {missing}: install quietcount\[replay\]"
    with pytest.raises(SettingsError, match=message):
        prepare(tmp_path / "new", force=False)
    assert not (tmp_path / "new").exists()


def test_another_directory_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="not a results directory"):
        read(tmp_path)
    write(tmp_path, some())
    (tmp_path / RESULTS).write_bytes(b"PAR1 and then nothing")
    with pytest.raises(SettingsError, match="not a results directory"):
        read(tmp_path)
