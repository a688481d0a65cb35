"""What every test shares: one real broker a session, the same examples and surroundings each time, and the order of a run.

With pytest-xdist (`make test`) several processes run the tests. The process that started them owns the broker and starts
it when the first test asks; whole files go to one process, so a module's fixtures are built once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from multiprocessing.connection import Client, Listener
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.broker import BrokerUnavailable, broker

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling
    from xdist.workermanage import WorkerController

# The same examples in every run, however slow the machine is. To look for others: HYPOTHESIS_PROFILE=search.
settings.register_profile(
    "same", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", settings.get_profile("same"), derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

# What these say about colours and widths reaches every program that a test starts, and changes what it writes.
for name in (
    "FORCE_COLOR",
    "CLICOLOR_FORCE",
    "NO_COLOR",
    "TTY_COMPATIBLE",
    "TTY_INTERACTIVE",
    "COLUMNS",
    "LINES",
    "PYTHONWARNINGS",
):
    os.environ.pop(name, None)

TESTS = Path(__file__).parent

#: They start workers and browsers and mostly wait for them: on the broker, on ticks, on the wall clock. So two of them are
#: begun for each file that computes, and one process more than there are cores runs the tests.
PROCESSES = (
    "worker/",
    "consumers/",
    "dashboard/test_page.py",
    "dashboard/test_page_large.py",
    "dashboard/test_page_odd.py",
    "dashboard/test_page_words.py",
    "dashboard/test_page_epochs.py",
    "dashboard/test_page_noise.py",
    "dashboard/test_page_views.py",
    "dashboard/test_demo_page.py",
    "dashboard/test_command.py",
    "dashboard/store/test_store.py",
    "test_demo.py",
    "test_readme.py",
)
#: Files that take more than about 5 s of computing, roughly the longest first, so that no process is
#: left with one at the end. `make quick` leaves them out, and whatever needs a broker or a browser.
SLOW = (
    "kafka/test_late_end_txn.py",
    "kafka/test_tls.py",
    "kafka/test_workers.py",
    "privacy/test_selection_laws.py",
    "mechanisms/misra_gries/test_sketch.py",
    "mechanisms/counters/test_counters.py",
    "contract/test_threads.py",
    "report/test_report.py",
    "contract/test_noise_scale.py",
    "contract/test_message_sizes.py",
    "agents/test_merge.py",
    "mechanisms/noise/test_selection.py",
    "mechanisms/order_statistics/test_bounded_max.py",
    "backtest/test_backtesting_docs.py",
    "contract/test_spent.py",
    "plan/test_figures.py",
    "report/test_flights_report.py",
    "privacy/test_distributions.py",
    "kafka/test_topics.py",
    "kafka/test_shard.py",
    "dashboard/test_feed.py",
    "dashboard/store/test_following.py",
    "dashboard/store/test_questions.py",
    "mechanisms/running/test_sparse_gumb.py",
    "bench/test_coverage.py",
    "plan/test_person.py",
    "privacy/test_group.py",
    "kafka/test_handover.py",
    "contract/test_price.py",
    "ceiling/test_ceiling.py",
    "contract/test_repeat.py",
    "contract/test_state.py",
    "contract/test_long_state.py",
    "agents/test_contributions.py",
    "mechanisms/noise/test_discrete_laplace.py",
    "mechanisms/one_shot/test_limit_dom.py",
    "contract/test_sensitivity.py",
    "contract/test_purity.py",
    "histogram/test_windows.py",
    "mechanisms/counters/test_differences.py",
    "events/formats/test_avro.py",
    "events/formats/test_protobuf.py",
    "deploy/test_messages.py",
    "replay/test_interrupts.py",
    "guessing/test_any_topic.py",
)
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
    """Own the broker where other processes run the tests; describe the marker of `make quick`."""
    config.addinivalue_line("markers", "slow: needs a broker, a browser or seconds; `make quick` leaves it out")
    if config.getoption("numprocesses", None):
        config.stash[LENDER] = lender = Lender()
        config.add_cleanup(lender.close)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Say how many processes run the tests where nobody says it: one of them mostly waits."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    """Tell a test process where to ask for the broker."""
    node.workerinput["lender"] = node.config.stash[LENDER].listener.address


def unit(nodeid: str) -> str:
    """Return what one process runs as a whole: a file."""
    return nodeid.split("::", 1)[0]


def in_order(paths: Iterable[str]) -> list[str]:
    """Return files in the order in which they are begun: two of PROCESSES, then one that computes, the longest of these first."""
    waiting: list[str] = []
    computing: list[str] = []
    for path in dict.fromkeys(paths):
        (waiting if path.startswith(PROCESSES) else computing).append(path)
    ranks = {path: rank for rank, path in enumerate(SLOW)}
    computing.sort(key=lambda path: ranks.get(path, len(ranks)))
    order: list[str] = []
    while waiting or computing:
        order += [*waiting[:2], *computing[:1]]
        del waiting[:2], computing[:1]
    return order


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Hand the units out in the order of the collection."""
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False
    scheduling = LoadScopeScheduling(config, log)
    # The way to choose units that pytest-xdist documents is to override this method.
    scheduling._split_scope = unit
    return scheduling


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files into the order of a run and mark what `make quick` leaves out."""
    if missing := [path for path in PROCESSES + SLOW if not (TESTS / path).exists()]:
        raise pytest.UsageError(f"tests/conftest.py names files that are not there: {', '.join(missing)}")
    paths = {item: item.path.relative_to(TESTS).as_posix() for item in items}
    places = {path: place for place, path in enumerate(in_order(paths.values()))}
    items.sort(key=lambda item: places[paths[item]])
    for item, path in paths.items():
        if path.startswith(PROCESSES) or path in SLOW or STARTED & set(getattr(item, "fixturenames", ())):
            item.add_marker("slow")


@pytest.fixture(scope="session")
def bootstrap(request: pytest.FixtureRequest) -> Iterator[str]:
    """Address of a real Apache Kafka (see tests/broker.py)."""
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
