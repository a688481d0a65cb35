"""What columns leave to `Counter.draw`, and what it leaves to `exact`."""

import math
from fractions import Fraction

import numpy as np
import pytest

from tests.mechanisms.small import KEY, numbered
from workers.arrays.types import Tags, Words
from workers.mechanisms.counters import base
from workers.mechanisms.counters.base import Counter
from workers.mechanisms.counters.lifted import LiftedCounter
from workers.mechanisms.counters.sqrt import SqrtCounter
from workers.mechanisms.counters.tree import TreeCounter
from workers.mechanisms.noise import normal
from workers.mechanisms.noise.keyed import CHUNK_ROWS, NoiseStream
from workers.runtime.frozen import thawed

COUNTERS = [LiftedCounter(16, 0.01), TreeCounter(30, 0.01, 3), SqrtCounter(20, 0.01)]
every_counter = pytest.mark.parametrize("counter", COUNTERS, ids=repr)


class SmallWords(NoiseStream, shared=False):
    """A stream whose nodes of even number begin with the digits of v."""

    def __init__(self, v: int) -> None:
        super().__init__(bytes(32))
        self._v = v

    def chunk(self, tags: Tags, cells: Words) -> Words:
        words = super().chunk(tags, cells)
        for i, (_, number) in enumerate(cells.tolist()):
            if number < base._FURTHER:
                words[i * len(tags) : (i + 1) * len(tags), 0] = 2 * self._v + number % 2
        return words


@pytest.mark.slow
@every_counter
@pytest.mark.parametrize("v", [0, 1, 12345, normal.FINE_LEAST - 1])
def test_rows_with_small_words_need_no_exact_numbers(
    counter: Counter, v: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`exact` takes 5 ms a node: a row of `sqrt` with such a word took 40 s a tick at 8,000 ticks."""
    stream = SmallWords(v)
    tags = numbered("small", 3)
    asked = []
    exact = counter.exact

    def count(stream: NoiseStream, t: int, tag: Tags) -> int:
        asked.append(t)
        return exact(stream, t, tag)

    counter = thawed(counter)
    monkeypatch.setattr(counter, "exact", count)
    columns = counter.columns(stream)
    for t in (1, 7, 13):
        expected = [exact(stream, t, tags[i : i + 1]) for i in range(3)]
        assert counter.draw(stream, t, tags).tolist() == expected
        assert columns.at(t, tags).tolist() == expected
        if v:
            terms = base._terms(counter, t)
            (lower, upper) = counter.interval(stream, t, tags, 3)
            found = Fraction(counter._with_small(stream, terms, tags[:1]))
            assert (
                lower - Fraction(terms.error) <= found <= upper + Fraction(terms.error)
            )
    assert bool(asked) == (v == 0)


@every_counter
def test_a_failure_leaves_no_rows_to_a_later_call_of_fewer(
    counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows left undecided by the first chunk, then a MemoryError in the second."""
    counter = thawed(counter)
    stream = thawed(KEY.stream(bytes(16)))
    coarse = counter.fixed._replace(error=1 << counter.fixed.point)
    monkeypatch.setattr(counter, "fixed", coarse)
    tags = numbered("failure", CHUNK_ROWS + 1)
    columns = counter.columns(stream)
    chunk = stream.chunk

    def fail(part: Tags, cells: Words) -> Words:
        if bool((part == tags[-1]).all(axis=1).any()):
            raise MemoryError
        return chunk(part, cells)

    monkeypatch.setattr(stream, "chunk", fail)
    with pytest.raises(MemoryError):
        columns.at(7, tags)
    monkeypatch.undo()
    assert (
        columns.at(8, tags[:3]).tolist() == counter.draw(stream, 8, tags[:3]).tolist()
    )


@pytest.mark.parametrize("horizon", [1, 1000, 2**16])
@pytest.mark.parametrize("rho_item", [1e-9, 1e-7, 0.005, 3.0])
def test_the_error_of_sqrt_columns_allows_for_their_floats(
    horizon: int, rho_item: float
) -> None:
    """Nodes, their unit, sums of 1,024 and of 64 in any order, rounding to a unit."""
    counter = SqrtCounter(horizon, rho_item)
    parts = float(counter._factors.sum())
    unit = 2.0**counter.fixed.point
    sd = math.sqrt(counter.variance_of((0, 0))) * unit
    roundings = (1024 + 64 + 2 + 4) * 2.0**-53 * normal.LARGEST * sd
    assert (
        parts * (1 + normal.ROUGH_ERROR * sd + roundings) + 0.5 <= counter.fixed.error
    )
    assert parts * normal.LARGEST * sd < 2**53
    assert normal.LARGEST * sd < np.iinfo(counter.fixed.dtype).max
