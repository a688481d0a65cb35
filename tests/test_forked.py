"""Forked processes are as those that Python starts: status, streams, signals; and starters differ."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT, forked
from tests.forked import QUIETCOUNT, launch, run
from tests.worker.harness import toml, unk, until

pytestmark = pytest.mark.slow


@pytest.fixture
def waiting(tmp_path: Path) -> Path:
    """Settings of a worker that waits for a Kafka that is not there."""
    (tmp_path / "key").write_bytes(bytes(range(32)))
    (tmp_path / "key").chmod(0o600)
    path = tmp_path / "settings.toml"
    document = {
        "worker": {"name": "forked", "data_dir": "data", "key_file": "key"},
        "kafka": {"bootstrap": "127.0.0.1:1"},
        "events": {
            "topic": "events",
            "key": "key",
            "items": "items",
            "timestamp": "ts",
        },
        "privacy": {"unit": "event"},
        "histogram": [unk()],
    }
    path.write_text(toml(document))
    return path


@pytest.mark.parametrize(
    "arguments", [["--version"], ["key", "new"], ["topics", "-c", "none.toml"]]
)
def test_status_and_streams_are_those_of_a_process_that_python_starts(
    arguments: list[str],
) -> None:
    """Or what is tested of refusals would not be what operators see."""
    forked_one = run(arguments, 60)
    command = [sys.executable, *QUIETCOUNT, *arguments]
    python = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    one, other = ((p.returncode, p.stdout, p.stderr) for p in (forked_one, python))
    assert one == other


def test_signals_reach_the_process_and_its_end_is_told(
    waiting: Path, tmp_path: Path
) -> None:
    """A kill that missed would leave a test green in which nothing was killed."""
    statuses = {signal.SIGKILL: -9, signal.SIGTERM: 0}
    logs = [tmp_path / number.name for number in statuses]
    processes = []
    for path in logs:
        with path.open("ab") as log:
            processes.append(launch(["run", "-c", str(waiting)], log, log))
    try:
        told = "Kafka is away"
        until(
            lambda: all(told in log.read_text() for log in logs),
            "they wait for Kafka",
            60,
        )
        for process, (number, status) in zip(processes, statuses.items(), strict=True):
            assert process.poll() is None
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.05)
            process.send_signal(number)
            assert process.wait(60) == status and process.poll() == status
    finally:
        for process in processes:
            process.kill()


def test_one_process_has_another_starter_than_the_next(
    waiting: Path, tmp_path: Path
) -> None:
    """Children of one have one seed of `hash`: what depended on the order of a set would be the same in all of them."""
    with (tmp_path / "log").open("ab") as log:
        commands = ("run", "run", "topics")
        processes = [launch([one, "-c", str(waiting)], log, log) for one in commands]
    parents = ["a", "b", "a"]
    if forked.POSSIBLE:
        parents = [_parent(process.pid) for process in processes]
    for process in processes:
        process.kill()
        assert process.wait(60) == -9
    assert parents[0] == parents[2] != parents[1]


def _parent(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
