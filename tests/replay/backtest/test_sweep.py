"""A sweep gives each run what it would have alone; the same input gives the same files; Ctrl-C leaves whole ones."""

import random
import signal
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.replay.backtest.backtests import (
    KEY,
    LABELS,
    Interrupted,
    backtest,
    events,
    lines,
    numbers,
    runs_in,
    text_of,
)
from tests.replay.site import T0, Patch, Printed, run_replay, settings_of
from tests.worker.harness import known, unk
from workers.replay.backtest import sweep
from workers.replay.backtest.grid import Run
from workers.replay.backtest.results import (
    BOARDS,
    REJECTS,
    RESULTS,
    RUNS,
    Results,
    Series,
    read,
)
from workers.replay.backtest.sweep import Backtest, Pool, Thinned
from workers.replay.offline import Summary
from workers.replay.sources import JsonLines
from workers.runtime.errors import StateRefused
from workers.settings.settings import Settings

VARIES = (
    "items.epsilon=2,20",
    "items.max_items=1,3",
    "items.tick=1s,3s",
    "items.horizon=9,64",
)


def told(series: list[Series], run: int, seed: int) -> list[tuple[object, ...]]:
    return [
        (
            one.key,
            one.metric,
            one.rank,
            one.size,
            one.ticks.tolist(),
            one.values.tolist(),
        )
        for one in series
        if (one.run, one.seed) == (run, seed)
    ]


@pytest.mark.slow
def test_a_run_of_a_sweep_is_as_the_run_alone(tmp_path: Path) -> None:
    """Columns, counts and boards that are shared must not show in any figure: 16 combinations, of 4 ticks and epochs and 2 bounds."""
    some = events(1_500, seconds=20)
    settings = settings_of(tmp_path, [unk(keys="public")])
    together = backtest(settings, tmp_path, some, *VARIES, seeds=2)
    assert len(together.runs) == 32
    for run in (1, 6, 11, 16):
        (row,) = [row for row in together.runs if row.run == run and row.seed == 1]
        varies = [f"{name}={value}" for name, value in row.varied.items()]
        alone = backtest(settings, tmp_path, some, *varies, seeds=2)
        assert told(alone.series, 1, 1) == told(together.series, run, 1)
        assert alone.runs[1].ticks == row.ticks


#: Histograms of the same ticks, epochs and stream keys that each differ from the first in what they count.
VIEWS = (
    unk("path", items="path"),
    unk("status", items="status"),
    unk("by-shop", items="path", key="shop"),
    unk("errors", items="path", where=[{"field": "status", "in": ["404"]}]),
    unk("amounts", items="path", count="amount", max_count=3),
    unk("bounded", items="pages", max_items=1),
    known("latency", items="path", domain=["/a", "/b", "/z"]),
    unk("numbers", mechanism="known_base", items="n", buckets=[0, 10, 20]),
)


SEEDS = 3


def visits(number: int) -> list[dict[str, object]]:
    rng = random.Random(3)
    pages = ["/a", "/b", "/c", "/d", "/e", "/f"]
    return [
        {
            "key": rng.choice("ab"),
            "shop": rng.choice("xyz"),
            "path": rng.choices(pages, weights=[6, 5, 4, 3, 2, 1])[0],
            "pages": rng.sample(pages, 3),
            "status": rng.choice(["200", "200", "301", "404"]),
            "amount": rng.randrange(1, 9),
            "n": rng.randrange(30),
            "ts": T0 + i * 20,
        }
        for i in range(number)
    ]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Results]:
    directory = tmp_path_factory.mktemp("alone")
    found = {}
    for one in VIEWS:
        settings = settings_of(directory, [one])
        found[str(one["name"])] = backtest(
            settings, directory, visits(1_000), seeds=SEEDS
        )
    return found


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_a_histogram_among_others_is_measured_as_alone(
    processes: int, alone: dict[str, Results], tmp_path: Path
) -> None:
    """Equal ticks and epochs do not make equal counts: `status` was once held against those of `path`."""
    settings = settings_of(tmp_path, VIEWS)
    runs = runs_in(settings, tmp_path, seeds=SEEDS)
    found = measured_by(processes, runs, settings, visits(1_000))
    for number, (name, own) in enumerate(alone.items(), start=1):
        for seed in range(SEEDS):
            assert told(found.series, number, seed) == told(own.series, 1, seed), (
                name,
                seed,
            )
        boards = [replace(row, run=1) for row in found.boards if row.run == number]
        assert boards == own.boards
        rows = [replace(row, run=1) for row in found.runs if row.run == number]
        assert rows == own.runs


def quiet(summary: Summary) -> None: ...


def measured_by(
    processes: int,
    runs: list[Run],
    settings: Settings,
    some: list[dict[str, object]],
    kind: type[JsonLines] = JsonLines,
) -> Results:
    source = lines(settings, text_of(some), kind)
    if processes == 1:
        one = Backtest(runs, KEY, 5)
        return one.results(one.run(settings, source, None, quiet), "line")
    with closing(Pool(runs, KEY, 5, processes)) as pool:
        return pool.results(pool.run(settings, source, None, quiet), "line")


@pytest.mark.slow
@pytest.mark.usefixtures("no_report")
@pytest.mark.parametrize(
    "vary", ["buckets=[0,10],[0,5,10]", "mechanism=known_base,unk_base"]
)
def test_fields_of_combinations_are_read(vary: str, tmp_path: Path) -> None:
    """Buckets that only `--vary` names, or numbers without buckets, are not in the settings file's shape of an event."""
    (tmp_path / "in.jsonl").write_bytes(text_of(visits(500)))
    own = unk("known", mechanism="known_base", items="n", buckets=[0, 10])

    def measured(
        histogram: dict[str, object], name: str, *more: str
    ) -> list[dict[str, object]]:
        settings_of(tmp_path, [histogram])
        assert run_replay(tmp_path, "--report", tmp_path / name, *more) == 0
        rows = read(tmp_path / name).results.to_pylist()
        last = max(row["run"] for row in rows)
        return [row | {"run": 0} for row in rows if row["run"] == last]

    second = unk("known", items="n")
    if vary.startswith("buckets"):
        second = own | {"buckets": [0, 5, 10]}
    assert measured(own, "together", "--vary", vary) == measured(second, "alone")


@pytest.mark.slow
@pytest.mark.usefixtures("no_report")
def test_the_snapshots_of_a_backtest_are_those_of_a_plain_replay(
    tmp_path: Path,
) -> None:
    """The first seed is the noise that `replay` shows; what is measured is what is published."""
    out = tmp_path / "plain.jsonl", tmp_path / "backtest.jsonl"
    (tmp_path / "in.jsonl").write_bytes(text_of(events(1_500, seconds=20)))
    of: dict[str, object] = {"domain": LABELS[:6], "horizon": 100}
    mirrored = [
        unk("items"),
        known("known", domain=LABELS[:5]),
        unk("shots", mechanism="positive_gauss"),
        unk("sparse", mechanism="sparse_gumb", top_k=2, switches=3, **of),
        unk("most", mechanism="bounded_max", query="max", c_max=1000, **of),
    ]
    settings_of(tmp_path, mirrored)
    assert run_replay(tmp_path, "--snapshots", out[0]) == 0
    report = ("--report", tmp_path / "r", "--seeds", 2)
    assert run_replay(tmp_path, "--snapshots", out[1], *report) == 0
    assert out[0].read_bytes() == out[1].read_bytes() and out[0].stat().st_size > 10_000


def test_seeds_differ_in_noise_and_in_nothing_else(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, [unk(keys=["a"])])
    results = backtest(settings, tmp_path, events(1_000, keys="a"), seeds=3)
    errors = [numbers(results, "error_mean", seed=seed) for seed in range(3)]
    assert errors[0] != errors[1] != errors[2] != errors[0]
    assert numbers(results, "lost", seed=0) == numbers(results, "lost", seed=2)
    assert [(row.run, row.seed) for row in results.runs] == [(1, 0), (1, 1), (1, 2)]
    assert len({row.ticks for row in results.runs}) == 1


def test_users_are_measured_against_all_that_they_did(tmp_path: Path) -> None:
    some = [
        event | {"user": f"u{i % 50}"}
        for i, event in enumerate(events(2_000, seconds=20))
    ]
    settings = settings_of(tmp_path, [unk(max_items_per_user=2)], user="user")
    varies = (
        "max_items_per_user=2,20",
        "horizon=50,unbounded",
        "start=2026-01-01T00:00:00Z",
    )
    results = backtest(settings, tmp_path, some, *varies)
    lost = [numbers(results, "lost", run=run)[0] for run in (1, 2, 3, 4)]
    assert min(lost[0], lost[1]) > 0.8 and max(lost[2], lost[3]) < 0.7


@pytest.mark.parametrize(
    "further",
    [{"split": 2}, {"mechanism": "misra_gries", "release": "pamg", "size": 8}],
    ids=["parts", "sketches"],
)
def test_parts_and_sketches_are_measured_against_exact_counts_of_their_tick(
    further: dict[str, Any], tmp_path: Path
) -> None:
    """Unbounded counts are released last in a tick, and exact ones never made from sketches; `lost` has both."""
    lost = []
    none: dict[str, Any] = {}
    for changes in (none, further):
        settings = settings_of(tmp_path, [unk(**changes)])
        results = backtest(settings, tmp_path, events(500))
        lost.append(numbers(results, "lost"))
    assert lost[0] == lost[1] and len(lost[0]) > 10


@pytest.mark.slow
@pytest.mark.usefixtures("no_report")
def test_two_runs_give_the_same_files(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(
        b"no event\n" + text_of(events(800, seconds=10))
    )
    settings_of(tmp_path)
    files = []
    for name in ("one", "two"):
        place = tmp_path / name
        assert run_replay(tmp_path, "--vary", "epsilon=2,20", "--report", place) == 0
        paths = [path for path in place.rglob("*") if path.is_file()]
        files.append(
            {str(path.relative_to(place)): path.read_bytes() for path in paths}
        )
    assert {RUNS, RESULTS, BOARDS, REJECTS} <= files[0].keys()
    assert files[0] == files[1]
    found = read(tmp_path / "one").input
    assert found.complete and found.counts == {"not JSON": 1}
    assert found.first == [(0, 1, "not JSON")]


@pytest.fixture
def no_report(monkeypatch: Patch) -> None:
    """Pictures take seconds; that they are the same twice is tested with them."""
    monkeypatch.setattr(
        "workers.replay.report.report.write_report", lambda directory: []
    )


@pytest.mark.slow
@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_leaves_the_ticks_that_are_whole(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr("workers.replay.sources.CHUNK_BYTES", 10_000)
    some = events(4_000)
    settings = settings_of(
        tmp_path, [unk(keys="public"), unk("wide", keys="public", tick="7s")]
    )
    runs = Backtest(runs_in(settings, tmp_path, "items.max_items=1,20"), KEY, 5)
    source = lines(settings, text_of(some), Interrupted)
    summary = runs.run(settings, source, None, quiet)
    found = runs.results(summary, "line")
    whole = backtest(settings, tmp_path, some, "items.max_items=1,20")
    assert summary.partial and not found.input.complete and not found.runs[0].complete
    for run in (1, 2):
        part = numbers(found, "lost", run=run)
        all_ = numbers(whole, "lost", run=run)
        assert 2 < len(part) < len(all_)
        assert all(value == all_[tick] for tick, value in part.items() if tick)


@pytest.mark.slow
@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_within_a_long_batch_ends_at_the_next_whole_tick(tmp_path: Path) -> None:
    some = events(4_000)
    settings = settings_of(tmp_path, [unk(keys="public")])
    runs = Backtest(runs_in(settings, tmp_path, "max_items=1,2,3"), KEY, 5)
    calls = 0

    def progress(summary: Summary) -> None:
        nonlocal calls
        calls += 1
        if calls == 4 * 11 + 2:  # after a tick of the second of four lanes
            signal.raise_signal(signal.SIGINT)

    summary = runs.run(settings, lines(settings, text_of(some)), None, progress)
    found = runs.results(summary, "line")
    whole = backtest(settings, tmp_path, some, "max_items=1,2,3")
    assert summary.partial and [run.ticks for run in found.runs] == [12, 12, 12]
    for run in (1, 2, 3):
        part = numbers(found, "lost", run=run)
        all_ = numbers(whole, "lost", run=run)
        assert len(part) == 13 and all(
            value == all_[tick] for tick, value in part.items() if tick
        )


@pytest.mark.slow
@pytest.mark.usefixtures("ctrl_c")
def test_processes_that_ctrl_c_ends_agree_with_one(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr("workers.replay.sources.CHUNK_BYTES", 10_000)
    settings = settings_of(tmp_path, [unk(), known("wide", tick="7s", keys=["a", "b"])])
    varies = "items.epsilon=2,20", "items.max_items=1,3", "wide.delta=1e-6,1e-3"
    runs = runs_in(settings, tmp_path, *varies, seeds=2)
    found, expected = (
        measured_by(processes, runs, settings, events(3_000), Interrupted)
        for processes in (3, 1)
    )
    assert (found.input, found.runs) == (expected.input, expected.runs)
    assert found.boards == expected.boards
    assert not found.input.complete and len(found.runs) == 12
    for row in expected.runs:
        assert told(found.series, row.run, row.seed) == told(
            expected.series, row.run, row.seed
        )


def test_what_goes_wrong_in_a_process_is_told_here(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, [unk(tick="1ms")])
    times = (978_307_200_000, T0)
    far: list[dict[str, object]] = [
        {"key": "a", "items": ["x"], "ts": ts} for ts in times
    ]
    runs = runs_in(settings, tmp_path, "epsilon=1,2,3,4")
    with pytest.raises(StateRefused, match="are all times of the events right"):
        measured_by(2, runs, settings, far)


def test_thinned_ticks_are_multiples_of_a_power_of_two() -> None:
    thinned = Thinned(8)
    kept = [tick for tick in range(1_000_003, 1_000_503) if thinned.due(tick)]
    assert thinned.ticks <= set(kept) and 4 <= len(thinned.ticks) <= 8
    stride = np.gcd.reduce(sorted(thinned.ticks))
    assert stride & (stride - 1) == 0
    due = [tick for tick in range(1_000_003, 1_000_503) if tick % stride == 0]
    assert sorted(thinned.ticks) == due


def test_measurements_take_bounded_memory(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(sweep, "TICKS_MEASURED", 8)
    settings = settings_of(tmp_path, [unk(keys=["a"])])
    results = backtest(settings, tmp_path, events(2_000, seconds=101, keys="a"))
    ticks = sorted(numbers(results, "lost").keys() - {0})
    assert 5 <= len(ticks) <= 9 and ticks[-1] == T0 // 1_000 + 101
    assert numbers(results, "measured") == {0: len(ticks)}


def test_an_input_without_events_is_one_line(tmp_path: Path, capsys: Printed) -> None:
    (tmp_path / "in.jsonl").write_bytes(b"")
    settings_of(tmp_path)
    assert run_replay(tmp_path, "--report", tmp_path / "r") == 2
    assert "no events, so nothing to measure" in capsys.readouterr().err
    assert not list((tmp_path / "r").iterdir())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--vary", "epsilon=1"], "go with --report DIR"),
        (["--report", "r", "--vary", "nothing=1"], "unknown setting"),
        (
            ["--report", "r", "--vary", "epsilon=1", "--snapshots", "s"],
            "cannot be used with",
        ),
        (["--report", "."], "not empty"),
        (["--report", "r", "--seeds", "0"], "--seeds"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_read(
    options: list[str], words: str, tmp_path: Path, monkeypatch: Patch, capsys: Printed
) -> None:
    settings_of(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert run_replay(tmp_path, *options, source=Path("missing.jsonl")) == 2
    assert words in capsys.readouterr().err
