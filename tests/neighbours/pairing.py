"""Pairs from seeds, their figures, and the fewest events that still show a violation."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

from tests.neighbours.compare import Sizes, compare
from tests.neighbours.driver import World
from tests.neighbours.pairs import ACCEPTED_OR_NOT, Neighbour, Stream, make_stream, neighbour
from tests.neighbours.rules import alone
from tests.neighbours.scenes import make_scene
from workers.runtime.errors import QuietcountError

T = TypeVar("T")

#: Neighbours of one stream, and streams of one scene: they share its world and its set-up.
NEIGHBOURS, STREAMS = 4, 8
#: Every so many pairs take nothing from the other world.
WHOLE = 16


@dataclass
class Figures:
    """By mechanism of the first histogram."""

    pairs: int = 0
    ticks: int = 0
    rows: int = 0
    violations: int = 0


@dataclass(frozen=True)
class Violation:
    seed: int
    stream: Stream
    neighbour: Neighbour
    texts: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"seed {self.seed}, {self.stream.scene}: {self.neighbour.kind}"]
        for place, event in enumerate(self.stream.events):
            new = self.neighbour.events[place]
            lines.append(f"  {event}" + (f"\n    -> {new}" if new != event else ""))
        return "\n".join([*lines, *(f"  {step}" for step in self.stream.script), *self.texts[:5]])


@dataclass
class Search:
    figures: dict[str, Figures] = field(default_factory=lambda: defaultdict(Figures))
    kinds: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def pairs(self, first: int, number: int) -> Iterator[Violation]:
        """Compare pairs of seeds from `first` on; yield the violations."""
        at = first
        while at < first + number:
            scene = make_scene(at // (NEIGHBOURS * STREAMS))
            _ = scene.factories  # settings that are refused are no violation
            stop = min(first + number, (at // (NEIGHBOURS * STREAMS) + 1) * NEIGHBOURS * STREAMS)
            while at < stop:
                stream = make_stream(scene, at // NEIGHBOURS)
                end = min(stop, (at // NEIGHBOURS + 1) * NEIGHBOURS)
                yield from self._stream(stream, range(at, end))
                at = end

    def _stream(self, stream: Stream, seeds: range) -> Iterator[Violation]:
        figures, sizes = self.figures[stream.scene.variant.mechanism], Sizes()
        try:
            base = World(stream.scene, stream.records(), stream.script)
        except QuietcountError as error:
            figures.violations += 1
            same = Neighbour("none", stream.events, (), False, stream.events, False)
            yield Violation(seeds[0], stream, same, (f"fails: {error}",))
            return
        texts = list(of_one(base))
        for seed in seeds:
            near = neighbour(stream, seed)
            texts += differences(stream, base, near, sizes, whole=seed % WHOLE == 0)
            figures.pairs += 1
            self.kinds[near.kind] += 1
            if texts:
                figures.violations += 1
                yield Violation(seed, stream, near, tuple(texts))
            texts = []
        figures.ticks += sizes.ticks
        figures.rows += sizes.rows


def of_one(world: World, same: World | None = None) -> Iterator[str]:
    for where, commits in world.of.items():
        if same is None or same.of[where] is not commits:
            yield from alone(world.scene, where, commits)


def differences(
    stream: Stream, base: World, near: Neighbour, sizes: Sizes, *, whole: bool
) -> list[str]:
    scene = stream.scene
    try:
        records = replace(stream, events=near.events).records()
        other = World(scene, records, stream.script, None if whole else base)
    except QuietcountError as error:
        return [f"the neighbour fails: {error}"]
    return [*of_one(other, base), *compare(scene, base, other, near, sizes)]


def violated(stream: Stream, near: Neighbour) -> tuple[str, ...]:
    try:
        base = World(stream.scene, stream.records(), stream.script)
    except QuietcountError as error:
        return (f"fails: {error}",)
    return (*of_one(base), *differences(stream, base, near, Sizes(), whole=True))


def shrunk(found: Violation) -> Violation:
    """Drop events, then steps, as long as some violation is left."""
    stream, near, texts = found.stream, found.neighbour, found.texts
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
            stream, near, texts = fewer, other, left
    for place in reversed(range(len(stream.script))):
        fewer = replace(stream, script=_without(stream.script, place))
        if left := violated(fewer, near):
            stream, texts = fewer, left
    return Violation(found.seed, stream, near, texts)


def _without(whole: tuple[T, ...], place: int) -> tuple[T, ...]:
    return (*whole[:place], *whole[place + 1 :])
