"""A sketch of sets is Algorithm 4, and neighbours differ by one, in one direction (Lemma 9)."""

import random
from collections import Counter

import numpy as np
import pytest

from tests.arrays.uncompiled import plain_python
from tests.mechanisms.misra_gries.sets import (
    EVENTS,
    ROOM,
    algorithm_4,
    complaint,
    counters_of,
    feed,
    neighbours,
    step_of,
    table,
)
from workers.arrays import set_sketches, tallies

COMPILED = vars(set_sketches)


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "plain"])
def test_the_counters_are_those_of_the_paper(compiled: bool) -> None:
    """Random sets of few and of many labels, in batches, with rows used again and again."""
    kernels = COMPILED
    if not compiled:
        kernels = plain_python((tallies, set_sketches))[set_sketches]
    rng = random.Random(1)
    for size in (1, 2, 5, 20):
        held = table()
        sets = list[list[int]]()
        for _ in range(60):
            labels = range(rng.choice([3, 12, 40]))
            more = [
                rng.sample(labels, min(len(labels), rng.choice([0, 1, 2, 9])))
                for _ in range(rng.choice([1, 4]))
            ]
            sets += more
            with np.errstate(over="ignore"):
                feed(kernels, size, held, more)
            named = [list(map(str, labels)) for labels in sets]
            expected = algorithm_4(size, named)
            found = counters_of(kernels, held)
            assert {str(label): n for label, n in found.items()} == expected
            # What every row holds is found again.
            assert sorted(held.slots[held.slots >= 0].tolist()) == sorted(
                set(held.slots[held.slots >= 0].tolist())
            )
            assert int((held.slots >= 0).sum()) == len(found) <= size
        assert int(held.used[set_sketches.ROWS]) <= size + 9 < ROOM


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_count_lacks_at_most_a_share_of_all_labels(size: int) -> None:
    """Lemma 8: at most floor(N / (size + 1)), and never too much."""
    rng = random.Random(size)
    for _ in range(200):
        sets = [rng.sample(range(9), rng.randint(0, 5)) for _ in range(30)]
        held = table()
        feed(COMPILED, size, held, sets)
        found = counters_of(COMPILED, held)
        exact = Counter(label for labels in sets for label in labels)
        for label, n in exact.items():
            lost = n - found.get(label, 0)
            assert 0 <= lost <= exact.total() // (size + 1)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_neighbours_differ_by_one_in_one_direction(size: int) -> None:
    """All pairs of streams of up to six sets of four labels, one set left out of one of them."""
    pairs = list(neighbours(step_of(size)))
    assert len(pairs) > 50
    assert not [pair for pair in pairs if complaint(size, pair)]
    # The bound is attained: all counters differ.
    assert (
        max(sum(x != y for x, y in zip(*pair, strict=True)) for pair in pairs) == size
    )


FLAWS = {
    "one too many is taken": ("table.lowered[key] += 1", "table.lowered[key] += 2"),
    "an item is fed twice": (
        "table.heights[row] += 1",
        "table.heights[row] += 2",
    ),
    "a set is fed item by item": (
        "            table.heights[row] += 1\n",
        """\
            table.heights[row] += 1
            if table.counters[key] > size:
                lower_all(key, table)
""",
    ),
}


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_planted_flaw_is_found_among_the_neighbours(flaw: str) -> None:
    planted = plain_python((tallies, set_sketches), *FLAWS[flaw])[set_sketches]
    with np.errstate(over="ignore"):
        pairs = neighbours(step_of(2, planted), EVENTS - 1)
        assert any(complaint(2, pair) for pair in pairs)
