"""`quietcount` in a process that ends itself at named steps, on a wrong clock or a failing disk.

    with Workers() as workers: process = workers.start(settings, log, plan)

Everything else is the product, unchanged: the plan is in an environment variable that only this
module reads, in a child that tests.forked has forked.
"""

import os
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch as replace

import msgspec

from tests import forked
from tests.chaos import faults
from tests.chaos.steps import Acting, Journal, install, patch
from tests.worker.harness import Worker
from workers import cli
from workers.kafka.transport import QuietcountApp

PLAN = "QUIETCOUNT_CHAOS"


class Plan(msgspec.Struct):
    """What a process does beside its work; `acts` and `disk` are those of a schedule."""

    journal: str
    acts: list[tuple[str, str, int, str]]
    session_s: float
    clock_ms: int = 0
    disk: str = ""
    #: The file with the number of the broker's process, for acts that kill it.
    broker: str = ""
    #: Begin of the faults after the start, and the disk's end.
    from_s: float = 4.0
    to_s: float = 14.0


class Planned(Worker):
    def __init__(self, process: forked.Started, log: Path, journal: Path) -> None:
        self.process = process
        self.log = log
        self.journal = journal


class Workers:
    """Starts workers from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._starters = list[forked.Starter]()
        self._open = ExitStack()

    def __enter__(self) -> Self:
        for number in range(2):  # of different hash seeds
            starter = forked.Starter(number, "tests.chaos.worker")
            self._open.callback(starter.close)
            self._starters.append(starter)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def start(self, config: Path, log: Path, plan: Plan) -> Planned:
        encoded = msgspec.json.encode(plan).decode()
        with (
            self._lock,
            log.open("ab") as output,
            replace.dict(os.environ, {PLAN: encoded}),
        ):
            self._starters.append(starter := self._starters.pop(0))
            arguments = ["run", "-c", str(config)]
            file = output.fileno()
            process = starter.start(arguments, file, file)
        return Planned(process, log, Path(plan.journal))


def _apply(plan: Plan) -> None:
    journal = Journal(plan.journal)
    install(Acting(journal, plan.acts, plan.broker))

    def shorten(original: Any) -> Any:
        def call(self: QuietcountApp, name: str, **settings: Any) -> None:
            settings["broker_session_timeout"] = plan.session_s
            settings["broker_heartbeat_interval"] = 0.3 * plan.session_s
            original(self, name, **settings)

        return call

    patch(QuietcountApp, "__init__", shorten)
    if plan.clock_ms:
        faults.shift_clock(
            plan.clock_ms, plan.from_s, lambda: journal.note("clock", "")
        )
    if plan.disk:
        faults.fail_disk(
            plan.disk, plan.from_s, plan.to_s, lambda: journal.note("disk", "")
        )


def main() -> None:
    product = cli.main

    def planned(arguments: Sequence[str] | None = None) -> None:
        _apply(msgspec.json.decode(os.environ[PLAN], type=Plan))
        product(arguments)

    cli.main = planned
    forked.main()


if __name__ == "__main__":
    main()
