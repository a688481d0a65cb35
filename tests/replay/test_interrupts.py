"""Ctrl-C and SIGTERM: what was found is written whole; who insists ends it at once; where snapshots go is never replaced by a file."""

import os
import signal
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT
from tests.replay.backtest.backtests import (
    KEY,
    Interrupted,
    events,
    lines,
    runs_in,
    text_of,
)
from tests.replay.site import Patch, Printed, run_replay, settings_of
from tests.worker.harness import command
from workers.replay import interrupts
from workers.replay.backtest import results
from workers.replay.backtest.results import Results, read
from workers.replay.backtest.sweep import Pool
from workers.replay.interrupts import HANDLED_SIGNALS, Interrupts
from workers.replay.source import EventBatch
from workers.replay.sources import JsonLines

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def heeded() -> Iterator[None]:
    """Signals are handled as usual, also in a test run in the background, which ignores Ctrl-C."""
    before = {
        number: signal.signal(number, usual)
        for number, usual in HANDLED_SIGNALS.items()
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def later(monkeypatch: Patch) -> list[float]:
    clock = [0.0]
    monkeypatch.setattr(interrupts, "monotonic", lambda: clock[0])
    return clock


@pytest.fixture
def site(tmp_path: Path, monkeypatch: Patch) -> Path:
    monkeypatch.setattr("workers.replay.sources.CHUNK_BYTES", 10_000)

    def report(directory: Path) -> list[str]:
        (directory / "report.html").touch()
        return []

    monkeypatch.setattr("workers.replay.report.report.write_report", report)
    (tmp_path / "in.jsonl").write_bytes(text_of(events(4_000)))
    settings_of(tmp_path)
    return tmp_path


def test_within_a_second_it_is_one_press_and_later_it_is_meant(
    later: list[float],
) -> None:
    with Interrupts() as outer, Interrupts() as inner:
        assert inner is outer
        with pytest.raises(KeyboardInterrupt), inner.deferred():  # noqa: PT012 (raised at its end)
            signal.raise_signal(signal.SIGINT)
            later[0] = 0.9
            signal.raise_signal(signal.SIGINT)
        assert inner.pressed is signal.SIGINT and not inner.insisted
        inner.defer_rest()
        signal.raise_signal(signal.SIGINT)
        later[0] = 1.1
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        assert inner.insisted and inner.pressed is signal.SIGINT
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_another_thread_leaves_signals_as_they_are() -> None:
    found: list[object] = []

    def look() -> None:
        with Interrupts():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_a_signal_leaves_results_of_the_ticks_that_are_whole(
    number: signal.Signals, code: int, site: Path, monkeypatch: Patch, capsys: Printed
) -> None:
    """`timeout` and Kubernetes send SIGTERM."""
    monkeypatch.setattr(Interrupted, "number", number)
    monkeypatch.setattr("workers.replay.sources.JsonLines", Interrupted)
    directory = site / "r"
    assert run_replay(site, "--report", directory, "--vary", "epsilon=1,2") == code
    assert (
        "the results cover the ticks that were complete by then"
        in capsys.readouterr().err
    )
    tables = read(directory)
    assert not tables.input.complete and 0 < tables.input.events < 4_000
    assert set(tables.runs.column("complete").to_pylist()) == {False}
    assert tables.results.num_rows > 100
    assert (directory / "report.html").exists() and not list(directory.glob("*.part"))


def test_ctrl_c_after_the_last_event_loses_nothing(
    site: Path, monkeypatch: Patch
) -> None:
    """All was measured: half a results directory would be the worst of all answers."""
    whole = results.write

    def pressed(directory: Path, found: Results) -> None:
        signal.raise_signal(signal.SIGINT)
        whole(directory, found)

    monkeypatch.setattr("workers.commands.replay.write", pressed)
    directory = site / "r"
    assert run_replay(site, "--report", directory, "--vary", "epsilon=1,2") == 130
    assert read(directory).input.complete and (directory / "report.html").exists()


def test_a_second_signal_ends_a_sweep_and_its_processes(
    tmp_path: Path, later: list[float]
) -> None:
    settings = settings_of(tmp_path)

    class Insisted(JsonLines):
        def batches(self) -> Iterator[EventBatch]:
            for batch in super().batches():
                yield batch
                with pytest.raises(KeyboardInterrupt):
                    signal.raise_signal(signal.SIGINT)
                later[0] = 5.0
                signal.raise_signal(signal.SIGINT)

    pool = Pool(runs_in(settings, tmp_path, "epsilon=1,2,3,4"), KEY, 5, 2)
    children = [child for child, _ in pool._children]
    source = lines(settings, text_of(events(4_000)), Insisted)
    with pytest.raises(KeyboardInterrupt):
        pool.run(settings, source, None, lambda summary: None)
    assert all(child.is_alive() for child in children)  # they heed no signal
    pool.close()
    assert not any(child.is_alive() for child in children)


def test_a_pipe_stays_a_pipe_and_a_full_disk_is_named(
    site: Path, capsys: Printed
) -> None:
    """Run as root, `--snapshots /dev/null` must not put a file in the place of the device."""
    plain = site / "out"
    pipe = site / "pipe"
    full = site / "full"
    assert run_replay(site, "--snapshots", plain) == 0
    os.mkfifo(pipe)
    read_back: list[bytes] = []
    reader = threading.Thread(target=lambda: read_back.append(pipe.read_bytes()))
    reader.start()
    assert run_replay(site, "--snapshots", pipe) == 0
    reader.join()
    assert read_back == [plain.read_bytes()] and stat.S_ISFIFO(pipe.stat().st_mode)
    assert not pipe.with_name("pipe.part").exists()
    full.symlink_to("/dev/full")
    capsys.readouterr()
    assert run_replay(site, "--snapshots", full) == 2
    assert f"--snapshots {full}: No space left on device" in capsys.readouterr().err
    assert stat.S_ISCHR(full.stat().st_mode)


def test_a_directory_is_no_file_for_snapshots(site: Path, capsys: Printed) -> None:
    (site / "in.jsonl").write_bytes(b"")
    assert run_replay(site, "--snapshots", site) == 2
    assert f"--snapshots {site}: Is a directory" in capsys.readouterr().err


@pytest.mark.parametrize("measured", [False, True])
def test_no_events_are_explained(measured: bool, site: Path, capsys: Printed) -> None:
    (site / "in.jsonl").write_bytes(b'{"items":[],"ts":5}\n' * 3)
    more = ["--report", site / "r"] if measured else []
    assert run_replay(site, *more) == (2 if measured else 0)
    errors = capsys.readouterr().err
    assert (
        "3 lines rejected, the first: line 1: missing field 'key'" in errors
    ) is measured
    assert ("line 2: missing field 'key'" in errors) is not measured


def test_the_work_goes_on_when_nobody_reads_what_it_says(tmp_path: Path) -> None:
    """`replay ... 2>&1 | head` ended a sweep of hours with neither a word nor a result."""
    settings_of(tmp_path)
    (tmp_path / "in.jsonl").write_bytes(text_of(events(400)))
    out = tmp_path / "out.jsonl"
    # Python keeps what it could not write, and exits with 120 for it, unless this is set.
    buffered = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    reading, writing = os.pipe()
    os.close(reading)
    files = "--input", str(tmp_path / "in.jsonl"), "--snapshots", str(out)
    given = "replay", "-c", str(tmp_path / "settings.toml"), *files
    done = subprocess.run(
        command(*given),
        cwd=ROOT,
        stdout=writing,
        stderr=writing,
        check=False,
        env=buffered,
    )
    os.close(writing)
    assert done.returncode == 0 and len(out.read_bytes().splitlines()) > 10
