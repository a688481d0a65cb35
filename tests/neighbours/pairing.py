"""Pairs from seeds, their figures, and the fewest events that still show a violation."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter
from typing import TypeVar

from tests.neighbours.compare import Comparison, Sizes, rejected
from tests.neighbours.driver import World
from tests.neighbours.pairs import (
    ACCEPTED_OR_NOT,
    STATES,
    Neighbour,
    Stream,
    closing,
    grid,
    make_stream,
    neighbours,
)
from tests.neighbours.rules import alone
from tests.neighbours.scenes import Scene, Seed, make_scene
from workers.runtime.errors import QuietcountError

T = TypeVar("T")

#: Streams of one scene, which share its set-up, and worlds of a stream: itself and its neighbours.
STREAMS = 4
WORLDS = 9
#: One world in this many is run whole, without commits of others.
WHOLE = 16


@dataclass
class Figures:
    """By mechanism of the first histogram."""

    worlds: int = 0
    pairs: int = 0
    ticks: int = 0
    rows: int = 0
    violations: int = 0

    def add(self, other: "Figures") -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass(frozen=True)
class Violation:
    seed: Seed
    stream: Stream
    neighbour: Neighbour
    texts: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"seed {self.seed}, {self.stream.scene}: {self.neighbour.kind}"]
        for place, event in enumerate(self.stream.events):
            new = self.neighbour.events[place]
            lines.append(f"  {event}" + (f"\n    -> {new}" if new != event else ""))
        return "\n".join(
            [*lines, *(f"  {step}" for step in self.stream.script), *self.texts[:5]]
        )


@dataclass
class Search:
    """Compares every two of `worlds` neighbours of every stream, or with `grids` those of a grid.

    `states` is how many each record of a grid has.
    """

    worlds: int = WORLDS
    grids: bool = False
    states: int = STATES
    figures: dict[str, Figures] = field(default_factory=lambda: defaultdict(Figures))
    kinds: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def streams(self, seeds: Iterable[Seed]) -> Iterator[Violation]:
        """Compare the neighbours of the streams of these seeds; yield the violations."""
        for name, of_scene in groupby(seeds, attrgetter("variant", "scene")):
            scene = make_scene(*name)
            _ = scene.factories  # settings that are refused are no violation
            for seed in of_scene:
                yield from self._stream(scene, seed)

    def _stream(self, scene: Scene, seed: Seed) -> Iterator[Violation]:
        stream = make_stream(scene, seed)
        sizes = Sizes()
        near = (
            grid(stream, seed, self.states)
            if self.grids
            else neighbours(stream, seed, self.worlds)
        )
        figures = self.figures[scene.variant.mechanism]
        comparison = Comparison(scene, sizes)
        done: list[World] = []
        for place, events in enumerate(near.events):
            of_world = replace(stream, events=events)
            number = seed.scene * STREAMS + seed.stream
            whole = (number * self.worlds + place) % WHOLE == 0
            try:
                world = World(
                    scene, of_world.records(), stream.script, () if whole else done
                )
                texts = [*of_one(world, done), *rejected(world, events, near.changed)]
            except QuietcountError as error:
                texts = [f"fails: {error}"]
            figures.worlds += 1
            if texts:
                figures.violations += 1
                itself = near.pair(place, place)
                yield Violation(seed, of_world, itself, tuple(texts))
                return
            done.append(world)
        for one, two in near.pairs():
            pair = near.pair(one, two)
            figures.pairs += 1
            self.kinds[pair.kind] += 1
            if found := tuple(comparison.pair(done[one], done[two], pair)):
                figures.violations += 1
                yield Violation(seed, replace(stream, events=pair.before), pair, found)
        figures.ticks += sizes.ticks
        figures.rows += sizes.rows


def of_one(world: World, others: Sequence[World] = ()) -> Iterator[str]:
    """Yield what is wrong in a world by itself, but for what it took from others."""
    for where, trail in world.of.items():
        if all(one.of[where] is not trail for one in others):
            yield from alone(world.scene, where, trail.commits)


def violated(stream: Stream, near: Neighbour) -> tuple[str, ...]:
    """Return the violations of a pair whose worlds take nothing from each other."""
    worlds = list[World]()
    texts = list[str]()
    for events in (near.before, near.events):
        try:
            records = replace(stream, events=events).records()
            worlds.append(World(stream.scene, records, stream.script))
        except QuietcountError as error:
            return (f"fails: {error}",)
        texts += [*of_one(worlds[-1]), *rejected(worlds[-1], events, near.changed)]
    comparison = Comparison(stream.scene, Sizes())
    return (*texts, *comparison.pair(worlds[0], worlds[1], near))


def shrunk(found: Violation) -> Violation:
    """Drop events, then steps before the closing ones, as long as some violation is left."""
    stream = found.stream
    near = found.neighbour
    texts = found.texts
    for place in reversed(range(len(stream.events))):
        # Earlier events may be why this one moves no watermark.
        if place in near.changed or near.kind == ACCEPTED_OR_NOT:
            continue
        changed = tuple(i - (i > place) for i in near.changed)
        fewer = replace(stream, events=_without(stream.events, place))
        other = near._replace(
            events=_without(near.events, place), before=fewer.events, changed=changed
        )
        if left := violated(fewer, other):
            stream = fewer
            near = other
            texts = left
    last = len(list(closing(stream.scene, 0)))
    for place in reversed(range(len(stream.script) - last)):
        fewer = replace(stream, script=_without(stream.script, place))
        if left := violated(fewer, near):
            stream = fewer
            texts = left
    return Violation(found.seed, stream, near, texts)


def _without(whole: tuple[T, ...], place: int) -> tuple[T, ...]:
    return (*whole[:place], *whole[place + 1 :])
