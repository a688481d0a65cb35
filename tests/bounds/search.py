"""Hill-climbing search for the shapes that cost a stage most, compared with `BOUNDS`.

A cell is a variant of settings, a format, a stage, and what is measured.
"""

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from tests.bounds.encoded import FORMS
from tests.bounds.shapes import BATCH_BYTES, Shape, begins, changed
from tests.bounds.stages import VARIANTS, Cost, Stages

MEMORY = "memory"
TIME = "time"
#: What a batch costs however small it is: tables that a shard makes once, a pass over a batch.
CONSTANT = MappingProxyType({MEMORY: 48 << 20, TIME: 40_000_000})
#: Below this a batch says little of what a byte costs.
SMALL = 200_000
#: Bytes allocated, and ns of processor time, for each uncompressed byte of a batch, by stage.
STAGES = ("rekey", "contribute", "release", "check", "replay")
BOUNDS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        MEMORY: dict(zip(STAGES, (60, 90, 40, 160, 160), strict=True)),
        TIME: dict(zip(STAGES, (3_000, 3_000, 2_000, 6_000, 3_000), strict=True)),
    }
)
#: In five views an empty text of Avro, one byte, takes 140 to 190.
HIGHER = MappingProxyType({("contribute", MEMORY, "avro"): 250.0})


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    stage: str
    what: str
    variant: str
    form: str


def bound(cell: Cell) -> float:
    return HIGHER.get((cell.stage, cell.what, cell.form), BOUNDS[cell.what][cell.stage])


@dataclass(frozen=True, slots=True)
class Worst:
    score: float
    shape: Shape


def score(what: str, cost: Cost) -> float:
    """Return bytes or ns for each byte read, beyond the constant.

    Where a batch takes less than that, it is negative, so that a climb sees what is more there too.
    """
    value = cost.peak if what == MEMORY else cost.cpu_ns
    return (value - CONSTANT[what]) / max(cost.nbytes, SMALL)


def cells(forms: Sequence[str] = ("json", *FORMS)) -> list[Cell]:
    found = []
    for form in forms:
        for variant in VARIANTS:
            if form != "json" and variant in ("lines", "buckets"):  # `several` has both
                continue
            for stage in Stages(variant, form).names:
                if variant != "rekey" or stage == "rekey":
                    found += [
                        Cell(stage, what, variant, form) for what in (MEMORY, TIME)
                    ]
    return found


@cache
def _stages(variant: str, form: str) -> Stages:
    stages = Stages(variant, form)
    stages.warm()
    return stages


class Search:
    def __init__(
        self, seed: int, asked: Sequence[Cell], most: int = BATCH_BYTES
    ) -> None:
        """`seed` is that of all choices; `most` the approximate bytes of a batch."""
        self.worst: dict[Cell, Worst] = {}
        self.tried = 0
        self._rng = random.Random(seed)
        self._cells = list(asked)
        self._most = most

    def begin(self, shapes: Sequence[Shape]) -> Iterator[tuple[Cell, Worst]]:
        for cell in self._cells:
            for shape in shapes:
                yield from self._try(cell, shape)

    def climb(self, until: Callable[[], bool]) -> Iterator[tuple[Cell, Worst]]:
        """Change the worst shapes, a cell at a time, until told to end; yield each new worst."""
        starts = begins()
        while not until():
            cell = self._rng.choice(self._cells)
            known = self.worst.get(cell)
            if known is None or self._rng.random() < 0.1:
                shape = self._rng.choice(starts)
            elif self._rng.random() < 0.15:  # what is bad elsewhere may be here
                shape = self._rng.choice(list(self.worst.values())).shape
            else:
                shape = known.shape
                for _ in range(self._rng.choice((1, 1, 2, 3))):
                    shape = changed(shape, self._rng)
            yield from self._try(cell, shape)

    def _try(self, cell: Cell, shape: Shape) -> Iterator[tuple[Cell, Worst]]:
        self.tried += 1
        known = self.worst[cell].score if cell in self.worst else -math.inf
        found = self.measured(cell, shape)
        # again: the machine may have done something else
        if found > known and cell.what == TIME:
            found = min(found, self.measured(cell, shape))
        if found > known:
            self.worst[cell] = Worst(found, shape)
            yield cell, self.worst[cell]

    def measured(self, cell: Cell, shape: Shape) -> float:
        """Return a shape's score: below any other where nothing of it comes to the stage."""
        costs = _stages(cell.variant, cell.form).run(
            shape, self._most, memory=cell.what == MEMORY, only=cell.stage
        )
        cost = costs.get(cell.stage)
        return -math.inf if cost is None else score(cell.what, cost)

    def table(self) -> Iterator[str]:
        """Yield the worst of each stage and format, beside its bound."""
        for stage in dict.fromkeys(cell.stage for cell in self._cells):
            for form in dict.fromkeys(cell.form for cell in self._cells):
                row = []
                for what in (MEMORY, TIME):
                    place = (stage, form, what)
                    of = [c for c in self.worst if (c.stage, c.form, c.what) == place]
                    if of:
                        cell = max(of, key=lambda each: self.worst[each].score)
                        worst = self.worst[cell]
                        most = f"{BOUNDS[what][stage]:6,.0f}"
                        found = f"{cell.variant}: {said(worst.shape)}"
                        row.append(f"{worst.score:9,.1f} of {most}  {found}")
                if row:
                    yield f"{stage:10} {form:11} " + " | ".join(row)

    def above(self) -> list[tuple[Cell, Worst]]:
        return [(c, w) for c, w in self.worst.items() if w.score > bound(c)]


def said(shape: Shape) -> str:
    kinds = []
    for kind in shape.kinds:
        fields = " ".join(
            f"{name}={atom}({size:,})" for name, atom, size in kind.fields
        )
        habit = "" if kind.habit == "plain" else f" {kind.habit}({kind.habit_size:,})"
        value = "null" if kind.null else fields + habit
        key = f" key={kind.key_bytes}" if kind.key_bytes else ""
        kinds.append(f"{kind.times}x[{value}{key}]")
    return f"{' '.join(kinds)} *{shape.rounds:,} {shape.codec}"
