"""Shared fixtures: one real broker per session, owned by the process that starts pytest-xdist.

Each test file runs in one process, so its module fixtures are built once.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from multiprocessing.connection import Client, Listener
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.broker import BrokerUnavailable, broker

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling
    from xdist.workermanage import WorkerController

# The same examples in every run, however slow the machine is. To look for others: HYPOTHESIS_PROFILE=search.
SAME: Any = {"database": None, "deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("same", derandomize=True, **SAME)
settings.register_profile("search", derandomize=False, print_blob=True, **SAME)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

# What these say about colours and widths reaches every program that a test starts, and changes what it writes.
COLOURS = ("FORCE_COLOR", "CLICOLOR_FORCE", "NO_COLOR", "PYTHONWARNINGS")
for name in (*COLOURS, "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "LINES"):
    os.environ.pop(name, None)

#: Files that wait for more than a minute.
LONGEST = {"test_threads.py", "test_chaos.py", "test_outages.py"}
#: Fixtures that start a broker or a browser.
STARTED = {"bootstrap", "chrome", "secure"}


class Lender:
    """The session's broker, started when the first test process asks for it and stopped by `close`."""

    def __init__(self) -> None:
        self.listener = Listener(family="AF_UNIX")
        self.thread = Thread(target=self._lend, daemon=True)
        self.thread.start()

    def _lend(self) -> None:
        answer: str | BrokerUnavailable | RuntimeError | None = None
        with ExitStack() as running:
            while True:
                # Who asks may be gone before the broker has started, after Ctrl-C or a crash.
                with suppress(OSError, EOFError), self.listener.accept() as asking:
                    if asking.recv() == "stop":
                        return
                    if answer is None:
                        try:
                            answer = running.enter_context(broker())
                        except RuntimeError as exc:
                            answer = exc
                    asking.send(answer)

    def close(self) -> None:
        """Stop the broker and wipe it, also one that is only starting."""
        with Client(self.listener.address) as asking:
            asking.send("stop")
        self.thread.join()
        self.listener.close()


LENDER = pytest.StashKey[Lender]()


def pytest_configure(config: pytest.Config) -> None:
    """Own the broker where other processes run the tests; describe the markers."""
    for marker in (
        "slow: a test with more than about 1 s of computing; `make quick` leaves it out",
        "waits: a file that mostly waits for workers, browsers, ticks; also left out",
    ):
        config.addinivalue_line("markers", marker)
    if config.getoption("numprocesses", None):
        config.stash[LENDER] = lender = Lender()
        config.add_cleanup(lender.close)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return the number of test processes: two more than cores, for some wait, but not in `make quick`."""
    cores = os.cpu_count() or 1
    return cores if config.getoption("markexpr") == "not slow" else cores + 2


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    node.workerinput["lender"] = node.config.stash[LENDER].listener.address


def unit(nodeid: str) -> str:
    return nodeid.split("::", 1)[0]


def in_order(items: Iterable[pytest.Item]) -> list[Path]:
    """Return files in the order in which they are begun: waiting ones among computing ones.

    There are more processes than cores, so that some can wait while others compute. Files that wait
    take longer: the last of them begins before the last computing ones, and slow ones begin first.
    """
    marks: dict[Path, set[str]] = {}
    for item in items:
        marks.setdefault(item.path, set()).update(mark.name for mark in item.iter_markers())
    waiting = [path for path, names in marks.items() if "waits" in names]
    others = [path for path, names in marks.items() if "waits" not in names]
    computing = sorted(others, key=lambda path: "slow" not in marks[path])
    waiting.sort(key=lambda path: path.name not in LONGEST)
    places = {path: 0.85 * i / len(waiting) for i, path in enumerate(waiting)}
    places |= {path: (i + 0.5) / len(computing) for i, path in enumerate(computing)}
    return sorted(places, key=places.__getitem__)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False
    scheduling = LoadScopeScheduling(config, log)
    # The way to choose units that pytest-xdist documents is to override this method.
    scheduling._split_scope = unit
    return scheduling


def pytest_collection_finish() -> None:
    """Collect garbage seldom, and never look at what was imported: 6 % of a run went there."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files into the order of a run and mark what `make quick` leaves out."""
    places = {path: place for place, path in enumerate(in_order(items))}
    items.sort(key=lambda item: places[item.path])
    for item in items:
        if item.get_closest_marker("waits") or STARTED & set(getattr(item, "fixturenames", ())):
            item.add_marker("slow")


@pytest.fixture(scope="session")
def bootstrap(request: pytest.FixtureRequest) -> Iterator[str]:
    lender = getattr(request.config, "workerinput", {}).get("lender")
    if lender is None:
        with broker() as address:
            yield address
        return
    with Client(lender) as asking:
        asking.send("address")
        answer = asking.recv()
    if isinstance(answer, Exception):
        raise answer
    yield answer
