"""Couple the noise of two neighbours to bound how well a mechanism's output tells them apart.

All proofs here have one form: for any output and noise of one world, the neighbour gives the same
output with a few noise values moved by integers, namely where the event entered a statistic. So:
run one world and keep its transcript; move those noise values by the difference of the statistic
they were added to (the adapters take it from the papers' definitions, not from the code); repeat
its picks; run the other world. If the transcripts are equal, no other statistic exists, and the
moves are the sensitivities. Their price follows from the tables really drawn from:

    normal, discrete Gaussian    move d of N(0, s2) or N_Z(0, s2)    d^2 / (2 s2)
    discrete Laplace     move d of scale b          (d / b)^2 / 2; pure |d| / b
    pick                 scores' moves span e b     e^2 / 8
    AboveThreshold       e1 of threshold, e2 of test    (e1 + 2 e2)^2 / 8; pure e1 + 2 e2

A statistic counted twice, a level without noise or an unapplied bound gives unequal transcripts, or
a price above `cost()`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from tests.contract.probe import Block, Half, Peel, Probe
from tests.contract.stage import Histogram, Run, Tick, with_events
from tests.contract.variants import Variant, built
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.noise.discrete_laplace import DiscreteLaplace, Geometric
from workers.mechanisms.noise.gaussian import IntegerGaussian
from workers.mechanisms.noise.inversion import InversionTable
from workers.mechanisms.noise.rounded_gaussian import RoundedGaussian

Events = Sequence[tuple[int, Histogram]]


@dataclass(frozen=True)
class Test:
    threshold: tuple[Block, int]  # block of the threshold's noise, and its move
    stop: tuple[Block, int] | None  # the same for the test that stops the run, if any
    reach: int  # largest difference of a compared value, paid for in either direction


@dataclass
class Moves:
    """Noise moves that turn one neighbour's run into the other's."""

    shifts: dict[Block, int] = field(default_factory=dict)
    of_numbers: dict[Half, Fraction] = field(default_factory=dict)
    tests: list[Test] = field(default_factory=list)

    def add(self, block: Block, shift: int) -> None:
        self.shifts[block] = self.shifts.get(block, 0) + shift

    def add_number(self, number: Half, shift: Fraction) -> None:
        self.of_numbers[number] = self.of_numbers.get(number, Fraction(0)) + shift

    def all(self) -> dict[Block, int]:
        found = {block: shift for block, shift in self.shifts.items() if shift}
        for test in self.tests:
            for move in (test.threshold, test.stop):
                if move and move[1]:
                    found[move[0]] = found.get(move[0], 0) + move[1]
        return found


@dataclass(frozen=True)
class Price:
    """Parts of a coupling's cost: standard deviations and scales in units of the move."""

    gaussian: tuple[float, ...]  # sigma / move of each moved Gaussian
    laplace: tuple[float, ...]  # scale / move of each moved discrete Laplace
    picks: tuple[float, ...]  # e of each pick
    tests: tuple[tuple[float, float], ...]  # (e1, e2) of each run of AboveThreshold

    @property
    def rho(self) -> float:
        noise = sum(1 / (2 * width**2) for width in (*self.gaussian, *self.laplace))
        return noise + sum(e**2 / 8 for e in self._intervals)

    @property
    def epsilon(self) -> float:
        """Return the pure epsilon; infinite where there is Gaussian noise."""
        if self.gaussian:
            return float("inf")
        return sum(1 / b for b in self.laplace) + sum(self._intervals)

    @property
    def _intervals(self) -> list[float]:
        return [*self.picks, *(e1 + 2 * e2 for e1, e2 in self.tests)]


@dataclass(frozen=True)
class World:
    stream: Sequence[Tick]  # exact counts
    probe: Probe
    transcript: list[object]
    notes: list[Any]  # the adapter's, before the first tick and after every tick


class Adapter(ABC):
    """Statistics of one family. `sign`: +1 if only the second world has the events, else -1."""

    def __init__(self, variant: Variant, mechanism: Mechanism) -> None:
        self.variant = variant
        self.mechanism = mechanism

    @property
    def counter(self) -> Any:
        return self.mechanism.public()["counter"]

    def note(self, run: Run) -> object:
        """Return a note to keep after each tick: a function of the transcript and of noise."""
        return None

    def private(self, run: Run) -> object:
        """Return values that are private by the same proof and must agree, even if not released."""
        return None

    @abstractmethod
    def moves(
        self, first: World, other: Sequence[Tick], events: Events, sign: int
    ) -> Moves: ...


def perform(adapter: Adapter, stream: Sequence[Tick], seed: int, probe: Probe) -> World:
    with probe.watching():
        run = Run(adapter.mechanism, seed)
        notes: list[Any] = [adapter.note(run)]
        transcript: list[object] = []
        for t, tick in enumerate(stream, 1):
            transcript.append((run.named(run.step(t, tick)), adapter.private(run)))
            notes.append(adapter.note(run))
    return World(stream, probe, transcript, notes)


def couple(
    adapter: Adapter, stream: Sequence[Tick], events: Events, seed: int, sign: int
) -> Price:
    """Couple the two worlds and return the price; AssertionError if the outputs differ."""
    worlds = [list(stream), with_events(stream, events)]
    before, after = worlds if sign > 0 else worlds[::-1]
    first = perform(adapter, before, seed, Probe())
    moves = adapter.moves(first, after, events, sign)
    second = perform(
        adapter,
        after,
        seed,
        Probe(moves.all(), moves.of_numbers, script=first.probe.peels),
    )
    for t, (shown, expected) in enumerate(
        zip(second.transcript, first.transcript, strict=True), 1
    ):
        assert shown == expected, (
            f"tick {t}: the neighbour shows {shown}, not {expected}"
        )
    return _price(moves, first.probe, second.probe)


def check(
    adapter: Adapter, stream: Sequence[Tick], events: Events, seed: int
) -> list[Price]:
    """Check both directions against the stated cost; AssertionError if the price exceeds it."""
    prices = [couple(adapter, stream, events, seed, sign) for sign in (1, -1)]
    mechanism = adapter.mechanism
    for price in prices:
        stated = mechanism.cost().rho
        epsilon = mechanism.guarantee.epsilon
        assert price.rho <= stated * (1 + 1e-9), f"rho {price.rho}, stated {stated}"
        if pure(adapter.variant):
            assert price.epsilon <= epsilon * (1 + 1e-9), f"epsilon {price.epsilon}"
    return prices


def pure(variant: Variant) -> bool:
    return built(variant).cost().pure


def _price(moves: Moves, first: Probe, second: Probe) -> Price:
    """Price the moves; draws made in one world only do not affect the common output."""
    gaussian: list[float] = []
    laplace: list[float] = []
    for number in (
        moves.of_numbers.keys() & first.numbers.keys() & second.numbers.keys()
    ):
        if shift := float(moves.of_numbers[number]):
            gaussian.append(float(first.numbers[number]) ** 0.5 / abs(shift))
    of_tests = {
        move[0] for test in moves.tests for move in (test.threshold, test.stop) if move
    }
    for block, shift in moves.shifts.items():
        if (
            shift
            and block in first.drawn
            and block in second.drawn
            and block not in of_tests
        ):
            table = first.drawn[block][0]
            assert second.drawn[block][0] is table
            if isinstance(table, IntegerGaussian | RoundedGaussian):
                gaussian.append(float(table.sigma_squared) ** 0.5 / abs(shift))
            else:
                laplace.append(float(_scale(table)) / abs(shift))
    tests = []
    for test in moves.tests:
        tables = (
            first.drawn[move[0]][0] if move else None
            for move in (test.threshold, test.stop)
        )
        e1, e2 = (
            test.reach / float(_scale(table)) if table else 0.0 for table in tables
        )
        tests.append((e1, e2))
    both = first.peels.keys() & second.peels.keys()
    picks = [e for word in both for e in _spans(first.peels[word], second.peels[word])]
    return Price(tuple(gaussian), tuple(laplace), tuple(picks), tuple(tests))


def _spans(one: Peel, other: Peel) -> Iterator[float]:
    """Return the loss interval's length for every pick, over the scores of all candidates."""
    assert one.scale == other.scale
    both = one.scores.keys() & other.scores.keys()
    moved = [other.scores[name] - one.scores[name] for name in both]
    span = (max(moved) - min(moved)) / float(one.scale)
    if span:
        yield from [span] * len(one.picked)


def _scale(table: InversionTable) -> Fraction:
    if isinstance(table, DiscreteLaplace | Geometric):
        return table.scale
    raise TypeError(f"table = {table!r}: has no scale")
