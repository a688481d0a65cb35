"""Simulated time: one heap of events and one greenlet per actor, in one thread.

An actor runs real code until that waits (`Actor.park`); the next event then runs. Nothing else may
switch, so a seed determines a run. A kill is raised inside the wait, as `Killed`.
"""

import hashlib
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

# It comes with playwright, and has no types.
from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]

SHOWN = 60
#: 2026-11-26 00:00 UTC in ms, the wall clock at second 0.
BASE_MS = 1_795_651_200_000


class Killed(BaseException):
    """The process of this actor has ended."""


class Loop:
    def __init__(self, seed: int, base_ms: int = BASE_MS) -> None:
        """`base_ms` is the wall clock at second 0."""
        self._base_ms = base_ms
        self.rng = random.Random(seed)
        self.now_s = 0.0
        self.steps = 0
        self.last: deque[str] = deque(maxlen=SHOWN)
        self._digest = hashlib.blake2b(digest_size=16)
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._number = count()

    @property
    def now_ms(self) -> int:
        return self._base_ms + int(self.now_s * 1000)

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def at(self, time_s: float, act: Callable[[], object]) -> None:
        heappush(self._heap, (max(time_s, self.now_s), next(self._number), act))

    def after(self, delay_s: float, act: Callable[[], object]) -> None:
        self.at(self.now_s + delay_s, act)

    def note(self, text: str) -> None:
        """Add a step to the trace."""
        self.steps += 1
        line = f"{self.now_s:10.4f} {text}"
        self.last.append(line)
        self._digest.update(line.encode())

    def run(self, ended: Callable[[], bool]) -> None:
        while self._heap and not ended():
            self.now_s, _, act = heappop(self._heap)
            act()


class Client(Protocol):
    def close(self) -> None: ...


class Actor:
    """A greenlet, as of one shard; `dead` tells whether its process has ended."""

    #: Its Kafka producers, which end with its process.
    clients: list[Client]

    def __init__(
        self,
        loop: Loop,
        name: str,
        before_wait: Callable[["Actor"], object] = lambda _: None,
    ) -> None:
        self.loop = loop
        self.name = name
        self.dead = self.ended = False
        self.stalled_until_s = 0.0
        self._before_wait = before_wait
        self._token = 0
        self.clients = []
        self._greenlet: greenlet | None = None

    @property
    def state_offset(self) -> int:
        """Where the state that it knows ends."""
        return 0

    def start(self, body: Callable[[], object]) -> None:
        def run() -> None:
            ACTORS[made] = self
            try:
                if not self.dead:
                    body()
            except Killed:
                pass
            finally:
                self.ended = True
                del ACTORS[made]

        self._greenlet = made = greenlet(run)
        self._resume(self._token)

    def park(self, most_s: float) -> None:
        """Wait until woken or until `most_s` have passed."""
        if self.dead:
            raise Killed
        self._before_wait(self)
        if self.dead:
            raise Killed
        self._token += 1
        token = self._token
        self.loop.after(most_s, lambda: self._resume(token))
        hub = getcurrent().parent
        assert hub is not None
        hub.switch()
        if self.dead:
            raise Killed

    def wake(self) -> None:
        token = self._token
        self.loop.after(0.0, lambda: self._resume(token))

    def kill(self) -> None:
        """End it at its current wait; what it runs meanwhile must not wait again."""
        self.dead = True
        self.stalled_until_s = 0.0
        self.wake()

    def unwind(self) -> None:
        self.dead = True
        self.stalled_until_s = 0.0
        self._resume(self._token)

    def _resume(self, token: int) -> None:
        if token != self._token or self.ended or self._greenlet is None:
            return
        if self.stalled_until_s > self.loop.now_s:
            self.loop.at(self.stalled_until_s, lambda: self._resume(token))
            return
        self._token += 1
        self._greenlet.switch()


class Driver(Actor):
    """The greenlet that runs the loop: while it waits, the others run."""

    def park(self, most_s: float) -> None:
        self._token += 1
        token = self._token
        self.loop.after(most_s, lambda: self._resume(token))
        self.loop.run(lambda: self._token != token)

    def _resume(self, token: int) -> None:
        if token == self._token:
            self._token += 1


ACTORS: dict[greenlet, Actor] = {}


def current() -> Actor:
    return ACTORS[getcurrent()]


class SimulatedTime:
    """Replaces the `time` module in `workers`; `loop` is the running simulation's."""

    loop: Loop

    def monotonic(self) -> float:
        return 1_000.0 + self.loop.now_s

    perf_counter = monotonic

    def time_ns(self) -> int:
        return self.loop.now_ms * 1_000_000

    def time(self) -> float:
        return self.loop.now_ms / 1000

    def sleep(self, seconds: float) -> None:
        current().park(seconds)

    def __getattr__(self, name: str) -> object:
        return getattr(time, name)


TIME = SimulatedTime()


@contextmanager
def driving(loop: Loop) -> Iterator[None]:
    """Let this greenlet wait, which runs the loop."""
    TIME.loop = loop
    here = getcurrent()
    ACTORS[here] = Driver(loop, "driver")
    try:
        yield
    finally:
        del ACTORS[here]


@contextmanager
def simulated_time(*further: str) -> Iterator[None]:
    """Replace the clock of every imported module of the worker, and of further modules."""
    modules = [
        one
        for name, one in sorted(sys.modules.items())
        if name.startswith("workers.") or name in further
    ]
    users = [one for one in modules if getattr(one, "time", None) is time]
    for module in users:
        vars(module)["time"] = TIME
    try:
        yield
    finally:
        for module in users:
            vars(module)["time"] = time
