"""Shared fixtures: one real broker per session, owned by the process that starts pytest-xdist.

Each test file runs in one process, so its module fixtures are built once.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import re
import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests import ROOT
from tests.collected import ASKED, FORK
from tests.forked import POSSIBLE
from tests.supplies import Borrower, Lender, Supplies, needs_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling
    from xdist.workermanage import WorkerController

    from tests.quietcount import Quietcount

# The same examples in every run, however slow the machine is. To look for others: HYPOTHESIS_PROFILE=search.
SAME: Any = {
    "database": None,
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow],
}
settings.register_profile("same", derandomize=True, **SAME)
settings.register_profile("search", derandomize=False, print_blob=True, **SAME)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

# What these say about colours and widths reaches every program that a test starts, and changes what it writes.
COLOURS = ("FORCE_COLOR", "CLICOLOR_FORCE", "NO_COLOR", "PYTHONWARNINGS")
for name in (*COLOURS, "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "LINES"):
    os.environ.pop(name, None)
# Where numpy is imported before `workers.cli`, as by forked processes that may have one thread only.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

#: Files that wait for more than a minute, the longest first; of a folder, the first.
LONGEST = (
    *("test_partial_outages.py", "test_brokers.py", "test_chaos.py", "test_growing.py"),
    *(
        "test_agent.py",
        "test_threads.py",
        "test_topics_under_way.py",
        "test_keeping.py",
    ),
    "test_outages.py",
    *("test_handover.py", "test_open_transactions.py"),
)
#: Folders whose fixture, of scope "package", takes seconds: each process that ran one of their files would make it.
TOGETHER = ("tests/consumers/", "tests/events/registry/")
#: What `make quick` and `make near` ask for.
QUICK = "not slow"
ALL_SLOW = re.compile(r"^pytestmark = pytest\.mark\.(slow|waits)$", re.MULTILINE)
SUPPLIES = pytest.StashKey[Supplies | Borrower]()
LENDER = pytest.StashKey[Lender]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--install",
        action="store_true",
        help="install what tests need and this machine lacks, by apt-get, as root or by sudo",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Prepare supplies in the process that the user started; describe the markers."""
    for marker in (
        "slow: a test with more than about half a second of computing; `make quick` leaves it out",
        "waits: a file that mostly waits for workers, browsers, ticks; also left out",
    ):
        config.addinivalue_line("markers", marker)
    # Seldom: 6 % of a run, and an eighth of what it does before the first test, went there.
    gc.set_threshold(50_000, 20, 100)
    # Python looks for leaks of extensions at its end, where it does not see what is frozen.
    config.add_cleanup(gc.unfreeze)
    lender = getattr(config, "workerinput", {}).get("lender")
    if lender is not None:
        # A failed test keeps its objects for the report, which extensions take for leaks at the end.
        atexit.register(os._exit, 0)
        config.stash[SUPPLIES] = Borrower(lender)
        return

    def say(line: str) -> None:
        terminal: Any = config.pluginmanager.get_plugin("terminalreporter")
        terminal.ensure_newline()
        terminal.write_line(line, flush=True)

    config.stash[SUPPLIES] = supplies = Supplies(
        say, may_install=config.getoption("install")
    )
    if config.getoption("numprocesses", None):
        if POSSIBLE and Path.cwd() == ROOT:
            chosen = ["-m", config.getoption("markexpr"), *config.args]
            os.environ[ASKED] = json.dumps(chosen)
            config.option.tx = [f"popen//python={FORK}" for _ in config.option.tx]
        config.stash[LENDER] = lender = Lender(supplies)
        config.add_cleanup(lender.close)
    else:
        config.add_cleanup(supplies.close)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run in which tests were left out because something is missing."""
    supplies = session.config.stash[SUPPLIES]
    succeeded = session.exitstatus in (
        pytest.ExitCode.OK,
        pytest.ExitCode.NO_TESTS_COLLECTED,
    )
    if isinstance(supplies, Supplies) and supplies.not_run() and succeeded:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure(config: pytest.Config) -> None:
    """Say in the last lines which tests did not run, and what to type."""
    supplies = config.stash[SUPPLIES]
    if isinstance(supplies, Supplies):
        for line in supplies.not_run():
            print(line)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return the number of test processes: six more than cores, for most wait, but not in `make quick`."""
    cores = os.cpu_count() or 1
    return cores if config.getoption("markexpr") == QUICK else cores + 6


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import a file of which `make quick` leaves out every test: that took seconds."""
    if config.getoption("markexpr") != QUICK or collection_path.suffix != ".py":
        return None
    return True if ALL_SLOW.search(collection_path.read_text()) else None


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say what `make quick` left out."""
    if config.getoption("markexpr") == QUICK:
        paths = Path(__file__).parent.rglob("test_*.py")
        files = sum(ALL_SLOW.search(path.read_text()) is not None for path in paths)
        terminalreporter.write_line(
            f"Left out: {files} whole files, and the slow tests of others, which need a broker, a browser or more "
            "seconds. `make test` runs them."
        )


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    node.workerinput["lender"] = node.config.stash[LENDER].address


def unit(nodeid: str) -> str:
    """Return what one process runs: a file, or a folder whose files share a fixture."""
    path = nodeid.split("::", 1)[0]
    return next((folder for folder in TOGETHER if path.startswith(folder)), path)


def in_order(items: Iterable[pytest.Item]) -> list[Path]:
    """Return files in the order in which they are begun: waiting ones among computing ones.

    There are more processes than cores, so that some can wait while others compute. Files that wait
    take longer: the last of them begins before the last computing ones, and slow ones begin first.
    """
    marks: dict[Path, set[str]] = {}
    for item in items:
        marks.setdefault(item.path, set()).update(
            mark.name for mark in item.iter_markers()
        )
    waiting = [path for path, names in marks.items() if "waits" in names]
    others = [path for path, names in marks.items() if "waits" not in names]
    computing = sorted(others, key=lambda path: "slow" not in marks[path])
    longest = {name: place for place, name in enumerate(LONGEST)}
    waiting.sort(key=lambda path: longest.get(path.name, len(longest)))
    places = {path: 0.7 * i / len(waiting) for i, path in enumerate(waiting)}
    places |= {path: (i + 0.5) / len(computing) for i, path in enumerate(computing)}
    return sorted(places, key=places.__getitem__)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(
    config: pytest.Config, log: Producer
) -> LoadScopeScheduling:
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False
    scheduling = LoadScopeScheduling(config, log)
    # The way to choose units that pytest-xdist documents is to override this method.
    scheduling._split_scope = unit
    return scheduling


def pytest_collection_finish() -> None:
    """Never look for garbage among what was imported."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Iterator[None]:
    """Put files into the order of a run, mark what `make quick` leaves out, and drop what cannot run."""
    places = {path: place for place, path in enumerate(in_order(items))}
    items.sort(key=lambda item: places[item.path])
    needs = {item: needs_of(getattr(item, "fixturenames", ())) for item in items}
    for item in items:
        if item.get_closest_marker("waits") or needs[item]:
            item.add_marker("slow")
    yield
    # By now, only the tests that were asked for are left.
    if config.option.collectonly:
        return
    missing = config.stash[SUPPLIES].missing(Counter(needs[item] for item in items))
    dropped = [item for item in items if missing.intersection(needs[item])]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if not missing.intersection(needs[item])]


@pytest.fixture(scope="session")
def shared_kafka(pytestconfig: pytest.Config) -> str:
    """The address of a real Kafka: the user's, or one of this session."""
    return pytestconfig.stash[SUPPLIES].get("shared_kafka")


@pytest.fixture(scope="module")
def bootstrap(shared_kafka: str) -> Iterator[str]:
    """The same; what a file's sites made there is deleted at its end.

    Every client that starts asks for all topics, and 1,500 took 12 ms of the broker's processor.
    """
    yield shared_kafka
    from tests.worker.harness import forget_sites

    forget_sites(shared_kafka)


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a simulated Kafka: a file that uses it runs workers and commands in this process."""
    from tests.cluster.worker import running_cluster
    from tests.worker import harness

    with running_cluster(harness.now_ms(), harness) as address:
        yield address


@pytest.fixture(scope="session")
def own_kafka(pytestconfig: pytest.Config) -> None:
    """Java and Kafka's jars, for tests that start brokers of their own."""
    pytestconfig.stash[SUPPLIES].get("own_kafka")


@pytest.fixture(scope="session")
def registry_program(pytestconfig: pytest.Config) -> None:
    """A schema registry that `tests.registry_server` starts."""
    pytestconfig.stash[SUPPLIES].get("registry_program")


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    """One browser for each file of tests."""
    from tests.dashboard.browser import browser

    with browser() as opened:
        yield opened


@pytest.fixture
def quietcount(capsys: pytest.CaptureFixture[str]) -> Quietcount:
    from tests.quietcount import Quietcount

    return Quietcount(capsys)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C acts in this test and in the programs it starts, also where the run ignores it.

    A shell without job control starts what it puts in the background with SIGINT ignored.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
