"""Connections that delay, break, and deliver requests late, repeated or never.

After a break a client repeats what was not answered, after `retry.backoff.ms` (1 s, give or take
20 %), on a new connection. A copy on the old one is lost, arrives anyway, or is *held* until another
request of the same transactional id has been served: in the middle of its next transaction.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields

from confluent_kafka import KafkaError

from tests.cluster.broker import Broker, Reply
from tests.cluster.loop import Loop

BACKOFF_S = 0.8, 1.2
#: How long a request is under way at the longest where nothing is slow.
LONGEST_S = 0.003
_SILENT_S = 0.2, 12.0
_WORST = 3.0


@dataclass(slots=True)
class Rates:
    """Probabilities of faults, for each request or wait; all 0 in the end."""

    breaks: float = 0.0
    slow: float = 0.0
    kills: float = 0.0
    stalls: float = 0.0
    long_stalls: float = 0.0
    reassigns: float = 0.0
    moves: float = 0.0
    refuses: float = 0.0
    unread: float = 0.0
    slow_markers: float = 0.0
    hangs: float = 0.0

    def stop(self) -> None:
        for field in fields(self):
            setattr(self, field.name, 0.0)


@dataclass(slots=True, eq=False)
class Call:
    """A request; `to_coordinator` ones are refused or dropped while that moves."""

    what: str
    name: str
    serve: Callable[[], Reply]
    answered: Callable[[Reply], object]
    to_coordinator: bool
    copies: int = 0
    done: bool = False


@dataclass(slots=True, eq=False)
class Copy:
    """One transmission of a request."""

    call: Call
    number: int
    gone: bool = False
    served: bool = False


class Network:
    def __init__(self, loop: Loop, broker: Broker, rates: Rates) -> None:
        self.loop = loop
        self.broker = broker
        self.rates = rates
        self.held: list[Copy] = []
        self.counts: Counter[str] = Counter()

    def delay_s(self) -> float:
        rng = self.loop.rng
        if rng.random() < self.rates.slow:
            return rng.choice((0.05, 0.4, 0.6, 1.5, 8.0)) * rng.uniform(0.5, 1.5)
        return rng.uniform(0.0002, LONGEST_S)

    def marker_s(self) -> float:
        rng = self.loop.rng
        slow = rng.random() < self.rates.slow_markers
        return rng.uniform(0.05, 4.0) if slow else rng.uniform(0.0005, 0.004)

    def serve(self, copy: Copy) -> Reply | None:
        """Serve a copy that has arrived; None: nobody answers."""
        call = copy.call
        broker = self.broker
        copy.served = True
        where = f"{call.name}: {call.what}"
        if copy.number > 1 or call.done:
            where += f" (copy {copy.number}{', late' if call.done else ''})"
        if call.to_coordinator and broker.moving:
            self.loop.note(f"{where}: the coordinator is moving")
            return None if broker.silent else (KafkaError.NOT_COORDINATOR, 0, 0)
        late = copy.number < call.copies or call.done
        if call.what.startswith("EndTxn"):
            self.counts["repeated EndTxns"] += copy.number > 1
            self.counts["late EndTxns"] += late
        self.counts["late requests"] += late
        reply = call.serve()
        self.loop.note(f"{where}: {_word(reply)}")
        return reply

    def hold(self, copy: Copy) -> None:
        self.held.append(copy)
        self.loop.after(
            self.loop.rng.choice((0.3, 2.0, 20.0, 90.0)), lambda: self._let_go(copy)
        )

    def deliver_held(self) -> None:
        for copy in list(self.held):
            self._let_go(copy)

    def _let_go(self, copy: Copy) -> None:
        if copy in self.held:
            self.held.remove(copy)
            self.serve(copy)

    def tempt(self, name: str) -> None:
        """Perhaps deliver a held request now that another one of its id has been served."""
        if not self.held:
            return
        mine = [copy for copy in self.held if copy.call.name == name]
        if mine and self.loop.rng.random() < 0.3:
            self._let_go(self.loop.rng.choice(mine))


def _word(reply: Reply) -> str:
    code, first, second = reply
    return f"{first}, {second}" if code == 0 else KafkaError(code).name()


class Link:
    """A client's connection to one broker: in order, until it breaks."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._loop = network.loop
        self._flying: list[Copy] = []
        self._generation = 0
        self._busy_until_s = 0.0
        self.closed = False

    def send(self, call: Call) -> None:
        if self.closed:
            return
        network = self._network
        loop = self._loop
        call.copies += 1
        copy = Copy(call, call.copies)
        generation = self._generation
        self._flying.append(copy)
        at = self._busy_until_s = max(
            loop.now_s + network.delay_s(), self._busy_until_s
        )
        loop.at(at, lambda: self._arrive(copy, generation))
        # An EndTxn on its way is the worst time.
        worst = _WORST if call.what.startswith("EndTxn") else 1.0
        if loop.rng.random() < network.rates.breaks * worst:
            loop.after(
                loop.rng.choice((0.0, 0.001, 0.003, 0.5)),
                lambda: self.break_(generation),
            )

    def _arrive(self, copy: Copy, generation: int) -> None:
        if copy.gone:
            return
        network = self._network
        loop = self._loop
        reply = network.serve(copy)
        network.tempt(copy.call.name)
        if reply is None:
            loop.after(loop.rng.uniform(*_SILENT_S), lambda: self.break_(generation))
            return
        answer = reply
        loop.after(network.delay_s(), lambda: self._answer(copy, generation, answer))

    def _answer(self, copy: Copy, generation: int, reply: Reply) -> None:
        if self.closed or generation != self._generation:
            return
        self._flying.remove(copy)
        if copy.call.done:
            return
        copy.call.done = True
        copy.call.answered(reply)

    def break_(self, generation: int | None = None) -> None:
        if generation is not None and generation != self._generation:
            return
        loop = self._loop
        self._generation += 1
        self._busy_until_s = loop.now_s
        flying = self._flying
        self._flying = []
        if not flying:
            return
        loop.note(f"{flying[0].call.name}: a connection breaks")
        for copy in flying:
            if copy.served:
                continue
            fate = loop.rng.random()
            copy.gone = fate < 0.75
            if 0.25 <= fate < 0.75:
                self._network.hold(copy)
        if not self.closed and any(not copy.call.done for copy in flying):
            loop.after(loop.rng.uniform(*BACKOFF_S), lambda: self._again(flying))

    def _again(self, copies: list[Copy]) -> None:
        for copy in copies:
            if not copy.call.done:
                self.send(copy.call)

    def close(self) -> None:
        """End without repeating anything; what is on its way may arrive."""
        if not self.closed:
            self.closed = True
            for copy in self._flying:
                copy.call.done = True
            if self._loop.rng.random() < 0.5:
                self.break_()
