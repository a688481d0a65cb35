"""PAMG sketches of neighbouring streams of sets: all that occur, found by steps of the kernels."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.arrays import set_sketches
from workers.arrays.tallies import LabeledEvents
from workers.arrays.texts import readonly_contiguous
from workers.arrays.types import Longs

LABELS = 4
EVENTS = 6
ROOM = 64

# The count of each of the labels; 0: no counter.
Counters = tuple[int, ...]
Step = Callable[[Counters, tuple[int, ...]], Counters]
Pair = tuple[Counters, Counters]

SETS = tuple(
    labels for n in range(1, LABELS + 1) for labels in combinations(range(LABELS), n)
)
EMPTY: Counters = (0,) * LABELS


def algorithm_4(size: int, sets: Sequence[Sequence[str]]) -> dict[str, int]:
    """Return the sketch of a stream of sets, written as the paper has it."""
    counters: dict[str, int] = {}
    for labels in sets:
        for label in labels:
            counters[label] = counters.get(label, 0) + 1
        if len(counters) > size:
            counters = {label: n - 1 for label, n in counters.items() if n > 1}
    return counters


def table() -> set_sketches.SketchTable:
    """Return an empty table with room for what the tests feed, of one stream key."""
    return set_sketches.SketchTable(
        secret=np.uint64(7),
        slots=np.full(2 * ROOM, -1, dtype=np.int32),
        pairs=np.zeros(ROOM, dtype=np.uint64),
        heights=np.zeros(ROOM, dtype=np.int64),
        next_row=np.zeros(ROOM, dtype=np.int32),
        first=np.full(1, -1, dtype=np.int32),
        counters=np.zeros(1, dtype=np.int64),
        lowered=np.zeros(1, dtype=np.int64),
        changed=np.zeros(1, dtype=np.bool_),
        place=np.full(1, -1, dtype=np.int32),
        met=np.zeros(1, dtype=np.int32),
        used=np.array([0, 0, -1]),
    )


def counters_of(
    kernels: Mapping[str, Any], held: set_sketches.SketchTable
) -> dict[int, int]:
    """Return the counters in a table by label."""
    pairs = np.zeros(ROOM, dtype=np.uint64)
    counts = np.zeros(ROOM, dtype=np.int64)
    number = np.zeros(1, dtype=np.int64)
    met = int(held.used[set_sketches.KEYS])
    n = kernels["take_counters"](0, met, held, number, pairs, counts)
    labels = (pairs[:n] & np.uint64(0xFFFFFFFF)).astype(np.int64)
    return dict(zip(labels.tolist(), counts[:n].tolist(), strict=True))


def feed(
    kernels: Mapping[str, Any],
    size: int,
    held: set_sketches.SketchTable,
    sets: Sequence[Sequence[int]],
    max_items: int = ROOM,
) -> None:
    """Feed sets to a table, as the events of one batch."""
    nothing: Longs = np.empty(0, dtype=np.int64)
    columns: list[NDArray[Any]] = [
        np.empty(0, dtype=np.bool_),
        np.zeros(len(sets), dtype=np.int32),
        np.cumsum([len(labels) for labels in sets], dtype=np.int64),
        np.array([label for labels in sets for label in labels], dtype=np.int32),
        nothing,
    ]
    batch = LabeledEvents(*map(readonly_contiguous, columns))
    order = readonly_contiguous(np.arange(len(sets)))
    kernels["feed_sets"](order, batch, max_items, size, held)


def step_of(size: int, kernels: ModuleType | Mapping[str, Any] = set_sketches) -> Step:
    """Return one step of a sketch of `size` counters, made by these kernels."""
    names = vars(kernels) if isinstance(kernels, ModuleType) else kernels

    @cache
    def step(counters: Counters, labels: tuple[int, ...]) -> Counters:
        held = table()
        used = [label for label in range(LABELS) if counters[label]]
        columns: list[NDArray[Any]] = [
            np.zeros(1, dtype=np.int32),
            np.array([len(used)], dtype=np.int64),
            np.array(used, dtype=np.int32),
            np.array([counters[label] for label in used], dtype=np.int64),
        ]
        names["put_counters"](*map(readonly_contiguous, columns), held)
        feed(names, size, held, [labels])
        found = counters_of(names, held)
        return tuple(found.get(label, 0) for label in range(LABELS))

    return step


def reached(step: Step, events: int = EVENTS) -> list[set[Counters]]:
    """Return the sketches of all streams of 0, 1, ..., `events` sets."""
    found = [{EMPTY}]
    for _ in range(events):
        found.append({step(one, labels) for one in found[-1] for labels in SETS})
    return found


def neighbours(step: Step, events: int = EVENTS) -> Iterator[Pair]:
    """Yield every pair of sketches of streams of up to `events` sets, one set left out of one.

    Which pairs occur depends only on those that occurred one set before.
    """
    pairs: set[Pair] = set()
    known: set[Pair] = set()
    for sketches in reached(step, events - 1):
        grown = {(step(x, one), step(y, one)) for x, y in pairs for one in SETS}
        grown |= {(step(x, labels), x) for x in sketches for labels in SETS}
        pairs = grown
        yield from pairs - known
        known |= pairs


def complaint(size: int, pair: Pair) -> str | None:
    """Return how a pair breaks Lemma 9, if it does."""
    differences = {x - y for x, y in zip(*pair, strict=True)} - {0}
    if not differences <= {1} and not differences <= {-1}:
        return "counters differ by more than one, or in both directions"
    if max(sum(map(bool, counters)) for counters in pair) > size:
        return "more than `size` counters"
    return None
