"""What tests, benchmarks and `make` need of the machine beyond Python packages: find it, install it, or say what to type.

    python3 -m tests.system venv DIRECTORY     makes a virtual environment

It imports the standard library only, since `make` runs it before there is an environment.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial

#: The first has no user interface, which took half of a window's processor time.
BROWSERS = (
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
)
#: Debian's names, and others for releases that do not have these: the default Java is a newer one.
JAVA = "openjdk-17-jre-headless"
JAVA_COMPILER = "openjdk-17-jdk-headless"
MAVEN = "maven"
CHROMIUM = "chromium-headless-shell"
_JAVA_VERSION = 17
_DEFAULTS = {
    JAVA: "default-jre-headless",
    JAVA_COMPILER: "default-jdk-headless",
    CHROMIUM: "chromium",
}
#: What other systems call them.
_WORDS = {
    CHROMIUM: "Chromium",
    MAVEN: "Maven",
    JAVA: "Java 17",
    JAVA_COMPILER: "a JDK 17",
}
_INSTALL = ("install", "--yes", "--no-install-recommends")
#: Another apt-get may be running, such as the nightly upgrades.
_LOCK_TIMEOUT_S = 600


class Missing(RuntimeError):
    """This machine lacks a program; `packages` of Debian bring it."""

    def __init__(self, reason: str, *packages: str) -> None:
        super().__init__(reason, *packages)
        self.packages = packages

    def __str__(self) -> str:
        return str(self.args[0])


@cache
def java() -> str:
    """Return the path of a Java that runs Kafka.

    Raises:
        Missing: there is none, or an older one.
    """
    program = shutil.which("java")
    if program is None:
        raise Missing("Java is not installed", JAVA)
    done = subprocess.run(
        [program, "-version"], capture_output=True, text=True, check=False
    )
    version = re.search(r'version "(\d+)', done.stderr)
    if version is None or int(version[1]) < _JAVA_VERSION:
        raise Missing(f"{program} is not Java {_JAVA_VERSION} or newer", JAVA)
    return program


def maven() -> str:
    program = shutil.which("mvn")
    if program is None:
        raise Missing("Maven is not installed", MAVEN)
    return program


@cache
def chromium() -> str:
    """Return the path of a Chromium, or of what QUIETCOUNT_CHROMIUM names.

    Raises:
        Missing: there is none, or only Ubuntu's script that asks for a snap.
    """
    given = os.environ.get("QUIETCOUNT_CHROMIUM")
    for name in [given] if given else BROWSERS:
        program = shutil.which(name)
        if program is not None and _runs(program, "--version"):
            return program
    if given:
        raise Missing(f"QUIETCOUNT_CHROMIUM={given} does not run")
    raise Missing("Chromium is not installed", CHROMIUM)


def playwright_driver() -> None:
    """Find what runs Playwright's driver: it brings a Node.js, which needs a library of the system.

    Raises:
        Missing: it does not start.
    """
    from playwright._impl._driver import compute_driver_executable

    node, _ = compute_driver_executable()
    if not _runs(node, "--version"):
        raise Missing(
            "libatomic, which Playwright needs, is not installed", "libatomic1"
        )


def find_all(*programs: Callable[[], object]) -> None:
    """Find several programs.

    Raises:
        Missing: some are missing; it names all of these.
    """
    missing = _missing(programs)
    if missing:
        packages = [name for each in missing for name in each.packages]
        raise Missing("; ".join(map(str, missing)), *packages)


def _runs(*command: str) -> bool:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def install(packages: Iterable[str], say: Callable[[str], None]) -> str | None:
    """Install Debian packages by apt-get, as root or by sudo, after one line that says so.

    Args:
        packages: their names.
        say: prints a line.

    Returns:
        None if they are installed now, or why they are not.
    """
    if shutil.which("apt-get") is None:
        return "packages are installed only by apt-get, which is not here"
    apt = ["apt-get", "--quiet", "-o", f"DPkg::Lock::Timeout={_LOCK_TIMEOUT_S}"]
    if os.geteuid() != 0:
        if shutil.which("sudo") is None:
            return "apt-get needs root, and there is no sudo"
        if not _runs("sudo", "-n", "true"):
            return "apt-get needs root, and sudo asks for a password"
        apt = ["sudo", "-n", "env", "DEBIAN_FRONTEND=noninteractive", *apt]
    wanted = sorted(set(packages))
    say(f"Installing {', '.join(wanted)} by apt-get (once) ...")
    # A list of packages that cannot be fetched may still be good enough.
    not_updated = _failure([*apt, "update"])
    not_installed = _failure([*apt, *_INSTALL, *_in_this_release(wanted)])
    if not_installed is None:
        return None
    return f"apt-get failed: {not_updated or not_installed}"


def _failure(command: Sequence[str]) -> str | None:
    """Run a command; return None, or its last error if it failed."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
    )
    if done.returncode == 0:
        return None
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("E:")]
    return [f"exit code {done.returncode}", *lines[-1:], *errors][-1]


def _in_this_release(packages: Iterable[str]) -> list[str]:
    """Return the names of packages here, where a release lacks one: see `_DEFAULTS`."""
    return [
        name
        if name not in _DEFAULTS or _runs("apt-cache", "show", name)
        else _DEFAULTS[name]
        for name in packages
    ]


def by_hand(packages: Iterable[str]) -> str:
    """Return a sentence with the command that installs packages, for somebody who may."""
    packages = sorted(set(packages))
    if shutil.which("apt-get") is None:
        words = ", ".join(_WORDS.get(name, name) for name in packages)
        return f"Install with this system's package manager: {words}"
    names = " ".join(_in_this_release(packages))
    command = f"apt-get update && apt-get install --no-install-recommends {names}"
    if os.geteuid() == 0:
        return f"Type: {command}"
    if shutil.which("sudo") is None:
        return f"Type: su -c '{command}'"
    return f"Type: {command.replace('apt-get', 'sudo apt-get')}"


def provide(*programs: Callable[[], object]) -> str | None:
    """Find programs, and install those that are missing.

    Args:
        programs: functions that raise `Missing`.

    Returns:
        None if all are there, or a line that says what is missing and what to type.
    """
    missing = _missing(programs)
    packages = {name for lacking in missing for name in lacking.packages}
    if not missing:
        return None
    refusal = (
        install(packages, partial(print, file=sys.stderr, flush=True))
        if packages
        else None
    )
    if refusal is None:
        missing = _missing(programs)
    if not missing:
        return None
    reasons = [str(lacking) for lacking in missing]
    if refusal is not None:
        reasons.append(refusal)
    todo = f" {by_hand(packages)}" if packages else ""
    return f"{'; '.join(reasons)}.{todo}"


def _missing(programs: Iterable[Callable[[], object]]) -> list[Missing]:
    missing = []
    for program in programs:
        try:
            program()
        except Missing as exc:
            missing.append(exc)
    return missing


def ensurepip() -> None:
    """Find what puts pip into a virtual environment; Debian has it in a package of its own.

    Raises:
        Missing: Python came without it.
    """
    importlib.invalidate_caches()
    if importlib.util.find_spec("ensurepip") is None:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise Missing(f"Python {version} came without venv", f"python{version}-venv")


def git() -> None:
    if shutil.which("git") is None:
        raise Missing("git is not installed", "git")


def java_compiler() -> None:
    if shutil.which("javac") is None:
        raise Missing("javac is not installed", JAVA_COMPILER)


def main() -> int:
    """Make a virtual environment, and install what Python lacks for it."""
    [_, command, directory] = sys.argv
    assert command == "venv", command
    refusal = provide(ensurepip)
    if refusal is not None:
        print(refusal, file=sys.stderr)
        return 1
    made = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", directory], check=False
    )
    if made.returncode != 0:
        shutil.rmtree(directory, ignore_errors=True)
    return made.returncode


if __name__ == "__main__":
    sys.exit(main())
