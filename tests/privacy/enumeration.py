"""Exact distribution of a mechanism's output: run its code once for every outcome of its noise.

The code gets the AES words' addresses (tag XOR cell). An address read by a table or a pick is one
chance node with exact probabilities; a depth-first search visits all. Reading an address again
gives the same value; reading it through another table or a pick is reported as shared noise. Paths
less likely than `floor` are left out; `Law.lost` is their total probability.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.arrays.texts import Texts
from workers.mechanisms.ledger import Contributions
from workers.mechanisms.mechanism import Answers, Items, Mechanism, State
from workers.mechanisms.noise import selection
from workers.mechanisms.noise.inversion import WORD_BITS, InversionTable
from workers.mechanisms.noise.keyed import NoiseKey, NoiseStream

KEY = NoiseKey(b"k" * 32)
STREAM_KEY = "s"
_CUT = 1e-12  # values of a table less likely than this are left out

Event = Mapping[str, int]
History = tuple[object, ...]
World = Callable[[int, History], Event]
"""What is contributed at tick t, given what was published before."""
Alternatives = list[tuple[int, float]]


class Addresses(NoiseStream):
    """Words that are their own addresses: tag XOR cell, unciphered."""

    def __init__(self) -> None:
        pass

    def words(
        self, tags: NDArray[np.uint64], cell: tuple[int, int]
    ) -> NDArray[np.uint64]:
        return tags ^ np.array(cell, dtype=np.uint64)

    def chunk(
        self, tags: NDArray[np.uint64], cells: NDArray[np.uint64]
    ) -> NDArray[np.uint64]:
        return (tags ^ cells[:, None]).reshape(-1, 2)


@dataclass(frozen=True)
class Law:
    """Probabilities of outcomes, and the weight of the omitted paths."""

    of: Mapping[object, float]
    lost: float


class Chances:
    """Chance nodes of one run, and the search through all paths."""

    def __init__(self, floor: float) -> None:
        self._floor = floor
        self._way: list[tuple[Alternatives, int, float]] = []
        self._laws: dict[int, Alternatives] = {}
        self._tables: list[InversionTable] = []
        self._depth = 0
        self.probability = 1.0
        self._drawn: dict[tuple[int, int], int] = {}
        self._users: dict[tuple[int, int], object] = {}

    def begin(self) -> None:
        self._depth = 0
        self.probability = 1.0
        self._drawn = {}
        self._users = {}

    def advance(self) -> bool:
        while self._way:
            alternatives, index, before = self._way.pop()
            if (
                index + 1 < len(alternatives)
                and before * alternatives[index + 1][1] >= self._floor
            ):
                self._way.append((alternatives, index + 1, before))
                return True
        return False

    def sample(self, table: InversionTable, word: tuple[int, int]) -> int:
        if word in self._drawn:
            if self._users[word] is not table:
                raise AssertionError(
                    f"one word for {self._users[word]!r} and for {table!r}"
                )
            return self._drawn[word]
        self._users[word] = table
        self._drawn[word] = value = self._choose(self._law(table))
        return value

    def pick(self, word: tuple[int, int], alternatives: Alternatives) -> int:
        if word in self._users:
            raise AssertionError("one word for two picks, or for a pick and a table")
        self._users[word] = "a pick"
        return self._choose(alternatives)

    def _choose(self, alternatives: Alternatives) -> int:
        if self._depth == len(self._way):
            self._way.append((alternatives, 0, self.probability))
        held, index, before = self._way[self._depth]
        value, probability = held[index]
        self._depth += 1
        self.probability = before * probability
        return value

    def _law(self, table: InversionTable) -> Alternatives:
        if id(table) not in self._laws:
            ends = zip(table._high, table._low, strict=True)
            edges = [
                0,
                *((int(high) << 64) | int(low) for high, low in ends),
                1 << WORD_BITS,
            ]
            found = [
                (table._lowest + i, (end - begin) / (1 << WORD_BITS))
                for i, (begin, end) in enumerate(pairwise(edges))
            ]
            self._laws[id(table)] = likely(found)
            self._tables.append(table)  # kept, so that its id stays its own
        return self._laws[id(table)]


def likely(alternatives: Alternatives) -> Alternatives:
    """Return the alternatives that are not cut off, the likeliest first."""
    kept = [(value, p) for value, p in alternatives if p > _CUT]
    return sorted(kept, key=lambda pair: -pair[1])


@contextmanager
def replaced(owner: Any, **members: object) -> Iterator[None]:
    before = {name: getattr(owner, name) for name in members}
    try:
        for name, member in members.items():
            setattr(owner, name, member)
        yield
    finally:
        for name, member in before.items():
            setattr(owner, name, member)


def law_of(mechanism: Mechanism, world: World, ticks: int, floor: float = 1e-8) -> Law:
    """Return the distribution of all output for one stream key over ticks 1..ticks."""
    chances = Chances(floor)
    pick = selection._Groups.pick

    def sample(
        table: InversionTable, words: NDArray[np.uint64], out: NDArray[Any]
    ) -> None:
        out[:] = [chances.sample(table, (high, low)) for high, low in words.tolist()]

    def picked(groups: selection._Groups, word: tuple[int, int]) -> int:
        starts = []
        at = 0
        for weight, left in zip(groups._weights, groups._left, strict=False):
            starts += [
                (at + i * weight, weight / groups._total) for i in range(left) if weight
            ]
            at += weight * left
        alternatives = likely([(i, p) for i, (_, p) in enumerate(starts)])
        start = starts[chances.pick(word, alternatives)][0]
        same = -(-(start << WORD_BITS) // groups._total)
        return pick(groups, (same >> 64, same & (1 << 64) - 1))

    found: dict[object, float] = {}
    with (
        replaced(InversionTable, sample=sample),
        replaced(selection._Groups, pick=picked),
    ):
        while True:
            chances.begin()
            outcome = _run(mechanism, world, ticks)
            found[outcome] = found.get(outcome, 0.0) + chances.probability
            if not chances.advance():
                break
    return Law(found, max(0.0, 1 - math.fsum(found.values())))


def _run(mechanism: Mechanism, world: World, ticks: int) -> History:
    state = mechanism.init()
    noise = mechanism.noise(Addresses())
    state.key_tags = KEY.tags(STREAM_KEY, [b"\xff"])
    labels = mechanism.domain()
    mechanism.prepare_key(state, 0, KEY.tags(STREAM_KEY, labels), labels)
    history: History = ()
    for t in range(1, ticks + 1):
        state, release = mechanism.step(state, t, parts(world(t, history)), noise)
        history = (*history, seen(state, release))
    return history


def parts(event: Event) -> list[tuple[Contributions, NDArray[np.int32]]]:
    """Return one message with these counts of the one stream key."""
    labels = [label.encode() for label, count in event.items() if count]
    counts = np.array([count for count in event.values() if count], dtype=np.int64)
    row = np.zeros(len(labels), dtype=np.int32)
    tags = KEY.tags(STREAM_KEY, labels)
    found = Contributions((STREAM_KEY,), row, tags, Texts.of(labels), counts)
    return [(found, np.zeros(1, np.int32))]


def seen(state: State, release: object) -> object:
    if isinstance(release, Answers):
        return repr(sorted(release.of_key[0].items()))
    if isinstance(release, Items):
        shown = sorted(zip(release.labels, release.counts.tolist(), strict=True))
        return tuple(shown), release.threshold

    rows = release.rows.tolist()  # type: ignore[attr-defined]  # a Release, the third kind
    counts = release.counts.tolist()  # type: ignore[attr-defined]  # a Release, the third kind
    labels = map(state.ledger.label, rows)
    return tuple(sorted(zip(labels, counts, strict=True)))


def fixed(*ticks: Event) -> World:
    return lambda t, _: ticks[t - 1]


def also(world: World, tick: int, event: Event | Callable[[History], Event]) -> World:
    """Return the neighbour with one more event at `tick`, possibly dependent on earlier output."""

    def richer(t: int, history: History) -> Event:
        before = world(t, history)
        if t != tick:
            return before
        added = event(history) if callable(event) else event
        return {
            label: before.get(label, 0) + added.get(label, 0)
            for label in {**before, **added}
        }

    return richer


def hockey_stick(p: Law, q: Law, epsilon: float) -> float:
    """Return sup over S of P(S) - e^epsilon Q(S), less what paths left out of Q could explain."""
    factor = math.exp(epsilon)
    above = math.fsum(
        max(0.0, mass - factor * q.of.get(o, 0.0)) for o, mass in p.of.items()
    )
    return above - factor * q.lost


def renyi(p: Law, q: Law, order: int) -> float:
    """Return D_order(P || Q) over the outcomes that neither left out."""
    shared = [(mass, q.of[o]) for o, mass in p.of.items() if q.of.get(o, 0.0) > 0]
    total = math.fsum(mass**order * other ** (1 - order) for mass, other in shared)
    return math.log(total) / (order - 1) if total else -math.inf
