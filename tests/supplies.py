"""What tests need beyond Python packages: prepared once for all test processes, or reported as missing at the end.

Fixtures stand for it. A test whose fixtures need what is missing does not run; it is counted, and the
run ends with exit code 1 and three lines that say what to type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import (
    AbstractContextManager,
    ExitStack,
    closing,
    contextmanager,
    suppress,
)
from multiprocessing.connection import Client, Listener
from threading import Thread
from typing import Any

from tests.broker import broker, kafka_programs
from tests.registry_server import application
from tests.system import (
    Missing,
    by_hand,
    chromium,
    find_all,
    install,
    playwright_driver,
)


@contextmanager
def _found(find: Callable[[], object]) -> Iterator[str]:
    """A program that only has to be there."""
    find()
    yield ""


def _browser() -> None:
    find_all(chromium, playwright_driver)


#: Fixture -> what it is called at the end, and what prepares it.
SUPPLIES: dict[str, tuple[str, Callable[[], AbstractContextManager[str]]]] = {
    "shared_kafka": ("a Kafka broker", broker),
    "own_kafka": ("a Kafka of their own", lambda: _found(kafka_programs)),
    "registry_program": ("a schema registry", lambda: _found(application)),
    "chrome": ("a browser", lambda: _found(_browser)),
}

#: The supplies of a test, in the order of `SUPPLIES`.
Needs = tuple[str, ...]


def needs_of(fixtures: Iterable[str]) -> Needs:
    given = set(fixtures)
    return tuple(name for name in SUPPLIES if name in given)


class Supplies:
    """Everything that was prepared so far, and what could not be."""

    def __init__(self, say: Callable[[str], None], *, may_install: bool) -> None:
        """
        Args:
            say: prints a line.
            may_install: missing packages are installed where this user may do so.
        """
        self._say = say
        self._may_install = may_install
        self._refusal = "only `make test` and `make check` install packages"
        self._running = ExitStack()
        self._answers: dict[str, str | Exception] = {}
        self._not_run: Counter[Needs] = Counter()

    def missing(self, needs: Counter[Needs]) -> set[str]:
        """Prepare what tests need; return the supplies that this machine lacks.

        Args:
            needs: the number of tests for each combination of supplies.
        """
        asked_for = {name for combination in needs for name in combination}
        self._prepare(asked_for - self._answers.keys())
        lacking = self._lacking()
        packages = {
            package
            for name in asked_for & lacking.keys()
            for package in lacking[name].packages
        }
        if packages and self._may_install:
            self._may_install = False  # once in a run
            refusal = install(packages, self._say)
            if refusal is None:
                self._prepare(asked_for & lacking.keys())
            else:
                self._refusal = refusal
        lacking = self._lacking()
        self._not_run = Counter(
            {
                needed: number
                for needed, number in needs.items()
                if lacking.keys() & set(needed)
            }
        )
        return asked_for & lacking.keys()

    def get(self, name: str) -> str:
        """Return the address of a supply, or an empty text for a program.

        Raises:
            Exception: it could not be prepared.
        """
        if name not in self._answers:
            self._prepare([name])
        answer = self._answers[name]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def not_run(self) -> list[str]:
        """Return three lines about tests that did not run, or none if all did."""
        lacking = self._lacking()
        by_name: Counter[str] = Counter()
        for needed, number in self._not_run.items():
            first = next(name for name in needed if name in lacking)
            by_name[first] += number
        if not by_name:
            return []
        counts = ", ".join(
            f"{by_name[name]:,} for want of {SUPPLIES[name][0]}" for name in by_name
        )
        # Kafka's programs are missing for several supplies.
        each = [reason for name in by_name for reason in str(lacking[name]).split("; ")]
        reasons = list(dict.fromkeys(each))
        packages = {package for name in by_name for package in lacking[name].packages}
        todo = "Set right what is said above, and run the tests again"
        if packages:
            reasons.append(self._refusal)
            todo = by_hand(packages)
        return [
            f"Tests that did not run: {by_name.total():,}; {counts}.",
            f"Why: {'; '.join(reasons)}.",
            todo,
        ]

    def close(self) -> None:
        """Stop what was started."""
        self._running.close()

    def _prepare(self, names: Iterable[str]) -> None:
        for name in sorted(names):
            _, prepare = SUPPLIES[name]
            try:
                self._answers[name] = self._running.enter_context(prepare())
            except Exception as exc:  # noqa: BLE001 (the tests that need it fail with it)
                self._answers[name] = exc

    def _lacking(self) -> dict[str, Missing]:
        return {
            name: exc for name, exc in self._answers.items() if isinstance(exc, Missing)
        }


class Lender:
    """Supplies of the process that starts pytest-xdist, lent to those that run tests."""

    def __init__(self, supplies: Supplies) -> None:
        self._supplies = supplies
        self._listener = Listener(family="AF_UNIX")
        self.address = self._listener.address
        self._thread = Thread(target=self._lend, daemon=True)
        self._thread.start()

    def _lend(self) -> None:
        with closing(self._supplies):
            while True:
                # Who asks may be gone before the broker has started, after Ctrl-C or a crash.
                with suppress(OSError, EOFError), self._listener.accept() as asking:
                    asked, argument = asking.recv()
                    if asked == "stop":
                        return
                    try:
                        answer = getattr(self._supplies, asked)(argument)
                    except Exception as exc:  # noqa: BLE001 (it is raised where it was asked)
                        answer = exc
                    asking.send(answer)

    def close(self) -> None:
        """Stop the broker and wipe it, also one that is only starting."""
        with Client(self.address) as asking:
            asking.send(("stop", None))
        self._thread.join()
        self._listener.close()


class Borrower:
    """The supplies of another process."""

    def __init__(self, address: Any) -> None:
        self._address = address

    def missing(self, needs: Counter[Needs]) -> set[str]:
        missing: set[str] = self._ask("missing", needs)
        return missing

    def get(self, name: str) -> str:
        got: str = self._ask("get", name)
        return got

    def _ask(self, asked: str, argument: object) -> Any:
        with Client(self._address) as asking:
            asking.send((asked, argument))
            answer = asking.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer
