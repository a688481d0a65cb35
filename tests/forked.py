"""Fork `quietcount` processes from a process that has already imported its modules.

launch(arguments, output, errors)    like subprocess.Popen([python, "-m", "workers.cli", ...])
run(arguments, patience_s)           like subprocess.run

The starter starts no thread and forks one child per command. Children of one starter share only its
imported modules and `hash` seed; they alternate between two starters, so results that depend on
set order differ. All processes of a run share the two, which each take two seconds of the processor
to begin. Tests of startup itself, and non-Linux systems, start Python.
"""

import atexit
import faulthandler
import gc
import inspect
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from importlib import import_module
from itertools import count
from typing import IO

from tests import ROOT

#: What commands import when they run.
MODULES = (
    "workers.arrays.compiler",
    "workers.agents.worker",
    "workers.commands.audit",
    "workers.commands.budget",
    "workers.commands.replay",
    "workers.commands.topics",
    "workers.runtime.logs",
)
#: In the environment of a forked process: names of numbers in its modules, and what they are there,
#: as in "workers.agents.topics.INTERVAL_S=0.5". Where nothing is forked, tests only take longer.
QUICKER = "QUIETCOUNT_TESTS_QUICKER"
#: What Python runs as `quietcount`.
QUIETCOUNT = ("-m", "workers.cli")
#: In the environment of a run's processes: what tells this run from others.
RUN = "PYTEST_XDIST_TESTRUNUID"
POSSIBLE = sys.platform == "linux" and hasattr(os, "pidfd_open")
_FIELD = 8


class Started:
    """A process that a starter forked, as `subprocess.Popen` shows one."""

    def __init__(self, pid: int, status: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        """Return its exit status, or None while it runs; minus the number of the signal that killed it."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("quietcount", timeout or 0)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def _ended(self, timeout: float | None) -> int | None:
        if (
            self.returncode is None
            and select.select([self._status], [], [], timeout)[0]
        ):
            said = self._status.recv(_FIELD)
            self._status.close()
            assert said, "its starter has gone"
            self.returncode = int(said)
        return self.returncode


class Starter:
    """A connection to a starter; the first process of a run that asks for one starts it."""

    def __init__(self, number: int, module: str = "tests.forked") -> None:
        """`module` is what it runs, and `number` tells those of one module apart."""
        run = os.environ.get(RUN, str(os.getpid()))
        # Not a file: it is gone with the starter.
        address = f"\0quietcount-{run}-{module}-{number}"
        while True:
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with suppress(OSError):
                listener.bind(address)
                break
            listener.close()
            self._control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            # One that is just ending greets nobody, and frees its address soon.
            with suppress(ConnectionError):
                self._control.connect(address)
                if self._control.recv(_FIELD):
                    return
            self._control.close()
            time.sleep(0.01)
        with listener:
            listener.listen(100)
            self._control, theirs = socket.socketpair(
                socket.AF_UNIX, socket.SOCK_SEQPACKET
            )
            with theirs:
                given = theirs.fileno(), listener.fileno()
                subprocess.Popen(
                    [sys.executable, "-m", module, *map(str, given)],
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    # its streams are buffered as those to a file are
                    stdout=subprocess.DEVNULL,
                    pass_fds=given,
                )

    def start(self, arguments: Sequence[str], *streams: int) -> Started:
        """Start a process in the environment of now; `streams` are for what it writes, its errors, and what it reads."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            asked = json.dumps([list(arguments), dict(os.environ)]).encode()
            socket.send_fds(self._control, [asked], [theirs.fileno(), *streams])
        said = self._control.recv(_FIELD)
        assert said, "the starter has gone"
        return Started(int(said), ours)

    def close(self) -> None:
        """Let it end, once all others have closed their connections."""
        self._control.close()


_STARTERS: dict[int, Starter] = {}
_OPEN = ExitStack()
atexit.register(_OPEN.close)
_STARTED = count()


def launch(
    arguments: Sequence[str], output: IO[bytes], errors: IO[bytes]
) -> Started | subprocess.Popen[bytes]:
    if not POSSIBLE:
        command = [sys.executable, *QUIETCOUNT, *arguments]
        return subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=errors)
    number = next(_STARTED) % 2
    if number not in _STARTERS:
        _STARTERS[number] = starter = Starter(number)
        _OPEN.callback(starter.close)
    return _STARTERS[number].start(arguments, output.fileno(), errors.fileno())


def run(
    arguments: Sequence[str], patience_s: float
) -> subprocess.CompletedProcess[str]:
    with (
        tempfile.TemporaryFile("w+b") as output,
        tempfile.TemporaryFile("w+b") as errors,
    ):
        process = launch(arguments, output, errors)
        try:
            status = process.wait(patience_s)
        finally:
            process.kill()
        output.seek(0)
        errors.seek(0)
        written = output.read().decode(), errors.read().decode()
        return subprocess.CompletedProcess(arguments, status, *written)


def serve(first: socket.socket, listener: socket.socket) -> list[str]:
    """Fork a child for each message; return its arguments in the child, which is about to run them."""
    asking = {first.fileno(): first}
    # by the descriptor of the process
    running: dict[int, tuple[int, socket.socket]] = {}
    while True:
        waited_for = [listener.fileno(), *asking, *running]
        for ready in select.select(waited_for, [], [])[0]:
            if ready == listener.fileno():
                control, _ = listener.accept()
                with suppress(ConnectionError):
                    control.send(b"ready")
                asking[control.fileno()] = control
                continue
            if ready in running:
                pid, waiting = running.pop(ready)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with suppress(OSError), waiting:  # nobody waits for it any more
                    waiting.send(str(code).encode())
                os.close(ready)
                continue
            control = asking[ready]
            asked = b""
            with suppress(ConnectionError):  # who asks may have been killed
                asked, descriptors, _, _ = socket.recv_fds(control, 1 << 20, 4)
            if not asked:
                asking.pop(ready).close()
                if not asking and not select.select([listener], [], [], 0)[0]:
                    os._exit(0)
                continue
            arguments, environment = json.loads(asked)
            status, *streams = descriptors
            # A fork would lose other threads, and keep their locks.
            threads = len(os.listdir("/proc/self/task"))
            assert threads == 1, f"an import started {threads - 1} threads"
            if (pid := os.fork()) == 0:
                listener.close()
                for other in asking.values():
                    other.close()
                for descriptor, (_, others) in running.items():
                    os.close(descriptor)
                    others.close()
                for given, descriptor in zip(streams, (1, 2, 0), strict=False):
                    os.dup2(given, descriptor)
                for descriptor in descriptors:
                    os.close(descriptor)
                os.environ.clear()
                os.environ.update(environment)
                return [str(argument) for argument in arguments]
            for descriptor in streams:
                os.close(descriptor)
            running[os.pidfd_open(pid)] = pid, socket.socket(fileno=status)
            with suppress(ConnectionError):
                control.send(str(pid).encode())


def load_kernels() -> None:
    """Load what workers and replays run: two fifths of what a short run of a worker computes."""
    from workers.commands import compiling

    for path in (
        compiling._compile_batches,
        compiling._compile_noise,
        compiling._compile_replay,
    ):
        path()


def main() -> None:
    from workers.cli import main as quietcount

    faulthandler.enable()  # SIGABRT prints where every thread is
    gc.set_threshold(50_000, 20, 100)  # as it does first
    for name in MODULES:
        import_module(name)
    load_kernels()
    # Faust asks for each agent's: 90 ms the first time
    inspect.getmodule(main.__code__)
    gc.freeze()
    # Ctrl-C goes to all of them: the starter ends with those who ask it.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    first, listener = (socket.socket(fileno=int(one)) for one in sys.argv[1:])
    arguments = serve(first, listener)
    for setting in os.environ.pop(QUICKER, "").split():
        name, _, value = setting.partition("=")
        module, _, attribute = name.rpartition(".")
        found = import_module(module)
        kind = type(getattr(found, attribute))
        setattr(found, attribute, kind(value))
    signal.signal(signal.SIGINT, before)
    sys.argv[1:] = arguments
    quietcount()


if __name__ == "__main__":
    main()
