"""No core dump holds the key: not of commands that read it, nor of their forked processes."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.settings.test_settings import GOOD
from tests.worker.harness import Site, unk, until
from workers.cli import CORE_DUMPS_ON
from workers.runtime.process import cores

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")

# `quietcount` that reports, at every key file it opens and in every child, whether it may be
# dumped.
TELLING = """\
import ctypes, os, resource, sys
PR_GET_DUMPABLE = 3

def tell(what):
    may = ctypes.CDLL(None).prctl(PR_GET_DUMPABLE, 0, 0, 0, 0)
    print(f"{what}: dumpable {may}, limits {resource.getrlimit(resource.RLIMIT_CORE)}", file=sys.stderr, flush=True)

def hook(event, arguments):
    if event == "open" and str(arguments[0]).endswith("noise.key"):
        tell("key")

resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)
sys.addaudithook(hook)
os.register_at_fork(after_in_child=lambda: tell("child"))
from workers.cli import main
main(sys.argv[1:])
"""
OFF = "dumpable 0, limits (0, 0)"
SETTINGS = GOOD.replace("secrets/noise.key", "noise.key")
SETTINGS = SETTINGS.replace('key = "shop"', 'key = "shop"\ntimestamp = "ts"')


def told(*arguments: str) -> list[str]:
    """Return a command's reports, and its other lines on stderr."""
    command = [sys.executable, "-c", TELLING, *arguments]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


@pytest.mark.slow
def test_commands_turn_core_dumps_off_before_they_read_the_key(tmp_path: Path) -> None:
    """A resource limit is not enough: a piped dump ignores it."""
    file = str(tmp_path / "noise.key")
    assert told("key", "new", file) == [f"key: {OFF}"]
    assert told("key", "fingerprint", file) == [f"key: {OFF}"]


@pytest.mark.slow
def test_processes_of_a_backtest_cannot_be_dumped_either(tmp_path: Path) -> None:
    """They inherit the key, so they must inherit this too."""
    (tmp_path / "orders.toml").write_text(SETTINGS)
    told("key", "new", str(tmp_path / "noise.key"))
    times = range(1_795_300_000_000, 1_795_300_100_000, 1_000)
    content = [
        json.dumps({"shop": "s1", "products": ["p"], "ts": at}) + "\n" for at in times
    ]
    (tmp_path / "events.jsonl").write_text("".join(content))
    names = "orders.toml", "events.jsonl", "report"
    settings, events, report = (str(tmp_path / name) for name in names)
    arguments = ["--input", events, "--report", report, "--seeds", "4"]
    lines = told("replay", "-c", settings, *arguments)
    of_key = [line for line in lines if line.startswith("key: ")]
    assert set(of_key) == {f"key: {OFF}"}
    # A child may write in the middle of a line of its parent's.
    said = "\n".join(lines)
    number = min(cores(), 2) if cores() > 1 else 0
    assert said.count("child: ") == said.count(f"child: {OFF}") == number, said


def test_debug_leaves_core_dumps_on_and_says_so(tmp_path: Path) -> None:
    """Debugging may need a dump, and the user must know its content."""
    first, key = told("--debug", "key", "new", str(tmp_path / "noise.key"))
    assert first == f"quietcount: {CORE_DUMPS_ON}"
    # The initial value: the most this process may allow.
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    assert key == f"key: dumpable 1, limits {(hard, hard)}"


def test_a_running_worker_cannot_be_dumped(bootstrap: str, tmp_path: Path) -> None:
    """Its own figures continue: process metrics are read from /proc."""
    site = Site(bootstrap, tmp_path, [unk()], partitions=1)
    (tmp_path / "key").rename(tmp_path / "noise.key")
    site.set("worker", key_file="noise.key")
    with site.worker(runner=("-c", TELLING)) as worker:
        until(
            lambda: "took over" in worker.output() or not worker.running(),
            "it is at work",
        )
        limits = Path(f"/proc/{worker.process.pid}/limits").read_text()
        [core] = [
            line
            for line in limits.splitlines()
            if line.startswith("Max core file size")
        ]
        assert core.split()[4:6] == ["0", "0"]
        assert f"key: {OFF}" in worker.output().splitlines()
        assert worker.stop() == 0
