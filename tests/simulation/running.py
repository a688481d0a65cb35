"""Runs schedules, each in one thread, and adds up their figures."""

import gc
import logging
import multiprocessing
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from unittest.mock import patch

from tests.cluster.loop import simulated_time
from tests.simulation.planted import planted
from tests.simulation.sites import Site, make_sites
from tests.simulation.world import Outcome, World
from workers.events import columns


@dataclass
class Totals:
    schedules: int = 0
    steps: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        self.schedules += 1
        self.steps += outcome.steps
        self.seconds += outcome.seconds
        self.counts += outcome.counts

    def __str__(self) -> str:
        figures = {"schedules": self.schedules, "steps": self.steps}
        figures |= dict(sorted(self.counts.items()))
        lines = [f"{name:24}{n:>12,}" for name, n in figures.items()]
        return "\n".join([*lines, f"{'logical hours':24}{self.seconds / 3600:>12,.1f}"])


@contextmanager
def simulating(plant: str | None = None) -> Iterator[None]:
    """Run the block under simulated time, perhaps with a planted fault."""
    if not SITES:
        SITES.extend(make_sites())
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        # A smaller cache: a new owner's first commit would fault in 12 MB.
        with patch.object(columns, "SLOTS", 1 << 10), planted(plant), simulated_time():
            yield
    finally:
        logging.disable(disabled)


#: Made once for a process.
SITES: list[Site] = []
_COLLECT = 10


def run(seed: int) -> Outcome:
    """Run one schedule; only while `simulating`."""
    outcome = World(seed, SITES).run()
    if seed % _COLLECT == 0:
        gc.collect(1)  # a schedule is full of young cycles
    return outcome


def first_violation(
    seeds: Iterable[int],
    plant: str | None,
    each: Callable[[Outcome], object] = lambda _: None,
    processes: int = 1,
) -> tuple[Totals, Outcome | None]:
    """Run schedules until one violates an invariant, or until an interrupt."""
    totals = Totals()
    with ExitStack() as stack:
        stack.enter_context(suppress(KeyboardInterrupt))
        stack.enter_context(simulating(plant))
        outcomes: Iterable[Outcome] = map(run, seeds)
        if processes > 1:  # forked, so that they simulate too
            fork = multiprocessing.get_context("fork")
            ignore = (signal.SIGINT, signal.SIG_IGN)
            pool = stack.enter_context(fork.Pool(processes, signal.signal, ignore))
            outcomes = pool.imap(run, seeds, _COLLECT)
        for outcome in outcomes:
            totals.add(outcome)
            each(outcome)
            if outcome.violation is not None:
                return totals, outcome
    return totals, None
