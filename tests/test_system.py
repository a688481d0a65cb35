"""What a machine lacks is installed where this user may, or named with the command that installs it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT, system
from tests.system import Missing, java, provide

Patch = pytest.MonkeyPatch
Printed = pytest.CaptureFixture[str]


class Machine:
    """A machine whose only programs are scripts that note how they were called."""

    def __init__(self, directory: Path, monkeypatch: Patch) -> None:
        self._programs = directory / "bin"
        self._programs.mkdir()
        self._calls = directory / "calls"
        self.wanted = self._programs / "wanted"
        monkeypatch.setenv("PATH", str(self._programs))

    def has(self, name: str, script: str = "") -> None:
        program = self._programs / name
        note = f'echo "{name} $*" >> "{self._calls}"'
        program.write_text(f"#!/bin/sh\n{note}\n{script}\n")
        program.chmod(0o755)

    def calls(self) -> list[str]:
        return self._calls.read_text().splitlines() if self._calls.exists() else []

    def need(self) -> None:
        if not self.wanted.exists():
            raise Missing("Wanted is not installed", "wanted")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: Patch) -> Machine:
    return Machine(tmp_path, monkeypatch)


@pytest.fixture
def user(monkeypatch: Patch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1_000)


@pytest.fixture
def root(monkeypatch: Patch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


@pytest.mark.usefixtures("root")
def test_root_gets_what_is_missing_after_one_line(
    machine: Machine, capfd: Printed
) -> None:
    machine.has("apt-get", f': > "{machine.wanted}"')
    assert provide(machine.need) is None
    assert capfd.readouterr().err == "Installing wanted by apt-get (once) ...\n"
    update, install = machine.calls()
    assert update.endswith(" update") and install.endswith(" wanted")
    assert provide(machine.need) is None
    assert len(machine.calls()) == 2


@pytest.mark.usefixtures("user")
def test_a_user_gets_it_where_sudo_asks_for_no_password(machine: Machine) -> None:
    machine.has("apt-get")
    machine.has("sudo", f': > "{machine.wanted}"')
    assert provide(machine.need) is None
    assert machine.calls()[0] == "sudo -n true"


@pytest.mark.usefixtures("user")
@pytest.mark.parametrize(
    ("sudo", "reason", "command"),
    [
        (False, "there is no sudo", "su -c 'apt-get update && apt-get install"),
        (
            True,
            "sudo asks for a password",
            "sudo apt-get update && sudo apt-get install",
        ),
    ],
)
def test_a_user_without_rights_is_told_in_one_line_what_to_type(
    machine: Machine, capfd: Printed, sudo: bool, reason: str, command: str
) -> None:
    machine.has("apt-get")
    if sudo:
        machine.has("sudo", "exit 1")
    line = provide(machine.need)
    assert line is not None and "\n" not in line
    assert line.startswith("Wanted is not installed; apt-get needs root, and ")
    assert reason in line and f"Type: {command}" in line and "wanted" in line
    assert capfd.readouterr().err == ""
    assert not any(call.startswith("apt-get") for call in machine.calls())


@pytest.mark.usefixtures("root")
def test_where_apt_get_fails_its_own_error_is_told(machine: Machine) -> None:
    machine.has("apt-get", 'echo "E: Unable to locate package wanted"; exit 100')
    line = provide(machine.need)
    assert (
        line is not None
        and "apt-get failed: E: Unable to locate package wanted" in line
    )


@pytest.mark.usefixtures("root")
def test_without_apt_get_the_program_is_named(machine: Machine) -> None:
    line = provide(machine.need)
    assert line is not None and "package manager: wanted" in line


@pytest.mark.parametrize(
    ("version", "good"),
    [("1.8.0_392", False), ("11.0.2", False), ("17.0.15", True), ("25", True)],
)
def test_a_java_that_is_too_old_for_kafka_is_missing(
    machine: Machine, version: str, good: bool
) -> None:
    machine.has("java", f"echo 'openjdk version \"{version}\" 2025-04-15' >&2")
    java.cache_clear()
    try:
        if good:
            assert java() == str(machine.wanted.with_name("java"))
        else:
            with pytest.raises(Missing, match="not Java 17 or newer"):
                java()
    finally:
        java.cache_clear()


def test_a_browser_that_only_asks_for_another_package_is_missing(
    machine: Machine, monkeypatch: Patch
) -> None:
    """As Ubuntu's does, which asks for a snap."""
    monkeypatch.delenv("QUIETCOUNT_CHROMIUM", raising=False)
    machine.has("chromium-browser", "exit 1")
    system.chromium.cache_clear()
    with pytest.raises(Missing, match="Chromium is not installed"):
        system.chromium()


#: What starts a program in a test -> the fixture that provides the program.
STARTS = {
    r"\b(own|local|secure|oauth|proxied)_broker\(": "own_kafka",
    r"\b(three_brokers\(|cluster\(\d)": "own_kafka",
    r"\bregistry_server\(": "registry_program",
    r"\bwith browser\(": "chrome",
}


def test_tests_that_start_a_program_ask_for_it_by_fixture() -> None:
    """Without the fixture they would fail where it is missing, instead of being counted."""
    forgotten = []
    for path in (ROOT / "tests").rglob("*.py"):
        if not path.name.startswith(("test_", "conftest")):
            continue
        text = path.read_text()
        for start, fixture in STARTS.items():
            if re.search(start, text) and fixture not in text:
                forgotten.append(f"{path.relative_to(ROOT)}: {fixture}")
    assert forgotten == []


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["0", "2"])
def test_tests_that_lack_something_are_counted_at_the_end_and_the_others_run(
    tmp_path: Path, processes: str
) -> None:
    """Nothing is installed without `--install`; no test fails for what is absent, and the run does not pass either."""
    files = [
        "tests/kafka/test_tls.py",
        "tests/privacy/plan/test_promise.py",
        "tests/test_near.py",
    ]
    options = ["-n", processes, "-p", "no:cacheprovider", "-k", "near or sheet or tls"]
    # Kafka's jars are in the user's cache, if some run has fetched them.
    environment = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *files],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    *before, counts, reasons, command = done.stdout.splitlines()
    assert "6 passed" in before[-1] and "failed" not in before[-1]
    assert counts == (
        "Tests that did not run: 15; 14 for want of a Kafka of their own, 1 for want of a browser."
    )
    for program in ("Chromium", "Java", "Maven"):
        assert f"{program} is not installed" in reasons
    assert command.endswith("Chromium, Maven, Java 17")
    assert "Traceback" not in done.stdout + done.stderr
