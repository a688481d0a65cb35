"""Exact privacy loss of released sketches: all neighbours of all short streams over few labels.

`pairs_of` runs an algorithm on every stream of at most `length` elements, and on each without one
element. What a release depends on is the pairs of a label's two counters alone, so pairs that agree
in these are one. `delta_of_pair` is the hockey stick of the released law, over every outcome.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from workers.arrays.types import Floats

Stream = tuple[int, ...]
Sketch = Mapping[int, int]
# Of each label in either sketch: its two counters, -1 where it has none; sorted.
Pair = tuple[tuple[int, int], ...]
Law: TypeAlias = Callable[[int], float]

LABELS = range(4)
_DUMMY = 100


def misra_gries(size: int, stream: Iterable[int], *, decrement: int = 1) -> Sketch:
    """Return Algorithm 1's keys and counters, zeros too, without its dummies."""
    counters = {_DUMMY + i: 0 for i in range(size)}
    for x in stream:
        zeros = [key for key, count in counters.items() if count == 0]
        if x in counters:
            counters[x] += 1
        elif not zeros:
            counters = {
                key: max(count - decrement, 0) for key, count in counters.items()
            }
        else:
            del counters[min(zeros)]
            counters[x] = 1
    return {key: count for key, count in counters.items() if key < _DUMMY}


def merged(size: int, one: Sketch, other: Sketch) -> Sketch:
    """Return Section 7's merge: sums, less the (size + 1)-th largest; only what is above zero."""
    sums = {x: one.get(x, 0) + other.get(x, 0) for x in one.keys() | other.keys()}
    counts = sorted(sums.values(), reverse=True)
    off = counts[size] if len(counts) > size else 0
    return {x: count - off for x, count in sums.items() if count > off}


def streams_up_to(length: int) -> Iterable[Stream]:
    for n in range(length + 1):
        yield from itertools.product(LABELS, repeat=n)


def pairs_of(
    algorithm: Callable[[Stream], Sketch], length: int, apart: int = 1
) -> set[Pair]:
    """Return the pairs of sketches of streams that differ by `apart` elements."""
    sketches = {stream: algorithm(stream) for stream in streams_up_to(length)}
    found = set[Pair]()
    for stream, sketch in sketches.items():
        left_out = itertools.combinations(range(len(stream)), apart)
        for gone in map(set, left_out):
            rest = tuple(x for i, x in enumerate(stream) if i not in gone)
            found.add(pair(sketch, sketches[rest]))
    return found


def pair(one: Sketch, other: Sketch) -> Pair:
    labels = one.keys() | other.keys()
    return tuple(sorted((one.get(x, -1), other.get(x, -1)) for x in labels))


def delta_of_pair(
    found: Pair,
    epsilon: float,
    *,
    noise: Law,
    threshold: int,
    reach: int,
    shared: Law | None = None,
) -> float:
    """Return the larger hockey stick at epsilon of the two sketches' releases.

    Counters with integer noise of law `noise`, all with the same further noise of law `shared`,
    show above `threshold`. Noise beyond `reach` shows as the largest value: up to that, exact.
    """
    if all(one == other for one, other in found):
        return 0.0
    largest = max(max(counts) for counts in found) + reach
    etas = range(-reach, reach + 1) if shared else range(1)
    weights = np.array([shared(eta) if shared else 1.0 for eta in etas])
    laws: list[Floats] = []
    for world in (0, 1):
        columns = [
            np.array(
                [_shown(counts[world], eta, noise, threshold, largest) for eta in etas]
            )
            for counts in found
        ]
        laws.append(_joint(weights, columns))
    p, q = laws
    sticks = (
        np.maximum(one - math.exp(epsilon) * other, 0).sum()
        for one, other in ((p, q), (q, p))
    )
    return float(max(sticks))


def _shown(
    count: int, eta: int, noise: Law, threshold: int, largest: int
) -> Sequence[float]:
    """Return the law of one counter: hidden, threshold + 1, ..., `largest` or more."""
    values = range(threshold + 1, largest + 1)
    if count < 0:
        return [1.0, *(0.0 for _ in values)]
    shown = [noise(value - count - eta) for value in values]
    hidden = max(0.0, 1 - math.fsum(shown))
    if eta + count > largest:  # beyond the reach: it shows
        hidden = 0.0
        shown[-1] = 1 - math.fsum(shown[:-1])
    return [hidden, *shown]


def _joint(weights: Floats, columns: Sequence[Floats]) -> Floats:
    """Return the mixture over eta of the products of the columns' laws, flat."""
    joint = weights[:, None]
    for column in columns[:-1]:
        joint = (joint[:, :, None] * column[:, None, :]).reshape(len(weights), -1)
    return np.asarray(joint.T @ columns[-1]).reshape(-1)
