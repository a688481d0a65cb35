"""A histogram of numbers in a backtest: all its buckets, in order, and how far its quantiles were off."""

import random
import re
from html import unescape
from pathlib import Path

import pytest

from tests import ROOT, numbers
from tests.replay.backtest.backtests import text_of
from tests.replay.site import run_replay
from workers.mechanisms.config.buckets import Buckets
from workers.pipeline.snapshots import Numeric
from workers.replay.backtest import results
from workers.replay.backtest.results import BoardRow, Outcome
from workers.replay.report.runs import (
    Measured,
    buckets_of,
    interval_holds,
    measured,
    numeric_of,
    quantile_table,
)
from workers.settings.settings import load

EXAMPLE = ROOT / "examples" / "latencies.toml"
START = 1_794_787_200_000  # 2026-11-16
BUCKETS = Buckets((0, 10, 50))
NUMERIC = Numeric(BUCKETS, (0.5,))


def row(label: str, exact: int, released: int | None) -> BoardRow:
    return BoardRow(
        1, 0, "h", "web", 1, 60_000, 1, label, exact, exact, True, released, 5.0, None
    )


def test_a_board_is_put_in_the_order_of_its_buckets() -> None:
    found = buckets_of(
        NUMERIC, [row("[10,50)", 9, 11), row("<0", 2, -1), row(">=50", 1, 3)]
    )
    assert (found.exact.tolist(), found.sd) == ([2, 0, 9, 1], 5.0)
    assert found.published.tolist() == [-1, 0, 11, 3]


@pytest.mark.parametrize(
    ("truth", "low", "high", "expected"),
    [
        (5.0, 4.0, 6.0, True),
        (5.0, 5.5, 6.0, False),
        (5.0, None, 4.5, False),
        (5.0, 4.5, None, True),
        (None, None, 3.0, False),
        (None, 40.0, None, True),
    ],
)
def test_an_open_interval_holds_what_lies_beyond(
    truth: float | None, low: float | None, high: float | None, expected: bool
) -> None:
    exact = {"value": truth, "bucket": ">=50" if truth is None else "[0,10)"}
    assert interval_holds(NUMERIC, exact, {"low": low, "high": high}) is expected


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the example's settings, over 4,000 events of two services in 6 ticks, with 8 seeds."""
    directory = site(tmp_path_factory.mktemp("latencies"), EXAMPLE.read_text())
    buckets = load(directory / "settings.toml").histograms[0].buckets
    assert buckets is not None
    rng = random.Random(1)
    events = []
    for i in range(4_000):
        value = numbers.number_in(buckets, min(24, max(1, round(rng.gauss(12, 3)))))
        service = rng.choice(["web", "api"])
        events.append({"service": service, "latency_ms": value, "ts": START + i * 90})
    (directory / "in.jsonl").write_bytes(text_of(events))
    out = directory / "out"
    assert run_replay(directory, "--report", out, "--seeds", 8) == 0
    return out


def site(directory: Path, settings: str) -> Path:
    (directory / "settings.toml").write_text(settings)
    (directory / "noise.key").write_bytes(bytes(range(32)))
    (directory / "noise.key").chmod(0o600)
    return directory


def numeric_run(report: Path) -> tuple[Measured, Outcome, Numeric]:
    [data] = measured(results.read(report))
    [run] = data.runs
    numeric = numeric_of(run)
    assert numeric is not None
    return data, run, numeric


@pytest.mark.slow
def test_all_buckets_are_on_the_boards_and_drawn(report: Path) -> None:
    data, run, numeric = numeric_run(report)
    assert numeric.quantiles == (0.5, 0.95)
    for ticks in data.board(run).values():
        for rows in ticks.values():
            assert {one.label for one in rows} == set(numeric.labels)
            assert all(one.released is not None for one in rows)
    pictures = {path.name for path in (report / "plots").glob("*.png")}
    assert {"latency-numbers_1.png", "latency-numbers_2.png"} <= pictures
    assert not [name for name in pictures if "board" in name]


@pytest.mark.slow
def test_it_says_how_far_the_quantiles_were_off(report: Path) -> None:
    """Each row against the boards themselves; 95 of 100 intervals hold, as far as that can be seen here."""
    data, run, numeric = numeric_run(report)
    table = quantile_table(data, run, numeric)
    assert [line[0] for line in table.rows] == ["0.5", "0.95"]
    boards = {(one.seed, one.key, one.tick) for one in data.boards}
    for line in table.rows:
        assert line[1] == f"{len(boards)}"
        mean, most, hold = (float((cell or "nan").split()[0]) for cell in line[3:])
        assert 0 < mean < most
        assert 80 <= hold <= 100
    page = (report / "report.html").read_text()
    text = " ".join(re.sub(r"<[^>]+>", " ", page).split())
    assert "Quantiles of run 1" in text
    assert "interval holds the exact one" in text
    # The table of a board, which says the picture in words, is in the order of the buckets.
    labels = re.findall(r"<bdi>(&lt;1|\[[^<]*\)|&gt;=10000)</bdi>", page)
    shown = tuple(map(unescape, labels[: len(numeric.labels)]))
    assert shown == tuple(numeric.labels)
