"""Whether two neighbours are as hard to tell apart as the mechanism says: a coupling of their noise, and what it costs.

The proof of every mechanism here has one form: whatever one world shows, with whatever noise, the neighbour shows the same with noise
that is moved by a few whole numbers; what moves is where an event entered a statistic. So: run one world and keep its transcript, move
those noise values by what the statistic they were added to differs (the adapters say which, from the papers' definitions of the
statistics and not from the code), repeat its picks, run the other world. If the transcripts are equal, these are all the statistics there
are, and the moves are their sensitivity, whose price follows from the tables that were really drawn from:

    discrete Gaussian    move d of N_Z(0, s2)       d^2 / (2 s2)
    discrete Laplace     move d of scale b          (d / b)^2 / 2; pure |d| / b
    pick                 scores' moves span e b     e^2 / 8
    AboveThreshold       e1 of threshold, e2 of test    (e1 + 2 e2)^2 / 8; pure e1 + 2 e2

A statistic counted twice, a level that is not noised, a bound that is not applied leave transcripts that differ, or a price above `cost()`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from tests.contract.probe import Block, Peel, Probe
from tests.contract.stage import Histogram, Run, Tick, with_events
from tests.contract.variants import Variant
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.noise.discrete_laplace import DiscreteLaplace, Geometric
from workers.mechanisms.noise.gaussian import IntegerGaussian
from workers.mechanisms.noise.inversion import InversionTable

Events = Sequence[tuple[int, Histogram]]


@dataclass(frozen=True)
class Test:
    """One run of AboveThreshold.

    Attributes:
        threshold: block of its threshold's noise, and by how much it moves.
        stop: the same of the test that stops it; None where none does.
        reach: the most that a compared value differs: what is paid for, in either direction.
    """

    threshold: tuple[Block, int]
    stop: tuple[Block, int] | None
    reach: int


@dataclass
class Moves:
    """How the neighbour's noise differs."""

    shifts: dict[Block, int] = field(default_factory=dict)
    tests: list[Test] = field(default_factory=list)

    def add(self, block: Block, shift: int) -> None:
        """A noise value moves by so much more."""
        self.shifts[block] = self.shifts.get(block, 0) + shift

    def all(self) -> dict[Block, int]:
        """Every move, of tests too."""
        found = {block: shift for block, shift in self.shifts.items() if shift}
        for test in self.tests:
            for move in (test.threshold, test.stop):
                if move and move[1]:
                    found[move[0]] = found.get(move[0], 0) + move[1]
        return found


@dataclass(frozen=True)
class Price:
    """What a coupling costs, part by part: standard deviations and scales in units of the move.

    Attributes:
        gaussian: sigma / move of each moved discrete Gaussian.
        laplace: scale / move of each moved discrete Laplace.
        picks: e of each pick.
        tests: (e1, e2) of each run of AboveThreshold.
    """

    gaussian: tuple[float, ...]
    laplace: tuple[float, ...]
    picks: tuple[float, ...]
    tests: tuple[tuple[float, float], ...]

    @property
    def rho(self) -> float:
        """zCDP."""
        noise = sum(1 / (2 * s**2) for s in self.gaussian) + sum(
            1 / (2 * b**2) for b in self.laplace
        )
        return (
            noise
            + sum(e**2 / 8 for e in self.picks)
            + sum((e1 + 2 * e2) ** 2 / 8 for e1, e2 in self.tests)
        )

    @property
    def epsilon(self) -> float:
        """Pure epsilon; infinite where there is Gaussian noise."""
        if self.gaussian:
            return float("inf")
        return (
            sum(1 / b for b in self.laplace)
            + sum(self.picks)
            + sum(e1 + 2 * e2 for e1, e2 in self.tests)
        )


@dataclass(frozen=True)
class World:
    """One of two neighbours, run to its end.

    Attributes:
        stream: exact counts of each tick.
        run: after the last tick.
        probe: all noise.
        transcript: all releases.
        notes: what the adapter noted before the first and after each tick.
    """

    stream: Sequence[Tick]
    run: Run
    probe: Probe
    transcript: list[object]
    notes: list[object]


class Adapter(ABC):
    """What one family's statistics are. `sign` is +1 where the second world has the events and the first has not, else -1."""

    def __init__(self, variant: Variant, mechanism: Mechanism) -> None:
        self.variant, self.mechanism = variant, mechanism

    def note(self, run: Run) -> object:
        """Kept after each tick; public in the sense of the proof: a function of the transcript and of noise."""
        return None

    def private(self, run: Run) -> object:
        """What is private by the same proof and so must agree too, though a release may show less of it."""
        return None

    @abstractmethod
    def moves(self, first: World, other: Sequence[Tick], events: Events, sign: int) -> Moves:
        """The coupling."""


def perform(adapter: Adapter, stream: Sequence[Tick], seed: int, probe: Probe) -> World:
    """Runs one world to its end."""
    with probe.watching():
        run = Run(adapter.mechanism, seed)
        notes: list[object] = [adapter.note(run)]
        transcript: list[object] = []
        for t, tick in enumerate(stream, 1):
            transcript.append((run.named(run.step(t, tick)), adapter.private(run)))
            notes.append(adapter.note(run))
    return World(stream, run, probe, transcript, notes)


def couple(adapter: Adapter, stream: Sequence[Tick], events: Events, seed: int, sign: int) -> Price:
    """Couples the two worlds; gives the price.

    Raises:
        AssertionError: the neighbour shows something else.
    """
    worlds = [list(stream), with_events(stream, events)]
    before, after = worlds if sign > 0 else worlds[::-1]
    first = perform(adapter, before, seed, Probe())
    moves = adapter.moves(first, after, events, sign)
    second = perform(adapter, after, seed, Probe(shifts=moves.all(), script=first.probe.peels))
    for t, (shown, expected) in enumerate(zip(second.transcript, first.transcript, strict=True), 1):
        assert shown == expected, f"tick {t}: the neighbour shows {shown}, not {expected}"
    return _price(moves, first.probe, second.probe)


def check(adapter: Adapter, stream: Sequence[Tick], events: Events, seed: int) -> list[Price]:
    """Both directions, each within the stated cost.

    Raises:
        AssertionError: the neighbours can be told apart better than stated.
    """
    prices = [couple(adapter, stream, events, seed, sign) for sign in (1, -1)]
    mechanism = adapter.mechanism
    for price in prices:
        assert price.rho <= mechanism.cost().rho * (1 + 1e-9), (
            f"rho {price.rho}, stated {mechanism.cost().rho}"
        )
        if pure(adapter.variant):
            assert price.epsilon <= mechanism.guarantee.epsilon * (1 + 1e-9), (
                f"epsilon {price.epsilon}"
            )
    return prices


def pure(variant: Variant) -> bool:
    """Whether the promise is one of pure epsilon."""
    return "pure" in (variant.options.get("accounting"), variant.options.get("release"))


def _price(moves: Moves, first: Probe, second: Probe) -> Price:
    """What is drawn in one world alone does not decide what both show."""
    gaussian, laplace = [], []
    of_tests = {move[0] for test in moves.tests for move in (test.threshold, test.stop) if move}
    for block, shift in moves.shifts.items():
        if shift and block in first.drawn and block in second.drawn and block not in of_tests:
            table = first.drawn[block][0]
            assert second.drawn[block][0] is table
            if isinstance(table, IntegerGaussian):
                gaussian.append(float(table.sigma_squared) ** 0.5 / abs(shift))
            else:
                laplace.append(float(_scale(table)) / abs(shift))
    tests = []
    for test in moves.tests:
        scales = [
            float(_scale(first.drawn[move[0]][0])) if move else float("inf")
            for move in (test.threshold, test.stop)
        ]
        tests.append((test.reach / scales[0], test.reach / scales[1]))
    both = first.peels.keys() & second.peels.keys()
    picks = [e for word in both for e in _spans(first.peels[word], second.peels[word])]
    return Price(tuple(gaussian), tuple(laplace), tuple(picks), tuple(tests))


def _spans(one: Peel, other: Peel) -> Iterator[float]:
    """The length of the interval in which each pick's loss lies; the scores of all that may be picked count, not the picked one's."""
    assert one.scale == other.scale
    moved = [
        other.scores[name] - one.scores[name] for name in one.scores.keys() & other.scores.keys()
    ]
    span = (max(moved) - min(moved)) / float(one.scale)
    if span:
        yield from [span] * len(one.picked)


def _scale(table: InversionTable) -> Fraction:
    if isinstance(table, DiscreteLaplace | Geometric):
        return table.scale
    raise TypeError(f"table = {table!r}: has no scale")
